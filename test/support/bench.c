/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers and descriptors of a bench. */
#include "nccl_ep/ext.h"
#include "support/bench.h"
#include "support/roles.h"

#define GUARD_ROWS 3                  /* poisoned rows behind the output of combine */
#define SOURCE_UNIT ((size_t)2 << 20) /* of memory for windows */

struct oracle_problem bench_problem(int nranks, uint32_t experts, uint32_t topk, uint32_t hidden,
				    uint32_t tokens, enum oracle_layout layout)
{
	return (struct oracle_problem){
		.seed = 1,
		.nranks = (uint32_t)nranks,
		.experts = experts,
		.topk = topk,
		.hidden = hidden,
		.max_tokens = tokens,
		.tokens = tokens,
		.layout = layout,
	};
}

/* Forwarded rows are bytes to everybody: the same bytes under several names. */
static const struct {
	ncclDataType_t tokens, scales;
	uint32_t token_bytes, scale_bytes;
} forwarded[] = {
	{ ncclFloat8e4m3, ncclFloat32, 1, 4 },  { ncclFloat8e5m2, ncclUint8, 1, 1 },
	{ ncclFloat4x2, ncclFloat8e4m3, 1, 1 }, { ncclBfloat16, ncclBfloat16, 2, 2 },
	{ ncclFloat16, ncclFloat16, 2, 2 },     { ncclFloat32, ncclFloat8e5m2, 4, 1 },
};

/* As which rows without a recipe are described when not as what they are. */
static const ncclDataType_t single_bytes[] = { ncclUint8, ncclInt8, ncclFloat8e4m3, ncclFloat8e5m2,
					       ncclFloat4x2 };

/* What dispatch makes of bf16 rows. */
static const struct {
	ncclEpDispQuant_t recipe;
	ncclDataType_t tokens, scales;
	uint32_t per_byte, scale_bytes;
} made[] = {
	[ORACLE_QUANT_FP8] = { NCCL_EP_DISP_QUANT_DS_FP8E3M4, ncclFloat8e4m3, ncclFloat32, 1, 4 },
	[ORACLE_QUANT_FP8_COLUMNS] = { NCCL_EP_DISP_QUANT_NONE, ncclFloat8e4m3, ncclFloat32, 1, 4 },
	[ORACLE_QUANT_MXFP8] = { NCCL_EP_EXT_DISP_QUANT_MXFP8, ncclFloat8e4m3, ncclUint8, 1, 1 },
	[ORACLE_QUANT_NVFP4] = { NCCL_EP_EXT_DISP_QUANT_NVFP4, ncclFloat4x2, ncclFloat8e4m3, 2, 1 },
};

static uint32_t row_bytes_max(const struct oracle_problem *p)
{
	size_t scales = p->quant == ORACLE_QUANT_NONE ? 0 : 4 * (size_t)oracle_scale_words(p);
	size_t out = oracle_output_bytes(p) + scales;
	size_t combine = oracle_combine_bytes(p);

	return (uint32_t)(out > combine ? out : combine);
}

ncclEpGroupConfig_t bench_group_config(const struct oracle_problem *p, uint32_t flags)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = p->experts;
	config.max_dispatch_tokens_per_rank = p->max_tokens;
	config.max_token_bytes = row_bytes_max(p);
	config.enable_mask = !!(flags & BENCH_MASK);
	config.timeout_ns = UINT64_C(60000000000);
	if (flags & BENCH_V1) {
		config.size = NCCL_EP_GROUP_CONFIG_V1_SIZE;
		config.version = 1;
		memset((char *)&config + config.size, 0xee, sizeof(config) - config.size);
	} else {
		config.num_topk = p->topk;
	}
	return config;
}

ncclEpGroup_t bench_group(struct world *w, const struct oracle_problem *p, uint32_t flags)
{
	ncclEpGroupConfig_t config = bench_group_config(p, flags);

	return roles_group(w->comm, p, &config);
}

ncclEpGroup_t bench_group_bounded(ncclComm_t comm, const struct oracle_problem *p, uint32_t flags,
				  double timeout_ms)
{
	ncclEpGroupConfig_t config = bench_group_config(p, flags);

	config.timeout_ns = (uint64_t)(timeout_ms * 1e6);
	config.max_num_sms = flags & BENCH_MASK ? 8 : 2; /* with masks several blocks receive */
	return roles_group(comm, p, &config);
}

