/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what a group takes, and whether it is possible: the library answers (ncclEpExtFeasible),
 * so this is what creation does.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_ep/ext.h"
#include "tools/ep_info.h"
#include "topo/json.h"

#define NODE_RANKS 8u /* GPUs of a host, unless the command line has it */

/* The values of --quant. */
static const struct {
	const char *name;
	ncclEpDispQuant_t recipe;
} recipes[] = {
	{ "none", NCCL_EP_DISP_QUANT_NONE },
	{ "fp8", NCCL_EP_DISP_QUANT_DS_FP8E3M4 },
	{ "mxfp8", NCCL_EP_EXT_DISP_QUANT_MXFP8 },
	{ "nvfp4", NCCL_EP_EXT_DISP_QUANT_NVFP4 },
};

static int refuse(const char *option, const char *text, const char *allowed)
{
	fprintf(stderr, "ep_info: %s: got '%s', allowed is %s\n", option, text, allowed);
	return 2;
}

/* The layout's name as an option. */
static const char *layout_of(const struct ep_info_shape *shape)
{
	static const char *const names[] = { "em", "rm", "flat" };

	return shape->layout >= 0 ? names[shape->layout] : shape->ht ? "flat" : "em";
}

/* Reads a range of ranks; the library checks the numbers. */
static int read_range(const char *option, const char *text, unsigned int *first, unsigned int *n)
{
	if (text && !ep_options_range(text, first, n)) {
		return refuse(option, text, "the first rank and how many, FIRST:N");
	}
	return -1;
}

static int read_roles(const struct ep_info_shape *shape, ncclEpExtRoles_t *roles)
{
	int status =
		read_range("--holders", shape->holders, &roles->first_holder, &roles->num_holders);

	return status >= 0 ? status
			   : read_range("--senders", shape->senders, &roles->first_sender,
					&roles->num_senders);
}

/* Checks the options that have no default, and those that one mode has and the other has not. */
static int check(const struct ep_info_shape *shape)
{
	const struct {
		uint32_t value;
		const char *option;
	} needed[] = {
		{ shape->experts, "experts" },
		{ shape->hidden, "hidden" },
		{ shape->tokens, "tokens" },
		{ shape->ranks, "ranks" },
	};

	for (size_t i = 0; i < sizeof(needed) / sizeof(*needed); i++) {
		if (!needed[i].value) {
			fprintf(stderr, "ep_info: --memory needs --%s\n", needed[i].option);
			return 2;
		}
	}
	if (strcmp(layout_of(shape), shape->ht ? "rm" : "flat") == 0) {
		return refuse("--layout", layout_of(shape),
			      "em or rm with --mode ll, em or flat with --mode ht");
	}
	if (shape->quant && shape->ht) {
		return refuse("--quant", recipes[shape->quant].name, "none with --mode ht");
	}
	if (shape->recv_tokens && !shape->ht) {
		return refuse("--recv-tokens", "--mode ll", "--mode ht");
	}
	return -1;
}

/* Writes the library's reason with options in place of its fields. */
static void put_options(char *to, size_t room, const char *why)
{
	static const struct {
		const char *field, *option; /* a field before one that it ends with */
	} names[] = {
		{ "config->num_experts", "--experts" },
		{ "config->num_topk", "--topk" },
		{ "num_topk", "--topk" },
		{ "config->max_dispatch_tokens_per_rank", "--tokens" },
		{ "max_dispatch_tokens_per_rank", "--tokens" },
		{ "config->max_recv_tokens_per_rank", "--recv-tokens" },
		{ "max_recv_tokens_per_rank", "--recv-tokens" },
		{ "NCCL_EP_AUTO", "0" },
		{ "a group of", "--ranks:" },
		{ "inputs->tokens", "--hidden" },
		{ "roles->first_holder", "--holders: the first rank" },
		{ "roles->first_sender", "--senders: the first rank" },
		{ "roles:", "--holders, --senders:" },
		{ "shape->memory_bytes", "--gpu-memory in bytes" },
	};
	size_t at = 0;

	while (*why && at + 1 < room) {
		const char *text = NULL;

		for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !text; i++) {
			if (strncmp(why, names[i].field, strlen(names[i].field)) == 0) {
				text = names[i].option;
				why += strlen(names[i].field);
			}
		}
		at += (size_t)(text ? snprintf(to + at, room - at, "%s", text)
				    : snprintf(to + at, room - at, "%c", *why++));
	}
}

