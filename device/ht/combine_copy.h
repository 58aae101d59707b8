/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput combine: a copy warp at work. It loads contributions as far as there is room and
 * units are ready, over the limits of units, and adds the oldest batch of them, or sends its rows
 * on.
 */
#ifndef EP_DEVICE_HT_COMBINE_COPY_H
#define EP_DEVICE_HT_COMBINE_COPY_H

#include "device/group/wait.h"
#include "device/ht/combine.h"
#include "device/ht/formats.h"
#include "device/simt/bulk.h"

/* ---- a part of a row as a sum in registers: each lane has every 32nd vec of 16 bytes ---- */

#define EP_HT_SUM_VECS (EP_HT_COMBINE_PART / 16 / EP_WARP_SIZE) /* of a lane */

template <class F> struct ep_ht_sum {
	float f[EP_HT_SUM_VECS][F::sums];
};

template <class F> EP_DEV void sum_load(struct ep_vec16 vec, float *f)
{
	struct ep_vec8 lo = { vec.x, vec.y }, hi = { vec.z, vec.w };

	F::numbers::load(lo, f);
	F::numbers::load(hi, f + F::numbers::count);
}

/* The sum holds nothing: it needs no registers until it begins. */
template <class F> EP_DEV void sum_forget(struct ep_ht_sum<F> *sum)
{
	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		for (uint32_t j = 0; j < F::sums; j++) {
			sum->f[i][j] = ep_any_f32();
		}
	}
}

/*
 * Sets all numbers to `zero`: -0 before contributions are added that are coded, because -0 + x is
 * x, also where x is -0; 0 where nothing contributes. Other sums begin with their first
 * contribution.
 */
template <class F> EP_DEV void sum_clear(struct ep_ht_sum<F> *sum, float zero)
{
	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		for (uint32_t j = 0; j < F::sums; j++) {
			sum->f[i][j] = zero;
		}
	}
}

/* Where the lane's i-th vec lies behind `from`: an address of the lane, and a constant. */
template <typename T> EP_DEV T *sum_at(T *from, uint32_t i)
{
	return from + 16 * ep_lane() + (size_t)i * 16 * EP_WARP_SIZE;
}

/*
 * The lane's i-th vec of a contribution: each lane has every 32nd one. Of vecs behind the part's
 * end the last one is taken, and nobody stores what comes of it.
 */
template <bool WHOLE>
EP_DEV struct ep_vec16 sum_vec(const unsigned char *from, uint32_t i, uint32_t vecs)
{
	uint32_t at = i * EP_WARP_SIZE + ep_lane();

	return ep_shared_ld16(WHOLE ? sum_at(from, i) : from + 16 * ep_min_u32(at, vecs - 1));
}

/* Adds a contribution. */
template <class F, bool WHOLE>
EP_DEV void sum_add(struct ep_ht_sum<F> *sum, const unsigned char *from, uint32_t vecs)
{
	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		float f[F::sums];

		sum_load<F>(sum_vec<WHOLE>(from, i, vecs), f);
		for (uint32_t j = 0; j < F::sums; j++) {
			sum->f[i][j] += f[j];
		}
	}
}

/* The same of the first contribution, with which the sum begins. */
template <class F, bool WHOLE>
EP_DEV void sum_set(struct ep_ht_sum<F> *sum, const unsigned char *from, uint32_t vecs)
{
	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		sum_load<F>(sum_vec<WHOLE>(from, i, vecs), sum->f[i]);
	}
}

/* Rounds and stores. */
template <class F, bool WHOLE>
EP_DEV void sum_store(const struct ep_ht_sum<F> &sum, unsigned char *to, uint32_t vecs)
{
	typedef typename F::numbers numbers;

	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		uint32_t at = i * EP_WARP_SIZE + ep_lane();

		if (WHOLE || at < vecs) {
			struct ep_vec8 lo = numbers::store(sum.f[i]);
			struct ep_vec8 hi = numbers::store(sum.f[i] + numbers::count);
			struct ep_vec16 v = { lo.x, lo.y, hi.x, hi.y };

			ep_st16(sum_at(to, i), v);
		}
	}
}