void bench_mask(struct world *w, ncclEpGroup_t group, int mask[WORLD_MAX])
{
	int *device;

	NEED_CUDA(cudaMalloc((void **)&device, WORLD_MAX * sizeof(int)));
	OK(ncclEpMaskQuery(group, device, w->stream));
	NEED_CUDA(cudaMemcpyAsync(mask, device, sizeof(int) * (size_t)w->nranks,
				  cudaMemcpyDeviceToHost, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	NEED_CUDA(cudaFree(device));
	for (int r = 0; r < w->nranks; r++) {
		CHECK(mask[r] == 0 || mask[r] == 1);
	}
}

uint64_t bench_masked(struct world *w, ncclEpGroup_t group)
{
	int mask[WORLD_MAX];
	uint64_t masked = 0;

	bench_mask(w, group, mask);
	for (int r = 0; r < w->nranks && r < 64; r++) {
		masked |= (uint64_t)!mask[r] << r;
	}
	return masked;
}

void bench_describe(const struct oracle_problem *p, uint32_t flags, char *text, size_t size)
{
	static const char *const types[] = { "bf16", "fp16", "fp32" };
	static const char *const quants[] = { "none",    "fp8",   "fp8-columns",
					      "forward", "mxfp8", "nvfp4" };
	static const char *const returns[] = { "", " nvfp4 back", " fp8 back", " mxfp8 back" };
	static const char *const families[] = { "uniform", "zipf",  "hot", "khot",
						"power",   "group", "file" };

	snprintf(
		text, size,
		"%u ranks (holders %u:%u, senders %u:%u), %u experts, top-%u, hidden %u, %u of %u "
		"tokens%s, %s %s %s%s%s, routing %s, drop %u, duplicates %u, seed %llu, flags 0x%x",
		p->nranks, p->first_holder, p->holders, p->first_sender, p->senders, p->experts,
		p->topk, p->hidden, p->tokens, p->max_tokens, p->uneven ? " uneven" : "",
		p->layout == ORACLE_EXPERT_MAJOR ? "em" : "rm", types[p->dtype], quants[p->quant],
		p->pow2_scales ? " pow2" : "", returns[p->combine_quant],
		families[p->routing.family], p->drop_ppm, p->duplicate_ppm,
		(unsigned long long)p->seed, flags);
}

static void allocate(struct bench *b, struct bench_tensor *d, size_t bytes, bool window)
{
	if (window && (b->flags & BENCH_WINDOW)) {
		tensor_allocate_window(b->w, d, 64, bytes, 0);
	} else {
		tensor_allocate(d, bytes);
	}
}

/* What NICs may read: nothing lies behind it, since memory is allocated in units. */
static void allocate_source(struct bench *b, struct bench_tensor *d, size_t bytes)
{
	if (!(b->flags & BENCH_SOURCES) || !bytes) {
		tensor_allocate(d, bytes);
	} else {
		tensor_allocate_window(b->w, d, (0 - bytes) % SOURCE_UNIT, bytes, 0);
	}
}

static void allocate_inputs(struct bench *b)
{
	const struct oracle_problem *p = &b->p;
	size_t most = p->max_tokens;

	allocate_source(b, &b->in_tokens, most * oracle_input_bytes(p));
	tensor_allocate(&b->weights, most * p->topk * sizeof(float));
	tensor_allocate(&b->ids, most * p->topk * (b->flags & BENCH_IDS64 ? 8 : 4));
	tensor_allocate(&b->in_scales, (most * oracle_scale_words(p) + 1) * sizeof(float));
}

/* As large on all ranks, which register windows together: those without experts use none of it. */
static void allocate_outputs(struct bench *b)
{
	const struct oracle_problem *p = &b->p;
	bool by_rank = p->layout == ORACLE_RANK_MAJOR;
	size_t rows = (size_t)(by_rank ? oracle_senders(p) : oracle_local(p)) * b->rows;
	size_t routing = rows * p->topk;

	allocate(b, &b->out_tokens, rows * oracle_output_bytes(p), true);
	allocate_source(b, &b->combine_in, rows * oracle_combine_bytes(p));
	tensor_allocate(&b->combine_scales, rows * sizeof(float));
	tensor_allocate(&b->combine_out, (p->max_tokens + GUARD_ROWS) * oracle_combine_bytes(p));
	tensor_allocate(&b->counts, b->blocks * sizeof(int32_t));
	if (p->quant != ORACLE_QUANT_NONE) {
		allocate(b, &b->out_scales, rows * oracle_scale_words(p) * sizeof(float),
			 !(b->flags & BENCH_NO_SCALES));
	}
	if (by_rank) {
		tensor_allocate(&b->out_weights, routing * sizeof(float));
		tensor_allocate(&b->out_idx, routing * sizeof(int32_t));
	}
}

/* Extents and types that do not depend on this step's tokens. */
static void describe_outputs(struct bench *b)
{
	const struct oracle_problem *p = &b->p;
	ncclDataType_t type = tensor_float(p->dtype);
	uint32_t shape = b->flags >> BENCH_TYPE_SHIFT & 7;
	size_t scales = oracle_scale_words(p);

	tensor_describe(&b->out_tokens, type, 3, b->blocks, b->rows, p->hidden);
	if (p->quant == ORACLE_QUANT_NONE && shape) {
		tensor_describe(&b->out_tokens, single_bytes[shape - 1], 3, b->blocks, b->rows,
				p->hidden * (type == ncclFloat32 ? 4 : 2));
	}
	tensor_describe(&b->out_scales, ncclFloat32, 3, b->blocks, b->rows, scales);
	tensor_describe(&b->combine_in, type, 3, b->blocks, b->rows, p->hidden);
	tensor_describe(&b->combine_scales, ncclFloat32, 3, b->blocks, b->rows, 1);
	tensor_describe(&b->out_weights, ncclFloat32, 3, b->blocks, b->rows, p->topk);
	tensor_describe(&b->out_idx, ncclInt32, 3, b->blocks, b->rows, p->topk);
	tensor_describe(&b->counts, ncclInt32, 1, b->blocks, 0, 0);
	if (p->quant == ORACLE_QUANT_FORWARD) {
		tensor_describe(&b->out_tokens, forwarded[shape].tokens, 3, b->blocks, b->rows,
				p->hidden / forwarded[shape].token_bytes);
		tensor_describe(&b->out_scales, forwarded[shape].scales, 3, b->blocks, b->rows,
				scales * 4 / forwarded[shape].scale_bytes);
	} else if (p->quant != ORACLE_QUANT_NONE) {
		tensor_describe(&b->out_tokens, made[p->quant].tokens, 3, b->blocks, b->rows,
				p->hidden / made[p->quant].per_byte);
		tensor_describe(&b->out_scales, made[p->quant].scales, 3, b->blocks, b->rows,
				scales * 4 / made[p->quant].scale_bytes);
	}
}

static void describe_inputs(struct bench *b)
{
	const struct oracle_problem *p = &b->p;
	ncclDataType_t type = tensor_float(p->dtype);
	bool copied = p->quant == ORACLE_QUANT_NONE || p->quant == ORACLE_QUANT_FORWARD;

	tensor_describe(&b->in_tokens, copied ? b->out_tokens.t.datatype : type, 2, b->tokens,
			copied ? b->out_tokens.sizes[2] : p->hidden, 0);
	if (p->quant == ORACLE_QUANT_NVFP4) {
		tensor_describe(&b->in_scales, ncclFloat32, 1, 1, 0, 0);
	} else {
		tensor_describe(&b->in_scales, b->out_scales.t.datatype, 2, b->tokens,
				b->out_scales.sizes[2], 0);
	}
	tensor_describe(&b->weights, ncclFloat32, 2, b->tokens, p->topk, 0);
	tensor_describe(&b->ids, b->flags & BENCH_IDS64 ? ncclInt64 : ncclInt32, 2, b->tokens,
			p->topk, 0);
	tensor_describe(&b->combine_out, type, 2, b->tokens, p->hidden, 0);
}

static void make_handle(struct bench *b)
{
	ncclEpLayout_t layout = (ncclEpLayout_t)b->p.layout;
	size_t bytes = 0;

	if (b->flags & BENCH_NO_HANDLE) {
		return;
	}
	if (b->flags & BENCH_CREATE) {
		NEED_OK(ncclEpCreateHandle(&b->handle, b->group, layout, &b->ids.t, NULL, NULL,
					   b->w->stream));
		return;
	}
	if (b->flags & BENCH_OWN_MEM) {
		NEED_OK(ncclEpHandleMemSize(b->group, layout, NULL, &bytes, (int)b->p.topk));
		tensor_allocate(&b->mem, bytes);
		tensor_describe(&b->mem, ncclUint8, 1, bytes, 0, 0);
	}
	NEED_OK(ncclEpInitHandle(&b->handle, b->group, layout, NULL, (int)b->p.topk,
				 b->flags & BENCH_OWN_MEM ? &b->mem.t : NULL));
}

void bench_open(struct bench *b, struct world *w, ncclEpGroup_t group,
		const struct oracle_problem *p, uint32_t flags)
{
	char why[128];
	uint32_t senders = oracle_senders(p), held = oracle_held(p, (uint32_t)w->rank);
	bool by_rank = p->layout == ORACLE_RANK_MAJOR;

	memset(b, 0, sizeof(*b));
	b->w = w;
	b->p = *p;
	b->flags = flags;
	b->group = group;
	b->blocks = by_rank && held ? senders : held;
	b->rows = by_rank ? p->max_tokens : p->max_tokens * senders;
	if (oracle_problem_prepare(&b->p, why, sizeof(why))) {
		check_fail(__FILE__, __LINE__, "%s", why);
		exit(1);
	}
	allocate_inputs(b);
	allocate_outputs(b);
	describe_outputs(b);
	bench_load_tokens(b, p->seed, p->tokens);
	make_handle(b);
}

void bench_close(struct bench *b)
{
	struct bench_tensor *all[] = { &b->in_tokens,   &b->in_scales,      &b->weights,
				       &b->ids,         &b->out_tokens,     &b->out_scales,
				       &b->out_weights, &b->out_idx,        &b->counts,
				       &b->combine_in,  &b->combine_scales, &b->combine_out,
				       &b->mem };

	OK(ncclEpHandleDestroy(b->handle));
	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		tensor_release(b->w, all[i]);
	}
	oracle_table_free(b->table);
	oracle_problem_free(&b->p);
}

void bench_end(struct bench *b)
{
	bench_close(b);
	OK(ncclEpGroupDestroy(b->group));
}

void bench_load_tokens(struct bench *b, uint64_t seed, uint32_t tokens)
{
	char why[128];

	oracle_table_free(b->table);
	oracle_problem_free(&b->p);
	b->p.seed = seed;
	b->p.tokens = tokens;
	NEED(!oracle_problem_prepare(&b->p, why, sizeof(why)));
	b->tokens = oracle_tokens(&b->p, (uint32_t)b->w->rank);
	b->table = oracle_table_create(&b->p, (uint32_t)b->w->rank);
	NEED(b->table);
	describe_inputs(b);
	tensor_load(&(struct tensor_inputs){ &b->in_tokens, &b->in_scales, &b->ids, &b->weights,
					     b->flags & BENCH_IDS64 },
		    &b->p, (uint32_t)b->w->rank, b->tokens);
}

void bench_load(struct bench *b, uint64_t seed)
{
	bench_load_tokens(b, seed, b->p.tokens);
}

void bench_poison(struct bench *b)
{
	struct bench_tensor *all[] = { &b->out_tokens, &b->out_scales, &b->out_weights,
				       &b->out_idx,    &b->counts,     &b->combine_out };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (all[i]->data) {
			tensor_poison(all[i]);
		}
	}
}

