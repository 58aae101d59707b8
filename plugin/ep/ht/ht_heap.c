/* SPDX-License-Identifier: Apache-2.0 */
/* Where everything lies in the heap and in handle memory of high throughput. */
#include "ep/ep.h"
#include "ep/ht/ht.h"

#define EP_HT_LINE 128u  /* areas, and rows of the ring */
#define EP_HT_PAGE 4096u /* the heap's end */
#define EP_HT_SLICE 256u /* handle memory */

#define EP_HT_ARRIVALS_SHIFT 1u /* rows of a chunk of arrivals, if there are so many chunks */

/* Of each flow, if NCCL_EP_HT_RING_BYTES has room for so many. */
#define EP_HT_NET_CHUNKS 64u
#define EP_HT_STAGE_CHUNKS 64u

uint64_t ep_ht_group_scratch(const struct ep_shape *shape)
{
	return ep_ht_scratch_bytes(shape->roles.holders, shape->roles.holders * shape->nlocal);
}

/*
 * Ranks whose rows lie in a rank's heap: those that bring tokens in dispatch, in combine those that
 * hold experts.
 */
static uint32_t ht_most_peers(const struct ep_shape *shape)
{
	return (uint32_t)ep_max_u64(shape->roles.senders, shape->roles.holders);
}

uint32_t ep_ht_width(const struct ep_shape *shape, uint32_t topk)
{
	return topk < shape->nlocal ? topk : shape->nlocal;
}

/*
 * As many chunks in each of `rings` as `bytes` hold, and no more than a rank has or `most`. Two at
 * least, so that one can be written while the other is read.
 */
static uint32_t ht_fit_chunks(const struct ep_shape *shape, uint32_t shift, uint64_t row_stride,
			      uint64_t bytes, uint32_t rings, uint32_t most)
{
	uint64_t fit = ep_max_u64(2, bytes / ((row_stride << shift) * rings));

	return (uint32_t)ep_min_u64(ep_min_u64(fit, most), ep_ht_chunks(shape->max_tokens, shift));
}

void ep_ht_areas_cut(struct ep_ht_areas *a, const struct ep_shape *shape, uint32_t layout)
{
	uint64_t bytes = shape->nodes.flows ? shape->ring_bytes / 2 : shape->ring_bytes;

	a->chunk_shift = ep_ht_chunk_shift(shape, layout);
	a->ring_chunks =
		ht_fit_chunks(shape, a->chunk_shift, a->row_stride, bytes, a->rings, UINT32_MAX);
}

/* With other nodes half of the memory is for what travels between them. */
static void ht_areas_size(struct ep_ht_areas *a, const struct ep_shape *shape)
{
	uint64_t bytes = shape->ring_bytes / 4;

	a->row_stride = ep_round_up(shape->max_token_bytes, EP_HT_LINE);
	a->parts = ep_ht_most_parts(shape);
	a->rings = ht_most_peers(shape);
	if (shape->nodes.flows && shape->nodes.return_rings > a->rings) {
		a->rings = shape->nodes.return_rings;
	}
	ep_ht_areas_cut(a, shape, EP_HT_FLAT);
	if (shape->nodes.flows) {
		a->net_chunks = ht_fit_chunks(shape, EP_HT_CHUNK_SHIFT, a->row_stride, bytes,
					      shape->nodes.flows, EP_HT_NET_CHUNKS);
		a->stage_chunks = ht_fit_chunks(shape, EP_HT_CHUNK_SHIFT, a->row_stride, bytes,
						shape->nodes.flows, EP_HT_STAGE_CHUNKS);
		a->net_chunks = (uint32_t)ep_max_u64(2, a->net_chunks);
		a->stage_chunks = (uint32_t)ep_max_u64(2, a->stage_chunks);
		a->bunch_shift = ep_ht_bunch_shift(a->stage_chunks);
		a->queue_mask = shape->channels > EP_HT_ROWS ? shape->channels - EP_HT_ROWS - 1 : 0;
	}
}

/*
 * A group for few tokens on one node, whose rings have room for all rows of its ranks as lines, has
 * such room beside them: a line needs no fence, and no rank gives its place free.
 */
#define EP_HT_LINES_TOKENS 2048u

static uint32_t ht_line_quads(const struct ep_shape *shape)
{
	return ep_ceil_div(shape->max_token_bytes, EP_QUAD_BYTES);
}

bool ep_ht_lines_fit(const struct ep_shape *shape)
{
	return !shape->nodes.flows && shape->max_tokens <= EP_HT_LINES_TOKENS &&
	       (uint64_t)ht_most_peers(shape) * shape->max_tokens * ht_line_quads(shape) *
			       EP_QUAD_LINE_BYTES <=
		       shape->ring_bytes;
}

