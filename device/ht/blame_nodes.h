/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whom a wait of high throughput names in a group of several nodes: as in device/ht/blame.h, with words that
 * go to ranks of other nodes, too (device/ht/say.h), and for waits for the start of a step and those of
 * UpdateHandle as well. More may happen here before all waits are over:
 *   - A wait that is late and then ends well takes the rank's word back.
 *   - A rank that gives up a connection says so at once, for who is left behind waits for this rank; and
 *     what its other waits find does not change that word any more (EP_HT_GAVE_UP).
 *   - A wait that is not late yet goes by what others have said, too: if B has left because of C, then
 *     it is not B whose connection is down.
 *   - Some ranks are at the next step already, and wait for those that are held up in this one. So of a
 *     rank the word of that step counts where it stands.
 */
#ifndef EP_DEVICE_HT_BLAME_NODES_H
#define EP_DEVICE_HT_BLAME_NODES_H

#include "device/ht/say.h"

/* Has rank r said that it is held up, and by whom? */
EP_DEV bool ep_ht_nodes_held_up(const struct ep_ht_common &c, const struct ep_op &op, uint32_t r,
				uint32_t *by)
{
	uint64_t word = ep_ht_blame_load(c, r);
	uint32_t epoch = (uint32_t)(word >> 32);

	*by = (uint32_t)word & ~EP_HT_GAVE_UP;
	return *by < c.g.nranks && epoch &&
	       (epoch == op.epoch || epoch == ep_progress_step(c.g, r));
}

/*
 * Who holds `peer` up, in the end: the last one of whom others have said that it does, and who has said
 * nothing itself. False: nobody knows, for that is this rank, or they name one another in a ring; *cause is
 * the peer.
 */
EP_DEV bool ep_ht_cause_find(const struct ep_ht_common &c, const struct ep_op &op, uint32_t peer,
			     uint32_t *cause)
{
	uint32_t last = peer, by = 0, n = 0;

	while (n++ < c.g.nranks && last != c.g.rank && ep_ht_nodes_held_up(c, op, last, &by)) {
		last = by;
	}
	*cause = peer;
	if (last == c.g.rank || n > c.g.nranks) {
		return false;
	}
	*cause = last;
	return true;
}

/* What a wait knows after a look. */
struct ep_ht_look {
	struct ep_spin spin;
	bool over;
	bool late; /* half of its time is over, and this rank has said whom it waits for */
};

/*
 * ep_wait_look() for a wait of `peer`, another rank, that others may hold up. Out of line, and given and
 * returning values, as that is. One thread.
 */
EP_DEV_COLD struct ep_ht_look ep_ht_wait_look(const struct ep_ht_common &c, struct ep_op op,
					      struct ep_spin s, bool expired,
					      enum ep_wait_site site, uint32_t peer)
{
	uint32_t cause;
	bool known = ep_ht_cause_find(c, op, peer, &cause);
	struct ep_wait_result w;
	struct ep_ht_look look;

	look.late = s.start_ns && ep_time_ns() - s.start_ns >= c.g.timeout_ns / 2;
	if (look.late && (known || !ep_ht_has_said(c, op.epoch))) {
		ep_ht_say(c, op.epoch, cause);
	}
	w = ep_wait_look(c.g, op, s, expired, site, cause);
	if (w.over) {
		/* the connection is down, or another wait has failed */
		bool down = ep_rank_remote(c.g, cause) &&
			    ep_ld_relaxed_gpu_u64(ep_wait_down_seen(c.g, cause));

		ep_ht_say(c, op.epoch, down ? cause | EP_HT_GAVE_UP : EP_HT_SAME);
	}
	look.spin = w.spin;
	look.over = w.over;
	return look;
}

/*
 * ep_wait_give_up() for such a wait. *late: for ep_ht_go_on(), when it has ended well; false in the
 * beginning.
 */
EP_DEV bool ep_ht_nodes_give_up(const struct ep_ht_common &c, const struct ep_op &op,
				struct ep_spin *s, enum ep_wait_site site, uint32_t peer,
				bool *late)
{
	bool expired = ep_spin_expired(s, c.g.timeout_ns, site, peer);
	struct ep_ht_look look;

	if (!expired && (s->polls & 63) != 0) {
		return false;
	}
	look = ep_ht_wait_look(c, op, *s, expired, site, peer);
	*s = look.spin;
	*late |= look.late;
	return look.over;
}

/* What a late wait of this rank waited for has come. (If others are late, they say so again.) */
EP_DEV_COLD void ep_ht_take_back(const struct ep_ht_common &c, uint32_t epoch)
{
	if (ep_ht_has_said(c, epoch)) {
		ep_ht_say(c, epoch, EP_HT_NOBODY);
	}
}

EP_DEV void ep_ht_go_on(const struct ep_ht_common &c, const struct ep_op &op, bool late)
{
	if (late) {
		ep_ht_take_back(c, op.epoch);
	}
}

/* ep_ht_queue_failed(), one thread. If r has said why, then it may have left for that, and is not named. */
EP_DEV_COLD void ep_ht_queue_blame(const struct ep_ht_common &c, struct ep_op op, uint32_t status,
				   uint32_t qpn, uint32_t r, enum ep_wait_site site)
{
	uint32_t cause;

	(void)ep_ht_cause_find(c, op, r, &cause);
	ep_ht_say(c, op.epoch, cause | EP_HT_GAVE_UP);
	ep_mask_peer(c.g, op, cause == r ? EP_CAUSE_RDMA : EP_CAUSE_TIMEOUT, site, cause,
		     cause == r ? status : 0, cause == r ? qpn : 0);
}

/* ep_remote_failed(): the queue to rank r is of no use any more. One warp. */
EP_DEV void ep_ht_queue_failed(const struct ep_ht_common &c, const struct ep_op &op,
			       const struct ep_mlx5_post &p, uint32_t r, enum ep_wait_site site)
{
	if (ep_lane() == 0 && p.status != EP_MLX5_ERR_ABORTED) {
		ep_ht_queue_blame(c, op, p.status, p.qpn, r, site);
	}
	ep_warp_sync(EP_FULL_MASK);
}

#endif
