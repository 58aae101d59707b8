#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ep_routes seen from outside: recordings and counts, as engines write them, become traces that ep_perf reads.

check_ep_routes.py EP_ROUTES EP_PERF
"""
import array
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import types
import zipfile

from outside import Program, end, expect

EP_ROUTES, EP_PERF = sys.argv[1:3]
PROGRAM = Program(EP_ROUTES)


def run(*command, status=0):
    """(output, error) of the program."""
    done = PROGRAM.run(*command, status=status)
    return done.stdout, done.stderr


def lines_of(text):
    return [[int(i) for i in line.split()] for line in text.splitlines() if not line.startswith('#')]


# ---- what torch.save writes ----

class Tensor:
    """A tensor of a storage that has more: its numbers lie at an offset, and in columns."""

    def __init__(self, kind, values, shape):
        self.kind, self.shape = kind, shape
        self.data = array.array({'IntStorage': 'i', 'LongStorage': 'q', 'FloatStorage': 'f'}[kind], [77, *self.columns(values)])

    def strides(self):
        stride, strides = 1, []
        for n in self.shape:  # the first index is the fastest
            strides.append(stride)
            stride *= n
        return tuple(strides)

    def columns(self, values):
        total = 1
        for n in self.shape:
            total *= n
        out = [0] * total
        for number, value in enumerate(values):  # values come with the last index the fastest
            at, rest = 0, number
            for n, stride in zip(reversed(self.shape), reversed(self.strides())):
                at += rest % n * stride
                rest //= n
            out[at] = value
        return out


def save(path, document, extra=None):
    """The format of torch.save, without torch: names of its functions and classes stand in the pickle."""
    torch, utils = types.ModuleType('torch'), types.ModuleType('torch._utils')

    def _rebuild_tensor_v2():
        pass

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = 'torch._utils', '_rebuild_tensor_v2'
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    for name in ('IntStorage', 'LongStorage', 'FloatStorage', 'HalfStorage', 'device'):
        setattr(torch, name, type(name, (), {'__module__': 'torch', '__qualname__': name}))
    storages = []

    class Pickler(pickle._Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, tuple) and obj and obj[0] == 'a storage':
                storages.append(obj[1].data.tobytes())
                return ('storage', getattr(torch, obj[1].kind), str(len(storages) - 1), 'cpu', len(obj[1].data))
            return None

        def reducer_override(self, obj):
            if isinstance(obj, Tensor):
                return _rebuild_tensor_v2, (('a storage', obj), 1, obj.shape, obj.strides(), False, None)
            return NotImplemented

    Pickler.dispatch_table = {Tensor: lambda obj: (_rebuild_tensor_v2, (
        ('a storage', obj), 1, obj.shape, obj.strides(), False, None))}
    sys.modules.update({'torch': torch, 'torch._utils': utils})
    try:
        stream = io.BytesIO()
        Pickler(stream, protocol=2).dump(document if extra is None else dict(document, extra=getattr(torch, extra)()))
    finally:
        del sys.modules['torch'], sys.modules['torch._utils']
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('archive/data.pkl', stream.getvalue())
        archive.writestr('archive/byteorder', sys.byteorder)
        for number, data in enumerate(storages):
            archive.writestr('archive/data/%d' % number, data)


def check_recording(work):
    """SGLang's mode per_token: layer 0 is dense, passes come in any order, and a token is padded."""
    def one(number, mode, tokens):
        ids = [0] * (len(tokens) * 2) + [i for t in tokens for i in t] + [i + 1 for t in tokens for i in t]
        return {'forward_pass_id': number, 'rank': 0, 'forward_mode': mode, 'misc_objects': [{'layer_id': 1}],
                'topk_ids_of_layer': Tensor('IntStorage', ids, (3, len(tokens), 2))}

    path, out = os.path.join(work, 'rank0.pt'), os.path.join(work, 'trace')
    save(path, {'records': [one(2, 2, [[5, 1]]), one(1, 1, [[0, 3], [4, -1]])],
                'last_physical_to_logical_map': Tensor('LongStorage', list(range(8)), (1, 8))})
    expect(lines_of(run(path, '--layer', '1')[0]) == [[0, 3], [4], [5, 1]], 'ids of layer 1, in order')
    expect(lines_of(run(path)[0])[0] == [1, 4], 'the layer in the middle of those with data')
    expect(lines_of(run(path, '--layer', '1', '--forwards', 'decode')[0]) == [[5, 1]], 'passes that decode')
    expect(lines_of(run(path, path, '--layer', '1', '--tokens', '1')[0]) == [[0, 3]] * 2, 'some tokens of two files')
    expect('layer 0 has no data; allowed is one of 1, 2' in run(path, '--layer', '0', status=3)[1], 'a dense layer')
    expect('--topk is for counts' in run(path, '--topk', '2', status=3)[1], 'ids have a top-k of their own')
    said = run(path, path, '--layer', '1', '-o', out)[1]
    expect('6 tokens, top-2, 6 experts or more' in said, said)
    results = os.path.join(work, 'out.json')
    subprocess.run([EP_PERF, '-g', '2', '-b', '3', '--hidden', '64', '--experts', '8', '--topk', '2', '-n', '1', '-w', '0',
                    '--routing', 'file:' + out, '-J', results], check=True, stdout=subprocess.DEVNULL,
                   env=dict(os.environ, NCCL_NVLS_ENABLE='0'))
    with open(results) as file:
        expect(json.load(file)['results'][0]['expert_ids'] == [2, 2, 0, 2, 2, 2, 0, 0], 'ep_perf reads the trace')


