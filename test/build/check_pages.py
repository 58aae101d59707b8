#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether doc/troubleshooting.md quotes what the library says, doc/engines.md what works, and pages the numbers of the
library: sizes, limits, defaults of variables, and commits that were measured.

  check_pages.py SOURCE_ROOT VCLUSTER_DIR ENV_PAGE
"""
import ctypes
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import device_memory
import nic_model

ROOT, VCLUSTER, ENV_PAGE = (Path(arg) for arg in sys.argv[1:4])
problems = 0


def complain(text):
    global problems
    problems += 1
    print("wrong:", text)


def check_quotes():
    """Strings of the sources, those that follow each other as one."""
    page = (ROOT / "doc/troubleshooting.md").read_text(encoding="utf-8")
    page = page[page.index("## It says"):page.index("## Others say")]
    quotes = re.findall(r"^\| `(.*?)` \|", page[:page.index("taken apart:")], re.M)
    said = "".join(re.sub(r'"\s*"', "", file.read_text(encoding="utf-8"))
                   for file in sorted((ROOT / "plugin").rglob("*.c")))
    for quote in quotes:
        if quote not in said:
            complain("no source says '%s'" % quote)
    if len(quotes) < 10:
        complain("%d messages are explained" % len(quotes))


def check_python():
    """Loaded globally it is what the process finds, and says why a call failed."""
    page = (ROOT / "doc/engines.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    load = [line for line in blocks[0].split("\n") if line.startswith("ctypes.CDLL")]
    program = "import ctypes\n%s\nversion = ctypes.c_int()\n" % "\n".join(load)
    program += "ctypes.CDLL(None).ncclEpGetVersion(ctypes.byref(version))\n"
    program += "print(version.value)\nctypes.CDLL(None).ncclEpGetVersion(None)\n" + blocks[-1]
    program = re.sub(r"/opt/switchyard/lib", str(VCLUSTER), program)
    env = {"LD_LIBRARY_PATH": str(VCLUSTER), "NCCL_NVLS_ENABLE": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode or not re.match(r"200\n.*version is NULL\n$", done.stdout):
        complain("engines.md: %s%s" % (program, done.stdout))


def check_sizes():
    """The tables of doc/plan.md: low latency first, then high throughput."""
    page = (ROOT / "doc/plan.md").read_text(encoding="utf-8")
    library, asked = ctypes.CDLL(str(VCLUSTER / "libnccl_ep.so.0")), 0
    for algorithm, part in enumerate(page.split("## High throughput")):
        table = re.search(r"^\| model (?:.+\n)+", part, re.M)[0]
        ranks = [int(n) for n in re.findall(r"\b\d+\b", table.split("\n")[0])]
        for row in re.findall(r"^\| [^|]*[a-z][^|]*((?:\| *\d+ *)+)\|$", table, re.M):
            experts, hidden, topk, tokens, *stated = [int(n) for n in re.findall(r"\d+", row)]
            for n, mib in zip(ranks, stated):
                answer = device_memory.ask(library, algorithm, 3 if algorithm else 1, experts, hidden, tokens, topk, n,
                                           8 if n > 8 else 0, max(0, n - 8), algorithm * n * tokens)
                asked += 1
                if not answer or "%.0f" % (answer[0] / 2**20) != str(mib):
                    complain("plan.md: %d MiB for %s and %d ranks, it is %s" % (mib, row, n, answer and "%.0f" % (answer[0] / 2**20)))
    if asked < 20:
        complain("plan.md: %d sizes" % asked)


def check_roles():
    """The heaps of eight ranks in doc/engines.md, with as many more experts and with roles."""
    page = (ROOT / "doc/engines.md").read_text(encoding="utf-8")
    library, shape = ctypes.CDLL(str(VCLUSTER / "libnccl_ep.so.0")), {"hidden": 7168, "ranks": 8, "node": 8, "remote": 0}
    rows = [(0, 128, row) for row in re.findall(r"^\| heap of each rank \| (\d+) MiB \| (\d+) MiB; top-2: (\d+) \|$", page, re.M)]
    rows += [(1, int(tokens), row) for tokens, *row in re.findall(r"^\| heap, (\d+) tokens \| (\d+) \| (\d+) \|$", page, re.M)]
    for algorithm, tokens, stated in rows:
        asked = [(1024, 8, None), (256, 8, (6, 2, 0, 6)), (256, 2, (6, 2, 0, 6))][:len(stated)]
        for mib, (experts, topk, roles) in zip(stated, asked):
            answer = device_memory.ask(library, algorithm, 3 if algorithm else 1, experts, tokens=tokens, topk=topk, roles=roles, **shape)
            if not answer or "%.0f" % (answer[1] / 2**20) != mib:
                complain("engines.md: a heap of %s MiB for %d tokens, it is %s" % (mib, tokens, answer and "%.0f" % (answer[1] / 2**20)))
    if len(rows) < 3:
        complain("engines.md: %d heaps of groups with roles" % len(rows))


def check_model():
    """The tables of doc/design/rdma.md that a model of NICs makes, and the times that doc/rdma.md has of them."""
    page = (ROOT / "doc/design/rdma.md").read_text(encoding="utf-8")
    first_day, seen = (ROOT / "doc/rdma.md").read_text(encoding="utf-8"), 0
    for table in nic_model.tables(ROOT):
        if "\n".join(table) not in page:
            complain("design/rdma.md has not the table that nic_model.py prints, which begins with %s" % table[0])
        for pair in re.findall(r"\d+ \+ \d+", "\n".join(table)):
            seen += 1
            if pair not in first_day:
                complain("rdma.md has not the %s us of the model" % pair)
    if seen < 9:
        complain("%d times of low latency by the model" % seen)


# A row of "Limits" above ncclEpCreateGroup: which arguments of device_memory.ask it limits, how many `scale` are one `unit`
# of the limit, and the other factors of a product.
PROBES = {
    "ranks": (("ranks", "experts"), 1, 1, {}),
    "num_experts": (("experts",), 1, 1, {}),
    "max_dispatch_tokens_per_rank": (("tokens",), 1, 1, {}),
    "max_token_bytes": (("hidden",), 8, 16, {}),
    "num_topk of a handle": (("topk",), 1, 1, {"experts": 64}),
    "tokens x num_topk of a handle": (("tokens",), 1, 8, {"topk": 8, "experts": 8}),
    "ranks x tokens": (("tokens",), 1, 128, {"ranks": 128, "experts": 128}),
    "num_experts x tokens": (("tokens",), 1, 65532, {"ranks": 4, "experts": 65532}),
    "ranks x tokens x quads (480 bytes) of a row":
        (("hidden",), 240, 64 * 65535, {"ranks": 64, "experts": 64, "tokens": 65535}),
}


def check_limits():
    """Each limit is possible, and the next value is not."""
    page = (ROOT / "include/nccl_ep.h").read_text(encoding="utf-8")
    rows = re.findall(r"^ \*     (\S.*?\S)  +([\d-]+)(?: R)?  +([\d-]+)$", page[page.index("\n * Limits\n"):], re.M)
    library, plain = ctypes.CDLL(str(VCLUSTER / "libnccl_ep.so.0")), {"ranks": 1, "experts": 1, "hidden": 8, "tokens": 1, "topk": 1}
    if {name for name, _, _ in rows} != set(PROBES):
        complain("nccl_ep.h: limits of %s" % [name for name, _, _ in rows])
    for name, *values in rows:
        fields, scale, unit, factors = PROBES[name]
        for algorithm, value in enumerate(values):
            for more in (0, 1) if value != "-" else ():
                shape = {**plain, **factors, **dict.fromkeys(fields, (int(value) // unit + more) * scale)}
                answer = device_memory.ask(library, algorithm, 3 if algorithm else 1, node=0, remote=0,
                                           recv=algorithm * shape["ranks"] * shape["tokens"], **shape)
                if (answer is None) != more:
                    complain("nccl_ep.h: %s of %s: %s is %spossible" % (name, value, shape, "not " * (not more)))
    limit = {name: values for name, *values in rows}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for text in ("1 to %s ranks" % limit["ranks"][0], "top-k up to %s" % limit["num_topk of a handle"][0],
                 "up to %s experts" % limit["num_experts"][1],
                 "more than %s tokens of a rank" % limit["max_dispatch_tokens_per_rank"][1]):
        if text not in readme:
            complain("README.md does not say '%s'" % text)
    plan = (ROOT / "doc/plan.md").read_text(encoding="utf-8")
    for name, values in limit.items():
        if not re.search(r"^\| %s \| %s(?: R)? \| %s \|" % (re.escape(name), *values), plan, re.M):
            complain("plan.md does not limit %s to %s" % (name, values))


def check_defaults():
    """The defaults behind a variable's name in any page: `NAME` (10 s)."""
    unset = dict(re.findall(r"^\.B (\w+)\n(?:.*\n)+?.*Not set: (.*)\.$", ENV_PAGE.read_text(encoding="utf-8").replace("\\-", "-"), re.M))
    seen = 0
    for file in [*ROOT.glob("doc/**/*.md"), *ROOT.glob("doc/man/*.[17]"), ROOT / "README.md", *ROOT.glob("include/*.h")]:
        for name, number, unit in re.findall(r"\b(NCCL_\w+)[`,.]*\s+(?:times )?\((\d+)(?: (ms|s))?[),;]",
                                             file.read_text(encoding="utf-8")):
            stated = int(number) * (1000 if unit == "s" else 1)
            seen += 1
            if name in unset and str(stated) != unset[name]:
                complain("%s: %s is %s if it is not set, not %s %s" % (file.name, name, unset[name], number, unit))
    check_durations(unset)
    if len(unset) < 50 or seen < 7:
        complain("%d variables, %d with a default beside the name" % (len(unset), seen))


