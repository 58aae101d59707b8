/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which form rows travel, by how the GPUs are joined and by which of them a process sees:
 *
 *     hidden lines|bytes
 */
#include "ep/ep.h"
#include "support/bench.h"

static void run(struct world *w, void *lines)
{
	struct oracle_problem p = bench_problem(w->nranks, 6, 2, 248, 9, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group(w, &p, 0);
	struct bench b;

	CHECK_INT(group->lines, *(bool *)lines);
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	bench_end(&b);
}

int main(int argc, char **argv)
{
	bool lines = argc == 2 && !strcmp(argv[1], "lines");

	if (!lines && (argc != 2 || strcmp(argv[1], "bytes"))) {
		fprintf(stderr, "usage: hidden lines|bytes\n");
		return 2;
	}
	world_run(world_size(3), run, &lines);
	return check_end();
}
