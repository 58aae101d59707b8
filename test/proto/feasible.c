/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ncclEpExtFeasible answers before there is anything, compared with what a group, a handle and
 * their calls then take, accept and refuse.
 */
#include "ep/ep.h"
#include "support/bench.h"
#include "support/ht_bench.h"
#include "support/watch.h"

#define UNTOUCHED 77u

static unsigned int remote_ranks(int nranks)
{
	uint32_t node[WORLD_MAX], most = 0;

	world_nodes_of(node, (uint32_t)nranks);
	for (int r = 0; r < nranks; r++) {
		uint32_t others = 0;

		for (int other = 0; other < nranks; other++) {
			others += node[other] != node[r];
		}
		most = others > most ? others : most;
	}
	return most;
}

static ncclEpExtShape_t shape_of(const struct oracle_problem *p, ncclEpLayout_t layout)
{
	ncclEpExtShape_t s = NCCL_EP_EXT_SHAPE_INIT;

	s.layout = layout;
	s.num_topk = (int)p->topk;
	s.hidden = p->hidden;
	s.datatype = ncclBfloat16;
	s.quant_recipe = p->quant == ORACLE_QUANT_FP8     ? NCCL_EP_DISP_QUANT_DS_FP8E3M4
			 : p->quant == ORACLE_QUANT_MXFP8 ? NCCL_EP_EXT_DISP_QUANT_MXFP8
			 : p->quant == ORACLE_QUANT_NVFP4 ? NCCL_EP_EXT_DISP_QUANT_NVFP4
							  : NCCL_EP_DISP_QUANT_NONE;
	s.remote_ranks = remote_ranks((int)p->nranks);
	return s;
}

/* Low latency: bytes of the group and its handle, and a dispatch into tensors of that many rows. */
static void low_latency(struct world *w, enum oracle_layout layout, enum oracle_quant quant)
{
	struct oracle_problem p = bench_problem(w->nranks, 48, 4, 256, 20, layout);
	ncclEpExtShape_t s;
	ncclEpGroupConfig_t config;
	struct bench b;
	uint64_t row = 2 * p.hidden, out;

	p.quant = quant;
	out = quant == ORACLE_QUANT_NONE    ? row
	      : quant == ORACLE_QUANT_NVFP4 ? p.hidden / 2 + p.hidden / 16
					    : p.hidden + p.hidden / 32;
	check_context("low latency, layout %d, quant %d", (int)layout, (int)quant);
	s = shape_of(&p, (ncclEpLayout_t)layout);
	config = bench_group_config(&p, 0);
	OK(ncclEpExtFeasible(&config, w->nranks, &s));
	bench_open(&b, w, bench_group(w, &p, 0), &p, 0);
	CHECK_INT(s.heap_bytes, b.group->peer_heap.bytes);
	CHECK_INT(s.handle_bytes, b.handle->mem_bytes);
	CHECK_INT(s.rows, b.handle->received.extent[0] * b.handle->received.extent[1]);
	CHECK_INT(s.rows, (uint64_t)b.blocks * b.rows);
	CHECK_INT(s.output_bytes, s.rows * out);
	CHECK_INT(s.tensor_bytes, s.rows * (out + row) + 20 * 2 * row);
	bench_pair(&b);
	bench_end(&b);
}

/* To the byte, of the device: what is announced is taken, a handle's memory too. */
static void all_bytes(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 48, 4, 256, 20, ORACLE_EXPERT_MAJOR);
	ncclEpExtShape_t s = shape_of(&p, NCCL_EP_LAYOUT_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	uint64_t before;

	check_context("all bytes");
	OK(ncclEpExtFeasible(&config, w->nranks, &s));
	watch_start();
	before = watch_bytes();
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	CHECK_INT(watch_bytes() - before, s.group_bytes);
	NEED_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, (int)p.topk,
				 NULL));
	CHECK_INT(watch_bytes() - before, s.group_bytes + s.handle_bytes);
	OK(ncclEpHandleDestroy(handle));
	OK(ncclEpGroupDestroy(group));
}

/* High throughput: the same, and one row less is refused where tensors must hold whatever comes. */
static void high_throughput(struct world *w, bool em, bool eager)
{
	struct oracle_ht h = { .expert_major = em, .alignment = em ? 8 : 0 };
	ncclEpExtShape_t s;
	ncclEpGroupConfig_t config;
	struct ht_bench b;

	h.p = (struct oracle_problem){ .seed = 11,
				       .nranks = (uint32_t)w->nranks,
				       .experts = 48,
				       .topk = 4,
				       .hidden = 256,
				       .tokens = 20,
				       .max_tokens = 20,
				       .dtype = ORACLE_BF16 };
	h.limit = eager ? 0 : (uint32_t)w->nranks * 100;
	check_context("high throughput, %s, %s", em ? "expert-major" : "flat",
		      eager ? "as many as come" : "with a limit");
	s = shape_of(&h.p, em ? NCCL_EP_LAYOUT_EXPERT_MAJOR : NCCL_EP_LAYOUT_FLAT);
	s.alignment = h.alignment;
	config = ht_group_config(&h, 0);
	OK(ncclEpExtFeasible(&config, w->nranks, &s));
	CHECK_INT(s.rows, ht_most_rows(&h));
	ht_open(&b, w, ht_group(w, &h, 0, 60000), &h, 0);
	CHECK_INT(s.heap_bytes, b.group->peer_heap.bytes);
	CHECK_INT(s.handle_bytes, b.handle->mem_bytes);
	ht_step(&b);
	ht_end(&b);
}

struct refusal {
	unsigned int experts, tokens, topk, hidden;
	bool fp8;
};

