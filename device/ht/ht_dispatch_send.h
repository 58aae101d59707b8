/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, dispatch: a part of an own token, which is loaded once, is stored at every rank
 * that it goes to, this one included.
 */
#ifndef EP_DEVICE_HT_DISPATCH_SEND_H
#define EP_DEVICE_HT_DISPATCH_SEND_H

#include "device/ht/ht_dispatch_work.h"

/* The last unit that was stored and not announced yet. */
struct ep_ht_unpublished {
	uint32_t chunk; /* EP_HT_NONE: there is none */
	uint32_t what;  /* EP_HT_WHAT */
	uint32_t group; /* its last one */
};

/* A unit is announced when so many items have been stored behind it: its own stores are done then. */
#define EP_HT_PUBLISH_AFTER 2

/* Publishes to those who get rows of the unit that they are there. */
template <bool NODES>
EP_DEV void ep_ht_send_publish(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			       const struct ep_ht_pipe *pipe, struct ep_ht_unpublished *unpublished)
{
	const struct ep_ht_common &c = a.c;
	uint32_t chunk = unpublished->chunk, slot = chunk % c.areas.ring_chunks;
	uint32_t flow = EP_HT_FROM(unpublished->what), part = EP_HT_PART(unpublished->what);
	bool forwards = NODES && EP_HT_KIND(unpublished->what) == EP_HT_FORWARD;
	uint64_t word = ep_ht_unit_word(op.epoch, chunk);
	uint32_t source;

	if (chunk == EP_HT_NONE) {
		return;
	}
	source = forwards ? c.remote.feeds[flow].peer : c.g.rank;
	ep_ht_pipe_stored(pipe, unpublished->group);
	for (uint32_t i = ep_lane(); i < ep_ht_sharers<NODES>(c); i += EP_WARP_SIZE) {
		uint32_t d = ep_ht_sharer<NODES>(c, i);

		if (d != c.g.rank && (forwards ? ep_ht_near_mask(c, flow, i, chunk)
					       : ep_ht_rows(c, c.h.send_start, d, chunk))) {
			ep_st_release_sys_u64(ep_ht_unit_at(c, ep_heap_of(c.g, d),
							    c.areas.arrived_off, source, slot,
							    part),
					      word);
		}
	}
	if (NODES && !forwards && ep_ht_nodes_mask(c, chunk) && ep_lane() == 0) {
		ep_st_release_sys_u64(ep_ht_staged_at(c, 0, chunk, part), word);
	}
	unpublished->chunk = EP_HT_NONE;
}

/* A rank, of the lane's share, that has not yet read what the unit would overwrite in its ring, or in the stage. */
template <bool NODES>
EP_DEV uint32_t ep_ht_send_missing(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				   const struct ep_ht_unit &unit)
{
	const struct ep_ht_common &c = a.c;

	if (ep_ht_windows<NODES>(a)) {
		return EP_HT_NONE;
	}
	for (uint32_t i = ep_lane();
	     unit.chunk >= c.areas.ring_chunks && i < ep_ht_sharers<NODES>(c); i += EP_WARP_SIZE) {
		uint32_t d = ep_ht_sharer<NODES>(c, i), before;

		if (d == c.g.rank || !ep_ht_rows(c, c.h.send_start, d, unit.chunk)) {
			continue;
		}
		before = ep_ht_chunk_before(c, c.h.send_start, d, unit.chunk);
		if (before != unit.chunk &&
		    !ep_ht_word_reached(op,
					ep_ht_unit_at(c, c.g.own, c.areas.credit_off, i,
						      unit.chunk % c.areas.ring_chunks,
						      EP_HT_PART(unit.what)),
					before)) {
			return d;
		}
	}
	return NODES ? ep_ht_stage_missing(c, op, 0, c.remote.nodes, unit.chunk) : EP_HT_NONE;
}

EP_DEV struct ep_ht_list ep_ht_send_list(const struct ep_ht_common &c, uint32_t token)
{
	struct ep_ht_list l = { EP_HT_NONE, EP_HT_NONE, EP_HT_NONE, 0 };
	size_t at = (size_t)token * c.topk + ep_lane();

	if (ep_lane() < c.topk) {
		l.sel = c.h.send_sel[at];
		l.row = c.h.send_row[at];
		if (c.h.send_place) {
			l.place = c.h.send_place[at];
		}
	}
	return l;
}

/* Lane r, for the first 32 ranks: */
struct ep_ht_starts {
	uint32_t first; /* index of the chunk's first row to rank r */
	uint32_t base;  /* slot of this rank's row 0 there; of all chunks */
};

