/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many tokens a rank has and which experts they choose: random numbers, named workloads, and
 * traces.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

/* ---- who has tokens and experts ---- */

uint32_t oracle_senders(const struct oracle_problem *problem)
{
	return problem->senders ? problem->senders : problem->nranks;
}

static uint32_t holders_of(const struct oracle_problem *problem)
{
	return problem->holders ? problem->holders : problem->nranks;
}

uint32_t oracle_local(const struct oracle_problem *problem)
{
	return problem->experts / holders_of(problem);
}

uint32_t oracle_held(const struct oracle_problem *problem, uint32_t rank)
{
	return rank - problem->first_holder < holders_of(problem) ? oracle_local(problem) : 0;
}

uint32_t oracle_first_expert(const struct oracle_problem *problem, uint32_t rank)
{
	return (rank - problem->first_holder) * oracle_local(problem);
}

uint32_t oracle_holder(const struct oracle_problem *problem, uint32_t expert)
{
	return problem->first_holder + expert / oracle_local(problem);
}

/* ---- random numbers: a stream for each purpose, rank and token ---- */

/* Uses of a stream of random numbers; part of its key. */
enum {
	KEY_TOKENS = 1,
	KEY_ROUTE,
	KEY_DROP,
	KEY_WEIGHT,
	KEY_PERMUTE
};

struct stream {
	uint64_t key;
	uint64_t counter;
};

static struct stream stream_open(const struct oracle_problem *problem, uint32_t purpose,
				 uint32_t rank, uint32_t token)
{
	struct stream s = { 0 };

	s.key = oracle_hash(problem->seed, purpose);
	s.key = oracle_hash(s.key, (uint64_t)rank << 32 | token);
	return s;
}

static uint32_t draw(struct stream *stream, uint32_t below)
{
	return (uint32_t)(((oracle_hash(stream->key, stream->counter++) >> 32) * below) >> 32);
}

static int draw_ppm(struct stream *stream, uint32_t ppm)
{
	return draw(stream, 1000000) < ppm;
}

static int contains(const int32_t *ids, uint32_t count, int32_t id)
{
	for (uint32_t i = 0; i < count; i++) {
		if (ids[i] == id) {
			return 1;
		}
	}
	return 0;
}

/* One more id of [first, first + extent) that is not in ids[0..count). */
static int32_t draw_new(struct stream *stream, const int32_t *ids, uint32_t count, uint32_t first,
			uint32_t extent)
{
	int32_t id = (int32_t)(first + draw(stream, extent));

	for (int tries = 0; contains(ids, count, id); tries++) {
		id = tries < 32 ? (int32_t)(first + draw(stream, extent))
				: (int32_t)(first + ((uint32_t)id - first + 1) % extent);
	}
	return id;
}

/* ---- experts of unequal popularity ---- */

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

/*
 * Numbers between least and most whose density is x to the power of -a: by the inverse of its
 * distribution.
 */
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

