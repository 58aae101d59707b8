/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All blocks of a kernel must agree on who takes part, or rows of ranks that are well get lost:
 * where they lie follows from it. Groups with masks and several receiving blocks, and a rank that
 * is in doubt for some of them. Every byte that comes out must follow from one set of absent ranks.
 *
 *     views MODE [ROUNDS]
 *         split    a late rank finds all counts, and the words by which the others have masked it
 *         strike   a rank's counts arrive about when another block or the host masks it (here: the
 *                  test does)
 *         again    a rank that a kernel has masked before (here: the test has) is masked by the
 *                  host
 *         edge     a rank's counts arrive about when the others' waits for it expire
 *         sum      a rank's rows of a combine do
 *         struck   a rank is masked (here: by the test) while its rows of a combine arrive
 *         present  a rank is in doubt for all blocks (here: the test has masked it while kernels
 *                  ran), and all its counts are here: it takes part
 *         beyond   66 ranks: all counts are there, of one above rank 63, too, without which other
 *                  blocks have decided to go on (here: the test has)
 */
#include <math.h>
#include <string.h>
#include <unistd.h>
#include "device/group/group_layout.h"
#include "ep/ep.h"
#include "support/bench.h"
#include "support/victim.h"

#define RANKS 3
#define SMS 8
#define FIRST_STEP_S 0.008 /* edge, sum: by which a rank comes earlier or later */
#define LAST_STEP_S 0.0003
#define SPREAD_US 3000    /* strike: between the rank that is late and who masks it */
#define TIMEOUT_MS 3000.0 /* where waits expire */

struct mode {
	const char *name;
	void (*round)(struct bench *b, uint64_t round);
	uint64_t rounds;
	bool expires; /* waits do; else the timeout is long */
};

/* What a dispatch must have left here when the ranks `absent` are. */
struct view {
	uint64_t open; /* ranks whose rows need not have come: they failed on the way */
	uint8_t *tokens;
	uint8_t *skip; /* per row: is of such a rank */
	float *scales;
	int32_t *counts;
};

static void view_row(struct bench *b, uint32_t block, uint32_t row, uint32_t src, uint32_t token,
		     const int32_t *ids, void *context)
{
	struct view *v = context;
	size_t at = (size_t)block * b->rows + row;

	(void)ids;
	oracle_output_row(&b->p, src, token, v->tokens + at * oracle_output_bytes(&b->p),
			  v->scales);
	v->skip[at] = v->open >> src & 1;
	v->counts[block]++;
}

/* Rows and counts that are not as the view says; rows of nobody must be as they were. */
static uint32_t view_wrong(struct bench *b, const uint8_t *tokens, const int32_t *counts,
			   uint64_t absent, uint64_t open)
{
	size_t rows = (size_t)b->blocks * b->rows, bytes = oracle_output_bytes(&b->p);
	struct view v = { .open = open };
	uint32_t wrong = 0;

	v.tokens = malloc(b->out_tokens.bytes);
	v.skip = calloc(rows, 1);
	v.scales = calloc(oracle_scale_words(&b->p) + 1, sizeof(*v.scales));
	v.counts = calloc(b->blocks, sizeof(*v.counts));
	NEED(v.tokens && v.skip && v.scales && v.counts);
	memset(v.tokens, ORACLE_POISON, b->out_tokens.bytes);
	b->p.absent = absent;
	bench_places(b, view_row, &v);
	b->p.absent = 0;
	for (size_t i = 0; i < rows; i++) {
		wrong += !v.skip[i] && memcmp(tokens + i * bytes, v.tokens + i * bytes, bytes) != 0;
	}
	for (uint32_t i = 0; i < b->blocks; i++) {
		wrong += counts[i] != v.counts[i];
	}
	free(v.counts);
	free(v.scales);
	free(v.skip);
	free(v.tokens);
	return wrong;
}

/* The output follows from one set of absent ranks, out of those that are masked. */
static void check_one_view(struct bench *b, uint64_t masked, uint64_t open)
{
	uint8_t *tokens = tensor_fetch(&b->out_tokens);
	int32_t *counts = tensor_fetch(&b->counts);
	uint32_t best = UINT32_MAX;
	uint64_t best_absent = 0;

	for (uint64_t absent = 0; absent <= masked; absent++) {
		uint32_t wrong = absent & ~masked ? UINT32_MAX
						  : view_wrong(b, tokens, counts, absent, open);

		if (wrong < best) {
			best = wrong;
			best_absent = absent;
		}
	}
	CHECK(best == 0, "rank %d, masked 0x%llx: %u rows and counts wrong if 0x%llx are absent",
	      b->w->rank, (unsigned long long)masked, best, (unsigned long long)best_absent);
	free(counts);
	free(tokens);
}

