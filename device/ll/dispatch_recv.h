/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch, receiving half: counts of all sources, then rows to their experts. */
#ifndef EP_DEVICE_LL_DISPATCH_RECV_H
#define EP_DEVICE_LL_DISPATCH_RECV_H

#include "device/group/wait.h"
#include "device/ll/dispatch_rows.h"
#include "device/group/remote.h"

/* Block-shared tables of the receiving half. */
struct ep_ll_recv_tables {
	uint32_t *base; /* [R][L] first row of the source among the expert's rows */
	uint32_t *rows; /* [R] rows from the source */
	uint32_t *parts; /* [R] parts of the source's rows */
	uint32_t *return_parts; /* [R] and of those that return to it */
	uint32_t *absent; /* [R] the source is masked or has failed */
	uint32_t *channel_tokens; /* [R] of the source */
};

EP_DEV struct ep_ll_recv_tables ep_ll_recv_tables_make(const struct ep_ll_common &c)
{
	struct ep_ll_recv_tables t;

	t.base = (uint32_t *)ep_dynamic_shared();
	t.rows = t.base + c.nranks * c.nlocal;
	t.parts = t.rows + c.nranks;
	t.return_parts = t.parts + c.nranks;
	t.absent = t.return_parts + c.nranks;
	t.channel_tokens = t.absent + c.nranks;
	return t;
}

/*
 * Awaits control packet `which` of source r. The second says whether the source runs the same
 * operation. False when the source failed.
 */
EP_DEV bool ep_ll_recv_ctrl(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			    const struct ep_ll_recv_tables &t, uint32_t r, uint32_t which)
{
	const struct ep_ll_common &c = a.c;
	const unsigned char *p = ep_ll_packets(c, op, c.rank) + (size_t)r * EP_LL_CTRL_BYTES;
	uint32_t kind = ep_ll_kind(a), d0 = 0, d1 = 0;

	if (!ep_ll_wait_packet(c, op, p + 16 * which, &d0, &d1, EP_WAIT_DISPATCH_COUNT, r)) {
		return false;
	}
	if (which == 0) {
		t.rows[r] = ep_min_u32(d0, c.max_tokens);
		t.parts[r] = d1 & 0xffff;
		t.return_parts[r] = d1 >> 16;
		return true;
	}
	t.channel_tokens[r] = ep_max_u32(d0 >> 16, 1);
	d0 &= 0xffff;
	if (d0 != c.row_quads || d1 != kind) {
		ep_ll_peer_failed(c, op, EP_LL_CAUSE_MISMATCH, EP_WAIT_DISPATCH_COUNT, r,
				  d0 != c.row_quads ? d0 : d1, d0 != c.row_quads ? c.row_quads : kind);
		return false;
	}
	return true;
}

/* What the first receiving block keeps of source r: for combine, for the caller, for statistics. */
EP_DEV void ep_ll_recv_remember(const struct ep_ll_dispatch_args &a,
				const struct ep_ll_recv_tables &t, uint32_t r, uint64_t waited)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_peer_stats *s = &c.stats[r];

	c.src_rows[r] = t.rows[r];
	c.src_parts[r] = t.return_parts[r];
	if (a.src_counts) {
		a.src_counts[r] = (int32_t)t.rows[r];
	}
	s->wait_ns += waited;
	s->wait_max_ns = waited > s->wait_max_ns ? waited : s->wait_max_ns;
	s->rx_rows += t.rows[r];
	s->rx_bytes += (uint64_t)t.rows[r] *
		       ep_ll_row_stride(c.row_quads, c.lines && !ep_ll_remote(c, r));
	s->ops++;
}

#define EP_LL_RECV_BATCH 8 /* sources whose counts are loaded before they are added */

/* First rows of expert e's sources, from their counts. Returns the expert's rows. One thread. */
EP_DEV uint32_t ep_ll_recv_expert(const struct ep_ll_common &c, const struct ep_ll_recv_tables &t,
				  uint32_t e)
{
	uint32_t sum = 0;

	for (uint32_t r0 = 0; r0 < c.nranks; r0 += EP_LL_RECV_BATCH) {
		uint32_t n[EP_LL_RECV_BATCH];

#pragma unroll
		for (int i = 0; i < EP_LL_RECV_BATCH; i++) {
			uint32_t r = r0 + i;

			n[i] = r < c.nranks && !t.absent[r]
				       ? ep_min_u32(t.base[r * c.nlocal + e], c.max_tokens * c.topk)
				       : 0;
		}
#pragma unroll
		for (int i = 0; i < EP_LL_RECV_BATCH; i++) {
			if (r0 + i < c.nranks) {
				t.base[(r0 + i) * c.nlocal + e] = sum;
				sum += n[i];
			}
		}
	}
	return ep_min_u32(sum, c.nranks * c.max_tokens);
}

