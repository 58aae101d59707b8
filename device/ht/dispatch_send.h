/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, dispatch: a sending warp. It takes units of this rank's tokens in ascending order
 * of chunks; each part is loaded once and stored at every rank that it goes to, its own included.
 */
#ifndef EP_DEVICE_HT_DISPATCH_SEND_H
#define EP_DEVICE_HT_DISPATCH_SEND_H

#include "device/ht/dispatch_rows.h"

/* A part of a token, in the order in which a sending warp comes to it. */
struct ep_ht_item {
	uint32_t unit;
	uint32_t token; /* num_tokens: the end */
	uint32_t end;   /* of the chunk's tokens */
	uint32_t part;
};

/* Rows that go through windows are announced all together, so each is a chunk there: for balance. */
EP_DEV uint32_t ep_ht_send_chunk(const struct ep_ht_dispatch_args &a)
{
	return a.is_direct ? 1 : EP_HT_CHUNK;
}

EP_DEV struct ep_ht_item ep_ht_item_of(const struct ep_ht_dispatch_args &a, uint32_t unit)
{
	uint32_t tokens = ep_ht_send_chunk(a), chunk = unit / a.parts;
	struct ep_ht_item i;

	i.unit = unit;
	i.part = unit - chunk * a.parts;
	i.token = ep_min_u32(chunk * tokens, a.c.num_tokens);
	i.end = ep_min_u32(i.token + tokens, a.c.num_tokens);
	return i;
}

EP_DEV struct ep_ht_item ep_ht_item_first(const struct ep_ht_dispatch_args &a)
{
	return ep_ht_item_of(a, ep_block() + ep_nblocks() * ep_warp());
}

EP_DEV void ep_ht_item_next(const struct ep_ht_dispatch_args &a, struct ep_ht_item *i)
{
	if (++i->token >= i->end) {
		*i = ep_ht_item_of(a, i->unit + ep_nblocks() * a.send_warps);
	}
}

/* Loads as far as there is room. */
EP_DEV void ep_ht_send_load(const struct ep_ht_dispatch_args &a, struct ep_ht_pipe *p,
			    struct ep_ht_item *next)
{
	while (next->token < a.c.num_tokens && ep_ht_pipe_room(p, ep_ht_lag(p))) {
		struct ep_ht_piece piece = ep_ht_piece_make(a, next->part);
		size_t token = next->token;

		ep_ht_pipe_open(p);
		if (piece.token_bytes) {
			ep_ht_pipe_load(p, 0, a.tokens + token * a.token_bytes + piece.first,
					piece.token_bytes);
		}
		if (piece.scale_bytes) {
			ep_ht_pipe_load(p, piece.token_bytes,
					a.scales + token * a.scale_bytes + piece.scale_first,
					piece.scale_bytes);
		}
		ep_ht_pipe_close(p, piece.token_bytes + piece.scale_bytes);
		ep_ht_item_next(a, next);
	}
}

/* The last unit that was stored and not announced yet. */
struct ep_ht_unsaid {
	uint32_t chunk; /* EP_HT_NONE: there is none */
	uint32_t part;
	uint32_t group; /* its last one */
};

/* Tells those who get rows of the unit that they are there. */
EP_DEV void ep_ht_send_say(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			   const struct ep_ht_pipe *p, struct ep_ht_unsaid *u)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot;

	if (u->chunk == EP_HT_NONE) {
		return;
	}
	slot = u->chunk % c.areas.ring_chunks;
	ep_ht_pipe_stored(p, u->group);
	for (uint32_t d = ep_lane(); d < c.g.nranks; d += EP_WARP_SIZE) {
		if (d != c.g.rank && ep_ht_rows(c, c.h.send_start, d, u->chunk)) {
			uint64_t *word = ep_ht_unit_at(c, ep_heap_of(c.g, d), c.areas.arrived_off,
						       c.g.rank, slot, u->part);

			ep_st_release_sys_u64(word, ep_ht_unit_word(op.epoch, u->chunk));
		}
	}
	u->chunk = EP_HT_NONE;
}

/* Rank d's word that it has read what lay in the unit's slot before; NULL: nothing did. */
EP_DEV const uint64_t *ep_ht_credit_at(const struct ep_ht_common &c, uint32_t d, uint32_t chunk,
				       uint32_t part, uint32_t *before)
{
	if (d >= c.g.nranks || d == c.g.rank || !ep_ht_rows(c, c.h.send_start, d, chunk)) {
		return NULL;
	}
	*before = ep_ht_chunk_before(c, c.h.send_start, d, chunk);
	if (*before == chunk) {
		return NULL;
	}
	return ep_ht_unit_at(c, c.g.own, c.areas.credit_off, d, chunk % c.areas.ring_chunks, part);
}

/*
 * Waits until the unit may be written to all rings where it has rows. Its readers may be waiting for
 * what has not been announced yet. False: one of them has failed.
 */
EP_DEV bool ep_ht_send_credit(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			      const struct ep_ht_pipe *p, uint32_t chunk, uint32_t part,
			      struct ep_ht_unsaid *unsaid)
{
	const struct ep_ht_common &c = a.c;

