/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert ids of random bits, of both widths. An id that names no expert counts as none whatever its
 * bits are; one of E and above is reported with its place and value, and nothing else is reported.
 *
 *     routing FIRST COUNT [ht]      cases FIRST .. FIRST+COUNT-1; of high throughput
 */
#include <inttypes.h>

#include "support/bench.h"
#include "support/ht_bench.h"

#define PAIRS 3

enum bits {
	BITS_NEGATIVE, /* experts and negative numbers */
	BITS_MIXED,    /* experts and any kind of mistake */
	BITS_NOISE,    /* 32 or 64 random bits */
	BITS_KINDS
};

struct pair {
	enum bits bits;
	uint32_t tokens;
	int64_t *ids;   /* [ranks * max_tokens][topk], what the library gets */
	int32_t *lines; /* [ranks * max_tokens][ORACLE_MAX_TOPK], what they mean */
};

struct test_case {
	struct oracle_problem p;
	struct pair pair[PAIRS];
	uint32_t flags;
	uint64_t number;
};

#define DRAW(below) world_draw(&s, below)

static bool names_expert(const struct oracle_problem *p, int64_t id)
{
	return id >= 0 && id < (int64_t)p->experts;
}

/* Values whose low bits, sign or size could be taken for an expert's by mistake. */
static int64_t draw_mistake(const struct oracle_problem *p, bool wide, bool negative,
			    uint64_t *state)
{
	uint64_t s = *state;
	int64_t id = (int64_t)DRAW(p->experts), bits = (int64_t)DRAW(0);

	switch (DRAW(wide ? 6 : 4)) {
	case 0:
		id = negative ? -1 - id : (int64_t)p->experts + id;
		break;
	case 1:
		id = negative ? INT32_MIN + id : INT32_MAX - id;
		break;
	case 2:
		id = negative ? -1 : (int64_t)p->experts;
		break;
	case 3:
		id = negative ? -1 - (bits & INT32_MAX) : bits & INT32_MAX;
		break;
	case 4: /* an expert's in the low half */
		id = (int64_t)((uint64_t)bits << 32) + id;
		id = negative ? id | INT64_MIN : id & INT64_MAX;
		break;
	default:
		id = negative ? INT64_MIN + id : INT64_MAX - id;
		break;
	}
	*state = s;
	return id;
}

static int64_t draw_id(const struct test_case *c, enum bits bits, uint64_t *state)
{
	bool wide = c->flags & BENCH_IDS64;
	uint64_t s = *state;
	int64_t id = (int64_t)DRAW(c->p.experts);
	uint64_t noise = DRAW(0);

	if (bits == BITS_NOISE && DRAW(3)) {
		id = wide ? (int64_t)noise : (int32_t)noise;
	} else if (bits != BITS_NOISE && DRAW(3) == 0) {
		id = draw_mistake(&c->p, wide, bits == BITS_NEGATIVE || DRAW(2), &s);
	}
	*state = s;
	return id;
}

/* Times that an id stands in a row already. */
static uint32_t seen(const int64_t *row, uint32_t n, int64_t id)
{
	uint32_t times = 0;

	for (uint32_t i = 0; i < n; i++) {
		times += row[i] == id;
	}
	return times;
}

/* An expert stands at most twice in a row, which the capacity (2 T) has room for. */
static void draw_pair(struct test_case *c, struct pair *r, uint64_t *state)
{
	const struct oracle_problem *p = &c->p;
	size_t n = (size_t)p->nranks * p->max_tokens;
	uint64_t s = *state;

	r->bits = (enum bits)DRAW(BITS_KINDS);
	r->tokens = DRAW(6) ? (uint32_t)DRAW(p->max_tokens / 2 + 1) : 0;
	r->ids = calloc(n * p->topk, sizeof(*r->ids));
	r->lines = malloc(n * ORACLE_MAX_TOPK * sizeof(*r->lines));
	NEED(r->ids && r->lines);
	memset(r->lines, 0xff, n * ORACLE_MAX_TOPK * sizeof(*r->lines));
	for (size_t i = 0; i < n; i++) {
		int64_t *row = r->ids + i * p->topk;

		for (uint32_t k = 0; k < p->topk; k++) {
			row[k] = draw_id(c, r->bits, &s);
			if (names_expert(p, row[k]) && seen(row, k, row[k]) >= 2) {
				row[k] = -1;
			}
			if (names_expert(p, row[k])) {
				r->lines[i * ORACLE_MAX_TOPK + k] = (int32_t)row[k];
			}
		}
	}
	*state = s;
}

