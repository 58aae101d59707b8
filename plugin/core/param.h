/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Environment variables: one table. Read afresh for every group, so that a process may change them
 * between groups.
 */
#ifndef EP_CORE_PARAM_H
#define EP_CORE_PARAM_H

#include <stdbool.h>
#include "core/error.h"

enum ep_param_id {
	EP_PARAM_DEBUG,
	EP_PARAM_TIMEOUT_MS,
	EP_PARAM_COMM_SMS,
	EP_PARAM_DISPATCH_SMS,
	EP_PARAM_COMBINE_SMS,
	EP_PARAM_LL_SEND_SMS,
	EP_PARAM_LL_RECV_SMS,
	EP_PARAM_LL_THREADS,
	EP_PARAM_LL_LINES,
	EP_PARAM_MEMORY,
	EP_PARAM_LL_DIRECT_BYTES,
	EP_PARAM_HT_RING_BYTES,
	EP_PARAM_HT_SEND_WARPS,
	EP_PARAM_OVERLAP,
	EP_PARAM_EARLY_START,
	EP_PARAM_NVLS,
	EP_PARAM_NODE_SIZE,
	EP_PARAM_RDMA_MODE,
	EP_PARAM_RDMA_QUEUES,
	EP_PARAM_RDMA_DEPTH,
	EP_PARAM_BOOTSTRAP_TIMEOUT_MS,
	EP_PARAM_CLOSE_TIMEOUT_MS,
	EP_PARAM_LIVE,
	EP_PARAM_NET_COUNTS,
	EP_PARAM_COLLNET,
	EP_PARAMS
};

/* NCCL_EP_MEMORY, by the order of its words. */
enum ep_memory {
	EP_MEMORY_AUTO,
	EP_MEMORY_WINDOW,
	EP_MEMORY_IPC,
	EP_MEMORY_HOST,
	EP_MEMORIES
};

struct ep_param_def {
	const char *name;
	int64_t initial;  /* when the variable is not set */
	int64_t min, max; /* lists: of each number */
	const char *help;
	const char *words; /* "auto|a|b": the value is one of these, by its place; NULL: numbers */
};

/* A list of numbers: the sizes of nodes. */
#define EP_PARAM_LIST_MAX 64
#define EP_PARAM_NODE_MAX 1024
struct ep_param_list {
	uint32_t count; /* 0: not set */
	uint32_t item[EP_PARAM_LIST_MAX];
};

struct ep_params {
	int64_t value[EP_PARAMS];
	bool set[EP_PARAMS]; /* from the environment */
	struct ep_param_list node_size;
};

extern const struct ep_param_def ep_param_table[EP_PARAMS];

/*
 * Values from the environment, else the table's. A value that is not a number, or out of range, is
 * ncclInvalidUsage. Names that begin like ours but are not known are warned about, once a process.
 */
ncclResult_t ep_params_read(struct ep_params *params);

/* A number of the environment; the table's where it is not set or not possible, without a word. */
int64_t ep_param_or_initial(enum ep_param_id id);

/* The word that a value stands for, as text in `buffer`; of parameters without words the number. */
#define EP_PARAM_WORD_MAX 24
const char *ep_param_word(enum ep_param_id id, int64_t value, char buffer[EP_PARAM_WORD_MAX]);

/*
 * One value from its text. Of a list: a number that distinguishes lists, of up to four items four
 * decimal digits for each.
 */
ncclResult_t ep_param_parse(enum ep_param_id id, const char *text, int64_t *value);

/*
 * Whether an entry of the environment has a name that begins like ours and is neither ours nor one
 * of other implementations'. With the known name within a few typing errors of it, or NULL.
 */
#define EP_PARAM_NAME_MAX 64
bool ep_param_unknown(const char *entry, char name[EP_PARAM_NAME_MAX + 1], const char **nearest);

/*
 * Whether the environment lets this process use NVLink multicast (NCCL_NVLS_ENABLE): no means no,
 * whatever else is set.
 */
bool ep_param_nvls_allowed(struct ep_reason *why);

#endif
