/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput combine: what a warp loads, in which order.
 *
 * A warp has units of two kinds. *Returns*: a part of the rows that this rank holds for a chunk of a
 * source; expert-major, the rows of a token's local experts are summed. *Sums*: a part of a chunk of
 * this rank's own tokens, of what all ranks have returned; out of windows, where nobody is waited for,
 * a part of every n-th token. Either way a row of the result is a sum of contributions, which are
 * loaded one after the other into the warp's stage, and added from there. Where they are follows from
 * lists; lanes find it for a group of rows at once, which costs little more than for one row.
 *
 * The warp takes its units in ascending order of a key: the chunk of a return, the chunk of a sum
 * plus `lag`. A return waits for the sum of the chunk that had its place in the ring before, which has
 * a smaller key because lag is less than ring_chunks, and a sum waits for the returns of its chunk,
 * which have smaller keys, too. So whatever unit has the smallest key of all ranks, of those that are
 * not done, its warp has nothing to do before it, and it waits for nothing.
 *
 * Loads run ahead of the sums over the limits of units. A unit whose peers are not ready holds back
 * only loads; the warp waits for a peer when it has nothing left to add.
 */
#ifndef EP_DEVICE_HT_COMBINE_WORK_H
#define EP_DEVICE_HT_COMBINE_WORK_H

#include "device/ht/blame.h"
#include "device/ht/pipe.h"
#include "device/ht/units.h"

/* Lane i's state of the batch whose first slot is i. */
struct ep_ht_note {
	uint64_t to;   /* where the row's part of the result goes; copies: that of the first row */
	uint32_t what; /* EP_HT_NOTE_* */
	uint32_t unit; /* that it belongs to */
};

#define EP_HT_NOTE_VECS(what) ((what)&0x3ffu)       /* of a part */
#define EP_HT_NOTE_SLOTS(what) ((what) >> 10 & 63u) /* contributions of one row; copies: rows */
#define EP_HT_NOTE_FIRST (1u << 16)                 /* contributions to their row, or */
#define EP_HT_NOTE_LAST (1u << 17)
#define EP_HT_NOTE_EMPTY (1u << 18) /* nothing contributes: the row is zeros */
#define EP_HT_NOTE_END (1u << 19)   /* of the unit */
#define EP_HT_NOTE_SUM (1u << 20)   /* the unit is a sum */
#define EP_HT_NOTE_COPY (1u << 21)  /* nothing is added: rows go on as they are */

_Static_assert(EP_HT_COMBINE_MOST / 16 <= 0x3ff && EP_HT_MAX_STAGE_PARTS <= 63, "EP_HT_NOTE_*");

struct ep_ht_work {
	uint32_t next_return, returns; /* and how many there are */
	uint32_t next_sum;
	/* The unit that is being loaded, if one is: */
	uint32_t pending : 1; /* its peers have not been waited for yet */
	uint32_t open : 1;    /* it has rows to load */
	uint32_t is_sum : 1;
	uint32_t grouped : 1; /* its next row belongs to a group that has been prepared, */
	uint32_t begun : 1;   /* and has been begun, */
	uint32_t fresh : 1;   /* and none of what is added to that has been loaded */
	uint32_t vecs : 10;   /* of the part */
	uint32_t shift : 3;   /* rows are prepared in groups: each has 1 << shift lanes, */
	uint32_t unit;
	uint32_t chunk;
	uint32_t part;
	uint32_t row, rows;
	uint32_t first; /* return: index of row 0; sum: its token */
	uint32_t start; /* sum: of lane d < R: index of the chunk's first row to rank d; EP_HT_NONE:
			 * rank d returns nothing */
	/* and the k-th of them knows of the next group, loaded before it is needed, */
	uint32_t entry; /* return: the row's k-th place; sum: the token's k-th selection, */
	uint32_t index; /* and the row's index at that rank; */
	uint32_t base;  /* of lane d < R: slot of this rank's row 0 at rank d; all units */
};