bool ep_ht_lines(const struct ncclEpGroup *g)
{
	return g->lines && ep_ht_lines_fit(&g->config.shape);
}

static void ht_areas_lines(struct ep_ht_areas *a, const struct ep_shape *shape, uint64_t width,
			   uint64_t *at)
{
	uint64_t rows = (uint64_t)ht_most_peers(shape) * shape->max_tokens;

	a->line_quads = ht_line_quads(shape);
	a->line_weight_off = ep_group_heap_take(at, 8 * rows * width, EP_HT_LINE);
	a->line_off = ep_group_heap_take(at, rows * a->line_quads * EP_QUAD_LINE_BYTES,
					 EP_QUAD_LINE_BYTES);
}

/* Bytes of a list of masks, one for each chunk; 0: one node. */
static uint32_t ht_mask_stride(const struct ep_shape *shape)
{
	return shape->nodes.flows
		       ? (uint32_t)ep_round_up(ep_ht_chunks(shape->max_tokens, EP_HT_CHUNK_SHIFT),
					       16)
		       : 0;
}

/* More for groups of several nodes. */
static void ht_areas_remote(struct ep_ht_areas *a, const struct ep_shape *shape, uint32_t width,
			    uint64_t *at)
{
	uint64_t r = shape->nranks, f = shape->nodes.flows, holders = shape->roles.holders,
		 chunks = ep_ht_chunks(shape->max_tokens, EP_HT_CHUNK_SHIFT);
	uint64_t chunk = EP_HT_CHUNK * a->row_stride;
	uint64_t counts = ep_ht_counts(shape->roles.holders * shape->nlocal, shape->roles.holders);

	a->mask_stride = ht_mask_stride(shape);
	a->net_off = ep_group_heap_take(at, f * a->net_chunks * chunk, EP_HT_LINE);
	a->stage_off = ep_group_heap_take(at, f * a->stage_chunks * chunk, EP_HT_LINE);
	a->staged_off = ep_group_heap_take(at, 8 * f * a->stage_chunks * a->parts, EP_HT_LINE);
	a->consumed_off = ep_group_heap_take(at, 8 * f * a->net_chunks * a->parts, EP_HT_LINE);
	a->released_off = ep_group_heap_take(at, 8 * f, EP_HT_LINE);
	a->posted_off = ep_group_heap_take(at, 8 * f * a->stage_chunks, EP_HT_LINE);
	a->mask_off = ep_group_heap_take(at, f * shape->nodes.near * a->mask_stride, EP_HT_LINE);
	a->out_off = ep_group_heap_take(at, 4ull * ht_most_peers(shape) * shape->max_tokens * width,
					EP_HT_LINE);
	a->out_start_off = ep_group_heap_take(at, 4 * holders * (chunks + 1), EP_HT_LINE);
	a->out_mask_off = ep_group_heap_take(at, r * a->mask_stride, EP_HT_LINE);
	a->out_count_off = ep_group_heap_take(at, 8 * counts, EP_HT_LINE);
}

struct ep_ht_heap ep_ht_heap_make(const struct ep_shape *shape, uint32_t topk)
{
	uint64_t r = shape->nranks, b = shape->max_tokens, w = ep_ht_width(shape, topk);
	uint64_t s = shape->roles.senders;
	struct ep_ht_heap h = { .g.topk = topk };
	struct ep_ht_areas *a = &h.areas, coarse;
	uint64_t *at = &h.g.bytes, words, rows;
	uint32_t counts = ep_ht_counts(shape->roles.holders * shape->nlocal, shape->roles.holders);

	ht_areas_size(a, shape);
	coarse = *a;
	ep_ht_areas_cut(&coarse, shape, EP_HT_EXPERT_MAJOR);
	words = (uint64_t)a->rings * a->ring_chunks * a->parts; /* flat has more chunks */
	rows = ep_max_u64((uint64_t)a->ring_chunks << a->chunk_shift,
			  (uint64_t)coarse.ring_chunks << coarse.chunk_shift);

	ep_group_heap_begin(&h.g, shape);
	a->done_off = ep_group_heap_take(at, 8 * r * ep_ht_done_words(shape->nranks), EP_HT_LINE);
	a->sign_off = ep_group_heap_take(at, (8 + (shape->nodes.flows ? 4 : 0)) * r, EP_HT_LINE);
	a->ended_off = ep_group_heap_take(at, 4, EP_HT_LINE);
	a->count_off = ep_group_heap_take(at, 8 * 2 * s * counts, EP_HT_LINE);
	a->start_off = ep_group_heap_take(
		at, 8 * s * (ep_ht_chunks(shape->max_tokens, a->chunk_shift) + 1ull), EP_HT_LINE);
	a->list_stride = ep_ht_list_bytes((uint32_t)w);
	a->sel_off = ep_group_heap_take(at, s * b * a->list_stride, EP_HT_LINE);
	a->weight_off = ep_group_heap_take(at, 4 * ht_most_peers(shape) * b * w, EP_HT_LINE);
	a->arrived_off = ep_group_heap_take(at, 8 * words, EP_HT_LINE);
	a->credit_off = ep_group_heap_take(at, 8 * words, EP_HT_LINE);
	a->ring_off = ep_group_heap_take(at, a->rings * rows * a->row_stride, EP_HT_LINE);
	if (shape->nodes.flows) {
		ht_areas_remote(a, shape, (uint32_t)w, at);
	}
	if (ep_ht_lines_fit(shape)) {
		ht_areas_lines(a, shape, w, at);
	}
	*at = ep_round_up(*at, EP_HT_PAGE);
	return h;
}

