/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the kernels of dispatch and combine begin and end.
 *
 *     e = ep_ht_enter(c, is_combine)     the step; peers learn of it, and of this rank's form
 *     ...                                this rank's own memory may be loaded meanwhile
 *     ep_ht_begin(c, &e)                 all ranks have started this step, with the same form:
 *                                        false: one has not, and nothing may be done
 *     ...
 *     ep_ht_done_send(c, e.op)           windows: this rank is through with those of its peers,
 *     ep_ht_done_wait(c, e.op)           and all peers with its own
 *
 * All threads of all blocks make these calls. ep_ht_done_send() also when ep_ht_begin() said false:
 * it counts blocks.
 */
#ifndef EP_DEVICE_HT_STEP_H
#define EP_DEVICE_HT_STEP_H

#include "device/group/step.h"
#include "device/ht/blame.h"
#include "device/simt/bulk.h"

struct ep_ht_entry {
	struct ep_step_found found;
	struct ep_op op;
	uint32_t fault; /* why the operation cannot run: EP_CAUSE_UNROUTED or _SHORT; 0: it can */
};

/* Where rank r's form word of the step lies in a heap. */
EP_DEV uint64_t *ep_ht_form_at(const struct ep_ht_common &c, const struct ep_op &op,
			       unsigned char *heap, uint32_t r)
{
	return (uint64_t *)(heap + c.areas.form_off) + (op.epoch & 1) * c.g.nranks + r;
}

EP_DEV uint64_t *ep_ht_done_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r)
{
	return (uint64_t *)(heap + c.areas.done_off) + r;
}

/* A form word says, as a progress word, that the rank's earlier kernels are over. One warp. */
EP_DEV void ep_ht_form_send(const struct ep_ht_common &c, const struct ep_op &op)
{
	for (uint32_t r = ep_lane(); r < c.g.nranks; r += EP_WARP_SIZE) {
		ep_st_retired_sys_u64(ep_ht_form_at(c, op, ep_heap_of(c.g, r), c.g.rank),
				      (uint64_t)op.epoch << 32 | c.form);
	}
}

/* Rows that a tensor with received rows must have. */
EP_DEV uint32_t ep_ht_needed(const struct ep_ht_common &c)
{
	return c.layout == EP_HT_FLAT ? c.h.head->rows : c.h.head->places;
}

/* Does handle memory fit the operation? */
EP_DEV uint32_t ep_ht_fault(const struct ep_ht_common &c)
{
	const struct ep_ht_head *head = c.h.head;

	if (head->stamp != c.stamp || head->num_tokens != c.num_tokens) {
		return EP_CAUSE_UNROUTED;
	}
	return c.given_rows < ep_ht_needed(c) ? EP_CAUSE_SHORT : 0;
}

EP_DEV struct ep_ht_entry ep_ht_enter(const struct ep_ht_common &c, bool is_combine)
{
	struct ep_ht_entry e;

	e.found = ep_step_load(c.g, c.launch, false);
	e.fault = ep_ht_fault(c);
	e.op = ep_step_make(c.launch, e.found, false);
	e.op.is_combine = is_combine;
	if (ep_block() == 0 && ep_warp() == 0) {
		ep_step_publish(c.g, e.op);
		if (!e.fault) { /* else peers shall not wait for rows */
			ep_ht_form_send(c, e.op);
		}
	}
	return e;
}

/* The operation does nothing. One thread. */
EP_DEV_COLD void ep_ht_refuse(const struct ep_ht_common &c, struct ep_op op, uint32_t cause)
{
	struct ep_record r = ep_record_make(op, cause, c.g.rank);
	const struct ep_ht_head *head = c.h.head;

	if (cause == EP_CAUSE_SHORT) {
		r.value = ep_ht_needed(c);
		r.expected = c.given_rows;
	} else {
		r.value = head->stamp == c.stamp ? (int64_t)head->num_tokens : -1;
		r.expected = c.num_tokens;
	}
	ep_record_write(c.g, EP_RECORD_FATAL, r);
	ep_abort(c.g);
}

