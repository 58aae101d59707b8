/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arrival decision: whether a rank takes part in an operation, as all blocks of a receiving kernel agree. With
 * masks, a block goes on without a rank whose counts do not come. Where rows lie follows from all
 * ranks' counts, so a block that has gone on without a rank, and one that has its counts, would put
 * the rows of everybody else in different places.
 *
 * Blocks that find all counts need not agree on anything. A block that misses a rank's counts claims
 * the decision in a word of the rank, with a compare-and-swap, looks once more, and then publishes in the
 * word what it saw; other blocks adopt that. A block that has the counts looks at the word after it
 * has seen them:
 *
 *   - The word is not of this operation. Whoever claims it from now on looks at the counts
 *     after that, finds them as this block has, and decides "present".
 *   - Somebody has claimed the decision before. This block waits for it and adopts it, also if it is
 *     "absent" and the counts came just afterwards.
 *
 * The claim is ordered before the second look by a full fence, and a kernel's load is never performed
 * before one that decides whether it is reached.
 */
#ifndef EP_DEVICE_GROUP_ARRIVAL_H
#define EP_DEVICE_GROUP_ARRIVAL_H

#include "device/group/wait.h"

EP_DEV uint64_t ep_arrival_word(const struct ep_op &op, enum ep_arrival state)
{
	return (uint64_t)op.epoch << 32 | state;
}

EP_DEV uint64_t ep_arrival_load(const struct ep_dev_group &g, uint32_t r)
{
	return ep_ld_relaxed_gpu_u64(ep_mask_arrival(g.mask, g.nranks) + r);
}

/* Whether the word is of this operation. */
EP_DEV bool ep_arrival_decided(const struct ep_op &op, uint64_t word)
{
	return (uint32_t)(word >> 32) == op.epoch;
}

/*
 * Waits until the decision about r is made, which takes another block some microseconds. If that block
 * is never scheduled again, this rank's blocks cannot agree, and the group is aborted. One lane.
 */
EP_DEV uint32_t ep_arrival_adopt(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r)
{
	const uint64_t *word = ep_mask_arrival(g.mask, g.nranks) + r;
	struct ep_spin s = ep_spin_start();
	uint32_t state;

	while ((state = (uint32_t)ep_ld_acquire_gpu_u64(word)) == EP_ARRIVAL_CLAIMED) {
		if (ep_aborted(g)) {
			return EP_ARRIVAL_PRESENT; /* nobody asks any more */
		}
		if (ep_spin_expired(&s, g.timeout_ns, EP_WAIT_AGREEMENT, r)) {
			struct ep_record record = ep_record_make(op, EP_CAUSE_TIMEOUT, r);

			record.site = EP_WAIT_AGREEMENT;
			ep_record_write(g, EP_RECORD_FATAL, record);
			ep_abort(g);
		}
	}
	return state;
}

/*
 * Claims the decision about r: EP_ARRIVAL_CLAIMED, and the caller decides with what it sees from now
 * on, or what another block has decided. One lane.
 */
EP_DEV uint32_t ep_arrival_claim(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r)
{
	uint64_t *word = ep_mask_arrival(g.mask, g.nranks) + r;
	uint64_t old = ep_ld_relaxed_gpu_u64(word);

	while (!ep_arrival_decided(op, old)) {
		uint64_t found = ep_atomic_cas_sc_gpu_u64(word, old,
							  ep_arrival_word(op, EP_ARRIVAL_CLAIMED));

		if (found == old) {
			return EP_ARRIVAL_CLAIMED;
		}
		old = found;
	}
	return ep_arrival_adopt(g, op, r);
}

EP_DEV void ep_arrival_decide(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r,
			      bool present)
{
	ep_st_release_gpu_u64(ep_mask_arrival(g.mask, g.nranks) + r,
			      ep_arrival_word(op,
					      present ? EP_ARRIVAL_PRESENT : EP_ARRIVAL_ABSENT));
}

/*
 * Was r masked when this kernel began? Then all its blocks find it masked. Who was masked since then
 * is in doubt: other blocks may have looked at the mask before. So is whom the host has masked, which
 * it does while kernels run when it finds a connection lost.
 */
EP_DEV bool ep_arrival_masked_before(const struct ep_dev_group &g, const struct ep_op &op,
				     uint32_t r)
{
	uint32_t masked = ep_ld_acquire_gpu_u32((const uint32_t *)g.mask + r) == 0;
	uint32_t step = ep_ld_relaxed_gpu_u32(ep_mask_steps(g.mask, g.nranks) + r);

	return masked && step != op.step && step != EP_MASK_STEP_UNKNOWN;
}

/* The blocks have agreed to go on without r: later kernels need not agree again. One lane. */
EP_DEV void ep_arrival_settle(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r)
{
	uint32_t *step = ep_mask_steps(g.mask, g.nranks) + r;

	if (!ep_mask_active(g, r) && ep_ld_relaxed_gpu_u32(step) == EP_MASK_STEP_UNKNOWN) {
		ep_st_relaxed_gpu_u32(step, op.step);
	}
}

#endif
