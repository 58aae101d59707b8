/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of calls and launches.
 *
 * Drained: one operation at a time, between two events. Nothing is measured of the moment at which
 * a rank's host gets to launch: everything is enqueued behind a gate (a host function that waits
 * until all of it is there), and an empty dispatch, which no rank leaves before every rank has
 * started it, comes right before each timed operation. What is in the number: the operation, the
 * events' own cost, and what is left of the ranks' skew (about one flag's flight).
 *
 * Chain: dispatches and combines one after the other without host synchronisation, two events
 * for all of it. What is in the number: everything that steady state costs per pair.
 *
 * With graphs, the same operations and events are nodes, and the gate is not needed: a graph is one
 * launch. Where events cannot be nodes, a graph's own launch is inside the number.
 */
#include <math.h>
#include <sched.h>
#include <stdlib.h>

#include "perf.h"

/* Launches behind a closed gate; far below the depth of a stream's queue. */
#define GATE_DEPTH 128

struct timed {
	/* of each step */
	cudaGraphExec_t graph[ORACLE_MAX_STEPS]; /* of the whole iteration, its events included */
	cudaGraphExec_t single[ORACLE_MAX_STEPS][PERF_OPS];
	uint32_t step;
	int whole;
	cudaEvent_t event[2 * PERF_OPS];
	float host[PERF_OPS];
};

static void wait_at_gate(void *open)
{
	while (!atomic_load_explicit((atomic_int *)open, memory_order_acquire)) {
		sched_yield();
	}
}

/* In eager mode a dispatch waits for the stream, so nothing may be held back there. */
static void close_gate(struct perf_rank *rank, atomic_int *open)
{
	if (rank->perf->opt.eager) {
		return;
	}
	atomic_store(open, 0);
	PERF_CUDA(rank, cudaLaunchHostFunc(rank->stream, wait_at_gate, open));
}

/* Whether event records can be nodes of a graph. */
static int have_event_nodes(struct perf_rank *rank)
{
	cudaGraph_t graph = NULL;
	cudaEvent_t event;
	cudaError_t error;

	PERF_CUDA(rank, cudaEventCreate(&event));
	PERF_CUDA(rank, cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
	error = cudaEventRecordWithFlags(event, rank->stream, cudaEventRecordExternal);
	if (cudaStreamEndCapture(rank->stream, &graph) == cudaSuccess && graph) {
		cudaGraphDestroy(graph);
	}
	cudaGetLastError();
	PERF_CUDA(rank, cudaEventDestroy(event));
	return error == cudaSuccess;
}

static ncclResult_t enqueue_op(struct perf_rank *rank, void *context)
{
	return perf_operate(rank, *(enum perf_op *)context);
}

static void mark(struct perf_rank *rank, cudaEvent_t event, unsigned int flags)
{
	PERF_CUDA(rank, cudaEventRecordWithFlags(event, rank->stream, flags));
}

/* The whole of an iteration; within a graph, operations of graphs, or plain. */
static ncclResult_t enqueue_timed(struct perf_rank *rank, void *context)
{
	struct timed *t = context;
	unsigned int flags = t->whole ? cudaEventRecordExternal : cudaEventRecordDefault;

	for (int op = perf_first_op(&rank->perf->opt); op < PERF_OPS; op++) {
		uint64_t start;

		PERF_NCCL(rank, perf_align(rank));
		mark(rank, t->event[2 * op], flags);
		start = perf_now_ns();
		if (t->single[t->step][op]) {
			PERF_CUDA(rank, cudaGraphLaunch(t->single[t->step][op], rank->stream));
		} else {
			PERF_NCCL(rank, enqueue_op(rank, &op));
		}
		t->host[op] = (float)(perf_now_ns() - start) / 1000;
		mark(rank, t->event[2 * op + 1], flags);
	}
	return ncclSuccess;
}

static void capture_timed(struct perf_rank *rank, struct timed *timed)
{
	const struct perf_options *opt = &rank->perf->opt;

	timed->whole = have_event_nodes(rank);
	for (uint32_t i = 0; i < opt->steps; i++) {
		perf_step(rank, i);
		if (timed->whole) {
			timed->graph[i] = perf_capture(rank, enqueue_timed, timed);
			continue;
		}
		for (int op = perf_first_op(opt); op < PERF_OPS; op++) {
			timed->single[i][op] = perf_capture(rank, enqueue_op, &op);
		}
	}
}

static void run_timed(struct perf_rank *rank, struct timed *timed, uint32_t iteration)
{
	atomic_int open;

	timed->step = iteration % rank->perf->opt.steps;
	if (timed->graph[timed->step]) {
		uint64_t start = perf_now_ns();

		PERF_CUDA(rank, cudaGraphLaunch(timed->graph[timed->step], rank->stream));
		for (int op = 0; op < PERF_OPS; op++) { /* one launch for all */
			timed->host[op] = NAN;
		}
		timed->host[perf_first_op(&rank->perf->opt)] =
			(float)(perf_now_ns() - start) / 1000;
	} else {
		perf_step(rank, iteration);
		close_gate(rank, &open);
		PERF_NCCL(rank, enqueue_timed(rank, timed));
		atomic_store_explicit(&open, 1, memory_order_release);
	}
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
}

static void free_graph(struct perf_rank *rank, cudaGraphExec_t graph)
{
	if (graph) {
		PERF_CUDA(rank, cudaGraphExecDestroy(graph));
	}
}

static void free_timed(struct perf_rank *rank, struct timed *timed)
{
	for (uint32_t i = 0; i < rank->perf->opt.steps; i++) {
		free_graph(rank, timed->graph[i]);
		for (int op = 0; op < PERF_OPS; op++) {
			free_graph(rank, timed->single[i][op]);
		}
	}
	for (int i = 0; i < 2 * PERF_OPS; i++) {
		PERF_CUDA(rank, cudaEventDestroy(timed->event[i]));
	}
}

void perf_time_drained(struct perf_rank *rank, struct perf_times *times)
{
	const struct perf_options *opt = &rank->perf->opt;
	struct timed t = { .step = 0 };

	for (int i = 0; i < 2 * PERF_OPS; i++) {
		PERF_CUDA(rank, cudaEventCreate(&t.event[i]));
	}
	if (opt->graph) {
		capture_timed(rank, &t);
	}
	/* the first is not counted: a graph is uploaded at its first launch */
	for (uint32_t i = 0; i <= opt->iters; i++) {
		perf_phase(rank, "timing single operations");
		run_timed(rank, &t, i);
		for (int op = perf_first_op(opt); i > 0 && op < PERF_OPS; op++) {
			float *time = &times->gpu[op][i - 1];

			PERF_CUDA(rank,
				  cudaEventElapsedTime(time, t.event[2 * op], t.event[2 * op + 1]));
			*time *= 1000;
			times->host[op][i - 1] = t.host[op];
		}
	}
	free_timed(rank, &t);
}

static ncclResult_t enqueue_pair(struct perf_rank *rank, void *context)
{
	const struct perf_options *opt = &rank->perf->opt;
	bool update = opt->ht ? opt->steps > 1 : opt->graph > 0;
	ncclResult_t result = update ? perf_update(rank) : ncclSuccess;

	if (result == ncclSuccess) {
		result = perf_dispatch(rank);
	}
	return result == ncclSuccess ? perf_combine(rank) : result;
}

/* Microseconds per pair on this rank; `graphs` has one for each step, or none. */
static double run_chain(struct perf_rank *rank, const cudaGraphExec_t *graphs, uint32_t pairs)
{
	uint32_t steps = rank->perf->opt.steps;
	cudaEvent_t start, end;
	atomic_int open;
	float ms = 0;

	PERF_CUDA(rank, cudaEventCreate(&start));
	PERF_CUDA(rank, cudaEventCreate(&end));
	perf_barrier(rank);
	close_gate(rank, &open);
	PERF_NCCL(rank, perf_align(rank));
	PERF_CUDA(rank, cudaEventRecord(start, rank->stream));
	for (uint32_t i = 0; i < pairs; i++) {
		if (graphs[i % steps]) {
			PERF_CUDA(rank, cudaGraphLaunch(graphs[i % steps], rank->stream));
		} else {
			perf_step(rank, i);
			PERF_NCCL(rank, enqueue_pair(rank, NULL));
		}
		if (i == GATE_DEPTH / 4) {
			atomic_store_explicit(&open, 1, memory_order_release);
		}
	}
	PERF_CUDA(rank, cudaEventRecord(end, rank->stream));
	atomic_store_explicit(&open, 1, memory_order_release);
	PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	PERF_CUDA(rank, cudaEventElapsedTime(&ms, start, end));
	PERF_CUDA(rank, cudaEventDestroy(start));
	PERF_CUDA(rank, cudaEventDestroy(end));
	return (double)ms * 1000 / pairs;
}

double perf_time_chain(struct perf_rank *rank)
{
	const struct perf_options *opt = &rank->perf->opt;
	uint32_t pairs = opt->graph ? opt->graph : opt->iters;
	cudaGraphExec_t graphs[ORACLE_MAX_STEPS] = { NULL };
	float *periods = perf_alloc(rank, opt->chains, sizeof(*periods));
	double all[ORACLE_MAX_RANKS];
	double median;

	for (uint32_t i = 0; opt->graph && i < opt->steps; i++) {
		perf_step(rank, i);
		graphs[i] = perf_capture(rank, enqueue_pair, NULL);
	}
	perf_phase(rank, "warming up");
	run_chain(rank, graphs, opt->warmup ? opt->warmup : 1);
	for (uint32_t i = 0; i < opt->chains; i++) {
		double period;
		double slowest = 0;

		perf_phase(rank, "timing the chain");
		period = run_chain(rank, graphs, pairs);
		perf_gather(rank, &period, sizeof(period), all);
		for (uint32_t n = 0; n < rank->perf->world.nranks; n++) {
			slowest = all[n] > slowest ? all[n] : slowest;
		}
		periods[i] = (float)slowest;
	}
	for (uint32_t i = 0; i < opt->steps; i++) {
		free_graph(rank, graphs[i]);
	}
	median = perf_percentile(periods, opt->chains, 50);
	free(periods);
	return median;
}

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a;
	float y = *(const float *)b;

	return (x > y) - (x < y);
}

/* The smallest value that at least `percent` of all do not exceed. Sorts. NAN if there is one. */
double perf_percentile(float *values, uint32_t count, double percent)
{
	uint32_t index = (uint32_t)ceil(percent * count / 100 - 1e-6);

	for (uint32_t i = 0; i < count; i++) {
		if (isnan(values[i])) {
			return NAN;
		}
	}
	qsort(values, count, sizeof(*values), compare);
	return count ? (double)values[index ? index - 1 : 0] : NAN;
}
