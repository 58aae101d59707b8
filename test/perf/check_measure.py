#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/measure.sh on the virtual cluster: its tables and its JSON, and what becomes of steps that
fail, hang or come too late.

check_measure.py SOURCE_ROOT BUILD_DIR
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from outside import end, expect

ROOT, BUILD = sys.argv[1:3]
MEASURE = os.path.join(ROOT, 'tools/measure.sh')
REAL = os.path.join(BUILD, 'test/vcluster/ep_perf')


def measure(status, *options, build=BUILD):
    done = subprocess.run([MEASURE, '--virtual', '--short', '--build', build, *options],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1000)
    expect(done.returncode == status, '%s: status %d, not %d\n%s' % (
        ' '.join(options), done.returncode, status, done.stdout))
    return done.stdout


def results(out):
    """What became of each step, its document, and the page."""
    with open(os.path.join(out, 'tables.md')) as file:
        page = file.read()
    check_tables(page)
    steps = {}
    with open(os.path.join(out, 'steps.tsv')) as file:
        for line in file:
            name, status, _, text = line.rstrip('\n').split('\t')
            steps[name] = {'status': status, 'text': text}
            path = os.path.join(out, 'json', name + '.json')
            if status == 'ok' and os.path.exists(path):
                with open(path) as document:
                    steps[name]['document'] = json.load(document)
    failed = [name for name, step in steps.items() if step['status'] not in ('ok', 'skipped')]
    expect(('**Failed: %s.**' % ', '.join(failed) in page) if failed else 'Failed' not in page, 'failed: %s: %s' % (failed, page))
    return failed, steps, page


def check_tables(page):
    """Each row has the cells of its heading; a table has rows."""
    tables = re.findall(r'(?:^\|.*\n?)+', page, re.M)
    for table in tables:
        lines = table.splitlines()
        expect(len(lines) > 2 and re.fullmatch(r'\| ---( \| ---:)+ \|', lines[1]), 'table: %s' % table)
        expect(len({line.count('|') for line in lines}) == 1, 'cells: %s' % table)
    expect(tables, 'there are tables')


def check_list():
    steps = measure(0, '--list').split()
    bare = subprocess.run([MEASURE, '--list'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
                          env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})
    expect(bare.returncode == 0 and set(bare.stdout.split()) >= {'ll.em.none', 'ht.flat.none.16'},
           'a list without a GPU: %s' % bare.stdout)
    expect(len(steps) == len(set(steps)), 'steps have names of their own')
    for pattern in (r'll\.(em|rm)\.(none|fp8)(\.graph)?', r'll\.(em|rm)\.none\.(zipf|hot)',
                    r'ht\.(flat|em)\.(none|fwd)\.\d+(\.windows)?', r'ht\.(flat|em)\.none\.\d+\.backward',
                    r'ht\..*\.8192', r'processes\.(window|ipc)\.(all|own)\.(ll|ht)',
                    r'creation\.1\.(threads|processes|mpirun|torchrun)', 'demo'):
        expect(any(re.fullmatch(pattern, s) for s in steps), 'no step is like %s' % pattern)


def check_results(work):
    """What was measured is in the tables."""
    out = os.path.join(work, 'well')
    only = ['ll.em.fp8*', 'ht.flat.none.8', 'ht.em.fwd.8.windows', 'processes.ipc.own.ll', 'creation.1.[tp][hr]*', 'demo']
    measure(0, '--out', out, '--commit', 'abc123', *(x for o in only for x in ('--only', o)))
    failed, steps, page = results(out)
    expect(failed == [], 'nothing fails')
    expect(set(steps) == {'start.1', 'll.em.fp8', 'll.em.fp8.graph', 'ht.flat.none.8', 'demo',
                          'ht.em.fwd.8.windows', 'processes.ipc.own.ll', 'creation.1.threads',
                          'creation.1.processes'}, 'steps: %s' % sorted(steps))
    expect(steps['demo']['status'] == 'skipped', 'the demo on the virtual cluster is a test of its own')
    expect('* commit: abc123\n' in page, 'commit')
    for name, rows in (('ll.em.fp8', 2), ('ll.em.fp8.graph', 2), ('ht.flat.none.8', 2),
                       ('ht.em.fwd.8.windows', 2), ('processes.ipc.own.ll', 2)):
        document = steps[name]['document']
        expect(document['wrong'] == 0 and len(document['ranks']) == 2, '%s is verified' % name)
        lines = re.findall(r'^\| %s \|(.*)\| 0 \|$' % re.escape(name), page, re.M)
        expect(len(lines) == rows, '%s has %d rows' % (name, len(lines)))
        for line, result in zip(lines, document['results']):
            cells = [c.strip() for c in line.split('|')]
            expect(cells[0] == str(result['tokens']), 'tokens of %s' % name)
            p50 = result['dispatch']['p50_us']
            expect(any(re.fullmatch(r'[\d.]+', c) and abs(float(c) - p50) <= 1 for c in cells[1:]),
                   'dispatch of %s, %g: %s' % (name, p50, cells))
    config = steps['ht.em.fwd.8.windows']['document']['config']
    expect(config['windows'] and config['sms'] == 8 and config['quant'] == 'fwd', 'options')
    expect(steps['ll.em.fp8.graph']['document']['config']['graph_replays'] == 2, 'graphs')
    expect(steps['processes.ipc.own.ll']['document']['processes'] == 2, 'processes')
    expect(re.search(r'^\| creation.1.processes \| \d+\.\d+\.\d+( \| [\d.]+){4} \|$', page, re.M), 'creation')


