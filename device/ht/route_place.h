/* SPDX-License-Identifier: Apache-2.0 */
/* Routing of high throughput: the tables of rows, at their source and where they go. */
#ifndef EP_DEVICE_HT_ROUTE_PLACE_H
#define EP_DEVICE_HT_ROUTE_PLACE_H

#include "device/ht/route_sums.h"

/* The areas that rank r fills in a heap. */
EP_DEV uint32_t *ep_ht_sel_area(const struct ep_ht_common &c, unsigned char *heap, uint32_t r)
{
	return (uint32_t *)(heap + c.areas.sel_off) + (size_t)r * c.max_tokens * c.width;
}

EP_DEV uint32_t *ep_ht_start_area(const struct ep_ht_common &c, unsigned char *heap, uint32_t r)
{
	return (uint32_t *)(heap + c.areas.start_off) + (size_t)r * (ep_ht_table_chunks(c) + 1);
}

/* Where this rank writes those for rank d. */
template <bool NODES> EP_DEV uint32_t *ep_ht_sel_for(const struct ep_ht_common &c, uint32_t d)
{
	unsigned char *heap = ep_heap_of(c.g, d);

	return !NODES || heap ? ep_ht_sel_area(c, heap, c.g.rank) : ep_ht_out_sel(c, d);
}

template <bool NODES> EP_DEV uint32_t *ep_ht_start_for(const struct ep_ht_common &c, uint32_t d)
{
	unsigned char *heap = ep_heap_of(c.g, d);

	return !NODES || heap ? ep_ht_start_area(c, heap, c.g.rank) : ep_ht_out_start(c, d);
}

EP_DEV uint32_t *ep_ht_table_flags(const struct ep_ht_common &c, unsigned char *heap, uint32_t r)
{
	return (uint32_t *)(heap + c.areas.table_off) + (size_t)r * EP_HT_ROUTE_BLOCKS;
}

/* Selection q of the token at `token` in a table of them, the largest number if it has no such. */
EP_DEV uint32_t ep_ht_other(const uint32_t *table, uint32_t token, uint32_t q, uint32_t topk)
{
	return q < topk ? table[token + q] : EP_HT_NONE;
}

/*
 * The span's selections in order: each thread finds how many of the token's are before its own. There is
 * none behind those that are not valid, which are the largest number. Worker `w` of `workers`.
 */
EP_DEV void ep_ht_span_sort(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
			    uint32_t w0, uint32_t w, uint32_t workers)
{
	uint32_t topk = a.c.topk, ids = ep_ht_span_tokens(route, w0) * topk;

	if (w == 0) {
		*route.nleads = 0;
	}
	for (uint32_t i = w; i < ids; i += workers) {
		uint32_t token = ep_div(i, a.by_topk) * topk, k = i - token, id = route.id[i];
		uint32_t before = 0, again = 0;

		EP_UNROLL(1)
		for (uint32_t q0 = 0; q0 < topk; q0 += EP_HT_ROUTE_OTHERS) {
			EP_UNROLL()
			for (uint32_t j = 0; j < EP_HT_ROUTE_OTHERS; j++) {
				uint32_t other = ep_ht_other(route.id, token, q0 + j, topk);
				bool same = other == id && q0 + j < k;

				before += other < id || same;
				again |= same ? EP_HT_SEL_AGAIN : 0;
			}
		}
		route.sel[token + before] = id == EP_HT_NONE ? EP_HT_NONE
							     : EP_HT_SEL(id, k) | again;
	}
}

/* Notes selection i if a row's list begins with it. One warp. */
EP_DEV void ep_ht_leads_add(const struct ep_ht_route &route, uint32_t i, bool lead)
{
	uint32_t lane = ep_lane(), leads = ep_ballot(EP_FULL_MASK, lead), at = 0;

	if (lane == 0) {
		at = ep_shared_add_u32(route.nleads, ep_popc(leads));
	}
	at = ep_shfl_u32(EP_FULL_MASK, at, 0);
	if (lead) {
		route.leads[at + ep_popc(leads & ((1u << lane) - 1))] = i;
	}
}

