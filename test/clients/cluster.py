# SPDX-License-Identifier: Apache-2.0
"""The virtual cluster, as a client of NVIDIA's bindings sees it: communicator, memory, streams.

A client's script is `CLIENT.py LIBRARY_DIR [SEED]`, one process per rank, started by vcrun. Its cases
are functions; main() runs them in order. SEED is added to the seeds of all their problems, which each
case prints. Where LIBRARY_DIR has no libvcluster.so they run on GPUs: gpus.sh.
"""

import contextlib
import copy
import ctypes
import importlib
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import known
from oracle import Problem, poisoned


class Gpus:
    """The functions of CUDA and NCCL that the virtual cluster has in one file."""

    def __init__(self):
        self.cuda, self.nccl = (ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
                                for name in ("libcudart.so.13", "libnccl.so.2"))

    def __getattr__(self, name):
        return getattr(self.nccl if name.startswith("nccl") else self.cuda, name)


# With CLIENTS_TORCH=1 memory and streams are PyTorch's, whose NCCL is then the process's.
torch = importlib.import_module("torch") if os.environ.get("CLIENTS_TORCH") == "1" else None
# The bindings take what the process already has of these symbols, before any file of their own.
VIRTUAL = Path(sys.argv[1], "libvcluster.so")
VC = ctypes.CDLL(str(VIRTUAL), mode=ctypes.RTLD_GLOBAL) if VIRTUAL.exists() else Gpus()
LIB = ctypes.CDLL(sys.argv[1] + "/libnccl_ep.so.0", mode=ctypes.RTLD_GLOBAL)

import nccl.ep as ep  # noqa: E402
from nccl.core import Communicator, NcclDataType as D, UniqueId, get_unique_id  # noqa: E402

RANK, WORLD, LOCAL = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
Problem.first_seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
NUMPY = {D.BFLOAT16: np.uint16, D.FLOAT8E4M3: np.uint8, D.UINT8: np.uint8, D.FLOAT32: np.float32,
         D.INT32: np.int32, D.INT64: np.int64}
TORCH = torch and {D.BFLOAT16: torch.bfloat16, D.FLOAT8E4M3: torch.float8_e4m3fn,
                   D.UINT8: torch.uint8, D.FLOAT32: torch.float32, D.INT32: torch.int32,
                   D.INT64: torch.int64}
KEPT = []  # of PyTorch's, which would else reuse it for the next


def cuda(name, *args):
    status = getattr(VC, name)(*args)
    if status:
        raise RuntimeError("%s: error %d" % (name, status))


# ---- the communicator ----

def make_communicator():
    """Rank 0 passes the unique id on through a file of the virtual cluster's directory."""
    path = Path(os.environ["VC_DIR"], "clients_id")
    if RANK == 0:
        path.with_suffix(".new").write_bytes(get_unique_id().as_bytes)
        path.with_suffix(".new").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return Communicator.init(WORLD, RANK, UniqueId.from_bytes(path.read_bytes()))


cuda("cudaSetDevice", LOCAL)
COMMUNICATOR = make_communicator()
COMM = ctypes.c_void_p(COMMUNICATOR.ptr)


# ---- memory and streams ----

class Buffer:
    """Device memory with a descriptor of the bindings. Small, and kept until the process ends."""

    allocate, window = "cudaMalloc", {}

    def __init__(self, dtype, shape, values=None):
        self.dtype, self.shape = NUMPY[dtype], tuple(shape)
        self.bytes = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        self.take(dtype)
        self.describe(dtype)
        self.write(values)

    def take(self, dtype):
        self.memory = None
        if torch and self.allocate == "cudaMalloc":
            self.memory = torch.empty(self.shape, dtype=TORCH[dtype], device="cuda:%d" % LOCAL)
            self.pointer = self.memory.data_ptr()
            KEPT.append(self.memory)
            return
        pointer = ctypes.c_void_p()
        if self.bytes:  # torch gives NULL for a tensor without elements
            cuda(self.allocate, ctypes.byref(pointer), ctypes.c_size_t(self.bytes))
        self.pointer = pointer.value or 0

    def describe(self, dtype):
        self.tensor = (ep.Tensor(self.pointer, dtype=dtype, shape=self.shape, **self.window)
                       if self.memory is None else ep.Tensor(self.memory))

    def write(self, values=None):
        """Without values: the poison."""
        array = poisoned(self.shape, self.dtype)
        if values is not None:
            array[...] = values
        self._copy(self.pointer, array.ctypes.data)

    def head(self, count):
        """The first `count` parts of it."""
        part = copy.copy(self)
        part.shape = (count, *self.shape[1:])
        part.bytes = self.bytes // self.shape[0] * count
        part.memory = None if self.memory is None else self.memory[:count]
        part.describe(self.tensor.datatype)
        return part

    def read(self):
        cuda("cudaDeviceSynchronize")
        array = np.empty(self.shape, self.dtype)
        self._copy(array.ctypes.data, self.pointer)
        return array

    def _copy(self, to, source):
        if self.bytes:
            cuda("cudaMemcpy", ctypes.c_void_p(to), ctypes.c_void_p(source),
                 ctypes.c_size_t(self.bytes), 4)


