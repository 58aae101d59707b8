/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks form a node: they map each other's memory; ranks of different nodes use RDMA. */
#ifndef EP_CORE_NODES_H
#define EP_CORE_NODES_H

#include "core/ident.h"
#include "core/param.h"

/*
 * node[r] by a list of sizes: one number is the size of all nodes (of the last: what is left), more
 * must add up to `nranks`.
 */
ncclResult_t ep_nodes_split(uint32_t node[], const struct ep_param_list *sizes, int nranks);

/* Gives every ident its node: by `sizes`, or, when it is not set, by host. */
ncclResult_t ep_nodes_assign(struct ep_ident *idents, const struct ep_param_list *sizes,
			     int nranks);

/* Ranks of the largest node, and ranks that are not of the smallest: what a rank has at most. */
struct ep_nodes_most {
	uint32_t near; /* of its node, itself included */
	uint32_t remote;
};
struct ep_nodes_most ep_nodes_most(const uint32_t node[], int nranks);

#endif
