/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: a dispatch in the order of experts, of one node and expert-major, which counts
 * the rows of each local expert as they come, so that others can compute while it runs
 * (ep_ht_arrivals in device/ht/ht_layout.h).
 *
 * The first kernel, of ncclEpExtStartArrivals, makes the lists and sets the counts. The second one
 * moves the rows. It is what ht_dispatch.cu is, but a unit goes to one rank: a token is loaded once
 * for each rank that it goes to, so that each rank gets its rows in the order of its own experts. A
 * warp *sends* units to rings, *keeps* those of this rank's tokens that are for its own experts,
 * and *receives* units from the ring. Each kind it takes in ascending order of chunks, and the key
 * of a unit is its chunk, plus `lag` unless it is sent. What a unit waits for is done by units with
 * smaller keys: a send with chunk c, for the receipt of the chunk ring_chunks before c, whose key
 * is less since lag < ring_chunks; a receipt with key c + lag, for the send of c. A warp takes the
 * unit with the smallest key that is ready, and waits for a peer when it holds nothing that it
 * could store, and has published what it has stored.
 *
 * A row counts when its stores, those of its scales and its weight are done: each lane whose place
 * it has stored to subtracts one by a release at the scope of the GPU. Who acquires a count of 0
 * sees what all of these have released, as each subtraction reads what the one before it has
 * written.
 */
#include "device/ht/dispatch.h"
#include "device/ht/route_place.h"
#include "device/ht/step.h"

#include "device/kernels.h"

/* ---- lists ---- */

/* A list as its block makes it. Element i is a token that may have no row there, or a row. */
struct early_list {
	bool sends;
	uint32_t rank; /* to whom, or from whom */
	uint32_t n;
	uint32_t base; /* received: slot of element 0 */
	uint32_t *key;
	uint32_t *order;
	uint32_t *sums; /* [L][EP_HT_ORDER_WARPS] rows of each warp, then where its next one goes */
};

EP_DEV struct early_list early_list_make(const struct ep_ht_order_args &a)
{
	const struct ep_ht_common &c = a.c;
	const struct ep_ht_dev_arrivals &v = a.arrivals;
	struct early_list l = {};
	size_t at;

	l.sends = ep_block() < c.g.nranks;
	l.rank = l.sends ? ep_block() : ep_block() - c.g.nranks;
	if (l.sends) {
		l.n = c.h.head->num_tokens;
		at = (size_t)l.rank * c.max_tokens;
		l.key = v.send_key + at;
		l.order = v.send + at;
	} else {
		l.base = c.h.recv_base[l.rank];
		l.n = c.h.recv_base[l.rank + 1] - l.base;
		l.key = v.recv_key + l.base;
		l.order = v.recv + l.base;
	}
	l.sums = c.nlocal <= EP_HT_ORDER_SHARED
			 ? (uint32_t *)ep_dynamic_shared()
			 : v.sums + (size_t)ep_block() * c.nlocal * EP_HT_ORDER_WARPS;
	return l;
}

/* Selections of a token that a lane loads together. */
#define EARLY_AT_ONCE 8u

/* The first local expert of element i at its destination; EP_HT_NONE: no row goes there. A lane. */
EP_DEV uint32_t early_key(const struct ep_ht_common &c, const struct early_list &l, uint32_t i)
{
	uint32_t key = EP_HT_NONE;

	if (!l.sends) {
		return zone_find(c, c.h.recv_sel[(size_t)(l.base + i) * c.width]);
	}
	EP_UNROLL(1)
	for (uint32_t k0 = 0; k0 < c.topk && key == EP_HT_NONE; k0 += EARLY_AT_ONCE) {
		uint32_t sel[EARLY_AT_ONCE];

		EP_UNROLL()
		for (uint32_t j = 0; j < EARLY_AT_ONCE; j++) {
			sel[j] = k0 + j < c.topk ? c.h.send_sel[(size_t)i * c.topk + k0 + j]
						 : EP_HT_NONE;
		}
		EP_UNROLL()
		for (uint32_t j = 0; j < EARLY_AT_ONCE; j++) {
			uint32_t local = EP_HT_SEL_EXPERT(sel[j]) - l.rank * c.nlocal;

			key = sel[j] != EP_HT_NONE && local < c.nlocal ? ep_min_u32(key, local)
								       : key;
		}
	}
	return key;
}

