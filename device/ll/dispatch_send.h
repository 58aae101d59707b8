/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch, send half: routing of a span of tokens, counts and headers; a warp that
 * holds one part of one row in registers and stores it to each destination; and, for remote peers,
 * counts and tokens in batches.
 */
#ifndef EP_DEVICE_LL_DISPATCH_SEND_H
#define EP_DEVICE_LL_DISPATCH_SEND_H

#include "device/group/remote.h"
#include "device/ll/formats.h"
#include "device/ll/rows.h"

/*
 * Block-shared tables of the send half. Places follow from bits: a token's slot at a rank is the
 * number of earlier tokens that go there, its index at an expert the number of earlier tokens that
 * chose it. Every sending block derives the same places from the same ids.
 */
struct ep_ll_send_tables {
	int32_t *id;            /* [span][K] valid ids, or -1 */
	uint32_t *expert_bits;  /* [E][words] tokens of the span that chose the expert */
	uint32_t *rank_bits;    /* [R][words] tokens of the span that go to the rank */
	uint32_t *expert_base;  /* [E] selections of the expert before the span */
	uint32_t *rank_base;    /* [R] rows for the rank before the span */
	uint16_t *repeat;       /* selections of an expert that their token has named already, */
	uint32_t *repeats;      /* and how many these are, which one bit cannot show */
	unsigned char *scratch; /* one tile for each warp, when quantising */
	uint32_t words; /* of bits for each expert and rank: as many as the fullest span needs */
};

/* Tokens [w0, w0 + n), whose routing a block holds at a time. */
struct ep_ll_span {
	uint32_t w0;
	uint32_t n;
};

EP_DEV struct ep_ll_span ep_ll_span_make(const struct ep_ll_common &c, uint32_t w0)
{
	struct ep_ll_span span = { w0, ep_min_u32(c.span, c.num_tokens - w0) };

	return span;
}

/* `repeats` is in shared memory. */
EP_DEV struct ep_ll_send_tables ep_ll_send_tables_make(const struct ep_ll_common &c,
						       uint32_t *repeats)
{
	uint32_t experts = c.experts;
	struct ep_ll_send_tables t;
	unsigned char *p = (unsigned char *)ep_dynamic_shared();

	t.repeats = repeats;
	t.words = (ep_min_u32(c.span, c.num_tokens) + 31) / 32;
	t.scratch = p; /* first, for its alignment */
	p += EP_GROUP_MAX_THREADS / 32 * EP_LL_TILE_BYTES;
	t.id = (int32_t *)p;
	t.expert_bits = (uint32_t *)(t.id + c.span * c.topk);
	t.rank_bits = t.expert_bits + experts * t.words;
	t.expert_base = t.rank_bits + c.g.nranks * t.words;
	t.rank_base = t.expert_base + experts;
	t.repeat = (uint16_t *)(t.rank_base + c.g.nranks);
	return t;
}

EP_DEV void routing_error(const struct ep_ll_common &c, uint32_t step, uint32_t token, uint32_t k,
			  int64_t id)
{
	struct ep_record r = {};

	r.cause = EP_CAUSE_EXPERT_ID;
	r.peer = c.g.rank;
	r.step = step;
	r.token = token;
	r.k = k;
	r.value = id;
	r.expected = c.experts;
	ep_record_write(c.g, EP_RECORD_ROUTING, r);
}

/* An id as it lies in the caller's tensor. Nothing is computed from it until it is needed. */
struct ep_ll_raw_id {
	uint32_t lo;
	uint32_t hi; /* 8-byte ids only */
};

/* Selection i of the tokens from w0 on. */
EP_DEV struct ep_ll_raw_id span_id(const struct ep_ll_common &c, uint32_t w0, uint32_t i)
{
	const uint32_t *p = (const uint32_t *)((const unsigned char *)c.topk_idx +
					       ((size_t)w0 * c.topk + i) * c.id_bytes);
	struct ep_ll_raw_id id = { p[0], 0 };

	if (c.id_bytes == 8) {
		id.hi = p[1];
	}
	return id;
}

/* The thread's first selection of the span, loaded ahead of ep_ll_span_mark. */
EP_DEV struct ep_ll_raw_id ep_ll_span_load(const struct ep_ll_common &c, uint32_t w0, uint32_t n)
{
	struct ep_ll_raw_id id = { 0, 0 };

	return ep_tid() < n * c.topk ? span_id(c, w0, ep_tid()) : id;
}