/* The group that is being loaded. */
struct ep_ht_group {
	uint32_t lanes;            /* that have a contribution, */
	const unsigned char *from; /* and where it is */
	/* The row that is being loaded: lanes whose contributions are still to be loaded, */
	uint32_t mask;
	uint64_t to; /* and where its part of the result goes; copies: that of the next row */
};

EP_DEV bool ep_ht_flat(const struct ep_ht_common &c)
{
	return c.layout == EP_HT_FLAT;
}

/* Rows of the unit are copied, all of them as if they were contributions to one. */
EP_DEV bool ep_ht_copies(const struct ep_ht_combine_args &a, const struct ep_ht_work &work)
{
	return !work.is_sum && ep_ht_flat(a.c);
}

/* Sums wait for nobody: their units are not chunks. */
EP_DEV bool ep_ht_alone(const struct ep_ht_combine_args &a)
{
	return a.is_direct && !a.in_weights;
}

/*
 * From token to token of a sum. A sum that waits for nobody has every n-th token, so that there
 * is one for each warp, all of the same size, and what warps load at a time lies side by side.
 */
EP_DEV uint32_t ep_ht_sum_stride(const struct ep_ht_combine_args &a)
{
	return ep_ht_alone(a) ? ep_max_u32(ep_div(ep_nblocks() * ep_nwarps(), a.by_parts), 1) : 1;
}

EP_DEV uint32_t ep_ht_sums(const struct ep_ht_combine_args &a)
{
	uint32_t tokens = a.c.num_tokens;

	return (ep_ht_alone(a) ? ep_min_u32(tokens, ep_ht_sum_stride(a))
			       : ep_ht_chunks(tokens, a.c.areas.chunk_shift)) *
	       a.parts;
}

/*
 * Units of a block's warps lie as far apart as possible: neighbours belong to different blocks. The
 * warps that have one return more than others, if there are such, have one sum less, as far as that
 * goes: the first unit of the first warp is a return, that of the last warp a sum.
 */
EP_DEV uint32_t ep_ht_unit_first(void)
{
	return ep_warp() * ep_nblocks() + ep_block();
}

EP_DEV struct ep_ht_work ep_ht_work_make(const struct ep_ht_combine_args &a)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_work w = {};

	if (ep_lane() < c.g.nranks) {
		w.base = c.h.send_base[ep_lane()];
	}
	w.next_return = ep_ht_unit_first();
	w.next_sum = ep_nblocks() * ep_nwarps() - 1 - w.next_return;
	/* in windows there is nothing to return but gradients of weights, with part 0 */
	w.returns = a.is_direct && !a.in_weights ? 0 : c.h.head->chunks * a.parts * a.turns;
	return w;
}

EP_DEV uint32_t ep_ht_slot_of(const struct ep_ht_common &c, uint32_t chunk)
{
	return chunk % c.areas.ring_chunks;
}

/* Whether the word of a unit has come: `chunk`, or a later one in that slot. Any lane. */
EP_DEV bool ep_ht_unit_published(const struct ep_op &op, const uint64_t *at, uint32_t chunk)
{
	uint64_t word = ep_ld_acquire_sys_u64(at);

	return (uint32_t)(word >> 32) == op.epoch && (uint32_t)word >= chunk + 1;
}

/* ---- which unit comes next ---- */

/* To whom a return goes: the rank behind this one first. */
EP_DEV uint32_t ep_ht_return_rank(const struct ep_ht_combine_args &a, uint32_t unit)
{
	uint32_t r = unit - ep_div(unit, a.by_turns) * a.turns + a.c.g.rank + 1;

	return r < a.c.g.nranks ? r : r - a.c.g.nranks;
}

/* Lanes of a row that has up to n entries in its list: 1 << that. */
EP_DEV uint32_t ep_ht_row_shift(uint32_t n)
{
	uint32_t shift = 0;

	while (1u << shift < n) {
		shift++;
	}
	return shift;
}

