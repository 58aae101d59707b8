/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/nodes.h"
#include "device/kernels.h"
#include "ep/remote.h"
#include "gda/gda.h"

#define EP_REMOTE_CONNECT_MS 10000u     /* longest wait for the NICs' own work, also when closing */
#define EP_REMOTE_LINGER_NS 2000000     /* for NICs to acknowledge what has arrived */
#define EP_REMOTE_SUSPECT_NS 200000000u /* a NIC that lives takes microseconds */

_Static_assert(EP_GROUP_MAX_CHANNELS + 1 <= EP_GDA_MAX_QUEUES, "queues per peer");

ncclResult_t ep_group_remote_plan(struct ncclEpGroup *g)
{
	uint32_t node[EP_GROUP_MAX_RANKS], most = 0;

	for (int r = 0; r < g->nranks; r++) {
		node[r] = g->idents[r].node;
	}
	for (int r = 0; r < g->nranks; r++) {
		most = (uint32_t)ep_max_u64(most, ep_nodes_remote(node, g->nranks, r));
		g->remote |= (uint64_t)(node[r] != node[g->rank]) << r;
	}
	ep_group_config_size(&g->config, ep_group_channels(&g->config, most));
	return ncclSuccess;
}

ncclResult_t ep_group_remote_open(struct ncclEpGroup *g, struct ep_boot *boot, ncclResult_t mine)
{
	uint64_t timeout_ms = (uint64_t)g->params.value[EP_PARAM_BOOTSTRAP_TIMEOUT_MS];
	const char *host[EP_GROUP_MAX_RANKS];
	bool remote[EP_GROUP_MAX_RANKS];
	struct ep_gda_config config = {
		.device = g->device,
		.bus_id = g->idents[g->rank].bus_id,
		.remote = remote,
		.host = host,
		.queues = g->config.shape.channels + 1,
		.depth = g->config.rdma_depth,
		.mode = (enum ep_gda_mode)g->config.rdma_mode,
		.timeout_ns = ep_min_u64(timeout_ms, EP_REMOTE_CONNECT_MS) * 1000000,
	};

	if (!g->remote) {
		return mine;
	}
	for (int r = 0; r < g->nranks; r++) {
		remote[r] = ep_group_is_remote(g, (uint32_t)r);
		host[r] = g->idents[r].hostname;
		config.place += r < g->rank &&
				ep_ident_same_host(&g->idents[r], &g->idents[g->rank]);
	}
	return ep_gda_open(&g->gda, boot, &config, mine);
}

ncclResult_t ep_group_remote_bind(struct ncclEpGroup *g, struct ep_boot *boot,
				  const struct ep_heap *peer_heap, const struct ep_group_heap *heap)
{
	struct ep_dev_remote remote = {
		.channels = g->config.shape.channels,
		.queues = g->config.shape.channels + 1,
		.qps = g->remote ? ep_gda_queues(g->gda) : NULL,
		.links = g->links,
		.down = g->remote ? ep_gda_down(g->gda) : NULL,
		.signal_off = heap->signal_off,
		.stage_off = heap->stage_off,
		.stage_side_bytes = heap->stage_side_bytes,
	};
	uint64_t bytes = (uint64_t)g->nranks * (g->config.shape.channels + 1) *
			 sizeof(struct ep_remote_link);
	ncclResult_t mine = ncclSuccess;
	cudaError_t err;

	if (!g->remote) {
		return ncclSuccess;
	}
	/* Signals in the new memory are zero again. */
	err = cudaMemsetAsync(g->links, 0, bytes, g->stream);
	if (err == cudaSuccess) {
		err = cudaMemcpyAsync(g->remote_dev, &remote, sizeof(remote),
				      cudaMemcpyHostToDevice, g->stream);
	}
	if (err == cudaSuccess) {
		err = cudaStreamSynchronize(g->stream);
	}
	if (err != cudaSuccess) {
		mine = ep_fail_cuda(err, "setting up the state of the RDMA queues");
	}
	return ep_gda_bind(g->gda, boot, peer_heap->base[g->rank], peer_heap->bytes, mine);
}

void ep_group_remote_unbind(struct ncclEpGroup *g)
{
	if (g->remote) {
		ep_gda_unbind(g->gda);
	}
}

/* Remote ranks without those whose processes have ended, as far as is known. */
static uint64_t ep_remote_alive(const struct ncclEpGroup *g)
{
	uint64_t alive = g->remote;

	for (int r = 0; r < g->nranks; r++) {
		if (ep_ident_gone(&g->idents[g->rank], &g->idents[r])) {
			alive &= ~((uint64_t)1 << r);
		}
	}
	return alive;
}

/* Ranks that may not answer any more: masked ones, and any in a group that has failed. */
static uint64_t ep_remote_suspects(const struct ncclEpGroup *g)
{
	int32_t mask[EP_GROUP_MAX_RANKS];
	uint64_t suspects = 0;

	if (g->failed) {
		return g->remote;
	}
	if (!g->config.enable_mask ||
	    cudaMemcpyAsync(mask, g->mask, 4 * (size_t)g->nranks, cudaMemcpyDeviceToHost,
			    g->stream) != cudaSuccess ||
	    cudaStreamSynchronize(g->stream) != cudaSuccess) {
		(void)cudaGetLastError();
		return 0;
	}
	for (int r = 0; r < g->nranks; r++) {
		suspects |= (uint64_t)(mask[r] == 0) << r;
	}
	return suspects;
}