EP_DEV void ep_ll_span_clear(const struct ep_ll_common &c, const struct ep_ll_send_tables &tables)
{
	for (uint32_t i = ep_tid(); i < (c.experts + c.g.nranks) * tables.words;
	     i += ep_nthreads()) {
		tables.expert_bits[i] = 0; /* and the rank bits, which follow */
	}
}

/*
 * Notes the ids of the span, `raw` being the thread's first, and sets their bits, which are clear.
 * Negative ids, ids out of range and masked ranks become -1. With `count` the experts' bases grow
 * by what the span has for them. A barrier before and after.
 */
EP_DEV void ep_ll_span_mark(const struct ep_ll_common &c, uint32_t step,
			    const struct ep_ll_send_tables &tables, const struct ep_ll_span &span,
			    struct ep_ll_raw_id raw, bool count)
{
	int64_t experts = c.experts;

	for (uint32_t i = ep_tid(); i < span.n * c.topk; i += ep_nthreads()) {
		uint32_t local = ep_div(i, c.by_topk), bit = 1u << (local & 31), rank;

		if (i != ep_tid()) {
			raw = span_id(c, span.w0, i);
		}
		int64_t id = c.id_bytes == 8 ? (int64_t)((uint64_t)raw.hi << 32 | raw.lo)
					     : (int32_t)raw.lo;

		if (id >= experts) {
			routing_error(c, step, span.w0 + local, i - local * c.topk, id);
			id = -1;
		}
		rank = id < 0 ? 0 : c.to.first + ep_div((uint32_t)id, c.by_local);
		if (id < 0 || !ep_mask_active(c.g, rank)) {
			tables.id[i] = -1;
			continue;
		}
		tables.id[i] = (int32_t)id;
		ep_shared_or_u32(&tables.rank_bits[rank * tables.words + local / 32], bit);
		if (c.layout != EP_LL_EXPERT_MAJOR) {
			continue;
		}
		if (ep_shared_or_u32(&tables.expert_bits[id * tables.words + local / 32], bit) &
		    bit) {
			tables.repeat[ep_shared_add_u32(tables.repeats, 1)] = (uint16_t)i;
		}
		if (count) {
			ep_shared_add_u32(&tables.expert_base[id], 1);
		}
	}
}

/* All of it for another span, or once more for this one. One block; barriers at both ends. */
EP_DEV void ep_ll_span_take(const struct ep_ll_common &c, uint32_t step,
			    const struct ep_ll_send_tables &tables, const struct ep_ll_span &span,
			    bool count)
{
	struct ep_ll_raw_id id = ep_ll_span_load(c, span.w0, span.n);

	ep_block_sync();
	ep_ll_span_clear(c, tables);
	if (ep_tid() == 0) {
		*tables.repeats = 0;
	}
	ep_block_sync();
	ep_ll_span_mark(c, step, tables, span, id, count);
	ep_block_sync();
}

/* The span's rows for rank d. */
EP_DEV uint32_t rank_rows(const struct ep_ll_send_tables &tables, uint32_t d)
{
	uint32_t n = 0;

	EP_UNROLL(1)
	for (uint32_t w = 0; w < tables.words; w++) {
		n += ep_popc(tables.rank_bits[d * tables.words + w]);
	}
	return n;
}

/* Adds the span to the counts before the next one. A barrier before and after. */
EP_DEV void ep_ll_span_count(const struct ep_ll_common &c, const struct ep_ll_send_tables &tables,
			     uint32_t n)
{
	for (uint32_t i = ep_tid(); c.layout == EP_LL_EXPERT_MAJOR && i < n * c.topk;
	     i += ep_nthreads()) {
		if (tables.id[i] >= 0) {
			ep_shared_add_u32(&tables.expert_base[tables.id[i]], 1);
		}
	}
	for (uint32_t d = ep_tid(); d < c.g.nranks; d += ep_nthreads()) {
		tables.rank_base[d] += rank_rows(tables, d);
	}
}

/* Set bits of `bits` before bit `local`. */
EP_DEV uint32_t bits_before(const uint32_t *bits, uint32_t local)
{
	uint32_t n = ep_popc(bits[local / 32] & ((1u << (local & 31)) - 1));

	EP_UNROLL(1)
	for (uint32_t w = 0; w < local / 32; w++) {
		n += ep_popc(bits[w]);
	}
	return n;
}

/* Slot of the span's token at rank d, or NO_ROW. */
EP_DEV uint32_t ep_ll_slot(const struct ep_ll_send_tables &tables, uint32_t local, uint32_t d)
{
	const uint32_t *bits = tables.rank_bits + d * tables.words;

	return bits[local / 32] >> (local & 31) & 1 ? tables.rank_base[d] + bits_before(bits, local)
						    : EP_LL_NO_ROW;
}

