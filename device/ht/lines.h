/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, few tokens on one node: rows travel as lines (device/simt/simt.h), which need no
 * fence and no flag beside them. A rank's heap has a place for each row that may come, by the rank
 * that it comes from and its index. Nothing there is given free: all ranks have started a step
 * before anybody writes, so they have read what the step before left there.
 *
 * A unit of work is a *piece* of a row, up to EP_HT_LINE_BATCH quads, that one warp moves. Warps
 * that send take theirs in turn, and then receive. The block's receiving units lie in the order in
 * which rows come, and whichever warp is free takes the next one. Sending waits for nobody.
 */
#ifndef EP_DEVICE_HT_LINES_H
#define EP_DEVICE_HT_LINES_H

#include "device/group/quads.h"
#include "device/ht/units.h"

#define EP_HT_LINE_BATCH 4 /* vecs of a piece that a lane has */

/* The lane's vec of quads [first, end) of a row. */
struct ep_ht_vecs {
	struct ep_vec16 v[EP_HT_LINE_BATCH];
};

/* Where the lane's vec of a quad lies in a row. */
EP_DEV uint32_t ep_ht_vec_off(uint32_t quad)
{
	return quad * EP_QUAD_BYTES + ep_line_offset(ep_lane());
}

/* Quads of a piece. */
struct ep_ht_span {
	uint32_t first, end;
};

EP_DEV struct ep_ht_span ep_ht_span_make(const struct ep_ht_lines &lines, uint32_t piece)
{
	uint32_t first = piece * lines.piece_quads;
	struct ep_ht_span s = { first, ep_min_u32(first + lines.piece_quads, lines.quads) };

	return s;
}

/* Quad `quad` of the row with that index from rank r, or for it, in a heap. */
EP_DEV unsigned char *ep_ht_line_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r,
				    uint32_t index, uint32_t quad)
{
	size_t row = (size_t)r * c.max_tokens + index;

	return heap + c.areas.line_off + (row * c.areas.line_quads + quad) * EP_QUAD_LINE_BYTES;
}

/* The words with the weights of that row's selections: {weight, epoch}. */
EP_DEV unsigned char *ep_ht_line_weight_at(const struct ep_ht_common &c, unsigned char *heap,
					   uint32_t r, uint32_t index, uint32_t k)
{
	return heap + c.areas.line_weight_off +
	       8 * (((size_t)r * c.max_tokens + index) * c.width + k);
}

EP_DEV void ep_ht_lines_send(const struct ep_ht_common &c, const struct ep_op &op, uint32_t to,
			     uint32_t index, const struct ep_ht_span &span,
			     const struct ep_ht_vecs &vecs)
{
	unsigned char *row = ep_ht_line_at(c, ep_heap_of(c.g, to), c.g.rank, index, span.first);

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
		if (span.first + j < span.end) {
			ep_st_line(row + (size_t)j * EP_QUAD_LINE_BYTES, vecs.v[j], op.epoch,
				   op.epoch);
		}
	}
}

/* Nothing looks at what is loaded, so that all loads are on their way together. */
EP_DEV void ep_ht_lines_load(const unsigned char *row, const struct ep_ht_span &span,
			     struct ep_ht_vecs *vecs)
{
	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
		if (span.first + j < span.end) {
			ep_ld_line(row + (size_t)j * EP_QUAD_LINE_BYTES, &vecs->v[j]);
		}
	}
}

/*
 * Waits until what ep_ht_lines_load() looked at has come from rank `peer`; `word`: and a word of
 * the lane, if there is one, to *weight. False: that rank does not come. One warp.
 */
EP_DEV bool ep_ht_lines_wait(const struct ep_ht_common &c, const struct ep_op &op,
			     const unsigned char *row, const struct ep_ht_span &span, uint32_t peer,
			     const unsigned char *word, uint32_t *weight, struct ep_ht_vecs *vecs)
{
	struct ep_spin s = ep_spin_start();

	for (;;) {
		bool have = !word || ep_ld_word(word, op.epoch, weight), over = false;

		EP_UNROLL()
		for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
			have &= span.first + j >= span.end ||
				ep_line_has(vecs->v[j], op.epoch, op.epoch);
		}
		if (ep_all(EP_FULL_MASK, have)) {
			break;
		}
		if (ep_lane() == 0) {
			over = ep_ht_give_up<false>(c, op, &s, EP_WAIT_HT_ROWS, peer);
		}
		if (ep_any(EP_FULL_MASK, over)) {
			return false;
		}
		ep_ht_lines_load(row, span, vecs);
	}
	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
		if (span.first + j < span.end) {
			ep_ld_line_settle(row + (size_t)j * EP_QUAD_LINE_BYTES, &vecs->v[j]);
		}
	}
	return true;
}

/* ---- who takes which unit ---- */

/* A unit that is sent: of the warp's `turn`-th turn. */
EP_DEV uint32_t ep_ht_send_unit(const struct ep_ht_lines &lines, uint32_t turn)
{
	return (turn * lines.send_warps + ep_warp()) * ep_nblocks() + ep_block();
}

/* The block's next unit that is received; *next is in shared memory. One warp. */
EP_DEV uint32_t ep_ht_unit_take(uint32_t *next)
{
	uint32_t i = ep_lane() == 0 ? ep_shared_add_u32(next, 1) : 0;

	return ep_shfl_u32(EP_FULL_MASK, i, 0) * ep_nblocks() + ep_block();
}

/* The most rows that come from one of the others, or go back to it. One warp. */
EP_DEV uint32_t ep_ht_most_from(const struct ep_ht_common &c)
{
	uint32_t most = 0;

	for (uint32_t r = ep_lane(); r < c.g.nranks; r += EP_WARP_SIZE) {
		if (r != c.g.rank) {
			most = ep_max_u32(most, c.h.recv_base[r + 1] - c.h.recv_base[r]);
		}
	}
	for (uint32_t lanes = 1; lanes < EP_WARP_SIZE; lanes *= 2) {
		most = ep_max_u32(most, ep_shfl_xor_u32(EP_FULL_MASK, most, lanes));
	}
	return most;
}

/* A row that comes from another rank, or goes back to it, and a piece of it. */
struct ep_ht_row_piece {
	uint32_t source;
	uint32_t index; /* of the row from there */
	uint32_t slot;
	uint32_t piece;
	bool there; /* the source has so many rows */
};

/* Unit `unit`, if the others take turns: rank r begins with the one behind it. */
EP_DEV struct ep_ht_row_piece ep_ht_row_piece_make(const struct ep_ht_common &c,
						   const struct ep_ht_lines &lines, uint32_t unit)
{
	uint32_t turn = ep_div(unit, lines.by_pieces), base;
	struct ep_ht_row_piece p;

	p.piece = unit - turn * lines.by_pieces.d;
	p.index = turn / c.roles.others;
	p.source = c.roles.first_source + turn - p.index * c.roles.others;
	p.source -= p.source >= c.roles.source_end ? c.roles.senders : 0;
	base = c.h.recv_base[p.source];
	p.slot = base + p.index;
	p.there = p.slot < c.h.recv_base[p.source + 1];
	return p;
}

#endif
