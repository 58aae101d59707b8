/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same bits whatever the batch: a token's sum is that of the token alone, whoever else is
 * there, wherever it stands, and however the operations run.
 *
 *     alike ll|ht FIRST COUNT [nodes]      cases FIRST .. FIRST+COUNT-1; nodes: ranks are of
 *                                          several nodes
 *
 * A case has a shape, a format and a few members: tokens with ids, weights and experts' answers of
 * their own. Each member's sum is made alone first. Companies follow, in which members stand
 * anywhere among other tokens, some of them twice. From company to company all changes that may:
 *
 *   both   other tokens, their number and order, the member's rank, SMs, GPUs of ranks, graphs,
 *          handles
 *   ll     blocks, rows as lines or bytes, split operations, masks, nodes; expert-major: the number
 *          of ranks
 *   ht     rows as lines or by rings, ring, chunks, padding, windows, eager and fixed mode, passes;
 *          the member's node stays. Of one node every other company has lines
 */
#include <math.h>
#include <stdatomic.h>
#include "support/bench.h"
#include "support/ht_bench.h"

#define MEMBERS 4u
#define STEPS MEMBERS /* of a company, one handle in all of them */
#define COMPANIES 6
#define EXPERTS 24u
#define NOBODY UINT32_MAX /* a token without experts */

/* What the promise holds fixed. */
struct alike {
	uint64_t seed;
	bool is_ht, nodes;
	struct oracle_ht h; /* ll: h.p alone */
	char node_size[64];
	uint32_t node[WORLD_MAX];
	int large;              /* binary order of large numbers in answers */
	uint32_t home[MEMBERS]; /* ht: the node whose ranks have the member */
	int32_t ids[MEMBERS][ORACLE_MAX_TOPK];
	uint8_t *sums[MEMBERS]; /* of the member alone; NULL: not yet */
};

/* Who is where in a step: [rank][max_tokens] members, other numbers, or NOBODY. */
struct step {
	uint64_t seed;
	uint32_t tokens;
	uint32_t *who;
	int32_t *lines; /* of ids */
};

struct company {
	struct alike *a;
	struct oracle_ht h;
	struct step steps[STEPS];
	uint32_t flags;
	unsigned int sms;
	bool graph, backward, dispatches;
};

static atomic_uint compared;

#define DRAW(below) ((uint32_t)world_draw(s, below))

/* ---- tokens ---- */

static void draw_ids(uint64_t *s, uint32_t topk, int32_t *ids)
{
	uint64_t taken = 0;

	for (uint32_t k = 0; k < ORACLE_MAX_TOPK; k++) {
		uint32_t e = DRAW(EXPERTS);

		while (k < topk && taken >> e & 1) {
			e = (e + 1) % EXPERTS;
		}
		taken |= UINT64_C(1) << e;
		ids[k] = k < topk && DRAW(9) ? (int32_t)e : -1;
	}
}

/*
 * What `key`, an expert or a rank, makes of a token. Sums of it show their order: in each 128
 * columns of a row all numbers are small, or all are large, and large ones of several rows cancel
 * each other.
 */
static void answer(const struct alike *a, uint32_t who, uint32_t key, uint8_t *row)
{
	const struct oracle_problem *p = &a->h.p;
	uint64_t token = oracle_hash(a->seed, who), own = oracle_hash(token, key);

	if (who >= MEMBERS) { /* any bits */
		for (size_t at = 0; at < oracle_combine_bytes(p); at += 8) {
			uint64_t word = oracle_hash(own, at / 512) * (at + 1);

			memcpy(row + at, &word, 8);
		}
		return;
	}
	for (uint32_t c = 0; c < p->hidden; c++) {
		uint64_t block = oracle_hash(own, UINT64_C(1) << 32 | c / 128);
		bool large = block & 1;
		uint64_t x = oracle_hash(large ? token : own, c);
		float f = ldexpf((float)(0x800000 | (x & 0x7fffff)), (large ? a->large : 0) - 23);
		bool minus = large ? block >> 1 & 1 : x >> 32 & 1;

		f = !large && x >> 40 % 32 == 0 ? 0 : f;
		oracle_store(p->dtype, row, c, minus ? -f : f);
	}
}

