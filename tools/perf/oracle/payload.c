/* SPDX-License-Identifier: Apache-2.0 */
/* Token rows, and the experts' work. */
#include <math.h>
#include <string.h>

#include "oracle.h"

/* ---- rows ---- */

enum {
	KEY_ROW = 16,
	KEY_SCALE,
	KEY_BLOCK,
	KEY_ANSWER,
	KEY_GLOBAL,
	KEY_ANSWER_GROUP
};

static size_t dtype_bytes(enum oracle_dtype dtype)
{
	return dtype == ORACLE_FP32 ? 4 : 2;
}

/* Whether dispatch makes the rows that it delivers. */
static int is_made(const struct oracle_problem *problem)
{
	return problem->quant != ORACLE_QUANT_NONE && problem->quant != ORACLE_QUANT_FORWARD;
}

static enum oracle_format made_format(const struct oracle_problem *problem)
{
	return problem->quant == ORACLE_QUANT_NVFP4   ? ORACLE_NVFP4
	       : problem->quant == ORACLE_QUANT_MXFP8 ? ORACLE_MXFP8
	       : problem->pow2_scales                 ? ORACLE_FP8_POW2
						      : ORACLE_FP8;
}

size_t oracle_input_bytes(const struct oracle_problem *problem)
{
	return problem->quant == ORACLE_QUANT_FORWARD
		       ? problem->hidden
		       : problem->hidden * dtype_bytes(problem->dtype);
}

size_t oracle_output_bytes(const struct oracle_problem *problem)
{
	return is_made(problem) ? oracle_format_bytes(made_format(problem), problem->hidden)
				: oracle_input_bytes(problem);
}

size_t oracle_combine_bytes(const struct oracle_problem *problem)
{
	return problem->hidden * dtype_bytes(problem->dtype);
}

size_t oracle_return_bytes(const struct oracle_problem *problem)
{
	enum oracle_format format = oracle_combine_format(problem);

	return problem->combine_quant
		       ? oracle_format_bytes(format, problem->hidden) +
				 oracle_format_scale_bytes(format, problem->hidden) +
				 (problem->combine_quant == ORACLE_COMBINE_NVFP4 ? sizeof(float)
										 : 0)
		       : oracle_combine_bytes(problem);
}