# Durations that a page states ({}: the number), and the constant of the source that they are.
DURATIONS = (
    ("doc/troubleshooting.md", "waits up to {} s for ranks of the node", "plugin/peer/leave.c", "EP_HEAP_PATIENCE_NS", 10**9),
    ("doc/failures.md", "or {} s if that is 0", "plugin/ep/group_config.c", "EP_DEFAULT_TIMEOUT_NS", 10**9),
    ("doc/design/rdma.md", "completions in host memory every {} ms", "plugin/gda/watch.c", "EP_GDA_TICK_MS", 1),
    ("doc/design/rdma.md", "in at most {} ms of 20", "plugin/gda/state.h", "EP_GDA_ASK_NS", 10**6),
    ("include/nccl_ep.h", "It waits {} s for masked ranks", "device/group/masks.cu", "EP_CLEAN_GRACE_NS", 10**9),
    ("include/nccl_ep.h", "up to {} s for ranks of this node", "plugin/peer/leave.c", "EP_HEAP_PATIENCE_NS", 10**9),
    ("include/nccl_ep.h", "or {} s if that is longer", "device/group/remote.h", "EP_REMOTE_MASKED_NS", 10**9),
    ("include/nccl_ep.h", "timeout ({} s, see", "plugin/ep/group_config.c", "EP_DEFAULT_TIMEOUT_NS", 10**9),
)


