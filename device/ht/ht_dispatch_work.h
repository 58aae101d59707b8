/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, dispatch: what a warp moves, in which order.
 *
 * A warp has units of two kinds. It *sends* a part of a chunk of this rank's own tokens, and it
 * *receives* a part of a chunk that another rank has written into this rank's ring. Either kind it
 * takes in ascending order of chunks. Of the two that are next, it takes the one with the smaller
 * key, which is the chunk of what it sends, or the chunk of what it receives plus `lag`; but if that
 * one is not ready and the other one is, the other.
 *
 * A unit that is sent waits until its readers have received the chunk that lay in the same place of
 * the ring before, which has a smaller key because lag is less than ring_chunks; a unit that is
 * received waits for its sender, which has a smaller key, too. A unit that has been begun waits for
 * nothing, and a warp that can begin none waits for that with the smaller key, after it has said what
 * it has stored. So of all units of all ranks that are not done, that with the smallest key is at
 * work, or its warp waits for nothing else.
 *
 * A unit that is not ready holds back loads alone: the warp waits for a peer when it holds nothing
 * that it could store.
 */
#ifndef EP_DEVICE_HT_DISPATCH_WORK_H
#define EP_DEVICE_HT_DISPATCH_WORK_H

#include "device/ht/blame.h"
#include "device/ht/ht_dispatch_rows.h"

/* A unit, and how far it has been loaded. */
struct ep_ht_unit {
	bool sends;
	uint32_t chunk, part;
	uint32_t source; /* received: by whom it was sent */
	uint32_t first;  /* received: index of its first row */
	uint32_t rows;   /* or tokens */
};

/* Units that are received are looked for by all lanes, each at one, so that empty ones cost nothing. */
struct ep_ht_search {
	uint32_t units; /* of all warps */
	uint32_t next;  /* unit of lane 0 when the lanes look again */
	uint32_t found; /* lanes whose unit has rows and has not been taken */
	struct ep_ht_unit lane;
};

struct ep_ht_work {
	uint32_t next_send, sends; /* the warp's next one, and how many there are of all warps */
	struct ep_ht_search search;
	bool comes; /* there is a next one to be received: */
	struct ep_ht_unit come;
	bool open; /* a unit is being loaded: */
	struct ep_ht_unit unit;
	uint32_t i; /* its next row */
	/* Notes for the storing side, with the slots of the stage. */
	uint32_t note_chunk;
	uint32_t note_slot; /* received: row of the flat order */
	uint32_t note_what; /* source, row of the unit, EP_HT_NOTE_*, part */
};

#define EP_HT_NOTE_ROW_SHIFT 10 /* above the source: 3 bits */
#define EP_HT_NOTE_LAST (1u << 13)
#define EP_HT_NOTE_SENDS (1u << 14)
#define EP_HT_NOTE_PART_SHIFT 15
_Static_assert(EP_GROUP_MAX_RANKS <= 1 << EP_HT_NOTE_ROW_SHIFT, "ep_ht_work.note_what");
_Static_assert(EP_HT_CHUNK <= 8, "ep_ht_work.note_what");

/* May a unit be loaded: have its rows come, and may they be written where they go? */
enum ep_ht_ready {
	EP_HT_READY,
	EP_HT_LATE,
	EP_HT_FAILED
};

/* Rows that go through windows are announced all together: there each is a chunk, for balance. */
EP_DEV uint32_t ep_ht_send_chunk(const struct ep_ht_dispatch_args &a)
{
	return a.is_direct ? 1 : 1u << a.c.areas.chunk_shift;
}

