/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An algorithm, as the rest of this directory knows it: its limits, what the heap and a handle's
 * memory have to hold for it, and its functions.
 */
#ifndef EP_EP_ALGO_H
#define EP_EP_ALGO_H

#include <stdbool.h>
#include "core/error.h"
#include "core/param.h"
#include "nccl_ep.h"

struct ep_combine;
struct ep_dispatch;
struct ep_expert_rows_args;
struct ep_view;

struct ep_limits {
	const char *mode; /* the algorithm's name in texts */
	uint32_t max_ranks;
	uint32_t max_local_experts;
	uint32_t max_tokens; /* of a rank */
	uint32_t max_topk;
	uint32_t auto_topk; /* the heap is for handles of this, unless the config has num_topk */
	uint32_t max_selections; /* tokens of a rank times top-k */
	uint32_t spare_sms;      /* max_num_sms AUTO leaves one of so many SMs to others; 0: none */
	uint32_t banks;          /* of the heap */
	uint32_t layouts;        /* bits 1 << ncclEpLayout_t */
	const char *layout_names;
	bool halves;    /* operations can be split, and a combine returns what a dispatch brought */
	bool masks;     /* lost ranks can be left out */
	bool backward;  /* there is a backward pass */
	bool quantises; /* dispatch knows the recipe DS_FP8E3M4 */
};

/* The heap's layout depends on this, and on the top-k. Equal on all ranks. */
struct ep_shape {
	uint32_t nranks;
	uint32_t nlocal; /* experts of a rank */
	uint32_t max_tokens;
	uint32_t max_token_bytes; /* of a row, whatever travels in it */
	uint32_t near_ranks;      /* of the largest node */
	uint32_t remote_ranks; /* of other nodes than a rank's, the largest number; 0: one node */
	uint32_t channels;     /* 0: no rank has remote peers, and there is nothing for them */
	uint32_t banks;
	uint32_t limit; /* rows that a rank receives at most; EP_NO_LIMIT: as many as come */
	uint32_t
		ring_bytes; /* high throughput: of rows on their way, at most if there is a choice */
	uint32_t flows;     /* as struct ep_nodes_most has them; 0: one node */
	uint32_t return_rings;
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

/* A group's config with all choices made. */
struct ep_group_config {
	const struct ep_algo *algo;
	ncclEpAlgorithm_t algorithm;
	uint32_t num_experts;
	uint32_t num_topk;       /* what handles will have; 0: unknown */
	uint64_t explicit_bytes; /* rdma_buffer_size; 0: automatic */
	uint32_t max_sms;        /* 0: the device is not known */
	bool auto_sms;           /* max_num_sms is AUTO */
	uint32_t least_sms;      /* max_sms of the rank that has fewest */
	uint64_t timeout_ns;
	bool enable_mask;
	bool drop; /* rows beyond shape.limit are dropped: else they are an error */
	bool live; /* it shows what it does (show.h) */
	bool v1;   /* the caller was made for version 1 of the API */
	enum ep_memory memory;
	bool nvls;
	struct ep_param_list node_size;
	int64_t node_code;    /* the same as a number, for comparison; 0: not set */
	uint32_t rdma_queues; /* asked for; 0: automatic */
	uint32_t rdma_depth;
	uint32_t rdma_mode;   /* enum ep_gda_mode */
	int64_t direct_bytes; /* zero_copy AUTO is direct from so many bytes on; -1: never */
	int lines_choice; /* rows travel as lines: 0 no, 1 yes, -1 if all GPUs are joined by NVLink */
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
	ncclResult_t (*config_check)(const ncclEpGroupConfig_t *config, uint32_t nranks);
	ncclResult_t (*handle_check)(const struct ep_group_config *config, ncclEpLayout_t layout,
				     const ncclEpHandleConfig_t *handle, uint32_t topk);

	/* The heap for handles of up to `topk`, memory of the group alone (NULL: none), and of one handle. */
	struct ep_group_heap (*heap)(const struct ep_shape *shape, uint32_t topk);
	uint64_t (*group_bytes)(const struct ep_shape *shape);
	uint64_t (*handle_bytes)(const struct ep_shape *shape, ncclEpLayout_t layout,
				 uint32_t topk);

	/* Rows of outputs->tokens when it holds whatever may come, or what the config limits that to. */
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
	/* Check what dispatch.c and combine.c leave to them, and launch: one half if send_only. */
	ncclResult_t (*dispatch)(const struct ep_dispatch *dispatch, cudaStream_t stream);
	ncclResult_t (*combine)(const struct ep_combine *combine, cudaStream_t stream);
	/* Launches the receive half of the handle's pending operation; NULL: there are no halves. */
	ncclResult_t (*complete)(struct ncclEpHandle *handle, cudaStream_t stream);

	/* Fills all but args->rows: what the handle's routing selects. */
	void (*selections)(const struct ncclEpHandle *handle, struct ep_expert_rows_args *args);

	/* For ncclEpExtNumRecvTokens. */
	ncclResult_t (*received)(const struct ncclEpHandle *handle, uint64_t *tokens,
				 uint64_t *rows, cudaStream_t stream);
};

extern const struct ep_algo ep_ll_algo;
extern const struct ep_algo ep_ht_algo;

#endif
