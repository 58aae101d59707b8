/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: ncclEpCombine of few flat tokens on one node, whose rows travel as lines. A rank
 * sends its rows back to their sources. A source adds what it gets for a token, and its own, in the
 * order of ranks.
 */
#include "device/ht/formats.h"
#include "device/ht/lines.h"
#include "device/ht/step.h"

#include "device/kernels.h"

/* The lane's vecs as sums. */
template <class F> struct ht_sums {
	float f[EP_HT_LINE_BATCH][F::sums];
};

template <class F> EP_DEV void sums_clear(struct ht_sums<F> *sums)
{
	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
		EP_UNROLL()
		for (uint32_t i = 0; i < F::sums; i++) {
			sums->f[j][i] = 0.0f;
		}
	}
}

/* Adds vecs; the first ones are the sums then. */
template <class F>
EP_DEV void sums_add(struct ht_sums<F> *sums, const struct ep_ht_vecs &vecs, bool first)
{
	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
		struct ep_vec8 lo = { vecs.v[j].x, vecs.v[j].y }, hi = { vecs.v[j].z, vecs.v[j].w };
		float f[F::sums];

		F::numbers::load(lo, f);
		F::numbers::load(hi, f + F::numbers::count);
		EP_UNROLL()
		for (uint32_t i = 0; i < F::sums; i++) {
			sums->f[j][i] = first ? f[i] : sums->f[j][i] + f[i];
		}
	}
}

/* Rounds. */
template <class F> EP_DEV void sums_round(const struct ht_sums<F> &sums, struct ep_ht_vecs *vecs)
{
	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
		struct ep_vec8 lo = F::numbers::store(sums.f[j]);
		struct ep_vec8 hi = F::numbers::store(sums.f[j] + F::numbers::count);

		vecs->v[j] = { lo.x, lo.y, hi.x, hi.y };
	}
}

/* The lane's vecs of a row of the caller's tensor. Nothing waits for what is loaded. */
EP_DEV void tensor_load(const struct ep_ht_combine_args &a, uint32_t row,
			const struct ep_ht_span &span, struct ep_ht_vecs *vecs)
{
	const unsigned char *from = a.tokens + (size_t)row * a.token_bytes;

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
		uint32_t off = ep_ht_vec_off(span.first + j);

		vecs->v[j] = {};
		if (span.first + j < span.end && off < a.token_bytes) {
			vecs->v[j] = ep_quad_load(from + off, ep_quad_narrow(), true);
		}
	}
}

/* ---- returned ---- */

/* A piece of a row that goes back to its source: loads on their way. */
struct ht_return {
	struct ep_ht_row_piece p;
	struct ep_ht_vecs vecs;
};

/* The warp's next one, from its turn *turn on; p.there is false behind the last one. */
EP_DEV struct ht_return return_next(const struct ep_ht_combine_args &a, uint32_t returns,
				    uint32_t *turn)
{
	struct ht_return r = {};

	while (!r.p.there) {
		uint32_t unit = ep_ht_send_unit(a.lines, (*turn)++);

		if (unit >= returns) {
			return r;
		}
		r.p = ep_ht_row_piece_make(a.c, a.lines, unit);
	}
	tensor_load(a, r.p.slot, ep_ht_span_make(a.lines, r.p.piece), &r.vecs);
	return r;
}

/* Sends all that is the warp's: `next`, and what follows. */
EP_DEV void rows_return(const struct ep_ht_combine_args &a, const struct ep_op &op,
			uint32_t returns, struct ht_return next, uint32_t turn)
{
	while (next.p.there) {
		struct ht_return now = next;

		next = return_next(a, returns, &turn);
		ep_ht_lines_send(a.c, op, now.p.source, now.p.index,
				 ep_ht_span_make(a.lines, now.p.piece), now.vecs);
	}
}

/* ---- added ---- */

/* A unit of sums: a piece of one of this rank's tokens, with its list: loads on their way. */
struct ht_added {
	uint32_t token;
	uint32_t piece;
	uint32_t sel; /* lane k: the k-th of the token's list */
	uint32_t row;
};

EP_DEV struct ht_added added_load(const struct ep_ht_combine_args &a, uint32_t unit, uint32_t units)
{
	const struct ep_ht_common &c = a.c;
	struct ht_added t = { 0, 0, EP_HT_NONE, EP_HT_NONE };

	if (unit >= units) {
		return t;
	}
	t.token = ep_div(unit, a.lines.by_pieces);
	t.piece = unit - t.token * a.lines.by_pieces.d;
	if (ep_lane() < c.topk) {
		t.sel = c.h.send_sel[(size_t)t.token * c.topk + ep_lane()];
		t.row = c.h.send_row[(size_t)t.token * c.topk + ep_lane()];
	}
	return t;
}

/* To the token's row of the result. */
EP_DEV void result_store(const struct ep_ht_combine_args &a, uint32_t token,
			 const struct ep_ht_span &span, const struct ep_ht_vecs &vecs)
{
	unsigned char *to = a.out_tokens + (size_t)token * a.token_bytes;

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_LINE_BATCH; j++) {
		uint32_t off = ep_ht_vec_off(span.first + j);

		if (span.first + j < span.end && off < a.token_bytes) {
			ep_quad_store(to + off, vecs.v[j], ep_quad_narrow());
		}
	}
}

