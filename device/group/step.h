/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step that a kernel takes, and the bank that it may write.
 *
 *     found = ep_step_load()          loads, nothing waits for them yet
 *     op = ep_step_make(found)        the step
 *     ep_step_publish(op)             peers learn of it, and what is passed to it
 *     ep_step_begin(found, op)        waits for the bank; the sequence goes on
 */
#ifndef EP_DEVICE_GROUP_STEP_H
#define EP_DEVICE_GROUP_STEP_H

#include "device/group/signature.h"
#include "device/group/wait.h"

/*
 * The next step's bank, of those without a pending operation: the one freed last before this step.
 * So two banks take turns, and rows arrive in lines that L2 still has. Else one that was not used
 * yet, else the one that this step has freed, which all peers have to leave first.
 */
EP_DEV uint32_t bank_choose(const struct ep_dev_seq *seq)
{
	uint32_t best = 0, least = 0xffffffffu;

	for (uint32_t b = 0; b < EP_GROUP_BANKS; b++) {
		uint32_t age = seq->freed[b] ? seq->step - seq->freed[b] : 0xfffffffdu;

		age = age ? age : 0xfffffffeu;
		if (!(seq->busy >> b & 1) && age < least) {
			best = b;
			least = age;
		}
	}
	return best;
}

_Static_assert(EP_GROUP_BANKS == 3, "seq_freed, seq_advance");

/* Step that freed bank b. (A bank is no index: what is indexed does not stay in registers.) */
EP_DEV uint32_t seq_freed(const struct ep_dev_seq &seq, uint32_t b)
{
	return b == 0 ? seq.freed[0] : b == 1 ? seq.freed[1] : seq.freed[2];
}

/*
 * The third bank may rest for so long that its step can no longer be compared with others. All
 * active peers have left a bank that was freed more steps ago than this, which words still show.
 */
#define EP_GROUP_LONG_FREE (1u << 30)
_Static_assert(EP_GROUP_LONG_FREE > EP_GROUP_MAX_LEAD, "a peer may still use the bank");

/*
 * A kernel reads this from memory before it can begin. Each of these takes as long as a trip to L2:
 * they are issued together, ahead of everything that waits for one of them.
 */
struct ep_step_found {
	struct ep_dev_seq seq;         /* the block's copy */
	uint32_t aborted;              /* last warp: not 0: nothing may be done */
	uint64_t word;                 /* senders' last warp: progress word of peer `lane` */
	struct ep_dev_pending pending; /* receive half alone: the handle's pending operation */
	struct ep_dev_receipt receipt; /* send half of a combine: of the handle's dispatch */
};

EP_DEV struct ep_step_found ep_step_load(const struct ep_dev_group &g,
					 const struct ep_dev_launch &launch, bool is_combine)
{
	struct ep_step_found f;

	f.aborted = 0;
	f.word = 0;
	if (ep_warp() == ep_nwarps() - 1) {
		if (ep_block() < launch.send_blocks && ep_lane() < g.nranks) {
			f.word = ep_progress_load(g, ep_lane());
		}
		f.aborted = ep_ld_relaxed_gpu_u32(&g.state->aborted);
	}
	f.seq = g.seq[ep_block()];
	/* a send half writes it meanwhile, so that blocks would not read the same */
	f.pending = launch.halves & EP_HALF_SEND ? (struct ep_dev_pending){}
						 : launch.handle->pending;
	f.receipt = {};
	if (is_combine && launch.halves & EP_HALF_SEND) {
		f.receipt = launch.handle->receipt;
	}
	return f;
}

/* Is the handle's operation sent and not received? */
EP_DEV bool step_pends(const struct ep_step_found &found)
{
	return found.pending.bank < EP_GROUP_BANKS && (found.seq.busy >> found.pending.bank & 1) &&
	       seq_freed(found.seq, found.pending.bank) == found.pending.epoch;
}

/* Why a send half must not run, or 0. */
EP_DEV uint32_t step_send_fault(const struct ep_dev_launch &launch,
				const struct ep_step_found &found, bool is_combine)
{
	if (found.seq.busy == (1u << EP_GROUP_BANKS) - 1) {
		return EP_CAUSE_UNRECEIVED;
	}
	if (is_combine && found.receipt.id != launch.receipt_id) {
		return EP_CAUSE_UNDISPATCHED;
	}
	return is_combine && found.receipt.clean_round != found.seq.clean_round ? EP_CAUSE_CLEANED
										: 0;
}

/*
 * The kernel's step: what follows from the sequence that it found. The host lets halves run in
 * turn, and combines after dispatches, but a graph with one of them may be launched twice, or
 * never.
 */
