/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput: ncclEpDispatch of few tokens on one node, whose rows travel as lines. */
#include "device/ht/dispatch.h"
#include "device/ht/lines.h"
#include "device/ht/step.h"
#include "device/simt/numeric.h"

#include "device/kernels.h"

/* ---- the lane's vecs of a row in tensors ---- */

/* Of a token and its scales. Nothing waits for what is loaded. */
EP_DEV void token_load(const struct ep_ht_dispatch_args &a, uint32_t token,
		       const struct ep_ht_span &span, struct ep_ht_vecs *vecs)
{
	const unsigned char *from = a.tokens + (size_t)token * a.token_bytes;
	const unsigned char *scales = a.scales + (size_t)token * a.scale_bytes - a.token_bytes;

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
		uint32_t off = ep_ht_vec_off(span.first + j);

		if (span.first + j < span.end && off < a.token_bytes + a.scale_bytes) {
			vecs->v[j] = ep_quad_load((off < a.token_bytes ? from : scales) + off,
						  ep_quad_narrow(), true);
		}
	}
}

/* To row `row` of the outputs. */
EP_DEV void row_store(const struct ep_ht_dispatch_args &a, uint32_t row,
		      const struct ep_ht_span &span, const struct ep_ht_vecs &vecs)
{
	unsigned char *to = a.out_tokens + (size_t)row * a.token_bytes;
	unsigned char *scales = a.out_scales + (size_t)row * a.scale_bytes - a.token_bytes;

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
		uint32_t off = ep_ht_vec_off(span.first + j);

		if (span.first + j < span.end && off < a.token_bytes + a.scale_bytes) {
			ep_quad_store((off < a.token_bytes ? to : scales) + off, vecs.v[j],
				      ep_quad_narrow());
		}
	}
}

/* ---- sent ---- */

/* A unit that is sent, with what its stores need: loads on their way. */
struct ht_sent {
	uint32_t token;
	uint32_t piece;
	struct ep_ht_vecs vecs;
	struct ep_ht_list l; /* of the token */
};

EP_DEV struct ht_sent sent_load(const struct ep_ht_dispatch_args &a, uint32_t unit)
{
	struct ht_sent s = {};

	s.token = ep_div(unit, a.lines.by_pieces);
	s.piece = unit - s.token * a.lines.by_pieces.d;
	token_load(a, s.token, ep_ht_span_make(a.lines, s.piece), &s.vecs);
	s.l = ep_ht_send_list(a.c, s.token);
	return s;
}

/* The weights of a token's selections: to the heaps of ranks, and to this rank's own outputs. */
EP_DEV void sent_weights(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			 const struct ht_sent &s, uint32_t rank)
{
	const struct ep_ht_common &c = a.c;
	bool counts = rank != EP_HT_NONE && !(s.l.sel & EP_HT_SEL_AGAIN);
	uint32_t d = counts ? rank : EP_HT_NONE, at, own, slot;
	float w = counts ? a.topk_weights[(size_t)s.token * c.topk + EP_HT_SEL_K(s.l.sel)] : 0.0f;

	at = ep_match_u32(EP_FULL_MASK, counts ? d : ~ep_lane());
	at = ep_popc(at & ((1u << ep_lane()) - 1));
	own = ep_ballot(EP_FULL_MASK, d == c.g.rank);
	slot = c.h.send_base[c.g.rank] + ep_shfl_u32(EP_FULL_MASK, s.l.row, own ? ep_ctz(own) : 0);
	if (counts && d != c.g.rank) {
		ep_st_word(ep_ht_line_weight_at(c, ep_heap_of(c.g, d), c.g.rank, s.l.row, at),
			   ep_f32_bits(w), op.epoch);
	}
	if (!own) {
		return;
	}
	if (c.layout == EP_HT_FLAT) {
		if (d == c.g.rank) {
			entry_out(a, slot, at,
				  EP_HT_SEL_EXPERT(s.l.sel) - c.roles.holder * c.nlocal, w);
		}
		if (ep_lane() < c.topk && ep_lane() >= ep_popc(own)) {
			entry_out(a, slot, ep_lane(), EP_HT_NONE, 0.0f);
		}
	} else if (d == c.g.rank && s.l.place != EP_HT_NONE) {
		a.out_weights[s.l.place] = w;
	}
}

/* The piece to every rank that wants it, the next one first, and to this rank's own outputs. */
EP_DEV void sent_store(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
		       const struct ht_sent &s)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_span span = ep_ht_span_make(a.lines, s.piece);
	bool there = s.l.sel != EP_HT_NONE && s.l.row != EP_HT_NONE, own, first;
	uint32_t rank = there ? ep_ht_sel_rank(c, s.l.sel) : EP_HT_NONE, now, rest, row;
	uint32_t before = ep_shfl_u32(EP_FULL_MASK, rank, (ep_lane() + 31) & 31);

	own = there && rank == c.g.rank;
	first = there && (ep_lane() == 0 || before != rank);
	rest = ep_ballot(EP_FULL_MASK, first && !own);
	now = ep_ballot(EP_FULL_MASK, first && rank > c.g.rank);
	rest &= ~now;
	while (now | rest) {
		uint32_t lane = ep_ctz(now ? now : rest);

		ep_ht_lines_send(c, op, ep_shfl_u32(EP_FULL_MASK, rank, lane),
				 ep_shfl_u32(EP_FULL_MASK, s.l.row, lane), span, s.vecs);
		rest = now ? rest : rest & (rest - 1);
		now &= now - 1;
	}
	row = c.layout == EP_HT_FLAT ? c.h.send_base[c.g.rank] + s.l.row : s.l.place;
	if (c.layout != EP_HT_FLAT) {
		first = !(s.l.sel & EP_HT_SEL_AGAIN) && s.l.place != EP_HT_NONE;
	}
	for (rest = ep_ballot(EP_FULL_MASK, first && own); rest; rest &= rest - 1) {
		row_store(a, ep_shfl_u32(EP_FULL_MASK, row, ep_ctz(rest)), span, s.vecs);
	}
	if (s.piece == 0 && a.topk_weights) {
		sent_weights(a, op, s, rank);
	}
}

