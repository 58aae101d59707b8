/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL EP: dispatch and combine of tokens for mixture-of-experts models, on NCCL communicators.
 *
 * A rank holds T tokens. Each token has chosen K of E experts; rank r owns the L = E/R experts
 * r*L .. r*L+L-1. Dispatch brings every token to the ranks of its experts; the caller runs the
 * experts; combine brings the results back and adds them up.
 *
 *     ncclEpCreateGroup      once per communicator and model shape         collective
 *     ncclEpCreateHandle     one routing decision: the tokens' expert ids
 *     ncclEpDispatch         tokens -> experts                             collective
 *     ncclEpCombine          results -> tokens                             collective
 *     ncclEpHandleDestroy, ncclEpGroupDestroy
 *
 * Conventions
 *
 * - R ranks, E experts, L = E/R, T tokens of this call, K = top-k, H elements per token,
 *   B = max_dispatch_tokens_per_rank (T <= B). Tensors are dense, row-major, in device memory.
 * - Calls return after enqueueing on the stream they are given, unless stated otherwise. A stream of another
 *   device than the communicator's is ncclInvalidUsage.
 *   UpdateHandle, Dispatch, Combine and Complete may be captured into CUDA graphs.
 * - Nothing is written to an output on failure. Mistakes of the caller are ncclInvalidArgument
 *   (a value) or ncclInvalidUsage (a combination or order of calls), failures of the CUDA runtime
 *   ncclUnhandledCudaError, of the operating system ncclSystemError, of a peer ncclRemoteError.
 *   The reason is logged (NCCL_DEBUG=WARN) and kept for ncclEpExtGetLastError (nccl_ep/ext.h).
 * - Every struct that is passed begins with its size and a magic number: use the _INIT macros.
 *   Fields that a caller's (older) struct does not reach count as zero; the tail of a (newer)
 *   struct that the library does not know is ignored.
 * - All ranks must issue the same sequence of dispatches and combines on a group, and each rank
 *   must order them: one stream, or streams ordered by events. Between them, operations of
 *   several handles may interleave in any way.
 * - What all ranks must pass alike to an operation: the call itself, with send_only; of the handle its
 *   layout, num_topk and alignment, and where it comes from (the same dispatch before a combine, in high
 *   throughput the same UpdateHandle; the same send_only operation before ncclEpComplete);
 *   pass_direction and quant_recipe, round_scales where the recipe makes scales; the types of tokens
 *   and scales, and their numbers of elements per token; and where outputs->tokens of a flat dispatch,
 *   or inputs->tokens of a combine, are used as windows: that, and win_offset. Ranks that differ get
 *   ncclRemoteError within two seconds, by a later call, that names the field with both values.
 *   All else may differ: T, ids and their type, counters, numbering, weights, inputs' windows, streams.
 *   ncclEpCreateGroup lists what must be alike in a group's config.
 * - A group is used by one host thread at a time (but for ncclEpGetAsyncError); different groups are
 *   independent, and may run on different streams. Their kernels share the GPU: what a group may
 *   occupy while it waits for peers is divided among the groups of a process that use one GPU, so
 *   that no order of launches locks up. Numbers of SMs that the caller chooses are not reduced in
 *   high throughput; CreateGroup warns if they leave other groups too few.
 * - No wait ends because its communicator is aborted: kernels of the group wait for a peer until it comes or
 *   its timeout is over, also for a rank that has destroyed its group.
 * - A child of fork() can neither use nor destroy what its parent has made: every call with a group or
 *   a handle is ncclInvalidUsage there, and does nothing.
 */
#ifndef NCCL_EP_H_
#define NCCL_EP_H_

#include <stddef.h>
#include <stdint.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include "nccl_ep/ep_enums.h"

#define NCCL_EP_MAJOR 0
#define NCCL_EP_MINOR 2
#define NCCL_EP_PATCH 0
#define NCCL_EP_VERSION_CODE (NCCL_EP_MAJOR * 10000 + NCCL_EP_MINOR * 100 + NCCL_EP_PATCH)

/* Version of the structs below. Libraries of version 1 and 2 share one soname. */
#define NCCL_EP_API_VERSION 2

#define NCCL_EP_MAGIC 0xC00FFFEEu
#define NCCL_EP_TENSOR_MAGIC 0xCAFECAFEu

/* Two 4-bit floats in a byte. Named by NCCL releases later than the oldest supported one. */
#ifndef ncclFloat4x2
#define ncclFloat4x2 ((ncclDataType_t)12)
#endif

#ifdef __cplusplus
extern "C++" {
template <typename T> static inline T ncclEpStructInit(unsigned int magic)
{
	T s = T();

	s.size = (unsigned int)sizeof(T);
	s.magic = magic;
	return s;
}
template <typename T> static inline T ncclEpVersionedInit(unsigned int magic, unsigned int version)
{
	T s = ncclEpStructInit<T>(magic);

	s.version = version;
	return s;
}
}
#define NCCL_EP_STRUCT_INIT(type_, magic_) (ncclEpStructInit<type_>(magic_))
#else
#define NCCL_EP_STRUCT_INIT(type_, magic_)                                                         \
	((type_){ .size = (unsigned int)sizeof(type_), .magic = (magic_) })
#endif

/* First byte after a field, and whether a caller's struct reaches that far. */
#define NCCL_EP_FIELD_END(type_, field_)                                                           \
	((unsigned int)(offsetof(type_, field_) + sizeof(((type_ *)0)->field_)))