def check_counts(work):
    """Loads come back: in proportion, one id of a token for an expert at most."""
    def loads(path, *options):
        lines = lines_of(run(path, '--topk', '4', '--tokens', '1000', *options)[0])
        expect(len(lines) == 1000 and all(len(ids) == len(set(ids)) == 4 for ids in lines), 'lines of %s' % path)
        return [sum(ids.count(e) for ids in lines) for e in range(8)], lines

    counts = [10, 30, 0, 20, 5, 15, 15, 5]
    path = os.path.join(work, 'counts.json')
    with open(path, 'w') as file:
        json.dump(counts, file)
    got, lines = loads(path)
    # expert 1 would have 1200, of 1000 tokens: the rest goes to the next busiest
    expect(got == [400, 1000, 0, 1000, 200, 600, 600, 200], 'loads %s' % got)
    expect(loads(path)[1] == lines != loads(path, '--seed', '2')[1], 'the seed makes the order')
    expect(len({tuple(sorted(ids)) for ids in lines[:20]}) > 1, 'the order is random')
    # [steps][layers][experts] of SGLang; layer 0 is dense
    path = os.path.join(work, 'stat.pt')
    save(path, {'rank': 0, 'logical_count': Tensor('LongStorage', [0] * 8 + [1, 1, 2, 0, 1, 1, 1, 1] + [0] * 8 + [1] * 8, (2, 2, 8)),
                'average_utilization_rate_over_window': 0.5})
    expect(loads(path)[0] == [500, 500, 750, 250, 500, 500, 500, 500], 'steps are added up')
    # vLLM: replicas of an expert count together
    path = os.path.join(work, 'eplb.pt')
    save(path, {'expert_load_pass': Tensor('IntStorage', [2, 1, 1, 1, 1, 1, 1, 1, 0, 1], (1, 10)),
                'physical_to_logical_map': Tensor('LongStorage', [7, 0, 1, 2, 3, 4, 5, 6, 0, 1], (1, 10))})
    expect(loads(path)[0] == [400, 800, 400, 400, 400, 400, 400, 800], 'replicas add up: %s' % loads(path)[0])


def check_refused(work):
    path = os.path.join(work, 'bad')

    def refused(text, write, *options):
        write()
        out, said = run(path, *options, status=3)
        expect(text in said and path in said and out == '', '%s: %s' % (text, said))

    def plain(text):
        def write():
            with open(path, 'w') as file:
                file.write(text)
        return write

    refused('neither JSON nor', plain('{'))
    refused('it has counts, no ids: --topk', plain('[1, 2]'))
    refused('no layer has data', plain('[[0, 0]]'), '--topk', '1')
    refused('has a count below 0', plain('[1, -1]'), '--topk', '1')
    refused('top-k 3 of 2 experts', plain('[1, 1]'), '--topk', '3')
    refused('neither records nor one of', plain('{"a": 1}'), '--topk', '1')
    refused('no records and no counts', plain('1'), '--topk', '1')
    refused('another form', plain('{"records": [1]}'))
    refused('another form', plain('["a", "b"]'), '--topk', '1')
    refused('no forward pass has', plain('{"records": []}'))
    refused('token 0 has [1.5, 2]', plain('{"records": [{"topk_ids_of_layer": [[[1.5, 2]]]}]}'))
    refused('another form', plain('[NaN, 1]'), '--topk', '1')
    refused('another form', plain('[1e999, 1]'), '--topk', '1')
    refused('neither JSON nor', plain('[' * 100000))
    refused('token 1 has [2, 2]', plain('{"records": [{"topk_ids_of_layer": [[[1, 2], [2, 2]]]}]}'))
    refused('torch.device, which is not read', lambda: save(path, {'records': []}, 'device'))
    refused('No such file', lambda: os.unlink(path))
    for options in (['--topk', '33'], ['--tokens', '0'], ['--layer', 'x'], ['--forwards', 'none']):
        run(path, *options, status=2)
    expect('No such file' in run(os.path.join(work, 'rank0.pt'), '-o', '/nonexistent/x', status=3)[1], 'no place for the trace')


def check_full(work):
    """A trace that could not be written is a failure, with a line."""
    path = os.path.join(work, 'one')
    with open(path, 'w') as file:
        file.write('{"records": [{"topk_ids_of_layer": [[[1, 2]]]}]}')
    with open('/dev/full', 'w') as full:
        done = subprocess.run([sys.executable, EP_ROUTES, path], stdout=full, stderr=subprocess.PIPE, text=True,
                              env={k: v for k, v in os.environ.items() if k != 'PYTHONUNBUFFERED'})
    expect(done.returncode == 3 and done.stderr == 'ep_routes: standard output: No space left on device\n', 'a full disk: %s' % done)


def main():
    with tempfile.TemporaryDirectory() as work:
        check_recording(work)
        check_counts(work)
        check_refused(work)
        check_full(work)
    end()


main()