/* The launch and its end; *lost: ranks that could not be reached. */
static cudaError_t ep_remote_drain_run(struct ncclEpGroup *g, bool farewell, uint64_t timeout_ns,
				       uint64_t *lost)
{
	struct ep_drain_args args = {
		.g = g->dev,
		.alive = ep_remote_alive(g),
		.farewell = farewell,
		.timeout_ns = timeout_ns,
		.suspects = ep_remote_suspects(g),
		.suspect_ns = ep_min_u64(timeout_ns, EP_REMOTE_SUSPECT_NS),
		.farewell_off = EP_HEAP_FAREWELL(g->rank),
		.farewell_value = ep_heap_farewell_value(&g->peer_heap),
		.lost = g->kernel_ranks_dev,
	};
	void *params[] = { &args };
	cudaLaunchConfig_t config = {
		.gridDim = { 1, 1, 1 },
		.blockDim = { 64, 1, 1 }, /* the waits for all peers overlap anyway */
		.stream = g->stream,
	};
	cudaError_t err;

	g->kernel_ranks[0] = g->kernel_ranks[1] = UINT32_MAX;
	err = cudaLaunchKernelExC(&config, (const void *)ep_drain_kernel, params);
	if (err == cudaSuccess) {
		err = cudaStreamSynchronize(g->stream);
	}
	*lost = (g->kernel_ranks[0] | (uint64_t)g->kernel_ranks[1] << 32) & g->remote;
	return err;
}

ncclResult_t ep_group_remote_drain(struct ncclEpGroup *g, bool farewell, uint64_t timeout_ns)
{
	struct ep_gda_failure failure;
	cudaError_t err;
	uint64_t lost;
	int rank;

	if (!g->remote) {
		return ncclSuccess;
	}
	err = ep_remote_drain_run(g, farewell, timeout_ns, &lost);
	if (err != cudaSuccess) {
		(void)cudaGetLastError();
		return farewell ? ncclUnhandledCudaError
				: ep_fail_cuda(err, "waiting for the RDMA queues");
	}
	if (!lost || farewell) {
		return lost ? ncclRemoteError : ncclSuccess;
	}
	rank = __builtin_ctzll(lost);
	if (!ep_gda_explain(g->gda, rank, &failure)) {
		return ep_fail(
			ncclRemoteError,
			"rank %d waited %llu ms for its RDMA writes to rank %d (pid %d on %s) "
			"to complete; destroy the group",
			g->rank, (unsigned long long)(timeout_ns / 1000000), rank,
			g->idents[rank].pid, g->idents[rank].hostname);
	}
	return ep_fail(ncclRemoteError, "%s; destroy the group", failure.text);
}

/* What kernels do when they find a peer lost: ep_group_settle() masks it. */
static void ep_remote_mask(struct ncclEpGroup *g, int rank)
{
	g->mask_due |= rank >= 0 ? (uint64_t)1 << rank : 0;
	__atomic_store_n(g->async_error, 1, __ATOMIC_RELEASE);
}

/* A kernel's record has perhaps said it already. */
static void ep_remote_lost_warn(struct ncclEpGroup *g, const struct ep_gda_failure *failure)
{
	if (failure->peer < 0) {
		EP_WARN("%s", failure->text);
	} else if (!(g->lost_logged >> failure->peer & 1)) {
		EP_WARN("%s; the rank is masked from now on", failure->text);
		g->lost_logged |= (uint64_t)1 << failure->peer;
	}
}

ncclResult_t ep_group_remote_poll(struct ncclEpGroup *g)
{
	struct ep_gda_failure failure;

	while (g->gda && ep_gda_poll(g->gda, &failure)) {
		if (g->config.enable_mask) {
			ep_remote_lost_warn(g, &failure);
			ep_remote_mask(g, failure.peer);
			continue;
		}
		(void)ep_fail(ncclRemoteError, "%s; destroy the group", failure.text);
		ep_group_fail(g);
		return g->failure.code;
	}
	return ncclSuccess;
}

void ep_group_remote_explain(struct ncclEpGroup *g, uint32_t rank, char *text, size_t size)
{
	struct ep_gda_failure failure;

	text[0] = '\0';
	if (g->gda && ep_group_is_remote(g, rank) && ep_gda_explain(g->gda, (int)rank, &failure)) {
		snprintf(text, size, " (%s)", failure.text);
	}
}

/* The connections outlive the group until no remote rank needs them any more. */
static void ep_remote_cut(void *gda)
{
	struct timespec nap = { 0, EP_REMOTE_LINGER_NS };

	nanosleep(&nap, NULL);
	ep_gda_close(gda);
}

static bool ep_remote_lost(void *gda, int rank)
{
	struct ep_gda_failure failure;

	return ep_gda_explain(gda, rank, &failure);
}

void ep_group_remote_leave(struct ncclEpGroup *g, struct ep_heap_remote *heap_remote,
			   uint64_t timeout_ns)
{
	if (!g->remote) {
		return;
	}
	/* Who cannot be reached need not be told. */
	(void)ep_group_remote_drain(g, true, timeout_ns);
	heap_remote->cut = ep_remote_cut;
	heap_remote->lost = ep_remote_lost;
	heap_remote->arg = g->gda;
	heap_remote->absent = ep_remote_suspects(g);
	g->gda = NULL;
}

void ep_group_remote_close(struct ncclEpGroup *g, bool stuck)
{
	if (stuck) {
		ep_gda_close_stuck(g->gda);
	} else {
		ep_gda_close(g->gda);
	}
	g->gda = NULL;
}
