/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A word that all blocks of a kernel look at changes while they do: the group is aborted, or a rank
 * is masked, by whoever sees the failure first (here: a thread of the host). The lanes of a warp
 * look one after the other and must agree on what they do, or a vote never ends. Here it is looked
 * at that it ends; views.c looks at every byte that comes out.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include "ep/ep.h"
#include "support/bench.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PAIRS 50 /* what is read and written is the same in all */
#else
#define PAIRS 150
#endif
#define DELAY_US 600

enum {
	ABORT_DISPATCH,
	MASK_DISPATCH,
	MASK_COMBINE
};

struct strike {
	pthread_t thread;
	uint32_t *word;
	uint32_t value;
	useconds_t delay_us;
};

static void *strike_main(void *arg)
{
	struct strike *s = arg;

	usleep(s->delay_us);
	__atomic_store_n(s->word, s->value, __ATOMIC_RELAXED);
	return NULL;
}

static void strike_begin(struct strike *s, int kind, struct ncclEpGroup *group)
{
	s->word = kind == ABORT_DISPATCH ? &group->state->aborted
					 : (uint32_t *)&group->mask[!group->rank];
	s->value = kind == ABORT_DISPATCH;
	NEED(pthread_create(&s->thread, NULL, strike_main, s) == 0);
}

static void run(struct world *w, void *arg)
{
	int kind = *(const int *)arg;
	uint32_t flags = kind == ABORT_DISPATCH ? 0 : BENCH_MASK;
	uint64_t draw = 1;

	for (int i = 0; i < PAIRS; i++) {
		struct oracle_problem p =
			bench_problem(w->nranks, 12, 3, 64, 12, ORACLE_EXPERT_MAJOR);
		ncclEpGroupConfig_t config = bench_group_config(&p, flags);
		struct strike s = { .delay_us = (useconds_t)world_draw(&draw, DELAY_US) };
		ncclEpGroup_t group = NULL;
		struct bench b;

		check_context("pair %d, %u us", i, (unsigned int)s.delay_us);
		config.max_num_sms = 8;
		config.timeout_ns = 300000000;
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		bench_open(&b, w, group, &p, flags);
		OK(bench_update(&b, w->stream));
		if (kind == MASK_COMBINE) {
			OK(bench_dispatch(&b, w->stream));
		}
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		world_meet(w);
		strike_begin(&s, kind, group);
		if (kind == MASK_COMBINE) {
			OK(bench_combine(&b, w->stream));
		} else {
			OK(bench_dispatch(&b, w->stream));
		}
		CHECK(cudaStreamSynchronize(w->stream) == cudaSuccess);
		NEED(pthread_join(s.thread, NULL) == 0);
		world_meet(w);
		bench_end(&b);
	}
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "abort", "mask_dispatch", "mask_combine" };
	int kind = -1;

	for (int i = 0; argc == 2 && i < 3; i++) {
		kind = strcmp(argv[1], names[i]) == 0 ? i : kind;
	}
	NEED(kind >= 0);
	world_run(world_size(2), run, &kind);
	return check_end();
}
