#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws doc/img/performance.svg and the README's table from doc/img/performance.json.

performance_plot.py [--check] ROOT
    --check   changes nothing; exit status 1 if the picture or the table is not what the numbers say
"""
import html
import json
import os
import sys

BEGIN, END = '<!-- performance: tools/performance_plot.py -->', '<!-- end -->'
STYLE = '''text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.note { font-size: 11px; fill: #57606a; }
.ours { fill: #0969da; } .nvidia { fill: #afb8c1; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .note { fill: #8b949e; }
  .ours { fill: #58a6ff; } .nvidia { fill: #6e7681; }
}'''
LEFT, WIDTH, ROW = 370, 330, 38


def number(value):
    return '%g' % value


def picture(data):
    """Bars of each row relative to the slower one of its two, since times differ by a factor of fifty."""
    rows = data['rows']
    height = 30 + ROW * len(rows)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 %d" width="860" height="%d" role="img"' % (
               height, height),
           '     aria-label="Times of Switchyard beside those of NVIDIA\'s library">',
           '<style>\n%s\n</style>' % STYLE,
           '<rect class="ours" x="%d" y="8" width="12" height="12"/><text x="%d" y="19">Switchyard</text>' % (
               LEFT, LEFT + 18),
           '<rect class="nvidia" x="%d" y="8" width="12" height="12"/><text x="%d" y="19">NVIDIA</text>' % (
               LEFT + 110, LEFT + 128),
           '<text class="note" x="%d" y="19">each pair to its own scale; us</text>' % (LEFT + 200)]
    for i, row in enumerate(rows):
        top = 30 + ROW * i
        most = max(row['ours'], row['nvidia'])
        out.append('<text x="8" y="%d">%s</text>' % (top + 20, html.escape(row['what'])))
        for k, who in enumerate(('ours', 'nvidia')):
            width = row[who] / most * WIDTH
            y = top + 4 + 14 * k
            out.append('<rect class="%s" x="%d" y="%d" width="%.1f" height="12"/>' % (who, LEFT, y, width))
            out.append('<text class="note" x="%.1f" y="%d">%s</text>' % (
                LEFT + width + 6, y + 10, number(row[who])))
    out.append('</svg>\n')
    return '\n'.join(out)


def table(data):
    lines = ['| us, two GPUs | Switchyard | NVIDIA | ratio |', '| --- | ---: | ---: | ---: |']
    for row in data['rows']:
        lines.append('| %s | %s | %s | %.1f |' % (row['what'], number(row['ours']), number(row['nvidia']),
                                                 row['nvidia'] / row['ours']))
    return '\n'.join(lines) + '\n'


def page(readme, text):
    """The README with the table between its marks."""
    head, mark, rest = readme.partition(BEGIN + '\n')
    old, end, tail = rest.partition(END)
    if not mark or not end:
        sys.exit('README.md lacks the marks %s and %s' % (BEGIN, END))
    return head + mark + '\n' + text + '\n' + end + tail


def main():
    args = [a for a in sys.argv[1:] if a != '--check']
    if len(args) != 1 or args[0].startswith('-'):
        sys.exit(__doc__.strip())
    with open(os.path.join(args[0], 'doc/img/performance.json')) as file:
        data = json.load(file)
    readme = os.path.join(args[0], 'README.md')
    with open(readme) as file:
        now = file.read()
    wanted = {os.path.join(args[0], 'doc/img/performance.svg'): picture(data), readme: page(now, table(data))}
    wrong = []
    for name, text in wanted.items():
        old = None
        if os.path.exists(name):
            with open(name) as file:
                old = file.read()
        if old == text:
            continue
        wrong.append(name)
        if '--check' not in sys.argv:
            with open(name, 'w') as file:
                file.write(text)
            print('wrote', name)
    if wrong and '--check' in sys.argv:
        sys.exit('not what doc/img/performance.json says: %s; run tools/performance_plot.py %s' % (
            ', '.join(wrong), args[0]))


main()
