/* SPDX-License-Identifier: Apache-2.0 */
/* Routing of high throughput: what follows from the counts of all blocks and ranks. */
#ifndef EP_DEVICE_HT_ROUTE_SUMS_H
#define EP_DEVICE_HT_ROUTE_SUMS_H

#include "device/ht/route_remote.h"

#define EP_HT_ROUTE_BATCH 16 /* count words that a thread has under way */

/*
 * Sums of a column over `rows` lists of counts that lie `stride` words apart: *total, and *before of
 * those before list `mine`. False when one has failed to come: of rank r if the lists are the ranks', else
 * of a block of this rank.
 */
template <bool NODES>
EP_DEV bool ep_ht_column_sum(const struct ep_ht_common &c, const struct ep_op &op,
			     const uint64_t *column, uint32_t stride, uint32_t rows, uint32_t mine,
			     bool ranks, uint32_t *before, uint32_t *total)
{
	uint32_t low = 0, sum = 0;

	EP_UNROLL(1)
	for (uint32_t r0 = 0; r0 < rows; r0 += EP_HT_ROUTE_BATCH) {
		uint32_t n = ep_min_u32(rows - r0, EP_HT_ROUTE_BATCH), missing = (1u << n) - 1;
		uint32_t v[EP_HT_ROUTE_BATCH] = {};
		struct ep_spin s = ep_spin_start();

		for (;;) {
			uint32_t come = 0, peer;

#pragma unroll
			for (uint32_t i = 0; i < EP_HT_ROUTE_BATCH; i++) {
				if (missing >> i & 1) {
					come |= (uint32_t)ep_ld_word(column + (size_t)(r0 + i) *
										      stride,
								     op.epoch, &v[i])
						<< i;
				}
			}
			missing &= ~come;
			if (!missing) {
				break;
			}
			peer = ranks ? r0 + ep_ctz(missing) : c.g.rank;
			if (ranks ? ep_ht_give_up<NODES>(c, op, &s, EP_WAIT_HT_COUNT, peer)
				  : ep_wait_give_up(c.g, op, &s, EP_WAIT_HT_COUNT, peer)) {
				return false;
			}
		}
		ep_ht_go_on<NODES>(c, op, s);
#pragma unroll
		for (uint32_t i = 0; i < EP_HT_ROUTE_BATCH; i++) {
			low += r0 + i < mine ? v[i] : 0;
			sum += v[i];
		}
	}
	*before = low;
	*total = sum;
	return true;
}

/*
 * The counts of all blocks give those of this rank, which block b tells ranks b, b + nblocks, and so on.
 * `kept` is the number of rows to each rank for now.
 */
template <bool NODES>
EP_DEV bool ep_ht_blocks_sum(const struct ep_ht_common &c, const struct ep_op &op,
			     const struct ep_ht_route &t)
{
	for (uint32_t i = ep_tid(); i < t.counts; i += ep_nthreads()) {
		uint32_t before, mine;

		if (!ep_ht_column_sum<NODES>(c, op, ep_ht_block_words(c, t, 0) + i, t.counts,
					     ep_nblocks(), ep_block(), false, &before, &mine)) {
			return false;
		}
		for (uint32_t d = ep_block(); d < c.g.nranks; d += ep_nblocks()) {
			unsigned char *heap = ep_heap_of(c.g, d);

			if (!NODES || heap) {
				ep_st_word(ep_ht_rank_words(c, t, heap, c.g.rank) + i, mine,
					   op.epoch);
			}
		}
		if (NODES && ep_block() == 0) {
			ep_st_word(ep_ht_out_count(c) + i, mine, op.epoch);
		}
		if (i < t.columns) {
			t.first[i] = before;
		}
		if (i >= t.experts && i < t.columns) {
			t.kept[i - t.experts] = mine;
		}
	}
	return true;
}

/* The counts of all ranks; by the threads that have had the columns before. */
template <bool NODES>
EP_DEV bool ep_ht_ranks_sum(const struct ep_ht_common &c, const struct ep_op &op,
			    const struct ep_ht_route &t)
{
	for (uint32_t i = ep_tid(); i < t.counts; i += ep_nthreads()) {
		uint32_t before, total;

		if (!ep_ht_column_sum<NODES>(c, op, ep_ht_rank_words(c, t, c.g.own, 0) + i,
					     t.counts, c.g.nranks, c.g.rank, true, &before,
					     &total)) {
			return false;
		}
		if (i == t.columns) {
			break; /* tokens are not added up, but they have come */
		}
		t.all[i] = total;
		if (i < t.experts) {
			t.first[i] += before;
		} else {
			uint32_t d = i - t.experts;

			t.base[d] = ep_min_u32(before, c.limit);
			t.kept[d] = ep_min_u32(t.kept[d], c.limit - t.base[d]);
		}
	}
	return true;
}

/* Inclusive sum over the lanes. */
EP_DEV uint32_t ep_ht_lanes_sum(uint32_t v)
{
#pragma unroll
	for (uint32_t delta = 1; delta < EP_WARP_SIZE; delta *= 2) {
		uint32_t below = ep_shfl_u32(EP_FULL_MASK, v, (ep_lane() - delta) & 31);

		v += ep_lane() >= delta ? below : 0;
	}
	return v;
}

