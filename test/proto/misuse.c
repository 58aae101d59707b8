/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mistakes in the arguments of dispatch and combine: each is refused with the promised code and a
 * line that names it, launches nothing, and leaves the group and the handle as they were.
 */
#include "nccl_ep/ext.h"
#include "proto/mistake_call.h"

static void fill(struct call *c, void *bench)
{
	struct bench *b = bench;
	bool by_rank = b->p.layout == ORACLE_RANK_MAJOR;

	call_begin(c, b->group, b->handle, b->w->stream);
	c->elsewhere = b->in_tokens.sizes;
	c->in.tokens = copy(c->t + IT, &b->in_tokens);
	c->out.tokens = copy(c->t + OT, &b->out_tokens);
	copy(c->t + IW, &b->weights);
	copy(c->t + NC, &b->counts);
	if (by_rank) {
		c->in.topk_weights = &c->t[IW].t;
		c->out.topk_weights = copy(c->t + OW, &b->out_weights);
		c->out.topk_idx = copy(c->t + OX, &b->out_idx);
		c->info.src_rank_counters = &c->t[NC].t;
	} else {
		c->info.expert_counters = &c->t[NC].t;
		c->cout.topk_weights = &c->t[IW].t;
	}
	c->config.quant_recipe = bench_recipe(&b->p);
	copy(c->t + CS, &b->combine_scales);
	if (b->p.quant != ORACLE_QUANT_NONE) {
		c->out.scales = copy(c->t + OS, &b->out_scales);
	}
	if (b->p.quant == ORACLE_QUANT_FORWARD || b->p.quant == ORACLE_QUANT_NVFP4) {
		c->in.scales = copy(c->t + IS, &b->in_scales);
	}
	c->cin.tokens = copy(c->t + CI, &b->combine_in);
	c->cout.tokens = copy(c->t + CT, &b->combine_out);
}

#define BYTES_ON(tensor_, n_) c->t[tensor_].t.data = (char *)c->t[tensor_].t.data + (n_)

/* Times the size of an element it is small again, in 64 bits. */
#define HUGE (((size_t)1 << 63) + 256)
#define HUGE_TEXT "rows of 9223372036854776064 bf16"

#define ANY_DISPATCH(M)                                                                            \
	SAME_DISPATCH(M)                                                                           \
	M(in_magic, c->in.magic ^= 1, IA, "inputs")                                                \
	M(out_size, c->out.size = 0, IA, "outputs")                                                \
	M(info_size, c->info.size = NCCL_EP_LAYOUT_INFO_V1_SIZE - 1, IA, "layout_info")            \
	M(info_magic, c->info.magic = NCCL_EP_TENSOR_MAGIC, IA, "layout_info")                     \
	M(config_magic, c->config.magic = ~c->config.magic, IA, "config")                          \
	M(backward, c->config.pass_direction = NCCL_EP_BWD_PASS, IU, "backward")                   \
	M(direction, c->config.pass_direction = (ncclEpPassDir_t)-3, IA, "pass_direction")         \
	/* as ncclEpTensorAlloc marks its own, but these extents are not where it puts them */ M(  \
		token_magic, c->t[IT].t.magic = 0xBEEFBEEFu;                                       \
		c->t[IT].t.sizes = c->elsewhere, IA, "inputs->tokens")                             \
	M(token_magic2, c->t[IT].t.magic = NCCL_EP_MAGIC, IA, "inputs->tokens")                    \
	M(token_size, c->t[IT].t.size = 40, IA, "inputs->tokens")                                  \
	M(token_no_sizes, c->t[IT].t.sizes = NULL, IA, "inputs->tokens")                           \
	M(token_bad_type, c->t[IT].t.datatype = (ncclDataType_t)99, IA, "99")                      \
	M(token_rows, c->t[IT].sizes[0]++, IA, "inputs->tokens")                                   \
	M(token_odd_row, c->t[IT].sizes[1]--; c->t[OT].sizes[2]--, IA, "16")                       \
	M(token_wide, c->t[IT].sizes[1] *= 4; c->t[OT].sizes[2] *= 4, IA, "max_token_bytes")       \
	M(token_huge, c->t[IT].sizes[1] = HUGE; c->t[OT].sizes[2] = HUGE, IA, HUGE_TEXT)           \
	M(token_empty_row, c->t[IT].sizes[1] = 0; c->t[OT].sizes[2] = 0, IA, "inputs->tokens")     \
	M(out_ndim, c->t[OT].t.ndim = 2, IA, "outputs->tokens")                                    \
	M(out_blocks, c->t[OT].sizes[0]--, IA, "outputs->tokens")                                  \
	M(out_rows, c->t[OT].sizes[1]++, IA, "outputs->tokens")                                    \
	M(out_width, c->t[OT].sizes[2]++, IA, "outputs->tokens")                                   \
	M(in_scales_none, c->in.scales = &c->t[IW].t, IA, "inputs->scales")                        \
	M(out_scales_none, c->out.scales = &c->t[IW].t, IA, "outputs->scales")                     \
	M(counts_type, c->t[NC].t.datatype = ncclInt64, IA, "counters")                            \
	M(counts_extent, c->t[NC].sizes[0]++, IA, "counters")                                      \
	M(counts_ndim, c->t[NC].t.ndim = 2, IA, "counters")

