/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that write masks: MaskClean, MaskUpdate, and what masks ranks whose connection the
 * host has found lost.
 */
#include "device/group/remote.h"

#include "device/kernels.h"

/*
 * ---- MaskClean ----
 *
 * All ranks take part again. The ranks that call it agree on a round and on a step from
 * which they go on with all banks free. Who is active here is waited for by the timeout; who is
 * masked may be gone or may be calling as well, and is waited for a little. All are active
 * afterwards, also who did not come: such a rank calls MaskClean itself before it goes on, and
 * adopts the round and the step that the others have found. A remote rank whose connection is lost
 * stays masked on both sides: whoever knows of the loss posts it to the other, if a queue is left.
 *
 * Two words per rank, in every heap, made like progress words:
 *
 *   call     the rank is in MaskClean and wants this round; its step. "masked" here means that the
 *            rank refuses: its connection with the reader is lost
 *   result   the rank has received all calls of this round that it waited for; the highest step
 *
 * The common step is far ahead of all others, and all banks are free. But if all ranks are at the
 * same step, between a combine and a dispatch, nothing changes but the masks: a rank that has not
 * come is where the others are, and goes on with them.
 *
 * A rank wants the round in which another one is, or one more than the latest that is over. When it
 * sees a call of a later round, it wants that one: the highest number wins.
 */

enum ep_clean_word {
	EP_CLEAN_CALL,
	EP_CLEAN_RESULT
};

/* How long a masked rank is waited for, at most; see doc/design/masks.md, example 5. */
#define EP_CLEAN_GRACE_NS 2000000000ull

/*
 * How far the common step is ahead of all steps taken so far: a rank that goes on without having
 * called finds a lead that no rank can have, and marks nothing with an epoch of the others.
 */
#define EP_CLEAN_GAP (2 * EP_GROUP_MAX_LEAD)

/* From the word to those who did not come to this rank's next operation: as for EP_WAIT_AHEAD. */
#define EP_CLEAN_MARGIN_NS (EP_WAIT_GRACE_NS >> EP_WAIT_AHEAD)

/* Ranks that a thread waits for: there are as many threads as ranks, or as a block may have. */
#define EP_CLEAN_SHARE (EP_GROUP_MAX_RANKS / EP_GROUP_MAX_THREADS)

/* State of this MaskClean in a block. */
struct ep_clean_board {
	uint32_t last; /* round that this rank ended last; 0: none */
	uint32_t round;
	uint32_t step;
	uint32_t raised;  /* a later round was seen */
	uint32_t adopted; /* round and step are those of a MaskClean that was missed */
	uint32_t at_once; /* one store publishes to the node's ranks */
	uint8_t lost[EP_GROUP_MAX_RANKS]; /* this and the next: written by one thread for a rank */
	uint8_t joined[EP_GROUP_MAX_RANKS];
	uint32_t steps[EP_GROUP_MAX_RANKS]; /* of those who came */
};

/* Where rank `from` leaves the word, in any heap. */
EP_DEV uint64_t clean_at(const struct ep_clean_args &a, enum ep_clean_word which, uint32_t from)
{
	return a.g.clean_off + 8 * (which * (uint64_t)a.g.nranks + from);
}

EP_DEV uint64_t clean_load(const struct ep_clean_args &a, enum ep_clean_word which, uint32_t from)
{
	return ep_ld_retired_sys_u64((const uint64_t *)(a.g.own + clean_at(a, which, from)));
}

EP_DEV uint32_t ep_clean_round(uint64_t word)
{
	return (uint32_t)(word >> 33);
}

/* Has r ended a MaskClean that this rank was not in, and has not gone on from since? */
EP_DEV bool clean_ahead(const struct ep_clean_args &a, const struct ep_clean_board *board,
			uint32_t r)
{
	uint64_t word = clean_load(a, EP_CLEAN_RESULT, r);

	return ep_clean_round(word) > board->last &&
	       (int32_t)((uint32_t)word - a.g.seq[0].step) >= 0;
}

