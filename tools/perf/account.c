/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that must move, and what the measured times make of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

/* Of all ranks together, and of the rank that has most. */
struct sums {
	double tokens, copies, squares;
	double own[PERF_OPS], busy[PERF_OPS]; /* rows */
	double memory[PERF_OPS];              /* bytes */
};

/* The message of a rank to the others. */
struct share {
	struct oracle_traffic traffic;
	uint64_t memory[PERF_OPS];
};

/*
 * Low latency: dispatch moves a row once per (token, rank), combine expert-major once per (token,
 * expert) and rank-major once per (token, rank). High throughput: over links both move a row once per
 * (token, rank) in both layouts. own: the rows of one rank, those for itself included. busy: rows
 * that leave or enter the busiest rank.
 */
static void add_traffic(struct sums *sums, const struct oracle_traffic *traffic, int by_expert)
{
	uint64_t in[PERF_OPS] = { [PERF_DISPATCH] = traffic->rank_copies_in,
				  [PERF_COMBINE] = traffic->rank_copies_remote };
	uint64_t out[PERF_OPS] = { [PERF_DISPATCH] = traffic->rank_copies_remote,
				   [PERF_COMBINE] = traffic->rank_copies_in };
	double received = (double)(traffic->rank_copies_in + traffic->rank_copies -
				   traffic->rank_copies_remote);

	if (by_expert) {
		in[PERF_COMBINE] = traffic->expert_copies_remote;
		out[PERF_COMBINE] = traffic->expert_copies_in;
	}
	sums->tokens += (double)traffic->tokens;
	sums->copies += (double)traffic->rank_copies;
	sums->squares += received * received;
	sums->own[PERF_DISPATCH] += (double)traffic->rank_copies;
	sums->own[PERF_COMBINE] +=
		(double)(by_expert ? traffic->expert_copies : traffic->rank_copies);
	for (int op = PERF_DISPATCH; op < PERF_OPS; op++) {
		sums->busy[op] =
			fmax(sums->busy[op], (double)(in[op] > out[op] ? in[op] : out[op]));
	}
}

/* A row with the scales that travel with it. */
static double copy_bytes(const struct oracle_problem *problem, int op)
{
	return op == PERF_COMBINE
		       ? (double)oracle_combine_bytes(problem)
		       : (double)oracle_output_bytes(problem) + 4.0 * oracle_scale_count(problem);
}

/*
 * High throughput: what the rank's memory must give and take, whatever the way. Dispatch loads each
 * token and stores each row of the output, padding too; combine loads the rows and stores the sums.
 */
static void memory_bytes(const struct perf_rank *rank, uint64_t *bytes)
{
	const struct oracle_ht_table *t = rank->tables ? rank->tables[rank->rank] : NULL;
	uint64_t written = rank->tokens, read = rank->tokens;

	memset(bytes, 0, PERF_OPS * sizeof(*bytes));
	for (uint64_t i = 0; t && i < t->count; i++) {
		written += t->rows[i].kind != ORACLE_HT_UNTOUCHED;
		read += t->rows[i].kind == ORACLE_HT_ROW;
	}
	if (t) {
		bytes[PERF_DISPATCH] =
			written * (uint64_t)copy_bytes(&rank->problem, PERF_DISPATCH);
		bytes[PERF_COMBINE] = read * (uint64_t)copy_bytes(&rank->problem, PERF_COMBINE);
	}
}

/*
 * Microseconds that the bytes alone take: links between GPUs, and in high throughput the memory of the
 * busiest GPU. Ranks that share a GPU have no link between them.
 */
static double floor_us(const struct perf_options *opt, double link_bytes, double memory)
{
	double link = link_bytes / opt->floor_gbs / 1e3;

	if (!opt->ht) {
		return link;
	}
	return fmax(opt->ranks_per_gpu > 1 ? 0 : link, memory / opt->memory_gbs / 1e3);
}

static void rate(const struct perf_rank *rank, struct perf_row *row, const struct sums *sums)
{
	const struct perf_options *opt = &rank->perf->opt;

	for (int op = PERF_DISPATCH; op < PERF_OPS; op++) {
		struct perf_op_row *o = &row->op[op];
		double bytes = copy_bytes(&rank->problem, op);
		double time = isnan(o->kernel) ? o->p50 : o->kernel;

		o->algbw = sums->own[op] / rank->perf->world.nranks * bytes / time / 1e3;
		o->busbw = sums->busy[op] * bytes / time / 1e3;
		o->floor = floor_us(opt, sums->busy[op] * bytes, sums->memory[op]);
		o->floor_percent = 100 * o->floor / time;
	}
	row->op[PERF_UPDATE].algbw = row->op[PERF_UPDATE].busbw = NAN;
	row->op[PERF_UPDATE].floor = row->op[PERF_UPDATE].floor_percent = NAN;
}

void perf_account(struct perf_rank *rank, struct perf_row *row)
{
	const struct perf_options *opt = &rank->perf->opt;
	uint32_t nranks = rank->perf->world.nranks;
	struct share *all = perf_alloc(rank, nranks, sizeof(*all));
	struct share mine;
	struct sums s = { 0 };
	double here[PERF_OPS] = { 0 };

	oracle_traffic(&rank->problem, rank->rank, &mine.traffic);
	memory_bytes(rank, mine.memory);
	perf_gather(rank, &mine, sizeof(mine), all);
	for (uint32_t n = 0; n < nranks; n++) {
		add_traffic(&s, &all[n].traffic,
			    rank->problem.layout == ORACLE_EXPERT_MAJOR && !opt->ht);
		for (int op = PERF_DISPATCH; op < PERF_OPS; op++) {
			/* ranks that share a GPU come one after the other */
			here[op] = n % opt->ranks_per_gpu ? here[op] : 0;
			here[op] += (double)all[n].memory[op];
			s.memory[op] = fmax(s.memory[op], here[op]);
		}
	}
	row->copies = s.tokens > 0 ? s.copies / s.tokens : 0;
	row->load_cv = s.copies > 0 ? sqrt(fmax(0, s.squares * nranks / (s.copies * s.copies) - 1))
				    : 0;
	rate(rank, row, &s);
	free(all);
}
