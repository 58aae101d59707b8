/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call with mistakes in its structs, descriptors, numbers and pointers, on a group of two
 * ranks that make the same mistakes. A call that fails has a reason, writes nothing and launches
 * nothing; after any call the group and its handle serve a correct pair. Of low latency;
 * ht_structs.c is the same of high throughput.
 *
 *     structs FIRST COUNT      cases FIRST .. FIRST+COUNT-1
 */
#include "fuzz/fuzz.h"

/* ---- dispatch, combine, and the routing of handles ---- */

#define DRAW(below) world_draw(&f->state, below)
/* Operations of the group so far. A later one that goes wrong leaves another last error. */
static uint64_t operations(struct fuzz *f)
{
	const char *text;

	ncclEpExtPeerStats_t stats[2] = { NCCL_EP_EXT_PEER_STATS_INIT,
					  NCCL_EP_EXT_PEER_STATS_INIT };

	OK(ncclEpExtPeerStats(f->b->group, stats, 2, f->w->stream));
	OK(ncclEpExtGetLastError(f->b->group, NULL, &text));
	snprintf(f->last, sizeof(f->last), "%s", text);
	return stats[0].operations + stats[1].operations;
}

static void check_poison(const struct bench_tensor *t, const char *name)
{
	uint8_t *bytes;
	size_t i = 0;

	if (!t->t.data) {
		return;
	}
	bytes = tensor_fetch(t);
	while (i < t->bytes && bytes[i] == ORACLE_POISON) {
		i++;
	}
	CHECK(i == t->bytes, "%s was written at byte %zu", name, i);
	free(bytes);
}

static void check_untouched(struct bench *b)
{
	check_poison(&b->out_tokens, "outputs->tokens");
	check_poison(&b->out_scales, "outputs->scales");
	check_poison(&b->out_weights, "outputs->topk_weights");
	check_poison(&b->out_idx, "outputs->topk_idx");
	check_poison(&b->counts, "counters");
	check_poison(&b->combine_out, "outputs->tokens of combine");
}

/* What was begun is finished; what failed has not begun. */
static ncclResult_t settle(struct fuzz *f, ncclResult_t result, uint64_t before)
{
	const char *text;

	if (result == ncclSuccess) {
		OK_SYNC(ncclEpComplete(f->b->handle, NULL, f->w->stream), f->w->stream);
		OK(ncclEpExtGetLastError(f->b->group, NULL, &text));
		if (!f->odd_ids || !strstr(text, ": the selection was left out (")) {
			CHECK_TEXT(text, f->last); /* or the operation has failed */
		}
	} else {
		NEED_CUDA(cudaStreamSynchronize(f->w->stream));
		CHECK_INT(operations(f), before);
		check_untouched(f->b);
	}
	return result;
}

ncclResult_t fuzz_dispatch(struct fuzz *f)
{
	struct bench *b = f->b;
	const struct oracle_problem *p = &b->p;
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	uint32_t at = fuzz_places(f, 4);
	struct mutation m;
	uint64_t before;
	ncclResult_t result;
	void *s[4];

	in.tokens = &b->in_tokens.t;
	out.tokens = &b->out_tokens.t;
	if (p->layout == ORACLE_RANK_MAJOR) {
		in.topk_weights = &b->weights.t;
		out.topk_weights = &b->out_weights.t;
		out.topk_idx = &b->out_idx.t;
		info.src_rank_counters = &b->counts.t;
	} else {
		info.expert_counters = &b->counts.t;
	}
	if (p->quant != ORACLE_QUANT_NONE) {
		out.scales = &b->out_scales.t;
		in.scales = p->quant == ORACLE_QUANT_FORWARD || p->quant == ORACLE_QUANT_NVFP4
				    ? &b->in_scales.t
				    : NULL;
		config.quant_recipe = bench_recipe(p);
	}
	bench_poison(b);
	before = operations(f);
	mutation_begin(&m, &f->state, f->spare);
	s[0] = mutate_struct(&m, &form_in, &in, at & 1);
	s[1] = mutate_struct(&m, &form_out, &out, at & 2);
	s[2] = mutate_struct(&m, &form_info, &info, at & 4);
	s[3] = mutate_struct(&m, &form_config, &config, at & 8);
	result = ncclEpDispatch(b->handle, s[0], s[1], s[2], s[3], f->w->stream);
	fuzz_judge(f, "dispatch", result, &m);
	settle(f, result, before);
	mutation_end(&m);
	return result;
}

