/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput combine: what a warp loads of the unit that is open, row by row, and the gradients of weights.
 */
#ifndef EP_DEVICE_HT_COMBINE_ROWS_H
#define EP_DEVICE_HT_COMBINE_ROWS_H

#include "device/ht/ht_combine_work.h"

/* ---- gradients of weights: part 0 brings them ---- */

/* Of rows [row, row + n) of source r, to `to`. One warp. */
EP_DEV void ep_ht_gradients_leave(const struct ep_ht_combine_args &a, uint32_t r, uint32_t row,
				  uint32_t n, float *to)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot = c.h.recv_base[r] + row;

	for (uint32_t i = ep_lane(); i < n * c.width; i += EP_WARP_SIZE) {
		uint32_t at = ep_div(i, c.by_width), j = i - at * c.width;
		uint32_t sel = c.h.recv_sel[(uint64_t)slot * c.width + i];

		if (sel < EP_HT_DROPPED) {
			to[i] = ep_ht_flat(c) ? a.in_weights[(uint64_t)(slot + at) * c.topk + j]
					      : a.in_weights[sel];
		} else {
			to[i] = 0;
		}
	}
}

/* Of the rows of a return, to where the source reads them. Those for other nodes go apart. */
template <bool NODES>
EP_DEV_COLD void ep_ht_weights_return(const struct ep_ht_combine_args &a, struct ep_ht_work work)
{
	const struct ep_ht_common &c = a.c;
	uint32_t rank = ep_ht_return_rank(a, work.unit);

	if (!NODES || ep_ht_near(c, rank)) {
		ep_ht_gradients_leave(a, rank, work.first, work.rows,
				      ep_ht_weights_at(c, ep_heap_of(c.g, rank), c.g.rank,
						       work.first));
	}
}

/* Returns the gradient of the weight of this rank's token that is the j-th in row `row` of rank d. */
EP_DEV float ep_ht_weight_of(const struct ep_ht_combine_args &a, uint32_t d, uint32_t row,
			     uint32_t j)
{
	const struct ep_ht_common &c = a.c;

	if (ep_ht_flat(c) && d == c.g.rank) {
		return a.in_weights[(uint64_t)(c.h.send_base[d] + row) * c.topk + j];
	}
	return ep_ht_weights_at(c, c.g.own, d, row)[j];
}

/* The lists of a group's tokens: a lane has the k-th entry of one, and which rank that goes to. */
struct ep_ht_list {
	uint32_t sel;
	uint32_t row;
	uint32_t rank; /* EP_HT_NONE: the list is shorter */
	bool opens;    /* the first of its rank */
};

EP_DEV struct ep_ht_list ep_ht_list_make(const struct ep_ht_common &c, uint32_t k, uint32_t sel,
					 uint32_t row)
{
	struct ep_ht_list l = { sel, row, EP_HT_NONE, false };
	uint32_t before;

	if (sel != EP_HT_NONE) {
		l.rank = ep_div(EP_HT_SEL_EXPERT(sel), c.by_local);
	}
	before = ep_shfl_u32(EP_FULL_MASK, l.rank, (ep_lane() - 1) & (EP_WARP_SIZE - 1));
	l.opens = l.rank != EP_HT_NONE && (k == 0 || l.rank != before);
	return l;
}

