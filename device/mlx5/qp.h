/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Posting to a send queue, waiting for its completions, and one-sided operations on the peer's
 * memory. One warp owns a queue for as long as it holds a `struct ep_mlx5_post`, equal in all
 * lanes: no atomics, one fence per doorbell. Another warp may own it in another kernel, or behind a
 * barrier that both join. Every function without "One lane" above it is called by all lanes of the
 * warp together, with the same arguments except where it has "per lane".
 *
 * What the NIC may observe:
 *   - WQEs are handed over in index order without gaps. The doorbell follows all WQEs that it
 *     covers and all memory that the warp had written before posting (payload, too).
 *   - The doorbell record is written after the WQEs it covers and before the doorbell; neither ever
 *     goes back.
 *   - No slot is written before a completion has shown that the NIC is done with its former WQE.
 *
 * Failure is sticky: the first error of a queue stays in qp->error, is recorded for the host, and
 * ends every later use and every wait. Indices that were reserved by then are never posted; the
 * host makes the queue anew.
 */
#ifndef EP_DEVICE_MLX5_QP_H
#define EP_DEVICE_MLX5_QP_H

#include "device/mlx5/wqe.h"
#include "device/simt/simt.h"

struct ep_mlx5_post {
	struct ep_mlx5_qp *qp;
	struct ep_mlx5_wqe *sq;
	const uint32_t *aborted; /* device memory; not 0: waits end. May be NULL. */
	uint64_t timeout_ns;     /* of each wait */
	uint32_t qpn, depth;
	uint32_t status; /* enum ep_mlx5_status */
	bool unsignaled; /* the last WQE asks for no completion */
	uint64_t end;    /* behind the last WQE */
	uint64_t rung;   /* WQEs below were handed over */
	uint64_t done;   /* WQEs below have completed */
};

EP_DEV const uint32_t *cqe_word(const struct ep_mlx5_qp *qp, uint32_t at)
{
	return (const uint32_t *)((const unsigned char *)qp->cqe + at);
}

/*
 * One lane. Makes `status` the queue's error unless it has one, and records it. Returns the error
 * that the queue has now. `word` is the completion's last word, if it was the reason.
 */
EP_DEV uint32_t mlx5_fail(const struct ep_mlx5_post *post, uint32_t status, enum ep_wait_site site,
			  uint32_t word)
{
	struct ep_mlx5_qp *qp = post->qp;
	struct ep_mlx5_error *r = qp->record;
	uint32_t first = ep_atomic_cas_gpu_u32(&qp->error, EP_MLX5_OK, status);

	if (first || status == EP_MLX5_ERR_ABORTED) {
		return first ? first : status;
	}
	r->status = status;
	r->peer = qp->peer;
	r->nic = qp->nic;
	r->qpn = qp->qpn;
	r->site = site;
	r->reserved = ep_ld_relaxed_gpu_u64(&qp->reserved);
	r->rung = ep_ld_relaxed_gpu_u64(&qp->rung);
	r->done = ep_ld_relaxed_gpu_u64(&qp->done);
	r->waited_ns = 0;
	if (status == EP_MLX5_ERR_CQE) {
		uint32_t e = ep_ld_relaxed_sys_u32(cqe_word(qp, EP_MLX5_CQE_ERROR_AT));

		r->hw_syndrome = (uint8_t)e;
		r->hw_syndrome_type = (uint8_t)(e >> 8);
		r->vendor_syndrome = (uint8_t)(e >> 16);
		r->syndrome = (uint8_t)(e >> 24);
		r->cqe_opcode = (uint8_t)ep_mlx5_cqe_opcode(word);
		r->wqe_counter = (uint16_t)ep_mlx5_cqe_counter(word);
	} else if (status != EP_MLX5_ERR_STOPPED) {
		r->waited_ns = post->timeout_ns;
	}
	ep_st_release_sys_u32(&r->valid, 1);
	return status;
}

