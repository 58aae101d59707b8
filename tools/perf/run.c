// SPDX-License-Identifier: Apache-2.0
/* One line of the table: check, time, check again. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

#define POISON_SAMPLES 16 /* unused rows examined per block, where memory is not the host's */

static int copy(void *context, void *to, const void *from, size_t bytes)
{
	struct perf_rank *r = context;

	PERF_CUDA(r, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, r->stream));
	PERF_CUDA(r, cudaStreamSynchronize(r->stream));
	return 0;
}

/* Graphs of the two halves: the experts' work, on the host, lies between them. */
struct halves {
	cudaGraphExec_t graph[PERF_OPS];
};

static ncclResult_t enqueue_half(struct perf_rank *r, void *context)
{
	ncclResult_t result;

	if (*(enum perf_op *)context == PERF_COMBINE) {
		return perf_combine(r);
	}
	result = perf_update(r);
	return result == ncclSuccess ? perf_dispatch(r) : result;
}

static void run_half(struct perf_rank *r, const struct halves *halves, enum perf_op op)
{
	if (halves->graph[op]) {
		PERF_CUDA(r, cudaGraphLaunch(halves->graph[op], r->stream));
	} else {
		PERF_NCCL(r, enqueue_half(r, &op));
	}
	PERF_CUDA(r, cudaStreamSynchronize(r->stream));
}

static void set_seed(struct perf_rank *r, uint64_t seed)
{
	const struct perf_options *opt = &r->perf->opt;
	char why[128];

	oracle_problem_free(&r->problem);
	r->problem.seed = seed;
	if (oracle_problem_prepare(&r->problem, why, sizeof(why))) {
		perf_die(r, "%s", why);
	}
	if (opt->ht) {
		perf_ht_load(r);
		perf_calls_prepare(r); /* in eager mode tensors have as many rows as come */
	}
}

static void complain(struct perf_rank *r, const struct oracle_verdict *verdict)
{
	if (verdict->wrong && !r->complaint[0]) {
		snprintf(r->complaint, sizeof(r->complaint), "%s", verdict->text);
		fprintf(stderr, "ep_perf: %u tokens, seed %llu: wrong results\n%s",
			r->problem.tokens, (unsigned long long)r->problem.seed, verdict->text);
	}
}

static struct oracle_dispatch view_of(struct perf_rank *r, uint32_t poison_rows)
{
	struct oracle_dispatch view = { .tokens = r->buf.out_tokens,
					.scales = r->buf.out_scales,
					.weights = r->buf.out_weights,
					.idx = r->buf.out_idx,
					.counts = r->buf.counts,
					.poison_rows = poison_rows };

	return view;
}

static uint64_t check_ht_round(struct perf_rank *r, const struct halves *halves, uint64_t seed)
{
	struct oracle_verdict verdict = { 0 };

	perf_phase(r, "checking");
	set_seed(r, seed);
	perf_buffers_upload(r);
	perf_buffers_poison(r);
	PERF_CUDA(r, cudaStreamSynchronize(r->stream));
	run_half(r, halves, PERF_DISPATCH);
	perf_ht_check_dispatch(r, &verdict);
	complain(r, &verdict);
	perf_phase(r, "checking");
	perf_ht_work(r);
	run_half(r, halves, PERF_COMBINE);
	perf_ht_check_combine(r, &verdict);
	complain(r, &verdict);
	perf_phase(r, "checking");
	return verdict.wrong;
}

/* A whole round on fresh data and poisoned outputs. Returns what was wrong. */
static uint64_t check_round(struct perf_rank *r, const struct halves *halves, uint64_t seed)
{
	struct oracle_mem mem = { copy, copy, r };
	struct oracle_dispatch view = view_of(r, POISON_SAMPLES);
	struct oracle_verdict verdict = { 0 };
	struct oracle_table *table;

	if (r->perf->opt.ht) {
		return check_ht_round(r, halves, seed);
	}
	perf_phase(r, "checking");
	set_seed(r, seed);
	table = oracle_table_create(&r->problem, r->rank);
	if (!table) {
		perf_die(r, "out of memory");
	}
	perf_buffers_upload(r);
	perf_buffers_poison(r);
	PERF_CUDA(r, cudaStreamSynchronize(r->stream));
	run_half(r, halves, PERF_DISPATCH);
	view.combine_in = r->buf.combine_in;
	oracle_check_dispatch(table, &mem, &view, &verdict);
	complain(r, &verdict); /* a combine after a bad dispatch may not come back */
	perf_phase(r, "checking");
	run_half(r, halves, PERF_COMBINE);
	oracle_check_combine(table, &mem, r->buf.combine_out, 1, &verdict);
	oracle_table_free(table);
	complain(r, &verdict);
	perf_phase(r, "checking");
	return verdict.wrong;
}

