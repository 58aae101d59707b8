#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ep_report             all that is asked for when RDMA does not work, to standard output
# ep_report --pid PID   the libraries for expert parallelism, network plugins and NCCL of a process
# ep_report --help      this text
#
# It shows the values only of variables that the library, NCCL, CUDA, verbs or hwloc are known to
# read; of others whose names begin like these, the name. Exit status: 0 done, 1 the process cannot
# be read or output is lost, 2 usage.
set -u
export LC_ALL=C
info=$(dirname "$(readlink -f "$0")")/ep_info
[ -x "$info" ] || info=ep_info

# Variables that NCCL, CUDA, verbs and hwloc read and whose values are no secrets, besides those
# that `ep_info -p` lists.
known=' CUDA_CACHE_DISABLE CUDA_CACHE_MAXSIZE CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER
CUDA_DISABLE_PTX_JIT CUDA_ENABLE_COREDUMP_ON_EXCEPTION CUDA_FORCE_PTX_JIT CUDA_LAUNCH_BLOCKING
CUDA_MODULE_LOADING CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_VISIBLE_DEVICES HWLOC_COMPONENTS
HWLOC_FSROOT HWLOC_SYNTHETIC HWLOC_THISSYSTEM HWLOC_XMLFILE IBV_FORK_SAFE MLX5_POST_SEND_PREFER_BF
MLX5_SCATTER_TO_CQE MLX5_SHUT_UP_BF MLX5_SINGLE_THREADED NCCL_ALGO NCCL_ALLOC_P2P_NET_LL_BUFFERS
NCCL_BUFFSIZE NCCL_CGA_CLUSTER_SIZE NCCL_CHECKS_DISABLE NCCL_CHECK_POINTERS NCCL_COLLNET_ENABLE
NCCL_COMM_BLOCKING NCCL_COMM_ID NCCL_CROSS_NIC NCCL_CTA_POLICY NCCL_CUMEM_ENABLE
NCCL_CUMEM_HOST_ENABLE NCCL_DMABUF_ENABLE NCCL_GDRCOPY_ENABLE NCCL_GIN_ENABLE NCCL_GIN_PLUGIN
NCCL_GIN_TYPE NCCL_GRAPH_FILE NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER NCCL_HOSTID
NCCL_IGNORE_CPU_AFFINITY NCCL_LAUNCH_MODE NCCL_LAUNCH_ORDER_IMPLICIT NCCL_LL128_BUFFSIZE
NCCL_LL_BUFFSIZE NCCL_LOCAL_REGISTER NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MAX_P2P_NCHANNELS
NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_MIN_P2P_NCHANNELS NCCL_MNNVL_CLIQUE_ID NCCL_MNNVL_ENABLE
NCCL_MNNVL_UUID NCCL_NCHANNELS_PER_NET_PEER NCCL_NET NCCL_NET_DISABLE_INTRA NCCL_NET_FORCE_MERGE
NCCL_NET_GDR_C2C NCCL_NET_GDR_READ NCCL_NET_MERGE_LEVEL NCCL_NET_OPTIONAL_RECV_COMPLETION
NCCL_NET_OVERHEAD NCCL_NET_PLUGIN NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS
NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS NCCL_NVB_DISABLE NCCL_NVLSTREE_MAX_CHUNKSIZE
NCCL_NVLS_CHUNKSIZE NCCL_NVLS_NCHANNELS NCCL_OOB_NET_ENABLE NCCL_OOB_NET_IFNAME
NCCL_P2P_DIRECT_DISABLE NCCL_P2P_LL_THRESHOLD NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE
NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_PXN_LEVEL NCCL_P2P_READ_ENABLE NCCL_P2P_USE_CUDA_MEMCPY
NCCL_PROFILER_PLUGIN NCCL_PROGRESS_APPEND_OP_FREQ NCCL_PROTO NCCL_PXN_C2C NCCL_PXN_DISABLE
NCCL_RAS_ADDR NCCL_RAS_ENABLE NCCL_RAS_TIMEOUT_FACTOR NCCL_RUNTIME_CONNECT NCCL_SET_CPU_STACK_SIZE
NCCL_SET_STACK_SIZE NCCL_SET_THREAD_NAME NCCL_SHM_DISABLE NCCL_SHM_LOCALITY
NCCL_SHM_USE_CUDA_MEMCPY NCCL_SINGLE_PROC_MEM_REG_ENABLE NCCL_SINGLE_RING_THRESHOLD
NCCL_SOCKET_FAMILY NCCL_SOCKET_NTHREADS NCCL_SOCKET_RETRY_CNT NCCL_SOCKET_RETRY_SLEEP_MSEC
NCCL_SYM_CTAS NCCL_THREAD_THRESHOLDS NCCL_TOPO_DUMP_FILE NCCL_TUNER_CONFIG_FILE NCCL_TUNER_PLUGIN
NCCL_WIN_ENABLE NCCL_WIN_STRIDE NCCL_WORK_ARGS_BYTES NCCL_WORK_FIFO_BYTES
RDMAV_ALLOW_DISASSOC_DESTROY RDMAV_FORK_SAFE RDMAV_HUGEPAGES_SAFE '

