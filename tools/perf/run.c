/* SPDX-License-Identifier: Apache-2.0 */
/* One line of the table: check, time, check again. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf.h"

/*
 * ---- checks of high throughput ----
 *
 * Every byte that high throughput has written, against the oracle. There are gigabytes of it: they
 * come to the host in pieces, and several threads look at each.
 */

#define MAX_WORKERS 16u

struct piece {
	struct perf_rank *r;
	uint64_t first, n; /* rows, or tokens */
	uint8_t *rows, *scales;
	float *weights;
	int64_t *idx;
};

typedef void (*work_fn)(const struct piece *piece, uint64_t first, uint64_t n,
			struct oracle_verdict *verdict);

struct worker {
	pthread_t thread;
	work_fn work;
	const struct piece *piece;
	uint64_t first, n;
	struct oracle_verdict verdict;
};

static void *work(void *argument)
{
	struct worker *w = argument;

	w->work(w->piece, w->first, w->n, &w->verdict);
	return NULL;
}

static uint32_t workers(const struct perf_rank *rank)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	uint32_t nlocal = rank->perf->world.nlocal * (rank->perf->world.nprocs > 1 ? 2 : 1);
	uint32_t n = cores > 0 ? (uint32_t)cores / nlocal : 1;

	return n < 1 ? 1 : n > MAX_WORKERS ? MAX_WORKERS : n;
}

static void merge(struct oracle_verdict *all, const struct oracle_verdict *one)
{
	if (one->wrong && !all->text[0]) {
		memcpy(all->text, one->text, sizeof(all->text));
		all->lines = one->lines;
	}
	all->wrong += one->wrong;
}

/* The piece, a part of it by each thread. */
static void share_out(const struct piece *piece, work_fn fn, struct oracle_verdict *verdict)
{
	struct worker all[MAX_WORKERS];
	uint32_t n = workers(piece->r);

	for (uint32_t i = 0; i < n; i++) {
		struct worker *w = all + i;

		memset(&w->verdict, 0, sizeof(w->verdict));
		w->work = fn;
		w->piece = piece;
		w->first = piece->n * i / n;
		w->n = piece->n * (i + 1) / n - w->first;
		if (i + 1 == n) {
			work(w);
		} else if (pthread_create(&w->thread, NULL, work, w)) {
			perf_die(piece->r, "no thread for the check");
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		if (i + 1 < n) {
			pthread_join(all[i].thread, NULL);
		}
		merge(verdict, &all[i].verdict);
	}
}

static void copy_piece(struct perf_rank *rank, void *to, const void *from, size_t bytes)
{
	if (bytes) {
		PERF_CUDA(rank, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, rank->stream));
	}
}

struct strides { /* bytes of a row's */
	size_t row, scales, weights, idx;
};

/* The next rows, as many as have room. */
static void cut(struct piece *piece, uint64_t first, uint64_t end, const struct strides *strides)
{
	uint64_t n = PERF_CHECK_BYTES /
		     (strides->row + strides->scales + strides->weights + strides->idx);
	uint8_t *at = piece->r->buf.chunk;

	n = n < 1 ? 1 : n;
	piece->first = first;
	piece->n = end - first < n ? end - first : n;
	piece->idx = (int64_t *)at;
	at += piece->n * strides->idx;
	piece->rows = at;
	at += piece->n * strides->row;
	piece->scales = at;
	at += piece->n * strides->scales;
	piece->weights = strides->weights ? (float *)at : NULL;
}

static void check_rows(const struct piece *piece, uint64_t first, uint64_t n,
		       struct oracle_verdict *verdict)
{
	struct perf_rank *r = piece->r;
	const struct oracle_problem *p = &r->ht.p;
	struct oracle_ht_output out = {
		.tokens = piece->rows + first * oracle_output_bytes(p),
		.scales = piece->scales + first * 4 * oracle_scale_words(p),
	};

	if (piece->weights) {
		out.weights = piece->weights + first * (r->perf->opt.flat ? p->topk : 1);
		out.idx = piece->idx + first * p->topk;
	}
	oracle_ht_check_rows(&r->ht, r->tables[r->rank], piece->first + first, n, &out, verdict);
}

