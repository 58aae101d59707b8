/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle itself: it accepts what a plain reference does, and nothing else. Each mutation below
 * is a mistake that a library could make.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/perf/oracle/oracle.h"
#include "support/check.h"

struct outputs { /* of one rank */
	uint8_t *tokens, *combine_in;
	float *scales, *weights, *combine_scales;
	int32_t *idx;
	int32_t counts[64];
	size_t blocks, rows;
};

static void test_numbers(void)
{
	for (uint32_t code = 0; code < 0x7f; code++) {
		float value = oracle_from_e4m3((uint8_t)code);
		float next = code < 0x7e ? oracle_from_e4m3((uint8_t)(code + 1)) : 480.0f;
		uint32_t even = code & 1 ? code + 1 : code;

		CHECK(oracle_to_e4m3(value) == code);
		CHECK(oracle_to_e4m3(-value) == (code | 0x80));
		CHECK(oracle_to_e4m3(nextafterf((value + next) / 2, 0)) == code);
		CHECK(oracle_to_e4m3((value + next) / 2) == (even > 0x7e ? 0x7e : even));
	}
	CHECK(oracle_from_e4m3(0x7e) == 448.0f && oracle_from_e4m3(1) == ldexpf(1, -9));
	CHECK(oracle_to_e4m3(1e9f) == 0x7e && oracle_to_e4m3(-INFINITY) == 0xfe);
	for (uint32_t code = 0; code < 0x7c00; code++) {
		float value = oracle_from_fp16((uint16_t)code);
		float next = oracle_from_fp16((uint16_t)(code + 1));

		CHECK(oracle_to_fp16(value) == code);
		if (code + 1 < 0x7c00) {
			CHECK(oracle_to_fp16((value + next) / 2) == (code & 1 ? code + 1 : code));
		}
	}
	CHECK(oracle_from_fp16(0x3c00) == 1.0f && oracle_from_fp16(0x7bff) == 65504.0f);
	CHECK(oracle_to_fp16(65520.0f) == 0x7c00 && oracle_to_fp16(65519.0f) == 0x7bff);
	CHECK(oracle_to_bf16(1.00390625f) == 0x3f80 && oracle_to_bf16(1.01171875f) == 0x3f82);
}

static void test_fp8(void)
{
	float x[128] = { 0 }, scale;
	uint8_t q[128];

	oracle_quantise(ORACLE_FP8, x, 128, 0, q, &scale);
	CHECK(scale == 1e-4f / 448.0f && q[0] == 0);
	x[5] = -896;
	x[6] = 3;
	oracle_quantise(ORACLE_FP8, x, 128, 0, q, &scale);
	CHECK(scale == 2.0f && q[5] == 0xfe && oracle_from_e4m3(q[6]) == 1.5f);
	x[5] = 900;
	oracle_quantise(ORACLE_FP8_POW2, x, 128, 0, q, &scale);
	CHECK(scale == 4.0f && oracle_from_e4m3(q[6]) == 0.75f);
	x[7] = INFINITY;
	for (enum oracle_format format = ORACLE_FP8; format <= ORACLE_FP8_POW2; format++) {
		oracle_quantise(format, x, 128, 0, q, &scale);
		CHECK(isinf(scale) && q[6] == 0 && q[7] == 0x7f);
	}
}

static void test_mxfp8(void)
{
	float x[64] = { [3] = -0.0f, [32] = 0x1p-149f, [33] = 0x1p-126f };
	uint8_t q[64], scales[2];
	double back[64];

	oracle_quantise(ORACLE_MXFP8, x, 64, 0, q, scales);
	CHECK(scales[0] == 0 && q[0] == 0 && q[3] == 0x80 && scales[1] == 0 && q[32] == 0 &&
	      q[33] == 0x40);
	for (int high = 0; high < 2; high++) {
		x[5] = high ? -452 : -448;
		x[6] = 3.25f;
		oracle_quantise(ORACLE_MXFP8, x, 64, 0, q, scales);
		oracle_dequantise(ORACLE_MXFP8, q, scales, 64, 0, back);
		CHECK(scales[0] == 127 + high && back[5] == -448 && back[6] == 3.25 &&
		      back[33] == 0x1p-126);
	}
	x[7] = -INFINITY;
	x[34] = NAN;
	oracle_quantise(ORACLE_MXFP8, x, 64, 0, q, scales);
	oracle_dequantise(ORACLE_MXFP8, q, scales, 64, 0, back);
	CHECK(scales[0] == 254 && q[7] == 0xfe && q[5] == 0x80 && isinf((float)back[7]) &&
	      back[5] == 0);
	CHECK(scales[1] == 255 && q[32] == 0x7f && isnan(back[32]) && isnan(back[63]));
}

static void test_nvfp4(void)
{
	static const float ties[] = { 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5 };
	static const uint8_t evens[] = { 0, 2, 2, 4, 4, 6, 6 };
	float x[32] = { 6, -3, 0.75f, -0.0f, 100 };
	uint8_t q[16], scales[2];
	double back[32];

	for (int i = 0; i < 7; i++) {
		CHECK(oracle_to_e2m1(ties[i]) == evens[i] &&
		      oracle_to_e2m1(-ties[i]) == (evens[i] | 8));
		CHECK(oracle_to_e2m1(nextafterf(ties[i], 9)) == i + 1);
		CHECK(oracle_to_e2m1(nextafterf(ties[i], 0)) == i);
		CHECK(oracle_to_e2m1(oracle_from_e2m1((uint8_t)(i + 9))) == i + 9);
	}
	CHECK(oracle_to_e2m1(1e9f) == 7 && oracle_to_e2m1(NAN) == 7);
	oracle_quantise(ORACLE_NVFP4, x, 32, 2, q, scales);
	CHECK(scales[0] == 0x60 && scales[1] == 0 && q[0] == 0x81 && q[1] == 0x80 && q[2] == 7 &&
	      q[8] == 0);
	x[4] = 0;
	oracle_quantise(ORACLE_NVFP4, x, 32, 2, q, scales);
	oracle_dequantise(ORACLE_NVFP4, q, scales, 32, 2, back);
	CHECK(scales[0] == 0x40 && q[0] == 0xd7 && back[0] == 6 && back[1] == -3 && back[2] == 1);
	x[16] = INFINITY;
	x[0] = NAN;
	oracle_quantise(ORACLE_NVFP4, x, 32, 2, q, scales);
	oracle_dequantise(ORACLE_NVFP4, q, scales, 32, 2, back);
	CHECK(scales[1] == 0x7e && q[8] == 7 && back[16] == 1344 && back[17] == 0);
	CHECK(scales[0] == 0x7f && q[3] == 0x77 && isnan(back[15]));
	x[16] = 5;
	oracle_quantise(ORACLE_NVFP4, x, 32, 0, q, scales);
	oracle_dequantise(ORACLE_NVFP4, q, scales, 32, 0, back);
	CHECK(back[17] == 0);
	memset(x, 0, sizeof(x));
	oracle_quantise(ORACLE_NVFP4, x, 32, INFINITY, q, scales);
	oracle_dequantise(ORACLE_NVFP4, q, scales, 32, INFINITY, back);
	CHECK(scales[0] == 0 && q[0] == 0 && back[0] == 0);
}

