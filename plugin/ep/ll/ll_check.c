/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of tensors that only layouts of low latency have, besides tokens and scales. */
#include "ep/handle.h"
#include "ep/ll/ll.h"

/* An int32 counter tensor of exactly `extent`. */
static ncclResult_t ep_ll_check_counter(const struct ep_dispatch *dispatch,
					const ncclEpTensor_t *tensor, uint32_t extent,
					const char *meaning, const char *name, int32_t **out)
{
	struct ep_view view;

	EP_CHECK(ep_view_make(&view, dispatch->h->group->comm, tensor, 1, name));
	EP_CHECK(ep_view_expect_type(&view, ncclInt32, name));
	EP_CHECK(ep_view_expect_dim(&view, 0, extent, meaning, name));
	EP_CHECK(ep_view_expect_align(&view, 4, name));
	*out = view.data;
	return ncclSuccess;
}

static ncclResult_t ep_ll_check_expert_major(const struct ep_dispatch *dispatch,
					     struct ep_ll_dispatch_args *args)
{
	static const char why[] = "expert-major dispatch does not carry weights or ids";

	EP_CHECK(ep_tensor_expect_absent(dispatch->in.topk_weights, "inputs->topk_weights", why));
	EP_CHECK(ep_tensor_expect_absent(dispatch->out.topk_weights, "outputs->topk_weights", why));
	EP_CHECK(ep_tensor_expect_absent(dispatch->out.topk_idx, "outputs->topk_idx", why));
	EP_CHECK(ep_tensor_expect_absent(dispatch->info.src_rank_counters,
					 "layout_info->src_rank_counters",
					 "expert-major counts per expert"));
	return ep_ll_check_counter(dispatch, dispatch->info.expert_counters,
				   dispatch->h->group->config.shape.nlocal, "experts per rank",
				   "layout_info->expert_counters", &args->expert_counts);
}

static ncclResult_t ep_ll_check_rank_major(const struct ep_dispatch *dispatch,
					   struct ep_ll_dispatch_args *args)
{
	const struct ncclEpGroup *g = dispatch->h->group;
	struct ep_view in, weights, ids;

	EP_CHECK(ep_view_make(&in, g->comm, dispatch->in.topk_weights, 2, "inputs->topk_weights"));
	EP_CHECK(ep_view_expect_type(&in, ncclFloat32, "inputs->topk_weights"));
	EP_CHECK(ep_view_expect_dim(&in, 0, dispatch->h->num_tokens,
				    "tokens of the handle's topk_idx", "inputs->topk_weights"));
	EP_CHECK(ep_view_expect_dim(&in, 1, dispatch->h->topk, "num_topk", "inputs->topk_weights"));
	EP_CHECK(ep_view_expect_align(&in, 4, "inputs->topk_weights"));
	EP_CHECK(ep_view_make(&weights, g->comm, dispatch->out.topk_weights, 3,
			      "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_type(&weights, ncclFloat32, "outputs->topk_weights"));
	EP_CHECK(ep_received_expect(&dispatch->h->received, &weights, "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_dim(&weights, 2, dispatch->h->topk, "num_topk",
				    "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_align(&weights, 4, "outputs->topk_weights"));
	EP_CHECK(ep_view_make(&ids, g->comm, dispatch->out.topk_idx, 3, "outputs->topk_idx"));
	EP_CHECK(ep_view_expect_type(&ids, ncclInt32, "outputs->topk_idx"));
	EP_CHECK(ep_received_expect(&dispatch->h->received, &ids, "outputs->topk_idx"));
	EP_CHECK(ep_view_expect_dim(&ids, 2, dispatch->h->topk, "num_topk", "outputs->topk_idx"));
	EP_CHECK(ep_view_expect_align(&ids, 4, "outputs->topk_idx"));
	EP_CHECK(ep_tensor_expect_absent(dispatch->info.expert_counters,
					 "layout_info->expert_counters",
					 "rank-major counts per source rank"));
	if (dispatch->info.src_rank_counters) {
		EP_CHECK(ep_ll_check_counter(dispatch, dispatch->info.src_rank_counters,
					     (uint32_t)g->nranks, "ranks",
					     "layout_info->src_rank_counters", &args->src_counts));
	}
	args->topk_weights = in.data;
	args->out_weights = weights.data;
	args->out_idx = ids.data;
	return ncclSuccess;
}

ncclResult_t ep_ll_dispatch_check(const struct ep_dispatch *dispatch,
				  struct ep_ll_dispatch_args *args)
{
	const struct ncclEpGroup *g = dispatch->h->group;

	if (dispatch->info.recv_topk_idx_kind == NCCL_EP_EXPERT_ID_GLOBAL) {
		args->expert_id_base = (uint32_t)g->rank * g->config.shape.nlocal;
	}
	return dispatch->h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR
		       ? ep_ll_check_expert_major(dispatch, args)
		       : ep_ll_check_rank_major(dispatch, args);
}

ncclResult_t ep_ll_combine_check(const struct ep_combine *c, struct ep_ll_combine_args *args)
{
	static const char name[] = "outputs->topk_weights";
	struct ep_view weights;

	if (c->h->layout == NCCL_EP_LAYOUT_RANK_MAJOR) {
		return ncclSuccess;
	}
	EP_CHECK(ep_view_make(&weights, c->h->group->comm, c->out.topk_weights, 2, name));
	EP_CHECK(ep_view_expect_type(&weights, ncclFloat32, name));
	EP_CHECK(ep_view_expect_dim(&weights, 0, c->h->num_tokens,
				    "tokens of the handle's topk_idx", name));
	EP_CHECK(ep_view_expect_dim(&weights, 1, c->h->topk, "num_topk", name));
	EP_CHECK(ep_view_expect_align(&weights, 4, name));
	args->topk_weights = weights.data;
	return ncclSuccess;
}
