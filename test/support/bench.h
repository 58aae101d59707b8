/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One handle with all that its operations need on one rank: buffers, descriptors and the oracle's
 * problem, which says what goes in and what must come out. The library promises the exact place of
 * every row, so the experts' results can also be written before the dispatch has run.
 */
#ifndef TEST_SUPPORT_BENCH_H
#define TEST_SUPPORT_BENCH_H

#include "support/tensor.h"

enum bench_flags {
	BENCH_IDS64 = 1 << 0,
	BENCH_PENDING = 1 << 1,    /* send_only and Complete */
	BENCH_V1 = 1 << 2,         /* structs as a caller of API version 1 has them */
	BENCH_MASK = 1 << 3,       /* enable_mask */
	BENCH_OWN_MEM = 1 << 4,    /* handle_mem from the caller */
	BENCH_CREATE = 1 << 5,     /* CreateHandle in place of InitHandle and UpdateHandle */
	BENCH_NO_COUNTS = 1 << 6,  /* rank-major without src_rank_counters */
	BENCH_WINDOW = 1 << 7,     /* outputs->tokens and scales by window, data NULL */
	BENCH_NULL_EMPTY = 1 << 8, /* tensors without elements have no data */
	BENCH_DATA = 1 << 9,       /* and window: its data is passed, too */
	BENCH_NO_SCALES = 1 << 10, /* and window: outputs->scales has none */
	BENCH_SOURCES =
		1 << 11,       /* inputs->tokens, of combine too, end with their window's memory */
	BENCH_TYPE_SHIFT = 12, /* copied bytes are described as another type, 0..5 */
	BENCH_NO_HANDLE = 1 << 15, /* the caller makes it, and destroys it unless it is NULL then */
};

struct bench {
	struct world *w;
	struct oracle_problem p;
	struct oracle_table *table;
	uint32_t flags;
	uint32_t tokens; /* of this rank */
	uint32_t blocks; /* of the outputs: experts here, or ranks */
	uint32_t rows;   /* of a block */
	uint64_t due;    /* rows that a dispatch brings here: of the last check or experts' work */
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	struct bench_tensor in_tokens, in_scales, weights, ids;
	struct bench_tensor out_tokens, out_scales, out_weights, out_idx, counts;
	struct bench_tensor combine_in, combine_scales, combine_out, mem;
};

/* Group config for a problem; counts of SMs may be changed afterwards. */
ncclEpGroupConfig_t bench_group_config(const struct oracle_problem *p, uint32_t flags);
ncclEpGroup_t bench_group(struct world *w, const struct oracle_problem *p, uint32_t flags);
/* For ranks that get lost: two SMs, with masks eight, and waits that end. */
ncclEpGroup_t bench_group_bounded(ncclComm_t comm, const struct oracle_problem *p, uint32_t flags,
				  double timeout_ms);
/* This rank's mask, [nranks]; and of the first 64 ranks, bit r: it has masked rank r. */
void bench_mask(struct world *w, ncclEpGroup_t group, int mask[WORLD_MAX]);
uint64_t bench_masked(struct world *w, ncclEpGroup_t group);

/* Handle and buffers; the problem is copied. Inputs are loaded for the problem's seed. */
void bench_open(struct bench *b, struct world *w, ncclEpGroup_t group,
		const struct oracle_problem *p, uint32_t flags);
void bench_close(struct bench *b);
/* That, and its group goes. */
void bench_end(struct bench *b);

/* New inputs of another seed, and with bench_load_tokens of another number of tokens per rank. */
void bench_load(struct bench *b, uint64_t seed);
void bench_load_tokens(struct bench *b, uint64_t seed, uint32_t tokens);
/* Fills outputs with ORACLE_POISON. */
void bench_poison(struct bench *b);

/* The calls; with BENCH_PENDING both halves, unless send_only is taken apart by the caller. */
ncclResult_t bench_update(struct bench *b, cudaStream_t stream);
ncclResult_t bench_dispatch(struct bench *b, cudaStream_t stream);
ncclResult_t bench_combine(struct bench *b, cudaStream_t stream);
/* The recipe of a dispatch that quantises, or forwards what the caller has quantised. */
ncclEpDispQuant_t bench_recipe(const struct oracle_problem *p);
ncclEpCombQuant_t bench_return_recipe(const struct oracle_problem *p); /* of a combine */
ncclResult_t bench_send_dispatch(struct bench *b, cudaStream_t stream);
ncclResult_t bench_send_combine(struct bench *b, cudaStream_t stream);

/* After the stream is idle. Both report through check_fail; false if anything was wrong. */
bool bench_check_dispatch(struct bench *b);
bool bench_check_combine(struct bench *b);
/* Experts' results for this dispatch, from the oracle alone. */
void bench_expert_work(struct bench *b);
/* Poison, update, dispatch, check, experts' work. */
void bench_dispatch_checked(struct bench *b);
/* That and combine, check; bench_pair_of with new inputs of another seed. */
void bench_pair(struct bench *b);
void bench_pair_of(struct bench *b, uint64_t seed);

/* One line that says which problem this is. */
void bench_describe(const struct oracle_problem *p, uint32_t flags, char *text, size_t size);
struct oracle_problem bench_problem(int nranks, uint32_t experts, uint32_t topk, uint32_t hidden,
				    uint32_t tokens, enum oracle_layout layout);

/* Calls visit for each row that is due here, in its exact place. */
typedef void (*bench_visit_fn)(struct bench *b, uint32_t block, uint32_t row, uint32_t src,
			       uint32_t token, const int32_t *ids, void *context);
void bench_places(struct bench *b, bench_visit_fn visit, void *context);
bool bench_check_places(struct bench *b);

#endif
