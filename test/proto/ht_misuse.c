/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mistakes in calls on high-throughput groups: each is refused with the promised code and a line
 * that names it, launches nothing, and leaves the group and the handle as they were.
 */
#include "proto/mistake_call.h"
#include "support/ht_bench.h"

static void fill(struct call *c, void *bench)
{
	struct ht_bench *b = bench;
	bool flat = !b->h.expert_major, forward = b->h.p.quant == ORACLE_QUANT_FORWARD;

	call_begin(c, b->group, b->handle, b->w->stream);
	c->ids = &b->ids.t;
	c->in.tokens = copy(c->t + IT, &b->in_tokens);
	c->in.topk_weights = copy(c->t + IW, &b->weights);
	c->out.tokens = copy(c->t + OT, &b->out_tokens);
	c->out.topk_weights = copy(c->t + OW, &b->out_weights);
	copy(c->t + OX, &b->out_idx);
	c->out.topk_idx = flat ? &c->t[OX].t : NULL;
	copy(c->t + IS, &b->in_scales);
	copy(c->t + OS, &b->out_scales);
	if (forward) {
		c->config.quant_recipe = NCCL_EP_DISP_QUANT_FWD;
		c->in.scales = &c->t[IS].t;
		c->out.scales = &c->t[OS].t;
	}
	c->cin.tokens = copy(c->t + CI, &b->combine_in);
	c->cout.tokens = copy(c->t + CT, &b->combine_out);
	copy(c->t + CG, &b->in_gradients);
	copy(c->t + CO, &b->out_gradients);
	c->info.expert_counters = copy(c->t + NC, &b->counters);
	c->info.expert_offsets = copy(c->t + NO, &b->offsets);
	c->info.recv_total_counter = copy(c->t + NT, &b->total);
}

/* The backward pass as it is right. */
static void backward_dispatch(struct call *c)
{
	c->config.pass_direction = NCCL_EP_BWD_PASS;
	c->in.topk_weights = c->out.topk_weights = c->out.topk_idx = NULL;
}

static void backward_combine(struct call *c)
{
	c->cconfig.pass_direction = NCCL_EP_BWD_PASS;
	c->cin.topk_weights = &c->t[CG].t;
	c->cout.topk_weights = &c->t[CO].t;
}

#define ANY_DISPATCH(M)                                                                            \
	SAME_DISPATCH(M)                                                                           \
	M(info_magic, c->info.magic = 1, IA, "layout_info")                                        \
	M(fp8, c->config.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4, IA,                         \
	  "high throughput mode does not have the recipe DS_FP8E3M4")                              \
	M(fp8_first, c->config.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4;                       \
	  c->in.tokens = NULL, IA, "DS_FP8E3M4")                                                   \
	M(direction, c->config.pass_direction = (ncclEpPassDir_t)2, IA, "pass_direction")          \
	M(token_magic, c->t[IT].t.magic = NCCL_EP_MAGIC, IA, "inputs->tokens")                     \
	M(token_rows, c->t[IT].sizes[0]++, IA, "tokens of the handle's topk_idx")                  \
	M(token_narrow, c->t[IT].sizes[1] = c->t[OT].sizes[1] = 0, IA,                             \
	  "a rank without rows passes the others' number of elements")                             \
	M(token_odd_row, c->t[IT].sizes[1]--; c->t[OT].sizes[1]--, IA, "16")                       \
	M(token_wide, c->t[IT].sizes[1] *= 4; c->t[OT].sizes[1] *= 4, IA, "max_token_bytes")       \
	M(out_ndim, c->t[OT].t.ndim = 3, IA, "outputs->tokens")                                    \
	M(out_width, c->t[OT].sizes[1] += 8, IA, "outputs->tokens")                                \
	M(no_weights, c->in.topk_weights = NULL, IA, "inputs->topk_weights")                       \
	M(weights_type, c->t[IW].t.datatype = ncclBfloat16, IA, "inputs->topk_weights")            \
	M(weights_rows, c->t[IW].sizes[0]--, IA, "inputs->topk_weights")                           \
	M(weights_k, c->t[IW].sizes[1]++, IA, "inputs->topk_weights")                              \
	M(weights_align, c->t[IW].t.data = (char *)c->t[IW].t.data + 2, IA,                        \
	  "inputs->topk_weights: address")                                                         \
	M(no_out_weights, c->out.topk_weights = NULL, IA, "outputs->topk_weights")                 \
	M(out_weights_type, c->t[OW].t.datatype = ncclFloat16, IA, "outputs->topk_weights")        \
	M(out_weights_empty, c->t[OW].sizes[0] = c->t[OX].sizes[0] = 0, IA,                        \
	  "outputs->topk_weights has 0 rows and outputs->tokens")                                  \
	M(bwd_in_weights, backward_dispatch(c);                                                    \
	  c->in.topk_weights = &c->t[IW].t, IA, "inputs->topk_weights must be NULL")               \
	M(bwd_out_weights, backward_dispatch(c);                                                   \
	  c->out.topk_weights = &c->t[OW].t, IA, "outputs->topk_weights must be NULL")             \
	M(bwd_idx, backward_dispatch(c);                                                           \
	  c->out.topk_idx = &c->t[OX].t, IA, "outputs->topk_idx must be NULL")

