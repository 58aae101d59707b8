/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MaskClean by all ranks, by those alone that have not been left out, and by a rank that comes
 * later: afterwards all are active, and whoever has called goes on together with the others.
 */
#include <string.h>
#include <unistd.h>
#include "support/bench.h"
#include "support/victim.h"

#define RANKS 4
#define TIMEOUT_MS 12000.0
#define LONG_MS 60000  /* more than any rank is late */
#define RACE_S 6.0     /* what takes longer where waits are so long has waited for somebody */
#define GRACE_S 2.0    /* for masked ranks; see doc/design/masks.md */
#define MARGIN_S 0.125 /* from the word to ranks that did not come to the next operation */
/*
 * By then what a NIC delivers 50 ms late has come, and what it sends when that was acknowledged has
 * not.
 */
#define APART_US 75000

static double timeout_ms; /* of the waits */
static double patience_s; /* the same in seconds, or RACE_S */

/* What a busy machine may take besides. */
static double slack_s(void)
{
	double least = 16;

	return patience_s > least ? patience_s : least;
}

static void expect_error(struct bench *b, int want)
{
	int error = -1;

	OK(ncclEpGetAsyncError(b->group, &error));
	CHECK_INT(error, want);
}

/* Calls MaskClean: all are active afterwards. Returns how long it took. */
static double clean(struct world *w, struct bench *b, int error)
{
	double start = world_now();

	OK(ncclEpMaskClean(b->group, w->stream));
	start = world_now() - start;
	expect_error(b, error);
	OK(ncclEpErrorClear(b->group));
	expect_error(b, 0);
	CHECK_INT(bench_masked(w, b->group), 0);
	return start;
}

/* All work together, and nobody has to be waited for. */
static void together(struct world *w, struct bench *b, uint64_t seed)
{
	double start;

	world_meet(w);
	start = world_now();
	b->p.absent = 0;
	bench_pair_of(b, seed);
	bench_pair_of(b, seed + 1);
	CHECK(world_now() - start < patience_s + slack_s());
	expect_error(b, 0);
	CHECK_INT(bench_masked(w, b->group), 0);
}

/* All call, whatever came before. */
static void joint(struct world *w, struct bench *b, uint64_t seed)
{
	world_meet(w);
	OK(ncclEpErrorClear(b->group));
	world_meet(w);
	CHECK(clean(w, b, 0) < patience_s);
	together(w, b, seed);
}

/* The others leave the ranks of `out` out; `both`: and each of these everybody. */
static void part(struct world *w, struct bench *b, uint32_t out, bool both)
{
	bool mine = out >> w->rank & 1;
	int mask[WORLD_MAX];

	for (int r = 0; r < w->nranks; r++) {
		mask[r] = mine ? !both || r == w->rank : !(out >> r & 1);
	}
	OK_SYNC(ncclEpMaskUpdate(b->group, mask, w->stream), w->stream);
}

/* A rank misses a dispatch, another one its combine; those who noticed call, then all. */
static void survivors(struct world *w, struct bench *b)
{
	const uint32_t away = 1u << 1 | 1u << 3;
	bool alive = !(away >> w->rank & 1);

	check_context("two ranks stop, the others clean up");
	bench_load(b, 10);
	if (w->rank != 1) {
		OK(bench_update(b, w->stream));
		OK_SYNC(bench_dispatch(b, w->stream), w->stream);
		expect_error(b, 1);
		CHECK_INT(bench_masked(w, b->group), 1u << 1);
	}
	world_meet(w);
	if (alive) {
		OK_SYNC(bench_combine(b, w->stream), w->stream);
		expect_error(b, 1);
		CHECK(clean(w, b, 1) < timeout_ms / 1e3 + GRACE_S + slack_s());
	}
	for (uint64_t i = 0; i < 3; i++) {
		joint(w, b, 20 + 2 * i);
	}
}

/* Ranks that were left out come when the others have cleaned up, each by itself. */
static void one_by_one(struct world *w, struct bench *b, uint32_t away, int rounds, bool both)
{
	bool out = away >> w->rank & 1;

	check_context("ranks 0x%x miss %d rounds%s", away, rounds, both ? ", parted" : "");
	world_meet(w);
	part(w, b, away, both);
	world_meet(w); /* MaskUpdate copies what the others' operations write */
	b->p.absent = away;
	for (int i = 0; i < rounds && !out; i++) {
		bench_pair_of(b, 30 + (uint64_t)i);
		CHECK(clean(w, b, 0) < GRACE_S + slack_s());
		part(w, b, i + 1 < rounds ? away : 0, false);
	}
	for (int r = 0; r < w->nranks; r++) {
		world_meet(w);
		if (out && r == w->rank) {
			CHECK(clean(w, b, 0) < GRACE_S + slack_s());
		}
	}
	together(w, b, 40);
}