EP_DEV void ep_ll_recv_tables_clear(const struct ep_ll_common &c, const struct ep_ll_recv_tables &t,
				    uint32_t *failed)
{
	for (uint32_t r = ep_tid(); r < c.nranks; r += ep_nthreads()) {
		t.absent[r] = !ep_ll_active(c, r);
		t.rows[r] = 0;
		t.parts[r] = 0;
		t.return_parts[r] = 0;
	}
	if (ep_tid() == 0) {
		*failed = 0;
	}
	ep_block_sync();
}

/* Awaits every source's counts. *failed is set when a source fails; a barrier must follow. */
EP_DEV void ep_ll_recv_counts(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			      const struct ep_ll_recv_tables &t, uint32_t *failed)
{
	const struct ep_ll_common &c = a.c;
	uint32_t counts = c.layout == EP_LL_EXPERT_MAJOR ? c.nranks * c.nlocal : 0;

	for (uint32_t i = ep_tid(); i < counts; i += ep_nthreads()) {
		uint32_t r = ep_div(i, c.by_local);

		if (!t.absent[r] &&
		    !ep_ll_wait_word(c, op,
				     ep_ll_packets(c, op, c.rank) + a.count_off + 8 * (size_t)i,
				     &t.base[i], EP_WAIT_DISPATCH_COUNT, r)) {
			t.absent[r] = 1;
			*failed = 1;
		}
	}
	/* the last threads, which have fewer counts to await; two for each source */
	for (uint32_t j = ep_nthreads() - 1 - ep_tid(); j < 2 * c.nranks; j += ep_nthreads()) {
		uint32_t r = j >> 1;

		if (!t.absent[r] && !ep_ll_recv_ctrl(a, op, t, r, j & 1)) {
			t.absent[r] = 1;
			*failed = 1;
		}
	}
}

/* Turns the counts into first rows. Holds barriers; false when the group is aborted. */
EP_DEV bool ep_ll_recv_resolve(const struct ep_ll_dispatch_args &a,
			       const struct ep_ll_recv_tables &t, bool first_block,
			       const uint32_t *failed)
{
	const struct ep_ll_common &c = a.c;
	bool expert_major = c.layout == EP_LL_EXPERT_MAJOR;
	EP_SHARED(uint32_t, stop);

	ep_block_sync();
	if (*failed) {
		if (ep_tid() == 0) {
			stop = ep_ll_aborted(c.state);
		}
		for (uint32_t r = ep_tid(); r < c.nranks; r += ep_nthreads()) {
			t.rows[r] = t.absent[r] ? 0 : t.rows[r];
		}
		ep_block_sync();
		if (stop) {
			return false;
		}
	}
	for (uint32_t e = ep_tid(); expert_major && e < c.nlocal; e += ep_nthreads()) {
		uint32_t rows = ep_ll_recv_expert(c, t, e);

		if (first_block) {
			c.counts[e] = rows;
			a.expert_counts[e] = (int32_t)rows;
		}
	}
	ep_block_sync();
	return true;
}

/*
 * An expert has room for every token of every rank once. Only tokens that name it twice can
 * overflow it: what does not fit is left out, returns as zeros, and is reported.
 */
EP_DEV void ep_ll_overflow(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t src,
			   uint32_t token, uint32_t k, uint32_t expert)
{
	struct ep_ll_record r = {};

	r.cause = EP_LL_CAUSE_OVERFLOW;
	r.peer = src;
	r.step = op.step;
	r.token = token;
	r.k = k;
	r.value = expert;
	r.expected = (int64_t)c.nranks * c.max_tokens;
	ep_ll_record_write(c.state, c.records, EP_LL_RECORD_ROUTING, r);
}

