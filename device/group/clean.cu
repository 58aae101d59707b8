/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MaskClean: ranks that were masked come back. Every calling rank tells all peers its step, waits
 * for all of them, and goes on from the highest step of all, with all banks free: the ranks'
 * sequences agree again although the returning ones missed operations. Masked ranks are waited for
 * too: a rank that was away has masked the others, and either side may be ahead. Who does not come
 * stays masked: its earlier operations may still be writing here. A remote rank whose connection is
 * lost stays masked on both sides: whoever knows of the loss tells the other, if a queue is left.
 */
#include "device/group/remote.h"

#include "device/kernels.h"

enum ep_clean_answer {
	EP_CLEAN_COMES,
	EP_CLEAN_REFUSES
};

/* What marks a rank's word. */
EP_DEV uint32_t ep_clean_epoch(const struct ep_clean_args &a, enum ep_clean_answer answer)
{
	return 2 * a.clean_round + answer;
}

/* Where rank `from` leaves its word, in any heap. Who is early for the next round spoils none. */
EP_DEV uint64_t ep_clean_at(const struct ep_clean_args &a, uint32_t from)
{
	return a.g.clean_off + 8 * ((a.clean_round & 1) * (uint64_t)a.g.nranks + from);
}

/* False: r does not come. *lost: it cannot be reached, by what it says. */
EP_DEV bool ep_clean_wait(const struct ep_clean_args &a, uint32_t r, uint32_t *step, uint32_t *lost)
{
	const unsigned char *p = a.g.heap[a.g.rank] + ep_clean_at(a, r);
	struct ep_spin s = ep_spin_start();

	while (!ep_ld_word(p, ep_clean_epoch(a, EP_CLEAN_COMES), step)) {
		if (ep_ld_word(p, ep_clean_epoch(a, EP_CLEAN_REFUSES), step)) {
			*lost = 1;
			return true;
		}
		if (ep_spin_expired(&s, a.g.timeout_ns, EP_WAIT_CLEAN, r) ||
		    ((s.polls & 63) == 0 && ep_remote_down(a.g, r))) {
			return false;
		}
	}
	return true;
}

/*
 * Tells remote rank r the step. Before it, what was posted to r must have arrived: afterwards all
 * banks are free. False: r cannot be told, or is told that the connection is lost. One warp.
 */
EP_DEV bool ep_clean_post(const struct ep_clean_args &a, uint32_t r, uint32_t step, uint64_t start)
{
	uint32_t queues = a.g.remote->queues;
	bool reached =
		!ep_shfl_u32(EP_FULL_MASK, ep_remote_down(a.g, r), 0) &&
		ep_mlx5_quiet_all(ep_remote_qp(a.g, r, 0), queues, start, a.g.timeout_ns / 4);
	const uint32_t word[2] = { step,
				   ep_clean_epoch(a, reached ? EP_CLEAN_COMES : EP_CLEAN_REFUSES) };
	struct ep_mlx5_post p =
		ep_mlx5_open(ep_remote_qp(a.g, r, queues - 1), false, NULL, a.g.timeout_ns);
	struct ep_mlx5_mem to = ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, ep_clean_at(a, a.g.rank));

	return ep_mlx5_put_inline(&p, ep_lane() == 0, to, word, 8, false) && reached;
}

/* Tells remote peers the step; a barrier must follow. lost[r]: that cannot be done. */
EP_DEV void ep_clean_post_all(const struct ep_clean_args &a, uint32_t step, uint32_t *lost)
{
	uint64_t start = ep_shfl_u64(EP_FULL_MASK, ep_time_ns(), 0);

	for (uint32_t r = ep_warp(); r < a.g.nranks; r += ep_nwarps()) {
		bool reached = true;

		if (ep_rank_remote(a.g, r)) {
			reached = ep_clean_post(a, r, step, start);
		}
		if (ep_lane() == 0) {
			lost[r] = !reached;
		}
	}
}

/* Peer r has not come: it stays masked, and learns it. One thread. */
EP_DEV void ep_clean_missed(const struct ep_clean_args &a, uint32_t r, uint32_t step)
{
	struct ep_op op = {};

	op.step = step;
	if (a.g.mask[r]) {
		struct ep_record record = ep_record_make(op, EP_CAUSE_TIMEOUT, r);

		record.site = EP_WAIT_CLEAN;
		ep_record_write(a.g, EP_RECORD_MASKED, record);
		ep_st_relaxed_sys_u32(a.g.async_error, 1);
	}
	if (!ep_rank_remote(a.g, r)) { /* remote ranks learn it with the next step */
		ep_st_retired_sys_u64((uint64_t *)(a.g.heap[r] + a.g.progress_off) + a.g.rank,
				      ep_progress_word(step, a.clean_round, true));
	}
}

EP_KERNEL(ep_clean_kernel, ep_clean_args, EP_GROUP_MAX_THREADS)
{
	uint32_t r = ep_tid(), mine = a.g.seq[0].step, theirs = mine;
	EP_SHARED(uint32_t, steps[EP_GROUP_MAX_RANKS]);
	EP_SHARED(uint32_t, lost[EP_GROUP_MAX_RANKS]);

	ep_clean_post_all(a, mine, lost);
	ep_block_sync();
	if (r < a.g.nranks) {
		if (!ep_rank_remote(a.g, r)) {
			ep_st_word(a.g.heap[r] + ep_clean_at(a, a.g.rank), mine,
				   ep_clean_epoch(a, EP_CLEAN_COMES));
		}
		if (lost[r] || !ep_clean_wait(a, r, &theirs, lost + r)) {
			theirs = mine; /* the failed poll has left an old word there */
			ep_clean_missed(a, r, mine);
			lost[r] = 1;
		}
		steps[r] = theirs;
	}
	ep_block_sync();
	for (uint32_t i = 0; i < a.g.nranks; i++) {
		mine = (int32_t)(steps[i] - mine) > 0 ? steps[i] : mine;
	}
	for (uint32_t i = ep_tid(); i < EP_GROUP_MAX_BLOCKS; i += ep_nthreads()) {
		struct ep_dev_seq s = {};

		s.step = mine;
		s.clean_round = a.clean_round;
		a.g.seq[i] = s;
	}
	if (r < a.g.nranks) {
		a.g.mask[r] = !lost[r] && !ep_remote_down(a.g, r);
	}
}