#define EM_DISPATCH(M)                                                                             \
	M(counts_missing, c->info.expert_counters = NULL, IA, "expert_counters")                   \
	M(em_weights_in, c->in.topk_weights = &c->t[IW].t, IA, "inputs->topk_weights")             \
	M(em_weights_out, c->out.topk_weights = &c->t[IW].t, IA, "outputs->topk_weights")          \
	M(em_idx, c->out.topk_idx = &c->t[IW].t, IA, "outputs->topk_idx")                          \
	M(em_src_counts, c->info.src_rank_counters = &c->t[NC].t, IA, "src_rank_counters")

#define RM_DISPATCH(M)                                                                             \
	M(rm_expert_counts, c->info.expert_counters = &c->t[NC].t, IA, "expert_counters")          \
	M(rm_no_weights, c->in.topk_weights = NULL, IA, "inputs->topk_weights")                    \
	M(rm_weights_type, c->t[IW].t.datatype = ncclBfloat16, IA, "inputs->topk_weights")         \
	M(rm_weights_rows, c->t[IW].sizes[0]--, IA, "inputs->topk_weights")                        \
	M(rm_weights_k, c->t[IW].sizes[1]++, IA, "inputs->topk_weights")                           \
	M(rm_no_out_weights, c->out.topk_weights = NULL, IA, "outputs->topk_weights")              \
	M(rm_out_weights_k, c->t[OW].sizes[2]--, IA, "outputs->topk_weights")                      \
	M(rm_no_idx, c->out.topk_idx = NULL, IA, "outputs->topk_idx")                              \
	M(rm_idx_type, c->t[OX].t.datatype = ncclInt64, IA, "outputs->topk_idx")                   \
	M(rm_idx_blocks, c->t[OX].sizes[0]++, IA, "outputs->topk_idx")

#define FP8_DISPATCH(M)                                                                            \
	M(fp8_no_scales, c->out.scales = NULL, IA, "outputs->scales")                              \
	M(fp8_scale_type, c->t[OS].t.datatype = ncclBfloat16, IA, "outputs->scales")               \
	M(fp8_scale_width, c->t[OS].sizes[2]++, IA, "outputs->scales")                             \
	M(fp8_scale_blocks, c->t[OS].sizes[0]++, IA, "outputs->scales: sizes[0] is")               \
	M(fp8_scale_rows, c->t[OS].sizes[1]--, IA, "outputs->scales: sizes[1] is")                 \
	M(fp8_scale_ndim, c->t[OS].t.ndim = 2, IA, "outputs->scales")                              \
	M(fp8_wide, c->t[IT].sizes[1] *= 4; c->t[OT].sizes[2] *= 4;                                \
	  c->t[OS].sizes[2] *= 4, IA, "bytes with its scales, the group's max_token_bytes is")     \
	M(fp8_scale_align, BYTES_ON(OS, 2), IA, "outputs->scales")                                 \
	M(fp8_in_scales, c->in.scales = &c->t[IW].t, IA, "inputs->scales")                         \
	M(fp8_in_type, c->t[IT].t.datatype = ncclFloat16, IA, "inputs->tokens")                    \
	M(fp8_out_type, c->t[OT].t.datatype = ncclBfloat16, IA, "outputs->tokens")                 \
	M(fp8_hidden, c->t[IT].sizes[1] -= 64; c->t[OT].sizes[2] -= 64, IA, "128")                 \
	M(fp8_none, c->config.quant_recipe = NCCL_EP_DISP_QUANT_NONE, IA, "outputs->scales")