#define NONE_DISPATCH(M)                                                                           \
	M(in_scales_none, c->in.scales = &c->t[IW].t, IA, "inputs->scales")                        \
	M(out_scales_none, c->out.scales = &c->t[IW].t, IA, "outputs->scales")                     \
	M(v1_scales, c->config.size = NCCL_EP_DISPATCH_CONFIG_V1_SIZE;                             \
	  c->in.scales = c->out.scales = &c->t[IW].t, IA, "scales")

#define FLAT_DISPATCH(M)                                                                           \
	M(no_idx, c->out.topk_idx = NULL, IA, "outputs->topk_idx")                                 \
	M(idx_type, c->t[OX].t.datatype = ncclInt32, IA, "outputs->topk_idx")                      \
	M(idx_rows, c->t[OX].sizes[0]--, IA, "rows of outputs->topk_weights")                      \
	M(idx_k, c->t[OX].sizes[1]++, IA, "outputs->topk_idx")                                     \
	M(idx_ndim, c->t[OX].t.ndim = 1, IA, "outputs->topk_idx")                                  \
	M(idx_align, c->t[OX].t.data = (char *)c->t[OX].t.data + 4, IA, "outputs->topk_idx")       \
	M(out_weights_k, c->t[OW].sizes[1]++, IA, "outputs->topk_weights")                         \
	M(out_weights_ndim, c->t[OW].t.ndim = 1, IA, "outputs->topk_weights")

#define COUNTERS_DISPATCH(M)                                                                       \
	M(em_counters_ndim, c->t[NC].t.ndim = 2, IA, "expert_counters")                            \
	M(em_counters_few, c->t[NC].sizes[0]--, IA, "expert_counters: sizes[0] is")                \
	M(em_counters_type, c->t[NC].t.datatype = ncclUint32, IA, "expert_counters")               \
	M(em_counters_data, c->t[NC].t.data = NULL, IA, "expert_counters")                         \
	M(em_offsets_few, c->t[NO].sizes[0] = 0, IA, "expert_offsets")                             \
	M(em_offsets_ndim, c->t[NO].t.ndim = 2, IA, "expert_offsets")                              \
	M(em_offsets_align, c->t[NO].t.data = (char *)c->t[NO].t.data + 2, IA, "expert_offsets")   \
	M(em_total_data, c->t[NT].t.data = NULL, IA, "recv_total_counter")                         \
	M(em_offsets_type, c->t[NO].t.datatype = ncclInt64, IA, "as counters before it have")      \
	M(em_total_few, c->t[NT].sizes[0] = 0, IA, "recv_total_counter")                           \
	M(em_total_other, c->t[NT].t.datatype = ncclInt64, IA, "recv_total_counter: data type")

#define EM_DISPATCH(M)                                                                             \
	M(em_idx, c->out.topk_idx = &c->t[OX].t, IA, "outputs->topk_idx must be NULL")             \
	M(em_out_weights_ndim, c->t[OW].t.ndim = 2, IA, "outputs->topk_weights")

#define FIXED_DISPATCH(M)                                                                          \
	M(fixed_rows, c->t[OT].sizes[0]--; c->t[OS].sizes[0]--, IA, "max_recv_tokens_per_rank is") \
	M(fixed_empty,                                                                             \
	  c->t[OT].sizes[0] = c->t[OS].sizes[0] = c->t[OW].sizes[0] = c->t[OX].sizes[0] = 0, IA,   \
	  "outputs->tokens: 0 rows")

#define FORWARD_DISPATCH(M)                                                                        \
	SAME_FORWARD(M)                                                                            \
	M(fwd_scale_rows, c->t[OS].sizes[0]++, IA, "outputs->scales: ")                            \
	M(fwd_scale_row, c->t[IS].sizes[1]--; c->t[OS].sizes[1]--, IA, "inputs->scales")           \
	M(fwd_window, c->t[OT].t.win_hdl = (ncclWindow_t)c->handle, IA,                            \
	  "outputs->tokens has a window and outputs->scales has none")                             \
	M(fwd_other_window, c->t[OS].t.win_hdl = (ncclWindow_t)c->handle, IA,                      \
	  "outputs->tokens has no window and outputs->scales has one")                             \
	M(fwd_wide, c->t[IS].sizes[1] *= 64; c->t[OS].sizes[1] *= 64, IA, "max_token_bytes")

