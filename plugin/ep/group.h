/* SPDX-License-Identifier: Apache-2.0 */
/* The objects behind ncclEpGroup_t and ncclEpHandle_t, for the files of this directory. */
#ifndef EP_EP_GROUP_H
#define EP_EP_GROUP_H

#include <pthread.h>
#include <stdbool.h>
#include "core/error.h"
#include "core/ident.h"
#include "core/param.h"
#include "core/symm.h"
#include "device/ll/layout.h"
#include "ep/ll/heap.h"
#include "nccl_ep.h"

#define EP_GROUP_MAGIC 0x70756f7267207065ull
#define EP_HANDLE_MAGIC 0x656c646e61687065ull

/* Thread blocks of an operation. */
struct ep_ll_geometry {
	uint32_t send_blocks;
	uint32_t recv_blocks;
	uint32_t threads;
	bool fixed; /* the parameters say how many blocks send and receive, for all operations */
};

/* The config with all choices made. */
struct ep_group_config {
	ncclEpAlgorithm_t algorithm;
	uint32_t num_experts;
	uint32_t num_topk; /* limit of every handle; 0: none */
	uint32_t max_token_bytes;
	uint64_t explicit_bytes; /* rdma_buffer_size; 0: automatic */
	uint32_t max_sms;        /* 0: not limited */
	uint64_t timeout_ns;
	bool enable_mask;
	struct ep_param_list node_size;
	int64_t node_code;    /* the same as a number, for comparison; 0: not set */
	uint32_t rdma_queues; /* asked for; 0: automatic */
	uint32_t rdma_depth;
	uint32_t rdma_mode; /* enum ep_gda_mode */
	int lines_choice; /* rows travel as lines: 0 no, 1 yes, -1 if all GPUs are joined by NVLink */
	ncclEpZeroCopyMode_t zero_copy;
	ncclEpAllocConfig_t alloc;
	struct ep_ll_shape shape;
	struct ep_ll_heap heap; /* at creation */
	uint64_t heap_bytes;    /* of its allocation */
};

/* Memory of a destroyed handle, waiting for the next. */
struct ep_pool_block {
	struct ep_pool_block *next;
	void *ptr;
	uint64_t bytes;
};

struct ncclEpGroup {
	uint64_t magic;
	pthread_mutex_t lock;
	struct ep_error_slot errors;

	ncclComm_t comm;
	int rank;
	int nranks;
	int device;
	uint32_t sm_count;
	struct ep_group_config config;
	struct ep_params params;
	struct ep_ident *idents; /* [nranks] */

	struct ep_symm symm;
	struct ep_ll_heap heap;  /* layout of symm */
	struct ep_dev_group dev; /* as kernels see the group; filled when the heap is bound */
	struct ep_ll_geometry geometry;
	bool lines;

	uint64_t remote; /* bit r: rank r is of another node; if any is, all ranks have one */
	struct ep_gda *gda;
	uint64_t lost_told;                    /* remote ranks whose loss has been logged */
	uint32_t *drain_lost, *drain_lost_dev; /* of the mapped host memory below */

	void *workspace; /* the next six */
	struct ep_dev_seq *seq;
	struct ep_dev_state *state;
	int32_t *mask;
	struct ep_peer_stats *stats;
	struct ep_remote_link *links;     /* this and the next: NULL without remote ranks */
	struct ep_dev_remote *remote_dev; /* what dev.remote points to */

	void *host_shared; /* mapped host memory: the next two, and their device addresses */
	struct ep_record *records;
	uint32_t *async_error;
	struct ep_record *records_dev;
	uint32_t *async_error_dev;

	cudaStream_t stream; /* for the library's own small copies */
	struct ep_pool_block *pool;
	uint32_t handles; /* alive */
	uint32_t pending; /* operations sent but not completed */
	uint32_t clean_rounds;
	bool failed; /* by a device operation, for ever */
	struct ep_error failure;
};

enum ep_pending_kind {
	EP_PENDING_NONE,
	EP_PENDING_DISPATCH,
	EP_PENDING_COMBINE
};

