#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_circles.py finds a circle, and nothing where it is cut.

wrong_circles.py COMPILER
"""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile

import check_circles

CALLS = {'a': 'b', 'b': 'c', 'c': 'a', 'd': 'a', 'e': None}


def run(work):
    out = io.StringIO()
    sys.argv = ['check_circles.py', work, work, '5']
    with contextlib.redirect_stdout(out):
        try:
            check_circles.main()
        except SystemExit as end:
            return end.code, out.getvalue()
    return None, out.getvalue()


def build(work, calls):
    commands = []
    os.makedirs(os.path.join(work, 'plugin'), exist_ok=True)
    for name, other in calls.items():
        source, output = 'plugin/%s.c' % name, 'plugin/%s.o' % name
        with open(os.path.join(work, source), 'w') as file:
            file.write('void %s(void);\nvoid %s_do(void);\n' % ('%s_do' % other, name) if other else '')
            file.write('void %s_do(void) { %s }\n' % (name, '%s_do();' % other if other else ''))
        subprocess.run([*sys.argv[1].split(), '-c', source, '-o', output], cwd=work, check=True)
        commands.append({'directory': work, 'file': source, 'output': output})
    with open(os.path.join(work, 'compile_commands.json'), 'w') as file:
        json.dump(commands, file)


def main():
    failures = 0
    with tempfile.TemporaryDirectory() as work:
        compiler = sys.argv[1]
        for calls, wrong, text in [(CALLS, True, 'plugin/c.c -> plugin/a.c: a_do'),
                                   (dict(CALLS, c=None), False, '5 files, 0 circles'),
                                   (dict(CALLS, d='e', e='d'), True, 'circle: plugin/d.c plugin/e.c')]:
            sys.argv = ['', compiler]
            build(work, calls)
            code, out = run(work)
            if bool(code) != wrong or text not in out:
                failures += 1
                print('FAILED: %s: %s, %s' % (calls, code, out))
    sys.exit(failures > 0)


main()
