/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine: import and checks, the same for both algorithms. */
#include "core/range.h"
#include "ep/ep.h"

static ncclResult_t check_direction(const struct ep_limits *limits, ncclEpPassDir_t direction,
				    const char *name)
{
	if (direction == NCCL_EP_BWD_PASS && !limits->backward) {
		return ep_fail(ncclInvalidUsage,
			       "%s: %s mode has no backward pass: use NCCL_EP_FWD_PASS", name,
			       limits->mode);
	}
	if ((unsigned int)direction > NCCL_EP_BWD_PASS) {
		return ep_fail(ncclInvalidArgument,
			       "%s: config->pass_direction is %d, the largest value is %d", name,
			       (int)direction, NCCL_EP_BWD_PASS);
	}
	return ncclSuccess;
}

/* ---- dispatch ---- */

/* Which of the two tensors of scales a recipe has. */
static ncclResult_t dispatch_check_scales(const struct ep_dispatch *dispatch)
{
	const struct ep_recipe *recipe = dispatch->recipe;
	bool forwards = recipe->value == NCCL_EP_DISP_QUANT_FWD;
	bool given = forwards || recipe->format == EP_ROW_NVFP4;
	bool made = recipe->format != EP_ROW_COPIED;

	if (dispatch->config.round_scales && made && recipe->format != EP_ROW_FP8) {
		return ep_fail(ncclInvalidArgument,
			       "recipe %s needs round_scales 0: its scales are not fp32",
			       recipe->name);
	}
	if (forwards &&
	    (!dispatch->in.scales || !dispatch->out.scales || dispatch->config.round_scales)) {
		return ep_fail(ncclInvalidArgument,
			       "recipe FWD needs inputs->scales and outputs->scales, and "
			       "round_scales 0: %s",
			       !dispatch->in.scales    ? "inputs->scales is NULL"
			       : !dispatch->out.scales ? "outputs->scales is NULL"
						       : "round_scales is set");
	}
	if (!made && !forwards) {
		EP_CHECK(ep_tensor_expect_absent(dispatch->in.scales, "inputs->scales",
						 "tokens are not quantised (recipe NONE)"));
		return ep_tensor_expect_absent(dispatch->out.scales, "outputs->scales",
					       "tokens are not quantised (recipe NONE)");
	}
	if (!dispatch->out.scales) {
		return ep_fail(ncclInvalidArgument,
			       "recipe %s needs outputs->scales, which is NULL", recipe->name);
	}
	if (given && !dispatch->in.scales) {
		return ep_fail(ncclInvalidArgument, "recipe %s needs inputs->scales, which is NULL",
			       recipe->name);
	}
	return given ? ncclSuccess
		     : ep_tensor_expect_absent(dispatch->in.scales, "inputs->scales",
					       "the recipe makes the scales");
}

static ncclResult_t dispatch_choose_recipe(struct ep_dispatch *dispatch)
{
	const struct ep_limits *limits = &dispatch->h->group->config.algo->limits;
	int value = (int)dispatch->config.quant_recipe;

	dispatch->v1 = dispatch->config.size < NCCL_EP_DISPATCH_CONFIG_V2_SIZE;
	if (dispatch->v1 && limits->dispatch_formats >> EP_ROW_FP8 & 1) {
		value = dispatch->out.scales ? NCCL_EP_DISP_QUANT_DS_FP8E3M4
					     : NCCL_EP_DISP_QUANT_NONE;
	}
	EP_CHECK(ep_recipe_find(ep_dispatch_recipes, limits, limits->dispatch_formats, value,
				&dispatch->recipe));
	return dispatch_check_scales(dispatch);
}

