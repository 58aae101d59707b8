/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GDA_LAUNCH_H
#define TEST_GDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include "support/check.h"

static inline void gda_launch(void (*kernel)(void), uint32_t blocks, uint32_t threads, void *args,
			      size_t shared, cudaStream_t stream)
{
	cudaLaunchConfig_t config = { .gridDim = { blocks, 1, 1 },
				      .blockDim = { threads, 1, 1 },
				      .dynamicSmemBytes = shared,
				      .stream = stream };
	void *list[] = { args };

	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)kernel, list));
}

#endif
