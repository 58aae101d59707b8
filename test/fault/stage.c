/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A packet of rank 0's rows for rank 1 is lost, and sent again only after rank 0 would need the
 * memory for other rows. Rank 1 must not take those for what it waits for: it has the right rows or
 * an error.
 *
 *     stage gives_up     rank 0 waits as long as it may for the packet's completion
 *     stage mask         rank 0 has masked rank 1 meanwhile, and waits little
 *     stage slow         the same, but the packet is sent again in that time: MaskClean brings rank
 *                        1 back
 *
 *     stage room         instead, a queue of rank 0 to rank 1 does nothing any more and is small:
 *                        rank 0, waiting for room in it, gives rank 1 up before rank 2 gives up
 *                        rank 0
 *
 *     stage late         rank 2 holds rank 0's bank up for more than half of the timeout, and
 *                        packets of rank 0 take long: its waits for queues have their time all the
 *                        same
 */
#include <string.h>
#include <unistd.h>

#include "support/bench.h"
#include "support/victim.h"

#define TIMEOUT_MS 24000.0
#define SLOW_MS 128000.0 /* an eighth is twice as long as the NIC takes */

static char faults[600]; /* "@" and a path */

/* A row of rank 0 on its queue to rank 1, which is another node: signals are shorter. */
#define ON_ROWS ":rank=0,peer=1,op=write,bytes=256,count=1"

static void strike(const char *rule)
{
	char made[640];
	FILE *file;

	snprintf(made, sizeof(made), "%s.new", faults + 1);
	file = fopen(made, "w");
	NEED(file && fprintf(file, "%s\n", rule) >= 0 && !fclose(file));
	NEED(!rename(made, faults + 1));
	sleep(1); /* until the NIC has read it */
}

static bool failed(struct bench *b)
{
	ncclResult_t result = ncclSuccess;
	int error = 0;

	if (b->flags & BENCH_MASK) {
		OK(ncclEpGetAsyncError(b->group, &error));
		return error;
	}
	OK(ncclEpExtGetLastError(b->group, &result, NULL));
	return result != ncclSuccess;
}

/* Rank 0 goes on to its combine, whose rows need the place of those that are still under way. */
static void go_on(struct world *w, struct bench *b, double timeout_ms)
{
	const int mask[] = { 1, 0, 1 };
	double start = world_now();

	if (b->flags & BENCH_MASK) {
		OK(ncclEpMaskUpdate(b->group, mask, w->stream));
		b->p.absent = 1 << 1;
		bench_load(b, b->p.seed);
	}
	OK_SYNC(bench_combine(b, w->stream), w->stream);
	if (w->rank == 0) {
		CHECK(world_now() - start > 0.15); /* or nothing was lost */
	}
	CHECK(world_now() - start < timeout_ms / 1e3 + 1);
	if (b->flags & BENCH_MASK) {
		bench_check_combine(b);
	} else if (w->rank == 0) {
		CHECK(failed(b));
	}
}

static void all_back(struct world *w, struct bench *b)
{
	OK(ncclEpErrorClear(b->group)); /* rank 1 was told that rank 0 had masked it */
	world_meet(w);
	OK(ncclEpMaskClean(b->group, w->stream));
	CHECK_INT(bench_masked(w, b->group), 0);
	CHECK(!failed(b));
	b->p.absent = 0;
	bench_pair_of(b, 2);
}

static void rows_under_way(struct world *w, uint32_t flags, bool slow)
{
	double timeout_ms = slow ? SLOW_MS : TIMEOUT_MS;
	struct oracle_problem p = bench_problem(w->nranks, 3, 3, 256, 7, ORACLE_RANK_MAJOR);
	struct bench b;

	bench_open(&b, w, bench_group_bounded(w->comm, &p, flags, timeout_ms), &p, flags);
	bench_pair(&b);
	bench_pair(&b); /* both halves of the stage have been used */
	bench_poison(&b);
	OK_SYNC(bench_update(&b, w->stream), w->stream);
	world_meet(w);
	if (w->rank == 0) {
		strike("drop" ON_ROWS);
	}
	world_meet(w);
	OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
	if (w->rank != 1) {
		CHECK(!failed(&b));
		bench_check_dispatch(&b);
		bench_expert_work(&b);
		go_on(w, &b, timeout_ms);
	} else if (!failed(&b)) {
		bench_check_dispatch(&b);
	}
	world_meet(w);
	if (slow) {
		all_back(w, &b);
	}
	bench_end(&b);
}

static void room(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 3, 3, 256, 96, ORACLE_RANK_MAJOR);
	double start;
	struct bench b;

	bench_open(&b, w, bench_group_bounded(w->comm, &p, BENCH_MASK, TIMEOUT_MS), &p, BENCH_MASK);
	bench_pair(&b);
	OK_SYNC(bench_update(&b, w->stream), w->stream);
	world_meet(w);
	if (w->rank == 0) {
		strike("stuck" ON_ROWS);
	}
	world_meet(w);
	start = world_now();
	OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
	if (w->rank != 1) {
		CHECK_INT(bench_masked(w, b.group), w->rank ? 0 : 1 << 1);
		CHECK(world_now() - start < 0.8 * TIMEOUT_MS / 1e3);
	}
	world_meet(w);
	bench_end(&b);
}

/* Rank 2 gets no tokens, so the others are at their next dispatch when it begins its combine. */
static void late(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 3, 2, 256, 96, ORACLE_RANK_MAJOR);
	int32_t line[ORACLE_MAX_TOPK];
	struct bench b;
	double start;

	memset(line, 0xff, sizeof(line));
	line[0] = 0;
	line[1] = 1;
	p.routing.family = ORACLE_FILE;
	p.routing.lines = line;
	p.routing.nlines = 1;
	bench_open(&b, w, bench_group_bounded(w->comm, &p, 0, TIMEOUT_MS), &p, 0);
	bench_pair(&b);
	OK_SYNC(bench_update(&b, w->stream), w->stream);
	OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
	bench_expert_work(&b);
	world_meet(w);
	if (w->rank == 0) {
		strike("delay:rank=0,op=write,us=20000,prob=1");
	}
	world_meet(w);
	start = world_now();
	if (w->rank == 2) {
		usleep((useconds_t)(0.6 * TIMEOUT_MS * 1e3));
	}
	OK_SYNC(bench_combine(&b, w->stream), w->stream);
	CHECK(w->rank == 2 || world_now() - start < 0.5 * TIMEOUT_MS / 1e3);
	OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
	CHECK(world_now() - start > 0.6 * TIMEOUT_MS / 1e3);
	CHECK(!failed(&b));
	bench_check_dispatch(&b);
	bench_end(&b);
}

static void run(struct world *w, void *arg)
{
	const char *scene = arg;

	if (!strcmp(scene, "room")) {
		room(w);
	} else if (!strcmp(scene, "late")) {
		late(w);
	} else {
		rows_under_way(w, strcmp(scene, "gives_up") ? BENCH_MASK : 0,
			       !strcmp(scene, "slow"));
	}
}

int main(int argc, char **argv)
{
	NEED(argc == 2 && getenv("VC_DIR"));
	snprintf(faults, sizeof(faults), "@%s/faults", getenv("VC_DIR"));
	if (world_number(getenv("RANK"), WORLD_MAX) == 0) {
		FILE *file = fopen(faults + 1, "w");

		NEED(file && !fclose(file));
	}
	setenv("VC_NIC_FAULTS", faults, 1);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3000", 0);
	world_run(3, run, argv[1]);
	return check_end();
}