/* Expert-major: lane k learns the output row of (token, k), if its expert is here. One warp. */
EP_DEV struct ep_ll_placing ep_ll_place_expert_major(const struct ep_ll_common &c,
						     const struct ep_ll_op &op,
						     const struct ep_ll_recv_tables &t,
						     uint32_t d0, uint32_t d1, uint32_t src,
						     uint32_t at, bool remember)
{
	uint32_t k = ep_lane(), cap = c.nranks * c.max_tokens;
	uint32_t token = ep_shfl_u32(EP_FULL_MASK, d0, 0);
	uint32_t odd = ep_shfl_u32(EP_FULL_MASK, d1, k / 2);
	uint32_t even = ep_shfl_u32(EP_FULL_MASK, d0, (k + 1) / 2);
	uint32_t word = k >= c.topk ? EP_LL_NO_ROW : k & 1 ? even : odd;
	struct ep_ll_placing w;

	w.row = EP_LL_NO_ROW;
	if (word != EP_LL_NO_ROW) {
		uint32_t e = word >> 18;
		uint32_t pos = e < c.nlocal ? t.base[src * c.nlocal + e] + (word & 0x3ffff) : cap;

		if (pos < cap && token < c.max_tokens) {
			w.row = e * cap + pos;
		}
	}
	if (remember && k < c.topk) {
		bool lost = word != EP_LL_NO_ROW && w.row == EP_LL_NO_ROW;

		c.slot_row[(size_t)at * c.topk + k] = lost ? EP_LL_ZERO_ROW : w.row;
		if (src == c.rank && word != EP_LL_NO_ROW && token < c.max_tokens) {
			c.route[(size_t)token * c.topk + k] = w.row; /* NO_ROW: no route */
		}
		if (lost) {
			ep_ll_overflow(c, op, src, token, k, word >> 18);
		}
	}
	if (remember && k == 0) {
		c.slot_token[at] = EP_LL_SLOT(token, 0);
	}
	w.hits = ep_ballot(EP_FULL_MASK, w.row != EP_LL_NO_ROW);
	return w;
}

/* Rank-major: one output row; lane k writes the token's k-th id and weight. One warp. */
EP_DEV struct ep_ll_placing ep_ll_place_rank_major(const struct ep_ll_dispatch_args &a, uint32_t d0,
						   uint32_t d1, uint32_t src, uint32_t slot,
						   bool remember)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), row = src * c.max_tokens + slot;
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

		c.slot_token[row] = EP_LL_SLOT(token, first);
		if (src == c.rank) {
			c.route[(size_t)token * c.topk + first] = row;
		}
	}
	w.row = k == 0 ? row : EP_LL_NO_ROW;
	w.hits = 1;
	return w;
}

/* Part `part` of the row in slot `slot` of source `src`. */
struct ep_ll_recv_item {
	uint32_t src;
	uint32_t slot;
	uint32_t part;
};

/*
 * The i-th piece of work of all: round j takes the j-th part of every source, so that no source
 * waits for another's rows.
 */
EP_DEV struct ep_ll_recv_item ep_ll_recv_item_make(const struct ep_ll_common &c,
						   const struct ep_ll_recv_tables &t, uint32_t i)
{
	uint32_t j = ep_div(i, c.by_ranks), turn = i - j * c.nranks + j + c.rank;
	struct ep_ll_recv_item w;

	w.src = turn - ep_div(turn, c.by_ranks) * c.nranks;
	if (c.lines) {
		w.slot = ep_div(j, c.by_peer_parts);
		w.part = j - w.slot * c.peer_parts;
	} else {
		w.slot = j / ep_max_u32(t.parts[w.src], 1);
		w.part = j - w.slot * t.parts[w.src];
	}
	return w;
}

