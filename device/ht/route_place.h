/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routing of high throughput: where each row belongs. What follows is written to this rank's tables
 * and to its peers', kept in handle memory when it has come from those, and given to the caller.
 */
#ifndef EP_DEVICE_HT_ROUTE_PLACE_H
#define EP_DEVICE_HT_ROUTE_PLACE_H

#include "device/ht/route_count.h"
#include "device/ht/units.h"

/*
 * ---- what goes to ranks of other nodes ----
 *
 * A NIC sends it, so it is written to this rank's own heap first: tables, and masks, that is, which
 * of a chunk's tokens go to a rank. The masks of all ranks of a node go to this rank's forwarder
 * there.
 */

/* The masks for remote rank d. */
EP_DEV uint8_t *out_mask(const struct ep_ht_common &c, uint32_t d)
{
	return c.g.own + c.areas.out_mask_off + (size_t)d * c.areas.mask_stride;
}

/*
 * The tokens of the span's chunk that begins with token `local` that go to holder h, which is
 * remote. `row`: of the first, if it does; rows from kept[h] on are dropped.
 */
EP_DEV void mask_leave(const struct ep_ht_common &c, const struct ep_ht_route &route, uint32_t h,
		       uint32_t local, uint32_t row, uint32_t chunk)
{
	uint32_t bits = route.rank_bits[h * route.words + local / 32] >> (local & 31) & 0xffu,
		 mask = 0;

	for (; bits && row < route.kept[h]; row++) {
		mask |= bits & (0u - bits);
		bits &= bits - 1;
	}
	out_mask(c, c.roles.first_holder + h)[chunk] = (uint8_t)mask;
}

/*
 * The same for each other node, from the masks of its ranks. The block has a barrier behind those.
 */
EP_DEV void ep_ht_span_nodes(const struct ep_ht_common &c, uint32_t w0, uint32_t tokens)
{
	uint32_t first = w0 / EP_HT_CHUNK, chunks = ep_ht_chunks(tokens, EP_HT_CHUNK_SHIFT);

	for (uint32_t k = ep_warp(); k < c.remote.nodes; k += ep_nwarps()) {
		for (uint32_t chunk = first + ep_lane(); chunk < first + chunks;
		     chunk += EP_WARP_SIZE) {
			uint32_t mask = 0;

			for (uint32_t i = c.remote.remote_first[k];
			     i < c.remote.remote_first[k + 1]; i++) {
				mask |= out_mask(c, c.remote.remote_ranks[i])[chunk];
			}
			c.h.send_nodes[(size_t)k * c.areas.mask_stride + chunk] = (uint8_t)mask;
		}
	}
}

/* No tokens, from that chunk on: masks of rank, or node, `row` of `masks`. */
EP_DEV void rest_masks(const struct ep_ht_common &c, uint8_t *masks, uint32_t row, uint32_t first)
{
	for (uint32_t chunk = first + ep_block() * EP_WARP_SIZE + ep_lane();
	     chunk < c.areas.mask_stride; chunk += ep_nblocks() * EP_WARP_SIZE) {
		masks[(size_t)row * c.areas.mask_stride + chunk] = 0;
	}
}

/*
 * Of all remote ranks, and of all nodes; the blocks share them. They begin behind the last token's
 * chunk; to who holds no experts nothing goes at all.
 */
EP_DEV void ep_ht_rest_nodes(const struct ep_ht_common &c)
{
	uint32_t end = ep_ht_chunks(c.num_tokens, EP_HT_CHUNK_SHIFT);

	for (uint32_t d = ep_warp(); d < c.g.nranks; d += ep_nwarps()) {
		if (ep_rank_remote(c.g, d)) {
			rest_masks(c, c.g.own + c.areas.out_mask_off, d,
				   ep_ht_holder(c, d) < c.roles.told ? end : 0);
		}
	}
	for (uint32_t k = ep_warp(); k < c.remote.nodes; k += ep_nwarps()) {
		rest_masks(c, c.h.send_nodes, k, end);
	}
}