/* The plainest dispatch there is. */
static void reference_dispatch(const struct oracle_problem *p, uint32_t rank, struct outputs *o)
{
	uint32_t local = p->experts / p->nranks;
	size_t bytes = oracle_output_bytes(p);
	uint32_t n = oracle_scale_words(p);
	int by_rank = p->layout == ORACLE_RANK_MAJOR;

	o->blocks = by_rank ? p->nranks : local;
	o->rows = by_rank ? p->max_tokens : p->max_tokens * p->nranks;
	o->tokens = malloc(o->blocks * o->rows * bytes);
	o->combine_in = malloc(o->blocks * o->rows * oracle_combine_bytes(p));
	o->combine_scales = malloc(o->blocks * o->rows * sizeof(float));
	o->scales = malloc((o->blocks * o->rows * n + 1) * sizeof(float));
	o->weights = malloc(o->blocks * o->rows * p->topk * sizeof(float));
	o->idx = malloc(o->blocks * o->rows * p->topk * sizeof(int32_t));
	memset(o->tokens, ORACLE_POISON, o->blocks * o->rows * bytes);
	memset(o->scales, ORACLE_POISON, o->blocks * o->rows * n * sizeof(float));
	memset(o->weights, ORACLE_POISON, o->blocks * o->rows * p->topk * sizeof(float));
	memset(o->idx, 0xff, o->blocks * o->rows * p->topk * sizeof(int32_t));
	memset(o->counts, 0, sizeof(o->counts));
	for (uint32_t src = 0; src < p->nranks; src++) {
		for (uint32_t t = 0; t < oracle_tokens(p, src); t++) {
			int32_t ids[32], sent = 0;

			oracle_route(p, src, t, ids);
			for (uint32_t k = 0; k < p->topk; k++) {
				uint32_t block = by_rank ? src : (uint32_t)ids[k] % local;
				size_t row = block * o->rows + (size_t)o->counts[block];
				float scales[512];

				if (ids[k] < 0 || (uint32_t)ids[k] / local != rank ||
				    (by_rank && sent)) {
					continue;
				}
				sent = 1;
				oracle_output_row(p, src, t, o->tokens + row * bytes, scales);
				for (uint32_t i = 0; i < n; i++) {
					size_t at = row * n + i;

					if (p->quant == ORACLE_QUANT_FP8_COLUMNS) {
						at = (block * n + i) * o->rows + row % o->rows;
					}
					o->scales[at] = scales[i];
				}
				oracle_weights(p, src, t, o->weights + row * p->topk);
				for (uint32_t j = 0; by_rank && j < p->topk; j++) {
					int here = ids[j] >= 0 && (uint32_t)ids[j] / local == rank;

					o->idx[row * p->topk + j] = here ? ids[j] % (int32_t)local
									 : -1;
				}
				o->counts[block]++;
			}
		}
	}
}

static uint64_t judge(const struct oracle_problem *p, uint32_t rank, const struct outputs *o)
{
	struct oracle_table *table = oracle_table_create(p, rank);
	struct oracle_dispatch view = { o->tokens, o->scales,  o->weights,    o->idx,
					o->counts, UINT32_MAX, o->combine_in, o->combine_scales };
	struct oracle_verdict verdict = { 0 };

	oracle_check_dispatch(table, NULL, &view, &verdict);
	oracle_table_free(table);
	return verdict.wrong;
}

static size_t used_row(const struct outputs *o)
{
	for (size_t block = 0; block < o->blocks; block++) {
		if (o->counts[block] > 0) {
			return block * o->rows;
		}
	}
	return 0;
}

static void mutate(const struct oracle_problem *p, uint32_t rank, struct outputs *o)
{
	size_t bytes = oracle_output_bytes(p);
	size_t row = used_row(o);
	uint32_t n = oracle_scale_words(p);
	size_t last = o->blocks * o->rows - 1;
	size_t scale_step = p->quant == ORACLE_QUANT_FP8_COLUMNS ? o->rows : 1;
	uint8_t *b = o->tokens + row * bytes + bytes - 1;

	*b ^= 1;
	CHECK(judge(p, rank, o) == 1);
	*b ^= 1;
	o->counts[row / o->rows]++;
	CHECK(judge(p, rank, o) == 1);
	o->counts[row / o->rows]--;
	if (o->counts[o->blocks - 1] < (int32_t)o->rows) {
		o->tokens[last * bytes] = 0;
		CHECK(judge(p, rank, o) == 1);
		o->tokens[last * bytes] = ORACLE_POISON;
	}
	if (n) {
		uint8_t *scale = (uint8_t *)(o->scales + row * n + (n - 1) * scale_step);

		*scale ^= 1;
		CHECK(judge(p, rank, o) == 1);
		*scale ^= 1;
	}
	if (p->layout == ORACLE_RANK_MAJOR) {
		o->idx[row * p->topk] ^= 1;
		CHECK(judge(p, rank, o) == 1);
		o->idx[row * p->topk] ^= 1;
		o->weights[row * p->topk + 1] += 1;
		CHECK(judge(p, rank, o) == 1);
		oracle_weights(p, (uint32_t)(row / o->rows), 0, o->weights + row * p->topk);
	}
	if (p->layout == ORACLE_EXPERT_MAJOR && o->counts[row / o->rows] > 1 &&
	    memcmp(o->tokens + row * bytes, o->tokens + (row + 1) * bytes, bytes) != 0) {
		memcpy(o->tokens + row * bytes, o->tokens + (row + 1) * bytes, bytes);
		CHECK(judge(p, rank, o) >= 1); /* one row twice, another missing */
	}
}

/* Combine by reading the experts' rows that the dispatch check wrote. */
/* Mistakes of a combine. */
enum {
	RIGHT,
	DESCENDING,    /* adds in another order */
	NOT_QUANTISED, /* adds rows as they were before they travelled */
	OTHER_SCALE    /* quantises a row by another scale than its own */
};

/* What comes of a row that returns. */
static void returned(const struct oracle_problem *p, const struct outputs *o, size_t row,
		     int mistake, float *x)
{
	enum oracle_format format = oracle_combine_format(p);
	float global = p->combine_quant == ORACLE_COMBINE_NVFP4 ? o->combine_scales[row] : 1;
	uint8_t codes[256];
	float scales[16]; /* of any format */
	double values[256];

	oracle_load_row(p->dtype, o->combine_in + row * oracle_combine_bytes(p), x, p->hidden);
	if (!p->combine_quant || mistake == NOT_QUANTISED) {
		return;
	}
	global *= mistake == OTHER_SCALE ? 1.2f : 1;
	oracle_quantise(format, x, p->hidden, global, codes, scales);
	oracle_dequantise(format, codes, scales, p->hidden, global, values);
	for (uint32_t c = 0; c < p->hidden; c++) {
		x[c] = (float)values[c];
	}
}

