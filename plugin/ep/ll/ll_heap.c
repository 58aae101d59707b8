/* SPDX-License-Identifier: Apache-2.0 */
/* The heap of low latency, and where a dispatch reads its rows. */
#include "core/log.h"
#include "ep/ep.h"
#include "ep/ll/ll.h"
#include "gda/state.h"

/* Why it is not worth while, or not wanted; NULL: it is. */
static const char *ll_source_excluded(const struct ncclEpGroup *g, uint32_t row_bytes,
				      bool send_only)
{
	uint64_t bytes = (uint64_t)g->config.shape.max_tokens * row_bytes;

	if (send_only) {
		return "with send_only it may be written before they have read it";
	}
	if (g->config.zero_copy == NCCL_EP_ZERO_COPY_OFF) {
		return "zero_copy is OFF";
	}
	if (g->config.zero_copy != NCCL_EP_ZERO_COPY_ON &&
	    (g->config.direct_bytes < 0 || bytes < (uint64_t)g->config.direct_bytes)) {
		return "zero_copy is AUTO, and max_dispatch_tokens_per_rank rows are less than "
		       "NCCL_EP_LL_DIRECT_BYTES";
	}
	return NULL;
}

void ep_ll_source_choose(struct ncclEpGroup *g, enum ep_ll_source_of of,
			 const ncclEpTensor_t *tensor, const struct ep_view *view,
			 uint32_t row_bytes, bool send_only, struct ep_mlx5_source *out)
{
	static const char *const names[] = { "dispatch", "combine" };
	const char *why;

	if (!g->remote_ranks || !tensor->win_hdl || !view->data) {
		return;
	}
	why = ll_source_excluded(g, row_bytes, send_only);
	if (!why) {
		why = ep_window_holds(g, tensor, view);
	}
	if (!why) {
		why = ep_gda_user_mr_find(g->gda, view->data, ep_view_bytes(view), out);
	}
	if (g->ll->copied_why[of] != why) {
		g->ll->copied_why[of] = why;
		EP_INFO(EP_LOG_NET, "group %p rank %d: NICs read the rows of %s from %s%s",
			(void *)g, g->rank, names[of],
			why ? "copies, not from inputs->tokens: " : "inputs->tokens",
			why ? why : "");
	}
}

#define EP_LL_LINE 128u  /* areas that different ranks poll do not share a cache line */
#define EP_LL_PAGE 4096u /* banks */
#define EP_LL_SLICE 256u /* handle memory */

static uint32_t ll_header_bytes(uint32_t layout, uint32_t topk)
{
	/* 8-byte words: expert-major one and one per k, rank-major two per k; whole packets */
	return layout == EP_LL_EXPERT_MAJOR ? 16 * ((1 + topk + 1) / 2) : 16 * topk;
}

struct ep_ll_dispatch_packets ep_ll_dispatch_packets_make(const struct ep_shape *shape,
							  uint32_t layout, uint32_t topk)
{
	struct ep_ll_dispatch_packets p;
	uint64_t s = shape->roles.senders, at;

	p.header_bytes = ll_header_bytes(layout, topk);
	at = ep_round_up(s * EP_LL_CTRL_BYTES, EP_LL_LINE);
	p.count_off = (uint32_t)at;
	at = ep_round_up(at + s * shape->nlocal * 8, EP_LL_LINE);
	p.header_off = (uint32_t)at;
	p.bytes = at + s * shape->max_tokens * p.header_bytes;
	return p;
}

/* Bytes that leave by the NIC: rows and their headers, counts. */
static void ll_stage_make(struct ep_ll_heap *heap, const struct ep_shape *shape, uint32_t topk)
{
	uint64_t headers = ep_max_u64(ll_header_bytes(EP_LL_EXPERT_MAJOR, topk),
				      ll_header_bytes(EP_LL_RANK_MAJOR, topk));
	uint32_t quads = ep_ll_max_quads(shape->max_token_bytes);
	uint64_t side = 0;

	(void)ep_group_heap_take(&side, (uint64_t)EP_LL_STAGE_ROWS * ep_ll_row_stride(quads, 0), 1);
	heap->areas.stage_header_off = ep_group_heap_take(
		&side, (uint64_t)shape->nodes.remote_holders * EP_LL_STAGE_ROWS * headers,
		EP_LL_LINE);
	heap->g.stage_side_bytes = ep_round_up(side, EP_LL_LINE);
	heap->g.stage_off = ep_group_heap_take(
		&heap->g.bytes, 2 * shape->channels * heap->g.stage_side_bytes, EP_LL_PAGE);
	heap->areas.post_stride = ep_round_up(EP_LL_CTRL_BYTES + 8ull * shape->nlocal, EP_LL_LINE);
	heap->areas.post_off = ep_group_heap_take(
		&heap->g.bytes, shape->nranks * heap->areas.post_stride, EP_LL_LINE);
	heap->g.bytes = ep_round_up(heap->g.bytes, EP_LL_PAGE);
}

