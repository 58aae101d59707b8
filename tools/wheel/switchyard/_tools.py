# SPDX-License-Identifier: Apache-2.0
"""The commands ep_perf, ep_plot, ep_routes, ep_report, ep_info and ep_topo of this installation."""
import importlib.util
import os
import subprocess
import sys

import switchyard


def _nccl():
    """The directory of NCCL's wheel; None without it."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return None
    for place in (spec.submodule_search_locations or []) if spec else []:
        if os.path.exists(os.path.join(place, "lib", "libnccl.so.2")):
            return os.path.join(place, "lib")
    return None


def _missing(program, env):
    """What the loader lacks to start it."""
    done = subprocess.run(["ldd", program], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=False)
    return [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]


def _run(name):
    program = os.path.join(switchyard.PREFIX, "bin", name)
    env = dict(os.environ)
    nccl = _nccl()
    if nccl:  # after the user's own
        env["LD_LIBRARY_PATH"] = ":".join(filter(None, [env.get("LD_LIBRARY_PATH"), nccl]))
    try:
        lacks = _missing(program, env)
    except OSError:  # no ldd: the loader will name it
        lacks = []
    if lacks:
        known = {"libnccl.so.2": "pip install nvidia-nccl-cu%s" % switchyard.CUDA_MAJOR,
                 "libhwloc.so.15": "apt-get install libhwloc15, or dnf install hwloc-libs",
                 "libexpat.so.1": "apt-get install libexpat1, or dnf install expat"}
        print("%s needs %s" % (name, ", ".join("%s (%s)" % (lib, known.get(lib, "it is not found")) for lib in lacks)),
              file=sys.stderr)
        sys.exit(127)
    os.execve(program, [name, *sys.argv[1:]], env)


def ep_perf():
    _run("ep_perf")


def _run_python(name):
    os.execv(sys.executable, [sys.executable, os.path.join(switchyard.PREFIX, "bin", name), *sys.argv[1:]])


def ep_plot():
    _run_python("ep_plot")


def ep_routes():
    _run_python("ep_routes")


def ep_report():
    _run("ep_report")


def ep_info():
    _run("ep_info")


def ep_topo():
    _run("ep_topo")
