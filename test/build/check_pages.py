#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether doc/troubleshooting.md quotes what the library says, and doc/python.md what works.

  check_pages.py SOURCE_ROOT VCLUSTER_DIR
"""
import re
import subprocess
import sys
from pathlib import Path

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


check_quotes()
if VCLUSTER.is_dir():
    check_python()
sys.exit(problems != 0)
