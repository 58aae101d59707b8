/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote ranks, for every algorithm's kernels: this rank's queues to them, the stage that its NIC
 * reads from, progress and arrival. doc/design/protocol.md draws a token's way.
 *
 * In a block that uses a queue, warp r % nwarps owns the queue to rank r: "own peers". The
 * functions below are called by all threads of the block, or by whole warps where that is stated.
 */
#ifndef EP_DEVICE_GROUP_REMOTE_H
#define EP_DEVICE_GROUP_REMOTE_H

#include "device/group/link.h"
#include "device/group/signature.h"
#include "device/group/wait.h"

#define EP_REMOTE_LEAST_NS 1000000ull    /* what a wait for a queue is granted at least */
#define EP_REMOTE_MASKED_NS 200000000ull /* and at most, when its peer is masked: this or T/8 */
#define EP_REMOTE_ABORTED_NS 1000000ull  /* for what a queue reads, when the group is aborted */
#define EP_REMOTE_END_NS 2000000000ull   /* for the host to end a queue: it takes some 20 ms */

EP_DEV struct ep_mlx5_post ep_remote_open(const struct ep_dev_group &g, uint32_t r, uint32_t queue)
{
	return ep_mlx5_open(ep_remote_qp(g, r, queue), &g.state->aborted, g.timeout_ns);
}

/* The next own peer at or after `r` that may be sent to; g.nranks: none. One warp. */
EP_DEV uint32_t ep_remote_peer(const struct ep_dev_group &g, uint32_t r)
{
	while (r < g.nranks && !(ep_rank_remote(g, r) && ep_mask_active_warp(g, r))) {
		r += ep_nwarps();
	}
	return ep_min_u32(r, g.nranks);
}

/*
 * The time that a peer is granted which may be dead. A NIC that lives takes microseconds, unless
 * its link is away for a while or a host that posts for it has no time: the timeout is how long
 * that may be.
 */
EP_DEV uint64_t ep_remote_masked_ns(const struct ep_dev_group &g)
{
	return g.timeout_ns / 8 > EP_REMOTE_MASKED_NS ? g.timeout_ns / 8 : EP_REMOTE_MASKED_NS;
}

/*
 * How long the kernel's senders may still wait for a queue. All waits together get half of the
 * timeout: other ranks wait for this rank's rows meanwhile, and this rank has to give up a lost
 * peer before they give up this rank. A masked peer is granted little: if the NIC then still has
 * to read the stage for it, the queue is given up.
 */
EP_DEV uint64_t ep_remote_left(const struct ep_dev_group &g, const struct ep_op &op, bool active)
{
	uint64_t gone = ep_time_ns() - op.start_ns, most = g.timeout_ns / 2;
	uint64_t left = gone + EP_REMOTE_LEAST_NS < most ? most - gone : EP_REMOTE_LEAST_NS;

	if (!active && left > ep_remote_masked_ns(g)) {
		left = ep_remote_masked_ns(g);
	}
	return ep_shfl_u64(EP_FULL_MASK, left, 0);
}

/* The queue to rank r is of no use any more. One warp. */
EP_DEV void ep_remote_failed(const struct ep_dev_group &g, const struct ep_op &op,
			     const struct ep_mlx5_post &post, uint32_t r, enum ep_wait_site site)
{
	if (ep_lane() == 0 && post.status != EP_MLX5_ERR_ABORTED) {
		ep_mask_peer(g, op, EP_CAUSE_RDMA, site, r, post.status, post.qpn);
	}
	ep_warp_sync(EP_FULL_MASK);
}

/*
 * This rank's signal at rank r, `off` in its heap, becomes `value`: the signal to post, for the
 * queue's owner, who must post it. One warp.
 */
EP_DEV struct ep_mlx5_signal ep_remote_signal(const struct ep_dev_group &g,
					      const struct ep_mlx5_post &post, uint32_t r,
					      uint32_t queue, uint64_t off, uint64_t value)
{
	uint64_t before = 0;

	if (ep_lane() == 0) {
		struct ep_remote_link *link = ep_remote_link_at(g, r, queue);

		before = link->signal;
		link->signal = value;
	}
	before = ep_shfl_u64(EP_FULL_MASK, before, 0);
	return ep_mlx5_signal_value(ep_mlx5_remote(&post, EP_MLX5_REGION_SIGNAL, off), before,
				    value);
}

/* The value of a signal: `entries` of the channel have been posted. */
EP_DEV uint64_t ep_remote_signal_word(const struct ep_op &op, uint32_t entries)
{
	return (uint64_t)op.epoch << 32 | entries;
}

/* Where, in a peer's heap, the signal of this rank's channel lies. */
EP_DEV uint64_t ep_remote_signal_off(const struct ep_dev_group &g, uint32_t channel)
{
	return g.remote->signal_off + 8 * ((uint64_t)g.rank * g.remote->channels + channel);
}

