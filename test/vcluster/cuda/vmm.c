/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management. An allocation is a memfd, known in a process by its inode, however often
 * it has been imported there. A handle counts as one reference of it, and so does a mapping.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/phys.h"

#define VC_FABRIC_MAGIC 0x76634661u
#define VC_PHYS_NAME "vcluster-gpu"

/* What a CUmemFabricHandle holds. */
struct vc_fabric {
	uint32_t magic;
	struct vc_export from;
};

_Static_assert(sizeof(struct vc_fabric) <= sizeof(CUmemFabricHandle), "the handle is too small");

pthread_mutex_t vc_vmm_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct vc_phys *vc_physes;

int vc_domain_of(int node)
{
	long nodes = vc_env_long("VC_DOMAIN", 1);

	return node / (int)(nodes > 0 ? nodes : 1);
}

/* ---- memory ---- */

struct vc_phys *vc_phys_of(CUmemGenericAllocationHandle handle)
{
	struct vc_phys *phys = vc_physes;

	while (phys && (CUmemGenericAllocationHandle)(uintptr_t)phys != handle) {
		phys = phys->next;
	}
	return phys;
}

void vc_phys_put(struct vc_phys *phys)
{
	struct vc_phys **at = &vc_physes;

	if (--phys->refs) {
		return;
	}
	while (*at != phys) {
		at = &(*at)->next;
	}
	*at = phys->next;
	if (phys->own) {
		vc_mem_unaccount(phys->device, phys->size);
	}
	close(phys->fd);
	free(phys);
}

/* Takes over fd. With the lock held. */
static struct vc_phys *vc_phys_add(int fd, size_t size, int node, int device, bool own)
{
	struct vc_phys *phys = calloc(1, sizeof(*phys));
	struct stat stat;

	if (!phys || fstat(fd, &stat)) {
		free(phys);
		close(fd);
		return NULL;
	}
	*phys = (struct vc_phys){ .next = vc_physes,
				  .fd = fd,
				  .inode = stat.st_ino,
				  .size = size,
				  .node = node,
				  .device = device,
				  .own = own,
				  .refs = 1 };
	vc_physes = phys;
	return phys;
}

CUresult vc_cu_mem_granularity(size_t *granularity, const CUmemAllocationProp *prop,
			       CUmemAllocationGranularity_flags option)
{
	if (!granularity || !prop || (unsigned int)option > 1) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*granularity = VC_VMM_GRANULARITY;
	return CUDA_SUCCESS;
}

CUresult vc_phys_make(struct vc_phys **out, size_t size, size_t asked, int device,
		      unsigned int types)
{
	char name[64];
	int fd;

	if (!vc_mem_account(device, size)) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	snprintf(name, sizeof(name), VC_PHYS_NAME "%d.%d", vc_node(), device);
	fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)size) || !vc_mem_poison(fd, 0, asked)) {
		goto err_account;
	}
	pthread_mutex_lock(&vc_vmm_mutex);
	*out = vc_phys_add(fd, size, vc_node(), device, true);
	if (*out) {
		(*out)->types = types;
	}
	pthread_mutex_unlock(&vc_vmm_mutex);
	if (*out) {
		return CUDA_SUCCESS;
	}
	fd = -1;
err_account:
	if (fd >= 0) {
		close(fd);
	}
	vc_mem_unaccount(device, size);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vc_cu_mem_create(CUmemGenericAllocationHandle *handle, size_t size,
			  const CUmemAllocationProp *prop, unsigned long long flags)
{
	unsigned int known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
	struct vc_phys *phys;
	CUresult error = (CUresult)vc_device_sticky(vc_device_current());

	if (error) {
		return error;
	}
	if (!handle || !prop || flags || !size || size % VC_VMM_GRANULARITY ||
	    prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    (unsigned int)prop->requestedHandleTypes & ~known) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!vc_device_valid(prop->location.id)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	if ((unsigned int)prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC &&
	    vc_env_long("VC_DOMAIN", 1) < 2) {
		return CUDA_ERROR_NOT_PERMITTED;
	}
	error = vc_phys_make(&phys, size, size, vc_device_number(prop->location.id),
			     (unsigned int)prop->requestedHandleTypes);
	if (!error) {
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)phys;
	}
	return error;
}

