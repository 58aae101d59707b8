/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, dispatch: the units that a copy warp moves, in which order; and for each kind of
 * them whom a unit waits for, what is loaded of it, and where that is stored. Groups of one node
 * have two kinds of units, groups of several nodes three. Kernels of one node are compiled without
 * what is for several (NODES).
 *
 * A warp *sends* a part of a chunk of this rank's own tokens: to the rings of its node, and once
 * for the NICs to the stage. It *forwards* a part of a chunk that has come over the network, to the
 * rings of its node. It *receives* a part of a chunk that others have written into this rank's
 * ring. Each kind it takes in ascending order of chunks. The key of a unit is its chunk, plus `lag`
 * for each kind that goes before it. The warp takes the unit with the smallest key that is ready.
 *
 * All that a unit waits for is done by units with smaller keys, of whatever rank, or by a send warp
 * or credit warp that waits for such units alone; lag is small enough for that
 * (plugin/ep/ht/ht_plan.c). A unit that has been begun waits for nothing; but on one node rows are
 * received while their unit is being sent, so it may wait for the rest of a unit that has been
 * begun, too. A warp that can begin or go on with none waits, after it has published what it has
 * stored. So of all units of all ranks that are not done, that with the smallest key is at work, or
 * its warp waits for nothing else.
 *
 * A unit that is not ready holds back loads alone: the warp waits for a peer when it holds nothing
 * that it could store.
 */
#ifndef EP_DEVICE_HT_DISPATCH_H
#define EP_DEVICE_HT_DISPATCH_H

#include "device/ht/pipe.h"
#include "device/ht/units.h"

/* ---- parts of rows in tensors, and the outputs beside them ---- */

/* Which bytes of a token and of its scales a part is. */
struct ep_ht_piece {
	uint32_t first; /* of the token */
	uint32_t token_bytes;
	uint32_t scale_first;
	uint32_t scale_bytes;
};

EP_DEV struct ep_ht_piece ep_ht_piece_make(const struct ep_ht_dispatch_args &a, uint32_t part)
{
	uint32_t first = part * a.part_bytes, row = a.token_bytes + a.scale_bytes;
	uint32_t end = ep_min_u32(first + a.part_bytes, row);
	struct ep_ht_piece p;

	p.first = first;
	p.token_bytes = first < a.token_bytes ? ep_min_u32(end, a.token_bytes) - first : 0;
	p.scale_first = ep_max_u32(first, a.token_bytes) - a.token_bytes;
	p.scale_bytes = end > a.token_bytes ? end - a.token_bytes - p.scale_first : 0;
	return p;
}

/* A part of an own token and of its scales to the slot that is loaded next. */
EP_DEV void piece_load(const struct ep_ht_dispatch_args &a, const struct ep_ht_pipe *pipe,
		       size_t token, const struct ep_ht_piece &piece)
{
	if (piece.token_bytes) {
		ep_ht_pipe_load(pipe, 0, a.tokens + token * a.token_bytes + piece.first,
				piece.token_bytes);
	}
	if (piece.scale_bytes) {
		ep_ht_pipe_load(pipe, piece.token_bytes,
				a.scales + token * a.scale_bytes + piece.scale_first,
				piece.scale_bytes);
	}
}

/* A part in shared memory to row `row` of tensors of tokens and scales. */
EP_DEV void piece_store(const struct ep_ht_dispatch_args &a, unsigned char *tokens,
			unsigned char *scales, uint32_t row, const unsigned char *from,
			const struct ep_ht_piece &piece)
{
	if (piece.token_bytes) {
		ep_bulk_store(tokens + (size_t)row * a.token_bytes + piece.first, from,
			      piece.token_bytes);
	}
	if (piece.scale_bytes) {
		ep_bulk_store(scales + (size_t)row * a.scale_bytes + piece.scale_first,
			      from + piece.token_bytes, piece.scale_bytes);
	}
}

/* Flat: entry k of a row of out_idx and out_weights, as far as those are to be written. */
EP_DEV void entry_out(const struct ep_ht_dispatch_args &a, uint32_t slot, uint32_t k,
		      uint32_t local, float weight)
{
	size_t at = (size_t)slot * a.c.topk + k;

	if (slot < a.fill_rows) {
		a.out_idx[at] = local == EP_HT_NONE ? -1 : (int64_t)local + a.id_base;
		a.out_weights[at] = local == EP_HT_NONE ? 0.0f : weight;
	}
}

/*
 * An item's entries of the tables, for its stores: one entry for each lane. It is loaded one item
 * ahead: each of these is a trip to L2 or further.
 */
struct ep_ht_list {
	uint32_t sel; /* own token: k-th of its list; row that has come, expert-major: k-th place */
	uint32_t row;
	uint32_t place;
	float weight; /* own token, in windows: k-th of the caller's */
};