#define ANY_COMBINE(M)                                                                             \
	SAME_COMBINE(M)                                                                            \
	M(crecipe_first, c->cconfig.quant_recipe = (ncclEpCombQuant_t)3;                           \
	  c->cout.tokens = NULL, IA, "quant_recipe")                                               \
	M(cdirection, c->cconfig.pass_direction = (ncclEpPassDir_t)9, IA, "pass_direction")        \
	M(cndim, c->t[CI].t.ndim = 3, IA, "inputs->tokens")                                        \
	M(codd, c->t[CI].sizes[1]--; c->t[CT].sizes[1]--, IA, "16")                                \
	M(cwide, c->t[CI].sizes[1] *= 4; c->t[CT].sizes[1] *= 4, IA, "max_token_bytes")            \
	M(cout_rows, c->t[CT].sizes[0]++, IA, "tokens of the handle's topk_idx")                   \
	M(cout_width, c->t[CT].sizes[1] += 8, IA, "outputs->tokens")                               \
	M(cweights, c->cin.topk_weights = &c->t[CG].t, IA, "inputs->topk_weights must be NULL")    \
	M(cbwd_no_in, backward_combine(c);                                                         \
	  c->cin.topk_weights = NULL, IA, "inputs->topk_weights is NULL")                          \
	M(cbwd_no_out, backward_combine(c);                                                        \
	  c->cout.topk_weights = NULL, IA, "outputs->topk_weights is NULL")                        \
	M(cbwd_in_type, backward_combine(c);                                                       \
	  c->t[CG].t.datatype = ncclFloat16, IA, "inputs->topk_weights")                           \
	M(cbwd_in_empty, backward_combine(c);                                                      \
	  c->t[CG].sizes[0] = 0, IA, "inputs->topk_weights has 0 rows")                            \
	M(cbwd_out_rows, backward_combine(c); c->t[CO].sizes[0]++, IA, "outputs->topk_weights")    \
	M(cbwd_out_type, backward_combine(c);                                                      \
	  c->t[CO].t.datatype = ncclBfloat16, IA, "outputs->topk_weights: data type")              \
	M(cbwd_out_ndim, backward_combine(c); c->t[CO].t.ndim = 1, IA, "outputs->topk_weights")    \
	M(cbwd_out_k, backward_combine(c); c->t[CO].sizes[1]++, IA, "outputs->topk_weights")

/* A combine by this recipe, of rows of so many elements. */
static void mxfp8_combine(struct call *c, size_t elements)
{
	c->cconfig.quant_recipe = NCCL_EP_COMB_QUANT_MXFP8;
	c->t[CI].sizes[1] = c->t[CT].sizes[1] = elements;
}

#define HT_COMBINE(M)                                                                              \
	M(cempty_narrow, c->t[CI].sizes[0] = c->t[CI].sizes[1] = 0;                                \
	  c->t[CT].sizes[1] = 0, IA, "a rank without rows passes the others' number of elements")  \
	M(cno_fp8, c->cconfig.quant_recipe = NCCL_EP_EXT_COMB_QUANT_FP8, IA,                       \
	  "high throughput mode does not have the recipe FP8")

/* To callers of API version 2 the device lacks it. */
#define NVFP4_2_COMBINE(M)                                                                         \
	M(cno_nvfp4_2, c->cconfig.quant_recipe = NCCL_EP_COMB_QUANT_NVFP4, IU,                     \
	  "high throughput mode does not have the recipe NVFP4")

#define NVFP4_3_COMBINE(M)                                                                         \
	M(cno_nvfp4, c->cconfig.quant_recipe = NCCL_EP_COMB_QUANT_NVFP4, IA,                       \
	  "high throughput mode does not have the recipe NVFP4")

#define FLAT_COMBINE(M)                                                                            \
	M(mx_flat, mxfp8_combine(c, 256), IA, "needs an expert-major handle, this one is FLAT")    \
	M(mx_flat_bwd, backward_combine(c);                                                        \
	  mxfp8_combine(c, 256), IA, "needs an expert-major handle, this one is FLAT")

