/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captured operations: graphs of UpdateHandle, dispatch and combine are replayed in any mixture with
 * each other and with eager calls while the routing changes in the same buffers. One graph has an
 * odd number of operations, one has split operations that overlap.
 *
 *     graphs SEED PAIRS
 */
#include "support/tape.h"

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

int main(int argc, char **argv)
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