/* Adds a contribution that has come coded: codes, and their scales. */
template <class F, bool WHOLE>
EP_DEV void coded_add(struct ep_ht_sum<F> *sum, const unsigned char *codes,
		      const unsigned char *scales, uint32_t vecs)
{
	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		uint32_t at = i * EP_WARP_SIZE + ep_lane();
		float f[F::sums];

		at = WHOLE ? at : ep_min_u32(at, vecs - 1);
		F::decode(ep_shared_ld8(codes + 8 * at), ep_shared_ld1(scales + at / 4), f);
		for (uint32_t j = 0; j < F::sums; j++) {
			sum->f[i][j] += f[j];
		}
	}
}

/*
 * Stores codes and scales. The four lanes of a group have its scale: of four groups each keeps one,
 * so that a store of the warp has 32 scales side by side.
 */
template <class F, bool WHOLE>
EP_DEV void coded_store(const struct ep_ht_sum<F> &sum, unsigned char *codes, unsigned char *scales,
			uint32_t vecs)
{
	uint32_t kept = 0;

	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		uint32_t at = i * EP_WARP_SIZE + ep_lane(), scale;
		struct ep_vec8 v = F::encode(sum.f[i], &scale);

		if (WHOLE || at < vecs) {
			*(struct ep_vec8 *)(codes + 8 * at) = v;
		}
		kept = (ep_lane() & 3) == (i & 3) ? scale : kept;
		if ((i & 3) == 3 || i + 1 == EP_HT_SUM_VECS) {
			uint32_t row = (i & ~3u) + (ep_lane() & 3);

			at = row * EP_WARP_SIZE + ep_lane();
			if (row <= i && (WHOLE || at < vecs)) {
				scales[at / 4] = (unsigned char)kept;
			}
		}
	}
}

#define EP_HT_PAIR_VECS 4 /* of either contribution, that a lane has in registers */

/* Two contributions, added as they are: the same bits as their sum in fp32 (ep_numbers.add()). */
template <class F, bool WHOLE>
EP_DEV void pair_store(const unsigned char *a, const unsigned char *b, unsigned char *to,
		       uint32_t vecs)
{
	typedef typename F::numbers numbers;

	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i += EP_HT_PAIR_VECS) {
		struct ep_vec16 v[EP_HT_PAIR_VECS], w[EP_HT_PAIR_VECS];

		EP_UNROLL(EP_HT_PAIR_VECS)
		for (uint32_t j = 0; j < EP_HT_PAIR_VECS && i + j < EP_HT_SUM_VECS; j++) {
			v[j] = sum_vec<WHOLE>(a, i + j, vecs);
			w[j] = sum_vec<WHOLE>(b, i + j, vecs);
		}
		EP_UNROLL(EP_HT_PAIR_VECS)
		for (uint32_t j = 0; j < EP_HT_PAIR_VECS && i + j < EP_HT_SUM_VECS; j++) {
			uint32_t at = (i + j) * EP_WARP_SIZE + ep_lane();
			struct ep_vec16 sum = { numbers::add(v[j].x, w[j].x),
						numbers::add(v[j].y, w[j].y),
						numbers::add(v[j].z, w[j].z),
						numbers::add(v[j].w, w[j].w) };

			if (WHOLE || at < vecs) {
				ep_st16(sum_at(to, i + j), sum);
			}
		}
	}
}

/* ---- a copy warp at work ---- */

/* Stores the sums of a part from byte `at` of a tensor's row on: a return's are coded. */
template <class F, bool WHOLE>
EP_DEV void part_store(const struct ep_ht_sum<F> &sum, unsigned char *to, uint32_t what,
		       uint32_t at, uint32_t vecs)
{
	if constexpr (F::coded) {
		if (!(what & EP_HT_NOTE_SUM)) {
			coded_store<F, WHOLE>(sum, to + F::codes_off(at),
					      to + F::scales_off(EP_HT_NOTE_VECS(what), at), vecs);
			return;
		}
	}
	sum_store<F, WHOLE>(sum, to + at, vecs);
}

/*
 * Adds what the slots of a batch, whose first one is pipe.out, have from byte `at` of a tensor's
 * row on. What a sum adds may be coded. Each kind has its loop: in one the compiler joins their
 * ends, and needs 15 registers more.
 */
