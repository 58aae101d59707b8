/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, dispatch: what a copy warp moves, in which order. Groups of one node have two kinds
 * of units, groups of several nodes three; what is here of nodes is left out where there is one.
 *
 * A warp *sends* a part of a chunk of this rank's own tokens: to the rings of its node, and once for
 * the NICs to the stage. It *forwards* a part of a chunk that has come over the network, to the rings
 * of its node. It *receives* a part of a chunk that others have written into this rank's ring. Each
 * kind it takes in ascending order of chunks. The key of a unit is its chunk, plus `lag` for each kind
 * that goes before it. The warp takes the unit with the smallest key that is ready.
 *
 * All that a unit waits for is done by units with smaller keys, of whatever rank, or by a send warp or
 * credit warp that waits for such units alone; lag is small enough for that (plugin/ep/ht/ht_plan.c).
 * A unit that has been begun waits for nothing, and a warp that can begin none waits, after it has
 * published what it has stored. So of all units of all ranks that are not done, that with the smallest
 * key is at work, or its warp waits for nothing else.
 *
 * A unit that is not ready holds back loads alone: the warp waits for a peer when it holds nothing
 * that it could store.
 */
#ifndef EP_DEVICE_HT_DISPATCH_WORK_H
#define EP_DEVICE_HT_DISPATCH_WORK_H

#include "device/ht/ht_dispatch_rows.h"
#include "device/ht/ht_nodes.h"
#include "device/ht/peers.h"

template <bool NODES> EP_DEV uint32_t ep_ht_kinds(void)
{
	return NODES ? EP_HT_KINDS : EP_HT_FORWARD;
}

/* A unit, as far as it has not been loaded. */
struct ep_ht_unit {
	uint32_t what; /* EP_HT_WHAT */
	uint32_t chunk;
	uint32_t first; /* received, forwarded: slot of the first row that is this rank's, */
	uint32_t own;   /* several nodes: and which rows those are, as bits */
	uint32_t rows;  /* or tokens, as bits; 0: there is nothing to load */
};

struct ep_ht_work {
	/*
	 * Lane k knows this of kind k. All lanes look for units together, each at one, so that those
	 * without rows cost nothing.
	 */
	uint32_t units;          /* of all warps */
	uint32_t next;           /* that lane 0 looks at next */
	uint32_t found;          /* lanes that have found a unit with rows that is not taken */
	struct ep_ht_unit ahead; /* the warp's next one; without rows: there is none */
	struct ep_ht_unit unit;  /* all lanes alike: it is being loaded */
	/* Notes for the storing side, with the slots of the stage. */
	uint32_t note_chunk;
	uint32_t note_slot; /* received, forwarded: row of the flat order */
	uint32_t note_what; /* EP_HT_WHAT, with the row */
};

/* Do rows go straight into windows? */
template <bool NODES> EP_DEV bool ep_ht_windows(const struct ep_ht_dispatch_args &a)
{
	return !NODES && a.is_direct;
}

/* Rows that go through windows are announced all together: there each is a chunk, for balance. */
template <bool NODES> EP_DEV uint32_t ep_ht_send_chunk(const struct ep_ht_dispatch_args &a)
{
	return ep_ht_windows<NODES>(a) ? 1 : NODES ? EP_HT_CHUNK : 1u << a.c.areas.chunk_shift;
}

/* Units of a kind, of each part of a chunk: from so many ranks. */
EP_DEV uint32_t ep_ht_unit_fan(const struct ep_ht_common &c, uint32_t kind)
{
	return kind == EP_HT_SEND ? 1 : kind == EP_HT_FORWARD ? c.remote.sources : c.g.nranks - 1;
}

/* The unit of that number, of a kind that comes from others. */
template <bool NODES>
EP_DEV struct ep_ht_unit ep_ht_unit_make(const struct ep_ht_dispatch_args &a, uint32_t kind,
					 uint32_t number)
{
	const struct ep_ht_common &c = a.c;
	uint32_t fan = ep_ht_unit_fan(c, kind), pair = ep_div(number, a.by_parts), from, source;
	struct ep_ht_unit u = {};

	u.chunk = pair / fan;
	from = pair - u.chunk * fan;
	if (kind == EP_HT_SEND) {
		uint32_t per = ep_ht_send_chunk<NODES>(a);

		u.rows = (1u << ep_min_u32(c.num_tokens - u.chunk * per, per)) - 1;
	} else if (NODES && kind == EP_HT_FORWARD) {
		source = c.remote.feeds[from].peer;
		u.own = ep_ht_near_mask(c, from, c.g.index, u.chunk);
		u.rows = ep_ht_source_mask(c, from, u.chunk);
	} else {
		source = c.g.rank + 1 + from; /* ranks begin with different sources */
		from = source -= source >= c.g.nranks ? c.g.nranks : 0;
		u.own = u.rows = (1u << ep_ht_rows(c, c.h.recv_start, source, u.chunk)) - 1;
		if (NODES && c.remote.return_rings[source].rank == c.g.rank) {
			u.rows = 0; /* this rank forwards them itself */
		}
	}
	if (kind != EP_HT_SEND) {
		u.first = c.h.recv_base[source] + ep_ht_first(c, c.h.recv_start, source, u.chunk);
	}
	u.what = EP_HT_WHAT(from, kind, number - pair * a.parts);
	return u;
}

