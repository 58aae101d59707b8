/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote ranks of a group: who they are, and the life of the connections with them. In groups
 * without any, all but the plan does nothing.
 */
#ifndef EP_EP_REMOTE_H
#define EP_EP_REMOTE_H

#include "ep/objects.h"

/* All ranks' idents are known: who is remote, and what the heap needs for that. */
void ep_group_remote_plan(struct ncclEpGroup *group);

/* Device memory of the queues. */
uint64_t ep_group_remote_bytes(const struct ep_group_config *config);

/* Collective: connects with the remote ranks. `mine` is this rank's result so far. */
ncclResult_t ep_group_remote_open(struct ncclEpGroup *group, struct ep_boot *boot,
				  ncclResult_t mine);

/*
 * Collective: makes `peer_heap`, laid out as `heap`, the memory that remote ranks write to. Not
 * while kernels run. unbind takes that back.
 */
ncclResult_t ep_group_remote_bind(struct ncclEpGroup *group, struct ep_boot *boot,
				  const struct ep_heap *peer_heap,
				  const struct ep_group_heap *heap);
void ep_group_remote_unbind(struct ncclEpGroup *group);

/*
 * Waits until the NICs have done all that this rank has posted. farewell: posts it to the remote ranks
 * after it that this rank leaves. No kernel of this rank runs. Bounded by `timeout_ns`.
 */
ncclResult_t ep_group_remote_drain(struct ncclEpGroup *group, bool farewell, uint64_t timeout_ns);

/*
 * This rank leaves the group: posts that to the remote ranks, and hands the connections over to *heap_remote,
 * for ep_heap_leave(), which cuts them.
 */
void ep_group_remote_leave(struct ncclEpGroup *group, struct ep_heap_remote *heap_remote,
			   uint64_t timeout_ns);

/*
 * Takes failures of connections that nobody waited for. Fails if the group has failed by that: only
 * without masks. With masks it masks the peer.
 */
ncclResult_t ep_group_remote_poll(struct ncclEpGroup *group);

/* Describes the connection with that rank: " (text)" or "". */
void ep_group_remote_explain(struct ncclEpGroup *group, uint32_t rank, char *text, size_t size);

/* How many ranks below it are of the same node. */
uint32_t ep_group_remote_index(const struct ncclEpGroup *group, int rank);

static inline bool ep_group_is_remote(const struct ncclEpGroup *group, uint32_t rank)
{
	return rank < (uint32_t)group->nranks &&
	       group->idents[rank].node != group->idents[group->rank].node;
}

#endif
