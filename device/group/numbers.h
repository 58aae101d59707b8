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

#define EP_NUMBERS_16(dtype, type)                                                                 \
	template <> struct ep_numbers<dtype> {                                                     \
		enum {                                                                             \
			count = 4                                                                  \
		};                                                                                 \
		EP_DEV void load(const struct ep_vec8 &vec, float *f)                              \
		{                                                                                  \
			f[0] = ep_##type##_lo_f32(vec.x);                                          \
			f[1] = ep_##type##_hi_f32(vec.x);                                          \
			f[2] = ep_##type##_lo_f32(vec.y);                                          \
			f[3] = ep_##type##_hi_f32(vec.y);                                          \
		}                                                                                  \
		EP_DEV struct ep_vec8 store(const float *f)                                        \
		{                                                                                  \
			struct ep_vec8 v = { ep_f32_##type##_pair(f[0], f[1]),                     \
					     ep_f32_##type##_pair(f[2], f[3]) };                   \
                                                                                                   \
			return v;                                                                  \
		}                                                                                  \
		EP_DEV uint32_t add(uint32_t a, uint32_t b)                                        \
		{                                                                                  \
			return ep_##type##_pair_add(a, b);                                         \
		}                                                                                  \
	};

EP_NUMBERS_16(EP_BF16, bf16)
EP_NUMBERS_16(EP_FP16, fp16)

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
