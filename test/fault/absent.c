/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that dies while a group is made, after the ranks have met, or before its heap grows: the
 * others say which one it was.
 *
 *     absent creation|growth
 */
#include <unistd.h>
#include "support/bench.h"

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

int main(int argc, char **argv)
{
	bool at_growth = argc == 2 && !strcmp(argv[1], "growth");

	NEED(world_launched()); /* one of the processes ends */
	world_run(world_size(4), run, &at_growth);
	return check_end();
}
