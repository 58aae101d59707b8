/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cuda.h"
#include "core/live.h"
#include "ep/call.h"
#include "ep/handle.h"
#include "ep/record.h"

ncclResult_t ep_call_begin_group(struct ep_call *call, struct ncclEpGroup *group, bool even_failed)
{
	ncclResult_t result;
	int current = -1;

	ep_error_scope(NULL);
	if (!ep_live_has(group, EP_LIVE_GROUP)) {
		return ep_fail(ncclInvalidArgument, "%s",
			       group ? "ep_group is not a group (destroyed?)" : "ep_group is NULL");
	}
	pthread_mutex_lock(&group->lock);
	ep_error_scope(&group->errors);
	call->group = group;
	call->device = -1;
	EP_CUDA_GOTO(cudaGetDevice(&current), "reading the current device", err_end);
	if (current != group->device) {
		EP_CUDA_GOTO(cudaSetDevice(group->device), "selecting the group's device", err_end);
		call->device = current;
	}
	result = ep_record_poll(group);
	if (result == ncclSuccess || even_failed) {
		return ncclSuccess;
	}
err_end:
	return ep_call_end(call, result);
}

ncclResult_t ep_handle_expect(const struct ncclEpHandle *handle)
{
	ep_error_scope(NULL);
	if (!ep_live_has(handle, EP_LIVE_HANDLE)) {
		return ep_fail(ncclInvalidArgument, "%s",
			       handle ? "handle is not a handle (destroyed?)" : "handle is NULL");
	}
	return ncclSuccess;
}

ncclResult_t ep_call_begin_handle(struct ep_call *call, struct ncclEpHandle *handle,
				  bool even_failed)
{
	EP_CHECK(ep_handle_expect(handle));
	if (!handle->group) {
		return ep_fail(ncclInvalidUsage, "the handle's group was destroyed before it: the "
						 "handle can only be destroyed");
	}
	return ep_call_begin_group(call, handle->group, even_failed);
}

ncclResult_t ep_call_end(struct ep_call *call, ncclResult_t result)
{
	if (call->device >= 0 && cudaSetDevice(call->device) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	ep_error_scope(NULL);
	pthread_mutex_unlock(&call->group->lock);
	return result;
}

ncclResult_t ep_stream_check_capture(cudaStream_t stream, const char *name)
{
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

	EP_CUDA(cudaStreamIsCapturing(stream, &status), name);
	if (status != cudaStreamCaptureStatusNone) {
		return ep_fail(ncclInvalidUsage,
			       "%s: the stream is being captured, and a graph cannot hold this "
			       "call: make it outside the capture",
			       name);
	}
	return ncclSuccess;
}
