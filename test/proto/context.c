/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads beside the one that uses the group: they ask for its errors without a CUDA context of
 * their own, and without waiting for a call that takes long.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include "support/bench.h"
#include "support/victim.h"

#define RANKS 2
#define TIMEOUT_MS 12000.0

typedef CUresult (*get_state_fn)(CUdevice device, unsigned int *flags, int *active);

struct look {
	pthread_t thread;
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	int want;
	atomic_bool over;
	uint64_t looks;
	double longest;
};

static void expect_no_context_but(int own)
{
	get_state_fn get_state = NULL;
	int count = 0;

	NEED_CUDA(cudaGetDriverEntryPointByVersion(
		"cuDevicePrimaryCtxGetState", (void **)&get_state, 12000, cudaEnableDefault, NULL));
	NEED_CUDA(cudaGetDeviceCount(&count));
	NEED(get_state && count > own);
	for (int d = 0; d < count; d++) {
		unsigned int flags;
		int active = -1;

		NEED(get_state(d, &flags, &active) == CUDA_SUCCESS);
		CHECK(active == (d == own), "device %d: context %d", d, active);
	}
}

/* All calls of the host alone. Its device is 0, which is another one's. */
static void *host_calls(void *arg)
{
	struct look *l = arg;
	const char *text = NULL;
	int error = -1;
	size_t bytes;

	OK(ncclEpGetAsyncError(l->group, &error));
	CHECK_INT(error, l->want);
	OK(ncclEpExtGetLastError(l->group, NULL, &text));
	OK(ncclEpHandleMemSize(l->group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, 3));
	OK(ncclEpErrorClear(l->group));
	if (l->handle) {
		OK(ncclEpHandleDestroy(l->handle));
	}
	return NULL;
}

static void in_thread(struct look *l)
{
	NEED(pthread_create(&l->thread, NULL, host_calls, l) == 0);
	NEED(pthread_join(l->thread, NULL) == 0);
}

/* A process of its own per rank, which has seen no device but the rank's. */
static void contexts(struct world *w, ncclEpGroup_t group, struct bench *b)
{
	struct look l = { .group = group };

	check_context("contexts");
	expect_no_context_but(w->device);
	NEED_OK(ncclEpInitHandle(&l.handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 3, NULL));
	in_thread(&l);
	expect_no_context_but(w->device);
	/* also when there is something to tell, with masks and for good */
	if (w->rank == 1) {
		l.handle = NULL;
		l.want = 1;
		OK(bench_update(b, w->stream));
		OK_SYNC(bench_dispatch(b, w->stream), w->stream);
		in_thread(&l);
		expect_no_context_but(w->device);
		CHECK_INT(bench_masked(w, group), 1);
	}
	world_meet(w);
}

/* A group without masks fails for good. */
static void fatal(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 64, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, 0, TIMEOUT_MS);
	ncclResult_t result = ncclSuccess;
	const char *text = "";
	struct bench b;

	check_context("fatal");
	bench_open(&b, w, group, &p, 0);
	if (w->rank == 1) {
		OK(bench_update(&b, w->stream));
		OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
		OK(ncclEpExtGetLastError(group, &result, &text));
		CHECK_INT(result, ncclRemoteError);
		CHECK_HAS(text, "not started yet by rank 0");
		expect_no_context_but(w->device);
	}
	world_meet(w);
	bench_end(&b);
}

static void *look_on(void *arg)
{
	struct look *l = arg;

	while (!atomic_load(&l->over)) {
		double start = world_now();
		int error = -1;

		OK(ncclEpGetAsyncError(l->group, &error));
		start = world_now() - start;
		l->longest = start > l->longest ? start : l->longest;
		l->looks++;
		usleep(1000);
	}
	return NULL;
}

/* While a call takes long, because a rank does not come or comes late. */
static void beside(struct world *w, ncclEpGroup_t group)
{
	struct look l = { .group = group };
	ncclEpHandle_t handle;

	check_context("beside a call that takes long");
	world_meet(w);
	NEED(pthread_create(&l.thread, NULL, look_on, &l) == 0);
	if (w->rank == 0) {
		OK(ncclEpMaskClean(group, w->stream));
	}
	world_meet(w);
	usleep(w->rank == 1 ? 800000 : 0);
	NEED_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 11, NULL));
	OK(ncclEpHandleDestroy(handle));
	atomic_store(&l.over, true);
	NEED(pthread_join(l.thread, NULL) == 0);
	CHECK(l.looks > 10 && l.longest < 3, "%llu looks, %.2f s", (unsigned long long)l.looks,
	      l.longest);
}

static void run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 64, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, BENCH_MASK);
	ncclEpGroup_t group;
	struct bench b;

	config.num_topk = 0;
	config.timeout_ns = (uint64_t)(TIMEOUT_MS * 1e6);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, BENCH_MASK);
	if (w->processes) {
		contexts(w, group, &b);
		fatal(w);
	}
	beside(w, group);
	bench_end(&b);
}

int main(void)
{
	world_run(world_size(RANKS), run, NULL);
	return check_end();
}