static void check_counters(struct perf_rank *rank, struct oracle_verdict *verdict)
{
	struct perf_buffers *b = &rank->buf;
	size_t local = oracle_held(&rank->problem, rank->rank), n = 2 * local + 1;
	int32_t *counts = perf_alloc(rank, n, sizeof(*counts));
	int64_t *wide = perf_alloc(rank, n, sizeof(*wide));

	copy_piece(rank, counts, b->counts, local * sizeof(*counts));
	copy_piece(rank, counts + local, b->offsets, local * sizeof(*counts));
	copy_piece(rank, counts + 2 * local, b->total, sizeof(*counts));
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	for (size_t i = 0; i < n; i++) {
		wide[i] = counts[i];
	}
	oracle_ht_check_counters(&rank->ht, rank->tables[rank->rank], wide, wide + local,
				 wide[2 * local], verdict);
	free(counts);
	free(wide);
}

/* `all`: also the rows that nobody writes, which then must be as they were poisoned. */
static void ht_check_dispatch(struct perf_rank *rank, bool all, struct oracle_verdict *verdict)
{
	const struct oracle_problem *p = &rank->ht.p;
	int flat = rank->perf->opt.flat;
	struct strides s = { .row = oracle_output_bytes(p), .scales = 4 * oracle_scale_words(p) };
	struct piece piece = { .r = rank };
	const struct oracle_ht_table *table = rank->tables[rank->rank];
	uint64_t end = all || table->total > table->count ? table->count : table->total;

	if (!rank->perf->opt.backward) {
		s.weights = flat ? 4 * p->topk : 4;
		s.idx = flat ? 8 * p->topk : 0;
	}
	check_counters(rank, verdict);
	for (uint64_t at = 0; at < end; at += piece.n) {
		struct perf_buffers *b = &rank->buf;

		cut(&piece, at, end, &s);
		copy_piece(rank, piece.rows, (char *)b->out_tokens + at * s.row, piece.n * s.row);
		copy_piece(rank, piece.scales, (char *)b->out_scales + at * s.scales,
			   piece.n * s.scales);
		copy_piece(rank, piece.weights, (char *)b->out_weights + at * s.weights,
			   piece.n * s.weights);
		copy_piece(rank, piece.idx, (char *)b->out_idx + at * s.idx, piece.n * s.idx);
		PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
		share_out(&piece, check_rows, verdict);
	}
}

static void do_work(const struct piece *piece, uint64_t first, uint64_t n,
		    struct oracle_verdict *verdict)
{
	struct perf_rank *r = piece->r;
	const struct oracle_problem *p = &r->ht.p;
	uint32_t wide = r->perf->opt.flat ? p->topk : 1;

	oracle_ht_work(&r->ht, r->tables[r->rank], piece->first + first, n,
		       piece->rows + first * oracle_combine_bytes(p),
		       piece->weights ? piece->weights + first * wide : NULL);
}

static void ht_work(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->ht.p;
	const struct perf_options *opt = &rank->perf->opt;
	struct oracle_verdict unused = { 0 };
	struct strides s = { .row = oracle_combine_bytes(p) };
	struct piece piece = { .r = rank };
	uint64_t end = rank->tables[rank->rank]->count;

	s.weights = !opt->backward ? 0 : opt->flat ? 4 * p->topk : 4;
	for (uint64_t at = 0; at < end; at += piece.n) {
		struct perf_buffers *b = &rank->buf;

		cut(&piece, at, end, &s);
		share_out(&piece, do_work, &unused);
		copy_piece(rank, (char *)b->combine_in + at * s.row, piece.rows, piece.n * s.row);
		copy_piece(rank, (char *)b->in_gradients + at * s.weights, piece.weights,
			   piece.n * s.weights);
		PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	}
}

static void check_sums(const struct piece *piece, uint64_t first, uint64_t n,
		       struct oracle_verdict *verdict)
{
	struct perf_rank *r = piece->r;
	const struct oracle_problem *p = &r->ht.p;
	struct oracle_ht_sums sums = { piece->rows + first * oracle_combine_bytes(p),
				       piece->weights ? piece->weights + first * p->topk : NULL };

	oracle_ht_check_sums(&r->ht, r->tables, r->rank, (uint32_t)(piece->first + first),
			     (uint32_t)n, &sums, verdict);
}