/* Looks for the warp's next unit of a kind that has rows. */
template <bool NODES>
EP_DEV void ep_ht_work_next(const struct ep_ht_dispatch_args &a, struct ep_ht_work *work,
			    uint32_t kind)
{
	uint32_t stride = ep_nblocks() * ep_ht_copy_warps<NODES>();
	uint32_t units = ep_shfl_u32(EP_FULL_MASK, work->units, kind);
	uint32_t next = ep_shfl_u32(EP_FULL_MASK, work->next, kind);
	uint32_t found = ep_shfl_u32(EP_FULL_MASK, work->found, kind);
	struct ep_ht_unit unit = {};

	while (!found && next < units) {
		uint32_t number = next + ep_lane() * stride;

		next += EP_WARP_SIZE * stride;
		found = ep_ballot(EP_FULL_MASK,
				  number < units && ep_ht_unit_make<NODES>(a, kind, number).rows);
	}
	if (found) {
		unit = ep_ht_unit_make<NODES>(a, kind,
					      next - (EP_WARP_SIZE - ep_ctz(found)) * stride);
	}
	if (ep_lane() == kind) {
		work->next = next;
		work->found = found & (found - 1);
		work->ahead = unit;
	}
}

/* Before ep_ht_work_find(): only this rank's own tokens can be loaded. */
template <bool NODES> EP_DEV struct ep_ht_work ep_ht_work_make(const struct ep_ht_dispatch_args &a)
{
	struct ep_ht_work w = {};
	uint32_t per = ep_ht_send_chunk<NODES>(a);

	if (ep_lane() == EP_HT_SEND) {
		w.next = ep_block() + ep_nblocks() * ep_warp();
		w.units = (a.c.num_tokens + per - 1) / per * a.parts;
	}
	ep_ht_work_next<NODES>(a, &w, EP_HT_SEND);
	return w;
}

/* Finds the units of the block, by the tables. With few units the first warps send and the last ones receive. */
template <bool NODES>
EP_DEV void ep_ht_work_find(const struct ep_ht_dispatch_args &a, struct ep_ht_work *work)
{
	if (!ep_ht_windows<NODES>(a) && ep_lane() != EP_HT_SEND && ep_lane() < EP_HT_KINDS) {
		work->next =
			ep_block() + ep_nblocks() * (ep_ht_copy_warps<NODES>() - 1 - ep_warp());
		work->units = a.c.h.head->chunks * ep_ht_unit_fan(a.c, ep_lane()) * a.parts;
	}
	ep_ht_work_next<NODES>(a, work, EP_HT_RECEIVE);
	if (NODES) {
		ep_ht_work_next<NODES>(a, work, EP_HT_FORWARD);
	}
}

/* The next unit of a kind, of which there is one: to look whether it is ready. */
EP_DEV struct ep_ht_unit ep_ht_work_head(const struct ep_ht_work &work, uint32_t kind)
{
	struct ep_ht_unit u = {};

	u.what = ep_shfl_u32(EP_FULL_MASK, work.ahead.what, kind);
	u.chunk = ep_shfl_u32(EP_FULL_MASK, work.ahead.chunk, kind);
	return u;
}

/* The kind whose next unit has the smallest key; EP_HT_KINDS: there are no more units. */
template <bool NODES>
EP_DEV uint32_t ep_ht_work_first(const struct ep_ht_dispatch_args &a, const struct ep_ht_work &work)
{
	uint32_t before = ep_lane() == EP_HT_SEND ? 0 : NODES && ep_lane() == EP_HT_RECEIVE ? 2 : 1;
	uint32_t key = work.ahead.rows ? work.ahead.chunk + before * a.lag : EP_HT_NONE;
	uint32_t first = EP_HT_KINDS, least = EP_HT_NONE;

	EP_UNROLL(EP_HT_KINDS)
	for (uint32_t kind = 0; kind < ep_ht_kinds<NODES>(); kind++) {
		uint32_t its = ep_shfl_u32(EP_FULL_MASK, key, kind);

		first = its < least ? kind : first;
		least = ep_min_u32(its, least);
	}
	return first;
}

