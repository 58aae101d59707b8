/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations. */
#ifndef VC_MEMORY_H
#define VC_MEMORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cuda_runtime_api.h>

#define VC_PAGE ((uintptr_t)4096) /* of the processor's tables */

enum vc_mem_kind {
	VC_MEM_DEVICE,
	VC_MEM_HOST,
	VC_MEM_REGISTERED,
	VC_MEM_IMPORTED,
	VC_MEM_MAPPED /* a mapping of a handle: cudaFree and CUDA IPC refuse it */
};

struct vc_mem {
	uintptr_t start;
	size_t size;
	enum vc_mem_kind kind;
	int device;
	void *map;
	size_t map_size;
	int fd;
	size_t fd_offset; /* where `map` begins in it */
	uint64_t inode;   /* of the memfd */
	int opens;
	unsigned int flags;
	bool sync_memops; /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS; recorded, all copies are synchronous */
	bool shown; /* as a DMA-BUF, which keeps it after a reset: NICs may use these addresses */
	struct vc_phys *phys; /* MAPPED */
	bool foreign;         /* MAPPED: memory of another process */
};

/* What another process needs to map a device allocation. */
struct vc_export {
	int32_t pid, fd, node, device;
	uint64_t inode, size, map_size, offset;
};

/* The allocation that holds all of [p, p + size), copied out; false: none does. */
bool vc_mem_find(const void *p, size_t size, struct vc_mem *out);
/* Overlaps an allocation (also partly)? */
bool vc_mem_touches(const void *p, size_t size, struct vc_mem *out);
bool vc_mem_add(const struct vc_mem *mem);
bool vc_mem_remove(uintptr_t start, enum vc_mem_kind kind, struct vc_mem *out);
void vc_mem_show(uintptr_t start, enum vc_mem_kind kind); /* as a DMA-BUF */
bool vc_mem_sync_memops(uintptr_t start, enum vc_mem_kind kind, bool on);
struct vc_mem *vc_mem_at(uintptr_t start, enum vc_mem_kind kind); /* with the lock held */
struct vc_mem *vc_mem_by_inode(uint64_t inode);                   /* with the lock held */
extern pthread_mutex_t vc_mem_mutex;
/* Device memory of any kind. */
static inline bool vc_mem_on_device(const struct vc_mem *mem)
{
	return mem->kind == VC_MEM_DEVICE || mem->kind == VC_MEM_IMPORTED ||
	       mem->kind == VC_MEM_MAPPED;
}

/* Counts memory of a device; false: there is not so much. */
bool vc_mem_account(int device, size_t size);
void vc_mem_unaccount(int device, size_t size);
/* Fills fresh memory with the pattern; false: there is no memory for it. */
bool vc_mem_poison(int fd, size_t offset, size_t size);
cudaError_t vc_device_alloc(int device, size_t size, size_t align, void **p);
void vc_mem_export(const struct vc_mem *mem, struct vc_export *out);
/* A descriptor of the exporter's memory, if it is still there; else -1. */
int vc_export_fd(const struct vc_export *from);
/*
 * A reset: memory of the device's context is gone, and host memory no longer registered. Mappings of
 * handles are not the context's, and stay.
 */
void vc_memory_end(int device);
/* An address that no call takes: was it memory that a reset has ended? */
void vc_mem_check_ended(const void *p);
/* Ends a mapping now and frees its addresses later: touching them in between faults. */
void vc_unmap_later(const struct vc_mem *mem);

#endif
