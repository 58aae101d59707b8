/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host counts halves that run as they are called. Of a captured half the host does not know
 * whether its graph runs, or how often. So it counts there only inside that capture, where the
 * halves of an operation must pair. Beyond that the device knows: kernels refuse a half that finds
 * no bank, or nothing to receive.
 */
#include <string.h>
#include "core/cuda.h"
#include "core/range.h"
#include "ep/ep.h"

static const char *halves_kind(const struct ncclEpHandle *handle)
{
	return handle->pending == EP_PENDING_DISPATCH ? "dispatch" : "combine";
}

/*
 * Whether the host knows that the operation is sent and not received: handle->group->pending counts
 * it.
 */
static bool halves_counted(const struct ncclEpHandle *handle)
{
	return handle->pending && !handle->sent_capture && !handle->received_capture;
}

ncclResult_t ep_halves_check_received(const struct ncclEpHandle *handle, const char *name)
{
	if (!halves_counted(handle)) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidUsage,
		       "%s: a send_only %s of this handle is pending: call ncclEpComplete first",
		       name, halves_kind(handle));
}

ncclResult_t ep_halves_check_idle(const struct ncclEpHandle *handle, const char *name,
				  cudaStream_t stream)
{
	EP_CHECK(ep_halves_check_received(handle, name));
	if (!handle->pending || !handle->sent_capture ||
	    ep_stream_capture(stream) != handle->sent_capture) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidUsage,
		       "%s: a send_only %s of this handle is pending in this capture: call "
		       "ncclEpComplete first",
		       name, halves_kind(handle));
}

/*
 * The operations that are pending where the stream goes: in its capture, else as the host counts.
 */
static uint32_t halves_pending(const struct ncclEpGroup *g, cudaStream_t stream)
{
	bool any = g->pending || g->captured;
	unsigned long long capture = any ? ep_stream_capture(stream) : 0;
	uint32_t n = 0;

	if (!capture) {
		return g->pending;
	}
	for (const struct ncclEpHandle *h = g->handles; h; h = h->next) {
		n += h->pending && h->sent_capture == capture;
	}
	return n;
}

ncclResult_t ep_halves_check(const struct ncclEpHandle *handle, bool send_only, const char *name,
			     cudaStream_t stream)
{
	const struct ncclEpGroup *g = handle->group;
	uint32_t pending = halves_pending(g, stream);

	EP_CHECK(ep_halves_check_idle(handle, name, stream));
	if (ep_ranks_has(&g->joined, (uint32_t)g->rank) && !ep_stream_capture(stream)) {
		return ep_fail(ncclInvalidUsage,
			       "%s: rank %d has joined the group and taken no step yet: "
			       "ncclEpMaskClean comes first, on all ranks",
			       name, g->rank);
	}
	if (pending >= g->config.shape.banks) {
		return ep_fail(
			ncclInvalidUsage,
			"%s: %u send_only operations of the group are pending, which have all "
			"banks of a group of several nodes: complete one first",
			name, pending);
	}
	if (send_only && pending >= EP_GROUP_MAX_PENDING) {
		return ep_fail(ncclInvalidUsage,
			       "%s: %u send_only operations of the group are pending, the limit is "
			       "%u: complete one first",
			       name, pending, EP_GROUP_MAX_PENDING);
	}
	return ncclSuccess;
}

ncclResult_t ep_halves_check_device(const struct ncclEpGroup *g, uint32_t topk)
{
	struct ep_dev_seq seq;

	EP_CHECK(ep_device_read(&seq, g->seq, sizeof(seq), g->stream));
	if (seq.busy == ep_seq_busy(g->config.shape.banks)) {
		return ncclSuccess;
	}
	return ep_fail(
		ncclInvalidUsage,
		"a handle of top-%u needs a larger heap: on rank %d a graph has run the send "
		"half of an operation, and its receive half has not run: run ncclEpComplete "
		"first, or create the group with num_topk = %u",
		topk, g->rank, topk);
}

void ep_halves_forget(struct ncclEpHandle *handle)
{
	if (halves_counted(handle)) {
		handle->group->pending--;
	}
	if (handle->pending && handle->sent_capture) {
		handle->lost_capture = handle->sent_capture;
	}
	handle->pending = EP_PENDING_NONE;
}

/* The handle has dispatched. */
static void halves_dispatched(struct ncclEpHandle *handle)
{
	handle->dispatched = true;
	handle->dispatched_tokens = handle->num_tokens;
	handle->dispatch_cleans = handle->group->cleans;
}

void ep_halves_launched(struct ncclEpHandle *handle, enum ep_pending_kind kind, bool send_only,
			cudaStream_t stream)
{
	ep_halves_forget(handle);
	handle->combined = kind == EP_PENDING_COMBINE;
	if (handle->group->config.enable_mask) {
		handle->group->unpaired |= ep_stream_capture(stream) != 0;
	}
	if (send_only) {
		handle->pending = kind;
		handle->sent_on = stream;
		handle->sent_capture = ep_stream_capture(stream);
		handle->received_capture = 0;
		handle->group->captured |= handle->sent_capture != 0;
		handle->group->pending += handle->sent_capture == 0;
	} else if (kind == EP_PENDING_DISPATCH) {
		halves_dispatched(handle);
	}
}

/* ---- the receive half ---- */

/*
 * Returns the capture that the receive half on *stream is in, or 0. In the capture of the send half
 * an event takes the stream there. The legacy stream cannot be captured: then it follows the send
 * half.
 */
