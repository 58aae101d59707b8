/* SPDX-License-Identifier: Apache-2.0 */
/* The heap of a group: its size, and its replacement by a larger one. */
#ifndef EP_EP_HEAP_H
#define EP_EP_HEAP_H

#include "core/bootstrap.h"
#include "ep/group_config.h"

/* The beginning of every heap, up to heap->bytes. */
void ep_group_heap_begin(struct ep_group_heap *heap, const struct ep_shape *shape);

/* Takes `bytes` there, at a multiple of `align`. */
uint64_t ep_group_heap_take(uint64_t *at, uint64_t bytes, uint64_t align);

/* Bytes of the heap after handles of `topk` have been made. */
uint64_t ep_group_heap_bytes(const struct ep_group_config *config, uint32_t topk);

/* Warns, once a group, if handles of `topk` take more than rdma_buffer_size. */
void ep_group_heap_warn(struct ncclEpGroup *group, uint32_t topk);

/*
 * group->peer_heap and group->heap are new: fills group->dev. Collective in groups of many ranks,
 * else it cannot fail.
 */
ncclResult_t ep_group_heap_bind(struct ncclEpGroup *group, struct ep_boot *boot);

/*
 * Makes sure that handles of `topk` fit. Collective if they do not, also for a rank where something
 * is wrong already: `mine`, which the others get to know.
 */
ncclResult_t ep_group_heap_reserve(struct ncclEpGroup *group, uint32_t topk, ncclResult_t mine);

/* This rank refuses a call for whose top-k the others may be enlarging their heaps. */
void ep_group_heap_refuse(struct ncclEpGroup *group);

#endif
