/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-ins for CUDA's runtime and driver share. */
#ifndef VC_RUNTIME_H
#define VC_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "exec/exec.h"

/* ---- devices and errors ---- */

/*
 * A device has a number in its node, and an ordinal in each process that sees it, which is another
 * one under CUDA_VISIBLE_DEVICES. Calls take and return ordinals; the rest of the code has numbers.
 */
int vc_device_current(void);
/* The same for a call that needs a context: the device has one from now on. */
int vc_device_enter(void);
/* The number of its context, a new one after each reset; 0: it has none. */
unsigned long long vc_device_context(int number);
void vc_device_make_context(int number); /* if there is none */
/*
 * The lock of a device's context, which launches take for a moment, and which the driver holds
 * while an asynchronous copy to pageable memory waits for its stream (seen on an H200, driver 580):
 * threads that share the device launch nothing meanwhile.
 */
void vc_context_lock(int number);
void vc_context_unlock(int number);
/* This thread has asked whether a context is alive, and it is. */
void vc_context_found(void);
/*
 * What a reset has ended is used: says so, and ends the process if VC_RESET_STRICT is set, unless
 * the reset came after this thread's last look at a context.
 */
void vc_ended_used(const char *what);
bool vc_device_valid(int ordinal);
int vc_device_number(int ordinal);
int vc_device_ordinal(int number); /* -1: not seen */
/* As NCCL says it: the digits of the PCI address. */
unsigned int vc_device_bus_id(int number);
bool vc_peer_possible(int from, int to);
int vc_node(void);
/* The first error is recorded for cudaGetLastError and returned. */
cudaError_t vc_error(cudaError_t error);
void vc_device_set_sticky(int device, cudaError_t error);
cudaError_t vc_device_sticky(int device);
/* VC_FAULT: kill, stop or delay this rank at its n-th launch. */
void vc_fault_at_launch(int device);

/* First in most calls: a device with a sticky error refuses them. */
#define VC_ENTER()                                                                                 \
	do {                                                                                       \
		cudaError_t vc_sticky_ = vc_device_sticky(vc_device_enter());                      \
		if (vc_sticky_) {                                                                  \
			return vc_error(vc_sticky_);                                               \
		}                                                                                  \
	} while (0)

/* ---- allocations ---- */

#define VC_PAGE ((uintptr_t)4096) /* of the processor's tables */

enum vc_mem_kind {
	VC_MEM_DEVICE,
	VC_MEM_HOST,
	VC_MEM_REGISTERED,
	VC_MEM_IMPORTED,
	VC_MEM_MAPPED /* a mapping of a handle: cudaFree and CUDA IPC refuse it */
};

struct vc_mem {
	uintptr_t start;
	size_t size;
	enum vc_mem_kind kind;
	int device;
	void *map;
	size_t map_size;
	int fd;
	size_t fd_offset; /* where `map` begins in it */
	uint64_t inode;   /* of the memfd */
	int opens;
	unsigned int flags;
	/* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS; recorded, all copies are synchronous */
	bool sync_memops;
	bool shown; /* as a DMA-BUF, which keeps it after a reset: NICs may use these addresses */
	struct vc_phys *phys; /* MAPPED */
	bool foreign;         /* MAPPED: memory of another process */
};

/* What another process needs to map a device allocation. */
struct vc_export {
	int32_t pid, fd, node, device;
	uint64_t inode, size, map_size, offset;
};

/* The allocation that holds all of [p, p + size), copied out; false: none does. */
bool vc_mem_find(const void *p, size_t size, struct vc_mem *out);
/* Overlaps an allocation (also partly)? */
bool vc_mem_touches(const void *p, size_t size, struct vc_mem *out);
bool vc_mem_add(const struct vc_mem *mem);
bool vc_mem_remove(uintptr_t start, enum vc_mem_kind kind, struct vc_mem *out);
void vc_mem_show(uintptr_t start, enum vc_mem_kind kind); /* as a DMA-BUF */
bool vc_mem_sync_memops(uintptr_t start, enum vc_mem_kind kind, bool on);
extern pthread_mutex_t vc_mem_mutex;
/* Device memory of any kind. */
static inline bool vc_mem_on_device(const struct vc_mem *mem)
{
	return mem->kind == VC_MEM_DEVICE || mem->kind == VC_MEM_IMPORTED ||
	       mem->kind == VC_MEM_MAPPED;
}

/* Counts memory of a device; false: there is not so much. */
bool vc_mem_account(int device, size_t size);
void vc_mem_unaccount(int device, size_t size);
/* Fills fresh memory with the pattern; false: there is no memory for it. */
bool vc_mem_poison(int fd, size_t offset, size_t size);
void vc_mem_export(const struct vc_mem *mem, struct vc_export *out);
/* A descriptor of the exporter's memory, if it is still there; else -1. */
int vc_export_fd(const struct vc_export *from);
/*
 * A reset: memory of the device's context is gone, and host memory no longer registered. Mappings
 * of handles are not the context's, and stay.
 */
