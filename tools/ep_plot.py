#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws and compares results of ep_perf -J: see ep_plot(1)."""
import argparse
import contextlib
import csv
import html
import io
import json
import math
import os
import statistics
import sys

SCHEMA_VERSION = 2
OPERATIONS = ('routing', 'dispatch', 'combine')
WORSE, USAGE, BROKEN = 1, 2, 3
# What must be alike before times may be compared by --fail-above.
PROBLEM = ('mode', 'layout', 'experts', 'topk', 'hidden', 'dtype', 'quant', 'combine_quant', 'pow2_scales', 'id_bits', 'drop', 'uneven',
           'backward', 'eager', 'steps')
LATER = {'combine_quant': 'none', 'steps': 1}  # what files of earlier versions do not say
SILENT = ('capacity', 'max_recv_tokens', 'iterations', 'warmup')  # a difference of these does not matter
COLUMNS = ('run', 'ranks', 'tokens', 'operation', 'time_us', 'kernel_us', 'p50_us', 'p90_us', 'p99_us', 'p999_us', 'fastest_rank_us',
           'algbw_gbs', 'busbw_gbs', 'floor_us', 'floor_percent', 'period_us', 'sms', 'copies_per_token', 'workload', 'max_over_mean',
           'call_cpu_us', 'call_cpu_p99_us', 'wrong')
LINES = {'routing': ':', 'dispatch': '-', 'combine': '--'}


class Refused(Exception):
    """Files that are not to be drawn or compared."""

    def __init__(self, text, status=BROKEN):
        super().__init__(text)
        self.status = status


class Run:
    """One file: its configuration, and for each number of tokens the lines of the table, in order."""

    def __init__(self, name, document, curve=None):
        self.name, self.document, self.config, self.curve = name, document, document['config'], curve
        self.ranks = len(document['ranks'])
        self.rows = [r for r in document['results'] if 'unsupported' not in r]
        self.rows.sort(key=lambda r: r['tokens'])
        self.tokens = sorted({r['tokens'] for r in self.rows})

    def of(self, tokens):
        return [r for r in self.rows if r['tokens'] == tokens]

    def value(self, tokens, operation, key):
        """The median over lines of that size; None if some line lacks it."""
        values = [r.get(operation, {}).get(key) for r in self.of(tokens)] or [None]
        return None if None in values else statistics.median(values)

    def time(self, tokens, operation):
        kernel = self.value(tokens, operation, 'kernel_us')
        return self.value(tokens, operation, 'p50_us') if kernel is None else kernel

    def parts(self):
        """A run for each workload, of which a curve has several in a file; they know the curve's name."""
        workloads = list(dict.fromkeys(row.get('workload') for row in self.rows))
        if len(workloads) < 2:
            return [self]
        return [Run('%s, %s' % (self.name, workload), dict(
            self.document, results=[row for row in self.rows if row['workload'] == workload]), self.name)
            for workload in workloads]

    def sms(self, row):
        return row.get('blocks') or self.config.get('sms') or None


def documents(path):
    """Those of a file, or of several ep_perf -J - one after another."""
    try:
        with open(0 if path == '-' else path, encoding='utf-8') as file:
            text = file.read()
        found, at = [], 0
        while not found or text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip())
            document, at = json.JSONDecoder().raw_decode(text, at)
            found.append(document)
    except OSError as error:
        raise Refused('%s: %s' % (path, error.strerror)) from None
    except (ValueError, RecursionError) as error:
        raise Refused('%s: is not a whole JSON document: %s' % (path, error)) from None
    return found


def load(arguments):
    """The runs of all files: with the names that are given, those of the files, or, where a file has several, of libraries."""
    runs = []
    for path, name in zip(arguments.files, short(arguments.files)):
        several = documents(path)
        runs += [run_of(document, path, name if len(several) == 1 else library_name(document)) for document in several]
    names = arguments.names.split(',') if arguments.names else []
    if names and len(names) != len(runs) and not (arguments.bars and len(names) == 2):
        raise Refused('--names: got %d names, allowed is one for each of %d runs' % (len(names), len(runs)), USAGE)
    for i, run in enumerate(runs if names else ()):
        run.name = names[i % len(names)]
    return [part for run in runs for part in run.parts()]


