#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""count_results.py: what has failed is counted, named and heard, whatever the kind of failure and the Meson."""

import json
import os
import subprocess
import sys
import tempfile

COUNT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "count_results.py")


def run(tests, *options):
    """What it prints about tests of these names and fields."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "log.json")
        with open(path, "w", encoding="utf-8") as log:
            log.writelines(json.dumps({"name": name, **fields}) + "\n" for name, fields in tests.items())
        done = subprocess.run([sys.executable, COUNT, *options, path], capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\n")


def expect(tests, *want):
    got = run({name: {"result": result} for name, result in tests.items()}).split("\t")
    if got != ["|%s" % field for field in want]:
        sys.exit("%s is %s, not %s" % (tests, got, want))


expect({"p:fault+asan / killed": "OK", "p:proto / matrix": "SKIP", "p:unit / a": "EXPECTEDFAIL"}, 2, 0, 1, "")
for bad in ("FAIL", "TIMEOUT", "ERROR", "INTERRUPT", "UNEXPECTEDPASS"):
    expect({"p:fault+asan / killed": bad, "p:proto / matrix": "OK"}, 1, 1, 0, "killed (%s)" % bad)
expect({"fault+asan - p:killed": "FAIL", "unit - p:waits": "FAIL"}, 0, 2, 0, "killed (FAIL), waits (FAIL)")
expect({}, 0, 0, 0, "")
SAID = run(
    {
        "p:fault / killed": {"result": "FAIL", "stdout": "seed\n", "stderr": "first\n" + "line\n" * 24},
        "p:unit / mute": {"result": "TIMEOUT"},
        "p:proto / matrix": {"result": "OK", "stdout": "fine\n"},
    },
    "--said",
)
if SAID != "-- killed (FAIL)\nfirst\n" + "line\n" * 24 + "-- mute (TIMEOUT)":
    sys.exit("said: %s" % SAID)
