/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captured operations: graphs of UpdateHandle, dispatch and combine are replayed in any mixture
 * with each other and with eager calls while the routing changes in the same buffers. One graph has
 * an odd number of operations, one has split operations that overlap.
 *
 *     graphs SEED PAIRS
 */
#include "support/tape.h"
#include "support/bench.h"
#include "support/ht_bench.h"

#define STEPS 5

/* What graph 0, 1 and 2 do; 3 is the same as 0 without a graph. */
#define WAYS 4

struct band {
	struct world *w;
	struct bench a, b;
	struct tape ta, tb;
	cudaGraphExec_t graph[WAYS];
	struct chain chain;
};

static void pair(struct band *band, cudaStream_t stream)
{
	NEED_OK(bench_update(&band->a, stream));
	NEED_OK(bench_dispatch(&band->a, stream));
	NEED_OK(bench_combine(&band->a, stream));
}

/* Three operations: a combine repeated. */
static void odd(struct band *band, cudaStream_t stream)
{
	NEED_OK(bench_update(&band->b, stream));
	NEED_OK(bench_dispatch(&band->b, stream));
	NEED_OK(bench_combine(&band->b, stream));
	NEED_OK(bench_combine(&band->b, stream));
}

/* Both handles, each operation inside the other's: seven steps of the group. */
static void nested(struct band *band, cudaStream_t stream)
{
	NEED_OK(bench_update(&band->a, stream));
	NEED_OK(bench_update(&band->b, stream));
	NEED_OK(bench_send_dispatch(&band->a, stream));
	NEED_OK(bench_send_dispatch(&band->b, stream));
	NEED_OK(ncclEpComplete(band->a.handle, NULL, stream));
	NEED_OK(bench_send_combine(&band->a, stream));
	NEED_OK(ncclEpComplete(band->b.handle, NULL, stream));
	NEED_OK(bench_combine(&band->b, stream));
	NEED_OK(ncclEpComplete(band->a.handle, NULL, stream));
}

static cudaGraphExec_t capture(struct band *band, void (*fn)(struct band *, cudaStream_t))
{
	cudaStream_t stream = band->w->stream;

	world_capture(stream);
	fn(band, stream);
	return world_captured(stream);
}

/* Changes the inputs, replays, keeps the outputs; nothing here waits. */
static void enqueue(struct band *band, uint32_t way, uint32_t step, cudaStream_t stream)
{
	bool a = way != 1, b = way == 1 || way == 2;

	if (a) {
		tape_load(&band->ta, step, stream);
	}
	if (b) {
		tape_load(&band->tb, step, stream);
	}
	if (band->graph[way]) {
		NEED_CUDA(cudaGraphLaunch(band->graph[way], stream));
	} else {
		pair(band, stream);
	}
	if (a) {
		tape_save(&band->ta, step, stream);
	}
	if (b) {
		tape_save(&band->tb, step, stream);
	}
}

static void play(struct band *band, uint64_t seed)
{
	uint32_t way[STEPS];
	uint64_t s = seed;

	tape_open(&band->ta, &band->a, STEPS, seed);
	tape_open(&band->tb, &band->b, STEPS, seed + 500);
	for (uint32_t i = 0; i < STEPS; i++) {
		way[i] = (uint32_t)world_draw(&s, WAYS);
		enqueue(band, way[i], i, chain_on(&band->chain, (int)world_draw(&s, 2)));
	}
	chain_sync(&band->chain);
	for (uint32_t i = 0; i < STEPS; i++) {
		check_context("seed %llu, step %u, way %u", (unsigned long long)seed, i, way[i]);
		if (way[i] != 1) {
			tape_check(&band->ta, i, true, true);
		}
		if (way[i] == 1 || way[i] == 2) {
			tape_check(&band->tb, i, true, true);
		}
	}
	tape_close(&band->tb);
	tape_close(&band->ta);
}

