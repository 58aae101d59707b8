/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency kernels across nodes: this rank's queues to remote peers, the stage that its NIC reads
 * from, progress and arrival. The protocol is told on top of ll/layout.h.
 *
 * In a block that uses a queue, warp r % nwarps owns the queue to rank r: "own peers". The functions
 * below are called by all threads of the block, or by whole warps where it says so.
 */
#ifndef EP_DEVICE_LL_NET_H
#define EP_DEVICE_LL_NET_H

#include "device/group/wait.h"
#include "device/mlx5/ops.h"

#define EP_LL_NET_LEAST_NS 1000000ull
#define EP_LL_NET_MASKED_NS 200000000ull
#define EP_LL_NET_END_NS 2000000000ull /* for the host to end a queue: it takes some 20 ms */

EP_DEV struct ep_ll_link *ep_ll_link(const struct ep_ll_common &c, uint32_t r, uint32_t queue)
{
	return c.links + (size_t)r * c.queues + queue;
}

EP_DEV struct ep_mlx5_post ep_ll_net_open(const struct ep_ll_common &c, uint32_t r, uint32_t queue)
{
	return ep_mlx5_open(c.qps + (size_t)r * c.queues + queue, false, &c.state->aborted,
			    c.timeout_ns);
}

/* The next own peer at or after `r` that may be sent to; c.nranks: none. One warp. */
EP_DEV uint32_t ep_ll_net_peer(const struct ep_ll_common &c, uint32_t r)
{
	while (r < c.nranks && !(ep_ll_remote(c, r) && ep_ll_warp_active(c, r))) {
		r += ep_nwarps();
	}
	return ep_min_u32(r, c.nranks);
}

/*
 * How long the kernel's senders may still wait for a queue. Half of the timeout for all waits
 * together: a peer that is lost must be given up before others, who wait for our rows meanwhile,
 * give up us. A masked peer is granted little: if the NIC then still has to read the stage for it,
 * the queue is given up.
 */
EP_DEV uint64_t ep_ll_net_left(const struct ep_ll_common &c, const struct ep_ll_op &op, bool active)
{
	uint64_t gone = ep_time_ns() - op.start_ns, most = c.timeout_ns / 2;
	uint64_t left = gone + EP_LL_NET_LEAST_NS < most ? most - gone : EP_LL_NET_LEAST_NS;

	if (!active && left > EP_LL_NET_MASKED_NS) {
		left = EP_LL_NET_MASKED_NS;
	}
	return ep_shfl_u64(EP_FULL_MASK, left, 0);
}

/* The queue to rank r is of no use any more. One warp. */
EP_DEV void ep_ll_net_failed(const struct ep_ll_common &c, const struct ep_ll_op &op,
			     const struct ep_mlx5_post &p, uint32_t r, enum ep_wait_site site)
{
	if (ep_lane() == 0 && p.status != EP_MLX5_ERR_ABORTED) {
		ep_ll_peer_failed(c, op, EP_LL_CAUSE_RDMA, site, r, p.status, p.qpn);
	}
	ep_warp_sync(EP_FULL_MASK);
}

/*
 * This rank's signal at rank r, `off` in its heap, becomes `value`: the signal to post, for the
 * queue's owner, who must post it. One warp.
 */
EP_DEV struct ep_mlx5_signal ep_ll_net_signal(const struct ep_ll_common &c,
					      const struct ep_mlx5_post &p, uint32_t r,
					      uint32_t queue, uint64_t off, uint64_t value)
{
	uint64_t told = 0;

	if (ep_lane() == 0) {
		struct ep_ll_link *link = ep_ll_link(c, r, queue);

		told = link->told;
		link->told = value;
	}
	told = ep_shfl_u64(EP_FULL_MASK, told, 0);
	return ep_mlx5_signal_value(ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, off), told, value);
}

/* Value of a signal: `units` of the channel have been posted. */
EP_DEV uint64_t ep_ll_net_value(const struct ep_ll_op &op, uint32_t units)
{
	return (uint64_t)op.epoch << 32 | units;
}

