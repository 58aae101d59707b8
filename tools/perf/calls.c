/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that are measured, with their arguments. */
#include <string.h>

#include "nccl_ep/ext.h"
#include "perf.h"

/* A recipe of dispatch: its values in the call, and the types that it delivers. */
static const struct {
	ncclEpDispQuant_t recipe;
	ncclDataType_t tokens, scales;
	uint32_t per_byte;   /* elements of a token in a byte */
	uint32_t scale_size; /* bytes */
} recipes[] = {
	[ORACLE_QUANT_NONE] = { NCCL_EP_DISP_QUANT_NONE },
	[ORACLE_QUANT_FP8] = { NCCL_EP_DISP_QUANT_DS_FP8E3M4, ncclFloat8e4m3, ncclFloat32, 1, 4 },
	[ORACLE_QUANT_FP8_COLUMNS] = { NCCL_EP_DISP_QUANT_NONE, ncclFloat8e4m3, ncclFloat32, 1, 4 },
	[ORACLE_QUANT_FORWARD] = { NCCL_EP_DISP_QUANT_FWD, ncclFloat8e4m3, ncclFloat32, 1, 4 },
	[ORACLE_QUANT_MXFP8] = { NCCL_EP_EXT_DISP_QUANT_MXFP8, ncclFloat8e4m3, ncclUint8, 1, 1 },
	[ORACLE_QUANT_NVFP4] = { NCCL_EP_EXT_DISP_QUANT_NVFP4, ncclFloat4x2, ncclFloat8e4m3, 2, 1 },
};

/* Recipes of combine. */
static const ncclEpCombQuant_t returns[] = {
	[ORACLE_COMBINE_NONE] = NCCL_EP_COMB_QUANT_NONE,
	[ORACLE_COMBINE_NVFP4] = NCCL_EP_COMB_QUANT_NVFP4,
	[ORACLE_COMBINE_FP8] = NCCL_EP_EXT_COMB_QUANT_FP8,
	[ORACLE_COMBINE_MXFP8] = NCCL_EP_COMB_QUANT_MXFP8,
};

/*
 * The aligning dispatch carries no token, but a rank with experts waits for the counts of every one
 * that sends.
 */
static void prepare_align(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->problem;
	struct perf_calls *c = &rank->calls;
	int by_rank = p->layout == ORACLE_RANK_MAJOR;
	size_t blocks = perf_blocks(p, rank->rank);

	c->align_in = NCCL_EP_DISPATCH_INPUTS_INIT;
	c->align_layout = NCCL_EP_LAYOUT_INFO_INIT;
	c->align_in.tokens =
		perf_tensor(&c->align_tokens, c->in_tokens.t.datatype, NULL, 2, 0, p->hidden, 0);
	perf_tensor(&c->align_ids, c->ids.t.datatype, NULL, 2, 0, p->topk, 0);
	if (by_rank) {
		c->align_in.topk_weights =
			perf_tensor(&c->align_weights, ncclFloat32, NULL, 2, 0, p->topk, 0);
	}
	if (p->quant == ORACLE_QUANT_FORWARD) {
		c->align_in.scales = perf_tensor(&c->align_scales, ncclFloat32, NULL, 2, 0,
						 oracle_scale_words(p), 0);
	} else if (p->quant == ORACLE_QUANT_NVFP4) {
		c->align_in.scales = &c->in_scales.t;
	}
	perf_tensor(&c->align_counts, ncclInt32, rank->buf.align_counts, 1, blocks, 0, 0);
	*(by_rank ? &c->align_layout.src_rank_counters : &c->align_layout.expert_counters) =
		&c->align_counts.t;
	c->align_config = c->dispatch_config;
	c->align_config.send_only = 0;
}