EP_DEV struct ep_op ep_step_make(const struct ep_dev_launch &launch,
				 const struct ep_step_found &found, bool is_combine)
{
	const struct ep_dev_seq &seq = found.seq;
	struct ep_op op;

	op.step = ep_step_after(seq.step);
	op.is_combine = is_combine;
	op.start_ns = 0;
	op.fault = 0;
	op.clean_round = seq.clean_round;
	if (launch.halves & EP_HALF_SEND) {
		op.epoch = op.step;
		op.bank = seq.next;
		op.freed = seq.next_freed;
		op.fault = step_send_fault(launch, found, is_combine);
		return op;
	}
	op.fault = step_pends(found) ? 0 : EP_CAUSE_UNSENT;
	op.epoch = found.pending.epoch;
	op.bank = op.fault ? 0 : found.pending.bank;
	op.freed = found.pending.freed;
	return op;
}

/*
 * EP_SIGNATURE_ORIGIN of the step: for a receive half its send half, for a combine its dispatch.
 */
EP_DEV uint32_t ep_step_origin(const struct ep_dev_launch &launch,
			       const struct ep_step_found &found, const struct ep_op &op)
{
	if (op.fault) {
		return EP_SIGNATURE_REFUSED;
	}
	return launch.halves & EP_HALF_SEND ? found.receipt.epoch : op.epoch;
}

/* Of a combine: the seal of the launch that has its send half. */
EP_DEV uint32_t ep_step_seal(const struct ep_dev_launch &launch, const struct ep_step_found &found)
{
	return launch.halves & EP_HALF_SEND ? ep_signature_seal(launch.hash, found.receipt.epoch)
					    : found.pending.seal;
}

/* The sequence after the step. What the next kernel would have to find out is found out here. */
EP_DEV void seq_advance(const struct ep_dev_launch &launch, const struct ep_op &op,
			struct ep_dev_seq *seq)
{
	seq->step = op.step;
	if (!op.fault) {
		uint32_t freed = launch.halves & EP_HALF_RECV ? op.step : op.epoch;

		seq->busy = launch.halves & EP_HALF_RECV ? seq->busy & ~(1u << op.bank)
							 : seq->busy | 1u << op.bank;
		seq->freed[0] = op.bank == 0 ? freed : seq->freed[0];
		seq->freed[1] = op.bank == 1 ? freed : seq->freed[1];
		seq->freed[2] = op.bank == 2 ? freed : seq->freed[2];
	}
	seq->next = bank_choose(seq);
	seq->next_freed = seq_freed(*seq, seq->next);
	if (seq->step - seq->next_freed > EP_GROUP_LONG_FREE) {
		seq->next_freed = 0;
	}
}

/*
 * ep_step_publish() by one store to all ranks of the node, this one included. False: it was not
 * made, because a rank of the node is masked here and needs a word of it. One warp.
 */
EP_DEV_COLD bool ep_step_multicast(const struct ep_dev_group &g, struct ep_op op, uint64_t mark)
{
	bool masked = false;

	for (uint32_t r = ep_lane(); r < g.nranks; r += EP_WARP_SIZE) {
		masked |= r != g.rank && ep_heap_of(g, r) && !ep_mask_active(g, r);
	}
	if (ep_any(EP_FULL_MASK, masked)) {
		return false;
	}
	if (ep_lane() == 0) {
		ep_multimem_st_retired_sys_u64((uint64_t *)(g.multicast + g.progress_off) + g.rank,
					       ep_progress_word(op.step, op.clean_round, false));
		ep_multimem_st_retired_sys_u64(
			&ep_signature_at(g, g.multicast, op.step, g.rank)->mark, mark);
	}
	return true;
}

/*
 * Publishes to every peer of the node that this rank has started the step: all its earlier kernels
 * are over, so the banks they read are free. And what it passes to the step, unless it has masked
 * the peer: the mark; this rank keeps the rest. One warp of one block.
 */
EP_DEV void ep_step_publish(const struct ep_dev_group &g, const struct ep_dev_launch &launch,
			    const struct ep_op &op, uint32_t origin)
{
	uint64_t mark = ep_signature_mark(op.step, ep_signature_seal(launch.hash, origin));
	bool silent = ep_signature_silent(g, origin);

	ep_signature_keep(g, launch, op.step, origin);
	if (EP_MULTICAST && g.multicast && !silent && ep_step_multicast(g, op, mark)) {
		return;
	}
	for (uint32_t r = ep_lane(); r < g.nranks; r += EP_WARP_SIZE) {
		unsigned char *heap = ep_heap_of(g, r);

		if (heap) {
			bool masked = r != g.rank && !ep_mask_active(g, r);

			ep_st_retired_sys_u64((uint64_t *)(heap + g.progress_off) + g.rank,
					      ep_progress_word(op.step, op.clean_round, masked));
			if (r != g.rank && !masked && !silent) {
				ep_st_retired_sys_u64(
					&ep_signature_at(g, heap, op.step, g.rank)->mark, mark);
			}
		}
	}
}