/*
 * Writes the row's list, of which each selection is a part, by the order. Those of a rank lie side
 * by side, and a warp looks at as many whole tokens as it has lanes for.
 */
EP_DEV void ep_ht_span_runs(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
			    uint32_t w0)
{
	uint32_t topk = a.c.topk, ids = ep_ht_span_tokens(route, w0) * topk, lane = ep_lane();
	uint32_t lanes = ep_div(EP_WARP_SIZE, a.by_topk) * topk;
	uint32_t token = ep_div(lane, a.by_topk) * topk, below = (1u << lane) - 1;

	for (uint32_t i0 = ep_warp() * lanes; i0 < ids; i0 += ep_nwarps() * lanes) {
		bool mine = lane < lanes && i0 + lane < ids;
		uint32_t sel = mine ? route.sel[i0 + lane] : EP_HT_NONE;
		uint32_t rank = sel == EP_HT_NONE ? EP_HT_NONE
						  : ep_div(EP_HT_SEL_EXPERT(sel), a.c.by_local);
		uint32_t before = ep_shfl_u32(EP_FULL_MASK, rank, (lane - 1) & 31);
		uint32_t leads = ep_ballot(EP_FULL_MASK, lane == token || rank != before);
		uint32_t counted =
			ep_ballot(EP_FULL_MASK, sel != EP_HT_NONE && !(sel & EP_HT_SEL_AGAIN));
		uint32_t first = 31 - ep_clz(leads & (below | 1u << lane));
		uint32_t later = leads & ~(below | 1u << lane);

		counted &= later ? (later & -later) - 1 : ~0u;
		counted &= ~((1u << first) - 1);
		ep_ht_leads_add(route, i0 + lane, first == lane && sel != EP_HT_NONE);
		if (mine) {
			route.run[i0 + lane] = sel == EP_HT_NONE
						       ? 0
						       : EP_HT_RUN(first - token,
								   ep_popc(counted & below),
								   ep_popc(counted));
		}
	}
}

/*
 * Finds the rest of selection i of the span, in the order of `sel`: its row, and its place, if its expert is
 * marked.
 */
EP_DEV void ep_ht_sel_place(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
			    uint32_t w0, uint32_t i, uint32_t e0)
{
	const struct ep_ht_common &c = a.c;
	bool expert_major = c.layout == EP_HT_EXPERT_MAJOR;
	uint32_t local = ep_div(i, a.by_topk), sel = route.sel[i], expert = EP_HT_SEL_EXPERT(sel);
	uint32_t row = EP_HT_NONE, place = EP_HT_NONE, entry = 0;
	size_t out = (size_t)w0 * c.topk + i;

	if (sel == EP_HT_NONE ? e0 != 0 : expert_major && expert - e0 >= route.window) {
		return;
	}
	if (sel != EP_HT_NONE) {
		uint32_t d = ep_div(expert, c.by_local);

		row = route.first[route.experts + d] +
		      ep_ht_bits_before(route.rank_bits + d * route.words, local);
		row = row < route.kept[d] ? row : EP_HT_NONE;
		entry = expert - d * c.nlocal;
	}
	if (expert_major && row != EP_HT_NONE) {
		place = route.first[expert] +
			ep_ht_bits_before(route.bits + (expert - e0) * route.words, local);
		place = place < c.limit ? place : EP_HT_NONE;
		entry = place == EP_HT_NONE ? EP_HT_DROPPED : place;
	}
	route.row[i] = row;
	if (sel != EP_HT_NONE && !(sel & EP_HT_SEL_AGAIN)) {
		uint32_t run = route.run[i];

		route.entry[local * c.topk + EP_HT_RUN_FIRST(run) + EP_HT_RUN_INDEX(run)] = entry;
	}
	c.h.send_sel[out] = sel;
	c.h.send_row[out] = row;
	if (expert_major) {
		c.h.send_place[out] = place;
	}
}

