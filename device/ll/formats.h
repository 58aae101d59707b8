/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low latency: the formats of rows, one struct for each. A kernel takes one as its template
 * argument; the host has what it needs of them in a table (plugin/ep/ll/ll_plan.c).
 *
 * A quad can be read by itself. Where a lane's vec lies in it, `off`, follows from ep_line_offset()
 * for lines, and is 16 * lane for bytes.
 *
 *   copied   the bytes of the caller's row, and behind them those of its scales
 *   e4m3     448 elements, 4 scale words, 16 bytes of zeros
 *   e2m1     832 elements, 13 scale words, 1 / global as fp32, 8 bytes of zeros
 *
 * Two quads of e4m3 are a tile, which has 7 scale words: words 0 to 3 lie in its first quad and
 * words 3 to 6 in its second, as both have elements of word 3. A scale word is
 *
 *   FP8      the fp32 scale of 128 elements
 *   MXFP8    four e8m0 scales, each of 32 elements
 *   NVFP4    four e4m3 scales, each of 16 elements
 *
 * An element stands for itself times its scale, in NVFP4 also times 1 / global.
 */
#ifndef EP_DEVICE_LL_FORMATS_H
#define EP_DEVICE_LL_FORMATS_H

#include "device/group/numbers.h"
#include "device/ll/rows.h"

/* What quantising needs beside the row. */
struct ep_ll_quantiser {
	bool round_scales; /* FP8: scales are powers of two */
	float global;      /* NVFP4, and what follows from it: */
	float reciprocal;  /* 0 of 0 */
	float least;
};

EP_DEV struct ep_ll_quantiser ep_ll_quantiser_make(bool round_scales, float global)
{
	float reciprocal = global != 0.0f ? 1.0f / global : 0.0f;
	struct ep_ll_quantiser z = { round_scales, global, reciprocal, ep_nvfp4_least(reciprocal) };

	return z;
}

/* 16 bf16 elements as fp32. */
EP_DEV void ll_elements(struct ep_vec16 lo, struct ep_vec16 hi, float *f)
{
	uint32_t w[8] = { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w };

	EP_UNROLL()
	for (int i = 0; i < 8; i++) {
		f[2 * i] = ep_bf16_lo_f32(w[i]);
		f[2 * i + 1] = ep_bf16_hi_f32(w[i]);
	}
}

/*
 * The four bytes at `at` of a quad, of which `vec` is this lane's part; at is a multiple of 4 that
 * each lane chooses, from `first` on, which is 416 or 448. All lanes.
 */
template <bool LINES> EP_DEV uint32_t ll_quad_word(struct ep_vec16 vec, uint32_t first, uint32_t at)
{
	bool narrow = LINES && at >= 448;
	uint32_t lane = narrow ? 7 + ((at - 448) & ~7u) : at / 16 + (LINES ? 3 : 0);
	uint32_t i = at >> 2 & (narrow ? 1 : 3);
	uint32_t x = ep_shfl_u32(EP_FULL_MASK, vec.x, lane);
	uint32_t y = ep_shfl_u32(EP_FULL_MASK, vec.y, lane);

	if (LINES && first >= 448) {
		return i ? y : x;
	}
	uint32_t z = ep_shfl_u32(EP_FULL_MASK, vec.z, lane);
	uint32_t w = ep_shfl_u32(EP_FULL_MASK, vec.w, lane);

	return i < 2 ? (i ? y : x) : (i == 2 ? z : w);
}

/* ---- rows that are copied ---- */

struct ep_ll_copied {
	enum {
		quantised = 0,
		tile_quads = 1
	};
};

