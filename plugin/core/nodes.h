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

/* Gives every ident its node: by `sizes`, or, when it is not set, by `domain`. */
ncclResult_t ep_nodes_assign(struct ep_ident *idents, const struct ep_param_list *sizes,
			     int nranks);

/*
 * Data that reaches a node from a rank of another one through one of its ranks only goes through the rank
 * with this index, of `ranks`. `index`: of the sender in its own node.
 */
static inline uint32_t ep_nodes_forwarder(uint32_t index, uint32_t ranks)
{
	return index % ranks;
}

/* The most of each kind that a rank has. */
struct ep_nodes_most {
	uint32_t near;         /* ranks of its node, itself included */
	uint32_t remote;       /* and others */
	uint32_t flows;        /* other nodes, or ranks that it forwards for: the larger number */
	uint32_t return_rings; /* ranks of its node, times itself and those that it forwards for */
};
/* `node`: of rank 0; of the others at `stride` bytes. */
struct ep_nodes_most ep_nodes_most(const uint32_t *node, size_t stride, int nranks);

/* The same if all that is known are the first two: the nodes are as equal as they can be. */
struct ep_nodes_most ep_nodes_alike(uint32_t near, uint32_t remote, int nranks);

#endif
