/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput combine: what a copy warp loads, in which order. Groups of one node have two
 * kinds of units, groups of several nodes three. Kernels of one node are compiled without what is
 * for several (NODES).
 *
 * *Returns*: a part of the rows that this rank holds for a chunk of a source; expert-major, the
 * rows of a token's local experts are summed. *Merges*: a part of what this rank's node returns for
 * a chunk of a source that this rank forwards for. *Sums*: a part of a chunk of this rank's own
 * tokens, or of a piece of one, of all that is returned; out of windows, where nobody is waited
 * for, a part of every n-th token. A row of the result is always a sum of contributions, which are
 * loaded one after the other into the warp's stage, and added from there. Where they are follows
 * from lists; lanes find it for a group of rows at once, which costs little more than for one row.
 *
 * The warp takes its units in ascending order of a key: the chunk, plus `lag` for each kind that
 * goes before it. A return waits until what had its place in the ring before has been read, by a
 * unit with a smaller key because lag is small enough (plugin/ep/ht/ht_plan.c); merges and sums
 * wait for what was returned or merged of their chunk, which has smaller keys, too. So of all units
 * of all ranks that are not done, the one with the smallest key waits for nothing, and its warp has
 * nothing to do before it.
 *
 * Loads run ahead of the sums over the limits of units. A unit whose peers are not ready holds back
 * only loads; the warp waits for a peer when it has nothing left to add.
 */
#ifndef EP_DEVICE_HT_COMBINE_H
#define EP_DEVICE_HT_COMBINE_H

#include "device/ht/pipe.h"
#include "device/ht/formats.h"
#include "device/ht/units.h"

/* Lane i's state of the batch whose first slot is i. */
struct ep_ht_batch_note {
	uint64_t to;   /* where the row's part of the result goes; copies: that of the first row */
	uint32_t what; /* EP_HT_NOTE_* */
	uint32_t unit; /* that it belongs to */
};

#define EP_HT_NOTE_VECS(what) ((what)&0x3ffu)       /* of a part */
#define EP_HT_NOTE_SLOTS(what) ((what) >> 10 & 63u) /* contributions of one row; copies: rows */
#define EP_HT_NOTE_FIRST (1u << 16)                 /* the first contributions to a row, */
#define EP_HT_NOTE_LAST (1u << 17)                  /* and the last ones */
#define EP_HT_NOTE_EMPTY (1u << 18)                 /* nothing contributes: the row is zeros */
#define EP_HT_NOTE_END (1u << 19)                   /* of the unit */
#define EP_HT_NOTE_SUM (1u << 20)                   /* the unit is a sum */
#define EP_HT_NOTE_COPY (1u << 21)                  /* nothing is added: rows go on as they are */
#define EP_HT_NOTE_MERGE (1u << 22)                 /* the unit is a merge */

_Static_assert(EP_HT_COMBINE_MOST / 16 <= 0x3ff && EP_HT_MAX_STAGE_PARTS <= 63, "EP_HT_NOTE_*");

struct ep_ht_combine_work {
	uint32_t next_return, returns; /* `returns`: of all warps */
	uint32_t next_merge;           /* several nodes */
	uint32_t next_sum;
	/* The unit that is being loaded, if one is: */
	uint32_t pending : 1; /* its peers have not been waited for yet */
	uint32_t open : 1;    /* it has rows to load */
	uint32_t is_sum : 1;
	uint32_t is_merge : 1;
	uint32_t grouped : 1; /* its next row belongs to a group that has been prepared, */
	uint32_t begun : 1;   /* and has been begun, */
	uint32_t fresh : 1;   /* and none of what is added to that has been loaded */
	uint32_t vecs : 10;   /* of the part */
	uint32_t shift : 3;   /* rows are prepared in groups: each has 1 << shift lanes, */
	uint32_t unit;
	uint32_t chunk;
	uint32_t part;
	uint32_t row, rows;
	uint32_t first; /* return: index of row 0; sum: its token; merge: slot of an own row 0 */
	uint32_t start; /* sum: of lane d < R: index of the chunk's first row to rank d; EP_HT_NONE:
			 * rank d returns nothing; return: its source */
	uint32_t step;  /* sum: from token to token */
	/* The k-th lane of a row of the next group has its list, loaded before it is needed: */
	uint32_t entry; /* return: the row's k-th place; sum: the token's k-th selection, */
	uint32_t index; /* and the row's index at that rank */
	uint32_t base;  /* all units, of lane d < R: slot of this rank's row 0 at rank d */
};

