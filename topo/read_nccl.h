/* SPDX-License-Identifier: Apache-2.0 */
/* Between the readers of NCCL's XML: the tree, and the <nic>s in it. */
#ifndef EP_TOPO_READ_NCCL_H
#define EP_TOPO_READ_NCCL_H

#include "topo/tree.h"
#include "topo/xml.h"

/* A <net> whose name is not a device's: left for when all devices are known. */
struct ep_topo_nccl_alias {
	int elem, node;
};

struct ep_topo_nccl {
	struct ep_topo *topo;
	const struct ep_xml *xml;
	struct ep_topo_err *err;
	int self_links;
	unsigned long long host[EP_TOPO_MAX_GPUS]; /* host_hash of topo's hosts */
	int naliases;
	struct ep_topo_nccl_alias alias[EP_TOPO_MAX_NICS];
};

int ep_topo_nccl_read_nic(struct ep_topo_nccl *reader, int elem, int node);
int ep_topo_nccl_read_aliases(struct ep_topo_nccl *reader);

#endif
