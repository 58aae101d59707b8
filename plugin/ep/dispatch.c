/* SPDX-License-Identifier: Apache-2.0 */
/* ncclEpDispatch in low latency mode: everything is checked before anything is launched. */
#include <string.h>
#include "device/kernels.h"
#include "ep/group.h"
#include "ep/struct.h"
#include "ep/tensor.h"

struct ep_dispatch {
	struct ncclEpHandle *h;
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info; /* size 0: none */
	ncclEpDispatchConfig_t config;
	bool v1; /* the caller's config does not know recipes */
	ncclEpDispQuant_t recipe;
	struct ep_ll_dispatch_args args;
	struct ep_view tokens;
	struct ep_view out_tokens;
};

static ncclResult_t ep_dispatch_choose_recipe(struct ep_dispatch *d)
{
	d->v1 = d->config.size < NCCL_EP_DISPATCH_CONFIG_V2_SIZE;
	if (d->v1) {
		d->recipe = d->out.scales ? NCCL_EP_DISP_QUANT_DS_FP8E3M4 : NCCL_EP_DISP_QUANT_NONE;
	} else {
		d->recipe = d->config.quant_recipe;
	}
	switch ((int)d->recipe) {
	case NCCL_EP_DISP_QUANT_NONE:
		EP_CHECK(ep_tensor_expect_absent(d->in.scales, "inputs->scales",
						 "tokens are not quantised (recipe NONE)"));
		return ep_tensor_expect_absent(d->out.scales, "outputs->scales",
					       "tokens are not quantised (recipe NONE)");
	case NCCL_EP_DISP_QUANT_FWD:
		if (!d->in.scales || !d->out.scales || d->config.round_scales) {
			return ep_fail(ncclInvalidArgument,
				       "recipe FWD needs inputs->scales and outputs->scales, and "
				       "round_scales 0: %s",
				       !d->in.scales    ? "inputs->scales is NULL"
				       : !d->out.scales ? "outputs->scales is NULL"
							: "round_scales is set");
		}
		return ncclSuccess;
	case NCCL_EP_DISP_QUANT_DS_FP8E3M4:
		if (!d->out.scales) {
			return ep_fail(ncclInvalidArgument, "recipe DS_FP8E3M4 needs "
							    "outputs->scales, which is NULL");
		}
		return ep_tensor_expect_absent(d->in.scales, "inputs->scales",
					       "recipe DS_FP8E3M4 makes the scales");
	default:
		return ep_fail(ncclInvalidArgument,
			       "config->quant_recipe is %d, the largest value "
			       "is %d",
			       (int)d->recipe, NCCL_EP_DISP_QUANT_DS_FP8E3M4);
	}
}

static ncclResult_t ep_dispatch_check_direction(const struct ep_dispatch *d)
{
	if (d->config.pass_direction == NCCL_EP_BWD_PASS) {
		return ep_fail(ncclInvalidUsage, "ncclEpDispatch: low latency mode has no backward "
						 "pass: use NCCL_EP_FWD_PASS");
	}
	if (d->config.pass_direction != NCCL_EP_FWD_PASS) {
		return ep_fail(ncclInvalidArgument, "config->pass_direction is %d",
			       (int)d->config.pass_direction);
	}
	return ncclSuccess;
}

static bool ep_dtype_is_token(ncclDataType_t t)
{
	return t == ncclBfloat16 || t == ncclFloat16 || t == ncclFloat32;
}

static bool ep_dtype_is_packed(ncclDataType_t t)
{
	return t == ncclFloat8e4m3 || t == ncclFloat8e5m2 || t == ncclFloat4x2;
}

static ncclResult_t ep_dispatch_check_types(const struct ep_dispatch *d)
{
	ncclDataType_t in = d->tokens.datatype, out = d->out_tokens.datatype;
	bool ok;

	if (d->recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4) {
		EP_CHECK(ep_view_expect_type(&d->tokens, ncclBfloat16, "inputs->tokens"));
		return ep_view_expect_type(&d->out_tokens, ncclFloat8e4m3, "outputs->tokens");
	}
	ok = ep_dtype_is_token(in) ||
	     (d->recipe == NCCL_EP_DISP_QUANT_FWD && ep_dtype_is_packed(in));
	if (!ok || in != out) {
		return ep_fail(
			ncclInvalidArgument,
			"inputs->tokens is %s and outputs->tokens %s: recipe %s takes %s, the "
			"same for both",
			ep_dtype_name(in), ep_dtype_name(out),
			d->recipe == NCCL_EP_DISP_QUANT_FWD ? "FWD" : "NONE",
			d->recipe == NCCL_EP_DISP_QUANT_FWD
				? "bf16, fp16, fp32, e4m3, e5m2 or fp4x2"
				: "bf16, fp16 or fp32");
	}
	return ncclSuccess;
}

