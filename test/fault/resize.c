/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number of ranks changes while the program runs, as doc/replace.md has it: ranks that a seed
 * draws make a communicator and a group beside the old ones, while an operation of the old group is
 * under way. That ends, all change over, and the old group goes. Every byte is verified. A rank
 * that is in no group has the memory, descriptors and threads that it had before.
 *
 *     resize ll|ht ROUNDS     TEST_SEED in the environment: the same draws
 */
#include <unistd.h>

#include "support/bench.h"
#include "support/ht_bench.h"
#include "support/self.h"

#define EXPERTS 12 /* a multiple of each number of ranks */
#define TIMEOUT_MS 24000.0

enum {
	FLAG_SEED = 1
};

/* A group of some ranks, and its handle. */
struct lane {
	uint64_t members; /* bit r: rank r of the world; 0: none */
	bool mine;
	struct world w;
	struct bench low;
	struct ht_bench high;
};

struct scene {
	bool high;
	uint32_t rounds;
};

/* What a rank has that is in no group. */
struct belongings {
	bool known;
	uint64_t memory;
	int files, threads;
};

static uint64_t draw_members(uint64_t *state, int nranks)
{
	uint64_t members = 0;

	while (__builtin_popcountll(members) < 2) {
		members = world_draw(state, UINT64_C(1) << nranks);
	}
	return members;
}

/* Collective of all ranks of the world, as world_comm() is. */
static void lane_make(struct lane *l, struct world *w, const struct scene *scene, uint64_t members)
{
	ncclComm_t comm = world_comm(w, members);
	int nranks = __builtin_popcountll(members);
	struct oracle_problem p = bench_problem(nranks, EXPERTS, 3, 256, 6, ORACLE_EXPERT_MAJOR);
	struct oracle_ht h = { .expert_major = 1, .alignment = 8 };

	memset(l, 0, sizeof(*l));
	l->members = members;
	l->mine = comm != NULL;
	if (!l->mine) {
		return;
	}
	l->w = *w;
	l->w.comm = comm;
	l->w.nranks = nranks;
	l->w.rank = __builtin_popcountll(members & ((UINT64_C(1) << w->rank) - 1));
	NEED_CUDA(cudaStreamCreateWithFlags(&l->w.stream, cudaStreamNonBlocking));
	if (scene->high) {
		h.p = bench_problem(nranks, EXPERTS, 3, 256, 60, ORACLE_EXPERT_MAJOR);
		ht_open(&l->high, &l->w, ht_group(&l->w, &h, 0, TIMEOUT_MS), &h, 0);
	} else {
		bench_open(&l->low, &l->w, bench_group_bounded(comm, &p, 0, TIMEOUT_MS), &p, 0);
	}
}

static void lane_drop(struct lane *l, const struct scene *scene)
{
	if (!l->mine) {
		return;
	}
	if (scene->high) {
		ht_end(&l->high);
	} else {
		bench_end(&l->low);
	}
	OK(ncclCommDestroy(l->w.comm));
	NEED_CUDA(cudaStreamDestroy(l->w.stream));
}

/* The first half of a pair: it is under way when this returns. */
static void begin_pair(struct lane *l, const struct scene *scene, uint64_t seed)
{
	if (scene->high) {
		ht_load(&l->high, seed, 40);
		ht_poison(&l->high);
		NEED_OK(ht_update(&l->high, l->w.stream));
		NEED_OK(ht_dispatch(&l->high, false, l->w.stream));
	} else {
		bench_load(&l->low, seed);
		bench_poison(&l->low);
		NEED_OK(bench_update(&l->low, l->w.stream));
		NEED_OK(bench_dispatch(&l->low, l->w.stream));
	}
}

static void end_pair(struct lane *l, const struct scene *scene)
{
	NEED_CUDA(cudaStreamSynchronize(l->w.stream));
	if (scene->high) {
		ht_check_dispatch(&l->high, false);
		ht_expert_work(&l->high);
		NEED_SYNC(ht_combine(&l->high, false, l->w.stream), l->w.stream);
		ht_check_combine(&l->high, false);
	} else {
		bench_check_dispatch(&l->low);
		bench_expert_work(&l->low);
		NEED_SYNC(bench_combine(&l->low, l->w.stream), l->w.stream);
		bench_check_combine(&l->low);
	}
}

static uint64_t used(void)
{
	size_t available = 0, total = 0;

	NEED_CUDA(cudaMemGetInfo(&available, &total));
	return total - available;
}

/* This rank is in no group. Threads of the library may be freeing what it had. */
static void check_belongings(struct belongings *b)
{
	double end = world_now() + 20;
	int most;

	if (!b->known) {
		usleep(2000000);
		*b = (struct belongings){ true, used(), self_entries("/proc/self/fd"),
					  self_entries("/proc/self/task") };
		return;
	}
	while ((used() > b->memory || self_entries("/proc/self/fd") > b->files) &&
	       world_now() < end) {
		usleep(1000);
	}
	CHECK_INT(used(), b->memory);
	CHECK(self_entries("/proc/self/fd") <= b->files, "before %d", b->files);
	most = b->threads + SELF_SM_THREADS;
	CHECK(self_threads(most) <= most, "%d are allowed", most);
}

static void run(struct world *w, void *arg)
{
	const struct scene *scene = arg;
	uint64_t state = world_number(getenv("TEST_SEED"), (uint64_t)getpid());
	struct belongings has = { 0 };
	struct lane lanes[2];

	world_raise(w, FLAG_SEED, state);
	world_meet(w);
	state = world_look(w, FLAG_SEED, 0);
	if (w->rank == 0) {
		printf("TEST_SEED=%llu\n", (unsigned long long)state);
	}
	lane_make(&lanes[0], w, scene, draw_members(&state, w->nranks));
	for (uint32_t round = 1; round <= scene->rounds; round++) {
		struct lane *old = &lanes[(round - 1) % 2], *next = &lanes[round % 2];
		uint64_t members = draw_members(&state, w->nranks);

		check_context("round %u, rank %d, members %llx, then %llx", round, w->rank,
			      (unsigned long long)old->members, (unsigned long long)members);
		if (old->mine) {
			begin_pair(old, scene, round);
		}
		lane_make(next, w, scene, members);
		if (old->mine) {
			end_pair(old, scene);
		}
		if (next->mine) {
			begin_pair(next, scene, 1000 + round);
			end_pair(next, scene);
		}
		lane_drop(old, scene);
		world_meet(w);
		if (!next->mine) {
			check_belongings(&has);
		}
		world_meet(w);
	}
	lane_drop(&lanes[scene->rounds % 2], scene);
}

int main(int argc, char **argv)
{
	struct scene scene = { 0 };

	NEED(argc == 3);
	scene.high = !strcmp(argv[1], "ht");
	scene.rounds = (uint32_t)world_number(argv[2], 0);
	world_run(world_size(4), run, &scene);
	return check_end();
}
