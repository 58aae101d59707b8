#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what a built libnccl_ep.so.0 shows to the loader, against what the interface promises.

  check_library.py vcluster LIBRARY SOURCE_ROOT
  check_library.py gpu LIBRARY SOURCE_ROOT small|lineinfo ARCH...
  check_library.py net LIBRARY    libnccl-net-ep.so

"lineinfo" is a library with source lines in its GPU code, which may have any size. Exit status 77 when LIBRARY is "none".
"""

import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

FUNCTIONS = """
ncclEpGetVersion ncclEpTensorAlloc ncclEpTensorDestroy ncclEpCreateGroup ncclEpGroupDestroy
ncclEpHandleMemSize ncclEpInitHandle ncclEpUpdateHandle ncclEpCreateHandle ncclEpHandleDestroy
ncclEpDispatch ncclEpCombine ncclEpComplete ncclEpMaskQuery ncclEpMaskUpdate ncclEpMaskClean
ncclEpGetAsyncError ncclEpErrorClear
""".split()

LIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0",
        "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
NEEDED = {
    "gpu": LIBC,
    "vcluster": LIBC | {"libvcluster.so"},
}

problems = []


def complain(text):
    problems.append(text)
    print("wrong:", text)


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def check_exports(library, root):
    """Exactly the 18 functions and what ext.h declares, none of them versioned."""
    exported = {line.split()[-1] for line in output(
        "nm", "-D", "--defined-only", library).splitlines()}
    header = (root / "include/nccl_ep/ext.h").read_text(encoding="utf-8")
    ours = set(re.findall(r"\b(ncclEpExt\w+)\s*\(", header))
    for name in sorted(set(FUNCTIONS) - exported):
        complain("%s is not exported" % name)
    for name in sorted(ours - exported):
        complain("%s is declared in ext.h but not exported" % name)
    for name in sorted(exported - set(FUNCTIONS) - ours):
        complain("%s is exported" % name)
    print("exports: %d of the API, %d of ext.h" % (len(exported & set(FUNCTIONS)),
                                                 len(exported & ours)))


def release(root):
    """Of the project and of the header, which must agree."""
    header = (root / "include/nccl_ep.h").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"#define NCCL_EP_(MAJOR|MINOR|PATCH) (\d+)", header))
    version = ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))
    project = re.search(r"api_version = '([\d.]+)'", (root / "meson.build").read_text(encoding="utf-8"))
    if project[1] != version:
        complain("meson.build says api_version %s, nccl_ep.h %s" % (project[1], version))
    return version


def check_dynamic(library, flavour, version):
    dynamic = output("readelf", "-dW", library)
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    print("soname: %s; needed: %s" % (" ".join(soname), " ".join(needed)))
    if soname != ["libnccl_ep.so.0"]:
        complain("soname %s instead of libnccl_ep.so.0" % soname)
    for name in sorted(set(needed) - NEEDED[flavour]):
        complain("depends on %s" % name)
    if "NODELETE" not in dynamic:
        complain("dlclose takes it away from its threads: no NODELETE")
    if Path(library).resolve().name != "libnccl_ep.so." + version:
        complain("file name %s" % Path(library).resolve().name)


def check_imports(library):
    """It loads where there is no NCCL, and with any release: NCCL's functions are looked up, every one."""
    for line in output("nm", "-D", "--undefined-only", library).splitlines():
        name = line.split()[-1].split("@")[0]
        if name.startswith(("nccl", "pnccl")):
            complain("%s is imported" % name)
        if name.startswith(("_Z", "__cxa_throw", "__gxx_")):
            complain("%s is a C++ run-time symbol" % name)


def check_version_text(library, version):
    """Programs search the file for this text to learn the CUDA major version."""
    found = re.findall(rb"NCCL EP version \d+\.\d+\.\d+\+cuda\d+\.\d+", Path(library).read_bytes())
    print("version text:", b", ".join(found).decode())
    if len(set(found)) != 1 or not found[0].startswith(b"NCCL EP version %s+" % version.encode()):
        complain("not one version text, of %s" % version)


def check_name(library):
    """Which library a file is can be read in it."""
    found = set(re.findall(rb"Switchyard \d[ -~]*", Path(library).read_bytes()))
    print("name:", b"; ".join(found).decode())
    if len(found) != 1 or not re.fullmatch(rb"Switchyard [\d.]+, commit [\w-]+, \w+", found.pop()):
        complain("not one text with its name, version, commit and build type")


