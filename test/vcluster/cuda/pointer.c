/* SPDX-License-Identifier: Apache-2.0 */
/* What a pointer is, host memory seen by devices, memory of other processes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cuda/capture.h"
#include "cuda/device.h"
#include "cuda/memory.h"

#define VC_IPC_MAGIC 0x76634950u

/* What a cudaIpcMemHandle_t holds. */
struct vc_ipc {
	uint32_t magic;
	struct vc_export from;
};

_Static_assert(sizeof(struct vc_ipc) <= sizeof(cudaIpcMemHandle_t), "the handle is too small");

int vc_node(void)
{
	return (int)vc_env_long("VC_NODE", 0);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attr, const void *p)
{
	struct vc_mem mem;

	VC_ENTER();
	if (!attr) {
		return vc_error(cudaErrorInvalidValue);
	}
	memset(attr, 0, sizeof(*attr));
	if (!vc_mem_find(p, 1, &mem)) {
		attr->type = cudaMemoryTypeUnregistered;
		attr->device = -2;
		attr->hostPointer = (void *)p;
		return cudaSuccess;
	}
	attr->device = vc_device_ordinal(mem.device);
	attr->devicePointer = (void *)p;
	if (mem.kind == VC_MEM_HOST || mem.kind == VC_MEM_REGISTERED) {
		attr->type = cudaMemoryTypeHost;
		attr->hostPointer = (void *)p;
	} else {
		attr->type = cudaMemoryTypeDevice;
	}
	return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
	struct vc_mem mem;

	VC_ENTER();
	if (!device || flags || !vc_mem_find(host, 1, &mem) ||
	    (mem.kind != VC_MEM_HOST && mem.kind != VC_MEM_REGISTERED)) {
		return vc_error(cudaErrorInvalidValue);
	}
	*device = host;
	return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned int *flags, void *host)
{
	struct vc_mem mem;

	VC_ENTER();
	if (!flags || !vc_mem_find(host, 1, &mem) || mem.kind != VC_MEM_HOST) {
		return vc_error(cudaErrorInvalidValue);
	}
	*flags = mem.flags | cudaHostAllocMapped;
	return cudaSuccess;
}

/* Is all of it mapped in this process? */
static bool vc_host_mapped(uintptr_t start, size_t size)
{
	uintptr_t first = start & ~(VC_PAGE - 1);
	unsigned char present[64];

	if (size > UINTPTR_MAX - start - VC_PAGE) {
		return false;
	}
	while (first < start + size) {
		size_t pages = (start + size - first + VC_PAGE - 1) / VC_PAGE;

		pages = pages < sizeof(present) ? pages : sizeof(present);
		if (mincore((void *)first, pages * VC_PAGE, present)) {
			return false;
		}
		first += pages * VC_PAGE;
	}
	return true;
}

/*
 * cudaHostRegisterIoMemory: whole pages only. Some drivers also take a part of a page; whole pages
 * work with every driver.
 */