/* What the last dispatch of the chain has left. */
static uint64_t check_left(struct perf_rank *r)
{
	struct oracle_mem mem = { copy, copy, r };
	struct oracle_dispatch view = view_of(r, 0);
	struct oracle_verdict verdict = { 0 };
	struct oracle_table *table;

	perf_phase(r, "checking");
	if (r->perf->opt.ht) {
		perf_ht_check_dispatch(r, &verdict);
		complain(r, &verdict);
		return verdict.wrong;
	}
	table = oracle_table_create(&r->problem, r->rank);
	if (!table) {
		perf_die(r, "out of memory");
	}
	oracle_check_dispatch(table, &mem, &view, &verdict);
	oracle_table_free(table);
	complain(r, &verdict);
	return verdict.wrong;
}

/* Non-zero: some rank cannot do this; row->unsupported says why, on every rank. */
static int agree(struct perf_rank *r, struct perf_row *row)
{
	static const char none[sizeof(r->failure)];
	char(*all)[sizeof(none)] = perf_alloc(r, r->perf->world.nranks, sizeof(*all));

	perf_gather(r, r->failure, sizeof(r->failure), all);
	for (uint32_t n = 0; n < r->perf->world.nranks && !row->unsupported[0]; n++) {
		snprintf(row->unsupported, sizeof(row->unsupported), "%.*s",
			 (int)sizeof(row->unsupported) - 1, all[n]);
	}
	free(all);
	return row->unsupported[0] != '\0';
}

