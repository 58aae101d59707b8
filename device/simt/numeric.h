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
#define EP_NVFP4_MOST_GLOBAL 0x1p112f

/* Has the code instructions for e4m3? The CPU, which has none, does as if it had. */
#if defined(__CUDA_ARCH__)
#define EP_HAS_E4M3 (__CUDA_ARCH__ >= 890)
#else
#define EP_HAS_E4M3 1
#endif

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
 * Sums of pairs, rounded once: the same as sums in fp32 that are rounded, as fp32 has more than
 * twice their digits.
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

/* Products of pairs. */
EP_DEV uint32_t ep_fp16_pair_mul(uint32_t a, uint32_t b)
{
#ifdef __CUDACC__
	__half2 p = __hmul2_rn(*(__half2 *)&a, *(__half2 *)&b);

	return *(uint32_t *)&p;
#else
	return ep_f32_fp16_pair(ep_fp16_lo_f32(a) * ep_fp16_lo_f32(b),
				ep_fp16_hi_f32(a) * ep_fp16_hi_f32(b));
#endif
}

/* The larger magnitudes of two pairs, NaN if either is NaN. The signs are of no account. */
EP_DEV uint32_t ep_bf16_pair_amax(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
	uint32_t m;

	asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
	return m;
#elif defined(__CUDACC__)
	__nv_bfloat162 p =
		__hmax2_nan(__habs2(*(__nv_bfloat162 *)&a), __habs2(*(__nv_bfloat162 *)&b));

	return *(uint32_t *)&p;
#else
	uint32_t lo = (a & 0x7fff) > (b & 0x7fff) ? a : b, x = a >> 16, y = b >> 16;

	return (lo & 0x7fff) | ((x & 0x7fff) > (y & 0x7fff) ? x : y) << 16;
#endif
}

/* One float to e4m3 (bias 7, no infinity, largest 448), round to nearest even, saturating. */
EP_DEV uint32_t ep_f32_e4m3(float f)
{
#if defined(__CUDA_ARCH__) && EP_HAS_E4M3
	uint16_t pair;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
	return pair;
#else
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
#endif
}

/* Four floats to four e4m3 bytes, first in the lowest byte. */
EP_DEV uint32_t ep_f32x4_e4m3(float f0, float f1, float f2, float f3)
{
#if defined(__CUDA_ARCH__) && EP_HAS_E4M3
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
#if defined(__CUDA_ARCH__) && EP_HAS_E4M3
	uint32_t pair;

	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)byte));
	return ep_fp16_lo_f32(pair);
#else
	uint32_t sign = byte << 24 & 0x80000000u, a = byte & 0x7fu;

	if (a == 0x7fu) {
		return ep_bits_f32(0x7fffffffu);
	}
	/* the bits as they are make a float of the wrong bias, or a subnormal one */
	return ep_bits_f32(sign | ep_f32_bits(ep_bits_f32(a << 20) * 0x1p120f));
#endif
}