/* Numbers that combine adds as they are. */
template <int DTYPE> struct ep_ll_numbers : ep_ll_copied {
	typedef struct ep_numbers<DTYPE> numbers;
	enum {
		sums = 2 * numbers::count /* of a vec */
	};

	/* Adds `vec`, times the row's weight, to the lane's sums. */
	template <bool LINES>
	EP_DEV void add(float *sum, const struct ep_vec16 &vec, uint32_t, uint32_t, float weight,
			bool counts)
	{
		struct ep_vec8 lo = { vec.x, vec.y }, hi = { vec.z, vec.w };
		float f[sums];

		if (!counts) {
			return;
		}
		numbers::load(lo, f);
		numbers::load(hi, f + numbers::count);
		EP_UNROLL()
		for (int n = 0; n < sums; n++) {
			sum[n] = ep_fma_f32(f[n], weight, sum[n]);
		}
	}

	/* Stores the sums of the vec at `off` of quad `quad` to `out`, a row of row_bytes. */
	EP_DEV void store(unsigned char *out, uint32_t row_bytes, uint32_t quad, uint32_t off,
			  bool narrow, const float *sum)
	{
		struct ep_vec8 lo = numbers::store(sum), hi = numbers::store(sum + numbers::count);
		struct ep_vec16 v = { lo.x, lo.y, hi.x, hi.y };
		uint32_t at = quad * EP_QUAD_BYTES + off;

		if (at < row_bytes) {
			ep_quad_store(out + at, v, narrow);
		}
	}
};

/* bf16 sums of 16 elements, to the 32 bytes at p. */
EP_DEV void ll_bf16_store(unsigned char *p, const float *sum)
{
	EP_UNROLL()
	for (int i = 0; i < 16; i += 8) {
		struct ep_vec16 v = { ep_f32_bf16_pair(sum[i], sum[i + 1]),
				      ep_f32_bf16_pair(sum[i + 2], sum[i + 3]),
				      ep_f32_bf16_pair(sum[i + 4], sum[i + 5]),
				      ep_f32_bf16_pair(sum[i + 6], sum[i + 7]) };

		ep_st16(p + 2 * i, v);
	}
}

/* N vecs of a row of bf16 at p, zeros where there are none. Nothing waits for the loads. */
template <int N> EP_DEV void ll_own_load(struct ep_vec16 *raw, const unsigned char *p, bool there)
{
	const struct ep_vec16 zero = { 0, 0, 0, 0 };

	EP_UNROLL()
	for (int i = 0; i < N; i++) {
		raw[i] = there ? ep_ld16_nc(p + 16 * i) : zero;
	}
}

/* ---- e4m3 ---- */

