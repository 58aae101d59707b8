/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of high throughput: their checks, callers' windows, and their launches. These allocate
 * nothing on the device; only dispatch may wait for the stream, to read how many rows there are.
 */
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "device/kernels.h"
#include "ep/ep.h"
#include "ep/ht/ht.h"

/* ---- rows that go straight to or come from callers' windows ---- */

/*
 * Are there ranks that hold no experts, or bring no tokens? They have no rows, so no windows with
 * them.
 */
static bool ht_apart(const struct ncclEpGroup *g)
{
	const struct ep_shape *shape = &g->config.shape;

	return shape->roles.holders != shape->nranks || shape->roles.senders != shape->nranks;
}

/* Why no operation of the handle can be direct, or NULL. */
static const char *ht_direct_excluded(const struct ncclEpHandle *handle)
{
	if (handle->group->remote_ranks) {
		return "only a group of one node can be direct";
	}
	if (handle->layout != NCCL_EP_LAYOUT_FLAT) {
		return "only flat rows can be direct";
	}
	if (ht_apart(handle->group)) {
		return "only a group whose ranks all hold experts and bring tokens can be direct";
	}
	if (handle->group->nranks > EP_HT_DIRECT_RANKS) {
		return "only a group of at most 72 ranks can be direct";
	}
	if (handle->group->config.shape.limit == EP_NO_LIMIT && !handle->ht->all_receive &&
	    handle->group->config.zero_copy != NCCL_EP_ZERO_COPY_ON) {
		return "to some rank no rows come, by what the handle's last dispatch has reported";
	}
	return NULL;
}

/*
 * zero_copy ON wants a window for all that has storage, even where it is of no use. In the flat
 * layout also for a tensor without rows: the others look for this rank's window, and it would not
 * for theirs.
 */
static ncclResult_t ht_direct_demand(const struct ncclEpHandle *handle,
				     const ncclEpTensor_t *tensor, const struct ep_view *view,
				     const char *name)
{
	if (handle->group->config.zero_copy == NCCL_EP_ZERO_COPY_ON && !tensor->win_hdl &&
	    (view->sizes[0] ||
	     (handle->layout == NCCL_EP_LAYOUT_FLAT && !ht_apart(handle->group)))) {
		return ep_fail(ncclInvalidArgument,
			       "zero_copy ON: %s has no window: register one, or use AUTO", name);
	}
	return ncclSuccess;
}

/* Callers who pass windows want to know what became of them: the log has each change. */
static ncclResult_t ht_direct_decide(const struct ncclEpHandle *handle,
				     const ncclEpTensor_t *tensor, const char *excluded,
				     const char *why, const char *name, bool *direct)
{
	struct ncclEpGroup *g = handle->group;
	bool on = g->config.zero_copy == NCCL_EP_ZERO_COPY_ON;

	why = excluded ? excluded : why;
	*direct = !why;
	if (!excluded && why && on && tensor->win_hdl) {
		return ep_fail(
			ncclInvalidArgument,
			"zero_copy ON: peers cannot reach %s, since %s: register a window, or "
			"use AUTO",
			name, why);
	}
	if (tensor->win_hdl && g->ht->ring_why != why) {
		g->ht->ring_why = why;
		EP_INFO(EP_LOG_COLL, "group %p rank %d: rows of windows are %s%s", (void *)g,
			g->rank, why ? "not direct: " : "direct", why ? why : "");
	}
	return ncclSuccess;
}

/*
 * Where all ranks have the rows that move, if these are in a window: *direct is whether the
 * operation goes straight there. ncclInvalidArgument: zero_copy is ON and the window is of no use.
 */
static ncclResult_t ht_dispatch_direct(const struct ep_dispatch *dispatch,
				       struct ep_ht_dispatch_args *a, bool *direct)
{
	static const char name[] = "outputs->tokens";
	const char *excluded = ht_direct_excluded(dispatch->h), *why = NULL;

	EP_CHECK(ht_direct_demand(dispatch->h, dispatch->out.tokens, &dispatch->out_tokens, name));
	if (!excluded) {
		why = ep_window_places(a->direct, dispatch->h->group, dispatch->out.tokens,
				       &dispatch->out_tokens);
	}
	if (!excluded && !why && dispatch->scale_bytes) {
		why = ep_window_places(a->direct_scales, dispatch->h->group, dispatch->out.scales,
				       &dispatch->out_scales);
	}
	return ht_direct_decide(dispatch->h, dispatch->out.tokens, excluded, why, name, direct);
}

static ncclResult_t ht_combine_direct(const struct ep_combine *c, struct ep_ht_combine_args *a,
				      bool *direct)
{
	static const char name[] = "inputs->tokens";
	const char *excluded = ht_direct_excluded(c->h), *why = NULL;
	unsigned char *places[EP_HT_DIRECT_RANKS];

	EP_CHECK(ht_direct_demand(c->h, c->in.tokens, &c->tokens, name));
	if (!excluded) {
		why = ep_window_places(places, c->h->group, c->in.tokens, &c->tokens);
	}
	for (int r = 0; !excluded && !why && r < c->h->group->nranks; r++) {
		a->direct[r] = places[r];
	}
	return ht_direct_decide(c->h, c->in.tokens, excluded, why, name, direct);
}

/* ---- the head of handle memory ---- */

