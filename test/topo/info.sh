#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Usage: info.sh EP_INFO FILES_DIR
# What ep_info says of parameters, and that it survives topologies it cannot read.
set -u
ep_info=$1 files=$2 failed=0
unset NCCL_TOPO_FILE HWLOC_XMLFILE NCCL_IB_HCA NCCL_EP_TIMEOUT_MS

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
expect 0 'Inter-node communication is not available in this version' "$ep_info" -r
expect 0 '^  CPU proxy posts verbs +(the machine permits it|no: )' "$ep_info" -r
expect 1 'NCCL_IB_HCA: no port number' env NCCL_IB_HCA=mlx5_0: "$ep_info"
expect 1 '^Versions$' env NCCL_TOPO_FILE="$files/bad-truncated.xml" "$ep_info"
expect 2 '^Usage: ep_info' "$ep_info" --nonsense
expect 2 '^Usage: ep_info' "$ep_info" extra
exit $failed