# flat TEXT: one line that cannot steer a terminal
flat() {
    printf '%s' "${1//[^ -~]/?}"
}

# try COMMAND...: its output, indented; or that it is missing
try() {
    if command -v "$1" >/dev/null; then
        "$@" 2>&1 | tr -c '[:print:]\t\n' '?' | sed 's/^/  /'
    else
        echo "  $1: not installed"
    fi
}

machine() {
    local word words=
    echo Machine
    try uname -srm
    sed -n 's/^PRETTY_NAME=/  /p' /etc/os-release
    for word in $(</proc/cmdline); do # the rest of it is of no concern
        case $word in iommu* | intel_iommu=* | amd_iommu=* | pci=* | pcie_* | arm-smmu*) words+=" $word" ;; esac
    done
    echo "  kernel's command line, of PCIe:$words"
    echo "  IOMMU groups: $(ls /sys/kernel/iommu_groups 2>/dev/null | wc -l)"
    [ ! -e /.dockerenv ] && [ ! -e /run/.containerenv ] || echo "  in a container"
    echo "Kernel modules"
    for word in mlx5_core mlx5_ib ib_core ib_uverbs rdma_cm bonding nvidia nvidia_uvm nvidia_peermem nv_peer_mem \
        gdrdrv ib_ipoib bnxt_re irdma efa rdma_rxe; do
        words='not loaded'
        [ ! -e /sys/module/$word ] || words=$(cat /sys/module/$word/version 2>/dev/null || echo loaded)
        printf '  %-16s %s\n' $word "$words"
    done
    grep -hE '^(NVRM|RegistryDwords:)' /proc/driver/nvidia/{version,params} 2>/dev/null | sed 's/^/  /'
    echo "This process"
    echo "  $(id -un 2>/dev/null || id -u), capabilities $(sed -n 's/^CapEff:\t//p' /proc/self/status)"
    echo "  locked memory (ulimit -l), KiB: $(ulimit -Sl), at most $(ulimit -Hl)"
    echo "  open files (ulimit -n): $(ulimit -Sn), at most $(ulimit -Hn)"
    echo "  /dev/infiniband: $(ls /dev/infiniband 2>/dev/null | wc -l) files"
}

# environment: one line each, of those variables that begin like those that are read
environment() {
    local entry name
    known+=$("$info" -p 2>/dev/null | awk '$1 ~ /^[A-Z0-9_]+$/ && $2 != "UNKNOWN" { printf "%s ", $1 }')
    known=${known//$'\n'/ }
    echo Environment
    while IFS= read -r -d '' entry; do
        name=${entry%%=*}
        case $name in NCCL_* | CUDA_* | RDMAV_* | IBV_* | MLX5_* | HWLOC_*) ;; *) continue ;; esac
        [[ $known == *" $name "* ]] || entry="$name=(not shown)"
        echo "  $(flat "$entry")"
    done < <(env -0 | sort -z)
}

