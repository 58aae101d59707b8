/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency combine. Senders push each row of the caller's tensor to the slot (token, k) of its
 * source; receivers reduce a token's rows in ascending k as their parts land, in fp32, and round
 * once. Rows whose source is this rank are read where they lie.
 *
 * Bytes: expert-major one row per remote (token, expert), rank-major one per remote (token, rank).
 */
#include "device/ll/combine_remote.h"
#include "device/ll/combine_send.h"
#include "device/group/wait.h"
#include "device/group/step.h"
#include "device/simt/numeric.h"

#include "device/kernels.h"

#define EP_LL_REDUCE_BATCH 8 /* rows that a lane loads before it adds them */
#define EP_LL_NO_OFFSET 0xfffffff0u /* a piece past every row */

/* Numbers of one 8-byte piece of a row. */
template <int DTYPE> struct ep_ll_numbers;

template <> struct ep_ll_numbers<EP_LL_BF16> {
	enum { count = 4 };
	EP_DEV void load(const struct ep_vec8 &v, float *f)
	{
		f[0] = ep_bf16_lo_f32(v.x);
		f[1] = ep_bf16_hi_f32(v.x);
		f[2] = ep_bf16_lo_f32(v.y);
		f[3] = ep_bf16_hi_f32(v.y);
	}
	EP_DEV struct ep_vec8 store(const float *f)
	{
		struct ep_vec8 v = { ep_f32_bf16_pair(f[0], f[1]), ep_f32_bf16_pair(f[2], f[3]) };

		return v;
	}
};

template <> struct ep_ll_numbers<EP_LL_FP16> {
	enum { count = 4 };
	EP_DEV void load(const struct ep_vec8 &v, float *f)
	{
		f[0] = ep_fp16_lo_f32(v.x);
		f[1] = ep_fp16_hi_f32(v.x);
		f[2] = ep_fp16_lo_f32(v.y);
		f[3] = ep_fp16_hi_f32(v.y);
	}
	EP_DEV struct ep_vec8 store(const float *f)
	{
		struct ep_vec8 v = { ep_f32_fp16_pair(f[0], f[1]), ep_f32_fp16_pair(f[2], f[3]) };

		return v;
	}
};

template <> struct ep_ll_numbers<EP_LL_FP32> {
	enum { count = 2 };
	EP_DEV void load(const struct ep_vec8 &v, float *f)
	{
		f[0] = ep_bits_f32(v.x);
		f[1] = ep_bits_f32(v.y);
	}
	EP_DEV struct ep_vec8 store(const float *f)
	{
		struct ep_vec8 v = { ep_f32_bits(f[0]), ep_f32_bits(f[1]) };

		return v;
	}
};

/* Work of a sending warp: one part of one received token, with what dispatch noted of it. */
struct ep_ll_return {
	uint32_t src;
	uint32_t slot;
	uint32_t part;
	uint32_t rows;  /* received from src; 0: nothing to do */
	uint32_t token; /* EP_LL_SLOT */
	uint32_t entry; /* of lane k: ep_ll_return_entry */
};

/*
 * The i-th of all. Tokens return in the order in which their source sent them, one part of each
 * source in turn, so that a source can finish its tokens one by one and no source gets all rows at
 * once. Nothing waits here for what is loaded.
 */
template <bool NET>
EP_DEV struct ep_ll_return ep_ll_return_load(const struct ep_ll_common &c, uint32_t i)
{
	uint32_t j = ep_div(i, c.by_ranks), turn = i - j * c.nranks + j + c.rank + 1;
	uint32_t parts = c.peer_parts, received;
	struct ep_ll_return r;

	r.src = turn - ep_div(turn, c.by_ranks) * c.nranks;
	if (c.lines) {
		r.slot = ep_div(j, c.by_peer_parts);
	} else {
		parts = c.src_parts[r.src];
		r.slot = j / ep_max_u32(parts, 1);
	}
	r.part = j - r.slot * parts;
	r.rows = 0;
	r.token = 0;
	r.entry = EP_LL_NO_ROW;
	if (r.src == c.rank || (NET && ep_ll_remote(c, r.src)) || r.slot >= c.max_tokens) {
		return r;
	}
	received = r.src * c.max_tokens + r.slot;
	r.rows = c.src_rows[r.src];
	r.token = c.slot_token[received];
	if (ep_lane() < c.topk) {
		r.entry = ep_ll_return_entry(c, received, ep_lane());
	}
	return r;
}

