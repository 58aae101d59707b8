/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the API, from the structs of a caller to what a group shows: the interface inside
 * this room.
 */
#ifndef EP_EP_EP_H
#define EP_EP_EP_H

#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/board.h"
#include "core/bootstrap.h"
#include "core/cuda.h"
#include "core/error.h"
#include "core/ident.h"
#include "core/param.h"
#include "device/group/group_layout.h"
#include "nccl_ep.h"
#include "nccl_ep/ext.h"
#include "peer/peer.h"

/*
 * ---- an algorithm, as the rest of this directory knows it ----
 *
 * Its limits, what the heap and a handle's memory have to hold for it, and its functions.
 */

struct ep_combine;
struct ep_dispatch;
struct ep_expert_rows_args;
struct ep_view;

struct ep_limits {
	const char *mode; /* the algorithm's name in texts */
	uint32_t max_ranks;
	uint32_t max_tokens; /* of a rank */
	uint32_t max_topk;
	uint32_t auto_topk; /* the heap is for handles of this, unless the config has num_topk */
	uint32_t max_selections; /* tokens of a rank times top-k */
	uint32_t spare_sms;      /* a budget of AUTO leaves one of so many SMs to others; 0: none */
	uint32_t banks;          /* of the heap */
	uint32_t layouts;        /* bits 1 << ncclEpLayout_t */
	const char *layout_names;
	bool grows;    /* its heap does, for a handle of a top-k that has no room there */
	bool halves;   /* operations can be split, and a combine returns what a dispatch brought */
	bool masks;    /* lost ranks can be left out */
	bool backward; /* there is a backward pass */
	uint32_t dispatch_formats; /* bits 1 << enum ep_row_format: how rows can travel */
	uint32_t combine_formats;
};

/* The heap's layout depends on this, and on the top-k. Equal on all ranks. */
struct ep_shape {
	uint32_t nranks;
	uint32_t nlocal; /* experts of a rank that holds some */
	uint32_t max_tokens;
	uint32_t max_token_bytes; /* of a row, whatever travels in it */
	uint32_t channels;        /* 0: no rank has remote peers, and there is nothing for them */
	uint32_t banks;
	uint32_t limit;      /* rows that a rank receives at most; EP_NO_LIMIT: as many as come */
	uint32_t ring_bytes; /* high throughput: rows on their way, at most if there is a choice */
	struct ep_roles roles;
	struct ep_nodes_most nodes; /* its remote and flows are 0: one node */
};
#define EP_NO_LIMIT UINT32_MAX

/* Where things lie in the heap, as far as the group itself needs to know. */
struct ep_group_heap {
	uint32_t topk; /* handles of up to this top-k fit; 0: none */
	uint64_t bytes;
	uint64_t progress_off; /* [R], 8 bytes each */
	uint64_t signature_off;
	uint64_t clean_off;
	uint64_t signal_off; /* [R][channels] */
	uint64_t stage_off;  /* [channels][2] sides */
	uint64_t stage_side_bytes;
};

/* What a number of SMs is for. */
enum ep_budget_kind {
	EP_BUDGET_SHARED, /* UpdateHandle, and what has none of its own */
	EP_BUDGET_DISPATCH,
	EP_BUDGET_COMBINE,
	EP_BUDGETS
};

/* The most SMs of an operation. */
struct ep_budget {
	uint32_t sms;   /* 0: the device is not known */
	bool automatic; /* the caller leaves it to the library */
};

/* A group's config with all choices made. */
struct ep_group_config {
	const struct ep_algo *algo;
	ncclEpAlgorithm_t algorithm;
	uint32_t num_experts;
	uint32_t num_topk;       /* what handles will have; 0: unknown */
	uint64_t explicit_bytes; /* rdma_buffer_size; 0: automatic */
	struct ep_budget budget[EP_BUDGETS];
	uint32_t least_sms[EP_BUDGETS]; /* each budget on the rank that has fewest */
	uint64_t timeout_ns;
	bool enable_mask;
	bool overlap;   /* AUTO's SMs are for computation beside operations (high throughput) */
	int send_warps; /* of a block in high throughput; -1: chosen, 0: all receive, too */
	bool drop;      /* rows beyond shape.limit are dropped: else they are an error */
	bool live;      /* it shows what it does on its board */
	uint32_t api;   /* the version that the caller was made for, by the size of its config */
	enum ep_memory memory;
	bool nvls;
	struct ep_param_list node_size;
	int64_t node_code;    /* the same as a number, for comparison; 0: not set */
	uint32_t rdma_queues; /* asked for; 0: automatic */
	uint32_t rdma_depth;
	uint32_t rdma_mode;   /* enum ep_gda_mode */
	int64_t direct_bytes; /* zero_copy AUTO is direct from so many bytes on; -1: never */
	/* rows travel as lines: 0 no, 1 yes, -1 if all GPUs are joined by NVLink */
	int lines_choice;
	ncclEpZeroCopyMode_t zero_copy;
	ncclEpAllocConfig_t alloc;
	struct ep_shape shape;
	struct ep_group_heap heap; /* at creation */
	uint64_t heap_bytes;       /* of its allocation */
};

struct ep_algo {
	struct ep_limits limits;

	/* How many channels a group of several nodes has; NULL: by the config. */
	uint32_t (*channels)(const struct ep_group_config *config);

	/* Checks of a config besides the limits, and of a handle; NULL: none. */
	ncclResult_t (*config_check)(const ncclEpGroupConfig_t *config,
				     const struct ep_roles *roles);
	ncclResult_t (*handle_check)(const struct ep_group_config *config, ncclEpLayout_t layout,
				     const ncclEpHandleConfig_t *handle, uint32_t topk);

	/*
	 * The heap for handles of up to `topk`, memory of the group alone (NULL: none), and of one
	 * handle.
	 */
	struct ep_group_heap (*heap)(const struct ep_shape *shape, uint32_t topk);
	uint64_t (*group_bytes)(const struct ep_shape *shape);
	uint64_t (*handle_bytes)(const struct ep_shape *shape, ncclEpLayout_t layout,
				 uint32_t topk);

	/*
	 * Rows of outputs->tokens when it holds whatever may come, or what the config limits that
	 * to.
	 */
	uint64_t (*most_rows)(const struct ep_shape *shape, ncclEpLayout_t layout, uint32_t topk,
			      uint64_t alignment);