def library_name(document):
    try:
        text, versions = document['library']['text'], document['versions']
        return text.split(' ')[0].rstrip(',') if text != 'not Switchyard' else 'NCCL EP %s' % versions['nccl_ep']
    except (KeyError, TypeError):
        return 'unknown'


def run_of(document, path, name):
    if not isinstance(document, dict) or document.get('schema') != 'ep_perf':
        raise Refused('%s: is not written by ep_perf -J' % path)
    if document.get('schema_version') != SCHEMA_VERSION:
        raise Refused('%s: got schema_version %s, allowed is %d' % (path, document.get('schema_version'), SCHEMA_VERSION))
    try:
        run = Run(name, document)
        wrong = [(r['tokens'], r['wrong']) for r in run.rows if r['wrong']]
        total = document['wrong']
    except (KeyError, TypeError) as error:
        raise Refused('%s: lacks %s' % (path, error)) from None
    if wrong or total:
        where = ''.join(', %d with %d tokens' % (n, tokens) for tokens, n in wrong)
        raise Refused('%s: has %d wrong results%s: its times count for nothing' % (path, total or 0, where))
    if not run.rows:
        raise Refused('%s: has no measured line' % path)
    return run


def notes(runs):
    """What a reader has to know before comparing."""
    lines = []
    for run in runs:
        if any(r['wrong'] is None for r in run.rows):
            lines.append('%s: results were not checked' % run.name)
        if 'for the virtual cluster' in run.document.get('library', {}).get('text', ''):
            lines.append('%s: virtual cluster, times say nothing of a GPU' % run.name)
    first = runs[0]
    for run in runs[1:]:
        if run.ranks != first.ranks:
            lines.append('%s: %d ranks, not %d' % (run.name, run.ranks, first.ranks))
        for key in sorted(set(first.config) | set(run.config)):
            a, b = first.config.get(key), run.config.get(key)
            if a != b and key not in SILENT:
                lines.append('%s: %s is %s, not %s' % (run.name, key, b, a))
        if any(digests(run, t) != digests(first, t) for t in shared(first, run)):
            lines.append('%s: other routing than %s' % (run.name, first.name))
    return lines


def digests(run, tokens):
    return {r.get('routing_digest') for r in run.of(tokens)}


def shared(a, b):
    return [t for t in a.tokens if t in b.tokens]


def ratios(first, run):
    """(tokens, operation, time of first, of run, their ratio); p50 where one of the two has no kernel times."""
    out = []
    for tokens in shared(first, run):
        for operation in OPERATIONS:
            pair = [r.value(tokens, operation, 'kernel_us') for r in (first, run)]
            if None in pair:
                pair = [r.value(tokens, operation, 'p50_us') for r in (first, run)]
            if None not in pair and pair[0] > 0:
                out.append((tokens, operation, pair[0], pair[1], pair[1] / pair[0]))
    return out


def check_alike(first, run):
    """--fail-above compares times of one problem only."""
    for key in PROBLEM:
        a, b = (r.config.get(key, LATER.get(key)) for r in (first, run))
        if a != b:
            raise Refused('not comparable: %s is %s in %s, %s in %s' % (key, a, first.name, b, run.name))
    if first.ranks != run.ranks:
        raise Refused('not comparable: %d ranks in %s, %d in %s' % (first.ranks, first.name, run.ranks, run.name))
    for tokens in shared(first, run):
        if digests(first, tokens) != digests(run, tokens):
            raise Refused('not comparable: the routing of %d tokens differs between %s and %s' % (
                tokens, first.name, run.name))
    if not ratios(first, run):
        raise Refused('not comparable: %s and %s have no size in common' % (first.name, run.name))


