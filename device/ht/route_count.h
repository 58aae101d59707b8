/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routing of high throughput: the tokens of a block, how many of them go where, and what follows
 * from the counts of all blocks and ranks.
 *
 * Columns. There is a column of bits for each expert, and behind these one for each rank that holds
 * some: which tokens of a span have selected it. Their number before a token's bit is where the
 * token's row or place is among those of the span; what lies before the span is in `first`.
 */
#ifndef EP_DEVICE_HT_ROUTE_COUNT_H
#define EP_DEVICE_HT_ROUTE_COUNT_H

#include "device/ht/step.h"
#include "device/ht/units.h"

#define EP_HT_ROUTE_SPAN 256u /* tokens at most */
#define EP_HT_ROUTE_AHEAD 4   /* ids that a thread loads ahead */
#define EP_HT_ROUTE_ALL 1024u /* selections of a rank that each of its blocks marks, at most */
#define EP_HT_ROUTE_OTHERS 8u /* selections of its token that a thread looks at together */

/*
 * Where a selection belongs in its row's list, which begins with selection `first` of the token and
 * has `count` entries. The selection's own is entry `index`; none if it names an expert again.
 */
#define EP_HT_RUN(first, index, count) ((first) | (index) << 8 | (count) << 16)
#define EP_HT_RUN_FIRST(r) ((r)&0xffu)
#define EP_HT_RUN_INDEX(r) ((r) >> 8 & 0xffu)
#define EP_HT_RUN_COUNT(r) ((r) >> 16)

/* Of a selection: tokens of the span before its own that have a row there, and a place. */
#define EP_HT_BEFORE(rows, places) ((rows) | (places) << 16)
#define EP_HT_BEFORE_ROWS(b) ((b)&0xffffu)
#define EP_HT_BEFORE_PLACES(b) ((b) >> 16)

/* State of a block. Tables are in shared memory, two of them in scratch if they are large. */
struct ep_ht_route {
	uint32_t experts; /* E */
	uint32_t columns; /* E + H */
	uint32_t counts;  /* of a block or a rank: of each column, and its tokens */
	uint32_t begin;   /* the block's tokens */
	uint32_t end;
	/*
	 * each block marks all tokens of the rank, which are few, and need not hear of the others'
	 */
	bool marks_all;
	uint32_t skip;       /* tokens of the span before the block's */
	uint32_t first_span; /* where it begins: at token 0, or the block's first */
	uint32_t span;       /* tokens that are marked at a time */
	uint32_t words;      /* of each column's bits */
	uint32_t window;     /* experts that are marked at a time */
	uint32_t bank;       /* of the counts of ranks: consecutive steps have different ones */
	uint32_t *id;        /* [span][K] expert, or NONE */
	uint32_t *sel;       /* [span][K] the same in order, as send_sel */
	uint32_t *run;       /* [span][K] in that order: EP_HT_RUN */
	uint32_t *row;       /* [span][K] in that order; before that: EP_HT_BEFORE */
	/* [span][K] what a row's destination gets about it, from the row's first on */
	uint32_t *entry;
	uint32_t *leads;     /* [span][K] selections with which a row's list begins, in any order */
	uint32_t *nleads;    /* [1] */
	uint32_t *bits;      /* [window][words] */
	uint32_t *rank_bits; /* [H][words], behind those */
	uint32_t *first; /* [columns] rank: rows of earlier blocks and spans; expert: next place */
	uint32_t *all;   /* [columns] of the block at first, then of all ranks */
	/* By numbers of ranks among those that hold experts: */
	uint32_t *base; /* [H] slot of this rank's row 0 there */
	uint32_t *kept; /* [H] rows to there that are not dropped */
	uint32_t *ends; /* [H] expert-major: end of the last zone there */
	uint32_t *from; /* [R + 1] slot here of each rank's row 0; behind that, the most chunks, and
			  * ep_ht_head.idle */
};

/*
 * Column 0 of block b's counts; of those of the blocks before it; of the s-th sender's, in a heap.
 * Those of ranks are written before all have started the step: who has not reads another bank.
 */