static ncclResult_t dispatch_check_tokens(struct ep_dispatch *dispatch)
{
	ncclComm_t comm = dispatch->h->group->comm;
	unsigned int row = dispatch->h->received.ndim;

	EP_CHECK(ep_view_make(&dispatch->tokens, comm, dispatch->in.tokens, 2, "inputs->tokens"));
	EP_CHECK(ep_view_make(&dispatch->out_tokens, comm, dispatch->out.tokens, row + 1,
			      "outputs->tokens"));
	EP_CHECK(ep_row_check_types(dispatch->recipe, dispatch->tokens.datatype,
				    dispatch->out_tokens.datatype));
	EP_CHECK(ep_handle_check_tokens(dispatch->h, &dispatch->tokens, &dispatch->num_tokens,
					"inputs->tokens"));
	EP_CHECK(ep_received_expect(&dispatch->h->received, &dispatch->out_tokens,
				    "outputs->tokens"));
	if (dispatch->recipe->format == EP_ROW_COPIED) {
		EP_CHECK(ep_view_expect_dim(&dispatch->out_tokens, row, dispatch->tokens.sizes[1],
					    "elements of inputs->tokens", "outputs->tokens"));
	}
	EP_CHECK(ep_view_expect_align(&dispatch->tokens, 16, "inputs->tokens"));
	EP_CHECK(ep_view_expect_align(&dispatch->out_tokens, 16, "outputs->tokens"));
	EP_CHECK(ep_view_row_bytes(&dispatch->tokens, 1, &dispatch->token_bytes, "inputs->tokens"));
	dispatch->out_token_bytes =
		(uint32_t)(dispatch->out_tokens.sizes[row] * dispatch->out_tokens.elem_bytes);
	return ncclSuccess;
}

static ncclResult_t dispatch_check_budget(const struct ep_dispatch *dispatch, uint64_t bytes)
{
	return ep_row_check_budget(&dispatch->h->group->config, dispatch->recipe, bytes);
}

static bool dtype_is_scale(ncclDataType_t type)
{
	return ep_dtype_is_token(type) || type == ncclFloat8e4m3 || type == ncclFloat8e5m2 ||
	       type == ncclUint8;
}

static ncclResult_t dispatch_check_offset(const ncclEpTensor_t *tensor, const char *name)
{
	if (tensor->win_hdl && tensor->win_offset % 16) {
		return ep_fail(ncclInvalidArgument, "%s: win_offset %llu is not a multiple of 16",
			       name, (unsigned long long)tensor->win_offset);
	}
	return ncclSuccess;
}

static ncclResult_t dispatch_check_forwarded(struct ep_dispatch *dispatch)
{
	ncclComm_t comm = dispatch->h->group->comm;
	struct ep_view *in = &dispatch->scales, *out = &dispatch->out_scales;
	unsigned int row = dispatch->h->received.ndim;

	EP_CHECK(ep_view_make(in, comm, dispatch->in.scales, 2, "inputs->scales"));
	EP_CHECK(ep_view_make(out, comm, dispatch->out.scales, row + 1, "outputs->scales"));
	if (!dtype_is_scale(in->datatype) || in->datatype != out->datatype) {
		return ep_fail(
			ncclInvalidArgument,
			"inputs->scales is %s and outputs->scales %s: recipe FWD takes bf16, "
			"fp16, fp32, e4m3, e5m2 or uint8, the same for both",
			ep_dtype_name(in->datatype), ep_dtype_name(out->datatype));
	}
	EP_CHECK(ep_view_expect_dim(in, 0, dispatch->num_tokens, "tokens of the handle's topk_idx",
				    "inputs->scales"));
	EP_CHECK(ep_received_expect(&dispatch->h->received, out, "outputs->scales"));
	EP_CHECK(ep_view_expect_dim(out, row, in->sizes[1], "elements of inputs->scales",
				    "outputs->scales"));
	EP_CHECK(ep_view_row_bytes(in, 1, &dispatch->scale_bytes, "inputs->scales"));
	EP_CHECK(ep_view_expect_align(in, 16, "inputs->scales"));
	EP_CHECK(ep_view_expect_align(out, 16, "outputs->scales"));
	EP_CHECK(dispatch_check_offset(dispatch->in.tokens, "inputs->tokens"));
	EP_CHECK(dispatch_check_offset(dispatch->out.tokens, "outputs->tokens"));
	EP_CHECK(dispatch_check_offset(dispatch->in.scales, "inputs->scales"));
	EP_CHECK(dispatch_check_offset(dispatch->out.scales, "outputs->scales"));
	EP_CHECK(dispatch_check_budget(dispatch,
				       (uint64_t)dispatch->token_bytes + dispatch->scale_bytes));
	return ncclSuccess;
}

