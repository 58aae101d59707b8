/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the library's calls. */
#ifndef TEST_SUPPORT_CHECK_NCCL_H
#define TEST_SUPPORT_CHECK_NCCL_H

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "nccl_ep.h"
#include "nccl_ep/ext.h"
#include "support/check.h"

bool check_nccl(const char *file, int line, const char *call, ncclResult_t got, ncclResult_t want);
/* As check_nccl; the call's one-line reason must contain `part`. */
bool check_reason(const char *file, int line, const char *call, ncclResult_t got, ncclResult_t want,
		  const char *part);
/* Last error of the group, or of the thread when group is NULL. */
bool check_last(const char *file, int line, ncclEpGroup_t group, ncclResult_t want,
		const char *part);

#define CHECK_RESULT(call, want) check_nccl(__FILE__, __LINE__, #call, call, want)
#define CHECK_REASON(call, want, part) check_reason(__FILE__, __LINE__, #call, call, want, part)
#define CHECK_LAST(group, want, part) check_last(__FILE__, __LINE__, group, want, part)
#define OK(call) CHECK_RESULT(call, ncclSuccess)

#define NEED_OK(call)                                                                              \
	do {                                                                                       \
		if (!OK(call)) {                                                                   \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* The same of what goes to a stream, which is idle then. */
#define OK_SYNC(call, stream)                                                                      \
	do {                                                                                       \
		OK(call);                                                                          \
		NEED_CUDA(cudaStreamSynchronize(stream));                                          \
	} while (0)

#define NEED_SYNC(call, stream)                                                                    \
	do {                                                                                       \
		NEED_OK(call);                                                                     \
		NEED_CUDA(cudaStreamSynchronize(stream));                                          \
	} while (0)

#endif
