/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput combine in a group of one node. Each row goes back once per (token, rank);
 * expert-major, the holder sums the rows of a token's local experts first and rounds. The source
 * adds what comes back in ascending order of ranks, in fp32, and rounds once.
 *
 * Bytes, T tokens with rows to `d` ranks on average: flat, 2 (d - 1) T for what this rank returns,
 * d T + T for its sums; expert-major, K T loaded and d T stored, then d T + T. In windows d T + T
 * alone. In MXFP8 d T are 33/64 of that: H + H / 32 bytes for a row of 2 H.
 */
#ifndef EP_DEVICE_HT_COMBINE_NODE_H
#define EP_DEVICE_HT_COMBINE_NODE_H

#include "device/ht/combine_copy.h"
#include "device/ht/step.h"

template <class F> EP_DEV void ep_ht_combine(const struct ep_ht_combine_args &a)
{
	struct ep_ht_entry e = ep_ht_enter(a.c, true);
	struct ep_ht_pipe p = ep_ht_pipe_make(a.stage_parts, a.part_bytes);
	struct ep_ht_combine_work w = ep_ht_combine_work_make<false>(a);
	struct ep_ht_due due = {};
	struct ep_ht_group g = {};
	struct ep_ht_batch_note note = {};
	EP_SHARED(uint32_t, failed);

	if (!e.fault && ep_ht_combine_work_next<false>(a, &w)) { /* this rank's own memory */
		ep_ht_combine_early<F, false>(a, &p, &w, &g, &note);
	}
	if (ep_ht_begin<false>(a.c, &e)) {
		ep_ht_combine_units<F, false>(a, e.op, &p, &due, w, g, note);
	} else {
		ep_ht_combine_drop(a, e.op, p, note);
		p.held = 0;
	}
	ep_ht_due_publish<false>(a, e.op, p, &due);
	ep_ht_pipe_end(a.c.g, e.op, &p);
	if (a.is_direct) {
		ep_ht_done_send(a.c, e.op, &failed);
		if (ep_block() == 0) { /* not long if something has failed */
			ep_ht_done_wait(a.c, e.op, &failed);
		}
	}
}

#endif
