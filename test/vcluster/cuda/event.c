/* SPDX-License-Identifier: Apache-2.0 */
/* Events. Each recording is a marker of its own, so that a later one does not disturb waiters. */
#include <stdlib.h>
#include "cuda/capture.h"
#include "cuda/device.h"

static struct CUevent_st *vc_events;

void vc_marker_put(struct vc_marker *marker)
{
	if (--marker->refs == 0) {
		free(marker);
	}
}

struct CUevent_st *vc_event_find(cudaEvent_t handle)
{
	struct CUevent_st *event;

	for (event = vc_events; event && event != handle; event = event->next) {
	}
	if (event && event->ended) {
		vc_ended_used("an event");
		return NULL;
	}
	return event;
}

/* All but its place on the list. */
static void vc_event_clear(struct CUevent_st *event)
{
	vc_capture_event_reset(event);
	if (event->marker) {
		vc_marker_put(event->marker);
		event->marker = NULL;
	}
}

void vc_events_end(int device)
{
	struct CUevent_st *event;

	pthread_mutex_lock(&vc_lock);
	for (event = vc_events; event; event = event->next) {
		if (event->device == device && !event->ended) {
			vc_event_clear(event);
			event->ended = true;
		}
	}
	pthread_mutex_unlock(&vc_lock);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags)
{
	struct CUevent_st *event;

	VC_ENTER();
	if (!out || flags & ~(unsigned int)(cudaEventBlockingSync | cudaEventDisableTiming)) {
		/* cudaEventInterprocess included: events of other processes do not exist here */
		return vc_error(cudaErrorInvalidValue);
	}
	event = calloc(1, sizeof(*event));
	if (!event) {
		return vc_error(cudaErrorMemoryAllocation);
	}
	event->device = vc_device_current();
	event->flags = flags;
	pthread_mutex_lock(&vc_lock);
	event->next = vc_events;
	vc_events = event;
	pthread_mutex_unlock(&vc_lock);
	*out = event;
	return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
	return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
	struct CUevent_st **at, *event = NULL;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	event = vc_event_find(handle);
	for (at = &vc_events; event; at = &(*at)->next) {
		if (*at == event) {
			*at = event->next;
			vc_event_clear(event);
			free(event);
			break;
		}
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(event ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

static cudaError_t vc_event_record(struct CUevent_st *event, struct CUstream_st *stream)
{
	struct vc_work work = { .kind = VC_WORK_EMPTY, .device = stream->device };
	struct vc_marker *marker;
	struct vc_op *op;

	if (event->device != stream->device) {
		return cudaErrorInvalidResourceHandle;
	}
	if (stream->capture) {
		return vc_capture_event(stream, event);
	}
	if (stream->legacy) {
		cudaError_t error = vc_capture_check_legacy(stream->device);

		if (error) {
			return error;
		}
	}
	marker = calloc(1, sizeof(*marker));
	op = marker ? vc_stream_push(stream, &work) : NULL;
	if (!op) {
		free(marker);
		return cudaErrorMemoryAllocation;
	}
	marker->refs = 2;
	op->record = marker;
	vc_capture_event_reset(event);
	if (event->marker) {
		vc_marker_put(event->marker);
	}
	event->marker = marker;
	return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t where, unsigned int flags)
{
	struct CUevent_st *event;
	struct CUstream_st *stream;
	cudaError_t error = cudaErrorInvalidResourceHandle;

	VC_ENTER();
	if (flags) {
		/* cudaEventRecordExternal: event nodes in graphs are not there */
		return vc_error(cudaErrorNotSupported);
	}
	pthread_mutex_lock(&vc_lock);
	event = vc_event_find(handle);
	stream = vc_stream_find(where);
	if (event && stream) {
		error = vc_event_record(event, stream);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	return cudaEventRecordWithFlags(event, stream, 0);
}

static cudaError_t vc_event_wait(struct CUstream_st *stream, struct CUevent_st *event)
{
	struct vc_work work = { .kind = VC_WORK_EMPTY, .device = stream->device };
	struct vc_op *op;

	if (event->capture || stream->capture) {
		return vc_capture_wait(stream, event);
	}
	if (!event->marker || event->marker->done) {
		return cudaSuccess;
	}
	if (stream->legacy) {
		cudaError_t error = vc_capture_check_legacy(stream->device);

		if (error) {
			return error;
		}
	}
	op = vc_stream_push(stream, &work);
	if (!op) {
		return cudaErrorMemoryAllocation;
	}
	op->wait = event->marker;
	event->marker->refs++;
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t where, cudaEvent_t handle, unsigned int flags)
{
	struct CUevent_st *event;
	struct CUstream_st *stream;
	cudaError_t error = cudaErrorInvalidResourceHandle;

	VC_ENTER();
	if (flags) {
		return vc_error(flags == cudaEventWaitExternal ? cudaErrorNotSupported
							       : cudaErrorInvalidValue);
	}
	pthread_mutex_lock(&vc_lock);
	event = vc_event_find(handle);
	stream = vc_stream_find(where);
	if (event && stream) {
		error = vc_event_wait(stream, event);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

static cudaError_t vc_event_ask(cudaEvent_t handle, bool wait)
{
	struct CUevent_st *event;
	struct vc_marker *marker;
	cudaError_t error = cudaSuccess;

	pthread_mutex_lock(&vc_lock);
	event = vc_event_find(handle);
	marker = event ? event->marker : NULL;
	if (!event) {
		error = cudaErrorInvalidResourceHandle;
	} else if (event->capture) {
		vc_capture_invalidate(event->capture);
		error = cudaErrorCapturedEvent;
	} else if (marker) {
		marker->refs++;
		while (wait && !marker->done) {
			pthread_cond_wait(&vc_recorded, &vc_lock);
		}
		error = marker->done ? vc_device_sticky(event->device) : cudaErrorNotReady;
		vc_marker_put(marker);
	}
	pthread_mutex_unlock(&vc_lock);
	return error;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	VC_ENTER();
	return vc_error(vc_event_ask(event, false));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	VC_ENTER();
	return vc_error(vc_event_ask(event, true));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
	struct CUevent_st *from, *to;
	cudaError_t error = cudaSuccess;

	VC_ENTER();
	if (!ms) {
		return vc_error(cudaErrorInvalidValue);
	}
	pthread_mutex_lock(&vc_lock);
	from = vc_event_find(start);
	to = vc_event_find(end);
	if (!from || !to || !from->marker || !to->marker ||
	    (from->flags | to->flags) & cudaEventDisableTiming) {
		error = cudaErrorInvalidResourceHandle;
	} else if (!from->marker->done || !to->marker->done) {
		error = cudaErrorNotReady;
	} else {
		*ms = (float)((double)(int64_t)(to->marker->time_ns - from->marker->time_ns) / 1e6);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}