static uint64_t first_seed = 1;
static uint64_t pairs = 5;

static void run(struct world *w, void *arg)
{
	uint32_t experts = (uint32_t)w->nranks * 3;
	struct oracle_problem pa =
		bench_problem(w->nranks, experts, 3, 248, 9, ORACLE_EXPERT_MAJOR);
	struct oracle_problem pb = bench_problem(w->nranks, experts, 2, 64, 9, ORACLE_RANK_MAJOR);
	struct band *band = calloc(1, sizeof(*band));
	ncclEpGroupConfig_t config = bench_group_config(&pa, 0);
	ncclEpGroup_t group;

	pb.uneven = 1;
	band->w = w;
	config.max_num_sms = 3;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&band->a, w, group, &pa, BENCH_IDS64);
	bench_open(&band->b, w, group, &pb, 0);
	chain_open(&band->chain);
	band->graph[0] = capture(band, pair);
	band->graph[1] = capture(band, odd);
	band->graph[2] = capture(band, nested);
	for (uint64_t i = 0; i < pairs; i++) {
		play(band, first_seed + i * 11);
	}
	CHECK_LAST(group, ncclSuccess, "");
	for (int i = 0; i < WAYS - 1; i++) {
		NEED_CUDA(cudaGraphExecDestroy(band->graph[i]));
	}
	chain_close(&band->chain);
	bench_close(&band->b);
	bench_close(&band->a);
	free(band);
	OK(ncclEpGroupDestroy(group));
}

static int main_graphs(int argc, char **argv)
{
	first_seed = world_number(argc > 1 ? argv[1] : NULL, 1);
	pairs = world_number(argc > 2 ? argv[2] : NULL, 5);
	printf("graphs, seeds from %llu, %llu pairs\n", (unsigned long long)first_seed,
	       (unsigned long long)pairs);
	for (int lines = 0; lines <= 1; lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(world_size(3), run, NULL);
	}
	return check_end();
}

/*
 * High throughput in CUDA graphs, with two handles that live at once, beside a low-latency group of
 * the same communicator; captures that are given up; and handle memory alone that carries a routing
 * from handle to handle.
 *
 *     ht_graphs SEED ROUNDS
 */

#define RANKS 3

static struct oracle_ht problem_of(bool em, int nranks, uint64_t seed)
{
	struct oracle_ht h = { .expert_major = em, .alignment = em ? 4 : 0 };

	h.p = (struct oracle_problem){ .seed = seed,
				       .nranks = (uint32_t)nranks,
				       .experts = 4 * (uint32_t)nranks,
				       .topk = 3,
				       .hidden = 1160,
				       .tokens = 20,
				       .max_tokens = 33,
				       .drop_ppm = 100000,
				       .dtype = ORACLE_BF16 };
	h.limit = (uint32_t)nranks * 33 * 3 + 16;
	return h;
}

/* Update, dispatch and combine of one handle. Their inputs and outputs stay where they are. */
static cudaGraphExec_t ht_capture(struct ht_bench *b)
{
	cudaStream_t stream = b->w->stream;

	world_capture(stream);
	NEED_OK(ht_update(b, stream));
	NEED_OK(ht_dispatch(b, false, stream));
	NEED_OK(ht_combine(b, false, stream));
	return world_captured(stream);
}

/* A capture that is given up behind a dispatch; in this mode send_only is ignored. */
static void give_up(struct ht_bench *b)
{
	struct ht_dispatch_args a = ht_dispatch_args(b, false);
	cudaStream_t stream = b->w->stream;

	a.config.send_only = 1;
	world_capture(stream);
	NEED_OK(ht_update(b, stream));
	NEED_OK(ncclEpDispatch(b->handle, &a.in, &a.out, NULL, &a.config, stream));
	world_capture_drop(stream);
}