/* The round that this rank wants. One thread. */
EP_DEV uint32_t clean_choose(const struct ep_clean_args &a, const struct ep_clean_board *board)
{
	uint32_t round = board->last + 1;

	for (uint32_t r = 0; r < a.g.nranks; r++) {
		uint32_t call = ep_clean_round(clean_load(a, EP_CLEAN_CALL, r));
		uint32_t over = ep_clean_round(clean_load(a, EP_CLEAN_RESULT, r));

		if (!ep_ranks_has(&a.gone,
				  r)) { /* the call of a process that has ended never ends */
			round = ep_max_u32(round, call > over ? call : over + 1);
		}
	}
	return round;
}

/*
 * May this rank publish to its node by one store? What such a store does at a rank that is gone is
 * not known, so all have to be active here. One thread.
 */
EP_DEV bool clean_at_once(const struct ep_clean_args &a)
{
	bool all = EP_MULTICAST && a.g.multicast;

	for (uint32_t r = 0; all && r < a.g.nranks; r++) {
		all = ep_rank_remote(a.g, r) || (a.g.mask[r] && !ep_ranks_has(&a.gone, r));
	}
	return all;
}

/*
 * Have all ranks begun this rank's last step, and masked no rank in it? Whoever comes later or not
 * at all may be in the next one already: it is a dispatch, which waits for all. One thread.
 */
EP_DEV bool clean_in_step(const struct ep_clean_args &a, const struct ep_clean_board *board)
{
	uint32_t step = a.g.seq[0].step;
	bool same = a.paired != 0;

	for (uint32_t r = 0; same && r < a.g.nranks; r++) {
		uint64_t word = ep_progress_load(a.g, r);

		same = board->lost[r] || ep_ranks_has(&a.gone, r) ||
		       ((uint32_t)word == step && !(word >> 32 & 1));
	}
	return same;
}

/* The latest step that any rank has begun. One thread. */
EP_DEV uint32_t clean_latest(const struct ep_clean_args &a)
{
	uint32_t step = a.g.seq[0].step;

	for (uint32_t r = 0; r < a.g.nranks; r++) {
		uint64_t word = ep_progress_load(a.g, r);

		if (word && (int32_t)((uint32_t)word - step) > 0) {
			step = (uint32_t)word;
		}
	}
	return step;
}

/*
 * Before anything is published to a remote peer, what was posted to it must have arrived:
 * afterwards all banks are free, and the step must be later than any that a rank has published so
 * far. All threads.
 */
EP_DEV void clean_begin(const struct ep_clean_args &a, struct ep_clean_board *board)
{
	uint64_t start = ep_shfl_u64(EP_FULL_MASK, ep_time_ns(), 0);

	for (uint32_t r = ep_warp(); r < a.g.nranks; r += ep_nwarps()) {
		bool reached = !ep_rank_remote(a.g, r) ||
			       (!ep_shfl_u32(EP_FULL_MASK, ep_remote_down(a.g, r), 0) &&
				ep_mlx5_quiet_all(ep_remote_qp(a.g, r, 0), a.g.remote->queues,
						  start, a.g.timeout_ns / 4));

		if (ep_lane() == 0) {
			board->lost[r] = !reached;
		}
	}
	ep_block_sync();
	if (ep_tid() == 0) {
		board->last = ep_clean_round(clean_load(a, EP_CLEAN_RESULT, a.g.rank));
		board->step = clean_in_step(a, board) ? a.g.seq[0].step
						      : clean_latest(a) + EP_CLEAN_GAP;
		board->at_once = clean_at_once(a);
	}
}

/*
 * Publishes to remote rank r, behind what was posted before or beside it; false: it cannot, or only
 * that the connection is lost. One warp.
 */
EP_DEV bool clean_post(const struct ep_clean_args &a, uint32_t r, enum ep_clean_word which,
		       uint64_t value, bool lost, bool behind)
{
	const uint32_t word[2] = { (uint32_t)value, (uint32_t)(value >> 32) };
	struct ep_mlx5_post p = ep_mlx5_open(ep_remote_qp(a.g, r, a.g.remote->queues - 1), NULL,
					     a.g.timeout_ns / 4);
	struct ep_mlx5_mem to =
		ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, clean_at(a, which, a.g.rank));

	if (behind && !lost && !ep_mlx5_quiet(&p)) {
		return false;
	}
	return ep_mlx5_put_inline(&p, ep_lane() == 0, to, word, 8, false) && !lost;
}

