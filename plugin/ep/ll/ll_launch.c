/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of low latency: their checks, and their launches, which allocate and wait for nothing.
 */
#include <string.h>
#include "core/cuda.h"
#include "device/kernels.h"
#include "ep/ep.h"
#include "ep/ll/ll.h"

/* An int32 counter tensor of exactly `extent`. */
static ncclResult_t ll_check_counter(const struct ep_dispatch *dispatch,
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

static ncclResult_t ll_check_expert_major(const struct ep_dispatch *dispatch,
					  struct ep_ll_dispatch_args *args)
{
	static const char why[] = "expert-major dispatch does not carry weights or ids";

	EP_CHECK(ep_tensor_expect_absent(dispatch->in.topk_weights, "inputs->topk_weights", why));
	EP_CHECK(ep_tensor_expect_absent(dispatch->out.topk_weights, "outputs->topk_weights", why));
	EP_CHECK(ep_tensor_expect_absent(dispatch->out.topk_idx, "outputs->topk_idx", why));
	EP_CHECK(ep_tensor_expect_absent(dispatch->info.src_rank_counters,
					 "layout_info->src_rank_counters",
					 "expert-major counts per expert"));
	if (!ep_group_holds(dispatch->h->group)) {
		return ncclSuccess;
	}
	return ll_check_counter(dispatch, dispatch->info.expert_counters,
				dispatch->h->group->config.shape.nlocal, "experts per rank",
				"layout_info->expert_counters", &args->expert_counts);
}

static ncclResult_t ll_check_rank_major(const struct ep_dispatch *dispatch,
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
	if (dispatch->info.src_rank_counters && ep_group_holds(g)) {
		EP_CHECK(ll_check_counter(dispatch, dispatch->info.src_rank_counters,
					  g->config.shape.roles.senders, "ranks",
					  "layout_info->src_rank_counters", &args->src_counts));
	}
	args->topk_weights = in.data;
	args->out_weights = weights.data;
	args->out_idx = ids.data;
	return ncclSuccess;
}

static ncclResult_t ll_dispatch_check(const struct ep_dispatch *dispatch,
				      struct ep_ll_dispatch_args *args)
{
	const struct ncclEpGroup *g = dispatch->h->group;

	if (dispatch->info.recv_topk_idx_kind == NCCL_EP_EXPERT_ID_GLOBAL) {
		args->expert_id_base = ((uint32_t)g->rank - g->config.shape.roles.first_holder) *
				       g->config.shape.nlocal;
	}
	return dispatch->h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR
		       ? ll_check_expert_major(dispatch, args)
		       : ll_check_rank_major(dispatch, args);
}

static ncclResult_t ll_combine_check(const struct ep_combine *c, struct ep_ll_combine_args *args)
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

/* ---- the device ---- */

/* enum ep_ll_kernel */
static const void *const ll_kernels[EP_LL_KERNELS] = {
	(const void *)ep_ll_dispatch_kernel,
	(const void *)ep_ll_dispatch_fp8_kernel,
	(const void *)ep_ll_dispatch_mxfp8_kernel,
	(const void *)ep_ll_dispatch_nvfp4_kernel,
	(const void *)ep_ll_combine_bf16_kernel,
	(const void *)ep_ll_combine_fp16_kernel,
	(const void *)ep_ll_combine_fp32_kernel,
	(const void *)ep_ll_combine_fp8_kernel,
	(const void *)ep_ll_combine_nvfp4_kernel,
	(const void *)ep_ll_dispatch_remote_kernel,
	(const void *)ep_ll_dispatch_fp8_remote_kernel,
	(const void *)ep_ll_dispatch_mxfp8_remote_kernel,
	(const void *)ep_ll_dispatch_nvfp4_remote_kernel,
	(const void *)ep_ll_combine_bf16_remote_kernel,
	(const void *)ep_ll_combine_fp16_remote_kernel,
	(const void *)ep_ll_combine_fp32_remote_kernel,
	(const void *)ep_ll_combine_fp8_remote_kernel,
	(const void *)ep_ll_combine_nvfp4_remote_kernel,
};

static bool ll_is_dispatch(size_t kernel)
{
	return kernel % EP_LL_KERNEL_REMOTE < EP_LL_KERNEL_COMBINE;
}

ncclResult_t ep_ll_kernels_open(struct ep_ll *ll, int device)
{
	const void *dispatches[EP_LL_KERNELS];
	size_t n = 0;

	for (size_t i = 0; i < EP_LL_KERNELS; i++) {
		if (ll_is_dispatch(i)) {
			dispatches[n++] = ll_kernels[i];
		}
	}
	EP_CHECK(ep_kernels_load(ll_kernels, EP_LL_KERNELS));
	return ep_kernels_share(dispatches, n, device, &ll->shared_bytes);
}

/* A dispatch of one SM: the sending and the receiving block must fit on one SM together. */
static ncclResult_t ll_check_coresidence(uint32_t threads, uint32_t bytes)
{
	for (size_t i = 0; i < EP_LL_KERNELS; i++) {
		int blocks = 0;

		if (!ll_is_dispatch(i)) {
			continue;
		}
		EP_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, ll_kernels[i],
								      (int)threads, bytes),
			"asking how many blocks fit on an SM");
		if (blocks < 2) {
			return ep_fail(
				ncclInvalidUsage,
				"dispatch has 1 SM, but its two blocks (%u threads, %u bytes of "
				"shared memory) do not fit there: set max_num_sms or "
				"dispatch_num_sms to 2 or more",
				threads, bytes);
		}
	}
	return ncclSuccess;
}

