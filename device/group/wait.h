/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for a peer, and when that ends; and what the blocks of a kernel decide about a peer that
 * may not have come. Kernels poll in a loop of their own and call ep_wait_give_up() after each poll
 * that failed, which also does what follows from a wait that has failed; nothing here costs more
 * than a counter until 64 polls have failed.
 *
 * REMOTE: in a kernel of low latency for several nodes, which posts signs, too (signs.h).
 */
#ifndef EP_DEVICE_GROUP_WAIT_H
#define EP_DEVICE_GROUP_WAIT_H

#include "device/group/signature.h"
#include "device/group/signs.h"

EP_DEV uint32_t ep_min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

EP_DEV uint32_t ep_max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/*
 * A peer whom nobody holds up is granted 1/2, 1/4 or 1/8 of this beyond the timeout, by where it
 * and this rank stand: wait_extended(). doc/design/masks.md, example 2, has the longest waits that
 * follow.
 */
#define EP_WAIT_GRACE_NS 1000000000u
/* The least time for a peer that another rank may hold up: that one has 1/2 s itself. */
#define EP_WAIT_HELD_NS (EP_WAIT_GRACE_NS / 8 * 5)

/* Where a peer stands that is waited for: grace is EP_WAIT_GRACE_NS >> this. */
enum ep_wait_stand {
	EP_WAIT_BEHIND = 1, /* has not started the operation */
	EP_WAIT_WITH = 2,   /* has started its send half, and may be waiting for its bank */
	EP_WAIT_AHEAD = 3   /* has started a later step */
};

/* Above the number of polls, ep_spin.polls holds */
#define EP_WAIT_SEEN_SHIFT 27     /* wait_seen() of the last look; 0: there was none; */
#define EP_WAIT_MOVED (1u << 26)  /* whether that has changed since the first look; */
#define EP_WAIT_MASKED (1u << 25) /* whether the peer has been seen to have masked this rank */
#define EP_WAIT_HELD (1u << 24)   /* high throughput: the peer waits itself (ht/signs.h) */
#define EP_WAIT_CUT (1u << 23)    /* its start is not when it began (wait_cut) */
#define EP_WAIT_FULL (1u << 22)   /* polls have come here: this is taken away, lest they go on */

EP_DEV enum ep_wait_stand wait_stand(const struct ep_op &op, uint32_t step)
{
	return step == op.epoch                 ? EP_WAIT_WITH
	       : (int32_t)(step - op.epoch) > 0 ? EP_WAIT_AHEAD
						: EP_WAIT_BEHIND;
}

/* What shows that a peer lives: that it changes. Never 0; at most 5 bits. */
EP_DEV uint32_t wait_seen(enum ep_wait_stand stand, uint32_t step, uint32_t signs)
{
	return stand == EP_WAIT_AHEAD
		       ? 31
		       : 1 + (step & 3) * (EP_SIGNS + 1) + ep_min_u32(signs, EP_SIGNS);
}

/*
 * Has the peer taken a step or given a sign since this wait's last look? Then it lives, and with
 * masks the wait counts from now on. A peer that has started a later step has sent all that this
 * wait is for, and gets what it is granted beyond the timeout. Without masks only that counts from
 * now on, and an expired wait looks for the first time: a peer that has not started the operation
 * then has had its time.
 */
EP_DEV bool wait_moved(const struct ep_dev_group &g, const struct ep_op &op, struct ep_spin *spin,
		       bool expired, uint32_t peer, uint32_t step)
{
	uint32_t before = spin->polls >> EP_WAIT_SEEN_SHIFT, seen;
	enum ep_wait_stand stand = wait_stand(op, step);

	if (peer == g.rank || !(g.mask_enabled || expired)) {
		return false;
	}
	seen = wait_seen(stand, step, g.mask_enabled ? ep_signs_of(g, step, peer) : 0);
	spin->polls = (spin->polls & ((1u << EP_WAIT_SEEN_SHIFT) - 1)) | seen << EP_WAIT_SEEN_SHIFT;
	if (before == seen || (stand == EP_WAIT_AHEAD && !expired) ||
	    (!before && (g.mask_enabled || stand == EP_WAIT_BEHIND))) {
		return false;
	}
	spin->polls |= EP_WAIT_MOVED;
	spin->start_ns =
		ep_time_ns() - (g.mask_enabled && stand != EP_WAIT_AHEAD ? 0 : g.timeout_ns);
	return true;
}