/*
 * Index of the lane's selection of `expert` by the span's token, among this rank's selections of
 * the expert, by (token, k). A bit shows that a token names the expert, but not how often: which
 * selections are repeats is listed apart, most often none. One warp, lane k with selection k.
 */
EP_DEV uint32_t ll_index(const struct ep_ll_common &c, const struct ep_ll_send_tables &tables,
			 uint32_t local, int32_t expert, uint32_t repeats)
{
	uint32_t n = 0, same;

	if (expert >= 0) {
		n = tables.expert_base[expert] +
		    bits_before(tables.expert_bits + expert * tables.words, local);
	}
	if (!repeats) {
		return n;
	}
	same = ep_match_u32(EP_FULL_MASK, (uint32_t)expert);
	n += ep_popc(same & ((1u << ep_lane()) - 1));
	EP_UNROLL(1)
	for (uint32_t j = 0; j < repeats; j++) {
		uint32_t i = tables.repeat[j];

		n += tables.id[i] == expert && ep_div(i, c.by_topk) < local;
	}
	return n;
}

EP_DEV void ep_ll_bases_clear(const struct ep_ll_common &c, const struct ep_ll_send_tables &tables)
{
	for (uint32_t i = ep_tid(); i < c.experts + c.g.nranks; i += ep_nthreads()) {
		tables.expert_base[i] = 0; /* and the rank bases, which follow */
	}
}

/* Returns the place of the control queue's data for remote rank d: control packets, then counts. */
EP_DEV unsigned char *ll_post(const struct ep_ll_common &c, uint32_t d)
{
	return c.g.own + c.areas.post_off + d * c.areas.post_stride;
}

/*
 * Sends to every destination how many rows, and rows per expert, it will get; what is for remote
 * ranks is left in the stage. One block; the first span is marked and counted.
 */
template <bool REMOTE>
EP_DEV void ep_ll_send_counts(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			      const struct ep_ll_send_tables &tables)
{
	const struct ep_ll_common &c = a.c;

	for (uint32_t w0 = 0; w0 < c.num_tokens; w0 += c.span) {
		if (w0) {
			ep_ll_span_take(c, op.step, tables, ep_ll_span_make(c, w0), true);
		}
		/* each rank's by the thread that sends it */
		for (uint32_t d = c.to.first + ep_nthreads() - 1 - ep_tid(); d < c.to.end;
		     d += ep_nthreads()) {
			tables.rank_base[d] += rank_rows(tables, d);
		}
	}
	for (uint32_t e = ep_tid(); c.layout == EP_LL_EXPERT_MAJOR && e < c.experts;
	     e += ep_nthreads()) {
		uint32_t holder = ep_div(e, c.by_local), d = c.to.first + holder;

		if (ep_mask_active(c.g, d)) {
			unsigned char *counts = REMOTE && ep_rank_remote(c.g, d)
							? ll_post(c, d) + EP_LL_CTRL_BYTES
							: ep_ll_packets(c, op, ep_heap_of(c.g, d)) +
								  a.count_off +
								  8 * (size_t)c.sender * c.nlocal;

			ep_st_word(counts + 8 * (size_t)(e - holder * c.nlocal),
				   tables.expert_base[e], op.epoch);
		}
	}
	/* the last threads: the others have more counts to send */
	for (uint32_t d = c.to.first + ep_nthreads() - 1 - ep_tid(); d < c.to.end;
	     d += ep_nthreads()) {
		bool remote = REMOTE && ep_rank_remote(c.g, d);
		unsigned char *ctrl = remote ? ll_post(c, d)
					     : ep_ll_packets(c, op, ep_heap_of(c.g, d)) +
						       (size_t)c.sender * EP_LL_CTRL_BYTES;

		if (REMOTE) {
			c.h.sent_rows[d] = tables.rank_base[d];
		}
		if (!ep_mask_active(c.g, d)) {
			continue;
		}
		ep_st_packet(ctrl, tables.rank_base[d], c.parts | a.combine_parts << 16, op.epoch);
		ep_st_packet(ctrl + 16, c.channel_tokens, c.launch.sent_hash, op.epoch);
		c.g.stats[d].tx_rows += tables.rank_base[d];
		c.g.stats[d].tx_bytes += (uint64_t)tables.rank_base[d] *
					 ep_ll_row_stride(c.row_quads, c.lines && !remote);
	}
}