struct ncclEpHandle {
	uint64_t magic;
	struct ncclEpGroup *group;
	uint32_t layout; /* enum ep_ll_layout */
	uint32_t topk;
	unsigned char *mem;
	uint64_t mem_bytes;
	bool mem_owned;
	struct ep_ll_handle_layout mem_layout;
	struct ep_ll_dev_handle dev;        /* as kernels see the memory */
	struct ep_dev_pending *pending_dev; /* in the memory */

	bool routed;
	bool dispatched; /* with the present routing */
	uint32_t num_tokens;
	uint32_t id_bytes;
	const void *topk_idx;

	enum ep_pending_kind pending;
	const void *pending_kernel;
	union {
		struct ep_ll_dispatch_args dispatch;
		struct ep_ll_combine_args combine;
	} pending_args;
};

/* State of a thread inside a call on a group. */
struct ep_call {
	struct ncclEpGroup *group;
	int device; /* to be made current again; -1: it is the group's */
};

/*
 * Begins a call: checks the object, takes the group's lock, makes its device current and looks for
 * failures of device operations. On failure nothing needs ending.
 * `even_failed`: the call is possible after the group has failed.
 */
ncclResult_t ep_group_enter(struct ep_call *call, struct ncclEpGroup *group, bool even_failed);
ncclResult_t ep_handle_enter(struct ep_call *call, struct ncclEpHandle *handle, bool even_failed);
void ep_group_leave(struct ep_call *call);

/* ---- group_config.c ---- */

/* Checks the fields and makes the choices. sm_count 0: unknown, checks against it are left out. */
ncclResult_t ep_group_config_make(struct ep_group_config *out, const ncclEpGroupConfig_t *config,
				  const struct ep_params *params, int nranks, uint32_t sm_count);

/* How many channels a group has whose ranks have at most `remote` remote peers. */
uint32_t ep_group_channels(const struct ep_group_config *config, uint32_t remote);

/* Makes the heap's layout again for that number of channels. */
void ep_group_config_size(struct ep_group_config *config, uint32_t channels);

ncclResult_t ep_ll_geometry_make(struct ep_ll_geometry *out, const struct ep_params *params,
				 uint32_t max_sms, uint32_t sm_count);

/* What ranks have to agree in. */
#define EP_GROUP_AGREED 13
struct ep_group_agreed {
	uint64_t value[EP_GROUP_AGREED];
};
struct ep_group_agreed ep_group_config_agreed(const struct ep_group_config *config);

/* Names the first field in which ranks differ. all[r] is at `stride` bytes. */
ncclResult_t ep_group_agreed_check(const void *all, size_t stride, int nranks);

/* The heap has been bound: fills group->dev. */
void ep_group_dev_fill(struct ncclEpGroup *group);

/* Bytes of the group's own state. */
uint64_t ep_group_workspace_bytes(int nranks, uint32_t channels);

/* ---- remote.c: nothing happens in groups without remote ranks ---- */

/* All ranks' idents are known: who is remote, and what the heap needs for that. */
ncclResult_t ep_net_plan(struct ncclEpGroup *group);

/* Collective: connects with the remote ranks. `mine` is this rank's result so far. */
ncclResult_t ep_net_open(struct ncclEpGroup *group, struct ep_boot *boot, ncclResult_t mine);

/*
 * Collective: makes `symm`, laid out as `heap`, the memory that remote ranks write to. Not while
 * kernels run.
 */
ncclResult_t ep_net_bind(struct ncclEpGroup *group, struct ep_boot *boot,
			 const struct ep_symm *symm, const struct ep_ll_heap *heap);

/*
 * Waits until the NICs have done all that this rank has posted. farewell: tells the remote ranks
 * after it that this rank leaves. No kernel of this rank runs. Bounded by `timeout_ns`.
 */
ncclResult_t ep_net_drain(struct ncclEpGroup *group, bool farewell, uint64_t timeout_ns);

/* Gives the heap up (ep_symm_leave), and the connections with it. */
void ep_net_leave(struct ncclEpGroup *group, uint64_t timeout_ns);