/* The lanes look at the warp's next 32 units. False: there are none. */
EP_DEV bool ep_ht_search_poll(const struct ep_ht_dispatch_args &a, struct ep_ht_search *search)
{
	const struct ep_ht_common &c = a.c;
	uint32_t sources = c.g.nranks - 1, stride = ep_nblocks() * ep_nwarps();
	uint32_t unit = search->next + ep_lane() * stride, pair = ep_div(unit, a.by_parts);

	if (search->next >= search->units) {
		return false;
	}
	search->next += EP_WARP_SIZE * stride;
	search->lane.rows = 0;
	if (unit < search->units) {
		search->lane.part = unit - pair * a.parts;
		search->lane.chunk = pair / sources;
		search->lane.source = c.g.rank + 1 + pair - search->lane.chunk * sources;
		search->lane.source -= search->lane.source >= c.g.nranks ? c.g.nranks : 0;
		search->lane.first =
			ep_ht_first(c, c.h.recv_start, search->lane.source, search->lane.chunk);
		search->lane.rows =
			ep_ht_rows(c, c.h.recv_start, search->lane.source, search->lane.chunk);
	}
	search->found = ep_ballot(EP_FULL_MASK, search->lane.rows != 0);
	return true;
}

/* The next unit that has rows. False: there is none. */
EP_DEV bool ep_ht_search_next(const struct ep_ht_dispatch_args &a, struct ep_ht_search *search,
			      struct ep_ht_unit *unit)
{
	uint32_t lane;

	while (!search->found) {
		if (!ep_ht_search_poll(a, search)) {
			return false;
		}
	}
	lane = ep_ctz(search->found);
	search->found &= search->found - 1;
	unit->source = ep_shfl_u32(EP_FULL_MASK, search->lane.source, lane);
	unit->chunk = ep_shfl_u32(EP_FULL_MASK, search->lane.chunk, lane);
	unit->part = ep_shfl_u32(EP_FULL_MASK, search->lane.part, lane);
	unit->first = ep_shfl_u32(EP_FULL_MASK, search->lane.first, lane);
	unit->rows = ep_shfl_u32(EP_FULL_MASK, search->lane.rows, lane);
	unit->sends = false;
	return true;
}

/* Before ep_ht_work_find(): only this rank's own tokens can be loaded. */
EP_DEV struct ep_ht_work ep_ht_work_make(const struct ep_ht_dispatch_args &a)
{
	struct ep_ht_work w = {};
	uint32_t per = ep_ht_send_chunk(a);

	w.next_send = ep_block() + ep_nblocks() * ep_warp();
	w.sends = (a.c.num_tokens + per - 1) / per * a.parts;
	return w;
}

/*
 * Finds the units of the block, by the tables. With few units the first warps send and the last ones receive.
 */
EP_DEV void ep_ht_work_find(const struct ep_ht_dispatch_args &a, struct ep_ht_work *work)
{
	const struct ep_ht_common &c = a.c;

	work->search.next = ep_block() + ep_nblocks() * (ep_nwarps() - 1 - ep_warp());
	work->search.units = a.is_direct ? 0 : c.h.head->chunks * (c.g.nranks - 1) * a.parts;
	work->comes = ep_ht_search_next(a, &work->search, &work->come);
}

EP_DEV struct ep_ht_unit ep_ht_send_unit(const struct ep_ht_dispatch_args &a, uint32_t unit)
{
	uint32_t per = ep_ht_send_chunk(a);
	struct ep_ht_unit u = {};

	u.sends = true;
	u.chunk = ep_div(unit, a.by_parts);
	u.part = unit - u.chunk * a.parts;
	u.rows = ep_min_u32(a.c.num_tokens - u.chunk * per, per);
	return u;
}

/* The two units that are next, as far as they are there. */
struct ep_ht_choice {
	bool sends, comes;
	bool send_first; /* it has the smaller key */
	struct ep_ht_unit send;
};

EP_DEV struct ep_ht_choice ep_ht_work_choice(const struct ep_ht_dispatch_args &a,
					     const struct ep_ht_work &work)
{
	struct ep_ht_choice c;

	c.sends = work.next_send < work.sends;
	c.comes = work.comes;
	c.send = ep_ht_send_unit(a, work.next_send);
	c.send_first = c.sends && (!c.comes || c.send.chunk <= work.come.chunk + a.lag);
	return c;
}

