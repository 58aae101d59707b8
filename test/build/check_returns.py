#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether RETURN VALUE of each manual page has the codes that its call returns, and no others, which the headers'
comments do not have either.

A call returns the codes in the functions that it reaches, by name, in the sources. The common errors of calls on a
group or a handle, and of CUDA, are in nccl_ep(7), "Errors"; pages of calls that return them refer to it.

  check_returns.py SOURCE_ROOT
"""
import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
PARTS = ('plugin/core', 'plugin/peer', 'plugin/rdma', 'plugin/gda', 'plugin/ep')
CODE = re.compile(r'\bnccl(?:UnhandledCudaError|SystemError|InternalError|InvalidArgument|InvalidUsage|RemoteError)\b')
TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.S)
FUNCTION = re.compile(r'^(?:[A-Za-z_][^\n;{}()]*?\b)?(\w+)\([^;{}]*?\)\s*\n\{\n(.*?)^\}', re.M | re.S)
MACRO = re.compile(r'^#define (\w+)\([^)]*\)((?:.*\\\n)*.*)', re.M)
DISCARDED = re.compile(r'\(void\)\s*\w+\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)')
# The beginning of a call, and failures of operations that it finds: what every call has.
COMMON = re.compile(r'ep_call_(?:begin(?!_masked)|check|claim|finds|poll|take)\w*|ep_handle_expect\w*|ep_record_\w+|ep_show_\w+')
# CUDA refuses something, or the library is wrong: any call may find that.
ANYWHERE = {'ncclUnhandledCudaError', 'ncclInternalError'}

bodies, pointers, problems = {}, {}, 0


def complain(text):
    global problems
    problems += 1
    print('wrong:', text)


def read_sources():
    for part in PARTS:
        for file in sorted((ROOT / part).rglob('*.[ch]')):
            text = TEXT.sub('', file.read_text(encoding='utf-8'))
            for name, body in FUNCTION.findall(text) + MACRO.findall(text):
                bodies[name] = bodies.get(name, '') + body
            for member, name in re.findall(r'\.(\w+)\s*=\s*(ep_\w+)\b', text):
                pointers.setdefault(member, set()).add(name)


def reached(call, stop):
    """The functions that `call` uses; with `stop` without the common ones, and whether there are some."""
    seen, common, ahead = set(), False, [call]
    while ahead:
        name = ahead.pop()
        if name in seen or name not in bodies:
            continue
        if stop and COMMON.fullmatch(name):
            common = True
            continue
        seen.add(name)
        body = DISCARDED.sub('', bodies[name]) if stop else bodies[name]
        ahead += re.findall(r'\b\w+\b', body)
        for member in re.findall(r'(?:->|\.)(\w+)\(', body):
            ahead += pointers.get(member, ())
    return seen, common


def codes_of(names):
    return {code for name in names for code in CODE.findall(DISCARDED.sub('', bodies[name]))}


def section(path, head):
    """The codes that a section has in bold, and its text."""
    text = path.read_text(encoding='utf-8') if path.is_file() else ''
    found = re.search(r'^\.S[HS] %s\n(.*?)(?=^\.S[HS] |\Z)' % head, text, re.M | re.S)
    if not found:
        complain('%s has no %s' % (path.name, head))
    text = found[1] if found else ''
    return {code for line in re.findall(r'^\.TP\n(\.B.*)', text, re.M) for code in CODE.findall(line)}, text


def check(call, common):
    codes, text = section(ROOT / 'doc/man' / (call + '.3'), 'RETURN VALUE')
    names, begun = reached(call, True)
    found = codes_of(names)
    own, refers = found - ANYWHERE, re.search(r'^\.BR nccl_ep \(7\)', text, re.M)
    for code in sorted(own - codes):
        where = sorted(name for name in names if code in codes_of([name]))
        complain('%s.3 lacks %s (%s)' % (call, code, ', '.join(where[:4])))
    for code in sorted(codes - found - (common if begun else set())):
        complain('%s.3 has %s, which the call does not return' % (call, code))
    if bool(begun or found & ANYWHERE) != bool(refers):
        complain('%s.3 %s nccl_ep(7) for the errors of every call' % (call, 'refers to' if refers else 'does not refer to'))


def check_headers(common):
    """A comment in a header has no code that the call does not return. (Its conventions have the common ones.)"""
    seen = 0
    for header in ('nccl_ep.h', 'nccl_ep/ext.h'):
        text = (ROOT / 'include' / header).read_text(encoding='utf-8')
        for comment, call in re.findall(r'(/\*(?:(?!\*/).)*\*/)\nncclResult_t (ncclEp\w+)\(', text, re.S):
            names, begun = reached(call, True)
            stated = set(CODE.findall(comment))
            seen += len(stated)
            for code in sorted(stated - codes_of(names) - (common if begun else set())):
                complain('%s: %s has %s, which it does not return' % (header, call, code))
    if seen < 20:
        complain('the headers have %d codes of calls' % seen)


def main():
    read_sources()
    functions = re.findall(r'^ncclResult_t (ncclEp\w+)\(', (ROOT / 'plugin/ep/api.c').read_text(encoding='utf-8'), re.M)
    declared = [name for header in ('nccl_ep.h', 'nccl_ep/ext.h') for name in re.findall(
        r'^ncclResult_t (ncclEp\w+)\(', (ROOT / 'include' / header).read_text(encoding='utf-8'), re.M)]
    if sorted(functions) != sorted(declared) or len(functions) < 20:
        complain('api.c and the headers differ: %s' % sorted(set(functions) ^ set(declared)))
    common, _ = section(ROOT / 'doc/man/nccl_ep.7', 'Errors')
    # What a call discards here is kept as the group's failure, and returned by the next one.
    names, _ = reached('ep_call_begin_handle', False)
    found = ANYWHERE.union(*(CODE.findall(bodies[name]) for name in names))
    if common != found:
        complain('nccl_ep.7, Errors: %s' % sorted(common ^ found))
    for call in functions:
        check(call, common)
    check_headers(common)
    print('%d calls, %d functions, %d problems' % (len(functions), len(bodies), problems))
    return problems != 0


sys.exit(main())
