/* SPDX-License-Identifier: Apache-2.0 */
#include "device/ht/blame.h"
#include "device/ht/pipe.h"
#include "ht_blame.h"

/* Whom a wait names whose peer has started the operation, and what it says. */
EP_KERNEL(ht_blame_kernel, ht_blame_args, 32)
{
	struct ep_spin s = { ep_time_ns() - a.waited_ns, 64 };
	struct ep_op op = {};

	op.epoch = op.step = 5;
	s.polls |= (uint32_t)(ep_progress_step(a.c.g, a.peer) < 5 ? EP_WAIT_BEHIND : EP_WAIT_WITH)
		   << EP_WAIT_STAND_SHIFT;
	if (ep_tid() == 0) {
		*a.named = ep_ht_wait_check<true>(a.c, op, &s, a.over, EP_WAIT_HT_ROWS, a.peer);
	}
}

/* Such a wait was late, and ends well. */
EP_KERNEL(ht_go_on_kernel, ht_blame_args, 32)
{
	struct ep_spin s = { 0, EP_WAIT_LATE };
	struct ep_op op = {};

	op.epoch = 5;
	if (ep_tid() == 0) {
		ep_ht_go_on<true>(a.c, op, s);
	}
}

/* A wait for another warp of this rank that does not come: what it waits for is a word nobody writes. */
EP_KERNEL(ht_own_kernel, ht_blame_args, 32)
{
	struct ep_spin s = ep_spin_start();
	struct ep_op op = {};

	op.epoch = op.step = 5;
	if (ep_tid() == 0) {
		while (!ep_ht_give_up<false>(a.c, op, &s, EP_WAIT_HT_ROWS, a.c.g.rank)) {
		}
		*a.named = 1;
	}
}

/* A stage whose slots are held, and nothing is on its way to them. */
EP_KERNEL(ht_stuck_kernel, ht_blame_args, 32)
{
	struct ep_ht_pipe p = ep_ht_pipe_make(HT_STUCK_SLOTS, 128);
	struct ep_op op = {};
	bool come;

	p.held = HT_STUCK_SLOTS;
	come = ep_ht_pipe_wait(a.c.g, op, &p, a.peer) != NULL;
	ep_ht_pipe_end(a.c.g, op, &p);
	if (ep_tid() == 0) {
		*a.named = come;
	}
}
