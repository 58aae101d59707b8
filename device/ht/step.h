/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: how the kernels of dispatch and combine begin and end.
 *
 *     e = ep_ht_enter(c, is_combine)     the step; peers learn of it, and of this rank's signature
 *     ...                                this rank's own memory may be loaded meanwhile
 *     ep_ht_begin(c, &e)                 all ranks have started this step, and pass alike:
 *                                        false: one has not, and nothing may be done
 *     ...
 *     ep_ht_done_send(c, e.op, &failed)  windows: this block is through with those of its peers,
 *     ep_ht_done_wait(c, e.op, &failed)  and all blocks of all peers with its own
 *
 * All threads of all blocks make these calls; `failed` is in shared memory. ep_ht_done_send() also
 * when ep_ht_begin() returned false: it may count blocks.
 */
#ifndef EP_DEVICE_HT_STEP_H
#define EP_DEVICE_HT_STEP_H

#include "device/group/remote.h"
#include "device/group/step.h"
#include "device/ht/ht_layout.h"
#include "device/ht/signs.h"
#include "device/simt/bulk.h"

struct ep_ht_entry {
	struct ep_step_found found;
	struct ep_op op;
	/* why the operation cannot run: EP_CAUSE_UNROUTED, _SHORT, _REROUTED; 0: it can */
	uint32_t fault;
	uint32_t origin; /* EP_SIGNATURE_ORIGIN */
};

/* Place of the words in a heap by which the blocks of rank r publish that they are done. */
EP_DEV uint64_t *done_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r)
{
	return (uint64_t *)(heap + c.areas.done_off) + (size_t)r * ep_ht_done_words(c.g.nranks);
}

/*
 * Posts the step and this rank's signature to remote ranks. One block, whose warps share the
 * control queues.
 */
EP_DEV_COLD void ep_ht_remote_enter(const struct ep_ht_common &c, struct ep_op op, uint32_t origin)
{
	ep_remote_publish(c.g, op, origin);
	for (uint32_t r = ep_warp(); r < c.g.nranks; r += ep_nwarps()) {
		if (ep_rank_remote(c.g, r)) {
			ep_ht_queue_leave(c, op, r);
		}
	}
	if (ep_lane() == 0 && ep_aborted(c.g)) {
		sign_end<true>(c, op.epoch);
	}
}

/* Rows that a tensor with received rows must have. */
EP_DEV uint32_t ht_needed(const struct ep_ht_common &c)
{
	return c.layout == EP_HT_FLAT ? c.h.head->rows : c.h.head->places;
}

/* Does handle memory fit the operation? */
EP_DEV uint32_t ht_fault(const struct ep_ht_common &c)
{
	const struct ep_ht_head *head = c.h.head;

	if (head->stamp != c.stamp || head->num_tokens != c.num_tokens) {
		return EP_CAUSE_UNROUTED;
	}
	return c.given_rows < ht_needed(c) ? EP_CAUSE_SHORT : 0;
}

