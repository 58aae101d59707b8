/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a vcrun job: who it is, and what the ranks tell each other by files in VC_DIR. */
#ifndef VC_TEST_RANKS_H
#define VC_TEST_RANKS_H

#include <unistd.h>
#include <nccl.h>
#include "test.h"

#define RANKS_MAX 16

static int rank, nranks, local_rank, node;

static inline int env_int(const char *name)
{
	const char *text = getenv(name);

	if (!text) {
		fprintf(stderr, "%s is not set: run this under vcrun\n", name);
		exit(1);
	}
	return atoi(text);
}

static inline void ranks_init(void)
{
	rank = env_int("RANK");
	nranks = env_int("WORLD_SIZE");
	local_rank = env_int("LOCAL_RANK");
	node = env_int("VC_NODE");
	NEED(nranks > RANKS_MAX);
}

/* One record of `size` bytes of each rank. Returns when all ranks have called it. */
static inline void ranks_gather(const void *mine, void *all, size_t size)
{
	static int calls;
	char base[512], path[528], fresh[528];
	FILE *file;

	snprintf(base, sizeof(base), "%s/gather-%d", getenv("VC_DIR"), calls++);
	snprintf(path, sizeof(path), "%s-%d", base, rank);
	snprintf(fresh, sizeof(fresh), "%s-new-%d", base, rank);
	file = fopen(fresh, "w");
	NEED(!file || fwrite(mine, 1, size, file) != size || fclose(file));
	NEED(rename(fresh, path));
	for (int i = 0; i < nranks; i++) {
		snprintf(path, sizeof(path), "%s-%d", base, i);
		while (access(path, R_OK)) {
			usleep(500);
		}
		file = fopen(path, "r");
		NEED(!file || fread((char *)all + size * (size_t)i, 1, size, file) != size);
		fclose(file);
	}
}

static inline void ranks_meet(void)
{
	char byte = 0, all[RANKS_MAX];

	ranks_gather(&byte, all, 1);
}

static inline ncclComm_t ranks_comm(void)
{
	ncclUniqueId mine, all[RANKS_MAX];
	ncclComm_t comm = NULL;

	NEED(ncclGetUniqueId(&mine));
	ranks_gather(&mine, all, sizeof(mine));
	NEED(ncclCommInitRank(&comm, nranks, all[0], rank));
	return comm;
}

#endif
