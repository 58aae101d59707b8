/* SPDX-License-Identifier: Apache-2.0 */
/* The experts' work, and what a combine makes of it. */
#include <stdlib.h>
#include <string.h>

#include "oracle_ht.h"

/* The gradient of the weight of a token's expert, a local one of rank d: a number with all its bits, never zero. */
float oracle_ht_gradient(const struct oracle_ht *ht, uint32_t d, int32_t expert, uint32_t src,
			 uint32_t token)
{
	uint64_t hash = oracle_hash(ht->p.seed * 31 + 8, (uint64_t)src << 32 | token);

	hash = oracle_hash(hash, (uint64_t)d << 32 | (uint32_t)expert);
	return (float)((int32_t)(hash & 0xffffff) - 0x800000) * 0x1p-18f + 0.001f;
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

/* to[] becomes from[], or, when it holds something, the sum. */
static void add_all(float *to, const float *from, uint32_t n, int *any)
{
	for (uint32_t c = 0; c < n; c++) {
		to[c] = *any ? to[c] + from[c] : from[c];
	}
	*any = 1;
}

/* here[]: what rank d returns. Zero: nothing. */
static int answer_of(const struct oracle_ht *ht, const struct oracle_ht_table *table, uint32_t src,
		     uint32_t token, float *here, float *one)
{
	const uint32_t *rows;
	uint32_t n = oracle_ht_rows(table, src, token, &rows);
	int some = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (rows[i] != ORACLE_HT_NOWHERE) {
			oracle_answer(&ht->p, table->rank, table->rows[rows[i]].expert, src, token,
				      one);
			oracle_load_row(ht->p.dtype, one, one + ht->p.hidden, ht->p.hidden);
			add_all(here, one + ht->p.hidden, ht->p.hidden, &some);
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

/* Ranks of another node return their sum, rounded; the source's own add theirs. */
void oracle_ht_combined(const struct oracle_ht *ht, struct oracle_ht_table *const *tables,
			uint32_t src, uint32_t token, void *row)
{
	uint32_t hidden = ht->p.hidden;
	float *sum = calloc(5 * (size_t)hidden, sizeof(*sum)), *there = sum + hidden;
	float *here = there + hidden, *one = here + hidden;
	int any = 0;

	for (uint32_t first = 0; sum && first < ht->p.nranks; first++) {
		int remote = !same_node(ht, first, src), some = 0;
		uint32_t end = remote ? ht->p.nranks : first + 1, before = 0;

		while (before < first && !(remote && same_node(ht, before, first))) {
			before++;
		}
		for (uint32_t d = first; before == first && d < end; d++) {
			if (same_node(ht, d, first) &&
			    answer_of(ht, tables[d], src, token, here, one)) {
				add_all(there, here, hidden, &some);
			}
		}
		if (some) {
			round_all(ht->p.dtype, there, hidden);
			add_all(sum, there, hidden, &any);
		}
	}
	if (sum) {
		oracle_store_row(ht->p.dtype, row, sum, hidden);
	}
	free(sum);
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
				if (ids[k] == (int32_t)(d * local) + experts[j] &&
				    rows[ht->expert_major ? j : 0] != ORACLE_HT_NOWHERE) {
					out[k] = oracle_ht_gradient(ht, d, experts[j], src, token);
				}
			}
		}
	}
}
