/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput across nodes: units of work of three kinds, and in which order a copy warp takes them.
 *
 * Dispatch: a copy warp *sends* a part of a chunk of this rank's tokens to ranks of its node and to the
 * stage, *forwards* a part of a chunk that has come over the network to the rings of its node, and
 * *receives* what others have written into this rank's ring. Combine: it *returns* a part of the rows
 * that this rank holds for a source, *merges* what its node's ranks have returned for a source that
 * it forwards for, and *sums* what has come for this rank's own tokens. The first, second and third
 * kind, in that order, are what follows one upon the other.
 *
 * A copy warp takes the units of each kind in ascending order of chunks. The key of a unit of kind k is
 * chunk + k * lag, then k. Everything that a unit waits for is done by units with smaller keys, of
 * whatever rank, or by a send warp or credit warp that waits for such units alone; this is what lag must be
 * small enough for (plugin/ep/ht/ht_plan.c). A copy warp takes the unit with the smallest key that is ready,
 * and when none is it waits for the one with the smallest key. So of all units of all ranks that are
 * not done, the one with the smallest key is at work or ready.
 */
#ifndef EP_DEVICE_HT_HOP_H
#define EP_DEVICE_HT_HOP_H

#include "device/ht/ht_nodes.h"
#include "device/ht/peers.h"

#define EP_HT_HOP_KINDS 3

struct ep_ht_hop {
	uint32_t kind;
	uint32_t chunk, part;
	uint32_t from; /* rank, or flow; own tokens: 0 */
	uint32_t rows; /* 0: there is nothing to do. Of tokens that travel by a flow: their mask */
};

/* The units of a kind that are a copy warp's; each lane looks at one of them. */
struct ep_ht_cursor {
	uint32_t units; /* of all copy warps */
	uint32_t next;  /* unit of lane 0 when the lanes look again */
	uint32_t found; /* lanes whose unit has something to do and has not been taken */
	struct ep_ht_hop lane;
};

/* Units of all copy warps are numbered: chunk, then `fan` of them, then part. */
struct ep_ht_fan {
	uint32_t chunks;
	uint32_t fan;
	uint32_t parts;
};

EP_DEV struct ep_ht_cursor ep_ht_cursor_make(const struct ep_ht_fan &fan)
{
	struct ep_ht_cursor cur = {};

	cur.units = fan.chunks * fan.fan * fan.parts;
	cur.next = ep_block() + ep_nblocks() * ep_warp();
	return cur;
}

/* The lane's unit of the next 32; chunk EP_HT_NONE: there is none. */
EP_DEV struct ep_ht_hop ep_ht_hop_make(const struct ep_ht_fan &fan, const struct ep_ht_cursor &cur,
				       uint32_t kind)
{
	uint32_t unit = cur.next + ep_lane() * ep_nblocks() * ep_ht_copy_warps<true>();
	struct ep_ht_hop h = { kind, EP_HT_NONE, 0, 0, 0 };
	uint32_t all;

	if (unit < cur.units) {
		all = unit / fan.parts;
		h.part = unit - all * fan.parts;
		h.chunk = all / fan.fan;
		h.from = all - h.chunk * fan.fan;
	}
	return h;
}

/* The lanes have looked at the units from cur->next on. */
EP_DEV void ep_ht_cursor_found(struct ep_ht_cursor *cur, const struct ep_ht_hop &lane)
{
	cur->lane = lane;
	cur->found = ep_ballot(EP_FULL_MASK, lane.chunk != EP_HT_NONE && lane.rows != 0);
	cur->next += EP_WARP_SIZE * ep_nblocks() * ep_ht_copy_warps<true>();
}

/* The cursor's unit, which it has. */
EP_DEV struct ep_ht_hop ep_ht_cursor_hop(const struct ep_ht_cursor &cur, uint32_t kind)
{
	uint32_t lane = ep_ctz(cur.found);
	struct ep_ht_hop h;

	h.kind = kind;
	h.chunk = ep_shfl_u32(EP_FULL_MASK, cur.lane.chunk, lane);
	h.part = ep_shfl_u32(EP_FULL_MASK, cur.lane.part, lane);
	h.from = ep_shfl_u32(EP_FULL_MASK, cur.lane.from, lane);
	h.rows = ep_shfl_u32(EP_FULL_MASK, cur.lane.rows, lane);
	return h;
}

/* ---- which unit is next ---- */

/* All cursors of a copy warp. (They are reached by constants, so that they stay in registers.) */
struct ep_ht_cursors {
	struct ep_ht_cursor of[EP_HT_HOP_KINDS];
};