EP_DEV uint64_t *ep_ht_block_words(const struct ep_ht_common &c, const struct ep_ht_route &route,
				   uint32_t b)
{
	return (uint64_t *)(c.h.scratch + EP_HT_COUNTERS) + (size_t)b * route.counts;
}

EP_DEV uint64_t *before_words(const struct ep_ht_common &c, const struct ep_ht_route &route,
			      uint32_t b)
{
	return ep_ht_block_words(c, route, EP_HT_ROUTE_BLOCKS + b);
}

EP_DEV uint64_t *rank_words(const struct ep_ht_common &c, const struct ep_ht_route &route,
			    unsigned char *heap, uint32_t s)
{
	size_t at = (size_t)route.bank * c.roles.senders + s;

	return (uint64_t *)(heap + c.areas.count_off) + at * route.counts;
}

EP_DEV struct ep_ht_route ep_ht_route_make(const struct ep_ht_common &c)
{
	uint32_t holders = c.roles.holders, *p = (uint32_t *)ep_dynamic_shared(), tokens;
	struct ep_ht_route t;

	t.experts = c.experts;
	t.columns = t.experts + holders;
	t.bank = 0;
	t.counts = ep_ht_counts(t.experts, holders);
	tokens = (ep_ht_chunks(c.num_tokens, c.areas.chunk_shift) + ep_nblocks() - 1) / ep_nblocks()
		 << c.areas.chunk_shift;
	t.begin = ep_min_u32(ep_block() * tokens, c.num_tokens);
	t.end = ep_min_u32(t.begin + tokens, c.num_tokens);
	t.words = ep_min_u32(EP_HT_ROUTE_SPAN, EP_HT_ROUTE_IDS / c.topk) / 32;
	t.marks_all = c.num_tokens <= 32 * t.words && c.num_tokens * c.topk <= EP_HT_ROUTE_ALL &&
		      ep_max_u32((c.num_tokens + 31) / 32, 1) * t.columns <= EP_HT_ROUTE_BITS;
	t.first_span = t.marks_all ? 0 : t.begin;
	t.skip = t.begin - t.first_span;
	t.words = ep_min_u32(t.words, ((t.marks_all ? c.num_tokens : tokens) + 31) / 32);
	t.words = ep_max_u32(ep_min_u32(t.words, EP_HT_ROUTE_BITS / t.columns), 1);
	t.span = 32 * t.words;
	t.window = ep_min_u32(t.experts, EP_HT_ROUTE_BITS / t.words - holders);
	t.id = p;
	t.sel = t.id + EP_HT_ROUTE_IDS;
	t.run = t.sel + EP_HT_ROUTE_IDS;
	t.row = t.run + EP_HT_ROUTE_IDS;
	t.entry = t.row + EP_HT_ROUTE_IDS;
	t.leads = t.entry + EP_HT_ROUTE_IDS;
	t.bits = t.leads + EP_HT_ROUTE_IDS;
	t.rank_bits = t.bits + t.window * t.words;
	t.base = t.bits + ep_ht_route_bits(t.columns);
	t.kept = t.base + holders;
	t.ends = t.kept + holders;
	t.from = t.ends + holders;
	t.nleads = t.from + c.g.nranks + 3;
	t.first = t.nleads + 1;
	if (t.columns > EP_HT_ROUTE_TABLE) {
		t.first = (uint32_t *)(before_words(c, t, EP_HT_ROUTE_BLOCKS)) +
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
EP_DEV struct ep_ht_raw_id id_load(const struct ep_ht_route_args &a, uint32_t w0, uint32_t i)
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

/* The block's tokens of the span from w0 on, and those of others before them. */
EP_DEV uint32_t ep_ht_span_tokens(const struct ep_ht_route &route, uint32_t w0)
{
	return ep_min_u32(route.end - w0, route.span);
}

/* Tokens that are marked. */
EP_DEV uint32_t span_marked(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
			    uint32_t w0)
{
	return route.marks_all ? a.c.num_tokens : ep_ht_span_tokens(route, w0);
}

/* The thread's first selections of the span. */
EP_DEV struct ep_ht_ahead ep_ht_span_load(const struct ep_ht_route_args &a,
					  const struct ep_ht_route &route, uint32_t w0)
{
	uint32_t ids = span_marked(a, route, w0) * a.c.topk;
	struct ep_ht_ahead ahead = {};

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_ROUTE_AHEAD; j++) {
		uint32_t i = ep_tid() + j * ep_nthreads();

		if (i < ids) {
			ahead.id[j] = id_load(a, w0, i);
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
	r.expected = a.c.experts;
	ep_record_write(a.c.g, EP_RECORD_ROUTING, r);
}

/*
 * Notes selection i of the span, and sets its bits: of its rank, and of an expert of the first
 * window.
 */
EP_DEV void id_mark(const struct ep_ht_route_args &a, const struct ep_op &op,
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
	uint32_t ids = span_marked(a, route, w0) * a.c.topk, i = ep_tid();

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_HT_ROUTE_AHEAD; j++, i += ep_nthreads()) {
		if (i < ids) {
			id_mark(a, op, route, w0, i, ahead.id[j]);
		}
	}
	EP_UNROLL(1)
	for (; i < ids; i += ep_nthreads()) { /* in blocks of few threads */
		id_mark(a, op, route, w0, i, id_load(a, w0, i));
	}
}

/* Another span, or the first one once more. Barriers at both ends. */
EP_DEV void ep_ht_span_take(const struct ep_ht_route_args &a, const struct ep_op &op,
			    const struct ep_ht_route &route, uint32_t w0)
{
	struct ep_ht_ahead ahead = ep_ht_span_load(a, route, w0);

	ep_block_sync();
	ep_ht_bits_clear(route, (route.window + a.c.roles.holders) * route.words);
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
EP_DEV uint32_t bits_count(const uint32_t *bits, uint32_t n)
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
	       bits_count(bits, local / 32);
}

/*
 * Adds what is marked to `sums`: the experts from e0 on, and with `ranks` the ranks. If `words` is
 * not NULL, those are the block's counts, and other blocks learn of them there.
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
		uint32_t sum = sums[column] + bits_count(bits, route.words);

		sums[column] = sum;
		if (words) {
			ep_st_word(words + column, sum, op.epoch);
		}
	}
}

/* This rank's counts, for remote ranks, whom a NIC sends them out of this rank's heap. */
EP_DEV uint64_t *out_count(const struct ep_ht_common &c)
{
	return (uint64_t *)(c.g.own + c.areas.out_count_off);
}

/*
 * All blocks have left this rank's counts in its heap, and block 0 has seen them
 * (ep_ht_counts_here), with a barrier behind that. They go by the queue of the tables, which
 * another block posts later: the control queue has been left to waits.
 */
EP_DEV_COLD void ep_ht_counts_post(const struct ep_ht_common &c, struct ep_op op,
				   const struct ep_ht_route &route)
{
	uint64_t to = c.areas.count_off +
		      8 * ((uint64_t)route.bank * c.roles.senders + c.roles.sender) * route.counts;

	op.start_ns = ep_time_ns(); /* a peer may have been late until now */
	for (uint32_t r = ep_remote_peer(c.g, ep_warp()); r < c.g.nranks;
	     r = ep_remote_peer(c.g, r + ep_nwarps())) {
		struct ep_mlx5_post p = ep_remote_open(c.g, r, EP_HT_ROWS);

		p.timeout_ns = ep_remote_left(c.g, op, true);
		if (!ep_mlx5_put(&p, ep_lane() == 0, ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, to),
				 ep_mlx5_local(&p, EP_MLX5_REGION_HEAP, c.areas.out_count_off),
				 8 * route.counts, false)) {
			ep_ht_queue_failed(c, op, p, r, EP_WAIT_RDMA_SLOT);
		}
	}
}

/* ---- what follows from the counts of all blocks and ranks ---- */

/*
 * Words of a column that a thread has under way: those of the ranks of a node of 8, and its
 * block's.
 */
#define EP_HT_ROUTE_BATCH 9

/* Inclusive sum over lanes, among each `width` of them. */
EP_DEV uint32_t lanes_sum(uint32_t v, uint32_t width = EP_WARP_SIZE)
{
	uint32_t lane = ep_lane();

	EP_UNROLL()
	for (uint32_t delta = 1; delta < EP_WARP_SIZE; delta *= 2) {
		uint32_t below = ep_shfl_u32(EP_FULL_MASK, v, (lane - delta) & 31);

		v += delta < width && (lane & (width - 1)) >= delta ? below : 0;
	}
	return v;
}

/* Waits for a word of rank r. Any lane. */
template <bool NODES>
EP_DEV bool word_wait(const struct ep_ht_common &c, const struct ep_op &op, const uint64_t *word,
		      enum ep_wait_site site, uint32_t r, uint32_t *v)
{
	struct ep_spin s = ep_spin_start();

	while (!ep_ld_word(word, op.epoch, v)) {
		if (ep_ht_give_up<NODES>(c, op, &s, site, r)) {
			return false;
		}
	}
	return true;
}

/* A count that another block of this rank writes. */
template <bool NODES>
EP_DEV bool block_count_wait(const struct ep_ht_common &c, const struct ep_op &op,
			     const uint64_t *word, uint32_t *v)
{
	return word_wait<NODES>(c, op, word, EP_WAIT_HT_COUNT, c.g.rank, v);
}

/*
 * The counts of all blocks give those of this rank, and what the blocks before each one have. The
 * blocks share the columns. A column's words are added up by lanes of one warp, one for each block,
 * which publish to the blocks and share telling the ranks. The first `warps` warps.
 */
template <bool NODES>
EP_DEV bool ep_ht_blocks_sum(const struct ep_ht_common &c, const struct ep_op &op,
			     const struct ep_ht_route &route, uint32_t warps)
{
	uint32_t nblocks = ep_nblocks(), share = (route.counts + nblocks - 1) / nblocks, shift = 0;
	uint32_t begin = ep_block() * share, end = ep_min_u32(begin + share, route.counts);

	_Static_assert(EP_HT_ROUTE_BLOCKS <= EP_WARP_SIZE, "a lane for each block");
	while (1u << shift < nblocks) {
		shift++;
	}
	uint32_t width = 1u << shift, b = ep_lane() & (width - 1);
	uint32_t columns = EP_WARP_SIZE >> shift;

	for (uint32_t i0 = begin + ep_warp() * columns; i0 < end; i0 += warps * columns) {
		uint32_t i = i0 + (ep_lane() >> shift), v = 0, sum, total;
		bool mine = i < end && b < nblocks;
		bool ok = !mine ||
			  block_count_wait<NODES>(c, op, ep_ht_block_words(c, route, b) + i, &v);

		if (!ep_all(EP_FULL_MASK, ok)) {
			return false;
		}
		sum = lanes_sum(v, width);
		total = ep_shfl_u32(EP_FULL_MASK, sum, ep_lane() | (width - 1));
		if (mine) {
			ep_st_word(before_words(c, route, b) + i, sum - v, op.epoch);
		}
		for (uint32_t d = b; d < c.roles.readers && i < end; d += width) {
			unsigned char *heap = ep_heap_of(c.g, d);

			if (!NODES || heap) {
				ep_st_word(rank_words(c, route, heap, c.roles.sender) + i, total,
					   op.epoch);
			}
		}
		if (NODES && b == 0 && i < end) {
			ep_st_word(out_count(c) + i, total, op.epoch);
		}
	}
	return true;
}

/*
 * Each block has counted all tokens of the rank, behind a barrier. The blocks share the columns,
 * and publish them to the ranks.
 */
template <bool NODES>
EP_DEV void ep_ht_counts_publish(const struct ep_ht_common &c, const struct ep_op &op,
				 const struct ep_ht_route &route)
{
	uint32_t share = (route.counts + ep_nblocks() - 1) / ep_nblocks();
	uint32_t begin = ep_min_u32(ep_block() * share, route.counts);
	uint32_t n = ep_min_u32(share, route.counts - begin) * c.roles.readers;

	for (uint32_t j = ep_tid(); j < n; j += ep_nthreads()) {
		uint32_t at = ep_div(j, c.g.by_ranks), d = j - at * c.g.nranks, i = begin + at;
		uint32_t v = i < route.columns ? route.all[i] : c.num_tokens;
		unsigned char *heap = ep_heap_of(c.g, d);

		if (!NODES || heap) {
			ep_st_word(rank_words(c, route, heap, c.roles.sender) + i, v, op.epoch);
		}
		if (NODES && d == c.g.rank) {
			ep_st_word(out_count(c) + i, v, op.epoch);
		}
	}
}

/* All blocks have left this rank's counts where block 0 posts them from. */
template <bool NODES>
EP_DEV bool ep_ht_counts_here(const struct ep_ht_common &c, const struct ep_op &op,
			      const struct ep_ht_route &route)
{
	bool ok = true;

	for (uint32_t i = ep_tid(); i < route.counts && ok; i += ep_nthreads()) {
		uint32_t v;

		ok = block_count_wait<NODES>(c, op, out_count(c) + i, &v);
	}
	return ok;
}

/*
 * Sums of a column: rows of all ranks, of this one, of those before it, and of blocks before this.
 */
struct ep_ht_column {
	uint32_t all;
	uint32_t own;
	uint32_t ranks_before;
	uint32_t blocks_before;
};

/* False when a rank's word has failed to come, or a block's of this rank. */
template <bool NODES>
EP_DEV bool column_take(const struct ep_ht_common &c, const struct ep_op &op,
			const struct ep_ht_route &route, uint32_t i, struct ep_ht_column *column)
{
	const uint64_t *before = before_words(c, route, ep_block()) + i;
	const uint64_t *words = rank_words(c, route, c.g.own, 0) + i;
	uint32_t senders = c.roles.senders, words_of = route.marks_all ? senders : senders + 1;
	struct ep_ht_column sum = {};

	/* the word behind those of the senders is the blocks' */
	EP_UNROLL(1)
	for (uint32_t r0 = 0; r0 < words_of; r0 += EP_HT_ROUTE_BATCH) {
		uint32_t n = ep_min_u32(words_of - r0, EP_HT_ROUTE_BATCH);
		uint32_t missing = (1u << n) - 1, v[EP_HT_ROUTE_BATCH] = {};
		struct ep_spin s = ep_spin_start();

		for (;;) {
			uint32_t come = 0, r;

			EP_UNROLL()
			for (uint32_t j = 0; j < EP_HT_ROUTE_BATCH; j++) {
				r = r0 + j;
				if (missing >> j & 1) {
					come |= (uint32_t)ep_ld_word(
							r == senders
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
						 r == senders ? c.g.rank
							      : c.roles.first_sender + r)) {
				return false;
			}
		}
		EP_UNROLL()
		for (uint32_t j = 0; j < EP_HT_ROUTE_BATCH; j++) {
			uint32_t r = r0 + j;

			sum.blocks_before += r == senders ? v[j] : 0;
			sum.ranks_before += r < c.roles.sender ? v[j] : 0;
			sum.own += r == c.roles.sender ? v[j] : 0;
			sum.all += r < senders ? v[j] : 0;
		}
	}
	*column = sum;
	return true;
}

/* The counts of all senders. */
template <bool NODES>
EP_DEV bool ep_ht_counts_take(const struct ep_ht_common &c, const struct ep_op &op,
			      const struct ep_ht_route &route)
{
	for (uint32_t i = ep_tid(); i < route.counts; i += ep_nthreads()) {
		struct ep_ht_column column;

		if (!column_take<NODES>(c, op, route, i, &column)) {
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
 * Where the sources' rows begin here, the most chunks that one has, and whether to some rank no
 * rows come. One warp; the counts are here.
 */
EP_DEV void ep_ht_sources_make(const struct ep_ht_common &c, const struct ep_op &op,
			       const struct ep_ht_route &route)
{
	uint32_t end = 0, most = 0;
	bool idle = false;

	for (uint32_t s0 = 0; s0 < c.g.nranks; s0 += EP_WARP_SIZE) {
		uint32_t s = s0 + ep_lane(), rows = 0, tokens = 0, sum;

		if (ep_ht_sender(c, s) < c.roles.senders) {
			const uint64_t *words = rank_words(c, route, c.g.own, ep_ht_sender(c, s));

			(void)ep_ld_word(words + route.columns, op.epoch, &tokens);
			if (c.nlocal) {
				(void)ep_ld_word(words + route.experts + c.roles.holder, op.epoch,
						 &rows);
			}
		}
		idle |= s < c.roles.holders && route.all[route.experts + s] == 0;
		most = ep_max_u32(most, tokens);
		sum = lanes_sum(rows);
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

/*
 * Local experts e0 and on of holder d; *end is where the zone before them ends, then theirs. One
 * warp.
 */
EP_DEV struct ep_ht_zone_at ep_ht_zones_next(const struct ep_ht_route_args &a,
					     const struct ep_ht_route &route, uint32_t d,
					     uint32_t e0, uint32_t *end)
{
	uint32_t e = e0 + ep_lane(), nlocal = a.c.by_local.d, pad = a.alignment - 1, sum;
	struct ep_ht_zone_at z = { EP_HT_NONE, 0, 0 };

	if (e < nlocal) {
		z.expert = d * nlocal + e;
		z.rows = (route.all[z.expert] + pad) & ~pad;
	}
	sum = lanes_sum(z.rows);
	z.begin = *end + sum - z.rows;
	*end += ep_shfl_u32(EP_FULL_MASK, sum, EP_WARP_SIZE - 1);
	return z;
}

/* Expert-major: adds the beginnings of holder d's zones to the places. One warp. */
EP_DEV void zones_make(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
		       uint32_t d)
{
	uint32_t end = 0;

	for (uint32_t e0 = 0; e0 < a.c.by_local.d; e0 += EP_WARP_SIZE) {
		struct ep_ht_zone_at z = ep_ht_zones_next(a, route, d, e0, &end);

		if (z.expert != EP_HT_NONE) {
			route.first[z.expert] += z.begin;
		}
	}
	if (ep_lane() == 0) {
		route.ends[d] = end;
	}
}

/* Expert-major: where places lie at every holder. A barrier before and after. */
EP_DEV void ep_ht_bases_make(const struct ep_ht_route_args &a, const struct ep_ht_route &route)
{
	for (uint32_t d = ep_warp(); a.c.layout == EP_HT_EXPERT_MAJOR && d < a.c.roles.holders;
	     d += ep_nwarps()) {
		zones_make(a, route, d);
	}
}

/* Returns how many rows are to come to holder d: slots, or places. EP_HT_NONE: it is none. */
EP_DEV uint32_t ep_ht_total(const struct ep_ht_common &c, const struct ep_ht_route &route,
			    uint32_t d)
{
	if (d == EP_HT_NONE) {
		return 0;
	}
	return c.layout == EP_HT_EXPERT_MAJOR ? route.ends[d] : route.all[route.experts + d];
}

/* The first holder to which more comes than it has room for, or H. One warp. */
EP_DEV uint32_t ep_ht_overflow_find(const struct ep_ht_route_args &a,
				    const struct ep_ht_route &route)
{
	uint32_t holders = a.c.roles.holders;

	for (uint32_t r0 = 0; !a.drop && r0 < holders; r0 += EP_WARP_SIZE) {
		uint32_t d = r0 + ep_lane();
		uint32_t over = ep_ballot(EP_FULL_MASK,
					  d < holders && ep_ht_total(a.c, route, d) > a.c.limit);

		if (over) {
			return r0 + ep_ctz(over);
		}
	}
	return holders;
}

EP_DEV_COLD void ep_ht_overflow_record(const struct ep_ht_route_args &a, struct ep_op op,
				       uint32_t d, uint32_t total)
{
	struct ep_record r = ep_record_make(op, EP_CAUSE_OVERFLOW, a.c.roles.first_holder + d);

	r.value = total;
	r.expected = a.c.limit;
	ep_record_write(a.c.g, EP_RECORD_FATAL, r);
	ep_abort(a.c.g);
}

#endif
