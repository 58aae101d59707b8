/* SPDX-License-Identifier: Apache-2.0 */
/* One line of the table: check, time, check again. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

/* Non-zero: some rank cannot do this; row->unsupported has the reason, on every rank. */
static int agree(struct perf_rank *rank, struct perf_row *row)
{
	static const char none[sizeof(rank->failure)];
	char(*all)[sizeof(none)] = perf_alloc(rank, rank->perf->world.nranks, sizeof(*all));
	bool refused[ORACLE_MAX_RANKS];

	perf_gather(rank, rank->failure, sizeof(rank->failure), all);
	perf_gather(rank, &rank->refused, sizeof(rank->refused), refused);
	for (uint32_t n = 0; n < rank->perf->world.nranks; n++) {
		row->refused |= refused[n];
	}
	for (uint32_t n = 0; n < rank->perf->world.nranks && !row->unsupported[0]; n++) {
		snprintf(row->unsupported, sizeof(row->unsupported), "%.*s",
			 (int)sizeof(row->unsupported) - 1, all[n]);
	}
	free(all);
	return row->unsupported[0] != '\0';
}

/* The first calls with these arguments: a refusal is a result. */
static int attempt(struct perf_rank *rank, struct perf_row *row)
{
	ncclResult_t result = perf_update(rank);
	const char *call = "ncclEpUpdateHandle";

	if (result == ncclSuccess) {
		result = perf_align_update(rank);
	}

	if (result == ncclSuccess) {
		call = "ncclEpDispatch";
		result = perf_dispatch(rank);
	}
	if (result == ncclSuccess) {
		call = "ncclEpCombine";
		result = perf_combine(rank);
	}
	if (result != ncclSuccess) {
		perf_refuse(rank, call, result);
	}
	if (agree(rank, row)) {
		return -1;
	}
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	return 0;
}

/* Per iteration one number out of all ranks', by -a. */
static float over_ranks(const struct perf_options *opt, const float *all, uint32_t nranks,
			uint32_t iteration, enum perf_average average)
{
	float value = all[iteration];
	float sum = 0;

	for (uint32_t n = 0; n < nranks; n++) {
		float x = all[(size_t)n * opt->iters + iteration];

		sum += x;
		if ((average == PERF_MIN && x < value) || (average == PERF_MAX && !(x <= value))) {
			value = x;
		}
	}
	return average == PERF_MEAN ? sum / (float)nranks : value;
}

/* The median over iterations; of others than rank 0 `samples` stay as they are. */
static double reduce(struct perf_rank *rank, const float *mine, struct perf_op_row *row,
		     struct perf_samples *samples)
{
	const struct perf_options *opt = &rank->perf->opt;
	uint32_t nranks = rank->perf->world.nranks;
	float *all = perf_alloc(rank, (size_t)opt->iters * nranks, sizeof(*all));
	float *one = perf_alloc(rank, opt->iters, sizeof(*one));
	double median;

	perf_gather(rank, mine, opt->iters * sizeof(*mine), all);
	for (uint32_t i = 0; i < opt->iters; i++) {
		one[i] = over_ranks(opt, all, nranks, i, PERF_MIN);
	}
	if (samples && opt->json && rank->rank == 0) {
		samples->most = perf_alloc(rank, opt->iters, sizeof(*one));
		samples->least = perf_alloc(rank, opt->iters, sizeof(*one));
		memcpy(samples->least, one, opt->iters * sizeof(*one));
		for (uint32_t i = 0; i < opt->iters; i++) {
			samples->most[i] = over_ranks(opt, all, nranks, i, PERF_MAX);
		}
	}
	if (row) {
		row->fastest = perf_percentile(one, opt->iters, 50);
	}
	for (uint32_t i = 0; i < opt->iters; i++) {
		one[i] = over_ranks(opt, all, nranks, i, opt->average);
	}
	median = perf_percentile(one, opt->iters, 50);
	if (row) {
		row->p50 = median;
		row->p90 = perf_percentile(one, opt->iters, 90);
		row->p99 = perf_percentile(one, opt->iters, 99);
		row->p999 = opt->iters < 1000 ? NAN : perf_percentile(one, opt->iters, 99.9);
		row->most = perf_percentile(one, opt->iters, 100);
	}
	free(all);
	free(one);
	return median;
}

