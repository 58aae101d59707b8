/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's group, handles and device memory, and what is put into it. */
#include <dlfcn.h>
#include <nccl_ep/ext.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "perf.h"

/* ---- the memory of tensors, and their descriptors ---- */

static int device_memory(struct perf_rank *rank, void **at, size_t bytes)
{
	*at = NULL;
	if (bytes == 0) {
		return 0;
	}
	if (cudaMalloc(at, bytes) != cudaSuccess) {
		cudaGetLastError();
		snprintf(rank->failure, sizeof(rank->failure),
			 "no device memory for %zu MiB of tensors", bytes >> 20);
		return -1;
	}
	return 0;
}

/* The same, in a window of all ranks if the run is to use windows. */
static int window_memory(struct perf_rank *rank, void **at, ncclWindow_t *window, size_t bytes)
{
	if (!rank->perf->opt.windows || bytes == 0) {
		return device_memory(rank, at, bytes);
	}
	if (ncclMemAlloc(at, bytes) != ncclSuccess) {
		*at = NULL;
		snprintf(rank->failure, sizeof(rank->failure), "ncclMemAlloc of %zu MiB: %.150s",
			 bytes >> 20, ncclGetLastError(NULL));
		return -1;
	}
	if (ncclCommWindowRegister(rank->comm, *at, bytes, window, 0) != ncclSuccess || !*window) {
		*window = NULL;
		PERF_NCCL(rank, ncclMemFree(*at));
		*at = NULL;
		snprintf(rank->failure, sizeof(rank->failure),
			 "ncclCommWindowRegister gives no window");
		return -1;
	}
	return 0;
}

static void poison(struct perf_rank *rank, void *at, size_t bytes)
{
	if (bytes) {
		PERF_CUDA(rank, cudaMemsetAsync(at, ORACLE_POISON, bytes, rank->stream));
	}
}

/* Blocks of low latency's received rows: none on a rank without experts. */
size_t perf_blocks(const struct oracle_problem *p, uint32_t rank)
{
	size_t held = oracle_held(p, rank);

	return held && p->layout == ORACLE_RANK_MAJOR ? oracle_senders(p) : held;
}

ncclEpTensor_t *perf_tensor(struct perf_tensor *tensor, ncclDataType_t type, void *data,
			    unsigned int ndim, size_t n0, size_t n1, size_t n2)
{
	tensor->t = NCCL_EP_TENSOR_INIT;
	tensor->sizes[0] = n0;
	tensor->sizes[1] = n1;
	tensor->sizes[2] = n2;
	tensor->t.ndim = ndim;
	tensor->t.datatype = type;
	tensor->t.data = data;
	tensor->t.sizes = tensor->sizes;
	return &tensor->t;
}

ncclDataType_t perf_float_type(enum oracle_dtype dtype)
{
	return dtype == ORACLE_BF16 ? ncclBfloat16
				    : (dtype == ORACLE_FP16 ? ncclFloat16 : ncclFloat32);
}

/* ---- high throughput ---- */

#define ROUND_ROWS 128u

/* As many rows as any of the seeds and steps that a run uses brings to any rank. */
static int most_rows(struct perf_rank *rank, uint64_t *most)
{
	const struct perf_options *opt = &rank->perf->opt;
	char why[128];

	*most = 0;
	for (uint64_t seed = opt->problem.seed; seed < opt->problem.seed + 3; seed++) {
		struct oracle_ht h = rank->ht;
		uint64_t rows;

		h.p = opt->problem;
		h.p.tokens = opt->max_tokens;
		h.p.seed = seed;
		if (oracle_problem_prepare(&h.p, why, sizeof(why))) {
			snprintf(rank->failure, sizeof(rank->failure), "%s", why);
			return -1;
		}
		for (; h.p.step < opt->steps; h.p.step++) {
			rows = oracle_ht_most(&h);
			*most = rows > *most ? rows : *most;
		}
		oracle_problem_free(&h.p);
		if (!opt->check) { /* there is one seed alone */
			break;
		}
	}
	return 0;
}

