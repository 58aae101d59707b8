/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that fail: masks and the error flag of a group. */
#include "core/cuda.h"
#include "core/log.h"
#include "ep/group.h"

/* Begins one of the five calls: the group must have been created with masks. */
static ncclResult_t ep_mask_enter(struct ep_call *call, struct ncclEpGroup *group, bool even_failed,
				  const void *pointer, const char *name)
{
	ncclResult_t result;

	EP_CHECK(ep_group_enter(call, group, even_failed));
	if (!group->config.enable_mask) {
		result = ep_fail(ncclInvalidUsage, "%s: the group was created without enable_mask",
				 name);
	} else if (!pointer) {
		result = ep_fail(ncclInvalidArgument, "%s: the pointer argument is NULL", name);
	} else {
		return ncclSuccess;
	}
	ep_group_leave(call);
	return result;
}

ncclResult_t ncclEpMaskQuery(ncclEpGroup_t ep_group, int *mask, cudaStream_t stream)
{
	ncclResult_t result = ncclSuccess;
	struct ep_call call;

	EP_CHECK(ep_mask_enter(&call, ep_group, true, mask, "ncclEpMaskQuery"));
	EP_CUDA_GOTO(cudaMemcpyAsync(mask, ep_group->mask, 4 * (size_t)ep_group->nranks,
				     cudaMemcpyDeviceToDevice, stream),
		     "ncclEpMaskQuery: copying to mask, which must be device memory", out);
out:
	ep_group_leave(&call);
	return result;
}

ncclResult_t ncclEpMaskUpdate(ncclEpGroup_t ep_group, const int *mask, cudaStream_t stream)
{
	ncclResult_t result = ncclSuccess;
	struct ep_call call;

	EP_CHECK(ep_mask_enter(&call, ep_group, false, mask, "ncclEpMaskUpdate"));
	for (int r = 0; r < ep_group->nranks; r++) {
		if (mask[r] != 0 && mask[r] != 1) {
			result = ep_fail(ncclInvalidArgument,
					 "ncclEpMaskUpdate: mask[%d] is %d: 1 "
					 "means active, 0 masked",
					 r, mask[r]);
			goto out;
		}
	}
	EP_CUDA_GOTO(cudaMemcpyAsync(ep_group->mask, mask, 4 * (size_t)ep_group->nranks,
				     cudaMemcpyHostToDevice, stream),
		     "ncclEpMaskUpdate: copying from mask, which must be host memory", out);
	EP_CUDA_GOTO(cudaMemcpyAsync(ep_mask_ignored(ep_group->mask, (uint32_t)ep_group->nranks),
				     (char *)ep_group->peer_heap.base[ep_group->rank] +
					     ep_group->heap.progress_off,
				     8 * (size_t)ep_group->nranks, cudaMemcpyDeviceToDevice,
				     stream),
		     "ncclEpMaskUpdate: what ranks have told", out);
out:
	ep_group_leave(&call);
	return result;
}

/* Ranks that a clean-up has not brought back. */
static ncclResult_t ep_mask_tell_missing(struct ncclEpGroup *g, cudaStream_t stream)
{
	int32_t mask[EP_GROUP_MAX_RANKS];
	char link[420];

	EP_CUDA(cudaMemcpyAsync(mask, g->mask, 4 * (size_t)g->nranks, cudaMemcpyDeviceToHost,
				stream),
		"ncclEpMaskClean: reading the mask");
	EP_CUDA(cudaStreamSynchronize(stream), "ncclEpMaskClean: reading the mask");
	for (int r = 0; r < g->nranks; r++) {
		if (mask[r]) {
			continue;
		}
		ep_net_explain(g, (uint32_t)r, link, sizeof(link));
		if (link[0]) {
			EP_WARN("ncclEpMaskClean: rank %d stays masked, its connection with rank "
				"%d is lost%s; only a new group brings it back",
				r, g->rank, link);
		} else {
			EP_WARN("ncclEpMaskClean: rank %d stays masked: it did not call within "
				"%llu ms (then all ranks have to call once more), or has lost the "
				"connection with rank %d, as its own log says (then only a new "
				"group helps)",
				r, (unsigned long long)(g->config.timeout_ns / 1000000), g->rank);
		}
	}
	return ncclSuccess;
}

ncclResult_t ncclEpMaskClean(ncclEpGroup_t ep_group, cudaStream_t stream)
{
	ncclResult_t result;
	struct ep_call call;

	EP_CHECK(ep_mask_enter(&call, ep_group, false, "", "ncclEpMaskClean"));
	if (ep_group->pending) {
		result = ep_fail(ncclInvalidUsage,
				 "ncclEpMaskClean: %u send_only operations are "
				 "pending: complete them first",
				 ep_group->pending);
		goto out;
	}
	EP_CHECK_GOTO(ep_stream_check_capture(stream, "ncclEpMaskClean"), out);
	EP_CHECK_GOTO(ep_ll_clean_launch(ep_group, stream), out);
	EP_CUDA_GOTO(cudaStreamSynchronize(stream), "ncclEpMaskClean: waiting for the stream", out);
	result = ep_record_poll(ep_group);
	if (result == ncclSuccess) {
		result = ep_mask_tell_missing(ep_group, stream);
	}
out:
	ep_group_leave(&call);
	return result;
}

ncclResult_t ncclEpGetAsyncError(ncclEpGroup_t ep_group, int *error)
{
	struct ep_call call;

	EP_CHECK(ep_mask_enter(&call, ep_group, true, error, "ncclEpGetAsyncError"));
	*error = ep_group->failed || __atomic_load_n(ep_group->async_error, __ATOMIC_ACQUIRE) != 0;
	ep_group_leave(&call);
	return ncclSuccess;
}

ncclResult_t ncclEpErrorClear(ncclEpGroup_t ep_group)
{
	struct ep_call call;

	EP_CHECK(ep_mask_enter(&call, ep_group, false, "", "ncclEpErrorClear"));
	__atomic_store_n(ep_group->async_error, 0, __ATOMIC_RELEASE);
	ep_group_leave(&call);
	return ncclSuccess;
}
