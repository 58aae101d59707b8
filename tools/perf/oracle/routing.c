// SPDX-License-Identifier: Apache-2.0
/* Who sends what to whom. Integers only: every machine draws the same routing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

static void draw_grouped(const struct oracle_problem *p, struct stream *s, int32_t *ids)
{
	uint32_t extent = p->experts / p->routing.groups;
	int32_t group[ORACLE_MAX_TOPK];

	for (uint32_t i = 0; i < p->routing.groups_used; i++) {
		group[i] = draw_new(s, group, i, 0, p->routing.groups);
	}
	for (uint32_t k = 0; k < p->topk; k++) {
		do {
			uint32_t g = (uint32_t)group[draw(s, p->routing.groups_used)];

			ids[k] = (int32_t)(g * extent + draw(s, extent));
		} while (contains(ids, k, ids[k]));
	}
}

void oracle_route(const struct oracle_problem *p, uint32_t rank, uint32_t token, int32_t *ids)
{
	struct stream s = stream_open(p, KEY_ROUTE, rank, token);
	uint32_t local = p->experts / p->nranks;
	int hot;

	switch (p->routing.family) {
	case ORACLE_FILE:
		memcpy(ids,
		       p->routing.lines + ((uint64_t)rank * p->max_tokens + token) %
						  p->routing.nlines * ORACLE_MAX_TOPK,
		       p->topk * sizeof(*ids));
		break;
	case ORACLE_GROUP:
		draw_grouped(p, &s, ids);
		break;
	case ORACLE_ZIPF:
		oracle_draw_popular(p, &s, ids);
		break;
	case ORACLE_KHOT:
		oracle_draw_khot(p, &s, ids);
		break;
	case ORACLE_POWER:
		oracle_place_power(p, rank, token, ids);
		break;
	default:
		hot = p->routing.family == ORACLE_HOT && draw_ppm(&s, p->routing.hot_ppm);
		for (uint32_t k = 0; k < p->topk; k++) {
			if (hot && k < local) {
				ids[k] = draw_new(&s, ids, k, p->routing.hot_rank * local, local);
			} else {
				ids[k] = draw_new(&s, ids, k, 0, p->experts);
			}
		}
		break;
	}
	s = stream_open(p, KEY_DROP, rank, token);
	for (uint32_t k = 0; k < p->topk; k++) {
		int repeat = draw_ppm(&s, p->duplicate_ppm);

		if (repeat && k > 0) {
			ids[k] = ids[k - 1];
		}
		if (draw_ppm(&s, p->drop_ppm)) {
			ids[k] = -1;
		}
	}
}

/* Full mantissas: a product that is rounded before it is added differs from a fused one. */
void oracle_weights(const struct oracle_problem *p, uint32_t rank, uint32_t token, float *weights)
{
	struct stream s = stream_open(p, KEY_WEIGHT, rank, token);

	for (uint32_t k = 0; k < p->topk; k++) {
		weights[k] = (float)(draw(&s, 1u << 24) | 1u) * (1.0f / (1u << 24));
	}
}

int oracle_first(const int32_t *ids, uint32_t k, uint32_t local)
{
	uint32_t base = (uint32_t)ids[k] / local * local, j = 0;

	while (j < k && (uint32_t)ids[j] - base >= local) {
		j++;
	}
	return j == k;
}

int oracle_absent(const struct oracle_problem *p, uint32_t rank)
{
	return (rank < 64 && (p->absent >> rank & 1)) || (rank && rank == p->absent_rank);
}

/* Not a matter of the seed: other data of the same shape may follow in a captured graph. */
uint32_t oracle_tokens(const struct oracle_problem *p, uint32_t rank)
{
	struct stream s = { .key = oracle_hash(KEY_TOKENS, p->nranks) };
	uint32_t shift = draw(&s, p->nranks);
	uint32_t turn = (rank + shift) % p->nranks;

	if (oracle_absent(p, rank)) {
		return 0;
	}
	if (!p->uneven || turn == 0) {
		return p->tokens;
	}
	if (turn == 1) {
		return 0;
	}
	s.counter += turn;
	return draw(&s, p->tokens + 1);
}

void oracle_traffic(const struct oracle_problem *p, uint32_t rank, struct oracle_traffic *traffic)
{
	uint32_t local = p->experts / p->nranks;

	memset(traffic, 0, sizeof(*traffic));
	traffic->tokens = oracle_tokens(p, rank);
	for (uint32_t src = 0; src < p->nranks; src++) {
		for (uint32_t t = 0, n = oracle_tokens(p, src); t < n; t++) {
			int32_t ids[ORACLE_MAX_TOPK];

			oracle_route(p, src, t, ids);
			for (uint32_t k = 0; k < p->topk; k++) {
				uint32_t to = (uint32_t)ids[k] / local;
				int remote = to != src;
				int first;

				if (ids[k] < 0 || oracle_absent(p, to)) {
					continue;
				}
				first = oracle_first(ids, k, local);
				if (src == rank) {
					traffic->expert_copies++;
					traffic->expert_copies_remote += (uint64_t)remote;
					traffic->rank_copies += (uint64_t)first;
					traffic->rank_copies_remote += (uint64_t)(first && remote);
				} else if (to == rank) {
					traffic->expert_copies_in++;
					traffic->rank_copies_in += (uint64_t)first;
				}
			}
		}
	}
}

