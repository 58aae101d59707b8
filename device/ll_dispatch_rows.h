/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch: moving one part of one row. The sender holds a piece of the row in
 * registers and stores it to each destination; the receiver stores it to each local expert's row.
 */
#ifndef EP_DEVICE_LL_DISPATCH_ROWS_H
#define EP_DEVICE_LL_DISPATCH_ROWS_H

#include "ll_common.h"
#include "numeric.h"

#define EP_LL_BATCH 4 /* 16-byte accesses that a lane keeps in flight */

/* Where one token's row goes: lane d holds the slot at destination d of this pass, or NO_ROW. */
struct ep_ll_fanout {
	uint32_t first_rank; /* lane l stands for rank first_rank + l */
	uint32_t slot;
	uint32_t hits; /* ballot of lanes with a slot */
};

EP_DEV unsigned char *ep_ll_raw_row(const struct ep_ll_common &c, const struct ep_ll_op &op,
				    uint32_t d, uint32_t src, uint32_t slot)
{
	return ep_ll_raw(c, op, d) + ((size_t)src * c.max_tokens + slot) * c.row_bytes;
}

EP_DEV unsigned char *ep_ll_packet_row(const struct ep_ll_dispatch_args &a,
				       const struct ep_ll_op &op, uint32_t d, uint32_t src,
				       uint32_t slot)
{
	return ep_ll_packets(a.c, op, d) + a.packet_row_off +
	       ((size_t)src * a.packet_rows + slot) * 2 * a.c.row_bytes;
}

EP_DEV uint32_t *ep_ll_row_flag(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t d,
				uint32_t src, uint32_t slot, uint32_t part)
{
	return ep_ll_flags(c, op, d) +
	       ((size_t)src * c.max_tokens + slot) * EP_LL_MAX_PARTS + part;
}

/* 16-byte vector v of a token's wire row: token bytes, then forwarded scales. */
EP_DEV const unsigned char *ep_ll_source_vec(const struct ep_ll_dispatch_args &a, uint32_t token,
					     uint32_t byte)
{
	return byte < a.token_bytes
		       ? (const unsigned char *)a.tokens + (size_t)token * a.token_bytes + byte
		       : (const unsigned char *)a.scales + (size_t)token * a.scale_bytes +
				 (byte - a.token_bytes);
}

/* Copies vectors [first, end) of the row to every destination, as packets of 8 data bytes. */
EP_DEV void ep_ll_send_packets(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			       const struct ep_ll_fanout &f, uint32_t token, uint32_t first,
			       uint32_t end)
{
	for (uint32_t p0 = 2 * first; p0 < 2 * end; p0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec8 v[EP_LL_BATCH];

#pragma unroll
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t p = p0 + j * EP_WARP_SIZE + ep_lane();

			if (p < 2 * end) {
				v[j] = ep_ld8_nc(ep_ll_source_vec(a, token, 8 * p));
			}
		}
		for (uint32_t m = f.hits; m; m &= m - 1) {
			uint32_t l = ep_ctz(m);
			unsigned char *row =
				ep_ll_packet_row(a, op, f.first_rank + l, a.c.rank,
						 ep_shfl_u32(EP_FULL_MASK, f.slot, l));

#pragma unroll
			for (int j = 0; j < EP_LL_BATCH; j++) {
				uint32_t p = p0 + j * EP_WARP_SIZE + ep_lane();

				if (p < 2 * end) {
					ep_st_packet(row + 16 * p, v[j].x, v[j].y, op.epoch);
				}
			}
		}
	}
}

/* The same as raw bytes; the caller announces the part with a flag. */
EP_DEV void ep_ll_send_raw(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			   const struct ep_ll_fanout &f, uint32_t token, uint32_t first,
			   uint32_t end)
{
	for (uint32_t v0 = first; v0 < end; v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH];

#pragma unroll
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < end) {
				v[j] = ep_ld16_nc(ep_ll_source_vec(a, token, 16 * i));
			}
		}
		for (uint32_t m = f.hits; m; m &= m - 1) {
			uint32_t l = ep_ctz(m);
			unsigned char *row = ep_ll_raw_row(a.c, op, f.first_rank + l, a.c.rank,
							   ep_shfl_u32(EP_FULL_MASK, f.slot, l));

#pragma unroll
			for (int j = 0; j < EP_LL_BATCH; j++) {
				uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

				if (i < end) {
					ep_st16(row + 16 * i, v[j]);
				}
			}
		}
	}
}

/*
 * Quantises 16 bf16 channels of each lane: 8 lanes share a group of 128. All lanes call it; *scale
 * is the same in the 8 lanes of a group.
 */