#define EM_COMBINE(M)                                                                              \
	M(mx_scales, mxfp8_combine(c, 256);                                                        \
	  c->cin.scales = &c->t[IS].t, IA, "inputs->scales must be NULL: the recipe makes")        \
	M(mx_fp16, mxfp8_combine(c, 256); c->t[CI].t.datatype = c->t[CT].t.datatype = ncclFloat16, \
					  IA, "inputs->tokens: data type fp16, it needs bf16")     \
	M(mx_fp32, mxfp8_combine(c, 128); c->t[CI].t.datatype = c->t[CT].t.datatype = ncclFloat32, \
					  IA, "inputs->tokens: data type fp32, it needs bf16")     \
	M(mx_out, mxfp8_combine(c, 256);                                                           \
	  c->t[CT].t.datatype = ncclFloat16, IA, "outputs->tokens: data type fp16")                \
	M(mx_short, mxfp8_combine(c, 256), IA,                                                     \
	  "needs a multiple of 512 elements per row, not 256")                                     \
	M(mx_odd, mxfp8_combine(c, 224), IA, "needs a multiple of 512 elements per row, not 224")  \
	M(mx_group, mxfp8_combine(c, 248), IA, "needs a multiple of 32 elements per row, not 248") \
	M(mx_none, mxfp8_combine(c, 0), IA, "positive multiple of 16 bytes")                       \
	M(mx_bwd, backward_combine(c);                                                             \
	  mxfp8_combine(c, 256), IA, "needs a multiple of 512 elements per row, not 256")

#define ANY_UPDATE(M)                                                                              \
	M(info_size, c->info.size = NCCL_EP_LAYOUT_INFO_V1_SIZE - 1, IA, "layout_info")            \
	M(counters_ndim, c->t[NC].t.ndim = 2, IA, "expert_counters")                               \
	M(counters_few, c->t[NC].sizes[0]--, IA, "expert_counters: sizes[0] is")                   \
	M(counters_type, c->t[NC].t.datatype = ncclFloat32, IA, "expert_counters")                 \
	M(counters_align, c->t[NC].t.data = (char *)c->t[NC].t.data + 2, IA, "expert_counters")    \
	M(total_few, c->t[NT].sizes[0] = 0, IA, "recv_total_counter")                              \
	M(total_type, c->t[NT].t.datatype = ncclUint64, IA, "recv_total_counter")

#define FLAT_UPDATE(M)                                                                             \
	M(flat_counters_type, c->t[NC].t.datatype = ncclInt64, IA, "expert_counters: data type")

#define EM_UPDATE(M)                                                                               \
	M(offsets_few, c->t[NO].sizes[0] = 0, IA, "expert_offsets")                                \
	M(offsets_type, c->t[NO].t.datatype = ncclInt64, IA, "it needs int32, as counters before") \
	M(total_other, c->t[NT].t.datatype = ncclInt64, IA, "recv_total_counter: data type int64")

MISTAKES(any_dispatch, ANY_DISPATCH)
MISTAKES(none_dispatch, NONE_DISPATCH)
MISTAKES(flat_dispatch, FLAT_DISPATCH)
MISTAKES(em_dispatch, EM_DISPATCH)
MISTAKES(counters_dispatch, COUNTERS_DISPATCH)
MISTAKES(fixed_dispatch, FIXED_DISPATCH)
MISTAKES(forward_dispatch, FORWARD_DISPATCH)
MISTAKES(any_combine, ANY_COMBINE)
MISTAKES(ht_combine_recipes, HT_COMBINE)
MISTAKES(nvfp4_2_combine, NVFP4_2_COMBINE)
MISTAKES(nvfp4_3_combine, NVFP4_3_COMBINE)
MISTAKES(flat_combine, FLAT_COMBINE)
MISTAKES(em_combine, EM_COMBINE)
MISTAKES(any_update, ANY_UPDATE)
MISTAKES(flat_update, FLAT_UPDATE)
MISTAKES(em_update, EM_UPDATE)

static ncclResult_t update(struct call *c)
{
	return ncclEpUpdateHandle(c->handle, c->ids, &c->info, c->stream);
}

#define TRY(list_, fn_) mistakes_try(list_, MISTAKE_COUNT(list_), where, b, fill, fn_)