/* Halves, mostly: large numbers cancel each other then. */
static float weight(const struct alike *a, uint32_t who, uint32_t k)
{
	uint64_t x = oracle_hash(oracle_hash(a->seed + 1, who), k);

	return x % 8 ? 0.5f : (float)(x >> 40) * 0x1p-24f;
}

static bool is_expert_major(const struct alike *a)
{
	return a->is_ht ? a->h.expert_major : a->h.p.layout == ORACLE_EXPERT_MAJOR;
}

/* A rank's sums: of members alone they are kept, and else compared. */
static void judge(const struct company *c, uint32_t step, uint32_t rank, uint32_t tokens,
		  const uint8_t *rows)
{
	const struct oracle_problem *p = &c->h.p;
	size_t bytes = oracle_combine_bytes(p), size = bytes / p->hidden;

	for (uint32_t t = 0; t < tokens; t++, rows += bytes) {
		uint32_t who = c->steps[step].who[rank * p->max_tokens + t], column = 0;
		uint8_t **sum;

		if (who >= MEMBERS) {
			continue;
		}
		sum = c->a->sums + who;
		if (!*sum) {
			*sum = malloc(bytes);
			NEED(*sum);
			memcpy(*sum, rows, bytes);
			continue;
		}
		while (column < p->hidden &&
		       !memcmp(rows + column * size, *sum + column * size, size)) {
			column++;
		}
		CHECK(column == p->hidden,
		      "step %u: member %u, rank %u, token %u of %u: column %u is %a, and alone %a",
		      step, who, rank, t, tokens, column,
		      (double)oracle_load(p->dtype, rows, column),
		      (double)oracle_load(p->dtype, *sum, column));
		atomic_fetch_add(&compared, 1);
	}
}

/* ---- low latency ---- */

struct ll_answers {
	const struct company *c;
	const uint32_t *who;
	uint8_t *rows;
	float *scales;
};

static void ll_answer(struct bench *b, uint32_t block, uint32_t row, uint32_t src, uint32_t token,
		      const int32_t *ids, void *context)
{
	const struct ll_answers *all = context;
	const struct alike *a = all->c->a;
	size_t at = (size_t)block * b->rows + row;
	uint8_t *to = all->rows + at * oracle_combine_bytes(&b->p);
	uint32_t rank = (uint32_t)b->w->rank;

	answer(a, all->who[src * b->p.max_tokens + token],
	       is_expert_major(a) ? rank * b->blocks + block : rank, to);
	if (b->p.combine_quant == ORACLE_COMBINE_NVFP4) {
		all->scales[at] = oracle_answer_scale(&a->h.p, to);
	}
}

static void ll_load(struct bench *b, const struct company *c, uint32_t step)
{
	const struct step *now = c->steps + step;
	struct ll_answers all = { c, now->who, calloc(1, b->combine_in.bytes),
				  calloc(1, b->combine_scales.bytes) };
	uint32_t topk = b->p.topk;
	float *weights;

	b->p.routing.lines = now->lines;
	bench_load_tokens(b, now->seed, now->tokens);
	bench_poison(b);
	weights = calloc(b->tokens * topk + 1, sizeof(*weights));
	NEED(all.rows && all.scales && weights);
	for (uint32_t i = 0; i < b->tokens * topk; i++) {
		weights[i] = weight(c->a,
				    now->who[(uint32_t)b->w->rank * b->p.max_tokens + i / topk],
				    i % topk);
	}
	bench_places(b, ll_answer, &all);
	tensor_upload(&b->combine_in, all.rows, b->combine_in.bytes);
	tensor_upload(&b->combine_scales, all.scales, b->combine_scales.bytes);
	tensor_upload(&b->weights, weights, b->tokens * topk * sizeof(*weights));
	free(weights);
	free(all.scales);
	free(all.rows);
}

