/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of what a rank has posted. Kernels do not wait for their last messages to complete: who
 * received them may have moved on already, but the NICs may still be at it, and a heap or a queue
 * pair that went away then would break the connection for both sides.
 */
#include "device/group/remote.h"

#include "device/kernels.h"

EP_DEV uint64_t drain_limit(const struct ep_drain_args &a, uint32_t r)
{
	return ep_ranks_has(&a.suspects, r) ? a.suspect_ns : a.timeout_ns;
}

EP_DEV uint64_t drain_left(const struct ep_drain_args &a, uint32_t r, uint64_t start)
{
	uint64_t most = drain_limit(a, r);
	uint64_t waited = ep_time_ns() - start;
	uint64_t left = waited + EP_REMOTE_LEAST_NS < most ? most - waited : EP_REMOTE_LEAST_NS;

	return ep_shfl_u64(EP_FULL_MASK, left, 0);
}

/* One warp. */
EP_DEV bool drain_peer(const struct ep_drain_args &a, uint32_t r, uint64_t start)
{
	uint32_t queues = a.g.remote->queues;
	bool ok = ep_mlx5_quiet_all(ep_remote_qp(a.g, r, 0), queues, start, drain_limit(a, r));

	if (a.farewell) {
		const uint32_t word[2] = { (uint32_t)a.farewell_value,
					   (uint32_t)(a.farewell_value >> 32) };
		struct ep_mlx5_post p = ep_mlx5_open(ep_remote_qp(a.g, r, queues - 1), NULL,
						     drain_left(a, r, start));
		struct ep_mlx5_mem to = ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, a.farewell_off);

		ok &= ep_mlx5_put_inline(&p, ep_lane() == 0, to, word, 8, false) &&
		      ep_mlx5_quiet(&p);
	}
	return ok;
}

EP_KERNEL(ep_drain_kernel, ep_drain_args, EP_GROUP_MAX_THREADS)
{
	uint64_t start = ep_shfl_u64(EP_FULL_MASK, ep_time_ns(), 0);
	EP_SHARED(struct ep_ranks, lost);

	for (uint32_t i = ep_tid(); i < EP_RANKS_WORDS; i += ep_nthreads()) {
		lost.words[i] = 0;
	}
	ep_block_sync();
	for (uint32_t r = ep_warp(); r < a.g.nranks; r += ep_nwarps()) {
		bool ok = !ep_ranks_has(&a.alive, r) || drain_peer(a, r, start);

		if (ep_lane() == 0 && !ok) {
			ep_shared_or_u32(&lost.words[r / 32], 1u << (r & 31));
		}
	}
	ep_block_sync();
	for (uint32_t i = ep_tid(); i < EP_RANKS_WORDS; i += ep_nthreads()) {
		ep_st_relaxed_sys_u32(&a.lost->words[i], lost.words[i]);
	}
}
