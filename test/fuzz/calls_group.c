/* SPDX-License-Identifier: Apache-2.0 */
/* Groups, masks, descriptors, and calls on what is not there. */
#include "fuzz/model.h"

#define DRAW(below) world_draw(&f->state, below)
#define AT(member) #member, offsetof(ncclEpGroupConfig_t, member)
#define ANY UINT64_MAX

static const struct form form_group = {
	"config",
	NCCL_EP_GROUP_CONFIG_SIZE,
	NCCL_EP_GROUP_CONFIG_V1_SIZE,
	false,
	{ { AT(version), FIELD_U32, ANY, false },
	  { AT(algorithm), FIELD_U32, NCCL_EP_ALGO_HIGH_THROUGHPUT, false },
	  { AT(num_experts), FIELD_U32, 2 * 16383, false },
	  { AT(max_dispatch_tokens_per_rank), FIELD_U32, 65535, false },
	  { AT(max_recv_tokens_per_rank), FIELD_U32, ANY, false },
	  { AT(max_token_bytes), FIELD_U32, 1 << 24, false },
	  { AT(rdma_buffer_size), FIELD_U64, UINT64_C(1) << 40, false },
	  { AT(num_qp_per_rank), FIELD_U32, ANY, false },
	  { AT(num_channels), FIELD_U32, ANY, false },
	  { AT(max_num_sms), FIELD_U32, 8, false },
	  { AT(enable_mask), FIELD_U32, ANY, false },
	  { AT(timeout_ns), FIELD_U64, ANY, false },
	  { AT(zero_copy), FIELD_U32, NCCL_EP_ZERO_COPY_ON, false },
	  { AT(overflow_policy), FIELD_U32, NCCL_EP_OVERFLOW_DROP, false },
	  { AT(num_topk), FIELD_U32, 0, false },
	  { AT(padding_v2), FIELD_U32, ANY, false } },
};

static const struct form form_alloc = {
	"config",  NCCL_EP_TENSOR_ALLOC_CONFIG_SIZE, NCCL_EP_TENSOR_ALLOC_CONFIG_V1_SIZE, true,
	{ { 0 } },
};

static const struct form form_memory = {
	"memory",
	sizeof(ncclEpExtMemory_t),
	NCCL_EP_EXT_MEMORY_V1_SIZE,
	false,
	{ { "remote_ranks", offsetof(ncclEpExtMemory_t, remote_ranks), FIELD_U32, 1, false } },
};

static cudaError_t take(void **ptr, size_t size, void *context)
{
	(void)context;
	return cudaMalloc(ptr, size);
}

static cudaError_t give(void *ptr, void *context)
{
	(void)context;
	return cudaFree(ptr);
}

static void know(struct form *form, const char *name, uint64_t most)
{
	for (uint32_t i = 0; i < MUTATE_FIELDS && form->field[i].name; i++) {
		if (!strcmp(form->field[i].name, name)) {
			form->field[i].most = most;
		}
	}
}

struct form fuzz_group_form(const ncclEpGroupConfig_t *config)
{
	struct form form = form_group;

	know(&form, "num_topk", config->num_experts);
	if (config->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT) {
		know(&form, "num_experts", 65535);
		know(&form, "max_dispatch_tokens_per_rank", 1 << 24);
		know(&form, "max_recv_tokens_per_rank", INT32_MAX);
		know(&form, "rdma_buffer_size", UINT64_MAX); /* is of low latency */
		know(&form, "overflow_policy",
		     config->max_recv_tokens_per_rank ? NCCL_EP_OVERFLOW_DROP
						      : NCCL_EP_OVERFLOW_TRAP);
	}
	return form;
}

/*
 * A mistake of all ranks, or a number that is wrong on rank 1 only. (A struct that one rank cannot
 * read at all is no member of the meeting.) Either all have a group afterwards or none.
 */
