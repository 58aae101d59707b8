#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each place that says which library runs says the same.
#   identity.sh SOURCE_ROOT VCLUSTER_DIR EP_INFO|none NET_PLUGIN VERSION

set -euo pipefail
root=$1 vc=$2 ep_info=$3 plugin=$(readlink -f "$4") version=$5
. "$(dirname "$0")/checks.sh"
sleeper=
trap '[ -z "$sleeper" ] || kill "$sleeper" 2>/dev/null; rm -rf "$work"' EXIT
library=$(readlink -f "$vc/libnccl_ep.so.0")

# lines N PATTERN FILE: so many lines match
lines() {
    local n
    n=$(grep -Ec -e "$2" "$3" || true)
    [ "$n" = "$1" ] || fail "$n lines, not $1, like '$2':" "$(<"$3")"
}

# The name in the file: of the library and of the plugin, one each, with the commit of the tree.
commit=unknown
[ ! -e "$root/.git" ] || ! command -v git >/dev/null ||
    commit=$(git -c safe.directory='*' -C "$root" rev-parse --short=12 HEAD)
for file in "$library" "$plugin"; do
    LC_ALL=C grep -aoE 'Switchyard [0-9][ -~]*' "$file" | sort -u >"$work/names"
    lines 1 "^Switchyard $version, commit $commit(-dirty)?, [a-z]+$" "$work/names"
    lines 1 . "$work/names"
done
build=$(<"$work/names")
api=$(sed -n 's/^#define NCCL_EP_API_VERSION //p' "$root/include/nccl_ep.h")
line="$build, for the virtual cluster, NCCL EP [0-9.]+ \(API $api\), CUDA [0-9.]+, NCCL [0-9.]+, $library"

perf=("$vc/vcrun" --gpus 2 -- "$vc/ep_perf" -b 1 -e 1 -n 2 -w 0 --hidden 64 --experts 4 --topk 2 --no-align)
perf+=(--chains 1 --no-kernel-times)
NCCL_EP_DEBUG=1 NCCL_DEBUG=INFO "${perf[@]}" -J "$work/json" >"$work/out" 2>&1 || fail "ep_perf: $(<"$work/out")"
lines 2 '^NCCL EP version [0-9.]+\+cuda[0-9.]+$' "$work/out"
lines 2 "^${line/, NCCL \[0-9.\]+,/, (no NCCL yet|NCCL [0-9.]+),}$" "$work/out"
lines 2 "NCCL INFO EP $line$" "$work/out"
lines 1 "^# library   $line$" "$work/out"
lines 1 "\"library\": \{\"text\": \"$line\", \"path\": \"$vc/libnccl_ep.so.0\", \"version\": \"$version\", \"commit\": \"$commit(-dirty)?\"\}" "$work/json"
NCCL_DEBUG=VERSION "${perf[@]}" >"$work/out" 2>&1 || fail "ep_perf: $(<"$work/out")"
lines 1 "EP $line$" "$work/out"
"${perf[@]}" >"$work/out" 2>&1 || fail "ep_perf: $(<"$work/out")"
lines 1 "$line$" "$work/out" # its head alone
"$vc/ep_perf" --version >"$work/out"
lines 1 "^library   ${line/, NCCL \[0-9.\]+,/, (no NCCL yet|NCCL [0-9.]+),}$" "$work/out"

[ "$ep_info" != none ] || exit $failed
LD_LIBRARY_PATH=$vc "$ep_info" -v >"$work/out" 2>&1
lines 1 "^ +$line$" "$work/out"
lines 1 "^  ep_info +$build, NCCL EP" "$work/out"
report=$root/tools/ep_report.sh
cp "$library" "$work/libnccl_ep.so.0.test"
printf '\0NCCL EP version 0.2.0+cuda13.3\0' >"$work/other"
LD_LIBRARY_PATH=$vc LD_PRELOAD=$work/libnccl_ep.so.0.test:$plugin sleep 60 &
sleeper=$!
while ! grep -q "$plugin" "/proc/$sleeper/maps"; do sleep 0.05; done
"$report" --pid "$sleeper" >"$work/out" || fail "ep_report --pid ended with $?"
lines 1 "^Process $sleeper \(sleep\)$" "$work/out"
lines 1 "^  $work/libnccl_ep.so.0.test$" "$work/out"
lines 1 "^  $plugin$" "$work/out"
lines 2 "^      $build$" "$work/out"
# Replaced, as a package manager does it: what is mapped is not what has the name now.
mv "$work/other" "$work/libnccl_ep.so.0.test"
"$report" --pid "$sleeper" >"$work/out" || fail "ep_report --pid ended with $?"
lines 1 "^  $work/libnccl_ep.so.0.test, which was deleted or replaced since it was loaded$" "$work/out"
lines 0 'not Switchyard' "$work/out"
# Names of other users' making cannot steer a terminal.
kill "$sleeper"
mkdir "$work/"$'d\e[31m'
cp "$library" "$work/"$'d\e[31m/libnccl_ep.so.0'
cp "$(command -v sleep)" "$work/"$'s\e[2J'
LD_LIBRARY_PATH=$vc LD_PRELOAD=$work/$'d\e[31m/libnccl_ep.so.0' "$work/"$'s\e[2J' 60 &
sleeper=$!
while ! grep -q 'd.*libnccl_ep.so.0' "/proc/$sleeper/maps"; do sleep 0.05; done
"$report" --pid "$sleeper" >"$work/out" || fail "ep_report --pid ended with $?"
lines 1 "^Process $sleeper \(s\?\[2J\)$" "$work/out"
lines 1 "^  $work/d\?\[31m/libnccl_ep.so.0$" "$work/out"
"$report" --pid $$ >"$work/out"
lines 1 '^  no NCCL, and no library' "$work/out"
"$report" --pid 1x >"$work/out" 2>&1 && fail 'ep_report --pid 1x succeeds'
lines 1 "got '1x', allowed is the number of a process" "$work/out"

# The release that each tool is of.
for tool in ep_info ep_topo; do
    [ "$("$(dirname "$ep_info")/$tool" -V)" = "$tool $version" ] || fail "$tool -V has another version than $version"
done
"$vc/ep_perf" --version | grep -qE "^ep_perf $version, NCCL EP [0-9.]+$" || fail "ep_perf --version has another version than $version"
exit $failed