/* A token, and its selection by lane k, as the header and the route need them. */
struct ep_ll_selection {
	uint32_t token;
	uint32_t rank; /* NO_ROW: none */
	uint32_t local_id;
	uint32_t index; /* expert-major */
	float weight;   /* rank-major; 0 behind the last k */
};

/* `token` is number `local` of its span, which has so many repeats. */
EP_DEV struct ep_ll_selection ep_ll_selection_make(const struct ep_ll_dispatch_args &a,
						   const struct ep_ll_send_tables &tables,
						   uint32_t token, uint32_t local, uint32_t repeats)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), i = local * c.topk + k;
	int32_t id = k < c.topk ? tables.id[i] : -1;
	struct ep_ll_selection s = { token, EP_LL_NO_ROW, 0, 0, 0.0f };

	if (id >= 0) {
		uint32_t holder = ep_div(id, c.by_local);

		s.rank = c.to.first + holder;
		s.local_id = id - holder * c.nlocal;
	}
	if (c.layout == EP_LL_EXPERT_MAJOR) {
		s.index = ll_index(c, tables, local, id, repeats);
	} else if (k < c.topk) {
		s.weight = a.topk_weights[(size_t)token * c.topk + k];
	}
	return s;
}

/* The lanes' shares in a token's headers: each writes one packet, for several ranks at once. */
struct ep_ll_header_share {
	uint32_t ranks; /* at once */
	uint32_t rank;  /* of those, the lane's; none if not below `ranks` */
	uint32_t packet;
};

EP_DEV struct ep_ll_header_share ep_ll_header_share_make(const struct ep_ll_dispatch_args &a)
{
	struct ep_ll_header_share h;

	h.ranks = ep_div(EP_WARP_SIZE, a.by_packets);
	h.rank = ep_div(ep_lane(), a.by_packets);
	h.packet = ep_lane() - h.rank * a.by_packets.d;
	return h;
}

/*
 * The lane's packet `p` of a header, who the token is and which local experts of rank d want it,
 * to h. One warp: lanes write packets of different headers; h is NULL where there is none.
 */
EP_DEV void ep_ll_send_packet(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			      const struct ep_ll_selection &selection, uint32_t d, uint32_t p,
			      unsigned char *h)
{
	const struct ep_ll_common &c = a.c;
	bool expert_major = c.layout == EP_LL_EXPERT_MAJOR;
	/* words of an expert-major header: the token, then one for each k; two in a packet */
	uint32_t k0 = (expert_major ? 2 * p - 1 : p) & 31, k1 = 2 * p & 31, d0, d1;
	uint32_t word = expert_major ? selection.local_id << 18 | selection.index
				     : selection.local_id;
	uint32_t rank0 = ep_shfl_u32(EP_FULL_MASK, selection.rank, k0);
	uint32_t word0 = ep_shfl_u32(EP_FULL_MASK, word, k0);

	if (expert_major) {
		uint32_t rank1 = ep_shfl_u32(EP_FULL_MASK, selection.rank, k1);
		uint32_t word1 = ep_shfl_u32(EP_FULL_MASK, word, k1);

		d0 = p == 0 ? selection.token : rank0 == d ? word0 : EP_LL_NO_ROW;
		d1 = 2 * p < c.topk && rank1 == d ? word1 : EP_LL_NO_ROW;
	} else {
		d0 = selection.token << 16 | (rank0 == d ? word0 : 0xffffu);
		d1 = ep_f32_bits(ep_shfl_f32(EP_FULL_MASK, selection.weight, k0));
	}
	if (h) {
		ep_st_packet(h + 16 * p, d0, d1, op.epoch);
	}
}

/*
 * Remembers who will return (token, k); `slot`: of the token at lane k's rank, if that is remote.
 * Entries of local rows are written by the receive half.
 */
EP_DEV void ep_ll_send_route(const struct ep_ll_common &c, const struct ep_ll_selection &selection,
			     uint32_t slot)
{
	uint32_t k = ep_lane();
	uint32_t same = ep_match_u32(EP_FULL_MASK, selection.rank);
	bool returns = selection.rank != EP_LL_NO_ROW;

	if (c.layout == EP_LL_RANK_MAJOR) {
		returns = returns && ep_ctz(same) == k; /* the first k of that rank */
	}
	if (k < c.topk && !(returns && selection.rank == c.g.rank)) {
		c.h.route[(size_t)selection.token * c.topk + k] =
			returns ? EP_LL_ROUTE_AWAY(selection.rank, slot) : EP_LL_ROUTE_NONE;
	}
}

