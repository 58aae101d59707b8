#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the functions of nccl.h that the virtual cluster does not have. They fail with their name: where a
symbol is missing, a program would get it of a real NCCL that happens to be installed, and fail there for no
reason that anybody sees. All functions of the header are written, as weak symbols: those that the other
sources define take their place, whatever the release of NCCL.

  missing.py NCCL_H OUTPUT
"""
import re
import sys
from pathlib import Path

HEAD = """#include "nccl/comm.h"

#define VC_NCCL_MISSING(name)                                                                      \\
	__attribute__((weak, visibility("default")))                                               \\
	ncclResult_t vc_missing_##name(void) __asm__(#name);                                       \\
	ncclResult_t vc_missing_##name(void)                                                       \\
	{                                                                                          \\
		return vc_nccl_error(NULL, ncclInvalidUsage, "the virtual cluster has no " #name); \\
	}

"""


def main():
    header, output = map(Path, sys.argv[1:])
    names = sorted(set(re.findall(r"^ncclResult_t\s+(nccl\w+)\(", header.read_text(encoding="utf-8"), re.M)))
    output.write_text(HEAD + "".join("VC_NCCL_MISSING(%s)\n" % name for name in names), encoding="utf-8")


main()
