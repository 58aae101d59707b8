#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the comment of each function in the headers lists the codes that it returns, and no others: its own, and
those of its class of calls, which its beginning in api.c shows. The manual's pages have the same list.

A call returns the codes in the functions that it reaches, by name, in the sources.

  check_returns.py SOURCE_ROOT
"""
import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
sys.path.insert(0, str(ROOT / 'tools'))

from man_pages import Headers

PARTS = ('plugin/core', 'plugin/peer', 'plugin/rdma', 'plugin/gda', 'plugin/ep')
CODE = re.compile(r'\bnccl(?:UnhandledCudaError|SystemError|InternalError|InvalidArgument|InvalidUsage|RemoteError)\b')
TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.S)
FUNCTION = re.compile(r'^(?:[A-Za-z_][^\n;{}()]*?\b)?(\w+)\([^;{}]*?\)\s*\n\{\n(.*?)^\}', re.M | re.S)
MACRO = re.compile(r'^#define (\w+)\([^)]*\)((?:.*\\\n)*.*)', re.M)
DISCARDED = re.compile(r'\(void\)\s*\w+\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)')
# The beginning of a call, and failures of operations that it finds: what every call has.
COMMON = re.compile(r'(?:ep_)?(?:call_(?:begin(?!_masked)|check|claim|finds|poll|take)\w*|handle_expect\w*|record_\w+|show_\w+)')
# CUDA refuses something, or the library is wrong: any call may find that.
ANYWHERE = {'ncclUnhandledCudaError', 'ncclInternalError'}
# ncclEpMaskClean passes a pointer of its own to a check for NULL.
IMPOSSIBLE = {('ncclEpMaskClean', 'ncclInvalidArgument')}

# Functions by name, those of one file with its name before theirs; where each is; what members point to.
bodies, files, pointers, problems = {}, {}, {}, 0


def complain(text):
    global problems
    problems += 1
    print('wrong:', text)


def read_sources():
    for part in PARTS:
        for file in sorted((ROOT / part).rglob('*.[ch]')):
            text = TEXT.sub('', file.read_text(encoding='utf-8'))
            here = '%s:' % file.relative_to(ROOT)
            statics = set(re.findall(r'^(?:EP_PRINTF\([^)]*\)\n)?static [^\n;{}()]*?\b(\w+)\(', text, re.M))
            for name, body in FUNCTION.findall(text) + MACRO.findall(text):
                key = here + name if name in statics else name
                bodies[key] = bodies.get(key, '') + body
                files.setdefault(key, here)
            for member, name in re.findall(r'\.(\w+)\s*=\s*(\w+)\b', text):
                pointers.setdefault(member, set()).add(here + name if name in statics else name)


def reached(call, stop):
    """The functions that `call` uses; with `stop` without the common ones, and whether there are some."""
    seen, common, ahead = set(), False, [call]
    while ahead:
        name = ahead.pop()
        if name in seen or name not in bodies:
            continue
        if stop and COMMON.fullmatch(name.rpartition(':')[2]):
            common = True
            continue
        seen.add(name)
        body = DISCARDED.sub('', bodies[name]) if stop else bodies[name]
        here = files[name]
        ahead += [here + word if here + word in bodies else word for word in re.findall(r'\b\w+\b', body)]
        for member in re.findall(r'(?:->|\.)(\w+)\(', body):
            ahead += pointers.get(member, ())
    return seen, common


def codes_of(names):
    return {code for name in names for code in CODE.findall(DISCARDED.sub('', bodies[name]))}


def classes_of(call):
    """The classes of calls whose codes it returns, by how it begins."""
    body = bodies[call]
    if call in ('ncclEpCreateGroup', 'ncclEpExtCreateGroup', 'ncclEpExtJoinGroup'):
        return ['that use the GPU']
    begin = re.search(r'\b(?:ep_)?call_(begin_(\w+)|async_error)\((?:[^()]|\([^()]*\))*\)', body)
    if not begin:
        return []
    if begin[2] != 'end' and re.search(r',\s*false\b', begin[0]):
        return ['on a working group']
    return ['on a group'] + (['that use the GPU'] if begin[2] in ('group', 'handle', 'masked', 'end') else [])


def check(function):
    names, _ = reached(function.name, True)
    found = {code for code in codes_of(names) - ANYWHERE if (function.name, code) not in IMPOSSIBLE}
    for code in sorted(found - set(function.codes)):
        where = sorted(name for name in names if code in codes_of([name]))
        complain('%s lacks %s (%s)' % (function.name, code, ', '.join(where[:4])))
    for code in sorted(set(function.codes) - found):
        complain('%s has %s, which the call does not return' % (function.name, code))
    if function.classes != classes_of(function.name):
        complain('%s has the codes of calls %s, it begins as one of those %s' % (
            function.name, function.classes, classes_of(function.name)))


def check_captures(headers):
    """What the test of captures expects of a call is what its comment states."""
    text = (ROOT / 'test/proto/captures.c').read_text(encoding='utf-8')
    tried = re.findall(r'\{ "(ncclEp\w+)", "([\w ]+)",', text)
    stated = {function.name: function.labels['Capture'] for function in headers.functions}
    for call, state in tried:
        if not re.search(r'(?<!not )\b%s\b' % state, stated.get(call, ''), re.I):
            complain('captures.c: %s is %s, the header has "%s"' % (call, state, stated.get(call)))
    for call in sorted(set(stated) - {call for call, _ in tried}):
        complain('captures.c does not try %s' % call)


def main():
    read_sources()
    functions = re.findall(r'^ncclResult_t (ncclEp\w+)\(', (ROOT / 'plugin/ep/api.c').read_text(encoding='utf-8'), re.M)
    headers = Headers(ROOT)
    declared = [function.name for function in headers.functions]
    if sorted(functions) != sorted(declared) or len(functions) < 20:
        complain('api.c and the headers differ: %s' % sorted(set(functions) ^ set(declared)))
    listed = {code for kind in ('on a group', 'on a working group')
              for code, _ in headers.parts['Codes of calls ' + kind][0][1]}
    # What a call discards here is kept as the group's failure, and returned by the next one.
    names, _ = reached('ep_call_begin_handle', False)
    found = ANYWHERE.union(*(CODE.findall(bodies[name]) for name in names))
    if listed != found:
        complain('codes of calls on a group: %s' % sorted(listed ^ found))
    for function in headers.functions:
        check(function)
    check_captures(headers)
    print('%d calls, %d functions, %d problems' % (len(functions), len(bodies), problems))
    return problems != 0


sys.exit(main())