/* Counts the elements of the warp's share by their keys, and notes these. Sums are 0. */
EP_DEV void early_count(const struct ep_ht_common &c, const struct early_list &l, uint32_t begin,
			uint32_t end)
{
	for (uint32_t i0 = begin; i0 < end; i0 += EP_WARP_SIZE) {
		uint32_t i = i0 + ep_lane(), key = i < end ? early_key(c, l, i) : EP_HT_NONE;
		uint32_t alike = ep_match_u32(EP_FULL_MASK, key);

		if (i < end) {
			l.key[i] = key;
		}
		if (key != EP_HT_NONE && ep_lane() == ep_ctz(alike)) {
			l.sums[(size_t)key * EP_HT_ORDER_WARPS + ep_warp()] += ep_popc(alike);
		}
		ep_warp_sync(EP_FULL_MASK);
	}
}

/* The sums become those of all that goes before. Returns how many have keys. All threads. */
EP_DEV uint32_t early_places(const struct ep_ht_common &c, const struct early_list &l)
{
	uint32_t n = c.nlocal * EP_HT_ORDER_WARPS, share, begin, end, before = 0, all;
	EP_SHARED(uint32_t, totals[EP_HT_ORDER_WARPS]);

	share = (c.nlocal + EP_WARP_SIZE - 1) / EP_WARP_SIZE * EP_WARP_SIZE;
	begin = ep_min_u32(ep_warp() * share, n);
	end = ep_min_u32(begin + share, n);
	for (uint32_t i0 = begin; i0 < end; i0 += EP_WARP_SIZE) {
		uint32_t i = i0 + ep_lane(), v = i < end ? l.sums[i] : 0, sum = lanes_sum(v);

		if (i < end) {
			l.sums[i] = before + sum - v;
		}
		before += ep_shfl_u32(EP_FULL_MASK, sum, EP_WARP_SIZE - 1);
	}
	if (ep_lane() == 0) {
		totals[ep_warp()] = before;
	}
	ep_block_sync();
	before = all = 0;
	for (uint32_t w = 0; w < EP_HT_ORDER_WARPS; w++) {
		before += w < ep_warp() ? totals[w] : 0;
		all += totals[w];
	}
	for (uint32_t i = begin + ep_lane(); i < end; i += EP_WARP_SIZE) {
		l.sums[i] += before;
	}
	return all;
}

/* Puts the elements of the warp's share where they belong. */
EP_DEV void early_order(const struct early_list &l, uint32_t begin, uint32_t end)
{
	for (uint32_t i0 = begin; i0 < end; i0 += EP_WARP_SIZE) {
		uint32_t i = i0 + ep_lane(), key = i < end ? l.key[i] : EP_HT_NONE;
		uint32_t alike = ep_match_u32(EP_FULL_MASK, key), *next;

		next = l.sums + (size_t)key * EP_HT_ORDER_WARPS + ep_warp();
		if (key != EP_HT_NONE) {
			l.order[*next + ep_popc(alike & ((1u << ep_lane()) - 1))] = l.base + i;
		}
		ep_warp_sync(EP_FULL_MASK);
		if (key != EP_HT_NONE && ep_lane() == ep_ctz(alike)) {
			*next += ep_popc(alike);
		}
		ep_warp_sync(EP_FULL_MASK);
	}
}

/* The words of experts, and of the whole. The blocks share them. */
EP_DEV void early_arm(const struct ep_ht_order_args &a, bool routed)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_arrivals head = {};

	for (uint32_t e = ep_block() * ep_nthreads() + ep_tid(); e < c.nlocal;
	     e += ep_nblocks() * ep_nthreads()) {
		struct ep_ht_arrival expert = { EP_HT_NONE, 0, 0, 0 };

		if (routed) {
			expert.missing = expert.rows = c.h.zones[e].kept;
			expert.first = c.h.zones[e].first;
		}
		a.arrivals.experts[e] = expert;
	}
	if (ep_block() == 0 && ep_tid() == 0) {
		head.failed = !routed;
		head.experts = c.nlocal;
		head.routing = routed ? c.h.head->routing : 0;
		*a.arrivals.head = head;
	}
}

/* Finds the experts of all places: worker `w` of `workers` threads. */
EP_DEV void early_experts(const struct ep_ht_order_args &a, uint32_t w, uint32_t workers)
{
	const struct ep_ht_common &c = a.c;
	size_t n = (size_t)c.h.head->rows * c.width;

	for (size_t i = w; i < n; i += workers) {
		uint32_t place = c.h.recv_sel[i];

		if (place != EP_HT_NONE) {
			a.arrivals.recv_expert[i] = (uint16_t)zone_find(c, place);
		}
	}
}