def table(runs):
    lines = []
    for run in runs[1:]:
        lines += ['%s against %s' % (run.name, runs[0].name),
                  '%10s  %-9s %10s %10s %7s' % ('tokens', '', 'us', 'us', 'ratio')]
        lines += ['%10d  %-9s %10.1f %10.1f %7.3f' % row for row in ratios(runs[0], run)]
    return lines


def cell(value, digits=1):
    """A time or a rate; three digits are enough of it."""
    if not isinstance(value, float):
        return '' if value is None else str(value)
    return '%.*f' % (digits if abs(value) < 100 else 0, value)


def markdown(head, rows, left=1):
    """A table whose first columns are words and whose others are numbers."""
    lines = [head, ['---'] * left + ['---:'] * (len(head) - left), *rows]
    return ['| %s |' % ' | '.join(str(c).replace('|', '/') for c in line) for line in lines] + ['']


def tables(runs):
    """Markdown: the times of each run and size, and what its group took."""
    operations = [o for o in OPERATIONS if any(o in row for run in runs for row in run.rows)]
    times, setups = [], []
    for run in runs:
        for row in run.rows:
            line = [run.name, row['tokens'], cell(row.get('max_over_mean'), 2)]
            for operation in operations:
                op = row.get(operation, {})
                line += [cell(op.get('kernel_us')), cell(op.get('p50_us'))]
                if operation != 'routing':
                    line += [cell(op.get('busbw_gbs')), cell(op.get('floor_percent'), 0)]
            times.append(line + [cell(row.get('period_us')), cell(row['wrong'])])
        nccl = run.document.get('versions', {}).get('nccl')
        setups.append([run.name, '%d.%d.%d' % (nccl // 10000, nccl // 100 % 100, nccl % 100) if nccl else ''] + [
            cell(run.document.get('setup', {}).get(key)) for key in ('group_ms', 'group_cpu_ms', 'handle_ms', 'library_mib')])
    head = ['run', 'tokens', 'mx/mn']
    for operation in operations:
        head += [operation + ' kernel', 'call'] + ['GB/s', 'fl%'] * (operation != 'routing')
    return ['Median times of the slowest rank, in us. kernel: of the GPU; call: between events around it; pair: dispatch and combine,',
            'chained.', '', *markdown(head + ['pair', 'wrong'], times),
            *markdown(['run', 'NCCL', 'making the group, ms', 'of this CPU, ms', 'the handle, ms', 'memory of a rank, MiB'], setups)]


def csv_text(runs):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator='\n')
    writer.writerow(COLUMNS)
    for run in runs:
        for row in run.rows:
            for operation in OPERATIONS:
                if operation not in row:
                    continue
                op = row[operation]
                time = op['p50_us'] if op['kernel_us'] is None else op['kernel_us']
                known = dict(row, **op, run=run.name, ranks=run.ranks, operation=operation, time_us=time,
                             sms=run.sms(row))
                writer.writerow(['' if known.get(c) is None else known[c] for c in COLUMNS])
    return out.getvalue()


# ---- pictures: the only part that needs matplotlib ----

def points(run, operation, value):
    """Sizes and values; sizes without one are left out. No tokens are drawn at half a token."""
    pairs = [(t or 0.5, value(t)) for t in run.tokens if any(operation in r for r in run.of(t))]
    pairs = [(t, v) for t, v in pairs if v is not None]
    return [t for t, _ in pairs], [v for _, v in pairs]


def caption(axes, title, xlabel, ylabel):
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7)


def by_tokens(axes, title, ylabel, yscale='log'):
    axes.set_xscale('log', base=2)
    axes.set_yscale(yscale)
    axes.xaxis.set_major_formatter(lambda x, _: '0' if x == 0.5 else '%g' % x)
    caption(axes, title, 'tokens per rank', ylabel)


