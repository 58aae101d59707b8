/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every byte that high throughput has written, against the oracle. There are gigabytes of it: they come
 * to the host in pieces, and several threads look at each.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf.h"

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

static void copy(struct perf_rank *rank, void *to, const void *from, size_t bytes)
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
		.scales = piece->scales + first * 4 * oracle_scale_count(p),
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
	size_t local = rank->problem.experts / rank->problem.nranks, n = 2 * local + 1;
	int32_t *counts = perf_alloc(rank, n, sizeof(*counts));
	int64_t *wide = perf_alloc(rank, n, sizeof(*wide));

	copy(rank, counts, b->counts, local * sizeof(*counts));
	copy(rank, counts + local, b->offsets, local * sizeof(*counts));
	copy(rank, counts + 2 * local, b->total, sizeof(*counts));
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	for (size_t i = 0; i < n; i++) {
		wide[i] = counts[i];
	}
	oracle_ht_check_counters(&rank->ht, rank->tables[rank->rank], wide, wide + local,
				 wide[2 * local], verdict);
	free(counts);
	free(wide);
}

void perf_ht_check_dispatch(struct perf_rank *rank, struct oracle_verdict *verdict)
{
	const struct oracle_problem *p = &rank->ht.p;
	int flat = rank->perf->opt.flat;
	struct strides s = { .row = oracle_output_bytes(p), .scales = 4 * oracle_scale_count(p) };
	struct piece piece = { .r = rank };
	uint64_t end = rank->tables[rank->rank]->count;

	if (!rank->perf->opt.backward) {
		s.weights = flat ? 4 * p->topk : 4;
		s.idx = flat ? 8 * p->topk : 0;
	}
	check_counters(rank, verdict);
	for (uint64_t at = 0; at < end; at += piece.n) {
		struct perf_buffers *b = &rank->buf;

		cut(&piece, at, end, &s);
		copy(rank, piece.rows, (char *)b->out_tokens + at * s.row, piece.n * s.row);
		copy(rank, piece.scales, (char *)b->out_scales + at * s.scales, piece.n * s.scales);
		copy(rank, piece.weights, (char *)b->out_weights + at * s.weights,
		     piece.n * s.weights);
		copy(rank, piece.idx, (char *)b->out_idx + at * s.idx, piece.n * s.idx);
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

void perf_ht_work(struct perf_rank *rank)
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
		copy(rank, (char *)b->combine_in + at * s.row, piece.rows, piece.n * s.row);
		copy(rank, (char *)b->in_gradients + at * s.weights, piece.weights,
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

void perf_ht_check_combine(struct perf_rank *rank, struct oracle_verdict *verdict)
{
	const struct oracle_problem *p = &rank->ht.p;
	struct perf_buffers *b = &rank->buf;
	struct strides s = { .row = oracle_combine_bytes(p) };
	struct piece piece = { .r = rank };

	s.weights = rank->perf->opt.backward ? 4 * p->topk : 0;
	for (uint64_t at = 0; at < rank->tokens; at += piece.n) {
		cut(&piece, at, rank->tokens, &s);
		copy(rank, piece.rows, (char *)b->combine_out + at * s.row, piece.n * s.row);
		copy(rank, piece.weights, (char *)b->out_gradients + at * s.weights,
		     piece.n * s.weights);
		PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
		share_out(&piece, check_sums, verdict);
	}
	copy(rank, b->chunk, (char *)b->combine_out + rank->tokens * s.row, s.row);
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	if (s.row && (b->chunk[0] != ORACLE_POISON || memcmp(b->chunk, b->chunk + 1, s.row - 1))) {
		verdict->wrong++;
		snprintf(verdict->text, sizeof(verdict->text),
			 "combine: rank %u: row %u, past the end, was written\n", rank->rank,
			 rank->tokens);
	}
}
