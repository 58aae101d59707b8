/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: a thread and a queue each. The legacy stream's order is kept by sequence numbers. */
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include "cuda/capture.h"
#include "cuda/device.h"

pthread_mutex_t vc_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t vc_recorded = PTHREAD_COND_INITIALIZER;
struct CUstream_st *vc_streams;

static struct CUstream_st *vc_legacy[VC_MAX_DEVICES];

/* Streams of one thread. Not in thread-local memory itself: programs that load this library late have
 * little room there. */
struct vc_thread_streams {
	struct vc_thread_streams *next;
	struct CUstream_st *of[VC_MAX_DEVICES];
};
static struct vc_thread_streams *vc_threads;
static __thread struct vc_thread_streams *vc_per_thread;

static struct CUstream_st *vc_stream_new(int device, unsigned int flags, int priority)
{
	struct CUstream_st *stream = calloc(1, sizeof(*stream));

	if (!stream) {
		return NULL;
	}
	stream->device = device;
	stream->flags = flags;
	stream->priority = priority;
	stream->refs = 1;
	pthread_cond_init(&stream->wake, NULL);
	pthread_cond_init(&stream->done, NULL);
	stream->next = vc_streams;
	vc_streams = stream;
	return stream;
}

void vc_stream_put(struct CUstream_st *stream)
{
	struct CUstream_st **at;

	if (--stream->refs) {
		return;
	}
	for (at = &vc_streams; *at; at = &(*at)->next) {
		if (*at == stream) {
			*at = stream->next;
			break;
		}
	}
	pthread_cond_destroy(&stream->wake);
	pthread_cond_destroy(&stream->done);
	free(stream->tails);
	free(stream);
}

/* Under the lock. */
static struct CUstream_st *vc_stream_per_thread(int device)
{
	if (!vc_per_thread) {
		vc_per_thread = calloc(1, sizeof(*vc_per_thread));
		if (!vc_per_thread) {
			return NULL;
		}
		vc_per_thread->next = vc_threads;
		vc_threads = vc_per_thread;
	}
	if (!vc_per_thread->of[device]) {
		vc_per_thread->of[device] = vc_stream_new(device, 0, 0);
	}
	return vc_per_thread->of[device];
}

struct CUstream_st *vc_stream_find(cudaStream_t handle)
{
	int device = vc_device_current();
	struct CUstream_st *stream;

	if (!handle || handle == cudaStreamLegacy) {
		if (!vc_legacy[device]) {
			stream = vc_stream_new(device, 0, 0);
			if (stream) {
				stream->legacy = true;
			}
			vc_legacy[device] = stream;
		}
		return vc_legacy[device];
	}
	if (handle == cudaStreamPerThread) {
		return vc_stream_per_thread(device);
	}
	for (stream = vc_streams; stream; stream = stream->next) {
		if (stream == handle && !stream->destroyed) {
			return stream;
		}
		if (stream == handle && stream->ended) {
			vc_ended_used("a stream");
		}
	}
	return NULL;
}

static void vc_op_finish(struct CUstream_st *stream, struct vc_op *op)
{
	stream->completed++;
	if (op->record) {
		op->record->done = true;
		op->record->time_ns = vc_now_ns();
		vc_marker_put(op->record);
		pthread_cond_broadcast(&vc_recorded);
	}
	if (op->wait) {
		vc_marker_put(op->wait);
	}
	for (uint32_t i = 0; i < op->nafter; i++) {
		vc_stream_put(op->after[i].stream);
	}
	pthread_cond_broadcast(&stream->done);
	free(op->after);
	free(op);
}

static void vc_op_run(struct vc_op *op)
{
	for (uint32_t i = 0; i < op->nafter; i++) {
		struct CUstream_st *stream = op->after[i].stream;

		while (stream->completed < op->after[i].seq) {
			pthread_cond_wait(&stream->done, &vc_lock);
		}
	}
	while (op->wait && !op->wait->done) {
		pthread_cond_wait(&vc_recorded, &vc_lock);
	}
	pthread_mutex_unlock(&vc_lock);
	vc_work_run(&op->work);
	pthread_mutex_lock(&vc_lock);
	vc_work_free(&op->work);
}

static void *vc_stream_main(void *arg)
{
	struct CUstream_st *stream = arg;

	prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
	pthread_mutex_lock(&vc_lock);
	for (;;) {
		struct vc_op *op = stream->head;

		if (op && !stream->lent) {
			stream->head = op->next;
			if (!stream->head) {
				stream->tail = NULL;
			}
			vc_op_run(op);
			vc_op_finish(stream, op);
		} else if (!op && stream->destroyed) {
			break;
		} else {
			pthread_cond_wait(&stream->wake, &vc_lock);
		}
	}
	vc_stream_put(stream);
	pthread_mutex_unlock(&vc_lock);
	return NULL;
}