void vc_memory_end(int device);
/* An address that no call takes: was it memory that a reset has ended? */
void vc_mem_check_ended(const void *p);
/* Ends a mapping now and frees its addresses later: touching them in between faults. */
void vc_unmap_later(const struct vc_mem *mem);

/*
 * The driver's virtual memory management: memory that lives as long as a handle or a mapping of it
 * does, in whichever process, and addresses that are reserved apart from it.
 */

#define VC_VMM_GRANULARITY ((size_t)2 << 20)

/* Nodes whose GPUs map each other's memory: VC_DOMAIN consecutive ones, 1 if it is not set. */
int vc_domain_of(int node);

/*
 * Memory of a device, mapped once; and its end, which waits for no kernel. Unmapped memory has an
 * address that never comes again.
 */
CUresult vc_vmm_alloc(int device, size_t size, void **p);
CUresult vc_vmm_unmap(void *p);
CUresult vc_vmm_free(void *p);

/* One more mapping, for the current device, of memory of this or another process of the domain. */
CUresult vc_vmm_map_again(const struct vc_export *from, void **p);

CUresult vc_cu_mem_create(CUmemGenericAllocationHandle *handle, size_t size,
			  const CUmemAllocationProp *prop, unsigned long long flags);
CUresult vc_cu_mem_release(CUmemGenericAllocationHandle handle);
CUresult vc_cu_mem_retain(CUmemGenericAllocationHandle *handle, void *p);
CUresult vc_cu_mem_reserve(CUdeviceptr *p, size_t size, size_t align, CUdeviceptr fixed,
			   unsigned long long flags);
CUresult vc_cu_mem_unreserve(CUdeviceptr p, size_t size);
CUresult vc_cu_mem_map(CUdeviceptr p, size_t size, size_t offset,
		       CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult vc_cu_mem_unmap(CUdeviceptr p, size_t size);
CUresult vc_cu_mem_set_access(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc,
			      size_t count);

/* ---- memory behind handles ---- */

struct vc_phys {
	struct vc_phys *next;
	int fd;
	uint64_t inode;
	size_t size;
	int node, device; /* where it is */
	bool own;         /* made by this process */
	int refs;
};

extern pthread_mutex_t vc_vmm_mutex;

/* ---- what an operation of a stream or a node of a graph does ---- */

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
			long late_us; /* what the host does meanwhile comes first */
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

/*
 * Streams. One mutex (vc_lock) guards all objects; work runs outside of it. Streams are threads
 * with a queue of operations. Each operation has a sequence number in its stream, so "all that was
 * submitted before" is a pair (stream, number): the legacy stream's ordering is made of such pairs.
 */

struct vc_marker;

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
/*
 * Submits work (owned by the stream from here on, also when it fails) in stream order, or appends
 * it to the capture that the stream is in.
 */
cudaError_t vc_stream_submit(cudaStream_t handle, struct vc_work *work);
/*
 * With the lock held: queues the work, whose end sets `mark` unless that is NULL. Where it fails,
 * work and mark are freed.
 */
cudaError_t vc_stream_push(struct CUstream_st *stream, struct vc_work *work, struct vc_marker *mark,
			   struct vc_op **op);
cudaError_t vc_device_wait(int device);
/* All of a device but its default streams. The device is at rest. */
void vc_streams_end(int device);

/* ---- events ---- */

struct vc_marker { /* one recording of an event */
	int refs;
	bool done;
	uint64_t time_ns;
};

struct CUevent_st {
	int device;
	bool ended; /* by a reset; stays on the list, so that no other gets its address */
	unsigned int flags;
	struct vc_marker *marker;   /* NULL: never recorded */
	struct vc_capture *capture; /* last recorded in this capture, or NULL */
	uint32_t *nodes;            /* the capture's nodes that precede it */
	uint32_t nnodes;
	struct CUevent_st *next;
};

/* With a reference for the operation that sets it and one for the caller. */
struct vc_marker *vc_marker_new(void);
void vc_marker_put(struct vc_marker *marker);
void vc_events_end(int device);

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

struct CUgraph_st *vc_graph_new(void);
void vc_graph_free(struct CUgraph_st *graph);
/* Lists a graph among those that the user may name; with vc_lock held. */
void vc_graph_publish(struct CUgraph_st *graph);
void vc_exec_graph_run(struct CUgraphExec_st *graph);
void vc_exec_graph_put(struct CUgraphExec_st *graph);
/* Graphs with work of the device, and executable graphs made for it. The device is at rest. */
void vc_graphs_end(int device);

/* ---- stream capture ---- */

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
/* For calls that wait for all streams of a device, which ends captures there; takes the lock. */
cudaError_t vc_capture_check_device(int device);
/* For calls that no global capture allows (allocation and the like); takes the lock. */
cudaError_t vc_capture_check_unsafe(void);

#endif