EP_KERNEL(ep_ht_order_kernel, ep_ht_order_args, EP_HT_ORDER_WARPS *EP_WARP_SIZE)
{
	const struct ep_ht_common &c = a.c;
	bool routed = c.h.head->stamp == c.stamp;
	uint32_t share, begin, end, rows;
	struct early_list l;

	early_arm(a, routed);
	if (!routed) {
		return;
	}
	if (ep_block() >= 2 * c.g.nranks) {
		early_experts(a, (ep_block() - 2 * c.g.nranks) * ep_nthreads() + ep_tid(),
			      (ep_nblocks() - 2 * c.g.nranks) * ep_nthreads());
		return;
	}
	l = early_list_make(a);
	for (uint32_t i = ep_tid(); i < c.nlocal * EP_HT_ORDER_WARPS; i += ep_nthreads()) {
		l.sums[i] = 0;
	}
	ep_block_sync();
	share = (l.n + EP_HT_ORDER_WARPS - 1) / EP_HT_ORDER_WARPS;
	begin = ep_min_u32(ep_warp() * share, l.n);
	end = ep_min_u32(begin + share, l.n);
	early_count(c, l, begin, end);
	ep_block_sync();
	rows = early_places(c, l);
	if (ep_tid() == 0) {
		a.arrivals.rows[ep_block()] = rows;
	}
	ep_block_sync();
	early_order(l, begin, end);
}

/* ---- units ---- */

enum early_kind {
	EARLY_SEND,
	EARLY_RECEIVE,
	EARLY_KEEP,
	EARLY_KINDS
};

/* A unit but for its chunk; of an item also its row and its part. */
#define EARLY_WHAT(kind, rank) ((kind) | (rank) << 2)
#define EARLY_KIND(what) ((what)&3u)
#define EARLY_RANK(what) ((what) >> 2 & 0x3ffu)
#define EARLY_ROW(what) ((what) >> 12 & 7u)
#define EARLY_PART_END (1u << 15) /* it is the row's last part */
#define EARLY_END (1u << 16)      /* and the row the unit's last one */
#define EARLY_PART(what) ((what) >> 17)

_Static_assert(EP_GROUP_MAX_RANKS <= 0x400 && EP_HT_CHUNK <= 8 && EARLY_KINDS <= 4, "EARLY_WHAT");

struct early_unit {
	uint32_t what;
	uint32_t chunk;
	uint32_t rows; /* 0: there is none */
};

/* What the storing side is told of a slot of the stage. */
struct early_item {
	uint32_t what;
	uint32_t chunk;
	uint32_t element; /* token, or slot */
};

struct early_work {
	/* Lane k knows this of kind k, as ep_ht_dispatch_work has it. */
	uint32_t units;
	uint32_t next;
	uint32_t found;
	struct early_unit ahead;
	uint32_t ahead_element; /* lane 8k + i: element i of the next unit of kind k */
	/* All lanes alike: */
	struct early_unit unit; /* it is being loaded, */
	uint32_t items;         /* and so many parts of its rows are left */
	uint32_t element;       /* lane i: of row i */
	struct early_item note; /* of the slot that has the lane's number */
};

/* The list of a kind, between this rank and another. */
EP_DEV uint32_t early_rows(const struct ep_ht_early_args &a, uint32_t kind, uint32_t rank)
{
	return a.arrivals.rows[(kind == EARLY_RECEIVE ? a.d.c.g.nranks : 0) + rank];
}

/* Units of a kind, of each chunk: from, or to, so many ranks. */
EP_DEV uint32_t early_fan(const struct ep_ht_early_args &a, uint32_t kind)
{
	return kind == EARLY_KEEP ? 1 : a.d.c.g.nranks - 1;
}

/* The unit of that number. */
EP_DEV struct early_unit early_unit_make(const struct ep_ht_early_args &a, uint32_t kind,
					 uint32_t number)
{
	const struct ep_ht_common &c = a.d.c;
	uint32_t fan = early_fan(a, kind), rank = c.g.rank, rows, first;
	struct early_unit u = {};

	u.chunk = fan == 1 ? number : number / fan;
	if (kind != EARLY_KEEP) { /* ranks begin with different ones */
		rank += 1 + number - u.chunk * fan;
		rank -= rank >= c.g.nranks ? c.g.nranks : 0;
	}
	rows = early_rows(a, kind, rank);
	first = u.chunk << a.chunk_shift;
	u.rows = first < rows ? ep_min_u32(rows - first, 1u << a.chunk_shift) : 0;
	u.what = EARLY_WHAT(kind, rank);
	return u;
}

