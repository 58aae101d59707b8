/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap of a group: the areas that every heap begins with, and the collective replacement of a
 * heap by a larger one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/bootstrap.h"
#include "core/cuda.h"
#include "core/log.h"
#include "ep/ep.h"
#include "peer/peer.h"

#define EP_GROUP_HEAP_LINE 128u /* areas that different ranks poll do not share a cache line */

uint64_t ep_group_heap_take(uint64_t *at, uint64_t bytes, uint64_t align)
{
	uint64_t off = ep_round_up(*at, align);

	*at = off + bytes;
	return off;
}

void ep_group_heap_begin(struct ep_group_heap *heap, const struct ep_shape *shape)
{
	uint64_t r = shape->nranks;

	heap->bytes = EP_HEAP_HEADER_BYTES(r);
	heap->progress_off = ep_group_heap_take(&heap->bytes, 8 * r, EP_GROUP_HEAP_LINE);
	heap->signature_off =
		ep_group_heap_take(&heap->bytes, EP_SIGNATURE_BYTES(r), EP_GROUP_HEAP_LINE);
	heap->clean_off = ep_group_heap_take(&heap->bytes, EP_CLEAN_BYTES(r), EP_GROUP_HEAP_LINE);
	heap->signal_off =
		ep_group_heap_take(&heap->bytes, 8 * r * shape->channels, EP_GROUP_HEAP_LINE);
}

/* The heaps that do not fit the kernels' arguments. */
static ncclResult_t group_heaps_bind(struct ncclEpGroup *g)
{
	EP_CUDA(cudaMemcpyAsync(g->all_heaps, g->peer_heap.base, 8 * (size_t)g->nranks,
				cudaMemcpyHostToDevice, g->stream),
		"setting the table of heaps");
	EP_CUDA(cudaStreamSynchronize(g->stream), "setting the table of heaps");
	return ncclSuccess;
}

ncclResult_t ep_group_heap_bind(struct ncclEpGroup *g, struct ep_boot *boot)
{
	int near = g->nranks < EP_GROUP_NEAR_RANKS ? g->nranks : EP_GROUP_NEAR_RANKS;

	g->dev = (struct ep_dev_group){
		.rank = (uint32_t)g->rank,
		.nranks = (uint32_t)g->nranks,
		.index = ep_group_remote_index(g),
		.banks = g->config.shape.banks,
		.mask_enabled = g->config.enable_mask,
		.by_ranks = ep_div_make((uint32_t)g->nranks),
		.timeout_ns = g->config.timeout_ns,
		.mask = g->mask,
		.seq = g->seq,
		.state = g->state,
		.records = g->records_dev,
		.async_error = g->async_error_dev,
		.waits = g->show.waits_dev,
		.stats = g->stats,
		.progress_off = g->heap.progress_off,
		.signature_off = g->heap.signature_off,
		.clean_off = g->heap.clean_off,
		.remote = g->remote_ranks ? g->remote_dev : NULL,
		.own = g->peer_heap.base[g->rank],
		.all_heaps = g->all_heaps,
		.multicast = g->peer_heap.multicast,
	};
	memcpy(g->dev.heap, g->peer_heap.base, (size_t)near * sizeof(g->dev.heap[0]));
	g->config.algo->group_bind(g);
	return g->all_heaps ? ep_boot_agree(boot, group_heaps_bind(g), "setting up the group")
			    : ncclSuccess;
}

/*
 * Waits until nothing uses the heap on this rank, before it is replaced. *busy: its GPU may run
 * something.
 */
static ncclResult_t group_settle_heap(struct ncclEpGroup *g, uint32_t topk, uint64_t timeout_ns,
				      bool *busy)
{
	char what[60];
	const struct ep_rest how = { .timeout_ns = timeout_ns,
				     .limit = EP_BOOTSTRAP_LIMIT,
				     .what = what,
				     .then = "make the handle again" };
	ncclResult_t result;
	cudaError_t state;

	snprintf(what, sizeof(what), "a handle of top-%u needs a larger heap", topk);
	result = ep_group_rest(g, &how, &state);
	*busy = state == cudaErrorNotReady;
	EP_CHECK(result);
	EP_CUDA(state, "waiting for the group's operations");
	EP_CHECK(ep_halves_check_device(g, topk));
	return ep_group_remote_drain(g, false, ep_min_u64(timeout_ns, g->config.timeout_ns));
}

