/* SPDX-License-Identifier: Apache-2.0 */
/* The options of ep_info and ep_topo, apart from both, since completions are made from them. */
#include "tools/option_tables.h"

#define AT(member) offsetof(struct ep_info_request, member)
#define MOST (1 << 30)

static const struct ep_option info[] = {
	{ 'v', "versions", NULL, NULL,
	  "the library, NCCL, CUDA, and the GPU architectures compiled in", EP_OPTION_FLAG,
	  AT(versions), 0, 0, NULL },
	{ 'd', "devices", NULL, NULL, "GPUs and the NICs they use, as ep_topo prints them",
	  EP_OPTION_FLAG, AT(devices), 0, 0, NULL },
	{ 'p', "params", NULL, NULL, "each variable, its value and where that comes from",
	  EP_OPTION_FLAG, AT(params), 0, 0, NULL },
	{ 'r', "rdma", NULL, NULL, "whether GPUs can reach the network from here, how, and why not",
	  EP_OPTION_FLAG, AT(rdma), 0, 0, NULL },
	{ 'n', "net", NULL, NULL,
	  "counters of the network plugin's connections, of processes with NCCL_EP_NET_COUNTS=1",
	  EP_OPTION_FLAG, AT(net), 0, 0, NULL },
	{ 'q', "queues", NULL, NULL,
	  "makes a queue pair on each RDMA port as the library does, connects it with itself and destroys it",
	  EP_OPTION_FLAG, AT(queues), 0, 0, NULL },
	{ 0, "live", NULL, NULL,
	  "which rank of this host's groups waits for which, and since when; on a terminal anew each second",
	  EP_OPTION_FLAG, AT(live), 0, 0, NULL },
	{ 0, "memory", NULL, NULL,
	  "what a group of these sizes takes of each GPU, and whether it is possible; this needs no GPU",
	  EP_OPTION_FLAG, AT(memory), 0, 0, NULL },
	{ 0, "experts", "N", NULL, "with --memory: experts of all ranks together", EP_OPTION_NUMBER,
	  AT(shape.experts), 1, MOST, NULL },
	{ 0, "hidden", "N", NULL, "with --memory: bf16 numbers of a token", EP_OPTION_NUMBER,
	  AT(shape.hidden), 1, MOST, NULL },
	{ 0, "tokens", "N", NULL, "with --memory: the most tokens that a rank dispatches",
	  EP_OPTION_NUMBER, AT(shape.tokens), 1, MOST, NULL },
	{ 0, "ranks", "N", NULL, "with --memory: ranks of the group", EP_OPTION_NUMBER,
	  AT(shape.ranks), 1, MOST, NULL },
	{ 0, "topk", "N", "8", "with --memory: experts of a token", EP_OPTION_NUMBER,
	  AT(shape.topk), 1, MOST, NULL },
	{ 0, "mode", "ll|ht", "ll", "with --memory: low latency, or high throughput",
	  EP_OPTION_CHOICE, AT(shape.ht), 0, 0, NULL },
	{ 0, "layout", "em|rm|flat", "em, with ht flat",
	  "with --memory: expert-major, rank-major (ll) or flat (ht)", EP_OPTION_CHOICE,
	  AT(shape.layout), 0, 0, NULL },
	{ 0, "node-ranks", "N", "8, or all if there are fewer", "with --memory: ranks of a node",
	  EP_OPTION_NUMBER, AT(shape.node_ranks), 1, MOST, NULL },
	{ 0, "holders", "FIRST:N", "all", "with --memory: ranks that hold experts", EP_OPTION_TEXT,
	  AT(shape.holders), 0, 0, NULL },
	{ 0, "senders", "FIRST:N", "all", "with --memory: ranks that may bring tokens",
	  EP_OPTION_TEXT, AT(shape.senders), 0, 0, NULL },
	{ 0, "quant", "none|fp8|mxfp8|nvfp4", "none", "with --memory: dispatch quantises (ll)",
	  EP_OPTION_CHOICE, AT(shape.quant), 0, 0, NULL },
	{ 0, "recv-tokens", "N", "0: as many as come",
	  "with --memory: max_recv_tokens_per_rank (ht)", EP_OPTION_NUMBER, AT(shape.recv_tokens),
	  0, MOST, NULL },
	{ 0, "gpu-memory", "GIB", NULL, "with --memory: the memory that there is for all of it",
	  EP_OPTION_REAL, AT(shape.gpu_memory), 1e-6, 1e6, NULL },
	{ 0, "json", NULL, NULL, "with --live and --memory: prints JSON, once", EP_OPTION_FLAG,
	  AT(json), 0, 0, NULL },
	{ 0, "prometheus", NULL, NULL, "with --live: prints the text format of Prometheus, once",
	  EP_OPTION_FLAG, AT(prometheus), 0, 0, NULL },
	{ 'h', "help", NULL, NULL, "prints this text", EP_OPTION_HELP, 0, 0, 0, NULL },
	{ 'V', "version", NULL, NULL, "prints its release", EP_OPTION_VERSION, 0, 0, 0, NULL },
};

const struct ep_options ep_info_options = {
	.tool = "ep_info",
	.row = info,
	.n = sizeof(info) / sizeof(info[0]),
};

static const struct ep_option topo[] = {
	{ 'j', "json", NULL, NULL, "one JSON object", EP_OPTION_FLAG, 0, 0, 0, NULL },
	{ 'h', "help", NULL, NULL, "prints this text", EP_OPTION_HELP, 0, 0, 0, NULL },
	{ 'V', "version", NULL, NULL, "prints its release", EP_OPTION_VERSION, 0, 0, 0, NULL },
};

const struct ep_options ep_topo_options = {
	.tool = "ep_topo",
	.row = topo,
	.n = sizeof(topo) / sizeof(topo[0]),
};