/* The group that is being loaded. */
struct ep_ht_group {
	uint32_t lanes;            /* that have a contribution, */
	const unsigned char *from; /* and where it is */
	/* The row that is being loaded: lanes whose contributions are still to be loaded, */
	uint32_t mask;
	uint64_t to; /* and where its part of the result goes; copies: that of the next row */
};

EP_DEV bool ht_flat(const struct ep_ht_common &c)
{
	return c.layout == EP_HT_FLAT;
}

/* Rows of this rank's own experts that stay where they are: nobody has to return them. */
EP_DEV bool ep_ht_stays(const struct ep_ht_common &c, uint32_t holder)
{
	return ht_flat(c) && holder == c.g.rank;
}

/* Rows of the unit are copied, all of them as if they were contributions to one. */
template <class F>
EP_DEV bool ht_copies(const struct ep_ht_combine_args &a, const struct ep_ht_combine_work &work)
{
	return F::flat && !work.is_sum && !work.is_merge && ht_flat(a.c);
}

/* Sums wait for nobody: their units are not chunks. */
template <bool NODES> EP_DEV bool ep_ht_alone(const struct ep_ht_combine_args &a)
{
	return ep_ht_windows<NODES>(a) && !a.in_weights;
}

/*
 * From token to token of a sum. A sum that waits for nobody has every n-th token, so that there
 * is one for each warp, all of the same size, and what warps load at a time lies side by side.
 */
template <bool NODES> EP_DEV uint32_t sum_stride(const struct ep_ht_combine_args &a)
{
	return ep_ht_alone<NODES>(a) ? ep_max_u32(ep_div(ep_nblocks() * ep_nwarps(), a.by_parts), 1)
				     : 1;
}

template <bool NODES> EP_DEV uint32_t ht_sums(const struct ep_ht_combine_args &a)
{
	uint32_t tokens = a.c.num_tokens;

	return (ep_ht_alone<NODES>(a)
			? ep_min_u32(tokens, sum_stride<NODES>(a))
			: ep_ht_chunks(tokens, a.c.areas.chunk_shift) << a.sum_shift) *
	       a.parts;
}

/*
 * The warp's units of each kind: merges are dealt as returns are.
 */
template <bool NODES>
EP_DEV struct ep_ht_combine_work ep_ht_combine_work_make(const struct ep_ht_combine_args &a)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_combine_work w = {};

	if (!NODES && ep_lane() < c.g.nranks) {
		w.base = c.h.send_base[ep_lane()];
	}
	w.next_return = w.next_merge = ep_ht_deal_sent<NODES>(a).first;
	w.next_sum = ep_ht_deal_received<NODES>(a).first;
	/* in windows there is nothing to return but gradients of weights, with part 0 */
	w.returns = ep_ht_alone<NODES>(a) ? 0 : c.h.head->chunks * a.parts * a.turns;
	return w;
}

EP_DEV uint32_t ep_ht_slot_of(const struct ep_ht_common &c, uint32_t chunk)
{
	/* a division takes longer, and mostly the ring has room for all chunks */
	return chunk < c.areas.ring_chunks ? chunk : chunk % c.areas.ring_chunks;
}

/* ---- which unit comes next ---- */

/* The source of a return: the sender behind this rank first. */
EP_DEV uint32_t ep_ht_return_rank(const struct ep_ht_combine_args &a, uint32_t unit)
{
	uint32_t r = unit - ep_div(unit, a.by_turns) * a.turns + a.c.roles.first_source;

	return r < a.c.roles.source_end ? r : r - a.c.roles.senders;
}

/* The flow whose source a merge is for. */
EP_DEV uint32_t ep_ht_merge_flow(const struct ep_ht_combine_args &a, uint32_t unit)
{
	return unit % a.c.remote.sources;
}

/* Chunk and part of a unit, as one number. */
EP_DEV uint32_t ep_ht_unit_pair(const struct ep_ht_combine_args &a, uint32_t unit, bool is_sum,
				bool is_merge)
{
	return is_sum     ? unit >> a.sum_shift
	       : is_merge ? unit / a.c.remote.sources
			  : ep_div(unit, a.by_turns);
}

/* Lanes of a row that has up to n entries in its list: 1 << that. */
EP_DEV uint32_t row_shift(uint32_t n)
{
	uint32_t shift = 0;

	while (1u << shift < n) {
		shift++;
	}
	return shift;
}

