/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/nccl_vars.h"

const struct ep_nccl_var ep_nccl_var_table[EP_NCCL_VARS] = {
	{ "NCCL_CONF_FILE", "(none)", "read before /etc/nccl.conf; without it ~/.nccl.conf" },
	{ "NCCL_TOPO_FILE", "(none)", "topology of this machine, NCCL or hwloc XML" },
	{ "HWLOC_XMLFILE", "(none)", "the same, if NCCL_TOPO_FILE is not set" },
	{ "NCCL_IB_HCA", "(all)", "[^][=]device[:port],... to use or not" },
	{ "NCCL_NET_GDR_LEVEL", "SYS", "farthest NIC that may access GPU memory" },
	{ "NCCL_SOCKET_IFNAME", "(any)",
	  "interfaces of NCCL's bootstrap; RDMA does not look at it" },
	{ "NCCL_P2P_DISABLE", "0",
	  "1 is no way to do without peer access here: ranks of a node write each other's memory, "
	  "unless NCCL_EP_NODE_SIZE=1 makes each a node; a WARN says so" },
	{ "NCCL_P2P_LEVEL", "(any)", "the same of LOC or 0; nothing else of it counts" },
	{ "NCCL_NVLS_ENABLE", "(allowed)", "0: no NVLink multicast, whatever NCCL_EP_NVLS says" },
	{ "NCCL_DEBUG", "(none)", "VERSION, WARN, INFO, ABORT, TRACE" },
	{ "NCCL_DEBUG_SUBSYS", "(default)", "subsystems of INFO lines" },
	{ "NCCL_DEBUG_FILE", "(stdout)", "where log lines go" },
};
