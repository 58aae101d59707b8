/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: memory with a routing goes from a group to another one of the same shape. One whose
 * nodes are the same ranks dispatches and combines by it. One with other nodes refuses it, and launches
 * nothing: what says which rows travel between nodes would be read as something else.
 */
#include "support/ht_bench.h"

#define RANKS 4

/* All ranks, with nodes of so many ranks. */
static ncclEpGroup_t group_of(struct world *w, const struct oracle_ht *h, const char *nodes)
{
	ncclEpGroupConfig_t config = ht_group_config(h, 0);
	ncclEpGroup_t group = NULL;

	world_setenv(w, "NCCL_EP_NODE_SIZE", nodes);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	world_meet(w);
	return group;
}

static void refused(struct ht_bench *b, ncclEpGroup_t group)
{
	b->group = group;
	ht_reopen(b);
	CHECK_REASON(ht_dispatch(b, false, b->w->stream), ncclInvalidArgument,
		     "no routing for handles like this one");
}

static void run(struct world *w, void *arg)
{
	struct oracle_ht h = { .p = { .seed = 3,
				      .nranks = RANKS,
				      .experts = 3 * RANKS,
				      .topk = 4,
				      .hidden = 520,
				      .tokens = 50,
				      .max_tokens = 60,
				      .dtype = ORACLE_BF16 } };
	const char *const nodes[] = { "4", "3,1", "1,3", "2", "2" };
	ncclEpGroup_t groups[5];
	struct ht_bench b;

	(void)arg;
	check_context("rank %d", w->rank);
	for (int i = 0; i < 5; i++) {
		groups[i] = group_of(w, &h, nodes[i]);
	}
	ht_open(&b, w, groups[3], &h, HT_OWN_MEM | HT_MORE_MEM);
	ht_poison(&b);
	NEED_OK(ht_update(&b, w->stream));
	for (int i = 0; i < 3; i++) {
		refused(&b, groups[i]);
	}
	b.group = groups[4];
	ht_reopen(&b);
	NEED_SYNC(ht_dispatch(&b, false, w->stream), w->stream);
	ht_check_dispatch(&b, false);
	ht_expert_work(&b);
	NEED_SYNC(ht_combine(&b, false, w->stream), w->stream);
	ht_check_combine(&b, false);
	ht_close(&b);
	for (int i = 0; i < 5; i++) {
		OK(ncclEpGroupDestroy(groups[i]));
	}
}

int main(void)
{
	world_run(RANKS, run, NULL);
	return check_end();
}
