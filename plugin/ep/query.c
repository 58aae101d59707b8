/* SPDX-License-Identifier: Apache-2.0 */
/* What callers ask of a group, or before they make one. */
#include <stdlib.h>
#include "core/cuda.h"
#include "device/kernels.h"
#include "ep/ep.h"

static __thread struct ep_error query_last;

ncclResult_t ep_query_error(struct ep_error_slot *slot, ncclResult_t *code, const char **text)
{
	ep_error_get(slot, &query_last);
	if (code) {
		*code = query_last.code;
	}
	if (text) {
		*text = query_last.text;
	}
	return ncclSuccess;
}

/*
 * The nodes: those of the caller, with roles as ranks follow one another; else of the environment.
 */
static ncclResult_t query_nodes(const struct ep_group_config *config, int nranks,
				const ncclEpExtMemory_t *asked, struct ep_nodes_most *most)
{
	bool listed = !asked->remote_ranks && config->node_size.count;
	uint32_t n = (uint32_t)nranks, largest, *node;
	ncclResult_t result = ncclSuccess;

	if (asked->remote_ranks >= n) {
		return ep_fail(ncclInvalidArgument,
			       "memory->remote_ranks is %u: with %d ranks, a rank has at most %d "
			       "peers",
			       asked->remote_ranks, nranks, nranks - 1);
	}
	*most = ep_nodes_alike(asked->node_ranks ? asked->node_ranks : n - asked->remote_ranks,
			       asked->remote_ranks, nranks, &config->shape.roles);
	largest = n - (most->remote != 0);
	if (most->near > largest || most->near < n - most->remote) {
		return ep_fail(ncclInvalidArgument,
			       "memory->node_ranks is %u: with %d ranks and %u remote_ranks, the "
			       "largest node has %u to %u, and 0 stands for %u",
			       asked->node_ranks, nranks, most->remote, n - most->remote, largest,
			       n - most->remote);
	}
	if (!asked->roles && !listed) {
		return ncclSuccess;
	}
	node = malloc(n * sizeof(*node));
	if (!node) {
		return ep_fail(ncclSystemError, "ncclEpExtDeviceMemory: out of host memory");
	}
	if (listed) {
		EP_CHECK_GOTO(ep_nodes_split(node, &config->node_size, nranks), out);
	}
	for (uint32_t r = 0; r < n && !listed; r++) {
		node[r] = r / most->near;
	}
	*most = ep_nodes_most(node, sizeof(*node), nranks, &config->shape.roles);
out:
	free(node);
	return result;
}

/*
 * Of a group, and of a handle unless layout is UNSET: fills the sizes of *memory, by the nodes that
 * it has.
 */
static ncclResult_t query_size(struct ep_group_config *made, const ncclEpGroupConfig_t *config,
			       int nranks, ncclEpLayout_t layout, int num_topk,
			       const ncclEpHandleConfig_t *handle, ncclEpExtMemory_t *memory)
{
	struct ep_params params;
	ncclEpGroupConfig_t own;
	struct ep_nodes_most most;
	ncclEpExtRoles_t roles;

	EP_CHECK(EP_IMPORT(&own, config, NCCL_EP_GROUP_CONFIG));
	EP_CHECK(EP_IMPORT_OPTIONAL(&roles, memory->roles, NCCL_EP_EXT_ROLES));
	EP_CHECK(ep_params_read(&params));
	EP_CHECK(ep_group_config_make(made, &own, &roles, &params, nranks, 0));
	EP_CHECK(query_nodes(made, nranks, memory, &most));
	ep_group_config_size(made, most);
	memory->heap_bytes = made->heap_bytes;
	memory->handle_bytes = 0;
	if (layout != NCCL_EP_LAYOUT_UNSET) {
		uint32_t topk = (uint32_t)num_topk;

		EP_CHECK(ep_handle_check(made, layout, handle, num_topk));
		memory->handle_bytes = made->algo->handle_bytes(&made->shape, layout, topk);
		memory->heap_bytes = ep_group_heap_bytes(made, topk);
	}
	memory->group_bytes =
		memory->heap_bytes + ep_group_workspace_bytes(made) + ep_group_remote_bytes(made);
	return ncclSuccess;
}

ncclResult_t ep_query_memory(const ncclEpGroupConfig_t *config, int nranks, ncclEpLayout_t layout,
			     int num_topk, ncclEpExtMemory_t *memory)
{
	struct ep_group_config made;
	ncclEpExtMemory_t m;

	EP_CHECK(EP_IMPORT(&m, memory, NCCL_EP_EXT_MEMORY));
	EP_CHECK(query_size(&made, config, nranks, layout, num_topk, NULL, &m));
	ep_struct_export(memory, &m, sizeof(m), m.size);
	return ncclSuccess;
}

