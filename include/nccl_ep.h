/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL EP: dispatch and combine of tokens for mixture-of-experts models, on NCCL communicators.
 *
 * A rank holds T tokens. Each token has chosen K of E experts. Rank r owns the L = E/R experts r*L
 * to r*L+L-1. Dispatch sends every token to the ranks of its experts. The caller runs the experts.
 * Combine returns the results to the token's rank and adds them up.
 *
 *     ncclEpCreateGroup      once per communicator and model shape         collective
 *     ncclEpCreateHandle     one routing decision: the tokens' expert ids
 *     ncclEpDispatch         tokens -> experts                             collective
 *     ncclEpCombine          results -> tokens                             collective
 *     ncclEpHandleDestroy, ncclEpGroupDestroy
 *
 * These comments are the text of the manual's pages. A function's comment ends with a list. Its
 * words are explained below, under the same titles.
 *
 * Shapes
 *
 * R is the number of ranks and E the number of experts; L = E/R. T is the number of tokens of this
 * call, each with K experts (top-k) and H elements. B is max_dispatch_tokens_per_rank, and T is at
 * most B. Tensors are dense, row-major and in device memory. Tensors of rows are aligned to 16
 * bytes, others to their elements. Inputs and outputs of one call must not overlap, and two
 * operations in flight must not write the same output. The rows that dispatch wrote may be the
 * input of combine.
 *
 * Structs
 *
 * Every struct begins with its size and a magic number: initialise it with its _INIT macro. A field
 * that an older caller's struct does not reach counts as zero. The library ignores the tail of a
 * newer caller's struct. A call has read its structs, descriptors and extents when it returns.
 *
 * Collective
 *
 * All ranks must make a collective call, in the same order on each group. Each rank must order the
 * operations of a group on the device: on one stream, or on several with events between them.
 * Operations of several handles may interleave in any way that is the same on all ranks.
 *
 * Agreement
 *
 * All ranks must pass the same to an operation:
 *
 *   Call: Dispatch or combine, and send_only.
 *   Handle: The layout, num_topk and alignment, and the same history. That is the same dispatch
 *     before a combine, the same send_only operation before ncclEpComplete, and in high throughput
 *     the same ncclEpUpdateHandle.
 *   Config: pass_direction, quant_recipe and, where the recipe makes scales, round_scales.
 *   Tensors: The types of tokens and scales, and their elements per token.
 *   Windows: If peers store to `outputs->tokens` of a flat dispatch, or load from `inputs->tokens`
 *     of a combine, a window at the same win_offset.
 *
 * Everything else may differ, T included. Ranks that differ get ncclRemoteError from a later call,
 * within two seconds. Its text names the field and both values. ncclEpCreateGroup lists the fields
 * of a group's config that must agree.
 *
 * Threads
 *
 * "One at a time" means that one host thread at a time uses a group and its handles. The group has
 * a lock, so a second thread waits for the first one's call to return; the caller decides the order
 * of their calls. No call may overlap one that destroys its group or handle. Different groups are
 * independent and may use different streams. Groups of one process on one GPU share its SMs: a
 * group that waits for its peers leaves room for the others, so that no order of launches locks up.
 * In high throughput the library does not reduce a number of SMs that the caller chose;
 * ncclEpCreateGroup logs a warning if other groups then have too few.
 *
 * Capture
 *
 * "Recorded" means that the call may be captured and its work becomes part of the CUDA graph. "Not
 * recorded" means that the call may be made during a capture, runs at once, and leaves nothing in
 * the graph. "Refused" means that the call returns ncclInvalidUsage while `stream` is captured.
 *
 * Early start
 *
 * On sm_90 and later GPUs, a kernel of the library may take its SMs while the kernel before it in
 * the stream ends (programmatic dependent launch). Each of its threads first waits until that
 * kernel has completed and its memory is visible. Work of a caller that starts in the ordinary way
 * keeps the order of the stream, before an operation and after it.
 *
 * A kernel of the caller that starts early itself must execute cudaGridDependencySynchronize, in
 * one of its threads at least. CUDA does not promise that a kernel without it completes after the
 * kernel before it. An operation behind such a kernel could read what the earlier kernel has not
 * written yet. Such a kernel behind an operation must also wait before it touches memory of that
 * operation.
 *
 * Graphs that hold operations have edges with data, which CUDA 12.3 and later know. To capture, to
 * instantiate, to update and to launch them needs nothing else. To read them needs room for that
 * data in cudaGraphGetEdges, cudaGraphNodeGetDependencies and cudaGraphNodeGetDependentNodes:
 * without it these return cudaErrorLossyQuery. CUDA 12 has forms with that room, whose names end in
 * _v2.
 *
 * With NCCL_EP_EARLY_START=0 a kernel of the library starts when the one before it is over, and
 * graphs have ordinary edges. The group reads the variable when it is created.
 *
 * Blocks
 *
 * "No" means that the call checks its arguments, enqueues its work, if any, on `stream`, and
 * returns. It may wait for the group's lock. The call that finds that the group has failed asks the
 * GPUs who is behind, and takes some seconds if they do not answer. A stream must belong to the
 * communicator's device. Waits on the device end with the group's timeout (100 s, see
 * `timeout_ns`), and aborting the communicator does not end them sooner. Waits on the host end with
 * the time that the call states.
 *
 * Memory
 *
 * The caller owns what it passes, and the library what it returns, until the call that destroys it.
 * Each comment says how long the caller's memory must stay.
 *
 * Logs
 *
 * A failed call logs its reason once, at WARN, in one line: what failed, the value, the limit or
 * the rank, and what to do. NCCL_DEBUG and NCCL_DEBUG_FILE control the log. ncclEpExtGetLastError
 * returns the same line.
 *
 * Errors
 *
 * ncclInvalidArgument is a wrong value and ncclInvalidUsage a wrong combination or order of calls:
 * correct the program. ncclUnhandledCudaError is a failure of CUDA, and ncclSystemError one of the
 * operating system or a NIC. ncclRemoteError is a failure of another rank, and ncclInternalError a
 * defect of the library. A call that fails writes no output. An operation may also fail on the
 * device, after its call has returned. Then the group has failed: later calls return the code, and
 * the group can only be destroyed. With masks the group continues without the lost rank; see
 * ncclEpMaskQuery.
 *
 * Codes of calls on a group
 *
 *   ncclInvalidArgument: The group or handle was destroyed, or is NULL where the call needs one.
 *   ncclInvalidUsage: The process is a child of fork(), and its parent made the group. Or the
 *     group's alloc_fn or free_fn makes the call.
 *
 * Codes of calls on a working group
 *
 *   ncclInvalidUsage: The handle's group was destroyed, or the group's device was reset. Or the
 *     group has failed: an operation was launched that could not run, such as half of one, a
 *     combine without its dispatch, or one with more rows than a tensor holds.
 *   ncclRemoteError: The group has failed: a rank was late or lost, or made other calls. The text
 *     names the rank.
 *   ncclSystemError: The group has failed: the NIC cannot stop the queue of a lost connection.
 *   ncclUnhandledCudaError: CUDA refused a request. The reason quotes it.
 *   ncclInternalError: The library has a defect. Report it.
 *
 * Codes of calls that use the GPU
 *
 *   ncclUnhandledCudaError: CUDA refused a request. The reason quotes it.
 *   ncclInternalError: The library has a defect. Report it.
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

/* The version of the structs below. Libraries of versions 1, 2 and 3 have the same soname. */
#define NCCL_EP_API_VERSION 3

#define NCCL_EP_MAGIC 0xC00FFFEEu
#define NCCL_EP_TENSOR_MAGIC 0xCAFECAFEu

/* Two 4-bit floats in a byte. Older releases of NCCL do not define the name. */
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

