/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine against the oracle, over random shapes, types, routings and settings.
 *
 *     matrix KIND FIRST COUNT [nodes [MODE]]      cases FIRST .. FIRST+COUNT-1 of a kind:
 *         em, rm        any, of that layout
 *         fp8, forward  quantised in dispatch, or by the caller
 *         formats       quantised in dispatch, in combine, or in both
 *         wide          top-k of 9 and more
 *         roles_KIND    the same, and some ranks alone hold experts or bring tokens; roles: of any
 *                       kind
 *
 * nodes: the ranks are of several nodes, and RDMA between them, posted in mode MODE or in any.
 * A case prints its number when it fails; `matrix KIND number 1` runs it alone. There are as many
 * ranks as GPUs, at most; under a launcher as many as it has.
 */
#include "support/bench.h"
#include "support/roles.h"

struct test_case {
	struct oracle_problem p;
	uint32_t flags;
	uint32_t pairs;
	uint32_t sms;      /* 0: each rank chooses differently */
	const char *lines; /* "0" or "1" */
	const char *threads;
	char nodes[64]; /* NCCL_EP_NODE_SIZE; "": not set */
	uint32_t mode, queues, depth;
	uint64_t number;
	uint64_t seed;
};

#define DRAW(below) ((uint32_t)world_draw(&s, below))

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t holders_of(const struct oracle_problem *p)
{
	return p->experts / oracle_local(p);
}

static void choose_routing(struct oracle_problem *p, uint64_t *state)
{
	uint64_t s = *state;

	switch (DRAW(5)) {
	case 0:
		p->routing.family = ORACLE_ZIPF;
		p->routing.zipf_exponent = (uint64_t)(64 + DRAW(448)) << 24;
		break;
	case 1:
		p->routing.family = ORACLE_HOT;
		p->routing.hot_ppm = DRAW(2) ? 1000000 : 500000; /* all to one, or half */
		p->routing.hot_rank = p->first_holder + DRAW(p->nranks) % holders_of(p);
		break;
	default:
		break;
	}
	switch (DRAW(4)) {
	case 0:
		p->drop_ppm = DRAW(2) ? 200000 : 900000;
		break;
	case 1:
		p->duplicate_ppm = 300000;
		break;
	default:
		break;
	}
	p->uneven = DRAW(2) == 0;
	*state = s;
}

/*
 * Elements of a row: any multiple of 16 bytes, small ones and the edges of lines and quads often.
 */
static uint32_t choose_hidden(enum oracle_dtype dtype, uint64_t *state)
{
	static const uint32_t bytes[] = { 16,  32,  112, 128, 240,  256,  464,  480,
					  496, 512, 960, 976, 1024, 1920, 2048, 5760 };
	uint32_t size = dtype == ORACLE_FP32 ? 4 : 2;
	uint64_t s = *state;
	uint32_t n = DRAW(3) ? bytes[DRAW(sizeof(bytes) / sizeof(bytes[0]))] : 16 + 16 * DRAW(300);

	*state = s;
	return n / size;
}

