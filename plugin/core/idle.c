/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the device has come to rest. CUDA's calls that free memory wait for everything on it, the
 * program's own kernels too, and CUDA can be asked without waiting about single streams only. So a
 * thread waits, and is left to itself where that takes too long.
 */
#include "core/idle.h"

struct idler {
	int device;
	cudaError_t error;
};

cudaError_t ep_device_rest(int device)
{
	/* Captures of other threads take no harm. */
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	cudaError_t error;

	cudaThreadExchangeStreamCaptureMode(&mode);
	error = cudaSetDevice(device);
	if (error == cudaSuccess) {
		error = cudaDeviceSynchronize();
	}
	(void)cudaGetLastError();
	return error;
}

static void idler_wait(void *arg)
{
	struct idler *w = arg;

	w->error = ep_device_rest(w->device);
}

int ep_device_wait(int device, uint64_t timeout_ns, cudaError_t *state)
{
	struct idler w = { device, cudaSuccess };
	int error = ep_timed_call(idler_wait, &w, sizeof(w), timeout_ns);

	*state = w.error;
	return error;
}
