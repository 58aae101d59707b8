/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput across nodes, dispatch: a unit that is forwarded. Its rows have come over the
 * network, and go to the rings of this node's ranks; what is for this rank itself is stored as what it
 * receives.
 */
#ifndef EP_DEVICE_HT_FORWARD_H
#define EP_DEVICE_HT_FORWARD_H

#include "device/ht/ht_dispatch_work.h"

/*
 * The chunk before `chunk` of which the rank with index i here got rows by the same flow, in the same slot
 * of its ring; `chunk` itself: there is none.
 */
EP_DEV uint32_t ep_ht_forward_before(const struct ep_ht_common &c, uint32_t flow, uint32_t i,
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
EP_DEV uint32_t ep_ht_readers_missing(const struct ep_ht_common &c, const struct ep_op &op,
				      const struct ep_ht_unit &unit)
{
	for (uint32_t i = ep_lane(); i < c.remote.near; i += EP_WARP_SIZE) {
		uint32_t before, ring = c.remote.near * (1 + EP_HT_FROM(unit.what)) + i;

		if (i == c.g.index || !ep_ht_near_mask(c, EP_HT_FROM(unit.what), i, unit.chunk)) {
			continue;
		}
		before = ep_ht_forward_before(c, EP_HT_FROM(unit.what), i, unit.chunk);
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

/* The source, if the chunk has not come; or such a rank, for whose credit is waited. */
EP_DEV uint32_t ep_ht_forward_missing(const struct ep_ht_common &c, const struct ep_op &op,
				      const struct ep_ht_unit &unit, enum ep_wait_site *site)
{
	uint32_t source = c.remote.feeds[EP_HT_FROM(unit.what)].peer;

	if (ep_lane() == 0 && !ep_ht_rows_reached(c, op, source, unit.chunk)) {
		*site = EP_WAIT_HT_ROWS;
		return source;
	}
	*site = EP_WAIT_HT_CREDIT;
	return ep_ht_readers_missing(c, op, unit);
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

#endif