/*
 * The timeout of a wait for `peer` has passed: does the wait go on? Rank A waits for B, and B may
 * be late only because it waits for C. Were A to give up at its timeout, A would blame B, which is
 * alive.
 *
 *   1. With masks a peer would have given a sign if it lived (wait_moved): nobody holds it up. Its
 *      last word may be on its way.
 *   2. Without masks a peer, and with them this rank itself, may be held up by a rank that has not
 *      come as far as it needs that to be. A grants B the timeout once more, and longer than B
 *      grants that rank. If B has started the step it needs its bank free, so everybody must have
 *      started a later step than the one that freed the bank; else everybody must have come as far
 *      as B has. In high throughput B gives a sign that it waits (EP_WAIT_HELD), as ranks of one
 *      step hold each other up there.
 *   3. The progress words show nobody who holds B up. B may still be waiting for a message that was
 *      for B alone and is lost, or for a rank whose word of a step came to A and not to B. If that
 *      wait began a little later than A's, it ends a little later, and B needs time to come to
 *      where A waits for it, the more the further it is behind: A grants it 1/2, 1/4 or 1/8 second.
 *      B has to grant less than A does, however B sees the rank that it waits for; and the words of
 *      A and of others tell B how far it is behind them: 1/4 second at most by one step, 1/8 by
 *      two. A rank that has started a later step has sent all that A waits for; its 1/8 second is
 *      for rows of a remote rank: its progress word, which has a queue of its own, may arrive
 *      before them.
 */
EP_DEV bool wait_extended(const struct ep_dev_group &g, const struct ep_op &op,
			  const struct ep_spin &spin, uint32_t peer)
{
	uint32_t reached = ep_progress_step(g, peer);
	enum ep_wait_stand stand = wait_stand(op, reached);
	uint32_t needed = stand == EP_WAIT_WITH ? op.freed + 1 : reached;
	bool signs = g.mask_enabled && peer != g.rank;
	bool held = spin.polls & EP_WAIT_HELD;
	int32_t lead = 0;
	uint64_t grace;

	EP_UNROLL(1) /* a wait that expires is rare: not worth the registers */
	for (uint32_t r = 0; r < g.nranks && stand != EP_WAIT_AHEAD; r++) {
		uint32_t step = ep_progress_step(g, r);

		held |= !signs && needed != 1 && (int32_t)(step - needed) < 0;
		lead = (int32_t)(step - op.step) > lead ? (int32_t)(step - op.step) : lead;
	}
	grace = EP_WAIT_GRACE_NS >> ep_min_u32(EP_WAIT_AHEAD, ep_max_u32(stand, 1 + lead));
	if (held) {
		grace = g.timeout_ns > EP_WAIT_HELD_NS ? g.timeout_ns : EP_WAIT_HELD_NS;
	}
	return ep_time_ns() - spin.start_ns - g.timeout_ns < grace;
}

/* Time in units of about a millisecond. */
#define EP_WAIT_CLOCK(ns) ((uint32_t)((ns) >> 20))

/*
 * Gives the sign that is due, if one is: waits of this step have lasted so many halves of the
 * timeout.
 */