/* Calls that low latency has, and those that there are not. */
static void try_calls(struct ht_bench *b)
{
	cudaStream_t stream = b->w->stream;
	int mask[8] = { 1, 1 }, error = 5;
	ncclEpHandle_t fresh;
	struct call c;
	uint64_t n = 9;

	check_context("calls");
	fill(&c, b);
	watch_start();
	OK(ncclEpComplete(b->handle, NULL, stream));
	CHECK_REASON(ncclEpMaskQuery(b->group, mask, stream), IU, "has no masks");
	CHECK_REASON(ncclEpMaskUpdate(b->group, mask, stream), IU, "has no masks");
	CHECK_REASON(ncclEpMaskClean(b->group, stream), IU, "has no masks");
	CHECK_REASON(ncclEpGetAsyncError(b->group, &error), IU, "has no masks");
	CHECK_REASON(ncclEpErrorClear(b->group), IU, "has no masks");
	CHECK_INT(error, 5);
	CHECK_REASON(ncclEpInitHandle(&fresh, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 3, NULL),
		     IA, "NCCL_EP_LAYOUT_FLAT");
	if (b->w->rank == 0) { /* alone: this mode has no call for which memory grows */
		CHECK_REASON(ncclEpInitHandle(&fresh, b->group, NCCL_EP_LAYOUT_FLAT, NULL,
					      (int)b->h.p.topk + 1, NULL),
			     IU, "num_topk is 4, the group's is 3");
	}
	CHECK_INT(watch.calls[WATCH_GATHER] + watch.calls[WATCH_COPY], 0);
	NEED_OK(ncclEpInitHandle(&fresh, b->group, NCCL_EP_LAYOUT_FLAT, NULL, (int)b->h.p.topk,
				 NULL));
	c.handle = fresh;
	CHECK_REASON(dispatch(&c), IA, "call ncclEpUpdateHandle first");
	CHECK_REASON(combine(&c), IA, "call ncclEpUpdateHandle first");
	CHECK_REASON(ncclEpExtNumRecvTokens(fresh, &n, NULL, stream), IU, "ncclEpUpdateHandle");
	CHECK_INT(n, 9);
	OK(ncclEpHandleDestroy(fresh));
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
}

/*
 * Eager mode reads on the host how many rows come: all must have room, and nothing may be captured.
 */
static void try_eager(struct ht_bench *b)
{
	bool any = b->rows > 0;
	struct call c;

	check_context("eager");
	fill(&c, b);
	NEED(any);
	c.t[OT].sizes[0] = c.t[OW].sizes[0] = c.t[OX].sizes[0] = b->rows - 1;
	watch_start();
	CHECK_REASON(dispatch(&c), IA, "as many as recv_total_counter says");
	fill(&c, b);
	c.t[OW].sizes[0] = c.t[OX].sizes[0] = b->rows - 1;
	CHECK_REASON(dispatch(&c), IA, "outputs->topk_weights:");
	fill(&c, b);
	world_capture(b->w->stream);
	CHECK_REASON(dispatch(&c), IU, "eager mode");
	world_capture_drop(b->w->stream);
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
}

/* Counters that a dispatch has no use for are neither looked at nor written. */
static void try_ignored(struct ht_bench *b, uint32_t api)
{
	bool used = b->h.expert_major && api >= 3;
	struct call c;

	for (int i = used ? 2 : 0; i < 4; i++) { /* backward; wrong ones */
		check_context("ignored counters, version %u, layout %d, case %d", api,
			      b->h.expert_major, i);
		ht_poison(b);
		fill(&c, b);
		if (i & 1) {
			c.t[NC].t.magic = c.t[NO].t.ndim = c.t[NT].t.size = 0;
		}
		if (i & 2) {
			backward_dispatch(&c);
		}
		NEED_SYNC(dispatch(&c), b->w->stream);
		ht_check_no_counters(b);
	}
}

/* The group and a handle with memory of the library take what the query says, to the byte. */
static void check_memory(struct world *w, const struct oracle_ht *h)
{
	ncclEpGroupConfig_t config = ht_group_config(h, 0);
	ncclEpLayout_t layout = h->expert_major ? NCCL_EP_LAYOUT_EXPERT_MAJOR : NCCL_EP_LAYOUT_FLAT;
	ncclEpExtMemory_t m = NCCL_EP_EXT_MEMORY_INIT;
	uint64_t before = watch_bytes();
	ncclEpHandle_t handle;
	ncclEpGroup_t group;
	size_t bytes = 0;

	check_context("memory of %s", h->expert_major ? "em" : "flat");
	OK(ncclEpExtDeviceMemory(&config, w->nranks, layout, 3, &m));
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	CHECK_INT(watch_bytes() - before, m.group_bytes);
	NEED_OK(ncclEpInitHandle(&handle, group, layout, NULL, 3, NULL));
	CHECK_INT(watch_bytes() - before, m.group_bytes + m.handle_bytes);
	OK(ncclEpHandleMemSize(group, layout, NULL, &bytes, 3));
	CHECK_INT(bytes, m.handle_bytes);
	OK(ncclEpHandleDestroy(handle));
	OK(ncclEpGroupDestroy(group));
	world_meet(w);
}