#define MXFP8_DISPATCH(M)                                                                          \
	M(mx_no_scales, c->out.scales = NULL, IA, "MXFP8 needs outputs->scales")                   \
	M(mx_scale_type, c->t[OS].t.datatype = ncclFloat8e4m3, IA, "outputs->scales")              \
	M(mx_scale_width, c->t[OS].sizes[2] /= 4, IA, "elements per token / 32")                   \
	M(mx_scale_align, BYTES_ON(OS, 1), IA, "outputs->scales")                                  \
	M(mx_round, c->config.round_scales = 1, IA, "MXFP8 needs round_scales 0")                  \
	M(mx_in_scales, c->in.scales = &c->t[IW].t, IA, "inputs->scales")                          \
	M(mx_in_type, c->t[IT].t.datatype = ncclFloat16, IA, "inputs->tokens")                     \
	M(mx_out_type, c->t[OT].t.datatype = ncclFloat8e5m2, IA, "outputs->tokens")                \
	M(mx_hidden, c->t[IT].sizes[1] -= 32;                                                      \
	  c->t[OT].sizes[2] -= 32, IA, "MXFP8 needs a multiple of 128")

#define NVFP4_DISPATCH(M)                                                                          \
	M(nv_no_scales, c->out.scales = NULL, IA, "NVFP4 needs outputs->scales")                   \
	M(nv_scale_type, c->t[OS].t.datatype = ncclUint8, IA, "outputs->scales")                   \
	M(nv_scale_width, c->t[OS].sizes[2]++, IA, "elements per token / 16")                      \
	M(nv_scale_align, BYTES_ON(OS, 2), IA, "outputs->scales")                                  \
	M(nv_round, c->config.round_scales = 1, IA, "NVFP4 needs round_scales 0")                  \
	M(nv_no_global, c->in.scales = NULL, IA, "NVFP4 needs inputs->scales")                     \
	M(nv_global_type, c->t[IS].t.datatype = ncclBfloat16, IA, "inputs->scales")                \
	M(nv_global_extent, c->t[IS].sizes[0] = 2, IA, "inputs->scales")                           \
	M(nv_global_ndim, c->t[IS].t.ndim = 2, IA, "inputs->scales")                               \
	M(nv_global_data, c->t[IS].t.data = NULL, IA, "inputs->scales")                            \
	M(nv_global_align, BYTES_ON(IS, 2), IA, "inputs->scales")                                  \
	M(nv_in_type, c->t[IT].t.datatype = ncclFloat32, IA, "inputs->tokens")                     \
	M(nv_out_type, c->t[OT].t.datatype = ncclUint8, IA, "outputs->tokens")                     \
	M(nv_out_width, c->t[OT].sizes[2] *= 2, IA, "elements of inputs->tokens / 2")              \
	M(nv_hidden, c->t[IT].sizes[1] -= 32;                                                      \
	  c->t[OT].sizes[2] -= 16, IA, "NVFP4 needs a multiple of 64")

#define FWD_DISPATCH(M)                                                                            \
	SAME_FORWARD(M)                                                                            \
	M(fwd_other, c->t[OT].t.datatype = ncclFloat8e5m2, IA, "outputs->tokens")                  \
	M(fwd_scale_other, c->t[OS].t.datatype = ncclUint8, IA, "scales")                          \
	M(fwd_scale_row, c->t[IS].sizes[1]--; c->t[OS].sizes[2]--, IA, "inputs->scales")           \
	M(fwd_scale_align, c->t[IS].t.data = (char *)c->t[IS].t.data + 4, IA, "inputs->scales")    \
	M(fwd_out_scale_rows, c->t[OS].sizes[1]++, IA, "outputs->scales: sizes[1] is")             \
	M(fwd_out_scale_width, c->t[OS].sizes[2]++, IA, "elements of inputs->scales")              \
	M(fwd_wide, c->t[IS].sizes[1] *= 64; c->t[OS].sizes[2] *= 64, IA, "max_token_bytes")

