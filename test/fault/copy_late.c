/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks disagree, and the copy that would explain it does not end: the call reports the
 * disagreement without the explanation, in bounded time. Later calls return at once, and the group
 * can be destroyed.
 */
#include "support/bench.h"

#define RANKS 2
#define NEVER_US "3600000000"
#define LIMIT_S 7.0

static void run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclResult_t code = ncclSuccess;
	const char *text = "";
	ncclEpGroup_t group;
	struct bench b;
	double start;

	p.dtype = w->rank ? ORACLE_FP16 : p.dtype;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, 0);
	OK(bench_update(&b, w->stream));
	OK(bench_dispatch(&b, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_meet(w);
	if (!w->rank) {
		setenv("VC_COPY_LATE_US", NEVER_US, 1);
	}
	world_meet(w);
	start = world_now();
	OK(ncclEpExtGetLastError(group, &code, &text));
	CHECK_INT(code, ncclRemoteError);
	CHECK_HAS(text, "what they pass to it differs");
	CHECK(world_now() - start <= LIMIT_S, "%.1f s", world_now() - start);
	start = world_now();
	CHECK_INT(bench_dispatch(&b, w->stream), ncclRemoteError);
	CHECK(world_now() - start <= 1, "%.1f s", world_now() - start);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

int main(void)
{
	world_run(world_size(RANKS), run, NULL);
	return check_end();
}
