#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""count_results.py: which failures a second run may take back, and that no other does."""

import json
import os
import subprocess
import sys
import tempfile

COUNT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "count_results.py")


def write(folder, name, tests, more):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as log:
        for test, result in tests.items():
            record = {"name": test, "result": result, "returncode": int(result == "FAIL")}
            log.write(json.dumps({**record, **more}) + "\n")
    return path


def expect(first, second, *want, **more):
    with tempfile.TemporaryDirectory() as folder:
        logs = [write(folder, "first", first, more)]
        if second:
            logs.append(write(folder, "second", second, {}))
        done = subprocess.run([sys.executable, COUNT, *logs], capture_output=True, text=True, check=True)
    got = done.stdout.rstrip("\n").split("\t")
    if got != ["|%s" % field for field in want]:
        sys.exit("%s\nand then %s\nis %s, not %s" % (first, second, got, want))


TIMED, OTHER, WAITS = "p:fault+asan / killed", "p:proto+asan / matrix", "p:proto+tsan+tsan_waits / clean"
expect({TIMED: "OK", OTHER: "SKIP"}, None, 1, 0, 1, "", "", "")
expect({TIMED: "FAIL", WAITS: "FAIL", OTHER: "FAIL"}, None, 0, 3, 0,
       "killed (FAIL), clean (FAIL), matrix (FAIL)", "killed clean", "")
# the second run saves what is timed and passes, and nothing else
expect({TIMED: "FAIL", WAITS: "FAIL", OTHER: "FAIL"}, {TIMED: "OK", WAITS: "FAIL", OTHER: "OK"},
       1, 2, 0, "clean (FAIL), matrix (FAIL)", "", "killed")
# what hung, what crashed, and what a sanitizer has reported is no accident: neither run again nor taken back
NO_ACCIDENT = [("TIMEOUT", {"returncode": 1}), ("ERROR", {"returncode": 1}), ("FAIL", {"returncode": 139})] + [
    ("FAIL", {stream: "rank 2\n" + text}) for stream in ("stdout", "stderr") for text in (
        "ERROR: AddressSanitizer: x", "ERROR: LeakSanitizer: x", "WARNING: ThreadSanitizer: x", "a.c:3: runtime error: x")]
for result, more in NO_ACCIDENT:
    expect({TIMED: result}, None, 0, 1, 0, "killed (%s)" % result, "", "", **more)
    expect({TIMED: result}, {TIMED: "OK"}, 0, 1, 0, "killed (%s)" % result, "", "", **more)
expect({TIMED: "FAIL"}, {TIMED: "SKIP"}, 0, 1, 0, "killed (FAIL)", "", "")
expect({TIMED: "FAIL"}, {OTHER: "OK"}, 0, 1, 0, "killed (FAIL)", "", "")
expect({TIMED: "OK"}, {TIMED: "FAIL"}, 1, 0, 0, "", "", "")
# newer mesons write names in another way
expect({"fault+asan - p:killed": "FAIL", "unit - p:waits": "FAIL"}, None, 0, 2, 0,
       "killed (FAIL), waits (FAIL)", "killed", "")
# six at once are no accident
many = {"p:fault / t%d" % i: "FAIL" for i in range(6)}
expect(many, None, 0, 6, 0, ", ".join("t%d (FAIL)" % i for i in range(6)), "", "")
