// SPDX-License-Identifier: Apache-2.0
/* What a group takes, and whether it is possible: the library answers (ncclEpExtFeasible), so this is what creation does. */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_ep/ext.h"
#include "tools/ep_info.h"
#include "tools/ep_info_memory.h"
#include "tools/options.h"

#define NODE_RANKS 8u /* GPUs of a host, unless the command line says */

/* ---- the command line ---- */

static const char *option_name(int option)
{
	for (size_t i = 0; i < EP_INFO_OPTIONS; i++) {
		if (ep_info_options[i].id == option) {
			return ep_info_options[i].name;
		}
	}
	return "?";
}

static int refuse(int option, const char *text, const char *allowed)
{
	fprintf(stderr, "ep_info: --%s: got '%.40s', allowed is %s\n", option_name(option), text,
		allowed);
	return 2;
}

static int take_number(unsigned int *to, int option, const char *text)
{
	char *end;
	unsigned long n;

	errno = 0;
	n = strtoul(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno || n > 1ul << 30) {
		return refuse(option, text, "a number up to 1073741824");
	}
	*to = (unsigned int)n;
	return -1;
}

static int take_memory(double *to, const char *text)
{
	char *end;
	double gib = strtod(text, &end);

	if (end == text || *end || !(gib > 0) || gib > 1e6) {
		return refuse(EP_OPTION_GPU_MEMORY, text, "a number of GiB, up to 1000000");
	}
	*to = gib;
	return -1;
}

static int take_mode(bool *ht, const char *text)
{
	*ht = strcmp(text, "ht") == 0;
	return *ht || strcmp(text, "ll") == 0 ? -1 : refuse(EP_OPTION_MODE, text, "ll or ht");
}

static int take_layout(const char **to, const char *text)
{
	static const char *const words[] = { "em", "rm", "flat" };

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		if (strcmp(text, words[i]) == 0) {
			*to = words[i];
			return -1;
		}
	}
	return refuse(EP_OPTION_LAYOUT, text, "em, rm or flat");
}

int ep_info_shape_take(struct ep_info_shape *s, int option, const char *text)
{
	switch (option) {
	case EP_OPTION_EXPERTS:
		return take_number(&s->experts, option, text);
	case EP_OPTION_HIDDEN:
		return take_number(&s->hidden, option, text);
	case EP_OPTION_TOKENS:
		return take_number(&s->tokens, option, text);
	case EP_OPTION_RANKS:
		return take_number(&s->ranks, option, text);
	case EP_OPTION_TOPK:
		return take_number(&s->topk, option, text);
	case EP_OPTION_NODE_RANKS:
		return take_number(&s->node_ranks, option, text);
	case EP_OPTION_RECV_TOKENS:
		return take_number(&s->recv_tokens, option, text);
	case EP_OPTION_GPU_MEMORY:
		return take_memory(&s->gpu_memory, text);
	case EP_OPTION_MODE:
		return take_mode(&s->ht, text);
	case EP_OPTION_LAYOUT:
		return take_layout(&s->layout, text);
	default:
		s->fp8 = true;
		return -1;
	}
}

/* What has no default. */
static int check(const struct ep_info_shape *s)
{
	const struct {
		unsigned int value;
		int option;
	} needed[] = {
		{ s->experts, EP_OPTION_EXPERTS },
		{ s->hidden, EP_OPTION_HIDDEN },
		{ s->tokens, EP_OPTION_TOKENS },
		{ s->ranks, EP_OPTION_RANKS },
	};

	for (size_t i = 0; i < sizeof(needed) / sizeof(*needed); i++) {
		if (!needed[i].value) {
			fprintf(stderr, "ep_info: --memory needs --%s\n",
				option_name(needed[i].option));
			return 2;
		}
	}
	return -1;
}

/* ---- the library ---- */

struct calls {
	ncclResult_t (*feasible)(const ncclEpGroupConfig_t *, int, ncclEpExtShape_t *);
	ncclResult_t (*last_error)(ncclEpGroup_t, ncclResult_t *, const char **);
};

