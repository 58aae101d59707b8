/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection of rank 1 with a rank of the other node fails (VC_NIC_FAULTS in the environment
 * says how and when).
 *
 *     link TEXT            without masks: rank 1 has an error within the timeout and a second that
 *                          is about a rank of the other node and has TEXT in it; the others, which
 *                          may be waiting for one that waits, one that names a rank within twice
 *                          that; the group can be destroyed, and a new one works
 *     link TEXT mask       with masks: whom a rank has lost is masked, and the ranks go on with
 *                          right results from all others; MaskClean brings back all but the two
 *                          ends of the connection for each other
 */
#include <unistd.h>

#include "support/bench.h"
#include "support/victim.h"

#define BROKEN 1 /* the rank whose NIC has the fault */
#define TIMEOUT_MS 12000.0
#define MOST_PAIRS 200
#define FLAG_LOST 1

/* Rank 1's error is about one of the other node, everybody's about somebody else. */
static void check_text(struct world *w, const char *part, const char *text)
{
	bool named = false;

	for (int r = 0; r < w->nranks; r++) {
		bool far = r / (w->nranks / 2) != w->rank / (w->nranks / 2);

		named |= r != w->rank && (w->rank != BROKEN || far) && victim_named(text, r);
	}
	CHECK(named, "%s", text);
	if (w->rank == BROKEN) {
		CHECK_HAS(text, part);
	}
}

static void without_masks(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 6, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, 0, TIMEOUT_MS);
	ncclResult_t result = ncclSuccess;
	const char *text = "";
	double seconds = 0, start;
	struct bench b;

	bench_open(&b, w, group, &p, 0);
	bench_expert_work(&b);
	for (int i = 0; i < MOST_PAIRS && result == ncclSuccess; i++) {
		result = victim_pair(&b, true, &seconds);
	}
	CHECK_INT(result, ncclRemoteError);
	CHECK(seconds <= (w->rank == BROKEN ? 1 : 2) * (TIMEOUT_MS / 1e3 + 1), "%.1f s", seconds);
	OK(ncclEpExtGetLastError(group, &result, &text));
	CHECK_INT(result, ncclRemoteError);
	check_text(w, arg, text);
	CHECK_RESULT(bench_dispatch(&b, w->stream), ncclRemoteError);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_meet(w);
	start = world_now();
	bench_end(&b);
	CHECK(world_now() - start <= 8, "%.1f s", world_now() - start);
	world_meet(w);
	usleep((useconds_t)world_number(getenv("LINK_REST_MS"), 0) * 1000);
	victim_new_group(w, &p, TIMEOUT_MS);
}

static void go_on(struct world *w, struct bench *b)
{
	int error = 1;

	OK(ncclEpErrorClear(b->group));
	b->p.absent = bench_masked(w, b->group);
	world_meet(w);
	for (uint64_t i = 0; i < 4; i++) {
		check_context("without ranks 0x%llx, pair %d", (unsigned long long)b->p.absent,
			      (int)i);
		bench_pair_of(b, 50 + i);
	}
	OK(ncclEpGetAsyncError(b->group, &error));
	CHECK(!error || b->p.absent); /* who waited too long for a rank may learn only now why */
	CHECK_INT(bench_masked(w, b->group), b->p.absent);
}

/*
 * What MaskClean cannot bring back, on this rank: one end of the connection for the other. A rank
 * that was held up by it may have been masked by more, for a time.
 */
static uint64_t lost_for_good(struct world *w, uint64_t absent)
{
	int other;

	if (w->rank == BROKEN) {
		NEED(absent);
		world_raise(w, FLAG_LOST, absent);
	}
	world_meet(w);
	other = __builtin_ctzll(world_look(w, FLAG_LOST, BROKEN));
	if (w->rank == BROKEN) {
		return UINT64_C(1) << other;
	}
	return w->rank == other ? UINT64_C(1) << BROKEN : 0;
}

static void with_masks(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 6, ORACLE_RANK_MAJOR);
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, BENCH_MASK, TIMEOUT_MS);
	double seconds, most = 0;
	uint64_t absent;
	struct bench b;

	bench_open(&b, w, group, &p, BENCH_MASK);
	bench_expert_work(&b);
	/* results are not defined until both ends know */
	for (int i = 0; i < 30; i++) {
		NEED_OK(victim_pair(&b, true, &seconds));
		most = seconds > most ? seconds : most;
	}
	CHECK(most < 2 * (TIMEOUT_MS / 1e3 + 1));
	absent = bench_masked(w, group);
	if (w->rank == BROKEN) {
		CHECK(absent && !(absent & (absent - 1)));
		CHECK(absent >> (w->nranks / 2)); /* of the other node */
	}
	go_on(w, &b);
	NEED_OK(ncclEpMaskClean(group, w->stream));
	CHECK_INT(bench_masked(w, group), lost_for_good(w, absent));
	go_on(w, &b);
	bench_end(&b);
	world_meet(w);
	victim_new_group(w, &p, TIMEOUT_MS);
}

int main(int argc, char **argv)
{
	NEED(argc >= 2);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3000", 0);
	setenv("NCCL_EP_RDMA_QUEUES", "2", 0);
	world_run(world_size(4), argc > 2 ? with_masks : without_masks, argv[1]);
	return check_end();
}
