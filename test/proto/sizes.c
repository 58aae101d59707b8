/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes at the edges of what the kernels do in one go (windows of 256 tokens or 2048 ids, quads of
 * rows, units of FP8 rows), the largest models' rows, and the most tokens, in both wire forms.
 *
 *     sizes PART [once]      once: each size in one of the two forms, in turn
 */
#include "support/bench.h"

struct size_case {
	uint32_t nranks, local, topk, hidden, tokens;
	enum oracle_layout layout;
	enum oracle_dtype dtype;
	enum oracle_quant quant;
	uint32_t sms;
	const char *threads;
};

#define EM ORACLE_EXPERT_MAJOR
#define RM ORACLE_RANK_MAJOR
#define PLAIN ORACLE_BF16, ORACLE_QUANT_NONE
#define FP8 ORACLE_BF16, ORACLE_QUANT_FP8

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

static const struct size_case rows[] = {
	{ 3, 2, 3, 8, 9, EM, PLAIN, 0, "64" },      { 3, 2, 3, 24, 9, RM, PLAIN, 0, "64" },
	{ 3, 2, 3, 120, 9, EM, PLAIN, 0, "64" },    { 3, 2, 3, 248, 9, RM, PLAIN, 0, "64" },
	{ 3, 2, 3, 512, 9, EM, PLAIN, 0, "64" },    { 2, 2, 2, 2880, 5, EM, PLAIN, 0, "128" },
	{ 2, 2, 2, 7168, 3, RM, PLAIN, 0, "128" },  { 2, 2, 2, 7168, 1, EM, PLAIN, 0, "256" },
	{ 4, 2, 4, 7168, 3, EM, FP8, 0, "128" },    { 2, 2, 2, 1792, 5, EM, FP8, 0, "64" },
	{ 2, 2, 2, 1920, 5, RM, FP8, 0, "64" },     { 2, 2, 2, 128, 5, EM, FP8, 0, "64" },
	{ 2, 2, 2, 12288, 2, RM, PLAIN, 0, "128" }, { 5, 2, 3, 7168, 2, RM, FP8, 0, "512" },
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

int main(int argc, char **argv)
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
