/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, dispatch: a copy warp at work. It loads items as far as there is room and units
 * are ready, over the limits of units, and stores the oldest one.
 */
#ifndef EP_DEVICE_HT_DISPATCH_COPY_H
#define EP_DEVICE_HT_DISPATCH_COPY_H

#include "device/ht/dispatch.h"

/*
 * Finds whom a unit waits for, of the lane's share; *site: for what; *arrived, of lane 0: ready
 * rows.
 */
template <bool NODES>
EP_DEV uint32_t unit_missing(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			     const struct ep_ht_unit &unit, enum ep_wait_site *site,
			     uint32_t *arrived)
{
	*arrived = EP_HT_CHUNK;
	if (EP_HT_KIND(unit.what) == EP_HT_SEND) {
		*site = EP_WAIT_HT_CREDIT;
		return ep_ht_send_missing<NODES>(a, op, unit);
	}
	if (NODES && EP_HT_KIND(unit.what) == EP_HT_FORWARD) {
		return ep_ht_forward_missing(a.c, op, unit, site);
	}
	*site = EP_WAIT_HT_ROWS;
	*arrived = 0;
	return ep_ht_recv_missing<NODES>(a.c, op, unit, 0, arrived);
}

/*
 * Opens the unit with the smallest key that is ready. With `wait`, one look of a wait for the one
 * with the smallest key of all, which `first` is.
 */
template <bool NODES>
EP_DEV enum ep_ht_ready dispatch_poll(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				      struct ep_ht_dispatch_work *work,
				      struct ep_ht_patience *patience, uint32_t first, bool wait)
{
	uint32_t there = ep_ballot(EP_FULL_MASK, work->ahead.rows != 0);

	EP_UNROLL(1)
	for (uint32_t n = 0; n < ep_ht_kinds<NODES>(); n++) {
		uint32_t kind = first < n ? first + ep_ht_kinds<NODES>() - n : first - n;
		enum ep_wait_site site = EP_WAIT_HT_ROWS;
		struct ep_ht_unit unit;
		enum ep_ht_ready ready;
		uint32_t missing, arrived;

		if (!(there >> kind & 1)) {
			continue;
		}
		unit = ep_ht_dispatch_work_head(*work, kind);
		missing = unit_missing<NODES>(a, op, unit, &site, &arrived);
		ready = ep_ht_patience_check<NODES>(a.c, op, patience, missing, site,
						    wait && n == 0);
		if (ready == EP_HT_READY) {
			ep_ht_dispatch_work_open<NODES>(a, work, kind);
			if (!NODES) {
				work->arrived = ep_shfl_u32(EP_FULL_MASK, arrived, 0);
			}
		}
		if (ready != EP_HT_LATE) {
			return ready;
		}
	}
	return EP_HT_LATE;
}

/* Opens the next unit. EP_HT_LATE: none is ready, or none is left. */
template <bool NODES>
EP_DEV enum ep_ht_ready dispatch_open(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				      const struct ep_ht_pipe *pipe,
				      struct ep_ht_dispatch_work *work,
				      struct ep_ht_unpublished *unpublished)
{
	struct ep_ht_patience patience = ep_ht_patience_make();
	uint32_t first = ep_ht_dispatch_work_first<NODES>(a, *work);
	enum ep_ht_ready ready = EP_HT_LATE;
	bool wait = false;

	EP_UNROLL(1)
	while (ready == EP_HT_LATE && first != EP_HT_KINDS && !(wait && pipe->held)) {
		ready = dispatch_poll<NODES>(a, op, work, &patience, first, wait);
		if (ready == EP_HT_LATE && !wait) {
			wait = true;
			if (!pipe->held) { /* who is waited for may need it */
				ep_ht_send_publish<NODES>(a, op, pipe, unpublished);
			}
		}
	}
	return ready;
}

/*
 * One node: looks for more rows of the unit that is open, all of whose rows that have come are
 * loaded. EP_HT_LATE: there are none yet, and something is held that can be stored meanwhile.
 */
EP_DEV enum ep_ht_ready dispatch_more(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				      const struct ep_ht_pipe *pipe,
				      struct ep_ht_dispatch_work *work,
				      struct ep_ht_unpublished *unpublished)
{
	struct ep_ht_patience patience = ep_ht_patience_make();
	enum ep_ht_ready ready = EP_HT_LATE;
	bool wait = false;

	EP_UNROLL(1)
	while (ready == EP_HT_LATE && !(wait && pipe->held)) {
		uint32_t arrived = 0;
		uint32_t missing =
			ep_ht_recv_missing<false>(a.c, op, work->unit, work->arrived, &arrived);

		ready = ep_ht_patience_check<false>(a.c, op, &patience, missing, EP_WAIT_HT_ROWS,
						    wait);
		if (ready == EP_HT_READY) {
			work->arrived = ep_shfl_u32(EP_FULL_MASK, arrived, 0);
		} else if (!wait) {
			wait = true;
			if (!pipe->held) { /* who is waited for may need it */
				ep_ht_send_publish<false>(a, op, pipe, unpublished);
			}
		}
	}
	return ready;
}

