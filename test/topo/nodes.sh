#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Usage: nodes.sh VCRUN EP_PERF FILES_DIR
# A group across two nodes uses the NICs that the topology gives its GPUs, or those that the user
# says; results are right, and bytes went over RDMA.
set -u
vcrun=$1 perf=$2 files=$3 failed=0
if [ -e /proc/driver/nvidia/version ]; then
	echo "skipped: topology files are completed with what this machine has, which has GPUs"
	exit 77
fi

# run COUNT PATTERN ENV...: as many different lines that match
run() {
	want=$1 pattern=$2
	shift 2
	out=$("$vcrun" --nodes 2 --gpus 2 --timeout 50 --env VC_NICS=4 --env NCCL_DEBUG=INFO \
		--env NCCL_DEBUG_SUBSYS=NET "$@" -- "$perf" -b 4 -e 4 -c 1 -n 1 -w 0 --hidden 512 \
		--experts 8 --topk 2 2>&1)
	status=$?
	count=$(printf '%s\n' "$out" | grep -Eo "$pattern" | sort -u | wc -l)
	if [ $status -ne 0 ] || [ "$count" -ne "$want" ] ||
		! printf '%s\n' "$out" | grep -q '^# Dispatched over RDMA *: [0-9.]* MB'; then
		echo "FAILED: $*: exit status $status, $count lines instead of $want: $pattern"
		printf '%s\n' "$out"
		failed=1
	fi
}

file="NCCL_TOPO_FILE=$files/virtual-cluster.xml"
run 2 'GPU 0 \(0000:10:00.0\) uses mlx5_[23]:1 at distance PIX' --env "$file"
run 2 'GPU 1 \(0000:11:00.0\) uses mlx5_[01]:1 at distance PIX' --env "$file"
run 1 'GPU 0 .* uses mlx5_[0-9]:1' --env "$file" --env NCCL_IB_HCA=^mlx5_3
run 2 'GPU [01] uses mlx5_[12]:1, by its rank.s place on this host .[01]. among 2 active ports' \
	--env NCCL_IB_HCA=mlx5_1,mlx5_2
exit $failed
