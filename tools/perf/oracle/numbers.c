/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of all types, and the reference quantiser. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "oracle.h"

/* ---- numbers of all types ---- */

/* value >> shift, rounded to nearest even; shift may exceed the width */
static uint32_t shift_round(uint32_t value, uint32_t shift)
{
	uint32_t half, rest;

	if (shift == 0) {
		return value;
	}
	if (shift > 31) {
		return 0;
	}
	half = 1u << (shift - 1);
	rest = value & ((1u << shift) - 1);
	value >>= shift;
	return value + (rest > half || (rest == half && (value & 1u)));
}

/*
 * A finite magnitude in a format of `mbits` mantissa bits and exponent bias `bias`. A mantissa
 * that overflows in rounding carries into the exponent, as the encoding wants it.
 */
static uint32_t encode(uint32_t magnitude, uint32_t mbits, int bias)
{
	uint32_t mantissa = magnitude & 0x7fffffu;
	int exponent = (int)(magnitude >> 23) - 127 + bias;

	if (magnitude >> 23 == 0) {
		return 0; /* an fp32 subnormal is far below half of any smaller format's step */
	}
	if (exponent > 0) {
		return shift_round((uint32_t)exponent << 23 | mantissa, 23 - mbits);
	}
	return shift_round(mantissa | 0x800000u, 24u - mbits + (uint32_t)-exponent);
}

static float decode(uint32_t code, uint32_t mbits, int bias)
{
	uint32_t exponent = code >> mbits;
	uint32_t mantissa = code & ((1u << mbits) - 1);

	if (exponent == 0) {
		/* exact: a small integer times a power of two in fp32's normal range */
		return (float)mantissa *
		       oracle_bits_float((uint32_t)(128 - bias - (int)mbits) << 23);
	}
	return oracle_bits_float((exponent + 127u - (uint32_t)bias) << 23 |
				 mantissa << (23 - mbits));
}

float oracle_from_fp16(uint16_t bits)
{
	uint32_t magnitude = bits & 0x7fffu;
	float value = decode(magnitude, 10, 15);

	if (magnitude >= 0x7c00u) {
		value = oracle_bits_float(0x7f800000u | (magnitude & 0x3ffu) << 13);
	}
	return bits & 0x8000u ? -value : value;
}

uint16_t oracle_to_fp16(float value)
{
	uint32_t bits = oracle_float_bits(value);
	uint32_t sign = bits >> 16 & 0x8000u;
	uint32_t code;

	bits &= 0x7fffffffu;
	if (bits > 0x7f800000u) {
		return (uint16_t)(sign | 0x7e00u);
	}
	code = encode(bits, 10, 15);
	return (uint16_t)(sign | (code > 0x7c00u ? 0x7c00u : code));
}

float oracle_from_e4m3(uint8_t bits)
{
	uint32_t magnitude = bits & 0x7fu;
	float value = magnitude == 0x7fu ? oracle_bits_float(0x7fc00000u) : decode(magnitude, 3, 7);

	return bits & 0x80u ? -value : value;
}

uint8_t oracle_to_e4m3(float value)
{
	uint32_t bits = oracle_float_bits(value);
	uint32_t sign = bits >> 24 & 0x80u;
	uint32_t code;

	bits &= 0x7fffffffu;
	if (bits > 0x7f800000u) {
		return 0x7f; /* as GPUs do */
	}
	code = bits >= 0x43e00000u ? 0x7eu : encode(bits, 3, 7);
	return (uint8_t)(sign | (code > 0x7eu ? 0x7eu : code));
}

float oracle_load(enum oracle_dtype dtype, const void *row, size_t column)
{
	uint16_t bits;
	float value;

	if (dtype == ORACLE_FP32) {
		memcpy(&value, (const uint8_t *)row + column * sizeof(value), sizeof(value));
		return value;
	}
	memcpy(&bits, (const uint8_t *)row + column * sizeof(bits), sizeof(bits));
	return dtype == ORACLE_BF16 ? oracle_from_bf16(bits) : oracle_from_fp16(bits);
}

void oracle_store(enum oracle_dtype dtype, void *row, size_t column, float value)
{
	uint16_t bits;

	if (dtype == ORACLE_FP32) {
		memcpy((uint8_t *)row + column * sizeof(value), &value, sizeof(value));
		return;
	}
	bits = dtype == ORACLE_BF16 ? oracle_to_bf16(value) : oracle_to_fp16(value);
	memcpy((uint8_t *)row + column * sizeof(bits), &bits, sizeof(bits));
}

void oracle_load_row(enum oracle_dtype dtype, const void *row, float *x, uint32_t n)
{
	for (uint32_t c = 0; dtype == ORACLE_BF16 && c < n; c++) {
		x[c] = oracle_from_bf16(((const uint16_t *)row)[c]);
	}
	for (uint32_t c = 0; dtype != ORACLE_BF16 && c < n; c++) {
		x[c] = oracle_load(dtype, row, c);
	}
}

void oracle_store_row(enum oracle_dtype dtype, void *row, const float *x, uint32_t n)
{
	for (uint32_t c = 0; dtype == ORACLE_BF16 && c < n; c++) {
		((uint16_t *)row)[c] = oracle_to_bf16(x[c]);
	}
	for (uint32_t c = 0; dtype != ORACLE_BF16 && c < n; c++) {
		oracle_store(dtype, row, c, x[c]);
	}
}

/* ---- formats of several numbers with one scale ---- */

