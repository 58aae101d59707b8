#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two nodes in network namespaces of their own, a wire between them: nic_netns.sh PROGRAM
# Skipped (77) without the right to make namespaces.
set -u
a=vca$$
b=vcb$$
dir=$(mktemp -d)
clean() {
	ip netns del $a 2>/dev/null
	ip netns del $b 2>/dev/null
	rm -rf "$dir"
}
trap clean EXIT

skip() {
	echo "skipped: $1"
	exit 77
}
command -v ip >/dev/null || skip "no ip command"
ip netns add $a 2>/dev/null && ip netns add $b 2>/dev/null || skip "cannot make network namespaces"
ip -n $a link add v0 type veth peer name v1 netns $b 2>/dev/null || skip "no veth devices"
node=0
for ns in $a:v0 $b:v1; do
	for nic in 1 2; do
		ip -n "${ns%:*}" addr add 10.77.$node.$nic/16 dev "${ns#*:}" || exit 1
	done
	ip -n "${ns%:*}" link set "${ns#*:}" up || exit 1
	ip -n "${ns%:*}" link set lo up || exit 1
	node=$((node + 1))
done

pids=
for rank in 0 1 2 3; do
	ns=$a
	[ $rank -lt 2 ] || ns=$b
	RANK=$rank LOCAL_RANK=$((rank % 2)) WORLD_SIZE=4 VC_NODE=$((rank / 2)) VC_GPUS=2 VC_DIR=$dir \
		VC_NIC_NET=10.77 VC_NIC_RETRY_MS=4000 ip netns exec $ns timeout 50 "$1" &
	pids="$pids $!"
done
code=0
for pid in $pids; do
	wait "$pid" || code=1
done
bytes=$(ip netns exec $a cat /sys/class/net/v0/statistics/tx_bytes)
echo "$bytes bytes on the wire"
[ "$bytes" -gt 5000000 ] || code=1
exit $code
