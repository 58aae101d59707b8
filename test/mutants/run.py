#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the sources in one place after another, and sees that a test fails each time.

  run.py [NAME...]    all mutants of the tables beside this file, or those of these names
  run.py --table T    those of one table (kernels: kernels.py)
  run.py --sample N   N of them, other ones for each commit
  run.py --match [--build DIR]   only looks whether the text that each one replaces is still there, and
                      its tests, in this build
  run.py --of PATH    those of a source, or of all sources in a folder
  run.py --list       only prints them: file, name, the promise that each breaks, the tests that keep it

A table is a Python file with a list MUTANTS of dictionaries:
  name   of the mutant
  file   the source that it breaks
  old    a text that stands there exactly once
  new    what replaces it
  tests  names of tests (or suite/name), the one that should fail first; one failure is enough
The lines above an entry say which promise it breaks.

It works in build-mutants/: a copy of the tree's files, as they are, and a build of it without GPU
objects. First all the tests that it is going to use must pass there. Exit status 1: a mutant
survived, does not compile, or its text is gone.
"""

import argparse
import json
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEYS = {"name", "file", "old", "new", "tests"}
SKIPPED = 77


def die(text):
    sys.exit("run.py: %s" % text)


# ---- tables ----

def tables():
    return [path for path in sorted(HERE.glob("*.py")) if path != Path(__file__).resolve()]


def load(only_table, names):
    """The mutants that are asked for, in the order of the tables."""
    mutants = []
    for path in tables():
        if only_table in (None, path.stem):
            mutants += runpy.run_path(str(path))["MUTANTS"]
    for mutant in mutants:
        if set(mutant) != KEYS or not mutant["tests"] or mutant["old"] == mutant["new"]:
            die("%s: an entry has %s, and a test that fails" % (mutant.get("name"), ", ".join(sorted(KEYS))))
    known = [mutant["name"] for mutant in mutants]
    for name in known + names:
        if known.count(name) != 1:
            die("%d mutants are called %s" % (known.count(name), name))
    if not mutants:
        die("there is no mutant")
    return [mutant for mutant in mutants if not names or mutant["name"] in names]


def promises():
    """{name: the comment above the mutant's entry}; an entry without one has that of the entry before."""
    found = {}
    for path in tables():
        comment, fresh = "", False
        for line in path.read_text(encoding="utf-8").splitlines():
            remark, entry = re.match(r" *# (?!---)(.*)", line), re.match(r' *\{"name": "(\w+)"', line)
            if remark:
                comment, fresh = (comment + " " if fresh else "") + remark[1], True
            elif entry:
                found[entry[1]] = comment
            fresh = bool(remark)
    return found


def print_list(mutants):
    promise = promises()
    for mutant in sorted(mutants, key=lambda m: m["file"]):
        print("%s: %s: %s [%s]" % (mutant["file"], mutant["name"], promise.get(mutant["name"], "see its table"), ", ".join(mutant["tests"])))


def sample(mutants, n):
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    chosen = random.Random(head.stdout).sample(range(len(mutants)), min(n, len(mutants)))
    return [mutants[i] for i in sorted(chosen)]


def unmatched(mutants):
    """Prints which entries do not fit the sources any more."""
    bad = 0
    for mutant in mutants:
        path = ROOT / mutant["file"]
        times = path.read_text(encoding="utf-8").count(mutant["old"]) if path.is_file() else 0
        if times != 1:
            print("%-24s its text stands %d times in %s, not once" % (mutant["name"], times, mutant["file"]))
            bad += 1
    return bad


# ---- the copy ----

def write_if_new(path, data):
    """Files that have not changed keep their times, and what was built of them."""
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def copy_tree(tree):
    listing = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                             capture_output=True, check=True).stdout
    names = [os.fsdecode(name) for name in listing.split(b"\0") if name]
    here = {name for name in names if (ROOT / name).is_file()}
    for name in here:
        write_if_new(tree / name, (ROOT / name).read_bytes())
        shutil.copymode(ROOT / name, tree / name)
    for path in [p for p in tree.rglob("*") if p.is_file() and not p.is_symlink()]:
        if str(path.relative_to(tree)) not in here:
            path.unlink()
    deps = tree / ".deps"
    if (ROOT / ".deps").is_dir() and not deps.is_symlink():
        deps.symlink_to(ROOT / ".deps")


