/* SPDX-License-Identifier: Apache-2.0 */
/* From a handle to a running kernel. Nothing here allocates or synchronises. */
#include <string.h>
#include "core/cuda.h"
#include "device/kernels.h"
#include "ep/group.h"

#define EP_MAX_DEVICES 64

static const struct {
	const void *kernel;
	bool dispatch;
} ep_ll_kernels[] = {
	{ (const void *)ep_ll_dispatch_kernel, true },
	{ (const void *)ep_ll_dispatch_fp8_kernel, true },
	{ (const void *)ep_ll_combine_bf16_kernel, false },
	{ (const void *)ep_ll_combine_fp16_kernel, false },
	{ (const void *)ep_ll_combine_fp32_kernel, false },
	{ (const void *)ep_ll_dispatch_remote_kernel, true },
	{ (const void *)ep_ll_dispatch_fp8_remote_kernel, true },
	{ (const void *)ep_ll_combine_bf16_remote_kernel, false },
	{ (const void *)ep_ll_combine_fp16_remote_kernel, false },
	{ (const void *)ep_ll_combine_fp32_remote_kernel, false },
	{ (const void *)ep_clean_kernel, false },
	{ (const void *)ep_drain_kernel, false },
};

/* What the dispatch kernels may use on each device: shared by all groups of the process. */
static pthread_mutex_t ep_ll_shared_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t ep_ll_shared_allowed[EP_MAX_DEVICES];

ncclResult_t ep_ll_preload(void)
{
	struct cudaFuncAttributes attributes;

	for (size_t i = 0; i < EP_ARRAY_SIZE(ep_ll_kernels); i++) {
		cudaError_t err = cudaFuncGetAttributes(&attributes, ep_ll_kernels[i].kernel);

		if (err != cudaSuccess) {
			(void)cudaGetLastError();
			return ep_fail(ncclUnhandledCudaError,
				       "no kernel can be loaded on this GPU: %s; the library needs "
				       "compute capability 8.0 or later",
				       cudaGetErrorString(err));
		}
	}
	return ncclSuccess;
}

/* Tokens of one span: a multiple of 32, at least 32. */
static uint32_t ep_ll_span_tokens(uint32_t topk, uint32_t experts)
{
	uint64_t n = ep_min_u64(EP_LL_SPAN_IDS / topk, EP_LL_SPAN);

	n = ep_min_u64(n, EP_LL_SPAN_BITS / experts * 32);
	return n > 32 ? (uint32_t)n & ~31u : 32;
}

/*
 * Dynamic shared memory of a dispatch. Senders: ids of a span, bits per (expert, token) and per
 * (rank, token), counts per expert and rank, FP8 scratch. Receivers: counts per (source, expert),
 * five words per source.
 */
static uint32_t ep_ll_shared_bytes(const struct ncclEpGroup *g, uint32_t topk)
{
	uint32_t r = g->config.shape.nranks, experts = r * g->config.shape.nlocal;
	uint32_t span = ep_ll_span_tokens(topk, experts);
	uint32_t scratch = EP_GROUP_MAX_THREADS / 32 * EP_LL_TILE_BYTES;
	uint32_t send = 4 * (span * topk + (experts + r) * (span / 32 + 1)) + scratch;
	uint32_t recv = 4 * (experts + 5 * r);

	return (uint32_t)ep_max_u64(send, recv) + 64;
}

static ncclResult_t ep_ll_shared_allow(int device, uint32_t bytes)
{
	uint32_t *allowed = &ep_ll_shared_allowed[device % EP_MAX_DEVICES];
	cudaError_t err = cudaSuccess;

	pthread_mutex_lock(&ep_ll_shared_lock);
	for (size_t i = 0; bytes > *allowed && i < EP_ARRAY_SIZE(ep_ll_kernels); i++) {
		if (ep_ll_kernels[i].dispatch && err == cudaSuccess) {
			err = cudaFuncSetAttribute(ep_ll_kernels[i].kernel,
						   cudaFuncAttributeMaxDynamicSharedMemorySize,
						   (int)bytes);
		}
	}
	if (err == cudaSuccess && bytes > *allowed) {
		*allowed = bytes;
	}
	pthread_mutex_unlock(&ep_ll_shared_lock);
	if (err == cudaSuccess) {
		return ncclSuccess;
	}
	(void)cudaGetLastError();
	return ep_fail(ncclInvalidUsage,
		       "dispatch needs %u bytes of shared memory per block, more than this GPU has "
		       "(%s): use fewer experts per rank, or fewer ranks",
		       bytes, cudaGetErrorString(err));
}

