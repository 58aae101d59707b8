/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group's connections with ranks of other nodes: opened, bound to a heap, drained, looked after
 * and left behind.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/cuda.h"
#include "core/bootstrap.h"
#include "device/kernels.h"
#include "ep/ep.h"
#include "gda/gda.h"
#include "gda/state.h"
#include "peer/peer.h"

#define EP_REMOTE_CONNECT_MS 10000u     /* longest wait for the NICs' own work, also when closing */
#define EP_REMOTE_LINGER_NS 2000000     /* for NICs to acknowledge what has arrived */
#define EP_REMOTE_SUSPECT_NS 200000000u /* a NIC that lives takes microseconds */
#define EP_REMOTE_POLL_NS 100000        /* how often to look whether a kernel has ended, */
#define EP_REMOTE_SLOW_NS 1000000000u   /* and when that is late */

_Static_assert(EP_GROUP_MAX_CHANNELS + 1 <= EP_GDA_MAX_QUEUES, "queues per peer");

uint32_t ep_group_remote_index(const struct ncclEpGroup *g)
{
	uint32_t n = 0;

	for (int r = 0; r < g->rank; r++) {
		n += g->idents[r].node == g->idents[g->rank].node;
	}
	return n;
}

uint32_t ep_group_sender_index(const struct ncclEpGroup *g)
{
	uint32_t n = 0;

	for (int r = 0; r < g->rank; r++) {
		n += g->idents[r].node == g->idents[g->rank].node &&
		     ep_roles_sends(&g->config.shape.roles, (uint32_t)r);
	}
	return n;
}

uint64_t ep_group_remote_bytes(const struct ep_group_config *c)
{
	bool gpu = c->rdma_mode == EP_GDA_AUTO || c->rdma_mode == EP_GDA_GPU;

	if (!c->shape.channels) {
		return 0;
	}
	return ep_gda_device_bytes((int)c->shape.nranks, c->shape.nodes.remote,
				   c->shape.channels + 1, c->rdma_depth, gpu);
}

ncclResult_t ep_group_remote_open(struct ncclEpGroup *g, struct ep_boot *boot, ncclResult_t mine)
{
	uint64_t timeout_ms = (uint64_t)g->params.value[EP_PARAM_BOOTSTRAP_TIMEOUT_MS];
	struct ep_gda_config config = {
		.device = g->device,
		.bus_id = g->idents[g->rank].bus_id,
		.queues = g->config.shape.channels + 1,
		.depth = g->config.rdma_depth,
		.mode = (enum ep_gda_mode)g->config.rdma_mode,
		.timeout_ns = ep_min_u64(timeout_ms, EP_REMOTE_CONNECT_MS) * 1000000,
	};
	const char **host;
	bool *remote;

	if (!g->remote_ranks) {
		return mine;
	}
	config.remote = remote = calloc((size_t)g->nranks, sizeof(*remote));
	config.host = host = calloc((size_t)g->nranks, sizeof(*host));
	for (int r = 0; r < g->nranks && remote && host; r++) {
		remote[r] = ep_group_is_remote(g, (uint32_t)r);
		host[r] = g->idents[r].hostname;
		config.place += r < g->rank &&
				ep_ident_same_host(&g->idents[r], &g->idents[g->rank]);
	}
	if ((!remote || !host) && mine == ncclSuccess) {
		mine = ep_fail(ncclSystemError, "ncclEpCreateGroup: out of host memory");
	}
	mine = ep_gda_open(&g->gda, boot, &config, mine);
	free(host);
	free(remote);
	return mine;
}

