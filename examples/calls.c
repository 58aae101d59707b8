/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of the library, in the few lines that the manual's pages quote. Each example is a
 * function that gets a group, a handle with a routing, and tensors. It is run on all ranks, and its
 * results are compared.
 *
 *     cc calls.c -o calls $(pkg-config --cflags --libs nccl-ep)
 *     torchrun --no-python --nproc-per-node 8 ./calls id-file
 */
#include "common.h"

/* tokens of a rank, their elements, experts of each, experts of a rank */
enum {
	T = 32,
	H = 256,
	K = 4,
	L = 4
};

static ncclComm_t comm;
static cudaStream_t stream, experts;
static cudaEvent_t started;
static ncclEpGroup_t group;
static ncclEpHandle_t handle;
static ncclEpTensor_t topk_idx, topk_weights, x, y; /* the tokens of this rank */
static ncclEpTensor_t rows, row_weights, row_idx;   /* what comes here */
static ncclEpTensor_t counts, offsets, total;       /* and how much */
static void *memory;                                /* device memory for anything */

static int32_t my_ids[T][K];
static float my_weights[T][K], my_x[T][H], my_y[T][H];

/* ---- the library ---- */

/* ncclEpGetVersion: Quantisation by recipe needs 0.2.0. */
static void get_version(void)
{
	int version = 0;

	CHECK(ncclEpGetVersion(&version));
	if (version < 200) {
		fprintf(stderr, "the library is older than 0.2.0: %d\n", version);
	}
}

/* ncclEpExtVersion: Which library runs. */
static void ext_version(void)
{
	const char *text;

	CHECK(ncclEpExtVersion(&text));
	puts(text);
}

/* ncclEpExtGetLastError: Were the operations on the stream successful? */
static void ext_get_last_error(void)
{
	ncclResult_t code;
	const char *why;

	CHECK(cudaStreamSynchronize(stream));
	CHECK(ncclEpExtGetLastError(group, &code, &why));
	if (code != ncclSuccess) {
		fprintf(stderr, "error %d: %s\n", (int)code, why);
	}
}

/* ---- tensors ---- */

/* ncclEpTensorAlloc: A descriptor of up to 64 tokens with 7168 elements. */
static void tensor_alloc(void)
{
	ncclEpTensor_t *tokens;

	CHECK(ncclEpTensorAlloc(&tokens, 2, ncclBfloat16, (size_t[]){ 64, 7168 }, NULL));
	tokens->data = memory;
	tokens->sizes[0] = 48; /* fewer tokens this time */
	CHECK(ncclEpTensorDestroy(tokens));
}

/* ncclEpTensorDestroy: The storage is freed separately. */
static void tensor_destroy(void)
{
	ncclEpTensor_t *tokens;

	CHECK(ncclEpTensorAlloc(&tokens, 1, ncclUint8, (size_t[]){ 1024 }, NULL));
	CHECK(cudaMalloc(&tokens->data, 1024));
	CHECK(cudaFree(tokens->data));
	CHECK(ncclEpTensorDestroy(tokens));
}

/* ---- groups ---- */

/* ncclEpCreateGroup: Low latency: 8 experts a rank, 128 tokens of 7168 bf16 elements, top-8. */
static void create_group(void)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t decode;

	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = 8 * (unsigned int)ranks;
	config.max_dispatch_tokens_per_rank = 128;
	config.max_token_bytes = 7168 * 2;
	config.num_topk = 8;
	config.timeout_ns = 20000000000; /* 20 s, not 100 */
	CHECK(ncclEpCreateGroup(&decode, comm, &config));
	CHECK(ncclEpGroupDestroy(decode));
}

/* ncclEpCreateGroup: High throughput: a fixed number of rows, so that a step can be captured. */
static void create_group_ht(void)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t prefill;

	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	config.num_experts = 8 * (unsigned int)ranks;
	config.max_dispatch_tokens_per_rank = 1024;
	config.max_recv_tokens_per_rank = 2048; /* more rows are an error on all ranks */
	config.max_token_bytes = 1024 * 2;
	config.num_topk = 8;
	CHECK(ncclEpCreateGroup(&prefill, comm, &config));
	CHECK(ncclEpGroupDestroy(prefill));
}

/* ncclEpExtCreateGroup: The last rank has all experts, and the others bring the tokens. */
static void ext_create_group(void)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpExtRoles_t roles = NCCL_EP_EXT_ROLES_INIT;
	ncclEpGroup_t apart;

	config.num_experts = 8;
	config.max_dispatch_tokens_per_rank = 128;
	config.max_token_bytes = 7168 * 2;
	roles.first_holder = (unsigned int)ranks - 1;
	roles.num_holders = 1;
	roles.num_senders = ranks > 1 ? (unsigned int)ranks - 1 : 1;
	CHECK(ncclEpExtCreateGroup(&apart, comm, &config, &roles));
	CHECK(ncclEpGroupDestroy(apart));
}

/* ncclEpGroupDestroy: After a failure as well. */
static void group_destroy(void)
{
	ncclResult_t result;

	CHECK(ncclEpHandleDestroy(handle));
	result = ncclEpGroupDestroy(group);
	if (result == ncclSystemError) {
		CHECK(ncclCommAbort(comm)); /* its collective waits for a lost rank */
		result = ncclEpGroupDestroy(group);
	}
	CHECK(result);
	group = NULL;
}