/* ---- received ---- */

/* A unit that comes, with what this rank's tables say of its row: loads on their way. */
struct ht_come {
	struct ep_ht_row_piece p;
	uint32_t sel; /* lane k: recv_sel */
};

EP_DEV struct ht_come come_load(const struct ep_ht_dispatch_args &a, uint32_t unit, uint32_t units)
{
	const struct ep_ht_common &c = a.c;
	struct ht_come r = {};

	r.sel = EP_HT_NONE;
	if (unit >= units) {
		return r;
	}
	r.p = ep_ht_row_piece_make(c, a.lines, unit);
	if (r.p.there && ep_lane() < c.width &&
	    (c.layout == EP_HT_EXPERT_MAJOR || (r.p.piece == 0 && a.topk_weights))) {
		r.sel = c.h.recv_sel[(size_t)r.p.slot * c.width + ep_lane()];
	}
	return r;
}

/* Waits for the piece and puts it to its places. False: it does not come. */
EP_DEV bool come_store(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
		       const struct ht_come &r)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_span span = ep_ht_span_make(a.lines, r.p.piece);
	const unsigned char *row = ep_ht_line_at(c, c.g.own, r.p.source, r.p.index, span.first);
	bool weights = r.p.piece == 0 && a.topk_weights, flat = c.layout == EP_HT_FLAT;
	const unsigned char *word = NULL;
	struct ep_ht_vecs vecs;
	uint32_t weight = 0;

	ep_ht_lines_load(row, span, &vecs);
	if (weights && r.sel != EP_HT_NONE) {
		word = ep_ht_line_weight_at(c, c.g.own, r.p.source, r.p.index, ep_lane());
	}
	if (!ep_ht_lines_wait(c, op, row, span, r.p.source, word, &weight, &vecs)) {
		return false;
	}
	if (flat) {
		row_store(a, r.p.slot, span, vecs);
	} else {
		uint32_t places = ep_ballot(EP_FULL_MASK, r.sel < EP_HT_DROPPED);

		for (; places; places &= places - 1) {
			row_store(a, ep_shfl_u32(EP_FULL_MASK, r.sel, ep_ctz(places)), span, vecs);
		}
	}
	if (weights && flat && ep_lane() < c.topk) {
		entry_out(a, r.p.slot, ep_lane(), r.sel, ep_bits_f32(weight));
	} else if (weights && !flat && r.sel < EP_HT_DROPPED) {
		a.out_weights[r.sel] = ep_bits_f32(weight);
	}
	return true;
}

/* All units of this warp; `sent`: its first one, if it sends. False: a wait has failed. */
EP_DEV bool lines_move(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
		       struct ht_sent sent, uint32_t *next)
{
	const struct ep_ht_common &c = a.c;
	uint32_t sends = c.num_tokens * a.lines.by_pieces.d;
	uint32_t comes = ep_ht_most_from(c) * c.roles.others * a.lines.by_pieces.d, unit;
	struct ht_come now, then;

	if (ep_warp() < a.lines.send_warps) {
		for (uint32_t turn = 0; ep_ht_send_unit(a.lines, turn) < sends; turn++) {
			if (turn) {
				sent = sent_load(a, ep_ht_send_unit(a.lines, turn));
			}
			sent_store(a, op, sent);
		}
	}
	unit = ep_ht_unit_take(next);
	now = come_load(a, unit, comes);
	while (unit < comes) {
		uint32_t behind = ep_ht_unit_take(next);

		then = come_load(a, behind, comes);
		if (now.p.there && !come_store(a, op, now)) {
			return false;
		}
		unit = behind;
		now = then;
	}
	return true;
}

EP_KERNEL_ALONE(ep_ht_dispatch_lines_kernel, ep_ht_dispatch_args, EP_HT_MAX_THREADS)
{
	struct ep_ht_entry entry = ep_ht_enter(a.c, false);
	struct ep_ht_pipe pipe = ep_ht_pipe_make(a.stage_parts, a.part_bytes);
	uint32_t first = ep_ht_send_unit(a.lines, 0);
	struct ht_sent sent = {};
	bool ok;
	EP_SHARED(uint32_t, next);

	if (ep_tid() == 0) {
		next = 0;
	}
	if (!entry.fault && ep_warp() < a.lines.send_warps &&
	    first < a.c.num_tokens * a.lines.by_pieces.d) {
		sent = sent_load(a, first); /* this rank's own memory */
	}
	ok = ep_ht_begin<false>(a.c, &entry) && lines_move(a, entry.op, sent, &next);
	if (ok && a.c.layout == EP_HT_EXPERT_MAJOR) {
		ep_ht_zero(a, &pipe);
	}
	if (ok && a.c.layout == EP_HT_FLAT && a.topk_weights) {
		ep_ht_entries_fill(a);
	}
	if (ok && ep_block() == 0 && ep_warp() == 1) { /* peers do not wait for it */
		ep_ht_dispatch_count(a);
		ep_ht_counters_leave(a);
	}
}