#define NCCL_EP_HAS_FIELD(ptr_, type_, field_)                                                     \
	((ptr_) != NULL && (ptr_)->size >= NCCL_EP_FIELD_END(type_, field_))

#if defined(__cplusplus)
#define NCCL_EP_STATIC_ASSERT(cond_, msg_) static_assert(cond_, msg_)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define NCCL_EP_STATIC_ASSERT(cond_, msg_) _Static_assert(cond_, msg_)
#else
#define NCCL_EP_STATIC_ASSERT(cond_, msg_) extern int ncclEpStaticAssert_[(cond_) ? 1 : -1]
#endif
#define NCCL_EP_STATIC_ASSERT_STRUCT_ABI(type_, prefix_)                                           \
	NCCL_EP_STATIC_ASSERT(offsetof(type_, size) == 0 && offsetof(type_, magic) == 4 &&         \
				      sizeof(type_) >= prefix_##_V1_SIZE,                          \
			      #type_)
#define NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(type_, prefix_, version_)                        \
	NCCL_EP_STATIC_ASSERT(NCCL_EP_FIELD_END(type_, prefix_##_V##version_##_LAST_FIELD) ==      \
				      prefix_##_V##version_##_SIZE,                                \
			      #type_)

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

/*
 * Version of the library: 10000 * major + 100 * minor + patch (NCCL_EP_VERSION_CODE).
 * NULL: ncclInvalidArgument.
 */
ncclResult_t ncclEpGetVersion(int *version);

/* ---- Tensors --------------------------------------------------------------------------------
 *
 * A descriptor holds where a tensor is; it owns no device memory. Make one in place,
 *
 *     size_t dims[2] = { T, H };
 *     ncclEpTensor_t t = NCCL_EP_TENSOR_INIT;
 *     t.ndim = 2; t.datatype = ncclBfloat16; t.data = pointer; t.sizes = dims;
 *
 * or { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, ... }, or have it allocated (ncclEpTensorAlloc).
 * A tensor with a zero extent needs no storage. Others have `data`, or a registered window and
 * the byte offset in it; when both are given, `data` is the local address. A window alone has to hold
 * all of the tensor.
 */
typedef struct ncclEpTensor {
	unsigned int size;
	unsigned int magic;
	unsigned int ndim;
	ncclDataType_t datatype;
	void *data;
	ncclWindow_t win_hdl;
	uint64_t win_offset;
	size_t *sizes; /* [ndim], the caller's; of an allocated descriptor: the library's */
} ncclEpTensor_t;

#define NCCL_EP_TENSOR_INIT_INLINE                                                                 \
	.size = (unsigned int)sizeof(ncclEpTensor_t), .magic = NCCL_EP_TENSOR_MAGIC
#define NCCL_EP_TENSOR_INIT NCCL_EP_STRUCT_INIT(ncclEpTensor_t, NCCL_EP_TENSOR_MAGIC)
#define NCCL_EP_TENSOR_SIZE ((unsigned int)sizeof(ncclEpTensor_t))
#define NCCL_EP_TENSOR_V1_LAST_FIELD sizes
#define NCCL_EP_TENSOR_V1_SIZE 48u
#define NCCL_EP_TENSOR_CURRENT_VERSION 1

typedef struct {
	unsigned int size;
	unsigned int magic;
} ncclEpTensorAllocConfig_t;

#define NCCL_EP_TENSOR_ALLOC_CONFIG_INIT                                                           \
	NCCL_EP_STRUCT_INIT(ncclEpTensorAllocConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_TENSOR_ALLOC_CONFIG_SIZE ((unsigned int)sizeof(ncclEpTensorAllocConfig_t))
#define NCCL_EP_TENSOR_ALLOC_CONFIG_V1_LAST_FIELD magic
#define NCCL_EP_TENSOR_ALLOC_CONFIG_V1_SIZE 8u
#define NCCL_EP_TENSOR_ALLOC_CONFIG_CURRENT_VERSION 1

/*
 * Allocates a descriptor with its own copy of sizes[ndim]. The caller sets `data` (or the window)
 * afterwards and may change the extents in place, but not the `sizes` pointer.
 * ncclInvalidArgument: NULL tensor or sizes, ndim 0 or above 8, unusable config. ncclSystemError: no memory.
 */
ncclResult_t ncclEpTensorAlloc(ncclEpTensor_t **tensor, unsigned int ndim, ncclDataType_t datatype,
			       const size_t *sizes, const ncclEpTensorAllocConfig_t *config);

/*
 * Frees a descriptor of ncclEpTensorAlloc; never what `data` points to. NULL is fine.
 * ncclInvalidArgument: not such a descriptor, or its `sizes` pointer was replaced.
 */
ncclResult_t ncclEpTensorDestroy(ncclEpTensor_t *tensor);

/* ---- Groups --------------------------------------------------------------------------------- */

/*
 * `context` is handed to both unchanged. They run inside a call on the group, and can use neither the group
 * nor its handles: such a call is ncclInvalidUsage (ncclEpGetAsyncError is possible). Nor may they wait for a
 * thread that does.
 */
typedef cudaError_t (*ncclEpAllocFn_t)(void **ptr, size_t size, void *context);
typedef cudaError_t (*ncclEpFreeFn_t)(void *ptr, void *context);

typedef struct {
	ncclEpAllocFn_t alloc_fn; /* NULL: cudaMalloc */
	ncclEpFreeFn_t free_fn;   /* NULL: cudaFree */
	void *context;
} ncclEpAllocConfig_t;

typedef struct {
	unsigned int size;
	unsigned int magic;
	unsigned int version; /* NCCL_EP_API_VERSION; not examined: the size is */
	ncclEpAlgorithm_t algorithm;
	/* E: a multiple of R. Required. Low latency: up to 16383 R, and E * B up to 2^31 - 1; high
	 * throughput: up to 65535. */
	unsigned int num_experts;
	/* B. Required. Low latency: 1 .. 65535; high throughput: up to 2^31 / R, at most 2^24. */
	unsigned int max_dispatch_tokens_per_rank;
	/* High throughput: M, the most rows that a rank receives, B at least (flat: tokens;
	 * expert-major: rows of zones with their padding). AUTO is eager mode: as many as come, and
	 * the caller makes tensors as large as recv_total_counter requires. Low latency always has room
	 * for R*B. */
	unsigned int max_recv_tokens_per_rank;
	/*
	 * Bytes of the largest row: H times the element size, plus the bytes of its scales where
	 * they travel with it. Required, up to 2^24. High throughput: a multiple of 16. Low latency: R * B
	 * times its units of 16 bytes up to 2^31 - 1.
	 */
	unsigned int max_token_bytes;
	/*
	 * Bytes of the memory that peers write to (low latency). AUTO: enough for handles of both
	 * layouts with num_topk experts per token (num_topk unset: min(8, E)); a handle that needs
	 * more makes InitHandle enlarge it. Otherwise this, rounded up to 2 MiB, if it is enough
	 * for handles with num_topk (unset: 1) experts per token. If it is not, or a handle
	 * needs more, it counts as AUTO, with a warning: other libraries need other sizes.
	 */
	unsigned long int rdma_buffer_size;
	unsigned int num_qp_per_rank; /* not used: see NCCL_EP_RDMA_QUEUES */
	unsigned int num_channels;    /* not used */
	/* Most SMs (thread blocks) that one operation may occupy. AUTO: all; high throughput on one
	 * node: four of five, flat combine 64, on several nodes 16, and less beside other groups of
	 * the GPU. The environment variable NCCL_EP_COMM_SMS wins if the device has as many. */
	unsigned int max_num_sms;
	/* Both functions or none. Handle memory and the group's own state come from here; memory
	 * that peers map comes from cudaMalloc or ncclMemAlloc in any case. */
	ncclEpAllocConfig_t alloc;
	/* Low latency: non-zero lets operations continue without a rank that does not arrive; see
	 * ncclEpMaskQuery. */
	unsigned int enable_mask;
	/* How long the device waits for a peer before the operation ends with an error. A peer that
	 * is ahead of another, and may itself be waiting for it, is given the time twice. Counted in
	 * whole milliseconds, 0 is 100 s. The environment variable NCCL_EP_TIMEOUT_MS wins. */
	uint64_t timeout_ns;
	/* Since API version 2: */
	/* Low latency with ranks of several nodes: may NICs send rows from where inputs->tokens has
	 * them, in a dispatch with recipe NONE and in combine, where that is a window, without
	 * send_only? AUTO: yes, if an operation can be large (NCCL_EP_LL_DIRECT_BYTES); OFF: no; ON:
	 * yes. Between ranks of one node rows always pass through the group's own memory, which was
	 * faster at every size than stores into windows; any value is accepted.
	 * High throughput, flat: rows in windows are always stored, and loaded by combine, where they
	 * are. ON: received rows without a window are refused, in both layouts. */
	ncclEpZeroCopyMode_t zero_copy;
	/* High throughput: more than M rows for a rank are an error of the group on all ranks
	 * (TRAP), or those beyond are dropped (DROP; not in eager mode). */
	ncclEpOverflowPolicy_t overflow_policy;
	/* Largest K of any handle, at most E; 0: unset. Low latency only makes room for it; high
	 * throughput refuses a larger K, and expert-major handles of an eager group need it. */
	unsigned int num_topk;
	unsigned char padding_v2[4];
} ncclEpGroupConfig_t;

#ifdef __cplusplus
#define NCCL_EP_GROUP_CONFIG_INIT                                                                  \
	(ncclEpVersionedInit<ncclEpGroupConfig_t>(NCCL_EP_MAGIC, NCCL_EP_API_VERSION))
#else
#define NCCL_EP_GROUP_CONFIG_INIT                                                                  \
	((ncclEpGroupConfig_t){ .size = (unsigned int)sizeof(ncclEpGroupConfig_t),                 \
				.magic = NCCL_EP_MAGIC,                                            \
				.version = NCCL_EP_API_VERSION })
#endif
#define NCCL_EP_GROUP_CONFIG_SIZE ((unsigned int)sizeof(ncclEpGroupConfig_t))
#define NCCL_EP_GROUP_CONFIG_V1_LAST_FIELD timeout_ns
#define NCCL_EP_GROUP_CONFIG_V1_SIZE 96u
#define NCCL_EP_GROUP_CONFIG_V2_LAST_FIELD padding_v2
#define NCCL_EP_GROUP_CONFIG_V2_SIZE 112u
#define NCCL_EP_GROUP_CONFIG_CURRENT_VERSION 2

typedef struct ncclEpGroup *ncclEpGroup_t;

/*
 * Makes a group of all ranks of a communicator. Collective; synchronises the host; makes the
 * communicator's device current and leaves it so. Either every rank succeeds or every rank fails:
 * a rank's reason is known to all. Ranks must agree in all fields but alloc, max_num_sms,
 * num_qp_per_rank, num_channels, timeout_ns and what their mode ignores: max_recv_tokens_per_rank and
 * overflow_policy in low latency, rdma_buffer_size and enable_mask in high throughput. Possible
 * while streams are being captured, on any rank; nothing of it becomes part of a graph.
 *
 * ncclInvalidArgument: NULL, unusable config, a field out of its range, or ranks that disagree.
 * ncclInvalidUsage: one of alloc_fn and free_fn alone; max_num_sms above the device's; more than
 *   1024 ranks; a malformed NCCL_EP_ environment variable; a rank on a MIG instance or without peer access to
 *   another (the text names the two GPUs).
 * ncclRemoteError: another rank failed or did not arrive.
 */
ncclResult_t ncclEpCreateGroup(ncclEpGroup_t *ep_group, ncclComm_t comm,
			       const ncclEpGroupConfig_t *config);

/*
 * Frees the group. Waits for all work on the device (as cudaFree does), at most for three timeouts
 * of the group and NCCL_EP_CLOSE_TIMEOUT_MS. Memory that other ranks may still write to is freed
 * when they have destroyed theirs or their process has ended. The call waits a second for ranks of
 * the same node, and NCCL_EP_CLOSE_TIMEOUT_MS for remote ranks, whose access then ends; for nobody
 * while the process has another group, so groups may be destroyed in any order. What it did not wait
 * for is freed by later creations and destructions, of any group, with one warning after
 * NCCL_EP_CLOSE_TIMEOUT_MS. Possible after every error, by any thread, and after the communicator
 * was aborted or destroyed. Handles of the group that still exist can only be destroyed afterwards;
 * a warning has their number. NULL is fine. Graphs that hold operations of the group must not
 * be launched any more: their kernels would use memory that is freed.
 * After cudaDeviceReset of the group's device this and ncclEpHandleDestroy are all that is left to
 * call: every other call is ncclInvalidUsage, with that reason. free_fn is not called then: what it would
 * free counts as gone with the reset.
 * ncclSystemError: work on the device has not ended within that time (nothing is freed: call again).
 * ncclInvalidUsage: a stream of the device is being captured, and nobody can wait for the device until
 * that ends (the same); or another thread is destroying the group.
 */
ncclResult_t ncclEpGroupDestroy(ncclEpGroup_t ep_group);

/* ---- Handles -------------------------------------------------------------------------------- */

typedef struct {
	unsigned int size;
	unsigned int magic;
	/* High throughput, expert-major: rows of a zone are a multiple of this power of two, up to
	 * 2^30; 0: 1. The same on all ranks. Other layouts do not examine it. */
	size_t dispatch_output_per_expert_alignment;
} ncclEpHandleConfig_t;

#define NCCL_EP_HANDLE_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpHandleConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_HANDLE_CONFIG_SIZE ((unsigned int)sizeof(ncclEpHandleConfig_t))
#define NCCL_EP_HANDLE_CONFIG_V1_LAST_FIELD dispatch_output_per_expert_alignment
#define NCCL_EP_HANDLE_CONFIG_V1_SIZE 16u
#define NCCL_EP_HANDLE_CONFIG_CURRENT_VERSION 1

/* Device tensors that describe what was received. A NULL member is absent. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	/* Rows per local expert. Low latency expert-major: int32 [L], written by dispatch. High
	 * throughput: [L], written by UpdateHandle; flat: int32, the rows that have chosen the expert;
	 * expert-major: the rows of its zone, with padding. */
	ncclEpTensor_t *expert_counters;
	/* Rows per source rank. Low latency rank-major: int32 [R], written by dispatch. */
	ncclEpTensor_t *src_rank_counters;
	ncclEpTensor_t
		*expert_offsets; /* high throughput, expert-major: [L], first row of each zone */
	/* High throughput: [1], all rows that come; with overflow_policy DROP also those dropped. */
	ncclEpTensor_t *recv_total_counter;
	/* Since API version 2: numbering in outputs->topk_idx of dispatch. */
	ncclEpExpertIdKind_t recv_topk_idx_kind;
	unsigned char padding_v2[4];
} ncclEpLayoutInfo_t;

#define NCCL_EP_LAYOUT_INFO_INIT NCCL_EP_STRUCT_INIT(ncclEpLayoutInfo_t, NCCL_EP_MAGIC)
#define NCCL_EP_LAYOUT_INFO_SIZE ((unsigned int)sizeof(ncclEpLayoutInfo_t))
#define NCCL_EP_LAYOUT_INFO_V1_LAST_FIELD recv_total_counter
#define NCCL_EP_LAYOUT_INFO_V1_SIZE 40u
#define NCCL_EP_LAYOUT_INFO_V2_LAST_FIELD padding_v2
#define NCCL_EP_LAYOUT_INFO_V2_SIZE 48u
#define NCCL_EP_LAYOUT_INFO_CURRENT_VERSION 2

typedef struct ncclEpHandle *ncclEpHandle_t;

/*
 * Bytes of device memory that a handle of this layout and K needs, for callers that provide it.
 * ncclInvalidArgument: NULL group or size_out, unusable config, a layout that the group's
 * algorithm does not have, num_topk outside 1 .. min(E, 32), or, expert-major in high throughput, an
 * alignment that is no power of two up to 2^30.
 */
ncclResult_t ncclEpHandleMemSize(ncclEpGroup_t ep_group, ncclEpLayout_t layout,
				 const ncclEpHandleConfig_t *config, size_t *size_out,
				 int num_topk);

/*
 * Makes a handle that has no routing yet. handle_mem: 1-D uint8 tensor of at least
 * ncclEpHandleMemSize bytes, 16-byte aligned, which the caller keeps until HandleDestroy and
 * until the handle's work has finished; NULL: the library takes memory from a pool of the group.
 *
 * Possible while a stream is being captured; nothing of it becomes part of the graph. Local and
 * cheap, except when the group's buffer has to grow for it (see rdma_buffer_size): then
 * it is collective (all ranks, same layout and num_topk), synchronises the device, which fails
 * while a stream of it is captured, needs both the old and the new buffer for a moment, and graphs
 * captured before are void.
 *
 * ncclInvalidArgument: as ncclEpHandleMemSize, unfit handle_mem, or growth where ranks differ in num_topk.
 * High throughput: always local. What UpdateHandle finds out lies in the handle's memory alone: a
 * handle that is made on the same handle_mem, in a group of the same shape and the same nodes, with
 * the same layout, K and alignment, can dispatch and combine without an update. T is then that of
 * the tensors.
 *
 * ncclInvalidUsage: B * num_topk above 262144 (high throughput: rows that may come times min(K, L)
 * above 2^31), growth while an operation is pending, by a graph or otherwise; high throughput: K above the group's num_topk,
 * or no num_topk for expert-major in eager mode.
 * ncclSystemError: the buffer has to grow, and the device does not come to rest.
 */
ncclResult_t ncclEpInitHandle(ncclEpHandle_t *handle, ncclEpGroup_t ep_group, ncclEpLayout_t layout,
			      const ncclEpHandleConfig_t *config, int num_topk,
			      const ncclEpTensor_t *handle_mem);

/*
 * Gives the handle its routing. topk_idx: int32 or int64 [T, K], T from 0 to B, global expert ids,
 * negative: no expert. An id that appears twice in a row counts twice. Ids of E and above are
 * treated as negative and reported by a later call's log line and error text.
 *
 * Low latency: host only. The descriptor is copied, the ids are not: they must stay unchanged
 * until the last dispatch and combine with this routing have run. layout_info must be NULL. Between
 * a dispatch and its combine the call may repeat the ids, from the same or another place.
 *
 * High throughput: collective, one kernel on `stream`, which may be captured; the ids may be
 * overwritten in the order of the stream. An id that appears twice in a row counts once.
 * layout_info may be NULL, or have expert_counters, expert_offsets and recv_total_counter, int32 or
 * int64, all of one type (flat: expert_counters are int32 whatever the total is). They are
 * overwritten; extents may be larger. More rows than max_recv_tokens_per_rank for some rank end
 * the group with an error on all ranks that names that rank and the number, unless overflow_policy is
 * DROP. Then the total is that of all rows. A row is kept if its place in the flat order is below M, and
 * an expert-major row if its own place is, too. Flat counters are those of kept rows. Expert-major
 * counters and offsets are those of zones, cut off at M: rows of a zone that are not kept, by their place in
 * the flat order, are zeros in it.
 *
 * ncclInvalidArgument: NULL or wrong shape or type. ncclInvalidUsage: an operation is pending.
 */
ncclResult_t ncclEpUpdateHandle(ncclEpHandle_t handle, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream);

/*
 * InitHandle (with num_topk = topk_idx->sizes[1] and memory of the library), then UpdateHandle.
 * layout_info is validated before anything else.
 */
ncclResult_t ncclEpCreateHandle(ncclEpHandle_t *handle, ncclEpGroup_t ep_group,
				ncclEpLayout_t layout, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info,
				const ncclEpHandleConfig_t *config, cudaStream_t stream);

/*
 * Frees the handle, not the caller's handle_mem. Does not synchronise: memory of the library goes
 * back to the group's pool, whose next user comes later in the order of the group's operations.
 * Possible after GroupDestroy, too. NULL is fine.
 * Graphs that hold its operations must not be launched any more.
 * ncclInvalidUsage: a send_only operation of the handle is not completed, other than a captured one.
 */
ncclResult_t ncclEpHandleDestroy(ncclEpHandle_t handle);

/* ---- Dispatch ------------------------------------------------------------------------------- */

typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens;       /* [T, H]. Required */
	ncclEpTensor_t *topk_weights; /* fp32 [T, K] */
	ncclEpTensor_t *scales;       /* recipe FWD: [T, S] */
} ncclEpDispatchInputs_t;

#define NCCL_EP_DISPATCH_INPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpDispatchInputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_DISPATCH_INPUTS_SIZE ((unsigned int)sizeof(ncclEpDispatchInputs_t))
#define NCCL_EP_DISPATCH_INPUTS_V1_LAST_FIELD scales
#define NCCL_EP_DISPATCH_INPUTS_V1_SIZE 32u
#define NCCL_EP_DISPATCH_INPUTS_CURRENT_VERSION 1

typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens;
	ncclEpTensor_t *topk_weights;
	ncclEpTensor_t *scales;
	ncclEpTensor_t *topk_idx;
} ncclEpDispatchOutputs_t;

#define NCCL_EP_DISPATCH_OUTPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpDispatchOutputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_DISPATCH_OUTPUTS_SIZE ((unsigned int)sizeof(ncclEpDispatchOutputs_t))
#define NCCL_EP_DISPATCH_OUTPUTS_V1_LAST_FIELD topk_idx
#define NCCL_EP_DISPATCH_OUTPUTS_V1_SIZE 40u
#define NCCL_EP_DISPATCH_OUTPUTS_CURRENT_VERSION 1

typedef struct {
	unsigned int size;
	unsigned int magic;
	/* Low latency: stop after sending. ncclEpComplete receives; it has the rules, also for graphs. High
	 * throughput ignores it. */
	unsigned int send_only;
	unsigned int round_scales; /* recipe DS_FP8E3M4: scales are powers of two */
	ncclEpPassDir_t pass_direction;
	ncclEpDispQuant_t quant_recipe; /* since API version 2 */
} ncclEpDispatchConfig_t;

#define NCCL_EP_DISPATCH_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpDispatchConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_DISPATCH_CONFIG_SIZE ((unsigned int)sizeof(ncclEpDispatchConfig_t))
#define NCCL_EP_DISPATCH_CONFIG_V1_LAST_FIELD pass_direction
#define NCCL_EP_DISPATCH_CONFIG_V1_SIZE 20u
#define NCCL_EP_DISPATCH_CONFIG_V2_LAST_FIELD quant_recipe
#define NCCL_EP_DISPATCH_CONFIG_V2_SIZE 24u
#define NCCL_EP_DISPATCH_CONFIG_CURRENT_VERSION 2

/*
 * Sends the tokens of inputs->tokens [T, H] to the ranks of their experts. Low latency:
 *
 *                          expert-major                   rank-major
 *   inputs->topk_weights   NULL                           fp32 [T, K]
 *   outputs->tokens        [L, R*B, H]                    [R, B, H]
 *   outputs->topk_weights  NULL                           fp32 [R, B, K]
 *   outputs->topk_idx      NULL                           int32 [R, B, K]
 *   layout_info            expert_counters int32 [L]      NULL, or src_rank_counters int32 [R]
 *
 * Expert-major: local expert e has rows 0 .. expert_counters[e]-1, one per (token, k) that chose
 * it, in ascending order of (source rank, token, k).
 * Rank-major: source rank r has rows 0 .. src_rank_counters[r]-1, one per token that chose an
 * expert here, in ascending token order. topk_weights holds the K weights that the source passed;
 * topk_idx, at each k, the expert if it is here (numbered by layout_info->recv_topk_idx_kind), else -1; its rows beyond the count are all -1.
 * Other rows beyond the counts are left as they were. Counters are overwritten.
 *
 * High throughput, N rows received:
 *
 *                          flat                           expert-major
 *   inputs->topk_weights   fp32 [T, K]                    fp32 [T, K]
 *   outputs->tokens        [N, H]                         [N, H]
 *   outputs->topk_weights  fp32 [N', K]                   fp32 [N']
 *   outputs->topk_idx      int64 [N', K]                  NULL
 *
 * Flat: one row per token that chose an expert here, in ascending order of (source rank, token).
 * topk_idx has its local experts in ascending order, then -1, and topk_weights their weights, then 0.
 * Expert-major: zones in ascending order of experts; in a zone the rows that chose the expert in
 * ascending order of (source rank, token), then zeros up to the zone's padded end; topk_weights has
 * the weight of that expert. With overflow_policy DROP all rows below M that do not come are zeros.
 * Backward (pass_direction BWD_PASS): the same rows without weights and ids, which must be NULL.
 * N is at least M. In eager mode, and where N' is less, the call waits for the stream to see how
 * many rows come, and refuses tensors that are too small. Fixed M: the flat layout's ids and weights
 * are written for all N' rows up to M. Other rows are left as they were. Tensors of no rows need no
 * storage.
 *
 * Recipes (config->quant_recipe; high throughput has NONE and FWD):
 *   NONE        tokens bf16, fp16, fp32, or one byte each: e4m3, e5m2, fp4x2, uint8, int8; outputs
 *               of the same type; no scales. Rows are copied bit by bit.
 *   FWD         tokens fp32, fp16, bf16, e4m3, e5m2 or fp4x2 (then H counts bytes); inputs->scales
 *               [T, S] fp32, fp16, bf16, e4m3, e5m2 or uint8; outputs->scales with S in place of
 *               H; both are copied. Token and scale rows are multiples of 16 bytes;
 *               round_scales is 0.
 *   DS_FP8E3M4  tokens bf16, H a multiple of 128; outputs->tokens e4m3, outputs->scales fp32 with
 *               H/128 in place of H. Per 128 elements, with a = max(largest magnitude, 1e-4):
 *               scale = a/448, or the next power of two when round_scales is set.
 * A config that does not reach quant_recipe (API version 1) means DS_FP8E3M4 if outputs->scales
 * is present, NONE otherwise; its scales are stored [L][H/128][R*B] (or [R][H/128][B]) in spite
 * of their descriptor.
 *
 * Rows are multiples of 16 bytes and, with their scales, at most max_token_bytes. (Quantised rows:
 * there is room if that is 2 bytes per element, or just what such a row takes.) Storage is 16-byte
 * aligned. Any tensor may be given as a window (NCCL 2.29 and later).
 *
 * Where zero_copy lets peers store into outputs->tokens and outputs->scales, all ranks must pass the
 * same offset in the same window, registered by all of them. Peers store between the start of the
 * dispatch on `stream` and its end (with send_only: that of ncclEpComplete; the send half then lasts
 * until all ranks have started theirs), and at no other time, except that a rank which was given up
 * and comes back may store its own rows until the next operation begins here.
 *
 * inputs->tokens may be written in stream order after the dispatch, also where NICs send from it (see
 * zero_copy), and with send_only. A graph is only good as long as its windows' memory is the same.
 *
 * ncclInvalidArgument: anything above not met; no routing; zero_copy ON that cannot be done.
 * ncclInvalidUsage: backward pass in low latency; an operation of this handle is pending; or two of
 *   the group are, and this one is send_only or the group has ranks of several nodes; high throughput:
 *   eager mode while the stream is captured. From a later call, for ever: handle_mem had no routing, or
 *   that of another number of tokens, or a tensor has fewer rows than come.
 * ncclRemoteError: an earlier operation ended because a peer did not arrive. The text names it;
 *   the group can only be destroyed.
 */
ncclResult_t ncclEpDispatch(ncclEpHandle_t handle, const ncclEpDispatchInputs_t *inputs,
			    const ncclEpDispatchOutputs_t *outputs,
			    const ncclEpLayoutInfo_t *layout_info,
			    const ncclEpDispatchConfig_t *config, cudaStream_t stream);

/* ---- Combine -------------------------------------------------------------------------------- */

typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens; /* as outputs->tokens of dispatch. Required */
	ncclEpTensor_t
		*topk_weights;  /* high throughput, backward: as dispatch's output. Else NULL */
	ncclEpTensor_t *scales; /* since API version 2; recipe NVFP4 */
} ncclEpCombineInputs_t;