/* ---- the calls of a bench, as a caller of API version 1 or 2 makes them ---- */

/* The tail that a caller of version 1 does not have holds whatever comes next in its memory. */
static void shrink(void *config, unsigned int full, unsigned int size, const struct bench *b)
{
	if (b->flags & BENCH_V1) {
		memcpy(config, &size, sizeof(size));
		memset((char *)config + size, 0xee, full - size);
	}
}

static ncclEpTensor_t *given(struct bench *b, struct bench_tensor *d, ncclEpTensor_t *copy)
{
	size_t elements = 1;

	*copy = d->t;
	for (unsigned int i = 0; i < d->t.ndim; i++) {
		elements *= d->sizes[i];
	}
	if ((elements == 0 && (b->flags & BENCH_NULL_EMPTY)) ||
	    (d->window && !(b->flags & BENCH_DATA))) {
		copy->data = NULL;
	}
	return copy;
}

ncclResult_t bench_update(struct bench *b, cudaStream_t stream)
{
	ncclEpTensor_t ids;

	return ncclEpUpdateHandle(b->handle, given(b, &b->ids, &ids), NULL, stream);
}

ncclEpDispQuant_t bench_recipe(const struct oracle_problem *p)
{
	return p->quant == ORACLE_QUANT_FORWARD ? NCCL_EP_DISP_QUANT_FWD : made[p->quant].recipe;
}

