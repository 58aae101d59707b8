/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: how kernels wait for peers, and how those of dispatch and combine begin and end.
 */
#ifndef EP_DEVICE_HT_STEP_H
#define EP_DEVICE_HT_STEP_H

#include "device/group/remote.h"
#include "device/group/step.h"
#include "device/group/wait.h"
#include "device/ht/ht_layout.h"
#include "device/simt/bulk.h"

/*
 * ---- waits ----
 *
 * They are those of device/group/wait.h, and a sign of life. Within an operation
 * ranks wait for one another: rank A waits for rows of B, which has stopped because it waits for D,
 * who has died. All these waits begin within microseconds, and no progress word shows that B lives.
 * So each rank has a word {sign, epoch} in every heap. It changes at most twice in an operation:
 *   1. One of the rank's waits has lasted half of the timeout: EP_HT_WAITS. It lives, so others
 *      grant it the time that wait_extended() grants a rank that may be held up.
 *   2. It gives up: whom it names. It ends, so waits for it end, too, and name the same rank.
 *
 * To ranks of other nodes the word goes by the control queue. Its owners, warps of block 0, need it
 * when a kernel starts and then leave it (ep_ht_queue_leave) to the waits of all warps: those
 * change the rank's word, and post it, one thread at a time. None waits for a queue: a full one is
 * left out.
 */

/* A sign that is no rank: the rank lives, and waits. */
#define EP_HT_WAITS 0x7fffffffu

/* For another thread to have posted to all ranks: it waits for nobody. */
#define EP_HT_SIGN_LOCK_NS 100000000ull

EP_DEV unsigned char *sign_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r)
{
	return heap + c.areas.sign_off + 8 * (size_t)r;
}

/*
 * Where this rank keeps the epoch of the last operation that is through with the control queue to
 * rank r.
 */
EP_DEV uint32_t *left_at(const struct ep_ht_common &c, uint32_t r)
{
	return (uint32_t *)sign_at(c, c.g.own, c.g.nranks) + r;
}

/*
 * Returns rank r's sign in this operation, or in the one where it stands; EP_HT_NONE: it has given
 * none.
 */
EP_DEV uint32_t ht_sign(const struct ep_ht_common &c, uint32_t epoch, uint32_t r)
{
	uint64_t word = ep_ld_retired_sys_u64((const uint64_t *)sign_at(c, c.g.own, r));
	uint32_t of = (uint32_t)(word >> 32);

	return of && (of == epoch || of == ep_progress_step(c.g, r)) ? (uint32_t)word : EP_HT_NONE;
}

/*
 * Posts this rank's word to remote rank r, if its queue has room. The one thread that may use the
 * queue.
 */
EP_DEV void sign_post(const struct ep_ht_common &c, uint32_t r, uint64_t word)
{
	(void)ep_mlx5_put_word(ep_remote_qp(c.g, r, c.g.remote->channels), EP_MLX5_REGION_SIGNAL,
			       c.areas.sign_off + 8 * (uint64_t)c.g.rank, word);
}

/* Does the sign add to the one that this rank has given? */
EP_DEV bool sign_new(const struct ep_ht_common &c, uint32_t epoch, uint32_t sign)
{
	uint32_t before = ht_sign(c, epoch, c.g.rank);

	return before == EP_HT_NONE || (before == EP_HT_WAITS && sign != EP_HT_WAITS);
}

/*
 * Gives the sign to all ranks if it adds to this rank's last one. Any thread, also while others do.
 */
template <bool NODES>
EP_DEV void sign_give(const struct ep_ht_common &c, uint32_t epoch, uint32_t sign)
{
	uint32_t *lock = c.h.scratch + EP_HT_SIGN_LOCK;
	struct ep_spin s = ep_spin_start();

	if (!sign_new(c, epoch, sign)) {
		return;
	}
	while (ep_atomic_cas_acquire_gpu_u32(lock, 0, 1)) {
		/* (a wait comes again) */
		if (sign == EP_HT_WAITS ||
		    ep_spin_expired(&s, EP_HT_SIGN_LOCK_NS, EP_WAIT_NONE, c.g.rank)) {
			return;
		}
	}
	EP_UNROLL(1)
	for (uint32_t r = sign_new(c, epoch, sign) ? 0 : c.g.nranks; r < c.g.nranks; r++) {
		unsigned char *heap = ep_heap_of(c.g, r);

		if (heap) {
			ep_st_word(sign_at(c, heap, c.g.rank), sign, epoch);
		} else if (NODES && ep_ld_acquire_gpu_u32(left_at(c, r)) == epoch) {
			sign_post(c, r, (uint64_t)epoch << 32 | sign);
		}
	}
	ep_st_release_gpu_u32(lock, 0);
}

/*
 * An operation here has failed: gives the sign whom its error names, if that rank did not come. Any
 * thread.
 */