/* What the calls themselves say, in the order in which a program makes them; "": nothing. */
static ncclResult_t real(struct world *w, const struct refusal *c, ncclEpGroupConfig_t *config,
			 char text[512])
{
	ncclResult_t result = ncclSuccess;
	ncclEpHandle_t handle = NULL;
	ncclEpGroup_t group = NULL;
	const char *last = "";

	OK(ncclEpExtGetLastError(NULL, NULL, &last));
	result = ncclEpCreateGroup(&group, w->comm, config);
	if (result == ncclSuccess) {
		result = ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL,
					  (int)c->topk, NULL);
	}
	if (result != ncclSuccess) {
		OK(ncclEpExtGetLastError(NULL, NULL, &last));
		snprintf(text, 512, "%s", last);
	}
	OK(ncclEpHandleDestroy(handle));
	OK(ncclEpGroupDestroy(group));
	return result;
}

/* What is not possible is refused with the words of the call that refuses it later. */
static void refusals(struct world *w)
{
	static const struct refusal cases[] = {
		{ 50, 20, 4, 256, false },                                 /* experts */
		{ 48, 0, 4, 256, false },                                  /* tokens */
		{ 48, 20, 0, 256, false },                                 /* top-k: of a handle */
		{ 48, 20, 33, 256, false }, { 48, 100000, 4, 256, false }, /* selections */
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const struct refusal *c = &cases[i];
		ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
		ncclEpExtShape_t s = NCCL_EP_EXT_SHAPE_INIT;
		ncclResult_t mine, theirs;
		char text[512] = "";
		const char *last = "";

		check_context("refusal %zu", i);
		config.num_experts = c->experts;
		config.max_dispatch_tokens_per_rank = c->tokens;
		config.max_token_bytes = 2 * c->hidden;
		s.layout = NCCL_EP_LAYOUT_EXPERT_MAJOR;
		s.num_topk = (int)c->topk;
		s.hidden = c->hidden;
		s.datatype = ncclBfloat16;
		s.rows = UNTOUCHED;
		theirs = real(w, c, &config, text);
		mine = ncclEpExtFeasible(&config, w->nranks, &s);
		CHECK(mine != ncclSuccess);
		CHECK_INT(mine, theirs);
		OK(ncclEpExtGetLastError(NULL, NULL, &last));
		CHECK_TEXT(last, text);
		CHECK_INT(s.rows, UNTOUCHED);
	}
}

/* What a dispatch and a combine would refuse. */
static void rows(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 48, 4, 256, 20, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpExtShape_t good = shape_of(&p, NCCL_EP_LAYOUT_EXPERT_MAJOR), s = good;

	check_context("rows");
	s.hidden = 252;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &s), ncclInvalidArgument,
		     "inputs->tokens: rows of 252 bf16, 2 bytes each");
	s = good;
	s.hidden = 320;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &s), ncclInvalidArgument,
		     "a row takes 640 bytes, the group's max_token_bytes is 512");
	s = good;
	s.hidden = 192;
	s.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &s), ncclInvalidArgument,
		     "a multiple of 128 elements per token, not 192");
	s = good;
	s.datatype = ncclFloat64;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &s), ncclInvalidArgument,
		     "inputs->tokens is ");
	s = good;
	s.datatype =
		/* comes back as bf16, which fits; and fp4 of twice as many does not */
		ncclFloat8e4m3;
	OK(ncclEpExtFeasible(&config, w->nranks, &s));
	s = good;
	s.datatype = ncclFloat8e4m3;
	s.hidden = 512;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &s), ncclInvalidArgument,
		     "a row takes 1024 bytes, the group's max_token_bytes is 512");
	s = good;
	s.quant_recipe = NCCL_EP_DISP_QUANT_FWD;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &s), ncclInvalidArgument, "is FWD");
	s = good;
	s.quant_recipe = (ncclEpDispQuant_t)3;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &s), ncclInvalidArgument,
		     "config->quant_recipe is 3");
	s = good;
	s.layout = NCCL_EP_LAYOUT_UNSET;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &s), ncclInvalidArgument,
		     "shape->layout is not set");
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, NULL), ncclInvalidArgument,
		     "shape is NULL");
	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	s = good;
	s.layout = NCCL_EP_LAYOUT_FLAT;
	s.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &s), ncclInvalidArgument,
		     "high throughput mode does not have the recipe");
}

/* A limit of the GPU's memory: exactly enough is enough. */
static void limit(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 48, 4, 256, 20, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpExtShape_t s = shape_of(&p, NCCL_EP_LAYOUT_EXPERT_MAJOR);

	check_context("limit");
	OK(ncclEpExtFeasible(&config, w->nranks, &s));
	s.memory_bytes = s.group_bytes + s.handle_bytes + s.tensor_bytes;
	OK(ncclEpExtFeasible(&config, w->nranks, &s));
	s.memory_bytes--;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &s), ncclInvalidUsage,
		     "bytes of device memory are needed");
}

static void run(struct world *w, void *arg)
{
	static const enum oracle_quant quants[] = { ORACLE_QUANT_NONE, ORACLE_QUANT_FP8,
						    ORACLE_QUANT_MXFP8, ORACLE_QUANT_NVFP4 };

	for (int i = 0; i < 8; i++) {
		low_latency(w, i % 2 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR, quants[i / 2]);
	}
	for (int i = 0; i < 4; i++) {
		high_throughput(w, i % 2, i / 2);
	}
	all_bytes(w);
	refusals(w);
	rows(w);
	limit(w);
}

int main(void)
{
	world_run(world_size(3), run, NULL);
	return check_end();
}