static void reference_combine(const struct oracle_problem *p, uint32_t rank,
			      const struct outputs *all, uint8_t *out, int mistake)
{
	uint32_t local = p->experts / p->nranks;
	size_t bytes = oracle_combine_bytes(p);
	uint32_t next[64][64] = { { 0 } };
	int by_rank = p->layout == ORACLE_RANK_MAJOR;
	static float x[32][256];

	for (uint32_t src = 0; src <= rank; src++) {
		for (uint32_t t = 0; t < oracle_tokens(p, src); t++) {
			int32_t ids[32];
			float weights[32];
			const float *rows[32] = { NULL };

			oracle_route(p, src, t, ids);
			oracle_weights(p, src, t, weights);
			for (uint32_t k = 0, to; k < p->topk; k++) {
				uint32_t block = by_rank ? src : (uint32_t)ids[k] % local;
				int seen = 0;

				to = (uint32_t)ids[k] / local;
				for (uint32_t j = 0; by_rank && j < k; j++) {
					seen |= ids[j] >= 0 && (uint32_t)ids[j] / local == to;
				}
				if (ids[k] >= 0 && !seen) {
					returned(p, &all[to],
						 block * all[to].rows + next[to][block]++, mistake,
						 x[k]);
					rows[k] = x[k];
				}
			}
			for (size_t c = 0; c < p->hidden && src == rank; c++) {
				float sum = -0.0f; /* which changes no number that is added */
				uint32_t parts = 0;

				for (uint32_t i = 0; i < p->topk; i++) {
					uint32_t k = mistake == DESCENDING ? p->topk - 1 - i : i;

					if (rows[k]) {
						parts++;
						sum = fmaf(by_rank ? 1 : weights[k], rows[k][c],
							   sum);
					}
				}
				oracle_store(p->dtype, out + t * bytes, c, parts ? sum : 0.0f);
			}
		}
	}
}

static uint64_t judge_combine(const struct oracle_problem *p, uint32_t rank, const uint8_t *out)
{
	struct oracle_table *table = oracle_table_create(p, rank);
	struct oracle_verdict verdict = { 0 };

	oracle_check_combine(table, NULL, out, 1, &verdict);
	oracle_table_free(table);
	return verdict.wrong;
}

static void test_problem(struct oracle_problem *p, const char *routing)
{
	struct outputs all[64];
	size_t bytes = oracle_combine_bytes(p);
	uint8_t *out = malloc((p->max_tokens + 1) * bytes);
	char why[128];

	CHECK(oracle_routing_parse(routing, &p->routing, why, sizeof(why)) == 0);
	CHECK(oracle_problem_prepare(p, why, sizeof(why)) == 0);
	for (uint32_t rank = 0; rank < p->nranks; rank++) {
		reference_dispatch(p, rank, &all[rank]);
		CHECK(judge(p, rank, &all[rank]) == 0);
	}
	for (uint32_t rank = 0; rank < p->nranks; rank++) {
		uint32_t n = oracle_tokens(p, rank);

		memset(out, ORACLE_POISON, (p->max_tokens + 1) * bytes);
		reference_combine(p, rank, all, out, RIGHT);
		CHECK(judge_combine(p, rank, out) == 0);
		out[n * bytes + 3] = 0;
		CHECK(judge_combine(p, rank, out) == 1);
		out[n * bytes + 3] = ORACLE_POISON;
		if (n > 0) {
			out[n * bytes - 2] ^= 0x40;
			CHECK(judge_combine(p, rank, out) == 1);
		}
		if (n > 2 && p->dtype == ORACLE_FP32 && p->layout == ORACLE_EXPERT_MAJOR) {
			reference_combine(p, rank, all, out, DESCENDING);
			CHECK(judge_combine(p, rank, out) > 0);
		}
		if (n > 2 && p->combine_quant) {
			reference_combine(p, rank, all, out, NOT_QUANTISED);
			CHECK(judge_combine(p, rank, out) > n / 2);
		}
		if (n > 2 && p->combine_quant == ORACLE_COMBINE_NVFP4) {
			reference_combine(p, rank, all, out, OTHER_SCALE);
			CHECK(judge_combine(p, rank, out) > n / 2);
		}
	}
	for (uint32_t rank = 0; rank < p->nranks; rank++) {
		if (all[rank].counts[used_row(&all[rank]) / all[rank].rows] > 0) {
			mutate(p, rank, &all[rank]);
		}
		free(all[rank].tokens);
		free(all[rank].combine_in);
		free(all[rank].combine_scales);
		free(all[rank].scales);
		free(all[rank].weights);
		free(all[rank].idx);
	}
	free(out);
	oracle_problem_free(p);
	oracle_routing_free(&p->routing);
}

static void test_problems(void)
{
	static const char *const routings[] = {
		"uniform",   "zipf:1.1",   "hot:0.5", "hot:1,2",    "zipf:0",     "group:4,2",
		"power:1.2", "khot:2,0.5", "empty:2", "ragged:0.3", "rotate:0.7", "burst:1,2"
	};

	for (uint32_t i = 0; i < 6 * 2 * 9; i++) {
		struct oracle_problem p = { .seed = i, .nranks = 4, .experts = 24, .topk = 5 };

		p.hidden = 256;
		p.max_tokens = 9;
		p.tokens = 7 + i % 3;
		p.uneven = i % 5 == 0;
		p.drop_ppm = i % 4 == 0 ? 100000 : 0;
		p.duplicate_ppm = i % 7 == 0 ? 100000 : 0;
		p.layout = i / 6 % 2 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR;
		switch (i / 12) {
		case 1:
			p.dtype = ORACLE_FP16;
			break;
		case 2:
			p.dtype = ORACLE_FP32;
			break;
		case 3:
			p.quant = ORACLE_QUANT_FP8;
			break;
		case 4:
			p.quant = ORACLE_QUANT_FP8_COLUMNS;
			p.pow2_scales = 1;
			break;
		case 5:
			p.quant = ORACLE_QUANT_FORWARD;
			p.dtype = ORACLE_FP32;
			break;
		case 6:
			p.quant = ORACLE_QUANT_MXFP8;
			p.combine_quant = ORACLE_COMBINE_FP8;
			break;
		case 7:
			p.quant = ORACLE_QUANT_NVFP4;
			p.combine_quant = ORACLE_COMBINE_NVFP4;
			break;
		case 8:
			p.combine_quant = ORACLE_COMBINE_NVFP4;
			p.hidden = 96;
			break;
		}
		p.step = i % 3;
		test_problem(&p, routings[i % 12]);
	}
}