/* Finds for the lane's row of a merge the k-th rank that returns it, and its index there. */
EP_DEV void merge_fetch(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work,
			uint32_t row, uint32_t k)
{
	const struct ep_ht_common &c = a.c;
	uint32_t x = ep_ht_merge_flow(a, work->unit);

	for (uint32_t n = 0; n < c.remote.near; n++) {
		uint32_t mask = ep_ht_near_mask(c, x, n, work->chunk);

		if ((mask >> row & 1) && k-- == 0) {
			work->entry = n;
			work->index = ep_ht_mask_before(mask, row);
		}
	}
}

/*
 * Takes the lists of the group that begins with `row`. Nothing waits for the loads, but of a merge.
 */
template <bool NODES>
EP_DEV void group_fetch(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work,
			uint32_t row)
{
	const struct ep_ht_common &c = a.c;
	uint32_t k = ep_lane() & ((1u << work->shift) - 1);

	row += ep_lane() >> work->shift;
	work->entry = work->index = EP_HT_NONE;
	if (row >= work->rows) {
		return;
	}
	if (NODES && work->is_merge) {
		merge_fetch(a, work, row, k);
	} else if (work->is_sum && k < c.topk) {
		uint64_t at = (uint64_t)(work->first + row * work->step) * c.topk + k;

		work->entry = c.h.send_sel[at];
		work->index = c.h.send_row[at];
	} else if (!work->is_sum && !ht_flat(c) && k < c.width) {
		uint32_t slot = c.h.recv_base[work->start] + work->first + row;

		work->entry = c.h.recv_sel[(uint64_t)slot * c.width + k];
	}
}

template <bool NODES>
EP_DEV void return_open(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work)
{
	const struct ep_ht_common &c = a.c;
	uint32_t rank = ep_ht_return_rank(a, work->unit);

	work->start = rank;
	if (ep_ht_windows<NODES>(a) && work->part) {
		return;
	}
	work->first = ep_ht_first(c, c.h.recv_start, rank, work->chunk);
	work->rows = ep_ht_rows(c, c.h.recv_start, rank, work->chunk);
	work->shift = ht_flat(c) ? 5 : row_shift(c.width); /* copies: all rows are one group */
	work->pending = work->rows != 0;
	if (NODES && ep_ht_stays(c, c.remote.return_rings[rank].rank)) {
		work->pending = false;
	}
}

EP_DEV void merge_open(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work)
{
	const struct ep_ht_common &c = a.c;
	uint32_t x = ep_ht_merge_flow(a, work->unit), source = c.remote.feeds[x].peer;
	uint32_t tokens = ep_ht_source_mask(c, x, work->chunk);

	/* tokens of which nothing is returned are left out, but the last one is not such a token */
	work->rows = tokens ? EP_WARP_SIZE - ep_clz(tokens) : 0;
	work->first = c.h.recv_base[source] + ep_ht_first(c, c.h.recv_start, source, work->chunk);
	work->shift = row_shift(ep_min_u32(c.topk, c.remote.near));
	work->pending = work->rows != 0;
}

/* Does rank d return rows of this rank's chunk, by way of the ring? */
EP_DEV bool ep_ht_returns(const struct ep_ht_common &c, uint32_t d, uint32_t chunk)
{
	return !ep_ht_stays(c, d) && ep_ht_rows(c, c.h.send_start, d, chunk) != 0;
}

template <bool NODES>
EP_DEV void sum_open(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work)
{
	const struct ep_ht_common &c = a.c;
	uint32_t shift = c.areas.chunk_shift - a.sum_shift;
	uint32_t piece = work->unit & ((1u << a.sum_shift) - 1);

	work->step = sum_stride<NODES>(a);
	if (ep_ht_alone<NODES>(a)) {
		work->first = work->chunk;
		work->chunk = 0;
		work->rows = (c.num_tokens - work->first - 1) / work->step + 1;
	} else {
		work->first = (work->chunk << c.areas.chunk_shift) + (piece << shift);
		work->rows = ep_min_u32(c.num_tokens - ep_min_u32(work->first, c.num_tokens),
					1u << shift);
	}
	work->shift = row_shift(c.topk);
	group_fetch<NODES>(a, work, 0); /* on its way while this looks who returns something */
	work->start = EP_HT_NONE;
	if (!NODES && ep_lane() < c.g.nranks && !ep_ht_alone<NODES>(a) &&
	    ep_ht_returns(c, ep_lane(), work->chunk)) {
		work->start = ep_ht_first(c, c.h.send_start, ep_lane(), work->chunk);
	}
	work->pending = work->rows != 0;
}