template <class SCALE> struct ep_ll_e4m3 {
	enum {
		quantised = 1,
		tile_quads = EP_LL_TILE_QUADS,
		payload = EP_LL_E4M3_ELEMENTS, /* bytes of a quad, */
		elements = EP_LL_E4M3_ELEMENTS,
		scale_words = 4, /* and what follows them */
		sums = 16,       /* of a vec */
		own_vecs = 2     /* of bf16, of a vec */
	};

	/* The index of scale word `i` of a quad among those of the row. */
	EP_DEV uint32_t scale_index(uint32_t quad, uint32_t i)
	{
		return quad / 2 * 7 + (quad & 1) * 3 + i;
	}

	/* Is the word in no quad before? Only such words are stored, each by one warp. */
	EP_DEV bool scale_new(uint32_t quad, uint32_t i)
	{
		return i != 0 || (quad & 1) == 0;
	}

	/*
	 * Quantises 16 elements of each lane, the tile's from element 16 * i on, into `tile`, if it
	 * has these. All lanes, with ascending i.
	 */
	EP_DEV void quantise(const struct ep_ll_quantiser &z, struct ep_vec16 lo,
			     struct ep_vec16 hi, uint32_t i, unsigned char *tile)
	{
		uint32_t second = i >= payload / 16, scale;
		float f[16], amax = 0.0f, inverse;
		struct ep_vec16 q;

		ll_elements(lo, hi, f);
		EP_UNROLL()
		for (int n = 0; n < 16; n++) {
			amax = SCALE::larger(amax, f[n]);
		}
		EP_UNROLL()
		for (int x = 1; x < SCALE::lanes; x *= 2) {
			amax = SCALE::larger(amax, ep_shfl_xor_f32(EP_FULL_MASK, amax, x));
		}
		scale = SCALE::make(z, amax, &inverse);

		q.x = ep_f32x4_e4m3(f[0] * inverse, f[1] * inverse, f[2] * inverse, f[3] * inverse);
		q.y = ep_f32x4_e4m3(f[4] * inverse, f[5] * inverse, f[6] * inverse, f[7] * inverse);
		q.z = ep_f32x4_e4m3(f[8] * inverse, f[9] * inverse, f[10] * inverse,
				    f[11] * inverse);
		q.w = ep_f32x4_e4m3(f[12] * inverse, f[13] * inverse, f[14] * inverse,
				    f[15] * inverse);
		if (i >= 2 * payload / 16) {
			return;
		}
		*(struct ep_vec16 *)(tile + 16 * i + second * (EP_QUAD_BYTES - payload)) = q;
		if (i % SCALE::lanes == 0) {
			uint32_t word = i / 8, byte = i % 8 / SCALE::lanes;

			if (word <= 3) {
				SCALE::store(tile + payload + 4 * word + byte, scale);
			}
			if (word >= 3) {
				SCALE::store(tile + EP_QUAD_BYTES + payload + 4 * (word - 3) + byte,
					     scale);
			}
		}
	}

	/* What of a tile is neither elements nor scales. */
	EP_DEV void finish(const struct ep_ll_quantiser &, unsigned char *tile)
	{
		if (ep_lane() < 8) {
			*(uint32_t *)(tile + ep_lane() / 4 * EP_QUAD_BYTES + payload +
				      4 * scale_words + ep_lane() % 4 * 4) = 0;
		}
	}

	template <bool LINES>
	EP_DEV void add(float *sum, const struct ep_vec16 &vec, uint32_t quad, uint32_t off,
			float weight, bool counts)
	{
		uint32_t i =
			(quad & 1) * (payload / 16) + off / 16; /* of 16 elements in the tile */
		uint32_t word = off < payload ? i / 8 - (quad & 1) * 3 : 0;
		float w = SCALE::value(ll_quad_word<LINES>(vec, payload, payload + 4 * word), i) *
			  weight;
		const uint32_t q[4] = { vec.x, vec.y, vec.z, vec.w };

		EP_UNROLL()
		for (int j = 0; counts && j < 4; j++) {
			float f[4];

			ep_e4m3x4_f32(q[j], f);
			EP_UNROLL()
			for (int n = 0; n < 4; n++) {
				sum[4 * j + n] = ep_fma_f32(f[n], w, sum[4 * j + n]);
			}
		}
	}

	/*
	 * Which 16 elements of its tile a lane has of a quad that is not on the wire: those of the
	 * vec at `off`, and lanes without one the rest of the group that the quad shares with the
	 * other one.
	 */
	template <bool LINES> EP_DEV uint32_t own_at(uint32_t quad, uint32_t off)
	{
		uint32_t spare = LINES ? ep_lane() / 8 : ep_lane() - payload / 16;
		uint32_t i = off < payload ? off / 16
					   : (quad & 1 ? spare - 4 : spare + payload / 16);

		return i + (quad & 1) * (payload / 16);
	}

	/* The lane that has those elements. */
	template <bool LINES> EP_DEV uint32_t own_lane(uint32_t quad, uint32_t at)
	{
		uint32_t i = at - (quad & 1) * (payload / 16);

		if (i < payload / 16) {
			return LINES ? i + i / 7 : i;
		}
		i = quad & 1 ? at - 24 : i - payload / 16;
		return LINES ? 8 * i + 7 : payload / 16 + i;
	}

	template <bool LINES>
	EP_DEV void own_load(struct ep_vec16 *raw, const unsigned char *row, uint32_t row_bytes,
			     uint32_t quad, uint32_t off)
	{
		uint32_t at = 2 * (quad / 2 * 2 * elements + 16 * own_at<LINES>(quad, off));

		ll_own_load<own_vecs>(raw, row + at, at < row_bytes);
	}

	/*
	 * Adds the lane's vec of a row that own_load() has loaded, as a reader gets it. All lanes.
	 */
	template <bool LINES>
	EP_DEV void add_own(float *sum, const struct ep_vec16 *raw, const struct ep_ll_quantiser &z,
			    uint32_t quad, uint32_t off, float weight)
	{
		uint32_t at = own_at<LINES>(quad, off), scale;
		float f[16], amax = 0.0f, inverse, w;

		ll_elements(raw[0], raw[1], f);
		EP_UNROLL()
		for (int n = 0; n < 16; n++) {
			amax = SCALE::larger(amax, f[n]);
		}
		EP_UNROLL()
		for (int x = 1; x < SCALE::lanes; x *= 2) {
			amax = SCALE::larger(amax, ep_shfl_f32(EP_FULL_MASK, amax,
							       own_lane<LINES>(quad, at ^ x)));
		}
		scale = SCALE::make(z, amax, &inverse);
		w = SCALE::whole(scale) * weight;
		EP_UNROLL()
		for (int j = 0; j < 16; j += 4) {
			float g[4];

			ep_e4m3x4_f32(ep_f32x4_e4m3(f[j] * inverse, f[j + 1] * inverse,
						    f[j + 2] * inverse, f[j + 3] * inverse),
				      g);
			EP_UNROLL()
			for (int n = 0; n < 4; n++) {
				sum[j + n] = ep_fma_f32(g[n], w, sum[j + n]);
			}
		}
	}

	EP_DEV void store(unsigned char *out, uint32_t row_bytes, uint32_t quad, uint32_t off, bool,
			  const float *sum)
	{
		uint32_t at = 2 * (quad * elements + off);

		if (off < payload && at < row_bytes) {
			ll_bf16_store(out + at, sum);
		}
	}
};