static void prepare(struct bench *b, uint64_t seed)
{
	bench_load(b, seed);
	bench_poison(b);
	OK_SYNC(bench_update(b, b->w->stream), b->w->stream);
	world_meet(b->w);
}

static void all_back(struct bench *b)
{
	world_meet(b->w);
	OK(ncclEpMaskClean(b->group, b->w->stream));
	OK(ncclEpErrorClear(b->group));
	CHECK_INT(bench_masked(b->w, b->group), 0);
	world_meet(b->w);
}

/* The others send to the late rank, mask it, and tell it with the step of their receive half. */
static void split(struct bench *b, uint64_t round)
{
	struct world *w = b->w;
	int late = w->nranks - 1, mask[RANKS];
	uint64_t others = (1u << late) - 1;

	prepare(b, 70 + round);
	if (w->rank != late) {
		for (int r = 0; r < w->nranks; r++) {
			mask[r] = r != late;
		}
		OK_SYNC(bench_send_dispatch(b, w->stream), w->stream);
		OK(ncclEpMaskUpdate(b->group, mask, w->stream));
		OK_SYNC(ncclEpComplete(b->handle, NULL, w->stream), w->stream);
		check_one_view(b, 1u << late, 0);
	}
	world_meet(w);
	if (w->rank == late) {
		OK(bench_send_dispatch(b, w->stream));
		OK(ncclEpComplete(b->handle, NULL, w->stream));
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		CHECK_INT(bench_masked(w, b->group), others);
		check_one_view(b, others, 0); /* all that they sent is here */
	}
	all_back(b);
}

/* As a block of step `step` would mask the rank, or the host. */
static void strike_rank(struct bench *b, uint32_t rank, uint32_t step)
{
	int32_t *mask = b->group->mask;

	__atomic_store_n(ep_mask_steps(mask, b->p.nranks) + rank, step, __ATOMIC_RELAXED);
	__atomic_store_n(mask + rank, 0, __ATOMIC_RELEASE);
}

/* As the host does when it finds the rank's connection lost. */
static void host_masks(struct bench *b, uint32_t rank)
{
	ep_ranks_add(&b->group->mask_due, (uint32_t)rank);
	b->group->masks_due = true;
	(void)bench_masked(b->w, b->group);
}

