/* SPDX-License-Identifier: Apache-2.0 */
/* A group ends: its kernels come to rest, its peers are told, and what it holds is freed. */
#include <pthread.h>
#include <stdlib.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/registry.h"
#include "ep/ep.h"
#include "peer/peer.h"

/* The group goes: its handles have none any more, and their memory of the library is freed. */
static void handles_orphan(struct ncclEpGroup *g)
{
	struct ncclEpHandle *h;
	uint32_t count = 0;

	while ((h = g->handles)) {
		ep_handle_delist(h);
		if (h->mem_owned) {
			ep_free(g, h->mem);
		}
		h->group = NULL;
		count++;
	}
	if (count) {
		EP_WARN("ncclEpGroupDestroy: rank %d's group goes before %u of its handles, which "
			"can only be destroyed from now on",
			g->rank, count);
	}
}

void ep_group_free(struct ncclEpGroup *g)
{
	ep_resident_remove(&g->resident);
	ep_watch_end(&g->watch);
	/* (a group that was made is retired by now) */
	(void)ep_registry_remove(g, EP_REGISTRY_MAKING);
	handles_orphan(g);
	ep_pool_drain(g);
	ep_free(g, g->workspace);
	ep_pinned_free(&g->shared, g->reset);
	ep_show_close(&g->show, g->reset);
	if (g->event && !g->reset && cudaEventDestroy(g->event) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	if (g->stream && !g->reset && cudaStreamDestroy(g->stream) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	free(g->ll);
	free(g->ht);
	ep_windows_free(&g->windows);
	free(g->stats_host);
	free(g->mask_host);
	free(g->idents);
	ep_error_slot_destroy(&g->errors);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

/*
 * Our kernels read peers' memory and write it; none may run any more. Their waits end by the
 * timeout, three times at most; what else is on the device need not end at all.
 */
static ncclResult_t group_rest(struct ncclEpGroup *g)
{
	const struct ep_rest how = {
		.timeout_ns = 3 * ep_min_u64(g->config.timeout_ns, EP_IDLE_LONGEST_NS) +
			      (uint64_t)g->params.value[EP_PARAM_CLOSE_TIMEOUT_MS] * 1000000,
		.limit = "NCCL_EP_CLOSE_TIMEOUT_MS adds to the limit",
		.what = "ncclEpGroupDestroy",
		.then = "destroy the group again",
	};
	cudaError_t state;

	EP_CHECK(ep_group_rest(g, &how, &state));
	if (state != cudaSuccess) {
		EP_INFO(EP_LOG_INIT, "group %p rank %d: the device has failed before: %s",
			(void *)g, g->rank, cudaGetErrorString(state));
	}
	return ncclSuccess;
}

/*
 * Leaves the group: writes farewells to its peers, unmaps their heaps, and gives up its own heap
 * and its connections, which the process frees when nobody can write to them any more.
 */
static void group_depart(struct ncclEpGroup *g)
{
	uint64_t timeout_ns = (uint64_t)g->params.value[EP_PARAM_CLOSE_TIMEOUT_MS] * 1000000;
	struct ep_heap_remote remote = { .deadline_ns = ep_now_ns() + timeout_ns };

	/* First the peers of this node: a remote rank that is lost takes the timeout. */
	ep_heap_farewell(&g->peer_heap);
	ep_group_remote_leave(g, &remote, timeout_ns);
	ep_heap_leave(&g->peer_heap, timeout_ns, g->remote_ranks ? &remote : NULL);
}

ncclResult_t ep_group_destroy(struct ep_call *call)
{
	struct ncclEpGroup *g = call->group;
	ncclResult_t result;

	result = g->reset ? ncclSuccess : group_rest(g);
	if (result == ncclSuccess) {
		group_depart(g);
		ep_call_retire(g);
	} else {
		ep_call_stay(g);
	}
	ep_call_end(call, result);
	if (result != ncclSuccess) {
		return result;
	}
	if (call->device >= 0 && cudaSetDevice(g->device) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	ep_group_free(g);
	if (call->device >= 0 && cudaSetDevice(call->device) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	return ncclSuccess;
}