#define ANY_COMBINE(M)                                                                             \
	SAME_COMBINE(M)                                                                            \
	M(cin_magic, c->cin.magic = 1, IA, "inputs")                                               \
	M(cout_size, c->cout.size = 8, IA, "outputs")                                              \
	M(cconfig_size, c->cconfig.size = NCCL_EP_COMBINE_CONFIG_V1_SIZE - 1, IA, "config")        \
	M(cbackward, c->cconfig.pass_direction = NCCL_EP_BWD_PASS, IU, "backward")                 \
	M(cblocks, c->t[CI].sizes[0]++, IA, "inputs->tokens")                                      \
	M(crows, c->t[CI].sizes[1]--, IA, "inputs->tokens")                                        \
	M(codd, c->t[CI].sizes[2]--; c->t[CT].sizes[1]--, IA, "16")                                \
	M(cwide, c->t[CI].sizes[2] *= 4; c->t[CT].sizes[1] *= 4, IA, "max_token_bytes")            \
	M(chuge, c->t[CI].sizes[2] = HUGE; c->t[CT].sizes[1] = HUGE, IA, HUGE_TEXT)                \
	M(cout_rows, c->t[CT].sizes[0]++, IA, "outputs->tokens")                                   \
	M(cout_width, c->t[CT].sizes[1]++, IA, "outputs->tokens")                                  \
	M(cout_ndim, c->t[CT].t.ndim = 3, IA, "outputs->tokens")                                   \
	M(cndim, c->t[CI].t.ndim = 2, IA, "inputs->tokens")                                        \
	M(cdirection, c->cconfig.pass_direction = (ncclEpPassDir_t)-3, IA, "pass_direction")

#define NVFP4(mistake_)                                                                            \
	c->cconfig.quant_recipe = NCCL_EP_COMB_QUANT_NVFP4;                                        \
	c->cin.scales = &c->t[CS].t;                                                               \
	mistake_
#define FP8(mistake_)                                                                              \
	c->cconfig.quant_recipe = NCCL_EP_EXT_COMB_QUANT_FP8;                                      \
	mistake_

#define QUANTISED_COMBINE(M)                                                                       \
	M(cnv_no_scales, NVFP4(c->cin.scales = NULL), IA, "NVFP4 needs inputs->scales")            \
	M(cnv_scale_type, NVFP4(c->t[CS].t.datatype = ncclFloat8e4m3), IA, "inputs->scales")       \
	M(cnv_scale_width, NVFP4(c->t[CS].sizes[2] = 2), IA, "a global scale per row")             \
	M(cnv_scale_rows, NVFP4(c->t[CS].sizes[1]--), IA, "inputs->scales")                        \
	M(cnv_scale_ndim, NVFP4(c->t[CS].t.ndim = 2), IA, "inputs->scales")                        \
	M(cnv_scale_align, NVFP4(BYTES_ON(CS, 2)), IA, "inputs->scales")                           \
	M(cnv_type, NVFP4(c->t[CI].t.datatype = c->t[CT].t.datatype = ncclFloat16), IA,            \
	  "inputs->tokens")                                                                        \
	M(cnv_hidden, NVFP4(c->t[CI].sizes[2] -= 16; c->t[CT].sizes[1] -= 16), IA,                 \
	  "NVFP4 needs a multiple of 32")                                                          \
	M(cfp8_scales, FP8(c->cin.scales = &c->t[CS].t), IA, "the recipe makes the scales")        \
	M(cfp8_type, FP8(c->t[CI].t.datatype = c->t[CT].t.datatype = ncclFloat16), IA,             \
	  "inputs->tokens")                                                                        \
	M(cfp8_hidden, FP8(c->t[CI].sizes[2] -= 32; c->t[CT].sizes[1] -= 32), IA,                  \
	  "FP8 needs a multiple of 128")                                                           \
	M(cnvfp4, c->cconfig.quant_recipe = NCCL_EP_COMB_QUANT_NVFP4, IA, "NVFP4")                 \
	M(cmxfp8, c->cconfig.quant_recipe = NCCL_EP_COMB_QUANT_MXFP8, IA, "MXFP8")

#define EM_COMBINE(M)                                                                              \
	M(cno_weights, c->cout.topk_weights = NULL, IA, "outputs->topk_weights")                   \
	M(cweights_type, c->t[IW].t.datatype = ncclFloat16, IA, "outputs->topk_weights")           \
	M(cweights_k, c->t[IW].sizes[1]--, IA, "outputs->topk_weights")

