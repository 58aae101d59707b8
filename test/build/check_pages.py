#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether doc/troubleshooting.md quotes what the library says, doc/python.md what works, and doc/sizing.md and
doc/rdma.md their numbers.

  check_pages.py SOURCE_ROOT VCLUSTER_DIR
"""
import ctypes
import re
import subprocess
import sys
from pathlib import Path

import device_memory
import nic_model

ROOT, VCLUSTER = Path(sys.argv[1]), Path(sys.argv[2])
problems = 0


def complain(text):
    global problems
    problems += 1
    print("wrong:", text)


def check_quotes():
    """Strings of the sources, those that follow each other as one."""
    page = (ROOT / "doc/troubleshooting.md").read_text(encoding="utf-8")
    page = page[page.index("## It says"):page.index("## Others say")]
    quotes = re.findall(r"^### `(.*)`$", page, re.M)
    said = "".join(re.sub(r'"\s*"', "", file.read_text(encoding="utf-8"))
                   for file in sorted((ROOT / "plugin").rglob("*.c")))
    for quote in quotes:
        if quote not in said:
            complain("nothing says '%s'" % quote)
    if len(quotes) < 10:
        complain("%d messages are explained" % len(quotes))


def check_python():
    """Loaded globally it is what the process finds, and says why a call failed."""
    page = (ROOT / "doc/python.md").read_text(encoding="utf-8")
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
        complain("python.md: %s%s" % (program, done.stdout))


def check_sizes():
    """The tables of doc/sizing.md: low latency first, then high throughput."""
    page = (ROOT / "doc/sizing.md").read_text(encoding="utf-8")
    library, asked = ctypes.CDLL(str(VCLUSTER / "libnccl_ep.so.0")), 0
    for algorithm, part in enumerate(page.split("## High throughput")):
        ranks = [int(n) for n in re.findall(r"\b\d+\b", re.search(r"^\| model .*$", part, re.M)[0])]
        for row in re.findall(r"^\| [^|]*[a-z][^|]*((?:\| *\d+ *)+)\|$", part, re.M):
            experts, hidden, topk, tokens, *stated = [int(n) for n in re.findall(r"\d+", row)]
            for n, mib in zip(ranks, stated):
                answer = device_memory.ask(library, algorithm, 3 if algorithm else 1, experts, hidden, tokens, topk, n,
                                           8 if n > 8 else 0, max(0, n - 8), algorithm * n * tokens)
                asked += 1
                if not answer or "%.0f" % (answer[0] / 2**20) != str(mib):
                    complain("sizing.md: %d MiB for %s and %d ranks, it is %s" % (mib, row, n, answer and "%.0f" % (answer[0] / 2**20)))
    if asked < 20:
        complain("sizing.md: %d sizes" % asked)


def check_model():
    """The tables of doc/rdma.md that a model of NICs makes."""
    page = (ROOT / "doc/rdma.md").read_text(encoding="utf-8")
    for table in nic_model.tables(ROOT):
        if "\n".join(table) not in page:
            complain("rdma.md has not the table that nic_model.py prints, which begins with %s" % table[0])


check_quotes()
check_model()
if VCLUSTER.is_dir():
    check_python()
    check_sizes()
sys.exit(problems != 0)