/* One fp32 for 8 lanes' elements. */
struct ep_ll_fp8_scale {
	enum {
		lanes = 8
	};
	/* A NaN counts for nothing, and stays one. */
	EP_DEV float larger(float amax, float f)
	{
		float m = f < 0.0f ? -f : f;

		return m > amax ? m : amax;
	}
	EP_DEV uint32_t make(const struct ep_ll_quantiser &z, float amax, float *inverse)
	{
		return ep_f32_bits(ep_e4m3_scale(amax, z.round_scales, inverse));
	}
	EP_DEV void store(unsigned char *p, uint32_t scale)
	{
		*(uint32_t *)p = scale;
	}
	EP_DEV float value(uint32_t word, uint32_t)
	{
		return ep_bits_f32(word);
	}
	EP_DEV float whole(uint32_t scale)
	{
		return ep_bits_f32(scale);
	}
};

/* One byte for 2 lanes' elements. */
struct ep_ll_mxfp8_scale {
	enum {
		lanes = 2
	};
	EP_DEV float larger(float amax, float f)
	{
		return ep_amax(amax, f);
	}
	EP_DEV uint32_t make(const struct ep_ll_quantiser &, float amax, float *inverse)
	{
		return ep_e8m0_scale(amax, inverse);
	}
	EP_DEV void store(unsigned char *p, uint32_t scale)
	{
		*p = (unsigned char)scale;
	}
	EP_DEV float value(uint32_t word, uint32_t i)
	{
		return ep_e8m0_f32(word >> (i / 2 % 4 * 8) & 0xff);
	}
	EP_DEV float whole(uint32_t scale)
	{
		return ep_e8m0_f32(scale);
	}
};

typedef struct ep_ll_e4m3<struct ep_ll_fp8_scale> ep_ll_fp8;
typedef struct ep_ll_e4m3<struct ep_ll_mxfp8_scale> ep_ll_mxfp8;

/* ---- e2m1 ---- */

struct ep_ll_nvfp4 {
	enum {
		quantised = 1,
		tile_quads = 1,
		payload = EP_LL_E2M1_ELEMENTS / 2,
		elements = EP_LL_E2M1_ELEMENTS,
		scale_words = EP_LL_E2M1_ELEMENTS / 64,
		sums = 32,
		own_vecs = 4
	};

	EP_DEV uint32_t scale_index(uint32_t quad, uint32_t i)
	{
		return quad * scale_words + i;
	}

	EP_DEV bool scale_new(uint32_t, uint32_t)
	{
		return true;
	}

	EP_DEV void quantise(const struct ep_ll_quantiser &z, struct ep_vec16 lo,
			     struct ep_vec16 hi, uint32_t i, unsigned char *tile)
	{
		uint32_t scale;
		struct ep_vec8 q = ep_nvfp4_quantise(lo, hi, z.global, z.least, &scale);

		if (i < elements / 16) {
			*(struct ep_vec8 *)(tile + 8 * i) = q;
			tile[payload + i] = (unsigned char)scale;
		}
	}

	EP_DEV void finish(const struct ep_ll_quantiser &z, unsigned char *tile)
	{
		if (ep_lane() < 3) {
			*(uint32_t *)(tile + payload + 4 * (scale_words + ep_lane())) =
				ep_lane() == 0 ? ep_f32_bits(z.reciprocal) : 0;
		}
	}

