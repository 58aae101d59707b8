#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# examples/hello.c compiles without warnings, links by pkg-config alone and works.
#   hello.sh SOURCE_ROOT PKG_CONFIG_DIR [LAUNCHER...]
# Without a launcher it is only built.

set -euo pipefail
root=$1
export PKG_CONFIG_PATH=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

read -r -a flags <<<"$(pkg-config --cflags --libs nccl-ep)"
${CC:-cc} -Wall -Wextra -Werror -fopenmp "$root/examples/hello.c" -o "$work/hello" "${flags[@]}"
[ $# -gt 0 ] || exit 0

LD_LIBRARY_PATH=$PKG_CONFIG_PATH "$@" "$work/hello" | tee "$work/output"
# What fails is said in words.
LD_LIBRARY_PATH=$PKG_CONFIG_PATH "$@" env VC_GPUS=0 "$work/hello" 2>"$work/error" && exit 1
grep -q 'cudaGetDeviceCount.*no CUDA-capable device' "$work/error"
grep -q 'all tokens are back' "$work/output" && ! grep -q WRONG "$work/output"