/* Ids of all ranks, by expert. */
static void count_ids(const struct oracle_problem *p, uint64_t *hits)
{
	memset(hits, 0, p->experts * sizeof(*hits));
	for (uint32_t r = 0; r < p->nranks; r++) {
		for (uint32_t t = 0; t < oracle_tokens(p, r); t++) {
			int32_t ids[ORACLE_MAX_TOPK];

			oracle_route(p, r, t, ids);
			for (uint32_t k = 0; k < p->topk; k++) {
				CHECK(ids[k] >= 0 && ids[k] < (int32_t)p->experts);
				hits[ids[k]]++;
				for (uint32_t j = 0; j < k; j++) {
					CHECK(ids[j] != ids[k]);
				}
			}
		}
	}
}

/* Zipf's exponent is the one that was said, to a millionth. */
static void test_zipf(void)
{
	static const double exponents[] = { 0, 0.5, 0.999, 1.01, 1.2, 3.999999 };

	for (size_t i = 0; i < sizeof(exponents) / sizeof(exponents[0]); i++) {
		struct oracle_problem p = { .nranks = 4, .experts = 256, .topk = 2, .hidden = 16 };
		char text[32], why[128];
		uint64_t before = 0;

		snprintf(text, sizeof(text), "zipf:%.6f", exponents[i]);
		CHECK(oracle_routing_parse(text, &p.routing, why, sizeof(why)) == 0);
		CHECK(oracle_problem_prepare(&p, why, sizeof(why)) == 0);
		for (uint32_t e = 0; e < 256; e++) {
			double wanted = pow(e + 1, -exponents[i]) * 0x1p40;

			CHECK(fabs((double)(p.popular_sum[e] - before) - wanted) <
			      2 + wanted * 1e-7);
			before = p.popular_sum[e];
		}
		oracle_problem_free(&p);
	}
}

/* A few experts have their share of the ids, evenly; the rest is even, too. */
static void test_khot(void)
{
	struct oracle_problem p = {
		.seed = 3, .nranks = 4, .experts = 64, .topk = 4, .hidden = 16
	};
	uint64_t hits[64], hot = 0, least = UINT64_MAX, most = 0;
	char why[128];

	p.tokens = p.max_tokens = 4096;
	CHECK(oracle_routing_parse("khot:8,0.4", &p.routing, why, sizeof(why)) == 0);
	CHECK(oracle_problem_prepare(&p, why, sizeof(why)) == 0);
	count_ids(&p, hits);
	for (uint32_t e = 0; e < 64; e++) {
		uint64_t n = hits[p.popular_expert[e]];

		hot += e < 8 ? n : 0;
		least = n < least ? n : least;
		most = n > most ? n : most;
		CHECK(fabs((double)n / (e < 8 ? 65536 * 0.4 / 8 : 65536 * 0.6 / 56) - 1) < 0.15);
	}
	CHECK(fabs((double)hot / 65536 - 0.4) < 0.01);
	oracle_problem_free(&p);
	/* a token has each of them once */
	CHECK(oracle_routing_parse("khot:2,1", &p.routing, why, sizeof(why)) == 0);
	CHECK(oracle_problem_prepare(&p, why, sizeof(why)) == 0);
	count_ids(&p, hits);
	CHECK(hits[p.popular_expert[0]] == 16384 && hits[p.popular_expert[1]] == 16384);
	oracle_problem_free(&p);
	CHECK(oracle_routing_parse("khot:65,0.5", &p.routing, why, sizeof(why)) == 0);
	CHECK(oracle_problem_prepare(&p, why, sizeof(why)) != 0 && strstr(why, "1 to 64"));
	CHECK(oracle_routing_parse("khot:64,0", &p.routing, why, sizeof(why)) == 0);
	CHECK(oracle_problem_prepare(&p, why, sizeof(why)) == 0);
	count_ids(&p, hits);
	oracle_problem_free(&p);
}

static int descending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x < y) - (x > y);
}

/*
 * Loads are those of the power law: of 1024 experts the i-th busiest has about the (1 - i /
 * 1024)-th quantile, scaled. The busiest rank is rank 0.
 */
static void test_power(double a, const char *text, uint32_t tokens, double least, double most)
{
	struct oracle_problem p = {
		.seed = 5, .nranks = 8, .experts = 1024, .topk = 8, .hidden = 16
	};
	double low = pow(least, 1 - a), high = pow(most, 1 - a), scale = 0, total = 0;
	uint64_t hits[1024], rank[8] = { 0 };
	char why[128];

	p.tokens = p.max_tokens = tokens;
	CHECK(oracle_routing_parse(text, &p.routing, why, sizeof(why)) == 0);
	CHECK(oracle_problem_prepare(&p, why, sizeof(why)) == 0);
	count_ids(&p, hits);
	for (uint32_t e = 0; e < 1024; e++) {
		total += (double)hits[e];
		rank[e / 128] += hits[e];
	}
	CHECK(total == 8.0 * 8 * tokens);
	for (uint32_t r = 1; r < 8; r++) {
		CHECK(rank[r] <= rank[0]);
	}
	qsort(hits, 1024, sizeof(hits[0]), descending);
	CHECK(hits[0] <= 8 * (uint64_t)tokens);
	for (uint32_t i = 0; i < 1024; i++) {
		scale += pow((high - low) * (1023.5 - i) / 1024 + low, 1 / (1 - a));
	}
	for (uint32_t i = 64; tokens > 1000 && i < 1000; i += 39) {
		double wanted =
			pow((high - low) * (1023.5 - i) / 1024 + low, 1 / (1 - a)) * total / scale;

		CHECK(fabs((double)hits[i] / wanted - 1) < 0.3 + 1 / wanted);
	}
	oracle_problem_free(&p);
}

/* A token has an expert once, however few there are. */
static void test_power_few(void)
{
	for (uint32_t seed = 0; seed < 8; seed++) {
		struct oracle_problem p = {
			.seed = seed, .nranks = 4, .experts = 12, .hidden = 16
		};
		uint64_t hits[12];
		char why[128];

		p.topk = 8;
		p.tokens = p.max_tokens = 100;
		CHECK(oracle_routing_parse("power:1.001", &p.routing, why, sizeof(why)) == 0);
		CHECK(oracle_problem_prepare(&p, why, sizeof(why)) == 0);
		count_ids(&p, hits);
		oracle_problem_free(&p);
	}
}