	template <bool LINES>
	EP_DEV void add(float *sum, const struct ep_vec16 &vec, uint32_t, uint32_t off,
			float weight, bool counts)
	{
		uint32_t at = off < payload ? off / 8 & ~3u : 0;
		uint32_t two = ll_quad_word<LINES>(vec, payload, payload + at) >> (off & 16);
		float w =
			ep_bits_f32(ll_quad_word<LINES>(vec, payload, payload + 4 * scale_words)) *
			weight;
		const uint32_t q[4] = { vec.x, vec.y, vec.z, vec.w };
		float scale[4];

		ep_e4m3x4_f32(two & 0xffff, scale);
		EP_UNROLL()
		for (int j = 0; counts && j < 4; j++) {
			float f[8], s = scale[j / 2] * w;

			ep_e2m1x8_f32(q[j], f);
			EP_UNROLL()
			for (int n = 0; n < 8; n++) {
				sum[8 * j + n] = ep_fma_f32(f[n], s, sum[8 * j + n]);
			}
		}
	}

	template <bool LINES>
	EP_DEV void own_load(struct ep_vec16 *raw, const unsigned char *row, uint32_t row_bytes,
			     uint32_t quad, uint32_t off)
	{
		uint32_t at = 2 * (quad * elements + 2 * off);

		ll_own_load<own_vecs>(raw, row + at, off < payload && at < row_bytes);
	}

	template <bool LINES>
	EP_DEV void add_own(float *sum, const struct ep_vec16 *raw, const struct ep_ll_quantiser &z,
			    uint32_t, uint32_t, float weight)
	{
		float w = z.reciprocal * weight;

		EP_UNROLL()
		for (int j = 0; j < 2; j++) {
			float f[16], s = ep_nvfp4_values(raw[2 * j], raw[2 * j + 1], z.global,
							 z.least, f) *
					 w;

			EP_UNROLL()
			for (int n = 0; n < 16; n++) {
				sum[16 * j + n] = ep_fma_f32(f[n], s, sum[16 * j + n]);
			}
		}
	}

	EP_DEV void store(unsigned char *out, uint32_t row_bytes, uint32_t quad, uint32_t off, bool,
			  const float *sum)
	{
		uint32_t at = 2 * (quad * elements + 2 * off);

		if (off < payload && at < row_bytes) {
			ll_bf16_store(out + at, sum);
			ll_bf16_store(out + at + 32, sum + 16);
		}
	}
};

/* ---- any format that quantises ---- */

/* The lane's share of what a tile is made of: elements 16 * lane and 512 + 16 * lane of it. */
struct ep_ll_raw_tile {
	struct ep_vec16 lo[2];
	struct ep_vec16 hi[2];
};

_Static_assert(EP_LL_TILE_QUADS *EP_LL_E4M3_ELEMENTS <= 1024 && EP_LL_E2M1_ELEMENTS <= 1024,
	       "a lane has two shares of a tile");

/*
 * Tile `tile` of a row of bf16, `row_bytes` long. Behind its end are zeros. Nothing waits for the
 * loads.
 */
template <class F>
EP_DEV struct ep_ll_raw_tile ep_ll_raw_tile_load(const unsigned char *row, uint32_t row_bytes,
						 uint32_t tile)
{
	const struct ep_vec16 zero = { 0, 0, 0, 0 };
	struct ep_ll_raw_tile raw;

	EP_UNROLL()
	for (uint32_t j = 0; j < 2; j++) {
		uint32_t element = j * 512 + ep_lane() * 16;
		uint32_t at = 2 * (tile * F::tile_quads * F::elements + element);
		bool mine = element < F::tile_quads * F::elements && at < row_bytes;

		raw.lo[j] = mine ? ep_ld16_nc(row + at) : zero;
		raw.hi[j] = mine ? ep_ld16_nc(row + at + 16) : zero;
	}
	return raw;
}

/* Quantises a tile into `scratch`, which is the warp's, in the order of the wire. One warp. */
template <class F>
EP_DEV void ep_ll_tile_quantise(const struct ep_ll_quantiser &quantiser,
				const struct ep_ll_raw_tile &raw, unsigned char *scratch)
{
	EP_UNROLL()
	for (uint32_t j = 0; j < 2; j++) {
		F::quantise(quantiser, raw.lo[j], raw.hi[j], j * 32 + ep_lane(), scratch);
	}
	F::finish(quantiser, scratch);
	ep_warp_sync(EP_FULL_MASK);
}

#endif
