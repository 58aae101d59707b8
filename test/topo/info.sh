#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Usage: info.sh EP_INFO FILES_DIR [NIC_DIR FAKE_CUDA]
# What ep_info says of parameters and of RDMA, and that it survives topologies it cannot read.
# NIC_DIR has the software NIC's libraries; FAKE_CUDA stands in for libcuda.so.1.
set -u
ep_info=$1 files=$2 nic=${3:-} cuda=${4:-} failed=0
unset NCCL_TOPO_FILE HWLOC_XMLFILE NCCL_IB_HCA NCCL_IB_DISABLE NCCL_IB_SL NCCL_IB_TC NCCL_EP_TIMEOUT_MS
unset NCCL_EP_RDMA_MODE NCCL_EP_NODE_SIZE NCCL_IB_ADDR_RANGE NCCL_IB_ADDR_FAMILY NCCL_NET_GDR_LEVEL
unset NCCL_IB_TIMEOUT NCCL_IB_PCI_RELAXED_ORDERING
export NCCL_CONF_FILE=/nonexistent # no .nccl.conf

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
api=$(sed -n 's/^#define NCCL_EP_API_VERSION //p' "${0%/*}/../../include/nccl_ep.h")
expect 0 '^  ep_info +Switchyard [0-9.]+, commit .*, NCCL EP [0-9]+\.[0-9]+\.[0-9]+, API version '"$api"'$' "$ep_info" --versions
expect 0 '^  compiled for +(sm_[0-9]+|no GPU)' "$ep_info" -v
expect 0 '^  profiler ranges +(yes \(NVTX\)|no: .* no nvtx3/nvToolsExt.h)$' "$ep_info" -v
expect 0 '^  kernel times +(yes \(CUPTI\)|no: .* no cupti.h)$' "$ep_info" -v
expect 0 '^  NCCL_IB_TC +-1 +default ' "$ep_info" -p
expect 0 '^  NCCL_IB_TC +0x60 +environment ' env NCCL_IB_TC=0x60 "$ep_info" -p
expect 0 '^  NCCL_IB_TC +INVALID +environment .*-1\.\.255' env NCCL_IB_TC=256 "$ep_info" -p
expect 0 '^  NCCL_IB_PCI_RELAXED_ORDERING +2 +default ' "$ep_info" -p
expect 0 '^  NCCL_IB_TIMEOUT +31 +environment .*; 50 is more than NICs have room for$' \
	env NCCL_IB_TIMEOUT=50 "$ep_info" -p
expect 0 '^  NCCL_IB_ADDR_RANGE +INVALID .*NCCL_IB_ADDR_RANGE=10/8 ' \
	env NCCL_IB_TC=256 NCCL_IB_ADDR_RANGE=10/8 "$ep_info" -p
expect 0 '^  NCCL_IB_ADDR_RANGE +2001:db8::/32 +environment ' \
	env NCCL_IB_ADDR_FAMILY=AF_INET6 NCCL_IB_ADDR_RANGE=2001:db8::/32 "$ep_info" -p
expect 0 '^  NCCL_EP_NODE_SIZE +4,4 +environment ' env NCCL_EP_NODE_SIZE=4,4 "$ep_info" -p
expect 0 '^  NCCL_EP_MEMORY +ipc +environment ' env NCCL_EP_MEMORY=ipc "$ep_info" -p
expect 0 'NVLink multicast +not used: NCCL_EP_NVLS is not 1' env -u NCCL_EP_NVLS "$ep_info" -v
expect 0 'NVLink multicast +not used: NCCL_NVLS_ENABLE=0' \
	env NCCL_EP_NVLS=1 NCCL_NVLS_ENABLE=0 "$ep_info" -v
expect 0 '^  NCCL_EP_MEMORY +auto +default ' env -u NCCL_EP_MEMORY "$ep_info" -p
expect 0 '^  NCCL_EP_MEMORY +INVALID .*set it to one of auto\|window\|ipc\|host' env NCCL_EP_MEMORY=1 "$ep_info" -p

# NCCL's configuration files, as NCCL reads them: the environment wins, then the first file.
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
printf '# NCCL_IB_SL=1\nNCCL_IB_SL=2\r\n\nno equals sign\nNCCL_IB_TC=8\nNCCL_IB_TC=12\n' \
	>"$work/home.conf"