uint8_t oracle_to_e2m1(float value)
{
	float a = fabsf(value);

	if (isnan(value)) {
		return 7;
	}
	return (uint8_t)((a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
			 (a >= 3.5f) + (a > 5.0f) + (signbit(value) ? 8 : 0));
}

float oracle_from_e2m1(uint8_t bits)
{
	static const float magnitude[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

	return bits & 8 ? -magnitude[bits & 7] : magnitude[bits & 7];
}

uint32_t oracle_group(enum oracle_format format)
{
	return format == ORACLE_NVFP4 ? 16 : format == ORACLE_MXFP8 ? 32 : ORACLE_BLOCK;
}

size_t oracle_format_bytes(enum oracle_format format, uint32_t n)
{
	return format == ORACLE_NVFP4 ? n / 2 : n;
}

size_t oracle_format_scale_bytes(enum oracle_format format, uint32_t n)
{
	return n / oracle_group(format) * (format <= ORACLE_FP8_POW2 ? sizeof(float) : 1);
}

/* 2 to the power of ceil(log2(value)), value positive and normal */
static float power_above(float value)
{
	int exponent;
	float mantissa = frexpf(value, &exponent);

	return ldexpf(1, mantissa == 0.5f ? exponent - 1 : exponent);
}

/* One group; NaN counts for nothing in its scale, and stays one. */
static void quantise_fp8(const float *x, bool pow2, uint8_t *codes, float *scale)
{
	float amax = 1e-4f, factor;

	for (uint32_t i = 0; i < ORACLE_BLOCK; i++) {
		amax = fmaxf(amax, fabsf(x[i]));
	}
	*scale = amax / 448.0f;
	factor = 448.0f / amax;
	if (pow2 && !isinf(amax)) {
		*scale = power_above(*scale);
		factor = 1.0f / *scale;
	}
	for (uint32_t i = 0; i < ORACLE_BLOCK; i++) {
		codes[i] = oracle_to_e4m3(x[i] * factor);
	}
}

/* The largest magnitude, or NaN. */
static float largest(const float *x, uint32_t n)
{
	float amax = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (isnan(x[i])) {
			return x[i];
		}
		amax = fmaxf(amax, fabsf(x[i]));
	}
	return amax;
}

static void quantise_mxfp8(const float *x, uint8_t *codes, uint8_t *scale)
{
	float amax = largest(x, 32), factor;
	int n = -127, exponent;

	if (isfinite(amax) && amax > 0) {
		/* 448 is 0.875 * 2^9 */
		n = frexpf(amax, &exponent) > 0.875f ? exponent - 8 : exponent - 9;
		n = n < -127 ? -127 : n;
	}
	n = isnan(amax) ? 128 : isinf(amax) ? 127 : n;
	*scale = (uint8_t)(n + 127);
	factor = ldexpf(1, -n);
	for (uint32_t i = 0; i < 32; i++) {
		codes[i] = isnan(amax) ? 0x7f : oracle_to_e4m3(x[i] * factor);
	}
}

static void quantise_nvfp4(const float *x, float global, uint8_t *codes, uint8_t *scale)
{
	float sixth = largest(x, 16) * (1.0f / 6.0f), s, factor;

	*scale = oracle_to_e4m3(global * sixth);
	s = oracle_from_e4m3(*scale);
	factor = s == 0 ? 0 : global / s;
	for (uint32_t i = 0; i < 16; i += 2) {
		codes[i / 2] = (uint8_t)(oracle_to_e2m1(x[i] * factor) |
					 oracle_to_e2m1(x[i + 1] * factor) << 4);
	}
}

/* NVFP4: a larger scale than 2^112 counts as that, such as infinity, of a row of zeros. */
static float at_most(float global)
{
	return global > 0x1p112f ? 0x1p112f : global;
}

void oracle_quantise(enum oracle_format format, const float *x, uint32_t n, float global, void *row,
		     void *scales)
{
	uint32_t group = oracle_group(format);

	global = at_most(global);
	for (uint32_t g = 0; g < n / group; g++) {
		const float *from = x + (size_t)g * group;
		uint8_t *codes = (uint8_t *)row + g * oracle_format_bytes(format, group);

		if (format == ORACLE_NVFP4) {
			quantise_nvfp4(from, global, codes, (uint8_t *)scales + g);
		} else if (format == ORACLE_MXFP8) {
			quantise_mxfp8(from, codes, (uint8_t *)scales + g);
		} else {
			quantise_fp8(from, format == ORACLE_FP8_POW2, codes, (float *)scales + g);
		}
	}
}

void oracle_dequantise(enum oracle_format format, const void *row, const void *scales, uint32_t n,
		       float global, double *x)
{
	uint32_t group = oracle_group(format);
	const uint8_t *codes = row, *bytes = scales;

	global = at_most(global);
	for (uint32_t g = 0; g < n / group; g++, x += group) {
		double scale = 0;

		if (format == ORACLE_NVFP4) {
			scale = (double)oracle_from_e4m3(bytes[g]) /
				(global == 0 ? 1 : (double)global);
		} else if (format == ORACLE_MXFP8) {
			scale = bytes[g] == 255 ? (double)NAN : ldexp(1, bytes[g] - 127);
		} else {
			scale = (double)((const float *)scales)[g];
		}
		for (uint32_t i = 0; i < group; i++) {
			uint8_t code = format == ORACLE_NVFP4 ? codes[i / 2] >> (i % 2 * 4) & 15
							      : codes[i];

			x[i] = scale * (double)(format == ORACLE_NVFP4 ? oracle_from_e2m1(code)
								       : oracle_from_e4m3(code));
		}
		codes += oracle_format_bytes(format, group);
	}
}
