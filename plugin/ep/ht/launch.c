/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation of high throughput: the rest of its checks (check.c, direct.c), its plan (plan.c),
 * its launch. No launch allocates on the device; only dispatch may wait for the stream, to read how
 * many rows there are. And what kernels need of the device before the first one.
 */
#include <stdio.h>
#include <string.h>
#include "core/cuda.h"
#include "device/kernels.h"
#include "ep/ht/ht.h"
#include "ep/kernel.h"
#include "ep/query.h"
#include "ep/record.h"

/* By enum ep_ht_kind, and of combine by enum ep_ht_dtype. */
static const void *const ep_ht_kernels[] = {
	(const void *)ep_ht_route_kernel,        (const void *)ep_ht_dispatch_kernel,
	(const void *)ep_ht_combine_bf16_kernel, (const void *)ep_ht_combine_fp16_kernel,
	(const void *)ep_ht_combine_fp32_kernel,
};

/* ---- the device ---- */

/* What a block may have besides what the compiler gave it, alike for all kernels. */
static ncclResult_t ep_ht_shared_find(uint32_t *bytes, int device)
{
	struct cudaFuncAttributes attributes;
	size_t fixed = 0;
	int most = 0;

	EP_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
		"asking for the device's shared memory");
	for (size_t i = 0; i < EP_ARRAY_SIZE(ep_ht_kernels); i++) {
		EP_CUDA(cudaFuncGetAttributes(&attributes, ep_ht_kernels[i]),
			"asking for a kernel's shared memory");
		fixed = ep_max_u64(fixed, attributes.sharedSizeBytes);
	}
	*bytes = (uint32_t)most - (uint32_t)ep_min_u64(fixed, (uint64_t)most);
	return ncclSuccess;
}

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
	EP_CHECK(ep_ht_shared_find(&device->shared_bytes, g->device));
	EP_CHECK(ep_ht_device_check(g));
	for (size_t i = 0; i < EP_ARRAY_SIZE(ep_ht_kernels); i++) {
		EP_CUDA(cudaFuncSetAttribute(ep_ht_kernels[i],
					     cudaFuncAttributeMaxDynamicSharedMemorySize,
					     (int)device->shared_bytes),
			"making room in shared memory");
	}
	return ncclSuccess;
}

/* ---- what ranks must have alike ---- */

#define EP_HT_FORM_BACKWARD 4u
#define EP_HT_FORM_EXPERTS 8u
#define EP_HT_FORM_DIRECT 16u
#define EP_HT_FORM_TOPK(f) ((f) >> 5 & 0x3fu)
#define EP_HT_FORM_ROW(f) ((f) >> 11 & 0x3ffu)
#define EP_HT_FORM_PLACE(f) ((f) >> 21)

static uint32_t ep_ht_hash(uint64_t value, uint32_t bits)
{
	return (uint32_t)(value * 0x9e3779b97f4a7c15u >> (64 - bits));
}

uint32_t ep_ht_form(const struct ncclEpHandle *h, enum ep_ht_kind kind, bool backward, uint64_t row,
		    bool direct, uint64_t place)
{
	return (uint32_t)kind | (backward ? EP_HT_FORM_BACKWARD : 0) |
	       (h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR ? EP_HT_FORM_EXPERTS : 0) |
	       (direct ? EP_HT_FORM_DIRECT : 0) | h->topk << 5 | ep_ht_hash(row, 10) << 11 |
	       (direct ? ep_ht_hash(place, 11) : 0) << 21;
}

