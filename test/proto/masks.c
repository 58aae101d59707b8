/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks by hand, and the ranks that stay away: MaskUpdate leaves a rank out without a wait, an
 * expired wait does it by itself, MaskClean and ErrorClear undo it. Repeated.
 */
#include <string.h>
#include <unistd.h>
#include "ep/ep.h"
#include "support/bench.h"
#include "support/victim.h"

#define RANKS 4
#define TIMEOUT_MS 16000.0   /* of the waits */
#define OVERTAKEN_MS 60000.0 /* rows that a word has overtaken get an eighth of it */

static double timeout_ms; /* of the waits */

struct plan {
	unsigned int sms;
	bool late;
	bool hand;
	bool overtaken;
	bool quantised;
};

static void expect_error(ncclEpGroup_t group, int want)
{
	int error = -1;

	OK(ncclEpGetAsyncError(group, &error));
	CHECK_INT(error, want);
}

/*
 * All ranks come to MaskClean, and work together again. Who masks a rank next does so when that one
 * waits for nothing: rows that the word overtakes get T/8, which a busy machine with a short T does
 * not keep (overtaken() has a long one).
 */
static void all_back(struct world *w, struct bench *b, uint64_t seed)
{
	int error = -1;

	world_meet(w);
	OK(ncclEpGetAsyncError(b->group, &error));
	OK(ncclEpMaskClean(b->group, w->stream));
	expect_error(b->group, error); /* stays until it is cleared */
	OK(ncclEpErrorClear(b->group));
	CHECK_INT(bench_masked(w, b->group), 0);
	world_meet(w);
	b->p.absent = 0;
	bench_pair_of(b, seed);
	expect_error(b->group, 0);
	world_meet(w);
}

/* The group's last error says that a rank was lost, though no call has returned it. */
static void expect_named(ncclEpGroup_t group, const char *how, int rank)
{
	char part[64];

	snprintf(part, sizeof(part), "%s rank %d ", how, rank);
	CHECK_LAST(group, ncclRemoteError, part);
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
		CHECK_INT(bench_masked(w, b->group), absent);
		b->p.absent = absent;
		start = world_now();
		for (uint64_t i = 0; i < 3; i++) {
			bench_pair_of(b, 20 + i);
		}
		CHECK(world_now() - start < 3 * timeout_ms / 1e3);
		expect_error(b->group, 0);
	}
	all_back(w, b, 30 + absent);
}

/* A rank is masked after the dispatch: the combine leaves out what it would have returned. */
static void between(struct world *w, struct bench *b, int away)
{
	int mask[WORLD_MAX];

	check_context("rank %d is masked before the combine", away);
	bench_load(b, 60);
	bench_dispatch_checked(b);
	for (int r = 0; r < w->nranks; r++) {
		mask[r] = r != away;
	}
	if (w->rank != away) {
		OK(ncclEpMaskUpdate(b->group, mask, w->stream));
		OK_SYNC(bench_combine(b, w->stream), w->stream);
		b->p.absent = UINT64_C(1) << away;
		bench_load(b, 60);
		bench_check_combine(b);
		expect_error(b->group, 0);
	}
	all_back(w, b, 61);
}

/* The last rank stays away from a combine: of its rows, which come as lines, nothing is added. */
static void returns_nothing(struct world *w, struct bench *b)
{
	int away = w->nranks - 1;

	check_context("rank %d returns nothing", away);
	for (int i = 0; i < 3; i++) { /* older lines lie in each bank where none come */
		bench_pair_of(b, 150);
	}
	bench_load(b, 150);
	bench_dispatch_checked(b);
	world_meet(w);
	if (w->rank != away) {
		OK_SYNC(bench_combine(b, w->stream), w->stream);
		b->p.absent = UINT64_C(1) << away;
		bench_load(b, 150);
		bench_check_combine(b);
		expect_error(b->group, 1);
		expect_named(b->group, "waited for", away);
	}
	all_back(w, b, 151);
}

