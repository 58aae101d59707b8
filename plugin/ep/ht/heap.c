/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/heap.h"
#include "ep/ht/heap.h"
#include "ep/ht/plan.h"

#define EP_HT_LINE 128u  /* areas, and rows of the ring */
#define EP_HT_PAGE 4096u /* the heap's end */
#define EP_HT_SLICE 256u /* handle memory */

uint32_t ep_ht_width(const struct ep_shape *shape, uint32_t topk)
{
	return topk < shape->nlocal ? topk : shape->nlocal;
}

/*
 * As many chunks from each rank as there is memory for: two at least, so that one can be written
 * while the other is read, and no more than a rank has.
 */
static uint32_t ep_ht_ring_chunks(const struct ep_shape *shape, uint64_t row_stride)
{
	uint64_t chunk = row_stride * EP_HT_CHUNK;
	uint64_t fit = ep_max_u64(2, shape->ring_bytes / (chunk * shape->nranks));

	return (uint32_t)ep_min_u64(fit, ep_ht_chunks(shape->max_tokens));
}

struct ep_ht_heap ep_ht_heap_make(const struct ep_shape *shape, uint32_t topk)
{
	uint64_t r = shape->nranks, b = shape->max_tokens, w = ep_ht_width(shape, topk);
	struct ep_ht_heap h = { .g.topk = topk };
	struct ep_ht_areas *a = &h.areas;
	uint64_t *at = &h.g.bytes, words;
	uint32_t counts = ep_ht_counts(shape->nranks * shape->nlocal, shape->nranks);

	a->row_stride = ep_round_up(shape->max_token_bytes, EP_HT_LINE);
	a->ring_chunks = ep_ht_ring_chunks(shape, a->row_stride);
	a->parts = ep_ht_most_parts(shape);
	words = r * a->ring_chunks * a->parts;

	ep_group_heap_begin(&h.g, shape);
	a->form_off = ep_group_heap_take(at, 2 * 8 * r, EP_HT_LINE);
	a->done_off = ep_group_heap_take(at, 8 * r, EP_HT_LINE);
	a->blame_off = ep_group_heap_take(at, 8 * r, EP_HT_LINE);
	a->ended_off = ep_group_heap_take(at, 4, EP_HT_LINE);
	a->count_off = ep_group_heap_take(at, 8 * r * counts, EP_HT_LINE);
	a->table_off = ep_group_heap_take(at, 4 * r * EP_HT_ROUTE_BLOCKS, EP_HT_LINE);
	a->start_off = ep_group_heap_take(at, 4 * r * (ep_ht_chunks(shape->max_tokens) + 1ull),
					  EP_HT_LINE);
	a->sel_off = ep_group_heap_take(at, 4 * r * b * w, EP_HT_LINE);
	a->weight_off = ep_group_heap_take(at, 4 * r * b * w, EP_HT_LINE);
	a->arrived_off = ep_group_heap_take(at, 8 * words, EP_HT_LINE);
	a->credit_off = ep_group_heap_take(at, 8 * words, EP_HT_LINE);
	a->ring_off = ep_group_heap_take(at, r * a->ring_chunks * EP_HT_CHUNK * a->row_stride,
					 EP_HT_LINE);
	*at = ep_round_up(*at, EP_HT_PAGE);
	return h;
}

struct ep_ht_handle_layout ep_ht_handle_layout_make(const struct ep_shape *shape, uint32_t layout,
						    uint32_t topk)
{
	uint64_t r = shape->nranks, b = shape->max_tokens, sel = 4 * b * topk;
	uint64_t slots = ep_min_u64(r * b, shape->limit);
	uint64_t starts = 4 * r * (ep_ht_chunks(shape->max_tokens) + 1ull);
	bool em = layout == EP_HT_EXPERT_MAJOR;
	struct ep_ht_handle_layout h;
	uint64_t at = 0;

	h.head_off = ep_group_heap_take(&at, sizeof(struct ep_ht_head), EP_HT_SLICE);
	h.send_sel_off = ep_group_heap_take(&at, sel, EP_HT_SLICE);
	h.send_row_off = ep_group_heap_take(&at, sel, EP_HT_SLICE);
	h.send_place_off = ep_group_heap_take(&at, em ? sel : 0, EP_HT_SLICE);
	h.send_start_off = ep_group_heap_take(&at, starts, EP_HT_SLICE);
	h.send_base_off = ep_group_heap_take(&at, 4 * r, EP_HT_SLICE);
	h.recv_base_off = ep_group_heap_take(&at, 4 * (r + 1), EP_HT_SLICE);
	h.recv_start_off = ep_group_heap_take(&at, starts, EP_HT_SLICE);
	h.recv_sel_off = ep_group_heap_take(&at, 4 * slots * ep_ht_width(shape, topk), EP_HT_SLICE);
	h.zones_off = ep_group_heap_take(&at, em ? shape->nlocal * sizeof(struct ep_ht_zone) : 0,
					 EP_HT_SLICE);
	h.bytes = ep_round_up(at, EP_HT_SLICE);
	return h;
}

uint64_t ep_ht_most_rows(const struct ep_shape *shape, uint32_t layout, uint32_t topk,
			 uint64_t alignment)
{
	uint64_t tokens = (uint64_t)shape->nranks * shape->max_tokens;

	if (layout != EP_HT_EXPERT_MAJOR) {
		return tokens;
	}
	return tokens * ep_ht_width(shape, topk) + shape->nlocal * (alignment - 1);
}
