/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routing of high throughput: the tokens of a block, and how many of them go where.
 *
 * Columns. There is a column of bits for each expert, and behind these one for each rank: which tokens
 * of a span have selected it. Their number before a token's bit is where the token's row or place is
 * among those of the span; what lies before the span is in `first`.
 */
#ifndef EP_DEVICE_HT_ROUTE_COUNT_H
#define EP_DEVICE_HT_ROUTE_COUNT_H

#include "device/ht/ht_step.h"

#define EP_HT_ROUTE_SPAN 256u /* tokens at most */
#define EP_HT_ROUTE_AHEAD 4   /* ids that a thread loads ahead */
#define EP_HT_ROUTE_OTHERS 8u /* selections of its token that a thread looks at together */

/*
 * Where a selection belongs in its row's list, which begins with selection `first` of the token and has
 * `count` entries. The selection's own is entry `index`; none if it names an expert again.
 */
#define EP_HT_RUN(first, index, count) ((first) | (index) << 8 | (count) << 16)
#define EP_HT_RUN_FIRST(r) ((r)&0xffu)
#define EP_HT_RUN_INDEX(r) ((r) >> 8 & 0xffu)
#define EP_HT_RUN_COUNT(r) ((r) >> 16)

/* State of a block. Tables are in shared memory, two of them in scratch if they are large. */
struct ep_ht_route {
	uint32_t experts; /* E */
	uint32_t columns; /* E + R */
	uint32_t counts;  /* of a block or a rank: of each column, and its tokens */
	uint32_t begin;   /* the block's tokens */
	uint32_t end;
	uint32_t span;   /* tokens that are marked at a time */
	uint32_t words;  /* of each column's bits */
	uint32_t window; /* experts that are marked at a time */
	uint32_t *id;    /* [span][K] expert, or NONE */
	uint32_t *sel;   /* [span][K] the same in order, as send_sel */
	uint32_t *run;   /* [span][K] in that order: EP_HT_RUN */
	uint32_t *row;   /* [span][K] in that order */
	uint32_t *
		entry; /* [span][K] what a row's destination gets about it, from the row's first on */
	uint32_t *leads;     /* [span][K] selections with which a row's list begins, in any order */
	uint32_t *nleads;    /* [1] */
	uint32_t *bits;      /* [window][words] */
	uint32_t *rank_bits; /* [R][words], behind those */
	uint32_t *first; /* [columns] rank: rows of earlier blocks and spans; expert: next place */
	uint32_t *all;   /* [columns] of the block at first, then of all ranks */
	uint32_t *base;  /* [R] slot of this rank's row 0 there */
	uint32_t *kept;  /* [R] rows to there that are not dropped */
	uint32_t *ends;  /* [R] expert-major: end of the last zone there */
	uint32_t *from; /* [R + 1] slot here of each rank's row 0; behind that, the most chunks, and
			  * ep_ht_head.idle */
};

/* Column 0 of block b's counts; of those of the blocks before it; of rank r's, in a heap. */
EP_DEV uint64_t *ep_ht_block_words(const struct ep_ht_common &c, const struct ep_ht_route &route,
				   uint32_t b)
{
	return (uint64_t *)(c.h.scratch + EP_HT_COUNTERS) + (size_t)b * route.counts;
}

EP_DEV uint64_t *ep_ht_before_words(const struct ep_ht_common &c, const struct ep_ht_route &route,
				    uint32_t b)
{
	return ep_ht_block_words(c, route, EP_HT_ROUTE_BLOCKS + b);
}

EP_DEV uint64_t *ep_ht_rank_words(const struct ep_ht_common &c, const struct ep_ht_route &route,
				  unsigned char *heap, uint32_t r)
{
	return (uint64_t *)(heap + c.areas.count_off) + (size_t)r * route.counts;
}