/* With a fixed limit no call allocates, or waits for anything. */
static void try_quiet(struct ht_bench *b)
{
	static const enum watch_call calls[] = { WATCH_MALLOC,      WATCH_FREE,
						 WATCH_HOST_ALLOC,  WATCH_DEVICE_SYNC,
						 WATCH_STREAM_SYNC, WATCH_COPY,
						 WATCH_MEMSET,      WATCH_GATHER };

	check_context("quiet");
	watch_start();
	NEED_OK(ht_update(b, b->w->stream));
	for (int backward = 0; backward < 2; backward++) {
		NEED_OK(ht_dispatch(b, backward, b->w->stream));
		NEED_OK(ht_combine(b, backward, b->w->stream));
	}
	CHECK_INT(watch.calls[WATCH_LAUNCH], 5);
	CHECK(watch.most_blocks <= 2);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		CHECK(watch.calls[calls[i]] == 0, "%s", watch_name(calls[i]));
	}
	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
}

/* Callers of API version 1 allocate what comes, also where there is a limit; not in a capture. */
static void try_version_1(struct ht_bench *b)
{
	check_context("version 1");
	b->out_tokens.sizes[0] = b->tables[b->w->rank]->total;
	NEED_SYNC(ht_dispatch(b, false, b->w->stream), b->w->stream);
	ht_check_dispatch(b, false);
	world_capture(b->w->stream);
	CHECK_REASON(ht_dispatch(b, false, b->w->stream), IU, "counting rows");
	world_capture_drop(b->w->stream);
	b->out_tokens.sizes[0]--;
	CHECK_REASON(ht_dispatch(b, false, b->w->stream), IA, "as many as recv_total_counter says");
}

/* The caller's memory: what its head says is not believed, and T is the tensors'. */
static void try_memory(struct ht_bench *b)
{
	struct call c;

	check_context("memory");
	ht_reopen(b);
	fill(&c, b);
	c.t[IT].sizes[0] = b->h.p.max_tokens + 1;
	watch_start();
	CHECK_REASON(dispatch(&c), IA, "max_dispatch_tokens_per_rank is");
	fill(&c, b);
	c.t[CT].sizes[0] = b->h.p.max_tokens + 1;
	CHECK_REASON(combine(&c), IA, "max_dispatch_tokens_per_rank is");
	if (!b->h.limit) {
		fill(&c, b);
		c.t[IT].sizes[0]--;
		c.t[IW].sizes[0]--;
		CHECK_REASON(dispatch(&c), IA, "the routing in handle_mem has");
	}
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	NEED_SYNC(ht_dispatch(b, false, b->w->stream), b->w->stream);
	ht_check_dispatch(b, false);
	if (!b->h.limit) {
		NEED_CUDA(cudaMemset(b->mem.data, 0, 64));
		NEED_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
		fill(&c, b);
		watch_start();
		CHECK_REASON(dispatch(&c), IA, "no routing for handles like this one");
		CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	}
}

/* Another handle on the same memory, whose zones would lie elsewhere, does not take the routing. */
static void try_other_zones(struct ht_bench *b)
{
	uint32_t alignment = b->h.alignment;
	struct call c;

	check_context("other zones");
	b->h.alignment = 8;
	ht_reopen(b);
	fill(&c, b);
	watch_start();
	c.t[OT].sizes[0] = c.t[OW].sizes[0] = b->rows;
	CHECK_REASON(dispatch(&c), IA, "no routing for handles like this one");
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	b->h.alignment = alignment;
	ht_reopen(b);
}

static void try_zero_copy(struct ht_bench *b)
{
	struct call c;

	check_context("zero_copy ON");
	fill(&c, b);
	watch_start();
	CHECK_REASON(dispatch(&c), IA, "zero_copy ON: outputs->tokens has no window");
	CHECK_REASON(combine(&c), IA, "zero_copy ON: inputs->tokens has no window");
	if (!b->h.expert_major) { /* the others look for the window of a rank without rows, too */
		c.t[CI].sizes[0] = 0;
		CHECK_REASON(combine(&c), IA, "zero_copy ON: inputs->tokens has no window");
	}
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
}

/* Where rows may be dropped, all below the limit are written: as zeros, if none comes. */
static void try_drop(struct ht_bench *b)
{
	struct call c;

	check_context("drop");
	fill(&c, b);
	watch_start();
	c.t[OW].sizes[0]--;
	CHECK_REASON(dispatch(&c), IA, "outputs->topk_weights: 35 rows");
	fill(&c, b);
	c.t[OT].sizes[0]--;
	CHECK_REASON(dispatch(&c), IA, "outputs->tokens: 35 rows");
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
}