ncclResult_t ep_query_received(struct ncclEpHandle *handle, uint64_t *tokens, uint64_t *rows,
			       cudaStream_t stream)
{
	uint64_t distinct, placed;

	EP_CHECK(ep_stream_check_capture(stream, "ncclEpExtNumRecvTokens"));
	EP_CHECK(handle->group->config.algo->received(handle, &distinct, &placed, stream));
	if (tokens) {
		*tokens = distinct;
	}
	if (rows) {
		*rows = placed;
	}
	return ncclSuccess;
}

#define EP_EXPERT_ROWS_THREADS 256u
#define EP_EXPERT_ROWS_BLOCKS 64u

ncclResult_t ep_query_expert_rows(const struct ncclEpHandle *handle, uint64_t *rows,
				  cudaStream_t stream)
{
	static const char name[] = "ncclEpExtAddExpertRows";
	struct ep_expert_rows_args args;
	uint32_t blocks;

	EP_CHECK(ep_handle_check_routed(handle, name));
	if (!rows) {
		return ep_fail(ncclInvalidArgument, "%s: rows is NULL", name);
	}
	if ((uintptr_t)rows % sizeof(*rows)) {
		return ep_fail(ncclInvalidArgument,
			       "%s: rows is %p: it must be aligned to %zu bytes", name,
			       (void *)rows, sizeof(*rows));
	}
	handle->group->config.algo->selections(handle, &args);
	args.rows = rows;
	blocks = ep_ceil_div(args.num_tokens, EP_EXPERT_ROWS_THREADS);
	blocks = (uint32_t)ep_min_u64(blocks, EP_EXPERT_ROWS_BLOCKS);
	return blocks ? ep_kernel_launch(handle->group, (const void *)ep_expert_rows_kernel, &args,
					 blocks, EP_EXPERT_ROWS_THREADS, 0, stream,
					 "counting experts' rows")
		      : ncclSuccess;
}

ncclResult_t ep_query_stats(struct ncclEpGroup *g, ncclEpExtPeerStats_t *stats, int count,
			    cudaStream_t stream)
{
	struct ep_peer_stats *dev = g->stats_host;
	int32_t *mask = g->mask_host;
	ncclEpExtPeerStats_t first;

	EP_CHECK(EP_IMPORT(&first, stats, NCCL_EP_EXT_PEER_STATS));
	if (count < 0 || count > g->nranks) {
		return ep_fail(ncclInvalidArgument,
			       "ncclEpExtPeerStats: count is %d, the group has "
			       "%d ranks",
			       count, g->nranks);
	}
	EP_CHECK(ep_stream_check_capture(stream, "ncclEpExtPeerStats"));
	EP_CHECK(ep_device_read(mask, g->mask, 4 * (size_t)g->nranks, stream));
	EP_CHECK(ep_device_read(dev, g->stats, (size_t)g->nranks * sizeof(*dev), stream));
	for (int r = 0; r < count; r++) {
		ncclEpExtPeerStats_t s = {
			.magic = NCCL_EP_MAGIC,
			.rank = r,
			.active = mask[r] != 0,
			.tx_bytes = dev[r].tx_bytes,
			.rx_bytes = dev[r].rx_bytes,
			.tx_rows = dev[r].tx_rows,
			.rx_rows = dev[r].rx_rows,
			.wait_ns = dev[r].wait_ns,
			.wait_max_ns = dev[r].wait_max_ns,
			.operations = dev[r].ops,
			.node = (int)g->idents[r].node,
			.rdma = ep_group_is_remote(g, (uint32_t)r),
		};

		ep_struct_export((char *)stats + (size_t)r * first.size, &s, sizeof(s), first.size);
	}
	return ncclSuccess;
}

/* ---- whether a group and its operations are possible, and what they take ---- */

_Static_assert(sizeof(ncclEpExtShape_t) == NCCL_EP_EXT_SHAPE_V2_SIZE, "ncclEpExtShape_t");

/* One row as a tensor has it. */
struct feasible_row {
	uint32_t in,
		out; /* bytes of a row of inputs->tokens, and of outputs->tokens with its scales */
	uint32_t results; /* and of what experts return */
};