void ep_net_close(struct ncclEpGroup *group, bool stuck);

/*
 * Takes failures of connections that nobody waited for. Fails if the group has failed by that: only
 * without masks. With masks it masks the peer.
 */
ncclResult_t ep_net_poll(struct ncclEpGroup *group);

/* What is known about the connection with that rank, " (text)" or "". */
void ep_net_explain(struct ncclEpGroup *group, uint32_t rank, char *text, size_t size);

static inline bool ep_net_remote(const struct ncclEpGroup *group, uint32_t rank)
{
	return rank < (uint32_t)group->nranks && (group->remote >> rank & 1);
}

/* ---- memory.c ---- */

ncclResult_t ep_alloc(const ncclEpAllocConfig_t *alloc, void **ptr, uint64_t bytes,
		      const char *what);
void ep_free(const ncclEpAllocConfig_t *alloc, void *ptr);
ncclResult_t ep_pool_get(struct ncclEpGroup *group, void **ptr, uint64_t bytes);
void ep_pool_put(struct ncclEpGroup *group, void *ptr, uint64_t bytes);
void ep_pool_drain(struct ncclEpGroup *group);

/* ---- record.c ---- */

/* Looks for failures of device operations. Fails only if the group has failed for good. */
ncclResult_t ep_record_poll(struct ncclEpGroup *group);

/* ---- query.c ---- */

/* Refuses a stream that is being captured, for calls that synchronise it. */
ncclResult_t ep_stream_check_capture(cudaStream_t stream, const char *name);

/* ---- handle.c ---- */

/* Whether the layout and top-k are possible. Shared with the memory query. */
ncclResult_t ep_handle_check(const struct ep_group_config *config, ncclEpLayout_t layout,
			     int num_topk);

/* Bytes of the heap after handles of `topk` have been made, if they can be. */
ncclResult_t ep_group_heap_bytes(const struct ep_group_config *config, uint32_t topk,
				 uint64_t *bytes);

/* ---- ll/launch.c ---- */

/* Loads the kernels, which also tells whether there are any for this GPU. */
ncclResult_t ep_ll_preload(void);

/* Makes room in shared memory for dispatches of `topk`. */
ncclResult_t ep_ll_allow_shared(struct ncclEpGroup *group, uint32_t topk);

/* The handle has its memory: fills handle->dev and handle->pending_dev. */
void ep_ll_handle_fill(struct ncclEpHandle *handle);
/* Into how many parts rows are cut, `parts` and `peer_parts` of ep_ll_common. */
struct ep_ll_parts {
	uint32_t own;
	uint32_t peer;
};

/* All that a launch needs but the halves. A part of our own rows holds whole `tile`s of quads. */
void ep_ll_common_fill(struct ep_ll_common *c, const struct ncclEpHandle *handle, uint32_t quads,
		       uint32_t tile, struct ep_ll_parts parts);
struct ep_ll_parts ep_ll_dispatch_parts(const struct ncclEpHandle *handle, uint32_t quads,
					uint32_t tile);
struct ep_ll_parts ep_ll_combine_parts(const struct ncclEpHandle *handle, uint32_t quads);

/* What dispatch tells the peers about the combine after it. */
uint32_t ep_ll_combine_parts_told(const struct ncclEpHandle *handle);

/* Launches `kernel` with both halves, or sends and keeps the arguments in the handle. */
ncclResult_t ep_ll_dispatch_launch(struct ncclEpHandle *handle, const void *kernel,
				   struct ep_ll_dispatch_args *args, bool send_only,
				   cudaStream_t stream);
ncclResult_t ep_ll_combine_launch(struct ncclEpHandle *handle, const void *kernel,
				  struct ep_ll_combine_args *args, bool send_only,
				  cudaStream_t stream);
ncclResult_t ep_ll_complete_launch(struct ncclEpHandle *handle, cudaStream_t stream);
ncclResult_t ep_ll_clean_launch(struct ncclEpGroup *group, cudaStream_t stream);

#endif
