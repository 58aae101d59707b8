/* SPDX-License-Identifier: Apache-2.0 */
/* Routing of high throughput: what follows from the counts of all blocks and ranks. */
#ifndef EP_DEVICE_HT_ROUTE_SUMS_H
#define EP_DEVICE_HT_ROUTE_SUMS_H

#include "device/ht/route_remote.h"

/* Words of a column that a thread has under way: those of the ranks of a node of 8, and its block's. */
#define EP_HT_ROUTE_BATCH 9

/* Inclusive sum over lanes, among each `width` of them. */
EP_DEV uint32_t ep_ht_lanes_sum(uint32_t v, uint32_t width = EP_WARP_SIZE)
{
	uint32_t lane = ep_lane();

	EP_UNROLL()
	for (uint32_t delta = 1; delta < EP_WARP_SIZE; delta *= 2) {
		uint32_t below = ep_shfl_u32(EP_FULL_MASK, v, (lane - delta) & 31);

		v += delta < width && (lane & (width - 1)) >= delta ? below : 0;
	}
	return v;
}

/* A count word that another block of this rank writes. */
template <bool NODES>
EP_DEV bool ep_ht_block_count_wait(const struct ep_ht_common &c, const struct ep_op &op,
				   const uint64_t *word, uint32_t *v)
{
	struct ep_spin s = ep_spin_start();

	while (!ep_ld_word(word, op.epoch, v)) {
		if (ep_ht_give_up<NODES>(c, op, &s, EP_WAIT_HT_COUNT, c.g.rank)) {
			return false;
		}
	}
	return true;
}

/*
 * The counts of all blocks give those of this rank, and what the blocks before each one have. The blocks share the
 * columns. A column's words are added up by lanes of one warp, one for each block, which publish to the blocks and share
 * telling the ranks.
 */
template <bool NODES>
EP_DEV bool ep_ht_blocks_sum(const struct ep_ht_common &c, const struct ep_op &op,
			     const struct ep_ht_route &route)
{
	uint32_t nblocks = ep_nblocks(), share = (route.counts + nblocks - 1) / nblocks, shift = 0;
	uint32_t begin = ep_block() * share, end = ep_min_u32(begin + share, route.counts);

	_Static_assert(EP_HT_ROUTE_BLOCKS <= EP_WARP_SIZE, "a lane for each block");
	while (1u << shift < nblocks) {
		shift++;
	}
	uint32_t width = 1u << shift, b = ep_lane() & (width - 1);
	uint32_t columns = EP_WARP_SIZE >> shift;

	for (uint32_t i0 = begin + ep_warp() * columns; i0 < end; i0 += ep_nwarps() * columns) {
		uint32_t i = i0 + (ep_lane() >> shift), v = 0, sum, total;
		bool mine = i < end && b < nblocks;
		bool ok = !mine || ep_ht_block_count_wait<NODES>(
					   c, op, ep_ht_block_words(c, route, b) + i, &v);

		if (!ep_all(EP_FULL_MASK, ok)) {
			return false;
		}
		sum = ep_ht_lanes_sum(v, width);
		total = ep_shfl_u32(EP_FULL_MASK, sum, ep_lane() | (width - 1));
		if (mine) {
			ep_st_word(ep_ht_before_words(c, route, b) + i, sum - v, op.epoch);
		}
		for (uint32_t d = b; d < c.g.nranks && i < end; d += width) {
			unsigned char *heap = ep_heap_of(c.g, d);

			if (!NODES || heap) {
				ep_st_word(ep_ht_rank_words(c, route, heap, c.g.rank) + i, total,
					   op.epoch);
			}
		}
		if (NODES && b == 0 && i < end) {
			ep_st_word(ep_ht_out_count(c) + i, total, op.epoch);
		}
	}
	return true;
}

