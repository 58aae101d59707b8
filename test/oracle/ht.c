// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "ht.h"

static uint32_t nlocal(const struct oracle_ht *h)
{
	return h->p.experts / h->p.nranks;
}

uint32_t oracle_ht_local(const struct oracle_ht *h, uint32_t src, uint32_t token, uint32_t rank,
			 int32_t *experts, float *weights)
{
	int32_t ids[ORACLE_MAX_TOPK];
	float all[ORACLE_MAX_TOPK];
	uint32_t n = 0, l = nlocal(h);

	oracle_route(&h->p, src, token, ids);
	oracle_weights(&h->p, src, token, all);
	for (uint32_t e = rank * l; e < (rank + 1) * l; e++) {
		for (uint32_t k = 0; k < h->p.topk; k++) {
			if (ids[k] == (int32_t)e) {
				experts[n] = (int32_t)(e - rank * l);
				weights[n] = all[k];
				n++;
				break; /* of duplicates, the first */
			}
		}
	}
	return n;
}

static uint64_t padded(const struct oracle_ht *h, uint64_t count)
{
	uint64_t a = h->alignment > 1 ? h->alignment : 1;

	return (count + a - 1) / a * a;
}

typedef void (*visit_fn)(const struct oracle_ht *h, struct oracle_ht_table *t, uint64_t slot,
			 uint32_t src, uint32_t token, const int32_t *experts, uint32_t n,
			 uint64_t *state);

/* All tokens that come to the rank, in the order of slots. */
static void visit_all(const struct oracle_ht *h, struct oracle_ht_table *t, visit_fn visit,
		      uint64_t *state)
{
	int32_t experts[ORACLE_MAX_TOPK];
	float weights[ORACLE_MAX_TOPK];

	t->slots = 0;
	for (uint32_t s = 0; s < h->p.nranks; s++) {
		for (uint32_t i = 0; i < oracle_tokens(&h->p, s); i++) {
			uint32_t n = oracle_ht_local(h, s, i, t->rank, experts, weights);

			if (n) {
				visit(h, t, t->slots++, s, i, experts, n, state);
			}
		}
	}
}

/* state[e]: selections of expert e */
static void count(const struct oracle_ht *h, struct oracle_ht_table *t, uint64_t slot, uint32_t src,
		  uint32_t token, const int32_t *experts, uint32_t n, uint64_t *state)
{
	(void)t;
	(void)src;
	(void)token;
	/* the counters of the flat layout leave dropped rows out */
	if (!h->expert_major && h->drop && slot >= h->limit) {
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		state[experts[i]]++;
	}
}

static int beyond(const struct oracle_ht *h, uint64_t place)
{
	return h->limit && place >= h->limit;
}

/* state[e]: the next place of expert e */
static void place(const struct oracle_ht *h, struct oracle_ht_table *t, uint64_t slot, uint32_t src,
		  uint32_t token, const int32_t *experts, uint32_t n, uint64_t *state)
{
	struct oracle_ht_row row = { ORACLE_HT_ROW, src, token, -1 };

	if (!h->expert_major) {
		if (!beyond(h, slot)) {
			t->rows[slot] = row;
		}
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = state[experts[i]]++;

		row.expert = experts[i];
		if (!beyond(h, slot) && !beyond(h, at)) {
			t->rows[at] = row;
		}
	}
}

/* Rows of zones that no token has are zeros; with dropping, all rows below the limit. */
static void clear(const struct oracle_ht *h, struct oracle_ht_table *t)
{
	if (!h->expert_major) {
		return;
	}
	for (uint64_t i = 0; i < t->count; i++) {
		t->rows[i].kind = h->drop || i < t->total ? ORACLE_HT_ZERO : ORACLE_HT_UNTOUCHED;
	}
}

static void publish(const struct oracle_ht *h, struct oracle_ht_table *t,
		    const uint64_t *selections, uint64_t *first)
{
	uint64_t at = 0, m = h->limit;

	for (uint32_t e = 0; e < t->nlocal; e++) {
		uint64_t rows = padded(h, selections[e]);

		first[e] = at;
		at += rows;
		if (!h->expert_major) {
			t->counters[e] = (int64_t)selections[e];
		} else if (h->drop) {
			t->offsets[e] = (int64_t)(first[e] < m ? first[e] : m);
			t->counters[e] = (int64_t)(first[e] >= m         ? 0
						   : rows < m - first[e] ? rows
									 : m - first[e]);
		} else {
			t->offsets[e] = (int64_t)first[e];
			t->counters[e] = (int64_t)rows;
		}
	}
	t->total = h->expert_major ? at : t->slots;
	t->count = h->limit ? h->limit : t->total;
}

