/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles: made with or without memory of the caller, routed, asked for their routing, and
 * destroyed.
 */
#include <stdlib.h>
#include "core/process.h"
#include "core/range.h"
#include "core/registry.h"
#include "ep/ep.h"

ncclResult_t ep_handle_check(const struct ep_group_config *config, ncclEpLayout_t layout,
			     const ncclEpHandleConfig_t *handle, int num_topk)
{
	static const ncclEpHandleConfig_t automatic;
	const struct ep_limits *limits = &config->algo->limits;
	uint32_t most = (uint32_t)ep_min_u64(config->num_experts, limits->max_topk);

	if ((unsigned int)layout > 31 || !(limits->layouts >> layout & 1)) {
		return ep_fail(ncclInvalidArgument, "layout is %d: %s mode has %s", (int)layout,
			       limits->mode, limits->layout_names);
	}
	if (num_topk < 1 || (uint32_t)num_topk > most) {
		return ep_fail(ncclInvalidArgument,
			       "num_topk is %d: it is 1 to %u (%u experts, at "
			       "most %u)",
			       num_topk, most, config->num_experts, limits->max_topk);
	}
	if ((uint64_t)config->shape.max_tokens * (uint32_t)num_topk > limits->max_selections) {
		return ep_fail(ncclInvalidUsage,
			       "max_dispatch_tokens_per_rank %u times num_topk %d "
			       "exceeds %u: lower one of them",
			       config->shape.max_tokens, num_topk, limits->max_selections);
	}
	return config->algo->handle_check
		       ? config->algo->handle_check(config, layout, handle ? handle : &automatic,
						    (uint32_t)num_topk)
		       : ncclSuccess;
}

ncclResult_t ep_handle_mem_size(const struct ncclEpGroup *g, ncclEpLayout_t layout,
				const ncclEpHandleConfig_t *config, size_t *size_out, int num_topk)
{
	ncclEpHandleConfig_t own;

	EP_CHECK(EP_IMPORT_OPTIONAL(&own, config, NCCL_EP_HANDLE_CONFIG));
	if (!size_out) {
		return ep_fail(ncclInvalidArgument, "ncclEpHandleMemSize: size_out is NULL");
	}
	EP_CHECK(ep_handle_check(&g->config, layout, &own, num_topk));
	*size_out = g->config.algo->handle_bytes(&g->config.shape, layout, (uint32_t)num_topk);
	return ncclSuccess;
}

static ncclResult_t handle_mem_take(struct ncclEpHandle *handle, const ncclEpTensor_t *handle_mem)
{
	struct ep_view mem;

	EP_CHECK(ep_view_make(&mem, handle->group->comm, handle_mem, 1, "handle_mem"));
	EP_CHECK(ep_view_expect_type(&mem, ncclUint8, "handle_mem"));
	EP_CHECK(ep_view_expect_align(&mem, 16, "handle_mem"));
	if (mem.sizes[0] < handle->mem_bytes) {
		return ep_fail(ncclInvalidArgument,
			       "handle_mem has %zu bytes, ncclEpHandleMemSize returns %llu",
			       mem.sizes[0], (unsigned long long)handle->mem_bytes);
	}
	handle->mem = mem.data;
	return ncclSuccess;
}

void ep_handle_free_orphan(struct ncclEpHandle *handle)
{
	(void)(ep_registry_remove(handle, EP_REGISTRY_HANDLE) ||
	       ep_registry_remove(handle, EP_REGISTRY_MAKING));
	free(handle->ll);
	free(handle->ht);
	free(handle);
}

static void handle_enlist(struct ncclEpHandle *handle)
{
	handle->link = &handle->group->handles;
	handle->next = *handle->link;
	if (handle->next) {
		handle->next->link = &handle->next;
	}
	*handle->link = handle;
}

/* All of the handle that needs no other rank and no memory of the device. */
static ncclResult_t handle_new(struct ncclEpHandle **out, struct ncclEpGroup *g,
			       ncclEpLayout_t layout, const ncclEpHandleConfig_t *config,
			       int num_topk, const ncclEpTensor_t *handle_mem)
{
	const struct ep_algo *algo = g->config.algo;
	struct ncclEpHandle *h;

	EP_CHECK(ep_handle_check(&g->config, layout, config, num_topk));
	h = calloc(1, sizeof(*h));
	if (!h || !ep_registry_add(h, EP_REGISTRY_MAKING)) {
		free(h);
		return ep_fail(ncclSystemError, "out of host memory");
	}
	*out = h;
	h->group = g;
	h->layout = layout;
	h->topk = (uint32_t)num_topk;
	h->secret = ep_random_u64();
	h->mem_bytes = algo->handle_bytes(&g->config.shape, layout, h->topk);
	if (handle_mem) {
		EP_CHECK(handle_mem_take(h, handle_mem));
	}
	return algo->handle_open(h, config);
}

