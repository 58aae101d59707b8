#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wheel's Python package by itself: a program runs on this library, on another where that is asked for, or not at all.

check_switchyard.py SOURCE_ROOT LIBRARY_DIR
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, LIBRARIES = (Path(argument) for argument in sys.argv[1:3])
SHOW = 'print("runs", *{line.split()[-1] for line in open("/proc/self/maps") if "libnccl_ep" in line})'
failures = 0


def expect(what, python, arguments, status, text, **env):
    """How it ends, and what it prints. Whatever does not end well has run nothing."""
    global failures
    clean = {name: value for name, value in os.environ.items() if name not in ("SWITCHYARD", "LD_PRELOAD")}
    done = subprocess.run([python, *arguments], env={**clean, "LD_LIBRARY_PATH": str(LIBRARIES), **env}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != status or text not in done.stdout or status and "runs" in done.stdout:
        failures += 1
        print("FAILED: %s: status %d, not %d, and %r without %r" % (what, done.returncode, status, done.stdout, text))


def install(place):
    """As pip lays it out, with the virtual cluster's library. Returns Python and the package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    site = next(place.glob("lib/python3*/site-packages"))
    package = site / "switchyard"
    shutil.copytree(ROOT / "tools/wheel/switchyard", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tools/wheel/switchyard.pth", site)
    (package / "_build.py").write_text("LIBDIR, CUDA_MAJOR, VERSION = 'lib', '13', 'x'\n", encoding="utf-8")
    (package / "lib").mkdir()
    shutil.copy(LIBRARIES / "libnccl_ep.so.0", package / "lib")
    return place / "bin/python", package


def check_values(python, package):
    library = str(package / "lib/libnccl_ep.so.0")
    expect("no variable", python, ["-c", SHOW], 0, "runs\n")
    for value in ("", "0"):
        expect("SWITCHYARD=%s" % value, python, ["-c", SHOW], 0, "runs\n", SWITCHYARD=value)
    expect("SWITCHYARD=1", python, ["-c", SHOW], 0, "runs " + library, SWITCHYARD="1")
    expect("-m switchyard", python, ["-m", "switchyard", "-c", SHOW], 0, "runs " + library)
    for value in ("yes", "true", "on", "2", "00", " 1"):
        expect("SWITCHYARD=%s" % value, python, ["-c", SHOW], 1, "SWITCHYARD=%s: allowed is 1" % value, SWITCHYARD=value)


def check_broken(python, package):
    """Each part that is missing is named, and only those who want it miss it."""
    for part, text in ((package / "lib/libnccl_ep.so.0", "does not load"), (package / "_build.py", "switchyard._build"),
                       (package, "No module named 'switchyard'")):
        away = part.with_name("away")
        part.rename(away)
        expect("without %s" % part.name, python, ["-c", SHOW], 1, text, SWITCHYARD="1")
        expect("without %s, unasked" % part.name, python, ["-c", SHOW], 0, "runs\n", SWITCHYARD="0")
        away.rename(part)


def check_places(python, package, work):
    """The loader splits LD_PRELOAD at blanks and colons."""
    spaced, there = install(work / "my env")
    for arguments in (["cat", "/proc/self/maps"], ["-c", SHOW], ["--env"], ["--verify"]):
        expect("%s in a path with a blank" % arguments, spaced, ["-m", "switchyard", *arguments], 1,
               "cannot name %s/lib/" % there)
    expect("SWITCHYARD=1 in a path with a blank", spaced, ["-c", SHOW], 1, "cannot name", SWITCHYARD="1")
    expect("--path in a path with a blank", spaced, ["-m", "switchyard", "--path"], 0, "%s/lib/" % there)
    shutil.copytree(package, work / "a:b/switchyard")
    expect("a path with a colon", python, ["-c", "import sys; sys.path.insert(0, sys.argv[1]); import switchyard; "
                                          "switchyard.environment()", work / "a:b"], 1, "cannot name")


def check_replaced(python, package):
    """A process that runs on a library which was replaced since, as an upgrade does, is found out."""
    library = package / "lib/libnccl_ep.so.0"
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([python, "-m", "switchyard", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env={**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES)}) as running:
        running.stdout.readline()
        verify = ["-m", "switchyard", "--verify", str(running.pid)]
        expect("--verify of a process", python, verify, 0, str(library))
        new = shutil.copy(library, package / "lib/new")
        os.replace(new, library)
        expect("--verify of one with an old library", python, verify, 1, "%s (deleted) is mapped" % library)
        running.stdin.close()


def main():
    with tempfile.TemporaryDirectory() as work:
        python, package = install(Path(work, "venv"))
        check_values(python, package)
        check_replaced(python, package)
        check_broken(python, package)
        check_places(python, package, Path(work))
    sys.exit(failures != 0)


main()