static unsigned long long halves_capture(const struct ncclEpHandle *handle, cudaStream_t *stream)
{
	unsigned long long capture;

	if (!handle->sent_capture || ep_stream_capture(handle->sent_on) != handle->sent_capture) {
		return ep_stream_capture(*stream);
	}
	if (*stream == NULL || *stream == cudaStreamLegacy) {
		*stream = handle->sent_on;
	}
	capture = ep_stream_capture(*stream);
	return capture ? capture : handle->sent_capture;
}

/*
 * The receive half on `stream` comes after the send half. *join: events order them, and have to do
 * so behind the receive half. The stream of the send half may have been destroyed: then what was on
 * it is waited for.
 */
static ncclResult_t halves_join(struct ncclEpHandle *handle, cudaStream_t stream,
				unsigned long long capture, bool *join)
{
	struct ncclEpGroup *g = handle->group;
	const struct ep_rest how = {
		.timeout_ns = ep_min_u64(g->config.timeout_ns, EP_IDLE_LONGEST_NS),
		.limit = "The group's timeout is the limit",
		.what = "ncclEpComplete: the stream of the send half was destroyed",
		.then = "call it again",
	};
	cudaError_t err;

	/*
	 * Events can order the two halves if both run now, or both go into one graph. Otherwise
	 * only the caller who launches the graphs can.
	 */
	*join = stream != handle->sent_on && capture == handle->sent_capture &&
		ep_stream_capture(handle->sent_on) == handle->sent_capture;
	if (!*join) {
		return ncclSuccess;
	}
	err = cudaEventRecord(g->event, handle->sent_on);
	if (err == cudaErrorInvalidResourceHandle || err == cudaErrorContextIsDestroyed) {
		(void)cudaGetLastError();
		*join = false;
		EP_CHECK(ep_group_rest(g, &how, &err));
		EP_CUDA(err, "ncclEpComplete: waiting for the device");
		return ncclSuccess;
	}
	EP_CUDA(err, "ncclEpComplete: ordering two streams");
	EP_CUDA(cudaStreamWaitEvent(stream, g->event, 0), "ncclEpComplete: ordering two streams");
	return ncclSuccess;
}

/*
 * Whether the device holds the handle's operation, sent and not received, behind what is on the
 * stream: as step_pends() of the kernels.
 */
static ncclResult_t halves_read(const struct ncclEpHandle *handle, cudaStream_t stream, bool *pends)
{
	struct ep_dev_pending sent; /* handle memory begins with it */
	struct ep_dev_seq seq;

	EP_CHECK(ep_device_read(&sent, handle->mem, sizeof(sent), stream));
	EP_CHECK(ep_device_read(&seq, handle->group->seq, sizeof(seq), stream));
	*pends = sent.bank < EP_GROUP_BANKS && (seq.busy >> sent.bank & 1) &&
		 seq.freed[sent.bank] == sent.epoch;
	return ncclSuccess;
}

/* The receive half is launched, or in that capture. */
static void halves_received(struct ncclEpHandle *handle, unsigned long long capture)
{
	if (handle->pending == EP_PENDING_DISPATCH) {
		halves_dispatched(handle);
	}
	handle->group->pending -= halves_counted(handle);
	if (capture == handle->sent_capture) {
		handle->pending = EP_PENDING_NONE;
		return;
	}
	/* one of the two may run again, or never */
	handle->received_capture = capture;
	handle->group->captured = true;
}

/* ncclEpComplete in a capture whose send half something else of the handle has pushed out. */
static ncclResult_t halves_check_lost(const struct ncclEpHandle *handle, unsigned long long capture)
{
	if (!capture || capture != handle->lost_capture ||
	    (handle->pending && handle->sent_capture == capture)) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidUsage,
		       "ncclEpComplete: since the send half in this capture the handle was used "
		       "outside of it: capture both halves with nothing of the handle in between");
}

ncclResult_t ep_halves_complete(struct ncclEpHandle *handle, const ncclEpCompleteConfig_t *config,
				cudaStream_t stream)
{
	struct ncclEpGroup *g = handle->group;
	unsigned long long capture;
	ncclEpCompleteConfig_t own;
	ncclResult_t result;
	bool join, pends;

	EP_CHECK(EP_IMPORT_OPTIONAL(&own, config, NCCL_EP_COMPLETE_CONFIG));
	if (!handle->pending && !handle->lost_capture) {
		return ncclSuccess;
	}
	capture = handle->pending ? halves_capture(handle, &stream) : ep_stream_capture(stream);
	EP_CHECK(halves_check_lost(handle, capture));
	if (!handle->pending || (capture && capture == handle->received_capture)) {
		return ncclSuccess;
	}
	if (!capture && !halves_counted(handle)) {
		EP_CHECK(halves_read(handle, stream, &pends));
		if (!pends && handle->sent_capture && !handle->received_capture) {
			return ep_fail(ncclInvalidUsage,
				       "ncclEpComplete: the send half of the handle's %s was "
				       "captured, and no graph has run it since it was received "
				       "last: launch that graph first",
				       halves_kind(handle));
		}
		if (!pends) {
			return ncclSuccess; /* a graph with the receive half has run */
		}
	}
	EP_CHECK(halves_join(handle, stream, capture, &join));
	ep_range_begin("ncclEpComplete", handle->num_tokens, 0);
	result = g->config.algo->complete(handle, stream);
	ep_range_end();
	EP_CHECK(result);
	halves_received(handle, capture);
	if (join) {
		EP_CUDA(cudaEventRecord(g->event, stream), "ncclEpComplete: ordering two streams");
		EP_CUDA(cudaStreamWaitEvent(handle->sent_on, g->event, 0),
			"ncclEpComplete: ordering two streams");
	}
	return ncclSuccess;
}