/* The busiest rank becomes the first that holds experts. */
static void busiest_first(const struct oracle_problem *problem, struct load *load)
{
	uint32_t local = oracle_local(problem), busiest = 0;
	uint64_t ids[ORACLE_MAX_RANKS] = { 0 };

	for (uint32_t e = 0; e < problem->experts; e++) {
		ids[load[e].expert / local] += load[e].ids;
	}
	for (uint32_t r = 1; r * local < problem->experts; r++) {
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
	return (uint64_t)oracle_senders(problem) * problem->tokens;
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
 * Ids stand in a row, those of the busiest expert first; a token has every tokens-th of them. No
 * expert has more ids than there are tokens, so none comes twice.
 */
static void choose_power(const struct oracle_problem *problem, struct stream *stream, uint32_t rank,
			 uint32_t token, int32_t *ids)
{
	uint64_t at = (uint64_t)(rank - problem->first_sender) * problem->tokens + token;

	for (uint32_t k = 0; k < problem->topk; k++, at += all_tokens(problem)) {
		ids[k] = (int32_t)problem->popular_expert[popular_at(problem, at)];
	}
}

/* ---- zipf and khot ---- */

static int prepare_khot(struct oracle_problem *problem)
{
	permute(problem);
	return 0;
}

static int prepare_zipf(struct oracle_problem *problem)
{
	uint64_t sum = 0;

	permute(problem);
	for (uint32_t i = 0; i < problem->experts; i++) {
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

static void choose_zipf(const struct oracle_problem *problem, struct stream *stream, uint32_t rank,
			uint32_t token, int32_t *ids)
{
	for (uint32_t k = 0; k < problem->topk; k++) {
		ids[k] = draw_zipf(problem, stream, ids, k);
	}
}

/*
 * Each id is one of the hot experts with a probability; of the others if a token has all hot ones,
 * or the reverse.
 */
static void choose_khot(const struct oracle_problem *problem, struct stream *stream, uint32_t rank,
			uint32_t token, int32_t *ids)
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

/* ---- the other choices ---- */

/* As many ids as a token has, of the first experts. */
static void draw_among(const struct oracle_problem *problem, struct stream *stream,
		       uint32_t experts, int32_t *ids)
{
	for (uint32_t k = 0; k < problem->topk; k++) {
		ids[k] = draw_new(stream, ids, k, 0, experts);
	}
}

static void choose_uniform(const struct oracle_problem *problem, struct stream *stream,
			   uint32_t rank, uint32_t token, int32_t *ids)
{
	draw_among(problem, stream, problem->experts, ids);
}

/* A fraction of the tokens chooses experts of one rank, as many as there are. */
static void draw_hot(const struct oracle_problem *problem, struct stream *stream, uint32_t hot_rank,
		     int32_t *ids)
{
	uint32_t local = oracle_local(problem), first = oracle_first_expert(problem, hot_rank);
	int hot = draw_ppm(stream, problem->routing.hot_ppm);

	for (uint32_t k = 0; k < problem->topk; k++) {
		if (hot && k < local) {
			ids[k] = draw_new(stream, ids, k, first, local);
		} else {
			ids[k] = draw_new(stream, ids, k, 0, problem->experts);
		}
	}
}

static void choose_hot(const struct oracle_problem *problem, struct stream *stream, uint32_t rank,
		       uint32_t token, int32_t *ids)
{
	draw_hot(problem, stream, problem->routing.hot_rank, ids);
}

static void choose_rotate(const struct oracle_problem *problem, struct stream *stream,
			  uint32_t rank, uint32_t token, int32_t *ids)
{
	draw_hot(problem, stream, problem->first_holder + problem->step % holders_of(problem), ids);
}

static void choose_burst(const struct oracle_problem *problem, struct stream *stream, uint32_t rank,
			 uint32_t token, int32_t *ids)
{
	if (problem->step % problem->routing.count == problem->routing.count - 1) {
		draw_hot(problem, stream, problem->first_holder, ids);
	} else {
		draw_among(problem, stream, problem->experts, ids);
	}
}

/* Experts of the ranks that are not empty. */
static uint32_t busy_experts(const struct oracle_problem *problem)
{
	return oracle_local(problem) * (holders_of(problem) - problem->routing.count);
}

static void choose_empty(const struct oracle_problem *problem, struct stream *stream, uint32_t rank,
			 uint32_t token, int32_t *ids)
{
	draw_among(problem, stream, busy_experts(problem), ids);
}

static void choose_group(const struct oracle_problem *problem, struct stream *stream, uint32_t rank,
			 uint32_t token, int32_t *ids)
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

/* The line of a token; those of a step follow those of the step before. */
static void choose_line(const struct oracle_problem *problem, struct stream *stream, uint32_t rank,
			uint32_t token, int32_t *ids)
{
	uint64_t line =
		((uint64_t)problem->step * problem->nranks + rank) * problem->max_tokens + token;

	memcpy(ids, problem->routing.lines + line % problem->routing.nlines * ORACLE_MAX_TOPK,
	       problem->topk * sizeof(*ids));
}

static void choose_curve(const struct oracle_problem *problem, struct stream *stream, uint32_t rank,
			 uint32_t token, int32_t *ids)
{
	draw_hot(problem, stream, problem->first_holder, ids);
}

/* From all tokens of the first rank down, in equal steps, to a fraction of them. */
static uint32_t ragged_tokens(const struct oracle_problem *problem, uint32_t rank)
{
	uint64_t less = UINT64_C(1000000) - problem->routing.hot_ppm;
	uint32_t senders = oracle_senders(problem), behind = senders > 1 ? senders - 1 : 1;
	uint64_t number = rank - problem->first_sender;

	return problem->tokens -
	       (uint32_t)(problem->tokens * less * number / behind / UINT64_C(1000000));
}

static uint32_t busy_tokens(const struct oracle_problem *problem, uint32_t rank)
{
	uint32_t number = rank - problem->first_sender;

	return number + problem->routing.count < oracle_senders(problem) ? problem->tokens : 0;
}

/* ---- a workload by its text ---- */

#define BLANK " \t,\r\n"
#define QUOTED 60

/* A decimal number with up to six decimals, in millionths; *end behind it. -1: none there. */
static int64_t parse_millionths(const char *text, const char **end)
{
	int64_t value = 0;
	int64_t unit = 1000000;
	int digits = 0;

	for (; *text >= '0' && *text <= '9' && value < INT64_C(1000000000000); text++, digits++) {
		value = value * 10 + (*text - '0') * 1000000;
	}
	if (*text == '.') {
		for (text++; *text >= '0' && *text <= '9'; text++, digits++) {
			unit /= 10;
			value += (*text - '0') * unit;
		}
	}
	*end = text;
	return digits ? value : -1;
}

/*
 * One line of ids, which it fills up with -1. How many there are, or -1: they are not ids, or too
 * many.
 */
static int parse_line(const char *at, int32_t *ids)
{
	int n = 0;

	for (uint32_t k = 0; k < ORACLE_MAX_TOPK; k++) {
		ids[k] = -1;
	}
	for (at += strspn(at, BLANK); *at; at += strspn(at, BLANK)) {
		char *end;
		long id = strtol(at, &end, 10);

		if (end == at || id < -1 || id > INT32_MAX || n == ORACLE_MAX_TOPK ||
		    (*end && !strchr(BLANK, *end))) {
			return -1;
		}
		ids[n++] = (int32_t)id;
		at = end;
	}
	return n;
}

/*
 * The part of a line that is shown: its beginning, and nothing that a terminal takes for a command.
 */
static void quote(char *line)
{
	line[strcspn(line, "\n")] = '\0';
	if (strlen(line) > QUOTED) {
		strcpy(line + QUOTED - 3, "...");
	}
	for (; *line; line++) {
		*line = *line >= ' ' && *line <= '~' ? *line : '?';
	}
}

/* Room for one line more. */
static int grow(struct oracle_routing *routing, uint32_t *room)
{
	size_t more = *room ? 2 * (size_t)*room : 1024;
	int32_t *lines;
	struct oracle_line *read;

	if (routing->nlines < *room) {
		return 0;
	}
	lines = realloc(routing->lines, more * ORACLE_MAX_TOPK * sizeof(*lines));
	routing->lines = lines ? lines : routing->lines;
	read = realloc(routing->read, more * sizeof(*read));
	routing->read = read ? read : routing->read;
	*room = (uint32_t)more;
	return lines && read && more <= UINT32_MAX ? 0 : -1;
}

static int read_lines(FILE *file, const char *name, struct oracle_routing *routing, char *why,
		      size_t why_bytes)
{
	char line[1024];
	uint32_t room = 0;

	for (uint32_t number = 1; fgets(line, sizeof(line), file); number++) {
		int cut = !strchr(line, '\n') && !feof(file), n = -1;

		if (!cut && (line[strspn(line, BLANK)] == '\0' || line[0] == '#')) {
			continue;
		}
		if (grow(routing, &room)) {
			snprintf(why, why_bytes, "--routing: out of memory for %s", name);
			return -1;
		}
		if (!cut) {
			n = parse_line(line,
				       routing->lines + (size_t)routing->nlines * ORACLE_MAX_TOPK);
		}
		if (n < 0) {
			quote(line);
			snprintf(
				why, why_bytes,
				"%s:%u: got '%s', allowed is a line of at most %d expert ids, -1 or "
				"more",
				name, number, line, ORACLE_MAX_TOPK);
			return -1;
		}
		routing->read[routing->nlines++] = (struct oracle_line){ number, (uint32_t)n };
	}
	if (routing->nlines == 0) {
		snprintf(why, why_bytes, "--routing: %s has no lines of expert ids", name);
		return -1;
	}
	return 0;
}

/*
 * Each gets what follows the name. 0, or -1: it is not what the workload wants, and `why` may have
 * the reason.
 */
static int parse_file(const char *name, struct oracle_routing *routing, char *why, size_t why_bytes)
{
	FILE *file = fopen(name, "r");
	int rc;

	if (!file) {
		snprintf(why, why_bytes, "--routing: %s: %s", name, strerror(errno));
		return -1;
	}
	rc = read_lines(file, name, routing, why, why_bytes);
	fclose(file);
	routing->file = strdup(name);
	if (!rc && !routing->file) {
		snprintf(why, why_bytes, "--routing: out of memory for %s", name);
		rc = -1;
	}
	if (rc) {
		oracle_routing_free(routing);
	}
	return rc;
}

static int parse_zipf(const char *text, struct oracle_routing *routing, char *why, size_t why_bytes)
{
	const char *end;
	int64_t value = parse_millionths(text, &end);

	routing->zipf_exponent = (((uint64_t)value << 32) + 500000) / 1000000;
	return value >= 0 && value <= 4000000 && *end == '\0' ? 0 : -1;
}

static int parse_power(const char *text, struct oracle_routing *routing, char *why,
		       size_t why_bytes)
{
	const char *end;
	int64_t value = parse_millionths(text, &end);

	routing->power_ppm = (uint32_t)value;
	return value >= 1001000 && value <= 4000000 && *end == '\0' ? 0 : -1;
}

static int parse_khot(const char *text, struct oracle_routing *routing, char *why, size_t why_bytes)
{
	const char *end = "";
	int64_t value = -1;
	int used = 0;

	if (sscanf(text, "%9u,%n", &routing->hot_experts, &used) == 1 && used) {
		value = parse_millionths(text + used, &end);
		routing->hot_ppm = (uint32_t)value;
	}
	return value >= 0 && value <= 1000000 && *end == '\0' ? 0 : -1;
}

/* A fraction; *end behind it, NULL: there must be nothing. */
static int parse_fraction(const char *text, struct oracle_routing *routing, const char **end)
{
	const char *behind;
	int64_t value = parse_millionths(text, &behind);

	routing->hot_ppm = (uint32_t)value;
	if (end) {
		*end = behind;
	}
	return value >= 0 && value <= 1000000 && (end || *behind == '\0') ? 0 : -1;
}

/* A number of steps, lines or ranks. */
static int parse_count(const char *text, struct oracle_routing *routing, uint32_t low,
		       uint32_t high)
{
	int used = 0;

	return sscanf(text, "%9u%n", &routing->count, &used) == 1 && text[used] == '\0' &&
			       *text != '-' && routing->count >= low && routing->count <= high
		       ? 0
		       : -1;
}

static int parse_hot(const char *text, struct oracle_routing *routing, char *why, size_t why_bytes)
{
	const char *end;
	int rc = parse_fraction(text, routing, &end);

	if (!rc && *end == ',') {
		int used = 0;

		rc = sscanf(end + 1, "%9u%n", &routing->hot_rank, &used) == 1 ? 0 : -1;
		end += 1 + used;
	}
	return rc || *end ? -1 : 0;
}

static int parse_one_fraction(const char *text, struct oracle_routing *routing, char *why,
			      size_t why_bytes)
{
	return parse_fraction(text, routing, NULL);
}

static int parse_burst(const char *text, struct oracle_routing *routing, char *why,
		       size_t why_bytes)
{
	const char *end;

	return parse_fraction(text, routing, &end) || *end != ','
		       ? -1
		       : parse_count(end + 1, routing, 2, ORACLE_MAX_STEPS);
}

static int parse_empty(const char *text, struct oracle_routing *routing, char *why,
		       size_t why_bytes)
{
	return parse_count(text, routing, 1, ORACLE_MAX_RANKS);
}

static int parse_curve(const char *text, struct oracle_routing *routing, char *why,
		       size_t why_bytes)
{
	routing->hot_ppm = 1000000; /* the most rows of all lines */
	return parse_count(text, routing, 1, 1000);
}

static int parse_group(const char *text, struct oracle_routing *routing, char *why,
		       size_t why_bytes)
{
	int used = 0;

	return sscanf(text, "%9u,%9u%n", &routing->groups, &routing->groups_used, &used) == 2 &&
			       text[used] == '\0'
		       ? 0
		       : -1;
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

/* What does not fit is in `why`. */
static int fits_file(const struct oracle_problem *problem, char *why, size_t bytes)
{
	for (uint32_t i = 0; i < problem->routing.nlines; i++) {
		if (line_fits(problem, i, why, bytes)) {
			return -1;
		}
	}
	return 0;
}

static int fits_hot(const struct oracle_problem *problem, char *why, size_t bytes)
{
	if (oracle_held(problem, problem->routing.hot_rank)) {
		return 0;
	}
	snprintf(why, bytes, "routing hot: got rank %u, allowed is %u to %u",
		 problem->routing.hot_rank, problem->first_holder,
		 problem->first_holder + holders_of(problem) - 1);
	return -1;
}

static int fits_khot(const struct oracle_problem *problem, char *why, size_t bytes)
{
	uint32_t hot = problem->routing.hot_experts;

	if (hot > 0 && hot <= problem->experts) {
		return 0;
	}
	snprintf(why, bytes, "routing khot: got %u hot experts, allowed is 1 to %u", hot,
		 problem->experts);
	return -1;
}

static int fits_empty(const struct oracle_problem *problem, char *why, size_t bytes)
{
	uint32_t empty = problem->routing.count;

	if (empty < holders_of(problem) && empty < oracle_senders(problem) &&
	    problem->topk <= busy_experts(problem)) {
		return 0;
	}
	snprintf(why, bytes,
		 "routing empty: got %u of %u ranks, allowed is as many as leave ranks with the "
		 "experts of a token, %u",
		 empty, problem->nranks, problem->topk);
	return -1;
}

static int fits_group(const struct oracle_problem *problem, char *why, size_t bytes)
{
	const struct oracle_routing *r = &problem->routing;

	if (r->groups && problem->experts % r->groups == 0 && r->groups_used &&
	    r->groups_used <= r->groups && r->groups_used <= ORACLE_MAX_TOPK &&
	    problem->experts / r->groups * r->groups_used >= problem->topk) {
		return 0;
	}
	snprintf(why, bytes,
		 "routing group: got %u,%u; allowed is G,g with G dividing %u experts, and g "
		 "groups, at most G and %d, that hold top-k %u",
		 r->groups, r->groups_used, problem->experts, ORACLE_MAX_TOPK, problem->topk);
	return -1;
}

/* ---- all workloads ---- */

struct workload {
	const char *name, *form, *range; /* with what follows the name; what that may be */
	int (*parse)(const char *text, struct oracle_routing *routing, char *why, size_t why_bytes);
	/* NULL: it fits always */
	int (*fits)(const struct oracle_problem *problem, char *why, size_t bytes);
	/* makes popular_sum and popular_expert; NULL: it has none */
	int (*prepare)(struct oracle_problem *problem);
	/* the ids of a token */
	void (*choose)(const struct oracle_problem *problem, struct stream *stream, uint32_t rank,
		       uint32_t token, int32_t *ids);
	/* the tokens of a rank; NULL: all have as many */
	uint32_t (*tokens)(const struct oracle_problem *problem, uint32_t rank);
};

static const struct workload workloads[] = {
	[ORACLE_UNIFORM] = { "uniform", "", "", NULL, NULL, NULL, choose_uniform, NULL },
	[ORACLE_ZIPF] = { "zipf", ":s", "s from 0 to 4", parse_zipf, NULL, prepare_zipf,
			  choose_zipf, NULL },
	[ORACLE_POWER] = { "power", ":a", "a from 1.001 to 4", parse_power, NULL, prepare_power,
			   choose_power, NULL },
	[ORACLE_KHOT] = { "khot", ":n,f", "n experts and f from 0 to 1", parse_khot, fits_khot,
			  prepare_khot, choose_khot, NULL },
	[ORACLE_HOT] = { "hot", ":f[,rank]", "f from 0 to 1", parse_hot, fits_hot, NULL, choose_hot,
			 NULL },
	[ORACLE_RAGGED] = { "ragged", ":f", "f from 0 to 1", parse_one_fraction, NULL, NULL,
			    choose_uniform, ragged_tokens },
	[ORACLE_EMPTY] = { "empty", ":n", "n ranks", parse_empty, fits_empty, NULL, choose_empty,
			   busy_tokens },
	[ORACLE_ROTATE] = { "rotate", ":f", "f from 0 to 1", parse_one_fraction, NULL, NULL,
			    choose_rotate, NULL },
	[ORACLE_BURST] = { "burst", ":f,n", "f from 0 to 1 and n from 2 to 64", parse_burst, NULL,
			   NULL, choose_burst, NULL },
	[ORACLE_CURVE] = { "curve", ":n", "n from 1 to 1000", parse_curve, NULL, NULL, choose_curve,
			   NULL },
	[ORACLE_GROUP] = { "group", ":G,g", "two numbers", parse_group, fits_group, NULL,
			   choose_group, NULL },
	[ORACLE_FILE] = { "file", ":NAME", "a file", parse_file, fits_file, NULL, choose_line,
			  NULL },
};

#define WORKLOADS (sizeof(workloads) / sizeof(workloads[0]))

static void list_workloads(char *why, size_t bytes)
{
	for (size_t i = 0; i < WORKLOADS; i++) {
		size_t n = strlen(why);

		snprintf(why + n, bytes - n, "%s%s%s", i ? ", " : "", workloads[i].name,
			 workloads[i].form);
	}
}

int oracle_routing_parse(const char *text, struct oracle_routing *routing, char *why,
			 size_t why_bytes)
{
	size_t length = strcspn(text, ":");

	memset(routing, 0, sizeof(*routing));
	snprintf(routing->text, sizeof(routing->text), "%s", text);
	for (size_t i = 0; i < WORKLOADS; i++) {
		const struct workload *w = workloads + i;

		if (strlen(w->name) != length || strncmp(text, w->name, length) ||
		    !text[length] != !w->form[0]) {
			continue;
		}
		routing->family = (enum oracle_family)i;
		why[0] = '\0';
		if (!w->parse || w->parse(text + length + 1, routing, why, why_bytes) == 0) {
			return 0;
		}
		if (!why[0]) {
			snprintf(why, why_bytes, "--routing: got '%s', allowed is %s%s with %s",
				 text, w->name, w->form, w->range);
		}
		return -1;
	}
	snprintf(why, why_bytes, "--routing: got '%s', allowed is one of ", text);
	list_workloads(why, why_bytes);
	return -1;
}

void oracle_routing_free(struct oracle_routing *routing)
{
	free(routing->lines);
	free(routing->read);
	free(routing->file);
	routing->lines = NULL;
	routing->read = NULL;
	routing->file = NULL;
	routing->nlines = 0;
}

/* ---- which experts a token chooses ---- */

uint32_t oracle_steps(const struct oracle_problem *problem)
{
	enum oracle_family family = problem->routing.family;
	uint32_t steps = family == ORACLE_ROTATE  ? holders_of(problem)
			 : family == ORACLE_BURST ? problem->routing.count
						  : 1;

	return steps < ORACLE_MAX_STEPS ? steps : ORACLE_MAX_STEPS;
}

/* The stream of a token's ids in the problem's step. */
static struct stream step_open(const struct oracle_problem *problem, uint32_t purpose,
			       uint32_t rank, uint32_t token)
{
	struct stream s = stream_open(problem, purpose, rank, token);

	s.key = problem->step ? oracle_hash(s.key, problem->step) : s.key;
	return s;
}

void oracle_route(const struct oracle_problem *problem, uint32_t rank, uint32_t token, int32_t *ids)
{
	struct stream s = step_open(problem, KEY_ROUTE, rank, token);

	workloads[problem->routing.family].choose(problem, &s, rank, token, ids);
	s = step_open(problem, KEY_DROP, rank, token);
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
	uint32_t (*tokens)(const struct oracle_problem *problem, uint32_t rank) =
		workloads[problem->routing.family].tokens;
	uint32_t most = tokens ? tokens(problem, rank) : problem->tokens;
	struct stream s = { .key = oracle_hash(KEY_TOKENS, problem->nranks) };
	uint32_t shift = draw(&s, problem->nranks), number = rank - problem->first_sender;
	uint32_t turn = (number + shift) % oracle_senders(problem);

	if (oracle_absent(problem, rank) || number >= oracle_senders(problem)) {
		return 0;
	}
	if (!problem->uneven || turn == 0) {
		return most;
	}
	if (turn == 1) {
		return 0;
	}
	s.counter += turn;
	return draw(&s, most + 1);
}

void oracle_traffic(const struct oracle_problem *problem, uint32_t rank,
		    struct oracle_traffic *traffic)
{
	uint32_t local = oracle_local(problem);

	memset(traffic, 0, sizeof(*traffic));
	traffic->tokens = oracle_tokens(problem, rank);
	for (uint32_t src = 0; src < problem->nranks; src++) {
		for (uint32_t t = 0, n = oracle_tokens(problem, src); t < n; t++) {
			int32_t ids[ORACLE_MAX_TOPK];

			oracle_route(problem, src, t, ids);
			for (uint32_t k = 0; k < problem->topk; k++) {
				uint32_t to = oracle_holder(problem, (uint32_t)ids[k]);
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

/* Elements of a token come in units of what dispatch or combine makes of them. */
static int units_fit(const struct oracle_problem *problem, char *why, size_t bytes)
{
	static const struct {
		const char *name;
		uint32_t unit;
	} dispatch[] = { { "none", 1 }, { "fp8", 128 },   { "fp8", 128 },
			 { "fwd", 1 },  { "mxfp8", 128 }, { "nvfp4", 64 } },
	  combine[] = { { "none", 1 }, { "nvfp4", 32 }, { "fp8", 128 }, { "mxfp8", 512 } };
	static const char *const types[] = { "bf16", "fp16", "fp32" };

	for (int i = 0; i < 2; i++) {
		uint32_t unit = i ? combine[problem->combine_quant].unit
				  : dispatch[problem->quant].unit;

		if (unit == 1 || (problem->dtype == ORACLE_BF16 && problem->hidden % unit == 0 &&
				  problem->hidden <= ORACLE_MAX_FP8_HIDDEN)) {
			continue;
		}
		snprintf(
			why, bytes,
			"%s%s: got %s tokens of %u elements, allowed is bf16 and a multiple of %u, "
			"up to %d",
			i ? "combine " : "",
			i ? combine[problem->combine_quant].name : dispatch[problem->quant].name,
			types[problem->dtype], problem->hidden, unit, ORACLE_MAX_FP8_HIDDEN);
		return -1;
	}
	return 0;
}

/* Do so many ranks from the first on not lie among all? */
static int beyond(uint32_t first, uint32_t count, uint32_t nranks)
{
	return first >= nranks || count > nranks - first;
}

static int problem_fits(const struct oracle_problem *problem, char *why, size_t bytes)
{
	if (problem->nranks == 0 || problem->nranks > ORACLE_MAX_RANKS) {
		snprintf(why, bytes, "got %u ranks, allowed is 1 to %d", problem->nranks,
			 ORACLE_MAX_RANKS);
	} else if (beyond(problem->first_holder, holders_of(problem), problem->nranks) ||
		   beyond(problem->first_sender, oracle_senders(problem), problem->nranks)) {
		snprintf(why, bytes,
			 "got holders %u:%u and senders %u:%u, allowed is a part of %u ranks",
			 problem->first_holder, holders_of(problem), problem->first_sender,
			 oracle_senders(problem), problem->nranks);
	} else if (problem->experts == 0 || problem->experts % holders_of(problem)) {
		snprintf(why, bytes,
			 "got %u experts, allowed is a multiple of the number of ranks%s, %u",
			 problem->experts, problem->holders ? " that hold some" : "",
			 holders_of(problem));
	} else if (problem->topk == 0 || problem->topk > ORACLE_MAX_TOPK ||
		   problem->topk > problem->experts) {
		snprintf(why, bytes, "got top-k %u, allowed is 1 to %u, with %u experts",
			 problem->topk,
			 problem->experts < ORACLE_MAX_TOPK ? problem->experts : ORACLE_MAX_TOPK,
			 problem->experts);
	} else if (problem->tokens > problem->max_tokens) {
		snprintf(why, bytes, "got %u tokens, allowed is the capacity, %u, at most",
			 problem->tokens, problem->max_tokens);
	} else if (!units_fit(problem, why, bytes)) {
		const struct workload *w = workloads + problem->routing.family;

		return w->fits ? w->fits(problem, why, bytes) : 0;
	}
	return -1;
}

/* Tables of popularity, where the workload has them. */
static int popularity_prepare(struct oracle_problem *problem)
{
	int (*prepare)(struct oracle_problem * problem) =
		workloads[problem->routing.family].prepare;

	if (!prepare) {
		return 0;
	}
	problem->popular_sum = calloc(problem->experts, sizeof(*problem->popular_sum));
	problem->popular_expert = calloc(problem->experts, sizeof(*problem->popular_expert));
	return problem->popular_sum && problem->popular_expert ? prepare(problem) : -1;
}

int oracle_problem_prepare(struct oracle_problem *problem, char *why, size_t why_bytes)
{
	problem->popular_sum = NULL;
	problem->popular_expert = NULL;
	if (problem_fits(problem, why, why_bytes)) {
		return -1;
	}
	if (popularity_prepare(problem)) {
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