def constant(path, name):
    return int(re.search(r"^#define %s (\d+)" % name, (ROOT / path).read_text(encoding="utf-8"), re.M)[1])


def check_foreign():
    """doc/compatibility.md has a word on each variable of NVIDIA's library, and on no other."""
    source = (ROOT / "plugin/core/param.c").read_text(encoding="utf-8")
    known = set(re.findall(r'"(NCCL_EP_\w+)"', source[source.index("param_foreign[] = {"):].split("};")[0]))
    page = (ROOT / "doc/compatibility.md").read_text(encoding="utf-8")
    page = page[page.index("## Variables of NVIDIA's library"):].split("\n## ")[0]
    named = set(re.findall(r"`(NCCL_EP_\w+)`", re.sub(r".*\| obeyed \|", "", page)))
    for name in sorted(known ^ named):
        complain("compatibility.md and param.c differ in %s" % name)
    if len(known) < 10:
        complain("%d variables of NVIDIA's library are known" % len(known))


def check_durations(unset):
    """And the sum of three timeouts and the close timeout."""
    expected = [(page, words.format("%g" % (constant(path, name) / unit))) for page, words, path, name, unit in DURATIONS]
    longest = 3 * constant("plugin/ep/group_config.c", "EP_DEFAULT_TIMEOUT_NS") // 10**9 + int(unset["NCCL_EP_CLOSE_TIMEOUT_MS"]) // 1000
    expected += [("doc/troubleshooting.md", "`NCCL_EP_CLOSE_TIMEOUT_MS`: %d s by default" % longest),
                 ("include/nccl_ep.h", "NCCL_EP_CLOSE_TIMEOUT_MS (%d s by default)" % longest)]
    for page, words in expected:
        if words not in re.sub(r"(\s|\n \*)+", " ", (ROOT / page).read_text(encoding="utf-8")):
            complain("%s does not say '%s'" % (page, words))


def check_tests():
    """Tests that pages name exist, in a build that has them all."""
    known = json.loads((VCLUSTER.parent.parent / "meson-info/intro-tests.json").read_text(encoding="utf-8"))
    tests = {test["name"] for test in known} | {suite.rpartition(":")[2] for test in known for suite in test["suite"]}
    if len(tests) < 800:
        print("no names of tests to compare with: this build has not all of them")
        return
    for file in [*ROOT.glob("doc/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = file.read_text(encoding="utf-8")
        proofs = re.search(r"^\| (?:step \| proved by|you change \| then run \| and) \|\n((?:\|.*\n)*)", text, re.M)
        for name in (re.findall(r"[Tt]ests?\s+`(\w+)`", text) + re.findall(r"meson test [^\n]*?-v ([a-z]\w+)", text) +
                     re.findall(r"`([\w-]+)`", proofs[1] if proofs else "")):
            if name not in tests:
                complain("%s names the test %s, which there is not" % (file.name, name))


def check_commits():
    """What was measured can be built again: the pages with figures name commits that are here."""
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT)]
    if not (ROOT / ".git").exists() or not shutil.which("git") or subprocess.run(
            [*git, "rev-parse", "--is-shallow-repository"], stdout=subprocess.PIPE, text=True, check=False).stdout != "false\n":
        print("no commits to compare with: this is not a whole clone")
        return
    seen = 0
    for page in ("doc/performance.md", "doc/design/measurements.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for commit in sorted(set(re.findall(r"(?<!revision )\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{7,40}\b", text))):
            seen += 1
            if subprocess.run([*git, "merge-base", "--is-ancestor", commit, "HEAD"], stderr=subprocess.DEVNULL, check=False).returncode:
                complain("%s names commit %s, which is not one of this branch" % (page, commit))
    if seen < 15:
        complain("pages name %d commits" % seen)


check_quotes()
check_model()
check_defaults()
check_foreign()
check_tests()
check_commits()
if VCLUSTER.is_dir():
    check_python()
    check_sizes()
    check_roles()
    check_limits()
sys.exit(problems != 0)