ncclResult_t ep_ht_head_read(const struct ncclEpHandle *handle, struct ep_ht_head *head,
			     cudaStream_t stream, const char *name)
{
	EP_CHECK(ep_stream_check_capture(stream, name));
	EP_CHECK(ep_device_read(head, handle->ht->dev.head, sizeof(*head), stream));
	EP_CHECK(ep_record_poll(handle->group));
	if (head->stamp != handle->ht->stamp) {
		return ep_fail(ncclInvalidArgument,
			       "%s: handle_mem has no routing for handles like this one: call "
			       "ncclEpUpdateHandle first",
			       name);
	}
	return ncclSuccess;
}

/* ---- counters ---- */

/* At least `extent` numbers; *bytes is the size of one, or what it must be if that is not 0. */
static ncclResult_t ht_check_counter(const struct ncclEpHandle *handle,
				     const ncclEpTensor_t *tensor, uint32_t extent,
				     const char *name, uint32_t *bytes, void **out)
{
	struct ep_view view;

	if (!tensor) {
		return ncclSuccess;
	}
	EP_CHECK(ep_view_make(&view, handle->group->comm, tensor, 1, name));
	if ((view.datatype != ncclInt32 && view.datatype != ncclInt64) ||
	    (*bytes && view.elem_bytes != *bytes)) {
		return ep_fail(ncclInvalidArgument, "%s: data type %s, it needs %s", name,
			       ep_dtype_name(view.datatype),
			       !*bytes       ? "int32 or int64"
			       : *bytes == 4 ? "int32, as counters before it have"
					     : "int64, as counters before it have");
	}
	if (view.sizes[0] < extent) {
		return ep_fail(ncclInvalidArgument, "%s: sizes[0] is %zu, it needs %u at least",
			       name, view.sizes[0], extent);
	}
	EP_CHECK(ep_view_expect_align(&view, view.elem_bytes, name));
	*bytes = view.elem_bytes;
	*out = view.data;
	return ncclSuccess;
}

/* Experts of this rank. */
static uint32_t ht_local(const struct ncclEpGroup *g)
{
	return ep_group_holds(g) ? g->config.shape.nlocal : 0;
}

/* Of expert-major zones: one type for all. */
static ncclResult_t ht_check_zone_counters(const struct ncclEpHandle *handle,
					   const ncclEpLayoutInfo_t *info,
					   struct ep_ht_counters *out)
{
	uint32_t nlocal = ht_local(handle->group), bytes = 0;

	EP_CHECK(ht_check_counter(handle, info->expert_counters, nlocal,
				  "layout_info->expert_counters", &bytes, &out->experts));
	EP_CHECK(ht_check_counter(handle, info->expert_offsets, nlocal,
				  "layout_info->expert_offsets", &bytes, &out->offsets));
	EP_CHECK(ht_check_counter(handle, info->recv_total_counter, 1,
				  "layout_info->recv_total_counter", &bytes, &out->total));
	out->bytes = out->total_bytes = bytes;
	return ncclSuccess;
}

/* Of the flat layout, int32 but for the total. */
static ncclResult_t ht_check_flat_counters(const struct ncclEpHandle *handle,
					   const ncclEpLayoutInfo_t *info,
					   struct ep_ht_counters *out)
{
	out->bytes = 4;
	EP_CHECK(ht_check_counter(handle, info->expert_counters, ht_local(handle->group),
				  "layout_info->expert_counters", &out->bytes, &out->experts));
	return ht_check_counter(handle, info->recv_total_counter, 1,
				"layout_info->recv_total_counter", &out->total_bytes, &out->total);
}

/* ---- dispatch ---- */

/* Weights of [rows][K], or of [rows] where each row is of one expert. */
static ncclResult_t ht_check_weights(const struct ncclEpHandle *handle, struct ep_view *view,
				     const ncclEpTensor_t *tensor, bool by_row, const char *name)
{
	EP_CHECK(ep_view_make(view, handle->group->comm, tensor, by_row ? 1 : 2, name));
	EP_CHECK(ep_view_expect_type(view, ncclFloat32, name));
	if (!by_row) {
		EP_CHECK(ep_view_expect_dim(view, 1, handle->topk, "num_topk", name));
	}
	return ep_view_expect_align(view, 4, name);
}

/* Kernels distinguish the directions by NULL; an empty tensor may have no storage, and is there. */
static void *ht_present(const struct ncclEpHandle *handle, const struct ep_view *view)
{
	return view->data ? view->data : handle->ht->dev.head;
}

static ncclResult_t ht_check_idx(const struct ep_dispatch *dispatch, uint64_t rows,
				 struct ep_ht_dispatch_args *a)
{
	static const char name[] = "outputs->topk_idx";
	struct ep_view idx;

	EP_CHECK(ep_view_make(&idx, dispatch->h->group->comm, dispatch->out.topk_idx, 2, name));
	EP_CHECK(ep_view_expect_type(&idx, ncclInt64, name));
	EP_CHECK(ep_view_expect_dim(&idx, 0, rows, "rows of outputs->topk_weights", name));
	EP_CHECK(ep_view_expect_dim(&idx, 1, dispatch->h->topk, "num_topk", name));
	EP_CHECK(ep_view_expect_align(&idx, 8, name));
	a->out_idx = idx.data;
	return ncclSuccess;
}