template <class F, bool WHOLE>
EP_DEV void sum_slots(struct ep_ht_sum<F> *sum, const struct ep_ht_pipe &pipe, uint32_t what,
		      uint32_t at, uint32_t vecs)
{
	uint32_t n = EP_HT_NOTE_SLOTS(what), slot = pipe.out;

	if (what & EP_HT_NOTE_FIRST) {
		if (what & EP_HT_NOTE_EMPTY) {
			/* opaque: else every sum is cleared before it begins with a contribution */
			sum_clear<F>(sum, ep_bits_f32(ep_opaque_u32(0)));
		} else if (F::coded && what & EP_HT_NOTE_SUM) {
			sum_clear<F>(sum, -0.0f);
		} else {
			sum_set<F, WHOLE>(sum, pipe.stage + (size_t)slot * pipe.stride + at, vecs);
			slot = ep_ht_pipe_after(&pipe, slot);
			n--;
		}
	}
	if constexpr (F::coded) {
		EP_UNROLL(1)
		for (uint32_t i = 0; what & EP_HT_NOTE_SUM && i < n; i++) {
			const unsigned char *part = pipe.stage + (size_t)slot * pipe.stride;

			coded_add<F, WHOLE>(sum, part + F::codes_off(at),
					    part + F::scales_off(EP_HT_NOTE_VECS(what), at), vecs);
			slot = ep_ht_pipe_after(&pipe, slot);
		}
		n = what & EP_HT_NOTE_SUM ? 0 : n;
	}
	EP_UNROLL(1)
	for (uint32_t i = 0; i < n; i++) {
		sum_add<F, WHOLE>(sum, pipe.stage + (size_t)slot * pipe.stride + at, vecs);
		slot = ep_ht_pipe_after(&pipe, slot);
	}
}

/* A batch of two contributions, which are all of their row: pair_batch(). */
#define EP_HT_NOTE_PAIR (2u << 10 | EP_HT_NOTE_FIRST | EP_HT_NOTE_LAST)
#define EP_HT_NOTE_PAIR_MASK (63u << 10 | EP_HT_NOTE_FIRST | EP_HT_NOTE_LAST)

template <class F>
EP_DEV void pair_batch(const struct ep_ht_pipe &pipe, unsigned char *to, uint32_t vecs)
{
	const unsigned char *a = pipe.stage + (size_t)pipe.out * pipe.stride;
	const unsigned char *b =
		pipe.stage + (size_t)ep_ht_pipe_after(&pipe, pipe.out) * pipe.stride;

	EP_UNROLL(1)
	for (uint32_t at = 0; at < 16 * vecs; at += EP_HT_COMBINE_PART) {
		uint32_t n = vecs - at / 16;

		if (n >= EP_HT_SUM_VECS * EP_WARP_SIZE) {
			pair_store<F, true>(a + at, b + at, to + at, n);
		} else {
			pair_store<F, false>(a + at, b + at, to + at, n);
		}
	}
}

/* Adds the contributions of a batch, and stores the sums after the last one. */
template <class F>
EP_DEV void sum_batch(struct ep_ht_sum<F> *sum, const struct ep_ht_pipe &pipe, unsigned char *to,
		      uint32_t what)
{
	uint32_t vecs = EP_HT_NOTE_VECS(what);

	/* more than once only if all contributions to the row are here */
	EP_UNROLL(1)
	for (uint32_t at = 0; at < 16 * vecs; at += EP_HT_COMBINE_PART) {
		uint32_t n = vecs - at / 16;

		if (n >= EP_HT_SUM_VECS * EP_WARP_SIZE) {
			sum_slots<F, true>(sum, pipe, what, at, n);
			if (what & EP_HT_NOTE_LAST) {
				part_store<F, true>(*sum, to, what, at, n);
			}
		} else {
			sum_slots<F, false>(sum, pipe, what, at, n);
			if (what & EP_HT_NOTE_LAST) {
				part_store<F, false>(*sum, to, what, at, n);
			}
		}
	}
}