#define NCCL_EP_COMBINE_INPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpCombineInputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMBINE_INPUTS_SIZE ((unsigned int)sizeof(ncclEpCombineInputs_t))
#define NCCL_EP_COMBINE_INPUTS_V1_LAST_FIELD topk_weights
#define NCCL_EP_COMBINE_INPUTS_V1_SIZE 24u
#define NCCL_EP_COMBINE_INPUTS_V2_LAST_FIELD scales
#define NCCL_EP_COMBINE_INPUTS_V2_SIZE 32u
#define NCCL_EP_COMBINE_INPUTS_CURRENT_VERSION 2

typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens; /* [T, H]. Required */
	/* Low latency, expert-major: fp32 [T, K], read. High throughput, backward: the same, written. */
	ncclEpTensor_t *topk_weights;
} ncclEpCombineOutputs_t;

#define NCCL_EP_COMBINE_OUTPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpCombineOutputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMBINE_OUTPUTS_SIZE ((unsigned int)sizeof(ncclEpCombineOutputs_t))
#define NCCL_EP_COMBINE_OUTPUTS_V1_LAST_FIELD topk_weights
#define NCCL_EP_COMBINE_OUTPUTS_V1_SIZE 24u
#define NCCL_EP_COMBINE_OUTPUTS_CURRENT_VERSION 1