/* The key of a unit of a kind, before which `before` kinds go; EP_HT_NONE: there is none. */
EP_DEV uint32_t unit_key(const struct ep_ht_combine_args &a, uint32_t pair, uint32_t before,
			 bool there)
{
	return there ? ep_div(pair, a.by_parts) + before * a.lag : EP_HT_NONE;
}

/*
 * Makes the unit with the smallest key work->unit; of equal ones the return, then the merge, then
 * the sum: `lag` may be 0, and each waits for those before it. False: there is none.
 */
template <bool NODES>
EP_DEV bool work_take(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work)
{
	uint32_t pair, merge = EP_HT_NONE;
	uint32_t merges = NODES ? a.c.h.head->chunks * a.parts * a.c.remote.sources : 0;
	uint32_t sum = unit_key(a, work->next_sum >> a.sum_shift, NODES ? 2 : 1,
				work->next_sum < ht_sums<NODES>(a));
	uint32_t back = unit_key(a, ep_div(work->next_return, a.by_turns), 0,
				 work->next_return < work->returns);

	if (NODES && work->next_merge < merges) {
		merge = unit_key(a, work->next_merge / a.c.remote.sources, 1, true);
	}
	work->is_merge = NODES && merge < back && merge <= sum;
	work->is_sum = !work->is_merge && sum < back;
	if (work->is_merge) {
		work->unit = work->next_merge;
		work->next_merge += ep_ht_deal_sent<NODES>(a).stride;
	} else if (work->is_sum) {
		work->unit = work->next_sum;
		work->next_sum += ep_ht_deal_received<NODES>(a).stride;
	} else if (back != EP_HT_NONE) {
		work->unit = work->next_return;
		work->next_return += ep_ht_deal_sent<NODES>(a).stride;
	} else {
		return false;
	}
	pair = ep_ht_unit_pair(a, work->unit, work->is_sum, work->is_merge);
	work->chunk = ep_div(pair, a.by_parts);
	work->part = pair - work->chunk * a.parts;
	return true;
}

/* Opens the next unit of this warp that has rows. False: there is none. */
template <bool NODES>
EP_DEV bool ep_ht_combine_work_next(const struct ep_ht_combine_args &a,
				    struct ep_ht_combine_work *work)
{
	while (!work->pending) {
		if (!work_take<NODES>(a, work)) {
			return false;
		}
		if (work->is_sum) {
			sum_open<NODES>(a, work);
		} else if (NODES && work->is_merge) {
			merge_open(a, work);
		} else {
			return_open<NODES>(a, work);
		}
	}
	work->row = 0;
	work->begun = work->grouped = false;
	work->vecs = ep_min_u32(a.part_bytes, a.token_bytes - work->part * a.part_bytes) / 16;
	if (!work->is_sum) {
		group_fetch<NODES>(a, work, 0);
	}
	return true;
}

/* ---- whom a unit waits for ---- */

/*
 * The rank, of the lane's share, that has not returned its rows of the unit: to rings [ring, ...)
 * of those with whom this rank shares rings; or NONE.
 */
template <bool NODES>
EP_DEV uint32_t returns_missing(const struct ep_ht_combine_args &a, const struct ep_op &op,
				const struct ep_ht_combine_work &work, uint32_t ring)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot = ep_ht_slot_of(c, work.chunk);

	for (uint32_t i = ep_lane(); i < ep_ht_sharers<NODES>(c); i += EP_WARP_SIZE) {
		uint32_t d = ep_ht_sharer<NODES>(c, i);
		bool returns = !NODES && d < EP_WARP_SIZE ? work.start != EP_HT_NONE
							  : ep_ht_returns(c, d, work.chunk);

		if (NODES && work.is_merge) {
			returns = !ep_ht_stays(c, d) &&
				  ep_ht_near_mask(c, ep_ht_merge_flow(a, work.unit), i, work.chunk);
		}
		if (returns && !ep_ht_word_reached(op,
						   ep_ht_unit_at(c, c.g.own, c.areas.arrived_off,
								 ring + i, slot, work.part),
						   work.chunk)) {
			return d;
		}
	}
	return EP_HT_NONE;
}

/* The rank that has not read yet what lay in the ring before, if a return has to wait; or NONE. */
template <bool NODES>
EP_DEV uint32_t return_missing(const struct ep_ht_combine_args &a, const struct ep_op &op,
			       const struct ep_ht_combine_work &work)
{
	const struct ep_ht_common &c = a.c;
	const uint64_t *at;
	uint32_t before, rank;

	if (work.chunk < c.areas.ring_chunks || ep_lane()) {
		return EP_HT_NONE;
	}
	rank = work.start;
	at = ep_ht_credit_at(c, c.h.recv_start, rank, work.chunk, work.part, &before);
	return at && !ep_ht_word_reached(op, at, before) ? ep_ht_return_ring_of<NODES>(c, rank).rank
							 : EP_HT_NONE;
}