/* Waits for all ranks' form words of this step. One warp; the lanes agree. */
EP_DEV bool ep_ht_forms_wait(const struct ep_ht_common &c, const struct ep_op &op)
{
	bool ok = true;

	for (uint32_t r = ep_lane(); r < c.g.nranks && ok; r += EP_WARP_SIZE) {
		const uint64_t *at = ep_ht_form_at(c, op, c.g.own, r);
		struct ep_spin s = ep_spin_start();
		uint64_t word;

		while (word = ep_ld_retired_sys_u64(at), (uint32_t)(word >> 32) != op.epoch) {
			if (ep_wait_give_up(c.g, op, &s, EP_WAIT_HT_FORM, r)) {
				ok = false;
				break;
			}
		}
		if (ok && (uint32_t)word != c.form) {
			ep_mask_peer(c.g, op, EP_CAUSE_MISMATCH, EP_WAIT_HT_FORM, r, (uint32_t)word,
				     c.form);
			ok = false;
		}
	}
	return ep_all(EP_FULL_MASK, ok);
}

/*
 * Waits until all ranks have started the step and want the same. From then on their heaps and their
 * windows may be written, by bulk copies, too.
 */
EP_DEV bool ep_ht_begin(const struct ep_ht_common &c, struct ep_ht_entry *e)
{
	EP_SHARED(uint32_t, agreed);

	if (ep_step_begin(c.g, c.launch, e->found, e->op) == EP_BANK_ABORTED) {
		return false;
	}
	if (e->fault) {
		if (ep_block() == 0 && ep_tid() == 0) {
			ep_ht_refuse(c, e->op, e->fault);
		}
		return false;
	}
	/* who is waited for may be waiting for anybody's start: ep_wait_extended() */
	e->op.freed = e->op.epoch - 1;
	if (ep_warp() == 0) {
		bool ok = ep_ht_forms_wait(c, e->op);

		if (ep_lane() == 0) {
			agreed = ok;
		}
	}
	ep_block_sync();
	ep_bulk_fence_global();
	return agreed != 0;
}

/*
 * This rank has written and read all it wanted in its peers' windows, if no wait has failed: the
 * block that ends last tells them. Every warp has waited for its own stores.
 */
EP_DEV void ep_ht_done_send(const struct ep_ht_common &c, const struct ep_op &op)
{
	uint32_t *ended = (uint32_t *)(c.g.own + c.areas.ended_off);
	uint32_t last = 0;

	ep_block_sync();
	if (ep_warp() != 0) {
		return;
	}
	if (ep_lane() == 0) {
		ep_release_fence_sys();
		last = ep_atomic_add_acq_rel_gpu_u32(ended, 1) + 1 == ep_nblocks();
		if (last) {
			ep_st_relaxed_gpu_u32(ended, 0);
		}
	}
	last = ep_shfl_u32(EP_FULL_MASK, last, 0);
	ep_warp_sync(EP_FULL_MASK); /* what lane 0 has acquired is all lanes' to release */
	if (!last || ep_aborted(c.g)) {
		return;
	}
	for (uint32_t r = ep_lane(); r < c.g.nranks; r += EP_WARP_SIZE) {
		ep_st_release_sys_u64(ep_ht_done_at(c, ep_heap_of(c.g, r), c.g.rank),
				      (uint64_t)op.epoch << 32);
	}
}

/* Waits until all peers have said so. All threads of a block that needs it; they agree. */
EP_DEV bool ep_ht_done_wait(const struct ep_ht_common &c, const struct ep_op &op)
{
	EP_SHARED(uint32_t, done);

	if (ep_warp() == 0) {
		bool ok = true;

		for (uint32_t r = ep_lane(); r < c.g.nranks && ok; r += EP_WARP_SIZE) {
			const uint64_t *at = ep_ht_done_at(c, c.g.own, r);
			struct ep_spin s = ep_spin_start();
			uint32_t named = r;

			while (r != c.g.rank && ep_ld_acquire_sys_u64(at) != (uint64_t)op.epoch
										     << 32) {
				if (ep_ht_give_up(c, op, &s, EP_WAIT_HT_DONE, r, &named)) {
					ok = false;
					break;
				}
			}
		}
		ok = ep_all(EP_FULL_MASK, ok);
		if (ep_lane() == 0) {
			done = ok;
		}
	}
	ep_block_sync();
	return done != 0;
}

#endif