static void choose_quant(struct test_case *c, const char *kind, uint64_t *state)
{
	struct oracle_problem *p = &c->p;
	uint64_t s = *state;

	if (!strcmp(kind, "fp8")) {
		p->dtype = ORACLE_BF16;
		p->quant = DRAW(2) ? ORACLE_QUANT_FP8 : ORACLE_QUANT_FP8_COLUMNS;
		p->hidden = 128 * (1 + DRAW(DRAW(4) ? 8 : 34));
		p->pow2_scales = DRAW(2) == 0;
	} else if (!strcmp(kind, "forward")) {
		p->quant = ORACLE_QUANT_FORWARD;
		p->hidden = 16 * (1 + DRAW(64));
		c->flags |= DRAW(6) << BENCH_TYPE_SHIFT;
	} else if (!strcmp(kind, "formats")) {
		static const struct {
			enum oracle_quant quant;
			enum oracle_combine_quant back;
			uint32_t unit, tile;
		} formats[] = {
			{ ORACLE_QUANT_MXFP8, ORACLE_COMBINE_NONE, 128, 896 },
			{ ORACLE_QUANT_MXFP8, ORACLE_COMBINE_FP8, 128, 896 },
			{ ORACLE_QUANT_NVFP4, ORACLE_COMBINE_NVFP4, 64, 832 },
			{ ORACLE_QUANT_NVFP4, ORACLE_COMBINE_NONE, 64, 832 },
			{ ORACLE_QUANT_NONE, ORACLE_COMBINE_NVFP4, 32, 832 },
			{ ORACLE_QUANT_FP8, ORACLE_COMBINE_FP8, 128, 896 },
			{ ORACLE_QUANT_NONE, ORACLE_COMBINE_FP8, 128, 896 },
			{ ORACLE_QUANT_MXFP8, ORACLE_COMBINE_NVFP4, 128, 832 },
		};
		uint32_t i = c->number % (sizeof(formats) / sizeof(formats[0]));
		uint32_t unit = formats[i].unit, units = 7168 / unit;

		p->dtype = ORACLE_BF16;
		p->quant = formats[i].quant;
		p->combine_quant = formats[i].back;
		p->pow2_scales = p->quant == ORACLE_QUANT_FP8 && DRAW(2);
		switch (DRAW(4)) { /* one tile or two, often; tiles, and a little more or less */
		case 0:
			p->hidden = unit * (1 + DRAW(units));
			break;
		case 1:
			p->hidden = formats[i].tile * (1 + DRAW(8)) / unit * unit;
			p->hidden += DRAW(2) ? unit * DRAW(3) : 0;
			break;
		default:
			p->hidden = unit * (1 + DRAW(2048 / unit));
		}
	}
	*state = s;
}

static void choose_flags(struct test_case *c, uint64_t *state)
{
	struct oracle_problem *p = &c->p;
	uint64_t s = *state;

	c->flags |= DRAW(2) ? BENCH_IDS64 : 0;
	c->flags |= DRAW(3) ? 0 : BENCH_PENDING;
	c->flags |= DRAW(4) ? 0 : BENCH_MASK;
	c->flags |= DRAW(3) ? 0 : BENCH_OWN_MEM;
	c->flags |= DRAW(3) ? 0 : BENCH_WINDOW;
	c->flags |= c->number % 2 ? BENCH_DATA : 0;
	c->flags |= c->number % 5 ? 0 : BENCH_NO_SCALES;
	c->flags |= c->number % 3 ? BENCH_SOURCES : 0;
	c->flags |= DRAW(2) ? BENCH_NULL_EMPTY : 0;
	if (p->layout == ORACLE_RANK_MAJOR) {
		c->flags |= DRAW(3) ? 0 : BENCH_NO_COUNTS;
		p->global_ids = DRAW(2) == 0;
	}
	if (!(c->flags & BENCH_OWN_MEM)) {
		c->flags |= DRAW(2) ? BENCH_CREATE : 0;
	}
	if (!p->combine_quant &&
	    (p->quant == ORACLE_QUANT_NONE || p->quant == ORACLE_QUANT_FP8_COLUMNS)) {
		c->flags |= DRAW(3) || p->global_ids ? 0 : BENCH_V1;
	}
	if (p->quant == ORACLE_QUANT_NONE && !p->combine_quant) {
		c->flags |= (DRAW(3) ? 0 : DRAW(6)) << BENCH_TYPE_SHIFT;
	}
	*state = s;
}

/*
 * An expert has room for S * max_dispatch_tokens_per_rank rows, of S senders. Ids that appear twice
 * in a row can exceed that; the capacity is then what the most popular expert needs.
 */
