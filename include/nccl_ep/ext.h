/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of this library beyond the NCCL EP API, under the rules of nccl_ep.h. Other libraries
 * of the same soname lack them: a program that must also run on those looks them up (dlsym).
 */
#ifndef NCCL_EP_EXT_H_
#define NCCL_EP_EXT_H_

#include "nccl_ep.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

/*
 * Recipes of dispatch beyond ncclEpDispQuant_t. Low latency only. Tokens are bf16 in, shapes are
 * those of ncclEpDispatch, and round_scales is 0. `outputs->scales` is aligned to 4 bytes.
 *
 * MXFP8: `outputs->tokens` is e4m3, and `outputs->scales` uint8 with H/32 in place of H. Byte b is
 * the scale 2^(b - 127) (E8M0). H is a multiple of 128. Per 32 elements, with a = largest
 * magnitude, the scale s is the smallest power of two with a / s <= 448, at least 2^-127, and x
 * becomes x / s. A group that has NaN has byte 255 and is NaN. An infinite x becomes 448 with byte
 * 254, whose product is infinite.
 *
 * NVFP4: `outputs->tokens` is fp4x2 (e2m1, two elements to a byte, the first in its low half) with
 * H/2 in place of H, and `outputs->scales` e4m3 with H/16. `inputs->scales` is the tensor's scale
 * g: one fp32 in device memory, positive; above 2^112 it counts as that. Ranks may pass different
 * ones; a receiver has to know them. H is a multiple of 64. Per 16 elements, with a = largest
 * magnitude, the scale s is g*a/6, and x becomes x*g/s. A reader gets x back from e2m1 * s / g. A
 * group so small that s is 0 becomes zeros. A group that has NaN has scale NaN. An infinite x
 * becomes 6 with the largest scale, 448.
 *
 * Values are rounded to the nearest, ties to even, and saturate. A zero keeps its sign.
 */
#define NCCL_EP_EXT_DISP_QUANT_MXFP8 ((ncclEpDispQuant_t)1001)
#define NCCL_EP_EXT_DISP_QUANT_NVFP4 ((ncclEpDispQuant_t)1002)

/*
 * A recipe of combine beyond ncclEpCombQuant_t. Low latency only. Tokens are bf16, H is a multiple
 * of 128, and `inputs->scales` is NULL. Rows travel as e4m3 with one fp32 scale per 128 elements,
 * as recipe DS_FP8E3M4 of dispatch makes them: with a = max(largest magnitude, 1e-4), the scale is
 * a/448, and x becomes x*448/a. An infinite x makes its group NaN. A NaN concerns no other element.
 */
#define NCCL_EP_EXT_COMB_QUANT_FP8 ((ncclEpCombQuant_t)1001)

/*
 * Returns the code and text of the last failure.
 *
 * With a group: the last failure of a call on the group or of its operations on the device. With
 * NULL: the last failure of any call of this thread. `*text` is one line: what failed, the value,
 * the limit or the rank, and what to do. If nothing has failed, `*code` is ncclSuccess and `*text`
 * is "". Either pointer may be NULL.
 *
 * Operations fail after their call has returned. With a group this call looks for such failures
 * first, so after synchronising the stream it shows whether the operations were successful. Some
 * failures have a code here that no call returns: ncclInvalidArgument for an expert id out of range
 * or for more rows than an expert has room for, and, in a group with masks, ncclRemoteError for a
 * rank that was lost, did not come to ncclEpMaskClean, or excludes this one.
 *
 * Collective: no.
 * Threads: one at a time; with NULL any.
 * Capture: not recorded.
 * Blocks: no. It does not wait for streams.
 * Memory: the text belongs to the calling thread and is valid until that thread's next call of this
 *   function.
 * Logs: failures, and the failures of operations that it finds.
 * Returns: ncclSuccess, or the codes of calls on a group.
 */
ncclResult_t ncclEpExtGetLastError(ncclEpGroup_t ep_group, ncclResult_t *code, const char **text);

