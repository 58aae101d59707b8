// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "support/watch.h"

#define BLOCKS 4096
#define DEVICES 16

__thread struct watch watch;
static atomic_long live;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	void *ptr;
	size_t size;
	int device;
} block[BLOCKS];
static uint64_t bytes[DEVICES];

static int current(void)
{
	int device = 0;

	return cudaGetDevice(&device) == cudaSuccess ? device % DEVICES : 0;
}

uint64_t watch_bytes(void)
{
	uint64_t n;

	pthread_mutex_lock(&lock);
	n = bytes[current()];
	pthread_mutex_unlock(&lock);
	return n;
}

/* size 0: the block is freed */
static void note(void *ptr, size_t size)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < BLOCKS; i++) {
		if (block[i].ptr == (size ? NULL : ptr)) {
			if (size) {
				block[i].device = current();
				bytes[block[i].device] += size;
			} else {
				bytes[block[i].device] -= block[i].size;
			}
			block[i].ptr = size ? ptr : NULL;
			block[i].size = size;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

void watch_start(void)
{
	memset(&watch, 0, sizeof(watch));
}

long watch_live(void)
{
	return atomic_load(&live);
}

const char *watch_name(enum watch_call call)
{
	static const char *const names[WATCH_CALLS] = {
		"cudaMalloc",
		"cudaFree",
		"cudaHostAlloc",
		"cudaFreeHost",
		"cudaHostRegister",
		"cudaHostUnregister",
		"cudaHostGetDevicePointer",
		"cudaIpcOpenMemHandle",
		"cudaIpcCloseMemHandle",
		"cudaStreamCreate",
		"cudaStreamDestroy",
		"cudaDeviceSynchronize",
		"cudaStreamSynchronize",
		"cudaStreamQuery",
		"cudaMemcpyAsync",
		"cudaMemsetAsync",
		"cudaLaunchKernelExC",
		"ncclAllGather",
		"cuMemRetainAllocationHandle",
		"cuMemRelease",
		"cuMemAddressReserve",
		"cuMemAddressFree",
		"cuMemMap",
		"cuMemUnmap",
		"cuMemSetAccess",
	};

	return names[call];
}

/* Counts; true if this one is to fail. */
static bool seen(enum watch_call call)
{
	watch.calls[call]++;
	if (watch.fail_at[call] && watch.fail_at[call] == watch.calls[call]) {
		watch.failed++;
		return true;
	}
	return false;
}

static void changed(bool good, int by)
{
	if (good) {
		atomic_fetch_add(&live, by);
	}
}

/* The function of the same name that this one hides. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

cudaError_t cudaMalloc(void **ptr, size_t size)
{
	cudaError_t err = seen(WATCH_MALLOC) ? cudaErrorMemoryAllocation
					     : NEXT(cudaMalloc)(ptr, size);

	changed(err == cudaSuccess, 1);
	if (err == cudaSuccess && size) {
		note(*ptr, size);
	}
	return err;
}

cudaError_t cudaFree(void *ptr)
{
	cudaError_t err;

	seen(WATCH_FREE);
	if (ptr) { /* before another thread can get the address */
		note(ptr, 0);
	}
	err = NEXT(cudaFree)(ptr);
	changed(ptr && err == cudaSuccess, -1);
	return err;
}

cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned int flags)
{
	cudaError_t err = seen(WATCH_HOST_ALLOC) ? cudaErrorMemoryAllocation
						 : NEXT(cudaHostAlloc)(ptr, size, flags);

	changed(err == cudaSuccess, 1);
	return err;
}

cudaError_t cudaFreeHost(void *ptr)
{
	cudaError_t err;

	seen(WATCH_HOST_FREE);
	err = NEXT(cudaFreeHost)(ptr);
	changed(ptr && err == cudaSuccess, -1);
	return err;
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
	cudaError_t err = seen(WATCH_HOST_REGISTER) ? cudaErrorMemoryAllocation
						    : NEXT(cudaHostRegister)(ptr, size, flags);

	changed(err == cudaSuccess, 1);
	return err;
}

cudaError_t cudaHostUnregister(void *ptr)
{
	cudaError_t err;

	seen(WATCH_HOST_UNREGISTER);
	err = NEXT(cudaHostUnregister)(ptr);
	changed(err == cudaSuccess, -1);
	return err;
}

cudaError_t cudaHostGetDevicePointer(void **dev, void *host, unsigned int flags)
{
	return seen(WATCH_HOST_POINTER) ? cudaErrorMemoryAllocation
					: NEXT(cudaHostGetDevicePointer)(dev, host, flags);
}

cudaError_t cudaIpcOpenMemHandle(void **ptr, cudaIpcMemHandle_t handle, unsigned int flags)
{
	cudaError_t err = seen(WATCH_IPC_OPEN) ? cudaErrorMapBufferObjectFailed
					       : NEXT(cudaIpcOpenMemHandle)(ptr, handle, flags);

	changed(err == cudaSuccess, 1);
	return err;
}