EP_DEV struct ep_ht_hop ep_ht_cursors_hop(const struct ep_ht_cursors &cur, uint32_t kind)
{
	struct ep_ht_hop u = {};

	EP_UNROLL(EP_HT_HOP_KINDS)
	for (uint32_t k = 0; k < EP_HT_HOP_KINDS; k++) {
		if (k == kind && cur.of[k].found) {
			u = ep_ht_cursor_hop(cur.of[k], k);
		}
	}
	return u;
}

EP_DEV void ep_ht_cursors_drop(struct ep_ht_cursors *cur, uint32_t kind)
{
	EP_UNROLL(EP_HT_HOP_KINDS)
	for (uint32_t k = 0; k < EP_HT_HOP_KINDS; k++) {
		if (k == kind) {
			cur->of[k].found &= cur->of[k].found - 1;
		}
	}
}

/*
 * The rest is the same for dispatch and combine, which define by functions of their own, overloaded
 * for their arguments, what units there are:
 *   ep_ht_hop_fan(a, kind)          how units of a kind are numbered
 *   ep_ht_hop_rows(a, &hop)         the lane's unit: what it has to move
 *   ep_ht_hop_missing(a, op, hop, &site)   whom it waits for, of the lane's share, or EP_HT_NONE
 */
template <class ARGS> EP_DEV struct ep_ht_cursors ep_ht_cursors_make(const ARGS &a)
{
	struct ep_ht_cursors cur;

	EP_UNROLL(EP_HT_HOP_KINDS)
	for (uint32_t k = 0; k < EP_HT_HOP_KINDS; k++) {
		cur.of[k] = ep_ht_cursor_make(ep_ht_hop_fan(a, k));
	}
	return cur;
}

/* Each kind has a unit, unless there are no more of it. Returns the kind with the smallest key. */
template <class ARGS> EP_DEV uint32_t ep_ht_cursors_fill(const ARGS &a, struct ep_ht_cursors *cur)
{
	uint32_t first = EP_HT_HOP_KINDS, least = 0;

	EP_UNROLL(EP_HT_HOP_KINDS)
	for (uint32_t k = 0; k < EP_HT_HOP_KINDS; k++) {
		struct ep_ht_cursor *one = &cur->of[k];

		while (!one->found && one->next < one->units) {
			struct ep_ht_hop lane = ep_ht_hop_make(ep_ht_hop_fan(a, k), *one, k);

			if (lane.chunk != EP_HT_NONE) {
				lane.rows = ep_ht_hop_rows(a, &lane);
			}
			ep_ht_cursor_found(one, lane);
		}
		if (one->found) {
			uint32_t key = ep_ht_cursor_hop(*one, k).chunk + k * a.lag;

			if (first == EP_HT_HOP_KINDS || key < least) {
				first = k;
				least = key;
			}
		}
	}
	return first;
}

enum ep_ht_taken {
	EP_HT_TAKEN,
	EP_HT_NOT_READY, /* no unit is ready */
	EP_HT_NO_MORE,
	EP_HT_BROKEN /* a wait has failed */
};

/* Takes the copy warp's next unit: *u. `wait`: until one is ready. */
template <class ARGS>
EP_DEV enum ep_ht_taken ep_ht_hop_take(const ARGS &a, const struct ep_op &op,
				       struct ep_ht_cursors *cur, struct ep_ht_hop *hop, bool wait)
{
	struct ep_ht_patience patience = ep_ht_patience_make();
	uint32_t first = ep_ht_cursors_fill(a, cur);

	if (first == EP_HT_HOP_KINDS) {
		return EP_HT_NO_MORE;
	}
	do {
		EP_UNROLL(1)
		for (uint32_t n = 0; n < EP_HT_HOP_KINDS; n++) {
			uint32_t k = first + n < EP_HT_HOP_KINDS ? first + n
								 : first + n - EP_HT_HOP_KINDS;
			enum ep_wait_site site = EP_WAIT_HT_ROWS;
			enum ep_ht_ready ready;
			uint32_t missing;

			*hop = ep_ht_cursors_hop(*cur, k);
			if (!hop->rows) {
				continue;
			}
			missing = ep_ht_hop_missing(a, op, *hop, &site);
			ready = ep_ht_patience_check<true>(a.c, op, &patience, missing, site,
							   wait && k == first);
			if (ready == EP_HT_READY) {
				ep_ht_cursors_drop(cur, k);
				return EP_HT_TAKEN;
			}
			if (ready == EP_HT_FAILED) {
				return EP_HT_BROKEN;
			}
		}
	} while (wait);
	return EP_HT_NOT_READY;
}

#endif
