/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch, receive half: the counts of all sources, and what follows from them; then
 * rows, part by part, to each local expert's row.
 */
#ifndef EP_DEVICE_LL_DISPATCH_RECV_H
#define EP_DEVICE_LL_DISPATCH_RECV_H

#include "device/group/remote.h"
#include "device/group/step.h"
#include "device/group/wait.h"
#include "device/ll/dispatch_send.h"
#include "device/ll/rows.h"

/* A block's state of a source; see device/group/wait.h. */
enum ep_ll_source_state {
	EP_LL_SOURCE_HERE,   /* its counts are awaited, or here */
	EP_LL_SOURCE_ABSENT, /* as all blocks agree */
	EP_LL_SOURCE_DOUBT   /* for this block it has failed; the blocks have to agree. A bit */
};

/* Block-shared tables of the receive half. */
struct ep_ll_recv_tables {
	uint32_t *base;           /* [S][L] first row of the source among the expert's rows */
	uint32_t *rows;           /* [R] rows from the source */
	uint32_t *parts;          /* [R] parts of the source's rows */
	uint32_t *return_parts;   /* [R] and of those that return to it */
	uint32_t *state;          /* [R] enum ep_ll_source_state */
	uint32_t *channel_tokens; /* [R] of the source */
};

/* Control packet `which` of source r, and count i, of S * L, in this rank's heap. */
EP_DEV const unsigned char *ll_ctrl(const struct ep_ll_common &c, const struct ep_op &op,
				    uint32_t r, uint32_t which)
{
	return ep_ll_packets(c, op, c.g.own) + (size_t)ep_ll_source_of(c, r) * EP_LL_CTRL_BYTES +
	       16 * which;
}

EP_DEV const unsigned char *ll_count(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				     uint32_t i)
{
	return ep_ll_packets(a.c, op, a.c.g.own) + a.count_off + 8 * (size_t)i;
}

EP_DEV struct ep_ll_recv_tables recv_tables_make(const struct ep_ll_common &c)
{
	struct ep_ll_recv_tables t;

	t.base = (uint32_t *)ep_dynamic_shared();
	t.rows = t.base + c.from.by_count.d * c.nlocal;
	t.parts = t.rows + c.g.nranks;
	t.return_parts = t.parts + c.g.nranks;
	t.state = t.return_parts + c.g.nranks;
	t.channel_tokens = t.state + c.g.nranks;
	return t;
}

/*
 * Takes control packet `which` of source r, which has arrived. The second shows whether the source
 * runs the same operation; false: it does not.
 */
EP_DEV bool ctrl_take(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
		      const struct ep_ll_recv_tables &tables, uint32_t r, uint32_t which,
		      uint32_t d0, uint32_t d1)
{
	const struct ep_ll_common &c = a.c;

	if (which == 0) {
		tables.rows[r] = ep_min_u32(d0, c.max_tokens);
		tables.parts[r] = d1 & 0xffff;
		tables.return_parts[r] = d1 >> 16;
		return true;
	}
	tables.channel_tokens[r] = ep_max_u32(d0, 1);
	if (d1 != c.launch.sent_hash) {
		ep_mask_peer(c.g, op, EP_CAUSE_MISMATCH, EP_WAIT_DISPATCH_COUNT, r, op.epoch, 0);
		return false;
	}
	return true;
}

/* Have all counts of source r arrived? Takes them as it finds them. One warp. */
EP_DEV bool counts_poll(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			const struct ep_ll_recv_tables &tables, uint32_t r)
{
	const struct ep_ll_common &c = a.c;
	uint32_t counts = c.layout == EP_LL_EXPERT_MAJOR ? c.nlocal : 0;
	bool have = true;

	for (uint32_t e = ep_lane(); e < counts; e += EP_WARP_SIZE) {
		uint32_t i = ep_ll_source_of(c, r) * c.nlocal + e;

		have &= ep_ld_word(ll_count(a, op, i), op.epoch, &tables.base[i]);
	}
	if (ep_lane() < 2) {
		uint32_t d0 = 0, d1 = 0;

		have &= ep_ld_packet(ll_ctrl(c, op, r, ep_lane()), op.epoch, &d0, &d1) &&
			ctrl_take(a, op, tables, r, ep_lane(), d0, d1);
	}
	return ep_all(EP_FULL_MASK, have);
}

/*
 * Keeps source r's counts in the first receiving block: for combine, for the caller, for
 * statistics.
 */
EP_DEV void recv_remember(const struct ep_ll_dispatch_args &a,
			  const struct ep_ll_recv_tables &tables, uint32_t r, uint64_t waited)
{
	const struct ep_ll_common &c = a.c;
	struct ep_peer_stats *s = &c.g.stats[r];

	c.h.src_rows[r] = tables.rows[r];
	c.h.src_parts[r] = tables.return_parts[r];
	if (a.src_counts) {
		a.src_counts[ep_ll_source_of(c, r)] = (int32_t)tables.rows[r];
	}
	s->wait_ns += waited;
	s->wait_max_ns = waited > s->wait_max_ns ? waited : s->wait_max_ns;
	s->rx_rows += tables.rows[r];
	s->rx_bytes += (uint64_t)tables.rows[r] *
		       ep_ll_row_stride(c.row_quads, c.lines && !ep_rank_remote(c.g, r));
	s->ops++;
}

