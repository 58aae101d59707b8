/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch, receive half: rows to their experts. */
#ifndef EP_DEVICE_LL_DISPATCH_RECV_H
#define EP_DEVICE_LL_DISPATCH_RECV_H

#include "device/group/group_remote.h"
#include "device/group/group_step.h"
#include "device/ll/ll_dispatch_counts.h"
#include "device/ll/ll_dispatch_place.h"

/* Part `part` of the row in slot `slot` of source `src`. */
struct ep_ll_recv_item {
	uint32_t src;
	uint32_t slot;
	uint32_t part;
};

/*
 * The i-th item of work of all: the sources take turns, and turn j is the j-th part of each, so
 * that no source waits for another's rows.
 */
EP_DEV struct ep_ll_recv_item ep_ll_recv_item_make(const struct ep_ll_common &c,
						   const struct ep_ll_recv_tables &tables,
						   uint32_t i)
{
	uint32_t j = ep_div(i, c.g.by_ranks), turn = i - j * c.g.nranks + j + c.g.rank;
	struct ep_ll_recv_item w;

	w.src = turn - ep_div(turn, c.g.by_ranks) * c.g.nranks;
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
EP_DEV void ep_ll_overflow(const struct ep_ll_common &c, const struct ep_op &op, uint32_t src,
			   uint32_t token, uint32_t k, uint32_t expert)
{
	struct ep_record r = {};

	r.cause = EP_CAUSE_OVERFLOW;
	r.peer = src;
	r.step = op.step;
	r.token = token;
	r.k = k;
	r.value = expert;
	r.expected = (int64_t)c.g.nranks * c.max_tokens;
	ep_record_write(c.g, EP_RECORD_ROUTING, r);
}

/* Expert-major: lane k learns the output row of (token, k), if its expert is here. One warp. */
EP_DEV struct ep_ll_placing ep_ll_place_expert_major(const struct ep_ll_common &c,
						     const struct ep_op &op,
						     const struct ep_ll_recv_tables &tables,
						     uint32_t d0, uint32_t d1,
						     const struct ep_ll_recv_item &item)
{
	uint32_t k = ep_lane(), cap = c.g.nranks * c.max_tokens, src = item.src;
	uint32_t at = src * c.max_tokens + item.slot;
	bool remember = item.part == 0;
	uint32_t token = ep_shfl_u32(EP_FULL_MASK, d0, 0);
	uint32_t odd = ep_shfl_u32(EP_FULL_MASK, d1, k / 2);
	uint32_t even = ep_shfl_u32(EP_FULL_MASK, d0, (k + 1) / 2);
	uint32_t word = k >= c.topk ? EP_LL_NO_ROW : k & 1 ? even : odd;
	struct ep_ll_placing w;

	w.row = EP_LL_NO_ROW;
	if (word != EP_LL_NO_ROW) {
		uint32_t e = word >> 18;
		uint32_t pos = e < c.nlocal ? tables.base[src * c.nlocal + e] + (word & 0x3ffff)
					    : cap;

		if (pos < cap && token < c.max_tokens) {
			w.row = e * cap + pos;
		}
	}
	if (remember && k < c.topk) {
		bool lost = word != EP_LL_NO_ROW && w.row == EP_LL_NO_ROW;

		c.h.slot_row[(size_t)at * c.topk + k] = lost ? EP_LL_ZERO_ROW : w.row;
		if (src == c.g.rank && word != EP_LL_NO_ROW && token < c.max_tokens) {
			c.h.route[(size_t)token * c.topk + k] = w.row; /* NO_ROW: no route */
		}
		if (lost) {
			ep_ll_overflow(c, op, src, token, k, word >> 18);
		}
	}
	if (remember && k == 0) {
		c.h.slot_token[at] = EP_LL_SLOT(token, 0);
	}
	w.hits = ep_ballot(EP_FULL_MASK, w.row != EP_LL_NO_ROW);
	return w;
}

/* Rank-major: one output row; lane k writes the token's k-th id and weight. One warp. */
EP_DEV struct ep_ll_placing ep_ll_place_rank_major(const struct ep_ll_dispatch_args &a, uint32_t d0,
						   uint32_t d1, const struct ep_ll_recv_item &item)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), src = item.src, row = src * c.max_tokens + item.slot;
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
EP_DEV uint32_t ep_ll_arrival_at(const struct ep_ll_common &c, const struct ep_ll_recv_item &item)
{
	return (REMOTE ? c.g.remote->places[item.src].here : item.src) * c.max_tokens + item.slot;
}

