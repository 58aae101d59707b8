/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whom a wait of dispatch or combine names, in groups of one node (device/ht/blame_nodes.h is for groups of
 * several). In a ring ranks wait for one another: rank A waits for
 * rows of B, and B has stopped because C has, who has died. All these waits begin within
 * microseconds, and any may be the first to expire. So a rank whose wait has lasted half of the
 * timeout says so to all ranks of its node, and whom it takes for the cause: the rank that it waits for, or, if
 * that one has said the same of itself, whom that one names. Who says so is alive.
 *
 * Words {rank, epoch}, by each rank in every heap. A rank has many waits and one word: a wait that
 * knows nobody who is silent does not overwrite what another wait of the rank has said. A wait for what
 * this rank itself owes, in another warp, goes by that word.
 */
#ifndef EP_DEVICE_HT_BLAME_H
#define EP_DEVICE_HT_BLAME_H

#include "device/group/wait.h"
#include "device/ht/layout.h"

EP_DEV unsigned char *ep_ht_blame_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r)
{
	return heap + c.areas.blame_off + 8 * (size_t)r;
}

/* Has rank r said that it is held up, and by whom? */
EP_DEV bool ep_ht_held_up(const struct ep_ht_common &c, const struct ep_op &op, uint32_t r,
			  uint32_t *by)
{
	return ep_ld_word(ep_ht_blame_at(c, c.g.own, r), op.epoch, by);
}

/* With whom a wait has to name: half of its time is over. */
#define EP_HT_LATE_BIT (1u << 31)

/* Whom a wait for `peer` that began as `s` says has to name. One thread. */
EP_DEV_COLD uint32_t ep_ht_blame(const struct ep_ht_common &c, struct ep_op op, struct ep_spin s,
				 uint32_t peer)
{
	uint32_t cause = peer, by = 0, n = 0;
	bool silent;

	if (!s.start_ns || ep_time_ns() - s.start_ns < c.g.timeout_ns / 2) {
		return peer;
	}
	if (peer == c.g.rank && ep_ht_held_up(c, op, peer, &by)) {
		cause = by; /* as another warp of this rank has said */
	}
	while (n++ < c.g.nranks && cause != c.g.rank && ep_ht_held_up(c, op, cause, &by)) {
		cause = by;
	}
	silent = cause != c.g.rank && n <= c.g.nranks;
	cause = silent ? cause : peer;
	if (silent || (peer != c.g.rank && !ep_ht_held_up(c, op, c.g.rank, &by))) {
		for (uint32_t r = 0; r < c.g.nranks; r++) {
			unsigned char *heap = ep_heap_of(c.g, r);

			if (heap) {
				ep_st_word(ep_ht_blame_at(c, heap, c.g.rank), cause, op.epoch);
			}
		}
	}
	return cause | EP_HT_LATE_BIT;
}

/*
 * ep_wait_give_up() for a wait of `peer` that others may hold up. `named`: by whom; the caller keeps
 * it from poll to poll, and it is `peer` in the beginning.
 */
EP_DEV bool ep_ht_give_up(const struct ep_ht_common &c, const struct ep_op &op, struct ep_spin *s,
			  enum ep_wait_site site, uint32_t peer, uint32_t *named)
{
	if ((s->polls & 63) == 63 || (*named & EP_HT_LATE_BIT)) {
		*named = ep_ht_blame(c, op, *s, peer);
	}
	return ep_wait_give_up(c.g, op, s, site, *named & ~EP_HT_LATE_BIT);
}

#endif