/* Two ranks that were left out come together, the second one so much later. */
static void late_pair(struct world *w, struct bench *b, int first, int second, uint32_t us)
{
	uint32_t away = 1u << first | 1u << second;

	check_context("ranks %d and %d come together, %u us apart", first, second, us);
	joint(w, b, 160);
	part(w, b, away, false);
	world_meet(w);
	b->p.absent = away;
	if (!(away >> w->rank & 1)) {
		bench_pair_of(b, 164);
		CHECK(clean(w, b, 0) < GRACE_S + slack_s());
	}
	world_meet(w);
	if (away >> w->rank & 1) {
		usleep(w->rank == second ? us : 0);
		CHECK(clean(w, b, 0) < GRACE_S + slack_s());
	}
	together(w, b, 165);
}

/*
 * A rank misses a round, then the heap grows, in which the ranks have left each other the rounds
 * that they know; then the rank comes.
 */
static void grown(struct world *w, struct bench *b, int away)
{
	struct oracle_problem wider = b->p;
	struct bench larger;

	check_context("rank %d comes after the heap has grown", away);
	world_meet(w);
	part(w, b, 1u << away, false);
	world_meet(w);
	b->p.absent = UINT64_C(1) << away;
	if (w->rank != away) {
		bench_pair_of(b, 44);
		CHECK(clean(w, b, 0) < GRACE_S + slack_s());
	}
	wider.topk = b->p.topk + 1;
	wider.absent = 0;
	bench_open(&larger, w, b->group, &wider, BENCH_MASK);
	world_meet(w);
	if (w->rank == away) {
		CHECK(clean(w, b, 0) < GRACE_S + slack_s());
	}
	together(w, b, 45);
	together(w, &larger, 47);
	bench_close(&larger);
}

/* The others wait for the rank already, in the next operation. */
static void awaited(struct world *w, struct bench *b, int away)
{
	check_context("rank %d comes when it is waited for", away);
	world_meet(w);
	part(w, b, 1u << away, false);
	if (w->rank != away) {
		(void)clean(w, b, 0);
	}
	world_meet(w);
	if (w->rank == away) {
		usleep(300000);
		(void)clean(w, b, 0);
	}
	b->p.absent = 0;
	bench_pair_of(b, 50);
	expect_error(b, 0);
	CHECK_INT(bench_masked(w, b->group), 0);
}

/* A rank that nobody had masked does not come: an error, and it may come later all the same. */
static void missing(struct world *w, struct bench *b, int away)
{
	check_context("rank %d is missing", away);
	world_meet(w);
	if (w->rank != away) {
		CHECK(clean(w, b, 1) > timeout_ms / 1e3);
	}
	world_meet(w);
	if (w->rank == away) {
		(void)clean(w, b, 0);
	}
	together(w, b, 60);
}

static void alone(struct world *w, struct bench *b, int steps)
{
	for (int i = 0; i < steps; i++) {
		OK(bench_update(b, w->stream));
		OK_SYNC(bench_dispatch(b, w->stream), w->stream);
	}
}

/*
 * A rank goes on by itself, before the others clean up and, with `more`, afterwards: then it is
 * ahead of them and cannot join them alone, but with them.
 */
static void ahead(struct world *w, struct bench *b, int away, int more)
{
	uint32_t others = ((1u << w->nranks) - 1) & ~(1u << away);

	check_context("rank %d is ahead, and %d operations more", away, more);
	part(w, b, 1u << away, true);
	if (w->rank == away) {
		alone(w, b, 11);
	}
	world_meet(w);
	if (w->rank != away) {
		(void)clean(w, b, 0);
	}
	world_meet(w);
	if (w->rank == away) {
		alone(w, b, more);
		(void)clean(w, b, 0);
	}
	if (more) {
		world_meet(w);
		alone(w, b, 1);
		CHECK_INT(bench_masked(w, b->group), w->rank == away ? others : 1u << away);
		joint(w, b, 70);
	} else {
		together(w, b, 72);
	}
}

/*
 * A rank goes on without having called, while the others wait for it: it finds itself alone, at
 * once.
 */
