/* SPDX-License-Identifier: Apache-2.0 */
#include "device/ht/blame.h"
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