template <bool NODES> EP_DEV void sign_end(const struct ep_ht_common &c, uint32_t epoch)
{
	const struct ep_record *record = &c.g.records[EP_RECORD_FATAL];

	if (sign_new(c, epoch, 0) && ep_ld_acquire_sys_u32(&record->valid)) {
		uint32_t cause = ep_ld_relaxed_sys_u32(&record->cause);

		if (cause == EP_CAUSE_TIMEOUT || cause == EP_CAUSE_RDMA) {
			sign_give<NODES>(c, epoch, ep_ld_relaxed_sys_u32(&record->peer));
		}
	}
}

/*
 * ep_wait_check() for a wait that others may hold up. Where `peer` is this rank, another of its
 * warps is waited for, which gives this rank's signs.
 */
template <bool NODES>
EP_DEV_COLD struct ep_wait_result ep_ht_wait_check(const struct ep_ht_common &c, struct ep_op op,
						   struct ep_spin spin, bool expired,
						   enum ep_wait_site site, uint32_t peer)
{
	uint32_t sign = peer == c.g.rank ? EP_HT_NONE : ht_sign(c, op.epoch, peer);
	struct ep_wait_result w = { spin, true };

	if (sign < c.g.nranks) { /* (where it is this rank, the peer is named) */
		ep_mask_peer(c.g, op, EP_CAUSE_TIMEOUT, site, sign == c.g.rank ? peer : sign, 0, 0);
	} else {
		spin.polls |= sign == EP_HT_WAITS ? EP_WAIT_HELD : 0;
		if (peer == c.g.rank && expired) { /* EP_HT_OWN_WAITS is all that it is granted */
			spin.polls |= (uint32_t)EP_WAIT_WITH << EP_WAIT_STAND_SHIFT;
		} else if (peer != c.g.rank && spin.start_ns &&
			   ep_time_ns() - spin.start_ns >= c.g.timeout_ns / 2) {
			sign_give<NODES>(c, op.epoch, EP_HT_WAITS);
		}
		w = ep_wait_check(c.g, op, spin, expired, site, peer);
	}
	if (w.over) {
		sign_end<NODES>(c, op.epoch);
	}
	return w;
}

/*
 * If this rank itself is waited for, then by another of its warps. That one waits for peers, each
 * for as long as the timeout is, and ends the operation when one does not come: only if it is lost
 * itself does this wait end by its own time, which is longer than several of those.
 */
#define EP_HT_OWN_WAITS 8u

/* ep_wait_give_up() for such a wait. */
template <bool NODES>
EP_DEV bool ep_ht_give_up(const struct ep_ht_common &c, const struct ep_op &op,
			  struct ep_spin *spin, enum ep_wait_site site, uint32_t peer)
{
	uint64_t waits = peer == c.g.rank ? EP_HT_OWN_WAITS : 1;
	bool expired = ep_spin_expired(spin, waits * c.g.timeout_ns, site, peer);
	struct ep_wait_result w;

	if (!expired && (spin->polls & 63) != 0) {
		return false;
	}
	w = ep_ht_wait_check<NODES>(c, op, *spin, expired, site, peer);
	*spin = w.spin;
	return w.over;
}

/* Polls of a flag before its wait goes on out of line: a call costs 0.7 us. */
#define EP_HT_FLAG_POLLS 16u

/* The rest of such a wait. */
template <bool NODES>
EP_DEV_COLD bool ep_ht_flag_wait_on(const struct ep_ht_common &c, struct ep_op op,
				    const uint32_t *flag, enum ep_wait_site site, uint32_t r)
{
	struct ep_spin s = ep_spin_start();

	while (ep_ld_acquire_sys_u32(flag) != op.epoch) {
		if (ep_ht_give_up<NODES>(c, op, &s, site, r)) {
			return false;
		}
	}
	return true;
}

/* ep_wait_flag() for a flag of rank r, which others may hold up. Any lane. */
template <bool NODES>
EP_DEV bool ep_ht_flag_wait(const struct ep_ht_common &c, const struct ep_op &op,
			    const uint32_t *flag, enum ep_wait_site site, uint32_t r)
{
	EP_UNROLL(1)
	for (uint32_t n = 0; n < EP_HT_FLAG_POLLS; n++) {
		if (ep_ld_acquire_sys_u32(flag) == op.epoch) {
			return true;
		}
	}
	return ep_ht_flag_wait_on<NODES>(c, op, flag, site, r);
}

/*
 * ep_ht_queue_failed(), one thread. A rank that has given another one up may have left, and is not
 * named.
 */
EP_DEV_COLD void ep_ht_queue_record(const struct ep_ht_common &c, struct ep_op op, uint32_t status,
				    uint32_t qpn, uint32_t r, enum ep_wait_site site)
{
	uint32_t sign = ht_sign(c, op.epoch, r);

	if (sign < c.g.nranks && sign != c.g.rank) {
		ep_mask_peer(c.g, op, EP_CAUSE_TIMEOUT, site, sign, 0, 0);
	} else {
		ep_mask_peer(c.g, op, EP_CAUSE_RDMA, site, r, status, qpn);
	}
	sign_end<true>(c, op.epoch);
}

