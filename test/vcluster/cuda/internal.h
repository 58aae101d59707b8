/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA runtime stand-in, shared by its files.
 *
 * One mutex (vc_lock) guards all objects; work runs outside of it. Streams are threads with a queue
 * of operations. Each operation has a sequence number in its stream, so "all that was submitted
 * before" is a pair (stream, number): the legacy stream's ordering is made of such pairs.
 */
#ifndef VC_CUDA_INTERNAL_H
#define VC_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cuda_runtime_api.h>
#include "exec/exec.h"

/* ---- what a stream or a graph node does ---- */

enum vc_work_kind {
	VC_WORK_EMPTY = 0,
	VC_WORK_KERNEL,
	VC_WORK_COPY,
	VC_WORK_SET,
	VC_WORK_HOST,  /* cudaLaunchHostFunc */
	VC_WORK_CALL,  /* another stand-in's operation */
	VC_WORK_GRAPH, /* a whole executable graph; never inside a graph */
};

struct vc_work {
	enum vc_work_kind kind;
	int device;
	union {
		struct {
			const struct vc_kernel *kernel;
			uint32_t nblocks, nthreads;
			size_t dynamic_shared;
			void *args; /* owned */
		} launch;
		struct {
			void *dst;
			const void *src;
			size_t size;
			void *staged; /* owned copy of pageable source bytes, or NULL */
		} copy;
		struct {
			void *dst;
			int value;
			size_t size;
		} set;
		struct {
			cudaHostFn_t fn;
			void *arg;
		} host;
		struct {
			void (*fn)(void *arg);
			void *arg; /* owned, size bytes */
			size_t size;
		} call;
		struct CUgraphExec_st *graph;
	};
};

void vc_work_run(struct vc_work *work);
void vc_work_free(struct vc_work *work);
cudaError_t vc_work_clone(struct vc_work *to, const struct vc_work *from);

/* ---- streams ---- */

struct vc_marker { /* one recording of an event */
	int refs;
	bool done;
	uint64_t time_ns;
};

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

struct vc_capture;

struct CUstream_st {
	int device;
	unsigned int flags;
	int priority;
	bool legacy;
	bool destroyed; /* by the user; the thread ends when the queue is empty */
	int refs;
	uint64_t submitted, completed;
	struct vc_op *head, *tail;
	pthread_cond_t wake;
	bool started;
	struct vc_capture *capture;
	uint32_t *tails; /* the capture's nodes that the next one depends on */
	uint32_t ntails;
	struct CUstream_st *next; /* all streams that are not freed */
};

struct CUevent_st {
	int device;
	unsigned int flags;
	struct vc_marker *marker;   /* NULL: never recorded */
	struct vc_capture *capture; /* last recorded in this capture, or NULL */
	uint32_t *nodes;            /* the capture's nodes that precede it */
	uint32_t nnodes;
	struct CUevent_st *next;
};

extern pthread_mutex_t vc_lock;
extern pthread_cond_t vc_done; /* broadcast when an operation ends */
extern struct CUstream_st *vc_streams;

/* Handle (0, legacy and per-thread values included) to stream; NULL: unknown or destroyed. */
struct CUstream_st *vc_stream_find(cudaStream_t handle);
void vc_stream_put(struct CUstream_st *stream);
/*
 * Submits work (owned by the stream from here on, also when it fails) in stream order, or appends
 * it to the capture that the stream is in.
 */
cudaError_t vc_stream_submit(cudaStream_t handle, struct vc_work *work);
struct vc_op *vc_stream_push(struct CUstream_st *stream, struct vc_work *work);
cudaError_t vc_stream_wait_seq(struct CUstream_st *stream, uint64_t seq);
cudaError_t vc_device_wait(int device);
void vc_marker_put(struct vc_marker *marker);
struct CUevent_st *vc_event_find(cudaEvent_t event);

/* ---- capture ---- */

