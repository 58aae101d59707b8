/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All rules of masks. A mask is this rank's view of who takes part: a masked rank is neither waited
 * for nor sent to. Ranks need not agree; each publishes in its progress word to its peers whom it has
 * masked. doc/design/masks.md has an example of each rule.
 */
#ifndef EP_DEVICE_GROUP_MASK_H
#define EP_DEVICE_GROUP_MASK_H

#include "device/group/group_record.h"

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
EP_DEV const uint64_t *ep_progress_at(const struct ep_dev_group &g, uint32_t r)
{
	return (const uint64_t *)(g.own + g.progress_off) + r;
}

EP_DEV uint64_t ep_progress_load(const struct ep_dev_group &g, uint32_t r)
{
	return ep_ld_retired_sys_u64(ep_progress_at(g, r));
}

/* The step alone. */
EP_DEV uint32_t ep_progress_step(const struct ep_dev_group &g, uint32_t r)
{
	return ep_ld_retired_sys_u32((const uint32_t *)ep_progress_at(g, r));
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
 * Has peer r masked this rank, by its progress word `word`? Then r waits for this rank no more
 * and uses the banks without it. Two kinds of words do not count, because r wrote them before this
 * rank last took r in: words of an earlier round of MaskCleans, and the word that lay there when
 * MaskUpdate took r in. (Rounds show it, because the steps of ranks that exclude each other cannot be
 * compared.)
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
