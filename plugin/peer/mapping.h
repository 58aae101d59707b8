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

#include "peer/peer_state.h"

/* memory and nvls: the values of NCCL_EP_MEMORY and NCCL_EP_NVLS on this rank. Local. */
void ep_peer_offer_make(struct ep_peer_offer *offer, ncclComm_t comm, enum ep_memory memory,
			bool nvls);

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