static void ht_check_combine(struct perf_rank *rank, struct oracle_verdict *verdict)
{
	const struct oracle_problem *p = &rank->ht.p;
	struct perf_buffers *b = &rank->buf;
	struct strides s = { .row = oracle_combine_bytes(p) };
	struct piece piece = { .r = rank };

	s.weights = rank->perf->opt.backward ? 4 * p->topk : 0;
	for (uint64_t at = 0; at < rank->tokens; at += piece.n) {
		cut(&piece, at, rank->tokens, &s);
		copy_piece(rank, piece.rows, (char *)b->combine_out + at * s.row, piece.n * s.row);
		copy_piece(rank, piece.weights, (char *)b->out_gradients + at * s.weights,
			   piece.n * s.weights);
		PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
		share_out(&piece, check_sums, verdict);
	}
	copy_piece(rank, b->chunk, (char *)b->combine_out + rank->tokens * s.row, s.row);
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	if (s.row && (b->chunk[0] != ORACLE_POISON || memcmp(b->chunk, b->chunk + 1, s.row - 1))) {
		verdict->wrong++;
		snprintf(verdict->text, sizeof(verdict->text),
			 "combine: rank %u: row %u, past the end, was written\n", rank->rank,
			 rank->tokens);
	}
}

/* ---- one size ---- */

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

static ncclResult_t enqueue_half(struct perf_rank *rank, void *context)
{
	ncclResult_t result;

	if (*(enum perf_op *)context == PERF_COMBINE) {
		return perf_combine(rank);
	}
	result = perf_update(rank);
	return result == ncclSuccess ? perf_dispatch(rank) : result;
}

/* Ends the program if an operation has failed: what it left behind shows nothing. */
static void expect_no_failure(struct perf_rank *rank)
{
	const char *text = perf_last_error(rank);

	if (text) {
		perf_die(rank, "%s", text);
	}
}

static void run_half(struct perf_rank *rank, const struct halves *halves, enum perf_op op)
{
	if (halves->graph[op]) {
		PERF_CUDA(rank, cudaGraphLaunch(halves->graph[op], rank->stream));
	} else {
		PERF_NCCL(rank, enqueue_half(rank, &op));
	}
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	expect_no_failure(rank);
}

/* The problem is that of this seed and step from now on, and calls take the first ids. */
static void set_problem(struct perf_rank *rank, uint64_t seed, uint32_t step)
{
	const struct perf_options *opt = &rank->perf->opt;
	char why[128];

	oracle_problem_free(&rank->problem);
	rank->problem.seed = seed;
	rank->problem.step = step;
	if (oracle_problem_prepare(&rank->problem, why, sizeof(why))) {
		perf_die(rank, "%s", why);
	}
	if (opt->ht) {
		perf_ht_load(rank);
		perf_calls_prepare(rank); /* in eager mode tensors have as many rows as come */
	}
}

static const char *step_text(const struct perf_rank *rank, char text[32])
{
	snprintf(text, 32, rank->perf->opt.steps > 1 ? ", step %u" : "", rank->problem.step);
	return text;
}

static void complain(struct perf_rank *rank, const struct oracle_verdict *verdict)
{
	char step[32];

	if (verdict->wrong && !rank->complaint[0]) {
		snprintf(rank->complaint, sizeof(rank->complaint), "%s", verdict->text);
		fprintf(stderr, "ep_perf: %u tokens, seed %llu%s: wrong results\n%s",
			rank->problem.tokens, (unsigned long long)rank->problem.seed,
			step_text(rank, step), verdict->text);
	}
}

static struct oracle_dispatch view_of(struct perf_rank *rank, uint32_t poison_rows)
{
	struct oracle_dispatch view = { .tokens = rank->buf.out_tokens,
					.scales = rank->buf.out_scales,
					.weights = rank->buf.out_weights,
					.idx = rank->buf.out_idx,
					.counts = rank->buf.counts,
					.poison_rows = poison_rows };

	return view;
}

static uint64_t check_ht_round(struct perf_rank *rank, const struct halves *halves)
{
	struct oracle_verdict verdict = { 0 };

	perf_buffers_upload(rank);
	perf_buffers_poison(rank);
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	run_half(rank, halves, PERF_DISPATCH);
	ht_check_dispatch(rank, true, &verdict);
	complain(rank, &verdict);
	perf_phase(rank, "checking");
	ht_work(rank);
	run_half(rank, halves, PERF_COMBINE);
	ht_check_combine(rank, &verdict);
	complain(rank, &verdict);
	perf_phase(rank, "checking");
	return verdict.wrong;
}

