/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of the oracle share; users need oracle.h only. */
#ifndef TOOLS_PERF_ORACLE_TABLE_H
#define TOOLS_PERF_ORACLE_TABLE_H

#include "oracle.h"

#define ORACLE_KEY_BYTES 16 /* of a delivered row, to find its token */
#define ORACLE_NO_ENTRY UINT32_MAX

struct oracle_entry { /* a token that has an expert on this rank */
	uint64_t key;
	uint32_t src;
	uint32_t token;
	uint32_t next;  /* in its hash chain */
	uint32_t block; /* `taken` counts rows of this block */
	uint32_t taken;
};

struct oracle_table {
	const struct oracle_problem *p;
	uint32_t rank;
	uint32_t local; /* experts per rank */
	uint32_t ntokens[ORACLE_MAX_RANKS];
	int32_t *ids[ORACLE_MAX_RANKS]; /* [tokens][topk] */
	int32_t *all_ids;
	struct oracle_entry *entries;
	uint32_t nentries;
	uint32_t *heads;
	uint32_t nheads; /* a power of two */
};

__attribute__((format(printf, 2, 3))) void oracle_blame(struct oracle_verdict *verdict,
							const char *format, ...);
int oracle_fetch(const struct oracle_mem *mem, void *to, const void *from, size_t bytes);
int oracle_put(const struct oracle_mem *mem, void *to, const void *from, size_t bytes);
int oracle_is_poison(const uint8_t *bytes, size_t count);
uint64_t oracle_row_key(const uint8_t *row);
/* Entries of (src, token) that choose an expert of [first, first + extent). */
uint32_t oracle_selections(const struct oracle_table *table, uint32_t src, uint32_t token,
			   uint32_t first, uint32_t extent);

#endif