EP_DEV struct ep_ht_route ep_ht_route_make(const struct ep_ht_common &c)
{
	uint32_t nranks = c.g.nranks, *p = (uint32_t *)ep_dynamic_shared(), tokens;
	struct ep_ht_route t;

	t.experts = nranks * c.nlocal;
	t.columns = t.experts + nranks;
	t.counts = ep_ht_counts(t.experts, nranks);
	tokens = (ep_ht_chunks(c.num_tokens, c.areas.chunk_shift) + ep_nblocks() - 1) / ep_nblocks()
		 << c.areas.chunk_shift;
	t.begin = ep_min_u32(ep_block() * tokens, c.num_tokens);
	t.end = ep_min_u32(t.begin + tokens, c.num_tokens);
	t.words = ep_min_u32(EP_HT_ROUTE_SPAN, EP_HT_ROUTE_IDS / c.topk) / 32;
	t.words = ep_min_u32(t.words, (tokens + 31) / 32);
	t.words = ep_max_u32(ep_min_u32(t.words, EP_HT_ROUTE_BITS / t.columns), 1);
	t.span = 32 * t.words;
	t.window = ep_min_u32(t.experts, EP_HT_ROUTE_BITS / t.words - nranks);
	t.id = p;
	t.sel = t.id + EP_HT_ROUTE_IDS;
	t.run = t.sel + EP_HT_ROUTE_IDS;
	t.row = t.run + EP_HT_ROUTE_IDS;
	t.entry = t.row + EP_HT_ROUTE_IDS;
	t.leads = t.entry + EP_HT_ROUTE_IDS;
	t.bits = t.leads + EP_HT_ROUTE_IDS;
	t.rank_bits = t.bits + t.window * t.words;
	t.base = t.bits + ep_ht_route_bits(t.columns);
	t.kept = t.base + nranks;
	t.ends = t.kept + nranks;
	t.from = t.ends + nranks;
	t.nleads = t.from + nranks + 3;
	t.first = t.nleads + 1;
	if (t.columns > EP_HT_ROUTE_TABLE) {
		t.first = (uint32_t *)(ep_ht_before_words(c, t, EP_HT_ROUTE_BLOCKS)) +
			  2 * (size_t)t.columns * ep_block();
	}
	t.all = t.first + t.columns;
	return t;
}

/* Ids as they lie in the caller's tensor. Nothing is computed from them until they are needed. */
struct ep_ht_raw_id {
	uint32_t lo;
	uint32_t hi; /* 8-byte ids only */
};

struct ep_ht_ahead {
	struct ep_ht_raw_id id[EP_HT_ROUTE_AHEAD];
};

/* Selection i of the tokens from w0 on. */
EP_DEV struct ep_ht_raw_id ep_ht_id_load(const struct ep_ht_route_args &a, uint32_t w0, uint32_t i)
{
	const uint32_t *p = (const uint32_t *)((const unsigned char *)a.topk_idx +
					       ((size_t)w0 * a.c.topk + i) * a.id_bytes);
	struct ep_ht_raw_id id = { 0, 0 };

	if (a.id_bytes == 8) {
		struct ep_vec8 v = ep_ld8_nc(p);

		id.lo = v.x;
		id.hi = v.y;
	} else {
		id.lo = *p;
	}
	return id;
}

EP_DEV uint32_t ep_ht_span_tokens(const struct ep_ht_route &route, uint32_t w0)
{
	return ep_min_u32(route.end - w0, route.span);
}

/* The thread's first selections of the span. */
EP_DEV struct ep_ht_ahead ep_ht_span_load(const struct ep_ht_route_args &a,
					  const struct ep_ht_route &route, uint32_t w0)
{
	uint32_t ids = ep_ht_span_tokens(route, w0) * a.c.topk;
	struct ep_ht_ahead ahead = {};

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_ROUTE_AHEAD; j++) {
		uint32_t i = ep_tid() + j * ep_nthreads();

		if (i < ids) {
			ahead.id[j] = ep_ht_id_load(a, w0, i);
		}
	}
	return ahead;
}

EP_DEV_COLD void ep_ht_id_refuse(const struct ep_ht_route_args &a, struct ep_op op, uint32_t token,
				 uint32_t k, int64_t id)
{
	struct ep_record r = ep_record_make(op, EP_CAUSE_EXPERT_ID, a.c.g.rank);

	r.token = token;
	r.k = k;
	r.value = id;
	r.expected = (int64_t)a.c.g.nranks * a.c.nlocal;
	ep_record_write(a.c.g, EP_RECORD_ROUTING, r);
}

/* Notes selection i of the span, and sets its bits: of its rank, and of an expert of the first window. */
EP_DEV void ep_ht_id_mark(const struct ep_ht_route_args &a, const struct ep_op &op,
			  const struct ep_ht_route &route, uint32_t w0, uint32_t i,
			  struct ep_ht_raw_id raw)
{
	int64_t id = a.id_bytes == 8 ? (int64_t)((uint64_t)raw.hi << 32 | raw.lo) : (int32_t)raw.lo;
	uint32_t local = ep_div(i, a.by_topk), bit = 1u << (local & 31), expert = (uint32_t)id;