static cudaError_t vc_stream_start(struct CUstream_st *stream)
{
	pthread_t thread;

	if (stream->started) {
		return cudaSuccess;
	}
	if (pthread_create(&thread, NULL, vc_stream_main, stream)) {
		return cudaErrorOperatingSystem;
	}
	pthread_detach(thread);
	stream->started = true;
	stream->refs++;
	return cudaSuccess;
}

static bool vc_op_after(struct vc_op *op, struct CUstream_st *stream)
{
	struct vc_after *after;

	if (stream->completed == stream->submitted) {
		return true;
	}
	after = realloc(op->after, (op->nafter + 1) * sizeof(*after));
	if (!after) {
		return false;
	}
	op->after = after;
	op->after[op->nafter++] = (struct vc_after){ stream, stream->submitted };
	stream->refs++;
	return true;
}

/* Legacy work follows all blocking streams of its device, and they follow it. */
static bool vc_op_order(struct vc_op *op, struct CUstream_st *stream)
{
	struct CUstream_st *other;

	if (stream->flags & cudaStreamNonBlocking) {
		return true;
	}
	if (!stream->legacy) {
		other = vc_legacy[stream->device];
		return !other || vc_op_after(op, other);
	}
	for (other = vc_streams; other; other = other->next) {
		if (other != stream && other->device == stream->device &&
		    !(other->flags & cudaStreamNonBlocking) && !vc_op_after(op, other)) {
			return false;
		}
	}
	return true;
}

/* With the lock held. NULL: out of memory or threads; the work is freed. */
struct vc_op *vc_stream_push(struct CUstream_st *stream, struct vc_work *work)
{
	struct vc_op *op = calloc(1, sizeof(*op));

	if (!op || vc_stream_start(stream) || !vc_op_order(op, stream)) {
		for (uint32_t i = 0; op && i < op->nafter; i++) {
			vc_stream_put(op->after[i].stream);
		}
		if (op) {
			free(op->after);
		}
		free(op);
		vc_work_free(work);
		return NULL;
	}
	op->work = *work;
	if (stream->tail) {
		stream->tail->next = op;
	} else {
		stream->head = op;
	}
	stream->tail = op;
	stream->submitted++;
	pthread_cond_signal(&stream->wake);
	return op;
}

cudaError_t vc_stream_submit(cudaStream_t handle, struct vc_work *work)
{
	struct CUstream_st *stream;
	cudaError_t error = cudaSuccess;

	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (!stream) {
		error = cudaErrorInvalidResourceHandle;
	} else if (stream->capture) {
		error = vc_capture_append(stream, work);
	} else {
		if (!(stream->flags & cudaStreamNonBlocking) && stream->legacy) {
			error = vc_capture_check_legacy(stream->device);
		}
		if (!error && !vc_stream_push(stream, work)) {
			error = cudaErrorMemoryAllocation;
		}
	}
	pthread_mutex_unlock(&vc_lock);
	if (error) {
		vc_work_free(work);
	}
	return error;
}

/* With the lock held: nothing is queued, and what comes next need not wait for another stream. */
static bool vc_stream_rests(struct CUstream_st *stream)
{
	struct vc_op next = { .nafter = 0 };
	bool rests = stream->completed == stream->submitted && vc_op_order(&next, stream) &&
		     !next.nafter;

	for (uint32_t i = 0; i < next.nafter; i++) {
		vc_stream_put(next.after[i].stream);
	}
	free(next.after);
	return rests;
}

cudaError_t vc_stream_complete(cudaStream_t handle, struct vc_work *work)
{
	struct CUstream_st *stream;
	cudaError_t error;

	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (!stream || stream->capture ||
	    (stream->legacy && vc_capture_check_legacy(stream->device)) ||
	    !vc_stream_rests(stream)) {
		pthread_mutex_unlock(&vc_lock);
		error = vc_stream_submit(handle, work);
		return error ? error : cudaStreamSynchronize(handle);
	}
	stream->lent = true;
	stream->refs++;
	stream->submitted++;
	pthread_mutex_unlock(&vc_lock);
	vc_work_run(work);
	pthread_mutex_lock(&vc_lock);
	vc_work_free(work);
	stream->lent = false;
	stream->completed++;
	pthread_cond_broadcast(&stream->done);
	if (stream->head) {
		pthread_cond_signal(&stream->wake);
	}
	error = vc_device_sticky(stream->device);
	vc_stream_put(stream);
	pthread_mutex_unlock(&vc_lock);
	return error;
}