/* One lane. Called between two polls: why the wait must end, or EP_MLX5_OK. */
EP_DEV uint32_t give_up(const struct ep_mlx5_post *post, struct ep_spin *spin, uint32_t poll,
			uint32_t timeout_status, enum ep_wait_site site)
{
	uint32_t status = ep_ld_relaxed_gpu_u32(&post->qp->error);

	if (status) {
		return status;
	}
	if (post->aborted && ep_ld_relaxed_gpu_u32(post->aborted)) {
		return mlx5_fail(post, EP_MLX5_ERR_ABORTED, site, 0);
	}
	/* A read of host memory costs as much as many polls. */
	if ((poll & 63) == 63 && ep_ld_relaxed_sys_u32(post->qp->stop)) {
		return mlx5_fail(post, EP_MLX5_ERR_STOPPED, site, 0);
	}
	if (ep_spin_expired(spin, post->timeout_ns, site, post->qp->peer)) {
		return mlx5_fail(post, timeout_status, site, 0);
	}
	return EP_MLX5_OK;
}

/*
 * One lane. Looks at the completion once; returns the index below which all has completed, as far
 * as is known. What the NIC did before it wrote the CQE is visible to the lane afterwards.
 */
EP_DEV uint64_t ep_mlx5_poll(const struct ep_mlx5_post *post, enum ep_wait_site site,
			     uint32_t *status)
{
	struct ep_mlx5_qp *qp = post->qp;
	uint64_t known = post->done;
	uint32_t word = ep_ld_acquire_sys_u32(cqe_word(qp, EP_MLX5_CQE_DONE_AT));
	uint64_t done;

	if (ep_mlx5_cqe_opcode(word) == EP_MLX5_CQE_INVALID) {
		return known;
	}
	if (ep_mlx5_cqe_opcode(word) != EP_MLX5_CQE_REQ) {
		*status = mlx5_fail(post, EP_MLX5_ERR_CQE, site, word);
		return known;
	}
	done = ep_mlx5_cqe_done(post->rung, post->depth, ep_mlx5_cqe_counter(word));
	if (done <= known) {
		return known;
	}
	ep_st_relaxed_gpu_u64(&qp->done, done);
	return done;
}

/*
 * Waits until everything below `index` has completed. The last WQE below `index`, or a later one,
 * must be signaled, and rung. True: what the NIC did for those WQEs is visible to all
 * lanes, and their slots and local memory may be written. False: see post->status.
 */
EP_DEV bool ep_mlx5_wait(struct ep_mlx5_post *post, uint64_t index, uint32_t timeout_status,
			 enum ep_wait_site site)
{
	uint64_t done = post->done;
	uint32_t status = post->status;

	if (done >= index || status) {
		return !status;
	}
	if (ep_lane() == 0) {
		struct ep_spin spin = ep_spin_start();

		for (uint32_t i = 0; !status; i++) {
			done = ep_mlx5_poll(post, site, &status);
			if (done >= index || status) {
				break;
			}
			status = give_up(post, &spin, i, timeout_status, site);
		}
	}
	post->done = ep_shfl_u64(EP_FULL_MASK, done, 0);
	post->status = ep_shfl_u32(EP_FULL_MASK, status, 0);
	ep_warp_sync(EP_FULL_MASK);
	return !post->status;
}

/*
 * For a queue that is out of use: waits until the NIC reads nothing any more of what was posted
 * below `index`, since that has completed or the queue pair has ended. An error that the NIC has
 * reported means that; one that a wait came to by itself does not, until the host, which gets a
 * record of it, has ended the queue pair: what was posted is flushed then, which reports an error.
 * False: not within that time, or the kernel's work is aborted.
 */