	if (id < 0 || id >= (int64_t)route.experts) {
		if (id >= 0) {
			ep_ht_id_refuse(a, op, w0 + local, i - local * a.c.topk, id);
		}
		route.id[i] = EP_HT_NONE;
		return;
	}
	route.id[i] = expert;
	ep_shared_or_u32(&route.rank_bits[ep_div(expert, a.c.by_local) * route.words + local / 32],
			 bit);
	if (expert < route.window) {
		ep_shared_or_u32(&route.bits[expert * route.words + local / 32], bit);
	}
}

EP_DEV void ep_ht_bits_clear(const struct ep_ht_route &route, uint32_t words)
{
	for (uint32_t i = ep_tid(); i < words; i += ep_nthreads()) {
		route.bits[i] = 0;
	}
}

/* All bits of the span, which are clear. A barrier before and after. */
EP_DEV void ep_ht_span_mark(const struct ep_ht_route_args &a, const struct ep_op &op,
			    const struct ep_ht_route &route, uint32_t w0,
			    const struct ep_ht_ahead &ahead)
{
	uint32_t ids = ep_ht_span_tokens(route, w0) * a.c.topk, i = ep_tid();

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_ROUTE_AHEAD; j++, i += ep_nthreads()) {
		if (i < ids) {
			ep_ht_id_mark(a, op, route, w0, i, ahead.id[j]);
		}
	}
	EP_UNROLL(1)
	for (; i < ids; i += ep_nthreads()) { /* in blocks of few threads */
		ep_ht_id_mark(a, op, route, w0, i, ep_ht_id_load(a, w0, i));
	}
}

/* Another span, or the first one once more. Barriers at both ends. */
EP_DEV void ep_ht_span_take(const struct ep_ht_route_args &a, const struct ep_op &op,
			    const struct ep_ht_route &route, uint32_t w0)
{
	struct ep_ht_ahead ahead = ep_ht_span_load(a, route, w0);

	ep_block_sync();
	ep_ht_bits_clear(route, (route.window + a.c.g.nranks) * route.words);
	ep_block_sync();
	ep_ht_span_mark(a, op, route, w0, ahead);
	ep_block_sync();
}

/* The same span, but the experts from e0 on. Barriers at both ends. */
EP_DEV void ep_ht_window_take(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
			      uint32_t w0, uint32_t e0)
{
	uint32_t ids = ep_ht_span_tokens(route, w0) * a.c.topk;

	ep_block_sync();
	ep_ht_bits_clear(route, route.window * route.words);
	ep_block_sync();
	for (uint32_t i = ep_tid(); i < ids; i += ep_nthreads()) {
		uint32_t at = route.id[i] - e0, local = ep_div(i, a.by_topk);

		if (route.id[i] != EP_HT_NONE && at < route.window) {
			ep_shared_or_u32(&route.bits[at * route.words + local / 32],
					 1u << (local & 31));
		}
	}
	ep_block_sync();
}

/* Set bits of words [0, n). Few words at once: their loads do not wait for one another. */
EP_DEV uint32_t ep_ht_bits_count(const uint32_t *bits, uint32_t n)
{
	uint32_t sum = 0;

	EP_UNROLL(1)
	for (uint32_t w0 = 0; w0 < n; w0 += 4) {
		EP_UNROLL()
		for (uint32_t j = 0; j < 4; j++) {
			sum += w0 + j < n ? ep_popc(bits[w0 + j]) : 0;
		}
	}
	return sum;
}

/* Set bits before bit `local`. */
EP_DEV uint32_t ep_ht_bits_before(const uint32_t *bits, uint32_t local)
{
	return ep_popc(bits[local / 32] & ((1u << (local & 31)) - 1)) +
	       ep_ht_bits_count(bits, local / 32);
}

/*
 * Adds what is marked to `sums`: the experts from e0 on, and with `ranks` the ranks. If `words` is not NULL,
 * those are the block's counts, and other blocks learn of them there.
 */
EP_DEV void ep_ht_columns_add(const struct ep_ht_route &route, const struct ep_op &op, uint32_t e0,
			      bool ranks, uint32_t *sums, uint64_t *words)
{
	uint32_t experts = ep_min_u32(route.experts - e0, route.window);
	uint32_t n = experts + (ranks ? route.columns - route.experts : 0);

	for (uint32_t i = ep_tid(); i < n; i += ep_nthreads()) {
		bool expert = i < experts;
		uint32_t column = expert ? e0 + i : route.experts + (i - experts);
		const uint32_t *bits = expert ? route.bits + i * route.words
					      : route.rank_bits + (i - experts) * route.words;
		uint32_t sum = sums[column] + ep_ht_bits_count(bits, route.words);

		sums[column] = sum;
		if (words) {
			ep_st_word(words + column, sum, op.epoch);
		}
	}
}

#endif
