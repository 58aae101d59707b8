// SPDX-License-Identifier: Apache-2.0
/*
 * What is timed, and how.
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
	cudaGraphExec_t graph; /* of the whole iteration, its events included */
	cudaGraphExec_t single[PERF_OPS];
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
static void close_gate(struct perf_rank *r, atomic_int *open)
{
	if (r->perf->opt.eager) {
		return;
	}
	atomic_store(open, 0);
	PERF_CUDA(r, cudaLaunchHostFunc(r->stream, wait_at_gate, open));
}

/* Whether event records can be nodes of a graph. */
static int have_event_nodes(struct perf_rank *r)
{
	cudaGraph_t graph = NULL;
	cudaEvent_t event;
	cudaError_t error;

	PERF_CUDA(r, cudaEventCreate(&event));
	PERF_CUDA(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
	error = cudaEventRecordWithFlags(event, r->stream, cudaEventRecordExternal);
	if (cudaStreamEndCapture(r->stream, &graph) == cudaSuccess && graph) {
		cudaGraphDestroy(graph);
	}
	cudaGetLastError();
	PERF_CUDA(r, cudaEventDestroy(event));
	return error == cudaSuccess;
}

static ncclResult_t enqueue_op(struct perf_rank *r, void *context)
{
	return perf_operate(r, *(enum perf_op *)context);
}

static void mark(struct perf_rank *r, cudaEvent_t event, unsigned int flags)
{
	PERF_CUDA(r, cudaEventRecordWithFlags(event, r->stream, flags));
}

/* The whole of an iteration; within a graph, operations of graphs, or plain. */
static ncclResult_t enqueue_timed(struct perf_rank *r, void *context)
{
	struct timed *t = context;
	unsigned int flags = t->whole ? cudaEventRecordExternal : cudaEventRecordDefault;

	for (int op = perf_first_op(&r->perf->opt); op < PERF_OPS; op++) {
		uint64_t start;

		PERF_NCCL(r, perf_align(r));
		mark(r, t->event[2 * op], flags);
		start = perf_now_ns();
		if (t->single[op]) {
			PERF_CUDA(r, cudaGraphLaunch(t->single[op], r->stream));
		} else {
			PERF_NCCL(r, enqueue_op(r, &op));
		}
		t->host[op] = (float)(perf_now_ns() - start) / 1000;
		mark(r, t->event[2 * op + 1], flags);
	}
	return ncclSuccess;
}

static void capture_timed(struct perf_rank *r, struct timed *t)
{
	t->whole = have_event_nodes(r);
	if (t->whole) {
		t->graph = perf_capture(r, enqueue_timed, t);
		return;
	}
	for (int op = perf_first_op(&r->perf->opt); op < PERF_OPS; op++) {
		t->single[op] = perf_capture(r, enqueue_op, &op);
	}
}

static void run_timed(struct perf_rank *r, struct timed *t)
{
	atomic_int open;

	if (t->graph) {
		uint64_t start = perf_now_ns();

		PERF_CUDA(r, cudaGraphLaunch(t->graph, r->stream));
		for (int op = 0; op < PERF_OPS; op++) { /* one launch for all */
			t->host[op] = NAN;
		}
		t->host[perf_first_op(&r->perf->opt)] = (float)(perf_now_ns() - start) / 1000;
	} else {
		close_gate(r, &open);
		PERF_NCCL(r, enqueue_timed(r, t));
		atomic_store_explicit(&open, 1, memory_order_release);
	}
	PERF_CUDA(r, cudaStreamSynchronize(r->stream));
}

static void free_timed(struct perf_rank *r, struct timed *t)
{
	if (t->graph) {
		PERF_CUDA(r, cudaGraphExecDestroy(t->graph));
	}
	for (int op = 0; op < PERF_OPS; op++) {
		if (t->single[op]) {
			PERF_CUDA(r, cudaGraphExecDestroy(t->single[op]));
		}
	}
	for (int i = 0; i < 2 * PERF_OPS; i++) {
		PERF_CUDA(r, cudaEventDestroy(t->event[i]));
	}
}

void perf_time_drained(struct perf_rank *r, struct perf_times *times)
{
	const struct perf_options *opt = &r->perf->opt;
	struct timed t = { .graph = NULL };

	for (int i = 0; i < 2 * PERF_OPS; i++) {
		PERF_CUDA(r, cudaEventCreate(&t.event[i]));
	}
	if (opt->graph) {
		capture_timed(r, &t);
	}
	/* the first is not counted: a graph is uploaded at its first launch */
	for (uint32_t i = 0; i <= opt->iters; i++) {
		perf_phase(r, "timing single operations");
		run_timed(r, &t);
		for (int op = perf_first_op(opt); i > 0 && op < PERF_OPS; op++) {
			float *time = &times->gpu[op][i - 1];

			PERF_CUDA(r,
				  cudaEventElapsedTime(time, t.event[2 * op], t.event[2 * op + 1]));
			*time *= 1000;
			times->host[op][i - 1] = t.host[op];
		}
	}
	free_timed(r, &t);
}

static ncclResult_t enqueue_pair(struct perf_rank *r, void *context)
{
	const struct perf_options *opt = &r->perf->opt;
	ncclResult_t result = opt->graph && !opt->ht ? perf_update(r) : ncclSuccess;

	if (result == ncclSuccess) {
		result = perf_dispatch(r);
	}
	return result == ncclSuccess ? perf_combine(r) : result;
}

/* Microseconds per pair on this rank. */
static double run_chain(struct perf_rank *r, cudaGraphExec_t graph, uint32_t pairs)
{
	cudaEvent_t start, end;
	atomic_int open;
	float ms = 0;

	PERF_CUDA(r, cudaEventCreate(&start));
	PERF_CUDA(r, cudaEventCreate(&end));
	perf_barrier(r);
	close_gate(r, &open);
	PERF_NCCL(r, perf_align(r));
	PERF_CUDA(r, cudaEventRecord(start, r->stream));
	for (uint32_t i = 0; i < pairs; i++) {
		if (graph) {
			PERF_CUDA(r, cudaGraphLaunch(graph, r->stream));
		} else {
			PERF_NCCL(r, enqueue_pair(r, NULL));
		}
		if (i == GATE_DEPTH / 4) {
			atomic_store_explicit(&open, 1, memory_order_release);
		}
	}
	PERF_CUDA(r, cudaEventRecord(end, r->stream));
	atomic_store_explicit(&open, 1, memory_order_release);
	PERF_CUDA(r, cudaStreamSynchronize(r->stream));
	PERF_CUDA(r, cudaEventElapsedTime(&ms, start, end));
	PERF_CUDA(r, cudaEventDestroy(start));
	PERF_CUDA(r, cudaEventDestroy(end));
	return (double)ms * 1000 / pairs;
}

double perf_time_chain(struct perf_rank *r)
{
	const struct perf_options *opt = &r->perf->opt;
	uint32_t pairs = opt->graph ? opt->graph : opt->iters;
	cudaGraphExec_t graph = opt->graph ? perf_capture(r, enqueue_pair, NULL) : NULL;
	float *periods = perf_alloc(r, opt->chains, sizeof(*periods));
	double all[ORACLE_MAX_RANKS];
	double median;

	perf_phase(r, "warming up");
	run_chain(r, graph, opt->warmup ? opt->warmup : 1);
	for (uint32_t i = 0; i < opt->chains; i++) {
		double period;
		double slowest = 0;

		perf_phase(r, "timing the chain");
		period = run_chain(r, graph, pairs);
		perf_gather(r, &period, sizeof(period), all);
		for (uint32_t n = 0; n < r->perf->world.nranks; n++) {
			slowest = all[n] > slowest ? all[n] : slowest;
		}
		periods[i] = (float)slowest;
	}
	if (graph) {
		PERF_CUDA(r, cudaGraphExecDestroy(graph));
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
	uint32_t index = (uint32_t)ceil(percent / 100 * count);

	for (uint32_t i = 0; i < count; i++) {
		if (isnan(values[i])) {
			return NAN;
		}
	}
	qsort(values, count, sizeof(*values), compare);
	return count ? (double)values[index ? index - 1 : 0] : NAN;
}