/* ---- one part of one row: a warp holds it in registers and stores it to each destination ---- */

/* Bits 0..lanes-1 of `hits`, turned so that bit 0 of the result is bit `turn`. */
EP_DEV uint32_t ep_ll_turned_hits(uint32_t hits, uint32_t turn, uint32_t lanes)
{
	uint64_t twice = (uint64_t)hits << lanes | hits;

	return (uint32_t)(twice >> turn) & (uint32_t)(((uint64_t)1 << lanes) - 1);
}

/* The lane that the lowest bit of turned hits stands for. */
EP_DEV uint32_t turned_lane(uint32_t m, uint32_t turn, uint32_t lanes)
{
	uint32_t l = ep_ctz(m) + turn;

	return l < lanes ? l : l - lanes;
}

/* Where one token's row goes: lane l holds the slot at rank first_rank + l, or NO_ROW. */
struct ep_ll_fanout {
	uint32_t first_rank;
	uint32_t slot;
	uint32_t lanes; /* ranks of this pass */
	uint32_t turn;  /* lane to begin with: ranks and warps begin at different ones, or all would
			 * send to the same rank at a time */
	uint32_t hits;  /* lanes with a slot, turned */
};

/* The row at the rank that the lowest bit of turned hits stands for. */
EP_DEV unsigned char *fanout_row(const struct ep_ll_common &c, const struct ep_op &op,
				 const struct ep_ll_fanout &fanout, uint32_t hits)
{
	uint32_t l = turned_lane(hits, fanout.turn, fanout.lanes);
	uint32_t slot = ep_shfl_u32(EP_FULL_MASK, fanout.slot, l);

	return ep_ll_row(c, op, ep_heap_of(c.g, fanout.first_rank + l),
			 c.near_sender * c.max_tokens + slot);
}

/* Where the wire row of one token comes from. */
struct ep_ll_source {
	const unsigned char *token; /* or the quantised tile, in scratch */
	const unsigned char *scale;
	uint32_t token_bytes;
	uint32_t bytes; /* token and scales; the rest of the last quad is padding */
};

EP_DEV struct ep_ll_source ep_ll_source_make(const struct ep_ll_dispatch_args &a, uint32_t token)
{
	struct ep_ll_source s;

	s.token = (const unsigned char *)a.tokens + (size_t)token * a.token_bytes;
	s.scale = (const unsigned char *)a.scales + (size_t)token * a.scale_bytes;
	s.token_bytes = a.token_bytes;
	s.bytes = a.token_bytes + a.scale_bytes;
	return s;
}

/* The lane's vec of the wire row at `off`; a multiple of its size never straddles parts. */
template <class F>
EP_DEV struct ep_vec16 source_vec(const struct ep_ll_source &source, uint32_t off, bool narrow)
{
	if constexpr (F::quantised) {
		struct ep_vec16 v = *(const struct ep_vec16 *)(source.token + (off & ~15u));

		return narrow ? ep_quad_vec_narrow(v, off) : v;
	}
	const unsigned char *p = off < source.token_bytes
					 ? source.token + off
					 : source.scale + (off - source.token_bytes);

	return ep_quad_load(p, narrow, off < source.bytes);
}

/* Quads [first, end) of the wire row as lines; source offsets begin at quad `origin`. */
template <class F>
EP_DEV void ep_ll_send_lines(const struct ep_ll_common &c, const struct ep_op &op,
			     const struct ep_ll_source &source, const struct ep_ll_fanout &fanout,
			     uint32_t origin, uint32_t first, uint32_t end)
{
	constexpr int N = F::quantised ? F::tile_quads : EP_LL_BATCH;
	bool narrow = ep_quad_narrow();

	for (uint32_t q = first; q < end; q += N) {
		struct ep_vec16 v[N] EP_UNSET;

		EP_UNROLL()
		for (int j = 0; j < N; j++) {
			if (q + j < end) {
				uint32_t off = (q + j - origin) * EP_QUAD_BYTES +
					       ep_line_offset(ep_lane());

				v[j] = source_vec<F>(source, off, narrow);
			}
		}
		for (uint32_t m = fanout.hits; m; m &= m - 1) {
			unsigned char *row = fanout_row(c, op, fanout, m);

			EP_UNROLL()
			for (int j = 0; j < N; j++) {
				if (q + j < end) {
					ep_st_line(row + (size_t)(q + j) * EP_QUAD_LINE_BYTES, v[j],
						   op.epoch, op.epoch);
				}
			}
		}
	}
}

