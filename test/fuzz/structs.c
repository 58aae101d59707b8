/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call with mistakes in its structs, descriptors, numbers and pointers, on a group of two
 * ranks that make the same mistakes. A call that fails has a reason, writes nothing and launches
 * nothing; after any call the group and its handle serve a correct pair. Of low latency; ht_structs.c
 * is the same of high throughput.
 *
 *     structs FIRST COUNT      cases FIRST .. FIRST+COUNT-1
 */
#include "fuzz/calls.h"

static const fuzz_call_fn calls[] = {
	fuzz_dispatch, fuzz_dispatch, fuzz_dispatch, fuzz_combine,  fuzz_combine,    fuzz_update,
	fuzz_init,     fuzz_create,   fuzz_mem_size, fuzz_complete, fuzz_tensors,    fuzz_masks,
	fuzz_group,    fuzz_version,  fuzz_nobody,   fuzz_memory,   fuzz_statistics,
};

static void choose(struct fuzz *f, struct oracle_problem *p, uint32_t *flags)
{
	uint64_t *s = &f->state;

	*p = bench_problem(FUZZ_RANKS, FUZZ_RANKS * (1 + (uint32_t)world_draw(s, 3)), 0, 0,
			   1 + (uint32_t)world_draw(s, 6),
			   world_draw(s, 2) ? ORACLE_EXPERT_MAJOR : ORACLE_RANK_MAJOR);
	p->topk = 1 + (uint32_t)world_draw(s, p->experts);
	p->hidden = 128 * (1 + (uint32_t)world_draw(s, 2));
	p->max_tokens += (uint32_t)world_draw(s, 3);
	*flags = world_draw(s, 2) ? BENCH_MASK : 0;
	*flags |= world_draw(s, 2) ? BENCH_IDS64 : 0;
	if (world_draw(s, 3) == 0) {
		p->quant = ORACLE_QUANT_FP8;
	} else if (world_draw(s, 3) == 0) {
		p->quant = ORACLE_QUANT_FORWARD;
	}
}

static void pair(struct fuzz *f)
{
	bench_pair(f->b);
}

static void run_case(struct world *w, void *arg)
{
	const uint64_t *number = arg;
	struct fuzz f = { .w = w, .number = *number, .state = *number * 31337 + 5 };
	struct oracle_problem p;
	uint32_t flags;
	struct bench b;
	char text[300];

	choose(&f, &p, &flags);
	bench_describe(&p, flags, text, sizeof(text));
	check_context("case %llu: %s", (unsigned long long)*number, text);
	f.config = bench_group_config(&p, flags);
	f.group = bench_group(w, &p, flags);
	f.masks = flags & BENCH_MASK;
	f.layout = (ncclEpLayout_t)p.layout;
	f.layouts = 1u << NCCL_EP_LAYOUT_EXPERT_MAJOR | 1u << NCCL_EP_LAYOUT_RANK_MAJOR;
	f.topk = p.topk;
	bench_open(&b, w, f.group, &p, flags);
	f.b = &b;
	f.spare = &b.weights.t;
	f.ids = &b.ids.t;
	fuzz_run(&f, calls, sizeof(calls) / sizeof(calls[0]), pair);
	check_context("case %llu: %s", (unsigned long long)*number, text);
	bench_end(&b);
}

int main(int argc, char **argv)
{
	uint64_t first = world_number(argc > 1 ? argv[1] : NULL, 1);
	uint64_t count = world_number(argc > 2 ? argv[2] : NULL, 16);
	double begin = world_now();

	setenv("VC_MEM_MB", "64", 1); /* groups of absurd sizes find no memory */
	for (uint64_t i = first; i < first + count; i++) {
		world_run(FUZZ_RANKS, run_case, &i);
	}
	printf("structs: cases %llu to %llu, %.1f s\n", (unsigned long long)first,
	       (unsigned long long)(first + count - 1), world_now() - begin);
	return check_end();
}