#define EP_LL_RECV_BATCH 8 /* sources whose counts are loaded before they are added */

/* First rows of expert e's sources, from their counts. Returns the expert's rows. One thread. */
EP_DEV uint32_t recv_expert(const struct ep_ll_common &c, const struct ep_ll_recv_tables &tables,
			    uint32_t e)
{
	uint32_t sum = 0;

	for (uint32_t r0 = c.from.first; r0 < c.from.end; r0 += EP_LL_RECV_BATCH) {
		uint32_t n[EP_LL_RECV_BATCH], at = ep_ll_source_of(c, r0) * c.nlocal + e;

		EP_UNROLL()
		for (int i = 0; i < EP_LL_RECV_BATCH; i++) {
			uint32_t r = r0 + i;

			n[i] = r < c.from.end && tables.state[r] == EP_LL_SOURCE_HERE
				       ? ep_min_u32(tables.base[at + i * c.nlocal],
						    c.max_tokens * c.topk)
				       : 0;
		}
		EP_UNROLL()
		for (int i = 0; i < EP_LL_RECV_BATCH; i++) {
			if (r0 + i < c.from.end) {
				tables.base[at + i * c.nlocal] = sum;
				sum += n[i];
			}
		}
	}
	return ep_min_u32(sum, c.expert_rows);
}

EP_DEV void recv_tables_clear(const struct ep_ll_common &c, const struct ep_op &op,
			      const struct ep_ll_recv_tables &tables, uint32_t *failed)
{
	for (uint32_t r = c.from.first + ep_tid(); r < c.from.end; r += ep_nthreads()) {
		tables.state[r] = EP_LL_SOURCE_HERE;
		if (!ep_mask_active(c.g, r)) {
			tables.state[r] = ep_arrival_masked_before(c.g, op, r) ? EP_LL_SOURCE_ABSENT
									       : EP_LL_SOURCE_DOUBT;
		}
		tables.rows[r] = 0;
		tables.parts[r] = 0;
		tables.return_parts[r] = 0;
	}
	if (ep_tid() == 0) {
		*failed = 0;
	}
	ep_block_sync();
}

/*
 * Source r, which was here or in doubt, has failed for this block. Other threads may find the same.
 */
EP_DEV void source_fail(const struct ep_ll_recv_tables &tables, uint32_t r, uint32_t *failed)
{
	ep_shared_or_u32(&tables.state[r], EP_LL_SOURCE_DOUBT);
	ep_shared_or_u32(failed, 1);
}

/* Awaits every source's counts. *failed is set when a source fails; a barrier must follow. */
template <bool REMOTE>
EP_DEV void recv_counts(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			const struct ep_ll_recv_tables &tables, uint32_t *failed)
{
	const struct ep_ll_common &c = a.c;
	uint32_t sources = c.from.end - c.from.first;
	uint32_t counts = c.layout == EP_LL_EXPERT_MAJOR ? sources * c.nlocal : 0;

	for (uint32_t i = ep_tid(); i < counts; i += ep_nthreads()) {
		uint32_t r = c.from.first + ep_div(i, c.by_local);

		if (ep_shared_ld_u32(&tables.state[r]) == EP_LL_SOURCE_HERE &&
		    !ep_wait_word<REMOTE>(c.g, op, ll_count(a, op, i), &tables.base[i],
					  EP_WAIT_DISPATCH_COUNT, r)) {
			source_fail(tables, r, failed);
		}
	}
	/* the last threads, which have fewer counts to await; two for each source */
	for (uint32_t j = ep_nthreads() - 1 - ep_tid(); j < 2 * sources; j += ep_nthreads()) {
		uint32_t r = c.from.first + (j >> 1), state = ep_shared_ld_u32(&tables.state[r]);
		uint32_t d0 = 0, d1 = 0;

		if (state == EP_LL_SOURCE_DOUBT ||
		    (state == EP_LL_SOURCE_HERE &&
		     !(ep_wait_packet<REMOTE>(c.g, op, ll_ctrl(c, op, r, j & 1), &d0, &d1,
					      EP_WAIT_DISPATCH_COUNT, r) &&
		       ctrl_take(a, op, tables, r, j & 1, d0, d1)))) {
			source_fail(tables, r, failed);
		}
	}
}

/* The blocks agree about source r, which is in doubt here. One warp. */
EP_DEV void recv_agree(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
		       const struct ep_ll_recv_tables &tables, uint32_t r)
{
	const struct ep_dev_group &g = a.c.g;
	uint32_t verdict = ep_lane() == 0 ? ep_arrival_claim(g, op, r) : 0;
	bool here;

	verdict = ep_shfl_u32(EP_FULL_MASK, verdict, 0);
	here = verdict != EP_ARRIVAL_ABSENT && counts_poll(a, op, tables, r);
	if (ep_lane() == 0) {
		if (verdict == EP_ARRIVAL_CLAIMED) {
			ep_arrival_decide(g, op, r, here);
		}
		if (!here) {
			ep_arrival_settle(g, op, r);
		}
		tables.state[r] = here ? EP_LL_SOURCE_HERE : EP_LL_SOURCE_ABSENT;
	}
}