/* The masks of all ranks of node k go to rank r, the forwarder there. One warp. */
EP_DEV bool masks_post(const struct ep_ht_common &c, struct ep_mlx5_post *post, uint32_t r,
		       uint32_t k)
{
	uint32_t first = c.remote.remote_first[k], n = c.remote.remote_first[k + 1] - first;
	const struct ep_ht_flow *flow = &c.remote.forwarders[k];
	bool ok = true;

	for (uint32_t i0 = 0; flow->peer == r && i0 < n && ok; i0 += EP_WARP_SIZE) {
		uint32_t i = i0 + ep_lane(), d = i < n ? c.remote.remote_ranks[first + i] : 0;
		uint64_t to = c.areas.mask_off +
			      ((uint64_t)flow->there * c.remote.most + i) * c.areas.mask_stride;
		uint64_t from = c.areas.out_mask_off + (uint64_t)d * c.areas.mask_stride;

		ok = ep_mlx5_put(post, i < n, ep_mlx5_remote(post, EP_MLX5_REGION_HEAP, to),
				 ep_mlx5_local(post, EP_MLX5_REGION_HEAP, from),
				 c.areas.mask_stride, true);
	}
	return ok;
}

/*
 * Offset in a heap of what rank r's rows are, and of where its chunks begin: r writes there. All
 * handles have the same regions: packets and raw lists, whose words could look like packets, never
 * share one.
 */
EP_DEV uint64_t sel_off(const struct ep_ht_common &c, uint32_t r)
{
	return c.areas.sel_off + (uint64_t)ep_ht_sender(c, r) * c.max_tokens * c.areas.list_stride;
}

EP_DEV uint64_t start_off(const struct ep_ht_common &c, uint32_t r)
{
	return c.areas.start_off + 8 * (uint64_t)ep_ht_sender(c, r) * (ep_ht_table_chunks(c) + 1);
}

/* Does rank r get tables of this rank: of rows for it, or of those that it forwards? */
EP_DEV bool tables_go(const struct ep_ht_common &c, uint32_t r)
{
	return ep_ht_holder(c, r) < c.roles.told ||
	       (c.roles.told && c.remote.forwarders[c.remote.node[r]].peer == r);
}

/* Does this rank get such tables of remote rank s? */
EP_DEV bool tables_come(const struct ep_ht_common &c, uint32_t s)
{
	return ep_ht_sender(c, s) < c.roles.senders &&
	       (c.nlocal || c.remote.return_rings[s].rank == c.g.rank);
}

/* All tables for remote rank r, and the signal behind them. One warp. */
EP_DEV bool tables_post_to(const struct ep_ht_common &c, struct ep_op op,
			   const struct ep_ht_route &route, struct ep_mlx5_post *post, uint32_t r)
{
	uint64_t lists = 4 * (uint64_t)c.max_tokens * c.width;
	uint64_t starts = 4 * ((uint64_t)ep_ht_table_chunks(c) + 1);
	uint32_t h = ep_ht_holder(c, r), bytes = 0;
	bool first = ep_lane() == 0;
	uint64_t to = first ? sel_off(c, c.g.rank) : start_off(c, c.g.rank);
	uint64_t from = first ? c.areas.out_off + r * lists : c.areas.out_start_off + h * starts;

	if (h < c.roles.holders) {
		bytes = first ? 4 * route.kept[h] * c.width : (uint32_t)starts;
	}
	return ep_mlx5_put(post, ep_lane() < 2 && bytes,
			   ep_mlx5_remote(post, EP_MLX5_REGION_HEAP, to),
			   ep_mlx5_local(post, EP_MLX5_REGION_HEAP, from), bytes, true) &&
	       masks_post(c, post, r, c.remote.node[r]) &&
	       ep_mlx5_signal_add(post,
				  ep_remote_signal(c.g, *post, r, EP_HT_ROWS,
						   ep_remote_signal_off(c.g, EP_HT_ROWS),
						   ep_remote_signal_word(op, 1)),
				  false);
}

/*
 * The block's part of the tables is written: the last block posts those of all. True: this one. All
 * threads, behind a barrier.
 */
EP_DEV_COLD bool ep_ht_tables_post(const struct ep_ht_common &c, struct ep_op op,
				   const struct ep_ht_route &route)
{
	uint32_t *ready = c.h.scratch + EP_HT_BLOCKS_READY;
	EP_SHARED(uint32_t, last);

	if (ep_tid() == 0) {
		last = ep_atomic_add_acq_rel_gpu_u32(ready, 1) + 1 == ep_nblocks();
		if (last) {
			ep_st_relaxed_gpu_u32(ready, 0);
		}
	}
	ep_block_sync();
	if (!last) {
		return false;
	}
	op.start_ns = ep_time_ns();
	for (uint32_t r = ep_remote_peer(c.g, ep_warp()); r < c.g.nranks;
	     r = ep_remote_peer(c.g, r + ep_nwarps())) {
		struct ep_mlx5_post p = ep_remote_open(c.g, r, EP_HT_ROWS);

		p.timeout_ns = ep_remote_left(c.g, op, true);
		if (tables_go(c, r) && !tables_post_to(c, op, route, &p, r)) {
			ep_ht_queue_failed(c, op, p, r, EP_WAIT_RDMA_SLOT);
		}
	}
	return true;
}