static void choose(struct test_case *c, uint64_t number)
{
	struct oracle_problem *p = &c->p;
	uint64_t s = number * 6007 + 3;
	uint32_t nranks = (uint32_t)world_size((int)(1 + DRAW(4)));

	memset(c, 0, sizeof(*c));
	c->number = number;
	*p = bench_problem((int)nranks, 0, 0, 0, 0,
			   DRAW(2) ? ORACLE_EXPERT_MAJOR : ORACLE_RANK_MAJOR);
	p->topk = (uint32_t)(DRAW(3) ? 1 + DRAW(8) : 1 + DRAW(32));
	p->experts = ((p->topk + nranks - 1) / nranks + (uint32_t)DRAW(6)) * nranks;
	p->hidden = 8 * (uint32_t)(1 + DRAW(24));
	p->max_tokens = 2 * (uint32_t)(1 + DRAW(12));
	p->uneven = DRAW(2) == 0;
	p->global_ids = p->layout == ORACLE_RANK_MAJOR && DRAW(2);
	p->seed = 1 + DRAW(1 << 20);
	c->flags |= DRAW(2) ? BENCH_IDS64 : 0;
	c->flags |= DRAW(3) ? 0 : BENCH_PENDING;
	c->flags |= DRAW(3) ? 0 : BENCH_MASK;
	c->flags |= DRAW(2) ? BENCH_NULL_EMPTY : 0;
	for (int i = 0; i < PAIRS; i++) {
		draw_pair(c, c->pair + i, &s);
	}
	p->routing.family = ORACLE_FILE;
	p->routing.nlines = p->nranks * p->max_tokens;
	p->routing.lines = c->pair[0].lines;
}

/* n ids to `data`, as 8 bytes or 4. */
static void put_ids(void *data, bool wide, const int64_t *ids, size_t n)
{
	int32_t *narrow = calloc(n + 1, sizeof(*narrow));

	NEED(narrow);
	for (size_t i = 0; i < n; i++) {
		narrow[i] = (int32_t)ids[i];
	}
	if (n > 0) {
		NEED_CUDA(cudaMemcpy(data, wide ? (const void *)ids : narrow, n * (wide ? 8 : 4),
				     cudaMemcpyHostToDevice));
	}
	free(narrow);
}

/* The text names one of the mistakes of this pair. */
static void check_named(const struct oracle_problem *p, uint32_t tokens, const int64_t *ids,
			const char *text)
{
	const char *at = strstr(text, "topk_idx[");
	uint32_t token, k;
	int64_t id;

	if (!at || sscanf(at, "topk_idx[%u][%u] is %" SCNd64, &token, &k, &id) != 3) {
		check_fail(__FILE__, __LINE__, "\"%s\" names no entry of topk_idx", text);
		return;
	}
	CHECK(token < tokens && k < p->topk && ids[token * p->topk + k] == id &&
		      id >= (int64_t)p->experts,
	      "%s", text);
}

/* What the group says after the pair, and what it said `before`. */
static void check_logged(ncclEpGroup_t group, const char *before, const struct oracle_problem *p,
			 uint32_t tokens, const int64_t *ids)
{
	ncclEpExtPeerStats_t stats[WORLD_MAX];
	ncclResult_t code;
	const char *text;
	bool high = false;

	for (uint32_t r = 0; r < p->nranks; r++) {
		stats[r] = (ncclEpExtPeerStats_t)NCCL_EP_EXT_PEER_STATS_INIT;
	}
	for (size_t i = 0; i < (size_t)tokens * p->topk; i++) {
		high |= ids[i] >= (int64_t)p->experts;
	}
	NEED_OK(ncclEpExtGetLastError(group, &code, &text));
	if (high) {
		CHECK(strcmp(text, before) != 0); /* has the number of the operation */
		CHECK_INT(code, ncclInvalidArgument);
		check_named(p, tokens, ids, text);
	} else {
		CHECK_TEXT(text, before); /* no mistake, no error */
	}
	/*
	 * a call that uses the device makes room for the next report, on a stream of the library's
	 * own
	 */
	NEED_OK(ncclEpExtPeerStats(group, stats, (int)p->nranks, 0));
	NEED_CUDA(cudaDeviceSynchronize());
}

