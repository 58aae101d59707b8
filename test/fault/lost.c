/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is killed or stopped in the middle of its work (VC_FAULT in the environment says when).
 *
 *     lost kill|stop               without masks: within the timeout every other rank has an error
 *                                  that names the lost one; the group can be destroyed, and a new
 *                                  one of the survivors works
 *     lost kill|stop mask          with masks: it is masked, the others go on with right results;
 *                                  a stopped one comes back and MaskClean takes it in again
 *     lost kill mask PAIRS         for so many pairs, which is more than fit a queue to it
 */
#include <unistd.h>

#include "support/bench.h"
#include "support/victim.h"

#define VICTIM 2
#define TIMEOUT_MS 24000.0
#define MOST_PAIRS 200
#define PAIRS_AROUND_LOSS 8 /* VC_FAULT strikes in the fourth or the fifth */

enum {
	FLAG_FAILED = 1,
	FLAG_MASKED,
	FLAG_BACK
};

struct scene {
	bool stops;
	uint64_t pairs; /* without the lost rank */
};

static struct oracle_problem problem(int nranks, enum oracle_layout layout)
{
	return bench_problem(nranks, 12, 3, 256, 6, layout);
}

static void survivors_group(struct world *w)
{
	struct world small = *w;
	struct oracle_problem p = problem(3, ORACLE_EXPERT_MAJOR);
	ncclComm_t comm = world_comm(w, 0xf & ~(1u << VICTIM));

	small.comm = comm;
	small.nranks = 3;
	small.rank = w->rank - (w->rank > VICTIM);
	victim_new_group(&small, &p, TIMEOUT_MS);
	OK(ncclCommDestroy(comm));
}

/*
 * Within a node a dead rank's stores have landed all or none. What its NIC still had to send may have
 * reached one rank and not another, so that one waits for the dead rank and another for that one.
 */
static void check_named(struct world *w, const char *text)
{
	for (int r = 0; r < w->nranks; r++) {
		if (r != w->rank && (r == VICTIM || world_nodes() > 1) && victim_named(text, r)) {
			return;
		}
	}
	check_fail(__FILE__, __LINE__, "\"%s\" does not name rank %d", text, VICTIM);
}

static void without_masks(struct world *w, void *arg)
{
	const struct scene *scene = arg;
	struct oracle_problem p = problem(w->nranks, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, 0, TIMEOUT_MS);
	ncclResult_t result = ncclSuccess;
	const char *text = "";
	double seconds = 0, start;
	bool named = false;
	struct bench b;
	char kept[1024];

	bench_open(&b, w, group, &p, 0);
	bench_expert_work(&b);
	for (int i = 0; i < MOST_PAIRS && result == ncclSuccess; i++) {
		result = victim_pair(&b, false, &seconds);
	}
	if (w->rank == VICTIM) { /* stopped and continued: it finds itself alone */
		NEED(scene->stops);
		CHECK(result == ncclRemoteError || result == ncclSuccess);
		bench_end(&b);
		return;
	}
	CHECK_INT(result, ncclRemoteError);
	/* dispatch and combine wait at most once each */
	CHECK(seconds <= TIMEOUT_MS / 1e3 + 8, "%.1f s", seconds);
	OK(ncclEpExtGetLastError(group, &result, &text));
	CHECK_INT(result, ncclRemoteError);
	check_named(w, text);
	snprintf(kept, sizeof(kept), "%s", text);
	CHECK_RESULT(bench_dispatch(&b, w->stream), ncclRemoteError);
	CHECK_RESULT(bench_update(&b, w->stream), ncclRemoteError);
	OK(ncclEpExtGetLastError(group, &result, &text));
	CHECK_TEXT(text, kept);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_raise(w, FLAG_FAILED, victim_named(text, VICTIM) ? 2 : 1);
	for (int r = 0; r < w->nranks; r++) {
		NEED(r == VICTIM || world_await(w, FLAG_FAILED, r, 1, 60));
		named |= r != VICTIM && world_look(w, FLAG_FAILED, r) == 2;
	}
	CHECK(named);
	if (scene->stops) {
		victim_continue();
	}
	start = world_now();
	bench_end(&b);
	CHECK(scene->stops || world_now() - start <= 16, "%.1f s", world_now() - start);
	survivors_group(w);
}

