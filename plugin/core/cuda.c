/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cuda.h"
#include "core/log.h"

ncclResult_t ep_fail_cuda(cudaError_t err, const char *what)
{
	(void)cudaGetLastError(); /* the caller's next check must not find our error */
	return ep_fail(ncclUnhandledCudaError, "%s failed: %s (%s)", what, cudaGetErrorString(err),
		       cudaGetErrorName(err));
}

static int ep_cuda_device(void)
{
	int device = -1;

	(void)cudaGetDevice(&device);
	return device;
}

__attribute__((constructor)) static void ep_cuda_init(void)
{
	ep_log_device = ep_cuda_device;
}
