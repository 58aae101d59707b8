#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranges that a tool of NVTX gets of ep_perf, and that EP_INFO says so: nvtx.sh TOOL EP_PERF EP_INFO|none
set -u
tool=$1 ep_perf=$2 ep_info=$3 failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() {
    NVTX_INJECTION64_PATH=$1 "$ep_perf" -g 2 -b 4 -e 4 --hidden 64 --experts 8 --topk 2 -n 3 -w 0 --sms 2 $2 \
        >"$work/out" 2>"$work/err" || { echo "FAILED: ep_perf $2"; cat "$work/out" "$work/err"; failures=1; }
}

has() {
    grep -q "^nvtx: $1\$" "$work/err" || { echo "FAILED: no line 'nvtx: $1'"; failures=1; }
}

run "$tool" ""
has 'domain Switchyard'
has 'push 1 ncclEpUpdateHandle: 4 tokens \[0\]'
has 'push 1 ncclEpDispatch: 4 tokens, 512 bytes \[512\]'
has 'push 1 ncclEpCombine: 4 tokens, 512 bytes \[512\]'
pushed=$(grep -c 'nvtx: push' "$work/err") popped=$(grep -c 'nvtx: pop 1$' "$work/err")
[ "$pushed" = "$popped" ] && [ "$pushed" -gt 12 ] || { echo "FAILED: $pushed ranges begin, $popped end"; failures=1; }
[ "$(grep -c 'nvtx: domain' "$work/err")" = 1 ] || { echo "FAILED: more than one domain"; failures=1; }
run "$tool" "--mode ht --layout flat"
has 'push 1 ncclEpDispatch: 4 tokens, 512 bytes \[512\]'
run "$tool" "--staged"
has 'push 1 ncclEpComplete: 4 tokens \[0\]'
run "" ""
! grep -q nvtx "$work/err" || { echo "FAILED: ranges without a tool"; failures=1; }
[ "$ep_info" = none ] || "$ep_info" -v | grep -q '^  profiler ranges  *yes' ||
    { echo "FAILED: ep_info -v shows no ranges"; failures=1; }
exit $failures
