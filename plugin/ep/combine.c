/* SPDX-License-Identifier: Apache-2.0 */
#include "core/range.h"
#include "ep/combine.h"
#include "ep/halves.h"
#include "ep/handle.h"
#include "ep/struct.h"

static ncclResult_t ep_combine_check_recipe(const struct ep_combine *c)
{
	const struct ep_limits *limits = &c->h->group->config.algo->limits;

	if (c->config.quant_recipe == NCCL_EP_COMB_QUANT_NVFP4) {
		return ep_fail(ncclInvalidUsage, "ncclEpCombine: recipe NVFP4 is not available on "
						 "this device: use NCCL_EP_COMB_QUANT_NONE");
	}
	if (c->config.quant_recipe != NCCL_EP_COMB_QUANT_NONE) {
		return ep_fail(ncclInvalidArgument,
			       "config->quant_recipe is %d, the largest value "
			       "is %d",
			       (int)c->config.quant_recipe, NCCL_EP_COMB_QUANT_NVFP4);
	}
	EP_CHECK(ep_tensor_expect_absent(c->in.scales, "inputs->scales",
					 "combine takes unquantised tokens (recipe NONE)"));
	if (c->config.pass_direction == NCCL_EP_BWD_PASS && !limits->backward) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpCombine: %s mode has no backward pass: use NCCL_EP_FWD_PASS",
			       limits->mode);
	}
	if ((unsigned int)c->config.pass_direction > NCCL_EP_BWD_PASS) {
		return ep_fail(ncclInvalidArgument,
			       "ncclEpCombine: config->pass_direction is %d, the largest value is "
			       "%d",
			       (int)c->config.pass_direction, NCCL_EP_BWD_PASS);
	}
	return ncclSuccess;
}

static ncclResult_t ep_combine_check_input(struct ep_combine *c)
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

static ncclResult_t ep_combine_check_output(struct ep_combine *c)
{
	struct ep_view *out = &c->out_tokens;

	EP_CHECK(ep_view_make(out, c->h->group->comm, c->out.tokens, 2, "outputs->tokens"));
	EP_CHECK(ep_view_expect_type(out, c->tokens.datatype, "outputs->tokens"));
	EP_CHECK(ep_handle_check_tokens(c->h, out, &c->num_tokens, "outputs->tokens"));
	EP_CHECK(ep_view_expect_dim(out, 1, c->tokens.sizes[c->h->received.ndim],
				    "elements of inputs->tokens", "outputs->tokens"));
	return ep_view_expect_align(out, 16, "outputs->tokens");
}

static ncclResult_t ep_combine_check_state(const struct ep_combine *c, cudaStream_t stream)
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

static ncclResult_t ep_combine_check(struct ep_combine *c, cudaStream_t stream)
{
	EP_CHECK(ep_combine_check_recipe(c));
	EP_CHECK(ep_handle_check_routed(c->h, "ncclEpCombine"));
	EP_CHECK(ep_combine_check_input(c));
	EP_CHECK(ep_combine_check_output(c));
	return c->h->group->config.algo->limits.halves ? ep_combine_check_state(c, stream)
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
	EP_CHECK(ep_combine_check(&c, stream));
	ep_range_begin("ncclEpCombine", c.num_tokens, (uint64_t)c.num_tokens * c.token_bytes);
	result = handle->group->config.algo->combine(&c, stream);
	ep_range_end();
	EP_CHECK(result);
	ep_halves_launched(handle, EP_PENDING_COMBINE, c.config.send_only, stream);
	return ncclSuccess;
}
