#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the manual's pages of the public functions from the comments of the headers, and their
examples from examples/calls.c. CONTRIBUTING.md has the form of a comment.

    man_pages.py SOURCE_ROOT OVERVIEW PAGE...

A PAGE is a path that ends in NAME.3. There must be one for each function. A PAGE nccl_ep.7 is
OVERVIEW, where a line `.\\" header: TITLE` becomes that part of the header's first comment, and
`.\\" calls` a table of all calls.
"""

import os
import re
import sys
import textwrap

HEADERS = ('include/nccl_ep/ep_enums.h', 'include/nccl_ep.h', 'include/nccl_ep/ext.h')
LABELS = ('Collective', 'Threads', 'Capture', 'Blocks', 'Memory', 'Logs', 'Returns')
CLASSES = ('on a working group', 'on a group', 'that use the GPU')
CODES = ('ncclInvalidArgument', 'ncclInvalidUsage', 'ncclUnhandledCudaError', 'ncclSystemError', 'ncclRemoteError',
         'ncclInternalError')
UNSAID = ('size', 'magic', 'padding_v2')  # fields of many structs, for the library
COMMENT = r'(?P<comment>/\*(?:(?!\*/).)*\*/)\n'
FUNCTION = re.compile(r'(?:%s)?^ncclResult_t (?P<name>ncclEp\w+)\((?P<params>[^;]*)\);' % COMMENT, re.M | re.S)
TYPE = re.compile(r'(?:%s)?^typedef (?P<kind>struct|enum)[^{;]*\{(?P<body>[^}]*)\} (?P<name>\w+);' % COMMENT, re.M | re.S)
EXAMPLE = re.compile(r'^/\* (ncclEp\w+): ((?:(?!\*/).)*?) \*/\nstatic void \w+\(void\)\n\{\n(.*?)^\}', re.M | re.S)


class Unfit(Exception):
    """A comment that has not the form."""


# ---- the headers ----

def lines_of(comment):
    """The text of a comment, without its stars."""
    text = re.sub(r'^/\*|\*/$', '', comment or '')
    return [re.sub(r'^\s*\* ?', '', line).rstrip() for line in text.strip().split('\n')]


def joined(comment):
    return ' '.join(' '.join(lines_of(comment)).split())


def entries(lines, depth):
    """[(term, text)] of lines `term: text`, whose text goes on in lines that stand further right."""
    found = []
    for line in lines:
        match = re.match(r'%s(\S[^:`]*): (.*)' % (' ' * depth), line)
        if match:
            found.append([match[1], match[2]])
        elif found:
            found[-1][1] += ' ' + line.strip()
        else:
            raise Unfit('no term in "%s"' % line)
    return [tuple(entry) for entry in found]


def blocks_of(comment):
    """[(kind, content)]: p text, h title, pre lines, dl entries, and labels, a dictionary."""
    blocks = []
    for lines in re.split(r'\n\n+', '\n'.join(lines_of(comment)).strip('\n')):
        lines = lines.split('\n')
        if lines[0].startswith('    '):
            blocks.append(('pre', textwrap.dedent('\n'.join(lines)).split('\n')))
        elif lines[0].startswith('  '):
            blocks.append(('dl', entries(lines, 2)))
        elif lines[0].startswith(LABELS[0] + ': '):
            at = next((i for i, line in enumerate(lines) if line.startswith('Returns: ')), len(lines))
            returns = [i for i in range(at, len(lines)) if re.match('  ncclI?\\w+: ', lines[i])] or [len(lines)]
            labels = dict(entries(lines[:returns[0]], 0))
            labels['codes'] = dict(entries(lines[returns[0]:], 2)) if returns[0] < len(lines) else {}
            blocks.append(('labels', labels))
        elif len(lines) == 1 and not re.search(r'[.:;]$', lines[0]):
            blocks.append(('h', lines[0]))
        else:
            blocks.append(('p', ' '.join(line.strip() for line in lines)))
    return blocks


class Function:
    def __init__(self, match, text):
        self.name, self.at = match['name'], match.start('name')
        self.params = ' '.join(match['params'].split())
        self.header = text
        self.comment = match['comment'] or ''
        blocks = blocks_of(self.comment)
        if not blocks or blocks[0][0] != 'p' or blocks[-1][0] != 'labels':
            raise Unfit('%s: its comment is a sentence, paragraphs and the list from "Collective:" on' % self.name)
        self.summary, self.blocks, self.labels = blocks[0][1], blocks[1:-1], blocks[-1][1]
        if tuple(label for label in self.labels if label != 'codes') != LABELS:
            raise Unfit('%s: its list has %s, not %s' % (self.name, list(self.labels)[:-1], list(LABELS)))
        self.codes = self.labels.pop('codes')
        if not set(self.codes) <= set(CODES):
            raise Unfit('%s: returns %s' % (self.name, sorted(set(self.codes) - set(CODES))))
        self.classes = [name for name in CLASSES if 'codes of calls ' + name in self.labels['Returns']]


class Type:
    def __init__(self, match):
        self.name, self.at, self.kind = match['name'], match.start('name'), match['kind']
        self.body, self.blocks = match['body'], blocks_of(match['comment'])
        self.members = []  # (name, type, text)
        pending = ''
        for part in re.finditer(r'(?P<c>/\*.*?\*/)|(?P<d>[^;,/{}\s][^;,/{}]*)[;,]?(?P<t>[ \t]*/\*.*?\*/)?', match['body'], re.S):
            if part['c']:
                pending = joined(part['c'])
            else:
                kind, name = re.fullmatch(r'(.*?)(\w+)(?:\[\d+\]|\s*=.*)?', ' '.join(part['d'].split())).groups()
                text = pending + (' ' if pending and part['t'] else '') + joined((part['t'] or '').strip())
                if name not in UNSAID and not text:
                    raise Unfit('%s has no comment for %s' % (self.name, name))
                if name not in UNSAID:
                    self.members.append((name, kind.strip(), text))
                pending = ''


class Headers:
    """Functions and types in order, where each type has its description, and the parts of the first comment."""

    def __init__(self, root):
        self.functions, self.types = [], []
        for order, path in enumerate(HEADERS):
            with open(os.path.join(root, path), encoding='utf-8') as file:
                text = file.read()
            for match in FUNCTION.finditer(text):
                self.functions.append(Function(match, path.removeprefix('include/')))
                self.functions[-1].at += order << 24
            for match in TYPE.finditer(text):
                self.types.append(Type(match))
                self.types[-1].at += order << 24
            if path == 'include/nccl_ep.h':
                self.parts = self.parts_of(re.search(r'^/\*\n.*?\*/', text, re.M | re.S)[0])
        self.types = [t for t in self.types if t.members]
        self.homes = {t.name: self.home(t) for t in self.types}

    @staticmethod
    def parts_of(comment):
        parts, title = {}, None
        for kind, content in blocks_of(comment):
            if kind == 'h':
                title = content
            else:
                parts.setdefault(title, []).append((kind, content))
        return parts

    def home(self, of):
        """The first function behind a type that has it as a parameter, or a type that has."""
        word = re.compile(r'\b%s\b' % of.name)
        for function in self.functions:
            if function.at > of.at and word.search(function.params):
                return function.name
        for other in self.types:
            if other.at > of.at and word.search(other.body):
                return self.home(other)
        raise Unfit('%s: no function has it' % of.name)

    def codes(self, function):
        """{code: texts} of a function, those of its classes behind its own."""
        codes = {code: [text] for code, text in function.codes.items()}
        for name in function.classes + (['on a group'] if 'on a working group' in function.classes else []):
            for code, text in dict(self.parts['Codes of calls ' + name][0][1]).items():
                if text not in codes.setdefault(code, []):
                    codes[code].append(text)
        return {code: codes[code] for code in CODES if code in codes}


# ---- roff ----

def escaped(text):
    return re.sub(r"^([.'])", r'\\&\1', text.replace('\\', '\\e'))


class Writer:
    """Words of comments in the language of pages. `own` is the function of the page, if there is one."""

    def __init__(self, headers, own=None):
        self.names = {function.name for function in headers.functions}
        self.own = own
        self.params = set(re.findall(r'(\w+)(?=,|$)', own.params)) if own else set()
        self.mentioned = set()

    def word(self, match):
        if match['code']:
            parameter = re.match(r'\*?(\w+)', match['code'])
            font = 'I' if parameter and parameter[1] in self.params and '->' not in match['code'] else 'B'
            return '\\f%s%s\\fR' % (font, match['code'].replace('-', '\\-'))
        if match['page']:
            self.mentioned.add((match['page'], match['section']))
            return '\\fB%s\\fR(%s)' % (match['page'], match['section'])
        name = match['name']
        if name in self.names and (not self.own or name != self.own.name):
            self.mentioned.add((name, '3'))
            return '\\fB%s\\fR(3)' % name
        return '\\fB%s\\fR' % name

    def text(self, text):
        text = re.sub(r'`(?P<code>[^`]+)`|\b(?P<page>[a-z][\w-]*)\((?P<section>[1-8])\)|'
                      r'\b(?P<name>(?:nccl[A-Z]|NCCL_)\w+(?:->\w+)*)', self.word, text.replace('\\', '\\e'))
        text = re.sub(r'(?<![\w\\])-(?=\d)', r'\\-', text)
        return [re.sub(r"^([.'])", r'\\&\1', line) for line in textwrap.wrap(
            text, 100, break_long_words=False, break_on_hyphens=False)]

    def blocks(self, blocks):
        out, after = [], True
        for kind, content in blocks:
            if kind == 'h':
                out.append('.SS ' + content)
            elif kind == 'p':
                out += [] if after else ['.PP']
                out += self.text(content)
            elif kind == 'pre':
                out += ['.PP', '.nf', *map(escaped, content), '.fi']
            elif kind == 'dl':
                for term, text in content:
                    out += ['.TP', *self.text(term), *self.text(text)]
            after = kind == 'h'
        return out

    def members(self, of):
        out = ['.SS ' + of.name, *self.blocks(of.blocks)]
        for name, kind, text in of.members:
            out += ['.TP', '\\fB%s\\fR%s' % (name, ' (%s)' % kind if kind else ''), *self.text(text)]
        return out


def synopsis(function):
    out = ['.nf', '.B #include <%s>' % function.header, '.PP']
    indent = ' ' * len('ncclResult_t %s(' % function.name)
    line = 'ncclResult_t %s(' % function.name
    for parameter in re.findall(r'[^,]+(?:,|$)', function.params):
        if len(line) + len(parameter) > 88:
            out.append('.B "%s"' % line.rstrip())
            line, parameter = indent, parameter.strip()
        line += parameter
    out.append('.B "%s);"' % line)
    return out + ['.fi']


def title(name, section):
    return ['.\\" SPDX-License-Identifier: Apache-2.0', '.TH %s %s "" "Switchyard" "NCCL EP"' % (name.upper(), section)]


def page(headers, function, examples):
    writer = Writer(headers, function)
    summary = function.summary.rstrip('.')
    out = title(function.name, 3) + ['.SH NAME', '%s \\- %s' % (function.name, summary[0].lower() + summary[1:])]
    out += ['.SH SYNOPSIS', *synopsis(function), '.SH DESCRIPTION', *(writer.blocks(function.blocks) or [summary + '.'])]
    types = sorted((of for of in headers.types if headers.homes[of.name] == function.name),
                   key=lambda of: (of.kind == 'enum', of.name not in function.params, of.at))
    if types:
        out += ['.SH TYPES'] + [line for of in types for line in writer.members(of)]
    out += ['.SH ATTRIBUTES', '\\fBnccl_ep\\fR(7) explains the words.']
    for label in LABELS[:-1]:
        text = function.labels[label]
        out += ['.TP', label, *writer.text(text[0].upper() + text[1:])]
    returns = re.sub(r'(?:,? or|,)? the codes of calls (?:%s)' % '|'.join(CLASSES), '', function.labels['Returns'])
    codes = headers.codes(function)
    out += ['.SH RETURN VALUE', *writer.text(re.sub(r'(,? or|^(ncclSuccess)\.?)$', r'\2, or:' if codes else r'\2.', returns))]
    for code, texts in codes.items():
        out += ['.TP', '.B ' + code, *writer.text(' '.join(texts))]
    out += ['.SH EXAMPLES', 'From \\fIexamples/calls.c\\fR. CHECK prints the reason of a failure and exits.']
    for caption, body in examples.get(function.name, []):
        out += ['.PP', *writer.text(caption), '.PP', '.nf', *(escaped(line) for line in body), '.fi']
    others = {(headers.homes[of.name], '3') for of in headers.types if re.search(r'\b%s\b' % of.name, function.params)}
    others = (others | writer.mentioned | {('nccl_ep', '7')}) - {(function.name, '3')}
    order = {f.name: i for i, f in enumerate(headers.functions)}
    return out + see_also(sorted(others, key=lambda other: (other[1], order.get(other[0], 0), other[0])))


def see_also(others):
    return ['.SH SEE ALSO'] + ['.BR %s (%s)%s' % (name, section, ',' * (i + 1 < len(others)))
                               for i, (name, section) in enumerate(others)]


def table(headers):
    """All calls with the first words behind some labels of theirs."""
    labels = ('Collective', 'Threads', 'Capture', 'Blocks')
    rows = [('',) + labels]
    for function in headers.functions:
        words = [re.split('[.;,:]', function.labels[label])[0].replace('`', '') for label in labels]
        rows.append((function.name,) + tuple(words))
    widths = [max(len(row[i]) for row in rows) for i in range(len(labels))]
    return ['.nf'] + [escaped('  '.join(word.ljust(width) for word, width in zip(row, widths)) + '  ' + row[-1])
                      for row in rows] + ['.fi']


def overview(headers, text):
    """The page nccl_ep.7 with parts of the header, and a table of all calls."""
    out = []
    for line in text.rstrip('\n').split('\n'):
        match = re.fullmatch(r'\.\\" header: (.*)', line)
        if match:
            out += Writer(headers).blocks(headers.parts[match[1]])
        else:
            out += table(headers) if line == '.\\" calls' else [line]
    return out


def read_examples(root):
    """{function: [(caption, lines)]}"""
    with open(os.path.join(root, 'examples/calls.c'), encoding='utf-8') as file:
        text = file.read()
    examples = {}
    for name, caption, body in EXAMPLE.findall(text):
        lines = textwrap.dedent(body.replace('\t', '    ')).rstrip('\n').split('\n')
        examples.setdefault(name, []).append((' '.join(caption.replace('\n *', ' ').split()), lines))
    return examples


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    root, overview_path, paths = sys.argv[1], sys.argv[2], sys.argv[3:]
    try:
        headers, examples = Headers(root), read_examples(root)
    except Unfit as unfit:
        sys.exit(str(unfit))
    functions = {function.name + '.3': function for function in headers.functions}
    pages = {os.path.basename(path): path for path in paths}
    wrong = sorted(set(functions) ^ (set(pages) - {'nccl_ep.7'}))
    if wrong:
        sys.exit('pages and functions differ: %s' % ' '.join(wrong))
    wrong = sorted({function.name for function in headers.functions} ^ set(examples))
    if wrong:
        sys.exit('examples and functions differ: %s' % ' '.join(wrong))
    for name, path in pages.items():
        if name in functions:
            lines = page(headers, functions[name], examples)
        else:
            with open(overview_path, encoding='utf-8') as file:
                lines = overview(headers, file.read())
        with open(path, 'w', encoding='utf-8') as file:
            file.write('\n'.join(lines) + '\n')


if __name__ == '__main__':
    main()