/* The same as bytes; the caller announces the part with flags. */
template <class F>
EP_DEV void ep_ll_send_bytes(const struct ep_ll_common &c, const struct ep_op &op,
			     const struct ep_ll_source &source, const struct ep_ll_fanout &fanout,
			     uint32_t origin, uint32_t first, uint32_t end)
{
	constexpr int N = F::quantised ? F::tile_quads : EP_LL_BATCH;
	uint32_t last = end * EP_LL_QUAD_VECS, base = origin * EP_LL_QUAD_VECS;

	for (uint32_t v0 = first * EP_LL_QUAD_VECS; v0 < last; v0 += N * EP_WARP_SIZE) {
		struct ep_vec16 v[N] EP_UNSET;

		EP_UNROLL()
		for (int j = 0; j < N; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < last) {
				v[j] = source_vec<F>(source, 16 * (i - base), false);
			}
		}
		for (uint32_t m = fanout.hits; m; m &= m - 1) {
			unsigned char *row = fanout_row(c, op, fanout, m);

			EP_UNROLL()
			for (int j = 0; j < N; j++) {
				uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

				if (i < last) {
					ep_st16(row + 16 * (size_t)i, v[j]);
				}
			}
		}
	}
}

/* Quantises tile `tile` of a token into the warp's scratch. One warp. */
template <class F>
EP_DEV void ep_ll_token_quantise(const struct ep_ll_dispatch_args &a, uint32_t token, uint32_t tile,
				 unsigned char *scratch)
{
	struct ep_ll_quantiser z = ep_ll_quantiser_make(
		a.round_scales != 0, a.scales ? ep_nvfp4_global(*(const float *)a.scales) : 1.0f);
	const unsigned char *row = (const unsigned char *)a.tokens + (size_t)token * a.token_bytes;

	ep_ll_tile_quantise<F>(z, ep_ll_raw_tile_load<F>(row, a.token_bytes, tile), scratch);
}

/* ---- what goes to remote peers: counts, and tokens in batches ---- */

/* Tokens [first, first + n) of the span, all of one channel. */
struct ep_ll_remote_batch {
	uint32_t channel;
	uint32_t side;
	uint32_t token; /* of the first */
	uint32_t first;
	uint32_t n;     /* at most EP_LL_STAGE_ROWS */
	uint32_t done;  /* tokens of the channel up to the end of the batch */
	uint64_t stage; /* of the side, offset in the heap */
};

/*
 * Posts the counts that ep_ll_send_counts left in the stage, the last words of the step for the
 * control queues. One block, after a barrier.
 */
EP_DEV void ep_ll_remote_post_counts(const struct ep_ll_dispatch_args &a, const struct ep_op &op)
{
	const struct ep_ll_common &c = a.c;
	bool ctrl = ep_lane() == 0;
	uint64_t to = c.areas.bank_off[op.bank] + c.areas.packet_off +
		      (ctrl ? (uint64_t)c.sender * EP_LL_CTRL_BYTES
			    : a.count_off + 8 * (uint64_t)c.sender * c.nlocal);
	uint32_t lanes = c.layout == EP_LL_EXPERT_MAJOR ? 2 : 1;

	for (uint32_t r = ep_remote_peer(c.g, ep_warp()); r < c.g.nranks;
	     r = ep_remote_peer(c.g, r + ep_nwarps())) {
		if (!ep_ll_among(c.to, r)) {
			continue;
		}
		struct ep_mlx5_post p = ep_remote_open(c.g, r, c.g.remote->channels);
		uint64_t from =
			c.areas.post_off + r * c.areas.post_stride + (ctrl ? 0 : EP_LL_CTRL_BYTES);

		p.timeout_ns = ep_remote_left(c.g, op, true);
		if (!ep_mlx5_put(&p, ep_lane() < lanes,
				 ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, to),
				 ep_mlx5_local(&p, EP_MLX5_REGION_HEAP, from),
				 ctrl ? EP_LL_CTRL_BYTES : 8 * c.nlocal, false)) {
			ep_remote_failed(c.g, op, p, r, EP_WAIT_RDMA_SLOT);
		}
	}
	ep_remote_leave(c.g, op, true);
}

