// SPDX-License-Identifier: Apache-2.0
/* What dispatch must leave in the outputs, from the oracle's rows. */
#include "ht_rig.h"
#include "support/check.h"

static void *output_of(const void *p, size_t bytes)
{
	void *copy = malloc(bytes ? bytes : 1);

	NEED(copy);
	NEED_CUDA(cudaMemcpy(copy, p, bytes, cudaMemcpyDeviceToHost));
	return copy;
}

/* Smallest k of the token's entries that name local expert e of rank d; topk: none does. */
static uint32_t first_k(const struct ht_world *w, const struct oracle_ht_row *row, uint32_t d,
			uint32_t e)
{
	const int32_t *id = ht_tables_ids(&w->t, row->src, row->token);
	uint32_t k = 0;

	while (k < w->shape.topk && id[k] != (int32_t)(d * w->shape.nlocal + e)) {
		k++;
	}
	return k;
}

/*
 * What row r of rank d's outputs, or of the guard, must be. The kernel clears zones, and as many rows behind
 * them as it is told to.
 */
static struct oracle_ht_row row_of(const struct ht_world *w, uint32_t d, uint64_t r)
{
	const struct oracle_ht_table *t = w->t.of[d];
	struct oracle_ht_row row = { ORACLE_HT_UNTOUCHED, 0, 0, -1 };

	if (r < t->count && t->rows[r].kind == ORACLE_HT_ROW) {
		return t->rows[r];
	}
	if (w->shape.layout == EP_HT_EXPERT_MAJOR && r < w->rank[d].out_rows) {
		row.kind = ORACLE_HT_ZERO;
	}
	return row;
}

/* Tokens or scales. */
static void check_rows(const struct ht_world *w, uint32_t d, const void *out, uint32_t bytes,
		       bool scale)
{
	uint64_t rows = w->rank[d].out_rows + HT_GUARD_ROWS, bad = 0;
	uint32_t *got = output_of(out, rows * bytes), n = bytes / 4, poison;

	memset(&poison, HT_POISON, 4);
	for (uint64_t r = 0; r < rows && !bad; r++) {
		const struct oracle_ht_row want = row_of(w, d, r);

		for (uint32_t i = 0; i < n; i++) {
			uint32_t v = want.kind == ORACLE_HT_UNTOUCHED ? poison
				     : want.kind == ORACLE_HT_ZERO
					     ? 0
					     : ht_word(want.src, want.token, i, scale);

			bad += got[r * n + i] != v;
		}
		CHECK(!bad, "rank %u, %s, row %llu of %llu, kind %d: %llu words are wrong", d,
		      scale ? "scales" : "tokens", (unsigned long long)r, (unsigned long long)rows,
		      want.kind, (unsigned long long)bad);
	}
	free(got);
}

/* Flat: entries of idx and weights. */
static void check_entries(const struct ht_world *w, uint32_t d)
{
	const struct ht_shape *s = &w->shape;
	const struct ep_ht_dispatch_args *a = &w->rank[d].args;
	uint64_t rows = w->rank[d].out_rows + HT_GUARD_ROWS, wrong = 0;
	float *weights = output_of(a->out_weights, rows * s->topk * 4), poisoned;
	int64_t *idx = output_of(a->out_idx, rows * s->topk * 8), poison;

	memset(&poison, HT_POISON, sizeof(poison));
	memset(&poisoned, HT_POISON, sizeof(poisoned));
	for (uint64_t r = 0; r < rows && !wrong; r++) {
		const struct oracle_ht_row want = row_of(w, d, r);
		bool is_row = want.kind == ORACLE_HT_ROW;
		bool filled = is_row || (s->fill_more && r < w->rank[d].out_rows);
		uint32_t n = 0;

		for (uint32_t e = 0; is_row && e < s->nlocal; e++) {
			uint32_t k = first_k(w, &want, d, e);

			if (k < s->topk) {
				wrong += idx[r * s->topk + n] != e + a->id_base;
				wrong += weights[r * s->topk + n] !=
					 ht_weight(want.src, want.token, k);
				n++;
			}
		}
		for (; n < s->topk; n++) {
			float *at = &weights[r * s->topk + n];

			wrong += idx[r * s->topk + n] != (filled ? -1 : poison);
			wrong += filled ? *at != 0 : memcmp(at, &poisoned, 4) != 0;
		}
		CHECK(!wrong, "rank %u, idx and weights of row %llu", d, (unsigned long long)r);
	}
	free(weights);
	free(idx);
}

static void check_weights(const struct ht_world *w, uint32_t d)
{
	uint64_t rows = w->rank[d].out_rows + HT_GUARD_ROWS, wrong = 0;
	float *weights = output_of(w->rank[d].args.out_weights, rows * 4), poisoned;

	memset(&poisoned, HT_POISON, sizeof(poisoned));
	for (uint64_t r = 0; r < rows; r++) {
		const struct oracle_ht_row want = row_of(w, d, r);
		float v = want.kind == ORACLE_HT_UNTOUCHED ? poisoned : 0.0f;

		if (want.kind == ORACLE_HT_ROW) {
			v = ht_weight(want.src, want.token,
				      first_k(w, &want, d, (uint32_t)want.expert));
		}
		wrong += memcmp(&weights[r], &v, 4) != 0;
	}
	CHECK(!wrong, "rank %u: %llu weights are wrong", d, (unsigned long long)wrong);
	free(weights);
}

void ht_world_check(const struct ht_world *w, uint32_t d)
{
	const struct ht_shape *s = &w->shape;
	const struct ep_ht_dispatch_args *a = &w->rank[d].args;

	CHECK_INT(w->rank[d].records[EP_RECORD_FATAL].valid, 0);
	check_rows(w, d, a->out_tokens, s->token_bytes, false);
	check_rows(w, d, a->out_scales, s->scale_bytes, true);
	if (!s->backward && s->layout == EP_HT_FLAT) {
		check_entries(w, d);
	} else if (!s->backward) {
		check_weights(w, d);
	}
}