struct ep_ht_handle_layout ep_ht_handle_layout_make(const struct ep_shape *shape, uint32_t layout,
						    uint32_t topk)
{
	uint64_t r = shape->nranks, b = shape->max_tokens, sel = 4 * b * topk;
	uint64_t slots = ep_min_u64(shape->roles.senders * b, shape->limit);
	uint64_t starts =
		4 * r * (ep_ht_chunks(shape->max_tokens, ep_ht_chunk_shift(shape, layout)) + 1ull);
	uint64_t masks = (uint64_t)shape->nodes.flows * ht_mask_stride(shape);
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
	h.send_nodes_off = ep_group_heap_take(&at, masks, EP_HT_SLICE);
	h.node_masks_off = ep_group_heap_take(&at, masks * shape->nodes.near, EP_HT_SLICE);
	h.bytes = ep_round_up(at, EP_HT_SLICE);
	return h;
}

uint64_t ep_ht_most_rows(const struct ep_shape *shape, uint32_t layout, uint32_t topk,
			 uint64_t alignment)
{
	uint64_t tokens = (uint64_t)shape->roles.senders * shape->max_tokens;

	if (layout != EP_HT_EXPERT_MAJOR) {
		return tokens;
	}
	return tokens * ep_ht_width(shape, topk) + shape->nlocal * (alignment - 1);
}

uint64_t ep_ht_arrivals_layout(const struct ep_shape *shape, uint32_t topk, unsigned char *memory,
			       struct ep_ht_dev_arrivals *arrivals)
{
	uint64_t r = shape->nranks, b = shape->max_tokens, l = shape->nlocal, at = 0;
	uint64_t slots = ep_min_u64(r * b, shape->limit), head, rows, send, recv, keys, experts,
		 sums;

	head = ep_group_heap_take(&at, sizeof(*arrivals->head) + l * sizeof(*arrivals->experts),
				  EP_HT_SLICE);
	rows = ep_group_heap_take(&at, 4 * 2 * r, EP_HT_SLICE);
	send = ep_group_heap_take(&at, 4 * r * b, EP_HT_SLICE);
	recv = ep_group_heap_take(&at, 4 * slots, EP_HT_SLICE);
	keys = ep_group_heap_take(&at, 4 * (r * b + slots), EP_HT_SLICE);
	experts = ep_group_heap_take(&at, 2 * slots * ep_ht_width(shape, topk), EP_HT_SLICE);
	sums = ep_group_heap_take(
		&at, l <= EP_HT_ORDER_SHARED ? 0 : 2 * r * ep_ht_order_sums((uint32_t)l),
		EP_HT_SLICE);
	*arrivals = (struct ep_ht_dev_arrivals){ 0 };
	if (memory) {
		arrivals->head = (void *)(memory + head);
		arrivals->experts = (void *)(arrivals->head + 1);
		arrivals->rows = (void *)(memory + rows);
		arrivals->send = (void *)(memory + send);
		arrivals->recv = (void *)(memory + recv);
		arrivals->send_key = (void *)(memory + keys);
		arrivals->recv_key = arrivals->send_key + r * b;
		arrivals->recv_expert = (void *)(memory + experts);
		arrivals->sums = (void *)(memory + sums);
	}
	return ep_round_up(at, EP_HT_SLICE);
}

/*
 * Small chunks keep the order of rows. Flat's have words of their own; those of several parts have
 * more.
 */
void ep_ht_arrivals_cut(const struct ep_ht_areas *areas, const struct ep_shape *shape,
			uint32_t *chunk_shift, uint32_t *ring_chunks)
{
	struct ep_ht_areas flat = *areas;
	uint32_t halved = 0;

	ep_ht_areas_cut(&flat, shape, EP_HT_FLAT);
	while (flat.chunk_shift - halved > EP_HT_ARRIVALS_SHIFT && 2u << halved <= flat.parts) {
		halved++;
	}
	*chunk_shift = flat.chunk_shift - halved;
	*ring_chunks = flat.ring_chunks << halved;
}
