/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that both modes have alike, with mistakes, and what is expected of any call. */
#include "fuzz/fuzz.h"

/* ---- groups, masks, descriptors, and calls on what is not there ---- */

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
	  { AT(padding_v2), FIELD_U32, ANY, false },
	  { AT(dispatch_num_sms), FIELD_U32, 8, false },
	  { AT(combine_num_sms), FIELD_U32, 8, false } },
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
	for (size_t i = 0; i < sizeof(form.field) / sizeof(form.field[0]); i++) {
		if (form.field[i].offset >= config->size) {
			form.field[i].most = ANY; /* the caller's struct ends before it */
		}
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
	int own, other, mask[2], error = 77, *dev;
	ncclResult_t result;

	own = DRAW(2) ? 1 : DRAW(2) ? 0 : (int)DRAW(0);
	other = DRAW(2) ? (int)DRAW(2) : (int)DRAW(0);
	mask[f->w->rank] = own;
	mask[1 - f->w->rank] = other;
	result = ncclEpMaskUpdate(group, mask, f->w->stream);
	fuzz_judge(f, "mask update", result, NULL);
	CHECK(result == (good != ncclSuccess                      ? good
			 : own == 1 && (other == 0 || other == 1) ? ncclSuccess
								  : ncclInvalidArgument));
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
	if (m.sure && strstr(m.text, "_num_sms")) {
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

/* ---- handles: what both algorithms have alike ---- */

/* A handle's arguments, of which some are wrong. */
struct wanted {
	ncclEpLayout_t layout;
	void *config;
	int topk;
	const char *wrong;
};

static struct wanted draw_handle(struct fuzz *f, struct mutation *m, uint32_t at)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	struct wanted h = { .layout = f->layout, .topk = (int)f->topk };

	config.dispatch_output_per_expert_alignment = f->alignment;
	h.config = mutate_struct(m, &form_handle_config, &config, at & 1);
	if (at & 2) {
		h.layout = (ncclEpLayout_t)mutate_number(m, "layout", (uint64_t)h.layout);
	}
	if (at & 4) {
		h.topk = (int)mutate_number(m, "num_topk", (uint64_t)h.topk);
	}
	h.wrong = model_handle(f, h.layout, h.config, h.topk);
	return h;
}

ncclResult_t fuzz_mem_size(struct fuzz *f)
{
	uint32_t at = fuzz_places(f, 3);
	size_t bytes = 12345;
	struct mutation m;
	ncclResult_t result;
	struct wanted h;

	mutation_begin(&m, &f->state, f->spare);
	h = draw_handle(f, &m, at);
	result = ncclEpHandleMemSize(f->group, h.layout, h.config, &bytes, h.topk);
	fuzz_judge(f, "mem size", result, &m);
	CHECK((result != ncclSuccess) == !!h.wrong, "%s", h.wrong ? h.wrong : "nothing is wrong");
	CHECK((bytes == 12345) == (result != ncclSuccess));
	fuzz_judge(f, "mem size to NULL", ncclEpHandleMemSize(f->group, f->layout, NULL, NULL, 1),
		   NULL);
	mutation_end(&m);
	return result;
}

/*
 * Handles with more experts of a token need more memory; which other arguments do is not promised.
 */
static const char *wrong_memory(struct fuzz *f, const struct wanted *h, const ncclEpTensor_t *mem)
{
	struct model_tensor t;
	const char *wrong = model_tensor(f, mem, 1, &t);
	size_t bytes;

	if (wrong || h->wrong) {
		return wrong;
	}
	OK(ncclEpHandleMemSize(f->group, h->layout, h->config, &bytes, h->topk));
	return t.type != ncclUint8 || t.at % 16 || t.size[0] < bytes ? "handle_mem" : NULL;
}

ncclResult_t fuzz_init(struct fuzz *f)
{
	ncclEpHandle_t untouched = (ncclEpHandle_t)f, handle = untouched;
	ncclEpTensor_t mem = NCCL_EP_TENSOR_INIT, *given = NULL;
	uint32_t at = fuzz_places(f, 4);
	const char *wrong;
	struct mutation m;
	ncclResult_t result;
	struct wanted h;
	size_t bytes;

	NEED_OK(ncclEpHandleMemSize(f->group, f->layout, NULL, &bytes, (int)f->topk));
	NEED_CUDA(cudaMalloc(&mem.data, bytes + 16));
	mem.ndim = 1;
	mem.datatype = ncclUint8;
	mem.sizes = &bytes;
	mutation_begin(&m, &f->state, f->spare);
	h = draw_handle(f, &m, at);
	if (DRAW(3)) {
		given = mutate_tensor(&m, "handle_mem", &mem, true, at & 8);
	}
	if (!given) {
		m.sure = false; /* its absence is no mistake */
	}
	wrong = h.wrong ? h.wrong : given ? wrong_memory(f, &h, given) : NULL;
	result = ncclEpInitHandle(&handle, f->group, h.layout, h.config, h.topk, given);
	fuzz_judge(f, "init", result, &m);
	CHECK((result != ncclSuccess) == !!wrong, "%s", wrong ? wrong : "nothing is wrong");
	CHECK((handle != untouched) == (result == ncclSuccess));
	if (result == ncclSuccess) {
		OK(ncclEpHandleDestroy(handle));
	}
	mutation_end(&m);
	NEED_CUDA(cudaFree(mem.data));
	return result;
}

/* ---- whether a group, a handle and their operations are possible: asked, and then tried ---- */

#define FEASIBLE_AT(member) #member, offsetof(ncclEpExtShape_t, member)
#define UNTOUCHED 99

static const struct form form_shape = {
	"shape",
	sizeof(ncclEpExtShape_t),
	NCCL_EP_EXT_SHAPE_V1_SIZE,
	false,
	{ { FEASIBLE_AT(hidden), FIELD_U32, 1 << 24, false },
	  { FEASIBLE_AT(datatype), FIELD_U32, ncclFloat8e5m2, false },
	  { FEASIBLE_AT(quant_recipe), FIELD_U32, NCCL_EP_DISP_QUANT_DS_FP8E3M4, false },
	  { FEASIBLE_AT(remote_ranks), FIELD_U32, 1, false },
	  { FEASIBLE_AT(memory_bytes), FIELD_U64, ANY, false } },
};

/* The first failure of the calls themselves, with its reason; nothing stays. */
static ncclResult_t real(struct fuzz *f, const void *config, const ncclEpExtShape_t *shape,
			 char *text, size_t size)
{
	ncclEpHandleConfig_t own = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpGroup_t group = NULL;
	ncclEpHandle_t handle = NULL;
	const char *last = "";
	ncclResult_t result = ncclEpCreateGroup(&group, f->w->comm, config);

	own.dispatch_output_per_expert_alignment = shape->alignment;
	if (result == ncclSuccess) {
		result = ncclEpInitHandle(&handle, group, shape->layout, &own, shape->num_topk,
					  NULL);
	}
	text[0] = '\0';
	if (result != ncclSuccess) {
		OK(ncclEpExtGetLastError(NULL, NULL, &last));
		snprintf(text, size, "%s", last);
	}
	OK(ncclEpHandleDestroy(handle));
	OK(ncclEpGroupDestroy(group));
	return result;
}

/* The group's config, or any that is not large: most are possible. */
static ncclEpGroupConfig_t draw_config(struct fuzz *f)
{
	ncclEpGroupConfig_t c = f->config;
	bool few = DRAW(4) != 0;

	if (DRAW(2)) {
		return c;
	}
	c.num_experts = few ? FUZZ_RANKS * (unsigned int)(1 + DRAW(40)) : (unsigned int)DRAW(4096);
	c.max_dispatch_tokens_per_rank = (unsigned int)DRAW(few ? 40 : 4);
	c.max_token_bytes = 16 + (unsigned int)(DRAW(4) ? 16 * DRAW(128) : DRAW(2048));
	c.max_recv_tokens_per_rank = DRAW(3) ? (unsigned int)DRAW(200) : NCCL_EP_AUTO;
	c.num_topk = DRAW(3) ? NCCL_EP_AUTO : (unsigned int)DRAW(40);
	c.overflow_policy = (ncclEpOverflowPolicy_t)DRAW(3);
	c.algorithm = DRAW(8) ? c.algorithm : (ncclEpAlgorithm_t)DRAW(4);
	return c;
}

/* A shape of which most are possible: a row is as long as the config allows, or shorter. */
static ncclEpExtShape_t draw_shape(struct fuzz *f, const ncclEpGroupConfig_t *config)
{
	unsigned int bytes = config->max_token_bytes;
	ncclEpExtShape_t s = NCCL_EP_EXT_SHAPE_INIT;

	s.layout = DRAW(4) ? f->layout : (ncclEpLayout_t)DRAW(4);
	s.num_topk = DRAW(4) ? (int)f->topk : (int)DRAW(0);
	s.hidden = bytes < 32 || DRAW(2) ? bytes / 2 : bytes / 4;
	s.hidden &= ~7u;
	s.datatype = ncclBfloat16;
	s.alignment = DRAW(4) ? (unsigned int)f->alignment : (unsigned int)DRAW(0);
	s.rows = UNTOUCHED;
	return s;
}

/*
 * A mistake in the config, in the shape, or in neither. With a shape of which rows are possible it
 * answers what the calls answer, in the same words.
 */
ncclResult_t fuzz_feasible(struct fuzz *f)
{
	ncclEpGroupConfig_t config = draw_config(f);
	ncclEpExtShape_t good = draw_shape(f, &config), *shape;
	struct form form = fuzz_group_form(&config);
	uint64_t which = DRAW(3), rows = UNTOUCHED;
	char asked[512] = "", tried[512];
	struct mutation m;
	ncclResult_t result, theirs;
	const char *last;
	void *c;

	mutation_begin(&m, &f->state, f->spare);
	c = mutate_struct(&m, &form, &config, which == 1);
	shape = mutate_struct(&m, &form_shape, &good, which == 2);
	result = ncclEpExtFeasible(c, FUZZ_RANKS, shape);
	if (m.sure && strstr(m.text, "_num_sms")) {
		m.sure = false; /* it looks at no GPU */
	} else if (m.sure && strstr(m.text, "rdma_buffer_size")) {
		m.sure = false; /* as much as asked for, wherever it may come from */
	}
	fuzz_judge(f, "feasible", result, &m);
	if (result != ncclSuccess) {
		OK(ncclEpExtGetLastError(NULL, NULL, &last));
		snprintf(asked, sizeof(asked), "%s", last);
	}
	if (shape && !strstr(m.text, "shape->size")) {
		memcpy(&rows, (char *)shape + offsetof(ncclEpExtShape_t, rows), sizeof(rows));
		CHECK((rows == UNTOUCHED) == (result != ncclSuccess));
	}
	theirs = real(f, c, &good, tried, sizeof(tried));
	if (theirs == ncclSuccess) {
		/* a group has no rows yet that could be too long for it */
		CHECK(result == ncclSuccess || which == 2 || strstr(m.text, "max_token_bytes"),
		      "possible, and refused: %s", asked);
	} else if (!strstr(tried, "_num_sms") && !strstr(tried, "memory")) {
		CHECK(result != ncclSuccess, "refused by the call: %s", tried);
		if (which != 2 && good.layout != NCCL_EP_LAYOUT_UNSET) {
			CHECK_INT(result, theirs);
			CHECK_TEXT(asked, tried);
		}
	}
	mutation_end(&m);
	return theirs;
}

/* ---- what is expected of any call, and the run of a case ---- */

#define CALLS 150 /* of a case */
#define PERIOD 15 /* calls between pairs that must be right */

static const ncclResult_t documented[] = { ncclSuccess,      ncclInvalidArgument,
					   ncclInvalidUsage, ncclUnhandledCudaError,
					   ncclSystemError,  ncclRemoteError };

/* Results of the ranks, for them to compare. */
static ncclResult_t results[FUZZ_RANKS];

void fuzz_judge(struct fuzz *f, const char *call, ncclResult_t result, const struct mutation *m)
{
	bool known = false;
	ncclResult_t code;
	const char *text;

	f->made++;
	f->failed += result != ncclSuccess;
	check_context("case %llu, call %u: %s%s", (unsigned long long)f->number, f->calls, call,
		      m ? m->text : "");
	for (size_t i = 0; i < sizeof(documented) / sizeof(documented[0]); i++) {
		known |= result == documented[i];
	}
	CHECK(known, "undocumented result %d", (int)result);
	if (result == ncclSuccess) {
		CHECK(!m || !mutation_sure(m));
		return;
	}
	OK(ncclEpExtGetLastError(NULL, &code, &text));
	CHECK_INT(code, result);
	CHECK(strlen(text) > 12 && !strchr(text, '\n'));
}

uint32_t fuzz_places(struct fuzz *f, uint32_t n)
{
	uint32_t set = 1u << world_draw(&f->state, n);

	return world_draw(&f->state, 3)
		       ? set
		       : set | 1u << world_draw(&f->state, n) | 1u << world_draw(&f->state, n);
}

void fuzz_agree(struct fuzz *f, ncclResult_t result)
{
	results[f->w->rank] = result;
	world_meet(f->w);
	for (int r = 0; r < FUZZ_RANKS; r++) {
		CHECK_INT(results[r], result);
	}
	world_meet(f->w);
}

void fuzz_run(struct fuzz *f, const fuzz_call_fn *calls, size_t n, void (*pair)(struct fuzz *f))
{
	pair(f);
	f->odd_ids = false;
	for (f->calls = 1; f->calls <= CALLS; f->calls++) {
		uint64_t which = world_draw(&f->state, n);
		/* calls may draw differently often: the next one starts from the same number */
		uint64_t next = f->state + 1;

		fuzz_agree(f, calls[which](f));
		f->state = next;
		if (f->calls % PERIOD == 0) {
			fuzz_agree(f, fuzz_feasible(f));
			f->state = next;
			pair(f);
			f->odd_ids = false;
		}
	}
	/* the mistakes are neither all nor none */
	CHECK(f->failed > f->made / 4 && f->failed < f->made);
}