static void make_room(struct test_case *c)
{
	struct oracle_problem *p = &c->p;
	uint32_t *rows = calloc(p->experts, sizeof(*rows));
	int32_t ids[ORACLE_MAX_TOPK];
	char why[128];

	for (uint32_t i = 0; p->duplicate_ppm && i < c->pairs; i++) {
		p->seed = c->seed + i;
		NEED(rows && !oracle_problem_prepare(p, why, sizeof(why)));
		memset(rows, 0, p->experts * sizeof(*rows));
		for (uint32_t src = 0; src < p->nranks; src++) {
			for (uint32_t t = 0, n = oracle_tokens(p, src); t < n; t++) {
				oracle_route(p, src, t, ids);
				for (uint32_t k = 0; k < p->topk; k++) {
					rows[ids[k] < 0 ? 0 : ids[k]] += ids[k] >= 0;
				}
			}
		}
		for (uint32_t e = 0; e < p->experts; e++) {
			uint32_t senders = oracle_senders(p),
				 need = (rows[e] + senders - 1) / senders;

			p->max_tokens = need > p->max_tokens ? need : p->max_tokens;
		}
		oracle_problem_free(p);
	}
	p->seed = c->seed;
	free(rows);
}

/* Nodes of any size, as long as there are two; few and shallow queues as well as the defaults. */
static void choose_nodes(struct test_case *c, const char *mode, uint64_t *state)
{
	uint64_t s = *state;

	if (!strcmp(mode, "")) {
		c->mode = 1 + DRAW(4);
	} else {
		c->mode = (uint32_t)world_number(mode, 0);
	}
	c->queues = DRAW(4) ? 1 + DRAW(4) : 0;
	c->depth = 64u << DRAW(4);
	*state = s;
	if (world_nodes() > 1 || c->p.nranks < 2) {
		return; /* the launcher's */
	}
	world_draw_nodes(&s, c->p.nranks, c->nodes, sizeof(c->nodes));
}

static void set_number(const char *name, uint32_t value)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", value);
	setenv(name, text, 1);
}

static void choose(struct test_case *c, const char *kind, uint64_t number, const char *mode)
{
	static const char *const threads[] = { "32", "64", "96", "128", "256" };
	struct oracle_problem *p = &c->p;
	uint64_t s = number * 7919 + (uint64_t)kind[0];
	static const char *const kinds[] = { "em", "rm", "formats", "fp8", "forward", "wide" };
	uint32_t local, budget, most, holders;
	bool roles = !strncmp(kind, "roles", 5);
	int gpus = 8;

	memset(c, 0, sizeof(*c));
	c->number = number;
	NEED_CUDA(cudaGetDeviceCount(&gpus));
	p->nranks = (uint32_t)world_size((int)(1 + DRAW((uint32_t)gpus)));
	if (roles) {
		kind = kind[5] == '_' ? kind + 6 : kinds[number % (sizeof(kinds) / sizeof(*kinds))];
		roles_draw(p, number);
	}
	holders = roles ? p->holders : p->nranks;
	local = DRAW(3) ? 1 + DRAW(6) : 1 + DRAW(24);
	p->experts = local * holders;
	p->topk = 1 + DRAW(least(p->experts, 8));
	p->layout = DRAW(2) ? ORACLE_EXPERT_MAJOR : ORACLE_RANK_MAJOR;
	if (!strcmp(kind, "em") || !strcmp(kind, "rm")) {
		p->layout = kind[0] == 'e' ? ORACLE_EXPERT_MAJOR : ORACLE_RANK_MAJOR;
	} else if (!strcmp(kind, "wide") || (!strcmp(kind, "formats") && DRAW(3) == 0)) {
		p->experts = holders * (32 / holders + 1 + DRAW(8));
		p->topk = 9 + DRAW(24);
	}
	p->dtype = (enum oracle_dtype)DRAW(3);
	p->hidden = choose_hidden(p->dtype, &s);
	choose_quant(c, kind, &s);
	choose_routing(p, &s);
	budget = 400000 / (uint32_t)oracle_combine_bytes(p);
	most = least(300, 1 + least(1500, budget) / (p->nranks * least(p->topk, 8)));
	p->tokens = DRAW(12) ? 1 + DRAW(most) : most;
	p->max_tokens = p->tokens + (DRAW(2) ? DRAW(9) : 0);
	c->sms = DRAW(3) ? 2 + DRAW(3) : 0;
	c->lines = DRAW(2) ? "1" : "0";
	c->threads = threads[DRAW(sizeof(threads) / sizeof(threads[0]))];
	if (!strcmp(kind, "formats") && DRAW(3) == 0) { /* the scratch of all warps is in use */
		c->threads = "512";
	}
	c->pairs = 1 + DRAW(3);
	choose_flags(c, &s);
	c->seed = world_draw(&s, UINT64_C(1) << 32);
	make_room(c);
	if (mode) {
		choose_nodes(c, mode, &s);
	}
}