/*
 * Copies what the ranks have left here in their MaskCleans: a rank that was away learns from it
 * where the others are. Nobody writes there before all ranks are through with the old heaps.
 */
static ncclResult_t group_keep_rounds(const struct ncclEpGroup *g, struct ep_heap *grown,
				      const struct ep_group_heap *heap)
{
	return ep_heap_copy(grown, heap->clean_off, &g->peer_heap, g->heap.clean_off,
			    EP_CLEAN_BYTES(g->nranks), "copying the rounds of MaskClean");
}

/*
 * All ranks have the new heap, and none has anything on its way to the old one: now it takes its
 * place.
 */
static ncclResult_t group_replace_heap(struct ncclEpGroup *g, struct ep_boot *boot,
				       struct ep_heap *grown, const struct ep_group_heap *heap)
{
	ep_group_remote_unbind(g);
	EP_CHECK(ep_group_remote_bind(g, boot, grown, heap));
	EP_INFO(EP_LOG_INIT, "group %p rank %d: heap grows to %llu bytes for top-%u", (void *)g,
		g->rank, (unsigned long long)grown->bytes, heap->topk);
	ep_heap_close(&g->peer_heap, boot);
	g->peer_heap = *grown;
	g->heap = *heap;
	for (struct ncclEpHandle *h = g->handles; h; h = h->next) {
		ep_halves_forget(h); /* what it would receive was captured, for the old heap */
	}
	memset(grown, 0, sizeof(*grown));
	return ep_group_heap_bind(g, boot);
}

/* The message of each rank to the others before its heap grows. */
struct group_growth {
	struct ep_verdict verdict;
	uint32_t topk;
};

/* With another top-k the new heaps would have other places for the same things. */
static ncclResult_t group_growth_exchange(struct ep_boot *boot, uint32_t topk, ncclResult_t mine)
{
	struct group_growth growth = { .verdict = ep_verdict_make(mine), .topk = topk };
	const struct group_growth *all = boot->all;

	EP_CHECK(ep_boot_verdicts(boot, &growth, boot->all, sizeof(growth),
				  "making a handle for which the group's memory grows"));
	for (int r = 1; r < boot->nranks; r++) {
		if (all[r].topk != all[0].topk) {
			return ep_fail(ncclInvalidArgument,
				       "num_topk is %u on rank 0 but %u on rank %d: all ranks must "
				       "pass the same to make a handle for which the group's "
				       "memory grows",
				       all[0].topk, all[r].topk, r);
		}
	}
	return ncclSuccess;
}

/* Returns a rank of this node that has refused its call, or -1. */
static int group_heap_refuser(const void *arg)
{
	const struct ncclEpGroup *g = arg;
	uint64_t value = ep_heap_refusal_value(&g->peer_heap), *words;
	int found = -1;

	words = calloc((size_t)g->nranks, sizeof(*words));
	if (words &&
	    cudaMemcpyAsync(words, g->peer_heap.base[g->rank] + EP_HEAP_FAREWELL(0),
			    8 * (size_t)g->nranks, cudaMemcpyDefault, g->stream) == cudaSuccess) {
		bool there = cudaStreamSynchronize(g->stream) == cudaSuccess;

		for (int r = g->nranks - 1; there && r >= 0; r--) {
			found = words[r] == value ? r : found;
		}
	}
	(void)cudaGetLastError();
	free(words);
	return found;
}

uint32_t ep_group_most_topk(const struct ep_group_config *config)
{
	const struct ep_limits *limits = &config->algo->limits;
	uint64_t most = ep_min_u64(config->num_experts, limits->max_topk);

	return (uint32_t)ep_min_u64(most, limits->max_selections / config->shape.max_tokens);
}

