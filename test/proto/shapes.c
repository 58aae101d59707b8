/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shapes of public models (hidden, experts, top-k) on the numbers of ranks that people have. Where the experts
 * divide among the ranks every mode and layout moves them, each byte compared with the oracle; where they do
 * not, every rank gets the same refusal, with both numbers.
 *
 *     shapes RANKS [MODEL]     all models, or those whose name begins like this
 */
#include "support/bench.h"
#include "support/ht_bench.h"

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

int main(int argc, char **argv)
{
	NEED(argc >= 2);
	world_run((int)world_number(argv[1], 0), run, argc > 2 ? argv[2] : "");
	return check_end();
}