static void prepare_dispatch(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->problem;
	struct perf_calls *c = &rank->calls;
	struct perf_buffers *b = &rank->buf;
	int by_rank = p->layout == ORACLE_RANK_MAJOR;
	size_t blocks = perf_blocks(p, rank->rank);
	size_t rows = by_rank ? p->max_tokens : (size_t)p->max_tokens * oracle_senders(p);
	ncclDataType_t type = perf_float_type(p->dtype);
	ncclDataType_t in = p->quant == ORACLE_QUANT_FORWARD ? ncclFloat8e4m3 : type;

	c->dispatch_in = NCCL_EP_DISPATCH_INPUTS_INIT;
	c->dispatch_out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	c->layout = NCCL_EP_LAYOUT_INFO_INIT;
	c->dispatch_in.tokens =
		perf_tensor(&c->in_tokens, in, b->in_tokens, 2, rank->tokens, p->hidden, 0);
	c->dispatch_out.tokens =
		perf_tensor(&c->out_tokens, type, b->out_tokens, 3, blocks, rows, p->hidden);
	c->out_tokens.t.win_hdl = b->tokens_window;
	perf_tensor(&c->ids, rank->perf->opt.ids64 ? ncclInt64 : ncclInt32, b->ids, 2, rank->tokens,
		    p->topk, 0);
	perf_tensor(&c->weights, ncclFloat32, b->weights, 2, rank->tokens, p->topk, 0);
	perf_tensor(&c->counts, ncclInt32, b->counts, 1, blocks, 0, 0);
	*(by_rank ? &c->layout.src_rank_counters : &c->layout.expert_counters) = &c->counts.t;
	if (by_rank) {
		c->dispatch_in.topk_weights = &c->weights.t;
		c->dispatch_out.topk_weights = perf_tensor(
			&c->out_weights, ncclFloat32, b->out_weights, 3, blocks, rows, p->topk);
		c->dispatch_out.topk_idx =
			perf_tensor(&c->out_idx, ncclInt32, b->out_idx, 3, blocks, rows, p->topk);
	}
	if (p->quant != ORACLE_QUANT_NONE) {
		c->out_tokens.t.datatype = recipes[p->quant].tokens;
		c->out_tokens.sizes[2] = p->hidden / recipes[p->quant].per_byte;
		c->dispatch_out.scales = perf_tensor(
			&c->out_scales, recipes[p->quant].scales, b->out_scales, 3, blocks, rows,
			4 * oracle_scale_words(p) / recipes[p->quant].scale_size);
		c->out_scales.t.win_hdl = b->scales_window;
	}
	if (p->quant == ORACLE_QUANT_FORWARD) {
		c->dispatch_in.scales = perf_tensor(&c->in_scales, ncclFloat32, b->in_scales, 2,
						    rank->tokens, oracle_scale_words(p), 0);
	} else if (p->quant == ORACLE_QUANT_NVFP4) {
		c->dispatch_in.scales =
			perf_tensor(&c->in_scales, ncclFloat32, b->in_scales, 1, 1, 0, 0);
	}
	c->dispatch_config = NCCL_EP_DISPATCH_CONFIG_INIT;
	c->dispatch_config.send_only = (unsigned int)rank->perf->opt.staged;
	c->dispatch_config.round_scales = (unsigned int)p->pow2_scales;
	c->dispatch_config.quant_recipe = recipes[p->quant].recipe;
	if (p->quant == ORACLE_QUANT_FP8_COLUMNS) {
		c->dispatch_config.size = NCCL_EP_DISPATCH_CONFIG_V1_SIZE;
	}
}

/* ---- high throughput ---- */

/* The aligning combine carries no token, but waits until every rank has started it. */
static void ht_prepare_align(struct perf_rank *rank)
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

