/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management. An allocation is a memfd, known in a process by its inode, however
 * often it has been imported there. A handle counts as one reference of it, and so does a mapping.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cuda/runtime.h"

#define VC_PHYS_NAME "vcluster-gpu"

pthread_mutex_t vc_vmm_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct vc_phys *vc_physes;

int vc_domain_of(int node)
{
	long nodes = vc_env_long("VC_DOMAIN", 1);

	return node / (int)(nodes > 0 ? nodes : 1);
}

/* ---- memory ---- */

/* With the lock held: returns the memory of a handle, NULL if it is none. */
static struct vc_phys *vc_phys_of(CUmemGenericAllocationHandle handle)
{
	struct vc_phys *phys = vc_physes;

	while (phys && (CUmemGenericAllocationHandle)(uintptr_t)phys != handle) {
		phys = phys->next;
	}
	return phys;
}

static void vc_phys_put(struct vc_phys *phys)
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

/* New memory, with one reference, of which the `asked` bytes are poisoned: the rest is nobody's. */
static CUresult vc_phys_make(struct vc_phys **out, size_t size, size_t asked, int device)
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
	struct vc_phys *phys;
	CUresult error = (CUresult)vc_device_sticky(vc_device_current());

	if (error) {
		return error;
	}
	if (!handle || !prop || flags || !size || size % VC_VMM_GRANULARITY ||
	    prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!vc_device_valid(prop->location.id)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	error = vc_phys_make(&phys, size, size, vc_device_number(prop->location.id));
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

/* ---- other processes ---- */

/* The memory behind a descriptor, which is taken over. NULL: it is not memory of this node. */
static struct vc_phys *vc_phys_import(int fd, bool fabric)
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

/* ---- virtual memory management: addresses, and what is mapped there ---- */

struct vc_range {
	struct vc_range *next;
	uintptr_t start;
	size_t size;
};

static struct vc_range *vc_ranges;

CUresult vc_cu_mem_reserve(CUdeviceptr *p, size_t size, size_t align, CUdeviceptr fixed,
			   unsigned long long flags)
{
	struct vc_range *range;
	uintptr_t map, start;

	align = align < VC_VMM_GRANULARITY ? VC_VMM_GRANULARITY : align;
	if (!p || !size || size % VC_VMM_GRANULARITY || align & (align - 1) || flags) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	(void)fixed; /* a wish */
	range = calloc(1, sizeof(*range));
	map = (uintptr_t)mmap(NULL, size + align, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!range || map == (uintptr_t)MAP_FAILED) {
		free(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	start = (map + align - 1) & ~(uintptr_t)(align - 1);
	if (start > map) {
		munmap((void *)map, start - map);
	}
	if (start + size < map + size + align) { /* leave a page that cannot be touched */
		munmap((void *)(start + size + 4096), map + align - start - 4096);
	}
	pthread_mutex_lock(&vc_vmm_mutex);
	*range = (struct vc_range){ vc_ranges, start, size };
	vc_ranges = range;
	pthread_mutex_unlock(&vc_vmm_mutex);
	*p = start;
	return CUDA_SUCCESS;
}

CUresult vc_cu_mem_unreserve(CUdeviceptr p, size_t size)
{
	struct vc_range **at = &vc_ranges, *range;
	struct vc_mem mem;

	if (vc_mem_touches((void *)p, size, &mem)) {
		return CUDA_ERROR_INVALID_VALUE; /* something is mapped there */
	}
	pthread_mutex_lock(&vc_vmm_mutex);
	while (*at && ((*at)->start != p || (*at)->size != size)) {
		at = &(*at)->next;
	}
	range = *at;
	if (range) {
		*at = range->next;
	}
	pthread_mutex_unlock(&vc_vmm_mutex);
	if (!range) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	mem = (struct vc_mem){ .start = p, .size = size, .map = (void *)p, .map_size = size };
	vc_unmap_later(&mem);
	free(range);
	return CUDA_SUCCESS;
}

static const struct vc_range *vc_range_of(uintptr_t start, size_t size)
{
	const struct vc_range *range = vc_ranges;

	while (range && (start < range->start || size > range->size ||
			 start - range->start > range->size - size)) {
		range = range->next;
	}
	return range;
}

static CUresult vc_phys_map(struct vc_phys *phys, uintptr_t start, size_t size, size_t offset)
{
	struct vc_mem mem = { .start = start,
			      .size = size,
			      .kind = VC_MEM_MAPPED,
			      .device = phys->own ? phys->device : vc_device_current(),
			      .map = (void *)start,
			      .map_size = size,
			      .fd = phys->fd,
			      .fd_offset = offset,
			      .inode = phys->inode,
			      .phys = phys,
			      .foreign = !phys->own };

	if (mmap((void *)start, size, PROT_NONE, MAP_FIXED | MAP_SHARED, phys->fd, (off_t)offset) ==
		    MAP_FAILED ||
	    !vc_mem_add(&mem)) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	phys->refs++;
	return CUDA_SUCCESS;
}

CUresult vc_cu_mem_map(CUdeviceptr p, size_t size, size_t offset,
		       CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct vc_phys *phys;
	struct vc_mem mem;
	CUresult error = CUDA_ERROR_INVALID_VALUE;

	if (flags || !size || size % VC_VMM_GRANULARITY || offset % VC_VMM_GRANULARITY ||
	    p % VC_VMM_GRANULARITY || vc_mem_touches((void *)p, size, &mem)) {
		return error;
	}
	pthread_mutex_lock(&vc_vmm_mutex);
	phys = vc_phys_of(handle);
	if (phys && vc_range_of(p, size) && offset <= phys->size && size <= phys->size - offset) {
		error = vc_phys_map(phys, p, size, offset);
	}
	pthread_mutex_unlock(&vc_vmm_mutex);
	return error;
}

/*
 * Waits for no kernel: one that still uses the addresses faults. As the real one does, it takes
 * whole mappings only.
 */
CUresult vc_cu_mem_unmap(CUdeviceptr p, size_t size)
{
	struct vc_mem mem;

	for (uintptr_t at = p; at < p + size; at += mem.size) {
		if (!vc_mem_find((void *)at, 1, &mem) || mem.kind != VC_MEM_MAPPED ||
		    mem.start != at || mem.size > p + size - at) {
			vc_mem_check_ended((void *)at);
			return CUDA_ERROR_INVALID_VALUE;
		}
	}
	for (uintptr_t at = p; at < p + size; at += mem.size) {
		if (!vc_mem_remove(at, VC_MEM_MAPPED, &mem)) {
			return CUDA_ERROR_INVALID_VALUE;
		}
		mmap(mem.map, mem.map_size, PROT_NONE,
		     MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		pthread_mutex_lock(&vc_vmm_mutex);
		vc_phys_put(mem.phys);
		pthread_mutex_unlock(&vc_vmm_mutex);
	}
	return CUDA_SUCCESS;
}

/* Whether a device of this node may reach memory of a device of its domain. */
static bool vc_phys_reachable(const struct vc_mem *mem, int device)
{
	return mem->phys->node != vc_node() || mem->phys->device == device ||
	       vc_peer_possible(device, mem->phys->device);
}

CUresult vc_cu_mem_set_access(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	struct vc_mem mem;

	if (!desc || !count || !vc_mem_find((void *)p, size, &mem) || mem.kind != VC_MEM_MAPPED) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t i = 0; i < count; i++) {
		if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
		    !vc_device_valid(desc[i].location.id)) {
			return CUDA_ERROR_INVALID_VALUE;
		}
		if (!vc_phys_reachable(&mem, vc_device_number(desc[i].location.id))) {
			return CUDA_ERROR_INVALID_DEVICE;
		}
	}
	return mprotect((void *)p, size, PROT_READ | PROT_WRITE) ? CUDA_ERROR_OPERATING_SYSTEM
								 : CUDA_SUCCESS;
}

/* ---- for NCCL ---- */

/* Maps all of `phys` at addresses of its own. Takes the reference over. */
static CUresult vc_phys_place(struct vc_phys *phys, void **p)
{
	CUmemGenericAllocationHandle handle = (CUmemGenericAllocationHandle)(uintptr_t)phys;
	CUdeviceptr at = 0;
	CUresult error = vc_cu_mem_reserve(&at, phys->size, 0, 0, 0);
	bool reachable;

	if (!error) {
		error = vc_cu_mem_map(at, phys->size, 0, handle, 0);
	}
	if (!error) {
		reachable = phys->node != vc_node() || phys->device == vc_device_current() ||
			    vc_peer_possible(vc_device_current(), phys->device);
		if (!reachable || mprotect((void *)at, phys->size, PROT_READ | PROT_WRITE)) {
			vc_cu_mem_unmap(at, phys->size);
			error = CUDA_ERROR_INVALID_DEVICE;
		}
	}
	if (error && at) {
		vc_cu_mem_unreserve(at, phys->size);
	}
	vc_cu_mem_release(handle);
	*p = error ? NULL : (void *)at;
	return error;
}

CUresult vc_vmm_alloc(int device, size_t size, void **p)
{
	size_t used = (size + VC_VMM_GRANULARITY - 1) & ~(VC_VMM_GRANULARITY - 1);
	struct vc_phys *phys;
	CUresult error;

	error = used < size ? CUDA_ERROR_OUT_OF_MEMORY : vc_phys_make(&phys, used, size, device);
	return error ? error : vc_phys_place(phys, p);
}

/* The memory at p becomes *mem and is unmapped; its address stays reserved. */
static CUresult vc_vmm_take(void *p, struct vc_mem *mem)
{
	if (!vc_mem_find(p, 1, mem) || mem->start != (uintptr_t)p || mem->kind != VC_MEM_MAPPED) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return vc_cu_mem_unmap(mem->start, mem->size);
}

CUresult vc_vmm_unmap(void *p)
{
	struct vc_mem mem;

	return vc_vmm_take(p, &mem);
}

CUresult vc_vmm_free(void *p)
{
	struct vc_mem mem;
	CUresult error = vc_vmm_take(p, &mem);

	return error ? error : vc_cu_mem_unreserve(mem.start, mem.size);
}

CUresult vc_vmm_map_again(const struct vc_export *from, void **p)
{
	int fd = vc_export_fd(from);
	struct vc_phys *phys = fd >= 0 ? vc_phys_import(fd, true) : NULL;

	return phys ? vc_phys_place(phys, p) : CUDA_ERROR_INVALID_HANDLE;
}
