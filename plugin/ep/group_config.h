/* SPDX-License-Identifier: Apache-2.0 */
/* A group's config with all choices made. */
#ifndef EP_EP_GROUP_CONFIG_H
#define EP_EP_GROUP_CONFIG_H

#include <stdbool.h>
#include "core/nodes.h"
#include "core/param.h"
#include "peer/mapping.h"
#include "ep/algo.h"

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

/* Checks the fields and makes the choices. sm_count 0: unknown, checks against it are left out. */
ncclResult_t ep_group_config_make(struct ep_group_config *out, const ncclEpGroupConfig_t *config,
				  const struct ep_params *params, int nranks, uint32_t sm_count);

/* How many channels a group has whose ranks have at most `remote` remote peers. */
uint32_t ep_group_channels(const struct ep_group_config *config, uint32_t remote);

/* Makes the heap's layout again for those nodes. */
void ep_group_config_size(struct ep_group_config *config, struct ep_nodes_most nodes);

/* The part of a config in which ranks must agree. */
#define EP_GROUP_AGREED 17
struct ep_group_agreed {
	uint64_t value[EP_GROUP_AGREED];
};
struct ep_group_agreed ep_group_config_agreed(const struct ep_group_config *config);

/* Names the first field in which ranks differ. all[r] is at `stride` bytes. */
ncclResult_t ep_group_agreed_check(const void *all, size_t stride, int nranks);

#endif