enum ep_ht_dispatch_kind {
	EP_HT_SEND,
	EP_HT_RECEIVE,
	EP_HT_FORWARD, /* several nodes: before EP_HT_RECEIVE */
	EP_HT_KINDS
};

/*
 * A unit but for its chunk, and a row of it, in one word: where it comes from, the row, its kind,
 * its part.
 */
#define EP_HT_WHAT(from, kind, part) ((from) | (kind) << 14 | (part) << 16)
#define EP_HT_FROM(what) ((what)&0x3ffu) /* received: the source, forwarded: the flow */
#define EP_HT_ROW(what) ((what) >> 10 & 7u)
#define EP_HT_LAST (1u << 13) /* it is the unit's last row */
#define EP_HT_KIND(what) ((what) >> 14 & 3u)
#define EP_HT_PART(what) ((what) >> 16)

_Static_assert(EP_GROUP_MAX_RANKS <= 0x400 && EP_HT_CHUNK <= 8 && EP_HT_KINDS <= 4, "EP_HT_WHAT");

/* The content of a slot of the stage, as it was noted. */
struct ep_ht_item {
	uint32_t what; /* EP_HT_WHAT, with the row */
	uint32_t chunk;
	uint32_t slot;       /* received, forwarded; EP_HT_NONE: no row of this rank's */
	struct ep_ht_list l; /* loads on their way */
};

/* For the statistics: what has travelled. One warp. */
EP_DEV void ep_ht_dispatch_count(const struct ep_ht_dispatch_args &a)
{
	const struct ep_ht_common &c = a.c;
	uint64_t bytes = a.token_bytes + a.scale_bytes;

	for (uint32_t r = ep_lane(); r < c.g.nranks; r += EP_WARP_SIZE) {
		struct ep_peer_stats *s = &c.g.stats[r];
		uint32_t tx = ep_ht_first(c, c.h.send_start, r, ep_ht_table_chunks(c));
		uint32_t rx = c.h.recv_base[r + 1] - c.h.recv_base[r];

		s->tx_rows += tx;
		s->tx_bytes += tx * bytes;
		s->rx_rows += rx;
		s->rx_bytes += rx * bytes;
		s->ops += c.nlocal && ep_ht_sender(c, r) < c.roles.senders;
	}
}

/*
 * Expert-major: the counters as ncclEpUpdateHandle would have written them, by the zones. One warp.
 */
EP_DEV void ep_ht_counters_leave(const struct ep_ht_dispatch_args &a)
{
	const struct ep_ht_counters &out = a.counters;
	bool zones = out.experts || out.offsets;

	for (uint32_t e = ep_lane(); zones && e < a.c.nlocal; e += EP_WARP_SIZE) {
		ep_ht_counter_store(out.experts, out.bytes, e, a.c.h.zones[e].rows);
		ep_ht_counter_store(out.offsets, out.bytes, e, a.c.h.zones[e].first);
	}
	if (ep_lane() == 0) {
		ep_ht_counter_store(out.total, out.total_bytes, 0, a.c.h.head->total);
	}
}

template <bool NODES> EP_DEV uint32_t ep_ht_kinds(void)
{
	return NODES ? EP_HT_KINDS : EP_HT_FORWARD;
}

/* What the storing side is told of a slot of the stage. */
struct ep_ht_item_note {
	uint32_t chunk;
	uint32_t slot; /* received, forwarded: row of the flat order */
	uint32_t what; /* EP_HT_WHAT, with the row */
};

/* A unit, as far as it has not been loaded. */
struct ep_ht_unit {
	uint32_t what; /* EP_HT_WHAT */
	uint32_t chunk;
	uint32_t first; /* received, forwarded: slot of the first row that is this rank's, */
	uint32_t own;   /* several nodes: and which rows those are, as bits */
	uint32_t rows;  /* or tokens, as bits; 0: there is nothing to load */
};

struct ep_ht_dispatch_work {
	/*
	 * Lane k knows this of kind k. All lanes look for units together, each at one, so that
	 * those without rows cost nothing.
	 */
	uint32_t units;              /* of all warps */
	uint32_t next;               /* that lane 0 looks at next */
	uint32_t found;              /* lanes that have found a unit with rows that is not taken */
	struct ep_ht_unit ahead;     /* the warp's next one; without rows: there is none */
	struct ep_ht_unit unit;      /* all lanes alike: it is being loaded, */
	uint32_t arrived;            /* as far as so many rows of it; all lanes alike */
	struct ep_ht_item_note note; /* of the slot that has the lane's number */
};