/* Families do what their names say. */
static void test_families(void)
{
	struct oracle_problem p = { .nranks = 8, .experts = 256, .topk = 8, .hidden = 128 };
	struct oracle_traffic traffic;
	uint32_t hits[256] = { 0 };
	char why[128];

	p.tokens = p.max_tokens = 512;
	CHECK(oracle_routing_parse("uniform", &p.routing, why, sizeof(why)) == 0);
	oracle_traffic(&p, 3, &traffic);
	CHECK(traffic.expert_copies == 4096);
	CHECK(fabs((double)traffic.rank_copies / 512 - 5.295) < 0.15);
	CHECK(fabs((double)traffic.rank_copies_remote / 512 - 4.633) < 0.15);

	CHECK(oracle_routing_parse("hot:1,5", &p.routing, why, sizeof(why)) == 0);
	oracle_traffic(&p, 3, &traffic);
	CHECK(traffic.rank_copies == 512 && traffic.rank_copies_remote == 512);
	oracle_traffic(&p, 5, &traffic);
	CHECK(traffic.rank_copies_in == 512 * 7 && traffic.rank_copies_remote == 0);

	CHECK(oracle_routing_parse("group:8,2", &p.routing, why, sizeof(why)) == 0);
	oracle_traffic(&p, 0, &traffic);
	CHECK(traffic.rank_copies <= 1024 && traffic.rank_copies > 900);

	CHECK(oracle_routing_parse("zipf:1", &p.routing, why, sizeof(why)) == 0);
	CHECK(oracle_problem_prepare(&p, why, sizeof(why)) == 0);
	for (uint32_t t = 0; t < 512; t++) {
		int32_t ids[32];

		oracle_route(&p, 0, t, ids);
		for (int k = 0; k < 8; k++) {
			hits[ids[k]]++;
		}
	}
	CHECK(hits[p.popular_expert[0]] > 300);
	CHECK(hits[p.popular_expert[0]] > 4 * hits[p.popular_expert[63]]);
	/* weights 1/i: the exponent 1 is exact */
	CHECK(p.popular_sum[1] - p.popular_sum[0] == p.popular_sum[0] / 2);
	oracle_problem_free(&p);

	CHECK(oracle_routing_parse("zipf:-1", &p.routing, why, sizeof(why)) != 0);
	CHECK(oracle_routing_parse("power:1", &p.routing, why, sizeof(why)) != 0);
	CHECK(oracle_routing_parse("power:1.2x", &p.routing, why, sizeof(why)) != 0);
	CHECK(oracle_routing_parse("khot:8", &p.routing, why, sizeof(why)) != 0);
	CHECK(oracle_routing_parse("khot:8,1.1", &p.routing, why, sizeof(why)) != 0);
	CHECK(oracle_routing_parse("hot:1.5", &p.routing, why, sizeof(why)) != 0);
	CHECK(oracle_routing_parse("group:8", &p.routing, why, sizeof(why)) != 0);
	CHECK(oracle_routing_parse("file:/nonexistent", &p.routing, why, sizeof(why)) != 0);
	CHECK(oracle_routing_parse("random", &p.routing, why, sizeof(why)) != 0);
}

/* ---- workloads of ranks and of steps ---- */

#define WORK_RANKS 8
#define WORK_TOKENS 1000

/* A problem of 8 ranks with 32 experts each; top-k 4. */
static void work_prepare(struct oracle_problem *p, const char *text)
{
	char why[200];

	*p = (struct oracle_problem){
		.seed = 7, .nranks = WORK_RANKS, .experts = 256, .topk = 4, .hidden = 16
	};
	p->tokens = p->max_tokens = WORK_TOKENS;
	CHECK(oracle_routing_parse(text, &p->routing, why, sizeof(why)) == 0);
	CHECK(oracle_problem_prepare(p, why, sizeof(why)) == 0);
}

/* Ids that name a rank's experts, in a step. Returns how many there are in all. */
static uint64_t work_loads(struct oracle_problem *p, uint32_t step, uint64_t loads[WORK_RANKS])
{
	uint64_t hits[256], all = 0;

	memset(loads, 0, WORK_RANKS * sizeof(*loads));
	p->step = step;
	count_ids(p, hits);
	for (uint32_t e = 0; e < 256; e++) {
		loads[e / 32] += hits[e];
		all += hits[e];
	}
	return all;
}

/* A rank has `share` of the ids, and the others share the rest evenly. */
static void work_expect(struct oracle_problem *p, uint32_t step, uint32_t rank, double share)
{
	uint64_t loads[WORK_RANKS], all = work_loads(p, step, loads);

	CHECK_INT(all, WORK_RANKS * WORK_TOKENS * 4);
	for (uint32_t r = 0; r < WORK_RANKS; r++) {
		double want = r == rank ? share : (1 - share) / (WORK_RANKS - 1);

		CHECK(fabs((double)loads[r] / (double)all - want) < 0.01);
	}
}

/* The hot rank is another one in each step, and the first one again after all of them. */
static void test_rotate(void)
{
	struct oracle_problem p;

	work_prepare(&p, "rotate:0.6");
	CHECK_INT(oracle_steps(&p), WORK_RANKS);
	p.nranks = 1000;
	CHECK_INT(oracle_steps(&p), ORACLE_MAX_STEPS);
	p.nranks = WORK_RANKS;
	for (uint32_t step = 0; step < WORK_RANKS + 2; step++) {
		work_expect(&p, step, step % WORK_RANKS, 0.6 + 0.4 / WORK_RANKS);
	}
}

/* One step of n is as hot as can be, and the others are uniform. */
static void test_burst(void)
{
	struct oracle_problem p;

	work_prepare(&p, "burst:1,5");
	CHECK_INT(oracle_steps(&p), 5);
	for (uint32_t step = 0; step < 10; step++) {
		work_expect(&p, step, 0, step % 5 == 4 ? 1 : 1.0 / WORK_RANKS);
	}
}

/*
 * Ranks have from all tokens down to a fraction of them, in equal steps; which ones is no matter of
 * the seed.
 */
static void test_ragged(void)
{
	struct oracle_problem p;

	work_prepare(&p, "ragged:0.3");
	for (uint32_t r = 0; r < WORK_RANKS; r++) {
		CHECK_INT(oracle_tokens(&p, r), WORK_TOKENS - 100 * r);
	}
	work_prepare(&p, "ragged:0");
	CHECK_INT(oracle_tokens(&p, 0), WORK_TOKENS);
	CHECK_INT(oracle_tokens(&p, WORK_RANKS - 1), 0);
	work_prepare(&p, "ragged:1");
	CHECK_INT(oracle_tokens(&p, WORK_RANKS - 1), WORK_TOKENS);
	p.nranks = 1;
	CHECK_INT(oracle_tokens(&p, 0), WORK_TOKENS);
}