EP_DEV bool ep_mlx5_wait_end(const struct ep_mlx5_post *post, uint64_t index, uint64_t timeout_ns)
{
	uint64_t rung = ep_ld_relaxed_gpu_u64(&post->qp->rung);
	bool over;

	index = index < rung ? index : rung; /* the NIC never learns of the rest */
	over = post->done >= index;
	if (ep_lane() == 0 && !over) {
		struct ep_spin spin = ep_spin_start();

		while (!ep_spin_expired(&spin, timeout_ns, EP_WAIT_RDMA_COMPLETION,
					post->qp->peer) &&
		       !(post->aborted && ep_ld_relaxed_gpu_u32(post->aborted))) {
			uint32_t word =
				ep_ld_acquire_sys_u32(cqe_word(post->qp, EP_MLX5_CQE_DONE_AT));
			uint32_t opcode = ep_mlx5_cqe_opcode(word);

			over = opcode != EP_MLX5_CQE_INVALID &&
			       (opcode != EP_MLX5_CQE_REQ ||
				ep_mlx5_cqe_done(rung, post->depth, ep_mlx5_cqe_counter(word)) >=
					index);
			if (over) {
				break;
			}
		}
	}
	over = ep_shfl_u32(EP_FULL_MASK, over, 0) != 0;
	ep_warp_sync(EP_FULL_MASK);
	return over;
}

/*
 * One lane, one at a time per queue. Hands everything below `next` over: rings the doorbell, or, in
 * EP_MLX5_HANDOVER_INDEX, rings nothing but stores the index, for a thread of the CPU that rings or
 * posts. "To ring" below means either.
 */
EP_DEV void ep_mlx5_doorbell(struct ep_mlx5_qp *qp, uint64_t next)
{
	if (qp->handover == EP_MLX5_HANDOVER_INDEX) {
		ep_release_fence_sys();
		ep_st_release_sys_u64(qp->db, next);
		return;
	}
	/* The NIC finds a GPU's memory as the GPU's L2 has it, so order within the GPU will do. */
	if (qp->in_host) {
		ep_release_fence_sys();
	} else {
		ep_release_fence_gpu();
	}
	ep_st_fenced_sys_u32(&qp->dbr->send, ep_mlx5_dbr_value(next));
	ep_release_fence_sys();
	ep_st_mmio_u64(qp->db, ep_mlx5_doorbell_value(next, qp->qpn));
}

/*
 * Waits until there is room for n more WQEs; n is 1..EP_MLX5_MAX_BATCH. post->status shows whether
 * there is.
 */
EP_DEV void mlx5_reserve(struct ep_mlx5_post *post, uint32_t n)
{
	if (post->end + n > post->done + post->depth) {
		ep_mlx5_wait(post, post->end + n - post->depth, EP_MLX5_ERR_SLOT,
			     EP_WAIT_RDMA_SLOT);
	}
}

/* One lane per WQE. Stores `ds` segments of a WQE that was built for index 0. */
EP_DEV void mlx5_store(const struct ep_mlx5_post *post, uint64_t index,
		       const struct ep_mlx5_wqe &built, uint32_t ds, bool signaled)
{
	struct ep_mlx5_wqe *slot = post->sq + (index & (post->depth - 1)), q = built;

	if (((index + 1) & (post->depth / 4 - 1)) == 0) {
		signaled = true;
	}
	ep_mlx5_build_place(&q, index, signaled ? EP_MLX5_CE_ALWAYS : 0);
	EP_UNROLL(4)
	for (uint32_t i = 0; i < EP_MLX5_WQEBB / EP_MLX5_SEGMENT; i++) {
		struct ep_vec16 v = { q.w[4 * i], q.w[4 * i + 1], q.w[4 * i + 2], q.w[4 * i + 3] };

		if (i < ds) {
			ep_st16(slot->w + 4 * i, v);
		}
	}
}

/* One lane. The WQEs below `end` are stored; `ring`: the NIC may have them now. */
EP_DEV void publish_lane(const struct ep_mlx5_post *post, uint64_t end, bool more, bool ring)
{
	struct ep_mlx5_qp *qp = post->qp;

	ep_st_relaxed_gpu_u64(&qp->reserved, end);
	if (more != post->unsignaled) {
		ep_st_relaxed_gpu_u32(&qp->unsignaled, more);
	}
	if (ring) {
		ep_st_relaxed_gpu_u64(&qp->rung, end);
		ep_mlx5_doorbell(qp, end);
	}
}

