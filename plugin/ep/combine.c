/* SPDX-License-Identifier: Apache-2.0 */
/* ncclEpCombine and ncclEpComplete in low latency mode. */
#include <string.h>
#include "device/kernels.h"
#include "ep/group.h"
#include "ep/struct.h"
#include "ep/tensor.h"

struct ep_combine {
	struct ncclEpHandle *h;
	ncclEpCombineInputs_t in;
	ncclEpCombineOutputs_t out;
	ncclEpCombineConfig_t config;
	struct ep_ll_combine_args args;
	struct ep_view tokens;
};

static ncclResult_t ep_combine_check_recipe(const struct ep_combine *c)
{
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
	if (c->config.pass_direction == NCCL_EP_BWD_PASS) {
		return ep_fail(ncclInvalidUsage, "ncclEpCombine: low latency mode has no backward "
						 "pass: use NCCL_EP_FWD_PASS");
	}
	if (c->config.pass_direction != NCCL_EP_FWD_PASS) {
		return ep_fail(ncclInvalidArgument, "config->pass_direction is %d",
			       (int)c->config.pass_direction);
	}
	return ncclSuccess;
}

static ncclResult_t ep_combine_check_input(struct ep_combine *c)
{
	const struct ncclEpGroup *g = c->h->group;
	const struct ep_ll_shape *shape = &g->config.shape;
	bool em = c->h->layout == EP_LL_EXPERT_MAJOR;
	ncclDataType_t type;

	EP_CHECK(ep_view_make(&c->tokens, g->comm, c->in.tokens, 3, "inputs->tokens"));
	type = c->tokens.datatype;
	if (type != ncclBfloat16 && type != ncclFloat16 && type != ncclFloat32) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->tokens: data type %s, it needs bf16, "
			       "fp16 or fp32",
			       ep_dtype_name(type));
	}
	EP_CHECK(ep_view_expect_dim(&c->tokens, 0, em ? shape->nlocal : shape->nranks,
				    em ? "experts per rank" : "ranks", "inputs->tokens"));
	EP_CHECK(ep_view_expect_dim(
		&c->tokens, 1, em ? (uint64_t)shape->nranks * shape->max_tokens : shape->max_tokens,
		em ? "ranks times max_dispatch_tokens_per_rank" : "max_dispatch_tokens_per_rank",
		"inputs->tokens"));
	EP_CHECK(ep_view_expect_align(&c->tokens, 16, "inputs->tokens"));
	EP_CHECK(ep_view_row_bytes(&c->tokens, 2, &c->args.token_bytes, "inputs->tokens"));
	if (c->args.token_bytes > g->config.max_token_bytes) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->tokens: a row takes %u bytes, the "
			       "group's max_token_bytes is %u",
			       c->args.token_bytes, g->config.max_token_bytes);
	}
	c->args.tokens = c->tokens.data;
	return ncclSuccess;
}

static ncclResult_t ep_combine_check_output(struct ep_combine *c)
{
	ncclComm_t comm = c->h->group->comm;
	struct ep_view out, weights;

	EP_CHECK(ep_view_make(&out, comm, c->out.tokens, 2, "outputs->tokens"));
	EP_CHECK(ep_view_expect_type(&out, c->tokens.datatype, "outputs->tokens"));
	EP_CHECK(ep_view_expect_dim(&out, 0, c->h->num_tokens, "tokens of the handle's topk_idx",
				    "outputs->tokens"));
	EP_CHECK(ep_view_expect_dim(&out, 1, c->tokens.sizes[2], "elements of inputs->tokens",
				    "outputs->tokens"));
	EP_CHECK(ep_view_expect_align(&out, 16, "outputs->tokens"));
	c->args.out_tokens = out.data;
	if (c->h->layout == EP_LL_RANK_MAJOR) {
		return ncclSuccess;
	}
	EP_CHECK(ep_view_make(&weights, comm, c->out.topk_weights, 2, "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_type(&weights, ncclFloat32, "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_dim(&weights, 0, c->h->num_tokens,
				    "tokens of the handle's topk_idx", "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_dim(&weights, 1, c->h->topk, "num_topk", "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_align(&weights, 4, "outputs->topk_weights"));
	c->args.topk_weights = weights.data;
	return ncclSuccess;
}

static ncclResult_t ep_combine_check_state(const struct ep_combine *c)
{
	const struct ncclEpHandle *h = c->h;

	if (h->pending) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpCombine: a send_only %s of this handle is "
			       "pending: call ncclEpComplete first",
			       h->pending == EP_PENDING_DISPATCH ? "dispatch" : "combine");
	}
	if (!h->dispatched) {
		return ep_fail(ncclInvalidUsage, "ncclEpCombine: nothing was dispatched with the "
						 "handle's routing: call ncclEpDispatch first");
	}
	if (c->config.send_only && h->group->pending >= EP_GROUP_MAX_PENDING) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpCombine: %u send_only operations of the "
			       "group are pending, the limit is %d: complete one first",
			       h->group->pending, EP_GROUP_MAX_PENDING);
	}
	return ncclSuccess;
}