/* Publishes the round and the step to all ranks. All threads; barriers at both ends. */
EP_DEV void clean_publish(const struct ep_clean_args &a, struct ep_clean_board *board,
			  enum ep_clean_word which)
{
	ep_block_sync();
	if (board->at_once && ep_tid() == 0) {
		ep_multimem_st_retired_sys_u64(
			(uint64_t *)(a.g.multicast + clean_at(a, which, a.g.rank)),
			ep_progress_word(board->step, board->round, false));
	}
	for (uint32_t r = ep_tid(); !board->at_once && r < a.g.nranks; r += ep_nthreads()) {
		unsigned char *heap = ep_heap_of(a.g, r);

		if (heap) {
			ep_st_retired_sys_u64((uint64_t *)(heap + clean_at(a, which, a.g.rank)),
					      ep_progress_word(board->step, board->round, false));
		}
	}
	for (uint32_t r = ep_warp(); r < a.g.nranks; r += ep_nwarps()) {
		bool lost = ep_shfl_u32(EP_FULL_MASK, ep_lane() == 0 && board->lost[r], 0);

		if (!ep_rank_remote(a.g, r) || (lost && which == EP_CLEAN_RESULT)) {
			continue;
		}
		/*
		 * a call may be posted again, and the result of an adopted round follows its call
		 */
		bool behind = which == EP_CLEAN_CALL || board->adopted;
		bool posted = clean_post(a, r, which,
					 ep_progress_word(board->step, board->round, lost), lost,
					 behind);

		if (ep_lane() == 0) {
			board->lost[r] = !posted;
		}
	}
	ep_block_sync();
}

/* One poll of a wait for r has failed: is the wait over? One thread. */
EP_DEV bool clean_over(const struct ep_clean_args &a, struct ep_clean_board *board, uint32_t r,
		       struct ep_spin *spin, uint64_t limit_ns)
{
	bool expired = ep_spin_expired(spin, limit_ns, EP_WAIT_CLEAN, r);

	if ((spin->polls & 63) == 0) {
		struct ep_op op = {};

		op.step = a.g.seq[0].step +
			  EP_CLEAN_GAP; /* no operation's: the log has a step once */
		ep_wait_show(a.g, op, *spin, EP_WAIT_CLEAN, r);
		if (ep_remote_down(a.g, r)) {
			board->lost[r] = 1;
		}
	}
	return expired || board->lost[r];
}

/* How long r is waited for. */
EP_DEV uint64_t clean_limit(const struct ep_clean_args &a, const struct ep_clean_board *board,
			    uint32_t r)
{
	if ((a.g.mask[r] && !clean_ahead(a, board, r)) || a.g.timeout_ns < EP_CLEAN_GRACE_NS) {
		return a.g.timeout_ns;
	}
	return EP_CLEAN_GRACE_NS;
}

/* A look at r's call of this round: need r be waited for no more? One thread. */
EP_DEV bool clean_poll(const struct ep_clean_args &a, struct ep_clean_board *board, uint32_t r,
		       struct ep_spin *spin)
{
	uint64_t word = clean_load(a, EP_CLEAN_CALL, r);

	if (board->joined[r]) {
		return true;
	}
	if (word >> 32 & 1) {
		board->lost[r] = 1;
	} else if (ep_clean_round(word) > board->round) {
		ep_shared_or_u32(&board->raised, 1);
	} else if (ep_clean_round(word) == board->round) {
		board->steps[r] = (uint32_t)word;
		board->joined[r] = 1;
		return true;
	}
	return clean_over(a, board, r, spin, clean_limit(a, board, r));
}

/*
 * Waits for the calls of this round of the thread's ranks, one for each of `spin`: the time counts
 * on from one round to the next. One thread.
 */
EP_DEV void clean_await(const struct ep_clean_args &a, struct ep_clean_board *board,
			struct ep_spin *spin)
{
	bool waits;

	do {
		waits = false;
		for (uint32_t i = 0; i < EP_CLEAN_SHARE; i++) {
			uint32_t r = i * ep_nthreads() + ep_tid();

			if (r < a.g.nranks && !ep_ranks_has(&a.gone, r)) {
				waits |= !clean_poll(a, board, r, &spin[i]);
			}
		}
	} while (waits && !ep_shared_or_u32(&board->raised, 0));
}