CUresult vc_cu_mem_release(CUmemGenericAllocationHandle handle)
{
	struct vc_phys *phys;

	pthread_mutex_lock(&vc_vmm_mutex);
	phys = vc_phys_of(handle);
	if (phys) {
		vc_phys_put(phys);
	}
	pthread_mutex_unlock(&vc_vmm_mutex);
	return phys ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult vc_cu_mem_retain(CUmemGenericAllocationHandle *handle, void *p)
{
	struct vc_mem mem;

	if (vc_env_long("VC_NO_RETAIN", 0)) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (!handle || !vc_mem_find(p, 1, &mem) || mem.kind != VC_MEM_MAPPED) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&vc_vmm_mutex);
	mem.phys->refs++;
	pthread_mutex_unlock(&vc_vmm_mutex);
	*handle = (CUmemGenericAllocationHandle)(uintptr_t)mem.phys;
	return CUDA_SUCCESS;
}

CUresult vc_cu_mem_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	struct vc_phys *phys;

	if (!prop) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	memset(prop, 0, sizeof(*prop));
	pthread_mutex_lock(&vc_vmm_mutex);
	phys = vc_phys_of(handle);
	if (phys) {
		prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
		prop->requestedHandleTypes = (CUmemAllocationHandleType)phys->types;
		prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		prop->location.id = vc_device_ordinal(phys->device);
	}
	pthread_mutex_unlock(&vc_vmm_mutex);
	return phys ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- other processes ---- */

static CUresult vc_phys_export(const struct vc_phys *phys, void *shareable,
			       CUmemAllocationHandleType type)
{
	struct vc_fabric fabric = { .magic = VC_FABRIC_MAGIC,
				    .from = { .pid = getpid(),
					      .fd = phys->fd,
					      .node = phys->node,
					      .device = phys->device,
					      .inode = phys->inode } };
	int fd;

	if (!(phys->types & (unsigned int)type)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
		memset(shareable, 0, sizeof(CUmemFabricHandle));
		memcpy(shareable, &fabric, sizeof(fabric));
		return CUDA_SUCCESS;
	}
	fd = fcntl(phys->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0) {
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	memcpy(shareable, &fd, sizeof(fd));
	return CUDA_SUCCESS;
}

CUresult vc_cu_mem_export(void *shareable, CUmemGenericAllocationHandle handle,
			  CUmemAllocationHandleType type, unsigned long long flags)
{
	struct vc_phys *phys;
	CUresult error = CUDA_ERROR_INVALID_VALUE;

	if (!shareable || flags ||
	    (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
	     type != CU_MEM_HANDLE_TYPE_FABRIC)) {
		return error;
	}
	pthread_mutex_lock(&vc_vmm_mutex);
	phys = vc_phys_of(handle);
	if (phys) {
		error = vc_phys_export(phys, shareable, type);
	}
	pthread_mutex_unlock(&vc_vmm_mutex);
	return error;
}

/* The memory behind a descriptor, which is taken over. NULL: it is not memory of this node. */
struct vc_phys *vc_phys_import(int fd, bool fabric)
{
	struct vc_phys *phys = NULL;
	char path[64], name[64];
	struct stat stat;
	int node, device;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, name, sizeof(name) - 1);
	name[n > 0 ? n : 0] = '\0';
	if (sscanf(name, "/memfd:" VC_PHYS_NAME "%d.%d", &node, &device) != 2 || fstat(fd, &stat) ||
	    (fabric ? vc_domain_of(node) != vc_domain_of(vc_node()) : node != vc_node())) {
		close(fd);
		return NULL;
	}
	pthread_mutex_lock(&vc_vmm_mutex);
	for (phys = vc_physes; phys && phys->inode != stat.st_ino; phys = phys->next) {
	}
	if (phys) {
		phys->refs++;
		close(fd);
	} else {
		phys = vc_phys_add(fd, (size_t)stat.st_size, node, device, false);
	}
	pthread_mutex_unlock(&vc_vmm_mutex);
	return phys;
}

CUresult vc_cu_mem_import(CUmemGenericAllocationHandle *handle, void *shareable,
			  CUmemAllocationHandleType type)
{
	struct vc_fabric fabric;
	struct vc_phys *phys;
	int fd;

	if (!handle || (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
			(type != CU_MEM_HANDLE_TYPE_FABRIC || !shareable))) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
		memcpy(&fabric, shareable, sizeof(fabric));
		fd = fabric.magic == VC_FABRIC_MAGIC ? vc_export_fd(&fabric.from) : -1;
	} else {
		fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
	}
	phys = fd >= 0 ? vc_phys_import(fd, type == CU_MEM_HANDLE_TYPE_FABRIC) : NULL;
	if (!phys) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	*handle = (CUmemGenericAllocationHandle)(uintptr_t)phys;
	return CUDA_SUCCESS;
}
