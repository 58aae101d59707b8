#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints where CUDA and NCCL are, as six lines
#     cuda=DIR  nvcc=FILE  nccl_include=DIR  nccl_lib=DIR  disassembler=DIR  cudart=DIR
# with nothing after the '=' for what was not found (nccl_*: "default" where the compiler finds it
# unaided). tools/setup.sh decides by it what to fetch, meson.build what to use.
# Order: arguments (CUDA directory, NCCL directory), CUDA_HOME/NCCL_HOME, the system, .deps/.
# An argument that is not what it should be is an error, of one line.

set -u
top=$(cd "$(dirname "$0")/.." && pwd)
cuda=
nvcc=
nccl_include=
nccl_lib=
disassembler=
cudart=

die() {
    echo "$*" >&2
    exit 1
}

# Compiler and headers of release 12.4 or later, the oldest that is tried.
has_cuda() {
    [ -n "$1" ] && [ -x "$1/bin/nvcc" ] && [ -f "$1/include/cuda_runtime.h" ] || return 1
    version=$(sed -n 's/^#define CUDA_VERSION *\([0-9][0-9]*\).*/\1/p' "$1/include/cuda.h")
    [ "${version:-0}" -ge 12040 ]
}

# nccl.h of this directory is of release 2.28 or later.
nccl_recent() {
    [ -f "$1/nccl.h" ] || return 1
    version=$(sed -n 's/^#define NCCL_VERSION_CODE *\([0-9][0-9]*\).*/\1/p' "$1/nccl.h")
    [ "${version:-0}" -ge 22800 ]
}

path_nvcc=$(command -v nvcc 2>/dev/null) && path_nvcc=$(readlink -f "$path_nvcc")
for dir in "${1:-}" "${CUDA_HOME:-}" "${CUDA_PATH:-}" "${path_nvcc%/bin/nvcc}" /usr/local/cuda \
    "$top/.deps/cuda"; do
    if has_cuda "$dir"; then
        cuda=$(cd "$dir" && pwd)
        nvcc=$cuda/bin/nvcc
        break
    fi
    [ -z "$dir" ] || [ "$dir" != "${1:-}" ] ||
        die "toolkit_home is '$dir', which has no bin/nvcc with include/cuda.h of CUDA 12.4 or later: name a toolkit's directory"
done

multiarch=$(gcc -print-multiarch 2>/dev/null)
# The directory of $1 that has library $2: of lib64, lib and Debian's.
lib_of() {
    for lib in "$1/lib64" "$1/lib" "$1/lib/$multiarch"; do
        if [ -e "$lib/$2" ]; then
            echo "$lib"
            return
        fi
    done
}
[ -z "$cuda" ] || cudart=$(lib_of "$cuda" libcudart_static.a)

for dir in "${2:-}" "${NCCL_HOME:-}" "$cuda" /usr/local /usr "$top/.deps/nccl"; do
    [ -n "$dir" ] || continue
    if nccl_recent "$dir/include"; then
        nccl_lib=$(lib_of "$dir" libnccl.so)
        nccl_include=${nccl_lib:+$dir/include}
    fi
    [ -z "$nccl_lib" ] || break
    [ "$dir" != "${2:-}" ] || die "nccl_home is '$dir', which has no include/nccl.h of NCCL 2.28 or later with lib/libnccl.so" \
        "(a link to libnccl.so.2, which wheels lack): make that, or name another directory"
done
case $nccl_include in /usr/include) nccl_include=default ;; esac
case $nccl_lib in /usr/lib | /usr/lib/$multiarch) nccl_lib=default ;; esac

path_nvdisasm=$(command -v nvdisasm 2>/dev/null)
for dir in "$cuda/bin" "${path_nvdisasm%/nvdisasm}" "$top/.deps/cuda/bin"; do
    if [ -x "$dir/nvdisasm" ] && [ -x "$dir/cuobjdump" ]; then
        disassembler=$dir
        break
    fi
done

printf 'cuda=%s\nnvcc=%s\nnccl_include=%s\nnccl_lib=%s\ndisassembler=%s\ncudart=%s\n' \
    "$cuda" "$nvcc" "$nccl_include" "$nccl_lib" "$disassembler" "$cudart"
