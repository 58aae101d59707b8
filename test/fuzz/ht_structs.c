/* SPDX-License-Identifier: Apache-2.0 */
/*
 * structs.c for high throughput: every call with mistakes, on a group of two ranks that make the same.
 * Here a model of what nccl_ep.h says (model.h) knows of each call whether it must fail, and of one that
 * is taken whether it ends the group, which another replaces then.
 *
 *     ht_structs FIRST COUNT      cases FIRST .. FIRST+COUNT-1
 */
#include "fuzz/ht_fuzz.h"

#define DRAW(below) world_draw(s, below)

static const fuzz_call_fn calls[] = {
	fuzz_ht_dispatch, fuzz_ht_dispatch, fuzz_ht_dispatch, fuzz_ht_dispatch, fuzz_ht_dispatch,
	fuzz_ht_dispatch, fuzz_ht_combine,  fuzz_ht_combine,  fuzz_ht_combine,  fuzz_ht_combine,
	fuzz_ht_update,   fuzz_ht_update,   fuzz_ht_update,   fuzz_ht_create,   fuzz_init,
	fuzz_mem_size,    fuzz_ht_complete, fuzz_masks,       fuzz_group,       fuzz_nobody,
	fuzz_memory,      fuzz_statistics,  fuzz_ht_received,
};

struct test_case {
	uint64_t number;
	uint64_t state;
	struct oracle_ht h;
	uint32_t flags;
	ncclEpGroupConfig_t config;
};

/* As many rows come to each rank: a mistake in rows is the same mistake everywhere. */
static void draw_routing(struct oracle_problem *p, uint64_t *s)
{
	uint32_t n = p->nranks * p->max_tokens, local = p->experts / p->nranks;
	int32_t *lines = malloc(n * ORACLE_MAX_TOPK * sizeof(*lines));

	NEED(lines);
	memset(lines, 0xff, n * ORACLE_MAX_TOPK * sizeof(*lines));
	for (uint32_t t = 0; t < p->max_tokens; t++) {
		uint32_t first = (uint32_t)DRAW(p->experts);

		for (uint32_t k = 0; k < p->topk; k++) {
			bool none = t > 0 && DRAW(6) == 0;

			for (uint32_t r = 0; r < p->nranks && !none; r++) {
				uint32_t id = (first + k + r * local) % p->experts;

				lines[(r * p->max_tokens + t) * ORACLE_MAX_TOPK + k] = (int32_t)id;
			}
		}
	}
	p->routing.family = ORACLE_FILE;
	p->routing.nlines = n;
	p->routing.lines = lines;
}

static void choose(struct test_case *c, uint64_t number)
{
	struct oracle_problem *p = &c->h.p;
	uint64_t state = number * 40503 + 7, *s = &state;
	uint32_t local = 1 + (uint32_t)DRAW(4), width;

	memset(c, 0, sizeof(*c));
	c->number = number;
	*p = (struct oracle_problem){ .seed = number, .nranks = FUZZ_RANKS };
	p->experts = local * p->nranks;
	p->topk = 1 + (uint32_t)DRAW(p->experts);
	p->tokens = 1 + (uint32_t)DRAW(12);
	p->max_tokens = p->tokens + (uint32_t)DRAW(3);
	p->dtype = (enum oracle_dtype)DRAW(3);
	p->hidden = 8 * (1 + (uint32_t)DRAW(40));
	if (DRAW(3) == 0) {
		p->quant = ORACLE_QUANT_FORWARD;
		p->hidden = 512;
	}
	c->h.expert_major = (int)DRAW(2);
	if (c->h.expert_major) {
		c->h.alignment = (uint32_t)DRAW(3) ? 1u << DRAW(5) : 0;
	}
	width = p->topk < local ? p->topk : local;
	c->h.limit = p->nranks * p->max_tokens * (c->h.expert_major ? width : 1);
	if (c->h.expert_major && c->h.alignment > 1) {
		c->h.limit += local * (c->h.alignment - 1);
	}
	switch (DRAW(3)) {
	case 0:
		c->h.limit = 0;
		break;
	case 1:
		c->h.drop = 1;
		c->h.limit = p->max_tokens + (uint32_t)DRAW(c->h.limit - p->max_tokens + 1);
		break;
	default:
		break;
	}
	c->flags = (uint32_t)DRAW(32) & ~(uint32_t)HT_WINDOW;
	if (DRAW(2)) {
		c->flags |= HT_WINDOW | (DRAW(3) ? HT_ON : 0);
	}
	draw_routing(p, s);
	c->config = ht_group_config(&c->h, c->flags);
	c->config.max_num_sms = 1;
	c->config.timeout_ns = UINT64_C(40000000000);
	c->config.enable_mask = (unsigned int)DRAW(2); /* is ignored */
	if (DRAW(2) && (c->h.limit || !c->h.expert_major)) {
		c->config.num_topk = 0;
	}
	if (DRAW(4) == 0 && c->h.limit && !c->h.drop &&
	    c->config.zero_copy == NCCL_EP_ZERO_COPY_AUTO) {
		c->config.size = NCCL_EP_GROUP_CONFIG_V1_SIZE;
		c->config.num_topk = 0;
	}
	c->state = state;
}

