/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last rank resets its device (cudaDeviceReset) while it has groups and handles. Its own calls
 * say so and end at once, the others' name the rank that is lost, and all have a new group.
 *
 *     reset [mask]
 *
 * VC_RESET_STRICT ends a process that uses what the reset has ended.
 */
#include <cuda.h>
#include <pthread.h>

#include "support/bench.h"
#include "support/self.h"
#include "support/victim.h"
#include "ep/ll/ll.h"

#define SOON 16.0 /* seconds */

static const char reset[] = "was reset (cudaDeviceReset) since the group was made";

/* Of a rank: what it has when the device is reset. */
static struct {
	ncclEpGroup_t left;    /* destroyed before that on one rank only */
	ncclEpGroup_t spare;   /* destroyed without another call */
	struct bench used;     /* its handle has been used, */
	struct bench pending;  /* and this one has sent a dispatch */
	ncclEpHandle_t orphan; /* outlives its group */
	int mappings;          /* before any of these */
} had;

/*
 * Names memory that this process has mapped by the driver's handles: no reset ends such mappings.
 */
static const char shared[] = "vcluster-gpu";
static CUresult (*get_state)(CUdevice device, unsigned int *flags, int *active);

static bool has_context(const struct world *w)
{
	unsigned int flags;
	int active = -1;

	NEED(get_state(w->device, &flags, &active) == CUDA_SUCCESS);
	return active;
}

/* A block of dispatch takes more shared memory than a kernel may use at first. */
static struct oracle_problem problem(const struct world *w)
{
	return bench_problem(w->nranks, 600u * (uint32_t)w->nranks, 4, 64, 40, ORACLE_EXPERT_MAJOR);
}

static void make(struct world *w, uint32_t flags, double timeout_ms)
{
	struct oracle_problem p = problem(w);
	ncclEpGroup_t group;

	had.mappings = self_maps(shared);
	had.left = bench_group_bounded(w->comm, &p, flags, timeout_ms);
	had.spare = bench_group_bounded(w->comm, &p, flags, timeout_ms);
	group = bench_group_bounded(w->comm, &p, flags, timeout_ms);
	bench_open(&had.used, w, group, &p, flags);
	bench_open(&had.pending, w, group, &p, flags);
	NEED_OK(ncclEpInitHandle(&had.orphan, had.spare, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 3,
				 NULL));
	bench_pair(&had.used);
	OK(bench_update(&had.pending, w->stream));
	OK_SYNC(bench_send_dispatch(&had.pending, w->stream), w->stream);
	CHECK(had.pending.handle->ll->plan.shared_bytes > 48 * 1024);
	world_meet(w);
}

/* The first one to find out, on another device than the group's. */
static void *ask_elsewhere(void *group)
{
	ncclResult_t code = ncclSuccess;
	const char *text = "";

	OK(ncclEpExtGetLastError(group, &code, &text));
	CHECK_INT(code, ncclInvalidUsage);
	CHECK_HAS(text, reset);
	return NULL;
}

#define REFUSED(call) CHECK_REASON(call, ncclInvalidUsage, reset)

static void group_calls(struct world *w, ncclEpGroup_t group, uint32_t flags)
{
	ncclEpExtPeerStats_t stats[8] = { NCCL_EP_EXT_PEER_STATS_INIT };
	const struct bench *b = &had.used;
	ncclEpHandle_t handle = NULL;
	int mask[8] = { 1, 1, 1, 1, 1, 1, 1, 1 }, error = -1;
	size_t bytes;

	REFUSED(ncclEpHandleMemSize(group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, 4));
	REFUSED(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 4, NULL));
	REFUSED(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 11, NULL));
	REFUSED(ncclEpCreateHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &b->ids.t, NULL,
				   NULL, NULL));
	REFUSED(ncclEpMaskQuery(group, mask, NULL));
	REFUSED(ncclEpMaskUpdate(group, mask, NULL));
	REFUSED(ncclEpMaskClean(group, NULL));
	REFUSED(ncclEpErrorClear(group));
	REFUSED(ncclEpExtPeerStats(group, stats, w->nranks, NULL));
	if (flags & BENCH_MASK) {
		OK(ncclEpGetAsyncError(group, &error));
		CHECK_INT(error, 1);
	}
}