/* The two leading extents of a received tensor. */
static ncclResult_t ep_dispatch_expect_leading(const struct ep_dispatch *d,
					       const struct ep_view *view, const char *name)
{
	const struct ep_ll_shape *shape = &d->h->group->config.shape;
	bool em = d->h->layout == EP_LL_EXPERT_MAJOR;

	EP_CHECK(ep_view_expect_dim(view, 0, em ? shape->nlocal : shape->nranks,
				    em ? "experts per rank" : "ranks", name));
	return ep_view_expect_dim(
		view, 1, em ? (uint64_t)shape->nranks * shape->max_tokens : shape->max_tokens,
		em ? "ranks times max_dispatch_tokens_per_rank" : "max_dispatch_tokens_per_rank",
		name);
}

static ncclResult_t ep_dispatch_check_tokens(struct ep_dispatch *d)
{
	ncclComm_t comm = d->h->group->comm;

	EP_CHECK(ep_view_make(&d->tokens, comm, d->in.tokens, 2, "inputs->tokens"));
	EP_CHECK(ep_view_make(&d->out_tokens, comm, d->out.tokens, 3, "outputs->tokens"));
	EP_CHECK(ep_dispatch_check_types(d));
	EP_CHECK(ep_view_expect_dim(&d->tokens, 0, d->h->num_tokens,
				    "tokens of the handle's topk_idx", "inputs->tokens"));
	EP_CHECK(ep_dispatch_expect_leading(d, &d->out_tokens, "outputs->tokens"));
	EP_CHECK(ep_view_expect_dim(&d->out_tokens, 2, d->tokens.sizes[1],
				    "elements of inputs->tokens", "outputs->tokens"));
	EP_CHECK(ep_view_expect_align(&d->tokens, 16, "inputs->tokens"));
	EP_CHECK(ep_view_expect_align(&d->out_tokens, 16, "outputs->tokens"));
	EP_CHECK(ep_view_row_bytes(&d->tokens, 1, &d->args.token_bytes, "inputs->tokens"));
	d->args.tokens = d->tokens.data;
	d->args.out_tokens = d->out_tokens.data;
	d->args.out_token_bytes = (uint32_t)(d->out_tokens.sizes[2] * d->out_tokens.elem_bytes);
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check_budget(const struct ep_dispatch *d, uint64_t bytes)
{
	uint32_t most = d->h->group->config.max_token_bytes;

	if (bytes <= most) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidArgument,
		       "a row takes %llu bytes%s, the group's max_token_bytes "
		       "is %u",
		       (unsigned long long)bytes,
		       d->recipe == NCCL_EP_DISP_QUANT_NONE ? "" : " with its scales", most);
}

static bool ep_dtype_is_scale(ncclDataType_t t)
{
	return ep_dtype_is_token(t) || t == ncclFloat8e4m3 || t == ncclFloat8e5m2 || t == ncclUint8;
}