	/* Makes the group's state: one block of memory, which the group frees. */
	ncclResult_t (*group_open)(struct ncclEpGroup *group);
	/* The group has another heap. */
	void (*group_bind)(struct ncclEpGroup *group);
	/* The same with remote ranks, before that: what may fail; NULL: nothing. */
	ncclResult_t (*group_bind_remote)(struct ncclEpGroup *group);
	/* The state's choices, for the log. */
	void (*group_describe)(const struct ncclEpGroup *group, char *text, size_t size);

	/* The same for a handle. Fails if this GPU cannot run operations of the handle's top-k. */
	ncclResult_t (*handle_open)(struct ncclEpHandle *handle,
				    const ncclEpHandleConfig_t *config);
	/* The handle has its memory. */
	void (*handle_bind)(struct ncclEpHandle *handle);

	/* The routing is `ids`; `info` may be NULL. */
	ncclResult_t (*update)(struct ncclEpHandle *handle, const struct ep_view *ids,
			       const ncclEpLayoutInfo_t *info, cudaStream_t stream);
	/* Check what operation.c leaves to them, and launch: one half if send_only. */
	ncclResult_t (*dispatch)(const struct ep_dispatch *dispatch, cudaStream_t stream);
	ncclResult_t (*combine)(const struct ep_combine *combine, cudaStream_t stream);
	/*
	 * Launches the receive half of the handle's pending operation; NULL: there are no halves.
	 */
	ncclResult_t (*complete)(struct ncclEpHandle *handle, cudaStream_t stream);

	/* Fills all but args->rows: what the handle's routing selects. */
	void (*selections)(const struct ncclEpHandle *handle, struct ep_expert_rows_args *args);

	/* For ncclEpExtStartArrivals, as ep_handle_arrivals(); NULL: there is no such thing. */
	ncclResult_t (*arrivals)(struct ncclEpHandle *handle, void *arrivals, size_t *bytes,
				 cudaStream_t stream);

	/* For ncclEpExtNumRecvTokens. */
	ncclResult_t (*received)(const struct ncclEpHandle *handle, uint64_t *tokens,
				 uint64_t *rows, cudaStream_t stream);
};

extern const struct ep_algo ep_ll_algo;
extern const struct ep_algo ep_ht_algo;

/* ---- makes a group's config, with all choices, and compares those of ranks ---- */

/*
 * Checks the fields and makes the choices. `roles` NULL, or its size 0: all ranks do all. sm_count
 * 0: unknown, checks against it are left out.
 */
ncclResult_t ep_group_config_make(struct ep_group_config *out, const ncclEpGroupConfig_t *config,
				  const ncclEpExtRoles_t *roles, const struct ep_params *params,
				  int nranks, uint32_t sm_count);

/*
 * For peers' memory in the host: fewer SMs, where the program has left them to the library. Each
 * look of a warp that waits crosses PCIe, where many delay what they wait for. The budget of an
 * operation, and all of them:
 */
uint32_t ep_group_config_host_sms(const struct ep_budget *budget);
void ep_group_config_spare_bus(struct ep_group_config *config);

/* The part of a config in which ranks must agree. */
#define EP_GROUP_AGREED 21
struct ep_group_agreed {
	uint64_t value[EP_GROUP_AGREED];
};
struct ep_group_agreed ep_group_config_agreed(const struct ep_group_config *config);

/* Names the first field in which ranks differ. all[r] is at `stride` bytes. */
ncclResult_t ep_group_agreed_check(const void *all, size_t stride, int nranks);

/*
 * ---- which share of a GPU's SMs kernels of a group may hold while they wait for peers ----
 *
 * Blocks that wait are never preempted, so groups of one process that run on different streams can
 * keep each other from the SMs that their peers wait for. With S SMs, n groups of low latency whose
 * receivers hold at most r each, and groups of high throughput that hold at most H together, no
 * order of launches on any rank locks up if
 *
 *     H <= S            all blocks of high throughput wait for all of their peers' blocks
 *     H + (n - 1) r < S    an SM is left for the senders of each group of low latency, which wait
 *                          for nothing; its receivers come after its senders
 *
 * Operations whose budget is AUTO share what others leave. Groups of other processes are not known
 * here.
 */

/* A live group's part. */
struct ep_resident {
	struct ep_resident *next;
	int device;
	uint32_t sm_count; /* of the device; 0: the group is not counted */
	bool all_wait;     /* high throughput */
	uint32_t chosen;   /* the largest budget that the caller has chosen; 0: all are AUTO */
	uint32_t most;     /* blocks of an operation that wait, at most */
	uint32_t limit;    /* the same beside the groups that live now; changes at any time */
};

/* Counts a group, whose fields up to `most` are set. Warns if groups can lock each other up. */
void ep_resident_add(struct ep_resident *group);

/* The group launches nothing any more. Does nothing for one that was not added. */
void ep_resident_remove(struct ep_resident *group);

/* Blocks that the next launch may have: all of high throughput, receivers of low latency. */
uint32_t ep_resident_limit(const struct ep_resident *group);

/* Appends to an error's text how many groups share the device, if it is more than one. */
void ep_resident_describe(const struct ep_resident *group, char *text, size_t size);

/* ---- tensor descriptors of callers, checked and resolved to device pointers ---- */

/* A checked descriptor: every field may be relied on. Extents are the caller's array. */
struct ep_view {
	void *data; /* NULL only if an extent is 0 */
	uint32_t elem_bytes;
	ncclDataType_t datatype;
	unsigned int ndim;
	const size_t *sizes;
};

/* A descriptor with room for its extents. */
ncclResult_t ep_tensor_alloc(ncclEpTensor_t **tensor, unsigned int ndim, ncclDataType_t datatype,
			     const size_t *sizes, const ncclEpTensorAllocConfig_t *config);
ncclResult_t ep_tensor_destroy(ncclEpTensor_t *tensor);

/* Bytes of an element; 0: not a type of this API. */
uint32_t ep_dtype_bytes(ncclDataType_t datatype);
const char *ep_dtype_name(ncclDataType_t datatype);