static ncclResult_t dispatch(struct bench *b, bool send_only, cudaStream_t stream)
{
	const struct oracle_problem *p = &b->p;
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	ncclEpTensor_t copy[5];
	bool by_rank = p->layout == ORACLE_RANK_MAJOR;
	bool columns = p->quant == ORACLE_QUANT_FP8_COLUMNS;

	in.tokens = given(b, &b->in_tokens, copy);
	out.tokens = given(b, &b->out_tokens, copy + 1);
	config.send_only = send_only;
	config.round_scales = (unsigned int)p->pow2_scales;
	info.recv_topk_idx_kind = p->global_ids ? NCCL_EP_EXPERT_ID_GLOBAL : NCCL_EP_AUTO;
	if (by_rank) {
		in.topk_weights = given(b, &b->weights, copy + 2);
		out.topk_weights = &b->out_weights.t;
		out.topk_idx = &b->out_idx.t;
		info.src_rank_counters = b->flags & BENCH_NO_COUNTS ? NULL : &b->counts.t;
	} else {
		info.expert_counters = &b->counts.t;
	}
	if (p->quant != ORACLE_QUANT_NONE) {
		out.scales = given(b, &b->out_scales, copy + 3);
	}
	config.quant_recipe = bench_recipe(p);
	if (p->quant == ORACLE_QUANT_FORWARD || p->quant == ORACLE_QUANT_NVFP4) {
		in.scales = given(b, &b->in_scales, copy + 4);
	}
	shrink(&info, sizeof(info), NCCL_EP_LAYOUT_INFO_V1_SIZE, b);
	if (columns || (b->flags & BENCH_V1)) {
		config.size = NCCL_EP_DISPATCH_CONFIG_V1_SIZE;
		memset(&config.quant_recipe, 0xee, sizeof(config.quant_recipe));
	}
	return ncclEpDispatch(b->handle, &in, &out,
			      by_rank && (b->flags & BENCH_NO_COUNTS) && !p->global_ids ? NULL
											: &info,
			      columns && !send_only && !p->pow2_scales ? NULL : &config, stream);
}

