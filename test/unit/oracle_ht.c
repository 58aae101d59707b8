/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle of high throughput: it accepts what a plain reference makes, which looks at all tokens for
 * each row, and finds every mistake that is made in it.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/perf/oracle/oracle_ht.h"
#include "support/check.h"

#define RANKS 3
#define MOST 400 /* rows */

struct outputs { /* of one rank */
	uint8_t *tokens, *scales;
	float weights[MOST * ORACLE_MAX_TOPK];
	int64_t idx[MOST * ORACLE_MAX_TOPK];
	int64_t counters[64], offsets[64], total;
	uint8_t *sums;
	float gradients[64 * ORACLE_MAX_TOPK];
};

static struct oracle_ht make_problem(int expert_major, int drop, int forward)
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

static void put_row(const struct oracle_ht *h, struct outputs *o, uint64_t at, uint32_t src,
		    uint32_t token)
{
	oracle_input_row(&h->p, src, token, o->tokens + at * oracle_input_bytes(&h->p));
	oracle_input_scales(&h->p, src, token, (float *)o->scales + at * oracle_scale_count(&h->p));
}

/* A token's rows on rank d, in the outputs of it. */
static void place_token(const struct oracle_ht *h, uint32_t d, struct outputs *o, uint32_t src,
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

static void count(const struct oracle_ht *h, uint32_t d, struct outputs *o)
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

static struct outputs *reference(const struct oracle_ht *h, uint32_t d)
{
	struct outputs *o = calloc(1, sizeof(*o));
	size_t row = oracle_input_bytes(&h->p), scale = 4 * oracle_scale_count(&h->p), zeros;

	NEED(o);
	count(h, d, o);
	o->tokens = malloc(MOST * row);
	o->scales = malloc(MOST * scale + 1);
	NEED(o->tokens && o->scales && o->total <= MOST);
	memset(o->tokens, ORACLE_POISON, MOST * row);
	memset(o->scales, ORACLE_POISON, MOST * scale);
	memset(o->weights, ORACLE_POISON, sizeof(o->weights));
	memset(o->idx, 0xff, sizeof(o->idx));
	zeros = !h->expert_major ? 0 : h->drop ? h->limit : (size_t)o->total;
	memset(o->tokens, 0, zeros * row);
	memset(o->scales, 0, zeros * scale);
	memset(o->weights, 0, h->expert_major ? zeros * 4 : sizeof(o->weights));
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

static void sum_token(const struct oracle_ht *h, struct oracle_ht_table *const *tables,
		      uint32_t rank, uint32_t token, struct outputs *o)
{
	uint32_t local = h->p.experts / RANKS;
	int32_t ids[ORACLE_MAX_TOPK];

	oracle_route(&h->p, rank, token, ids);
	for (uint32_t c = 0; c < h->p.hidden; c++) {
		float sum = -0.0f; /* -0 + x is x, also where x is -0 */
		uint32_t some = 0;

		for (uint32_t d = 0; d < RANKS; d++) {
			float here = -0.0f;
			uint32_t n = 0;

			for (uint32_t e = 0; e < local; e++) {
				int64_t row = find(tables[d], rank, token, (int32_t)e);

				if (row >= 0 && (n++ == 0 || h->expert_major)) {
					here += oracle_ht_answer(h, d, (uint64_t)row, c);
				}
			}
			sum += n ? oracle_from_bf16(oracle_to_bf16(here)) : -0.0f;
			some |= n;
		}
		oracle_store(h->p.dtype, o->sums + token * oracle_combine_bytes(&h->p), c,
			     some ? sum : 0);
	}
	for (uint32_t k = 0; k < h->p.topk; k++) {
		uint32_t d = ids[k] < 0 ? 0 : (uint32_t)ids[k] / local, j = 0, at;
		int32_t e = ids[k] - (int32_t)(d * local);
		int64_t row = ids[k] < 0 ? -1 : find(tables[d], rank, token, e);
		float w;

		for (uint32_t low = d * local; !h->expert_major && (int32_t)low < ids[k]; low++) {
			j += (uint32_t)chosen(h, rank, token, low, &w, &at);
		}
		o->gradients[token * h->p.topk + k] =
			row < 0 ? 0 : oracle_ht_gradient(h, d, (uint64_t)row, j);
	}
}

static uint64_t wrong(const struct oracle_ht *h, struct oracle_ht_table *const *tables,
		      uint32_t rank, const struct outputs *o)
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
		  const struct outputs *o, void *at, size_t bytes, size_t step)
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
	struct outputs *o = reference(h, rank);
	uint32_t tokens = oracle_tokens(&h->p, rank), local = h->p.experts / RANKS;
	size_t row = oracle_combine_bytes(&h->p), wide = h->expert_major ? 1 : h->p.topk;

	o->sums = malloc(tokens * row + 1);
	NEED(o->sums);
	for (uint32_t i = 0; i < tokens; i++) {
		sum_token(h, tables, rank, i, o);
	}
	CHECK(wrong(h, tables, rank, o) == 0);
	spoil(h, tables, rank, o, o->tokens, t->count * oracle_input_bytes(&h->p), 331);
	spoil(h, tables, rank, o, o->scales, t->count * 4 * oracle_scale_count(&h->p), 67);
	spoil(h, tables, rank, o, o->weights, t->count * 4 * wide, 43);
	spoil(h, tables, rank, o, o->idx, h->expert_major ? 0 : t->count * 8 * wide, 97);
	spoil(h, tables, rank, o, o->counters, 8 * local, 8);
	spoil(h, tables, rank, o, o->offsets, h->expert_major ? 8 * local : 0, 8);
	spoil(h, tables, rank, o, &o->total, 8, 8);
	spoil(h, tables, rank, o, o->sums, tokens * row, 61);
	spoil(h, tables, rank, o, o->gradients, tokens * h->p.topk * 4, 13);
	free(o->tokens);
	free(o->scales);
	free(o->sums);
	free(o);
}

static void test_shape(int expert_major, int drop, int forward)
{
	struct oracle_ht h = make_problem(expert_major, drop, forward);
	struct oracle_ht_table *tables[RANKS];
	uint64_t most = 0;

	check_context("%s%s%s", expert_major ? "expert-major" : "flat", drop ? ", drop" : "",
		      forward ? ", forwarded" : "");
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

int main(void)
{
	for (int expert_major = 0; expert_major < 2; expert_major++) {
		test_shape(expert_major, 0, 0);
		test_shape(expert_major, 1, 0);
		test_shape(expert_major, 0, 1);
	}
	return check_end();
}