void ep_ht_mismatch(const struct ep_record *r, char *text, size_t size)
{
	static const char *const kinds[] = { "UpdateHandle", "dispatch", "combine", "nothing" };
	uint32_t its = (uint32_t)r->value, ours = (uint32_t)r->expected, differ = its ^ ours;

	if (differ & 3) {
		snprintf(text, size, "it runs %s, and we run %s", kinds[its & 3], kinds[ours & 3]);
	} else if (differ & EP_HT_FORM_BACKWARD) {
		snprintf(text, size, "its pass_direction is %s, and ours is not",
			 its & EP_HT_FORM_BACKWARD ? "BWD" : "FWD");
	} else if (differ & EP_HT_FORM_EXPERTS) {
		snprintf(text, size, "its layout is %s, and ours is not",
			 its & EP_HT_FORM_EXPERTS ? "EXPERT_MAJOR" : "FLAT");
	} else if (EP_HT_FORM_TOPK(differ)) {
		snprintf(text, size, "its handle's num_topk is %u, and ours %u",
			 EP_HT_FORM_TOPK(its), EP_HT_FORM_TOPK(ours));
	} else if (EP_HT_FORM_ROW(differ)) {
		snprintf(text, size, "%s",
			 its & 3 ? "bytes of a row or of its scales differ"
				 : "dispatch_output_per_expert_alignment differs");
	} else if (differ & EP_HT_FORM_DIRECT) {
		snprintf(text, size, "%s has its rows in a window",
			 its & EP_HT_FORM_DIRECT ? "only that rank" : "all but that rank");
	} else {
		snprintf(text, size, "its rows are at another win_offset than ours");
	}
}

/* ---- launches ---- */

static struct ep_ht_operation ep_ht_operation_of(const struct ncclEpHandle *h, enum ep_ht_kind kind)
{
	const struct ep_ht *ht = h->group->ht;

	return (struct ep_ht_operation){
		.shape = h->group->config.shape,
		.device = ht->device,
		.kind = kind,
		.layout = h->layout,
		.topk = h->topk,
		.ring_chunks = ht->areas.ring_chunks,
	};
}

static void ep_ht_common_fill(struct ep_ht_common *c, const struct ncclEpHandle *h,
			      const struct ep_ht_plan *p, uint32_t num_tokens)
{
	const struct ncclEpGroup *g = h->group;
	const struct ep_shape *shape = &g->config.shape;

	c->g = g->dev;
	c->areas = g->ht->areas;
	c->h = h->ht->dev;
	c->launch.halves = EP_HALF_SEND | EP_HALF_RECV;
	c->launch.send_blocks = p->blocks;
	c->stamp = h->ht->stamp;
	c->layout = h->layout;
	c->num_tokens = num_tokens;
	c->max_tokens = shape->max_tokens;
	c->nlocal = shape->nlocal;
	c->topk = h->topk;
	c->width = ep_ht_width(shape, h->topk);
	c->limit = shape->limit;
	c->by_local = ep_div_make(c->nlocal);
	c->by_width = ep_div_make(c->width);
}

ncclResult_t ep_ht_head_read(const struct ncclEpHandle *h, struct ep_ht_head *head,
			     cudaStream_t stream, const char *name)
{
	EP_CHECK(ep_stream_check_capture(stream, name));
	EP_CHECK(ep_query_read(head, h->ht->dev.head, sizeof(*head), stream));
	EP_CHECK(ep_record_poll(h->group));
	if (head->stamp != h->ht->stamp) {
		return ep_fail(ncclInvalidArgument,
			       "%s: handle_mem has no routing for handles like this one: call "
			       "ncclEpUpdateHandle first",
			       name);
	}
	return ncclSuccess;
}

ncclResult_t ep_ht_update(struct ncclEpHandle *h, const struct ep_view *ids,
			  const ncclEpLayoutInfo_t *info, cudaStream_t stream)
{
	struct ep_ht_operation o = ep_ht_operation_of(h, EP_HT_ROUTE);
	struct ep_ht_plan p = ep_ht_plan_make(&o);
	struct ep_ht_route_args a;

	memset(&a, 0, sizeof(a));
	EP_CHECK(ep_ht_update_check(h, info, &a));
	ep_ht_common_fill(&a.c, h, &p, (uint32_t)ids->sizes[0]);
	a.c.given_rows = EP_HT_NONE;
	a.c.form = ep_ht_form(h, EP_HT_ROUTE, false, h->ht->alignment, false, 0);
	a.topk_idx = ids->data;
	a.id_bytes = ids->elem_bytes;
	a.alignment = h->ht->alignment;
	a.drop = h->group->config.drop;
	a.by_topk = ep_div_make(h->topk);
	return ep_kernel_launch(ep_ht_kernels[EP_HT_ROUTE], &a, p.blocks, p.threads,
				(uint32_t)p.shared_bytes, stream, "launching UpdateHandle");
}

