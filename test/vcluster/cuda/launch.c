/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel launches, function attributes, occupancy. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda/runtime.h"

/* The codes below are those of a GPU with CUDA 13 (test/cuda_api.c runs on both). */

static cudaError_t vc_shape_check(const struct vc_kernel *kernel, dim3 grid, dim3 block,
				  size_t shared)
{
	uint64_t threads = (uint64_t)block.x * block.y * block.z;

	if (!grid.x || !grid.y || !grid.z || !threads || threads > VC_BLOCK_THREADS_MAX ||
	    grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535) {
		return cudaErrorInvalidValue;
	}
	/* The conventions of kernel sources: one dimension, whole warps. */
	if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1 || threads % 32) {
		return cudaErrorInvalidConfiguration;
	}
	if (threads > kernel->max_threads || shared > (size_t)kernel->max_dynamic_shared) {
		return cudaErrorInvalidValue;
	}
	return cudaSuccess;
}

/*
 * Attributes that change nothing here because they only give hints or relax an order that is kept
 * anyway. Every other one must be understood or the launch is refused.
 */
static cudaError_t vc_attribute_check(const struct vc_kernel *kernel,
				      const cudaLaunchConfig_t *config,
				      const cudaLaunchAttribute *attr)
{
	switch (attr->id) {
	case cudaLaunchAttributeIgnore:
	case cudaLaunchAttributeAccessPolicyWindow:
	case cudaLaunchAttributePriority:
	case cudaLaunchAttributeMemSyncDomain:
	case cudaLaunchAttributeMemSyncDomainMap:
#if CUDART_VERSION >= 12050
	case cudaLaunchAttributePreferredSharedMemoryCarveout:
#endif
	case cudaLaunchAttributeProgrammaticStreamSerialization:
		return cudaSuccess;
	case cudaLaunchAttributeClusterDimension:
		return attr->val.clusterDim.x == 1 && attr->val.clusterDim.y == 1 &&
				       attr->val.clusterDim.z == 1
			       ? cudaSuccess
			       : cudaErrorNotSupported;
	case cudaLaunchAttributeCooperative:
		if (attr->val.cooperative &&
		    config->gridDim.x > vc_sm_count() * vc_occupancy(kernel, config->blockDim.x,
								     config->dynamicSmemBytes)) {
			return cudaErrorCooperativeLaunchTooLarge;
		}
		return cudaSuccess;
	default:
		return cudaErrorInvalidValue;
	}
}

static cudaError_t vc_launch(const cudaLaunchConfig_t *config, const void *handle, void **args)
{
	struct vc_work work = { .kind = VC_WORK_KERNEL, .device = vc_device_current() };
	struct CUstream_st *stream;
	const struct vc_kernel *kernel;
	int device = -1;
	cudaError_t error;

	kernel = vc_kernel_find(handle);
	if (!kernel) {
		return cudaErrorInvalidResourceHandle;
	}
	if (!args || !args[0]) {
		return cudaErrorInvalidValue;
	}
	error = vc_shape_check(kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes);
	for (unsigned int i = 0; i < config->numAttrs && !error; i++) {
		error = vc_attribute_check(kernel, config, &config->attrs[i]);
	}
	if (error) {
		return error;
	}
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(config->stream);
	if (stream) {
		device = stream->device;
	}
	pthread_mutex_unlock(&vc_lock);
	if (device != vc_device_current()) {
		return cudaErrorInvalidResourceHandle;
	}
	work.launch.kernel = kernel;
	work.launch.nblocks = config->gridDim.x;
	work.launch.nthreads = config->blockDim.x;
	work.launch.dynamic_shared = config->dynamicSmemBytes;
	work.launch.args = malloc(kernel->args_size);
	if (!work.launch.args) {
		return cudaErrorMemoryAllocation;
	}
	memcpy(work.launch.args, args[0], kernel->args_size);
	vc_fault_at_launch(device);
	vc_context_lock(device);
	error = vc_stream_submit(config->stream, &work);
	vc_context_unlock(device);
	return error;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *handle, void **args)
{
	VC_ENTER();
	if (!config || (config->numAttrs && !config->attrs)) {
		return vc_error(cudaErrorInvalidValue);
	}
	return vc_error(vc_launch(config, handle, args));
}