static void go_on_without(struct bench *b, uint64_t pairs)
{
	double start = world_now(), most = TIMEOUT_MS / 1e3 + 16;

	b->p.absent = UINT64_C(1) << VICTIM;
	for (uint64_t i = 0; i < pairs; i++) {
		double before = world_now();

		check_context("without the lost rank, pair %d", (int)i);
		bench_pair_of(b, 50 + i);
		/* nobody waits for it any more */
		CHECK(i == 0 || world_now() - before < TIMEOUT_MS / 1e3);
		most += i >= 4 ? 0.8 : 0;
	}
	CHECK(world_now() - start < most);
}

static void take_in_again(struct world *w, struct bench *b)
{
	int error = 1;

	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_raise(w, FLAG_BACK, 1);
	for (int r = 0; r < w->nranks; r++) {
		NEED(world_await(w, FLAG_BACK, r, 1, 60));
	}
	check_context("back again");
	NEED_OK(ncclEpMaskClean(b->group, w->stream));
	OK(ncclEpErrorClear(b->group));
	OK(ncclEpGetAsyncError(b->group, &error));
	CHECK_INT(error, 0);
	CHECK_INT(bench_masked(w, b->group), 0);
	world_meet(w);
	b->p.absent = 0;
	for (uint64_t i = 0; i < 4; i++) {
		bench_pair_of(b, 70 + i);
	}
	OK(ncclEpGetAsyncError(b->group, &error));
	CHECK_INT(error, 0);
}

static void with_masks(struct world *w, void *arg)
{
	const struct scene *scene = arg;
	struct oracle_problem p = problem(w->nranks, ORACLE_RANK_MAJOR);
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, BENCH_MASK, TIMEOUT_MS);
	int error = 0;
	double seconds, start = world_now();
	struct bench b;

	bench_open(&b, w, group, &p, BENCH_MASK);
	bench_expert_work(&b);
	/*
	 * The ranks may miss the lost one in different pairs, and their results are not defined until
	 * all have. But all must do as many pairs: who stops is missed too.
	 */
	for (int i = 0; i < (w->rank == VICTIM ? MOST_PAIRS : PAIRS_AROUND_LOSS); i++) {
		NEED_OK(victim_pair(&b, false, &seconds));
		/*
		 * Once for the lost one, across nodes once more for who waits for it. (Time that passes
		 * while something runs comes on top; one wait more would be twice as long.)
		 */
		CHECK(w->rank == VICTIM ||
			      seconds < (world_nodes() > 1 ? 2 : 1) * 1.4 * TIMEOUT_MS / 1e3,
		      "%.1f s", seconds);
		OK(ncclEpGetAsyncError(group, &error));
		if (w->rank == VICTIM && error) {
			break;
		}
	}
	CHECK_INT(error, 1);
	CHECK_LAST(group, ncclRemoteError, "rank ");
	if (w->rank == VICTIM) {
		NEED(scene->stops);
		take_in_again(w, &b);
		bench_end(&b);
		return;
	}
	check_context("after %.1f s", world_now() - start);
	CHECK_INT(bench_masked(w, group), 1 << VICTIM);
	world_raise(w, FLAG_MASKED, 1);
	for (int r = 0; r < w->nranks; r++) {
		NEED(r == VICTIM || world_await(w, FLAG_MASKED, r, 1, 60));
	}
	OK(ncclEpErrorClear(group));
	go_on_without(&b, scene->pairs);
	OK(ncclEpGetAsyncError(group, &error));
	CHECK(!error || world_nodes() > 1); /* the connection may be found lost only now */
	CHECK_INT(bench_masked(w, group), 1 << VICTIM);
	if (scene->stops) {
		victim_continue();
		take_in_again(w, &b);
	}
	bench_end(&b);
}

int main(int argc, char **argv)
{
	struct scene scene = { 0 };

	NEED(argc >= 2);
	scene.stops = !strcmp(argv[1], "stop");
	scene.pairs = world_number(argc > 3 ? argv[3] : NULL, 4);
	victim_start(VICTIM, !scene.stops);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3000", 0);
	world_run(4, argc > 2 ? with_masks : without_masks, &scene);
	return check_end();
}
