#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts a meson test log (one JSON object per line).

    count_results.py LOG
    count_results.py --said LOG

Prints, between tabs: how many passed, failed, were skipped; the failed, with results. With --said: the last lines
that each of the failed has printed.
"""

import json
import re
import sys

FINE = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}


LINES, COLUMNS = 25, 400  # of a test that has failed


def short(name):
    """Its name alone: "project:suite+suite / name" or, of newer mesons, "suite+suite - project:name"."""
    return re.split(" / |:", name)[-1]


def kind(test):
    """passed, failed or skipped."""
    return FINE.get(test["result"], "failed")


def count(tests):
    """The fields that are printed."""
    kinds = [kind(test) for test in tests]
    bad = ["%s (%s)" % (short(test["name"]), test["result"]) for test in tests if kind(test) == "failed"]
    return [kinds.count(each) for each in ("passed", "failed", "skipped")] + [", ".join(bad)]


def said(test):
    """The last lines of its outputs, under its name."""
    lines = ((test.get("stdout") or "") + (test.get("stderr") or "")).splitlines()
    return "\n".join(["-- %s (%s)" % (short(test["name"]), test["result"])] + [line[:COLUMNS] for line in lines[-LINES:]])


def main(args):
    """Prints what is asked for."""
    with open(args[-1], encoding="utf-8") as log:
        tests = [json.loads(line) for line in log]
    if args[0] == "--said":
        print("\n".join(said(test) for test in tests if kind(test) == "failed"))
    else:
        # A bar before each, so that a shell that reads the fields does not skip empty ones.
        print("\t".join("|%s" % field for field in count(tests)))


if __name__ == "__main__":
    main(sys.argv[1:])
