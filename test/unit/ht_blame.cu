/* SPDX-License-Identifier: Apache-2.0 */
#include "device/ht/blame.h"
#include "device/ht/pipe.h"
#include "ht_blame.h"

EP_KERNEL(ht_blame_kernel, ht_blame_args, 32)
{
	struct ep_spin s = { ep_time_ns() - a.waited_ns, 0 };
	struct ep_op op = {};

	op.epoch = 5;
	if (ep_tid() == 0) {
		*a.named = ep_ht_blame(a.c, op, s, a.peer) & ~EP_HT_LATE_BIT;
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
