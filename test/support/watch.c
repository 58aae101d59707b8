/* SPDX-License-Identifier: Apache-2.0 */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "support/next.h"
#include "support/watch.h"

#define BLOCKS 4096
#define DEVICES 16

__thread struct watch watch;
static __thread bool watches;
static _Atomic(struct watch *) first; /* of a thread that has called watch_start */
static atomic_int watchers;
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
	if (!watches) {
		watches = true;
		atomic_store(&first, &watch);
		atomic_fetch_add(&watchers, 1);
	}
}

/* Whose watch this thread's calls count for. */
static struct watch *watch_of(enum watch_call call)
{
	bool lent = call == WATCH_GATHER && !watches && atomic_load(&watchers) == 1;

	return lent ? atomic_load(&first) : &watch;
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
	struct watch *of = watch_of(call);

	of->calls[call]++;
	if (of->fail_at[call] && of->fail_at[call] == of->calls[call]) {
		of->failed++;
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

/* Fails with `error` where it is to; where it does not, there are `by` more things that live. */
#define CALL(type, name, next, call, by, params, args, error)                                      \
	type name params                                                                           \
	{                                                                                          \
		type result_ = seen(call) ? (error) : (next)args;                                  \
		changed(result_ == 0, by);                                                         \
		return result_;                                                                    \
	}
#define CUDA(name, call, by, params, args, error)                                                  \
	CALL(cudaError_t, name, NEXT(name), call, by, params, args, error)

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

CUDA(cudaHostAlloc, WATCH_HOST_ALLOC, 1, (void **ptr, size_t size, unsigned int flags),
     (ptr, size, flags), cudaErrorMemoryAllocation)
CUDA(cudaFreeHost, WATCH_HOST_FREE, ptr ? -1 : 0, (void *ptr), (ptr), cudaErrorInvalidValue)
CUDA(cudaHostRegister, WATCH_HOST_REGISTER, 1, (void *ptr, size_t size, unsigned int flags),
     (ptr, size, flags), cudaErrorMemoryAllocation)
CUDA(cudaHostUnregister, WATCH_HOST_UNREGISTER, -1, (void *ptr), (ptr), cudaErrorInvalidValue)
CUDA(cudaHostGetDevicePointer, WATCH_HOST_POINTER, 0, (void **dev, void *host, unsigned int flags),
     (dev, host, flags), cudaErrorMemoryAllocation)
CUDA(cudaIpcOpenMemHandle, WATCH_IPC_OPEN, 1,
     (void **ptr, cudaIpcMemHandle_t handle, unsigned int flags), (ptr, handle, flags),
     cudaErrorMapBufferObjectFailed)
CUDA(cudaIpcCloseMemHandle, WATCH_IPC_CLOSE, -1, (void *ptr), (ptr), cudaErrorInvalidValue)
CUDA(cudaStreamCreateWithFlags, WATCH_STREAM_CREATE, 1, (cudaStream_t * stream, unsigned int flags),
     (stream, flags), cudaErrorMemoryAllocation)
CUDA(cudaStreamDestroy, WATCH_STREAM_DESTROY, -1, (cudaStream_t stream), (stream),
     cudaErrorInvalidValue)
CUDA(cudaDeviceSynchronize, WATCH_DEVICE_SYNC, 0, (void), (), cudaErrorUnknown)
CUDA(cudaStreamSynchronize, WATCH_STREAM_SYNC, 0, (cudaStream_t stream), (stream), cudaErrorUnknown)
CUDA(cudaStreamQuery, WATCH_STREAM_QUERY, 0, (cudaStream_t stream), (stream), cudaErrorUnknown)
CUDA(cudaMemcpyAsync, WATCH_COPY, 0,
     (void *dst, const void *src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream),
     (dst, src, size, kind, stream), cudaErrorInvalidValue)
CUDA(cudaMemsetAsync, WATCH_MEMSET, 0, (void *ptr, int value, size_t size, cudaStream_t stream),
     (ptr, value, size, stream), cudaErrorInvalidValue)
CALL(ncclResult_t, ncclAllGather, NEXT(ncclAllGather), WATCH_GATHER, 0,
     (const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
      cudaStream_t stream),
     (in, out, count, type, comm, stream), ncclSystemError)

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args)
{
	if (seen(WATCH_LAUNCH)) {
		return cudaErrorLaunchOutOfResources;
	}
	if (config->gridDim.x > watch.most_blocks) {
		watch.most_blocks = config->gridDim.x;
	}
	for (uint32_t i = 0; i < config->numAttrs; i++) {
		bool early = config->attrs[i].id ==
				     cudaLaunchAttributeProgrammaticStreamSerialization &&
			     config->attrs[i].val.programmaticStreamSerializationAllowed;

		watch.early += early;
		watch.attributes += !early;
	}
	if (watch.launched) {
		watch.launched(args[0]);
	}
	return NEXT(cudaLaunchKernelExC)(config, kernel, args);
}

cudaError_t cudaDriverGetVersion(int *version)
{
	cudaError_t error = NEXT(cudaDriverGetVersion)(version);

	if (watch.driver) {
		*version = watch.driver;
	}
	return error;
}

/* ---- the driver's calls ---- */

#define DRIVER(name, call, by, params, args, error)                                                \
	static CUresult(*real_##name) params;                                                      \
	static CALL(CUresult, our_##name, real_##name, call, by, params, args, error)

DRIVER(retain, WATCH_RETAIN, 1, (CUmemGenericAllocationHandle * handle, void *ptr), (handle, ptr),
       CUDA_ERROR_NOT_SUPPORTED)
DRIVER(release, WATCH_RELEASE, -1, (CUmemGenericAllocationHandle handle), (handle),
       CUDA_ERROR_INVALID_VALUE)
DRIVER(reserve, WATCH_RESERVE, 1,
       (CUdeviceptr * ptr, size_t size, size_t align, CUdeviceptr at, unsigned long long flags),
       (ptr, size, align, at, flags), CUDA_ERROR_OUT_OF_MEMORY)
DRIVER(unreserve, WATCH_UNRESERVE, -1, (CUdeviceptr ptr, size_t size), (ptr, size),
       CUDA_ERROR_INVALID_VALUE)
DRIVER(map, WATCH_MAP, 1,
       (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
	unsigned long long flags),
       (ptr, size, offset, handle, flags), CUDA_ERROR_OUT_OF_MEMORY)
DRIVER(unmap, WATCH_UNMAP, -1, (CUdeviceptr ptr, size_t size), (ptr, size),
       CUDA_ERROR_INVALID_VALUE)
DRIVER(access, WATCH_ACCESS, 0,
       (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count),
       (ptr, size, desc, count), CUDA_ERROR_INVALID_DEVICE)

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **fn, unsigned int version,
					     unsigned long long flags,
					     enum cudaDriverEntryPointQueryResult *found)
{
	const struct {
		enum watch_call call;
		void *real; /* where its address goes */
		void *ours;
	} table[] = {
		{ WATCH_RETAIN, &real_retain, (void *)our_retain },
		{ WATCH_RELEASE, &real_release, (void *)our_release },
		{ WATCH_RESERVE, &real_reserve, (void *)our_reserve },
		{ WATCH_UNRESERVE, &real_unreserve, (void *)our_unreserve },
		{ WATCH_MAP, &real_map, (void *)our_map },
		{ WATCH_UNMAP, &real_unmap, (void *)our_unmap },
		{ WATCH_ACCESS, &real_access, (void *)our_access },
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
