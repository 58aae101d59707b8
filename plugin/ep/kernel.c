/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels are loaded, given shared memory, launched, and waited for: the same for those of every
 * algorithm.
 */
#include <errno.h>
#include "core/cuda.h"
#include "core/util.h"
#include "ep/ep.h"

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

#define EP_KERNEL_WAITS 90            /* kernels of this architecture and later wait: EP_KERNEL */
#define EP_GRAPHS_KNOW_LAUNCHES 12030 /* drivers of that CUDA and later capture such launches */

ncclResult_t ep_kernels_programmatic(const struct ep_params *params, const void *kernel,
				     bool *programmatic)
{
	struct cudaFuncAttributes attributes;
	int driver = 0;

	EP_CUDA(cudaDriverGetVersion(&driver), "asking for the driver's version");
	EP_CUDA(cudaFuncGetAttributes(&attributes, kernel), "asking what a kernel is compiled for");
	*programmatic = params->value[EP_PARAM_EARLY_START] && driver >= EP_GRAPHS_KNOW_LAUNCHES &&
			attributes.ptxVersion >= EP_KERNEL_WAITS;
	return ncclSuccess;
}

ncclResult_t ep_stream_check_device(cudaStream_t stream, const char *what)
{
	int device = ep_context_stream_device(stream), current = -1;

	if (cudaGetDevice(&current) != cudaSuccess || device < 0 || device == current) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidUsage,
		       "%s: the stream is of device %d, and the group of device %d: pass a stream "
		       "that was made on the group's device",
		       what, device, current);
}

/* A launch has failed: perhaps since the stream is of another device. */
static ncclResult_t kernel_refused(cudaError_t err, cudaStream_t stream, const char *what)
{
	(void)cudaGetLastError();
	EP_CHECK(ep_stream_check_device(stream, what));
	return ep_fail_cuda(err, what);
}

ncclResult_t ep_kernel_launch(const struct ncclEpGroup *g, const void *kernel, void *args,
			      uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
			      cudaStream_t stream, const char *what)
{
	void *params[] = { args };
	cudaLaunchAttribute programmatic = {
		.id = cudaLaunchAttributeProgrammaticStreamSerialization,
		.val.programmaticStreamSerializationAllowed = 1,
	};
	cudaLaunchConfig_t config = {
		.gridDim = { blocks, 1, 1 },
		.blockDim = { threads, 1, 1 },
		.dynamicSmemBytes = shared_bytes,
		.stream = stream,
		.attrs = &programmatic,
		.numAttrs = g->programmatic ? 1 : 0,
	};

	cudaError_t err = cudaLaunchKernelExC(&config, kernel, params);

	return err == cudaSuccess ? ncclSuccess : kernel_refused(err, stream, what);
}

ncclResult_t ep_group_rest(const struct ncclEpGroup *g, const struct ep_rest *how,
			   cudaError_t *state)
{
	const char *gpu = g->idents[g->rank].bus_id;
	char text[EP_THREAD_ERROR_TEXT];
	int error = ep_device_wait(g->device, how->timeout_ns, state);

	*state = error ? cudaErrorNotReady : *state;
	if (error == ETIMEDOUT) {
		return ep_fail(
			ncclSystemError,
			"%s: rank %d's GPU %s is still busy after %llu ms: see what does not "
			"end on it (a collective that waits for a lost rank? Abort its "
			"communicator), then %s. %s",
			how->what, g->rank, gpu, (unsigned long long)(how->timeout_ns / 1000000),
			how->then, how->limit);
	}
	if (error) {
		return ep_fail(
			ncclSystemError,
			"%s: rank %d cannot start a thread that waits for its GPU %s: %s; once "
			"it can, %s",
			how->what, g->rank, gpu, ep_thread_error_print(error, text), how->then);
	}
	if (*state >= cudaErrorStreamCaptureUnsupported &&
	    *state <= cudaErrorStreamCaptureWrongThread) {
		return ep_fail(
			ncclInvalidUsage,
			"%s: a stream of rank %d's GPU %s is being captured, so nobody can wait "
			"for the group's kernels there (%s): end the capture, then %s",
			how->what, g->rank, gpu, cudaGetErrorString(*state), how->then);
	}
	return ncclSuccess;
}