/* The first calls with these arguments: a refusal is a result. */
static int attempt(struct perf_rank *r, struct perf_row *row)
{
	ncclResult_t result = perf_update(r);
	const char *call = "ncclEpUpdateHandle";
	const char *text;

	if (result == ncclSuccess) {
		result = perf_align_update(r);
	}

	if (result == ncclSuccess) {
		call = "ncclEpDispatch";
		result = perf_dispatch(r);
	}
	if (result == ncclSuccess) {
		call = "ncclEpCombine";
		result = perf_combine(r);
	}
	r->failure[0] = '\0';
	if (result != ncclSuccess) {
		text = perf_last_error(r);
		snprintf(r->failure, sizeof(r->failure), "%s: %s", call,
			 text ? text : ncclGetErrorString(result));
	}
	if (agree(r, row)) {
		return -1;
	}
	PERF_CUDA(r, cudaStreamSynchronize(r->stream));
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
static double reduce(struct perf_rank *r, const float *mine, struct perf_op_row *o,
		     struct perf_samples *samples)
{
	const struct perf_options *opt = &r->perf->opt;
	uint32_t nranks = r->perf->world.nranks;
	float *all = perf_alloc(r, (size_t)opt->iters * nranks, sizeof(*all));
	float *one = perf_alloc(r, opt->iters, sizeof(*one));
	double median;

	perf_gather(r, mine, opt->iters * sizeof(*mine), all);
	for (uint32_t i = 0; i < opt->iters; i++) {
		one[i] = over_ranks(opt, all, nranks, i, PERF_MIN);
	}
	if (samples && opt->json && r->rank == 0) {
		samples->most = perf_alloc(r, opt->iters, sizeof(*one));
		samples->least = perf_alloc(r, opt->iters, sizeof(*one));
		memcpy(samples->least, one, opt->iters * sizeof(*one));
		for (uint32_t i = 0; i < opt->iters; i++) {
			samples->most[i] = over_ranks(opt, all, nranks, i, PERF_MAX);
		}
	}
	if (o) {
		o->fastest = perf_percentile(one, opt->iters, 50);
	}
	for (uint32_t i = 0; i < opt->iters; i++) {
		one[i] = over_ranks(opt, all, nranks, i, opt->average);
	}
	median = perf_percentile(one, opt->iters, 50);
	if (o) {
		o->p50 = median;
		o->p90 = perf_percentile(one, opt->iters, 90);
		o->p99 = perf_percentile(one, opt->iters, 99);
	}
	free(all);
	free(one);
	return median;
}

static void time_all(struct perf_rank *r, struct perf_row *row)
{
	const struct perf_options *opt = &r->perf->opt;
	struct perf_times times;
	struct perf_waits waits;

	for (int op = perf_first_op(opt); op < PERF_OPS; op++) {
		times.gpu[op] = perf_alloc(r, opt->iters, sizeof(float));
		times.host[op] = perf_alloc(r, opt->iters, sizeof(float));
	}
	perf_time_drained(r, &times);
	for (int op = perf_first_op(opt); op < PERF_OPS; op++) {
		struct perf_op_row *o = &row->op[op];

		reduce(r, times.gpu[op], o, &o->samples);
		row->host_us[op] = reduce(r, times.host[op], NULL, NULL);
	}
	perf_cupti_time(r, &times, &row->blocks);
	for (int op = perf_first_op(opt); op < PERF_OPS; op++) {
		row->op[op].kernel = reduce(r, times.gpu[op], NULL, &row->op[op].kernel_samples);
		free(times.gpu[op]);
		free(times.host[op]);
	}
	if (opt->json) {
		perf_waits_begin(r, &waits);
	}
	row->period = perf_time_chain(r);
	if (opt->json) {
		perf_detail_clocks(r, &row->detail); /* while they are what they were */
		row->detail.waits = perf_waits_end(r, &waits);
	}
}

static void measure(struct perf_rank *r, struct perf_row *row)
{
	const struct perf_options *opt = &r->perf->opt;
	struct halves halves = { { NULL } };
	uint64_t seed = opt->problem.seed;
	uint64_t wrong = 0;
	uint64_t all[ORACLE_MAX_RANKS];

	for (enum perf_op op = PERF_DISPATCH; opt->graph && opt->check && op < PERF_OPS; op++) {
		halves.graph[op] = perf_capture(r, enqueue_half, &op);
	}
	if (opt->check) {
		wrong += check_round(r, &halves, seed + 1);
		wrong += check_round(r, &halves, seed);
	}
	time_all(r, row);
	if (opt->check) {
		wrong += check_left(r);
		wrong += check_round(r, &halves, seed + 2);
	}
	set_seed(r, seed);
	for (int op = 0; op < PERF_OPS; op++) {
		if (halves.graph[op]) {
			PERF_CUDA(r, cudaGraphExecDestroy(halves.graph[op]));
		}
	}
	perf_account(r, row);
	if (opt->json) {
		perf_detail_routing(r, &row->detail);
	}
	perf_gather(r, &wrong, sizeof(wrong), all);
	for (uint32_t n = 0; n < r->perf->world.nranks; n++) {
		row->wrong += all[n];
	}
	row->checked = opt->check;
}

void perf_run(struct perf_rank *r, uint32_t tokens, struct perf_row *row)
{
	const char *text;

	memset(row, 0, sizeof(*row));
	row->tokens = tokens;
	if (agree(r, row)) { /* the group or the tensors could not be had */
		return;
	}
	r->complaint[0] = '\0';
	r->problem = r->perf->opt.problem;
	r->problem.popular_sum = NULL;
	r->problem.popular_expert = NULL;
	r->problem.tokens = tokens;
	set_seed(r, r->perf->opt.problem.seed);
	r->tokens = oracle_tokens(&r->problem, r->rank);
	perf_calls_prepare(r);
	perf_buffers_upload(r);
	perf_phase(r, "the first operations");
	if (attempt(r, row) == 0) {
		measure(r, row);
		text = perf_last_error(r);
		if (text) {
			perf_die(r, "%s", text);
		}
	}
	r->failure[0] = '\0';
	oracle_problem_free(&r->problem);
}