/*
 * Returns which library this is, and which build of it.
 *
 * `*text` is one line of parts separated by commas: "Switchyard" and its version; the commit, or
 * "unknown" if the library was not built from a clone; the build type; the GPUs that it has code
 * for, or the virtual cluster; the version that ncclEpGetVersion returns; the CUDA release it was
 * built with; the NCCL of this process; and last the file it was loaded from.
 *
 * The library also prints the line, after a line with the version of the API, when it is loaded
 * with NCCL_EP_DEBUG=1. It logs the line with the first group of a process (INFO; on rank 0 also
 * VERSION and WARN, as NCCL logs its own version). ep_perf(1) and ep_info(1) print it. The first
 * three parts are in the file, where strings(1) finds them.
 *
 * Collective: no.
 * Threads: any.
 * Capture: not recorded.
 * Blocks: no. It needs neither a group nor a device.
 * Memory: the text belongs to the calling thread and is valid until that thread's next call of this
 *   function.
 * Logs: failures.
 * Returns: ncclSuccess, or
 *   ncclInvalidArgument: `text` is NULL.
 */
ncclResult_t ncclEpExtVersion(const char **text);

/*
 * Which ranks hold experts (holders), and which may bring tokens (senders). The two ranges may
 * overlap, and a rank may be in neither.
 */
typedef struct {
	unsigned int size;
	unsigned int magic;
	unsigned int first_holder; /* First rank that holds experts. */
	unsigned int num_holders;  /* How many do. 0, with first_holder 0: all ranks. */
	unsigned int first_sender; /* First rank that may bring tokens. */
	unsigned int num_senders;  /* How many may. 0, with first_sender 0: all ranks. */
} ncclEpExtRoles_t;

#define NCCL_EP_EXT_ROLES_INIT NCCL_EP_STRUCT_INIT(ncclEpExtRoles_t, NCCL_EP_MAGIC)
#define NCCL_EP_EXT_ROLES_V1_SIZE 24u

/*
 * Creates a group in which experts and tokens may be on different ranks.
 *
 * With `roles` NULL or all counts 0 this is ncclEpCreateGroup. Otherwise, with H holders and S
 * senders, L = num_experts / H, and expert e is expert e % L of rank first_holder + e / L.
 * num_experts is a multiple of H. All calls stay collective: each rank makes each of them, in the
 * same order. What changes, in the words of nccl_ep.h:
 *
 * Low latency's tensors of received rows are [L][S*B]... in expert-major and [S][B]... in
 * rank-major, where the s-th block is of rank first_sender + s; src_rank_counters is [S]. In high
 * throughput up to S*B rows come, and the order of sources is that of ranks. On a rank that holds
 * no experts the first extent of each is 0. Its tensors need no storage, and it may pass no
 * counters; a recv_total_counter gets 0.
 *
 * The topk_idx of a rank that may bring no tokens has an extent of 0, and so have its
 * inputs->tokens in dispatch and outputs->tokens in combine.
 *
 * Rows go from senders to holders and back alone, and no rank waits for a count of one that brings
 * no tokens. In low latency counts go to holders alone. In high throughput they go to all ranks,
 * since the place of a row depends on those of all senders. As ever, a rank begins an operation
 * when all ranks have left the one of which it uses the memory again. In low latency they have
 * begun the operation before then, if none is pending; in high throughput this one.
 *
 * In high throughput rows never go straight into windows, and zero_copy ON asks only ranks with
 * rows for one; the log has a line of it (INFO, COLL). ncclEpExtStartArrivals refuses such a group.
 *
 * Collective: yes.
 * Threads: any, but one at a time per communicator.
 * Capture: not recorded.
 * Blocks: as ncclEpCreateGroup.
 * Memory: as ncclEpCreateGroup.
 * Logs: as ncclEpCreateGroup.
 * Returns: ncclSuccess, the codes of calls that use the GPU, or
 *   ncclInvalidArgument: As ncclEpCreateGroup would return. `roles` was not initialised, or a range
 *     does not lie in the communicator's ranks. Or ranks pass different ranges.
 *   ncclInvalidUsage: As ncclEpCreateGroup would return.
 *   ncclRemoteError: As ncclEpCreateGroup would return.
 *   ncclSystemError: As ncclEpCreateGroup would return.
 */