static cudaError_t vc_register_io(uintptr_t start, size_t size)
{
	if (vc_env_long("VC_NO_IOMEM", 0)) {
		return cudaErrorNotPermitted;
	}
	return start % VC_PAGE || size % VC_PAGE ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t size, unsigned int flags)
{
	struct vc_mem mem = { .start = (uintptr_t)p,
			      .size = size,
			      .kind = VC_MEM_REGISTERED,
			      .device = vc_device_current(),
			      .fd = -1,
			      .flags = flags };
	struct vc_mem other;
	cudaError_t error;

	VC_ENTER();
	if (!p || !size ||
	    flags & ~(unsigned int)(cudaHostRegisterPortable | cudaHostRegisterMapped |
				    cudaHostRegisterIoMemory | cudaHostRegisterReadOnly)) {
		return vc_error(cudaErrorInvalidValue);
	}
	error = vc_capture_check_unsafe();
	if (!error && flags & cudaHostRegisterIoMemory) {
		error = vc_register_io((uintptr_t)p, size);
	}
	if (!error && !vc_host_mapped((uintptr_t)p, size)) {
		error = cudaErrorInvalidValue;
	}
	if (error) {
		return vc_error(error);
	}
	if (vc_mem_touches(p, size, &other)) {
		return vc_error(cudaErrorHostMemoryAlreadyRegistered);
	}
	return vc_error(vc_mem_add(&mem) ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaHostUnregister(void *p)
{
	struct vc_mem mem;
	cudaError_t error;

	VC_ENTER();
	error = vc_capture_check_unsafe();
	if (error) {
		return vc_error(error);
	}
	if (!p) {
		return vc_error(cudaErrorInvalidValue);
	}
	error = vc_device_wait(vc_device_current());
	if (!error && !vc_mem_remove((uintptr_t)p, VC_MEM_REGISTERED, &mem)) {
		vc_mem_check_ended(p);
		error = cudaErrorHostMemoryNotRegistered;
	}
	return vc_error(error);
}

void vc_mem_export(const struct vc_mem *mem, struct vc_export *out)
{
	*out = (struct vc_export){
		.pid = getpid(),
		.fd = mem->fd,
		.node = vc_node(),
		.device = mem->device,
		.inode = mem->inode,
		.size = mem->size,
		.map_size = mem->map_size,
		.offset = mem->start - (uintptr_t)mem->map,
	};
}

int vc_export_fd(const struct vc_export *from)
{
	char path[64];
	struct stat stat;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", from->pid, from->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &stat) || stat.st_ino != from->inode)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p)
{
	struct vc_mem mem;
	struct vc_ipc ipc = { .magic = VC_IPC_MAGIC };

	VC_ENTER();
	if (!handle || !vc_mem_find(p, 1, &mem) || mem.kind != VC_MEM_DEVICE) {
		return vc_error(cudaErrorInvalidValue);
	}
	vc_mem_export(&mem, &ipc.from);
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ipc, sizeof(ipc));
	return cudaSuccess;
}

static cudaError_t vc_ipc_map(const struct vc_export *from, void **p)
{
	struct vc_mem mem = { .size = from->size,
			      .kind = VC_MEM_IMPORTED,
			      .opens = 1,
			      .device = vc_device_current(),
			      .fd = vc_export_fd(from),
			      .map_size = from->map_size,
			      .inode = from->inode };

	if (mem.fd < 0) {
		return cudaErrorMapBufferObjectFailed;
	}
	mem.map = mmap(NULL, mem.map_size, PROT_READ | PROT_WRITE, MAP_SHARED, mem.fd, 0);
	close(mem.fd);
	mem.fd = -1;
	if (mem.map == MAP_FAILED) {
		return cudaErrorMapBufferObjectFailed;
	}
	mem.start = (uintptr_t)mem.map + from->offset;
	if (!vc_mem_add(&mem)) {
		munmap(mem.map, mem.map_size);
		return cudaErrorMapBufferObjectFailed;
	}
	*p = (void *)mem.start;
	return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned int flags)
{
	struct vc_ipc ipc;
	struct vc_mem *open;
	cudaError_t error;

	VC_ENTER();
	memcpy(&ipc, &handle, sizeof(ipc));
	if (!p || flags != cudaIpcMemLazyEnablePeerAccess || ipc.magic != VC_IPC_MAGIC ||
	    ipc.from.offset > ipc.from.map_size ||
	    ipc.from.size > ipc.from.map_size - ipc.from.offset) {
		return vc_error(cudaErrorInvalidValue);
	}
	error = vc_capture_check_unsafe();
	if (error) {
		return vc_error(error);
	}
	if (ipc.from.node != vc_node()) {
		return vc_error(cudaErrorInvalidResourceHandle);
	}
	if (ipc.from.pid == getpid()) {
		return vc_error(cudaErrorDeviceUninitialized);
	}
	if (ipc.from.device != vc_device_current() &&
	    !vc_peer_possible(vc_device_current(), ipc.from.device)) {
		return vc_error(cudaErrorPeerAccessUnsupported);
	}
	pthread_mutex_lock(&vc_mem_mutex);
	open = vc_mem_by_inode(ipc.from.inode);
	if (open) {
		open->opens++;
		*p = (void *)open->start;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	return open ? cudaSuccess : vc_error(vc_ipc_map(&ipc.from, p));
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
	struct vc_mem *open, mem;
	bool last = false;
	cudaError_t error;

	VC_ENTER();
	error = vc_capture_check_unsafe();
	if (error) {
		return vc_error(error);
	}
	pthread_mutex_lock(&vc_mem_mutex);
	open = vc_mem_at((uintptr_t)p, VC_MEM_IMPORTED);
	if (open) {
		last = --open->opens == 0;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	if (!open) {
		vc_mem_check_ended(p);
		return vc_error(cudaErrorInvalidValue);
	}
	if (last) {
		error = vc_device_wait(vc_device_current());
		if (vc_mem_remove((uintptr_t)p, VC_MEM_IMPORTED, &mem)) {
			munmap(mem.map, mem.map_size);
		}
	}
	return vc_error(error);
}