/* ncclEpExtDeviceMemory: Before there is a communicator. */
static void ext_device_memory(void)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpExtMemory_t need = NCCL_EP_EXT_MEMORY_INIT;

	config.num_experts = 256;
	config.max_dispatch_tokens_per_rank = 128;
	config.max_token_bytes = 7168 * 2;
	CHECK(ncclEpExtDeviceMemory(&config, 8, NCCL_EP_LAYOUT_EXPERT_MAJOR, 8, &need));
	printf("%.1f MiB\n", (double)(need.group_bytes + need.handle_bytes) / 0x100000);
}

/* ncclEpExtFeasible: Before there is a communicator. */
static void ext_feasible(void)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpExtShape_t shape = NCCL_EP_EXT_SHAPE_INIT;
	const char *why;

	config.num_experts = 256;
	config.max_dispatch_tokens_per_rank = 128;
	config.max_token_bytes = 7168 * 2;
	shape.layout = NCCL_EP_LAYOUT_EXPERT_MAJOR;
	shape.num_topk = 8;
	shape.hidden = 7168;
	shape.datatype = ncclBfloat16;
	shape.memory_bytes = (uint64_t)1 << 30; /* what the engine leaves */
	if (ncclEpExtFeasible(&config, 8, &shape) != ncclSuccess) {
		CHECK(ncclEpExtGetLastError(NULL, NULL, &why));
		printf("not possible: %s\n", why);
	} else {
		printf("%.1f MiB of tensors\n", (double)shape.tensor_bytes / 0x100000);
	}
}

/* ncclEpExtPeerStats: How long this rank has waited for each rank. */
static void ext_peer_stats(void)
{
	ncclEpExtPeerStats_t stats[64];

	stats[0] = NCCL_EP_EXT_PEER_STATS_INIT;
	CHECK(ncclEpExtPeerStats(group, stats, ranks, stream));
	for (int r = 0; r < ranks; r++) {
		printf("rank %d: %.3f ms\n", r, (double)stats[r].wait_ns / 1e6);
	}
}

/* ---- handles ---- */

/* ncclEpHandleMemSize: Handle memory of the caller. */
static void handle_mem_size(void)
{
	ncclEpHandle_t mine;
	size_t bytes;
	void *space;

	CHECK(ncclEpHandleMemSize(group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, K));
	CHECK(cudaMalloc(&space, bytes));
	ncclEpTensor_t mem = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 1, .datatype = ncclUint8,
			       .data = space, .sizes = &bytes };
	CHECK(ncclEpInitHandle(&mine, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, K, &mem));
	CHECK(ncclEpHandleDestroy(mine));
	CHECK(cudaFree(space)); /* cudaFree waits for the handle's work */
}

/* ncclEpInitHandle: One handle for all steps of a layer, with memory of the library. */
static void init_handle(void)
{
	ncclEpHandle_t layer;

	CHECK(ncclEpInitHandle(&layer, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, K, NULL));
	for (int step = 0; step < 100; step++) {
		CHECK(ncclEpUpdateHandle(layer, &topk_idx, NULL, stream));
		/* dispatch, experts, combine */
	}
	CHECK(ncclEpHandleDestroy(layer));
}

/* ncclEpUpdateHandle: Low latency: the routing of a new step, with fewer tokens. */
static void update_handle(void)
{
	topk_idx.sizes[0] = 24;
	CHECK(ncclEpUpdateHandle(handle, &topk_idx, NULL, stream));
}

/* ncclEpUpdateHandle: High throughput, expert-major, eager: how many rows come, and where. */
static void update_handle_ht(void)
{
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	int32_t n;

	info.expert_counters = &counts;
	info.expert_offsets = &offsets;
	info.recv_total_counter = &total;
	CHECK(ncclEpUpdateHandle(handle, &topk_idx, &info, stream));
	CHECK(cudaMemcpyAsync(&n, total.data, sizeof(n), cudaMemcpyDeviceToHost, stream));
	CHECK(cudaStreamSynchronize(stream));
	rows.sizes[0] = (size_t)n; /* with storage for as many rows */
	row_weights.sizes[0] = (size_t)n;
}

/* ncclEpCreateHandle: From ids that another kernel has written on the stream. */
static void create_handle(void)
{
	ncclEpHandle_t mine;

	CHECK(ncclEpCreateHandle(&mine, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &topk_idx, NULL, NULL,
				 stream));
	CHECK(ncclEpHandleDestroy(mine));
}

/* ncclEpHandleDestroy: While the handle's work is still on the stream. */
static void handle_destroy(void)
{
	CHECK(ncclEpHandleDestroy(handle));
	handle = NULL;
}

/* ncclEpExtNumRecvTokens: How many rows the experts have. */
static void ext_num_recv_tokens(void)
{
	uint64_t tokens, n;

	CHECK(ncclEpExtNumRecvTokens(handle, &tokens, &n, stream));
	printf("%lu tokens in %lu rows\n", (unsigned long)tokens, (unsigned long)n);
}

/* ncclEpExtAddExpertRows: Every step; the numbers are read now and then. */
static void ext_add_expert_rows(void)
{
	uint64_t *load = memory; /* on the device: one for each expert, zero at first */

	CHECK(ncclEpUpdateHandle(handle, &topk_idx, NULL, stream));
	CHECK(ncclEpExtAddExpertRows(handle, load, stream));
}

/* ncclEpExtStartArrivals: Experts on another stream may wait for their rows while dispatch runs. */
static void ext_start_arrivals(void)
{
	ncclEpExtArrivals_t *arrivals = memory; /* on the device */
	size_t bytes;

	CHECK(ncclEpExtStartArrivals(handle, NULL, &bytes, stream)); /* how much: once */
	CHECK(ncclEpExtStartArrivals(handle, arrivals, &bytes, stream));
	CHECK(cudaEventRecord(started, stream));
	CHECK(cudaStreamWaitEvent(experts, started, 0)); /* and then their kernel there */
}