static void unaware(struct world *w, struct bench *b, int away)
{
	uint32_t others = ((1u << w->nranks) - 1) & ~(1u << away);
	double start;

	check_context("rank %d does not know", away);
	part(w, b, 1u << away, false);
	if (w->rank != away) {
		b->p.absent = UINT64_C(1) << away;
		bench_pair_of(b, 80);
		(void)clean(w, b, 0);
		OK(bench_update(b, w->stream));
		OK(bench_dispatch(b, w->stream));
	}
	world_meet(w);
	usleep(200000);
	if (w->rank == away) {
		start = world_now();
		part(w, b, 0, false);
		alone(w, b, 1);
		CHECK(world_now() - start < timeout_ms / 1e3);
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	CHECK_INT(bench_masked(w, b->group), w->rank == away ? others : 1u << away);
	expect_error(b, 1);
	joint(w, b, 82);
}

enum before {
	COMBINED,
	DISPATCHED,
	ENDED,
	CAPTURED
};

/* All ranks run the same, which need not end with a combine. */
static void prepare(struct world *w, struct bench *b, enum before before)
{
	struct bench other = { 0 };

	joint(w, b, 100);
	bench_load(b, 104);
	if (before == ENDED) {
		bench_open(&other, w, b->group, &b->p, BENCH_MASK);
		bench_load(&other, 104);
		alone(w, &other, 1);
		bench_close(&other);
	} else if (before == DISPATCHED) {
		alone(w, b, 1);
	} else if (before == CAPTURED) {
		world_capture(w->stream);
		OK(bench_update(b, w->stream));
		OK(bench_dispatch(b, w->stream));
		OK(bench_combine(b, w->stream));
		NEED_CUDA(cudaGraphExecDestroy(world_captured(w->stream)));
	}
	world_meet(w);
}

/*
 * The others leave a rank out by hand and take it back before the next operation. It goes on as if
 * nothing had been, if a dispatch is what comes next on all ranks; otherwise it has to come, too.
 */
static void unneeded(struct world *w, struct bench *b, int away, enum before before)
{
	uint32_t others = ((1u << w->nranks) - 1) & ~(1u << away);

	check_context("rank %d does not come, case %d", away, before);
	prepare(w, b, before);
	if (w->rank != away) {
		part(w, b, 1u << away, false);
		CHECK(clean(w, b, 0) < GRACE_S + slack_s());
	}
	if (before == COMBINED) {
		together(w, b, 106);
		if (w->rank != away) {
			usleep((useconds_t)(1.5e6 * GRACE_S));
		}
		(void)clean(w, b,
			    0); /* it waits for the others, whose last round it has not seen */
		together(w, b, 108);
		return;
	}
	if (w->rank != away) {
		OK(bench_update(b, w->stream));
		OK(bench_dispatch(b, w->stream));
	}
	world_meet(w);
	usleep(200000); /* the others' dispatch shows that they are ahead */
	if (w->rank == away && before == DISPATCHED) {
		OK(bench_combine(b, w->stream));
	} else if (w->rank == away) {
		alone(w, b, 1);
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	CHECK_INT(bench_masked(w, b->group), w->rank == away ? others : 1u << away);
	joint(w, b, 110);
}

/*
 * Masked by hand between a dispatch and its combine, which all run; then the rank calls later, by
 * itself.
 */
static void stale(struct world *w, struct bench *b, int away)
{
	check_context("rank %d, stale words", away);
	joint(w, b, 120);
	bench_load(b, 124);
	OK(bench_update(b, w->stream));
	OK_SYNC(bench_dispatch(b, w->stream), w->stream);
	world_meet(w);
	if (w->rank == away) {
		OK(bench_combine(b, w->stream));
		usleep(200000);
	}
	world_meet(w);
	if (w->rank != away) {
		part(w, b, 1u << away, false);
		OK(bench_combine(b, w->stream));
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_meet(w);
	if (w->rank != away) {
		(void)clean(w, b, 0);
	}
	world_meet(w);
	if (w->rank == away) {
		(void)clean(w, b, 1);
		OK(bench_update(b, w->stream));
		OK(bench_dispatch(b, w->stream));
		usleep(300000);
	}
	world_meet(w);
	if (w->rank != away) {
		OK(bench_update(b, w->stream));
		OK(bench_dispatch(b, w->stream));
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	CHECK_INT(bench_masked(w, b->group), 0);
	joint(w, b, 130);
}

/*
 * The others leave a rank out by hand and clean up, and begin no operation yet. The rank begins one
 * before that (`early`), a dispatch, or afterwards, the combine that it owes: it learns at once
 * that they go on without it.
 */
static void between(struct world *w, struct bench *b, int away, bool early)
{
	uint32_t others = ((1u << w->nranks) - 1) & ~(1u << away);
	double start = 0;

	check_context("rank %d %s", away, early ? "is in a dispatch" : "goes on to its combine");
	prepare(w, b, early ? COMBINED : DISPATCHED);
	start = world_now();
	if (w->rank == away && early) {
		OK(bench_update(b, w->stream));
		OK(bench_dispatch(b, w->stream));
		usleep(200000); /* it waits for the others */
	}
	world_meet(w);
	if (w->rank != away) {
		part(w, b, 1u << away, false);
		CHECK(clean(w, b, 0) > GRACE_S + MARGIN_S);
	}
	if (!early) {
		world_meet(w);
		start = world_now();
		OK(w->rank == away ? bench_combine(b, w->stream) : ncclSuccess);
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	if (w->rank == away) {
		CHECK(world_now() - start < timeout_ms / 1e3, "%.1f s", world_now() - start);
		CHECK_INT(bench_masked(w, b->group), others);
		expect_error(b, 1);
	}
	joint(w, b, 140);
}

/*
 * The others leave a rank out and go on. It does not know that, and runs something else in the same
 * step. Nobody minds that when all are together again.
 */
static void strange(struct world *w, struct bench *b, int away, bool by_hand)
{
	struct oracle_problem p = b->p;
	struct bench other;

	p.dtype = ORACLE_FP32; /* and no more: its rows come to places of its own */
	p.hidden /= 2;
	check_context("rank %d runs something else without the others, back %s", away,
		      by_hand ? "by hand" : "by MaskClean");
	bench_open(&other, w, b->group, &p, BENCH_MASK);
	world_meet(w);
	part(w, b, 1u << away, false);
	if (w->rank == away) {
		OK(bench_update(&other, w->stream));
		OK(bench_dispatch(&other, w->stream));
	}
	world_meet(w);
	if (w->rank != away) {
		usleep(APART_US); /* by then the rank waits for the others */
		b->p.absent = UINT64_C(1) << away;
		bench_load(b, 150);
		bench_dispatch_checked(b);
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	if (w->rank == away) {
		expect_error(b, 1);
		OK(ncclEpErrorClear(b->group));
	}
	world_meet(w);
	if (by_hand) {
		part(w, b, 0, false);
		together(w, b, 151);
	} else {
		joint(w, b, 151);
	}
	bench_close(&other);
}

struct mode {
	bool race;
	bool pairs;
};

static void run(struct world *w, void *arg)
{
	const struct mode *mode = arg;
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 7, ORACLE_EXPERT_MAJOR);
	double ms = mode->race ? LONG_MS : TIMEOUT_MS;
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, BENCH_MASK, ms);
	struct bench b;

	if (w->rank == 0 || w->processes) {
		timeout_ms = ms;
		patience_s = mode->race ? RACE_S : ms / 1e3;
	}
	world_meet(w);

	bench_open(&b, w, group, &p, BENCH_MASK);
	bench_pair(&b);
	joint(w, &b, 1);
	if (mode->pairs) {
		for (int away = 0; away < RANKS; away++) {
			late_pair(w, &b, away, RANKS - 1 - away, APART_US);
		}
	} else if (mode->race) {
		one_by_one(w, &b, 1u << 2, 1, true);
		awaited(w, &b, 1);
		unneeded(w, &b, 3, COMBINED);
		joint(w, &b, 90);
	} else {
		stale(w, &b, 2);
		survivors(w, &b);
		one_by_one(w, &b, 1u << 2, 1, false);
		one_by_one(w, &b, 1u << 0 | 1u << 3, 3, true);
		grown(w, &b, 1);
		missing(w, &b, 2);
		ahead(w, &b, 1, 0);
		ahead(w, &b, 2, 30);
		unaware(w, &b, 3);
		unneeded(w, &b, 0, COMBINED);
		unneeded(w, &b, 2, COMBINED);
		unneeded(w, &b, 1, DISPATCHED);
		unneeded(w, &b, 1, ENDED);
		between(w, &b, 2, true);
		between(w, &b, 3, false);
		late_pair(w, &b, 0, 1, 0); /* of one node, where there are two */
		late_pair(w, &b, 2, 1, 1000);
		strange(w, &b, 1, true);
		strange(w, &b, 2, false);
	}
	bench_end(&b);
	if (!mode->race && !mode->pairs) {
		group = bench_group_bounded(w->comm, &p, BENCH_MASK, ms);
		bench_open(&b, w, group, &p, BENCH_MASK);
		unneeded(w, &b, 2, CAPTURED);
		bench_end(&b);
	}
}

/*
 * "race": what is worth a look by ThreadSanitizer, with waits that do not end by themselves.
 * "pairs": ranks of two nodes that come late together, again and again.
 */
int main(int argc, char **argv)
{
	struct mode mode = { .race = argc == 2 && !strcmp(argv[1], "race"),
			     .pairs = argc == 2 && !strcmp(argv[1], "pairs") };

	NEED(argc == 1 || mode.race || mode.pairs);
	world_run(world_size(RANKS), run, &mode);
	return check_end();
}