def curve(axes, x, y, operation, number, label=None):
    axes.plot(x, y, LINES[operation], marker='o', markersize=3, color='C%d' % (number % 10), label=label)


def draw_ladder(axes, runs):
    for i, run in enumerate(runs):
        for operation in OPERATIONS:
            x, y = points(run, operation, lambda t, o=operation: run.time(t, o))
            if not x:
                continue
            curve(axes, x, y, operation, i, '%s %s' % (run.name, operation))
            low = points(run, operation, lambda t, o=operation: run.value(t, o, 'p50_us'))
            high = points(run, operation, lambda t, o=operation: run.value(t, o, 'p99_us'))
            if low[0] == high[0]:
                axes.fill_between(low[0], low[1], high[1], color='C%d' % i, alpha=0.15, linewidth=0)
            x, y = points(run, operation, lambda t, o=operation: run.value(t, o, 'floor_us') or None)
            axes.plot(x, y, LINES[operation], color='C%d' % i, linewidth=0.7, alpha=0.5)
    by_tokens(axes, 'Time; band: p50 to p99; thin: what the bytes alone take', 'us')


def draw_bandwidth(axes, runs):
    for i, run in enumerate(runs):
        for operation in ('dispatch', 'combine'):
            x, y = points(run, operation, lambda t, o=operation: run.value(t, o, 'busbw_gbs') or None)
            curve(axes, x, y, operation, i)
    by_tokens(axes, 'Bandwidth of the busiest rank\'s links', 'GB/s')


def draw_ratio(axes, runs):
    for i, run in enumerate(runs[1:], 1):
        for operation in OPERATIONS:
            rows = [r for r in ratios(runs[0], run) if r[1] == operation]
            if rows:
                curve(axes, [r[0] or 0.5 for r in rows], [r[4] for r in rows], operation, i, '%s %s' % (run.name, operation))
    axes.axhline(1, color='grey', linewidth=0.8)
    by_tokens(axes, 'Time divided by that of %s' % runs[0].name, 'ratio', 'linear')