/* Where, in a peer's heap, this rank tells how far its channel is. */
EP_DEV uint64_t ep_ll_net_signal_off(const struct ep_ll_common &c, uint32_t channel)
{
	return c.signal_off + 8 * ((uint64_t)c.rank * c.channels + channel);
}

/* Has everything posted to the queue completed? One warp. */
EP_DEV bool ep_ll_net_idle(const struct ep_mlx5_post &p)
{
	uint32_t status = p.status;
	bool idle = false;

	if (ep_lane() == 0 && !status) {
		idle = ep_mlx5_poll(&p, EP_WAIT_RDMA_SLOT, &status) >= p.end && !status;
	}
	return ep_shfl_u32(EP_FULL_MASK, idle, 0) != 0;
}

/*
 * Tells remote peers the step. Masked peers too: they may be waiting for us, not knowing. But
 * those only when they have taken the step before; else the queue to a dead one would fill up. (The
 * step is absolute: who misses one learns the next.) One block.
 */
EP_DEV void ep_ll_net_tell(const struct ep_ll_common &c, const struct ep_ll_op &op)
{
	uint64_t off = c.progress_off + 8 * (uint64_t)c.rank;

	for (uint32_t r = ep_warp(); r < c.nranks; r += ep_nwarps()) {
		if (!ep_ll_remote(c, r)) {
			continue;
		}
		struct ep_mlx5_post p = ep_ll_net_open(c, r, c.channels);
		bool active = ep_ll_warp_active(c, r);

		if (!active && !ep_ll_net_idle(p)) {
			continue;
		}
		p.timeout_ns = ep_ll_net_left(c, op, active);
		if (!ep_mlx5_signal_add(&p, ep_ll_net_signal(c, p, r, c.channels, off, ep_ll_telling(op.step, op.round, !active)),
					false) &&
		    active) {
			ep_ll_net_failed(c, op, p, r, EP_WAIT_RDMA_SLOT);
		}
	}
}

/*
 * Tells remote peers the step, and waits until what the control queue sent out of the stage in
 * earlier steps has left it. All are told before any is waited for. One block.
 */
EP_DEV void ep_ll_net_progress(const struct ep_ll_common &c, const struct ep_ll_op &op)
{
	ep_ll_net_tell(c, op);
	for (uint32_t r = ep_ll_net_peer(c, ep_warp()); r < c.nranks;
	     r = ep_ll_net_peer(c, r + ep_nwarps())) {
		struct ep_mlx5_post p = ep_ll_net_open(c, r, c.channels);

		p.timeout_ns = ep_ll_net_left(c, op, true);
		/* all but the WQE that has just told it */
		if (!ep_mlx5_wait(&p, p.end - 1, EP_MLX5_ERR_COMPLETION,
				  EP_WAIT_RDMA_COMPLETION)) {
			ep_ll_net_failed(c, op, p, r, EP_WAIT_RDMA_COMPLETION);
		}
	}
}

/* Half `half` of the channel's stage, offset in the heap. */
EP_DEV uint64_t ep_ll_net_stage(const struct ep_ll_common &c, uint32_t channel, uint32_t half)
{
	return c.stage_off + (2 * (uint64_t)channel + half) * c.stage_half_bytes;
}

/*
 * Whether the NIC has done with what the queue to rank r posted below `index`. One that does not
 * get done is given up, and ended by the host: before that its NIC may send again what the peer has
 * not acknowledged, from the stage as it is then, and the peer takes it for what it was. One warp.
 */
EP_DEV bool ep_ll_net_released(const struct ep_ll_common &c, const struct ep_ll_op &op,
			       struct ep_mlx5_post &p, uint32_t r, uint64_t index)
{
	bool active = ep_ll_warp_active(c, r);

	p.timeout_ns = ep_ll_net_left(c, op, active);
	if (ep_mlx5_wait(&p, index, EP_MLX5_ERR_COMPLETION, EP_WAIT_RDMA_COMPLETION)) {
		return true;
	}
	if (active) {
		ep_ll_net_failed(c, op, p, r, EP_WAIT_RDMA_COMPLETION);
	}
	if (ep_mlx5_wait_end(&p, index, EP_LL_NET_END_NS)) {
		return true;
	}
	if (ep_lane() == 0 && !ep_ll_aborted(c.state)) {
		ep_ll_peer_failed(c, op, EP_LL_CAUSE_UNENDED, EP_WAIT_RDMA_COMPLETION, r, p.status,
				  p.qpn);
	}
	return false;
}

