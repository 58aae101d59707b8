// SPDX-License-Identifier: Apache-2.0
/*
 * High throughput's kernels without the host side of the library: several ranks as streams of one
 * process, with heaps of their own in the memory of one device, and tables of the oracle's. It runs on the
 * virtual cluster and on a GPU.
 */
#ifndef TEST_UNIT_HT_RIG_H
#define TEST_UNIT_HT_RIG_H

#include <cuda_runtime_api.h>
#include "ht_tables.h"

#define HT_RANKS 8
#define HT_POISON 0xa5
#define HT_GUARD_ROWS 3u /* behind the outputs */

struct ht_shape {
	const char *name;
	uint32_t ranks, nlocal, topk, layout;
	uint32_t max_tokens, tokens[HT_RANKS];
	uint32_t token_bytes, scale_bytes, part_bytes, ring_chunks;
	uint32_t chunk_shift;
	uint32_t blocks, warps, stage_parts, lag;
	uint32_t limit;     /* 0: none */
	uint32_t alignment; /* of zones; 0: none */
	uint32_t fill_more; /* flat: rows of idx and weights to fill behind those that come */
	uint32_t zero_more; /* expert-major: rows behind the last zone */
	bool direct, backward;
	bool no_holes;  /* each token has topk different experts */
	uint32_t to[2]; /* not both 0: all tokens go to experts of ranks in [to[0], to[1]) */
	uint32_t seed;
};

/* A rank: device memory, and its arguments. */
struct ht_rank {
	cudaStream_t stream;
	struct ep_record *records; /* pinned */
	uint64_t out_rows;         /* without the guard */
	struct ep_ht_dispatch_args args;
	struct ep_dev_state *state;
};

struct ht_world {
	struct ht_shape shape;
	struct ht_tables t;
	struct ht_rank rank[HT_RANKS];
	void *memory[64 * HT_RANKS];
	uint32_t allocations;
};

/* Heaps, tables in device memory, inputs; outputs are poisoned. */
struct ht_world *ht_world_make(const struct ht_shape *s);
void ht_world_free(struct ht_world *w);
/* `missing`: this rank does not launch; -1: all do. Nothing is waited for. */
void ht_world_launch(struct ht_world *w, int missing);
void ht_world_poison(struct ht_world *w);
/* Rank d's outputs, told by CHECKs. */
void ht_world_check(const struct ht_world *w, uint32_t d);

uint32_t ht_random(uint32_t *state);
/* What lies in the inputs: word i of a row, and a weight. */
uint32_t ht_word(uint32_t rank, uint32_t token, uint32_t i, bool scale);
float ht_weight(uint32_t rank, uint32_t token, uint32_t k);

#endif
