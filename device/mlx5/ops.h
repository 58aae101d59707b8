/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided operations of a warp on its peer's memory. All lanes call; arguments marked "per lane"
 * count in the lanes that `want`. They return as soon as the operation is posted; false: the queue
 * is out of use, post->status has the reason, and nobody knows what the peer has seen.
 *
 * Common to all: an operation begins after the memory that the lanes of this warp had written when
 * they called; what other warps wrote needs a barrier with them first. Local memory belongs to the
 * NIC until ep_mlx5_quiet() has returned. Operations on one queue complete locally in the order
 * posted. When and in which order the peer sees them stands above each; "arrives" means that a
 * peer's acquire load may see it.
 */
#ifndef EP_DEVICE_MLX5_OPS_H
#define EP_DEVICE_MLX5_OPS_H

#include "device/mlx5/qp.h"

/* Byte `offset` of a region of this rank, and of the queue's peer. */
EP_DEV struct ep_mlx5_mem ep_mlx5_local(const struct ep_mlx5_post *post, enum ep_mlx5_region_id id,
					uint64_t offset)
{
	struct ep_mlx5_mem m = { post->qp->local[id].addr + offset, post->qp->local[id].lkey };

	return m;
}

/* Byte `offset` of memory of the caller. */
EP_DEV struct ep_mlx5_mem ep_mlx5_source(const struct ep_mlx5_post *post,
					 const struct ep_mlx5_source &source, uint64_t offset)
{
	struct ep_mlx5_mem m = { source.addr + offset, source.lkey[post->qp->nic] };

	return m;
}

EP_DEV struct ep_mlx5_mem ep_mlx5_remote(const struct ep_mlx5_post *post, enum ep_mlx5_region_id id,
					 uint64_t offset)
{
	struct ep_mlx5_mem m = { post->qp->remote[id].addr + offset, post->qp->remote[id].rkey };

	return m;
}

/*
 * Copies `bytes` from local to remote memory; to, from and bytes per lane, at most
 * EP_MLX5_MAX_BYTES. The peer may see the bytes of a message, and messages of one call or of
 * several, in any order (at tier 0 messages arrive in order). Only a signal posted later on the
 * same queue shows the peer that they are there. 0 bytes write nothing, but test the connection.
 */
EP_DEV bool ep_mlx5_put(struct ep_mlx5_post *post, bool want, struct ep_mlx5_mem to,
			struct ep_mlx5_mem from, uint32_t bytes, bool more)
{
	struct ep_mlx5_wqe q;
	uint32_t ds = ep_mlx5_build_write(&q, 0, post->qpn, 0, to, from, bytes);

	return ep_mlx5_submit(post, want, q, ds, q, 0, more);
}

/*
 * As ep_mlx5_put() of 1..EP_MLX5_MAX_INLINE bytes that are read now, in whole words, by this lane:
 * `data` may be written again at once, and needs not be registered.
 */
EP_DEV bool ep_mlx5_put_inline(struct ep_mlx5_post *post, bool want, struct ep_mlx5_mem to,
			       const uint32_t *data, uint32_t bytes, bool more)
{
	struct ep_mlx5_wqe q;
	uint32_t ds = ep_mlx5_build_inline(&q, 0, post->qpn, 0, to, data, bytes);

	return ep_mlx5_submit(post, want, q, ds, q, 0, more);
}

/*
 * A signal: a remote word of 8 bytes, aligned, in a region without relaxed ordering, that only
 * grows and that the peer compares with >=. Everything put to the same queue before it, by this
 * warp, arrives before the signal does. So does everything that other warps posted to the queue, if
 * a barrier or a release/acquire pair puts their call before this one.
 *
 * Sole writer: no other warp, rank or queue ever changes the slot, and `before` is its value now
 * (what was set last). The connection's policy decides whether the value travels as a WRITE or as
 * an atomic of the difference: the peer sees no difference. Otherwise the slot is a sum of what anybody
 * adds, and always an atomic.
 */
struct ep_mlx5_signal {
	struct ep_mlx5_mem slot;
	uint64_t value;
	uint64_t add;
	bool sole;
};

EP_DEV struct ep_mlx5_signal ep_mlx5_signal_value(struct ep_mlx5_mem slot, uint64_t before,
						  uint64_t value)
{
	struct ep_mlx5_signal s = { slot, value, value - before, true };

	return s;
}