template <bool NODES>
EP_DEV void ep_ht_starts_load(const struct ep_ht_dispatch_args &a, uint32_t chunk,
			      struct ep_ht_starts *starts)
{
	if (!NODES && !ep_ht_windows<NODES>(a) && ep_lane() < a.c.g.nranks) {
		starts->first = ep_ht_first(a.c, a.c.h.send_start, ep_lane(), chunk);
	}
}

/* Slot of this rank's row 0 at rank r; of several nodes at this rank alone. */
template <bool NODES>
EP_DEV uint32_t ep_ht_starts_base(const struct ep_ht_common &c, const struct ep_ht_starts &starts,
				  uint32_t r)
{
	uint32_t base = 0;

	if (NODES) {
		return c.h.send_base[c.g.rank];
	}
	base = ep_shfl_u32(EP_FULL_MASK, starts.base, r & (EP_WARP_SIZE - 1));
	return r == EP_HT_NONE || r < EP_WARP_SIZE ? base : c.h.send_base[r];
}

/* Where the lane's selection has the part stored. Of those of one other rank, one stores. */
struct ep_ht_target {
	unsigned char *to;     /* bytes of the token; in a ring of the scales, too */
	unsigned char *scales; /* in a ring NULL */
	uint32_t bytes;        /* to `to` */
	uint32_t now;  /* all lanes alike: who stores, first for the ranks behind this one, */
	uint32_t rest; /* and then for the others */
};

/* Place in rank r's ring of the row with that index. */
template <bool NODES>
EP_DEV uint32_t ep_ht_ring_row(const struct ep_ht_common &c, const struct ep_ht_starts &starts,
			       uint32_t r, uint32_t index, uint32_t chunk)
{
	uint32_t first = ep_shfl_u32(EP_FULL_MASK, starts.first, r & (EP_WARP_SIZE - 1));

	if (r != EP_HT_NONE && (NODES || r >= EP_WARP_SIZE)) {
		first = ep_ht_first(c, c.h.send_start, r, chunk);
	}
	return index - first;
}

template <bool NODES>
EP_DEV struct ep_ht_target ep_ht_target_make(const struct ep_ht_dispatch_args &a,
					     const struct ep_ht_item &item,
					     const struct ep_ht_starts &starts,
					     const struct ep_ht_piece &piece)
{
	const struct ep_ht_common &c = a.c;
	const struct ep_ht_list &list = item.l;
	bool there = list.sel != EP_HT_NONE && list.row != EP_HT_NONE, own, stores;
	uint32_t me = c.g.rank, row = list.row;
	uint32_t rank = there ? ep_div(EP_HT_SEL_EXPERT(list.sel), c.by_local) : EP_HT_NONE;
	uint32_t before = ep_shfl_u32(EP_FULL_MASK, rank, (ep_lane() + 31) & 31);
	uint32_t ring = ep_ht_ring_row<NODES>(c, starts, rank, list.row, item.chunk);
	uint32_t base = ep_ht_starts_base<NODES>(c, starts, rank);
	bool remote = NODES && there && !ep_ht_near(c, rank);
	struct ep_ht_target t = {};

	own = there && rank == me;
	stores = there && (ep_lane() == 0 || before != rank);
	if (NODES && ep_any(EP_FULL_MASK, remote)) { /* one stores for the NICs */
		uint32_t first = ep_ctz(ep_ballot(EP_FULL_MASK, remote));

		stores = remote ? ep_lane() == first : stores;
	}
	if (own && c.layout == EP_HT_EXPERT_MAJOR) {
		stores = !(list.sel & EP_HT_SEL_AGAIN) && list.place != EP_HT_NONE;
		row = list.place;
	} else if (stores && (own || ep_ht_windows<NODES>(a))) {
		row += base;
	}
	t.bytes = piece.token_bytes;
	if (stores && (own || ep_ht_windows<NODES>(a))) {
		t.to = (own ? a.out_tokens : a.direct[rank]) + (size_t)row * a.token_bytes +
		       piece.first;
		t.scales = (own ? a.out_scales : a.direct_scales[rank]) +
			   (size_t)row * a.scale_bytes + piece.scale_first;
	} else if (stores) {
		t.to = remote ? c.g.own + ep_ht_stage_off(c, 0, item.chunk, EP_HT_ROW(item.what))
			      : ep_ht_ring_at(c, ep_heap_of(c.g, rank), me,
					      item.chunk % c.areas.ring_chunks, ring);
		t.to += (size_t)EP_HT_PART(item.what) * a.part_bytes;
		t.bytes += piece.scale_bytes;
	}
	t.rest = ep_ballot(EP_FULL_MASK, stores);
	t.now = ep_ballot(EP_FULL_MASK, stores && rank > me);
	t.rest &= ~t.now;
	return t;
}

