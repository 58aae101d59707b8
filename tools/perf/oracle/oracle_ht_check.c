/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs of a rank in host memory, some rows at a time, against the table. */
#include <stdlib.h>
#include <string.h>

#include "oracle_ht.h"
#include "table.h"

static const char *kind_of(const struct oracle_ht_row *row)
{
	return row->kind == ORACLE_HT_ROW    ? "a token's"
	       : row->kind == ORACLE_HT_ZERO ? "zeros"
					     : "nobody's";
}

static int all_bytes(const uint8_t *bytes, uint8_t value, size_t n)
{
	return n == 0 || (bytes[0] == value && !memcmp(bytes, bytes + 1, n - 1));
}

static int right(const struct oracle_ht_row *row, const uint8_t *got, const void *want,
		 size_t bytes)
{
	switch (row->kind) {
	case ORACLE_HT_ROW:
		return !memcmp(got, want, bytes);
	case ORACLE_HT_ZERO:
		return all_bytes(got, 0, bytes);
	default:
		return all_bytes(got, ORACLE_POISON, bytes);
	}
}

static void check_bytes(const struct oracle_ht_table *table, uint64_t i, const char *what,
			const uint8_t *got, const uint8_t *want, size_t bytes,
			struct oracle_verdict *verdict)
{
	const struct oracle_ht_row *row = table->rows + i;
	uint64_t at = 0;

	if (right(row, got, want, bytes)) {
		return;
	}
	while (row->kind == ORACLE_HT_ROW && at < bytes && got[at] == want[at]) {
		at++;
	}
	oracle_blame(verdict,
		     "dispatch: rank %u, %s: row %llu, which is %s (token %u of rank %u), is wrong "
		     "from byte %llu on",
		     table->rank, what, (unsigned long long)i, kind_of(row), row->token, row->src,
		     (unsigned long long)at);
}

static void check_weight(const struct oracle_ht *ht, const struct oracle_ht_table *table,
			 uint64_t i, float got, struct oracle_verdict *verdict)
{
	const struct oracle_ht_row *row = table->rows + i;
	int32_t experts[ORACLE_MAX_TOPK];
	float weights[ORACLE_MAX_TOPK], want = 0;
	uint32_t n = 0;

	if (row->kind == ORACLE_HT_UNTOUCHED) {
		memset(&want, ORACLE_POISON, sizeof(want));
	} else if (row->kind == ORACLE_HT_ROW) {
		n = oracle_ht_local(ht, row->src, row->token, table->rank, experts, weights);
	}
	for (uint32_t j = 0; j < n; j++) {
		want = experts[j] == row->expert ? weights[j] : want;
	}
	if (memcmp(&got, &want, sizeof(got))) {
		oracle_blame(verdict,
			     "dispatch: rank %u, weight of row %llu, which is %s: %a, not %a",
			     table->rank, (unsigned long long)i, kind_of(row), (double)got,
			     (double)want);
	}
}

/* Flat: rows that do not come are -1 and 0, as far as the call fills them. */
static void check_lists(const struct oracle_ht *ht, const struct oracle_ht_table *table, uint64_t i,
			const float *weights, const int64_t *idx, int64_t base,
			struct oracle_verdict *verdict)
{
	const struct oracle_ht_row *row = table->rows + i;
	int32_t experts[ORACLE_MAX_TOPK];
	float all[ORACLE_MAX_TOPK];
	uint32_t n = 0;

	if (row->kind == ORACLE_HT_ROW) {
		n = oracle_ht_local(ht, row->src, row->token, table->rank, experts, all);
	}
	for (uint32_t k = 0; k < ht->p.topk; k++) {
		int64_t want = k < n ? experts[k] + base : -1;
		float weight = k < n ? all[k] : 0;

		if (idx[k] != want || weights[k] != weight) {
			oracle_blame(
				verdict,
				"dispatch: rank %u, row %llu, entry %u: expert %lld with weight "
				"%a, not %lld with %a",
				table->rank, (unsigned long long)i, k, (long long)idx[k],
				(double)weights[k], (long long)want, (double)weight);
			return;
		}
	}
}

void oracle_ht_check_rows(const struct oracle_ht *ht, const struct oracle_ht_table *table,
			  uint64_t first, uint64_t n, const struct oracle_ht_output *out,
			  struct oracle_verdict *verdict)
{
	size_t row = oracle_input_bytes(&ht->p), scales = 4 * oracle_scale_count(&ht->p);
	uint8_t *want = malloc(row + scales);

	if (!want) {
		oracle_blame(verdict, "dispatch: rank %u: no memory for the check", table->rank);
		return;
	}
	for (uint64_t j = 0; j < n; j++) {
		const struct oracle_ht_row *r = table->rows + first + j;

		if (r->kind == ORACLE_HT_ROW) {
			oracle_input_row(&ht->p, r->src, r->token, want);
		}
		check_bytes(table, first + j, "tokens", out->tokens + j * row, want, row, verdict);
		if (scales) {
			if (r->kind == ORACLE_HT_ROW) {
				oracle_input_scales(&ht->p, r->src, r->token, (float *)want);
			}
			check_bytes(table, first + j, "scales", out->scales + j * scales, want,
				    scales, verdict);
		}
		if (out->weights && ht->expert_major) {
			check_weight(ht, table, first + j, out->weights[j], verdict);
		} else if (out->weights) {
			check_lists(ht, table, first + j, out->weights + j * ht->p.topk,
				    out->idx + j * ht->p.topk, out->id_base, verdict);
		}
	}
	free(want);
}