/* Where rows of remote ranks lie here, and this rank's rows there; see struct ep_remote_place. */
static ncclResult_t remote_places_set(struct ncclEpGroup *g)
{
	struct ep_remote_place *places = calloc((size_t)g->nranks, sizeof(*places));
	uint32_t self = ep_group_sender_index(g), senders[2] = { 0, 0 }, staged = 0;
	const struct ep_roles *roles = &g->config.shape.roles;
	ncclResult_t result = ncclSuccess;

	if (!places) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	for (int r = 0; r < g->nranks; r++) {
		bool remote = ep_group_is_remote(g, (uint32_t)r);
		uint32_t before = 0; /* senders below this rank that are remote for r */

		for (int i = 0; i < g->rank; i++) {
			before += g->idents[i].node != g->idents[r].node &&
				  ep_roles_sends(roles, (uint32_t)i);
		}
		places[r].here = senders[remote];
		places[r].there = remote ? before : self;
		places[r].staged = staged;
		senders[remote] += ep_roles_sends(roles, (uint32_t)r);
		staged += remote && ep_roles_holds(roles, (uint32_t)r);
	}
	EP_CUDA_GOTO(cudaMemcpyAsync(g->places, places, (size_t)g->nranks * sizeof(*places),
				     cudaMemcpyHostToDevice, g->stream),
		     "setting up the places of remote rows", out);
	EP_CUDA_GOTO(cudaStreamSynchronize(g->stream), "setting up the places of remote rows", out);
out:
	free(places);
	return result;
}