/* The graph's combine reads what is in place for its own dispatch: of the same routing. */
static void replay(cudaGraphExec_t s, struct ht_bench *b, uint64_t seed)
{
	ht_load(b, seed, 20);
	ht_poison(b);
	ht_expert_work(b);
	NEED_CUDA(cudaGraphLaunch(s, b->w->stream));
	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	ht_check_counters(b);
	ht_check_dispatch(b, false);
	ht_check_combine(b, false);
}

/* Routings of both handles, then operations of the first: the second has not disturbed it. */
static void cross(struct ht_bench *a, struct ht_bench *b, uint64_t seed)
{
	cudaStream_t stream = a->w->stream;

	ht_load(a, seed, 20);
	ht_load(b, seed + 1, 20);
	ht_poison(a);
	ht_poison(b);
	NEED_OK(ht_update(a, stream));
	NEED_OK(ht_update(b, stream));
	NEED_OK(ht_dispatch(a, false, stream));
	ht_reopen(a); /* on the memory of the last */
	NEED_SYNC(ht_dispatch(b, false, stream), stream);
	ht_check_dispatch(a, false);
	ht_check_dispatch(b, false);
	ht_expert_work(a);
	ht_expert_work(b);
	NEED_OK(ht_combine(b, true, stream));
	NEED_SYNC(ht_combine(a, true, stream), stream);
	ht_check_combine(a, true);
	ht_check_combine(b, true);
}

static void check_received(struct ht_bench *b)
{
	const struct oracle_ht_table *t = b->tables[b->w->rank];
	uint64_t tokens = 0, rows = 0, kept = 0;

	for (uint64_t i = 0; i < t->count; i++) {
		kept += t->rows[i].kind == ORACLE_HT_ROW;
	}
	OK(ncclEpExtNumRecvTokens(b->handle, &tokens, &rows, b->w->stream));
	CHECK_INT(tokens, t->slots);
	CHECK_INT(rows, kept);
}

static void ht_run(struct world *w, void *arg)
{
	const uint64_t *seed = arg;
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 64, 5, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t low = bench_group(w, &p, 0), high = NULL;
	struct oracle_ht h = problem_of(false, w->nranks, 1);
	ncclEpGroupConfig_t config = ht_group_config(&h, 0);
	struct ht_bench b[2];
	cudaGraphExec_t s[2];
	struct bench l;

	check_context("rank %d", w->rank);
	config.max_num_sms = 2;
	NEED_OK(ncclEpCreateGroup(&high, w->comm, &config));
	bench_open(&l, w, low, &p, 0);
	for (int em = 0; em < 2; em++) {
		h = problem_of(em, w->nranks, 1);
		ht_open(&b[em], w, high, &h, HT_OWN_MEM | (em ? HT_LATE_COUNTS : 0));
		s[em] = ht_capture(&b[em]);
	}
	for (uint64_t i = 0; i < seed[1]; i++) {
		check_context("round %llu, rank %d", (unsigned long long)i, w->rank);
		if (i & 1 || w->rank == w->nranks - 1) { /* on all ranks, and on one */
			give_up(&b[i & 1]);
			give_up(&b[~i & 1]);
		}
		replay(s[i & 1], &b[i & 1], seed[0] + i);
		check_received(&b[i & 1]);
		bench_pair_of(&l, seed[0] + i);
		cross(&b[i & 1], &b[~i & 1], seed[0] + 1000 + i);
	}
	for (int em = 0; em < 2; em++) {
		NEED_CUDA(cudaGraphExecDestroy(s[em]));
		ht_close(&b[em]);
	}
	bench_end(&l);
	OK(ncclEpGroupDestroy(high));
}

static int main_ht_graphs(int argc, char **argv)
{
	uint64_t seed[2] = { world_number(argc > 1 ? argv[1] : NULL, 1),
			     world_number(argc > 2 ? argv[2] : NULL, 4) };

	world_run(world_size(RANKS), ht_run, seed);
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "graphs", main_graphs },
		{ "ht_graphs", main_ht_graphs },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
