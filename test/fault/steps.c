/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group is made, and one call of the driver or of NCCL fails on one rank: all ranks have a group,
 * by the next mapping, or none has. Nothing of the attempt stays behind.
 *
 *     steps maps      each call by which a rank maps its peers' memory
 *     steps exchange  each exchange of the ranks: it has begun on the others, who wait for this
 *                     rank
 *     steps growth    the same when the group's buffer grows: the group has failed for all ranks
 */
#include <unistd.h>

#include "ep/ep.h"
#include "peer/peer.h"
#include "support/bench.h"
#include "support/victim.h"
#include "support/watch.h"

#define ODD 1 /* the rank */
#define MOST 40

static struct oracle_problem problem(const struct world *w)
{
	return bench_problem(w->nranks, 2 * (uint32_t)w->nranks, 2, 256, 6, ORACLE_EXPERT_MAJOR);
}

/* Whether a call has failed on the odd rank; all hear it. */
static bool say(struct world *w, uint64_t failed)
{
	static int turn;

	world_raise(w, ++turn, 1 + (int)failed);
	watch_start();
	world_meet(w);
	return world_look(w, turn, ODD) == 2;
}

/* Creation with the n-th call of a kind failing on the odd rank. *failed: it has come to that. */
static ncclResult_t make(struct world *w, ncclComm_t comm, enum watch_call call, uint64_t n,
			 ncclEpGroup_t *group, bool *failed)
{
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclResult_t result;

	*group = NULL;
	watch_start();
	watch.fail_at[call] = w->rank == ODD ? n : 0;
	result = ncclEpCreateGroup(group, comm, &config);
	*failed = say(w, watch.failed);
	return result;
}

static void works(struct world *w, ncclEpGroup_t group)
{
	struct oracle_problem p = problem(w);
	struct bench b;

	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	bench_close(&b);
}

static void settle(long live)
{
	for (int i = 0; i < 5000 && watch_live() != live; i++) {
		usleep(1000);
	}
	NEED(watch_live() == live); /* or every later one would wait as long */
}

static void map_fails(struct world *w, enum watch_call call, bool forced)
{
	bool failed = true;

	setenv("NCCL_EP_MEMORY", forced ? "window" : "auto", 1);
	for (uint64_t n = 1; failed; n++) {
		long live = watch_live();
		ncclEpGroup_t group;
		ncclResult_t result;

		NEED(n < MOST);
		check_context("rank %d, %s %d fails, %s", w->rank, watch_name(call), (int)n,
			      getenv("NCCL_EP_MEMORY"));
		result = make(w, w->comm, call, n, &group, &failed);
		CHECK(failed || n == (uint64_t)w->nranks); /* one call for each peer */
		if (failed && forced) {
			CHECK_LAST(NULL, w->rank == ODD ? ncclUnhandledCudaError : ncclRemoteError,
				   watch_name(call));
			CHECK(result != ncclSuccess && !group);
		} else {
			NEED_OK(result);
			CHECK_TEXT(group->memory.mapping->name,
				   failed ? "CUDA IPC" : "NCCL windows");
			works(w, group);
			OK(ncclEpGroupDestroy(group));
		}
		world_meet(w);
		settle(live);
		world_meet(w);
	}
}

/* What a failed exchange is for the rank where it failed and for those that waited. */
static void expect_apart(const struct world *w, ncclResult_t result)
{
	CHECK_INT(result, w->rank == ODD ? ncclSystemError : ncclRemoteError);
	CHECK_LAST(NULL, result, w->rank == ODD ? "ncclAllGather" : "ranks arrived within");
}

static void growth_fails(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 48, 2, 256, 20, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	bool failed = true;

	config.num_topk = 0;
	for (uint64_t n = 1; failed; n++) {
		struct world own = *w;
		ncclEpHandle_t handle = NULL;
		ncclEpGroup_t group = NULL;
		ncclResult_t result;
		struct bench b;

		NEED(n < MOST);
		check_context("rank %d, exchange %d of the growth fails", w->rank, (int)n);
		own.comm = world_comm(w, (UINT64_C(1) << w->nranks) - 1);
		NEED_OK(ncclEpCreateGroup(&group, own.comm, &config));
		bench_open(&b, &own, group, &p, 0);
		bench_pair(&b);
		watch_start();
		watch.fail_at[WATCH_GATHER] = w->rank == ODD ? n : 0;
		result = ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 32,
					  NULL);
		failed = say(w, watch.failed);
		if (failed) {
			expect_apart(w, result);
			CHECK(!handle);
			CHECK(bench_update(&b, w->stream) != ncclSuccess);
			OK(ncclCommAbort(own.comm));
		} else {
			NEED_OK(result);
			bench_pair(&b);
			OK(ncclEpHandleDestroy(handle));
		}
		world_meet(w);
		bench_end(&b);
		CHECK(failed || n > 2);
	}
}

static void exchange_fails(struct world *w)
{
	bool failed = true,
	     ipc = getenv("NCCL_EP_MEMORY") && !strcmp(getenv("NCCL_EP_MEMORY"), "ipc");
	uint32_t kept = 0;

	for (uint64_t n = 1; failed; n++) {
		ncclComm_t comm = world_comm(w, (UINT64_C(1) << w->nranks) - 1);
		struct world own = *w;
		uint64_t before = watch_bytes();
		ncclEpGroup_t group;
		ncclResult_t result;

		NEED(n < MOST);
		check_context("rank %d, exchange %d fails", w->rank, (int)n);
		own.comm = comm;
		result = make(w, comm, WATCH_GATHER, n, &group, &failed);
		if (!failed) {
			NEED_OK(result);
			works(&own, group);
			OK(ncclEpGroupDestroy(group));
			OK(ncclCommDestroy(comm));
			CHECK(n > 3);
			break;
		}
		expect_apart(w, result);
		CHECK(!group);
		kept += watch_bytes() > before;
		OK(ncclCommAbort(comm));
		world_meet(w);
	}
	/*
	 * what peers may have mapped when they hear no more of this rank; across nodes also queues
	 * that a NIC of a busy machine did not end in time
	 */
	CHECK(w->rank != ODD || world_nodes() > 1 || kept == ipc, "%u", kept);
}

static void run(struct world *w, void *name)
{
	static const enum watch_call calls[] = { WATCH_RETAIN, WATCH_RESERVE, WATCH_MAP,
						 WATCH_ACCESS };

	if (!strcmp(name, "exchange")) {
		exchange_fails(w);
		return;
	}
	if (!strcmp(name, "growth")) {
		growth_fails(w);
		return;
	}
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		map_fails(w, calls[i], false);
		map_fails(w, calls[i], true);
	}
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	world_run(world_size(3), run, argv[1]);
	return check_end();
}