/* *rows: of the outputs. */
static ncclResult_t ht_check_forward(const struct ep_dispatch *dispatch,
				     struct ep_ht_dispatch_args *a, uint64_t *rows)
{
	bool em = dispatch->h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	const struct ep_group_config *config = &dispatch->h->group->config;
	struct ep_view in, out;

	EP_CHECK(ht_check_weights(dispatch->h, &in, dispatch->in.topk_weights, false,
				  "inputs->topk_weights"));
	EP_CHECK(ep_view_expect_dim(&in, 0, dispatch->num_tokens, "tokens of inputs->tokens",
				    "inputs->topk_weights"));
	EP_CHECK(ht_check_weights(dispatch->h, &out, dispatch->out.topk_weights, em,
				  "outputs->topk_weights"));
	if ((out.sizes[0] == 0) != (dispatch->out_tokens.sizes[0] == 0)) {
		return ep_fail(
			ncclInvalidArgument,
			"outputs->topk_weights has %zu rows and outputs->tokens %zu: both or "
			"neither may be empty",
			out.sizes[0], dispatch->out_tokens.sizes[0]);
	}
	if (em) {
		EP_CHECK(ep_tensor_expect_absent(dispatch->out.topk_idx, "outputs->topk_idx",
						 "zones say which expert a row is for"));
	} else {
		EP_CHECK(ht_check_idx(dispatch, out.sizes[0], a));
	}
	if (em && config->api >= 3) {
		EP_CHECK(ht_check_zone_counters(dispatch->h, &dispatch->info, &a->counters));
	}
	if (config->shape.limit != EP_NO_LIMIT && config->api < 3) {
		a->fill_rows = (uint32_t)ep_min_u64(out.sizes[0], config->shape.limit);
	}
	a->topk_weights = ht_present(dispatch->h, &in);
	a->out_weights = ht_present(dispatch->h, &out);
	*rows = ep_min_u64(*rows, out.sizes[0]);
	return ncclSuccess;
}

static ncclResult_t ht_check_backward(const struct ep_dispatch *dispatch)
{
	static const char why[] = "the backward pass moves tokens alone";

	EP_CHECK(ep_tensor_expect_absent(dispatch->in.topk_weights, "inputs->topk_weights", why));
	EP_CHECK(ep_tensor_expect_absent(dispatch->out.topk_weights, "outputs->topk_weights", why));
	return ep_tensor_expect_absent(dispatch->out.topk_idx, "outputs->topk_idx", why);
}

/*
 * Have outputs of that many rows room for all that comes? To a rank without experts nothing does.
 * Where this is certain nobody asks the device, with two exceptions in eager mode. Captures are
 * refused always: they would work by chance. Windows need ht->all_receive, which the device knows.
 */
static ncclResult_t ht_check_rows(const struct ep_dispatch *dispatch, uint64_t rows,
				  cudaStream_t stream)
{
	static const char name[] = "ncclEpDispatch: counting rows";
	const struct ep_group_config *config = &dispatch->h->group->config;
	bool em = dispatch->h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	bool eager = config->shape.limit == EP_NO_LIMIT, holds = ep_group_holds(dispatch->h->group);
	uint64_t tokens = dispatch->out_tokens.sizes[0], need;
	struct ep_ht_head head;

	if (holds && em && config->drop && rows < config->shape.limit) {
		return ep_fail(ncclInvalidArgument,
			       "%s: %llu rows, max_recv_tokens_per_rank is %u: where rows may be "
			       "dropped, all rows below it are written",
			       tokens < config->shape.limit ? "outputs->tokens"
							    : "outputs->topk_weights",
			       (unsigned long long)rows, config->shape.limit);
	}
	need = !holds  ? 0
	       : eager ? ep_ht_most_rows(&config->shape, dispatch->h->layout, dispatch->h->topk,
					 dispatch->h->alignment)
		       : config->shape.limit;
	if (eager) {
		EP_CHECK(ep_stream_check_capture(stream, "ncclEpDispatch in eager mode "
							 "(max_recv_tokens_per_rank AUTO)"));
	} else if (tokens < need && config->api > 1) {
		return ep_fail(ncclInvalidArgument,
			       "outputs->tokens: %llu rows, max_recv_tokens_per_rank is %u",
			       (unsigned long long)tokens, config->shape.limit);
	}
	dispatch->h->ht->all_receive = false;
	if (rows >= need && !(eager && !em && dispatch->out.tokens->win_hdl)) {
		return ncclSuccess;
	}
	if (eager && em && config->api >= 3) {
		return ncclSuccess; /* the kernel looks, and records EP_CAUSE_SHORT */
	}
	EP_CHECK(ep_ht_head_read(dispatch->h, &head, stream, name));
	dispatch->h->ht->all_receive = eager && !head.idle;
	if (head.num_tokens != dispatch->num_tokens) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->tokens: %u tokens, the routing in handle_mem has %u",
			       dispatch->num_tokens, head.num_tokens);
	}
	need = em ? head.places : head.rows;
	if (rows < need) {
		return ep_fail(
			ncclInvalidArgument,
			"%s: %llu rows, %llu come: allocate as many as recv_total_counter says",
			tokens < need ? "outputs->tokens" : "outputs->topk_weights",
			(unsigned long long)rows, (unsigned long long)need);
	}
	return ncclSuccess;
}

