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
#define EP_FP4_E2M1_MAX 6.0f
#define EP_MXFP8_GROUP 32 /* channels that share an E8M0 scale */
#define EP_NVFP4_GROUP 16 /* channels that share an e4m3 scale */

/* Code for sm_100a or sm_100f has instructions for e2m1; code for sm_100 has not. */
#if defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#define EP_HAS_E2M1 (__CUDA_ARCH__ >= 1000)
#else
#define EP_HAS_E2M1 0
#endif

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

/* The rounded product: never a part of a fused sum. */
EP_DEV float ep_mul_f32(float a, float b)
{
	return __fmul_rn(a, b);
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

EP_DEV float ep_mul_f32(float a, float b)
{
	return a * b;
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

/* The float of an e4m3 byte; 0x7f and 0xff are NaN. */
EP_DEV float ep_e4m3_f32(uint32_t byte)
{
	uint32_t sign = byte << 24 & 0x80000000u, a = byte & 0x7fu;

	if (a == 0x7fu) {
		return ep_bits_f32(0x7fffffffu);
	}
	/* the bits as they are make a float of the wrong bias, or a subnormal one */
	return ep_bits_f32(sign | ep_f32_bits(ep_bits_f32(a << 20) * 0x1p120f));
}

/* Four e4m3 bytes to floats, the lowest byte first. */
EP_DEV void ep_e4m3x4_f32(uint32_t w, float *f)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
	uint32_t lo, hi;

	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(lo) : "h"((uint16_t)w));
	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(hi) : "h"((uint16_t)(w >> 16)));
	f[0] = ep_fp16_lo_f32(lo);
	f[1] = ep_fp16_hi_f32(lo);
	f[2] = ep_fp16_lo_f32(hi);
	f[3] = ep_fp16_hi_f32(hi);
#else
	EP_UNROLL()
	for (int i = 0; i < 4; i++) {
		f[i] = ep_e4m3_f32(w >> 8 * i & 0xffu);
	}
#endif
}

/* The smaller one, or `b` if `a` is NaN. */
EP_DEV float ep_min_f32(float a, float b)
{
#ifdef __CUDACC__
	return fminf(a, b);
#else
	return a < b ? a : b;
#endif
}

/*
 * Eight floats to eight e2m1 values (sign, 2 bits of exponent, 1 of mantissa; 0, 0.5, 1, 1.5, 2, 3,
 * 4, 6), the first in the lowest 4 bits: nearest even, saturating at 6. The sign of zero stays; NaN
 * gives +6, as a GPU's NaN has no sign.
 */
EP_DEV uint32_t ep_f32x8_e2m1(const float *f)
{
#if EP_HAS_E2M1
	uint32_t out;

	asm("{\n\t.reg .b8 b0, b1, b2, b3;\n\t"
	    "cvt.rn.satfinite.e2m1x2.f32 b0, %2, %1;\n\t"
	    "cvt.rn.satfinite.e2m1x2.f32 b1, %4, %3;\n\t"
	    "cvt.rn.satfinite.e2m1x2.f32 b2, %6, %5;\n\t"
	    "cvt.rn.satfinite.e2m1x2.f32 b3, %8, %7;\n\t"
	    "mov.b32 %0, {b0, b1, b2, b3};\n\t}"
	    : "=r"(out)
	    : "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]), "f"(f[4]), "f"(f[5]), "f"(f[6]),
	      "f"(f[7]));
	return out;
#else
	uint32_t codes = 0, signs = 0;

	/*
	 * The code of a magnitude a is the smallest of 2a, a + 2 and a / 2 + 4, rounded. Adding
	 * 2^23 rounds each line once, to an integer in the low bits, and keeps their order. What
	 * 2^23 leaves above those bits is the same for every value, so it comes off at the end.
	 */
	EP_UNROLL()
	for (int i = 7; i >= 0; i--) {
		float x = f[i];

#ifndef __CUDACC__
		x = x != x ? ep_bits_f32(0x7fffffffu) : x;
#endif
		float a = ep_min_f32(fabsf(x), EP_FP4_E2M1_MAX);
		float c = ep_min_f32(a * 2.0f + 0x1p23f, a + (0x1p23f + 2.0f));

		c = ep_min_f32(c, a * 0.5f + (0x1p23f + 4.0f));
		codes = (codes << 4) + ep_f32_bits(c);
		signs = signs << 4 | ep_f32_bits(x) >> 28;
	}
	/* the sum of 0x4b000000 << 4 * i */
	return (codes - 0xfb000000u) | (signs & 0x88888888u);
#endif
}

