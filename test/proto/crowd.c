/* SPDX-License-Identifier: Apache-2.0 */
/*
 * More ranks than the kernels' arguments have room for, and than a word has bits: masks by hand and
 * by a wait, MaskClean, and what is said of a lost rank, all about the last rank but one.
 *
 *     crowd RANKS
 */
#include "support/bench.h"
#include "support/victim.h"

#define TIMEOUT_MS 40000.0

static double timeout_ms; /* of waits: a busy machine holds ranks up for seconds */

static bool is_away(const struct world *w, int rank)
{
	return rank == w->nranks - 2;
}

static ncclEpGroup_t group_with(struct world *w, const struct oracle_problem *p, uint32_t flags)
{
	return bench_group_bounded(w->comm, p, flags, timeout_ms);
}

static void expect_masked(struct world *w, struct bench *b, bool away)
{
	int mask[WORLD_MAX];

	bench_mask(w, b->group, mask);
	for (int r = 0; r < w->nranks; r++) {
		CHECK_INT(mask[r], !(away && is_away(w, r)));
	}
}

/* All come to MaskClean, and work together again. */
static void all_back(struct world *w, struct bench *b, uint64_t seed)
{
	world_meet(w);
	OK(ncclEpMaskClean(b->group, w->stream));
	OK(ncclEpErrorClear(b->group));
	expect_masked(w, b, false);
	world_meet(w);
	b->p.absent_rank = 0;
	bench_pair_of(b, seed);
}

static void by_hand(struct world *w, struct bench *b)
{
	int mask[WORLD_MAX], error = -1;

	check_context("masked by hand");
	for (int r = 0; r < w->nranks; r++) {
		mask[r] = !is_away(w, r);
	}
	if (!is_away(w, w->rank)) {
		OK(ncclEpMaskUpdate(b->group, mask, w->stream));
		expect_masked(w, b, true);
		b->p.absent_rank = (uint32_t)w->nranks - 2;
		bench_pair_of(b, 20);
		bench_pair_of(b, 21);
		OK(ncclEpGetAsyncError(b->group, &error));
		CHECK_INT(error, 0);
	}
	all_back(w, b, 22);
}

static void by_itself(struct world *w, struct bench *b)
{
	int error = -1;

	check_context("stays away");
	if (!is_away(w, w->rank)) {
		b->p.absent_rank = (uint32_t)w->nranks - 2;
		bench_pair_of(b, 30); /* waits, and then it counts as absent */
		expect_masked(w, b, true);
		OK(ncclEpGetAsyncError(b->group, &error));
		CHECK_INT(error, 1);
	}
	all_back(w, b, 31);
}

/* Without masks: everybody says who did not come. */
static void named(struct world *w, const struct oracle_problem *p)
{
	ncclEpGroup_t group = group_with(w, p, 0);
	struct bench b;
	char text[80];

	check_context("named");
	snprintf(text, sizeof(text), "rank %d waited for rank %d (", w->rank, w->nranks - 2);
	bench_open(&b, w, group, p, 0);
	bench_pair(&b);
	world_meet(w);
	if (!is_away(w, w->rank)) {
		OK(bench_update(&b, w->stream));
		OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
		CHECK_LAST(group, ncclRemoteError, text);
	}
	bench_close(&b);
	world_meet(w);
	OK(ncclEpGroupDestroy(group));
}

static void run(struct world *w, void *arg)
{
	struct oracle_problem p =
		bench_problem(w->nranks, (uint32_t)w->nranks, 6, 24, 3, ORACLE_EXPERT_MAJOR);
	double ms = TIMEOUT_MS;
	ncclEpGroup_t group;
	struct bench b;

	(void)arg;
	if (w->rank == 0) {
		timeout_ms = ms; /* one for all ranks, which are threads */
	}
	world_meet(w);
	group = group_with(w, &p, BENCH_MASK);
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	by_hand(w, &b);
	by_itself(w, &b);
	bench_end(&b);
	named(w, &p);
}

int main(int argc, char **argv)
{
	world_run((int)world_number(argc == 2 ? argv[1] : NULL, 72), run, NULL);
	return check_end();
}