/* Quads [first, end) of a token's row to the stage. One warp. */
template <class F>
EP_DEV void remote_stage_part(const struct ep_ll_dispatch_args &a,
			      const struct ep_ll_send_tables &tables, uint32_t token,
			      unsigned char *row, uint32_t first, uint32_t end)
{
	struct ep_ll_source s;

	if constexpr (F::quantised) {
		s.token = tables.scratch + ep_warp() * EP_LL_TILE_BYTES;
		for (uint32_t q = first; q < end; q += F::tile_quads) {
			ep_ll_token_quantise<F>(a, token, q / F::tile_quads,
						tables.scratch + ep_warp() * EP_LL_TILE_BYTES);
			for (uint32_t i = ep_lane(); i < F::tile_quads * EP_LL_QUAD_VECS;
			     i += EP_WARP_SIZE) {
				ep_st16(row + (size_t)q * EP_QUAD_BYTES + 16 * i,
					source_vec<F>(s, 16 * i, false));
			}
			ep_warp_sync(EP_FULL_MASK);
		}
		return;
	}
	s = ep_ll_source_make(a, token);
	for (uint32_t v0 = first * EP_LL_QUAD_VECS; v0 < end * EP_LL_QUAD_VECS;
	     v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH];

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			v[j] = source_vec<F>(s, 16 * (v0 + j * EP_WARP_SIZE + ep_lane()), false);
		}
		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < end * EP_LL_QUAD_VECS) {
				ep_st16(row + 16 * (size_t)i, v[j]);
			}
		}
	}
}

/* Slot at rank d of the first row of the batch that goes there. */
EP_DEV uint32_t remote_first_slot(const struct ep_ll_send_tables &tables,
				  const struct ep_ll_remote_batch &batch, uint32_t d)
{
	return tables.rank_base[d] + bits_before(tables.rank_bits + d * tables.words, batch.first);
}

/* Headers of the i-th token of the batch, as they will lie at each remote peer. One warp. */
EP_DEV void remote_stage_headers(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				 const struct ep_ll_send_tables &tables,
				 const struct ep_ll_remote_batch &batch, uint32_t i,
				 uint32_t repeats)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_header_share share = ep_ll_header_share_make(a);
	uint32_t local = batch.first + i;
	struct ep_ll_selection s = ep_ll_selection_make(a, tables, batch.token + i, local, repeats);

	for (uint32_t d0 = c.to.first; d0 < c.to.end; d0 += share.ranks) {
		uint32_t d = d0 + share.rank, slot = EP_LL_NO_ROW;
		unsigned char *h = NULL;

		if (share.rank < share.ranks && d < c.to.end && ep_rank_remote(c.g, d)) {
			slot = ep_ll_slot(tables, local, d);
		}
		if (slot != EP_LL_NO_ROW) {
			uint32_t at = c.g.remote->places[d].staged * EP_LL_STAGE_ROWS + slot -
				      remote_first_slot(tables, batch, d);

			h = c.g.own + batch.stage + c.areas.stage_header_off +
			    (size_t)at * a.header_bytes;
		}
		ep_ll_send_packet(a, op, s, d, share.packet, h);
	}
}

/* Does the span's token go to a remote peer? One warp. */
EP_DEV bool remote_goes(const struct ep_ll_common &c, const struct ep_ll_send_tables &tables,
			uint32_t local)
{
	bool goes = false;

	for (uint32_t d = c.to.first + ep_lane(); d < c.to.end; d += EP_WARP_SIZE) {
		goes |= ep_rank_remote(c.g, d) && ep_ll_slot(tables, local, d) != EP_LL_NO_ROW;
	}
	return ep_any(EP_FULL_MASK, goes);
}

/*
 * Headers of the batch, and its rows unless the NIC reads them from the caller's tensor. One block.
 */
template <class F>
EP_DEV void remote_stage_batch(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			       const struct ep_ll_send_tables &tables,
			       const struct ep_ll_remote_batch &batch)
{
	const struct ep_ll_common &c = a.c;
	bool copied = F::quantised || !a.source.addr;
	uint32_t part_quads = 0, parts = 1, repeats = *tables.repeats;

	if (copied) {
		parts = ep_ll_stage_parts(c, batch.n, F::tile_quads, &part_quads);
	}

	for (uint32_t i = ep_warp(); i < batch.n * parts; i += ep_nwarps()) {
		uint32_t n = i / parts, part = i - n * parts, first, end;
		unsigned char *row =
			c.g.own + batch.stage + (size_t)n * ep_ll_row_stride(c.row_quads, 0);

		if (!remote_goes(c, tables, batch.first + n)) {
			continue;
		}
		if (part == 0) {
			remote_stage_headers(a, op, tables, batch, n, repeats);
		}
		if (!copied) {
			continue;
		}
		ep_ll_part(c.row_quads, part_quads, part, &first, &end);
		remote_stage_part<F>(a, tables, batch.token + n, row, first, end);
	}
}

