/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks are lost between a dispatch and its combine: the waits for them do not add up, also
 * where the same warp waits for one after the other. And a rank that one of them holds up is not
 * taken for lost, however short the timeout.
 */
#include <unistd.h>

#include "support/bench.h"
#include "support/victim.h"
#include "ep/ep.h"
#include "peer/peer.h"

#define RANKS 8
#define TIMEOUT_MS 6400.0
#define TURN_MS 12000.0
#define SHORT_MS 300 /* less than what a lost rank is granted beyond the timeout */

/* The last `lost` ranks stay away from the combine. */
static void together(struct world *w, int lost)
{
	struct oracle_problem p = bench_problem(w->nranks, 64, 4, 64, 5, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, BENCH_MASK, TIMEOUT_MS);
	int here = w->nranks - lost;
	struct bench b;
	double start;

	check_context("%d ranks are lost", lost);
	bench_open(&b, w, group, &p, BENCH_MASK);
	bench_pair(&b);
	bench_dispatch_checked(&b);
	world_meet(w);
	if (w->rank < here) {
		start = world_now();
		OK_SYNC(bench_combine(&b, w->stream), w->stream);
		start = world_now() - start;
		CHECK(start < TIMEOUT_MS / 1e3 + 1.2, "%.2f s", start);
		CHECK_INT(bench_masked(w, group) & ((1u << here) - 1), 0);
	}
	world_meet(w);
	bench_end(&b);
}

/*
 * One block of two warps receives. Each warp waits for a row of the last rank but one, and when it
 * has given that one up, for a row of the last rank, which has had its time by then.
 */
static void in_turn(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, (uint32_t)w->nranks, 1, 64, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, BENCH_MASK);
	int32_t last = w->nranks - 1, ids[4] = { last - 1, last - 1, last, last };
	ncclEpGroup_t group = NULL;
	struct bench b;
	double start;

	check_context("one after the other");
	config.max_num_sms = 2;
	config.timeout_ns = (uint64_t)(TURN_MS * 1e6);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, BENCH_MASK);
	NEED_CUDA(cudaMemcpy(b.ids.t.data, ids, sizeof(ids), cudaMemcpyHostToDevice));
	OK(bench_update(&b, w->stream));
	OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
	world_meet(w);
	if (w->rank < last - 1) {
		start = world_now();
		OK_SYNC(bench_combine(&b, w->stream), w->stream);
		start = world_now() - start;
		CHECK(start < TURN_MS / 1e3 + 1, "%.2f s", start);
		CHECK_INT(bench_masked(w, group), 3u << (last - 1));
	}
	world_meet(w);
	bench_end(&b);
}

/* A group with masks and so long a timeout, and a dispatch of four tokens to these experts. */
static ncclEpGroup_t dispatched(struct world *w, struct bench *b, double timeout_ms,
				const int32_t ids[4])
{
	struct oracle_problem p = bench_problem(w->nranks, 24, 1, 64, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, BENCH_MASK, timeout_ms);

	bench_open(b, w, group, &p, BENCH_MASK);
	NEED_CUDA(cudaMemcpy(b->ids.t.data, ids, 4 * sizeof(*ids), cudaMemcpyHostToDevice));
	OK(bench_update(b, w->stream));
	OK_SYNC(bench_dispatch(b, w->stream), w->stream);
	world_meet(w);
	return group;
}

/*
 * Rank 2 stays away from a combine. Rank 1 waits for its rows; rank 0 needs none, and waits for
 * rank 1 in the dispatch that follows.
 */
static void held(struct world *w)
{
	ncclEpGroup_t group;
	int32_t ids[4];
	struct bench b;

	check_context("held up");
	for (int i = 0; i < 4; i++) {
		ids[i] = w->rank == 1 ? 6 + i % 3 : i % 6; /* three experts per rank */
	}
	group = dispatched(w, &b, SHORT_MS, ids);
	if (w->rank != 2) {
		OK(bench_combine(&b, w->stream));
		OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
		CHECK_INT(bench_masked(w, group), 1u << 2);
	}
	world_meet(w);
	bench_end(&b);
}