/* Calls, and waits for the others. All threads; a barrier at the end. */
EP_DEV void clean_collect(const struct ep_clean_args &a, struct ep_clean_board *board)
{
	struct ep_spin s[EP_CLEAN_SHARE];

	for (uint32_t i = 0; i < EP_CLEAN_SHARE; i++) {
		s[i] = ep_spin_start();
	}
	do {
		ep_block_sync();
		for (uint32_t r = ep_tid(); r < a.g.nranks; r += ep_nthreads()) {
			board->joined[r] = 0;
		}
		if (ep_tid() == 0) {
			board->raised = 0;
			board->round = clean_choose(a, board);
		}
		clean_publish(a, board, EP_CLEAN_CALL);
		clean_await(a, board, s);
		ep_block_sync();
	} while (board->raised);
}

/*
 * Has r, whose result is that of the round that was missed, come to this one? Not if it has adopted
 * that round just now, as this rank may: it has taken its call back before. One thread.
 */
EP_DEV bool clean_here(const struct ep_clean_args &a, const struct ep_clean_board *board,
		       uint32_t r)
{
	return board->joined[r] && ep_clean_round(clean_load(a, EP_CLEAN_CALL, r)) >= board->round;
}

/*
 * Finds the step that all go on from: the highest of those who came; or, when nobody came of those
 * who have ended a MaskClean without this rank, what they found then. A rank that is ahead of them
 * cannot adopt it: it would mark data with epochs that it has used before. One thread.
 */
EP_DEV void clean_decide(const struct ep_clean_args &a, struct ep_clean_board *board)
{
	uint32_t missed = board->last, step = a.g.seq[0].step;
	bool here = false, behind = true;

	for (uint32_t r = 0; r < a.g.nranks; r++) {
		uint64_t word = clean_load(a, EP_CLEAN_RESULT, r);

		if (board->joined[r] && (int32_t)(board->steps[r] - board->step) > 0) {
			board->step = board->steps[r];
		}
		if (ep_clean_round(word) > missed) {
			missed = ep_clean_round(word);
			here = false;
			behind = false;
			step = (uint32_t)word;
		}
		if (ep_clean_round(word) == missed) {
			here |= clean_here(a, board, r);
			step = (int32_t)((uint32_t)word - step) > 0 ? (uint32_t)word : step;
		}
	}
	board->adopted = !behind && !here && (int32_t)(step - a.g.seq[0].step) >= 0;
	if (board->adopted) {
		board->round = missed;
		board->step = step;
	}
}

/*
 * Waits for the result of r, who came. Who has gone on to a later round had the same. One thread.
 */
EP_DEV void clean_wait_result(const struct ep_clean_args &a, struct ep_clean_board *board,
			      uint32_t r)
{
	struct ep_spin s = ep_spin_start();
	uint64_t word = clean_load(a, EP_CLEAN_RESULT, r);

	while (ep_clean_round(word) < board->round) {
		if (clean_over(a, board, r, &s, a.g.timeout_ns)) {
			board->joined[r] = 0;
			return;
		}
		word = clean_load(a, EP_CLEAN_RESULT, r);
	}
	if (ep_clean_round(word) == board->round) {
		board->steps[r] = (uint32_t)word;
	}
}

/* Rank r, active until now, has not come, or cannot be reached. One thread. */
EP_DEV void clean_missed(const struct ep_clean_args &a, uint32_t r, bool lost)
{
	struct ep_op op = {};

	op.step = a.g.seq[0].step;
	struct ep_record record = ep_record_make(op, lost ? EP_CAUSE_RDMA : EP_CAUSE_TIMEOUT, r);

	record.site = EP_WAIT_CLEAN;
	ep_record_write(a.g, EP_RECORD_MASKED, record);
	ep_st_relaxed_sys_u32(a.g.async_error, 1);
}

