/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of this library beyond the NCCL EP API. Programs that must also run on others look the
 * functions up (dlsym). They obey the rules of nccl_ep.h.
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
 * The last failure: of a call on this group or of its device operations, or, with group NULL, of
 * any call of this thread. *text is one line: what failed, the offending value, the limit or the
 * peer, what to do. It belongs to the calling thread and is valid until the thread's next call of
 * this function. *code is ncclSuccess and *text "" if nothing has failed. Either may be NULL.
 *
 * Device operations fail after their call has returned. With a group this call looks for such
 * failures first, so after synchronising the stream it shows whether the operations were
 * successful. Failures that later calls also return have codes. Two that no call returns have a code
 * here: an expert id out of range, ncclInvalidArgument; and with masks a rank that was lost or excludes
 * this one, ncclRemoteError.
 */
ncclResult_t ncclEpExtGetLastError(ncclEpGroup_t ep_group, ncclResult_t *code, const char **text);

/*
 * Which library this is, in one line: "Switchyard", its version, commit and build type, the GPU code in it, the
 * version of the API, CUDA, the NCCL of this process, and the file it was loaded from, which comes last. The text
 * belongs to the calling thread and is valid until the thread's next call of this function. Needs neither a group nor
 * a device. Libraries without this function are not Switchyard, or older than it.
 */
ncclResult_t ncclEpExtVersion(const char **text);

typedef struct {
	unsigned int size;
	unsigned int magic;
	uint64_t group_bytes;  /* heap_bytes, the group's own state, and its queues for RDMA */
	uint64_t heap_bytes;   /* memory that peers write to, from cudaMalloc or ncclMemAlloc */
	uint64_t handle_bytes; /* each live handle with memory of the library */
	/* Input: ranks of other nodes that a rank has, the largest number of any. 0: one node, unless
	 * NCCL_EP_NODE_SIZE is set. */
	unsigned int remote_ranks;
	unsigned int node_ranks; /* input: ranks of the largest node; 0: all nodes are alike. High
				  * throughput takes them to be as equal as they can be */
} ncclEpExtMemory_t;

#define NCCL_EP_EXT_MEMORY_INIT NCCL_EP_STRUCT_INIT(ncclEpExtMemory_t, NCCL_EP_MAGIC)
#define NCCL_EP_EXT_MEMORY_V1_SIZE 32u
#define NCCL_EP_EXT_MEMORY_V2_SIZE 40u

/*
 * Device memory that a group of this config and its handles will allocate, to the byte, before
 * creating anything. Needs no device. With layout UNSET: the group alone. Otherwise the group
 * after a handle of this layout and num_topk has been made (which may enlarge it). With ranks of
 * other nodes queues are counted as they lie in GPU memory, for a rank with the largest number of
 * remote ranks and one NIC: 20 KiB each, and 384 bytes in a table. Each further NIC of a GPU may add
 * 2 MiB; where queues lie in host memory (NCCL_EP_RDMA_MODE, or because the GPU's cannot be had), only
 * the table is taken.
 * ncclInvalidArgument, ncclInvalidUsage: as ncclEpCreateGroup and ncclEpInitHandle would return.
 */
ncclResult_t ncclEpExtDeviceMemory(const ncclEpGroupConfig_t *config, int nranks,
				   ncclEpLayout_t layout, int num_topk, ncclEpExtMemory_t *memory);

/*
 * The shape of operations, and the memory that they take. memory_bytes and what is before it are input.
 */
typedef struct {
	unsigned int size;
	unsigned int magic;
	ncclEpLayout_t layout; /* of a handle */
	int num_topk;
	unsigned int hidden;            /* elements of a token */
	ncclDataType_t datatype;        /* of inputs->tokens */
	ncclEpDispQuant_t quant_recipe; /* NONE or DS_FP8E3M4 */
	unsigned int alignment;         /* dispatch_output_per_expert_alignment of the handle */
	unsigned int remote_ranks;      /* this and the next: as in ncclEpExtMemory_t */
	unsigned int node_ranks;
	uint64_t memory_bytes; /* device memory that all of it may take; 0: it is not compared */
	uint64_t group_bytes;  /* this and the next two: as in ncclEpExtMemory_t */
	uint64_t heap_bytes;
	uint64_t handle_bytes;
	uint64_t rows;         /* of outputs->tokens: as many as can come, or the config's limit */
	uint64_t output_bytes; /* of outputs->tokens with so many rows, and their scales */
	uint64_t
		tensor_bytes; /* that, and the tokens of all other tensors of a dispatch and a combine */
} ncclEpExtShape_t;