ncclEpCombQuant_t bench_return_recipe(const struct oracle_problem *p)
{
	return p->combine_quant == ORACLE_COMBINE_NVFP4 ? NCCL_EP_COMB_QUANT_NVFP4
	       : p->combine_quant == ORACLE_COMBINE_FP8 ? NCCL_EP_EXT_COMB_QUANT_FP8
							: NCCL_EP_COMB_QUANT_NONE;
}

static ncclResult_t combine(struct bench *b, bool send_only, cudaStream_t stream)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;
	bool has_config = send_only || b->p.combine_quant != ORACLE_COMBINE_NONE;
	ncclEpTensor_t copy[2];

	in.tokens = &b->combine_in.t;
	out.tokens = given(b, &b->combine_out, copy);
	if (b->p.layout == ORACLE_EXPERT_MAJOR) {
		out.topk_weights = given(b, &b->weights, copy + 1);
	}
	if (b->p.combine_quant == ORACLE_COMBINE_NVFP4) {
		in.scales = &b->combine_scales.t;
	}
	config.quant_recipe = bench_return_recipe(&b->p);
	config.send_only = send_only;
	shrink(&in, sizeof(in), NCCL_EP_COMBINE_INPUTS_V1_SIZE, b);
	shrink(&config, sizeof(config), NCCL_EP_COMBINE_CONFIG_V1_SIZE, b);
	return ncclEpCombine(b->handle, &in, &out, has_config ? &config : NULL, stream);
}

