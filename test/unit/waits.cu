/* SPDX-License-Identifier: Apache-2.0 */
#include "device/group/step.h"
#include "waits.h"
#include "device/ht/pipe.h"
#include "device/ht/signs.h"

/* As kernels for one node wait, and those for several. */
EP_DEV bool give_up(const struct ep_dev_group &g, const struct ep_op &op, struct ep_spin *spin,
		    enum ep_wait_site site, uint32_t peer)
{
	return g.remote ? ep_wait_give_up<true>(g, op, spin, site, peer)
			: ep_wait_give_up<false>(g, op, spin, site, peer);
}

EP_DEV struct ep_wait_result check(const struct ep_dev_group &g, const struct ep_op &op,
				   const struct ep_spin &spin, bool expired, uint32_t peer)
{
	return g.remote ? ep_wait_check<true>(g, op, spin, expired, EP_WAIT_COMBINE_ROW, peer)
			: ep_wait_check<false>(g, op, spin, expired, EP_WAIT_COMBINE_ROW, peer);
}

/* So many polls are made without naps: the first poll of another wait before each is progress. */
#define BUSY 700

/*
 * Some seconds: the clock, which says when to look, stands still after the machine has denied
 * processors.
 */
#define ASKS_MOST 100000000u

EP_KERNEL(waits_kernel, waits_args, 32)
{
	struct ep_spin spin = ep_spin_start();
	struct waits_result r = {};
	struct ep_op op = {};
	uint32_t checked;
	enum ep_wait_site site = a.site ? (enum ep_wait_site)a.site : EP_WAIT_COMBINE_ROW;
	uint64_t start = ep_time_ns();

	if (ep_tid() != 0) {
		return;
	}
	checked = a.g.state->checked;
	op.epoch = 5;
	op.step = a.step ? a.step : op.epoch;
	spin.polls = a.polled;
	for (uint32_t i = 0; r.checks < a.checks && i < ASKS_MOST; i++) {
		ep_wait_down(a.g, 1);
		r.checks += a.g.state->checked != checked;
		checked = a.g.state->checked;
	}
	if (a.ahead) {
		a.g.state->in_vain = (uint64_t)op.step << 32 |
				     (uint32_t)(EP_WAIT_CLOCK(ep_time_ns()) + a.ahead);
	}
	while (!ep_ld_word(a.word, op.epoch, &r.word)) {
		if (r.polls < BUSY) {
			struct ep_spin other = ep_spin_start();

			(void)ep_spin_expired(&other, a.g.timeout_ns, site, 1);
		}
		if (++r.polls == a.arrives) {
			ep_st_word(a.word, 7, op.epoch);
		}
		if (r.polls == a.masks) {
			ep_st_retired_sys_u64((uint64_t *)a.g.heap[0] + 1,
					      ep_progress_word(6, 0, 1));
		}
		r.gave_up = give_up(a.g, op, &spin, site, 1);
		if (r.gave_up) {
			break;
		}
	}
	r.ns = ep_time_ns() - start;
	*a.out = r;
}

/*
 * The wait of step 6, which this rank has started, for a bank that step 4 used; r.gave_up: it is
 * not free.
 */
EP_KERNEL(bank_kernel, waits_args, 32)
{
	struct waits_result r = {};
	struct ep_op op = {};

	op.step = op.epoch = 6;
	op.freed = 4;
	r.gave_up = ep_bank_wait<false>(a.g, op,
					ep_lane() == 1 ? ep_progress_load(a.g, 1)
						       : ep_progress_word(6, 0, 0)) != EP_BANK_FREE;
	if (ep_tid() == 0) {
		*a.out = r;
	}
}

/* The last look at a wait for rank 1 that has lasted so long beyond the timeout: is it over? */
EP_KERNEL(grace_kernel, waits_args, 32)
{
	struct ep_op op = {};
	struct ep_spin s = { ep_time_ns() - a.g.timeout_ns - a.beyond_ns, 64 };

	op.epoch = op.step = a.step;
	op.freed = a.step - 2;
	if (ep_tid() == 0 && a.vain_ns) {
		s.start_ns = ep_time_ns();
		a.g.state->in_vain = (uint64_t)op.step << 32 |
				     (uint32_t)EP_WAIT_CLOCK(s.start_ns - a.vain_ns);
	}
	if (ep_tid() == 0) {
		struct ep_wait_result w = check(a.g, op, s, !a.vain_ns, 1);

		a.out->gave_up = w.over;
		a.out->ns = ep_time_ns() - w.spin.start_ns;
	}
}