/*
 * The rank of another node, by the lane's share, whose sums, or gradients of weights, have not
 * come; or NONE.
 */
EP_DEV uint32_t remote_missing(const struct ep_ht_combine_args &a, const struct ep_op &op,
			       const struct ep_ht_combine_work &work)
{
	const struct ep_ht_common &c = a.c;

	for (uint32_t k = ep_lane(); k < c.remote.nodes; k += EP_WARP_SIZE) {
		uint32_t forwarder = c.remote.forwarders[k].peer;

		if (ep_ht_node_mask(c, k, work.chunk) &&
		    !ep_ht_rows_reached(c, op, forwarder, work.chunk)) {
			return forwarder;
		}
	}
	for (uint32_t d = ep_lane(); a.in_weights && work.part == 0 && d < c.g.nranks;
	     d += EP_WARP_SIZE) {
		if (!ep_ht_near(c, d) && ep_ht_rows(c, c.h.send_start, d, work.chunk) &&
		    !ep_ht_signal_reached(c, op, d, EP_HT_ROWS, 1)) {
			return d;
		}
	}
	return EP_HT_NONE;
}

/* Finds whom the open unit waits for, of the lane's share; or NONE. */
template <bool NODES>
EP_DEV uint32_t work_missing(const struct ep_ht_combine_args &a, const struct ep_op &op,
			     const struct ep_ht_combine_work &work)
{
	const struct ep_ht_common &c = a.c;
	uint32_t missing, x;

	if (!work.is_sum && !work.is_merge) {
		return return_missing<NODES>(a, op, work);
	}
	/* part 0 carries the gradients of weights */
	if (ep_ht_windows<NODES>(a) && (!a.in_weights || work.part)) {
		return EP_HT_NONE;
	}
	x = NODES && work.is_merge ? ep_ht_merge_flow(a, work.unit) : 0;
	missing = returns_missing<NODES>(a, op, work,
					 NODES && work.is_merge ? c.remote.near * (1 + x) : 0);
	if (!NODES || missing != EP_HT_NONE) {
		return missing;
	}
	return work.is_merge ? ep_ht_stage_missing(c, op, x, 1, work.chunk)
			     : remote_missing(a, op, work);
}

/* Are the peers of the open unit ready? `wait`: waits for them. */
template <bool NODES>
EP_DEV enum ep_ht_ready ep_ht_combine_work_peers(const struct ep_ht_combine_args &a,
						 const struct ep_op &op,
						 const struct ep_ht_combine_work &work, bool wait)
{
	enum ep_wait_site site = work.is_sum || work.is_merge ? EP_WAIT_HT_ROWS : EP_WAIT_HT_CREDIT;
	struct ep_ht_patience patience = ep_ht_patience_make();
	enum ep_ht_ready ready;

	do {
		ready = ep_ht_patience_check<NODES>(a.c, op, &patience,
						    work_missing<NODES>(a, op, work), site, wait);
	} while (ready == EP_HT_LATE && wait);
	return ready;
}

/* ---- gradients of weights: part 0 brings them ---- */

/* Of rows [row, row + n) of source r, to `to`. One warp. */
EP_DEV void ep_ht_gradients_leave(const struct ep_ht_combine_args &a, uint32_t r, uint32_t row,
				  uint32_t n, float *to)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot = c.h.recv_base[r] + row;

	for (uint32_t i = ep_lane(); i < n * c.width; i += EP_WARP_SIZE) {
		uint32_t at = ep_div(i, c.by_width), j = i - at * c.width;
		uint32_t sel = c.h.recv_sel[(uint64_t)slot * c.width + i];

		if (sel < EP_HT_DROPPED) {
			to[i] = ht_flat(c) ? a.in_weights[(uint64_t)(slot + at) * c.topk + j]
					   : a.in_weights[sel];
		} else {
			to[i] = 0;
		}
	}
}

/* Of the rows of a return, to where the source reads them. Those for other nodes go apart. */
template <bool NODES>
EP_DEV_COLD void ep_ht_weights_return(const struct ep_ht_combine_args &a,
				      struct ep_ht_combine_work work)
{
	const struct ep_ht_common &c = a.c;
	uint32_t rank = work.start;