ncclResult_t bench_send_dispatch(struct bench *b, cudaStream_t stream)
{
	return dispatch(b, true, stream);
}

ncclResult_t bench_send_combine(struct bench *b, cudaStream_t stream)
{
	return combine(b, true, stream);
}

static ncclResult_t complete(struct bench *b, ncclResult_t result, cudaStream_t stream)
{
	ncclEpCompleteConfig_t config = NCCL_EP_COMPLETE_CONFIG_INIT;

	return result == ncclSuccess ? ncclEpComplete(b->handle, &config, stream) : result;
}

ncclResult_t bench_dispatch(struct bench *b, cudaStream_t stream)
{
	if (b->flags & BENCH_PENDING) {
		return complete(b, dispatch(b, true, stream), stream);
	}
	return dispatch(b, false, stream);
}

ncclResult_t bench_combine(struct bench *b, cudaStream_t stream)
{
	if (b->flags & BENCH_PENDING) {
		return complete(b, combine(b, true, stream), stream);
	}
	return combine(b, false, stream);
}

void bench_dispatch_checked(struct bench *b)
{
	uint64_t rows = 0;

	bench_poison(b);
	NEED_OK(bench_update(b, b->w->stream));
	NEED_SYNC(bench_dispatch(b, b->w->stream), b->w->stream);
	bench_check_dispatch(b);
	OK(ncclEpExtNumRecvTokens(b->handle, NULL, &rows, b->w->stream));
	CHECK_INT(rows, b->due);
}

void bench_pair(struct bench *b)
{
	bench_dispatch_checked(b);
	NEED_SYNC(bench_combine(b, b->w->stream), b->w->stream);
	bench_check_combine(b);
}

void bench_pair_of(struct bench *b, uint64_t seed)
{
	bench_load(b, seed);
	bench_pair(b);
}

/* ---- results of a bench against the oracle, and the exact place of every row ---- */

#define POISON_ROWS 16

struct placing {
	const uint8_t *tokens; /* as received, or NULL */
	uint8_t *answers;      /* to be written, or NULL */
	uint8_t *row;
	float *scales;
	uint32_t wrong;
};

static bool report(struct bench *b, const struct oracle_verdict *verdict)
{
	ncclResult_t code = ncclSuccess;
	const char *text = "";

	if (!verdict->wrong) {
		return true;
	}
	(void)ncclEpExtGetLastError(b->group, &code, &text);
	check_fail(__FILE__, __LINE__, "%llu wrong, first:\n%s%s%s",
		   (unsigned long long)verdict->wrong, verdict->text,
		   code != ncclSuccess ? "last error: " : "", code != ncclSuccess ? text : "");
	return false;
}

bool bench_check_dispatch(struct bench *b)
{
	struct oracle_verdict verdict = { 0 };
	struct oracle_dispatch out = { .poison_rows = POISON_ROWS };
	bool by_rank = b->p.layout == ORACLE_RANK_MAJOR;
	void *tokens = tensor_fetch(&b->out_tokens);
	void *counts = tensor_fetch(&b->counts);
	void *scales = b->p.quant == ORACLE_QUANT_NONE ? NULL : tensor_fetch(&b->out_scales);
	void *weights = by_rank ? tensor_fetch(&b->out_weights) : NULL;
	void *idx = by_rank ? tensor_fetch(&b->out_idx) : NULL;
	uint8_t *answers = malloc(b->combine_in.bytes);
	float *answer_scales = malloc(b->combine_scales.bytes);
	bool good;

	NEED(answers && answer_scales);
	memset(answers, ORACLE_UNREAD, b->combine_in.bytes);
	memset(answer_scales, ORACLE_UNREAD, b->combine_scales.bytes);
	out.tokens = tokens;
	out.counts = by_rank && (b->flags & BENCH_NO_COUNTS) ? NULL : counts;
	out.scales = scales;
	out.weights = weights;
	out.idx = idx;
	out.combine_in = answers;
	out.combine_scales = answer_scales;
	oracle_check_dispatch(b->table, NULL, &out, &verdict);
	good = report(b, &verdict);
	NEED_CUDA(cudaMemcpy(b->combine_in.t.data, answers, b->combine_in.bytes,
			     cudaMemcpyHostToDevice));
	NEED_CUDA(cudaMemcpy(b->combine_scales.t.data, answer_scales, b->combine_scales.bytes,
			     cudaMemcpyHostToDevice));
	free(answer_scales);
	free(answers);
	free(idx);
	free(weights);
	free(scales);
	free(counts);
	free(tokens);
	return bench_check_places(b) && good;
}