/* Element i of a unit. */
EP_DEV uint32_t early_element(const struct ep_ht_early_args &a, const struct early_unit &u,
			      uint32_t i)
{
	const struct ep_ht_common &c = a.d.c;
	size_t at = ((size_t)u.chunk << a.chunk_shift) + i;
	uint32_t rank = EARLY_RANK(u.what);

	return EARLY_KIND(u.what) == EARLY_RECEIVE
		       ? a.arrivals.recv[c.h.recv_base[rank] + at]
		       : a.arrivals.send[(size_t)rank * c.max_tokens + at];
}

/* Looks for the warp's next unit of a kind that has rows. */
EP_DEV void early_next(const struct ep_ht_early_args &a, struct early_work *work, uint32_t kind)
{
	uint32_t stride = ep_nblocks() * ep_nwarps();
	uint32_t units = ep_shfl_u32(EP_FULL_MASK, work->units, kind);
	uint32_t next = ep_shfl_u32(EP_FULL_MASK, work->next, kind);
	uint32_t found = ep_shfl_u32(EP_FULL_MASK, work->found, kind);
	struct early_unit unit = {};

	while (!found && next < units) {
		uint32_t number = next + ep_lane() * stride;

		next += EP_WARP_SIZE * stride;
		found = ep_ballot(EP_FULL_MASK,
				  number < units && early_unit_make(a, kind, number).rows);
	}
	if (found) {
		unit = early_unit_make(a, kind, next - (EP_WARP_SIZE - ep_ctz(found)) * stride);
	}
	if (ep_lane() >> 3 == kind && (ep_lane() & 7) < unit.rows) {
		work->ahead_element = early_element(a, unit, ep_lane() & 7);
	}
	if (ep_lane() == kind) {
		work->next = next;
		work->found = found & (found - 1);
		work->ahead = unit;
	}
}

/* All lists are there. The first warps send, and the last ones receive. */
EP_DEV struct early_work early_work_make(const struct ep_ht_early_args &a)
{
	const struct ep_ht_common &c = a.d.c;
	struct early_work w = {};
	uint32_t most = 0, kind = ep_lane();

	for (uint32_t i = ep_lane(); i < 2 * c.g.nranks; i += EP_WARP_SIZE) {
		most = ep_max_u32(most, a.arrivals.rows[i]);
	}
	for (uint32_t x = 1; x < EP_WARP_SIZE; x *= 2) {
		most = ep_max_u32(most, ep_shfl_xor_u32(EP_FULL_MASK, most, x));
	}
	if (kind < EARLY_KINDS) {
		uint32_t warp = kind == EARLY_SEND ? ep_warp() : ep_nwarps() - 1 - ep_warp();

		w.units = ep_ht_chunks(most, a.chunk_shift) * early_fan(a, kind);
		w.next = ep_block() + ep_nblocks() * warp;
	}
	EP_UNROLL(1)
	for (kind = 0; kind < EARLY_KINDS; kind++) {
		early_next(a, &w, kind);
	}
	return w;
}

/* The kind whose next unit has the smallest key, and whose units come behind: EARLY_KINDS: none. */
EP_DEV uint32_t early_first(const struct ep_ht_early_args &a, const struct early_work &work)
{
	uint32_t key = work.ahead.rows ? work.ahead.chunk + (ep_lane() == EARLY_SEND ? 0 : a.d.lag)
				       : EP_HT_NONE;
	uint32_t first = EARLY_KINDS, least = EP_HT_NONE;

	EP_UNROLL(EARLY_KINDS)
	for (uint32_t kind = 0; kind < EARLY_KINDS; kind++) {
		uint32_t its = ep_shfl_u32(EP_FULL_MASK, key, kind);

		first = its < least ? kind : first;
		least = ep_min_u32(its, least);
	}
	return first;
}

/* ---- what a unit waits for, and what is published of it ---- */

/* A slot of the ring between this rank and another: its word in a heap, and its rows. */
EP_DEV uint64_t *early_word(const struct ep_ht_early_args &a, unsigned char *heap, uint64_t off,
			    uint32_t rank, uint32_t chunk)
{
	return (uint64_t *)(heap + off) + (size_t)rank * a.ring_chunks + chunk % a.ring_chunks;
}