EP_DEV void waits_sign(const struct ep_dev_group &g, uint32_t step)
{
	uint64_t word = ep_ld_relaxed_gpu_u64(&g.state->waits);
	uint32_t now = EP_WAIT_CLOCK(ep_time_ns());
	int32_t units = (int32_t)(now - (uint32_t)word); /* clocks of SMs differ a little */
	uint32_t given;

	if ((uint32_t)(word >> 32) != step) {
		ep_st_relaxed_gpu_u64(&g.state->waits, (uint64_t)step << 32 | now);
		return;
	}
	given = ep_signs_of(g, step, g.rank);
	if (given < EP_SIGNS && units > 0 &&
	    ((uint64_t)units << 20) >= (given + 1) * (g.timeout_ns / 2)) {
		ep_sign_give(g, step, given + 1);
	}
}

/* A wait of this step was in vain, the first one: wait_since publishes it. */
EP_DEV void wait_in_vain(const struct ep_dev_group &g, const struct ep_op &op,
			 const struct ep_spin &spin)
{
	uint64_t word = ep_ld_relaxed_gpu_u64(&g.state->in_vain);

	if (spin.start_ns && (uint32_t)(word >> 32) != op.step) {
		ep_st_relaxed_gpu_u64(&g.state->in_vain,
				      (uint64_t)op.step << 32 | EP_WAIT_CLOCK(spin.start_ns));
	}
}

/*
 * Several ranks are lost. A block waits for the rows of one after the other, and each of them has
 * had its time when the first wait of the step has expired: this wait counts from there. With masks
 * not if the peer has taken a step since half of that time, or given a sign in its step: it has all
 * its time. A peer that has started the operation has what it would be granted if the timeout
 * passed now.
 */
EP_DEV void wait_since(const struct ep_dev_group &g, const struct ep_op &op, struct ep_spin *spin,
		       uint32_t peer)
{
	uint64_t word = ep_ld_relaxed_gpu_u64(&g.state->in_vain);

	if ((uint32_t)(word >> 32) == op.step && !(spin->polls & EP_WAIT_MOVED)) {
		uint32_t step = ep_progress_step(g, peer);

		if (g.mask_enabled &&
		    (ep_ld_relaxed_gpu_u64(ep_mask_stood(g.mask, g.nranks) + peer) != step ||
		     ep_signs_of(g, step, peer))) {
			return;
		}

		uint64_t now = ep_time_ns();
		/*
		 * the other wait was on another SM, whose clock may be a little ahead of this one
		 */
		int32_t units = (int32_t)(EP_WAIT_CLOCK(now) - (uint32_t)word);
		uint64_t age = units > 0 ? (uint64_t)units << 20 : 0;

		if (age > g.timeout_ns && (int32_t)(step - op.epoch) >= 0) {
			age = g.timeout_ns;
		}
		if (!spin->start_ns || age > now - spin->start_ns) {
			spin->start_ns = now - age;
		}
	}
}

/* Has the host given up the connection with rank r? For the few: it reads host memory. */
EP_DEV bool ep_remote_down(const struct ep_dev_group &g, uint32_t r)
{
	return ep_rank_remote(g, r) && ep_ld_relaxed_sys_u32(g.remote->down + r);
}

/*
 * The same for waits, in which all warps may be at once. Reads of one word of host memory are
 * served one after the other, a microsecond each, and every fence at system scope and every copy by
 * others has to wait until they are: 2048 warps that read it make that 2 ms. So only one wait of
 * the GPU looks per 16 us, at one rank's word after the other, and publishes it in device memory.
 */
#define EP_WAIT_CHECK_SHIFT 14
#define EP_WAIT_CHECK_RANKS 2048u
_Static_assert(EP_GROUP_MAX_RANKS <= EP_WAIT_CHECK_RANKS, "ep_dev_state.checked");

EP_DEV uint64_t *wait_down_seen(const struct ep_dev_group &g, uint32_t r)
{
	return &g.remote->links[r].down;
}

