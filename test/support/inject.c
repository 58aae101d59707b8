/* SPDX-License-Identifier: Apache-2.0 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <nccl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>

#include "support/inject.h"
#include "support/next.h"

#define LIBRARY "libnccl_ep.so"
#define NO_THREADS_NS 1000000000 /* a limit of threads does not go away at once */

static uintptr_t text_start, text_end;
static __thread bool armed;
static atomic_bool counting;
static atomic_ullong at, fails_at;
static atomic_long blocks, threads;
static const char *_Atomic failed, *_Atomic only;
static atomic_ullong no_threads_until;

static int find_text(struct dl_phdr_info *info, size_t size, void *arg)
{
	const char *name = strrchr(info->dlpi_name, '/');

	if (strncmp(name ? name + 1 : info->dlpi_name, LIBRARY, strlen(LIBRARY)) != 0) {
		return 0;
	}
	for (int i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
			text_start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			text_end = text_start + info->dlpi_phdr[i].p_memsz;
		}
	}
	return 0;
}

__attribute__((constructor)) static void find(void)
{
	dl_iterate_phdr(find_text, NULL);
}

static bool ours(const void *ret)
{
	return (uintptr_t)ret >= text_start && (uintptr_t)ret < text_end;
}

/* What is asked again and again until something is over counts once. */
static bool asked_again(const char *name)
{
	static __thread const char *last;
	bool again = last == name &&
		     (!strcmp(name, "cudaStreamQuery") || !strcmp(name, "ncclCommGetAsyncError"));

	last = name;
	return again;
}

static bool other(const char *name)
{
	const char *asked = atomic_load(&only);

	return asked && strcmp(name, asked) != 0;
}

/* Counts a call that returns to `ret`; true: it is to fail. */
static bool hit(const char *name, const void *ret)
{
	if (!armed || !atomic_load(&counting) || !ours(ret) || asked_again(name) || other(name) ||
	    atomic_fetch_add(&at, 1) + 1 != atomic_load(&fails_at)) {
		return false;
	}
	atomic_store(&failed, name);
	return true;
}

void inject_arm(uint64_t n, const char *name)
{
	atomic_store(&only, name);
	atomic_store(&at, 0);
	atomic_store(&fails_at, n);
	atomic_store(&failed, NULL);
	atomic_store(&no_threads_until, 0);
	atomic_store(&counting, true);
	armed = true;
}

uint64_t inject_disarm(void)
{
	armed = false;
	atomic_store(&counting, false);
	return atomic_load(&at);
}

const char *inject_failed(void)
{
	const char *name = atomic_load(&failed);

	return name ? name : "";
}

long inject_blocks(void)
{
	return atomic_load(&blocks);
}

long inject_threads(void)
{
	return atomic_load(&threads);
}

#define RET __builtin_return_address(0)

/* ---- host memory ---- */

/* Of the C library, which calls dlsym's own malloc as well. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *ptr, size_t size);
void __libc_free(void *ptr);

static void *counted(void *ptr, const void *ret)
{
	if (ptr && ours(ret)) {
		atomic_fetch_add(&blocks, 1);
	}
	return ptr;
}

static void *no_memory(void)
{
	errno = ENOMEM;
	return NULL;
}

void *malloc(size_t size)
{
	return hit("malloc", RET) ? no_memory() : counted(__libc_malloc(size), RET);
}

void *calloc(size_t n, size_t size)
{
	return hit("calloc", RET) ? no_memory() : counted(__libc_calloc(n, size), RET);
}

void *realloc(void *ptr, size_t size)
{
	void *to;

	if (hit("realloc", RET)) {
		return no_memory();
	}
	to = __libc_realloc(ptr, size);
	return ptr ? to : counted(to, RET);
}

void free(void *ptr)
{
	if (ptr && ours(RET)) {
		atomic_fetch_sub(&blocks, 1);
	}
	__libc_free(ptr);
}

void *mmap64(void *addr, size_t size, int prot, int flags, int fd, off64_t offset)
{
	if (hit("mmap", RET)) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return NEXT(mmap64)(addr, size, prot, flags, fd, offset);
}

/* ---- threads ---- */

struct start {
	void *(*fn)(void *);
	void *arg;
	bool armed;
};

