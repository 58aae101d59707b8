/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number formats in kernels. Results are the same bits on a GPU and on the CPU: conversions round
 * to nearest even, FP8 saturates to the largest finite value (as NVIDIA's satfinite does).
 */
#ifndef EP_DEVICE_NUMERIC_H
#define EP_DEVICE_NUMERIC_H

#include "device/simt/simt.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include <math.h>
#include <string.h>
#endif

#define EP_FP8_E4M3_MAX 448.0f

#ifdef __CUDACC__
EP_DEV uint32_t ep_f32_bits(float f)
{
	return __float_as_uint(f);
}

EP_DEV float ep_bits_f32(uint32_t b)
{
	return __uint_as_float(b);
}

EP_DEV float ep_fma_f32(float a, float b, float c)
{
	return __fmaf_rn(a, b, c);
}
#else
EP_DEV uint32_t ep_f32_bits(float f)
{
	uint32_t b;

	memcpy(&b, &f, 4);
	return b;
}

EP_DEV float ep_bits_f32(uint32_t b)
{
	float f;

	memcpy(&f, &b, 4);
	return f;
}

EP_DEV float ep_fma_f32(float a, float b, float c)
{
	return fmaf(a, b, c);
}
#endif

EP_DEV float ep_bf16_lo_f32(uint32_t pair)
{
	return ep_bits_f32(pair << 16);
}

EP_DEV float ep_bf16_hi_f32(uint32_t pair)
{
	return ep_bits_f32(pair & 0xffff0000u);
}

EP_DEV uint32_t ep_f32_bf16_pair(float lo, float hi)
{
#ifdef __CUDACC__
	__nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);

	return *(uint32_t *)&p;
#else
	uint32_t out = 0;
	float f[2] = { lo, hi };

	for (int i = 0; i < 2; i++) {
		uint32_t b = ep_f32_bits(f[i]);

		if ((b & 0x7fffffffu) > 0x7f800000u) {
			b = 0x7fff0000u; /* the GPU's canonical NaN */
		} else {
			b += 0x7fffu + (b >> 16 & 1);
		}
		out |= b >> 16 << (16 * i);
	}
	return out;
#endif
}

/*
 * Sums of pairs, rounded once: the same as sums in fp32 that are rounded, as fp32 has more than twice
 * their digits.
 */
EP_DEV uint32_t ep_bf16_pair_add(uint32_t a, uint32_t b)
{
#ifdef __CUDACC__
	__nv_bfloat162 p = __hadd2_rn(*(__nv_bfloat162 *)&a, *(__nv_bfloat162 *)&b);

	return *(uint32_t *)&p;
#else
	return ep_f32_bf16_pair(ep_bf16_lo_f32(a) + ep_bf16_lo_f32(b),
				ep_bf16_hi_f32(a) + ep_bf16_hi_f32(b));
#endif
}

#ifndef __CUDACC__
EP_DEV float ep_fp16_f32(uint32_t h)
{
	uint32_t sign = (h & 0x8000u) << 16, exp = h >> 10 & 31, man = h & 0x3ffu;

	if (exp == 31) {
		return ep_bits_f32(sign | 0x7f800000u | man << 13);
	}
	if (exp == 0) {
		float f = (float)man * 0x1p-24f;

		return sign ? -f : f;
	}
	return ep_bits_f32(sign | (exp + 112) << 23 | man << 13);
}

EP_DEV uint32_t ep_f32_fp16(float f)
{
	uint32_t b = ep_f32_bits(f), sign = b >> 16 & 0x8000u, a = b & 0x7fffffffu;

	if (a > 0x7f800000u) {
		return 0x7fffu;
	}
	if (a >= 0x477ff000u) { /* rounds past 65504 */
		return sign | 0x7c00u;
	}
	if (a < 0x38800000u) { /* subnormal result: one exact scaling, then round to integer */
		return sign | (uint32_t)nearbyintf(ep_bits_f32(a) * 0x1p24f);
	}
	a += 0xfffu + (a >> 13 & 1);
	return sign | (a - 0x38000000u) >> 13;
}
#endif

EP_DEV float ep_fp16_lo_f32(uint32_t pair)
{
#ifdef __CUDACC__
	return __low2float(*(__half2 *)&pair);
#else
	return ep_fp16_f32(pair & 0xffffu);
#endif
}

EP_DEV float ep_fp16_hi_f32(uint32_t pair)
{
#ifdef __CUDACC__
	return __high2float(*(__half2 *)&pair);
#else
	return ep_fp16_f32(pair >> 16);
#endif
}

EP_DEV uint32_t ep_f32_fp16_pair(float lo, float hi)
{
#ifdef __CUDACC__
	__half2 p = __floats2half2_rn(lo, hi);

	return *(uint32_t *)&p;
#else
	return ep_f32_fp16(lo) | ep_f32_fp16(hi) << 16;
#endif
}

EP_DEV uint32_t ep_fp16_pair_add(uint32_t a, uint32_t b)
{
#ifdef __CUDACC__
	__half2 p = __hadd2_rn(*(__half2 *)&a, *(__half2 *)&b);

	return *(uint32_t *)&p;
#else
	return ep_f32_fp16_pair(ep_fp16_lo_f32(a) + ep_fp16_lo_f32(b),
				ep_fp16_hi_f32(a) + ep_fp16_hi_f32(b));
#endif
}

/* One float to e4m3 (bias 7, no infinity, largest 448), round to nearest even, saturating. */
EP_DEV uint32_t ep_f32_e4m3(float f)
{
	uint32_t b = ep_f32_bits(f), sign = b >> 24 & 0x80u, a = b & 0x7fffffffu;

	if (a > 0x7f800000u) {
		return 0x7fu;
	}
	if (a >= 0x43e00000u) { /* 448 and above */
		return sign | 0x7eu;
	}
	if (a < 0x3c800000u) {
		/* below 2^-6: steps of 2^-9; adding 2^14 leaves their count in the low bits */
		return sign | (ep_f32_bits(ep_bits_f32(a) + 16384.0f) & 0xffu);
	}
	a += 0x7ffffu + (a >> 20 & 1);
	return sign | (a - 0x3c000000u) >> 20;
}

/* Four floats to four e4m3 bytes, first in the lowest byte. */
EP_DEV uint32_t ep_f32x4_e4m3(float f0, float f1, float f2, float f3)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
	uint16_t lo, hi;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(lo) : "f"(f1), "f"(f0));
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(hi) : "f"(f3), "f"(f2));
	return (uint32_t)lo | (uint32_t)hi << 16;
#else
	return ep_f32_e4m3(f0) | ep_f32_e4m3(f1) << 8 | ep_f32_e4m3(f2) << 16 |
	       ep_f32_e4m3(f3) << 24;
#endif
}

/*
 * Scale of 128 channels whose largest magnitude is `amax`: what the reader multiplies by. With
 * `round_up`, the next power of two, so that the scale has no mantissa. *inverse multiplies the
 * channels before conversion.
 */
EP_DEV float ep_e4m3_scale(float amax, bool round_up, float *inverse)
{
	float a = amax > 1e-4f ? amax : 1e-4f;
	float s = a / EP_FP8_E4M3_MAX;

	if (!round_up) {
		*inverse = EP_FP8_E4M3_MAX / a;
		return s;
	}
	uint32_t b = ep_f32_bits(s);

	b = (b + 0x7fffffu) & 0x7f800000u;
	*inverse = ep_bits_f32(0x7f000000u - b); /* 2^-n */
	return ep_bits_f32(b);
}

#endif
