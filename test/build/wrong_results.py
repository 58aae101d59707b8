#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""count_results.py: what has failed is counted and named, whatever the kind of failure and the Meson."""

import json
import os
import subprocess
import sys
import tempfile

COUNT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "count_results.py")


def expect(tests, *want):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "log.json")
        with open(path, "w", encoding="utf-8") as log:
            log.writelines(json.dumps({"name": name, "result": result}) + "\n" for name, result in tests.items())
        done = subprocess.run([sys.executable, COUNT, path], capture_output=True, text=True, check=True)
    got = done.stdout.rstrip("\n").split("\t")
    if got != ["|%s" % field for field in want]:
        sys.exit("%s is %s, not %s" % (tests, got, want))


expect({"p:fault+asan / killed": "OK", "p:proto / matrix": "SKIP", "p:unit / a": "EXPECTEDFAIL"}, 2, 0, 1, "")
for bad in ("FAIL", "TIMEOUT", "ERROR", "INTERRUPT", "UNEXPECTEDPASS"):
    expect({"p:fault+asan / killed": bad, "p:proto / matrix": "OK"}, 1, 1, 0, "killed (%s)" % bad)
expect({"fault+asan - p:killed": "FAIL", "unit - p:waits": "FAIL"}, 0, 2, 0, "killed (FAIL), waits (FAIL)")
expect({}, 0, 0, 0, "")