/* The first byte after a field, and whether the struct at a pointer reaches that far. */
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
 * Returns the version of the library.
 *
 * Stores 10000 * major + 100 * minor + patch in `*version`: 200 for 0.2.0. NCCL_EP_VERSION_CODE is
 * the same number for this header. The number does not tell the version of the structs. Callers of
 * API versions 1, 2 and 3 are accepted.
 *
 * Collective: no.
 * Threads: any.
 * Capture: not recorded.
 * Blocks: no.
 * Memory: none is kept.
 * Logs: failures.
 * Returns: ncclSuccess, or
 *   ncclInvalidArgument: `version` is NULL.
 */
ncclResult_t ncclEpGetVersion(int *version);

/* ---- Tensors ---- */

/*
 * A tensor descriptor: where a tensor is, its type and its extents. It owns no device memory. Make
 * one in place:
 *
 *     size_t dims[2] = { T, H };
 *     ncclEpTensor_t t = NCCL_EP_TENSOR_INIT;
 *     t.ndim = 2; t.datatype = ncclBfloat16; t.data = pointer; t.sizes = dims;
 *
 * Or write { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, ... }, or call ncclEpTensorAlloc. The storage
 * is `data`, or `win_offset` bytes into the NCCL window `win_hdl`. If both are given, `data` must
 * be the local address of the window's bytes. A window without `data` needs NCCL 2.29 and must hold
 * the whole tensor. A tensor with an extent of 0 needs no storage.
 */
