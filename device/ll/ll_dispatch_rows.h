/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch, sending one part of one row: a warp holds it in registers and stores it to
 * each destination.
 */
#ifndef EP_DEVICE_LL_DISPATCH_ROWS_H
#define EP_DEVICE_LL_DISPATCH_ROWS_H

#include "device/ll/rows.h"
#include "device/simt/numeric.h"

/* Bits 0..lanes-1 of `hits`, turned so that bit 0 of the result is bit `turn`. */
EP_DEV uint32_t ep_ll_turned_hits(uint32_t hits, uint32_t turn, uint32_t lanes)
{
	uint64_t twice = (uint64_t)hits << lanes | hits;

	return (uint32_t)(twice >> turn) & (uint32_t)(((uint64_t)1 << lanes) - 1);
}

/* The lane that the lowest bit of turned hits stands for. */
EP_DEV uint32_t ep_ll_turned_lane(uint32_t m, uint32_t turn, uint32_t lanes)
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
EP_DEV unsigned char *ep_ll_fanout_row(const struct ep_ll_common &c, const struct ep_op &op,
				       const struct ep_ll_fanout &fanout, uint32_t hits)
{
	uint32_t l = ep_ll_turned_lane(hits, fanout.turn, fanout.lanes);
	uint32_t slot = ep_shfl_u32(EP_FULL_MASK, fanout.slot, l);

	return ep_ll_row(c, op, ep_heap_of(c.g, fanout.first_rank + l),
			 c.g.index * c.max_tokens + slot);
}

