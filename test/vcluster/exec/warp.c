/* SPDX-License-Identifier: Apache-2.0 */
/* Warp collectives: the lanes of a mask meet, the last one computes everybody's result. */
#include "exec/bulk.h"

/* What a shuffle returns that reads a lane outside the mask: undefined on a GPU, never right. */
#define VC_UNDEFINED 0xbadc0de5badc0de5ull

const char *vc_op_name(uint32_t op)
{
	static const char *const name[EP_SIMT_OPS] = {
		[EP_SIMT_SYNC] = "warp_sync", [EP_SIMT_BALLOT] = "ballot",
		[EP_SIMT_ANY] = "any",        [EP_SIMT_ALL] = "all",
		[EP_SIMT_SHFL] = "shfl",      [EP_SIMT_SHFL_XOR] = "shfl_xor",
		[EP_SIMT_MATCH] = "match",    [EP_SIMT_BULK] = "a function of bulk.h",
	};

	return op < EP_SIMT_OPS && name[op] ? name[op] : "?";
}

static uint64_t vc_shuffle(const struct vc_warp *warp, uint32_t mask, uint32_t lane)
{
	return mask >> lane & 1 ? warp->value[lane] : VC_UNDEFINED;
}

static uint64_t vc_match(const struct vc_warp *warp, uint32_t mask, uint32_t lane)
{
	uint32_t same = 0;

	for (uint32_t m = mask; m; m &= m - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(m);

		if (warp->value[i] == warp->value[lane]) {
			same |= 1u << i;
		}
	}
	return same;
}

static uint64_t vc_result(const struct vc_warp *warp, uint32_t op, uint32_t mask, uint32_t lane)
{
	uint32_t arg = warp->arg[lane];

	switch (op) {
	case EP_SIMT_SHFL:
		return vc_shuffle(warp, mask, arg % EP_WARP_SIZE);
	case EP_SIMT_SHFL_XOR:
		return (lane ^ arg) < EP_WARP_SIZE ? vc_shuffle(warp, mask, lane ^ arg)
						   : warp->value[lane];
	case EP_SIMT_MATCH:
		return vc_match(warp, mask, lane);
	default:
		return 0;
	}
}

/* The vote: a result that is the same for all lanes. */
static uint64_t vc_vote(const struct vc_warp *warp, uint32_t op, uint32_t mask)
{
	uint32_t ballot = 0;

	for (uint32_t m = mask; m; m &= m - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(m);

		ballot |= (uint32_t)(warp->value[i] != 0) << i;
	}
	return op == EP_SIMT_BALLOT ? ballot : op == EP_SIMT_ANY ? ballot != 0 : ballot == mask;
}

static void vc_results(struct vc_block *block, uint32_t index, uint32_t op, uint32_t mask)
{
	struct vc_warp *warp = &block->warp[index];
	struct vc_fiber *fiber = &block->worker->fiber[index * EP_WARP_SIZE];
	uint64_t vote = 0;

	if (op == EP_SIMT_SYNC || op == EP_SIMT_BULK) {
		return;
	}
	if (op <= EP_SIMT_ALL) {
		vote = vc_vote(warp, op, mask);
		for (uint32_t m = mask; m; m &= m - 1) {
			fiber[__builtin_ctz(m)].result = vote;
		}
		return;
	}
	for (uint32_t m = mask; m; m &= m - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(m);

		fiber[i].result = vc_result(warp, op, mask, i);
	}
}

static struct vc_group *vc_group_join(struct vc_block *block, struct vc_fiber *self, uint32_t op,
				      uint32_t mask)
{
	struct vc_warp *warp = &block->warp[self->pub.warp];
	struct vc_group *group = NULL;

	for (uint32_t i = 0; i < warp->ngroups && !group; i++) {
		group = warp->group[i].mask == mask ? &warp->group[i] : NULL;
	}
	if (!group) {
		group = &warp->group[warp->ngroups++];
		*group = (struct vc_group){ .mask = mask, .op = op, .calls = self->calls };
	}
	if (group->op != op) {
		vc_illegal(block, self, "calls %s with mask 0x%08x while lanes 0x%08x wait in %s",
			   vc_op_name(op), mask, group->arrived, vc_op_name(group->op));
	}
	/* Lanes of the mask may still be in other collectives, but not in one that needs this lane. */
	for (uint32_t i = 0; i < warp->ngroups; i++) {
		const struct vc_group *other = &warp->group[i];

		if (other != group && other->arrived & mask && other->mask >> self->pub.lane & 1) {
			vc_illegal(block, self,
				   "calls %s with mask 0x%08x while lanes 0x%08x of it wait for it "
				   "in %s with mask 0x%08x",
				   vc_op_name(op), mask, other->arrived & mask,
				   vc_op_name(other->op), other->mask);
		}
	}
	group->arrived |= 1u << self->pub.lane;
	group->calls = self->calls < group->calls ? self->calls : group->calls;
	return group;
}

