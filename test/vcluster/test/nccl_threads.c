/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads of one process, each with its device; and waits that are bounded. */
#include <pthread.h>
#include <nccl.h>
#include "test.h"
#include "kernels.h"

#define RANKS 4

static ncclUniqueId id;
static uint32_t *memory[RANKS];

static void *rank_main(void *arg)
{
	int rank = (int)(intptr_t)arg;
	struct test_packet_args args = { .epoch = 1, .rounds = 6, .timeout_ns = 60000000000ull };
	uint32_t *sum, host[RANKS + 1];
	cudaStream_t stream;
	ncclComm_t comm;

	NEED(cudaSetDevice(rank));
	NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	if (rank % 2) {
		ncclUniqueId ids[2] = { id };

		NEED(ncclCommInitRankScalable(&comm, RANKS, rank, 2, ids, NULL));
	} else {
		NEED(ncclCommInitRank(&comm, RANKS, id, rank));
	}
	NEED(cudaMalloc((void **)&memory[rank], 8192));
	NEED(cudaMemsetAsync(memory[rank], 0, 8192, stream));
	NEED(cudaMalloc((void **)&sum, 64));
	NEED(cudaMemsetAsync(sum, 0, 64, stream));
	OK(cudaDeviceEnablePeerAccess(rank ^ 1, 0));
	/* serves as a barrier too */
	NEED(ncclAllGather(sum + 4, sum + 8, 1, ncclInt32, comm, stream));
	NEED(cudaStreamSynchronize(stream));
	args.to = memory[rank ^ 1];
	args.from = memory[rank];
	args.sum = sum;
	args.late = sum + 1;
	NEED(test_launch(test_packet, 2, 64, &args, 0, stream));
	NEED(cudaMemcpyAsync(host, sum, 8, cudaMemcpyDeviceToHost, stream));
	NEED(cudaStreamSynchronize(stream));
	CHECK_INT(host[0], 128 * 3 * 21);
	CHECK_INT(host[1], 0);
	NEED(ncclAllGather(sum + 4, sum + 8, 1, ncclInt32, comm, stream));
	NEED(cudaStreamSynchronize(stream));
	NEED(ncclCommDestroy(comm));
	NEED(cudaFree(sum));
	NEED(cudaFree(memory[rank]));
	NEED(cudaStreamDestroy(stream));
	return NULL;
}

/* One thread with all devices, by groups. */
static void test_one_thread(void)
{
	ncclComm_t comm[RANKS];
	cudaStream_t stream[RANKS];
	int32_t *device[RANKS], host[RANKS];

	NEED(ncclCommInitAll(comm, RANKS, NULL));
	for (int i = 0; i < RANKS; i++) {
		int32_t value = 1 << i;

		NEED(cudaSetDevice(i));
		NEED(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
		NEED(cudaMalloc((void **)&device[i], 64));
		NEED(cudaMemcpy(device[i], &value, 4, cudaMemcpyHostToDevice));
	}
	NEED(ncclGroupStart());
	for (int i = 0; i < RANKS; i++) {
		NEED(ncclAllGather(device[i], device[i] + 1, 1, ncclInt32, comm[i], stream[i]));
	}
	NEED(ncclGroupEnd());
	for (int i = 0; i < RANKS; i++) {
		NEED(cudaSetDevice(i));
		NEED(cudaStreamSynchronize(stream[i]));
		NEED(cudaMemcpy(host, device[i] + 1, sizeof(host), cudaMemcpyDeviceToHost));
		for (int from = 0; from < RANKS; from++) {
			CHECK_INT(host[from], 1 << from);
		}
		NEED(ncclCommDestroy(comm[i]));
		NEED(cudaStreamDestroy(stream[i]));
		NEED(cudaFree(device[i]));
	}
	CHECK_INT(ncclGroupEnd(), ncclInvalidUsage);
}

static void test_refused(void)
{
	ncclComm_t comm;

	NEED(ncclGetUniqueId(&id));
	CHECK_INT(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
	CHECK_INT(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument);
	CHECK_INT(ncclCommInitRankScalable(&comm, 2, 0, 0, &id, NULL), ncclInvalidArgument);
	CHECK_INT(ncclCommInitRankScalable(&comm, 2, 0, 1, NULL, NULL), ncclInvalidArgument);
	setenv("VC_NCCL_TIMEOUT_S", "1", 1);
	CHECK_INT(ncclCommInitRank(&comm, 2, id, 0), ncclSystemError);
	CHECK(strstr(ncclGetLastError(NULL), "rank 1 did not come within 1 s"));
	unsetenv("VC_NCCL_TIMEOUT_S");
	memset(&id, 1, sizeof(id));
	CHECK_INT(ncclCommInitRank(&comm, 2, id, 0), ncclInvalidArgument);
}

/* Both ranks use the device. */
static void *shared_main(void *arg)
{
	int rank = (int)(intptr_t)arg;
	ncclComm_t comm = NULL;
	ncclResult_t result;

	NEED(cudaSetDevice(3));
	result = ncclCommInitRank(&comm, 2, id, rank);
	if (result) {
		CHECK(strstr(ncclGetLastError(NULL),
			     rank ? "Duplicate GPU detected : rank 1 and rank 0 "
				    "both on CUDA device 13000"
				  : "Duplicate GPU detected : rank 0 and rank 1 "
				    "both on CUDA device 13000"));
	} else {
		NEED(ncclCommDestroy(comm));
	}
	return (void *)(intptr_t)result;
}

/* A GPU may be shared from NCCL 2.30 on, by those who say so. */
static void test_shared_gpu(const char *version, const char *enabled, ncclResult_t want)
{
	pthread_t thread[2];
	void *result;

	setenv("VC_NCCL_VERSION", version, 1);
	setenv("NCCL_MULTI_RANK_GPU_ENABLE", enabled, 1);
	NEED(ncclGetUniqueId(&id));
	for (int i = 0; i < 2; i++) {
		NEED(pthread_create(&thread[i], NULL, shared_main, (void *)(intptr_t)i));
	}
	for (int i = 0; i < 2; i++) {
		NEED(pthread_join(thread[i], &result));
		CHECK_INT((intptr_t)result, want);
	}
	unsetenv("VC_NCCL_VERSION");
	unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

int main(void)
{
	pthread_t thread[RANKS];

	NEED(ncclGetUniqueId(&id));
	for (int i = 0; i < RANKS; i++) {
		NEED(pthread_create(&thread[i], NULL, rank_main, (void *)(intptr_t)i));
	}
	for (int i = 0; i < RANKS; i++) {
		pthread_join(thread[i], NULL);
	}
	test_one_thread();
	test_refused();
	test_shared_gpu("22907", "1", ncclInvalidUsage);
	test_shared_gpu("23007", "0", ncclInvalidUsage);
	test_shared_gpu("23007", "1", ncclSuccess);
	return test_result();
}