/*
 * Checks that the tensor is an intact descriptor of `ndim` dimensions with storage, and finds the
 * storage: `data`, or the window's address on this rank. `name` is how errors call it.
 */
ncclResult_t ep_view_make(struct ep_view *view, ncclComm_t comm, const ncclEpTensor_t *tensor,
			  unsigned int ndim, const char *name);

/* Of all elements; UINT64_MAX: more than that. */
uint64_t ep_view_bytes(const struct ep_view *view);

/* Further demands on a view. `data` aligned to `align` bytes unless NULL. */
ncclResult_t ep_view_expect_type(const struct ep_view *view, ncclDataType_t datatype,
				 const char *name);
ncclResult_t ep_view_expect_dim(const struct ep_view *view, unsigned int dim, uint64_t extent,
				const char *meaning, const char *name);
ncclResult_t ep_view_expect_align(const struct ep_view *view, uint32_t align, const char *name);

/* Bytes of a row, dimension `dim`: a positive multiple of 16 that 32 bits hold. */
ncclResult_t ep_view_row_bytes(const struct ep_view *view, unsigned int dim, uint32_t *bytes,
			       const char *name);

/* NULL is fine, anything else is an error with the reason. */
ncclResult_t ep_tensor_expect_absent(const ncclEpTensor_t *tensor, const char *name,
				     const char *why);

/* ---- the state of groups and handles ---- */

/* State of a thread inside a call on a group. (A call of the host alone changes no device.) */
struct ep_call {
	struct ncclEpGroup *group;
	int device;                         /* to be made current again; -1: it is the group's */
	struct ep_board_call *shown;        /* NULL: the group does not show the call */
	const struct ncclEpHandle *counted; /* whose tokens it shows in the end; NULL: none */
};

/* A group as others see it. */
struct ep_show {
	struct ep_board *board; /* NULL: nothing is shown */
	struct ep_shared_file file;
	struct ep_pinned pinned;     /* the same memory; empty: kernels do not write there */
	uint64_t *waits, *waits_dev; /* of long waits, by two addresses; NULL: likewise */
};

/* A group as the thread sees it. */
struct ep_watch {
	struct ep_watch *next, **link;   /* of all that are watched: under the lock */
	const struct ncclEpGroup *group; /* NULL: it is not watched */
	uint64_t *seen;                  /* [nranks] words at the last look */
	uint32_t *logged;                /* [nranks] steps whose wait the log has; 0: none */
};

/* A window that operations of the group have used: its start on each rank, as mapped here. */
struct ep_window {
	ncclWindow_t win;
	unsigned char **base; /* [R] */
};

/* A group keeps so many, and forgets the one that it has found longest ago. */
#define EP_WINDOWS 8

struct ep_windows {
	struct ep_window known[EP_WINDOWS]; /* latest first; unused: base NULL */
};

struct ncclEpGroup {
	pthread_mutex_t lock; /* refuses a thread that has it */
	uint32_t calling;     /* enum ep_board_kind: the call that has it, or an earlier one */
	struct ep_error_slot errors;

	ncclComm_t comm;
	int rank;
	int nranks;
	int device;
	struct ep_context context; /* of the device, when the group was made */
	uint32_t sm_count;
	bool programmatic; /* launches: ep_kernels_programmatic() */
	struct ep_group_config config;
	struct ep_params params;
	struct ep_ident *idents; /* [nranks] */

	struct ep_peer_choice memory; /* how heaps are mapped */
	struct ep_heap peer_heap;
	struct ep_group_heap heap; /* layout of peer_heap */
	bool heap_warned;          /* that it is larger than the caller wants */
	bool heap_refused;         /* its peers are notified that this rank refuses a larger one */
	struct ep_dev_group dev;   /* as kernels see the group; filled when the heap is bound */
	bool lines;
	struct ep_windows windows;
	struct ep_ll *ll; /* state of the algorithm; the other one is NULL */
	struct ep_ht *ht;
	struct ep_resident resident;

	uint32_t remote_ranks; /* of other nodes; if a rank has some, all have */
	struct ep_gda *gda;
	struct ep_ranks lost_logged; /* remote ranks whose loss the log has */

	void *workspace; /* the next nine */
	struct ep_dev_seq *seq;
	struct ep_dev_state *state;
	int32_t *mask;
	struct ep_peer_stats *stats;
	struct ep_remote_link *links;     /* this and the next: NULL without remote ranks */
	struct ep_dev_remote *remote_dev; /* what dev.remote points to, */
	struct ep_remote_place *places;   /* and its places */
	unsigned char **all_heaps;        /* NULL: the group is small */
	void *algo_memory;                /* algo->group_bytes() of it */

	struct ep_show show;   /* what others see of the group, */
	struct ep_watch watch; /* and what watches its waits */

	int32_t *mask_host;               /* [nranks] host memory for copies of the mask, */
	struct ep_peer_stats *stats_host; /* and of the statistics */

	struct ep_pinned shared; /* records, flag and ranks, by two addresses; and `copied` */
	void *copied;            /* what the host copies from heaps, to explain a record */
	struct ep_record *records;
	uint32_t *async_error;
	struct ep_record *records_dev;
	uint32_t *async_error_dev;
	struct ep_ranks *kernel_ranks; /* what a kernel of one block found */
	struct ep_ranks *kernel_ranks_dev;

	cudaStream_t stream; /* for the library's own small copies */
	cudaEvent_t event;   /* orders two streams of the caller */
	struct ep_pool_block *pool;
	struct ncclEpHandle *handles; /* alive */
	uint32_t pending;             /* operations sent but not completed, outside of captures */
	bool captured;                /* a half was: then only the device knows what is pending */
	uint32_t cleans;              /* MaskCleans that this rank has called */
	uint32_t first_step;          /* taken by the group before this rank joined it */
	struct ep_ranks joined;       /* since the last MaskClean, which takes them in */
	bool unpaired; /* masks: an operation was captured, or a handle ended before its combine */
	bool failed;   /* by a device operation, for ever */
	bool reset;    /* the device was: nothing of the group is there any more */
	bool ending;   /* a thread destroys it; of call_gate */
	struct ep_error failure;
	uint32_t unlock_due; /* bit per class: a record that was taken and is to be unlocked, */
	bool masks_due;      /* these ranks are lost, and to be masked: by ep_group_settle() */
	struct ep_ranks mask_due;
};