/* All with vc_lock held. */
cudaError_t vc_capture_append(struct CUstream_st *stream, struct vc_work *work);
cudaError_t vc_capture_event(struct CUstream_st *stream, struct CUevent_st *event);
cudaError_t vc_capture_wait(struct CUstream_st *stream, struct CUevent_st *event);
bool vc_capture_busy(struct CUstream_st *stream);
void vc_capture_invalidate(struct vc_capture *capture);
void vc_capture_put(struct vc_capture *capture);
/* Work on the legacy stream would join every capture of a blocking stream. */
cudaError_t vc_capture_check_legacy(int device);
void vc_capture_event_reset(struct CUevent_st *event);
/* For calls that no global capture allows (allocation and the like); takes the lock. */
cudaError_t vc_capture_check_unsafe(void);

/* ---- graphs ---- */

struct vc_node {
	struct vc_work work;
	uint32_t *deps; /* indices of earlier nodes */
	uint32_t ndeps;
};

struct CUgraph_st {
	struct vc_node *node;
	uint32_t n, cap;
	struct CUgraph_st *next;
};

struct vc_capture {
	int refs;
	bool invalid, ended;
	enum cudaStreamCaptureMode mode;
	pthread_t thread;
	unsigned long long id;
	struct CUstream_st *origin;
	struct CUgraph_st *graph;
	struct vc_capture *next; /* all that have not ended */
};

struct CUgraph_st *vc_graph_new(void);
void vc_graph_free(struct CUgraph_st *graph);
/* Lists a graph among those that the user may name; with vc_lock held. */
void vc_graph_publish(struct CUgraph_st *graph);
void vc_exec_graph_run(struct CUgraphExec_st *graph);
void vc_exec_graph_put(struct CUgraphExec_st *graph);

/* ---- memory ---- */

enum vc_mem_kind {
	VC_MEM_DEVICE,
	VC_MEM_HOST,
	VC_MEM_REGISTERED,
	VC_MEM_IMPORTED
};

struct vc_mem {
	uintptr_t start;
	size_t size;
	enum vc_mem_kind kind;
	int device;
	void *map;
	size_t map_size;
	int fd;
	uint64_t inode; /* of the memfd */
	int opens;
	unsigned int flags;
	bool sync_memops; /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS; recorded, all copies are synchronous */
};

/* The allocation that holds all of [p, p + size), copied out; false: none does. */
bool vc_mem_find(const void *p, size_t size, struct vc_mem *out);
/* Overlaps an allocation (also partly)? */
bool vc_mem_touches(const void *p, size_t size, struct vc_mem *out);
bool vc_mem_add(const struct vc_mem *mem);
bool vc_mem_remove(uintptr_t start, enum vc_mem_kind kind, struct vc_mem *out);
bool vc_mem_sync_memops(uintptr_t start, enum vc_mem_kind kind, bool on);
struct vc_mem *vc_mem_at(uintptr_t start, enum vc_mem_kind kind); /* with the lock held */
struct vc_mem *vc_mem_by_inode(uint64_t inode);                   /* with the lock held */
extern pthread_mutex_t vc_mem_mutex;
cudaError_t vc_device_alloc(int device, size_t size, size_t align, void **p);
int vc_node(void);
bool vc_peer_possible(int from, int to);

/* ---- devices and errors ---- */

int vc_device_count(void);
int vc_device_current(void);
bool vc_device_valid(int device);
/* The first error is recorded for cudaGetLastError and returned. */
cudaError_t vc_error(cudaError_t error);
void vc_device_set_sticky(int device, cudaError_t error);
cudaError_t vc_device_sticky(int device);
/* VC_FAULT: kill, stop or delay this rank at its n-th launch. */
void vc_fault_at_launch(int device);

#define VC_ENTER()                                                                                 \
	do {                                                                                       \
		cudaError_t vc_sticky_ = vc_device_sticky(vc_device_current());                    \
		if (vc_sticky_) {                                                                  \
			return vc_error(vc_sticky_);                                               \
		}                                                                                  \
	} while (0)

#endif
