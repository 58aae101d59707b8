/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything lies in a low-latency group's heap and in handle memory. The one place that
 * computes it: for allocation, for the kernels' arguments, and for the memory query.
 */
#ifndef EP_EP_LL_HEAP_H
#define EP_EP_LL_HEAP_H

#include "device/ll/ll_layout.h"
#include "ep/algo.h"

/* A bank's areas end where the next begins. A side of the stage: rows, headers [R][STAGE_ROWS]. */
struct ep_ll_heap {
	struct ep_group_heap g;
	struct ep_ll_areas areas;
	uint64_t bank_bytes;
};

/* Parts of the packet area of a dispatch, from its start. */
struct ep_ll_dispatch_packets {
	uint32_t count_off;
	uint32_t header_off;
	uint32_t header_bytes;
	uint64_t bytes;
};

struct ep_ll_handle_layout {
	uint64_t head_off;
	uint64_t src_rows_off;
	uint64_t src_parts_off;
	uint64_t counts_off;
	uint64_t slot_token_off;
	uint64_t slot_row_off;
	uint64_t route_off;
	uint64_t sent_rows_off;
	uint64_t bytes;
};

struct ep_ll_dispatch_packets ep_ll_dispatch_packets_make(const struct ep_shape *shape,
							  uint32_t layout, uint32_t topk);

/* Both layouts, top-k up to `topk`. */
struct ep_ll_heap ep_ll_heap_make(const struct ep_shape *shape, uint32_t topk);

struct ep_ll_handle_layout ep_ll_handle_layout_make(const struct ep_shape *shape, uint32_t layout,
						    uint32_t topk);

/*
 * Quads of the largest row in a group whose max_token_bytes is `bytes`: so many bytes copied, scales
 * included, and quantised what is bf16 of so many bytes. Where these are just what a quantised row
 * and its scales take, that fits, too.
 */
uint32_t ep_ll_max_quads(uint32_t bytes);

/* Quads of a row of `bytes` copied bytes, and of `hidden` channels quantised to FP8. */
uint32_t ep_ll_copy_quads(uint32_t bytes);
uint32_t ep_ll_fp8_quads(uint32_t hidden);

#endif