static ncclResult_t ht_check_scales(const struct ep_dispatch *dispatch)
{
	if (dispatch->out_scales.sizes[0] != dispatch->out_tokens.sizes[0]) {
		return ep_fail(ncclInvalidArgument,
			       "outputs->scales: %zu rows, outputs->tokens has %zu",
			       dispatch->out_scales.sizes[0], dispatch->out_tokens.sizes[0]);
	}
	if (!dispatch->out.tokens->win_hdl != !dispatch->out.scales->win_hdl) {
		return ep_fail(
			ncclInvalidArgument,
			"outputs->tokens has %s window and outputs->scales has %s: give both "
			"one, or neither",
			dispatch->out.tokens->win_hdl ? "a" : "no",
			dispatch->out.scales->win_hdl ? "one" : "none");
	}
	return ncclSuccess;
}

/* May wait for the stream: see ep_ht_head_read(). */
static ncclResult_t ht_dispatch_check(const struct ep_dispatch *dispatch,
				      struct ep_ht_dispatch_args *a, cudaStream_t stream)
{
	const struct ncclEpGroup *g = dispatch->h->group;
	const struct ep_shape *shape = &g->config.shape;
	bool em = dispatch->h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	uint64_t rows = dispatch->out_tokens.sizes[0];

	if (dispatch->recipe->value == NCCL_EP_DISP_QUANT_FWD) {
		EP_CHECK(ht_check_scales(dispatch));
	}
	a->fill_rows = EP_HT_NONE;
	if (dispatch->config.pass_direction == NCCL_EP_BWD_PASS) {
		EP_CHECK(ht_check_backward(dispatch));
	} else {
		EP_CHECK(ht_check_forward(dispatch, a, &rows));
	}
	EP_CHECK(ht_check_rows(dispatch, rows, stream));
	a->c.given_rows = (uint32_t)ep_min_u64(rows, EP_HT_NONE);
	a->zero_to = em && g->config.drop && ep_group_holds(g) ? shape->limit : 0;
	a->id_base = dispatch->info.recv_topk_idx_kind == NCCL_EP_EXPERT_ID_GLOBAL
			     ? ((uint32_t)g->rank - shape->roles.first_holder) * shape->nlocal
			     : 0;
	return ncclSuccess;
}

/* ---- combine ---- */

#define EP_HT_MXFP8_ELEMENTS 512u

/*
 * Sums of a rank's rows are quantised: there are such in one layout, and one node does not add them
 * again.
 */
static ncclResult_t ht_check_mxfp8(const struct ep_combine *c)
{
	size_t elements = c->tokens.sizes[1];

	if (c->h->layout != NCCL_EP_LAYOUT_EXPERT_MAJOR) {
		return ep_fail(ncclInvalidArgument,
			       "recipe MXFP8 needs an expert-major handle, this one is FLAT: use "
			       "recipe NONE");
	}
	if (c->h->group->remote_ranks) {
		return ep_fail(
			ncclInvalidArgument,
			"recipe MXFP8 needs all ranks in one NVLink domain, and this rank has "
			"%u of others: use recipe NONE",
			c->h->group->remote_ranks);
	}
	if (elements % EP_HT_MXFP8_ELEMENTS) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->tokens: recipe MXFP8 needs a multiple of %u elements per "
			       "row, not %zu",
			       EP_HT_MXFP8_ELEMENTS, elements);
	}
	return ncclSuccess;
}

static ncclResult_t ht_combine_check(const struct ep_combine *c, struct ep_ht_combine_args *a)
{
	static const char why[] = "combine applies no weights: do so before";
	bool em = c->h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	uint64_t rows = c->tokens.sizes[0];
	struct ep_view in, out;

	if (c->recipe->format == EP_ROW_MXFP8) {
		EP_CHECK(ht_check_mxfp8(c));
	}
	if (c->config.pass_direction == NCCL_EP_FWD_PASS) {
		EP_CHECK(ep_tensor_expect_absent(c->in.topk_weights, "inputs->topk_weights", why));
		a->c.given_rows = (uint32_t)ep_min_u64(rows, EP_HT_NONE);
		return ncclSuccess;
	}
	EP_CHECK(ht_check_weights(c->h, &in, c->in.topk_weights, em, "inputs->topk_weights"));
	EP_CHECK(ht_check_weights(c->h, &out, c->out.topk_weights, false, "outputs->topk_weights"));
	EP_CHECK(ep_view_expect_dim(&out, 0, c->num_tokens, "tokens of outputs->tokens",
				    "outputs->topk_weights"));
	if ((in.sizes[0] == 0) != (rows == 0)) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->topk_weights has %zu rows and inputs->tokens %llu: both or "
			       "neither may be empty",
			       in.sizes[0], (unsigned long long)rows);
	}
	a->in_weights = ht_present(c->h, &in);
	a->out_weights = ht_present(c->h, &out);
	a->c.given_rows = (uint32_t)ep_min_u64(ep_min_u64(rows, in.sizes[0]), EP_HT_NONE);
	return ncclSuccess;
}

/* ---- kernels ---- */

/*
 * By enum ep_ht_kind, and of combine by enum ep_ht_dtype: for groups of one node, EP_HT_EXPERTS
 * behind those expert-major combine; then, EP_HT_NODES behind those, for others.
 */
