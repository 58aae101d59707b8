/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch, sending half: routing of a window of tokens, counts, headers. */
#ifndef EP_DEVICE_LL_DISPATCH_SEND_H
#define EP_DEVICE_LL_DISPATCH_SEND_H

#include "ll_common.h"
#include "ll_dispatch_rows.h"
#include "numeric.h"

/*
 * Block-shared tables of the sending half. Places follow from bits: a token's slot at a rank is the
 * number of earlier tokens that go there, its index at an expert the number of earlier tokens that
 * chose it. Every sending block derives the same places from the same ids.
 */
struct ep_ll_send_tables {
	int32_t *id;           /* [window][K] valid ids, or -1 */
	uint32_t *expert_bits; /* [E][words] tokens of the window that chose the expert */
	uint32_t *rank_bits;   /* [R][words] tokens of the window that go to the rank */
	uint32_t *expert_base; /* [E] selections of the expert before the window */
	uint32_t *rank_base;   /* [R] rows for the rank before the window */
	unsigned char *staging; /* FP8: one unit for each warp */
	uint32_t window;
	uint32_t words; /* window / 32 */
};

EP_DEV struct ep_ll_send_tables ep_ll_send_tables_make(const struct ep_ll_common &c)
{
	uint32_t experts = c.nranks * c.nlocal;
	struct ep_ll_send_tables t;
	unsigned char *p = (unsigned char *)ep_dynamic_shared();

	t.window = ep_ll_window_tokens(c.topk, experts);
	t.words = t.window / 32;
	t.staging = p; /* first, for its alignment */
	p += EP_LL_MAX_THREADS / 32 * EP_LL_FP8_UNIT_QUADS * EP_LL_QUAD_BYTES;
	t.id = (int32_t *)p;
	t.expert_bits = (uint32_t *)(t.id + t.window * c.topk);
	t.rank_bits = t.expert_bits + experts * t.words;
	t.expert_base = t.rank_bits + c.nranks * t.words;
	t.rank_base = t.expert_base + experts;
	return t;
}

EP_DEV void ep_ll_routing_error(const struct ep_ll_common &c, uint32_t step, uint32_t token,
				uint32_t k, int64_t id)
{
	struct ep_ll_record r = {};

	r.cause = EP_LL_CAUSE_EXPERT_ID;
	r.peer = c.rank;
	r.step = step;
	r.token = token;
	r.k = k;
	r.value = id;
	r.expected = (int64_t)c.nranks * c.nlocal;
	ep_ll_record_write(c.state, c.records, EP_LL_RECORD_ROUTING, r);
}

/*
 * Loads the ids of tokens [w0, w0 + n) and clears the bits. Negative ids, ids out of range and
 * masked ranks become -1. A barrier must follow.
 */
EP_DEV void ep_ll_window_load(const struct ep_ll_common &c, uint32_t step,
			      const struct ep_ll_send_tables &t, uint32_t w0, uint32_t n)
{
	int64_t experts = (int64_t)c.nranks * c.nlocal;

	for (uint32_t i = ep_tid(); i < n * c.topk; i += ep_nthreads()) {
		size_t at = (size_t)w0 * c.topk + i;
		int64_t id = c.id_bytes == 8 ? ((const int64_t *)c.topk_idx)[at]
					     : ((const int32_t *)c.topk_idx)[at];

		if (id >= experts) {
			ep_ll_routing_error(c, step, w0 + i / c.topk, i % c.topk, id);
			id = -1;
		} else if (id < 0 ||
			   (c.mask_enabled && !ep_ll_active(c, (uint32_t)id / c.nlocal))) {
			id = -1;
		}
		t.id[i] = (int32_t)id;
	}
	for (uint32_t i = ep_tid(); i < ((uint32_t)experts + c.nranks) * t.words;
	     i += ep_nthreads()) {
		t.expert_bits[i] = 0; /* and the rank bits, which follow */
	}
}

/*
 * Sets the bits of the loaded ids. *twice is set when a token names an expert twice, which one bit
 * cannot tell. A barrier must follow.
 */
EP_DEV void ep_ll_window_mark(const struct ep_ll_common &c, const struct ep_ll_send_tables &t,
			      uint32_t n, uint32_t *twice)
{
	for (uint32_t i = ep_tid(); i < n * c.topk; i += ep_nthreads()) {
		int32_t id = t.id[i];
		uint32_t local = ep_div(i, c.by_topk), bit = 1u << (local & 31);

		if (id < 0) {
			continue;
		}
		ep_shared_or_u32(&t.rank_bits[ep_div(id, c.by_local) * t.words + local / 32], bit);
		if (c.layout == EP_LL_EXPERT_MAJOR &&
		    (ep_shared_or_u32(&t.expert_bits[id * t.words + local / 32], bit) & bit)) {
			*twice = 1;
		}
	}
}

