#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs a tree that `meson install` has made into a wheel.

  pack.py STAGE PREFIX LIBDIR SOURCE_ROOT OUT

STAGE is the DESTDIR, PREFIX and LIBDIR are Meson's. The wheel is named after the CUDA release that the library was built
with, and tagged with the oldest glibc that has all that its files need. Prints the wheel's path.
"""
import base64
import hashlib
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

STAGE, PREFIX, LIBDIR, ROOT, OUT = sys.argv[1:6]
TREE = Path(STAGE + PREFIX)
ROOT = Path(ROOT)
# Every Linux of PEP 600 has these. The rest of NEEDED is in the wheel, or OPTIONAL.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "ld-linux-x86-64.so.2"}
# Of the tools, and of the module that looks for NICs: the library itself does without.
OPTIONAL = {"libnccl.so.2", "libhwloc.so.15", "libexpat.so.1"}
DRIVERS = {"12": "525", "13": "580"}  # the oldest that each CUDA runs with
SUMMARY = "Expert-parallel dispatch and combine with the NCCL EP interface"
DESCRIPTION = """\
Switchyard dispatches tokens of mixture-of-experts models to the GPUs of their experts and combines the results. It has the
interface of NVIDIA's `libnccl_ep`, whose Python bindings (`nccl-extensions`) run on it without a change:

    python -m switchyard PROGRAM          # or SWITCHYARD=1 in the environment
    python -m switchyard --verify

It is installed beside `nccl-extensions` and replaces nothing of it. CUDA {cuda}; {archs}; NVIDIA driver {driver} or later, on
GPUs that only the PTX serves the driver of CUDA {cuda}; Linux with glibc {glibc} or later.
The library needs nothing but libc, and takes the NCCL (2.28 or later) of the program. The commands `ep_perf`, `ep_plot`,
`ep_routes`, `ep_report`, `ep_info` and `ep_topo` come with it. The first needs `libnccl.so.2` (`pip install switchyard-ep-cu{major}[nccl]`),
pictures of the second need matplotlib (`[plot]`). The last two need libhwloc.so.15, which a repaired
wheel contains, and libexpat.so.1 of the distribution, as do groups whose ranks are on several hosts.

C programs: `PKG_CONFIG_PATH=$(dirname $(python -m switchyard --path))/pkgconfig`. Manual pages begin with nccl_ep(7).
"""


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def is_elf(path):
    return path.is_file() and path.read_bytes()[:4] == b"\x7fELF"


# ---- what goes in ----

def collect():
    """Paths in the wheel, and their files. A wheel has no symbolic links: a library lies there under its soname."""
    files = {}
    for part in ("bin", "include", LIBDIR):
        for path in sorted((TREE / part).rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            name = path.relative_to(TREE)
            soname = re.search(r"\(SONAME\).*\[(.*)\]", output("readelf", "-dW", path)) if is_elf(path) else None
            files[str(Path("switchyard") / (name.with_name(soname[1]) if soname else name))] = path
    return files


def shared_data():
    """Of the installation itself: manual pages and completions."""
    share = TREE / "share"
    return {str(path.relative_to(TREE)): path for part in ("man", "bash-completion", "zsh")
            for path in sorted((share / part).rglob("*")) if path.is_file()}


def forwarder(work):
    """libnccl_ep.so, for programs that load that by its path: it has no code, but needs the library beside it."""
    path = Path(work) / "libnccl_ep.so"
    library = next((TREE / LIBDIR).glob("libnccl_ep.so.0"))
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-nostdlib", "-o", path, "-Wl,--no-as-needed", library,
                    "-Wl,-rpath,$ORIGIN", "-Wl,-soname,libnccl_ep.so"], check=True)
    return path


def pkg_config(text):
    """Relative to where the wheel is installed, with the file name that is there, and no place of this machine."""
    up = "/".join([".."] * (len(Path(LIBDIR).parts) + 1))
    text = re.sub(r"^prefix=.*$", "prefix=${pcfiledir}/%s" % up, text, flags=re.M)
    text = re.sub(r"^cudadir=.*$", "cudadir=/usr/local/cuda", text, flags=re.M)
    text = re.sub(r"^nccldir=.*$", "nccldir=${cudadir}", text, flags=re.M)
    return re.sub(r"-lnccl_ep\b", "-l:libnccl_ep.so.0", text)


# ---- what it needs ----

def glibc_of(files):
    """The newest version of glibc's symbols that any file needs."""
    newest = (2, 0)
    for name, path in files.items():
        if is_elf(path):
            needs = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", output("readelf", "-VW", path))
            newest = max([newest, *((int(a), int(b)) for a, b in needs)])
    return newest


