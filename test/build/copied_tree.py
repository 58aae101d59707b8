#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tree that is copied with its build directory compiles its own headers, not those of the tree it came from.

copied_tree.py ROOT BUILD TARGET HEADER
TARGET is a kernel's object, HEADER one of those that it includes: an error in the copy's one must show.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT, BUILD, TARGET, HEADER = sys.argv[1:5]
MARK = 'this is the header of the copy'


def main():
    command = subprocess.run(['ninja', '-C', BUILD, '-t', 'commands', TARGET], check=True, capture_output=True,
                             text=True).stdout.strip().splitlines()[-1]
    with tempfile.TemporaryDirectory() as work:
        # as far from the copy's root as the build directory is from the root
        build = os.path.join(work, *'1234567')
        root = os.path.normpath(os.path.join(build, os.path.relpath(ROOT, BUILD)))
        for part in ('device', 'include', 'plugin'):
            shutil.copytree(os.path.join(ROOT, part), os.path.join(root, part))
        os.makedirs(os.path.join(build, os.path.dirname(TARGET)))
        with open(os.path.join(root, HEADER), 'a', encoding='utf-8') as file:
            file.write('#error %s\n' % MARK)
        done = subprocess.run(command, shell=True, cwd=build, capture_output=True, text=True, check=False)
    if done.returncode == 0 or MARK not in done.stderr:
        sys.exit('%s compiles other headers than its own:\n%s\n%s' % (TARGET, command, done.stderr))
    with open(os.path.join(BUILD, 'build.ninja'), encoding='utf-8') as file:
        others = re.findall(r'--version-script=/\S*', file.read())
    if others:
        sys.exit('link commands read maps of one tree, wherever they run: %s' % ' '.join(others))


main()
