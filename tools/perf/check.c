/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of a line: rounds on fresh data, and what the chain has left, against the oracle. */
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

/* ---- a round ---- */

#define POISON_SAMPLES 16 /* unused rows examined per block, where memory is not the host's */

static int copy(void *context, void *to, const void *from, size_t bytes)
{
	struct perf_rank *r = context;

	PERF_CUDA(r, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, r->stream));
	PERF_CUDA(r, cudaStreamSynchronize(r->stream));
	return 0;
}

static ncclResult_t enqueue_half(struct perf_rank *rank, void *context)
{
	ncclResult_t result;

	if (*(enum perf_op *)context == PERF_COMBINE) {
		return perf_combine(rank);
	}
	result = perf_update(rank);
	return result == ncclSuccess ? perf_dispatch(rank) : result;
}

static void run_half(struct perf_rank *rank, const struct perf_halves *halves, enum perf_op op)
{
	if (halves->graph[op]) {
		PERF_CUDA(rank, cudaGraphLaunch(halves->graph[op], rank->stream));
	} else {
		PERF_NCCL(rank, enqueue_half(rank, &op));
	}
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	perf_expect_no_failure(rank);
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

static uint64_t check_ht_round(struct perf_rank *rank, const struct perf_halves *halves)
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

void perf_halves_capture(struct perf_rank *rank, struct perf_halves *halves)
{
	const struct perf_options *opt = &rank->perf->opt;

	*halves = (struct perf_halves){ { NULL } };
	for (enum perf_op op = PERF_DISPATCH; opt->graph && opt->check && op < PERF_OPS; op++) {
		halves->graph[op] = perf_capture(rank, enqueue_half, &op);
	}
}

void perf_halves_free(struct perf_rank *rank, struct perf_halves *halves)
{
	for (int op = 0; op < PERF_OPS; op++) {
		if (halves->graph[op]) {
			PERF_CUDA(rank, cudaGraphExecDestroy(halves->graph[op]));
		}
	}
}

uint64_t perf_check_round(struct perf_rank *rank, const struct perf_halves *halves, uint64_t seed,
			  uint32_t step)
{
	struct oracle_mem mem = { copy, copy, rank };
	struct oracle_dispatch view = view_of(rank, POISON_SAMPLES);
	struct oracle_verdict verdict = { 0 };
	struct oracle_table *table;

	perf_phase(rank, "checking");
	perf_set_problem(rank, seed, step);
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

uint64_t perf_check_left(struct perf_rank *rank)
{
	struct oracle_mem mem = { copy, copy, rank };
	struct oracle_dispatch view = view_of(rank, 0);
	struct oracle_verdict verdict = { 0 };
	struct oracle_table *table;

	perf_phase(rank, "checking");
	perf_expect_no_failure(rank);
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
