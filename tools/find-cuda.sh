#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints where CUDA and NCCL are, as five lines
#     cuda=DIR  nvcc=FILE  nccl_include=DIR  nccl_lib=DIR  disassembler=DIR
# with nothing after the '=' for what was not found (nccl_*: "default" where the compiler finds it
# unaided). tools/setup.sh decides by it what to fetch, meson.build what to use.
# Order: arguments (CUDA directory, NCCL directory), CUDA_HOME/NCCL_HOME, the system, .deps/.

set -u
top=$(cd "$(dirname "$0")/.." && pwd)
cuda=
nvcc=
nccl_include=
nccl_lib=
disassembler=

# Compiler and headers of release 12.8 or later, the first that knows sm_100.
has_cuda() {
    [ -n "$1" ] && [ -x "$1/bin/nvcc" ] && [ -f "$1/include/cuda_runtime.h" ] || return 1
    version=$(sed -n 's/^#define CUDA_VERSION *\([0-9][0-9]*\).*/\1/p' "$1/include/cuda.h")
    [ "${version:-0}" -ge 12080 ]
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
        cuda=$dir
        nvcc=$dir/bin/nvcc
        break
    fi
done

multiarch=$(gcc -print-multiarch 2>/dev/null)
for dir in "${2:-}" "${NCCL_HOME:-}" "$cuda" /usr/local /usr "$top/.deps/nccl"; do
    [ -n "$dir" ] && nccl_recent "$dir/include" || continue
    for lib in "$dir/lib" "$dir/lib64" "$dir/lib/$multiarch"; do
        [ -e "$lib/libnccl.so" ] || continue
        nccl_include=$dir/include
        nccl_lib=$lib
        break 2
    done
done
case $nccl_include in /usr/include | /usr/local/include) nccl_include=default ;; esac
case $nccl_lib in /usr/lib | /usr/lib/$multiarch) nccl_lib=default ;; esac

path_nvdisasm=$(command -v nvdisasm 2>/dev/null)
for dir in "$cuda/bin" "${path_nvdisasm%/nvdisasm}" "$top/.deps/cuda/bin"; do
    if [ -x "$dir/nvdisasm" ] && [ -x "$dir/cuobjdump" ]; then
        disassembler=$dir
        break
    fi
done

printf 'cuda=%s\nnvcc=%s\nnccl_include=%s\nnccl_lib=%s\ndisassembler=%s\n' \
    "$cuda" "$nvcc" "$nccl_include" "$nccl_lib" "$disassembler"