/* A whole round on fresh data and poisoned outputs. Returns what was wrong. */
static uint64_t check_round(struct perf_rank *rank, const struct halves *halves, uint64_t seed,
			    uint32_t step)
{
	struct oracle_mem mem = { copy, copy, rank };
	struct oracle_dispatch view = view_of(rank, POISON_SAMPLES);
	struct oracle_verdict verdict = { 0 };
	struct oracle_table *table;

	perf_phase(rank, "checking");
	set_problem(rank, seed, step);
	if (rank->perf->opt.ht) {
		return check_ht_round(rank, halves);
	}
	table = oracle_table_create(&rank->problem, rank->rank);
	if (!table) {
		perf_die(rank, "out of memory");
	}
	perf_buffers_upload(rank);
	perf_buffers_poison(rank);
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	run_half(rank, halves, PERF_DISPATCH);
	view.combine_in = rank->buf.combine_in;
	view.combine_scales = rank->buf.combine_scales;
	oracle_check_dispatch(table, &mem, &view, &verdict);
	complain(rank, &verdict); /* a combine after a bad dispatch may not come back */
	perf_phase(rank, "checking");
	run_half(rank, halves, PERF_COMBINE);
	oracle_check_combine(table, &mem, rank->buf.combine_out, 1, &verdict);
	oracle_table_free(table);
	complain(rank, &verdict);
	perf_phase(rank, "checking");
	return verdict.wrong;
}

/* Checks what the last dispatch of the chain has left. */
static uint64_t check_left(struct perf_rank *rank)
{
	struct oracle_mem mem = { copy, copy, rank };
	struct oracle_dispatch view = view_of(rank, 0);
	struct oracle_verdict verdict = { 0 };
	struct oracle_table *table;

	perf_phase(rank, "checking");
	expect_no_failure(rank);
	if (rank->perf->opt.ht) {
		/* other steps may have written more rows */
		ht_check_dispatch(rank, rank->perf->opt.steps == 1, &verdict);
		complain(rank, &verdict);
		return verdict.wrong;
	}
	table = oracle_table_create(&rank->problem, rank->rank);
	if (!table) {
		perf_die(rank, "out of memory");
	}
	oracle_check_dispatch(table, &mem, &view, &verdict);
	oracle_table_free(table);
	complain(rank, &verdict);
	return verdict.wrong;
}

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
	struct halves halves = { { NULL } };
	uint32_t pairs = opt->graph ? opt->graph : opt->iters; /* of the last chain */
	uint64_t seed = opt->problem.seed;
	uint64_t wrong = 0;
	uint64_t all[ORACLE_MAX_RANKS];

	for (enum perf_op op = PERF_DISPATCH; opt->graph && opt->check && op < PERF_OPS; op++) {
		halves.graph[op] = perf_capture(rank, enqueue_half, &op);
	}
	if (opt->check) {
		wrong += check_round(rank, &halves, seed + 1, 0);
		for (uint32_t step = opt->steps; step-- > 0;) {
			wrong += check_round(rank, &halves, seed, step);
		}
	}
	time_all(rank, row);
	if (opt->check) {
		if (opt->steps > 1) {
			set_problem(rank, seed, (pairs - 1) % opt->steps);
		}
		wrong += check_left(rank);
		wrong += check_round(rank, &halves, seed + 2, 0);
	}
	set_problem(rank, seed, 0);
	for (int op = 0; op < PERF_OPS; op++) {
		if (halves.graph[op]) {
			PERF_CUDA(rank, cudaGraphExecDestroy(halves.graph[op]));
		}
	}
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
	set_problem(rank, rank->perf->opt.problem.seed, 0);
	rank->tokens = oracle_tokens(&rank->problem, rank->rank);
	perf_calls_prepare(rank);
	perf_buffers_upload(rank);
	perf_phase(rank, "the first operations");
	if (attempt(rank, row) == 0) {
		measure(rank, row);
		expect_no_failure(rank);
	}
	rank->failure[0] = '\0';
	rank->refused = false;
	oracle_problem_free(&rank->problem);
}
