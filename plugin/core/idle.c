/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the device has come to rest. CUDA's calls that free memory wait for everything on it, the
 * program's own kernels too, and CUDA can be asked without waiting about single streams only. So a
 * thread waits, and is left to itself where that takes too long.
 */
#include "core/idle.h"

struct ep_idler {
	int device;
	cudaError_t error;
};

static void ep_idler_wait(void *arg)
{
	/* Captures of other threads take no harm. */
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	struct ep_idler *w = arg;

	cudaThreadExchangeStreamCaptureMode(&mode);
	w->error = cudaSetDevice(w->device);
	if (w->error == cudaSuccess) {
		w->error = cudaDeviceSynchronize();
	}
	(void)cudaGetLastError();
}

cudaError_t ep_device_wait(int device, uint64_t timeout_ns)
{
	struct ep_idler w = { device, cudaErrorNotReady };

	return ep_errand_run(ep_idler_wait, &w, sizeof(w), timeout_ns) ? cudaErrorNotReady
								       : w.error;
}