def check_fences(library):
    """A doorbell by the CPU is a record, a fence, the register, a fence: x86 shows the first to no memory of a test."""
    lines = output("objdump", "-d", "--no-show-raw-insn", library).splitlines()
    start = [i for i, line in enumerate(lines) if "<store_fence>:" in line]
    body = range(start[0], start[0] + 8) if start else ()
    fences = [i for i, line in enumerate(lines) if i not in body and
              re.search(r"\tsfence|call .*<store_fence>", line)]
    print("store fences: %d" % len(fences))
    if len(fences) < 2 or not all(b - a < 100 for a, b in zip(fences[::2], fences[1::2])):
        complain("a doorbell lacks a store fence")


def fatbin_contents(library):
    """Architectures with machine code and with PTX, over all fat binaries in the file."""
    code, ptx = [], []
    data = Path(library).read_bytes()
    for match in re.finditer(struct.pack("<IHH", 0xBA55ED50, 1, 16), data):
        size = struct.unpack_from("<Q", data, match.start() + 8)[0]
        at, end = match.start() + 16, match.start() + 16 + size
        entries = set()
        while at < end:
            kind, header, payload = struct.unpack_from("<HxxIQ", data, at)
            entries.add((kind, struct.unpack_from("<I", data, at + 28)[0]))
            at += header + payload
        ptx.append({arch for kind, arch in entries if kind == 1})
        code.append({arch for kind, arch in entries if kind == 2})
    return code, ptx


def check_architectures(library, wanted):
    code, ptx = fatbin_contents(library)
    print("fat binaries: %d" % len(code))
    if not code:
        complain("no fat binary in it")
    for index, (machine, text) in enumerate(zip(code, ptx)):
        print("  %d: sm %s, PTX %s" % (index, sorted(machine), sorted(text)))
        if machine != set(wanted):
            complain("fat binary %d has code for %s" % (index, sorted(machine)))
        if text != {max(wanted)}:
            complain("fat binary %d has PTX for %s" % (index, sorted(text)))


def check_size(library, narchs):
    """7.9 MB at most with the three architectures of a release; three times that before CUDA 13, whose nvcc packs it."""
    data = Path(library).read_bytes()
    packed = int(re.search(rb"\+cuda(\d+)\.", data).group(1)) >= 13
    size, limit = len(data), (40 + 13 * narchs) * 100000 * (1 if packed else 3)
    print("size: %.1f of %.1f MB" % (size / 1e6, limit / 1e6))
    if size > limit:
        complain("%d bytes are too much for %d architectures, %d at most" % (size, narchs, limit))


def check_plugin(library):
    """Its tables and nothing else, no need of CUDA or NCCL, and it stays when it is closed."""
    exported = {line.split()[-1] for line in output(
        "nm", "-D", "--defined-only", library).splitlines()}
    tables = {"nccl%sPlugin_v%d" % (kind, version)
              for kind, first, last in [("Net", 8, 12), ("CollNet", 8, 12), ("Gin", 11, 11)]
              for version in range(first, last + 1)}
    tables.add("nccl_net_ep_log")
    for name in sorted(exported ^ tables):
        complain("%s is %s" % (name, "exported" if name in exported else "not exported"))
    dynamic = output("readelf", "-dW", library)
    for name in sorted(set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) - LIBC):
        complain("depends on %s" % name)
    for flag in ("NODELETE", "NOW"):
        if not re.search(r"\(FLAGS_1\).*\b%s\b" % flag, dynamic):
            complain("lacks the flag %s" % flag)


def main():
    if sys.argv[1] == "net":
        check_plugin(sys.argv[2])
        return 1 if problems else 0
    flavour, library, root = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if library == "none":
        print("skipped: this build has no GPU library (no nvcc, or -Dcuda=disabled)")
        return 77
    version = release(root)
    check_exports(library, root)
    check_dynamic(library, flavour, version)
    check_imports(library)
    check_version_text(library, version)
    check_name(library)
    if platform.machine() == "x86_64":
        check_fences(library)
    if flavour == "gpu":
        archs = [int(arch) for arch in sys.argv[5:]]
        check_architectures(library, archs)
        if sys.argv[4] == "small":
            check_size(library, len(archs))
    return 1 if problems else 0


sys.exit(main())
