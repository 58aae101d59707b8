#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tables.md and results.json of what tools/measure.sh left in DIR.

measure_tables.py DIR
"""
import json
import os
import sys

SECTIONS = (
    ('start', 'A first short run'),
    ('ll', 'Low latency'),
    ('ht', 'High throughput'),
    ('processes', 'A process per rank: memory by windows and by CUDA IPC; all GPUs visible, or its own'),
    ('other', 'With another NCCL'),
)
VERSION = 1


def lines_of(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return [line.rstrip('\n').split('\t') for line in file]
    except OSError:
        return []


def document_of(path):
    """The JSON of a step; of one that was killed what is there, else None."""
    try:
        with open(path, encoding='utf-8') as file:
            text = file.read()
    except OSError:
        return None
    for end in ('', ']}'):
        try:
            return json.loads(text.rstrip().rstrip(',') + end)
        except ValueError:
            pass
    return None


def read(directory):
    steps = []
    for name, status, seconds, text in lines_of(os.path.join(directory, 'steps.tsv')):
        steps.append({'name': name, 'status': status, 'seconds': int(seconds), 'text': text,
                      'document': document_of(os.path.join(directory, 'json', name + '.json'))})
    machine = dict(line for line in lines_of(os.path.join(directory, 'machine.tsv')) if len(line) == 2)
    return {'schema': 'measure', 'schema_version': VERSION, 'machine': machine, 'steps': steps,
            'failed': [s['name'] for s in steps if s['status'] not in ('ok', 'skipped')]}


def cell(value, digits=1):
    """A time or a rate; three digits are enough of it."""
    if value is None:
        return '-'
    if isinstance(value, float) and abs(value) < 1000:
        return '%.*f' % (digits if abs(value) < 100 else 0, value)
    return '%.0f' % value if isinstance(value, float) else str(value)


def table(head, rows):
    if not rows:
        return []
    text = ['| ' + ' | '.join(head) + ' |', '|---|' + '---:|' * (len(head) - 1)]
    for row in rows:
        text.append('| ' + ' | '.join(str(c).replace('|', '/') for c in row) + ' |')
    return text + ['']


def results_of(step):
    return (step['document'] or {}).get('results') or []


def operation(row, name):
    op = row.get(name) or {}
    return [cell(op.get('kernel_us')), cell(op.get('p50_us'))]


def nccl_of(step):
    number = ((step['document'] or {}).get('versions') or {}).get('nccl')
    return '%d.%d.%d' % (number // 10000, number // 100 % 100, number % 100) if number else '-'


def times(steps, with_routing):
    head = ['step', 'tokens'] + ['update kernel', 'call'] * with_routing + [
        'dispatch kernel', 'call', 'GB/s', 'fl%', 'combine kernel', 'call', 'GB/s', 'fl%', 'pair', 'wrong']
    rows = []
    for step in steps:
        for row in results_of(step):
            if 'unsupported' in row:
                rows.append([step['name'], row['tokens'], row['unsupported']] + [''] * (len(head) - 3))
                continue
            line = [step['name'], row['tokens']]
            if with_routing:
                line += operation(row, 'routing')
            for name in ('dispatch', 'combine'):
                op = row.get(name) or {}
                line += operation(row, name) + [cell(op.get('busbw_gbs')), cell(op.get('floor_percent'), 0)]
            rows.append(line + [cell(row.get('period_us')), cell(row.get('wrong'))])
    return table(head, rows)


def creation(steps):
    rows = []
    for step in steps:
        setup = (step['document'] or {}).get('setup')
        if setup:
            rows.append([step['name'], nccl_of(step)] +
                        [cell(setup.get(k)) for k in ('group_ms', 'group_cpu_ms', 'handle_ms')])
    return table(['step', 'NCCL', 'group, ms', 'of this CPU, ms', 'handle, ms'], rows)


def memory(steps):
    """Once for each kind of group."""
    seen, rows = set(), []
    for step in steps:
        document = step['document'] or {}
        config, setup = document.get('config'), document.get('setup')
        if not config or not setup or setup.get('library_mib') is None:
            continue
        row = [' '.join((config['mode'], config['layout'], config['quant'])),
               config['hidden'], config['capacity'], len(document['ranks']),
               'yes' if config.get('windows') else 'no', cell(setup['library_mib'])]
        if str(row) not in seen:
            seen.add(str(row))
            rows.append(row)
    return table(['group', 'hidden', 'tokens per rank', 'ranks', "callers' windows", 'MiB per rank'], rows)


def page(run):
    machine = run['machine']

    def section(kind):
        return [s for s in run['steps'] if s['name'].split('.')[0] == kind]

    text = ['# Measured', '', '%s, commit %s: %s; %s ranks on %s GPUs, driver %s, %s cores.' % tuple(
        machine.get(k, '-') for k in ('date', 'commit', 'gpu', 'ranks', 'gpus', 'driver', 'cores')),
        'Times in microseconds, of the slowest rank, the median. kernel: GPU time (CUPTI); call: between events',
        'around it; pair: chained dispatch and combine. NCCL %s.' % ', '.join(
            nccl_of(s) for s in section('start')), '']
    if run['failed']:
        text += ['**Failed: %s.**' % ', '.join(run['failed']), '']
    for kind, title in SECTIONS:
        body = times(section(kind), any('routing' in r for s in section(kind) for r in results_of(s)))
        text += ['## ' + title, ''] + body if body else []
    for title, body in (('Making a group', creation(section('creation') + section('start'))),
                        ('Device memory of the library', memory(run['steps']))):
        text += ['## ' + title, ''] + body if body else []
    text += ['## Steps', ''] + table(['step', 'result', 's', ''], [
        [s['name'], s['status'], s['seconds'], s['text']] for s in run['steps']])
    return '\n'.join(text)


def main():
    directory = sys.argv[1]
    run = read(directory)
    with open(os.path.join(directory, 'results.json'), 'w', encoding='utf-8') as file:
        json.dump(run, file, indent=1)
        file.write('\n')
    with open(os.path.join(directory, 'tables.md'), 'w', encoding='utf-8') as file:
        file.write(page(run))
    print('%d steps, %d failed%s; %s/tables.md' % (
        len(run['steps']), len(run['failed']), ': ' + ', '.join(run['failed']) if run['failed'] else '', directory))


main()