#define EP_HT_EXPERTS 3
#define EP_HT_NODES 9
#define EP_HT_LINES 12 /* combine as lines, from EP_HT_COMBINE on; then dispatch */
static const void *const ht_kernels[] = {
	(const void *)ep_ht_route_kernel,
	(const void *)ep_ht_dispatch_kernel,
	(const void *)ep_ht_combine_bf16_kernel,
	(const void *)ep_ht_combine_fp16_kernel,
	(const void *)ep_ht_combine_fp32_kernel,
	(const void *)ep_ht_combine_bf16_experts_kernel,
	(const void *)ep_ht_combine_fp16_experts_kernel,
	(const void *)ep_ht_combine_fp32_experts_kernel,
	(const void *)ep_ht_combine_mxfp8_kernel,
	(const void *)ep_ht_route_nodes_kernel,
	(const void *)ep_ht_dispatch_nodes_kernel,
	(const void *)ep_ht_combine_bf16_nodes_kernel,
	(const void *)ep_ht_combine_fp16_nodes_kernel,
	(const void *)ep_ht_combine_fp32_nodes_kernel,
	(const void *)ep_ht_combine_bf16_lines_kernel,
	(const void *)ep_ht_combine_fp16_lines_kernel,
	(const void *)ep_ht_combine_fp32_lines_kernel,
	(const void *)ep_ht_dispatch_lines_kernel,
	(const void *)ep_ht_order_kernel, /* these two are launched by their names */
	(const void *)ep_ht_dispatch_early_kernel,
};

/* Of the group's. `index`: enum ep_ht_kind, of combine with enum ep_ht_dtype added. */
static const void *ht_kernel(const struct ncclEpGroup *g, uint32_t index)
{
	return ht_kernels[(g->remote_ranks ? EP_HT_NODES : 0) + index];
}

static const void *ht_combine_kernel(const struct ncclEpHandle *h, enum ep_ht_dtype dtype,
				     bool lines)
{
	bool experts = h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR && !h->group->remote_ranks;

	if (lines) {
		return ht_kernels[EP_HT_LINES + EP_HT_COMBINE + dtype];
	}
	return ht_kernel(h->group, EP_HT_COMBINE + (experts ? EP_HT_EXPERTS : 0) + dtype);
}

/* ---- the device ---- */

static const enum ep_budget_kind ht_budgets[] = {
	[EP_HT_ROUTE] = EP_BUDGET_SHARED,
	[EP_HT_DISPATCH] = EP_BUDGET_DISPATCH,
	[EP_HT_COMBINE] = EP_BUDGET_COMBINE,
};

/* What an operation of the kind may have there, of at most `limit` SMs. */
static struct ep_ht_device ht_device_of(const struct ncclEpGroup *g, enum ep_ht_kind kind,
					uint32_t limit)
{
	const struct ep_budget *budget = &g->config.budget[ht_budgets[kind]];

	return (struct ep_ht_device){
		.max_blocks = (uint32_t)ep_min_u64(budget->sms, limit),
		.auto_sms = budget->automatic,
		.shared_bytes = g->ht->shared_bytes,
	};
}