static void ll_operate(struct bench *b)
{
	NEED_OK(bench_update(b, b->w->stream));
	NEED_OK(bench_dispatch(b, b->w->stream));
	NEED_OK(bench_combine(b, b->w->stream));
}

static void ll_run(struct world *w, void *arg)
{
	const struct company *c = arg;
	ncclEpGroupConfig_t config = bench_group_config(&c->h.p, c->flags);
	cudaGraphExec_t graph = NULL;
	ncclEpGroup_t group;
	struct bench b;

	config.max_num_sms = c->sms;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &c->h.p, c->flags);
	for (uint32_t i = 0; i < STEPS; i++) {
		uint8_t *sums;

		ll_load(&b, c, i);
		if (c->graph && i == 0) {
			world_capture(w->stream);
			ll_operate(&b);
			graph = world_captured(w->stream);
		}
		if (graph) {
			NEED_CUDA(cudaGraphLaunch(graph, w->stream));
		} else {
			ll_operate(&b);
		}
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		sums = tensor_fetch(&b.combine_out);
		judge(c, i, (uint32_t)w->rank, b.tokens, sums);
		free(sums);
	}
	if (graph) {
		NEED_CUDA(cudaGraphExecDestroy(graph));
	}
	CHECK_LAST(group, ncclSuccess, "");
	bench_end(&b);
}

/* ---- high throughput ---- */

static void ht_load_step(struct ht_bench *b, const struct company *c, uint32_t step)
{
	const struct step *now = c->steps + step;
	const struct oracle_ht_table *table;
	size_t bytes = oracle_combine_bytes(&b->h.p);
	uint32_t rank = (uint32_t)b->w->rank;
	uint8_t *rows;

	b->h.p.routing.lines = now->lines;
	ht_load(b, now->seed, now->tokens);
	ht_poison(b);
	if (c->backward) {
		ht_expert_work(b); /* gradients; rows follow */
	}
	table = b->tables[rank];
	rows = tensor_fetch(&b->combine_in);
	for (uint64_t i = 0; i < table->count; i++) {
		const struct oracle_ht_row *row = table->rows + i;

		if (row->kind == ORACLE_HT_ROW) {
			answer(c->a, now->who[row->src * b->h.p.max_tokens + row->token],
			       b->h.expert_major ? rank * table->nlocal + (uint32_t)row->expert
						 : rank,
			       rows + i * bytes);
		}
	}
	tensor_upload(&b->combine_in, rows, b->rows * bytes);
	free(rows);
}

static void ht_operate(struct ht_bench *b, const struct company *c)
{
	NEED_OK(ht_update(b, b->w->stream));
	if (c->dispatches) {
		NEED_OK(ht_dispatch(b, c->backward, b->w->stream));
	}
	NEED_OK(ht_combine(b, c->backward, b->w->stream));
}

static void ht_run(struct world *w, void *arg)
{
	const struct company *c = arg;
	ncclEpGroupConfig_t config = ht_group_config(&c->h, c->flags);
	cudaGraphExec_t graph = NULL;
	ncclEpGroup_t group;
	struct ht_bench b;

	config.max_num_sms = c->sms;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	ht_open(&b, w, group, &c->h, c->flags);
	for (uint32_t i = 0; i < STEPS; i++) {
		uint8_t *sums;

		ht_load_step(&b, c, i);
		world_meet(w); /* peers read windows */
		if (c->graph && i == 0) {
			world_capture(w->stream);
			ht_operate(&b, c);
			graph = world_captured(w->stream);
		}
		if (graph) {
			NEED_CUDA(cudaGraphLaunch(graph, w->stream));
		} else {
			ht_operate(&b, c);
		}
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		sums = tensor_fetch(&b.combine_out);
		judge(c, i, (uint32_t)w->rank, b.tokens, sums);
		free(sums);
		world_meet(w);
	}
	if (graph) {
		NEED_CUDA(cudaGraphExecDestroy(graph));
	}
	CHECK_LAST(group, ncclSuccess, "");
	ht_end(&b);
}

/* ---- draws ---- */

