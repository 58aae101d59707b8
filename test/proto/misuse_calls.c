// SPDX-License-Identifier: Apache-2.0
/* Mistakes in all calls but dispatch and combine: groups, handles, tensors, masks, extensions. */
#include "support/bench.h"
#include "support/watch.h"

#define IA ncclInvalidArgument
#define IU ncclInvalidUsage

static void tensors(void)
{
	ncclEpTensorAllocConfig_t bad = NCCL_EP_TENSOR_ALLOC_CONFIG_INIT;
	ncclEpTensor_t fixed = NCCL_EP_TENSOR_INIT, *t = NULL, copy;
	size_t sizes[3] = { 4, 5, 6 }, *kept;
	int version = -1;

	check_context("tensors");
	CHECK_REASON(ncclEpTensorAlloc(NULL, 3, ncclFloat32, sizes, NULL), IA, "tensor");
	CHECK_REASON(ncclEpTensorAlloc(&t, 3, ncclFloat32, NULL, NULL), IA, "sizes");
	CHECK_REASON(ncclEpTensorAlloc(&t, 0, ncclFloat32, sizes, NULL), IA, "ndim");
	bad.size = 4;
	CHECK_REASON(ncclEpTensorAlloc(&t, 3, ncclFloat32, sizes, &bad), IA, "config");
	bad = NCCL_EP_TENSOR_ALLOC_CONFIG_INIT;
	bad.magic = 7;
	CHECK_REASON(ncclEpTensorAlloc(&t, 3, ncclFloat32, sizes, &bad), IA, "config");
	CHECK(!t);
	NEED_OK(ncclEpTensorAlloc(&t, 3, ncclFloat32, sizes, NULL));
	sizes[1] = 0;
	CHECK(t->ndim == 3 && t->datatype == ncclFloat32 && t->sizes != sizes && t->sizes[0] == 4 &&
	      t->sizes[1] == 5 && t->sizes[2] == 6 && !t->data && !t->win_hdl);
	kept = t->sizes;
	t->sizes = sizes;
	CHECK_REASON(ncclEpTensorDestroy(t), IA, "sizes");
	t->sizes = kept;
	copy = *t; /* a copy is not what was allocated */
	CHECK_REASON(ncclEpTensorDestroy(&copy), IA, "ncclEpTensorAlloc");
	CHECK_REASON(ncclEpTensorDestroy(&fixed), IA, "ncclEpTensorAlloc");
	OK(ncclEpTensorDestroy(t));
	OK(ncclEpTensorDestroy(NULL));
	CHECK_REASON(ncclEpGetVersion(NULL), IA, "version");
	OK(ncclEpGetVersion(&version));
	CHECK_INT(version, NCCL_EP_VERSION_CODE);
}

struct group_mistake {
	const char *name;
	void (*mutate)(ncclEpGroupConfig_t *c);
	ncclResult_t want;
	const char *part;
};

static cudaError_t some_alloc(void **ptr, size_t size, void *context)
{
	return cudaMalloc(ptr, size);
}

#define MUTATE(name_, code_)                                                                       \
	static void name_(ncclEpGroupConfig_t *c)                                                  \
	{                                                                                          \
		code_;                                                                             \
	}

MUTATE(algorithm, c->algorithm = (ncclEpAlgorithm_t)9)
MUTATE(high_throughput, c->algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT)
MUTATE(no_experts, c->num_experts = 0)
MUTATE(odd_experts, c->num_experts++)
MUTATE(most_experts, c->num_experts = 0xfffffffe)
MUTATE(no_tokens, c->max_dispatch_tokens_per_rank = 0)
MUTATE(most_tokens, c->max_dispatch_tokens_per_rank = 65536)
MUTATE(no_bytes, c->max_token_bytes = 0)
MUTATE(most_bytes, c->max_token_bytes = 0xffffffff)
MUTATE(most_sms, c->max_num_sms = 100000)
MUTATE(only_alloc, c->alloc.alloc_fn = some_alloc)
MUTATE(only_free, c->alloc.free_fn = (ncclEpFreeFn_t)(uintptr_t)some_alloc)
MUTATE(zero_copy, c->zero_copy = (ncclEpZeroCopyMode_t)3)
MUTATE(overflow, c->overflow_policy = (ncclEpOverflowPolicy_t)3)
MUTATE(most_topk, c->num_topk = c->num_experts + 1)