/*
 * Adopts the decision about source r. False: it is here for this block, and absent. The tables
 * stay as they are: other warps may not have looked yet.
 */
EP_DEV_COLD bool ep_ll_decision_adopt(const struct ep_ll_dispatch_args &a, struct ep_op op,
				      struct ep_ll_recv_tables tables, uint32_t r)
{
	return tables.state[r] != EP_LL_SOURCE_HERE ||
	       ep_arrival_adopt(a.c.g, op, r) != EP_ARRIVAL_ABSENT;
}

/*
 * Settles what is in doubt, and leaves out sources that are here for this block and absent for
 * others. One block, behind a barrier; false when the group is aborted.
 */
EP_DEV_COLD bool ep_ll_recv_settle(const struct ep_ll_dispatch_args &a, struct ep_op op,
				   struct ep_ll_recv_tables tables)
{
	const struct ep_ll_common &c = a.c;
	EP_SHARED(uint32_t, stop);

	for (uint32_t r = c.from.first + ep_warp(); c.g.mask_enabled && r < c.from.end;
	     r += ep_nwarps()) {
		uint32_t state = tables.state[r];

		ep_warp_sync(EP_FULL_MASK); /* one lane changes it now */
		if (state == EP_LL_SOURCE_DOUBT) {
			recv_agree(a, op, tables, r);
		} else if (ep_lane() == 0 && ep_arrival_decided(op, ep_arrival_load(c.g, r)) &&
			   !ep_ll_decision_adopt(a, op, tables, r)) {
			tables.state[r] = EP_LL_SOURCE_ABSENT;
		}
	}
	ep_block_sync();
	if (ep_tid() == 0) {
		stop = ep_aborted(c.g);
	}
	for (uint32_t r = c.from.first + ep_tid(); r < c.from.end; r += ep_nthreads()) {
		tables.rows[r] = tables.state[r] == EP_LL_SOURCE_HERE ? tables.rows[r] : 0;
	}
	ep_block_sync();
	return !stop;
}

/* Turns the counts into first rows. Holds barriers; false when the group is aborted. */
EP_DEV bool recv_resolve(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			 const struct ep_ll_recv_tables &tables, bool remembers,
			 const uint32_t *failed)
{
	const struct ep_ll_common &c = a.c;
	bool expert_major = c.layout == EP_LL_EXPERT_MAJOR;

	ep_block_sync();
	if (*failed && !ep_ll_recv_settle(a, op, tables)) {
		return false;
	}
	for (uint32_t e = ep_tid(); expert_major && e < c.held; e += ep_nthreads()) {
		uint32_t rows = recv_expert(c, tables, e);

		if (remembers) {
			c.h.counts[e] = rows;
			a.expert_counts[e] = (int32_t)rows;
		}
	}
	ep_block_sync();
	return true;
}

/*
 * A first look at what other blocks have decided about the sources, taken behind the counts. Lane l
 * has ranks l, l + 32, ..., the first ones here; nothing waits for the loads.
 */
#define EP_LL_DECISION_WORDS 2
#define EP_LL_DECISION_RANKS (EP_LL_DECISION_WORDS * EP_WARP_SIZE)
struct ep_ll_decisions {
	bool done; /* has been looked at, or needs not be */
	uint64_t word[EP_LL_DECISION_WORDS];
};

EP_DEV void decisions_load(const struct ep_ll_common &c, struct ep_ll_decisions *decisions)
{
	decisions->done = !c.g.mask_enabled;
	EP_UNROLL()
	for (uint32_t i = 0; i < EP_LL_DECISION_WORDS; i++) {
		uint32_t r = i * EP_WARP_SIZE + ep_lane();

		decisions->word[i] = 0;
		if (!decisions->done && r < c.g.nranks) {
			decisions->word[i] = ep_arrival_load(c.g, r);
		}
	}
}

/*
 * Before anything is placed. False: a source that is here for this block is absent for others, as
 * every warp of the block finds then.
 */
EP_DEV bool decisions_agree(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			    const struct ep_ll_recv_tables &tables,
			    struct ep_ll_decisions *decisions)
{
	bool ok = true;

	if (decisions->done) {
		return true;
	}
	decisions->done = true;
	EP_UNROLL()
	for (uint32_t i = 0; i < EP_LL_DECISION_WORDS; i++) {
		if (ep_arrival_decided(op, decisions->word[i])) {
			ok &= ep_ll_decision_adopt(a, op, tables, i * EP_WARP_SIZE + ep_lane());
		}
	}
	return ep_all(EP_FULL_MASK, ok);
}