/*
 * Memory of the handle: handle_mem, or the library's if that is NULL. May enlarge the heap, and
 * then the other ranks get to know what is wrong on this one, `mine` being what is so already.
 */
static ncclResult_t handle_make(struct ncclEpHandle **out, struct ncclEpGroup *g,
				ncclEpLayout_t layout, const ncclEpHandleConfig_t *config,
				int num_topk, const ncclEpTensor_t *handle_mem, ncclResult_t mine)
{
	struct ncclEpHandle *h = NULL;
	ncclEpHandleConfig_t own;
	ncclResult_t result;
	void *mem;

	if (mine == ncclSuccess && !out) {
		mine = ep_fail(ncclInvalidArgument, "handle is NULL: pass an address for it");
	}
	if (mine == ncclSuccess) {
		mine = EP_IMPORT_OPTIONAL(&own, config, NCCL_EP_HANDLE_CONFIG);
	}
	if (mine == ncclSuccess) {
		mine = handle_new(&h, g, layout, &own, num_topk, handle_mem);
	}
	if (num_topk >= 1 && (uint32_t)num_topk <= ep_group_most_topk(&g->config)) {
		mine = ep_group_heap_reserve(g, (uint32_t)num_topk, mine);
	} else { /* whether the others exchange depends on their top-k, which this rank lacks */
		ep_group_heap_refuse(g);
	}
	EP_CHECK_GOTO(mine, err_free);
	if (!handle_mem) {
		EP_CHECK_GOTO(ep_pool_get(g, &mem, h->mem_bytes), err_free);
		h->mem = mem;
		h->mem_owned = true;
	}
	g->config.algo->handle_bind(h);
	handle_enlist(h);
	ep_registry_made(h, EP_REGISTRY_HANDLE);
	*out = h;
	return ncclSuccess;

err_free:
	if (h) {
		ep_handle_free_orphan(h);
	}
	return result;
}

ncclResult_t ep_handle_init(struct ncclEpHandle **out, struct ncclEpGroup *g, ncclEpLayout_t layout,
			    const ncclEpHandleConfig_t *config, int num_topk,
			    const ncclEpTensor_t *handle_mem)
{
	return handle_make(out, g, layout, config, num_topk, handle_mem, ncclSuccess);
}

ncclResult_t ep_handle_update(struct ncclEpHandle *handle, const ncclEpTensor_t *topk_idx,
			      const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream)
{
	uint32_t most = handle->group->config.shape.max_tokens;
	ncclEpLayoutInfo_t own;
	ncclResult_t result;
	struct ep_view ids;

	EP_CHECK(EP_IMPORT_OPTIONAL(&own, layout_info, NCCL_EP_LAYOUT_INFO));
	EP_CHECK(ep_view_make(&ids, handle->group->comm, topk_idx, 2, "topk_idx"));
	if (ids.datatype != ncclInt32 && ids.datatype != ncclInt64) {
		return ep_fail(ncclInvalidArgument,
			       "topk_idx: data type %s, it needs int32 or "
			       "int64",
			       ep_dtype_name(ids.datatype));
	}
	EP_CHECK(ep_view_expect_dim(&ids, 1, handle->topk, "the handle's num_topk", "topk_idx"));
	if (ids.sizes[0] > most) {
		return ep_fail(ncclInvalidArgument,
			       "topk_idx: %zu tokens, "
			       "max_dispatch_tokens_per_rank is %u",
			       ids.sizes[0], most);
	}
	if (ids.sizes[0] && !ep_group_sends(handle->group)) {
		const struct ep_roles *roles = &handle->group->config.shape.roles;

		return ep_fail(ncclInvalidArgument,
			       "topk_idx: %zu tokens, but of the group's roles only ranks %u to %u "
			       "may bring tokens, and this is rank %d",
			       ids.sizes[0], roles->first_sender,
			       roles->first_sender + roles->senders - 1, handle->group->rank);
	}
	EP_CHECK(ep_view_expect_align(&ids, ids.elem_bytes, "topk_idx"));
	EP_CHECK(ep_halves_check_idle(handle, "ncclEpUpdateHandle", stream));
	ep_range_begin("ncclEpUpdateHandle", ids.sizes[0], 0);
	result =
		handle->group->config.algo->update(handle, &ids, layout_info ? &own : NULL, stream);
	ep_range_end();
	EP_CHECK(result);
	ep_halves_forget(handle);
	handle->num_tokens = (uint32_t)ids.sizes[0];
	handle->routed = true;
	return ncclSuccess;
}

