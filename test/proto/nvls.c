/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVLink multicast, emulated: who uses it, who decides, and how long NCCL's window stays.
 *
 *     nvls agree    processes of one host; one that cannot decides for all
 *     nvls leave    groups that end before and after their communicator and their peers
 */
#include <unistd.h>

#include "ep/ep.h"
#include "support/bench.h"

static size_t available(void)
{
	size_t bytes, total;

	NEED_CUDA(cudaMemGetInfo(&bytes, &total));
	return bytes;
}

static size_t settled(size_t expected)
{
	for (int i = 0; i < 5000 && available() != expected; i++) {
		usleep(1000);
	}
	return available();
}

static struct oracle_problem problem(const struct world *w)
{
	return bench_problem(w->nranks, 2 * (uint32_t)w->nranks, 2, 248, 9, ORACLE_EXPERT_MAJOR);
}

/* A group works; it uses multicast if `why` is "", else that is why not. */
static void works(struct world *w, const char *why)
{
	struct oracle_problem p = problem(w);
	size_t before;
	ncclEpGroup_t group;
	struct bench b;

	check_context("rank %d, %s", w->rank, why);
	world_meet(w);
	before = available();
	world_meet(w);
	group = bench_group(w, &p, 0);
	CHECK_INT(group->memory.multicast, !*why);
	CHECK((group->dev.multicast != NULL) == !*why);
	if (!strstr(group->memory.no_multicast.text, why)) {
		check_fail(__FILE__, __LINE__, "\"%s\" is not \"%s\"",
			   group->memory.no_multicast.text, why);
	}
	bench_open(&b, w, group, &p, 0);
	for (int i = 0; i < 4; i++) {
		bench_pair(&b);
	}
	bench_end(&b);
	world_meet(w);
	CHECK_INT(settled(before), before);
}

/* As works(), with an environment that is another on rank 1. */
static void one(struct world *w, const char *name, const char *value, const char *why)
{
	const char *old = getenv(name);
	char saved[32] = "";

	snprintf(saved, sizeof(saved), "%s", old ? old : "");
	if (w->rank == 1) {
		setenv(name, value, 1);
	}
	works(w, why);
	if (!old) {
		unsetenv(name);
	} else {
		setenv(name, saved, 1);
	}
}

static void agree(struct world *w)
{
	works(w, "");
	one(w, "NCCL_EP_NVLS", "0", "rank 1: NCCL_EP_NVLS is not 1");
	one(w, "VC_NVLS", "0", "rank 1: NCCL reports no multicast");
	one(w, "NCCL_EP_MEMORY", "ipc", "rank 1: no NCCL window");
	/* windows fail when multicast has been chosen */
	one(w, "VC_NO_RETAIN", "1", "memory by CUDA IPC");
	/* an address of NCCL's reaches all of a team */
	setenv("NCCL_EP_NODE_SIZE", "2", 1);
	works(w, "ranks 1 and 2 of one LSA team are two nodes");
	unsetenv("NCCL_EP_NODE_SIZE");
	/* NCCL fails with the address itself */
	one(w, "VC_NVLS_UNBOUND", "1", "rank 1: NCCL's multicast address: unhandled cuda error");
	/* the environment wins, whatever NCCL says: the stand-in ends a process that asks then */
	setenv("VC_NVLS_CLAIMED", "1", 1);
	one(w, "NCCL_NVLS_ENABLE", "0", "rank 1: NCCL_NVLS_ENABLE=0");
	one(w, "NCCL_NVLS_ENABLE", "0x0", "rank 1: NCCL_NVLS_ENABLE=0x0");
	/* NCCL claims it, and gives no address */
	setenv("VC_NVLS", "0", 1);
	works(w, "NCCL's multicast address: none");
	unsetenv("VC_NVLS_CLAIMED");
	setenv("VC_NVLS", "1", 1);
	works(w, "");
}

/* A larger heap takes the place of one that multicast reaches, and that one comes back. */
static void grown(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 48, 2, 256, 200, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	size_t before = available();
	ncclEpHandle_t handle = NULL;
	ncclEpGroup_t group;
	uint64_t bytes;
	struct bench b;

	check_context("rank %d, grown", w->rank);
	config.num_topk = 0;
	world_meet(w);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	bytes = group->peer_heap.bytes;
	NEED_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 32, NULL));
	CHECK(group->peer_heap.bytes > bytes && group->dev.multicast != NULL);
	bench_pair(&b);
	OK(ncclEpHandleDestroy(handle));
	bench_end(&b);
	world_meet(w);
	CHECK_INT(settled(before), before);
}

/* The communicator ends first: nobody calls it afterwards, and the memory comes back. */
static void orphan(struct world *w)
{
	struct oracle_problem p = problem(w);
	ncclComm_t comm = w->comm;
	ncclEpGroup_t group, next;
	struct bench b;
	size_t before;

	check_context("rank %d, orphan", w->rank);
	w->comm = world_comm(w, (1u << w->nranks) - 1);
	world_meet(w);
	before = available();
	world_meet(w);
	group = bench_group(w, &p, 0);
	CHECK(group->dev.multicast != NULL);
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	bench_close(&b);
	NEED_CUDA(cudaDeviceSynchronize());
	world_meet(w);
	OK(ncclCommDestroy(w->comm));
	/* something else may lie where the window was */
	w->comm = comm;
	next = bench_group(w, &p, 0);
	OK(ncclEpGroupDestroy(group));
	CHECK(!strstr(ncclGetLastError(NULL), "is not a communicator"));
	OK(ncclEpGroupDestroy(next));
	world_meet(w);
	CHECK_INT(settled(before), before);
}

/* Rank 1 leaves late: until then its peers' memory stays, and the next group gives it back. */
static void late(struct world *w)
{
	struct oracle_problem p = problem(w);
	size_t before = available();
	ncclEpGroup_t group;

	check_context("rank %d, late", w->rank);
	world_meet(w);
	group = bench_group(w, &p, 0);
	world_meet(w);
	if (w->rank != 1) {
		OK(ncclEpGroupDestroy(group));
		CHECK(available() < before);
	}
	world_meet(w);
	if (w->rank == 1) {
		OK(ncclEpGroupDestroy(group));
	}
	world_meet(w);
	group = bench_group(w, &p, 0);
	OK(ncclEpGroupDestroy(group));
	world_meet(w);
	CHECK_INT(settled(before), before);
}

static void run(struct world *w, void *name)
{
	if (!strcmp(name, "agree")) {
		agree(w);
	} else {
		late(w);
		grown(w);
		orphan(w);
	}
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	world_run(world_size(3), run, argv[1]);
	return check_end();
}
