#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
export VC_CLOCK=real # as the kernel's NICs do
# In the guest: ranks of two nodes, an rdma_rxe device for each node, a switch between them. The proxy
# posts through the system's libibverbs, and what it posts crosses the switch. Or, of two guests, one,
# whose device is at the other end of a wire.
#   ranks.sh BUILD ranks|exact|loss|link|plugin...      BUILD has the virtual cluster in test/vcluster
#   ranks.sh BUILD bandwidth
#   ranks.sh BUILD first|second

tools=$(realpath "$(dirname "$0")/../../tools")
work=$(mktemp -d) # the guest has its host's /tmp
cd "$1/test" || exit
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
		# What a device refuses, as one does that has just lost its link, rdma_rxe tries again at
		# once and for ever, with the processor held: a queue in front of it takes everything.
		tc qdisc add dev nic$i root pfifo limit 10000
		rdma link add rxe$i type rxe netdev nic$i
	done
	softirqs_first
	# The software NIC's libraries, which vcrun would have programs find first, go out of sight.
	mount -t tmpfs none vcluster/nic
	set +e
}

# rdma_rxe works in softirqs: they shall go ahead of ranks, which poll.
softirqs_first() {
	local i comm
	for i in /proc/[0-9]*; do
		read -r comm <"$i/comm"
		[[ $comm != ksoftirqd/* ]] || chrt -f -p 10 "${i#/proc/}"
	done
}

# nic0, 10.0.0.1 of the first guest and 10.0.0.2 of the second.
wire() {
	local nic host=1
	[ "$1" = first ] || host=2
	set -e
	nic=$(basename /sys/bus/virtio/drivers/virtio_net/virtio*/net/*)
	ip link set lo up
	ip link set "$nic" name nic0
	ip link set nic0 mtu 9000 up
	ip addr add 10.0.0.$host/24 dev nic0
	rdma link add rxe0 type rxe netdev nic0
	softirqs_first
	set +e
}

# apart first|second COUNT: so many messages each way, of two processes that share no kernel.
apart() {
	local output peer=10.0.0.1
	[ "$1" = second ] || peer=listen
	output=$(net/net_far "$PWD/../plugin/net/libnccl-net-ep.so" rxe0 "$peer" "$2" 2>&1) ||
		fail "two guests: $output"
	echo "$2 messages: $SECONDS s"
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
# the command runs. Run in the background: who cuts goes ahead of what there is to be cut.
cut() {
	local from now tries status
	chrt -f -p 20 $BASHPID
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

# The report has a line for each of these, where ep_info is built.
report() {
	local line
	[ -x ../tools/ep_info ] || return 0
	PATH=$PWD/../tools:$PATH "$tools/ep_report.sh" >"$work/report" 2>&1
	for line in "$@"; do
		grep -Eq -e "$line" "$work/report" || fail "the report lacks $line: $(cat "$work/report")"
	done
	echo "report: $(wc -l <"$work/report") lines, $SECONDS s"
}

# far OPTION...: two processes, one per device, and the status of both; what they say goes to $work/far.
far() {
	local library=$PWD/../plugin/net/libnccl-net-ep.so listener status
	: >"$work/far"
	net/net_far "$library" rxe0 listen "$@" >>"$work/far" 2>&1 &
	listener=$!
	net/net_far "$library" rxe1 127.0.0.1 "$@" >>"$work/far" 2>&1
	status=$?
	wait $listener && [ $status -eq 0 ] || fail "two processes: $(cat "$work/far")"
}

# The link of one device goes down: for moments, which retries outlast; for longer, so that the connections
# fail, and back for new ones.
plugin_link() {
	local cutter
	export NCCL_IB_TIMEOUT=14
	{ cut 100000 sleep 0.1 && cut 100000 sleep 0.1 && cut 100000 sleep 0.1 && : >"$work/cut"; } &
	cutter=$!
	far 10 until "$work/cut"
	wait $cutter || fail "the link was never down"
	echo "moments: $SECONDS s"
	sleep 2 # the kernel is late with what it says of links
	cut 100000 sleep 5 &
	cutter=$!
	NCCL_IB_RETRY_CNT=6 far 10 down
	wait $cutter || fail "the link was never down"
	grep "retry counter exceeded" "$work/far" || fail "nobody said what happened"
	echo "down and back: $SECONDS s"
}

# The ranks' link is down for 0.2 s, which retries outlast, three times.
link_moments() {
	local cutter
	{ cut 100000 sleep 0.2 && cut 100000 sleep 0.2 && cut 100000 sleep 0.2; } &
	cutter=$!
	perf 1 -b 16 -e 16
	wait $cutter || fail "the run was over before its link was down"
}

# At last: it is down until a rank says so; then there is a rest, and a new group. 7 retries, the default, are
# without end for rdma_rxe; 6 outlast the moment that a busy kernel takes to tell of a link.
link_lost() {
	local cutter text="the port went down"
	: >"$work/output"
	cut 20000 said "$text" "$work/output" &
	cutter=$!
	unset NCCL_EP_TIMEOUT_MS
	NCCL_DEBUG=WARN NCCL_IB_RETRY_CNT=6 NCCL_IB_TIMEOUT=17 LINK_REST_MS=5000 \
		ranks 1 fault/fault_link "$text" >>"$work/output" || fail "$(cat "$work/output")"
	wait $cutter || fail "no rank said that $text"
	echo "port: $SECONDS s"
}

scenario() {
	case $1 in
	ranks)
		# One of each kind.
		perf 1 -b 16 -e 16 --layout rm --quant fp8
		export NCCL_IB_TIMEOUT=10
		netem delay 1ms loss 1% reorder 25%
		perf 1 -b 16 -e 16
		tc -s qdisc show dev sw0 | grep 'dropped [1-9]' || fail "no packet was lost"
		tc qdisc del dev sw0 root
		tc qdisc del dev sw1 root
		unset NCCL_IB_TIMEOUT
		link_lost
		;;
	exact)
		perf 1 -b 1 -e 16 -f 16
		perf 1 -b 16 -e 16 --layout rm --quant fp8
		perf 1 -b 16 -e 16 --staged
		perf 2 -b 4 -e 4
		;;
	loss)
		export NCCL_IB_TIMEOUT=10
		netem delay 1ms loss 2%
		perf 1 -b 16 -e 16
		netem delay 1ms loss 1% reorder 25%
		perf 1 -b 16 -e 16 --layout rm --quant fp8
		tc -s qdisc show dev sw0 | grep 'dropped [1-9]' || fail "no packet was lost"
		;;
	link)
		link_moments
		link_lost
		;;
	plugin)
		# The network plugin, in one process that has both devices.
		export NCCL_SOCKET_IFNAME=lo
		# soft-RoCE takes no DMA-BUF, and the memory of a file is none
		NET_NO_DMABUF=1 plugin data 100000 12 sizes 5000003
		plugin data 100000 11 traffic 1
		NCCL_IB_QPS_PER_CONNECTION=3 NCCL_IB_SPLIT_DATA_ON_QPS=1 NCCL_IB_ADAPTIVE_ROUTING=1 \
			NCCL_IB_AR_THRESHOLD=1000 plugin data 100000 11 traffic 2
		plugin fork 500000 rxe0 rxe1
		report '^  rdma_rxe +loaded' '^  libibverbs.so.1: /.*\.so\.1\.' 'rxe0/ports/1/gid_attrs/types/[0-9]: RoCE v2, .*:0a00:0001, interface nic0' \
			'rxe1/ports/1/state: 4: ACTIVE' '^    rxe1:1, [0-9]+ Mbit/s' '^      no DevX: ' \
			'^      queue pair by verbs, .*: connected with itself, MTU 4096' '^  .*rdma_rxe'
		# What a device sends to itself, as ranks of a mesh do, is not for the switch.
		for i in 1 2; do
			ip rule add pref 5 iif lo from 10.0.0.$i to 10.0.0.$i lookup local
		done
		NCCL_EP_COLLNET=1 plugin coll 100000 12 gather 1
		export NCCL_IB_TIMEOUT=10
		netem delay 1ms loss 1% reorder 25%
		NET_NO_DMABUF=1 plugin data 100000 11 sizes 200000
		tc qdisc del dev sw0 root
		tc qdisc del dev sw1 root
		plugin_link
		;;
	bandwidth)
		export NCCL_SOCKET_IFNAME=lo
		net/net_bandwidth "$PWD/../plugin/net/libnccl-net-ep.so" rxe0 rxe1 0.95 65536 262144 1048576
		exit
		;;
	*)
		fail "no scenario $1"
		;;
	esac
}

case $2 in
first | second)
	export NCCL_SOCKET_IFNAME=nic0 NCCL_IB_TIMEOUT=10
	wire "$2"
	apart "$2" 120
	tc qdisc replace dev nic0 root netem delay 1ms loss 1% reorder 25%
	apart "$2" 50
	tc -s qdisc show dev nic0 | grep 'dropped [1-9]' || fail "no packet was lost"
	exit $failed
	;;
esac
[ $# -ge 2 ] || fail "no scenario"
network
for name in "${@:2}"; do
	scenario "$name"
done
exit $failed