/* Four e4m3 bytes to floats, the lowest byte first. */
EP_DEV void ep_e4m3x4_f32(uint32_t w, float *f)
{
#if defined(__CUDA_ARCH__) && EP_HAS_E4M3
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

/* `magnitude`, which has no sign, with that of f. */
EP_DEV float ep_copysign_f32(float magnitude, float f)
{
	return ep_bits_f32(ep_f32_bits(magnitude) | (ep_f32_bits(f) & 0x80000000u));
}

/* The larger one, or `a` if `b` is NaN. */
EP_DEV float ep_max_f32(float a, float b)
{
#ifdef __CUDACC__
	return fmaxf(a, b);
#else
	return b > a ? b : a;
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
 * Eight e2m1 values to floats, the lowest 4 bits first. Moved so that their exponents stand where
 * those of fp16 end, they are numbers of fp16, 2^14 times smaller.
 */
EP_DEV void ep_e2m1x8_f32(uint32_t w, float *f)
{
	const uint32_t half[2] = { (w << 1 & 0x0e0e0e0eu) | (w << 4 & 0x80808080u),
				   (w >> 3 & 0x0e0e0e0eu) | (w & 0x80808080u) };

	EP_UNROLL()
	for (int odd = 0; odd < 2; odd++) {
		EP_UNROLL()
		for (int i = 0; i < 8; i += 4) {
			uint32_t pair = ep_permute(half[odd], 0, i ? 0x3424 : 0x1404);

			pair = ep_fp16_pair_mul(pair, 0x74007400u); /* 2^14 */
			f[i + odd] = ep_fp16_lo_f32(pair);
			f[i + odd + 2] = ep_fp16_hi_f32(pair);
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
 * The scale of an NVFP4 row or tensor that `given` stands for: callers divide by the largest
 * magnitude, also by 0.
 */
EP_DEV float ep_nvfp4_global(float given)
{
	return given > EP_NVFP4_MOST_GLOBAL ? EP_NVFP4_MOST_GLOBAL : given;
}

EP_DEV uint32_t nvfp4_byte(float amax, float global)
{
	return ep_f32_e4m3(global * (amax * (1.0f / 6.0f)));
}

/*
 * e4m3 scale of a group of NVFP4 whose largest magnitude is `amax`, in a tensor with the scale
 * `global`: global * (amax / 6), saturating. *inverse, global / scale, multiplies the channels
 * before they become e2m1. A reader multiplies e2m1 by the scale and by 1 / global.
 *   amax 0, or so small that the scale is 0: *inverse is 0; the channels become zeros.
 *   Inf: the largest scale; an infinite channel becomes 6.
 *   NaN: scale 0x7f, which is NaN for every channel of the group.
 * TensorRT-LLM computes the same with approximate reciprocals, which may differ by an ulp. The
 * factor for 1/6 is exact enough: it gives the exact quotient wherever that is a float.
 */
EP_DEV uint32_t ep_nvfp4_scale(float amax, float global, float *inverse)
{
	uint32_t byte = nvfp4_byte(amax, global);
	float scale = ep_e4m3_f32(byte);

#ifdef __CUDACC__
	*inverse = scale == 0.0f ? 0.0f : __fdiv_rn(global, scale);
#else
	*inverse = scale == 0.0f ? 0.0f : global / scale;
#endif
	return byte;
}

/*
 * The codes of 16 elements of bf16, two of lo's x in the lowest byte: e2m1 of their products with
 * `inverse`.
 */
EP_DEV struct ep_vec8 nvfp4_multiply(struct ep_vec16 lo, struct ep_vec16 hi, float inverse)
{
	const uint32_t w[8] = { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w };
	float f[16];

	EP_UNROLL()
	for (int i = 0; i < 8; i++) {
		f[2 * i] = ep_bf16_lo_f32(w[i]) * inverse;
		f[2 * i + 1] = ep_bf16_hi_f32(w[i]) * inverse;
	}
	struct ep_vec8 q = { ep_f32x8_e2m1(f), ep_f32x8_e2m1(f + 8) };

	return q;
}

/* What ep_nvfp4_quantise() needs of 1 / global, which may be infinite: 1.25 times it, of 8 bits. */
EP_DEV float ep_nvfp4_least(float reciprocal)
{
	return ep_bits_f32(ep_f32_bits(reciprocal * 1.25f) & 0xffff0000u);
}

/* The largest magnitude of 16 elements of bf16, NaN if one is NaN. */
EP_DEV float nvfp4_amax(struct ep_vec16 lo, struct ep_vec16 hi)
{
	uint32_t m = ep_bf16_pair_amax(
		ep_bf16_pair_amax(ep_bf16_pair_amax(lo.x, lo.y), ep_bf16_pair_amax(lo.z, lo.w)),
		ep_bf16_pair_amax(ep_bf16_pair_amax(hi.x, hi.y), ep_bf16_pair_amax(hi.z, hi.w)));

	return ep_amax(fabsf(ep_bf16_lo_f32(m)), ep_bf16_hi_f32(m));
}

#if EP_HAS_E4M3 && !EP_HAS_E2M1
/* The codes and the scale of any group, out of the way of instruction caches. */
EP_DEV_COLD struct ep_vec8 nvfp4_any(struct ep_vec16 lo, struct ep_vec16 hi, float amax,
				     float global)
{
	float inverse;

	(void)ep_nvfp4_scale(amax, global, &inverse);
	return nvfp4_multiply(lo, hi, inverse);
}

/*
 * global / scale, rounded as IEEE 754 has it if all numbers on the way are normal: the error of the
 * first quotient is exact, and no quotient by a number of 4 bits is next to a tie.
 */
EP_DEV float nvfp4_divide(float global, float scale)
{
#ifdef __CUDACC__
	float inverse, quotient;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale));
	quotient = ep_mul_f32(global, inverse);
	return ep_fma_f32(ep_fma_f32(-quotient, scale, global), inverse, quotient);
#else
	return global / scale;
#endif
}

/* How most groups are rounded to e2m1: by sums with large numbers. */
struct nvfp4_rounding {
	float scale;
	float inverse;
	float least;
	float step;
};

/*
 * Is the group one of those? Not if the scale has saturated, so that an element becomes 7 or more,
 * or is no number, nor where a number on the way could be none that is normal.
 */
EP_DEV bool nvfp4_rounding_make(float amax, float global, float least, uint32_t byte,
				struct nvfp4_rounding *r)
{
	r->scale = ep_e4m3_f32(byte);
	r->inverse = r->scale == 0.0f ? 0.0f : nvfp4_divide(global, r->scale);
	r->least = least * r->scale;
	r->step = ep_bits_f32(ep_f32_bits(r->inverse) & 0xfff00000u) * 0x1p22f;
	return amax * r->inverse < 7.0f && ep_max_f32(amax, r->inverse) < 0x1p60f;
}

/*
 * The magnitude of x times r.inverse as e2m1.
 *
 * What is added to the product and comes off again is 2^22 times a number near it, or 1.05 to 1.25
 * if that is larger: the last digit of the sum is worth 0.5 below 2, 1 below 4 and 2 above, as e2m1
 * has it. By the near number, which is up to a ninth smaller than the product, 2 begins at 2 to
 * 2.25 and 4 at 4 to 4.5: there the coarser steps have the same value next to a product as the
 * finer ones. It has few digits, so that those of the product have room and ties stay even.
 */
EP_DEV float nvfp4_round(struct nvfp4_rounding r, float x)
{
	float near = ep_max_f32(fabsf(x), r.least);
	float sum = ep_fma_f32(near, r.step, ep_mul_f32(fabsf(x), r.inverse));

	return ep_fma_f32(near, -r.step, sum);
}

EP_DEV struct ep_vec8 nvfp4_round_all(struct nvfp4_rounding r, struct ep_vec16 lo,
				      struct ep_vec16 hi)
{
	const uint32_t w[8] = { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w };
	uint32_t q[2];

	r.inverse *= 0x1p-6f; /* and so all that is rounded: e4m3 of it is the code, times 4 */
	r.step *= 0x1p-6f;
	EP_UNROLL()
	for (int i = 0; i < 2; i++) {
		const uint32_t *v = w + 4 * i;
		float even[4], odd[4];

		EP_UNROLL()
		for (int j = 0; j < 4; j++) {
			even[j] = nvfp4_round(r, ep_bf16_lo_f32(v[j]));
			odd[j] = nvfp4_round(r, ep_bf16_hi_f32(v[j]));
		}
		/* upper bytes, with signs: of two even elements, of two odd ones */
		uint32_t first = ep_permute(v[0], v[1], 0x7351);
		uint32_t second = ep_permute(v[2], v[3], 0x7351);

		q[i] = (ep_f32x4_e4m3(even[0], even[1], even[2], even[3]) >> 2) +
		       (ep_f32x4_e4m3(odd[0], odd[1], odd[2], odd[3]) << 2);
		q[i] |= ep_permute(first, second, 0x5410) >> 4 & 0x08080808u;
		q[i] |= ep_permute(first, second, 0x7632) & 0x80808080u;
	}
	struct ep_vec8 codes = { q[0], q[1] };

	return codes;
}
#endif

/*
 * Quantises a group, 16 elements of bf16: returns their codes, the first in the lowest 4 bits, and
 * *scale. `least`: ep_nvfp4_least().
 */
EP_DEV struct ep_vec8 ep_nvfp4_quantise(struct ep_vec16 lo, struct ep_vec16 hi, float global,
					float least, uint32_t *scale)
{
	float amax = nvfp4_amax(lo, hi);

#if EP_HAS_E4M3 && !EP_HAS_E2M1
	struct nvfp4_rounding r;

	*scale = nvfp4_byte(amax, global);
	if (nvfp4_rounding_make(amax, global, least, *scale, &r)) {
		return nvfp4_round_all(r, lo, hi);
	}
	return nvfp4_any(lo, hi, amax, global);
#else
	float inverse;

	*scale = ep_nvfp4_scale(amax, global, &inverse);
	return nvfp4_multiply(lo, hi, inverse);
#endif
}

/* What a reader makes of these codes: f[16]. Returns the scale. */
EP_DEV float ep_nvfp4_values(struct ep_vec16 lo, struct ep_vec16 hi, float global, float least,
			     float *f)
{
#if EP_HAS_E4M3 && !EP_HAS_E2M1
	const uint32_t w[8] = { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w };
	float amax = nvfp4_amax(lo, hi);
	struct nvfp4_rounding r;

	if (nvfp4_rounding_make(amax, global, least, nvfp4_byte(amax, global), &r)) {
		EP_UNROLL()
		for (int i = 0; i < 8; i++) {
			float x = ep_bf16_lo_f32(w[i]), y = ep_bf16_hi_f32(w[i]);

			f[2 * i] = ep_copysign_f32(nvfp4_round(r, x), x);
			f[2 * i + 1] = ep_copysign_f32(nvfp4_round(r, y), y);
		}
	} else {
		struct ep_vec8 q = nvfp4_any(lo, hi, amax, global);

		ep_e2m1x8_f32(q.x, f);
		ep_e2m1x8_f32(q.y, f + 8);
	}
	return r.scale;
#else
	uint32_t scale;
	struct ep_vec8 q = ep_nvfp4_quantise(lo, hi, global, least, &scale);

	ep_e2m1x8_f32(q.x, f);
	ep_e2m1x8_f32(q.y, f + 8);
	return ep_e4m3_f32(scale);
#endif
}

#endif
