#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test/mutants/run.py: what it takes for killed, and what not."""

import importlib.util
import sys
import tempfile
from pathlib import Path

RUN = Path(__file__).resolve().parent.parent / "mutants/run.py"
spec = importlib.util.spec_from_file_location("run", RUN)
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)


def expect(what, got, want):
    if got != want:
        sys.exit("%s is %s, not %s" % (what, got, want))


def mutant(**changes):
    return {"name": "m", "file": "source", "old": "good", "new": "bad", "tests": ["t"], **changes}


def judged(trouble, *commands, limit=600):
    """The verdict where each command, with {source} for the broken file, is a test of so many seconds at most."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        source = tree / "source"
        source.write_text("all is good here", encoding="utf-8")
        tests = {"t%d" % i: {"cmd": ["sh", "-c", command.format(source=source)], "env": {}, "workdir": None,
                             "timeout": limit} for i, command in enumerate(commands)}
        run.build = lambda out, wanted: trouble
        killed, text = run.judge(mutant(tests=list(tests)), tree, tree, tests)
        expect("the source afterwards", source.read_text(encoding="utf-8"), "all is good here")
    return killed, text.split(" ", 3)[:3]


LOOKS = "grep -q good {source}"
expect("killed", judged("", LOOKS), (True, ["killed", "by", "t0,"]))
expect("killed by the second", judged("", "true", LOOKS), (True, ["killed", "by", "t1,"]))
expect("killed by a signal", judged("", "kill -9 $$"), (True, ["killed", "by", "t0,"]))
expect("killed by a hang", judged("", "sleep 3000", limit=1), (True, ["killed", "by", "t0,"]))
expect("survived", judged("", "true", "true"), (False, ["SURVIVED", "t0", "(passed),"]))
expect("survived a test that skips", judged("", "exit 77"), (False, ["SURVIVED", "t0", "(skipped)"]))
expect("does not build", judged("error", LOOKS), (False, ["DOES", "NOT", "BUILD\nerror"]))