typedef struct {
	unsigned int size;
	unsigned int magic;
	unsigned int send_only; /* as in ncclEpDispatchConfig_t */
	ncclEpPassDir_t pass_direction;
	ncclEpCombQuant_t quant_recipe; /* since API version 2 */
} ncclEpCombineConfig_t;

#define NCCL_EP_COMBINE_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpCombineConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMBINE_CONFIG_SIZE ((unsigned int)sizeof(ncclEpCombineConfig_t))
#define NCCL_EP_COMBINE_CONFIG_V1_LAST_FIELD pass_direction
#define NCCL_EP_COMBINE_CONFIG_V1_SIZE 16u
#define NCCL_EP_COMBINE_CONFIG_V2_LAST_FIELD quant_recipe
#define NCCL_EP_COMBINE_CONFIG_V2_SIZE 20u
#define NCCL_EP_COMBINE_CONFIG_CURRENT_VERSION 2

/*
 * Returns the rows of the handle's last dispatch to their sources and adds them up there. Low
 * latency: inputs->tokens is [L, R*B, H] or [R, B, H] of bf16, fp16 or fp32, rows in the places
 * where dispatch put them; outputs->tokens is [T, H] of the same type.
 *
 *   expert-major  outputs->tokens[t] = sum over k, id >= 0, of w[t][k] * row of (t, k), where w is
 *                 outputs->topk_weights, fp32 [T, K], required and only read.
 *   rank-major    outputs->tokens[t] = sum over the ranks that t was sent to, in the order of
 *                 their first k, of the row that the rank returned. No weights.
 *
 * High throughput: inputs->tokens [N, H] has rows where dispatch put them, with the handle's routing;
 * a dispatch need not have run. outputs->tokens[t] = sum over ranks, in ascending order, of what the
 * rank returns: its flat row, or the sum of t's rows in the rank's zones in ascending order of
 * experts, rounded to the tokens' type. No weights. Padding is not read. Backward:
 * outputs->topk_weights[t][k] is the entry of inputs->topk_weights that belongs to t and its k-th
 * expert (flat: [N, K], packed as dispatch does it; expert-major: [N]); 0 for negative ids and for
 * rows that were dropped.
 *
 * Sums are taken in fp32, low latency's in ascending k, and rounded once, so the result does not
 * depend on timing. Tokens without experts get zeros. May be repeated after one dispatch. When a
 * rank is lost in the very combine (the error flag shows it), the sums of tokens that have an expert
 * there are not defined: they may have some columns of its rows. All other sums are right. inputs->tokens may be
 * written in stream order after the combine; with send_only, after ncclEpComplete.
 *
 * ncclInvalidArgument: shapes, types, missing tensors, no routing. ncclInvalidUsage: no dispatch
 * yet, or one of another number of tokens, or MaskClean since; backward pass; NVFP4; pending
 * operations; the same, for the group and for ever, from a later call if a combine in a graph ran
 * without its dispatch. ncclRemoteError: as dispatch.
 */
