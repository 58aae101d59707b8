/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch, what goes to remote peers: counts, and tokens in batches. */
#ifndef EP_DEVICE_LL_DISPATCH_REMOTE_H
#define EP_DEVICE_LL_DISPATCH_REMOTE_H

#include "device/group/group_remote.h"
#include "device/ll/ll_dispatch_send.h"

/* Tokens [first, first + n) of the span, all of one channel. */
struct ep_ll_remote_batch {
	uint32_t channel;
	uint32_t side;
	uint32_t token; /* of the first */
	uint32_t first;
	uint32_t n;     /* at most EP_LL_STAGE_ROWS */
	uint32_t done;  /* tokens of the channel up to the end of the batch */
	uint64_t stage; /* of the side, offset in the heap */
};

/* Posts the counts that ep_ll_send_counts left in the stage. One block, after a barrier. */
EP_DEV void ep_ll_remote_post_counts(const struct ep_ll_dispatch_args &a, const struct ep_op &op)
{
	const struct ep_ll_common &c = a.c;
	bool ctrl = ep_lane() == 0;
	uint64_t to = c.areas.bank_off[op.bank] + c.areas.packet_off +
		      (ctrl ? (uint64_t)c.g.rank * EP_LL_CTRL_BYTES
			    : a.count_off + 8 * (uint64_t)c.g.rank * c.nlocal);
	uint32_t lanes = c.layout == EP_LL_EXPERT_MAJOR ? 2 : 1;

	for (uint32_t r = ep_remote_peer(c.g, ep_warp()); r < c.g.nranks;
	     r = ep_remote_peer(c.g, r + ep_nwarps())) {
		struct ep_mlx5_post p = ep_remote_open(c.g, r, c.g.remote->channels);
		uint64_t from =
			c.areas.post_off + r * c.areas.post_stride + (ctrl ? 0 : EP_LL_CTRL_BYTES);

		p.timeout_ns = ep_remote_left(c.g, op, true);
		if (!ep_mlx5_put(&p, ep_lane() < lanes,
				 ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, to),
				 ep_mlx5_local(&p, EP_MLX5_REGION_HEAP, from),
				 ctrl ? EP_LL_CTRL_BYTES : 8 * c.nlocal, false)) {
			ep_remote_failed(c.g, op, p, r, EP_WAIT_RDMA_SLOT);
		}
	}
}

/* Quads [first, end) of a token's row to the stage. One warp. */
template <bool FP8>
EP_DEV void ep_ll_remote_stage_part(const struct ep_ll_dispatch_args &a,
				    const struct ep_ll_send_tables &tables, uint32_t token,
				    unsigned char *row, uint32_t first, uint32_t end)
{
	struct ep_ll_source s;

	if (FP8) {
		s.token = tables.scratch + ep_warp() * EP_LL_TILE_BYTES;
		for (uint32_t q = first; q < end; q += EP_LL_TILE_QUADS) {
			ep_ll_quantise_tile(a, tables.scratch + ep_warp() * EP_LL_TILE_BYTES, token,
					    q / EP_LL_TILE_QUADS);
			for (uint32_t i = ep_lane(); i < EP_LL_TILE_BYTES / 16; i += EP_WARP_SIZE) {
				ep_st16(row + (size_t)q * EP_LL_QUAD_BYTES + 16 * i,
					ep_ll_source_vec<true>(s, 16 * i, false));
			}
			ep_warp_sync(EP_FULL_MASK);
		}
		return;
	}
	s = ep_ll_source_make(a, token);
	for (uint32_t v0 = first * EP_LL_QUAD_VECS; v0 < end * EP_LL_QUAD_VECS;
	     v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH];

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			v[j] = ep_ll_source_vec<false>(s, 16 * (v0 + j * EP_WARP_SIZE + ep_lane()),
						       false);
		}
		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < end * EP_LL_QUAD_VECS) {
				ep_st16(row + 16 * (size_t)i, v[j]);
			}
		}
	}
}