/* Takes the lists of the group that begins with `row`. Nothing waits for the loads. */
EP_DEV void ep_ht_group_fetch(const struct ep_ht_combine_args &a, struct ep_ht_work *work,
			      uint32_t row)
{
	const struct ep_ht_common &c = a.c;
	uint32_t k = ep_lane() & ((1u << work->shift) - 1);

	row += ep_lane() >> work->shift;
	work->entry = work->index = EP_HT_NONE;
	if (row >= work->rows) {
		return;
	}
	if (work->is_sum && k < c.topk) {
		uint64_t at = (uint64_t)(work->first + row * ep_ht_sum_stride(a)) * c.topk + k;

		work->entry = c.h.send_sel[at];
		work->index = c.h.send_row[at];
	} else if (!work->is_sum && !ep_ht_flat(c) && k < c.width) {
		uint32_t slot = c.h.recv_base[ep_ht_return_rank(a, work->unit)] + work->first + row;

		work->entry = c.h.recv_sel[(uint64_t)slot * c.width + k];
	}
}

EP_DEV void ep_ht_return_open(const struct ep_ht_combine_args &a, struct ep_ht_work *work)
{
	const struct ep_ht_common &c = a.c;
	uint32_t all = ep_div(work->unit, a.by_turns), rank = ep_ht_return_rank(a, work->unit);

	work->is_sum = false;
	work->chunk = ep_div(all, a.by_parts);
	work->part = all - work->chunk * a.parts;
	if (a.is_direct && work->part) {
		return;
	}
	work->first = ep_ht_first(c, c.h.recv_start, rank, work->chunk);
	work->rows = ep_ht_rows(c, c.h.recv_start, rank, work->chunk);
	work->shift = ep_ht_flat(c) ? 5
				    : ep_ht_row_shift(c.width); /* copies: all rows are one group */
	work->pending = work->rows != 0;
}

/* Does rank d return rows of this rank's chunk, by way of the ring? */
EP_DEV bool ep_ht_returns(const struct ep_ht_common &c, uint32_t d, uint32_t chunk)
{
	return !(ep_ht_flat(c) && d == c.g.rank) && ep_ht_rows(c, c.h.send_start, d, chunk) != 0;
}

EP_DEV void ep_ht_sum_open(const struct ep_ht_combine_args &a, struct ep_ht_work *work)
{
	const struct ep_ht_common &c = a.c;

	work->is_sum = true;
	work->chunk = ep_div(work->unit, a.by_parts);
	work->part = work->unit - work->chunk * a.parts;
	if (ep_ht_alone(a)) {
		work->first = work->chunk;
		work->chunk = 0;
		work->rows = (c.num_tokens - work->first - 1) / ep_ht_sum_stride(a) + 1;
	} else {
		work->first = work->chunk << c.areas.chunk_shift;
		work->rows = ep_min_u32(c.num_tokens - work->first, 1u << c.areas.chunk_shift);
	}
	work->shift = ep_ht_row_shift(c.topk);
	ep_ht_group_fetch(a, work, 0); /* on its way while this looks who returns something */
	work->start = EP_HT_NONE;
	if (ep_lane() < c.g.nranks && !ep_ht_alone(a) && ep_ht_returns(c, ep_lane(), work->chunk)) {
		work->start = ep_ht_first(c, c.h.send_start, ep_lane(), work->chunk);
	}
	work->pending = true;
}

/* Opens the next unit of this warp that has rows. False: there is none. */
EP_DEV bool ep_ht_work_next(const struct ep_ht_combine_args &a, struct ep_ht_work *work)
{
	uint32_t step = ep_nblocks() * ep_nwarps(), sums = ep_ht_sums(a);

	while (!work->pending) {
		uint32_t ahead = ep_div(ep_div(work->next_return, a.by_turns), a.by_parts);

		if (work->next_return < work->returns &&
		    (work->next_sum >= sums ||
		     ahead <= ep_div(work->next_sum, a.by_parts) + a.lag)) {
			work->unit = work->next_return;
			work->next_return += step;
			ep_ht_return_open(a, work);
		} else if (work->next_sum < sums) {
			work->unit = work->next_sum;
			work->next_sum += step;
			ep_ht_sum_open(a, work);
		} else {
			return false;
		}
	}
	work->row = 0;
	work->begun = work->grouped = false;
	work->vecs = ep_min_u32(a.part_bytes, a.token_bytes - work->part * a.part_bytes) / 16;
	if (!work->is_sum) {
		ep_ht_group_fetch(a, work, 0);
	}
	return true;
}