bool bench_check_combine(struct bench *b)
{
	struct oracle_verdict verdict = { 0 };
	void *tokens = tensor_fetch(&b->combine_out);

	oracle_check_combine(b->table, NULL, tokens, GUARD_ROWS, &verdict);
	free(tokens);
	return report(b, &verdict);
}

void bench_places(struct bench *b, bench_visit_fn visit, void *context)
{
	const struct oracle_problem *p = &b->p;
	uint32_t local = oracle_local(p), rank = (uint32_t)b->w->rank;
	uint32_t *next = calloc(b->blocks + 1, sizeof(*next));
	int32_t ids[ORACLE_MAX_TOPK];

	NEED(next);
	for (uint32_t src = 0; src < p->nranks; src++) {
		for (uint32_t t = 0, n = oracle_tokens(p, src); t < n; t++) {
			bool seen = false;

			oracle_route(p, src, t, ids);
			for (uint32_t k = 0; k < p->topk; k++) {
				uint32_t block = src - p->first_sender;

				if (ids[k] < 0 || oracle_holder(p, (uint32_t)ids[k]) != rank ||
				    oracle_absent(p, rank)) {
					continue;
				}
				if (p->layout == ORACLE_EXPERT_MAJOR) {
					block = (uint32_t)ids[k] % local;
				} else if (seen) {
					continue;
				}
				seen = true;
				visit(b, block, next[block]++, src, t, ids, context);
			}
		}
	}
	free(next);
}

/* The row is at its place, and what the experts make of it goes to the same place. */
static void place_row(struct bench *b, uint32_t block, uint32_t row, uint32_t src, uint32_t token,
		      const int32_t *ids, void *context)
{
	const struct oracle_problem *p = &b->p;
	struct placing *c = context;
	size_t at = (size_t)block * b->rows + row;
	size_t bytes = oracle_output_bytes(p);

	b->due++;
	oracle_output_row(p, src, token, c->row, c->scales);
	if (c->tokens && memcmp(c->tokens + at * bytes, c->row, bytes) != 0 && c->wrong++ == 0) {
		check_fail(__FILE__, __LINE__,
			   "rank %d, block %u, row %u is not token %u of rank %u: the order is not "
			   "(rank, token, k)",
			   b->w->rank, block, row, token, src);
	}
	if (!c->answers) {
		return;
	}
	oracle_answer(p, (uint32_t)b->w->rank,
		      p->layout == ORACLE_EXPERT_MAJOR ? (int32_t)block : -1, src, token,
		      c->answers + at * oracle_combine_bytes(p));
}

static bool walk(struct bench *b, const uint8_t *tokens, uint8_t *answers)
{
	struct placing c = { .tokens = tokens, .answers = answers };

	c.row = malloc(oracle_output_bytes(&b->p));
	c.scales = calloc(oracle_scale_words(&b->p) + 1, sizeof(*c.scales));
	NEED(c.row && c.scales);
	b->due = 0;
	bench_places(b, place_row, &c);
	free(c.scales);
	free(c.row);
	return c.wrong == 0;
}

bool bench_check_places(struct bench *b)
{
	uint8_t *tokens = tensor_fetch(&b->out_tokens);
	bool good = walk(b, tokens, NULL);

	free(tokens);
	return good;
}

void bench_expert_work(struct bench *b)
{
	uint8_t *answers = malloc(b->combine_in.bytes);

	NEED(answers);
	memset(answers, ORACLE_UNREAD, b->combine_in.bytes);
	walk(b, NULL, answers);
	NEED_CUDA(cudaMemcpy(b->combine_in.t.data, answers, b->combine_in.bytes,
			     cudaMemcpyHostToDevice));
	free(answers);
}
