/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's virtual memory management: how long memory lives, and what is refused. */
#include <cuda.h>
#include "test.h"
#include "kernels.h"

#define BYTES ((size_t)4 << 20)

static struct {
	CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
			   unsigned long long);
	CUresult (*release)(CUmemGenericAllocationHandle);
	CUresult (*retain)(CUmemGenericAllocationHandle *, void *);
	CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	CUresult (*unreserve)(CUdeviceptr, size_t);
	CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
			unsigned long long);
	CUresult (*unmap)(CUdeviceptr, size_t);
	CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
} cu;

static void load(const char *name, void *slot)
{
	NEED(cudaGetDriverEntryPointByVersion(name, (void **)slot, 12000, cudaEnableDefault, NULL));
	NEED(!*(void **)slot);
}

static uint64_t available(void)
{
	size_t bytes = 0, total = 0;

	NEED(cudaMemGetInfo(&bytes, &total));
	return bytes;
}

static uint32_t *map(CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc desc = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
				 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr p = 0;

	NEED(cu.reserve(&p, BYTES, 0, 0, 0));
	NEED(cu.map(p, BYTES, 0, handle, 0));
	NEED(cu.access(p, BYTES, &desc, 1));
	return (uint32_t *)p;
}

static void unmap(uint32_t *p)
{
	CHECK_INT(cu.unreserve((CUdeviceptr)p, BYTES), CUDA_ERROR_INVALID_VALUE);
	NEED(cu.unmap((CUdeviceptr)p, BYTES));
	NEED(cu.unreserve((CUdeviceptr)p, BYTES));
}

/* Memory lives as long as a handle or a mapping of it. */
static void test_life(void)
{
	CUmemAllocationProp p = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				  .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemGenericAllocationHandle handle, again;
	uint64_t before = available();
	uint32_t *one, *two;

	CHECK_INT(cu.create(&handle, BYTES - 1, &p, 0), CUDA_ERROR_INVALID_VALUE);
	NEED(cu.create(&handle, BYTES, &p, 0));
	CHECK_INT(before - available(), BYTES);
	one = map(handle);
	two = map(handle);
	NEED(cu.release(handle));
	NEED(cu.retain(&again, two + 100));
	CHECK(again == handle);
	NEED(cudaMemset(one, 0, BYTES));
	{
		struct test_add_args args = { .word = two + 5, .add = 7 };
		uint32_t word = 0;

		NEED(test_launch(test_add, 1, 32, &args, 0, NULL));
		NEED(cudaMemcpy(&word, one + 5, 4, cudaMemcpyDefault));
		CHECK_INT(word, 7);
	}
	unmap(one);
	unmap(two);
	CHECK_INT(before - available(), BYTES);
	NEED(cu.release(again));
	CHECK_INT(available(), before);
	CHECK_INT(cu.release(again), CUDA_ERROR_INVALID_VALUE);
	CHECK_INT(cu.retain(&again, two), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	NEED(cudaSetDevice(0));
	load("cuMemCreate", &cu.create);
	load("cuMemRelease", &cu.release);
	load("cuMemRetainAllocationHandle", &cu.retain);
	load("cuMemAddressReserve", &cu.reserve);
	load("cuMemAddressFree", &cu.unreserve);
	load("cuMemMap", &cu.map);
	load("cuMemUnmap", &cu.unmap);
	load("cuMemSetAccess", &cu.access);
	test_life();
	return test_result();
}