ncclResult_t ncclEpCombine(ncclEpHandle_t handle, const ncclEpCombineInputs_t *inputs,
			   const ncclEpCombineOutputs_t *outputs,
			   const ncclEpCombineConfig_t *config, cudaStream_t stream);

/* ---- Complete ------------------------------------------------------------------------------- */

typedef struct ncclEpCompleteConfig {
	unsigned int size;
	unsigned int magic;
} ncclEpCompleteConfig_t;

#define NCCL_EP_COMPLETE_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpCompleteConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMPLETE_CONFIG_SIZE ((unsigned int)sizeof(ncclEpCompleteConfig_t))
#define NCCL_EP_COMPLETE_CONFIG_V1_LAST_FIELD magic
#define NCCL_EP_COMPLETE_CONFIG_V1_SIZE 8u
#define NCCL_EP_COMPLETE_CONFIG_CURRENT_VERSION 1

/*
 * Runs the receive half of the handle's send_only operation on `stream`. If that is not the stream of
 * the send half, the two are ordered by events: the receive half comes after what is on the other
 * stream, and what is put on either stream afterwards comes after the receive half. The stream of the
 * send half should still exist: if CUDA reports that it was destroyed, the call waits until the device is at
 * rest. Descriptors and structs of the first call may be gone, the tensors' storage may not. One operation
 * per handle may be pending, and two per group; operations of other handles may run in between, where the
 * group has ranks of several nodes only while fewer than two are pending. Nothing pending: ncclSuccess.
 *
 * Graphs. A captured send half is pending in its capture alone, where these limits hold as well: complete
 * it there, and launch the graph as often as you like. Where its stream is still in that capture, `stream`
 * joins it; for the legacy stream, which cannot, the receive half goes on the stream of the send half.
 * Outside of that capture it takes no bank and holds up no call. So a capture that is given up needs no
 * ncclEpComplete. What the handle does next (UpdateHandle, another operation) puts the send half behind.
 *
 * Halves of which one is in a graph and the other is not, or in another graph, are ordered by who launches
 * the graphs: each send half runs, and then one receive half. The device counts those, and a half out of
 * turn ends the group with an error in a later call. Where a half was captured, ncclEpComplete outside of
 * captures waits for `stream` and asks the device: it receives what a graph has sent, or what a receive
 * half would have received whose capture was given up. A captured receive half counts as run: if its graph
 * never runs, call ncclEpComplete. cudaStreamPerThread names another stream in each thread: send and
 * complete there in one thread.
 *
 * ncclInvalidUsage: the send half was captured, and no graph has sent since it was received last; or, in
 * its capture, the handle was used outside of that meanwhile.
 */