cudaError_t cudaIpcCloseMemHandle(void *ptr)
{
	cudaError_t err;

	seen(WATCH_IPC_CLOSE);
	err = NEXT(cudaIpcCloseMemHandle)(ptr);
	changed(err == cudaSuccess, -1);
	return err;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
	cudaError_t err = seen(WATCH_STREAM_CREATE)
				  ? cudaErrorMemoryAllocation
				  : NEXT(cudaStreamCreateWithFlags)(stream, flags);

	changed(err == cudaSuccess, 1);
	return err;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	cudaError_t err;

	seen(WATCH_STREAM_DESTROY);
	err = NEXT(cudaStreamDestroy)(stream);
	changed(err == cudaSuccess, -1);
	return err;
}

cudaError_t cudaDeviceSynchronize(void)
{
	seen(WATCH_DEVICE_SYNC);
	return NEXT(cudaDeviceSynchronize)();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	seen(WATCH_STREAM_SYNC);
	return NEXT(cudaStreamSynchronize)(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	seen(WATCH_STREAM_QUERY);
	return NEXT(cudaStreamQuery)(stream);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	if (seen(WATCH_COPY)) {
		return cudaErrorInvalidValue;
	}
	return NEXT(cudaMemcpyAsync)(dst, src, size, kind, stream);
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t size, cudaStream_t stream)
{
	if (seen(WATCH_MEMSET)) {
		return cudaErrorInvalidValue;
	}
	return NEXT(cudaMemsetAsync)(ptr, value, size, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args)
{
	if (seen(WATCH_LAUNCH)) {
		return cudaErrorLaunchOutOfResources;
	}
	if (config->gridDim.x > watch.most_blocks) {
		watch.most_blocks = config->gridDim.x;
	}
	watch.attributes += config->numAttrs;
	return NEXT(cudaLaunchKernelExC)(config, kernel, args);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
			   ncclComm_t comm, cudaStream_t stream)
{
	if (seen(WATCH_GATHER)) {
		return ncclSystemError;
	}
	return NEXT(ncclAllGather)(in, out, count, type, comm, stream);
}

/* ---- the driver's calls ---- */

static struct {
	CUresult (*retain)(CUmemGenericAllocationHandle *, void *);
	CUresult (*release)(CUmemGenericAllocationHandle);
	CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	CUresult (*unreserve)(CUdeviceptr, size_t);
	CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
			unsigned long long);
	CUresult (*unmap)(CUdeviceptr, size_t);
	CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
} driver;

static CUresult retain(CUmemGenericAllocationHandle *handle, void *ptr)
{
	CUresult err = seen(WATCH_RETAIN) ? CUDA_ERROR_NOT_SUPPORTED : driver.retain(handle, ptr);

	changed(err == CUDA_SUCCESS, 1);
	return err;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	CUresult err;

	seen(WATCH_RELEASE);
	err = driver.release(handle);
	changed(err == CUDA_SUCCESS, -1);
	return err;
}

static CUresult reserve(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr at,
			unsigned long long flags)
{
	CUresult err = seen(WATCH_RESERVE) ? CUDA_ERROR_OUT_OF_MEMORY
					   : driver.reserve(ptr, size, align, at, flags);

	changed(err == CUDA_SUCCESS, 1);
	return err;
}

static CUresult unreserve(CUdeviceptr ptr, size_t size)
{
	CUresult err;

	seen(WATCH_UNRESERVE);
	err = driver.unreserve(ptr, size);
	changed(err == CUDA_SUCCESS, -1);
	return err;
}

static CUresult map(CUdeviceptr ptr, size_t size, size_t offset,
		    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult err = seen(WATCH_MAP) ? CUDA_ERROR_OUT_OF_MEMORY
				       : driver.map(ptr, size, offset, handle, flags);

	changed(err == CUDA_SUCCESS, 1);
	return err;
}

static CUresult unmap(CUdeviceptr ptr, size_t size)
{
	CUresult err;

	seen(WATCH_UNMAP);
	err = driver.unmap(ptr, size);
	changed(err == CUDA_SUCCESS, -1);
	return err;
}

static CUresult set_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	return seen(WATCH_ACCESS) ? CUDA_ERROR_INVALID_DEVICE
				  : driver.access(ptr, size, desc, count);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **fn, unsigned int version,
					     unsigned long long flags,
					     enum cudaDriverEntryPointQueryResult *found)
{
	const struct {
		enum watch_call call;
		void *real; /* where its address goes */
		void *ours;
	} table[] = {
		{ WATCH_RETAIN, &driver.retain, (void *)retain },
		{ WATCH_RELEASE, &driver.release, (void *)release },
		{ WATCH_RESERVE, &driver.reserve, (void *)reserve },
		{ WATCH_UNRESERVE, &driver.unreserve, (void *)unreserve },
		{ WATCH_MAP, &driver.map, (void *)map },
		{ WATCH_UNMAP, &driver.unmap, (void *)unmap },
		{ WATCH_ACCESS, &driver.access, (void *)set_access },
	};
	cudaError_t err = NEXT(cudaGetDriverEntryPointByVersion)(name, fn, version, flags, found);

	for (size_t i = 0; err == cudaSuccess && *fn && i < sizeof(table) / sizeof(*table); i++) {
		if (!strcmp(name, watch_name(table[i].call))) {
			memcpy(table[i].real, fn, sizeof(*fn));
			*fn = table[i].ours;
		}
	}
	return err;
}