static void one_pair(struct bench *b, const struct pair *r)
{
	const int64_t *ids = r->ids + (size_t)b->w->rank * b->p.max_tokens * b->p.topk;
	char before[1024];
	const char *text;

	world_meet(b->w); /* the others have finished with the oracle's routing */
	b->p.routing.lines = r->lines;
	bench_load_tokens(b, b->p.seed + 1, r->tokens);
	put_ids(b->ids.t.data, b->flags & BENCH_IDS64, ids, (size_t)b->tokens * b->p.topk);
	NEED_OK(ncclEpExtGetLastError(b->group, NULL, &text));
	snprintf(before, sizeof(before), "%s", text);
	bench_pair(b);
	check_logged(b->group, before, &b->p, b->tokens, ids);
}

/* The same of high throughput, forward or backward. */
static void one_ht_pair(struct ht_bench *b, const struct pair *r, bool backward)
{
	const int64_t *ids = r->ids + (size_t)b->w->rank * b->h.p.max_tokens * b->h.p.topk;
	cudaStream_t stream = b->w->stream;
	char before[1024];
	const char *text;

	world_meet(b->w);
	b->h.p.routing.lines = r->lines;
	ht_load(b, b->h.p.seed + 1, r->tokens);
	put_ids(b->ids.data, b->flags & HT_IDS64, ids, (size_t)b->tokens * b->h.p.topk);
	ht_poison(b);
	NEED_OK(ncclEpExtGetLastError(b->group, NULL, &text));
	snprintf(before, sizeof(before), "%s", text);
	NEED_OK(ht_update(b, stream));
	NEED_SYNC(ht_dispatch(b, backward, stream), stream);
	check_logged(b->group, before, &b->h.p, b->tokens, ids);
	ht_check_counters(b);
	ht_check_dispatch(b, backward);
	ht_expert_work(b);
	NEED_SYNC(ht_combine(b, backward, stream), stream);
	ht_check_combine(b, backward);
}

static void run_ht_case(struct world *w, void *arg)
{
	const struct test_case *c = arg;
	uint32_t width = c->p.experts / c->p.nranks;
	struct oracle_ht h = { .p = c->p, .expert_major = c->p.layout == ORACLE_EXPERT_MAJOR };
	uint32_t flags = c->flags & BENCH_IDS64 ? HT_IDS64 : 0;
	ncclEpGroupConfig_t config;
	ncclEpGroup_t group;
	struct ht_bench b;

	check_context("case %llu: %s, %u ranks, %u experts, top-%u, %s ids, rank %d",
		      (unsigned long long)c->number, h.expert_major ? "em" : "flat", c->p.nranks,
		      c->p.experts, c->p.topk, flags ? "64-bit" : "32-bit", w->rank);
	width = c->p.topk < width ? c->p.topk : width;
	h.limit = c->number & 1 ? c->p.nranks * c->p.max_tokens * width : 0;
	config = ht_group_config(&h, flags);
	config.max_num_sms = 2;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	ht_open(&b, w, group, &h, flags);
	for (int i = 0; i < PAIRS; i++) {
		one_ht_pair(&b, c->pair + i, (c->number + (uint64_t)i) % 3 == 0);
	}
	ht_end(&b);
}

static void run_case(struct world *w, void *arg)
{
	const struct test_case *c = arg;
	ncclEpGroup_t group;
	struct bench b;
	char text[300];

	bench_describe(&c->p, c->flags, text, sizeof(text));
	check_context("case %llu: %s", (unsigned long long)c->number, text);
	group = bench_group(w, &c->p, c->flags);
	bench_open(&b, w, group, &c->p, c->flags);
	for (int i = 0; i < PAIRS; i++) {
		one_pair(&b, c->pair + i);
	}
	bench_end(&b);
}

int main(int argc, char **argv)
{
	uint64_t first = world_number(argc > 1 ? argv[1] : NULL, 1);
	uint64_t count = world_number(argc > 2 ? argv[2] : NULL, 40);
	double begin = world_now();
	struct test_case c;

	for (uint64_t i = first; i < first + count; i++) {
		choose(&c, i);
		world_run((int)c.p.nranks, argc > 3 ? run_ht_case : run_case, &c);
		for (int r = 0; r < PAIRS; r++) {
			free(c.pair[r].ids);
			free(c.pair[r].lines);
		}
	}
	printf("routing: cases %llu to %llu, %.1f s\n", (unsigned long long)first,
	       (unsigned long long)(first + count - 1), world_now() - begin);
	return check_end();
}