static int ht_plan(struct perf_rank *rank)
{
	const struct perf_options *opt = &rank->perf->opt;
	struct oracle_ht *h = &rank->ht;
	uint64_t most = (uint64_t)oracle_senders(&opt->problem) * opt->capacity;

	h->expert_major = !opt->flat;
	h->alignment = opt->zone_alignment;
	h->drop = opt->overflow_drop;
	if ((opt->eager || !opt->flat) && most_rows(rank, &most)) {
		return -1;
	}
	if (!opt->eager) {
		most = opt->flat ? most : (most + ROUND_ROWS - 1) / ROUND_ROWS * ROUND_ROWS;
		most = most < opt->capacity ? opt->capacity : most;
		most = opt->recv ? opt->recv : most;
	}
	/* The library numbers rows with 31 bits, tables of expected rows with 32. */
	if (most > INT32_MAX) {
		snprintf(rank->failure, sizeof(rank->failure), "%llu rows for a rank are too many",
			 (unsigned long long)most);
		return -1;
	}
	h->limit = opt->eager ? 0 : (uint32_t)most;
	rank->buf.rows = oracle_held(&opt->problem, rank->rank) ? most : 0;
	return 0;
}

static void ht_unload(struct perf_rank *rank)
{
	for (uint32_t n = 0; rank->tables && n < rank->perf->world.nranks; n++) {
		oracle_ht_table_free(rank->tables[n]);
	}
	free(rank->tables);
	rank->tables = NULL;
}

void perf_ht_load(struct perf_rank *rank)
{
	uint32_t nranks = rank->perf->world.nranks;

	ht_unload(rank);
	rank->ht.p = rank->problem;
	rank->ht.node = rank->node; /* all 0: of one node, or the library does not report them */
	rank->tokens = oracle_tokens(&rank->problem, rank->rank);
	rank->tables = perf_alloc(rank, nranks, sizeof(struct oracle_ht_table *));
	for (uint32_t n = 0; n < nranks; n++) {
		if (n == rank->rank || rank->perf->opt.check) {
			rank->tables[n] = oracle_ht_table_create(&rank->ht, n);
			if (!rank->tables[n]) {
				perf_die(rank, "out of memory");
			}
		}
	}
}

static size_t row_bytes(const struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->perf->opt.problem;
	size_t out = oracle_output_bytes(p) + 4 * oracle_scale_words(p);
	size_t combine = oracle_combine_bytes(p);

	return (out > combine ? out : combine) + 12 * p->topk;
}

static size_t in_scale_bytes(const struct oracle_problem *p)
{
	return p->quant == ORACLE_QUANT_FORWARD ? 4 * (size_t)p->max_tokens * oracle_scale_words(p)
	       : p->quant == ORACLE_QUANT_NVFP4 ? sizeof(float)
						: 0;
}

static int alloc_inputs(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->perf->opt.problem;
	struct perf_buffers *b = &rank->buf;
	size_t tokens = p->max_tokens, routing = tokens * p->topk;

	b->in_bytes = tokens * oracle_input_bytes(p) + in_scale_bytes(p) + routing * 8;
	b->host = malloc(b->in_bytes);
	if (!b->host) {
		snprintf(rank->failure, sizeof(rank->failure), "no host memory");
		return -1;
	}
	PERF_CUDA(rank, cudaMallocHost((void **)&b->chunk, PERF_CHECK_BYTES + row_bytes(rank)));
	return device_memory(rank, &b->in_tokens, tokens * oracle_input_bytes(p)) ||
	       device_memory(rank, &b->in_scales, in_scale_bytes(p)) ||
	       device_memory(rank, &b->ids, b->step_bytes * rank->perf->opt.steps) ||
	       device_memory(rank, &b->weights, routing * sizeof(float)) ||
	       device_memory(rank, &b->combine_out, (tokens + 1) * oracle_combine_bytes(p)) ||
	       device_memory(rank, &b->out_gradients, routing * sizeof(float));
}