/* Loads as far as there is room and units are ready. False: a wait has failed. */
template <bool NODES>
EP_DEV bool dispatch_load(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			  struct ep_ht_pipe *pipe, struct ep_ht_dispatch_work *work,
			  struct ep_ht_unpublished *unpublished)
{
	while (ep_ht_pipe_room(pipe)) {
		enum ep_ht_ready ready = EP_HT_READY;

		if (!work->unit.rows) {
			ready = dispatch_open<NODES>(a, op, pipe, work, unpublished);
		} else if (!NODES && ep_ctz(work->unit.rows) >= work->arrived) {
			ready = dispatch_more(a, op, pipe, work, unpublished);
		}
		if (ready != EP_HT_READY) {
			return ready == EP_HT_LATE;
		}
		ep_ht_dispatch_work_load<NODES>(a, pipe, work);
	}
	return true;
}

template <bool NODES>
EP_DEV struct ep_ht_item item_make(const struct ep_ht_dispatch_args &a,
				   const struct ep_ht_dispatch_work &work, uint32_t at)
{
	struct ep_ht_item i;

	i.what = ep_shfl_u32(EP_FULL_MASK, work.note.what, at);
	i.chunk = ep_shfl_u32(EP_FULL_MASK, work.note.chunk, at);
	i.slot = ep_shfl_u32(EP_FULL_MASK, work.note.slot, at);
	i.l = EP_HT_KIND(i.what) == EP_HT_SEND
		      ? ep_ht_send_list(a.c,
					i.chunk * ep_ht_send_chunk<NODES>(a) + EP_HT_ROW(i.what))
		      : ep_ht_recv_list(a.c, i.slot);
	/* in windows a token's weights are sent with it alone */
	if (ep_ht_windows<NODES>(a) && a.topk_weights && ep_lane() < a.c.topk) {
		i.l.weight = a.topk_weights[(size_t)i.chunk * a.c.topk + ep_lane()];
	}
	return i;
}

/* The weights of a unit's rows, when its first row is stored. Those of other nodes come apart. */
template <bool NODES>
EP_DEV void dispatch_weights(const struct ep_ht_dispatch_args &a, const struct ep_ht_item &item,
			     const struct ep_ht_starts &starts)
{
	const struct ep_ht_common &c = a.c;

	if (EP_HT_KIND(item.what) == EP_HT_SEND) {
		uint32_t token = item.chunk * ep_ht_send_chunk<NODES>(a);

		ep_ht_send_weights<NODES>(
			a, token, ep_min_u32(token + ep_ht_send_chunk<NODES>(a), c.num_tokens),
			item.l, ep_ht_starts_base<NODES>(c, starts, c.g.rank));
	} else if (!NODES || (EP_HT_KIND(item.what) == EP_HT_RECEIVE &&
			      ep_ht_near(c, EP_HT_FROM(item.what)))) {
		ep_ht_recv_weights(a, EP_HT_FROM(item.what), item.slot,
				   ep_ht_rows(c, c.h.recv_start, EP_HT_FROM(item.what), item.chunk),
				   ep_lane(), EP_WARP_SIZE);
	}
}

/* State of the storing side, from item to item. */
struct ep_ht_stored {
	struct ep_ht_unpublished unpublished;
	uint32_t sent;              /* lane r: rows to rank r of the unit that is being sent */
	struct ep_ht_starts starts; /* of the chunk that is being sent */
	bool ahead;                 /* the oldest item that is held is known: */
	struct ep_ht_item next;
	bool aimed; /* and where it is sent */
	struct ep_ht_target target;
};

/* Where an item that is sent goes. */
template <bool NODES>
EP_DEV struct ep_ht_target item_target(const struct ep_ht_dispatch_args &a,
				       const struct ep_ht_item &item, struct ep_ht_starts *starts)
{
	if (EP_HT_ROW(item.what) == 0) {
		ep_ht_starts_load<NODES>(a, item.chunk, starts);
	}
	return ep_ht_target_make<NODES>(a, item, *starts,
					ep_ht_piece_make(a, EP_HT_PART(item.what)));
}

/*
 * Before the operation begins: all that the first item that is sent needs of this rank's tables.
 * The warps that look for peers in ep_ht_begin() do not wait here for what is on its way.
 */
