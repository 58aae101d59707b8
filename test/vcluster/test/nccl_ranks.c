/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL calls between rank processes. */
#include "ranks.h"

#define N 200000 /* more than one slot */

static void test_questions(ncclComm_t comm)
{
	int value;
	ncclResult_t error;

	OK((cudaError_t)ncclCommCount(comm, &value));
	CHECK_INT(value, nranks);
	OK((cudaError_t)ncclCommUserRank(comm, &value));
	CHECK_INT(value, rank);
	OK((cudaError_t)ncclCommCuDevice(comm, &value));
	CHECK_INT(value, local_rank);
	OK((cudaError_t)ncclCommGetAsyncError(comm, &error));
	CHECK_INT(error, ncclSuccess);
	OK((cudaError_t)ncclGetVersion(&value));
	CHECK(value >= 22800);
	CHECK_INT(ncclCommCount(comm, NULL), ncclInvalidArgument);
	CHECK_INT(ncclCommCount((ncclComm_t)&value, &value), ncclInvalidArgument);
}

static void test_gather(ncclComm_t comm)
{
	cudaStream_t stream;
	int32_t *device, *host = malloc(sizeof(int32_t) * N * (size_t)(nranks + 1));

	NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	NEED(cudaMalloc((void **)&device, sizeof(int32_t) * N * (size_t)(nranks + 1)));
	for (int i = 0; i < N; i++) {
		host[i] = rank * N + i;
	}
	NEED(cudaMemcpyAsync(device, host, sizeof(int32_t) * N, cudaMemcpyDefault, stream));
	NEED(ncclAllGather(device, device + N, N, ncclInt32, comm, stream));
	NEED(cudaMemcpyAsync(host, device + N, sizeof(int32_t) * N * (size_t)nranks,
			     cudaMemcpyDefault, stream));
	NEED(cudaStreamSynchronize(stream));
	for (int i = 0; i < N * nranks && !test_failures; i++) {
		CHECK_INT(host[i], i);
	}
	CHECK_INT(ncclAllGather(host, device, 4, ncclInt32, comm, stream), ncclInvalidArgument);
	CHECK_INT(ncclAllGather(device, device, 4, (ncclDataType_t)99, comm, stream),
		  ncclInvalidArgument);
	OK(cudaStreamDestroy(stream));
	OK(cudaFree(device));
	free(host);
}

/* Different calls on different ranks, and a rank that leaves: errors, in bounded time. */
static void test_mistakes(void)
{
	ncclComm_t comm = ranks_comm();
	cudaStream_t stream;
	ncclResult_t error;
	float *device;

	NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	NEED(cudaMalloc((void **)&device, 1024));
	NEED(cudaMemset(device, 0, 1024));
	NEED(cudaDeviceSynchronize());
	NEED(ncclAllGather(device, device + 16, rank == 1 ? 8 : 16, ncclFloat32, comm, stream));
	OK(cudaStreamSynchronize(stream));
	OK((cudaError_t)ncclCommGetAsyncError(comm, &error));
	CHECK(error == ncclInvalidUsage || error == ncclRemoteError);
	NEED(ncclCommAbort(comm));

	comm = ranks_comm();
	if (rank == 0) {
		NEED(ncclCommAbort(comm));
	} else {
		NEED(ncclAllGather(device, device + 16, 4, ncclFloat32, comm, stream));
		OK(cudaStreamSynchronize(stream));
		OK((cudaError_t)ncclCommGetAsyncError(comm, &error));
		CHECK_INT(error, ncclRemoteError);
		NEED(ncclCommAbort(comm));
	}
	OK(cudaStreamDestroy(stream));
	OK(cudaFree(device));
}

int main(void)
{
	ncclComm_t comm;

	ranks_init();
	NEED(cudaSetDevice(local_rank));
	comm = ranks_comm();
	test_questions(comm);
	test_gather(comm);
	NEED(ncclCommDestroy(comm));
	CHECK_INT(ncclCommDestroy(comm), ncclInvalidArgument);
	test_mistakes();
	return test_result();
}
