/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput as the rest of ep sees it: its limits, its checks of configs, its state. */
#include <stdio.h>
#include <stdlib.h>
#include "device/mlx5/mlx5_layout.h"
#include "ep/ep.h"
#include "ep/ht/ht.h"

static ncclResult_t ht_config_check(const ncclEpGroupConfig_t *c, const struct ep_roles *roles)
{
	uint32_t tokens = c->max_dispatch_tokens_per_rank, most = c->max_recv_tokens_per_rank;

	if (c->max_token_bytes % 16) {
		return ep_fail(
			ncclInvalidArgument,
			"config->max_token_bytes is %u: high throughput mode needs a multiple "
			"of 16",
			c->max_token_bytes);
	}
	if (c->num_experts > EP_HT_MAX_EXPERTS) {
		return ep_fail(ncclInvalidArgument,
			       "config->num_experts is %u: high throughput mode takes at most %u",
			       c->num_experts, EP_HT_MAX_EXPERTS);
	}
	if ((uint64_t)roles->senders * tokens > INT32_MAX) {
		return ep_fail(ncclInvalidArgument,
			       "%u ranks times config->max_dispatch_tokens_per_rank %u exceeds %d: "
			       "lower one of them",
			       roles->senders, tokens, INT32_MAX);
	}
	if (most && (most < tokens || most > INT32_MAX)) {
		return ep_fail(
			ncclInvalidArgument,
			"config->max_recv_tokens_per_rank is %u: it is NCCL_EP_AUTO, or from "
			"max_dispatch_tokens_per_rank %u to %d",
			most, tokens, INT32_MAX);
	}
	if (!most && c->overflow_policy == NCCL_EP_OVERFLOW_DROP) {
		return ep_fail(ncclInvalidArgument,
			       "config->overflow_policy is DROP, but max_recv_tokens_per_rank is "
			       "AUTO, which never overflows: set it, or use another policy");
	}
	return ncclSuccess;
}

static ncclResult_t ht_check_alignment(const struct ep_shape *shape, size_t alignment,
				       uint32_t topk)
{
	uint64_t most;

	if (alignment > 1u << 30 || (alignment & (alignment - 1))) {
		return ep_fail(ncclInvalidArgument,
			       "config->dispatch_output_per_expert_alignment is %zu: it is 0 or a "
			       "power of two, at most %u",
			       alignment, 1u << 30);
	}
	most = ep_ht_most_rows(shape, EP_HT_EXPERT_MAJOR, topk, ep_max_u64(alignment, 1));
	if (most > INT32_MAX) {
		return ep_fail(ncclInvalidUsage,
			       "up to %llu rows may come to a rank (%u ranks times "
			       "max_dispatch_tokens_per_rank %u, %u experts for each token, zones "
			       "aligned to %zu), which exceeds %d: lower one of them",
			       (unsigned long long)most, shape->roles.senders, shape->max_tokens,
			       ep_ht_width(shape, topk), alignment, INT32_MAX);
	}
	return ncclSuccess;
}

/* A list of what a rank's rows to another one are, or of their weights, travels in one message. */
static ncclResult_t ht_check_message(const struct ep_shape *shape, uint32_t topk)
{
	uint64_t bytes = 4ull * shape->max_tokens * ep_ht_width(shape, topk);

	if (shape->nodes.remote && bytes > EP_MLX5_MAX_BYTES) {
		return ep_fail(
			ncclInvalidUsage,
			"weights of max_dispatch_tokens_per_rank %u rows, for up to %u experts "
			"of a rank each, take %llu bytes, and a message to another node has at "
			"most %u: lower one of them",
			shape->max_tokens, ep_ht_width(shape, topk), (unsigned long long)bytes,
			EP_MLX5_MAX_BYTES);
	}
	return ncclSuccess;
}

static ncclResult_t ht_handle_check(const struct ep_group_config *config, ncclEpLayout_t layout,
				    const ncclEpHandleConfig_t *handle, uint32_t topk)
{
	const struct ep_shape *shape = &config->shape;
	uint64_t lists =
		ep_min_u64((uint64_t)shape->roles.senders * shape->max_tokens, shape->limit) *
		ep_ht_width(shape, topk);
	bool em = layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;

	if (config->num_topk && topk > config->num_topk) {
		return ep_fail(ncclInvalidUsage, "num_topk is %u, the group's is %u", topk,
			       config->num_topk);
	}
	if (em && shape->limit == EP_NO_LIMIT && !config->num_topk) {
		return ep_fail(ncclInvalidUsage,
			       "expert-major handles in eager mode (max_recv_tokens_per_rank AUTO) "
			       "need a group with num_topk: create it with num_topk = %u",
			       topk);
	}
	if (lists > INT32_MAX) {
		return ep_fail(ncclInvalidUsage,
			       "rows that may come times experts of each, %llu, exceed %d: lower "
			       "max_dispatch_tokens_per_rank %u or max_recv_tokens_per_rank",
			       (unsigned long long)lists, INT32_MAX, shape->max_tokens);
	}
	EP_CHECK(ht_check_message(shape, topk));
	return em ? ht_check_alignment(shape, handle->dispatch_output_per_expert_alignment, topk)
		  : ncclSuccess;
}

