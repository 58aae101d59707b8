/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: ncclEpDispatch. The first send_warps warps of each block send, the others
 * receive; all blocks do the same. A row is loaded once where it is, crosses the fabric once for each
 * rank that it goes to, and, unless it goes straight into a window, is loaded once more where it
 * lands and stored once for each of its places.
 *
 * All warps take chunks in ascending order. A sender waits only for the credit of an earlier chunk, a
 * receiver only for senders of the same chunk, and neither waits before it has said what others may
 * be waiting for. So the ring may have any number of chunks, one included.
 */
#include "device/ht/dispatch_recv.h"
#include "device/ht/dispatch_send.h"
#include "device/ht/dispatch_zero.h"
#include "device/ht/step.h"

#include "device/kernels.h"

/* What warps do when they have moved their rows, while others may still move theirs. */
EP_DEV void ep_ht_dispatch_rest(const struct ep_ht_dispatch_args &a, const struct ep_ht_pipe *p,
				bool sends)
{
	if (a.c.layout == EP_HT_EXPERT_MAJOR && sends) {
		ep_ht_zero(a, p);
	}
	if (a.c.layout == EP_HT_FLAT && a.topk_weights) {
		ep_ht_entries_fill(a);
	}
}

EP_KERNEL_ALONE(ep_ht_dispatch_kernel, ep_ht_dispatch_args, EP_HT_MAX_THREADS)
{
	struct ep_ht_entry entry = ep_ht_enter(a.c, false);
	struct ep_ht_pipe pipe = ep_ht_pipe_make(a.stage_parts, a.part_bytes);
	struct ep_ht_item next = ep_ht_item_first(a);
	bool sends = ep_warp() < a.send_warps, ok;

	ep_bulk_fence_global();
	if (sends && !entry.fault) { /* the tokens are this rank's own */
		ep_ht_send_load(a, &pipe, &next);
	}
	ok = ep_ht_begin(a.c, &entry);
	if (ok) {
		ok = sends         ? ep_ht_send(a, entry.op, &pipe, next)
		     : a.is_direct ? true
				   : ep_ht_receive(a, entry.op, &pipe);
	}
	ep_ht_pipe_end(a.c.g, entry.op, &pipe);
	if (ok) {
		ep_ht_dispatch_rest(a, &pipe, sends);
	}
	if (a.is_direct) {
		ep_ht_done_send(a.c, entry.op);
		if (ep_ht_done_wait(a.c, entry.op) && a.topk_weights) {
			ep_ht_entries_copy(a);
		}
	}
}
