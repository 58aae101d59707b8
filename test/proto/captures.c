/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each call does while its stream is captured, as the headers state under "Capture": it
 * becomes part of the graph, or runs at once and leaves nothing there, or is refused. (The test
 * `returns` compares the words of the table below with the headers'.)
 */
#include "support/bench.h"
#include "support/ht_bench.h"

#define EXPERTS 8
#define TOPK 4
#define TOKENS 16

struct scene {
	struct world *w;
	struct bench b;
	struct ht_bench h, zones; /* flat, expert-major */
	void *arrivals;
	size_t arrivals_bytes;
	void *device; /* memory for any output */
	int mask[WORLD_MAX];
};

/* ---- calls ---- */

static ncclResult_t get_version(struct scene *s, cudaStream_t stream)
{
	int version;

	return ncclEpGetVersion(&version);
}

static ncclResult_t ext_version(struct scene *s, cudaStream_t stream)
{
	const char *text;

	return ncclEpExtVersion(&text);
}

static ncclResult_t ext_get_last_error(struct scene *s, cudaStream_t stream)
{
	ncclResult_t code;

	return ncclEpExtGetLastError(s->b.group, &code, NULL);
}

static ncclResult_t tensors(struct scene *s, cudaStream_t stream)
{
	ncclEpTensor_t *tensor;
	ncclResult_t result = ncclEpTensorAlloc(&tensor, 1, ncclUint8, (size_t[]){ 16 }, NULL);

	return result == ncclSuccess ? ncclEpTensorDestroy(tensor) : result;
}

static ncclResult_t group_end(ncclResult_t made, ncclEpGroup_t group, cudaStream_t stream)
{
	world_capture_drop(stream); /* until which the group cannot be destroyed */
	if (made == ncclSuccess) {
		OK(ncclEpGroupDestroy(group));
	}
	world_capture(stream);
	return made;
}

static ncclResult_t create_group(struct scene *s, cudaStream_t stream)
{
	ncclEpGroupConfig_t config = bench_group_config(&s->b.p, 0);
	ncclEpGroup_t group;
	ncclResult_t result = ncclEpCreateGroup(&group, s->w->comm, &config);

	return group_end(result, group, stream);
}

static ncclResult_t ext_create_group(struct scene *s, cudaStream_t stream)
{
	ncclEpGroupConfig_t config = bench_group_config(&s->b.p, 0);
	ncclEpExtRoles_t roles = NCCL_EP_EXT_ROLES_INIT;
	ncclEpGroup_t group;
	ncclResult_t result;

	roles.num_holders = 1;
	result = ncclEpExtCreateGroup(&group, s->w->comm, &config, &roles);
	return group_end(result, group, stream);
}

static ncclResult_t ext_replace_ranks(struct scene *s, cudaStream_t stream)
{
	return ncclEpExtReplaceRanks(s->b.group, s->w->comm);
}

/* All ranks join, and none has a group. */
static ncclResult_t ext_join_group(struct scene *s, cudaStream_t stream)
{
	ncclEpGroupConfig_t config = bench_group_config(&s->b.p, 0);
	ncclEpGroup_t group;
	ncclResult_t result = ncclEpExtJoinGroup(&group, s->w->comm, &config, NULL);

	return result == ncclInvalidUsage ? ncclSuccess : ncclSystemError;
}

static ncclResult_t group_destroy(struct scene *s, cudaStream_t stream)
{
	return ncclEpGroupDestroy(s->b.group);
}

static ncclResult_t handle_mem_size(struct scene *s, cudaStream_t stream)
{
	size_t bytes;

	return ncclEpHandleMemSize(s->b.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, TOPK);
}

static ncclResult_t handles(struct scene *s, cudaStream_t stream)
{
	ncclEpHandle_t handle;
	ncclResult_t result =
		ncclEpInitHandle(&handle, s->b.group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, TOPK, NULL);

	return result == ncclSuccess ? ncclEpHandleDestroy(handle) : result;
}

static ncclResult_t create_handle(struct scene *s, cudaStream_t stream)
{
	ncclEpHandle_t handle;
	ncclResult_t result = ncclEpCreateHandle(&handle, s->b.group, NCCL_EP_LAYOUT_EXPERT_MAJOR,
						 &s->b.ids.t, NULL, NULL, stream);

	return result == ncclSuccess ? ncclEpHandleDestroy(handle) : result;
}

static ncclResult_t update_handle(struct scene *s, cudaStream_t stream)
{
	return bench_update(&s->b, stream);
}

static ncclResult_t dispatch(struct scene *s, cudaStream_t stream)
{
	return bench_dispatch(&s->b, stream);
}

static ncclResult_t combine(struct scene *s, cudaStream_t stream)
{
	return bench_combine(&s->b, stream);
}

static ncclResult_t complete(struct scene *s, cudaStream_t stream)
{
	ncclResult_t result = bench_send_dispatch(&s->b, stream);

	return result == ncclSuccess ? ncclEpComplete(s->b.handle, NULL, stream) : result;
}

static ncclResult_t mask_query(struct scene *s, cudaStream_t stream)
{
	return ncclEpMaskQuery(s->b.group, s->device, stream);
}

static ncclResult_t mask_update(struct scene *s, cudaStream_t stream)
{
	return ncclEpMaskUpdate(s->b.group, s->mask, stream);
}

static ncclResult_t mask_clean(struct scene *s, cudaStream_t stream)
{
	return ncclEpMaskClean(s->b.group, stream);
}

static ncclResult_t get_async_error(struct scene *s, cudaStream_t stream)
{
	int error;

	return ncclEpGetAsyncError(s->b.group, &error);
}

static ncclResult_t error_clear(struct scene *s, cudaStream_t stream)
{
	return ncclEpErrorClear(s->b.group);
}

static ncclResult_t ext_device_memory(struct scene *s, cudaStream_t stream)
{
	ncclEpGroupConfig_t config = bench_group_config(&s->b.p, 0);
	ncclEpExtMemory_t memory = NCCL_EP_EXT_MEMORY_INIT;

	return ncclEpExtDeviceMemory(&config, s->w->nranks, NCCL_EP_LAYOUT_EXPERT_MAJOR, TOPK,
				     &memory);
}

static ncclResult_t ext_feasible(struct scene *s, cudaStream_t stream)
{
	ncclEpGroupConfig_t config = bench_group_config(&s->b.p, 0);
	ncclEpExtShape_t shape = NCCL_EP_EXT_SHAPE_INIT;

	shape.layout = NCCL_EP_LAYOUT_EXPERT_MAJOR;
	shape.num_topk = TOPK;
	shape.hidden = 64;
	shape.datatype = ncclBfloat16;
	return ncclEpExtFeasible(&config, s->w->nranks, &shape);
}

static ncclResult_t ext_num_recv_tokens(struct scene *s, cudaStream_t stream)
{
	return ncclEpExtNumRecvTokens(s->b.handle, NULL, NULL, stream);
}

static ncclResult_t ext_add_expert_rows(struct scene *s, cudaStream_t stream)
{
	return ncclEpExtAddExpertRows(s->b.handle, s->device, stream);
}

static ncclResult_t ext_peer_stats(struct scene *s, cudaStream_t stream)
{
	ncclEpExtPeerStats_t stats = NCCL_EP_EXT_PEER_STATS_INIT;

	return ncclEpExtPeerStats(s->b.group, &stats, 1, stream);
}

static ncclResult_t ht_create(struct scene *s, cudaStream_t stream)
{
	ncclEpHandle_t handle;
	ncclResult_t result = ncclEpCreateHandle(&handle, s->h.group, NCCL_EP_LAYOUT_FLAT,
						 &s->h.ids.t, NULL, NULL, stream);

	return result == ncclSuccess ? ncclEpHandleDestroy(handle) : result;
}

static ncclResult_t ht_update_handle(struct scene *s, cudaStream_t stream)
{
	return ht_update(&s->h, stream);
}

static ncclResult_t ht_dispatch_forward(struct scene *s, cudaStream_t stream)
{
	return ht_dispatch(&s->h, false, stream);
}

static ncclResult_t ht_combine_forward(struct scene *s, cudaStream_t stream)
{
	return ht_combine(&s->h, false, stream);
}

static ncclResult_t ext_start_arrivals(struct scene *s, cudaStream_t stream)
{
	return ncclEpExtStartArrivals(s->zones.handle, s->arrivals, &s->arrivals_bytes, stream);
}

/* ---- what the headers state ---- */

static const struct {
	const char *call, *state;
	ncclResult_t (*run)(struct scene *s, cudaStream_t stream);
} calls[] = {
	{ "ncclEpGetVersion", "not recorded", get_version },
	{ "ncclEpExtVersion", "not recorded", ext_version },
	{ "ncclEpExtGetLastError", "not recorded", ext_get_last_error },
	{ "ncclEpTensorAlloc", "not recorded", tensors },
	{ "ncclEpTensorDestroy", "not recorded", tensors },
	{ "ncclEpCreateGroup", "not recorded", create_group },
	{ "ncclEpExtCreateGroup", "not recorded", ext_create_group },
	{ "ncclEpExtReplaceRanks", "refused", ext_replace_ranks },
	{ "ncclEpExtJoinGroup", "not recorded", ext_join_group },
	{ "ncclEpGroupDestroy", "refused", group_destroy },
	{ "ncclEpHandleMemSize", "not recorded", handle_mem_size },
	{ "ncclEpInitHandle", "not recorded", handles },
	{ "ncclEpHandleDestroy", "not recorded", handles },
	{ "ncclEpCreateHandle", "not recorded", create_handle },
	{ "ncclEpCreateHandle", "recorded", ht_create },
	{ "ncclEpUpdateHandle", "not recorded", update_handle },
	{ "ncclEpUpdateHandle", "recorded", ht_update_handle },
	{ "ncclEpDispatch", "recorded", dispatch },
	{ "ncclEpDispatch", "recorded", ht_dispatch_forward },
	{ "ncclEpCombine", "recorded", combine },
	{ "ncclEpCombine", "recorded", ht_combine_forward },
	{ "ncclEpComplete", "recorded", complete },
	{ "ncclEpMaskQuery", "recorded", mask_query },
	{ "ncclEpMaskUpdate", "refused", mask_update },
	{ "ncclEpMaskClean", "refused", mask_clean },
	{ "ncclEpGetAsyncError", "not recorded", get_async_error },
	{ "ncclEpErrorClear", "not recorded", error_clear },
	{ "ncclEpExtDeviceMemory", "not recorded", ext_device_memory },
	{ "ncclEpExtFeasible", "not recorded", ext_feasible },
	{ "ncclEpExtNumRecvTokens", "refused", ext_num_recv_tokens },
	{ "ncclEpExtAddExpertRows", "recorded", ext_add_expert_rows },
	{ "ncclEpExtStartArrivals", "recorded", ext_start_arrivals },
	{ "ncclEpExtPeerStats", "refused", ext_peer_stats },
};

/* Does the call wait for the device? That ends captures there. */
static bool ends_capture(const struct scene *s, size_t i)
{
	/* ranks of one process have no windows, and are refused before */
	return calls[i].run == group_destroy ||
	       (calls[i].run == ext_replace_ranks && s->w->processes);
}

static void try_call(struct scene *s, size_t i)
{
	cudaStream_t stream = s->w->stream;
	cudaGraphExec_t exec;
	ncclResult_t result;
	cudaGraph_t graph;
	size_t nodes = 0;

	check_context("%s, %s", calls[i].call, calls[i].state);
	world_meet(s->w);
	world_capture(stream);
	result = calls[i].run(s, stream);
	CHECK_INT(result, strcmp(calls[i].state, "refused") ? ncclSuccess : ncclInvalidUsage);
	if (ends_capture(s, i)) {
		CHECK_CUDA(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
		return;
	}
	NEED_CUDA(cudaStreamEndCapture(stream, &graph));
	NEED_CUDA(cudaGraphGetNodes(graph, NULL, &nodes));
	CHECK_INT(nodes != 0, !strcmp(calls[i].state, "recorded"));
	NEED_CUDA(cudaGraphInstantiate(&exec, graph, 0));
	world_meet(s->w);
	NEED_CUDA(cudaGraphLaunch(exec, stream));
	NEED_CUDA(cudaStreamSynchronize(stream));
	NEED_CUDA(cudaGraphExecDestroy(exec));
	NEED_CUDA(cudaGraphDestroy(graph));
	CHECK_LAST(s->h.group, ncclSuccess, "");
}

static void run(struct world *w, void *arg)
{
	struct oracle_problem p =
		bench_problem(w->nranks, EXPERTS, TOPK, 64, TOKENS, ORACLE_EXPERT_MAJOR);
	struct oracle_ht h = { .p = p, .limit = (uint32_t)w->nranks * TOKENS };
	struct scene *s = calloc(1, sizeof(*s));

	s->w = w;
	for (int r = 0; r < w->nranks; r++) {
		s->mask[r] = 1;
	}
	NEED_CUDA(cudaMalloc(&s->device, EXPERTS * sizeof(uint64_t) + sizeof(s->mask)));
	NEED_CUDA(cudaMemset(s->device, 0, EXPERTS * sizeof(uint64_t) + sizeof(s->mask)));
	bench_open(&s->b, w, bench_group(w, &p, BENCH_MASK), &p, BENCH_MASK);
	bench_dispatch_checked(&s->b);
	ht_open(&s->h, w, ht_group(w, &h, 0, 60000), &h, 0);
	OK(ht_update(&s->h, w->stream));
	h.expert_major = 1;
	h.limit = (uint32_t)w->nranks * TOKENS * TOPK;
	ht_open(&s->zones, w, ht_group(w, &h, 0, 60000), &h, 0);
	OK(ht_update(&s->zones, w->stream));
	NEED_OK(ncclEpExtStartArrivals(s->zones.handle, NULL, &s->arrivals_bytes, w->stream));
	NEED_CUDA(cudaMalloc(&s->arrivals, s->arrivals_bytes));
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		try_call(s, i);
	}
	CHECK_LAST(s->zones.group, ncclSuccess, "");
	ht_end(&s->zones);
	ht_end(&s->h);
	NEED_CUDA(cudaFree(s->arrivals));
	bench_end(&s->b);
	NEED_CUDA(cudaFree(s->device));
	free(s);
}

int main(void)
{
	world_run(world_size(2), run, NULL);
	return check_end();
}
