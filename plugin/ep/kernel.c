/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cuda.h"
#include "ep/kernel.h"

ncclResult_t ep_kernels_load(const void *const *kernels, size_t count)
{
	struct cudaFuncAttributes attributes;

	for (size_t i = 0; i < count; i++) {
		cudaError_t err = cudaFuncGetAttributes(&attributes, kernels[i]);

		if (err != cudaSuccess) {
			(void)cudaGetLastError();
			return ep_fail(ncclUnhandledCudaError,
				       "no kernel can be loaded on this GPU: %s; the library needs "
				       "compute capability 8.0 or later",
				       cudaGetErrorString(err));
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_kernel_launch(const void *kernel, void *args, uint32_t blocks, uint32_t threads,
			      uint32_t shared_bytes, cudaStream_t stream, const char *what)
{
	void *params[] = { args };
	cudaLaunchConfig_t config = {
		.gridDim = { blocks, 1, 1 },
		.blockDim = { threads, 1, 1 },
		.dynamicSmemBytes = shared_bytes,
		.stream = stream,
	};

	EP_CUDA(cudaLaunchKernelExC(&config, kernel, params), what);
	return ncclSuccess;
}