void ht_fuzz_open(struct fuzz *f, const struct oracle_ht *h, uint32_t flags)
{
	struct ht_fuzz *ht = f->ht;

	memset(ht, 0, sizeof(*ht));
	NEED_OK(ncclEpCreateGroup(&f->group, f->w->comm, &f->config));
	ht_open(&ht->b, f->w, f->group, h, flags);
	ht->wide.bytes = (size_t)h->p.max_tokens * ORACLE_MAX_TOPK * 8 + 64;
	NEED_CUDA(cudaMalloc((void **)&ht->wide.data, ht->wide.bytes));
	NEED_CUDA(cudaMemset(ht->wide.data, 0, ht->wide.bytes));
	f->spare = &ht->b.weights.t;
	f->ids = &ht->b.ids.t;
}

void ht_fuzz_close(struct fuzz *f)
{
	NEED_CUDA(cudaFree(f->ht->wide.data));
	ht_end(&f->ht->b);
}

static void pair(struct fuzz *f)
{
	ht_step(&f->ht->b);
	f->ht->unrouted = false;
}

static void run_case(struct world *w, void *arg)
{
	const struct test_case *c = arg;
	const struct oracle_problem *p = &c->h.p;
	struct ht_fuzz ht;
	struct fuzz f = {
		.w = w,
		.ht = &ht,
		.config = c->config,
		.layout = c->h.expert_major ? NCCL_EP_LAYOUT_EXPERT_MAJOR : NCCL_EP_LAYOUT_FLAT,
		.layouts = 1u << NCCL_EP_LAYOUT_EXPERT_MAJOR | 1u << NCCL_EP_LAYOUT_FLAT,
		.topk = p->topk,
		.alignment = c->h.alignment,
		.number = c->number,
		.state = c->state,
	};

	check_context("case %llu: %s", (unsigned long long)c->number,
		      c->h.expert_major ? "em" : "flat");
	ht_fuzz_open(&f, &c->h, c->flags);
	fuzz_run(&f, calls, sizeof(calls) / sizeof(calls[0]), pair);
	ht_fuzz_close(&f);
}

int main(int argc, char **argv)
{
	uint64_t first = world_number(argc > 1 ? argv[1] : NULL, 1);
	uint64_t count = world_number(argc > 2 ? argv[2] : NULL, 28);
	double begin = world_now();
	struct test_case c;

	setenv("VC_MEM_MB", "64", 1); /* groups of absurd sizes find no memory */
	for (uint64_t i = first; i < first + count; i++) {
		choose(&c, i);
		world_run(FUZZ_RANKS, run_case, &c);
		free(c.h.p.routing.lines);
	}
	printf("ht_structs: cases %llu to %llu, %.1f s\n", (unsigned long long)first,
	       (unsigned long long)(first + count - 1), world_now() - begin);
	return check_end();
}