static void late_counts(struct bench *b, uint64_t round, bool masked_before)
{
	struct world *w = b->w;
	uint64_t draw = 1000 * round + (uint64_t)w->rank;
	useconds_t delay = (useconds_t)world_draw(&draw, SPREAD_US);
	struct ep_dev_seq seq;
	uint64_t masked;

	prepare(b, 170 + round);
	if (w->rank) { /* this rank's counts are out before anybody is masked */
		OK_SYNC(bench_send_dispatch(b, w->stream), w->stream);
		NEED_CUDA(cudaMemcpy(&seq, b->group->seq, sizeof(seq), cudaMemcpyDeviceToHost));
		if (masked_before) {
			strike_rank(b, 0, seq.step);
		}
	}
	world_meet(w);
	if (w->rank) {
		OK(ncclEpComplete(b->handle, NULL, w->stream));
		usleep(delay);
		if (masked_before) {
			host_masks(b, 0);
		} else {
			strike_rank(b, 0, round & 1 ? seq.step + 1 : EP_MASK_STEP_UNKNOWN);
		}
	} else {
		usleep(delay);
		OK(bench_send_dispatch(b, w->stream));
		OK(ncclEpComplete(b->handle, NULL, w->stream));
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	masked = bench_masked(w, b->group);
	check_one_view(b, masked, masked);
	all_back(b);
}

static void strike(struct bench *b, uint64_t round)
{
	late_counts(b, round, false);
}

static void again(struct bench *b, uint64_t round)
{
	late_counts(b, round, true);
}

/*
 * Nothing is left to chance: all has been sent, and rank 0 has received it, before the others
 * receive.
 */
static void present(struct bench *b, uint64_t round)
{
	struct world *w = b->w;

	prepare(b, 220 + round);
	OK_SYNC(bench_send_dispatch(b, w->stream), w->stream);
	world_meet(w);
	if (w->rank == 0) {
		OK_SYNC(ncclEpComplete(b->handle, NULL, w->stream), w->stream);
	}
	world_meet(w);
	if (w->rank) {
		strike_rank(b, 0, EP_MASK_STEP_UNKNOWN);
		OK_SYNC(ncclEpComplete(b->handle, NULL, w->stream), w->stream);
	}
	check_one_view(b, 0, w->rank ? 1 : 0);
	all_back(b);
}

/*
 * Runs `call` on all ranks, on rank 0 at about the time when the others' waits for it expire: as
 * the first round finds, in which rank 0 comes when they have ended, and from then on nearer to
 * where it is masked in one round and not in another.
 */
static void aimed(struct bench *b, uint64_t round,
		  ncclResult_t (*call)(struct bench *, cudaStream_t))
{
	static double after, step;
	struct world *w = b->w;
	double start = world_now();

	while (w->rank == 0 && round && world_now() - start < after) {
		usleep(50);
	}
	if (w->rank == 0 && !round) {
		world_meet(w);
	}
	OK_SYNC(call(b, w->stream), w->stream);
	if (w->rank == 1) {
		bool late = bench_masked(w, b->group) & 1;

		after = round ? after + (late ? -step : step) : world_now() - start - FIRST_STEP_S;
		step = round ? fmax(step * 0.7, LAST_STEP_S) : FIRST_STEP_S;
	}
	if (w->rank != 0 && !round) {
		world_meet(w);
	}
	world_meet(w);
}

static void edge(struct bench *b, uint64_t round)
{
	uint64_t masked;

	prepare(b, 270 + round);
	aimed(b, round, bench_dispatch);
	masked = bench_masked(b->w, b->group);
	check_one_view(b, masked, masked);
	all_back(b);
}

/* Does the token have an expert at one of the ranks? */
static bool token_uses(const struct bench *b, uint32_t token, uint64_t ranks)
{
	uint32_t local = b->p.experts / b->p.nranks;
	int32_t ids[ORACLE_MAX_TOPK];
	bool uses = false;

	oracle_route(&b->p, (uint32_t)b->w->rank, token, ids);
	for (uint32_t k = 0; k < b->p.topk; k++) {
		uses |= ids[k] >= 0 && ranks >> (uint32_t)ids[k] / local & 1;
	}
	return uses;
}

/*
 * What a combine gives tokens that have an expert at a rank that is lost in that very combine is
 * not defined. All other tokens are right, and nothing else is written.
 */
static void check_sums(struct bench *b, const uint8_t *want, uint64_t masked)
{
	size_t bytes = oracle_combine_bytes(&b->p);
	uint8_t *got = tensor_fetch(&b->combine_out);

	for (uint32_t t = 0; t < b->combine_out.bytes / bytes; t++) {
		CHECK((t < b->tokens && token_uses(b, t, masked)) ||
			      memcmp(got + t * bytes, want + t * bytes, bytes) == 0,
		      "rank %d, masked 0x%llx: row %u", b->w->rank, (unsigned long long)masked, t);
	}
	free(got);
}

/* A pair; its dispatch can be combined once more. Returns what comes out. */
static uint8_t *combined(struct bench *b, uint64_t seed)
{
	uint8_t *want;

	bench_load(b, seed);
	bench_pair(b);
	want = tensor_fetch(&b->combine_out);
	bench_poison(b);
	world_meet(b->w);
	return want;
}

static void sum(struct bench *b, uint64_t round)
{
	uint8_t *want = combined(b, 370 + round);
	uint64_t masked;
	int error = -1;

	aimed(b, round, bench_combine);
	masked = bench_masked(b->w, b->group);
	OK(ncclEpGetAsyncError(b->group, &error));
	CHECK_INT(error, masked != 0);
	check_sums(b, want, masked);
	free(want);
	all_back(b);
}

static void struck(struct bench *b, uint64_t round)
{
	struct world *w = b->w;
	uint64_t draw = 1000 * round + (uint64_t)w->rank;
	uint8_t *want = combined(b, 470 + round);
	struct ep_dev_seq seq;

	if (w->rank) { /* this rank's rows are out before anybody is masked */
		OK_SYNC(bench_send_combine(b, w->stream), w->stream);
		NEED_CUDA(cudaMemcpy(&seq, b->group->seq, sizeof(seq), cudaMemcpyDeviceToHost));
	}
	world_meet(w);
	if (w->rank) {
		OK(ncclEpComplete(b->handle, NULL, w->stream));
		usleep((useconds_t)world_draw(&draw, SPREAD_US));
		strike_rank(b, 0, round & 1 ? seq.step + 1 : EP_MASK_STEP_UNKNOWN);
	} else {
		usleep((useconds_t)world_draw(&draw, SPREAD_US));
		OK(bench_send_combine(b, w->stream));
		OK(ncclEpComplete(b->handle, NULL, w->stream));
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	check_sums(b, want, bench_masked(w, b->group));
	free(want);
	all_back(b);
}

#define CROWD 66
#define BEYOND 64 /* not the last one: rows of others lie behind its own */

/*
 * As a block of rank 0's kernel decides that goes on without the rank; the others have not masked
 * it.
 */
static void decide_absent(struct bench *b, uint32_t rank)
{
	uint64_t *arrival = ep_mask_arrival(b->group->mask, b->p.nranks);
	struct ep_dev_seq seq;

	NEED_CUDA(cudaMemcpy(&seq, b->group->seq, sizeof(seq), cudaMemcpyDeviceToHost));
	__atomic_store_n(arrival + rank, (uint64_t)seq.step << 32 | EP_ARRIVAL_ABSENT,
			 __ATOMIC_RELEASE);
}

static void beyond(struct bench *b, uint64_t round)
{
	struct world *w = b->w;

	check_context("beyond, round %llu, rank %d", (unsigned long long)round, w->rank);
	b->p.absent_rank = w->rank == 0 ? BEYOND : 0; /* for what is checked here */
	prepare(b, 570 + round);
	OK_SYNC(bench_send_dispatch(b, w->stream), w->stream);
	if (w->rank == 0) {
		decide_absent(b, BEYOND);
	}
	world_meet(w);
	OK_SYNC(ncclEpComplete(b->handle, NULL, w->stream), w->stream);
	bench_check_dispatch(b);
	b->p.absent_rank = 0;
	world_meet(w);
}

/* All tokens go to rank 0, where several blocks receive. */
static void run_beyond(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, CROWD, 1, 64, 2, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config;
	ncclEpGroup_t group = NULL;
	struct bench b;

	p.routing.family = ORACLE_HOT;
	p.routing.hot_ppm = 1000000;
	config = bench_group_config(&p, BENCH_MASK);
	config.max_num_sms = w->rank == 0 ? SMS : 2;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, BENCH_MASK);
	for (uint64_t i = 0; i < 3; i++) {
		beyond(&b, i);
	}
	check_context("beyond, after all");
	bench_pair_of(&b, 600);
	bench_end(&b);
}

static const struct mode modes[] = {
	{ "split", split, 40, false },    { "strike", strike, 100, false },
	{ "again", again, 100, false },   { "edge", edge, 16, true },
	{ "sum", sum, 6, true },          { "struck", struck, 60, false },
	{ "present", present, 4, false },
};

static uint64_t rounds;

static void run(struct world *w, void *arg)
{
	const struct mode *m = arg;
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 1024, 12, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, BENCH_MASK);
	ncclEpGroup_t group = NULL;
	struct bench b;

	config.max_num_sms = SMS;
	if (m->expires) {
		config.timeout_ns = (uint64_t)(TIMEOUT_MS * 1e6);
	}
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, BENCH_MASK);
	bench_pair(&b);
	for (uint64_t i = 0; i < rounds; i++) {
		check_context("%s, round %llu", m->name, (unsigned long long)i);
		m->round(&b, i);
	}
	check_context("%s, after all", m->name);
	bench_pair(&b);
	bench_end(&b);
}

int main(int argc, char **argv)
{
	const struct mode *m = NULL;

	for (size_t i = 0; argc > 1 && i < sizeof(modes) / sizeof(modes[0]); i++) {
		m = strcmp(argv[1], modes[i].name) == 0 ? modes + i : m;
	}
	if (argc > 1 && !strcmp(argv[1], "beyond")) {
		world_run(CROWD, run_beyond, NULL);
		return check_end();
	}
	NEED(m);
	rounds = world_number(argc > 2 ? argv[2] : NULL, m->rounds);
	for (int lines = 0; lines <= 1; lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(RANKS, run, (void *)m);
	}
	return check_end();
}
