#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the sources promise about themselves: licence lines, sizes, who includes whom.

  check_tree.py SOURCE_ROOT
"""

import re
import subprocess
import sys
from pathlib import Path

# What each part of the product may include, besides itself and the public headers.
MAY_INCLUDE = {
    "include": set(),
    "device": set(),
    "topo": set(),
    "plugin/core": {"device"},
    "plugin/rdma": {"plugin/core", "topo"},
    "plugin/gda": {"plugin/core", "plugin/rdma", "topo", "device"},
    "plugin/ep": {"plugin/core", "plugin/gda", "topo", "device"},
    "plugin/net": {"plugin/core", "plugin/rdma", "topo"},
    "tools": {"plugin/core", "plugin/rdma", "plugin/gda", "topo", "device"},
}
SEARCH = ["", "include", "plugin"]
MAX_LINES = 800
BANNED = re.compile(r"\bcuMulticast\w+\s*\(|\bmultimem\.")

problems = []


def complain(path, text):
    problems.append(path)
    print("wrong: %s: %s" % (path, text))


def part_of(path):
    return next((p for p in MAY_INCLUDE if path.startswith(p + "/")), None)


def resolve(root, path, name):
    """The file that a quoted include means, relative to the root; None for a foreign one."""
    for base in [Path(path).parent, *SEARCH]:
        found = (root / base / name).resolve()
        if found.is_file() and root in found.parents:
            return str(found.relative_to(root))
    return None


def check_includes(root, path, text):
    part = part_of(path)
    if part is None:
        return
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
        found = resolve(root, path, name)
        if found is None:
            complain(path, 'includes "%s", which is not in the product' % name)
        elif part_of(found) not in {part, "include"} | MAY_INCLUDE[part]:
            complain(path, "includes %s, which %s must not know" % (found, part))


def check_file(root, path):
    file = root / path
    if not file.is_file() or file.is_symlink():
        return
    source = file.suffix in (".c", ".h", ".cu", ".S", ".py", ".sh") or file.name == "meson.build"
    script = not file.suffix and file.read_bytes()[:2] == b"#!"
    if not source and not script:
        return
    text = file.read_text(encoding="utf-8")
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.split("\n")[:3]):
        complain(path, "has no SPDX line on top")
    if file.suffix in (".c", ".h", ".cu"):
        lines = text.count("\n")
        if lines > MAX_LINES:
            complain(path, "has %d lines, the limit is %d" % (lines, MAX_LINES))
        if BANNED.search(text):
            complain(path, "uses NVLink multicast")
        check_includes(root, path, text)


def main():
    root = Path(sys.argv[1]).resolve()
    listing = subprocess.run(["git", "-C", str(root), "ls-files"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, check=False)
    paths = listing.stdout.splitlines()
    if listing.returncode != 0 or not paths:
        print("skipped: not a git checkout, so there is no list of its files")
        return 77
    for path in paths:
        check_file(root, path)
    print("%d files, %d problems" % (len(paths), len(problems)))
    return 1 if problems else 0


sys.exit(main())