/* Arguments that operations of the handle have in common. */
static struct ep_ll_operation ll_operation_of(const struct ncclEpHandle *handle, bool combine)
{
	const struct ncclEpGroup *g = handle->group;

	return (struct ep_ll_operation){
		.shape = g->config.shape,
		.geometry = combine ? g->ll->combine : g->ll->dispatch,
		.returns = g->ll->combine,
		.combine = combine,
		.lines = g->lines,
		.remote = g->remote_ranks != 0,
		.send_idle = !(combine ? ep_group_holds(g) : ep_group_sends(g)),
		.recv_idle = !(combine ? ep_group_sends(g) : ep_group_holds(g)),
		.layout = handle->layout,
		.topk = handle->topk,
		.num_tokens = handle->num_tokens,
		.recv_limit = ep_resident_limit(&g->resident),
	};
}

ncclResult_t ep_ll_shared_check(const struct ncclEpHandle *handle)
{
	struct ep_ll_operation operation = ll_operation_of(handle, false);
	struct ep_ll_plan plan;

	operation.row_bytes = operation.shape.max_token_bytes;
	plan = ep_ll_plan_make(&operation);
	if (plan.shared_bytes > handle->group->ll->shared_bytes) {
		return ep_fail(ncclInvalidUsage,
			       "dispatch needs %u bytes of shared memory per block, more than the "
			       "%u that this GPU has: use fewer experts per rank, or fewer ranks",
			       plan.shared_bytes, handle->group->ll->shared_bytes);
	}
	if (handle->group->config.budget[EP_BUDGET_DISPATCH].sms == 1) {
		EP_CHECK(ll_check_coresidence(plan.threads, plan.shared_bytes));
	}
	return ncclSuccess;
}

static struct ep_ll_peers ll_peers_make(uint32_t first, uint32_t count, bool any)
{
	uint32_t n = any ? count : 0;

	return (struct ep_ll_peers){ first, first + n, ep_div_make(n ? n : 1) };
}

static void ll_common_fill(struct ep_ll_common *c, const struct ncclEpHandle *handle,
			   const struct ep_ll_plan *plan)
{
	const struct ncclEpGroup *g = handle->group;
	const struct ep_roles *roles = &g->config.shape.roles;

	c->g = g->dev;
	c->areas = g->ll->areas;
	c->h = handle->ll->dev;
	c->launch.handle = handle->ll->head;
	c->launch.receipt_id = ep_handle_receipt_id(handle, handle->num_tokens);
	c->topk_idx = handle->topk_idx;
	c->nlocal = g->config.shape.nlocal;
	c->topk = handle->topk;
	c->max_tokens = g->config.shape.max_tokens;
	c->num_tokens = handle->num_tokens;
	c->layout = handle->layout;
	c->id_bytes = handle->id_bytes;
	c->row_quads = plan->row_quads;
	c->lines = plan->lines;
	c->parts = plan->parts;
	c->peer_parts = plan->peer_parts;
	c->part_quads = plan->part_quads;
	c->peer_part_quads = plan->peer_part_quads;
	c->by_local = ep_div_make(c->nlocal);
	c->by_topk = ep_div_make(c->topk);
	c->by_parts = ep_div_make(c->parts);
	c->by_peer_parts = ep_div_make(c->peer_parts);
	c->span = plan->span;
	c->channel_tokens = plan->channel_tokens;
	c->to = ll_peers_make(roles->first_holder, roles->holders, ep_group_sends(g));
	c->from = ll_peers_make(roles->first_sender, roles->senders, ep_group_holds(g));
	c->experts = (c->to.end - c->to.first) * c->nlocal;
	c->held = ep_group_holds(g) ? c->nlocal : 0;
	c->sender = (uint32_t)g->rank - roles->first_sender;
	c->near_sender = g->ll->near_sender;
	c->expert_rows = roles->senders * c->max_tokens;
}

