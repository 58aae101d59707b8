/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of all types, token rows, the reference quantiser, and the experts' work. */
#include <math.h>
#include <string.h>

#include "oracle.h"

/* ---- numbers ---- */

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

/* ---- rows ---- */

enum {
	KEY_ROW = 16,
	KEY_SCALE,
	KEY_BLOCK,
	KEY_ANSWER
};

static size_t dtype_bytes(enum oracle_dtype dtype)
{
	return dtype == ORACLE_FP32 ? 4 : 2;
}

static int is_fp8(const struct oracle_problem *problem)
{
	return problem->quant == ORACLE_QUANT_FP8 || problem->quant == ORACLE_QUANT_FP8_COLUMNS;
}

size_t oracle_input_bytes(const struct oracle_problem *problem)
{
	return problem->quant == ORACLE_QUANT_FORWARD
		       ? problem->hidden
		       : problem->hidden * dtype_bytes(problem->dtype);
}

size_t oracle_output_bytes(const struct oracle_problem *problem)
{
	return problem->quant == ORACLE_QUANT_NONE ? problem->hidden * dtype_bytes(problem->dtype)
						   : problem->hidden;
}

size_t oracle_combine_bytes(const struct oracle_problem *problem)
{
	return problem->hidden * dtype_bytes(problem->dtype);
}

/* Forwarded scales come in rows of a multiple of 16 bytes. */
uint32_t oracle_scale_count(const struct oracle_problem *problem)
{
	uint32_t blocks = (problem->hidden + ORACLE_BLOCK - 1) / ORACLE_BLOCK;

	if (problem->quant == ORACLE_QUANT_NONE) {
		return 0;
	}
	return is_fp8(problem) ? blocks : (blocks + 3) / 4 * 4;
}

static uint64_t row_key(const struct oracle_problem *problem, uint32_t purpose, uint32_t rank,
			uint32_t token)
{
	return oracle_hash(oracle_hash(problem->seed, purpose), (uint64_t)rank << 32 | token);
}

/*
 * A number of either sign between 1/16 and 16 with a random mantissa. Sums of 32 of them times
 * weights below 1 stay finite in every format.
 */
static uint16_t moderate_bf16(uint32_t r)
{
	return (uint16_t)((r & 0x8000u) | (123u + (r >> 7 & 7u)) << 7 | (r & 0x7fu));
}

static uint16_t moderate_fp16(uint32_t r)
{
	return (uint16_t)((r & 0x8000u) | (11u + (r >> 10 & 7u)) << 10 | (r & 0x3ffu));
}

static uint32_t moderate_fp32(uint32_t r)
{
	return (r & 0x80000000u) | (123u + (r >> 23 & 7u)) << 23 | (r & 0x7fffffu);
}

/* Blocks of differing size, so that a scale of the neighbour does not do; some tiny, some zero. */
static void vary_blocks(uint64_t key, uint16_t *row, uint32_t hidden)
{
	for (uint32_t block = 1; block < hidden / ORACLE_BLOCK; block++) {
		uint16_t *x = row + (size_t)block * ORACLE_BLOCK;
		uint32_t kind = (uint32_t)oracle_hash(key, block) & 15u;

		for (uint32_t i = 0; i < ORACLE_BLOCK; i++) {
			if (kind == 0) {
				x[i] = 0;
			} else if (kind == 1) {
				x[i] -= 24u << 7;
			} else if (kind < 8) {
				x[i] += (kind - 1) << 7;
			}
		}
	}
}

/* Eight bytes of a row from eight random ones. */
static uint64_t moderate(enum oracle_dtype dtype, uint64_t r)
{
	uint64_t out = 0;

	if (dtype == ORACLE_FP32) {
		return (uint64_t)moderate_fp32((uint32_t)(r >> 32)) << 32 |
		       moderate_fp32((uint32_t)r);
	}
	for (int shift = 0; shift < 64; shift += 16) {
		uint32_t word = (uint32_t)(r >> shift) & 0xffffu;

		word = dtype == ORACLE_BF16 ? moderate_bf16(word) : moderate_fp16(word);
		out |= (uint64_t)word << shift;
	}
	return out;
}

