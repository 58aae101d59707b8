/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: a thread and a queue each. The legacy stream's order is kept by sequence numbers. */
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "cuda/runtime.h"
#include "tsan.h"

pthread_mutex_t vc_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t vc_recorded = PTHREAD_COND_INITIALIZER;
struct CUstream_st *vc_streams;

static struct CUstream_st *vc_legacy[VC_MAX_DEVICES];

/*
 * Streams of one thread. Not in thread-local memory itself: programs that load this library late
 * have little room there.
 */
struct vc_thread_streams {
	struct vc_thread_streams *next;
	struct CUstream_st *of[VC_MAX_DEVICES];
};
static struct vc_thread_streams *vc_threads;
static __thread struct vc_thread_streams *vc_per_thread;

static struct CUstream_st *vc_stream_new(int device, unsigned int flags)
{
	struct CUstream_st *stream = calloc(1, sizeof(*stream));

	if (!stream) {
		return NULL;
	}
	stream->device = device;
	stream->flags = flags;
	stream->refs = 1;
	pthread_cond_init(&stream->wake, NULL);
	pthread_cond_init(&stream->done, NULL);
	stream->next = vc_streams;
	vc_streams = stream;
	return stream;
}

static void vc_stream_put(struct CUstream_st *stream)
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
		vc_per_thread->of[device] = vc_stream_new(device, 0);
	}
	return vc_per_thread->of[device];
}

struct CUstream_st *vc_stream_find(cudaStream_t handle)
{
	int device = vc_device_current();
	struct CUstream_st *stream;