static struct ep_group_heap ht_group_heap(const struct ep_shape *shape, uint32_t topk)
{
	return ep_ht_heap_make(shape, topk).g;
}

static uint64_t ht_group_bytes(const struct ep_shape *shape)
{
	return ep_ht_group_scratch(shape) + ep_ht_nodes_bytes(shape);
}

static uint64_t ht_handle_bytes(const struct ep_shape *shape, ncclEpLayout_t layout, uint32_t topk)
{
	return ep_ht_handle_layout_make(shape, layout, topk).bytes;
}

static ncclResult_t ht_group_open(struct ncclEpGroup *g)
{
	g->ht = calloc(1, sizeof(*g->ht));
	if (!g->ht) {
		return ep_fail(ncclSystemError, "ncclEpCreateGroup: out of host memory");
	}
	return ep_ht_kernels_open(g);
}

static void ht_group_bind(struct ncclEpGroup *g)
{
	g->ht->areas = ep_ht_heap_make(&g->config.shape, g->heap.topk).areas;
}

static void ht_group_describe(const struct ncclEpGroup *g, char *text, size_t size)
{
	const struct ep_ht_areas *a = &g->ht->areas;
	const struct ep_budget *budget = g->config.budget;
	int n = snprintf(text, size, "%u blocks, combine %u, ring of %u chunks from each rank",
			 budget[EP_BUDGET_DISPATCH].sms, budget[EP_BUDGET_COMBINE].sms,
			 a->ring_chunks);

	if (g->remote_ranks && n > 0 && (size_t)n < size) {
		snprintf(text + n, size - (size_t)n, ", of %u from each node", a->net_chunks);
	} else if (ep_ht_lines(g) && n > 0 && (size_t)n < size) {
		snprintf(text + n, size - (size_t)n, ", rows as lines if SMs are enough");
	}
}

static uint64_t ht_stamp_add(uint64_t stamp, uint64_t value)
{
	stamp = (stamp ^ value) * 0x9e3779b97f4a7c15u;
	return stamp ^ stamp >> 29;
}

/*
 * Of a group of the same shape and the same nodes, and the same rank in it: never 0, nor
 * EP_HT_NO_STAMP. In memory of the library it is the handle's own: others have had that before.
 */
static uint64_t ht_stamp(const struct ncclEpHandle *handle)
{
	const struct ncclEpGroup *g = handle->group;
	const struct ep_group_config *config = &g->config;
	const struct ep_roles *roles = &config->shape.roles;
	const uint64_t values[] = {
		(uint64_t)g->nranks,      (uint64_t)g->rank,   config->num_experts,
		config->shape.max_tokens, config->shape.limit, config->drop,
		(uint64_t)handle->layout, handle->topk,        handle->alignment,
		roles->first_holder,      roles->holders,      roles->first_sender,
		roles->senders,
	};
	uint64_t stamp = 0xcbf29ce484222325u;

	for (size_t i = 0; i < EP_ARRAY_SIZE(values); i++) {
		stamp = ht_stamp_add(stamp, values[i]);
	}
	for (int r = 0; r < g->nranks; r++) { /* masks are for the ranks of a node */
		stamp = ht_stamp_add(stamp, g->idents[r].node);
	}
	stamp = ht_stamp_add(stamp, handle->mem_owned ? handle->secret : 0);
	return stamp >> 1 | 1;
}

static ncclResult_t ht_handle_open(struct ncclEpHandle *handle, const ncclEpHandleConfig_t *config)
{
	bool em = handle->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	size_t alignment = em ? config->dispatch_output_per_expert_alignment : 0;

	handle->ht = calloc(1, sizeof(*handle->ht));
	if (!handle->ht) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	handle->alignment = alignment ? (uint32_t)alignment : 1;
	return ncclSuccess;
}

static void ht_handle_bind(struct ncclEpHandle *handle)
{
	const struct ep_shape *shape = &handle->group->config.shape;
	struct ep_ht_handle_layout l =
		ep_ht_handle_layout_make(shape, handle->layout, handle->topk);
	bool em = handle->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;

	handle->ht->stamp = ht_stamp(handle);
	handle->ht->dev = (struct ep_ht_dev_handle){
		.head = (void *)(handle->mem + l.head_off),
		.send_sel = (void *)(handle->mem + l.send_sel_off),
		.send_row = (void *)(handle->mem + l.send_row_off),
		.send_place = em ? (void *)(handle->mem + l.send_place_off) : NULL,
		.send_start = (void *)(handle->mem + l.send_start_off),
		.send_base = (void *)(handle->mem + l.send_base_off),
		.recv_base = (void *)(handle->mem + l.recv_base_off),
		.recv_start = (void *)(handle->mem + l.recv_start_off),
		.recv_sel = (void *)(handle->mem + l.recv_sel_off),
		.zones = em ? (void *)(handle->mem + l.zones_off) : NULL,
		.send_nodes = shape->nodes.flows ? handle->mem + l.send_nodes_off : NULL,
		.node_masks = shape->nodes.flows ? handle->mem + l.node_masks_off : NULL,
		.scratch = handle->group->algo_memory,
	};
	handle->received = (struct ep_received){ .ndim = 1 };
}

