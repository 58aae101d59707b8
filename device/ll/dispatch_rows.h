/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch: moving one part of one row. The sender holds a piece of the row in
 * registers and stores it to each destination; the receiver stores it to each local expert's row.
 */
#ifndef EP_DEVICE_LL_DISPATCH_ROWS_H
#define EP_DEVICE_LL_DISPATCH_ROWS_H

#include "device/group/wait.h"
#include "device/simt/numeric.h"

#define EP_LL_BATCH 4 /* pieces that a lane keeps in flight */
#define EP_LL_QUAD_VECS (EP_LL_QUAD_BYTES / 16)
#define EP_LL_UNIT_BYTES (EP_LL_FP8_UNIT_QUADS * EP_LL_QUAD_BYTES)

/* What all ranks must agree on besides the size of a row. */
EP_DEV uint32_t ep_ll_kind(const struct ep_ll_dispatch_args &a)
{
	uint32_t quantised = a.out_token_bytes != a.token_bytes;

	return a.c.topk | a.c.layout << 8 | quantised << 12 | a.scale_bytes / 16 << 16;
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

/* Where the wire row of one token comes from. */
struct ep_ll_source {
	const unsigned char *token; /* FP8: the staged unit, in shared memory */
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

/* `size` (8 or 16) bytes of the wire row at `off`; a multiple of `size` never straddles parts. */
template <bool FP8>
EP_DEV struct ep_vec16 ep_ll_source_piece(const struct ep_ll_source &s, uint32_t off, bool half)
{
	struct ep_vec16 v = { 0, 0, 0, 0 };

	if (FP8) {
		return *(const struct ep_vec16 *)(s.token + (half ? off & ~15u : off));
	}
	if (off >= s.bytes) {
		return v;
	}
	const unsigned char *p = off < s.token_bytes ? s.token + off
						     : s.scale + (off - s.token_bytes);

	if (half) {
		struct ep_vec8 h = ep_ld8_nc(p);

		v.x = h.x;
		v.y = h.y;
		return v;
	}
	return ep_ld16_nc(p);
}

/* The 8-byte pieces of a staged unit lie in one half of an aligned vector. */
EP_DEV struct ep_vec16 ep_ll_pick_half(struct ep_vec16 v, uint32_t off)
{
	if (off & 8) {
		v.x = v.z;
		v.y = v.w;
	}
	return v;
}

/* Quads [first, end) of the wire row as lines; source offsets begin at quad `origin`. */
template <bool FP8>
EP_DEV void ep_ll_send_lines(const struct ep_ll_common &c, const struct ep_ll_op &op,
			     const struct ep_ll_source &s, const struct ep_ll_fanout &f,
			     uint32_t origin, uint32_t first, uint32_t end)
{
	bool half = (ep_lane() & 7) == 7;

	for (uint32_t q = first; q < end; q += EP_LL_BATCH) {
		struct ep_vec16 v[EP_LL_BATCH];

#pragma unroll
		for (int j = 0; j < EP_LL_BATCH; j++) {
			if (q + j < end) {
				uint32_t off = (q + j - origin) * EP_LL_QUAD_BYTES +
					       ep_line_offset(ep_lane());

				v[j] = ep_ll_source_piece<FP8>(s, off, half);
				if (FP8 && half) {
					v[j] = ep_ll_pick_half(v[j], off);
				}
			}
		}
		for (uint32_t m = f.hits; m; m &= m - 1) {
			uint32_t l = ep_ll_turned_lane(m, f.turn, f.lanes);
			uint32_t slot = ep_shfl_u32(EP_FULL_MASK, f.slot, l);
			unsigned char *row = ep_ll_row(c, op, f.first_rank + l,
						       c.rank * c.max_tokens + slot);

#pragma unroll
			for (int j = 0; j < EP_LL_BATCH; j++) {
				if (q + j < end) {
					ep_st_line(row + (size_t)(q + j) * EP_LL_QUAD_LINE_BYTES,
						   v[j], op.epoch);
				}
			}
		}
	}
}

/* The same as bytes; the caller announces the part with flags. */
template <bool FP8>
EP_DEV void ep_ll_send_bytes(const struct ep_ll_common &c, const struct ep_ll_op &op,
			     const struct ep_ll_source &s, const struct ep_ll_fanout &f,
			     uint32_t origin, uint32_t first, uint32_t end)
{
	uint32_t last = end * EP_LL_QUAD_VECS, base = origin * EP_LL_QUAD_VECS;

	for (uint32_t v0 = first * EP_LL_QUAD_VECS; v0 < last; v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH];

#pragma unroll
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < last) {
				v[j] = ep_ll_source_piece<FP8>(s, 16 * (i - base), false);
			}
		}
		for (uint32_t m = f.hits; m; m &= m - 1) {
			uint32_t l = ep_ll_turned_lane(m, f.turn, f.lanes);
			uint32_t slot = ep_shfl_u32(EP_FULL_MASK, f.slot, l);
			unsigned char *row = ep_ll_row(c, op, f.first_rank + l,
						       c.rank * c.max_tokens + slot);

#pragma unroll
			for (int j = 0; j < EP_LL_BATCH; j++) {
				uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

				if (i < last) {
					ep_st16(row + 16 * (size_t)i, v[j]);
				}
			}
		}
	}
}

