/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclEpComplete on another stream than the send half's, with nothing of the caller's between the
 * two: the receive half comes after the send half, and what follows on either stream after both.
 */
#include <unistd.h>
#include "support/tape.h"

#define HELD_US 100000
#define STEPS 3

struct pair {
	struct bench b;
	struct tape t;
	cudaStream_t sends, receives;
};

static void sleep_us(void *us)
{
	usleep((useconds_t)(uintptr_t)us);
}

/* What comes next on the stream is late. */
static void hold(cudaStream_t stream)
{
	NEED_CUDA(cudaLaunchHostFunc(stream, sleep_us, (void *)(uintptr_t)HELD_US));
}

static void finish(struct pair *p, uint32_t step)
{
	NEED_CUDA(cudaStreamSynchronize(p->sends));
	NEED_CUDA(cudaStreamSynchronize(p->receives));
	tape_check(&p->t, step, true, true);
}

/* Eager; `held` is the stream that is late. Inputs and outputs move on `sends` alone. */
static void eager(struct pair *p, uint32_t step, cudaStream_t held)
{
	hold(held);
	tape_load(&p->t, step, p->sends);
	NEED_OK(bench_update(&p->b, p->sends));
	NEED_OK(bench_send_dispatch(&p->b, p->sends));
	NEED_OK(ncclEpComplete(p->b.handle, NULL, p->receives));
	hold(held);
	NEED_OK(bench_send_combine(&p->b, p->sends));
	NEED_OK(ncclEpComplete(p->b.handle, NULL, p->receives));
	tape_save(&p->t, step, p->sends);
	finish(p, step);
}

/* Complete takes its stream into the capture, and leads it back. */
static void captured(struct pair *p)
{
	cudaGraphExec_t exec;

	NEED_OK(bench_update(&p->b, p->sends));
	world_capture(p->sends);
	NEED_OK(bench_send_dispatch(&p->b, p->sends));
	NEED_OK(ncclEpComplete(p->b.handle, NULL, p->receives));
	NEED_OK(bench_send_combine(&p->b, p->sends));
	NEED_OK(ncclEpComplete(p->b.handle, NULL, p->receives));
	exec = world_captured(p->sends);
	for (uint32_t step = 0; step < STEPS; step++) {
		tape_load(&p->t, step, p->sends);
		NEED_CUDA(cudaGraphLaunch(exec, p->sends));
		tape_save(&p->t, step, p->sends);
		finish(p, step);
	}
	NEED_CUDA(cudaGraphExecDestroy(exec));
}

/* One half in a graph, the other not: no event can order them, and the capture does not suffer. */
static void apart(struct pair *p, bool send_in_graph)
{
	cudaStream_t graphs = send_in_graph ? p->sends : p->receives;
	cudaGraphExec_t exec;

	tape_load(&p->t, 0, p->sends);
	NEED_OK(bench_update(&p->b, p->sends));
	if (send_in_graph) {
		world_capture(graphs);
		NEED_OK(bench_send_dispatch(&p->b, p->sends));
		exec = world_captured(graphs);
		NEED_CUDA(cudaGraphLaunch(exec, p->sends));
		NEED_CUDA(cudaStreamSynchronize(p->sends)); /* the caller's order */
		NEED_OK(ncclEpComplete(p->b.handle, NULL, p->receives));
	} else {
		NEED_OK(bench_send_dispatch(&p->b, p->sends));
		world_capture(graphs);
		NEED_OK(ncclEpComplete(p->b.handle, NULL, p->receives));
		exec = world_captured(graphs);
		NEED_CUDA(cudaGraphLaunch(exec, p->sends));
	}
	NEED_CUDA(cudaStreamSynchronize(p->receives));
	NEED_OK(bench_combine(&p->b, p->sends));
	tape_save(&p->t, 0, p->sends);
	finish(p, 0);
	NEED_CUDA(cudaGraphExecDestroy(exec));
}

/* The sending stream is in a capture by now that the send half is not in: nor is the other half. */
static void unrelated(struct pair *p)
{
	cudaGraphExec_t exec;

	tape_load(&p->t, 0, p->sends);
	NEED_OK(bench_update(&p->b, p->sends));
	NEED_SYNC(bench_send_dispatch(&p->b, p->sends), p->sends);
	world_capture(p->sends);
	NEED_OK(ncclEpComplete(p->b.handle, NULL, p->receives));
	exec = world_captured(p->sends); /* and nobody launches it */
	NEED_CUDA(cudaStreamSynchronize(p->receives));
	NEED_OK(bench_combine(&p->b, p->sends));
	tape_save(&p->t, 0, p->sends);
	finish(p, 0);
	NEED_CUDA(cudaGraphExecDestroy(exec));
}

