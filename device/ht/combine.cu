/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput combine: ncclEpCombine. Each row goes back once per (token, rank); expert-major,
 * the holder sums the rows of a token's local experts first and rounds. The source adds what comes
 * back in ascending order of ranks, in fp32, and rounds once.
 *
 * Bytes, T tokens with rows to `d` ranks on average: flat, 2 (d - 1) T for what this rank returns,
 * d T + T for its sums; expert-major, K T loaded and d T stored, then d T + T. In windows d T + T alone.
 */
#include "device/ht/combine_work.h"
#include "device/ht/step.h"
#include "device/group/numbers.h"

#include "device/kernels.h"

#define EP_HT_SUM_VECS (EP_HT_COMBINE_PART / 16 / EP_WARP_SIZE) /* of a lane */

template <int DTYPE> struct ep_ht_sum {
	float f[EP_HT_SUM_VECS][2 * ep_numbers<DTYPE>::count];
};

/* Adds a contribution, of which each lane has every 32nd vec. */
template <int DTYPE>
EP_DEV void ep_ht_sum_add(struct ep_ht_sum<DTYPE> *sum, const unsigned char *from, uint32_t what)
{
	typedef struct ep_numbers<DTYPE> numbers;
	uint32_t vecs = what & EP_HT_NOTE_VECS;
	bool first = what & EP_HT_NOTE_FIRST, empty = what & EP_HT_NOTE_EMPTY;

	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		uint32_t at = i * EP_WARP_SIZE + ep_lane();
		struct ep_vec16 v = {};
		float f[2 * numbers::count];

		if (at < vecs && !empty) {
			v = ep_shared_ld16(from + 16 * at);
		}
		struct ep_vec8 lo = { v.x, v.y }, hi = { v.z, v.w };

		numbers::load(lo, f);
		numbers::load(hi, f + numbers::count);
		for (uint32_t j = 0; j < 2 * numbers::count; j++) {
			sum->f[i][j] = first ? f[j] : sum->f[i][j] + f[j];
		}
	}
}

/* Rounds and stores. */
template <int DTYPE>
EP_DEV void ep_ht_sum_store(const struct ep_ht_sum<DTYPE> &sum, unsigned char *to, uint32_t what)
{
	typedef struct ep_numbers<DTYPE> numbers;
	uint32_t vecs = what & EP_HT_NOTE_VECS;

	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		uint32_t at = i * EP_WARP_SIZE + ep_lane();

		if (at < vecs) {
			struct ep_vec8 lo = numbers::store(sum.f[i]);
			struct ep_vec8 hi = numbers::store(sum.f[i] + numbers::count);
			struct ep_vec16 v = { lo.x, lo.y, hi.x, hi.y };

			ep_st16(to + 16 * at, v);
		}
	}
}

/* Says what the end of a unit says to peers. What its lanes stored lies behind a barrier. */
EP_DEV void ep_ht_unit_end(const struct ep_ht_combine_args &a, const struct ep_op &op,
			   uint32_t unit, bool is_sum)
{
	const struct ep_ht_common &c = a.c;
	uint32_t all = is_sum ? unit : ep_div(unit, c.g.by_ranks);
	uint32_t chunk = ep_div(all, a.by_parts), part = all - chunk * a.parts;
	uint64_t word = ep_ht_unit_word(op.epoch, chunk);

	ep_warp_sync(EP_FULL_MASK);
	if (is_sum) {
		/* nobody waits for the credit of a chunk whose slot is not used again */
		if (a.is_direct || chunk + c.areas.ring_chunks >= ep_ht_chunks(c.num_tokens)) {
			return;
		}
		for (uint32_t d = ep_lane(); d < c.g.nranks; d += EP_WARP_SIZE) {
			ep_st_release_sys_u64(ep_ht_unit_at(c, ep_heap_of(c.g, d),
							    c.areas.credit_off, c.g.rank,
							    ep_ht_slot_of(c, chunk), part),
					      word);
		}
	} else if (ep_lane() == 0) {
		uint32_t turn = unit - all * c.g.nranks + c.g.rank + 1;
		uint32_t s = turn < c.g.nranks ? turn : turn - c.g.nranks;

		ep_st_release_sys_u64(ep_ht_unit_at(c, ep_heap_of(c.g, s), c.areas.arrived_off,
						    c.g.rank, ep_ht_slot_of(c, chunk), part),
				      word);
	}
}