/* The same for ranks beyond those, all at once: the loads are waited for. One warp. */
EP_DEV_COLD bool ep_ll_decisions_beyond(const struct ep_ll_dispatch_args &a, struct ep_op op,
					struct ep_ll_recv_tables tables)
{
	bool ok = true;

	for (uint32_t r = EP_LL_DECISION_RANKS + ep_lane(); r < a.c.g.nranks; r += EP_WARP_SIZE) {
		if (ep_arrival_decided(op, ep_arrival_load(a.c.g, r))) {
			ok &= ep_ll_decision_adopt(a, op, tables, r);
		}
	}
	return ep_all(EP_FULL_MASK, ok);
}

/* ---- one part of one row is stored to each local expert's row ---- */

/* Destination of a received row: lane k holds the output row of its expert, or NO_ROW. */
struct ep_ll_placing {
	uint32_t row;
	uint32_t hits;
};

/*
 * Where scale word g of an output row goes, row-major or (API 1, FP8) column-major within its
 * plane.
 */
EP_DEV uint32_t *scale_out(const struct ep_ll_dispatch_args &a, uint32_t row, uint32_t g)
{
	uint32_t *out = (uint32_t *)a.out_scales;

	if (!a.scale_columns) {
		return out + (size_t)row * a.scale_words + g;
	}
	uint32_t plane_rows = a.c.layout == EP_LL_EXPERT_MAJOR ? a.c.expert_rows : a.c.max_tokens;
	uint32_t plane = row / plane_rows;

	return out + ((size_t)plane * a.scale_words + g) * plane_rows + (row - plane * plane_rows);
}

/*
 * Stores two quads of a quantised row, `quad` and the next one if that is before `end`, to every
 * placed row: elements by the lanes that have them, and the scale words of both by lanes of their
 * own. The lane's vecs lie at `off` of each quad. One warp.
 */
template <class F, bool LINES>
EP_DEV void place_quantised(const struct ep_ll_dispatch_args &a,
			    const struct ep_ll_placing &placing, uint32_t quad, uint32_t end,
			    uint32_t off, const struct ep_vec16 *vec)
{
	uint32_t second = ep_lane() >= F::scale_words;
	uint32_t i = ep_min_u32(ep_lane() - second * F::scale_words, F::scale_words - 1);
	uint32_t index = F::scale_index(quad + second, i);
	bool scales = ep_lane() < 2 * F::scale_words && quad + second < end &&
		      index < a.scale_words && F::scale_new(quad + second, i);
	uint32_t scale0 = ll_quad_word<LINES>(vec[0], F::payload, F::payload + 4 * i);
	uint32_t scale1 = ll_quad_word<LINES>(vec[1], F::payload, F::payload + 4 * i);

	for (uint32_t m = placing.hits; m; m &= m - 1) {
		uint32_t row = ep_shfl_u32(EP_FULL_MASK, placing.row, ep_ctz(m));
		unsigned char *out =
			(unsigned char *)a.out_tokens + (size_t)row * a.out_token_bytes;

		EP_UNROLL()
		for (uint32_t j = 0; j < 2; j++) {
			uint32_t at = (quad + j) * F::payload + off;

			if (quad + j < end && off < F::payload && at < a.out_token_bytes) {
				ep_st16(out + at, vec[j]);
			}
		}
		if (scales) {
			*scale_out(a, row, index) = second ? scale1 : scale0;
		}
	}
}

_Static_assert(EP_LL_TILE_QUADS == 2, "place_quantised");

EP_DEV void place_copy(const struct ep_ll_dispatch_args &a, uint32_t row, uint32_t off,
		       struct ep_vec16 vec, bool narrow)
{
	unsigned char *out;

	if (off < a.out_token_bytes) {
		out = (unsigned char *)a.out_tokens + (size_t)row * a.out_token_bytes + off;
	} else if (off < a.out_token_bytes + a.scale_bytes) {
		out = (unsigned char *)a.out_scales + (size_t)row * a.scale_bytes +
		      (off - a.out_token_bytes);
	} else {
		return;
	}
	ep_quad_store(out, vec, narrow);
}

/* Stores a batch of vecs of a row that was forwarded to every placed row. One warp. */
EP_DEV void place_batch(const struct ep_ll_dispatch_args &a, const struct ep_ll_placing &placing,
			const uint32_t *off, const struct ep_vec16 *vec, uint32_t n, bool narrow)
{
	for (uint32_t m = placing.hits; m; m &= m - 1) {
		uint32_t row = ep_shfl_u32(EP_FULL_MASK, placing.row, ep_ctz(m));

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			if (j < (int)n) {
				place_copy(a, row, off[j], vec[j], narrow);
			}
		}
	}
}

/* Quads that a warp receives at a time. */
template <class F> struct ep_ll_recv_batch {
	enum {
		quads = F::quantised ? EP_LL_TILE_QUADS : EP_LL_BATCH
	};
};

/* Where a part of a received row lies, and what shows that it is there. */
struct ep_ll_arrival {
	const unsigned char *row;
	uint32_t first, end; /* quads; equal: there is nothing */
	bool lines;          /* they carry their own flags */
	bool remote;         /* a signal shows it; else, without lines, a flag does */
};