/* Field by field: what is chosen by its address does not stay in registers. */
EP_DEV struct ep_ht_unit ep_ht_work_pick(const struct ep_ht_choice &c,
					 const struct ep_ht_unit &come, bool sends)
{
	struct ep_ht_unit u;

	u.sends = sends;
	u.chunk = sends ? c.send.chunk : come.chunk;
	u.part = sends ? c.send.part : come.part;
	u.source = sends ? 0 : come.source;
	u.first = sends ? 0 : come.first;
	u.rows = sends ? c.send.rows : come.rows;
	return u;
}

EP_DEV void ep_ht_work_open(const struct ep_ht_dispatch_args &a, struct ep_ht_work *work,
			    const struct ep_ht_choice &c, bool sends)
{
	work->unit = ep_ht_work_pick(c, work->come, sends);
	if (sends) {
		work->next_send += ep_nblocks() * ep_nwarps();
	} else {
		work->comes = ep_ht_search_next(a, &work->search, &work->come);
	}
	work->open = true;
	work->i = 0;
}

/* A part of an own token, or of a row in the ring, to the next slot of the stage. */
EP_DEV void ep_ht_item_load(const struct ep_ht_dispatch_args &a, struct ep_ht_pipe *pipe,
			    const struct ep_ht_unit &unit, uint32_t i)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_piece piece = ep_ht_piece_make(a, unit.part);

	ep_ht_pipe_open(pipe);
	if (!unit.sends) {
		ep_ht_pipe_load(pipe, 0,
				ep_ht_ring_at(c, c.g.own, unit.source,
					      unit.chunk % c.areas.ring_chunks, i) +
					(size_t)unit.part * a.part_bytes,
				piece.token_bytes + piece.scale_bytes);
		return;
	}
	ep_ht_piece_load(a, pipe, (size_t)unit.chunk * ep_ht_send_chunk(a) + i, piece);
}

/* Loads the next row of the unit that is open, and notes what it is. */
EP_DEV void ep_ht_work_load(const struct ep_ht_dispatch_args &a, struct ep_ht_pipe *pipe,
			    struct ep_ht_work *work)
{
	const struct ep_ht_unit &u = work->unit;
	struct ep_ht_piece piece = ep_ht_piece_make(a, u.part);
	uint32_t what = u.source | work->i << EP_HT_NOTE_ROW_SHIFT |
			u.part << EP_HT_NOTE_PART_SHIFT;
	uint32_t slot = u.sends ? 0 : a.c.h.recv_base[u.source] + u.first + work->i;

	what |= u.sends ? EP_HT_NOTE_SENDS : 0;
	ep_ht_item_load(a, pipe, u, work->i);
	work->open = ++work->i < u.rows;
	what |= work->open ? 0 : EP_HT_NOTE_LAST;
	ep_ht_note_put(pipe, &work->note_chunk, u.chunk);
	ep_ht_note_put(pipe, &work->note_slot, slot);
	ep_ht_note_put(pipe, &work->note_what, what);
	ep_ht_pipe_close(pipe, piece.token_bytes + piece.scale_bytes);
}

/* Loads own tokens ahead of the operation's begin, when rings may not be written yet. */
EP_DEV void ep_ht_work_load_early(const struct ep_ht_dispatch_args &a, struct ep_ht_pipe *pipe,
				  struct ep_ht_work *work)
{
	while (ep_ht_pipe_room(pipe)) {
		if (!work->open) {
			struct ep_ht_unit u = ep_ht_send_unit(a, work->next_send);

			if (work->next_send >= work->sends ||
			    (!a.is_direct && u.chunk >= a.c.areas.ring_chunks)) {
				return; /* its place in the ring may not be free yet */
			}
			work->unit = u;
			work->next_send += ep_nblocks() * ep_nwarps();
			work->open = true;
			work->i = 0;
		}
		ep_ht_work_load(a, pipe, work);
	}
}

#endif
