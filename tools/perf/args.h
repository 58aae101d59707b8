/* SPDX-License-Identifier: Apache-2.0 */
/* The options of ep_perf in one table, by which they are parsed and explained. */
#ifndef TOOLS_PERF_ARGS_H
#define TOOLS_PERF_ARGS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum perf_option_id { /* of options without a letter; others are called by theirs */
	OPT_MODE = 256,
	OPT_LAYOUT,
	OPT_EXPERTS,
	OPT_TOPK,
	OPT_HIDDEN,
	OPT_QUANT,
	OPT_POW2,
	OPT_ROUTING,
	OPT_DROP,
	OPT_SEED,
	OPT_SMS,
	OPT_RANKS_PER_GPU,
	OPT_IDS,
	OPT_STAGED,
	OPT_MASK,
	OPT_WINDOWS,
	OPT_UNEVEN,
	OPT_CAPACITY,
	OPT_CHAINS,
	OPT_FLOOR,
	OPT_RENDEZVOUS,
	OPT_NO_ALIGN,
	OPT_NO_KERNEL,
	OPT_NODE_SIZE,
	OPT_PROGRESS,
	OPT_RECV,
	OPT_ZONES,
	OPT_EAGER,
	OPT_OVERFLOW,
	OPT_BACKWARD,
	OPT_MEMORY,
	OPT_VERSION
};

struct perf_option {
	int id;
	const char *name;
	const char *arg; /* NULL: it takes none */
	const char *initial;
	const char *help;
	/* of numbers: the range, and where in struct perf_options the uint32_t is; high is 0 for others */
	uint32_t low, high;
	size_t at;
};

#define PERF_NOPTIONS 49
extern const struct perf_option perf_option_table[PERF_NOPTIONS];

void perf_args_usage(FILE *to);

/* Returns what ep_perf has in place of an option of nccl-tests, given as on the command line; NULL: no such. */
const char *perf_args_instead(const char *argument);

#endif