/* With the lock held. */
cudaError_t vc_stream_wait_seq(struct CUstream_st *stream, uint64_t seq)
{
	int device = stream->device;

	stream->refs++;
	while (stream->completed < seq) {
		pthread_cond_wait(&stream->done, &vc_lock);
	}
	vc_stream_put(stream);
	return vc_device_sticky(device);
}

cudaError_t vc_device_wait(int device)
{
	struct CUstream_st *stream;
	bool again = true;

	pthread_mutex_lock(&vc_lock);
	while (again) {
		again = false;
		for (stream = vc_streams; stream && !again; stream = stream->next) {
			if (stream->device == device && stream->completed < stream->submitted) {
				vc_stream_wait_seq(stream, stream->submitted);
				again = true;
			}
		}
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_device_sticky(device);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned int flags, int priority)
{
	struct CUstream_st *stream;

	VC_ENTER();
	if (!out || flags & ~(unsigned int)cudaStreamNonBlocking) {
		return vc_error(cudaErrorInvalidValue);
	}
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_new(vc_device_current(), flags,
			       priority > 0    ? 0
			       : priority < -5 ? -5
					       : priority);
	pthread_mutex_unlock(&vc_lock);
	*out = stream;
	return vc_error(stream ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
	return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
	return cudaStreamCreateWithPriority(out, 0, 0);
}

static bool vc_stream_is_default(cudaStream_t handle)
{
	return !handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
}

static void vc_stream_leave_capture(struct CUstream_st *stream)
{
	if (stream->capture) {
		vc_capture_invalidate(stream->capture);
		vc_capture_put(stream->capture);
		stream->capture = NULL;
	}
}

void vc_streams_end(int device)
{
	struct CUstream_st *stream;

	pthread_mutex_lock(&vc_lock);
	for (stream = vc_streams; stream; stream = stream->next) {
		bool standing = stream == vc_legacy[device];

		if (stream->device != device) {
			continue;
		}
		vc_stream_leave_capture(stream);
		for (struct vc_thread_streams *t = vc_threads; t; t = t->next) {
			standing |= stream == t->of[device];
		}
		if (!standing && !stream->destroyed) {
			stream->destroyed = stream->ended = true;
			pthread_cond_signal(&stream->wake);
		}
	}
	pthread_mutex_unlock(&vc_lock);
}

/* Returns at once; the work that is queued still runs. */
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
	struct CUstream_st *stream;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_is_default(handle) ? NULL : vc_stream_find(handle);
	if (stream) {
		vc_stream_leave_capture(stream);
		stream->destroyed = true;
		pthread_cond_signal(&stream->wake);
		vc_stream_put(stream);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(stream ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

/* Finds a stream whose work the caller asks about; calls that a capture forbids end it. */
static cudaError_t vc_stream_ask(cudaStream_t handle, struct CUstream_st **out)
{
	struct CUstream_st *stream = vc_stream_find(handle);

	if (!stream) {
		return cudaErrorInvalidResourceHandle;
	}
	if (vc_capture_busy(stream)) {
		return cudaErrorStreamCaptureUnsupported;
	}
	*out = stream;
	return stream->legacy ? vc_capture_check_legacy(stream->device) : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
	struct CUstream_st *stream;
	cudaError_t error;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	error = vc_stream_ask(handle, &stream);
	if (!error) {
		error = vc_stream_wait_seq(stream, stream->submitted);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
	struct CUstream_st *stream;
	cudaError_t error;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	error = vc_stream_ask(handle, &stream);
	if (!error && stream->completed < stream->submitted) {
		error = cudaErrorNotReady;
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

cudaError_t cudaDeviceSynchronize(void)
{
	cudaError_t error;

	VC_ENTER();
	error = vc_capture_check_unsafe();
	if (error == cudaSuccess) {
		error = vc_capture_check_device(vc_device_current());
	}
	return vc_error(error ? error : vc_device_wait(vc_device_current()));
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned int *flags)
{
	struct CUstream_st *stream;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (stream && flags) {
		*flags = stream->flags;
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(!stream ? cudaErrorInvalidResourceHandle
			: flags ? cudaSuccess
				: cudaErrorInvalidValue);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
	struct CUstream_st *stream;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (stream && priority) {
		*priority = stream->priority;
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(!stream    ? cudaErrorInvalidResourceHandle
			: priority ? cudaSuccess
				   : cudaErrorInvalidValue);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
	struct vc_work work = { .kind = VC_WORK_HOST, .device = vc_device_current() };

	VC_ENTER();
	if (!fn) {
		return vc_error(cudaErrorInvalidValue);
	}
	work.host.fn = fn;
	work.host.arg = arg;
	return vc_error(vc_stream_submit(stream, &work));
}