/* max_num_sms 1: the sending and the receiving block must fit on one SM together. */
static ncclResult_t ep_ll_check_coresidence(const struct ncclEpGroup *g, uint32_t bytes)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(ep_ll_kernels); i++) {
		int blocks = 0;

		if (!ep_ll_kernels[i].dispatch) {
			continue;
		}
		EP_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
				&blocks, ep_ll_kernels[i].kernel, (int)g->geometry.threads, bytes),
			"asking how many blocks fit on an SM");
		if (blocks < 2) {
			return ep_fail(
				ncclInvalidUsage,
				"max_num_sms is 1, but two blocks of dispatch (%u threads, %u "
				"bytes of shared memory) do not fit on one SM: set it to 2 or "
				"more",
				g->geometry.threads, bytes);
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_ll_allow_shared(struct ncclEpGroup *g, uint32_t topk)
{
	uint32_t bytes = ep_ll_shared_bytes(g, topk);

	if (bytes > 48 * 1024) {
		EP_CHECK(ep_ll_shared_allow(g->device, bytes));
	}
	if (g->config.max_sms == 1) {
		EP_CHECK(ep_ll_check_coresidence(g, bytes));
	}
	return ncclSuccess;
}

void ep_ll_handle_fill(struct ncclEpHandle *h)
{
	const struct ep_ll_handle_layout *l = &h->mem_layout;

	h->pending_dev = (void *)(h->mem + l->pending_off);
	h->dev.src_rows = (void *)(h->mem + l->src_rows_off);
	h->dev.src_parts = (void *)(h->mem + l->src_parts_off);
	h->dev.sent_rows = (void *)(h->mem + l->sent_rows_off);
	h->dev.counts = (void *)(h->mem + l->counts_off);
	h->dev.slot_token = (void *)(h->mem + l->slot_token_off);
	h->dev.slot_row = (void *)(h->mem + l->slot_row_off);
	h->dev.route = (void *)(h->mem + l->route_off);
}

void ep_ll_common_fill(struct ep_ll_common *c, const struct ncclEpHandle *h, uint32_t quads,
		       uint32_t tile, struct ep_ll_parts parts)
{
	const struct ncclEpGroup *g = h->group;

	c->g = g->dev;
	c->areas = g->heap.areas;
	c->h = h->dev;
	c->launch.pending = h->pending_dev;
	c->topk_idx = h->topk_idx;
	c->nlocal = g->config.shape.nlocal;
	c->topk = h->topk;
	c->max_tokens = g->config.shape.max_tokens;
	c->num_tokens = h->num_tokens;
	c->layout = h->layout;
	c->id_bytes = h->id_bytes;
	c->row_quads = quads;
	c->lines = g->lines;
	c->parts = parts.own;
	c->peer_parts = parts.peer;
	c->part_quads = ep_ll_part_quads(quads, parts.own, tile);
	c->peer_part_quads = ep_ll_part_quads(quads, parts.peer, 1);
	c->by_local = ep_div_make(c->nlocal);
	c->by_topk = ep_div_make(c->topk);
	c->by_parts = ep_div_make(c->parts);
	c->by_peer_parts = ep_div_make(c->peer_parts);
	c->span = ep_ll_span_tokens(c->topk, c->g.nranks * c->nlocal);
	c->channel_tokens = ep_remote_channel_entries(c->num_tokens, g->config.shape.channels);
}

static uint32_t ep_ll_tokens(const struct ncclEpHandle *h)
{
	/* without tokens of our own, be ready for as many from the peers as can be */
	return h->num_tokens ? h->num_tokens : h->group->config.shape.max_tokens;
}

/* Without lines each part of a row has a flag: as many parts as there are warps for. */
static uint32_t ep_ll_flag_parts(const struct ncclEpHandle *h, uint64_t rows, uint32_t pieces)
{
	const struct ep_ll_geometry *geometry = &h->group->geometry;

	return ep_ll_parts_choose(rows, pieces, geometry->send_blocks * (geometry->threads / 32));
}

/*
 * Quads that a warp takes of many rows: what dispatch sends and receives (a quad of a quantised row
 * takes longer to put in its places), and what combine returns. Measured: doc/performance.md.
 */
#define EP_LL_SEND_QUADS 2
#define EP_LL_RECV_QUADS 3
#define EP_LL_RECV_QUANTISED_QUADS 2
#define EP_LL_RETURN_QUADS 4

struct ep_ll_parts ep_ll_dispatch_parts(const struct ncclEpHandle *h, uint32_t quads, uint32_t tile)
{
	uint32_t tokens = ep_ll_tokens(h);
	uint32_t most = tile > 1 ? EP_LL_RECV_QUANTISED_QUADS : EP_LL_RECV_QUADS;
	struct ep_ll_parts p = { ep_ll_flag_parts(h, h->num_tokens, quads / tile), 1 };

	if (h->group->lines) {
		uint32_t own = ep_ll_warp_quads(tokens, quads, EP_LL_SEND_QUADS);

		p.own = ep_ceil_div(quads, ep_max_u64(tile, own));
		p.peer = ep_ceil_div(quads, ep_ll_warp_quads(tokens, quads, most));
	}
	return p;
}

/*
 * Without lines, the parts of returning rows carry flags, and the peers learned in the dispatch how
 * many: reckon with the largest row, since the type of the combine was not known then. With lines
 * both sides cut as they like.
 */
uint32_t ep_ll_combine_parts_told(const struct ncclEpHandle *h)
{
	return ep_ll_flag_parts(h, (uint64_t)h->num_tokens * h->topk,
				ep_ll_copy_quads(h->group->config.max_token_bytes));
}

struct ep_ll_parts ep_ll_combine_parts(const struct ncclEpHandle *h, uint32_t quads)
{
	uint32_t tokens = ep_ll_tokens(h);
	struct ep_ll_parts p = { ep_ll_combine_parts_told(h), 1 };

	if (h->group->lines) {
		p.own = ep_ceil_div(quads, tokens <= 256 ? 1 : 2);
		p.peer = ep_ceil_div(quads, ep_ll_warp_quads(tokens, quads, EP_LL_RETURN_QUADS));
	}
	return p;
}

static ncclResult_t ep_ll_launch(const void *kernel, void *args, uint32_t blocks, uint32_t threads,
				 uint32_t shared_bytes, cudaStream_t stream, const char *what)
{
	void *params[] = { args };
	cudaLaunchConfig_t config;

	memset(&config, 0, sizeof(config));
	config.gridDim = (dim3){ blocks, 1, 1 };
	config.blockDim = (dim3){ threads, 1, 1 };
	config.dynamicSmemBytes = shared_bytes;
	config.stream = stream;
	EP_CUDA(cudaLaunchKernelExC(&config, kernel, params), what);
	return ncclSuccess;
}

/*
 * Which blocks send, out of those of both halves. Few tokens are a matter of latency: equal halves.
 * With more, receivers, who wait for lines, need more warps than senders: measured on 8 GPUs, see
 * doc/performance.md.
 */
static uint32_t ep_ll_send_blocks(const struct ep_ll_geometry *geometry, uint32_t tokens,
				  bool dispatch)
{
	uint32_t blocks = geometry->send_blocks + geometry->recv_blocks, send;

	if (geometry->fixed) {
		return geometry->send_blocks;
	}
	if (dispatch) {
		send = tokens <= 16 ? blocks / 2 : blocks / 4;
	} else {
		send = tokens <= 64 ? blocks / 2 : blocks * 3 / 8;
	}
	return send ? send : 1;
}

/* Sets the halves in `c` and returns the blocks of the launch. */
static uint32_t ep_ll_halves_set(const struct ep_ll_geometry *geometry, struct ep_ll_common *c,
				 uint32_t halves, bool dispatch)
{
	uint32_t send = ep_ll_send_blocks(geometry, c->num_tokens, dispatch);
	uint32_t recv = geometry->send_blocks + geometry->recv_blocks - send;

	c->launch.halves = halves;
	c->launch.send_blocks = halves & EP_HALF_SEND ? send : 0;
	return c->launch.send_blocks + (halves & EP_HALF_RECV ? recv : 0);
}

static ncclResult_t ep_ll_dispatch_phase(struct ncclEpGroup *g, const void *kernel,
					 struct ep_ll_dispatch_args *args, uint32_t halves,
					 cudaStream_t stream)
{
	uint32_t blocks = ep_ll_halves_set(&g->geometry, &args->c, halves, true);

	return ep_ll_launch(kernel, args, blocks, g->geometry.threads,
			    ep_ll_shared_bytes(g, args->c.topk), stream, "launching dispatch");
}

static ncclResult_t ep_ll_combine_phase(struct ncclEpGroup *g, const void *kernel,
					struct ep_ll_combine_args *args, uint32_t halves,
					cudaStream_t stream)
{
	uint32_t blocks = ep_ll_halves_set(&g->geometry, &args->c, halves, false);

	return ep_ll_launch(kernel, args, blocks, g->geometry.threads, 0, stream,
			    "launching combine");
}

static void ep_ll_pend(struct ncclEpHandle *h, enum ep_pending_kind kind, const void *kernel)
{
	h->pending = kind;
	h->pending_kernel = kernel;
	h->group->pending++;
}

ncclResult_t ep_ll_dispatch_launch(struct ncclEpHandle *h, const void *kernel,
				   struct ep_ll_dispatch_args *args, bool send_only,
				   cudaStream_t stream)
{
	if (!send_only) {
		EP_CHECK(ep_ll_dispatch_phase(h->group, kernel, args, EP_HALF_SEND | EP_HALF_RECV,
					      stream));
		h->dispatched = true;
		return ncclSuccess;
	}
	EP_CHECK(ep_ll_dispatch_phase(h->group, kernel, args, EP_HALF_SEND, stream));
	h->pending_args.dispatch = *args;
	ep_ll_pend(h, EP_PENDING_DISPATCH, kernel);
	return ncclSuccess;
}

ncclResult_t ep_ll_combine_launch(struct ncclEpHandle *h, const void *kernel,
				  struct ep_ll_combine_args *args, bool send_only,
				  cudaStream_t stream)
{
	if (!send_only) {
		return ep_ll_combine_phase(h->group, kernel, args, EP_HALF_SEND | EP_HALF_RECV,
					   stream);
	}
	EP_CHECK(ep_ll_combine_phase(h->group, kernel, args, EP_HALF_SEND, stream));
	h->pending_args.combine = *args;
	ep_ll_pend(h, EP_PENDING_COMBINE, kernel);
	return ncclSuccess;
}

ncclResult_t ep_ll_complete_launch(struct ncclEpHandle *h, cudaStream_t stream)
{
	if (h->pending == EP_PENDING_NONE) {
		return ncclSuccess;
	}
	if (h->pending == EP_PENDING_DISPATCH) {
		EP_CHECK(ep_ll_dispatch_phase(h->group, h->pending_kernel,
					      &h->pending_args.dispatch, EP_HALF_RECV, stream));
		h->dispatched = true;
	} else {
		EP_CHECK(ep_ll_combine_phase(h->group, h->pending_kernel, &h->pending_args.combine,
					     EP_HALF_RECV, stream));
	}
	h->pending = EP_PENDING_NONE;
	h->group->pending--;
	return ncclSuccess;
}

ncclResult_t ep_ll_clean_launch(struct ncclEpGroup *g, cudaStream_t stream)
{
	uint32_t threads = (uint32_t)ep_round_up((uint64_t)g->nranks, 32);
	struct ep_clean_args args = {
		.g = g->dev,
		.clean_round = g->clean_rounds + 1,
	};

	if (g->remote) {
		threads = (uint32_t)ep_max_u64(threads, 64); /* so that waits for queues overlap */
	}
	EP_CHECK(ep_ll_launch((const void *)ep_clean_kernel, &args, 1, threads, 0, stream,
			      "launching the mask clean-up"));
	g->clean_rounds++;
	return ncclSuccess;
}