static int ht_alloc(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->perf->opt.problem;
	struct perf_buffers *b = &rank->buf;
	size_t rows = b->rows, local = oracle_held(p, rank->rank);
	size_t scale_bytes = 4 * oracle_scale_words(p);

	b->out_tokens_bytes = rows * oracle_output_bytes(p);
	b->out_scales_bytes = rows * scale_bytes;
	b->routing_elements = rows * (rank->perf->opt.flat ? p->topk : 1);
	b->combine_in_bytes = rows * oracle_combine_bytes(p);
	if (alloc_inputs(rank) ||
	    window_memory(rank, &b->out_tokens, &b->tokens_window, b->out_tokens_bytes) ||
	    window_memory(rank, &b->out_scales, &b->scales_window, b->out_scales_bytes) ||
	    window_memory(rank, &b->combine_in, &b->combine_window, b->combine_in_bytes) ||
	    device_memory(rank, &b->out_weights, b->routing_elements * sizeof(float)) ||
	    device_memory(rank, &b->out_idx,
			  rank->perf->opt.flat ? b->routing_elements * sizeof(int64_t) : 0) ||
	    device_memory(rank, &b->in_gradients, b->routing_elements * sizeof(float)) ||
	    device_memory(rank, &b->counts, local * sizeof(int32_t)) ||
	    device_memory(rank, &b->offsets, local * sizeof(int32_t)) ||
	    device_memory(rank, &b->total, sizeof(int32_t))) {
		return -1;
	}
	/* small numbers in every type, for runs without a check */
	PERF_CUDA(rank, cudaMemsetAsync(b->combine_in, 0x3c, b->combine_in_bytes, rank->stream));
	PERF_CUDA(rank,
		  cudaMemsetAsync(b->in_gradients, 0x3c, b->routing_elements * 4, rank->stream));
	return 0;
}

static void ht_poison(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->problem;
	struct perf_buffers *b = &rank->buf;
	size_t local = oracle_held(p, rank->rank);

	poison(rank, b->out_tokens, b->out_tokens_bytes);
	poison(rank, b->out_scales, b->out_scales_bytes);
	poison(rank, b->out_weights, b->routing_elements * sizeof(float));
	poison(rank, b->out_idx, rank->perf->opt.flat ? b->routing_elements * sizeof(int64_t) : 0);
	poison(rank, b->counts, local * sizeof(int32_t));
	poison(rank, b->offsets, local * sizeof(int32_t));
	poison(rank, b->total, sizeof(int32_t));
	poison(rank, b->combine_out, ((size_t)p->max_tokens + 1) * oracle_combine_bytes(p));
	poison(rank, b->out_gradients, (size_t)p->max_tokens * p->topk * sizeof(float));
}

/* ---- groups, handles and all buffers ---- */

/* Notes that the library refuses `call`. Returns -1. */
int perf_refuse(struct perf_rank *rank, const char *call, ncclResult_t result)
{
	const char *text = perf_last_error(rank);

	rank->refused = true;
	snprintf(rank->failure, sizeof(rank->failure), "%s: %s", call,
		 text ? text : ncclGetErrorString(result));
	return -1;
}

static double free_mib(void)
{
	size_t available = 0;
	size_t total = 0;

	if (cudaMemGetInfo(&available, &total) != cudaSuccess) {
		return 0;
	}
	return (double)available / (1 << 20);
}

static void group_config(const struct perf_rank *rank, ncclEpGroupConfig_t *config)
{
	const struct perf_options *opt = &rank->perf->opt;
	const struct oracle_problem *p = &opt->problem;
	size_t out = oracle_output_bytes(p) + oracle_scale_words(p) * sizeof(float);
	size_t combine = oracle_combine_bytes(p);

	config->algorithm = opt->ht ? NCCL_EP_ALGO_HIGH_THROUGHPUT : NCCL_EP_ALGO_LOW_LATENCY;
	config->num_experts = p->experts;
	config->max_dispatch_tokens_per_rank = opt->capacity;
	config->max_token_bytes = (unsigned int)(out > combine ? out : combine);
	config->max_num_sms = opt->sms;
	config->dispatch_num_sms = opt->dispatch_sms;
	config->combine_num_sms = opt->combine_sms;
	config->enable_mask = (unsigned int)opt->mask;
	config->num_topk = p->topk;
	if (opt->ht) {
		config->max_recv_tokens_per_rank = rank->ht.limit;
		config->overflow_policy = rank->ht.drop ? NCCL_EP_OVERFLOW_DROP
							: NCCL_EP_OVERFLOW_TRAP;
	}
}

static ncclEpExtRoles_t roles_of(const struct oracle_problem *p)
{
	ncclEpExtRoles_t roles = NCCL_EP_EXT_ROLES_INIT;

	roles.first_holder = p->first_holder;
	roles.num_holders = p->holders;
	roles.first_sender = p->first_sender;
	roles.num_senders = p->senders;
	return roles;
}