/* That a group of this shape can run here at all. */
static ncclResult_t ht_device_check(const struct ncclEpGroup *g)
{
	struct ep_ht_operation o = {
		.shape = g->config.shape,
		.row_bytes = g->config.shape.max_token_bytes,
		.layout = EP_HT_FLAT,
		.topk = 1,
	};
	static const char *const names[] = { "UpdateHandle", "dispatch", "combine" };

	for (int kind = EP_HT_ROUTE; kind <= EP_HT_COMBINE; kind++) {
		struct ep_ht_plan p;

		o.kind = (enum ep_ht_kind)kind;
		o.device = ht_device_of(g, o.kind, g->sm_count);
		p = ep_ht_plan_make(&o);
		if (!ep_ht_plan_fits(&o, &p)) {
			return ep_fail(
				ncclInvalidUsage,
				"%s needs %llu bytes of shared memory per block, more than the "
				"%u that this GPU has: use fewer experts, or fewer ranks",
				names[kind], (unsigned long long)p.shared_bytes,
				g->ht->shared_bytes);
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_ht_kernels_open(struct ncclEpGroup *g)
{
	EP_CHECK(ep_kernels_load(ht_kernels, EP_ARRAY_SIZE(ht_kernels)));
	EP_CHECK(ep_kernels_share(ht_kernels, EP_ARRAY_SIZE(ht_kernels), g->device,
				  &g->ht->shared_bytes));
	return ht_device_check(g);
}

/* ---- launches ---- */

static struct ep_ht_operation ht_operation_of(const struct ncclEpHandle *handle,
					      enum ep_ht_kind kind)
{
	const struct ep_ht *ht = handle->group->ht;
	struct ep_ht_areas areas = ht->areas;
	struct ep_ht_operation o;

	ep_ht_areas_cut(&areas, &handle->group->config.shape, handle->layout);
	o = (struct ep_ht_operation){
		.shape = handle->group->config.shape,
		.device = ht_device_of(handle->group, kind,
				       ep_resident_limit(&handle->group->resident)),
		.kind = kind,
		.layout = handle->layout,
		.topk = handle->topk,
		.least_sms = handle->group->config.least_sms[ht_budgets[kind]],
		.overlap = handle->group->config.overlap,
		.send_warps = handle->group->config.send_warps,
		.lines_asked = handle->group->config.lines_choice == 1,
		.ring_chunks = areas.ring_chunks,
		.net_chunks = areas.net_chunks,
	};
	return o;
}

/*
 * Rows of an operation, and what belongs to them, lie in areas by the ranks that they come from,
 * and some words by those that they go to. The areas begin with the first rank that there can be.
 */
static void ht_areas_place(struct ep_ht_areas *a, const struct ep_ht_common *c, bool back,
			   bool nodes)
{
	uint64_t units = 8ull * a->ring_chunks * a->parts, lists = 4ull * c->max_tokens * c->width;
	uint64_t rows = ((uint64_t)a->ring_chunks << a->chunk_shift) * a->row_stride;
	uint64_t from = back ? c->roles.first_holder : c->roles.first_sender;
	uint64_t to = back ? c->roles.first_sender : c->roles.first_holder;

	if (!nodes || !back) { /* else by return rings, which are not those of ranks */
		a->ring_off -= from * rows;
		a->arrived_off -= from * units;
	}
	if (!nodes || back) {
		a->credit_off -= to * units;
	}
	a->weight_off -= from * lists;
	a->line_off -= from * c->max_tokens * a->line_quads * EP_QUAD_LINE_BYTES;
	a->line_weight_off -= 2 * from * lists;
	a->out_off -= to * lists;
}

static struct ep_ht_roles ht_roles_make(const struct ncclEpGroup *g)
{
	const struct ep_roles *r = &g->config.shape.roles;
	bool holds = ep_group_holds(g), sends = ep_group_sends(g);
	uint32_t rank = (uint32_t)g->rank;

	return (struct ep_ht_roles){
		.first_sender = r->first_sender,
		.senders = r->senders,
		.first_holder = r->first_holder,
		.holders = r->holders,
		.sender = sends ? rank - r->first_sender : EP_HT_NONE,
		.holder = holds ? rank - r->first_holder : EP_HT_NONE,
		.readers = sends ? (uint32_t)g->nranks : 0,
		.told = sends ? r->holders : 0,
		.first_source = sends ? rank + 1 : r->first_sender + rank % r->senders,
		.source_end = r->first_sender + r->senders,
		.others = holds ? r->senders - sends : 0,
	};
}

static void ht_common_fill(struct ep_ht_common *c, const struct ncclEpHandle *handle,
			   uint32_t num_tokens, enum ep_ht_kind kind)
{
	const struct ncclEpGroup *g = handle->group;
	const struct ep_shape *shape = &g->config.shape;

	c->g = g->dev;
	c->areas = g->ht->areas;
	ep_ht_areas_cut(&c->areas, shape, handle->layout);
	c->h = handle->ht->dev;
	c->remote = g->ht->remote;
	c->launch.halves = EP_HALF_SEND | EP_HALF_RECV;
	c->launch.send_blocks = 0; /* none waits for a bank: marks show who has started */
	c->stamp = handle->ht->stamp;
	c->layout = handle->layout;
	c->num_tokens = num_tokens;
	c->max_tokens = shape->max_tokens;
	c->experts = g->config.num_experts;
	c->nlocal = ht_local(g);
	c->topk = handle->topk;
	c->width = ep_ht_width(shape, handle->topk);
	c->limit = shape->limit;
	c->by_local = ep_div_make(shape->nlocal);
	c->by_width = ep_div_make(c->width);
	c->roles = ht_roles_make(g);
	ht_areas_place(&c->areas, c, kind == EP_HT_COMBINE, g->remote_ranks != 0);
}

ncclResult_t ep_ht_update(struct ncclEpHandle *handle, const struct ep_view *ids,
			  const ncclEpLayoutInfo_t *info, cudaStream_t stream)
{
	struct ep_signature signature = ep_signature_update(handle);
	struct ep_ht_operation o = ht_operation_of(handle, EP_HT_ROUTE);
	struct ep_ht_plan p = ep_ht_plan_make(&o);
	struct ep_ht_route_args a;

	memset(&a, 0, sizeof(a));
	if (info) {
		EP_CHECK(handle->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR
				 ? ht_check_zone_counters(handle, info, &a.counters)
				 : ht_check_flat_counters(handle, info, &a.counters));
	}
	handle->ht->all_receive = false;
	ht_common_fill(&a.c, handle, (uint32_t)ids->sizes[0], EP_HT_ROUTE);
	a.c.given_rows = EP_HT_NONE;
	ep_signature_launch(&a.c.launch, &signature);
	a.topk_idx = ids->data;
	a.id_bytes = ids->elem_bytes;
	a.alignment = handle->alignment;
	a.drop = handle->group->config.drop;
	a.by_topk = ep_div_make(handle->topk);
	EP_CHECK(ep_kernel_launch(handle->group, ht_kernel(handle->group, EP_HT_ROUTE), &a,
				  p.blocks, p.threads, (uint32_t)p.shared_bytes, stream,
				  "launching UpdateHandle"));
	handle->ht->arrivals.head = NULL;
	handle->ht->captured.head = NULL;
	return ncclSuccess;
}

/*
 * Sends of arrivals are so many chunks ahead, at most. With 64 a tenth of the experts came a third
 * later.
 */
#define EP_HT_ARRIVALS_LAG 256u

/* The same dispatch in the order of experts. */
static ncclResult_t ht_dispatch_early(const struct ep_dispatch *dispatch,
				      const struct ep_ht_dispatch_args *d,
				      const struct ep_ht_plan *p,
				      struct ep_ht_dev_arrivals *arrivals, cudaStream_t stream)
{
	struct ep_ht_early_args a = { .d = *d, .arrivals = *arrivals };

	ep_ht_arrivals_cut(&d->c.areas, &dispatch->h->group->config.shape, &a.chunk_shift,
			   &a.ring_chunks);
	a.d.lag = (uint32_t)ep_max_u64(1, ep_min_u64(a.ring_chunks / 2, EP_HT_ARRIVALS_LAG));
	EP_CHECK(ep_kernel_launch(dispatch->h->group, (const void *)ep_ht_dispatch_early_kernel, &a,
				  p->blocks, p->threads, (uint32_t)p->shared_bytes, stream,
				  "launching dispatch with arrivals"));
	arrivals->head = NULL; /* a dispatch that was not launched leaves them to the next one */
	return ncclSuccess;
}

/* Captured arrivals are for a dispatch of that capture, which may have been abandoned. */
static struct ep_ht_dev_arrivals *ht_arrivals_due(struct ep_ht_handle *ht, cudaStream_t stream)
{
	return ht->captured.head && ht->arrivals_capture == ep_stream_capture(stream)
		       ? &ht->captured
		       : &ht->arrivals;
}

ncclResult_t ep_ht_dispatch(const struct ep_dispatch *dispatch, cudaStream_t stream)
{
	struct ep_ht_operation o = ht_operation_of(dispatch->h, EP_HT_DISPATCH);
	struct ep_ht_dev_arrivals *arrivals = ht_arrivals_due(dispatch->h->ht, stream);
	struct ep_signature signature = ep_signature_dispatch(dispatch);
	struct ep_ht_dispatch_args a;
	struct ep_ht_plan p;
	bool direct;

	memset(&a, 0, sizeof(a));
	EP_CHECK(ht_dispatch_check(dispatch, &a, stream));
	EP_CHECK(ht_dispatch_direct(dispatch, &a, &direct));
	if (direct) {
		ep_signature_windows(&signature, dispatch->out.tokens->win_offset,
				     dispatch->scale_bytes ? dispatch->out.scales->win_offset : 0);
	}
	o.direct = direct;
	o.row_bytes = dispatch->token_bytes + dispatch->scale_bytes;
	o.arrivals = arrivals->head != NULL;
	o.lines = ep_ht_lines(dispatch->h->group) && !direct && !o.arrivals;
	p = ep_ht_plan_make(&o);
	ht_common_fill(&a.c, dispatch->h, dispatch->num_tokens, EP_HT_DISPATCH);
	if (o.arrivals) {
		ep_signature_arrivals(&signature);
	}
	ep_signature_launch(&a.c.launch, &signature);
	a.tokens = dispatch->tokens.data;
	a.scales = dispatch->scale_bytes ? dispatch->scales.data : a.tokens; /* none, at no NULL */
	a.out_tokens = dispatch->out_tokens.data;
	a.out_scales = dispatch->scale_bytes ? dispatch->out_scales.data : a.out_tokens;
	a.token_bytes = dispatch->token_bytes;
	a.scale_bytes = dispatch->scale_bytes;
	a.parts = p.parts;
	a.part_bytes = p.part_bytes;
	a.stage_parts = p.stage_parts;
	a.is_direct = direct;
	a.lag = p.lag;
	a.send_blocks = p.send_blocks;
	a.send_warps = p.send_warps;
	a.by_parts = ep_div_make(p.parts);
	a.lines = p.lines;
	if (o.arrivals) {
		return ht_dispatch_early(dispatch, &a, &p, arrivals, stream);
	}
	return ep_kernel_launch(dispatch->h->group,
				p.lines.quads ? (const void *)ep_ht_dispatch_lines_kernel
					      : ht_kernel(dispatch->h->group, EP_HT_DISPATCH),
				&a, p.blocks, p.threads, (uint32_t)p.shared_bytes, stream,
				"launching dispatch");
}

ncclResult_t ep_ht_combine(const struct ep_combine *c, cudaStream_t stream)
{
	struct ep_ht_operation o = ht_operation_of(c->h, EP_HT_COMBINE);
	ncclDataType_t type = c->tokens.datatype;
	enum ep_ht_dtype dtype = c->recipe->format == EP_ROW_MXFP8 ? EP_HT_MXFP8
				 : type == ncclBfloat16            ? EP_HT_BF16
				 : type == ncclFloat16             ? EP_HT_FP16
								   : EP_HT_FP32;
	bool backward = c->config.pass_direction == NCCL_EP_BWD_PASS, direct;
	struct ep_signature signature = ep_signature_combine(c);
	struct ep_ht_combine_args a;
	struct ep_ht_plan p;

	memset(&a, 0, sizeof(a));
	EP_CHECK(ht_combine_direct(c, &a, &direct));
	if (direct) {
		ep_signature_windows(&signature, c->in.tokens->win_offset, 0);
	}
	EP_CHECK(ht_combine_check(c, &a));
	o.direct = direct && !backward; /* gradients of weights go through the heap, */
	if (direct) {
		o.send_warps = 0; /* which is little beside the sums: these are work of all warps */
	}
	o.row_bytes = c->token_bytes;
	o.lines = ep_ht_lines(c->h->group) && !direct && !backward;
	p = ep_ht_plan_make(&o);
	ht_common_fill(&a.c, c->h, c->num_tokens, EP_HT_COMBINE);
	ep_signature_launch(&a.c.launch, &signature);
	a.tokens = c->tokens.data;
	a.out_tokens = c->out_tokens.data;
	a.token_bytes = c->token_bytes;
	a.parts = p.parts;
	a.part_bytes = p.part_bytes;
	a.stage_parts = p.stage_parts;
	a.is_direct = direct;
	a.lag = p.lag;
	a.send_blocks = p.send_blocks;
	a.send_warps = p.send_warps;
	a.sum_shift = p.sum_shift;
	a.turns = c->h->layout == NCCL_EP_LAYOUT_FLAT ? a.c.roles.others
		  : ep_group_holds(c->h->group)       ? a.c.roles.senders
						      : 0;
	a.by_parts = ep_div_make(p.parts);
	a.by_turns = ep_div_make(a.turns ? a.turns : 1);
	a.lines = p.lines;
	return ep_kernel_launch(c->h->group, ht_combine_kernel(c->h, dtype, p.lines.quads != 0), &a,
				p.blocks, p.threads, (uint32_t)p.shared_bytes, stream,
				"launching combine");
}

/* ---- arrivals ---- */

_Static_assert(offsetof(ncclEpExtArrivals_t, expert) == sizeof(struct ep_ht_arrivals) &&
		       sizeof(ncclEpExtArrival_t) == sizeof(struct ep_ht_arrival) &&
		       offsetof(ncclEpExtArrivals_t, failed) ==
			       offsetof(struct ep_ht_arrivals, failed) &&
		       offsetof(ncclEpExtArrival_t, missing) ==
			       offsetof(struct ep_ht_arrival, missing) &&
		       offsetof(ncclEpExtArrival_t, first) == offsetof(struct ep_ht_arrival, first),
	       "what kernels of the caller read");

#define EP_HT_ARRIVALS_ALIGN 256u
#define EP_HT_ORDER_BLOCKS 32u /* for what has no order */

ncclResult_t ep_ht_arrivals_start(struct ncclEpHandle *handle, void *memory, size_t *bytes,
				  cudaStream_t stream)
{
	static const char name[] = "ncclEpExtStartArrivals";
	const struct ncclEpGroup *g = handle->group;
	uint32_t nlocal = g->config.shape.nlocal;
	struct ep_ht_dev_arrivals arrivals;
	struct ep_ht_order_args a;
	uint64_t need = ep_ht_arrivals_layout(&g->config.shape, handle->topk, memory, &arrivals);
	unsigned long long capture;

	if (handle->layout != NCCL_EP_LAYOUT_EXPERT_MAJOR) {
		return ep_fail(ncclInvalidArgument,
			       "%s needs an expert-major handle, this one is FLAT", name);
	}
	if (g->remote_ranks) {
		return ep_fail(ncclInvalidUsage,
			       "%s needs all ranks in one NVLink domain, and this rank has %u of "
			       "others",
			       name, g->remote_ranks);
	}
	if (ht_apart(g)) {
		return ep_fail(ncclInvalidUsage,
			       "%s needs a group whose ranks all hold experts and bring tokens",
			       name);
	}
	if (g->config.drop) {
		return ep_fail(ncclInvalidUsage,
			       "%s: the group's overflow_policy is DROP, and a row that may be "
			       "dropped has no place in the order of experts: use another policy",
			       name);
	}
	if (!memory) {
		*bytes = need;
		return ncclSuccess;
	}
	if ((uintptr_t)memory % EP_HT_ARRIVALS_ALIGN) {
		return ep_fail(ncclInvalidArgument,
			       "%s: arrivals is %p: it must be aligned to %u bytes", name, memory,
			       EP_HT_ARRIVALS_ALIGN);
	}
	if (*bytes < need) {
		return ep_fail(ncclInvalidArgument,
			       "%s: *bytes is %zu, the handle needs %llu: call it with arrivals "
			       "NULL for that number",
			       name, *bytes, (unsigned long long)need);
	}
	memset(&a, 0, sizeof(a));
	ht_common_fill(&a.c, handle, 0, EP_HT_ROUTE);
	a.arrivals = arrivals;
	EP_CHECK(ep_kernel_launch(g, (const void *)ep_ht_order_kernel, &a,
				  2 * g->config.shape.nranks + EP_HT_ORDER_BLOCKS,
				  32 * EP_HT_ORDER_WARPS,
				  nlocal <= EP_HT_ORDER_SHARED ? ep_ht_order_sums(nlocal) : 0,
				  stream, "launching ncclEpExtStartArrivals"));
	capture = ep_stream_capture(stream);
	if (capture) {
		handle->ht->captured = arrivals;
		handle->ht->arrivals_capture = capture;
	} else {
		handle->ht->arrivals = arrivals;
	}
	return ncclSuccess;
}
