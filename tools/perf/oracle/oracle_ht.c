// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "oracle_ht.h"

static uint32_t nlocal(const struct oracle_ht *h)
{
	return h->p.experts / h->p.nranks;
}

uint32_t oracle_ht_local(const struct oracle_ht *h, uint32_t src, uint32_t token, uint32_t rank,
			 int32_t *experts, float *weights)
{
	int32_t ids[ORACLE_MAX_TOPK];
	float all[ORACLE_MAX_TOPK];
	uint32_t n = 0, first = rank * nlocal(h), i;

	oracle_route(&h->p, src, token, ids);
	if (weights) {
		oracle_weights(&h->p, src, token, all);
	}
	for (uint32_t k = 0; k < h->p.topk; k++) {
		int32_t e = ids[k] - (int32_t)first;

		if (ids[k] < 0 || (uint32_t)ids[k] - first >= nlocal(h)) {
			continue;
		}
		for (i = n; i > 0 && experts[i - 1] > e; i--) {
		}
		if (i > 0 && experts[i - 1] == e) {
			continue; /* of duplicates, the first */
		}
		memmove(experts + i + 1, experts + i, (n - i) * sizeof(*experts));
		experts[i] = e;
		if (weights) {
			memmove(weights + i + 1, weights + i, (n - i) * sizeof(*weights));
			weights[i] = all[k];
		}
		n++;
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

	t->slots = 0;
	for (uint32_t s = 0; s < h->p.nranks; s++) {
		for (uint32_t i = 0; i < oracle_tokens(&h->p, s); i++) {
			uint32_t n = oracle_ht_local(h, s, i, t->rank, experts, NULL);

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

	t->slot[t->first[src] + token] = (uint32_t)slot;
	if (!h->expert_major) {
		if (!beyond(h, slot)) {
			t->rows[slot] = row;
			t->at[slot] = (uint32_t)slot;
		}
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = state[experts[i]]++;

		row.expert = experts[i];
		if (!beyond(h, slot) && !beyond(h, at)) {
			t->rows[at] = row;
			t->at[slot * t->width + i] = (uint32_t)at;
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

/* By source and token: the slot, and the rows that the token has here. */
static int index_open(const struct oracle_ht *h, struct oracle_ht_table *t)
{
	uint64_t tokens = 0, entries;

	t->width = h->expert_major ? (h->p.topk < t->nlocal ? h->p.topk : t->nlocal) : 1;
	entries = t->slots * t->width;
	t->first = calloc(h->p.nranks, sizeof(*t->first));
	for (uint32_t s = 0; t->first && s < h->p.nranks; s++) {
		t->first[s] = tokens;
		tokens += oracle_tokens(&h->p, s);
	}
	t->slot = malloc((tokens + 1) * sizeof(*t->slot));
	t->at = malloc((entries + 1) * sizeof(*t->at));
	if (!t->first || !t->slot || !t->at) {
		return -1;
	}
	memset(t->slot, 0xff, tokens * sizeof(*t->slot));
	memset(t->at, 0xff, entries * sizeof(*t->at));
	return 0;
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
	if (!t->rows || index_open(h, t)) {
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
		free(t->first);
		free(t->slot);
		free(t->at);
		free(t);
	}
}

uint32_t oracle_ht_rows(const struct oracle_ht_table *t, uint32_t src, uint32_t token,
			const uint32_t **rows)
{
	uint32_t slot = t->slot[t->first[src] + token];

	*rows = t->at + (size_t)slot * t->width;
	return slot == ORACLE_HT_NOWHERE ? 0 : t->width;
}

/* What recv_total_counter says on the rank that has most. */
uint64_t oracle_ht_most(const struct oracle_ht *h)
{
	uint64_t *rows = calloc(h->p.experts + (size_t)h->p.nranks, sizeof(*rows));
	uint64_t most = 0;
	int32_t experts[ORACLE_MAX_TOPK];

	for (uint32_t s = 0; rows && s < h->p.nranks; s++) {
		for (uint32_t i = 0; i < oracle_tokens(&h->p, s); i++) {
			for (uint32_t d = 0; d < h->p.nranks; d++) {
				uint32_t n = oracle_ht_local(h, s, i, d, experts, NULL);

				rows[h->p.experts + d] += n > 0;
				for (uint32_t j = 0; j < n; j++) {
					rows[d * nlocal(h) + (uint32_t)experts[j]]++;
				}
			}
		}
	}
	for (uint32_t d = 0; rows && d < h->p.nranks; d++) {
		uint64_t total = 0;

		for (uint32_t e = d * nlocal(h); e < (d + 1) * nlocal(h); e++) {
			total += padded(h, rows[e]);
		}
		total = h->expert_major ? total : rows[h->p.experts + d];
		most = total > most ? total : most;
	}
	free(rows);
	return most;
}