/* Results of ep_bank_wait(). */
enum ep_bank_state {
	EP_BANK_ABORTED, /* nothing may be done */
	EP_BANK_FREE,
	EP_BANK_HELD /* by peers that are masked by now: nothing may be sent to those */
};

/* Does a peer with that progress word still use what the bank held before? */
EP_DEV bool bank_used(const struct ep_op &op, uint64_t word)
{
	return op.freed && (int32_t)((uint32_t)word - op.freed) <= 0;
}

/*
 * Waits until every active peer has left the previous operation of the bank. Called by one warp
 * with the progress word it found.
 */
template <bool REMOTE>
EP_DEV uint32_t ep_bank_wait(const struct ep_dev_group &g, const struct ep_op &op, uint64_t word)
{
	bool ok = true, held = false;

	/* as nearly always: nobody is behind, and nobody has excluded us */
	if (g.nranks <= EP_WARP_SIZE &&
	    ep_all(EP_FULL_MASK,
		   ep_lane() >= g.nranks ||
			   (!bank_used(op, word) && !(word >> 32 & 1) &&
			    (int32_t)((uint32_t)word - op.step) <= EP_GROUP_MAX_LEAD))) {
		return EP_BANK_FREE;
	}
	for (uint32_t r = ep_lane(); r < g.nranks; r += EP_WARP_SIZE) {
		struct ep_spin s = ep_spin_start();

		if (r >= EP_WARP_SIZE) {
			word = ep_progress_load(g, r);
		}
		while (bank_used(op, word) && ep_mask_active(g, r)) {
			if (ep_wait_give_up<REMOTE>(g, op, &s, EP_WAIT_PROGRESS, r)) {
				ok = false;
				break;
			}
			word = ep_progress_load(g, r);
		}
		held |= bank_used(op, word);
		held |= ep_mask_excluded(g, op, r, word);
	}
	held = ep_any(EP_FULL_MASK, held);
	if (!ep_all(EP_FULL_MASK, ok) && ep_aborted(g)) {
		return EP_BANK_ABORTED;
	}
	return held ? EP_BANK_HELD : EP_BANK_FREE;
}

/* A half that must not run. One thread. */
EP_DEV void step_refuse(const struct ep_dev_group &g, const struct ep_op &op)
{
	ep_record_write(g, EP_RECORD_FATAL, ep_record_make(op, op.fault, g.rank));
	ep_abort(g);
}

/*
 * Begins the step: senders wait for their bank, and the sequence goes on. Every block has read its
 * own copy and writes the next one to the copies it owns (index congruent to the block), so no
 * block waits for another. All threads of all blocks, once; holds a barrier, behind which they
 * agree on the result: EP_BANK_ABORTED, or what the senders found.
 */
template <bool REMOTE>
EP_DEV uint32_t ep_step_begin(const struct ep_dev_group &g, const struct ep_dev_launch &launch,
			      const struct ep_step_found &found, const struct ep_op &op)
{
	EP_SHARED(uint32_t, bank_state);

	if (ep_warp() == ep_nwarps() - 1) {
		/* the word may have been set between two lanes' looks at it: they must agree */
		bool aborted = ep_any(EP_FULL_MASK, found.aborted);
		uint32_t state = EP_BANK_FREE;

		if (aborted || op.fault) {
			state = EP_BANK_ABORTED;
		} else if (ep_block() < launch.send_blocks) {
			state = ep_bank_wait<REMOTE>(g, op, found.word);
		}
		if (ep_lane() == 0) {
			bank_state = state;
		}
		if (op.fault && !aborted && ep_block() == 0 && ep_lane() == 0) {
			step_refuse(g, op);
		}
	}
	ep_block_sync();
	for (uint32_t i = ep_block() + ep_tid() * ep_nblocks(); i < EP_GROUP_MAX_BLOCKS;
	     i += ep_nthreads() * ep_nblocks()) {
		struct ep_dev_seq s = found.seq;

		seq_advance(launch, op, &s);
		g.seq[i] = s;
	}
	if (ep_block() == 0 && ep_tid() == 0 && launch.halves == EP_HALF_SEND && !op.fault) {
		launch.handle->pending.bank = op.bank;
		launch.handle->pending.epoch = op.epoch;
		launch.handle->pending.freed = op.freed;
		launch.handle->pending.seal = ep_signature_seal(launch.hash, found.receipt.epoch);
	}
	return bank_state;
}

/* Handle memory holds all that a combine needs of this dispatch. One thread. */
EP_DEV void ep_receipt_leave(const struct ep_dev_launch &launch, const struct ep_op &op)
{
	launch.handle->receipt.id = launch.receipt_id;
	launch.handle->receipt.clean_round = op.clean_round;
	launch.handle->receipt.epoch = op.epoch;
}

#endif