/* The state of all ranks from now on, and for the host who did not come. All threads. */
EP_DEV void clean_settle(const struct ep_clean_args &a, const struct ep_clean_board *board,
			 uint32_t step)
{
	bool goes_on = step == a.g.seq[0].step; /* with the banks as they are */

	ep_signature_forget(a.g);
	for (uint32_t r = ep_tid(); r < a.g.nranks; r += ep_nthreads()) {
		bool lost = board->lost[r] || ep_remote_down(a.g, r);

		if (a.g.mask[r] && (lost || (!board->joined[r] && !clean_ahead(a, board, r)))) {
			clean_missed(a, r, lost);
		}
		a.g.mask[r] = !lost && !ep_ranks_has(&a.gone, r);
		if (goes_on) { /* the round stays: words "masked" of this step would count */
			ep_mask_ignored(a.g.mask, a.g.nranks)[r] = ep_progress_load(a.g, r);
		}
	}
	for (uint32_t w = ep_tid(); w < EP_RANKS_WORDS; w += ep_nthreads()) {
		uint32_t absent = 0;

		for (uint32_t r = 32 * w; r < a.g.nranks && r < 32 * (w + 1); r++) {
			absent |= (uint32_t)!board->joined[r] << (r & 31);
		}
		ep_st_relaxed_sys_u32(&a.absent->words[w], absent);
	}
	ep_block_sync();
	for (uint32_t i = ep_tid(); !goes_on && i < EP_GROUP_MAX_BLOCKS; i += ep_nthreads()) {
		struct ep_dev_seq s = {};

		s.busy = ep_seq_busy(a.g.banks);
		s.step = step;
		s.clean_round = board->round;
		a.g.seq[i] = s;
	}
}

/* The rank that did not come, if its process is there, is told `word`. One warp. */
EP_DEV void clean_tell(const struct ep_clean_args &a, const struct ep_clean_board *board,
		       uint32_t r, uint64_t word)
{
	uint64_t off = a.g.progress_off + 8 * (uint64_t)a.g.rank;
	uint32_t control = a.g.remote ? a.g.remote->channels : 0;

	if (!ep_rank_remote(a.g, r)) {
		if (ep_lane() == 0) {
			ep_st_retired_sys_u64((uint64_t *)(ep_heap_of(a.g, r) + off), word);
		}
		return;
	}
	if (board->lost[r] || ep_shfl_u32(EP_FULL_MASK, ep_remote_down(a.g, r), 0)) {
		return;
	}
	struct ep_mlx5_post p = ep_remote_open(a.g, r, control);

	p.timeout_ns = EP_REMOTE_LEAST_NS;
	(void)ep_mlx5_signal_add(&p, ep_remote_signal(a.g, p, r, control, off, word), false);
}

/*
 * Ranks that did not come learn by a progress word that this rank goes on without them: their waits
 * for it end, and they begin no operation with it until they have called. What one of them sends in
 * an operation that it has begun before comes into banks that are free now: it gets a moment to end
 * it. The word is of the round before, so it does not count for a rank that ends this one later.
 * All threads.
 */
EP_DEV void clean_leave(const struct ep_clean_args &a, const struct ep_clean_board *board,
			uint32_t step)
{
	uint64_t word = ep_progress_word(step, board->round - 1, true);
	struct ep_spin s = ep_spin_start();
	bool away = false;

	for (uint32_t r = ep_warp(); r < a.g.nranks; r += ep_nwarps()) {
		if (!board->joined[r] && !ep_ranks_has(&a.gone, r)) {
			clean_tell(a, board, r, word);
			away = true;
		}
	}
	while (away && ep_lane() == 0 &&
	       !ep_spin_expired(&s, EP_CLEAN_MARGIN_NS, EP_WAIT_CLEAN, a.g.rank)) {
	}
}

EP_KERNEL_ALONE(ep_clean_kernel, ep_clean_args, EP_GROUP_MAX_THREADS)
{
	EP_SHARED(struct ep_clean_board, board);
	uint32_t step;

	clean_begin(a, &board);
	clean_collect(a, &board);
	if (ep_tid() == 0) {
		clean_decide(a, &board);
	}
	ep_block_sync();
	if (board.adopted) {
		/* take back the call, before the result says that this rank knows the round */
		clean_publish(a, &board, EP_CLEAN_CALL);
	}
	clean_publish(a, &board, EP_CLEAN_RESULT);
	for (uint32_t r = ep_tid(); !board.adopted && r < a.g.nranks; r += ep_nthreads()) {
		if (board.joined[r]) {
			clean_wait_result(a, &board, r);
		}
	}
	ep_block_sync();
	step = board.step;
	for (uint32_t r = 0; r < a.g.nranks; r++) {
		if (!board.adopted && board.joined[r] && (int32_t)(board.steps[r] - step) > 0) {
			step = board.steps[r];
		}
	}
	if (!board.adopted && step != a.g.seq[0].step) {
		clean_leave(a, &board, step);
	}
	clean_settle(a, &board, step);
}