	if (!NODES || ep_ht_near(c, rank)) {
		ep_ht_gradients_leave(a, rank, work.first, work.rows,
				      ep_ht_weights_at(c, ep_heap_of(c.g, rank), c.g.rank,
						       work.first));
	}
}

/*
 * Returns the gradient of the weight of this rank's token that is the j-th in row `row` of rank d.
 */
EP_DEV float weight_of(const struct ep_ht_combine_args &a, uint32_t d, uint32_t row, uint32_t j)
{
	const struct ep_ht_common &c = a.c;

	if (ht_flat(c) && d == c.g.rank) {
		return a.in_weights[(uint64_t)(c.h.send_base[d] + row) * c.topk + j];
	}
	return ep_ht_weights_at(c, c.g.own, d, row)[j];
}

/* The lists of a group's tokens: a lane has the k-th entry of one, and which rank that goes to. */
struct ep_ht_selection {
	uint32_t sel;
	uint32_t row;
	uint32_t rank; /* EP_HT_NONE: the list is shorter */
	bool opens;    /* the first of its rank */
};

EP_DEV struct ep_ht_selection list_make(const struct ep_ht_common &c, uint32_t k, uint32_t sel,
					uint32_t row)
{
	struct ep_ht_selection l = { sel, row, EP_HT_NONE, false };
	uint32_t before;

	if (sel != EP_HT_NONE) {
		l.rank = ep_ht_sel_rank(c, sel);
	}
	before = ep_shfl_u32(EP_FULL_MASK, l.rank, (ep_lane() - 1) & (EP_WARP_SIZE - 1));
	l.opens = l.rank != EP_HT_NONE && (k == 0 || l.rank != before);
	return l;
}

/* Gradients of all weights of the tokens of a sum. Every k gets one: 0 if it selects nothing. */
template <bool NODES>
EP_DEV_COLD void ep_ht_weights_sum(const struct ep_ht_combine_args &a,
				   struct ep_ht_combine_work work)
{
	const struct ep_ht_common &c = a.c;

	for (uint32_t i = 0; i < work.rows; i++) {
		float *out = a.out_weights + (uint64_t)(work.first + i) * c.topk;

		work.shift = 5;
		group_fetch<NODES>(a, &work, i);

		struct ep_ht_selection l = list_make(c, ep_lane(), work.entry, work.index);
		uint32_t until = 0xffffffffu >> (EP_WARP_SIZE - 1 - ep_lane());
		uint32_t alike = ep_match_u32(EP_FULL_MASK, l.rank);
		uint32_t again =
			ep_ballot(EP_FULL_MASK, l.sel != EP_HT_NONE && (l.sel & EP_HT_SEL_AGAIN));

		if (ep_lane() < c.topk) {
			out[ep_lane()] = 0;
		}
		ep_warp_sync(EP_FULL_MASK);
		if (l.sel != EP_HT_NONE && l.row != EP_HT_NONE) {
			/* which one of its rank it is; what is named again is the same one */
			uint32_t j = ep_popc(alike & until & ~again) - 1;

			out[EP_HT_SEL_K(l.sel)] = weight_of(a, l.rank, l.row, j);
		}
	}
}

/* ---- the row that is loaded next ---- */

/* Lane k of each row: the contribution of the row's k-th place; copies: lane k: row k. */
template <class F, bool NODES>
EP_DEV void return_group(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work,
			 struct ep_ht_group *g)
{
	const struct ep_ht_common &c = a.c;
	uint32_t place = work->entry, row = work->row, rank = work->start;
	struct ep_ht_return_ring ring = ep_ht_return_ring_of<NODES>(c, rank);

	if (ht_copies<F>(a, *work)) {
		place = ep_lane() < work->rows ? c.h.recv_base[rank] + work->first + ep_lane()
					       : EP_HT_NONE;
		work->row = work->rows - 1;
	}
	g->lanes = ep_ballot(EP_FULL_MASK, place < EP_HT_DROPPED);
	g->from = a.tokens + (uint64_t)place * a.token_bytes + work->part * a.part_bytes;
	g->to = (uint64_t)(uintptr_t)(ep_ht_ring_at(c, ep_heap_of(c.g, ring.rank), ring.number,
						    ep_ht_slot_of(c, work->chunk), row) +
				      work->part * F::part_stride(a.part_bytes));
}

/* Lane k of each row: what the k-th of this node's ranks that return it has written. */
EP_DEV void merge_group(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work,
			struct ep_ht_group *g)
{
	const struct ep_ht_common &c = a.c;
	uint32_t x = ep_ht_merge_flow(a, work->unit);