void oracle_ht_check_counters(const struct oracle_ht *ht, const struct oracle_ht_table *table,
			      const int64_t *counters, const int64_t *offsets, int64_t total,
			      struct oracle_verdict *verdict)
{
	if (total != (int64_t)table->total) {
		oracle_blame(verdict, "routing: rank %u: total %lld, not %llu", table->rank,
			     (long long)total, (unsigned long long)table->total);
	}
	for (uint32_t e = 0; e < table->nlocal; e++) {
		if (counters[e] != table->counters[e]) {
			oracle_blame(verdict, "routing: rank %u, expert %u: counter %lld, not %lld",
				     table->rank, e, (long long)counters[e],
				     (long long)table->counters[e]);
		}
		if (ht->expert_major && offsets[e] != table->offsets[e]) {
			oracle_blame(verdict, "routing: rank %u, expert %u: offset %lld, not %lld",
				     table->rank, e, (long long)offsets[e],
				     (long long)table->offsets[e]);
		}
	}
}

void oracle_ht_work(const struct oracle_ht *ht, const struct oracle_ht_table *table, uint64_t first,
		    uint64_t n, void *rows, float *gradients)
{
	size_t bytes = oracle_combine_bytes(&ht->p);
	uint32_t wide = ht->expert_major ? 1 : ht->p.topk;

	for (uint64_t j = 0; j < n; j++) {
		const struct oracle_ht_row *row = table->rows + first + j;
		int32_t experts[ORACLE_MAX_TOPK] = { row->expert };
		uint32_t known = 1;

		memset((uint8_t *)rows + j * bytes, ORACLE_UNREAD,
		       bytes); /* which nobody may read */
		if (gradients) {
			memset(gradients + j * wide, ORACLE_UNREAD, wide * 4);
		}
		if (row->kind != ORACLE_HT_ROW) {
			continue;
		}
		oracle_answer(&ht->p, table->rank, row->expert, row->src, row->token,
			      (uint8_t *)rows + j * bytes);
		if (gradients && !ht->expert_major) {
			known = oracle_ht_local(ht, row->src, row->token, table->rank, experts,
						NULL);
		}
		for (uint32_t k = 0; gradients && k < known; k++) {
			gradients[j * wide + k] = oracle_ht_gradient(ht, table->rank, experts[k],
								     row->src, row->token);
		}
	}
}

/*
 * Are these bytes of a column right? Of a token all of whose rows a rank has dropped, that rank adds 0 or
 * nothing: the sign of a sum of zeros is not defined then.
 */
static int column_right(const struct oracle_ht *ht, const uint8_t *got, const uint8_t *want,
			uint32_t column)
{
	size_t bytes = oracle_combine_bytes(&ht->p) / ht->p.hidden, at = column * bytes;

	return !memcmp(got + at, want + at, bytes) ||
	       (ht->expert_major && ht->drop && oracle_load(ht->p.dtype, got, column) == 0 &&
		oracle_load(ht->p.dtype, want, column) == 0);
}

static void check_sum(const struct oracle_ht *ht, uint32_t rank, uint32_t token, const uint8_t *got,
		      const uint8_t *want, struct oracle_verdict *verdict)
{
	uint32_t column = 0;

	if (!memcmp(got, want, oracle_combine_bytes(&ht->p))) {
		return;
	}
	while (column < ht->p.hidden && column_right(ht, got, want, column)) {
		column++;
	}
	if (column < ht->p.hidden) {
		oracle_blame(verdict, "combine: rank %u, token %u, from column %u on: %a, not %a",
			     rank, token, column, (double)oracle_load(ht->p.dtype, got, column),
			     (double)oracle_load(ht->p.dtype, want, column));
	}
}

void oracle_ht_check_sums(const struct oracle_ht *ht, struct oracle_ht_table *const *tables,
			  uint32_t rank, uint32_t first, uint32_t n,
			  const struct oracle_ht_sums *sums, struct oracle_verdict *verdict)
{
	size_t bytes = oracle_combine_bytes(&ht->p);
	uint8_t *want = malloc(bytes);
	float expected[ORACLE_MAX_TOPK];

	for (uint32_t j = 0; want && j < n; j++) {
		const uint8_t *row = (const uint8_t *)sums->rows + j * bytes;
		const float *given = sums->gradients ? sums->gradients + (size_t)j * ht->p.topk
						     : NULL;

		oracle_ht_combined(ht, tables, rank, first + j, want);
		check_sum(ht, rank, first + j, row, want, verdict);
		if (given) {
			oracle_ht_gradients(ht, tables, rank, first + j, expected);
		}
		for (uint32_t k = 0; given && k < ht->p.topk; k++) {
			if (given[k] != expected[k]) {
				oracle_blame(
					verdict,
					"combine: rank %u, token %u, k %u: gradient %a, not %a",
					rank, first + j, k, (double)given[k], (double)expected[k]);
			}
		}
	}
	if (!want) {
		oracle_blame(verdict, "combine: rank %u: no memory for the check", rank);
	}
	free(want);
}
