#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the sources promise about themselves: licence lines, who includes whom, that files and
names which comments and pages mention exist, links lead somewhere, comments know their parameters, and no file
is a binary. How files and functions are cut is for readers to judge (CONTRIBUTING.md).

  check_tree.py SOURCE_ROOT
  check_tree.py --list SOURCE_ROOT    only prints the tree's files, one per line
"""

import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

from check_circles import circles

DEVICE = ["device", "device/simt", "device/mlx5", "device/group", "device/ll", "device/ht"]
EP_STANDS_ON = ["plugin/core", "plugin/peer", "plugin/rdma", "plugin/gda", "topo", *DEVICE]
NET_STANDS_ON = ["plugin/core", "plugin/rdma", "topo"]
# What each part of the product may include, besides itself and the public headers. A file belongs
# to the longest entry above it; naming a part does not name the parts below it.
MAY_INCLUDE = {
    "include": [],
    "device": DEVICE,
    "device/simt": [],
    "device/mlx5": ["device/simt"],
    "device/group": ["device", "device/simt", "device/mlx5"],
    "device/ll": ["device", "device/simt", "device/mlx5", "device/group"],
    "device/ht": ["device", "device/simt", "device/mlx5", "device/group"],
    "topo": [],
    "plugin/core": [],
    "plugin/peer": ["plugin/core"],
    "plugin/rdma": ["plugin/core", "topo"],
    "plugin/gda": ["plugin/core", "plugin/rdma", "topo", *DEVICE],
    "plugin/ep": ["plugin/ep/ll", "plugin/ep/ht", *EP_STANDS_ON],
    "plugin/ep/ll": ["plugin/ep", *EP_STANDS_ON],
    "plugin/ep/ht": ["plugin/ep", *EP_STANDS_ON],
    "plugin/net": NET_STANDS_ON,
    "tools": ["plugin/core", "plugin/rdma", "plugin/gda", "plugin/net", "topo", *DEVICE],
    "tools/completions": ["tools", "tools/perf"],
    "tools/perf": ["tools", "tools/perf/oracle", "device/simt", "topo"],
    "tools/perf/oracle": [],  # it judges the library, and shares no line with it
}
SEARCH = ["", "include", "plugin"]
PRODUCT = ("device/", "include/", "nccl-tests-patch/", "plugin/", "tools/", "topo/")
# Multicast objects are NCCL's alone; the instructions are primitives, which few may use (grep ep_multimem).
BANNED = re.compile(r"\bcuMulticast\w+\s*\(|\bmultimem\.")
BANNED_PRIMITIVES = re.compile(r"\bcuMulticast\w+\s*\(")
PRIMITIVES = "device/simt/simt_cuda.h"
# Instructions are primitives, which the CPU has to have, too.
ASSEMBLY = re.compile(r"\b(?:asm|__asm__)\b\s*(?:volatile\b\s*)?\(")
# Files of others that comments may name.
FOREIGN = {"cuda.h", "nccl.h", "mlx5.h", "mlx5dv.h", "mlx5_ifc.h", "ib_mlx5_ifc.h", "sitecustomize.py"}

# Columns of a line, and in pages words of a sentence. Texts in code stay whole: who looks for one finds it.
# In pages code, tables, headings and links may have longer lines.
MAX_COLUMNS, MAX_WORDS = 100, 30
# A comment and the declarations behind it, up to a blank line or a function's end; what the comment takes
# for a pointer: `name->` and `*name`. Of API calls all know the structs.
COMMENTED = re.compile(r"^(/\*(?:(?!\*/).)*\*/)\n((?:template <[^>]*>\s*)?[A-Za-z_][^;{}()]*\b(\w+)\((?:(?!^\}|\n\n(?!\t)).)*)", re.M | re.S)
POINTED = re.compile(r"(?<![\w>.])([a-z_]\w*)->\w|(?<![\w/*`])\*([a-z_]\w*)\b")
API_POINTERS = {"inputs", "outputs"}
# Names of ours that pages write as code, and pages that may name what is gone.
OUR_NAME = re.compile(r"\b(?:ep_\w+|EP_\w+|NCCL_EP_\w+|ncclEp\w+)\b")
MAY_NAME_THE_PAST = {"CHANGELOG.md"}

COMMENT = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|(/\*.*?\*/|//[^\n]*)", re.S)
# Places that pages name.
FOLDER = re.compile(r"(?<![\w./<$-])((?:device|doc|examples|include|plugin|test|tools|topo)(?:/[\w-]+)*)/?(?![\w.*/<-])")
NAME = re.compile(r"(?<![\w./<$-])([\w*/.-]*[\w*]\.(?:cu|c|h|py|sh|md))(?![\w/*]|\.\w)")

problems = []


def complain(path, text):
    problems.append(path)
    print("wrong: %s: %s" % (path, text))


# ---- which files ----

def git_files(root):
    try:
        listing = subprocess.run(["git", "-C", str(root), "ls-files", "--cached", "--others",
                                  "--exclude-standard"], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True, check=False)
    except OSError:
        return []
    paths = listing.stdout.splitlines() if listing.returncode == 0 else []
    return [p for p in paths if (root / p).is_file()]


def walked_files(root):
    """The same without git, by the top .gitignore: enough of its grammar for what stands there."""
    ignore = root / ".gitignore"
    patterns = ignore.read_text(encoding="utf-8").split() if ignore.is_file() else []

    def ignored(path, is_dir):
        for pattern in patterns:
            if pattern.endswith("/") and not is_dir:
                continue
            name = path if pattern.startswith("/") else path.rpartition("/")[2]
            if fnmatch.fnmatch(name, pattern.strip("/")):
                return True
        return path == ".git"

    found = []
    for here, dirs, files in os.walk(root):
        base = os.path.relpath(here, root)
        base = "" if base == "." else base + "/"
        dirs[:] = sorted(d for d in dirs if not ignored(base + d, True))
        found += [base + f for f in sorted(files) if not ignored(base + f, False)]
    return found


# ---- what is checked of each ----

def part_of(path):
    parts = [p for p in MAY_INCLUDE if path.startswith(p + "/")]
    return max(parts, key=len, default=None)


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
        elif part_of(found) not in [part, "include", *MAY_INCLUDE[part]]:
            complain(path, "includes %s, which %s must not know" % (found, part))


def node_of(path):
    """A source and the header of its name are one place."""
    return path.rpartition(".")[0]


def check_include_circles(root, paths):
    """Includes of the product show who depends on whom: they lead back nowhere."""
    edges = {}
    for path in paths:
        if path.startswith(PRODUCT) and path.endswith((".c", ".h", ".cu")):
            names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', (root / path).read_text(encoding="utf-8"), re.M)
            found = {node_of(to) for to in (resolve(root, path, name) for name in names) if to}
            edges.setdefault(node_of(path), set()).update(found - {node_of(path)})
    for part in circles(edges):
        complain(min(part), "is in a circle of includes: %s" % ", ".join(
            "%s -> %s" % (at, to) for at in sorted(part) for to in sorted(edges[at] & part)))


def check_pointers(path, text):
    """A comment above a function knows the names of its parameters, or of what the function uses."""
    for found in COMMENTED.finditer(text):
        for name in {one or other for one, other in POINTED.findall(re.sub(r"\n \*", "\n", found[1]))} - API_POINTERS:
            if not re.search(r"\b%s\b" % name, found[2]):
                complain(path, "has a comment at line %d about %s, which %s has not" % (
                    text.count("\n", 0, found.start()) + 1, name, found[3]))


def prose_of(file, text):
    if file.suffix in (".c", ".h", ".cu"):
        return "\n".join(m[1] for m in COMMENT.finditer(text) if m[1])
    if file.suffix == ".md":
        return "\n".join(re.findall(r"`([^`\n]+)`", text))
    return "\n".join(re.findall(r"(?:^|\s)#.*", text))


def check_folders(root, path, prose):
    """A page that names a place below the tree's folders names one that is there, or a program built there."""
    for name in sorted({name for name in FOLDER.findall(prose) if "/" in name}):
        if not (root / name).exists():
            complain(path, "names the folder %s, which does not exist" % name)