void ep_group_heap_refuse(struct ncclEpGroup *g)
{
	if (g->config.algo->limits.grows && g->heap.topk < ep_group_most_topk(&g->config)) {
		ep_heap_notify(&g->peer_heap, ep_heap_refusal_value(&g->peer_heap));
		g->heap_refused = true;
	}
}

/*
 * Replaces the heap by one for handles of `topk`. Collective; `mine` is what is wrong on this rank
 * already. The old heap serves as long as the ranks do not agree that all have a new one.
 */
static ncclResult_t group_grow(struct ncclEpGroup *g, uint32_t topk, ncclResult_t mine)
{
	struct ep_group_heap heap = g->config.algo->heap(&g->config.shape, topk);
	uint64_t timeout_ns = (uint64_t)g->params.value[EP_PARAM_BOOTSTRAP_TIMEOUT_MS] * 1000000;
	struct ep_peer_choice memory = g->memory; /* which stays if this fails */
	struct ep_heap grown = { 0 };
	struct ep_boot boot;
	ncclResult_t result;

	EP_CHECK(ep_boot_open_known(&boot, g->comm, g->rank, g->nranks, timeout_ns, &mine));
	boot.idents = g->idents;
	boot.board = g->show.board;
	boot.refused = group_heap_refuser;
	boot.refused_arg = g;
	result = group_growth_exchange(&boot, topk, mine);
	boot.refused = NULL;
	if (result == ncclSuccess) {
		mine = group_settle_heap(g, topk, timeout_ns, &boot.busy);
		result = ep_heap_open(&grown, &boot, g->idents, &memory, g->peer_heap.team,
				      heap.bytes, mine);
	}
	if (result == ncclSuccess) {
		result = ep_boot_agree(&boot, group_keep_rounds(g, &grown, &heap),
				       "replacing the group's memory");
	}
	if (result == ncclSuccess) {
		g->memory = memory;
		result = group_replace_heap(g, &boot, &grown, &heap);
		if (result != ncclSuccess) {
			ep_group_fail(g); /* remote ranks can write neither */
		}
	}
	boot.board = NULL;
	ep_group_give_up(&boot, g->device, NULL, &grown);
	if (boot.stuck || boot.failed) {
		/*
		 * Other ranks have failed, too, and the device may not be idle: do not come here
		 * again.
		 */
		result = result == ncclSuccess ? boot.failed : result;
		ep_group_fail(g);
	}
	return result;
}

uint64_t ep_group_heap_bytes(const struct ep_group_config *config, uint32_t topk)
{
	if (topk <= config->heap.topk) {
		return config->heap_bytes;
	}
	return ep_heap_alloc_bytes(config->algo->heap(&config->shape, topk).bytes);
}

void ep_group_heap_warn(struct ncclEpGroup *g, uint32_t topk)
{
	uint64_t need = ep_group_heap_bytes(&g->config, topk);

	if (g->config.explicit_bytes && need > ep_heap_alloc_bytes(g->config.explicit_bytes) &&
	    !g->heap_warned) {
		EP_WARN("rdma_buffer_size is %llu bytes, too little for handles of top-%u, which "
			"take %llu: rank %d allocates those",
			(unsigned long long)g->config.explicit_bytes, topk,
			(unsigned long long)need, g->rank);
		g->heap_warned = true;
	}
}

ncclResult_t ep_group_heap_reserve(struct ncclEpGroup *g, uint32_t topk, ncclResult_t mine)
{
	if (g->heap_refused) {
		ep_heap_notify(&g->peer_heap, 0);
		g->heap_refused = false;
	}
	if (topk <= g->heap.topk || !g->config.algo->limits.grows) {
		return mine; /* without growth this rank refuses the handle by itself */
	}
	if (g->pending && mine == ncclSuccess) {
		mine = ep_fail(
			ncclInvalidUsage,
			"the group's buffer must grow for a handle of top-%u, but %u send_only "
			"operations are pending: complete them first, or create the group "
			"with num_topk = %u",
			topk, g->pending, topk);
	}
	ep_group_heap_warn(g, topk);
	return group_grow(g, topk, mine);
}
