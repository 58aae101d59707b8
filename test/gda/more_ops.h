/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a warp that the library's kernels do not need: reads, atomics that return a value, packets. */
#ifndef TEST_GDA_MORE_OPS_H
#define TEST_GDA_MORE_OPS_H

#include "device/mlx5/qp.h"
#include "more_wqe.h"

/*
 * A packet {d0, epoch, d1, epoch} for the peer's ep_ld_packet(), which needs no signal and no order
 * between messages, at any tier: each half of 8 bytes arrives whole and carries its epoch. `to` is
 * 16-byte aligned, in a region without relaxed ordering. to, d0 and d1 per lane.
 */
EP_DEV bool ep_mlx5_put_packet(struct ep_mlx5_post *post, bool want, struct ep_mlx5_mem to,
			       uint32_t d0, uint32_t d1, uint32_t epoch, bool more)
{
	const uint32_t data[4] = { d0, epoch, d1, epoch };

	return ep_mlx5_put_inline(post, want, to, data, 16, more);
}

/*
 * Copies `bytes` from remote to local memory; from, to and bytes per lane, at most
 * EP_MLX5_MAX_BYTES. The data is there when ep_mlx5_quiet() has returned, not before; it is what
 * the peer's memory held at some time between. At tier 0 that is after earlier puts to the queue;
 * else put, quiet, get.
 *
 * That holds where the completion takes the same way as the data, behind it: both in GPU memory or
 * both in host memory. A completion in host memory (in_host of the queue pair) may be seen before data that the
 * NIC has written to GPU memory on another way: then only a later signal from the peer, or a look
 * at the data itself, tells. The same for old values of atomics.
 */
EP_DEV bool ep_mlx5_get(struct ep_mlx5_post *post, bool want, struct ep_mlx5_mem from,
			struct ep_mlx5_mem to, uint32_t bytes, bool more)
{
	struct ep_mlx5_wqe q;
	uint32_t ds = ep_mlx5_build_read(&q, 0, post->qpn, 0, from, to, bytes);

	return ep_mlx5_submit(post, want && bytes, q, ds, q, 0, more);
}

/*
 * Adds to a remote word (8-byte aligned), atomically among the atomics of NICs, not of GPUs. The
 * old value is at `old` (8 bytes) when ep_mlx5_quiet() has returned. slot, add and old per lane.
 */
EP_DEV bool ep_mlx5_fetch_add(struct ep_mlx5_post *post, bool want, struct ep_mlx5_mem slot,
			      uint64_t add, struct ep_mlx5_mem old, bool more)
{
	struct ep_mlx5_wqe q;
	uint32_t ds = ep_mlx5_build_fetch_add(&q, 0, post->qpn, 0, slot, old, add);

	return ep_mlx5_submit(post, want, q, ds, q, 0, more);
}

/*
 * The same with words of 4 bytes (aligned, `old` too); the bits of `boundary` carry nothing
 * upwards, so that one word can hold several counters.
 */
EP_DEV bool ep_mlx5_fetch_add32(struct ep_mlx5_post *post, bool want, struct ep_mlx5_mem slot,
				uint32_t add, uint32_t boundary, struct ep_mlx5_mem old, bool more)
{
	struct ep_mlx5_wqe q;
	uint32_t ds = ep_mlx5_build_fetch_add32(&q, 0, post->qpn, 0, slot, old, add, boundary);

	return ep_mlx5_submit(post, want, q, ds, q, 0, more);
}

EP_DEV struct ep_mlx5_signal ep_mlx5_signal_sum(struct ep_mlx5_mem slot, uint64_t add)
{
	struct ep_mlx5_signal s = { slot, 0, add, false };

	return s;
}

/*
 * Hands everything over that this warp has posted with `more`. The NIC begins with it some time
 * after; nothing is waited for.
 */
EP_DEV bool ep_mlx5_flush(struct ep_mlx5_post *post)
{
	if (!post->status && post->rung != post->end) {
		if (ep_lane() == 0) {
			ep_st_relaxed_gpu_u64(&post->qp->rung, post->end);
			ep_mlx5_doorbell(post->qp, post->end);
		}
		ep_warp_sync(EP_FULL_MASK); /* as in mlx5_publish() */
		post->rung = post->end;
	}
	return !post->status;
}

#endif