EP_DEV uint32_t ep_mlx5_build_signal(const struct ep_mlx5_post *post, struct ep_mlx5_wqe *wqe,
				     const struct ep_mlx5_signal &signal)
{
	const struct ep_mlx5_qp *qp = post->qp;
	const uint32_t value[2] = { (uint32_t)signal.value, (uint32_t)(signal.value >> 32) };
	const struct ep_mlx5_mem old = { qp->sink, qp->sink_lkey };

	if (signal.sole && qp->signal != EP_MLX5_SIGNAL_ATOMIC) {
		return ep_mlx5_build_inline(wqe, 0, post->qpn,
					    qp->signal == EP_MLX5_SIGNAL_WRITE_STRONG
						    ? EP_MLX5_FM_STRONG
						    : EP_MLX5_FM_NONE,
					    signal.slot, value, 8);
	}
	return ep_mlx5_build_fetch_add(wqe, 0, post->qpn, ep_mlx5_atomic_fm(qp->tier), signal.slot,
				       old, signal.add);
}

/* As ep_mlx5_put(), and then the signal, which covers all lanes' bytes. One doorbell. */
EP_DEV bool ep_mlx5_put_signal(struct ep_mlx5_post *post, bool want, struct ep_mlx5_mem to,
			       struct ep_mlx5_mem from, uint32_t bytes,
			       const struct ep_mlx5_signal &signal)
{
	struct ep_mlx5_wqe q, tail;
	uint32_t ds = ep_mlx5_build_write(&q, 0, post->qpn, 0, to, from, bytes);
	uint32_t tail_ds = ep_mlx5_build_signal(post, &tail, signal);

	return ep_mlx5_submit(post, want, q, ds, tail, tail_ds, false);
}

/* The signal alone; see above for what it promises. */
EP_DEV bool ep_mlx5_signal_add(struct ep_mlx5_post *post, const struct ep_mlx5_signal &signal,
			       bool more)
{
	struct ep_mlx5_wqe tail;
	uint32_t tail_ds = ep_mlx5_build_signal(post, &tail, signal);

	return ep_mlx5_submit(post, false, tail, 0, tail, tail_ds, more);
}

/*
 * One lane alone, of a queue in exclusive form that no warp holds meanwhile: writes `value` to an aligned
 * word of 8 bytes, if there is room for that now. It waits for nothing. A wait that ended because the
 * kernel's work is aborted has left the queue as it was, and words may still be posted.
 */
EP_DEV bool ep_mlx5_put_word(struct ep_mlx5_qp *qp, enum ep_mlx5_region_id id, uint64_t offset,
			     uint64_t value)
{
	struct ep_mlx5_post p = ep_mlx5_post_load(qp, false, NULL, 0);
	struct ep_mlx5_mem to = ep_mlx5_remote(&p, id, offset);
	const uint32_t data[2] = { (uint32_t)value, (uint32_t)(value >> 32) };
	uint32_t status = p.status, ds;
	struct ep_mlx5_wqe q;

	if (status == EP_MLX5_ERR_ABORTED) {
		status = EP_MLX5_OK;
	}
	if (!status && p.end >= p.done + p.depth) {
		p.done = ep_mlx5_poll(&p, EP_WAIT_RDMA_SLOT, &status);
	}
	if (status || p.end >= p.done + p.depth) {
		return false;
	}
	ds = ep_mlx5_build_inline(&q, 0, p.qpn, 0, to, data, 8);
	ep_mlx5_store(&p, p.end, q, ds, true);
	ep_mlx5_publish_alone(&p, p.end + 1, false, true);
	return true;
}

/*
 * Waits until everything that this warp has posted (exclusive form: that was ever posted to the
 * queue) has completed. Then local memory may be written again, what was fetched can be read by all
 * lanes, and the data has arrived at the peer's NIC, which acknowledged it; that the peer's GPU can
 * see it is shown by a signal only. Also the place where errors of the connection show up.
 */
EP_DEV bool ep_mlx5_quiet(struct ep_mlx5_post *post)
{
	if (post->unsignaled) {
		struct ep_mlx5_wqe q;
		uint32_t ds = ep_mlx5_build_nop(&q, 0, post->qpn, 0);

		ep_mlx5_submit(post, false, q, 0, q, ds, false);
	}
	return ep_mlx5_wait(post, post->end, EP_MLX5_ERR_COMPLETION, EP_WAIT_RDMA_COMPLETION);
}

/*
 * ep_mlx5_quiet() of n queues, exclusive form, that have until `timeout_ns` after `start_ns`
 * together, and each at least a millisecond.
 */
EP_DEV bool ep_mlx5_quiet_all(struct ep_mlx5_qp *qps, uint32_t n, uint64_t start_ns,
			      uint64_t timeout_ns)
{
	bool ok = true;

	for (uint32_t q = 0; q < n; q++) {
		uint64_t gone = ep_time_ns() - start_ns;
		uint64_t left = gone + 1000000 < timeout_ns ? timeout_ns - gone : 1000000;
		struct ep_mlx5_post p =
			ep_mlx5_open(qps + q, false, NULL, ep_shfl_u64(EP_FULL_MASK, left, 0));

		ok &= ep_mlx5_quiet(&p);
	}
	return ok;
}

#endif