ncclResult_t ncclEpExtCreateGroup(ncclEpGroup_t *ep_group, ncclComm_t comm,
				  const ncclEpGroupConfig_t *config, const ncclEpExtRoles_t *roles);

/*
 * Lets newcomers take the places of lost ranks, while the others keep the group. Low latency with
 * masks.
 *
 * A rank is lost: its process has ended, and all others have masked it. The program starts another
 * process in its place. All ranks make a communicator `comm`, in which each has the number that it
 * has in the group. Then, between two operations, the ranks of the group call
 * ncclEpExtReplaceRanks, and each newcomer calls ncclEpExtJoinGroup. When all have returned
 * ncclSuccess, all ranks call ncclEpMaskClean, which takes the newcomers in. Until then they stay
 * masked, and the others may go on with operations. doc/replace.md has the steps in order.
 *
 * What stays: the group, its handles and handle memory, captured graphs, counters and statistics.
 * The newcomer's memory appears at the addresses where the others had the lost rank's. `comm` is
 * the group's communicator from then on. No operation uses the one before, which may be aborted; a
 * tensor in a window of it needs a window of `comm`. As after each ncclEpMaskClean, the next
 * operation of a handle is a dispatch.
 *
 * After a failure the group serves as before, and the places are masked. If other ranks have
 * returned ncclSuccess, no rank may call ncclEpMaskClean: the newcomers end, and all begin again
 * with a new communicator. The one that failed has to be aborted.
 *
 * A lost rank's process must have ended, with all its threads, as /proc shows it to all others,
 * since it could still store to their memory. After SIGKILL that takes as long as the driver needs;
 * waitpid() returns then. All ranks are on one node, their memory is mapped by NCCL windows (NCCL
 * 2.29.2 or later), and without NVLink multicast.
 *
 * Collective: yes, on all ranks of `comm`.
 * Threads: one at a time.
 * Capture: refused, if any stream of the device is captured. The wait for the device ends the
 *   captures there, as in ncclEpGroupDestroy.
 * Blocks: until all ranks of `comm` have come, NCCL_EP_BOOTSTRAP_TIMEOUT_MS at most for each of
 *   four exchanges, and before that until the device is idle.
 * Memory: as before; the lost rank's is given back.
 * Logs: failures; each newcomer (INFO).
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: `comm` is NULL, or this rank has another number, size or device there. Or
 *     the newcomers' config or roles are others, or ranks of different groups call it.
 *   ncclInvalidUsage: The group was created without enable_mask, or is of high throughput. An
 *     operation is pending. A newcomer's place is active, or the process of the lost rank has not
 *     ended. Memory is not mapped by windows, is multicast, or ranks are on several nodes. A
 *     newcomer is in a process of a rank that stays, has fewer SMs, or lacks NVLink that the others
 *     have. No rank joins, or one calls ncclEpCreateGroup. Ranks have different builds of the
 *     library.
 *   ncclRemoteError: Another rank has failed or did not come; the text names it.
 *   ncclSystemError: Host memory is exhausted, no thread can be started, or the device stays busy.
 */
ncclResult_t ncclEpExtReplaceRanks(ncclEpGroup_t ep_group, ncclComm_t comm);