static ncclResult_t ep_dispatch_check_offset(const ncclEpTensor_t *t, const char *name)
{
	if (t->win_hdl && t->win_offset % 16) {
		return ep_fail(ncclInvalidArgument, "%s: win_offset %llu is not a multiple of 16",
			       name, (unsigned long long)t->win_offset);
	}
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check_forwarded(struct ep_dispatch *d)
{
	ncclComm_t comm = d->h->group->comm;
	struct ep_view in, out;
	uint32_t bytes;

	EP_CHECK(ep_view_make(&in, comm, d->in.scales, 2, "inputs->scales"));
	EP_CHECK(ep_view_make(&out, comm, d->out.scales, 3, "outputs->scales"));
	if (!ep_dtype_is_scale(in.datatype) || in.datatype != out.datatype) {
		return ep_fail(
			ncclInvalidArgument,
			"inputs->scales is %s and outputs->scales %s: recipe FWD takes bf16, "
			"fp16, fp32, e4m3, e5m2 or uint8, the same for both",
			ep_dtype_name(in.datatype), ep_dtype_name(out.datatype));
	}
	EP_CHECK(ep_view_expect_dim(&in, 0, d->h->num_tokens, "tokens of the handle's topk_idx",
				    "inputs->scales"));
	EP_CHECK(ep_dispatch_expect_leading(d, &out, "outputs->scales"));
	EP_CHECK(ep_view_expect_dim(&out, 2, in.sizes[1], "elements of inputs->scales",
				    "outputs->scales"));
	EP_CHECK(ep_view_row_bytes(&in, 1, &bytes, "inputs->scales"));
	EP_CHECK(ep_view_expect_align(&in, 16, "inputs->scales"));
	EP_CHECK(ep_view_expect_align(&out, 16, "outputs->scales"));
	EP_CHECK(ep_dispatch_check_offset(d->in.tokens, "inputs->tokens"));
	EP_CHECK(ep_dispatch_check_offset(d->out.tokens, "outputs->tokens"));
	EP_CHECK(ep_dispatch_check_offset(d->in.scales, "inputs->scales"));
	EP_CHECK(ep_dispatch_check_offset(d->out.scales, "outputs->scales"));
	EP_CHECK(ep_dispatch_check_budget(d, (uint64_t)d->args.token_bytes + bytes));
	d->args.scales = in.data;
	d->args.out_scales = out.data;
	d->args.scale_bytes = bytes;
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check_quantised(struct ep_dispatch *d)
{
	size_t hidden = d->tokens.sizes[1];
	struct ep_view out;

	if (hidden % 128) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->tokens: recipe DS_FP8E3M4 needs a "
			       "multiple of 128 elements per token, not %zu",
			       hidden);
	}
	EP_CHECK(ep_view_make(&out, d->h->group->comm, d->out.scales, 3, "outputs->scales"));
	EP_CHECK(ep_view_expect_type(&out, ncclFloat32, "outputs->scales"));
	EP_CHECK(ep_dispatch_expect_leading(d, &out, "outputs->scales"));
	EP_CHECK(ep_view_expect_dim(&out, 2, hidden / 128, "elements per token / 128",
				    "outputs->scales"));
	EP_CHECK(ep_view_expect_align(&out, 4, "outputs->scales"));
	EP_CHECK(ep_dispatch_check_budget(d, hidden + 4 * (hidden / 128)));
	d->args.out_scales = out.data;
	d->args.hidden = (uint32_t)hidden;
	d->args.round_scales = d->config.round_scales != 0;
	d->args.scale_columns = d->v1;
	return ncclSuccess;
}