ncclResult_t ep_group_remote_bind(struct ncclEpGroup *g, struct ep_boot *boot,
				  const struct ep_heap *peer_heap, const struct ep_group_heap *heap)
{
	struct ep_dev_remote remote = {
		.channels = g->config.shape.channels,
		.queues = g->config.shape.channels + 1,
		.qps = g->remote_ranks ? ep_gda_queues(g->gda) : NULL,
		.links = g->links,
		.down = g->remote_ranks ? ep_gda_down(g->gda) : NULL,
		.signal_off = heap->signal_off,
		.stage_off = heap->stage_off,
		.stage_side_bytes = heap->stage_side_bytes,
		.places = g->places,
	};
	uint64_t bytes = (uint64_t)g->nranks * (g->config.shape.channels + 1) *
			 sizeof(struct ep_remote_link);
	ncclResult_t mine;
	cudaError_t err;

	if (!g->remote_ranks) {
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
	mine = err == cudaSuccess ? remote_places_set(g)
				  : ep_fail_cuda(err, "setting up the state of the RDMA queues");
	if (mine == ncclSuccess && g->config.algo->group_bind_remote) {
		mine = g->config.algo->group_bind_remote(g);
	}
	return ep_gda_bind(g->gda, boot, peer_heap->base[g->rank], peer_heap->bytes, mine);
}

void ep_group_remote_unbind(struct ncclEpGroup *g)
{
	if (g->remote_ranks) {
		ep_gda_unbind(g->gda);
	}
}

/* Reads what remote_suspect looks at. */
static void remote_suspects_read(struct ncclEpGroup *g)
{
	for (int r = 0; r < g->nranks; r++) {
		g->mask_host[r] = 1;
	}
	if (g->config.enable_mask && !g->reset &&
	    (cudaMemcpyAsync(g->mask_host, g->mask, 4 * (size_t)g->nranks, cudaMemcpyDeviceToHost,
			     g->stream) != cudaSuccess ||
	     cudaStreamSynchronize(g->stream) != cudaSuccess)) {
		(void)cudaGetLastError();
	}
}

/*
 * A rank that may not answer any more: a masked one, and any remote one in a group that has failed.
 */
static bool remote_suspect(const struct ncclEpGroup *g, int r)
{
	return g->failed ? ep_group_is_remote(g, (uint32_t)r) : g->mask_host[r] == 0;
}

/* The end of the launch. Whoever waits for long to take leave gets a line that names whom. */
static cudaError_t remote_drain_wait(struct ncclEpGroup *g, uint64_t timeout_ns)
{
	const struct timespec nap = { 0, EP_REMOTE_POLL_NS };
	uint64_t start = ep_now_ns();
	cudaError_t err;

	while ((err = cudaStreamQuery(g->stream)) == cudaErrorNotReady &&
	       ep_now_ns() - start < EP_REMOTE_SLOW_NS) {
		nanosleep(&nap, NULL);
	}
	if (err == cudaErrorNotReady) {
		(void)cudaGetLastError();
		ep_heap_name_awaited(&g->peer_heap, start + timeout_ns);
	}
	return cudaStreamSynchronize(g->stream);
}

/* The launch and its end: g->kernel_ranks has the ranks that could not be reached. */
static cudaError_t remote_drain_run(struct ncclEpGroup *g, bool farewell, uint64_t timeout_ns)
{
	struct ep_drain_args args = {
		.g = g->dev,
		.farewell = farewell,
		.timeout_ns = timeout_ns,
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

	remote_suspects_read(g);
	for (int r = 0; r < g->nranks; r++) {
		if (ep_group_is_remote(g, (uint32_t)r) &&
		    !ep_ident_gone(&g->idents[g->rank], &g->idents[r])) {
			ep_ranks_add(&args.alive, (uint32_t)r);
		}
		if (remote_suspect(g, r)) {
			ep_ranks_add(&args.suspects, (uint32_t)r);
		}
	}
	memset(g->kernel_ranks, 0xff, sizeof(*g->kernel_ranks));
	err = cudaLaunchKernelExC(&config, (const void *)ep_drain_kernel, params);
	if (err != cudaSuccess) {
		return err;
	}
	return farewell ? remote_drain_wait(g, timeout_ns) : cudaStreamSynchronize(g->stream);
}

ncclResult_t ep_group_remote_drain(struct ncclEpGroup *g, bool farewell, uint64_t timeout_ns)
{
	struct ep_gda_failure failure;
	cudaError_t err;
	int rank = 0;

	if (!g->remote_ranks) {
		return ncclSuccess;
	}
	err = remote_drain_run(g, farewell, timeout_ns);
	if (err != cudaSuccess) {
		(void)cudaGetLastError();
		return farewell ? ncclUnhandledCudaError
				: ep_fail_cuda(err, "waiting for the RDMA queues");
	}
	while (rank < g->nranks && !(ep_group_is_remote(g, (uint32_t)rank) &&
				     ep_ranks_has(g->kernel_ranks, (uint32_t)rank))) {
		rank++;
	}
	if (rank == g->nranks || farewell) {
		return rank < g->nranks ? ncclRemoteError : ncclSuccess;
	}
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

ncclResult_t ep_group_remote_poll(struct ncclEpGroup *g)
{
	struct ep_gda_failure failure;

	while (g->gda && ep_gda_poll(g->gda, &failure)) {
		uint32_t peer = (uint32_t)failure.peer;

		if (!g->config.enable_mask) {
			return ep_fail(ncclRemoteError, "%s; destroy the group", failure.text);
		}
		if (failure.peer < 0) {
			(void)ep_fail(ncclRemoteError, "%s", failure.text);
		} else {
			if (!ep_ranks_has(&g->lost_logged,
					  peer)) { /* a record may have it already */
				(void)ep_fail(ncclRemoteError, "%s; the rank is masked from now on",
					      failure.text);
				ep_ranks_add(&g->lost_logged, peer);
			}
			ep_ranks_add(&g->mask_due, peer); /* ep_group_settle() masks it */
			g->masks_due = true;
		}
		__atomic_store_n(g->async_error, 1, __ATOMIC_RELEASE);
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
static void remote_cut(void *gda)
{
	struct timespec nap = { 0, EP_REMOTE_LINGER_NS };

	nanosleep(&nap, NULL);
	ep_gda_close(gda);
}

static bool remote_lost(void *gda, int rank)
{
	struct ep_gda_failure failure;

	return ep_gda_explain(gda, rank, &failure);
}

void ep_group_remote_leave(struct ncclEpGroup *g, struct ep_heap_remote *heap_remote,
			   uint64_t timeout_ns)
{
	if (!g->remote_ranks) {
		return;
	}
	/* A rank that cannot be reached needs no word. */
	if (!g->reset) {
		(void)ep_group_remote_drain(g, true, timeout_ns);
	}
	ep_gda_user_mrs_free(g->gda); /* callers may free their tensors now */
	heap_remote->cut = remote_cut;
	heap_remote->lost = remote_lost;
	heap_remote->arg = g->gda;
	heap_remote->absent = malloc((size_t)g->nranks * sizeof(bool)); /* NULL: all are expected */
	remote_suspects_read(g);
	for (int r = 0; r < g->nranks && heap_remote->absent; r++) {
		heap_remote->absent[r] = remote_suspect(g, r);
	}
	g->gda = NULL;
}