/*
 * Where the sources' rows begin here, the most chunks that one has, and whether to some rank no rows come.
 * One warp; the counts are here.
 */
EP_DEV void ep_ht_sources_make(const struct ep_ht_common &c, const struct ep_op &op,
			       const struct ep_ht_route &t)
{
	uint32_t end = 0, most = 0;
	bool idle = false;

	for (uint32_t s0 = 0; s0 < c.g.nranks; s0 += EP_WARP_SIZE) {
		uint32_t s = s0 + ep_lane(), rows = 0, tokens = 0, sum;

		if (s < c.g.nranks) {
			const uint64_t *words = ep_ht_rank_words(c, t, c.g.own, s);

			(void)ep_ld_word(words + t.experts + c.g.rank, op.epoch, &rows);
			(void)ep_ld_word(words + t.columns, op.epoch, &tokens);
			idle |= t.all[t.experts + s] == 0;
		}
		most = ep_max_u32(most, tokens);
		sum = ep_ht_lanes_sum(rows);
		if (s < c.g.nranks) {
			t.from[s] = ep_min_u32(end + sum - rows, c.limit);
		}
		end += ep_shfl_u32(EP_FULL_MASK, sum, EP_WARP_SIZE - 1);
	}
	for (uint32_t x = 1; x < EP_WARP_SIZE; x *= 2) {
		most = ep_max_u32(most, ep_shfl_xor_u32(EP_FULL_MASK, most, x));
	}
	idle = ep_any(EP_FULL_MASK, idle);
	if (ep_lane() == 0) {
		t.from[c.g.nranks] = ep_min_u32(end, c.limit);
		t.from[c.g.nranks + 1] = ep_ht_chunks(most);
		t.from[c.g.nranks + 2] = idle;
	}
}

/* Expert-major: the lane's expert, where its zone begins, and its rows with padding. */
struct ep_ht_zone_at {
	uint32_t expert; /* NONE: the lane has none */
	uint32_t begin;
	uint32_t rows;
};

/* Local experts e0 and on of rank d; *end is where the zone before them ends, then theirs. One warp. */
EP_DEV struct ep_ht_zone_at ep_ht_zones_next(const struct ep_ht_route_args &a,
					     const struct ep_ht_route &t, uint32_t d, uint32_t e0,
					     uint32_t *end)
{
	uint32_t e = e0 + ep_lane(), pad = a.alignment - 1, sum;
	struct ep_ht_zone_at z = { EP_HT_NONE, 0, 0 };

	if (e < a.c.nlocal) {
		z.expert = d * a.c.nlocal + e;
		z.rows = (t.all[z.expert] + pad) & ~pad;
	}
	sum = ep_ht_lanes_sum(z.rows);
	z.begin = *end + sum - z.rows;
	*end += ep_shfl_u32(EP_FULL_MASK, sum, EP_WARP_SIZE - 1);
	return z;
}

/* Expert-major: adds the beginnings of rank d's zones to the places. One warp. */
EP_DEV void ep_ht_zones_make(const struct ep_ht_route_args &a, const struct ep_ht_route &t,
			     uint32_t d)
{
	uint32_t end = 0;

	for (uint32_t e0 = 0; e0 < a.c.nlocal; e0 += EP_WARP_SIZE) {
		struct ep_ht_zone_at z = ep_ht_zones_next(a, t, d, e0, &end);

		if (z.expert != EP_HT_NONE) {
			t.first[z.expert] += z.begin;
		}
	}
	if (ep_lane() == 0) {
		t.ends[d] = end;
	}
}

/* Expert-major: where places lie at every rank. A barrier before and after. */
EP_DEV void ep_ht_bases_make(const struct ep_ht_route_args &a, const struct ep_ht_route &t)
{
	for (uint32_t d = ep_warp(); a.c.layout == EP_HT_EXPERT_MAJOR && d < a.c.g.nranks;
	     d += ep_nwarps()) {
		ep_ht_zones_make(a, t, d);
	}
}

/* What is to come to rank d: slots, or places. */
EP_DEV uint32_t ep_ht_total(const struct ep_ht_common &c, const struct ep_ht_route &t, uint32_t d)
{
	return c.layout == EP_HT_EXPERT_MAJOR ? t.ends[d] : t.all[t.experts + d];
}

/* The first rank to which more comes than it has room for, or R. One warp. */
EP_DEV uint32_t ep_ht_overflow_find(const struct ep_ht_route_args &a, const struct ep_ht_route &t)
{
	for (uint32_t r0 = 0; !a.drop && r0 < a.c.g.nranks; r0 += EP_WARP_SIZE) {
		uint32_t d = r0 + ep_lane();
		uint32_t over = ep_ballot(EP_FULL_MASK,
					  d < a.c.g.nranks && ep_ht_total(a.c, t, d) > a.c.limit);

		if (over) {
			return r0 + ep_ctz(over);
		}
	}
	return a.c.g.nranks;
}

EP_DEV_COLD void ep_ht_overflow_record(const struct ep_ht_route_args &a, struct ep_op op,
				       uint32_t d, uint32_t total)
{
	struct ep_record r = ep_record_make(op, EP_CAUSE_OVERFLOW, d);

	r.value = total;
	r.expected = a.c.limit;
	ep_record_write(a.c.g, EP_RECORD_FATAL, r);
	ep_abort(a.c.g);
}

#endif