/* One rank leaves out some pairs without a word. */
static void by_itself(struct world *w, struct bench *b, int away)
{
	check_context("rank %d stays away", away);
	if (w->rank != away) {
		b->p.absent = UINT64_C(1) << away;
		bench_pair_of(b, 40); /* waits, and then it counts as absent */
		expect_error(b->group, 1);
		expect_named(b->group, "waited for", away);
		CHECK_INT(bench_masked(w, b->group), 1u << away);
		OK(ncclEpErrorClear(b->group));
		bench_pair_of(b, 41);
		expect_error(b->group, 0);
	}
	all_back(w, b, 42);
	bench_pair_of(b, 43);
	expect_error(b->group, 0);
}

/* A late operation ends without a wait, and the rank knows who has masked it: all others. */
static void expect_alone(struct world *w, struct bench *b,
			 ncclResult_t (*call)(struct bench *, cudaStream_t))
{
	double start = world_now();

	OK_SYNC(call(b, w->stream), w->stream);
	CHECK(world_now() - start < timeout_ms / 1e3);
	expect_error(b->group, 1);
	expect_named(b->group, "goes on without", w->rank);
	CHECK_INT(bench_masked(w, b->group), ((1u << w->nranks) - 1) & ~(1u << w->rank));
	OK(ncclEpErrorClear(b->group));
	expect_named(b->group, "goes on without", w->rank);
}

/* The others go on for more steps than anybody can be ahead: who comes back sends them nothing. */
static void left_behind(struct world *w, struct bench *b, int away)
{
	check_context("rank %d is left behind", away);
	if (w->rank != away) {
		b->p.absent = UINT64_C(1) << away;
		for (uint64_t i = 0; i < 5; i++) {
			bench_pair_of(b, 70 + i);
		}
		OK(ncclEpErrorClear(b->group));
	}
	world_meet(w);
	if (w->rank == away) {
		OK(bench_update(b, w->stream));
		expect_alone(w, b, bench_dispatch);
	}
	world_meet(w);
	if (w->rank != away) {
		bench_pair_of(b, 80);
		expect_error(b->group, 0);
	}
	all_back(w, b, 81);
}

/* A rank misses a combine, and comes when the others use its bank for a dispatch. */
static void late_combine(struct world *w, struct bench *b, int away)
{
	ncclEpCompleteConfig_t complete = NCCL_EP_COMPLETE_CONFIG_INIT;

	check_context("rank %d is late for a combine", away);
	bench_load(b, 100);
	bench_dispatch_checked(b);
	world_meet(w);
	if (w->rank != away) {
		OK_SYNC(bench_combine(b, w->stream), w->stream);
		CHECK_INT(bench_masked(w, b->group), 1u << away);
		OK(ncclEpErrorClear(b->group));
		b->p.absent = UINT64_C(1) << away;
		OK_SYNC(bench_combine(b, w->stream), w->stream);
		bench_load(b, 102);
		bench_poison(b);
		OK(bench_update(b, w->stream));
		OK(bench_send_dispatch(b, w->stream)); /* two steps after the combine: its bank */
		NEED_CUDA(cudaStreamSynchronize(w->stream));
	}
	world_meet(w);
	if (w->rank == away) {
		expect_alone(w, b, bench_combine);
	}
	world_meet(w);
	if (w->rank != away) {
		OK_SYNC(ncclEpComplete(b->handle, &complete, w->stream), w->stream);
		bench_check_dispatch(b);
		expect_error(b->group, 0);
	}
	all_back(w, b, 103);
}

/* The mask leaves out `absent`, seen from others, and all others, seen from those. */
static void part(struct world *w, struct bench *b, uint32_t absent)
{
	int mask[WORLD_MAX];

	for (int r = 0; r < w->nranks; r++) {
		mask[r] = (absent >> r & 1) == (absent >> w->rank & 1);
	}
	OK_SYNC(ncclEpMaskUpdate(b->group, mask, w->stream), w->stream);
}

