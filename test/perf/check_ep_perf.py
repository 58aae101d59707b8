#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ep_perf seen from outside: its table, its JSON, its exit status, its ways to be launched.

check_ep_perf.py EP_PERF VCRUN CORRUPT_LIBRARY MANUAL_PAGE
"""
import calendar
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time

from outside import end, expect, run_perf as run

EP_PERF, VCRUN, CORRUPT, MANUAL = sys.argv[1:5]
SHAPE = ['--hidden', '256', '--experts', '12', '--topk', '4', '-n', '2', '-w', '1', '-T', '60']


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_origin(document):
    """What was run, when, and by which library."""
    command, library = document['command'], document['library']
    expect(command[0] == EP_PERF and ' --hidden 256 ' in ' '.join(command), 'command %s' % command)
    started = calendar.timegm(time.strptime(document['started'], '%Y-%m-%dT%H:%M:%SZ'))
    expect(abs(time.time() - started) < 1000, 'started at %s' % document['started'])
    expect(re.match('Switchyard %s, commit %s, ' % (re.escape(library['version']), library['commit']),
                    library['text']), 'library %s' % library)
    expect(os.path.samefile(library['path'], os.path.join(os.path.dirname(EP_PERF), 'libnccl_ep.so.0')), 'path')


def check_samples(op, iterations, what):
    """The percentiles are those of the samples: the value that so many iterations do not exceed."""
    samples = op['samples_us']
    expect(op['kernel_samples_us'] is None, 'no kernel samples without a GPU')
    expect(len(samples['max']) == len(samples['min']) == iterations, 'samples of %s' % what)
    expect(all(0 < a <= b for a, b in zip(samples['min'], samples['max'])), 'slowest and fastest rank of %s' % what)
    expect(op['p999_us'] is None or iterations >= 1000, 'p99.9 of %d iterations' % iterations)
    for key, values, share in (('p50_us', 'max', 50), ('p90_us', 'max', 90), ('p99_us', 'max', 99), ('max_us', 'max', 100),
                               ('fastest_rank_us', 'min', 50)):
        wanted = sorted(samples[values])[-(-share * iterations // 100) - 1]
        expect(op[key] == wanted, '%s of %s: %g, not %g' % (key, what, op[key], wanted))


def digest_of(ranks):
    """As the manual page says."""
    def add(state, data):
        for byte in data:
            state = (state ^ byte) * 0x100000001b3 % 2**64
        return state

    state = 0xcbf29ce484222325
    for ids in ranks:
        state = add(state, struct.pack('<Q', add(0xcbf29ce484222325, struct.pack('<%di' % len(ids), *ids))))
    return 'fnv1a64:%016x' % state


def check_detail(work):
    """Of a routing that is known: its digest and its experts. Who waits for whom; what NVML says."""
    trace, out = os.path.join(work, 'trace'), os.path.join(work, 'detail.json')
    with open(trace, 'w') as file:
        file.write('0 1 2 3\n4 5 6\n11 7 3 0\n')
    libraries = os.path.join(os.path.dirname(EP_PERF), 'nvml')
    run([VCRUN, '--gpus', '3', '--', EP_PERF, '-b', '2', *SHAPE, '--routing', 'file:' + trace, '-J', out], 0,
        LD_LIBRARY_PATH=libraries + ':' + os.environ.get('LD_LIBRARY_PATH', ''))
    with open(out) as file:
        document = json.load(file)
    row = document['results'][0]
    lines = [[0, 1, 2, 3], [4, 5, 6, -1], [11, 7, 3, 0]]
    tokens = [lines[i % 3] for i in range(6)]
    expect(row['expert_ids'] == [sum(line.count(e) for line in tokens) for e in range(12)], 'ids of each expert')
    expect(row['routing_digest'] == digest_of([tokens[0] + tokens[1], tokens[2] + tokens[3], tokens[4] + tokens[5]]),
           'digest %s' % row['routing_digest'])
    waits = row['waits_us']
    expect([len(line) for line in waits] == [3, 3, 3], 'who waited for whom: %s' % waits)
    expect(all(number(waits[r][n]) and waits[r][n] >= 0 for r in range(3) for n in range(3)), 'waits %s' % waits)
    expect(any(waits[r][n] > 0 for r in range(3) for n in range(3) if r != n), 'somebody waited: %s' % waits)
    expect(document['driver'] == '999.1', 'driver %s' % document['driver'])
    expect(row['clocks_mhz'] == {'sm': {'min': 1000, 'max': 1002}, 'memory': {'min': 2000, 'max': 2002}},
           'clocks %s' % row['clocks_mhz'])


def check_document(document, rows, ranks, launcher, per_gpu=1):
    high = document['config']['mode'] == 'ht'
    expect(document['schema'] == 'ep_perf' and document['schema_version'] == 2, 'schema')
    expect(set(document['versions']) == {'nccl_ep', 'api', 'nccl', 'cuda_runtime', 'cuda_driver'},
           'versions')
    expect(document['launcher'] == launcher, 'launcher is %s' % document['launcher'])
    check_origin(document)
    expect([r['rank'] for r in document['ranks']] == list(range(ranks)), 'ranks')
    expect([r['device'] for r in document['ranks']] == [r // per_gpu for r in range(ranks)],
           'devices')
    expect(document['environment'].get('NCCL_NVLS_ENABLE') == '0', 'environment')
    expect([r['tokens'] for r in document['results']] == rows, 'ladder')
    expect(document['wrong'] == 0, 'wrong')
    keys = ('group_ms', 'group_cpu_ms', 'handle_ms', 'library_mib')
    expect(all(number(document['setup'][k]) for k in keys), 'setup')
    for row in document['results']:
        expect(row['wrong'] == 0 and row['blocks'] is None, 'row %s' % row)
        expect(number(row['period_us']) and row['period_us'] > 0, 'period')
        for name in ('dispatch', 'combine', 'routing')[:2 + high]:
            op = row[name]
            expect(op['kernel_us'] is None, 'no kernel times without a GPU')
            expect(0 < op['fastest_rank_us'] <= op['p50_us'] <= op['p90_us'] <= op['p99_us'], '%s times' % name)
            check_samples(op, document['config']['iterations'], '%s of %d tokens' % (name, row['tokens']))
            expect(name == 'routing' or all(number(op[k]) for k in (
                'algbw_gbs', 'busbw_gbs', 'floor_us', 'floor_percent')), '%s bandwidth' % name)


def check_usage():
    """What is refused, and what is allowed instead; in one voice, also of several processes."""
    for bad, got, allowed in (
            (['--routing', 'random'], 'random', 'uniform'), (['-b', 'x'], 'x', '0 to 16777216'),
            (['-b', '99999'], '99999', '0 to 65535'),
            (['-b', '18014398509481985K'], '18014398509481985K', '0 to 16777216'),
            (['-b', ' -18446744073709551615'], '-18446744073709551615', '0 to 16777216'),
            (['--holders', '4294967296:2', '-g', '2'], '4294967296:2', 'FIRST:N'), (['--senders', '0: -1'], '0: -1', 'FIRST:N'),
            (['--routing', 'hot:0.5,4294967296'], 'hot:0.5,4294967296', 'rank'),
            (['--routing', 'curve:4294967297'], 'curve:4294967297', '1 to 1000'), (['--layout', 'flat'], 'flat', 'em rm'),
            (['--capacity', '65536'], '65536', '0 to 65535'),
            (['--mode', 'ht', '-b', '16777217'], '16777217', '0 to 16777216'),
            (['-b', '4', '-e', '2'], '2', '4'), (['--experts', '7', '-g', '2'], '7', 'ranks, 2'),
            (['--topk', '33'], '33', '1 to 32'), (['--topk', '9', '--experts', '8'], '9', '1 to 8'),
            (['-b', '8', '--capacity', '4'], '4', '8'), (['--drop', '2'], '2', '0 to 1'),
            (['-g', '9', '-t', '2'], '18', '16 ranks'), (['--ids', '16'], '16', '32 64'),
            (['-g', '4', '--ranks-per-gpu', '3'], '4', '3'),
            (['--ranks-per-gpu', '0'], '0', '1 to 16'), (['-c', '2'], '2', '0 to 1'),
            (['--rendezvous', 'x'], 'x', 'HOST:PORT'),
            (['--rendezvous', 'host:65536'], 'host:65536', '1 to 65535'), (['--rendezvous', ':1'], ':1', 'HOST:PORT'),
            (['--rendezvous', 'host:'], 'host:', 'HOST:PORT'), (['--node-size', 'zz'], 'zz', 'N,N'), (['--node-size', '2,'], '2,', 'N,N'),
            (['--node-size', '0,2'], '0,2', 'N,N'), (['--holders', '1'], '1', 'FIRST:N'),
            (['--senders', '0:0'], '0:0', 'FIRST:N'), (['--holders', '1:2', '-g', '2'], 'holders 1:2', '2 ranks'),
            (['--holders', '1:2', '-g', '3', '--experts', '7'], '7', 'ranks that hold some, 2'),
            (['--holders', '1:1', '-g', '2', '--windows'], '--holders', 'neither'),
            (['--holders', '1:1', '-g', '2', '--routing', 'hot:0.5,0'], 'rank 0', '1 to 1'),
            (['--routing', 'zipf:9'], 'zipf:9', '0 to 4'),
            (['--routing', 'power:1'], 'power:1', '1.001 to 4'),
            (['--routing', 'khot:257,1'], '257 hot', '1 to 256'),
            (['--routing', 'hot:0.5,3'], 'rank 3', '0 to 0'),
            (['--routing', 'group:3,1'], '3,1', 'dividing 256'),
            (['--routing', 'burst:1,1'], 'burst:1,1', 'n from 2 to 64'),
            (['--routing', 'empty:1'], '1 of 1 ranks', 'leave ranks'),
            (['--steps', '65'], '65', '1 to 64'),
            (['--quant', 'fp8', '--hidden', '100'], '100', 'multiple of 128'),
            (['--mode', 'ht', '--layout', 'rm'], 'rm', 'em flat'),
            (['--mode', 'ht', '--quant', 'fp8'], '--quant fp8', 'll'),
            (['--quant', 'mxfp8', '--hidden', '64'], '64', 'multiple of 128'),
            (['--quant', 'nvfp4', '-d', 'fp16'], 'fp16', 'bf16'),
            (['--combine-quant', 'nvfp4', '--hidden', '48'], '48', 'multiple of 32'),
            (['--mode', 'ht', '--quant', 'nvfp4'], '--quant nvfp4', 'll'),
            (['--mode', 'ht', '--combine-quant', 'fp8'], '--combine-quant fp8', 'll'),
            (['--combine-quant', 'mxfp8'], '--combine-quant mxfp8', 'ht'),
            (['--mode', 'ht', '--layout', 'flat', '--combine-quant', 'mxfp8'], 'flat', 'em'),
            (['--quant', 'mxfp8', '--pow2-scales'], '--quant mxfp8', 'fp8'),
            (['--pow2-scales'], '--quant none', 'fp8'),
            (['--quant', 'fwd', '--pow2-scales'], '--quant fwd', 'fp8'),
            (['--backward'], '--backward', 'ht'), (['--recv', '64'], '--recv', 'ht'),
            (['--mode', 'ht', '--eager', '-G', '2'], '-G', 'neither'),
            (['--mode', 'ht', '--layout', 'flat', '--align', '4'], 'flat', 'em')):
        error = run([EP_PERF, *bad], 2, VC_NCCL_VERSION='23000').stderr
        parts = re.match(r'ep_perf: (.*)allowed is (.*)\n$', error)
        expect(parts and got in parts[1] and allowed in parts[2], 'values in: %s' % error)
    for bad, text in ((['extra'], "'extra' is not an option"), (['--bogus'], "'--bogus' is not"),
                      (['-b'], '-b needs a value'), (['--staged=1'], '--staged=1 takes no value'),
                      (['--staged', '-Qx'], "'-Q' is not an option"), (['--staged', '-Rx'], "'-R' is of nccl-tests"),
                      (['--minbytes', '8'], '--mintokens'), (['--maxbytes=8'], '--maxtokens'),
                      (['--stepbytes', '8'], '--stepincrement'), (['-m', '5'], '--chains'),
                      (['-z', '1'], 'nccl-tests'), (['--parallel_init', '1'], 'nccl-tests')):
        error = run([EP_PERF, *bad], 2).stderr
        expect(error.startswith('ep_perf: ') and text in error, 'reason for %s: %s' % (bad, error))
    # The others give the launcher 3 s to end the run: in virtual time these may pass before it does.
    error = run([VCRUN, '--gpus', '3', '--', EP_PERF, '--bogus'], 2, VC_CLOCK='real').stderr
    expect(error.count('ep_perf: ') == 1, 'one rank speaks: %s' % error)
    done = run([VCRUN, '--gpus', '2', '--', EP_PERF, '--version'], 0)
    expect(re.fullmatch(r'ep_perf (\d+\.\d+\.\d+), NCCL EP [\d.]+\nlibrary   Switchyard \1, .*\n', done.stdout),
           'version: %s' % done.stdout)


def check_manual():
    """The page has the options that -h has, with the same arguments and defaults, and no others."""
    text = run([EP_PERF, '-h'], 0).stdout
    usage = []
    for part in re.split(r'\n  (?=-\w, |    --)', text[:text.index('\nProcesses')])[1:]:
        name = re.match(r'(?:-(\w), )? *--([\w-]+)(?: (\S+))?', part)
        usage.append((*name.groups(''), *re.findall(r'\[([^][]*)\]$', part)))
    with open(MANUAL, encoding='utf-8') as file:
        text = file.read().replace('\\', '')
    page = []
    for part in re.split(r'\n\.TP\n', text[text.index('.SH OPTIONS'):text.index('.SH TABLE')])[1:]:
        name = re.match(r'\.BR? (?:-(\w) ", " )?--([\w-]+)(?: " (.*)")?\n', part)
        page.append((*name.groups(''), *re.findall(r'Default: (.*)\.(?:\n\.SS.*)?$', part)))
    expect(sorted(usage) == sorted(page), 'manual and -h differ: %s' % sorted(
        set(usage) ^ set(page)))
    expect(len(usage) > 40, 'options in -h')


def check_progress():
    """A size that takes long says so while it does."""
    endless = [EP_PERF, '-g', '2', '-b', '32', '-n', '100000', *SHAPE[:6], '--progress', '1']
    with subprocess.Popen(endless, env=dict(os.environ, NCCL_NVLS_ENABLE='0'), text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        line = process.stderr.readline()
        process.kill()
    expect(re.fullmatch(r'ep_perf: 32 tokens per rank: [a-z ]+, \d+ s so far\n', line),
           'progress: %s' % line)


def check_trace(work):
    """A file of expert ids: each line is checked, and what does not fit is named by file and line."""
    trace = os.path.join(work, 'trace')

    def routed(text, status, *options):
        with open(trace, 'w') as file:
            file.write(text)
        return run([EP_PERF, '-g', '2', '-b', '4', *SHAPE, '--routing', 'file:' + trace, *options], status)

    good = '# experts of tokens\n0 1 2 3\n\n4,5 6\t-1\n11\n\n-1 -1\n'
    for options in ([], ['--mode', 'ht'], ['--mode', 'ht', '--layout', 'flat', '--ids', '32']):
        expect('# Out of bounds values : 0 OK' in routed(good, 0, *options).stdout, 'a trace is right')
    for line, got, allowed in (
            ('1 1 3 4', 'expert 1 twice', 'once in a line'), ('1 2 1', 'expert 1 twice', 'once in a line'),
            ('0 1 2 3 4', '5 ids', 'top-k, 4, at most'), ('1 99', 'expert 99', '-1 to 11'),
            ('1 -2', "'1 -2'", 'at most 32 expert ids'), ('1 2x', "'1 2x'", 'at most 32 expert ids'),
            ('1;2', "'1;2'", 'at most 32 expert ids'), ('0 ' * 33, "'0 0 ", 'at most 32 expert ids'),
            ('9999999999', "'9999999999'", 'at most 32 expert ids'),
            ('\x1b[2J', "'?[2J'", 'at most 32 expert ids'),
            ('3' + ' ' * 2000 + '5', "'3" + ' ' * 56 + "...'", 'at most 32 expert ids')):
        for last in (True, False):
            said = routed('# here\n0 1\n' + line + ('' if last else '\n2 3\n'), 2).stderr
            expect(re.match(r'ep_perf: %s:3: got .*%s.*, allowed is .*%s' % (
                re.escape(trace), re.escape(got), re.escape(allowed)), said, re.S), 'line 3 of a trace: %s' % said)
    expect('has no lines' in routed('# nothing\n\n', 2).stderr, 'an empty trace')
    said = run([EP_PERF, '--routing', 'file:/nonexistent'], 2).stderr
    expect(said.startswith('ep_perf: --routing: /nonexistent: No such file'), 'no trace: %s' % said)


def check_meeting(work):
    """Where processes meet is told by a file of the same user, whatever others put in its place."""
    place, target = os.path.join(work, 'meet'), os.path.join(work, 'target')

    def process(number, *options, before=()):
        return subprocess.Popen([*before, EP_PERF, '-b', '3', *SHAPE, '--rendezvous', 'file:' + place, *options],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                env=dict(os.environ, NCCL_NVLS_ENABLE='0', NCCL_HOSTID='h', PMI_RANK=number,
                                         PMI_SIZE='2'))

    def plant(name, mode, owner=None):
        with open(name, 'w') as file:
            file.write('%s %d 1\n' % (os.uname().nodename, listener.getsockname()[1]))
        os.chmod(name, mode)
        if owner:
            os.chown(name, owner, owner)

    def refused(how):
        with process('1', '-T', '2') as second:
            said = second.stderr.read()
        expect(place + ' is not believed' in said and 'did not find process 0' in said,
               'a meeting place that is %s: %s' % (how, said))
        try:
            listener.accept()
            expect(False, 'a meeting place that is %s is dialed' % how)
        except BlockingIOError:
            pass
        os.unlink(place)

    with socket.create_server(('127.0.0.1', 0)) as listener:
        listener.setblocking(False)
        plant(place, 0o644)
        refused('open to others')
        plant(target, 0o600)
        os.symlink(target, place)
        refused('a link')
        if os.geteuid() == 0:
            plant(place, 0o600, 12345)
            refused("another user's")
    # the name that process 0 writes first is foreseen, and leads to a file that is not to be written
    with open(target) as file:
        text = file.read()
    link = ['sh', '-c', 'ln -s "$0" "$1.$$" && shift && exec "$@"', target, place]
    with process('0', '-T', '60', before=link) as first, process('1', '-T', '60') as second:
        expect(second.wait(60) == 0 and first.wait(60) == 0, 'both meet all the same')
    with open(target) as file:
        expect(file.read() == text, 'a file of others was written through a link')


def check_ht(out):
    """High throughput: every way to run it is checked and right, and a mistake is found."""
    high = [EP_PERF, '--mode', 'ht', '-g', '2', *SHAPE]
    done = run([*high, '--layout', 'flat', '-b', '0', '-e', '20', '-i', '10', '--capacity', '24', '-J',
                out], 0)
    with open(out) as file:
        document = json.load(file)
    check_document(document, [0, 10, 20], 2, 'none')
    expect(document['config']['max_recv_tokens'] == 48, 'room for all that may come')
    lines = [line for line in done.stdout.splitlines() if line.startswith(('#token', ' '))]
    expect(len(lines) == 4 and len({len(line.split()) for line in lines}) == 1, 'columns')
    # bytes: dispatch of 20 tokens stores 20 rows for each rank a token goes to, and loads each token
    row = document['results'][2]
    expect(row['dispatch']['floor_us'] * 4290e3 > 20 * (1 + row['copies_per_token']) * 512 - 512,
           'memory floor')
    for options in (['em', '--align', '16', '--windows'], ['em', '--backward', '-G', '2'],
                    ['em', '--eager', '--uneven'], ['flat', '--windows', '-G', '2', '--ids', '32'],
                    ['flat', '--backward', '--drop', '0.3'], ['flat', '--quant', 'fwd', '-C', '1'],
                    ['flat', '--overflow', 'drop', '--recv', '12'],
                    ['em', '--overflow', 'drop', '--recv', '12'],
                    ['em', '--combine-quant', 'mxfp8', '--hidden', '512'],
                    ['em', '--combine-quant', 'mxfp8', '--hidden', '1024', '--backward', '--uneven']):
        done = run([*high, '-b', '12', '--layout', *options], 0)
        expect('# Out of bounds values : 0 OK' in done.stdout, 'summary of %s' % options)
    # more tokens than low latency takes (operations with as many are a test of their own)
    run([*high, '--layout', 'flat', '-b', '4', '--capacity', '65536'], 0)
    done = run([*high, '-b', '12', '--layout', 'flat', '--recv', '12'], 3)
    expect(re.search(r'rank \d.*12', done.stderr), 'an overflow names rank and limit: %s' %
           done.stderr)
    sharing = [EP_PERF, '--mode', 'ht', '-t', '4', '--ranks-per-gpu', '2', '-b', '9', *SHAPE]
    run(sharing, 0, VC_NCCL_VERSION='23000')
    # one rank reads what its stream will leave, another has to launch what that stream waits for
    run([*sharing, '--eager'], 0, VC_NCCL_VERSION='23000')
    for operation in ('dispatch', 'combine', 'routing', 'weights', 'gradients'):
        options = ['--backward'] if operation == 'gradients' else []
        done = run([*high, '-b', '3', '--layout', 'flat', *options], 1, CORRUPT=operation,
                   LD_PRELOAD=CORRUPT)
        name = {'weights': 'dispatch', 'gradients': 'combine'}.get(operation, operation)
        expect(name + ': rank ' in done.stderr, 'a %s mistake is named' % operation)


def check_roles(out):
    """Experts and tokens on different ranks: right results, rows of those alone, and less memory."""
    def measure(options, roles):
        run([EP_PERF, '-g', '4', '-b', '9', *SHAPE, *options, *roles, '-J', out], 0)
        with open(out) as file:
            return json.load(file)

    apart = ['--experts', '6', '--holders', '3:1', '--senders', '0:3']
    for options in (['--layout', 'em'], ['--layout', 'rm', '--uneven', '-G', '2'],
                    ['--mode', 'ht', '--layout', 'flat', '-G', '2'], ['--mode', 'ht', '--layout', 'em', '--eager', '--uneven']):
        document = measure(options, apart)
        check_document(document, [9], 4, 'none')
        expect((document['config']['holders'], document['config']['senders']) == ('3:1', '0:3'), 'roles in the config')
        expect(document['results'][0]['copies_per_token'] == 1, 'one rank has all experts')
        dummies = measure(options, ['--experts', '24'])
        expect(document['setup']['library_mib'] <= dummies['setup']['library_mib'], 'memory of roles')


def check_lost():
    """A rank that dies is named; rows that it could not send are not called wrong results."""
    for mode, launch in (('ll', 4), ('ll', 5), ('ht', 5), ('ht', 7)):
        done = subprocess.run([VCRUN, '--gpus', '3', '--keep-going', '--', EP_PERF, '--mode', mode, '-b', '8', *SHAPE],
                              env=dict(os.environ, NCCL_NVLS_ENABLE='0', NCCL_EP_TIMEOUT_MS='3000',
                                       VC_FAULT='kill:rank=2,launch=%d' % launch),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        expect(done.returncode and 'wrong results' not in done.stderr, '%s: a lost rank: %s' % (mode, done.stderr))
        expect(re.search(r'ep_perf: rank [01], .*waited for rank 2', done.stderr), '%s: whom: %s' % (mode, done.stderr))


def check_refused(out):
    """What the library refuses is a row with the reason, and a failure; only what the machine has not is skipped."""
    small = [EP_PERF, '-g', '2', '-b', '3', *SHAPE]
    done = run([*small, '--mode', 'ht', '--eager', '--overflow', 'drop', '-J', out], 3)
    with open(out) as file:
        row = json.load(file)['results'][0]
    expect('DROP' in row['unsupported'] and row['tokens'] == 3, 'refused row')
    expect(' refused: ' in done.stdout and '1 of 1, 1 refused' in done.stdout, 'refused line')
    run(small, 3, NCCL_EP_TIMEOUT_MS='5s')
    run([*small, '--hidden', '7'], 3)
    run([*small, '--sms', '100000'], 3)
    done = run([*small, '--windows'], 77, NCCL_WIN_ENABLE='0')
    expect(' unsupported: ' in done.stdout and '1 of 1, 0 refused' in done.stdout, 'no windows')


def check_full():
    """Results that could not be written are a failure, with a line."""
    for options in ([], ['-J', '-'], ['--version'], ['-h']):
        with open('/dev/full', 'w') as full:
            done = subprocess.run([EP_PERF, '-b', '3', *SHAPE, *options], env=dict(os.environ, NCCL_NVLS_ENABLE='0'),
                                  stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
        expect(done.returncode == 3 and re.search('No space left|an earlier write failed', done.stderr), 'a full disk, %s: %d, %s' % (
            options, done.returncode, done.stderr))
    expect('/dev/full: ' in run([EP_PERF, '-b', '3', *SHAPE, '-J', '/dev/full'], 3).stderr, 'no room for the JSON')


def main():
    check_usage()
    check_manual()
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, 'out.json')

        # threads of one process, a ladder
        nowhere = os.path.join(out, 'in', 'a', 'file')
        said = run([EP_PERF, '-g', '2', '-b', '4', *SHAPE, '-J', nowhere], 3).stderr
        expect(nowhere in said, 'where results cannot be written')
        done = run([EP_PERF, '-g', '3', '-b', '0', '-e', '4', *SHAPE, '--progress', '600', '-J', out], 0)
        with open(out) as file:
            document = json.load(file)
        check_document(document, [0, 1, 2, 4], 3, 'none')
        expect('# Out of bounds values : 0 OK' in done.stdout, 'summary')
        # else the defaults are those for GPUs, and a demo takes ten minutes
        expect('# Virtual cluster' in done.stdout, 'the virtual cluster knows itself')
        rows = [line for line in done.stdout.splitlines() if not line.startswith('#')]
        expect(len(rows) == 4 and all(row.split()[-1] == '0' for row in rows), 'table')
        heading = [line for line in done.stdout.splitlines() if line.startswith('#token')][0]
        expect(all(len(row.split()) == len(heading.split()) for row in rows), 'columns')
        expect('tokens per rank' not in done.stderr, 'no progress lines before their time')
        check_progress()
        # bytes: a token alone has as many copies as ranks it goes to, 2 bytes per element
        row = document['results'][3]
        expect(1 <= row['copies_per_token'] <= 3, 'copies')
        op = row['dispatch']
        expect(abs(op['algbw_gbs'] * op['p50_us'] * 1e3 -
                   row['copies_per_token'] * 4 * 512) < 50, 'algbw')

        # processes: vcrun, and what mpirun and torchrun would set. Real time: vcrun's own may stand still for a sample
        run([VCRUN, '--gpus', '2', '--', EP_PERF, '-g', '1', '-b', '3', *SHAPE, '--layout', 'rm',
             '-J', out], 0, VC_CLOCK='real')
        with open(out) as file:
            check_document(json.load(file), [3], 2, 'vcrun')
        # a port that nobody else is given: one that is bound so can be listened on by who asks for it
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(('', 0))
        launch = {
            'mpirun': lambda i: {'OMPI_COMM_WORLD_RANK': i, 'OMPI_COMM_WORLD_SIZE': '2',
                                 'OMPI_COMM_WORLD_LOCAL_RANK': i, 'PMIX_NAMESPACE': 'job%d' %
                                 os.getpid(), 'TMPDIR': work},
            'torchrun': lambda i: {'RANK': i, 'WORLD_SIZE': '2', 'LOCAL_RANK': i,
                                   'MASTER_ADDR': '127.0.0.1',
                                   'MASTER_PORT': str(held.getsockname()[1])},
        }
        for launcher, variables in launch.items():
            command = [EP_PERF, '-g', '2', '-b', '3', *SHAPE, '-J', out]
            parts = [subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                      env=dict(os.environ, NCCL_NVLS_ENABLE='0', NCCL_HOSTID='h',
                                               **variables(str(i)))) for i in (1, 0)]
            expect([part.wait(120) for part in parts] == [0, 0], launcher)
            with open(out) as file:
                check_document(json.load(file), [3], 4, launcher)
        held.close()
        for port in '29500x', '70000':
            error = run([EP_PERF, '-b', '3'], 3, RANK='0', WORLD_SIZE='2', LOCAL_RANK='0', MASTER_ADDR='127.0.0.1',
                        MASTER_PORT=port).stderr
            expect("got '127.0.0.1:%s'" % port in error, 'a port that is none: %s' % error)

        # nodes: bytes by the way they took, and no word of RDMA where no NIC carried any
        expect('RDMA' not in done.stdout, 'one node needs no RDMA')
        expect(document['dispatched']['rdma_bytes'] == 0 < document['dispatched']['gpu_bytes'],
               'bytes of one node')
        for options in (['--nodes', '2', '--gpus', '2', '--', EP_PERF],
                        ['--gpus', '4', '--', EP_PERF, '--node-size', '1,3']):
            across = run([VCRUN, *options, '-b', '3', *SHAPE, '-J', out], 0)
            with open(out) as file:
                links = json.load(file)['dispatched']
            expect(links['rdma_bytes'] > 0 and links['gpu_bytes'] > 0, 'bytes across nodes')
            expect('# Dispatched over RDMA' in across.stdout, 'RDMA is named')
            expect('ranks, RDMA between them' in across.stdout, 'nodes are named')
        across = run([VCRUN, '--nodes', '2', '--gpus', '1', '--', EP_PERF, '-b', '3', *SHAPE], 0)
        expect('NVLink' not in across.stdout, 'no NVLink without a neighbour')

        # ranks that share GPUs, and with them the SMs
        sharing = [EP_PERF, '-g', '2', '-t', '2', '--ranks-per-gpu', '2', '-b', '3', *SHAPE]
        able = {'VC_NCCL_VERSION': '23000', 'VC_SMS': '8'}
        run([*sharing, '-J', out], 0, **able)
        with open(out) as file:
            document = json.load(file)
        check_document(document, [3], 4, 'none', per_gpu=2)
        expect(document['config']['sms'] == 4, 'half of the SMs')
        expect(document['environment'].get('NCCL_MULTI_RANK_GPU_ENABLE') == '1', 'NCCL is told')
        done = run([*sharing, '--sms', '5'], 3, **able)
        expect('--sms is at most 4' in done.stderr, 'too many SMs')
        done = run([*sharing, '--combine-sms', '5'], 3, **able)
        expect('--combine-sms is at most 4' in done.stderr, 'too many SMs of combine')
        done = run(sharing, 2, VC_NCCL_VERSION='22909')
        expect('needs NCCL 2.30 or later, this is 2.29.9' in done.stderr, 'an NCCL that cannot')

        # formats: bytes are those of a row with its scales, in either direction
        for layout in ('em', 'rm'):
            for quant, back, bytes_in, bytes_back in (('mxfp8', 'fp8', 256 + 8, 256 + 8), ('nvfp4', 'nvfp4', 128 + 16, 128 + 16 + 4)):
                run([EP_PERF, '-g', '2', '-b', '5', *SHAPE, '--layout', layout, '--quant', quant, '--combine-quant', back, '-J', out], 0)
                with open(out) as file:
                    document = json.load(file)
                check_document(document, [5], 2, 'none')
                row, copies = document['results'][0], {'em': 4, 'rm': document['results'][0]['copies_per_token']}[layout]
                for name, count, size in (('dispatch', row['copies_per_token'], bytes_in), ('combine', copies, bytes_back)):
                    op = row[name]
                    expect(abs(op['algbw_gbs'] * op['p50_us'] * 1e3 - 5 * count * size) < 5 * size, 'bytes of %s %s' % (name, quant))

        check_ht(out)
        check_roles(out)
        check_trace(work)
        check_detail(work)
        check_meeting(work)

        check_lost()
        check_refused(out)
        check_full()

        # mistakes are found, on every rank's behalf, and fail the run
        for layout in ('em', 'rm'):
            for operation in ('dispatch', 'combine'):
                done = run([EP_PERF, '-g', '2', '-b', '3', *SHAPE, '--layout', layout], 1,
                           CORRUPT=operation, LD_PRELOAD=CORRUPT)
                expect(operation + ': rank ' in done.stderr, 'a %s mistake is named' % operation)
                expect('FAILED' in done.stdout, 'summary of a failure')

    end()


main()