MISTAKES(any_dispatch, ANY_DISPATCH)
MISTAKES(em_dispatch, EM_DISPATCH)
MISTAKES(rm_dispatch, RM_DISPATCH)
MISTAKES(fp8_dispatch, FP8_DISPATCH)
MISTAKES(mxfp8_dispatch, MXFP8_DISPATCH)
MISTAKES(nvfp4_dispatch, NVFP4_DISPATCH)
MISTAKES(fwd_dispatch, FWD_DISPATCH)
MISTAKES(any_combine, ANY_COMBINE)
MISTAKES(quantised_combine, QUANTISED_COMBINE)
MISTAKES(em_combine, EM_COMBINE)

#define TRY(list_, fn_) mistakes_try(list_, MISTAKE_COUNT(list_), where, b, fill, fn_)

/* Order of calls. */
static void order(struct bench *b)
{
	cudaStream_t stream = b->w->stream;
	ncclEpHandle_t fresh, third;
	struct bench other = *b;
	struct call c;

	check_context("order of calls");
	NEED_OK(ncclEpInitHandle(&fresh, b->group, (ncclEpLayout_t)b->p.layout, NULL,
				 (int)b->p.topk, NULL));
	other.handle = fresh;
	fill(&c, &other);
	watch_start();
	CHECK_REASON(dispatch(&c), IA, "ncclEpUpdateHandle");
	CHECK_REASON(combine(&c), IA, "ncclEpUpdateHandle");
	OK(bench_update(&other, stream));
	CHECK_REASON(combine(&c), IU, "ncclEpDispatch");
	OK(ncclEpComplete(fresh, NULL, stream)); /* nothing pending */
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);

	NEED_OK(bench_send_dispatch(&other, stream));
	watch_start();
	CHECK_REASON(dispatch(&c), IU, "ncclEpComplete");
	CHECK_REASON(combine(&c), IU, "ncclEpComplete");
	CHECK_REASON(bench_update(&other, stream), IU, "ncclEpComplete");
	CHECK_REASON(ncclEpHandleDestroy(fresh), IU, "ncclEpComplete");
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	NEED_OK(bench_send_dispatch(b, stream));
	NEED_OK(ncclEpInitHandle(&third, b->group, (ncclEpLayout_t)b->p.layout, NULL,
				 (int)b->p.topk, NULL));
	other.handle = c.handle = third;
	OK(bench_update(&other, stream));
	watch_start();
	CHECK_REASON(bench_send_dispatch(&other, stream), IU, "pending");
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	NEED_OK(ncclEpComplete(fresh, NULL, stream));
	NEED_OK(ncclEpComplete(b->handle, NULL, stream));
	NEED_SYNC(bench_dispatch(&other, stream), stream);
	OK(bench_update(&other, stream)); /* the same ids: the dispatch counts still */
	bench_expert_work(&other);
	NEED_SYNC(bench_combine(&other, stream), stream);
	bench_check_combine(&other);
	other.ids.sizes[0]--; /* of fewer tokens: it does not */
	other.ids.t.sizes = other.ids.sizes;
	OK(bench_update(&other, stream));
	c.t[IW].sizes[0]--;
	c.t[CT].sizes[0]--;
	watch_start();
	CHECK_REASON(combine(&c), IU, "was of 5 tokens, topk_idx has 4 since");
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	OK(ncclEpHandleDestroy(third));
	OK(ncclEpHandleDestroy(fresh));
}

/* Windows that do not hold the tensor, one of which ends where addresses begin again. */
static void windows(struct world *w, ncclEpGroup_t group, const struct oracle_problem *p)
{
	const uint64_t offsets[] = { 1ull << 40, -1ull << 6, -1ull << 12 };
	struct bench bench;
	struct call c;

	check_context("windows");
	bench_open(&bench, w, group, p, BENCH_WINDOW);
	NEED_OK(bench_update(&bench, w->stream));
	fill(&c, &bench);
	c.t[OT].t.data = NULL;
	CHECK(c.t[OT].t.win_hdl);
	watch_start();
	for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		c.t[OT].t.win_offset = offsets[i];
		CHECK_REASON(dispatch(&c), IA, "do not lie in its window");
	}
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	bench_close(&bench);
}

