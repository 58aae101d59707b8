/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between floating-point formats, to nearest even, in integers. */
#include <string.h>

#include "oracle.h"

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
		return (uint8_t)(sign | 0x7fu);
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