static ncclResult_t dispatch_check_quantised(struct ep_dispatch *dispatch)
{
	const struct ep_format *format = &ep_formats[dispatch->recipe->format];
	size_t elements = dispatch->tokens.sizes[1];
	ncclComm_t comm = dispatch->h->group->comm;
	struct ep_view *out = &dispatch->out_scales;
	unsigned int row = dispatch->h->received.ndim;

	EP_CHECK(ep_row_check_elements(dispatch->recipe, elements));
	EP_CHECK(ep_view_expect_dim(
		&dispatch->out_tokens, row, ep_format_token_extent(format, elements),
		format->halves ? "elements of inputs->tokens / 2" : "elements of inputs->tokens",
		"outputs->tokens"));
	EP_CHECK(ep_view_make(out, comm, dispatch->out.scales, row + 1, "outputs->scales"));
	EP_CHECK(ep_view_expect_type(out, format->scales, "outputs->scales"));
	EP_CHECK(ep_received_expect(&dispatch->h->received, out, "outputs->scales"));
	EP_CHECK(ep_view_expect_dim(out, row, elements / format->group,
				    format->group == 128  ? "elements per token / 128"
				    : format->group == 32 ? "elements per token / 32"
							  : "elements per token / 16",
				    "outputs->scales"));
	EP_CHECK(ep_view_expect_align(out, 4, "outputs->scales"));
	if (dispatch->recipe->format == EP_ROW_NVFP4) {
		EP_CHECK(ep_view_make(&dispatch->scales, comm, dispatch->in.scales, 1,
				      "inputs->scales"));
		EP_CHECK(ep_view_expect_type(&dispatch->scales, ncclFloat32, "inputs->scales"));
		EP_CHECK(ep_view_expect_dim(&dispatch->scales, 0, 1, "the global scale",
					    "inputs->scales"));
		EP_CHECK(ep_view_expect_align(&dispatch->scales, 4, "inputs->scales"));
	}
	return dispatch_check_budget(dispatch, ep_format_bytes(format, elements));
}

static ncclResult_t dispatch_check_info(const struct ep_dispatch *dispatch)
{
	if ((unsigned int)dispatch->info.recv_topk_idx_kind > NCCL_EP_EXPERT_ID_GLOBAL) {
		return ep_fail(ncclInvalidArgument,
			       "layout_info->recv_topk_idx_kind is %d, the "
			       "largest value is %d",
			       (int)dispatch->info.recv_topk_idx_kind, NCCL_EP_EXPERT_ID_GLOBAL);
	}
	return ncclSuccess;
}

static ncclResult_t dispatch_check(struct ep_dispatch *dispatch, cudaStream_t stream)
{
	static const char name[] = "ncclEpDispatch";

	EP_CHECK(dispatch_choose_recipe(dispatch));
	EP_CHECK(check_direction(&dispatch->h->group->config.algo->limits,
				 dispatch->config.pass_direction, name));
	EP_CHECK(ep_handle_check_routed(dispatch->h, name));
	EP_CHECK(dispatch_check_tokens(dispatch));
	if (dispatch->recipe->value == NCCL_EP_DISP_QUANT_FWD) {
		EP_CHECK(dispatch_check_forwarded(dispatch));
	} else if (dispatch->recipe->format != EP_ROW_COPIED) {
		EP_CHECK(dispatch_check_quantised(dispatch));
	} else {
		EP_CHECK(dispatch_check_budget(dispatch, dispatch->token_bytes));
	}
	EP_CHECK(dispatch_check_info(dispatch));
	return ep_halves_check(dispatch->h, dispatch->config.send_only, name, stream);
}

