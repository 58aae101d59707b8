# SPDX-License-Identifier: Apache-2.0
"""What tests of programs share: conditions that are counted, and a Python program run in this process."""
import contextlib
import importlib.util
import io
import os
import subprocess
import sys

failures = 0


def expect(condition, what):
    global failures
    if not condition:
        failures += 1
        print('FAILED:', what)


def expect_status(done, status):
    expect(done.returncode == status, '%s: status %s, not %d\n%s%s' % (
        done.args, done.returncode, status, done.stdout, done.stderr))
    return done


def run_perf(command, status, **env):
    """ep_perf, whose table has at most 100 columns."""
    done = expect_status(subprocess.run(command, env=dict(os.environ, NCCL_NVLS_ENABLE='0', **env), stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, timeout=120), status)
    for line in done.stdout.splitlines():
        expect(len(line) <= 100 or 'refused' in line or line.startswith(('# library', 'library')), '%d columns: %s' % (len(line), line))
    return done


def end():
    print('%d failures' % failures)
    sys.exit(failures != 0)


class Program:
    """A program's file as a module: to start Python takes longer than all that it does."""

    def __init__(self, path):
        spec = importlib.util.spec_from_file_location('program', path)
        self.path, self.module = path, importlib.util.module_from_spec(spec)
        sys.dont_write_bytecode = True
        spec.loader.exec_module(self.module)

    def run(self, *command, status=0):
        """Its main, as with this command line."""
        out, err, argv = io.StringIO(), io.StringIO(), sys.argv
        sys.argv = [self.path, *command]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = self.module.main()
            except SystemExit as stop:
                code = stop.code
        sys.argv = argv
        return expect_status(subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue()), status)
