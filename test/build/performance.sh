#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The README's table and the picture have the numbers of doc/img/performance.json.
#   performance.sh SOURCE_ROOT
set -eu
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$root/tools/ep_plot.py" --bars "$root/doc/img/performance.json" -o "$work/picture.svg" >"$work/table"
cmp "$work/picture.svg" "$root/doc/img/performance.svg"
sed -n '/^<!-- performance:/,/^<!-- end -->/{/^|/p}' "$root/README.md" >"$work/readme"
grep '^|' "$work/table" | diff "$work/readme" -
