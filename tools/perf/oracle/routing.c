/* SPDX-License-Identifier: Apache-2.0 */
/* Draws who sends what to whom. Integers only: every machine draws the same routing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

static void draw_grouped(const struct oracle_problem *problem, struct stream *stream, int32_t *ids)
{
	uint32_t extent = problem->experts / problem->routing.groups;
	int32_t group[ORACLE_MAX_TOPK];

	for (uint32_t i = 0; i < problem->routing.groups_used; i++) {
		group[i] = draw_new(stream, group, i, 0, problem->routing.groups);
	}
	for (uint32_t k = 0; k < problem->topk; k++) {
		do {
			uint32_t g = (uint32_t)group[draw(stream, problem->routing.groups_used)];

			ids[k] = (int32_t)(g * extent + draw(stream, extent));
		} while (contains(ids, k, ids[k]));
	}
}

void oracle_route(const struct oracle_problem *problem, uint32_t rank, uint32_t token, int32_t *ids)
{
	struct stream s = stream_open(problem, KEY_ROUTE, rank, token);
	uint32_t local = problem->experts / problem->nranks;
	int hot;

	switch (problem->routing.family) {
	case ORACLE_FILE:
		memcpy(ids,
		       problem->routing.lines + ((uint64_t)rank * problem->max_tokens + token) %
							problem->routing.nlines * ORACLE_MAX_TOPK,
		       problem->topk * sizeof(*ids));
		break;
	case ORACLE_GROUP:
		draw_grouped(problem, &s, ids);
		break;
	case ORACLE_ZIPF:
		oracle_draw_popular(problem, &s, ids);
		break;
	case ORACLE_KHOT:
		oracle_draw_khot(problem, &s, ids);
		break;
	case ORACLE_POWER:
		oracle_place_power(problem, rank, token, ids);
		break;
	default:
		hot = problem->routing.family == ORACLE_HOT &&
		      draw_ppm(&s, problem->routing.hot_ppm);
		for (uint32_t k = 0; k < problem->topk; k++) {
			if (hot && k < local) {
				ids[k] = draw_new(&s, ids, k, problem->routing.hot_rank * local,
						  local);
			} else {
				ids[k] = draw_new(&s, ids, k, 0, problem->experts);
			}
		}
		break;
	}
	s = stream_open(problem, KEY_DROP, rank, token);
	for (uint32_t k = 0; k < problem->topk; k++) {
		int repeat = draw_ppm(&s, problem->duplicate_ppm);

		if (repeat && k > 0) {
			ids[k] = ids[k - 1];
		}
		if (draw_ppm(&s, problem->drop_ppm)) {
			ids[k] = -1;
		}
	}
}

/* Full mantissas: a product that is rounded before it is added differs from a fused one. */
void oracle_weights(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		    float *weights)
{
	struct stream s = stream_open(problem, KEY_WEIGHT, rank, token);

	for (uint32_t k = 0; k < problem->topk; k++) {
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

int oracle_absent(const struct oracle_problem *problem, uint32_t rank)
{
	return (rank < 64 && (problem->absent >> rank & 1)) ||
	       (rank && rank == problem->absent_rank);
}

/* Not a matter of the seed: other data of the same shape may follow in a captured graph. */
uint32_t oracle_tokens(const struct oracle_problem *problem, uint32_t rank)
{
	struct stream s = { .key = oracle_hash(KEY_TOKENS, problem->nranks) };
	uint32_t shift = draw(&s, problem->nranks);
	uint32_t turn = (rank + shift) % problem->nranks;

	if (oracle_absent(problem, rank)) {
		return 0;
	}
	if (!problem->uneven || turn == 0) {
		return problem->tokens;
	}
	if (turn == 1) {
		return 0;
	}
	s.counter += turn;
	return draw(&s, problem->tokens + 1);
}

void oracle_traffic(const struct oracle_problem *problem, uint32_t rank,
		    struct oracle_traffic *traffic)
{
	uint32_t local = problem->experts / problem->nranks;

	memset(traffic, 0, sizeof(*traffic));
	traffic->tokens = oracle_tokens(problem, rank);
	for (uint32_t src = 0; src < problem->nranks; src++) {
		for (uint32_t t = 0, n = oracle_tokens(problem, src); t < n; t++) {
			int32_t ids[ORACLE_MAX_TOPK];

			oracle_route(problem, src, t, ids);
			for (uint32_t k = 0; k < problem->topk; k++) {
				uint32_t to = (uint32_t)ids[k] / local;
				int remote = to != src;
				int first;

				if (ids[k] < 0 || oracle_absent(problem, to)) {
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
static int line_fits(const struct oracle_problem *problem, uint32_t i, char *why, size_t bytes)
{
	const struct oracle_routing *r = &problem->routing;
	const struct oracle_line at = r->read ? r->read[i] : (struct oracle_line){ i + 1, 0 };
	const int32_t *ids = r->lines + (size_t)i * ORACLE_MAX_TOPK;
	const char *name = r->file ? r->file : "routing";

	if (at.ids > problem->topk) {
		snprintf(why, bytes, "%s:%u: got %u ids, allowed is top-k, %u, at most", name,
			 at.number, at.ids, problem->topk);
		return -1;
	}
	for (uint32_t k = 0; k < ORACLE_MAX_TOPK; k++) {
		if (ids[k] >= (int32_t)problem->experts) {
			snprintf(why, bytes, "%s:%u: got expert %d, allowed is -1 to %u", name,
				 at.number, ids[k], problem->experts - 1);
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
static int routing_fits(const struct oracle_problem *problem, char *why, size_t bytes)
{
	const struct oracle_routing *r = &problem->routing;

	if (r->family == ORACLE_HOT && r->hot_rank >= problem->nranks) {
		snprintf(why, bytes, "routing hot: got rank %u, allowed is 0 to %u", r->hot_rank,
			 problem->nranks - 1);
		return -1;
	}
	if (r->family == ORACLE_KHOT &&
	    (r->hot_experts == 0 || r->hot_experts > problem->experts)) {
		snprintf(why, bytes, "routing khot: got %u hot experts, allowed is 1 to %u",
			 r->hot_experts, problem->experts);
		return -1;
	}
	if (r->family == ORACLE_GROUP &&
	    (r->groups == 0 || problem->experts % r->groups || r->groups_used == 0 ||
	     r->groups_used > r->groups || r->groups_used > ORACLE_MAX_TOPK ||
	     problem->experts / r->groups * r->groups_used < problem->topk)) {
		snprintf(
			why, bytes,
			"routing group: got %u,%u; allowed is G,g with G dividing %u experts, and g "
			"groups, at most G and %d, that hold top-k %u",
			r->groups, r->groups_used, problem->experts, ORACLE_MAX_TOPK,
			problem->topk);
		return -1;
	}
	for (uint32_t i = 0; r->family == ORACLE_FILE && i < r->nlines; i++) {
		if (line_fits(problem, i, why, bytes)) {
			return -1;
		}
	}
	return 0;
}

static int problem_fits(const struct oracle_problem *problem, char *why, size_t bytes)
{
	if (problem->nranks == 0 || problem->nranks > ORACLE_MAX_RANKS) {
		snprintf(why, bytes, "got %u ranks, allowed is 1 to %d", problem->nranks,
			 ORACLE_MAX_RANKS);
	} else if (problem->experts == 0 || problem->experts % problem->nranks) {
		snprintf(why, bytes,
			 "got %u experts, allowed is a multiple of the number of ranks, %u",
			 problem->experts, problem->nranks);
	} else if (problem->topk == 0 || problem->topk > ORACLE_MAX_TOPK ||
		   problem->topk > problem->experts) {
		snprintf(why, bytes, "got top-k %u, allowed is 1 to %u, with %u experts",
			 problem->topk,
			 problem->experts < ORACLE_MAX_TOPK ? problem->experts : ORACLE_MAX_TOPK,
			 problem->experts);
	} else if (problem->tokens > problem->max_tokens) {
		snprintf(why, bytes, "got %u tokens, allowed is the capacity, %u, at most",
			 problem->tokens, problem->max_tokens);
	} else if ((problem->quant == ORACLE_QUANT_FP8 ||
		    problem->quant == ORACLE_QUANT_FP8_COLUMNS) &&
		   (problem->dtype != ORACLE_BF16 || problem->hidden % ORACLE_BLOCK ||
		    problem->hidden > ORACLE_MAX_FP8_HIDDEN)) {
		snprintf(why, bytes,
			 "fp8: got %s tokens of %u elements, allowed is bf16 and a multiple of %d, "
			 "up to %d",
			 problem->dtype == ORACLE_BF16   ? "bf16"
			 : problem->dtype == ORACLE_FP16 ? "fp16"
							 : "fp32",
			 problem->hidden, ORACLE_BLOCK, ORACLE_MAX_FP8_HIDDEN);
	} else {
		return routing_fits(problem, why, bytes);
	}
	return -1;
}

int oracle_problem_prepare(struct oracle_problem *problem, char *why, size_t why_bytes)
{
	problem->popular_sum = NULL;
	problem->popular_expert = NULL;
	if (problem_fits(problem, why, why_bytes)) {
		return -1;
	}
	if (oracle_popularity_prepare(problem)) {
		oracle_problem_free(problem);
		snprintf(why, why_bytes, "out of memory");
		return -1;
	}
	return 0;
}

void oracle_problem_free(struct oracle_problem *problem)
{
	free(problem->popular_sum);
	free(problem->popular_expert);
	problem->popular_sum = NULL;
	problem->popular_expert = NULL;
}
