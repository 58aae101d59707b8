#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes manual pages as HTML, by mandoc, with links between them and an index.

    man_html.py OUTPUT_DIR PAGE...

A mention of a page, such as ncclEpDispatch(3), becomes a link where that page is among these.
"""

import html
import os
import re
import subprocess
import sys

STYLE = '''body { max-width: 46em; margin: 2em auto; padding: 0 1em; font: 16px/1.5 system-ui, sans-serif; color: #1f2328; background: #fff; }
pre, code { font: 14px/1.4 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .6em; background: #f6f8fa; }
h1 { font-size: 1.1em; margin: 1.6em 0 .4em; } h2 { font-size: 1em; }
a { color: #0969da; text-decoration: none; } a.permalink { color: inherit; }
table.head, table.foot { width: 100%; color: #57606a; } td.head-vol { text-align: center; } td.head-rtitle, td.foot-os { text-align: right; }
dt { margin-top: .6em; }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117; } pre { background: #161b22; } a { color: #58a6ff; } }
'''
SECTIONS = {'1': 'Programs', '3': 'Functions', '7': 'Overviews'}


def page_html(path):
    return subprocess.run(['mandoc', '-T', 'html', '-O', 'style=style.css', path], check=True, capture_output=True,
                          text=True).stdout


def linked(text, pages, own):
    """`text` with a link at each mention of one of `pages` but its own."""
    def link(match):
        page = '%s.%s' % (match['name'], match['section'])
        return match[0] if page == own or page not in pages else '<a href="%s.html">%s</a>' % (page, match[0])
    return re.sub(r'(?:<b>)?(?P<name>[A-Za-z][\w-]*)(?:</b>)?\((?P<section>\d)\)', link, text)


def summary(path):
    """What the section NAME states behind the dash."""
    with open(path, encoding='utf-8') as file:
        match = re.search(r'^\.SH NAME\n.*? \\- (.*)$', file.read(), re.M)
    return match[1] if match else ''


def index_html(pages):
    out = ['<!DOCTYPE html>', '<html lang="en"><head><meta charset="utf-8"/>',
           '<meta name="viewport" content="width=device-width, initial-scale=1.0"/>',
           '<link rel="stylesheet" href="style.css"/><title>Switchyard manual</title></head><body>',
           '<h1>Switchyard manual</h1>']
    for section in sorted({name[-1] for name in pages}):
        out.append('<h2>%s</h2>\n<dl>' % SECTIONS.get(section, 'Section ' + section))
        for name in sorted(name for name in pages if name.endswith('.' + section)):
            out.append('<dt><a href="%s.html">%s(%s)</a></dt><dd>%s</dd>' % (
                name, name[:-2], section, html.escape(summary(pages[name]))))
        out.append('</dl>')
    return '\n'.join(out + ['</body></html>\n'])


def write(path, text):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    directory, pages = sys.argv[1], {os.path.basename(path): path for path in sys.argv[2:]}
    os.makedirs(directory, exist_ok=True)
    for name, path in pages.items():
        write(os.path.join(directory, name + '.html'), linked(page_html(path), pages, name))
    write(os.path.join(directory, 'index.html'), index_html(pages))
    write(os.path.join(directory, 'style.css'), STYLE)


if __name__ == '__main__':
    main()
