#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A C program with one process per rank: builds by pkg-config alone, runs, both layouts are right.
#   run.sh PKG_CONFIG_DIR RANKS [LAUNCHER...]
# Without a launcher it is only built.

set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PKG_CONFIG_PATH=$1
ranks=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

read -r -a flags <<<"$(pkg-config --cflags --libs nccl-ep)"
${CC:-cc} -std=gnu11 -Wall -Wextra -Werror "$here/example.c" -o "$work/example" "${flags[@]}"
[ $# -gt 0 ] || exit 0

for layout in em rm; do
    LD_LIBRARY_PATH=$PKG_CONFIG_PATH "$@" "$work/example" "$work/id.$layout" $layout | tee "$work/out"
    [ "$(grep -c ': OK$' "$work/out")" -eq "$ranks" ]
done