/* A line of ids for tokens: 0, or -1 with what does not fit in `why`. */
static int line_fits(const struct oracle_problem *p, uint32_t i, char *why, size_t bytes)
{
	const struct oracle_routing *r = &p->routing;
	const struct oracle_line at = r->read ? r->read[i] : (struct oracle_line){ i + 1, 0 };
	const int32_t *ids = r->lines + (size_t)i * ORACLE_MAX_TOPK;
	const char *name = r->file ? r->file : "routing";

	if (at.ids > p->topk) {
		snprintf(why, bytes, "%s:%u: got %u ids, allowed is top-k, %u, at most", name,
			 at.number, at.ids, p->topk);
		return -1;
	}
	for (uint32_t k = 0; k < ORACLE_MAX_TOPK; k++) {
		if (ids[k] >= (int32_t)p->experts) {
			snprintf(why, bytes, "%s:%u: got expert %d, allowed is -1 to %u", name,
				 at.number, ids[k], p->experts - 1);
			return -1;
		}
		if (r->read && ids[k] >= 0 && contains(ids, k, ids[k])) {
			snprintf(why, bytes,
				 "%s:%u: got expert %d twice, allowed is once in a line", name,
				 at.number, ids[k]);
			return -1;
		}
	}
	return 0;
}

/* Of --routing hot, khot, group and file: 0, or -1 with what does not fit in `why`. */
static int routing_fits(const struct oracle_problem *p, char *why, size_t bytes)
{
	const struct oracle_routing *r = &p->routing;

	if (r->family == ORACLE_HOT && r->hot_rank >= p->nranks) {
		snprintf(why, bytes, "routing hot: got rank %u, allowed is 0 to %u", r->hot_rank,
			 p->nranks - 1);
		return -1;
	}
	if (r->family == ORACLE_KHOT && (r->hot_experts == 0 || r->hot_experts > p->experts)) {
		snprintf(why, bytes, "routing khot: got %u hot experts, allowed is 1 to %u",
			 r->hot_experts, p->experts);
		return -1;
	}
	if (r->family == ORACLE_GROUP &&
	    (r->groups == 0 || p->experts % r->groups || r->groups_used == 0 ||
	     r->groups_used > r->groups || r->groups_used > ORACLE_MAX_TOPK ||
	     p->experts / r->groups * r->groups_used < p->topk)) {
		snprintf(
			why, bytes,
			"routing group: got %u,%u; allowed is G,g with G dividing %u experts, and g "
			"groups, at most G and %d, that hold top-k %u",
			r->groups, r->groups_used, p->experts, ORACLE_MAX_TOPK, p->topk);
		return -1;
	}
	for (uint32_t i = 0; r->family == ORACLE_FILE && i < r->nlines; i++) {
		if (line_fits(p, i, why, bytes)) {
			return -1;
		}
	}
	return 0;
}

static int problem_fits(const struct oracle_problem *p, char *why, size_t bytes)
{
	if (p->nranks == 0 || p->nranks > ORACLE_MAX_RANKS) {
		snprintf(why, bytes, "got %u ranks, allowed is 1 to %d", p->nranks,
			 ORACLE_MAX_RANKS);
	} else if (p->experts == 0 || p->experts % p->nranks) {
		snprintf(why, bytes,
			 "got %u experts, allowed is a multiple of the number of ranks, %u",
			 p->experts, p->nranks);
	} else if (p->topk == 0 || p->topk > ORACLE_MAX_TOPK || p->topk > p->experts) {
		snprintf(why, bytes, "got top-k %u, allowed is 1 to %u, with %u experts", p->topk,
			 p->experts < ORACLE_MAX_TOPK ? p->experts : ORACLE_MAX_TOPK, p->experts);
	} else if (p->tokens > p->max_tokens) {
		snprintf(why, bytes, "got %u tokens, allowed is the capacity, %u, at most",
			 p->tokens, p->max_tokens);
	} else if ((p->quant == ORACLE_QUANT_FP8 || p->quant == ORACLE_QUANT_FP8_COLUMNS) &&
		   (p->dtype != ORACLE_BF16 || p->hidden % ORACLE_BLOCK ||
		    p->hidden > ORACLE_MAX_FP8_HIDDEN)) {
		snprintf(why, bytes,
			 "fp8: got %s tokens of %u elements, allowed is bf16 and a multiple of %d, "
			 "up to %d",
			 p->dtype == ORACLE_BF16   ? "bf16"
			 : p->dtype == ORACLE_FP16 ? "fp16"
						   : "fp32",
			 p->hidden, ORACLE_BLOCK, ORACLE_MAX_FP8_HIDDEN);
	} else {
		return routing_fits(p, why, bytes);
	}
	return -1;
}

int oracle_problem_prepare(struct oracle_problem *p, char *why, size_t why_bytes)
{
	p->popular_sum = NULL;
	p->popular_expert = NULL;
	if (problem_fits(p, why, why_bytes)) {
		return -1;
	}
	if (oracle_popularity_prepare(p)) {
		oracle_problem_free(p);
		snprintf(why, why_bytes, "out of memory");
		return -1;
	}
	return 0;
}

void oracle_problem_free(struct oracle_problem *p)
{
	free(p->popular_sum);
	free(p->popular_expert);
	p->popular_sum = NULL;
	p->popular_expert = NULL;
}
