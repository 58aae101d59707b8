/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"

/* Before CUDA 12.5 one asks for the release of the runtime: what is asked for here is the same in all of CUDA 12. */
#if CUDART_VERSION < 12050
#define cudaGetDriverEntryPointByVersion(name, call, version, flags, found)                        \
	cudaGetDriverEntryPoint(name, call, flags, found)
#endif

ncclResult_t ep_fail_cuda(cudaError_t err, const char *what)
{
	(void)cudaGetLastError(); /* the caller's next check must not find our error */
	return ep_fail(ncclUnhandledCudaError, "%s failed: %s (%s)", what, cudaGetErrorString(err),
		       cudaGetErrorName(err));
}

bool ep_driver_find(const char *name, void *call)
{
	enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
	void *address = NULL;

	if (cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found) !=
		    cudaSuccess ||
	    found != cudaDriverEntryPointSuccess) {
		(void)cudaGetLastError();
		address = NULL;
	}
	memcpy(call, &address, sizeof(address));
	return address != NULL;
}

static int cuda_device(void)
{
	int device = -1;

	(void)cudaGetDevice(&device);
	return device;
}

__attribute__((constructor)) static void ep_cuda_init(void)
{
	ep_log_device = cuda_device;
}