/*
 * Of dispatch, from `senders` at most, and of combine, from any of `holders`: the larger number.
 * All heaps of a group are alike, whatever their ranks' roles are.
 */
static uint64_t ll_area_rows(const struct ep_shape *shape, uint32_t senders, uint32_t holders,
			     uint32_t topk)
{
	uint64_t b = shape->max_tokens;

	return ep_max_u64(senders * b, holders ? b * topk : 0);
}

/*
 * Rows are given the room of lines, which is the larger, so that the size of the heap does not
 * depend on how the GPUs are connected.
 */
struct ep_ll_heap ep_ll_heap_make(const struct ep_shape *shape, uint32_t topk)
{
	const struct ep_nodes_most *nodes = &shape->nodes;
	uint32_t quads = ep_ll_max_quads(shape->max_token_bytes);
	uint64_t row_bytes = ep_ll_row_stride(quads, 1), packets = 0;
	uint64_t rows = ll_area_rows(shape, nodes->near_senders, nodes->near_holders, topk);
	struct ep_ll_heap h = { .g.topk = topk };

	for (uint32_t layout = EP_LL_EXPERT_MAJOR; layout <= EP_LL_RANK_MAJOR; layout++) {
		packets =
			ep_max_u64(packets, ep_ll_dispatch_packets_make(shape, layout, topk).bytes);
	}
	h.areas.packet_off = 0;
	h.areas.flag_off = ep_round_up(packets, EP_LL_LINE);
	h.areas.row_off = ep_round_up(h.areas.flag_off + rows * 8 * EP_LL_MAX_PARTS, EP_LL_LINE);
	h.bank_bytes = h.areas.row_off + rows * row_bytes;
	if (nodes->remote) {
		rows = ll_area_rows(shape, nodes->remote_senders, nodes->remote_holders, topk);
		h.areas.remote_row_off = ep_group_heap_take(
			&h.bank_bytes, rows * ep_ll_row_stride(quads, 0), EP_LL_LINE);
	}
	h.bank_bytes = ep_round_up(h.bank_bytes, EP_LL_PAGE);

	ep_group_heap_begin(&h.g, shape);
	h.g.bytes = ep_round_up(h.g.bytes, EP_LL_PAGE);
	for (uint32_t i = 0; i < shape->banks; i++) {
		h.areas.bank_off[i] = h.g.bytes;
		h.g.bytes += h.bank_bytes;
	}
	if (shape->channels) {
		ll_stage_make(&h, shape, topk);
	}
	return h;
}

struct ep_ll_handle_layout ep_ll_handle_layout_make(const struct ep_shape *shape, uint32_t layout,
						    uint32_t topk)
{
	uint64_t rows = (uint64_t)shape->roles.senders * shape->max_tokens;
	struct ep_ll_handle_layout h;
	uint64_t at = 0;

	h.head_off = ep_group_heap_take(&at, sizeof(struct ep_dev_handle), EP_LL_SLICE);
	h.src_rows_off = ep_group_heap_take(&at, 4ull * shape->nranks, EP_LL_SLICE);
	h.src_parts_off = ep_group_heap_take(&at, 4ull * shape->nranks, EP_LL_SLICE);
	h.counts_off = ep_group_heap_take(&at, 4ull * shape->nlocal, EP_LL_SLICE);
	h.slot_token_off = ep_group_heap_take(&at, 4 * rows, EP_LL_SLICE);
	h.slot_row_off = ep_group_heap_take(&at, layout == EP_LL_EXPERT_MAJOR ? 4 * rows * topk : 0,
					    EP_LL_SLICE);
	h.route_off = ep_group_heap_take(&at, 4ull * shape->max_tokens * topk, EP_LL_SLICE);
	h.sent_rows_off =
		ep_group_heap_take(&at, shape->channels ? 4ull * shape->nranks : 0, EP_LL_SLICE);
	h.bytes = ep_round_up(at, EP_LL_SLICE);
	return h;
}

uint32_t ep_ll_row_quads(enum ep_row_format format, uint32_t bytes)
{
	switch (format) {
	case EP_ROW_FP8:
	case EP_ROW_MXFP8: /* whole tiles */
		return (uint32_t)ep_ceil_div(bytes / 2, EP_LL_TILE_QUADS * EP_LL_E4M3_ELEMENTS) *
		       EP_LL_TILE_QUADS;
	case EP_ROW_NVFP4:
		return (uint32_t)ep_ceil_div(bytes / 2, EP_LL_E2M1_ELEMENTS);
	default:
		return (uint32_t)ep_ceil_div(bytes, EP_QUAD_BYTES);
	}
}

uint32_t ep_ll_max_quads(uint32_t bytes)
{
	/* a bf16 row, quantised, or just a quantised row, of which 128 elements take 132 bytes */
	uint32_t elements = bytes % 132 == 0 ? bytes / 132 * 128 : bytes / 2;

	return (uint32_t)ep_max_u64(ep_ll_row_quads(EP_ROW_COPIED, bytes),
				    ep_ll_row_quads(EP_ROW_FP8, 2 * elements));
}
