/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: ncclEpDispatch. Every warp sends and receives. A row is loaded once where it is,
 * crosses the fabric once for each rank that it goes to, and, unless it goes straight into a window,
 * is loaded once more where it lands and stored once for each of its places.
 *
 * An SM's stores are what it has least of, so all its shared memory is kept busy: a warp that has
 * nothing more to send receives, and loads run ahead of stores over the limits of units.
 */
#include "device/ht/ht_dispatch_recv.h"
#include "device/ht/ht_dispatch_send.h"
#include "device/ht/ht_dispatch_zero.h"
#include "device/ht/ht_step.h"

#include "device/kernels.h"

EP_DEV uint32_t ep_ht_unit_ready(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				 const struct ep_ht_unit &unit, bool wait)
{
	return unit.sends ? ep_ht_send_ready(a, op, unit, wait)
			  : ep_ht_recv_ready(a.c, op, unit, wait);
}

/* Opens the next unit. EP_HT_LATE: none is ready, or none is left. */
EP_DEV uint32_t ep_ht_dispatch_open(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				    const struct ep_ht_pipe *pipe, struct ep_ht_work *work,
				    struct ep_ht_unpublished *unpublished)
{
	struct ep_ht_choice c = ep_ht_work_choice(a, *work);
	bool sends = c.send_first;
	uint32_t state;

	if (!c.sends && !c.comes) {
		return EP_HT_LATE;
	}
	state = ep_ht_unit_ready(a, op, ep_ht_work_pick(c, work->come, sends), false);
	if (state == EP_HT_LATE && c.sends && c.comes &&
	    ep_ht_unit_ready(a, op, ep_ht_work_pick(c, work->come, !sends), false) == EP_HT_READY) {
		sends = !sends;
		state = EP_HT_READY;
	}
	if (state == EP_HT_LATE && !pipe->held) {
		ep_ht_send_publish(a, op, pipe, unpublished);
		state = ep_ht_unit_ready(a, op, ep_ht_work_pick(c, work->come, sends), true);
	}
	if (state == EP_HT_READY) {
		ep_ht_work_open(a, work, c, sends);
	}
	return state;
}

/* Loads as far as there is room and units are ready. False: a wait has failed. */
EP_DEV bool ep_ht_dispatch_load(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				struct ep_ht_pipe *pipe, struct ep_ht_work *work,
				struct ep_ht_unpublished *unpublished)
{
	while (ep_ht_pipe_room(pipe)) {
		uint32_t state = EP_HT_READY;

		if (!work->open) {
			state = ep_ht_dispatch_open(a, op, pipe, work, unpublished);
		}
		if (state != EP_HT_READY) {
			return state == EP_HT_LATE;
		}
		ep_ht_work_load(a, pipe, work);
	}
	return true;
}

/* The content of a slot of the stage, as it was noted. */
struct ep_ht_item {
	bool sends, last;
	uint32_t chunk, part, source, i;
	uint32_t slot;       /* received */
	struct ep_ht_list l; /* loads on their way */
};

EP_DEV struct ep_ht_item ep_ht_item_make(const struct ep_ht_dispatch_args &a,
					 const struct ep_ht_work &work, uint32_t at)
{
	uint32_t what = ep_shfl_u32(EP_FULL_MASK, work.note_what, at);
	struct ep_ht_item i;

	i.sends = what & EP_HT_NOTE_SENDS;
	i.last = what & EP_HT_NOTE_LAST;
	i.source = what & ((1u << EP_HT_NOTE_ROW_SHIFT) - 1);
	i.i = what >> EP_HT_NOTE_ROW_SHIFT & (EP_HT_CHUNK - 1);
	i.part = what >> EP_HT_NOTE_PART_SHIFT;
	i.chunk = ep_shfl_u32(EP_FULL_MASK, work.note_chunk, at);
	i.slot = ep_shfl_u32(EP_FULL_MASK, work.note_slot, at);
	i.l = i.sends ? ep_ht_send_list(a.c, i.chunk * ep_ht_send_chunk(a) + i.i)
		      : ep_ht_recv_list(a.c, i.slot);
	/* in windows a token's weights are sent with it alone */
	if (a.is_direct && a.topk_weights && ep_lane() < a.c.topk) {
		i.l.weight = a.topk_weights[(size_t)i.chunk * a.c.topk + ep_lane()];
	}
	return i;
}

/* The weights of a unit's rows, when its first row is stored. */
EP_DEV void ep_ht_dispatch_weights(const struct ep_ht_dispatch_args &a,
				   const struct ep_ht_item &item, const struct ep_ht_starts &starts)
{
	const struct ep_ht_common &c = a.c;

	if (item.sends) {
		uint32_t token = item.chunk * ep_ht_send_chunk(a);

		ep_ht_send_weights(a, token, ep_min_u32(token + ep_ht_send_chunk(a), c.num_tokens),
				   item.l, ep_ht_starts_base(c, starts, c.g.rank));
	} else {
		ep_ht_recv_weights(a, item.source, item.slot,
				   ep_ht_rows(c, c.h.recv_start, item.source, item.chunk),
				   ep_lane(), EP_WARP_SIZE);
	}
}

/* State of the storing side, from item to item. */
struct ep_ht_stored {
	struct ep_ht_unpublished unpublished;
	struct ep_ht_starts starts; /* of the chunk that is being sent */
	bool ahead;                 /* the oldest item that is held is known: */
	struct ep_ht_item next;
	bool aimed; /* and where it is sent */
	struct ep_ht_target target;
};

