#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts a meson test log (one JSON object per line).

    count_results.py LOG

Prints, between tabs: how many passed, failed, were skipped; the failed, with results.
"""

import json
import re
import sys

FINE = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}


def short(name):
    """Its name alone: "project:suite+suite / name" or, of newer mesons, "suite+suite - project:name"."""
    return re.split(" / |:", name)[-1]


def count(tests):
    """The fields that are printed."""
    kinds = [FINE.get(test["result"], "failed") for test in tests]
    bad = ["%s (%s)" % (short(test["name"]), test["result"]) for test, kind in zip(tests, kinds) if kind == "failed"]
    return [kinds.count(kind) for kind in ("passed", "failed", "skipped")] + [", ".join(bad)]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as log:
        # A bar before each, so that a shell that reads the fields does not skip empty ones.
        print("\t".join("|%s" % field for field in count([json.loads(line) for line in log])))