/* Those whose rows were added may write again where these lay. One warp. */
template <bool NODES>
EP_DEV void returns_credit(const struct ep_ht_combine_args &a, const struct ep_op &op,
			   uint32_t chunk, uint32_t part, uint32_t flow)
{
	const struct ep_ht_common &c = a.c;
	bool merges = NODES && flow != EP_HT_NONE;
	uint32_t source = merges ? c.remote.feeds[flow].peer : c.g.rank;

	for (uint32_t i = ep_lane(); i < ep_ht_sharers<NODES>(c); i += EP_WARP_SIZE) {
		uint32_t d = ep_ht_sharer<NODES>(c, i);

		/*
		 * A rank that returns nothing of the chunk gets no credit for it: this sum may end
		 * before that of an earlier chunk, whose rows still lie in the slot.
		 */
		if (merges ? !ep_ht_stays(c, d) && ep_ht_near_mask(c, flow, i, chunk)
			   : ep_ht_returns(c, d, chunk)) {
			ep_st_release_sys_u64(ep_ht_unit_at(c, ep_heap_of(c.g, d),
							    c.areas.credit_off, source,
							    ep_ht_slot_of(c, chunk), part),
					      ep_ht_unit_word(op.epoch, chunk));
		}
	}
}

/* Gives free what has come over the network for a sum. One warp. */
EP_DEV void sum_consumed(const struct ep_ht_combine_args &a, const struct ep_op &op, uint32_t chunk,
			 uint32_t part)
{
	/* a word for each flow: two chunks may be summed in any order if no flow brings both */
	for (uint32_t k = ep_lane(); k < a.c.remote.nodes; k += EP_WARP_SIZE) {
		if (ep_ht_node_mask(a.c, k, chunk)) {
			ep_st_release_sys_u64(ep_ht_consumed_at(a.c, k, chunk, part),
					      ep_ht_unit_word(op.epoch, chunk));
		}
	}
}

/*
 * Publishes the end of a unit to peers; `what`: EP_HT_NOTE_SUM, EP_HT_NOTE_MERGE. What its lanes
 * stored lies behind a barrier.
 */
template <bool NODES>
EP_DEV void unit_end(const struct ep_ht_combine_args &a, const struct ep_op &op, uint32_t unit,
		     uint32_t what)
{
	const struct ep_ht_common &c = a.c;
	bool is_sum = what & EP_HT_NOTE_SUM, is_merge = NODES && what & EP_HT_NOTE_MERGE;
	uint32_t pair = ep_ht_unit_pair(a, unit, is_sum, is_merge), flow = EP_HT_NONE;
	uint32_t chunk = ep_div(pair, a.by_parts), part = pair - chunk * a.parts;
	uint64_t word = ep_ht_unit_word(op.epoch, chunk);

	ep_warp_sync(EP_FULL_MASK);
	if (!is_sum && !is_merge) {
		struct ep_ht_return_ring ring =
			ep_ht_return_ring_of<NODES>(c, ep_ht_return_rank(a, unit));

		if (ep_lane() == 0) {
			ep_st_release_sys_u64(ep_ht_unit_at(c, ep_heap_of(c.g, ring.rank),
							    c.areas.arrived_off, ring.number,
							    ep_ht_slot_of(c, chunk), part),
					      word);
		}
		return;
	}
	if (NODES && is_merge) {
		flow = ep_ht_merge_flow(a, unit);
		if (ep_lane() == 0) {
			ep_st_release_sys_u64(ep_ht_staged_at(c, flow, chunk, part), word);
		}
	} else if (NODES) {
		sum_consumed(a, op, chunk, part);
	}
	/* nobody waits for the credit of a chunk whose slot is not used again */
	if ((ep_ht_windows<NODES>(a) && (!a.in_weights || part)) ||
	    chunk + c.areas.ring_chunks >=
		    (is_merge ? c.h.head->chunks
			      : ep_ht_chunks(c.num_tokens, c.areas.chunk_shift))) {
		return;
	}
	returns_credit<NODES>(a, op, chunk, part, flow);
}

/* A unit of copied rows whose end is not published yet: its stores are under way. */
struct ep_ht_due {
	uint32_t age : 4; /* batches that were used since then, and 1; 0: there is no such unit */
	uint32_t group : 28; /* the last group of its stores */
	uint32_t unit;
};

/* After so many batches its stores are over: nobody waits long, neither this warp nor a peer. */
#define EP_HT_DUE_AGE 4u

