// SPDX-License-Identifier: Apache-2.0
/* The tables of a routing, from the ids alone. */
#include "ht_rig.h"
#include "support/check.h"

uint32_t ht_random(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

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

/* Some ids are negative, and some name an expert again, unless there shall be no holes. */
static void ids_make(const struct ht_shape *s, struct ht_tables *t)
{
	uint32_t state = s->seed * 2654435761u + 1, experts = s->ranks * s->nlocal;
	uint32_t first = s->to[1] ? s->to[0] * s->nlocal : 0;
	uint32_t n = s->to[1] ? (s->to[1] - s->to[0]) * s->nlocal : experts;

	for (uint32_t i = 0; i < s->ranks * s->max_tokens; i++) {
		int32_t *id = t->ids + (size_t)i * s->topk;

		for (uint32_t k = 0; k < s->topk; k++) {
			bool again;

			do {
				again = false;
				id[k] = (int32_t)(first + ht_random(&state) % n);
				for (uint32_t j = 0; j < k; j++) {
					again |= id[j] == id[k];
				}
			} while (s->no_holes && again);
			if (!s->no_holes && ht_random(&state) % 16 == 0) {
				id[k] = -1;
			}
		}
		if (!s->no_holes && ht_random(&state) % 8 == 0) {
			memset(id, 0xff, s->topk * sizeof(*id)); /* a token for nobody */
		}
	}
}

static const int32_t *ids_of(const struct ht_shape *s, const struct ht_tables *t, uint32_t rank,
			     uint32_t token)
{
	return t->ids + ((size_t)rank * s->max_tokens + token) * s->topk;
}

static bool token_goes(const struct ht_shape *s, const int32_t *id, uint32_t d)
{
	for (uint32_t k = 0; k < s->topk; k++) {
		if (id[k] >= 0 && (uint32_t)id[k] / s->nlocal == d) {
			return true;
		}
	}
	return false;
}

static uint32_t limit_of(const struct ht_shape *s)
{
	return s->limit ? s->limit : EP_HT_NONE;
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Rows of each pair, in the order of source rank and token. */
static void rows_make(const struct ht_shape *s, struct ht_tables *t)
{
	uint32_t b = s->max_tokens, c = t->chunks;

	for (uint32_t d = 0; d < s->ranks; d++) {
		uint32_t slot = 0;

		for (uint32_t r = 0; r < s->ranks; r++) {
			uint32_t *start = t->start + ((size_t)r * s->ranks + d) * (c + 1);
			uint32_t index = 0;

			t->send_base[r * s->ranks + d] = least(slot, limit_of(s));
			t->recv_base[d * (s->ranks + 1) + r] = least(slot, limit_of(s));
			for (uint32_t i = 0; i < b; i++) {
				size_t at = ((size_t)r * s->ranks + d) * b + i;

				if (i % EP_HT_CHUNK == 0) {
					start[i / EP_HT_CHUNK] = index;
				}
				if (i >= s->tokens[r] || !token_goes(s, ids_of(s, t, r, i), d)) {
					continue;
				}
				if (slot < limit_of(s)) {
					t->slot[at] = slot;
					t->index[at] = index++;
				}
				slot++;
			}
			start[c] = index;
			memcpy(t->recv_start + ((size_t)d * s->ranks + r) * (c + 1), start,
			       (c + 1) * sizeof(*start));
		}
		t->head[d].rows = least(slot, limit_of(s));
		t->recv_base[d * (s->ranks + 1) + s->ranks] = t->head[d].rows;
	}
}

/* Does k's expert appear before k? */
static bool named_before(const int32_t *id, uint32_t k)
{
	for (uint32_t j = 0; j < k; j++) {
		if (id[j] == id[k]) {
			return true;
		}
	}
	return false;
}

/* Zones of rank d, and the places of all rows there. */
static void zones_make(const struct ht_shape *s, struct ht_tables *t, uint32_t d)
{
	uint32_t align = s->alignment ? s->alignment : 1, offset = 0;

	for (uint32_t e = 0; e < s->nlocal; e++) {
		struct ep_ht_zone *z = t->zones + (size_t)d * s->nlocal + e;
		int32_t expert = (int32_t)(d * s->nlocal + e);
		uint32_t n = 0, kept = 0;

		for (uint32_t i = 0; i < s->ranks * s->max_tokens; i++) {
			uint32_t r = i / s->max_tokens, token = i % s->max_tokens;
			const int32_t *id = ids_of(s, t, r, token);
			size_t at = ((size_t)r * s->ranks + d) * s->max_tokens + token;
			bool has = false;

			for (uint32_t k = 0; k < s->topk && token < s->tokens[r]; k++) {
				if (id[k] != expert) {
					continue;
				}
				has = true;
				if (t->slot[at] != EP_HT_NONE && offset + n < limit_of(s)) {
					t->place[(size_t)i * s->topk + k] = offset + n;
				}
			}
			kept += has && t->slot[at] != EP_HT_NONE && offset + n < limit_of(s);
			n += has;
		}
		n = (n + align - 1) / align * align;
		z->first = least(offset, limit_of(s));
		z->kept = kept;
		z->rows = least(offset + n, limit_of(s)) - z->first;
		offset += n;
	}
	t->head[d].places = least(offset, limit_of(s));
}

/* A token's list: in ascending order of experts, equal ones by k. */
static void list_make(const struct ht_shape *s, struct ht_tables *t, uint32_t r, uint32_t token)
{
	const int32_t *id = ids_of(s, t, r, token);
	size_t list = ((size_t)r * s->max_tokens + token) * s->topk;
	uint32_t n = 0, listed = 0, before = EP_HT_NONE;

	for (uint32_t e = 0; e < s->ranks * s->nlocal; e++) {
		for (uint32_t k = 0; k < s->topk; k++) {
			uint32_t d = e / s->nlocal, place = t->place[list + k];
			size_t at = ((size_t)r * s->ranks + d) * s->max_tokens + token;
			uint32_t *sel;

			if (id[k] != (int32_t)e) {
				continue;
			}
			t->send_sel[list + n] = EP_HT_SEL(e, k);
			t->send_sel[list + n] |= named_before(id, k) ? EP_HT_SEL_AGAIN : 0;
			t->send_row[list + n] = t->index[at];
			t->send_place[list + n++] = place;
			if (named_before(id, k) || t->slot[at] == EP_HT_NONE) {
				continue;
			}
			listed = before == d ? listed + 1 : 0;
			before = d;
			sel = t->recv_sel[d] + (size_t)t->slot[at] * t->width;
			sel[listed] = s->layout == EP_HT_FLAT ? e - d * s->nlocal
				      : place == EP_HT_NONE   ? EP_HT_DROPPED
							      : place;
		}
	}
}

void ht_tables_make(const struct ht_shape *s, struct ht_tables *t)
{
	size_t r = s->ranks, pairs = r * r, c = ep_ht_chunks(s->max_tokens), most = 0;
	size_t lists = r * s->max_tokens * s->topk;

	memset(t, 0, sizeof(*t));
	t->chunks = (uint32_t)c;
	t->width = least(s->topk, s->nlocal);
	t->ids = zeros(lists, sizeof(*t->ids));
	t->slot = words(pairs * s->max_tokens, EP_HT_NONE);
	t->index = words(pairs * s->max_tokens, EP_HT_NONE);
	t->place = words(lists, EP_HT_NONE);
	t->send_sel = words(lists, EP_HT_NONE);
	t->send_row = words(lists, EP_HT_NONE);
	t->send_place = words(lists, EP_HT_NONE);
	t->start = words(pairs * (c + 1), 0);
	t->recv_start = words(pairs * (c + 1), 0);
	t->send_base = words(pairs, 0);
	t->recv_base = words(r * (r + 1), 0);
	t->zones = zeros(r * s->nlocal, sizeof(*t->zones));
	ids_make(s, t);
	rows_make(s, t);
	for (uint32_t d = 0; d < r; d++) {
		zones_make(s, t, d);
		t->recv_sel[d] = words((size_t)t->head[d].rows * t->width, EP_HT_NONE);
		most = s->tokens[d] > most ? s->tokens[d] : most;
	}
	for (uint32_t d = 0; d < r; d++) {
		t->head[d].num_tokens = s->tokens[d];
		t->head[d].chunks = ep_ht_chunks((uint32_t)most);
		for (uint32_t i = 0; i < s->tokens[d]; i++) {
			list_make(s, t, d, i);
		}
	}
}

void ht_tables_free(const struct ht_shape *s, struct ht_tables *t)
{
	for (uint32_t d = 0; d < s->ranks; d++) {
		free(t->recv_sel[d]);
	}
	free(t->ids);
	free(t->slot);
	free(t->index);
	free(t->place);
	free(t->send_sel);
	free(t->send_row);
	free(t->send_place);
	free(t->start);
	free(t->recv_start);
	free(t->send_base);
	free(t->recv_base);
	free(t->zones);
}
