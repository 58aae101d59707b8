#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the sources promise about themselves: licence lines, sizes, who includes whom, that
base names of the product are unique, that files and names which comments and pages mention exist,
that pages are plain, and that no file is a binary.

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
NET_SHARED = ["plugin/net/abi", "plugin/net/base", *NET_STANDS_ON]
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
    "plugin/net": [],  # its folders have it all
    "plugin/net/abi": [],
    "plugin/net/base": ["plugin/net/abi", *NET_STANDS_ON],
    "plugin/net/link": ["plugin/net/base", *NET_STANDS_ON],
    "plugin/net/p2p": ["plugin/net/link", *NET_SHARED],
    "plugin/net/mesh": ["plugin/net/link", *NET_SHARED],
    "plugin/net/coll": ["plugin/net/p2p", "plugin/net/mesh", "plugin/net/link", *NET_SHARED],
    "plugin/net/tables": ["plugin/net/coll", "plugin/net/p2p", "plugin/net/mesh", *NET_SHARED],
    "tools": ["plugin/core", "plugin/rdma", "plugin/gda", "plugin/net/p2p", "topo", *DEVICE],
    "tools/completions": ["tools", "tools/perf"],
    "tools/perf": ["tools/perf/oracle", "device/simt"],
    "tools/perf/oracle": [],  # it judges the library, and shares no line with it
}
SEARCH = ["", "include", "plugin"]
# Directories of the product: a base name, which stack traces and grep show, stands there once.
PRODUCT = ("device/", "include/", "nccl-tests-patch/", "plugin/", "tools/", "topo/")
MAY_REPEAT = {"meson.build", "README.md"}
WARN_LINES, MAX_LINES = 400, 600  # in the product, but for the public headers
MAX_TEST_LINES = 800
MAX_FUNCTION = 60  # lines, in the product
MAX_TEST_FUNCTION = 120  # in test/, where a function may be a table in the form of code
MAX_PARAMETERS = 7  # in the product
# Functions whose parameters others have set, by folder: NCCL's tables of a plugin, nccl-tests' of a benchmark.
FOREIGN_SIGNATURES = {
    "plugin/net/tables/": re.compile(r"ep_(?:coll_(?:reduce|gather|scatter)(?:_v8)?|rma_reg_dmabuf|gin_reg_dmabuf"
                                     r"|gin_connect_v12|net_irecv_v10)$"),
    "nccl-tests-patch/": re.compile(r"Ep(?:GetCollByteCount|DispatchRunColl|CombineRunColl)$"),
}
# Multicast objects are NCCL's alone; the instructions are primitives, which few may use (grep ep_multimem).
BANNED = re.compile(r"\bcuMulticast\w+\s*\(|\bmultimem\.")
BANNED_PRIMITIVES = re.compile(r"\bcuMulticast\w+\s*\(")
PRIMITIVES = "device/simt/simt_cuda.h"
# Instructions are primitives, which the CPU has to have, too.
ASSEMBLY = re.compile(r"\b(?:asm|__asm__)\b\s*(?:volatile\b\s*)?\(")
# Parts of identifiers of the product that were words of our own, and what they are now. A word of the field,
# or one that this project has for the same thing already, is better than a new one.
PRIVATE = {
    "attend": "async", "attendant": "async", "came": "received", "creditor": "credit_warp", "desk": "return_ring",
    "errand": "timed_call", "far": "remote", "greet": "handshake", "greeting": "handshake", "guest": "pending",
    "hear": "receive, wait, check", "heard": "received", "hello": "handshake", "look": "check, poll, read",
    "looked": "checked", "looks": "checks", "meet": "bootstrap, barrier", "meeting": "bootstrap",
    "mover": "copy_warp", "parted": "excluded", "presence": "arrival", "said": "posted, published, logged",
    "say": "post, publish, log", "saying": "sending", "slab": "queue_memory", "stranger": "rejected",
    "talk": "ctrl, lists", "tell": "post, notify, report", "tells": "reports", "told": "acked, notified, logged",
    "visitor": "joining", "way": "mapping, path",
}
PRIVATE.update({word + "s": instead for word, instead in list(PRIVATE.items())})
IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*")
# Parameters of one letter that are a struct: g the group, c the connection or what kernels have in common,
# a the arguments, or the first of two of a kind, of which b is the second.
LETTERS = "gca"
FUNCTION = re.compile(r"^[A-Za-z_][\w \t\n*&<>,:]*?\b(\w+)\(", re.M)
BODY = re.compile(r"\s*\{")
PARAMETERS = re.compile(r"\(([^(){};]*)\)")
STRUCT_PARAMETER = re.compile(r"\s*(?:const\s+)?(?:struct|union)\s+(\w+)(?:\s|[*&]|const\b)*\b([a-z])\s*(?:\[.*)?$", re.S)
# Files of others that comments may name.
FOREIGN = {"cuda.h", "nccl.h", "mlx5.h", "mlx5dv.h", "mlx5_ifc.h", "ib_mlx5_ifc.h", "sitecustomize.py"}

