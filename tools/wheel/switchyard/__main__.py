# SPDX-License-Identifier: Apache-2.0
"""python -m switchyard PROGRAM: see USAGE."""
import os
import shutil
import subprocess
import sys

import switchyard

USAGE = """\
usage: python -m switchyard PROGRAM [ARGUMENT...]
       python -m switchyard -m MODULE [ARGUMENT...]
       python -m switchyard --verify [PID]
       python -m switchyard --env | --path | --version

Runs a Python program, a module, or any other command, and all that it starts, on Switchyard.
  --verify [PID]  whether NVIDIA's binding (nccl.ep), started like that, or the running process PID, has this
                  library and no other libnccl_ep: exit status 1 if not
  --env           the variables that choose it, for a shell: eval "$(python -m switchyard --env)"
  --path          the library's file
  --version       which build it is
SWITCHYARD=1 in the environment does the same for every Python program of this installation; 0 and nothing do not.
"""

# In a process of its own, with the environment that programs get.
PROBE = """\
import ctypes
import switchyard
try:
    import nccl.ep
except ImportError:
    ctypes.CDLL("libnccl_ep.so.0")
else:
    nccl.ep.get_lib_version()
print(switchyard.verify())
"""


def fail(text, status=1):
    print("switchyard: %s" % text, file=sys.stderr)
    return status


def run(arguments):
    """Does not return, unless the program cannot be started."""
    program, env = arguments[0], switchyard.environment()
    python = [sys.executable or "python3"]
    if program.startswith("-") or program.endswith(".py") or os.path.isdir(program):
        command = [*python, *arguments]
    else:
        found = shutil.which(program)
        if found is None:
            return fail("%s: no such program" % program, 127)
        command = [found, *arguments[1:]]
    sys.stdout.flush()
    try:
        os.execve(command[0], command, env)
    except OSError as error:
        return fail("%s: %s" % (command[0], error.strerror), 126)


def verify(arguments):
    if arguments:
        if not arguments[0].isdigit():
            return fail("--verify: got '%s', allowed is the number of a process" % arguments[0], 2)
        try:
            print(switchyard.verify(arguments[0]))
        except (OSError, switchyard.Mismatch) as error:
            return fail(error)
        return 0
    done = subprocess.run([sys.executable, "-c", PROBE], env=switchyard.environment(), check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return fail((done.stderr.strip().splitlines() or ["the probe ended with status %d" % done.returncode])[-1])
    print(done.stdout, end="")
    return 0


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    option = arguments[0]
    if option == "--verify":
        return verify(arguments[1:])
    if option == "--path":
        print(switchyard.LIBRARY)
    elif option == "--version":
        print(switchyard.VERSION)
    elif option == "--env":
        env = switchyard.environment()
        for name in ("LD_PRELOAD", "SWITCHYARD", "NCCL_EP_HOME"):
            print("export %s='%s'" % (name, env[name].replace("'", "'\\''")))
    elif option.startswith("-") and option not in ("-m", "-c", "-"):
        return fail("there is no option %s; --help lists them" % option, 2)
    else:
        return run(arguments)
    return 0


try:
    sys.exit(main(sys.argv[1:]))
except switchyard.Unusable as problem:
    sys.exit(fail(problem))