	if (!handle || handle == cudaStreamLegacy) {
		if (!vc_legacy[device]) {
			stream = vc_stream_new(device, 0);
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

cudaError_t vc_stream_push(struct CUstream_st *stream, struct vc_work *work, struct vc_marker *mark,
			   struct vc_op **out)
{
	cudaError_t error = stream->legacy ? vc_capture_check_legacy(stream->device) : cudaSuccess;
	struct vc_op *op = error ? NULL : calloc(1, sizeof(*op));

	if (!op || vc_stream_start(stream) || !vc_op_order(op, stream)) {
		for (uint32_t i = 0; op && i < op->nafter; i++) {
			vc_stream_put(op->after[i].stream);
		}
		if (op) {
			free(op->after);
		}
		free(op);
		free(mark);
		vc_work_free(work);
		return error ? error : cudaErrorMemoryAllocation;
	}
	op->work = *work;
	op->record = mark;
	if (stream->tail) {
		stream->tail->next = op;
	} else {
		stream->head = op;
	}
	stream->tail = op;
	stream->submitted++;
	pthread_cond_signal(&stream->wake);
	*out = op;
	return cudaSuccess;
}

cudaError_t vc_stream_submit(cudaStream_t handle, struct vc_work *work)
{
	struct CUstream_st *stream;
	struct vc_op *op;
	cudaError_t error;

	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (!stream) {
		error = cudaErrorInvalidResourceHandle;
	} else if (stream->capture) {
		error = vc_capture_append(stream, work);
	} else {
		error = vc_stream_push(stream, work, NULL, &op);
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

/*
 * Does what vc_stream_submit() does, and waits until it is done. A stream at rest lends its place
 * to the caller, who does the work instead of waking the stream's thread and being woken by it.
 */
static cudaError_t vc_stream_complete(cudaStream_t handle, struct vc_work *work)
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
static cudaError_t vc_stream_wait_seq(struct CUstream_st *stream, uint64_t seq)
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

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
	struct CUstream_st *stream;

	VC_ENTER();
	if (!out || flags & ~(unsigned int)cudaStreamNonBlocking) {
		return vc_error(cudaErrorInvalidValue);
	}
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_new(vc_device_current(), flags);
	pthread_mutex_unlock(&vc_lock);
	*out = stream;
	return vc_error(stream ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
	return cudaStreamCreateWithFlags(out, cudaStreamDefault);
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

/* ---- events: each recording is a marker, so that a later one does not disturb waiters ---- */

static struct CUevent_st *vc_events;

struct vc_marker *vc_marker_new(void)
{
	struct vc_marker *marker = calloc(1, sizeof(*marker));

	if (marker) {
		marker->refs = 2;
	}
	return marker;
}

void vc_marker_put(struct vc_marker *marker)
{
	if (--marker->refs == 0) {
		free(marker);
	}
}

static struct CUevent_st *vc_event_find(cudaEvent_t handle)
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
	cudaError_t error;

	if (event->device != stream->device) {
		return cudaErrorInvalidResourceHandle;
	}
	if (stream->capture) {
		return vc_capture_event(stream, event);
	}
	marker = vc_marker_new();
	error = marker ? vc_stream_push(stream, &work, marker, &op) : cudaErrorMemoryAllocation;
	if (error) {
		return error;
	}
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
	cudaError_t error;

	if (event->capture || stream->capture) {
		return vc_capture_wait(stream, event);
	}
	if (!event->marker || event->marker->done) {
		return cudaSuccess;
	}
	error = vc_stream_push(stream, &work, NULL, &op);
	if (!error) {
		op->wait = event->marker;
		event->marker->refs++;
	}
	return error;
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

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
	struct CUevent_st *event;
	struct vc_marker *marker;
	cudaError_t error = cudaSuccess;

	VC_ENTER();
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
		while (!marker->done) {
			pthread_cond_wait(&vc_recorded, &vc_lock);
		}
		error = vc_device_sticky(event->device);
		vc_marker_put(marker);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
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

/* ---- one piece of work: run it, copy it, free it ---- */

static void vc_kernel_done(struct vc_grid *grid)
{
	sem_post(grid->done_arg);
}

static void vc_kernel_run(struct vc_work *work)
{
	sem_t done;
	struct vc_grid grid = {
		.kernel = work->launch.kernel,
		.args = work->launch.args,
		.device = work->device,
		.nblocks = work->launch.nblocks,
		.nthreads = work->launch.nthreads,
		.dynamic_shared = work->launch.dynamic_shared,
		.done = vc_kernel_done,
		.done_arg = &done,
	};

	sem_init(&done, 0, 0);
	vc_grid_publish(&grid);
	vc_grid_submit(&grid);
	while (sem_wait(&done)) {
	}
	vc_grid_observe(&grid);
	sem_destroy(&done);
	if (atomic_load(&grid.fault)) {
		vc_device_set_sticky(work->device, cudaErrorIllegalAddress);
	}
}

#ifdef VC_TSAN
#define VC_HOLE_LEAST SIZE_MAX /* the race detector sees what is written, and no holes */
#else
#define VC_HOLE_LEAST 65536
#endif

/*
 * Whole pages of zeros are holes in the file behind them: most of a large buffer is never looked
 * at. Not where NICs get at memory by its address: their driver has pinned its pages, and would go
 * on with those that the hole has let go.
 */
static void vc_set_run(uint8_t *dst, int value, size_t size)
{
	uint8_t *first = (uint8_t *)(((uintptr_t)dst + VC_PAGE - 1) & ~(VC_PAGE - 1));
	size_t inner;

	if (value || size < VC_HOLE_LEAST || vc_env_long("VC_NO_DMABUF", 0)) {
		memset(dst, value, size);
		return;
	}
	inner = (size_t)(dst + size - first) & ~(VC_PAGE - 1);
	memset(dst, 0, (size_t)(first - dst));
	if (madvise(first, inner, MADV_REMOVE)) {
		memset(first, 0, inner); /* not of a file, or of more than one */
	}
	memset(first + inner, 0, (size_t)(dst + size - (first + inner)));
}

#ifdef VC_TSAN
/*
 * A copy engine moves aligned words whole. So a copy may take words that a kernel stores atomically
 * meanwhile; the race detector still reports a copy beside a plain store.
 */
static void vc_copy_run(void *dst, const void *src, size_t size)
{
	volatile unsigned long *to = dst;
	const volatile unsigned long *from = src;

	if ((((uintptr_t)dst | (uintptr_t)src | size) & 7) || dst == src) {
		memmove(dst, src, size);
		return;
	}
	for (size_t i = 0; i < size / 8; i++) {
		size_t at = dst < src ? i : size / 8 - 1 - i;

		__tsan_atomic64_store(&to[at], __tsan_atomic64_load(&from[at], 0), 0);
	}
}
#else
static void vc_copy_run(void *dst, const void *src, size_t size)
{
	memmove(dst, src, size);
}
#endif

/* A device in error runs nothing any more. */
void vc_work_run(struct vc_work *work)
{
	if (vc_device_sticky(work->device)) {
		return;
	}
	switch (work->kind) {
	case VC_WORK_EMPTY:
		break;
	case VC_WORK_KERNEL:
		vc_kernel_run(work);
		break;
	case VC_WORK_COPY:
		if (work->copy.late_us) {
			usleep((useconds_t)work->copy.late_us);
		}
		vc_copy_run(work->copy.dst, work->copy.src, work->copy.size);
		break;
	case VC_WORK_SET:
		vc_set_run(work->set.dst, work->set.value, work->set.size);
		break;
	case VC_WORK_HOST:
		work->host.fn(work->host.arg);
		break;
	case VC_WORK_CALL:
		work->call.fn(work->call.arg);
		break;
	case VC_WORK_GRAPH:
		vc_exec_graph_run(work->graph);
		break;
	}
}

void vc_work_free(struct vc_work *work)
{
	switch (work->kind) {
	case VC_WORK_KERNEL:
		free(work->launch.args);
		break;
	case VC_WORK_COPY:
		free(work->copy.staged);
		break;
	case VC_WORK_CALL:
		free(work->call.arg);
		break;
	case VC_WORK_GRAPH:
		vc_exec_graph_put(work->graph);
		break;
	default:
		break;
	}
	work->kind = VC_WORK_EMPTY;
}

static void *vc_copy_of(const void *p, size_t size)
{
	void *copy = malloc(size ? size : 1);

	return copy ? memcpy(copy, p, size) : NULL;
}

cudaError_t vc_work_clone(struct vc_work *to, const struct vc_work *from)
{
	*to = *from;
	if (from->kind == VC_WORK_KERNEL) {
		to->launch.args = vc_copy_of(from->launch.args, from->launch.kernel->args_size);
		if (!to->launch.args) {
			to->kind = VC_WORK_EMPTY;
			return cudaErrorMemoryAllocation;
		}
	}
	if (from->kind == VC_WORK_CALL) {
		to->call.arg = vc_copy_of(from->call.arg, from->call.size);
		if (!to->call.arg) {
			to->kind = VC_WORK_EMPTY;
			return cudaErrorMemoryAllocation;
		}
	}
	return cudaSuccess;
}

/* ---- copies and fills. Every byte named must belong to one allocation of the right kind ---- */

enum vc_place {
	VC_PLACE_BAD,
	VC_PLACE_DEVICE,
	VC_PLACE_PINNED,
	VC_PLACE_PAGEABLE
};

/* Where a range lies; VC_PLACE_BAD: only part of it is in an allocation. */
static enum vc_place vc_place(const void *p, size_t size)
{
	struct vc_mem mem;

	if (!p) {
		return VC_PLACE_BAD;
	}
	if (vc_mem_find(p, size, &mem)) {
		return vc_mem_on_device(&mem) ? VC_PLACE_DEVICE : VC_PLACE_PINNED;
	}
	return vc_mem_touches(p, size, &mem) ? VC_PLACE_BAD : VC_PLACE_PAGEABLE;
}

static cudaError_t vc_copy_check(enum vc_place dst, enum vc_place src, enum cudaMemcpyKind kind)
{
	bool dst_device = dst == VC_PLACE_DEVICE;
	bool src_device = src == VC_PLACE_DEVICE;

	if (dst == VC_PLACE_BAD || src == VC_PLACE_BAD) {
		return cudaErrorInvalidValue;
	}
	switch (kind) {
	case cudaMemcpyHostToHost:
		return dst_device || src_device ? cudaErrorInvalidValue : cudaSuccess;
	case cudaMemcpyHostToDevice:
		return !dst_device || src_device ? cudaErrorInvalidValue : cudaSuccess;
	case cudaMemcpyDeviceToHost:
		return dst_device || !src_device ? cudaErrorInvalidValue : cudaSuccess;
	case cudaMemcpyDeviceToDevice:
		/* Mapped host memory counts as device memory here. */
		return dst == VC_PLACE_PAGEABLE || src == VC_PLACE_PAGEABLE ? cudaErrorInvalidValue
									    : cudaSuccess;
	case cudaMemcpyDefault:
		return cudaSuccess;
	default:
		return cudaErrorInvalidMemcpyDirection;
	}
}

static cudaError_t vc_copy(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind,
			   cudaStream_t handle, bool sync)
{
	int device = vc_device_current();
	struct vc_work work = { .kind = VC_WORK_COPY, .device = device };
	enum vc_place to, from;
	struct CUstream_st *stream;
	cudaError_t error;
	bool capturing, waits;

	if (!size) {
		return cudaSuccess;
	}
	to = vc_place(dst, size);
	from = vc_place(src, size);
	error = vc_copy_check(to, from, kind);
	if (error) {
		return error;
	}
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	capturing = stream && stream->capture;
	pthread_mutex_unlock(&vc_lock);
	if (!stream) {
		return cudaErrorInvalidResourceHandle;
	}
	work.copy.dst = dst;
	work.copy.src = src;
	work.copy.size = size;
	/* The caller may change pageable memory as soon as the call returns. */
	if (from == VC_PLACE_PAGEABLE && !sync && !capturing) {
		work.copy.staged = malloc(size);
		if (!work.copy.staged) {
			return cudaErrorMemoryAllocation;
		}
		memcpy(work.copy.staged, src, size);
		work.copy.src = work.copy.staged;
	}
	waits = sync || (to == VC_PLACE_PAGEABLE && !capturing);
	if (!waits && !work.copy.staged) {
		work.copy.late_us = vc_env_long("VC_COPY_LATE_US", 0);
	}
	if (waits && !sync) {
		vc_context_lock(device);
	}
	error = waits ? vc_stream_complete(handle, &work) : vc_stream_submit(handle, &work);
	if (waits && !sync) {
		vc_context_unlock(device);
	}
	return error;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind)
{
	VC_ENTER();
	return vc_error(vc_copy(dst, src, size, kind, cudaStreamLegacy, true));
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	VC_ENTER();
	return vc_error(vc_copy(dst, src, size, kind, stream, false));
}

static cudaError_t vc_set(void *dst, int value, size_t size, cudaStream_t stream)
{
	struct vc_work work = { .kind = VC_WORK_SET, .device = vc_device_current() };
	enum vc_place place;

	if (!size) {
		return cudaSuccess;
	}
	place = vc_place(dst, size);
	if (place != VC_PLACE_DEVICE && place != VC_PLACE_PINNED) {
		return cudaErrorInvalidValue;
	}
	work.set.dst = dst;
	work.set.value = value;
	work.set.size = size;
	return vc_stream_submit(stream, &work);
}

cudaError_t cudaMemset(void *dst, int value, size_t size)
{
	VC_ENTER();
	return vc_error(vc_set(dst, value, size, cudaStreamLegacy));
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t size, cudaStream_t stream)
{
	VC_ENTER();
	return vc_error(vc_set(dst, value, size, stream));
}