/* All blocks have left this rank's counts where block 0 posts them from. */
template <bool NODES>
EP_DEV bool ep_ht_counts_here(const struct ep_ht_common &c, const struct ep_op &op,
			      const struct ep_ht_route &route)
{
	bool ok = true;

	for (uint32_t i = ep_tid(); i < route.counts && ok; i += ep_nthreads()) {
		uint32_t v;

		ok = ep_ht_block_count_wait<NODES>(c, op, ep_ht_out_count(c) + i, &v);
	}
	return ok;
}

/* Sums of a column: rows of all ranks, of this one, of those before it, and of blocks before this. */
struct ep_ht_column {
	uint32_t all;
	uint32_t own;
	uint32_t ranks_before;
	uint32_t blocks_before;
};

/* False when a rank's word has failed to come, or a block's of this rank. */
template <bool NODES>
EP_DEV bool ep_ht_column_take(const struct ep_ht_common &c, const struct ep_op &op,
			      const struct ep_ht_route &route, uint32_t i,
			      struct ep_ht_column *column)
{
	const uint64_t *before = ep_ht_before_words(c, route, ep_block()) + i;
	const uint64_t *words = ep_ht_rank_words(c, route, c.g.own, 0) + i;
	uint32_t nranks = c.g.nranks;
	struct ep_ht_column sum = {};

	/* the word behind those of the ranks is the blocks' */
	EP_UNROLL(1)
	for (uint32_t r0 = 0; r0 <= nranks; r0 += EP_HT_ROUTE_BATCH) {
		uint32_t n = ep_min_u32(nranks + 1 - r0, EP_HT_ROUTE_BATCH);
		uint32_t missing = (1u << n) - 1, v[EP_HT_ROUTE_BATCH] = {};
		struct ep_spin s = ep_spin_start();

		for (;;) {
			uint32_t come = 0, r;

			EP_UNROLL()
			for (uint32_t j = 0; j < EP_HT_ROUTE_BATCH; j++) {
				r = r0 + j;
				if (missing >> j & 1) {
					come |= (uint32_t)ep_ld_word(
							r == nranks
								? before
								: words + (size_t)r * route.counts,
							op.epoch, &v[j])
						<< j;
				}
			}
			missing &= ~come;
			if (!missing) {
				break;
			}
			r = r0 + ep_ctz(missing);
			if (ep_ht_give_up<NODES>(c, op, &s, EP_WAIT_HT_COUNT,
						 r == nranks ? c.g.rank : r)) {
				return false;
			}
		}
		EP_UNROLL()
		for (uint32_t j = 0; j < EP_HT_ROUTE_BATCH; j++) {
			uint32_t r = r0 + j;

			sum.blocks_before += r == nranks ? v[j] : 0;
			sum.ranks_before += r < c.g.rank ? v[j] : 0;
			sum.own += r == c.g.rank ? v[j] : 0;
			sum.all += r < nranks ? v[j] : 0;
		}
	}
	*column = sum;
	return true;
}

/* The counts of all ranks. */
template <bool NODES>
EP_DEV bool ep_ht_counts_take(const struct ep_ht_common &c, const struct ep_op &op,
			      const struct ep_ht_route &route)
{
	for (uint32_t i = ep_tid(); i < route.counts; i += ep_nthreads()) {
		struct ep_ht_column column;

		if (!ep_ht_column_take<NODES>(c, op, route, i, &column)) {
			return false;
		}
		if (i == route.columns) {
			break; /* tokens are not added up, but they have come */
		}
		route.all[i] = column.all;
		route.first[i] = column.blocks_before;
		if (i < route.experts) {
			route.first[i] += column.ranks_before;
		} else {
			uint32_t d = i - route.experts;

			route.base[d] = ep_min_u32(column.ranks_before, c.limit);
			route.kept[d] = ep_min_u32(column.own, c.limit - route.base[d]);
		}
	}
	return true;
}

/*
 * Where the sources' rows begin here, the most chunks that one has, and whether to some rank no rows come.
 * One warp; the counts are here.
 */
