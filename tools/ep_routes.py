#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a trace for ep_perf --routing file: of what an engine has recorded: see ep_routes(1)."""
import argparse
import array
import bisect
import collections
import json
import os
import pickle
import random
import sys
import zipfile

USAGE, BROKEN = 2, 3
MOST_TOPK = 32
# Names of tensors with counts, [..., layers, experts]: SGLang's mode stat; vLLM's EplbState.
COUNTS = ('logical_count', 'expert_load_window', 'expert_load_pass', 'expert_load')
STORAGES = {'LongStorage': 'q', 'IntStorage': 'i', 'ShortStorage': 'h', 'CharStorage': 'b', 'ByteStorage': 'B',
            'FloatStorage': 'f', 'DoubleStorage': 'd'}


class Refused(Exception):
    """A file that cannot be converted, with the reason."""


# ---- torch.save without torch: a zip with a pickle, and the numbers beside it ----

class Storage:
    """The numbers of a tensor; read when somebody wants them."""

    def __init__(self, kind, read):
        self.kind, self.read = kind, read


def tensor(storage, offset, shape, stride, *_):
    """Nested lists; None for kinds of numbers that no count and no id has."""
    if storage.kind is None:
        return None
    values = array.array(storage.kind)
    values.frombytes(storage.read())
    return nest(values, offset, list(shape), list(stride))


def nest(values, at, shape, stride):
    if not shape:
        return values[at]
    return [nest(values, at + i * stride[0], shape[1:], stride[1:]) for i in range(shape[0])]


class Reader(pickle.Unpickler):
    """Plain values and tensors. No code of the file is run: other classes are refused."""

    def __init__(self, archive, folder):
        super().__init__(archive.open(folder + 'data.pkl'))
        self.archive, self.folder = archive, folder

    def find_class(self, module, name):
        if (module, name) == ('torch._utils', '_rebuild_tensor_v2'):
            return tensor
        if (module, name) == ('collections', 'OrderedDict'):
            return collections.OrderedDict
        if module == 'torch' and name.endswith('Storage'):
            return STORAGES.get(name)
        raise Refused('it holds a %s.%s, which is not read' % (module, name))

    def persistent_load(self, pid):
        _, kind, key = pid[:3]
        return Storage(kind, lambda: self.archive.read(self.folder + 'data/' + key))


def read_torch(path):
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if n.endswith('data.pkl')]
        if not names:
            raise Refused('it has no data.pkl')
        folder = names[0][:-len('data.pkl')]
        order = [n for n in archive.namelist() if n == folder + 'byteorder']
        if order and archive.read(order[0]).decode() != sys.byteorder:
            raise Refused('it is of a machine with another byte order')
        return Reader(archive, folder).load()


def read(path):
    try:
        if zipfile.is_zipfile(path):
            return read_torch(path)
        with open(path, encoding='utf-8') as file:
            return json.load(file)
    except OSError as error:
        raise Refused(error.strerror) from None
    except (ValueError, KeyError, IndexError, TypeError, EOFError, RecursionError, pickle.UnpicklingError,
            zipfile.BadZipFile) as error:
        raise Refused('it is neither JSON nor written by torch.save: %s' % error) from None


# ---- what is in it ----

def depth(value):
    return 1 + depth(value[0]) if isinstance(value, list) and value else 0


