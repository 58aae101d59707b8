/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Posting to a send queue, and waiting for its completions. Every function without "One lane" above
 * it is called by all lanes of a warp together, with the same arguments except where it has "per
 * lane"; `struct ep_mlx5_post` is the warp's hold on the queue, equal in all lanes.
 *
 * Two forms. Exclusive: one warp owns the queue for as long as it holds the struct; no atomics, one
 * fence per doorbell. Shared: any number of warps, blocks and kernels post to the queue at once. A
 * queue may change its form between kernels, or across a barrier that all its users join.
 *
 * What the NIC may observe, in both forms:
 *   - WQEs are handed over in index order without gaps. Whoever rings for index x has acquired
 *     `ready` >= x, or written everything below x; so the doorbell follows all those WQEs and all
 *     memory that their posters' warps had written before posting (payload, too).
 *   - The doorbell record is written after the WQEs it covers and before the doorbell; neither ever
 *     goes back.
 *   - No slot is written before a completion has shown that the NIC is done with its former WQE.
 *
 * Why the shared form cannot lock up: the first poster without room, at index W, waits for what
 * lies below W + n - depth. A batch is at most 3/4 of the queue, so that is at most W - depth / 4,
 * and the last multiple of depth / 4 below W has been rung (crossing one always rings) and reports
 * its completion (the WQE before one is always signaled).
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
	bool shared;
	bool unsignaled; /* exclusive: the last WQE asks for no completion */
	uint64_t end;    /* behind our last WQE; exclusive: behind the last WQE */
	uint64_t rung;   /* exclusive: WQEs below were handed over */
	uint64_t done;   /* WQEs below have completed */
};

EP_DEV const uint32_t *ep_mlx5_cqe_word(const struct ep_mlx5_qp *qp, uint32_t at)
{
	return (const uint32_t *)((const unsigned char *)qp->cqe + at);
}

/*
 * One lane. Makes `status` the queue's error unless it has one, and records it. Returns the error
 * that the queue has now. `word` is the completion's last word, if it was the reason.
 */
EP_DEV uint32_t ep_mlx5_fail(const struct ep_mlx5_post *post, uint32_t status,
			     enum ep_wait_site site, uint32_t word)
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
		uint32_t e = ep_ld_relaxed_sys_u32(ep_mlx5_cqe_word(qp, EP_MLX5_CQE_ERROR_AT));

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
EP_DEV uint32_t ep_mlx5_give_up(const struct ep_mlx5_post *post, struct ep_spin *spin,
				uint32_t poll, uint32_t timeout_status, enum ep_wait_site site)
{
	uint32_t status = ep_ld_relaxed_gpu_u32(&post->qp->error);

	if (status) {
		return status;
	}
	if (post->aborted && ep_ld_relaxed_gpu_u32(post->aborted)) {
		return ep_mlx5_fail(post, EP_MLX5_ERR_ABORTED, site, 0);
	}
	/* A read of host memory costs as much as many polls. */
	if ((poll & 63) == 63 && ep_ld_relaxed_sys_u32(post->qp->stop)) {
		return ep_mlx5_fail(post, EP_MLX5_ERR_STOPPED, site, 0);
	}
	if (ep_spin_expired(spin, post->timeout_ns, site, post->qp->peer)) {
		return ep_mlx5_fail(post, timeout_status, site, 0);
	}
	return EP_MLX5_OK;
}

/*
 * One lane. Looks at the completion once; returns the index below which all has completed, as far
 * as is known. `rung` must be read before the CQE (ep_mlx5_cqe_done()). What the NIC did before it
 * wrote the CQE is visible to the lane afterwards.
 */
EP_DEV uint64_t ep_mlx5_poll(const struct ep_mlx5_post *post, enum ep_wait_site site,
			     uint32_t *status)
{
	struct ep_mlx5_qp *qp = post->qp;
	uint64_t rung = post->shared ? ep_ld_acquire_gpu_u64(&qp->rung) : post->rung;
	uint64_t known = post->shared ? ep_ld_acquire_gpu_u64(&qp->done) : post->done;
	uint32_t word = ep_ld_acquire_sys_u32(ep_mlx5_cqe_word(qp, EP_MLX5_CQE_DONE_AT));
	uint64_t done;

	if (ep_mlx5_cqe_opcode(word) == EP_MLX5_CQE_INVALID) {
		return known;
	}
	if (ep_mlx5_cqe_opcode(word) != EP_MLX5_CQE_REQ) {
		*status = ep_mlx5_fail(post, EP_MLX5_ERR_CQE, site, word);
		return known;
	}
	done = ep_mlx5_cqe_done(rung, post->depth, ep_mlx5_cqe_counter(word));
	if (done <= known) {
		return known;
	}
	if (post->shared) {
		ep_atomic_max_release_gpu_u64(&qp->done, done);
	} else {
		ep_st_relaxed_gpu_u64(&qp->done, done);
	}
	return done;
}