template <bool NODES>
EP_DEV void ep_ht_due_publish(const struct ep_ht_combine_args &a, const struct ep_op &op,
			      const struct ep_ht_pipe &pipe, struct ep_ht_due *due)
{
	if (due->age) {
		ep_ht_pipe_stored(&pipe, due->group);
		unit_end<NODES>(a, op, due->unit, 0);
		due->age = 0;
	}
}

/* Results of ep_ht_unit_prepare(). */
struct ep_ht_prepared {
	struct ep_ht_combine_work w;
	struct ep_ht_due due;
	enum ep_ht_ready ready; /* EP_HT_LATE also where no unit is left */
};

/*
 * Makes a unit with rows ready to be loaded, if there is one and its peers are ready; `wait`: waits
 * for them. Out of line, and given and returning values, so that the loop over contributions is
 * short and has registers for its sums: this is done once for all rows of a chunk.
 */
template <bool NODES>
EP_DEV_COLD struct ep_ht_prepared ep_ht_unit_prepare(const struct ep_ht_combine_args &a,
						     struct ep_op op,
						     struct ep_ht_combine_work work,
						     struct ep_ht_pipe pipe, struct ep_ht_due due,
						     bool wait)
{
	struct ep_ht_prepared r = { work, due, EP_HT_LATE };

	if (wait) {
		ep_ht_due_publish<NODES>(a, op, pipe, &r.due); /* who is waited for may need it */
	}
	while (r.w.pending || ep_ht_combine_work_next<NODES>(a, &r.w)) {
		r.ready = ep_ht_combine_work_peers<NODES>(a, op, r.w, wait);
		if (r.ready != EP_HT_READY) {
			return r;
		}
		r.w.pending = false;
		ep_ht_combine_work_begin<NODES>(a, &r.w);
		if (r.w.rows) {
			r.w.open = true;
			return r;
		}
		unit_end<NODES>(a, op, r.w.unit, r.w.is_sum ? EP_HT_NOTE_SUM : 0);
	}
	r.ready = EP_HT_LATE;
	return r;
}

/* Sends the rows of a batch on, as they are: one group of stores. */
EP_DEV void copy_batch(const struct ep_ht_combine_args &a, struct ep_ht_pipe *pipe,
		       unsigned char *to, uint32_t what)
{
	EP_UNROLL(1)
	for (uint32_t i = 0; i < EP_HT_NOTE_SLOTS(what); i++) {
		ep_bulk_store(to + i * a.c.areas.row_stride,
			      pipe->stage +
				      (size_t)ep_ht_pipe_slot(pipe, pipe->out, i) * pipe->stride,
			      16 * EP_HT_NOTE_VECS(what));
	}
	ep_bulk_commit();
	pipe->groups++;
}

/* Uses the oldest batch. False: it does not come. */
template <class F, bool NODES>
EP_DEV bool combine_add(const struct ep_ht_combine_args &a, const struct ep_op &op,
			struct ep_ht_pipe *pipe, const struct ep_ht_batch_note &note,
			struct ep_ht_sum<F> *sum, struct ep_ht_due *due, bool *between)
{
	uint32_t slot = pipe->out, what = ep_shfl_u32(EP_FULL_MASK, note.what, slot);
	unsigned char *to = (unsigned char *)(uintptr_t)ep_shfl_u64(EP_FULL_MASK, note.to, slot);
	bool copied = F::flat && what & EP_HT_NOTE_END && what & EP_HT_NOTE_COPY;

	if (!ep_ht_pipe_wait(a.c.g, op, pipe, a.c.g.rank)) {
		return false;
	}
	if (F::flat && what & EP_HT_NOTE_COPY) {
		copy_batch(a, pipe, to, what);
	} else if (!F::coded && (what & EP_HT_NOTE_PAIR_MASK) == EP_HT_NOTE_PAIR) {
		pair_batch<F>(*pipe, to, EP_HT_NOTE_VECS(what));
		sum_forget<F>(sum);
	} else {
		sum_batch<F>(sum, *pipe, to, what);
	}
	ep_ht_pipe_free_batch<F::flat>(pipe, ep_max_u32(EP_HT_NOTE_SLOTS(what), 1));
	*between = what & (EP_HT_NOTE_LAST | EP_HT_NOTE_COPY);
	due->age += due->age != 0;
	if (F::flat && (due->age > EP_HT_DUE_AGE || copied)) {
		ep_ht_due_publish<NODES>(a, op, *pipe, due);
	}
	if (what & EP_HT_NOTE_END) {
		uint32_t unit = ep_shfl_u32(EP_FULL_MASK, note.unit, slot);

		if (copied) {
			*due = { 1, pipe->groups, unit };
		} else {
			unit_end<NODES>(a, op, unit, what);
		}
	}
	return true;
}