/* Does this rank place its own rows from the caller's tensor? */
template <class F> EP_DEV bool own_direct(const struct ep_ll_dispatch_args &a)
{
	return !F::quantised && a.own_direct;
}

/* Quads [first, end) of one of our own tokens, as the lanes hold them of lines. */
template <int N>
EP_DEV void own_load(const struct ep_ll_dispatch_args &a, uint32_t token, uint32_t first,
		     uint32_t end, struct ep_ll_lines<N> *b)
{
	const unsigned char *row = (const unsigned char *)a.tokens + (size_t)token * a.token_bytes;

	EP_UNROLL()
	for (int j = 0; j < N; j++) {
		uint32_t off = (first + j) * EP_QUAD_BYTES + ep_line_offset(ep_lane());

		b->v[j] = ep_quad_load(row + off, ep_quad_narrow(),
				       first + j < end && off < a.token_bytes);
	}
}

/*
 * Receives a part sent as lines; `b` holds the first batch. Or one of our own row `own`, if that is
 * not NO_ROW. False when the source failed on the way: what had arrived is placed, the rest is not.
 */
template <class F, bool REMOTE, int N>
EP_DEV bool recv_lines(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
		       const struct ep_ll_placing &placing, const struct ep_ll_arrival &arrival,
		       uint32_t src, uint32_t own, struct ep_ll_lines<N> *b)
{
	for (uint32_t q = arrival.first; q < arrival.end; q += N) {
		if (own_direct<F>(a) && own != EP_LL_NO_ROW) {
			own_load(a, own, q, arrival.end, b);
		} else {
			if (q != arrival.first) {
				ep_ll_lines_load(arrival.row, q, arrival.end, b);
			}
			if (!ep_ll_lines_wait<REMOTE>(a.c, op, arrival.row, q, arrival.end, src,
						      b)) {
				return false;
			}
		}
		if constexpr (F::quantised) {
			place_quantised<F, true>(a, placing, q, arrival.end,
						 ep_line_offset(ep_lane()), b->v);
		} else {
			uint32_t off[N];

			EP_UNROLL()
			for (int j = 0; j < N; j++) {
				off[j] = (q + j) * EP_QUAD_BYTES + ep_line_offset(ep_lane());
			}
			place_batch(a, placing, off, b->v, ep_min_u32(arrival.end - q, N),
				    ep_quad_narrow());
		}
	}
	return true;
}

/* Receives a part of a quantised row sent as bytes, whose flag has arrived. */
template <class F>
EP_DEV void recv_quantised_bytes(const struct ep_ll_dispatch_args &a,
				 const struct ep_ll_placing &placing,
				 const struct ep_ll_arrival &arrival)
{
	constexpr int N = ep_ll_recv_batch<F>::quads;

	for (uint32_t q = arrival.first; q < arrival.end; q += N) {
		struct ep_vec16 v[N] EP_UNSET;

		EP_UNROLL()
		for (uint32_t j = 0; j < N; j++) {
			if (q + j < arrival.end && ep_lane() < EP_LL_QUAD_VECS) {
				v[j] = ep_ld16_fresh(arrival.row + (size_t)(q + j) * EP_QUAD_BYTES +
						     16 * ep_lane());
			}
		}
		place_quantised<F, false>(a, placing, q, arrival.end, 16 * ep_lane(), v);
	}
}

/* The same for a row that was copied. */
EP_DEV void recv_copied_bytes(const struct ep_ll_dispatch_args &a,
			      const struct ep_ll_placing &placing,
			      const struct ep_ll_arrival &arrival)
{
	uint32_t last = arrival.end * EP_LL_QUAD_VECS;

	for (uint32_t v0 = arrival.first * EP_LL_QUAD_VECS; v0 < last;
	     v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH] EP_UNSET;
		uint32_t off[EP_LL_BATCH], n = 0;

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			off[j] = 16 * i;
			if (i < last) {
				v[j] = ep_ld16_fresh(arrival.row + 16 * (size_t)i);
				n++;
			}
		}
		place_batch(a, placing, off, v, n, false);
	}
}

/* Part `part` of the row in slot `slot` of source `src`. */
struct ep_ll_recv_item {
	uint32_t src;
	uint32_t slot;
	uint32_t part;
};

/*
 * The i-th item of work of all: turns are parts, so that no source waits for another's rows. Own
 * rows that need not arrive go first.
 */