/* What one rank has of the piece. */
struct ht_share {
	const unsigned char *row; /* lines; NULL: it is this rank's */
	uint32_t rank;
	struct ep_ht_vecs vecs; /* of lines, as they were at a look */
};

/* That of the lane's rank and row. A look at lines waits for nothing. */
EP_DEV struct ht_share share_load(const struct ep_ht_common &c, uint32_t rank, uint32_t row,
				  uint32_t lane, const struct ep_ht_span &span)
{
	uint32_t index = ep_shfl_u32(EP_FULL_MASK, row, lane);
	struct ht_share s = { NULL, ep_shfl_u32(EP_FULL_MASK, rank, lane), {} };

	if (s.rank != c.g.rank) {
		s.row = ep_ht_line_at(c, c.g.own, s.rank, index, span.first);
		ep_ht_lines_load(s.row, span, &s.vecs);
	}
	return s;
}

/* Adds what all ranks have of the piece, in their order. False: something does not come. */
template <class F>
EP_DEV bool token_add(const struct ep_ht_combine_args &a, const struct ep_op &op,
		      const struct ht_added &t)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_span span = ep_ht_span_make(a.lines, t.piece);
	bool there = t.sel != EP_HT_NONE && t.row != EP_HT_NONE, first = true;
	uint32_t rank = there ? ep_ht_sel_rank(c, t.sel) : EP_HT_NONE;
	uint32_t before = ep_shfl_u32(EP_FULL_MASK, rank, (ep_lane() + 31) & 31);
	uint32_t left = ep_ballot(EP_FULL_MASK, there && (ep_lane() == 0 || before != rank));
	uint32_t mine = ep_ballot(EP_FULL_MASK, rank == c.g.rank);
	struct ep_ht_vecs own = {};
	struct ht_share next = {};
	struct ht_sums<F> sums;

	if (mine) {
		uint32_t index = ep_shfl_u32(EP_FULL_MASK, t.row, ep_ctz(mine));

		tensor_load(a, c.h.send_base[c.g.rank] + index, span, &own);
	}
	sums_clear<F>(&sums);
	if (left) {
		next = share_load(c, rank, t.row, ep_ctz(left), span);
	}
	while (left) {
		struct ht_share now = next;

		left &= left - 1;
		if (left) { /* on its way while this one is added */
			next = share_load(c, rank, t.row, ep_ctz(left), span);
		}
		if (!now.row) {
			sums_add<F>(&sums, own, first);
		} else if (ep_ht_lines_wait(c, op, now.row, span, now.rank, NULL, NULL,
					    &now.vecs)) {
			sums_add<F>(&sums, now.vecs, first);
		} else {
			return false;
		}
		first = false;
	}
	sums_round<F>(sums, &own);
	result_store(a, t.token, span, own);
	return true;
}

/* Adds what no other warp of the block has taken; ends where something does not come. */
template <class F>
EP_DEV void tokens_add(const struct ep_ht_combine_args &a, const struct ep_op &op, uint32_t *next)
{
	uint32_t adds = a.c.num_tokens * a.lines.by_pieces.d, unit = ep_ht_unit_take(next);
	struct ht_added then = added_load(a, unit, adds);

	while (unit < adds) {
		struct ht_added now = then;

		unit = ep_ht_unit_take(next);
		then = added_load(a, unit, adds);
		if (!token_add<F>(a, op, now)) {
			return;
		}
	}
}

template <class F> EP_DEV void ep_ht_combine_lines(const struct ep_ht_combine_args &a)
{
	struct ep_ht_entry e = ep_ht_enter(a.c, true);
	uint32_t returns = 0, turn = 0;
	struct ht_return first = {};
	EP_SHARED(uint32_t, next);

	if (ep_tid() == 0) {
		next = 0;
	}
	if (!e.fault && ep_warp() < a.lines.send_warps) { /* this rank's own memory */
		returns = ep_ht_most_from(a.c) * a.c.roles.others * a.lines.by_pieces.d;
		first = return_next(a, returns, &turn);
	}
	if (ep_ht_begin<false>(a.c, &e)) {
		rows_return(a, e.op, returns, first, turn);
		tokens_add<F>(a, e.op, &next);
	}
}

#define EP_HT_COMBINE_LINES(name, dtype)                                                           \
	EP_KERNEL_ALONE(name, ep_ht_combine_args, EP_HT_COMBINE_THREADS)                           \
	{                                                                                          \
		ep_ht_combine_lines<ep_ht_numbers<dtype>>(a);                                      \
	}

EP_HT_COMBINE_LINES(ep_ht_combine_bf16_lines_kernel, EP_BF16)
EP_HT_COMBINE_LINES(ep_ht_combine_fp16_lines_kernel, EP_FP16)
EP_HT_COMBINE_LINES(ep_ht_combine_fp32_lines_kernel, EP_FP32)
