/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mask clean-up: ranks that were masked come back. Every calling rank tells all peers its step,
 * waits for all of them, and goes on from the highest step of all, with all banks free: the ranks'
 * sequences agree again although the returning ones missed operations. Masked ranks are waited for
 * too: a rank that was away has masked the others, and either side may be ahead. Who does not come
 * stays masked: its earlier operations may still be writing here. A remote rank whose connection is
 * lost stays so on both sides: whoever knows tells the other, if a queue is left.
 */
#include "device/ll/layout.h"
#include "device/mlx5/ops.h"
#include "device/simt/simt.h"

#include "device/kernels.h"

#define EP_LL_CLEAN_COMES 0u
#define EP_LL_CLEAN_REFUSES 1u

/* What marks a rank's word. */
EP_DEV uint32_t ep_ll_clean_epoch(const struct ep_ll_clean_args &a, uint32_t what)
{
	return 2 * a.round + what;
}

EP_DEV bool ep_ll_clean_down(const struct ep_ll_clean_args &a, uint32_t r)
{
	return a.remote >> r & 1 && ep_ld_relaxed_sys_u32(a.down + r);
}

/* Where rank `from` leaves its word, in any heap. Who is early for the next round spoils none. */
EP_DEV uint64_t ep_ll_clean_at(const struct ep_ll_clean_args &a, uint32_t from)
{
	return a.clean_off + 8 * ((a.round & 1) * (uint64_t)a.nranks + from);
}

/* False: r does not come. *lost: it cannot be reached, by what it says. */
EP_DEV bool ep_ll_clean_wait(const struct ep_ll_clean_args &a, uint32_t r, uint32_t *step,
			     uint32_t *lost)
{
	const unsigned char *p = a.heap[a.rank] + ep_ll_clean_at(a, r);
	struct ep_spin s = ep_spin_start();

	while (!ep_ld_word(p, ep_ll_clean_epoch(a, EP_LL_CLEAN_COMES), step)) {
		if (ep_ld_word(p, ep_ll_clean_epoch(a, EP_LL_CLEAN_REFUSES), step)) {
			*lost = 1;
			return true;
		}
		if (ep_spin_expired(&s, a.timeout_ns, EP_WAIT_CLEAN, r) ||
		    ((s.polls & 63) == 0 && ep_ll_clean_down(a, r))) {
			return false;
		}
	}
	return true;
}

/*
 * Tells remote peers the step; a barrier must follow. lost[r]: that cannot be done. Before it, what
 * was posted to them must have arrived: afterwards all banks are free.
 */
EP_DEV void ep_ll_clean_post(const struct ep_ll_clean_args &a, uint32_t step, uint32_t *lost)
{
	uint64_t start = ep_shfl_u64(EP_FULL_MASK, ep_time_ns(), 0);

	for (uint32_t r = ep_warp(); r < a.nranks; r += ep_nwarps()) {
		uint32_t down = ep_shfl_u32(EP_FULL_MASK, ep_ll_clean_down(a, r), 0);

		if (a.remote >> r & 1 && !down &&
		    !ep_mlx5_quiet_all(a.qps + (size_t)r * a.queues, a.queues, start,
				       a.timeout_ns / 4)) {
			down = 1;
		}
		const uint32_t word[2] = { step,
					   ep_ll_clean_epoch(a, down ? EP_LL_CLEAN_REFUSES
								     : EP_LL_CLEAN_COMES) };
		bool ok = true;

		if (a.remote >> r & 1) {
			struct ep_mlx5_post p =
				ep_mlx5_open(a.qps + (size_t)r * a.queues + a.queues - 1, false,
					     NULL, a.timeout_ns);

			ok = ep_mlx5_put_inline(&p, ep_lane() == 0,
						ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL,
							       ep_ll_clean_at(a, a.rank)),
						word, 8, false);
		}
		if (ep_lane() == 0) {
			lost[r] = !ok || down;
		}
	}
}

EP_KERNEL(ep_ll_clean_kernel, ep_ll_clean_args, EP_LL_MAX_THREADS)
{
	uint32_t r = ep_tid(), mine = a.seq[0].step, theirs = mine;
	EP_SHARED(uint32_t, steps[EP_LL_MAX_RANKS]);
	EP_SHARED(uint32_t, lost[EP_LL_MAX_RANKS]);

	ep_ll_clean_post(a, mine, lost);
	ep_block_sync();
	if (r < a.nranks) {
		if (!(a.remote >> r & 1)) {
			ep_st_word(a.heap[r] + ep_ll_clean_at(a, a.rank), mine,
				   ep_ll_clean_epoch(a, EP_LL_CLEAN_COMES));
		}
		bool came = !lost[r] && ep_ll_clean_wait(a, r, &theirs, lost + r);

		if (!came) {
			theirs = mine; /* the failed poll has left an old word there */
		}
		if (!came && a.mask[r]) {
			if (ep_atomic_cas_gpu_u32(&a.state->record_lock[EP_LL_RECORD_MASKED], 0, 1) ==
			    0) {
				struct ep_ll_record *out = &a.records[EP_LL_RECORD_MASKED];

				out->cause = EP_LL_CAUSE_TIMEOUT;
				out->site = EP_WAIT_CLEAN;
				out->peer = r;
				out->step = mine;
				out->waited_ns = a.timeout_ns;
				ep_st_release_sys_u32(&out->valid, 1);
			}
			ep_st_relaxed_sys_u32(a.async_error, 1);
		}
		lost[r] |= !came;
		if (!came && !(a.remote >> r & 1)) { /* remote ranks learn it with the next step */
			ep_st_retired_sys_u64((uint64_t *)(a.heap[r] + a.progress_off) + a.rank,
					      ep_ll_telling(mine, a.round, true));
		}
		steps[r] = theirs;
	}
	ep_block_sync();
	for (uint32_t i = 0; i < a.nranks; i++) {
		mine = (int32_t)(steps[i] - mine) > 0 ? steps[i] : mine;
	}
	for (uint32_t i = ep_tid(); i < EP_LL_MAX_BLOCKS; i += ep_nthreads()) {
		struct ep_ll_seq s = {};

		s.step = mine;
		s.round = a.round;
		a.seq[i] = s;
	}
	if (r < a.nranks) {
		a.mask[r] = !lost[r] && !ep_ll_clean_down(a, r);
	}
}