template <bool NODES>
EP_DEV struct ep_ht_stored ep_ht_stored_make(const struct ep_ht_dispatch_args &a,
					     const struct ep_ht_pipe &pipe,
					     const struct ep_ht_dispatch_work &work, bool fault)
{
	struct ep_ht_stored s = {};

	s.unpublished.chunk = EP_HT_NONE;
	if (fault) {
		return s;
	}
	if (!NODES && ep_lane() < a.c.g.nranks) {
		s.starts.base = a.c.h.send_base[ep_lane()];
	}
	if (pipe.held) {
		s.next = item_make<NODES>(a, work, pipe.out);
		s.ahead = true;
		s.aimed = ep_warp() != 0 && ep_warp() != ep_nwarps() - 1;
	}
	if (s.aimed) {
		s.target = item_target<NODES>(a, s.next, &s.starts);
	}
	return s;
}

/* All that was loaded of the unit has come: where it lay may be written again. */
template <bool NODES>
EP_DEV void item_credit(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			const struct ep_ht_item &item)
{
	if (NODES && EP_HT_KIND(item.what) == EP_HT_FORWARD) {
		ep_ht_forward_consumed(a.c, op, item);
	} else if (EP_HT_KIND(item.what) != EP_HT_SEND) {
		ep_ht_recv_credit<NODES>(a.c, op, EP_HT_FROM(item.what), item.chunk,
					 EP_HT_PART(item.what));
	}
}

/* Stores the oldest item that is held. False: it does not come. */
template <bool NODES>
EP_DEV bool dispatch_store(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			   struct ep_ht_pipe *pipe, const struct ep_ht_item &item,
			   struct ep_ht_stored *stored)
{
	struct ep_ht_piece piece = ep_ht_piece_make(a, EP_HT_PART(item.what));
	bool sends = EP_HT_KIND(item.what) == EP_HT_SEND,
	     forwards = NODES && EP_HT_KIND(item.what) == EP_HT_FORWARD;
	const unsigned char *from;

	if (sends && !stored->aimed) {
		stored->target = item_target<NODES>(a, item, &stored->starts);
	}
	stored->aimed = false;
	if (!ep_ht_pipe_wait(a.c.g, op, pipe, a.c.g.rank)) {
		return false;
	}
	from = ep_ht_pipe_oldest(pipe);
	if (forwards) {
		ep_ht_forward_store(a, item, piece, from);
	}
	if (sends) {
		stored->sent = EP_HT_ROW(item.what) == 0 ? 0 : stored->sent;
		ep_ht_send_store(stored->target, piece, from, ep_ht_sends_early<NODES>(a),
				 &stored->sent);
	} else if (!NODES || item.slot != EP_HT_NONE) {
		ep_ht_recv_store(a, item.l, item.slot, piece, from);
	}
	ep_ht_pipe_release(pipe);
	if (item.what & EP_HT_LAST) {
		item_credit<NODES>(a, op, item);
	}
	if (EP_HT_ROW(item.what) == 0 && EP_HT_PART(item.what) == 0 && a.topk_weights) {
		dispatch_weights<NODES>(a, item, stored->starts);
	}
	if (pipe->groups - stored->unpublished.group >= EP_HT_PUBLISH_AFTER) {
		ep_ht_send_publish<NODES>(a, op, pipe, &stored->unpublished);
	}
	if ((item.what & EP_HT_LAST || (ep_ht_sends_early<NODES>(a) && EP_HT_ROW(item.what) & 1)) &&
	    (sends || forwards) && !ep_ht_windows<NODES>(a)) {
		uint32_t told;

		ep_ht_send_publish<NODES>(a, op, pipe, &stored->unpublished);
		told = EP_HT_ROW(item.what) < 2 ? 0 : stored->unpublished.told;
		stored->unpublished = { item.chunk, item.what, pipe->groups, stored->sent, told };
	}
	return true;
}

/* All of the warp's units; the first loads may be on their way. False: a wait has failed. */
template <bool NODES>
EP_DEV bool ep_ht_dispatch_copy(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				struct ep_ht_pipe *pipe, struct ep_ht_dispatch_work *work,
				struct ep_ht_stored *stored)
{
	for (;;) {
		struct ep_ht_item now;

		if (!dispatch_load<NODES>(a, op, pipe, work, &stored->unpublished)) {
			return false;
		}
		if (!pipe->held) {
			break;
		}
		now = stored->ahead ? stored->next : item_make<NODES>(a, *work, pipe->out);
		stored->ahead = pipe->held > 1;
		if (stored->ahead) {
			stored->next =
				item_make<NODES>(a, *work, ep_ht_pipe_after(pipe, pipe->out));
		}
		if (!dispatch_store<NODES>(a, op, pipe, now, stored)) {
			return false;
		}
	}
	ep_ht_send_publish<NODES>(a, op, pipe, &stored->unpublished);
	if (ep_ht_windows<NODES>(a)) {
		ep_ht_pipe_stored(pipe, pipe->groups);
	}
	return true;
}

#endif