/* ---- dispatch and combine, low latency ---- */

/* ncclEpDispatch: Low latency, expert-major. The experts read the counts on the device. */
static void dispatch(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;

	in.tokens = &x;
	out.tokens = &rows;
	info.expert_counters = &counts;
	CHECK(ncclEpDispatch(handle, &in, &out, &info, NULL, stream));
}

/* ncclEpDispatch: Low latency, rank-major. Each row comes once, with its experts and weights. */
static void dispatch_rank_major(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;

	in.tokens = &x;
	in.topk_weights = &topk_weights;
	out.tokens = &rows;
	out.topk_weights = &row_weights;
	out.topk_idx = &row_idx;
	info.src_rank_counters = &counts;
	CHECK(ncclEpDispatch(handle, &in, &out, &info, NULL, stream));
}

/* ncclEpDispatch: Low latency, expert-major, quantised to e4m3 on the way. */
static void dispatch_fp8(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	size_t n = (size_t)ranks * T;
	ncclEpTensor_t bf16 = TENSOR(ncclBfloat16, x.data, 2, T, H);
	ncclEpTensor_t e4m3 = TENSOR(ncclFloat8e4m3, rows.data, 3, L, n, H);
	ncclEpTensor_t scales = TENSOR(ncclFloat32, memory, 3, L, n, H / 128);

	config.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4;
	in.tokens = &bf16;
	out.tokens = &e4m3;
	out.scales = &scales;
	info.expert_counters = &counts;
	CHECK(ncclEpDispatch(handle, &in, &out, &info, &config, stream));
}

/* ncclEpDispatch: Low latency, expert-major, quantised to MXFP8, a recipe of this library. */
static void dispatch_mxfp8(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	size_t n = (size_t)ranks * T;
	ncclEpTensor_t bf16 = TENSOR(ncclBfloat16, x.data, 2, T, H);
	ncclEpTensor_t e4m3 = TENSOR(ncclFloat8e4m3, rows.data, 3, L, n, H);
	ncclEpTensor_t scales = TENSOR(ncclUint8, memory, 3, L, n, H / 32);

	config.quant_recipe = NCCL_EP_EXT_DISP_QUANT_MXFP8;
	in.tokens = &bf16;
	out.tokens = &e4m3;
	out.scales = &scales;
	info.expert_counters = &counts;
	CHECK(ncclEpDispatch(handle, &in, &out, &info, &config, stream));
}

/* ncclEpDispatch: Low latency, expert-major, quantised to NVFP4 with one scale for all tokens. */
static void dispatch_nvfp4(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	size_t n = (size_t)ranks * T;
	ncclEpTensor_t bf16 = TENSOR(ncclBfloat16, x.data, 2, T, H);
	ncclEpTensor_t scale = TENSOR(ncclFloat32, topk_weights.data, 1, 1); /* for all */
	ncclEpTensor_t row_fp4 = TENSOR(ncclFloat4x2, rows.data, 3, L, n, H / 2);
	ncclEpTensor_t row_scales = TENSOR(ncclFloat8e4m3, memory, 3, L, n, H / 16);

	config.quant_recipe = NCCL_EP_EXT_DISP_QUANT_NVFP4;
	in.tokens = &bf16;
	in.scales = &scale;
	out.tokens = &row_fp4;
	out.scales = &row_scales;
	info.expert_counters = &counts;
	CHECK(ncclEpDispatch(handle, &in, &out, &info, &config, stream));
}

/* ncclEpDispatch: Low latency, expert-major: rows that the caller quantised, with scales. */
static void dispatch_fwd(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	size_t n = (size_t)ranks * T;
	ncclEpTensor_t fp4 = TENSOR(ncclFloat4x2, x.data, 2, T, H / 2); /* two elements a byte */
	ncclEpTensor_t fp4_scales = TENSOR(ncclFloat8e4m3, topk_weights.data, 2, T, H / 16);
	ncclEpTensor_t row_fp4 = TENSOR(ncclFloat4x2, rows.data, 3, L, n, H / 2);
	ncclEpTensor_t row_scales = TENSOR(ncclFloat8e4m3, memory, 3, L, n, H / 16);

	config.quant_recipe = NCCL_EP_DISP_QUANT_FWD;
	in.tokens = &fp4;
	in.scales = &fp4_scales;
	out.tokens = &row_fp4;
	out.scales = &row_scales;
	info.expert_counters = &counts;
	CHECK(ncclEpDispatch(handle, &in, &out, &info, &config, stream));
}

/* ncclEpCombine: Low latency, expert-major, after the experts have overwritten the rows. */
static void combine(void)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;

	in.tokens = &rows;
	out.tokens = &y;
	out.topk_weights = &topk_weights; /* combine weights the rows */
	CHECK(ncclEpCombine(handle, &in, &out, NULL, stream));
}

/* ncclEpCombine: Low latency: rows travel as NVFP4, each with a scale that the caller computed. */
static void combine_nvfp4(void)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;
	size_t n = (size_t)ranks * T;
	ncclEpTensor_t results = TENSOR(ncclBfloat16, rows.data, 3, L, n, 2 * H);
	ncclEpTensor_t scales = TENSOR(ncclFloat32, memory, 3, L, n, 1);
	ncclEpTensor_t sums = TENSOR(ncclBfloat16, y.data, 2, T, 2 * H);

	config.quant_recipe = NCCL_EP_COMB_QUANT_NVFP4;
	in.tokens = &results;
	in.scales = &scales; /* 2688 / (largest magnitude of the row) */
	out.tokens = &sums;
	out.topk_weights = &topk_weights;
	CHECK(ncclEpCombine(handle, &in, &out, &config, stream));
}

