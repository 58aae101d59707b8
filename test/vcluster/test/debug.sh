#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example of README.md, "How to debug a kernel", in gdb: each warp of the block that has stopped says what it does,
# and a fiber that does not run shows the stack of its kernel.
#   debug.sh SOURCE_ROOT BUILD

set -euo pipefail
page=$1/test/vcluster/README.md
cd "$2"
command -v gdb >/dev/null && [ "$(uname -m)" = x86_64 ] || { echo 'there is no gdb'; exit 77; }
commands=$(mktemp)
trap 'rm -f "$commands"' EXIT
{
    printf 'set breakpoint pending on\nset debuginfod enabled off\nsource %s\n' "$1/test/vcluster/fiber.gdb"
    sed -n 's/^    (gdb) //p' "$page"
} >"$commands"
read -r -a program < <(sed -n '/^    gdb -x/{N;s/\\\n//;s/.*--args //p}' "$page")
out=$(NCCL_NVLS_ENABLE=0 timeout 300 gdb -nx -batch -x "$commands" --args "${program[@]}" 2>&1 || true)
case $out in
*'not permitted'* | *'Could not trace'*) echo 'this machine does not let gdb look'; exit 77 ;;
esac
grep -q 'kernel ep_ll_dispatch_kernel block .* warp 1 lanes' <<<"$out" && grep -q '^#.* ep_ll_dispatch<.*ll_dispatch' <<<"$out" || {
    tail -n 40 <<<"$out"
    exit 1
}