/* Two ranks part from the others by hand, go on by themselves, and come back by hand. */
static void back_by_hand(struct world *w, struct bench *b)
{
	const uint32_t two = 3;
	bool of_two = two >> w->rank & 1;

	check_context("masked by hand, taken in by hand");
	part(w, b, two);
	b->p.absent = of_two ? ((1u << w->nranks) - 1) & ~two : two;
	for (uint64_t i = 0; i < 3; i++) {
		bench_pair_of(b, 120 + i);
	}
	world_meet(w);
	part(w, b, 0);
	world_meet(w);
	b->p.absent = 0;
	bench_pair_of(b, 130);
	expect_error(b->group, 0);
	CHECK_INT(bench_masked(w, b->group), 0);
}

/*
 * One node's rows come late; its words, which have a queue of their own, do not. So its ranks have
 * ended a combine, masked those of the other node and told them in a later step, while these still
 * wait for rows of that combine.
 */
static void overtaken(struct world *w, struct bench *b)
{
	const uint32_t two = 3;
	uint32_t others = (two >> w->rank & 1) ? ((1u << w->nranks) - 1) & ~two : two;

	check_context("rows that the word of their sender's mask has overtaken");
	bench_pair_of(b, 140);
	part(w, b, two);
	b->p.absent = others;
	for (uint64_t i = 0; i < 3; i++) {
		bench_pair_of(b, 141 + i);
	}
	expect_error(b->group, 0);
	CHECK_INT(bench_masked(w, b->group), others);
	world_meet(w);
	part(w, b, 0);
	world_meet(w);
	b->p.absent = 0;
}

/*
 * A rank has sent a dispatch and does not complete it. The others come round to its bank with ids
 * that name the rank, and their wait for it expires: what it has not read yet stays as it is. The
 * combine before that needs nothing of it.
 */
static void held(struct world *w, ncclEpGroup_t group, const struct oracle_problem *p, int late)
{
	ncclEpCompleteConfig_t complete = NCCL_EP_COMPLETE_CONFIG_INIT;
	struct oracle_problem hot = *p;
	struct bench first, open, next;

	check_context("rank %d has not completed a dispatch", late);
	hot.routing.family = ORACLE_HOT;
	hot.routing.hot_ppm = 1000000;
	hot.routing.hot_rank = (uint32_t)(late + 1) % (uint32_t)w->nranks;
	bench_open(&first, w, group, &hot, BENCH_MASK);
	bench_open(&open, w, group, p, BENCH_MASK);
	bench_open(&next, w, group, p, BENCH_MASK);
	bench_pair(&first);
	bench_poison(&open);
	OK(bench_update(&open, w->stream));
	OK_SYNC(bench_send_dispatch(&open, w->stream), w->stream);
	world_meet(w);
	if (w->rank != late) {
		OK(ncclEpComplete(open.handle, &complete, w->stream));
		OK_SYNC(bench_combine(&first, w->stream), w->stream);
		bench_check_dispatch(&open);
		bench_check_combine(&first);
		expect_error(group, 0);
		next.p.absent = UINT64_C(1) << late;
		bench_pair_of(&next, 90);
		expect_error(group, 1);
		CHECK_INT(bench_masked(w, group), 1u << late);
	}
	world_meet(w);
	if (w->rank == late) {
		OK_SYNC(ncclEpComplete(open.handle, &complete, w->stream), w->stream);
		bench_check_dispatch(&open);
		expect_error(group, 0);
	}
	all_back(w, &next, 91);
	bench_close(&first);
	bench_close(&open);
	bench_close(&next);
}

/*
 * The others lead a rank by as many steps as they can without it: they complete an operation in
 * each bank, in two halves, that needs nothing of it, and begin the next one. That is no parting.
 */
