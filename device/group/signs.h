/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signs, by which a rank that waits shows others that it lives.
 *
 * Rank A waits for rank B, and B is late because it waits for rank D, which is lost. A sees in
 * which step B stands, and not whether it lives. So a rank that waits gives a sign each half of the
 * timeout, beside its mark of the step, in every heap. A's wait counts from B's last sign
 * (wait_moved). D gives none, whatever of its words and rows had come to whom. A rank gives
 * EP_SIGNS at most in a step: waits end, also where ranks that live wait for one another.
 *
 * To ranks of other nodes the sign goes by the control queue, when its owner has left it (link.h).
 * Only kernels for several nodes have code for that, since it takes registers. Nobody waits for a
 * queue: where one is in use, the next look of a wait tries again. One that is full, or has failed,
 * is left out.
 *
 * High throughput has signs of its own, which also name whom a rank has given up: ht/signs.h.
 */
#ifndef EP_DEVICE_GROUP_SIGNS_H
#define EP_DEVICE_GROUP_SIGNS_H

#include "device/group/link.h"
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
 * notes where all ranks stand. Any thread, also while others do.
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

/* What ep_dev_state.posted becomes when that sign of the step has been posted to ranks below r. */
EP_DEV uint64_t signs_posted(uint32_t step, uint32_t n, uint32_t r)
{
	return (uint64_t)step << 32 | n << 16 | r;
}

/*
 * Posts the last sign of the step, if there is one, to remote ranks that are active, as far as
 * their queues have been left. Any thread, also while others do.
 */
EP_DEV void ep_sign_post(const struct ep_dev_group &g, uint32_t step)
{
	uint64_t off = ep_signature_off(g, step, g.rank) + offsetof(struct ep_signature_slot, sign);
	uint32_t n = ep_signs_of(g, step, g.rank), r;

	if (!n || ep_ld_relaxed_gpu_u64(&g.state->posted) == signs_posted(step, n, g.nranks) ||
	    ep_atomic_cas_acquire_gpu_u32(&g.state->posting, 0, 1)) {
		return;
	}
	uint64_t posted = ep_ld_relaxed_gpu_u64(&g.state->posted);

	r = posted - signs_posted(step, n, 0) <= g.nranks ? (uint32_t)posted & 0xffff : 0;
	EP_UNROLL(1)
	for (; r < g.nranks; r++) {
		if (!ep_rank_remote(g, r) || !ep_mask_active(g, r)) {
			continue;
		}
		if (!ep_control_left(ep_remote_link_at(g, r, g.remote->channels), step)) {
			break;
		}
		(void)ep_mlx5_put_word(ep_remote_qp(g, r, g.remote->channels),
				       EP_MLX5_REGION_SIGNAL, off, (uint64_t)n << 32 | step);
	}
	ep_st_relaxed_gpu_u64(&g.state->posted, signs_posted(step, n, r));
	ep_st_release_gpu_u32(&g.state->posting, 0);
}

#endif
