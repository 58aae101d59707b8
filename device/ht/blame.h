/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the rank that a wait of high throughput names. In a ring ranks wait for one another: rank A waits for rows of B, and
 * B has stopped because C has, who has died. All these waits begin within microseconds, and any may be the
 * first to expire. So a rank whose wait has lasted half of the timeout publishes that to all ranks, with whom it takes
 * for the cause: the rank that it waits for, or, if that one has published the same, whom that one names.
 * A rank that publishes so is alive.
 *
 * A rank has many waits and one word (device/ht/blame_word.h): a wait that knows nobody who is silent does not
 * overwrite the word of another wait of the rank. More may happen before all waits are over:
 *   - A wait that is late and then ends well takes the rank's word back.
 *   - A rank that gives up a connection publishes that at once, for who is left behind waits for this rank; and
 *     what its other waits find does not change that word any more (EP_HT_GAVE_UP).
 *   - A wait that is not late yet goes by the words of others, too: if B has left because of C, then
 *     it is not B whose connection is down.
 *   - Some ranks are at the next step already, and wait for those that are held up in this one. So of a
 *     rank the word of that step counts where it stands.
 */
#ifndef EP_DEVICE_HT_BLAME_H
#define EP_DEVICE_HT_BLAME_H

#include "device/ht/blame_word.h"

/* Whether rank r has published that it is held up, and by whom. */
EP_DEV bool ep_ht_held_up(const struct ep_ht_common &c, uint32_t step, uint32_t r, uint32_t *by)
{
	uint64_t word = ep_ht_blame_load(c, r);
	uint32_t epoch = (uint32_t)(word >> 32);

	*by = (uint32_t)word & ~EP_HT_GAVE_UP;
	return *by < c.g.nranks && epoch && (epoch == step || epoch == ep_progress_step(c.g, r));
}

/*
 * Finds the rank that holds `peer` up in the end: the last one that others have named, and that has named
 * nobody itself. (The peer may wait for this rank, for which another wait has published the cause.) False: nobody
 * knows, for that is this rank, or they name one another in a ring; *cause is the peer.
 */
EP_DEV bool ep_ht_cause_find(const struct ep_ht_common &c, uint32_t step, uint32_t peer,
			     uint32_t *cause)
{
	uint32_t last = peer, by = 0, n = 0;

	EP_UNROLL(1)
	while (n++ < c.g.nranks && ep_ht_held_up(c, step, last, &by)) {
		last = by;
	}
	*cause = peer;
	if (last == c.g.rank || n > c.g.nranks) {
		return false;
	}
	*cause = last;
	return true;
}

/* Events of a wait. */
enum ep_ht_event {
	EP_HT_CHECKS, /* nothing yet */
	EP_HT_FAILS, /* it is over: the peer is lost, or its connection is down, or another wait has failed */
	EP_HT_BREAKS, /* the queue to the peer is of no use any more */
	EP_HT_GOES_ON /* it has been late, and what it waits for has come */
};

/* With whom a wait names: half of its time is over. */
#define EP_HT_LATE_BIT (1u << 31)

/*
 * Finds the rank that a wait for `peer` has to name, which began then; publishes what follows from the event. One
 * thread. Out of line, and given few values, and nothing of it out of line again: what is live in a kernel
 * must be kept from all that is called.
 */
template <bool NODES>
EP_DEV_COLD uint32_t ep_ht_blame(const struct ep_ht_common &c, uint32_t step,
				 enum ep_ht_event event, uint64_t start_ns, uint32_t peer)
{
	bool published = ep_ht_blame_published(c, step), known, publish = true;
	uint32_t cause, by, late = 0;

	known = ep_ht_cause_find(c, step, peer, &cause);
	by = cause;
	if (event == EP_HT_CHECKS) {
		/* (another warp of this rank publishes for its own wait) */
		bool half = peer != c.g.rank && start_ns &&
			    ep_time_ns() - start_ns >= c.g.timeout_ns / 2;

		late = half ? EP_HT_LATE_BIT : 0;
		publish = half && (known || !published);
	} else if (event == EP_HT_FAILS) {
		bool down = NODES && ep_rank_remote(c.g, cause) &&
			    ep_ld_relaxed_gpu_u64(ep_wait_down_seen(c.g, cause));

		by = down ? cause | EP_HT_GAVE_UP : EP_HT_SAME;
	} else if (event == EP_HT_BREAKS) {
		by = cause | EP_HT_GAVE_UP;
	} else {
		by = EP_HT_NOBODY; /* if others are late, they publish it again */
		publish = published;
	}
	if (publish) {
		ep_ht_blame_publish<NODES>(c, step, by);
	}
	return cause | late;
}