EP_DEV unsigned char *early_ring(const struct ep_ht_early_args &a, unsigned char *heap,
				 uint32_t rank, uint32_t chunk, uint32_t i)
{
	size_t slot = (size_t)rank * a.ring_chunks + chunk % a.ring_chunks;

	return heap + a.d.c.areas.ring_off + ((slot << a.chunk_shift) + i) * a.d.c.areas.row_stride;
}

/* The rank that the unit waits for, and *site: for what. Lane 0; to others none is missing. */
EP_DEV uint32_t early_missing(const struct ep_ht_early_args &a, const struct ep_op &op,
			      const struct early_unit &unit, enum ep_wait_site *site)
{
	const struct ep_ht_common &c = a.d.c;
	uint32_t rank = EARLY_RANK(unit.what), kind = EARLY_KIND(unit.what);
	const uint64_t *word;

	*site = kind == EARLY_SEND ? EP_WAIT_HT_CREDIT : EP_WAIT_HT_ROWS;
	if (ep_lane() != 0 || kind == EARLY_KEEP ||
	    (kind == EARLY_SEND && unit.chunk < a.ring_chunks)) {
		return EP_HT_NONE;
	}
	if (kind == EARLY_SEND) {
		word = early_word(a, c.g.own, c.areas.credit_off, rank, unit.chunk);
		return ep_ht_word_reached(op, word, unit.chunk - a.ring_chunks) ? EP_HT_NONE : rank;
	}
	word = early_word(a, c.g.own, c.areas.arrived_off, rank, unit.chunk);
	return ep_ht_word_reached(op, word, unit.chunk) ? EP_HT_NONE : rank;
}

/* An item that was stored and not published yet. */
struct early_stored {
	uint32_t what; /* 0: there is none to publish, as a send has EARLY_END */
	uint32_t chunk;
	uint32_t group;
	uint32_t expert; /* of the lane's place; EP_HT_NONE: it has none */
};

/* As many items are stored before one is published as wait here, the oldest last. */
#define EARLY_BEHIND 2

struct early_behind {
	struct early_stored stored[EARLY_BEHIND];
};

/* Publishes an item: its unit to the rank that gets it, or its row to those who poll. */
EP_DEV void early_publish(const struct ep_ht_early_args &a, const struct ep_op &op,
			  const struct ep_ht_pipe *pipe, struct early_stored *stored)
{
	const struct ep_ht_common &c = a.d.c;

	if (!stored->what) {
		return;
	}
	ep_ht_pipe_stored(pipe, stored->group);
	if (EARLY_KIND(stored->what) != EARLY_SEND) {
		if (stored->expert != EP_HT_NONE) {
			ep_add_release_gpu_u32(&a.arrivals.experts[stored->expert].missing, ~0u);
		}
	} else if (ep_lane() == 0) {
		ep_st_release_sys_u64(early_word(a, ep_heap_of(c.g, EARLY_RANK(stored->what)),
						 c.areas.arrived_off, c.g.rank, stored->chunk),
				      ep_ht_unit_word(op.epoch, stored->chunk));
	}
	stored->what = 0;
}

EP_DEV void early_publish_all(const struct ep_ht_early_args &a, const struct ep_op &op,
			      const struct ep_ht_pipe *pipe, struct early_behind *behind)
{
	EP_UNROLL()
	for (uint32_t i = EARLY_BEHIND; i-- > 0;) {
		early_publish(a, op, pipe, &behind->stored[i]);
	}
}

/* Another item is stored. */
EP_DEV void early_push(const struct ep_ht_early_args &a, const struct ep_op &op,
		       const struct ep_ht_pipe *pipe, struct early_behind *behind,
		       struct early_stored stored)
{
	early_publish(a, op, pipe, &behind->stored[EARLY_BEHIND - 1]);
	EP_UNROLL()
	for (uint32_t i = EARLY_BEHIND - 1; i > 0; i--) {
		behind->stored[i] = behind->stored[i - 1];
	}
	behind->stored[0] = stored;
}

/* ---- loads ---- */