/* One part of one row. One warp. False when the source failed on the way. */
template <bool FP8, bool NET>
EP_DEV bool ep_ll_recv_part(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			    const struct ep_ll_recv_tables &t, const struct ep_ll_recv_item &i)
{
	const struct ep_ll_common &c = a.c;
	uint32_t at = i.src * c.max_tokens + i.slot, d0 = EP_LL_NO_ROW, d1 = EP_LL_NO_ROW;
	uint32_t first, end;
	const unsigned char *header = ep_ll_packets(c, op, c.rank) + a.header_off +
				      (size_t)at * a.header_bytes + 16 * ep_lane();
	bool remote = NET && ep_ll_remote(c, i.src), as_lines = c.lines && !remote;
	const unsigned char *in = remote ? c.heap[c.rank] + ep_ll_net_row(c, op, at)
					 : ep_ll_row(c, op, c.rank, at);
	struct ep_ll_lines lines;
	struct ep_ll_placing w;
	bool ok = true;

	ep_ll_part(c.row_quads,
		   c.lines ? c.peer_chunk
			   : ep_ll_chunk(c.row_quads, t.parts[i.src], FP8 ? EP_LL_FP8_UNIT_QUADS : 1),
		   i.part, &first, &end);
	if (first == end) {
		return true;
	}
	if (as_lines) { /* together with the header: most often both are there */
		ep_ll_lines_load(op, in, first, end, &lines);
	}
	if (16 * ep_lane() < a.header_bytes) {
		ok = ep_ll_wait_packet(c, op, header, &d0, &d1, EP_WAIT_DISPATCH_ROW, i.src);
	}
	if (!ep_all(EP_FULL_MASK, ok)) {
		if (c.layout == EP_LL_RANK_MAJOR && i.part == 0 && ep_lane() < c.topk) {
			a.out_idx[(size_t)at * c.topk + ep_lane()] = -1; /* announced, never sent */
		}
		return false;
	}
	w = c.layout == EP_LL_EXPERT_MAJOR
		    ? ep_ll_place_expert_major(c, op, t, d0, d1, i.src, at, i.part == 0)
		    : ep_ll_place_rank_major(a, d0, d1, i.src, i.slot, i.part == 0);
	if (as_lines) {
		return ep_ll_recv_lines<FP8>(a, op, w, in, i.src, first, end, &lines);
	}
	if (ep_lane() == 0 && remote) {
		ok = ep_ll_net_wait(c, op, i.src, c.layout == EP_LL_EXPERT_MAJOR ? d0 : d0 >> 16,
				    t.channel_tokens[i.src], EP_WAIT_DISPATCH_ROW);
	} else if (ep_lane() == 0) {
		ok = ep_ll_wait_flag(c, op, ep_ll_row_flag(c, op, c.rank, at, i.part),
				     EP_WAIT_DISPATCH_ROW, i.src);
	}
	ok = ep_all(EP_FULL_MASK, ok);
	ep_warp_sync(EP_FULL_MASK); /* what lane 0 has acquired, the others may read */
	if (ok) {
		ep_ll_recv_bytes<FP8>(a, w, in, first, end);
	}
	return ok;
}

/* Rank-major: ids of rows that no source sent. */
EP_DEV void ep_ll_recv_unused(const struct ep_ll_dispatch_args &a,
			      const struct ep_ll_recv_tables &t, uint32_t block, uint32_t blocks)
{
	const struct ep_ll_common &c = a.c;
	uint32_t per_rank = c.max_tokens * c.topk;

	for (uint32_t i = block * ep_nthreads() + ep_tid(); i < c.nranks * per_rank;
	     i += blocks * ep_nthreads()) {
		if (i % per_rank >= t.rows[i / per_rank] * c.topk) {
			a.out_idx[i] = -1;
		}
	}
}

template <bool FP8, bool NET>
EP_DEV void ep_ll_dispatch_recv(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
				uint32_t block, uint32_t blocks)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_recv_tables t = ep_ll_recv_tables_make(c);
	uint32_t most = 0;
	uint64_t waited;
	EP_SHARED(uint32_t, failed);

	ep_ll_recv_tables_clear(c, t, &failed);
	waited = block == 0 ? ep_time_ns() : 0;
	ep_ll_recv_counts(a, op, t, &failed);
	waited = block == 0 ? ep_time_ns() - waited : 0;
	if (!ep_ll_recv_resolve(a, t, block == 0, &failed)) {
		return;
	}
	for (uint32_t r = 0; r < c.nranks; r++) {
		most = ep_max_u32(most, t.rows[r] * (c.lines ? c.peer_parts : t.parts[r]));
	}
	for (uint32_t i = block * ep_nwarps() + ep_warp(); i < most * c.nranks; i += blocks * ep_nwarps()) {
		struct ep_ll_recv_item w = ep_ll_recv_item_make(c, t, i);

		if (w.slot < t.rows[w.src] && !ep_ll_recv_part<FP8, NET>(a, op, t, w) &&
		    ep_ll_aborted(c.state)) {
			return;
		}
	}
	/* at the end, where nobody waits for it; the threads that awaited the sources' ctrl packets */
	for (uint32_t j = ep_nthreads() - 1 - ep_tid(); block == 0 && j < 2 * c.nranks;
	     j += ep_nthreads()) {
		if (j & 1) {
			ep_ll_recv_remember(a, t, j >> 1, waited);
		}
	}
	if (c.layout == EP_LL_RANK_MAJOR) {
		ep_ll_recv_unused(a, t, block, blocks);
	}
}

#endif
