/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that fails while queue pairs are connected, after all have told each other theirs: it ends
 * the call of every rank, in time, with its number and, if it lives, its reason.
 *
 *     connect refused|killed
 */
#include "support/victim.h"

#define VICTIM 1
#define WITHIN 20.0 /* seconds */

static bool killed;

static void run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 4, 2, 64, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclComm_t comm = world_comm(w, (1u << w->nranks) - 1);
	bool own = w->rank == VICTIM;
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
	world_meet_others(w, killed ? VICTIM : -1);
	OK(ncclCommAbort(comm));
}

int main(int argc, char **argv)
{
	killed = argc == 2 && !strcmp(argv[1], "killed");
	if (killed) {
		victim_start(VICTIM, true);
	}
	NEED(world_launched()); /* one of the processes may end */
	world_run(world_size(4), run, NULL);
	return check_end();
}