def by_sms(runs):
    """{(operation, tokens): [(SMs, us)]} of sizes that were run with several numbers of SMs: first, middle and last."""
    found = {}
    for run in runs:
        for row in run.rows:
            for operation in ('dispatch', 'combine'):
                time = row[operation]['kernel_us'] or row[operation]['p50_us']
                if run.sms(row) and time is not None:
                    found.setdefault((operation, row['tokens']), []).append((run.sms(row), time))
    found = {k: sorted(v) for k, v in found.items() if len({sms for sms, _ in v}) > 1}
    sizes = sorted({tokens for _, tokens in found})
    chosen = {sizes[0], sizes[len(sizes) // 2], sizes[-1]} if sizes else set()
    return {k: v for k, v in found.items() if k[1] in chosen}


def draw_sms(axes, lines):
    for i, ((operation, tokens), values) in enumerate(sorted(lines.items())):
        curve(axes, *zip(*values), operation, i, '%s, %d tokens' % (operation, tokens))
    axes.set_yscale('log')
    caption(axes, 'Time by SMs', 'SMs', 'us')


def by_load(runs):
    """{(curve, operation, tokens): [(mx/mn, us)]} of curves."""
    found = {}
    for run in runs:
        for row in run.rows if run.curve else ():
            for operation in [o for o in OPERATIONS if o in row]:
                time = row[operation]['kernel_us'] or row[operation]['p50_us']
                if time is not None and row['max_over_mean'] is not None:
                    found.setdefault((run.curve, operation, row['tokens']), []).append((row['max_over_mean'], time))
    return found


def draw_by_load(axes, lines):
    for i, ((name, operation, tokens), values) in enumerate(sorted(lines.items())):
        curve(axes, *zip(*sorted(values)), operation, i, '%s, %s, %d tokens' % (name, operation, tokens))
    axes.set_ylim(bottom=0)
    caption(axes, 'Time by imbalance', 'rows of the busiest rank, relative to the mean', 'us')


def last(run, key):
    """The largest size that has it."""
    rows = [r for r in run.rows if r.get(key)]
    return rows[-1] if rows else None


def draw_waits(axes, run):
    row = last(run, 'waits_us')
    matrix = [[math.nan if v is None else v for v in line] for line in row['waits_us']]
    image = axes.imshow(matrix, cmap='viridis', interpolation='nearest')
    axes.figure.colorbar(image, ax=axes, label='us')
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    caption(axes, 'Waits per dispatch, %d tokens: %s' % (row['tokens'], run.name), 'waited for', 'rank that waits')


def draw_load(axes, runs):
    for i, run in enumerate(runs):
        row = last(run, 'expert_ids')
        if not row:
            continue
        loads = sorted(row['expert_ids'], reverse=True)
        mean = sum(loads) / len(loads)
        if mean:
            axes.step(range(len(loads)), [n / mean for n in loads], where='mid', color='C%d' % i,
                      label='%s, %d tokens' % (run.name, row['tokens']))
    axes.axhline(1, color='grey', linewidth=0.8)
    caption(axes, 'Load of experts', 'experts, the busiest first', 'ids, relative to the mean')


def title(run):
    config = run.config
    return '%s %s, %s experts, top-%s, hidden %s %s, %s, %d ranks' % (
        config['mode'], config['layout'], config['experts'], config['topk'], config['hidden'], config['dtype'],
        config['routing'], run.ranks)


def panels(runs):
    out = [(draw_ladder, runs), (draw_bandwidth, runs)]
    if len(runs) > 1:
        out.append((draw_ratio, runs))
    lines = by_sms(runs)
    if lines:
        out.append((draw_sms, lines))
    lines = by_load(runs)
    if lines:
        out.append((draw_by_load, lines))
    out += [(draw_waits, run) for run in runs if last(run, 'waits_us') and not run.curve]
    if any(last(run, 'expert_ids') for run in runs):
        out.append((draw_load, runs))
    return out


def draw(runs):
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise Refused('pictures need matplotlib (apt-get install python3-matplotlib, or pip install matplotlib); '
                      '--csv and --fail-above do without') from None
    matplotlib.rcParams['svg.hashsalt'] = 'ep_plot'  # the same file for the same results
    matplotlib.rcParams['svg.fonttype'] = 'none'
    todo = panels(runs)
    lines = (len(todo) + 1) // 2
    figure = Figure(figsize=(12, 4.2 * lines + 0.6), layout='constrained')
    for i, (function, what) in enumerate(todo):
        function(figure.add_subplot(lines, 2, i + 1), what)
    lines = notes(runs)
    figure.suptitle('\n'.join([title(runs[0])] + lines[:6] + ['...'] * (len(lines) > 6)), fontsize=10)
    return figure


def image_text(figure):
    out = io.StringIO()
    figure.savefig(out, format='svg', metadata={'Date': None})
    return out.getvalue()


def page(figure, runs):
    """One file without references: the picture, the numbers and the documents themselves."""
    svg = image_text(figure)
    rows = list(csv.reader(io.StringIO(csv_text(runs))))
    cells = '\n'.join('<tr>%s</tr>' % ''.join('<td>%s</td>' % html.escape(c) for c in row) for row in rows)
    data = json.dumps([run.document for run in runs]).replace('<', '\\u003c')
    items = ''.join('<li>%s</li>' % html.escape(n) for n in notes(runs))
    return ('<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>%s</title>\n<ul>%s</ul>\n%s\n'
            '<table>\n%s\n</table>\n<script type="application/json" id="results">%s</script>\n</html>\n' % (
                html.escape(title(runs[0])), items, svg[svg.index('<svg'):], cells, data))


def write(path, text):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


def save(figure, path, runs):
    if path.endswith('.png'):
        figure.savefig(path, format='png', dpi=110)
    else:
        write(path, page(figure, runs) if path.endswith('.html') else image_text(figure))


# ---- bars: two libraries, or two versions, beside each other ----

BARS_STYLE = '''text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.note { font-size: 11px; fill: #57606a; }
.title { font-weight: 600; }
.first { fill: #0969da; } .second { fill: #afb8c1; } .third { fill: #8c959f; } .fourth { fill: #d0d7de; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .note { fill: #8b949e; }
  .first { fill: #58a6ff; } .second { fill: #6e7681; } .third { fill: #8b949e; } .fourth { fill: #484f58; }
}'''
BARS_CLASSES, BARS_LEFT, BARS_WIDTH, BARS_BAR = ('first', 'second', 'third', 'fourth'), 330, 440, 14
MODES = {'ll': 'low latency', 'ht': 'high throughput'}
LAYOUTS = {'em': 'expert-major', 'rm': 'rank-major', 'flat': 'flat'}


def bars_number(us):
    return float('%.1f' % us if us < 100 else '%.0f' % us)


def bars_of(pairs, sizes):
    """A document of bars: for each size (of these, if any) that both runs of a pair have, and each operation, two times."""
    rows = []
    for first, second in pairs:
        check_alike(first, second)
        layout = first.config['layout']
        for tokens, operation, a, b, _ in [row for row in ratios(first, second) if not sizes or row[0] in sizes]:
            rows.append({'what': '%s %s, %d token%s%s' % (
                MODES.get(first.config['mode'], first.config['mode']), operation, tokens, '' if tokens == 1 else 's',
                '' if (first.config['mode'], layout) == ('ll', 'em') else ', ' + LAYOUTS.get(layout, layout)),
                         'sms': ', '.join(dict.fromkeys(str(run.config.get('sms') or 'default') for run in (first, second))), 'us': [bars_number(a), bars_number(b)]})
    if not rows:
        raise Refused('--tokens: no pair has been measured with %s' % ', '.join(map(str, sizes)))
    first = pairs[0][0]
    return {'schema': 'ep_plot_bars', 'schema_version': 2, 'title': 'Times of each operation', 'machine': bars_machine(first),
            'how': 'ep_perf -J, %s; %s' % (first.document.get('started'), '; '.join(map(bars_library, pairs[0]))),
            'names': [run.name for run in pairs[0]], 'rows': rows}


def bars_library(run):
    """Without its path, which is nobody else's."""
    library = run.document.get('library', {})
    version = library.get('version') or 'NCCL EP %s' % run.document.get('versions', {}).get('nccl_ep')
    return '%s: %s%s' % (run.name, version, ', commit %s' % library['commit'] if library.get('commit') else '')


def bars_machine(run):
    gpus = [rank.get('name') or 'unknown GPU' for rank in run.document['ranks']]
    return '%s, hidden %s, %s, top-%s of %s, %d ranks' % (
        ', '.join('%d x %s' % (gpus.count(gpu), gpu) for gpu in sorted(set(gpus))), run.config['hidden'],
        run.config['dtype'], run.config['topk'], run.config['experts'], run.ranks)


def bars_load(path):
    """A document that --save has written. Each row has a time of the first library and of another one at least."""
    document = documents(path)[0]
    with contextlib.suppress(KeyError, TypeError, IndexError, ValueError):
        whole = (document['schema'], document['schema_version'], not document['rows']) == ('ep_plot_bars', 2, False)
        whole &= 2 <= len(document['names']) <= len(BARS_CLASSES) and isinstance(document['title'] + document['machine'], str)
        for row in document['rows']:
            whole &= len(row['us']) == len(document['names']) and row['us'][0] > 0 and isinstance(row['what'] + row['sms'], str)
            whole &= min(us for us in row['us'][1:] if us is not None) > 0
        if whole:
            return document
    raise Refused('%s: is no document of ep_plot --bars --save' % path)


def bars_picture(document):
    """Draws the bars of a row relative to its slowest, since times differ by a factor of fifty between rows."""
    names, y = [html.escape(name) for name in document['names']], 70
    out = ['<text class="title" x="8" y="19">%s</text>' % html.escape(document['title']),
           '<text class="note" x="8" y="36">%s</text>' % html.escape(document['machine'])]
    for k, name in enumerate(names):
        out.append('<rect class="%s" x="%d" y="44" width="12" height="12"/><text x="%d" y="55">%s</text>' % (
            BARS_CLASSES[k], 8 + 120 * k, 26 + 120 * k, name))
    out.append('<text class="note" x="%d" y="55">us; each row to its own scale</text>' % (8 + 120 * (k + 1)))
    for row in document['rows']:
        out += ['<text class="%s" x="8" y="%d">%s</text>' % (kind, at, html.escape(text)) for kind, at, text in (
            ('what', y + 14, row['what']), ('note', y + 28, 'SMs: ' + row['sms']))]
        for kind, us in [pair for pair in zip(BARS_CLASSES, row['us']) if pair[1] is not None]:
            width = us / max(filter(None, row['us'])) * BARS_WIDTH
            out.append('<rect class="%s" x="%d" y="%d" width="%.1f" height="12"/>' % (kind, BARS_LEFT, y + 4, width))
            out.append('<text class="note" x="%.1f" y="%d">%g</text>' % (BARS_LEFT + width + 6, y + 14, us))
            y += BARS_BAR
        y += 10
    head = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 %d" width="860" height="%d" role="img"' % (y, y),
            '     aria-label="%s: %s">' % (html.escape(document['title']), ', '.join(names)), '<style>\n%s\n</style>' % BARS_STYLE]
    return '\n'.join(head + out + ['</svg>\n'])


def bars_table(document):
    """Writes the least time of a row in bold. The ratio is that of the best other library to the first one."""
    rows = []
    for row in document['rows']:
        times = [us for us in row['us'] if us is not None]
        cells = ['' if us is None else ('**%g**' if us == min(times) else '%g') % us for us in row['us']]
        rows.append([row['what'], row['sms'], *cells, '%.2f' % (min(times[1:]) / times[0])])
    return '\n'.join(markdown([document.get('unit', 'us'), 'SMs', *document['names'], 'best other / %s' % document['names'][0]], rows, 2))


def bars(arguments):
    """--bars: the table goes to standard output, the picture to -o."""
    if len(arguments.files) == 1 and arguments.files[0] != '-':
        document = bars_load(arguments.files[0])
    else:
        runs = load(arguments)
        if len(runs) % 2:
            raise Refused('--bars: got %d runs, allowed are pairs' % len(runs), USAGE)
        for note in sorted(set(note for i in range(0, len(runs), 2) for note in notes(runs[i:i + 2]))):
            print('ep_plot: note: %s' % note, file=sys.stderr)
        document = bars_of(list(zip(runs[::2], runs[1::2])), arguments.tokens)
    print(bars_table(document), end='')
    if arguments.save:
        write(arguments.save, json.dumps(document, indent=2) + '\n')
    for path in arguments.output:
        write(path, bars_picture(document))


# ---- command line ----

def short(files):
    """Names without directories and .json, where they differ without these."""
    names = [os.path.basename(f).removesuffix('.json') for f in files]
    return names if len(set(names)) == len(files) else files


def picture(text):
    if not text.endswith(('.svg', '.png', '.html')):
        raise argparse.ArgumentTypeError("got '%s', allowed is a name with .svg, .png or .html" % text)
    return text


def ratio(text):
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError("got '%s', allowed is a number above 0" % text)


def sizes(text):
    if not all(n.isdigit() for n in text.split(',')):
        raise argparse.ArgumentTypeError("got '%s', allowed are numbers with commas between them" % text)
    return [int(n) for n in text.split(',')]


def parse():
    parser = argparse.ArgumentParser(prog='ep_plot', allow_abbrev=False,
                                     description='Draws and compares results that ep_perf -J has written.')
    parser.add_argument('files', metavar='FILE', nargs='+', help='results; - is standard input. A file may hold several, one after another')
    parser.add_argument('-o', '--output', metavar='FILE', type=picture, action='append', default=[],
                        help='the picture, as .svg, .png or .html; more than once for several')
    parser.add_argument('--csv', metavar='FILE', help='the numbers, a line for each size and operation; - is standard output')
    parser.add_argument('--table', metavar='FILE',
                        help='tables in Markdown, a line for each run and size, and for the making of each group; - is standard output')
    parser.add_argument('--names', metavar='A,B', help='names of the runs instead of those of the files')
    parser.add_argument('--bars', action='store_true',
                        help='two runs beside each other, or pairs of runs: bars as in the README (.svg) and a table')
    parser.add_argument('--save', metavar='FILE', help='with --bars: its numbers, which --bars FILE draws again')
    parser.add_argument('--tokens', metavar='N,N', type=sizes, default=[], help='with --bars: only of so many tokens')
    parser.add_argument('--fail-above', metavar='R', type=ratio,
                        help='status 1 if an operation takes more than R times that of the first file')
    arguments = parser.parse_args()
    if arguments.bars:
        check_bars(parser, arguments)
    elif arguments.save or arguments.tokens:
        parser.error('--save and --tokens need --bars')
    return arguments


def check_bars(parser, arguments):
    if any(not path.endswith('.svg') for path in arguments.output):
        parser.error('--bars draws .svg')
    if arguments.csv or arguments.table or arguments.fail_above:
        parser.error('--bars goes without --csv, --table and --fail-above')


def compare(runs, limit):
    """Prints what is slower than allowed, or that nothing is; whether there is any."""
    for run in runs[1:]:
        check_alike(runs[0], run)
    slow = [(run, row) for run in runs[1:] for row in ratios(runs[0], run) if row[4] > limit]
    for run, (tokens, operation, before, after, times) in slow:
        print('ep_plot: %s: %s of %d tokens takes %.1f us, %.3f times the %.1f of %s; allowed is %g' % (
            run.name, operation, tokens, after, times, before, runs[0].name, limit), file=sys.stderr)
    if not slow:
        print('ep_plot: nothing takes more than %g times that of %s' % (limit, runs[0].name), file=sys.stderr)
    return bool(slow)


def main():
    arguments, slow = parse(), False
    try:
        if arguments.bars:
            bars(arguments)
            return 0
        runs = load(arguments)
        if len(runs) < 2 and (arguments.fail_above or not (arguments.csv or arguments.table or arguments.output)):
            raise Refused('one run leaves nothing to do: give -o, --table or --csv, or two runs, which --fail-above needs', USAGE)
        for note in notes(runs):
            print('ep_plot: note: %s' % note, file=sys.stderr)
        texts = [(arguments.csv, csv_text(runs)), (arguments.table, '\n'.join(tables(runs)))]
        said = [text for path, text in texts if path == '-'] or ['\n'.join([*table(runs), ''])]
        print(''.join(said), end='', flush=True)
        for path, text in texts:
            if path and path != '-':
                write(path, text)
        slow = arguments.fail_above and compare(runs, arguments.fail_above)
        figure = draw(runs) if arguments.output else None
        for path in arguments.output:
            save(figure, path, runs)
    except Refused as refusal:
        print('ep_plot: %s' % refusal, file=sys.stderr)
        return WORSE if slow else refusal.status
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        print('ep_plot: %s: has values that ep_perf does not write: %s: %s' % (
            ', '.join(arguments.files), type(error).__name__, error), file=sys.stderr)
        return BROKEN
    except OSError as error:
        print('ep_plot: %s: %s' % (error.filename or 'standard output', error.strerror), file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what Python still holds for it
        return WORSE if slow else BROKEN
    return WORSE if slow else 0


if __name__ == '__main__':
    sys.exit(main())
