/* SPDX-License-Identifier: Apache-2.0 */
/* Which experts a token chooses: random numbers, families of loads, and traces. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

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
 * Ids stand in a row, those of the busiest expert first; a token has every tokens-th of them. No expert has
 * more ids than there are tokens, so none comes twice.
 */
static void place_power(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
			int32_t *ids)
{
	uint64_t at = (uint64_t)(rank - problem->first_sender) * problem->tokens + token;

	for (uint32_t k = 0; k < problem->topk; k++, at += all_tokens(problem)) {
		ids[k] = (int32_t)problem->popular_expert[popular_at(problem, at)];
	}
}

/* ---- zipf and khot ---- */

static int popularity_prepare(struct oracle_problem *problem)
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

static void draw_popular(const struct oracle_problem *problem, struct stream *stream, int32_t *ids)
{
	for (uint32_t k = 0; k < problem->topk; k++) {
		ids[k] = draw_zipf(problem, stream, ids, k);
	}
}

/* Each id is one of the hot experts with a probability; of the others if a token has all hot ones, or the reverse. */
static void draw_khot(const struct oracle_problem *problem, struct stream *stream, int32_t *ids)
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

/* ---- a routing by its text ---- */

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

/* One line of ids, which it fills up with -1. How many there are, or -1: they are not ids, or too many. */
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

/* The part of a line that is shown: its beginning, and nothing that a terminal takes for a command. */
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

static int load_file(const char *name, struct oracle_routing *routing, char *why, size_t why_bytes)
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

/* Each gets what follows the family's name. 0, or -1: it is not what the family wants. */
static int parse_zipf(const char *text, struct oracle_routing *routing)
{
	const char *end;
	int64_t value = parse_millionths(text, &end);

	routing->zipf_exponent = (((uint64_t)value << 32) + 500000) / 1000000;
	return value >= 0 && value <= 4000000 && *end == '\0' ? 0 : -1;
}

static int parse_power(const char *text, struct oracle_routing *routing)
{
	const char *end;
	int64_t value = parse_millionths(text, &end);

	routing->power_ppm = (uint32_t)value;
	return value >= 1001000 && value <= 4000000 && *end == '\0' ? 0 : -1;
}

static int parse_khot(const char *text, struct oracle_routing *routing)
{
	const char *end = "";
	int64_t value = -1;
	int used = 0;

	if (sscanf(text, "%u,%n", &routing->hot_experts, &used) == 1 && used) {
		value = parse_millionths(text + used, &end);
		routing->hot_ppm = (uint32_t)value;
	}
	return value >= 0 && value <= 1000000 && *end == '\0' ? 0 : -1;
}

static int parse_hot(const char *text, struct oracle_routing *routing)
{
	const char *end;
	int64_t value = parse_millionths(text, &end);

	routing->hot_ppm = (uint32_t)value;
	if (*end == ',') {
		char *rest;

		routing->hot_rank = (uint32_t)strtoul(end + 1, &rest, 10);
		end = rest;
	}
	return value >= 0 && value <= 1000000 && *end == '\0' ? 0 : -1;
}

static int parse_group(const char *text, struct oracle_routing *routing)
{
	int used = 0;

	return sscanf(text, "%u,%u%n", &routing->groups, &routing->groups_used, &used) == 2 &&
			       text[used] == '\0'
		       ? 0
		       : -1;
}

int oracle_routing_parse(const char *text, struct oracle_routing *routing, char *why,
			 size_t why_bytes)
{
	static const struct {
		const char *prefix;
		enum oracle_family family;
		int (*parse)(const char *text, struct oracle_routing *routing);
		const char *allowed;
	} families[] = {
		{ "zipf:", ORACLE_ZIPF, parse_zipf, "zipf:s with s from 0 to 4" },
		{ "power:", ORACLE_POWER, parse_power, "power:a with a from 1.001 to 4" },
		{ "khot:", ORACLE_KHOT, parse_khot, "khot:n,f with n experts and f from 0 to 1" },
		{ "hot:", ORACLE_HOT, parse_hot, "hot:f[,rank] with f from 0 to 1" },
		{ "group:", ORACLE_GROUP, parse_group, "group:G,g with two numbers" },
	};

	memset(routing, 0, sizeof(*routing));
	snprintf(routing->text, sizeof(routing->text), "%s", text);
	if (!strcmp(text, "uniform")) {
		routing->family = ORACLE_UNIFORM;
		return 0;
	}
	if (!strncmp(text, "file:", 5)) {
		routing->family = ORACLE_FILE;
		return load_file(text + 5, routing, why, why_bytes);
	}
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		size_t length = strlen(families[i].prefix);

		if (strncmp(text, families[i].prefix, length)) {
			continue;
		}
		routing->family = families[i].family;
		if (families[i].parse(text + length, routing) == 0) {
			return 0;
		}
		snprintf(why, why_bytes, "--routing: got '%s', allowed is %s", text,
			 families[i].allowed);
		return -1;
	}
	snprintf(
		why, why_bytes,
		"--routing: got '%s', allowed is one of uniform, zipf:s, power:a, khot:n,f, hot:f[,rank], "
		"group:G,g, file:NAME",
		text);
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
	uint32_t local = oracle_local(problem);
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
		draw_popular(problem, &s, ids);
		break;
	case ORACLE_KHOT:
		draw_khot(problem, &s, ids);
		break;
	case ORACLE_POWER:
		place_power(problem, rank, token, ids);
		break;
	default:
		hot = problem->routing.family == ORACLE_HOT &&
		      draw_ppm(&s, problem->routing.hot_ppm);
		for (uint32_t k = 0; k < problem->topk; k++) {
			if (hot && k < local) {
				ids[k] = draw_new(&s, ids, k,
						  oracle_first_expert(problem,
								      problem->routing.hot_rank),
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

/* Not a matter of the seed: other data of the same shape may follow in a captured graph. */
uint32_t oracle_tokens(const struct oracle_problem *problem, uint32_t rank)
{
	struct stream s = { .key = oracle_hash(KEY_TOKENS, problem->nranks) };
	uint32_t shift = draw(&s, problem->nranks), number = rank - problem->first_sender;
	uint32_t turn = (number + shift) % oracle_senders(problem);

	if (oracle_absent(problem, rank) || number >= oracle_senders(problem)) {
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

	if (r->family == ORACLE_HOT && !oracle_held(problem, r->hot_rank)) {
		snprintf(why, bytes, "routing hot: got rank %u, allowed is %u to %u", r->hot_rank,
			 problem->first_holder, problem->first_holder + holders_of(problem) - 1);
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
