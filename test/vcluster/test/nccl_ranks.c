/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL calls between rank processes. */
#include <math.h>
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

static void test_collectives(ncclComm_t comm)
{
	cudaStream_t stream;
	int32_t *device, *host = malloc(sizeof(int32_t) * N * (size_t)(nranks + 1));
	float *floats = (float *)host;

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
	/* the sum, in place */
	NEED(ncclAllReduce(device, device, N, ncclInt32, ncclSum, comm, stream));
	NEED(cudaMemcpyAsync(host, device, sizeof(int32_t) * N, cudaMemcpyDefault, stream));
	NEED(cudaStreamSynchronize(stream));
	for (int i = 0; i < N && !test_failures; i++) {
		CHECK_INT(host[i], nranks * (nranks - 1) / 2 * N + nranks * i);
	}
	for (int i = 0; i < 8; i++) {
		floats[i] = (float)(rank + i) / 2;
	}
	NEED(cudaMemcpyAsync(device, floats, 32, cudaMemcpyDefault, stream));
	NEED(ncclAllReduce(device, device + 8, 8, ncclFloat32, ncclMax, comm, stream));
	NEED(ncclAllReduce(device, device + 16, 8, ncclFloat32, ncclMin, comm, stream));
	NEED(ncclAllReduce(device, device + 24, 8, ncclFloat32, ncclAvg, comm, stream));
	NEED(ncclBroadcast(device, device + 32, 8, ncclFloat32, nranks - 1, comm, stream));
	NEED(cudaMemcpyAsync(floats, device + 8, 128, cudaMemcpyDefault, stream));
	NEED(cudaStreamSynchronize(stream));
	for (int i = 0; i < 8; i++) {
		CHECK(floats[i] == (float)(nranks - 1 + i) / 2);
		CHECK(floats[8 + i] == (float)i / 2);
		CHECK(fabsf(floats[16 + i] - (float)i / 2 - (float)(nranks - 1) / 4) < 1e-5f);
		CHECK(floats[24 + i] == (float)(nranks - 1 + i) / 2);
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
	NEED(ncclAllReduce(device, device, rank == 1 ? 8 : 16, ncclFloat32, ncclSum, comm, stream));
	OK(cudaStreamSynchronize(stream));
	OK((cudaError_t)ncclCommGetAsyncError(comm, &error));
	CHECK(error == ncclInvalidUsage || error == ncclRemoteError);
	NEED(ncclCommAbort(comm));

	comm = ranks_comm();
	if (rank == 0) {
		NEED(ncclCommAbort(comm));
	} else {
		NEED(ncclAllReduce(device, device, 4, ncclFloat32, ncclSum, comm, stream));
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
	test_collectives(comm);
	NEED(ncclCommDestroy(comm));
	CHECK_INT(ncclCommDestroy(comm), ncclInvalidArgument);
	test_mistakes();
	return test_result();
}