/*
 * Joins a group in the place of a lost rank.
 *
 * A newcomer calls it while the ranks of the group call ncclEpExtReplaceRanks. `config` and `roles`
 * are those that the group was created with. The newcomer may then make handles and capture graphs.
 * Its first operation comes after ncclEpMaskClean. If its handles are of a larger top-k than any of
 * the others, the group's memory grows, as for any rank.
 *
 * Collective: yes, on all ranks of `comm`.
 * Threads: any, but one at a time per communicator.
 * Capture: not recorded.
 * Blocks: as ncclEpCreateGroup.
 * Memory: as ncclEpCreateGroup.
 * Logs: as ncclEpCreateGroup.
 * Returns: ncclSuccess, the codes of calls that use the GPU, or
 *   ncclInvalidArgument: As ncclEpExtCreateGroup would return. Or ranks of different groups call
 *     ncclEpExtReplaceRanks.
 *   ncclInvalidUsage: As ncclEpExtCreateGroup and ncclEpExtReplaceRanks would return.
 *   ncclRemoteError: As ncclEpCreateGroup would return.
 *   ncclSystemError: As ncclEpCreateGroup would return.
 */
ncclResult_t ncclEpExtJoinGroup(ncclEpGroup_t *ep_group, ncclComm_t comm,
				const ncclEpGroupConfig_t *config, const ncclEpExtRoles_t *roles);

/* Device memory of a group and its handles, in bytes. The caller sets the nodes, and roles. */
typedef struct {
	unsigned int size;
	unsigned int magic;
	uint64_t group_bytes;  /* heap_bytes, the group's own state, and its queues for RDMA. */
	uint64_t heap_bytes;   /* Memory that peers write to, from cudaMalloc or ncclMemAlloc. */
	uint64_t handle_bytes; /* Each live handle with memory of the library. */
	/* Input: the largest number of ranks on other nodes that a rank has. 0: all ranks are on
	 * one node, or on the nodes that NCCL_EP_NODE_SIZE defines. */
	unsigned int remote_ranks;
	/* Input: the ranks of the largest node. 0: all nodes are alike. High throughput assumes the
	 * nodes to be as equal as possible; for others leave 0 and set NCCL_EP_NODE_SIZE. */
	unsigned int node_ranks;
	/*
	 * Input: as in ncclEpExtCreateGroup, or NULL. The ranks of a node are then taken to follow
	 * one another.
	 */
	const ncclEpExtRoles_t *roles;
} ncclEpExtMemory_t;

#define NCCL_EP_EXT_MEMORY_INIT NCCL_EP_STRUCT_INIT(ncclEpExtMemory_t, NCCL_EP_MAGIC)
#define NCCL_EP_EXT_MEMORY_V1_SIZE 32u
#define NCCL_EP_EXT_MEMORY_V2_SIZE 40u
#define NCCL_EP_EXT_MEMORY_V3_SIZE 48u

/*
 * Returns the device memory of a group and its handles, before any exists.
 *
 * Stores the bytes in `*memory`: of a group of this `config` on `nranks` ranks, and of each live
 * handle of `layout` and `num_topk` with memory of the library. With layout NCCL_EP_LAYOUT_UNSET it
 * is the group alone. Otherwise it is the group after such a handle was made, which may have
 * enlarged it. The numbers are exact if no other handle has enlarged the group.
 *
 * With ranks of other nodes, queues count as they are in GPU memory, for a rank with the largest
 * number of remote ranks and one NIC: 20 KiB each, and 384 bytes in a table. Each further NIC of a
 * GPU may add 2 MiB. Queues in host memory (modes 2 to 4 of NCCL_EP_RDMA_MODE) use only the table.
 * If the library chose them because the GPU's memory was refused, what was allocated there remains
 * until the group ends.
 *
 * Collective: no.
 * Threads: any.
 * Capture: not recorded.
 * Blocks: no. It needs no device.
 * Memory: none is kept.
 * Logs: failures.
 * Returns: ncclSuccess, or
 *   ncclInvalidArgument: As ncclEpCreateGroup and ncclEpInitHandle would return. `memory` was not
 *     initialised, or its nodes do not fit `nranks`.
 *   ncclInvalidUsage: As ncclEpCreateGroup and ncclEpInitHandle would return.
 *   ncclSystemError: Host memory is exhausted.
 */