/* Has everything posted to the queue completed? One warp. */
EP_DEV bool remote_idle(const struct ep_mlx5_post &post)
{
	uint32_t status = post.status;
	bool idle = false;

	if (ep_lane() == 0 && !status) {
		idle = ep_mlx5_poll(&post, EP_WAIT_RDMA_SLOT, &status) >= post.end && !status;
	}
	return ep_shfl_u32(EP_FULL_MASK, idle, 0) != 0;
}

#define EP_REMOTE_STEP_WQES 2 /* of a step, to a peer that is active; of a silent one the first */

/*
 * Posts this rank's progress word to remote peers, then its signature: who has its mark knows that
 * it has started, and a wait for another rank is not made longer on its account. Masked peers get
 * the word alone: one of them may be alive and waiting for this rank, and learns from it that it is
 * masked. But a masked peer gets it only when it has taken the word before; else the queue to a
 * dead one would fill up. (The word is absolute: who misses one learns the next.) One block.
 */
EP_DEV void remote_post_step(const struct ep_dev_group &g, const struct ep_op &op, bool silent)
{
	uint64_t off = g.progress_off + 8 * (uint64_t)g.rank;
	uint64_t slot = ep_signature_off(g, op.step, g.rank);
	uint32_t control = g.remote->channels;

	for (uint32_t r = ep_warp(); r < g.nranks; r += ep_nwarps()) {
		if (!ep_rank_remote(g, r)) {
			continue;
		}
		struct ep_mlx5_post p = ep_remote_open(g, r, control);
		bool active = ep_mask_active_warp(g, r);

		if (!active && !remote_idle(p)) {
			continue;
		}
		p.timeout_ns = ep_remote_left(g, op, active);
		uint64_t word = ep_progress_word(op.step, op.clean_round, !active);
		struct ep_mlx5_signal signal = ep_remote_signal(g, p, r, control, off, word);
		bool ok = ep_mlx5_signal_add(&p, signal, active && !silent);

		if (active) {
			ok &= ep_mlx5_put(&p, ep_lane() == 0 && !silent,
					  ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, slot),
					  ep_mlx5_local(&p, EP_MLX5_REGION_HEAP, slot),
					  sizeof(struct ep_signature_slot), false);
			if (!ok) {
				ep_remote_failed(g, op, p, r, EP_WAIT_RDMA_SLOT);
			}
		}
	}
}

/*
 * Posts the step and its signature to remote peers, and waits until what the control queue sent out
 * of the stage in earlier steps has left it. It posts to all before it waits for any. One block.
 * (Out of line: a call costs less than the NIC takes, and the kernels' loops keep their registers.)
 */
EP_DEV_COLD void ep_remote_publish(const struct ep_dev_group &g, struct ep_op op, uint32_t origin)
{
	bool silent = ep_signature_silent(g, origin);
	uint64_t posted = silent ? 1 : EP_REMOTE_STEP_WQES;

	ep_block_sync(); /* NICs read what one warp has stored, ep_step_publish() */
	remote_post_step(g, op, silent);
	for (uint32_t r = ep_remote_peer(g, ep_warp()); r < g.nranks;
	     r = ep_remote_peer(g, r + ep_nwarps())) {
		struct ep_mlx5_post p = ep_remote_open(g, r, g.remote->channels);

		p.timeout_ns = ep_remote_left(g, op, true);
		/* all but what has just been posted */
		if (!ep_mlx5_wait(&p, p.end - posted, EP_MLX5_ERR_COMPLETION,
				  EP_WAIT_RDMA_COMPLETION)) {
			ep_remote_failed(g, op, p, r, EP_WAIT_RDMA_COMPLETION);
		}
	}
}

/* Leaves the control queues to waits (`all`: ep_control_leave()). One block. */
EP_DEV void ep_remote_leave(const struct ep_dev_group &g, const struct ep_op &op, bool all)
{
	for (uint32_t r = ep_remote_peer(g, ep_warp()); r < g.nranks;
	     r = ep_remote_peer(g, r + ep_nwarps())) {
		ep_control_leave(g, r, op.step, all);
	}
}

/* ep_remote_publish(), and leaves the queues. One block. */
EP_DEV_COLD void ep_remote_begin(const struct ep_dev_group &g, struct ep_op op, uint32_t origin,
				 bool all)
{
	ep_remote_publish(g, op, origin);
	ep_remote_leave(g, op, all);
}

/* Side `side` of the channel's stage, offset in the heap. */
EP_DEV uint64_t ep_stage_off(const struct ep_dev_group &g, uint32_t channel, uint32_t side)
{
	return g.remote->stage_off + (2 * (uint64_t)channel + side) * g.remote->stage_side_bytes;
}

/*
 * Has the NIC done with what the queue to rank r posted below `index`? A queue that does not get
 * done is given up, and the host ends it: before that the NIC may send again what the peer has not
 * acknowledged, from the stage as it is by then, and the peer would take the new bytes for the old.
 * One warp.
 */
EP_DEV bool stage_released(const struct ep_dev_group &g, const struct ep_op &op,
			   struct ep_mlx5_post &post, uint32_t r, uint64_t index)
{
	bool active = ep_mask_active_warp(g, r);