static void *start_counted(void *arg)
{
	struct start start = *(struct start *)arg;
	void *result;

	__libc_free(arg);
	armed = start.armed;
	result = start.fn(start.arg);
	atomic_fetch_sub(&threads, 1);
	return result;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Whoever asks for a thread soon after one could not be had gets none either. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	struct start *start;
	int error;

	if (!ours(RET)) {
		return NEXT(pthread_create)(thread, attr, fn, arg);
	}
	if (armed && now_ns() < atomic_load(&no_threads_until)) {
		return EAGAIN;
	}
	if (hit("pthread_create", RET)) {
		atomic_store(&no_threads_until, now_ns() + NO_THREADS_NS);
		return EAGAIN;
	}
	start = __libc_malloc(sizeof(*start));
	*start = (struct start){ fn, arg, armed && atomic_load(&counting) };
	atomic_fetch_add(&threads, 1);
	error = NEXT(pthread_create)(thread, attr, start_counted, start);
	if (error) {
		atomic_fetch_sub(&threads, 1);
		__libc_free(start);
	}
	return error;
}

/* ---- descriptors ---- */

static int no_descriptor(void)
{
	errno = EMFILE;
	return -1;
}

int open64(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	return hit("open", RET) ? no_descriptor() : NEXT(open64)(path, flags, mode);
}

FILE *fopen64(const char *path, const char *mode)
{
	if (hit("fopen", RET)) {
		(void)no_descriptor();
		return NULL;
	}
	return NEXT(fopen64)(path, mode);
}

int memfd_create(const char *name, unsigned int flags)
{
	return hit("memfd_create", RET) ? no_descriptor() : NEXT(memfd_create)(name, flags);
}

int posix_fallocate64(int fd, off64_t offset, off64_t bytes)
{
	return hit("posix_fallocate", RET) ? ENOSPC : NEXT(posix_fallocate64)(fd, offset, bytes);
}

int eventfd(unsigned int count, int flags)
{
	return hit("eventfd", RET) ? no_descriptor() : NEXT(eventfd)(count, flags);
}

/* ---- CUDA and NCCL ---- */

#define CALL(type, name, params, args, error)                                                      \
	type name params                                                                           \
	{                                                                                          \
		return hit(#name, RET) ? (error) : NEXT(name) args;                                \
	}
#define MEMORY(name, params, args) CALL(cudaError_t, name, params, args, cudaErrorMemoryAllocation)
#define CUDA(name, params, args) CALL(cudaError_t, name, params, args, cudaErrorUnknown)
#define NCCL(name, params, args) CALL(ncclResult_t, name, params, args, ncclSystemError)

MEMORY(cudaMalloc, (void **ptr, size_t size), (ptr, size))
MEMORY(cudaHostRegister, (void *ptr, size_t size, unsigned int flags), (ptr, size, flags))
MEMORY(cudaHostGetDevicePointer, (void **dev, void *host, unsigned int flags), (dev, host, flags))
MEMORY(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned int flags), (stream, flags))
MEMORY(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags), (event, flags))
MEMORY(cudaIpcOpenMemHandle, (void **ptr, cudaIpcMemHandle_t handle, unsigned int flags),
       (ptr, handle, flags))
CUDA(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * handle, void *ptr), (handle, ptr))
CUDA(cudaMemcpyAsync,
     (void *dst, const void *src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream),
     (dst, src, size, kind, stream))
CUDA(cudaMemsetAsync, (void *ptr, int value, size_t size, cudaStream_t stream),
     (ptr, value, size, stream))
CUDA(cudaStreamSynchronize, (cudaStream_t stream), (stream))
CUDA(cudaStreamQuery, (cudaStream_t stream), (stream))
CUDA(cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus *status),
     (stream, status))
CUDA(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
     (stream, event, flags))
CUDA(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
CUDA(cudaLaunchKernelExC, (const cudaLaunchConfig_t *config, const void *kernel, void **args),
     (config, kernel, args))
CUDA(cudaDeviceSynchronize, (void), ())
CUDA(cudaSetDevice, (int device), (device))
CUDA(cudaGetDevice, (int *device), (device))
CUDA(cudaGetDeviceProperties, (struct cudaDeviceProp * properties, int device),
     (properties, device))
CUDA(cudaDeviceGetAttribute, (int *value, enum cudaDeviceAttr attribute, int device),
     (value, attribute, device))
CUDA(cudaDeviceGetP2PAttribute, (int *value, enum cudaDeviceP2PAttr attribute, int from, int to),
     (value, attribute, from, to))
CUDA(cudaDeviceCanAccessPeer, (int *can, int device, int peer), (can, device, peer))
CUDA(cudaDeviceEnablePeerAccess, (int peer, unsigned int flags), (peer, flags))
CUDA(cudaDeviceGetByPCIBusId, (int *device, const char *bus_id), (device, bus_id))
CUDA(cudaDeviceGetPCIBusId, (char *bus_id, int size, int device), (bus_id, size, device))
CUDA(cudaFuncSetAttribute, (const void *kernel, enum cudaFuncAttribute attribute, int value),
     (kernel, attribute, value))
CUDA(cudaFuncGetAttributes, (struct cudaFuncAttributes * attributes, const void *kernel),
     (attributes, kernel))
CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor,
     (int *blocks_per_sm, const void *kernel, int size, size_t bytes),
     (blocks_per_sm, kernel, size, bytes))

