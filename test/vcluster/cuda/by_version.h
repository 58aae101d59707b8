/* SPDX-License-Identifier: Apache-2.0 */
/* A function that the virtual cluster has, and the headers of CUDA before 12.5 lack. */
#ifndef VC_CUDA_BY_VERSION_H
#define VC_CUDA_BY_VERSION_H

#include <cuda_runtime_api.h>

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn, unsigned int version,
					     unsigned long long flags,
					     enum cudaDriverEntryPointQueryResult *status);

#endif
