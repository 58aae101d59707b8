#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws doc/img/performance.svg and the README's table from doc/img/performance.json, by ep_plot --bars.

performance_plot.py [--check] ROOT
    --check   changes nothing; exit status 1 if the picture or the table does not have the numbers
"""
import importlib.util
import os
import sys

BEGIN, END = '<!-- performance: tools/performance_plot.py -->', '<!-- end -->'


def load_ep_plot():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'ep_plot.py')
    spec = importlib.util.spec_from_file_location('ep_plot', path)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    spec.loader.exec_module(module)
    return module


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
    ep_plot = load_ep_plot()
    document = ep_plot.bars_load(os.path.join(args[0], 'doc/img/performance.json'))
    readme = os.path.join(args[0], 'README.md')
    with open(readme) as file:
        now = file.read()
    wanted = {os.path.join(args[0], 'doc/img/performance.svg'): ep_plot.bars_picture(document),
              readme: page(now, ep_plot.bars_table(document, 'us, a pair, two H200'))}
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