/* A row for each local expert, or one in rank-major layout. One warp. */
EP_DEV void ep_ll_return_item(const struct ep_ll_combine_args &a, const struct ep_ll_op &op,
			      const struct ep_ll_return &r)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), row = EP_LL_NO_ROW, first, end;

	if (k < c.topk) {
		row = ep_ll_return_of(c, r.src * c.max_tokens + r.slot, r.token, k, r.entry);
	}
	ep_ll_part(c.row_quads,
		   c.lines ? c.peer_chunk : ep_ll_chunk(c.row_quads, c.src_parts[r.src], 1), r.part,
		   &first, &end);
	if (first == end) {
		return;
	}
	uint32_t at = EP_LL_SLOT_TOKEN(r.token) * c.topk;
	uint32_t rows = ep_ballot(EP_FULL_MASK, row != EP_LL_NO_ROW);

	if (c.lines) {
		ep_ll_return_lines(a, op, rows, row, r.src, at, first, end);
		return;
	}
	for (uint32_t m = rows; m; m &= m - 1) {
		uint32_t l = ep_ctz(m);

		ep_ll_return_bytes(a, ep_shfl_u32(EP_FULL_MASK, row, l),
				   ep_ll_row(c, op, r.src, at + l), first, end);
	}
	ep_warp_sync(EP_FULL_MASK);
	if (row != EP_LL_NO_ROW) {
		ep_ll_announce(c, op, r.src, at + k, r.part);
	}
}

/* Parts of the source that has most of them. One warp. */
EP_DEV uint32_t ep_ll_return_most(const struct ep_ll_common &c)
{
	uint32_t most = 0;

	for (uint32_t r = ep_lane(); r < c.nranks; r += EP_WARP_SIZE) {
		most = ep_max_u32(most, c.src_rows[r] * (c.lines ? c.peer_parts : c.src_parts[r]));
	}
	for (uint32_t x = 1; x < EP_WARP_SIZE; x *= 2) {
		most = ep_max_u32(most, ep_shfl_xor_u32(EP_FULL_MASK, most, x));
	}
	return most;
}

/* `first` is the work of index `worker`, out of `all`. */
template <bool NET>
EP_DEV void ep_ll_combine_send(const struct ep_ll_combine_args &a, const struct ep_ll_op &op,
			       uint32_t worker, const struct ep_ll_return &first, uint32_t all)
{
	const struct ep_ll_common &c = a.c;
	uint32_t half = 0;

	for (uint32_t ch = ep_block(); NET && ch < c.channels; ch += c.send_blocks) {
		ep_ll_net_return(a, op, ch, &half);
	}
	for (uint32_t i = worker; i < all; i += c.send_blocks * ep_nwarps()) {
		struct ep_ll_return r = i == worker ? first : ep_ll_return_load<NET>(c, i);

		if (r.slot < r.rows && ep_ll_warp_active(c, r.src)) {
			ep_ll_return_item(a, op, r);
		}
	}
}

/* What lane k knows of its row of the token. */
struct ep_ll_term {
	uint32_t route;
	float weight;
	uint32_t valid; /* ballot: lanes whose row counts */
};

/* Does the row come as lines, which carry their own flags? */
template <bool NET> EP_DEV bool ep_ll_term_lines(const struct ep_ll_common &c, uint32_t route)
{
	return c.lines && EP_LL_ROUTE_IS_AWAY(route) &&
	       !(NET && ep_ll_remote(c, EP_LL_ROUTE_RANK(route)));
}

/* A piece of one row, for one lane: `have` is false while its line has not arrived. */
template <bool NET>
EP_DEV struct ep_vec16 ep_ll_term_piece(const struct ep_ll_combine_args &a,
					const struct ep_ll_op &op, uint32_t at, uint32_t route,
					uint32_t quad, uint32_t off, bool half, bool *have)
{
	const struct ep_ll_common &c = a.c;
	struct ep_vec16 v = { 0, 0, 0, 0 };

	*have = true;
	if (!EP_LL_ROUTE_IS_AWAY(route)) {
		return ep_ll_tensor_piece(a, route, off, half);
	}
	if (NET && ep_ll_remote(c, EP_LL_ROUTE_RANK(route))) {
		const unsigned char *net = c.heap[c.rank] + ep_ll_net_row(c, op, at);

		if (off >= a.token_bytes) {
			return v;
		}
		v = ep_ld16_fresh(net + (half ? off & ~15u : off));
		if (half && (off & 8)) {
			v.x = v.z;
			v.y = v.w;
		}
		return v;
	}
	const unsigned char *row = ep_ll_row(c, op, c.rank, at);

	if (!c.lines) {
		return off < a.token_bytes ? ep_ld16_fresh(row + off) : v;
	}
	*have = ep_ld_line(row + (size_t)quad * EP_LL_QUAD_LINE_BYTES, op.epoch, &v);
	return v;
}

