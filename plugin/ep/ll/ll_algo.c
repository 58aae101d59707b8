/* SPDX-License-Identifier: Apache-2.0 */
/* Low latency as the rest of ep sees it: its limits, its checks of configs, its state. */
#include <stdio.h>
#include <stdlib.h>
#include "ep/ep.h"
#include "ep/ll/ll.h"

/* Half of the blocks, or what the other half has left. At least one. */
static uint32_t ll_share(uint32_t half, uint32_t limit, uint32_t other)
{
	uint32_t left = limit > other ? limit - other : 0;

	return (uint32_t)ep_max_u64(1, ep_min_u64(half, left));
}

ncclResult_t ep_ll_geometry_make(struct ep_ll_geometry *out, const struct ep_params *params,
				 uint32_t limit)
{
	uint32_t blocks = (uint32_t)ep_min_u64(limit, EP_GROUP_MAX_BLOCKS);
	uint32_t send = (uint32_t)params->value[EP_PARAM_LL_SEND_SMS];
	uint32_t recv = (uint32_t)params->value[EP_PARAM_LL_RECV_SMS];

	out->fixed = send || recv;
	out->threads = (uint32_t)params->value[EP_PARAM_LL_THREADS];
	out->send_blocks = send ? send : ll_share(blocks / 2, limit, recv);
	out->recv_blocks = recv ? recv : ll_share(blocks - blocks / 2, limit, send);
	if (limit == 1 && !send && !recv) {
		/* Two small blocks share the SM. */
		out->threads = (uint32_t)ep_min_u64(out->threads, 256);
		return ncclSuccess;
	}
	if (out->send_blocks + out->recv_blocks > ep_min_u64(limit, EP_GROUP_MAX_BLOCKS)) {
		return ep_fail(ncclInvalidUsage,
			       "environment variables NCCL_EP_LL_SEND_SMS and NCCL_EP_LL_RECV_SMS "
			       "give %u and %u blocks: together at most %u (the SMs of an "
			       "operation)",
			       out->send_blocks, out->recv_blocks,
			       (unsigned int)ep_min_u64(limit, EP_GROUP_MAX_BLOCKS));
	}
	return ncclSuccess;
}

#define EP_LL_BUFFER_MOST (1ull << 62) /* with all other memory it is still a number */

/* Rows of all local experts are numbered with 31 bits, and so are quads. */
static ncclResult_t ll_config_check(const ncclEpGroupConfig_t *c, const struct ep_roles *roles)
{
	uint32_t tokens = c->max_dispatch_tokens_per_rank;
	uint32_t quads = ep_ll_row_quads(EP_ROW_COPIED, c->max_token_bytes);
	uint64_t sent = (uint64_t)roles->senders * tokens;

	if (c->num_experts / roles->holders > EP_LL_MAX_LOCAL_EXPERTS) {
		return ep_fail(ncclInvalidArgument,
			       "config->num_experts is %u: low latency mode takes at most %u for "
			       "each of the %u ranks that hold experts",
			       c->num_experts, EP_LL_MAX_LOCAL_EXPERTS, roles->holders);
	}
	if (c->rdma_buffer_size > EP_LL_BUFFER_MOST) {
		return ep_fail(ncclInvalidArgument,
			       "config->rdma_buffer_size is %lu: no device has as much memory, "
			       "NCCL_EP_AUTO chooses",
			       c->rdma_buffer_size);
	}
	if (sent > INT32_MAX || c->num_experts / roles->holders * sent > INT32_MAX) {
		return ep_fail(
			ncclInvalidArgument,
			"config->num_experts %u times max_dispatch_tokens_per_rank %u "
			"%sexceeds %d: lower one of them",
			c->num_experts, tokens,
			roles->senders == roles->holders ? "" : "times num_senders / num_holders ",
			INT32_MAX);
	}
	if (sent * quads > INT32_MAX) {
		return ep_fail(
			ncclInvalidArgument,
			"%u ranks times config->max_dispatch_tokens_per_rank %u times %u (quads "
			"of %u bytes in config->max_token_bytes) exceeds %d: lower one of them",
			roles->senders, tokens, quads, EP_QUAD_BYTES, INT32_MAX);
	}
	return ncclSuccess;
}

static struct ep_group_heap ll_group_heap(const struct ep_shape *shape, uint32_t topk)
{
	return ep_ll_heap_make(shape, topk).g;
}