template <bool FP8, bool REMOTE>
EP_DEV struct ep_ll_arrival ep_ll_arrival_make(const struct ep_ll_common &c, const struct ep_op &op,
					       const struct ep_ll_recv_tables &tables,
					       const struct ep_ll_recv_item &item)
{
	uint32_t at = ep_ll_arrival_at<REMOTE>(c, item);
	struct ep_ll_arrival p;

	p.remote = REMOTE && ep_rank_remote(c.g, item.src);
	p.lines = c.lines && !p.remote;
	p.row = p.remote ? c.g.own + ep_ll_remote_row(c, op, at) : ep_ll_row(c, op, c.g.own, at);
	ep_ll_part(c.row_quads,
		   c.lines ? c.peer_part_quads
			   : ep_ll_part_quads(c.row_quads, tables.parts[item.src],
					      FP8 ? EP_LL_TILE_QUADS : 1),
		   item.part, &p.first, &p.end);
	return p;
}

/* Waits for a part that came as bytes, of the source's token `token`. One warp. */
template <bool REMOTE>
EP_DEV bool ep_ll_arrival_wait(const struct ep_ll_common &c, const struct ep_op &op,
			       const struct ep_ll_recv_tables &tables,
			       const struct ep_ll_recv_item &item,
			       const struct ep_ll_arrival &arrival, uint32_t token)
{
	bool ok = true;

	if (ep_lane() == 0 && REMOTE && arrival.remote) {
		ok = ep_remote_wait(c.g, op, item.src, token, tables.channel_tokens[item.src],
				    EP_WAIT_DISPATCH_ROW);
	} else if (ep_lane() == 0) {
		uint32_t at = ep_ll_arrival_at<REMOTE>(c, item);

		ok = ep_wait_flag(c.g, op, ep_ll_row_flag(c, op, c.g.own, at, item.part),
				  ep_ll_flag_value(op, op.epoch), EP_WAIT_DISPATCH_ROW, item.src);
	}
	ok = ep_all(EP_FULL_MASK, ok);
	ep_warp_sync(EP_FULL_MASK); /* what lane 0 has acquired, the others may read */
	return ok;
}

/* Whose row it is: the lane's packet of its header. One warp; false when the source failed. */
EP_DEV bool ep_ll_header_wait(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			      const struct ep_ll_recv_item &item, uint32_t *d0, uint32_t *d1)
{
	const struct ep_ll_common &c = a.c;
	uint32_t at = item.src * c.max_tokens + item.slot;
	const unsigned char *header = ep_ll_packets(c, op, c.g.own) + a.header_off +
				      (size_t)at * a.header_bytes + 16 * ep_lane();
	bool ok = true;

	*d0 = *d1 = EP_LL_NO_ROW;
	if (16 * ep_lane() < a.header_bytes) {
		ok = ep_wait_packet(c.g, op, header, d0, d1, EP_WAIT_DISPATCH_ROW, item.src);
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
	EP_LL_RECV_AGAIN /* nothing was placed: a source is absent, the tables have to be made anew */
};

/* One part of one row. One warp. */
template <bool FP8, bool REMOTE>
EP_DEV enum ep_ll_recv_result ep_ll_recv_part(const struct ep_ll_dispatch_args &a,
					      const struct ep_op &op,
					      const struct ep_ll_recv_tables &tables,
					      const struct ep_ll_recv_item &item,
					      struct ep_ll_decisions *decisions)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_arrival p = ep_ll_arrival_make<FP8, REMOTE>(c, op, tables, item);
	bool expert_major = c.layout == EP_LL_EXPERT_MAJOR;
	struct ep_ll_lines<EP_LL_BATCH_OF(FP8)> lines;
	struct ep_ll_placing w;
	uint32_t d0, d1;

	if (p.first == p.end) {
		return EP_LL_RECV_DONE;
	}
	if (p.lines) { /* together with the header: most often both are there */
		ep_ll_lines_load(p.row, p.first, p.end, &lines);
	}
	if (!ep_ll_header_wait(a, op, item, &d0, &d1)) {
		return EP_LL_RECV_FAILED;
	}
	if (!ep_ll_decisions_agree(a, op, tables, decisions)) {
		return EP_LL_RECV_AGAIN;
	}
	w = expert_major ? ep_ll_place_expert_major(c, op, tables, d0, d1, item)
			 : ep_ll_place_rank_major(a, d0, d1, item);
	if (p.lines) {
		return ep_ll_recv_lines<FP8>(a, op, w, p, item.src, &lines) ? EP_LL_RECV_DONE
									    : EP_LL_RECV_FAILED;
	}
	if (!ep_ll_arrival_wait<REMOTE>(c, op, tables, item, p, expert_major ? d0 : d0 >> 16)) {
		return EP_LL_RECV_FAILED;
	}
	ep_ll_recv_bytes<FP8>(a, w, p);
	return EP_LL_RECV_DONE;
}

