/* SPDX-License-Identifier: Apache-2.0 */
/* Details of a size in the JSON, beyond the table: clocks, and the routing that was measured. */
#include <stdlib.h>

#include "perf.h"

#define DIGEST_START UINT64_C(0xcbf29ce484222325) /* FNV-1a */
#define DIGEST_PRIME UINT64_C(0x100000001b3)

/* Adds the lowest `bytes` bytes of `value`, the lowest first: the same on every machine. */
static uint64_t digest(uint64_t state, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++) {
		state = (state ^ (value >> 8 * i & 0xff)) * DIGEST_PRIME;
	}
	return state;
}

/* The ids that this rank's tokens name: their digest first, then how many name each expert. */
static void count_ids(const struct perf_rank *rank, uint64_t *mine)
{
	const struct oracle_problem *p = &rank->problem;
	int32_t ids[ORACLE_MAX_TOPK];

	mine[0] = DIGEST_START;
	for (uint32_t t = 0; t < rank->tokens; t++) {
		oracle_route(p, rank->rank, t, ids);
		for (uint32_t k = 0; k < p->topk; k++) {
			mine[0] = digest(mine[0], (uint32_t)ids[k], 4);
			if (ids[k] >= 0) {
				mine[1 + ids[k]]++;
			}
		}
	}
}

void perf_detail_routing(struct perf_rank *rank, struct perf_detail *detail)
{
	uint32_t nranks = rank->perf->world.nranks, experts = rank->problem.experts;
	size_t words = 1 + (size_t)experts;
	uint64_t *mine = perf_alloc(rank, words, sizeof(*mine));
	uint64_t *all = perf_alloc(rank, nranks * words, sizeof(*all));

	count_ids(rank, mine);
	perf_gather(rank, mine, words * sizeof(*mine), all);
	if (rank->rank == 0) {
		detail->digest = DIGEST_START;
		detail->expert_ids = perf_alloc(rank, experts, sizeof(*detail->expert_ids));
		for (uint32_t n = 0; n < nranks; n++) {
			detail->digest = digest(detail->digest, all[n * words], 8);
			for (uint32_t e = 0; e < experts; e++) {
				detail->expert_ids[e] += all[n * words + 1 + e];
			}
		}
	}
	free(mine);
	free(all);
}

void perf_detail_clocks(struct perf_rank *rank, struct perf_detail *detail)
{
	uint32_t nranks = rank->perf->world.nranks;
	uint32_t(*all)[PERF_CLOCKS] = perf_alloc(rank, nranks, sizeof(*all));
	uint32_t mine[PERF_CLOCKS];

	perf_clocks_read(rank, mine);
	perf_gather(rank, mine, sizeof(mine), all);
	for (int c = 0; c < PERF_CLOCKS; c++) {
		detail->mhz_least[c] = detail->mhz_most[c] = all[0][c];
		for (uint32_t n = 1; n < nranks; n++) {
			uint32_t mhz = all[n][c];

			detail->mhz_least[c] = mhz < detail->mhz_least[c] ? mhz
									  : detail->mhz_least[c];
			detail->mhz_most[c] = mhz > detail->mhz_most[c] ? mhz : detail->mhz_most[c];
		}
	}
	free(all);
}

void perf_row_free(struct perf_row *row)
{
	for (int op = 0; op < PERF_OPS; op++) {
		free(row->op[op].samples.most);
		free(row->op[op].samples.least);
		free(row->op[op].kernel_samples.most);
		free(row->op[op].kernel_samples.least);
	}
	free(row->detail.waits);
	free(row->detail.expert_ids);
}