static ncclResult_t ll_launch(const struct ncclEpGroup *g, const struct ep_ll_plan *plan,
			      union ep_ll_args *args, uint32_t halves, cudaStream_t stream)
{
	struct ep_dev_launch *launch = &args->c.launch;

	launch->halves = halves;
	launch->send_blocks = halves & EP_HALF_SEND ? plan->send_blocks : 0;
	launch->recv_blocks = halves & EP_HALF_RECV ? plan->recv_blocks : 0;
	return ep_kernel_launch(
		g, ll_kernels[plan->kernel], args, launch->send_blocks + launch->recv_blocks,
		plan->threads, plan->shared_bytes, stream,
		ll_is_dispatch(plan->kernel) ? "launching dispatch" : "launching combine");
}

/* Launches both halves, or the send half and keeps what the other needs. */
static ncclResult_t ll_begin(struct ncclEpHandle *handle, const struct ep_ll_plan *plan,
			     union ep_ll_args *args, bool send_only, cudaStream_t stream)
{
	ll_common_fill(&args->c, handle, plan);
	if (!send_only) {
		return ll_launch(handle->group, plan, args, EP_HALF_SEND | EP_HALF_RECV, stream);
	}
	EP_CHECK(ll_launch(handle->group, plan, args, EP_HALF_SEND, stream));
	handle->ll->plan = *plan;
	handle->ll->args = *args;
	return ncclSuccess;
}

/* Quantised rows are padded to whole tiles: not all that max_token_bytes admits need fit. */
static ncclResult_t ll_check_row(const struct ep_dispatch *dispatch, uint32_t quads)
{
	uint32_t bytes = dispatch->h->group->config.shape.max_token_bytes;
	uint32_t room = ep_ll_max_quads(bytes);

	if (quads <= room) {
		return ncclSuccess;
	}
	return ep_fail(
		ncclInvalidArgument,
		"a quantised row of %zu elements takes %u bytes on its way, with the group's "
		"max_token_bytes of %u there is room for %u: set it to %u",
		dispatch->tokens.sizes[1], quads * EP_QUAD_BYTES, bytes, room * EP_QUAD_BYTES,
		quads * EP_QUAD_BYTES);
}

/*
 * Who has few tokens does not place its own rows from the tensor: that begins with a trip to memory
 * behind the headers. With halves the program may write the tensor before rows are placed.
 */
static void ll_own_fill(struct ep_ll_dispatch_args *a, const struct ep_dispatch *dispatch,
			const struct ep_ll_plan *plan)
{
	const struct ncclEpGroup *g = dispatch->h->group;
	uint32_t senders = g->config.shape.roles.senders;

	a->own_direct = plan->own_direct && !dispatch->config.send_only && !dispatch->scale_bytes &&
			ep_group_sends(g) && ep_group_holds(g);
	a->by_others = ep_div_make(senders > 1 ? senders - 1 : 1);
}