/* Only a library with roles makes a group that has some. */
static ncclResult_t group_create(struct perf_rank *rank, const ncclEpGroupConfig_t *config)
{
	__typeof__(&ncclEpExtCreateGroup) create = dlsym(RTLD_DEFAULT, "ncclEpExtCreateGroup");
	const struct oracle_problem *p = &rank->perf->opt.problem;
	ncclEpExtRoles_t roles = roles_of(p);

	if (!p->holders && !p->senders) {
		return ncclEpCreateGroup(&rank->group, rank->comm, config);
	}
	return create ? create(&rank->group, rank->comm, config, &roles) : ncclInvalidUsage;
}

static ncclEpLayout_t layout_of(const struct perf_options *opt)
{
	if (opt->flat) {
		return NCCL_EP_LAYOUT_FLAT;
	}
	return opt->problem.layout == ORACLE_EXPERT_MAJOR ? NCCL_EP_LAYOUT_EXPERT_MAJOR
							  : NCCL_EP_LAYOUT_RANK_MAJOR;
}

/*
 * Finds what the library allocates on each GPU, by itself; a library that does not report it is
 * held to the memory that went away, which has NCCL's own buffers in it.
 */
static double library_mib(const struct perf_rank *rank, const ncclEpGroupConfig_t *config,
			  double gone)
{
	__typeof__(&ncclEpExtDeviceMemory) ask = dlsym(RTLD_DEFAULT, "ncclEpExtDeviceMemory");
	ncclEpExtMemory_t memory = NCCL_EP_EXT_MEMORY_INIT;
	const struct oracle_problem *p = &rank->perf->opt.problem;
	ncclEpExtRoles_t roles = roles_of(p);

	memory.remote_ranks = rank->remote_ranks;
	memory.node_ranks = rank->near_ranks;
	memory.roles = p->holders || p->senders ? &roles : NULL;
	if (!ask || ask(config, (int)p->nranks, layout_of(&rank->perf->opt), (int)p->topk,
			&memory) != ncclSuccess) {
		return gone;
	}
	return (double)(memory.group_bytes + memory.handle_bytes) / (1 << 20);
}

static double process_cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int perf_group_open(struct perf_rank *rank)
{
	const struct perf_options *opt = &rank->perf->opt;
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpHandleConfig_t handle = NCCL_EP_HANDLE_CONFIG_INIT;
	int topk = (int)opt->problem.topk;
	double before = free_mib(), cpu = process_cpu_ms();
	ncclResult_t result;
	uint64_t start;

	if (opt->ht && ht_plan(rank)) {
		return -1;
	}
	group_config(rank, &config);
	start = perf_now_ns();
	result = group_create(rank, &config);
	if (result != ncclSuccess) {
		rank->group = NULL;
		return perf_refuse(rank, "ncclEpCreateGroup", result);
	}
	rank->setup.group_ms = (double)(perf_now_ns() - start) / 1e6;
	rank->setup.group_cpu_ms = (process_cpu_ms() - cpu) / rank->perf->world.nlocal;
	start = perf_now_ns();
	handle.dispatch_output_per_expert_alignment = opt->zone_alignment;
	result = ncclEpInitHandle(&rank->handle, rank->group, layout_of(opt), &handle, topk, NULL);
	if (result != ncclSuccess) {
		rank->handle = NULL;
		return perf_refuse(rank, "ncclEpInitHandle", result);
	}
	rank->setup.handle_ms = (double)(perf_now_ns() - start) / 1e6;
	perf_links_learn(rank);
	rank->setup.library_mib = library_mib(rank, &config, before - free_mib());
	result = ncclEpInitHandle(&rank->align, rank->group, layout_of(opt), NULL, topk, NULL);
	if (result != ncclSuccess) {
		rank->align = NULL;
		return perf_refuse(rank, "ncclEpInitHandle", result);
	}
	return 0;
}

void perf_group_close(struct perf_rank *rank)
{
	if (rank->handle) {
		PERF_NCCL(rank, ncclEpHandleDestroy(rank->handle));
	}
	if (rank->align) {
		PERF_NCCL(rank, ncclEpHandleDestroy(rank->align));
	}
	if (rank->group) {
		PERF_NCCL(rank, ncclEpGroupDestroy(rank->group));
	}
	rank->handle = rank->align = NULL;
	rank->group = NULL;
}