struct setting {
	bool em;
	bool drop;
	bool eager;
	enum oracle_quant quant;
	bool on;      /* zero_copy */
	uint32_t api; /* the version of the group's config; 0: 2 */
};

static struct oracle_ht problem_of(const struct setting *s, int nranks)
{
	struct oracle_ht h = { .expert_major = s->em };

	h.p = (struct oracle_problem){ .seed = 3,
				       .nranks = (uint32_t)nranks,
				       .experts = 8,
				       .topk = 3,
				       .hidden = s->quant == ORACLE_QUANT_NONE ? 256 : 512,
				       .tokens = 5,
				       .max_tokens = 6,
				       .dtype = ORACLE_BF16,
				       .quant = s->quant };
	h.limit = s->eager ? 0 : 36;
	h.drop = s->drop;
	return h;
}

static void run(struct world *w, void *arg)
{
	static const struct setting settings[] = {
		{ .em = false },
		{ .em = true },
		{ .em = false, .eager = true },
		{ .em = true, .eager = true },
		{ .em = false, .quant = ORACLE_QUANT_FORWARD },
		{ .em = false, .on = true },
		{ .em = true, .on = true },
		{ .em = false, .api = 1 },
		{ .em = true, .api = 1 },
		{ .em = true, .drop = true },
		{ .em = false, .api = 3 },
		{ .em = false, .api = 3, .eager = true },
		{ .em = true, .api = 3 },
	};

	static const unsigned int sizes[] = { 0, NCCL_EP_GROUP_CONFIG_V1_SIZE,
					      NCCL_EP_GROUP_CONFIG_V2_SIZE,
					      NCCL_EP_GROUP_CONFIG_V3_SIZE };

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		const struct setting *s = &settings[i];
		uint32_t api = s->api ? s->api : 2;
		struct oracle_ht h = problem_of(s, w->nranks);
		ncclEpGroupConfig_t config = ht_group_config(&h, 0);
		struct ht_bench bench, *b = &bench;
		ncclEpGroup_t group = NULL;
		char where[48];

		check_memory(w, &h);
		check_context("setting %zu", i);
		snprintf(where, sizeof(where), "%s, limit %u, quant %d", s->em ? "em" : "flat",
			 h.limit, (int)s->quant);
		config.max_num_sms = 2;
		config.enable_mask = i & 1; /* is ignored */
		h.filled = api < 3;
		config.size = sizes[api];
		config.zero_copy = s->on ? NCCL_EP_ZERO_COPY_ON : NCCL_EP_ZERO_COPY_AUTO;
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		ht_open(b, w, group, &h, s->eager || !s->em ? HT_OWN_MEM : 0);
		NEED_SYNC(ht_update(b, w->stream), w->stream);
		if (s->on) {
			try_zero_copy(b);
		} else if (api == 1) {
			try_ignored(b, api);
			try_version_1(b);
		} else if (s->drop) {
			try_drop(b);
		} else {
			TRY(any_dispatch, dispatch);
			if (s->quant == ORACLE_QUANT_NONE) {
				TRY(none_dispatch, dispatch);
			} else {
				TRY(forward_dispatch, dispatch);
			}
			TRY(ht_combine_recipes, combine);
			if (api < 3) {
				TRY(nvfp4_2_combine, combine);
			} else {
				TRY(nvfp4_3_combine, combine);
			}
			if (s->em) {
				TRY(em_combine, combine);
				TRY(em_dispatch, dispatch);
				TRY(em_update, update);
				if (api >= 3) {
					TRY(counters_dispatch, dispatch);
				}
			} else {
				TRY(flat_combine, combine);
				TRY(flat_dispatch, dispatch);
				TRY(flat_update, update);
			}
			TRY(any_combine, combine);
			TRY(any_update, update);
			if (s->eager) {
				try_eager(b);
			} else {
				TRY(fixed_dispatch, dispatch);
				try_quiet(b);
			}
			try_ignored(b, api);
			try_calls(b);
			if (s->em && s->eager) {
				try_other_zones(b);
			}
			if (b->flags & HT_OWN_MEM) {
				try_memory(b);
			}
			check_context("after the mistakes, setting %zu", i);
			ht_step(b);
		}
		ht_end(b);
	}
}

/*
 * Of API version 3: an expert-major dispatch in eager mode waits for nothing, and cannot be
 * captured.
 */
