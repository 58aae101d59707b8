#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the options that make nvcc work with a C++ compiler of this machine, which are none where
# all is well. The status is not 0 where nothing helps, and nvcc's own words are on stderr.
#   nvcc-host.sh NVCC
# A distribution may be newer than nvcc: then its compiler is refused, and older ones beside it are
# tried. What glibc 2.42 and later declare with _GNU_SOURCE contradicts nvcc 13.0's headers.

set -u
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
echo '__global__ void kernel(float *x) { *x = sqrtf(*x); }' >"$dir/try.cu"

for host in '' g++-15 g++-14 g++-13 g++-12; do
    [ -z "$host" ] || command -v "$host" >/dev/null || continue
    for options in "${host:+-ccbin=$host}" "${host:+-ccbin=$host }-Xcompiler=-U_GNU_SOURCE"; do
        # shellcheck disable=SC2086 # they are words
        if "$1" $options -std=c++17 -c -o "$dir/try.o" "$dir/try.cu" >"$dir/log" 2>&1; then
            echo "$options"
            exit
        fi
        [ -s "$dir/first" ] || cp "$dir/log" "$dir/first"
    done
done
cat "$dir/first" >&2
exit 1
