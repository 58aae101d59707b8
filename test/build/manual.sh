#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The manual: pages without mistakes of roff, that refer to pages that exist; every variable of ep_info -p, and every
# metric, counter and key of JSON that ep_info prints.
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

# ep_info(1) has a word for each metric, each counter of a connection and each key of JSON, and for nothing else.
grep -ohE '"nccl_ep_[a-z_]+"' "$root/tools/ep_info_live.c" | tr -d '"' >"$work/metrics"
sed -n '/^static const struct {$/,/^};/s/^\t{ OF_[A-Z_]*, "\([a-z ]*\)".*/\1/p' "$root/tools/ep_info_net.c" >"$work/counters"
for part in live memory; do # names of members stand behind the word json
    tr '\n' ' ' <"$root/tools/ep_info_$part.c" | grep -oE '\bjson[^";]*"[a-z_]+"' | grep -oE '[a-z_]+"$' | tr -d '"' >"$work/$part"
done
sed -n 's/^\.B \(nccl_ep_.*\)/\1/p' "$work/ep_info.1" >"$work/metrics.page"
bold() { # SECTION: the words that it has in bold print
    awk -v s=".SS $1" '/^\.S[SH] / { on = $0 == s } on' "$work/ep_info.1" |
        sed -nE '/ncclEp/d; s/^\.BR? ([a-z].*)/\1/p' | sed -E 's/ [.,]$//; s/, /\n/g'
}
bold 'Counters of a connection' >"$work/counters.page"
bold 'JSON of groups' >"$work/live.page"
bold 'JSON of sizes' >"$work/memory.page"
for part in metrics:7 counters:13 live:50 memory:17; do
    of=${part%:*}
    [ "$(wc -l <"$work/$of")" -ge "${part#*:}" ] || fail "ep_info prints $(wc -l <"$work/$of") $of"
    diff <(sort -u "$work/$of") <(sort -u "$work/$of.page") >"$work/differ" ||
        fail "ep_info.1, $of: < lacks, > no longer printed: $(grep '^[<>]' "$work/differ" | tr '\n' ' ')"
done

# No counter of a connection is kept that ep_info does not print; `since` is none.
sed -nE '/^struct ep_net_counts(_path)? \{/,/^\};/s/^\tuint64_t ([a-z, ]*);.*/\1/p' "$root/plugin/net/counts_file.h" |
    tr -cs 'a-z' '\n' | sort -u >"$work/kept"
sed -n 's/.*offsetof(struct ep_net_counts[a-z_]*, \([a-z]*\)).*/\1/p' "$root/tools/ep_info_net.c" | sort -u >"$work/printed"
diff <(grep -vx since "$work/kept") "$work/printed" >"$work/differ" || fail "ep_info --net: $(<"$work/differ")"

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