/*
 * The send half is in a graph. Its stream is in another capture by now, or the other half's is, or
 * both are: the other half joins neither.
 */
static void in_another(struct pair *p, bool sends, bool receives)
{
	cudaGraphExec_t one = NULL, two, three;

	tape_load(&p->t, 0, p->sends);
	NEED_SYNC(bench_update(&p->b, p->sends), p->sends); /* the caller's order, as below */
	world_capture(p->sends);
	NEED_OK(bench_send_dispatch(&p->b, p->sends));
	if (sends) {
		one = world_captured(p->sends);
		world_capture(p->sends);
	}
	if (receives) {
		world_capture(p->receives);
	} else {
		NEED_CUDA(cudaGraphLaunch(one, p->receives));
	}
	NEED_OK(ncclEpComplete(p->b.handle, NULL, p->receives));
	three = receives ? world_captured(p->receives) : NULL;
	two = world_captured(p->sends);
	NEED_CUDA(receives ? cudaGraphLaunch(sends ? one : two, p->receives) : cudaSuccess);
	NEED_CUDA(receives ? cudaGraphLaunch(three, p->receives) : cudaSuccess);
	NEED_CUDA(cudaStreamSynchronize(p->receives));
	NEED_OK(bench_combine(&p->b, p->sends));
	tape_save(&p->t, 0, p->sends);
	finish(p, 0);
	NEED_CUDA(sends ? cudaGraphExecDestroy(one) : cudaSuccess);
	NEED_CUDA(receives ? cudaGraphExecDestroy(three) : cudaSuccess);
	NEED_CUDA(cudaGraphExecDestroy(two));
}

/* The caller destroys the stream of the send half, which is late, before he completes it. */
static void gone(struct pair *p)
{
	cudaStream_t stream;

	for (uint32_t combine = 0; combine < 2; combine++) {
		NEED_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
		tape_load(&p->t, combine, stream);
		NEED_OK(bench_update(&p->b, stream));
		if (combine) {
			NEED_OK(bench_dispatch(&p->b, stream));
		}
		hold(stream);
		NEED_OK(combine ? bench_send_combine(&p->b, stream)
				: bench_send_dispatch(&p->b, stream));
		NEED_CUDA(cudaStreamDestroy(stream));
		NEED_OK(ncclEpComplete(p->b.handle, NULL, p->receives));
		if (!combine) {
			NEED_OK(bench_combine(&p->b, p->receives));
		}
		tape_save(&p->t, combine, p->receives);
		finish(p, combine);
	}
}

static void run(struct world *w, void *arg)
{
	struct oracle_problem problem = bench_problem(w->nranks, 6, 3, 64, 9, ORACLE_EXPERT_MAJOR);
	struct pair *p = calloc(1, sizeof(*p));
	cudaStream_t stream[3] = { w->stream, NULL, NULL }; /* the last: the legacy stream */
	ncclEpGroup_t group = bench_group_bounded(w->comm, &problem, 0, 2000);

	NEED(p);
	NEED_CUDA(cudaStreamCreateWithFlags(&stream[1], cudaStreamNonBlocking));
	bench_open(&p->b, w, group, &problem, 0);
	tape_open(&p->t, &p->b, STEPS, 1);
	for (uint32_t i = 0; i < 9; i++) {
		p->sends = stream[i / 3];
		p->receives = stream[i % 3];
		check_context("sent on stream %u, received on %u", i / 3, i % 3);
		eager(p, i % STEPS, p->sends);
		eager(p, i % STEPS, p->receives);
	}
	p->sends = stream[0];
	p->receives = stream[1];
	check_context("captured");
	captured(p);
	check_context("a stream that was in a capture");
	eager(p, 0, p->sends);
	for (int send_in_graph = 0; send_in_graph <= 1; send_in_graph++) {
		check_context("only the %s half captured", send_in_graph ? "send" : "receive");
		apart(p, send_in_graph);
	}
	check_context("an unrelated capture");
	unrelated(p);
	for (int way = 1; way < 4; way++) {
		check_context("captures of %s", way == 1   ? "the send half's stream"
						: way == 2 ? "the other stream"
							   : "both streams");
		in_another(p, way & 1, way & 2);
	}
	check_context("the sending stream is gone");
	gone(p);
	check_context("captured, and completed on the legacy stream");
	p->receives = NULL;
	captured(p);
	CHECK_LAST(group, ncclSuccess, "");
	tape_close(&p->t);
	bench_close(&p->b);
	free(p);
	OK(ncclEpGroupDestroy(group));
	NEED_CUDA(cudaStreamDestroy(stream[1]));
}

int main(void)
{
	world_run(world_size(2), run, NULL);
	return check_end();
}
