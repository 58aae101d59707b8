/* SPDX-License-Identifier: Apache-2.0 */
/* What the examples share: errors in words, descriptors of tensors, and one rank per process. */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <nccl_ep.h>
#include <nccl_ep/ext.h>

/* Ends the program if a call fails, and prints the last errors of CUDA and of the library. */
#define CHECK(call)                                                                                \
	do {                                                                                       \
		int check_rc = (int)(call);                                                        \
		if (check_rc) {                                                                    \
			fail(#call, check_rc);                                                     \
		}                                                                                  \
	} while (0)
#define TENSOR(type, pointer, n, ...)                                                              \
	{                                                                                          \
		NCCL_EP_TENSOR_INIT_INLINE, .ndim = (n), .datatype = (type), .data = (pointer),    \
					    .sizes = (size_t[])                                    \
		{                                                                                  \
			__VA_ARGS__                                                                \
		}                                                                                  \
	}

static int rank, ranks; /* set by begin() */

static inline void fail(const char *call, int code)
{
	cudaError_t cuda = cudaPeekAtLastError();
	const char *text = "";

	ncclEpExtGetLastError(NULL, NULL, &text);
	fprintf(stderr, "rank %d: %s: error %d%s%s%s%s\n", rank, call, code,
		cuda != cudaSuccess ? ": " : "",
		cuda != cudaSuccess ? cudaGetErrorString(cuda) : "", *text ? ": " : "", text);
	exit(1);
}

static inline int from_environment(const char *name)
{
	return getenv(name) ? atoi(getenv(name)) : 0;
}

static inline ncclComm_t make_comm(const char *path)
{
	char temporary[512];
	ncclUniqueId id;
	ncclComm_t comm;
	FILE *file;

	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	if (rank == 0) {
		CHECK(ncclGetUniqueId(&id));
		file = fopen(temporary, "w");
		CHECK(!file || fwrite(&id, sizeof(id), 1, file) != 1 || fclose(file));
		CHECK(rename(temporary, path));
	}
	for (int tries = 0; access(path, R_OK); tries++) {
		CHECK(tries == 3000 || usleep(10000));
	}
	file = fopen(path, "r");
	CHECK(!file || fread(&id, sizeof(id), 1, file) != 1 || fclose(file));
	if (ncclCommInitRank(&comm, ranks, id, rank)) {
		fprintf(stderr, "rank %d: no communicator; a file of an earlier run? Remove %s\n",
			rank, path);
		exit(1);
	}
	if (rank == 0) {
		unlink(path); /* all ranks have read it */
	}
	return comm;
}

static inline void *on_device(const void *from, size_t bytes)
{
	void *pointer;

	CHECK(cudaMalloc(&pointer, bytes));
	CHECK(from && cudaMemcpy(pointer, from, bytes, cudaMemcpyHostToDevice));
	return pointer;
}

/*
 * Sets rank, ranks and the device from the launcher's variables, and returns a communicator. There
 * is one rank without RANK and WORLD_SIZE.
 */
static inline ncclComm_t begin(const char *path)
{
	rank = from_environment("RANK");
	ranks = getenv("WORLD_SIZE") ? from_environment("WORLD_SIZE") : 1;
	CHECK(cudaSetDevice(from_environment("LOCAL_RANK")));
	return make_comm(path);
}

static inline int finish(ncclComm_t comm)
{
	CHECK(ncclCommDestroy(comm));
	printf("rank %d of %d: OK\n", rank, ranks);
	return 0;
}

#endif
