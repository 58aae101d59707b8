/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation of high throughput: the rest of its checks (ht_check.c, direct.c), its plan (ht_plan.c),
 * its launch. No launch allocates on the device; only dispatch may wait for the stream, to read how
 * many rows there are. And what kernels need of the device before the first one.
 */
#include <stdio.h>
#include <string.h>
#include "core/cuda.h"
#include "device/kernels.h"
#include "ep/ht/ht.h"
#include "ep/kernel.h"
#include "ep/signature.h"

/*
 * By enum ep_ht_kind, and of combine by enum ep_ht_dtype: for groups of one node, then, EP_HT_NODES
 * behind those, for others.
 */
#define EP_HT_NODES 5
static const void *const ep_ht_kernels[2 * EP_HT_NODES] = {
	(const void *)ep_ht_route_kernel,
	(const void *)ep_ht_dispatch_kernel,
	(const void *)ep_ht_combine_bf16_kernel,
	(const void *)ep_ht_combine_fp16_kernel,
	(const void *)ep_ht_combine_fp32_kernel,
	(const void *)ep_ht_route_nodes_kernel,
	(const void *)ep_ht_dispatch_nodes_kernel,
	(const void *)ep_ht_combine_bf16_nodes_kernel,
	(const void *)ep_ht_combine_fp16_nodes_kernel,
	(const void *)ep_ht_combine_fp32_nodes_kernel,
};

/* Of the group's. `index`: enum ep_ht_kind, of combine with enum ep_ht_dtype added. */
static const void *ep_ht_kernel(const struct ncclEpGroup *g, uint32_t index)
{
	return ep_ht_kernels[(g->remote_ranks ? EP_HT_NODES : 0) + index];
}

/* ---- the device ---- */