/*
 * Before the operation begins: opens the first unit, if it waits for no peer, and loads of it what
 * lies in this rank's memory. The warps that look for peers in ep_ht_begin() do not wait here for
 * lists.
 */
template <class F, bool NODES>
EP_DEV void ep_ht_combine_early(const struct ep_ht_combine_args &a, struct ep_ht_pipe *pipe,
				struct ep_ht_combine_work *work, struct ep_ht_group *g,
				struct ep_ht_batch_note *note)
{
	bool alone = ep_ht_alone<NODES>(a);

	if (!work->pending ||
	    (!alone && (work->is_sum || a.in_weights || work->chunk >= a.c.areas.ring_chunks))) {
		return;
	}
	work->pending = false;
	work->open = true;
	if (ep_warp() == 0 || ep_warp() == ep_nwarps() - 1) {
		return;
	}
	ep_ht_group_begin<F, NODES>(a, work, g);
	while (!alone && work->open && work->grouped && ep_ht_pipe_room(pipe)) {
		if (!ep_ht_combine_work_load<F, NODES>(a, work, g, pipe, note)) {
			return;
		}
	}
}

/* All units of this warp; `work`: the first one may be pending, or open. */
template <class F, bool NODES>
EP_DEV void ep_ht_combine_units(const struct ep_ht_combine_args &a, const struct ep_op &op,
				struct ep_ht_pipe *pipe, struct ep_ht_due *due,
				struct ep_ht_combine_work work, struct ep_ht_group g,
				struct ep_ht_batch_note note)
{
	struct ep_ht_sum<F> sum;
	bool between = true; /* rows: the sum holds nothing */

	for (;;) {
		while (work.open && ep_ht_pipe_room(pipe)) {
			if (!work.grouped) {
				if (!between) {
					break;
				}
				sum_forget<F>(&sum);
				ep_ht_group_begin<F, NODES>(a, &work, &g);
			}
			if (!ep_ht_combine_work_load<F, NODES>(a, &work, &g, pipe, &note)) {
				break;
			}
		}
		/* who was not ready is looked for again when there is nothing else to do */
		if (between && !work.open && !(work.pending && pipe->held)) {
			struct ep_ht_prepared r =
				ep_ht_unit_prepare<NODES>(a, op, work, *pipe, *due, !pipe->held);

			sum = {}; /* so the call need not keep these */
			g = {};
			work = r.w;
			if (F::flat) {
				*due = r.due;
			}
			if (r.ready == EP_HT_FAILED) {
				return;
			}
			if (r.ready == EP_HT_READY) {
				continue;
			}
		}
		if (!pipe->held || !combine_add<F, NODES>(a, op, pipe, note, &sum, due, &between)) {
			return;
		}
	}
}

/* The operation does not begin: what was loaded for it has to have come before the kernel ends. */
EP_DEV_COLD void ep_ht_combine_drop(const struct ep_ht_combine_args &a, struct ep_op op,
				    struct ep_ht_pipe pipe, struct ep_ht_batch_note note)
{
	while (pipe.held && ep_ht_pipe_wait(a.c.g, op, &pipe, a.c.g.rank)) {
		uint32_t what = ep_shfl_u32(EP_FULL_MASK, note.what, pipe.out);

		ep_ht_pipe_free_batch<true>(&pipe, ep_max_u32(EP_HT_NOTE_SLOTS(what), 1));
	}
}

/* A kernel of combine, for a format. */
#define EP_HT_COMBINE_KERNEL(name, format, function, threads)                                      \
	EP_KERNEL_ALONE(name, ep_ht_combine_args, threads)                                         \
	{                                                                                          \
		function<format>(a);                                                               \
	}

#endif
