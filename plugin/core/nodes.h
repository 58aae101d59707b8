/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks form a node: they map each other's memory; ranks of different nodes use RDMA. */
#ifndef EP_CORE_NODES_H
#define EP_CORE_NODES_H

#include "core/ident.h"
#include "core/param.h"

#define EP_NODES_MAX_RANKS 64

/*
 * node[r] by a list of sizes: one number is the size of all nodes (of the last: what is left), more
 * must add up to `nranks`.
 */
ncclResult_t ep_nodes_split(uint32_t node[], const struct ep_param_list *sizes, int nranks);

/* Gives every ident its node: by `sizes`, or, when it is not set, by `domain`. */
ncclResult_t ep_nodes_assign(struct ep_ident *idents, const struct ep_param_list *sizes,
			     int nranks);

/* Of a rank: how many ranks are not of its node. */
uint32_t ep_nodes_remote(const uint32_t node[], int nranks, int rank);

#endif