/* Four entries of a list, from `first` on. */
EP_DEV void ep_ht_entries_store(const struct ep_ht_common &c, uint32_t *list, uint32_t first,
				const uint32_t *words)
{
	if (c.width % 4 == 0) {
		struct ep_vec16 v = { words[0], words[1], words[2], words[3] };

		ep_st16(list + first, v);
		return;
	}
	EP_UNROLL()
	for (uint32_t j = 0; j < 4; j++) {
		if (first + j < c.width) {
			list[first + j] = words[j];
		}
	}
}

/*
 * Stores at the destinations of the span's rows what these are. Item i is 16 bytes of a list, if one begins with
 * selection i >> shift: neighbours write what lies side by side.
 */
template <bool NODES>
EP_DEV void ep_ht_span_push(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
			    uint32_t w0)
{
	const struct ep_ht_common &c = a.c;
	uint32_t n = *route.nleads, shift = 0;

	while ((4u << shift) < c.width) {
		shift++;
	}
	for (uint32_t i = ep_tid(); i < n << shift; i += ep_nthreads()) {
		uint32_t at = route.leads[i >> shift], first = 4 * (i & ((1u << shift) - 1));
		uint32_t row = route.row[at], count = EP_HT_RUN_COUNT(route.run[at]), v[4];

		if (row == EP_HT_NONE || first >= c.width) {
			continue;
		}
		EP_UNROLL()
		for (uint32_t j = 0; j < 4; j++) {
			v[j] = first + j < count ? route.entry[at + first + j] : EP_HT_NONE;
		}

		uint32_t d = ep_div(EP_HT_SEL_EXPERT(route.sel[at]), c.by_local);
		uint32_t *area = ep_ht_sel_for<NODES>(c, d);

		ep_ht_entries_store(c, area + (size_t)row * c.width, first, v);
	}
}

/* The span's chunks: where their rows begin. */
template <bool NODES>
EP_DEV void ep_ht_span_starts(const struct ep_ht_common &c, const struct ep_ht_route &route,
			      uint32_t w0)
{
	uint32_t n = ep_ht_span_tokens(route, w0), chunks = ep_ht_table_chunks(c);

	for (uint32_t d = ep_warp(); d < c.g.nranks; d += ep_nwarps()) {
		uint32_t *there = ep_ht_start_for<NODES>(c, d);

		for (uint32_t local = ep_lane() << c.areas.chunk_shift; local < n;
		     local += EP_WARP_SIZE << c.areas.chunk_shift) {
			uint32_t row = route.first[route.experts + d] +
				       ep_ht_bits_before(route.rank_bits + d * route.words, local);
			uint32_t chunk = (w0 + local) >> c.areas.chunk_shift;

			if (NODES && ep_rank_remote(c.g, d)) {
				ep_ht_mask_leave(c, route, d, local, row, chunk);
			}
			row = ep_min_u32(row, route.kept[d]);
			c.h.send_start[(size_t)d * (chunks + 1) + chunk] = row;
			there[chunk] = row;
		}
	}
}

/*
 * The same behind the last token's chunk; the blocks share them, and in a block other warps than those that have
 * the span's chunks of few ranks.
 */
template <bool NODES>
EP_DEV void ep_ht_rest_starts(const struct ep_ht_common &c, const struct ep_ht_route &route)
{
	uint32_t chunks = ep_ht_table_chunks(c);

	for (uint32_t d = ep_nwarps() - 1 - ep_warp(); d < c.g.nranks; d += ep_nwarps()) {
		uint32_t *there = ep_ht_start_for<NODES>(c, d);

		for (uint32_t chunk = ep_ht_chunks(c.num_tokens, c.areas.chunk_shift) +
				      ep_block() * EP_WARP_SIZE + ep_lane();
		     chunk <= chunks; chunk += ep_nblocks() * EP_WARP_SIZE) {
			c.h.send_start[(size_t)d * (chunks + 1) + chunk] = route.kept[d];
			there[chunk] = route.kept[d];
		}
	}
}

