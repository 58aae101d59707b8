/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tools/options.h"

const struct ep_option ep_info_options[EP_INFO_OPTIONS] = {
	{ 'v', "versions", NULL, "library, NCCL, CUDA, and the GPU architectures compiled in" },
	{ 'd', "devices", NULL, "GPUs and the NICs they use, as ep_topo prints them" },
	{ 'p', "params", NULL, "every parameter, its value and where that comes from" },
	{ 'r', "rdma", NULL, "how GPUs could reach the network from here, and why not" },
	{ 'n', "net", NULL,
	  "what connections of the network plugin have done, of processes that run with "
	  "NCCL_EP_NET_COUNTS=1" },
	{ 'q', "queues", NULL,
	  "what becomes of a queue pair on each RDMA port: made as the library makes it, connected "
	  "with itself, and destroyed again" },
	{ EP_OPTION_LIVE, "live", NULL,
	  "what groups of this host do, and which rank waits for which, since when: a table, which "
	  "on a terminal is printed anew each second; nothing else" },
	{ EP_OPTION_MEMORY, "memory", NULL,
	  "what a group of these sizes takes of each GPU, and whether it is possible, by the "
	  "library, which needs no GPU for that; nothing else" },
	{ EP_OPTION_EXPERTS, "experts", "N", "with --memory: of all ranks together" },
	{ EP_OPTION_HIDDEN, "hidden", "N", "with --memory: bf16 numbers of a token" },
	{ EP_OPTION_TOKENS, "tokens", "N", "with --memory: the most that a rank dispatches" },
	{ EP_OPTION_RANKS, "ranks", "N", "with --memory: of the group" },
	{ EP_OPTION_TOPK, "topk", "N", "with --memory: experts of a token [8]" },
	{ EP_OPTION_MODE, "mode", "ll|ht", "with --memory: low latency, or high throughput [ll]" },
	{ EP_OPTION_LAYOUT, "layout", "em|rm|flat",
	  "with --memory: expert-major, rank-major (ll) or flat (ht) [em, with ht flat]" },
	{ EP_OPTION_NODE_RANKS, "node-ranks", "N",
	  "with --memory: ranks of a node [8, or all if there are fewer]" },
	{ EP_OPTION_FP8, "fp8", NULL, "with --memory: dispatch quantises to FP8 (ll)" },
	{ EP_OPTION_RECV_TOKENS, "recv-tokens", "N",
	  "with --memory: max_recv_tokens_per_rank (ht) [0: as many as come]" },
	{ EP_OPTION_GPU_MEMORY, "gpu-memory", "GIB",
	  "with --memory: what there is for all of it; more is not possible" },
	{ EP_OPTION_JSON, "json", NULL, "with --live and --memory: the same once, as JSON" },
	{ EP_OPTION_PROMETHEUS, "prometheus", NULL,
	  "with --live: the same once, as Prometheus reads it" },
	{ 'h', "help", NULL, "this text" },
	{ 'V', "version", NULL, "the release of Switchyard that it is of" },
};

const struct ep_option ep_topo_options[EP_TOPO_OPTIONS] = {
	{ 'j', "json", NULL, "one JSON object" },
	{ 'h', "help", NULL, "this text" },
	{ 'V', "version", NULL, "the release of Switchyard that it is of" },
};

int ep_options_next(const struct ep_option *table, size_t n, int argc, char **argv)
{
	struct option longs[EP_OPTIONS_MAX + 1] = { { NULL, 0, NULL, 0 } };
	char letters[2 * EP_OPTIONS_MAX + 1];
	size_t at = 0;

	for (size_t i = 0; i < n; i++) {
		longs[i] = (struct option){ table[i].name,
					    table[i].arg ? required_argument : no_argument, NULL,
					    table[i].id };
		if (table[i].id < 256) {
			letters[at++] = (char)table[i].id;
			if (table[i].arg) {
				letters[at++] = ':';
			}
		}
	}
	letters[at] = '\0';
	return getopt_long(argc, argv, letters, longs, NULL);
}

void ep_options_print(const struct ep_option *table, size_t n, FILE *out)
{
	for (size_t i = 0; i < n; i++) {
		const struct ep_option *o = table + i;
		const char *help = o->help;
		char left[48], letter[8] = "    ";
		int width = 60;

		if (o->id < 256) {
			snprintf(letter, sizeof(letter), "-%c, ", o->id);
		}
		snprintf(left, sizeof(left), "%s--%s %s", letter, o->name, o->arg ? o->arg : "");
		fprintf(out, "  %-19s ", left);
		while ((int)strlen(help) > width) {
			int cut = width;

			while (help[cut] != ' ') {
				cut--;
			}
			fprintf(out, "%.*s\n%22s", cut, help, "");
			help += cut + 1;
		}
		fprintf(out, "%s\n", help);
	}
}