/* Gradients of all weights of the tokens of a sum. Every k gets one: 0 if it selects nothing. */
template <bool NODES>
EP_DEV_COLD void ep_ht_weights_sum(const struct ep_ht_combine_args &a, struct ep_ht_work work)
{
	const struct ep_ht_common &c = a.c;

	for (uint32_t i = 0; i < work.rows; i++) {
		float *out = a.out_weights + (uint64_t)(work.first + i) * c.topk;

		work.shift = 5;
		ep_ht_group_fetch<NODES>(a, &work, i);

		struct ep_ht_list l = ep_ht_list_make(c, ep_lane(), work.entry, work.index);
		uint32_t until = 0xffffffffu >> (EP_WARP_SIZE - 1 - ep_lane());
		uint32_t alike = ep_match_u32(EP_FULL_MASK, l.rank);
		uint32_t again =
			ep_ballot(EP_FULL_MASK, l.sel != EP_HT_NONE && (l.sel & EP_HT_SEL_AGAIN));

		if (ep_lane() < c.topk) {
			out[ep_lane()] = 0;
		}
		ep_warp_sync(EP_FULL_MASK);
		if (l.sel != EP_HT_NONE && l.row != EP_HT_NONE) {
			/* which one of its rank it is; what is named again is the same one */
			uint32_t j = ep_popc(alike & until & ~again) - 1;

			out[EP_HT_SEL_K(l.sel)] = ep_ht_weight_of(a, l.rank, l.row, j);
		}
	}
}

/* ---- the row that is loaded next ---- */

/* Lane k of each row: the contribution of the row's k-th place; copies: lane k: row k. */
template <bool NODES>
EP_DEV void ep_ht_return_group(const struct ep_ht_combine_args &a, struct ep_ht_work *work,
			       struct ep_ht_group *g)
{
	const struct ep_ht_common &c = a.c;
	uint32_t place = work->entry, row = work->row, rank = ep_ht_return_rank(a, work->unit);
	struct ep_ht_return_ring ring = ep_ht_return_ring_of<NODES>(c, rank);

	if (ep_ht_copies(a, *work)) {
		place = ep_lane() < work->rows ? c.h.recv_base[rank] + work->first + ep_lane()
					       : EP_HT_NONE;
		work->row = work->rows - 1;
	}
	g->lanes = ep_ballot(EP_FULL_MASK, place < EP_HT_DROPPED);
	g->from = a.tokens + (uint64_t)place * a.token_bytes + work->part * a.part_bytes;
	g->to = (uint64_t)(uintptr_t)(ep_ht_ring_at(c, ep_heap_of(c.g, ring.rank), ring.number,
						    ep_ht_slot_of(c, work->chunk), row) +
				      work->part * a.part_bytes);
}

/* Lane k of each row: what the k-th of this node's ranks that return it has written. */
EP_DEV void ep_ht_merge_group(const struct ep_ht_combine_args &a, struct ep_ht_work *work,
			      struct ep_ht_group *g)
{
	const struct ep_ht_common &c = a.c;
	uint32_t x = ep_ht_merge_flow(a, work->unit);

	g->lanes = ep_ballot(EP_FULL_MASK, work->entry != EP_HT_NONE);
	if (work->entry == c.g.index && ep_ht_flat(c)) {
		g->from = a.tokens + (uint64_t)(work->first + work->index) * a.token_bytes;
	} else {
		g->from = ep_ht_ring_at(c, c.g.own, c.remote.near * (1 + x) + work->entry,
					ep_ht_slot_of(c, work->chunk), work->index);
	}
	g->from += work->part * a.part_bytes;
	g->to = (uint64_t)(uintptr_t)(c.g.own + ep_ht_stage_off(c, x, work->chunk, work->row) +
				      work->part * a.part_bytes);
}

/*
 * The lanes whose entry of a token's list is the first one of its rank, if that is of this node, or
 * else of its node. *node: which one that is.
 */
EP_DEV uint32_t ep_ht_nodes_lanes(const struct ep_ht_common &c, const struct ep_ht_work &work,
				  const struct ep_ht_list &list, uint32_t *node)
{
	bool there = list.rank != EP_HT_NONE && list.row != EP_HT_NONE;
	uint32_t row = ep_lane() >> work.shift, who = EP_FULL_MASK - ep_lane(), alike;

	*node = EP_HT_NONE;
	if (there) {
		*node = c.remote.node[list.rank];
		who = *node == EP_HT_NONE ? list.rank : EP_GROUP_MAX_RANKS + *node;
		who = who << 5 | row;
	}
	alike = ep_match_u32(EP_FULL_MASK, who);
	return ep_ballot(EP_FULL_MASK, there && ep_ctz(alike) == ep_lane());
}

