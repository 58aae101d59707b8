// SPDX-License-Identifier: Apache-2.0
/* A rank's group, handles and device memory, and what is put into it. */
#include <dlfcn.h>
#include <nccl_ep/ext.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "perf.h"

/* An extension of this library; ep_perf also runs on others. */
static int unsupported(struct perf_rank *r, const char *call, ncclResult_t result)
{
	const char *text = perf_last_error(r);

	snprintf(r->failure, sizeof(r->failure), "%s: %s", call,
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

static void group_config(const struct perf_rank *r, ncclEpGroupConfig_t *config)
{
	const struct perf_options *opt = &r->perf->opt;
	const struct oracle_problem *p = &opt->problem;
	size_t out = oracle_output_bytes(p) + oracle_scale_count(p) * sizeof(float);
	size_t combine = oracle_combine_bytes(p);

	config->algorithm = opt->ht ? NCCL_EP_ALGO_HIGH_THROUGHPUT : NCCL_EP_ALGO_LOW_LATENCY;
	config->num_experts = p->experts;
	config->max_dispatch_tokens_per_rank = opt->capacity;
	config->max_token_bytes = (unsigned int)(out > combine ? out : combine);
	config->max_num_sms = opt->sms;
	config->enable_mask = (unsigned int)opt->mask;
	config->num_topk = p->topk;
	if (opt->ht) {
		config->max_recv_tokens_per_rank = r->ht.limit;
		config->overflow_policy = r->ht.drop ? NCCL_EP_OVERFLOW_DROP
						     : NCCL_EP_OVERFLOW_TRAP;
	}
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
 * What the library allocates on each GPU, as it says itself; a library that cannot say so is held to
 * the memory that went away, which has NCCL's own buffers in it.
 */
static double library_mib(const struct perf_rank *r, const ncclEpGroupConfig_t *config, double gone)
{
	__typeof__(&ncclEpExtDeviceMemory) ask = dlsym(RTLD_DEFAULT, "ncclEpExtDeviceMemory");
	ncclEpExtMemory_t memory = NCCL_EP_EXT_MEMORY_INIT;
	const struct oracle_problem *p = &r->perf->opt.problem;

	memory.remote_ranks = r->remote_ranks;
	memory.node_ranks = r->near_ranks;
	if (!ask || ask(config, (int)p->nranks, layout_of(&r->perf->opt), (int)p->topk, &memory) !=
			    ncclSuccess) {
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

int perf_group_open(struct perf_rank *r)
{
	const struct perf_options *opt = &r->perf->opt;
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpHandleConfig_t handle = NCCL_EP_HANDLE_CONFIG_INIT;
	int topk = (int)opt->problem.topk;
	double before = free_mib(), cpu = process_cpu_ms();
	ncclResult_t result;
	uint64_t start;

	if (opt->ht && perf_ht_plan(r)) {
		return -1;
	}
	group_config(r, &config);
	start = perf_now_ns();
	result = ncclEpCreateGroup(&r->group, r->comm, &config);
	if (result != ncclSuccess) {
		r->group = NULL;
		return unsupported(r, "ncclEpCreateGroup", result);
	}
	r->setup.group_ms = (double)(perf_now_ns() - start) / 1e6;
	r->setup.group_cpu_ms = (process_cpu_ms() - cpu) / r->perf->world.nlocal;
	start = perf_now_ns();
	handle.dispatch_output_per_expert_alignment = opt->zone_alignment;
	result = ncclEpInitHandle(&r->handle, r->group, layout_of(opt), &handle, topk, NULL);
	if (result != ncclSuccess) {
		r->handle = NULL;
		return unsupported(r, "ncclEpInitHandle", result);
	}
	r->setup.handle_ms = (double)(perf_now_ns() - start) / 1e6;
	perf_links_learn(r);
	r->setup.library_mib = library_mib(r, &config, before - free_mib());
	result = ncclEpInitHandle(&r->align, r->group, layout_of(opt), NULL, topk, NULL);
	if (result != ncclSuccess) {
		r->align = NULL;
		return unsupported(r, "ncclEpInitHandle", result);
	}
	return 0;
}

void perf_group_close(struct perf_rank *r)
{
	if (r->handle) {
		PERF_NCCL(r, ncclEpHandleDestroy(r->handle));
	}
	if (r->align) {
		PERF_NCCL(r, ncclEpHandleDestroy(r->align));
	}
	if (r->group) {
		PERF_NCCL(r, ncclEpGroupDestroy(r->group));
	}
	r->handle = r->align = NULL;
	r->group = NULL;
}

int perf_buffers_alloc(struct perf_rank *r)
{
	const struct oracle_problem *p = &r->perf->opt.problem;
	struct perf_buffers *b = &r->buf;
	int by_rank = p->layout == ORACLE_RANK_MAJOR;
	size_t tokens = p->max_tokens;
	size_t blocks = by_rank ? p->nranks : p->experts / p->nranks;
	size_t rows = blocks * (by_rank ? tokens : tokens * p->nranks);
	size_t scale_bytes = oracle_scale_count(p) * sizeof(float);
	size_t routing = tokens * p->topk;

	if (r->perf->opt.ht) {
		return perf_ht_alloc(r);
	}
	b->in_bytes = tokens * (oracle_input_bytes(p) + scale_bytes) + routing * 8;
	b->out_tokens_bytes = rows * oracle_output_bytes(p);
	b->out_scales_bytes = rows * scale_bytes;
	b->routing_elements = by_rank ? rows * p->topk : 0;
	b->combine_in_bytes = rows * oracle_combine_bytes(p);
	b->host = malloc(b->in_bytes);
	if (!b->host) {
		snprintf(r->failure, sizeof(r->failure), "no host memory");
		return -1;
	}
	if (perf_device_memory(r, &b->in_tokens, tokens * oracle_input_bytes(p)) ||
	    perf_device_memory(r, &b->in_scales, tokens * scale_bytes) ||
	    perf_device_memory(r, &b->ids, routing * 8) ||
	    perf_device_memory(r, &b->weights, routing * sizeof(float)) ||
	    perf_window_memory(r, &b->out_tokens, &b->tokens_window, b->out_tokens_bytes) ||
	    perf_window_memory(r, &b->out_scales, &b->scales_window, b->out_scales_bytes) ||
	    perf_device_memory(r, &b->out_weights, b->routing_elements * sizeof(float)) ||
	    perf_device_memory(r, &b->out_idx, b->routing_elements * sizeof(int32_t)) ||
	    perf_device_memory(r, &b->counts, blocks * sizeof(int32_t)) ||
	    perf_device_memory(r, &b->align_counts, blocks * sizeof(int32_t)) ||
	    perf_device_memory(r, &b->combine_in, b->combine_in_bytes) ||
	    perf_device_memory(r, &b->combine_out, (tokens + 1) * oracle_combine_bytes(p))) {
		return -1;
	}
	/* small numbers in every type, for runs without a check */
	PERF_CUDA(r, cudaMemsetAsync(b->combine_in, 0x3c, b->combine_in_bytes, r->stream));
	return 0;
}

static void output_free(struct perf_rank *r, void *at, ncclWindow_t window)
{
	if (window) {
		PERF_NCCL(r, ncclCommWindowDeregister(r->comm, window));
	}
	if (at && window) {
		PERF_NCCL(r, ncclMemFree(at));
	} else if (at) {
		PERF_CUDA(r, cudaFree(at));
	}
}

void perf_buffers_free(struct perf_rank *r)
{
	struct perf_buffers *b = &r->buf;
	void *const all[] = { b->in_tokens,    b->in_scales, b->ids,    b->weights,
			      b->out_weights,  b->out_idx,   b->counts, b->align_counts,
			      b->combine_out,  b->offsets,   b->total,  b->in_gradients,
			      b->out_gradients };

	perf_ht_unload(r);
	output_free(r, b->combine_in, b->combine_window);
	output_free(r, b->out_tokens, b->tokens_window);
	output_free(r, b->out_scales, b->scales_window);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (all[i]) {
			PERF_CUDA(r, cudaFree(all[i]));
		}
	}
	if (b->chunk) {
		PERF_CUDA(r, cudaFreeHost(b->chunk));
	}
	free(b->host);
	memset(b, 0, sizeof(*b));
}

void perf_buffers_poison(struct perf_rank *r)
{
	const struct oracle_problem *p = &r->problem;
	struct perf_buffers *b = &r->buf;
	size_t blocks = p->layout == ORACLE_RANK_MAJOR ? p->nranks : p->experts / p->nranks;

	if (r->perf->opt.ht) {
		perf_ht_poison(r);
		return;
	}
	perf_poison(r, b->out_tokens, b->out_tokens_bytes);
	perf_poison(r, b->out_scales, b->out_scales_bytes);
	perf_poison(r, b->out_weights, b->routing_elements * sizeof(float));
	perf_poison(r, b->out_idx, b->routing_elements * sizeof(int32_t));
	perf_poison(r, b->counts, blocks * sizeof(int32_t));
	perf_poison(r, b->combine_out, ((size_t)p->max_tokens + 1) * oracle_combine_bytes(p));
}

static void upload(struct perf_rank *r, void *to, const void *from, size_t bytes)
{
	if (bytes) {
		PERF_CUDA(r, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, r->stream));
		PERF_CUDA(r, cudaStreamSynchronize(r->stream));
	}
}

void perf_buffers_upload(struct perf_rank *r)
{
	const struct oracle_problem *p = &r->problem;
	struct perf_buffers *b = &r->buf;
	size_t row = oracle_input_bytes(p);
	uint32_t scales = oracle_scale_count(p);
	size_t id_bytes = r->perf->opt.ids64 ? 8 : 4;

	for (uint32_t t = 0; t < r->tokens; t++) {
		oracle_input_row(p, r->rank, t, (char *)b->host + t * row);
	}
	upload(r, b->in_tokens, b->host, r->tokens * row);
	for (uint32_t t = 0; t < r->tokens; t++) {
		oracle_weights(p, r->rank, t, (float *)b->host + (size_t)t * p->topk);
	}
	upload(r, b->weights, b->host, (size_t)r->tokens * p->topk * sizeof(float));
	if (p->quant == ORACLE_QUANT_FORWARD) {
		for (uint32_t t = 0; t < r->tokens; t++) {
			oracle_input_scales(p, r->rank, t, (float *)b->host + (size_t)t * scales);
		}
		upload(r, b->in_scales, b->host, (size_t)r->tokens * scales * sizeof(float));
	}
	for (uint32_t t = 0; t < r->tokens; t++) {
		int32_t ids[ORACLE_MAX_TOPK];

		oracle_route(p, r->rank, t, ids);
		for (uint32_t k = 0; k < p->topk; k++) {
			size_t at = (size_t)t * p->topk + k;

			if (id_bytes == 8) {
				((int64_t *)b->host)[at] = ids[k];
			} else {
				((int32_t *)b->host)[at] = ids[k];
			}
		}
	}
	upload(r, b->ids, b->host, (size_t)r->tokens * p->topk * id_bytes);
}