/*
 * Waits until everything below `index` has completed. The last WQE below `index`, or a later one,
 * must be signaled, and rung by somebody. True: what the NIC did for those WQEs is visible to all
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
			status = ep_mlx5_give_up(post, &spin, i, timeout_status, site);
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
 * reported means that; one that a wait came to by itself does not, until the host, which gets a record of
 * it, has ended the queue pair: what was posted is flushed then, which reports an error. False: not
 * within that time, or the kernel's work is aborted.
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
			uint32_t word = ep_ld_acquire_sys_u32(
				ep_mlx5_cqe_word(post->qp, EP_MLX5_CQE_DONE_AT));
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

/* One lane. Rings for whatever is ready. */
EP_DEV uint32_t ep_mlx5_ring_shared(const struct ep_mlx5_post *post)
{
	struct ep_mlx5_qp *qp = post->qp;
	struct ep_spin spin = ep_spin_start();
	uint64_t ready;

	for (uint32_t i = 0; ep_atomic_cas_acquire_gpu_u32(&qp->lock, 0, 1); i++) {
		uint32_t status =
			ep_mlx5_give_up(post, &spin, i, EP_MLX5_ERR_LOCK, EP_WAIT_RDMA_SLOT);

		if (status) {
			return status;
		}
	}
	ready = ep_ld_acquire_gpu_u64(&qp->ready);
	if (ready > ep_ld_relaxed_gpu_u64(&qp->rung)) {
		ep_st_release_gpu_u64(&qp->rung, ready);
		ep_mlx5_doorbell(qp, ready);
	}
	ep_st_release_gpu_u32(&qp->lock, 0);
	return EP_MLX5_OK;
}

/*
 * One lane. [base, end) is written; waits until everything below is, too. Leaves the doorbell to
 * whoever has reserved later, since that one is bound to come here; `must_ring` does not.
 */
EP_DEV uint32_t ep_mlx5_publish_shared(const struct ep_mlx5_post *post, uint64_t base, uint64_t end,
				       bool must_ring)
{
	struct ep_mlx5_qp *qp = post->qp;
	struct ep_spin spin = ep_spin_start();

	for (uint32_t i = 0; ep_ld_acquire_gpu_u64(&qp->ready) != base; i++) {
		uint32_t status =
			ep_mlx5_give_up(post, &spin, i, EP_MLX5_ERR_TURN, EP_WAIT_RDMA_SLOT);

		if (status) {
			return status;
		}
	}
	ep_st_release_gpu_u64(&qp->ready, end);
	if (!must_ring && ep_ld_relaxed_gpu_u64(&qp->reserved) != end) {
		return EP_MLX5_OK;
	}
	return ep_mlx5_ring_shared(post);
}

/*
 * Takes n indices and waits until their slots are free; n is 1..EP_MLX5_MAX_BATCH. Returns the
 * first. post->status shows whether they may be used; if they may, they must be published.
 */
EP_DEV uint64_t ep_mlx5_reserve(struct ep_mlx5_post *post, uint32_t n)
{
	uint64_t base = post->end;

	if (post->shared) {
		if (ep_lane() == 0) {
			base = ep_atomic_add_gpu_u64(&post->qp->reserved, n);
		}
		base = ep_shfl_u64(EP_FULL_MASK, base, 0);
	}
	if (base + n > post->done + post->depth) {
		ep_mlx5_wait(post, base + n - post->depth, EP_MLX5_ERR_SLOT, EP_WAIT_RDMA_SLOT);
	}
	return base;
}

/* Whether [base, end) holds the last WQE of a quarter of the queue. */
EP_DEV bool ep_mlx5_crosses(const struct ep_mlx5_post *post, uint64_t base, uint64_t end)
{
	return ((base ^ end) & ~(uint64_t)(post->depth / 4 - 1)) != 0;
}