/* ep_wait_check() for a wait of `peer` that others may hold up. */
template <bool NODES>
EP_DEV bool ep_ht_wait_check(const struct ep_ht_common &c, const struct ep_op &op,
			     struct ep_spin *spin, bool expired, enum ep_wait_site site,
			     uint32_t peer)
{
	uint32_t cause = ep_ht_blame<NODES>(c, op.epoch, EP_HT_CHECKS, spin->start_ns, peer);
	struct ep_wait_result w;

	spin->polls |= cause & EP_HT_LATE_BIT ? EP_WAIT_LATE : 0;
	if (expired && peer == c.g.rank) { /* EP_HT_OWN_WAITS is all that it is granted */
		spin->polls |= (uint32_t)EP_WAIT_WITH << EP_WAIT_STAND_SHIFT;
	}
	w = ep_wait_check(c.g, op, *spin, expired, site, cause & ~EP_HT_LATE_BIT);
	*spin = w.spin;
	if (NODES && w.over) { /* ranks of other nodes may not have received it all */
		ep_ht_blame<NODES>(c, op.epoch, EP_HT_FAILS, 0, peer);
	}
	return w.over;
}

/*
 * If this rank itself is waited for, then by another of its warps. That one waits for peers, each for as long
 * as the timeout is, and ends the operation when one does not come: only if it is lost itself does this wait
 * end by its own time, which is longer than several of those.
 */
#define EP_HT_OWN_WAITS 8u

/* ep_wait_give_up() for such a wait. */
template <bool NODES>
EP_DEV bool ep_ht_give_up(const struct ep_ht_common &c, const struct ep_op &op,
			  struct ep_spin *spin, enum ep_wait_site site, uint32_t peer)
{
	uint64_t waits = peer == c.g.rank ? EP_HT_OWN_WAITS : 1;
	bool expired = ep_spin_expired(spin, waits * c.g.timeout_ns, site, peer);

	return (expired || (spin->polls & 63) == 0) &&
	       ep_ht_wait_check<NODES>(c, op, spin, expired, site, peer);
}

/* A wait that such polls were made for has ended well. */
template <bool NODES>
EP_DEV void ep_ht_go_on(const struct ep_ht_common &c, const struct ep_op &op,
			const struct ep_spin &spin)
{
	if (spin.polls & EP_WAIT_LATE) {
		ep_ht_blame<NODES>(c, op.epoch, EP_HT_GOES_ON, 0, c.g.rank);
	}
}

/* Polls of a flag before its wait goes on out of line: a call costs 0.7 us. */
#define EP_HT_FLAG_POLLS 16u

/* The rest of such a wait. */
template <bool NODES>
EP_DEV_COLD bool ep_ht_flag_wait_on(const struct ep_ht_common &c, struct ep_op op,
				    const uint32_t *flag, enum ep_wait_site site, uint32_t r)
{
	struct ep_spin s = ep_spin_start();

	while (ep_ld_acquire_sys_u32(flag) != op.epoch) {
		if (ep_ht_give_up<NODES>(c, op, &s, site, r)) {
			return false;
		}
	}
	ep_ht_go_on<NODES>(c, op, s);
	return true;
}

/* ep_wait_flag() for a flag of rank r, which others may hold up. Any lane. */
template <bool NODES>
EP_DEV bool ep_ht_flag_wait(const struct ep_ht_common &c, const struct ep_op &op,
			    const uint32_t *flag, enum ep_wait_site site, uint32_t r)
{
	EP_UNROLL(1)
	for (uint32_t n = 0; n < EP_HT_FLAG_POLLS; n++) {
		if (ep_ld_acquire_sys_u32(flag) == op.epoch) {
			return true;
		}
	}
	return ep_ht_flag_wait_on<NODES>(c, op, flag, site, r);
}

/* ep_ht_queue_failed(), one thread. If r has published the cause, it may have left for that, and is not named. */
EP_DEV_COLD void ep_ht_queue_blame(const struct ep_ht_common &c, struct ep_op op, uint32_t status,
				   uint32_t qpn, uint32_t r, enum ep_wait_site site)
{
	uint32_t cause = ep_ht_blame<true>(c, op.epoch, EP_HT_BREAKS, 0, r);

	ep_mask_peer(c.g, op, cause == r ? EP_CAUSE_RDMA : EP_CAUSE_TIMEOUT, site, cause,
		     cause == r ? status : 0, cause == r ? qpn : 0);
}

/* ep_remote_failed(): the queue to rank r is of no use any more. One warp. */
EP_DEV void ep_ht_queue_failed(const struct ep_ht_common &c, const struct ep_op &op,
			       const struct ep_mlx5_post &post, uint32_t r, enum ep_wait_site site)
{
	if (ep_lane() == 0 && post.status != EP_MLX5_ERR_ABORTED) {
		ep_ht_queue_blame(c, op, post.status, post.qpn, r, site);
	}
	ep_warp_sync(EP_FULL_MASK);
}

#endif
