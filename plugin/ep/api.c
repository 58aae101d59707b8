/* SPDX-License-Identifier: Apache-2.0 */
/* Every public call: it enters the group, has another file do the work, and leaves. */
#include "ep/ep.h"

ncclResult_t ncclEpGetVersion(int *version)
{
	ep_error_scope(NULL);
	if (!version) {
		return ep_fail(ncclInvalidArgument, "ncclEpGetVersion: version is NULL");
	}
	*version = NCCL_EP_VERSION_CODE;
	return ncclSuccess;
}

ncclResult_t ncclEpExtVersion(const char **text)
{
	ep_error_scope(NULL);
	return ep_version_text(text);
}

/* ---- tensors ---- */

ncclResult_t ncclEpTensorAlloc(ncclEpTensor_t **tensor, unsigned int ndim, ncclDataType_t datatype,
			       const size_t *sizes, const ncclEpTensorAllocConfig_t *config)
{
	ep_error_scope(NULL);
	return ep_tensor_alloc(tensor, ndim, datatype, sizes, config);
}

ncclResult_t ncclEpTensorDestroy(ncclEpTensor_t *tensor)
{
	ep_error_scope(NULL);
	return tensor ? ep_tensor_destroy(tensor) : ncclSuccess;
}

/*
 * A capture that is under way forbids this thread, or all threads, to allocate memory, and is void
 * if one does: unless the thread is in relaxed mode. To end, call it again with what it returns.
 */
static enum cudaStreamCaptureMode capture_mode(enum cudaStreamCaptureMode mode)
{
	if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	return mode;
}

/* ---- groups ---- */

static ncclResult_t create_group(ncclEpGroup_t *ep_group, ncclComm_t comm,
				 const ncclEpGroupConfig_t *config, const ncclEpExtRoles_t *roles,
				 enum ep_part part)
{
	enum cudaStreamCaptureMode mode;
	ncclResult_t result;

	ep_error_scope(NULL);
	mode = capture_mode(cudaStreamCaptureModeRelaxed);
	result = ep_group_create(ep_group, comm, config, roles, part);
	capture_mode(mode);
	return result;
}

ncclResult_t ncclEpExtCreateGroup(ncclEpGroup_t *ep_group, ncclComm_t comm,
				  const ncclEpGroupConfig_t *config, const ncclEpExtRoles_t *roles)
{
	return create_group(ep_group, comm, config, roles, EP_PART_CREATE);
}

ncclResult_t ncclEpExtJoinGroup(ncclEpGroup_t *ep_group, ncclComm_t comm,
				const ncclEpGroupConfig_t *config, const ncclEpExtRoles_t *roles)
{
	return create_group(ep_group, comm, config, roles, EP_PART_JOIN);
}

ncclResult_t ncclEpCreateGroup(ncclEpGroup_t *ep_group, ncclComm_t comm,
			       const ncclEpGroupConfig_t *config)
{
	return ncclEpExtCreateGroup(ep_group, comm, config, NULL);
}

ncclResult_t ncclEpGroupDestroy(ncclEpGroup_t ep_group)
{
	struct ep_call call;

	if (!ep_group) {
		return ncclSuccess;
	}
	EP_CHECK(ep_call_begin_end(&call, ep_group));
	ep_show_begin(&call, EP_BOARD_DESTROY_GROUP, NULL, NULL);
	return ep_group_destroy(&call);
}

/* ---- handles ---- */

ncclResult_t ncclEpHandleMemSize(ncclEpGroup_t ep_group, ncclEpLayout_t layout,
				 const ncclEpHandleConfig_t *config, size_t *size_out, int num_topk)
{
	struct ep_call call;

	EP_CHECK(ep_call_begin_group_host(&call, ep_group, false));
	return ep_call_end(&call, ep_handle_mem_size(ep_group, layout, config, size_out, num_topk));
}

ncclResult_t ncclEpInitHandle(ncclEpHandle_t *handle, ncclEpGroup_t ep_group, ncclEpLayout_t layout,
			      const ncclEpHandleConfig_t *config, int num_topk,
			      const ncclEpTensor_t *handle_mem)
{
	enum cudaStreamCaptureMode mode;
	struct ep_call call;
	ncclResult_t result;

	EP_CHECK(ep_call_begin_group(&call, ep_group, false));
	ep_show_begin(&call, EP_BOARD_INIT_HANDLE, NULL, NULL);
	mode = capture_mode(cudaStreamCaptureModeRelaxed);
	result = ep_handle_init(handle, ep_group, layout, config, num_topk, handle_mem);
	capture_mode(mode);
	return ep_call_end(&call, result);
}