# Pages: columns of a line, words of a sentence, and turns that are hard to read. Code, tables, headings and
# links may have longer lines. Data are sent, stored, printed or reported; they are not told, and not heard.
MAX_COLUMNS, MAX_WORDS = 100, 30
RIDDLES = re.compile(r"^(?:What|Who|Whoever|Whom)\b.*[^?]$|\b(?:all the same|is none|are none|such as are|be that as"
                     r"|hardly do but|manieth|by itself says|tells?|told|hears?|heard)\b", re.S)
# The same in comments of the product, and in its messages.
DARK = re.compile(r"\b(?:tells?|told|hears?|heard|manieth|hardly do but)\b")
# In comments data are posted, published, printed or reported, and a text states, names or has something.
SPOKEN = re.compile(r"\b(?:says?|said|speaks?|spoke)\b")
DARK_BEGINNING = re.compile(r"/\*[\s*]*(What|Who|Whoever|Whom)\b")
# A comment and the declarations behind it, up to a blank line or a function's end; what the comment takes
# for a pointer: `name->` and `*name`. Of API calls all know the structs.
COMMENTED = re.compile(r"^(/\*(?:(?!\*/).)*\*/)\n((?:template <[^>]*>\s*)?[A-Za-z_][^;{}()]*\b(\w+)\((?:(?!^\}|\n\n(?!\t)).)*)", re.M | re.S)
POINTED = re.compile(r"(?<![\w>.])([a-z_]\w*)->\w|(?<![\w/*`])\*([a-z_]\w*)\b")
API_POINTERS = {"inputs", "outputs"}
# Names of ours that pages write as code, and pages that may name what is gone.
OUR_NAME = re.compile(r"\b(?:ep_\w+|EP_\w+|NCCL_EP_\w+|ncclEp\w+)\b")
MAY_NAME_THE_PAST = {"CHANGELOG.md"}

COMMENT = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|(/\*.*?\*/|//[^\n]*)", re.S)
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


def check_functions(path, text):
    """Formatted C: braces of a function stand in the first column, of all else they do not."""
    lines = text.split("\n")
    most = MAX_TEST_FUNCTION if path.startswith("test/") else MAX_FUNCTION
    first = opened = None
    for i, line in enumerate(lines):
        if line == "{":
            opened = i
            first = next((j + 1 for j in range(i - 1, -1, -1)
                          if not lines[j] or lines[j][-1] in ";}/"), 0)
        elif line == "}" and opened is not None:
            if i - first + 1 > most:
                complain(path, "has a function of %d lines at line %d, the limit is %d" % (
                    i - first + 1, first + 1, most))
            opened = None


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


def parameters_of(code, at):
    """How many parameters the list has whose parenthesis opens at `at`, and where it ends."""
    depth, commas = 0, 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{<") - (code[i] in ")]}>")
        commas += code[i] == "," and depth == 1
        if depth == 0:
            return commas + 1, i + 1
    return 0, len(code)


def check_function_parameters(path, text):
    """Formatted C: the head of a function begins in the first column."""
    if not path.startswith(PRODUCT):
        return
    code = COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
    foreign = next((names for folder, names in FOREIGN_SIGNATURES.items() if path.startswith(folder)), None)
    for found in FUNCTION.finditer(code):
        count, end = parameters_of(code, found.end() - 1)
        if count > MAX_PARAMETERS and BODY.match(code, end) and not (foreign and foreign.match(found[1])):
            complain(path, "has a function of %d parameters at line %d, the limit is %d: %s" % (
                count, code.count("\n", 0, found.start(1)) + 1, MAX_PARAMETERS, found[1]))


