/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, dispatch: a receiving warp. It takes units that other ranks write into this
 * rank's ring, in ascending order of chunks, and copies their rows to their final places. And what
 * all warps do at the end: weights of rows that came through windows, and zeros.
 */
#ifndef EP_DEVICE_HT_DISPATCH_RECV_H
#define EP_DEVICE_HT_DISPATCH_RECV_H

#include "device/ht/dispatch_rows.h"

/* A unit of rows that come. */
struct ep_ht_come {
	uint32_t source, chunk, part;
	uint32_t first; /* index of its first row */
	uint32_t rows;
};

/* The warp's units that have rows. Each lane looks at one, so that empty ones cost nothing. */
struct ep_ht_search {
	uint32_t chunks; /* the most that a source has */
	uint32_t next;   /* unit of lane 0 when the lanes look again */
	uint32_t found;  /* lanes whose unit has rows and has not been taken */
	struct ep_ht_come lane;
};

EP_DEV struct ep_ht_search ep_ht_search_make(const struct ep_ht_dispatch_args &a)
{
	struct ep_ht_search s = {};

	s.chunks = a.c.h.head->chunks;
	s.next = ep_block() + ep_nblocks() * (ep_warp() - a.send_warps);
	return s;
}

/* The lanes look at the warp's next 32 units. False: there are none. */
EP_DEV bool ep_ht_search_look(const struct ep_ht_dispatch_args &a, struct ep_ht_search *s)
{
	const struct ep_ht_common &c = a.c;
	uint32_t sources = c.g.nranks - 1, stride = ep_nblocks() * (ep_nwarps() - a.send_warps);
	uint32_t units = s->chunks * sources * a.parts;
	uint32_t unit = s->next + ep_lane() * stride, pair = unit / a.parts;

	if (s->next >= units) {
		return false;
	}
	s->next += EP_WARP_SIZE * stride;
	s->lane.rows = 0;
	if (unit < units) {
		s->lane.part = unit - pair * a.parts;
		s->lane.chunk = pair / sources;
		s->lane.source = c.g.rank + 1 + pair - s->lane.chunk * sources;
		s->lane.source -= s->lane.source >= c.g.nranks ? c.g.nranks : 0;
		s->lane.first = ep_ht_first(c, c.h.recv_start, s->lane.source, s->lane.chunk);
		s->lane.rows = ep_ht_rows(c, c.h.recv_start, s->lane.source, s->lane.chunk);
	}
	s->found = ep_ballot(EP_FULL_MASK, s->lane.rows != 0);
	return true;
}

/* The next unit that has rows. False: there is none. */
EP_DEV bool ep_ht_search_next(const struct ep_ht_dispatch_args &a, struct ep_ht_search *s,
			      struct ep_ht_come *u)
{
	uint32_t lane;

	while (!s->found) {
		if (!ep_ht_search_look(a, s)) {
			return false;
		}
	}
	lane = ep_ctz(s->found);
	s->found &= s->found - 1;
	u->source = ep_shfl_u32(EP_FULL_MASK, s->lane.source, lane);
	u->chunk = ep_shfl_u32(EP_FULL_MASK, s->lane.chunk, lane);
	u->part = ep_shfl_u32(EP_FULL_MASK, s->lane.part, lane);
	u->first = ep_shfl_u32(EP_FULL_MASK, s->lane.first, lane);
	u->rows = ep_shfl_u32(EP_FULL_MASK, s->lane.rows, lane);
	return true;
}

enum ep_ht_arrival {
	EP_HT_ARRIVED,
	EP_HT_LATE,
	EP_HT_FAILED
};

/* Has the unit come? With `wait`: it is waited for. */
EP_DEV uint32_t ep_ht_arrival(const struct ep_ht_common &c, const struct ep_op &op,
			      const struct ep_ht_come &u, bool wait)
{
	uint32_t slot = u.chunk % c.areas.ring_chunks, state = EP_HT_ARRIVED;

	if (ep_lane() == 0) {
		const uint64_t *at =
			ep_ht_unit_at(c, c.g.own, c.areas.arrived_off, u.source, slot, u.part);
		struct ep_spin s = ep_spin_start();

		while (ep_ld_acquire_sys_u64(at) != ep_ht_unit_word(op.epoch, u.chunk)) {
			if (!wait) {
				state = EP_HT_LATE;
				break;
			}
			if (ep_wait_give_up(c.g, op, &s, EP_WAIT_HT_ROWS, u.source)) {
				state = EP_HT_FAILED;
				break;
			}
		}
		ep_bulk_fence_global(); /* the rows were stored by the engine of another SM */
	}
	return ep_shfl_u32(EP_FULL_MASK, state, 0);
}