/*
 * The next kernel may write what was posted: waits until the NIC has done with it. The same block.
 */
EP_DEV_COLD void ep_ht_tables_posted(const struct ep_ht_common &c, struct ep_op op)
{
	op.start_ns = ep_time_ns();
	for (uint32_t r = ep_remote_peer(c.g, ep_warp()); r < c.g.nranks;
	     r = ep_remote_peer(c.g, r + ep_nwarps())) {
		struct ep_mlx5_post p = ep_remote_open(c.g, r, EP_HT_ROWS);

		p.timeout_ns = ep_remote_left(c.g, op, true);
		if (!ep_mlx5_quiet(&p)) {
			ep_ht_queue_failed(c, op, p, r, EP_WAIT_RDMA_COMPLETION);
		}
	}
}

/* Keeps the masks that source s has sent, if this rank forwards for it: worker `w` of `workers`. */
EP_DEV void masks_keep(const struct ep_ht_common &c, uint32_t s, uint32_t w, uint32_t workers)
{
	const struct ep_ht_return_ring *ring = &c.remote.return_rings[s];
	uint32_t stride = c.areas.mask_stride, bytes = c.remote.near * stride;

	if (!ep_rank_remote(c.g, s) || ring->rank != c.g.rank) {
		return;
	}
	size_t x = ring->number / c.remote.near - 1;
	const unsigned char *from = c.g.own + c.areas.mask_off + x * c.remote.most * stride;
	uint8_t *to = c.h.node_masks + x * bytes;

	for (uint32_t i = 16 * w; i < bytes; i += 16 * workers) {
		ep_st16(to + i, ep_ld16_fresh(from + i));
	}
}

/* ---- the tables of rows, at their source and where they go ---- */

/* Entries [first, first + 2) of a row's list to rank d's heap, or for a NIC to the own one. */
template <bool NODES>
EP_DEV void list_store(const struct ep_ht_common &c, const struct ep_op &op, uint32_t d,
		       uint32_t row, uint32_t first, uint32_t v0, uint32_t v1)
{
	unsigned char *heap = ep_heap_of(c.g, d);

	if (!NODES || heap) {
		ep_st_packet(heap + sel_off(c, c.g.rank) + (size_t)row * ep_ht_list_bytes(c.width) +
				     8 * first,
			     v0, v1, op.epoch);
		return;
	}
	uint32_t *list = (uint32_t *)(c.g.own + c.areas.out_off) +
			 ((size_t)d * c.max_tokens + row) * c.width + first;

	list[0] = v0;
	if (first + 1 < c.width) {
		list[1] = v1;
	}
}

/*
 * The first row to rank d of a chunk, to this rank's table and to that rank, if it learns of this
 * one's rows.
 */
template <bool NODES>
EP_DEV void start_store(const struct ep_ht_common &c, const struct ep_op &op, uint32_t d,
			uint32_t chunk, uint32_t row)
{
	size_t at = (size_t)d * (ep_ht_table_chunks(c) + 1) + chunk;
	unsigned char *heap = ep_heap_of(c.g, d);

	c.h.send_start[at] = row;
	if (ep_ht_holder(c, d) >= c.roles.told) {
		return;
	}
	if (!NODES || heap) {
		ep_st_word(heap + start_off(c, c.g.rank) + 8 * (size_t)chunk, row, op.epoch);
	} else {
		at -= (size_t)c.roles.first_holder * (ep_ht_table_chunks(c) + 1);
		((uint32_t *)(c.g.own + c.areas.out_start_off))[at] = row;
	}
}

/*
 * The span's selections in order: each thread finds how many of the token's are before its own.
 * There is none behind those that are not valid, which are the largest number. Worker `w` of
 * `workers`.
 */