EP_DEV void ep_ht_sources_make(const struct ep_ht_common &c, const struct ep_op &op,
			       const struct ep_ht_route &route)
{
	uint32_t end = 0, most = 0;
	bool idle = false;

	for (uint32_t s0 = 0; s0 < c.g.nranks; s0 += EP_WARP_SIZE) {
		uint32_t s = s0 + ep_lane(), rows = 0, tokens = 0, sum;

		if (s < c.g.nranks) {
			const uint64_t *words = ep_ht_rank_words(c, route, c.g.own, s);

			(void)ep_ld_word(words + route.experts + c.g.rank, op.epoch, &rows);
			(void)ep_ld_word(words + route.columns, op.epoch, &tokens);
			idle |= route.all[route.experts + s] == 0;
		}
		most = ep_max_u32(most, tokens);
		sum = ep_ht_lanes_sum(rows);
		if (s < c.g.nranks) {
			route.from[s] = ep_min_u32(end + sum - rows, c.limit);
		}
		end += ep_shfl_u32(EP_FULL_MASK, sum, EP_WARP_SIZE - 1);
	}
	for (uint32_t x = 1; x < EP_WARP_SIZE; x *= 2) {
		most = ep_max_u32(most, ep_shfl_xor_u32(EP_FULL_MASK, most, x));
	}
	idle = ep_any(EP_FULL_MASK, idle);
	if (ep_lane() == 0) {
		route.from[c.g.nranks] = ep_min_u32(end, c.limit);
		route.from[c.g.nranks + 1] = ep_ht_chunks(most, c.areas.chunk_shift);
		route.from[c.g.nranks + 2] = idle;
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
					     const struct ep_ht_route &route, uint32_t d,
					     uint32_t e0, uint32_t *end)
{
	uint32_t e = e0 + ep_lane(), pad = a.alignment - 1, sum;
	struct ep_ht_zone_at z = { EP_HT_NONE, 0, 0 };

	if (e < a.c.nlocal) {
		z.expert = d * a.c.nlocal + e;
		z.rows = (route.all[z.expert] + pad) & ~pad;
	}
	sum = ep_ht_lanes_sum(z.rows);
	z.begin = *end + sum - z.rows;
	*end += ep_shfl_u32(EP_FULL_MASK, sum, EP_WARP_SIZE - 1);
	return z;
}

/* Expert-major: adds the beginnings of rank d's zones to the places. One warp. */
EP_DEV void ep_ht_zones_make(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
			     uint32_t d)
{
	uint32_t end = 0;

	for (uint32_t e0 = 0; e0 < a.c.nlocal; e0 += EP_WARP_SIZE) {
		struct ep_ht_zone_at z = ep_ht_zones_next(a, route, d, e0, &end);

		if (z.expert != EP_HT_NONE) {
			route.first[z.expert] += z.begin;
		}
	}
	if (ep_lane() == 0) {
		route.ends[d] = end;
	}
}

/* Expert-major: where places lie at every rank. A barrier before and after. */
EP_DEV void ep_ht_bases_make(const struct ep_ht_route_args &a, const struct ep_ht_route &route)
{
	for (uint32_t d = ep_warp(); a.c.layout == EP_HT_EXPERT_MAJOR && d < a.c.g.nranks;
	     d += ep_nwarps()) {
		ep_ht_zones_make(a, route, d);
	}
}

/* Returns how many rows are to come to rank d: slots, or places. */
EP_DEV uint32_t ep_ht_total(const struct ep_ht_common &c, const struct ep_ht_route &route,
			    uint32_t d)
{
	return c.layout == EP_HT_EXPERT_MAJOR ? route.ends[d] : route.all[route.experts + d];
}

/* The first rank to which more comes than it has room for, or R. One warp. */
EP_DEV uint32_t ep_ht_overflow_find(const struct ep_ht_route_args &a,
				    const struct ep_ht_route &route)
{
	for (uint32_t r0 = 0; !a.drop && r0 < a.c.g.nranks; r0 += EP_WARP_SIZE) {
		uint32_t d = r0 + ep_lane();
		uint32_t over = ep_ballot(
			EP_FULL_MASK, d < a.c.g.nranks && ep_ht_total(a.c, route, d) > a.c.limit);

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
