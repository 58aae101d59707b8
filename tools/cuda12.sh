#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a CUDA 12.4 toolkit, of what compiles and links this tree, unless it is there. 140 MB to fetch, 240 MB on disk.
#   cuda12.sh [DIR]    (.deps/cuda12)
# The compiler is Debian 13's package nvidia-cuda-toolkit (non-free; of CUDA 12, PyPI has no nvcc), fetched by apt and not
# installed. It runs on Debian 12 and later. Headers and the static runtime are PyPI's. The first PyPI release of CUDA 12 with
# a static runtime is 12.9: it serves what any nvcc 12 compiled, on any driver of CUDA 12.
# Use it with -Dtoolkit_home=DIR, or CUDA_HOME=DIR for ./check. Its nvcc takes GCC up to 13.

set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$top/.deps/cuda12}
[ "$dir" = / ] || dir=${dir%/}
runtime=nvidia-cuda-runtime-cu12==12.9.79

die() {
    echo "cuda12.sh: $*" >&2
    exit 1
}

made_by() { cat "$top/tools/cuda12.sh" "$top/tools/cuda12-wheels.txt"; }
! made_by | cmp -s - "$dir/made-by" || exit 0
# It is replaced as a whole.
[ ! -e "$dir" ] || [ -e "$dir/made-by" ] || [ -z "$(ls -A "$dir")" ] || die "$dir has something else in it: name a new directory"

command -v apt-get >/dev/null || die "this needs apt-get; with a CUDA 12 toolkit elsewhere, set CUDA_HOME"
mirror=$("$top/tools/mirror.sh" debian)
[ -n "$mirror" ] || die "no mirror of Debian in apt's sources: set DEBIAN_MIRROR"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -f $keys ] || die "no $keys: install the package debian-archive-keyring"
mkdir -p "$(dirname "$dir")"
work=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$work"' EXIT
new=$work/new
mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial" "$work/deb" "$new/bin" "$new/include" "$new/lib" "$new/nvvm"

# Sources and lists of its own: the machine's stay as they are.
echo "deb [arch=amd64 signed-by=$keys] $mirror trixie non-free" >"$work/apt/sources.list"
own=(-o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/apt/lists"
    -o Dir::Cache="$work/apt" -o APT::Architecture=amd64 -o APT::Sandbox::User="$(id -un)")
(cd "$work/deb" && apt-get -q "${own[@]}" update && apt-get -q "${own[@]}" download nvidia-cuda-toolkit) >"$work/log" 2>&1 ||
    die "nvidia-cuda-toolkit cannot be had: $(tail -n 3 "$work/log")"
dpkg-deb -x "$work"/deb/nvidia-cuda-toolkit_12.4.*.deb "$work/deb"
for program in bin2c cudafe++ cuobjdump fatbinary nvdisasm nvlink ptxas; do
    mv "$work/deb/usr/bin/$program" "$new/bin/"
done
mv "$work"/deb/usr/lib/nvidia-cuda-toolkit/bin/{nvcc,cicc,crt} "$new/bin/"
mv "$work/deb/usr/lib/nvidia-cuda-toolkit/libdevice" "$new/nvvm/"
# Where nvcc finds the rest: all beside it, and not in Debian's places.
cat >"$new/bin/nvcc.profile" <<'PROFILE'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib"
PROFILE

python3 -m venv "$work/venv" || die "no virtual environment: install python3-venv"
pip=("$work/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir --no-deps)
"${pip[@]}" --target "$work/headers" -r "$top/tools/cuda12-wheels.txt" || die "NVIDIA's wheels cannot be had"
"${pip[@]}" --target "$work/runtime" "$runtime" || die "$runtime cannot be had"
cp -a "$work"/headers/nvidia/*/include/. "$new/include/"
cp -a "$work/runtime/nvidia/cuda_runtime/lib/libcudart_static.a" "$work/runtime/nvidia/cuda_runtime/lib/libcudart.so.12" "$new/lib/"
ln -s libcudart.so.12 "$new/lib/libcudart.so"

# An NCCL in another toolkit's directory cannot be named without that toolkit's headers.
where() { "$top/tools/find-cuda.sh" | sed -n "s/^$1=//p"; }
include=$(where nccl_include) lib=$(where nccl_lib)
if [ -f "$include/cuda.h" ]; then
    ln -s "$include"/nccl* "$new/include/"
    ln -s "$lib"/libnccl.so* "$new/lib/"
fi
made_by >"$new/made-by"
rm -rf "$dir"
mv "$new" "$dir"
echo "cuda12.sh: CUDA $("$dir/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p') in $dir"
