/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput: budgets, device memory and arguments of its calls. */
#include <stdlib.h>

#include "perf.h"

#define ROUND_ROWS 128u

/* As many rows as any of the seeds that a run uses brings to any rank. */
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
		rows = oracle_ht_most(&h);
		oracle_problem_free(&h.p);
		*most = rows > *most ? rows : *most;
		if (!opt->check) { /* there is one seed alone */
			break;
		}
	}
	return 0;
}

int perf_ht_plan(struct perf_rank *rank)
{
	const struct perf_options *opt = &rank->perf->opt;
	struct oracle_ht *h = &rank->ht;
	uint64_t most = (uint64_t)rank->perf->world.nranks * opt->capacity;

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
	rank->buf.rows = most;
	return 0;
}

void perf_ht_unload(struct perf_rank *rank)
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

	perf_ht_unload(rank);
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
	size_t out = oracle_output_bytes(p) + 4 * oracle_scale_count(p);
	size_t combine = oracle_combine_bytes(p);

	return (out > combine ? out : combine) + 12 * p->topk;
}

static int alloc_inputs(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->perf->opt.problem;
	struct perf_buffers *b = &rank->buf;
	size_t tokens = p->max_tokens, routing = tokens * p->topk;
	size_t scale_bytes = 4 * oracle_scale_count(p);

	b->in_bytes = tokens * (oracle_input_bytes(p) + scale_bytes) + routing * 8;
	b->host = malloc(b->in_bytes);
	if (!b->host) {
		snprintf(rank->failure, sizeof(rank->failure), "no host memory");
		return -1;
	}
	PERF_CUDA(rank, cudaMallocHost((void **)&b->chunk, PERF_CHECK_BYTES + row_bytes(rank)));
	return perf_device_memory(rank, &b->in_tokens, tokens * oracle_input_bytes(p)) ||
	       perf_device_memory(rank, &b->in_scales, tokens * scale_bytes) ||
	       perf_device_memory(rank, &b->ids, routing * 8) ||
	       perf_device_memory(rank, &b->weights, routing * sizeof(float)) ||
	       perf_device_memory(rank, &b->combine_out, (tokens + 1) * oracle_combine_bytes(p)) ||
	       perf_device_memory(rank, &b->out_gradients, routing * sizeof(float));
}

int perf_ht_alloc(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->perf->opt.problem;
	struct perf_buffers *b = &rank->buf;
	size_t rows = b->rows, local = p->experts / p->nranks;
	size_t scale_bytes = 4 * oracle_scale_count(p);

	b->out_tokens_bytes = rows * oracle_output_bytes(p);
	b->out_scales_bytes = rows * scale_bytes;
	b->routing_elements = rows * (rank->perf->opt.flat ? p->topk : 1);
	b->combine_in_bytes = rows * oracle_combine_bytes(p);
	if (alloc_inputs(rank) ||
	    perf_window_memory(rank, &b->out_tokens, &b->tokens_window, b->out_tokens_bytes) ||
	    perf_window_memory(rank, &b->out_scales, &b->scales_window, b->out_scales_bytes) ||
	    perf_window_memory(rank, &b->combine_in, &b->combine_window, b->combine_in_bytes) ||
	    perf_device_memory(rank, &b->out_weights, b->routing_elements * sizeof(float)) ||
	    perf_device_memory(rank, &b->out_idx,
			       rank->perf->opt.flat ? b->routing_elements * sizeof(int64_t) : 0) ||
	    perf_device_memory(rank, &b->in_gradients, b->routing_elements * sizeof(float)) ||
	    perf_device_memory(rank, &b->counts, local * sizeof(int32_t)) ||
	    perf_device_memory(rank, &b->offsets, local * sizeof(int32_t)) ||
	    perf_device_memory(rank, &b->total, sizeof(int32_t))) {
		return -1;
	}
	/* small numbers in every type, for runs without a check */
	PERF_CUDA(rank, cudaMemsetAsync(b->combine_in, 0x3c, b->combine_in_bytes, rank->stream));
	PERF_CUDA(rank,
		  cudaMemsetAsync(b->in_gradients, 0x3c, b->routing_elements * 4, rank->stream));
	return 0;
}

void perf_ht_poison(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->problem;
	struct perf_buffers *b = &rank->buf;
	size_t local = p->experts / p->nranks;

	perf_poison(rank, b->out_tokens, b->out_tokens_bytes);
	perf_poison(rank, b->out_scales, b->out_scales_bytes);
	perf_poison(rank, b->out_weights, b->routing_elements * sizeof(float));
	perf_poison(rank, b->out_idx,
		    rank->perf->opt.flat ? b->routing_elements * sizeof(int64_t) : 0);
	perf_poison(rank, b->counts, local * sizeof(int32_t));
	perf_poison(rank, b->offsets, local * sizeof(int32_t));
	perf_poison(rank, b->total, sizeof(int32_t));
	perf_poison(rank, b->combine_out, ((size_t)p->max_tokens + 1) * oracle_combine_bytes(p));
	perf_poison(rank, b->out_gradients, (size_t)p->max_tokens * p->topk * sizeof(float));
}