ncclResult_t fuzz_group(struct fuzz *f)
{
	ncclEpGroupConfig_t config = f->config;
	ncclEpGroup_t untouched = (ncclEpGroup_t)&config, group = untouched;
	struct form form = fuzz_group_form(&f->config);
	bool alone = DRAW(4) == 0;
	struct mutation m;
	ncclResult_t result;
	void *c;

	mutation_begin(&m, &f->state, f->spare);
	if (DRAW(6) == 0) {
		config.alloc.alloc_fn = DRAW(2) ? take : NULL;
		config.alloc.free_fn = DRAW(2) ? give : NULL;
	}
	if (f->ht && DRAW(4) == 0) {
		config.overflow_policy = (ncclEpOverflowPolicy_t)DRAW(3);
		config.max_recv_tokens_per_rank *= (unsigned int)DRAW(2);
	}
	if (alone) {
		config.max_token_bytes += f->w->rank == 1 ? 16 : 0;
		c = mutate_struct(&m, &form, &config, false);
	} else {
		c = mutate_struct(&m, &form, &config, true);
	}
	result = ncclEpCreateGroup(&group, f->w->comm, c);
	fuzz_judge(f, alone ? "group, ranks differ" : "group", result, &m);
	CHECK(!alone || result != ncclSuccess);
	CHECK((group == untouched) == (result != ncclSuccess));
	if (result == ncclSuccess) {
		const char *wrong = model_group(c);

		CHECK(!wrong, "%s", wrong ? wrong : "");
		CHECK(!config.alloc.alloc_fn == !config.alloc.free_fn);
		OK(ncclEpGroupDestroy(group));
	}
	mutation_end(&m);
	return result;
}

ncclResult_t fuzz_masks(struct fuzz *f)
{
	const ncclResult_t good = f->masks ? ncclSuccess : ncclInvalidUsage;
	static const int ones[2] = { 1, 1 };
	ncclEpGroup_t group = f->group;
	int mask[2], error = 77, *dev;
	ncclResult_t result;

	mask[0] = DRAW(2) ? 1 : (int)DRAW(0);
	mask[1] = DRAW(2) ? (int)DRAW(2) : (int)DRAW(0);
	result = ncclEpMaskUpdate(group, mask, f->w->stream);
	fuzz_judge(f, "mask update", result, NULL);
	CHECK(result == (good != ncclSuccess        ? good
			 : (mask[0] | mask[1]) & ~1 ? ncclInvalidArgument
						    : ncclSuccess));
	fuzz_judge(f, "mask update NULL", ncclEpMaskUpdate(group, NULL, f->w->stream), NULL);
	NEED_CUDA(cudaMalloc((void **)&dev, sizeof(mask)));
	CHECK_RESULT(ncclEpMaskQuery(group, dev, f->w->stream), good);
	NEED_CUDA(cudaStreamSynchronize(f->w->stream));
	if (good == ncclSuccess) {
		int back[2];

		NEED_CUDA(cudaMemcpy(back, dev, sizeof(back), cudaMemcpyDeviceToHost));
		CHECK(result != ncclSuccess ? back[0] == 1 && back[1] == 1
					    : !memcmp(back, mask, sizeof(back)));
	}
	NEED_CUDA(cudaFree(dev));
	fuzz_judge(f, "mask query NULL", ncclEpMaskQuery(group, NULL, f->w->stream), NULL);
	CHECK_RESULT(ncclEpMaskUpdate(group, ones, f->w->stream), good);
	CHECK_RESULT(ncclEpGetAsyncError(group, &error), good);
	CHECK_INT(error, good == ncclSuccess ? 0 : 77);
	fuzz_judge(f, "async error NULL", ncclEpGetAsyncError(group, NULL), NULL);
	CHECK_RESULT(ncclEpErrorClear(group), good);
	world_meet(f->w); /* no rank may meet the others while it masks them */
	CHECK_RESULT(ncclEpMaskClean(group, f->w->stream), good);
	return result;
}

