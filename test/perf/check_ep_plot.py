#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ep_plot seen from outside, with results of a run on the virtual cluster.

check_ep_plot.py EP_PLOT EP_PERF            what needs no matplotlib
check_ep_plot.py EP_PLOT EP_PERF pictures   what does; status 77 where no Python here has it
"""
import copy
import csv
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from outside import Program, end, expect, expect_status

EP_PLOT, EP_PERF = sys.argv[1:3]


def start(*command, status=0, **more):
    """The program as a user starts it."""
    done = subprocess.run([EP_PLOT, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, **more)
    return expect_status(done, status)


class Files:
    """Documents that are the measured one with a change."""

    def __init__(self, work):
        self.work = work
        path = os.path.join(work, 'measured.json')
        subprocess.run([EP_PERF, '-g', '2', '-b', '1', '-e', '4', '--hidden', '64', '--experts', '8', '--topk', '2', '-n', '3',
                        '-w', '0', '--sms', '2', '-J', path], check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, NCCL_NVLS_ENABLE='0'))
        with open(path) as file:
            self.document = json.load(file)

    def write(self, name, change=lambda document: None):
        document = copy.deepcopy(self.document)
        change(document)
        path = os.path.join(self.work, name + '.json')
        with open(path, 'w') as file:
            json.dump(document, file)
        return path


def slower(factor, key='p50_us', operation='dispatch'):
    def change(document):
        for row in document['results']:
            row[operation][key] = row[operation]['p50_us'] * factor
    return change


def check_csv(files, base):
    document = files.document
    rows = list(csv.DictReader(io.StringIO(run(base, '--csv', '-').stdout)))
    wanted = [(row['tokens'], operation) for row in document['results'] for operation in ('dispatch', 'combine')]
    expect([(int(r['tokens']), r['operation']) for r in rows] == wanted, 'lines: %s' % rows)
    for row in rows:
        op = [r for r in document['results'] if r['tokens'] == int(row['tokens'])][0][row['operation']]
        expect(float(row['time_us']) == float(row['p50_us']) == op['p50_us'], 'time of %s' % row)
        expect(float(row['p90_us']) == op['p90_us'] and float(row['floor_us']) == op['floor_us'], 'others of %s' % row)
        expect(row['kernel_us'] == '' and row['sms'] == '2' and row['ranks'] == '2' and row['wrong'] == '0', str(row))
    out = os.path.join(files.work, 'out.csv')
    with open(base) as file:
        start('-', '--names', 'piped', '--csv', out, stdin=file)
    with open(out) as file:
        expect([r['run'] for r in csv.DictReader(file)] == ['piped'] * len(rows), 'from a pipe to a file')
    refused = files.write('unsupported', lambda d: d['results'].append({'tokens': 9, 'unsupported': 'why'}))
    expect(len(run(refused, '--csv', '-').stdout.splitlines()) == 1 + len(rows), 'unsupported sizes are left out')


def check_table(files, base):
    """Markdown: a line for each run and size with the times of the file, and one for each group."""
    other = files.write('other', lambda d: (slower(3.25)(d), d['config'].update(hidden=128), d['setup'].update(group_ms=4321.5)))
    lines = [[c.strip() for c in line.split('|')[1:-1]] for line in run(base, other, '--table', '-').stdout.splitlines() if '|' in line]
    times, setups = lines[:2 + 6], lines[2 + 6:]
    expect(len({len(line) for line in times}) == 1 and len({len(line) for line in setups}) == 1, 'cells: %s' % lines)
    for line, (name, row, factor) in zip(times[2:], [(n, r, f) for n, f in (('measured', 1), ('other', 3.25)) for r in files.document['results']]):
        cells = dict(zip(['run', 'tokens', 'load', 'kernel', 'call', 'gbs', 'floor'], line))
        want = row['dispatch']['p50_us'] * factor
        expect((cells['run'], cells['tokens'], cells['kernel'], line[-1]) == (name, str(row['tokens']), '', '0'), str(line))
        expect(abs(float(cells['load']) - row['max_over_mean']) < 0.006, 'mx/mn of %s' % line)
        expect(abs(float(cells['call']) - want) <= (0.051 if want < 100 else 0.51), '%s: %g' % (line, want))
    expect([line[0] for line in setups] == ['run', '---', 'measured', 'other'] and setups[3][2] in ('4321', '4322'), 'setups: %s' % setups)
    out = os.path.join(files.work, 'out.md')
    expect('ratio' in run(base, base, '--names', 'a,b', '--table', out).stdout, 'a file leaves the comparison on standard output')
    with open(out) as file:
        expect(file.read().count('| a |') == 4, 'a file')


def check_ratios(files, base):
    slow = files.write('slow', slower(1.5))
    done = run(base, slow, '--fail-above', '1.4', status=1)
    said = [line for line in done.stderr.splitlines() if 'allowed is 1.4' in line]
    expect([re.search(r'(\w+) of (\d+) tokens .* 1\.500 times', line)[2] for line in said] == ['1', '2', '4'] and
           all('slow: dispatch' in line for line in said), 'what is slower: %s' % done.stderr)
    expect(re.search(r'^ +4  dispatch .* 1\.500$', done.stdout, re.M), 'table: %s' % done.stdout)
    expect(re.search(r'^ +4  combine .* 1\.000$', done.stdout, re.M), 'table: %s' % done.stdout)
    run(base, slow, '--fail-above', '1.6')
    run(slow, base, '--fail-above', '1.01')
    # kernel times go before p50, if both have them
    kernel, twice = files.write('kernel', slower(1, 'kernel_us')), files.write('twice', slower(2, 'kernel_us'))
    run(kernel, twice, '--fail-above', '1.9', status=1)
    run(base, twice, '--fail-above', '1.01')

    def again(document):  # the median of three lines of a size
        row = document['results'][0]
        document['results'] += [dict(row, dispatch=dict(row['dispatch'], p50_us=row['dispatch']['p50_us'] * f)) for f in (1, 9)]
    run(base, files.write('again', again), '--fail-above', '1.01')


def check_curve(files, base):
    """A curve is a run for each workload, so none of its times is mixed with those of another."""
    def bend(document):
        document['config']['routing'] = 'curve:2'
        document['results'] = [
            dict(row, workload=workload, max_over_mean=load, dispatch=dict(row['dispatch'], p50_us=us))
            for row in document['results'][1:] for workload, load, us in (('hot:0', 1.0, 10.0), ('hot:0.5', 1.5, 15.0), ('hot:1', 2.0, 20.0))]
    curve = files.write('bent', bend)
    lines = [line.split('|') for line in run(curve, '--table', '-').stdout.splitlines() if line.startswith('| bent')]
    expect([(line[1].strip(), line[2].strip(), line[3].strip(), line[5].strip()) for line in lines[:6]] == [
        ('bent, ' + w, tokens, load, us) for w, load, us in (
            ('hot:0', '1.00', '10.0'), ('hot:0.5', '1.50', '15.0'), ('hot:1', '2.00', '20.0')) for tokens in ('2', '4')],
        'lines of a curve: %s' % lines)
    rows = list(csv.DictReader(io.StringIO(run(curve, '--csv', '-').stdout)))
    expect({(r['workload'], r['max_over_mean'], r['time_us']) for r in rows if r['operation'] == 'dispatch'} == {
        ('hot:0', '1.0', '10.0'), ('hot:0.5', '1.5', '15.0'), ('hot:1', '2.0', '20.0')}, 'a curve as CSV')
    shape = PROGRAM.module.by_load(PROGRAM.module.run_of(json.load(open(curve)), curve, 'c').parts())
    expect(shape['c', 'dispatch', 4] == [(1.0, 10.0), (1.5, 15.0), (2.0, 20.0)] and len(shape) == 4, 'points of a curve: %s' % shape)
    expect(PROGRAM.module.by_load(PROGRAM.module.run_of(files.document, 'x', 'x').parts()) == {}, 'a run that is none')


def check_refused(files, base):
    def wrong(document):
        document['results'][1]['wrong'] = 3
        document['wrong'] = 3

    def late(document):
        document['wrong'] = 1

    half = os.path.join(files.work, 'half.json')
    with open(half, 'w') as file:
        file.write(json.dumps(files.document)[:-20])
    for path, text in ((files.write('wrong', wrong), r'3 wrong results, 3 with 2 tokens'),
                       (files.write('late', late), '1 wrong results'),
                       (files.write('old', lambda d: d.update(schema_version=1)), 'got schema_version 1, allowed is 2'),
                       (files.write('other', lambda d: d.update(schema='ep_topo')), 'not written by ep_perf'),
                       (files.write('lacks', lambda d: d.pop('ranks')), "lacks 'ranks'"),
                       (files.write('words', lambda d: d['results'][0].update(dispatch='fast')), 'values that ep_perf does not write'),
                       (files.write('digest', lambda d: d['config'].update(experts=[]) or d['results'][0].update(workload={})),
                        'values that ep_perf does not write'),
                       (files.write('none', lambda d: d.update(results=[])), 'no measured line'),
                       (half, 'not a whole JSON'), (os.path.join(files.work, 'nowhere'), 'No such file')):
        for before in ([], [base]):
            done = run(*before, path, '--csv', os.path.join(files.work, 'never.csv'), status=3)
            expect(re.search(text, done.stderr) and path in done.stderr, '%s: %s' % (text, done.stderr))
    expect(not os.path.exists(os.path.join(files.work, 'never.csv')), 'nothing is written of what is refused')

    def digest(document):
        document['results'][0]['routing_digest'] = 'fnv1a64:0'

    def sizes(document):
        for row in document['results']:
            row['tokens'] += 1000

    for name, change, text in (('hidden', lambda d: d['config'].update(hidden=128), 'hidden is 64 in .*128'),
                               ('ranks', lambda d: d['ranks'].pop(), '2 ranks in .*, 1 in'),
                               ('digest', digest, 'the routing of 1 tokens differs'),
                               ('sizes', sizes, '.* no size in common')):
        done = run(base, files.write(name, change), '--fail-above', '5', status=3)
        expect(re.search('not comparable: ' + text, done.stderr), '%s: %s' % (name, done.stderr))


def check_notes(files, base):
    def other(document):
        document['config'].update(sms=4, capacity=99)
        document['results'][0].update(routing_digest='x', wrong=None)

    said = run(base, files.write('noted', other)).stderr
    for text in ('virtual cluster, times say nothing', 'noted: sms is 4, not 2', 'noted: other routing than measured',
                 'noted: results were not checked'):
        expect('ep_plot: note: ' in said and text in said, 'a note that %s: %s' % (text, said))
    expect('capacity' not in said, 'capacity is no matter: %s' % said)


def check_usage(files, base):
    for options, text in (([base, '-o', 'x.pdf'], "got 'x.pdf', allowed is"), ([base, '--fail-above', '2'], 'two runs'),
                          ([base], 'nothing to do: give -o, --table or --csv, or two runs'),
                          ([base, base, '--fail-above', '0'], "got '0'"), ([base, base, '--fail-above', 'nan'], "got 'nan'"),
                          ([base, '--names', 'a,b'], 'got 2 names, allowed is one for each of 1'), ([], 'FILE')):
        expect(text in run(*options, status=2).stderr, 'usage: %s' % text)
    with open(os.path.join(files.work, 'matplotlib.py'), 'w') as file:
        file.write('raise ImportError\n')
    env = dict(os.environ, PYTHONPATH=files.work)
    out = os.path.join(files.work, 'out.svg')
    expect('python3-matplotlib' in start(base, '-o', out, status=3, env=env).stderr, 'a missing matplotlib')
    said = start(base, base, '--names', 'a,b', '-o', out, '--fail-above', '1.1', status=3, env=env).stderr
    expect('nothing takes more than 1.1 times' in said and 'python3-matplotlib' in said, 'no picture, but a verdict: %s' % said)
    start(base, files.write('slow', slower(1.5)), '-o', out, '--fail-above', '1.1', status=1, env=env)
    expect(not os.path.exists(out), 'no picture without matplotlib')
    with open('/dev/full', 'w') as full:
        done = subprocess.run([sys.executable, EP_PLOT, base, '--csv', '-'], stdout=full, stderr=subprocess.PIPE, text=True)
    expect(done.returncode == 3 and 'standard output: No space left' in done.stderr, 'a full disk: %s' % done)
    start(base, base, '--names', 'a,b', '--csv', '-', '--fail-above', '1', env=env)


def set_times(pairs):
    """p50 of each size and operation: first, second, ..."""
    def change(document):
        values = iter(pairs)
        for row in document['results']:
            for operation in ('dispatch', 'combine'):
                row[operation]['p50_us'] = next(values)
    return change


def check_bars(files, base):
    """Widths are those of the numbers, each pair to its own scale; a saved document is drawn again alike."""
    first = files.write('first', set_times([10, 20, 30.04, 1234.4, 8.63, 60]))
    second = files.write('second', set_times([20, 10, 30.04, 617.2, 50, 60]))
    pictures = [os.path.join(files.work, name) for name in ('bars.svg', 'again.svg')]
    saved = os.path.join(files.work, 'bars.json')
    done = run('--bars', first, second, '--names', 'A,B&C', '-o', pictures[0], '--save', saved)
    want = ['| us | SMs | A | B&C | best other / A |', '| --- | --- | ---: | ---: | ---: |',
            '| low latency dispatch, 1 token | 2 | **10** | 20 | 2.00 |',
            '| low latency combine, 1 token | 2 | 20 | **10** | 0.50 |',
            '| low latency dispatch, 2 tokens | 2 | **30** | **30** | 1.00 |',
            '| low latency combine, 2 tokens | 2 | 1234 | **617** | 0.50 |',
            '| low latency dispatch, 4 tokens | 2 | **8.6** | 50 | 5.81 |']
    expect(done.stdout.splitlines()[:7] == want, 'table of bars: %s' % done.stdout)
    with open(pictures[0]) as file:
        svg = file.read()
    root = xml.etree.ElementTree.fromstring(svg)
    bars = [(r.get('class'), float(r.get('width'))) for r in root.iter('{http://www.w3.org/2000/svg}rect')][2:]
    expect(bars[:6] == [('first', 220), ('second', 440), ('first', 440), ('second', 220), ('first', 440), ('second', 440)],
           'bars: %s' % bars[:6])
    expect(len(bars) == 12 and 'B&amp;C' in svg, svg[:600])
    again = run('--bars', saved, '-o', pictures[1])
    with open(pictures[1]) as file:
        expect(file.read() == svg and again.stdout == done.stdout, 'a saved document is drawn otherwise')
    with open(saved) as file:
        text = file.read()
    expect('2 x Virtual GPU' in text and os.path.dirname(EP_PERF) not in text, 'machine, and no path: %s' % text)
    done = run('--bars', first, second, first, second, '--names', 'A,B', '--tokens', '1,4')
    expect(done.stdout.count(' 1 token ') == 4 and done.stdout.count(' 4 tokens ') == 4 and ' 2 tokens' not in done.stdout,
           'pairs, and some sizes: %s' % done.stdout)
    check_bars_piped(first, second, svg, pictures[1])
    check_bars_of_three(files, text, pictures[1])
    check_bars_refused(files, first, saved)


def check_bars_of_three(files, text, picture):
    """A saved document may hold a third library, which need not have each row; the picture names machine and SMs."""
    document = json.loads(text)
    document['names'].append('C')
    document['rows'] = [{'what': 'w', 'sms': '20', 'us': [10, 20, 8]}, {'what': 'v', 'sms': '24', 'us': [10, None, 40]}]
    path = os.path.join(files.work, 'three.json')
    for change, status in ((None, 0), ([None, 1, 2], 3), ([1, None, None], 3), ([1, 2], 3), ([1, 0, 2], 3)):
        document['rows'][0]['us'] = change or document['rows'][0]['us']
        with open(path, 'w') as file:
            json.dump(document, file)
        done = run('--bars', path, '-o', picture, status=status)
        if not status:
            expect(done.stdout.splitlines()[2:] == ['| w | 20 | 10 | 20 | **8** | 0.80 |', '| v | 24 | **10** |  | 40 | 4.00 |'],
                   'three libraries: %s' % done.stdout)
            with open(picture) as file:
                svg = file.read()
            expect(all(word in svg for word in ('SMs: 24', '2 x Virtual GPU', 'hidden 64', 'class="third"')) and
                   svg.count('<rect') == 3 + 5, 'picture of three: %s' % svg)


def check_bars_piped(first, second, svg, picture):
    """Several runs in one stream are the same as in files; without names the libraries name them."""
    stream = ''
    for path in (first, second):
        with open(path) as file:
            stream += file.read() + '\n'
    done = start('--bars', '-', '--names', 'A,B&C', '-o', picture, input=stream)
    with open(picture) as file:
        expect(file.read() == svg, 'runs from a pipe are drawn otherwise')
    with open(first) as file:
        theirs = json.load(file)
    both = json.dumps(theirs)
    theirs['library'] = {'text': 'not Switchyard', 'path': '/x/libnccl_ep.so'}
    theirs['versions']['nccl_ep'] = '0.2.0'
    done = start('--bars', '-', input=both + json.dumps(theirs))
    expect('| us | SMs | Switchyard | NCCL EP 0.2.0 | best other / Switchyard |' in done.stdout, 'names of libraries: %s' % done.stdout)
    expect('got 3 runs' in start('--bars', '-', input=both * 3, status=2).stderr, 'an odd number of runs')
    expect('not a whole JSON document' in start('--bars', '-', input=both + both[:50], status=3).stderr, 'half a run')


def check_bars_refused(files, first, saved):
    def wrong(document):
        document['results'][1]['wrong'] = 3
        document['wrong'] = 3

    def other(document):
        document['config']['hidden'] = 128
    for change, said in ((wrong, 'has 3 wrong results'), (other, 'not comparable: hidden')):
        done = run('--bars', first, files.write('bad', change), status=3)
        expect(said in done.stderr and not done.stdout, done.stderr + done.stdout)
    expect('no pair' in run('--bars', first, first, '--tokens', '99', status=3).stderr, 'a size that was not measured')
    for broken in ('{}', '{"schema": "ep_plot_bars", "schema_version": 3}', 'x', '{"schema": "ep_plot_bars", "schema_version": 2, '
                   '"title": "t", "machine": "m", "names": ["a", "b"], "rows": [{"what": "w", "sms": "1", "us": [1, 0]}]}'):
        path = os.path.join(files.work, 'broken.json')
        with open(path, 'w') as file:
            file.write(broken)
        expect('broken.json: is no' in run('--bars', path, status=3).stderr, 'broken: %s' % broken)
    for arguments in ((first, first, first), (first, first, '-o', 'x.png'), (first, first, '--csv', '-'), (first, first, '--table', '-'), (saved, '--tokens', 'x')):
        run('--bars', *arguments, status=2)
    run(first, '--save', 'x', status=2)
    run(first, '--tokens', '1', status=2)


def check_pipe(files, base):
    """ep_perf -J - writes the document alone to standard output."""
    perf = subprocess.run([EP_PERF, '-g', '2', '-b', '1', '-e', '2', '--hidden', '64', '--experts', '8', '--topk', '2', '-n', '2',
                           '-w', '0', '--sms', '2', '-J', '-'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, NCCL_NVLS_ENABLE='0', NCCL_DEBUG='VERSION'))
    expect(perf.returncode == 0 and json.loads(perf.stdout)['schema'] == 'ep_perf', 'piped: %s' % perf.stdout[:200])
    expect('#token' in perf.stderr and 'Switchyard' in perf.stderr, 'the table: %s' % perf.stderr)
    done = start('-', '--csv', '-', input=perf.stdout)
    expect(len(done.stdout.splitlines()) == 5, done.stdout)


def check_pictures(files, base):
    """The files, and what the axes hold."""
    second = files.write('second', lambda d: (slower(2)(d), d['config'].update(sms=4)))
    paths = [os.path.join(files.work, 'out.' + end) for end in ('svg', 'png', 'html')]
    run(base, second, *[word for path in paths for word in ('-o', path)])
    again = os.path.join(files.work, 'again.svg')
    run(base, second, '-o', again)
    svg, png, page, repeated = [open(path, 'rb').read() for path in (*paths, again)]
    expect(svg == repeated, 'the same results give the same file')
    for text in (b'll em, 8 experts, top-2, hidden 64 bf16, uniform, 2 ranks', b'second: sms is 4, not 2', b'virtual cluster'):
        expect(text in svg and text in page, 'the picture says %s' % text)
    expect(b'<li>second: sms is 4, not 2</li>' in page, 'notes of the page')
    expect(png.startswith(b'\x89PNG') and len(png) > 20000, 'PNG')
    held = json.loads(re.search(rb'<script type="application/json" id="results">(.*?)</script>', page, re.S)[1])
    expect(held[0] == files.document and len(held) == 2, 'the page holds the documents')
    expect(page.count(b'<tr>') == 13 and b'href="http' not in page.split(b'</svg>')[1], 'the page holds the numbers')

    plot = PROGRAM.module
    runs = [plot.run_of(plot.documents(path)[0], path, name) for path, name in ((base, 'measured'), (second, 'second'))]
    axes = {a.get_title().split(':')[0].split(';')[0]: a for a in plot.draw(runs).axes if a.get_title()}
    expect(list(axes) == ['Time', "Bandwidth of the busiest rank's links", 'Time divided by that of measured', 'Time by SMs',
                          'Waits per dispatch, 4 tokens', 'Load of experts'], 'panels: %s' % list(axes))
    lines = {line.get_label(): line for line in axes['Time'].lines}
    measured = files.document['results']
    expect(list(lines['measured combine'].get_ydata()) == [r['combine']['p50_us'] for r in measured], 'times')
    expect(list(lines['second dispatch'].get_xdata()) == [1, 2, 4], 'sizes')
    floors = [list(line.get_ydata()) for line in axes['Time'].lines]
    expect([r['dispatch']['floor_us'] for r in measured] in floors, 'what the bytes take')
    expect(len(axes['Time'].collections) == 4, 'bands')
    ratio = {line.get_label(): list(line.get_ydata()) for line in axes['Time divided by that of measured'].lines}
    expect(ratio['second dispatch'] == [2, 2, 2] and ratio['second combine'] == [1, 1, 1], 'ratios %s' % ratio)
    sms = {line.get_label(): list(line.get_xdata()) for line in axes['Time by SMs'].lines}
    expect(sms['combine, 4 tokens'] == [2, 4] and len(sms) == 6, 'SMs %s' % sms)
    waits = [a.images[0].get_array() for a in plot.draw(runs[:1]).axes if a.images][0]
    expect([list(map(float, line)) for line in waits] == measured[-1]['waits_us'], 'waits %s' % waits)
    load = axes['Load of experts'].lines[0].get_ydata()
    counts = sorted(measured[-1]['expert_ids'], reverse=True)
    expect(sum(counts) == 16 and list(load) == [n / 2 for n in counts], 'load of experts %s' % load)
    expect(len(plot.panels(runs[:1])) == 4, 'one run has no ratios')


PROGRAM = Program(EP_PLOT)
run = PROGRAM.run


def find_python():
    """Continues with a Python that has matplotlib."""
    for python in (sys.executable, 'python3', '/usr/bin/python3'):
        if subprocess.run([python, '-c', 'import matplotlib'], stderr=subprocess.DEVNULL).returncode == 0:
            if python != sys.executable:
                os.execvp(python, [python, *sys.argv])
            return
    print('skipped: no Python here has matplotlib')
    sys.exit(77)


def main():
    pictures = sys.argv[3:] == ['pictures']
    if pictures:
        find_python()
    with tempfile.TemporaryDirectory() as work:
        files = Files(work)
        base = files.write('measured')
        for check in [check_pictures] if pictures else [check_csv, check_table, check_ratios, check_curve, check_refused, check_notes, check_usage,
                                                              check_bars, check_pipe]:
            check(files, base)
    end()


main()