/* That a group of this shape can run here at all. */
static ncclResult_t ep_ht_device_check(const struct ncclEpGroup *g)
{
	struct ep_ht_operation o = {
		.shape = g->config.shape,
		.device = g->ht->device,
		.row_bytes = g->config.shape.max_token_bytes,
		.layout = EP_HT_FLAT,
		.topk = 1,
	};
	static const char *const names[] = { "UpdateHandle", "dispatch", "combine" };

	for (int kind = EP_HT_ROUTE; kind <= EP_HT_COMBINE; kind++) {
		struct ep_ht_plan p;

		o.kind = (enum ep_ht_kind)kind;
		p = ep_ht_plan_make(&o);
		if (!ep_ht_plan_fits(&o, &p)) {
			return ep_fail(
				ncclInvalidUsage,
				"%s needs %llu bytes of shared memory per block, more than the "
				"%u that this GPU has: use fewer experts, or fewer ranks",
				names[kind], (unsigned long long)p.shared_bytes,
				g->ht->device.shared_bytes);
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_ht_kernels_open(struct ncclEpGroup *g)
{
	struct ep_ht_device *device = &g->ht->device;

	EP_CHECK(ep_kernels_load(ep_ht_kernels, EP_ARRAY_SIZE(ep_ht_kernels)));
	device->max_blocks = (uint32_t)ep_min_u64(g->config.max_sms, g->sm_count);
	device->auto_sms = g->config.auto_sms;
	EP_CHECK(ep_kernels_share(ep_ht_kernels, EP_ARRAY_SIZE(ep_ht_kernels), g->device,
				  &device->shared_bytes));
	return ep_ht_device_check(g);
}

/* ---- launches ---- */

static struct ep_ht_operation ep_ht_operation_of(const struct ncclEpHandle *handle,
						 enum ep_ht_kind kind)
{
	const struct ep_ht *ht = handle->group->ht;
	struct ep_ht_areas areas = ht->areas;
	struct ep_ht_operation o;

	ep_ht_areas_cut(&areas, &handle->group->config.shape, handle->layout);
	o = (struct ep_ht_operation){
		.shape = handle->group->config.shape,
		.device = ht->device,
		.kind = kind,
		.layout = handle->layout,
		.topk = handle->topk,
		.least_sms = handle->group->config.least_sms,
		.ring_chunks = areas.ring_chunks,
		.net_chunks = areas.net_chunks,
	};
	o.device.max_blocks = ep_resident_limit(&handle->group->resident);
	return o;
}

static void ep_ht_common_fill(struct ep_ht_common *c, const struct ncclEpHandle *handle,
			      uint32_t num_tokens)
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
	c->nlocal = shape->nlocal;
	c->topk = handle->topk;
	c->width = ep_ht_width(shape, handle->topk);
	c->limit = shape->limit;
	c->by_local = ep_div_make(c->nlocal);
	c->by_width = ep_div_make(c->width);
}

ncclResult_t ep_ht_update(struct ncclEpHandle *handle, const struct ep_view *ids,
			  const ncclEpLayoutInfo_t *info, cudaStream_t stream)
{
	struct ep_signature signature = ep_signature_update(handle);
	struct ep_ht_operation o = ep_ht_operation_of(handle, EP_HT_ROUTE);
	struct ep_ht_plan p = ep_ht_plan_make(&o);
	struct ep_ht_route_args a;

	memset(&a, 0, sizeof(a));
	EP_CHECK(ep_ht_update_check(handle, info, &a));
	handle->ht->all_receive = false;
	ep_ht_common_fill(&a.c, handle, (uint32_t)ids->sizes[0]);
	a.c.given_rows = EP_HT_NONE;
	ep_signature_launch(&a.c.launch, &signature);
	a.topk_idx = ids->data;
	a.id_bytes = ids->elem_bytes;
	a.alignment = handle->alignment;
	a.drop = handle->group->config.drop;
	a.by_topk = ep_div_make(handle->topk);
	return ep_kernel_launch(ep_ht_kernel(handle->group, EP_HT_ROUTE), &a, p.blocks, p.threads,
				(uint32_t)p.shared_bytes, stream, "launching UpdateHandle");
}

ncclResult_t ep_ht_dispatch(const struct ep_dispatch *dispatch, cudaStream_t stream)
{
	struct ep_ht_operation o = ep_ht_operation_of(dispatch->h, EP_HT_DISPATCH);
	struct ep_signature signature = ep_signature_dispatch(dispatch);
	struct ep_ht_dispatch_args a;
	struct ep_ht_plan p;
	bool direct;

	memset(&a, 0, sizeof(a));
	EP_CHECK(ep_ht_dispatch_check(dispatch, &a, stream));
	EP_CHECK(ep_ht_dispatch_direct(dispatch, &a, &direct));
	if (direct) {
		ep_signature_windows(&signature, dispatch->out.tokens->win_offset,
				     dispatch->scale_bytes ? dispatch->out.scales->win_offset : 0);
	}
	o.row_bytes = dispatch->token_bytes + dispatch->scale_bytes;
	p = ep_ht_plan_make(&o);
	ep_ht_common_fill(&a.c, dispatch->h, dispatch->num_tokens);
	ep_signature_launch(&a.c.launch, &signature);
	a.tokens = dispatch->tokens.data;
	a.scales = dispatch->scales.data;
	a.out_tokens = dispatch->out_tokens.data;
	a.out_scales = dispatch->out_scales.data;
	a.token_bytes = dispatch->token_bytes;
	a.scale_bytes = dispatch->scale_bytes;
	a.parts = p.parts;
	a.part_bytes = p.part_bytes;
	a.stage_parts = p.stage_parts;
	a.is_direct = direct;
	a.lag = p.lag;
	a.by_parts = ep_div_make(p.parts);
	return ep_kernel_launch(ep_ht_kernel(dispatch->h->group, EP_HT_DISPATCH), &a, p.blocks,
				p.threads, (uint32_t)p.shared_bytes, stream, "launching dispatch");
}

ncclResult_t ep_ht_combine(const struct ep_combine *c, cudaStream_t stream)
{
	struct ep_ht_operation o = ep_ht_operation_of(c->h, EP_HT_COMBINE);
	ncclDataType_t type = c->tokens.datatype;
	enum ep_ht_dtype dtype = type == ncclBfloat16  ? EP_HT_BF16
				 : type == ncclFloat16 ? EP_HT_FP16
						       : EP_HT_FP32;
	bool backward = c->config.pass_direction == NCCL_EP_BWD_PASS, direct;
	struct ep_signature signature = ep_signature_combine(c);
	struct ep_ht_combine_args a;
	struct ep_ht_plan p;

	memset(&a, 0, sizeof(a));
	EP_CHECK(ep_ht_combine_direct(c, &a, &direct));
	if (direct) {
		ep_signature_windows(&signature, c->in.tokens->win_offset, 0);
	}
	EP_CHECK(ep_ht_combine_check(c, &a));
	o.direct = direct && !backward; /* gradients of weights go through the heap */
	o.row_bytes = c->token_bytes;
	p = ep_ht_plan_make(&o);
	ep_ht_common_fill(&a.c, c->h, c->num_tokens);
	ep_signature_launch(&a.c.launch, &signature);
	a.tokens = c->tokens.data;
	a.out_tokens = c->out_tokens.data;
	a.token_bytes = c->token_bytes;
	a.parts = p.parts;
	a.part_bytes = p.part_bytes;
	a.stage_parts = p.stage_parts;
	a.is_direct = direct;
	a.lag = p.lag;
	a.turns = c->h->layout == NCCL_EP_LAYOUT_FLAT ? c->h->group->config.shape.nranks - 1
						      : c->h->group->config.shape.nranks;
	a.by_parts = ep_div_make(p.parts);
	a.by_turns = ep_div_make(a.turns ? a.turns : 1);
	return ep_kernel_launch(ep_ht_kernel(c->h->group, EP_HT_COMBINE + dtype), &a, p.blocks,
				p.threads, (uint32_t)p.shared_bytes, stream, "launching combine");
}
