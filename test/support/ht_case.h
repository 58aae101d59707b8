/* SPDX-License-Identifier: Apache-2.0 */
/* Random problems of high throughput, for tests that try many. */
#ifndef TEST_SUPPORT_HT_CASE_H
#define TEST_SUPPORT_HT_CASE_H

#include "support/ht_bench.h"

struct ht_case {
	struct oracle_ht h;
	uint32_t flags;
	uint32_t sms;
	uint32_t second; /* tokens of the second step */
	uint64_t seed;
	char note[192]; /* for check_context: what else was drawn */
};

/*
 * flat, em: of that layout; forward: recipe FWD; drop: rows beyond the limit; cut: many of them, and ranks
 * with few tokens and many; window: in windows; idle: windows in eager mode, and to some ranks no rows
 * come; gaps: chunks from which nothing goes anywhere; long: large groups for few tokens; soak: anything,
 * small; crowd: smaller, for many ranks.
 */
struct ht_case ht_case_draw(int nranks, const char *kind, uint64_t seed);
/* For check_context. */
void ht_case_context(const struct ht_case *c, const struct world *w);
ncclEpGroup_t ht_case_group(const struct ht_case *c, struct world *w);
/* For world_run: the case, and the same once more with another routing. `arg` is a struct ht_case. */
void ht_case_run(struct world *w, void *arg);

#endif