/* An int32 counter tensor of exactly `extent`. */
static ncclResult_t ep_dispatch_counter(const struct ep_dispatch *d, const ncclEpTensor_t *t,
					uint32_t extent, const char *meaning, const char *name,
					int32_t **out)
{
	struct ep_view view;

	EP_CHECK(ep_view_make(&view, d->h->group->comm, t, 1, name));
	EP_CHECK(ep_view_expect_type(&view, ncclInt32, name));
	EP_CHECK(ep_view_expect_dim(&view, 0, extent, meaning, name));
	EP_CHECK(ep_view_expect_align(&view, 4, name));
	*out = view.data;
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check_expert_major(struct ep_dispatch *d)
{
	static const char why[] = "expert-major dispatch does not carry weights or ids";

	EP_CHECK(ep_tensor_expect_absent(d->in.topk_weights, "inputs->topk_weights", why));
	EP_CHECK(ep_tensor_expect_absent(d->out.topk_weights, "outputs->topk_weights", why));
	EP_CHECK(ep_tensor_expect_absent(d->out.topk_idx, "outputs->topk_idx", why));
	EP_CHECK(ep_tensor_expect_absent(d->info.src_rank_counters,
					 "layout_info->src_rank_counters",
					 "expert-major counts per expert"));
	return ep_dispatch_counter(d, d->info.expert_counters, d->h->group->config.shape.nlocal,
				   "experts per rank", "layout_info->expert_counters",
				   &d->args.expert_counts);
}

static ncclResult_t ep_dispatch_check_rank_major(struct ep_dispatch *d)
{
	const struct ncclEpGroup *g = d->h->group;
	struct ep_view in, weights, ids;

	EP_CHECK(ep_view_make(&in, g->comm, d->in.topk_weights, 2, "inputs->topk_weights"));
	EP_CHECK(ep_view_expect_type(&in, ncclFloat32, "inputs->topk_weights"));
	EP_CHECK(ep_view_expect_dim(&in, 0, d->h->num_tokens, "tokens of the handle's topk_idx",
				    "inputs->topk_weights"));
	EP_CHECK(ep_view_expect_dim(&in, 1, d->h->topk, "num_topk", "inputs->topk_weights"));
	EP_CHECK(ep_view_expect_align(&in, 4, "inputs->topk_weights"));
	EP_CHECK(ep_view_make(&weights, g->comm, d->out.topk_weights, 3, "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_type(&weights, ncclFloat32, "outputs->topk_weights"));
	EP_CHECK(ep_dispatch_expect_leading(d, &weights, "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_dim(&weights, 2, d->h->topk, "num_topk", "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_align(&weights, 4, "outputs->topk_weights"));
	EP_CHECK(ep_view_make(&ids, g->comm, d->out.topk_idx, 3, "outputs->topk_idx"));
	EP_CHECK(ep_view_expect_type(&ids, ncclInt32, "outputs->topk_idx"));
	EP_CHECK(ep_dispatch_expect_leading(d, &ids, "outputs->topk_idx"));
	EP_CHECK(ep_view_expect_dim(&ids, 2, d->h->topk, "num_topk", "outputs->topk_idx"));
	EP_CHECK(ep_view_expect_align(&ids, 4, "outputs->topk_idx"));
	EP_CHECK(ep_tensor_expect_absent(d->info.expert_counters, "layout_info->expert_counters",
					 "rank-major counts per source rank"));
	if (d->info.src_rank_counters) {
		EP_CHECK(ep_dispatch_counter(d, d->info.src_rank_counters, (uint32_t)g->nranks,
					     "ranks", "layout_info->src_rank_counters",
					     &d->args.src_counts));
	}
	d->args.topk_weights = in.data;
	d->args.out_weights = weights.data;
	d->args.out_idx = ids.data;
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check_info(struct ep_dispatch *d)
{
	const struct ncclEpGroup *g = d->h->group;

	if ((unsigned int)d->info.recv_topk_idx_kind > NCCL_EP_EXPERT_ID_GLOBAL) {
		return ep_fail(ncclInvalidArgument,
			       "layout_info->recv_topk_idx_kind is %d, the "
			       "largest value is %d",
			       (int)d->info.recv_topk_idx_kind, NCCL_EP_EXPERT_ID_GLOBAL);
	}
	if (d->info.recv_topk_idx_kind == NCCL_EP_EXPERT_ID_GLOBAL) {
		d->args.expert_id_base = (uint32_t)g->rank * g->config.shape.nlocal;
	}
	return d->h->layout == EP_LL_EXPERT_MAJOR ? ep_dispatch_check_expert_major(d)
						  : ep_dispatch_check_rank_major(d);
}

/*
 * ON is a promise of the caller: the outputs are windows. Rows come by way of the heap all the same, because a
 * line carries its flag inside and so cannot land in the caller's tensor as it is.
 */
static ncclResult_t ep_dispatch_check_zero_copy(const struct ep_dispatch *d)
{
	if (d->h->group->config.zero_copy != NCCL_EP_ZERO_COPY_ON) {
		return ncclSuccess;
	}
	if (d->h->layout != EP_LL_RANK_MAJOR || d->recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4) {
		return ep_fail(ncclInvalidArgument, "zero_copy ON: only rank-major dispatch with "
						    "recipe NONE or FWD can be direct: use AUTO");
	}
	if (!d->out.tokens->win_hdl && !(d->out.scales && d->out.scales->win_hdl)) {
		return ep_fail(ncclInvalidArgument,
			       "zero_copy ON: neither outputs->tokens nor "
			       "outputs->scales has a window: register one, or use AUTO");
	}
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check_state(const struct ep_dispatch *d)
{
	const struct ncclEpHandle *h = d->h;

	if (h->pending) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpDispatch: a send_only %s of this handle is "
			       "pending: call ncclEpComplete first",
			       h->pending == EP_PENDING_DISPATCH ? "dispatch" : "combine");
	}
	if (d->config.send_only && h->group->pending >= EP_GROUP_MAX_PENDING) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpDispatch: %u send_only operations of the "
			       "group are pending, the limit is %d: complete one first",
			       h->group->pending, EP_GROUP_MAX_PENDING);
	}
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check(struct ep_dispatch *d)
{
	EP_CHECK(ep_dispatch_choose_recipe(d));
	EP_CHECK(ep_dispatch_check_direction(d));
	if (!d->h->routed) {
		return ep_fail(ncclInvalidArgument, "ncclEpDispatch: the handle has no routing: "
						    "call ncclEpUpdateHandle first");
	}
	EP_CHECK(ep_dispatch_check_tokens(d));
	if (d->recipe == NCCL_EP_DISP_QUANT_FWD) {
		EP_CHECK(ep_dispatch_check_forwarded(d));
	} else if (d->recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4) {
		EP_CHECK(ep_dispatch_check_quantised(d));
	} else {
		EP_CHECK(ep_dispatch_check_budget(d, d->args.token_bytes));
	}
	EP_CHECK(ep_dispatch_check_info(d));
	EP_CHECK(ep_dispatch_check_zero_copy(d));
	return ep_dispatch_check_state(d);
}

static const void *ep_dispatch_kernel(const struct ncclEpGroup *g, bool fp8)
{
	if (g->remote) {
		return fp8 ? (const void *)ep_ll_dispatch_fp8_remote_kernel
			   : (const void *)ep_ll_dispatch_remote_kernel;
	}
	return fp8 ? (const void *)ep_ll_dispatch_fp8_kernel : (const void *)ep_ll_dispatch_kernel;
}

static ncclResult_t ep_dispatch_run(struct ep_dispatch *d, cudaStream_t stream)
{
	bool fp8 = d->recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4;
	struct ncclEpHandle *h = d->h;
	struct ep_ll_dispatch_packets packets;
	uint32_t tile = fp8 ? EP_LL_TILE_QUADS : 1, quads;

	quads = fp8 ? ep_ll_fp8_quads(d->args.hidden)
		    : ep_ll_copy_quads(d->args.token_bytes + d->args.scale_bytes);
	packets = ep_ll_dispatch_packets_make(&h->group->config.shape, h->layout, h->topk);
	ep_ll_common_fill(&d->args.c, h, quads, tile, ep_ll_dispatch_parts(h, quads, tile));
	d->args.combine_parts = ep_ll_combine_parts_told(h);
	d->args.count_off = packets.count_off;
	d->args.header_off = packets.header_off;
	d->args.header_bytes = packets.header_bytes;
	d->args.by_packets = ep_div_make(packets.header_bytes / 16);
	return ep_ll_dispatch_launch(h, ep_dispatch_kernel(h->group, fp8), &d->args,
				     d->config.send_only != 0, stream);
}

ncclResult_t ncclEpDispatch(ncclEpHandle_t handle, const ncclEpDispatchInputs_t *inputs,
			    const ncclEpDispatchOutputs_t *outputs,
			    const ncclEpLayoutInfo_t *layout_info,
			    const ncclEpDispatchConfig_t *config, cudaStream_t stream)
{
	struct ep_dispatch d;
	struct ep_call call;
	ncclResult_t result;

	EP_CHECK(ep_handle_enter(&call, handle, false));
	memset(&d, 0, sizeof(d));
	d.h = handle;
	EP_CHECK_GOTO(EP_IMPORT(&d.in, inputs, NCCL_EP_DISPATCH_INPUTS), out);
	EP_CHECK_GOTO(EP_IMPORT(&d.out, outputs, NCCL_EP_DISPATCH_OUTPUTS), out);
	EP_CHECK_GOTO(EP_IMPORT_OPTIONAL(&d.info, layout_info, NCCL_EP_LAYOUT_INFO), out);
	EP_CHECK_GOTO(EP_IMPORT_OPTIONAL(&d.config, config, NCCL_EP_DISPATCH_CONFIG), out);
	EP_CHECK_GOTO(ep_dispatch_check(&d), out);
	result = ep_dispatch_run(&d, stream);
out:
	ep_group_leave(&call);
	return result;
}