/*
 * A wait for rows of rank 1, which takes step a.step meanwhile, gives a sign, and never sends them.
 */
EP_KERNEL(moves_kernel, waits_args, 32)
{
	struct ep_spin spin = ep_spin_start();
	uint64_t start = ep_time_ns();
	struct waits_result r = {};
	struct ep_op op = {};

	if (ep_tid() != 0) {
		return;
	}
	op.epoch = op.step = a.step;
	while (!r.gave_up) {
		r.gave_up = give_up(a.g, op, &spin, EP_WAIT_COMBINE_ROW, 1);
		r.ns = ep_time_ns() - start;
		if (r.ns >= a.moves_ns) {
			ep_st_retired_sys_u64((uint64_t *)a.g.own + 1,
					      ep_progress_word(a.step, 0, 0));
		}
		if (r.ns >= a.signs_ns) {
			ep_signature_at(a.g, a.g.own, a.step, 1)->sign = UINT64_C(1) << 32 | a.step;
		}
		if (!r.signed_ns && ep_signs_of(a.g, op.step, a.g.rank)) {
			r.signed_ns = r.ns;
		}
	}
	*a.out = r;
}

/* One look of a block at a wait for rank 1 of step a.step, whose waits have lasted a.waited_ns. */
EP_KERNEL(signs_kernel, waits_args, 32)
{
	struct ep_spin s = { ep_time_ns(), 64 };
	struct ep_op op = {};

	op.epoch = op.step = a.step;
	if (ep_tid() == 0 && ep_block() == a.block) {
		a.g.state->waits = (uint64_t)op.step << 32 |
				   (uint32_t)EP_WAIT_CLOCK(s.start_ns - a.waited_ns);
		a.out->gave_up = check(a.g, op, s, false, 1).over;
	}
}

/* One look at a wait for a peer that has started the operation, or the one before. */
EP_KERNEL(ht_wait_kernel, ht_wait_args, 32)
{
	struct ep_spin s = { ep_time_ns() - a.waited_ns, 64 };
	struct ep_op op = {};

	op.epoch = op.step = 5;
	s.polls |= wait_seen(wait_stand(op, ep_progress_step(a.c.g, a.peer)),
			     ep_progress_step(a.c.g, a.peer), 0)
		   << EP_WAIT_SEEN_SHIFT;
	if (ep_tid() == 0) {
		*a.over =
			ep_ht_wait_check<true>(a.c, op, s, a.expired, EP_WAIT_HT_ROWS, a.peer).over;
		if (a.leaves) {
			ep_ht_queue_leave(a.c, op, a.leaves);
		}
	}
}

/*
 * A wait for another warp of this rank that does not come: what it waits for is a word nobody
 * writes.
 */
EP_KERNEL(ht_own_kernel, ht_wait_args, 32)
{
	struct ep_spin s = ep_spin_start();
	struct ep_op op = {};

	op.epoch = op.step = 5;
	if (ep_tid() == 0) {
		while (!ep_ht_give_up<false>(a.c, op, &s, EP_WAIT_HT_ROWS, a.c.g.rank)) {
		}
		*a.over = 1;
	}
}

/* A stage whose slots are held, and nothing is on its way to them. */
EP_KERNEL(ht_stuck_kernel, ht_wait_args, 32)
{
	struct ep_ht_pipe p = ep_ht_pipe_make(HT_STUCK_SLOTS, 128);
	struct ep_op op = {};
	bool come;

	p.held = HT_STUCK_SLOTS;
	come = ep_ht_pipe_wait(a.c.g, op, &p, a.peer);
	ep_ht_pipe_end(a.c.g, op, &p);
	if (ep_tid() == 0) {
		*a.over = come;
	}
}