/* Rows that go through windows are announced all together: there each is a chunk, for balance. */
template <bool NODES> EP_DEV uint32_t ep_ht_send_chunk(const struct ep_ht_dispatch_args &a)
{
	return ep_ht_windows<NODES>(a) ? 1 : NODES ? EP_HT_CHUNK : 1u << a.c.areas.chunk_shift;
}

/* Units of a kind, of each part of a chunk: from so many ranks. */
EP_DEV uint32_t unit_fan(const struct ep_ht_common &c, uint32_t kind)
{
	return kind == EP_HT_SEND ? 1 : kind == EP_HT_FORWARD ? c.remote.sources : c.roles.others;
}

/* The unit of that number, of a kind that comes from others. */
template <bool NODES>
EP_DEV struct ep_ht_unit unit_make(const struct ep_ht_dispatch_args &a, uint32_t kind,
				   uint32_t number)
{
	const struct ep_ht_common &c = a.c;
	uint32_t fan = unit_fan(c, kind), pair = ep_div(number, a.by_parts), from, source;
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
		source = c.roles.first_source + from; /* ranks begin with different sources */
		from = source -= source >= c.roles.source_end ? c.roles.senders : 0;
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
EP_DEV void ep_ht_dispatch_work_next(const struct ep_ht_dispatch_args &a,
				     struct ep_ht_dispatch_work *work, uint32_t kind)
{
	uint32_t stride = kind == EP_HT_SEND ? ep_ht_deal_sent<NODES>(a).stride
					     : ep_ht_deal_received<NODES>(a).stride;
	uint32_t units = ep_shfl_u32(EP_FULL_MASK, work->units, kind);
	uint32_t next = ep_shfl_u32(EP_FULL_MASK, work->next, kind);
	uint32_t found = ep_shfl_u32(EP_FULL_MASK, work->found, kind);
	struct ep_ht_unit unit = {};

	while (!found && next < units) {
		uint32_t number = next + ep_lane() * stride;

		next += EP_WARP_SIZE * stride;
		found = ep_ballot(EP_FULL_MASK,
				  number < units && unit_make<NODES>(a, kind, number).rows);
	}
	if (found) {
		unit = unit_make<NODES>(a, kind, next - (EP_WARP_SIZE - ep_ctz(found)) * stride);
	}
	if (ep_lane() == kind) {
		work->next = next;
		work->found = found & (found - 1);
		work->ahead = unit;
	}
}

/* Before ep_ht_dispatch_work_find(): only this rank's own tokens can be loaded. */
template <bool NODES>
EP_DEV struct ep_ht_dispatch_work ep_ht_dispatch_work_make(const struct ep_ht_dispatch_args &a)
{
	struct ep_ht_dispatch_work w = {};
	uint32_t per = ep_ht_send_chunk<NODES>(a);

	if (ep_lane() == EP_HT_SEND) {
		w.next = ep_ht_deal_sent<NODES>(a).first;
		w.units = (a.c.num_tokens + per - 1) / per * a.parts;
	}
	ep_ht_dispatch_work_next<NODES>(a, &w, EP_HT_SEND);
	return w;
}

/*
 * Finds the warp's other units, by the tables.
 */
template <bool NODES>
EP_DEV void ep_ht_dispatch_work_find(const struct ep_ht_dispatch_args &a,
				     struct ep_ht_dispatch_work *work)
{
	if (!ep_ht_windows<NODES>(a) && ep_lane() != EP_HT_SEND && ep_lane() < EP_HT_KINDS) {
		work->next = ep_ht_deal_received<NODES>(a).first;
		work->units = a.c.h.head->chunks * unit_fan(a.c, ep_lane()) * a.parts;
	}
	ep_ht_dispatch_work_next<NODES>(a, work, EP_HT_RECEIVE);
	if (NODES) {
		ep_ht_dispatch_work_next<NODES>(a, work, EP_HT_FORWARD);
	}
}

/* The next unit of a kind, of which there is one: to look whether it is ready. */
EP_DEV struct ep_ht_unit ep_ht_dispatch_work_head(const struct ep_ht_dispatch_work &work,
						  uint32_t kind)
{
	struct ep_ht_unit u = {};

	u.what = ep_shfl_u32(EP_FULL_MASK, work.ahead.what, kind);
	u.chunk = ep_shfl_u32(EP_FULL_MASK, work.ahead.chunk, kind);
	return u;
}

/* The kind whose next unit has the smallest key; EP_HT_KINDS: there are no more units. */
template <bool NODES>
EP_DEV uint32_t ep_ht_dispatch_work_first(const struct ep_ht_dispatch_args &a,
					  const struct ep_ht_dispatch_work &work)
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
EP_DEV void ep_ht_dispatch_work_open(const struct ep_ht_dispatch_args &a,
				     struct ep_ht_dispatch_work *work, uint32_t kind)
{
	work->unit = ep_ht_dispatch_work_head(*work, kind);
	work->unit.first = ep_shfl_u32(EP_FULL_MASK, work->ahead.first, kind);
	work->unit.own = ep_shfl_u32(EP_FULL_MASK, work->ahead.own, kind);
	work->unit.rows = ep_shfl_u32(EP_FULL_MASK, work->ahead.rows, kind);
	work->arrived = EP_HT_CHUNK;
	ep_ht_dispatch_work_next<NODES>(a, work, kind);
}

/*
 * A part of an own token, or of a row that lies in the net ring or in the ring, to the next slot of
 * the stage.
 */
template <bool NODES>
EP_DEV void item_load(const struct ep_ht_dispatch_args &a, struct ep_ht_pipe *pipe,
		      const struct ep_ht_unit &unit, uint32_t i, const struct ep_ht_piece &piece)
{
	const struct ep_ht_common &c = a.c;
	const unsigned char *from;

	ep_ht_pipe_open(pipe);
	if (EP_HT_KIND(unit.what) == EP_HT_SEND) {
		piece_load(a, pipe, (size_t)unit.chunk * ep_ht_send_chunk<NODES>(a) + i, piece);
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
EP_DEV void ep_ht_dispatch_work_load(const struct ep_ht_dispatch_args &a, struct ep_ht_pipe *pipe,
				     struct ep_ht_dispatch_work *work)
{
	const struct ep_ht_unit &u = work->unit;
	struct ep_ht_piece piece = ep_ht_piece_make(a, EP_HT_PART(u.what));
	uint32_t i = ep_ctz(u.rows), what = u.what | i << 10;
	uint32_t slot = u.first + (NODES ? ep_ht_mask_before(u.own, i) : i);

	if (NODES && EP_HT_KIND(u.what) == EP_HT_FORWARD && !(u.own >> i & 1)) {
		slot = EP_HT_NONE;
	}
	item_load<NODES>(a, pipe, u, i, piece);
	work->unit.rows &= u.rows - 1;
	what |= work->unit.rows ? 0 : EP_HT_LAST;
	ep_ht_note_put(pipe, &work->note, { u.chunk, slot, what });
	ep_ht_pipe_close(pipe, piece.token_bytes + piece.scale_bytes);
}

/*
 * One node: loads own tokens ahead of the operation's begin, when rings may not be written yet.
 * Units of as many chunks as a ring has may be sent before anybody has given anything free.
 */
EP_DEV void ep_ht_dispatch_work_load_early(const struct ep_ht_dispatch_args &a,
					   struct ep_ht_pipe *pipe,
					   struct ep_ht_dispatch_work *work)
{
	uint32_t chunks = ep_ht_windows<false>(a) ? EP_HT_NONE : a.c.areas.ring_chunks;

	while (ep_ht_pipe_room(pipe)) {
		if (!work->unit.rows) {
			bool may = work->ahead.rows && work->ahead.chunk < chunks;

			if (!ep_shfl_u32(EP_FULL_MASK, may, EP_HT_SEND)) {
				return; /* its place in the ring may not be free yet */
			}
			ep_ht_dispatch_work_open<false>(a, work, EP_HT_SEND);
		}
		ep_ht_dispatch_work_load<false>(a, pipe, work);
	}
}

/* ---- sent: a part of an own token is loaded once, and stored at every rank it goes to ---- */

/* The last unit, or beginning of one, that was stored and not announced yet. */
struct ep_ht_unpublished {
	uint32_t chunk; /* EP_HT_NONE: there is none */
	uint32_t what;  /* EP_HT_WHAT, of its last row */
	uint32_t group; /* the last group of its stores */
	uint32_t rows;  /* lane r, if ep_ht_sends_early(): its rows to rank r, */
	uint32_t told;  /* and those of them that r knows of */
};

/*
 * Are rows announced before their unit has been stored? Every two rows, where receiving takes long:
 * a row of an expert-major output has several places. Where lanes do not stand for ranks, and where
 * the rows of a unit go on over the network together, they are not.
 */
template <bool NODES> EP_DEV bool ep_ht_sends_early(const struct ep_ht_dispatch_args &a)
{
	return !NODES && a.c.layout == EP_HT_EXPERT_MAJOR && a.c.g.nranks <= EP_WARP_SIZE;
}

/*
 * A unit is announced when so many items have been stored behind it: its own stores are done then.
 */
#define EP_HT_PUBLISH_AFTER 2

/*
 * Publishes to those who get rows of the unit that they are there. A rank that knows of all its
 * rows is told nothing more: it may have given their place free, and another warp may have stored
 * the word of the next unit there, over which this one's would come.
 */
template <bool NODES>
EP_DEV void ep_ht_send_publish(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			       const struct ep_ht_pipe *pipe, struct ep_ht_unpublished *unpublished)
{
	const struct ep_ht_common &c = a.c;
	uint32_t chunk = unpublished->chunk, slot = chunk % c.areas.ring_chunks;
	uint32_t flow = EP_HT_FROM(unpublished->what), part = EP_HT_PART(unpublished->what);
	bool forwards = NODES && EP_HT_KIND(unpublished->what) == EP_HT_FORWARD;
	bool last = NODES || (unpublished->what & EP_HT_LAST);
	uint64_t word = ep_ht_unit_word(op.epoch, chunk);
	uint32_t source;

	if (chunk == EP_HT_NONE) {
		return;
	}
	source = forwards ? c.remote.feeds[flow].peer : c.g.rank;
	ep_ht_pipe_stored(pipe, unpublished->group);
	for (uint32_t i = ep_lane(); i < ep_ht_sharers<NODES>(c); i += EP_WARP_SIZE) {
		uint32_t d = ep_ht_sharer<NODES>(c, i);

		uint32_t rows = forwards ? ep_ht_near_mask(c, flow, i, chunk)
				: last   ? ep_ht_rows(c, c.h.send_start, d, chunk)
					 : unpublished->rows;

		if (d != c.g.rank && rows && (NODES || rows != unpublished->told)) {
			ep_st_release_sys_u64(
				ep_ht_unit_at(c, ep_heap_of(c.g, d), c.areas.arrived_off, source,
					      slot, part),
				NODES ? word : ep_ht_rows_word(op.epoch, chunk, rows));
		}
	}
	unpublished->told = unpublished->rows;
	if (NODES && !forwards && ep_ht_nodes_mask(c, chunk) && ep_lane() == 0) {
		ep_st_release_sys_u64(ep_ht_staged_at(c, 0, chunk, part), word);
	}
	unpublished->chunk = EP_HT_NONE;
}

/*
 * A rank, of the lane's share, that has not yet read what the unit would overwrite in its ring, or
 * in the stage.
 */
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
	uint32_t ring;         /* the rank whose ring it is, or EP_HT_NONE */
	uint32_t bytes;        /* to `to` */
	uint32_t now;  /* all lanes alike: who stores, first for the ranks behind this one, */
	uint32_t rest; /* and then for the others */
};

/* Place in rank r's ring of the row with that index. */
template <bool NODES>
EP_DEV uint32_t ring_row(const struct ep_ht_common &c, const struct ep_ht_starts &starts,
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
	uint32_t rank = there ? ep_ht_sel_rank(c, list.sel) : EP_HT_NONE;
	uint32_t before = ep_shfl_u32(EP_FULL_MASK, rank, (ep_lane() + 31) & 31);
	uint32_t ring = ring_row<NODES>(c, starts, rank, list.row, item.chunk);
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
	t.ring = stores && !own ? rank : EP_HT_NONE;
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

/*
 * The part to every rank that wants it, the next one first. Early: *sent, of lane r, counts rows to
 * rank r.
 */
EP_DEV void ep_ht_send_store(const struct ep_ht_target &target, const struct ep_ht_piece &piece,
			     const unsigned char *from, bool early, uint32_t *sent)
{
	uint32_t now = target.now, rest = target.rest;

	while (now | rest) {
		uint32_t lane = now ? ep_ctz(now) : ep_ctz(rest);
		uint32_t bytes = ep_shfl_u32(EP_FULL_MASK, target.bytes, lane);
		uint64_t to = ep_shfl_u64(EP_FULL_MASK, (uintptr_t)target.to, lane);

		if (early) {
			*sent += ep_shfl_u32(EP_FULL_MASK, target.ring, lane) == ep_lane();
		}
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
 * The weights of the rows of tokens [token, end), in ascending order of local experts: to the
 * ranks' heaps, and to this rank's own outputs. A warp takes as many tokens at once as it has
 * lanes; or one token alone, whose list `list` is. `base`: slot of this rank's row 0 here. Weights
 * for other nodes go apart.
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
		uint32_t d = counts ? ep_ht_sel_rank(c, sel) : EP_HT_NONE;
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
				entry_out(a, slot, at,
					  EP_HT_SEL_EXPERT(sel) - c.roles.holder * c.nlocal, w);
			}
			if (k >= ep_popc(own)) {
				entry_out(a, slot, k, EP_HT_NONE, 0.0f);
			}
		} else if (d == me && c.h.send_place[i] != EP_HT_NONE) {
			a.out_weights[c.h.send_place[i]] = w;
		}
	}
}

/* ---- received: rows in this rank's ring, and what belongs to them, go to their places ---- */

/*
 * The rank that writes the unit, if no more than `known` rows of it have come: lane 0's share.
 * *arrived: as many have.
 */
template <bool NODES>
EP_DEV uint32_t ep_ht_recv_missing(const struct ep_ht_common &c, const struct ep_op &op,
				   const struct ep_ht_unit &unit, uint32_t known, uint32_t *arrived)
{
	const uint64_t *at = ep_ht_unit_at(c, c.g.own, c.areas.arrived_off, EP_HT_FROM(unit.what),
					   unit.chunk % c.areas.ring_chunks, EP_HT_PART(unit.what));

	if (ep_lane() != 0) {
		return EP_HT_NONE;
	}
	if (!NODES) {
		*arrived = ep_ht_rows_arrived(op, at, unit.chunk);
	} else if (ep_ht_word_reached(op, at, unit.chunk)) {
		*arrived = EP_HT_CHUNK;
	}
	return *arrived <= known ? ep_ht_return_ring_of<NODES>(c, EP_HT_FROM(unit.what)).rank
				 : EP_HT_NONE;
}

/* Expert-major: the places of a row that comes; slot EP_HT_NONE: there is none. */
EP_DEV struct ep_ht_list ep_ht_recv_list(const struct ep_ht_common &c, uint32_t slot)
{
	struct ep_ht_list l = { EP_HT_NONE, EP_HT_NONE, EP_HT_NONE, 0 };

	if (c.layout == EP_HT_EXPERT_MAJOR && ep_lane() < c.width && slot != EP_HT_NONE) {
		l.sel = c.h.recv_sel[(size_t)slot * c.width + ep_lane()];
	}
	return l;
}

/* The unit has been read: its place in the ring may be written again. */
template <bool NODES>
EP_DEV void ep_ht_recv_credit(const struct ep_ht_common &c, const struct ep_op &op, uint32_t source,
			      uint32_t chunk, uint32_t part)
{
	if (chunk + c.areas.ring_chunks < c.h.head->chunks && ep_lane() == 0) {
		struct ep_ht_return_ring ring = ep_ht_return_ring_of<NODES>(c, source);
		uint64_t *word = ep_ht_unit_at(c, ep_heap_of(c.g, ring.rank), c.areas.credit_off,
					       ring.number, chunk % c.areas.ring_chunks, part);

		ep_st_release_sys_u64(word, ep_ht_unit_word(op.epoch, chunk));
	}
}

EP_DEV void ep_ht_recv_store(const struct ep_ht_dispatch_args &a, const struct ep_ht_list &list,
			     uint32_t slot, const struct ep_ht_piece &piece,
			     const unsigned char *from)
{
	uint32_t places;

	if (a.c.layout == EP_HT_FLAT) {
		piece_store(a, a.out_tokens, a.out_scales, slot, from, piece);
		return;
	}
	places = ep_ballot(EP_FULL_MASK, list.sel != EP_HT_NONE && list.sel != EP_HT_DROPPED);
	for (; places; places &= places - 1) {
		piece_store(a, a.out_tokens, a.out_scales,
			    ep_shfl_u32(EP_FULL_MASK, list.sel, ep_ctz(places)), from, piece);
	}
}

/*
 * Weights, and in flat layout idx, of `rows` rows from `slot` on, by lane `lane` of `lanes`. They
 * have come to `weights`.
 */
EP_DEV void weights_keep(const struct ep_ht_dispatch_args &a, const float *weights, uint32_t slot,
			 uint32_t rows, uint32_t lane, uint32_t lanes)
{
	const struct ep_ht_common &c = a.c;
	bool flat = c.layout == EP_HT_FLAT;
	uint32_t per = flat ? c.topk : c.width;

	EP_UNROLL(2)
	for (uint32_t i = lane; i < rows * per; i += lanes) {
		uint32_t row = i / per, k = i - row * per, sel = EP_HT_NONE;
		float weight = 0.0f;

		if (k < c.width) {
			sel = c.h.recv_sel[(size_t)(slot + row) * c.width + k];
			weight = weights[row * c.width + k];
		}
		if (flat) {
			entry_out(a, slot + row, k, sel, weight);
		} else if (sel != EP_HT_NONE && sel != EP_HT_DROPPED) {
			a.out_weights[sel] = weight;
		}
	}
}

/* The same of rows that `source` has sent. */
EP_DEV void ep_ht_recv_weights(const struct ep_ht_dispatch_args &a, uint32_t source, uint32_t slot,
			       uint32_t rows, uint32_t lane, uint32_t lanes)
{
	const struct ep_ht_common &c = a.c;

	weights_keep(a, ep_ht_weights_at(c, c.g.own, source, slot - c.h.recv_base[source]), slot,
		     rows, lane, lanes);
}

/* Lane r: slot of rank r's row 0 here, for the first 32; behind the last one, their end. */
EP_DEV uint32_t ep_ht_recv_bases(const struct ep_ht_common &c)
{
	return c.h.recv_base[ep_min_u32(ep_lane(), c.g.nranks)];
}

/*
 * Flat: idx and weights of the rows that came through windows. All peers have published `done`;
 * `bases` was loaded before that.
 */
EP_DEV void ep_ht_entries_copy(const struct ep_ht_dispatch_args &a, uint32_t bases)
{
	const struct ep_ht_common &c = a.c;

	for (uint32_t s = 0; s < c.g.nranks; s++) {
		uint32_t base = ep_shfl_u32(EP_FULL_MASK, bases, s & (EP_WARP_SIZE - 1));
		uint32_t end = ep_shfl_u32(EP_FULL_MASK, bases, (s + 1) & (EP_WARP_SIZE - 1));

		if (s + 1 >= EP_WARP_SIZE) {
			base = c.h.recv_base[s];
			end = c.h.recv_base[s + 1];
		}
		if (s != c.g.rank) { /* its own have been written */
			weights_keep(a, ep_ht_weights_at(c, c.g.own, s, 0), base, end - base,
				     ep_block() * ep_nthreads() + ep_tid(),
				     ep_nblocks() * ep_nthreads());
		}
	}
}

/* Flat: the rows of idx and weights behind those that come. */
EP_DEV void ep_ht_entries_fill(const struct ep_ht_dispatch_args &a)
{
	uint32_t thread = ep_block() * ep_nthreads() + ep_tid(), n = ep_nblocks() * ep_nthreads();
	uint64_t first = ep_ht_entries(a.c.h.head->rows, a.c.topk);

	if (a.fill_rows == EP_HT_NONE) {
		return;
	}
	for (uint64_t i = first + thread; i < ep_ht_entries(a.fill_rows, a.c.topk); i += n) {
		a.out_idx[i] = -1;
		a.out_weights[i] = 0.0f;
	}
}

/*
 * ---- forwarded ----
 *
 * The rows of the unit have come over the network, and go to the rings of this node's ranks; what
 * is for this rank itself is stored as what it receives.
 */

/*
 * The chunk before `chunk` of which the rank with index i here got rows by the same flow, in the
 * same slot of its ring; `chunk` itself: there is none.
 */
EP_DEV uint32_t forward_before(const struct ep_ht_common &c, uint32_t flow, uint32_t i,
			       uint32_t chunk)
{
	uint32_t before = chunk;

	while (before >= c.areas.ring_chunks) {
		before -= c.areas.ring_chunks;
		if (ep_ht_near_mask(c, flow, i, before)) {
			return before;
		}
	}
	return chunk;
}

/* A rank, of the lane's share, that has not yet read what the unit would overwrite in its ring. */
EP_DEV uint32_t readers_missing(const struct ep_ht_common &c, const struct ep_op &op,
				const struct ep_ht_unit &unit)
{
	for (uint32_t i = ep_lane(); i < c.remote.near; i += EP_WARP_SIZE) {
		uint32_t before, ring = c.remote.near * (1 + EP_HT_FROM(unit.what)) + i;

		if (i == c.g.index || !ep_ht_near_mask(c, EP_HT_FROM(unit.what), i, unit.chunk)) {
			continue;
		}
		before = forward_before(c, EP_HT_FROM(unit.what), i, unit.chunk);
		if (before != unit.chunk &&
		    !ep_ht_word_reached(op,
					ep_ht_unit_at(c, c.g.own, c.areas.credit_off, ring,
						      unit.chunk % c.areas.ring_chunks,
						      EP_HT_PART(unit.what)),
					before)) {
			return c.remote.near_ranks[i];
		}
	}
	return EP_HT_NONE;
}

/* The source, if the chunk has not come; or a rank whose credit is missing. */
EP_DEV uint32_t ep_ht_forward_missing(const struct ep_ht_common &c, const struct ep_op &op,
				      const struct ep_ht_unit &unit, enum ep_wait_site *site)
{
	uint32_t source = c.remote.feeds[EP_HT_FROM(unit.what)].peer;

	if (ep_lane() == 0 && !ep_ht_rows_reached(c, op, source, unit.chunk)) {
		*site = EP_WAIT_HT_ROWS;
		return source;
	}
	*site = EP_WAIT_HT_CREDIT;
	return readers_missing(c, op, unit);
}

/* A part of a source's token to rings of this node. */
EP_DEV void ep_ht_forward_store(const struct ep_ht_dispatch_args &a, const struct ep_ht_item &item,
				const struct ep_ht_piece &piece, const unsigned char *from)
{
	const struct ep_ht_common &c = a.c;

	for (uint32_t i0 = 0; i0 < c.remote.near; i0 += EP_WARP_SIZE) {
		uint32_t n = i0 + ep_lane(), mask = 0;
		uint64_t to = 0;

		if (n < c.remote.near && n != c.g.index) {
			mask = ep_ht_near_mask(c, EP_HT_FROM(item.what), n, item.chunk);
			to = (uintptr_t)ep_ht_ring_at(c, ep_heap_of(c.g, c.remote.near_ranks[n]),
						      c.remote.feeds[EP_HT_FROM(item.what)].peer,
						      item.chunk % c.areas.ring_chunks,
						      ep_ht_mask_before(mask,
									EP_HT_ROW(item.what))) +
			     (size_t)EP_HT_PART(item.what) * a.part_bytes;
		}
		for (uint32_t left = ep_ballot(EP_FULL_MASK, mask >> EP_HT_ROW(item.what) & 1);
		     left; left &= left - 1) {
			uint64_t at = ep_shfl_u64(EP_FULL_MASK, to, ep_ctz(left));

			ep_bulk_store((unsigned char *)(uintptr_t)at, from,
				      piece.token_bytes + piece.scale_bytes);
		}
	}
}

/* The unit has been read: the sender may be sent a credit for it. */
EP_DEV void ep_ht_forward_consumed(const struct ep_ht_common &c, const struct ep_op &op,
				   const struct ep_ht_item &item)
{
	if (ep_lane() == 0) {
		ep_st_release_sys_u64(ep_ht_consumed_at(c, EP_HT_FROM(item.what), item.chunk,
							EP_HT_PART(item.what)),
				      ep_ht_unit_word(op.epoch, item.chunk));
	}
}

/* ---- expert-major: rows that do not come are zeros ---- */

/* One row of an output from zeros in shared memory. */
EP_DEV void zero_row(unsigned char *to, const unsigned char *zeros, uint32_t bytes, uint32_t most)
{
	for (uint32_t at = 0; at < bytes; at += most) {
		ep_bulk_store(to + at, zeros, ep_min_u32(bytes - at, most));
	}
}

/*
 * Zeroes the warp's share of rows [first, first + n) of the outputs: every `workers`-th one from
 * `turn` on. Returns the turn for the rows behind them.
 */
EP_DEV uint32_t zero_rows(const struct ep_ht_dispatch_args &a, const unsigned char *zeros,
			  uint32_t first, uint32_t n, uint32_t turn, uint32_t workers)
{
	while (turn < n) {
		size_t row = first + turn;

		zero_row(a.out_tokens + row * a.token_bytes, zeros, a.token_bytes, a.part_bytes);
		zero_row(a.out_scales + row * a.scale_bytes, zeros, a.scale_bytes, a.part_bytes);
		if (a.topk_weights && ep_lane() == 0) {
			a.out_weights[row] = 0.0f;
		}
		ep_bulk_commit();
		turn += workers;
	}
	return turn - n;
}

/*
 * Rows of zones that do not come, and those behind the last zone. They are dealt to the warps,
 * whose stages are free by then, in turn.
 */
EP_DEV void ep_ht_zero(const struct ep_ht_dispatch_args &a, const struct ep_ht_pipe *pipe)
{
	const struct ep_ht_common &c = a.c;
	uint32_t workers = ep_nblocks() * ep_nwarps();
	uint32_t turn = ep_block() + ep_nblocks() * ep_warp(), places = c.h.head->places;
	struct ep_vec16 none = { 0, 0, 0, 0 };

	for (uint32_t at = ep_lane() * 16; at < a.part_bytes; at += EP_WARP_SIZE * 16) {
		ep_shared_st16(pipe->stage + at, none);
	}
	ep_bulk_fence_shared(pipe->stage, a.part_bytes);
	for (uint32_t z0 = 0; z0 < c.nlocal; z0 += EP_WARP_SIZE) {
		uint32_t z = z0 + ep_lane(), first = 0, n = 0;

		if (z < c.nlocal) {
			first = c.h.zones[z].first + c.h.zones[z].kept;
			n = c.h.zones[z].rows - c.h.zones[z].kept;
		}
		for (uint32_t with = ep_ballot(EP_FULL_MASK, n != 0); with; with &= with - 1) {
			uint32_t lane = ep_ctz(with);

			turn = zero_rows(a, pipe->stage, ep_shfl_u32(EP_FULL_MASK, first, lane),
					 ep_shfl_u32(EP_FULL_MASK, n, lane), turn, workers);
		}
	}
	if (a.zero_to > places) {
		zero_rows(a, pipe->stage, places, a.zero_to - places, turn, workers);
	}
	ep_bulk_wait_read(0);
}

#endif