/* Loads as much as there is room for and peers are ready for. False: a peer has failed. */
EP_DEV bool ep_ht_combine_load(const struct ep_ht_combine_args &a, const struct ep_op &op,
			       struct ep_ht_work *w, struct ep_ht_pipe *p, struct ep_ht_note *note)
{
	while (ep_ht_pipe_room(p, 0) && (w->open || ep_ht_work_next(a, w))) {
		if (!w->ready) {
			enum ep_ht_found found = ep_ht_work_peers(a, op, *w, p->held == 0);

			if (found != EP_HT_READY) {
				return found == EP_HT_NOT_YET;
			}
			ep_ht_work_begin(a, w);
			if (!w->rows) {
				ep_ht_unit_end(a, op, w->unit, w->is_sum);
				w->open = false;
				continue;
			}
		}
		ep_ht_work_load(a, w, p, note);
	}
	return true;
}

/* Adds the oldest contribution. False: it does not come. */
template <int DTYPE>
EP_DEV bool ep_ht_combine_add(const struct ep_ht_combine_args &a, const struct ep_op &op,
			      struct ep_ht_pipe *p, const struct ep_ht_note &note,
			      struct ep_ht_sum<DTYPE> *sum)
{
	uint32_t what = ep_shfl_u32(EP_FULL_MASK, note.what, p->out);
	uint32_t unit = ep_shfl_u32(EP_FULL_MASK, note.unit, p->out);
	uint64_t to = ep_shfl_u64(EP_FULL_MASK, note.to, p->out);
	const unsigned char *from = ep_ht_pipe_wait(a.c.g, op, p, a.c.g.rank);

	if (!from) {
		return false;
	}
	ep_ht_sum_add<DTYPE>(sum, from, what);
	ep_ht_pipe_free(p);
	if (what & EP_HT_NOTE_LAST) {
		ep_ht_sum_store<DTYPE>(*sum, (unsigned char *)(uintptr_t)to, what);
	}
	if (what & EP_HT_NOTE_END) {
		ep_ht_unit_end(a, op, unit, what & EP_HT_NOTE_SUM);
	}
	return true;
}

template <int DTYPE> EP_DEV void ep_ht_combine(const struct ep_ht_combine_args &a)
{
	struct ep_ht_entry e = ep_ht_enter(a.c, true);
	const struct ep_op &op = e.op;
	struct ep_ht_sum<DTYPE> sum = {
	};
	struct ep_ht_note note = {};
	struct ep_ht_pipe p = ep_ht_pipe_make(a.stage_parts, a.part_bytes);
	bool begun = ep_ht_begin(a.c, &e);
	struct ep_ht_work w = ep_ht_work_make(a);

	while (begun && ep_ht_combine_load(a, op, &w, &p, &note) && p.held &&
	       ep_ht_combine_add<DTYPE>(a, op, &p, note, &sum)) {
	}
	ep_ht_pipe_end(a.c.g, op, &p);
	if (a.is_direct) {
		ep_ht_done_send(a.c, op);
		if (begun && ep_block() == 0) {
			ep_ht_done_wait(a.c, op);
		}
	}
}

EP_KERNEL_ALONE(ep_ht_combine_bf16_kernel, ep_ht_combine_args, EP_HT_COMBINE_THREADS)
{
	ep_ht_combine<EP_BF16>(a);
}

EP_KERNEL_ALONE(ep_ht_combine_fp16_kernel, ep_ht_combine_args, EP_HT_COMBINE_THREADS)
{
	ep_ht_combine<EP_FP16>(a);
}

EP_KERNEL_ALONE(ep_ht_combine_fp32_kernel, ep_ht_combine_args, EP_HT_COMBINE_THREADS)
{
	ep_ht_combine<EP_FP32>(a);
}
