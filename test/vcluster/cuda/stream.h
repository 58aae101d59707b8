/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams. One mutex (vc_lock) guards all objects; work runs outside of it. Streams are threads with
 * a queue of operations. Each operation has a sequence number in its stream, so "all that was
 * submitted before" is a pair (stream, number): the legacy stream's ordering is made of such pairs.
 */
#ifndef VC_STREAM_H
#define VC_STREAM_H

#include <pthread.h>
#include "cuda/work.h"

struct vc_after {
	struct CUstream_st *stream;
	uint64_t seq;
};

struct vc_op {
	struct vc_op *next;
	struct vc_work work;
	struct vc_after *after; /* implicit ordering with the legacy stream */
	uint32_t nafter;
	struct vc_marker *wait;   /* event to wait for first, or NULL */
	struct vc_marker *record; /* event recording that this completes, or NULL */
};

struct CUstream_st {
	int device;
	unsigned int flags;
	int priority;
	bool legacy;
	bool destroyed; /* by the user; the thread ends when the queue is empty */
	bool ended;     /* by a reset; stays on the list, so that no other gets its address */
	int refs;
	uint64_t submitted, completed;
	struct vc_op *head, *tail;
	pthread_cond_t wake;
	pthread_cond_t done; /* broadcast when an operation ends */
	bool started;
	bool lent; /* a caller runs work in the thread's stead */
	struct vc_capture *capture;
	uint32_t *tails; /* the capture's nodes that the next one depends on */
	uint32_t ntails;
	struct CUstream_st *next; /* all streams that are not freed */
};

extern pthread_mutex_t vc_lock;
extern pthread_cond_t vc_recorded; /* broadcast when a recording is done */
extern struct CUstream_st *vc_streams;

/* Handle (0, legacy and per-thread values included) to stream; NULL: unknown or destroyed. */
struct CUstream_st *vc_stream_find(cudaStream_t handle);
void vc_stream_put(struct CUstream_st *stream);
/*
 * Submits work (owned by the stream from here on, also when it fails) in stream order, or appends
 * it to the capture that the stream is in.
 */
cudaError_t vc_stream_submit(cudaStream_t handle, struct vc_work *work);
/*
 * The same, and waits until it is done. A stream at rest lends its place to the caller, who does the work instead of
 * waking the stream's thread and being woken by it.
 */
cudaError_t vc_stream_complete(cudaStream_t handle, struct vc_work *work);
struct vc_op *vc_stream_push(struct CUstream_st *stream, struct vc_work *work);
cudaError_t vc_stream_wait_seq(struct CUstream_st *stream, uint64_t seq);
cudaError_t vc_device_wait(int device);
/* All of a device but its default streams. The device is at rest. */
void vc_streams_end(int device);

#endif
