// SPDX-License-Identifier: Apache-2.0
/*
 * A send_only operation that is captured into a graph which never runs: Complete after it must end
 * in an error that says so, not in an access to a bank that nobody chose, and all can be destroyed.
 */
#include "support/bench.h"

static void run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group(w, &p, 0);
	cudaGraph_t graph = NULL;
	struct bench b;

	bench_open(&b, w, group, &p, BENCH_PENDING);
	OK(bench_update(&b, w->stream));
	NEED(cudaStreamBeginCapture(w->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
	OK(bench_send_dispatch(&b, w->stream));
	NEED(cudaStreamEndCapture(w->stream, &graph) == cudaSuccess);
	NEED(cudaGraphDestroy(graph) == cudaSuccess);

	OK(ncclEpComplete(b.handle, NULL, w->stream));
	CHECK(cudaStreamSynchronize(w->stream) == cudaSuccess);
	CHECK_REASON(bench_dispatch(&b, w->stream), ncclInvalidUsage, "send_only");
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));

	/* the GPU and the communicator are as good as before */
	group = bench_group(w, &p, 0);
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

int main(void)
{
	world_run(world_size(2), run, NULL);
	return check_end();
}