EP_DEV void ep_ht_span_sort(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
			    uint32_t w0, uint32_t w, uint32_t workers)
{
	uint32_t topk = a.c.topk, ids = ep_ht_span_tokens(route, w0) * topk;

	if (w == 0) {
		*route.nleads = 0;
	}
	for (uint32_t i = route.skip * topk + w; i < ids; i += workers) {
		uint32_t token = ep_div(i, a.by_topk) * topk, k = i - token, id = route.id[i];
		uint32_t before = 0, again = 0;

		EP_UNROLL(1)
		for (uint32_t q0 = 0; q0 < topk; q0 += EP_HT_ROUTE_OTHERS) {
			EP_UNROLL()
			for (uint32_t j = 0; j < EP_HT_ROUTE_OTHERS; j++) {
				uint32_t q = q0 + j;
				uint32_t other = q < topk ? route.id[token + q] : EP_HT_NONE;
				bool same = other == id && q < k;

				before += other < id || same;
				again |= same ? EP_HT_SEL_AGAIN : 0;
			}
		}
		route.sel[token + before] = id == EP_HT_NONE ? EP_HT_NONE
							     : EP_HT_SEL(id, k) | again;
	}
}

/* Notes selection i if a row's list begins with it. One warp. */
EP_DEV void leads_add(const struct ep_ht_route &route, uint32_t i, bool lead)
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

	for (uint32_t i0 = route.skip * topk + ep_warp() * lanes; i0 < ids;
	     i0 += ep_nwarps() * lanes) {
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
		leads_add(route, i0 + lane, first == lane && sel != EP_HT_NONE);
		if (mine) {
			route.run[i0 + lane] = sel == EP_HT_NONE
						       ? 0
						       : EP_HT_RUN(first - token,
								   ep_popc(counted & below),
								   ep_popc(counted));
		}
	}
}

/* EP_HT_BEFORE of selection i of the span, in the order of `sel`, whose expert is marked. */
EP_DEV uint32_t sel_before(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
			   uint32_t i, uint32_t e0)
{
	uint32_t local = ep_div(i, a.by_topk), expert = EP_HT_SEL_EXPERT(route.sel[i]);
	uint32_t d = ep_div(expert, a.c.by_local), places = 0;

	if (a.c.layout == EP_HT_EXPERT_MAJOR) {
		places = ep_ht_bits_before(route.bits + (expert - e0) * route.words, local);
	}
	return EP_HT_BEFORE(ep_ht_bits_before(route.rank_bits + d * route.words, local), places);
}

/* The same of all selections of the block, whose tokens and experts are all marked. */
EP_DEV void ep_ht_span_before(const struct ep_ht_route_args &a, const struct ep_ht_route &route)
{
	uint32_t ids = ep_ht_span_tokens(route, route.first_span) * a.c.topk;

	for (uint32_t i = route.skip * a.c.topk + ep_tid(); i < ids; i += ep_nthreads()) {
		if (route.sel[i] != EP_HT_NONE) {
			route.row[i] = sel_before(a, route, i, 0);
		}
	}
}

/*
 * Finds the rest of selection i of the span, in the order of `sel`: its row, and its place, if its
 * expert is marked. `before`: route.row has ep_ht_span_before().
 */
