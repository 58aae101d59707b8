/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver calls that have no counterpart in the runtime, found through
 * cudaGetDriverEntryPointByVersion: what RDMA needs to know of memory and to do with it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cuda.h>
#include "cuda/runtime.h"
#include "exec/exec.h"

#undef cudaGetDriverEntryPoint
#undef cudaGetDriverEntryPointByVersion

/* An error that runtime and driver both have is the same number in both. */
static CUresult vc_driver_sticky(void)
{
	return (CUresult)vc_device_sticky(vc_device_current());
}

static CUresult vc_cu_mem_get_address_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	struct vc_mem mem;

	if (vc_driver_sticky()) {
		return vc_driver_sticky();
	}
	if (!vc_mem_find((const void *)p, 1, &mem) || mem.kind == VC_MEM_REGISTERED) {
		return CUDA_ERROR_NOT_FOUND;
	}
	if (base) {
		*base = mem.start;
	}
	if (size) {
		*size = mem.size;
	}
	return CUDA_SUCCESS;
}

/*
 * A descriptor of the memfd. Its file position is where the range begins: a DMA-BUF would begin
 * there itself.
 */
static CUresult vc_dmabuf_fd(const struct vc_mem *mem, uintptr_t start, int *fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", mem->fd);
	*fd = open(path, O_RDWR | O_CLOEXEC);
	if (*fd < 0) {
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (lseek(*fd, (off_t)(start - (uintptr_t)mem->map + mem->fd_offset), SEEK_SET) < 0) {
		close(*fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	return CUDA_SUCCESS;
}

static CUresult vc_cu_mem_get_handle(void *handle, CUdeviceptr p, size_t size,
				     CUmemRangeHandleType type, unsigned long long flags)
{
	struct vc_mem mem;
	uintptr_t start = (uintptr_t)p;

	if (vc_driver_sticky()) {
		return vc_driver_sticky();
	}
	if (!handle || !size || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (vc_env_long("VC_NO_DMABUF", 0) || flags) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (start % VC_PAGE || size % VC_PAGE || !vc_mem_find((const void *)start, 1, &mem) ||
	    (mem.kind != VC_MEM_DEVICE && mem.kind != VC_MEM_MAPPED) ||
	    size > (uintptr_t)mem.map + mem.map_size - start) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	vc_mem_show(mem.start, mem.kind);
	return vc_dmabuf_fd(&mem, start, handle);
}

static CUresult vc_cu_pointer_get_attribute(void *data, CUpointer_attribute attr, CUdeviceptr p)
{
	struct vc_mem mem;

	if (vc_driver_sticky()) {
		return vc_driver_sticky();
	}
	if (!data || !vc_mem_find((const void *)p, 1, &mem)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	switch (attr) {
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = mem.inode;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*(int *)data = vc_mem_on_device(&mem) && mem.sync_memops;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

static CUresult vc_cu_pointer_set_attribute(const void *value, CUpointer_attribute attr,
					    CUdeviceptr p)
{
	struct vc_mem mem;

	if (vc_driver_sticky()) {
		return vc_driver_sticky();
	}
	if (!value || attr != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
	    !vc_mem_find((const void *)p, 1, &mem) || !vc_mem_on_device(&mem) ||
	    !vc_mem_sync_memops(mem.start, mem.kind, *(const unsigned int *)value)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult vc_cu_primary_state(CUdevice device, unsigned int *flags, int *active)
{
	if (!vc_device_valid(device) || !flags || !active) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*flags = 0;
	*active = vc_device_context(vc_device_number(device)) != 0;
	return CUDA_SUCCESS;
}

/*
 * The context of a device is a pointer that says which: nobody reads there. A device that has
 * failed tells nothing.
 */
static CUresult vc_cu_primary_retain(CUcontext *context, CUdevice device)
{
	if (vc_driver_sticky()) {
		return vc_driver_sticky();
	}
	if (!vc_device_valid(device) || !context) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	vc_device_make_context(vc_device_number(device));
	*context = (CUcontext)(uintptr_t)(vc_device_number(device) + 1);
	return CUDA_SUCCESS;
}

static CUresult vc_cu_primary_release(CUdevice device)
{
	return vc_device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult vc_cu_ctx_get_id(CUcontext context, unsigned long long *id)
{
	int number = context ? (int)(uintptr_t)context - 1 : vc_device_current();

	if (vc_driver_sticky()) {
		return vc_driver_sticky();
	}
	if (!id || number < 0 || number >= VC_MAX_DEVICES) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!vc_device_context(number)) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*id = vc_device_context(number);
	vc_context_found();
	return CUDA_SUCCESS;
}

static CUresult vc_cu_stream_get_ctx(CUstream handle, CUcontext *context)
{
	struct CUstream_st *stream;

	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (stream) {
		*context = (CUcontext)(uintptr_t)(stream->device + 1);
	}
	pthread_mutex_unlock(&vc_lock);
	return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

struct vc_entry {
	const char *name;
	unsigned int version; /* CUDA release that brought it */
	void (*fn)(void);
};

#define VC_ENTRY(symbol, since, function)                                                          \
	{                                                                                          \
		symbol, since, (void (*)(void))(function)                                          \
	}

static const struct vc_entry vc_entries[] = {
	VC_ENTRY("cuDevicePrimaryCtxGetState", 7000, vc_cu_primary_state),
	VC_ENTRY("cuDevicePrimaryCtxRetain", 7000, vc_cu_primary_retain),
	VC_ENTRY("cuDevicePrimaryCtxRelease", 11000, vc_cu_primary_release),
	VC_ENTRY("cuCtxGetId", 12000, vc_cu_ctx_get_id),
	VC_ENTRY("cuStreamGetCtx", 9020, vc_cu_stream_get_ctx),
	VC_ENTRY("cuMemGetAddressRange", 3020, vc_cu_mem_get_address_range),
	VC_ENTRY("cuMemGetHandleForAddressRange", 11070, vc_cu_mem_get_handle),
	VC_ENTRY("cuPointerGetAttribute", 4000, vc_cu_pointer_get_attribute),
	VC_ENTRY("cuPointerSetAttribute", 6000, vc_cu_pointer_set_attribute),
	VC_ENTRY("cuMemCreate", 10020, vc_cu_mem_create),
	VC_ENTRY("cuMemRelease", 10020, vc_cu_mem_release),
	VC_ENTRY("cuMemRetainAllocationHandle", 11000, vc_cu_mem_retain),
	VC_ENTRY("cuMemAddressReserve", 10020, vc_cu_mem_reserve),
	VC_ENTRY("cuMemAddressFree", 10020, vc_cu_mem_unreserve),
	VC_ENTRY("cuMemMap", 10020, vc_cu_mem_map),
	VC_ENTRY("cuMemUnmap", 10020, vc_cu_mem_unmap),
	VC_ENTRY("cuMemSetAccess", 10020, vc_cu_mem_set_access),
};

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn, unsigned int version,
					     unsigned long long flags,
					     enum cudaDriverEntryPointQueryResult *status)
{
	enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;

	VC_ENTER();
	if (!symbol || !*symbol || !fn || version > CUDART_VERSION ||
	    (flags != cudaEnableDefault && flags != cudaEnableLegacyStream &&
	     flags != cudaEnablePerThreadDefaultStream)) {
		return vc_error(cudaErrorInvalidValue);
	}
	*fn = NULL;
	for (size_t i = 0; i < sizeof(vc_entries) / sizeof(*vc_entries); i++) {
		if (strcmp(vc_entries[i].name, symbol)) {
			continue;
		}
		if (version < vc_entries[i].version) {
			result = cudaDriverEntryPointVersionNotSufficent;
			break;
		}
		memcpy(fn, &vc_entries[i].fn, sizeof(*fn));
		result = cudaDriverEntryPointSuccess;
	}
	if (status) {
		*status = result;
	}
	return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **fn, unsigned long long flags,
				    enum cudaDriverEntryPointQueryResult *status)
{
	return cudaGetDriverEntryPointByVersion(symbol, fn, CUDART_VERSION, flags, status);
}