/* ncclEpCombine: High throughput, expert-major: a rank's sums travel as MXFP8. */
static void combine_mxfp8(void)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;
	ncclEpTensor_t results = TENSOR(ncclBfloat16, rows.data, 2, rows.sizes[0], 2 * H);
	ncclEpTensor_t sums = TENSOR(ncclBfloat16, y.data, 2, T, 2 * H);

	config.quant_recipe = NCCL_EP_COMB_QUANT_MXFP8;
	in.tokens = &results;
	out.tokens = &sums;
	CHECK(ncclEpCombine(handle, &in, &out, &config, stream));
}

/* ncclEpCombine: Rank-major and flat: the caller has added up each row's weighted results. */
static void combine_rows(void)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;

	in.tokens = &rows;
	out.tokens = &y;
	CHECK(ncclEpCombine(handle, &in, &out, NULL, stream));
}

/* ncclEpComplete: Other work between the halves of a combine. */
static void complete(void)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;

	in.tokens = &rows;
	out.tokens = &y;
	out.topk_weights = &topk_weights;
	config.send_only = 1;
	CHECK(ncclEpCombine(handle, &in, &out, &config, stream));
	/* the shared expert */
	CHECK(ncclEpComplete(handle, NULL, stream));
}

/* ncclEpComplete: A layer in a CUDA graph, launched for each step. */
static void complete_graph(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t sums = NCCL_EP_COMBINE_OUTPUTS_INIT;
	cudaGraphExec_t step;
	cudaGraph_t graph;

	in.tokens = &x, out.tokens = &rows, info.expert_counters = &counts;
	results.tokens = &rows, sums.tokens = &y, sums.topk_weights = &topk_weights;
	config.send_only = 1;
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	CHECK(ncclEpDispatch(handle, &in, &out, &info, &config, stream));
	/* the shared expert */
	CHECK(ncclEpComplete(handle, NULL, stream));
	/* the experts */
	CHECK(ncclEpCombine(handle, &results, &sums, NULL, stream));
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&step, graph, 0));
	for (int i = 0; i < 3; i++) {
		CHECK(cudaGraphLaunch(step, stream)); /* it reads ids and tokens anew */
	}
	CHECK(cudaStreamSynchronize(stream));
	CHECK(cudaGraphExecDestroy(step));
	CHECK(cudaGraphDestroy(graph));
}

/* ---- dispatch and combine, high throughput ---- */

/* ncclEpDispatch: High throughput, flat, with room for the group's fixed number of rows. */
static void dispatch_flat(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;

	in.tokens = &x;
	in.topk_weights = &topk_weights;
	out.tokens = &rows;
	out.topk_weights = &row_weights;
	out.topk_idx = &row_idx;
	CHECK(ncclEpDispatch(handle, &in, &out, NULL, NULL, stream));
}

/* ncclEpDispatch: High throughput, flat: rows that the caller quantised, with scales. */
static void dispatch_flat_fwd(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	size_t n = rows.sizes[0];
	ncclEpTensor_t fp8 = TENSOR(ncclFloat8e4m3, x.data, 2, T, H);
	ncclEpTensor_t fp8_scales = TENSOR(ncclFloat32, y.data, 2, T, H / 64);
	ncclEpTensor_t row_fp8 = TENSOR(ncclFloat8e4m3, rows.data, 2, n, H);
	ncclEpTensor_t row_scales = TENSOR(ncclFloat32, memory, 2, n, H / 64);

	config.quant_recipe = NCCL_EP_DISP_QUANT_FWD;
	in.tokens = &fp8;
	in.scales = &fp8_scales;
	in.topk_weights = &topk_weights;
	out.tokens = &row_fp8;
	out.scales = &row_scales;
	out.topk_weights = &row_weights;
	out.topk_idx = &row_idx;
	CHECK(ncclEpDispatch(handle, &in, &out, NULL, &config, stream));
}

/* ncclEpDispatch: High throughput, flat: peers store the rows directly to a window. */
static void dispatch_window(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	size_t bytes = rows.sizes[0] * rows.sizes[1] * sizeof(float);
	ncclWindow_t window;
	void *space;

	CHECK(ncclMemAlloc(&space, bytes)); /* once, on all ranks */
	CHECK(ncclCommWindowRegister(comm, space, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
	rows.data = space;
	rows.win_hdl = window;
	rows.win_offset = 0; /* the same on all ranks */
	in.tokens = &x;
	in.topk_weights = &topk_weights;
	out.tokens = &rows;
	out.topk_weights = &row_weights;
	out.topk_idx = &row_idx;
	CHECK(ncclEpDispatch(handle, &in, &out, NULL, NULL, stream));
}

/* ncclEpDispatch: High throughput, expert-major, with tensors as large as UpdateHandle's total. */
static void dispatch_zones(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;

	in.tokens = &x;
	in.topk_weights = &topk_weights;
	out.tokens = &rows;
	out.topk_weights = &row_weights; /* a row's weight for the expert of its zone */
	CHECK(ncclEpDispatch(handle, &in, &out, NULL, NULL, stream));
}

/* ncclEpDispatch: High throughput, backward: the gradients of a combine, with its routing. */
static void dispatch_backward(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;

	config.pass_direction = NCCL_EP_BWD_PASS;
	in.tokens = &x;
	out.tokens = &rows;
	CHECK(ncclEpDispatch(handle, &in, &out, NULL, &config, stream));
}

/* ncclEpCombine: High throughput: a step in a CUDA graph, with a fixed number of rows. */
static void combine_graph(void)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t sums = NCCL_EP_COMBINE_OUTPUTS_INIT;
	cudaGraphExec_t step;
	cudaGraph_t graph;

	in.tokens = &x, in.topk_weights = &topk_weights;
	out.tokens = &rows, out.topk_weights = &row_weights, out.topk_idx = &row_idx;
	results.tokens = &rows, sums.tokens = &y;
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	CHECK(ncclEpUpdateHandle(handle, &topk_idx, NULL, stream));
	CHECK(ncclEpDispatch(handle, &in, &out, NULL, NULL, stream));
	/* the experts */
	CHECK(ncclEpCombine(handle, &results, &sums, NULL, stream));
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&step, graph, 0));
	for (int i = 0; i < 3; i++) {
		CHECK(cudaGraphLaunch(step, stream)); /* it reads ids and tokens anew */
	}
	CHECK(cudaStreamSynchronize(stream));
	CHECK(cudaGraphExecDestroy(step));
	CHECK(cudaGraphDestroy(graph));
}

