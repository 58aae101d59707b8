/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include "core/bootstrap.h"
#include "core/cuda.h"
#include "core/idle.h"
#include "core/log.h"
#include "ep/group.h"
#include "ep/struct.h"
#include "ep/tensor.h"
#include "gda/gda.h"

ncclResult_t ep_handle_check(const struct ep_group_config *config, ncclEpLayout_t layout,
			     int num_topk)
{
	uint32_t most = (uint32_t)ep_min_u64(config->num_experts, EP_LL_MAX_TOPK);

	if (layout != NCCL_EP_LAYOUT_EXPERT_MAJOR && layout != NCCL_EP_LAYOUT_RANK_MAJOR) {
		return ep_fail(ncclInvalidArgument,
			       "layout is %d: low latency mode has "
			       "NCCL_EP_LAYOUT_EXPERT_MAJOR and NCCL_EP_LAYOUT_RANK_MAJOR",
			       (int)layout);
	}
	if (num_topk < 1 || (uint32_t)num_topk > most) {
		return ep_fail(ncclInvalidArgument,
			       "num_topk is %d: it is 1 to %u (%u experts, at "
			       "most %d)",
			       num_topk, most, config->num_experts, EP_LL_MAX_TOPK);
	}
	if (config->num_topk && (uint32_t)num_topk > config->num_topk) {
		return ep_fail(ncclInvalidUsage,
			       "num_topk is %d, the group was created for at most "
			       "%u: raise num_topk in its config",
			       num_topk, config->num_topk);
	}
	if ((uint64_t)config->shape.max_tokens * (uint32_t)num_topk > EP_LL_MAX_INDEX) {
		return ep_fail(ncclInvalidUsage,
			       "max_dispatch_tokens_per_rank %u times num_topk %d "
			       "exceeds %d: lower one of them",
			       config->shape.max_tokens, num_topk, EP_LL_MAX_INDEX);
	}
	return ncclSuccess;
}

static ncclResult_t ep_handle_config_check(const ncclEpHandleConfig_t *config)
{
	ncclEpHandleConfig_t own;

	return EP_IMPORT_OPTIONAL(&own, config, NCCL_EP_HANDLE_CONFIG);
}

ncclResult_t ncclEpHandleMemSize(ncclEpGroup_t ep_group, ncclEpLayout_t layout,
				 const ncclEpHandleConfig_t *config, size_t *size_out, int num_topk)
{
	struct ep_call call;
	ncclResult_t result;

	EP_CHECK(ep_group_enter(&call, ep_group, false));
	EP_CHECK_GOTO(ep_handle_config_check(config), out);
	if (!size_out) {
		result = ep_fail(ncclInvalidArgument, "ncclEpHandleMemSize: size_out is NULL");
		goto out;
	}
	EP_CHECK_GOTO(ep_handle_check(&ep_group->config, layout, num_topk), out);
	*size_out =
		ep_ll_handle_layout_make(&ep_group->config.shape, layout, (uint32_t)num_topk).bytes;
out:
	ep_group_leave(&call);
	return result;
}

/* Replaces the heap by one for handles of `topk`. Collective. The old one serves until the end. */
static ncclResult_t ep_group_grow(struct ncclEpGroup *g, uint32_t topk)
{
	struct ep_ll_heap heap = ep_ll_heap_make(&g->config.shape, topk);
	uint64_t timeout_ns = (uint64_t)g->params.value[EP_PARAM_BOOTSTRAP_TIMEOUT_MS] * 1000000;
	ncclResult_t result = ncclSuccess;
	struct ep_heap grown;
	struct ep_boot boot;
	cudaError_t err;

	EP_CHECK(ep_boot_open(&boot, g->comm, timeout_ns));
	err = ep_device_wait(g->device, timeout_ns);
	if (err == cudaErrorNotReady) {
		result = ep_fail(ncclSystemError,
				 "a handle of top-%u needs a larger heap: rank %d's GPU is still "
				 "busy after %llu ms, and the old heap may be in use; see what "
				 "does not end on it. NCCL_EP_BOOTSTRAP_TIMEOUT_MS sets the limit",
				 topk, g->rank, (unsigned long long)(timeout_ns / 1000000));
	} else if (err != cudaSuccess) {
		result = ep_fail_cuda(err, "waiting for the group's operations");
	} else {
		result = ep_net_drain(g, false, ep_min_u64(timeout_ns, g->config.timeout_ns));
	}
	EP_CHECK_GOTO(ep_heap_open(&grown, &boot, g->idents, g->peer_heap.team, heap.bytes, result),
		      out);
	/* All ranks have come here, so that nothing is on its way to the old memory. */
	if (g->remote) {
		ep_gda_unbind(g->gda);
	}
	result = ep_net_bind(g, &boot, &grown, &heap);
	if (result != ncclSuccess) {
		g->failed = true; /* remote ranks can write neither */
		ep_error_get(NULL, &g->failure);
		ep_heap_close(&grown, &boot);
		goto out;
	}
	EP_INFO(EP_LOG_INIT, "group %p rank %d: heap grows to %llu bytes for top-%u", (void *)g,
		g->rank, (unsigned long long)grown.bytes, topk);
	ep_heap_close(&g->peer_heap, &boot);
	g->peer_heap = grown;
	g->heap = heap;
	ep_group_dev_fill(g);
out:
	if (err != cudaErrorNotReady) { /* freeing waits for the device: rather leave a few KiB */
		ep_boot_close(&boot);
	}
	if (boot.stuck) {
		/* The device is not idle until the communicator is aborted: do not come here again. */
		g->failed = true;
		ep_error_get(NULL, &g->failure);
	}
	return result;
}

