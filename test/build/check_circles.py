#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files of the product whose functions call one another in a circle.

check_circles.py BUILD_DIR SOURCE_ROOT [LEAST]
    LEAST   how many files must have objects [100]

Reads the symbols of the objects that compile_commands.json lists for plugin/, topo/ and tools/. A file depends on
another one that defines a symbol which it uses. Fails on each circle.
"""
import collections
import json
import os
import subprocess
import sys

ROOMS = ('plugin/', 'topo/', 'tools/')


def objects(build, root):
    """Source file, relative to the root, and its objects."""
    found = collections.defaultdict(list)
    with open(os.path.join(build, 'compile_commands.json')) as file:
        commands = json.load(file)
    for c in commands:
        source = os.path.relpath(os.path.join(c['directory'], c['file']), root)
        output = os.path.join(c['directory'], c['output'])
        if source.startswith(ROOMS) and os.path.exists(output):
            found[source].append(output)
    return found


def symbols(paths):
    """By object, what it defines for others, and what it uses of others."""
    table = {path: (set(), set()) for path in paths}
    for line in subprocess.check_output(['nm', '-A', *paths], text=True).splitlines():
        path, _, rest = line.rpartition(':')
        kind, name = rest.split()[-2:]
        if kind == 'U':
            table[path][1].add(name)
        elif kind.isupper() and kind != 'W':
            table[path][0].add(name)
    return table


def graph(found):
    """By file, the files that it depends on, and by which symbols. Copies of one symbol belong to programs of their own."""
    table = {}
    of = symbols([path for paths in found.values() for path in paths])
    for source, paths in found.items():
        defined = set().union(*(of[path][0] for path in paths))
        table[source] = defined, set().union(*(of[path][1] for path in paths)) - defined
    homes = collections.defaultdict(set)
    for source, (defined, _) in table.items():
        for name in defined:
            homes[name].add(source)
    edges = collections.defaultdict(lambda: collections.defaultdict(set))
    for source, (_, used) in table.items():
        for name in used:
            if len(homes[name]) == 1:
                edges[source][next(iter(homes[name]))].add(name)
    return edges


def circles(edges):
    """Strongly connected components of two files and more (Tarjan)."""
    index, low, stack, out = {}, {}, [], []

    def visit(at):
        index[at] = low[at] = len(index)
        stack.append(at)
        for to in edges[at] if at in edges else ():
            if to not in index:
                visit(to)
                low[at] = min(low[at], low[to])
            elif to in stack:
                low[at] = min(low[at], index[to])
        if low[at] == index[at]:
            part = set()
            while at not in part:
                part.add(stack.pop())
            if len(part) > 1:
                out.append(part)

    for at in list(edges):
        if at not in index:
            visit(at)
    return out


def main():
    build, root = sys.argv[1:3]
    found = objects(build, root)
    if len(found) < int(sys.argv[3] if len(sys.argv) > 3 else 100):
        sys.exit('only %d files have objects in %s' % (len(found), build))
    sys.setrecursionlimit(10000)
    edges = graph(found)
    seen = sorted(circles(edges), key=sorted)
    for part in seen:
        print('circle: %s' % ' '.join(sorted(part)))
        for at in sorted(part):
            for to in sorted(set(edges[at]) & part):
                print('  %s -> %s: %s' % (at, to, ' '.join(sorted(edges[at][to])[:4])))
    print('%d files, %d circles' % (len(found), len(seen)))
    sys.exit(len(seen) > 0)


if __name__ == '__main__':
    main()