ncclResult_t fuzz_combine(struct fuzz *f)
{
	struct bench *b = f->b;
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;
	bool by_rank = b->p.layout == ORACLE_RANK_MAJOR;
	uint32_t at = fuzz_places(f, 3);
	struct mutation m;
	uint64_t before;
	ncclResult_t result;
	void *s[3];

	/* after an update of the routing there is nothing to combine, which is refused as well */
	in.tokens = &b->combine_in.t;
	out.tokens = &b->combine_out.t;
	out.topk_weights = by_rank ? NULL : &b->weights.t;
	in.scales = b->p.combine_quant == ORACLE_COMBINE_NVFP4 ? &b->combine_scales.t : NULL;
	config.quant_recipe = bench_return_recipe(&b->p);
	bench_poison(b);
	before = operations(f);
	mutation_begin(&m, &f->state, f->spare);
	s[0] = mutate_struct(&m, &form_combine_in, &in, at & 1);
	s[1] = mutate_struct(&m, &form_combine_out, &out, at & 2);
	s[2] = mutate_struct(&m, &form_combine_config, &config, at & 4);
	result = ncclEpCombine(b->handle, s[0], s[1], s[2], f->w->stream);
	fuzz_judge(f, "combine", result, &m);
	settle(f, result, before);
	mutation_end(&m);
	return result;
}

ncclResult_t fuzz_complete(struct fuzz *f)
{
	ncclEpCompleteConfig_t config = NCCL_EP_COMPLETE_CONFIG_INIT;
	uint64_t before = operations(f);
	struct mutation m;
	ncclResult_t result;

	bench_poison(f->b);
	mutation_begin(&m, &f->state, f->spare);
	result = ncclEpComplete(f->b->handle, mutate_struct(&m, &form_complete, &config, true),
				f->w->stream);
	fuzz_judge(f, "complete", result, &m);
	NEED_CUDA(cudaStreamSynchronize(f->w->stream));
	CHECK_INT(operations(f), before);
	check_untouched(f->b);
	mutation_end(&m);
	return result;
}

ncclResult_t fuzz_update(struct fuzz *f)
{
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	uint32_t at = fuzz_places(f, 3);
	struct mutation m;
	ncclResult_t result;

	mutation_begin(&m, &f->state, f->spare);
	result = ncclEpUpdateHandle(f->b->handle,
				    mutate_tensor(&m, "topk_idx", &f->b->ids.t, true, at & 3),
				    at & 4 ? mutate_struct(&m, &form_info, &info, true) : NULL,
				    f->w->stream);
	fuzz_judge(f, "update", result, &m);
	f->odd_ids = result == ncclSuccess ? (at & 3) != 0 : f->odd_ids;
	mutation_end(&m);
	return result;
}

ncclResult_t fuzz_create(struct fuzz *f)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpHandle_t untouched = (ncclEpHandle_t)&config, handle = untouched;
	ncclEpLayout_t layout = f->layout;
	uint32_t at = fuzz_places(f, 4);
	struct mutation m;
	ncclEpTensor_t *ids;
	ncclResult_t result;
	void *c, *i = NULL;

	mutation_begin(&m, &f->state, f->spare);
	ids = mutate_tensor(&m, "topk_idx", &f->b->ids.t, true, at & 1);
	if (at & 2) {
		layout = (ncclEpLayout_t)mutate_number(&m, "layout", (uint64_t)layout);
		m.sure = (unsigned int)layout > 31 || !(f->layouts >> layout & 1);
	}
	c = mutate_struct(&m, &form_handle_config, &config, at & 4);
	if (at & 8) {
		i = mutate_struct(&m, &form_info, &info, true);
	}
	result = ncclEpCreateHandle(&handle, f->group, layout, ids, i, c, f->w->stream);
	fuzz_judge(f, "create", result, &m);
	CHECK((handle != untouched) == (result == ncclSuccess));
	if (result == ncclSuccess) {
		OK(ncclEpHandleDestroy(handle));
	}
	mutation_end(&m);
	return result;
}

/* ---- the cases ---- */

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
	} else if (world_draw(s, 3) == 0) {
		p->quant = world_draw(s, 2) ? ORACLE_QUANT_MXFP8 : ORACLE_QUANT_NVFP4;
		p->combine_quant = world_draw(s, 2) ? ORACLE_COMBINE_FP8 : ORACLE_COMBINE_NVFP4;
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
