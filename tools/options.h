/* SPDX-License-Identifier: Apache-2.0 */
/* Options of ep_info and ep_topo, in tables by which they are parsed, explained and completed. */
#ifndef EP_TOOLS_OPTIONS_H
#define EP_TOOLS_OPTIONS_H

#include <getopt.h>
#include <stddef.h>
#include <stdio.h>

struct ep_option {
	int id; /* its letter; from 256 on: it has none */
	const char *name;
	const char *arg; /* NULL: it takes none */
	const char *help;
};

enum {
	EP_OPTION_LIVE = 256,
	EP_OPTION_JSON,
	EP_OPTION_PROMETHEUS,
	EP_OPTION_MEMORY,
	EP_OPTION_EXPERTS,
	EP_OPTION_HIDDEN,
	EP_OPTION_TOKENS,
	EP_OPTION_RANKS,
	EP_OPTION_TOPK,
	EP_OPTION_MODE,
	EP_OPTION_LAYOUT,
	EP_OPTION_NODE_RANKS,
	EP_OPTION_FP8,
	EP_OPTION_RECV_TOKENS,
	EP_OPTION_GPU_MEMORY
};

#define EP_INFO_OPTIONS 23
extern const struct ep_option ep_info_options[EP_INFO_OPTIONS];
#define EP_TOPO_OPTIONS 3
extern const struct ep_option ep_topo_options[EP_TOPO_OPTIONS];

#define EP_OPTIONS_MAX 32

/* The next option of the command line, as getopt_long returns it; n is at most EP_OPTIONS_MAX. */
int ep_options_next(const struct ep_option *table, size_t n, int argc, char **argv);

/* A line for each, more if its help is long. */
void ep_options_print(const struct ep_option *table, size_t n, FILE *out);

#endif
