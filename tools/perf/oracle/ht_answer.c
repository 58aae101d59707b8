/* SPDX-License-Identifier: Apache-2.0 */
/* The experts' work, and what a combine makes of it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_ht.h"

/* Seven significant bits at most, of several magnitudes; zeros of both signs are among them. */
static float small(uint32_t hash)
{
	static const float scale[] = { 0.0625f, 0.25f, 1.0f, 2.0f };
	float f = (float)(hash & 127) * scale[hash >> 7 & 3];

	return hash >> 9 & 1 ? -f : f;
}

#define ANSWERS 1024u /* that small() has */

static float as_floats[ANSWERS];
static uint16_t as_halves[ORACLE_FP32][ANSWERS]; /* of the types of two bytes */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_answers(void)
{
	for (uint32_t i = 0; i < ANSWERS; i++) {
		as_floats[i] = small(i);
		for (int type = 0; type < ORACLE_FP32; type++) {
			oracle_store((enum oracle_dtype)type, as_halves[type], i, as_floats[i]);
		}
	}
}

/* Four columns of a row from one hash. */
static uint64_t four(uint64_t key, uint32_t quarter)
{
	return oracle_hash(key, quarter);
}

static uint64_t row_key(const struct oracle_ht *ht, uint32_t d, uint64_t row)
{
	return oracle_hash(ht->p.seed * 31 + 7, (uint64_t)d << 32 | row);
}

float oracle_ht_answer(const struct oracle_ht *ht, uint32_t d, uint64_t row, uint32_t column)
{
	uint64_t hash = four(row_key(ht, d, row), column / 4);

	return small((uint32_t)(hash >> 16 * (column % 4)) & (ANSWERS - 1));
}

void oracle_ht_answer_row(const struct oracle_ht *ht, uint32_t d, uint64_t row, void *out)
{
	uint64_t key = row_key(ht, d, row);
	const uint16_t *halves = as_halves[ht->p.dtype % ORACLE_FP32];

	pthread_once(&once, make_answers);
	for (uint32_t c = 0; c < ht->p.hidden; c += 4) {
		uint64_t hash = four(key, c / 4);

		for (uint32_t j = c; j < c + 4 && j < ht->p.hidden; j++, hash >>= 16) {
			uint32_t i = (uint32_t)hash & (ANSWERS - 1);

			if (ht->p.dtype == ORACLE_FP32) {
				((float *)out)[j] = as_floats[i];
			} else {
				((uint16_t *)out)[j] = halves[i];
			}
		}
	}
}

/* The same as numbers, added to out[] or, the first time, put there. */
static void add_answers(const struct oracle_ht *ht, uint32_t d, uint64_t row, int first, float *out)
{
	uint64_t key = row_key(ht, d, row);

	for (uint32_t c = 0; c < ht->p.hidden; c += 4) {
		uint64_t hash = four(key, c / 4);

		for (uint32_t j = c; j < c + 4 && j < ht->p.hidden; j++, hash >>= 16) {
			float f = as_floats[hash & (ANSWERS - 1)];

			out[j] = first ? f : out[j] + f;
		}
	}
}

float oracle_ht_gradient(const struct oracle_ht *ht, uint32_t d, uint64_t row, uint32_t j)
{
	uint64_t hash = oracle_hash(ht->p.seed * 31 + 8, ((uint64_t)d << 32 | row) * 64 + j);

	return small((uint32_t)hash & (ANSWERS - 1)) + 0.001f;
}

static void round_all(enum oracle_dtype dtype, float *x, uint32_t n)
{
	for (uint32_t c = 0; dtype == ORACLE_BF16 && c < n; c++) {
		x[c] = oracle_from_bf16(oracle_to_bf16(x[c]));
	}
	for (uint32_t c = 0; dtype == ORACLE_FP16 && c < n; c++) {
		x[c] = oracle_from_fp16(oracle_to_fp16(x[c]));
	}
}