#define LATE_MS 2000.0
#define LATE_US 1800000 /* rank 1 comes to the combine, and LATE_REST_US after it to the dispatch */
#define LATE_REST_US 1000000

/* All that comes of this rank's next operation is that it has begun. */
static void begin_and_end(struct world *w, ncclEpGroup_t group)
{
	uint64_t *words = (uint64_t *)(group->peer_heap.base[w->rank] + group->heap.progress_off);
	uint32_t step = (uint32_t)words[w->rank] + 1;

	for (int r = 0; r < w->nranks; r++) {
		if (!group->peer_heap.base[r]) {
			continue; /* its words for other nodes are lost */
		}
		words = (uint64_t *)(group->peer_heap.base[r] + group->heap.progress_off);
		__atomic_store_n(words + w->rank, ep_progress_word(step, 0, 0), __ATOMIC_RELEASE);
	}
}

/*
 * Rank 2 is lost in a combine, rank 3 before it. Rank 1 comes to it late, waits for rows of both,
 * and takes its time afterwards. The others need none of these rows, and wait for all three in the
 * dispatch that follows: rank 1 lives.
 */
static void late(struct world *w)
{
	ncclEpGroup_t group;
	int32_t ids[4];
	struct bench b;

	check_context("late, and held up");
	for (int i = 0; i < 4; i++) {
		ids[i] = w->rank == 1 ? 6 + i : 15 + i; /* ranks 2 and 3; 5 and 6 */
	}
	group = dispatched(w, &b, LATE_MS, ids);
	if (w->rank == 2) {
		begin_and_end(w, group);
	} else if (w->rank != 3) {
		usleep(w->rank == 1 ? LATE_US : 0);
		OK_SYNC(bench_combine(&b, w->stream), w->stream);
		usleep(w->rank == 1 ? LATE_REST_US : 0);
		OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
		CHECK_INT(bench_masked(w, group), 3u << 2);
	}
	world_meet(w);
	bench_end(&b);
}

/*
 * Rank 2 is lost behind a dispatch, and nobody needs it in the combine. Its bank is waited for in
 * the next dispatch. Rank 1 comes late to that, and sends its counts when it has given rank 2 up.
 */
static void late_for_bank(struct world *w)
{
	static const int32_t ids[4] = { 9, 10, 11, 12 }; /* ranks 3 and 4 */
	struct bench b;
	ncclEpGroup_t group = dispatched(w, &b, LATE_MS, ids);

	check_context("late for a bank");
	if (w->rank != 2) {
		OK_SYNC(bench_combine(&b, w->stream), w->stream);
		usleep(w->rank == 1 ? LATE_US : 0);
		OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
		CHECK_INT(bench_masked(w, group), 1u << 2);
	}
	world_meet(w);
	bench_end(&b);
}

/*
 * Rank 2 is lost behind a combine. Its counts are waited for in the next dispatch, to which rank 1
 * comes late. Then rank 1 takes its time, and the others wait for its rows.
 */
static void late_for_counts(struct world *w)
{
	static const int32_t ids[4] = { 3, 4, 5, 9 }; /* ranks 1 and 3 */
	struct bench b;
	ncclEpGroup_t group = dispatched(w, &b, LATE_MS, ids);

	check_context("late for counts");
	OK_SYNC(bench_combine(&b, w->stream), w->stream);
	world_meet(w);
	if (w->rank != 2) {
		usleep(w->rank == 1 ? LATE_US : 0);
		OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
		usleep(w->rank == 1 ? LATE_REST_US : 0);
		OK_SYNC(bench_combine(&b, w->stream), w->stream);
		CHECK_INT(bench_masked(w, group), 1u << 2);
	}
	world_meet(w);
	bench_end(&b);
}

static void run(struct world *w, void *arg)
{
	together(w, 1);
	together(w, 4);
	in_turn(w);
	held(w);
	late(w);
	late_for_bank(w);
	late_for_counts(w);
}

int main(void)
{
	world_run(world_size(RANKS), run, NULL);
	return check_end();
}
