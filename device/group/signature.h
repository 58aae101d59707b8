/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures: what ranks must pass alike to a step. Each rank keeps those of its last
 * EP_SIGNATURE_SLOTS steps in its own heap. A *mark* is a step with the seal of its signature: two
 * ranks that pass alike have equal marks. When a rank starts a step it stores the mark to every
 * rank that is active for it. The rest of a slot is for hosts, which read both slots of ranks that
 * disagree and name what differs; the seal proves it. To remote ranks, which cannot read this
 * rank's heap, the whole slot goes.
 *
 * Where the two marks are compared:
 *
 *   - Before rows of a rank are used. Dispatch in low latency has the hash in its control packets,
 *     combine has the seal in the flags of lines, or looks at the mark. High throughput waits for
 *     all marks first.
 *   - In a wait, now and then: the peer may run something else, or may have given up since it
 *     disagrees with a third rank. Of two ranks that disagree one disagrees with this rank, too,
 *     and whoever is in the step has the marks of both. So nobody needs a word that a rank gave up.
 *   - At the end of a step in which a rank needs no rows of another one (ep_signature_close).
 *
 * Marks are comparable where both ranks took the step together. A rank that is masked gets no more
 * marks, and its own are not looked at. A rank that takes others in forgets its own marks: of the
 * steps until then theirs may differ.
 */
#ifndef EP_DEVICE_GROUP_SIGNATURE_H
#define EP_DEVICE_GROUP_SIGNATURE_H

#include "device/group/mask.h"

#define EP_SIGNATURE_PARTS 4 /* of 16 bytes */

/* Offset of rank r's slot for the step, in any heap. */
EP_DEV uint64_t ep_signature_off(const struct ep_dev_group &g, uint32_t step, uint32_t r)
{
	return g.signature_off + ep_signature_slot_off(g.nranks, step, r);
}

EP_DEV struct ep_signature_slot *ep_signature_at(const struct ep_dev_group &g, unsigned char *heap,
						 uint32_t step, uint32_t r)
{
	return (struct ep_signature_slot *)(heap + ep_signature_off(g, step, r));
}

EP_DEV uint64_t ep_signature_mark(uint32_t step, uint32_t seal)
{
	return (uint64_t)step << 32 | seal;
}

/* Loads the place of rank r's mark of the step: perhaps one of an earlier step. */
EP_DEV uint64_t ep_signature_load(const struct ep_dev_group &g, uint32_t step, uint32_t r)
{
	return ep_ld_retired_sys_u64(&ep_signature_at(g, g.own, step, r)->mark);
}

/* Are these marks of two ranks of one step, in which they disagree? */
EP_DEV bool signature_differs(uint64_t its, uint64_t ours)
{
	return its != ours && (its ^ ours) >> 32 == 0;
}

/* Nobody's marks of the steps so far are compared with this rank's any more. One block. */
EP_DEV void ep_signature_forget(const struct ep_dev_group &g)
{
	for (uint32_t i = ep_tid(); i < EP_SIGNATURE_SLOTS; i += ep_nthreads()) {
		ep_st_retired_sys_u64(&ep_signature_at(g, g.own, i, g.rank)->mark, 0);
	}
}

/* 16 bytes of the launch's signature. */
EP_DEV struct ep_vec16 signature_part(const struct ep_dev_launch &launch, uint32_t origin,
				      uint32_t part)
{
	const uint32_t *w = launch.signature.word + 4 * part;
	struct ep_vec16 v = { w[0], w[1], w[2], part == EP_SIGNATURE_ORIGIN / 4 ? origin : w[3] };

	return v;
}

/* Ranks with masks do not publish that they refuse: those go on without them. */
EP_DEV bool ep_signature_silent(const struct ep_dev_group &g, uint32_t origin)
{
	return origin == EP_SIGNATURE_REFUSED && g.mask_enabled;
}

/*
 * The slot in this rank's own heap: for hosts, when ranks disagree, and for NICs. One warp of one
 * block.
 */
EP_DEV void ep_signature_keep(const struct ep_dev_group &g, const struct ep_dev_launch &launch,
			      uint32_t step, uint32_t origin)
{
	struct ep_signature_slot *at = ep_signature_at(g, g.own, step, g.rank);

	if (ep_lane() < EP_SIGNATURE_PARTS) {
		ep_st16(at->signature.word + 4 * ep_lane(),
			signature_part(launch, origin, ep_lane()));
	} else if (ep_lane() == EP_SIGNATURE_PARTS && !ep_signature_silent(g, origin)) {
		ep_st_retired_sys_u64(
			&at->mark, ep_signature_mark(step, ep_signature_seal(launch.hash, origin)));
	}
}

/* Does this rank disagree with rank r, whose mark that is? Then the group is aborted. */
EP_DEV bool signature_judge(const struct ep_dev_group &g, uint32_t step, uint32_t r, uint64_t its,
			    uint64_t ours)
{
	if (!signature_differs(its, ours) || !ep_mask_active(g, r)) {
		return false;
	}
	struct ep_op op = {};

	op.step = step;
	ep_mask_peer(g, op, EP_CAUSE_MISMATCH, EP_WAIT_SIGNATURE, r, (uint32_t)(its >> 32), 0);
	return true;
}

#define EP_SIGNATURE_CHECKS 8u /* ranks that a wait looks at each time */
#define EP_SIGNATURE_EVERY                                                                         \
	16u /* looks of a wait: these take microseconds, in which rows may come */

/*
 * A wait looks for a reason to end, for the n-th time in that step, n > 0: does this rank disagree
 * with somebody? It looks at a few ranks at a time, and at this step and an earlier one: whoever
 * disagreed there has given up, and others may wait for it. (Given few values: the registers that
 * it needs are kept from all kernels.)
 */
EP_DEV_COLD bool ep_signature_check(const struct ep_dev_group &g, uint32_t step, uint32_t n)
{
	if (n % EP_SIGNATURE_EVERY) {
		return false;
	}
	n /= EP_SIGNATURE_EVERY;
	uint32_t at = step, first = n * EP_SIGNATURE_CHECKS;

	first = g.nranks <= EP_SIGNATURE_CHECKS ? 0 : first - ep_div(first, g.by_ranks) * g.nranks;
	EP_UNROLL(1)
	for (;;) {
		uint64_t ours = ep_signature_load(g, at, g.rank);

		EP_UNROLL(1)
		for (uint32_t r = first; r < first + EP_SIGNATURE_CHECKS && r < g.nranks; r++) {
			if (signature_judge(g, step, r, ep_signature_load(g, at, r), ours)) {
				return true;
			}
		}
		if (at != step) {
			return false;
		}
		at -= 1 + ((n - 1) & (EP_GROUP_MAX_LEAD - 1));
	}
}

/*
 * The step is over here. Who needed no rows of a rank has not compared with it yet. Of two ranks,
 * the one that started the step last finds the other's mark, now or, if it came on its way, behind
 * its next step. One warp.
 */
EP_DEV_COLD void ep_signature_close(const struct ep_dev_group &g, uint32_t step)
{
	EP_UNROLL(1)
	for (uint32_t i = ep_lane(); i < 2 * g.nranks; i += EP_WARP_SIZE) {
		uint32_t r = i >> 1, at = step - (i & 1);

		(void)signature_judge(g, step, r, ep_signature_load(g, at, r),
				      ep_signature_load(g, at, g.rank));
	}
}

#endif