	g->lanes = ep_ballot(EP_FULL_MASK, work->entry != EP_HT_NONE);
	if (work->entry == c.g.index && ht_flat(c)) {
		g->from = a.tokens + (uint64_t)(work->first + work->index) * a.token_bytes;
	} else {
		g->from = ep_ht_ring_at(c, c.g.own, c.remote.near * (1 + x) + work->entry,
					ep_ht_slot_of(c, work->chunk), work->index);
	}
	g->from += work->part * a.part_bytes;
	g->to = (uint64_t)(uintptr_t)(c.g.own + ep_ht_stage_off(c, x, work->chunk, work->row) +
				      work->part * a.part_bytes);
}

/*
 * The lanes whose entry of a token's list is the first one of its rank, if that is of this node, or
 * else of its node. *node: which one that is.
 */
EP_DEV uint32_t nodes_lanes(const struct ep_ht_common &c, const struct ep_ht_combine_work &work,
			    const struct ep_ht_selection &list, uint32_t *node)
{
	bool there = list.rank != EP_HT_NONE && list.row != EP_HT_NONE;
	uint32_t row = ep_lane() >> work.shift, who = EP_FULL_MASK - ep_lane(), alike;

	*node = EP_HT_NONE;
	if (there) {
		*node = c.remote.node[list.rank];
		who = *node == EP_HT_NONE ? list.rank : EP_GROUP_MAX_RANKS + *node;
		who = who << 5 | row;
	}
	alike = ep_match_u32(EP_FULL_MASK, who);
	return ep_ballot(EP_FULL_MASK, there && ep_ctz(alike) == ep_lane());
}

/*
 * Lane k of each row: what the rank of the k-th selection returns, if it is the first of that rank.
 */
template <class F, bool NODES>
EP_DEV void sum_group(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work,
		      struct ep_ht_group *g)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_selection l =
		list_make(c, ep_lane() & ((1u << work->shift) - 1), work->entry, work->index);
	uint32_t d = l.rank == EP_HT_NONE ? c.g.rank : l.rank, token, node = EP_HT_NONE;
	uint32_t start = ep_shfl_u32(EP_FULL_MASK, work->start, d & (EP_WARP_SIZE - 1));
	uint32_t base = ep_shfl_u32(EP_FULL_MASK, work->base, d & (EP_WARP_SIZE - 1));
	uint32_t slot = ep_ht_slot_of(c, work->chunk);

	if (NODES || d >= EP_WARP_SIZE) {
		start = ep_ht_first(c, c.h.send_start, d, work->chunk);
		base = c.h.send_base[d];
	}
	g->lanes = NODES ? nodes_lanes(c, *work, l, &node)
			 : ep_ballot(EP_FULL_MASK, l.opens && l.row != EP_HT_NONE);
	if (F::flat && (ep_ht_windows<NODES>(a) || ep_ht_stays(c, d))) {
		g->from = (ep_ht_windows<NODES>(a) ? a.direct[d] : a.tokens) +
			  (uint64_t)(base + l.row) * a.token_bytes;
	} else if (NODES && node != EP_HT_NONE) {
		g->from = c.g.own + ep_ht_net_off(c, node, work->chunk,
						  work->row + (ep_lane() >> work->shift));
	} else {
		g->from = ep_ht_ring_at(c, c.g.own, NODES ? c.remote.index[d] : d, slot,
					l.row - start);
	}
	g->from += work->part * F::part_stride(a.part_bytes);
	token = work->first + work->row * work->step;
	g->to = (uint64_t)(uintptr_t)(a.out_tokens + (uint64_t)token * a.token_bytes +
				      work->part * a.part_bytes);
}

/* The unit's peers are ready. */
template <bool NODES>
EP_DEV void ep_ht_combine_work_begin(const struct ep_ht_combine_args &a,
				     struct ep_ht_combine_work *work)
{
	bool returns = !work->is_sum && !work->is_merge;

	if (a.in_weights && work->part == 0) {
		if (work->is_sum) {
			ep_ht_weights_sum<NODES>(a, *work);
		} else if (returns) {
			ep_ht_weights_return<NODES>(a, *work);
		}
	}
	if (ep_ht_windows<NODES>(a) && returns) {
		work->rows = 0;
	}
}

/* Prepares the next group of the open unit, and has what the one behind it needs on its way. */
template <class F, bool NODES>
EP_DEV void ep_ht_group_begin(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work,
			      struct ep_ht_group *g)
{
	if (work->is_sum) {
		sum_group<F, NODES>(a, work, g);
	} else if (NODES && work->is_merge) {
		merge_group(a, work, g);
	} else {
		return_group<F, NODES>(a, work, g);
	}
	group_fetch<NODES>(a, work, work->row + (EP_WARP_SIZE >> work->shift));
	work->grouped = true;
}