EP_DEV bool ep_wait_down(const struct ep_dev_group &g, uint32_t r)
{
	if (!ep_rank_remote(g, r)) {
		return false;
	}

	uint32_t word = ep_ld_relaxed_gpu_u32(&g.state->checked), at = word % EP_WAIT_CHECK_RANKS;
	uint32_t now = (uint32_t)(ep_time_ns() >> EP_WAIT_CHECK_SHIFT) * EP_WAIT_CHECK_RANKS;

	if (now != word - at) {
		now += at + 1 < g.nranks ? at + 1 : 0;
		if (ep_atomic_cas_gpu_u32(&g.state->checked, word, now) == word &&
		    ep_remote_down(g, at)) {
			ep_st_relaxed_gpu_u64(wait_down_seen(g, at), 1);
		}
	}
	return ep_ld_relaxed_gpu_u64(wait_down_seen(g, r)) != 0;
}

/* A wait for `peer` must end, and this is why. EP_WAIT_END_SILENT: the failure is known already. */
#define EP_WAIT_GOES_ON 0u
#define EP_WAIT_END_SILENT 0xffu

/*
 * A remote peer has masked this rank, and its word is of a step later than this operation, of which
 * it has sent all that it will ever send. But the word came by the control queue, and may have
 * overtaken rows, which have queues of their own. (Counts have not: they came by the same queue
 * before it.) A peer of the node stores its word behind its rows; and a word of this operation
 * itself shows a peer that masked this rank before it sent.
 */
EP_DEV bool wait_overtaken(const struct ep_dev_group &g, const struct ep_op &op,
			   enum ep_wait_site site, uint32_t peer, uint64_t word)
{
	return (int32_t)((uint32_t)word - op.epoch) > 0 && ep_rank_remote(g, peer) &&
	       (site == EP_WAIT_DISPATCH_ROW || site == EP_WAIT_COMBINE_ROW);
}

/* The most that such rows are waited for: a timeout of years stands for one that never ends. */
#define EP_WAIT_OVERTAKEN_NS 4000000000u

/*
 * A wait for such rows ends after T/8, which is what their sender grants their queue to a rank that
 * it has masked (ep_remote_masked_ns). Its start is moved back for that, so that it no longer shows
 * when the wait began: EP_WAIT_CUT keeps it from the step's other waits, which would give up ranks
 * too early.
 */
EP_DEV void wait_cut(const struct ep_dev_group &g, struct ep_spin *spin)
{
	uint64_t more = g.timeout_ns / 8 < EP_WAIT_OVERTAKEN_NS ? g.timeout_ns / 8
								: EP_WAIT_OVERTAKEN_NS;
	uint64_t now = ep_time_ns();

	if (!spin->start_ns || now - spin->start_ns < g.timeout_ns - more) {
		spin->start_ns = now - (g.timeout_ns - more);
		spin->polls |= EP_WAIT_CUT;
	}
}

/* Looks for a reason to end a wait; `lead`: how many steps the peer's word is ahead. */
EP_DEV uint32_t wait_verdict(const struct ep_dev_group &g, const struct ep_op &op,
			     struct ep_spin *spin, bool expired, enum ep_wait_site site,
			     uint32_t peer, uint32_t *lead)
{
	uint64_t word = g.mask_enabled || expired ? ep_progress_load(g, peer) : 0;
	bool excluded = g.mask_enabled && ep_mask_by_peer(g, op, peer, word);

	*lead = (uint32_t)word - op.step;
	if (!excluded && wait_moved(g, op, spin, expired, peer, (uint32_t)word)) {
		expired = false;
	}
	if (expired && !wait_extended(g, op, *spin, peer)) {
		return excluded ? EP_CAUSE_EXCLUDED : EP_CAUSE_TIMEOUT;
	}
	if (ep_aborted(g) || !ep_mask_active(g, peer)) {
		return EP_WAIT_END_SILENT;
	}
	if (ep_wait_down(g, peer)) {
		return EP_CAUSE_RDMA;
	}
	if (!excluded) {
		return EP_WAIT_GOES_ON;
	}
	/* It sends nothing more. But what it sent before may have come since the last poll. */
	if (spin->polls & EP_WAIT_MASKED) {
		return EP_CAUSE_EXCLUDED;
	}
	if (wait_overtaken(g, op, site, peer, word)) {
		wait_cut(g, spin);
	} else {
		spin->polls |= EP_WAIT_MASKED;
	}
	return EP_WAIT_GOES_ON;
}