/* Lane k of each row: what the rank of the k-th selection returns, if it is the first of that rank. */
template <bool NODES>
EP_DEV void ep_ht_sum_group(const struct ep_ht_combine_args &a, struct ep_ht_work *work,
			    struct ep_ht_group *g)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_list l =
		ep_ht_list_make(c, ep_lane() & ((1u << work->shift) - 1), work->entry, work->index);
	uint32_t d = l.rank == EP_HT_NONE ? c.g.rank : l.rank, token, node = EP_HT_NONE;
	uint32_t start = ep_shfl_u32(EP_FULL_MASK, work->start, d & (EP_WARP_SIZE - 1));
	uint32_t base = ep_shfl_u32(EP_FULL_MASK, work->base, d & (EP_WARP_SIZE - 1));
	uint32_t slot = ep_ht_slot_of(c, work->chunk);

	if (NODES || d >= EP_WARP_SIZE) {
		start = ep_ht_first(c, c.h.send_start, d, work->chunk);
		base = c.h.send_base[d];
	}
	g->lanes = NODES ? ep_ht_nodes_lanes(c, *work, l, &node)
			 : ep_ballot(EP_FULL_MASK, l.opens && l.row != EP_HT_NONE);
	if (ep_ht_windows<NODES>(a) || ep_ht_stays(c, d)) {
		g->from = (ep_ht_windows<NODES>(a) ? a.direct[d] : a.tokens) +
			  (uint64_t)(base + l.row) * a.token_bytes;
	} else if (NODES && node != EP_HT_NONE) {
		g->from = c.g.own + ep_ht_net_off(c, node, work->chunk,
						  work->row + (ep_lane() >> work->shift));
	} else {
		g->from = ep_ht_ring_at(c, c.g.own, NODES ? c.remote.index[d] : d, slot,
					l.row - start);
	}
	g->from += work->part * a.part_bytes;
	token = work->first + work->row * ep_ht_sum_stride<NODES>(a);
	g->to = (uint64_t)(uintptr_t)(a.out_tokens + (uint64_t)token * a.token_bytes +
				      work->part * a.part_bytes);
}

/* The unit's peers are ready. */
template <bool NODES>
EP_DEV void ep_ht_work_begin(const struct ep_ht_combine_args &a, struct ep_ht_work *work)
{
	bool returns = !work->is_sum && !work->is_merge;

	if (a.in_weights && work->part == 0) {
		if (work->is_sum) {
			ep_ht_weights_sum<NODES>(a, *work);
		} else if (returns) {
			ep_ht_weights_return<NODES>(a, *work);
		}
	}
	if (ep_ht_windows<NODES>(a) && returns) {
		work->rows = 0;
	}
}

/* Prepares the next group of the open unit, and has what the one behind it needs on its way. */
template <bool NODES>
EP_DEV void ep_ht_group_begin(const struct ep_ht_combine_args &a, struct ep_ht_work *work,
			      struct ep_ht_group *g)
{
	if (work->is_sum) {
		ep_ht_sum_group<NODES>(a, work, g);
	} else if (NODES && work->is_merge) {
		ep_ht_merge_group(a, work, g);
	} else {
		ep_ht_return_group<NODES>(a, work, g);
	}
	ep_ht_group_fetch<NODES>(a, work, work->row + (EP_WARP_SIZE >> work->shift));
	work->grouped = true;
}

/* Begins the next row of the group. */
template <bool NODES>
EP_DEV void ep_ht_row_begin(const struct ep_ht_combine_args &a, struct ep_ht_work *work,
			    struct ep_ht_group *g)
{
	uint32_t lane = work->row << work->shift & (EP_WARP_SIZE - 1);