/* The next unit of a kind is loaded from now on, and another one is next. */
template <bool NODES>
EP_DEV void ep_ht_work_open(const struct ep_ht_dispatch_args &a, struct ep_ht_work *work,
			    uint32_t kind)
{
	work->unit = ep_ht_work_head(*work, kind);
	work->unit.first = ep_shfl_u32(EP_FULL_MASK, work->ahead.first, kind);
	work->unit.own = ep_shfl_u32(EP_FULL_MASK, work->ahead.own, kind);
	work->unit.rows = ep_shfl_u32(EP_FULL_MASK, work->ahead.rows, kind);
	ep_ht_work_next<NODES>(a, work, kind);
}

/* A part of an own token, or of a row that lies in the net ring or in the ring, to the next slot of the stage. */
template <bool NODES>
EP_DEV void ep_ht_item_load(const struct ep_ht_dispatch_args &a, struct ep_ht_pipe *pipe,
			    const struct ep_ht_unit &unit, uint32_t i,
			    const struct ep_ht_piece &piece)
{
	const struct ep_ht_common &c = a.c;
	const unsigned char *from;

	ep_ht_pipe_open(pipe);
	if (EP_HT_KIND(unit.what) == EP_HT_SEND) {
		ep_ht_piece_load(a, pipe, (size_t)unit.chunk * ep_ht_send_chunk<NODES>(a) + i,
				 piece);
		return;
	}
	from = NODES && EP_HT_KIND(unit.what) == EP_HT_FORWARD
		       ? c.g.own + ep_ht_net_off(c, EP_HT_FROM(unit.what), unit.chunk, i)
		       : ep_ht_ring_at(c, c.g.own, EP_HT_FROM(unit.what),
				       unit.chunk % c.areas.ring_chunks, i);
	ep_ht_pipe_load(pipe, 0, from + (size_t)EP_HT_PART(unit.what) * a.part_bytes,
			piece.token_bytes + piece.scale_bytes);
}

/* Loads the next row of the unit that is open, and notes what it is. */
template <bool NODES>
EP_DEV void ep_ht_work_load(const struct ep_ht_dispatch_args &a, struct ep_ht_pipe *pipe,
			    struct ep_ht_work *work)
{
	const struct ep_ht_unit &u = work->unit;
	struct ep_ht_piece piece = ep_ht_piece_make(a, EP_HT_PART(u.what));
	uint32_t i = ep_ctz(u.rows), what = u.what | i << 10;
	uint32_t slot = u.first + (NODES ? ep_ht_mask_before(u.own, i) : i);

	if (NODES && EP_HT_KIND(u.what) == EP_HT_FORWARD && !(u.own >> i & 1)) {
		slot = EP_HT_NONE;
	}
	ep_ht_item_load<NODES>(a, pipe, u, i, piece);
	work->unit.rows &= u.rows - 1;
	what |= work->unit.rows ? 0 : EP_HT_LAST;
	ep_ht_note_put(pipe, &work->note_chunk, u.chunk);
	ep_ht_note_put(pipe, &work->note_slot, slot);
	ep_ht_note_put(pipe, &work->note_what, what);
	ep_ht_pipe_close(pipe, piece.token_bytes + piece.scale_bytes);
}

/* Units of so many chunks may be sent before anybody has given anything free. */
template <bool NODES> EP_DEV uint32_t ep_ht_free_chunks(const struct ep_ht_dispatch_args &a)
{
	uint32_t ring = ep_ht_windows<NODES>(a) ? EP_HT_NONE : a.c.areas.ring_chunks;

	return NODES ? ep_min_u32(ring, a.c.areas.stage_chunks) : ring;
}

/* Loads own tokens ahead of the operation's begin, when rings may not be written yet. */
template <bool NODES>
EP_DEV void ep_ht_work_load_early(const struct ep_ht_dispatch_args &a, struct ep_ht_pipe *pipe,
				  struct ep_ht_work *work)
{
	while (ep_ht_pipe_room(pipe)) {
		if (!work->unit.rows) {
			bool may = work->ahead.rows &&
				   work->ahead.chunk < ep_ht_free_chunks<NODES>(a);

			if (!ep_shfl_u32(EP_FULL_MASK, may, EP_HT_SEND)) {
				return; /* its place in the ring may not be free yet */
			}
			ep_ht_work_open<NODES>(a, work, EP_HT_SEND);
		}
		ep_ht_work_load<NODES>(a, pipe, work);
	}
}

#endif