/* ---- the library ---- */

struct calls {
	ncclResult_t (*feasible)(const ncclEpGroupConfig_t *, int, ncclEpExtShape_t *);
	ncclResult_t (*last_error)(ncclEpGroup_t, ncclResult_t *, const char **);
};

static bool find_calls(struct calls *c)
{
	struct ep_reason why;
	void *lib = ep_info_library(&why);

	if (!lib) {
		fprintf(stderr, "ep_info: %s: name its directory in LD_LIBRARY_PATH\n", why.text);
		return false;
	}
	*(void **)&c->feasible = dlsym(lib, "ncclEpExtFeasible");
	*(void **)&c->last_error = dlsym(lib, "ncclEpExtGetLastError");
	if (!c->feasible || !c->last_error) {
		fputs("ep_info: the libnccl_ep.so.0 that is found is not Switchyard, or older than "
		      "ep_info\n",
		      stderr);
		return false;
	}
	return true;
}

static unsigned int node_ranks_of(const struct ep_info_shape *shape)
{
	unsigned int n = shape->node_ranks ? shape->node_ranks : NODE_RANKS;

	return n < shape->ranks ? n : shape->ranks;
}

static ncclEpGroupConfig_t make_config(const struct ep_info_shape *shape)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

	config.algorithm = shape->ht ? NCCL_EP_ALGO_HIGH_THROUGHPUT : NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = shape->experts;
	config.max_dispatch_tokens_per_rank = shape->tokens;
	config.max_recv_tokens_per_rank = shape->recv_tokens;
	config.max_token_bytes = shape->hidden <= UINT32_MAX / 2 ? 2 * shape->hidden : UINT32_MAX;
	config.num_topk = shape->topk;
	return config;
}

static ncclEpExtShape_t make_shape(const struct ep_info_shape *asked)
{
	ncclEpExtShape_t shape = NCCL_EP_EXT_SHAPE_INIT;
	const char *layout = layout_of(asked);

	shape.layout = strcmp(layout, "em") == 0   ? NCCL_EP_LAYOUT_EXPERT_MAJOR
		       : strcmp(layout, "rm") == 0 ? NCCL_EP_LAYOUT_RANK_MAJOR
						   : NCCL_EP_LAYOUT_FLAT;
	shape.num_topk = (int)asked->topk;
	shape.hidden = asked->hidden;
	shape.datatype = ncclBfloat16;
	shape.quant_recipe = recipes[asked->quant].recipe;
	shape.node_ranks = node_ranks_of(asked);
	shape.remote_ranks = asked->ranks - shape.node_ranks;
	if (asked->ranks % shape.node_ranks) { /* those of the last node have the most */
		shape.remote_ranks = asked->ranks - asked->ranks % shape.node_ranks;
	}
	shape.memory_bytes = (uint64_t)(asked->gpu_memory * 0x1p30);
	return shape;
}

/* ---- output ---- */

static void print_line(const char *what, uint64_t bytes, const char *note)
{
	printf("  %-22s %10.1f MiB%s\n", what, (double)bytes / 0x1p20, note);
}

