/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers in shared memory, which count arrivals of warps and bytes of bulk loads. */
#include "exec/bulk.h"

#define VC_MBAR_MAGIC 0x6d626172u /* upper half of a live barrier; the lower one is its index */

void vc_mbar_settle(struct vc_mbar *m)
{
	if (m->pending || m->loads) {
		return;
	}
	m->phase++;
	m->pending = m->nwarps;
	m->issued = m->announced = m->polls = m->arrived = m->late = 0;
	m->acquired[m->phase & 1] = false;
}

struct vc_mbar *vc_mbar_find(struct vc_block *block, struct vc_fiber *self, struct ep_mbar *bar,
			     const char *what)
{
	struct vc_bulk *bulk = block->bulk;
	uint64_t state = *(volatile vc_word *)bar;
	uint32_t index = (uint32_t)state;

	VC_HAS_READ(bar, sizeof(*bar));
	if (!bulk || !bulk->used || state >> 32 != VC_MBAR_MAGIC || index >= bulk->nmbars ||
	    bulk->mbar[index].bar != bar) {
		vc_illegal(block, self, "%s of %p, which is no barrier: ep_mbar_init() makes one",
			   what, (void *)bar);
	}
	if (bulk->mbar[index].unfenced) {
		vc_illegal(block, self,
			   "%s of the barrier at %p, which warp %u has made without "
			   "ep_mbar_fence_init() behind it",
			   what, (void *)bar, bulk->mbar[index].unfenced - 1);
	}
	return &bulk->mbar[index];
}

void vc_mbar_init(struct vc_block *block, struct vc_fiber *self, const struct ep_simt_bulk *call)
{
	struct vc_bulk *bulk = block->bulk;
	uint32_t index = 0;

	if (!call->n || call->n > block->nwarps || (uintptr_t)call->bar % sizeof(*call->bar)) {
		vc_illegal(block, self,
			   "a barrier at %p for %u arrivals: it lies at a multiple of 8, and takes "
			   "1 to %u, as the block has warps",
			   (void *)call->bar, call->n, block->nwarps);
	}
	for (uint32_t i = 0; i < bulk->nmbars; i++) {
		if (bulk->mbar[i].bar == call->bar) {
			vc_illegal(
				block, self,
				"ep_mbar_init() of %p, which is a barrier: ep_mbar_inval() first",
				(void *)call->bar);
		}
	}
	while (index < bulk->nmbars && bulk->mbar[index].bar) {
		index++;
	}
	if (index == VC_MBARS) {
		vc_illegal(block, self, "more than %u barriers in a block", VC_MBARS);
	}
	bulk->nmbars += index == bulk->nmbars;
	bulk->mbar[index] = (struct vc_mbar){ .bar = call->bar,
					      .nwarps = call->n,
					      .pending = call->n,
					      .unfenced = self->pub.warp + 1 };
	VC_HAS_WRITTEN(call->bar, sizeof(*call->bar));
	*(volatile vc_word *)call->bar = (uint64_t)VC_MBAR_MAGIC << 32 | index;
}

void vc_mbar_inval(struct vc_block *block, struct vc_fiber *self, struct vc_mbar *m)
{
	if (m->loads) {
		vc_illegal(block, self, "ep_mbar_inval() of %p, for which %u loads are under way",
			   (void *)m->bar, m->loads);
	}
	VC_HAS_WRITTEN(m->bar, sizeof(*m->bar));
	*(volatile vc_word *)m->bar = VC_POISON;
	m->bar = NULL;
}

void vc_mbar_fence_init(struct vc_block *block, struct vc_fiber *self)
{
	for (uint32_t i = 0; i < block->bulk->nmbars; i++) {
		struct vc_mbar *m = &block->bulk->mbar[i];

		m->unfenced = m->unfenced == self->pub.warp + 1 ? 0 : m->unfenced;
	}
}

void vc_mbar_arrive(struct vc_block *block, struct vc_fiber *self, struct vc_mbar *m,
		    uint32_t bytes)
{
	if (!m->pending) {
		vc_illegal(block, self, "more than %u arrivals in a phase of the barrier at %p",
			   m->nwarps, (void *)m->bar);
	}
	m->announced += bytes;
	m->pending--;
	m->arrived |= 1u << self->pub.warp;
	m->acquired[m->phase & 1] |= block->warp[self->pub.warp].acquired != 0;
	VC_RELEASE(&m->key[m->phase & 1]);
	if (!m->pending && m->announced != m->issued) {
		vc_illegal(block, self,
			   "a phase of the barrier at %p would never end: its warps have announced "
			   "%u bytes, and its loads bring %u",
			   (void *)m->bar, m->announced, m->issued);
	}
	vc_mbar_settle(m);
	vc_block_progress(block);
}

/*
 * All warps have arrived, somebody polls: its loads land at the second look, or at any with a seed, unless
 * they are late.
 */
static void vc_mbar_polled(struct vc_block *block, struct vc_mbar *m)
{
	struct vc_bulk *bulk = block->bulk;
	uint32_t phase = m->phase;

	if (m->pending || (!m->polls++ && !ep_simt_perturbed) || m->late) {
		return;
	}
	for (uint32_t i = bulk->ncopies; i-- > 0 && m->phase == phase;) {
		if (bulk->copy[i].bar == m && !(ep_simt_perturbed && vc_random(block) & 1)) {
			vc_load_land(block, &bulk->copy[i]);
		}
	}
}

bool ep_simt_mbar_over(struct ep_mbar *bar, uint32_t parity)
{
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;
	struct vc_block *block = &vc_self->block;
	struct vc_mbar *m = vc_mbar_find(block, self, bar, "ep_mbar_try_wait()");

	if (parity > 1) {
		vc_illegal(block, self, "ep_mbar_try_wait() for parity %u: it is 0 or 1", parity);
	}
	if ((m->phase & 1) == parity) {
		vc_mbar_polled(block, m);
	}
	if ((m->phase & 1) == parity) {
		return false;
	}
	VC_ACQUIRE(&m->key[parity]);
	if (m->acquired[parity]) {
		block->warp[self->pub.warp].acquired = EP_FULL_MASK;
	}
	return true;
}