/*
 * ---- MaskUpdate ----
 *
 * Words "masked" of peers that lie here by now do not count any more. Remote ranks that are active
 * get a word of it, and have it when the kernel ends: a word "masked", posted by the last step, may
 * still have been on its way, and a peer that takes this rank in as well would mask it again by
 * that. They have this rank's marks as well before it forgets them.
 */

/* Of all waits together; what is masked next may be dead. */
EP_DEV uint64_t update_left(const struct ep_update_args &a, uint64_t start)
{
	uint64_t gone = ep_time_ns() - start, most = ep_remote_masked_ns(a.g);
	uint64_t left = gone + EP_REMOTE_LEAST_NS < most ? most - gone : EP_REMOTE_LEAST_NS;

	return ep_shfl_u64(EP_FULL_MASK, left, 0);
}

/*
 * Posts this rank's `word`, unless it has before, and waits until r has it; `all`: and until r has
 * what was posted before in any case. One warp.
 */
EP_DEV void update_publish(const struct ep_update_args &a, uint32_t r, uint64_t word,
			   uint64_t start, bool all)
{
	uint32_t control = a.g.remote->channels;
	uint64_t posted = ep_lane() == 0 ? ep_remote_link_at(a.g, r, control)->signal : 0;
	bool fresh = ep_shfl_u64(EP_FULL_MASK, posted, 0) != word;

	if (!fresh && !all) {
		return;
	}
	struct ep_mlx5_post p = ep_remote_open(a.g, r, control);

	p.timeout_ns = update_left(a, start);
	/* of a connection that does not take it, the next step finds out more */
	if (!fresh ||
	    ep_mlx5_signal_add(&p,
			       ep_remote_signal(a.g, p, r, control,
						a.g.progress_off + 8 * (uint64_t)a.g.rank, word),
			       false)) {
		(void)ep_mlx5_quiet(&p);
	}
}

EP_KERNEL(ep_update_kernel, ep_update_args, EP_GROUP_MAX_THREADS)
{
	uint64_t start = ep_shfl_u64(EP_FULL_MASK, ep_time_ns(), 0);
	uint64_t word = ep_progress_word(a.g.seq[0].step, a.g.seq[0].clean_round, 0);
	EP_SHARED(uint32_t, taken_in);

	if (ep_tid() == 0) {
		taken_in = 0;
	}
	ep_block_sync();
	for (uint32_t r = ep_tid(); r < a.g.nranks; r += ep_nthreads()) {
		uint32_t active = ep_ranks_has(&a.active, r);

		if (active && !ep_mask_active(a.g, r)) {
			ep_shared_or_u32(&taken_in, 1);
		}
		ep_st_relaxed_gpu_u32((uint32_t *)a.g.mask + r, active);
		ep_mask_ignored(a.g.mask, a.g.nranks)[r] = ep_progress_load(a.g, r);
	}
	ep_block_sync();
	bool forgets = taken_in != 0;

	for (uint32_t r = ep_warp(); r < a.g.nranks; r += ep_nwarps()) {
		if (ep_rank_remote(a.g, r) && ep_mask_active_warp(a.g, r) &&
		    !ep_shfl_u32(EP_FULL_MASK, ep_remote_down(a.g, r), 0)) {
			update_publish(a, r, word, start, forgets);
		}
	}
	ep_block_sync();
	if (forgets) {
		ep_signature_forget(a.g);
	}
}

/* ---- the host has found connections lost, and masks those ranks while kernels may run ---- */

/*
 * A rank that a kernel has masked before stays as it is. Blocks of the kernel that is running now
 * may have found it masked by an earlier one, and go on without it; the unknown step would mean to
 * the others that they have to agree, and those might agree that it is present.
 */
EP_KERNEL(ep_lost_kernel, ep_lost_args, EP_GROUP_MAX_THREADS)
{
	for (uint32_t r = ep_tid(); r < a.g.nranks; r += ep_nthreads()) {
		if (ep_ranks_has(&a.lost, r) && ep_mask_active(a.g, r)) {
			ep_st_relaxed_gpu_u32(ep_mask_steps(a.g.mask, a.g.nranks) + r,
					      EP_MASK_STEP_UNKNOWN);
			ep_st_release_gpu_u32((uint32_t *)a.g.mask + r, 0);
		}
	}
}
