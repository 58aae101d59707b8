/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a vcrun job: who it is, and a communicator through a file in VC_DIR. */
#ifndef VC_TEST_RANKS_H
#define VC_TEST_RANKS_H

#include <unistd.h>
#include <nccl.h>
#include "test.h"

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
	NEED(cudaSetDevice(local_rank));
}

/* The unique id of rank 0, by way of a file. */
static inline void ranks_id(const char *name, ncclUniqueId *id)
{
	char path[512], temporary[520];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", getenv("VC_DIR"), name);
	snprintf(temporary, sizeof(temporary), "%s.new", path);
	if (rank == 0) {
		NEED(ncclGetUniqueId(id));
		file = fopen(temporary, "w");
		NEED(!file || fwrite(id, sizeof(*id), 1, file) != 1);
		fclose(file);
		NEED(rename(temporary, path));
		return;
	}
	while (access(path, R_OK)) {
		usleep(1000);
	}
	file = fopen(path, "r");
	NEED(!file || fread(id, sizeof(*id), 1, file) != 1);
	fclose(file);
}

static inline ncclComm_t ranks_comm(const char *name)
{
	ncclUniqueId id;
	ncclComm_t comm = NULL;

	ranks_id(name, &id);
	NEED(ncclCommInitRank(&comm, nranks, id, rank));
	return comm;
}

/* One `size`-byte record of each rank, through the communicator. */
static inline void ranks_gather(ncclComm_t comm, const void *mine, void *all, size_t size)
{
	char *device;
	cudaStream_t stream;

	NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	NEED(cudaMalloc((void **)&device, size * (size_t)(nranks + 1)));
	NEED(cudaMemcpyAsync(device, mine, size, cudaMemcpyHostToDevice, stream));
	NEED(ncclAllGather(device, device + size, size, ncclUint8, comm, stream));
	NEED(cudaMemcpyAsync(all, device + size, size * (size_t)nranks, cudaMemcpyDeviceToHost,
			     stream));
	NEED(cudaStreamSynchronize(stream));
	NEED(cudaFree(device));
	NEED(cudaStreamDestroy(stream));
}

#endif