static void handle_free(struct ncclEpHandle *handle)
{
	if (handle->mem_owned) {
		ep_pool_put(handle->group, handle->mem, handle->mem_bytes);
	}
	handle->group->unpaired |= handle->pending || (handle->dispatched && !handle->combined);
	ep_halves_forget(handle);
	ep_handle_delist(handle);
	ep_handle_free_orphan(handle);
}

ncclResult_t ep_handle_create(struct ncclEpHandle **out, struct ncclEpGroup *g,
			      ncclEpLayout_t layout, const ncclEpTensor_t *topk_idx,
			      const ncclEpLayoutInfo_t *layout_info,
			      const ncclEpHandleConfig_t *config, cudaStream_t stream)
{
	ncclResult_t result, mine;
	ncclEpLayoutInfo_t own;
	struct ncclEpHandle *h;
	struct ep_view ids = { 0 };
	uint64_t topk;

	mine = EP_IMPORT_OPTIONAL(&own, layout_info, NCCL_EP_LAYOUT_INFO);
	result = ep_view_make(&ids, g->comm, topk_idx, 2, "topk_idx");
	mine = mine == ncclSuccess ? result : mine;
	topk = ids.sizes ? ep_min_u64(ids.sizes[1], INT32_MAX) : 0;
	EP_CHECK(handle_make(out ? &h : NULL, g, layout, config, (int)topk, NULL, mine));
	result = ep_handle_update(h, topk_idx, layout_info, stream);
	if (result != ncclSuccess) {
		handle_free(h);
		return result;
	}
	*out = h;
	return ncclSuccess;
}

ncclResult_t ep_handle_arrivals(struct ncclEpHandle *handle, void *arrivals, size_t *bytes,
				cudaStream_t stream)
{
	static const char name[] = "ncclEpExtStartArrivals";
	const struct ep_algo *algo = handle->group->config.algo;

	if (!algo->arrivals) {
		return ep_fail(ncclInvalidUsage,
			       "%s: the group is in %s mode, and only high "
			       "throughput has arrivals",
			       name, algo->limits.mode);
	}
	if (!bytes) {
		return ep_fail(ncclInvalidArgument, EP_CALL_NO_POINTER, name, "bytes");
	}
	EP_CHECK(ep_handle_check_routed(handle, name));
	return algo->arrivals(handle, arrivals, bytes, stream);
}

ncclResult_t ep_handle_destroy(struct ncclEpHandle *handle)
{
	if (!handle->group->failed) {
		EP_CHECK(ep_halves_check_received(handle, "ncclEpHandleDestroy"));
	}
	handle_free(handle);
	return ncclSuccess;
}

/* ---- operations ---- */

ncclResult_t ep_handle_check_routed(const struct ncclEpHandle *handle, const char *name)
{
	if (handle->routed || (!handle->mem_owned && !handle->group->config.algo->limits.halves)) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidArgument,
		       "%s: the handle has no routing: call ncclEpUpdateHandle first", name);
}

ncclResult_t ep_handle_check_tokens(const struct ncclEpHandle *handle, const struct ep_view *view,
				    uint32_t *num_tokens, const char *name)
{
	uint32_t most = handle->group->config.shape.max_tokens;

	if (handle->routed) {
		*num_tokens = handle->num_tokens;
		return ep_view_expect_dim(view, 0, handle->num_tokens,
					  "tokens of the handle's topk_idx", name);
	}
	if (view->sizes[0] > most) {
		return ep_fail(ncclInvalidArgument,
			       "%s: %zu tokens, max_dispatch_tokens_per_rank is %u", name,
			       view->sizes[0], most);
	}
	*num_tokens = (uint32_t)view->sizes[0];
	return ncclSuccess;
}

#define EP_RECEIPT_TOKEN_BITS 16 /* limits.max_tokens where operations have halves */

uint64_t ep_handle_receipt_id(const struct ncclEpHandle *handle, uint32_t num_tokens)
{
	return handle->secret << EP_RECEIPT_TOKEN_BITS | num_tokens;
}

bool ep_handle_receipt_mine(const struct ncclEpHandle *handle, const struct ep_dev_receipt *receipt)
{
	return (receipt->id ^ ep_handle_receipt_id(handle, 0)) >> EP_RECEIPT_TOKEN_BITS == 0;
}

ncclResult_t ep_received_expect(const struct ep_received *received, const struct ep_view *view,
				const char *name)
{
	for (unsigned int i = 0; i < received->ndim; i++) {
		if (received->meaning[i]) {
			EP_CHECK(ep_view_expect_dim(view, i, received->extent[i],
						    received->meaning[i], name));
		}
	}
	return ncclSuccess;
}