EP_DEV void ep_ht_sel_place(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
			    uint32_t w0, uint32_t i, uint32_t e0, bool before)
{
	const struct ep_ht_common &c = a.c;
	bool expert_major = c.layout == EP_HT_EXPERT_MAJOR;
	uint32_t local = ep_div(i, a.by_topk), sel = route.sel[i], expert = EP_HT_SEL_EXPERT(sel);
	uint32_t row = EP_HT_NONE, place = EP_HT_NONE, entry = 0, ahead = 0;
	size_t out = (size_t)w0 * c.topk + i;

	if (sel == EP_HT_NONE ? e0 != 0 : expert_major && expert - e0 >= route.window) {
		return;
	}
	if (sel != EP_HT_NONE) {
		uint32_t d = ep_div(expert, c.by_local);

		ahead = before ? route.row[i] : sel_before(a, route, i, e0);
		row = route.first[route.experts + d] + EP_HT_BEFORE_ROWS(ahead);
		row = row < route.kept[d] ? row : EP_HT_NONE;
		entry = expert - d * c.by_local.d;
	}
	if (expert_major && row != EP_HT_NONE) {
		place = route.first[expert] + EP_HT_BEFORE_PLACES(ahead);
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

/*
 * Stores at the destinations of the span's rows what these are. Item i is two entries of a list, if
 * one begins with selection i >> shift: neighbours write what lies side by side.
 */
template <bool NODES>
EP_DEV void ep_ht_span_push(const struct ep_ht_route_args &a, const struct ep_op &op,
			    const struct ep_ht_route &route)
{
	const struct ep_ht_common &c = a.c;
	uint32_t n = *route.nleads, shift = 0;

	while ((2u << shift) < c.width) {
		shift++;
	}
	for (uint32_t i = ep_tid(); i < n << shift; i += ep_nthreads()) {
		uint32_t at = route.leads[i >> shift], first = 2 * (i & ((1u << shift) - 1));
		uint32_t row = route.row[at], count = EP_HT_RUN_COUNT(route.run[at]);

		if (row == EP_HT_NONE || first >= c.width || first > count) {
			continue;
		}
		list_store<NODES>(c, op, ep_ht_sel_rank(c, route.sel[at]), row, first,
				  first < count ? route.entry[at + first] : EP_HT_NONE,
				  first + 1 < count ? route.entry[at + first + 1] : EP_HT_NONE);
	}
}

/* The span's chunks: where their rows begin. */
template <bool NODES>
EP_DEV void ep_ht_span_starts(const struct ep_ht_common &c, const struct ep_op &op,
			      const struct ep_ht_route &route, uint32_t w0)
{
	uint32_t n = ep_ht_span_tokens(route, w0);

	for (uint32_t h = ep_warp(); h < c.roles.holders; h += ep_nwarps()) {
		for (uint32_t local = route.skip + (ep_lane() << c.areas.chunk_shift); local < n;
		     local += EP_WARP_SIZE << c.areas.chunk_shift) {
			uint32_t row = route.first[route.experts + h] +
				       ep_ht_bits_before(route.rank_bits + h * route.words, local);
			uint32_t chunk = (w0 + local) >> c.areas.chunk_shift;
			uint32_t d = c.roles.first_holder + h;

			if (NODES && ep_rank_remote(c.g, d)) {
				mask_leave(c, route, h, local, row, chunk);
			}
			start_store<NODES>(c, op, d, chunk, ep_min_u32(row, route.kept[h]));
		}
	}
}

/*
 * The same behind the last token's chunk; the blocks share them, and in a block other warps than
 * those that have the span's chunks of few ranks. To who holds no experts no rows go, of any chunk.
 */
template <bool NODES>
EP_DEV void ep_ht_rest_starts(const struct ep_ht_common &c, const struct ep_op &op,
			      const struct ep_ht_route &route)
{
	uint32_t chunks = ep_ht_table_chunks(c);

	for (uint32_t d = ep_nwarps() - 1 - ep_warp(); d < c.g.nranks; d += ep_nwarps()) {
		uint32_t h = ep_ht_holder(c, d), first = 0, kept = 0;

		if (h < c.roles.holders) {
			first = ep_ht_chunks(c.num_tokens, c.areas.chunk_shift);
			kept = route.kept[h];
		}
		for (uint32_t chunk = first + ep_block() * EP_WARP_SIZE + ep_lane();
		     chunk <= chunks; chunk += ep_nblocks() * EP_WARP_SIZE) {
			start_store<NODES>(c, op, d, chunk, kept);
		}
	}
}

/* Sets of rows whose lists a warp has under way. */
#define EP_HT_LIST_SETS 2u

/* Lists of rows as a warp looks at them: a lane for each packet, and rows in sets of all lanes. */
struct ep_ht_lists {
	uint32_t lanes; /* of a row: a power of two */
	uint32_t rows;  /* that are looked at together, of all sets */
	uint32_t first; /* of the list: the lane's first entry */
	uint32_t below; /* lanes with earlier ones */
	uint32_t v[EP_HT_LIST_SETS][2];
};

EP_DEV struct ep_ht_lists lists_make(const struct ep_ht_common &c)
{
	uint32_t lane = ep_lane();
	struct ep_ht_lists l = {};

	l.lanes = 1;
	while (2 * l.lanes < c.width) {
		l.lanes *= 2;
	}
	l.rows = EP_HT_LIST_SETS * (EP_WARP_SIZE / l.lanes);
	l.first = 2 * (lane & (l.lanes - 1));
	l.below = (1u << lane) - (1u << (lane & ~(l.lanes - 1)));
	return l;
}

/* The lane's row of a set, when rows from `row0` on are looked at. */
EP_DEV uint32_t lists_row(const struct ep_ht_lists &l, uint32_t row0, uint32_t set)
{
	return row0 + (set * EP_WARP_SIZE + ep_lane()) / l.lanes;
}

/* Loads the lane's entries of a row of source s. Are they there? */
template <bool NODES>
EP_DEV bool list_load(const struct ep_ht_common &c, const struct ep_op &op, uint32_t s,
		      uint32_t row, uint32_t first, uint32_t *v)
{
	const unsigned char *area = c.g.own + sel_off(c, s);

	if (NODES && ep_rank_remote(c.g, s)) { /* the table has come */
		const uint32_t *list = (const uint32_t *)area + (size_t)row * c.width + first;

		v[0] = ep_ld_relaxed_sys_u32(list);
		v[1] = first + 1 < c.width ? ep_ld_relaxed_sys_u32(list + 1) : EP_HT_NONE;
		return true;
	}
	return ep_ld_packet(area + (size_t)row * ep_ht_list_bytes(c.width) + 8 * (size_t)first,
			    op.epoch, &v[0], &v[1]);
}

/*
 * Takes the lists of source s's rows from `row0` on, below `rows`: entries behind the last one are
 * NONE. Waits for them, unless they are a remote rank's, which have come. False: they do not come.
 * One warp.
 */
template <bool NODES>
EP_DEV bool lists_take(const struct ep_ht_common &c, const struct ep_op &op, uint32_t s,
		       uint32_t row0, uint32_t rows, struct ep_ht_lists *l)
{
	struct ep_spin spin = ep_spin_start();

	for (;;) {
		bool come[EP_HT_LIST_SETS], late = false, over = false;

		EP_UNROLL()
		for (uint32_t i = 0; i < EP_HT_LIST_SETS; i++) { /* none waits for another */
			uint32_t row = lists_row(*l, row0, i);
			bool mine = row < rows && l->first < c.width;

			come[i] = list_load<NODES>(c, op, s, mine ? row : row0, mine ? l->first : 0,
						   l->v[i]);
		}
		EP_UNROLL()
		for (uint32_t i = 0; i < EP_HT_LIST_SETS; i++) {
			bool mine = lists_row(*l, row0, i) < rows && l->first < c.width;
			uint32_t ends = ep_ballot(EP_FULL_MASK,
						  mine && come[i] && l->v[i][1] == EP_HT_NONE);

			mine = mine && !(ends & l->below);
			late |= mine && !come[i];
			l->v[i][0] = mine ? l->v[i][0] : EP_HT_NONE;
			l->v[i][1] = mine ? l->v[i][1] : EP_HT_NONE;
		}
		if (!ep_any(EP_FULL_MASK, late)) {
			return true;
		}
		if (late) {
			over = ep_ht_give_up<NODES>(c, op, &spin, EP_WAIT_HT_TABLE, s);
		}
		if (ep_any(EP_FULL_MASK, over)) {
			return false;
		}
	}
}

/*
 * Keeps the tables of rank s: warp `w` of `warps`. False: they do not come. Of rows there are none,
 * and nothing is waited for, if s brings no tokens or this rank holds no experts.
 */
template <bool NODES>
EP_DEV bool tables_keep(const struct ep_ht_common &c, const struct ep_op &op,
			const struct ep_ht_route &route, uint32_t s, uint32_t w, uint32_t warps)
{
	const unsigned char *start = c.g.own + start_off(c, s);
	uint32_t *sel_out = c.h.recv_sel + (size_t)route.from[s] * c.width;
	uint32_t rows = route.from[s + 1] - route.from[s], starts = ep_ht_table_chunks(c) + 1;
	struct ep_ht_lists l = lists_make(c);
	bool ok = true;

	for (uint32_t row0 = w * l.rows; row0 < rows; row0 += warps * l.rows) {
		if (!lists_take<NODES>(c, op, s, row0, rows, &l)) {
			return false;
		}
		EP_UNROLL()
		for (uint32_t i = 0; i < EP_HT_LIST_SETS; i++) {
			uint32_t row = lists_row(l, row0, i);

			EP_UNROLL()
			for (uint32_t j = 0; j < 2; j++) {
				if (row < rows && l.first + j < c.width) {
					sel_out[(size_t)row * c.width + l.first + j] = l.v[i][j];
				}
			}
		}
	}
	/* the warps with the fewest rows begin */
	for (uint32_t i = (warps - 1 - w) * EP_WARP_SIZE + ep_lane(); i < starts && ok;
	     i += warps * EP_WARP_SIZE) {
		uint32_t first = 0;

		if (!c.nlocal || ep_ht_sender(c, s) >= c.roles.senders) {
			ok = true;
		} else if (NODES && ep_rank_remote(c.g, s)) {
			first = ep_ld_relaxed_sys_u32((const uint32_t *)start + i);
		} else {
			ok = word_wait<NODES>(c, op, (const uint64_t *)start + i, EP_WAIT_HT_TABLE,
					      s, &first);
		}
		c.h.recv_start[(size_t)s * starts + i] = first;
	}
	if (NODES && ep_ht_sender(c, s) < c.roles.senders) {
		masks_keep(c, s, w * EP_WARP_SIZE + ep_lane(), warps * EP_WARP_SIZE);
	}
	return ep_all(EP_FULL_MASK, ok);
}

/*
 * Keeps the tables of those sources that the block has a share of: with few ranks several blocks
 * share a source. `everything`: waits for those of all remote ranks. False when one does not come.
 * All threads.
 */
template <bool NODES>
EP_DEV bool ep_ht_tables_take(const struct ep_ht_common &c, const struct ep_op &op,
			      const struct ep_ht_route &route, bool everything, uint32_t *failed)
{
	uint32_t step = ep_min_u32(c.g.nranks, ep_nblocks());
	uint32_t part = ep_block() / step, s0 = ep_block() - part * step;
	uint32_t parts = (ep_nblocks() - s0 + step - 1) / step;
	bool ok = true;

	if (NODES) {
		for (uint32_t i = ep_warp(), s; (s = everything ? i : s0 + i * step) < c.g.nranks;
		     i += ep_nwarps()) {
			if (ep_rank_remote(c.g, s) && tables_come(c, s) &&
			    !ep_ht_signal_wait(c, op, s, EP_HT_ROWS, 1, EP_WAIT_HT_TABLE) &&
			    ep_lane() == 0) {
				ep_shared_or_u32(failed, 1);
			}
		}
		ep_block_sync();
		if (*failed) {
			return false;
		}
	}
	for (uint32_t s = s0; s < c.g.nranks && ok; s += step) {
		ok = tables_keep<NODES>(c, op, route, s, part + parts * ep_warp(),
					parts * ep_nwarps());
	}
	return ok;
}

/* ---- what comes to this rank in all, for the caller and for later kernels ---- */

/* Handle memory has no routing from now on. One thread, before its block publishes anything. */
EP_DEV void ep_ht_head_clear(const struct ep_ht_common &c)
{
	ep_st_relaxed_gpu_u64(&c.h.head->stamp, 0);
}

/* Nor will it have this one. Any thread, behind that. */
EP_DEV void ep_ht_head_fail(const struct ep_ht_common &c)
{
	ep_atomic_max_gpu_u64(&c.h.head->stamp, EP_HT_NO_STAMP);
}

/*
 * Expert-major: this rank's zones, if it holds experts. Their rows are all kept as far as they have
 * places. One warp.
 */
EP_DEV void zones_leave(const struct ep_ht_route_args &a, const struct ep_ht_route &route)
{
	uint32_t end = 0, limit = a.c.limit;

	for (uint32_t e0 = 0; e0 < a.c.nlocal; e0 += EP_WARP_SIZE) {
		struct ep_ht_zone_at at = ep_ht_zones_next(a, route, a.c.roles.holder, e0, &end);
		struct ep_ht_zone z = {};

		if (at.expert == EP_HT_NONE) {
			continue;
		}
		z.first = ep_min_u32(at.begin, limit);
		z.rows = ep_min_u32(at.rows, limit - z.first);
		z.kept = ep_min_u32(route.all[at.expert], z.rows);
		a.c.h.zones[e0 + ep_lane()] = z;
		ep_ht_counter_store(a.counters.experts, a.counters.bytes, e0 + ep_lane(), z.rows);
		ep_ht_counter_store(a.counters.offsets, a.counters.bytes, e0 + ep_lane(), z.first);
	}
}

/* Expert-major: the zone of a place below the limit: the last one that does not begin behind it. */
EP_DEV uint32_t zone_find(const struct ep_ht_common &c, uint32_t place)
{
	uint32_t low = 0, high = c.nlocal;

	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;

		if (c.h.zones[middle].first <= place) {
			low = middle;
		} else {
			high = middle;
		}
	}
	return low;
}

/*
 * Some rows are dropped because they have no slots, so the counts do not show how many rows come to
 * an expert. The tables of all sources do: adds what they list to `kept`, of which each expert's
 * lies `stride` words behind the one before. One block.
 */
template <bool NODES>
EP_DEV void kept_count(const struct ep_ht_common &c, const struct ep_op &op,
		       const struct ep_ht_route &route, uint32_t *kept, uint32_t stride)
{
	struct ep_ht_lists l = lists_make(c);
	bool ok = true;

	for (uint32_t s = 0; s < c.g.nranks && ok; s++) {
		uint32_t rows = route.from[s + 1] - route.from[s];

		for (uint32_t row0 = ep_warp() * l.rows; row0 < rows && ok;
		     row0 += ep_nwarps() * l.rows) {
			ok = lists_take<NODES>(c, op, s, row0, rows, &l);
			for (uint32_t i = 0; i < 2 * EP_HT_LIST_SETS && ok; i++) {
				uint32_t v = l.v[i / 2][i & 1];

				if (v != EP_HT_NONE && v != EP_HT_DROPPED) {
					v = c.layout == EP_HT_FLAT ? v : zone_find(c, v);
					ep_shared_add_u32(kept + (size_t)v * stride, 1);
				}
			}
		}
	}
	if (!ok) {
		ep_ht_head_fail(c);
	}
}

/* Expert-major zones, or flat counters. `cut`: waits for the tables of all sources. One block. */
template <bool NODES>
EP_DEV void experts_leave(const struct ep_ht_route_args &a, const struct ep_op &op,
			  const struct ep_ht_route &route, bool cut)
{
	const struct ep_ht_common &c = a.c;
	bool expert_major = c.layout == EP_HT_EXPERT_MAJOR;
	uint32_t *counts = route.all + c.roles.holder * c.nlocal;

	if (expert_major && ep_warp() == 0) {
		zones_leave(a, route);
	}
	if (cut) {
		ep_block_sync();
		for (uint32_t e = ep_tid(); e < c.nlocal; e += ep_nthreads()) {
			if (expert_major) {
				c.h.zones[e].kept = 0;
			} else {
				counts[e] = 0;
			}
		}
		ep_block_sync();
		kept_count<NODES>(c, op, route, expert_major ? &c.h.zones[0].kept : counts,
				  expert_major ? sizeof(struct ep_ht_zone) / 4 : 1);
		ep_block_sync();
	}
	for (uint32_t e = ep_tid(); !expert_major && e < c.nlocal; e += ep_nthreads()) {
		ep_ht_counter_store(a.counters.experts, a.counters.bytes, e, counts[e]);
	}
}

/* It has this one, unless a block has failed, or fails later. One thread. */
EP_DEV void ep_ht_head_leave(const struct ep_ht_route_args &a, const struct ep_ht_route &route)
{
	const struct ep_ht_common &c = a.c;

	ep_atomic_max_gpu_u64(&c.h.head->stamp, c.stamp);
	ep_ht_counter_store(a.counters.total, a.counters.total_bytes, 0,
			    ep_ht_total(c, route, c.roles.holder));
}

/* All but the stamp, without which the head is not valid. One block. */
template <bool NODES>
EP_DEV void ep_ht_results_leave(const struct ep_ht_route_args &a, const struct ep_op &op,
				const struct ep_ht_route &route, bool cut)
{
	const struct ep_ht_common &c = a.c;
	bool expert_major = c.layout == EP_HT_EXPERT_MAJOR;
	struct ep_ht_head *head = c.h.head;

	if (ep_tid() == ep_nthreads() - 1) {
		head->num_tokens = c.num_tokens;
		head->routing = op.epoch;
		head->rows = route.from[c.g.nranks];
		head->idle = route.from[c.g.nranks + 2];
		head->total = ep_ht_total(c, route, c.roles.holder);
		head->places = expert_major ? ep_min_u32(head->total, c.limit) : 0;
		head->chunks = route.from[c.g.nranks + 1];
	}
	experts_leave<NODES>(a, op, route, cut);
	for (uint32_t r = ep_tid(); r <= c.g.nranks; r += ep_nthreads()) {
		c.h.recv_base[r] = route.from[r];
		if (r < c.g.nranks) {
			uint32_t h = ep_ht_holder(c, r);

			c.h.send_base[r] = h < c.roles.holders ? route.base[h] : 0;
		}
	}
}

#endif