def fake_build(work, script):
    programs = os.path.join(work, 'fake/test/vcluster')
    os.makedirs(programs, exist_ok=True)
    path = os.path.join(programs, 'ep_perf')
    with open(path, 'w') as file:
        file.write('#!/bin/bash\n' + script + '\nexec %s "$@"\n' % REAL)
    os.chmod(path, 0o755)
    return os.path.join(work, 'fake')


def check_failures(work, limit):
    """A step that fails, one that hangs and one that finds mistakes are named, others still run. `limit`: of a step."""
    out, pid = os.path.join(work, 'ill'), os.path.join(work, 'pid')
    build = fake_build(work, '''
case "$LD_LIBRARY_PATH $*" in
*no-nccl*) echo 'ep_perf: no NCCL there' >&2; exit 3 ;;
*--routing*) echo 'FAILED: 7 wrong'; exit 1 ;;
*'rm --quant none'*) echo $$ >%s; while [ "$1" != -J ]; do shift; done
    echo '{"results": [{"tokens": 1, "period_us": 5.5},' >"$2"; sleep 3000 ;;
*'rm --quant fp8'*) echo 'ep_perf: error: out of order' >&2; exit 3 ;;
*'-b 24'*) echo 'unsupported: so many'; exit 77 ;;
esac''' % pid)
    only = ['ll.em.none', 'll.rm.none', 'll.rm.fp8', 'll.em.none.zipf', 'll.rm.none.many', 'other.*ll', 'ht.flat.none.8']
    measure(1, '--out', out, '--step', str(limit), '--nccl', '/no-nccl', '--nccl', work, '--nccl', '/',
            '--nccl', '/no-nccl', *(x for o in only for x in ('--only', o)), build=build)
    failed, steps, page = results(out)
    expect(failed == ['start.1', 'start.4', 'll.rm.none', 'll.rm.fp8', 'll.em.none.zipf'], 'failed: %s' % failed)
    told = {'start.1': ('failed', 'no NCCL there'), 'll.rm.none': ('time-out', 'after %d s' % limit),
            'll.rm.fp8': ('failed', 'status 3; ep_perf: error: out of order'),
            'll.em.none.zipf': ('failed', 'FAILED: 7 wrong'), 'll.rm.none.many': ('skipped', 'unsupported: so many'),
            'll.em.none': ('ok', ''), 'other.2.ll': ('ok', ''), 'start.3': ('ok', ''),
            'ht.flat.none.8': ('ok', '')}
    for name, (status, text) in told.items():
        step = steps[name]
        expect(step['status'] == status and text in step['text'], '%s: %s' % (name, step))
    expect('| ll.rm.none | 1 |' not in page and '| ll.em.none | 1 |' in page, 'times are those of steps that went well')
    with open(pid) as file:
        number = int(file.read())
    try:
        os.kill(number, 0)
        expect(False, 'what hung is gone')
    except ProcessLookupError:
        pass


def check_limits(work):
    out = os.path.join(work, 'late')
    only = ['--only', 'll.em.none', '--only', 'll.rm.none']
    began = time.monotonic()
    measure(0, '--out', out, *only, build=fake_build(work, ''))
    # what comes before the step that does not end takes as long as this machine lets it
    limit = 2 + int(4 * (time.monotonic() - began))
    build = fake_build(work, 'case "$*" in *"--layout em"*) sleep 3000 ;; esac')
    # (the limit of a step may be less than that)
    measure(1, '--out', out, '--limit', str(limit), '--step', str(limit), *only, build=build)
    failed, steps, _ = results(out)
    expect(failed == ['ll.em.none', 'll.rm.none'], 'late: %s' % failed)
    expect(steps['ll.rm.none']['status'] == 'not-run', 'what does not fit is not run')
    said = measure(3, '--out', out, build=fake_build(work, 'exit 3'))
    expect('ep_perf does not run' in said, 'nothing runs: %s' % said)
    for bad in (['--ranks', 'two'], ['--bogus'], ['--bogus', '1'], ['--out'], ['--limit', '0']):
        expect('--only PATTERN' in measure(2, *bad), 'usage')
    expect('--only PATTERN' in measure(0, '--help'), 'help')


def main():
    check_list()
    with tempfile.TemporaryDirectory() as work:
        began = time.monotonic()
        check_results(work)
        # a step that is right takes less time than all these together, however busy the machine is
        check_failures(work, 10 + int(time.monotonic() - began))
        check_limits(work)
    end()


main()