/* The aligning combine carries no token, but waits until every rank has started it. */
static void prepare_align(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->problem;
	struct perf_calls *c = &rank->calls;
	ncclDataType_t type = perf_float_type(p->dtype);

	perf_tensor(&c->align_ids, c->ids.t.datatype, NULL, 2, 0, p->topk, 0);
	c->align_combine_in = NCCL_EP_COMBINE_INPUTS_INIT;
	c->align_combine_out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	c->align_combine_in.tokens = perf_tensor(&c->align_tokens, type, NULL, 2, 0, p->hidden, 0);
	c->align_combine_out.tokens =
		perf_tensor(&c->align_weights, type, NULL, 2, 0, p->hidden, 0);
}

static void prepare_dispatch(struct perf_rank *rank, size_t rows)
{
	const struct perf_options *opt = &rank->perf->opt;
	const struct oracle_problem *p = &rank->problem;
	struct perf_calls *c = &rank->calls;
	struct perf_buffers *b = &rank->buf;
	uint32_t scales = oracle_scale_count(p);
	ncclDataType_t type = p->quant == ORACLE_QUANT_NONE ? perf_float_type(p->dtype)
							    : ncclFloat8e4m3;

	c->dispatch_in = NCCL_EP_DISPATCH_INPUTS_INIT;
	c->dispatch_out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	c->dispatch_config = NCCL_EP_DISPATCH_CONFIG_INIT;
	c->dispatch_in.tokens =
		perf_tensor(&c->in_tokens, type, b->in_tokens, 2, rank->tokens, p->hidden, 0);
	c->dispatch_out.tokens =
		perf_tensor(&c->out_tokens, type, b->out_tokens, 2, rows, p->hidden, 0);
	c->out_tokens.t.win_hdl = b->tokens_window;
	if (scales) {
		c->dispatch_config.quant_recipe = NCCL_EP_DISP_QUANT_FWD;
		c->dispatch_in.scales = perf_tensor(&c->in_scales, ncclFloat32, b->in_scales, 2,
						    rank->tokens, scales, 0);
		c->dispatch_out.scales =
			perf_tensor(&c->out_scales, ncclFloat32, b->out_scales, 2, rows, scales, 0);
		c->out_scales.t.win_hdl = b->scales_window;
	}
	if (opt->backward) {
		c->dispatch_config.pass_direction = NCCL_EP_BWD_PASS;
		return;
	}
	c->dispatch_in.topk_weights =
		perf_tensor(&c->weights, ncclFloat32, b->weights, 2, rank->tokens, p->topk, 0);
	c->dispatch_out.topk_weights = perf_tensor(&c->out_weights, ncclFloat32, b->out_weights,
						   opt->flat ? 2 : 1, rows, p->topk, 0);
	if (opt->flat) {
		c->dispatch_out.topk_idx =
			perf_tensor(&c->out_idx, ncclInt64, b->out_idx, 2, rows, p->topk, 0);
	}
}

static void prepare_combine(struct perf_rank *rank, size_t rows)
{
	const struct perf_options *opt = &rank->perf->opt;
	const struct oracle_problem *p = &rank->problem;
	struct perf_calls *c = &rank->calls;
	struct perf_buffers *b = &rank->buf;
	ncclDataType_t type = perf_float_type(p->dtype);

	c->combine_inputs = NCCL_EP_COMBINE_INPUTS_INIT;
	c->combine_outputs = NCCL_EP_COMBINE_OUTPUTS_INIT;
	c->combine_config = NCCL_EP_COMBINE_CONFIG_INIT;
	c->combine_inputs.tokens =
		perf_tensor(&c->combine_in, type, b->combine_in, 2, rows, p->hidden, 0);
	c->combine_in.t.win_hdl = b->combine_window;
	c->combine_outputs.tokens =
		perf_tensor(&c->combine_out, type, b->combine_out, 2, rank->tokens, p->hidden, 0);
	if (!opt->backward) {
		return;
	}
	c->combine_config.pass_direction = NCCL_EP_BWD_PASS;
	c->combine_inputs.topk_weights = perf_tensor(&c->in_gradients, ncclFloat32, b->in_gradients,
						     opt->flat ? 2 : 1, rows, p->topk, 0);
	c->combine_outputs.topk_weights = perf_tensor(
		&c->out_gradients, ncclFloat32, b->out_gradients, 2, rank->tokens, p->topk, 0);
}

void perf_ht_prepare(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->problem;
	struct perf_calls *c = &rank->calls;
	struct perf_buffers *b = &rank->buf;
	size_t local = p->experts / p->nranks;
	size_t rows = rank->ht.limit ? rank->ht.limit : rank->tables[rank->rank]->total;

	perf_tensor(&c->ids, rank->perf->opt.ids64 ? ncclInt64 : ncclInt32, b->ids, 2, rank->tokens,
		    p->topk, 0);
	c->layout = NCCL_EP_LAYOUT_INFO_INIT;
	c->layout.expert_counters = perf_tensor(&c->counts, ncclInt32, b->counts, 1, local, 0, 0);
	if (!rank->perf->opt.flat) {
		c->layout.expert_offsets =
			perf_tensor(&c->offsets, ncclInt32, b->offsets, 1, local, 0, 0);
	}
	c->layout.recv_total_counter = perf_tensor(&c->total, ncclInt32, b->total, 1, 1, 0, 0);
	prepare_dispatch(rank, rows);
	prepare_combine(rank, rows);
	prepare_align(rank);
}