static void run_case(struct world *w, void *arg)
{
	const struct test_case *c = arg;
	ncclEpGroupConfig_t config = bench_group_config(&c->p, c->flags);
	ncclEpGroup_t group;
	struct bench b;
	char text[300];

	bench_describe(&c->p, c->flags, text, sizeof(text));
	check_context("case %llu: %s, lines %s, threads %s, sms %u, nodes %s, mode %u, queues %u, "
		      "depth %u",
		      (unsigned long long)c->number, text, c->lines, c->threads, c->sms, c->nodes,
		      c->mode, c->queues, c->depth);
	config.max_num_sms = c->sms ? c->sms : (unsigned int)(2 + (w->rank * 5 + 1) % 4);
	if (!c->sms && c->number % 2) {
		config.dispatch_num_sms = (unsigned int)(2 + (w->rank + 2) % 4);
		config.combine_num_sms = (unsigned int)(2 + (w->rank * 3) % 4);
	}
	group = roles_group(w->comm, &c->p, &config);
	bench_open(&b, w, group, &c->p, c->flags);
	for (uint32_t i = 0; i < c->pairs; i++) {
		/* another routing, and now and then nobody has a token */
		if (i > 0) {
			bench_load_tokens(&b, c->seed + i, i == 2 ? 0 : c->p.tokens);
		}
		bench_pair(&b);
	}
	CHECK_LAST(group, ncclSuccess, "");
	bench_end(&b);
}

int main(int argc, char **argv)
{
	struct test_case c;
	const char *mode = NULL;
	uint64_t first, count;
	double begin = world_now();

	if (argc < 4 || argc > 6) {
		fprintf(stderr,
			"usage: matrix [roles_]em|rm|fp8|forward|formats|wide|roles FIRST COUNT [nodes [MODE]]\n");
		return 2;
	}
	if (argc > 4) {
		mode = argc > 5 ? argv[5] : "";
	}
	first = world_number(argv[2], 0);
	count = world_number(argv[3], 1);
	printf("matrix %s, cases %llu to %llu\n", argv[1], (unsigned long long)first,
	       (unsigned long long)(first + count - 1));
	for (uint64_t i = first; i < first + count; i++) {
		int before = check_failures();

		choose(&c, argv[1], i, mode);
		setenv("NCCL_EP_LL_LINES", c.lines, 1);
		setenv("NCCL_EP_LL_THREADS", c.threads, 1);
		if (mode) {
			setenv("NCCL_EP_NODE_SIZE", c.nodes, 1);
			set_number("NCCL_EP_RDMA_MODE", c.mode);
			set_number("NCCL_EP_RDMA_QUEUES", c.queues);
			set_number("NCCL_EP_RDMA_DEPTH", c.depth);
		}
		world_run((int)c.p.nranks, run_case, &c);
		if (check_failures() != before || getenv("MATRIX_VERBOSE")) {
			printf("case %llu: %s after %.1f s\n", (unsigned long long)i,
			       check_failures() == before ? "good" : "failed", world_now() - begin);
			fflush(stdout);
		}
	}
	return check_end();
}