static void draw_ll(struct alike *a, uint64_t *s)
{
	static const struct {
		enum oracle_quant quant;
		enum oracle_combine_quant back;
		uint32_t unit;
	} formats[] = {
		{ ORACLE_QUANT_NONE, ORACLE_COMBINE_NONE, 8 },
		{ ORACLE_QUANT_FP8, ORACLE_COMBINE_FP8, 128 },
		{ ORACLE_QUANT_NVFP4, ORACLE_COMBINE_NVFP4, 64 },
		{ ORACLE_QUANT_NONE, ORACLE_COMBINE_NONE, 8 },
		{ ORACLE_QUANT_MXFP8, ORACLE_COMBINE_NONE, 128 },
		{ ORACLE_QUANT_NONE, ORACLE_COMBINE_NVFP4, 32 },
	};
	struct oracle_problem *p = &a->h.p;
	uint32_t format = (uint32_t)(a->seed / 2 % 6);

	p->layout = a->seed % 2 ? ORACLE_EXPERT_MAJOR : ORACLE_RANK_MAJOR;
	p->quant = formats[format].quant;
	p->combine_quant = formats[format].back;
	p->dtype = formats[format].unit == 8 ? (enum oracle_dtype)DRAW(3) : ORACLE_BF16;
	p->hidden = formats[format].unit * (1 + DRAW(1800 / formats[format].unit));
}

static void draw_ht(struct alike *a, uint64_t *s)
{
	struct oracle_problem *p = &a->h.p;
	uint32_t kind = (uint32_t)(a->seed % (a->nodes ? 2 : 3));

	a->h.expert_major = kind > 0;
	p->dtype = (enum oracle_dtype)DRAW(3);
	p->hidden = DRAW(2) ? 8 * (1 + DRAW(100)) : 8 * (200 + DRAW(400));
	if (DRAW(4) == 0) { /* more contributions to a row than a warp's stage holds */
		p->nranks = 1 + a->nodes;
		p->topk = EXPERTS - DRAW(5);
		p->hidden = 1792;
		a->h.expert_major = true;
		kind = kind ? kind : 1;
	}
	if (kind == 2) {
		p->combine_quant = ORACLE_COMBINE_MXFP8;
		p->dtype = ORACLE_BF16;
		p->hidden = 512 * (1 + DRAW(6));
	}
	if (a->nodes) {
		world_draw_nodes(s, p->nranks, a->node_size, sizeof(a->node_size));
	}
}

static void draw_case(struct alike *a, bool is_ht, bool nodes, uint64_t seed)
{
	static const uint32_t ranks[] = { 2, 3, 4, 6, 8 };
	uint64_t state = seed * 6151 + 3, *s = &state;
	struct oracle_problem *p = &a->h.p;

	*a = (struct alike){ .seed = seed, .is_ht = is_ht, .nodes = nodes };
	p->seed = seed;
	p->nranks = ranks[DRAW(5)];
	p->experts = EXPERTS;
	p->topk = DRAW(3) ? 2 + DRAW(7) : 1 + DRAW(EXPERTS);
	p->routing.family = ORACLE_FILE;
	if (is_ht) {
		draw_ht(a, s);
	} else {
		draw_ll(a, s);
	}
	a->large = p->dtype == ORACLE_FP16                    ? 10
		   : p->combine_quant == ORACLE_COMBINE_NVFP4 ? 12
							      : 26;
	setenv("NCCL_EP_NODE_SIZE", a->node_size, 1);
	world_nodes_of(a->node, p->nranks);
	for (uint32_t m = 0; m < MEMBERS; m++) {
		draw_ids(s, p->topk, a->ids[m]);
		a->home[m] = a->node[DRAW(p->nranks)];
	}
}

/* May the member stand there? */
static bool fits(const struct alike *a, uint32_t member, uint32_t rank)
{
	return !a->is_ht || a->node[rank] == a->home[member];
}

/*
 * `alone`: the member of that number; its rank has one token, and no other rank has one with
 * experts.
 */