template <class F>
EP_DEV struct ep_ll_recv_item recv_item_make(const struct ep_ll_dispatch_args &a,
					     const struct ep_ll_recv_tables &tables, uint32_t i)
{
	const struct ep_ll_common &c = a.c;
	uint32_t own = own_direct<F>(a) ? tables.rows[c.g.rank] * c.peer_parts : 0, j;
	struct ep_ll_recv_item w;

	if (!own_direct<F>(a)) {
		w.src = ep_ll_turn(c, i, c.g.rank, &j);
	} else if (i < own) {
		w.src = c.g.rank;
		j = i;
	} else {
		uint32_t turn;

		j = ep_div(i - own, a.by_others);
		turn = i - own - j * a.by_others.d + j;
		w.src = c.g.rank + 1 + turn - ep_div(turn, a.by_others) * a.by_others.d;
		w.src -= w.src < c.from.end ? 0 : c.from.by_count.d;
	}
	if (c.lines) {
		w.slot = ep_div(j, c.by_peer_parts);
		w.part = j - w.slot * c.peer_parts;
	} else {
		w.slot = j / ep_max_u32(tables.parts[w.src], 1);
		w.part = j - w.slot * tables.parts[w.src];
	}
	return w;
}

/*
 * An expert has room for every token of every rank once. Only tokens that name it twice can
 * overflow it: what does not fit is left out, returns as zeros, and is reported.
 */
EP_DEV void ll_overflow(const struct ep_ll_common &c, const struct ep_op &op, uint32_t src,
			uint32_t token, uint32_t k, uint32_t expert)
{
	struct ep_record r = {};

	r.cause = EP_CAUSE_OVERFLOW;
	r.peer = src;
	r.step = op.step;
	r.token = token;
	r.k = k;
	r.value = expert;
	r.expected = c.expert_rows;
	ep_record_write(c.g, EP_RECORD_ROUTING, r);
}

/* Expert-major: lane k learns the output row of (token, k), if its expert is here. One warp. */
EP_DEV struct ep_ll_placing place_expert_major(const struct ep_ll_common &c, const struct ep_op &op,
					       const struct ep_ll_recv_tables &tables, uint32_t d0,
					       uint32_t d1, const struct ep_ll_recv_item &item)
{
	uint32_t k = ep_lane(), cap = c.expert_rows, src = item.src;
	uint32_t source = ep_ll_source_of(c, src), at = source * c.max_tokens + item.slot;
	bool remember = item.part == 0;
	uint32_t token = ep_shfl_u32(EP_FULL_MASK, d0, 0);
	uint32_t odd = ep_shfl_u32(EP_FULL_MASK, d1, k / 2);
	uint32_t even = ep_shfl_u32(EP_FULL_MASK, d0, (k + 1) / 2);
	uint32_t word = k >= c.topk ? EP_LL_NO_ROW : k & 1 ? even : odd;
	struct ep_ll_placing w;

	w.row = EP_LL_NO_ROW;
	if (word != EP_LL_NO_ROW) {
		uint32_t e = word >> 18;
		uint32_t pos = e < c.nlocal ? tables.base[source * c.nlocal + e] + (word & 0x3ffff)
					    : cap;

		if (pos < cap && token < c.max_tokens) {
			w.row = e * cap + pos;
		}
	}
	if (remember && k < c.topk) {
		bool lost = word != EP_LL_NO_ROW && w.row == EP_LL_NO_ROW;
		uint32_t row = lost ? EP_LL_ZERO_ROW : w.row;

		c.h.slot_row[(size_t)at * c.topk + k] = row;
		if (src == c.g.rank && word != EP_LL_NO_ROW && token < c.max_tokens) {
			c.h.route[(size_t)token * c.topk + k] = row;
		}
		if (lost) {
			ll_overflow(c, op, src, token, k, word >> 18);
		}
	}
	if (remember && k == 0) {
		c.h.slot_token[at] = EP_LL_SLOT(token, 0);
	}
	w.hits = ep_ballot(EP_FULL_MASK, w.row != EP_LL_NO_ROW);
	return w;
}

/* Rank-major: one output row; lane k writes the token's k-th id and weight. One warp. */
EP_DEV struct ep_ll_placing place_rank_major(const struct ep_ll_dispatch_args &a, uint32_t d0,
					     uint32_t d1, const struct ep_ll_recv_item &item)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), src = item.src;
	uint32_t row = ep_ll_source_of(c, src) * c.max_tokens + item.slot;
	bool remember = item.part == 0;
	uint32_t token = ep_shfl_u32(EP_FULL_MASK, d0, 0) >> 16;
	uint32_t local_id = k < c.topk ? d0 & 0xffffu : 0xffffu;
	uint32_t local = ep_ballot(EP_FULL_MASK, local_id != 0xffffu);
	struct ep_ll_placing w;

	if (remember && k < c.topk) {
		size_t at = (size_t)row * c.topk + k;

		a.out_idx[at] = local_id == 0xffffu ? -1 : (int32_t)(local_id + a.expert_id_base);
		a.out_weights[at] = ep_bits_f32(d1);
	}
	if (remember && k == 0 && token < c.max_tokens && local) {
		uint32_t first = ep_ctz(local);

		c.h.slot_token[row] = EP_LL_SLOT(token, first);
		if (src == c.g.rank) {
			c.h.route[(size_t)token * c.topk + first] = row;
		}
	}
	w.row = k == 0 ? row : EP_LL_NO_ROW;
	w.hits = 1;
	return w;
}