/* The caller's device is another one, and stays so. A stream of it is refused by name. */
static void elsewhere(struct bench *b)
{
	int own = b->w->device, other = own ? 0 : 1, current = -1;
	cudaStream_t stream;
	char part[96];

	check_context("another device");
	snprintf(part, sizeof(part), "the stream is of device %d, and the group of device %d",
		 other, own);
	NEED_CUDA(cudaSetDevice(other));
	NEED_CUDA(cudaStreamCreate(&stream));
	CHECK_REASON(bench_dispatch(b, stream), IU, part);
	NEED_CUDA(cudaGetDevice(&current));
	CHECK_INT(current, other);
	OK(bench_dispatch(b, b->w->stream));
	NEED_CUDA(cudaGetDevice(&current));
	CHECK_INT(current, other);
	NEED_CUDA(cudaStreamDestroy(stream));
	NEED_CUDA(cudaSetDevice(own));
	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
}

/* A mask on such a stream is refused before it counts. */
static void mask_elsewhere(struct world *w, const struct oracle_problem *p)
{
	ncclEpGroup_t group = bench_group(w, p, BENCH_MASK);
	int mask[2] = { 0, 0 };
	cudaStream_t stream;

	mask[w->rank] = 1;
	NEED_CUDA(cudaSetDevice(!w->device));
	NEED_CUDA(cudaStreamCreate(&stream));
	NEED_CUDA(cudaSetDevice(w->device));
	CHECK_REASON(ncclEpMaskUpdate(group, mask, stream), IU, "the stream is of device");
	NEED_CUDA(cudaStreamSynchronize(stream));
	NEED_CUDA(cudaStreamDestroy(stream));
	CHECK_INT(bench_masked(w, group), 0);
	world_meet(w);
	OK(ncclEpGroupDestroy(group));
}

static void run(struct world *w, void *arg)
{
	static const struct {
		enum oracle_quant quant;
		enum oracle_combine_quant back;
	} formats[] = {
		{ ORACLE_QUANT_NONE, ORACLE_COMBINE_NONE },
		{ ORACLE_QUANT_FP8, ORACLE_COMBINE_NONE },
		{ ORACLE_QUANT_FORWARD, ORACLE_COMBINE_NONE },
		{ ORACLE_QUANT_MXFP8, ORACLE_COMBINE_FP8 },
		{ ORACLE_QUANT_NVFP4, ORACLE_COMBINE_NVFP4 },
	};

	for (int i = 0; i < 10; i++) {
		enum oracle_layout layout = i % 2 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR;
		struct oracle_problem p = bench_problem(w->nranks, 8, 3, 256, 5, layout);
		struct bench bench, *b = &bench;
		ncclEpGroup_t group;
		char where[32];

		p.quant = formats[i / 2].quant;
		p.combine_quant = formats[i / 2].back;
		snprintf(where, sizeof(where), "layout %d, quant %d", (int)layout, (int)p.quant);
		check_context("group of %s", where);
		group = bench_group(w, &p, 0);
		bench_open(b, w, group, &p, 0);
		bench_pair(b);
		if (p.quant == ORACLE_QUANT_NONE) {
			TRY(any_dispatch, dispatch);
			if (layout == ORACLE_EXPERT_MAJOR) {
				TRY(em_dispatch, dispatch);
			} else {
				TRY(rm_dispatch, dispatch);
			}
			order(b);
			windows(w, group, &p);
			elsewhere(b);
			mask_elsewhere(w, &p);
		} else if (p.quant == ORACLE_QUANT_FP8) {
			TRY(fp8_dispatch, dispatch);
		} else if (p.quant == ORACLE_QUANT_MXFP8) {
			TRY(mxfp8_dispatch, dispatch);
		} else if (p.quant == ORACLE_QUANT_NVFP4) {
			TRY(nvfp4_dispatch, dispatch);
		} else {
			TRY(fwd_dispatch, dispatch);
		}
		TRY(any_combine, combine);
		TRY(quantised_combine, combine);
		if (layout == ORACLE_EXPERT_MAJOR) {
			TRY(em_combine, combine);
		}
		check_context("after the mistakes, %s", where);
		bench_pair_of(b, 99);
		bench_end(b);
	}
}

int main(void)
{
	world_run(2, run, NULL);
	return check_end();
}
