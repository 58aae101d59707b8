/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How popular experts are: zipf, khot and power. Integers only: every machine draws the same routing.
 * Fractions have 32 bits.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

#define ONE (INT64_C(1) << 32)

/* The square root of a number with 32 fraction bits, rounded down. */
static uint64_t root(uint64_t x)
{
	unsigned __int128 square = (unsigned __int128)x << 32;
	uint64_t r = 0;

	for (int bit = 63; bit >= 0; bit--) {
		uint64_t next = r | UINT64_C(1) << bit;

		if ((unsigned __int128)next * next <= square) {
			r = next;
		}
	}
	return r;
}

/* 2^40 / base^exponent, at least 1 */
static uint64_t inverse_power(uint32_t base, uint64_t exponent)
{
	uint64_t x = (uint64_t)base << 32;
	uint64_t weight = UINT64_C(1) << 62;

	for (uint64_t i = 0; i < exponent >> 32; i++) {
		weight /= base;
	}
	for (uint64_t bit = UINT64_C(1) << 31; bit > 0; bit /= 2) {
		x = root(x);
		if (exponent & bit) {
			weight = (uint64_t)(((unsigned __int128)weight << 32) / x);
		}
	}
	return weight >> 22 > 0 ? weight >> 22 : 1;
}

/* The binary logarithm of x / 2^32, x > 0. */
static int64_t logarithm(uint64_t x)
{
	int top = 63 - __builtin_clzll(x);
	unsigned __int128 m = (unsigned __int128)(x << (63 - top)) >> 1; /* 62 bits: 1 to 2 */
	int64_t log = (int64_t)(top - 32) * ONE;

	for (int64_t bit = ONE / 2; bit > 0; bit /= 2) {
		m = m * m >> 62;
		if (m >> 63) {
			m >>= 1;
			log += bit;
		}
	}
	return log;
}

/* 2^(y / 2^32) with 32 fraction bits; y is below 31 times 2^32. */
static uint64_t exponential(int64_t y)
{
	int64_t whole = y / ONE - (y % ONE < 0);
	uint64_t x = UINT64_C(2) << 32, result = UINT64_C(1) << 62;

	for (int64_t bit = ONE / 2; bit > 0; bit /= 2) {
		x = root(x);
		if (y & bit) {
			result = (uint64_t)((unsigned __int128)result * x >> 32);
		}
	}
	if (whole < -33) {
		return 0;
	}
	return whole >= 30 ? result << (whole - 30) : result >> (30 - whole);
}

/* Experts in an order that the seed draws. */
static void permute(struct oracle_problem *problem)
{
	struct stream s = stream_open(problem, KEY_PERMUTE, 0, 0);

	for (uint32_t i = 0; i < problem->experts; i++) {
		uint32_t j = draw(&s, i + 1);

		problem->popular_expert[i] = problem->popular_expert[j];
		problem->popular_expert[j] = i;
	}
}

/* The first place whose sum is above the point. */
static uint32_t popular_at(const struct oracle_problem *problem, uint64_t point)
{
	uint32_t low = 0, high = problem->experts - 1;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (problem->popular_sum[middle] > point) {
			high = middle;
		} else {
			low = middle + 1;
		}
	}
	return low;
}

/* ---- power: loads of experts as aiconfigurator draws them ---- */

struct load {
	uint64_t weight;
	uint64_t ids; /* of all tokens, that name the expert */
	uint32_t expert;
};

/* The busiest first. */
static int compare_loads(const void *a, const void *b)
{
	const struct load *x = a, *y = b;

	if (x->ids != y->ids) {
		return x->ids < y->ids ? 1 : -1;
	}
	return (x->expert > y->expert) - (x->expert < y->expert);
}

/* Numbers between least and most whose density is x to the power of -a: by the inverse of its distribution. */
static void draw_weights(const struct oracle_problem *problem, int64_t least, int64_t most,
			 struct load *load)
{
	struct stream s = stream_open(problem, KEY_PERMUTE, 0, 1);
	int64_t beta = problem->routing.power_ppm - INT64_C(1000000);
	int64_t low = (int64_t)exponential(-most * beta / 1000000);
	int64_t high = (int64_t)exponential(-least * beta / 1000000);

	for (uint32_t e = 0; e < problem->experts; e++) {
		uint64_t u = oracle_hash(s.key, s.counter++) >> 32;
		int64_t y = high - (int64_t)((__int128)(high - low) * (int64_t)u >> 32);
		int64_t log =
			(int64_t)((__int128)-logarithm((uint64_t)(y > 0 ? y : 1)) * 1000000 / beta);

		log = log < least ? least : log > most ? most : log;
		load[e].weight = exponential(log - 4 * ONE); /* of at most 2^34 tokens */
		load[e].expert = e;
	}
}

/* All `total` ids in proportion to the weights, and at most one of a token for each expert. */
static void share_out(const struct oracle_problem *problem, uint64_t tokens, struct load *load)
{
	uint64_t left = tokens * problem->topk;
	unsigned __int128 total = left, sum = 0;

	for (uint32_t e = 0; e < problem->experts; e++) {
		sum += load[e].ids = load[e].weight;
	}
	qsort(load, problem->experts, sizeof(*load), compare_loads);
	for (uint32_t e = 0; e < problem->experts; e++) {
		uint64_t ids = (uint64_t)((total * load[e].weight + sum / 2) / sum);

		ids = ids < tokens ? ids : tokens;
		load[e].ids = ids < left ? ids : left;
		left -= load[e].ids;
	}
	for (uint32_t e = 0; left && e < problem->experts; e++) {
		uint64_t more = tokens - load[e].ids < left ? tokens - load[e].ids : left;

		load[e].ids += more;
		left -= more;
	}
}