static uint64_t ll_handle_bytes(const struct ep_shape *shape, ncclEpLayout_t layout, uint32_t topk)
{
	return ep_ll_handle_layout_make(shape, layout, topk).bytes;
}

static ncclResult_t ll_group_open(struct ncclEpGroup *g)
{
	g->ll = calloc(1, sizeof(*g->ll));
	if (!g->ll) {
		return ep_fail(ncclSystemError, "ncclEpCreateGroup: out of host memory");
	}
	EP_CHECK(ep_ll_geometry_make(&g->ll->dispatch, &g->params,
				     g->config.budget[EP_BUDGET_DISPATCH].sms));
	EP_CHECK(ep_ll_geometry_make(&g->ll->combine, &g->params,
				     g->config.budget[EP_BUDGET_COMBINE].sms));
	return ep_ll_kernels_open(g->ll, g->device);
}

static void ll_group_bind(struct ncclEpGroup *g)
{
	g->ll->areas = ep_ll_heap_make(&g->config.shape, g->heap.topk).areas;
	g->ll->near_sender = ep_group_sender_index(g);
}

static void ll_group_describe(const struct ncclEpGroup *g, char *text, size_t size)
{
	const struct ep_ll_geometry *d = &g->ll->dispatch, *c = &g->ll->combine;
	int n;

	if (d->fixed) {
		n = snprintf(text, size, "%u + %u blocks of %u threads, combine %u + %u of %u",
			     d->send_blocks, d->recv_blocks, d->threads, c->send_blocks,
			     c->recv_blocks, c->threads);
	} else {
		n = snprintf(text, size,
			     "%u blocks of %u threads, combine %u of %u, shared out per operation",
			     d->send_blocks + d->recv_blocks, d->threads,
			     c->send_blocks + c->recv_blocks, c->threads);
	}
	if (n > 0 && (size_t)n < size) {
		snprintf(text + n, size - (size_t)n, ", rows as %s", g->lines ? "lines" : "bytes");
	}
}

static ncclResult_t ll_handle_open(struct ncclEpHandle *handle, const ncclEpHandleConfig_t *config)
{
	handle->ll = calloc(1, sizeof(*handle->ll));
	if (!handle->ll) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	return ep_ll_shared_check(handle);
}

/* Shapes of tensors with received rows; `holds`: on a rank that holds experts. */
static struct ep_received ll_received_make(const struct ep_shape *shape, ncclEpLayout_t layout,
					   bool holds)
{
	bool em = layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	uint64_t b = shape->max_tokens, senders = shape->roles.senders;
	struct ep_received r = {
		.ndim = 2,
		.extent = { em ? shape->nlocal : senders, em ? senders * b : b },
		.meaning = { em ? "experts per rank" : "ranks",
			     em ? "ranks times max_dispatch_tokens_per_rank"
				: "max_dispatch_tokens_per_rank" },
	};

	if (!holds) {
		r.extent[0] = 0;
		r.meaning[0] = "this rank holds no experts";
	}
	return r;
}

static uint64_t ll_most_rows(const struct ep_shape *shape, ncclEpLayout_t layout, uint32_t topk,
			     uint64_t alignment)
{
	struct ep_received received = ll_received_make(shape, layout, true);

	return received.extent[0] * received.extent[1];
}

static void ll_handle_bind(struct ncclEpHandle *handle)
{
	const struct ep_shape *shape = &handle->group->config.shape;
	struct ep_ll_handle_layout l =
		ep_ll_handle_layout_make(shape, handle->layout, handle->topk);

	handle->ll->head = (void *)(handle->mem + l.head_off);
	handle->ll->dev = (struct ep_ll_dev_handle){
		.src_rows = (void *)(handle->mem + l.src_rows_off),
		.src_parts = (void *)(handle->mem + l.src_parts_off),
		.sent_rows = (void *)(handle->mem + l.sent_rows_off),
		.counts = (void *)(handle->mem + l.counts_off),
		.slot_token = (void *)(handle->mem + l.slot_token_off),
		.slot_row = (void *)(handle->mem + l.slot_row_off),
		.route = (void *)(handle->mem + l.route_off),
	};
	handle->received = ll_received_make(shape, handle->layout, ep_group_holds(handle->group));
}