ncclResult_t ncclEpExtDeviceMemory(const ncclEpGroupConfig_t *config, int nranks,
				   ncclEpLayout_t layout, int num_topk, ncclEpExtMemory_t *memory);

/*
 * The shape of operations and the memory they need. Fields up to and including memory_bytes are
 * inputs, and so is roles. With roles, rows and output_bytes are of a rank that holds experts, and
 * tensor_bytes of the rank that needs most.
 */
typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpLayout_t layout;          /* Of the handle. */
	int num_topk;                   /* Of the handle. */
	unsigned int hidden;            /* Elements of a token. */
	ncclDataType_t datatype;        /* Of inputs->tokens. */
	ncclEpDispQuant_t quant_recipe; /* Any but FWD. */
	unsigned int alignment;         /* dispatch_output_per_expert_alignment of the handle. */
	unsigned int remote_ranks;      /* As in ncclEpExtMemory_t. */
	unsigned int node_ranks;        /* As in ncclEpExtMemory_t. */
	uint64_t memory_bytes;          /* The device memory that everything may use. 0: any. */
	uint64_t group_bytes;           /* As in ncclEpExtMemory_t. */
	uint64_t heap_bytes;            /* As in ncclEpExtMemory_t. */
	uint64_t handle_bytes;          /* As in ncclEpExtMemory_t. */
	uint64_t rows;         /* Of outputs->tokens: as many as can come, or the config's limit. */
	uint64_t output_bytes; /* Of outputs->tokens with that many rows, and their scales. */
	/* output_bytes, and the tokens of all other tensors of a dispatch and a combine. */
	uint64_t tensor_bytes;
	const ncclEpExtRoles_t *roles; /* Input: as in ncclEpExtCreateGroup, or NULL. */
} ncclEpExtShape_t;

#define NCCL_EP_EXT_SHAPE_INIT NCCL_EP_STRUCT_INIT(ncclEpExtShape_t, NCCL_EP_MAGIC)
#define NCCL_EP_EXT_SHAPE_V1_SIZE 96u
#define NCCL_EP_EXT_SHAPE_V2_SIZE 104u

/*
 * Tells whether a group and its operations are possible, and what memory they need.
 *
 * Checks what ncclEpCreateGroup, ncclEpInitHandle, ncclEpDispatch and ncclEpCombine would check for
 * `nranks` ranks, by the same code. The caller sets the fields of `shape` up to memory_bytes. On
 * success the call fills the others. Results of experts have the type of the tokens if that is
 * bf16, fp16 or fp32, otherwise bf16. Weights, expert ids and counters are not counted. The call
 * does not look at the GPU: its SMs, its shared memory, NVLink and NICs. ep_info(1) shows those.
 *
 * Collective: no.
 * Threads: any.
 * Capture: not recorded.
 * Blocks: no. It needs neither a communicator nor a device.
 * Memory: none is kept.
 * Logs: failures. ncclEpExtGetLastError with NULL returns the reason.
 * Returns: ncclSuccess, or what the first call that fails would return. Nothing is written then.
 *   ncclInvalidArgument: As those calls would return. `shape` was not initialised, its layout is
 *     NCCL_EP_LAYOUT_UNSET, or its quant_recipe is FWD.
 *   ncclInvalidUsage: As those calls would return. Or more than memory_bytes is needed.
 *   ncclSystemError: Host memory is exhausted.
 */
ncclResult_t ncclEpExtFeasible(const ncclEpGroupConfig_t *config, int nranks,
			       ncclEpExtShape_t *shape);

