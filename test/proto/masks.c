// SPDX-License-Identifier: Apache-2.0
/*
 * Masks by hand, and the ranks that stay away: MaskUpdate leaves a rank out without a wait, an
 * expired wait does it by itself, MaskClean and ErrorClear undo it. Repeated.
 */
#include "support/bench.h"
#include "support/victim.h"

#define RANKS 4
#define TIMEOUT_MS (1500 * victim_scale())

static void expect_mask(struct world *w, ncclEpGroup_t group, uint32_t absent)
{
	int *device, mask[WORLD_MAX];

	NEED_CUDA(cudaMalloc((void **)&device, sizeof(mask)));
	OK(ncclEpMaskQuery(group, device, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	NEED_CUDA(
		cudaMemcpy(mask, device, sizeof(int) * (size_t)w->nranks, cudaMemcpyDeviceToHost));
	NEED_CUDA(cudaFree(device));
	for (int r = 0; r < w->nranks; r++) {
		CHECK_INT(mask[r], !(absent >> r & 1));
	}
}

static void expect_error(ncclEpGroup_t group, int want)
{
	int error = -1;

	OK(ncclEpGetAsyncError(group, &error));
	CHECK_INT(error, want);
}

static void clean(struct world *w, ncclEpGroup_t group)
{
	world_meet(w);
	OK(ncclEpMaskClean(group, w->stream));
	OK(ncclEpErrorClear(group));
	expect_mask(w, group, 0);
	world_meet(w);
}

/* Ranks in the set are masked by all others and do nothing. */
static void by_hand(struct world *w, struct bench *b, uint32_t absent)
{
	int mask[WORLD_MAX];
	double start;

	check_context("masked by hand 0x%x", absent);
	for (int r = 0; r < w->nranks; r++) {
		mask[r] = !(absent >> r & 1);
	}
	if (mask[w->rank]) {
		OK(ncclEpMaskUpdate(b->group, mask, w->stream));
		expect_mask(w, b->group, absent);
		b->p.absent = absent;
		start = world_now();
		for (uint64_t i = 0; i < 3; i++) {
			bench_load(b, 20 + i);
			bench_round(b);
		}
		CHECK(world_now() - start < 3 * TIMEOUT_MS / 1e3);
		expect_error(b->group, 0);
	}
	clean(w, b->group);
	check_context("all are back after 0x%x", absent);
	b->p.absent = 0;
	bench_load(b, 30 + absent);
	bench_round(b);
	expect_error(b->group, 0);
}

/* A rank is masked after the dispatch: the combine leaves out what it would have returned. */
static void between(struct world *w, struct bench *b, int away)
{
	int mask[WORLD_MAX];

	check_context("rank %d is masked before the combine", away);
	bench_load(b, 60);
	bench_poison(b);
	OK(bench_update(b, w->stream));
	OK(bench_dispatch(b, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	bench_check_dispatch(b);
	for (int r = 0; r < w->nranks; r++) {
		mask[r] = r != away;
	}
	if (w->rank != away) {
		OK(ncclEpMaskUpdate(b->group, mask, w->stream));
		OK(bench_combine(b, w->stream));
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		b->p.absent = UINT64_C(1) << away;
		bench_load(b, 60);
		bench_check_combine(b);
		expect_error(b->group, 0);
	}
	b->p.absent = 0;
	clean(w, b->group);
	bench_load(b, 61);
	bench_round(b);
}

/* One rank leaves out some rounds without a word. */
static void by_itself(struct world *w, struct bench *b, int away)
{
	check_context("rank %d stays away", away);
	if (w->rank != away) {
		b->p.absent = UINT64_C(1) << away;
		bench_load(b, 40);
		bench_round(b); /* waits, and then it counts as absent */
		expect_error(b->group, 1);
		expect_mask(w, b->group, 1u << away);
		OK(ncclEpErrorClear(b->group));
		bench_load(b, 41);
		bench_round(b);
		expect_error(b->group, 0);
	}
	clean(w, b->group);
	check_context("rank %d is back", away);
	b->p.absent = 0;
	bench_load(b, 42);
	bench_round(b);
	bench_load(b, 43);
	bench_round(b);
	expect_error(b->group, 0);
}

static void run(struct world *w, void *arg)
{
	for (int layout = 1; layout <= 2; layout++) {
		struct oracle_problem p =
			bench_problem(w->nranks, 12, 3, 256, 7, (enum oracle_layout)layout);
		ncclEpGroupConfig_t config = bench_group_config(&p, BENCH_MASK);
		ncclEpGroup_t group;
		struct bench b;

		config.timeout_ns = (uint64_t)(TIMEOUT_MS * 1e6);
		config.max_num_sms = 2;
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		bench_open(&b, w, group, &p, BENCH_MASK);
		expect_mask(w, group, 0);
		bench_round(&b);
		by_hand(w, &b, 1u << 2);
		by_hand(w, &b, 1u << 0 | 1u << 3);
		between(w, &b, 2);
		by_itself(w, &b, 1);
		if (layout == 1) {
			by_itself(w, &b, 3);
		}
		CHECK_LAST(group, ncclSuccess, "");
		bench_close(&b);
		OK(ncclEpGroupDestroy(group));
	}
}

int main(void)
{
	setenv("NCCL_EP_LL_THREADS", "64", 0);
	world_run(world_size(RANKS), run, NULL);
	return check_end();
}
