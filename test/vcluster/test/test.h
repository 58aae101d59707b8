/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the virtual cluster share. A failed check is reported and counted. */
#ifndef VC_TEST_H
#define VC_TEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cuda_runtime_api.h>

static int test_failures;

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);    \
			test_failures++;                                                           \
		}                                                                                  \
	} while (0)

#define CHECK_INT(got, want)                                                                       \
	do {                                                                                       \
		long long got_ = (long long)(got), want_ = (long long)(want);                      \
		if (got_ != want_) {                                                               \
			fprintf(stderr, "%s:%d: %s is %lld, should be %s = %lld\n", __FILE__,      \
				__LINE__, #got, got_, #want, want_);                               \
			test_failures++;                                                           \
		}                                                                                  \
	} while (0)

#define CHECK_CUDA(call, want)                                                                     \
	do {                                                                                       \
		cudaError_t got_ = (call), want_ = (want);                                         \
		if (got_ != want_) {                                                               \
			fprintf(stderr, "%s:%d: %s: %s, should be %s\n", __FILE__, __LINE__,       \
				#call, cudaGetErrorName(got_), cudaGetErrorName(want_));           \
			test_failures++;                                                           \
		}                                                                                  \
	} while (0)

#define OK(call) CHECK_CUDA(call, cudaSuccess)

#define NEED(call)                                                                                 \
	do {                                                                                       \
		int rc_ = (int)(call);                                                             \
		if (rc_) {                                                                         \
			fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, rc_);  \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static inline cudaError_t test_launch(void (*kernel)(void), unsigned int blocks,
				      unsigned int threads, void *args, size_t shared,
				      cudaStream_t stream)
{
	cudaLaunchConfig_t config = { .gridDim = { blocks, 1, 1 },
				      .blockDim = { threads, 1, 1 },
				      .dynamicSmemBytes = shared,
				      .stream = stream };
	void *list[] = { args };

	return cudaLaunchKernelExC(&config, (const void *)kernel, list);
}

static inline int test_result(void)
{
	return test_failures ? 1 : 0;
}

#endif
