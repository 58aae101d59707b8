/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: whom a unit of work waits for. The lanes of a warp divide the peers of the unit
 * among them, and each finds one whose word is missing. A warp looks whether the unit is ready, or
 * waits for it.
 */
#ifndef EP_DEVICE_HT_PEERS_H
#define EP_DEVICE_HT_PEERS_H

#include "device/ht/ht_wait.h"
#include "device/simt/bulk.h"

/* May a unit be loaded: have its rows come, and may they be written where they go? */
enum ep_ht_ready {
	EP_HT_READY,
	EP_HT_LATE,
	EP_HT_FAILED
};

/* A wait for a unit's peers, from look to look. */
struct ep_ht_patience {
	struct ep_spin spin;
	uint32_t before; /* the lane's peer that was missing */
};

EP_DEV struct ep_ht_patience ep_ht_patience_make(void)
{
	struct ep_ht_patience p;

	p.spin = ep_spin_start();
	p.before = EP_HT_NONE;
	return p;
}

/*
 * One look at a unit's peers, of whom each lane has found one that is missing of its share; EP_HT_NONE: none is.
 * With `wait`, between two polls. One warp; the lanes agree. This rank itself is a peer where another of its
 * warps has something to do.
 */
template <bool NODES>
EP_DEV enum ep_ht_ready ep_ht_patience_check(const struct ep_ht_common &c, const struct ep_op &op,
					     struct ep_ht_patience *patience, uint32_t missing,
					     enum ep_wait_site site, bool wait)
{
	bool over = false, ready = ep_all(EP_FULL_MASK, missing == EP_HT_NONE);

	if (ready || (wait && missing != patience->before)) { /* the wait before this one is over */
		patience->before = missing;
		patience->spin = ep_spin_start();
	}
	ep_bulk_fence_global(); /* the engines of others have stored, or read what is overwritten */
	if (ready) {
		return EP_HT_READY;
	}
	ep_spin_polled();
	if (wait && missing != EP_HT_NONE) {
		over = ep_ht_give_up<NODES>(c, op, &patience->spin, site, missing);
	}
	return ep_any(EP_FULL_MASK, over) ? EP_HT_FAILED : EP_HT_LATE;
}

#endif
