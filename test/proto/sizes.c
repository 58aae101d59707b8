/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes at the edges of what the kernels do in one go (windows of 256 tokens or 2048 ids, quads of
 * rows, units of FP8 rows), the largest models' rows, and the most tokens, in both wire forms.
 *
 *     sizes PART [once]      once: each size in one of the two forms, in turn
 */
#include "support/bench.h"
#include "support/ht_bench.h"

struct size_case {
	uint32_t nranks, local, topk, hidden, tokens;
	enum oracle_layout layout;
	enum oracle_dtype dtype;
	enum oracle_quant quant;
	enum oracle_combine_quant back;
	uint32_t sms;
	const char *threads;
};

#define EM ORACLE_EXPERT_MAJOR
#define RM ORACLE_RANK_MAJOR
#define PLAIN ORACLE_BF16, ORACLE_QUANT_NONE, ORACLE_COMBINE_NONE
#define FP8 ORACLE_BF16, ORACLE_QUANT_FP8, ORACLE_COMBINE_NONE
#define BACK8 ORACLE_BF16, ORACLE_QUANT_NONE, ORACLE_COMBINE_FP8
#define BACK4 ORACLE_BF16, ORACLE_QUANT_NONE, ORACLE_COMBINE_NVFP4

static const struct size_case windows[] = {
	{ 2, 2, 2, 8, 255, EM, PLAIN, 2, "64" },    { 2, 2, 2, 8, 256, RM, PLAIN, 2, "64" },
	{ 2, 2, 2, 8, 257, EM, PLAIN, 3, "96" },    { 3, 2, 1, 8, 511, RM, PLAIN, 2, "64" },
	{ 3, 2, 1, 8, 513, EM, PLAIN, 5, "128" },   { 2, 8, 8, 8, 256, EM, PLAIN, 4, "128" },
	{ 2, 8, 9, 16, 228, RM, PLAIN, 4, "128" },  { 2, 16, 32, 8, 63, EM, PLAIN, 2, "64" },
	{ 2, 16, 32, 8, 64, RM, PLAIN, 2, "64" },   { 2, 16, 32, 8, 65, EM, PLAIN, 2, "64" },
	{ 1, 4, 4, 8, 300, EM, PLAIN, 2, "64" },    { 8, 1, 3, 8, 129, RM, PLAIN, 2, "64" },
	{ 2, 600, 4, 8, 40, EM, PLAIN, 2, "64" },   { 1, 1, 1, 8, 1, EM, PLAIN, 2, "32" },
	{ 2, 300, 32, 8, 70, EM, PLAIN, 2, "512" },
};

/*
 * Of two cases' tokens more rows are their rank's own than warps share them. The last one is of a
 * lone rank: its heap has no room for what returns, and would end long before.
 */
static const struct size_case rows[] = {
	{ 3, 2, 3, 8, 9, EM, PLAIN, 0, "64" },      { 3, 2, 3, 24, 9, RM, PLAIN, 0, "64" },
	{ 3, 2, 3, 120, 9, EM, PLAIN, 0, "64" },    { 3, 2, 3, 248, 9, RM, PLAIN, 0, "64" },
	{ 3, 2, 3, 512, 9, EM, PLAIN, 0, "64" },    { 2, 2, 2, 2880, 5, EM, PLAIN, 0, "128" },
	{ 2, 2, 2, 7168, 3, RM, PLAIN, 0, "128" },  { 2, 2, 2, 7168, 1, EM, PLAIN, 0, "256" },
	{ 4, 2, 4, 7168, 3, EM, FP8, 0, "128" },    { 2, 2, 2, 1792, 5, EM, FP8, 0, "64" },
	{ 2, 2, 2, 1920, 5, RM, FP8, 0, "64" },     { 2, 2, 2, 128, 5, EM, FP8, 0, "64" },
	{ 2, 2, 2, 12288, 2, RM, PLAIN, 0, "128" }, { 5, 2, 3, 7168, 2, RM, FP8, 0, "512" },
	{ 1, 24, 20, 896, 1, EM, BACK8, 0, "512" }, { 2, 16, 32, 832, 1, EM, BACK4, 0, "512" },
	{ 1, 4, 4, 7168, 64, EM, PLAIN, 0, "128" },
};

/* More ranks than a warp has lanes. */
static const struct size_case ranks[] = {
	{ 33, 1, 3, 8, 5, EM, PLAIN, 2, "64" },   { 40, 1, 4, 248, 9, RM, PLAIN, 2, "32" },
	{ 40, 1, 32, 24, 7, EM, PLAIN, 4, "64" }, { 40, 2, 2, 128, 40, EM, FP8, 3, "64" },
	{ 40, 1, 32, 24, 7, RM, PLAIN, 2, "64" },
};

/* More ranks than the kernels' arguments have room for, and than a rank may be named by 7 bits. */
static const struct size_case beyond[] = {
	{ 72, 1, 4, 128, 2, RM, FP8, 2, "32" },
	{ 130, 1, 3, 8, 2, EM, PLAIN, 2, "32" },
};

