/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sources in nccl-tests-patch/ find of nccl-tests, for the virtual cluster: the names that
 * they use, with the meaning that nccl-tests gives them. harness.h has the rest.
 */
#ifndef TEST_NCCLTESTS_COMMON_H
#define TEST_NCCLTESTS_COMMON_H

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <nccl.h>

enum testResult_t {
	testSuccess,
	testCudaError,
	testNcclError,
	testNotImplemented,
	testInvalidUsage
};

#define CUDACHECK(cmd)                                                                             \
	do {                                                                                       \
		cudaError_t check_err = cmd;                                                       \
		if (check_err != cudaSuccess) {                                                    \
			printf("%s: %s\n", #cmd, cudaGetErrorString(check_err));                   \
			return testCudaError;                                                      \
		}                                                                                  \
	} while (0)
#define NCCLCHECK(cmd)                                                                             \
	do {                                                                                       \
		if ((cmd) != ncclSuccess) {                                                        \
			printf("%s failed\n", #cmd);                                               \
			return testNcclError;                                                      \
		}                                                                                  \
	} while (0)
#define TESTCHECK(cmd)                                                                             \
	do {                                                                                       \
		testResult_t check_result = cmd;                                                   \
		if (check_result != testSuccess) {                                                 \
			return check_result;                                                       \
		}                                                                                  \
	} while (0)

struct threadArgs {
	size_t minbytes, maxbytes, sendBytes, expectedBytes;
	int nProcs, nThreads, nGpus, reportErrors;
	void *sendbuffs[1], *recvbuffs[1], *expected[1];
	ncclComm_t comms[1];
	cudaStream_t streams[1];
	struct testColl *collTest;
};

struct testColl {
	const char name[20];
	void (*getCollByteCount)(size_t *, size_t *, size_t *, size_t *, size_t *, size_t, size_t,
				 int);
	testResult_t (*initData)(threadArgs *, ncclDataType_t, ncclRedOp_t, int, int, int);
	void (*getBw)(size_t, size_t, double, double *, double *, int);
	testResult_t (*runColl)(void *, size_t, void *, size_t, size_t, ncclDataType_t, ncclRedOp_t,
				int, ncclComm_t, cudaStream_t, int);
};

struct testEngine {
	void (*getBuffSize)(size_t *, size_t *, size_t, int);
	testResult_t (*runTest)(threadArgs *, int, ncclDataType_t, const char *, ncclRedOp_t,
				const char *);
};

static const int test_typenum = 4;
static const ncclDataType_t test_types[] = { ncclInt32, ncclFloat32, ncclBfloat16, ncclFloat16 };
static const char *const test_typenames[] = { "int32", "float", "bfloat16", "half" };
static thread_local int is_main_thread;

static inline size_t wordSize(ncclDataType_t type)
{
	return type == ncclInt32 || type == ncclFloat32 ? 4 : 2;
}

testResult_t TimeTest(threadArgs *args, ncclDataType_t type, const char *type_name, ncclRedOp_t op,
		      const char *op_name, int root);

/* Where device memory is the host's. */
template <typename F> static testResult_t EpForEach(F f, size_t n, cudaStream_t stream)
{
	CUDACHECK(cudaStreamSynchronize(stream));
	for (size_t i = 0; i < n; i++) {
		f(i);
	}
	return testSuccess;
}

#endif