ncclResult_t ncclEpComplete(ncclEpHandle_t handle, const ncclEpCompleteConfig_t *config,
			    cudaStream_t stream);

/* ---- Ranks that fail ------------------------------------------------------------------------
 *
 * Low latency groups with enable_mask. mask[r] is 1 while rank r takes part. When a wait for r
 * expires, r is masked: it counts as a source of no tokens, combine leaves its rows out, and the
 * group's error flag becomes 1. A rank that others have masked learns it in its next operation, and
 * masks them in return. Without enable_mask, and in high throughput, which ignores it:
 * ncclInvalidUsage from all five calls.
 */

/* Copies the mask to mask[R] in device memory, on `stream`. */
ncclResult_t ncclEpMaskQuery(ncclEpGroup_t ep_group, int *mask, cudaStream_t stream);

/*
 * Sets the mask from mask[R] in host memory (0 or 1), on `stream`; the array must live until then.
 * ncclInvalidUsage: the stream is being captured.
 */
ncclResult_t ncclEpMaskUpdate(ncclEpGroup_t ep_group, const int *mask, cudaStream_t stream);

/*
 * Sets all masks to 1 and lets ranks that were masked come back. Collective among the ranks that are
 * not masked; masked ones may call it at the same time. Synchronises the stream. Active ranks are
 * waited for, each for the timeout at most: one that does not come is logged and sets the error
 * flag. Masked ones get 2 s (less with a shorter timeout). All are active afterwards, also who did
 * not come: such a rank must call this by itself before its next operation, and goes on from where
 * the others are, unless they have masked it again in the meantime. A rank stays masked whose
 * connection is lost or whose process has ended. The error flag is not reset. A handle's last
 * dispatch is forgotten, since a rank may have missed it: ncclEpCombine needs another one. So is what a
 * graph has sent and none has received.
 * ncclInvalidUsage: an operation is pending (other than a captured one), or the stream is being captured.
 */
ncclResult_t ncclEpMaskClean(ncclEpGroup_t ep_group, cudaStream_t stream);

/*
 * *error = 1 if a wait has expired or a connection was lost since the last ErrorClear, else 0. Does
 * not synchronise, nor wait for another thread's call on the group. Any thread may call it until
 * GroupDestroy returns; it needs no CUDA context and makes none. That the connection with a rank is
 * lost may become known after the wait for it. ncclEpExtGetLastError names the rank.
 */
ncclResult_t ncclEpGetAsyncError(ncclEpGroup_t ep_group, int *error);
/* Resets the error flag. The group's last error stays, as do masks. */
ncclResult_t ncclEpErrorClear(ncclEpGroup_t ep_group);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
