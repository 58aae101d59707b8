/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of one GPU on a stream each, whose operations ranks launch in different orders. An SM
 * holds one of their blocks, as on hardware, so the groups of one rank must leave each other room.
 *
 *     groups LL HT       so many groups of either mode, with max_num_sms AUTO: all results are
 *                        right
 *     groups crowded     two groups of high throughput that each want all SMs: a warning, and an
 *                        error that says how many SMs groups hold
 */
#include <string.h>
#include <unistd.h>

#include "ep/ep.h"
#include "support/bench.h"
#include "support/ht_bench.h"

#define MOST 6
#define ROUNDS 3
#define LATE_NS 2000000000ull

struct plan {
	int low, high;
	bool crowded;
};

/* One group, its handle and its stream. */
struct lane {
	bool is_high;
	ncclEpGroup_t group;
	struct bench low;
	struct ht_bench high;
	cudaStream_t stream;
};

static struct oracle_problem low_problem(int nranks, uint64_t seed)
{
	struct oracle_problem p =
		bench_problem(nranks, (uint32_t)nranks * 4, 3, 256, 24, ORACLE_EXPERT_MAJOR);

	p.seed = seed;
	return p;
}

static struct oracle_ht high_problem(int nranks, uint64_t seed)
{
	struct oracle_ht h = { .p = bench_problem(nranks, (uint32_t)nranks * 4, 3, 256, 100,
						  ORACLE_EXPERT_MAJOR) };

	h.p.seed = seed;
	h.expert_major = 1;
	return h;
}

static void lane_open(struct lane *l, struct world *w, const struct plan *plan, int i)
{
	ncclEpGroupConfig_t config;

	l->is_high = i >= plan->low;
	if (l->is_high) {
		struct oracle_ht h = high_problem(w->nranks, 10 + (uint64_t)i);

		config = ht_group_config(&h, 0);
		config.max_num_sms = plan->crowded ? 8 : 0;
		config.timeout_ns = plan->crowded ? LATE_NS : config.timeout_ns;
		NEED_OK(ncclEpCreateGroup(&l->group, w->comm, &config));
		ht_open(&l->high, w, l->group, &h, 0);
		NEED_OK(ht_update(&l->high, w->stream));
	} else {
		struct oracle_problem p = low_problem(w->nranks, 10 + (uint64_t)i);

		config = bench_group_config(&p, 0);
		NEED_OK(ncclEpCreateGroup(&l->group, w->comm, &config));
		bench_open(&l->low, w, l->group, &p, 0);
		NEED_OK(bench_update(&l->low, w->stream));
	}
	NEED(cudaStreamSynchronize(w->stream) == cudaSuccess);
	NEED(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking) == cudaSuccess);
}

static void lane_close(struct lane *l)
{
	if (l->is_high) {
		ht_close(&l->high);
	} else {
		bench_close(&l->low);
	}
	OK(ncclEpGroupDestroy(l->group));
	NEED(cudaStreamDestroy(l->stream) == cudaSuccess);
}

static void lane_dispatch(struct lane *l)
{
	if (l->is_high) {
		ht_poison(&l->high);
		NEED_OK(ht_dispatch(&l->high, false, l->stream));
	} else {
		bench_poison(&l->low);
		NEED_OK(bench_dispatch(&l->low, l->stream));
	}
}

static void lane_check(struct lane *l)
{
	NEED(cudaStreamSynchronize(l->stream) == cudaSuccess);
	if (l->is_high) {
		ht_check_dispatch(&l->high, false);
	} else {
		bench_check_dispatch(&l->low);
	}
	CHECK_LAST(l->group, ncclSuccess, "");
}

static void run_beside(struct world *w, struct lane *lanes, int n)
{
	for (int round = 0; round < ROUNDS; round++) {
		world_meet(w);
		for (int i = 0; i < n; i++) { /* each rank begins with another group */
			int k = w->rank % 2 ? n - 1 - i : (i + w->rank) % n;

			lane_dispatch(lanes + k);
		}
		for (int i = 0; i < n; i++) {
			check_context("round %d, group %d of %d", round, i, n);
			lane_check(lanes + i);
		}
	}
}

/* Each rank's SMs are full of the group that it began with, for which the other one has no room. */
static void run_crowded(struct world *w, struct lane *lanes)
{
	static const char *const parts[] = { "waited for rank",
					     "2 groups of this process may hold 16 of this GPU's 8 "
					     "SMs" };
	ncclResult_t code;
	const char *text;
	int failed = 0;

	world_meet(w);
	for (int i = 0; i < 2; i++) {
		lane_dispatch(lanes + (w->rank ? !i : i));
		usleep(100000); /* of the clock's time: all blocks of the first one wait by then */
		world_meet(w);
	}
	for (int i = 0; i < 2; i++) {
		NEED(cudaStreamSynchronize(lanes[i].stream) == cudaSuccess);
		NEED_OK(ncclEpExtGetLastError(lanes[i].group, &code, &text));
		if (code != ncclSuccess) {
			failed++;
			for (size_t k = 0; k < 2; k++) {
				CHECK_LAST(lanes[i].group, ncclRemoteError, parts[k]);
			}
		}
	}
	CHECK(failed > 0);
}

static void run(struct world *w, void *arg)
{
	const struct plan *plan = arg;
	struct lane *lanes = calloc(MOST, sizeof(*lanes));
	int n = plan->low + plan->high;

	NEED(lanes);
	for (int i = 0; i < n; i++) {
		lane_open(lanes + i, w, plan, i);
	}
	if (plan->crowded) {
		run_crowded(w, lanes);
	} else {
		run_beside(w, lanes, n);
	}
	world_meet(w);
	for (int i = 0; i < n; i++) {
		lane_close(lanes + i);
	}
	free(lanes);
}

int main(int argc, char **argv)
{
	struct plan plan = { .crowded = argc == 2 && !strcmp(argv[1], "crowded") };

	plan.low = plan.crowded ? 0 : (int)world_number(argc > 1 ? argv[1] : NULL, 4);
	plan.high = plan.crowded ? 2 : (int)world_number(argc > 2 ? argv[2] : NULL, 0);
	NEED(plan.low + plan.high <= MOST);
	printf("%d groups of low latency, %d of high throughput\n", plan.low, plan.high);
	world_run(world_size(plan.low + plan.high > 2 ? 3 : 2), run, &plan);
	return check_end();
}