def check_names(path, prose, paths):
    for name in sorted(set(NAME.findall(prose))):
        pattern = "*/" + name.lstrip("./")
        if name.rpartition("/")[2] not in FOREIGN and not any(fnmatch.fnmatch("/" + p, pattern) for p in paths):
            complain(path, "names %s, which does not exist" % name)


def prose_units(text):
    """(line, words of one statement's place): a paragraph, an item of a list, a cell of a table."""
    units, unit, fenced = [], [], False
    for i, line in enumerate(text.split("\n") + [""]):
        bullet = re.match(r"\s*(?:[*-]|\d+\.)\s+", line)
        if line.startswith("```"):
            fenced = not fenced
        code = fenced or line.startswith("```") or (line.startswith("    ") and not unit)
        if code or bullet or not line.strip() or line[0] in "|#<":
            units += [(unit[0][0], " ".join(text for _, text in unit))] if unit else []
            unit = []
        if line.startswith("|"):
            units += [(i + 1, cell.strip()) for cell in line.strip("|").split("|")]
        elif not code and line.strip() and line[0] not in "#<":
            unit.append((i + 1, line[bullet.end():] if bullet else line.strip()))
    return units


def sentences(text):
    text = re.sub(r"`[^`]*`", "`code`", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "")
    return [s for s in re.split(r"(?<=[.!?])[\"')]*\s+(?=[^a-z]|$)", text) if s]


