/* SPDX-License-Identifier: Apache-2.0 */
/* All that is decided about a launch. Arithmetic alone: no CUDA, no group. */
#ifndef EP_EP_LL_PLAN_H
#define EP_EP_LL_PLAN_H

#include <stdbool.h>
#include "ep/ll/ll_heap.h"

/*
 * Thread blocks of a group's operations. Unless the split is fixed, only the sum of the two counts:
 * ep_ll_plan_make() shares it out again for each operation.
 */
struct ep_ll_geometry {
	uint32_t send_blocks;
	uint32_t recv_blocks;
	uint32_t threads;
	bool fixed; /* parameters set how many blocks send or receive, the same for all operations */
};

/* In this order; `+ EP_LL_KERNEL_REMOTE` is the same for groups with remote ranks. */
enum ep_ll_kernel {
	EP_LL_KERNEL_DISPATCH,
	EP_LL_KERNEL_DISPATCH_FP8,
	EP_LL_KERNEL_COMBINE, /* and enum ep_dtype */
	EP_LL_KERNEL_REMOTE = 5,
	EP_LL_KERNELS = 2 * EP_LL_KERNEL_REMOTE
};

/* Input of a launch plan. */
struct ep_ll_operation {
	struct ep_shape shape;
	struct ep_ll_geometry geometry;
	bool lines;
	bool remote; /* the group has remote ranks */
	bool combine;
	uint32_t layout; /* enum ep_ll_layout */
	uint32_t topk;
	uint32_t num_tokens;
	uint32_t recv_limit; /* blocks that may receive: ep/resident.h */
	uint32_t row_bytes;  /* of a row that is copied, with its scales */
	uint32_t hidden;     /* channels of a row that dispatch quantises, else 0 */
	enum ep_dtype dtype; /* combine */
};

/* Arguments of the kernel: see struct ep_ll_common and struct ep_ll_dispatch_args. */
struct ep_ll_plan {
	enum ep_ll_kernel kernel;
	bool lines;
	uint32_t row_quads;
	uint32_t parts;
	uint32_t peer_parts;
	uint32_t part_quads;
	uint32_t peer_part_quads;
	uint32_t combine_parts; /* dispatch */
	struct ep_ll_dispatch_packets packets;
	uint32_t span;
	uint32_t channel_tokens;
	uint32_t send_blocks; /* of the half, if it is launched */
	uint32_t recv_blocks;
	uint32_t threads;
	uint32_t shared_bytes;
};

struct ep_ll_plan ep_ll_plan_make(const struct ep_ll_operation *operation);

#endif