/* One look at the next units, from that of kind `first` on: opens the first one that is ready. */
EP_DEV enum ep_ht_ready early_poll(const struct ep_ht_early_args &a, const struct ep_op &op,
				   struct early_work *work, struct ep_ht_patience *patience,
				   uint32_t first, bool wait)
{
	uint32_t there = ep_ballot(EP_FULL_MASK, work->ahead.rows != 0);

	EP_UNROLL(1)
	for (uint32_t n = 0; n < EARLY_KINDS; n++) {
		uint32_t kind = first + n < EARLY_KINDS ? first + n : first + n - EARLY_KINDS;
		enum ep_wait_site site;
		struct early_unit unit;
		enum ep_ht_ready ready;
		uint32_t missing;

		if (!(there >> kind & 1)) {
			continue;
		}
		unit.what = ep_shfl_u32(EP_FULL_MASK, work->ahead.what, kind);
		unit.chunk = ep_shfl_u32(EP_FULL_MASK, work->ahead.chunk, kind);
		unit.rows = ep_shfl_u32(EP_FULL_MASK, work->ahead.rows, kind);
		missing = early_missing(a, op, unit, &site);
		ready = ep_ht_patience_check<false>(a.d.c, op, patience, missing, site,
						    wait && n == 0);
		if (ready == EP_HT_READY) {
			work->unit = unit;
			work->items = unit.rows * a.d.parts;
			work->element = ep_shfl_u32(EP_FULL_MASK, work->ahead_element,
						    8 * kind + (ep_lane() & 7));
			early_next(a, work, kind);
		}
		if (ready != EP_HT_LATE) {
			return ready;
		}
	}
	return EP_HT_LATE;
}

/* Opens the next unit. EP_HT_LATE: none is ready, or none is left. */
EP_DEV enum ep_ht_ready early_open(const struct ep_ht_early_args &a, const struct ep_op &op,
				   const struct ep_ht_pipe *pipe, struct early_work *work,
				   struct early_behind *behind)
{
	struct ep_ht_patience patience = ep_ht_patience_make();
	uint32_t first = early_first(a, *work);
	enum ep_ht_ready ready = EP_HT_LATE;
	bool wait = false;

	EP_UNROLL(1)
	while (ready == EP_HT_LATE && first != EARLY_KINDS && !(wait && pipe->held)) {
		ready = early_poll(a, op, work, &patience, first, wait);
		if (ready == EP_HT_LATE && !wait) {
			wait = true;
			if (!pipe->held) { /* who is waited for may need it */
				early_publish_all(a, op, pipe, behind);
			}
		}
	}
	return ready;
}

/* Loads the next part of the unit that is open, and notes what it is. */
EP_DEV void early_load_item(const struct ep_ht_early_args &a, struct ep_ht_pipe *pipe,
			    struct early_work *work)
{
	const struct early_unit &u = work->unit;
	uint32_t item = u.rows * a.d.parts - work->items, row = ep_div(item, a.d.by_parts);
	uint32_t part = item - row * a.d.parts, what = u.what | row << 12 | part << 17;
	uint32_t element = ep_shfl_u32(EP_FULL_MASK, work->element, row);
	struct ep_ht_piece piece = ep_ht_piece_make(a.d, part);
	uint32_t bytes = piece.token_bytes + piece.scale_bytes;

	what |= part + 1 == a.d.parts ? EARLY_PART_END : 0;
	what |= work->items == 1 ? EARLY_END : 0;
	ep_ht_pipe_open(pipe);
	if (EARLY_KIND(u.what) == EARLY_RECEIVE) {
		ep_ht_pipe_load(pipe, 0,
				early_ring(a, a.d.c.g.own, EARLY_RANK(u.what), u.chunk, row) +
					(size_t)part * a.d.part_bytes,
				bytes);
	} else {
		piece_load(a.d, pipe, element, piece);
	}
	ep_ht_note_put(pipe, &work->note, { what, u.chunk, element });
	ep_ht_pipe_close(pipe, bytes);
	work->items--;
}

/* Loads as far as there is room and units are ready. False: a wait has failed. */
EP_DEV bool early_load(const struct ep_ht_early_args &a, const struct ep_op &op,
		       struct ep_ht_pipe *pipe, struct early_work *work,
		       struct early_behind *behind)
{
	while (ep_ht_pipe_room(pipe)) {
		enum ep_ht_ready ready = work->items ? EP_HT_READY
						     : early_open(a, op, pipe, work, behind);

		if (ready != EP_HT_READY) {
			return ready == EP_HT_LATE;
		}
		early_load_item(a, pipe, work);
	}
	return true;
}

/* ---- stores ---- */

