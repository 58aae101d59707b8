#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts a meson test log (one JSON object per line).

    count_results.py LOG [SECOND]

Prints, between tabs: how many passed, failed, were skipped; the failed, with results; which of those may have
failed because the machine gave a rank no processor for seconds; which passed in the second run alone.
SECOND is the log of another run of such tests: its results count instead of theirs in the first one.
"""

import json
import re
import sys

FINE = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}
MOST_AGAIN = 5  # more than that is no accident
REPORT = re.compile("(Address|Leak|Thread)Sanitizer|runtime error:")


def results(path):
    """{name with suites: result} of a log, and the names of those that may run again."""
    with open(path, encoding="utf-8") as log:
        tests = [json.loads(line) for line in log]
    return ({test["name"]: test["result"] for test in tests},
            [test["name"] for test in tests if is_late(test)])


def short(name):
    """Its name alone: "project:suite+suite / name" or, of newer mesons, "suite+suite - project:name"."""
    return re.split(" / |:", name)[-1]


def is_timed(name):
    """Tests of waits that end by a timeout: who is late for them is lost, as it should be."""
    suites = re.split("[:+ ]", name)[:-1]
    return "fault" in suites or any(suite.endswith("waits") for suite in suites)


def is_late(test):
    """A test of timeouts whose checks failed: not one that hung or crashed, nor one with a sanitizer's report."""
    return (is_timed(test["name"]) and test["result"] == "FAIL" and test.get("returncode") == 1 and
            not REPORT.search(test.get("stdout", "") + test.get("stderr", "")))


def count(first, late, second):
    """The fields that are printed."""
    saved = [name for name in late if FINE.get(second.get(name)) == "passed"]
    kinds = {name: "passed" if name in saved else FINE.get(result, "failed")
             for name, result in first.items()}
    bad = [name for name, kind in kinds.items() if kind == "failed"]
    numbers = [list(kinds.values()).count(kind) for kind in ("passed", "failed", "skipped")]
    again = [] if second or len(bad) > MOST_AGAIN else late
    return numbers + [", ".join("%s (%s)" % (short(name), first[name]) for name in bad),
                      " ".join(map(short, again)), " ".join(map(short, saved))]


if __name__ == "__main__":
    # A bar before each, so that a shell that reads the fields does not skip empty ones.
    print("\t".join("|%s" % field for field in
                    count(*results(sys.argv[1]), results(sys.argv[2])[0] if len(sys.argv) > 2 else {})))
