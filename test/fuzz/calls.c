// SPDX-License-Identifier: Apache-2.0
/* Handles, dispatch and combine. */
#include "fuzz/calls.h"

#define DRAW(below) world_draw(&f->state, below)
#define AT(type, member) #member, offsetof(type, member)
#define TENSOR(type, member)                                                                       \
	{                                                                                          \
		AT(type, member), FIELD_TENSOR, 0, false                                           \
	}
#define WORD(type, member, most)                                                                   \
	{                                                                                          \
		AT(type, member), FIELD_U32, most, false                                           \
	}
#define ANY UINT64_MAX

static const struct form form_in = {
	"inputs",
	NCCL_EP_DISPATCH_INPUTS_SIZE,
	NCCL_EP_DISPATCH_INPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpDispatchInputs_t, tokens), TENSOR(ncclEpDispatchInputs_t, topk_weights),
	  TENSOR(ncclEpDispatchInputs_t, scales) },
};
static const struct form form_out = {
	"outputs",
	NCCL_EP_DISPATCH_OUTPUTS_SIZE,
	NCCL_EP_DISPATCH_OUTPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpDispatchOutputs_t, tokens), TENSOR(ncclEpDispatchOutputs_t, topk_weights),
	  TENSOR(ncclEpDispatchOutputs_t, scales), TENSOR(ncclEpDispatchOutputs_t, topk_idx) },
};
static const struct form form_info = {
	"layout_info",
	NCCL_EP_LAYOUT_INFO_SIZE,
	NCCL_EP_LAYOUT_INFO_V1_SIZE,
	true,
	{ TENSOR(ncclEpLayoutInfo_t, expert_counters),
	  TENSOR(ncclEpLayoutInfo_t, src_rank_counters),
	  WORD(ncclEpLayoutInfo_t, recv_topk_idx_kind, NCCL_EP_EXPERT_ID_GLOBAL) },
};
static const struct form form_config = {
	"config",
	NCCL_EP_DISPATCH_CONFIG_SIZE,
	NCCL_EP_DISPATCH_CONFIG_V1_SIZE,
	true,
	{ WORD(ncclEpDispatchConfig_t, send_only, ANY),
	  WORD(ncclEpDispatchConfig_t, round_scales, ANY),
	  WORD(ncclEpDispatchConfig_t, pass_direction, NCCL_EP_FWD_PASS),
	  WORD(ncclEpDispatchConfig_t, quant_recipe, NCCL_EP_DISP_QUANT_DS_FP8E3M4) },
};
static const struct form form_combine_in = {
	"inputs",
	NCCL_EP_COMBINE_INPUTS_SIZE,
	NCCL_EP_COMBINE_INPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpCombineInputs_t, tokens), TENSOR(ncclEpCombineInputs_t, scales) },
};
static const struct form form_combine_out = {
	"outputs",
	NCCL_EP_COMBINE_OUTPUTS_SIZE,
	NCCL_EP_COMBINE_OUTPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpCombineOutputs_t, tokens), TENSOR(ncclEpCombineOutputs_t, topk_weights) },
};
static const struct form form_combine_config = {
	"config",
	NCCL_EP_COMBINE_CONFIG_SIZE,
	NCCL_EP_COMBINE_CONFIG_V1_SIZE,
	true,
	{ WORD(ncclEpCombineConfig_t, send_only, ANY),
	  WORD(ncclEpCombineConfig_t, pass_direction, NCCL_EP_FWD_PASS),
	  WORD(ncclEpCombineConfig_t, quant_recipe, NCCL_EP_COMB_QUANT_NONE) },
};
static const struct form form_handle_config = {
	"config",
	NCCL_EP_HANDLE_CONFIG_SIZE,
	NCCL_EP_HANDLE_CONFIG_V1_SIZE,
	true,
	{ { AT(ncclEpHandleConfig_t, dispatch_output_per_expert_alignment), FIELD_U64, ANY,
	    false } },
};
static const struct form form_complete = {
	"config", NCCL_EP_COMPLETE_CONFIG_SIZE, NCCL_EP_COMPLETE_CONFIG_V1_SIZE, true, { { 0 } },
};

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
	bytes = bench_fetch(t);
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
		OK(ncclEpComplete(f->b->handle, NULL, f->w->stream));
		NEED_CUDA(cudaStreamSynchronize(f->w->stream));
		OK(ncclEpExtGetLastError(f->b->group, NULL, &text));
		CHECK_TEXT(text, f->last); /* or the operation has failed */
	} else {
		NEED_CUDA(cudaStreamSynchronize(f->w->stream));
		CHECK_INT(operations(f), before);
		check_untouched(f->b);
	}
	return result;
}

/* How many mistakes, and at which of n places each: bit sets. */
static uint32_t places(struct fuzz *f, uint32_t n)
{
	uint32_t set = 1u << DRAW(n);

	return DRAW(3) ? set : set | 1u << DRAW(n) | 1u << DRAW(n);
}