/* Where an item that is sent goes. */
EP_DEV struct ep_ht_target ep_ht_item_target(const struct ep_ht_dispatch_args &a,
					     const struct ep_ht_item &item,
					     struct ep_ht_starts *starts)
{
	if (item.i == 0) {
		ep_ht_starts_load(a, item.chunk, starts);
	}
	return ep_ht_target_make(a, item.l, *starts, item.chunk, item.part,
				 ep_ht_piece_make(a, item.part));
}

/*
 * Before the operation begins: all that the first item that is sent needs of this rank's tables. The warps
 * that look for peers in ep_ht_begin() do not wait here for what is on its way.
 */
EP_DEV struct ep_ht_stored ep_ht_stored_make(const struct ep_ht_dispatch_args &a,
					     const struct ep_ht_pipe &pipe,
					     const struct ep_ht_work &work, bool fault)
{
	struct ep_ht_stored s = {};

	s.unpublished.chunk = EP_HT_NONE;
	if (fault) {
		return s;
	}
	if (ep_lane() < a.c.g.nranks) {
		s.starts.base = a.c.h.send_base[ep_lane()];
	}
	if (pipe.held) {
		s.next = ep_ht_item_make(a, work, pipe.out);
		s.ahead = true;
		s.aimed = ep_warp() != 0 && ep_warp() != ep_nwarps() - 1;
	}
	if (s.aimed) {
		s.target = ep_ht_item_target(a, s.next, &s.starts);
	}
	return s;
}

/* Stores the oldest item that is held. False: it does not come. */
EP_DEV bool ep_ht_dispatch_store(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				 struct ep_ht_pipe *pipe, const struct ep_ht_item &item,
				 struct ep_ht_stored *stored)
{
	struct ep_ht_piece piece = ep_ht_piece_make(a, item.part);
	const unsigned char *from;

	if (item.sends && !stored->aimed) {
		stored->target = ep_ht_item_target(a, item, &stored->starts);
	}
	stored->aimed = false;
	from = ep_ht_pipe_wait(a.c.g, op, pipe, a.c.g.rank);
	if (!from) {
		return false;
	}
	if (item.sends) {
		ep_ht_send_store(stored->target, piece, from);
	} else {
		ep_ht_recv_store(a, item.l, item.slot, piece, from);
	}
	ep_ht_pipe_release(pipe);
	if (!item.sends && item.last) {
		ep_ht_recv_credit(a.c, op, item.source, item.chunk, item.part);
	}
	if (item.i == 0 && item.part == 0 && a.topk_weights) {
		ep_ht_dispatch_weights(a, item, stored->starts);
	}
	if (pipe->groups - stored->unpublished.group >= EP_HT_PUBLISH_AFTER) {
		ep_ht_send_publish(a, op, pipe, &stored->unpublished);
	}
	if (item.sends && item.last && !a.is_direct) {
		ep_ht_send_publish(a, op, pipe, &stored->unpublished);
		stored->unpublished = { item.chunk, item.part, pipe->groups };
	}
	return true;
}

/* All of the warp's units; the first loads may be on their way. False: a wait has failed. */
EP_DEV bool ep_ht_dispatch_move(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				struct ep_ht_pipe *pipe, struct ep_ht_work *work,
				struct ep_ht_stored *stored)
{
	for (;;) {
		struct ep_ht_item now;

		if (!ep_ht_dispatch_load(a, op, pipe, work, &stored->unpublished)) {
			return false;
		}
		if (!pipe->held) {
			break;
		}
		now = stored->ahead ? stored->next : ep_ht_item_make(a, *work, pipe->out);
		stored->ahead = pipe->held > 1;
		if (stored->ahead) {
			stored->next = ep_ht_item_make(a, *work, ep_ht_pipe_after(pipe, pipe->out));
		}
		if (!ep_ht_dispatch_store(a, op, pipe, now, stored)) {
			return false;
		}
	}
	ep_ht_send_publish(a, op, pipe, &stored->unpublished);
	if (a.is_direct) {
		ep_ht_pipe_stored(pipe, pipe->groups);
	}
	return true;
}

EP_KERNEL_ALONE(ep_ht_dispatch_kernel, ep_ht_dispatch_args, EP_HT_MAX_THREADS)
{
	struct ep_ht_entry entry = ep_ht_enter(a.c, false);
	struct ep_ht_pipe pipe = ep_ht_pipe_make(a.stage_parts, a.part_bytes);
	struct ep_ht_work work = ep_ht_work_make(a);
	struct ep_ht_stored stored;
	bool ok;
	EP_SHARED(uint32_t, failed);

	ep_bulk_fence_global();
	if (!entry.fault) {
		ep_ht_work_load_early(a, &pipe, &work);
		ep_ht_work_find(a, &work);
	}
	stored = ep_ht_stored_make(a, pipe, work, entry.fault != 0);
	ok = ep_ht_begin<false>(a.c, &entry) &&
	     ep_ht_dispatch_move(a, entry.op, &pipe, &work, &stored);
	ep_ht_pipe_end(a.c.g, entry.op, &pipe);
	if (ok && a.c.layout == EP_HT_EXPERT_MAJOR) {
		ep_ht_zero(a, &pipe);
	}
	if (ok && a.c.layout == EP_HT_FLAT && a.topk_weights) {
		ep_ht_entries_fill(a);
	}
	if (a.is_direct) {
		ep_ht_done_send(a.c, entry.op, &failed);
	}
	if (ok && ep_block() == 0 && ep_warp() == 1) { /* peers do not wait for it */
		ep_ht_dispatch_count(a);
	}
	if (a.is_direct) {
		uint32_t bases = ep_ht_recv_bases(a.c);

		if (ep_ht_done_wait(a.c, entry.op, &failed) && a.topk_weights) {
			ep_ht_entries_copy(a, bases);
		}
	}
}
