/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: ncclEpDispatch. Every warp sends and receives, or some only send and the others
 * only receive (plugin/ep/ht/ht_plan.c). A row is loaded once where it is, crosses the fabric once
 * for each rank that it goes to, and, unless it goes straight into a window, is loaded once more
 * where it lands and stored once for each of its places.
 *
 * An SM's stores are what it has least of, so all its shared memory is kept busy: a warp that does
 * both receives when it has nothing more to send, and loads run ahead of stores over the limits of
 * units.
 */
#include "device/ht/dispatch_copy.h"
#include "device/ht/step.h"

#include "device/kernels.h"

EP_KERNEL_ALONE(ep_ht_dispatch_kernel, ep_ht_dispatch_args, EP_HT_MAX_THREADS)
{
	struct ep_ht_entry entry = ep_ht_enter(a.c, false);
	struct ep_ht_pipe pipe = ep_ht_pipe_make(a.stage_parts, a.part_bytes);
	struct ep_ht_dispatch_work work = ep_ht_dispatch_work_make<false>(a);
	struct ep_ht_stored stored;
	bool ok;
	EP_SHARED(uint32_t, failed);

	if (!entry.fault) {
		ep_ht_dispatch_work_load_early(a, &pipe, &work);
		ep_ht_dispatch_work_find<false>(a, &work);
	}
	stored = ep_ht_stored_make<false>(a, pipe, work, entry.fault != 0);
	ok = ep_ht_begin<false>(a.c, &entry) &&
	     ep_ht_dispatch_copy<false>(a, entry.op, &pipe, &work, &stored);
	ep_ht_pipe_end(a.c.g, entry.op, &pipe);
	if (ok && a.c.layout == EP_HT_EXPERT_MAJOR) {
		ep_ht_zero(a, &pipe);
	}
	if (ok && a.c.layout == EP_HT_FLAT && a.topk_weights) {
		ep_ht_entries_fill(a);
	}
	if (a.is_direct) {
		ep_ht_done_send(a.c, entry.op, &failed);
	}
	if (ok && ep_block() == 0 && ep_warp() == 1) { /* peers do not wait for it */
		ep_ht_dispatch_count(a);
		ep_ht_counters_leave(a);
	}
	if (a.is_direct) {
		uint32_t bases = ep_ht_recv_bases(a.c);

		if (ep_ht_done_wait(a.c, entry.op, &failed) && a.topk_weights) {
			ep_ht_entries_copy(a, bases);
		}
	}
}
