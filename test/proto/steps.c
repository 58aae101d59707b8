// SPDX-License-Identifier: Apache-2.0
/*
 * Step counters have 32 bits and wrap. Groups whose counters begin shortly before each place where a
 * comparison of steps could go wrong, as after days of work; and in them a handle that makes the
 * heap be replaced, whose words are zero again.
 */
#include "ep/group.h"
#include "support/bench.h"

#define RANKS 4
#define PAIRS 6 /* two steps each, so that every start is passed */

static const uint32_t starts[] = { 0x7ffffffau, 0x80000010u, 0xfffffff4u, 0xfffffffeu };

static void start_at(ncclEpGroup_t group, uint32_t step)
{
	static const size_t bytes = EP_GROUP_MAX_BLOCKS * sizeof(struct ep_dev_seq);
	struct ep_dev_seq *seq = calloc(1, bytes);

	NEED(seq);
	for (uint32_t i = 0; i < EP_GROUP_MAX_BLOCKS; i++) {
		seq[i].step = step;
		seq[i].busy = ep_seq_busy(group->config.shape.banks);
	}
	NEED_CUDA(cudaMemcpy(group->seq, seq, bytes, cudaMemcpyHostToDevice));
	free(seq);
}

static void pairs(struct world *w, ncclEpGroup_t group, const struct oracle_problem *p,
		  uint32_t step)
{
	struct bench b;

	bench_open(&b, w, group, p, 0);
	for (uint32_t i = 0; i < PAIRS; i++) {
		check_context("steps from 0x%x, top-%u, pair %u", step, p->topk, i);
		/* few tokens: of most channels nothing is heard for long */
		bench_load_tokens(&b, 10 + i, i % 3 ? 1 : p->max_tokens);
		bench_pair(&b);
	}
	bench_close(&b);
}

static void run(struct world *w, void *arg)
{
	(void)arg;
	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		enum oracle_layout layout = i & 1 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR;
		struct oracle_problem p = bench_problem(w->nranks, 16, 2, 256, 12, layout);
		ncclEpGroupConfig_t config = bench_group_config(&p, 0);
		ncclEpGroup_t group = NULL;

		config.num_topk = 0;
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		start_at(group, starts[i]);
		world_meet(w);
		pairs(w, group, &p, starts[i]);
		p.topk = 12;
		pairs(w, group, &p, starts[i]);
		OK(ncclEpGroupDestroy(group));
	}
}

int main(void)
{
	world_run(world_size(RANKS), run, NULL);
	return check_end();
}
