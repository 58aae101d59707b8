/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations. */
#ifndef VC_MEMORY_H
#define VC_MEMORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cuda_runtime_api.h>

enum vc_mem_kind {
	VC_MEM_DEVICE,
	VC_MEM_HOST,
	VC_MEM_REGISTERED,
	VC_MEM_IMPORTED
};

struct vc_mem {
	uintptr_t start;
	size_t size;
	enum vc_mem_kind kind;
	int device;
	void *map;
	size_t map_size;
	int fd;
	uint64_t inode; /* of the memfd */
	int opens;
	unsigned int flags;
	bool sync_memops; /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS; recorded, all copies are synchronous */
	bool vmm;         /* a mapping of a handle (cuMemMap): cudaFree and CUDA IPC refuse it */
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
bool vc_mem_sync_memops(uintptr_t start, enum vc_mem_kind kind, bool on);
struct vc_mem *vc_mem_at(uintptr_t start, enum vc_mem_kind kind); /* with the lock held */
struct vc_mem *vc_mem_by_inode(uint64_t inode);                   /* with the lock held */
extern pthread_mutex_t vc_mem_mutex;
cudaError_t vc_device_alloc(int device, size_t size, size_t align, bool vmm, void **p);
/* cudaFree, or its counterpart for memory with `vmm`. */
cudaError_t vc_device_free(void *p, bool vmm);
void vc_mem_export(const struct vc_mem *mem, struct vc_export *out);
/* A descriptor of the exporter's memory, if it is still there; else -1. */
int vc_export_fd(const struct vc_export *from);
/* One more mapping of an allocation, of this process or another one of the node. */
cudaError_t vc_mem_map_again(const struct vc_export *from, void **p);
/* Ends it; touching it afterwards faults. */
void vc_mem_unmap_again(void *p);
/* Maps all of fd (-1: fresh host memory) before a page that cannot be touched. */
void *vc_map(int fd, size_t size);
void vc_unmap_later(const struct vc_mem *mem);

#endif