template <int DTYPE>
EP_DEV void ep_ll_store_sum(const struct ep_ll_combine_args &a, uint32_t token, uint32_t off,
			    bool half, const float *acc)
{
	typedef struct ep_ll_numbers<DTYPE> numbers;
	unsigned char *out = (unsigned char *)a.out_tokens + (size_t)token * a.token_bytes + off;
	struct ep_vec8 lo = numbers::store(acc);

	if (off >= a.token_bytes) {
		return;
	}
	if (half) {
		*(struct ep_vec8 *)out = lo;
	} else {
		struct ep_vec8 hi = numbers::store(acc + numbers::count);
		struct ep_vec16 v = { lo.x, lo.y, hi.x, hi.y };

		ep_st16(out, v);
	}
}

/*
 * Sums the lane's piece of a token's rows in ascending k. All lanes call it, for pieces of the same
 * quad when rows are lines. A row whose rank fails on the way adds nothing.
 */
template <int DTYPE, bool NET>
EP_DEV void ep_ll_reduce_piece(const struct ep_ll_combine_args &a, const struct ep_ll_op &op,
			       const struct ep_ll_term &term, uint32_t token, uint32_t quad,
			       uint32_t off, bool half)
{
	typedef struct ep_ll_numbers<DTYPE> numbers;
	const struct ep_ll_common &c = a.c;
	float acc[2 * numbers::count] = {};
	struct ep_vec16 v[EP_LL_REDUCE_BATCH];
	bool have[EP_LL_REDUCE_BATCH];

	for (uint32_t left = term.valid; left;) {
		uint32_t batch = left;

#pragma unroll
		for (int j = 0; j < EP_LL_REDUCE_BATCH; j++) {
			if (batch) {
				uint32_t k = ep_ctz(batch);

				v[j] = ep_ll_term_piece<NET>(a, op, token * c.topk + k,
							ep_shfl_u32(EP_FULL_MASK, term.route, k),
							quad, off, half, &have[j]);
				batch &= batch - 1;
			}
		}
#pragma unroll
		for (int j = 0; j < EP_LL_REDUCE_BATCH; j++) {
			if (left) {
				uint32_t k = ep_ctz(left);
				uint32_t route = ep_shfl_u32(EP_FULL_MASK, term.route, k);
				float w = ep_shfl_f32(EP_FULL_MASK, term.weight, k);
				float f[2 * numbers::count];

				if (ep_ll_term_lines<NET>(c, route)) {
					const unsigned char *line =
						ep_ll_row(c, op, c.rank, token * c.topk + k) +
						(size_t)quad * EP_LL_QUAD_LINE_BYTES;

					if (ep_all(EP_FULL_MASK, have[j])) {
						ep_ld_line_settle(line, &v[j]);
					} else if (!ep_ll_wait_quad(c, op, line, &v[j],
								    EP_WAIT_COMBINE_ROW,
								    EP_LL_ROUTE_RANK(route))) {
						w = 0.0f;
						v[j].x = v[j].y = v[j].z = v[j].w = 0;
					}
				}
				struct ep_vec8 lo = { v[j].x, v[j].y }, hi = { v[j].z, v[j].w };

				numbers::load(lo, f);
				numbers::load(hi, f + numbers::count);
#pragma unroll
				for (int n = 0; n < 2 * numbers::count; n++) {
					acc[n] = ep_fma_f32(f[n], w, acc[n]);
				}
				left &= left - 1;
			}
		}
	}
	ep_ll_store_sum<DTYPE>(a, token, off, half, acc);
}

/* Lane k learns who returns (token, k); with rows as bytes, waits until the part is there. */
template <bool NET>
EP_DEV struct ep_ll_term ep_ll_term_make(const struct ep_ll_combine_args &a,
					 const struct ep_ll_op &op, uint32_t token, uint32_t part)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), at = token * c.topk + k;
	struct ep_ll_term term;
	bool valid;

	term.route = k < c.topk ? c.route[at] : EP_LL_ROUTE_NONE;
	valid = term.route != EP_LL_ROUTE_NONE;
	term.weight = 1.0f;
	if (valid && c.layout == EP_LL_EXPERT_MAJOR) {
		term.weight = a.topk_weights[at];
	}
	if (valid && EP_LL_ROUTE_IS_AWAY(term.route)) {
		uint32_t r = EP_LL_ROUTE_RANK(term.route);

		valid = ep_ll_active(c, r);
		if (valid && NET && ep_ll_remote(c, r)) {
			valid = ep_ll_net_wait(c, op, r, EP_LL_ROUTE_SLOT(term.route),
					       ep_ll_channel_units(c.sent_rows[r], c.channels),
					       EP_WAIT_COMBINE_ROW);
		} else if (valid && !c.lines) {
			valid = ep_ll_wait_flag(c, op, ep_ll_row_flag(c, op, c.rank, at, part),
						EP_WAIT_COMBINE_ROW, r);
		}
	}
	term.valid = ep_ballot(EP_FULL_MASK, valid);
	if (NET || !c.lines) {
		ep_warp_sync(EP_FULL_MASK); /* what one lane has acquired, the others may read */
	}
	return term;
}

