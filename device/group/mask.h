/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All rules of masks, and how a kernel reports a failure to the host: one record of each class, in
 * pinned memory. A mask is this rank's view of who takes part: a masked rank is neither waited for
 * nor sent to. Ranks need not agree; each publishes in its progress word to its peers whom it has
 * masked. doc/design/masks.md has an example of each rule.
 */
#ifndef EP_DEVICE_GROUP_MASK_H
#define EP_DEVICE_GROUP_MASK_H

#include "device/group/group_layout.h"
#include "device/simt/simt.h"

/* A kernel's own step; equal in all blocks and on all ranks. */
struct ep_op {
	uint32_t step;
	uint32_t epoch; /* step of the send half */
	uint32_t bank;
	uint32_t freed; /* step that freed the bank; 0: never used */
	uint32_t clean_round;
	/* why the half must not run: EP_CAUSE_UNSENT to EP_CAUSE_CLEANED; 0: it may */
	uint32_t fault;
	uint32_t is_combine; /* as ep_record.is_combine */
	uint64_t start_ns;   /* remote kernels: when the step began, less its wait for the bank */
};

EP_DEV bool ep_aborted(const struct ep_dev_group &g)
{
	return ep_ld_relaxed_gpu_u32(&g.state->aborted) != 0;
}

/* Every wait of the group's kernels on this rank ends from now on. */
EP_DEV void ep_abort(const struct ep_dev_group &g)
{
	ep_st_relaxed_gpu_u32(&g.state->aborted, 1);
}

/* The first failure of a class fills its record; the host reads it once `valid` is set. */
EP_DEV void ep_record_write(const struct ep_dev_group &g, uint32_t record_class,
			    const struct ep_record &record)
{
	if (ep_atomic_cas_gpu_u32(&g.state->record_lock[record_class], 0, 1) != 0) {
		return;
	}
	struct ep_record *out = &g.records[record_class];

	out->cause = record.cause;
	out->site = record.site;
	out->peer = record.peer;
	out->step = record.step;
	out->is_combine = record.is_combine;
	out->token = record.token;
	out->k = record.k;
	out->value = record.value;
	out->expected = record.expected;
	ep_st_release_sys_u32(&out->valid, 1);
}

/* A record about `peer` in the present step; the caller adds the rest. */
EP_DEV struct ep_record ep_record_make(const struct ep_op &op, uint32_t cause, uint32_t peer)
{
	struct ep_record r = {};

	r.cause = cause;
	r.peer = peer;
	r.step = op.step;
	r.is_combine = op.is_combine;
	return r;
}

/* Rank r's heap; NULL: r is remote. What most groups need lies in the kernel's arguments. */
EP_DEV unsigned char *ep_heap_of(const struct ep_dev_group &g, uint32_t r)
{
	return r < EP_GROUP_NEAR_RANKS ? g.heap[r] : g.all_heaps[r];
}

/* Is rank r reached by RDMA? */
EP_DEV bool ep_rank_remote(const struct ep_dev_group &g, uint32_t r)
{
	return !ep_heap_of(g, r);
}

/* Where peer r writes its progress word. */
EP_DEV const uint64_t *progress_at(const struct ep_dev_group &g, uint32_t r)
{
	return (const uint64_t *)(g.own + g.progress_off) + r;
}

EP_DEV uint64_t ep_progress_load(const struct ep_dev_group &g, uint32_t r)
{
	return ep_ld_retired_sys_u64(progress_at(g, r));
}

/* The step alone. */
EP_DEV uint32_t ep_progress_step(const struct ep_dev_group &g, uint32_t r)
{
	return ep_ld_retired_sys_u32((const uint32_t *)progress_at(g, r));
}

EP_DEV bool ep_mask_active(const struct ep_dev_group &g, uint32_t r)
{
	return !g.mask_enabled || ep_ld_relaxed_gpu_u32((const uint32_t *)g.mask + r) != 0;
}

/* The same for a warp: a mask may change while lanes look at it, so lane 0 decides for all. */
EP_DEV bool ep_mask_active_warp(const struct ep_dev_group &g, uint32_t r)
{
	return ep_shfl_u32(EP_FULL_MASK, ep_lane() == 0 && ep_mask_active(g, r), 0) != 0;
}

/*
 * `peer` has failed this rank at `site`: masks the peer, or, without masks or when the two ranks
 * can never go on together, aborts the group's operations here.
 */
EP_DEV_COLD void ep_mask_peer(const struct ep_dev_group &g, struct ep_op op, uint32_t cause,
			      enum ep_wait_site site, uint32_t peer, uint32_t value,
			      uint32_t expected)
{
	struct ep_record r = ep_record_make(op, cause, peer);
	bool masked = g.mask_enabled && cause != EP_CAUSE_MISMATCH && cause != EP_CAUSE_UNENDED;

	r.site = site;
	r.value = value;
	r.expected = expected;
	ep_record_write(g, masked ? EP_RECORD_MASKED : EP_RECORD_FATAL, r);
	if (masked) {
		ep_st_relaxed_gpu_u32(ep_mask_steps(g.mask, g.nranks) + peer, op.step);
		ep_st_release_gpu_u32((uint32_t *)g.mask + peer, 0);
		ep_st_relaxed_sys_u32(g.async_error, 1);
	} else {
		ep_abort(g);
	}
}

/*
 * Has peer r masked this rank, by its progress word `word`? Then r waits for this rank no more and
 * uses the banks without it. Two kinds of words do not count, because r wrote them before this rank
 * last took r in: words of an earlier round of MaskCleans, and the word that lay there when
 * MaskUpdate took r in. (Rounds show it, because the steps of ranks that exclude each other cannot
 * be compared.)
 */
EP_DEV bool ep_mask_by_peer(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r,
			    uint64_t word)
{
	uint32_t round = (uint32_t)(word >> 33);

	return word >> 32 & 1 && (int32_t)((round - op.clean_round) << 1) >= 0 &&
	       word != ep_mask_ignored(g.mask, g.nranks)[r];
}

/*
 * Has peer r excluded this rank, by its progress word: by masking it, or by taking more
 * steps than r could have taken together with this rank? Then r uses the bank for something else by
 * now, and nothing may be sent to it; it is masked here as well.
 */
EP_DEV bool ep_mask_excluded(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r,
			     uint64_t word)
{
	int32_t lead = (int32_t)((uint32_t)word - op.step);

	if (!word || (lead <= EP_GROUP_MAX_LEAD && !ep_mask_by_peer(g, op, r, word))) {
		return false; /* 0: r has written no word yet, in a new heap */
	}
	if (ep_mask_active(g, r)) {
		ep_mask_peer(g, op, EP_CAUSE_EXCLUDED, EP_WAIT_PROGRESS, r, lead, 0);
	}
	return true;
}

#endif
