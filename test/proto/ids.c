/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert ids that are not: every value of E and above is reported with its place and treated as
 * none, every negative one is none and no error. Too many duplicates of one expert, more than its
 * rows, are reported too, and count as zeros wherever the expert is. Nothing is written where it
 * does not belong, and the group goes on.
 */
#include <math.h>
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

/*
 * Rows of ones, with a weight for all: a row that fits adds the weight, one that does not adds 0
 * times it.
 */
static void check_lost(struct bench *b, float weight)
{
	const struct oracle_problem *p = &b->p;
	uint32_t cap = p->nranks * p->max_tokens, n = b->tokens * p->topk;
	uint16_t *rows = malloc(b->combine_in.bytes), *sums;
	float *weights = malloc(n * sizeof(*weights)), *scales = malloc(b->combine_scales.bytes);

	NEED(rows && weights && scales);
	for (size_t i = 0; i < b->combine_in.bytes / 2; i++) {
		rows[i] = 0x3f80; /* 1 */
	}
	for (size_t i = 0; i < b->combine_scales.bytes / 4; i++) {
		scales[i] = 2688;
	}
	for (uint32_t i = 0; i < n; i++) {
		weights[i] = weight;
	}
	NEED_CUDA(cudaMemcpy(b->combine_in.t.data, rows, b->combine_in.bytes,
			     cudaMemcpyHostToDevice));
	NEED_CUDA(cudaMemcpy(b->combine_scales.t.data, scales, b->combine_scales.bytes,
			     cudaMemcpyHostToDevice));
	NEED_CUDA(cudaMemcpy(b->weights.t.data, weights, n * 4, cudaMemcpyHostToDevice));
	NEED_SYNC(bench_combine(b, b->w->stream), b->w->stream);
	sums = tensor_fetch(&b->combine_out);
	for (uint32_t i = 0; i < b->tokens * p->hidden; i++) {
		uint32_t first = ((uint32_t)b->w->rank * p->max_tokens + i / p->hidden) * p->topk;
		float want = -0.0f, got;
		uint32_t bits = (uint32_t)sums[i] << 16;

		for (uint32_t k = 0; k < p->topk; k++) {
			want += weight * (first + k < cap ? 1.0f : 0.0f);
		}
		memcpy(&got, &bits, sizeof(got));
		if (isnan(want) ? !isnan(got) : got != want || signbit(got) != signbit(want)) {
			check_fail(__FILE__, __LINE__, "element %u: %g, not %g", i, (double)got,
				   (double)want);
			break;
		}
	}
	free(sums);
	free(scales);
	free(weights);
	free(rows);
}

/* All entries of all ranks name one expert, of that rank: more rows than its R * B. */
static void too_many(struct world *w, int holder, enum oracle_combine_quant quant)
{
	struct oracle_problem p =
		bench_problem(w->nranks, (uint32_t)w->nranks, 2, 128, 8, ORACLE_EXPERT_MAJOR);
	uint32_t n = p.max_tokens * p.topk;
	ncclEpGroup_t group;
	int32_t ids[16];
	int32_t *counts;
	struct bench b;

	check_context("too many rows for the expert of rank %d, recipe %d", holder, (int)quant);
	p.combine_quant = quant;
	group = bench_group(w, &p, 0);
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	NEED(n == 16);
	for (uint32_t i = 0; i < n; i++) {
		ids[i] = holder;
	}
	NEED_CUDA(cudaMemcpy(b.ids.t.data, ids, sizeof(ids), cudaMemcpyHostToDevice));
	bench_poison(&b);
	NEED_OK(bench_update(&b, w->stream));
	NEED_SYNC(bench_dispatch(&b, w->stream), w->stream);
	counts = tensor_fetch(&b.counts);
	CHECK_INT(counts[0], w->rank == holder ? p.nranks * p.max_tokens : 0);
	if (w->rank == holder) {
		CHECK_LAST(group, ncclInvalidArgument, "no row left");
	}
	free(counts);
	check_lost(&b, -1.0f);
	check_lost(&b, INFINITY);
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
	for (int i = 0; i < 6; i++) {
		too_many(w, i % 2 ? w->nranks - 1 : 0, (enum oracle_combine_quant)(i / 2));
	}
}

int main(void)
{
	for (int lines = 0; lines <= 1; lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(world_size(3), run, NULL);
	}
	return check_end();
}
