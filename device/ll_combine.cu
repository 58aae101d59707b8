/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency combine. Senders push each row of the caller's tensor to the slot (token, k) of its
 * source; receivers reduce a token's rows in ascending k as their parts land, in fp32, and round
 * once. Rows whose source is this rank are read where they lie.
 *
 * Bytes: expert-major one row per remote (token, expert), rank-major one per remote (token, rank).
 */
#include "ll_common.h"
#include "numeric.h"

#include "kernels.h"

#define EP_LL_REDUCE_BATCH 8 /* rows that a lane loads before it adds them */

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

EP_DEV unsigned char *ep_ll_return_packets(const struct ep_ll_common &c, const struct ep_ll_op &op,
					   uint32_t r, uint32_t at)
{
	return ep_ll_packets(c, op, r) + (size_t)at * 2 * c.row_bytes;
}

EP_DEV unsigned char *ep_ll_return_raw(const struct ep_ll_common &c, const struct ep_ll_op &op,
				       uint32_t r, uint32_t at)
{
	return ep_ll_raw(c, op, r) + (size_t)at * c.row_bytes;
}

/* One part of one row of the caller's tensor to its source. One warp. */
EP_DEV void ep_ll_return_item(const struct ep_ll_combine_args &a, const struct ep_ll_op &op,
			      uint32_t row, uint32_t part)
{
	const struct ep_ll_common &c = a.c;
	uint32_t origin = c.origin[row], src = EP_LL_ORIGIN_SRC(origin);
	uint32_t at = EP_LL_ORIGIN_TOKEN(origin) * c.topk + EP_LL_ORIGIN_K(origin), first, end;

	if (src == c.rank || src >= c.nranks || !ep_ll_active(c, src)) {
		return;
	}
	const unsigned char *in = (const unsigned char *)a.tokens + (size_t)row * c.row_bytes;
	uint32_t wire = c.src_wire[src];

	ep_ll_part(c.row_bytes / 16, EP_LL_WIRE_PARTS(wire), part, &first, &end);
	if (part >= EP_LL_WIRE_PARTS(wire) || first == end) {
		return;
	}
	if (EP_LL_WIRE_PACKETS(wire)) {
		unsigned char *out = ep_ll_return_packets(c, op, src, at);

		for (uint32_t p0 = 2 * first; p0 < 2 * end; p0 += 4 * EP_WARP_SIZE) {
			struct ep_vec8 v[4];

#pragma unroll
			for (int j = 0; j < 4; j++) {
				uint32_t p = p0 + j * EP_WARP_SIZE + ep_lane();

				if (p < 2 * end) {
					v[j] = ep_ld8_nc(in + 8 * p);
				}
			}
#pragma unroll
			for (int j = 0; j < 4; j++) {
				uint32_t p = p0 + j * EP_WARP_SIZE + ep_lane();

				if (p < 2 * end) {
					ep_st_packet(out + 16 * p, v[j].x, v[j].y, op.epoch);
				}
			}
		}
		return;
	}
	unsigned char *out = ep_ll_return_raw(c, op, src, at);

	for (uint32_t v0 = first; v0 < end; v0 += 4 * EP_WARP_SIZE) {
		struct ep_vec16 v[4];

#pragma unroll
		for (int j = 0; j < 4; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < end) {
				v[j] = ep_ld16_nc(in + 16 * i);
			}
		}
#pragma unroll
		for (int j = 0; j < 4; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < end) {
				ep_st16(out + 16 * i, v[j]);
			}
		}
	}
	ep_warp_sync(EP_FULL_MASK);
	if (ep_lane() == 0) {
		ep_release_fence_sys();
		ep_st_fenced_sys_u32(ep_ll_flags(c, op, src) + (size_t)at * EP_LL_MAX_PARTS + part,
				     op.epoch);
	}
}

/*
 * Rows of the caller's tensor lie in groups: an expert's or a source's. Within a group they are in
 * ascending source order, so each rank begins a group at another place, to spread the traffic.
 */
