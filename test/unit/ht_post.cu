/* SPDX-License-Identifier: Apache-2.0 */
#include "device/ht/post.h"
#include "ht_post.h"

EP_DEV uint64_t *credit_at(const struct ht_post_args &a)
{
	return (uint64_t *)(a.c.g.own + a.c.g.remote->signal_off) + a.c.g.remote->channels +
	       EP_HT_CREDITS;
}

/* Chunks that the WQEs below `index` have announced: the last one of them is a signal. */
EP_DEV uint32_t announced_by(const struct ep_mlx5_qp *qp, uint64_t index)
{
	return index ? qp->sq[index - 1].w[9] - 1 : 0;
}

/* The NIC has done all below `index`. */
EP_DEV void complete(struct ep_mlx5_qp *qp, uint64_t index)
{
	uint32_t counter = (uint32_t)index - 1;
	uint32_t *at = (uint32_t *)((unsigned char *)qp->cqe + EP_MLX5_CQE_DONE_AT);

	ep_st_release_sys_u32(at, (counter >> 8 & 0xff) | (counter & 0xff) << 8);
}

EP_DEV void stage(const struct ht_post_args &a, uint32_t chunk, uint32_t parts)
{
	for (uint32_t p = 0; p < parts; p++) {
		ep_st_release_sys_u64(ep_ht_staged_at(a.c, 0, chunk, p),
				      ep_ht_unit_word(HT_POST_EPOCH, chunk));
	}
}

/* Stages chunks [first, end), the first one last, if there is room. */
EP_DEV bool stage_again(const struct ht_post_args &a, const struct ep_op &op, uint32_t first,
			uint32_t end)
{
	uint32_t room = a.c.areas.stage_chunks;

	if (end > room && !ep_ht_word_reached(op, ep_ht_released_at(a.c, 0), end - 1 - room)) {
		return false;
	}
	for (uint32_t c = end; c-- > first;) {
		stage(a, c, HT_POST_PARTS);
	}
	return true;
}

/* One thread. It acts when the poster has done nothing for a while: it waits, or waits wrongly for more. */
#define STILL 100

EP_DEV void play_others(const struct ht_post_args &a, const struct ep_op &op)
{
	struct ep_mlx5_qp *qp = ep_remote_qp(a.c.g, 1, EP_HT_ROWS);
	uint32_t staged = a.staged, announced = 0, still = 0;
	struct ep_spin s = ep_spin_start();
	uint64_t before = 0;

	while (announced < a.chunks &&
	       !ep_spin_expired(&s, 4 * a.c.g.timeout_ns, EP_WAIT_BULK, 1)) {
		uint64_t index = ep_ld_acquire_sys_u64(qp->db);

		still = index == before ? still + 1 : 0;
		before = index;
		announced = announced_by(qp, index);
		if (announced < a.holds || still < STILL) {
			*a.early |= ep_ld_acquire_sys_u64(ep_ht_released_at(a.c, 0)) != 0 &&
				    announced <= a.holds;
			continue;
		}
		if (index) {
			complete(qp, index);
		}
		if (announced == a.credits) {
			ep_st_release_sys_u64(credit_at(a), ep_remote_signal_word(op, a.chunks));
		}
		if (announced == staged && staged < a.chunks) {
			uint32_t end = ep_min_u32(staged + a.again, a.chunks);

			staged = stage_again(a, op, staged, end) ? end : staged;
		}
	}
	complete(qp, ep_ld_acquire_sys_u64(qp->db));
}

EP_KERNEL(ht_post_kernel, ht_post_args, 64)
{
	struct ep_op op = {};

	op.epoch = op.step = HT_POST_EPOCH;
	if (ep_tid() == 0) {
		for (uint32_t c = 0; c < a.staged; c++) {
			stage(a, c, HT_POST_PARTS);
		}
		if (a.staged < a.chunks) {
			stage(a, a.staged, 1);
		}
	}
	ep_block_sync();
	if (ep_warp() == 0) {
		ep_ht_post(a.c, op, ep_ht_flows_make(a.c, true, HT_POST_PARTS, HT_POST_ROW));
	} else if (ep_lane() == 0) {
		play_others(a, op);
	}
}

EP_KERNEL(ht_turn_kernel, ht_turn_args, 32)
{
	for (uint32_t r = 0; ep_lane() == 0 && r < a.c.g.nranks; r++) {
		if (!ep_ht_near(a.c, r) && ep_ht_posts_to(a.c, r)) {
			a.posts[r] = (int32_t)ep_block();
		}
	}
	for (uint32_t t = ep_block(); ep_lane() == 0 && t < ep_ht_turns(a.c); t += ep_nblocks()) {
		uint32_t r = ep_ht_turn_rank(a.c, t);

		if (r != EP_HT_NONE) {
			a.turns[r] = (int32_t)ep_block();
		}
	}
}