def check_identifiers(path, text):
    if not path.startswith(PRODUCT):
        return
    code = COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
    for i, line in enumerate(code.split("\n")):
        for name in IDENTIFIER.findall(line):
            word = next((w for w in name.lower().split("_") if w in PRIVATE), None)
            if word:
                complain(path, "has a word of our own in %s at line %d: not %s but %s" % (
                    name, i + 1, word, PRIVATE[word]))


def check_comments(path, text):
    if not path.startswith(PRODUCT):
        return
    for found in COMMENT.finditer(text):
        comment = found[1] or ""
        dark = DARK.search(found[0]) or DARK_BEGINNING.match(comment) or SPOKEN.search(comment)
        if dark:
            complain(path, "has a riddle at line %d: %s..." % (
                text.count("\n", 0, found.start() + dark.start()) + 1, dark[0].split()[-1]))


def check_pointers(path, text):
    """A comment above a function knows the names of its parameters, or of what the function uses."""
    for found in COMMENTED.finditer(text):
        for name in {one or other for one, other in POINTED.findall(re.sub(r"\n \*", "\n", found[1]))} - API_POINTERS:
            if not re.search(r"\b%s\b" % name, found[2]):
                complain(path, "has a comment at line %d about %s, which %s has not" % (
                    text.count("\n", 0, found.start()) + 1, name, found[3]))


def check_parameters(path, text):
    if not path.startswith(PRODUCT):
        return
    code = COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
    for found in PARAMETERS.finditer(code):
        structs = [STRUCT_PARAMETER.match(one) for one in found[1].split(",")]
        structs = [(one[1], one[2]) for one in structs if one]
        for kind, letter in structs:
            if letter not in LETTERS and not (letter == "b" and (kind, "a") in structs):
                complain(path, "has a parameter of one letter at line %d: struct %s %s" % (
                    code.count("\n", 0, found.start()) + 1, kind, letter))


def prose_of(file, text):
    if file.suffix in (".c", ".h", ".cu"):
        return "\n".join(m[1] for m in COMMENT.finditer(text) if m[1])
    if file.suffix == ".md":
        return "\n".join(re.findall(r"`([^`\n]+)`", text))
    return "\n".join(re.findall(r"(?:^|\s)#.*", text))


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
            riddle = RIDDLES.search(sentence)
            if riddle:
                complain(path, "has a riddle at line %d: %.40s..." % (i, riddle[0]))


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
    """The project's version stands in two places, that of the API in two (doc/releasing.md)."""
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


def check_base_names(paths):
    first = {}
    for path in paths:
        base = path.rpartition("/")[2]
        if path.startswith(PRODUCT) and base not in MAY_REPEAT and first.setdefault(base, path) != path:
            complain(path, "has the base name of %s" % first[base])


def is_binary(content):
    if b"\0" in content:
        return True
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


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
        check_page(path, text)
        return
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.split("\n")[:3]):
        complain(path, "has no SPDX line on top")
    if code:
        lines = text.count("\n")
        most = MAX_LINES if path.startswith(PRODUCT) and not path.startswith("include/") else MAX_TEST_LINES
        if lines > most:
            complain(path, "has %d lines, the limit is %d" % (lines, most))
        elif lines > WARN_LINES:
            print("long: %s: %d lines, about %d are the aim" % (path, lines, WARN_LINES))
        if (BANNED_PRIMITIVES if str(path) == PRIMITIVES else BANNED).search(text):
            complain(path, "uses NVLink multicast")
        if path.startswith("device/") and part_of(path) != "device/simt" and ASSEMBLY.search(text):
            complain(path, "has instructions of its own, which belong into device/simt")
        check_functions(path, text)
        check_function_parameters(path, text)
        check_identifiers(path, text)
        check_parameters(path, text)
        check_pointers(path, text)
        check_comments(path, text)
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
    check_version(root)
    check_base_names(paths)
    check_include_circles(root, paths)
    print("%d files, %d problems" % (len(paths), len(problems)))
    return 1 if problems else 0


sys.exit(main())