EP_DEV void ep_ll_combine_send(const struct ep_ll_combine_args &a, const struct ep_ll_op &op)
{
	const struct ep_ll_common &c = a.c;
	bool expert_major = c.layout == EP_LL_EXPERT_MAJOR;
	uint32_t groups = expert_major ? c.nlocal : c.nranks, parts = 1, g = 0;
	uint32_t cap = expert_major ? c.nranks * c.max_tokens : c.max_tokens;
	const uint32_t *count = expert_major ? c.counts : c.src_rows;
	uint32_t *start = (uint32_t *)ep_dynamic_shared(); /* [groups + 1] first item of a group */
	EP_SHARED(uint32_t, bank_free);

	if (ep_warp() == ep_nwarps() - 1) {
		bool free_now = ep_ll_wait_bank(c, op);

		if (ep_lane() == 0) {
			bank_free = free_now;
		}
	}
	if (ep_warp() == 0) {
		uint32_t base = 0;

		for (uint32_t g0 = 0; g0 < groups; g0 += EP_WARP_SIZE) {
			uint32_t i = g0 + ep_lane(), n = i < groups ? count[i] : 0, sum = n;

			for (uint32_t d = 1; d < EP_WARP_SIZE; d *= 2) {
				uint32_t v = ep_shfl_up_u32(EP_FULL_MASK, sum, d);

				sum += ep_lane() >= d ? v : 0;
			}
			if (i < groups) {
				start[i] = base + sum - n;
			}
			base += ep_shfl_u32(EP_FULL_MASK, sum, 31);
		}
		if (ep_lane() == 0) {
			start[groups] = base;
		}
	}
	ep_block_sync();
	if (!bank_free) {
		return;
	}
	for (uint32_t r = 0; r < c.nranks; r++) {
		parts = ep_max_u32(parts, EP_LL_WIRE_PARTS(c.src_wire[r]));
	}
	for (uint32_t i = ep_block() * ep_nwarps() + ep_warp(); i < start[groups] * parts;
	     i += c.send_blocks * ep_nwarps()) {
		uint32_t item = i / parts;

		while (start[g + 1] <= item) {
			g++; /* items ascend: the search goes on where it stopped */
		}
		uint32_t n = start[g + 1] - start[g];
		uint32_t at = item - start[g] + (uint32_t)((uint64_t)n * ((c.rank + g + 1) % c.nranks) /
							   c.nranks);

		ep_ll_return_item(a, op, g * cap + (at < n ? at : at - n), i % parts);
	}
}

/* What lane k knows of its row of the token. */
struct ep_ll_term {
	uint32_t route;
	float weight;
	uint32_t valid; /* ballot: lanes whose row counts */
};

/* Piece p (8 bytes) of row (token, k), if it is there. */
EP_DEV bool ep_ll_term_load(const struct ep_ll_combine_args &a, const struct ep_ll_op &op,
			    uint32_t token, uint32_t k, uint32_t route, uint32_t p,
			    struct ep_vec8 *v)
{
	const struct ep_ll_common &c = a.c;
	uint32_t at = token * c.topk + k;

	if (!EP_LL_ROUTE_IS_REMOTE(route)) {
		*v = ep_ld8_nc((const unsigned char *)a.tokens + (size_t)route * c.row_bytes + 8 * p);
		return true;
	}
	const unsigned char *in = ep_ll_return_packets(c, op, c.rank, at) + 16 * p;

	return ep_ld_packet(in, op.epoch, &v->x, &v->y);
}

/*
 * Sums piece p of a token's rows from packets. A row whose rank fails on the way contributes
 * nothing to this piece. All lanes call it; lanes with !mine only take part in the shuffles.
 */
template <int DTYPE>
EP_DEV void ep_ll_reduce_packets(const struct ep_ll_combine_args &a, const struct ep_ll_op &op,
				 const struct ep_ll_term &term, uint32_t token, uint32_t p,
				 bool mine)
{
	typedef struct ep_ll_numbers<DTYPE> numbers;
	float acc[numbers::count] = {};
	struct ep_vec8 v[EP_LL_REDUCE_BATCH];
	bool have[EP_LL_REDUCE_BATCH];

	for (uint32_t left = term.valid; left;) {
		uint32_t batch = left;

#pragma unroll
		for (int j = 0; j < EP_LL_REDUCE_BATCH; j++) {
			if (batch) {
				uint32_t k = ep_ctz(batch);
				uint32_t route = ep_shfl_u32(EP_FULL_MASK, term.route, k);

				have[j] = !mine || ep_ll_term_load(a, op, token, k, route, p, &v[j]);
				batch &= batch - 1;
			}
		}
#pragma unroll
		for (int j = 0; j < EP_LL_REDUCE_BATCH; j++) {
			if (left) {
				uint32_t k = ep_ctz(left);
				uint32_t route = ep_shfl_u32(EP_FULL_MASK, term.route, k);
				float w = ep_shfl_f32(EP_FULL_MASK, term.weight, k), f[numbers::count];
				bool ok = true;

				if (!have[j]) {
					ok = ep_ll_wait_packet(
						a.c, op,
						ep_ll_return_packets(a.c, op, a.c.rank,
								     token * a.c.topk + k) +
							16 * p,
						&v[j].x, &v[j].y, EP_WAIT_COMBINE_ROW,
						EP_LL_ROUTE_RANK(route));
				}
				if (mine && ok) {
					numbers::load(v[j], f);
#pragma unroll
					for (int n = 0; n < numbers::count; n++) {
						acc[n] = ep_fma_f32(f[n], w, acc[n]);
					}
				}
				left &= left - 1;
			}
		}
	}
	if (mine) {
		*(struct ep_vec8 *)((unsigned char *)a.out_tokens + (size_t)token * a.c.row_bytes +
				    8 * p) = numbers::store(acc);
	}
}