devices() {
    local file type
    echo "RDMA devices"
    try ibv_devinfo -v
    try rdma link
    for file in /sys/class/infiniband/*/{fw_ver,hca_type,board_id,device/numa_node,ports/*/{state,rate,link_layer,lid}}; do
        [ ! -r "$file" ] || echo "  ${file#/sys/class/infiniband/}: $(<"$file")"
    done
    for file in /sys/class/infiniband/*/ports/*/gid_attrs/types/*; do
        type=$(cat "$file" 2>/dev/null) || continue # it has no such address
        echo "  ${file#/sys/class/infiniband/}: $type, $(cat "${file/gid_attrs\/types/gids}")," \
            "interface $(cat "${file/types/ndevs}" 2>/dev/null)"
    done
    try "$info" --queues
    echo "Libraries of RDMA"
    for file in libibverbs.so.1 libmlx5.so.1; do
        type=$(LD_PRELOAD=$file cat /proc/self/maps 2>/dev/null | grep -m1 -o "/.*/${file%.so*}[.-].*")
        echo "  $file: ${type:-the loader does not find it}"
    done
}

kernel_log() {
    local text words='mlx5|infiniband|ib_uverbs|rdma|nvidia|NVRM|peermem|bnxt_re|efa|irdma|bond|AER|DMAR|pcieport|AMD-Vi|iommu'
    if text=$(dmesg 2>&1); then
        echo "Kernel log: the last 40 lines about NICs, GPUs and their bus"
        grep -E "(^|[^[:alnum:]])($words)" <<<"$text" | tail -n 40 | tr -c '[:print:]\t\n' '?' | sed 's/^/  /'
    else
        echo "Kernel log: $text. Add what dmesg says of mlx5, nvidia and pcieport"
    fi
}

# process PID: each library once, by its maps and the texts in its file. Root may read the very file that is mapped,
# even if another one has its name now.
process() {
    local pid=$1 maps range path text mark place seen=$'\n'
    [[ $pid =~ ^[0-9]{1,10}$ ]] || {
        echo "ep_report: --pid: got '$(flat "${pid:0:40}")', allowed is the number of a process" >&2
        exit 2
    }
    maps=$(cat "/proc/$pid/maps") || exit 1
    echo "Process $pid ($(flat "$(cat "/proc/$pid/comm")"))"
    while read -r range _ _ _ _ path; do
        [[ $path =~ /(libnccl\.so|libnccl_ep\.so|libnccl-net|libnccl_ep_topo\.so)[^/]*$ && $seen != *$'\n'$path$'\n'* ]] || continue
        seen+=$path$'\n'
        place=/proc/$pid/map_files/$range
        if [[ $path == *' (deleted)' ]]; then
            echo "  $(flat "${path% (deleted)}"), which was deleted or replaced since it was loaded"
        else
            echo "  $(flat "$path")"
            [ -r "$place" ] || place=/proc/$pid/root$path # as it sees it: it may have another root
            [ -r "$place" ] || place=$path
        fi
        for mark in 'Switchyard' 'NCCL EP version' 'NCCL version'; do
            text=$(grep -aom1 -E "$mark [0-9][ -~]*" "$place" 2>/dev/null | head -n 1)
            [ -z "$text" ] || break
        done
        [[ $text != 'NCCL EP'* ]] || text+='; not Switchyard'
        [ -r "$place" ] || text='its file cannot be read'
        echo "      ${text:-neither Switchyard nor NCCL, by the texts in its file}"
    done <<<"$maps"
    [ "$seen" != $'\n' ] || echo "  no NCCL, and no library for expert parallelism"
}

report() {
    try "$info" | sed 's/^  //'
    machine
    environment
    devices
    kernel_log
}

case $#${1-} in
0) text=$(report) ;;
2--pid) text=$(process "$2") || exit ;;
1-h | 1--help)
    sed -n '3,/^set/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
*)
    echo "usage: ep_report [--pid PID | --help]" >&2
    exit 2
    ;;
esac
printf '%s\n' "$text" || exit 1