#ifdef __CUDACC__
EP_DEV uint32_t ep_permute(uint32_t lo, uint32_t hi, uint32_t select)
{
	return __byte_perm(lo, hi, select);
}
#else
/* Four bytes of `hi` and `lo`, each chosen by 3 bits in 4 of `select`. */
EP_DEV uint32_t ep_permute(uint32_t lo, uint32_t hi, uint32_t select)
{
	uint64_t from = (uint64_t)hi << 32 | lo;
	uint32_t out = 0;

	for (int i = 0; i < 4; i++) {
		out |= (uint32_t)(from >> 8 * (select >> 4 * i & 7) & 0xff) << 8 * i;
	}
	return out;
}
#endif

/*
 * Eight e2m1 values to floats, the lowest 4 bits first. The two bytes of their bf16 come from tables
 * of eight bytes, one look-up for four values.
 */
EP_DEV void ep_e2m1x8_f32(uint32_t w, float *f)
{
	EP_UNROLL()
	for (int half = 0; half < 2; half++, w >>= 16) {
		uint32_t select = w & 0x7777u;
		uint32_t signs = ep_permute(0x00008000u, 0, w >> 3 & 0x1111u);
		uint32_t upper = signs | ep_permute(0x3f3f3f00u, 0x40404040u, select);
		uint32_t lower = ep_permute(0xc0800000u, 0xc0804000u, select);

		EP_UNROLL()
		for (int i = 0; i < 4; i += 2) {
			uint32_t pair = ep_permute(lower, upper, i ? 0x7362 : 0x5140);

			f[4 * half + i] = ep_bf16_lo_f32(pair);
			f[4 * half + i + 1] = ep_bf16_hi_f32(pair);
		}
	}
}

/* The larger magnitude, NaN if either is NaN: the amax of a group begins with 0. */
EP_DEV float ep_amax(float amax, float f)
{
#ifdef __CUDACC__
	float m;

	asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(amax), "f"(fabsf(f)));
	return m;
#else
	uint32_t a = ep_f32_bits(amax), b = ep_f32_bits(f) & 0x7fffffffu;

	return ep_bits_f32(a > b ? a : b);
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
	*inverse = ep_bits_f32(b < 0x7f000000u ? 0x7f000000u - b : 0); /* 2^-n; of infinity 0 */
	return ep_bits_f32(b);
}

/*
 * E8M0 scale of a group of MXFP8 whose largest magnitude is `amax`: byte n + 127 for the smallest
 * power of two with amax / 2^n <= 448, at least 2^-127. *inverse, 2^-n, multiplies the channels
 * before they become e4m3, so that none saturates. OCP's MX 1.0 (6.3) rounds n down instead and
 * lets the largest saturate; TransformerEngine rounds up as here, but byte 0 makes all channels
 * zero there.
 *   amax 0: byte 0; the channels stay zeros with their signs.
 *   Inf: byte 254; an infinite channel becomes 448, which times 2^127 is infinite again.
 *   NaN: byte 255, which is NaN; all channels become NaN.
 */
EP_DEV uint32_t ep_e8m0_scale(float amax, float *inverse)
{
	uint32_t b = ep_f32_bits(amax);

	if (b >= 0x7f800000u) {
		bool nan = b > 0x7f800000u;

		*inverse = ep_bits_f32(nan ? 0x7fffffffu : 0x00400000u); /* 2^-127 */
		return nan ? 255 : 254;
	}
	/* 448 is 1.75 * 2^8: a larger mantissa carries into the exponent */
	uint32_t byte = (b + 0x1fffffu) >> 23;

	byte = (byte > 8 ? byte : 8) - 8;
	*inverse = ep_bits_f32((254 - byte) << 23);
	return byte;
}

/* The float of an E8M0 byte. */
EP_DEV float ep_e8m0_f32(uint32_t byte)
{
	uint32_t b = byte ? byte << 23 : 0x00400000u;

	return ep_bits_f32(byte == 255 ? 0x7fffffffu : b);
}

/*
 * e4m3 scale of a group of NVFP4 whose largest magnitude is `amax`, in a tensor with the scale
 * `global`: global * (amax / 6), saturating. *inverse, global / scale, multiplies the channels before
 * they become e2m1. A reader multiplies e2m1 by the scale and by 1 / global.
 *   amax 0, or so small that the scale is 0: *inverse is 0; the channels become zeros.
 *   Inf: the largest scale; an infinite channel becomes 6.
 *   NaN: scale 0x7f, which is NaN for every channel of the group.
 * TensorRT-LLM computes the same with approximate reciprocals, which may differ by an ulp. The
 * factor for 1/6 is exact enough: it gives the exact quotient wherever that is a float.
 */
EP_DEV uint32_t ep_nvfp4_scale(float amax, float global, float *inverse)
{
	uint32_t byte = ep_f32x4_e4m3(global * (amax * (1.0f / 6.0f)), 0, 0, 0) & 0xffu;
	float scale = ep_e4m3_f32(byte);

#ifdef __CUDACC__
	*inverse = scale == 0.0f ? 0.0f : __fdiv_rn(global, scale);
#else
	*inverse = scale == 0.0f ? 0.0f : global / scale;
#endif
	return byte;
}

#endif