/* ---- whom a unit waits for ---- */

/* The rank from which lane's share of a sum is still missing, of ranks lane, lane + 32, ...; or NONE. */
EP_DEV uint32_t ep_ht_sum_missing(const struct ep_ht_combine_args &a, const struct ep_op &op,
				  const struct ep_ht_work &work)
{
	const struct ep_ht_common &c = a.c;

	/* part 0 carries the gradients of weights */
	if (a.is_direct && (!a.in_weights || work.part)) {
		return EP_HT_NONE;
	}
	for (uint32_t d = ep_lane(); d < c.g.nranks; d += EP_WARP_SIZE) {
		if (!(d < EP_WARP_SIZE ? work.start != EP_HT_NONE
				       : ep_ht_returns(c, d, work.chunk))) {
			continue;
		}
		if (!ep_ht_unit_published(op,
					  ep_ht_unit_at(c, c.g.own, c.areas.arrived_off, d,
							ep_ht_slot_of(c, work.chunk), work.part),
					  work.chunk)) {
			return d;
		}
	}
	return EP_HT_NONE;
}

/* The rank that has not read yet what lay in the ring before, if a return has to wait; or NONE. */
EP_DEV uint32_t ep_ht_return_missing(const struct ep_ht_combine_args &a, const struct ep_op &op,
				     const struct ep_ht_work &work)
{
	const struct ep_ht_common &c = a.c;
	const uint64_t *at;
	uint32_t before, rank;

	if (work.chunk < c.areas.ring_chunks || ep_lane()) {
		return EP_HT_NONE;
	}
	rank = ep_ht_return_rank(a, work.unit);
	at = ep_ht_credit_at(c, c.h.recv_start, rank, work.chunk, work.part, &before);
	return at && !ep_ht_unit_published(op, at, before) ? rank : EP_HT_NONE;
}

enum ep_ht_found {
	EP_HT_NOTHING,
	EP_HT_READY,
	EP_HT_NOT_YET,
	EP_HT_FAILED
};

/* Are the peers of the open unit ready? `patient`: waits for them. */
EP_DEV enum ep_ht_found ep_ht_work_peers(const struct ep_ht_combine_args &a, const struct ep_op &op,
					 const struct ep_ht_work &work, bool patient)
{
	enum ep_wait_site site = work.is_sum ? EP_WAIT_HT_ROWS : EP_WAIT_HT_CREDIT;
	struct ep_spin s = ep_spin_start();
	uint32_t before = EP_HT_NONE;

	for (;;) {
		uint32_t missing = work.is_sum ? ep_ht_sum_missing(a, op, work)
					       : ep_ht_return_missing(a, op, work);
		bool over = false, come = ep_all(EP_FULL_MASK, missing == EP_HT_NONE);

		if (come) {
			ep_ht_go_on<false>(a.c, op, s);
		}
		ep_bulk_fence_global();
		if (come) {
			return EP_HT_READY;
		}
		if (!patient) {
			return EP_HT_NOT_YET;
		}
		if (missing != EP_HT_NONE) {
			if (missing != before) { /* a wait for another rank begins */
				ep_ht_go_on<false>(a.c, op, s);
				before = missing;
				s = ep_spin_start();
			}
			over = ep_ht_give_up<false>(a.c, op, &s, site, missing);
		}
		if (ep_any(EP_FULL_MASK, over)) {
			return EP_HT_FAILED;
		}
	}
}

#endif