class Window(Buffer):
    """Memory of a symmetric window, which all ranks register together; release() ends it."""

    allocate = "ncclMemAlloc"

    def take(self, dtype):
        super().take(dtype)
        self.handle = ctypes.c_void_p()
        cuda("ncclCommWindowRegister", COMM, ctypes.c_void_p(self.pointer),
             ctypes.c_size_t(self.bytes), ctypes.byref(self.handle), 1)
        self.window = {"window": SimpleNamespace(handle=self.handle.value), "window_offset": 0}

    def release(self):
        cuda("ncclCommWindowDeregister", COMM, self.handle)
        cuda("ncclMemFree", ctypes.c_void_p(self.pointer))


class Graph:
    """What `with` captures from a stream; launch() runs it there."""

    def __init__(self, stream):
        self.stream, self.captured, self.ready = ctypes.c_void_p(stream), *(
            ctypes.c_void_p() for _ in range(2))

    def __enter__(self):
        cuda("cudaStreamBeginCapture", self.stream, 1)
        return self

    def __exit__(self, *_):
        cuda("cudaStreamEndCapture", self.stream, ctypes.byref(self.captured))
        cuda("cudaGraphInstantiate", ctypes.byref(self.ready), self.captured,
             ctypes.c_ulonglong(0))

    def launch(self):
        cuda("cudaGraphLaunch", self.ready, self.stream)

    def release(self):
        cuda("cudaGraphExecDestroy", self.ready)
        cuda("cudaGraphDestroy", self.captured)


def new_stream():
    if torch:
        KEPT.append(torch.cuda.Stream(LOCAL))
        return KEPT[-1].cuda_stream
    stream = ctypes.c_void_p()
    cuda("cudaStreamCreateWithFlags", ctypes.byref(stream), 1)
    return stream.value


class Allocator:
    """Callbacks of a group, written in Python. `held`: the addresses that it still has."""

    def __init__(self, allocate="cudaMalloc", free="cudaFree"):
        self.held = set()

        @ep.AllocFn
        def take(out, size, _):
            status = getattr(VC, allocate)(out, ctypes.c_size_t(size))
            self.held.add(out[0])
            return status

        @ep.FreeFn
        def give(pointer, _):
            self.held.discard(pointer)
            return getattr(VC, free)(ctypes.c_void_p(pointer))

        self.functions = take, give  # which the group calls until it ends
        self.config = ep.AllocConfig(**{name: ctypes.cast(fn, ctypes.c_void_p).value for name, fn in
                                        (("alloc_fn", take), ("free_fn", give))})


# ---- groups, which end with their case ----

class Group(ep.Group):
    def create_handle(self, *args, **kwargs):
        return self.keep(super().create_handle(*args, **kwargs))

    def keep(self, handle):
        self.handles = [*getattr(self, "handles", []), handle]
        return handle

    def release(self):
        for handle in getattr(self, "handles", []):
            handle.destroy()
        self.destroy()


@contextlib.contextmanager
def group(**config):
    """A group on the communicator that the engine already has. After a failure it is destroyed as
    far as it lets itself be."""
    made = Group.create(COMMUNICATOR, ep.GroupConfig(**config))
    try:
        yield made
    except Exception as error:
        error.text = last_error()
        with contextlib.suppress(Exception):
            cuda("cudaDeviceSynchronize")
        with contextlib.suppress(Exception):
            made.release()
        raise
    made.release()


# ---- cases ----

def last_error():
    text, code = ctypes.c_char_p(), ctypes.c_int()
    LIB.ncclEpExtGetLastError(None, ctypes.byref(code), ctypes.byref(text))
    return (text.value or b"").decode()


def run(name, case):
    """Whether the case ends as it should: well, or as known.py says."""
    reason, pattern = known.FAILURES.get(name, (None, None))
    Problem.seeds.clear()
    try:
        case()
        failure = None
    except Exception as error:  # whatever it is, the case has failed
        failure = "%s: %s" % (type(error).__name__, error)
        if not isinstance(error, AssertionError):
            failure += "; the library says: " + getattr(error, "text", last_error())
    ok = failure is None if reason is None else failure is not None and pattern in failure
    if ok:
        verdict = "fails as expected: " + reason if reason else "OK"
    elif failure is None:
        verdict = "FAILED: it passes now, take it out of known.py: " + reason
    elif reason is None:
        verdict = "FAILED: " + failure
    else:
        verdict = "FAILED, but not as known.py says: " + failure
    verdict += " (seeds %s)" % " ".join(map(str, dict.fromkeys(Problem.seeds)))
    if RANK == 0 or not ok:
        os.write(1, ("rank %d: %s: %s\n" % (RANK, name, verdict)).encode())  # in one piece
    return ok


def only_virtual():
    """An NCCL of the machine would hide that the stand-in lacks a function, or a file."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    others = sorted({line.split()[-1] for line in maps.splitlines() if "/libnccl.so" in line})
    assert not others, "mapped beside %s: %s" % (VIRTUAL, ", ".join(others))


def main(client, cases):
    """Stops at the first case that ends as it should not; vcrun then ends the other ranks."""
    for case in [*cases, *([only_virtual] if VIRTUAL.exists() else [])]:
        if not run("%s.%s" % (client, case.__name__), case):
            sys.exit(1)
