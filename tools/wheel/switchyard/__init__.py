# SPDX-License-Identifier: Apache-2.0
"""Switchyard: expert-parallel dispatch and combine, a library with the NCCL EP interface.

The package brings the library, its tools and headers. It replaces nothing: other libraries of the same soname stay where
they are, and a program runs on this one when it is started so (python -m switchyard PROGRAM, or SWITCHYARD=1).
"""
import os

from switchyard._build import CUDA_MAJOR, LIBDIR, VERSION  # noqa: F401

PREFIX = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(PREFIX, LIBDIR, "libnccl_ep.so.0")


class Mismatch(RuntimeError):
    """Another libnccl_ep is mapped, or this one is not."""


class Unusable(RuntimeError):
    """The library lies where LD_PRELOAD cannot name it."""


def environment(base=None):
    """The environment in which a program, and all that it starts, runs on this library."""
    if " " in LIBRARY or ":" in LIBRARY:
        raise Unusable("LD_PRELOAD cannot name %s, because the loader splits it at blanks and colons: "
                       "install it where no directory has one" % LIBRARY)
    env = dict(os.environ if base is None else base)
    preload = [p for p in env.get("LD_PRELOAD", "").replace(":", " ").split() if p != LIBRARY]
    env["LD_PRELOAD"] = ":".join([LIBRARY, *preload])
    env["SWITCHYARD"] = "1"
    env["NCCL_EP_HOME"] = PREFIX  # for programs that load a file by its path: TransformerEngine
    return env


def load():
    """Makes this library the one of this process. Before the first use of nccl.ep, or of another library of the name."""
    import ctypes
    return ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)


def mapped(pid="self"):
    """The files named libnccl_ep that a process has mapped, as /proc names them."""
    found = []
    with open("/proc/%s/maps" % pid, encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            path = path[1] + path[2]
            if os.path.basename(path).startswith("libnccl_ep.so") and path not in found:
                found.append(path)
    return found


def _is_ours(path, pid):
    for name in (path, "/proc/%s/root%s" % (pid, path)):
        try:
            if os.path.samefile(name, LIBRARY):
                return True
        except OSError:
            continue
    if path.endswith(" (deleted)"):  # replaced since it was loaded
        return False
    # The file by which others find the library: it has no code.
    return os.path.dirname(os.path.realpath(path)) == os.path.dirname(os.path.realpath(LIBRARY))


def verify(pid="self"):
    """Raises Mismatch unless the process has mapped this libnccl_ep and no other. Returns its path."""
    files = mapped(pid)
    others = [path for path in files if not _is_ours(path, pid)]
    if others:
        raise Mismatch("%s is mapped, which is not %s" % (", ".join(others), LIBRARY))
    if not files:
        raise Mismatch("no libnccl_ep is mapped: the program has not loaded %s" % LIBRARY)
    return LIBRARY