enum ep_pending_kind {
	EP_PENDING_NONE,
	EP_PENDING_DISPATCH,
	EP_PENDING_COMBINE
};

/* Tensors with received rows, as the handle's layout has them. */
struct ep_received {
	unsigned int ndim;      /* leading dimensions, before that of a row */
	uint64_t extent[2];     /* of these */
	const char *meaning[2]; /* NULL: the algorithm knows what they must be */
};

struct ncclEpHandle {
	struct ncclEpGroup *group;         /* NULL: destroyed, and the handle can only be, too */
	struct ncclEpHandle *next, **link; /* list of the group */
	ncclEpLayout_t layout;
	uint32_t topk;
	uint32_t alignment; /* high throughput: of zones */
	unsigned char *mem;
	uint64_t mem_bytes;
	bool mem_owned;
	struct ep_received received; /* filled by the algorithm */
	struct ep_ll_handle *ll;     /* state of the algorithm, as in the group */
	struct ep_ht_handle *ht;

	bool routed; /* by a call with this handle */
	bool dispatched;
	bool combined;              /* since the last dispatch */
	uint32_t dispatched_tokens; /* num_tokens then, */
	uint32_t dispatch_cleans;   /* and number of MaskCleans before */
	/* random: distinguishes this handle's memory from that of others before it */
	uint64_t secret;
	uint32_t num_tokens; /* if routed */
	uint32_t id_bytes;   /* low latency: this and the next */
	const void *topk_idx;
	enum ep_pending_kind pending; /* sent, and to be received; and if any, where it was sent: */
	cudaStream_t sent_on;
	unsigned long long sent_capture;     /* 0: outside of captures; as this, */
	unsigned long long received_capture; /* of a receive half that may run never, or again; */
	unsigned long long lost_capture;     /* and of a send half that is not received there */
};

/* ---- callers' structs of any API version ---- */

/*
 * Copies a caller's struct into `own`, which is zeroed first. The caller's may end earlier (its
 * fields beyond count as zero) or later (its tail is ignored), but not before `v1_size`.
 * own->size afterwards is the caller's size. NULL is ncclInvalidArgument.
 */
ncclResult_t ep_struct_import(void *own, size_t own_size, const void *caller, unsigned int v1_size,
			      const char *name);

/* The same, but NULL gives all zero, with size 0. */
ncclResult_t ep_struct_import_optional(void *own, size_t own_size, const void *caller,
				       unsigned int v1_size, const char *name);

/* Writes as much of `own` as the caller's struct has room for; its size stays what it was. */
void ep_struct_export(void *caller, void *own, size_t own_size, unsigned int caller_size);