EP_DEV struct ep_vec16 ep_ll_quantise(struct ep_vec16 lo, struct ep_vec16 hi, bool round_up,
				      float *scale)
{
	uint32_t w[8] = { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w };
	float f[16], amax = 0.0f, inverse;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		f[2 * i] = ep_bf16_lo_f32(w[i]);
		f[2 * i + 1] = ep_bf16_hi_f32(w[i]);
	}
#pragma unroll
	for (int i = 0; i < 16; i++) {
		float m = f[i] < 0.0f ? -f[i] : f[i];

		amax = m > amax ? m : amax;
	}
#pragma unroll
	for (int x = 1; x < 8; x *= 2) {
		float m = ep_shfl_xor_f32(EP_FULL_MASK, amax, x);

		amax = m > amax ? m : amax;
	}
	*scale = ep_e4m3_scale(amax, round_up, &inverse);

	struct ep_vec16 q;

	q.x = ep_f32x4_e4m3(f[0] * inverse, f[1] * inverse, f[2] * inverse, f[3] * inverse);
	q.y = ep_f32x4_e4m3(f[4] * inverse, f[5] * inverse, f[6] * inverse, f[7] * inverse);
	q.z = ep_f32x4_e4m3(f[8] * inverse, f[9] * inverse, f[10] * inverse, f[11] * inverse);
	q.w = ep_f32x4_e4m3(f[12] * inverse, f[13] * inverse, f[14] * inverse, f[15] * inverse);
	return q;
}

/*
 * Quantises vectors [first, end) of the FP8 row (whole groups of 8 vectors) and sends them with
 * their scales: scale g lies at byte H + 4 g of a raw row, in word 2 H + 8 g of a packet row.
 */
EP_DEV void ep_ll_send_fp8(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			   const struct ep_ll_fanout &f, bool packets, uint32_t token,
			   uint32_t first, uint32_t end)
{
	const unsigned char *src =
		(const unsigned char *)a.tokens + (size_t)token * a.token_bytes;

	for (uint32_t v0 = first; v0 < end; v0 += EP_WARP_SIZE) {
		uint32_t i = v0 + ep_lane();
		bool mine = i < end;
		struct ep_vec16 lo = { 0, 0, 0, 0 }, hi = { 0, 0, 0, 0 }, q;
		float scale;

		if (mine) {
			lo = ep_ld16_nc(src + 32 * (size_t)i);
			hi = ep_ld16_nc(src + 32 * (size_t)i + 16);
		}
		q = ep_ll_quantise(lo, hi, a.round_scales, &scale);

		bool leader = mine && (ep_lane() & 7) == 0;
		uint32_t bits = ep_f32_bits(scale);

		for (uint32_t m = f.hits; m; m &= m - 1) {
			uint32_t l = ep_ctz(m), d = f.first_rank + l;
			uint32_t slot = ep_shfl_u32(EP_FULL_MASK, f.slot, l);

			if (packets) {
				unsigned char *row = ep_ll_packet_row(a, op, d, a.c.rank, slot);

				if (mine) {
					ep_st_packet(row + 32 * i, q.x, q.y, op.epoch);
					ep_st_packet(row + 32 * i + 16, q.z, q.w, op.epoch);
				}
				if (leader) {
					ep_st_word(row + 2 * a.hidden + i, bits, op.epoch);
				}
			} else {
				unsigned char *row = ep_ll_raw_row(a.c, op, d, a.c.rank, slot);

				if (mine) {
					ep_st16(row + 16 * i, q);
				}
				if (leader) {
					*(uint32_t *)(row + a.hidden + i / 2) = bits;
				}
			}
		}
	}
}

/* Destination of a received row: lane k holds the output row of its expert, or NO_ROW. */
struct ep_ll_placing {
	uint32_t row;
	uint32_t hits;
};

EP_DEV unsigned char *ep_ll_output_vec(const struct ep_ll_dispatch_args &a, uint32_t row,
				       uint32_t byte)
{
	return byte < a.out_token_bytes
		       ? (unsigned char *)a.out_tokens + (size_t)row * a.out_token_bytes + byte
		       : (unsigned char *)a.out_scales + (size_t)row * a.scale_bytes +
				 (byte - a.out_token_bytes);
}

/* Stores one packet's 8 bytes at byte `at` of every placed row. */
EP_DEV void ep_ll_place8(const struct ep_ll_dispatch_args &a, const struct ep_ll_placing &w,
			 bool mine, uint32_t at, struct ep_vec8 v)
{
	for (uint32_t m = w.hits; m; m &= m - 1) {
		uint32_t row = ep_shfl_u32(EP_FULL_MASK, w.row, ep_ctz(m));

		if (mine) {
			*(struct ep_vec8 *)ep_ll_output_vec(a, row, at) = v;
		}
	}
}

