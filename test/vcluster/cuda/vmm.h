/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's virtual memory management: memory that lives as long as a handle or a mapping of it
 * does, in whichever process, and addresses that are reserved apart from it.
 */
#ifndef VC_VMM_H
#define VC_VMM_H

#include <stdbool.h>
#include <cuda.h>
#include "cuda/memory.h"

#define VC_VMM_GRANULARITY ((size_t)2 << 20)

/* Nodes whose GPUs map each other's memory: VC_DOMAIN consecutive ones, 1 if it is not set. */
int vc_domain_of(int node);

/* Memory of a device, mapped once; and its end, which waits for no kernel. */
CUresult vc_vmm_alloc(int device, size_t size, void **p);
CUresult vc_vmm_free(void *p);

/* [*start, + *size) becomes the range of reserved addresses that it lies in, if it lies in one. */
void vc_vmm_range(uintptr_t *start, size_t *size);

/* One more mapping, for the current device, of memory of this or another process of the domain. */
CUresult vc_vmm_map_again(const struct vc_export *from, void **p);

CUresult vc_cu_mem_granularity(size_t *granularity, const CUmemAllocationProp *prop,
			       CUmemAllocationGranularity_flags option);
CUresult vc_cu_mem_create(CUmemGenericAllocationHandle *handle, size_t size,
			  const CUmemAllocationProp *prop, unsigned long long flags);
CUresult vc_cu_mem_release(CUmemGenericAllocationHandle handle);
CUresult vc_cu_mem_retain(CUmemGenericAllocationHandle *handle, void *p);
CUresult vc_cu_mem_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle);
CUresult vc_cu_mem_export(void *shareable, CUmemGenericAllocationHandle handle,
			  CUmemAllocationHandleType type, unsigned long long flags);
CUresult vc_cu_mem_import(CUmemGenericAllocationHandle *handle, void *shareable,
			  CUmemAllocationHandleType type);
CUresult vc_cu_mem_reserve(CUdeviceptr *p, size_t size, size_t align, CUdeviceptr fixed,
			   unsigned long long flags);
CUresult vc_cu_mem_unreserve(CUdeviceptr p, size_t size);
CUresult vc_cu_mem_map(CUdeviceptr p, size_t size, size_t offset,
		       CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult vc_cu_mem_unmap(CUdeviceptr p, size_t size);
CUresult vc_cu_mem_set_access(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc,
			      size_t count);

#endif