/* Begins the next row of the group. */
EP_DEV void row_begin(const struct ep_ht_combine_args &a, struct ep_ht_combine_work *work,
		      struct ep_ht_group *g)
{
	uint32_t lane = work->row << work->shift & (EP_WARP_SIZE - 1);

	if (lane) {
		g->to += work->is_sum ? (uint64_t)work->step * a.token_bytes : a.c.areas.row_stride;
	}
	g->mask = g->lanes & EP_FULL_MASK >> (EP_WARP_SIZE - (1u << work->shift)) << lane;
	work->begun = work->fresh = true;
}

/* Rows that are copied in one batch: so few that another one is on its way when one is stored. */
EP_DEV uint32_t ht_copied(const struct ep_ht_pipe &pipe)
{
	return ep_max_u32((pipe.slots - 1) / 2, 1);
}

/*
 * May the next batch be loaded? A row is loaded as one, if the stage has room for all contributions
 * to it. Where rows are copied, a slot is left to the stores that are under way, if there are more
 * than two: a row's load takes longer than its stores.
 */
template <class F>
EP_DEV bool batch_room(const struct ep_ht_combine_args &a, const struct ep_ht_combine_work &work,
		       const struct ep_ht_group &g, const struct ep_ht_pipe &pipe)
{
	if (!pipe.held) {
		return true;
	}
	if (ht_copies<F>(a, work)) {
		return pipe.held + ht_copied(pipe) + (pipe.slots > 2) <= pipe.slots;
	}
	return pipe.held + ep_max_u32(ep_popc(g.mask), 1) <= pipe.slots;
}

/* Lanes of `mask` behind the first n. */
EP_DEV uint32_t ht_behind(uint32_t mask, uint32_t n)
{
	uint32_t before = ep_popc(mask & ((1u << ep_lane()) - 1));

	return ep_ballot(EP_FULL_MASK, (mask >> ep_lane() & 1) && before >= n);
}

/* All of a row is loaded, or on its way: the next one follows. */
EP_DEV void row_end(struct ep_ht_combine_work *work)
{
	work->begun = false;
	work->open = ++work->row < work->rows;
	work->grouped = (work->row << work->shift & (EP_WARP_SIZE - 1)) != 0;
}

/* Loads a batch of contributions to a row of the open unit. False: there is no room. */
template <class F, bool NODES>
EP_DEV bool ep_ht_combine_work_load(const struct ep_ht_combine_args &a,
				    struct ep_ht_combine_work *work, struct ep_ht_group *g,
				    struct ep_ht_pipe *pipe, struct ep_ht_batch_note *note)
{
	uint32_t what = work->vecs | (work->is_sum ? EP_HT_NOTE_SUM : 0) |
			(NODES && work->is_merge ? EP_HT_NOTE_MERGE : 0);
	uint32_t n, rest;

	if (!work->begun) {
		row_begin(a, work, g);
		if (NODES && work->is_merge && !g->mask) { /* the token does not travel */
			row_end(work);
			return true;
		}
	}
	if (!batch_room<F>(a, *work, *g, *pipe)) {
		return false;
	}
	n = ep_min_u32(ep_popc(g->mask), pipe->slots);
	if (ht_copies<F>(a, *work)) {
		n = ep_min_u32(n, ht_copied(*pipe));
		what |= EP_HT_NOTE_COPY;
	}
	rest = n == ep_popc(g->mask) ? 0 : ht_behind(g->mask, n);
	what |= n << 10 | (work->fresh ? EP_HT_NOTE_FIRST : 0) | (g->mask ? 0 : EP_HT_NOTE_EMPTY);
	work->fresh = false;
	if (!rest) {
		row_end(work);
		what |= EP_HT_NOTE_LAST | (work->open ? 0 : EP_HT_NOTE_END);
	}
	ep_ht_note_put(pipe, note, { g->to, what, work->unit });
	ep_ht_pipe_load_batch<F::flat>(pipe, g->mask & ~rest, n, g->from,
				       work->is_sum ? F::part_load(work->vecs) : work->vecs * 16);
	if (ht_copies<F>(a, *work)) { /* the next batch of the unit goes behind this one */
		g->to += n * a.c.areas.row_stride;
	}
	g->mask = rest;
	return true;
}

#endif