def configure(tree, out):
    environment = dict(os.environ)
    command = ["meson", "setup", out, tree, "-Dcuda=disabled", "-Dwerror=false", "-Ddebug=false",
               "-Doptimization=2"]
    if shutil.which("ccache"):
        environment.update(CC="ccache cc", CXX="ccache c++")
    if (out / "build.ninja").is_file():
        command = ["ninja", "-C", out, "build.ninja"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        die("%s:\n%s" % (command[0], done.stdout[-3000:]))


def introspect(out, what):
    with open(out / "meson-info" / ("intro-%s.json" % what), encoding="utf-8") as file:
        return json.load(file)


def find_tests(out, mutants):
    """{name as in the tables: test}"""
    found = {}
    tests = introspect(out, "tests")
    for name in {name for mutant in mutants for name in mutant["tests"]}:
        suite, _, short = name.rpartition("/")
        hits = [test for test in tests if test["name"] == short and
                (not suite or suite in [s.rpartition(":")[2] for s in test["suite"]])]
        if len(hits) != 1:
            die("%d tests are called %s" % (len(hits), name))
        found[name] = hits[0]
    return found


def build(out, tests):
    """What the tests need: what they name, and libraries that they open. Returns what went wrong, or nothing."""
    targets = introspect(out, "targets")
    needed = {target for test in tests for target in test["depends"]}
    needed |= {target["id"] for target in targets if target["type"] in ("shared library", "shared module")}
    wanted = {os.path.relpath(file, out) for target in targets if target["id"] in needed for file in target["filename"]}
    done = subprocess.run(["ninja", "-C", out, *sorted(wanted)], capture_output=True, text=True, check=False)
    return done.stdout[-1500:] if done.returncode else ""


def run_test(out, test, log):
    """Exit status (None: it hung), seconds."""
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", **test["env"]}
    start = time.monotonic()
    with subprocess.Popen(test["cmd"], cwd=test["workdir"] or out, env=environment, stdin=subprocess.DEVNULL,
                          stdout=log, stderr=subprocess.STDOUT, start_new_session=True) as child:
        try:
            status = child.wait(test["timeout"])
        except subprocess.TimeoutExpired:
            status = None
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return status, time.monotonic() - start


# ---- what it is for ----

def check_unbroken(out, tests):
    """Takes away the tests that do not pass without a mutant: they kill none. Returns how many these are."""
    trouble = build(out, tests.values())
    if trouble:
        die("the tree does not build:\n%s" % trouble)
    bad = 0
    for name, test in sorted(tests.items()):
        log_path = out / ("unbroken_%s.log" % name.replace("/", "_"))
        with open(log_path, "wb") as log:
            status, _ = run_test(out, test, log)
        if status != 0:
            print("%s %s without a mutant: %s" % (name, told(status), log_path), flush=True)
            del tests[name]
            bad += 1
    return bad


def told(status):
    return "hangs" if status is None else "skips" if status == SKIPPED else "ends with %d" % status


def last_line(path):
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:120] if lines else ""


def judge(mutant, tree, out, tests):
    """Whether it was killed, and a text."""
    path = tree / mutant["file"]
    whole = path.read_text(encoding="utf-8")
    start = time.monotonic()
    log_path = out / ("mutant_%s.log" % mutant["name"])
    path.write_text(whole.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    try:
        usable = [name for name in mutant["tests"] if name in tests]
        trouble = build(out, [tests[name] for name in usable])
        if trouble:
            return False, "DOES NOT BUILD\n%s" % trouble
        built = time.monotonic() - start
        passed = []
        for name in usable:
            with open(log_path, "wb") as log:
                status, seconds = run_test(out, tests[name], log)
            if status not in (0, SKIPPED):
                return True, "killed by %s, which %s after %.1f s (built in %.0f s): %s" % (
                    name, told(status), seconds, built, last_line(log_path))
            passed.append("%s (%s)" % (name, "passed" if status == 0 else "skipped"))
        return False, "SURVIVED %s" % ", ".join(passed)
    finally:
        path.write_text(whole, encoding="utf-8")


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--table")
    parser.add_argument("--of", metavar="PATH", default="")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--match", action="store_true")
    parser.add_argument("--build", type=Path)
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def main():
    args = arguments()
    of = args.of.strip("/") + "/" if args.of else ""
    mutants = [m for m in load(args.table, args.names) if (m["file"] + "/").startswith(of)]
    if not mutants:
        die("no mutant is of %s" % args.of)
    if args.list:
        print_list(mutants)
        return 0
    bad = unmatched(mutants)
    if args.match and args.build:
        find_tests(args.build, mutants)
    if args.match or bad:
        return 1 if bad else 0
    if args.sample is not None:
        mutants = sample(mutants, args.sample)
    scratch = ROOT / "build-mutants"
    tree, out = scratch / "tree", scratch / "out"
    tree.mkdir(parents=True, exist_ok=True)
    copy_tree(tree)
    configure(tree, out)
    tests = find_tests(out, mutants)
    start = time.monotonic()
    bad = check_unbroken(out, tests)
    print("%d tests pass without a mutant (in %.0f s)" % (len(tests), time.monotonic() - start), flush=True)
    alive = 0
    for mutant in mutants:
        killed, text = judge(mutant, tree, out, tests)
        alive += not killed
        print("%-24s %s" % (mutant["name"], text), flush=True)
    print("%d of %d mutants killed in %.0f s" % (len(mutants) - alive, len(mutants), time.monotonic() - start))
    return 1 if bad or alive else 0


if __name__ == "__main__":
    sys.exit(main())
