/* SPDX-License-Identifier: Apache-2.0 */
#include "ht_tables.h"
#include "support/check.h"

static void *zeros(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	NEED(p);
	return p;
}

static uint32_t *words(size_t n, uint32_t value)
{
	uint32_t *p = zeros(n, sizeof(*p));

	for (size_t i = 0; i < n; i++) {
		p[i] = value;
	}
	return p;
}

static uint32_t least(uint64_t a, uint32_t b)
{
	return a < b ? (uint32_t)a : b;
}

void ht_tables_open(struct ht_tables *t, const struct oracle_problem *shape)
{
	struct oracle_routing *routing = &t->h.p.routing;

	memset(t, 0, sizeof(*t));
	NEED(shape->nranks <= HT_TABLES_RANKS && shape->topk <= ORACLE_MAX_TOPK);
	t->h.p = *shape;
	t->h.p.tokens = shape->max_tokens;
	t->nlocal = shape->experts / shape->nranks;
	routing->family = ORACLE_FILE;
	routing->nlines = shape->nranks * shape->max_tokens;
	routing->lines = (int32_t *)words((size_t)routing->nlines * ORACLE_MAX_TOPK, UINT32_MAX);
}

int32_t *ht_tables_ids(const struct ht_tables *t, uint32_t rank, uint32_t token)
{
	return t->h.p.routing.lines + ((size_t)rank * t->h.p.max_tokens + token) * ORACLE_MAX_TOPK;
}

static uint32_t limit_of(const struct ht_tables *t)
{
	return t->h.limit ? t->h.limit : EP_HT_NONE;
}

/* Of rank d for source s: its slots are those from `slot` on. Returns the slot behind them. */
static uint32_t pair_make(struct ht_tables *t, uint32_t s, uint32_t d, uint32_t slot)
{
	uint32_t r = t->h.p.nranks, c = t->chunks, index = 0;
	uint32_t *start = t->start + ((size_t)s * r + d) * (c + 1);

	t->send_base[s * r + d] = t->recv_base[d * (r + 1) + s] = least(slot, limit_of(t));
	for (uint32_t i = 0; i < t->h.p.max_tokens; i++) {
		const uint32_t *rows;

		if (i % (1u << t->chunk_shift) == 0) {
			start[i >> t->chunk_shift] = index;
		}
		if (oracle_ht_rows(t->of[d], s, i, &rows)) {
			index += slot++ < limit_of(t);
		}
	}
	start[c] = index;
	memcpy(t->recv_start + ((size_t)d * r + s) * (c + 1), start, (c + 1) * sizeof(*start));
	return slot;
}

static void rank_make(struct ht_tables *t, uint32_t d)
{
	const struct oracle_ht_table *of = t->of[d];
	struct ep_ht_head *head = &t->head[d];
	uint32_t r = t->h.p.nranks, slot = 0;

	for (uint32_t s = 0; s < r; s++) {
		slot = pair_make(t, s, d, slot);
		head->chunks = t->tokens[s] > head->chunks ? t->tokens[s] : head->chunks;
		head->idle |= t->of[s]->slots == 0;
	}
	head->chunks = ep_ht_chunks(head->chunks, t->chunk_shift);
	head->num_tokens = t->tokens[d];
	head->rows = t->recv_base[d * (r + 1) + r] = least(of->slots, limit_of(t));
	head->total = (uint32_t)of->total;
	t->recv_sel[d] = words((size_t)head->rows * t->width, EP_HT_NONE);
	if (t->h.expert_major) {
		head->places = least(of->total, limit_of(t));
		for (uint32_t e = 0; e < t->nlocal; e++) {
			t->zones[d * t->nlocal + e] =
				(struct ep_ht_zone){ .first = (uint32_t)of->offsets[e],
						     .rows = (uint32_t)of->counters[e] };
		}
	}
}

/* Entry *n of the token's list, and the following ones if it names the expert again. */
static void entries_make(struct ht_tables *t, uint32_t rank, uint32_t token, uint32_t expert,
			 uint32_t row, uint32_t place, uint32_t *n)
{
	const int32_t *id = ht_tables_ids(t, rank, token);
	size_t list = ((size_t)rank * t->h.p.max_tokens + token) * t->h.p.topk;
	uint32_t again = 0;

	for (uint32_t k = 0; k < t->h.p.topk; k++) {
		if (id[k] == (int32_t)expert) {
			t->send_sel[list + *n] = EP_HT_SEL(expert, k) | again;
			t->send_row[list + *n] = row;
			t->send_place[list + (*n)++] = place;
			again = EP_HT_SEL_AGAIN;
		}
	}
}

/* The token's list at its source, and those of its rows where they go. */
static void token_make(struct ht_tables *t, uint32_t rank, uint32_t token)
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < t->h.p.nranks; d++) {
		const struct oracle_ht_table *of = t->of[d];
		uint32_t slot = of->slot[of->first[rank] + token], *sel = NULL;
		int32_t experts[ORACLE_MAX_TOPK];
		uint32_t local = oracle_ht_local(&t->h, rank, token, d, experts, NULL);

		if (local && slot < limit_of(t)) {
			sel = t->recv_sel[d] + (size_t)slot * t->width;
		}
		for (uint32_t i = 0; i < local; i++) {
			uint32_t e = (uint32_t)experts[i], row = EP_HT_NONE, place = EP_HT_NONE;

			if (sel) {
				row = slot - t->send_base[rank * t->h.p.nranks + d];
			}
			if (sel && t->h.expert_major) {
				place = of->at[(size_t)slot * of->width + i];
				sel[i] = place == EP_HT_NONE ? EP_HT_DROPPED : place;
				t->zones[d * t->nlocal + e].kept += place != EP_HT_NONE;
			} else if (sel) {
				sel[i] = e;
			}
			entries_make(t, rank, token, d * t->nlocal + e, row, place, &n);
		}
	}
}

void ht_tables_make(struct ht_tables *t)
{
	size_t r = t->h.p.nranks, lists = r * t->h.p.max_tokens * t->h.p.topk;
	size_t starts = r * r * (ep_ht_chunks(t->h.p.max_tokens, t->chunk_shift) + 1);

	t->chunks = ep_ht_chunks(t->h.p.max_tokens, t->chunk_shift);
	t->width = least(t->h.p.topk, t->nlocal);
	t->send_sel = words(lists, EP_HT_NONE);
	t->send_row = words(lists, EP_HT_NONE);
	t->send_place = words(lists, EP_HT_NONE);
	t->start = words(starts, 0);
	t->recv_start = words(starts, 0);
	t->send_base = words(r * r, 0);
	t->recv_base = words(r * (r + 1), 0);
	t->zones = zeros(r * t->nlocal, sizeof(*t->zones));
	for (uint32_t d = 0; d < r; d++) {
		t->of[d] = oracle_ht_table_create(&t->h, d);
		NEED(t->of[d]);
	}
	for (uint32_t d = 0; d < r; d++) {
		rank_make(t, d);
	}
	for (uint32_t s = 0; s < r; s++) {
		for (uint32_t i = 0; i < t->tokens[s]; i++) {
			token_make(t, s, i);
		}
	}
}

void ht_tables_close(struct ht_tables *t)
{
	void *arrays[] = { t->send_sel,  t->send_row,   t->send_place,
			   t->start,     t->recv_start, t->send_base,
			   t->recv_base, t->zones,      t->h.p.routing.lines };

	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
		free(arrays[i]);
	}
	for (uint32_t d = 0; d < t->h.p.nranks; d++) {
		oracle_ht_table_free(t->of[d]);
		free(t->recv_sel[d]);
	}
}
