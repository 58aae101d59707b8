/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One high-throughput handle with all that its operations need on one rank: buffers, descriptors,
 * and the oracle's tables of all ranks.
 */
#ifndef TEST_SUPPORT_HT_BENCH_H
#define TEST_SUPPORT_HT_BENCH_H

#include "tools/perf/oracle/oracle.h"
#include "support/tensor.h"

enum ht_flags {
	HT_IDS64 = 1 << 0,
	HT_WINDOW = 1 << 1,    /* received rows lie in windows, given by window alone */
	HT_OWN_MEM = 1 << 2,   /* handle_mem from the caller */
	HT_GLOBAL = 1 << 3,    /* topk_idx as global ids */
	HT_COUNTER64 = 1 << 4, /* integer outputs are int64 (not the counters of the flat layout) */
	HT_ON = 1 << 5,        /* zero_copy ON, where empty tensors have windows, too */
	HT_NO_HANDLE = 1 << 6, /* the caller makes it, and destroys it unless it is NULL then */
	HT_FOR_MORE =
		1 << 7, /* times 1, 2, 3: a group for so many tokens that chunks have 2, 4, 8 */
	HT_LATE_COUNTS =
		1 << 10,     /* expert-major: dispatch writes the counters, and not the update */
	HT_MORE_MEM = 1 << 9 /* handle_mem has room for another group's handles */
};

#define HT_GUARD TENSOR_GUARD
#define HT_WINDOW_OFFSET 64 /* of a buffer in its window, which ends with the guard */

struct ht_bench {
	struct world *w;
	struct oracle_ht h;
	uint32_t node[WORLD_MAX]; /* h.node */
	struct oracle_ht_table *tables[WORLD_MAX];
	uint32_t flags;
	uint32_t tokens;
	uint64_t rows; /* of the tensors with received rows */
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	struct bench_tensor mem, ids, in_tokens, in_scales, weights;
	struct bench_tensor out_tokens, out_scales, out_weights, out_idx;
	struct bench_tensor combine_in, combine_out, in_gradients, out_gradients;
	struct bench_tensor counters, offsets, total;
};

/* Does the test want rows as lines (NCCL_EP_LL_LINES=1)? */
bool ht_by_lines(void);
ncclEpGroupConfig_t ht_group_config(const struct oracle_ht *h, uint32_t flags);
/* A group of two SMs, with waits that end. */
ncclEpGroup_t ht_group(struct world *w, const struct oracle_ht *h, uint32_t flags,
		       double timeout_ms);

/*
 * Rows that a tensor of a rank with experts needs: all below the limit, or as many as any routing
 * of the problem brings.
 */
uint64_t ht_most_rows(const struct oracle_ht *h);
/* Handle and buffers. The problem is copied. */
void ht_open(struct ht_bench *b, struct world *w, ncclEpGroup_t group, const struct oracle_ht *h,
	     uint32_t flags);
void ht_close(struct ht_bench *b);
/* That, and its group goes. */
void ht_end(struct ht_bench *b);

/*
 * Received rows lie in other windows from now on. Before the next ht_load(), which all ranks call.
 */
void ht_move_windows(struct ht_bench *b);
/* New routing and inputs: seed and number of tokens. ht_open() has done that for the problem's. */
void ht_load(struct ht_bench *b, uint64_t seed, uint32_t tokens);
/* Another handle on the same memory, without routing (HT_OWN_MEM). */
void ht_reopen(struct ht_bench *b);

/* The right arguments of the calls below. */
struct ht_dispatch_args {
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info;
	ncclEpDispatchConfig_t config;
};
struct ht_combine_args {
	ncclEpCombineInputs_t in;
	ncclEpCombineOutputs_t out;
	ncclEpCombineConfig_t config;
};
ncclEpLayoutInfo_t ht_update_info(struct ht_bench *b);
struct ht_dispatch_args ht_dispatch_args(struct ht_bench *b, bool backward);
struct ht_combine_args ht_combine_args(struct ht_bench *b, bool backward);

ncclResult_t ht_update(struct ht_bench *b, cudaStream_t stream);
ncclResult_t ht_dispatch(struct ht_bench *b, bool backward, cudaStream_t stream);
ncclResult_t ht_combine(struct ht_bench *b, bool backward, cudaStream_t stream);

/* Fills what the next operation writes with ORACLE_POISON. */
void ht_poison(struct ht_bench *b);
/* After the stream is idle. They report through check_fail. */
void ht_check_untouched(struct ht_bench *b); /* all is as ht_poison() has left it */
/* Forward dispatch writes the counters, and not the update. */
bool ht_late_counts(const struct ht_bench *b);
void ht_check_counters(struct ht_bench *b);
void ht_check_no_counters(const struct ht_bench *b); /* they are as ht_poison() has left them */
void ht_check_dispatch(struct ht_bench *b, bool backward);
void ht_check_combine(struct ht_bench *b, bool backward);
/* Experts' results and gradients, where the oracle says that rows are. */
void ht_expert_work(struct ht_bench *b);

/* All of it: update, forward pair, backward pair, each checked. */
void ht_step(struct ht_bench *b);

/* ---- random problems of high throughput, for tests that try many ---- */

struct ht_case {
	struct oracle_ht h;
	uint32_t flags;
	uint32_t sms;
	uint32_t second; /* tokens of the second step */
	uint64_t seed;
	char note[192]; /* for check_context: what else was drawn */
};

/*
 * flat, em: of that layout; forward: recipe FWD; drop: rows beyond the limit; cut: many of them,
 * and ranks with few tokens and many; window: in windows; idle: windows in eager mode, and to some
 * ranks no rows come; gaps: chunks from which nothing goes anywhere; thin: chunks of which two rows
 * go to one rank; head: chunks whose first tokens alone go anywhere; long: large groups for few
 * tokens; wide: more contributions to a row than a warp's stage holds; pairs: two at most, which
 * fill it; senders: so many that some warps only send; mxfp8: sums return in that format; lines:
 * rows that end anywhere in a line; soak:
 * anything, small; crowd: smaller, for many ranks. roles_KIND: the same, and some ranks alone hold
 * experts or bring tokens; roles: of any kind that nodes may have. The caller frees the routing
 * (oracle_routing_free).
 */
struct ht_case ht_case_draw(int nranks, const char *kind, uint64_t seed);
/* For check_context. */
void ht_case_context(const struct ht_case *c, const struct world *w);
ncclEpGroup_t ht_case_group(const struct ht_case *c, struct world *w);
/*
 * For world_run: the case, and the same once more with another routing. `arg` is a struct ht_case.
 */
void ht_case_run(struct world *w, void *arg);

#endif