/* ncclEpCombine: High throughput, backward: gradients of the tokens and of their weights. */
static void combine_backward(void)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;

	config.pass_direction = NCCL_EP_BWD_PASS;
	in.tokens = &rows;
	in.topk_weights = &row_weights;
	out.tokens = &y;
	out.topk_weights = &topk_weights;
	CHECK(ncclEpCombine(handle, &in, &out, &config, stream));
}

/* ---- masks ---- */

/* ncclEpMaskQuery: Which ranks are missing. */
static void mask_query(void)
{
	int mask[64];

	CHECK(ncclEpMaskQuery(group, memory, stream));
	CHECK(cudaMemcpyAsync(mask, memory, (size_t)ranks * sizeof(int), cudaMemcpyDeviceToHost,
			      stream));
	CHECK(cudaStreamSynchronize(stream));
	for (int r = 0; r < ranks; r++) {
		if (!mask[r]) {
			printf("rank %d is masked\n", r);
		}
	}
}

/* ncclEpMaskUpdate: Without the last rank, which keeps itself: no rank masks itself. */
static void mask_update(void)
{
	int mask[64];

	for (int r = 0; r < ranks; r++) {
		mask[r] = r != ranks - 1 || r == rank;
	}
	CHECK(ncclEpMaskUpdate(group, mask, stream));
}

/* ncclEpMaskClean: All ranks, as soon as one that was late is back. */
static void mask_clean(void)
{
	CHECK(ncclEpMaskClean(group, stream));
	CHECK(ncclEpErrorClear(group));
	/* the next operation of a handle is a dispatch */
}

/* ncclEpExtReplaceRanks: A rank that goes on. comm is new, and has the newcomer. */
static void ext_replace_ranks(void)
{
	const char *why;

	if (ncclEpExtReplaceRanks(group, comm) == ncclSuccess) {
		CHECK(ncclEpMaskClean(group, stream)); /* once all ranks have come as far */
		return;
	}
	CHECK(ncclEpExtGetLastError(group, NULL, &why));
	fprintf(stderr, "the group goes on without the newcomer: %s\n", why);
}

/* ncclEpExtJoinGroup: The newcomer, with the config that the group was made with. */
static void ext_join_group(void)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t joined;
	const char *why;

	config.num_experts = 8 * (unsigned int)ranks;
	config.max_dispatch_tokens_per_rank = 128;
	config.max_token_bytes = 7168 * 2;
	config.enable_mask = 1;
	if (ncclEpExtJoinGroup(&joined, comm, &config, NULL) == ncclSuccess) {
		CHECK(ncclEpMaskClean(joined, stream)); /* the others are in it, too */
		CHECK(ncclEpGroupDestroy(joined));
		return;
	}
	CHECK(ncclEpExtGetLastError(NULL, NULL, &why));
	fprintf(stderr, "another newcomer, and another communicator: %s\n", why);
}

/* ncclEpGetAsyncError: Was a rank lost since the last look? */
static void get_async_error(void)
{
	const char *why;
	int error = 0;

	CHECK(ncclEpGetAsyncError(group, &error));
	if (error) {
		CHECK(ncclEpExtGetLastError(group, NULL, &why));
		fprintf(stderr, "%s\n", why);
		CHECK(ncclEpErrorClear(group));
	}
}

/* ncclEpErrorClear: After the loss of a rank was handled. */
static void error_clear(void)
{
	CHECK(ncclEpErrorClear(group));
}

/* ---- what examples get, and what they must leave ---- */

static char *arena, *arena_next; /* the memory of an example's tensors */

static void *take(const void *from, size_t bytes)
{
	void *at = arena_next;

	arena_next += (bytes + 255) / 256 * 256;
	CHECK(from ? cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice)
		   : cudaMemset(at, 0, bytes));
	return at;
}

static int id_of(int r, int t, int k)
{
	return (r * 5 + t + 3 * k) % (ranks * L); /* K different experts */
}

static float x_of(int r, int t, int h)
{
	return (float)(r * 1000 + t * 8 + h % 8 + 1);
}

enum scene {
	EXPERT_MAJOR, /* low latency */
	RANK_MAJOR,
	FLAT, /* high throughput with a fixed number of rows */
	ZONES /* expert-major in eager mode */
};

static ncclEpTensor_t tensor(ncclDataType_t type, size_t *sizes, unsigned int ndim,
			     const void *from)
{
	size_t bytes = type == ncclInt64 ? 8 : 4;

	for (unsigned int i = 0; i < ndim; i++) {
		bytes *= sizes[i];
	}
	ncclEpTensor_t made = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = ndim, .datatype = type,
				.data = take(from, bytes), .sizes = sizes };
	return made;
}