static void lead(struct world *w, ncclEpGroup_t group, const struct oracle_problem *p, int late)
{
	struct oracle_problem hot = *p;
	struct bench b;

	check_context("rank %d comes as late as it may", late);
	hot.routing.family = ORACLE_HOT;
	hot.routing.hot_ppm = 1000000;
	hot.routing.hot_rank = (uint32_t)(late + 1) % (uint32_t)w->nranks;
	bench_open(&b, w, group, &hot, BENCH_MASK);
	bench_pair(&b);
	world_meet(w);
	if (w->rank == late) {
		usleep((useconds_t)(timeout_ms * 250));
	}
	for (uint32_t i = 0; i <= group->config.shape.banks; i++) {
		OK(bench_send_combine(&b, w->stream));
		OK(ncclEpComplete(b.handle, NULL, w->stream));
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	bench_check_combine(&b);
	expect_error(group, 0);
	CHECK_INT(bench_masked(w, group), 0);
	world_meet(w);
	bench_close(&b);
}

static void run(struct world *w, void *arg)
{
	const struct plan *plan = arg;
	double timeout;

	timeout = plan->overtaken ? OVERTAKEN_MS : TIMEOUT_MS;
	if (w->rank == 0 || w->processes) {
		timeout_ms = timeout;
	}
	world_meet(w);
	for (int layout = 1; layout <= 2; layout++) {
		struct oracle_problem p = bench_problem(
			w->nranks, 12, 3, 256, plan->sms > 4 ? 17 : 7, (enum oracle_layout)layout);
		ncclEpGroupConfig_t config;
		ncclEpGroup_t group = NULL;
		const char *text = "";
		ncclResult_t code;
		struct bench b;

		if (plan->quantised) {
			p.hidden = 896;
			p.dtype = ORACLE_BF16;
			p.combine_quant = ORACLE_COMBINE_FP8;
		}
		config = bench_group_config(&p, BENCH_MASK);
		config.timeout_ns = (uint64_t)(timeout_ms * 1e6);
		config.max_num_sms = plan->sms;
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		bench_open(&b, w, group, &p, BENCH_MASK);
		CHECK_INT(bench_masked(w, group), 0);
		bench_pair(&b);
		expect_error(group, 0);
		world_meet(w);
		if (plan->hand || plan->overtaken || plan->quantised) {
			void (*scene)(struct world *, struct bench *) = plan->hand ? back_by_hand
									: plan->overtaken
										? overtaken
										: returns_nothing;

			scene(w, &b);
			scene(w, &b);
			bench_end(&b);
			continue;
		}
		by_hand(w, &b, 1u << 2);
		by_hand(w, &b, 1u << 0 | 1u << 3);
		between(w, &b, 2);
		by_itself(w, &b, 1);
		if (layout == 1) {
			by_itself(w, &b, 3);
		}
		if (layout == 1 && plan->late) {
			left_behind(w, &b, 2);
			late_combine(w, &b, 1);
			back_by_hand(w, &b);
			held(w, group, &p, 1);
			lead(w, group, &p, 2);
		}
		OK(ncclEpExtGetLastError(group, &code, &text));
		CHECK(code == ncclSuccess || code == ncclRemoteError, "%s", text);
		bench_end(&b);
	}
}

/*
 * masks SMS [late|hand|overtaken|quantised]: with so many blocks; late: also with ranks that come
 * too late, which takes more waits that expire; hand: only ranks that are masked and taken in by
 * hand; overtaken: the same while rows are on their way, which the environment delays; quantised: a
 * rank stays away from combines whose rows are quantised.
 */
int main(int argc, char **argv)
{
	struct plan plan = { .sms = (unsigned int)world_number(argc > 1 ? argv[1] : NULL, 0),
			     .late = argc == 3 && strcmp(argv[2], "late") == 0,
			     .hand = argc == 3 && strcmp(argv[2], "hand") == 0,
			     .overtaken = argc == 3 && strcmp(argv[2], "overtaken") == 0,
			     .quantised = argc == 3 && strcmp(argv[2], "quantised") == 0 };

	NEED(plan.sms && (argc == 2 || plan.late || plan.hand || plan.overtaken || plan.quantised));
	world_run(world_size(RANKS), run, &plan);
	return check_end();
}