typedef struct ncclEpTensor {
	unsigned int size;
	unsigned int magic;
	unsigned int ndim;       /* Dimensions. */
	ncclDataType_t datatype; /* Of an element. */
	void *data;              /* The first element, in device memory. */
	ncclWindow_t win_hdl;    /* A window that holds the tensor, or NULL. */
	uint64_t win_offset;     /* Bytes from the window's begin to the first element. */
	size_t *sizes; /* [ndim]: the caller's, or in an allocated descriptor the library's. */
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
 * Makes a tensor descriptor with its own copy of the extents.
 *
 * The descriptor has `ndim` dimensions and a copy of `sizes`. It has no storage yet: set `data`, or
 * `win_hdl` and `win_offset`, before using it. Extents may be changed in place. The `sizes` pointer
 * may not be changed, and the struct may not be copied. `config` may be NULL.
 *
 * Collective: no.
 * Threads: any.
 * Capture: not recorded.
 * Blocks: no.
 * Memory: the library owns the descriptor until ncclEpTensorDestroy. The storage is the caller's.
 * Logs: failures.
 * Returns: ncclSuccess, or
 *   ncclInvalidArgument: `tensor` or `sizes` is NULL, `ndim` is 0 or above 8, or `config` was not
 *     initialised.
 *   ncclSystemError: Host memory is exhausted.
 */
ncclResult_t ncclEpTensorAlloc(ncclEpTensor_t **tensor, unsigned int ndim, ncclDataType_t datatype,
			       const size_t *sizes, const ncclEpTensorAllocConfig_t *config);

/*
 * Frees a descriptor of ncclEpTensorAlloc.
 *
 * The storage that the descriptor points to stays as it is. NULL is allowed. A call needs its
 * descriptors only until it returns.
 *
 * Collective: no.
 * Threads: any.
 * Capture: not recorded.
 * Blocks: no.
 * Memory: the descriptor is freed. The storage remains the caller's.
 * Logs: failures.
 * Returns: ncclSuccess, or
 *   ncclInvalidArgument: `tensor` is not a descriptor of ncclEpTensorAlloc, was destroyed before,
 *     or its magic or `sizes` pointer was replaced.
 */
ncclResult_t ncclEpTensorDestroy(ncclEpTensor_t *tensor);

/* ---- Groups ---- */

/* The types of alloc_fn and free_fn. */
typedef cudaError_t (*ncclEpAllocFn_t)(void **ptr, size_t size, void *context);
typedef cudaError_t (*ncclEpFreeFn_t)(void *ptr, void *context);

/*
 * An allocator of the caller. Both functions run inside a call on the group. They may leave another
 * device current. They may not use the group or its handles, except for ncclEpGetAsyncError: such a
 * call returns ncclInvalidUsage. They must not wait for a thread that uses the group either.
 */
typedef struct {
	ncclEpAllocFn_t alloc_fn; /* Device memory, aligned to 16 bytes. NULL: cudaMalloc. */
	ncclEpFreeFn_t free_fn;   /* Frees it. NULL: cudaFree. */
	void *context;            /* Passed to both unchanged. */
} ncclEpAllocConfig_t;

/* What a group is made for. 0 is NCCL_EP_AUTO where a field has an automatic choice. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	unsigned int version; /* NCCL_EP_API_VERSION. The library goes by the size instead. */
	ncclEpAlgorithm_t algorithm; /* The mode. */
	/* E, a multiple of R. Required. */
	unsigned int num_experts;
	/* B, the most tokens that a rank passes to one dispatch. Required. Receive buffers have
	 * room for B tokens of every rank. High throughput across nodes: B times the experts of one
	 * rank that a token may choose is at most 268435456. */
	unsigned int max_dispatch_tokens_per_rank;
	/* High throughput: M, the most rows that a rank receives, from B to 2147483647. Rows are
	 * tokens in the flat layout, and rows of zones with their padding in the expert-major
	 * layout. AUTO is eager mode: all rows arrive, and the caller makes tensors as large as
	 * recv_total_counter states. Low latency ignores the field: it always has room for R * B
	 * tokens. */
	unsigned int max_recv_tokens_per_rank;
	/* Bytes of the largest row: H times the element size, plus the bytes of its scales if
	 * they travel with it. Required. For rows that dispatch quantises, use the size of the
	 * bf16 row, or exactly the size of the quantised row plus its scales. Dispatch may
	 * reject values in between, because quantised rows are padded in transit. High
	 * throughput: a multiple of 16. */
	unsigned int max_token_bytes;
	/* Low latency: bytes of the memory that peers write to. AUTO: enough for handles of both
	 * layouts with num_topk experts per token (unset: the smaller of 8 and E); a handle with
	 * more experts makes ncclEpInitHandle enlarge it. Otherwise the value, rounded up to 2 MiB,
	 * if it is enough for handles with num_topk (unset: 1) experts per token. If it is not, or
	 * a handle needs more, the library logs a warning and proceeds as with AUTO. High
	 * throughput ignores the field. */
	unsigned long int rdma_buffer_size;
	unsigned int num_qp_per_rank; /* Ignored. Set NCCL_EP_RDMA_QUEUES instead. */
	unsigned int num_channels;    /* Ignored. */
	/* The most SMs, one thread block each, that one operation occupies, unless
	 * dispatch_num_sms or combine_num_sms says otherwise. AUTO in low latency: all. AUTO in
	 * high throughput: four of five on one node (64 in flat combine, if more ranks than two
	 * may contribute to a row), 16 on several nodes. With AUTO, groups of one process that
	 * share a GPU divide its SMs. The environment variable NCCL_EP_COMM_SMS overrides this
	 * field and those two if the device has that many SMs. NCCL_EP_OVERLAP=1, for high
	 * throughput beside computation: AUTO on one node is 20 in flat layout and 40 in
	 * expert-major. */
	unsigned int max_num_sms;
	/* The allocator of handle memory and of the group's own state. Set both functions or none.
	 * Memory that peers map comes from cudaMalloc or ncclMemAlloc in any case. */
	ncclEpAllocConfig_t alloc;
	/* Low latency: non-zero lets operations continue without a rank that does not arrive; see
	 * ncclEpMaskQuery. High throughput ignores the field. */
	unsigned int enable_mask;
	/* How long the device waits for a peer before the operation ends with an error, rounded up
	 * to whole milliseconds. 0 is 100 s. Values above 2^62 ns (146 years) are treated as 2^62.
	 * If the peer may itself be blocked by a slower rank, the wait is extended to twice the
	 * timeout. The environment variable NCCL_EP_TIMEOUT_MS overrides the field. */
	uint64_t timeout_ns;
	/* Since API version 2. Low latency on several nodes: whether NICs read rows directly from
	 * inputs->tokens. That is possible in combine, and in dispatch with recipe NONE, if the
	 * tensor is an NCCL window and send_only is 0. AUTO: if B rows have at least
	 * NCCL_EP_LL_DIRECT_BYTES bytes. OFF: never. ON: whenever possible. Otherwise rows are
	 * copied to the group's memory first; the log states why (INFO, NET). Between ranks of one
	 * node rows always pass through the group's memory. High throughput, flat layout, at most
	 * 72 ranks, no roles: peers store rows directly into windows and combine loads them
	 * directly, whatever this field says. ON: received rows without a window are refused, in
	 * both layouts. */
	ncclEpZeroCopyMode_t zero_copy;
	/* Since API version 2. High throughput: what happens if more than M rows are to come to
	 * some rank. AUTO and TRAP: the group fails on all ranks, with an error that names the rank
	 * and the number of rows. DROP: the rows beyond M are left out. DROP is refused in eager
	 * mode. */
	ncclEpOverflowPolicy_t overflow_policy;
	/*
	 * Since API version 2. The largest num_topk of any handle, at most E. 0: unset. Low latency
	 * makes room for it from the beginning and allows a handle with more. High throughput
	 * refuses a handle with more, and needs the field for expert-major handles in eager mode.
	 */
	unsigned int num_topk;
	unsigned char padding_v2[4];
	/* Since API version 3. As max_num_sms, for dispatch alone. AUTO: max_num_sms. The
	 * environment variable NCCL_EP_DISPATCH_SMS overrides NCCL_EP_COMM_SMS and the fields. */
	unsigned int dispatch_num_sms;
	/* Since API version 3. The same for combine, with NCCL_EP_COMBINE_SMS. */
	unsigned int combine_num_sms;
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
#define NCCL_EP_GROUP_CONFIG_V3_LAST_FIELD combine_num_sms
#define NCCL_EP_GROUP_CONFIG_V3_SIZE 120u
#define NCCL_EP_GROUP_CONFIG_CURRENT_VERSION 3

typedef struct ncclEpGroup *ncclEpGroup_t;

/*
 * Makes a group of all ranks of a communicator.
 *
 * Allocates the memory that ranks write to, maps it on the ranks of the node, and connects NICs
 * with ranks of other nodes. The call uses ncclAllGather on `comm`; the group calls no NCCL
 * collective afterwards, unless a handle enlarges its memory (ncclEpInitHandle). The call makes the
 * communicator's device current and leaves it current. Either all ranks succeed or all fail, and
 * every rank gets the reason and the rank that gave it.
 *
 * `comm` may be one that does not block (ncclConfig_t.blocking is 0). It has to be ready: before
 * the call ncclCommGetAsyncError no longer returns ncclInProgress. The call may stand between
 * ncclGroupStart and ncclGroupEnd, and does not wait for the latter. No call on `comm` may wait for
 * it then.
 *
 * Ranks must agree in all fields of `config` except alloc, max_num_sms, dispatch_num_sms,
 * combine_num_sms, num_qp_per_rank, num_channels, timeout_ns, and the fields that the mode ignores:
 * max_recv_tokens_per_rank and overflow_policy in low latency, rdma_buffer_size and enable_mask in
 * high throughput.
 *
 * Windows as input
 *
 * With ranks of several nodes, the first call that reads from a window registers the window's
 * allocation with the rank's NICs. A group keeps at most 16 allocations registered. The memory of
 * an allocation that the caller frees remains in use until a call registers another one or the
 * group is destroyed.
 *
 * Limits
 *
 * The table has the largest values. Memory ends before the products do. Tokens are B.
 *
 *                                                 low latency   high throughput
 *     ranks                                              1024              1024
 *     num_experts                                    16383 R             65535
 *     max_dispatch_tokens_per_rank                      65535          16777216
 *     max_token_bytes                                16777216          16777216
 *     num_topk of a handle                                 32                32
 *     tokens x num_topk of a handle                    262144                 -
 *     ranks x tokens                                        -        2147483647
 *     num_experts x tokens                         2147483647                 -
 *     ranks x tokens x quads (480 bytes) of a row  2147483647                 -
 *
 * Collective: yes, among all ranks of `comm`.
 * Threads: any, one thread for each rank.
 * Capture: not recorded. Streams may be captured meanwhile, on any rank, unless memory of groups
 *   that were destroyed before is freed then: see ncclEpGroupDestroy. A call that fails with ranks
 *   of other nodes waits for the device, which ends captures, too.
 * Blocks: until all ranks have made the group. For another rank it waits at most
 *   NCCL_EP_BOOTSTRAP_TIMEOUT_MS (100 s). It synchronises the host with the device and allocates
 *   device memory. ncclEpExtDeviceMemory returns how much.
 * Memory: the library owns the group until ncclEpGroupDestroy. `config` is copied. alloc_fn and
 *   free_fn must work until ncclEpGroupDestroy returns. `comm` must exist for all calls on the
 *   group except those that destroy.
 * Logs: failures. The first group of a process logs the library's version (INFO; on rank 0 also
 *   VERSION and WARN). Each group logs its memory, paths and choices, and the time of each step
 *   (INFO, INIT). It warns of an rdma_buffer_size that is too small, and of groups that leave each
 *   other too few SMs.
 * Returns: ncclSuccess, the codes of calls that use the GPU, or
 *   ncclInvalidArgument: `ep_group` or `comm` is NULL, `config` is NULL or was not initialised, a
 *     field is out of its range, or the ranks disagree.
 *   ncclInvalidUsage: Only one of alloc_fn and free_fn is set. max_num_sms, dispatch_num_sms or
 *     combine_num_sms exceeds the number of SMs. The communicator has more than 1024 ranks, or a
 *     call on it waits for ncclGroupEnd. Ranks have different builds of the library. An environment
 *     variable is malformed. NCCL is older than 2.28. A rank runs on a MIG instance or has no peer
 *     access to another rank of its node; the text names both GPUs and what to set. Ranks of
 *     several nodes have no path by RDMA. Or, in high throughput, the GPU's shared memory cannot
 *     count as many experts.
 *   ncclRemoteError: Another rank failed, or did not arrive in time. In the latter case abort the
 *     communicator, unless the text says to keep it: its collective still waits. The call's device
 *     memory is freed when that ends, except memory of alloc_fn.
 *   ncclSystemError: Host memory, a thread, a file, a function of NCCL or an RDMA resource is
 *     missing.
 */
ncclResult_t ncclEpCreateGroup(ncclEpGroup_t *ep_group, ncclComm_t comm,
			       const ncclEpGroupConfig_t *config);

/*
 * Frees a group.
 *
 * The call is possible after every error, by any thread, and after the communicator was aborted or
 * destroyed. NULL is allowed. Groups may be destroyed in any order.
 *
 * The call first waits for all work on the device, as cudaFree does. Then it leaves the other
 * ranks. Memory that they may still write to is freed when they have destroyed the group too, or
 * when their process has ended. The call waits up to 1 s for ranks of this node and up to
 * NCCL_EP_CLOSE_TIMEOUT_MS (10 s) for ranks of other nodes, then revokes their access. If the
 * process has another group, it does not wait. Later creations and destructions of any group free
 * what this call did not wait for.
 *
 * Handles that still exist can only be destroyed afterwards; memory that the library gave them is
 * freed with the group. Graphs that hold operations of the group must not be launched any more:
 * their kernels would use freed memory.
 *
 * Reset of the device
 *
 * After cudaDeviceReset of the group's device only this call, ncclEpHandleDestroy,
 * ncclEpGetAsyncError and ncclEpExtGetLastError remain; every other call returns ncclInvalidUsage.
 * Memory from NCCL outlives the reset. NCCL frees it here, for which it makes a context on the
 * device. Everything else counts as freed by the reset, and free_fn is not called for it. The other
 * ranks see this rank as a process that has ended. With CUDA IPC, memory of theirs that this
 * process has mapped stays mapped until the process ends.
 *
 * Collective: no. All ranks should call it, so that memory can be freed.
 * Threads: any, but only one.
 * Capture: refused, if any stream of the device is captured. The wait for the device ends the
 *   captures there, as cudaDeviceSynchronize does: cudaStreamEndCapture reports
 *   cudaErrorStreamCaptureInvalidated. What is freed later takes such a wait again, in a thread of
 *   the library: with CUDA IPC, in host memory, with ranks of other nodes, and with ranks that are
 *   threads of one process.
 * Blocks: until the device is idle, at most three timeouts of the group plus
 *   NCCL_EP_CLOSE_TIMEOUT_MS (310 s by default), and then for other ranks as above.
 * Memory: the group and the library's memory of its handles are freed, or later as above.
 * Logs: failures. After 1 s it logs the rank that it waits for (INFO). It warns of handles that
 *   still exist, and once, NCCL_EP_CLOSE_TIMEOUT_MS after the call, of memory that cannot be freed
 *   yet.
 * Returns: ncclSuccess, the codes of calls on a group, the codes of calls that use the GPU, or
 *   ncclSystemError: Work on the device has not ended in time, such as a collective that waits for
 *     a lost rank. Or no thread can be started that waits for the device. Nothing was freed: let
 *     the work end, or abort its communicator, and call again.
 *   ncclInvalidUsage: A stream of the device is being captured, so the call cannot wait for the
 *     device. Nothing was freed: end the capture and call again. Or another thread is destroying
 *     the group.
 */
ncclResult_t ncclEpGroupDestroy(ncclEpGroup_t ep_group);

/* ---- Handles ---- */

/* Options of a handle. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	/* High throughput, expert-major: each zone of rows is padded to a multiple of this power of
	 * two, at most 2^30. 0 is 1. All ranks pass the same. Other layouts ignore the field. */
	size_t dispatch_output_per_expert_alignment;
} ncclEpHandleConfig_t;