ncclResult_t fuzz_tensors(struct fuzz *f)
{
	ncclEpTensorAllocConfig_t config = NCCL_EP_TENSOR_ALLOC_CONFIG_INIT;
	ncclEpTensor_t copy, *untouched = &copy, *t = untouched;
	unsigned int ndim = (unsigned int)DRAW(10);
	ncclDataType_t type = (ncclDataType_t)DRAW(0);
	size_t sizes[10], *own;
	struct mutation m;
	ncclResult_t result;
	bool none = DRAW(6) == 0;

	for (int i = 0; i < 10; i++) {
		sizes[i] = DRAW(0);
	}
	mutation_begin(&m, &f->state, f->spare);
	result = ncclEpTensorAlloc(&t, ndim, type, none ? NULL : sizes,
				   mutate_struct(&m, &form_alloc, &config, DRAW(2)));
	fuzz_judge(f, "tensor alloc", result, &m);
	CHECK((t == untouched) == (result != ncclSuccess));
	if (result == ncclSuccess) {
		CHECK(ndim > 0 && !none);
		CHECK(t->ndim == ndim && t->datatype == type);
		CHECK(!memcmp(t->sizes, sizes, ndim * sizeof(*sizes)));
		copy = *t;
		fuzz_judge(f, "destroy a copy", ncclEpTensorDestroy(&copy), NULL);
		own = t->sizes;
		t->sizes = sizes;
		CHECK_RESULT(ncclEpTensorDestroy(t), ncclInvalidArgument);
		t->sizes = own;
		t->magic ^= 1u << DRAW(32);
		CHECK_RESULT(ncclEpTensorDestroy(t), ncclInvalidArgument);
		t->magic = copy.magic;
		OK(ncclEpTensorDestroy(t));
	}
	CHECK_RESULT(ncclEpTensorAlloc(NULL, 1, type, sizes, NULL), ncclInvalidArgument);
	mutation_end(&m);
	return result;
}

ncclResult_t fuzz_version(struct fuzz *f)
{
	int version = -1;
	ncclResult_t result = ncclEpGetVersion(DRAW(2) ? &version : NULL);

	fuzz_judge(f, "version", result, NULL);
	CHECK(version == (result == ncclSuccess ? NCCL_EP_VERSION_CODE : -1));
	return result;
}

/* Handles and groups that are none: NULL, or memory that something else is in. */
ncclResult_t fuzz_nobody(struct fuzz *f)
{
	static _Thread_local uint64_t memory[1024];
	ncclEpHandle_t h = DRAW(2) ? (ncclEpHandle_t)memory : NULL;
	ncclEpGroup_t g = DRAW(2) ? (ncclEpGroup_t)memory : NULL;
	ncclEpGroupConfig_t config = f->config;
	cudaStream_t stream = f->w->stream;
	ncclEpHandle_t handle;
	size_t bytes = 5;
	int zero[2] = { 0 };

	for (size_t i = 0; i < 1024; i++) {
		memory[i] = DRAW(3) ? 0 : DRAW(0);
	}
	CHECK_RESULT(ncclEpDispatch(h, NULL, NULL, NULL, NULL, stream), ncclInvalidArgument);
	CHECK_RESULT(ncclEpCombine(h, NULL, NULL, NULL, stream), ncclInvalidArgument);
	CHECK_RESULT(ncclEpComplete(h, NULL, stream), ncclInvalidArgument);
	CHECK_RESULT(ncclEpUpdateHandle(h, f->ids, NULL, stream), ncclInvalidArgument);
	CHECK_RESULT(ncclEpExtNumRecvTokens(h, NULL, NULL, stream), ncclInvalidArgument);
	CHECK_RESULT(ncclEpHandleDestroy(h), h ? ncclInvalidArgument : ncclSuccess);
	CHECK_RESULT(ncclEpGroupDestroy(g), g ? ncclInvalidArgument : ncclSuccess);
	CHECK_RESULT(ncclEpHandleMemSize(g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &bytes, 1),
		     ncclInvalidArgument);
	CHECK_RESULT(ncclEpInitHandle(&handle, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 1, NULL),
		     ncclInvalidArgument);
	CHECK_RESULT(ncclEpInitHandle(NULL, f->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 1, NULL),
		     ncclInvalidArgument);
	CHECK_RESULT(ncclEpCreateHandle(&handle, g, NCCL_EP_LAYOUT_RANK_MAJOR, f->ids, NULL, NULL,
					stream),
		     ncclInvalidArgument);
	CHECK_RESULT(ncclEpCreateHandle(NULL, f->group, NCCL_EP_LAYOUT_RANK_MAJOR, f->ids, NULL,
					NULL, stream),
		     ncclInvalidArgument);
	CHECK_RESULT(ncclEpMaskQuery(g, zero, stream), ncclInvalidArgument);
	CHECK_RESULT(ncclEpMaskUpdate(g, zero, stream), ncclInvalidArgument);
	CHECK_RESULT(ncclEpMaskClean(g, stream), ncclInvalidArgument);
	CHECK_RESULT(ncclEpGetAsyncError(g, zero), ncclInvalidArgument);
	CHECK_RESULT(ncclEpErrorClear(g), ncclInvalidArgument);
	CHECK_RESULT(ncclEpCreateGroup(NULL, f->w->comm, &config), ncclInvalidArgument);
	CHECK_RESULT(ncclEpCreateGroup(&g, NULL, &config), ncclInvalidArgument);
	CHECK_INT(bytes, 5);
	return ncclSuccess;
}