ncclResult_t ncclEpUpdateHandle(ncclEpHandle_t handle, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(ep_call_begin_handle(&call, handle, false));
	ep_show_begin(&call, EP_BOARD_UPDATE_HANDLE, handle, stream);
	return ep_call_end(&call, ep_handle_update(handle, topk_idx, layout_info, stream));
}

ncclResult_t ncclEpCreateHandle(ncclEpHandle_t *handle, ncclEpGroup_t ep_group,
				ncclEpLayout_t layout, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info,
				const ncclEpHandleConfig_t *config, cudaStream_t stream)
{
	enum cudaStreamCaptureMode mode;
	struct ep_call call;
	ncclResult_t result;

	EP_CHECK(ep_call_begin_group(&call, ep_group, false));
	ep_show_begin(&call, EP_BOARD_CREATE_HANDLE, NULL, stream);
	mode = capture_mode(cudaStreamCaptureModeRelaxed);
	result = ep_handle_create(handle, ep_group, layout, topk_idx, layout_info, config, stream);
	capture_mode(mode);
	return ep_call_end(&call, result);
}

ncclResult_t ncclEpHandleDestroy(ncclEpHandle_t handle)
{
	struct ep_call call;

	ep_error_scope(NULL);
	if (!handle) {
		return ncclSuccess;
	}
	EP_CHECK(ep_handle_expect(handle));
	if (!handle->group) {
		ep_handle_free_orphan(handle);
		return ncclSuccess;
	}
	EP_CHECK(ep_call_begin_handle_host(&call, handle, true));
	ep_show_begin(&call, EP_BOARD_DESTROY_HANDLE, handle, NULL);
	return ep_call_end(&call, ep_handle_destroy(handle));
}

/* ---- operations ---- */

ncclResult_t ncclEpDispatch(ncclEpHandle_t handle, const ncclEpDispatchInputs_t *inputs,
			    const ncclEpDispatchOutputs_t *outputs,
			    const ncclEpLayoutInfo_t *layout_info,
			    const ncclEpDispatchConfig_t *config, cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(ep_call_begin_handle(&call, handle, false));
	ep_show_begin(&call, EP_BOARD_DISPATCH, handle, stream);
	return ep_call_end(&call,
			   ep_dispatch_run(handle, inputs, outputs, layout_info, config, stream));
}

ncclResult_t ncclEpCombine(ncclEpHandle_t handle, const ncclEpCombineInputs_t *inputs,
			   const ncclEpCombineOutputs_t *outputs,
			   const ncclEpCombineConfig_t *config, cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(ep_call_begin_handle(&call, handle, false));
	ep_show_begin(&call, EP_BOARD_COMBINE, handle, stream);
	return ep_call_end(&call, ep_combine_run(handle, inputs, outputs, config, stream));
}

ncclResult_t ncclEpComplete(ncclEpHandle_t handle, const ncclEpCompleteConfig_t *config,
			    cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(ep_call_begin_handle(&call, handle, false));
	ep_show_begin(&call, EP_BOARD_COMPLETE, handle, stream);
	return ep_call_end(&call, ep_halves_complete(handle, config, stream));
}

/* ---- ranks that fail ---- */

/* Begins a call on a mask: the group must have been created with masks. */
static ncclResult_t call_begin_masked(struct ep_call *call, struct ncclEpGroup *group,
				      bool even_failed, const void *pointer, const char *name)
{
	EP_CHECK(ep_call_begin_group(call, group, even_failed));
	if (!group->config.enable_mask) {
		return ep_call_end(call, ep_fail(ncclInvalidUsage, EP_CALL_NO_MASK, name));
	}
	if (!pointer) {
		return ep_call_end(call,
				   ep_fail(ncclInvalidArgument, EP_CALL_NO_POINTER, name, "mask"));
	}
	return ncclSuccess;
}

ncclResult_t ncclEpMaskQuery(ncclEpGroup_t ep_group, int *mask, cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(call_begin_masked(&call, ep_group, true, mask, "ncclEpMaskQuery"));
	ep_show_begin(&call, EP_BOARD_MASK_QUERY, NULL, stream);
	return ep_call_end(&call, ep_mask_query(ep_group, mask, stream));
}

