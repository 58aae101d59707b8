/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/dispatch.h"
#include "ep/row.h"
#include "ep/struct.h"

static ncclResult_t ep_dispatch_choose_recipe(struct ep_dispatch *d)
{
	const struct ep_limits *limits = &d->h->group->config.algo->limits;

	d->v1 = d->config.size < NCCL_EP_DISPATCH_CONFIG_V2_SIZE;
	if (d->v1 && limits->quantises) {
		d->recipe = d->out.scales ? NCCL_EP_DISP_QUANT_DS_FP8E3M4 : NCCL_EP_DISP_QUANT_NONE;
	} else {
		d->recipe = d->config.quant_recipe;
	}
	EP_CHECK(ep_row_check_recipe(limits, d->recipe));
	switch (d->recipe) {
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
		return ncclSuccess;
	}
}

static ncclResult_t ep_dispatch_check_direction(const struct ep_dispatch *d)
{
	const struct ep_limits *limits = &d->h->group->config.algo->limits;

	if (d->config.pass_direction == NCCL_EP_BWD_PASS && !limits->backward) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpDispatch: %s mode has no backward pass: use NCCL_EP_FWD_PASS",
			       limits->mode);
	}
	if ((unsigned int)d->config.pass_direction > NCCL_EP_BWD_PASS) {
		return ep_fail(ncclInvalidArgument, "config->pass_direction is %d",
			       (int)d->config.pass_direction);
	}
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check_tokens(struct ep_dispatch *d)
{
	ncclComm_t comm = d->h->group->comm;
	unsigned int row = d->h->received.ndim;

	EP_CHECK(ep_view_make(&d->tokens, comm, d->in.tokens, 2, "inputs->tokens"));
	EP_CHECK(ep_view_make(&d->out_tokens, comm, d->out.tokens, row + 1, "outputs->tokens"));
	EP_CHECK(ep_row_check_types(d->recipe, d->tokens.datatype, d->out_tokens.datatype));
	EP_CHECK(ep_handle_check_tokens(d->h, &d->tokens, &d->num_tokens, "inputs->tokens"));
	EP_CHECK(ep_received_expect(&d->h->received, &d->out_tokens, "outputs->tokens"));
	EP_CHECK(ep_view_expect_dim(&d->out_tokens, row, d->tokens.sizes[1],
				    "elements of inputs->tokens", "outputs->tokens"));
	EP_CHECK(ep_view_expect_align(&d->tokens, 16, "inputs->tokens"));
	EP_CHECK(ep_view_expect_align(&d->out_tokens, 16, "outputs->tokens"));
	EP_CHECK(ep_view_row_bytes(&d->tokens, 1, &d->token_bytes, "inputs->tokens"));
	d->out_token_bytes = (uint32_t)(d->out_tokens.sizes[row] * d->out_tokens.elem_bytes);
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check_budget(const struct ep_dispatch *d, uint64_t bytes)
{
	return ep_row_check_budget(&d->h->group->config, d->recipe, bytes);
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
	struct ep_view *in = &d->scales, *out = &d->out_scales;
	unsigned int row = d->h->received.ndim;

	EP_CHECK(ep_view_make(in, comm, d->in.scales, 2, "inputs->scales"));
	EP_CHECK(ep_view_make(out, comm, d->out.scales, row + 1, "outputs->scales"));
	if (!ep_dtype_is_scale(in->datatype) || in->datatype != out->datatype) {
		return ep_fail(
			ncclInvalidArgument,
			"inputs->scales is %s and outputs->scales %s: recipe FWD takes bf16, "
			"fp16, fp32, e4m3, e5m2 or uint8, the same for both",
			ep_dtype_name(in->datatype), ep_dtype_name(out->datatype));
	}
	EP_CHECK(ep_view_expect_dim(in, 0, d->num_tokens, "tokens of the handle's topk_idx",
				    "inputs->scales"));
	EP_CHECK(ep_received_expect(&d->h->received, out, "outputs->scales"));
	EP_CHECK(ep_view_expect_dim(out, row, in->sizes[1], "elements of inputs->scales",
				    "outputs->scales"));
	EP_CHECK(ep_view_row_bytes(in, 1, &d->scale_bytes, "inputs->scales"));
	EP_CHECK(ep_view_expect_align(in, 16, "inputs->scales"));
	EP_CHECK(ep_view_expect_align(out, 16, "outputs->scales"));
	EP_CHECK(ep_dispatch_check_offset(d->in.tokens, "inputs->tokens"));
	EP_CHECK(ep_dispatch_check_offset(d->out.tokens, "outputs->tokens"));
	EP_CHECK(ep_dispatch_check_offset(d->in.scales, "inputs->scales"));
	EP_CHECK(ep_dispatch_check_offset(d->out.scales, "outputs->scales"));
	EP_CHECK(ep_dispatch_check_budget(d, (uint64_t)d->token_bytes + d->scale_bytes));
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check_quantised(struct ep_dispatch *d)
{
	size_t hidden = d->tokens.sizes[1];
	struct ep_view *out = &d->out_scales;
	unsigned int row = d->h->received.ndim;

	EP_CHECK(ep_row_check_quantised(hidden));
	EP_CHECK(ep_view_make(out, d->h->group->comm, d->out.scales, row + 1, "outputs->scales"));
	EP_CHECK(ep_view_expect_type(out, ncclFloat32, "outputs->scales"));
	EP_CHECK(ep_received_expect(&d->h->received, out, "outputs->scales"));
	EP_CHECK(ep_view_expect_dim(out, row, hidden / 128, "elements per token / 128",
				    "outputs->scales"));
	EP_CHECK(ep_view_expect_align(out, 4, "outputs->scales"));
	EP_CHECK(ep_dispatch_check_budget(d, ep_row_quantised_bytes(hidden)));
	d->hidden = (uint32_t)hidden;
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check_info(const struct ep_dispatch *d)
{
	if ((unsigned int)d->info.recv_topk_idx_kind > NCCL_EP_EXPERT_ID_GLOBAL) {
		return ep_fail(ncclInvalidArgument,
			       "layout_info->recv_topk_idx_kind is %d, the "
			       "largest value is %d",
			       (int)d->info.recv_topk_idx_kind, NCCL_EP_EXPERT_ID_GLOBAL);
	}
	return ncclSuccess;
}

static ncclResult_t ep_dispatch_check(struct ep_dispatch *d)
{
	static const char name[] = "ncclEpDispatch";

	EP_CHECK(ep_dispatch_choose_recipe(d));
	EP_CHECK(ep_dispatch_check_direction(d));
	EP_CHECK(ep_handle_check_routed(d->h, name));
	EP_CHECK(ep_dispatch_check_tokens(d));
	if (d->recipe == NCCL_EP_DISP_QUANT_FWD) {
		EP_CHECK(ep_dispatch_check_forwarded(d));
	} else if (d->recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4) {
		EP_CHECK(ep_dispatch_check_quantised(d));
	} else {
		EP_CHECK(ep_dispatch_check_budget(d, d->token_bytes));
	}
	EP_CHECK(ep_dispatch_check_info(d));
	EP_CHECK(ep_handle_check_idle(d->h, name));
	return ep_handle_check_send_only(d->h, d->config.send_only, name);
}

ncclResult_t ep_dispatch_run(struct ncclEpHandle *handle, const ncclEpDispatchInputs_t *inputs,
			     const ncclEpDispatchOutputs_t *outputs,
			     const ncclEpLayoutInfo_t *layout_info,
			     const ncclEpDispatchConfig_t *config, cudaStream_t stream)
{
	struct ep_dispatch d = { .h = handle };

	EP_CHECK(EP_IMPORT(&d.in, inputs, NCCL_EP_DISPATCH_INPUTS));
	EP_CHECK(EP_IMPORT(&d.out, outputs, NCCL_EP_DISPATCH_OUTPUTS));
	EP_CHECK(EP_IMPORT_OPTIONAL(&d.info, layout_info, NCCL_EP_LAYOUT_INFO));
	EP_CHECK(EP_IMPORT_OPTIONAL(&d.config, config, NCCL_EP_DISPATCH_CONFIG));
	if (!handle->group->config.algo->limits.halves) {
		d.config.send_only = 0;
	}
	EP_CHECK(ep_dispatch_check(&d));
	EP_CHECK(handle->group->config.algo->dispatch(&d, stream));
	ep_handle_launched(handle, EP_PENDING_DISPATCH, d.config.send_only, stream);
	return ncclSuccess;
}