#define NCCL_EP_HANDLE_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpHandleConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_HANDLE_CONFIG_SIZE ((unsigned int)sizeof(ncclEpHandleConfig_t))
#define NCCL_EP_HANDLE_CONFIG_V1_LAST_FIELD dispatch_output_per_expert_alignment
#define NCCL_EP_HANDLE_CONFIG_V1_SIZE 16u
#define NCCL_EP_HANDLE_CONFIG_CURRENT_VERSION 1

/* Device tensors that describe the rows that were received. A NULL member is not wanted. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	/* Rows of each local expert, [L]. Low latency expert-major: int32, written by dispatch.
	 * High throughput: written by ncclEpUpdateHandle, in the expert-major layout also by
	 * dispatch. There the flat layout counts in int32 the rows that chose the expert, and the
	 * expert-major layout the rows of its zone with padding. */
	ncclEpTensor_t *expert_counters;
	/* Rows from each source rank. Low latency rank-major: int32 [R], written by dispatch. */
	ncclEpTensor_t *src_rank_counters;
	/* High throughput, expert-major: the first row of each zone, [L]. */
	ncclEpTensor_t *expert_offsets;
	/* High throughput: the number of all rows, [1]. With overflow_policy DROP it includes rows
	 * that are dropped. */
	ncclEpTensor_t *recv_total_counter;
	/* Since API version 2. The numbering of experts in outputs->topk_idx of dispatch. */
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
 * Returns the bytes of device memory that a handle needs.
 *
 * Callers that provide the memory of a handle allocate `*size_out` bytes and pass them to
 * ncclEpInitHandle. The size depends on the group, `layout` and `num_topk`. `config` may be NULL
 * and does not change the size; the call checks it.
 *
 * Collective: no.
 * Threads: one at a time.
 * Capture: not recorded.
 * Blocks: no.
 * Memory: none is kept.
 * Logs: failures.
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: `size_out` is NULL. `config` was not initialised, or its alignment is not
 *     a power of two up to 1073741824. The group's mode does not have the layout. Or `num_topk` is
 *     outside 1 to 32 or exceeds E.
 *   ncclInvalidUsage: `num_topk` exceeds the group's in high throughput. B times `num_topk` exceeds
 *     262144 in low latency. The rows that may come, times the experts of each, exceed 2147483647
 *     in high throughput. In high throughput across nodes, B times the experts of one rank that a
 *     token may choose exceeds 268435456. Or an expert-major handle in eager mode needs the group's
 *     num_topk.
 */
ncclResult_t ncclEpHandleMemSize(ncclEpGroup_t ep_group, ncclEpLayout_t layout,
				 const ncclEpHandleConfig_t *config, size_t *size_out,
				 int num_topk);

/*
 * Makes a handle that has no routing yet.
 *
 * `handle_mem` is a one-dimensional uint8 tensor of at least ncclEpHandleMemSize bytes, aligned to
 * 16 bytes. With NULL the library takes the memory from a pool of the group; making and destroying
 * handles of one shape in turns allocates nothing. `config` may be NULL.
 *
 * In high throughput `handle_mem` also stores the routing of ncclEpUpdateHandle. A new handle on
 * the same memory can dispatch and combine without an update. Its group must have the same shape
 * and nodes, and the handle the same layout, `num_topk` and alignment. The tensors of each call
 * then state T.
 *
 * Growth
 *
 * In low latency the group's memory has to grow if `num_topk` exceeds what it was made for; see
 * num_topk and rdma_buffer_size of ncclEpGroupConfig_t. Then the call is collective: all ranks pass
 * the same layout and `num_topk`, and a mistake of one rank fails the call on all. The call
 * synchronises the device, which fails while a stream of the device is captured, and ends that
 * capture. It needs the old and the new memory for a moment. Graphs captured before must not be
 * launched any more. A rank whose `num_topk` ncclEpHandleMemSize refuses takes no part. The ranks
 * of its node name it after two seconds. The others wait for NCCL_EP_BOOTSTRAP_TIMEOUT_MS (100 s),
 * and so do all if that rank's memory is large enough.
 *
 * Collective: no; yes if the group's memory grows.
 * Threads: one at a time.
 * Capture: not recorded. Growth fails during a capture.
 * Blocks: no, except for an allocation if the pool is empty. Growth waits for the device and for
 *   all ranks, at most NCCL_EP_BOOTSTRAP_TIMEOUT_MS (100 s).
 * Memory: the library owns the handle until ncclEpHandleDestroy. `handle_mem` remains the caller's
 *   and must stay until then and until the handle's work has ended.
 * Logs: failures. Growth is logged (INFO, INIT), with a warning if rdma_buffer_size was set.
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: `handle` is NULL; an argument is one that ncclEpHandleMemSize refuses;
 *     `handle_mem` has another shape or type, is too small or not aligned; or, if memory grows, the
 *     ranks differ in `num_topk`.
 *   ncclInvalidUsage: As for ncclEpHandleMemSize. Or memory has to grow while an operation is
 *     pending, or a call on the communicator waits for ncclGroupEnd. Or `handle_mem` has only
 *     a window, and NCCL does not know its address. Or the operations need more shared memory or
 *     SMs than there are.
 *   ncclRemoteError: Memory grows, and another rank failed or did not arrive.
 *   ncclSystemError: Host memory is exhausted. Or memory grows, and the device does not become
 *     idle, or a thread or an RDMA resource is missing.
 */
ncclResult_t ncclEpInitHandle(ncclEpHandle_t *handle, ncclEpGroup_t ep_group, ncclEpLayout_t layout,
			      const ncclEpHandleConfig_t *config, int num_topk,
			      const ncclEpTensor_t *handle_mem);