static void ht_prepare_dispatch(struct perf_rank *rank, size_t rows)
{
	const struct perf_options *opt = &rank->perf->opt;
	const struct oracle_problem *p = &rank->problem;
	struct perf_calls *c = &rank->calls;
	struct perf_buffers *b = &rank->buf;
	uint32_t scales = oracle_scale_words(p);
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

static void ht_prepare_combine(struct perf_rank *rank, size_t rows)
{
	const struct perf_options *opt = &rank->perf->opt;
	const struct oracle_problem *p = &rank->problem;
	struct perf_calls *c = &rank->calls;
	struct perf_buffers *b = &rank->buf;
	ncclDataType_t type = perf_float_type(p->dtype);

	c->combine_inputs = NCCL_EP_COMBINE_INPUTS_INIT;
	c->combine_outputs = NCCL_EP_COMBINE_OUTPUTS_INIT;
	c->combine_config = NCCL_EP_COMBINE_CONFIG_INIT;
	c->combine_config.quant_recipe = returns[p->combine_quant];
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

static void ht_prepare(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->problem;
	struct perf_calls *c = &rank->calls;
	struct perf_buffers *b = &rank->buf;
	size_t local = oracle_held(p, rank->rank);
	size_t rows = rank->ht.limit ? rank->ht.limit : rank->tables[rank->rank]->total;

	rows = local ? rows : 0;

	perf_tensor(&c->ids, rank->perf->opt.ids64 ? ncclInt64 : ncclInt32, b->ids, 2, rank->tokens,
		    p->topk, 0);
	c->layout = NCCL_EP_LAYOUT_INFO_INIT;
	c->layout.expert_counters = perf_tensor(&c->counts, ncclInt32, b->counts, 1, local, 0, 0);
	if (!rank->perf->opt.flat) {
		c->layout.expert_offsets =
			perf_tensor(&c->offsets, ncclInt32, b->offsets, 1, local, 0, 0);
	}
	c->layout.recv_total_counter = perf_tensor(&c->total, ncclInt32, b->total, 1, 1, 0, 0);
	ht_prepare_dispatch(rank, rows);
	ht_prepare_combine(rank, rows);
	ht_prepare_align(rank);
}

/* ---- both modes ---- */

void perf_calls_prepare(struct perf_rank *rank)
{
	const struct oracle_problem *p = &rank->problem;
	struct perf_calls *c = &rank->calls;
	ncclDataType_t type = perf_float_type(p->dtype);

	memset(c, 0, sizeof(*c));
	if (rank->perf->opt.ht) {
		ht_prepare(rank);
		return;
	}
	prepare_dispatch(rank);
	prepare_align(rank);
	c->combine_inputs = NCCL_EP_COMBINE_INPUTS_INIT;
	c->combine_outputs = NCCL_EP_COMBINE_OUTPUTS_INIT;
	c->combine_config = NCCL_EP_COMBINE_CONFIG_INIT;
	c->combine_config.send_only = (unsigned int)rank->perf->opt.staged;
	c->combine_config.quant_recipe = returns[p->combine_quant];
	if (p->combine_quant == ORACLE_COMBINE_NVFP4) {
		c->combine_inputs.scales =
			perf_tensor(&c->combine_scales, ncclFloat32, rank->buf.combine_scales, 3,
				    c->out_tokens.sizes[0], c->out_tokens.sizes[1], 1);
	}
	c->combine_inputs.tokens = perf_tensor(&c->combine_in, type, rank->buf.combine_in, 3,
					       c->out_tokens.sizes[0], c->out_tokens.sizes[1],
					       p->hidden);
	c->combine_outputs.tokens = perf_tensor(&c->combine_out, type, rank->buf.combine_out, 2,
						rank->tokens, p->hidden, 0);
	if (p->layout == ORACLE_EXPERT_MAJOR) {
		c->combine_outputs.topk_weights = &c->weights.t;
	}
}

void perf_set_problem(struct perf_rank *rank, uint64_t seed, uint32_t step)
{
	const struct perf_options *opt = &rank->perf->opt;
	char why[128];

	oracle_problem_free(&rank->problem);
	rank->problem.seed = seed;
	rank->problem.step = step;
	if (oracle_problem_prepare(&rank->problem, why, sizeof(why))) {
		perf_die(rank, "%s", why);
	}
	if (opt->ht) {
		perf_ht_load(rank);
		perf_calls_prepare(rank); /* in eager mode tensors have as many rows as come */
	}
}

void perf_step(struct perf_rank *rank, uint32_t iteration)
{
	const struct perf_options *opt = &rank->perf->opt;

	if (opt->steps == 1) {
		return;
	}
	rank->calls.ids.t.data =
		(char *)rank->buf.ids + iteration % opt->steps * rank->buf.step_bytes;
	if (!opt->ht) { /* of the host alone, and no part of what is timed */
		PERF_NCCL(rank, perf_update(rank));
	}
}

ncclResult_t perf_update(struct perf_rank *rank)
{
	return ncclEpUpdateHandle(rank->handle, &rank->calls.ids.t,
				  rank->perf->opt.ht ? &rank->calls.layout : NULL, rank->stream);
}

ncclResult_t perf_align_update(struct perf_rank *rank)
{
	return ncclEpUpdateHandle(rank->align, &rank->calls.align_ids.t, NULL, rank->stream);
}

static ncclResult_t complete(struct perf_rank *rank, ncclResult_t result)
{
	if (result != ncclSuccess || !rank->perf->opt.staged) {
		return result;
	}
	return ncclEpComplete(rank->handle, NULL, rank->stream);
}

ncclResult_t perf_dispatch(struct perf_rank *rank)
{
	struct perf_calls *c = &rank->calls;

	return complete(rank, ncclEpDispatch(rank->handle, &c->dispatch_in, &c->dispatch_out,
					     &c->layout, &c->dispatch_config, rank->stream));
}

ncclResult_t perf_combine(struct perf_rank *rank)
{
	struct perf_calls *c = &rank->calls;

	return complete(rank, ncclEpCombine(rank->handle, &c->combine_inputs, &c->combine_outputs,
					    &c->combine_config, rank->stream));
}

ncclResult_t perf_align(struct perf_rank *rank)
{
	struct perf_calls *c = &rank->calls;

	if (!rank->perf->opt.align) {
		return ncclSuccess;
	}
	if (rank->perf->opt.ht) { /* of no token; it fills nothing either */
		return ncclEpCombine(rank->align, &c->align_combine_in, &c->align_combine_out, NULL,
				     rank->stream);
	}
	return ncclEpDispatch(rank->align, &c->align_in, &c->dispatch_out, &c->align_layout,
			      &c->align_config, rank->stream);
}

ncclResult_t perf_operate(struct perf_rank *rank, enum perf_op op)
{
	return op == PERF_UPDATE     ? perf_update(rank)
	       : op == PERF_DISPATCH ? perf_dispatch(rank)
				     : perf_combine(rank);
}

cudaGraphExec_t perf_capture(struct perf_rank *rank, perf_enqueue_fn enqueue, void *context)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;

	PERF_CUDA(rank, cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
	PERF_NCCL(rank, enqueue(rank, context));
	PERF_CUDA(rank, cudaStreamEndCapture(rank->stream, &graph));
	PERF_CUDA(rank, cudaGraphInstantiate(&exec, graph, 0));
	PERF_CUDA(rank, cudaGraphDestroy(graph));
	return exec;
}
