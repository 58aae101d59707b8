/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch, sending half: routing of a window of tokens, counts, headers, rows. */
#ifndef EP_DEVICE_LL_DISPATCH_SEND_H
#define EP_DEVICE_LL_DISPATCH_SEND_H

#include "ll_common.h"
#include "numeric.h"

/* Block-shared tables of the sending half, carved from dynamic shared memory. */
struct ep_ll_send_tables {
	int32_t *id;       /* [window][K] valid ids, or -1 */
	uint32_t *index;   /* [window][K] place among this rank's selections of the expert */
	uint32_t *slot;    /* [window][R] slot at the destination, or NO_ROW */
	uint32_t *hist;    /* [E] selections of the expert so far */
	uint32_t *rows;    /* [R] rows for the destination so far */
	unsigned char *staging; /* FP8: one unit for each warp */
	uint32_t window;
};

EP_DEV struct ep_ll_send_tables ep_ll_send_tables_make(const struct ep_ll_common &c)
{
	struct ep_ll_send_tables t;
	uint32_t *p = (uint32_t *)ep_dynamic_shared();

	t.window = ep_ll_window_tokens(c.topk);
	t.id = (int32_t *)p;
	p += t.window * c.topk;
	t.index = p;
	p += t.window * c.topk;
	t.slot = p;
	p += t.window * c.nranks;
	t.hist = p;
	p += c.nranks * c.nlocal;
	t.rows = p;
	p += c.nranks;
	t.staging = (unsigned char *)(((uintptr_t)p + 15) & ~(uintptr_t)15);
	return t;
}

EP_DEV void ep_ll_routing_error(const struct ep_ll_common &c, uint32_t step,
				uint32_t token, uint32_t k, int64_t id)
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

/* Loads the ids of tokens [w0, w0 + n). Negative ids, ids out of range and masked ranks become -1. */
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
}

/*
 * Slots at the destinations in token order. A warp a destination; counts in t.rows go on from the
 * windows before.
 */
EP_DEV void ep_ll_window_slots(const struct ep_ll_common &c, const struct ep_ll_send_tables &t,
			       uint32_t n)
{
	for (uint32_t d = ep_warp(); d < c.nranks; d += ep_nwarps()) {
		uint32_t base = t.rows[d];

		for (uint32_t t0 = 0; t0 < n; t0 += EP_WARP_SIZE) {
			uint32_t token = t0 + ep_lane();
			bool hit = false;

			for (uint32_t k = 0; token < n && k < c.topk; k++) {
				/* -1 wraps to a large value and misses */
				hit |= (uint32_t)t.id[token * c.topk + k] - d * c.nlocal < c.nlocal;
			}
			uint32_t hits = ep_ballot(EP_FULL_MASK, hit);

			if (token < n) {
				t.slot[token * c.nranks + d] =
					hit ? base + ep_popc(hits & ((1u << ep_lane()) - 1))
					    : EP_LL_NO_ROW;
			}
			base += ep_popc(hits);
		}
		ep_warp_sync(EP_FULL_MASK);
		if (ep_lane() == 0) {
			t.rows[d] = base;
		}
	}
}

/*
 * Index of each selection among this rank's selections of the same expert, in (token, k) order.
 * An expert takes at most B rows of a rank: more is only possible when a token names an expert
 * twice, and such a selection is dropped and reported.
 */
EP_DEV void ep_ll_window_index(const struct ep_ll_common &c, const struct ep_ll_op &op,
			       const struct ep_ll_send_tables &t, uint32_t w0, uint32_t n)
{
	for (uint32_t i0 = 0; i0 < n * c.topk; i0 += EP_WARP_SIZE) {
		uint32_t i = i0 + ep_lane();
		int32_t id = i < n * c.topk ? t.id[i] : -1;
		uint32_t same = ep_match_u32(EP_FULL_MASK, (uint32_t)id);
		uint32_t before = same & ((1u << ep_lane()) - 1);
		uint32_t index = 0;

		if (id >= 0) {
			index = t.hist[id] + ep_popc(before);
			t.index[i] = index < c.max_tokens ? index : EP_LL_NO_ROW;
			if (index == c.max_tokens) {
				ep_ll_routing_error(c, op.step, w0 + i / c.topk, i % c.topk, id);
			}
		}
		ep_warp_sync(EP_FULL_MASK);
		if (id >= 0 && !(same >> ep_lane() >> 1)) {
			t.hist[id] = index + 1; /* the last lane of the same expert */
		}
		ep_warp_sync(EP_FULL_MASK);
	}
}

EP_DEV void ep_ll_tables_clear(const struct ep_ll_common &c, const struct ep_ll_send_tables &t)
{
	for (uint32_t i = ep_tid(); i < c.nranks * c.nlocal; i += ep_nthreads()) {
		t.hist[i] = 0;
	}
	for (uint32_t i = ep_tid(); i < c.nranks; i += ep_nthreads()) {
		t.rows[i] = 0;
	}
}

