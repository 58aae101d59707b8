#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The manual: pages without mistakes of roff, that refer to pages that exist; every variable of ep_info -p, and every
# metric of ep_info --live.
# nccl-net-ep(7) says of each variable of NCCL's transports (nccl_vars.txt) whether the plugin reads it, and is right.
#   manual.sh SOURCE_ROOT ENV_PAGE EP_INFO|none CALL_PAGES_DIR

set -euo pipefail
root=$1 env_page=$2 ep_info=$3 call_pages=$4
. "$(dirname "$0")/checks.sh"

cp "$root"/doc/man/*.[1-7] "$work"
cp "$env_page" "${env_page%/*}/nccl_ep_errors.7" "$call_pages"/*.[37] "$work"
for page in "$work"/*.[1-7]; do
    name=${page##*/}
    if command -v groff >/dev/null; then
        groff -man -ww -z "$page" 2>"$work/roff" && [ ! -s "$work/roff" ] || fail "$name: $(<"$work/roff")"
    fi
    while read -r other section; do
        [ -f "$work/$other.$section" ] || fail "$name refers to $other($section)"
    done < <(sed -nE 's/^\.BR ((nccl|ep_|vcrun)\w*) \(([1-7])\).*/\1 \3/p' "$page")
    grep -q '^\.SH SEE ALSO' "$page" || fail "$name has no SEE ALSO"
done
[ "$(ls "$work"/*.3 | wc -l)" -ge 25 ] || fail "$(ls "$work"/*.3 | wc -l) pages of calls"

# A metric of the live page has its word.
grep -ohE '"nccl_ep_[a-z_]+"' "$root/tools/ep_info_live.c" | tr -d '"' | sort -u >"$work/metrics"
[ "$(wc -l <"$work/metrics")" -ge 7 ] || fail "ep_info_live.c has $(wc -l <"$work/metrics") metrics"
while read -r name; do
    grep -qx "\.B $name" "$work/ep_info.1" || fail "ep_info.1 lacks $name"
done <"$work/metrics"

# From ENVIRONMENT on: what is read, and behind "Not read" what is not.
sed -n '/^\.SH ENVIRONMENT/,/^\.SH FILES/p' "$root/doc/man/nccl-net-ep.7" >"$work/environment"
sed '/^\.SS Not read/,$d' "$work/environment" | grep -oE 'NCCL_\w+' | sort -u >"$work/read"
sed '1,/^\.SS Not read/d' "$work/environment" | # the names above each paragraph
    awk '/^\.TP/ { names = 1; next } names { print; names = /\\$/ }' | grep -oE 'NCCL_\w+' >"$work/unread"
[ "$(wc -l <"$work/unread")" -gt 30 ] || fail "nccl-net-ep.7 lists $(wc -l <"$work/unread") variables that are not read"
while read -r name; do
    in_sources=no
    ! grep -rqF "\"$name\"" "$root/plugin" "$root/topo" --include=*.c || in_sources=yes
    if grep -qx "$name" "$work/unread"; then
        [ $in_sources = no ] || fail "nccl-net-ep.7: $name is not read, but it is in the sources"
    else
        grep -qx "$name" "$work/read" || fail "nccl-net-ep.7 does not say whether $name is read"
        [ $in_sources = yes ] || fail "nccl-net-ep.7: $name is read, but it is not in the sources"
    fi
done <"$root/test/build/nccl_vars.txt"

if [ "$ep_info" != none ]; then
    "$ep_info" -p | sed -nE 's/^  ((NCCL|HWLOC)_\w+) .*/\1/p' >"$work/names"
    [ "$(wc -l <"$work/names")" -gt 30 ] || fail "ep_info -p lists $(wc -l <"$work/names") variables"
    while read -r name; do
        grep -q "^\.B $name\$" "$env_page" || fail "nccl_ep_env.7 lacks $name"
    done <"$work/names"
fi
exit $failed
