/* SPDX-License-Identifier: Apache-2.0 */
/* All that is decided about a launch. Arithmetic alone: no CUDA, no group. */
#ifndef EP_EP_HT_PLAN_H
#define EP_EP_HT_PLAN_H

#include <stdbool.h>
#include "device/ht/ht_layout.h"
#include "ep/algo.h"

enum ep_ht_kind {
	EP_HT_ROUTE,
	EP_HT_DISPATCH,
	EP_HT_COMBINE
};

/* Limits of the device and of the group's config for one block, and for all of them. */
struct ep_ht_device {
	uint32_t max_blocks;
	bool auto_sms;         /* the caller leaves it to us how many of those an operation has */
	uint32_t shared_bytes; /* dynamic */
};

/* Input of a launch plan. */
struct ep_ht_operation {
	struct ep_shape shape;
	struct ep_ht_device device;
	enum ep_ht_kind kind;
	uint32_t layout; /* enum ep_ht_layout */
	uint32_t topk;
	uint32_t least_sms; /* that an operation of a rank may have; the same on all ranks */
	bool direct;        /* rows go through windows, and nothing else goes with them */
	uint32_t row_bytes; /* with scales */
	uint32_t ring_chunks;
	uint32_t net_chunks; /* several nodes */
};

struct ep_ht_plan {
	uint32_t blocks;
	uint32_t threads;
	uint64_t shared_bytes; /* the device may have less: see ep_ht_plan_fits() */
	uint32_t parts;
	uint32_t part_bytes;
	uint32_t stage_parts;
	uint32_t lag;
};

struct ep_ht_plan ep_ht_plan_make(const struct ep_ht_operation *operation);

/* Whether any operation of the plan's kind can run on the device. */
bool ep_ht_plan_fits(const struct ep_ht_operation *operation, const struct ep_ht_plan *plan);

/* Chunks of operations of that layout have 1 << this tokens. */
uint32_t ep_ht_chunk_shift(const struct ep_shape *shape, uint32_t layout);

/* Into how many parts, at most, rows are cut. */
uint32_t ep_ht_most_parts(const struct ep_shape *shape);

#endif