/* Adds the window to the counts before the next one. A barrier before and after. */
EP_DEV void ep_ll_window_count(const struct ep_ll_common &c, const struct ep_ll_send_tables &t,
			       uint32_t n)
{
	for (uint32_t i = ep_tid(); c.layout == EP_LL_EXPERT_MAJOR && i < n * c.topk;
	     i += ep_nthreads()) {
		if (t.id[i] >= 0) {
			ep_shared_add_u32(&t.expert_base[t.id[i]], 1);
		}
	}
	for (uint32_t d = ep_tid(); d < c.nranks; d += ep_nthreads()) {
		for (uint32_t w = 0; w < t.words; w++) {
			t.rank_base[d] += ep_popc(t.rank_bits[d * t.words + w]);
		}
	}
}

/* Set bits of `bits` before bit `local`. */
EP_DEV uint32_t ep_ll_bits_before(const uint32_t *bits, uint32_t local)
{
	uint32_t n = ep_popc(bits[local / 32] & ((1u << (local & 31)) - 1));

	for (uint32_t w = 0; w < local / 32; w++) {
		n += ep_popc(bits[w]);
	}
	return n;
}

/* Slot of the window's token at rank d, or NO_ROW. */
EP_DEV uint32_t ep_ll_slot(const struct ep_ll_send_tables &t, uint32_t local, uint32_t d)
{
	const uint32_t *bits = t.rank_bits + d * t.words;

	return bits[local / 32] >> (local & 31) & 1 ? t.rank_base[d] + ep_ll_bits_before(bits, local)
						    : EP_LL_NO_ROW;
}

/* Index of selection i of the window among this rank's selections of the expert, by (token, k). */
EP_DEV uint32_t ep_ll_index(const struct ep_ll_common &c, const struct ep_ll_send_tables &t,
			    uint32_t i, bool twice)
{
	int32_t id = t.id[i];
	uint32_t local = ep_div(i, c.by_topk), n = t.expert_base[id];

	if (!twice) {
		return n + ep_ll_bits_before(t.expert_bits + id * t.words, local);
	}
	for (uint32_t j = 0; j < i; j++) {
		n += t.id[j] == id;
	}
	return n;
}

EP_DEV void ep_ll_bases_clear(const struct ep_ll_common &c, const struct ep_ll_send_tables &t)
{
	for (uint32_t i = ep_tid(); i < c.nranks * (c.nlocal + 1); i += ep_nthreads()) {
		t.expert_base[i] = 0; /* and the rank bases, which follow */
	}
}

/* What goes to remote rank d on the control queue: control packets, then counts. */
EP_DEV unsigned char *ep_ll_post(const struct ep_ll_common &c, uint32_t d)
{
	return c.heap[c.rank] + c.post_off + d * c.post_stride;
}

/*
 * Tells every destination how many rows, and rows per expert, it will get; what is for remote ranks
 * is left in the stage. One block; the first window is marked and the bases are clear.
 */
template <bool NET>
EP_DEV void ep_ll_send_counts(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			      const struct ep_ll_send_tables &t, uint32_t *twice)
{
	const struct ep_ll_common &c = a.c;

	for (uint32_t w0 = 0; w0 < c.num_tokens; w0 += t.window) {
		uint32_t n = ep_min_u32(t.window, c.num_tokens - w0);

		if (w0) {
			ep_ll_window_load(c, op.step, t, w0, n);
			ep_block_sync();
			ep_ll_window_mark(c, t, n, twice);
			ep_block_sync();
		}
		ep_ll_window_count(c, t, n);
		ep_block_sync();
	}
	for (uint32_t e = ep_tid(); c.layout == EP_LL_EXPERT_MAJOR && e < c.nranks * c.nlocal;
	     e += ep_nthreads()) {
		uint32_t d = ep_div(e, c.by_local);

		if (ep_ll_active(c, d)) {
			unsigned char *counts =
				NET && ep_ll_remote(c, d)
					? ep_ll_post(c, d) + EP_LL_CTRL_BYTES
					: ep_ll_packets(c, op, d) + a.count_off +
						  8 * (size_t)c.rank * c.nlocal;

			ep_st_word(counts + 8 * (size_t)(e - d * c.nlocal), t.expert_base[e],
				   op.epoch);
		}
	}
	/* the last threads: the others have more counts to send */
	for (uint32_t d = ep_nthreads() - 1 - ep_tid(); d < c.nranks; d += ep_nthreads()) {
		bool remote = NET && ep_ll_remote(c, d);
		unsigned char *ctrl = remote ? ep_ll_post(c, d)
					     : ep_ll_packets(c, op, d) +
						       (size_t)c.rank * EP_LL_CTRL_BYTES;

		if (NET) {
			c.sent_rows[d] = t.rank_base[d];
		}
		if (!ep_ll_active(c, d)) {
			continue;
		}
		ep_st_packet(ctrl, t.rank_base[d], c.parts | a.combine_parts << 16, op.epoch);
		ep_st_packet(ctrl + 16, c.row_quads | c.channel_tokens << 16, ep_ll_kind(a), op.epoch);
		c.stats[d].tx_rows += t.rank_base[d];
		c.stats[d].tx_bytes +=
			(uint64_t)t.rank_base[d] *
			ep_ll_row_stride(c.row_quads, c.lines && !remote);
	}
}