static const struct group_mistake group_mistakes[] = {
	{ "algorithm", algorithm, IA, "algorithm" },
	{ "high throughput", high_throughput, IU, "not available yet" },
	{ "no experts", no_experts, IA, "num_experts" },
	{ "odd experts", odd_experts, IA, "num_experts" },
	{ "most experts", most_experts, IA, "num_experts" },
	{ "no tokens", no_tokens, IA, "max_dispatch_tokens_per_rank" },
	{ "most tokens", most_tokens, IA, "max_dispatch_tokens_per_rank" },
	{ "no bytes", no_bytes, IA, "max_token_bytes" },
	{ "most bytes", most_bytes, IA, "max_token_bytes" },
	{ "most sms", most_sms, IU, "max_num_sms" },
	{ "only alloc", only_alloc, IU, "free_fn" },
	{ "only free", only_free, IU, "alloc_fn" },
	{ "zero copy", zero_copy, IA, "zero_copy" },
	{ "overflow", overflow, IA, "overflow_policy" },
	{ "most topk", most_topk, IA, "num_topk" },
};

static void groups(struct world *w, const struct oracle_problem *p)
{
	ncclEpGroupConfig_t good = bench_group_config(p, 0), config = good;
	ncclEpGroup_t group = NULL;

	check_context("groups");
	watch_start();
	CHECK_REASON(ncclEpCreateGroup(NULL, w->comm, &good), IA, "ep_group");
	CHECK_REASON(ncclEpCreateGroup(&group, NULL, &good), IA, "comm");
	CHECK_REASON(ncclEpCreateGroup(&group, w->comm, NULL), IA, "config");
	config.size = NCCL_EP_GROUP_CONFIG_V1_SIZE - 1;
	CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &config), IA, "config");
	config = good;
	config.magic = NCCL_EP_TENSOR_MAGIC;
	CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &config), IA, "config");
	CHECK(!group);
	for (size_t i = 0; i < sizeof(group_mistakes) / sizeof(group_mistakes[0]); i++) {
		const struct group_mistake *m = group_mistakes + i;
		ncclEpExtMemory_t memory = NCCL_EP_EXT_MEMORY_INIT;

		check_context("group: %s", m->name);
		config = good;
		m->mutate(&config);
		CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &config), m->want, m->part);
		CHECK(!group);
		if (m->mutate != most_sms) { /* it knows no device */
			CHECK_REASON(ncclEpExtDeviceMemory(&config, w->nranks, NCCL_EP_LAYOUT_UNSET,
							   0, &memory),
				     m->want, m->part);
		}
	}
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	check_context("groups");
	OK(ncclEpGroupDestroy(NULL));
}