/*
 * Quantises 16 bf16 channels of each lane; 8 lanes share a group of 128. All lanes call it; *scale
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

#define EP_LL_UNIT_STEPS ((EP_LL_FP8_UNIT_CHANNELS + 511) / 512)

/* Quantises unit `u` of a token into the warp's staging buffer, in the order of the wire. */
EP_DEV void ep_ll_stage_unit(const struct ep_ll_dispatch_args &a, unsigned char *staging,
			     uint32_t token, uint32_t u)
{
	const unsigned char *src =
		(const unsigned char *)a.tokens + (size_t)token * a.token_bytes;
	struct ep_vec16 lo[EP_LL_UNIT_STEPS], hi[EP_LL_UNIT_STEPS];
	const struct ep_vec16 zero = { 0, 0, 0, 0 };

#pragma unroll
	for (int j = 0; j < EP_LL_UNIT_STEPS; j++) {
		uint32_t in_unit = j * 512 + ep_lane() * 16;
		uint32_t channel = u * EP_LL_FP8_UNIT_CHANNELS + in_unit;
		bool mine = in_unit < EP_LL_FP8_UNIT_CHANNELS && channel < a.hidden;

		lo[j] = mine ? ep_ld16_nc(src + 2 * (size_t)channel) : zero;
		hi[j] = mine ? ep_ld16_nc(src + 2 * (size_t)channel + 16) : zero;
	}
#pragma unroll
	for (int j = 0; j < EP_LL_UNIT_STEPS; j++) {
		uint32_t in_unit = j * 512 + ep_lane() * 16;
		float scale;
		struct ep_vec16 q = ep_ll_quantise(lo[j], hi[j], a.round_scales, &scale);

		if (in_unit < EP_LL_FP8_UNIT_CHANNELS) {
			*(struct ep_vec16 *)(staging + in_unit) = q;
			if ((ep_lane() & 7) == 0) {
				*(uint32_t *)(staging + EP_LL_FP8_UNIT_CHANNELS + in_unit / 32) =
					ep_f32_bits(scale);
			}
		}
	}
	if (ep_lane() < (EP_LL_UNIT_BYTES - EP_LL_FP8_UNIT_CHANNELS) / 4 - EP_LL_FP8_UNIT_GROUPS) {
		*(uint32_t *)(staging + EP_LL_FP8_UNIT_CHANNELS + 4 * EP_LL_FP8_UNIT_GROUPS +
			      4 * ep_lane()) = 0;
	}
	ep_warp_sync(EP_FULL_MASK);
}

/* Destination of a received row: lane k holds the output row of its expert, or NO_ROW. */
struct ep_ll_placing {
	uint32_t row;
	uint32_t hits;
};

/* Where scale g of an output row goes, row-major or (API 1) column-major within its plane. */
EP_DEV uint32_t *ep_ll_scale_out(const struct ep_ll_dispatch_args &a, uint32_t row, uint32_t g)
{
	uint32_t groups = a.hidden / 128;
	uint32_t *out = (uint32_t *)a.out_scales;

	if (!a.scale_columns) {
		return out + (size_t)row * groups + g;
	}
	uint32_t plane_rows = a.c.layout == EP_LL_EXPERT_MAJOR ? a.c.nranks * a.c.max_tokens
							       : a.c.max_tokens;
	uint32_t plane = row / plane_rows;

	return out + ((size_t)plane * groups + g) * plane_rows + (row - plane * plane_rows);
}

/* Stores a piece of a quantised row: channels, scales or padding. */
EP_DEV void ep_ll_place_fp8(const struct ep_ll_dispatch_args &a, uint32_t row, uint32_t off,
			    struct ep_vec16 v, bool half)
{
	uint32_t u = off / EP_LL_UNIT_BYTES, o = off % EP_LL_UNIT_BYTES;
	uint32_t words[4] = { v.x, v.y, v.z, v.w };

	if (o < EP_LL_FP8_UNIT_CHANNELS) {
		uint32_t channel = u * EP_LL_FP8_UNIT_CHANNELS + o;
		unsigned char *out = (unsigned char *)a.out_tokens + (size_t)row * a.hidden + channel;

		if (channel >= a.hidden) {
			return;
		}
		if (half) {
			struct ep_vec8 h = { v.x, v.y };

			*(struct ep_vec8 *)out = h;
		} else {
			ep_st16(out, v);
		}
		return;
	}
	uint32_t s = (o - EP_LL_FP8_UNIT_CHANNELS) / 4;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint32_t g = u * EP_LL_FP8_UNIT_GROUPS + s + i;

