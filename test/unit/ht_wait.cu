/* SPDX-License-Identifier: Apache-2.0 */
#include "device/ht/step.h"
#include "device/ht/pipe.h"
#include "ht_wait.h"

/* One look at a wait for a peer that has started the operation, or the one before. */
EP_KERNEL(ht_wait_kernel, ht_wait_args, 32)
{
	struct ep_spin s = { ep_time_ns() - a.waited_ns, 64 };
	struct ep_op op = {};

	op.epoch = op.step = 5;
	s.polls |= (uint32_t)(ep_progress_step(a.c.g, a.peer) < 5 ? EP_WAIT_BEHIND : EP_WAIT_WITH)
		   << EP_WAIT_STAND_SHIFT;
	if (ep_tid() == 0) {
		*a.over =
			ep_ht_wait_check<true>(a.c, op, s, a.expired, EP_WAIT_HT_ROWS, a.peer).over;
		if (a.leaves) {
			ep_ht_queue_leave(a.c, op, a.leaves);
		}
	}
}

/* A wait for another warp of this rank that does not come: what it waits for is a word nobody writes. */
EP_KERNEL(ht_own_kernel, ht_wait_args, 32)
{
	struct ep_spin s = ep_spin_start();
	struct ep_op op = {};

	op.epoch = op.step = 5;
	if (ep_tid() == 0) {
		while (!ep_ht_give_up<false>(a.c, op, &s, EP_WAIT_HT_ROWS, a.c.g.rank)) {
		}
		*a.over = 1;
	}
}

/* A stage whose slots are held, and nothing is on its way to them. */
EP_KERNEL(ht_stuck_kernel, ht_wait_args, 32)
{
	struct ep_ht_pipe p = ep_ht_pipe_make(HT_STUCK_SLOTS, 128);
	struct ep_op op = {};
	bool come;

	p.held = HT_STUCK_SLOTS;
	come = ep_ht_pipe_wait(a.c.g, op, &p, a.peer) != NULL;
	ep_ht_pipe_end(a.c.g, op, &p);
	if (ep_tid() == 0) {
		*a.over = come;
	}
}
