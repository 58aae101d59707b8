/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's virtual memory management: handles of memory, and mappings of our own. */
#include <cuda.h>
#include <pthread.h>
#include "core/cuda.h"
#include "peer/vmm.h"

static struct ep_vmm {
	CUresult (*retain)(CUmemGenericAllocationHandle *handle, void *p);
	CUresult (*release)(CUmemGenericAllocationHandle handle);
	CUresult (*reserve)(CUdeviceptr *p, size_t size, size_t align, CUdeviceptr at,
			    unsigned long long flags);
	CUresult (*unreserve)(CUdeviceptr p, size_t size);
	CUresult (*map)(CUdeviceptr p, size_t size, size_t offset,
			CUmemGenericAllocationHandle handle, unsigned long long flags);
	CUresult (*unmap)(CUdeviceptr p, size_t size);
	CUresult (*set_access)(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc,
			       size_t count);
} ep_vmm;
static const char *ep_vmm_missing;
static pthread_once_t ep_vmm_once = PTHREAD_ONCE_INIT;

static void ep_vmm_init(void)
{
	const struct {
		const char *name;
		void *slot;
	} table[] = {
		{ "cuMemRetainAllocationHandle", &ep_vmm.retain },
		{ "cuMemRelease", &ep_vmm.release },
		{ "cuMemAddressReserve", &ep_vmm.reserve },
		{ "cuMemAddressFree", &ep_vmm.unreserve },
		{ "cuMemMap", &ep_vmm.map },
		{ "cuMemUnmap", &ep_vmm.unmap },
		{ "cuMemSetAccess", &ep_vmm.set_access },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(table); i++) {
		if (!ep_driver_find(table[i].name, table[i].slot)) {
			ep_vmm_missing = table[i].name;
		}
	}
}

bool ep_vmm_driver(struct ep_reason *why)
{
	pthread_once(&ep_vmm_once, ep_vmm_init);
	return !ep_vmm_missing || ep_reason_set(why, "the CUDA driver has no %s", ep_vmm_missing);
}

bool ep_vmm_handle(void *p, CUmemGenericAllocationHandle *handle)
{
	if (ep_vmm.retain(handle, p) != CUDA_SUCCESS) {
		return false;
	}
	ep_vmm.release(*handle);
	return true;
}

CUresult ep_vmm_map_again(void *p, size_t bytes, int device, void **out, const char **step)
{
	CUmemAccessDesc desc = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
				 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at = 0;
	CUresult error;

	*step = "cuMemRetainAllocationHandle";
	error = ep_vmm.retain(&handle, p);
	if (error != CUDA_SUCCESS) {
		return error;
	}
	*step = "cuMemAddressReserve";
	error = ep_vmm.reserve(&at, bytes, 0, 0, 0);
	if (error != CUDA_SUCCESS) {
		goto out_release;
	}
	*step = "cuMemMap";
	error = ep_vmm.map(at, bytes, 0, handle, 0);
	if (error != CUDA_SUCCESS) {
		goto err_unreserve;
	}
	*step = "cuMemSetAccess";
	error = ep_vmm.set_access(at, bytes, &desc, 1);
	if (error == CUDA_SUCCESS) {
		*out = (void *)at;
		goto out_release;
	}
	ep_vmm.unmap(at, bytes);
err_unreserve:
	ep_vmm.unreserve(at, bytes);
out_release:
	ep_vmm.release(handle); /* the mapping keeps the memory */
	return error;
}

void ep_vmm_unmap(void *base, uint64_t bytes)
{
	(void)ep_vmm.unmap((CUdeviceptr)base, bytes);
	(void)ep_vmm.unreserve((CUdeviceptr)base, bytes);
}
