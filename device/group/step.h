/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency kernels: the step that a kernel takes, and the bank that it may write.
 *
 *     found = ep_ll_find()            loads, nothing waits for them yet
 *     op = ep_ll_step(found.seq)      the step
 *     ep_ll_publish_progress(op)      peers learn of it
 *     ep_ll_begin(found, op)          waits for the bank; the sequence goes on
 */
#ifndef EP_DEVICE_LL_STEP_H
#define EP_DEVICE_LL_STEP_H

#include "device/group/wait.h"

/* The bank released longest ago among those without a staged operation. */
EP_DEV uint32_t ep_ll_bank_choose(const struct ep_ll_seq *s)
{
	uint32_t best = 0;
	int32_t oldest = 0;
	bool found = false;

	for (uint32_t b = 0; b < EP_LL_BANKS; b++) {
		int32_t age = s->release[b] ? (int32_t)(s->step - s->release[b]) : 0x7fffffff;

		if (!(s->busy >> b & 1) && (!found || age > oldest)) {
			best = b;
			oldest = age;
			found = true;
		}
	}
	return best;
}

_Static_assert(EP_LL_BANKS == 3, "ep_ll_seq_release, ep_ll_seq_advance");

/* Step that released bank b. (A bank is no index: what is indexed does not stay in registers.) */
EP_DEV uint32_t ep_ll_seq_release(const struct ep_ll_seq &s, uint32_t b)
{
	return b == 0 ? s.release[0] : b == 1 ? s.release[1] : s.release[2];
}

/*
 * What a kernel reads from memory before it can begin. Each of these takes as long as a trip to L2:
 * they are issued together, ahead of everything that waits for one of them.
 */
struct ep_ll_found {
	struct ep_ll_seq seq;  /* the block's copy */
	uint32_t aborted;      /* last warp: not 0: nothing may be done */
	uint64_t told;         /* senders' last warp: progress of peer `lane` */
};

EP_DEV struct ep_ll_found ep_ll_find(const struct ep_ll_common &c)
{
	struct ep_ll_found f;

	f.aborted = 0;
	f.told = 0;
	if (ep_warp() == ep_nwarps() - 1) {
		if (ep_block() < c.send_blocks && ep_lane() < c.nranks) {
			f.told = ep_ll_told(c, ep_lane());
		}
		f.aborted = ep_ld_relaxed_gpu_u32(&c.state->aborted);
	}
	f.seq = c.seq[ep_block()];
	return f;
}

/* A receiving half without its sending half. One thread. */
EP_DEV void ep_ll_unsent(const struct ep_ll_common &c, const struct ep_ll_op &op)
{
	struct ep_ll_record r = {};

	r.cause = EP_LL_CAUSE_UNSENT;
	r.peer = c.rank;
	r.step = op.step;
	r.is_combine = op.is_combine;
	ep_ll_record_write(c.state, c.records, EP_LL_RECORD_FATAL, r);
	ep_st_relaxed_gpu_u32(&c.state->aborted, 1);
}

/* The kernel's step: what follows from the sequence that it found. */
EP_DEV struct ep_ll_op ep_ll_step(const struct ep_ll_common &c, const struct ep_ll_seq &seq,
				  bool is_combine)
{
	struct ep_ll_op op;

	op.step = seq.step + 1 ? seq.step + 1 : 1; /* 0 means never */
	op.is_combine = is_combine;
	op.start_ns = 0;
	op.staged = true;
	op.round = seq.round;
	if (c.phase & EP_LL_SEND) {
		op.epoch = op.step;
		op.bank = seq.next;
		op.release = seq.next_release;
		return op;
	}
	op.epoch = c.staged->epoch;
	op.bank = c.staged->bank;
	op.staged = op.bank < EP_LL_BANKS && (seq.busy >> op.bank & 1);
	if (!op.staged) { /* its send half was captured, but the graph never ran */
		op.bank = 0;
	}
	op.release = ep_ll_seq_release(seq, op.bank);
	return op;
}

/* The sequence after the step. What the next kernel would have to find out is found out here. */
EP_DEV void ep_ll_seq_advance(const struct ep_ll_common &c, const struct ep_ll_op &op,
			      struct ep_ll_seq *s)
{
	s->step = op.step;
	if (!op.staged) {
		/* nothing to release */
	} else if (c.phase & EP_LL_RECV) {
		s->busy &= ~(1u << op.bank);
		s->release[0] = op.bank == 0 ? op.step : s->release[0];
		s->release[1] = op.bank == 1 ? op.step : s->release[1];
		s->release[2] = op.bank == 2 ? op.step : s->release[2];
	} else {
		s->busy |= 1u << op.bank;
	}
	s->next = ep_ll_bank_choose(s);
	s->next_release = ep_ll_seq_release(*s, s->next);
}

/*
 * Tells every peer of the node that this rank has started `step`: all its earlier kernels are over,
 * so the banks they read are free. One warp of one block.
 */
