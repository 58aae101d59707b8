/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of mistakes. A list is a macro with a line M(name, statements, result, part) per mistake:
 * the statements spoil the right arguments of a call in `c`, and the call must be refused with
 * `result` and a reason that contains `part`. MISTAKES makes a table of a list.
 */
#ifndef TEST_PROTO_MISTAKE_H
#define TEST_PROTO_MISTAKE_H

#include "support/bench.h"
#include "support/watch.h"

#define IA ncclInvalidArgument
#define IU ncclInvalidUsage

struct call; /* the test's */

struct mistake {
	const char *name;
	void (*spoil)(struct call *c);
	ncclResult_t want;
	const char *part;
};

#define MISTAKE_SPOIL(name_, code_, want_, part_)                                                  \
	static void name_(struct call *c)                                                          \
	{                                                                                          \
		code_;                                                                             \
	}
#define MISTAKE_ROW(name_, code_, want_, part_) { #name_, name_, want_, part_ },
#define MISTAKES(table_, list_)                                                                    \
	list_(MISTAKE_SPOIL) static const struct mistake table_[] = { list_(MISTAKE_ROW) };

/*
 * What low latency and high throughput refuse alike, of calls whose tensors have these names in
 * both tests.
 */
#define SAME_DISPATCH(M)                                                                           \
	M(in_size, c->in.size = NCCL_EP_DISPATCH_INPUTS_V1_SIZE - 1, IA, "inputs")                 \
	M(out_magic, c->out.magic = 0, IA, "outputs")                                              \
	M(config_size, c->config.size = NCCL_EP_DISPATCH_CONFIG_V1_SIZE - 1, IA, "config")         \
	M(recipe, c->config.quant_recipe = (ncclEpDispQuant_t)77, IA, "quant_recipe")              \
	M(no_tokens, c->in.tokens = NULL, IA, "inputs->tokens")                                    \
	M(no_out_tokens, c->out.tokens = NULL, IA, "outputs->tokens")                              \
	M(token_ndim, c->t[IT].t.ndim = 3, IA, "inputs->tokens")                                   \
	M(token_no_data, c->t[IT].t.data = NULL, IA, "inputs->tokens")                             \
	M(token_type, c->t[IT].t.datatype = ncclInt32, IA, "inputs->tokens")                       \
	M(token_align, c->t[IT].t.data = (char *)c->t[IT].t.data + 8, IA, "inputs->tokens")        \
	M(out_align, c->t[OT].t.data = (char *)c->t[OT].t.data + 4, IA, "outputs->tokens")         \
	M(out_no_data, c->t[OT].t.data = NULL, IA, "outputs->tokens: neither data nor a window")   \
	M(out_type, c->t[OT].t.datatype = ncclFloat32, IA, "outputs->tokens")                      \
	M(id_kind, c->info.recv_topk_idx_kind = (ncclEpExpertIdKind_t)3, IA, "recv_topk_idx_kind")

/* The tensor is in some window, at a place where rows of 16 bytes do not begin. */
#define OFF_BY_8(tensor_)                                                                          \
	c->t[tensor_].t.win_hdl = (ncclWindow_t)c->handle;                                         \
	c->t[tensor_].t.win_offset = 8

#define SAME_FORWARD(M)                                                                            \
	M(fwd_no_in, c->in.scales = NULL, IA, "inputs->scales")                                    \
	M(fwd_no_out, c->out.scales = NULL, IA, "outputs->scales")                                 \
	M(fwd_round, c->config.round_scales = 1, IA, "round_scales")                               \
	M(fwd_uint8, c->t[IT].t.datatype = ncclUint8;                                              \
	  c->t[OT].t.datatype = ncclUint8, IA, "uint8")                                            \
	M(fwd_scale_type, c->t[IS].t.datatype = ncclInt32;                                         \
	  c->t[OS].t.datatype = ncclInt32, IA, "scales")                                           \
	M(fwd_scale_tokens, c->t[IS].sizes[0]++, IA, "inputs->scales: sizes[0] is")                \
	M(fwd_scale_ndim, c->t[IS].t.ndim = 1, IA, "inputs->scales")                               \
	M(fwd_out_scale_ndim, c->t[OS].t.ndim = 4, IA, "outputs->scales")                          \
	M(fwd_out_scale_align, c->t[OS].t.data = (char *)c->t[OS].t.data + 8, IA,                  \
	  "outputs->scales: address")                                                              \
	M(fwd_offset_tokens, OFF_BY_8(IT), IA, "inputs->tokens: win_offset 8")                     \
	M(fwd_offset_out, OFF_BY_8(OT), IA, "outputs->tokens: win_offset 8")                       \
	M(fwd_offset_scales, OFF_BY_8(IS), IA, "inputs->scales: win_offset 8")                     \
	M(fwd_offset_out_scales, OFF_BY_8(OS), IA, "outputs->scales: win_offset 8")

#define SAME_COMBINE(M)                                                                            \
	M(cin_size, c->cin.size = NCCL_EP_COMBINE_INPUTS_V1_SIZE - 1, IA, "inputs")                \
	M(cout_magic, c->cout.magic = 0, IA, "outputs")                                            \
	M(cconfig_magic, c->cconfig.magic = 0, IA, "config")                                       \
	M(crecipe, c->cconfig.quant_recipe = (ncclEpCombQuant_t)3, IA, "quant_recipe is 3")        \
	M(cscales, c->cin.scales = &c->t[IW].t, IA, "inputs->scales")                              \
	M(cno_tokens, c->cin.tokens = NULL, IA, "inputs->tokens")                                  \
	M(ctype, c->t[CI].t.datatype = ncclFloat8e4m3;                                             \
	  c->t[CT].t.datatype = ncclFloat8e4m3, IA, "inputs->tokens")                              \
	M(calign, c->t[CI].t.data = (char *)c->t[CI].t.data + 8, IA, "inputs->tokens")             \
	M(cno_out, c->cout.tokens = NULL, IA, "outputs->tokens")                                   \
	M(cout_align, c->t[CT].t.data = (char *)c->t[CT].t.data + 8, IA, "outputs->tokens")        \
	M(cout_type, c->t[CT].t.datatype = ncclFloat32, IA, "outputs->tokens")

#define MISTAKE_COUNT(table_) (sizeof(table_) / sizeof(table_[0]))

#endif
