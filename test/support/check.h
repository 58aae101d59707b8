// SPDX-License-Identifier: Apache-2.0
/*
 * Checks of tests whose ranks are threads or processes. A failed CHECK is printed and counted; a
 * failed NEED ends the process, because its rank could not go on without hanging the others.
 */
#ifndef TEST_SUPPORT_CHECK_H
#define TEST_SUPPORT_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "nccl_ep.h"
#include "nccl_ep/ext.h"

#define TEST_SKIP 77

/* Prints "file:line: text" and counts. */
void check_fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
int check_failures(void);
/* What the checks that follow are about, printed with each failure; per thread. */
void check_context(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Exit status: 0, or 1 after failures. */
int check_end(void);

bool check_nccl(const char *file, int line, const char *call, ncclResult_t got, ncclResult_t want);
/* As check_nccl; the call's one-line reason must contain `part`. */
bool check_reason(const char *file, int line, const char *call, ncclResult_t got, ncclResult_t want,
		  const char *part);
/* Last error of the group, or of the thread when group is NULL. */
bool check_last(const char *file, int line, ncclEpGroup_t group, ncclResult_t want,
		const char *part);

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			check_fail(__FILE__, __LINE__, "%s", #cond);                               \
		}                                                                                  \
	} while (0)

#define CHECK_INT(got, want)                                                                       \
	do {                                                                                       \
		long long got_ = (long long)(got), want_ = (long long)(want);                      \
		if (got_ != want_) {                                                               \
			check_fail(__FILE__, __LINE__, "%s is %lld, not %lld", #got, got_, want_); \
		}                                                                                  \
	} while (0)

#define CHECK_RESULT(call, want) check_nccl(__FILE__, __LINE__, #call, call, want)
#define CHECK_REASON(call, want, part) check_reason(__FILE__, __LINE__, #call, call, want, part)
#define CHECK_LAST(group, want, part) check_last(__FILE__, __LINE__, group, want, part)
#define OK(call) CHECK_RESULT(call, ncclSuccess)

#define NEED(cond)                                                                                 \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			check_fail(__FILE__, __LINE__, "%s: giving up", #cond);                    \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define NEED_OK(call)                                                                              \
	do {                                                                                       \
		if (!OK(call)) {                                                                   \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define NEED_CUDA(call)                                                                            \
	do {                                                                                       \
		cudaError_t err_ = (call);                                                         \
		if (err_ != cudaSuccess) {                                                         \
			check_fail(__FILE__, __LINE__, "%s: %s", #call, cudaGetErrorName(err_));   \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#endif