#define EP_IMPORT(own, caller, prefix)                                                             \
	ep_struct_import(own, sizeof(*(own)), caller, prefix##_V1_SIZE, #caller)
#define EP_IMPORT_OPTIONAL(own, caller, prefix)                                                    \
	ep_struct_import_optional(own, sizeof(*(own)), caller, prefix##_V1_SIZE, #caller)

/* ---- the beginning and the end of every call on a group ---- */

/* Errors of the five calls of masks; the argument is the call's name. */
#define EP_CALL_NO_MASK                                                                            \
	"%s: the group was created without enable_mask, or in high throughput mode, which has no " \
	"masks"
#define EP_CALL_NO_POINTER "%s: %s is NULL"

/*
 * Begins a call: checks the object, takes the group's lock, makes its device current and looks for
 * failures of device operations. On failure nothing needs ending.
 * `even_failed`: the call is possible after the group has failed, but not if its device was reset.
 */
ncclResult_t ep_call_begin_group(struct ep_call *call, struct ncclEpGroup *group, bool even_failed);
ncclResult_t ep_call_begin_handle(struct ep_call *call, struct ncclEpHandle *handle,
				  bool even_failed);

/*
 * For the group's end: the same, and it is possible also after the device was reset. Of several
 * threads one begins it; another may after ep_call_stay(), by which a group is not destroyed after
 * all.
 */
ncclResult_t ep_call_begin_end(struct ep_call *call, struct ncclEpGroup *group);
void ep_call_stay(struct ncclEpGroup *group);

/*
 * The same for calls that need no device: the thread's device stays as it is. To make a device
 * current means to make a context on it, where the thread's own device is concerned as well.
 */
ncclResult_t ep_call_begin_group_host(struct ep_call *call, struct ncclEpGroup *group,
				      bool even_failed);
ncclResult_t ep_call_begin_handle_host(struct ep_call *call, struct ncclEpHandle *handle,
				       bool even_failed);

/*
 * ncclEpGetAsyncError: by any thread while another one is in a call on the group, without waiting
 * for that. The group may be destroyed while this runs.
 */
ncclResult_t ep_call_async_error(struct ncclEpGroup *group, int *error);

/* From now on the group is no group any more. The caller is in a call on it. */
void ep_call_retire(struct ncclEpGroup *group);

/* That it is a handle; its group may have been destroyed. */
ncclResult_t ep_handle_expect(const struct ncclEpHandle *handle);

/* Ends it. Returns `result`. */
ncclResult_t ep_call_end(struct ep_call *call, ncclResult_t result);

/* Refuses a stream that is being captured, for calls that read or write host memory. */
ncclResult_t ep_stream_check_capture(cudaStream_t stream, const char *name);

/*
 * That the stream is of the current device. CUDA refuses launches on others by itself, and copies
 * it does not refuse.
 */
ncclResult_t ep_stream_check_device(cudaStream_t stream, const char *what);

/*
 * ---- where the time goes in which a group is made, for the log ----
 *
 * This rank's own work by its kind, and the exchanges, in which it waits for NCCL and for the other
 * ranks.
 */

enum ep_time {
	EP_TIME_GPUS,    /* asking CUDA and NVML about the GPUs */
	EP_TIME_KERNELS, /* loading them */
	EP_TIME_MEMORY,  /* allocating, clearing, mapping */
	EP_TIME_NICS,
	EP_TIMES
};

struct ep_times {
	uint64_t start_ns;
	uint64_t phase_ns;     /* when the last phase ended, */
	uint64_t exchanged_ns; /* and how long exchanges had taken by then */
	uint64_t own_ns[EP_TIMES];
};

void ep_times_start(struct ep_times *times);

/* Counts this rank's own time since the last phase for this kind. */
void ep_times_phase(struct ep_times *times, const struct ep_boot *boot, enum ep_time kind);

/* "31.0 ms: ..." */
void ep_times_describe(const struct ep_times *times, const struct ep_boot *boot, char *text,
		       size_t size);

/* Which library this is. The line is the thread's, until its next call. */
ncclResult_t ep_version_text(const char **text);

/*
 * Logs that line once in a process: with NCCL_DEBUG=INFO on every rank, with less on rank 0, as
 * NCCL's own version.
 */
void ep_version_log(int rank);

/* ---- makes and ends groups ---- */

/* What a rank has come for to the first exchange on a communicator. */
enum ep_part {
	EP_PART_CREATE, /* all make a group, */
	EP_PART_JOIN,   /* or these enter one in the place of lost ranks, */
	EP_PART_STAY    /* in which these are */
};

/* What ranks of a group tell those who join it, in this exchange. */
struct ep_terms {
	uint64_t team;                  /* of its heaps */
	uint32_t part;                  /* enum ep_part */
	uint32_t topk;                  /* as ep_group_heap.topk */
	uint32_t step;                  /* that the rank has taken */
	uint32_t least_sms[EP_BUDGETS]; /* as in ep_group_config */
	uint32_t lines;
	uint32_t sms[EP_BUDGETS];      /* that an operation may have, */
	uint32_t host_sms[EP_BUDGETS]; /* or may have in host memory */
};

/* The ranks of a communicator, as they know each other after that. */
struct ep_meeting {
	struct ep_terms terms; /* before: this rank's. After: of a rank that stays, or of rank 0 */
	struct ep_ident *idents; /* [nranks] this and the next two: from the caller */
	struct ep_peer_choice *memory;
	bool *newcomers; /* [nranks] who joins; NULL in a creation */
};

/*
 * Collective: the first exchange. `g` is NULL on a rank that has failed without memory for it. From
 * here on all ranks know the same, so checks of what was exchanged fail on all or on none.
 */
ncclResult_t ep_group_meet(struct ncclEpGroup *g, struct ep_boot *boot, struct ep_meeting *meeting,
			   ncclResult_t mine);

/*
 * Collective. *ep_group is written on success. `roles` may be NULL. `part`: EP_PART_CREATE, or
 * EP_PART_JOIN while ranks of a group call ep_group_replace().
 */
ncclResult_t ep_group_create(struct ncclEpGroup **ep_group, ncclComm_t comm,
			     const ncclEpGroupConfig_t *config, const ncclEpExtRoles_t *roles,
			     enum ep_part part);

/*
 * Collective: ranks of `comm` that join take the places of lost ones. They are masked until
 * MaskClean. The communicator is the group's from then on.
 */
ncclResult_t ep_group_replace(struct ncclEpGroup *group, ncclComm_t comm);

/* Ends the call as well, and on success the group. */
ncclResult_t ep_group_destroy(struct ep_call *call);

/* Bytes of the group's own state. */
uint64_t ep_group_workspace_bytes(const struct ep_group_config *config);

/* Sets the channels, the banks and the heap's layout for those nodes. */
void ep_group_config_size(struct ep_group_config *config, struct ep_nodes_most nodes);

/* Whether operations of that shape are possible in such a group. */
ncclResult_t ep_feasible(const ncclEpGroupConfig_t *config, int nranks, ncclEpExtShape_t *shape);

/* One that is not there for callers: what it has outside of it is gone. */
void ep_group_free(struct ncclEpGroup *group);

/* Takes the handle off its group's list. */
static inline void ep_handle_delist(struct ncclEpHandle *handle)
{
	*handle->link = handle->next;
	if (handle->next) {
		handle->next->link = handle->link;
	}
}

/* ---- remains of a group that could not be made, or of its growth ---- */

/*
 * Ends the bootstrap, and gives back what was made with it: `group`, one that was being made, or
 * NULL; `heap`, that a group should have grown to, or NULL. Collective as ep_heap_close is, where
 * there is a heap and boot has not failed. If a collective holds the device up, a thread of the
 * library gives all of it back when the device is at rest, which the program sees to by aborting
 * the communicator. Where none can be started ep_group_give_up_again tries again.
 */
void ep_group_give_up(struct ep_boot *boot, int device, struct ncclEpGroup *group,
		      struct ep_heap *heap);
void ep_group_give_up_again(void);

/* ---- device memory that peers do not map: the caller's allocator, and the handles' pool ---- */

ncclResult_t ep_alloc(const ncclEpAllocConfig_t *alloc, void **ptr, uint64_t bytes,
		      const char *what);
void ep_free(const struct ncclEpGroup *group, void *ptr);

/* Memory of destroyed handles waits in the pool for the next. */
ncclResult_t ep_pool_get(struct ncclEpGroup *group, void **ptr, uint64_t bytes);
void ep_pool_put(struct ncclEpGroup *group, void *ptr, uint64_t bytes);
void ep_pool_drain(struct ncclEpGroup *group);

/* ---- the heap of a group: its size, and its replacement by a larger one ---- */

/* The beginning of every heap, up to heap->bytes. */
void ep_group_heap_begin(struct ep_group_heap *heap, const struct ep_shape *shape);

/* Takes `bytes` there, at a multiple of `align`. */
uint64_t ep_group_heap_take(uint64_t *at, uint64_t bytes, uint64_t align);

/* Bytes of the heap after handles of `topk` have been made. */
uint64_t ep_group_heap_bytes(const struct ep_group_config *config, uint32_t topk);

/* The largest top-k of any handle. A rank that passes a larger one is refused by itself. */
uint32_t ep_group_most_topk(const struct ep_group_config *config);

/* Warns, once a group, if handles of `topk` take more than rdma_buffer_size. */
void ep_group_heap_warn(struct ncclEpGroup *group, uint32_t topk);

/*
 * group->peer_heap and group->heap are new: fills group->dev. Collective in groups of many ranks,
 * else it cannot fail.
 */
ncclResult_t ep_group_heap_bind(struct ncclEpGroup *group, struct ep_boot *boot);

/*
 * Makes sure that handles of `topk` fit. Collective if they do not, also for a rank where something
 * is wrong already: `mine`, which the others get to know.
 */
ncclResult_t ep_group_heap_reserve(struct ncclEpGroup *group, uint32_t topk, ncclResult_t mine);

/* This rank refuses a call for whose top-k the others may be enlarging their heaps. */
void ep_group_heap_refuse(struct ncclEpGroup *group);

/* ---- callers' tensors in NCCL windows, as peers of the node see them ---- */

/*
 * at[R]: where every rank has the tensor of `view`, if all ranks pass the same offset in the same
 * window. Returns NULL, or why peers cannot store to it. It waits for nothing and uses no stream.
 */
const char *ep_window_places(unsigned char **at, struct ncclEpGroup *g,
			     const ncclEpTensor_t *tensor, const struct ep_view *view);

/* NULL, or why the view of the tensor does not lie in its window on this rank. */
const char *ep_window_holds(const struct ncclEpGroup *g, const ncclEpTensor_t *tensor,
			    const struct ep_view *view);

void ep_windows_free(struct ep_windows *windows);

/* ---- makes, routes and ends handles, and checks their routing for operations ---- */

/* Whether these are possible; handle NULL: all of it AUTO. Shared with the memory query. */
ncclResult_t ep_handle_check(const struct ep_group_config *config, ncclEpLayout_t layout,
			     const ncclEpHandleConfig_t *handle, int num_topk);

/* The calls of these names, inside the group. */
ncclResult_t ep_handle_mem_size(const struct ncclEpGroup *group, ncclEpLayout_t layout,
				const ncclEpHandleConfig_t *config, size_t *size_out, int num_topk);
ncclResult_t ep_handle_init(struct ncclEpHandle **out, struct ncclEpGroup *group,
			    ncclEpLayout_t layout, const ncclEpHandleConfig_t *config, int num_topk,
			    const ncclEpTensor_t *handle_mem);
ncclResult_t ep_handle_update(struct ncclEpHandle *handle, const ncclEpTensor_t *topk_idx,
			      const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream);
ncclResult_t ep_handle_create(struct ncclEpHandle **out, struct ncclEpGroup *group,
			      ncclEpLayout_t layout, const ncclEpTensor_t *topk_idx,
			      const ncclEpLayoutInfo_t *layout_info,
			      const ncclEpHandleConfig_t *config, cudaStream_t stream);
/* Prepares the handle's next dispatch to count in `arrivals`; NULL: stores the bytes that takes. */
ncclResult_t ep_handle_arrivals(struct ncclEpHandle *handle, void *arrivals, size_t *bytes,
				cudaStream_t stream);
ncclResult_t ep_handle_destroy(struct ncclEpHandle *handle);
/* The same for a handle without a group, outside any group. */
void ep_handle_free_orphan(struct ncclEpHandle *handle);

/* That the handle has a routing, or can have one of the caller's handle_mem. */
ncclResult_t ep_handle_check_routed(const struct ncclEpHandle *handle, const char *name);

/* The tokens of the handle's routing: those of `view` if only the device knows. */
ncclResult_t ep_handle_check_tokens(const struct ncclEpHandle *handle, const struct ep_view *view,
				    uint32_t *num_tokens, const char *name);

/* Returns the receipt of a dispatch of so many tokens, and whether a receipt is of this handle. */
uint64_t ep_handle_receipt_id(const struct ncclEpHandle *handle, uint32_t num_tokens);
bool ep_handle_receipt_mine(const struct ncclEpHandle *handle,
			    const struct ep_dev_receipt *receipt);

/* That the leading extents of a tensor with received rows are those of the layout. */
ncclResult_t ep_received_expect(const struct ep_received *received, const struct ep_view *view,
				const char *name);

/* ---- operations that two launches send and receive: what is sent and not received yet ---- */

/*
 * That no operation of the handle has been sent and not received: outside of captures, and in that
 * of `stream`.
 */
ncclResult_t ep_halves_check_received(const struct ncclEpHandle *handle, const char *name);
ncclResult_t ep_halves_check_idle(const struct ncclEpHandle *handle, const char *name,
				  cudaStream_t stream);
/* The same, and the group has a bank for an operation on `stream`, send_only or whole. */
ncclResult_t ep_halves_check(const struct ncclEpHandle *handle, bool send_only, const char *name,
			     cudaStream_t stream);
/*
 * That no bank of the device holds an operation, before the heap is replaced. The device is at
 * rest.
 */
ncclResult_t ep_halves_check_device(const struct ncclEpGroup *group, uint32_t topk);

/* The operation is launched on `stream`, or its send half if send_only. */
void ep_halves_launched(struct ncclEpHandle *handle, enum ep_pending_kind kind, bool send_only,
			cudaStream_t stream);
/* No receive half follows what the handle has sent. */
void ep_halves_forget(struct ncclEpHandle *handle);

/* ncclEpComplete, inside the group. */
ncclResult_t ep_halves_complete(struct ncclEpHandle *handle, const ncclEpCompleteConfig_t *config,
				cudaStream_t stream);

/* ---- formats in which rows travel, and the recipes that name them ---- */

/* Rows that kernels make of bf16: what a caller gets, and gives. */
struct ep_format {
	const char *what;
	ncclDataType_t tokens;
	ncclDataType_t scales;
	uint32_t group;    /* elements that share a scale */
	uint32_t halves;   /* 1: two elements are one of `tokens` */
	uint32_t multiple; /* a row that dispatch makes has a multiple of so many elements */
};
extern const struct ep_format ep_formats[EP_ROW_FORMATS];

/* A value of config->quant_recipe. */
struct ep_recipe {
	int value;
	const char *name;
	enum ep_row_format format;
};

/* Each ends with an entry without a name. */
extern const struct ep_recipe ep_dispatch_recipes[];
extern const struct ep_recipe ep_combine_recipes[];

/* The recipe with that value, whose format must be among `formats`, those of an algorithm. */
ncclResult_t ep_recipe_find(const struct ep_recipe *recipes, const struct ep_limits *limits,
			    uint32_t formats, int value, const struct ep_recipe **out);

/* Of a row of so many bf16 elements: the extent and bytes that its tokens, and its scales, take. */
size_t ep_format_token_extent(const struct ep_format *format, size_t elements);
uint64_t ep_format_scale_bytes(const struct ep_format *format, size_t elements);
uint64_t ep_format_bytes(const struct ep_format *format, size_t elements);

/* ---- limits of rows of a dispatch, also for the question whether one is possible ---- */

/* Types of inputs->tokens and outputs->tokens. */
bool ep_dtype_is_token(ncclDataType_t type);
ncclResult_t ep_row_check_types(const struct ep_recipe *recipe, ncclDataType_t in,
				ncclDataType_t out);

/* Elements of a row of inputs->tokens. */
ncclResult_t ep_row_check_elements(const struct ep_recipe *recipe, size_t elements);

/* That rows of so many bytes, scales included, fit the group. No recipe: there are no scales. */
ncclResult_t ep_row_check_budget(const struct ep_group_config *config,
				 const struct ep_recipe *recipe, uint64_t bytes);

/* ---- a dispatch: imported, then checked as far as it is the same for all algorithms ---- */

struct ep_dispatch {
	struct ncclEpHandle *h;
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info; /* size 0: none */
	ncclEpDispatchConfig_t config;

	/* Filled by checking. */
	bool v1; /* the caller's config does not know recipes */
	const struct ep_recipe *recipe;
	uint32_t num_tokens;
	struct ep_view tokens;
	struct ep_view out_tokens;
	struct ep_view scales; /* recipes FWD and NVFP4 */
	struct ep_view out_scales;
	uint32_t token_bytes; /* one row of each of these, 0 for those that there are not */
	uint32_t out_token_bytes;
	uint32_t scale_bytes;
};

/*
 * Imports the arguments and checks what is the same for all algorithms. The algorithm's own
 * dispatch checks the rest and launches. Expert ids are checked by the kernel.
 */
ncclResult_t ep_dispatch_run(struct ncclEpHandle *handle, const ncclEpDispatchInputs_t *inputs,
			     const ncclEpDispatchOutputs_t *outputs,
			     const ncclEpLayoutInfo_t *layout_info,
			     const ncclEpDispatchConfig_t *config, cudaStream_t stream);

/* ---- a combine: the same ---- */

struct ep_combine {
	struct ncclEpHandle *h;
	ncclEpCombineInputs_t in;
	ncclEpCombineOutputs_t out;
	ncclEpCombineConfig_t config;

	/* Filled by checking. */
	const struct ep_recipe *recipe;
	uint32_t num_tokens;
	struct ep_view tokens;
	struct ep_view out_tokens;
	struct ep_view scales; /* recipe NVFP4 */
	uint32_t token_bytes;  /* one row of tokens, and of those that come out */
};

/*
 * Imports the arguments and checks what is the same for all algorithms. The algorithm's own combine
 * checks the rest and launches.
 */
ncclResult_t ep_combine_run(struct ncclEpHandle *handle, const ncclEpCombineInputs_t *inputs,
			    const ncclEpCombineOutputs_t *outputs,
			    const ncclEpCombineConfig_t *config, cudaStream_t stream);

/*
 * ---- signatures of all that ranks must pass to an operation alike ----
 *
 * Made at each launch, compared by kernels (device/group/signature.h), and put into words where two
 * ranks differ.
 */

struct ep_signature ep_signature_update(const struct ncclEpHandle *handle);
struct ep_signature ep_signature_dispatch(const struct ep_dispatch *dispatch);
struct ep_signature ep_signature_combine(const struct ep_combine *combine);

/* The operation's rows go straight to or come from windows, at these offsets. */
void ep_signature_windows(struct ep_signature *signature, uint64_t offset, uint64_t scale_offset);

/* The dispatch counts arrivals, and its rows travel in the order of experts. */
void ep_signature_arrivals(struct ep_signature *signature);

/* Puts it into a launch of the send half, or of both halves. */
void ep_signature_launch(struct ep_dev_launch *launch, const struct ep_signature *signature);

/* The same launch becomes one of the receive half. */
void ep_signature_complete(struct ep_dev_launch *launch);

/* Is that the whole signature of the step, as the rank passed it? */
bool ep_signature_whole(const struct ep_signature_slot *slot, uint32_t step);

/* The name of the call, by its signature. */
const char *ep_signature_call(const struct ep_signature *signature);

/* The first field that two ranks have not alike, with both values. `halves`: of low latency. */
void ep_signature_explain(const struct ep_signature *theirs, int rank,
			  const struct ep_signature *ours, int self, bool halves, char *text,
			  size_t size);

/* ---- failures that kernels have recorded ---- */

/* Looks for failures of device operations. Fails only if the group has failed for good. */
ncclResult_t ep_record_poll(struct ncclEpGroup *group);

/*
 * Does what ep_record_poll() leaves to be done on the group's device, which must be current:
 * records that were taken can be written again, lost ranks are masked. A thread of any device, or
 * none, may look.
 */
void ep_group_settle(struct ncclEpGroup *group);

/* The thread's last error is why the group has failed for good. */
void ep_group_fail(struct ncclEpGroup *group);

/* ---- a group's state on its board (core/board.h); nothing of this can fail a call ---- */

/* Makes the board, if the config wants one, and shows a group that is being made. */
void ep_show_open(struct ncclEpGroup *group);

/* Its ranks are known. */
void ep_show_ranks(struct ncclEpGroup *group, uint64_t team);

/* Kernels will write whom they wait for. */
void ep_show_waits(struct ncclEpGroup *group);

/* The group is made, and takes so much. */
void ep_show_made(struct ncclEpGroup *group, uint64_t device_bytes);

/* It will not be made: nobody sees it any more. */
void ep_show_hide(struct ep_show *show);

/* ended: the device's context is. Otherwise no kernel may run that uses the board. */
void ep_show_close(struct ep_show *show, bool ended);

/* A call has begun, on a handle or NULL, and on a stream or NULL; ep_call_end() ends it. */
void ep_show_begin(struct ep_call *call, enum ep_board_kind kind, const struct ncclEpHandle *handle,
		   const void *stream);
void ep_show_end(struct ep_call *call, ncclResult_t result);

/* The group has failed for good. */
void ep_show_failure(struct ep_show *show, const char *text);

/*
 * ---- waits of the process's groups, watched while their callers wait ----
 *
 * A thread checks them, a few times a second. A wait that lasts for a tenth of the timeout goes to
 * the log once.
 */

/* Watches a group, if it shows its waits. */
void ep_watch_begin(struct ncclEpGroup *group);
void ep_watch_end(struct ep_watch *watch);

/* The ranks of a group that may be watched are these from now on, which its lines name. */
void ep_watch_ranks(struct ncclEpGroup *group, const struct ep_ident *idents);

/* ---- answers to the calls of nccl_ep/ext.h ---- */

/* The last error of `slot`, or of the thread. *text stays until the thread asks again. */
ncclResult_t ep_query_error(struct ep_error_slot *slot, ncclResult_t *code, const char **text);

ncclResult_t ep_query_memory(const ncclEpGroupConfig_t *config, int nranks, ncclEpLayout_t layout,
			     int num_topk, ncclEpExtMemory_t *memory);

ncclResult_t ep_query_received(struct ncclEpHandle *handle, uint64_t *tokens, uint64_t *rows,
			       cudaStream_t stream);

/* Adds the rows of the handle's routing to rows[]. */
ncclResult_t ep_query_expert_rows(const struct ncclEpHandle *handle, uint64_t *rows,
				  cudaStream_t stream);

ncclResult_t ep_query_stats(struct ncclEpGroup *group, ncclEpExtPeerStats_t *stats, int count,
			    cudaStream_t stream);

/* ---- the masks of a group that was created with them: see ncclEpMaskQuery ---- */

ncclResult_t ep_mask_query(struct ncclEpGroup *group, int *mask, cudaStream_t stream);
ncclResult_t ep_mask_update(struct ncclEpGroup *group, const int *mask, cudaStream_t stream);

/* Collective; synchronises. The log names the ranks that stay masked. */
ncclResult_t ep_mask_clean(struct ncclEpGroup *group, cudaStream_t stream);

/* ---- connections with remote ranks; in groups without any, these do nothing ---- */

/* Device memory of the queues. */
uint64_t ep_group_remote_bytes(const struct ep_group_config *config);

/* Collective: connects with the remote ranks. `mine` is this rank's result so far. */
ncclResult_t ep_group_remote_open(struct ncclEpGroup *group, struct ep_boot *boot,
				  ncclResult_t mine);

/*
 * Collective: makes `peer_heap`, laid out as `heap`, the memory that remote ranks write to. Not
 * while kernels run. unbind takes that back.
 */
ncclResult_t ep_group_remote_bind(struct ncclEpGroup *group, struct ep_boot *boot,
				  const struct ep_heap *peer_heap,
				  const struct ep_group_heap *heap);
void ep_group_remote_unbind(struct ncclEpGroup *group);

/*
 * Waits until the NICs have done all that this rank has posted. farewell: posts it to the remote
 * ranks after it that this rank leaves. No kernel of this rank runs. Bounded by `timeout_ns`.
 */
ncclResult_t ep_group_remote_drain(struct ncclEpGroup *group, bool farewell, uint64_t timeout_ns);

/*
 * This rank leaves the group: posts that to the remote ranks, and hands the connections over to
 * *heap_remote, for ep_heap_leave(), which cuts them.
 */
void ep_group_remote_leave(struct ncclEpGroup *group, struct ep_heap_remote *heap_remote,
			   uint64_t timeout_ns);

/*
 * Takes failures of connections before a kernel finds them. Without masks it returns an error,
 * which fails the group. With masks it masks the peer.
 */
ncclResult_t ep_group_remote_poll(struct ncclEpGroup *group);

/* Describes the connection with that rank: " (text)" or "". */
void ep_group_remote_explain(struct ncclEpGroup *group, uint32_t rank, char *text, size_t size);

/* How many ranks below this one are of its node, and how many of those may bring tokens. */
uint32_t ep_group_remote_index(const struct ncclEpGroup *group);
uint32_t ep_group_sender_index(const struct ncclEpGroup *group);

/* May this rank bring tokens, and does it hold experts? */
static inline bool ep_group_sends(const struct ncclEpGroup *group)
{
	return ep_roles_sends(&group->config.shape.roles, (uint32_t)group->rank);
}

static inline bool ep_group_holds(const struct ncclEpGroup *group)
{
	return ep_roles_holds(&group->config.shape.roles, (uint32_t)group->rank);
}

static inline bool ep_group_is_remote(const struct ncclEpGroup *group, uint32_t rank)
{
	return rank < (uint32_t)group->nranks &&
	       group->idents[rank].node != group->idents[group->rank].node;
}

/* ---- kernels of any algorithm ---- */

/* Loads kernels, which also shows whether there are any for this GPU. */
ncclResult_t ep_kernels_load(const void *const *kernels, size_t count);

/*
 * Lets blocks of the kernels have all shared memory of the device. *bytes: besides what the
 * compiler gave any.
 */
ncclResult_t ep_kernels_share(const void *const *kernels, size_t count, int device,
			      uint32_t *bytes);

/*
 * *programmatic: kernels, of which `kernel` is one, may start while those before them in a stream
 * end.
 */
ncclResult_t ep_kernels_programmatic(const struct ep_params *params, const void *kernel,
				     bool *programmatic);

/*
 * `args` is the kernel's one argument struct; `what` is for errors. A programmatic launch has its
 * blocks on the SMs when the last block of the kernel before it has ended, and waits there until
 * its memory is visible.
 */
ncclResult_t ep_kernel_launch(const struct ncclEpGroup *g, const void *kernel, void *args,
			      uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
			      cudaStream_t stream, const char *what);

/* ---- waits for the device ---- */

#define EP_BOOTSTRAP_LIMIT "NCCL_EP_BOOTSTRAP_TIMEOUT_MS sets the limit"

/* A wait for the device, in the words of its errors. */
struct ep_rest {
	uint64_t timeout_ns;
	const char *limit; /* what sets that, a sentence */
	const char *what;  /* the call, or what it is for */
	const char *then;  /* what to do when the device is at rest */
};

/*
 * Waits until nothing runs on the group's device, the program's own work included. *state: what the
 * device reports of its work then; cudaErrorNotReady: it may still be at work.
 */
ncclResult_t ep_group_rest(const struct ncclEpGroup *group, const struct ep_rest *how,
			   cudaError_t *state);

#endif