/* The last ranks have nothing to send and get nothing; the others share evenly. */
static void test_empty(void)
{
	struct oracle_problem p;
	uint64_t loads[WORK_RANKS], all;
	char why[200];

	work_prepare(&p, "empty:3");
	all = work_loads(&p, 0, loads);
	CHECK_INT(all, 5 * WORK_TOKENS * 4);
	for (uint32_t r = 0; r < WORK_RANKS; r++) {
		CHECK_INT(oracle_tokens(&p, r), r < 5 ? WORK_TOKENS : 0);
		CHECK(r < 5 ? fabs((double)loads[r] / (double)all - 0.2) < 0.01 : loads[r] == 0);
	}
	p.experts = 8;
	CHECK(oracle_problem_prepare(&p, why, sizeof(why)) == 0); /* 5 experts for top-k 4 */
	p.topk = 6;
	CHECK(oracle_problem_prepare(&p, why, sizeof(why)) != 0 && strstr(why, "3 of 8 ranks"));
	p.topk = 4;
	p.routing.count = 8;
	CHECK(oracle_problem_prepare(&p, why, sizeof(why)) != 0);
}

/* A curve begins as it is for its last line, which has the most rows: all tokens go to rank 0. */
static void test_curve(void)
{
	struct oracle_problem p;

	work_prepare(&p, "curve:4");
	work_expect(&p, 0, 0, 1);
	p.routing.hot_ppm = 250000;
	work_expect(&p, 0, 0, 0.25 + 0.75 / WORK_RANKS);
}

/* Where few ranks hold experts and others bring tokens, workloads are of these. */
static void test_work_roles(void)
{
	struct oracle_problem p;
	uint64_t hits[256];

	work_prepare(&p, "rotate:1");
	p.first_holder = 4;
	p.holders = 4;
	p.senders = 4;
	CHECK_INT(oracle_steps(&p), 4);
	for (p.step = 0; p.step < 4; p.step++) {
		count_ids(&p, hits);
		for (uint32_t e = 0; e < 256; e++) {
			CHECK((hits[e] > 0) == (oracle_holder(&p, e) == 4 + p.step));
		}
	}
	work_prepare(&p, "ragged:0");
	p.first_sender = 6;
	p.senders = 2;
	for (uint32_t r = 0; r < WORK_RANKS; r++) {
		CHECK_INT(oracle_tokens(&p, r), r == 6 ? WORK_TOKENS : 0);
	}
	work_prepare(&p, "empty:1");
	p.senders = 2;
	p.first_holder = 2;
	p.holders = 2;
	count_ids(&p, hits);
	CHECK(oracle_tokens(&p, 0) == WORK_TOKENS && oracle_tokens(&p, 1) == 0);
	CHECK(hits[127] > 0 && hits[128] == 0);
}

/*
 * Steps have ids of their own with the same property, and step 0 those of before there were steps.
 * A trace goes on with the next lines.
 */
static void test_steps(void)
{
	struct oracle_problem p;
	int32_t lines[6 * ORACLE_MAX_TOPK], ids[2][ORACLE_MAX_TOPK];
	uint32_t same = 0;

	work_prepare(&p, "hot:0.5,3");
	for (uint32_t step = 0; step < 3; step++) {
		work_expect(&p, step, 3, 0.5 + 0.5 / WORK_RANKS);
	}
	for (uint32_t t = 0; t < 100; t++) {
		for (uint32_t i = 0; i < 2; i++) {
			p.step = i;
			oracle_route(&p, 0, t, ids[i]);
		}
		same += !memcmp(ids[0], ids[1], 4 * sizeof(ids[0][0]));
	}
	CHECK(same < 5);
	CHECK_INT(oracle_steps(&p), 1);

	p = (struct oracle_problem){ .nranks = 2, .experts = 8, .topk = 1, .max_tokens = 2 };
	p.routing = (struct oracle_routing){ .family = ORACLE_FILE, .lines = lines, .nlines = 6 };
	for (int i = 0; i < 6; i++) {
		lines[i * ORACLE_MAX_TOPK] = i;
	}
	for (uint32_t i = 0; i < 12; i++) { /* step, rank, token */
		p.step = i / 4;
		oracle_route(&p, i / 2 % 2, i % 2, ids[0]);
		CHECK_INT(ids[0][0], i % 6);
	}
}

/* What workloads do not take. */
static void test_refused_workloads(void)
{
	static const char *const bad[] = { "rotate",
					   "rotate:1.1",
					   "burst:1",
					   "burst:1,1",
					   "burst:1,65",
					   "burst:2,4",
					   "burst:1,4x",
					   "ragged:2",
					   "ragged:0.5,",
					   "empty:0",
					   "empty:-1",
					   "empty:1x",
					   "curve:0",
					   "curve:",
					   "uniform:1",
					   "file",
					   "hotter:1",
					   "hot",
					   "" };
	struct oracle_routing routing;
	char why[400];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		CHECK(oracle_routing_parse(bad[i], &routing, why, sizeof(why)) != 0);
		CHECK(strstr(why, "allowed is "));
	}
}

static int main_oracle(int argc, char **argv)
{
	test_numbers();
	test_fp8();
	test_mxfp8();
	test_nvfp4();
	test_problems();
	test_families();
	test_zipf();
	test_khot();
	test_rotate();
	test_burst();
	test_ragged();
	test_empty();
	test_curve();
	test_work_roles();
	test_steps();
	test_refused_workloads();
	test_power_few();
	test_power(1.2, "power:1.2", 4096, 1, 0.8 * 8 * 4096);
	test_power(1.01, "power:1.01", 4096, 1, 0.8 * 8 * 4096);
	test_power(1.2, "power:1.2", 1, 0.01, 2);
	test_power(1.2, "power:1.2", 0, 0.01, 2);
	test_power(4, "power:4", 2000, 1, 0.8 * 8 * 2000);
	return check_end();
}

/*
 * The oracle of high throughput: it accepts what a plain reference makes, which looks at all tokens
 * for each row, and finds every mistake that is made in it.
 */

#define RANKS 3
#define MOST 400 /* rows */

struct ht_outputs { /* of one rank */
	uint8_t *tokens, *scales;
	float weights[MOST * ORACLE_MAX_TOPK];
	int64_t idx[MOST * ORACLE_MAX_TOPK];
	int64_t counters[64], offsets[64], total;
	uint8_t *sums;
	float gradients[64 * ORACLE_MAX_TOPK];
};

static struct oracle_ht make_problem(int expert_major, int drop, int forward, int mxfp8)
{
	struct oracle_ht h = { .expert_major = expert_major, .drop = drop };
	char why[128];

	h.p = (struct oracle_problem){ .seed = 5, .nranks = RANKS, .experts = 12, .topk = 5 };
	h.p.hidden = 40;
	h.p.max_tokens = h.p.tokens = 30;
	h.p.uneven = 1;
	h.p.drop_ppm = 200000;
	h.p.duplicate_ppm = 200000;
	h.p.quant = forward ? ORACLE_QUANT_FORWARD : ORACLE_QUANT_NONE;
	h.p.combine_quant = mxfp8 ? ORACLE_COMBINE_MXFP8 : ORACLE_COMBINE_NONE;
	h.p.hidden = mxfp8 ? 512 : h.p.hidden;
	h.alignment = expert_major ? 8 : 0;
	h.limit = drop ? 33 : MOST;
	CHECK(oracle_problem_prepare(&h.p, why, sizeof(why)) == 0);
	return h;
}