ncclResult_t ep_dispatch_run(struct ncclEpHandle *handle, const ncclEpDispatchInputs_t *inputs,
			     const ncclEpDispatchOutputs_t *outputs,
			     const ncclEpLayoutInfo_t *layout_info,
			     const ncclEpDispatchConfig_t *config, cudaStream_t stream)
{
	struct ep_dispatch d = { .h = handle };
	ncclResult_t result;

	EP_CHECK(EP_IMPORT(&d.in, inputs, NCCL_EP_DISPATCH_INPUTS));
	EP_CHECK(EP_IMPORT(&d.out, outputs, NCCL_EP_DISPATCH_OUTPUTS));
	EP_CHECK(EP_IMPORT_OPTIONAL(&d.info, layout_info, NCCL_EP_LAYOUT_INFO));
	EP_CHECK(EP_IMPORT_OPTIONAL(&d.config, config, NCCL_EP_DISPATCH_CONFIG));
	if (!handle->group->config.algo->limits.halves) {
		d.config.send_only = 0;
	}
	EP_CHECK(dispatch_check(&d, stream));
	ep_range_begin("ncclEpDispatch", d.num_tokens, (uint64_t)d.num_tokens * d.token_bytes);
	result = handle->group->config.algo->dispatch(&d, stream);
	ep_range_end();
	EP_CHECK(result);
	ep_halves_launched(handle, EP_PENDING_DISPATCH, d.config.send_only, stream);
	return ncclSuccess;
}

/* ---- combine ---- */

static ncclResult_t combine_check_recipe(struct ep_combine *c)
{
	const struct ep_limits *limits = &c->h->group->config.algo->limits;

	/* to these callers a device has that recipe or has it not, in either mode */
	if (c->config.quant_recipe == NCCL_EP_COMB_QUANT_NVFP4 && c->h->group->config.api < 3 &&
	    !(limits->combine_formats >> EP_ROW_NVFP4 & 1)) {
		return ep_fail(ncclInvalidUsage,
			       "config->quant_recipe: %s mode does not have the recipe NVFP4",
			       limits->mode);
	}
	EP_CHECK(ep_recipe_find(ep_combine_recipes, limits, limits->combine_formats,
				(int)c->config.quant_recipe, &c->recipe));
	if (c->recipe->format != EP_ROW_NVFP4) {
		EP_CHECK(ep_tensor_expect_absent(c->in.scales, "inputs->scales",
						 c->recipe->format == EP_ROW_COPIED
							 ? "combine takes unquantised tokens "
							   "(recipe NONE)"
							 : "the recipe makes the scales"));
	} else if (!c->in.scales) {
		return ep_fail(ncclInvalidArgument,
			       "recipe NVFP4 needs inputs->scales, which is NULL");
	}
	return check_direction(limits, c->config.pass_direction, "ncclEpCombine");
}

static ncclResult_t combine_check_input(struct ep_combine *c)
{
	const struct ncclEpGroup *g = c->h->group;
	ncclDataType_t type;

	EP_CHECK(ep_view_make(&c->tokens, g->comm, c->in.tokens, c->h->received.ndim + 1,
			      "inputs->tokens"));
	type = c->tokens.datatype;
	if (type != ncclBfloat16 && type != ncclFloat16 && type != ncclFloat32) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->tokens: data type %s, it needs bf16, "
			       "fp16 or fp32",
			       ep_dtype_name(type));
	}
	EP_CHECK(ep_received_expect(&c->h->received, &c->tokens, "inputs->tokens"));
	EP_CHECK(ep_view_expect_align(&c->tokens, 16, "inputs->tokens"));
	EP_CHECK(ep_view_row_bytes(&c->tokens, c->h->received.ndim, &c->token_bytes,
				   "inputs->tokens"));
	if (c->token_bytes > g->config.shape.max_token_bytes) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->tokens: a row takes %u bytes, the "
			       "group's max_token_bytes is %u",
			       c->token_bytes, g->config.shape.max_token_bytes);
	}
	return ncclSuccess;
}

/* The global scale of each row of inputs->tokens. */
static ncclResult_t combine_check_scales(struct ep_combine *c)
{
	unsigned int row = c->h->received.ndim;

	EP_CHECK(ep_view_make(&c->scales, c->h->group->comm, c->in.scales, row + 1,
			      "inputs->scales"));
	EP_CHECK(ep_view_expect_type(&c->scales, ncclFloat32, "inputs->scales"));
	EP_CHECK(ep_received_expect(&c->h->received, &c->scales, "inputs->scales"));
	EP_CHECK(
		ep_view_expect_dim(&c->scales, row, 1, "a global scale per row", "inputs->scales"));
	return ep_view_expect_align(&c->scales, 4, "inputs->scales");
}

