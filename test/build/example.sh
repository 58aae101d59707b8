#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C programs with one process per rank: build by pkg-config alone, run, and find all right. They are optimised,
# as their readers' programs are.
#   example.sh EXAMPLES_DIR PKG_CONFIG_DIR RANKS [LAUNCHER...]
# Without a launcher it is only built, and with NVCC set the one that has a kernel is, too.

set -euo pipefail
examples=$1
export PKG_CONFIG_PATH=$2
ranks=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

read -r -a flags <<<"$(pkg-config --cflags --libs nccl-ep)"
for program in calls processes training; do
    ${CC:-cc} -std=gnu11 -O2 -Wall -Wextra -Werror "$examples/$program.c" -o "$work/$program" "${flags[@]}"
done
if [ -n "${NVCC:-}" ]; then
    read -r -a nvcc <<<"$NVCC"
    read -r -a cflags <<<"$(pkg-config --cflags nccl-ep)"
    read -r -a libs <<<"$(pkg-config --libs nccl-ep)"
    "${nvcc[@]}" -O3 -std=c++17 -Werror all-warnings -c "$examples/early.cu" -o "$work/early.o" "${cflags[@]}"
    "${CXX:-c++}" "$work/early.o" -o "$work/early" "${libs[@]}"
fi
[ $# -gt 0 ] || exit 0

for run in calls "processes em" "processes rm" training; do
    read -r program layout <<<"$run"
    LD_LIBRARY_PATH=$PKG_CONFIG_PATH "$@" "$work/$program" "$work/id" ${layout:+"$layout"} | tee "$work/out"
    [ "$(grep -c ': OK$' "$work/out")" -eq "$ranks" ]
done

# A file that an earlier run left is named.
head -c 128 /dev/urandom >"$work/stale"
! LD_LIBRARY_PATH=$PKG_CONFIG_PATH "$@" env RANK=1 WORLD_SIZE=2 "$work/processes" "$work/stale" 2>"$work/out"
grep -q "an earlier run? Remove $work/stale" "$work/out"

# What fails is said in words.
! LD_LIBRARY_PATH=$PKG_CONFIG_PATH "$@" env LOCAL_RANK=99 "$work/processes" "$work/none" 2>"$work/out"
grep -q 'cudaSetDevice.*: error [0-9]*: invalid device' "$work/out"