/* What the storing side has to know about a slot of the stage. */
struct ep_ht_notes {
	uint32_t row; /* index of the row */
	uint32_t chunk;
	uint32_t rest; /* source, EP_HT_NOTE_LAST: of the unit, part */
};

#define EP_HT_NOTE_LAST (1u << 10)
#define EP_HT_NOTE_PART 11
_Static_assert(EP_GROUP_MAX_RANKS <= EP_HT_NOTE_LAST, "ep_ht_notes.rest");

/* The receiving warp's state. */
struct ep_ht_recv {
	struct ep_ht_search search;
	struct ep_ht_come unit; /* that is loaded now */
	uint32_t i;             /* the next of its rows */
	bool more;
	struct ep_ht_notes notes;
};

/*
 * Loads what has come, as far as there is room. What has not come is waited for only when nothing is
 * held: the source may be waiting for this warp's credits. False: a wait has failed.
 */
EP_DEV bool ep_ht_recv_load(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			    struct ep_ht_pipe *p, struct ep_ht_recv *r)
{
	const struct ep_ht_common &c = a.c;

	while (r->more && ep_ht_pipe_room(p, ep_ht_lag(p))) {
		const struct ep_ht_come &u = r->unit;
		struct ep_ht_piece piece = ep_ht_piece_make(a, u.part);

		if (r->i == 0) {
			uint32_t state = ep_ht_arrival(c, op, u, p->held == 0);

			if (state != EP_HT_ARRIVED) {
				return state == EP_HT_LATE;
			}
		}
		ep_ht_pipe_open(p);
		ep_ht_pipe_load(p, 0,
				ep_ht_ring_at(c, c.g.own, u.source, u.chunk % c.areas.ring_chunks,
					      r->i) +
					(size_t)u.part * a.part_bytes,
				piece.token_bytes + piece.scale_bytes);
		ep_ht_note_put(p, &r->notes.row, u.first + r->i);
		ep_ht_note_put(p, &r->notes.chunk, u.chunk);
		ep_ht_note_put(p, &r->notes.rest,
			       u.source | (r->i + 1 == u.rows ? EP_HT_NOTE_LAST : 0) |
				       u.part << EP_HT_NOTE_PART);
		ep_ht_pipe_close(p, piece.token_bytes + piece.scale_bytes);
		if (++r->i == u.rows) {
			r->i = 0;
			r->more = ep_ht_search_next(a, &r->search, &r->unit);
		}
	}
	return true;
}

/* The unit has been read: its source may write the slot of the ring again. */
EP_DEV void ep_ht_recv_credit(const struct ep_ht_common &c, const struct ep_op &op, uint32_t chunks,
			      uint32_t source, uint32_t chunk, uint32_t part)
{
	if (chunk + c.areas.ring_chunks < chunks && ep_lane() == 0) {
		uint64_t *word = ep_ht_unit_at(c, ep_heap_of(c.g, source), c.areas.credit_off,
					       c.g.rank, chunk % c.areas.ring_chunks, part);

		ep_st_release_sys_u64(word, ep_ht_unit_word(op.epoch, chunk));
	}
}