/* Slot at rank d of the first row of the batch that goes there. */
EP_DEV uint32_t ep_ll_remote_first_slot(const struct ep_ll_send_tables &tables,
					const struct ep_ll_remote_batch &batch, uint32_t d)
{
	return tables.rank_base[d] +
	       ep_ll_bits_before(tables.rank_bits + d * tables.words, batch.first);
}

/* Headers of the i-th token of the batch, as they will lie at each remote peer. One warp. */
EP_DEV void ep_ll_remote_stage_headers(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				       const struct ep_ll_send_tables &tables,
				       const struct ep_ll_remote_batch &batch, uint32_t i,
				       uint32_t repeats)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_header_share share = ep_ll_header_share_make(a);
	uint32_t local = batch.first + i;
	struct ep_ll_selection s = ep_ll_selection_make(a, tables, batch.token + i, local, repeats);

	for (uint32_t d0 = 0; d0 < c.g.nranks; d0 += share.ranks) {
		uint32_t d = d0 + share.rank, slot = EP_LL_NO_ROW;
		unsigned char *h = NULL;

		if (share.rank < share.ranks && d < c.g.nranks && ep_rank_remote(c.g, d)) {
			slot = ep_ll_slot(tables, local, d);
		}
		if (slot != EP_LL_NO_ROW) {
			uint32_t at = c.g.remote->places[d].here * EP_LL_STAGE_ROWS + slot -
				      ep_ll_remote_first_slot(tables, batch, d);

			h = c.g.own + batch.stage + c.areas.stage_header_off +
			    (size_t)at * a.header_bytes;
		}
		ep_ll_send_packet(a, op, s, d, share.packet, h);
	}
}

/* Does the span's token go to a remote peer? One warp. */
EP_DEV bool ep_ll_remote_goes(const struct ep_ll_common &c, const struct ep_ll_send_tables &tables,
			      uint32_t local)
{
	bool goes = false;

	for (uint32_t d = ep_lane(); d < c.g.nranks; d += EP_WARP_SIZE) {
		goes |= ep_rank_remote(c.g, d) && ep_ll_slot(tables, local, d) != EP_LL_NO_ROW;
	}
	return ep_any(EP_FULL_MASK, goes);
}

/* Headers of the batch, and its rows unless the NIC reads them from the caller's tensor. One block. */
template <bool FP8>
EP_DEV void ep_ll_remote_stage_batch(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				     const struct ep_ll_send_tables &tables,
				     const struct ep_ll_remote_batch &batch)
{
	const struct ep_ll_common &c = a.c;
	bool copied = FP8 || !a.source.addr;
	uint32_t part_quads = 0, parts = 1, repeats = *tables.repeats;

	if (copied) {
		parts = ep_ll_stage_parts(c, batch.n, FP8 ? EP_LL_TILE_QUADS : 1, &part_quads);
	}

	for (uint32_t i = ep_warp(); i < batch.n * parts; i += ep_nwarps()) {
		uint32_t n = i / parts, part = i - n * parts, first, end;
		unsigned char *row =
			c.g.own + batch.stage + (size_t)n * ep_ll_row_stride(c.row_quads, 0);

		if (!ep_ll_remote_goes(c, tables, batch.first + n)) {
			continue;
		}
		if (part == 0) {
			ep_ll_remote_stage_headers(a, op, tables, batch, n, repeats);
		}
		if (!copied) {
			continue;
		}
		ep_ll_part(c.row_quads, part_quads, part, &first, &end);
		ep_ll_remote_stage_part<FP8>(a, tables, batch.token + n, row, first, end);
	}
}

