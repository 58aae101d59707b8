/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of a connection, at each call of NCCL. */
#include "core/log.h"
#include "net/p2p/fail.h"
#include "net/p2p/flush.h"
#include "net/p2p/net_paths.h"
#include "net/p2p/part.h"
#include "net/p2p/poll.h"
#include "net/p2p/progress.h"
#include "net/p2p/slot.h"

/*
 * A NIC reports a dead peer only to a sender. An end that has closed its end in order has nothing under
 * way, so that what is under way here will never end.
 */
static ncclResult_t ep_net_poll_slow(struct ep_net_comm *c)
{
	uint64_t now = ep_now_ns();

	if (now - c->checked < EP_NET_CHECK_NS) {
		return ncclSuccess;
	}
	c->checked = now;
	for (uint32_t i = 0; i < c->nlocals; i++) {
		ep_net_dev_events(c->local[i].dev);
		if (__atomic_load_n(&c->local[i].cq_lost, __ATOMIC_RELAXED)) {
			return ep_net_comm_fail(c, ncclSystemError, ep_net_port_qp(c, i),
						"the NIC has lost completions: its queue has "
						"overrun or failed");
		}
	}
	if (c->path) {
		EP_CHECK(ep_net_paths_check(c));
	} else if (__atomic_load_n(&c->local[0].dev->broken, __ATOMIC_RELAXED)) {
		return ep_net_comm_fail(c, ncclSystemError, 0, "the connection is lost");
	} else if (!c->gone && ep_net_gone(c->fd)) {
		c->gone = now;
	}
	/* (it may have been found gone since `now`) */
	if (c->gone && now >= c->gone + EP_NET_GRACE_NS) {
		return ep_net_comm_fail(c, ncclRemoteError, 0,
					"the peer has closed the connection or has ended, %u "
					"requests are under way here: see its log",
					c->pending);
	}
	return ncclSuccess;
}

ncclResult_t ep_net_progress(struct ep_net_comm *c)
{
	bool any = false, some;

	c->counts->polls++;
	for (uint32_t i = 0; i < c->nlocals; i++) {
		EP_CHECK(ep_net_poll(c, &c->local[i], &some));
		any |= some;
	}
	if (c->due) {
		EP_CHECK(ep_net_paths_act(c));
	}
	if (c->again_first != c->again_last) {
		EP_CHECK(ep_net_parts_resend(c));
	}
	if (c->flush_first != EP_NET_NO_REQUEST) {
		EP_CHECK(ep_net_flushes_push(c));
	}
	if (c->slots_posted != c->groups && !c->sender) {
		EP_CHECK(ep_net_slots_post(c));
	}
	/* (a port that comes back is not waited for until there is nothing to do) */
	return (any && !c->path) || ++c->idle % EP_NET_IDLE ? ncclSuccess : ep_net_poll_slow(c);
}
