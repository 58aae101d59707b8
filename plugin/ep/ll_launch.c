/* SPDX-License-Identifier: Apache-2.0 */
/* From a handle to a running kernel. Nothing here allocates or synchronises. */
#include <string.h>
#include "core/cuda.h"
#include "device/kernels.h"
#include "ep/group.h"
#include "gda/gda.h"

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
	{ (const void *)ep_ll_dispatch_net_kernel, true },
	{ (const void *)ep_ll_dispatch_fp8_net_kernel, true },
	{ (const void *)ep_ll_combine_bf16_net_kernel, false },
	{ (const void *)ep_ll_combine_fp16_net_kernel, false },
	{ (const void *)ep_ll_combine_fp32_net_kernel, false },
	{ (const void *)ep_ll_clean_kernel, false },
	{ (const void *)ep_ll_drain_kernel, false },
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

static uint32_t ep_ll_shared_bytes(const struct ncclEpGroup *g, uint32_t topk)
{
	struct ep_ll_dispatch_args args;

	memset(&args, 0, sizeof(args));
	args.c.nranks = g->config.shape.nranks;
	args.c.nlocal = g->config.shape.nlocal;
	args.c.topk = topk;
	return ep_ll_dispatch_shared_bytes(&args);
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

/* What concerns remote ranks; all 0 where there are none. */
static void ep_ll_common_fill_net(struct ep_ll_common *c, const struct ncclEpHandle *h)
{
	const struct ncclEpGroup *g = h->group;

	if (!g->remote) {
		return;
	}
	c->remote = g->remote;
	c->channels = g->config.shape.channels;
	c->queues = c->channels + 1;
	c->qps = ep_gda_queues(g->gda);
	c->links = g->links;
	c->down = ep_gda_down(g->gda);
	c->sent_rows = (void *)(h->mem + h->mem_layout.sent_rows_off);
	c->signal_off = g->heap.signal_off;
	c->net_row_off = g->heap.net_row_off;
	c->stage_off = g->heap.stage_off;
	c->stage_half_bytes = g->heap.stage_half_bytes;
	c->stage_header_off = g->heap.stage_header_off;
	c->post_off = g->heap.post_off;
	c->post_stride = g->heap.post_stride;
}

void ep_ll_common_fill(struct ep_ll_common *c, const struct ncclEpHandle *h, uint32_t row_quads)
{
	const struct ncclEpGroup *g = h->group;

	c->rank = (uint32_t)g->rank;
	c->nranks = (uint32_t)g->nranks;
	c->nlocal = g->config.shape.nlocal;
	c->topk = h->topk;
	c->max_tokens = g->config.shape.max_tokens;
	c->num_tokens = h->num_tokens;
	c->layout = h->layout;
	c->id_bytes = h->id_bytes;
	c->mask_enabled = g->config.enable_mask;
	c->row_quads = row_quads;
	c->lines = g->lines;
	c->timeout_ns = g->config.timeout_ns;
	c->mask = g->mask;
	c->seq = g->seq;
	c->state = g->state;
	c->records = g->records_dev;
	c->async_error = g->async_error_dev;
	c->stats = g->stats;
	c->staged = (void *)(h->mem + h->mem_layout.staged_off);
	c->src_rows = (void *)(h->mem + h->mem_layout.src_rows_off);
	c->src_parts = (void *)(h->mem + h->mem_layout.src_parts_off);
	c->counts = (void *)(h->mem + h->mem_layout.counts_off);
	c->slot_token = (void *)(h->mem + h->mem_layout.slot_token_off);
	c->slot_row = (void *)(h->mem + h->mem_layout.slot_row_off);
	c->route = (void *)(h->mem + h->mem_layout.route_off);
	c->topk_idx = h->topk_idx;
	c->progress_off = g->heap.progress_off;
	memcpy(c->bank_off, g->heap.bank_off, sizeof(c->bank_off));
	c->packet_off = g->heap.packet_off;
	c->flag_off = g->heap.flag_off;
	c->row_off = g->heap.row_off;
	memcpy(c->heap, g->symm.base, sizeof(c->heap));
	ep_ll_common_fill_net(c, h);
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

struct ep_ll_parts ep_ll_dispatch_parts(const struct ncclEpHandle *h, uint32_t quads, uint32_t unit)
{
	uint32_t tokens = ep_ll_tokens(h);
	uint32_t most = unit > 1 ? EP_LL_RECV_QUANTISED_QUADS : EP_LL_RECV_QUADS;
	struct ep_ll_parts p = { ep_ll_flag_parts(h, h->num_tokens, quads / unit), 1 };

	if (h->group->lines) {
		uint32_t own = ep_ll_part_quads(tokens, quads, EP_LL_SEND_QUADS);

		p.own = ep_ceil_div(quads, ep_max_u64(unit, own));
		p.peer = ep_ceil_div(quads, ep_ll_part_quads(tokens, quads, most));
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
		p.peer = ep_ceil_div(quads, ep_ll_part_quads(tokens, quads, EP_LL_RETURN_QUADS));
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

/* Sets the phase in `c` and returns the blocks of the launch. */
static uint32_t ep_ll_phase_set(const struct ep_ll_geometry *geometry, struct ep_ll_common *c,
				uint32_t phase, bool dispatch)
{
	uint32_t send = ep_ll_send_blocks(geometry, c->num_tokens, dispatch);
	uint32_t recv = geometry->send_blocks + geometry->recv_blocks - send;

	c->phase = phase;
	c->send_blocks = phase & EP_LL_SEND ? send : 0;
	return c->send_blocks + (phase & EP_LL_RECV ? recv : 0);
}

static ncclResult_t ep_ll_dispatch_phase(struct ncclEpGroup *g, const void *kernel,
					 struct ep_ll_dispatch_args *args, uint32_t phase,
					 cudaStream_t stream)
{
	uint32_t blocks = ep_ll_phase_set(&g->geometry, &args->c, phase, true);

	return ep_ll_launch(kernel, args, blocks, g->geometry.threads,
			    ep_ll_dispatch_shared_bytes(args), stream, "launching dispatch");
}

static ncclResult_t ep_ll_combine_phase(struct ncclEpGroup *g, const void *kernel,
					struct ep_ll_combine_args *args, uint32_t phase,
					cudaStream_t stream)
{
	uint32_t blocks = ep_ll_phase_set(&g->geometry, &args->c, phase, false);

	return ep_ll_launch(kernel, args, blocks, g->geometry.threads, 0, stream,
			    "launching combine");
}

static void ep_ll_stage(struct ncclEpHandle *h, enum ep_staged_kind kind, const void *kernel)
{
	h->staged = kind;
	h->staged_kernel = kernel;
	h->group->staged++;
}

ncclResult_t ep_ll_dispatch_launch(struct ncclEpHandle *h, const void *kernel,
				   struct ep_ll_dispatch_args *args, bool send_only,
				   cudaStream_t stream)
{
	if (!send_only) {
		EP_CHECK(ep_ll_dispatch_phase(h->group, kernel, args, EP_LL_SEND | EP_LL_RECV,
					      stream));
		h->dispatched = true;
		return ncclSuccess;
	}
	EP_CHECK(ep_ll_dispatch_phase(h->group, kernel, args, EP_LL_SEND, stream));
	h->staged_args.dispatch = *args;
	ep_ll_stage(h, EP_STAGED_DISPATCH, kernel);
	return ncclSuccess;
}

ncclResult_t ep_ll_combine_launch(struct ncclEpHandle *h, const void *kernel,
				  struct ep_ll_combine_args *args, bool send_only,
				  cudaStream_t stream)
{
	if (!send_only) {
		return ep_ll_combine_phase(h->group, kernel, args, EP_LL_SEND | EP_LL_RECV, stream);
	}
	EP_CHECK(ep_ll_combine_phase(h->group, kernel, args, EP_LL_SEND, stream));
	h->staged_args.combine = *args;
	ep_ll_stage(h, EP_STAGED_COMBINE, kernel);
	return ncclSuccess;
}

ncclResult_t ep_ll_complete_launch(struct ncclEpHandle *h, cudaStream_t stream)
{
	if (h->staged == EP_STAGED_NONE) {
		return ncclSuccess;
	}
	if (h->staged == EP_STAGED_DISPATCH) {
		EP_CHECK(ep_ll_dispatch_phase(h->group, h->staged_kernel, &h->staged_args.dispatch,
					      EP_LL_RECV, stream));
		h->dispatched = true;
	} else {
		EP_CHECK(ep_ll_combine_phase(h->group, h->staged_kernel, &h->staged_args.combine,
					     EP_LL_RECV, stream));
	}
	h->staged = EP_STAGED_NONE;
	h->group->staged--;
	return ncclSuccess;
}

ncclResult_t ep_ll_clean_launch(struct ncclEpGroup *g, cudaStream_t stream)
{
	uint32_t threads = (uint32_t)ep_round_up((uint64_t)g->nranks, 32);
	struct ep_ll_clean_args args;

	memset(&args, 0, sizeof(args));
	args.rank = (uint32_t)g->rank;
	args.nranks = (uint32_t)g->nranks;
	args.round = g->clean_rounds + 1;
	args.mask_enabled = g->config.enable_mask;
	args.timeout_ns = g->config.timeout_ns;
	args.mask = g->mask;
	args.seq = g->seq;
	args.state = g->state;
	args.records = g->records_dev;
	args.async_error = g->async_error_dev;
	args.clean_off = g->heap.clean_off;
	args.progress_off = g->heap.progress_off;
	memcpy(args.heap, g->symm.base, sizeof(args.heap));
	if (g->remote) {
		threads = (uint32_t)ep_max_u64(threads, 64);
		args.remote = g->remote;
		args.queues = g->config.shape.channels + 1;
		args.qps = ep_gda_queues(g->gda);
		args.down = ep_gda_down(g->gda);
	}
	EP_CHECK(ep_ll_launch((const void *)ep_ll_clean_kernel, &args, 1, threads, 0, stream,
			      "launching the mask clean-up"));
	g->clean_rounds++;
	return ncclSuccess;
}
