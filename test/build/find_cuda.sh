#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What tools/find-cuda.sh finds in directories that are made here, and what it refuses when it is named.
#   find_cuda.sh SOURCE_ROOT

set -euo pipefail
source=$1
. "$(dirname "$0")/checks.sh"
unset CUDA_HOME CUDA_PATH NCCL_HOME

# toolkit DIR CUDA_VERSION LIB
toolkit() {
    mkdir -p "$1/bin" "$1/include" "$1/$3"
    printf '#!/bin/sh\n' >"$1/bin/nvcc"
    chmod +x "$1/bin/nvcc"
    echo "#define CUDA_VERSION $2" >"$1/include/cuda.h"
    touch "$1/include/cuda_runtime.h" "$1/$3/libcudart_static.a"
}
# nccl DIR NCCL_VERSION_CODE LIB
nccl() {
    mkdir -p "$1/include" "$1/$3"
    echo "#define NCCL_VERSION_CODE $2" >"$1/include/nccl.h"
    touch "$1/$3/libnccl.so"
}
# finds LINE CUDA NCCL
finds() {
    "$source/tools/find-cuda.sh" "$2" "$3" >"$work/out" || fail "$2 and $3 are refused"
    grep -qxF "$1" "$work/out" || fail "no line '$1': $(<"$work/out")"
}
# refuses WORDS CUDA NCCL: one line with these words and the directory
refuses() {
    if "$source/tools/find-cuda.sh" "$2" "$3" >"$work/out" 2>"$work/err"; then fail "$2 and $3 are taken: $(<"$work/out")"; fi
    [ "$(wc -l <"$work/err")" = 1 ] && grep -qF "'${2:-$3}'" "$work/err" && grep -qF "$1" "$work/err" || fail "not '$1': $(<"$work/err")"
}

multiarch=$(gcc -print-multiarch)
toolkit "$work/new" 12040 lib64
toolkit "$work/debian" 13000 "lib/$multiarch"
toolkit "$work/old" 12030 lib
nccl "$work/nccl" 22800 lib
nccl "$work/nccl-old" 22700 lib
nccl "$work/wheel" 22800 lib
rm "$work/wheel/lib/libnccl.so"
touch "$work/wheel/lib/libnccl.so.2"

finds "cuda=$work/new" "$work/new" "$work/nccl"
finds "cudart=$work/new/lib64" "$work/new" "$work/nccl"
finds "cudart=$work/debian/lib/$multiarch" "$work/debian" "$work/nccl"
finds "nccl_include=$work/nccl/include" "$work/new" "$work/nccl"
finds "nccl_lib=$work/nccl/lib" "$work/new" "$work/nccl"
refuses 'CUDA 12.4 or later' "$work/old" ''
refuses 'CUDA 12.4 or later' "$work/nowhere" ''
refuses 'lib/libnccl.so' '' "$work/wheel"
refuses 'NCCL 2.28 or later' '' "$work/nccl-old"
refuses 'NCCL 2.28 or later' '' "$work/nowhere"
# In /usr/local the compiler finds it, but who reads the header has to know where it is.
if unshare --mount true 2>/dev/null; then
    export -f nccl finds fail
    export source work
    unshare --mount bash -euc 'mount -t tmpfs none /usr/local; nccl /usr/local 22800 lib
        failed=0; finds nccl_include=/usr/local/include "$1" /usr/local; exit $failed' - "$work/new" || failed=1
else
    echo 'no mounts here: NCCL in /usr/local was not tried'
fi
exit $failed
