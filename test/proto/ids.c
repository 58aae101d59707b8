/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert ids that are not: every value of E and above is reported with its place and treated as
 * none, every negative one is none and no error. Too many duplicates of one expert, more than its
 * rows, are reported too. Nothing is written where it does not belong, and the group goes on.
 */
#include "support/bench.h"

struct plant {
	int64_t value;
	bool error;
};

static const struct plant plants[] = {
	{ -1, false },
	{ -2, false },
	{ INT32_MIN, false },
	{ INT64_MIN, false },
	{ -((int64_t)1 << 32), false }, /* low half 0: valid if the high half were dropped */
	{ -((int64_t)1 << 32) + 3, false },
	{ 0, true }, /* stands for E */
	{ 1, true }, /* E + 1 */
	{ 4096, true },
	{ INT32_MAX, true },
	{ (int64_t)1 << 32, true },
	{ ((int64_t)1 << 32) + 2, true },
	{ (int64_t)1 << 62, true },
	{ INT64_MAX, true },
};

/* The same tokens with one entry that names no expert: the oracle reads it from lines of a file. */
static void plant(struct bench *b, const struct plant *what, int64_t value, int32_t *lines)
{
	struct oracle_problem *p = &b->p;
	uint32_t token = p->tokens / 2, k = p->topk - 1;
	size_t n = (size_t)b->tokens * p->topk;

	/* what the oracle believes: none */
	for (uint32_t r = 0; r < p->nranks; r++) {
		lines[((size_t)r * p->max_tokens + token) * ORACLE_MAX_TOPK + k] = -1;
	}
	bench_load(b, p->seed + 1);
	/* what the library gets */
	if (b->flags & BENCH_IDS64) {
		int64_t *ids = tensor_fetch(&b->ids);

		ids[(size_t)token * p->topk + k] = value;
		NEED_CUDA(cudaMemcpy(b->ids.t.data, ids, n * 8, cudaMemcpyHostToDevice));
		free(ids);
	} else {
		int32_t *ids = tensor_fetch(&b->ids);

		ids[(size_t)token * p->topk + k] = (int32_t)value;
		NEED_CUDA(cudaMemcpy(b->ids.t.data, ids, n * 4, cudaMemcpyHostToDevice));
		free(ids);
	}
	bench_pair(b);
	if (what->error) {
		char part[64];

		snprintf(part, sizeof(part), "topk_idx[%u][%u] is %lld", token, k,
			 (long long)value);
		CHECK_LAST(b->group, ncclInvalidArgument, part);
		/* the library makes room for the next report in a stream of its own */
		NEED_CUDA(cudaDeviceSynchronize());
	}
}

static int32_t *make_lines(const struct oracle_problem *p)
{
	uint32_t n = p->nranks * p->max_tokens;
	int32_t *lines = malloc((size_t)n * ORACLE_MAX_TOPK * sizeof(*lines));
	uint64_t s = 17;

	NEED(lines);
	for (uint32_t i = 0; i < n * ORACLE_MAX_TOPK; i++) {
		lines[i] = i % ORACLE_MAX_TOPK < p->topk ? (int32_t)world_draw(&s, p->experts) : -1;
	}
	return lines;
}

static void strange_ids(struct world *w, enum oracle_layout layout, uint32_t flags)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * (uint32_t)w->nranks, 3, 64, 8, layout);
	ncclEpGroup_t group = bench_group(w, &p, flags);
	int32_t *lines = make_lines(&p);
	struct bench b;

	p.routing.family = ORACLE_FILE;
	p.routing.lines = lines;
	p.routing.nlines = p.nranks * p.max_tokens;
	bench_open(&b, w, group, &p, flags);
	for (size_t i = 0; i < sizeof(plants) / sizeof(plants[0]); i++) {
		int64_t value = plants[i].value;
		bool narrow = value >= INT32_MIN && value <= INT32_MAX;

		if (plants[i].error && value < 2) {
			value += p.experts;
		}
		check_context("layout %d, flags 0x%x, id %lld", (int)layout, flags,
			      (long long)value);
		if (narrow || (flags & BENCH_IDS64)) {
			plant(&b, plants + i, value, lines);
		}
	}
	bench_end(&b);
	free(lines);
}

/* Before any mistake there is no error; negative ids are none. */
static void no_error(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * (uint32_t)w->nranks, 3, 64, 8, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group(w, &p, 0);
	struct bench b;
	int32_t ids[24];

	check_context("only negative ids");
	p.drop_ppm = 1000000;
	bench_open(&b, w, group, &p, 0);
	for (int i = 0; i < 24; i++) {
		ids[i] = i % 3 == 0 ? INT32_MIN : -1 - i * 1000003;
	}
	NEED_CUDA(cudaMemcpy(b.ids.t.data, ids, sizeof(ids), cudaMemcpyHostToDevice));
	bench_pair(&b);
	CHECK_LAST(group, ncclSuccess, "");
	bench_end(&b);
}

/* All entries of all ranks name one expert: more rows than its R * B. */
static void too_many(struct world *w, uint32_t flags)
{
	struct oracle_problem p =
		bench_problem(w->nranks, (uint32_t)w->nranks, 2, 64, 8, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group(w, &p, flags);
	uint32_t n = p.max_tokens * p.topk;
	int32_t zero[16] = { 0 };
	int32_t *counts;
	struct bench b;

	check_context("too many rows for one expert");
	bench_open(&b, w, group, &p, flags);
	bench_pair(&b);
	NEED(n == 16);
	NEED_CUDA(cudaMemcpy(b.ids.t.data, zero, sizeof(zero), cudaMemcpyHostToDevice));
	bench_poison(&b);
	NEED_OK(bench_update(&b, w->stream));
	NEED_OK(bench_dispatch(&b, w->stream));
	NEED_SYNC(bench_combine(&b, w->stream), w->stream);
	counts = tensor_fetch(&b.counts);
	CHECK_INT(counts[0], w->rank == 0 ? p.nranks * p.max_tokens : 0);
	if (w->rank == 0) {
		CHECK_LAST(group, ncclInvalidArgument, "no row left");
	}
	free(counts);
	world_meet(w);
	bench_pair_of(&b, 12);
	bench_end(&b);
}

static void run(struct world *w, void *arg)
{
	no_error(w);
	strange_ids(w, ORACLE_EXPERT_MAJOR, 0);
	strange_ids(w, ORACLE_RANK_MAJOR, 0);
	strange_ids(w, ORACLE_EXPERT_MAJOR, BENCH_IDS64);
	strange_ids(w, ORACLE_RANK_MAJOR, BENCH_IDS64);
	too_many(w, 0);
}

int main(void)
{
	for (int lines = 0; lines <= 1; lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(world_size(3), run, NULL);
	}
	return check_end();
}
