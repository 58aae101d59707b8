#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Named workloads of ep_perf from outside: each has the loads that its name promises, and what iterations in turns do.

check_workloads.py EP_PERF CORRUPT_LIBRARY
"""
import json
import os
import re
import sys
import tempfile

from outside import end, expect, run_perf as run

EP_PERF, CORRUPT = sys.argv[1:3]
SHAPE = ['--hidden', '256', '--experts', '12', '--topk', '4', '-n', '2', '-w', '1', '-T', '60']


def loads_of(row, ranks):
    """The share of ids that each rank has."""
    ids, local = row['expert_ids'], len(row['expert_ids']) // ranks
    return [sum(ids[r * local:(r + 1) * local]) / sum(ids) for r in range(ranks)]


def check_workloads(out):
    """Each named workload runs, is right, and has the loads that its name promises; iterations take its steps in turns."""
    def measured(*options, status=0):
        done = run([EP_PERF, '-g', '3', '-b', '40', *SHAPE, *options, '-J', out], status)
        with open(out) as file:
            document = json.load(file)
        expect(document['wrong'] == 0, 'workload %s' % ' '.join(options))
        for row in document['results']:
            steps = row['step_max_over_mean']
            expect(len(steps) == document['config']['steps'], 'steps of %s' % ' '.join(options))
            expect(abs(row['max_over_mean'] - sum(steps) / len(steps)) < 1e-3, 'the mean of steps')
            expect(row['workload'] == options[1] or options[1].startswith('curve'), 'the name in the row')
        return document['results'], done.stdout

    def about(value, want, what):
        expect(abs(value - want) < 0.12 * want, '%s: %g, not about %g' % (what, value, want))

    rows, table = measured('--routing', 'hot:1,2')
    expect(loads_of(rows[0], 3) == [0, 0, 1] and rows[0]['max_over_mean'] == 3, 'a hot rank')
    expect([line.split()[1] for line in table.splitlines() if line.startswith(' ')] == ['3.00'], 'mx/mn')
    rows, _ = measured('--routing', 'uniform', '--mode', 'ht', '--layout', 'flat')
    about(rows[0]['max_over_mean'], 1, 'uniform')
    rows, _ = measured('--routing', 'khot:2,0.9')
    expect(sorted(rows[0]['expert_ids'])[-2:] == [120, 120], 'hot experts: %s' % rows[0]['expert_ids'])
    rows, _ = measured('--routing', 'ragged:0.25')
    expect(sum(rows[0]['expert_ids']) == 4 * (40 + 25 + 10), 'ragged sources')
    rows, _ = measured('--routing', 'empty:1', '--mode', 'ht')
    expect(loads_of(rows[0], 3)[2] == 0 and sum(rows[0]['expert_ids']) == 4 * 80, 'an empty rank')
    about(rows[0]['max_over_mean'], 1.5, 'an empty rank')
    for options in (['-n', '4'], ['--layout', 'rm', '-G', '5'], ['--mode', 'ht', '-G', '4']):
        rows, _ = measured('--routing', 'rotate:1', *options)
        expect(rows[0]['step_max_over_mean'] == [3, 3, 3], 'a hot spot that rotates')
    for options in (['--uneven'], ['-G', '3'], ['--mode', 'ht', '--layout', 'flat', '--windows'],
                    ['--mode', 'ht', '--backward', '--align', '4']):
        rows, _ = measured('--routing', 'burst:1,2', *options)
        expect(rows[0]['step_max_over_mean'][0] < 1.5 and rows[0]['step_max_over_mean'][1] == 3, 'a burst')
    rows, _ = measured('--routing', 'uniform', '--steps', '5', '--staged')
    expect(len(set(rows[0]['step_max_over_mean'])) > 1, 'steps differ')
    rows, _ = measured('--routing', 'curve:2', '-e', '80')
    expect([(row['tokens'], row['workload']) for row in rows] == [(n, 'hot:' + f) for n in (40, 80) for f in ('0', '0.5', '1')],
           'lines of a curve')
    for row in rows:
        about(row['max_over_mean'], 1 + 2 * float(row['workload'][4:]), row['workload'])
    error = run([EP_PERF, '-g', '2', '--mode', 'ht', '--eager', '--routing', 'rotate:1'], 2).stderr
    expect('got 2 steps, allowed is 1' in error, 'eager: %s' % error)
    # a mistake has its step
    done = run([EP_PERF, '-g', '2', '-b', '40', *SHAPE, '--routing', 'burst:1,2'], 1, CORRUPT='dispatch', LD_PRELOAD=CORRUPT)
    expect('seed 2, step 0: wrong results' in done.stderr, 'the step is named: %s' % done.stderr)


def tail_of(out, *options):
    """The lines behind that of the size, as microseconds by operation, and the JSON of the size."""
    done = run([EP_PERF, '-b', '1', '--hidden', '16', '--experts', '1', '--topk', '1', '-n', '1000', '--chains', '1', '-w', '1',
                '--no-align', '-c', '0', '-J', out, *options], 0)
    with open(out) as file:
        row = json.load(file)['results'][0]
    lines = re.findall(r'^#      p99, p99.9, max of (\w+) +(\S+) +(\S+) +(\S+)$', done.stdout, re.M)
    return {name: list(map(microseconds, numbers)) for name, *numbers in lines}, row


def microseconds(text):
    return 1e6 * float(text[:-1]) if text.endswith('s') else float(text)


def like(shown, value):
    """Rounded to a microsecond; from a second on, as a busy machine makes it, to three digits or more."""
    return abs(shown - value) < (0.51 if value < 999999 else 0.01 * value)


def check_tail(out):
    """A thousand iterations have a p99.9, in lines of the table and in the JSON. With -C 1 the lines are of calls."""
    tail, row = tail_of(out)
    expect(list(tail) == ['dispatch', 'combine'], 'operations of %s' % tail)
    for name, (p99, p999, most) in tail.items():
        op = row[name]
        expect(op['p999_us'] == sorted(op['samples_us']['max'])[998] <= op['max_us'], 'p99.9 of %s' % name)
        expect(0 < op['call_cpu_us'] <= op['call_cpu_p99_us'], 'CPU time of %s' % name)
        for shown, key in ((p99, 'p99_us'), (p999, 'p999_us'), (most, 'max_us')):
            expect(like(shown, op[key]), '%s of %s: %s' % (key, name, tail))
    tail, row = tail_of(out, '-C', '1', '--mode', 'ht', '--layout', 'flat')
    expect(list(tail) == ['routing', 'dispatch', 'combine'], 'operations of %s' % tail)
    for name, (p99, p999, most) in tail.items():
        expect(like(p99, row[name]['call_cpu_p99_us']) and p99 <= p999 <= most, 'calls of %s: %s' % (name, tail))


def main():
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, 'out.json')
        check_workloads(out)
        check_tail(out)
    end()


main()
