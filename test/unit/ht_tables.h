/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The routing that handle memory holds, made of what the oracle says: what the routing kernel must
 * leave there, and what the other kernels find.
 */
#ifndef TEST_UNIT_HT_TABLES_H
#define TEST_UNIT_HT_TABLES_H

#include <stdbool.h>
#include "device/ht/ht_layout.h"
#include "tools/perf/oracle/oracle.h"

#define HT_TABLES_RANKS 66 /* more than a kernel's arguments have heaps for */

struct ht_tables {
	struct oracle_ht h; /* of max_tokens tokens on each rank; those that are none go nowhere */
	uint32_t tokens[HT_TABLES_RANKS];
	struct oracle_ht_table *of[HT_TABLES_RANKS];

	uint32_t nlocal;
	uint32_t chunk_shift; /* chunks of 1 << that tokens */
	uint32_t chunks;      /* of max_tokens */
	uint32_t width;       /* min(K, L) */
	uint32_t *send_sel;   /* as in struct ep_ht_dev_handle, [R] of each */
	uint32_t *send_row, *send_place, *start, *send_base, *recv_base, *recv_start;
	uint32_t *recv_sel[HT_TABLES_RANKS];
	struct ep_ht_zone *zones;
	struct ep_ht_head head[HT_TABLES_RANKS];
};

/* Sizes alone: `shape` has nranks, experts, topk and max_tokens. No token goes anywhere yet. */
void ht_tables_open(struct ht_tables *t, const struct oracle_problem *shape);
/* [K] ids of a token, to be written; -1 or beyond the experts: none. */
int32_t *ht_tables_ids(const struct ht_tables *t, uint32_t rank, uint32_t token);
/* All the rest, of ids, tokens and what `h` says about limit, layout and alignment. */
void ht_tables_make(struct ht_tables *t);
void ht_tables_close(struct ht_tables *t);

#endif
