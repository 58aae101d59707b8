/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything lies in a high-throughput group's heap, in its own memory and in handle memory.
 * The one place that computes it: for allocation, for the kernels' arguments, and for the memory
 * query.
 */
#ifndef EP_EP_HT_HEAP_H
#define EP_EP_HT_HEAP_H

#include "device/ht/ht_layout.h"
#include "ep/algo.h"

struct ep_ht_heap {
	struct ep_group_heap g;
	struct ep_ht_areas areas;
};

struct ep_ht_handle_layout {
	uint64_t head_off;
	uint64_t send_sel_off;
	uint64_t send_row_off;
	uint64_t send_place_off;
	uint64_t send_start_off;
	uint64_t send_base_off;
	uint64_t recv_base_off;
	uint64_t recv_start_off;
	uint64_t recv_sel_off;
	uint64_t zones_off;
	uint64_t send_nodes_off; /* this and the next: several nodes */
	uint64_t node_masks_off;
	uint64_t bytes;
};

/* Handles of up to `topk`, both layouts; the areas are cut for the flat one. */
struct ep_ht_heap ep_ht_heap_make(const struct ep_shape *shape, uint32_t topk);

struct ep_ht_handle_layout ep_ht_handle_layout_make(const struct ep_shape *shape, uint32_t layout,
						    uint32_t topk);

/* How operations of that layout cut the rings, and all ranks' tokens. */
void ep_ht_areas_cut(struct ep_ht_areas *areas, const struct ep_shape *shape, uint32_t layout);

/* Bytes of a list of masks, one for each chunk; 0: one node. */
uint32_t ep_ht_mask_stride(const struct ep_shape *shape);

/* Selections of a row: experts of one rank. */
uint32_t ep_ht_width(const struct ep_shape *shape, uint32_t topk);

/* Rows of a tensor that holds whatever may come: tokens, or their places in zones. */
uint64_t ep_ht_most_rows(const struct ep_shape *shape, uint32_t layout, uint32_t topk,
			 uint64_t alignment);

#endif