/* What a lane knows of an item, for its stores: one of the selections, as ep_ht_list has it. */
struct early_held {
	struct early_item item;
	/* received: row is the local expert; weight: of the k-th selection, or place */
	struct ep_ht_list l;
};

/* The lane's weight of a token, as the caller has it, or of a row, as it has come. */
EP_DEV float early_weight(const struct ep_ht_early_args &a, const struct early_item &item)
{
	const struct ep_ht_common &c = a.d.c;
	uint32_t rank = EARLY_RANK(item.what);

	if (EARLY_KIND(item.what) != EARLY_RECEIVE) {
		return ep_lane() < c.topk
			       ? a.d.topk_weights[(size_t)item.element * c.topk + ep_lane()]
			       : 0.0f;
	}
	return ep_lane() < c.width ? ep_ht_weights_at(c, c.g.own, rank,
						      item.element - c.h.recv_base[rank])[ep_lane()]
				   : 0.0f;
}

EP_DEV struct early_held early_held_make(const struct ep_ht_early_args &a,
					 const struct early_work &work, uint32_t at)
{
	const struct ep_ht_common &c = a.d.c;
	struct early_held h;

	h.item.what = ep_shfl_u32(EP_FULL_MASK, work.note.what, at);
	h.item.chunk = ep_shfl_u32(EP_FULL_MASK, work.note.chunk, at);
	h.item.element = ep_shfl_u32(EP_FULL_MASK, work.note.element, at);
	if (EARLY_KIND(h.item.what) == EARLY_RECEIVE) {
		h.l = ep_ht_recv_list(c, h.item.element);
		if (ep_lane() < c.width) {
			h.l.row =
				a.arrivals
					.recv_expert[(size_t)h.item.element * c.width + ep_lane()];
		}
	} else {
		h.l = ep_ht_send_list(c, h.item.element);
	}
	if (a.d.topk_weights && EARLY_PART(h.item.what) == 0) {
		h.l.weight = early_weight(a, h.item);
	}
	return h;
}

/* The lane's place of a row that this rank keeps or receives; EP_HT_NONE: it has none. */
EP_DEV uint32_t early_place(const struct ep_ht_common &c, const struct early_held &h)
{
	if (EARLY_KIND(h.item.what) == EARLY_RECEIVE) {
		return h.l.sel;
	}
	return h.l.sel == EP_HT_NONE || h.l.sel & EP_HT_SEL_AGAIN ||
			       ep_div(EP_HT_SEL_EXPERT(h.l.sel), c.by_local) != c.g.rank
		       ? EP_HT_NONE
		       : h.l.place;
}

/* The weights of a row: to the heap of the rank that gets it, or to places of the output. */
EP_DEV void early_weights(const struct ep_ht_early_args &a, const struct early_held &h,
			  uint32_t place)
{
	const struct ep_ht_common &c = a.d.c;
	uint32_t kind = EARLY_KIND(h.item.what), rank = EARLY_RANK(h.item.what), mine;
	bool sent = kind == EARLY_SEND && h.l.sel != EP_HT_NONE && !(h.l.sel & EP_HT_SEL_AGAIN) &&
		    ep_div(EP_HT_SEL_EXPERT(h.l.sel), c.by_local) == rank;
	uint32_t k = kind == EARLY_RECEIVE ? ep_lane() : EP_HT_SEL_K(h.l.sel);
	float w = ep_shfl_f32(EP_FULL_MASK, h.l.weight, k);

	mine = ep_ballot(EP_FULL_MASK, sent);
	if (sent) {
		ep_ht_weights_at(c, ep_heap_of(c.g, rank), c.g.rank,
				 h.l.row)[ep_popc(mine & ((1u << ep_lane()) - 1))] = w;
	} else if (place != EP_HT_NONE) {
		a.d.out_weights[place] = w;
	}
}

/* The unit has been read: its place in the ring may be written again. */
EP_DEV void early_credit(const struct ep_ht_early_args &a, const struct ep_op &op,
			 const struct early_item &item)
{
	const struct ep_ht_common &c = a.d.c;
	uint32_t rank = EARLY_RANK(item.what), rows = early_rows(a, EARLY_RECEIVE, rank);

	if (ep_lane() == 0 && (size_t)(item.chunk + a.ring_chunks) << a.chunk_shift < rows) {
		ep_st_release_sys_u64(early_word(a, ep_heap_of(c.g, rank), c.areas.credit_off,
						 c.g.rank, item.chunk),
				      ep_ht_unit_word(op.epoch, item.chunk));
	}
}