/* One part of one token. One warp. */
template <int DTYPE, bool NET>
EP_DEV void ep_ll_reduce_item(const struct ep_ll_combine_args &a, const struct ep_ll_op &op,
			      uint32_t token, uint32_t part)
{
	const struct ep_ll_common &c = a.c;
	uint32_t first, end;

	ep_ll_part(c.row_quads, c.chunk, part, &first, &end);
	if (first == end) {
		return;
	}
	struct ep_ll_term term = ep_ll_term_make<NET>(a, op, token, part);

	if (c.lines) {
		for (uint32_t q = first; q < end; q++) {
			ep_ll_reduce_piece<DTYPE, NET>(a, op, term, token, q,
						  q * EP_LL_QUAD_BYTES + ep_line_offset(ep_lane()),
						  (ep_lane() & 7) == 7);
		}
		return;
	}
	/* lanes past the part's end work on bytes past the row, which are never stored */
	for (uint32_t off = first * EP_LL_QUAD_BYTES; off < end * EP_LL_QUAD_BYTES;
	     off += 16 * EP_WARP_SIZE) {
		uint32_t mine = off + 16 * ep_lane();

		ep_ll_reduce_piece<DTYPE, NET>(a, op, term, token, 0,
					  mine < end * EP_LL_QUAD_BYTES ? mine : EP_LL_NO_OFFSET,
					  false);
	}
}

template <int DTYPE, bool NET> EP_DEV void ep_ll_combine(const struct ep_ll_combine_args &a)
{
	const struct ep_ll_common &c = a.c;
	uint32_t worker = ep_block() * ep_nwarps() + ep_warp();
	struct ep_ll_found found = ep_ll_find(c);
	struct ep_ll_return first = {};
	uint32_t all = 0;

	if (ep_block() < c.send_blocks) { /* while the step is on its way */
		first = ep_ll_return_load<NET>(c, worker);
		all = ep_ll_return_most(c) * c.nranks;
	}
	struct ep_ll_op op = ep_ll_step(c, found.seq, true);

	if (ep_block() == 0 && ep_warp() == 0) {
		ep_ll_publish_progress(c, op);
	}
	if (NET) {
		op.start_ns = ep_time_ns();
	}
	if (NET && ep_block() == 0) {
		ep_ll_net_progress(c, op);
	}
	uint64_t before = NET ? ep_time_ns() : 0; /* who is waited for here is slow, not lost */

	if (ep_ll_begin(c, found, op) == EP_LL_BANK_ABORTED) {
		return;
	}
	if (NET) {
		op.start_ns += ep_time_ns() - before;
	}
	if (ep_block() < c.send_blocks) {
		ep_ll_combine_send<NET>(a, op, worker, first, all);
		return;
	}
	for (uint32_t i = (ep_block() - c.send_blocks) * ep_nwarps() + ep_warp();
	     i < c.num_tokens * c.parts; i += (ep_nblocks() - c.send_blocks) * ep_nwarps()) {
		uint32_t token = ep_div(i, c.by_parts);

		ep_ll_reduce_item<DTYPE, NET>(a, op, token, i - token * c.parts);
	}
}

EP_KERNEL(ep_ll_combine_bf16_kernel, ep_ll_combine_args, EP_LL_MAX_THREADS)
{
	ep_ll_combine<EP_LL_BF16, false>(a);
}

EP_KERNEL(ep_ll_combine_fp16_kernel, ep_ll_combine_args, EP_LL_MAX_THREADS)
{
	ep_ll_combine<EP_LL_FP16, false>(a);
}

EP_KERNEL(ep_ll_combine_fp32_kernel, ep_ll_combine_args, EP_LL_MAX_THREADS)
{
	ep_ll_combine<EP_LL_FP32, false>(a);
}

EP_KERNEL(ep_ll_combine_bf16_net_kernel, ep_ll_combine_args, EP_LL_MAX_THREADS)
{
	ep_ll_combine<EP_LL_BF16, true>(a);
}

EP_KERNEL(ep_ll_combine_fp16_net_kernel, ep_ll_combine_args, EP_LL_MAX_THREADS)
{
	ep_ll_combine<EP_LL_FP16, true>(a);
}

EP_KERNEL(ep_ll_combine_fp32_net_kernel, ep_ll_combine_args, EP_LL_MAX_THREADS)
{
	ep_ll_combine<EP_LL_FP32, true>(a);
}