/*
 * Tells every destination how many rows, and rows per expert, it will get. One block; the first
 * window is loaded and the tables are clear.
 */
EP_DEV void ep_ll_send_counts(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			      const struct ep_ll_send_tables &t)
{
	const struct ep_ll_common &c = a.c;

	for (uint32_t w0 = 0; w0 < c.num_tokens; w0 += t.window) {
		uint32_t n = ep_min_u32(t.window, c.num_tokens - w0);

		if (w0) {
			ep_block_sync();
			ep_ll_window_load(c, op.step, t, w0, n);
			ep_block_sync();
		}
		for (uint32_t i = ep_tid(); i < n * c.topk; i += ep_nthreads()) {
			if (t.id[i] >= 0) {
				ep_shared_add_u32(&t.hist[t.id[i]], 1);
			}
		}
		ep_ll_window_slots(c, t, n);
	}
	ep_block_sync();
	for (uint32_t e = ep_tid(); c.layout == EP_LL_EXPERT_MAJOR && e < c.nranks * c.nlocal;
	     e += ep_nthreads()) {
		uint32_t d = e / c.nlocal;

		if (ep_ll_active(c, d)) {
			ep_st_word(ep_ll_packets(c, op, d) + a.count_off +
					   8 * ((size_t)c.rank * c.nlocal + e % c.nlocal),
				   ep_min_u32(t.hist[e], c.max_tokens), op.epoch);
		}
	}
	for (uint32_t d = ep_tid(); d < c.nranks; d += ep_nthreads()) {
		unsigned char *ctrl = ep_ll_packets(c, op, d) + (size_t)c.rank * EP_LL_CTRL_BYTES;

		if (!ep_ll_active(c, d)) {
			continue;
		}
		ep_st_packet(ctrl, t.rows[d], c.parts | a.combine_parts << 16, op.epoch);
		ep_st_packet(ctrl + 16, c.row_quads, c.topk | c.layout << 8, op.epoch);
		c.stats[d].tx_rows += t.rows[d];
		c.stats[d].tx_bytes += (uint64_t)t.rows[d] * ep_ll_row_stride(c.row_quads, c.lines);
	}
}

/* The header of one row: who the token is and which local experts want it. One warp. */
EP_DEV void ep_ll_send_header(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			      const struct ep_ll_send_tables &t, uint32_t local, uint32_t token,
			      uint32_t d, uint32_t slot)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), word = EP_LL_NO_ROW;
	unsigned char *h = ep_ll_packets(c, op, d) + a.header_off +
			   ((size_t)c.rank * c.max_tokens + slot) * a.header_bytes;
	uint32_t local_id = k < c.topk ? (uint32_t)t.id[local * c.topk + k] - d * c.nlocal : c.nlocal;

	if (c.layout == EP_LL_RANK_MAJOR) {
		if (k < c.topk) {
			float w = a.topk_weights[(size_t)token * c.topk + k];

			word = token << 16 | (local_id < c.nlocal ? local_id : 0xffffu);
			ep_st_packet(h + 16 * k, word, ep_f32_bits(w), op.epoch);
		}
		return;
	}
	if (local_id < c.nlocal && t.index[local * c.topk + k] != EP_LL_NO_ROW) {
		word = local_id << 18 | t.index[local * c.topk + k];
	}
	/* words: token, then one per k; lane j packs words 2j and 2j + 1 */
	uint32_t first = ep_shfl_u32(EP_FULL_MASK, word, (2 * k + 31) & 31);
	uint32_t second = ep_shfl_u32(EP_FULL_MASK, word, (2 * k) & 31);

	if (16 * k < a.header_bytes) {
		ep_st_packet(h + 16 * k, k == 0 ? token : first,
			     2 * k < c.topk ? second : EP_LL_NO_ROW, op.epoch);
	}
}

/* Remembers who will return (token, k). Entries of local rows are written by the receiving half. */
EP_DEV void ep_ll_send_route(const struct ep_ll_common &c, const struct ep_ll_send_tables &t,
			     uint32_t local, uint32_t token)
{
	uint32_t k = ep_lane();
	int32_t id = k < c.topk ? t.id[local * c.topk + k] : -1;
	uint32_t d = id >= 0 ? (uint32_t)id / c.nlocal : EP_LL_NO_ROW;
	uint32_t same = ep_match_u32(EP_FULL_MASK, d);
	bool returns = id >= 0;

	if (returns && c.layout == EP_LL_RANK_MAJOR) {
		returns = ep_ctz(same) == k; /* the first k of that rank */
	} else if (returns) {
		returns = t.index[local * c.topk + k] != EP_LL_NO_ROW;
	}
	if (k < c.topk && !(returns && d == c.rank)) {
		c.route[(size_t)token * c.topk + k] = returns ? EP_LL_ROUTE_REMOTE(d)
							      : EP_LL_ROUTE_NONE;
	}
}

#endif
