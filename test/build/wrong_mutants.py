#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test/mutants/run.py: what it takes for killed, and which tables it refuses."""

import contextlib
import importlib.util
import io
import json
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


def refused(table):
    """Does the tool refuse a file with this list?"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.py"
        path.write_text("MUTANTS = %r" % table, encoding="utf-8")
        run.tables = lambda: [path]
        try:
            run.load(None, [])
        except SystemExit:
            return True
    return False


def unmatched(text, **changes):
    with tempfile.TemporaryDirectory() as folder:
        run.ROOT = Path(folder)
        (run.ROOT / "source").write_text(text, encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()):
            return run.unmatched([mutant(**changes)])


def lost(name, *tests):
    """Is a test of this name not found among these, of suite and name?"""
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / "meson-info"
        info.mkdir()
        table = [{"suite": ["project:" + test[0], "project:waits"], "name": test[1]} for test in tests]
        (info / "intro-tests.json").write_text(json.dumps(table), encoding="utf-8")
        try:
            run.find_tests(Path(folder), [mutant(tests=[name])])
        except SystemExit:
            return True
    return False


def judged(trouble, *commands):
    """The verdict where each command, with {source} for the broken file, is a test."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        source = tree / "source"
        source.write_text("all is good here", encoding="utf-8")
        tests = {"t%d" % i: {"cmd": ["sh", "-c", command.format(source=source)], "env": {}, "workdir": None,
                             "timeout": 1} for i, command in enumerate(commands)}
        run.build = lambda out, wanted: trouble
        killed, text = run.judge(mutant(tests=list(tests)), tree, tree, tests)
        expect("the source afterwards", source.read_text(encoding="utf-8"), "all is good here")
    return killed, text.split(" ", 3)[:3]


expect("a right table refused", refused([mutant()]), False)
for wrong in ([], [mutant(), mutant()], [mutant(tests=[])], [mutant(new="good")], [{"name": "m"}], [mutant(more=1)]):
    expect("%s refused" % wrong, refused(wrong), True)

expect("unmatched", unmatched("all is good"), 0)
expect("unmatched, gone", unmatched("all is well"), 1)
expect("unmatched, twice", unmatched("good is good"), 1)
expect("unmatched, no file", unmatched("all is good", file="other"), 1)

expect("lost", lost("t", ("unit", "t"), ("unit", "u")), False)
expect("lost, of a suite", lost("unit/t", ("unit", "t"), ("proto", "t")), False)
expect("lost, gone", lost("t", ("unit", "u")), True)
expect("lost, twice", lost("t", ("unit", "t"), ("proto", "t")), True)
expect("lost, of another suite", lost("unit/t", ("proto", "t")), True)

LOOKS = "grep -q good {source}"
expect("killed", judged("", LOOKS), (True, ["killed", "by", "t0,"]))
expect("killed by the second", judged("", "true", LOOKS), (True, ["killed", "by", "t1,"]))
expect("killed by a signal", judged("", "kill -9 $$"), (True, ["killed", "by", "t0,"]))
expect("killed by a hang", judged("", "sleep 60"), (True, ["killed", "by", "t0,"]))
expect("survived", judged("", "true", "true"), (False, ["SURVIVED", "t0", "(passed),"]))
expect("survived a test that skips", judged("", "exit 77"), (False, ["SURVIVED", "t0", "(skipped)"]))
expect("does not build", judged("error", LOOKS), (False, ["DOES", "NOT", "BUILD\nerror"]))
