/* SPDX-License-Identifier: Apache-2.0 */
/* The heap of a group: its size, and its replacement by a larger one. */
#ifndef EP_EP_HEAP_H
#define EP_EP_HEAP_H

#include "core/bootstrap.h"
#include "ep/group_config.h"

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

#endif