/* The batch's headers, rows and signal to own peer d. One warp. */
template <bool FP8>
EP_DEV void ep_ll_remote_post_tokens(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				     const struct ep_ll_send_tables &tables,
				     const struct ep_ll_remote_batch &batch, uint32_t d)
{
	const struct ep_ll_common &c = a.c;
	uint32_t slot = ep_lane() < batch.n ? ep_ll_slot(tables, batch.first + ep_lane(), d)
					    : EP_LL_NO_ROW;
	uint32_t rows = ep_popc(ep_ballot(EP_FULL_MASK, slot != EP_LL_NO_ROW));
	uint32_t stride = ep_ll_row_stride(c.row_quads, 0);

	if (!rows) {
		return;
	}
	const struct ep_remote_place *place = c.g.remote->places + d;
	uint32_t at = place->there * c.max_tokens + slot;
	struct ep_mlx5_post p = ep_remote_open(c.g, d, batch.channel);
	uint64_t headers =
		c.areas.bank_off[op.bank] + c.areas.packet_off + a.header_off +
		(uint64_t)(c.g.rank * c.max_tokens + ep_ll_remote_first_slot(tables, batch, d)) *
			a.header_bytes;

	struct ep_mlx5_mem from =
		ep_mlx5_local(&p, EP_MLX5_REGION_HEAP, batch.stage + (uint64_t)ep_lane() * stride);

	if (!FP8 && a.source.addr) { /* there is nothing behind the last row: it is not padded */
		from = ep_mlx5_source(&p, a.source,
				      (uint64_t)(batch.token + ep_lane()) * a.token_bytes);
	}
	p.timeout_ns = ep_remote_left(c.g, op, true);
	if (!ep_mlx5_put(&p, ep_lane() == 0, ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, headers),
			 ep_mlx5_local(&p, EP_MLX5_REGION_HEAP,
				       batch.stage + c.areas.stage_header_off +
					       (uint64_t)place->here * EP_LL_STAGE_ROWS *
						       a.header_bytes),
			 rows * a.header_bytes, true) ||
	    !ep_mlx5_put_signal(&p, slot != EP_LL_NO_ROW,
				ep_mlx5_remote(&p, EP_MLX5_REGION_HEAP,
					       ep_ll_remote_row(c, op, at)),
				from, !FP8 && a.source.addr ? a.token_bytes : stride,
				ep_remote_signal(c.g, p, d, batch.channel,
						 ep_remote_signal_off(c.g, batch.channel),
						 ep_remote_signal_word(op, batch.done)))) {
		ep_remote_failed(c.g, op, p, d, EP_WAIT_RDMA_SLOT);
	}
	ep_stage_mark(c.g, p, d, batch.channel, batch.side);
}

/*
 * Sends the rows of the span to remote peers, those of the channels index, index + stride, ...
 * One block; the span is marked. *side: where the next batch goes.
 */
template <bool FP8>
EP_DEV void ep_ll_remote_send_span(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				   const struct ep_ll_send_tables &tables,
				   const struct ep_ll_span &span, uint32_t index, uint32_t stride,
				   uint32_t *side)
{
	const struct ep_ll_common &c = a.c;

	for (uint32_t ch = index; ch < c.g.remote->channels; ch += stride) {
		uint32_t c0 = ch * c.channel_tokens;
		uint32_t end = ep_min_u32(c0 + c.channel_tokens, span.w0 + span.n);

		for (uint32_t at = ep_max_u32(c0, span.w0); at < end; at += EP_LL_STAGE_ROWS) {
			struct ep_ll_remote_batch b;

			b.channel = ch;
			b.side = *side;
			b.token = at;
			b.first = at - span.w0;
			b.n = ep_min_u32(end - at, EP_LL_STAGE_ROWS);
			b.done = at + b.n - c0;
			b.stage = ep_stage_off(c.g, ch, b.side);
			*side ^= 1;
			if (!ep_stage_claim(c.g, op, ch, b.side)) {
				return;
			}
			ep_ll_remote_stage_batch<FP8>(a, op, tables, b);
			ep_block_sync();
			for (uint32_t d = ep_remote_peer(c.g, ep_warp()); d < c.g.nranks;
			     d = ep_remote_peer(c.g, d + ep_nwarps())) {
				ep_ll_remote_post_tokens<FP8>(a, op, tables, b, d);
			}
		}
	}
}

#endif