/* Receives packets of vectors [first, end). False when the source failed on the way. */
EP_DEV bool ep_ll_recv_packets(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			       const struct ep_ll_placing &w, uint32_t src, uint32_t slot,
			       uint32_t first, uint32_t end)
{
	const unsigned char *in = ep_ll_packet_row(a, op, a.c.rank, src, slot);
	bool ok = true;

	for (uint32_t p0 = 2 * first; p0 < 2 * end; p0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec8 v[EP_LL_BATCH];
		bool have[EP_LL_BATCH];

#pragma unroll
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t p = p0 + j * EP_WARP_SIZE + ep_lane();

			have[j] = p >= 2 * end || ep_ld_packet(in + 16 * p, op.epoch, &v[j].x, &v[j].y);
		}
#pragma unroll
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t p = p0 + j * EP_WARP_SIZE + ep_lane();

			if (!have[j]) {
				ok &= ep_ll_wait_packet(a.c, op, in + 16 * p, &v[j].x, &v[j].y,
							EP_WAIT_DISPATCH_ROW, src);
			}
			ep_ll_place8(a, w, p < 2 * end && ok, 8 * p, v[j]);
		}
	}
	return ok;
}

EP_DEV bool ep_ll_wait_part(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t src,
			    uint32_t slot, uint32_t part)
{
	bool ok = true;

	if (ep_lane() == 0) {
		ok = ep_ll_wait_flag(c, op, ep_ll_row_flag(c, op, c.rank, src, slot, part),
				     EP_WAIT_DISPATCH_ROW, src);
	}
	return ep_all(EP_FULL_MASK, ok);
}

EP_DEV void ep_ll_recv_raw(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			   const struct ep_ll_placing &w, uint32_t src, uint32_t slot,
			   uint32_t first, uint32_t end)
{
	const unsigned char *in = ep_ll_raw_row(a.c, op, a.c.rank, src, slot);

	for (uint32_t v0 = first; v0 < end; v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH];

#pragma unroll
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < end) {
				v[j] = ep_ld16_fresh(in + 16 * i);
			}
		}
		for (uint32_t m = w.hits; m; m &= m - 1) {
			uint32_t row = ep_shfl_u32(EP_FULL_MASK, w.row, ep_ctz(m));

#pragma unroll
			for (int j = 0; j < EP_LL_BATCH; j++) {
				uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

				if (i < end) {
					ep_st16(ep_ll_output_vec(a, row, 16 * i), v[j]);
				}
			}
		}
	}
}

/* Where scale g of an output row goes, row-major or (API 1) column-major within its plane. */
EP_DEV uint32_t *ep_ll_scale_out(const struct ep_ll_dispatch_args &a, uint32_t row, uint32_t g)
{
	uint32_t groups = a.hidden / 128;
	uint32_t plane_rows = a.c.layout == EP_LL_EXPERT_MAJOR ? a.c.nranks * a.c.max_tokens
							       : a.c.max_tokens;
	uint32_t plane = row / plane_rows;
	size_t at = a.scale_columns ? ((size_t)plane * groups + g) * plane_rows + row % plane_rows
				    : (size_t)row * groups + g;

	return (uint32_t *)a.out_scales + at;
}

/* Receives vectors [first, end) of a quantised row and the scales of their groups. */
EP_DEV bool ep_ll_recv_fp8(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			   const struct ep_ll_placing &w, bool packets, uint32_t src,
			   uint32_t slot, uint32_t first, uint32_t end)
{
	const unsigned char *pk = ep_ll_packet_row(a, op, a.c.rank, src, slot);
	const unsigned char *raw = ep_ll_raw_row(a.c, op, a.c.rank, src, slot);
	bool ok = packets ? ep_ll_recv_packets(a, op, w, src, slot, first, end) : true;

	if (!packets) {
		ep_ll_recv_raw(a, op, w, src, slot, first, end);
	}
	for (uint32_t g0 = first / 8; g0 < end / 8; g0 += EP_WARP_SIZE) {
		uint32_t g = g0 + ep_lane(), bits = 0;
		bool mine = g < end / 8;

		if (mine && packets) {
			ok &= ep_ll_wait_word(a.c, op, pk + 2 * a.hidden + 8 * g, &bits,
					      EP_WAIT_DISPATCH_ROW, src);
		} else if (mine) {
			bits = *(const uint32_t *)(raw + a.hidden + 4 * g);
		}
		for (uint32_t m = w.hits; m; m &= m - 1) {
			uint32_t row = ep_shfl_u32(EP_FULL_MASK, w.row, ep_ctz(m));

			if (mine && ok) {
				*ep_ll_scale_out(a, row, g) = bits;
			}
		}
	}
	return ok;
}

#endif