static void run_eager_zones(struct world *w, void *arg)
{
	struct oracle_ht h = { .p = bench_problem(w->nranks, 6, 3, 64, 20, ORACLE_EXPERT_MAJOR),
			       .expert_major = 1 };
	ncclEpGroup_t group = ht_group(w, &h, 0, 60000);
	struct ht_bench b;

	(void)arg;
	check_context("eager zones, rank %d", w->rank);
	ht_open(&b, w, group, &h, 0);
	ht_poison(&b);
	NEED_OK(ht_update(&b, w->stream));
	watch_start();
	NEED_OK(ht_dispatch(&b, false, w->stream));
	CHECK_INT(watch.calls[WATCH_LAUNCH], 1);
	CHECK_INT(watch.calls[WATCH_COPY] + watch.calls[WATCH_STREAM_SYNC], 0);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	ht_check_dispatch(&b, false);
	for (int backward = 0; backward < 2; backward++) {
		world_capture(w->stream);
		CHECK_REASON(ht_dispatch(&b, backward, w->stream), IU, "eager mode");
		world_capture_drop(w->stream);
	}
	ht_end(&b);
}

/* What is too short where the host does not count the rows that come: the device finds it. */
enum shortage {
	OUT_TOKENS, /* of a dispatch, expert-major and eager */
	OUT_WEIGHTS,
	IN_TOKENS, /* of a combine */
	IN_NO_TOKENS,
	IN_TOKENS_BACKWARD,
	IN_WEIGHTS_BACKWARD,
	SHORTAGES
};

static void run_short(struct world *w, void *arg)
{
	const enum shortage *of = arg;
	bool combine = *of >= IN_TOKENS, backward = *of >= IN_TOKENS_BACKWARD;
	bool none = *of == IN_NO_TOKENS;

	for (int em = !combine; em < 2; em++) {
		struct oracle_ht h = { .p = bench_problem(w->nranks, 6, 3, 64, 20,
							  ORACLE_EXPERT_MAJOR),
				       .expert_major = em };
		struct ht_bench b;
		struct bench_tensor *of_which[SHORTAGES] = { &b.out_tokens, &b.out_weights,
							     &b.combine_in, &b.combine_in,
							     &b.combine_in, &b.in_gradients };
		char part[80];

		check_context("tensor %d is short, em %d, rank %d", (int)*of, em, w->rank);
		ht_open(&b, w, ht_group(w, &h, 0, 60000), &h, 0);
		ht_poison(&b);
		NEED_SYNC(ht_update(&b, w->stream), w->stream);
		NEED(b.rows > 0);
		snprintf(part, sizeof(part), "brings %d rows to rank %d, and a tensor for them has",
			 (int)b.tables[w->rank]->total, w->rank);
		of_which[*of]->sizes[0] = none ? 0 : b.tables[w->rank]->total - 1;
		of_which[*of]->t.data = none ? NULL : of_which[*of]->t.data;
		NEED_SYNC(combine ? ht_combine(&b, backward, w->stream)
				  : ht_dispatch(&b, false, w->stream),
			  w->stream);
		CHECK_REASON(ht_update(&b, w->stream), IU, part);
		ht_end(&b);
	}
}

/*
 * Memory of the library that a handle before has had does not lend its routing to the next one,
 * whose own is in a graph that nobody launches.
 */
static void run_unlaunched(struct world *w, void *arg)
{
	(void)arg;
	for (int em = 0; em < 2; em++) {
		struct oracle_ht h = { .p = bench_problem(w->nranks, 6, 3, 64, 20,
							  ORACLE_EXPERT_MAJOR),
				       .expert_major = em,
				       .limit = 200 };
		ncclEpGroup_t group = ht_group(w, &h, 0, 60000);
		struct ht_bench b;

		check_context("the routing of a handle before, em %d, rank %d", em, w->rank);
		ht_open(&b, w, group, &h, 0);
		ht_step(&b);
		ht_close(&b);
		ht_open(&b, w, group, &h, 0);
		world_capture(w->stream);
		NEED_OK(ht_update(&b, w->stream));
		world_capture_drop(w->stream);
		CHECK_REASON(ncclEpExtNumRecvTokens(b.handle, NULL, NULL, w->stream), IA,
			     "no routing for handles like this one");
		NEED_SYNC(ht_dispatch(&b, false, w->stream), w->stream);
		CHECK_REASON(ht_update(&b, w->stream), IU, "in a graph that was not launched?");
		ht_end(&b);
	}
}

int main(void)
{
	world_run(2, run, NULL);
	world_run(2, run_unlaunched, NULL);
	world_run(2, run_eager_zones, NULL);
	for (enum shortage of = OUT_TOKENS; of < SHORTAGES; of++) {
		world_run(2, run_short, &of);
	}
	return check_end();
}