def check_page(path, text):
    fenced = False
    for i, line in enumerate(text.split("\n")):
        fenced ^= line.startswith("```")
        free = fenced or line.startswith(("|", "#", "    ")) or "](" in line or "://" in line
        if len(line) > MAX_COLUMNS and not free:
            complain(path, "has %d columns in line %d, the limit is %d" % (len(line), i + 1, MAX_COLUMNS))
        if "\t" in line or line != line.rstrip():
            complain(path, "has a tab or a trailing blank in line %d" % (i + 1))
    for i, unit in prose_units(text):
        for sentence in sentences(unit):
            words = len(re.findall(r"\S*\w\S*", sentence))
            if words > MAX_WORDS:
                complain(path, "has a sentence of %d words at line %d, the limit is %d: %.40s..." % (
                    words, i, MAX_WORDS, sentence))


def anchors(text):
    """The headings of a page, as links name them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def check_links(root, pages):
    """Links lead to files of the tree, and to headings that the page has."""
    for path, text in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
            name, _, anchor = target.partition("#")
            file = (root / path).parent / name if name else root / path
            if "://" in target:
                continue
            if not file.exists():
                complain(path, "links to %s, which does not exist" % target)
            elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
                complain(path, "links to %s, a heading that is not there" % target)


def check_our_names(root, pages, paths):
    """What a page writes as code and calls ours stands in a source, too."""
    known = {"ep_bench"}  # NVIDIA's
    for path in paths:
        file = root / path
        if file.suffix != ".md" and not file.is_symlink():
            known.update(OUR_NAME.findall(path + " " + file.read_bytes().decode("utf-8", "replace")))
    for path, text in pages:
        spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
        for name in sorted({name for span in spans for name in OUR_NAME.findall(span)} - known):
            complain(path, "names %s, which no source has" % name)


def check_version(root):
    """The project's version stands in two places, that of the API in two (CONTRIBUTING.md)."""
    for path, pattern, there in (
            ("CHANGELOG.md", r"^## ([\d.]+)$", r"^  version: '([\d.]+)',$"),
            ("include/nccl_ep.h", r"^#define NCCL_EP_(?:MAJOR|MINOR|PATCH) (\d+)$", r"^api_version = '([\d.]+)'$")):
        if not (root / path).is_file():
            continue
        numbers = re.findall(pattern, (root / path).read_text(encoding="utf-8"), re.M)
        found = numbers[0] if path == "CHANGELOG.md" and numbers else ".".join(numbers)
        expected = "".join(re.findall(there, (root / "meson.build").read_text(encoding="utf-8"), re.M))
        if found != expected:
            complain(path, "has the version '%s', meson.build '%s'" % (found, expected))


def is_binary(content):
    if b"\0" in content:
        return True
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def check_optional(path, text):
    """A header that a file asks for may be missing: nothing includes it before."""
    for name in re.findall(r"__has_include\((<[^>]+>)\)", text):
        if "#include " + name in text.partition("__has_include(%s)" % name)[0]:
            complain(path, "includes %s before it asks whether it is there" % name)


def check_columns(path, text):
    for i, line in enumerate(text.split("\n")):
        columns = len(line.expandtabs(8))
        free = '"' in line and not line.lstrip().startswith(("*", "/*"))
        if columns > MAX_COLUMNS and not free:
            complain(path, "has %d columns in line %d, the limit is %d" % (columns, i + 1, MAX_COLUMNS))


def check_file(root, path, paths):
    file = root / path
    if file.is_symlink():
        return
    if is_binary(file.read_bytes()):
        complain(path, "is a binary file")
        return
    code = file.suffix in (".c", ".h", ".cu")
    source = code or file.suffix in (".S", ".py", ".sh") or file.name == "meson.build"
    script = not file.suffix and file.read_bytes()[:2] == b"#!"
    if not source and not script and file.suffix != ".md":
        return
    text = file.read_text(encoding="utf-8")
    check_names(path, prose_of(file, text), paths)
    if file.suffix == ".md":
        check_folders(root, path, prose_of(file, text))
        check_page(path, text)
        return
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.split("\n")[:3]):
        complain(path, "has no SPDX line on top")
    if code:
        if (BANNED_PRIMITIVES if str(path) == PRIMITIVES else BANNED).search(text):
            complain(path, "uses NVLink multicast")
        if path.startswith("device/") and part_of(path) != "device/simt" and ASSEMBLY.search(text):
            complain(path, "has instructions of its own, which belong into device/simt")
        check_optional(path, text)
        check_columns(path, text)
        check_pointers(path, text)
        check_includes(root, path, text)


def main():
    root = Path(sys.argv[-1]).resolve()
    paths = git_files(root) or walked_files(root)
    if sys.argv[1] == "--list":
        print("\n".join(paths))
        return 0
    for path in paths:
        check_file(root, path, paths)
    pages = [(p, (root / p).read_text(encoding="utf-8")) for p in paths
             if p.endswith(".md") and p not in MAY_NAME_THE_PAST]
    check_our_names(root, pages, paths)
    check_links(root, pages)
    check_version(root)
    check_include_circles(root, paths)
    print("%d files, %d problems" % (len(paths), len(problems)))
    return 1 if problems else 0


sys.exit(main())