EP_DEV void ep_ll_publish_progress(const struct ep_ll_common &c, const struct ep_ll_op &op)
{
	for (uint32_t r = ep_lane(); r < c.nranks; r += EP_WARP_SIZE) {
		if (!ep_ll_remote(c, r)) {
			ep_st_retired_sys_u64((uint64_t *)(c.heap[r] + c.progress_off) + c.rank,
					      ep_ll_telling(op.step, op.round,
						    r != c.rank && !ep_ll_active(c, r)));
		}
	}
}

/* What ep_ll_wait_bank found. */
#define EP_LL_BANK_ABORTED 0u
#define EP_LL_BANK_FREE 1u
#define EP_LL_BANK_HELD 2u /* by peers that are masked by now: nothing may be sent to those */

/*
 * Peer r has masked us, by its own word or because it has taken more steps than it could have taken
 * with us: it uses the bank for something else by now. Nothing may be sent to it.
 */
EP_DEV bool ep_ll_left_behind(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t r,
			      uint64_t told)
{
	int32_t lead = (int32_t)((uint32_t)told - op.step);

	if (!told || (lead <= EP_LL_MAX_LEAD && !ep_ll_masked_by(c, op, r, told))) {
		return false; /* 0: it has not told yet, in a new heap */
	}
	if (ep_ll_active(c, r)) {
		ep_ll_peer_failed(c, op, EP_LL_CAUSE_LEFT, EP_WAIT_PROGRESS, r, lead, 0);
	}
	return true;
}

/* Whether peer r, by what it has told, still uses what the bank held before. */
EP_DEV bool ep_ll_holds(const struct ep_ll_op &op, uint64_t told)
{
	return op.release && (int32_t)((uint32_t)told - op.release) <= 0;
}

/*
 * Waits until every active peer has left the previous operation of the bank. Called by one warp
 * with the progress it found.
 */
EP_DEV uint32_t ep_ll_wait_bank(const struct ep_ll_common &c, const struct ep_ll_op &op,
				uint64_t told)
{
	bool ok = true, held = false;

	/* as nearly always: nobody is behind, and nobody has gone on without us */
	if (c.nranks <= EP_WARP_SIZE &&
	    ep_all(EP_FULL_MASK,
		   ep_lane() >= c.nranks ||
			   (!ep_ll_holds(op, told) && !(told >> 32 & 1) &&
			    (int32_t)((uint32_t)told - op.step) <= EP_LL_MAX_LEAD))) {
		return EP_LL_BANK_FREE;
	}
	for (uint32_t r = ep_lane(); r < c.nranks; r += EP_WARP_SIZE) {
		struct ep_spin s = ep_spin_start();

		if (r >= EP_WARP_SIZE) {
			told = ep_ll_told(c, r);
		}
		while (ep_ll_holds(op, told) && ep_ll_active(c, r)) {
			if (ep_ll_wait_over(c, op, &s, EP_WAIT_PROGRESS, r)) {
				ok = false;
				break;
			}
			told = ep_ll_told(c, r);
		}
		held |= ep_ll_holds(op, told);
		held |= ep_ll_left_behind(c, op, r, told);
	}
	held = ep_any(EP_FULL_MASK, held);
	if (!ep_all(EP_FULL_MASK, ok) && ep_ll_aborted(c.state)) {
		return EP_LL_BANK_ABORTED;
	}
	return held ? EP_LL_BANK_HELD : EP_LL_BANK_FREE;
}

/*
 * Begins the step: senders wait for their bank, and the sequence goes on. Every block has read its
 * own copy and writes the next one to the copies it owns (index congruent to the block), so no
 * block waits for another. All threads of all blocks, once; holds a barrier, behind which they
 * agree on the result: EP_LL_BANK_ABORTED (nothing may be done), or what the senders found.
 */
EP_DEV uint32_t ep_ll_begin(const struct ep_ll_common &c, const struct ep_ll_found &found,
			    const struct ep_ll_op &op)
{
	EP_SHARED(uint32_t, bank);

	if (ep_warp() == ep_nwarps() - 1) {
		/* the word may have been set between two lanes' looks at it: they must agree */
		bool aborted = ep_any(EP_FULL_MASK, found.aborted);
		uint32_t state = EP_LL_BANK_FREE;

		if (aborted || !op.staged) {
			state = EP_LL_BANK_ABORTED;
		} else if (ep_block() < c.send_blocks) {
			state = ep_ll_wait_bank(c, op, found.told);
		}
		if (ep_lane() == 0) {
			bank = state;
		}
		if (!op.staged && !aborted && ep_block() == 0 && ep_lane() == 0) {
			ep_ll_unsent(c, op);
		}
	}
	ep_block_sync();
	for (uint32_t i = ep_block() + ep_tid() * ep_nblocks(); i < EP_LL_MAX_BLOCKS;
	     i += ep_nthreads() * ep_nblocks()) {
		struct ep_ll_seq s = found.seq;

		ep_ll_seq_advance(c, op, &s);
		c.seq[i] = s;
	}
	if (ep_block() == 0 && ep_tid() == 0 && !(c.phase & EP_LL_RECV)) {
		c.staged->bank = op.bank;
		c.staged->epoch = op.epoch;
	}
	return bank;
}

#endif