/* The busiest rank becomes rank 0. */
static void busiest_first(const struct oracle_problem *problem, struct load *load)
{
	uint32_t local = problem->experts / problem->nranks, busiest = 0;
	uint64_t ids[ORACLE_MAX_RANKS] = { 0 };

	for (uint32_t e = 0; e < problem->experts; e++) {
		ids[load[e].expert / local] += load[e].ids;
	}
	for (uint32_t r = 1; r < problem->nranks; r++) {
		busiest = ids[r] > ids[busiest] ? r : busiest;
	}
	for (uint32_t e = 0; e < problem->experts; e++) {
		if (load[e].expert / local == busiest) {
			load[e].expert -= busiest * local;
		} else if (load[e].expert / local == 0) {
			load[e].expert += busiest * local;
		}
	}
}

static uint64_t all_tokens(const struct oracle_problem *problem)
{
	return (uint64_t)problem->nranks * problem->tokens;
}

static int prepare_power(struct oracle_problem *problem)
{
	struct load *load = calloc(problem->experts, sizeof(*load));
	uint64_t tokens = all_tokens(problem), sum = 0;

	if (!load) {
		return -1;
	}
	if (tokens * problem->topk > problem->experts) {
		int64_t most = logarithm(tokens) + 32 * ONE + logarithm((uint64_t)ONE / 5 * 4);

		draw_weights(problem, 0, most > 0 ? most : 0, load);
	} else {
		draw_weights(problem, logarithm((uint64_t)ONE / 100), ONE, load);
	}
	share_out(problem, tokens, load);
	busiest_first(problem, load);
	qsort(load, problem->experts, sizeof(*load), compare_loads);
	for (uint32_t e = 0; e < problem->experts; e++) {
		sum += load[e].ids;
		problem->popular_sum[e] = sum;
		problem->popular_expert[e] = load[e].expert;
	}
	free(load);
	return 0;
}

/*
 * Ids stand in a row, those of the busiest expert first; a token has every tokens-th of them. No expert has
 * more ids than there are tokens, so none comes twice.
 */
void oracle_place_power(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
			int32_t *ids)
{
	uint64_t at = (uint64_t)rank * problem->tokens + token;

	for (uint32_t k = 0; k < problem->topk; k++, at += all_tokens(problem)) {
		ids[k] = (int32_t)problem->popular_expert[popular_at(problem, at)];
	}
}

/* ---- zipf and khot ---- */

int oracle_popularity_prepare(struct oracle_problem *problem)
{
	enum oracle_family family = problem->routing.family;
	uint64_t sum = 0;

	if (family != ORACLE_ZIPF && family != ORACLE_KHOT && family != ORACLE_POWER) {
		return 0;
	}
	problem->popular_sum = calloc(problem->experts, sizeof(*problem->popular_sum));
	problem->popular_expert = calloc(problem->experts, sizeof(*problem->popular_expert));
	if (!problem->popular_sum || !problem->popular_expert) {
		return -1;
	}
	if (family == ORACLE_POWER) {
		return prepare_power(problem);
	}
	permute(problem);
	for (uint32_t i = 0; family == ORACLE_ZIPF && i < problem->experts; i++) {
		sum += inverse_power(i + 1, problem->routing.zipf_exponent);
		problem->popular_sum[i] = sum;
	}
	return 0;
}

static int32_t draw_zipf(const struct oracle_problem *problem, struct stream *stream,
			 const int32_t *ids, uint32_t count)
{
	uint64_t total = problem->popular_sum[problem->experts - 1];
	uint32_t low = 0;

	for (int tries = 0; tries < 32; tries++) {
		unsigned __int128 x = oracle_hash(stream->key, stream->counter++);

		low = popular_at(problem, (uint64_t)(x * total >> 64));
		if (!contains(ids, count, (int32_t)problem->popular_expert[low])) {
			return (int32_t)problem->popular_expert[low];
		}
	}
	while (contains(ids, count,
			(int32_t)problem->popular_expert[low])) { /* the next less popular */
		low = (low + 1) % problem->experts;
	}
	return (int32_t)problem->popular_expert[low];
}

void oracle_draw_popular(const struct oracle_problem *problem, struct stream *stream, int32_t *ids)
{
	for (uint32_t k = 0; k < problem->topk; k++) {
		ids[k] = draw_zipf(problem, stream, ids, k);
	}
}

/* Each id is one of the hot experts with a probability; of the others if a token has all hot ones, or the reverse. */
void oracle_draw_khot(const struct oracle_problem *problem, struct stream *stream, int32_t *ids)
{
	uint32_t hot = problem->routing.hot_experts, cold = problem->experts - hot,
		 used[2] = { 0, 0 };
	int32_t places[2][ORACLE_MAX_TOPK];

	for (uint32_t k = 0; k < problem->topk; k++) {
		int is_hot = draw_ppm(stream, problem->routing.hot_ppm);
		int32_t place;

		if (is_hot ? used[1] == hot : used[0] == cold) {
			is_hot = !is_hot;
		}
		place = draw_new(stream, places[is_hot], used[is_hot], is_hot ? 0 : hot,
				 is_hot ? hot : cold);
		places[is_hot][used[is_hot]++] = place;
		ids[k] = (int32_t)problem->popular_expert[place];
	}
}