/* A wait that lasts shows itself, and its age: not often, for the word is in host memory. */
EP_DEV void ep_wait_show(const struct ep_dev_group &g, const struct ep_op &op,
			 const struct ep_spin &spin, enum ep_wait_site site, uint32_t peer)
{
	if (!g.waits || !spin.start_ns || !ep_spin_shows(&spin) || peer == g.rank) {
		return;
	}

	uint64_t age = ep_time_ns() - spin.start_ns;

	if (age >= EP_WAIT_SHOW_NS && (int64_t)age > 0) {
		ep_st_relaxed_sys_u64(g.waits + peer,
				      ep_wait_word(op.step, op.is_combine, site, age));
	}
}

struct ep_wait_result {
	struct ep_spin spin;
	bool over;
};

/*
 * Looks for a reason to end a wait, and acts on it. Out of line, and given and returning values: it
 * is reached by every 64th poll, and written out at each wait it would make the kernels a tenth
 * longer, which few tokens pay for in fetched instructions.
 */
template <bool REMOTE>
EP_DEV_COLD struct ep_wait_result ep_wait_check(const struct ep_dev_group &g, struct ep_op op,
						struct ep_spin spin, bool expired,
						enum ep_wait_site site, uint32_t peer)
{
	struct ep_wait_result w;
	/* a bank is waited for before the step sends: who is late there may be late later, too */
	bool counts = site != EP_WAIT_PROGRESS;
	uint32_t lead, verdict;

	spin.polls &= ~EP_WAIT_FULL;
	if (counts) {
		wait_since(g, op, &spin, peer);
	}
	ep_wait_show(g, op, spin, site, peer);
	if (g.mask_enabled) {
		waits_sign(g, op.step);
	}
	verdict = wait_verdict(g, op, &spin, expired, site, peer, &lead);
	if (counts && verdict != EP_WAIT_GOES_ON && !(spin.polls & EP_WAIT_CUT)) {
		wait_in_vain(g, op, spin);
	}
	if (verdict != EP_WAIT_GOES_ON && verdict != EP_WAIT_END_SILENT) {
		ep_mask_peer(g, op, verdict, site, peer, verdict == EP_CAUSE_EXCLUDED ? lead : 0,
			     0);
	}
	w.spin = spin;
	w.over = verdict != EP_WAIT_GOES_ON ||
		 ep_signature_check(g, op.step, (spin.polls & (EP_WAIT_FULL - 1)) >> 6);
	if (REMOTE && !w.over) {
		ep_sign_post(g, op.step);
	}
	return w;
}

/*
 * Masks the peer, or aborts the group, and records why, if the wait for `peer` has failed. Called
 * after each poll that found nothing. True: the wait is over, because it has failed now, or because
 * the peer was masked or the group aborted before.
 */
template <bool REMOTE>
EP_DEV bool ep_wait_give_up(const struct ep_dev_group &g, const struct ep_op &op,
			    struct ep_spin *spin, enum ep_wait_site site, uint32_t peer)
{
	bool expired = ep_spin_expired(spin, g.timeout_ns, site, peer);
	struct ep_wait_result w;

	if (!expired && (spin->polls & 63) != 0) {
		return false;
	}
	w = ep_wait_check<REMOTE>(g, op, *spin, expired, site, peer);
	*spin = w.spin;
	return w.over;
}

