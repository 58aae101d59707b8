/* SPDX-License-Identifier: Apache-2.0 */
/* What the command lines of ep_info and ep_topo may ask for. */
#ifndef EP_TOOLS_OPTION_TABLES_H
#define EP_TOOLS_OPTION_TABLES_H

#include <stdint.h>

#include "tools/options.h"

/*
 * The shape of a group, from the command line. 0: not given. Two are compared as bytes: it has no
 * gaps.
 */
struct ep_info_shape {
	double gpu_memory;             /* GiB */
	const char *holders, *senders; /* FIRST:NUMBER */
	uint32_t experts, hidden, tokens, ranks, topk, node_ranks, recv_tokens;
	int ht, quant;
	int layout; /* em, rm, flat; -1: the mode's own */
};

#define EP_INFO_SHAPE_INIT                                                                         \
	{                                                                                          \
		.topk = 8, .layout = -1                                                            \
	}

/* What ep_info is asked for. */
struct ep_info_request {
	int versions, devices, params, rdma, net, queues;
	int live, memory, json, prometheus;
	struct ep_info_shape shape;
};

extern const struct ep_options ep_info_options;
/* Its only value is an int: whether JSON is wanted. */
extern const struct ep_options ep_topo_options;

#endif
