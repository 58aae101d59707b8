#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manual as HTML: the index has every page, links lead to pages, and mentions of pages are links.

    check_html.py MAN_HTML PAGE...
"""

import html.parser
import os
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77


class Page(html.parser.HTMLParser):
    """The links of a page, and its text outside of links and the first and last line."""

    def __init__(self, text):
        super().__init__()
        self.links, self.text, self.inside = set(), '', 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.inside += tag in ('a', 'table', 'title')
        self.links |= {value for key, value in attributes if key == 'href' and tag == 'a' and value[0] != '#'}

    def handle_endtag(self, tag):
        self.inside -= tag in ('a', 'table', 'title')

    def handle_data(self, data):
        self.text += '' if self.inside else data


def main():
    if not shutil.which('mandoc'):
        print('skipped: there is no mandoc')
        return SKIPPED
    program, paths = sys.argv[1], sys.argv[2:]
    names, wrong = {os.path.basename(path) for path in paths}, []
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([program, work, *paths], check=True)
        made = set(os.listdir(work))
        for name in sorted(names | {'index'}):
            with open(os.path.join(work, name + '.html'), encoding='utf-8') as file:
                text = file.read()
            page = Page(text)
            if not page.text.strip() and name != 'index':
                wrong.append('%s is empty' % name)
            wrong += ['%s leads to %s' % (name, link) for link in page.links if link not in made]
            wrong += ['%s mentions %s without a link' % (name, other) for other in sorted(names - {name})
                      if '%s(%s)' % tuple(other.rsplit('.', 1)) in page.text]
            if name == 'index':
                wrong += ['the index lacks %s' % other for other in names if other + '.html' not in page.links]
                wrong += ['the index has a page without summary'] if '<dd></dd>' in text or '\\' in text else []
    print('\n'.join(wrong) or '%d pages' % len(names))
    return bool(wrong)


if __name__ == '__main__':
    sys.exit(main())