ncclResult_t ep_ht_dispatch(const struct ep_dispatch *d, cudaStream_t stream)
{
	struct ep_ht_operation o = ep_ht_operation_of(d->h, EP_HT_DISPATCH);
	bool backward = d->config.pass_direction == NCCL_EP_BWD_PASS;
	uint64_t row = (uint64_t)d->scale_bytes << 32 | d->token_bytes, place;
	struct ep_ht_dispatch_args a;
	struct ep_ht_plan p;

	memset(&a, 0, sizeof(a));
	EP_CHECK(ep_ht_dispatch_direct(d, &a, &o.direct));
	EP_CHECK(ep_ht_dispatch_check(d, &a, stream));
	o.row_bytes = d->token_bytes + d->scale_bytes;
	p = ep_ht_plan_make(&o);
	ep_ht_common_fill(&a.c, d->h, &p, d->num_tokens);
	place = d->out.tokens->win_offset * 3 + (d->scale_bytes ? d->out.scales->win_offset : 0);
	a.c.form = ep_ht_form(d->h, EP_HT_DISPATCH, backward, row, o.direct, place);
	a.tokens = d->tokens.data;
	a.scales = d->scales.data;
	a.out_tokens = d->out_tokens.data;
	a.out_scales = d->out_scales.data;
	a.token_bytes = d->token_bytes;
	a.scale_bytes = d->scale_bytes;
	a.parts = p.parts;
	a.part_bytes = p.part_bytes;
	a.stage_parts = p.stage_parts;
	a.is_direct = o.direct;
	a.lag = p.lag;
	a.by_parts = ep_div_make(p.parts);
	return ep_kernel_launch(ep_ht_kernels[EP_HT_DISPATCH], &a, p.blocks, p.threads,
				(uint32_t)p.shared_bytes, stream, "launching dispatch");
}

ncclResult_t ep_ht_combine(const struct ep_combine *c, cudaStream_t stream)
{
	struct ep_ht_operation o = ep_ht_operation_of(c->h, EP_HT_COMBINE);
	bool backward = c->config.pass_direction == NCCL_EP_BWD_PASS;
	ncclDataType_t type = c->tokens.datatype;
	enum ep_ht_dtype dtype = type == ncclBfloat16  ? EP_HT_BF16
				 : type == ncclFloat16 ? EP_HT_FP16
						       : EP_HT_FP32;
	struct ep_ht_combine_args a;
	struct ep_ht_plan p;

	memset(&a, 0, sizeof(a));
	EP_CHECK(ep_ht_combine_direct(c, &a, &o.direct));
	EP_CHECK(ep_ht_combine_check(c, &a));
	o.row_bytes = c->token_bytes;
	p = ep_ht_plan_make(&o);
	ep_ht_common_fill(&a.c, c->h, &p, c->num_tokens);
	a.c.form = ep_ht_form(c->h, EP_HT_COMBINE, backward, (uint64_t)dtype << 32 | c->token_bytes,
			      o.direct, c->in.tokens->win_offset);
	a.tokens = c->tokens.data;
	a.out_tokens = c->out_tokens.data;
	a.token_bytes = c->token_bytes;
	a.parts = p.parts;
	a.part_bytes = p.part_bytes;
	a.stage_parts = p.stage_parts;
	a.is_direct = o.direct;
	a.lag = p.lag;
	a.turns = c->h->layout == NCCL_EP_LAYOUT_FLAT ? c->h->group->config.shape.nranks - 1
						      : c->h->group->config.shape.nranks;
	a.by_parts = ep_div_make(p.parts);
	a.by_turns = ep_div_make(a.turns ? a.turns : 1);
	return ep_kernel_launch(ep_ht_kernels[EP_HT_COMBINE + dtype], &a, p.blocks, p.threads,
				(uint32_t)p.shared_bytes, stream, "launching combine");
}