/* The batch's headers, rows and signal to own peer d. One warp. */
template <class F>
EP_DEV void remote_post_tokens(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			       const struct ep_ll_send_tables &tables,
			       const struct ep_ll_remote_batch &batch, uint32_t d)
{
	const struct ep_ll_common &c = a.c;
	uint32_t slot = ep_lane() < batch.n ? ep_ll_slot(tables, batch.first + ep_lane(), d)
					    : EP_LL_NO_ROW;
	uint32_t rows = ep_popc(ep_ballot(EP_FULL_MASK, slot != EP_LL_NO_ROW));
	uint32_t stride = ep_ll_row_stride(c.row_quads, 0);

	if (!rows) {
		return;
	}
	const struct ep_remote_place *place = c.g.remote->places + d;
	uint32_t at = place->there * c.max_tokens + slot;
	struct ep_mlx5_post p = ep_remote_open(c.g, d, batch.channel);
	uint64_t headers =
		c.areas.bank_off[op.bank] + c.areas.packet_off + a.header_off +
		(uint64_t)(c.sender * c.max_tokens + remote_first_slot(tables, batch, d)) *
			a.header_bytes;

	struct ep_mlx5_mem from =
		ep_mlx5_local(&p, EP_MLX5_REGION_HEAP, batch.stage + (uint64_t)ep_lane() * stride);

	if (!F::quantised &&
	    a.source.addr) { /* there is nothing behind the last row: it is not padded */
		from = ep_mlx5_source(&p, a.source,
				      (uint64_t)(batch.token + ep_lane()) * a.token_bytes);
	}
	p.timeout_ns = ep_remote_left(c.g, op, true);
	if (!ep_mlx5_put(&p, ep_lane() == 0, ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, headers),
			 ep_mlx5_local(&p, EP_MLX5_REGION_HEAP,
				       batch.stage + c.areas.stage_header_off +
					       (uint64_t)place->staged * EP_LL_STAGE_ROWS *
						       a.header_bytes),
			 rows * a.header_bytes, true) ||
	    !ep_mlx5_put_signal(&p, slot != EP_LL_NO_ROW,
				ep_mlx5_remote(&p, EP_MLX5_REGION_HEAP,
					       ep_ll_remote_row(c, op, at)),
				from, !F::quantised && a.source.addr ? a.token_bytes : stride,
				ep_remote_signal(c.g, p, d, batch.channel,
						 ep_remote_signal_off(c.g, batch.channel),
						 ep_remote_signal_word(op, batch.done)))) {
		ep_remote_failed(c.g, op, p, d, EP_WAIT_RDMA_SLOT);
	}
	ep_stage_mark(c.g, p, d, batch.channel, batch.side);
}

/*
 * Sends the rows of the span to remote peers, those of the channels index, index + stride, ...
 * One block; the span is marked. *side: where the next batch goes.
 */
template <class F>
EP_DEV void ep_ll_remote_send_span(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				   const struct ep_ll_send_tables &tables,
				   const struct ep_ll_span &span, uint32_t index, uint32_t stride,
				   uint32_t *side)
{
	const struct ep_ll_common &c = a.c;

	for (uint32_t ch = index; ch < c.g.remote->channels; ch += stride) {
		uint32_t c0 = ch * c.channel_tokens;
		uint32_t end = ep_min_u32(c0 + c.channel_tokens, span.w0 + span.n);

		for (uint32_t at = ep_max_u32(c0, span.w0); at < end; at += EP_LL_STAGE_ROWS) {
			struct ep_ll_remote_batch b;

			b.channel = ch;
			b.side = *side;
			b.token = at;
			b.first = at - span.w0;
			b.n = ep_min_u32(end - at, EP_LL_STAGE_ROWS);
			b.done = at + b.n - c0;
			b.stage = ep_stage_off(c.g, ch, b.side);
			*side ^= 1;
			if (!ep_stage_claim(c.g, op, ch, b.side)) {
				return;
			}
			remote_stage_batch<F>(a, op, tables, b);
			ep_block_sync();
			for (uint32_t d = ep_remote_peer(c.g, ep_warp()); d < c.g.nranks;
			     d = ep_remote_peer(c.g, d + ep_nwarps())) {
				remote_post_tokens<F>(a, op, tables, b, d);
			}
		}
	}
}

#endif