/* `fault`: why the operation cannot run, by other things than its handle's memory; 0: nothing. */
template <bool NODES = false>
EP_DEV struct ep_ht_entry ep_ht_enter(const struct ep_ht_common &c, bool is_combine,
				      uint32_t fault = 0)
{
	struct ep_ht_entry e;

	e.found = ep_step_load(c.g, c.launch, false);
	e.fault = fault ? fault : ht_fault(c);
	e.op = ep_step_make(c.launch, e.found, false);
	e.op.is_combine = is_combine;
	e.origin = c.h.head->routing;
	if (e.fault) { /* peers shall not wait for rows */
		e.origin = e.fault == EP_CAUSE_UNROUTED ? 0 : EP_SIGNATURE_REFUSED;
	}
	if (ep_block() == 0 && ep_warp() == 0) {
		ep_step_publish(c.g, c.launch, e.op, e.origin);
	}
	if (NODES) {
		e.op.start_ns = ep_time_ns();
		if (ep_block() == 0) {
			ep_ht_remote_enter(c, e.op, e.origin);
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
		r.value = ht_needed(c);
		r.expected = c.given_rows;
	} else {
		r.value = head->stamp == c.stamp ? (int64_t)head->num_tokens : -1;
		r.expected = c.num_tokens;
	}
	ep_record_write(c.g, EP_RECORD_FATAL, r);
	ep_abort(c.g);
}

/*
 * For the statistics: rank r was waited for since then. Nothing that follows waits for these. One
 * lane.
 */
EP_DEV void start_waited(const struct ep_ht_common &c, uint32_t r, uint64_t since)
{
	uint64_t waited = ep_time_ns() - since;

	ep_atomic_add_gpu_u64(&c.g.stats[r].wait_ns, waited);
	ep_atomic_max_gpu_u64(&c.g.stats[r].wait_max_ns, waited);
}

/*
 * Waits for rank r's mark of this step, and compares it. One lane. Block 0 keeps for the statistics
 * how long it was waited for.
 */
template <bool NODES>
EP_DEV bool mark_wait(const struct ep_ht_common &c, const struct ep_op &op, uint32_t seal,
		      uint32_t r)
{
	struct ep_spin s = ep_spin_start();
	uint64_t mark = ep_signature_load(c.g, op.step, r), since = 0;

	while ((uint32_t)(mark >> 32) != op.step) {
		if (!since && ep_block() == 0) {
			since = ep_time_ns();
		}
		if (ep_ht_give_up<NODES>(c, op, &s, EP_WAIT_SIGNATURE, r)) {
			return false;
		}
		mark = ep_signature_load(c.g, op.step, r);
	}
	if (since) {
		start_waited(c, r, since);
	}
	if ((uint32_t)mark != seal) {
		ep_mask_peer(c.g, op, EP_CAUSE_MISMATCH, EP_WAIT_SIGNATURE, r, op.step, 0);
		return false;
	}
	return true;
}

/*
 * Waits for all ranks' marks of this step. One warp; the lanes agree. Before the step begins, which
 * waits for all ranks at once: so the statistics show whom.
 */
template <bool NODES>
EP_DEV bool ep_ht_marks_wait(const struct ep_ht_common &c, const struct ep_op &op, uint32_t seal)
{
	bool ok = true;

	for (uint32_t r = ep_lane(); r < c.g.nranks && ok; r += EP_WARP_SIZE) {
		ok = mark_wait<NODES>(c, op, seal, r);
	}
	return ep_all(EP_FULL_MASK, ok);
}

/*
 * The same out of line, and given values: written out it takes registers from the kernels' loops.
 */
template <bool NODES>
EP_DEV_COLD bool ep_ht_marks_agree(const struct ep_ht_common &c, struct ep_op op, uint32_t seal)
{
	return ep_ht_marks_wait<NODES>(c, op, seal);
}

/*
 * Waits until all ranks have started the step and want the same. From then on their heaps and their
 * windows may be written, by bulk copies, too. Marks announce what earlier kernels did, which needs
 * no fence (device/simt/bulk.h); a wait that lasts acquires words of this step, which does.
 */
template <bool NODES>
EP_DEV bool ep_ht_begin(const struct ep_ht_common &c, struct ep_ht_entry *entry)
{
	EP_SHARED(uint32_t, agreed);

	/* who is waited for may be waiting for anybody's start: wait_extended() */
	entry->op.freed = entry->op.epoch - 1;
	if (ep_warp() == 0) {
		bool ok = entry->fault ||
			  ep_ht_marks_agree<NODES>(c, entry->op,
						   ep_signature_seal(c.launch.hash, entry->origin));

		if (ep_lane() == 0) {
			agreed = ok;
		}
	}
	if (ep_step_begin<false>(c.g, c.launch, entry->found, entry->op) == EP_BANK_ABORTED) {
		return false;
	}
	if (entry->fault) {
		if (ep_block() == 0 && ep_tid() == 0) {
			ep_ht_refuse(c, entry->op, entry->fault);
		}
		return false;
	}
	ep_bulk_fence_global();
	return agreed != 0;
}

/* Stores a word of ep_ht_done_send() by one store to all ranks. One warp. */
EP_DEV_COLD void ep_ht_done_multicast(const struct ep_ht_common &c, uint32_t i, uint64_t word)
{
	if (ep_lane() == 0) {
		ep_multimem_st_release_sys_u64(done_at(c, c.g.multicast, c.g.rank) + i, word);
	}
}

/* Is this the last block to come here? One warp, behind a barrier of its block. */
EP_DEV bool done_last(const struct ep_ht_common &c)
{
	uint32_t *ended = (uint32_t *)(c.g.own + c.areas.ended_off);
	uint32_t last = 0;

	if (ep_lane() == 0) {
		last = ep_atomic_add_acq_rel_gpu_u32(ended, 1) + 1 == ep_nblocks();
		if (last) {
			ep_st_relaxed_gpu_u32(ended, 0);
		}
	}
	last = ep_shfl_u32(EP_FULL_MASK, last, 0);
	ep_warp_sync(EP_FULL_MASK); /* what lane 0 has acquired is all lanes' to release */
	return last != 0;
}

/*
 * This block has written and read all it wanted in its peers' windows, if no wait has failed, and
 * publishes it to them. Every warp has waited for its own stores. *failed is cleared, for
 * ep_ht_done_wait().
 */
EP_DEV void ep_ht_done_send(const struct ep_ht_common &c, const struct ep_op &op, uint32_t *failed)
{
	bool each = c.g.nranks <= EP_HT_DONE_RANKS, aborted;
	uint32_t i = each ? ep_block() : 0, n = each ? ep_nblocks() : 1;
	uint64_t word = (uint64_t)op.epoch << 32 | n;

	if (ep_tid() == 0) {
		*failed = 0;
	}
	ep_block_sync();
	if (ep_warp() != 0 || (!each && !done_last(c))) {
		return;
	}
	aborted = ep_aborted(c.g); /* loaded while the fence waits */
	ep_release_fence_sys();
	if (ep_any(EP_FULL_MASK, aborted)) {
		return;
	}
	if (EP_MULTICAST && c.g.multicast) {
		ep_ht_done_multicast(c, i, word);
		return;
	}
	for (uint32_t r = ep_lane(); r < c.g.nranks; r += EP_WARP_SIZE) {
		ep_st_fenced_sys_u64(done_at(c, ep_heap_of(c.g, r), c.g.rank) + i, word);
	}
}

/*
 * Waits until all blocks of rank r have published it. False: they do not. One warp; the lanes
 * agree.
 */
EP_DEV bool done_come(const struct ep_ht_common &c, const struct ep_op &op, uint32_t r)
{
	const uint64_t *at = done_at(c, c.g.own, r);
	uint32_t n = ep_ht_done_words(c.g.nranks);
	struct ep_spin s = ep_spin_start();

	for (uint32_t i = ep_lane(); ep_any(EP_FULL_MASK, i < n);) {
		uint64_t word = i < n ? ep_ld_acquire_sys_u64(at + i) : 0, first;
		bool come = (uint32_t)(word >> 32) == op.epoch, over = false;

		first = ep_shfl_u64(EP_FULL_MASK, word, 0);
		if ((uint32_t)(first >> 32) == op.epoch) { /* each word has their number */
			n = (uint32_t)first;
		}
		if (ep_all(EP_FULL_MASK, come || i >= n)) {
			i += EP_WARP_SIZE;
			continue;
		}
		if (ep_lane() == 0) {
			over = ep_ht_give_up<false>(c, op, &s, EP_WAIT_HT_DONE, r);
		}
		if (ep_any(EP_FULL_MASK, over)) {
			return false;
		}
	}
	return true;
}

/* Waits until all peers have published it. All threads of a block that needs it; they agree. */
EP_DEV bool ep_ht_done_wait(const struct ep_ht_common &c, const struct ep_op &op, uint32_t *failed)
{
	/* the first warp is still telling */
	for (uint32_t r = ep_nwarps() - 1 - ep_warp(); r < c.g.nranks; r += ep_nwarps()) {
		if (r != c.g.rank && !done_come(c, op, r) && ep_lane() == 0) {
			ep_shared_or_u32(failed, 1);
		}
	}
	ep_block_sync();
	return *failed == 0;
}

#endif