ncclResult_t ep_group_heap_bytes(const struct ep_group_config *config, uint32_t topk,
				 uint64_t *bytes)
{
	uint64_t need = ep_ll_heap_make(&config->shape, topk).bytes;

	if (topk <= config->heap.topk) {
		*bytes = config->heap_bytes;
		return ncclSuccess;
	}
	if (config->explicit_bytes) {
		return ep_fail(
			ncclInvalidUsage,
			"rdma_buffer_size is %llu bytes, a handle of top-%u needs %llu: raise "
			"it, or set NCCL_EP_AUTO",
			(unsigned long long)config->explicit_bytes, topk, (unsigned long long)need);
	}
	*bytes = ep_heap_alloc_bytes(need);
	return ncclSuccess;
}

/* Makes sure that handles of `topk` fit the heap. */
static ncclResult_t ep_group_reserve(struct ncclEpGroup *g, uint32_t topk)
{
	uint64_t bytes;

	if (topk <= g->heap.topk) {
		return ncclSuccess;
	}
	EP_CHECK(ep_group_heap_bytes(&g->config, topk, &bytes));
	if (g->pending) {
		return ep_fail(
			ncclInvalidUsage,
			"the group's buffer must grow for a handle of top-%u, but %u send_only "
			"operations are pending: complete them first, or create the group "
			"with num_topk = %u",
			topk, g->pending, topk);
	}
	return ep_group_grow(g, topk);
}

static ncclResult_t ep_handle_mem_take(struct ncclEpHandle *h, const ncclEpTensor_t *handle_mem)
{
	struct ep_view mem;

	EP_CHECK(ep_view_make(&mem, h->group->comm, handle_mem, 1, "handle_mem"));
	EP_CHECK(ep_view_expect_type(&mem, ncclUint8, "handle_mem"));
	EP_CHECK(ep_view_expect_align(&mem, 16, "handle_mem"));
	if (mem.sizes[0] < h->mem_bytes) {
		return ep_fail(ncclInvalidArgument,
			       "handle_mem has %zu bytes, ncclEpHandleMemSize says %llu",
			       mem.sizes[0], (unsigned long long)h->mem_bytes);
	}
	h->mem = mem.data;
	return ncclSuccess;
}

static ncclResult_t ep_handle_make(struct ncclEpHandle **out, struct ncclEpGroup *g,
				   ncclEpLayout_t layout, int num_topk,
				   const ncclEpTensor_t *handle_mem)
{
	struct ncclEpHandle *h;
	ncclResult_t result;
	void *mem;

	EP_CHECK(ep_handle_check(&g->config, layout, num_topk));
	h = calloc(1, sizeof(*h));
	if (!h) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	h->magic = EP_HANDLE_MAGIC;
	h->group = g;
	h->layout = (uint32_t)layout;
	h->topk = (uint32_t)num_topk;
	h->mem_layout = ep_ll_handle_layout_make(&g->config.shape, h->layout, h->topk);
	h->mem_bytes = h->mem_layout.bytes;
	if (handle_mem) {
		EP_CHECK_GOTO(ep_handle_mem_take(h, handle_mem), err_free);
	}
	EP_CHECK_GOTO(ep_ll_allow_shared(g, h->topk), err_free);
	EP_CHECK_GOTO(ep_group_reserve(g, h->topk), err_free);
	if (!handle_mem) {
		EP_CHECK_GOTO(ep_pool_get(g, &mem, h->mem_bytes), err_free);
		h->mem = mem;
		h->mem_owned = true;
	}
	ep_ll_handle_fill(h);
	g->handles++;
	*out = h;
	return ncclSuccess;

err_free:
	free(h);
	return result;
}

ncclResult_t ncclEpInitHandle(ncclEpHandle_t *handle, ncclEpGroup_t ep_group, ncclEpLayout_t layout,
			      const ncclEpHandleConfig_t *config, int num_topk,
			      const ncclEpTensor_t *handle_mem)
{
	struct ep_call call;
	ncclResult_t result;

	ep_error_scope(NULL);
	if (!handle) {
		return ep_fail(ncclInvalidArgument, "handle is NULL: pass an address for it");
	}
	*handle = NULL;
	EP_CHECK(ep_group_enter(&call, ep_group, false));
	EP_CHECK_GOTO(ep_handle_config_check(config), out);
	result = ep_handle_make(handle, ep_group, layout, num_topk, handle_mem);
out:
	ep_group_leave(&call);
	return result;
}

