/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "oracle_ht.h"

static uint32_t nlocal(const struct oracle_ht *ht)
{
	return ht->p.experts / ht->p.nranks;
}

uint32_t oracle_ht_local(const struct oracle_ht *ht, uint32_t src, uint32_t token, uint32_t rank,
			 int32_t *experts, float *weights)
{
	int32_t ids[ORACLE_MAX_TOPK];
	float all[ORACLE_MAX_TOPK];
	uint32_t n = 0, first = rank * nlocal(ht), i;

	oracle_route(&ht->p, src, token, ids);
	if (weights) {
		oracle_weights(&ht->p, src, token, all);
	}
	for (uint32_t k = 0; k < ht->p.topk; k++) {
		int32_t e = ids[k] - (int32_t)first;

		if (ids[k] < 0 || (uint32_t)ids[k] - first >= nlocal(ht)) {
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

static uint64_t padded(const struct oracle_ht *ht, uint64_t count)
{
	uint64_t a = ht->alignment > 1 ? ht->alignment : 1;

	return (count + a - 1) / a * a;
}

/* A token that comes to the rank: its slot there, and its local experts. */
struct received {
	uint64_t slot;
	uint32_t src;
	uint32_t index; /* among the source's tokens */
	uint32_t n;
	int32_t experts[ORACLE_MAX_TOPK];
};

typedef void (*visit_fn)(const struct oracle_ht *ht, struct oracle_ht_table *table,
			 const struct received *token, uint64_t *state);

/* All tokens that come to the rank, in the order of slots. */
static void visit_all(const struct oracle_ht *ht, struct oracle_ht_table *table, visit_fn visit,
		      uint64_t *state)
{
	struct received token;

	table->slots = 0;
	for (token.src = 0; token.src < ht->p.nranks; token.src++) {
		for (token.index = 0; token.index < oracle_tokens(&ht->p, token.src);
		     token.index++) {
			token.n = oracle_ht_local(ht, token.src, token.index, table->rank,
						  token.experts, NULL);
			if (token.n) {
				token.slot = table->slots++;
				visit(ht, table, &token, state);
			}
		}
	}
}

/* state[e]: selections of expert e */
static void count(const struct oracle_ht *ht, struct oracle_ht_table *table,
		  const struct received *token, uint64_t *state)
{
	(void)table;
	/* the counters of the flat layout leave dropped rows out */
	if (!ht->expert_major && ht->drop && token->slot >= ht->limit) {
		return;
	}
	for (uint32_t i = 0; i < token->n; i++) {
		state[token->experts[i]]++;
	}
}

static int beyond(const struct oracle_ht *ht, uint64_t place)
{
	return ht->limit && place >= ht->limit;
}

/* state[e]: the next place of expert e */
static void place(const struct oracle_ht *ht, struct oracle_ht_table *table,
		  const struct received *token, uint64_t *state)
{
	struct oracle_ht_row row = { ORACLE_HT_ROW, token->src, token->index, -1 };
	uint64_t slot = token->slot;

	table->slot[table->first[token->src] + token->index] = (uint32_t)slot;
	if (!ht->expert_major) {
		if (!beyond(ht, slot)) {
			table->rows[slot] = row;
			table->at[slot] = (uint32_t)slot;
		}
		return;
	}
	for (uint32_t i = 0; i < token->n; i++) {
		uint64_t at = state[token->experts[i]]++;

		row.expert = token->experts[i];
		if (!beyond(ht, slot) && !beyond(ht, at)) {
			table->rows[at] = row;
			table->at[slot * table->width + i] = (uint32_t)at;
		}
	}
}

/* Rows of zones that no token has are zeros; with dropping, all rows below the limit. */
static void clear(const struct oracle_ht *ht, struct oracle_ht_table *table)
{
	if (!ht->expert_major) {
		return;
	}
	for (uint64_t i = 0; i < table->count; i++) {
		table->rows[i].kind = ht->drop || i < table->total ? ORACLE_HT_ZERO
								   : ORACLE_HT_UNTOUCHED;
	}
}

static void publish(const struct oracle_ht *ht, struct oracle_ht_table *table,
		    const uint64_t *selections, uint64_t *first)
{
	uint64_t at = 0, m = ht->limit;

	for (uint32_t e = 0; e < table->nlocal; e++) {
		uint64_t rows = padded(ht, selections[e]);

		first[e] = at;
		at += rows;
		if (!ht->expert_major) {
			table->counters[e] = (int64_t)selections[e];
		} else if (ht->drop) {
			table->offsets[e] = (int64_t)(first[e] < m ? first[e] : m);
			table->counters[e] = (int64_t)(first[e] >= m         ? 0
						       : rows < m - first[e] ? rows
									     : m - first[e]);
		} else {
			table->offsets[e] = (int64_t)first[e];
			table->counters[e] = (int64_t)rows;
		}
	}
	table->total = ht->expert_major ? at : table->slots;
	table->count = ht->limit ? ht->limit : table->total;
}

/* By source and token: the slot, and the rows that the token has here. */
static int index_open(const struct oracle_ht *ht, struct oracle_ht_table *table)
{
	uint64_t tokens = 0, entries;

	table->width = ht->expert_major ? (ht->p.topk < table->nlocal ? ht->p.topk : table->nlocal)
					: 1;
	entries = table->slots * table->width;
	table->first = calloc(ht->p.nranks, sizeof(*table->first));
	for (uint32_t s = 0; table->first && s < ht->p.nranks; s++) {
		table->first[s] = tokens;
		tokens += oracle_tokens(&ht->p, s);
	}
	table->slot = malloc((tokens + 1) * sizeof(*table->slot));
	table->at = malloc((entries + 1) * sizeof(*table->at));
	if (!table->first || !table->slot || !table->at) {
		return -1;
	}
	memset(table->slot, 0xff, tokens * sizeof(*table->slot));
	memset(table->at, 0xff, entries * sizeof(*table->at));
	return 0;
}

struct oracle_ht_table *oracle_ht_table_create(const struct oracle_ht *ht, uint32_t rank)
{
	struct oracle_ht_table *t = calloc(1, sizeof(*t));
	uint32_t l = nlocal(ht);
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
	visit_all(ht, t, count, state);
	publish(ht, t, state, state + l);
	t->rows = calloc(t->count + 1, sizeof(*t->rows));
	if (!t->rows || index_open(ht, t)) {
		goto err;
	}
	clear(ht, t);
	visit_all(ht, t, place, state + l);
	free(state);
	return t;

err:
	free(state);
	oracle_ht_table_free(t);
	return NULL;
}

void oracle_ht_table_free(struct oracle_ht_table *table)
{
	if (table) {
		free(table->counters);
		free(table->offsets);
		free(table->rows);
		free(table->first);
		free(table->slot);
		free(table->at);
		free(table);
	}
}

uint32_t oracle_ht_rows(const struct oracle_ht_table *table, uint32_t src, uint32_t token,
			const uint32_t **rows)
{
	uint32_t slot = table->slot[table->first[src] + token];

	*rows = table->at + (size_t)slot * table->width;
	return slot == ORACLE_HT_NOWHERE ? 0 : table->width;
}

/* Returns recv_total_counter of the rank that has most. */
uint64_t oracle_ht_most(const struct oracle_ht *ht)
{
	uint64_t *rows = calloc(ht->p.experts + (size_t)ht->p.nranks, sizeof(*rows));
	uint64_t most = 0;
	int32_t experts[ORACLE_MAX_TOPK];

	for (uint32_t s = 0; rows && s < ht->p.nranks; s++) {
		for (uint32_t i = 0; i < oracle_tokens(&ht->p, s); i++) {
			for (uint32_t d = 0; d < ht->p.nranks; d++) {
				uint32_t n = oracle_ht_local(ht, s, i, d, experts, NULL);

				rows[ht->p.experts + d] += n > 0;
				for (uint32_t j = 0; j < n; j++) {
					rows[d * nlocal(ht) + (uint32_t)experts[j]]++;
				}
			}
		}
	}
	for (uint32_t d = 0; rows && d < ht->p.nranks; d++) {
		uint64_t total = 0;

		for (uint32_t e = d * nlocal(ht); e < (d + 1) * nlocal(ht); e++) {
			total += padded(ht, rows[e]);
		}
		total = ht->expert_major ? total : rows[ht->p.experts + d];
		most = total > most ? total : most;
	}
	free(rows);
	return most;
}