/* The ids stay where they are: dispatch and combine read them there. */
static ncclResult_t ll_update(struct ncclEpHandle *handle, const struct ep_view *ids,
			      const ncclEpLayoutInfo_t *info, cudaStream_t stream)
{
	if (info) {
		return ep_fail(ncclInvalidArgument,
			       "layout_info must be NULL here in low latency mode: pass it to "
			       "ncclEpDispatch");
	}
	handle->topk_idx = ids->data;
	handle->id_bytes = ids->elem_bytes;
	return ncclSuccess;
}

/* Sums numbers of device memory when the stream is over. */
static ncclResult_t counts_sum(const uint32_t *dev, uint32_t n, uint64_t *sum, cudaStream_t stream)
{
	uint32_t *host = malloc(n * sizeof(*host));
	ncclResult_t result;

	if (!host) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	*sum = 0;
	EP_CHECK_GOTO(ep_device_read(host, dev, n * sizeof(*host), stream), out);
	for (uint32_t i = 0; i < n; i++) {
		*sum += host[i];
	}
out:
	free(host);
	return result;
}

static ncclResult_t ll_received(const struct ncclEpHandle *handle, uint64_t *tokens, uint64_t *rows,
				cudaStream_t stream)
{
	const struct ep_shape *shape = &handle->group->config.shape;
	bool holds = ep_group_holds(handle->group);
	struct ep_dev_receipt receipt;

	if (!handle->dispatched) {
		return ep_fail(ncclInvalidUsage, "ncclEpExtNumRecvTokens: no dispatch with the "
						 "handle has been completed");
	}
	EP_CHECK(ep_device_read(&receipt, &handle->ll->head->receipt, sizeof(receipt), stream));
	if (!ep_handle_receipt_mine(handle, &receipt)) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpExtNumRecvTokens: no dispatch with the handle has run: it "
			       "was captured, so launch the graph first, or it has failed");
	}
	*tokens = *rows = 0;
	if (!holds) {
		return ncclSuccess;
	}
	EP_CHECK(counts_sum(handle->ll->dev.src_rows + shape->roles.first_sender,
			    shape->roles.senders, tokens, stream));
	*rows = *tokens; /* each has one */
	return handle->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR
		       ? counts_sum(handle->ll->dev.counts, shape->nlocal, rows, stream)
		       : ncclSuccess;
}

static void ll_selections(const struct ncclEpHandle *handle, struct ep_expert_rows_args *args)
{
	*args = (struct ep_expert_rows_args){
		.selections = handle->topk_idx,
		.form = handle->id_bytes == 8 ? EP_EXPERT_ROWS_IDS64 : EP_EXPERT_ROWS_IDS32,
		.topk = handle->topk,
		.experts = handle->group->config.num_experts,
		.num_tokens = handle->num_tokens,
	};
}

const struct ep_algo ep_ll_algo = {
	.limits = {
		.mode = "low latency",
		.max_ranks = EP_GROUP_MAX_RANKS,
		.max_tokens = EP_LL_MAX_TOKENS,
		.max_topk = EP_LL_MAX_TOPK,
		.auto_topk = 8,
		.max_selections = EP_LL_MAX_INDEX,
		.banks = EP_GROUP_BANKS,
		.layouts = 1u << NCCL_EP_LAYOUT_EXPERT_MAJOR | 1u << NCCL_EP_LAYOUT_RANK_MAJOR,
		.layout_names = "NCCL_EP_LAYOUT_EXPERT_MAJOR and NCCL_EP_LAYOUT_RANK_MAJOR",
		.grows = true,
		.halves = true,
		.masks = true,
		.dispatch_formats = 1u << EP_ROW_COPIED | 1u << EP_ROW_FP8 | 1u << EP_ROW_MXFP8 |
				    1u << EP_ROW_NVFP4,
		.combine_formats = 1u << EP_ROW_COPIED | 1u << EP_ROW_FP8 | 1u << EP_ROW_NVFP4,
	},
	.config_check = ll_config_check,
	.heap = ll_group_heap,
	.handle_bytes = ll_handle_bytes,
	.group_open = ll_group_open,
	.group_bind = ll_group_bind,
	.group_describe = ll_group_describe,
	.handle_open = ll_handle_open,
	.handle_bind = ll_handle_bind,
	.update = ll_update,
	.dispatch = ep_ll_dispatch,
	.combine = ep_ll_combine,
	.complete = ep_ll_complete,
	.most_rows = ll_most_rows,
	.selections = ll_selections,
	.received = ll_received,
};
