/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a group and its operations are possible, and what they take, before there is any. */
#include "ep/feasible.h"
#include "ep/query.h"
#include "ep/row.h"
#include "ep/struct.h"
#include "ep/tensor.h"

_Static_assert(sizeof(ncclEpExtShape_t) == NCCL_EP_EXT_SHAPE_V1_SIZE, "ncclEpExtShape_t");

/* One row as a tensor has it. */
struct ep_feasible_row {
	uint32_t in,
		out; /* bytes of a row of inputs->tokens, and of outputs->tokens with its scales */
	uint32_t results; /* and of what experts return */
};

static ncclResult_t ep_feasible_row(const struct ep_group_config *config,
				    const ncclEpExtShape_t *shape, struct ep_feasible_row *row)
{
	const size_t hidden[1] = { shape->hidden };
	struct ep_view view = { .elem_bytes = ep_dtype_bytes(shape->datatype),
				.datatype = shape->datatype,
				.ndim = 1,
				.sizes = hidden };
	bool quantised = shape->quant_recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4;
	ncclDataType_t out = quantised ? ncclFloat8e4m3 : shape->datatype;

	if (shape->quant_recipe == NCCL_EP_DISP_QUANT_FWD) {
		return ep_fail(ncclInvalidArgument,
			       "shape->quant_recipe is FWD, whose scales have no place here: ask "
			       "for NONE, with hidden as large as tokens and scales together");
	}
	EP_CHECK(ep_row_check_recipe(&config->algo->limits, shape->quant_recipe));
	EP_CHECK(ep_row_check_types(shape->quant_recipe, shape->datatype, out));
	EP_CHECK(ep_view_row_bytes(&view, 0, &row->in, "inputs->tokens"));
	row->out = row->in;
	if (quantised) {
		EP_CHECK(ep_row_check_quantised(shape->hidden));
		row->out = (uint32_t)ep_row_quantised_bytes(shape->hidden);
	}
	/* A quantised row comes back as bf16, and so is never smaller than what was sent. */
	view.datatype = ep_dtype_is_token(shape->datatype) ? shape->datatype : ncclBfloat16;
	view.elem_bytes = ep_dtype_bytes(view.datatype);
	EP_CHECK(ep_view_row_bytes(&view, 0, &row->results, "inputs->tokens of ncclEpCombine"));
	return ep_row_check_budget(config, NCCL_EP_DISP_QUANT_NONE, row->results);
}

static ncclResult_t ep_feasible_limit(const ncclEpExtShape_t *shape)
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
	struct ep_feasible_row row = { 0 };
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
	EP_CHECK(ep_query_size(&made, config, nranks, s.layout, s.num_topk, &handle, &m));
	EP_CHECK(ep_feasible_row(&made, &s, &row));
	s.group_bytes = m.group_bytes;
	s.heap_bytes = m.heap_bytes;
	s.handle_bytes = m.handle_bytes;
	s.rows = made.algo->most_rows(&made.shape, s.layout, (uint32_t)s.num_topk, s.alignment);
	s.output_bytes = s.rows * row.out;
	s.tensor_bytes = s.output_bytes + s.rows * row.results +
			 (uint64_t)made.shape.max_tokens * ((uint64_t)row.in + row.results);
	EP_CHECK(ep_feasible_limit(&s));
	ep_struct_export(shape, &s, sizeof(s), s.size);
	return ncclSuccess;
}
