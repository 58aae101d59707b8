#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the virtual cluster has every function of nccl.h, and those that it does not have fail with their name.

  nccl_names.py INCLUDE_DIR LIBVCLUSTER
"""
import ctypes
import re
import sys
from pathlib import Path

INCLUDE, LIBRARY = sys.argv[1:]
INVALID_USAGE = 5
problems = 0


def complain(text):
    global problems
    problems += 1
    print("wrong:", text)


header = (Path(INCLUDE) / "nccl.h").read_text(encoding="utf-8")
names = sorted(set(re.findall(r"^(?:ncclResult_t|const char ?\*)\s*(nccl\w+)\(", header, re.M)))
sources = "".join(path.read_text(encoding="utf-8") for path in (Path(__file__).parent.parent / "nccl").glob("*.c"))
missing = [name for name in names if not re.search(r"^(?:ncclResult_t |const char \*)%s\(" % name, sources, re.M)]
library = ctypes.CDLL(LIBRARY)
library.ncclGetLastError.restype = ctypes.c_char_p
if len(names) < 30 or not 0 < len(missing) < len(names) - 15:
    complain("nccl.h has %d functions, of which %d are missing" % (len(names), len(missing)))
for name in names:
    if not hasattr(library, name):
        complain("%s is not there" % name)
print("missing:", *missing)
for name in missing:
    result = getattr(library, name)()
    text = library.ncclGetLastError(None).decode()
    if result != INVALID_USAGE or text != "the virtual cluster has no %s" % name:
        complain("%s: result %d, '%s'" % (name, result, text))
sys.exit(problems != 0)
