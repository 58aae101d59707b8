/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of a low latency combine have the same bits wherever the experts of a token are: on one rank, on
 * two or on four, rows as lines or as bytes, whole or in parts, quantised or not.
 */
#include "support/bench.h"

#define EXPERTS 8u
#define TOKENS 7u
#define HIDDEN 1408u

static uint8_t first[TOKENS * HIDDEN * 2]; /* what rank 0 got on one rank */
static int32_t first_ids[TOKENS][ORACLE_MAX_TOPK];

struct placed {
	enum oracle_combine_quant back;
	unsigned int sms;
	bool is_first;
};

struct answers {
	uint8_t *rows;
	float *scales;
};

/* An expert's answer depends on which of all it is, not on its rank. */
static void answer(struct bench *b, uint32_t block, uint32_t row, uint32_t src, uint32_t token,
		   const int32_t *ids, void *context)
{
	const struct answers *a = context;
	size_t at = (size_t)block * b->rows + row;
	uint8_t *to = a->rows + at * oracle_combine_bytes(&b->p);

	oracle_answer(&b->p, 0, (int32_t)((uint32_t)b->w->rank * b->blocks + block), src, token,
		      to);
	if (b->p.combine_quant == ORACLE_COMBINE_NVFP4) {
		a->scales[at] = oracle_answer_scale(&b->p, to);
	}
}

static void work(struct bench *b)
{
	struct answers a = { calloc(1, b->combine_in.bytes), calloc(1, b->combine_scales.bytes) };

	NEED(a.rows && a.scales);
	bench_places(b, answer, &a);
	tensor_upload(&b->combine_in, a.rows, b->combine_in.bytes);
	tensor_upload(&b->combine_scales, a.scales, b->combine_scales.bytes);
	free(a.scales);
	free(a.rows);
}

static void run(struct world *w, void *arg)
{
	const struct placed *c = arg;
	struct oracle_problem p =
		bench_problem(w->nranks, EXPERTS, 4, HIDDEN, TOKENS, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config;
	ncclEpGroup_t group;
	struct bench b;
	uint8_t *sums;
	int32_t ids[ORACLE_MAX_TOPK];

	p.seed = 77;
	p.combine_quant = c->back;
	config = bench_group_config(&p, 0);
	config.max_num_sms = c->sms;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, 0);
	bench_dispatch_checked(&b);
	work(&b);
	NEED_SYNC(bench_combine(&b, w->stream), w->stream);
	sums = tensor_fetch(&b.combine_out);
	for (uint32_t t = 0; t < TOKENS && w->rank == 0; t++) {
		oracle_route(&b.p, 0, t, ids);
		if (c->is_first) {
			memcpy(first_ids[t], ids, p.topk * sizeof(*ids));
		}
		NEED(!memcmp(first_ids[t], ids, p.topk * sizeof(*ids)));
	}
	if (c->is_first) {
		memcpy(first, sums, sizeof(first));
	} else if (w->rank == 0) {
		CHECK(!memcmp(first, sums, sizeof(first)));
	}
	free(sums);
	bench_end(&b);
}

int main(void)
{
	for (int back = ORACLE_COMBINE_NONE; back <= ORACLE_COMBINE_FP8; back++) {
		for (int ranks = 1; ranks <= 4; ranks *= 2) {
			for (int how = 0; how < 4; how++) {
				struct placed c = { (enum oracle_combine_quant)back,
						    how & 2 ? 2 : 0, ranks == 1 && how == 0 };

				setenv("NCCL_EP_LL_LINES", how & 1 ? "1" : "0", 1);
				check_context("combine quant %d, %d ranks, lines %d, %u SMs", back,
					      ranks, how & 1, c.sms);
				world_run(ranks, run, &c);
			}
		}
	}
	return check_end();
}
