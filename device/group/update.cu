/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MaskUpdate, behind the copy of the mask. Words "masked" of peers that lie here by now do not
 * count any more. Remote ranks that are active get a word of it, and have it when the kernel ends: a
 * word "masked", posted by the last step, may still have been on its way, and a peer that
 * takes this rank in as well would mask it again by that.
 */
#include "device/group/group_remote.h"

#include "device/kernels.h"

/* Of all waits together; what is masked next may be dead. */
EP_DEV uint64_t ep_update_left(const struct ep_update_args &a, uint64_t start)
{
	uint64_t gone = ep_time_ns() - start, most = ep_remote_masked_ns(a.g);
	uint64_t left = gone + EP_REMOTE_LEAST_NS < most ? most - gone : EP_REMOTE_LEAST_NS;

	return ep_shfl_u64(EP_FULL_MASK, left, 0);
}

/* Posts this rank's `word`, unless it has before. One warp. */
EP_DEV void ep_update_publish(const struct ep_update_args &a, uint32_t r, uint64_t word,
			      uint64_t start)
{
	uint32_t control = a.g.remote->channels;
	uint64_t posted = ep_lane() == 0 ? ep_remote_link_at(a.g, r, control)->signal : 0;

	if (ep_shfl_u64(EP_FULL_MASK, posted, 0) == word) {
		return;
	}
	struct ep_mlx5_post p = ep_remote_open(a.g, r, control);

	p.timeout_ns = ep_update_left(a, start);

	struct ep_mlx5_signal signal = ep_remote_signal(
		a.g, p, r, control, a.g.progress_off + 8 * (uint64_t)a.g.rank, word);

	/* of a connection that does not take it, the next step finds out more */
	if (ep_mlx5_signal_add(&p, signal, false)) {
		(void)ep_mlx5_quiet(&p);
	}
}

EP_KERNEL(ep_update_kernel, ep_update_args, EP_GROUP_MAX_THREADS)
{
	uint64_t start = ep_shfl_u64(EP_FULL_MASK, ep_time_ns(), 0);
	uint64_t word = ep_progress_word(a.g.seq[0].step, a.g.seq[0].clean_round, 0);

	for (uint32_t r = ep_tid(); r < a.g.nranks; r += ep_nthreads()) {
		ep_mask_ignored(a.g.mask, a.g.nranks)[r] = ep_progress_load(a.g, r);
	}
	for (uint32_t r = ep_warp(); r < a.g.nranks; r += ep_nwarps()) {
		if (ep_rank_remote(a.g, r) && ep_mask_active_warp(a.g, r) &&
		    !ep_shfl_u32(EP_FULL_MASK, ep_remote_down(a.g, r), 0)) {
			ep_update_publish(a, r, word, start);
		}
	}
}