/* The WQEs [base, end) are stored; the NIC may have them. `more`: see ep_mlx5_submit(). */
EP_DEV void mlx5_publish(struct ep_mlx5_post *post, uint64_t base, uint64_t end, bool more)
{
	/* also if the last WQE of a quarter of the queue is among them */
	bool ring = !more || ((base ^ end) & ~(uint64_t)(post->depth / 4 - 1)) != 0;

	post->end = end;
	ep_warp_sync(EP_FULL_MASK); /* lane 0 releases the stores of all */
	if (ep_lane() == 0) {
		publish_lane(post, end, more, ring);
	}
	ep_warp_sync(EP_FULL_MASK); /* any lane may open the queue anew and must find the same */
	post->unsignaled = more;
	if (ring) {
		post->rung = end;
	}
}

/* The queue as a lane finds it. */
EP_DEV struct ep_mlx5_post post_load(struct ep_mlx5_qp *qp, const uint32_t *aborted,
				     uint64_t timeout_ns)
{
	struct ep_mlx5_post p;

	p.qp = qp;
	p.sq = qp->sq;
	p.aborted = aborted;
	p.timeout_ns = timeout_ns;
	p.qpn = qp->qpn;
	p.depth = qp->depth;
	p.status = ep_ld_relaxed_gpu_u32(&qp->error);
	p.unsignaled = ep_ld_relaxed_gpu_u32(&qp->unsignaled);
	p.end = ep_ld_relaxed_gpu_u64(&qp->reserved);
	p.rung = ep_ld_relaxed_gpu_u64(&qp->rung);
	p.done = ep_ld_acquire_gpu_u64(&qp->done);
	return p;
}

/* Begins the use of a queue by a warp. */
EP_DEV struct ep_mlx5_post ep_mlx5_open(struct ep_mlx5_qp *qp, const uint32_t *aborted,
					uint64_t timeout_ns)
{
	struct ep_mlx5_post p = post_load(qp, aborted, timeout_ns);

	/* The lanes may have read different values: any of them is true, but it must be one. */
	p.status = ep_shfl_u32(EP_FULL_MASK, p.status, 0);
	p.done = ep_shfl_u64(EP_FULL_MASK, p.done, 0);
	ep_warp_sync(EP_FULL_MASK);
	return p;
}

/*
 * Posts, in lane order, one WQE per lane that `want`s (wqe and ds per lane, built for index 0
 * without completion), and then the tail, if tail_ds is not 0 (equal in all lanes). One doorbell.
 *
 * `more`: another call by this warp follows soon, which will ring for these WQEs as well. They may
 * stay unknown to the NIC until a call without `more` or ep_mlx5_quiet(); one of
 * these must come before the warp waits for anything that a peer does, and before the end of the
 * kernel.
 *
 * False: nothing, or not all of it, was posted, and the queue is out of use; see post->status.
 */
EP_DEV bool ep_mlx5_submit(struct ep_mlx5_post *post, bool want, const struct ep_mlx5_wqe &wqe,
			   uint32_t ds, const struct ep_mlx5_wqe &tail, uint32_t tail_ds, bool more)
{
	uint32_t lanes = ep_ballot(EP_FULL_MASK, want);
	uint32_t n = ep_popc(lanes) + (tail_ds != 0);
	uint64_t base = post->end, mine;

	if (!n || post->status) {
		return !post->status;
	}
	mlx5_reserve(post, n);
	if (post->status) {
		return false;
	}
	mine = base + ep_popc(lanes & ((1u << ep_lane()) - 1));
	if (want) {
		mlx5_store(post, mine, wqe, ds, !more && mine + 1 == base + n);
	}
	if (tail_ds && ep_lane() == 0) {
		mlx5_store(post, base + n - 1, tail, tail_ds, !more);
	}
	mlx5_publish(post, base, base + n, more);
	return !post->status;
}

/*
 * ---- one-sided operations of a warp on its peer's memory ----
 *
 * All lanes call; arguments marked "per lane"
 * count in the lanes that `want`. They return as soon as the operation is posted; false: the queue
 * is out of use, post->status has the reason, and nobody knows what the peer has seen.
 *
 * Common to all: an operation begins after the memory that the lanes of this warp had written when
 * they called; what other warps wrote needs a barrier with them first. Local memory belongs to the
 * NIC until ep_mlx5_quiet() has returned. Operations on one queue complete locally in the order
 * posted. When and in which order the peer sees them stands above each; "arrives" means that a
 * peer's acquire load may see it.
 */

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
 * an atomic of the difference: the peer sees no difference. Otherwise the slot is a sum of what
 * anybody adds, and always an atomic.
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