static void draw_step(struct company *c, uint32_t number, bool alone, uint64_t *s)
{
	struct oracle_problem *p = &c->h.p;
	struct step *now = c->steps + number;
	uint32_t slots = p->nranks * p->max_tokens, only = DRAW(p->nranks);

	now->seed = world_draw(s, UINT64_C(1) << 32);
	now->tokens = c->graph || alone ? p->tokens : 1 + DRAW(p->max_tokens);
	now->who = malloc(slots * sizeof(*now->who));
	now->lines = malloc((size_t)slots * ORACLE_MAX_TOPK * sizeof(*now->lines));
	NEED(now->who && now->lines);
	while (!fits(c->a, number, only)) {
		only = (only + 1) % p->nranks;
	}
	for (uint32_t i = 0; i < slots; i++) {
		uint32_t who = DRAW(4) ? MEMBERS + DRAW(1000000) : DRAW(MEMBERS);
		int32_t *ids = now->lines + (size_t)i * ORACLE_MAX_TOPK;

		draw_ids(s, p->topk, ids);
		who = who < MEMBERS && !fits(c->a, who, i / p->max_tokens) ? MEMBERS : who;
		who = DRAW(9) ? who : NOBODY;
		if (alone) {
			who = i == only * p->max_tokens ? number : NOBODY;
		}
		if (who == NOBODY) {
			memset(ids, 0xff, ORACLE_MAX_TOPK * sizeof(*ids));
		} else if (who < MEMBERS) {
			memcpy(ids, c->a->ids[who], ORACLE_MAX_TOPK * sizeof(*ids));
		}
		now->who[i] = who;
	}
}

static void set_number(const char *name, uint32_t value)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", value);
	setenv(name, text, 1);
}

static void draw_ll_company(struct company *c, uint64_t *s)
{
	static const uint32_t ranks[] = { 1, 2, 3, 4, 6, 8 };
	static const uint32_t threads[] = { 32, 64, 128, 512 };
	struct oracle_problem *p = &c->h.p;
	char nodes[64] = "";

	if (is_expert_major(c->a)) {
		p->nranks = ranks[DRAW(6)];
	}
	if (c->a->nodes && p->nranks > 1) {
		world_draw_nodes(s, p->nranks, nodes, sizeof(nodes));
	}
	setenv("NCCL_EP_NODE_SIZE", nodes, 1);
	set_number("NCCL_EP_LL_LINES", DRAW(2));
	set_number("NCCL_EP_LL_THREADS", threads[DRAW(4)]);
	c->flags = (DRAW(2) ? BENCH_IDS64 : 0) | (DRAW(3) ? 0 : BENCH_PENDING) |
		   (DRAW(4) ? 0 : BENCH_MASK) | (DRAW(2) ? BENCH_OWN_MEM : 0) |
		   (DRAW(2) ? BENCH_SOURCES : 0);
	set_number("NCCL_EP_LL_DIRECT_BYTES", DRAW(2) << 20);
}

static void draw_ht_company(struct company *c, bool lines, uint64_t *s)
{
	struct oracle_ht *h = &c->h;
	uint32_t local = EXPERTS / h->p.nranks;
	uint32_t others = h->p.topk < h->p.nranks - 1 ? h->p.topk : h->p.nranks - 1;

	if (lines && !h->expert_major && others && h->p.max_tokens > 90 / others) {
		h->p.max_tokens = 90 / others; /* of which 16 SMs return as lines */
		h->p.tokens = h->p.max_tokens - DRAW(2);
	}
	h->alignment = h->expert_major ? (8u >> DRAW(5)) * 2 : 0;
	c->flags = (DRAW(2) ? HT_IDS64 : 0) | (DRAW(3) ? 0 : HT_WINDOW) |
		   (DRAW(2) ? HT_OWN_MEM : 0);
	c->backward = DRAW(3) == 0;
	c->dispatches = DRAW(3) == 0;
	if (lines) { /* neither windows nor gradients go so */
		c->flags &= ~(uint32_t)HT_WINDOW;
		c->backward = false;
	}
	if (c->graph || DRAW(2)) {
		h->limit = h->p.max_tokens * h->p.nranks;
		if (h->expert_major) {
			h->limit = h->limit * (h->p.topk < local ? h->p.topk : local) +
				   local * (h->alignment + 1);
		}
	} else if (!lines) {
		c->flags |= DRAW(4) * HT_FOR_MORE; /* chunks */
	}
	set_number("NCCL_EP_LL_LINES", lines);
	if (DRAW(2) && !lines) {
		setenv("NCCL_EP_HT_RING_BYTES", "0", 1);
	} else {
		unsetenv("NCCL_EP_HT_RING_BYTES");
	}
}