struct oracle_ht_table *oracle_ht_table_create(const struct oracle_ht *h, uint32_t rank)
{
	struct oracle_ht_table *t = calloc(1, sizeof(*t));
	uint32_t l = nlocal(h);
	uint64_t *state = calloc(2 * (size_t)l, sizeof(*state));

	if (t) {
		t->rank = rank;
		t->nlocal = l;
		t->counters = calloc(l, sizeof(*t->counters));
		t->offsets = calloc(l, sizeof(*t->offsets));
	}
	if (!t || !state || !t->counters || !t->offsets) {
		goto err;
	}
	visit_all(h, t, count, state);
	publish(h, t, state, state + l);
	t->rows = calloc(t->count + 1, sizeof(*t->rows));
	if (!t->rows) {
		goto err;
	}
	clear(h, t);
	visit_all(h, t, place, state + l);
	free(state);
	return t;

err:
	free(state);
	oracle_ht_table_free(t);
	return NULL;
}

void oracle_ht_table_free(struct oracle_ht_table *t)
{
	if (t) {
		free(t->counters);
		free(t->offsets);
		free(t->rows);
		free(t);
	}
}

/* Eight significant bits at most, of several magnitudes; never 0, so that no sign of it matters. */
static float small(uint64_t hash)
{
	static const float scale[] = { 0.0625f, 0.25f, 1.0f, 2.0f };
	float f = (float)(1 + (hash & 127)) * scale[hash >> 8 & 3];

	return hash >> 10 & 1 ? -f : f;
}

float oracle_ht_answer(const struct oracle_ht *h, uint32_t d, uint64_t row, uint32_t column)
{
	return small(oracle_hash(h->p.seed * 31 + 7, ((uint64_t)d << 32 | row) * 65537 + column));
}

float oracle_ht_gradient(const struct oracle_ht *h, uint32_t d, uint64_t row, uint32_t j)
{
	return small(oracle_hash(h->p.seed * 31 + 8, ((uint64_t)d << 32 | row) * 64 + j)) + 0.001f;
}

void oracle_ht_combined(const struct oracle_ht *h, struct oracle_ht_table *const *tables,
			uint32_t src, uint32_t token, void *row)
{
	uint32_t hidden = h->p.hidden, d;
	float *sum = calloc(2 * (size_t)hidden, sizeof(*sum)), *here = sum + hidden;
	unsigned char rounded[16];
	int any = 0;

	for (d = 0; sum && d < h->p.nranks; d++) {
		int some = 0;

		for (uint64_t i = 0; i < tables[d]->count; i++) {
			const struct oracle_ht_row *r = &tables[d]->rows[i];

			if (r->kind != ORACLE_HT_ROW || r->src != src || r->token != token) {
				continue;
			}
			for (uint32_t c = 0; c < hidden; c++) {
				float f = oracle_ht_answer(h, d, i, c);

				here[c] = some ? here[c] + f : f;
			}
			some = 1;
		}
		for (uint32_t c = 0; some && c < hidden; c++) {
			oracle_store(h->p.dtype, rounded, 0, here[c]);
			here[c] = oracle_load(h->p.dtype, rounded, 0);
			sum[c] = any ? sum[c] + here[c] : here[c];
		}
		any |= some;
	}
	for (uint32_t c = 0; sum && c < hidden; c++) {
		oracle_store(h->p.dtype, row, c, sum[c]);
	}
	free(sum);
}

void oracle_ht_gradients(const struct oracle_ht *h, struct oracle_ht_table *const *tables,
			 uint32_t src, uint32_t token, float *out)
{
	int32_t ids[ORACLE_MAX_TOPK], experts[ORACLE_MAX_TOPK];
	float weights[ORACLE_MAX_TOPK];
	uint32_t l = nlocal(h);

	oracle_route(&h->p, src, token, ids);
	for (uint32_t k = 0; k < h->p.topk; k++) {
		out[k] = 0;
	}
	for (uint32_t d = 0; d < h->p.nranks; d++) {
		uint32_t n = oracle_ht_local(h, src, token, d, experts, weights);

		for (uint64_t i = 0; n && i < tables[d]->count; i++) {
			const struct oracle_ht_row *r = &tables[d]->rows[i];

			if (r->kind != ORACLE_HT_ROW || r->src != src || r->token != token) {
				continue;
			}
			for (uint32_t k = 0; k < h->p.topk; k++) {
				for (uint32_t j = 0; j < n; j++) {
					if (ids[k] != (int32_t)(d * l) + experts[j]) {
						continue;
					}
					if (!h->expert_major) {
						out[k] = oracle_ht_gradient(h, d, i, j);
					} else if (experts[j] == r->expert) {
						out[k] = oracle_ht_gradient(h, d, i, 0);
					}
				}
			}
		}
	}
}