/* Rank-major: ids of rows that no source sent. */
EP_DEV void ep_ll_recv_unused(const struct ep_ll_dispatch_args &a,
			      const struct ep_ll_recv_tables &tables, uint32_t worker,
			      uint32_t workers)
{
	const struct ep_ll_common &c = a.c;

	for (uint32_t src = 0; src < c.g.nranks; src++) {
		int32_t *idx = a.out_idx + (size_t)src * c.max_tokens * c.topk;

		for (uint32_t i = tables.rows[src] * c.topk + worker * EP_WARP_SIZE + ep_lane();
		     i < c.max_tokens * c.topk; i += workers * EP_WARP_SIZE) {
			idx[i] = -1;
		}
	}
}

/* The warp's share of all parts. The result is the same for all warps of a block, if it is AGAIN. */
template <bool FP8, bool REMOTE>
EP_DEV enum ep_ll_recv_result ep_ll_recv_rows(const struct ep_ll_dispatch_args &a,
					      const struct ep_op &op,
					      const struct ep_ll_recv_tables &tables,
					      uint32_t worker, uint32_t workers)
{
	const struct ep_ll_common &c = a.c;
	enum ep_ll_recv_result result = EP_LL_RECV_DONE;
	struct ep_ll_decisions decisions;
	uint32_t most = 0;

	ep_ll_decisions_load(c, &decisions);
	if (c.g.nranks > EP_LL_DECISION_RANKS && !decisions.done &&
	    !ep_ll_decisions_beyond(a, op, tables)) {
		return EP_LL_RECV_AGAIN;
	}
	for (uint32_t r = 0; r < c.g.nranks; r++) {
		most = ep_max_u32(most,
				  tables.rows[r] * (c.lines ? c.peer_parts : tables.parts[r]));
	}
	for (uint32_t i = worker; i < most * c.g.nranks; i += workers) {
		struct ep_ll_recv_item w = ep_ll_recv_item_make(c, tables, i);

		if (w.slot >= tables.rows[w.src]) {
			continue;
		}
		result = ep_ll_recv_part<FP8, REMOTE>(a, op, tables, w, &decisions);
		if (result == EP_LL_RECV_AGAIN) {
			return result;
		}
		if (result == EP_LL_RECV_FAILED && ep_aborted(c.g)) {
			break;
		}
	}
	return ep_ll_decisions_agree(a, op, tables, &decisions) ? result : EP_LL_RECV_AGAIN;
}

template <bool FP8, bool REMOTE>
EP_DEV void ep_ll_dispatch_recv(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				uint32_t block, uint32_t blocks)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_recv_tables t = ep_ll_recv_tables_make(c);
	uint32_t worker = block * ep_nwarps() + ep_warp(), workers = blocks * ep_nwarps();
	/* not the first, which has a part even of a single row, nor the last to start */
	bool remembers = block == blocks / 2;
	enum ep_ll_recv_result result;
	uint64_t waited;
	EP_SHARED(uint32_t, failed);

	ep_ll_recv_tables_clear(c, op, t, &failed);
	for (;;) {
		waited = remembers ? ep_time_ns() : 0;
		ep_ll_recv_counts(a, op, t, &failed);
		waited = remembers ? ep_time_ns() - waited : 0;
		if (!ep_ll_recv_resolve(a, op, t, remembers, &failed)) {
			return;
		}
		result = ep_ll_recv_rows<FP8, REMOTE>(a, op, t, worker, workers);
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
	for (uint32_t j = ep_nthreads() - 1 - ep_tid(); remembers && j < 2 * c.g.nranks;
	     j += ep_nthreads()) {
		if (j & 1) {
			ep_ll_recv_remember(a, t, j >> 1, waited);
		}
	}
	if (c.layout == EP_LL_RANK_MAJOR) {
		ep_ll_recv_unused(a, t, worker, workers);
	}
	if (remembers && ep_tid() == 0) {
		ep_receipt_leave(c.launch, op);
	}
}

#endif