static void draw_company(struct company *c, struct alike *a, int number)
{
	uint64_t state = a->seed * 389 + (uint64_t)number * 7, *s = &state;
	struct oracle_problem *p = &c->h.p;
	bool alone = number == 0;

	*c = (struct company){ .a = a, .h = a->h };
	c->sms = DRAW(3) ? 2 + DRAW(4) : 0;
	c->graph = DRAW(3) == 0;
	p->max_tokens = alone ? 1 : 2 + DRAW(DRAW(3) ? 10 : p->hidden < 1000 ? 40 : 20);
	p->tokens = p->max_tokens - (alone ? 0 : DRAW(2));
	p->uneven = !alone && !c->graph && DRAW(2);
	if (a->is_ht) {
		draw_ht_company(c, (a->seed + (uint64_t)number) % 2, s);
	} else {
		draw_ll_company(c, s);
	}
	set_number("WORLD_TURN", DRAW(8));
	set_number("NCCL_EP_RDMA_MODE", 1 + DRAW(4));
	set_number("NCCL_EP_RDMA_QUEUES", 1 + DRAW(3));
	for (uint32_t i = 0; i < STEPS; i++) {
		draw_step(c, i, alone, s);
	}
	p->routing.nlines = p->nranks * p->max_tokens;
	p->routing.lines = c->steps[0].lines;
}

static void run_case(struct alike *a)
{
	const struct oracle_problem *p = &a->h.p;

	for (int i = 0; i < COMPANIES; i++) {
		struct company c;

		draw_company(&c, a, i);
		check_context(
			"seed %llu, company %d of %u ranks, nodes %s: %s, %s, top-%u, hidden %u, type %d, "
			"quant %d, back %d, %u tokens%s, %u SMs, flags 0x%x, limit %u%s%s, lines %s, threads %s",
			(unsigned long long)a->seed, i, c.h.p.nranks, getenv("NCCL_EP_NODE_SIZE"),
			a->is_ht ? "ht" : "ll", is_expert_major(a) ? "expert-major" : "by ranks",
			p->topk, p->hidden, (int)p->dtype, (int)p->quant, (int)p->combine_quant,
			c.h.p.max_tokens, c.h.p.uneven ? " uneven" : "", c.sms, c.flags, c.h.limit,
			c.graph ? ", graph" : "", c.backward ? ", backward" : "",
			getenv("NCCL_EP_LL_LINES"), a->is_ht ? "" : getenv("NCCL_EP_LL_THREADS"));
		world_run((int)c.h.p.nranks, a->is_ht ? ht_run : ll_run, &c);
		for (uint32_t n = 0; n < STEPS; n++) {
			free(c.steps[n].lines);
			free(c.steps[n].who);
		}
	}
	for (uint32_t m = 0; m < MEMBERS; m++) {
		CHECK(a->sums[m]);
		free(a->sums[m]);
	}
}

int main(int argc, char **argv)
{
	bool is_ht = argc > 1 && !strcmp(argv[1], "ht");
	uint64_t first = world_number(argc > 2 ? argv[2] : NULL, 1);
	uint64_t count = world_number(argc > 3 ? argv[3] : NULL, 10);

	for (uint64_t i = first; i < first + count; i++) {
		static struct alike a;

		draw_case(&a, is_ht, argc > 4, i);
		run_case(&a);
	}
	printf("alike %s, seeds %llu to %llu: %u sums compared\n", is_ht ? "ht" : "ll",
	       (unsigned long long)first, (unsigned long long)(first + count - 1), compared);
	CHECK(compared > 20 * count);
	return check_end();
}