	post.timeout_ns = ep_remote_left(g, op, active);
	if (ep_mlx5_wait(&post, index, EP_MLX5_ERR_COMPLETION, EP_WAIT_RDMA_COMPLETION)) {
		return true;
	}
	if (active) {
		ep_remote_failed(g, op, post, r, EP_WAIT_RDMA_COMPLETION);
	}
	if (ep_mlx5_wait_end(&post, index, EP_REMOTE_END_NS)) {
		return true;
	}
	if (ep_lane() == 0 && !ep_aborted(g)) {
		ep_mask_peer(g, op, EP_CAUSE_UNENDED, EP_WAIT_RDMA_COMPLETION, r, post.status,
			     post.qpn);
	}
	return false;
}

/*
 * Waits until the NIC has done with the side, so that it may be written again. False, for all
 * threads: it may not, and the group is aborted. One block; barriers at both ends.
 */
EP_DEV bool ep_stage_claim(const struct ep_dev_group &g, const struct ep_op &op, uint32_t channel,
			   uint32_t side)
{
	EP_SHARED(uint32_t, refused);

	if (ep_tid() == 0) {
		refused = ep_aborted(g);
	}
	ep_block_sync();
	for (uint32_t r = ep_warp(); r < g.nranks; r += ep_nwarps()) {
		if (!ep_rank_remote(g, r)) {
			continue;
		}
		struct ep_mlx5_post p = ep_remote_open(g, r, channel);
		uint64_t index = ep_lane() == 0 ? ep_remote_link_at(g, r, channel)->side_busy[side]
						: 0;

		index = ep_shfl_u64(EP_FULL_MASK, index, 0);
		if (p.done < index && !stage_released(g, op, p, r, index) && ep_lane() == 0) {
			ep_shared_or_u32(&refused, 1);
		}
	}
	ep_block_sync();
	bool ok = !refused;
	ep_block_sync(); /* the next claim writes the word */
	return ok;
}

/* Notes the last WQE to r that reads from the side. One warp. */
EP_DEV void ep_stage_mark(const struct ep_dev_group &g, const struct ep_mlx5_post &post, uint32_t r,
			  uint32_t channel, uint32_t side)
{
	if (ep_lane() == 0) {
		ep_remote_link_at(g, r, channel)->side_busy[side] = post.end;
	}
}

/*
 * The rows of an operation came from the caller's tensor, which may be written when the kernel is
 * over: waits until the NIC has done with what the block has posted to its channels index, index +
 * stride, ... A group that is aborted waits, too: until the host has ended a queue that was given
 * up; and for a queue that is well not long, since only a packet that was lost can still be on its
 * way. One block.
 */
EP_DEV void ep_remote_read(const struct ep_dev_group &g, const struct ep_op &op, uint32_t index,
			   uint32_t stride)
{
	for (uint32_t r = ep_warp(); r < g.nranks; r += ep_nwarps()) {
		for (uint32_t ch = index; ep_rank_remote(g, r) && ch < g.remote->channels;
		     ch += stride) {
			const struct ep_remote_link *link = ep_remote_link_at(g, r, ch);
			struct ep_mlx5_post p = ep_remote_open(g, r, ch);
			uint64_t last = 0;

			if (ep_lane() == 0) {
				last = link->side_busy[link->side_busy[1] > link->side_busy[0]];
			}
			last = ep_shfl_u64(EP_FULL_MASK, last, 0);
			if (p.done < last && !stage_released(g, op, p, r, last)) {
				p.aborted = NULL;
				(void)ep_mlx5_wait_end(&p, last,
						       p.status == EP_MLX5_ERR_ABORTED
							       ? EP_REMOTE_ABORTED_NS
							       : EP_REMOTE_END_NS);
			}
		}
	}
}

/*
 * Waits until entry `entry` of the entries of remote rank r, of which a channel has `per_channel`,
 * has arrived. One lane; the others may read what arrived after a warp barrier.
 */
EP_DEV bool ep_remote_wait(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r,
			   uint32_t entry, uint32_t per_channel, enum ep_wait_site site)
{
	uint32_t channels = g.remote->channels;
	uint32_t channel = ep_min_u32(entry / per_channel, channels - 1);
	uint64_t due = ep_remote_signal_word(op, entry - channel * per_channel + 1);
	/* The peer may be at a later epoch, up to this: any other signal is an old one. */
	uint64_t ahead = (uint64_t)(op.step - op.epoch + EP_GROUP_MAX_LEAD) << 32;
	const uint64_t *signal =
		(const uint64_t *)(g.own + g.remote->signal_off) + (size_t)r * channels + channel;
	uint64_t value = ep_ld_acquire_sys_u64(signal);
	struct ep_spin s = ep_spin_start();

	/* 0: no signal yet, in a new heap; no step is 0, but before the steps wrap it looks near */
	while (!value || value - due >= ahead) {
		if (ep_wait_give_up<true>(g, op, &s, site, r)) {
			return false;
		}
		value = ep_ld_acquire_sys_u64(signal);
	}
	return true;
}

#endif