/* Forwarded scales come in rows of a multiple of 16 bytes. */
uint32_t oracle_scale_words(const struct oracle_problem *problem)
{
	uint32_t blocks = (problem->hidden + ORACLE_BLOCK - 1) / ORACLE_BLOCK;

	if (is_made(problem)) {
		return (uint32_t)oracle_format_scale_bytes(made_format(problem), problem->hidden) /
		       4;
	}
	return problem->quant == ORACLE_QUANT_NONE ? 0 : (blocks + 3) / 4 * 4;
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

#define BF16_SIGN 0x8000u
#define BF16_FRACTION 0x807fu /* and the sign */

/* One element of a group becomes `magnitude`. */
static void put_one(uint16_t *x, uint32_t group, uint32_t kind, uint16_t magnitude)
{
	uint32_t at = kind >> 8 & (group - 1);

	x[at] = (uint16_t)((x[at] & BF16_SIGN) | magnitude);
}

/*
 * Makes groups of bf16 that share a scale differ, so that a neighbour's scale does not do. From
 * group `from` on some are zeros, tiny, subnormal, of one value, or have a NaN or an infinity.
 */
static void vary_groups(uint64_t key, uint16_t *row, uint32_t hidden, uint32_t group, uint32_t from)
{
	for (uint32_t g = from; g < hidden / group; g++) {
		uint16_t *x = row + (size_t)g * group;
		uint32_t kind = (uint32_t)oracle_hash(key, g);

		for (uint32_t i = 0; i < group; i++) {
			switch (kind & 63u) {
			case 0:
			case 1:
				x[i] &= BF16_SIGN;
				break;
			case 2:
			case 3:
				x[i] -= 24u << 7;
				break;
			case 4:
				x[i] &= BF16_FRACTION;
				break;
			case 5:
				x[i] = x[0];
				break;
			default:
				x[i] += (kind & 7u) << 7;
				break;
			}
		}
		if ((kind & 0xffu) == 6) {
			put_one(x, group, kind, 0x7fc0);
		} else if ((kind & 0xffu) == 7) {
			put_one(x, group, kind, 0x7f80);
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
	if (is_made(problem)) { /* the first block is left alone: it tells tokens apart */
		uint32_t group = oracle_group(made_format(problem));

		vary_groups(row_key(problem, KEY_BLOCK, rank, token), row, problem->hidden, group,
			    ORACLE_BLOCK / group);
	}
}

void oracle_input_scales(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
			 float *scales)
{
	uint64_t key = row_key(problem, KEY_SCALE, rank, token);

	for (uint32_t i = 0; i < oracle_scale_words(problem); i++) {
		uint32_t bits = moderate_fp32((uint32_t)oracle_hash(key, i)) & 0x7fffffffu;

		memcpy(scales + i, &bits, sizeof(bits));
	}
}

/* Rows of dispatch differ by 6 binary orders, and some of their scales saturate. */
float oracle_global_scale(const struct oracle_problem *problem, uint32_t rank)
{
	uint64_t r = oracle_hash(oracle_hash(problem->seed, KEY_GLOBAL), rank);

	return 4.0f + (float)(r & 1023) / 256;
}

/* Rows are made a block at a time. */
static void make_row(enum oracle_format format, const uint16_t *bf16, uint32_t hidden, float global,
		     void *row, void *scales)
{
	for (uint32_t c = 0, n; c < hidden; c += n) {
		float x[ORACLE_BLOCK];

		n = hidden - c < ORACLE_BLOCK ? hidden - c : ORACLE_BLOCK;
		oracle_load_row(ORACLE_BF16, bf16 + c, x, n);
		oracle_quantise(format, x, n, global,
				(uint8_t *)row + oracle_format_bytes(format, c),
				(uint8_t *)scales + oracle_format_scale_bytes(format, c));
	}
}

void oracle_output_row(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		       void *row, void *scales)
{
	uint16_t input[ORACLE_MAX_FP8_HIDDEN];

	if (!is_made(problem)) {
		oracle_input_row(problem, rank, token, row);
		if (problem->quant == ORACLE_QUANT_FORWARD) {
			oracle_input_scales(problem, rank, token, scales);
		}
		return;
	}
	oracle_input_row(problem, rank, token, input);
	make_row(made_format(problem), input, problem->hidden, oracle_global_scale(problem, rank),
		 row, scales);
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
	if (problem->combine_quant) {
		vary_groups(oracle_hash(key, KEY_ANSWER_GROUP), row, problem->hidden,
			    oracle_group(oracle_combine_format(problem)), 0);
	}
}

enum oracle_format oracle_combine_format(const struct oracle_problem *problem)
{
	return problem->combine_quant == ORACLE_COMBINE_NVFP4   ? ORACLE_NVFP4
	       : problem->combine_quant == ORACLE_COMBINE_MXFP8 ? ORACLE_MXFP8
								: ORACLE_FP8;
}

/*
 * What uses the whole range; sometimes twice as much, so that scales saturate, and sometimes 0 or
 * infinity.
 */
float oracle_answer_scale(const struct oracle_problem *problem, const void *row)
{
	const uint16_t *bf16 = row;
	uint64_t how = oracle_hash(problem->seed, bf16[0]);
	float amax = 0;

	for (uint32_t c = 0; c < problem->hidden; c++) {
		float x = fabsf(oracle_from_bf16(bf16[c]));

		amax = isfinite(x) && x > amax ? x : amax;
	}
	if (amax == 0 || (how & 62) == 0) {
		return how & 1 ? INFINITY : 0;
	}
	return 2688.0f / amax * ((how & 7) == 1 ? 2 : 1);
}