		if (i < (half ? 2 : 4) && s + i < EP_LL_FP8_UNIT_GROUPS && g < a.hidden / 128) {
			*ep_ll_scale_out(a, row, g) = words[i];
		}
	}
}

EP_DEV void ep_ll_place_copy(const struct ep_ll_dispatch_args &a, uint32_t row, uint32_t off,
			     struct ep_vec16 v, bool half)
{
	unsigned char *out;

	if (off < a.out_token_bytes) {
		out = (unsigned char *)a.out_tokens + (size_t)row * a.out_token_bytes + off;
	} else if (off < a.out_token_bytes + a.scale_bytes) {
		out = (unsigned char *)a.out_scales + (size_t)row * a.scale_bytes +
		      (off - a.out_token_bytes);
	} else {
		return;
	}
	if (half) {
		struct ep_vec8 h = { v.x, v.y };

		*(struct ep_vec8 *)out = h;
	} else {
		ep_st16(out, v);
	}
}

/* A batch of received pieces to every placed row. One warp. */
template <bool FP8>
EP_DEV void ep_ll_place(const struct ep_ll_dispatch_args &a, const struct ep_ll_placing &w,
			const uint32_t *off, const struct ep_vec16 *v, uint32_t n, bool half)
{
	for (uint32_t m = w.hits; m; m &= m - 1) {
		uint32_t row = ep_shfl_u32(EP_FULL_MASK, w.row, ep_ctz(m));

#pragma unroll
		for (int j = 0; j < EP_LL_BATCH; j++) {
			if (j < (int)n && FP8) {
				ep_ll_place_fp8(a, row, off[j], v[j], half);
			} else if (j < (int)n) {
				ep_ll_place_copy(a, row, off[j], v[j], half);
			}
		}
	}
}

/* First look at the lines of a part, taken before it is known where they go. */
struct ep_ll_lines {
	struct ep_vec16 v[EP_LL_BATCH];
	bool have[EP_LL_BATCH];
};

EP_DEV void ep_ll_lines_load(const struct ep_ll_op &op, const unsigned char *in, uint32_t q,
			     uint32_t end, struct ep_ll_lines *b)
{
#pragma unroll
	for (int j = 0; j < EP_LL_BATCH; j++) {
		if (q + j < end) {
			b->have[j] = ep_ld_line(in + (size_t)(q + j) * EP_LL_QUAD_LINE_BYTES,
						op.epoch, &b->v[j]);
		}
	}
}

/*
 * Receives quads [first, end) sent as lines; `b` holds the first batch. False when the source
 * failed on the way: what had arrived is placed, the rest is not.
 */
template <bool FP8>
EP_DEV bool ep_ll_recv_lines(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			     const struct ep_ll_placing &w, const unsigned char *in, uint32_t src,
			     uint32_t first, uint32_t end, struct ep_ll_lines *b)
{
	bool half = (ep_lane() & 7) == 7;
	uint32_t off[EP_LL_BATCH];

	for (uint32_t q = first; q < end; q += EP_LL_BATCH) {
		if (q != first) {
			ep_ll_lines_load(op, in, q, end, b);
		}
#pragma unroll
		for (int j = 0; j < EP_LL_BATCH; j++) {
			const unsigned char *quad = in + (size_t)(q + j) * EP_LL_QUAD_LINE_BYTES;

			off[j] = (q + j) * EP_LL_QUAD_BYTES + ep_line_offset(ep_lane());
			if (q + j >= end) {
				continue;
			}
			if (ep_all(EP_FULL_MASK, b->have[j])) {
				ep_ld_line_settle(quad, &b->v[j]);
			} else if (!ep_ll_wait_quad(a.c, op, quad, &b->v[j], EP_WAIT_DISPATCH_ROW,
						    src)) {
				return false;
			}
		}
		ep_ll_place<FP8>(a, w, off, b->v, ep_min_u32(end - q, EP_LL_BATCH), half);
	}
	return true;
}

/* Receives quads [first, end) sent as bytes, whose flag has arrived. */
template <bool FP8>
EP_DEV void ep_ll_recv_bytes(const struct ep_ll_dispatch_args &a, const struct ep_ll_placing &w,
			     const unsigned char *in, uint32_t first, uint32_t end)
{
	uint32_t last = end * EP_LL_QUAD_VECS;

	for (uint32_t v0 = first * EP_LL_QUAD_VECS; v0 < last; v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH];
		uint32_t off[EP_LL_BATCH], n = 0;

#pragma unroll
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			off[j] = 16 * i;
			if (i < last) {
				v[j] = ep_ld16_fresh(in + 16 * (size_t)i);
				n++;
			}
		}
		ep_ll_place<FP8>(a, w, off, v, n, false);
	}
}

#endif