/* Many ranks across nodes; few tokens, since two cores serve all NICs. */
static const struct size_case far[] = {
	{ 40, 1, 4, 248, 3, EM, PLAIN, 2, "32" },
	{ 72, 1, 3, 128, 1, RM, FP8, 2, "32" },
};

/* Five blocks send, so that one of them only counts, also over several windows. */
static const struct size_case blocks[] = {
	{ 2, 2, 2, 8, 257, EM, PLAIN, 8, "32" },  { 2, 16, 32, 8, 200, EM, PLAIN, 8, "64" },
	{ 3, 2, 3, 8, 600, RM, PLAIN, 8, "64" },  { 2, 600, 4, 8, 100, EM, PLAIN, 8, "96" },
	{ 2, 8, 8, 7168, 3, EM, PLAIN, 8, "64" }, { 2, 16, 20, 128, 130, EM, FP8, 8, "64" },
};

static const struct size_case many[] = {
	{ 2, 1, 1, 8, 8192, EM, PLAIN, 4, "128" },
	{ 2, 2, 2, 8, 8192, RM, PLAIN, 2, "64" },
};

static void run_case(struct world *w, void *arg)
{
	const struct size_case *c = arg;
	struct oracle_problem p = bench_problem(w->nranks, c->local * c->nranks, c->topk, c->hidden,
						c->tokens, c->layout);
	ncclEpGroupConfig_t config;
	ncclEpGroup_t group;
	struct bench b;
	char text[300];

	p.dtype = c->dtype;
	p.quant = c->quant;
	p.combine_quant = c->back;
	p.seed = c->tokens * 31 + c->hidden;
	bench_describe(&p, 0, text, sizeof(text));
	check_context("%s, lines %s, threads %s", text, getenv("NCCL_EP_LL_LINES"), c->threads);
	config = bench_group_config(&p, 0);
	config.max_num_sms = c->sms;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, BENCH_IDS64);
	bench_pair(&b);
	/* fewer tokens than the capacity, another number than before */
	if (c->tokens < 8192) {
		bench_load_tokens(&b, p.seed + 1, c->tokens - c->tokens / 3);
		bench_pair(&b);
	}
	CHECK_LAST(group, ncclSuccess, "");
	bench_end(&b);
}

/* Kernels may use no more shared memory than at first. */
static void reset_devices(int count)
{
	for (int d = 0; d < count; d++) {
		NEED_CUDA(cudaSetDevice(d));
		NEED_CUDA(cudaDeviceReset());
	}
}

static int main_sizes(int argc, char **argv)
{
	static const struct {
		const char *name;
		const struct size_case *cases;
		size_t count;
	} parts[] = {
		{ "windows", windows, sizeof(windows) / sizeof(windows[0]) },
		{ "rows", rows, sizeof(rows) / sizeof(rows[0]) },
		{ "ranks", ranks, sizeof(ranks) / sizeof(ranks[0]) },
		{ "beyond", beyond, sizeof(beyond) / sizeof(beyond[0]) },
		{ "far", far, sizeof(far) / sizeof(far[0]) },
		{ "blocks", blocks, sizeof(blocks) / sizeof(blocks[0]) },
		{ "many", many, sizeof(many) / sizeof(many[0]) },
	};
	bool known = false, once = argc == 3 && !strcmp(argv[2], "once");

	for (size_t i = 0; (argc == 2 || once) && i < sizeof(parts) / sizeof(parts[0]); i++) {
		for (size_t j = 0; !strcmp(argv[1], parts[i].name) && j < parts[i].count * 2; j++) {
			struct size_case c = parts[i].cases[j / 2];

			known = true;
			if (once && j % 2 != j / 2 % 2) {
				continue;
			}
			setenv("NCCL_EP_LL_LINES", j % 2 ? "0" : "1", 1);
			setenv("NCCL_EP_LL_THREADS", c.threads, 1);
			world_run((int)c.nranks, run_case, &c);
			reset_devices((int)c.nranks);
		}
	}
	if (!known) {
		fprintf(stderr, "usage: sizes PART [once]\n");
		return 2;
	}
	return check_end();
}

/*
 * The shapes of public models (hidden, experts, top-k) on the numbers of ranks that people have.
 * Where the experts divide among the ranks every mode and layout moves them, each byte compared
 * with the oracle; where they do not, every rank gets the same refusal, with both numbers.
 *
 *     shapes RANKS [MODEL]     all models, or those whose name begins like this
 */

#define TOKENS 2

struct model {
	const char *name;
	uint32_t hidden, experts, topk;
};