/* Publishes to all ranks that this block's part of their tables is there. One block. */
template <bool NODES>
EP_DEV void ep_ht_tables_announce(const struct ep_ht_common &c, const struct ep_op &op)
{
	ep_block_sync();
	if (ep_warp() != 0) {
		return;
	}
	ep_release_fence_sys();
	for (uint32_t d = ep_lane(); d < c.g.nranks; d += EP_WARP_SIZE) {
		unsigned char *heap = ep_heap_of(c.g, d);

		for (uint32_t b = ep_block(); (!NODES || heap) && b < EP_HT_ROUTE_BLOCKS;
		     b += ep_nblocks()) {
			ep_st_fenced_sys_u32(ep_ht_table_flags(c, heap, c.g.rank) + b, op.epoch);
		}
	}
}

/* Have the tables of source s come? One warp. */
template <bool NODES>
EP_DEV bool ep_ht_tables_wait(const struct ep_ht_common &c, const struct ep_op &op, uint32_t s)
{
	bool ok = true;

	if (NODES && ep_rank_remote(c.g, s)) {
		return ep_ht_signal_wait(c, op, s, EP_HT_ROWS, 1, EP_WAIT_HT_TABLE);
	}
	for (uint32_t b = ep_lane(); b < EP_HT_ROUTE_BLOCKS; b += EP_WARP_SIZE) {
		const uint32_t *flag = ep_ht_table_flags(c, c.g.own, s) + b;

		ok = ep_ht_flag_wait<NODES>(c, op, flag, EP_WAIT_HT_TABLE, s);
	}
	return ok;
}

/* Keeps the tables of source s, which have come: worker `w` of `workers`. */
template <bool NODES>
EP_DEV void ep_ht_tables_keep(const struct ep_ht_common &c, const struct ep_ht_route &route,
			      uint32_t s, uint32_t w, uint32_t workers)
{
	const uint32_t *sel = ep_ht_sel_area(c, c.g.own, s);
	const uint32_t *start = ep_ht_start_area(c, c.g.own, s);
	uint32_t *sel_out = c.h.recv_sel + (size_t)route.from[s] * c.width;
	uint32_t words = (route.from[s + 1] - route.from[s]) * c.width;
	uint32_t starts = ep_ht_table_chunks(c) + 1;

	if (c.width % 4 == 0) {
		EP_UNROLL(2)
		for (uint32_t i = 4 * w; i < words; i += 4 * workers) {
			ep_st16(sel_out + i, ep_ld16_fresh(sel + i));
		}
	} else {
		EP_UNROLL(2)
		for (uint32_t i = w; i < words; i += workers) {
			sel_out[i] = ep_ld_relaxed_sys_u32(sel + i);
		}
	}
	for (uint32_t i = w; i < starts; i += workers) {
		c.h.recv_start[(size_t)s * starts + i] = ep_ld_relaxed_sys_u32(start + i);
	}
	if (NODES) {
		ep_ht_masks_keep(c, s, w, workers);
	}
}

/*
 * Waits for the tables of those sources that the block keeps, and keeps them: with few ranks several
 * blocks share a source. `everything`: waits for all sources. False when one has failed. All threads.
 */
template <bool NODES>
EP_DEV bool ep_ht_tables_take(const struct ep_ht_common &c, const struct ep_op &op,
			      const struct ep_ht_route &route, bool everything, uint32_t *failed)
{
	uint32_t step = ep_min_u32(c.g.nranks, ep_nblocks());
	uint32_t part = ep_block() / step, s0 = ep_block() - part * step;
	uint32_t parts = (ep_nblocks() - s0 + step - 1) / step;

	for (uint32_t i = ep_warp(), s; (s = everything ? i : s0 + i * step) < c.g.nranks;
	     i += ep_nwarps()) {
		if (!ep_all(EP_FULL_MASK, ep_ht_tables_wait<NODES>(c, op, s)) && ep_lane() == 0) {
			ep_shared_or_u32(failed, 1);
		}
	}
	ep_block_sync();
	if (*failed) {
		return false;
	}
	for (uint32_t s = s0; s < c.g.nranks; s += step) {
		ep_ht_tables_keep<NODES>(c, route, s, part * ep_nthreads() + ep_tid(),
					 parts * ep_nthreads());
	}
	return true;
}

#endif