EP_DEV uint32_t build_signal(const struct ep_mlx5_post *post, struct ep_mlx5_wqe *wqe,
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
	uint32_t tail_ds = build_signal(post, &tail, signal);

	return ep_mlx5_submit(post, want, q, ds, tail, tail_ds, false);
}

/* The signal alone; see above for what it promises. */
EP_DEV bool ep_mlx5_signal_add(struct ep_mlx5_post *post, const struct ep_mlx5_signal &signal,
			       bool more)
{
	struct ep_mlx5_wqe tail;
	uint32_t tail_ds = build_signal(post, &tail, signal);

	return ep_mlx5_submit(post, false, tail, 0, tail, tail_ds, more);
}

/* One lane. Stores segment i of a built WQE. */
EP_DEV void store_segment(struct ep_mlx5_wqe *slot, const struct ep_mlx5_wqe &q, uint32_t i)
{
	struct ep_vec16 v = { q.w[4 * i], q.w[4 * i + 1], q.w[4 * i + 2], q.w[4 * i + 3] };

	ep_st16(slot->w + 4 * i, v);
}

/*
 * One lane alone, of a queue that no warp holds meanwhile: writes `value` to an aligned word of 8
 * bytes, if there is room for that now. It waits for nothing. A wait that ended because the
 * kernel's work is aborted has left the queue as it was, and words may still be posted. (It stands
 * in waits, which keep many registers: each segment is stored before the next one is made.)
 */
EP_DEV bool ep_mlx5_put_word(struct ep_mlx5_qp *qp, enum ep_mlx5_region_id id, uint64_t offset,
			     uint64_t value)
{
	uint64_t at = ep_ld_relaxed_gpu_u64(&qp->reserved);
	uint32_t status = ep_ld_relaxed_gpu_u32(&qp->error);
	struct ep_mlx5_wqe q, *slot = qp->sq + (at & (qp->depth - 1));

	if (status == EP_MLX5_ERR_ABORTED) {
		status = EP_MLX5_OK;
	}
	if (!status && at >= ep_ld_acquire_gpu_u64(&qp->done) + qp->depth) {
		struct ep_mlx5_post p = post_load(qp, NULL, 0);

		if (at >= ep_mlx5_poll(&p, EP_WAIT_RDMA_SLOT, &status) + qp->depth) {
			return false;
		}
	}
	if (status) {
		return false;
	}
	ep_mlx5_build_ctrl(&q, at, EP_MLX5_OP_WRITE, qp->qpn, 3, EP_MLX5_CE_ALWAYS);
	store_segment(slot, q, 0);
	ep_mlx5_build_raddr(&q, (struct ep_mlx5_mem){ qp->remote[id].addr + offset,
						      qp->remote[id].rkey });
	store_segment(slot, q, 1);
	ep_mlx5_build_word(&q, 8, value);
	store_segment(slot, q, 2);
	ep_st_relaxed_gpu_u64(&qp->reserved, at + 1);
	ep_st_relaxed_gpu_u32(&qp->unsignaled, 0);
	ep_st_relaxed_gpu_u64(&qp->rung, at + 1);
	ep_mlx5_doorbell(qp, at + 1);
	return true;
}

/*
 * Waits until everything that was ever posted to the queue has completed. Then local memory may be
 * written again, what was fetched can be read by all lanes, and the data has arrived at the peer's
 * NIC, which acknowledged it; that the peer's GPU can see it is shown by a signal only. Also the
 * place where errors of the connection show up.
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
 * ep_mlx5_quiet() of n queues that have until `timeout_ns` after `start_ns`
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
			ep_mlx5_open(qps + q, NULL, ep_shfl_u64(EP_FULL_MASK, left, 0));

		ok &= ep_mlx5_quiet(&p);
	}
	return ok;
}

#endif