int perf_buffers_alloc(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->perf->opt.problem;
	struct perf_buffers *b = &rank->buf;
	int by_rank = p->layout == ORACLE_RANK_MAJOR;
	size_t tokens = p->max_tokens;
	size_t blocks = perf_blocks(p, rank->rank);
	size_t rows = blocks * (by_rank ? tokens : tokens * oracle_senders(p));
	size_t scale_bytes = oracle_scale_words(p) * sizeof(float);
	size_t routing = tokens * p->topk;
	bool nvfp4 = p->combine_quant == ORACLE_COMBINE_NVFP4;

	b->step_bytes = routing * 8;
	if (rank->perf->opt.ht) {
		return ht_alloc(rank);
	}
	b->in_bytes = tokens * oracle_input_bytes(p) + in_scale_bytes(p) + routing * 8;
	b->out_tokens_bytes = rows * oracle_output_bytes(p);
	b->out_scales_bytes = rows * scale_bytes;
	b->routing_elements = by_rank ? rows * p->topk : 0;
	b->combine_in_bytes = rows * oracle_combine_bytes(p);
	b->host = malloc(b->in_bytes);
	if (!b->host) {
		snprintf(rank->failure, sizeof(rank->failure), "no host memory");
		return -1;
	}
	if (device_memory(rank, &b->in_tokens, tokens * oracle_input_bytes(p)) ||
	    device_memory(rank, &b->in_scales, in_scale_bytes(p)) ||
	    device_memory(rank, &b->combine_scales, nvfp4 ? rows * sizeof(float) : 0) ||
	    device_memory(rank, &b->ids, b->step_bytes * rank->perf->opt.steps) ||
	    device_memory(rank, &b->weights, routing * sizeof(float)) ||
	    window_memory(rank, &b->out_tokens, &b->tokens_window, b->out_tokens_bytes) ||
	    window_memory(rank, &b->out_scales, &b->scales_window, b->out_scales_bytes) ||
	    device_memory(rank, &b->out_weights, b->routing_elements * sizeof(float)) ||
	    device_memory(rank, &b->out_idx, b->routing_elements * sizeof(int32_t)) ||
	    device_memory(rank, &b->counts, blocks * sizeof(int32_t)) ||
	    device_memory(rank, &b->align_counts, blocks * sizeof(int32_t)) ||
	    device_memory(rank, &b->combine_in, b->combine_in_bytes) ||
	    device_memory(rank, &b->combine_out, (tokens + 1) * oracle_combine_bytes(p))) {
		return -1;
	}
	/* small numbers in every type, for runs without a check; see also fill_combine() */
	PERF_CUDA(rank, cudaMemsetAsync(b->combine_in, 0x3c, b->combine_in_bytes, rank->stream));
	return 0;
}

static void output_free(struct perf_rank *rank, void *at, ncclWindow_t window)
{
	if (window) {
		PERF_NCCL(rank, ncclCommWindowDeregister(rank->comm, window));
	}
	if (at && window) {
		PERF_NCCL(rank, ncclMemFree(at));
	} else if (at) {
		PERF_CUDA(rank, cudaFree(at));
	}
}

void perf_buffers_free(struct perf_rank *rank)
{
	struct perf_buffers *b = &rank->buf;
	void *const all[] = { b->in_tokens,     b->in_scales,     b->ids,    b->weights,
			      b->out_weights,   b->out_idx,       b->counts, b->align_counts,
			      b->combine_out,   b->offsets,       b->total,  b->in_gradients,
			      b->out_gradients, b->combine_scales };

	ht_unload(rank);
	output_free(rank, b->combine_in, b->combine_window);
	output_free(rank, b->out_tokens, b->tokens_window);
	output_free(rank, b->out_scales, b->scales_window);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (all[i]) {
			PERF_CUDA(rank, cudaFree(all[i]));
		}
	}
	if (b->chunk) {
		PERF_CUDA(rank, cudaFreeHost(b->chunk));
	}
	free(b->host);
	memset(b, 0, sizeof(*b));
}

void perf_buffers_poison(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->problem;
	struct perf_buffers *b = &rank->buf;
	size_t blocks = perf_blocks(p, rank->rank);

	if (rank->perf->opt.ht) {
		ht_poison(rank);
		return;
	}
	poison(rank, b->out_tokens, b->out_tokens_bytes);
	poison(rank, b->out_scales, b->out_scales_bytes);
	poison(rank, b->out_weights, b->routing_elements * sizeof(float));
	poison(rank, b->out_idx, b->routing_elements * sizeof(int32_t));
	poison(rank, b->counts, blocks * sizeof(int32_t));
	poison(rank, b->combine_out, ((size_t)p->max_tokens + 1) * oracle_combine_bytes(p));
}