/* ep_remote_failed(): the queue to rank r is of no use any more. One warp. */
EP_DEV void ep_ht_queue_failed(const struct ep_ht_common &c, const struct ep_op &op,
			       const struct ep_mlx5_post &post, uint32_t r, enum ep_wait_site site)
{
	if (ep_lane() == 0 && post.status != EP_MLX5_ERR_ABORTED) {
		ep_ht_queue_record(c, op, post.status, post.qpn, r, site);
	}
	ep_warp_sync(EP_FULL_MASK);
}

/*
 * The operation's own words have been posted to the control queue of rank r, so waits may use it.
 * Its owner, one warp.
 */
EP_DEV void ep_ht_queue_leave(const struct ep_ht_common &c, const struct ep_op &op, uint32_t r)
{
	if (ep_lane() == 0) {
		uint32_t sign = ht_sign(c, op.epoch, c.g.rank);

		if (sign != EP_HT_NONE) { /* a wait has given it meanwhile */
			sign_post(c, r, (uint64_t)op.epoch << 32 | sign);
		}
		ep_st_release_gpu_u32(left_at(c, r), op.epoch);
	}
}

/*
 * ---- whom a unit of work waits for ----
 *
 * The lanes of a warp divide the peers of the unit
 * among them, and each finds one whose word is missing. A warp looks whether the unit is ready, or
 * waits for it.
 */

/* May a unit be loaded: have its rows come, and may they be written where they go? */
enum ep_ht_ready {
	EP_HT_READY,
	EP_HT_LATE,
	EP_HT_FAILED
};

/* A wait for a unit's peers, from look to look. */
struct ep_ht_patience {
	struct ep_spin spin;
	uint32_t before; /* the lane's peer that was missing */
};

EP_DEV struct ep_ht_patience ep_ht_patience_make(void)
{
	struct ep_ht_patience p;

	p.spin = ep_spin_start();
	p.before = EP_HT_NONE;
	return p;
}

/*
 * One look at a unit's peers, of whom each lane has found one that is missing of its share; EP_HT_NONE: none is.
 * With `wait`, between two polls. One warp; the lanes agree. This rank itself is a peer where another of its
 * warps has something to do.
 */
template <bool NODES>
EP_DEV enum ep_ht_ready ep_ht_patience_check(const struct ep_ht_common &c, const struct ep_op &op,
					     struct ep_ht_patience *patience, uint32_t missing,
					     enum ep_wait_site site, bool wait)
{
	bool over = false, ready = ep_all(EP_FULL_MASK, missing == EP_HT_NONE);

	if (ready || (wait && missing != patience->before)) { /* the wait before this one is over */
		patience->before = missing;
		patience->spin = ep_spin_start();
	}
	ep_bulk_fence_global(); /* the engines of others have stored, or read what is overwritten */
	if (ready) {
		return EP_HT_READY;
	}
	ep_spin_polled();
	if (wait && missing != EP_HT_NONE) {
		over = ep_ht_give_up<NODES>(c, op, &patience->spin, site, missing);
	}
	return ep_any(EP_FULL_MASK, over) ? EP_HT_FAILED : EP_HT_LATE;
}

/*
 * ---- how the kernels of dispatch and combine begin and end ----
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

struct ep_ht_entry {
	struct ep_step_found found;
	struct ep_op op;
	uint32_t fault;  /* why the operation cannot run: EP_CAUSE_UNROUTED or _SHORT; 0: it can */
	uint32_t origin; /* EP_SIGNATURE_ORIGIN */
};

/* Place of the words in a heap by which the blocks of rank r publish that they are done. */
EP_DEV uint64_t *done_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r)
{
	return (uint64_t *)(heap + c.areas.done_off) + (size_t)r * ep_ht_done_words(c.g.nranks);
}

/* Posts the step and this rank's signature to remote ranks. One block, whose warps share the control queues. */
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

template <bool NODES = false>
EP_DEV struct ep_ht_entry ep_ht_enter(const struct ep_ht_common &c, bool is_combine)
{
	struct ep_ht_entry e;

	e.found = ep_step_load(c.g, c.launch, false);
	e.fault = ht_fault(c);
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

/* For the statistics: rank r was waited for since then. Nothing that follows waits for these. One lane. */
EP_DEV void start_waited(const struct ep_ht_common &c, uint32_t r, uint64_t since)
{
	uint64_t waited = ep_time_ns() - since;

	ep_atomic_add_gpu_u64(&c.g.stats[r].wait_ns, waited);
	ep_atomic_max_gpu_u64(&c.g.stats[r].wait_max_ns, waited);
}

/*
 * Waits for rank r's mark of this step, and compares it. One lane. Block 0 keeps for the statistics how long
 * it was waited for.
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

/* The same out of line, and given values: written out it takes registers from the kernels' loops. */
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
	if (ep_step_begin(c.g, c.launch, entry->found, entry->op) == EP_BANK_ABORTED) {
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
 * This block has written and read all it wanted in its peers' windows, if no wait has failed, and publishes it to
 * them. Every warp has waited for its own stores. *failed is cleared, for ep_ht_done_wait().
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

/* Waits until all blocks of rank r have published it. False: they do not. One warp; the lanes agree. */
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