static void time_all(struct perf_rank *rank, struct perf_row *row)
{
	const struct perf_options *opt = &rank->perf->opt;
	struct perf_times times;
	struct perf_waits waits;

	for (int op = perf_first_op(opt); op < PERF_OPS; op++) {
		times.gpu[op] = perf_alloc(rank, opt->iters, sizeof(float));
		times.host[op] = perf_alloc(rank, opt->iters, sizeof(float));
	}
	perf_time_drained(rank, &times);
	for (int op = perf_first_op(opt); op < PERF_OPS; op++) {
		struct perf_op_row *o = &row->op[op];

		reduce(rank, times.gpu[op], o, &o->samples);
		reduce(rank, times.host[op], &row->call[op], NULL);
	}
	perf_cupti_time(rank, &times, &row->blocks);
	for (int op = perf_first_op(opt); op < PERF_OPS; op++) {
		row->op[op].kernel = reduce(rank, times.gpu[op], NULL, &row->op[op].kernel_samples);
		free(times.gpu[op]);
		free(times.host[op]);
	}
	if (opt->json) {
		perf_waits_begin(rank, &waits);
	}
	row->period = perf_time_chain(rank);
	perf_step(rank, 0);
	if (opt->json) {
		perf_detail_clocks(rank, &row->detail); /* while they are what they were */
		row->detail.waits = perf_waits_end(rank, &waits);
	}
}

static void measure(struct perf_rank *rank, struct perf_row *row)
{
	const struct perf_options *opt = &rank->perf->opt;
	struct perf_halves halves;
	uint32_t pairs = opt->graph ? opt->graph : opt->iters; /* of the last chain */
	uint64_t seed = opt->problem.seed;
	uint64_t wrong = 0;
	uint64_t all[ORACLE_MAX_RANKS];

	perf_halves_capture(rank, &halves);
	if (opt->check) {
		wrong += perf_check_round(rank, &halves, seed + 1, 0);
		for (uint32_t step = opt->steps; step-- > 0;) {
			wrong += perf_check_round(rank, &halves, seed, step);
		}
	}
	time_all(rank, row);
	if (opt->check) {
		if (opt->steps > 1) {
			perf_set_problem(rank, seed, (pairs - 1) % opt->steps);
		}
		wrong += perf_check_left(rank);
		wrong += perf_check_round(rank, &halves, seed + 2, 0);
	}
	perf_set_problem(rank, seed, 0);
	perf_halves_free(rank, &halves);
	perf_account(rank, row);
	if (opt->json) {
		perf_detail_routing(rank, &row->detail);
	}
	perf_gather(rank, &wrong, sizeof(wrong), all);
	for (uint32_t n = 0; n < rank->perf->world.nranks; n++) {
		row->wrong += all[n];
	}
	row->checked = opt->check;
}

uint32_t perf_lines(const struct perf_options *opt)
{
	const struct oracle_routing *r = &opt->problem.routing;

	return r->family == ORACLE_CURVE ? r->count + 1 : 1;
}

/* The workload of a line: of a curve it is "hot" with a fraction. */
static void choose_line(struct perf_rank *rank, uint32_t line, struct perf_row *row)
{
	struct oracle_routing *r = &rank->problem.routing;

	if (r->family == ORACLE_CURVE) {
		r->hot_ppm = (uint32_t)(UINT64_C(1000000) * line / r->count);
		snprintf(row->routing, sizeof(row->routing), "hot:%g", r->hot_ppm / 1e6);
	} else {
		snprintf(row->routing, sizeof(row->routing), "%s", r->text);
	}
}

void perf_run(struct perf_rank *rank, uint32_t tokens, uint32_t line, struct perf_row *row)
{
	memset(row, 0, sizeof(*row));
	row->tokens = tokens;
	if (agree(rank, row)) { /* the group or the tensors could not be had */
		return;
	}
	rank->complaint[0] = '\0';
	rank->problem = rank->perf->opt.problem;
	rank->problem.popular_sum = NULL;
	rank->problem.popular_expert = NULL;
	rank->problem.tokens = tokens;
	choose_line(rank, line, row);
	perf_set_problem(rank, rank->perf->opt.problem.seed, 0);
	rank->tokens = oracle_tokens(&rank->problem, rank->rank);
	perf_calls_prepare(rank);
	perf_buffers_upload(rank);
	perf_phase(rank, "the first operations");
	if (attempt(rank, row) == 0) {
		measure(rank, row);
		perf_expect_no_failure(rank);
	}
	rank->failure[0] = '\0';
	rank->refused = false;
	oracle_problem_free(&rank->problem);
}