/* Waits for a flag to hold that; false when the peer failed. */
template <bool REMOTE>
EP_DEV bool ep_wait_flag(const struct ep_dev_group &g, const struct ep_op &op, const uint64_t *flag,
			 uint64_t value, enum ep_wait_site site, uint32_t peer)
{
	struct ep_spin s = ep_spin_start();

	while (ep_ld_acquire_sys_u64(flag) != value) {
		if (ep_wait_give_up<REMOTE>(g, op, &s, site, peer)) {
			return false;
		}
	}
	return true;
}

/* Waits for an 8-byte word; false when the peer failed. */
template <bool REMOTE>
EP_DEV bool ep_wait_word(const struct ep_dev_group &g, const struct ep_op &op, const void *p,
			 uint32_t *d, enum ep_wait_site site, uint32_t peer)
{
	struct ep_spin s = ep_spin_start();

	while (!ep_ld_word(p, op.epoch, d)) {
		if (ep_wait_give_up<REMOTE>(g, op, &s, site, peer)) {
			return false;
		}
	}
	return true;
}

/* Waits for a 16-byte packet; false when the peer failed. */
template <bool REMOTE>
EP_DEV bool ep_wait_packet(const struct ep_dev_group &g, const struct ep_op &op, const void *p,
			   uint32_t *d0, uint32_t *d1, enum ep_wait_site site, uint32_t peer)
{
	struct ep_spin s = ep_spin_start();

	while (!ep_ld_packet(p, op.epoch, d0, d1)) {
		if (ep_wait_give_up<REMOTE>(g, op, &s, site, peer)) {
			return false;
		}
	}
	return true;
}

/*
 * Rows of remote rank r have come, and its mark of the operation was not here before: waits for it,
 * and compares. A receive half may run so late that a mark of r's later steps has taken its place:
 * then ep_signature_close() has compared it, if it had come by the end of the step behind this one.
 * False: r disagrees, or has failed.
 */
EP_DEV_COLD bool ep_wait_signature(const struct ep_dev_group &g, struct ep_op op,
				   enum ep_wait_site site, uint32_t r, uint32_t seal)
{
	struct ep_spin s = ep_spin_start();
	uint64_t mark = ep_signature_load(g, op.epoch, r);

	while ((uint32_t)(mark >> 32) != op.epoch) {
		if (mark && (int32_t)((uint32_t)(mark >> 32) - op.epoch) > 0) {
			return true;
		}
		if (ep_wait_give_up<true>(g, op, &s, site, r)) {
			return false;
		}
		mark = ep_signature_load(g, op.epoch, r);
	}
	if ((uint32_t)mark != seal) {
		ep_mask_peer(g, op, EP_CAUSE_MISMATCH, site, r, op.epoch, 0);
		return false;
	}
	return true;
}

/*
 * ---- the arrival decision ----
 *
 * It says whether a rank takes part in an operation, as all blocks of a receiving kernel agree.
 * With masks, a block goes on without a rank whose counts do not come. Where rows lie follows from
 * all ranks' counts, so a block that has gone on without a rank, and one that has its counts, would
 * put the rows of everybody else in different places.
 *
 * Blocks that find all counts need not agree on anything. A block that misses a rank's counts
 * claims the decision in a word of the rank, with a compare-and-swap, looks once more, and then
 * publishes in the word what it saw; other blocks adopt that. A block that has the counts looks at
 * the word after it has seen them:
 *
 *   - The word is not of this operation. Whoever claims it from now on looks at the counts
 *     after that, finds them as this block has, and decides "present".
 *   - Somebody has claimed the decision before. This block waits for it and adopts it, also if it
 *     is "absent" and the counts came just afterwards.
 *
 * The claim is ordered before the second look by a full fence, and a kernel's load is never
 * performed before one that decides whether it is reached.
 */