static void store_all(enum oracle_dtype dtype, void *row, const float *x, uint32_t n)
{
	for (uint32_t c = 0; dtype == ORACLE_BF16 && c < n; c++) {
		((uint16_t *)row)[c] = oracle_to_bf16(x[c]);
	}
	for (uint32_t c = 0; dtype != ORACLE_BF16 && c < n; c++) {
		oracle_store(dtype, row, c, x[c]);
	}
}

/* here[]: what rank d returns. Zero: nothing. */
static int answer_of(const struct oracle_ht *ht, const struct oracle_ht_table *table, uint32_t src,
		     uint32_t token, float *here)
{
	const uint32_t *rows;
	uint32_t n = oracle_ht_rows(table, src, token, &rows);
	int some = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (rows[i] != ORACLE_HT_NOWHERE) {
			add_answers(ht, table->rank, rows[i], !some, here);
			some = 1;
		}
	}
	if (some) {
		round_all(ht->p.dtype, here, ht->p.hidden);
	}
	return some;
}

static int same_node(const struct oracle_ht *ht, uint32_t a, uint32_t b)
{
	return !ht->node || ht->node[a] == ht->node[b];
}

/* to[] becomes from[], or, when it holds something, the sum. */
static void add_all(float *to, const float *from, uint32_t n, int *any)
{
	for (uint32_t c = 0; c < n; c++) {
		to[c] = *any ? to[c] + from[c] : from[c];
	}
	*any = 1;
}

/* Ranks of another node return their sum, rounded; the source's own add theirs. */
void oracle_ht_combined(const struct oracle_ht *ht, struct oracle_ht_table *const *tables,
			uint32_t src, uint32_t token, void *row)
{
	uint32_t hidden = ht->p.hidden;
	float *sum = calloc(3 * (size_t)hidden, sizeof(*sum)), *there = sum + hidden;
	float *here = there + hidden;
	int any = 0;

	pthread_once(&once, make_answers);
	for (uint32_t first = 0; sum && first < ht->p.nranks; first++) {
		int remote = !same_node(ht, first, src), some = 0;
		uint32_t end = remote ? ht->p.nranks : first + 1, before = 0;

		while (before < first && !(remote && same_node(ht, before, first))) {
			before++;
		}
		for (uint32_t d = first; before == first && d < end; d++) {
			if (same_node(ht, d, first) && answer_of(ht, tables[d], src, token, here)) {
				add_all(there, here, hidden, &some);
			}
		}
		if (some) {
			round_all(ht->p.dtype, there, hidden);
			add_all(sum, there, hidden, &any);
		}
	}
	if (sum) {
		store_all(ht->p.dtype, row, sum, hidden);
	}
	free(sum);
}

/* The gradient of the weight of `expert`, the j-th of the token's on this rank. */
static float gradient_of(const struct oracle_ht *ht, const struct oracle_ht_table *table,
			 const uint32_t *rows, uint32_t j)
{
	if (!ht->expert_major) {
		return rows[0] == ORACLE_HT_NOWHERE
			       ? 0
			       : oracle_ht_gradient(ht, table->rank, rows[0], j);
	}
	return rows[j] == ORACLE_HT_NOWHERE ? 0 : oracle_ht_gradient(ht, table->rank, rows[j], 0);
}

void oracle_ht_gradients(const struct oracle_ht *ht, struct oracle_ht_table *const *tables,
			 uint32_t src, uint32_t token, float *out)
{
	int32_t ids[ORACLE_MAX_TOPK], experts[ORACLE_MAX_TOPK];
	uint32_t local = ht->p.experts / ht->p.nranks;
	const uint32_t *rows;

	oracle_route(&ht->p, src, token, ids);
	memset(out, 0, ht->p.topk * sizeof(*out));
	for (uint32_t d = 0; d < ht->p.nranks; d++) {
		uint32_t n = oracle_ht_local(ht, src, token, d, experts, NULL);

		if (!oracle_ht_rows(tables[d], src, token, &rows)) {
			continue;
		}
		for (uint32_t k = 0; k < ht->p.topk; k++) {
			for (uint32_t j = 0; j < n; j++) {
				if (ids[k] == (int32_t)(d * local) + experts[j]) {
					out[k] = gradient_of(ht, tables[d], rows, j);
				}
			}
		}
	}
}
