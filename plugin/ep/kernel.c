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

ncclResult_t ep_kernels_share(const void *const *kernels, size_t count, int device, uint32_t *bytes)
{
	struct cudaFuncAttributes attributes;
	size_t fixed = 0;
	int most = 0;

	EP_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
		"asking for the device's shared memory");
	for (size_t i = 0; i < count; i++) {
		EP_CUDA(cudaFuncGetAttributes(&attributes, kernels[i]),
			"asking for a kernel's shared memory");
		fixed = ep_max_u64(fixed, attributes.sharedSizeBytes);
	}
	*bytes = (uint32_t)most - (uint32_t)ep_min_u64(fixed, (uint64_t)most);
	for (size_t i = 0; i < count; i++) {
		EP_CUDA(cudaFuncSetAttribute(kernels[i],
					     cudaFuncAttributeMaxDynamicSharedMemorySize,
					     (int)*bytes),
			"making room in shared memory");
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