	if (lane) {
		g->to += work->is_sum ? (uint64_t)ep_ht_sum_stride<NODES>(a) * a.token_bytes
				      : a.c.areas.row_stride;
	}
	g->mask = g->lanes & EP_FULL_MASK >> (EP_WARP_SIZE - (1u << work->shift)) << lane;
	work->begun = work->fresh = true;
}

/* Rows that are copied in one batch: so few that another one is on its way when one is stored. */
EP_DEV uint32_t ep_ht_copied(const struct ep_ht_pipe &pipe)
{
	return ep_max_u32((pipe.slots - 1) / 2, 1);
}

/*
 * May the next batch be loaded? A row is loaded as one, if the stage has room for all contributions
 * to it. Where rows are copied, a slot is left to the stores that are under way.
 */
EP_DEV bool ep_ht_batch_room(const struct ep_ht_combine_args &a, const struct ep_ht_work &work,
			     const struct ep_ht_group &g, const struct ep_ht_pipe &pipe)
{
	if (!pipe.held) {
		return true;
	}
	if (ep_ht_copies(a, work)) {
		return pipe.held + ep_ht_copied(pipe) < pipe.slots;
	}
	return pipe.held + ep_max_u32(ep_popc(g.mask), 1) <= pipe.slots;
}

/* Lanes of `mask` behind the first n. */
EP_DEV uint32_t ep_ht_behind(uint32_t mask, uint32_t n)
{
	uint32_t before = ep_popc(mask & ((1u << ep_lane()) - 1));

	return ep_ballot(EP_FULL_MASK, (mask >> ep_lane() & 1) && before >= n);
}

/* All of a row is loaded, or on its way: the next one follows. */
EP_DEV void ep_ht_row_end(struct ep_ht_work *work)
{
	work->begun = false;
	work->open = ++work->row < work->rows;
	work->grouped = (work->row << work->shift & (EP_WARP_SIZE - 1)) != 0;
}

/* Loads a batch of contributions to a row of the open unit. False: there is no room. */
template <bool NODES>
EP_DEV bool ep_ht_work_load(const struct ep_ht_combine_args &a, struct ep_ht_work *work,
			    struct ep_ht_group *g, struct ep_ht_pipe *pipe, struct ep_ht_note *note)
{
	uint32_t what = work->vecs | (work->is_sum ? EP_HT_NOTE_SUM : 0) |
			(NODES && work->is_merge ? EP_HT_NOTE_MERGE : 0);
	uint32_t n, rest;

	if (!work->begun) {
		ep_ht_row_begin<NODES>(a, work, g);
		if (NODES && work->is_merge && !g->mask) { /* the token does not travel */
			ep_ht_row_end(work);
			return true;
		}
	}
	if (!ep_ht_batch_room(a, *work, *g, *pipe)) {
		return false;
	}
	n = ep_min_u32(ep_popc(g->mask), pipe->slots);
	if (ep_ht_copies(a, *work)) {
		n = ep_min_u32(n, ep_ht_copied(*pipe));
		what |= EP_HT_NOTE_COPY;
	}
	rest = n == ep_popc(g->mask) ? 0 : ep_ht_behind(g->mask, n);
	what |= n << 10 | (work->fresh ? EP_HT_NOTE_FIRST : 0) | (g->mask ? 0 : EP_HT_NOTE_EMPTY);
	work->fresh = false;
	if (!rest) {
		ep_ht_row_end(work);
		what |= EP_HT_NOTE_LAST | (work->open ? 0 : EP_HT_NOTE_END);
	}
	if (ep_lane() == pipe->in) {
		note->to = g->to;
		note->what = what;
		note->unit = work->unit;
	}
	ep_ht_pipe_load_batch(pipe, g->mask & ~rest, n, g->from, work->vecs * 16);
	if (ep_ht_copies(a, *work)) { /* the next batch of the unit goes behind this one */
		g->to += n * a.c.areas.row_stride;
	}
	g->mask = rest;
	return true;
}

#endif