	if (chunk < c.areas.ring_chunks) {
		return true;
	}
	for (uint32_t d0 = 0; d0 < c.g.nranks; d0 += EP_WARP_SIZE) {
		uint32_t d = d0 + ep_lane(), before = 0;
		const uint64_t *at = ep_ht_credit_at(c, d, chunk, part, &before);
		uint64_t word = ep_ht_unit_word(op.epoch, before);
		bool ok = !at || ep_ld_acquire_sys_u64(at) == word;

		if (!ep_all(EP_FULL_MASK, ok)) {
			struct ep_spin s = ep_spin_start();

			ep_ht_send_say(a, op, p, unsaid);
			while (!ok && ep_ld_acquire_sys_u64(at) != word) {
				if (ep_wait_give_up(c.g, op, &s, EP_WAIT_HT_CREDIT, d)) {
					at = NULL;
					break;
				}
			}
			if (!ep_all(EP_FULL_MASK, ok || at)) {
				return false;
			}
		}
	}
	ep_bulk_fence_global();
	return true;
}

/* A token's selections: lane k holds the k-th of its list. */
struct ep_ht_list {
	uint32_t sel;
	uint32_t row;
	uint32_t place; /* expert-major */
};

EP_DEV struct ep_ht_list ep_ht_list_load(const struct ep_ht_common &c, uint32_t token)
{
	struct ep_ht_list l = { EP_HT_NONE, EP_HT_NONE, EP_HT_NONE };
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

/* What the list says about the lane's selection. */
struct ep_ht_target {
	uint32_t rank;  /* EP_HT_NONE: none, or the token's row to that rank is dropped */
	uint32_t local; /* expert */
	bool counts;    /* not another selection of the same expert */
	uint32_t heads; /* all lanes alike: the first selection of each rank */
};

EP_DEV struct ep_ht_target ep_ht_target_make(const struct ep_ht_common &c,
					     const struct ep_ht_list &l)
{
	uint32_t end = ep_ballot(EP_FULL_MASK, l.sel == EP_HT_NONE), before;
	uint32_t expert = EP_HT_SEL_EXPERT(l.sel);
	struct ep_ht_target t;

	t.rank = ep_div(expert, c.by_local);
	t.local = expert - t.rank * c.nlocal;
	if (end && ep_lane() >= ep_ctz(end)) {
		t.rank = EP_HT_NONE;
	}
	t.rank = l.row == EP_HT_NONE ? EP_HT_NONE : t.rank;
	t.counts = t.rank != EP_HT_NONE && !(l.sel & EP_HT_SEL_AGAIN);
	before = ep_shfl_u32(EP_FULL_MASK, t.rank, (ep_lane() + 31) & 31);
	t.heads = ep_ballot(EP_FULL_MASK,
			    t.rank != EP_HT_NONE && (ep_lane() == 0 || before != t.rank));
	return t;
}

/* Where the lane's rank gets the part: in its ring, or in its window at the row's slot. */
EP_DEV unsigned char *ep_ht_target_at(const struct ep_ht_dispatch_args &a,
				      const struct ep_ht_list &l, const struct ep_ht_target &t,
				      uint32_t chunk, uint32_t part)
{
	const struct ep_ht_common &c = a.c;

	if (t.rank == EP_HT_NONE || t.rank == c.g.rank) {
		return NULL;
	}
	if (a.is_direct) {
		return a.direct[t.rank] + (size_t)(c.h.send_base[t.rank] + l.row) * a.token_bytes;
	}
	return ep_ht_ring_at(c, ep_heap_of(c.g, t.rank), c.g.rank, chunk % c.areas.ring_chunks,
			     l.row - ep_ht_first(c, c.h.send_start, t.rank, chunk)) +
	       (size_t)part * a.part_bytes;
}

/* The part to this rank's own outputs. */
EP_DEV void ep_ht_send_own(const struct ep_ht_dispatch_args &a, const struct ep_ht_list &l,
			   const struct ep_ht_target &t, uint32_t head, const unsigned char *from,
			   const struct ep_ht_piece &piece)
{
	const struct ep_ht_common &c = a.c;
	uint32_t row = ep_shfl_u32(EP_FULL_MASK, l.row, head), places;

	if (c.layout == EP_HT_FLAT) {
		ep_ht_piece_store(a, a.out_tokens, a.out_scales, c.h.recv_base[c.g.rank] + row,
				  from, piece);
		return;
	}
	places = ep_ballot(EP_FULL_MASK, t.counts && t.rank == c.g.rank && l.place != EP_HT_NONE);
	for (; places; places &= places - 1) {
		ep_ht_piece_store(a, a.out_tokens, a.out_scales,
				  ep_shfl_u32(EP_FULL_MASK, l.place, ep_ctz(places)), from, piece);
	}
}

/* The part to every rank that wants it, the next one first. */
EP_DEV void ep_ht_send_part(const struct ep_ht_dispatch_args &a, const struct ep_ht_list &l,
			    const struct ep_ht_target &t, unsigned char *to,
			    const unsigned char *from, const struct ep_ht_piece &piece)
{
	uint32_t me = a.c.g.rank;
	uint32_t later = ep_ballot(EP_FULL_MASK, t.rank != EP_HT_NONE && t.rank > me) & t.heads;
	uint32_t now = later ? later : t.heads, rest = t.heads & ~now;

	while (now) {
		uint32_t head = ep_ctz(now), d = ep_shfl_u32(EP_FULL_MASK, t.rank, head);
		unsigned char *at = (unsigned char *)ep_shfl_u64(EP_FULL_MASK, (uintptr_t)to, head);

		if (d == me) {
			ep_ht_send_own(a, l, t, head, from, piece);
		} else if (a.is_direct) {
			uint32_t row = ep_shfl_u32(EP_FULL_MASK, l.row, head);

			if (piece.token_bytes) {
				ep_bulk_store(at + piece.first, from, piece.token_bytes);
			}
			if (piece.scale_bytes) {
				ep_bulk_store(a.direct_scales[d] +
						      (size_t)(a.c.h.send_base[d] + row) *
							      a.scale_bytes +
						      piece.scale_first,
					      from + piece.token_bytes, piece.scale_bytes);
			}
		} else {
			ep_bulk_store(at, from, piece.token_bytes + piece.scale_bytes);
		}
		now &= now - 1;
		if (!now) {
			now = rest;
			rest = 0;
		}
	}
}

/*
 * The weights of a token's rows, in ascending order of local experts: to the ranks' heaps, and to
 * this rank's own outputs.
 */
EP_DEV void ep_ht_send_weights(const struct ep_ht_dispatch_args &a, const struct ep_ht_list &l,
			       const struct ep_ht_target &t, uint32_t token)
{
	const struct ep_ht_common &c = a.c;
	uint32_t same = ep_match_u32(EP_FULL_MASK, t.counts ? t.rank : EP_HT_NONE - ep_lane());
	uint32_t at = ep_popc(same & ((1u << ep_lane()) - 1)), slot;
	uint32_t own = ep_ballot(EP_FULL_MASK, t.counts && t.rank == c.g.rank);
	float weight = 0.0f;

	if (t.counts) {
		weight = a.topk_weights[(size_t)token * c.topk + EP_HT_SEL_K(l.sel)];
	}
	if (t.counts && t.rank != c.g.rank) {
		ep_ht_weights_at(c, ep_heap_of(c.g, t.rank), c.g.rank, l.row)[at] = weight;
	}
	if (!own) {
		return;
	}
	if (c.layout == EP_HT_EXPERT_MAJOR) {
		if ((own >> ep_lane() & 1) && l.place != EP_HT_NONE) {
			a.out_weights[l.place] = weight;
		}
		return;
	}
	slot = c.h.recv_base[c.g.rank] + ep_shfl_u32(EP_FULL_MASK, l.row, ep_ctz(own));
	if (own >> ep_lane() & 1) {
		ep_ht_entry_out(a, slot, at, t.local, weight);
	}
	if (ep_lane() >= ep_popc(own) && ep_lane() < c.topk) {
		ep_ht_entry_out(a, slot, ep_lane(), EP_HT_NONE, 0.0f);
	}
}

/* All of the warp's units; the first loads may be on their way. False: a wait has failed. */
EP_DEV bool ep_ht_send(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
		       struct ep_ht_pipe *p, struct ep_ht_item next)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_item i = ep_ht_item_first(a);
	struct ep_ht_unsaid unsaid = { EP_HT_NONE, 0, 0 };
	bool begins = true;

	while (i.token < c.num_tokens) {
		struct ep_ht_list l = ep_ht_list_load(c, i.token);
		struct ep_ht_piece piece = ep_ht_piece_make(a, i.part);
		uint32_t chunk = i.token / EP_HT_CHUNK;

		if (begins && !a.is_direct &&
		    !ep_ht_send_credit(a, op, p, chunk, i.part, &unsaid)) {
			return false;
		}
		ep_ht_send_load(a, p, &next);

		struct ep_ht_target t = ep_ht_target_make(c, l);
		unsigned char *to = ep_ht_target_at(a, l, t, chunk, i.part);
		const unsigned char *from = ep_ht_pipe_wait(c.g, op, p, c.g.rank);

		if (!from) {
			return false;
		}
		ep_ht_send_part(a, l, t, to, from, piece);
		ep_ht_pipe_release(p);
		if (a.topk_weights && i.part == 0) {
			ep_ht_send_weights(a, l, t, i.token);
		}
		begins = i.token + 1 >= i.end;
		if (begins && !a.is_direct) {
			ep_ht_send_say(a, op, p, &unsaid);
			unsaid = { chunk, i.part, p->groups };
		}
		ep_ht_item_next(a, &i);
	}
	ep_ht_send_say(a, op, p, &unsaid);
	if (a.is_direct) {
		ep_ht_pipe_stored(p, p->groups);
	}
	return true;
}

#endif