/*
 * Returns how many tokens and rows a dispatch received.
 *
 * Stores in `*tokens` the number of distinct (source rank, token) pairs, and in `*rows` the rows of
 * `outputs->tokens`; in the expert-major layout these are one per local expert of a token. Either
 * pointer may be NULL. In low latency the call counts the handle's last dispatch that has run; a
 * graph that was not launched yet does not count. In high throughput it counts what the routing
 * will deliver, and no dispatch needs to have run. Padding does not count.
 *
 * With overflow_policy DROP `*rows` are those that are kept. Flat `*tokens` is the same number.
 * Expert-major `*tokens` counts the pairs whose place in a flat output is below M, also those of
 * which no row is kept. ncclEpUpdateHandle describes places, and which rows are kept.
 *
 * Collective: no.
 * Threads: one at a time.
 * Capture: refused.
 * Blocks: until `stream` is idle. Order `stream` after the dispatch.
 * Memory: none is kept.
 * Logs: failures.
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: In high throughput `handle_mem` has no routing.
 *   ncclInvalidUsage: No dispatch of the handle has run to its end: none was made, it was captured
 *     in a graph that was never launched, or it has failed. In high throughput the handle has no
 *     routing. Or `stream` is captured.
 *   ncclSystemError: Host memory is exhausted.
 */
ncclResult_t ncclEpExtNumRecvTokens(ncclEpHandle_t handle, uint64_t *tokens, uint64_t *rows,
				    cudaStream_t stream);

/*
 * Adds the rows of each expert to counters on the device.
 *
 * Adds to `rows[e]` the number of rows that the handle's routing sends from this rank to expert e.
 * The sum over ranks and steps is the load of each expert, which load balancing (EPLB) uses to
 * place experts. `rows` is uint64_t [E] in device memory, aligned to 8 bytes; the caller sets it to
 * zero.
 *
 * The call enqueues the addition on `stream` and returns at once. Order it after
 * ncclEpUpdateHandle. Ids that are not experts do not count. An expert that a token names twice
 * counts twice in low latency and once in high throughput, as many rows as are sent. Rows that a
 * receiver drops count. In low latency the addition reads the routing's topk_idx, as dispatch does.
 * If `handle_mem` of the caller has no routing for the handle, nothing is added.
 *
 * Collective: no.
 * Threads: one at a time.
 * Capture: recorded.
 * Blocks: no.
 * Memory: `rows` must stay until the addition has run.
 * Logs: failures.
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: The handle has no routing. `rows` is NULL or not aligned.
 *   ncclInvalidUsage: `stream` belongs to another device.
 */
ncclResult_t ncclEpExtAddExpertRows(ncclEpHandle_t handle, uint64_t *rows, cudaStream_t stream);

/*
 * The traffic of dispatch with one rank since the group was made. Combine returns the same rows. In
 * high throughput the waits of ncclEpUpdateHandle and ncclEpCombine are included.
 */
typedef struct {
	unsigned int size;
	unsigned int magic;
	int rank;             /* The rank. */
	int active;           /* 0: masked. */
	uint64_t tx_bytes;    /* Bytes sent to it as they travel, with flags and padding. */
	uint64_t rx_bytes;    /* Bytes received from it. */
	uint64_t tx_rows;     /* Rows sent to it. */
	uint64_t rx_rows;     /* Rows received from it. */
	uint64_t wait_ns;     /* Time spent waiting for its first word, over all operations. */
	uint64_t wait_max_ns; /* The longest of these waits. */
	uint64_t operations;  /* Dispatches. */
	int node;             /* Its node, from 0. */
	int rdma;             /* 1: reached by RDMA. 0: between GPUs, or this rank. */
} ncclEpExtPeerStats_t;

#define NCCL_EP_EXT_PEER_STATS_INIT NCCL_EP_STRUCT_INIT(ncclEpExtPeerStats_t, NCCL_EP_MAGIC)
#define NCCL_EP_EXT_PEER_STATS_V1_SIZE 72u
#define NCCL_EP_EXT_PEER_STATS_V2_SIZE 80u