/* Where a received row lies among those of its area. */
template <bool REMOTE>
EP_DEV uint32_t arrival_at(const struct ep_ll_common &c, const struct ep_ll_recv_item &item)
{
	return (REMOTE ? c.g.remote->places[item.src].here : ep_ll_source_of(c, item.src)) *
		       c.max_tokens +
	       item.slot;
}

template <class F, bool REMOTE>
EP_DEV struct ep_ll_arrival arrival_make(const struct ep_ll_common &c, const struct ep_op &op,
					 const struct ep_ll_recv_tables &tables,
					 const struct ep_ll_recv_item &item)
{
	uint32_t at = arrival_at<REMOTE>(c, item);
	struct ep_ll_arrival p;

	p.remote = REMOTE && ep_rank_remote(c.g, item.src);
	p.lines = c.lines && !p.remote;
	p.row = p.remote ? c.g.own + ep_ll_remote_row(c, op, at) : ep_ll_row(c, op, c.g.own, at);
	ep_ll_part(c.row_quads,
		   c.lines ? c.peer_part_quads
			   : ep_ll_part_quads(c.row_quads, tables.parts[item.src], F::tile_quads),
		   item.part, &p.first, &p.end);
	return p;
}

/* Waits for a part that came as bytes, of the source's token `token`. One warp. */
template <bool REMOTE>
EP_DEV bool arrival_wait(const struct ep_ll_common &c, const struct ep_op &op,
			 const struct ep_ll_recv_tables &tables, const struct ep_ll_recv_item &item,
			 const struct ep_ll_arrival &arrival, uint32_t token)
{
	bool ok = true;

	if (ep_lane() == 0 && REMOTE && arrival.remote) {
		ok = ep_remote_wait(c.g, op, item.src, token, tables.channel_tokens[item.src],
				    EP_WAIT_DISPATCH_ROW);
	} else if (ep_lane() == 0) {
		uint32_t at = arrival_at<REMOTE>(c, item);

		ok = ep_wait_flag<REMOTE>(c.g, op, ep_ll_row_flag(c, op, c.g.own, at, item.part),
					  ep_ll_flag_value(op, op.epoch), EP_WAIT_DISPATCH_ROW,
					  item.src);
	}
	ok = ep_all(EP_FULL_MASK, ok);
	ep_warp_sync(EP_FULL_MASK); /* what lane 0 has acquired, the others may read */
	return ok;
}

/* Whose row it is: the lane's packet of its header. One warp; false when the source failed. */
template <bool REMOTE>
EP_DEV bool header_wait(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			const struct ep_ll_recv_item &item, uint32_t *d0, uint32_t *d1)
{
	const struct ep_ll_common &c = a.c;
	uint32_t at = ep_ll_source_of(c, item.src) * c.max_tokens + item.slot;
	const unsigned char *header = ep_ll_packets(c, op, c.g.own) + a.header_off +
				      (size_t)at * a.header_bytes + 16 * ep_lane();
	bool ok = true;

	*d0 = *d1 = EP_LL_NO_ROW;
	if (16 * ep_lane() < a.header_bytes) {
		ok = ep_wait_packet<REMOTE>(c.g, op, header, d0, d1, EP_WAIT_DISPATCH_ROW,
					    item.src);
	}
	ok = ep_all(EP_FULL_MASK, ok);
	if (!ok && c.layout == EP_LL_RANK_MAJOR && item.part == 0 && ep_lane() < c.topk) {
		a.out_idx[(size_t)at * c.topk + ep_lane()] = -1; /* announced, never sent */
	}
	return ok;
}

/* The result of a part, or of all that a warp has to do. */
enum ep_ll_recv_result {
	EP_LL_RECV_DONE,
	EP_LL_RECV_FAILED, /* the source failed on the way */
	/* nothing was placed: a source is absent, the tables have to be made anew */
	EP_LL_RECV_AGAIN
};

/* One part of one row. One warp. */
template <class F, bool REMOTE>
EP_DEV enum ep_ll_recv_result recv_part(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
					const struct ep_ll_recv_tables &tables,
					const struct ep_ll_recv_item &item,
					struct ep_ll_decisions *decisions)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_arrival p = arrival_make<F, REMOTE>(c, op, tables, item);
	bool expert_major = c.layout == EP_LL_EXPERT_MAJOR;
	struct ep_ll_lines<ep_ll_recv_batch<F>::quads> lines;
	struct ep_ll_placing w;
	uint32_t d0, d1;

	const bool own = own_direct<F>(a) && item.src == c.g.rank;

	if (p.first == p.end) {
		return EP_LL_RECV_DONE;
	}
	if (p.lines && !own) { /* together with the header: most often both are there */
		ep_ll_lines_load(p.row, p.first, p.end, &lines);
	}
	if (!header_wait<REMOTE>(a, op, item, &d0, &d1)) {
		return EP_LL_RECV_FAILED;
	}
	if (!decisions_agree(a, op, tables, decisions)) {
		return EP_LL_RECV_AGAIN;
	}
	w = expert_major ? place_expert_major(c, op, tables, d0, d1, item)
			 : place_rank_major(a, d0, d1, item);
	if (p.lines) {
		uint32_t token = ep_shfl_u32(EP_FULL_MASK, expert_major ? d0 : d0 >> 16, 0);

		return recv_lines<F, REMOTE>(a, op, w, p, item.src, own ? token : EP_LL_NO_ROW,
					     &lines)
			       ? EP_LL_RECV_DONE
			       : EP_LL_RECV_FAILED;
	}
	if (!arrival_wait<REMOTE>(c, op, tables, item, p, expert_major ? d0 : d0 >> 16)) {
		return EP_LL_RECV_FAILED;
	}
	if constexpr (F::quantised) {
		recv_quantised_bytes<F>(a, w, p);
	} else {
		recv_copied_bytes(a, w, p);
	}
	return EP_LL_RECV_DONE;
}