/* Stores the oldest item that is held. False: it does not come. */
EP_DEV bool early_store(const struct ep_ht_early_args &a, const struct ep_op &op,
			struct ep_ht_pipe *pipe, const struct early_held &h,
			struct early_behind *behind)
{
	const struct ep_ht_common &c = a.d.c;
	uint32_t kind = EARLY_KIND(h.item.what), part = EARLY_PART(h.item.what);
	uint32_t place = kind == EARLY_SEND ? EP_HT_NONE : early_place(c, h);
	struct ep_ht_piece piece = ep_ht_piece_make(a.d, part);
	struct early_stored stored = {};
	const unsigned char *from;

	if (!ep_ht_pipe_wait(c.g, op, pipe, c.g.rank)) {
		return false;
	}
	from = ep_ht_pipe_oldest(pipe);
	if (kind == EARLY_SEND) {
		ep_bulk_store(early_ring(a, ep_heap_of(c.g, EARLY_RANK(h.item.what)), c.g.rank,
					 h.item.chunk, EARLY_ROW(h.item.what)) +
				      (size_t)part * a.d.part_bytes,
			      from, piece.token_bytes + piece.scale_bytes);
	}
	for (uint32_t left = ep_ballot(EP_FULL_MASK, place != EP_HT_NONE); left; left &= left - 1) {
		piece_store(a.d, a.d.out_tokens, a.d.out_scales,
			    ep_shfl_u32(EP_FULL_MASK, place, ep_ctz(left)), from, piece);
	}
	ep_ht_pipe_release(pipe);
	if (kind == EARLY_RECEIVE && h.item.what & EARLY_END) {
		early_credit(a, op, h.item);
	}
	if (part == 0 && a.d.topk_weights) {
		early_weights(a, h, place);
	}
	if (h.item.what & (kind == EARLY_SEND ? EARLY_END : EARLY_PART_END)) {
		stored.what = h.item.what;
		stored.chunk = h.item.chunk;
		stored.group = pipe->groups;
		stored.expert = EP_HT_NONE;
		if (place != EP_HT_NONE) {
			stored.expert = kind == EARLY_RECEIVE
						? h.l.row
						: EP_HT_SEL_EXPERT(h.l.sel) - c.g.rank * c.nlocal;
		}
	}
	early_push(a, op, pipe, behind, stored);
	return true;
}

/* All of the warp's units. False: a wait has failed. */
EP_DEV bool early_copy(const struct ep_ht_early_args &a, const struct ep_op &op,
		       struct ep_ht_pipe *pipe)
{
	struct early_work work = early_work_make(a);
	struct early_behind behind = {};
	struct early_held next = {};
	bool ahead = false;

	for (;;) {
		struct early_held now;

		if (!early_load(a, op, pipe, &work, &behind)) {
			return false;
		}
		if (!pipe->held) {
			break;
		}
		now = ahead ? next : early_held_make(a, work, pipe->out);
		ahead = pipe->held > 1;
		if (ahead) { /* its tables are on their way while this one is stored */
			next = early_held_make(a, work, ep_ht_pipe_after(pipe, pipe->out));
		}
		if (!early_store(a, op, pipe, now, &behind)) {
			return false;
		}
	}
	early_publish_all(a, op, pipe, &behind);
	return true;
}

EP_KERNEL_ALONE(ep_ht_dispatch_early_kernel, ep_ht_early_args, EP_HT_MAX_THREADS)
{
	const struct ep_ht_common &c = a.d.c;
	bool stale = a.arrivals.head->routing != c.h.head->routing;
	struct ep_ht_entry entry = ep_ht_enter(c, false, stale ? EP_CAUSE_REROUTED : 0);
	struct ep_ht_pipe pipe = ep_ht_pipe_make(a.d.stage_parts, a.d.part_bytes);
	bool ok = ep_ht_begin<false>(c, &entry) && early_copy(a, entry.op, &pipe);

	ep_ht_pipe_end(c.g, entry.op, &pipe);
	if (ok) {
		ep_ht_zero(a.d, &pipe);
	} else if (ep_lane() == 0) {
		ep_st_release_gpu_u32(&a.arrivals.head->failed, 1);
	}
	if (ok && ep_block() == 0 && ep_warp() == 1) { /* peers do not wait for it */
		ep_ht_dispatch_count(a.d);
		ep_ht_counters_leave(a.d);
	}
}