static void handles(struct world *w, struct bench *b)
{
	static const int bad_k[] = { 0, -1, 9, 33, 1 << 30, INT32_MIN };
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpHandle_t handle;
	size_t bytes = 0, sizes[2];
	ncclEpTensor_t ids = b->ids.t;

	check_context("handles");
	for (size_t i = 0; i < sizeof(bad_k) / sizeof(bad_k[0]); i++) {
		CHECK_REASON(ncclEpHandleMemSize(b->group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL,
						 &bytes, bad_k[i]),
			     IA, "num_topk");
		CHECK_REASON(ncclEpInitHandle(&handle, b->group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL,
					      bad_k[i], NULL),
			     IA, "num_topk");
		CHECK(!handle);
	}
	for (int layout = -1; layout <= 4; layout++) {
		if (layout != 1 && layout != 2) {
			CHECK_REASON(ncclEpHandleMemSize(b->group, (ncclEpLayout_t)layout, NULL,
							 &bytes, 3),
				     IA, "layout");
			CHECK_REASON(ncclEpInitHandle(&handle, b->group, (ncclEpLayout_t)layout,
						      NULL, 3, NULL),
				     IA, "layout");
		}
	}
	CHECK_REASON(ncclEpHandleMemSize(b->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, NULL, 3), IA,
		     "size_out");
	CHECK_REASON(ncclEpHandleMemSize(NULL, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &bytes, 3), IA,
		     "ep_group");
	CHECK_REASON(ncclEpInitHandle(NULL, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 3, NULL), IA,
		     "handle");
	CHECK_REASON(ncclEpInitHandle(&handle, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 5, NULL),
		     IU, "num_topk");
	config.size = 8;
	CHECK_REASON(ncclEpInitHandle(&handle, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, &config, 3,
				      NULL),
		     IA, "config");
	config = NCCL_EP_HANDLE_CONFIG_INIT;
	config.magic = 0;
	CHECK_REASON(ncclEpHandleMemSize(b->group, NCCL_EP_LAYOUT_RANK_MAJOR, &config, &bytes, 3),
		     IA, "config");
	CHECK_INT(bytes, 0);

	check_context("create and update");
	info.magic = 3;
	handle = (ncclEpHandle_t)(uintptr_t)8;
	CHECK_REASON(ncclEpCreateHandle(&handle, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, &ids, &info,
					NULL, w->stream),
		     IA, "layout_info");
	CHECK(handle == (ncclEpHandle_t)(uintptr_t)8); /* checked before anything */
	CHECK_REASON(ncclEpUpdateHandle(b->handle, &ids, &info, w->stream), IA, "layout_info");
	info = NCCL_EP_LAYOUT_INFO_INIT;
	CHECK_REASON(ncclEpUpdateHandle(b->handle, &ids, &info, w->stream), IA, "layout_info");
	CHECK_REASON(ncclEpUpdateHandle(NULL, &ids, NULL, w->stream), IA, "handle");
	CHECK_REASON(ncclEpUpdateHandle(b->handle, NULL, NULL, w->stream), IA, "topk_idx");
	ids.datatype = ncclFloat32;
	CHECK_REASON(ncclEpUpdateHandle(b->handle, &ids, NULL, w->stream), IA, "topk_idx");
	ids = b->ids.t;
	ids.ndim = 1;
	CHECK_REASON(ncclEpUpdateHandle(b->handle, &ids, NULL, w->stream), IA, "topk_idx");
	ids = b->ids.t;
	ids.data = NULL;
	CHECK_REASON(ncclEpUpdateHandle(b->handle, &ids, NULL, w->stream), IA, "topk_idx");
	ids = b->ids.t;
	ids.data = (char *)ids.data + 2;
	CHECK_REASON(ncclEpUpdateHandle(b->handle, &ids, NULL, w->stream), IA, "topk_idx");
	ids = b->ids.t;
	ids.sizes = sizes;
	sizes[0] = b->ids.sizes[0];
	sizes[1] = b->ids.sizes[1] + 1;
	CHECK_REASON(ncclEpUpdateHandle(b->handle, &ids, NULL, w->stream), IA, "topk_idx");
	sizes[0] = b->p.max_tokens + 1;
	sizes[1] = b->p.topk;
	CHECK_REASON(ncclEpUpdateHandle(b->handle, &ids, NULL, w->stream), IA, "topk_idx");
	CHECK_REASON(ncclEpCreateHandle(&handle, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, &ids, NULL,
					NULL, w->stream),
		     IA, "topk_idx");
	CHECK(!handle);
	sizes[0] = 1;
	sizes[1] = (size_t)1 << 40;
	CHECK_REASON(ncclEpCreateHandle(&handle, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, &ids, NULL,
					NULL, w->stream),
		     IA, "num_topk");
	OK(ncclEpHandleDestroy(NULL));
	CHECK_REASON(ncclEpHandleDestroy((ncclEpHandle_t)(uintptr_t)b->group), IA, "handle");
	CHECK_REASON(ncclEpGroupDestroy((ncclEpGroup_t)(uintptr_t)b->handle), IA, "group");
	CHECK_REASON(ncclEpGroupDestroy(b->group), IU, "handles");
}

static void complete(struct bench *b)
{
	ncclEpCompleteConfig_t config = NCCL_EP_COMPLETE_CONFIG_INIT;

	check_context("complete");
	OK(ncclEpComplete(b->handle, &config, b->w->stream));
	config.size = 7;
	CHECK_REASON(ncclEpComplete(b->handle, &config, b->w->stream), IA, "config");
	config = NCCL_EP_COMPLETE_CONFIG_INIT;
	config.magic++;
	CHECK_REASON(ncclEpComplete(b->handle, &config, b->w->stream), IA, "config");
	CHECK_REASON(ncclEpComplete(NULL, NULL, b->w->stream), IA, "handle");
}

static void masks_off(struct bench *b)
{
	int mask[8] = { 1, 1 }, error = 5;

	check_context("masks without enable_mask");
	CHECK_REASON(ncclEpMaskQuery(b->group, b->counts.t.data, b->w->stream), IU, "enable_mask");
	CHECK_REASON(ncclEpMaskUpdate(b->group, mask, b->w->stream), IU, "enable_mask");
	CHECK_REASON(ncclEpMaskClean(b->group, b->w->stream), IU, "enable_mask");
	CHECK_REASON(ncclEpGetAsyncError(b->group, &error), IU, "enable_mask");
	CHECK_REASON(ncclEpErrorClear(b->group), IU, "enable_mask");
	CHECK_INT(error, 5);
	CHECK_REASON(ncclEpMaskQuery(NULL, b->counts.t.data, b->w->stream), IA, "ep_group");
}