def choose_layer(layers, wanted):
    """`layers` are those with data; without a wish the one in the middle."""
    if not layers:
        raise Refused('no layer has data')
    if wanted is None:
        return layers[len(layers) // 2]
    if wanted not in layers:
        raise Refused('layer %d has no data; allowed is one of %s' % (wanted, ', '.join(map(str, layers))))
    return wanted


def lines_of_records(records, wanted, forwards):
    """SGLang's mode per_token: topk_ids_of_layer[layer][token][k] of each forward pass."""
    passes = [r for r in records if r.get('topk_ids_of_layer')]
    if forwards == 'decode':
        passes = [r for r in passes if r.get('forward_mode') == 2]
    if not passes:
        raise Refused('no forward pass has topk_ids_of_layer: record with the mode per_token')
    passes.sort(key=lambda r: r.get('forward_pass_id', 0))
    layers = sorted({n for r in passes for n, tokens in enumerate(r['topk_ids_of_layer'])
                     if any(len(set(ids)) > 1 for ids in tokens)})
    layer = choose_layer(layers, wanted)
    return layer, [[i for i in ids if i >= 0] for r in passes for ids in r['topk_ids_of_layer'][layer]]


def counts_of(document):
    """(counts, map from physical to logical experts or None)."""
    if isinstance(document, list):
        return document, None
    for name in COUNTS:
        if document.get(name) is not None:
            physical = name != 'logical_count'
            return document[name], document.get('physical_to_logical_map') if physical else None
    raise Refused('it has neither records nor one of %s' % ', '.join(COUNTS))


def add_up(counts):
    """[layers][experts] of [..., layers, experts]: the sum over all that stands before."""
    if depth(counts) < 3:
        return counts if depth(counts) == 2 else [counts]
    steps = [add_up(step) for step in counts]
    return [[sum(column) for column in zip(*experts)] for experts in zip(*steps)]


def load_of(document, wanted):
    """How many ids name each expert, in one layer."""
    counts, places = counts_of(document)
    if depth(counts) < 1:
        raise Refused('its counts are empty')
    layers = add_up(counts)
    layer = choose_layer([n for n, experts in enumerate(layers) if any(experts)], wanted)
    loads = layers[layer]
    if any(n < 0 for n in loads):
        raise Refused('layer %d has a count below 0' % layer)
    if places:
        logical = [0] * (1 + max(places[layer]))
        for place, count in zip(places[layer], loads):
            logical[place] += count
        loads = logical
    return layer, loads


def draw(loads, tokens, topk, seed):
    """Tokens that together have these loads, as far as an expert can have one id of each token; their order is random."""
    total, want = sum(loads), tokens * topk
    if topk > len(loads):
        raise Refused('top-k %d of %d experts' % (topk, len(loads)))
    order = sorted(range(len(loads)), key=lambda e: (-loads[e], e))
    share = {e: min(tokens, int(want * loads[e] / total + 0.5)) for e in order}
    missing = want - sum(share.values())
    for e in order if missing > 0 else order[::-1]:
        more = min(tokens - share[e], missing) if missing > 0 else max(-share[e], missing)
        share[e] += more
        missing -= more
    ends, end = [], 0
    for e in order:
        end += share[e]
        ends.append(end)
    lines = [[order[bisect.bisect_right(ends, t + k * tokens)] for k in range(topk)] for t in range(tokens)]
    random.Random(seed).shuffle(lines)
    return lines


def convert(path, arguments):
    """(what it is, lines of ids)"""
    document = read(path)
    if isinstance(document, dict) and isinstance(document.get('records'), list):
        if arguments.topk:
            raise Refused('it has ids: --topk is for counts')
        layer, lines = lines_of_records(document['records'], arguments.layer, arguments.forwards)
        what = 'layer %d, ids as recorded' % layer
    elif isinstance(document, (dict, list)):
        if not arguments.topk:
            raise Refused('it has counts, no ids: --topk sets how many ids a token gets')
        layer, loads = load_of(document, arguments.layer)
        lines = draw(loads, arguments.tokens, arguments.topk, arguments.seed)
        what = 'layer %d, drawn from %g counts of %d experts' % (layer, sum(loads), len(loads))
    else:
        raise Refused('it holds no records and no counts')
    for number, ids in enumerate(lines):
        if len(ids) > MOST_TOPK or len(set(ids)) != len(ids) or any(type(i) is not int for i in ids):
            raise Refused('token %d has %s, allowed is %d whole numbers at most, each once' % (number, ids, MOST_TOPK))
    lines = lines[:arguments.tokens] if arguments.tokens else lines
    if not lines:
        raise Refused('it has no token')
    return what, lines


def write(file, done):
    for path, (what, lines) in done:
        file.write('# %s: %s\n' % (os.path.basename(path), what))
        for ids in lines:
            file.write(' '.join(map(str, ids)) + '\n' if ids else '-1\n')


def number(least, most):
    def parse(text):
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError("got '%s', allowed is %d to %d" % (text, least, most))
        return int(text)
    return parse


def main():
    parser = argparse.ArgumentParser(prog='ep_routes', allow_abbrev=False,
                                     description='Makes a trace for ep_perf --routing file: of what an engine recorded.')
    parser.add_argument('files', metavar='FILE', nargs='+', help='a recording, in the order of ranks if there are several')
    parser.add_argument('-o', '--output', metavar='FILE', help='the trace; default: standard output')
    parser.add_argument('--layer', type=number(0, 10000), metavar='N', help='default: the one in the middle of those with data')
    parser.add_argument('--tokens', type=number(1, 1 << 24), metavar='N',
                        help='of each file, at most; of counts, exactly; default: all, 4096')
    parser.add_argument('--topk', type=number(1, MOST_TOPK), metavar='K', help='ids of a token; of counts only')
    parser.add_argument('--forwards', choices=['all', 'decode'], default='all', help='which forward passes of a recording')
    parser.add_argument('--seed', type=number(0, 1 << 62), default=1, metavar='N', help='of the order of tokens; of counts only')
    arguments = parser.parse_args()
    done = []
    for path in arguments.files:
        try:
            if arguments.topk and not arguments.tokens:
                arguments.tokens = 4096
            done.append((path, convert(path, arguments)))
        except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            print('ep_routes: %s: its records or counts have another form than is known: %s' % (path, error), file=sys.stderr)
            return BROKEN
        except Refused as refusal:
            print('ep_routes: %s: %s' % (path, refusal), file=sys.stderr)
            return BROKEN
    try:
        if not arguments.output:
            write(sys.stdout, done)
            sys.stdout.flush()
            return 0
        with open(arguments.output, 'w', encoding='utf-8') as file:
            write(file, done)
    except OSError as error:
        print('ep_routes: %s: %s' % (arguments.output or 'standard output', error.strerror), file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what Python still holds for it
        return BROKEN
    experts = 1 + max((i for _, (_, lines) in done for ids in lines for i in ids), default=0)
    print('ep_routes: %d tokens, top-%d, %d experts or more, to %s' % (
        sum(len(lines) for _, (_, lines) in done), max(len(ids) for _, (_, lines) in done for ids in lines), experts,
        arguments.output), file=sys.stderr)
    return 0


if __name__ == '__main__':
    sys.exit(main())