printf 'NCCL_IB_SL=3\nNCCL_EP_TIMEOUT_MS=x\nNCCL_EP_TIMEOUT=1\nNCCL_IB_HCA=\n' >"$work/own.conf"
home="env NCCL_CONF_FILE=$work/home.conf" own="env NCCL_CONF_FILE=$work/own.conf"
expect 0 "^  NCCL_IB_SL +2 +$work/home.conf " $home "$ep_info" -p
expect 0 "^  NCCL_IB_TC +8 +$work/home.conf " $home "$ep_info" -p
expect 0 '^  NCCL_IB_TC +96 +environment ' $home NCCL_IB_TC=96 "$ep_info" -p
expect 0 '^  NCCL_IB_TC +-1 +default ' $home NCCL_IB_TC= "$ep_info" -p
expect 0 "^  NCCL_IB_SL +3 +$work/own.conf " $own "$ep_info" -p
expect 0 '^  NCCL_IB_TC +-1 +default ' $own "$ep_info" -p
expect 0 '^  NCCL_IB_HCA +\(all\) +default ' $own "$ep_info" -p
expect 0 "^  NCCL_EP_TIMEOUT_MS +INVALID +$work/own.conf " $own "$ep_info" -p
expect 0 "^  NCCL_EP_TIMEOUT +UNKNOWN +$work/own.conf " $own "$ep_info" -p
# the tail of a long comment is no setting
{ printf '#%4094s' ''; printf 'NCCL_IB_SL=5\n'; } >"$work/long.conf"
expect 0 '^  NCCL_IB_SL +-1 +default ' env NCCL_CONF_FILE="$work/long.conf" "$ep_info" -p
expect 0 '^  NCCL_IB_SL +-1 +default ' env NCCL_CONF_FILE="$work/none" "$ep_info" -p
printf 'NCCL_IB_TIMEOUT=50\n' >"$work/much.conf"
expect 0 "^  NCCL_IB_TIMEOUT +31 +$work/much.conf .*; 50 is more than NICs have room for\$" \
	env NCCL_CONF_FILE="$work/much.conf" "$ep_info" -p
# What is no file of settings is said to be none, and does not hold up anybody.
mkfifo "$work/fifo"
for none in /dev/zero "$work/fifo" "$work"; do
	expect 0 "^$none is not a regular file and does not count here\$" \
		env NCCL_CONF_FILE="$none" timeout 20 "$ep_info" -p
done
{ printf 'NCCL_IB_SL=5\n'; head -c 1048576 /dev/zero | tr '\0' '#'; } >"$work/huge.conf"
expect 0 '^  NCCL_IB_SL +-1 +default ' env NCCL_CONF_FILE="$work/huge.conf" "$ep_info" -p
expect 0 'is longer than 1048576 bytes and does not count here$' \
	env NCCL_CONF_FILE="$work/huge.conf" "$ep_info" -p
printf 'NCCL_IB_DISABLE=1\n' >"$work/home.conf"
expect 0 '^  RDMA permitted +no +NCCL_IB_DISABLE is 1$' $home "$ep_info" -r