/*
 * Gives a handle its routing.
 *
 * `topk_idx` is int32 or int64 [T, K] in device memory, with T from 0 to B and K the handle's
 * num_topk. It holds the experts of each token, numbered over all ranks. A negative id means no
 * expert. An id of E or above is treated as negative; after the dispatch the log and
 * ncclEpExtGetLastError report the first.
 *
 * Low latency
 *
 * The call only copies the descriptor. `layout_info` must be NULL: dispatch takes it. An id that a
 * token names twice counts twice. If an expert gets more than R*B rows by that, the last ones are
 * not written, combine takes zeros for them, and the log and ncclEpExtGetLastError of the expert's
 * rank report the first. Between a dispatch and its combine the call may repeat the same ids, from
 * the same or another place.
 *
 * High throughput
 *
 * The call launches one kernel, which exchanges counts with all ranks. An id that a token names
 * twice counts once. `layout_info` may be NULL or request these tensors:
 *
 *                              flat                     expert-major
 *     expert_counters [L]      rows that chose the      rows of the zone
 *                              expert; int32            with padding
 *     expert_offsets [L]       ignored                  first row of the zone
 *     recv_total_counter [1]   all rows                 rows of all zones
 *
 * They are int32 or int64, all of one type except as stated, and are overwritten. They may be
 * larger; the rest stays as it was. If more than max_recv_tokens_per_rank rows are to come to some
 * rank, the group fails on all ranks, unless overflow_policy is DROP. Programs that need
 * expert-major counters only after the dispatch can give them to ncclEpDispatch, if the group's
 * config is of API version 3, and pass NULL here.
 *
 * With DROP the total counts all rows. A flat row is kept if its place is below M. An expert-major
 * row is kept if its place in the output and its place in a flat output are both below M. Flat
 * counters count kept rows. Expert-major counters and offsets describe the zones, cut off at M; a
 * row in a zone that is dropped for its place in a flat output is zero.
 *
 * Collective: no in low latency; yes in high throughput.
 * Threads: one at a time.
 * Capture: recorded in high throughput; not recorded in low latency, where it takes effect at once.
 * Blocks: no.
 * Memory: low latency: `topk_idx` must stay unchanged until the last dispatch and combine with it
 *   have run. High throughput: it may be overwritten in stream order.
 * Logs: failures; after the dispatch, an id out of range (WARN).
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: `topk_idx` is NULL, has another shape or type, another K, or more than B
 *     tokens. `layout_info` was not initialised, is given in low latency, or has a counter of
 *     another type or too small.
 *   ncclInvalidUsage: An operation of the handle is pending. `stream` belongs to another device. Or
 *     a tensor has only a window, and NCCL does not know its address.
 */
ncclResult_t ncclEpUpdateHandle(ncclEpHandle_t handle, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream);

/*
 * Makes a handle and gives it its routing.
 *
 * The call is ncclEpInitHandle, with the K of `topk_idx` and memory of the library, followed by
 * ncclEpUpdateHandle. `layout_info` is checked first. If memory has to grow, a `topk_idx` that is
 * not two-dimensional is treated like an invalid num_topk.
 *
 * Collective: yes in high throughput, and if the group's memory grows; otherwise no.
 * Threads: one at a time.
 * Capture: recorded in high throughput, as the update is; not recorded in low latency.
 * Blocks: as ncclEpInitHandle.
 * Memory: as the two calls: the library owns the handle until ncclEpHandleDestroy.
 * Logs: as the two calls.
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: As for ncclEpInitHandle and ncclEpUpdateHandle.
 *   ncclInvalidUsage: As for ncclEpInitHandle and ncclEpUpdateHandle.
 *   ncclRemoteError: As for ncclEpInitHandle.
 *   ncclSystemError: As for ncclEpInitHandle.
 */
ncclResult_t ncclEpCreateHandle(ncclEpHandle_t *handle, ncclEpGroup_t ep_group,
				ncclEpLayout_t layout, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info,
				const ncclEpHandleConfig_t *config, cudaStream_t stream);

/*
 * Frees a handle.
 *
 * The handle's work may still be on a stream: memory of the library returns to the group's pool,
 * and its next user comes later in the order of the group's operations. The call is also possible
 * after ncclEpGroupDestroy. NULL is allowed. Graphs that hold operations of the handle must not be
 * launched any more.
 *
 * Collective: no.
 * Threads: one at a time.
 * Capture: not recorded.
 * Blocks: no.
 * Memory: the handle is freed. `handle_mem` of the caller is not, and must stay until the handle's
 *   work has ended.
 * Logs: failures.
 * Returns: ncclSuccess, the codes of calls on a group, or
 *   ncclInvalidUsage: A send_only operation of the handle is pending, other than a captured one.
 *     Nothing was freed: call ncclEpComplete first.
 */
ncclResult_t ncclEpHandleDestroy(ncclEpHandle_t handle);

/* ---- Dispatch ---- */

/* What dispatch reads. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens;       /* [T, H]. Required. */
	ncclEpTensor_t *topk_weights; /* fp32 [T, K]. */
	ncclEpTensor_t *scales;       /* Recipe FWD: [T, S]. */
} ncclEpDispatchInputs_t;

#define NCCL_EP_DISPATCH_INPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpDispatchInputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_DISPATCH_INPUTS_SIZE ((unsigned int)sizeof(ncclEpDispatchInputs_t))
#define NCCL_EP_DISPATCH_INPUTS_V1_LAST_FIELD scales
#define NCCL_EP_DISPATCH_INPUTS_V1_SIZE 32u
#define NCCL_EP_DISPATCH_INPUTS_CURRENT_VERSION 1

/* What dispatch writes. The tables of ncclEpDispatch have the shapes. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens;       /* Received rows. Required. */
	ncclEpTensor_t *topk_weights; /* Their weights. */
	ncclEpTensor_t *scales;       /* Their scales, by the recipe. */
	ncclEpTensor_t *topk_idx;     /* Their experts. */
} ncclEpDispatchOutputs_t;

#define NCCL_EP_DISPATCH_OUTPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpDispatchOutputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_DISPATCH_OUTPUTS_SIZE ((unsigned int)sizeof(ncclEpDispatchOutputs_t))
#define NCCL_EP_DISPATCH_OUTPUTS_V1_LAST_FIELD topk_idx
#define NCCL_EP_DISPATCH_OUTPUTS_V1_SIZE 40u
#define NCCL_EP_DISPATCH_OUTPUTS_CURRENT_VERSION 1

/* Options of a dispatch. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	unsigned int send_only;         /* Low latency: stop after sending; see ncclEpComplete. */
	unsigned int round_scales;      /* Recipe DS_FP8E3M4: scales are powers of two. */
	ncclEpPassDir_t pass_direction; /* Low latency: forward only. */
	ncclEpDispQuant_t quant_recipe; /* Since API version 2. The recipe. */
} ncclEpDispatchConfig_t;

#define NCCL_EP_DISPATCH_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpDispatchConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_DISPATCH_CONFIG_SIZE ((unsigned int)sizeof(ncclEpDispatchConfig_t))
#define NCCL_EP_DISPATCH_CONFIG_V1_LAST_FIELD pass_direction
#define NCCL_EP_DISPATCH_CONFIG_V1_SIZE 20u
#define NCCL_EP_DISPATCH_CONFIG_V2_LAST_FIELD quant_recipe
#define NCCL_EP_DISPATCH_CONFIG_V2_SIZE 24u
#define NCCL_EP_DISPATCH_CONFIG_CURRENT_VERSION 2

