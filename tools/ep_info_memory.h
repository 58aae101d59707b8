/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_TOOLS_EP_INFO_MEMORY_H
#define EP_TOOLS_EP_INFO_MEMORY_H

#include <stdbool.h>

/* The shape of a group, from the command line. 0: not given. */
struct ep_info_shape {
	unsigned int experts, hidden, tokens, ranks, topk, node_ranks, recv_tokens;
	double gpu_memory; /* GiB */
	bool ht, fp8;
	const char *layout; /* NULL: the mode's own */
};

#define EP_INFO_SHAPE_INIT                                                                         \
	{                                                                                          \
		.topk = 8                                                                          \
	}

/* One option of --memory. -1, or the exit status. */
int ep_info_shape_take(struct ep_info_shape *shape, int option, const char *text);

/* Prints what it takes, and whether it is possible: 0; 1 if not; 2 for wrong usage. */
int ep_info_memory(const struct ep_info_shape *shape, bool json);

#endif
