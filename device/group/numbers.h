/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of a row, for sums in fp32: by enum ep_dtype, 8 bytes at a time. add() is the sum of
 * two, 4 bytes at a time, rounded as a sum in fp32 is.
 */
#ifndef EP_DEVICE_GROUP_NUMBERS_H
#define EP_DEVICE_GROUP_NUMBERS_H

#include "device/group/group_layout.h"
#include "device/simt/numeric.h"

template <int DTYPE> struct ep_numbers;

template <> struct ep_numbers<EP_BF16> {
	enum {
		count = 4
	};
	EP_DEV void load(const struct ep_vec8 &vec, float *f)
	{
		f[0] = ep_bf16_lo_f32(vec.x);
		f[1] = ep_bf16_hi_f32(vec.x);
		f[2] = ep_bf16_lo_f32(vec.y);
		f[3] = ep_bf16_hi_f32(vec.y);
	}
	EP_DEV struct ep_vec8 store(const float *f)
	{
		struct ep_vec8 v = { ep_f32_bf16_pair(f[0], f[1]), ep_f32_bf16_pair(f[2], f[3]) };

		return v;
	}
	EP_DEV uint32_t add(uint32_t a, uint32_t b)
	{
		return ep_bf16_pair_add(a, b);
	}
};

template <> struct ep_numbers<EP_FP16> {
	enum {
		count = 4
	};
	EP_DEV void load(const struct ep_vec8 &vec, float *f)
	{
		f[0] = ep_fp16_lo_f32(vec.x);
		f[1] = ep_fp16_hi_f32(vec.x);
		f[2] = ep_fp16_lo_f32(vec.y);
		f[3] = ep_fp16_hi_f32(vec.y);
	}
	EP_DEV struct ep_vec8 store(const float *f)
	{
		struct ep_vec8 v = { ep_f32_fp16_pair(f[0], f[1]), ep_f32_fp16_pair(f[2], f[3]) };

		return v;
	}
	EP_DEV uint32_t add(uint32_t a, uint32_t b)
	{
		return ep_fp16_pair_add(a, b);
	}
};

template <> struct ep_numbers<EP_FP32> {
	enum {
		count = 2
	};
	EP_DEV void load(const struct ep_vec8 &vec, float *f)
	{
		f[0] = ep_bits_f32(vec.x);
		f[1] = ep_bits_f32(vec.y);
	}
	EP_DEV struct ep_vec8 store(const float *f)
	{
		struct ep_vec8 v = { ep_f32_bits(f[0]), ep_f32_bits(f[1]) };

		return v;
	}
	EP_DEV uint32_t add(uint32_t a, uint32_t b)
	{
		return ep_f32_bits(ep_bits_f32(a) + ep_bits_f32(b));
	}
};

#endif