/*
 * Returns the traffic with each rank and the waits for it.
 *
 * Fills `stats[0]` to `stats[count-1]`, one element per rank from rank 0. `count` is at most R. The
 * caller initialises `stats[0]`: its size and magic count for all elements, and its size is their
 * distance.
 *
 * Collective: no.
 * Threads: one at a time.
 * Capture: refused.
 * Blocks: until `stream` is idle. Operations on other streams may still add to the numbers.
 * Memory: none is kept.
 * Logs: failures.
 * Returns: ncclSuccess, the codes of calls on a group, the codes of calls that use the GPU, or
 *   ncclInvalidArgument: `stats` is NULL or was not initialised, or `count` is negative or exceeds
 *     R.
 *   ncclInvalidUsage: `stream` is captured. Or the group's device was reset.
 */
ncclResult_t ncclEpExtPeerStats(ncclEpGroup_t ep_group, ncclEpExtPeerStats_t *stats, int count,
				cudaStream_t stream);

/* What has come for one local expert. Device memory, which a dispatch writes. */
typedef struct {
	uint32_t missing;  /* Rows that have not come. 0: all are in outputs->tokens. */
	uint32_t rows;     /* Rows that come, without padding. */
	uint32_t first;    /* The first one's index in outputs->tokens. */
	uint32_t reserved; /* Of the library. */
} ncclEpExtArrival_t;

/* What a dispatch tells kernels that run beside it. */
typedef struct {
	uint32_t failed;      /* 1: the dispatch has failed; what is missing does not come. */
	uint32_t experts;     /* Local experts. */
	uint32_t reserved[2]; /* Of the library. */
	ncclEpExtArrival_t expert[1]; /* As many as there are local experts. */
} ncclEpExtArrivals_t;

/*
 * Returns which experts have all their rows, to kernels that run beside a dispatch.
 *
 * With `arrivals` NULL the call stores in `*bytes` the device memory that it needs for the handle.
 * Otherwise `arrivals` is such memory, of `*bytes` bytes and aligned to 256, and the handle's next
 * dispatch counts there. That dispatch sends each rank its rows in the order of its experts, so
 * that experts complete one after the other. Its outputs are those of any other dispatch.
 *
 * The call enqueues on `stream` what sets the counts to the rows that the handle's routing brings.
 * A kernel may look at them behind that: order it behind this call, and not behind the dispatch.
 * When it loads `missing` of an expert as 0, with acquire order, it sees the rows of that expert,
 * their scales and their weights. Padding is zero when the dispatch is over. nccl_ep/arrivals.h has
 * device functions that look and wait.
 *
 * If the dispatch fails on the device, `failed` becomes 1. If it was never launched, nothing does:
 * a wait needs a limit. A call of ncclEpDispatch or ncclEpUpdateHandle that returns a failure
 * leaves the counts to the next one. A kernel that waits must leave the SMs of the dispatch free,
 * or both wait in vain. Give the group a number of SMs, and the kernel at most the others.
 *
 * High throughput, expert-major handles, groups of one node without roles, not overflow policy
 * DROP. All ranks make this call for the same dispatches. A new routing of the handle forgets the
 * call.
 *
 * Collective: yes.
 * Threads: one at a time.
 * Capture: recorded. A graph that has it has the dispatch, too. Dispatches outside of its capture
 *   go by the calls outside, also if the capture is abandoned.
 * Blocks: no.
 * Memory: `arrivals` must stay until the dispatch has run, and be used by one dispatch at a time.
 * Logs: failures.
 * Returns: ncclSuccess, the codes of calls on a working group, or
 *   ncclInvalidArgument: `bytes` is NULL. `arrivals` is not aligned, or `*bytes` is less than is
 *     needed. The handle has no routing, or is not expert-major.
 *   ncclInvalidUsage: Low latency, several nodes, roles, or overflow policy DROP. Or `stream`
 *     belongs to another device.
 */
ncclResult_t ncclEpExtStartArrivals(ncclEpHandle_t handle, ncclEpExtArrivals_t *arrivals,
				    size_t *bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