static bool find_calls(struct calls *c)
{
	char why[EP_INFO_WHY];
	void *lib = ep_info_library(why);

	if (!lib) {
		fprintf(stderr, "ep_info: libnccl_ep.so.0: %s\n", why);
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

static const char *layout_of(const struct ep_info_shape *s)
{
	return s->layout ? s->layout : s->ht ? "flat" : "em";
}

static unsigned int node_ranks_of(const struct ep_info_shape *s)
{
	unsigned int n = s->node_ranks ? s->node_ranks : NODE_RANKS;

	return n < s->ranks ? n : s->ranks;
}

static ncclEpGroupConfig_t make_config(const struct ep_info_shape *s)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

	config.algorithm = s->ht ? NCCL_EP_ALGO_HIGH_THROUGHPUT : NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = s->experts;
	config.max_dispatch_tokens_per_rank = s->tokens;
	config.max_recv_tokens_per_rank = s->recv_tokens;
	config.max_token_bytes = s->hidden <= UINT32_MAX / 2 ? 2 * s->hidden : UINT32_MAX;
	config.num_topk = s->topk;
	return config;
}

static ncclEpExtShape_t make_shape(const struct ep_info_shape *s)
{
	ncclEpExtShape_t shape = NCCL_EP_EXT_SHAPE_INIT;
	const char *layout = layout_of(s);

	shape.layout = strcmp(layout, "em") == 0   ? NCCL_EP_LAYOUT_EXPERT_MAJOR
		       : strcmp(layout, "rm") == 0 ? NCCL_EP_LAYOUT_RANK_MAJOR
						   : NCCL_EP_LAYOUT_FLAT;
	shape.num_topk = (int)s->topk;
	shape.hidden = s->hidden;
	shape.datatype = ncclBfloat16;
	shape.quant_recipe = s->fp8 ? NCCL_EP_DISP_QUANT_DS_FP8E3M4 : NCCL_EP_DISP_QUANT_NONE;
	shape.node_ranks = node_ranks_of(s);
	shape.remote_ranks = s->ranks - shape.node_ranks;
	if (s->ranks % shape.node_ranks) { /* those of the last node have the most */
		shape.remote_ranks = s->ranks - s->ranks % shape.node_ranks;
	}
	shape.memory_bytes = (uint64_t)(s->gpu_memory * 0x1p30);
	return shape;
}

/* ---- output ---- */

static void print_line(const char *what, uint64_t bytes, const char *note)
{
	printf("  %-22s %10.1f MiB%s\n", what, (double)bytes / 0x1p20, note);
}

static void print_text(const struct ep_info_shape *s, const ncclEpExtShape_t *need, const char *why)
{
	char rows[80];

	printf("%s, %u experts, %u tokens of %u x bf16%s, top-%u, %s, %u ranks in nodes of %u\n",
	       s->ht ? "high throughput" : "low latency", s->experts, s->tokens, s->hidden,
	       s->fp8 ? " (FP8 on the way)" : "", s->topk, layout_of(s), s->ranks,
	       node_ranks_of(s));
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

static void print_json(const struct ep_info_shape *s, const ncclEpExtShape_t *need, const char *why)
{
	printf("{\"schema\":1,\"mode\":\"%s\",\"layout\":\"%s\",\"experts\":%u,\"hidden\":%u,"
	       "\"tokens\":%u,\"topk\":%u,\"ranks\":%u,\"node_ranks\":%u,\"possible\":%s",
	       s->ht ? "ht" : "ll", layout_of(s), s->experts, s->hidden, s->tokens, s->topk,
	       s->ranks, node_ranks_of(s), why ? "false" : "true");
	if (why) {
		fputs(",\"reason\":\"", stdout);
		for (; *why; why++) { /* printable ASCII */
			printf(*why == '"' || *why == '\\' ? "\\%c" : "%c", *why);
		}
		puts("\"}");
		return;
	}
	printf(",\"group_bytes\":%" PRIu64 ",\"heap_bytes\":%" PRIu64 ",\"handle_bytes\":%" PRIu64
	       ",\"tensor_bytes\":%" PRIu64 ",\"output_bytes\":%" PRIu64 ",\"rows\":%" PRIu64 "}\n",
	       need->group_bytes, need->heap_bytes, need->handle_bytes, need->tensor_bytes,
	       need->output_bytes, need->rows);
}

int ep_info_memory(const struct ep_info_shape *s, bool json)
{
	int status = check(s);
	ncclEpGroupConfig_t config;
	ncclEpExtShape_t shape;
	const char *why = NULL;
	struct calls calls;

	if (status >= 0) {
		return status;
	}
	if (!find_calls(&calls)) {
		return 1;
	}
	config = make_config(s);
	shape = make_shape(s);
	if (calls.feasible(&config, (int)s->ranks, &shape) != ncclSuccess) {
		why = "";
		(void)calls.last_error(NULL, NULL, &why);
	}
	(json ? print_json : print_text)(s, &shape, why);
	return fflush(stdout) || ferror(stdout) || why ? 1 : 0;
}