void oracle_input_row(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		      void *row)
{
	uint64_t key = row_key(problem, KEY_ROW, rank, token);
	uint8_t *bytes = row;
	size_t total = oracle_input_bytes(problem);

	for (size_t at = 0; at < total; at += 8) {
		uint64_t word = oracle_hash(key, at / 8);

		if (problem->quant != ORACLE_QUANT_FORWARD) {
			word = moderate(problem->dtype, word);
		}
		memcpy(bytes + at, &word, total - at < 8 ? total - at : 8);
	}
	if (is_fp8(problem)) {
		vary_blocks(row_key(problem, KEY_BLOCK, rank, token), row, problem->hidden);
	}
}

void oracle_input_scales(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
			 float *scales)
{
	uint64_t key = row_key(problem, KEY_SCALE, rank, token);

	for (uint32_t i = 0; i < oracle_scale_count(problem); i++) {
		uint32_t bits = moderate_fp32((uint32_t)oracle_hash(key, i)) & 0x7fffffffu;

		memcpy(scales + i, &bits, sizeof(bits));
	}
}

/* 2 to the power of ceil(log2(value)), value positive and normal */
static float power_above(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	bits = (bits + 0x7fffffu) & 0x7f800000u;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

void oracle_quantise(const uint16_t *bf16, uint32_t hidden, int pow2, uint8_t *e4m3, float *scales)
{
	for (uint32_t block = 0; block < hidden / ORACLE_BLOCK; block++) {
		const uint16_t *x = bf16 + (size_t)block * ORACLE_BLOCK;
		float amax = 1e-4f;
		float factor;

		for (uint32_t i = 0; i < ORACLE_BLOCK; i++) {
			amax = fmaxf(amax, fabsf(oracle_from_bf16(x[i])));
		}
		scales[block] = amax / 448.0f;
		factor = 448.0f / amax;
		if (pow2) {
			scales[block] = power_above(scales[block]);
			factor = 1.0f / scales[block];
		}
		for (uint32_t i = 0; i < ORACLE_BLOCK; i++) {
			e4m3[(size_t)block * ORACLE_BLOCK + i] =
				oracle_to_e4m3(oracle_from_bf16(x[i]) * factor);
		}
	}
}

void oracle_output_row(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		       void *row, float *scales)
{
	uint16_t input[ORACLE_MAX_FP8_HIDDEN];

	if (!is_fp8(problem)) {
		oracle_input_row(problem, rank, token, row);
		if (problem->quant == ORACLE_QUANT_FORWARD) {
			oracle_input_scales(problem, rank, token, scales);
		}
		return;
	}
	oracle_input_row(problem, rank, token, input);
	oracle_quantise(input, problem->hidden, problem->pow2_scales, row, scales);
}

void oracle_answer(const struct oracle_problem *problem, uint32_t rank, int32_t expert,
		   uint32_t src, uint32_t token, void *row)
{
	uint64_t key = oracle_hash(row_key(problem, KEY_ANSWER, src, token),
				   (uint64_t)rank << 32 | (uint32_t)expert);
	size_t total = oracle_combine_bytes(problem);
	int bits = problem->dtype == ORACLE_FP32 ? 32 : 16;

	for (size_t at = 0; at < total; at += 8) {
		uint64_t word = moderate(problem->dtype, oracle_hash(key, at / 8));

		for (int shift = 0; shift < 64; shift += bits) {
			if ((word >> shift & 31) == 0) { /* one of 32 is a zero, of either sign */
				word &= ~(((UINT64_C(1) << (bits - 1)) - 1) << shift);
			}
		}
		memcpy((uint8_t *)row + at, &word, total - at < 8 ? total - at : 8);
	}
}