EP_DEV uint64_t arrival_word(const struct ep_op &op, enum ep_arrival state)
{
	return (uint64_t)op.epoch << 32 | state;
}

EP_DEV uint64_t ep_arrival_load(const struct ep_dev_group &g, uint32_t r)
{
	return ep_ld_relaxed_gpu_u64(ep_mask_arrival(g.mask, g.nranks) + r);
}

/* Whether the word is of this operation. */
EP_DEV bool ep_arrival_decided(const struct ep_op &op, uint64_t word)
{
	return (uint32_t)(word >> 32) == op.epoch;
}

/*
 * Waits until the decision about r is made, which takes another block some microseconds. If that
 * block is never scheduled again, this rank's blocks cannot agree, and the group is aborted. One
 * lane.
 */
EP_DEV uint32_t ep_arrival_adopt(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r)
{
	const uint64_t *word = ep_mask_arrival(g.mask, g.nranks) + r;
	struct ep_spin s = ep_spin_start();
	uint32_t state;

	while ((state = (uint32_t)ep_ld_acquire_gpu_u64(word)) == EP_ARRIVAL_CLAIMED) {
		if (ep_aborted(g)) {
			return EP_ARRIVAL_PRESENT; /* nobody asks any more */
		}
		if (ep_spin_expired(&s, g.timeout_ns, EP_WAIT_AGREEMENT, r)) {
			struct ep_record record = ep_record_make(op, EP_CAUSE_TIMEOUT, r);

			record.site = EP_WAIT_AGREEMENT;
			ep_record_write(g, EP_RECORD_FATAL, record);
			ep_abort(g);
		}
	}
	return state;
}

/*
 * Claims the decision about r: EP_ARRIVAL_CLAIMED, and the caller decides with what it sees from
 * now on, or what another block has decided. One lane.
 */
EP_DEV uint32_t ep_arrival_claim(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r)
{
	uint64_t *word = ep_mask_arrival(g.mask, g.nranks) + r;
	uint64_t old = ep_ld_relaxed_gpu_u64(word);

	while (!ep_arrival_decided(op, old)) {
		uint64_t found =
			ep_atomic_cas_sc_gpu_u64(word, old, arrival_word(op, EP_ARRIVAL_CLAIMED));

		if (found == old) {
			return EP_ARRIVAL_CLAIMED;
		}
		old = found;
	}
	return ep_arrival_adopt(g, op, r);
}

EP_DEV void ep_arrival_decide(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r,
			      bool present)
{
	ep_st_release_gpu_u64(ep_mask_arrival(g.mask, g.nranks) + r,
			      arrival_word(op, present ? EP_ARRIVAL_PRESENT : EP_ARRIVAL_ABSENT));
}

/*
 * Was r masked when this kernel began? Then all its blocks find it masked. Who was masked since
 * then is in doubt: other blocks may have looked at the mask before. So is whom the host has
 * masked, which it does while kernels run when it finds a connection lost.
 */
EP_DEV bool ep_arrival_masked_before(const struct ep_dev_group &g, const struct ep_op &op,
				     uint32_t r)
{
	uint32_t masked = ep_ld_acquire_gpu_u32((const uint32_t *)g.mask + r) == 0;
	uint32_t step = ep_ld_relaxed_gpu_u32(ep_mask_steps(g.mask, g.nranks) + r);

	return masked && step != op.step && step != EP_MASK_STEP_UNKNOWN;
}

/* The blocks have agreed to go on without r: later kernels need not agree again. One lane. */
EP_DEV void ep_arrival_settle(const struct ep_dev_group &g, const struct ep_op &op, uint32_t r)
{
	uint32_t *step = ep_mask_steps(g.mask, g.nranks) + r;

	if (!ep_mask_active(g, r) && ep_ld_relaxed_gpu_u32(step) == EP_MASK_STEP_UNKNOWN) {
		ep_st_relaxed_gpu_u32(step, op.step);
	}
}

#endif