/* Where the wire row of one token comes from. */
struct ep_ll_source {
	const unsigned char *token; /* FP8: the quantised tile, in scratch */
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
template <bool FP8>
EP_DEV struct ep_vec16 ep_ll_source_vec(const struct ep_ll_source &source, uint32_t off,
					bool narrow)
{
	if (FP8) {
		struct ep_vec16 v = *(const struct ep_vec16 *)(source.token + (off & ~15u));

		return narrow ? ep_ll_vec_narrow(v, off) : v;
	}
	const unsigned char *p = off < source.token_bytes
					 ? source.token + off
					 : source.scale + (off - source.token_bytes);

	return ep_ll_tensor_load(p, narrow, off < source.bytes);
}

/* Quads [first, end) of the wire row as lines; source offsets begin at quad `origin`. */
template <bool FP8>
EP_DEV void ep_ll_send_lines(const struct ep_ll_common &c, const struct ep_op &op,
			     const struct ep_ll_source &source, const struct ep_ll_fanout &fanout,
			     uint32_t origin, uint32_t first, uint32_t end)
{
	constexpr int N = EP_LL_BATCH_OF(FP8);
	bool narrow = ep_ll_lane_narrow();

	for (uint32_t q = first; q < end; q += N) {
		struct ep_vec16 v[N] EP_UNSET;

		EP_UNROLL()
		for (int j = 0; j < N; j++) {
			if (q + j < end) {
				uint32_t off = (q + j - origin) * EP_LL_QUAD_BYTES +
					       ep_line_offset(ep_lane());

				v[j] = ep_ll_source_vec<FP8>(source, off, narrow);
			}
		}
		for (uint32_t m = fanout.hits; m; m &= m - 1) {
			unsigned char *row = ep_ll_fanout_row(c, op, fanout, m);

			EP_UNROLL()
			for (int j = 0; j < N; j++) {
				if (q + j < end) {
					ep_st_line(row + (size_t)(q + j) * EP_LL_QUAD_LINE_BYTES,
						   v[j], op.epoch, op.epoch);
				}
			}
		}
	}
}

/* The same as bytes; the caller announces the part with flags. */
template <bool FP8>
EP_DEV void ep_ll_send_bytes(const struct ep_ll_common &c, const struct ep_op &op,
			     const struct ep_ll_source &source, const struct ep_ll_fanout &fanout,
			     uint32_t origin, uint32_t first, uint32_t end)
{
	constexpr int N = EP_LL_BATCH_OF(FP8);
	uint32_t last = end * EP_LL_QUAD_VECS, base = origin * EP_LL_QUAD_VECS;

	for (uint32_t v0 = first * EP_LL_QUAD_VECS; v0 < last; v0 += N * EP_WARP_SIZE) {
		struct ep_vec16 v[N] EP_UNSET;

		EP_UNROLL()
		for (int j = 0; j < N; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < last) {
				v[j] = ep_ll_source_vec<FP8>(source, 16 * (i - base), false);
			}
		}
		for (uint32_t m = fanout.hits; m; m &= m - 1) {
			unsigned char *row = ep_ll_fanout_row(c, op, fanout, m);

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

/*
 * Quantises 16 bf16 channels of each lane; 8 lanes share a group of 128. All lanes call it; *scale
 * is the same in the 8 lanes of a group.
 */
EP_DEV struct ep_vec16 ep_ll_quantise(struct ep_vec16 lo, struct ep_vec16 hi, bool round_up,
				      float *scale)
{
	uint32_t w[8] = { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w };
	float f[16], amax = 0.0f, inverse;

	EP_UNROLL()
	for (int i = 0; i < 8; i++) {
		f[2 * i] = ep_bf16_lo_f32(w[i]);
		f[2 * i + 1] = ep_bf16_hi_f32(w[i]);
	}
	EP_UNROLL()
	for (int i = 0; i < 16; i++) {
		float m = f[i] < 0.0f ? -f[i] : f[i];

		amax = m > amax ? m : amax;
	}
	EP_UNROLL()
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

#define EP_LL_TILE_STEPS ((EP_LL_TILE_CHANNELS + 511) / 512)

/* Quantises tile `tile` of a token into the warp's scratch, in the order of the wire. */
EP_DEV void ep_ll_quantise_tile(const struct ep_ll_dispatch_args &a, unsigned char *scratch,
				uint32_t token, uint32_t tile)
{
	const unsigned char *src = (const unsigned char *)a.tokens + (size_t)token * a.token_bytes;
	struct ep_vec16 lo[EP_LL_TILE_STEPS], hi[EP_LL_TILE_STEPS];
	const struct ep_vec16 zero = { 0, 0, 0, 0 };

	EP_UNROLL()
	for (int j = 0; j < EP_LL_TILE_STEPS; j++) {
		uint32_t in_tile = j * 512 + ep_lane() * 16;
		uint32_t channel = tile * EP_LL_TILE_CHANNELS + in_tile;
		bool mine = in_tile < EP_LL_TILE_CHANNELS && channel < a.hidden;

		lo[j] = mine ? ep_ld16_nc(src + 2 * (size_t)channel) : zero;
		hi[j] = mine ? ep_ld16_nc(src + 2 * (size_t)channel + 16) : zero;
	}
	EP_UNROLL()
	for (int j = 0; j < EP_LL_TILE_STEPS; j++) {
		uint32_t in_tile = j * 512 + ep_lane() * 16;
		float scale;
		struct ep_vec16 q = ep_ll_quantise(lo[j], hi[j], a.round_scales, &scale);

		if (in_tile < EP_LL_TILE_CHANNELS) {
			*(struct ep_vec16 *)(scratch + in_tile) = q;
			if ((ep_lane() & 7) == 0) {
				*(uint32_t *)(scratch + EP_LL_TILE_CHANNELS + in_tile / 32) =
					ep_f32_bits(scale);
			}
		}
	}
	if (ep_lane() < (EP_LL_TILE_BYTES - EP_LL_TILE_CHANNELS) / 4 - EP_LL_TILE_GROUPS) {
		*(uint32_t *)(scratch + EP_LL_TILE_CHANNELS + 4 * EP_LL_TILE_GROUPS +
			      4 * ep_lane()) = 0;
	}
	ep_warp_sync(EP_FULL_MASK);
}

#endif