/*
 * Sends tokens to the ranks of their experts.
 *
 * `config` may be NULL: the forward pass, without send_only. Low latency has these tensors:
 *
 *                             expert-major                rank-major
 *     inputs->tokens          [T, H]                      [T, H]
 *     inputs->topk_weights    NULL                        fp32 [T, K]
 *     outputs->tokens         [L, R*B, H]                 [R, B, H]
 *     outputs->topk_weights   NULL                        fp32 [R, B, K]
 *     outputs->topk_idx       NULL                        int32 [R, B, K]
 *     layout_info             expert_counters int32 [L]   NULL or src_rank_counters
 *                                                         int32 [R]
 *
 * Expert-major: local expert e receives rows 0 to expert_counters[e]-1, one per (token, k) that
 * chose it, in ascending order of (source rank, token, k).
 *
 * Rank-major: source rank r sends rows 0 to src_rank_counters[r]-1, one per token that chose an
 * expert here, in ascending order of tokens. `outputs->topk_weights` holds the K weights that the
 * source passed. `outputs->topk_idx` holds at each k the expert if it is on this rank, otherwise
 * -1. recv_topk_idx_kind selects its numbering. Its rows beyond the count are -1.
 *
 * Rows of other outputs beyond the counts stay as they were. Counters are overwritten.
 *
 * High throughput
 *
 * N rows are received. M is the group's max_recv_tokens_per_rank.
 *
 *                             flat                        expert-major
 *     inputs->tokens          [T, H]                      [T, H]
 *     inputs->topk_weights    fp32 [T, K]                 fp32 [T, K]
 *     outputs->tokens         [N, H]                      [N, H]
 *     outputs->topk_weights   fp32 [N', K]                fp32 [N']
 *     outputs->topk_idx       int64 [N', K]               NULL
 *     layout_info             NULL or                     NULL or counters
 *                             recv_topk_idx_kind
 *
 * Flat: one row per token that chose an expert here, in ascending order of (source rank, token).
 * `outputs->topk_idx` holds the row's experts of this rank in ascending order, then -1, and
 * `outputs->topk_weights` their weights, then 0. If the group's config is of API version 1 or 2 and
 * M is fixed, all other rows up to the N'-th or M-th are -1 and 0.
 *
 * Expert-major: one zone per local expert, in ascending order. A zone holds the rows that chose the
 * expert, in ascending order of (source rank, token), then zeros up to its padded end.
 * `outputs->topk_weights` holds the row's weight for that expert. With overflow_policy DROP all
 * other rows below M are zero.
 *
 * Backward (pass_direction BWD_PASS): the same rows travel, without weights and ids, which must be
 * NULL.
 *
 * Counters: an expert-major dispatch of the forward pass writes those of expert_counters,
 * expert_offsets and recv_total_counter that `layout_info` has, as ncclEpUpdateHandle would have
 * written them, whether or not it did. They may be other tensors than those of the update. The
 * rules for shapes and types are the same. Other dispatches ignore these members, and so do those
 * of groups whose config is of API version 1 or 2.
 *
 * N is at least M, unless the group's config is of API version 1. In eager mode the call waits for
 * the stream to learn how many rows come, unless the tensors hold as many as can ever come; a flat
 * output in a window makes it wait always. It refuses tensors that are too small. An expert-major
 * call of API version 3 does not wait: a tensor that is too small fails the group. If N' is less
 * than M, the call waits as well. Other rows stay as they were. Tensors of no rows need no storage.
 * send_only is ignored.
 *
 * Recipes
 *
 *   NONE: Tokens are bf16, fp16, fp32, e4m3, e5m2, fp4x2, uint8 or int8, in and out. Rows are
 *     copied bit by bit. There are no scales.
 *   FWD: Tokens are fp32, fp16, bf16, e4m3, e5m2 or fp4x2, where H counts bytes. `inputs->scales`
 *     is [T, S] of fp32, fp16, bf16, e4m3, e5m2 or uint8. `outputs->scales` has S in place of H.
 *     Both are copied. Rows of tokens and of scales are multiples of 16 bytes, and so is each
 *     win_offset. round_scales is 0.
 *   DS_FP8E3M4: Low latency only. Tokens are bf16 in and e4m3 out, and H is a multiple of 128.
 *     `outputs->scales` is fp32 with H/128 in place of H. Per 128 elements, with a = max(largest
 *     magnitude, 1e-4), the scale is a/448, or the next power of two with round_scales. x becomes
 *     x*(448/a), or x divided by that power, rounded to the nearest, ties to even. A zero keeps its
 *     sign. An infinite x makes all 128 NaN. A NaN concerns no other element.
 *   NCCL_EP_EXT_DISP_QUANT_MXFP8, NCCL_EP_EXT_DISP_QUANT_NVFP4: Low latency only; nccl_ep/ext.h has
 *     the details.
 *
 * In low latency a `config` of API version 1, or NULL, means DS_FP8E3M4 if `outputs->scales` is
 * given and NONE otherwise. Its scales are stored [L][H/128][R*B] or [R][H/128][B], whatever their
 * descriptor says.
 *
 * Rows are multiples of 16 bytes and, with their scales, at most max_token_bytes. H is the same on
 * all ranks, also where T or N is 0.
 *
 * Windows
 *
 * Any tensor may be a window, with NCCL 2.29 or later. With ranks of several nodes NICs may read
 * rows from the window of `inputs->tokens` (see zero_copy of ncclEpGroupConfig_t).
 *
 * In the flat layout of high throughput peers store directly to windows of `outputs->tokens` and
 * `outputs->scales`. Give both a window, or neither, registered by all ranks and at the same offset
 * on all. Peers store between the start of the dispatch on `stream` and its end. Without windows
 * rows pass through a ring in the group's memory.
 *
 * A graph that holds the call is valid while its windows have the same memory. If other memory is
 * mapped to their addresses, capture the graph again.
 *
 * Collective: yes.
 * Threads: one at a time.
 * Capture: recorded. Refused in eager mode, and if N' is less than M.
 * Blocks: no. High throughput waits for `stream` where the rows must be counted, as above.
 * Memory: inputs may be overwritten in stream order after the dispatch, also with send_only and
 *   also if NICs read them. Outputs belong to the call until the dispatch, or with send_only
 *   ncclEpComplete, has run.
 * Logs: failures. Windows that cannot be used are logged with the reason (INFO, NET or COLL).
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: A condition above is not met. The handle has no routing. Or zero_copy is
 *     ON and a tensor has no window that peers can reach.
 *   ncclInvalidUsage: Low latency has no backward pass. An operation of the handle is pending. Two
 *     operations of the group are pending, and this one is send_only or the group has ranks of
 *     several nodes. This rank has joined the group, and ncclEpMaskClean comes first. The rows must
 *     be counted, and `stream` is captured. `stream` belongs to another device. A tensor has only a
 *     window, and NCCL does not know its address. Later calls return this code permanently if
 *     `handle_mem` had no routing, or that of another number of tokens, or if more rows come than a
 *     tensor holds.
 */
ncclResult_t ncclEpDispatch(ncclEpHandle_t handle, const ncclEpDispatchInputs_t *inputs,
			    const ncclEpDispatchOutputs_t *outputs,
			    const ncclEpLayoutInfo_t *layout_info,
			    const ncclEpDispatchConfig_t *config, cudaStream_t stream);

/* ---- Combine ---- */

/* What combine reads. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens;       /* Shaped as outputs->tokens of dispatch. Required. */
	ncclEpTensor_t *topk_weights; /* High throughput, backward: as dispatch wrote it. */
	ncclEpTensor_t *scales; /* Since API version 2. Recipe NVFP4: a scale per row. Else NULL. */
} ncclEpCombineInputs_t;

#define NCCL_EP_COMBINE_INPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpCombineInputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMBINE_INPUTS_SIZE ((unsigned int)sizeof(ncclEpCombineInputs_t))
#define NCCL_EP_COMBINE_INPUTS_V1_LAST_FIELD topk_weights
#define NCCL_EP_COMBINE_INPUTS_V1_SIZE 24u
#define NCCL_EP_COMBINE_INPUTS_V2_LAST_FIELD scales
#define NCCL_EP_COMBINE_INPUTS_V2_SIZE 32u
#define NCCL_EP_COMBINE_INPUTS_CURRENT_VERSION 2

/* What combine writes, and the weights. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpTensor_t *tokens; /* [T, H]. Required. */
	/* fp32 [T, K]. Low latency, expert-major: read. High throughput, backward: written. */
	ncclEpTensor_t *topk_weights;
} ncclEpCombineOutputs_t;

#define NCCL_EP_COMBINE_OUTPUTS_INIT NCCL_EP_STRUCT_INIT(ncclEpCombineOutputs_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMBINE_OUTPUTS_SIZE ((unsigned int)sizeof(ncclEpCombineOutputs_t))
#define NCCL_EP_COMBINE_OUTPUTS_V1_LAST_FIELD topk_weights
#define NCCL_EP_COMBINE_OUTPUTS_V1_SIZE 24u
#define NCCL_EP_COMBINE_OUTPUTS_CURRENT_VERSION 1