static const struct model models[] = {
	{ "deepseek-v3", 7168, 256, 8 },
	{ "deepseek-v2", 5120, 160, 6 },
	{ "deepseek-v2-lite", 2048, 64, 6 },
	{ "kimi-k2", 7168, 384, 8 },
	{ "qwen3-235b", 4096, 128, 8 },
	{ "qwen3-30b", 2048, 128, 8 },
	{ "qwen3-next", 2048, 512, 10 },
	{ "gpt-oss-120b", 2880, 128, 4 },
	{ "gpt-oss-20b", 2880, 32, 4 },
	{ "glm-4.5", 5120, 160, 8 },
	{ "glm-4.5-air", 4096, 128, 8 },
	{ "llama-4-maverick", 5120, 128, 1 },
	{ "llama-4-scout", 5120, 16, 1 },
	{ "mixtral-8x7b", 4096, 8, 2 },
	{ "mixtral-8x22b", 6144, 8, 2 },
	{ "minimax-m1", 6144, 32, 2 },
	{ "minimax-m2", 3072, 256, 8 },
	{ "ernie-4.5", 8192, 64, 8 },
	{ "hunyuan-a13b", 4096, 64, 8 },
	{ "dbrx", 6144, 16, 4 },
	{ "grok-1", 6144, 8, 2 },
	{ "step-3", 7168, 48, 3 },
	{ "olmoe", 2048, 64, 8 },
	{ "jamba", 4096, 16, 2 },
	{ "class-2026", 3584, 896, 16 },
	{ "widest", 16384, 16, 2 }, /* of none yet */
};

static struct oracle_problem problem(const struct world *w, const struct model *m,
				     enum oracle_layout layout)
{
	return bench_problem(w->nranks, m->experts, m->topk, m->hidden, TOKENS, layout);
}

static void low_latency(struct world *w, const struct model *m, enum oracle_layout layout,
			enum oracle_quant quant)
{
	struct oracle_problem p = problem(w, m, layout);
	ncclEpGroup_t group;
	char text[300];
	struct bench b;

	p.quant = quant;
	bench_describe(&p, 0, text, sizeof(text));
	check_context("%s, rank %d, ll: %s", m->name, w->rank, text);
	group = bench_group(w, &p, 0);
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	CHECK_LAST(group, ncclSuccess, "");
	bench_end(&b);
}

static void high_throughput(struct world *w, const struct model *m, bool expert_major)
{
	struct oracle_ht h = { .p = problem(w, m, ORACLE_EXPERT_MAJOR),
			       .expert_major = expert_major };
	ncclEpGroupConfig_t config;
	ncclEpGroup_t group;
	struct ht_bench b;

	check_context("%s, rank %d, ht, %s", m->name, w->rank, expert_major ? "em" : "flat");
	h.limit = (uint32_t)w->nranks * TOKENS * (expert_major ? m->topk : 1);
	config = ht_group_config(&h, 0);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	ht_open(&b, w, group, &h, 0);
	ht_step(&b);
	CHECK_LAST(group, ncclSuccess, "");
	ht_end(&b);
}

/* All ranks at once, and nothing is left of it: the next group works. */
static void refused(struct world *w, const struct model *m)
{
	char want[96];

	snprintf(want, sizeof(want),
		 "config->num_experts is %u: it must be a positive multiple of the %d ranks",
		 m->experts, w->nranks);
	for (int ht = 0; ht < 2; ht++) {
		struct oracle_problem p = problem(w, m, ORACLE_EXPERT_MAJOR);
		ncclEpGroupConfig_t config = bench_group_config(&p, 0);
		ncclEpGroup_t group = NULL;

		check_context("%s, rank %d, %s", m->name, w->rank, ht ? "ht" : "ll");
		config.algorithm = ht ? NCCL_EP_ALGO_HIGH_THROUGHPUT : NCCL_EP_ALGO_LOW_LATENCY;
		CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &config), ncclInvalidArgument,
			     want);
		CHECK(!group);
	}
}

static void run(struct world *w, void *name)
{
	int ran = 0;

	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		const struct model *m = &models[i];

		if (strncmp(m->name, name, strlen(name)) != 0) {
			continue;
		}
		ran++;
		if (m->experts % (uint32_t)w->nranks != 0) {
			refused(w, m);
			continue;
		}
		low_latency(w, m, ORACLE_EXPERT_MAJOR, ORACLE_QUANT_NONE);
		low_latency(w, m, ORACLE_RANK_MAJOR, ORACLE_QUANT_NONE);
		if (m->hidden % ORACLE_BLOCK == 0) {
			low_latency(w, m, ORACLE_EXPERT_MAJOR, ORACLE_QUANT_FP8);
		}
		high_throughput(w, m, false);
		high_throughput(w, m, true);
	}
	CHECK(ran > 0, "no model is called %s", (char *)name);
}

static int main_shapes(int argc, char **argv)
{
	NEED(argc >= 2);
	world_run((int)world_number(argv[1], 0), run, argc > 2 ? argv[2] : "");
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "sizes", main_sizes },
		{ "shapes", main_shapes },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