/* A token's selection by lane k, as the header and the route need it. */
struct ep_ll_selection {
	uint32_t rank; /* NO_ROW: none */
	uint32_t local_id;
	uint32_t index; /* expert-major */
};

EP_DEV struct ep_ll_selection ep_ll_selection_make(const struct ep_ll_common &c,
						   const struct ep_ll_send_tables &t,
						   uint32_t local, bool twice)
{
	uint32_t k = ep_lane(), i = local * c.topk + k;
	int32_t id = k < c.topk ? t.id[i] : -1;
	struct ep_ll_selection s = { EP_LL_NO_ROW, 0, 0 };

	if (id >= 0) {
		s.rank = ep_div(id, c.by_local);
		s.local_id = id - s.rank * c.nlocal;
		if (c.layout == EP_LL_EXPERT_MAJOR) {
			s.index = ep_ll_index(c, t, i, twice);
		}
	}
	return s;
}

/* Rank-major: lane k's weight of the token, else 0. */
EP_DEV float ep_ll_weight(const struct ep_ll_dispatch_args &a, uint32_t token)
{
	const struct ep_ll_common &c = a.c;

	if (c.layout != EP_LL_RANK_MAJOR || ep_lane() >= c.topk) {
		return 0.0f;
	}
	return a.topk_weights[(size_t)token * c.topk + ep_lane()];
}

/*
 * The header of one row for rank d, to h: who the token is and which local experts want it. One
 * warp.
 */
EP_DEV void ep_ll_send_header(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			      const struct ep_ll_selection &s, float weight, uint32_t token,
			      uint32_t d, unsigned char *h)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), word = EP_LL_NO_ROW;

	if (c.layout == EP_LL_RANK_MAJOR) {
		if (k < c.topk) {
			word = token << 16 | (s.rank == d ? s.local_id : 0xffffu);
			ep_st_packet(h + 16 * k, word, ep_f32_bits(weight), op.epoch);
		}
		return;
	}
	if (s.rank == d) {
		word = s.local_id << 18 | s.index;
	}
	/* words: token, then one per k; lane j packs words 2j and 2j + 1 */
	uint32_t first = ep_shfl_u32(EP_FULL_MASK, word, (2 * k + 31) & 31);
	uint32_t second = ep_shfl_u32(EP_FULL_MASK, word, (2 * k) & 31);

	if (16 * k < a.header_bytes) {
		ep_st_packet(h + 16 * k, k == 0 ? token : first,
			     2 * k < c.topk ? second : EP_LL_NO_ROW, op.epoch);
	}
}

/*
 * Remembers who will return (token, k); `slot`: of the token at lane k's rank, if that is remote.
 * Entries of local rows are written by the receiving half.
 */
EP_DEV void ep_ll_send_route(const struct ep_ll_common &c, const struct ep_ll_selection &s,
			     uint32_t token, uint32_t slot)
{
	uint32_t k = ep_lane();
	uint32_t same = ep_match_u32(EP_FULL_MASK, s.rank);
	bool returns = s.rank != EP_LL_NO_ROW;

	if (c.layout == EP_LL_RANK_MAJOR) {
		returns = returns && ep_ctz(same) == k; /* the first k of that rank */
	}
	if (k < c.topk && !(returns && s.rank == c.rank)) {
		c.route[(size_t)token * c.topk + k] =
			returns ? EP_LL_ROUTE_AWAY(s.rank, slot) : EP_LL_ROUTE_NONE;
	}
}

#endif