static void upload(struct perf_rank *rank, void *to, const void *from, size_t bytes)
{
	if (bytes) {
		PERF_CUDA(rank,
			  cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, rank->stream));
		PERF_CUDA(rank, cudaStreamSynchronize(rank->stream));
	}
}

/* NVFP4's scale of numbers below 16. */
#define ORDINARY_SCALE (2688.0f / 16)

/*
 * Low latency without a check: no oracle writes the rows of combine, which take the time of
 * ordinary numbers. They are this rank's tokens, of magnitudes below 16.
 */
static void fill_combine(struct perf_rank *rank, size_t token_bytes)
{
	const struct perf_buffers *b = &rank->buf;
	size_t piece = rank->tokens * token_bytes, row = oracle_combine_bytes(&rank->problem);
	size_t rows = b->combine_in_bytes / row;

	for (size_t at = 0; token_bytes == row && piece && at < b->combine_in_bytes; at += piece) {
		size_t left = b->combine_in_bytes - at;

		PERF_CUDA(rank, cudaMemcpyAsync((char *)b->combine_in + at, b->in_tokens,
						left < piece ? left : piece,
						cudaMemcpyDeviceToDevice, rank->stream));
	}
	if (b->combine_scales) {
		float *scales = perf_alloc(rank, rows, sizeof(*scales));

		for (size_t i = 0; i < rows; i++) {
			scales[i] = ORDINARY_SCALE;
		}
		upload(rank, b->combine_scales, scales, rows * sizeof(*scales));
		free(scales);
	}
}

/* The ids of the problem's step come first, and those of the steps behind it follow. */
static void upload_ids(struct perf_rank *rank, uint32_t place)
{
	struct oracle_problem p = rank->problem;
	struct perf_buffers *b = &rank->buf;
	int wide = rank->perf->opt.ids64;

	p.step = (p.step + place) % rank->perf->opt.steps;
	for (uint32_t t = 0; t < rank->tokens; t++) {
		int32_t ids[ORACLE_MAX_TOPK];

		oracle_route(&p, rank->rank, t, ids);
		for (uint32_t k = 0; k < p.topk; k++) {
			size_t at = (size_t)t * p.topk + k;

			if (wide) {
				((int64_t *)b->host)[at] = ids[k];
			} else {
				((int32_t *)b->host)[at] = ids[k];
			}
		}
	}
	upload(rank, (char *)b->ids + place * b->step_bytes, b->host,
	       (size_t)rank->tokens * p.topk * (wide ? 8 : 4));
}

void perf_buffers_upload(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->problem;
	struct perf_buffers *b = &rank->buf;
	size_t row = oracle_input_bytes(p);
	uint32_t scales = oracle_scale_words(p);
	struct oracle_problem input = *p;

	if (!rank->perf->opt.check && p->quant != ORACLE_QUANT_FORWARD) {
		input.quant = ORACLE_QUANT_NONE; /* ordinary numbers, of magnitudes below 16 */
	}
	for (uint32_t t = 0; t < rank->tokens; t++) {
		oracle_input_row(&input, rank->rank, t, (char *)b->host + t * row);
	}
	upload(rank, b->in_tokens, b->host, rank->tokens * row);
	for (uint32_t t = 0; t < rank->tokens; t++) {
		oracle_weights(p, rank->rank, t, (float *)b->host + (size_t)t * p->topk);
	}
	upload(rank, b->weights, b->host, (size_t)rank->tokens * p->topk * sizeof(float));
	if (p->quant == ORACLE_QUANT_FORWARD) {
		for (uint32_t t = 0; t < rank->tokens; t++) {
			oracle_input_scales(p, rank->rank, t,
					    (float *)b->host + (size_t)t * scales);
		}
		upload(rank, b->in_scales, b->host, (size_t)rank->tokens * scales * sizeof(float));
	} else if (p->quant == ORACLE_QUANT_NVFP4) {
		*(float *)b->host = rank->perf->opt.check ? oracle_global_scale(p, rank->rank)
							  : ORDINARY_SCALE;
		upload(rank, b->in_scales, b->host, sizeof(float));
	}
	for (uint32_t i = 0; i < rank->perf->opt.steps; i++) {
		upload_ids(rank, i);
	}
	if (!rank->perf->opt.check && !rank->perf->opt.ht) {
		fill_combine(rank, row);
	}
}