/* The part to every rank that wants it, the next one first. */
EP_DEV void ep_ht_send_store(const struct ep_ht_target &target, const struct ep_ht_piece &piece,
			     const unsigned char *from)
{
	uint32_t now = target.now, rest = target.rest;

	while (now | rest) {
		uint32_t lane = now ? ep_ctz(now) : ep_ctz(rest);
		uint32_t bytes = ep_shfl_u32(EP_FULL_MASK, target.bytes, lane);
		uint64_t to = ep_shfl_u64(EP_FULL_MASK, (uintptr_t)target.to, lane);

		if (bytes) {
			ep_bulk_store((unsigned char *)to, from, bytes);
		}
		if (piece.scale_bytes) {
			to = ep_shfl_u64(EP_FULL_MASK, (uintptr_t)target.scales, lane);
			if (to) {
				ep_bulk_store((unsigned char *)to, from + piece.token_bytes,
					      piece.scale_bytes);
			}
		}
		rest = now ? rest : rest & (rest - 1);
		now = now & (now - 1);
	}
}

/*
 * The weights of the rows of tokens [token, end), in ascending order of local experts: to the ranks'
 * heaps, and to this rank's own outputs. A warp takes as many tokens at once as it has lanes; or one
 * token alone, whose list `list` is. `base`: slot of this rank's row 0 here. Weights for other nodes go apart.
 */
template <bool NODES>
EP_DEV void ep_ht_send_weights(const struct ep_ht_dispatch_args &a, uint32_t token, uint32_t end,
			       const struct ep_ht_list &list, uint32_t base)
{
	const struct ep_ht_common &c = a.c;
	bool alone = end - token == 1;
	uint32_t at_once = alone ? 1 : EP_WARP_SIZE / c.topk, mine = ep_lane() / c.topk;
	uint32_t k = ep_lane() - mine * c.topk, me = c.g.rank;
	uint32_t lanes = (EP_FULL_MASK >> (EP_WARP_SIZE - c.topk)) << mine * c.topk;

	for (token += mine; ep_any(EP_FULL_MASK, token < end); token += at_once) {
		bool there = mine < at_once && token < end;
		size_t i = (size_t)token * c.topk + k;
		uint32_t sel = !there ? EP_HT_NONE : alone ? list.sel : c.h.send_sel[i];
		uint32_t row = !there ? EP_HT_NONE : alone ? list.row : c.h.send_row[i];
		uint32_t own, at, slot;
		bool counts = sel != EP_HT_NONE && row != EP_HT_NONE && !(sel & EP_HT_SEL_AGAIN);
		uint32_t d = counts ? ep_div(EP_HT_SEL_EXPERT(sel), c.by_local) : EP_HT_NONE;
		float w = ep_shfl_f32(EP_FULL_MASK, list.weight, EP_HT_SEL_K(sel));

		if (counts && !ep_ht_windows<NODES>(a)) {
			w = a.topk_weights[i - k + EP_HT_SEL_K(sel)];
		}
		at = ep_match_u32(EP_FULL_MASK, counts ? d | mine << 16 : ~ep_lane());
		at = ep_popc(at & ((1u << ep_lane()) - 1));
		own = ep_ballot(EP_FULL_MASK, d == me) & lanes;
		slot = ep_shfl_u32(EP_FULL_MASK, row, own ? ep_ctz(own) : 0);
		if (counts && d != me && (!NODES || ep_ht_near(c, d))) {
			ep_ht_weights_at(c, ep_heap_of(c.g, d), me, row)[at] = w;
		}
		if (!there || !own) {
			continue;
		}
		if (c.layout == EP_HT_FLAT) {
			slot += base;
			if (d == me) {
				ep_ht_entry_out(a, slot, at, EP_HT_SEL_EXPERT(sel) - me * c.nlocal,
						w);
			}
			if (k >= ep_popc(own)) {
				ep_ht_entry_out(a, slot, k, EP_HT_NONE, 0.0f);
			}
		} else if (d == me && c.h.send_place[i] != EP_HT_NONE) {
			a.out_weights[c.h.send_place[i]] = w;
		}
	}
}

#endif