/* The oldest part that is held to its places. False: it does not come. */
EP_DEV bool ep_ht_recv_store(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			     struct ep_ht_pipe *p, const struct ep_ht_recv &r)
{
	const struct ep_ht_common &c = a.c;
	uint32_t row = ep_ht_note_get(p, r.notes.row), chunk = ep_ht_note_get(p, r.notes.chunk);
	uint32_t rest = ep_ht_note_get(p, r.notes.rest), part = rest >> EP_HT_NOTE_PART;
	uint32_t source = rest & (EP_HT_NOTE_LAST - 1), slot = c.h.recv_base[source] + row;
	bool flat = c.layout == EP_HT_FLAT, weighs = a.topk_weights && part == 0;
	struct ep_ht_piece piece = ep_ht_piece_make(a, part);
	uint32_t sel = EP_HT_NONE, places;
	const unsigned char *from;
	float weight = 0.0f;

	if (ep_lane() < c.width && (!flat || weighs)) {
		sel = c.h.recv_sel[(size_t)slot * c.width + ep_lane()];
		if (weighs) {
			weight = ep_ht_weights_at(c, c.g.own, source, row)[ep_lane()];
		}
	}
	from = ep_ht_pipe_wait(c.g, op, p, c.g.rank);
	if (!from) {
		return false;
	}
	if (rest & EP_HT_NOTE_LAST) {
		ep_ht_recv_credit(c, op, r.search.chunks, source, chunk, part);
	}
	places = ep_ballot(EP_FULL_MASK, sel == EP_HT_NONE);
	places = places ? (1u << ep_ctz(places)) - 1 : EP_FULL_MASK; /* before the list's end */
	if (flat) {
		ep_ht_piece_store(a, a.out_tokens, a.out_scales, slot, from, piece);
	} else {
		places &= ep_ballot(EP_FULL_MASK, sel != EP_HT_DROPPED);
		for (uint32_t left = places; left; left &= left - 1) {
			ep_ht_piece_store(a, a.out_tokens, a.out_scales,
					  ep_shfl_u32(EP_FULL_MASK, sel, ep_ctz(left)), from,
					  piece);
		}
	}
	ep_ht_pipe_release(p);
	if (weighs && flat && ep_lane() < c.topk) {
		ep_ht_entry_out(a, slot, ep_lane(), places >> ep_lane() & 1 ? sel : EP_HT_NONE,
				weight);
	} else if (weighs && (places >> ep_lane() & 1)) {
		a.out_weights[sel] = weight;
	}
	return true;
}

/* All of the warp's units. False: a wait has failed. */
EP_DEV bool ep_ht_receive(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			  struct ep_ht_pipe *p)
{
	struct ep_ht_recv r = {};

	if (a.c.g.nranks == 1) {
		return true;
	}
	r.search = ep_ht_search_make(a);
	r.more = ep_ht_search_next(a, &r.search, &r.unit);
	for (;;) {
		if (!ep_ht_recv_load(a, op, p, &r)) {
			return false;
		}
		if (!p->held) {
			return true; /* no more */
		}
		if (!ep_ht_recv_store(a, op, p, r)) {
			return false;
		}
	}
}

/*
 * Flat: idx and weights of the rows that came through windows. All peers have said `done`. A warp
 * takes as many rows at once as it has lanes for their entries.
 */
EP_DEV void ep_ht_entries_copy(const struct ep_ht_dispatch_args &a)
{
	const struct ep_ht_common &c = a.c;
	uint32_t at_once = EP_WARP_SIZE / c.topk, mine = ep_lane() / c.topk;
	uint32_t k = ep_lane() - mine * c.topk, warps = ep_nblocks() * ep_nwarps();

	for (uint32_t s = 0; s < c.g.nranks; s++) {
		uint32_t base = c.h.recv_base[s], rows = c.h.recv_base[s + 1] - base;

		rows = s == c.g.rank ? 0 : rows; /* those have been written */
		for (uint32_t r0 = (ep_block() + ep_nblocks() * ep_warp()) * at_once; r0 < rows;
		     r0 += warps * at_once) {
			uint32_t row = r0 + mine, sel = EP_HT_NONE, ends;
			bool there = mine < at_once && row < rows;
			float weight = 0.0f;

			if (there && k < c.width) {
				sel = c.h.recv_sel[(size_t)(base + row) * c.width + k];
				weight = ep_ht_weights_at(c, c.g.own, s, row)[k];
			}
			ends = ep_ballot(EP_FULL_MASK, sel == EP_HT_NONE) >> mine * c.topk;
			if (there) { /* what is behind the list's end says nothing */
				ep_ht_entry_out(a, base + row, k,
						ends & ((2u << k) - 1) ? EP_HT_NONE : sel, weight);
			}
		}
	}
}

/* Flat: the rows of idx and weights behind those that come. */
EP_DEV void ep_ht_entries_fill(const struct ep_ht_dispatch_args &a)
{
	uint32_t thread = ep_block() * ep_nthreads() + ep_tid(), n = ep_nblocks() * ep_nthreads();
	uint32_t rows = a.c.h.head->rows;

	if (a.fill_rows == EP_HT_NONE || a.fill_rows <= rows) {
		return;
	}
	for (uint32_t i = thread; i < (a.fill_rows - rows) * a.c.topk; i += n) {
		ep_ht_entry_out(a, rows, i, EP_HT_NONE, 0.0f);
	}
}

#endif
