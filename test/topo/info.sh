#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Usage: info.sh EP_INFO FILES_DIR
# What ep_info says of parameters, and that it survives topologies it cannot read.
set -u
ep_info=$1 files=$2 failed=0
unset NCCL_TOPO_FILE HWLOC_XMLFILE NCCL_IB_HCA NCCL_IB_DISABLE NCCL_IB_SL NCCL_IB_TC NCCL_EP_TIMEOUT_MS
unset NCCL_EP_RDMA_MODE NCCL_EP_NODE_SIZE NCCL_IB_ADDR_RANGE NCCL_IB_ADDR_FAMILY

# expect STATUS PATTERN COMMAND...: its exit status, and a line that the extended pattern matches
expect() {
	want=$1 pattern=$2
	shift 2
	out=$("$@" 2>&1)
	status=$?
	if [ $status -ne "$want" ] || ! printf '%s\n' "$out" | grep -Eq -e "$pattern"; then
		echo "FAILED: $*: exit status $status, wanted $want and a line like: $pattern"
		printf '%s\n' "$out"
		failed=1
	fi
}

expect 0 '^  NCCL_EP_TIMEOUT_MS +0 +default ' "$ep_info" -p
expect 0 '^  NCCL_EP_TIMEOUT_MS +250 +environment ' env NCCL_EP_TIMEOUT_MS=250 "$ep_info" -p
expect 0 '^  NCCL_EP_TIMEOUT_MS +INVALID +environment .*not a number' \
	env NCCL_EP_TIMEOUT_MS=soon "$ep_info" -p
expect 0 '^  NCCL_EP_TIMEOUT_MSEC +UNKNOWN .*NCCL_EP_TIMEOUT_MS$' \
	env NCCL_EP_TIMEOUT_MSEC=1 "$ep_info" -p
expect 0 '^  NCCL_IB_HCA +=mlx5_0:1 +environment ' env NCCL_IB_HCA==mlx5_0:1 "$ep_info" -p
expect 0 '^  ep_info built with +[0-9]+\.[0-9]+\.[0-9]+, API version 2' "$ep_info" --versions
expect 0 '^  compiled for +(sm_[0-9]+|no GPU)' "$ep_info" -v
expect 0 '^  NCCL_IB_TC +-1 +default ' "$ep_info" -p
expect 0 '^  NCCL_IB_TC +0x60 +environment ' env NCCL_IB_TC=0x60 "$ep_info" -p
expect 0 '^  NCCL_IB_TC +INVALID +environment .*-1\.\.255' env NCCL_IB_TC=256 "$ep_info" -p
expect 0 '^  NCCL_IB_ADDR_RANGE +INVALID .*NCCL_IB_ADDR_RANGE=10/8 ' \
	env NCCL_IB_TC=256 NCCL_IB_ADDR_RANGE=10/8 "$ep_info" -p
expect 0 '^  NCCL_IB_ADDR_RANGE +2001:db8::/32 +environment ' \
	env NCCL_IB_ADDR_FAMILY=AF_INET6 NCCL_IB_ADDR_RANGE=2001:db8::/32 "$ep_info" -p
expect 0 '^  NCCL_EP_NODE_SIZE +4,4 +environment ' env NCCL_EP_NODE_SIZE=4,4 "$ep_info" -p

# What RDMA needs, from nothing upwards.
expect 0 '^  4 cpu_proxy +CPU proxy posts verbs +(possible|no: .*)$' "$ep_info" -r
expect 0 '^  RDMA permitted +no +NCCL_IB_DISABLE is 1$' env NCCL_IB_DISABLE=1 "$ep_info" -r
expect 0 '^  RDMA permitted +no +environment variable NCCL_IB_SL=16 ' \
	env NCCL_IB_SL=16 "$ep_info" -r
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
: >"$work/libibverbs.so.1"
: >"$work/libmlx5.so.1"
: >"$work/libcuda.so.1"
expect 0 '^  libibverbs +no +libibverbs.so.1 cannot be loaded .*install libibverbs1$' \
	env LD_LIBRARY_PATH="$work" "$ep_info" -r
expect 0 '^  usable RDMA port +no +not known without libibverbs$' \
	env LD_LIBRARY_PATH="$work" "$ep_info" -r
expect 0 '^  GPU memory registration +no +' env LD_LIBRARY_PATH="$work" "$ep_info" -r
expect 0 '^  No way to ranks of other nodes' env LD_LIBRARY_PATH="$work" "$ep_info" -r
expect 1 'NCCL_IB_HCA: no port number' env NCCL_IB_HCA=mlx5_0: "$ep_info"
expect 1 '^Versions$' env NCCL_TOPO_FILE="$files/bad-truncated.xml" "$ep_info"
expect 2 '^Usage: ep_info' "$ep_info" --nonsense
expect 2 '^Usage: ep_info' "$ep_info" extra
exit $failed