/* Sums 16-byte vector i of a token's rows, all of which have arrived. */
template <int DTYPE>
EP_DEV void ep_ll_reduce_raw(const struct ep_ll_combine_args &a, const struct ep_ll_op &op,
			     const struct ep_ll_term &term, uint32_t token, uint32_t i, bool mine)
{
	typedef struct ep_ll_numbers<DTYPE> numbers;
	const struct ep_ll_common &c = a.c;
	float acc[2 * numbers::count] = {};
	struct ep_vec16 v[EP_LL_REDUCE_BATCH];

	for (uint32_t left = term.valid; left;) {
		uint32_t batch = left;

#pragma unroll
		for (int j = 0; j < EP_LL_REDUCE_BATCH; j++) {
			if (batch) {
				uint32_t k = ep_ctz(batch);
				uint32_t route = ep_shfl_u32(EP_FULL_MASK, term.route, k);

				if (mine && EP_LL_ROUTE_IS_REMOTE(route)) {
					v[j] = ep_ld16_fresh(ep_ll_return_raw(c, op, c.rank,
									      token * c.topk + k) +
							     16 * (size_t)i);
				} else if (mine) {
					v[j] = ep_ld16_nc((const unsigned char *)a.tokens +
							  (size_t)route * c.row_bytes +
							  16 * (size_t)i);
				}
				batch &= batch - 1;
			}
		}
#pragma unroll
		for (int j = 0; j < EP_LL_REDUCE_BATCH; j++) {
			if (left) {
				float w = ep_shfl_f32(EP_FULL_MASK, term.weight, ep_ctz(left));
				float f[2 * numbers::count];
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
	if (mine) {
		struct ep_vec8 lo = numbers::store(acc), hi = numbers::store(acc + numbers::count);
		struct ep_vec16 out = { lo.x, lo.y, hi.x, hi.y };

		ep_st16((unsigned char *)a.out_tokens + (size_t)token * c.row_bytes + 16 * (size_t)i,
			out);
	}
}

/* One part of one token. One warp. */
template <int DTYPE>
EP_DEV void ep_ll_reduce_item(const struct ep_ll_combine_args &a, const struct ep_ll_op &op,
			      uint32_t token, uint32_t part)
{
	const struct ep_ll_common &c = a.c;
	bool packets = EP_LL_WIRE_PACKETS(a.wire);
	uint32_t k = ep_lane(), first, end;
	struct ep_ll_term term;
	bool valid;

	ep_ll_part(c.row_bytes / 16, EP_LL_WIRE_PARTS(a.wire), part, &first, &end);
	term.route = k < c.topk ? c.route[(size_t)token * c.topk + k] : EP_LL_ROUTE_NONE;
	valid = term.route != EP_LL_ROUTE_NONE;
	term.weight = 1.0f;
	if (valid && c.layout == EP_LL_EXPERT_MAJOR) {
		term.weight = a.topk_weights[(size_t)token * c.topk + k];
	}
	if (valid && EP_LL_ROUTE_IS_REMOTE(term.route)) {
		uint32_t r = EP_LL_ROUTE_RANK(term.route);

		valid = ep_ll_active(c, r);
		if (valid && !packets && first < end) {
			valid = ep_ll_wait_flag(c, op,
						ep_ll_flags(c, op, c.rank) +
							((size_t)token * c.topk + k) * EP_LL_MAX_PARTS +
							part,
						EP_WAIT_COMBINE_ROW, r);
		}
	}
	term.valid = ep_ballot(EP_FULL_MASK, valid);
	if (packets) {
		for (uint32_t p0 = 2 * first; p0 < 2 * end; p0 += EP_WARP_SIZE) {
			ep_ll_reduce_packets<DTYPE>(a, op, term, token, p0 + ep_lane(),
						    p0 + ep_lane() < 2 * end);
		}
	} else {
		for (uint32_t v0 = first; v0 < end; v0 += EP_WARP_SIZE) {
			ep_ll_reduce_raw<DTYPE>(a, op, term, token, v0 + ep_lane(),
						v0 + ep_lane() < end);
		}
	}
}

template <int DTYPE> EP_DEV void ep_ll_combine(const struct ep_ll_combine_args &a)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_op op = ep_ll_begin(c);
	uint32_t parts = EP_LL_WIRE_PARTS(a.wire);

	if (ep_block() == 0 && ep_warp() == ep_nwarps() - 1) {
		ep_ll_publish_progress(c, op);
	}
	if (op.aborted) {
		return;
	}
	if (ep_block() < c.send_blocks) {
		ep_ll_combine_send(a, op);
		return;
	}
	for (uint32_t i = (ep_block() - c.send_blocks) * ep_nwarps() + ep_warp();
	     i < c.num_tokens * parts; i += (ep_nblocks() - c.send_blocks) * ep_nwarps()) {
		ep_ll_reduce_item<DTYPE>(a, op, i / parts, i % parts);
	}
}

EP_KERNEL(ep_ll_combine_bf16_kernel, ep_ll_combine_args, EP_LL_MAX_THREADS)
{
	ep_ll_combine<EP_LL_BF16>(a);
}

EP_KERNEL(ep_ll_combine_fp16_kernel, ep_ll_combine_args, EP_LL_MAX_THREADS)
{
	ep_ll_combine<EP_LL_FP16>(a);
}

EP_KERNEL(ep_ll_combine_fp32_kernel, ep_ll_combine_args, EP_LL_MAX_THREADS)
{
	ep_ll_combine<EP_LL_FP32>(a);
}
