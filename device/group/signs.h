/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signs, by which a rank that waits shows the ranks of its node that it lives.
 *
 * Rank A waits for rank B, and B is late because it waits for rank D, which is lost. A sees in
 * which step B stands, and not whether it lives. So a rank that waits gives a sign each half of the
 * timeout, beside its mark of the step, in every heap of the node. A's wait counts from B's last
 * sign (wait_moved). D gives none, whatever of its words and rows had come to whom. A rank gives
 * EP_SIGNS at most in a step: waits end, also where ranks that live wait for one another.
 *
 * A rank of another node gets none: a wait that posts to a NIC would need registers that all
 * kernels would lack. High throughput has signs of its own, which go there, too, and also name whom
 * a rank has given up: ht/signs.h.
 */
#ifndef EP_DEVICE_GROUP_SIGNS_H
#define EP_DEVICE_GROUP_SIGNS_H

#include "device/group/signature.h"

#define EP_SIGNS 4u

/* How many signs has rank r given in that step, its present one? */
EP_DEV uint32_t ep_signs_of(const struct ep_dev_group &g, uint32_t step, uint32_t r)
{
	uint64_t sign = ep_ld_retired_sys_u64(&ep_signature_at(g, g.own, step, r)->sign);

	return (uint32_t)sign == step ? (uint32_t)(sign >> 32) : 0;
}

/*
 * Gives the n-th sign of the step to all ranks of the node that are active, and with the first one
 * notes where all stand. Any thread, also while others do.
 */
EP_DEV void ep_sign_give(const struct ep_dev_group &g, uint32_t step, uint32_t n)
{
	uint64_t off = ep_signature_off(g, step, g.rank) + offsetof(struct ep_signature_slot, sign);

	EP_UNROLL(1)
	for (uint32_t r = n == 1 ? 0 : g.nranks; r < g.nranks; r++) {
		ep_st_relaxed_gpu_u64(ep_mask_stood(g.mask, g.nranks) + r, ep_progress_step(g, r));
	}
	EP_UNROLL(1)
	for (uint32_t r = 0; r < g.nranks; r++) {
		unsigned char *heap = ep_heap_of(g, r);

		if (heap && ep_mask_active(g, r)) {
			ep_st_retired_sys_u64((uint64_t *)(heap + off), (uint64_t)n << 32 | step);
		}
	}
}

#endif
