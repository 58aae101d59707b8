/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks of other processes map a heap: all ranks choose one mapping for the group together. Ranks of
 * one process use each other's pointers in any case.
 *
 * A mapping decides what a node is. NCCL's windows reach the ranks of an LSA team, which may be on several
 * hosts; CUDA IPC reaches those of a host.
 */
#ifndef EP_PEER_MAPPING_H
#define EP_PEER_MAPPING_H

#include "core/ident.h"
#include "core/nodes.h"
#include "core/param.h"

/* Mappings that a rank can use, for the others. */
struct ep_peer_offer {
	uint32_t mappings;  /* bits; mapping.c */
	uint32_t first;     /* of the ranks of its LSA team, if it can use windows */
	uint32_t multicast; /* it wants NVLink multicast, and can */
	char no_window[152];
	char no_multicast[60];
};

struct ep_peer_choice {
	const struct ep_peer_mapping *mapping;
	const struct ep_peer_mapping *next; /* for the same nodes, if that one fails; NULL: none */
	struct ep_reason
		no_window; /* why windows are not the mapping; "": they are, or need not be */
	bool multicast;    /* all want it and can, so far */
	struct ep_reason no_multicast; /* why not */
};

/* memory and nvls: what NCCL_EP_MEMORY and NCCL_EP_NVLS say on this rank. Local. */
void ep_peer_offer_make(struct ep_peer_offer *offer, ncclComm_t comm, enum ep_memory memory,
			bool nvls);

/* Whether this rank may ask NCCL for a multicast address. nccl_can: what NCCL itself says. */
bool ep_multicast_possible(bool wanted, bool window, bool nccl_can, struct ep_reason *why);

/*
 * The mapping for all, from the offers of all ranks (at `stride` bytes), and the nodes that it makes: the
 * same on all ranks. ncclInvalidUsage with the reasons if no mapping fits.
 */
ncclResult_t ep_peer_choose(struct ep_peer_choice *choice, struct ep_ident *idents,
			    const void *offers, size_t stride, const struct ep_param_list *sizes,
			    int nranks);

/* "NCCL windows", for the log. */
const char *ep_peer_mapping_name(const struct ep_peer_mapping *mapping);

#endif
