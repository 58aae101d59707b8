#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/in_turns.py: the order of the runs, the medians, and what becomes of runs that fail, hang or are wrong.

check_in_turns.py SOURCE_ROOT BUILD_DIR
"""
import json
import os
import signal
import shlex
import stat
import subprocess
import sys
import tempfile
import time

from outside import end, expect, run_perf

ROOT, BUILD = sys.argv[1:3]
SMALL = ['-t', '2', '-b', '1', '-e', '2', '-f', '2', '-n', '2', '-w', '0', '--hidden', '64', '--experts', '4', '--topk', '2',
         '--chains', '1', '--no-kernel-times']
# Stands in for ep_perf: run N of a build takes the Nth of its TIMES, and what it is told by HOW happens.
FAKE = '''#!/usr/bin/env python3
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
with open(os.environ['ORDER'], 'a+') as order:
    order.write(os.environ['ME'] + ' ' + ' '.join(sys.argv[1:-2]) + '\\n')
    order.seek(0)
    n = sum(line.startswith(os.environ['ME'] + ' ') for line in order) - 1
how = os.environ.get('HOW')
if how == 'fails':
    print('first\\n     8 refused: the reason\\n# Avg bus bandwidth    : 0\\n')
    sys.exit(3)
if how == 'hangs':
    time.sleep(100)
document = json.load(open(here + '/real.json'))
times = os.environ['TIMES'].split()
for row in document['results']:
    row['period_us'] = float(times[n % len(times)]) * row['tokens']
document['wrong'] = 2 if how == 'wrong' else 0
json.dump(document, open(sys.argv[-1], 'w'))
'''


def turns(status, *arguments):
    """What it prints to stdout and stderr."""
    done = subprocess.run([os.path.join(ROOT, 'tools/in_turns.py'), '--virtual', *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=200, env=dict(os.environ, VC_GPUS='2'))
    expect(done.returncode == status, '%s: status %d, not %d\n%s%s' % (arguments, done.returncode, status, done.stdout, done.stderr))
    return done.stdout, done.stderr


def cells(out):
    """The rows of the tables, as lists of words."""
    return [line[2:-2].split(' | ') for line in out.splitlines() if line.startswith('| ') and '---' not in line
            and not line.startswith('| build')]


def check_real():
    """Two settings of one build, by the virtual cluster."""
    out, _ = turns(0, '--rounds', '2', 'auto=' + BUILD, 'few=' + BUILD + ',NCCL_EP_OVERLAP=1', '--', *SMALL)
    rows = cells(out)
    expect([row[:3] for row in rows] == [['auto', '1', '2'], ['few', '1', '2'], ['auto', '2', '2'], ['few', '2', '2']], out)
    expect(all(float(cell) > 0 for row in rows for cell in row[3:]), out)
    expect(out.startswith('`%s`, medians in us\n' % ' '.join(SMALL)), out)


def fake(folder):
    """A build whose ep_perf is FAKE."""
    programs = os.path.join(folder, 'test/vcluster')
    os.makedirs(programs)
    real = os.path.join(BUILD, 'test/vcluster/ep_perf')
    run_perf([real, *SMALL, '-J', os.path.join(programs, 'real.json')], 0, VC_GPUS='2')
    path = os.path.join(programs, 'ep_perf')
    with open(path, 'w') as file:
        file.write(FAKE)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return folder


def check_order(folder):
    """Who begins changes with the round; variables of a case and of a contender arrive; medians, extremes and ratios are right."""
    order, cases = os.path.join(folder, 'order'), os.path.join(folder, 'cases')
    with open(cases, 'w') as file:
        file.write('# two cases\nORDER=%s -b 1\n\nORDER=%s -b "2 3" # words\n' % (shlex.quote(order), shlex.quote(order + '2')))
    out, _ = turns(0, '--cases', cases, '--rounds', '3', 'a=%s,ME=a,TIMES=10 40 20' % folder, 'b=%s,ME=b,TIMES=30 11 10' % folder)
    with open(order) as file:
        expect(file.read().split() == 'a -b 1 b -b 1 b -b 1 a -b 1 a -b 1 b -b 1'.split(), 'the order')
    with open(order + '2') as file:
        expect(file.readline() == 'a -b 2 3\n', 'options as the shell reads them')
    want = [['a', '1', '3', '20.0', '10.0', '40.0', '1.000'], ['b', '1', '3', '11.0', '10.0', '30.0', '0.550'],
            ['a', '2', '3', '40.0', '20.0', '80.0', '1.000'], ['b', '2', '3', '22.0', '20.0', '60.0', '0.550']]
    expect([row[:3] + row[5:] for row in cells(out)] == want * 2, out)


def check_bad(folder):
    """The others' rows stay; the reason is told; the status says it."""
    order = os.path.join(folder, 'order3')
    good = 'a=%s,ME=a,TIMES=10,ORDER=%s' % (folder, order)
    for how, told in ('hangs', 'not done after 15 s'), ('wrong', '2 results are wrong'), ('fails', 'status 3: 8 refused: the reason'):
        bad = 'b=%s,ME=b,TIMES=10,ORDER=%s,HOW=%s' % (folder, order, how)
        out, said = turns(1, '--rounds', '1', '--step', '15', good, bad, '--', '-b', '1')
        expect([row[0] for row in cells(out)] == ['a', 'a'] and told in said, '%s: %s%s' % (how, out, said))
    out, _ = turns(1, '--rounds', '1', bad, good, '--', '-b', '1')
    expect([row[-1] for row in cells(out)] == ['-', '-'], out)
    out, said = turns(1, '--rounds', '1', 'b=' + os.path.join(folder, 'none'), '--', '-b', '1')
    expect('No such file' in said and not cells(out), said)
    out, said = turns(1, '--rounds', '2', '--limit', '0', good, '--', '-b', '1')
    expect('are over' in said and not cells(out), out + said)


def begun(order, name):
    """Whether a run of that build has begun."""
    if not os.path.exists(order):
        return False
    with open(order, encoding='utf-8') as file:
        return any(line.startswith(name + ' ') for line in file)


def check_signals(folder):
    """A signal ends the runs, and those that were made have their rows."""
    for number in signal.SIGINT, signal.SIGTERM:
        order = os.path.join(folder, 'order_signal%d' % number)
        contenders = ['a=%s,ME=a,TIMES=10,ORDER=%s' % (folder, order), 'b=%s,ME=b,TIMES=10,ORDER=%s,HOW=hangs' % (folder, order)]
        program = subprocess.Popen([os.path.join(ROOT, 'tools/in_turns.py'), '--virtual', *contenders, '--', '-b', '1'],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end_at = time.monotonic() + 60
        while time.monotonic() < end_at and not begun(order, 'b'):
            time.sleep(0.05)
        program.send_signal(number)
        out, said = program.communicate(timeout=60)
        expect(program.returncode == 1 and [row[0] for row in cells(out)] == ['a', 'a'] and 'interrupted' in said,
               'signal %d: status %d\n%s%s' % (number, program.returncode, out, said))


def check_usage():
    """What is no contender, no case, or said twice."""
    for arguments in ['a', '--', '-b', '1'], ['=x', '--', '-b'], ['a=x,y', '--', '-b'], ['a=x'], ['a=x', 'a=y', '--', '-b'], \
            ['a=x', '--', 'b', '-b'], ['a=x', '--rounds', '0', '--', '-b'], ['--', '-b']:
        turns(2, *arguments)


check_real()
with tempfile.TemporaryDirectory() as directory:
    fake(directory)
    check_order(directory)
    check_bad(directory)
    check_signals(directory)
check_usage()
end()