#define NCCL_EP_EXT_SHAPE_INIT NCCL_EP_STRUCT_INIT(ncclEpExtShape_t, NCCL_EP_MAGIC)
#define NCCL_EP_EXT_SHAPE_V1_SIZE 96u

/*
 * Whether a group of this config on so many ranks, a handle, a dispatch and a combine of this shape are
 * possible, and what they take. Needs neither a communicator nor a device: what depends on the GPU
 * (SMs, shared memory) is not looked at. If not, the result is that of the call that would fail, and
 * ncclEpExtGetLastError(NULL, ...) has the reason; nothing is written to *shape then.
 */
ncclResult_t ncclEpExtFeasible(const ncclEpGroupConfig_t *config, int nranks,
			       ncclEpExtShape_t *shape);

/*
 * Returns what the handle's last completed dispatch received: *tokens, distinct (source rank, token)
 * pairs; *rows, rows in outputs->tokens (expert-major: one per local expert of a token). Either
 * may be NULL. Synchronises `stream`, which must be ordered after the dispatch. High throughput: what
 * the handle's routing brings, without padding and dropped rows; a dispatch need not have run.
 * ncclInvalidUsage: no dispatch has run to its end (a graph with it was never launched), or the
 * stream is being captured. ncclInvalidArgument: handle_mem has no routing.
 */
ncclResult_t ncclEpExtNumRecvTokens(ncclEpHandle_t handle, uint64_t *tokens, uint64_t *rows,
				    cudaStream_t stream);

/*
 * Adds to rows[e] how many rows the handle's routing sends from this rank to expert e, for each of the E
 * experts: what load balancing needs, when it is summed over ranks. rows is device memory of uint64_t[E].
 * The addition is an operation on `stream`, behind what has made the routing: nobody waits, graphs may
 * hold it, and it is not collective. Ids that are no experts are not counted, rows beyond a limit of
 * receivers are. Low latency reads the routing's topk_idx, as a dispatch does.
 * ncclInvalidArgument: the handle has no routing; rows is NULL or not aligned.
 * ncclInvalidUsage: the stream is of another device.
 */
ncclResult_t ncclEpExtAddExpertRows(ncclEpHandle_t handle, uint64_t *rows, cudaStream_t stream);

/*
 * Dispatch traffic with one peer since the group was created; combine returns the same rows. High
 * throughput: waits of ncclEpUpdateHandle and combine count, too.
 */
typedef struct {
	unsigned int size;
	unsigned int magic;
	int rank;
	int active;        /* 0: masked */
	uint64_t tx_bytes; /* rows as they travel, flags and padding included */
	uint64_t rx_bytes;
	uint64_t tx_rows;
	uint64_t rx_rows;
	uint64_t wait_ns;     /* waiting for the peer's first word, summed over operations */
	uint64_t wait_max_ns; /* longest of these waits */
	uint64_t operations;  /* dispatches */
	int node;             /* of the rank, counted from 0 */
	int rdma;             /* 1: its bytes travel by RDMA, 0: between GPUs, or it is this rank */
} ncclEpExtPeerStats_t;

#define NCCL_EP_EXT_PEER_STATS_INIT NCCL_EP_STRUCT_INIT(ncclEpExtPeerStats_t, NCCL_EP_MAGIC)
#define NCCL_EP_EXT_PEER_STATS_V1_SIZE 72u
#define NCCL_EP_EXT_PEER_STATS_V2_SIZE 80u

/*
 * Fills stats[0 .. count-1], one per rank from rank 0; count is at most R. The size and magic of
 * stats[0] count for all elements, and its size is the distance between them. Synchronises
 * `stream`. ncclInvalidUsage: the stream is being captured.
 */
ncclResult_t ncclEpExtPeerStats(ncclEpGroup_t ep_group, ncclEpExtPeerStats_t *stats, int count,
				cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
