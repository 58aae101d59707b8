/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a high-throughput group without a host side: each has one piece of device memory with
 * heap, group state and handle memory, and a stream. Several ranks may share a device.
 */
#ifndef TEST_UNIT_HT_ROUTE_H
#define TEST_UNIT_HT_ROUTE_H

#include <cuda_runtime_api.h>
#include "ht_tables.h"
#include "support/check.h"

#define RIG_RANKS HT_TABLES_RANKS
#define RIG_GUARD 0xa5
#define RIG_STAMP 0x123456789abcdefull

/* What a rank's memory holds. The first ones are its heap. */
enum rig_piece {
	RIG_PROGRESS,
	RIG_SIGNATURE,
	RIG_SIGN,
	RIG_COUNT,
	RIG_START,
	RIG_SEL,
	RIG_SCRATCH,
	RIG_SEQ,
	RIG_STATE,
	RIG_STATS,
	RIG_ZEROED, /* pieces before this one are zero at first */
	RIG_HEAD = RIG_ZEROED,
	RIG_SEND_SEL,
	RIG_SEND_ROW,
	RIG_SEND_PLACE,
	RIG_SEND_START,
	RIG_SEND_BASE,
	RIG_RECV_BASE,
	RIG_RECV_START,
	RIG_RECV_SEL,
	RIG_ZONES,
	RIG_IDS,
	RIG_COUNTERS,
	RIG_OFFSETS,
	RIG_TOTAL,
	RIG_PIECES
};

struct rig_shape {
	uint32_t nranks;
	uint32_t nlocal;
	uint32_t topk;
	uint32_t max_tokens;
	uint32_t chunk_shift;
	uint32_t limit; /* EP_HT_NONE: none */
	uint32_t layout;
	uint32_t alignment;
	uint32_t drop;
	uint32_t id_bytes;
	uint32_t counter_bytes;
	uint32_t total_bytes;
	uint32_t blocks;
	uint32_t threads;
	uint32_t no_counters; /* bits: no expert counters, offsets, total */
};

struct rig_rank {
	int device;
	cudaStream_t stream;
	unsigned char *memory;
	unsigned char *copy;       /* on the host, after rig_fetch */
	struct ep_record *records; /* and behind them what else is in pinned memory */
	struct ep_ht_route_args args;
	uint32_t tokens;
	int64_t *ids; /* [max_tokens][K] */
};

struct rig {
	struct rig_shape shape;
	uint64_t off[RIG_PIECES + 1];
	uint64_t bytes[RIG_PIECES];
	uint32_t launches;
	struct rig_rank rank[RIG_RANKS];
};

/* `devices`: ranks take turns at so many. */
void rig_make(struct rig *rig, const struct rig_shape *shape, int devices);
void rig_free(struct rig *rig);
/* Uploads rank r's tokens and ids. */
void rig_load(struct rig *rig, uint32_t r);
void rig_launch(struct rig *rig, uint32_t r);
void rig_wait(struct rig *rig, uint32_t r);
/* Copies a rank's memory to the host, and checks that nothing was written between its pieces. */
void rig_fetch(struct rig *rig, uint32_t r);
/* Piece of a rank's memory, as fetched. */
void *rig_at(const struct rig *rig, uint32_t r, enum rig_piece piece);

/* Everything that an update must leave on all ranks, which rig_fetch has copied. */
void oracle_check(const struct rig *rig);
/*
 * What arrivals of such a routing make of it, by another kernel: lists of rows, and counts. Nothing
 * is dropped.
 */
void lists_check(struct rig *rig);
/* The first rank to which more comes than the limit, and how much; -1: none. */
int oracle_overflow(const struct rig *rig, uint32_t *total);

#endif