ncclResult_t fuzz_dispatch(struct fuzz *f)
{
	struct bench *b = f->b;
	const struct oracle_problem *p = &b->p;
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	uint32_t at = places(f, 4);
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
		in.scales = p->quant == ORACLE_QUANT_FORWARD ? &b->in_scales.t : NULL;
		config.quant_recipe = p->quant == ORACLE_QUANT_FORWARD
					      ? NCCL_EP_DISP_QUANT_FWD
					      : NCCL_EP_DISP_QUANT_DS_FP8E3M4;
	}
	bench_poison(b);
	before = operations(f);
	mutation_begin(&m, &f->state, &b->weights.t);
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
	uint32_t at = places(f, 3);
	struct mutation m;
	uint64_t before;
	ncclResult_t result;
	void *s[3];

	/* after an update of the routing there is nothing to combine, which is refused as well */
	in.tokens = &b->combine_in.t;
	out.tokens = &b->combine_out.t;
	out.topk_weights = by_rank ? NULL : &b->weights.t;
	bench_poison(b);
	before = operations(f);
	mutation_begin(&m, &f->state, &b->weights.t);
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
	mutation_begin(&m, &f->state, &f->b->weights.t);
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
	uint32_t at = places(f, 3);
	struct mutation m;
	ncclResult_t result;

	mutation_begin(&m, &f->state, &f->b->weights.t);
	result = ncclEpUpdateHandle(f->b->handle,
				    mutate_tensor(&m, "topk_idx", &f->b->ids.t, true, at & 3),
				    at & 4 ? mutate_struct(&m, &form_info, &info, true) : NULL,
				    f->w->stream);
	fuzz_judge(f, "update", result, &m);
	mutation_end(&m);
	return result;
}

/* A layout and a top-k, of which most are wrong. */
static ncclEpLayout_t layout_of(struct fuzz *f, struct mutation *m, bool wrong)
{
	ncclEpLayout_t layout = (ncclEpLayout_t)f->b->p.layout;

	if (wrong) {
		layout = (ncclEpLayout_t)mutate_number(m, "layout", (uint64_t)layout);
		m->sure = (int)layout != 1 && (int)layout != 2;
	}
	return layout;
}

static int topk_of(struct fuzz *f, struct mutation *m, bool wrong)
{
	int topk = (int)f->b->p.topk;

	if (wrong) {
		topk = (int)mutate_number(m, "num_topk", (uint64_t)topk);
		m->sure = topk < 1 || topk > 32 || topk > (int)f->b->p.experts;
	}
	return topk;
}

ncclResult_t fuzz_mem_size(struct fuzz *f)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	uint32_t at = places(f, 3);
	size_t bytes = 12345;
	struct mutation m;
	ncclResult_t result;
	void *c;

	mutation_begin(&m, &f->state, &f->b->weights.t);
	c = mutate_struct(&m, &form_handle_config, &config, at & 1);
	result = ncclEpHandleMemSize(f->b->group, layout_of(f, &m, at & 2), c, &bytes,
				     topk_of(f, &m, at & 4));
	fuzz_judge(f, "mem size", result, &m);
	CHECK((bytes == 12345) == (result != ncclSuccess));
	fuzz_judge(f, "mem size to NULL",
		   ncclEpHandleMemSize(f->b->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, NULL, 1),
		   NULL);
	mutation_end(&m);
	return result;
}

static void judge_handle(struct fuzz *f, const char *call, ncclResult_t result,
			 ncclEpHandle_t handle, ncclEpHandle_t untouched, const struct mutation *m)
{
	fuzz_judge(f, call, result, m);
	CHECK((handle != untouched) == (result == ncclSuccess));
	if (result == ncclSuccess) {
		OK(ncclEpHandleDestroy(handle));
	}
}

ncclResult_t fuzz_init(struct fuzz *f)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpHandle_t untouched = (ncclEpHandle_t)&config, handle = untouched;
	ncclEpTensor_t mem = NCCL_EP_TENSOR_INIT;
	uint32_t at = places(f, 4);
	struct mutation m;
	ncclResult_t result;
	size_t bytes;
	ncclEpLayout_t layout;
	void *c;
	int topk;

	NEED_OK(ncclEpHandleMemSize(f->b->group, (ncclEpLayout_t)f->b->p.layout, NULL, &bytes,
				    (int)f->b->p.topk));
	NEED_CUDA(cudaMalloc(&mem.data, bytes + 16));
	mem.ndim = 1;
	mem.datatype = ncclUint8;
	mem.sizes = &bytes;
	mutation_begin(&m, &f->state, &f->b->weights.t);
	c = mutate_struct(&m, &form_handle_config, &config, at & 1);
	layout = layout_of(f, &m, at & 2);
	topk = topk_of(f, &m, at & 4);
	result = ncclEpInitHandle(&handle, f->b->group, layout, c, topk,
				  DRAW(3) ? mutate_tensor(&m, "handle_mem", &mem, true, at & 8)
					  : NULL);
	judge_handle(f, "init", result, handle, untouched, &m);
	mutation_end(&m);
	NEED_CUDA(cudaFree(mem.data));
	return result;
}

ncclResult_t fuzz_create(struct fuzz *f)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpHandle_t untouched = (ncclEpHandle_t)&config, handle = untouched;
	uint32_t at = places(f, 4);
	struct mutation m;
	ncclEpTensor_t *ids;
	ncclResult_t result;
	ncclEpLayout_t layout;
	void *c, *i = NULL;

	mutation_begin(&m, &f->state, &f->b->weights.t);
	ids = mutate_tensor(&m, "topk_idx", &f->b->ids.t, true, at & 1);
	layout = layout_of(f, &m, at & 2);
	c = mutate_struct(&m, &form_handle_config, &config, at & 4);
	if (at & 8) {
		i = mutate_struct(&m, &form_info, &info, true);
	}
	result = ncclEpCreateHandle(&handle, f->b->group, layout, ids, i, c, f->w->stream);
	judge_handle(f, "create", result, handle, untouched, &m);
	mutation_end(&m);
	return result;
}
