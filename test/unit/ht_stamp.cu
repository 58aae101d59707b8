/* SPDX-License-Identifier: Apache-2.0 */
#include "device/ht/route_place.h"
#include "ht_stamp.h"

EP_KERNEL(ht_stamp_kernel, ht_stamp_args, 32)
{
	struct ep_ht_route t = {};

	t.all = a.rows;
	if (ep_tid() != 0) {
		return;
	}
	ep_ht_head_clear(a.a.c);
	if (a.failure == HT_STAMP_BEFORE) {
		ep_ht_head_fail(a.a.c);
	}
	ep_ht_head_leave(a.a, t);
	if (a.failure == HT_STAMP_AFTER) {
		ep_ht_head_fail(a.a.c);
	}
}