static void make_tensors(enum scene scene)
{
	static size_t sizes[10][3]; /* which the descriptors need */
	size_t n = (size_t)ranks * T;

	for (int t = 0; t < T; t++) {
		for (int k = 0; k < K; k++) {
			my_ids[t][k] = id_of(rank, t, k);
			my_weights[t][k] = 1.0f / K;
		}
		for (int h = 0; h < H; h++) {
			my_x[t][h] = x_of(rank, t, h);
		}
	}
#define SIZES(i, ...) memcpy(sizes[i], (size_t[3]){ __VA_ARGS__ }, sizeof(sizes[i]))
	SIZES(0, T, K), SIZES(1, T, K), SIZES(2, T, H), SIZES(3, T, H);
	SIZES(7, scene == RANK_MAJOR ? (size_t)ranks : L), SIZES(8, L), SIZES(9, 1);
	topk_idx = tensor(ncclInt32, sizes[0], 2, my_ids);
	topk_weights = tensor(ncclFloat32, sizes[1], 2, my_weights);
	x = tensor(ncclFloat32, sizes[2], 2, my_x);
	y = tensor(ncclFloat32, sizes[3], 2, NULL);
	counts = tensor(ncclInt32, sizes[7], 1, NULL);
	offsets = tensor(ncclInt32, sizes[8], 1, NULL);
	total = tensor(ncclInt32, sizes[9], 1, NULL);
	memory = take(NULL, n * L * H);
	switch (scene) {
	case EXPERT_MAJOR:
		SIZES(4, L, n, H);
		rows = tensor(ncclFloat32, sizes[4], 3, NULL);
		break;
	case RANK_MAJOR:
		SIZES(4, (size_t)ranks, T, H), SIZES(5, (size_t)ranks, T, K);
		SIZES(6, (size_t)ranks, T, K);
		rows = tensor(ncclFloat32, sizes[4], 3, NULL);
		row_weights = tensor(ncclFloat32, sizes[5], 3, NULL);
		row_idx = tensor(ncclInt32, sizes[6], 3, NULL);
		break;
	case FLAT:
		SIZES(4, n, H), SIZES(5, n, K), SIZES(6, n, K);
		rows = tensor(ncclFloat32, sizes[4], 2, NULL);
		row_weights = tensor(ncclFloat32, sizes[5], 2, NULL);
		row_idx = tensor(ncclInt64, sizes[6], 2, NULL);
		break;
	case ZONES:
		SIZES(4, n * L, H), SIZES(5, n * L);
		rows = tensor(ncclFloat32, sizes[4], 2, NULL);
		row_weights = tensor(ncclFloat32, sizes[5], 1, NULL);
		break;
	}
}

static void make_group(enum scene scene)
{
	static const ncclEpLayout_t layouts[] = {
		NCCL_EP_LAYOUT_EXPERT_MAJOR,
		NCCL_EP_LAYOUT_RANK_MAJOR,
		NCCL_EP_LAYOUT_FLAT,
		NCCL_EP_LAYOUT_EXPERT_MAJOR,
	};
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

	config.algorithm = scene == FLAT || scene == ZONES ? NCCL_EP_ALGO_HIGH_THROUGHPUT
							   : NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = (unsigned int)ranks * L;
	config.max_dispatch_tokens_per_rank = T;
	config.max_recv_tokens_per_rank = scene == FLAT ? (unsigned int)ranks * T : NCCL_EP_AUTO;
	config.max_token_bytes = H * sizeof(float);
	config.num_topk = K;
	config.enable_mask = 1;
	CHECK(ncclEpCreateGroup(&group, comm, &config));
	CHECK(ncclEpInitHandle(&handle, group, layouts[scene], NULL, K, NULL));
	CHECK(ncclEpUpdateHandle(handle, &topk_idx, NULL, stream));
}

/* Compares the sums with `factor` times the tokens, or times the ranks that each was sent to. */
static void check_sums(int factor)
{
	CHECK(cudaMemcpy(my_y, y.data, sizeof(my_y), cudaMemcpyDeviceToHost));
	for (int t = 0; t < T; t++) {
		int n = factor;

		if (!n) {
			for (int r = 0; r < ranks; r++) {
				int chosen = 0;

				for (int k = 0; k < K; k++) {
					chosen |= my_ids[t][k] / L == r;
				}
				n += chosen;
			}
		}
		for (int h = 0; h < H; h++) {
			CHECK(my_y[t][h] != (float)n * my_x[t][h]);
		}
	}
}

static void sums_are_tokens(void)
{
	check_sums(1);
}

static void sums_are_of_ranks(void)
{
	check_sums(0);
}

static void sums_are_of_experts(void)
{
	check_sums(K);
}

static void weights_are_back(void)
{
	float got[T][K];

	check_sums(K);
	CHECK(cudaMemcpy(got, topk_weights.data, sizeof(got), cudaMemcpyDeviceToHost));
	CHECK(memcmp(got, my_weights, sizeof(got)));
}

/* Finds the first token that is for this rank's first expert, or for any of its experts. */
static void find_first(int *r, int *t, int any)
{
	for (*r = 0; *r < ranks; ++*r) {
		for (*t = 0; *t < T; ++*t) {
			for (int k = 0; k < K; k++) {
				int e = id_of(*r, *t, k) - rank * L;

				if (e == 0 || (any && e > 0 && e < L)) {
					return;
				}
			}
		}
	}
	CHECK(*r == ranks);
}