static void handle_calls(struct world *w, struct bench *b)
{
	uint64_t tokens, rows;

	REFUSED(bench_update(b, NULL));
	REFUSED(bench_dispatch(b, NULL));
	REFUSED(bench_combine(b, NULL));
	REFUSED(ncclEpComplete(b->handle, NULL, NULL));
	REFUSED(ncclEpExtNumRecvTokens(b->handle, &tokens, &rows, NULL));
	OK(ncclEpHandleDestroy(b->handle));
	CHECK_RESULT(bench_update(b, NULL), ncclInvalidArgument);
}

static void *destroy_elsewhere(void *group)
{
	OK(ncclEpGroupDestroy(group));
	return NULL;
}

static void in_thread(void *(*fn)(void *), ncclEpGroup_t group)
{
	pthread_t thread;

	NEED(!pthread_create(&thread, NULL, fn, group));
	NEED(!pthread_join(thread, NULL));
}

static void reset_device(struct world *w, uint32_t flags)
{
	bool again = flags & BENCH_MASK;          /* the program uses the device again at once */
	bool of_nccl = !getenv("NCCL_EP_MEMORY"); /* memory that NCCL makes a context to free */
	ncclEpGroup_t group = had.used.group;
	double start = world_now();

	check_context("the rank that resets");
	OK(ncclEpGroupDestroy(had.left));
	NEED_CUDA(cudaDeviceReset());
	NEED_CUDA(again ? cudaFree(NULL) : cudaSuccess);
	in_thread(ask_elsewhere, group);
	group_calls(w, group, flags);
	handle_calls(w, &had.used);
	handle_calls(w, &had.pending);
	CHECK_INT(has_context(w), again); /* none of these calls has made one */
	OK(ncclEpGroupDestroy(group));
	in_thread(destroy_elsewhere, had.spare);
	CHECK_REASON(ncclEpComplete(had.orphan, NULL, NULL), ncclInvalidUsage, "was destroyed");
	OK(ncclEpHandleDestroy(had.orphan));
	CHECK(world_now() - start < SOON, "%.1f s", world_now() - start);
	CHECK_INT(has_context(w), again || of_nccl);
	CHECK_INT(self_maps(shared), had.mappings);
	NEED_CUDA(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
}

/* Another rank: it loses the one that has reset its device. */
static void lose(struct world *w, uint32_t flags)
{
	int last = w->nranks - 1;
	ncclResult_t result;
	const char *text = "";
	double seconds = 0;

	check_context("a rank that loses another");
	OK(ncclEpComplete(had.pending.handle, NULL, w->stream)); /* it was sent before */
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	bench_expert_work(&had.used);
	result = victim_pair(&had.used, false, &seconds);
	if (flags & BENCH_MASK) {
		CHECK_INT(bench_masked(w, had.used.group), 1 << last);
	} else {
		CHECK_INT(result, ncclRemoteError);
		OK(ncclEpExtGetLastError(had.used.group, NULL, &text));
		CHECK(victim_named(text, last), "%s", text);
	}
	NEED_CUDA(cudaDeviceSynchronize());
	bench_close(&had.used);
	bench_close(&had.pending);
	OK(ncclEpHandleDestroy(had.orphan));
	OK(ncclEpGroupDestroy(had.used.group));
	OK(ncclEpGroupDestroy(had.spare));
	OK(ncclEpGroupDestroy(had.left));
}

static void run(struct world *w, void *arg)
{
	uint32_t flags = *(const uint32_t *)arg;
	double timeout_ms = 8000;
	struct oracle_problem p = problem(w);
	ncclComm_t first = w->comm;

	NEED_CUDA(cudaGetDriverEntryPointByVersion(
		"cuDevicePrimaryCtxGetState", (void **)&get_state, 12000, cudaEnableDefault, NULL));
	NEED(get_state);
	make(w, flags, timeout_ms);
	if (w->rank == w->nranks - 1) {
		reset_device(w, flags);
	}
	world_meet(w);
	if (w->rank != w->nranks - 1) {
		lose(w, flags);
	}
	world_meet(w);
	w->comm = world_comm(w, (UINT64_C(1) << w->nranks) - 1);
	victim_new_group(w, &p, timeout_ms);
	world_meet(w);
	(void)ncclCommDestroy(first);
}

int main(int argc, char **argv)
{
	uint32_t flags = argc > 1 && !strcmp(argv[1], "mask") ? BENCH_MASK : 0;

	world_run(world_size(4), run, &flags);
	return check_end();
}