ncclResult_t ep_ll_dispatch(const struct ep_dispatch *dispatch, cudaStream_t stream)
{
	struct ep_ll_operation operation = ll_operation_of(dispatch->h, false);
	struct ep_signature signature = ep_signature_dispatch(dispatch);
	struct ep_ll_dispatch_args *a;
	union ep_ll_args args;
	struct ep_ll_plan p;

	memset(&args, 0, sizeof(args));
	ep_signature_launch(&args.c.launch, &signature);
	a = &args.dispatch;
	EP_CHECK(ll_dispatch_check(dispatch, a));
	operation.row_bytes = dispatch->token_bytes + dispatch->scale_bytes;
	operation.format = dispatch->recipe->format;
	p = ep_ll_plan_make(&operation);
	EP_CHECK(ll_check_row(dispatch, p.row_quads));
	a->tokens = dispatch->tokens.data;
	a->scales = dispatch->scales.data;
	a->out_tokens = dispatch->out_tokens.data;
	a->out_scales = dispatch->out_scales.data;
	a->token_bytes = dispatch->token_bytes;
	a->out_token_bytes = dispatch->out_token_bytes;
	a->scale_bytes = dispatch->scale_bytes;
	if (operation.format != EP_ROW_COPIED) {
		a->scale_words = (uint32_t)ep_format_scale_bytes(&ep_formats[operation.format],
								 dispatch->tokens.sizes[1]) /
				 4;
	}
	a->round_scales = operation.format == EP_ROW_FP8 && dispatch->config.round_scales;
	a->scale_columns = operation.format == EP_ROW_FP8 && dispatch->v1;
	a->combine_parts = p.combine_parts;
	a->count_off = p.packets.count_off;
	a->header_off = p.packets.header_off;
	a->header_bytes = p.packets.header_bytes;
	a->by_packets = ep_div_make(p.packets.header_bytes / 16);
	ll_own_fill(a, dispatch, &p);
	if (operation.format == EP_ROW_COPIED && !dispatch->scale_bytes) {
		ep_ll_source_choose(dispatch->h->group, EP_LL_SOURCE_DISPATCH, dispatch->in.tokens,
				    &dispatch->tokens, dispatch->token_bytes,
				    dispatch->config.send_only, &a->source);
	}
	return ll_begin(dispatch->h, &p, &args, dispatch->config.send_only, stream);
}

/* To whom rows return that travel, in turn: each rank begins with another one. */
static void ll_returns_fill(struct ep_ll_combine_args *args, const struct ncclEpGroup *g)
{
	const struct ep_roles *roles = &g->config.shape.roles;
	uint32_t rank = (uint32_t)g->rank;
	bool self = ep_group_sends(g);

	args->others = ep_group_holds(g) ? roles->senders - self : 0;
	args->by_others = ep_div_make(args->others ? args->others : 1);
	args->first_return = self || !args->others ? rank + 1
						   : roles->first_sender + rank % roles->senders;
}

ncclResult_t ep_ll_combine(const struct ep_combine *c, cudaStream_t stream)
{
	struct ep_ll_operation operation = ll_operation_of(c->h, true);
	struct ep_signature signature = ep_signature_combine(c);
	ncclDataType_t type = c->tokens.datatype;
	union ep_ll_args args;
	struct ep_ll_plan p;

	memset(&args, 0, sizeof(args));
	ep_signature_launch(&args.c.launch, &signature);
	EP_CHECK(ll_combine_check(c, &args.combine));
	operation.format = c->recipe->format;
	operation.row_bytes = c->token_bytes;
	operation.dtype = type == ncclBfloat16 ? EP_BF16 : type == ncclFloat16 ? EP_FP16 : EP_FP32;
	p = ep_ll_plan_make(&operation);
	args.combine.tokens = c->tokens.data;
	args.combine.out_tokens = c->out_tokens.data;
	args.combine.token_bytes = c->token_bytes;
	args.combine.listed = p.listed;
	ll_returns_fill(&args.combine, c->h->group);
	args.combine.scales = c->scales.data;
	if (operation.format == EP_ROW_COPIED) {
		ep_ll_source_choose(c->h->group, EP_LL_SOURCE_COMBINE, c->in.tokens, &c->tokens,
				    c->token_bytes, c->config.send_only, &args.combine.source);
	}
	return ll_begin(c->h, &p, &args, c->config.send_only, stream);
}

ncclResult_t ep_ll_complete(struct ncclEpHandle *handle, cudaStream_t stream)
{
	union ep_ll_args args =
		handle->ll->args; /* who calls again after a failure begins with these */

	ep_signature_complete(&args.c.launch);
	return ll_launch(handle->group, &handle->ll->plan, &args, EP_HALF_RECV, stream);
}
