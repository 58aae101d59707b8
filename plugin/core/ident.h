/* SPDX-License-Identifier: Apache-2.0 */
/* Identity of a rank: host, process, GPU, node. Exchanged as bytes at group creation. */
#ifndef EP_CORE_IDENT_H
#define EP_CORE_IDENT_H

#include <stdbool.h>
#include "core/error.h"
#include "core/param.h"

struct ep_ident {
	uint64_t build;      /* hash of the library's version, commit and build type */
	uint64_t host;       /* hash of NCCL_HOSTID, else of host name and boot id */
	uint64_t process[2]; /* random, one per process */
	uint64_t pid_ns;     /* pids compare only within one namespace */
	uint64_t start_time; /* of the process, clock ticks since boot */
	int32_t pid;
	int32_t device; /* CUDA ordinal in its own process */
	uint32_t mig;
	uint32_t domain; /* ranks with the same number can map each other's memory; and ... */
	uint32_t node;   /* ... `node` are filled in when all are known: peer/peer.h, and below */
	char hostname[64];
	char bus_id[24];
};

/* The calling rank, on CUDA device `device`. */
ncclResult_t ep_ident_make(struct ep_ident *ident, int device);

bool ep_ident_same_host(const struct ep_ident *a, const struct ep_ident *b);
/* Ranks of one node reach each other's memory, others need RDMA. */
bool ep_ident_same_node(const struct ep_ident *a, const struct ep_ident *b);
bool ep_ident_same_process(const struct ep_ident *a, const struct ep_ident *b);

/* Returns more for an error of two ranks of one host, whose names differ; "": they do not. */
#define EP_IDENT_HOSTS_TEXT 320
const char *ep_ident_hosts_print(const struct ep_ident *a, const struct ep_ident *b,
				 char text[EP_IDENT_HOSTS_TEXT]);

/* True only if the process of `other` is known to have ended. */
bool ep_ident_gone(const struct ep_ident *self, const struct ep_ident *other);

/* Why CUDA may have failed with what takes a descriptor, in words; NULL: there are some left. */
const char *ep_no_files(void);

/* ---- nodes: ranks of one map each other's memory; ranks of different ones use RDMA ---- */

/*
 * node[r] by a list of sizes: one number is the size of all nodes (of the last: what is left), more
 * must add up to `nranks`.
 */
ncclResult_t ep_nodes_split(uint32_t node[], const struct ep_param_list *sizes, int nranks);

/* Gives every ident its node: by `sizes`, or, when it is not set, by `domain`. */
ncclResult_t ep_nodes_assign(struct ep_ident *idents, const struct ep_param_list *sizes,
			     int nranks);

/*
 * Data that reaches a node from a rank of another one through one of its ranks only goes through
 * the rank with this index, of `ranks`. `index`: of the sender in its own node.
 */
static inline uint32_t ep_nodes_forwarder(uint32_t index, uint32_t ranks)
{
	return index % ranks;
}

/* Which ranks hold experts, and which may bring tokens: ranges of ranks. */
struct ep_roles {
	uint32_t first_holder;
	uint32_t holders;
	uint32_t first_sender;
	uint32_t senders;
};

static inline bool ep_roles_holds(const struct ep_roles *roles, uint32_t r)
{
	return r - roles->first_holder < roles->holders;
}

static inline bool ep_roles_sends(const struct ep_roles *roles, uint32_t r)
{
	return r - roles->first_sender < roles->senders;
}

/* The most of each kind that a rank has. */
struct ep_nodes_most {
	uint32_t near;           /* ranks of its node, itself included */
	uint32_t remote;         /* and others */
	uint32_t near_senders;   /* of those these that bring tokens to it, who holds experts, */
	uint32_t remote_senders; /* of both kinds; */
	uint32_t near_holders;   /* and others that hold experts for it, who brings tokens */
	uint32_t remote_holders;
	uint32_t flows;        /* other nodes, or ranks that it forwards for: the larger number */
	uint32_t return_rings; /* ranks of its node, times itself and those that it forwards for */
};
/* `node`: of rank 0; of the others at `stride` bytes. */
struct ep_nodes_most ep_nodes_most(const uint32_t *node, size_t stride, int nranks,
				   const struct ep_roles *roles);

/*
 * The same if all that is known are the first two: the nodes are as equal as they can be. How roles
 * lie on them is not known: as many as may be.
 */
struct ep_nodes_most ep_nodes_alike(uint32_t near, uint32_t remote, int nranks,
				    const struct ep_roles *roles);

#endif