static ncclResult_t ep_handle_route(struct ncclEpHandle *h, const ncclEpTensor_t *topk_idx,
				    const ncclEpLayoutInfo_t *layout_info)
{
	uint32_t most = h->group->config.shape.max_tokens;
	struct ep_view ids;

	if (layout_info) {
		return ep_fail(ncclInvalidArgument, "layout_info must be NULL here in low latency "
						    "mode: pass it to ncclEpDispatch");
	}
	EP_CHECK(ep_view_make(&ids, h->group->comm, topk_idx, 2, "topk_idx"));
	if (ids.datatype != ncclInt32 && ids.datatype != ncclInt64) {
		return ep_fail(ncclInvalidArgument,
			       "topk_idx: data type %s, it needs int32 or "
			       "int64",
			       ep_dtype_name(ids.datatype));
	}
	EP_CHECK(ep_view_expect_dim(&ids, 1, h->topk, "the handle's num_topk", "topk_idx"));
	if (ids.sizes[0] > most) {
		return ep_fail(ncclInvalidArgument,
			       "topk_idx: %zu tokens, "
			       "max_dispatch_tokens_per_rank is %u",
			       ids.sizes[0], most);
	}
	EP_CHECK(ep_view_expect_align(&ids, ids.elem_bytes, "topk_idx"));
	if (h->pending) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpUpdateHandle: a send_only %s of this handle "
			       "is pending: call ncclEpComplete first",
			       h->pending == EP_PENDING_DISPATCH ? "dispatch" : "combine");
	}
	h->topk_idx = ids.data;
	h->id_bytes = ids.elem_bytes;
	h->num_tokens = (uint32_t)ids.sizes[0];
	h->routed = true;
	h->dispatched = false;
	return ncclSuccess;
}

/* Only its validity matters before anything else: low latency takes none here. */
static ncclResult_t ep_layout_info_check(const ncclEpLayoutInfo_t *layout_info)
{
	ncclEpLayoutInfo_t own;

	return EP_IMPORT_OPTIONAL(&own, layout_info, NCCL_EP_LAYOUT_INFO);
}

ncclResult_t ncclEpUpdateHandle(ncclEpHandle_t handle, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream)
{
	struct ep_call call;
	ncclResult_t result;

	EP_CHECK(ep_handle_enter(&call, handle, false));
	EP_CHECK_GOTO(ep_layout_info_check(layout_info), out);
	result = ep_handle_route(handle, topk_idx, layout_info);
out:
	ep_group_leave(&call);
	return result;
}

static void ep_handle_free(struct ncclEpHandle *h)
{
	struct ncclEpGroup *g = h->group;

	if (h->mem_owned) {
		ep_pool_put(g, h->mem, h->mem_bytes);
	}
	if (h->pending) {
		g->pending--;
	}
	g->handles--;
	h->magic = 0;
	free(h);
}

ncclResult_t ncclEpCreateHandle(ncclEpHandle_t *handle, ncclEpGroup_t ep_group,
				ncclEpLayout_t layout, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info,
				const ncclEpHandleConfig_t *config, cudaStream_t stream)
{
	struct ncclEpHandle *h = NULL;
	struct ep_view ids;
	struct ep_call call;
	ncclResult_t result;

	ep_error_scope(NULL);
	EP_CHECK(ep_layout_info_check(layout_info));
	if (!handle) {
		return ep_fail(ncclInvalidArgument, "handle is NULL: pass an address for it");
	}
	*handle = NULL;
	EP_CHECK(ep_group_enter(&call, ep_group, false));
	EP_CHECK_GOTO(ep_handle_config_check(config), out);
	EP_CHECK_GOTO(ep_view_make(&ids, ep_group->comm, topk_idx, 2, "topk_idx"), out);
	EP_CHECK_GOTO(ep_handle_make(&h, ep_group, layout, (int)ep_min_u64(ids.sizes[1], INT32_MAX),
				     NULL),
		      out);
	result = ep_handle_route(h, topk_idx, layout_info);
	if (result != ncclSuccess) {
		ep_handle_free(h);
		goto out;
	}
	*handle = h;
out:
	ep_group_leave(&call);
	return result;
}

ncclResult_t ncclEpHandleDestroy(ncclEpHandle_t handle)
{
	ncclResult_t result = ncclSuccess;
	struct ep_call call;

	ep_error_scope(NULL);
	if (!handle) {
		return ncclSuccess;
	}
	EP_CHECK(ep_handle_enter(&call, handle, true));
	if (handle->pending && !call.group->failed) {
		result = ep_fail(ncclInvalidUsage,
				 "ncclEpHandleDestroy: a send_only %s of this "
				 "handle is pending: call ncclEpComplete first",
				 handle->pending == EP_PENDING_DISPATCH ? "dispatch" : "combine");
	} else {
		ep_handle_free(handle);
	}
	ep_group_leave(&call);
	return result;
}
