/* SPDX-License-Identifier: Apache-2.0 */
#include "device/ht/post.h"
#include "ht_post.h"
#include "device/ht/route_place.h"

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

/* What has been handed over: WQEs of all queues, and the chunks that they announce. */
struct handed {
	uint64_t wqes;
	uint32_t announced;
};

EP_DEV struct handed look(const struct ht_post_args &a)
{
	struct handed h = {};

	for (uint32_t q = EP_HT_ROWS; q < a.c.g.remote->channels; q++) {
		struct ep_mlx5_qp *qp = ep_remote_qp(a.c.g, 1, q);
		uint64_t index = ep_ld_acquire_sys_u64(qp->db);

		h.wqes += index;
		h.announced = ep_max_u32(h.announced, announced_by(qp, index));
	}
	return h;
}

/* The NIC has done all of that, of the first `queues` queues. */
EP_DEV void complete(const struct ht_post_args &a, uint32_t queues)
{
	for (uint32_t q = EP_HT_ROWS; q < EP_HT_ROWS + queues; q++) {
		struct ep_mlx5_qp *qp = ep_remote_qp(a.c.g, 1, q);
		uint32_t counter = (uint32_t)ep_ld_acquire_sys_u64(qp->db) - 1;
		uint32_t *at = (uint32_t *)((unsigned char *)qp->cqe + EP_MLX5_CQE_DONE_AT);

		if (counter != UINT32_MAX) {
			ep_st_release_sys_u32(at, (counter >> 8 & 0xff) | (counter & 0xff) << 8);
		}
	}
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

/*
 * One thread. It acts when the send warp has done nothing for a while: it waits, or waits wrongly
 * for more.
 */
#define STILL 100

EP_DEV void play_others(const struct ht_post_args &a, const struct ep_op &op)
{
	uint32_t staged = a.staged, still = 0, all = a.c.areas.queue_mask + 1;
	uint32_t bunch = 1u << a.c.areas.bunch_shift;
	struct ep_spin s = ep_spin_start();
	struct handed h = {};

	while (h.announced < a.chunks &&
	       !ep_spin_expired(&s, 4 * a.c.g.timeout_ns, EP_WAIT_BULK, 1)) {
		uint64_t before = h.wqes;

		h = look(a);
		still = h.wqes == before ? still + 1 : 0;
		if (h.announced < a.holds || still < STILL) {
			*a.early |= ep_ld_acquire_sys_u64(ep_ht_released_at(a.c, 0)) != 0 &&
				    h.announced <= a.holds;
			*a.early |= ep_ht_word_reached(op, ep_ht_released_at(a.c, 0), bunch) &&
				    h.announced <= a.apart;
			continue;
		}
		complete(a, h.announced < a.apart ? 1 : all);
		if (h.announced == a.credits) {
			ep_st_release_sys_u64(credit_at(a), ep_remote_signal_word(op, a.chunks));
		}
		if (h.announced == staged && staged < a.chunks) {
			uint32_t end = ep_min_u32(staged + a.again, a.chunks);

			staged = stage_again(a, op, staged, end) ? end : staged;
		}
	}
	complete(a, all);
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

EP_KERNEL(ht_stamp_kernel, ht_stamp_args, 32)
{
	struct ep_ht_route t = {};

	t.all = a.rows;
	if (ep_tid() != 0) {
		return;
	}
	ep_ht_head_clear(a.a.c);
	if (a.failure == HT_STAMP_BEFORE) {
		ep_ht_head_fail(a.a.c);
	}
	ep_ht_head_leave(a.a, t);
	if (a.failure == HT_STAMP_AFTER) {
		ep_ht_head_fail(a.a.c);
	}
}
