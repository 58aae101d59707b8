/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the CUDA runtime. With it log lines have the number of the thread's CUDA device. */
#ifndef EP_CORE_CUDA_H
#define EP_CORE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include "core/error.h"

/* ncclUnhandledCudaError with CUDA's name for `err`. `what` is what was attempted. */
ncclResult_t ep_fail_cuda(cudaError_t err, const char *what);

/* A call of the driver, into *call: NULL, and false, if it has none of that name. */
bool ep_driver_find(const char *name, void *call);

#define EP_CUDA(call, what)                                                                        \
	do {                                                                                       \
		cudaError_t ep_cuda_ = (call);                                                     \
		if (ep_cuda_ != cudaSuccess) {                                                     \
			return ep_fail_cuda(ep_cuda_, what);                                       \
		}                                                                                  \
	} while (0)

/* With `result` in scope. */
#define EP_CUDA_GOTO(call, what, label)                                                            \
	do {                                                                                       \
		cudaError_t ep_cuda_ = (call);                                                     \
		if (ep_cuda_ != cudaSuccess) {                                                     \
			result = ep_fail_cuda(ep_cuda_, what);                                     \
			goto label;                                                                \
		}                                                                                  \
	} while (0)

#endif