/* One lane per WQE. Stores `ds` segments of a WQE that was built for index 0. */
EP_DEV void ep_mlx5_store(const struct ep_mlx5_post *post, uint64_t index,
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

/* One lane. The WQEs below `end` are stored by this warp; `ring`: the NIC may have them now. */
EP_DEV void ep_mlx5_publish_alone(const struct ep_mlx5_post *post, uint64_t end, bool more,
				  bool ring)
{
	struct ep_mlx5_qp *qp = post->qp;

	ep_st_relaxed_gpu_u64(&qp->reserved, end);
	ep_st_relaxed_gpu_u64(&qp->ready, end);
	if (more != post->unsignaled) {
		ep_st_relaxed_gpu_u32(&qp->unsignaled, more);
	}
	if (ring) {
		ep_st_relaxed_gpu_u64(&qp->rung, end);
		ep_mlx5_doorbell(qp, end);
	}
}

/* The WQEs [base, end) are stored; the NIC may have them. `more`: see ep_mlx5_submit(). */
EP_DEV void ep_mlx5_publish(struct ep_mlx5_post *post, uint64_t base, uint64_t end, bool more)
{
	bool crosses = ep_mlx5_crosses(post, base, end);
	bool ring = !more || crosses;

	post->end = end;
	ep_warp_sync(EP_FULL_MASK); /* lane 0 releases the stores of all */
	if (post->shared) {
		uint32_t status = EP_MLX5_OK;

		if (ep_lane() == 0) {
			status = ep_mlx5_publish_shared(post, base, end, crosses);
		}
		post->status = ep_shfl_u32(EP_FULL_MASK, status, 0);
		return;
	}
	if (ep_lane() == 0) {
		ep_mlx5_publish_alone(post, end, more, ring);
	}
	ep_warp_sync(EP_FULL_MASK); /* any lane may open the queue anew and must find the same */
	post->unsignaled = more;
	if (ring) {
		post->rung = end;
	}
}

/* The queue as a lane finds it. */
EP_DEV struct ep_mlx5_post ep_mlx5_post_load(struct ep_mlx5_qp *qp, bool shared,
					     const uint32_t *aborted, uint64_t timeout_ns)
{
	struct ep_mlx5_post p;

	p.qp = qp;
	p.sq = qp->sq;
	p.aborted = aborted;
	p.timeout_ns = timeout_ns;
	p.qpn = qp->qpn;
	p.depth = qp->depth;
	p.status = ep_ld_relaxed_gpu_u32(&qp->error);
	p.shared = shared;
	p.unsignaled = !shared && ep_ld_relaxed_gpu_u32(&qp->unsignaled);
	p.end = shared ? 0 : ep_ld_relaxed_gpu_u64(&qp->reserved);
	p.rung = shared ? 0 : ep_ld_relaxed_gpu_u64(&qp->rung);
	p.done = ep_ld_acquire_gpu_u64(&qp->done);
	return p;
}

/* Begins the use of a queue by a warp. `shared` is best a constant. */
EP_DEV struct ep_mlx5_post ep_mlx5_open(struct ep_mlx5_qp *qp, bool shared, const uint32_t *aborted,
					uint64_t timeout_ns)
{
	struct ep_mlx5_post p = ep_mlx5_post_load(qp, shared, aborted, timeout_ns);

	/* The lanes may have read different values: any of them is true, but it must be one. */
	p.status = ep_shfl_u32(EP_FULL_MASK, p.status, 0);
	p.done = ep_shfl_u64(EP_FULL_MASK, p.done, 0);
	ep_warp_sync(EP_FULL_MASK);
	return p;
}

/*
 * Posts, in lane order, one WQE per lane that `want`s (wqe and ds per lane, built for index 0 without
 * completion), and then the tail, if tail_ds is not 0 (equal in all lanes). One reservation, one
 * doorbell.
 *
 * `more`: another call by this warp follows soon, which will ring for these WQEs as well. They may
 * stay unknown to the NIC until a call without `more` or ep_mlx5_quiet(); one of
 * these must come before the warp waits for anything that a peer does, and before the end of the
 * kernel. The shared form ignores it: other warps' messages might be held up as well.
 *
 * False: nothing, or not all of it, was posted, and the queue is out of use; see post->status.
 */
EP_DEV bool ep_mlx5_submit(struct ep_mlx5_post *post, bool want, const struct ep_mlx5_wqe &wqe,
			   uint32_t ds, const struct ep_mlx5_wqe &tail, uint32_t tail_ds, bool more)
{
	uint32_t lanes = ep_ballot(EP_FULL_MASK, want);
	uint32_t n = ep_popc(lanes) + (tail_ds != 0);
	uint64_t base, mine;

	if (!n || post->status) {
		return !post->status;
	}
	more = more && !post->shared;
	base = ep_mlx5_reserve(post, n);
	if (post->status) {
		return false;
	}
	mine = base + ep_popc(lanes & ((1u << ep_lane()) - 1));
	if (want) {
		ep_mlx5_store(post, mine, wqe, ds, !more && mine + 1 == base + n);
	}
	if (tail_ds && ep_lane() == 0) {
		ep_mlx5_store(post, base + n - 1, tail, tail_ds, !more);
	}
	ep_mlx5_publish(post, base, base + n, more);
	return !post->status;
}

#endif
