/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput combine: how the sums that a rank returns lie in the ring, a struct for each
 * format. A kernel takes one as its template argument. The caller's rows, and the results, are
 * numbers in all.
 *
 *   numbers   as in a tensor
 *   MXFP8     each part of n elements as n bytes of e4m3, its *codes*, with n / 32 bytes of E8M0
 *             behind them; the next part begins at the next multiple of 128 bytes
 *
 * A part has a multiple of 64 elements, so no group of 32 lies in two parts, nor in two rows of
 * vecs: 4 lanes side by side have one.
 */
#ifndef EP_DEVICE_HT_FORMATS_H
#define EP_DEVICE_HT_FORMATS_H

#include "device/group/numbers.h"
#include "device/ht/ht_layout.h"

template <int DTYPE> struct ep_ht_numbers {
	typedef struct ep_numbers<DTYPE> numbers;
	enum {
		coded = 0,
		flat = 1, /* the layout may be flat: rows are copied, or in windows */
		sums = 2 * numbers::count /* of a vec of the caller's rows */
	};

	/* From part to part of a row in the ring. */
	EP_DEV uint32_t part_stride(uint32_t part_bytes)
	{
		return part_bytes;
	}

	/* Bytes to load of a part in the ring that has so many vecs in a tensor. */
	EP_DEV uint32_t part_load(uint32_t vecs)
	{
		return 16 * vecs;
	}
};

/* Numbers in expert-major layout. */
template <int DTYPE> struct ep_ht_experts : ep_ht_numbers<DTYPE> {
	enum {
		flat = 0
	};
};

struct ep_ht_mxfp8 : ep_ht_experts<EP_BF16> {
	enum {
		coded = 1
	};

	EP_DEV uint32_t part_stride(uint32_t part_bytes)
	{
		return ep_ht_stage_align(part_bytes / 2 + part_bytes / 64);
	}

	/* Whole vecs; nobody reads what lies behind the last scale. */
	EP_DEV uint32_t part_load(uint32_t vecs)
	{
		return 8 * vecs + ((vecs / 4 + 15) & ~15u);
	}

	/*
	 * Of a part, or of a slot with one: what byte `at` of a tensor's row is coded as, and its
	 * scale.
	 */
	EP_DEV uint32_t codes_off(uint32_t at)
	{
		return at / 2;
	}

	EP_DEV uint32_t scales_off(uint32_t vecs, uint32_t at)
	{
		return 8 * vecs + at / 64;
	}

	/* Codes of the lane's vec; *scale is that of its group. All lanes. */
	EP_DEV struct ep_vec8 encode(const float *f, uint32_t *scale)
	{
		float amax = 0.0f, inverse;

		EP_UNROLL()
		for (int i = 0; i < sums; i++) {
			amax = ep_amax(amax, f[i]);
		}
		amax = ep_amax(amax, ep_shfl_xor_f32(EP_FULL_MASK, amax, 1));
		amax = ep_amax(amax, ep_shfl_xor_f32(EP_FULL_MASK, amax, 2));
		*scale = ep_e8m0_scale(amax, &inverse);
		struct ep_vec8 codes = { ep_f32x4_e4m3(f[0] * inverse, f[1] * inverse,
						       f[2] * inverse, f[3] * inverse),
					 ep_f32x4_e4m3(f[4] * inverse, f[5] * inverse,
						       f[6] * inverse, f[7] * inverse) };

		return codes;
	}

	/* The products are rounded, so that 448 * 2^127 is infinity before it is added. */
	EP_DEV void decode(struct ep_vec8 codes, uint32_t scale, float *f)
	{
		float s = ep_e8m0_f32(scale);

		ep_e4m3x4_f32(codes.x, f);
		ep_e4m3x4_f32(codes.y, f + 4);
		EP_UNROLL()
		for (int i = 0; i < sums; i++) {
			f[i] = ep_mul_f32(f[i], s);
		}
	}
};

#endif