/* Every second bf16 is the upper half of a float, and the largest of 128 becomes 448. */
static void rows_are_quantised(void)
{
	unsigned char got[128];
	float scale, largest = 0;
	int r, t;

	find_first(&r, &t, 0);
	CHECK(cudaMemcpy(got, rows.data, sizeof(got), cudaMemcpyDeviceToHost));
	CHECK(cudaMemcpy(&scale, memory, sizeof(scale), cudaMemcpyDeviceToHost));
	for (int h = 0; h < 64; h++) {
		uint32_t bits;
		float value = x_of(r, t / 2, t % 2 * H / 2 + h);

		memcpy(&bits, &value, sizeof(bits));
		bits &= 0xffff0000u;
		memcpy(&value, &bits, sizeof(value));
		largest = value > largest ? value : largest;
	}
	CHECK(scale != largest / 448);
	CHECK(!memchr(got, 0x7e, sizeof(got)));
}

/* The first group has an element from 224 to 448. */
static void rows_are_mxfp8(void)
{
	unsigned char got[32], scale, largest = 0;

	CHECK(cudaMemcpy(got, rows.data, sizeof(got), cudaMemcpyDeviceToHost));
	CHECK(cudaMemcpy(&scale, memory, sizeof(scale), cudaMemcpyDeviceToHost));
	for (int h = 0; h < 32; h++) {
		largest = (got[h] & 127) > largest ? got[h] & 127 : largest;
	}
	CHECK(!scale || largest < 0x76 || largest > 0x7e);
}

/* The first group has an element of magnitude 6. */
static void rows_are_nvfp4(void)
{
	unsigned char got[8], scale;
	int found = 0;

	CHECK(cudaMemcpy(got, rows.data, sizeof(got), cudaMemcpyDeviceToHost));
	CHECK(cudaMemcpy(&scale, memory, sizeof(scale), cudaMemcpyDeviceToHost));
	for (int i = 0; i < 8; i++) {
		found |= (got[i] & 7) == 7 || (got[i] >> 4 & 7) == 7;
	}
	CHECK(!scale || !found);
}

/* The experts return 3.0 as bf16 everywhere, and scales are 0.747. */
static void return_threes(void)
{
	size_t bytes = 4;

	for (unsigned int i = 0; i < rows.ndim; i++) {
		bytes *= rows.sizes[i];
	}
	rows.ndim == 3 ? dispatch() : dispatch_zones();
	CHECK(cudaMemsetAsync(rows.data, 0x40, bytes, stream));
	CHECK(cudaMemsetAsync(memory, 0x3f, (size_t)ranks * T * L * 4, stream));
}

/* All sums are three times `factor`, and a little. */
static void check_threes(float factor)
{
	uint16_t got[T * 2 * H];

	CHECK(cudaMemcpy(got, y.data, sizeof(got), cudaMemcpyDeviceToHost));
	for (int i = 0; i < T * 2 * H; i++) {
		uint32_t bits = (uint32_t)got[i] << 16;
		float sum;

		memcpy(&sum, &bits, sizeof(sum));
		CHECK(sum < 2.95f * factor || sum > 3.05f * factor);
	}
}

static void sums_are_threes(void)
{
	check_threes(1);
}

static void sums_are_of_threes(void)
{
	check_threes(K);
}