/* Is `expert` one of the token's? Its weight is that of the first entry. */
static int chosen(const struct oracle_ht *h, uint32_t src, uint32_t token, uint32_t expert,
		  float *weight, uint32_t *first)
{
	int32_t ids[ORACLE_MAX_TOPK];
	float weights[ORACLE_MAX_TOPK];

	oracle_route(&h->p, src, token, ids);
	oracle_weights(&h->p, src, token, weights);
	for (uint32_t k = 0; k < h->p.topk; k++) {
		if (ids[k] == (int32_t)expert) {
			*weight = weights[k];
			*first = k;
			return 1;
		}
	}
	return 0;
}

/* How many tokens before this one choose an expert of [low, high)? */
static uint64_t before(const struct oracle_ht *h, uint32_t src, uint32_t token, uint32_t low,
		       uint32_t high)
{
	uint64_t n = 0;
	uint32_t k;
	float w;

	for (uint32_t s = 0; s <= src && s < h->p.nranks; s++) {
		for (uint32_t t = 0; t < oracle_tokens(&h->p, s) && (s < src || t < token); t++) {
			int any = 0;

			for (uint32_t e = low; e < high; e++) {
				any |= chosen(h, s, t, e, &w, &k);
			}
			n += (uint64_t)any;
		}
	}
	return n;
}

static uint64_t up(const struct oracle_ht *h, uint64_t n)
{
	return h->alignment ? (n + h->alignment - 1) / h->alignment * h->alignment : n;
}

static void put_row(const struct oracle_ht *h, struct ht_outputs *o, uint64_t at, uint32_t src,
		    uint32_t token)
{
	oracle_input_row(&h->p, src, token, o->tokens + at * oracle_input_bytes(&h->p));
	oracle_input_scales(&h->p, src, token, (float *)o->scales + at * oracle_scale_words(&h->p));
}

/* A token's rows on rank d, in the outputs of it. */
static void place_token(const struct oracle_ht *h, uint32_t d, struct ht_outputs *o, uint32_t src,
			uint32_t token)
{
	uint32_t local = h->p.experts / RANKS, low = d * local, n = 0, k;
	uint64_t slot = before(h, src, token, low, low + local), zone = 0;
	float w;

	for (uint32_t e = low; e < low + local; e++) {
		uint64_t at = zone + before(h, src, token, e, e + 1);

		zone += up(h, before(h, RANKS, 0, e, e + 1));
		if (!chosen(h, src, token, e, &w, &k) || slot >= h->limit) {
			continue;
		}
		if (h->expert_major && at < h->limit) {
			put_row(h, o, at, src, token);
			o->weights[at] = w;
		} else if (!h->expert_major) {
			put_row(h, o, slot, src, token);
			o->weights[slot * h->p.topk + n] = w;
			o->idx[slot * h->p.topk + n++] = e - low;
			o->counters[e - low]++;
		}
	}
}

static void count(const struct oracle_ht *h, uint32_t d, struct ht_outputs *o)
{
	uint32_t local = h->p.experts / RANKS, low = d * local;

	o->total = h->expert_major ? 0 : (int64_t)before(h, RANKS, 0, low, low + local);
	for (uint32_t e = 0; h->expert_major && e < local; e++) {
		int64_t rows = (int64_t)up(h, before(h, RANKS, 0, low + e, low + e + 1));
		int64_t room = h->limit - o->total;

		o->offsets[e] = room < 0 ? h->limit : o->total;
		o->counters[e] = room < 0 ? 0 : rows < room ? rows : room;
		o->total += rows;
	}
}

static struct ht_outputs *reference(const struct oracle_ht *h, uint32_t d)
{
	struct ht_outputs *o = calloc(1, sizeof(*o));
	size_t row = oracle_input_bytes(&h->p), scale = 4 * oracle_scale_words(&h->p), zeros;

	NEED(o);
	count(h, d, o);
	o->tokens = malloc(MOST * row);
	o->scales = malloc(MOST * scale + 1);
	NEED(o->tokens && o->scales && o->total <= MOST);
	memset(o->tokens, ORACLE_POISON, MOST * row);
	memset(o->scales, ORACLE_POISON, MOST * scale);
	memset(o->weights, ORACLE_POISON, sizeof(o->weights));
	memset(o->idx, ORACLE_POISON, sizeof(o->idx));
	if (!h->expert_major) {
		size_t rows = h->filled || (uint64_t)o->total > h->limit ? h->limit
									 : (size_t)o->total;

		memset(o->weights, 0, rows * h->p.topk * sizeof(*o->weights));
		memset(o->idx, 0xff, rows * h->p.topk * sizeof(*o->idx));
	}
	zeros = !h->expert_major ? 0 : h->drop ? h->limit : (size_t)o->total;
	memset(o->tokens, 0, zeros * row);
	memset(o->scales, 0, zeros * scale);
	memset(o->weights, 0, zeros * 4);
	for (uint32_t s = 0; s < RANKS; s++) {
		for (uint32_t t = 0; t < oracle_tokens(&h->p, s); t++) {
			place_token(h, d, o, s, t);
		}
	}
	return o;
}

/* The row of rank d that holds the token for that expert (flat: any), or none. */
static int64_t find(const struct oracle_ht_table *t, uint32_t src, uint32_t token, int32_t expert)
{
	for (uint64_t i = 0; i < t->count; i++) {
		const struct oracle_ht_row *r = t->rows + i;

		if (r->kind == ORACLE_HT_ROW && r->src == src && r->token == token &&
		    (r->expert < 0 || r->expert == expert)) {
			return (int64_t)i;
		}
	}
	return -1;
}

/* What a token's rank gets of the sum of another. */
static void travel(const struct oracle_ht *h, float *x)
{
	uint8_t codes[512], scales[16];
	double values[512];

	for (uint32_t c = 0; c < h->p.hidden && !h->p.combine_quant; c++) {
		x[c] = oracle_from_bf16(oracle_to_bf16(x[c]));
	}
	if (h->p.combine_quant) {
		oracle_quantise(ORACLE_MXFP8, x, h->p.hidden, 0, codes, scales);
		oracle_dequantise(ORACLE_MXFP8, codes, scales, h->p.hidden, 0, values);
	}
	for (uint32_t c = 0; c < h->p.hidden && h->p.combine_quant; c++) {
		x[c] = (float)values[c];
	}
}

