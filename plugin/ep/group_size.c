/* SPDX-License-Identifier: Apache-2.0 */
/* How large a group is: queue pairs, banks, heap. All ranks find the same. */
#include "core/log.h"
#include "device/group/group_layout.h"
#include "ep/ep.h"
#include "peer/peer_state.h"

#define EP_GROUP_ROW_QUEUES 256

/*
 * 256 queue pairs for rows per rank, as far as they go: 1 to 8 per peer, unless the algorithm knows better. All
 * ranks find the same.
 */
uint32_t ep_group_channels(const struct ep_group_config *config, uint32_t remote)
{
	if (!remote || config->algo->channels) {
		return remote ? config->algo->channels(config) : 0;
	}
	if (config->rdma_queues) {
		return config->rdma_queues;
	}
	return (uint32_t)ep_max_u64(1, ep_min_u64(EP_GROUP_ROW_QUEUES / remote, 8));
}

void ep_group_config_size(struct ep_group_config *config, struct ep_nodes_most nodes)
{
	uint32_t most = config->algo->limits.max_topk;
	uint32_t topk = config->num_topk ? config->num_topk : config->algo->limits.auto_topk;
	uint64_t least = ep_max_u64(1, ep_min_u64(config->num_topk, most));

	config->shape.near_ranks = nodes.near;
	config->shape.remote_ranks = nodes.remote;
	config->shape.near_senders = nodes.near_senders;
	config->shape.remote_senders = nodes.remote_senders;
	config->shape.near_holders = nodes.near_holders;
	config->shape.remote_holders = nodes.remote_holders;
	config->shape.flows = nodes.flows;
	config->shape.return_rings = nodes.return_rings;
	config->shape.channels = ep_group_channels(config, nodes.remote);
	config->shape.banks = config->algo->limits.banks;
	if (nodes.remote && config->shape.banks > EP_GROUP_REMOTE_BANKS) {
		config->shape.banks = EP_GROUP_REMOTE_BANKS;
	}
	/* A size that was asked for holds as large a top-k as it can, if that is enough. */
	config->heap_bytes = ep_heap_alloc_bytes(config->explicit_bytes);
	for (uint32_t k = most; config->explicit_bytes && k >= least; k--) {
		config->heap = config->algo->heap(&config->shape, k);
		if (config->heap.bytes <= config->heap_bytes) {
			return;
		}
	}
	topk = (uint32_t)ep_min_u64(topk, ep_min_u64(config->num_experts, most));
	config->heap = config->algo->heap(&config->shape, topk);
	config->heap_bytes = ep_heap_alloc_bytes(config->heap.bytes);
}
