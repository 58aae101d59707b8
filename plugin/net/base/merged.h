/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs, which are never freed: those with one port, whose indices are the devices', then the merged ones.
 */
#ifndef EP_NET_MERGED_H
#define EP_NET_MERGED_H

#include "net/base/device.h"

/* A device of NCCL: a port, or several that it has had merged. */
struct ep_net_nic {
	int index, nports;
	struct ep_net_dev *dev[EP_NET_NIC_PORTS];
	char label[EP_NET_NIC_PORTS * EP_NET_LABEL]; /* with '+' between ports */
};

ncclResult_t ep_net_nic_get(int index, const struct ep_net_nic **nic);
/*
 * Tables of NCCL's that merge NICs, each for itself, though the same ones. NCCL (2.27 and before) takes what
 * a table counts before it has merged anything for the ports.
 */
enum ep_net_table {
	EP_NET_TABLE_NET,
	EP_NET_TABLE_COLL,
	EP_NET_TABLES
};
/* How many there are for it. */
int ep_net_nic_count(enum ep_net_table table);
/* Merges at most so many NICs of one port each. The same ones again: the same NIC. */
ncclResult_t ep_net_nic_merge(enum ep_net_table table, const int *indices, int n, int most,
			      int *index);
/* NCCL forgets what it has had merged: only NICs of one port are counted, until one is merged again. */
void ep_net_nics_forget(void);
/* Opens the ports for their first user, of which some may be down; the last one closes them. */
ncclResult_t ep_net_nic_hold(const struct ep_net_nic *nic);
void ep_net_nic_drop(const struct ep_net_nic *nic);

#endif