/* Options of a combine. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	unsigned int send_only;         /* Low latency: stop after sending; see ncclEpComplete. */
	ncclEpPassDir_t pass_direction; /* Low latency: forward only. */
	ncclEpCombQuant_t quant_recipe; /* Since API version 2. The recipe. */
} ncclEpCombineConfig_t;

#define NCCL_EP_COMBINE_CONFIG_INIT NCCL_EP_STRUCT_INIT(ncclEpCombineConfig_t, NCCL_EP_MAGIC)
#define NCCL_EP_COMBINE_CONFIG_SIZE ((unsigned int)sizeof(ncclEpCombineConfig_t))
#define NCCL_EP_COMBINE_CONFIG_V1_LAST_FIELD pass_direction
#define NCCL_EP_COMBINE_CONFIG_V1_SIZE 16u
#define NCCL_EP_COMBINE_CONFIG_V2_LAST_FIELD quant_recipe
#define NCCL_EP_COMBINE_CONFIG_V2_SIZE 20u
#define NCCL_EP_COMBINE_CONFIG_CURRENT_VERSION 2

/*
 * Returns rows to their tokens' ranks and adds them up.
 *
 * `inputs->tokens` has the shape of the dispatch's `outputs->tokens`, with rows where dispatch put
 * them, of bf16, fp16 or fp32. `outputs->tokens` is [T, H] of the same type. `config` may be NULL.
 * In low latency the rows are those of the handle's last dispatch:
 *
 *   Expert-major: outputs->tokens[t] is the sum over all k with id >= 0 of w[t][k] times the row of
 *     (t, k). w is `outputs->topk_weights`, fp32 [T, K], required and only read.
 *   Rank-major: outputs->tokens[t] is the sum of one row per rank that t was sent to, in the order
 *     of the ranks' first k, without weights.
 *
 * High throughput
 *
 * `inputs->tokens` is [N, H], by the handle's routing; no dispatch needs to have run.
 * outputs->tokens[t] is the sum over ranks, in ascending order, of the row that each returns: its
 * flat row, or the sum of t's rows in its zones in ascending order of experts, rounded to the
 * tokens' type. There are no weights. Padding is not read. On several nodes one rank of each other
 * node adds what its node's ranks return for a token, and rounds the sum. The token's rank adds
 * these sums and the rows of its own node, in the order of the token's experts, and rounds again.
 *
 * Backward (pass_direction BWD_PASS): also returns `inputs->topk_weights`, flat fp32 [N, K] packed
 * as dispatch packs it, expert-major fp32 [N]. outputs->topk_weights[t][k], fp32 [T, K], gets the
 * entry of t and its k-th expert, and 0 for negative ids and dropped rows.
 *
 * Recipes
 *
 * Rows are quantised on their way to the token's rank, also those that stay on the rank, and sums
 * take the quantised values. The rest is as without a recipe.
 *
 *   NONE: Rows travel as they are, and `inputs->scales` is NULL.
 *   NVFP4: Low latency only. Tokens are bf16, and H is a multiple of 32. `inputs->scales` has one
 *     scale g per row: fp32 with 1 in place of H. Per 16 elements, with a = largest magnitude, the
 *     scale s is g*a/6 as e4m3, and x becomes x*g/s as e2m1. The sum takes e2m1 * s / g in place of
 *     x. A group so small that s is 0 becomes zeros. A g of 2688 / (largest magnitude of the row)
 *     uses the whole range. It is positive; above 2^112, as of a row of zeros, it counts as that.
 *   MXFP8: High throughput only, expert-major, with all ranks in one NVLink domain. Tokens are
 *     bf16, H is a multiple of 512, and `inputs->scales` is NULL. The sum that a rank returns for a
 *     token is not rounded to bf16. Per 32 elements of it, with a = largest magnitude, the scale is
 *     the smallest power of two 2^n with a / 2^n <= 448, at least 2^-127, and x becomes x / 2^n
 *     as e4m3. Backward, the weights' gradients are not quantised.
 *   NCCL_EP_EXT_COMB_QUANT_FP8: Low latency only; nccl_ep/ext.h has the details.
 *
 * Values are rounded to the nearest, ties to even. A zero keeps its sign. A NaN makes all elements
 * NaN that share its scale. Infinity stays infinite in MXFP8. In NVFP4 it becomes the largest
 * value, 2688 / g.
 *
 * Results
 *
 * Sums are computed in fp32. In low latency they are added in ascending k and rounded once. Tokens
 * without experts get zeros. Combine may be repeated after one dispatch.
 *
 * A token's sum has the same bits whatever the batch: its ids, its weights and the rows that
 * experts make of it decide. Other tokens do not, nor its place, the number of SMs, split
 * operations, graphs, windows, or which rank of a node has the token. What else decides:
 *
 *   Low latency, expert-major: nothing. Experts may be on any ranks, and ranks on any nodes.
 *   Low latency, rank-major: which experts share a rank, as the caller adds their rows.
 *   High throughput: which experts share a rank, which rounds, or quantises, its sum. On several
 *     nodes, which ranks share a node, and the node of the token's rank.
 *   Overflow policy DROP: which rows are dropped, which the whole batch decides.
 *
 * If a rank is lost during a combine of a group with masks, the error flag becomes 1. The sums of
 * tokens with an expert on that rank are undefined: they may contain part of its rows. All other
 * sums are right. The next combines leave out all rows of that rank.
 *
 * Collective: yes.
 * Threads: one at a time.
 * Capture: recorded. The graph must run after a dispatch of as many tokens.
 * Blocks: no.
 * Memory: inputs may be overwritten in stream order after the combine; with send_only, after
 *   ncclEpComplete, which reads the rows that return to this rank itself. Outputs belong to the
 *   call until then.
 * Logs: failures. Windows that cannot be used are logged with the reason (INFO, NET or COLL).
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: A shape or type is wrong, a tensor is missing, or the handle has no
 *     routing. Or zero_copy is ON and `inputs->tokens` has no window that peers can reach.
 *   ncclInvalidUsage: In low latency the handle has dispatched nothing with the present routing, or
 *     ncclEpMaskClean was called since, or the pass is backward. An operation of the handle is
 *     pending, or two of the group, as for ncclEpDispatch. `stream` belongs to another device. A
 *     tensor has only a window, and NCCL does not know its address. The recipe is NVFP4 in high
 *     throughput, and the group's config is of API version 1 or 2. Later calls return this code
 *     permanently if a graph ran a combine without a dispatch of as many tokens before it, or if a
 *     tensor of `inputs` holds fewer rows than the routing brings.
 */
ncclResult_t ncclEpCombine(ncclEpHandle_t handle, const ncclEpCombineInputs_t *inputs,
			   const ncclEpCombineOutputs_t *outputs,
			   const ncclEpCombineConfig_t *config, cudaStream_t stream);

/* ---- Complete ---- */