def check_needed(files):
    """A wheel for many Linuxes may need libraries that it has, or that all have."""
    inside = {Path(name).name for name in files}
    for name, path in files.items():
        if not is_elf(path):
            continue
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", path)))
        allowed = SYSTEM | inside
        if "/libnccl_ep.so" not in name and "/libnccl-net-ep" not in name:
            allowed |= OPTIONAL
        if needed - allowed:
            sys.exit("pack.py: %s needs %s" % (name, ", ".join(sorted(needed - allowed))))


def about(library):
    data = library.read_bytes()
    cuda = re.search(rb"NCCL EP version [\d.]+\+cuda((\d+)\.\d+)", data)
    build = re.search(rb"Switchyard ([\d.]+), commit [ -~]*", data)
    archs = re.search(rb"sm_\d+(?: sm_\d+)* PTX", data)
    if not cuda or not build or not archs:
        sys.exit("pack.py: %s is not a library for GPUs" % library)
    if cuda[2].decode() not in DRIVERS:
        sys.exit("pack.py: which driver CUDA %s needs is not in DRIVERS" % cuda[2].decode())
    return {"driver": DRIVERS[cuda[2].decode()], "cuda": cuda[1].decode(), "major": cuda[2].decode(), "text": build[0].decode(),
            "version": build[1].decode(), "archs": archs[0].decode()}


# ---- the wheel ----

class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record = []
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))
        self.date = max(time.gmtime(epoch)[:6], (1980, 1, 1, 0, 0, 0))

    def add(self, name, data, executable=False):
        data = data.encode() if isinstance(data, str) else data
        info = zipfile.ZipInfo(name, self.date)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (0o100755 if executable else 0o100644) << 16
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append("%s,sha256=%s,%d" % (name, digest, len(data)))

    def close(self, info):
        name = info + "/RECORD"
        text = "\n".join([*self.record, name + ",,"]) + "\n"
        self.zip.writestr(zipfile.ZipInfo(name, self.date), text)
        self.zip.close()


def metadata(facts, glibc):
    lines = ["Metadata-Version: 2.4", "Name: switchyard-ep-cu%s" % facts["major"], "Version: " + facts["version"],
             "Summary: " + SUMMARY, "License-Expression: Apache-2.0", "License-File: LICENSE",
             "Requires-Python: >=3.9", "Provides-Extra: nccl", "Provides-Extra: plot",
             "Requires-Dist: nvidia-nccl-cu%s>=2.28; extra == 'nccl'" % facts["major"],
             "Requires-Dist: matplotlib>=3.6; extra == 'plot'",
             "Description-Content-Type: text/markdown", "",
             DESCRIPTION.format(glibc="%d.%d" % glibc, **facts)]
    return "\n".join(lines)


def write(path, tag, files, facts, glibc):
    base = "switchyard_ep_cu%s-%s" % (facts["major"], facts["version"])
    info = base + ".dist-info"
    wheel = Wheel(path)
    for name, file in files.items():
        data = file.read_bytes()
        if file.suffix == ".pc":
            data = pkg_config(data.decode())
        wheel.add(name, data, executable=name.startswith("switchyard/bin/") or is_elf(file))
    here = ROOT / "tools/wheel"
    for file in sorted((here / "switchyard").glob("*.py")):
        wheel.add("switchyard/" + file.name, file.read_bytes())
    wheel.add("switchyard/_build.py", "# Made by tools/wheel/pack.py.\nLIBDIR = %r\nCUDA_MAJOR = %r\nVERSION = %r\n" %
              (LIBDIR, facts["major"], facts["text"]))
    wheel.add("switchyard.pth", (here / "switchyard.pth").read_bytes())
    for name, file in shared_data().items():
        wheel.add("%s.data/data/%s" % (base, name), file.read_bytes())
    wheel.add(info + "/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
    wheel.add(info + "/METADATA", metadata(facts, glibc))
    wheel.add(info + "/entry_points.txt", "[console_scripts]\n" + "".join(
        "%s = switchyard._tools:%s\n" % (Path(name).name, Path(name).name)
        for name in files if name.startswith("switchyard/bin/")))
    wheel.add(info + "/WHEEL", "Wheel-Version: 1.0\nGenerator: switchyard pack.py\nRoot-Is-Purelib: false\nTag: %s\n" % tag)
    wheel.close(info)


def main():
    files = collect()
    facts = about(TREE / LIBDIR / "libnccl_ep.so.0")
    files["switchyard/%s/libnccl_ep.so" % LIBDIR] = forwarder(STAGE)
    check_needed(files)
    glibc = max(glibc_of(files), (2, 17))
    tag = "py3-none-manylinux_%d_%d_x86_64" % glibc
    Path(OUT).mkdir(parents=True, exist_ok=True)
    path = Path(OUT) / ("switchyard_ep_cu%s-%s-%s.whl" % (facts["major"], facts["version"], tag))
    write(path, tag, files, facts, glibc)
    print(path)


main()