# What RDMA needs, from nothing upwards. Libraries that have no function stand for a driver that this machine has.
others=${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
expect 0 '^  4 cpu_proxy +CPU proxy posts verbs +(possible|no: .*)$' "$ep_info" -r
expect 0 '^  RDMA permitted +no +NCCL_IB_DISABLE is 1$' env NCCL_IB_DISABLE=1 "$ep_info" -r
expect 0 '^  RDMA permitted +no +environment variable NCCL_IB_SL=16 ' \
	env NCCL_IB_SL=16 "$ep_info" -r
: >"$work/libibverbs.so.1"
: >"$work/libmlx5.so.1"
: >"$work/libcuda.so.1"
expect 0 '^  libibverbs +no +libibverbs.so.1 cannot be loaded .*install libibverbs1$' \
	env LD_LIBRARY_PATH="$work$others" "$ep_info" -r
expect 0 '^  usable RDMA port +no +not known without libibverbs$' \
	env LD_LIBRARY_PATH="$work$others" "$ep_info" -r
expect 0 '^  GPU memory registration +no +' env LD_LIBRARY_PATH="$work$others" "$ep_info" -r
expect 0 '^  No path to ranks of other nodes' env LD_LIBRARY_PATH="$work$others" "$ep_info" -r
# How memory of peers is mapped, where there is an NCCL.
if [ -n "$cuda" ] && "$ep_info" -v | grep -Eq '^  libnccl.so.2 +[0-9]'; then
	expect 0 'memory of peers +by host memory: NCCL_EP_MEMORY=host' env NCCL_EP_MEMORY=host "$ep_info" -v
	expect 0 'memory of peers +not possible between all GPUs: 0 has no access to 3' \
		env LD_LIBRARY_PATH="${cuda%/*}:$LD_LIBRARY_PATH" FAKE_NVML=peers "$ep_info" -v
	expect 0 'memory of peers +by CUDA IPC' env LD_LIBRARY_PATH="${cuda%/*}:$LD_LIBRARY_PATH" \
		FAKE_NVML=cliques NCCL_EP_MEMORY=ipc "$ep_info" -v
fi

if [ -n "$nic" ]; then
	cp "$cuda" "$work/libcuda.so.1" || exit 1
	rm "$work/libibverbs.so.1" "$work/libmlx5.so.1"
	machine="env HWLOC_COMPONENTS=-linux:pci LD_LIBRARY_PATH=$nic:$work$others NCCL_TOPO_FILE=$files/eight-own-nic.xml VC_NICS=2"
	mode='Groups with remote ranks use'
	# The library's GPUs are CUDA's, and its NICs are those that the topology gives these.
	expect 0 '^  GPU +yes +2$' \
		$machine FAKE_CUDA=1,100 FAKE_CUDA_GPUS=0000:13:00.0,0000:93:00.0 "$ep_info" -r
	expect 0 '^  GPU +no +no GPU$' $machine "$ep_info" -r
	expect 0 '^  GPU +yes +1; the topology does not have 0000:01:00.0,' \
		$machine FAKE_CUDA=1,100 FAKE_CUDA_GPUS=0000:01:00.0 "$ep_info" -r
	unreadable="$machine FAKE_CUDA=1,100 NCCL_TOPO_FILE=$files/bad-truncated.xml"
	expect 1 '^  GPU +yes +1; the topology cannot be read: they take NICs in turn$' \
		$unreadable "$ep_info" -r
	expect 1 "^  $mode [a-z_]*\.\$" $unreadable "$ep_info" -r
	shared="$machine FAKE_CUDA=1,100 NCCL_TOPO_FILE=$files/one-shared-nic.xml VC_NICS=1"
	shared="$shared NCCL_NET_GDR_LEVEL=LOC FAKE_CUDA_GPUS=0000:17:00.0"
	expect 0 '^  usable RDMA port +no +NCCL_NET_GDR_LEVEL=LOC forbids GPU 0000:17:00.0 .*PHB$' \
		$shared "$ep_info" -r
	expect 0 '^  No path to ranks of other nodes' $shared "$ep_info" -r
	expect 1 '^  RDMA permitted +no +environment variable NCCL_NET_GDR_LEVEL=NEAR is not' \
		$machine FAKE_CUDA=1,100 NCCL_NET_GDR_LEVEL=NEAR "$ep_info" -r
	expect 0 '^# unused mlx5_7:1@1.*: not among the active ports that this process can open$' \
		$machine "$ep_info" -d
	if [ "$(id -u)" -eq 0 ]; then
		expect 0 "^  $mode gpu\.\$" $machine FAKE_CUDA=1,100 "$ep_info" -r
		expect 0 '^  2 gpu_host .* possible$' $machine FAKE_CUDA=1,100 "$ep_info" -r
		expect 0 "^  $mode cpu_db, as NCCL_EP_RDMA_MODE says" \
			$machine FAKE_CUDA=1,200 NCCL_EP_RDMA_MODE=3 "$ep_info" -r
	else
		expect 0 "^  $mode cpu_db\.\$" $machine FAKE_CUDA=1,100 "$ep_info" -r
		expect 0 '^  2 gpu_host .* no: not root.*PeerMappingOverride' \
			$machine FAKE_CUDA=1,100 "$ep_info" -r
	fi
	expect 0 '^  usable RDMA port +yes +2 of 2, 2 devices: mlx5_0:1 mlx5_1:1$' \
		$machine FAKE_CUDA=1,100 "$ep_info" -r
	expect 0 '^  usable RDMA port +yes +1 of 2, 2 devices: mlx5_1:1$' \
		$machine NCCL_IB_HCA=^mlx5_0 "$ep_info" -r
	expect 0 '^  usable RDMA port +no +.* 2 active, none of these permitted by NCCL_IB_HCA$' \
		$machine NCCL_IB_HCA=mlx4 "$ep_info" -r
	expect 0 '^  No path to ranks of other nodes' $machine NCCL_IB_HCA=mlx4 "$ep_info" -r
	# A device that only knows verbs: the last mode.
	expect 0 "^  $mode cpu_proxy\.\$" \
		$machine FAKE_CUDA=1,100 VC_NIC_PROFILE=rxe "$ep_info" -r
	expect 0 '^  mlx5 device with DevX +no +.* is not an mlx5 device' \
		$machine FAKE_CUDA=1,100 VC_NIC_PROFILE=rxe "$ep_info" -r
	expect 0 '^  3 cpu_db .* no: .* is not an mlx5 device' \
		$machine FAKE_CUDA=1,100 VC_NIC_PROFILE=rxe "$ep_info" -r
	# No DMA-BUF; what is left is nvidia-peermem, which is here or not.
	[ -e /sys/module/nvidia_peermem ] ||
		expect 0 '^  4 cpu_proxy .* no: no DMA-BUF .* and no nvidia-peermem' \
			$machine FAKE_CUDA=0,100 "$ep_info" -r
	expect 0 '^  NIC writes seen in order +no +.*not reliable$' \
		$machine FAKE_CUDA=1,0 "$ep_info" -r
	# Ports that are bonds.
	expect 0 'mlx5_1:1 is a bond of 2 ports, by queue pair, 400000 Mbit/s$' $machine VC_NIC_PROFILE=bond "$ep_info" -r
	expect 0 'mlx5_0:1 is a bond of 2 ports, by a hash of headers' $machine VC_NIC_PROFILE=bond_hash "$ep_info" -r
	# A queue pair on each port.
	expect 0 '^    queue pair by commands, .*: connected with itself, MTU 4096, tier 1, bond of 2 ports, by queue pair, sends by port [12], ECE 0xf3$' \
		$machine VC_NIC_PROFILE=bond "$ep_info" --queues
	expect 0 '^    queue pair by verbs, .*: connected with itself, .*ECE 0xf3$' $machine VC_NIC_PROFILE=bond "$ep_info" -q
	expect 0 '^    queue pair by commands, .*: no: .*INIT2RTR_QP was refused: status 0x3' \
		$machine VC_NIC_PROFILE=no_rtr "$ep_info" -q
	expect 0 '^    no DevX: it is not an mlx5 device$' $machine VC_NIC_PROFILE=rxe "$ep_info" -q
	expect 0 '^  not tried: .*NCCL_IB_SL' $machine NCCL_IB_SL=99 "$ep_info" -q
	echo NCCL_IB_GID_INDEX=100 >"$work/gid.conf"
	expect 0 '^    not usable: NCCL_IB_GID_INDEX=100' $machine NCCL_CONF_FILE="$work/gid.conf" "$ep_info" -q
fi
# Output that is lost has a reason.
for options in '' -V -h -n --live '--live --json'; do
	# shellcheck disable=SC2086
	expect 1 '^ep_info: standard output: not all results are there: No space left on device$' \
		sh -c '"$@" >/dev/full' - "$ep_info" $options
done
expect 1 'NCCL_IB_HCA: no port number' env NCCL_IB_HCA=mlx5_0:x "$ep_info"
expect 1 '^Versions$' env NCCL_TOPO_FILE="$files/bad-truncated.xml" "$ep_info"
expect 2 "^ep_info: '--nonsense' is not an option. Try 'ep_info -h'.$" "$ep_info" --nonsense
expect 2 'print nothing else' "$ep_info" -q --live
expect 2 "^ep_info: 'extra' is not an option. Try 'ep_info -h'.$" "$ep_info" extra
exit $failed