/* Options of ncclEpComplete: none so far. */
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
 * Receives the rows of a send_only operation.
 *
 * Runs the receive half of the handle's pending dispatch or combine on `stream`. If the send half
 * ran on another stream, events order the two: the receive half comes after all work on the other
 * stream, and later work on either stream comes after the receive half. The stream of the send half
 * should still exist. If CUDA reports that it was destroyed, the call waits until the device is
 * idle.
 *
 * One operation of a handle may be pending, and two of a group. Operations of other handles may run
 * in between; if the group has ranks of several nodes, only while fewer than two are pending. If
 * nothing is pending, as always in high throughput, the call returns ncclSuccess. `config` may be
 * NULL.
 *
 * Graphs
 *
 * A captured send half is pending only in its capture: complete it there, and launch the graph any
 * number of times. If its stream is still in that capture, `stream` joins the capture; the legacy
 * stream cannot join, so the receive half runs on the stream of the send half. Outside of its
 * capture the send half does not count as pending, and a capture that is abandoned needs no
 * ncclEpComplete. The handle's next ncclEpUpdateHandle or operation replaces it.
 *
 * If one half is in a graph and the other half is not, or is in another graph, no event can order
 * them: launch the graph of the send half first. Each send half needs one receive half. The device
 * counts them, and a half out of turn fails the group in a later call. If a half was captured,
 * ncclEpComplete outside of captures waits for `stream` and asks the device. It receives what a
 * graph has sent, and also what an abandoned capture of a receive half would have received. A
 * captured receive half counts as run. If its graph never runs, call ncclEpComplete.
 *
 * cudaStreamPerThread is another stream in each thread: send and complete on it in one thread.
 *
 * Collective: yes, as part of its operation.
 * Threads: one at a time.
 * Capture: recorded.
 * Blocks: no, except if a half was captured or the stream of the send half was destroyed, as above.
 *   The latter wait ends after the group's timeout.
 * Memory: structs and descriptors of the send half may be gone. The storage of its tensors must
 *   stay until the receive half has run.
 * Logs: failures.
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: `config` was not initialised.
 *   ncclInvalidUsage: The send half was captured, and no graph has run it since it was last
 *     received. Or the handle was used outside of the capture that has its send half, before this
 *     call in that capture. Or `stream` belongs to another device.
 *   ncclSystemError: The stream of the send half was destroyed. The device does not become idle
 *     within the group's timeout, or no thread can be started that waits for it.
 */
ncclResult_t ncclEpComplete(ncclEpHandle_t handle, const ncclEpCompleteConfig_t *config,
			    cudaStream_t stream);

/* ---- Masks: ranks that fail ---- */

/*
 * Copies the mask, which shows which ranks take part.
 *
 * Low latency groups with enable_mask have a mask: mask[r] is 1 while rank r takes part. When a
 * wait for rank r expires or its connection is lost, the library masks r and sets the error flag to
 * 1. A rank that others have masked learns it in its next operation and masks them. From then on:
 *
 *   Dispatch: This rank sends nothing to r, and r counts as a source of no tokens.
 *   Combine: The rows of r are left out. Weights are not scaled up for missing rows.
 *   Graphs: A launched graph obeys the mask of that moment; it need not be captured again.
 *   Return: Rank r takes part again after ncclEpMaskClean on all ranks, or ncclEpMaskUpdate on
 *     both.
 *
 * The call copies the mask to `mask`, int [R] in device memory. ncclEpGetAsyncError returns the
 * error flag.
 *
 * Collective: no.
 * Threads: one at a time.
 * Capture: recorded.
 * Blocks: no.
 * Memory: `mask` must stay until the copy on `stream` has run.
 * Logs: failures. The loss of a rank is logged when it is noticed (WARN).
 * Returns: ncclSuccess, the codes of calls on a group, the codes of calls that use the GPU, or
 *   ncclInvalidArgument: `mask` is NULL.
 *   ncclInvalidUsage: The group was created without enable_mask, or is of high throughput. Or the
 *     group's device was reset.
 */
ncclResult_t ncclEpMaskQuery(ncclEpGroup_t ep_group, int *mask, cudaStream_t stream);

/*
 * Sets which ranks take part.
 *
 * Sets the group's mask from `mask`, int [R] in host memory, each 0 or 1, on `stream`. This rank
 * itself is 1. If you unmask a peer that still masks this rank, the peer is masked again at its
 * next step. Both ranks must unmask each other.
 *
 * Ranks that have masked each other can unite by hand: all issue the same number of operations, and
 * each calls ncclEpMaskUpdate after the last operation of the others has ended. If they are on
 * different nodes, no rank may begin its next operation before the call has ended on the streams of
 * all of them: a message by which one has masked the other may still be on its way. On `stream` the
 * call waits until the active ranks of other nodes have the message that unmasks them. It waits an
 * eighth of the timeout at most, or 0.2 s if that is longer.
 *
 * Collective: no.
 * Threads: one at a time.
 * Capture: refused.
 * Blocks: no.
 * Memory: `mask` is read before the call returns.
 * Logs: failures.
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: `mask` is NULL, an element is neither 0 nor 1, or this rank's own is 0.
 *   ncclInvalidUsage: The group was created without enable_mask, or is of high throughput. `stream`
 *     is captured or belongs to another device. Or `mask` has 1 for a rank that has joined the
 *     group, and that ncclEpMaskClean has not taken in yet.
 */
ncclResult_t ncclEpMaskUpdate(ncclEpGroup_t ep_group, const int *mask, cudaStream_t stream);

/*
 * Unmasks all ranks and takes those back that were away.
 *
 * Sets all masks to 1. Ranks that are not masked call it together; masked ranks may call it at the
 * same time. The call waits for each active rank for up to the timeout. It logs an active rank that
 * does not come and sets the error flag. It waits 2 s for masked ranks, or the timeout if that is
 * shorter. If a rank does not come, the call takes 1/8 s more. Afterwards every rank is active,
 * including ranks that missed the call. The next operation waits for such a rank and masks it again
 * if it stays away. The error flag is not reset.
 *
 * A rank that missed the call and nothing else goes on with the others. That is so if all ranks
 * have begun the same operations and none has masked another in them, every dispatch of a handle
 * has had its combine, no operation was captured, and the next one is a dispatch.
 *
 * Otherwise it must call ncclEpMaskClean before its next operation, by itself if need be. It then
 * waits those 2 s for the others and continues at their step, unless they have masked it again. In
 * that case all ranks call once more, together. A rank that continues without the call finds that
 * the others are ahead, and masks them.
 *
 * A rank stays masked if its connection is lost or its process has ended. Only a new group brings
 * it back, or ncclEpExtReplaceRanks another process in its place.
 *
 * The call also forgets each handle's last dispatch, which a rank may have missed: the next
 * operation of a handle is ncclEpDispatch, also before a combine in a graph. What a graph has sent
 * and not received is forgotten too.
 *
 * Collective: yes, among the ranks that are not masked.
 * Threads: one at a time.
 * Capture: refused.
 * Blocks: until `stream` has run the call; the limits are above.
 * Memory: none is kept.
 * Logs: failures; an active rank that did not come (WARN); ranks that are active again without
 *   having come (INFO); ranks that stay masked, with the reason (WARN).
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidUsage: The group was created without enable_mask, or is of high throughput. An
 *     operation is pending, other than a captured one. `stream` is captured or belongs to another
 *     device.
 */
ncclResult_t ncclEpMaskClean(ncclEpGroup_t ep_group, cudaStream_t stream);

/*
 * Returns the error flag of a group with masks.
 *
 * Stores 1 in `*error` if a wait has expired or a connection was lost since the last
 * ncclEpErrorClear, otherwise 0. The library may detect a lost connection only after the wait for
 * that rank has expired. ncclEpExtGetLastError names the rank, and ncclEpMaskQuery returns all
 * masked ranks. The call needs no CUDA context and makes none.
 *
 * Collective: no.
 * Threads: any, at any time until ncclEpGroupDestroy returns.
 * Capture: not recorded.
 * Blocks: no. It does not wait for another thread's call on the group either.
 * Memory: none is kept.
 * Logs: failures; a lost rank that no call has noticed before (WARN).
 * Returns: ncclSuccess, the codes of calls on a group, or
 *   ncclInvalidArgument: `error` is NULL.
 *   ncclInvalidUsage: The group was created without enable_mask, or is of high throughput.
 */
ncclResult_t ncclEpGetAsyncError(ncclEpGroup_t ep_group, int *error);

/*
 * Resets the error flag of a group with masks.
 *
 * ncclEpGetAsyncError stores 0 afterwards, until another wait expires or a connection is lost. The
 * mask and the text of ncclEpExtGetLastError stay as they are.
 *
 * Collective: no.
 * Threads: one at a time.
 * Capture: not recorded.
 * Blocks: no.
 * Memory: none is kept.
 * Logs: failures.
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidUsage: The group was created without enable_mask, or is of high throughput.
 */
ncclResult_t ncclEpErrorClear(ncclEpGroup_t ep_group);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
