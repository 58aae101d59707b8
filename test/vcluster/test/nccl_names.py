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
missing = re.findall(r"^VC_NCCL_MISSING\((\w+)\)", (Path(__file__).parent.parent / "nccl/missing.c").read_text(encoding="utf-8"),
                     re.M)
library = ctypes.CDLL(LIBRARY)
library.ncclGetLastError.restype = ctypes.c_char_p
if len(names) < 30 or not missing:
    complain("nccl.h has %d functions, missing.c %d" % (len(names), len(missing)))
for name in names:
    if not hasattr(library, name):
        complain("%s is not there: write it, or add it to nccl/missing.c" % name)
for name in missing:
    result = getattr(library, name)()
    text = library.ncclGetLastError(None).decode()
    if result != INVALID_USAGE or text != "the virtual cluster has no %s" % name:
        complain("%s: result %d, '%s'" % (name, result, text))
sys.exit(problems != 0)