ncclResult_t ncclEpMaskUpdate(ncclEpGroup_t ep_group, const int *mask, cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(call_begin_masked(&call, ep_group, false, mask, "ncclEpMaskUpdate"));
	ep_show_begin(&call, EP_BOARD_MASK_UPDATE, NULL, stream);
	return ep_call_end(&call, ep_mask_update(ep_group, mask, stream));
}

ncclResult_t ncclEpMaskClean(ncclEpGroup_t ep_group, cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(call_begin_masked(&call, ep_group, false, "", "ncclEpMaskClean"));
	ep_show_begin(&call, EP_BOARD_MASK_CLEAN, NULL, stream);
	return ep_call_end(&call, ep_mask_clean(ep_group, stream));
}

ncclResult_t ncclEpExtReplaceRanks(ncclEpGroup_t ep_group, ncclComm_t comm)
{
	enum cudaStreamCaptureMode mode;
	struct ep_call call;
	ncclResult_t result;

	EP_CHECK(ep_call_begin_group(&call, ep_group, false));
	ep_show_begin(&call, EP_BOARD_REPLACE_RANKS, NULL, NULL);
	mode = capture_mode(cudaStreamCaptureModeRelaxed);
	result = ep_group_replace(ep_group, comm);
	capture_mode(mode);
	return ep_call_end(&call, result);
}

ncclResult_t ncclEpGetAsyncError(ncclEpGroup_t ep_group, int *error)
{
	return ep_call_async_error(ep_group, error);
}

ncclResult_t ncclEpErrorClear(ncclEpGroup_t ep_group)
{
	struct ep_call call;

	EP_CHECK(ep_call_begin_group_host(&call, ep_group, false));
	if (!ep_group->config.enable_mask) {
		return ep_call_end(&call,
				   ep_fail(ncclInvalidUsage, EP_CALL_NO_MASK, "ncclEpErrorClear"));
	}
	__atomic_store_n(ep_group->async_error, 0, __ATOMIC_RELEASE);
	return ep_call_end(&call, ncclSuccess);
}

/* ---- beyond the NCCL EP API ---- */

ncclResult_t ncclEpExtGetLastError(ncclEpGroup_t ep_group, ncclResult_t *code, const char **text)
{
	struct ep_call call;

	if (!ep_group) {
		return ep_query_error(NULL, code, text);
	}
	EP_CHECK(ep_call_begin_group_host(&call, ep_group, true));
	return ep_call_end(&call, ep_query_error(&ep_group->errors, code, text));
}

ncclResult_t ncclEpExtDeviceMemory(const ncclEpGroupConfig_t *config, int nranks,
				   ncclEpLayout_t layout, int num_topk, ncclEpExtMemory_t *memory)
{
	ep_error_scope(NULL);
	return ep_query_memory(config, nranks, layout, num_topk, memory);
}

ncclResult_t ncclEpExtFeasible(const ncclEpGroupConfig_t *config, int nranks,
			       ncclEpExtShape_t *shape)
{
	ep_error_scope(NULL);
	return ep_feasible(config, nranks, shape);
}

ncclResult_t ncclEpExtNumRecvTokens(ncclEpHandle_t handle, uint64_t *tokens, uint64_t *rows,
				    cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(ep_call_begin_handle(&call, handle, false));
	return ep_call_end(&call, ep_query_received(handle, tokens, rows, stream));
}

ncclResult_t ncclEpExtAddExpertRows(ncclEpHandle_t handle, uint64_t *rows, cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(ep_call_begin_handle(&call, handle, false));
	return ep_call_end(&call, ep_query_expert_rows(handle, rows, stream));
}

ncclResult_t ncclEpExtStartArrivals(ncclEpHandle_t handle, ncclEpExtArrivals_t *arrivals,
				    size_t *bytes, cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(ep_call_begin_handle(&call, handle, false));
	return ep_call_end(&call, ep_handle_arrivals(handle, arrivals, bytes, stream));
}

ncclResult_t ncclEpExtPeerStats(ncclEpGroup_t ep_group, ncclEpExtPeerStats_t *stats, int count,
				cudaStream_t stream)
{
	struct ep_call call;

	EP_CHECK(ep_call_begin_group(&call, ep_group, true));
	return ep_call_end(&call, ep_query_stats(ep_group, stats, count, stream));
}