#define EP_HT_AUTO_QUEUES 4u /* for rows, of all flows of a rank together; one of each at least */

/*
 * Where few flows share the NIC, each has several queues for rows: while signals of some are held
 * back, others keep the link busy. They are a power of two, so that kernels need not divide.
 */
static uint32_t ht_channels(const struct ep_group_config *config)
{
	uint32_t flows = config->shape.nodes.flows, wanted = config->rdma_queues, queues = 1;

	if (!wanted) {
		wanted = flows < EP_HT_AUTO_QUEUES ? EP_HT_AUTO_QUEUES / flows : 1;
	}
	while (2 * queues <= wanted && queues < EP_HT_MOST_QUEUES) {
		queues *= 2;
	}
	return EP_HT_ROWS + queues;
}

/* The most rows by ht_check_rows(), which fit any routing. */
static uint64_t ht_tensor_rows(const struct ep_shape *shape, ncclEpLayout_t layout, uint32_t topk,
			       uint64_t alignment)
{
	return shape->limit != EP_NO_LIMIT
		       ? shape->limit
		       : ep_ht_most_rows(shape, layout, topk, ep_max_u64(alignment, 1));
}

/* Reads how many tokens and rows the routing brings. */
static ncclResult_t ht_received(const struct ncclEpHandle *handle, uint64_t *tokens, uint64_t *rows,
				cudaStream_t stream)
{
	uint32_t nlocal = handle->group->config.shape.nlocal;
	struct ep_ht_zone *zones;
	struct ep_ht_head head;
	ncclResult_t result;

	if (handle->mem_owned && !handle->routed) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpExtNumRecvTokens: the handle has no routing: call "
			       "ncclEpUpdateHandle first");
	}
	EP_CHECK(ep_ht_head_read(handle, &head, stream, "ncclEpExtNumRecvTokens"));
	*tokens = *rows = head.rows;
	if (!handle->ht->dev.zones || !ep_group_holds(handle->group)) {
		return ncclSuccess;
	}
	zones = calloc(nlocal, sizeof(*zones));
	if (!zones) {
		return ep_fail(ncclSystemError, "ncclEpExtNumRecvTokens: out of host memory");
	}
	EP_CHECK_GOTO(ep_device_read(zones, handle->ht->dev.zones, nlocal * sizeof(*zones), stream),
		      out);
	*rows = 0;
	for (uint32_t i = 0; i < nlocal; i++) {
		*rows += zones[i].kept;
	}
out:
	free(zones);
	return result;
}

static void ht_selections(const struct ncclEpHandle *handle, struct ep_expert_rows_args *args)
{
	const struct ep_ht_dev_handle *dev = &handle->ht->dev;

	*args = (struct ep_expert_rows_args){
		.selections = dev->send_sel,
		.form = EP_EXPERT_ROWS_LISTS,
		.topk = handle->topk,
		.experts = handle->group->config.num_experts,
		.num_tokens = handle->group->config.shape.max_tokens,
		.stamp = &dev->head->stamp,
		.want = handle->ht->stamp,
		.stamped_tokens = &dev->head->num_tokens,
	};
}

const struct ep_algo ep_ht_algo = {
	.limits = {
		.mode = "high throughput",
		.max_ranks = EP_GROUP_MAX_RANKS,
		.max_tokens = 1u << 24,
		.max_topk = EP_HT_MAX_TOPK,
		.auto_topk = EP_HT_MAX_TOPK,
		.max_selections = INT32_MAX,
		.spare_sms = 5,
		.banks = 1,
		.layouts = 1u << NCCL_EP_LAYOUT_EXPERT_MAJOR | 1u << NCCL_EP_LAYOUT_FLAT,
		.layout_names = "NCCL_EP_LAYOUT_EXPERT_MAJOR and NCCL_EP_LAYOUT_FLAT",
		.backward = true,
		.dispatch_formats = 1u << EP_ROW_COPIED,
		.combine_formats = 1u << EP_ROW_COPIED | 1u << EP_ROW_MXFP8,
	},
	.channels = ht_channels,
	.config_check = ht_config_check,
	.handle_check = ht_handle_check,
	.heap = ht_group_heap,
	.group_bytes = ht_group_bytes,
	.handle_bytes = ht_handle_bytes,
	.group_open = ht_group_open,
	.group_bind = ht_group_bind,
	.group_bind_remote = ep_ht_nodes_bind,
	.group_describe = ht_group_describe,
	.handle_open = ht_handle_open,
	.handle_bind = ht_handle_bind,
	.update = ep_ht_update,
	.dispatch = ep_ht_dispatch,
	.combine = ep_ht_combine,
	.most_rows = ht_tensor_rows,
	.selections = ht_selections,
	.received = ht_received,
	.arrivals = ep_ht_arrivals_start,
};
