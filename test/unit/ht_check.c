// SPDX-License-Identifier: Apache-2.0
/* What dispatch must leave in the outputs, from the ids alone. */
#include "ht_rig.h"
#include "support/check.h"

static void *output_of(const void *p, size_t bytes)
{
	void *copy = malloc(bytes ? bytes : 1);

	NEED(copy);
	NEED_CUDA(cudaMemcpy(copy, p, bytes, cudaMemcpyDeviceToHost));
	return copy;
}

/* Smallest k of the token's entries that name expert e; topk: none does. */
static uint32_t first_k(const struct ht_shape *s, const int32_t *id, uint32_t e)
{
	uint32_t k = 0;

	while (k < s->topk && id[k] != (int32_t)e) {
		k++;
	}
	return k;
}

struct ht_want *ht_wants(const struct ht_world *w, uint32_t d)
{
	const struct ht_shape *s = &w->shape;
	uint64_t rows = w->rank[d].out_rows + HT_GUARD_ROWS;
	struct ht_want *want = calloc(rows, sizeof(*want));

	NEED(want);
	for (uint32_t e = 0; s->layout == EP_HT_EXPERT_MAJOR && e < s->nlocal; e++) {
		const struct ep_ht_zone *z = w->t.zones + (size_t)d * s->nlocal + e;

		for (uint32_t i = 0; i < z->rows; i++) {
			want[z->first + i].kind = HT_ZEROS;
		}
	}
	for (uint32_t i = 0; s->layout == EP_HT_EXPERT_MAJOR && i < s->zero_more; i++) {
		want[w->rank[d].out_rows - 1 - i].kind = HT_ZEROS;
	}
	for (uint32_t r = 0; r < s->ranks; r++) {
		for (uint32_t t = 0; t < s->tokens[r]; t++) {
			size_t at = (size_t)r * s->max_tokens + t;
			uint32_t slot = w->t.slot[((size_t)r * s->ranks + d) * s->max_tokens + t];

			if (slot == EP_HT_NONE) {
				continue;
			}
			if (s->layout == EP_HT_FLAT) {
				want[slot] = (struct ht_want){ HT_ROW, r, t, 0 };
			}
			for (uint32_t k = 0; k < s->topk && s->layout == EP_HT_EXPERT_MAJOR; k++) {
				const int32_t *id = w->t.ids + at * s->topk;
				uint32_t place = w->t.place[at * s->topk + k];

				if (id[k] >= 0 && (uint32_t)id[k] / s->nlocal == d &&
				    place != EP_HT_NONE) {
					want[place] =
						(struct ht_want){ HT_ROW, r, t,
								  first_k(s, id, (uint32_t)id[k]) };
				}
			}
		}
	}
	return want;
}

/* Tokens or scales. */
static uint64_t check_rows(const struct ht_world *w, uint32_t d, const struct ht_want *want,
			   const void *out, uint32_t bytes, bool scale)
{
	uint64_t rows = w->rank[d].out_rows + HT_GUARD_ROWS, wrong = 0;
	uint32_t *got = output_of(out, rows * bytes), n = bytes / 4, poison;

	memset(&poison, HT_POISON, 4);
	for (uint64_t r = 0; r < rows; r++) {
		uint64_t bad = 0;

		for (uint32_t i = 0; i < n; i++) {
			uint32_t v = want[r].kind == HT_UNTOUCHED ? poison
				     : want[r].kind == HT_ZEROS
					     ? 0
					     : ht_word(want[r].source, want[r].token, i, scale);

			bad += got[r * n + i] != v;
		}
		if (bad && !wrong) {
			CHECK(!bad, "rank %u, %s, row %llu of %llu, kind %d: %llu words are wrong",
			      d, scale ? "scales" : "tokens", (unsigned long long)r,
			      (unsigned long long)rows, want[r].kind, (unsigned long long)bad);
		}
		wrong += bad;
	}
	free(got);
	return wrong;
}

/* Flat: entries of idx and weights. */
static uint64_t check_entries(const struct ht_world *w, uint32_t d, const struct ht_want *want)
{
	const struct ht_shape *s = &w->shape;
	const struct ep_ht_dispatch_args *a = &w->rank[d].args;
	uint64_t rows = w->rank[d].out_rows + HT_GUARD_ROWS, wrong = 0;
	float *weights = output_of(a->out_weights, rows * s->topk * 4);
	int64_t *idx = output_of(a->out_idx, rows * s->topk * 8), poison;
	float poisoned;

	memset(&poison, HT_POISON, sizeof(poison));
	memset(&poisoned, HT_POISON, sizeof(poisoned));
	for (uint64_t r = 0; r < rows; r++) {
		bool filled = want[r].kind == HT_ROW || (s->fill_more && r < w->rank[d].out_rows);
		uint32_t n = 0;

		for (uint32_t e = 0; want[r].kind == HT_ROW && e < s->nlocal; e++) {
			uint32_t k = first_k(s,
					     w->t.ids + ((size_t)want[r].source * s->max_tokens +
							 want[r].token) *
								s->topk,
					     d * s->nlocal + e);

			if (k < s->topk) {
				wrong += idx[r * s->topk + n] != e + a->id_base;
				wrong += weights[r * s->topk + n] !=
					 ht_weight(want[r].source, want[r].token, k);
				n++;
			}
		}
		for (; n < s->topk; n++) {
			float *at = &weights[r * s->topk + n];

			wrong += idx[r * s->topk + n] != (filled ? -1 : poison);
			wrong += filled ? *at != 0 : memcmp(at, &poisoned, 4) != 0;
		}
		CHECK(!wrong, "rank %u, idx and weights of row %llu", d, (unsigned long long)r);
		if (wrong) {
			break;
		}
	}
	free(weights);
	free(idx);
	return wrong;
}

static uint64_t check_weights(const struct ht_world *w, uint32_t d, const struct ht_want *want)
{
	uint64_t rows = w->rank[d].out_rows + HT_GUARD_ROWS, wrong = 0;
	float *weights = output_of(w->rank[d].args.out_weights, rows * 4), poisoned;

	memset(&poisoned, HT_POISON, sizeof(poisoned));
	for (uint64_t r = 0; r < rows; r++) {
		float v = want[r].kind == HT_UNTOUCHED ? poisoned
			  : want[r].kind == HT_ZEROS
				  ? 0.0f
				  : ht_weight(want[r].source, want[r].token, want[r].k);

		wrong += memcmp(&weights[r], &v, 4) != 0;
	}
	CHECK(!wrong, "rank %u: %llu weights are wrong", d, (unsigned long long)wrong);
	free(weights);
	return wrong;
}

void ht_world_check(const struct ht_world *w, uint32_t d)
{
	const struct ht_shape *s = &w->shape;
	const struct ep_ht_dispatch_args *a = &w->rank[d].args;
	struct ht_want *want = ht_wants(w, d);

	CHECK_INT(w->rank[d].records[EP_RECORD_FATAL].valid, 0);
	check_rows(w, d, want, a->out_tokens, s->token_bytes, false);
	check_rows(w, d, want, a->out_scales, s->scale_bytes, true);
	if (!s->backward && s->layout == EP_HT_FLAT) {
		check_entries(w, d, want);
	} else if (!s->backward) {
		check_weights(w, d, want);
	}
	free(want);
}
