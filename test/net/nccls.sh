#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# NCCL itself over the network plugin, on a GPU that two processes share, with the software NIC: collectives, sends
# and an all-to-all; with NCCL 2.28 also GPU threads that send by the plugin's GIN. No part of ./check.
#   nccls.sh BUILD LIBNCCL...      BUILD: made for GPUs; LIBNCCL: libnccl.so.2 of each release, or its directory
# GIN's device code is that of BUILD's headers, so it is only tried with their release and later ones of 2.28.
set -u
build=$(realpath "$1")
shift
export NCCL_NVLS_ENABLE=0 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET
export NCCL_NET_PLUGIN=ep NCCL_NET_PLUGIN_REF_COUNT=1 VC_NICS=1
headers=$("$build/tools/ep_info" -v | sed -n 's/^  NCCL headers *//p')
work=$(mktemp -d) failed=0
trap 'rm -rf "$work"' EXIT

# run NAME PATTERN VARIABLE=VALUE... -- OPTION...: it ends well, and its log has the pattern
run() {
    local name=$1 pattern=$2 vars=() result=ok
    shift 2
    while [ "$1" != -- ]; do vars+=("$1"); shift; done
    shift
    env LD_LIBRARY_PATH="$build/plugin/net:$build/test/vcluster/nic:$dir:${LD_LIBRARY_PATH:-}" VC_DIR="$work/nics" "${vars[@]}" \
        timeout 100 "$build/test/net/nccls" "$@" >"$work/log" 2>&1 || result="FAILED: status $?"
    rm -rf "$work/nics"
    grep -q 'Using network EP' "$work/log" && grep -Eq "$pattern" "$work/log" || result="FAILED: no \"$pattern\" in its log"
    version=$(grep -om1 'NCCL version [0-9.]*' "$work/log")
    printf '%-22s %-12s %s\n' "${version:-$dir}" "$name" "$result"
    [ "$result" = ok ] || { failed=1; grep -E 'WARN|wrong [1-9]|nccls:|plugin|Plugin' "$work/log" | tail -20; }
}

for lib; do
    dir=$(realpath "$lib")
    [ -d "$dir" ] || dir=$(dirname "$dir")
    run collectives 'all ranks ended well' --
    [ "$(printf '%s\n' "$headers" "${version##* }" | sort -V | head -1)" = "$headers" ] || continue
    case ${version##* } in
    2.28.*) run gin 'Assigned GIN plugin EP' VC_NIC_DMABUF=1 NCCL_GIN_TYPE=2 NCCL_NET_GDR_LEVEL=SYS -- -g ;;
    esac
done
exit $failed