/*
 * Waits until the NIC has done with the half, so that it may be written again. False, for all
 * threads: it may not, and the group is aborted. One block; barriers at both ends.
 */
EP_DEV bool ep_ll_net_claim(const struct ep_ll_common &c, const struct ep_ll_op &op,
			    uint32_t channel, uint32_t half)
{
	EP_SHARED(uint32_t, refused);

	if (ep_tid() == 0) {
		refused = ep_ll_aborted(c.state);
	}
	ep_block_sync();
	for (uint32_t r = ep_warp(); r < c.nranks; r += ep_nwarps()) {
		if (!ep_ll_remote(c, r)) {
			continue;
		}
		struct ep_mlx5_post p = ep_ll_net_open(c, r, channel);
		uint64_t mark = ep_lane() == 0 ? ep_ll_link(c, r, channel)->mark[half] : 0;

		mark = ep_shfl_u64(EP_FULL_MASK, mark, 0);
		if (p.done < mark && !ep_ll_net_released(c, op, p, r, mark) && ep_lane() == 0) {
			ep_shared_or_u32(&refused, 1);
		}
	}
	ep_block_sync();
	bool ok = !refused;
	ep_block_sync(); /* the next claim writes the word */
	return ok;
}

/* What the warp has posted to r reads from the half. One warp. */
EP_DEV void ep_ll_net_mark(const struct ep_ll_common &c, const struct ep_mlx5_post &p, uint32_t r,
			   uint32_t channel, uint32_t half)
{
	if (ep_lane() == 0) {
		ep_ll_link(c, r, channel)->mark[half] = p.end;
	}
}

/* Into how many pieces the block's warps cut each of `rows` rows, and the quads of a piece. */
EP_DEV uint32_t ep_ll_net_pieces(const struct ep_ll_common &c, uint32_t rows, uint32_t unit,
				 uint32_t *chunk)
{
	uint32_t pieces = ep_min_u32(ep_max_u32(ep_nwarps() / rows, 1), c.row_quads / unit);

	pieces = ep_max_u32(pieces, 1);
	*chunk = ep_ll_chunk(c.row_quads, pieces, unit);
	return pieces;
}

/* Row `at` of the area where remote peers' rows arrive; offset in any heap. */
EP_DEV uint64_t ep_ll_net_row(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t at)
{
	return c.bank_off[op.bank] + c.net_row_off +
	       (uint64_t)at * ep_ll_row_stride(c.row_quads, 0);
}

/*
 * Waits until unit `unit` of the units of remote rank r, of which a channel has `per_channel`, has
 * arrived. One lane; the others may read what arrived after a warp barrier.
 */
EP_DEV bool ep_ll_net_wait(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t r,
			   uint32_t unit, uint32_t per_channel, enum ep_wait_site site)
{
	uint32_t channel = ep_min_u32(unit / per_channel, c.channels - 1);
	uint64_t due = ep_ll_net_value(op, unit - channel * per_channel + 1);
	/* The peer may be at a later epoch, but not later than this: any other signal is an old one. */
	uint64_t ahead = (uint64_t)(op.step - op.epoch + EP_LL_MAX_LEAD) << 32;
	const uint64_t *signal = (const uint64_t *)(c.heap[c.rank] + c.signal_off) +
				 (size_t)r * c.channels + channel;
	uint64_t value = ep_ld_acquire_sys_u64(signal);
	struct ep_spin s = ep_spin_start();

	/* 0: nothing told yet, in a new heap; no step is 0, but before the steps wrap it looks near */
	while (!value || value - due >= ahead) {
		if (ep_ll_wait_over(c, op, &s, site, r)) {
			return false;
		}
		value = ep_ld_acquire_sys_u64(signal);
	}
	return true;
}

#endif
