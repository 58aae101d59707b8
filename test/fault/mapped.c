/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What maps a peer's memory is there as long as a kernel may need it, whoever goes first:
 *
 *     mapped abort     the communicator is aborted while kernels wait for a rank that is late
 *     mapped destroy   the communicator is destroyed between two pairs of a group
 *     mapped alone     a rank destroys its group at once: the others' kernels store to it, and time
 *                      out
 *     mapped absent    a rank registers its memory late: the others wait, and not for ever
 *     mapped endless  NCCL goes on registering for ever, and is not asked about it any more after
 *                     that
 *     mapped refused   a rank's driver refuses to map: all ranks take the next mapping, or none has
 *                      a group
 */
#include <unistd.h>

#include "support/bench.h"
#include "support/victim.h"
#include "ep/ep.h"
#include "peer/peer.h"

#define TIMEOUT_MS 16000.0
#define SOON 32.0 /* seconds */

static struct oracle_problem problem(const struct world *w)
{
	return bench_problem(w->nranks, 2 * (uint32_t)w->nranks, 2, 256, 6, ORACLE_EXPERT_MAJOR);
}

static uint64_t available(void)
{
	size_t bytes = 0, total = 0;

	NEED_CUDA(cudaMemGetInfo(&bytes, &total));
	return bytes;
}

static void settle(uint64_t want)
{
	double end = world_now() + SOON;

	while (available() != want && world_now() < end) {
		usleep(1000);
	}
	CHECK_INT(available(), want);
}

static void destroy(ncclEpGroup_t group)
{
	double start = world_now();

	OK(ncclEpGroupDestroy(group));
	CHECK(world_now() - start < SOON, "%.1f s", world_now() - start);
}

static void without_communicator(struct world *w, bool aborted)
{
	uint64_t before = available();
	ncclComm_t comm = world_comm_free(w, (UINT64_C(1) << w->nranks) - 1);
	struct oracle_problem p = problem(w);
	struct world own = *w;
	struct bench b;

	own.comm = comm;
	bench_open(&b, &own, bench_group(&own, &p, 0), &p, 0);
	bench_pair(&b);
	bench_load(&b, 7);
	bench_poison(&b);
	bench_expert_work(&b);
	OK_SYNC(bench_update(&b, w->stream), w->stream);
	world_meet(w);
	if (!aborted) {
		OK(ncclCommDestroy(comm));
		world_meet(w);
	}
	if (aborted && w->rank == w->nranks - 1) {
		usleep(200000);
		OK(ncclCommAbort(comm));
	}
	OK(bench_dispatch(&b, w->stream));
	if (aborted && w->rank != w->nranks - 1) {
		OK(ncclCommAbort(comm));
	}
	OK_SYNC(bench_combine(&b, w->stream), w->stream);
	CHECK_LAST(b.group, ncclSuccess, "");
	bench_check_dispatch(&b);
	bench_check_combine(&b);
	bench_pair_of(&b, 8);
	bench_close(&b);
	world_meet(w);
	destroy(b.group);
	world_meet(w);
	settle(before);
}

/* The first rank to leave does so before the others' kernels have begun. */
static void alone(struct world *w)
{
	struct oracle_problem p = problem(w);
	uint64_t before = available();
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, 0, TIMEOUT_MS);
	int last = w->nranks - 1;
	ncclResult_t result;
	const char *text = "";
	double seconds = 0;
	struct bench b;

	world_meet(w);
	if (w->rank == last) {
		bool lasting = !strcmp(group->memory.mapping->name, "NCCL windows");

		destroy(group);
		CHECK(!lasting || available() == before);
	}
	world_meet(w);
	if (w->rank != last) {
		bench_open(&b, w, group, &p, 0);
		bench_expert_work(&b);
		CHECK_INT(victim_pair(&b, false, &seconds), ncclRemoteError);
		OK(ncclEpExtGetLastError(group, &result, &text));
		CHECK(victim_named(text, last), "%s", text);
		NEED_CUDA(cudaDeviceSynchronize());
		bench_close(&b);
	}
	world_meet(w);
	if (w->rank != last) {
		destroy(group);
	}
	world_meet(w);
	/* its creation frees what had to wait for others */
	victim_new_group(w, &p, TIMEOUT_MS);
	world_meet(w);
	settle(before);
}

static void refused(struct world *w)
{
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	uint64_t before = available();
	ncclEpGroup_t group = NULL;
	struct bench b;

	if (w->rank == 1) {
		setenv("VC_NO_RETAIN", "1", 1);
	}
	group = bench_group(w, &p, 0);
	CHECK_TEXT(group->memory.mapping->name, "CUDA IPC");
	CHECK_HAS(group->memory.no_window.text, "NCCL windows failed");
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	bench_close(&b);
	destroy(group);
	world_meet(w);
	settle(before);
	group = NULL;
	setenv("NCCL_EP_MEMORY", "window", 1);
	CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &config),
		     w->rank == 1 ? ncclUnhandledCudaError : ncclRemoteError,
		     "cuMemRetainAllocationHandle returned CUDA error");
	CHECK(!group);
	settle(before);
}

/*
 * A communicator that blocks is kept while a thread waits in it: NCCL could not abort it. It may be
 * ended when rank 1 has come after all.
 */
static void absent(struct world *w)
{
	uint64_t before = available();
	ncclComm_t comm = world_comm(w, (UINT64_C(1) << w->nranks) - 1);
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group = NULL;
	double start;

	if (w->rank == 1) {
		setenv("VC_WINDOW_LATE_MS", "6000", 1);
	}
	world_meet(w);
	start = world_now();
	CHECK_REASON(ncclEpCreateGroup(&group, comm, &config), ncclRemoteError,
		     "waited 1500 ms for all ranks to register their memory with NCCL: NCCL's call "
		     "still waits in a thread: keep the communicator");
	CHECK(world_now() - start < SOON, "%.1f s", world_now() - start);
	CHECK(!group);
	world_meet(w);
	unsetenv("VC_WINDOW_LATE_MS");
	sleep(7); /* NCCL's calls end */
	world_meet(w);
	victim_new_group(w, &p, TIMEOUT_MS);
	CHECK(available() + (4 << 20) >=
	      before); /* NCCL may have used the group's memory: it stays */
	OK(ncclCommDestroy(comm));
}

/* A communicator that does not block. */
static void endless(struct world *w)
{
	ncclComm_t comm = world_comm_free(w, (UINT64_C(1) << w->nranks) - 1);
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group = NULL;

	setenv("VC_WINDOW_ENDLESS", "1", 1);
	CHECK_REASON(ncclEpCreateGroup(&group, comm, &config), ncclRemoteError,
		     "waited 1500 ms for all ranks to register their memory with NCCL: abort");
	CHECK(!group);
	world_meet(w);
	OK(ncclCommAbort(comm));
	usleep(100000); /* a question would end the process */
	unsetenv("VC_WINDOW_ENDLESS");
	world_meet(w);
	victim_new_group(w, &p, TIMEOUT_MS);
}

static void run(struct world *w, void *name)
{
	check_context("rank %d", w->rank);
	if (!strcmp(name, "alone")) {
		alone(w);
	} else if (!strcmp(name, "refused")) {
		refused(w);
	} else if (!strcmp(name, "absent")) {
		absent(w);
	} else if (!strcmp(name, "endless")) {
		endless(w);
	} else {
		without_communicator(w, !strcmp(name, "abort"));
	}
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "20000", 0);
	world_run(world_size(3), run, argv[1]);
	return check_end();
}