ncclResult_t fuzz_memory(struct fuzz *f)
{
	ncclEpGroupConfig_t config = f->config;
	ncclEpExtMemory_t good = NCCL_EP_EXT_MEMORY_INIT, *memory;
	struct form form = fuzz_group_form(&f->config);
	bool which = DRAW(2);
	struct mutation m;
	ncclResult_t result;
	uint64_t group_bytes = 0;
	int nranks = DRAW(4) ? 2 : (int)DRAW(0);
	int topk = DRAW(2) ? 1 : (int)DRAW(0);
	ncclEpLayout_t layout = (ncclEpLayout_t)DRAW(4);
	void *c;

	good.group_bytes = 99;
	mutation_begin(&m, &f->state, f->spare);
	c = mutate_struct(&m, &form, &config, which);
	memory = mutate_struct(&m, &form_memory, &good, !which);
	result = ncclEpExtDeviceMemory(c, nranks, layout, topk, memory);
	if (m.sure && strstr(m.text, "max_num_sms")) {
		m.sure = false; /* needs no device, so it knows no limit */
	} else if (m.sure && strstr(m.text, "rdma_buffer_size")) {
		m.sure = false; /* as much as asked for, wherever it may come from */
	}
	fuzz_judge(f, "device memory", result, &m);
	if (memory && (result == ncclSuccess || !strstr(m.text, "memory->size"))) {
		memcpy(&group_bytes, (char *)memory + offsetof(ncclEpExtMemory_t, group_bytes), 8);
		CHECK((group_bytes == 99) == (result != ncclSuccess));
	}
	mutation_end(&m);
	return result;
}

ncclResult_t fuzz_statistics(struct fuzz *f)
{
	ncclEpExtPeerStats_t stats[2];
	int count = DRAW(2) ? (int)DRAW(3) : (int)DRAW(0);
	ncclResult_t result;

	memset(stats, 0xee, sizeof(stats));
	stats[0] = (ncclEpExtPeerStats_t)NCCL_EP_EXT_PEER_STATS_INIT;
	stats[0].rank = -9;
	if (DRAW(3) == 0) {
		stats[0].size = (unsigned int)DRAW(NCCL_EP_EXT_PEER_STATS_V1_SIZE);
	} else if (DRAW(3) == 0) {
		stats[0].magic ^= 1u << DRAW(32);
	}
	result = ncclEpExtPeerStats(f->group, stats, count, f->w->stream);
	fuzz_judge(f, "peer statistics", result, NULL);
	CHECK(result != ncclSuccess || (count >= 0 && count <= 2));
	CHECK(stats[0].rank == (result == ncclSuccess && count > 0 ? 0 : -9));
	fuzz_judge(f, "peer statistics to NULL",
		   ncclEpExtPeerStats(f->group, NULL, 1, f->w->stream), NULL);
	return result;
}