/* Rows that the kernels quantise are bf16, and have whole groups of elements. */
static ncclResult_t combine_check_quantised(struct ep_combine *c)
{
	const struct ep_format *format = &ep_formats[c->recipe->format];
	size_t elements = c->tokens.sizes[c->h->received.ndim];
	uint32_t multiple = format->group < 32 ? 32 : format->group;

	EP_CHECK(ep_view_expect_type(&c->tokens, ncclBfloat16, "inputs->tokens"));
	if (elements % multiple) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->tokens: recipe %s needs a multiple of %u elements per row, "
			       "not %zu",
			       c->recipe->name, multiple, elements);
	}
	return c->recipe->format == EP_ROW_NVFP4 ? combine_check_scales(c) : ncclSuccess;
}

static ncclResult_t combine_check_output(struct ep_combine *c)
{
	struct ep_view *out = &c->out_tokens;

	EP_CHECK(ep_view_make(out, c->h->group->comm, c->out.tokens, 2, "outputs->tokens"));
	EP_CHECK(ep_view_expect_type(out, c->tokens.datatype, "outputs->tokens"));
	EP_CHECK(ep_handle_check_tokens(c->h, out, &c->num_tokens, "outputs->tokens"));
	EP_CHECK(ep_view_expect_dim(out, 1, c->tokens.sizes[c->h->received.ndim],
				    "elements of inputs->tokens", "outputs->tokens"));
	return ep_view_expect_align(out, 16, "outputs->tokens");
}

static ncclResult_t combine_check_state(const struct ep_combine *c, cudaStream_t stream)
{
	static const char name[] = "ncclEpCombine";

	EP_CHECK(ep_halves_check(c->h, c->config.send_only, name, stream));
	if (!c->h->dispatched) {
		return ep_fail(ncclInvalidUsage, "ncclEpCombine: nothing was dispatched with the "
						 "handle: call ncclEpDispatch first");
	}
	if (c->h->dispatched_tokens != c->h->num_tokens) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpCombine: the last dispatch was of %u tokens, topk_idx has %u "
			       "since: call ncclEpDispatch with that routing first",
			       c->h->dispatched_tokens, c->h->num_tokens);
	}
	if (c->h->dispatch_cleans != c->h->group->cleans) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpCombine: ncclEpMaskClean was called since the handle's last "
			       "dispatch, which some ranks may have missed: call ncclEpDispatch "
			       "again");
	}
	return ncclSuccess;
}

static ncclResult_t combine_check(struct ep_combine *c, cudaStream_t stream)
{
	EP_CHECK(combine_check_recipe(c));
	EP_CHECK(ep_handle_check_routed(c->h, "ncclEpCombine"));
	EP_CHECK(combine_check_input(c));
	if (c->recipe->format != EP_ROW_COPIED) {
		EP_CHECK(combine_check_quantised(c));
	}
	EP_CHECK(combine_check_output(c));
	return c->h->group->config.algo->limits.halves ? combine_check_state(c, stream)
						       : ncclSuccess;
}

ncclResult_t ep_combine_run(struct ncclEpHandle *handle, const ncclEpCombineInputs_t *inputs,
			    const ncclEpCombineOutputs_t *outputs,
			    const ncclEpCombineConfig_t *config, cudaStream_t stream)
{
	struct ep_combine c = { .h = handle };
	ncclResult_t result;

	EP_CHECK(EP_IMPORT(&c.in, inputs, NCCL_EP_COMBINE_INPUTS));
	EP_CHECK(EP_IMPORT(&c.out, outputs, NCCL_EP_COMBINE_OUTPUTS));
	EP_CHECK(EP_IMPORT_OPTIONAL(&c.config, config, NCCL_EP_COMBINE_CONFIG));
	if (!handle->group->config.algo->limits.halves) {
		c.config.send_only = 0;
	}
	EP_CHECK(combine_check(&c, stream));
	ep_range_begin("ncclEpCombine", c.num_tokens, (uint64_t)c.num_tokens * c.token_bytes);
	result = handle->group->config.algo->combine(&c, stream);
	ep_range_end();
	EP_CHECK(result);
	ep_halves_launched(handle, EP_PENDING_COMBINE, c.config.send_only, stream);
	return ncclSuccess;
}