static ncclResult_t ep_combine_check(struct ep_combine *c)
{
	EP_CHECK(ep_combine_check_recipe(c));
	if (!c->h->routed) {
		return ep_fail(ncclInvalidArgument,
			       "ncclEpCombine: the handle has no routing: call "
			       "ncclEpUpdateHandle first");
	}
	EP_CHECK(ep_combine_check_input(c));
	EP_CHECK(ep_combine_check_output(c));
	return ep_combine_check_state(c);
}

static const void *ep_combine_kernel(const struct ncclEpGroup *g, ncclDataType_t type)
{
	if (g->remote) {
		return type == ncclBfloat16  ? (const void *)ep_ll_combine_bf16_remote_kernel
		       : type == ncclFloat16 ? (const void *)ep_ll_combine_fp16_remote_kernel
					     : (const void *)ep_ll_combine_fp32_remote_kernel;
	}
	return type == ncclBfloat16  ? (const void *)ep_ll_combine_bf16_kernel
	       : type == ncclFloat16 ? (const void *)ep_ll_combine_fp16_kernel
				     : (const void *)ep_ll_combine_fp32_kernel;
}

static ncclResult_t ep_combine_run(struct ep_combine *c, cudaStream_t stream)
{
	const void *kernel = ep_combine_kernel(c->h->group, c->tokens.datatype);
	uint32_t quads = ep_ll_copy_quads(c->args.token_bytes);

	ep_ll_common_fill(&c->args.c, c->h, quads, 1, ep_ll_combine_parts(c->h, quads));
	return ep_ll_combine_launch(c->h, kernel, &c->args, c->config.send_only != 0, stream);
}

ncclResult_t ncclEpCombine(ncclEpHandle_t handle, const ncclEpCombineInputs_t *inputs,
			   const ncclEpCombineOutputs_t *outputs,
			   const ncclEpCombineConfig_t *config, cudaStream_t stream)
{
	struct ep_combine c;
	struct ep_call call;
	ncclResult_t result;

	EP_CHECK(ep_handle_enter(&call, handle, false));
	memset(&c, 0, sizeof(c));
	c.h = handle;
	EP_CHECK_GOTO(EP_IMPORT(&c.in, inputs, NCCL_EP_COMBINE_INPUTS), out);
	EP_CHECK_GOTO(EP_IMPORT(&c.out, outputs, NCCL_EP_COMBINE_OUTPUTS), out);
	EP_CHECK_GOTO(EP_IMPORT_OPTIONAL(&c.config, config, NCCL_EP_COMBINE_CONFIG), out);
	EP_CHECK_GOTO(ep_combine_check(&c), out);
	result = ep_combine_run(&c, stream);
out:
	ep_group_leave(&call);
	return result;
}

ncclResult_t ncclEpComplete(ncclEpHandle_t handle, const ncclEpCompleteConfig_t *config,
			    cudaStream_t stream)
{
	ncclEpCompleteConfig_t own;
	struct ep_call call;
	ncclResult_t result;

	EP_CHECK(ep_handle_enter(&call, handle, false));
	EP_CHECK_GOTO(EP_IMPORT_OPTIONAL(&own, config, NCCL_EP_COMPLETE_CONFIG), out);
	result = ep_ll_complete_launch(handle, stream);
out:
	ep_group_leave(&call);
	return result;
}