/* Lanes that meet one that has polled have polled. */
static void vc_group_calls(struct vc_block *block, uint32_t index, const struct vc_group *group)
{
	struct vc_fiber *fiber = &block->worker->fiber[index * EP_WARP_SIZE];

	block->idle_polls += (uint32_t)__builtin_popcount(group->mask) - 1;

	for (uint32_t m = group->mask; m; m &= m - 1) {
		fiber[__builtin_ctz(m)].calls = group->calls;
	}
}

uint64_t ep_simt_collective(uint32_t op, uint32_t mask, uint64_t value, uint32_t arg)
{
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;
	struct vc_block *block = &vc_self->block;
	struct vc_warp *warp = &block->warp[self->pub.warp];
	uint32_t bit = 1u << self->pub.lane;
	bool orders = op == EP_SIMT_SYNC || op == EP_SIMT_BULK;
	struct vc_group *group;

	if (!(mask & bit)) {
		vc_illegal(block, self, "calls %s with mask 0x%08x, which does not name it",
			   vc_op_name(op), mask);
	}
	if (mask & ~warp->live) {
		vc_illegal(block, self, "calls %s with mask 0x%08x, but lanes 0x%08x have ended",
			   vc_op_name(op), mask, mask & ~warp->live);
	}
	/*
	 * A warp that polls may vote on what it saw. More than 8 collectives since a poll are progress,
	 * by this lane or by one that it meets in them: one lane may poll on behalf of a warp.
	 */
	if (++self->calls > 8) {
		self->calls = 8;
		vc_block_progress(block);
	}
	warp->value[self->pub.lane] = value;
	warp->arg[self->pub.lane] = arg;
	group = vc_group_join(block, self, op, mask);
	if (orders) {
		VC_RELEASE(&warp->group[0].mask);
	}
	if (group->arrived != mask) {
		vc_fiber_sleep(block, self, VC_FIBER_COLLECTIVE, op, mask);
	} else {
		vc_group_calls(block, self->pub.warp, group);
		*group = warp->group[--warp->ngroups];
		vc_results(block, self->pub.warp, op, mask);
		if (op == EP_SIMT_BULK) {
			VC_ACQUIRE(&warp->group[0].mask);
			vc_bulk_act(block, self);
			VC_RELEASE(&warp->group[0].mask);
		}
		if (mask != bit) {
			vc_lanes_wake(block, self->pub.warp, mask & ~bit);
		}
		if (ep_simt_perturbed) {
			ep_simt_perturb();
		}
	}
	if (orders) {
		VC_ACQUIRE(&warp->group[0].mask);
	}
	return self->result;
}

void ep_simt_unfenced(const void *p, uint32_t scope)
{
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;
	struct vc_block *block = &vc_self->block;

	if (!p) {
		vc_illegal(block, self,
			   "stores to a device's register without ep_release_fence_sys() behind "
			   "all that it has stored");
	}
	if (!(scope & EP_SIMT_FENCED_GPU)) {
		vc_illegal(block, self, "ep_st_fenced_sys_u32() without a fence before it");
	}
#ifndef VC_TSAN
	/* Not there: it takes a lock, which would order threads that nothing else orders. */
	if (!vc_device_address || !vc_device_address((uintptr_t)p, block->grid->device)) {
		vc_illegal(block, self,
			   "ep_st_fenced_sys_u32() to memory that is not this device's, behind "
			   "ep_release_fence_gpu()");
	}
#endif
}