cudaError_t cudaLaunchKernel(const void *handle, dim3 grid, dim3 block, void **args, size_t shared,
			     cudaStream_t stream)
{
	cudaLaunchConfig_t config = {
		.gridDim = grid, .blockDim = block, .dynamicSmemBytes = shared, .stream = stream
	};

	return cudaLaunchKernelExC(&config, handle, args);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *handle)
{
	const struct vc_kernel *kernel = vc_kernel_find(handle);

	VC_ENTER();
	if (!attr) {
		return vc_error(cudaErrorInvalidValue);
	}
	if (!kernel) {
		return vc_error(cudaErrorInvalidResourceHandle);
	}
	memset(attr, 0, sizeof(*attr));
	attr->maxThreadsPerBlock = (int)kernel->max_threads;
	attr->maxDynamicSharedSizeBytes = kernel->max_dynamic_shared;
	attr->numRegs = (int)kernel->registers;
	attr->ptxVersion = attr->binaryVersion = 90;
	return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *handle, enum cudaFuncAttribute which, int value)
{
	struct vc_kernel *kernel = vc_kernel_find(handle);

	VC_ENTER();
	if (!kernel) {
		return vc_error(cudaErrorInvalidResourceHandle);
	}
	switch (which) {
	case cudaFuncAttributeMaxDynamicSharedMemorySize:
		if (value < 0 || value > (int)VC_BLOCK_SHARED_MAX) {
			return vc_error(cudaErrorInvalidValue);
		}
		kernel->max_dynamic_shared = value > VC_STATIC_LIMIT ? value : VC_STATIC_LIMIT;
		return cudaSuccess;
	case cudaFuncAttributePreferredSharedMemoryCarveout:
		return value < -1 || value > 100 ? vc_error(cudaErrorInvalidValue) : cudaSuccess;
	default:
		return vc_error(cudaErrorInvalidValue);
	}
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *handle,
							  int threads, size_t shared)
{
	const struct vc_kernel *kernel = vc_kernel_find(handle);

	VC_ENTER();
	if (!blocks || threads <= 0) {
		return vc_error(cudaErrorInvalidValue);
	}
	if (!kernel) {
		return vc_error(cudaErrorInvalidResourceHandle);
	}
	*blocks = 0;
	if ((uint32_t)threads <= kernel->max_threads &&
	    shared <= (size_t)kernel->max_dynamic_shared) {
		*blocks = (int)vc_occupancy(kernel, (uint32_t)threads, shared);
	}
	return cudaSuccess;
}

/*
 * VC_FAULT is a list, separated by ';', of
 *   kill:rank=3,launch=5[,us=200]    SIGKILL at (or that long after) the rank's fifth launch
 *   stop:rank=3,launch=5[,us=200]    SIGSTOP likewise; both at the second launch after that at the
 *                                    latest, for the thread that sends the signal may get no
 *                                    processor when it should
 *   delay:rank=1,us=1000[,launch=2]  sleep before each launch, or before that one
 * Launches count from 1, kernels of a graph one by one as the graph is launched. A process without
 * a rank is rank 0.
 */

#define VC_LATEST_LAUNCH 2

static _Atomic int vc_pending;   /* signal that is to be sent; 0: none */
static _Atomic long vc_deadline; /* launch before which it is sent at the latest */

static void vc_fault_send(void)
{
	int number = atomic_exchange(&vc_pending, 0);

	if (number) {
		kill(getpid(), number);
	}
}

static void *vc_later_main(void *us)
{
	usleep((unsigned int)(uintptr_t)us);
	vc_fault_send();
	return NULL;
}

static void vc_fault_signal(int number, long us, long launch)
{
	pthread_t thread;

	atomic_store(&vc_deadline, launch + VC_LATEST_LAUNCH);
	atomic_store(&vc_pending, number);
	if (us && !pthread_create(&thread, NULL, vc_later_main, (void *)(uintptr_t)us)) {
		pthread_detach(thread);
		return;
	}
	vc_fault_send();
}

static long vc_fault_field(const char *rule, size_t len, const char *name, long fallback)
{
	size_t n = strlen(name);

	for (size_t i = 1; i + n < len; i++) {
		if ((rule[i - 1] == ':' || rule[i - 1] == ',') && !strncmp(rule + i, name, n) &&
		    rule[i + n] == '=') {
			return strtol(rule + i + n + 1, NULL, 0);
		}
	}
	return fallback;
}

static void vc_fault_rule(const char *rule, size_t len, long launch)
{
	long rank = vc_rank() < 0 ? 0 : vc_rank();
	long at = vc_fault_field(rule, len, "launch", 0);
	long us = vc_fault_field(rule, len, "us", 0);

	if (vc_fault_field(rule, len, "rank", rank) != rank || (at && at != launch)) {
		return;
	}
	if (!strncmp(rule, "delay:", 6)) {
		usleep((unsigned int)us);
	} else if (!strncmp(rule, "kill:", 5) && at) {
		vc_fault_signal(SIGKILL, us, launch);
	} else if (!strncmp(rule, "stop:", 5) && at) {
		vc_fault_signal(SIGSTOP, us, launch);
	} else {
		vc_die(VC_EXIT_ILLEGAL, "VC_FAULT: cannot understand '%.*s'", (int)len, rule);
	}
}

void vc_fault_at_launch(int device)
{
	static _Atomic long launches;
	const char *rule = getenv("VC_FAULT");
	long launch = atomic_fetch_add(&launches, 1) + 1;

	(void)device;
	if (launch >= atomic_load(&vc_deadline)) {
		vc_fault_send();
	}
	while (rule && *rule) {
		size_t len = strcspn(rule, ";");

		if (len) {
			vc_fault_rule(rule, len, launch);
		}
		rule += len + (rule[len] == ';');
	}
}