static void extensions(struct bench *b)
{
	ncclEpGroupConfig_t config = bench_group_config(&b->p, 0);
	ncclEpExtPeerStats_t stats[3] = { NCCL_EP_EXT_PEER_STATS_INIT };
	ncclEpExtMemory_t memory = NCCL_EP_EXT_MEMORY_INIT;
	ncclEpHandle_t fresh;
	cudaGraph_t graph;
	uint64_t n = 9;

	check_context("extensions");
	NEED_OK(ncclEpInitHandle(&fresh, b->group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 2, NULL));
	CHECK_REASON(ncclEpExtNumRecvTokens(fresh, &n, NULL, b->w->stream), IU, "dispatch");
	CHECK_REASON(ncclEpExtNumRecvTokens(NULL, &n, NULL, b->w->stream), IA, "handle");
	CHECK_INT(n, 9);
	CHECK_REASON(ncclEpExtPeerStats(b->group, stats, 3, b->w->stream), IA, "count");
	CHECK_REASON(ncclEpExtPeerStats(b->group, stats, -1, b->w->stream), IA, "count");
	CHECK_REASON(ncclEpExtPeerStats(b->group, NULL, 2, b->w->stream), IA, "stats");
	CHECK_REASON(ncclEpExtPeerStats(NULL, stats, 2, b->w->stream), IA, "ep_group");
	stats[0].size = 71;
	CHECK_REASON(ncclEpExtPeerStats(b->group, stats, 2, b->w->stream), IA, "stats");
	stats[0] = NCCL_EP_EXT_PEER_STATS_INIT;
	NEED_CUDA(cudaStreamBeginCapture(b->w->stream, cudaStreamCaptureModeThreadLocal));
	CHECK_REASON(ncclEpExtPeerStats(b->group, stats, 2, b->w->stream), IU, "captured");
	CHECK_REASON(ncclEpExtNumRecvTokens(b->handle, &n, NULL, b->w->stream), IU, "captured");
	NEED_CUDA(cudaStreamEndCapture(b->w->stream, &graph));
	NEED_CUDA(cudaGraphDestroy(graph));
	CHECK_REASON(ncclEpExtDeviceMemory(NULL, 2, NCCL_EP_LAYOUT_UNSET, 0, &memory), IA,
		     "config");
	CHECK_REASON(ncclEpExtDeviceMemory(&config, 2, NCCL_EP_LAYOUT_UNSET, 0, NULL), IA,
		     "memory");
	CHECK_REASON(ncclEpExtDeviceMemory(&config, 2, NCCL_EP_LAYOUT_FLAT, 2, &memory), IA,
		     "layout");
	CHECK_REASON(ncclEpExtDeviceMemory(&config, 0, NCCL_EP_LAYOUT_UNSET, 0, &memory), IU,
		     "ranks");
	OK(ncclEpHandleDestroy(fresh));
}

static void masks_on(struct world *w, const struct oracle_problem *p)
{
	ncclEpGroup_t group = bench_group(w, p, BENCH_MASK);
	int mask[2] = { 1, 2 };
	struct bench b;

	check_context("masks");
	bench_open(&b, w, group, p, BENCH_MASK);
	bench_round(&b);
	CHECK_REASON(ncclEpMaskQuery(group, NULL, w->stream), IA, "NULL");
	CHECK_REASON(ncclEpMaskUpdate(group, NULL, w->stream), IA, "NULL");
	CHECK_REASON(ncclEpGetAsyncError(group, NULL), IA, "NULL");
	CHECK_REASON(ncclEpMaskUpdate(group, mask, w->stream), IA, "mask[1]");
	NEED_OK(bench_send_combine(&b, w->stream));
	CHECK_REASON(ncclEpMaskClean(group, w->stream), IU, "pending");
	NEED_OK(ncclEpComplete(b.handle, NULL, w->stream));
	bench_round(&b);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

static void run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 8, 4, 64, 5, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group;
	struct bench b;

	tensors();
	groups(w, &p);
	group = bench_group(w, &p, 0);
	bench_open(&b, w, group, &p, 0);
	bench_round(&b);
	handles(w, &b);
	complete(&b);
	masks_off(&b);
	extensions(&b);
	check_context("after the mistakes");
	bench_round(&b);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
	masks_on(w, &p);
}

int main(void)
{
	setenv("NCCL_EP_LL_THREADS", "64", 0);
	world_run(2, run, NULL);
	return check_end();
}
