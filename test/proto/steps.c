/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Step counters have 32 bits and wrap. Groups whose counters begin shortly before each place where
 * a comparison of steps could go wrong, as after days of work; and in them a handle that makes the
 * heap be replaced, whose words are zero again. Of low latency, and then of high throughput.
 */
#include "ep/ep.h"
#include "support/bench.h"
#include "support/ht_bench.h"

#define RANKS 4
#define PAIRS 6  /* two steps each, so that every start is passed */
#define ROUNDS 3 /* of high throughput, five steps each */

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

static void run_ht(struct world *w, uint32_t step)
{
	struct oracle_ht h = { .expert_major = step & 2 };
	ncclEpGroup_t group = NULL;
	ncclEpGroupConfig_t config;
	struct ht_bench b;

	h.p = (struct oracle_problem){ .seed = step,
				       .nranks = (uint32_t)w->nranks,
				       .experts = 16,
				       .topk = 3,
				       .hidden = 16,
				       .tokens = 12,
				       .max_tokens = 12 };
	config = ht_group_config(&h, 0);
	config.max_num_sms = 2;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	start_at(group, step);
	world_meet(w);
	ht_open(&b, w, group, &h, 0);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		check_context("high throughput, steps from 0x%x, round %u", step, i);
		/* without tokens nothing but the start of a step holds up a rank */
		ht_load(&b, step + i, i % 2 ? 0 : h.p.max_tokens);
		ht_step(&b);
	}
	ht_end(&b);
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
		if (i % 2 == 0) {
			run_ht(w, starts[i]);
		}
	}
}

int main(void)
{
	/* words of which a step and the next one each have their own */
	for (uint32_t step = UINT32_MAX - 4, i = 0; i < 6; i++, step = ep_step_after(step)) {
		CHECK(step && (step ^ ep_step_after(step)) & 1, "steps 0x%x and 0x%x", step,
		      ep_step_after(step));
	}
	world_run(world_size(RANKS), run, NULL);
	return check_end();
}