static void sum_token(const struct oracle_ht *h, struct oracle_ht_table *const *tables,
		      uint32_t rank, uint32_t token, struct ht_outputs *o)
{
	uint32_t local = h->p.experts / RANKS, some = 0;
	int32_t ids[ORACLE_MAX_TOPK];
	float sum[512], here[512];
	uint8_t answer[4096];

	NEED(oracle_combine_bytes(&h->p) <= sizeof(answer) && h->p.hidden <= 512);
	oracle_route(&h->p, rank, token, ids);
	for (uint32_t c = 0; c < h->p.hidden; c++) {
		sum[c] = -0.0f; /* -0 + x is x, also where x is -0 */
	}
	for (uint32_t d = 0; d < RANKS; d++) {
		uint32_t n = 0;

		for (uint32_t c = 0; c < h->p.hidden; c++) {
			here[c] = -0.0f;
		}
		for (uint32_t e = 0; e < local; e++) {
			int64_t row = find(tables[d], rank, token, (int32_t)e);

			if (row < 0 || (n++ > 0 && !h->expert_major)) {
				continue;
			}
			oracle_answer(&h->p, d, h->expert_major ? (int32_t)e : -1, rank, token,
				      answer);
			for (uint32_t c = 0; c < h->p.hidden; c++) {
				here[c] += oracle_load(h->p.dtype, answer, c);
			}
		}
		travel(h, here);
		for (uint32_t c = 0; c < h->p.hidden && n; c++) {
			sum[c] += here[c];
		}
		some |= n;
	}
	for (uint32_t c = 0; c < h->p.hidden; c++) {
		oracle_store(h->p.dtype, o->sums + token * oracle_combine_bytes(&h->p), c,
			     some ? sum[c] : 0);
	}
	for (uint32_t k = 0; k < h->p.topk; k++) {
		uint32_t d = ids[k] < 0 ? 0 : (uint32_t)ids[k] / local;
		int32_t e = ids[k] - (int32_t)(d * local);
		int64_t row = ids[k] < 0 ? -1 : find(tables[d], rank, token, e);

		o->gradients[token * h->p.topk + k] =
			row < 0 ? 0 : oracle_ht_gradient(h, d, e, rank, token);
	}
}

static uint64_t wrong(const struct oracle_ht *h, struct oracle_ht_table *const *tables,
		      uint32_t rank, const struct ht_outputs *o)
{
	const struct oracle_ht_table *t = tables[rank];
	struct oracle_ht_output out = { o->tokens, o->scales, o->weights, o->idx, 0 };
	struct oracle_ht_sums sums = { o->sums, o->gradients };
	struct oracle_verdict verdict = { 0 };

	oracle_ht_check_counters(h, t, o->counters, o->offsets, o->total, &verdict);
	oracle_ht_check_rows(h, t, 0, t->count, &out, &verdict);
	oracle_ht_check_sums(h, tables, rank, 0, oracle_tokens(&h->p, rank), &sums, &verdict);
	CHECK(verdict.wrong == 0 || verdict.text[0]);
	return verdict.wrong;
}

/* Each byte in turn of what the oracle looks at; `step` leaves some out. */
static void spoil(const struct oracle_ht *h, struct oracle_ht_table *const *tables, uint32_t rank,
		  const struct ht_outputs *o, void *at, size_t bytes, size_t step)
{
	uint8_t *byte = at;

	for (size_t i = 0; i < bytes; i += step) {
		byte[i] ^= 0x40;
		CHECK(wrong(h, tables, rank, o) == 1, "rank %u, byte %zu of %zu", rank, i, bytes);
		byte[i] ^= 0x40;
	}
}

static void test_rank(const struct oracle_ht *h, struct oracle_ht_table *const *tables,
		      uint32_t rank)
{
	const struct oracle_ht_table *t = tables[rank];
	struct ht_outputs *o = reference(h, rank);
	uint32_t tokens = oracle_tokens(&h->p, rank), local = h->p.experts / RANKS;
	size_t row = oracle_combine_bytes(&h->p), wide = h->expert_major ? 1 : h->p.topk;
	size_t step = h->p.combine_quant ? 30 : 1; /* its rows are long */

	o->sums = malloc(tokens * row + 1);
	NEED(o->sums);
	for (uint32_t i = 0; i < tokens; i++) {
		sum_token(h, tables, rank, i, o);
	}
	CHECK(wrong(h, tables, rank, o) == 0);
	spoil(h, tables, rank, o, o->tokens, t->count * oracle_input_bytes(&h->p), 331 * step);
	spoil(h, tables, rank, o, o->scales, t->count * 4 * oracle_scale_words(&h->p), 67 * step);
	spoil(h, tables, rank, o, o->weights, t->count * 4 * wide, 43 * step);
	spoil(h, tables, rank, o, o->idx, h->expert_major ? 0 : t->count * 8 * wide, 97 * step);
	spoil(h, tables, rank, o, o->counters, 8 * local, 8);
	spoil(h, tables, rank, o, o->offsets, h->expert_major ? 8 * local : 0, 8);
	spoil(h, tables, rank, o, &o->total, 8, 8);
	spoil(h, tables, rank, o, o->sums, tokens * row, 61 * step);
	spoil(h, tables, rank, o, o->gradients, tokens * h->p.topk * 4, 13 * step);
	free(o->tokens);
	free(o->scales);
	free(o->sums);
	free(o);
}

static void test_shape(int expert_major, int drop, int forward, int mxfp8)
{
	struct oracle_ht h = make_problem(expert_major, drop, forward, mxfp8);
	struct oracle_ht_table *tables[RANKS];
	uint64_t most = 0;

	h.filled = forward; /* once of each kind */
	check_context("%s%s%s%s", expert_major ? "expert-major" : "flat", drop ? ", drop" : "",
		      forward ? ", forwarded" : "", mxfp8 ? ", MXFP8" : "");
	for (uint32_t d = 0; d < RANKS; d++) {
		tables[d] = oracle_ht_table_create(&h, d);
		NEED(tables[d]);
		most = tables[d]->total > most ? tables[d]->total : most;
	}
	CHECK(oracle_ht_most(&h) == most);
	for (uint32_t d = 0; d < RANKS; d++) {
		test_rank(&h, tables, d);
	}
	for (uint32_t d = 0; d < RANKS; d++) {
		oracle_ht_table_free(tables[d]);
	}
	oracle_problem_free(&h.p);
}

static int main_oracle_ht(int argc, char **argv)
{
	for (int expert_major = 0; expert_major < 2; expert_major++) {
		test_shape(expert_major, 0, 0, 0);
		test_shape(expert_major, 1, 0, 0);
		test_shape(expert_major, 0, 1, 0);
	}
	test_shape(1, 0, 0, 1);
	test_shape(1, 1, 0, 1);
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "oracle", main_oracle },
		{ "oracle_ht", main_oracle_ht },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
