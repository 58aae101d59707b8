/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that dies while a group is made, after the ranks have met, or before its heap grows: the
 * others say which one it was.
 *
 *     absent creation|growth
 */
#include <unistd.h>
#include "support/bench.h"
#include "support/victim.h"

#define VICTIM 2

static bool dies;

static cudaError_t fatal_alloc(void **ptr, size_t size, void *context)
{
	if (dies) {
		_exit(check_end());
	}
	return cudaMalloc(ptr, size);
}

static cudaError_t plain_free(void *ptr, void *context)
{
	return cudaFree(ptr);
}

static void run(struct world *w, void *at_growth)
{
	struct oracle_problem p = bench_problem(w->nranks, 48, 4, 64, 20, ORACLE_RANK_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclComm_t comm = world_comm(w, (1u << w->nranks) - 1);
	ncclEpHandle_t handle = NULL;
	ncclEpGroup_t group = NULL;
	double start;

	config.alloc.alloc_fn = fatal_alloc; /* is called when the ranks have met */
	config.alloc.free_fn = plain_free;
	dies = w->rank == VICTIM && !*(bool *)at_growth;
	start = world_now();
	if (*(bool *)at_growth) {
		NEED_OK(ncclEpCreateGroup(&group, comm, &config));
		world_meet(w);
		if (w->rank == VICTIM) {
			_exit(check_end());
		}
		start = world_now();
		CHECK_REASON(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32,
					      NULL),
			     ncclRemoteError, "(rank 2's process, pid ");
		CHECK(!handle);
	} else {
		CHECK_REASON(ncclEpCreateGroup(&group, comm, &config), ncclRemoteError,
			     "(rank 2's process, pid ");
		CHECK(!group);
	}
	CHECK(world_now() - start < 10);
	world_meet_others(w, VICTIM); /* until here no other process may be gone */
	OK(ncclCommAbort(comm));
	OK(ncclEpGroupDestroy(group));
}

static int main_absent(int argc, char **argv)
{
	bool at_growth = argc == 2 && !strcmp(argv[1], "growth");

	NEED(world_launched()); /* one of the processes ends */
	world_run(world_size(4), run, &at_growth);
	return check_end();
}

/*
 * A rank that fails while queue pairs are connected, after all have told each other theirs: it ends
 * the call of every rank, in time, with its number and, if it lives, its reason.
 *
 *     connect refused|killed
 */

#define CONNECT_VICTIM 1
#define WITHIN 20.0 /* seconds */

static bool killed;

static void connect_run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 4, 2, 64, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclComm_t comm = world_comm(w, (1u << w->nranks) - 1);
	bool own = w->rank == CONNECT_VICTIM;
	ncclEpGroup_t group = NULL;
	double start = world_now();

	(void)arg;
	/* the second time it is the NIC's own try that fails, before anything is exchanged */
	for (int again = 0; again < (killed ? 1 : 2); again++) {
		check_context("attempt %d", again);
		if (killed) {
			CHECK_REASON(ncclEpCreateGroup(&group, comm, &config), ncclRemoteError,
				     w->rank == 0 ? "(rank 1's process, pid " : "connecting queue");
		} else {
			CHECK_REASON(ncclEpCreateGroup(&group, comm, &config),
				     own ? ncclSystemError : ncclRemoteError, "INIT2RTR_QP");
			CHECK_LAST(NULL, own ? ncclSystemError : ncclRemoteError,
				   !own    ? "failed on rank 1: "
				   : again ? "RDMA mode gpu is not possible"
					   : "with rank ");
		}
		CHECK(!group);
	}
	CHECK(world_now() - start < WITHIN);
	world_meet_others(w, killed ? CONNECT_VICTIM : -1);
	OK(ncclCommAbort(comm));
}

static int main_connect(int argc, char **argv)
{
	killed = argc == 2 && !strcmp(argv[1], "killed");
	if (killed) {
		victim_start(CONNECT_VICTIM, true);
	}
	NEED(world_launched()); /* one of the processes may end */
	world_run(world_size(4), connect_run, NULL);
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "absent", main_absent },
		{ "connect", main_connect },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