static ncclResult_t feasible_row(const struct ep_group_config *config,
				 const ncclEpExtShape_t *shape, struct feasible_row *row)
{
	const size_t hidden[1] = { shape->hidden };
	struct ep_view view = { .elem_bytes = ep_dtype_bytes(shape->datatype),
				.datatype = shape->datatype,
				.ndim = 1,
				.sizes = hidden };
	const struct ep_limits *limits = &config->algo->limits;
	const struct ep_recipe *recipe;
	const struct ep_format *format;

	if (shape->quant_recipe == NCCL_EP_DISP_QUANT_FWD) {
		return ep_fail(ncclInvalidArgument,
			       "shape->quant_recipe is FWD, whose scales have no place here: ask "
			       "for NONE, with hidden as large as tokens and scales together");
	}
	EP_CHECK(ep_recipe_find(ep_dispatch_recipes, limits, limits->dispatch_formats,
				(int)shape->quant_recipe, &recipe));
	format = recipe->format == EP_ROW_COPIED ? NULL : &ep_formats[recipe->format];
	EP_CHECK(ep_row_check_types(recipe, shape->datatype,
				    format ? format->tokens : shape->datatype));
	EP_CHECK(ep_view_row_bytes(&view, 0, &row->in, "inputs->tokens"));
	row->out = row->in;
	if (format) {
		EP_CHECK(ep_row_check_elements(recipe, shape->hidden));
		row->out = (uint32_t)ep_format_bytes(format, shape->hidden);
	}
	/* A quantised row comes back as bf16, and so is never smaller than what was sent. */
	view.datatype = ep_dtype_is_token(shape->datatype) ? shape->datatype : ncclBfloat16;
	view.elem_bytes = ep_dtype_bytes(view.datatype);
	EP_CHECK(ep_view_row_bytes(&view, 0, &row->results, "inputs->tokens of ncclEpCombine"));
	return ep_row_check_budget(config, NULL, row->results);
}

/*
 * Of the rank that needs most: with what a holder of experts has, what a rank with tokens has, or
 * both.
 */
static uint64_t feasible_tensors(const struct ep_roles *roles, uint64_t holds, uint64_t sends)
{
	bool apart = roles->first_holder + roles->holders <= roles->first_sender ||
		     roles->first_sender + roles->senders <= roles->first_holder;

	return apart ? ep_max_u64(holds, sends) : holds + sends;
}

static ncclResult_t feasible_limit(const ncclEpExtShape_t *shape)
{
	uint64_t all = shape->group_bytes + shape->handle_bytes + shape->tensor_bytes;

	if (!shape->memory_bytes || all <= shape->memory_bytes) {
		return ncclSuccess;
	}
	return ep_fail(
		ncclInvalidUsage,
		"%llu bytes of device memory are needed (group %llu, handle %llu, tensors of "
		"a dispatch and a combine %llu), and shape->memory_bytes is %llu: lower "
		"max_dispatch_tokens_per_rank or, in high throughput, "
		"max_recv_tokens_per_rank",
		(unsigned long long)all, (unsigned long long)shape->group_bytes,
		(unsigned long long)shape->handle_bytes, (unsigned long long)shape->tensor_bytes,
		(unsigned long long)shape->memory_bytes);
}

ncclResult_t ep_feasible(const ncclEpGroupConfig_t *config, int nranks, ncclEpExtShape_t *shape)
{
	ncclEpHandleConfig_t handle = { .dispatch_output_per_expert_alignment = 0 };
	struct feasible_row row = { 0 };
	struct ep_group_config made;
	ncclEpExtMemory_t m = { 0 };
	ncclEpExtShape_t s;

	EP_CHECK(EP_IMPORT(&s, shape, NCCL_EP_EXT_SHAPE));
	if (s.layout == NCCL_EP_LAYOUT_UNSET) {
		return ep_fail(ncclInvalidArgument, "shape->layout is not set");
	}
	handle.dispatch_output_per_expert_alignment = s.alignment;
	m.remote_ranks = s.remote_ranks;
	m.node_ranks = s.node_ranks;
	m.roles = s.roles;
	EP_CHECK(query_size(&made, config, nranks, s.layout, s.num_topk, &handle, &m));
	EP_CHECK(feasible_row(&made, &s, &row));
	s.group_bytes = m.group_bytes;
	s.heap_bytes = m.heap_bytes;
	s.handle_bytes = m.handle_bytes;
	s.rows = made.algo->most_rows(&made.shape, s.layout, (uint32_t)s.num_topk, s.alignment);
	s.output_bytes = s.rows * row.out;
	s.tensor_bytes = feasible_tensors(&made.shape.roles, s.output_bytes + s.rows * row.results,
					  (uint64_t)made.shape.max_tokens *
						  ((uint64_t)row.in + row.results));
	EP_CHECK(feasible_limit(&s));
	ep_struct_export(shape, &s, sizeof(s), s.size);
	return ncclSuccess;
}