/* Rank-major: ids of rows that no source sent. */
EP_DEV void recv_unused(const struct ep_ll_dispatch_args &a, const struct ep_ll_recv_tables &tables,
			uint32_t worker, uint32_t workers)
{
	const struct ep_ll_common &c = a.c;

	for (uint32_t src = c.from.first; src < c.from.end; src++) {
		int32_t *idx = a.out_idx + (size_t)ep_ll_source_of(c, src) * c.max_tokens * c.topk;

		for (uint32_t i = tables.rows[src] * c.topk + worker * EP_WARP_SIZE + ep_lane();
		     i < c.max_tokens * c.topk; i += workers * EP_WARP_SIZE) {
			idx[i] = -1;
		}
	}
}

/*
 * The warp's share of all parts. The result is the same for all warps of a block, if it is AGAIN.
 */
template <class F, bool REMOTE>
EP_DEV enum ep_ll_recv_result recv_rows(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
					const struct ep_ll_recv_tables &tables, uint32_t worker,
					uint32_t workers)
{
	const struct ep_ll_common &c = a.c;
	enum ep_ll_recv_result result = EP_LL_RECV_DONE;
	struct ep_ll_decisions decisions;
	uint32_t most = 0;

	decisions_load(c, &decisions);
	if (c.g.nranks > EP_LL_DECISION_RANKS && !decisions.done &&
	    !ep_ll_decisions_beyond(a, op, tables)) {
		return EP_LL_RECV_AGAIN;
	}
	for (uint32_t r = c.from.first; r < c.from.end; r++) {
		most = ep_max_u32(most,
				  tables.rows[r] * (c.lines ? c.peer_parts : tables.parts[r]));
	}
	uint32_t all = own_direct<F>(a) ? tables.rows[c.g.rank] * c.peer_parts +
						  most * (c.from.by_count.d - 1)
					: most * c.from.by_count.d;

	for (uint32_t i = worker; i < all; i += workers) {
		struct ep_ll_recv_item w = recv_item_make<F>(a, tables, i);

		if (w.slot >= tables.rows[w.src]) {
			continue;
		}
		result = recv_part<F, REMOTE>(a, op, tables, w, &decisions);
		if (result == EP_LL_RECV_AGAIN) {
			return result;
		}
		if (result == EP_LL_RECV_FAILED && ep_aborted(c.g)) {
			break;
		}
	}
	return decisions_agree(a, op, tables, &decisions) ? result : EP_LL_RECV_AGAIN;
}

template <class F, bool REMOTE>
EP_DEV void ep_ll_dispatch_recv(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				uint32_t block, uint32_t blocks)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_recv_tables t = recv_tables_make(c);
	uint32_t worker = ep_warp() * blocks + block, workers = blocks * ep_nwarps();
	/* not the first, which has a part even of a single row, nor the last to start */
	bool remembers = block == blocks / 2;
	enum ep_ll_recv_result result;
	uint64_t waited;
	EP_SHARED(uint32_t, failed);

	recv_tables_clear(c, op, t, &failed);
	for (;;) {
		waited = remembers ? ep_time_ns() : 0;
		recv_counts<REMOTE>(a, op, t, &failed);
		waited = remembers ? ep_time_ns() - waited : 0;
		if (!recv_resolve(a, op, t, remembers, &failed)) {
			return;
		}
		result = recv_rows<F, REMOTE>(a, op, t, worker, workers);
		if (result != EP_LL_RECV_AGAIN) {
			break;
		}
		ep_block_sync(); /* no warp reads the tables any more */
		failed = 1; /* and their counts are read again: first rows lie where they were */
	}
	if (result == EP_LL_RECV_FAILED && ep_aborted(c.g)) {
		return;
	}
	/* at the end, where nobody waits; the threads that awaited the sources' ctrl packets */
	for (uint32_t j = ep_nthreads() - 1 - ep_tid();
	     remembers && j < 2 * (c.from.end - c.from.first); j += ep_nthreads()) {
		if (j & 1) {
			recv_remember(a, t, c.from.first + (j >> 1), waited);
		}
	}
	if (c.layout == EP_LL_RANK_MAJOR) {
		recv_unused(a, t, worker, workers);
	}
	if (remembers && ep_tid() == 0) {
		ep_receipt_leave(c.launch, op);
	}
}

#endif