/* Since ncclCommCount is this program's, so are those that the library looks for beside it. */
NCCL(ncclCommCount, (const ncclComm_t comm, int *count), (comm, count))
NCCL(ncclCommUserRank, (const ncclComm_t comm, int *rank), (comm, rank))
NCCL(ncclCommCuDevice, (const ncclComm_t comm, int *device), (comm, device))
NCCL(ncclAllGather,
     (const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
      cudaStream_t stream),
     (in, out, count, type, comm, stream))
NCCL(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *error), (comm, error))
NCCL(ncclMemAlloc, (void **ptr, size_t size), (ptr, size))
NCCL(ncclCommWindowRegister,
     (ncclComm_t comm, void *ptr, size_t size, ncclWindow_t *window, int flags),
     (comm, ptr, size, window, flags))
NCCL(ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window), (comm, window))

ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **ptr);
NCCL(ncclGetPeerDevicePointer, (ncclWindow_t window, size_t offset, int peer, void **ptr),
     (window, offset, peer, ptr))
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **ptr);
NCCL(ncclGetLsaMultimemDevicePointer, (ncclWindow_t window, size_t offset, void **ptr),
     (window, offset, ptr))

/* ---- the driver's calls, which the library gets by their names ---- */

#define DRIVER(name, params, args)                                                                 \
	static CUresult(*real_##name) params;                                                      \
	static CUresult our_##name params                                                          \
	{                                                                                          \
		return hit(#name, RET) ? CUDA_ERROR_OUT_OF_MEMORY : real_##name args;              \
	}

DRIVER(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *ptr),
       (handle, ptr))
DRIVER(cuMemAddressReserve,
       (CUdeviceptr * ptr, size_t size, size_t align, CUdeviceptr where, unsigned long long flags),
       (ptr, size, align, where, flags))
DRIVER(cuMemMap,
       (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
	unsigned long long flags),
       (ptr, size, offset, handle, flags))
DRIVER(cuMemSetAccess, (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count),
       (ptr, size, desc, count))
DRIVER(cuCtxGetId, (CUcontext context, unsigned long long *id), (context, id))
DRIVER(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active),
       (device, flags, active))
DRIVER(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device))
DRIVER(cuMemGetHandleForAddressRange,
       (void *handle, CUdeviceptr ptr, size_t size, CUmemRangeHandleType type,
	unsigned long long flags),
       (handle, ptr, size, type, flags))
DRIVER(cuMemGetAddressRange, (CUdeviceptr * base, size_t *size, CUdeviceptr ptr), (base, size, ptr))
DRIVER(cuPointerGetAttribute, (void *data, CUpointer_attribute attribute, CUdeviceptr ptr),
       (data, attribute, ptr))

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **fn, unsigned int version,
					     unsigned long long flags,
					     enum cudaDriverEntryPointQueryResult *found)
{
#define OURS(call)                                                                                 \
	{                                                                                          \
#call, &real_##call, (void *)our_##call                                            \
	}
	const struct {
		const char *name;
		void *real; /* where its address goes */
		void *ours;
	} table[] = {
		OURS(cuMemRetainAllocationHandle),
		OURS(cuMemAddressReserve),
		OURS(cuMemMap),
		OURS(cuMemSetAccess),
		OURS(cuCtxGetId),
		OURS(cuDevicePrimaryCtxGetState),
		OURS(cuDevicePrimaryCtxRetain),
		OURS(cuMemGetHandleForAddressRange),
		OURS(cuMemGetAddressRange),
		OURS(cuPointerGetAttribute),
	};
	cudaError_t err = NEXT(cudaGetDriverEntryPointByVersion)(name, fn, version, flags, found);

	for (size_t i = 0; err == cudaSuccess && *fn && i < sizeof(table) / sizeof(*table); i++) {
		if (!strcmp(name, table[i].name)) {
			memcpy(table[i].real, fn, sizeof(*fn));
			*fn = table[i].ours;
		}
	}
	return err;
}
