#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# LD_PRELOAD chooses this library, also for a program that was linked with another one of its name, and does no harm to a
# process that has neither NCCL nor CUDA.
#   preload.sh LIBRARY|none SOURCE_ROOT gpu|vcluster COMPILER-FLAGS...

set -euo pipefail
library=$1 root=$2 flavour=$3
shift 3
if [ "$library" = none ]; then
    echo 'skipped: this build has no GPU library (no nvcc, or -Dcuda=disabled)'
    exit 77
fi
here=$root/test/build
. "$(dirname "$0")/checks.sh"

# Nothing of the environment may help the loader to an NCCL.
clean=(env -i "PATH=$PATH")
out=$("${clean[@]}" LD_PRELOAD="$library" /bin/true 2>&1) || fail "/bin/true ended with status $?"
[ -z "$out" ] || fail "/bin/true said: $out"

mkdir "$work/other"
${CC:-cc} -shared -fPIC "$@" "-I$root/include" "$here/other_library.c" -Wl,-soname,libnccl_ep.so.0 \
    -o "$work/other/libnccl_ep.so.0"
${CC:-cc} "$@" "-I$root/include" "$here/preload.c" -o "$work/preload" "$work/other/libnccl_ep.so.0" \
    "-Wl,-rpath,$work/other" -ldl
out=$("${clean[@]}" "$work/preload") || fail "the program does not run: $out"
[ "$out" = '999: another library' ] || fail "without LD_PRELOAD it is not the other library: $out"
out=$("${clean[@]}" LD_PRELOAD="$library" "$work/preload") || fail "with LD_PRELOAD it ended with status $?"
case $out in
"200: Switchyard "*"$(readlink -f "$library")") ;;
*) fail "with LD_PRELOAD its calls reach: $out" ;;
esac

if [ "$flavour" = gpu ]; then
    case $out in *', no NCCL yet, '*) ;; *) fail "an NCCL was loaded: $out" ;; esac
    out=$("${clean[@]}" LD_PRELOAD="$library" "$work/preload" group | tail -n 1)
    case $out in
    '2: ncclEpCreateGroup: this process has no NCCL'*libnccl.so.2*) ;;
    *) fail "without NCCL a group's creation says: $out" ;;
    esac
fi
exit $failed
