#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# In the guest: ranks of two nodes, an rdma_rxe device for each node, a switch between them. The proxy
# posts through the system's libibverbs, and what it posts crosses the switch.
#   ranks.sh BUILD exact|loss|link|plugin      BUILD has the virtual cluster in test/vcluster

cd "$1/test" || exit
scenario=$2
export NCCL_NVLS_ENABLE=0 NCCL_EP_RDMA_MODE=4 VC_NO_DMABUF=1 VC_SMS=2 VC_WATCHDOG_S=100
export NCCL_EP_TIMEOUT_MS=90000
failed=0

fail() {
	echo "FAILED: $*"
	failed=1
}

# nic0 and nic1, 10.0.0.1 and 10.0.0.2, at the ports sw0 and sw1 of a switch. The kernel would hand
# over packets between its own addresses by itself: the table that says so comes last.
network() {
	local i
	set -e
	ip link set lo up
	ip link add switch type bridge
	ip link set switch up
	ip rule add pref 100 lookup local
	ip rule del pref 0
	echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
	for i in 0 1; do
		ip link add nic$i mtu 9000 address 02:00:00:00:00:0$i type veth peer name sw$i mtu 9000
		ip link set sw$i master switch up
		echo 1 >/proc/sys/net/ipv4/conf/nic$i/accept_local
		ip addr add 10.0.0.$((i + 1))/24 dev nic$i
		ip link set nic$i up
		ip neigh add 10.0.0.$((2 - i)) lladdr 02:00:00:00:00:0$((1 - i)) dev nic$i nud permanent
		ip route add 10.0.0.0/24 dev nic$i src 10.0.0.$((i + 1)) table $((10 + i))
		ip rule add pref 10 iif lo from 10.0.0.$((i + 1)) lookup $((10 + i))
		rdma link add rxe$i type rxe netdev nic$i
	done
	# rdma_rxe works in softirqs: they shall go ahead of ranks, which poll.
	for i in /proc/[0-9]*; do
		read -r comm <"$i/comm"
		[[ $comm != ksoftirqd/* ]] || chrt -f -p 10 "${i#/proc/}"
	done
	# The software NIC's libraries, which vcrun would have programs find first, go out of sight.
	mount -t tmpfs none vcluster/nic
	set +e
}

# ranks GPUS PROGRAM ARGUMENT...: so many ranks on each node.
ranks() {
	local gpus=$1
	shift
	vcluster/vcrun --timeout 300 --nodes 2 --gpus "$gpus" -- sh -c \
		'NCCL_IB_HCA=rxe$VC_NODE exec "$0" "$@"' "$@" 2>&1
}

# perf GPUS OPTION...: the results are right, and rows crossed the switch.
perf() {
	local gpus=$1 before after output
	shift
	read -r before </sys/class/net/sw0/statistics/rx_bytes
	output=$(ranks "$gpus" vcluster/ep_perf -c 1 -n 2 -w 0 --experts 8 --topk 4 --hidden 1024 \
		--sms 2 --no-align "$@") || fail "$output"
	read -r after </sys/class/net/sw0/statistics/rx_bytes
	echo "$gpus per node, $*: $((after - before)) bytes, $SECONDS s"
	[ $((after - before)) -gt 100000 ] || fail "these are too few bytes"
}

# netem OPTION...: what the switch does to packets on their way to either node.
netem() {
	tc qdisc replace dev sw0 root netem "$@" && tc qdisc replace dev sw1 root netem "$@" ||
		fail "netem $*"
}

# cut BYTES COMMAND...: once node 0 has sent that much more, node 1's NIC is without its link while
# the command runs.
cut() {
	local from now tries status
	read -r from </sys/class/net/sw0/statistics/rx_bytes
	for ((tries = 0; tries < 3000; tries++)); do
		read -r now </sys/class/net/sw0/statistics/rx_bytes
		if [ "$now" -ge $((from + $1)) ]; then
			shift
			ip link set sw1 down
			"$@"
			status=$?
			ip link set sw1 up
			return $status
		fi
		sleep 0.02
	done
	return 1
}

# said TEXT FILE: waits until it is there.
said() {
	timeout 100 sh -c 'until grep -q "$0" "$1"; do sleep 0.1; done' "$@"
}

# plugin PROGRAM BYTES ARGUMENT...: a test of the network plugin passes, and so many bytes crossed the switch.
plugin() {
	local before after output program=$1 least=$2
	shift 2
	read -r before </sys/class/net/sw0/statistics/rx_bytes
	output=$("net/net_$program" "$PWD/../plugin/net/libnccl-net-ep.so" "$@" 2>&1) ||
		fail "$program $*: $output"
	read -r after </sys/class/net/sw0/statistics/rx_bytes
	echo "$program $*: $((after - before)) bytes, $SECONDS s"
	[ $((after - before)) -ge "$least" ] || fail "these are too few bytes"
}

network
case $scenario in
exact)
	perf 1 -b 1 -e 16 -f 4
	perf 1 -b 16 -e 16 --layout rm --quant fp8
	perf 1 -b 16 -e 16 --staged
	perf 2 -b 4 -e 4
	;;
loss)
	export NCCL_IB_TIMEOUT=10
	netem delay 1ms loss 2%
	perf 1 -b 16 -e 16
	netem delay 1ms loss 1% reorder 25%
	perf 1 -b 16 -e 16
	perf 1 -b 16 -e 16 --layout rm --quant fp8
	tc -s qdisc show dev sw0 | grep 'dropped [1-9]' || fail "no packet was lost"
	;;
link)
	# For 0.2 s, which retries outlast, three times.
	{ cut 100000 sleep 0.2 && cut 100000 sleep 0.2 && cut 100000 sleep 0.2; } &
	perf 1 -b 16 -e 16
	wait $! || fail "the run was over before its link was down"
	# Until a rank says so; then there is a rest, and a new group. 7 retries, the default, are
	# without end for rdma_rxe.
	text="the port went down"
	: >/tmp/output
	cut 20000 said "$text" /tmp/output &
	unset NCCL_EP_TIMEOUT_MS
	NCCL_DEBUG=WARN NCCL_IB_RETRY_CNT=6 NCCL_IB_TIMEOUT=14 LINK_REST_MS=5000 VICTIM_SCALE=4 \
		ranks 1 fault/fault_link "$text" >>/tmp/output || fail "$(cat /tmp/output)"
	wait $! || fail "no rank said that $text"
	echo "port: $SECONDS s"
	;;
plugin)
	# The network plugin, in one process that has both devices.
	export NCCL_SOCKET_IFNAME=lo
	plugin data 100000 12 sizes 5000003
	plugin data 100000 11 traffic 1
	NCCL_IB_QPS_PER_CONNECTION=3 NCCL_IB_SPLIT_DATA_ON_QPS=1 NCCL_IB_ADAPTIVE_ROUTING=1 \
		NCCL_IB_AR_THRESHOLD=1000 plugin data 100000 11 traffic 2
	export NCCL_IB_TIMEOUT=10
	netem delay 1ms loss 1% reorder 25%
	plugin data 100000 11 sizes 200000
	;;
*)
	fail "no scenario $scenario"
	;;
esac
exit $failed
