/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of different top-k in one group of two nodes, high throughput: what one handle's routing
 * left in a heap is nothing of the next one's. Local expert ids are as small as epochs of a young
 * group.
 */
#include "support/ht_bench.h"

#define RANKS 4

static void run(struct world *w, void *arg)
{
	const int *rounds = arg;
	static int32_t narrow_ids[ORACLE_MAX_TOPK] = { 1, 2 };
	static int32_t wide_ids[ORACLE_MAX_TOPK] = { 0, 5, 7, 9 };
	struct oracle_ht wide = { .p = { .seed = 3,
					 .nranks = RANKS,
					 .experts = 32 * RANKS,
					 .topk = 4,
					 .hidden = 64,
					 .tokens = 4,
					 .max_tokens = 16,
					 .dtype = ORACLE_BF16 } };
	struct oracle_ht narrow;

	wide.p.routing.family = ORACLE_FILE;
	wide.p.routing.lines = wide_ids;
	wide.p.routing.nlines = 1;
	narrow = wide;
	narrow.p.tokens = 16;
	narrow.p.topk = 2;
	narrow.p.routing.lines = narrow_ids;
	world_setenv(w, "NCCL_EP_NODE_SIZE", "2");
	for (int i = 0; i < *rounds; i++) {
		ncclEpGroupConfig_t config = ht_group_config(&wide, 0);
		ncclEpGroup_t group = NULL;
		struct ht_bench a, b;

		check_context("rank %d, round %d", w->rank, i);
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		ht_open(&a, w, group, &narrow, 0);
		ht_open(&b, w, group, &wide, 0);
		NEED_SYNC(ht_update(&a, w->stream), w->stream);
		NEED_SYNC(ht_update(&b, w->stream), w->stream);
		ht_check_counters(&b);
		ht_poison(&b);
		NEED_SYNC(ht_dispatch(&b, false, w->stream), w->stream);
		ht_check_dispatch(&b, false);
		ht_close(&a);
		ht_end(&b);
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 4;

	world_run(RANKS, run, &rounds);
	return check_end();
}