/* Compares the first row, of `n` times four bytes. */
static void check_first(int n, int any)
{
	float got[H], want[H];
	int r, t;

	find_first(&r, &t, any);
	CHECK(cudaMemcpy(got, rows.data, (size_t)n * 4, cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++) {
		int at = t * n + i;

		want[i] = x_of(r, at / H, at % H);
	}
	CHECK(memcmp(got, want, (size_t)n * 4));
}

static void rows_are_copied(void)
{
	check_first(H / 8, 0);
}

static void flat_rows_are_copied(void)
{
	check_first(H / 4, 1);
}

/* The total is the number of (token, k) of all ranks that are for this rank. */
static void rows_are_counted(void)
{
	uint64_t want = 0;
	int32_t n;

	for (int i = 0; i < ranks * T * K; i++) {
		want += id_of(i / (T * K), i / K % T, i % K) / L == rank;
	}
	CHECK(cudaMemcpy(&n, total.data, sizeof(n), cudaMemcpyDeviceToHost));
	CHECK((uint64_t)n != want);
}

static void dispatch_and_combine(void)
{
	dispatch_zones();
	combine_rows();
}

/* `before` and `after` are examples, too, which this one needs. */
static const struct example {
	const char *name;
	void (*before)(void), (*run)(void), (*after)(void), (*check)(void);
	enum scene scene;
	int refused; /* where no rank was lost, which the group's last error says */
} examples[] = {
	{ .name = "ncclEpGetVersion", .run = get_version },
	{ .name = "ncclEpExtVersion", .run = ext_version },
	{ .name = "ncclEpExtGetLastError", .before = dispatch, .run = ext_get_last_error },
	{ .name = "ncclEpTensorAlloc", .run = tensor_alloc },
	{ .name = "ncclEpTensorDestroy", .run = tensor_destroy },
	{ .name = "ncclEpCreateGroup", .run = create_group },
	{ .name = "ncclEpCreateGroup", .run = create_group_ht },
	{ .name = "ncclEpExtCreateGroup", .run = ext_create_group },
	{ .name = "ncclEpGroupDestroy", .before = dispatch, .run = group_destroy },
	{ .name = "ncclEpExtDeviceMemory", .run = ext_device_memory },
	{ .name = "ncclEpExtFeasible", .run = ext_feasible },
	{ .name = "ncclEpExtPeerStats", .before = dispatch, .run = ext_peer_stats },
	{ .name = "ncclEpHandleMemSize", .run = handle_mem_size },
	{ .name = "ncclEpInitHandle", .run = init_handle },
	{ .name = "ncclEpUpdateHandle", .run = update_handle },
	{ .name = "ncclEpUpdateHandle",
	  .run = update_handle_ht,
	  .check = rows_are_counted,
	  .scene = ZONES },
	{ .name = "ncclEpCreateHandle", .run = create_handle },
	{ .name = "ncclEpHandleDestroy", .before = dispatch, .run = handle_destroy },
	{ .name = "ncclEpExtNumRecvTokens", .before = dispatch, .run = ext_num_recv_tokens },
	{ .name = "ncclEpExtAddExpertRows", .run = ext_add_expert_rows },
	{ .name = "ncclEpExtStartArrivals",
	  .before = update_handle_ht,
	  .run = ext_start_arrivals,
	  .after = dispatch_and_combine,
	  .check = sums_are_of_experts,
	  .scene = ZONES },
	{ .name = "ncclEpDispatch", .run = dispatch, .after = combine, .check = sums_are_tokens },
	{ .name = "ncclEpDispatch",
	  .run = dispatch_rank_major,
	  .after = combine_rows,
	  .check = sums_are_of_ranks,
	  .scene = RANK_MAJOR },
	{ .name = "ncclEpDispatch", .run = dispatch_fp8, .check = rows_are_quantised },
	{ .name = "ncclEpDispatch", .run = dispatch_mxfp8, .check = rows_are_mxfp8 },
	{ .name = "ncclEpDispatch", .run = dispatch_nvfp4, .check = rows_are_nvfp4 },
	{ .name = "ncclEpDispatch", .run = dispatch_fwd, .check = rows_are_copied },
	{ .name = "ncclEpDispatch",
	  .run = dispatch_flat,
	  .after = combine_rows,
	  .check = sums_are_of_ranks,
	  .scene = FLAT },
	{ .name = "ncclEpDispatch",
	  .run = dispatch_flat_fwd,
	  .check = flat_rows_are_copied,
	  .scene = FLAT },
	{ .name = "ncclEpDispatch",
	  .run = dispatch_window,
	  .after = combine_rows,
	  .check = sums_are_of_ranks,
	  .scene = FLAT },
	{ .name = "ncclEpDispatch",
	  .before = update_handle_ht,
	  .run = dispatch_zones,
	  .after = combine_rows,
	  .check = sums_are_of_experts,
	  .scene = ZONES },
	{ .name = "ncclEpDispatch",
	  .run = dispatch_backward,
	  .after = combine_rows,
	  .check = sums_are_of_ranks,
	  .scene = FLAT },
	{ .name = "ncclEpCombine", .before = dispatch, .run = combine, .check = sums_are_tokens },
	{ .name = "ncclEpCombine",
	  .before = dispatch_flat,
	  .run = combine_rows,
	  .check = sums_are_of_ranks,
	  .scene = FLAT },
	{ .name = "ncclEpCombine",
	  .run = combine_graph,
	  .check = sums_are_of_ranks,
	  .scene = FLAT },
	{ .name = "ncclEpCombine",
	  .before = dispatch_zones,
	  .run = combine_backward,
	  .check = weights_are_back,
	  .scene = ZONES },
	{ .name = "ncclEpCombine",
	  .before = return_threes,
	  .run = combine_nvfp4,
	  .check = sums_are_threes },
	{ .name = "ncclEpCombine",
	  .before = return_threes,
	  .run = combine_mxfp8,
	  .check = sums_are_of_threes,
	  .scene = ZONES },
	{ .name = "ncclEpComplete", .before = dispatch, .run = complete, .check = sums_are_tokens },
	{ .name = "ncclEpComplete", .run = complete_graph, .check = sums_are_tokens },
	{ .name = "ncclEpMaskQuery", .run = mask_query },
	{ .name = "ncclEpMaskUpdate", .run = mask_update },
	{ .name = "ncclEpMaskClean", .before = dispatch, .run = mask_clean, .after = dispatch },
	{ .name = "ncclEpExtReplaceRanks",
	  .run = ext_replace_ranks,
	  .after = dispatch,
	  .refused = 1 },
	{ .name = "ncclEpExtJoinGroup", .run = ext_join_group },
	{ .name = "ncclEpGetAsyncError", .run = get_async_error },
	{ .name = "ncclEpErrorClear", .run = error_clear },
};

static void run(const struct example *example)
{
	ncclResult_t code;
	const char *why;

	arena_next = arena;
	make_tensors(example->scene);
	make_group(example->scene);
	if (example->before) {
		example->before();
	}
	example->run();
	if (example->after) {
		example->after();
	}
	CHECK(cudaStreamSynchronize(stream));
	if (example->check) {
		example->check();
	}
	if (group) {
		CHECK(ncclEpExtGetLastError(group, &code, &why));
		CHECK((code != ncclSuccess) != example->refused);
		CHECK(ncclEpHandleDestroy(handle));
		CHECK(ncclEpGroupDestroy(group));
	}
	printf("done: %s\n", example->name);
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: %s id-file\n", argv[0]);
		return 2;
	}
	comm = begin(argv[1]);
	CHECK(ranks > 64);
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaStreamCreate(&experts));
	CHECK(cudaEventCreateWithFlags(&started, cudaEventDisableTiming));
	arena = on_device(NULL, (size_t)ranks * T * L * H * 8 + (1 << 20));
	for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
		run(&examples[i]);
	}
	return finish(comm);
}