static void print_text(const struct ep_info_shape *shape, const ncclEpExtShape_t *need,
		       const char *why)
{
	char rows[80];

	printf("%s, %u experts, %u tokens of %u x bf16%s%s, top-%u, %s, %u ranks in nodes of %u\n",
	       shape->ht ? "high throughput" : "low latency", shape->experts, shape->tokens,
	       shape->hidden, shape->quant ? ", received as " : "",
	       shape->quant ? recipes[shape->quant].name : "", shape->topk, layout_of(shape),
	       shape->ranks, node_ranks_of(shape));
	if (shape->holders || shape->senders) {
		printf("  experts on ranks %s, tokens from ranks %s (first:number)\n",
		       shape->holders ? shape->holders : "all",
		       shape->senders ? shape->senders : "all");
	}
	if (why) {
		printf("  not possible: %s\n", why);
		return;
	}
	snprintf(rows, sizeof(rows), ", room for %" PRIu64 " rows", need->rows);
	print_line("group", need->group_bytes, "");
	print_line("  written by peers", need->heap_bytes, "");
	print_line("each handle", need->handle_bytes, "");
	print_line("your tensors", need->tensor_bytes, "");
	print_line("  received tokens", need->output_bytes, rows);
	print_line("all", need->group_bytes + need->handle_bytes + need->tensor_bytes, "");
	puts("  possible, as far as it does not depend on the GPU");
}

static void print_json(const struct ep_info_shape *shape, const ncclEpExtShape_t *need,
		       const char *why)
{
	struct ep_json json = { .out = stdout };

	ep_json_open(&json, NULL, '{');
	ep_json_print(&json, "schema", "1");
	ep_json_text(&json, "mode", shape->ht ? "ht" : "ll");
	ep_json_text(&json, "layout", layout_of(shape));
	ep_json_print(&json, "experts", "%u", shape->experts);
	ep_json_print(&json, "hidden", "%u", shape->hidden);
	ep_json_print(&json, "tokens", "%u", shape->tokens);
	ep_json_print(&json, "topk", "%u", shape->topk);
	ep_json_print(&json, "ranks", "%u", shape->ranks);
	ep_json_print(&json, "node_ranks", "%u", node_ranks_of(shape));
	if (shape->holders) {
		ep_json_text(&json, "holders", shape->holders);
	}
	if (shape->senders) {
		ep_json_text(&json, "senders", shape->senders);
	}
	ep_json_bool(&json, "possible", !why);
	if (why) {
		ep_json_text(&json, "reason", why);
	} else {
		ep_json_print(&json, "group_bytes", "%" PRIu64, need->group_bytes);
		ep_json_print(&json, "heap_bytes", "%" PRIu64, need->heap_bytes);
		ep_json_print(&json, "handle_bytes", "%" PRIu64, need->handle_bytes);
		ep_json_print(&json, "tensor_bytes", "%" PRIu64, need->tensor_bytes);
		ep_json_print(&json, "output_bytes", "%" PRIu64, need->output_bytes);
		ep_json_print(&json, "rows", "%" PRIu64, need->rows);
	}
	ep_json_close(&json, '}');
	putchar('\n');
}

int ep_info_memory(const struct ep_info_shape *asked, bool json)
{
	ncclEpExtRoles_t roles = NCCL_EP_EXT_ROLES_INIT;
	int status = check(asked);
	ncclEpGroupConfig_t config;
	ncclEpExtShape_t shape;
	const char *why = NULL;
	char text[1024] = "";
	struct calls calls;

	if (status < 0) {
		status = read_roles(asked, &roles);
	}
	if (status >= 0) {
		return status;
	}
	if (!find_calls(&calls)) {
		return 1;
	}
	config = make_config(asked);
	shape = make_shape(asked);
	shape.roles = &roles;
	if (calls.feasible(&config, (int)asked->ranks, &shape) != ncclSuccess) {
		why = "";
		(void)calls.last_error(NULL, NULL, &why);
		put_options(text, sizeof(text), why);
		why = text;
	}
	(json ? print_json : print_text)(asked, &shape, why);
	return why ? 1 : 0;
}
