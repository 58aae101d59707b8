/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput on random shapes and routings: update, dispatch and combine, forward and backward,
 * twice with different routings, all bytes compared with the oracle.
 *
 *     ht KIND SEED COUNT [RANKS]      KIND: see support/ht_bench.h
 *
 * long: one rank or two, so that combine has parts larger than its sums.
 */
#include "support/ht_bench.h"

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "flat";
	uint64_t seed = world_number(argc > 2 ? argv[2] : NULL, 1);
	uint64_t count = world_number(argc > 3 ? argv[3] : NULL, 10);
	int ranks = (int)world_number(argc > 4 ? argv[4] : NULL, 0);

	for (uint64_t i = seed; i < seed + count; i++) {
		uint64_t s = i * 31 + 5;
		int nranks = world_size(1 + (int)world_draw(&s, 5));
		struct ht_case c;

		nranks = ranks ? ranks : nranks;
		nranks = strcmp(kind, "long") ? nranks : world_size(1 + (int)(i & 1));
		c = ht_case_draw(nranks, kind, i);
		world_run(nranks, ht_case_run, &c);
	}
	return check_end();
}
