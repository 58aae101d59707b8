// SPDX-License-Identifier: Apache-2.0
/*
 * A direct dispatch, step 8 of its example in doc/protocol.md. A rank waits for the others' invitations and
 * stops. They invite it, mask it by hand, go on without it and use their outputs for something else. When it
 * runs again, it finds invitations to its own operation, and must store nothing.
 */
#include <signal.h>
#include <unistd.h>
#include "support/bench.h"
#include "support/victim.h"

#define RANKS 3
#define VICTIM 2
#define TIMEOUT_NS 20000000000ull
#define WAITS_US 20000 /* until the victim's kernel waits */

enum {
	FLAG_MASKED = 1,
	FLAG_REUSED,
	FLAG_OVER,
	FLAG_CLEAN
};

static void others_meet(struct world *w, int flag)
{
	world_raise(w, flag, 1);
	for (int r = 0; r < w->nranks; r++) {
		NEED(r == VICTIM || world_await(w, flag, r, 1, 60));
	}
}

static void stop_and_send(struct bench *b)
{
	struct world *w = b->w;

	bench_load(b, 60);
	NEED_OK(bench_update(b, w->stream));
	NEED_OK(bench_dispatch(b, w->stream));
	usleep(WAITS_US);
	kill(getpid(), SIGSTOP);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	CHECK_INT(bench_masked(w, b->group), (1u << VICTIM) - 1);
	world_raise(w, FLAG_OVER, 1);
}

static void invite_and_part(struct bench *b)
{
	struct world *w = b->w;
	int mask[RANKS] = { 1, 1, 1 };

	victim_await_stop();
	bench_load(b, 60);
	NEED_OK(bench_update(b, w->stream));
	NEED_OK(bench_send_dispatch(b, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	others_meet(w, FLAG_MASKED);
	mask[VICTIM] = 0;
	OK(ncclEpMaskUpdate(b->group, mask, w->stream));
	NEED_OK(ncclEpComplete(b->handle, NULL, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));

	b->p.absent = 1u << VICTIM;
	bench_load(b, 70);
	bench_dispatch_checked(b);
	bench_poison(b);
	others_meet(w, FLAG_REUSED);
	victim_continue();
	NEED(world_await(w, FLAG_OVER, VICTIM, 1, 60));
	CHECK(!bench_touched(b), "rank %d", w->rank);
}

static void run(struct world *w, void *arg)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 2 * RANKS, 4, 720, 12, ORACLE_RANK_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, BENCH_WINDOW | BENCH_MASK);
	ncclEpGroup_t group = NULL;
	struct bench b;

	config.zero_copy = NCCL_EP_ZERO_COPY_ON;
	config.max_num_sms = 3;
	config.timeout_ns = TIMEOUT_NS;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, BENCH_WINDOW | BENCH_MASK);
	bench_pair(&b);
	if (w->rank == VICTIM) {
		stop_and_send(&b);
	} else {
		invite_and_part(&b);
	}
	world_raise(w, FLAG_CLEAN, 1);
	for (int r = 0; r < w->nranks; r++) {
		NEED(world_await(w, FLAG_CLEAN, r, 1, 60));
	}
	check_context("together again");
	OK(ncclEpMaskClean(group, w->stream));
	OK(ncclEpErrorClear(group));
	world_meet(w);
	b.p.absent = 0;
	bench_pair_of(&b, 80);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

int main(void)
{
	victim_start(VICTIM, false);
	setenv("NCCL_EP_LL_THREADS", "64", 0);
	world_run(RANKS, run, NULL);
	return check_end();
}
