/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cudaDeviceReset ends the device's context: memory, streams, events and graphs of it are gone, and
 * the next call makes another context. Another device keeps its own.
 */
#include <sys/mman.h>
#include <unistd.h>
#include <cuda.h>
#include "test.h"
#include "kernels.h"

#define PAGE 4096

static CUresult (*get_id)(CUcontext context, unsigned long long *id);
static CUresult (*get_state)(CUdevice device, unsigned int *flags, int *active);
static CUresult (*retain)(CUcontext *context, CUdevice device);
static CUresult (*release)(CUdevice device);

static struct {
	CUresult (*range)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
	CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
			   unsigned long long);
	CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
			unsigned long long);
	CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
	CUresult (*release)(CUmemGenericAllocationHandle);
	CUresult (*unmap)(CUdeviceptr, size_t);
	CUresult (*unreserve)(CUdeviceptr, size_t);
} vmm;

static void find(const char *name, void *call)
{
	void *p = NULL;

	NEED(cudaGetDriverEntryPointByVersion(name, &p, 12000, cudaEnableDefault, NULL));
	NEED(!p);
	memcpy(call, &p, sizeof(p));
}

static bool active(int device)
{
	unsigned int flags;
	int is = -1;

	CHECK_INT(get_state(device, &flags, &is), CUDA_SUCCESS);
	return is;
}

static unsigned long long id_of(int device)
{
	unsigned long long id = 0;
	CUcontext context;

	CHECK_INT(retain(&context, device), CUDA_SUCCESS);
	CHECK_INT(get_id(context, &id), CUDA_SUCCESS);
	CHECK_INT(release(device), CUDA_SUCCESS);
	return id;
}

/* The kernel reads there for us, and says so if it cannot. */
static bool readable(const char *p)
{
	int fd[2];
	bool good;

	NEED(pipe(fd));
	good = write(fd[1], p, 1) == 1;
	close(fd[0]);
	close(fd[1]);
	return good;
}

static void test_ids(void)
{
	unsigned long long first[2], id = 0;

	for (int d = 1; d >= 0; d--) {
		OK(cudaSetDevice(d));
		first[d] = id_of(d);
	}
	CHECK_INT(get_id(NULL, &id), CUDA_SUCCESS);
	CHECK(id == first[0] && id != first[1]);
	OK(cudaDeviceReset());
	CHECK(!active(0) && active(1));
	CHECK(get_id(NULL, &id) != CUDA_SUCCESS);
	CHECK(!active(0)); /* asking makes none */
	OK(cudaFree(NULL));
	CHECK(active(0));
	CHECK_INT(get_id(NULL, &id), CUDA_SUCCESS);
	CHECK(id != first[0] && id == id_of(0));
	CHECK(id_of(1) == first[1]);
}

static void test_memory(void)
{
	char *dev, *host, *other, *map;
	size_t before, after, total;
	struct cudaPointerAttributes attr;

	OK(cudaSetDevice(1));
	OK(cudaMalloc((void **)&other, PAGE));
	OK(cudaSetDevice(0));
	OK(cudaMemGetInfo(&before, &total));
	OK(cudaMalloc((void **)&dev, PAGE));
	OK(cudaHostAlloc((void **)&host, PAGE, cudaHostAllocMapped | cudaHostAllocPortable));
	map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	OK(cudaHostRegister(map, PAGE, cudaHostRegisterMapped));
	CHECK(readable(host) && readable(map));
	map[0] = 1;
	OK(cudaDeviceReset());
	CHECK(!readable(host) && readable(map) && map[0] == 1);
	OK(cudaMemGetInfo(&after, &total));
	CHECK(after == before);
	OK(cudaPointerGetAttributes(&attr, dev));
	CHECK_INT(attr.type, cudaMemoryTypeUnregistered);
	CHECK_CUDA(cudaFree(dev), cudaErrorInvalidValue);
	CHECK_CUDA(cudaFreeHost(host), cudaErrorInvalidValue);
	CHECK_CUDA(cudaHostUnregister(map), cudaErrorHostMemoryNotRegistered);
	OK(cudaHostRegister(map, PAGE, cudaHostRegisterMapped));
	OK(cudaHostUnregister(map));
	OK(cudaSetDevice(1));
	OK(cudaMemset(other, 0, PAGE));
	OK(cudaFree(other));
	munmap(map, PAGE);
}

/* Mappings of handles are not the context's. Memory shown to a NIC stays where the NIC finds it. */
static void test_kept(void)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	const size_t size = 2 << 20;
	CUmemGenericAllocationHandle handle;
	size_t before, after, total;
	char *shown, *plain;
	CUdeviceptr at;
	int fd;

	OK(cudaSetDevice(0));
	OK(cudaMemGetInfo(&before, &total));
	OK(cudaMalloc((void **)&shown, size));
	OK(cudaMalloc((void **)&plain, size));
	CHECK_INT(vmm.range(&fd, (CUdeviceptr)shown, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
		  CUDA_SUCCESS);
	CHECK_INT(vmm.create(&handle, size, &prop, 0), CUDA_SUCCESS);
	CHECK_INT(vmm.reserve(&at, size, 0, 0, 0), CUDA_SUCCESS);
	CHECK_INT(vmm.map(at, size, 0, handle, 0), CUDA_SUCCESS);
	CHECK_INT(vmm.access(at, size, &access, 1), CUDA_SUCCESS);
	CHECK_INT(vmm.release(handle), CUDA_SUCCESS);
	OK(cudaDeviceReset());
	CHECK(readable(shown) && !readable(plain) && readable((char *)at));
	OK(cudaMemGetInfo(&after, &total));
	CHECK(after == before - size);
	OK(cudaMemset((void *)at, 0, size));
	OK(cudaDeviceSynchronize());
	CHECK_INT(vmm.unmap(at, size), CUDA_SUCCESS);
	CHECK_INT(vmm.unreserve(at, size), CUDA_SUCCESS);
	OK(cudaMemGetInfo(&after, &total));
	CHECK(after == before);
	close(fd);
}

static void test_objects(void)
{
	struct test_add_args add = { .add = 1 };
	cudaStream_t stream, kept;
	cudaGraphExec_t exec;
	cudaEvent_t event;
	cudaGraph_t graph;
	uint32_t sum;

	OK(cudaSetDevice(1));
	NEED(cudaStreamCreate(&kept));
	OK(cudaSetDevice(0));
	NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	NEED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	NEED(cudaMalloc((void **)&add.word, 4));
	OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	OK(test_launch(test_add, 1, 32, &add, 0, stream));
	OK(cudaStreamEndCapture(stream, &graph));
	OK(cudaGraphInstantiate(&exec, graph, 0));
	add.spin_ns = 50000000;
	OK(test_launch(test_add, 1, 32, &add, 0, stream)); /* runs when the reset comes */
	OK(cudaEventRecord(event, stream));
	OK(cudaFuncSetAttribute((const void *)test_add, cudaFuncAttributeMaxDynamicSharedMemorySize,
				100 << 10));
	OK(cudaDeviceReset());
	CHECK_CUDA(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle);
	CHECK_CUDA(test_launch(test_add, 1, 32, &add, 0, stream), cudaErrorInvalidResourceHandle);
	CHECK_CUDA(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
	CHECK_CUDA(cudaEventSynchronize(event), cudaErrorInvalidResourceHandle);
	CHECK_CUDA(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
	CHECK_CUDA(cudaGraphLaunch(exec, NULL), cudaErrorInvalidValue);
	CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0), cudaErrorInvalidValue);
	OK(cudaStreamQuery(kept));
	OK(cudaStreamDestroy(kept));
	/* the default stream and new objects serve */
	add.spin_ns = 0;
	NEED(cudaMalloc((void **)&add.word, 4));
	NEED(cudaStreamCreate(&stream));
	OK(cudaMemset(add.word, 0, 4));
	OK(test_launch(test_add, 1, 32, &add, 0, stream));
	OK(cudaMemcpy(&sum, add.word, 4, cudaMemcpyDeviceToHost));
	CHECK(sum > 0);
	OK(cudaStreamDestroy(stream));
	OK(cudaFree(add.word));
}

static void test_attributes(void)
{
	struct cudaFuncAttributes before, after;

	for (int d = 1; d >= 0; d--) { /* devices share attributes here: the last context counts */
		OK(cudaSetDevice(d));
		OK(cudaDeviceReset());
	}
	OK(cudaFuncGetAttributes(&before, (const void *)test_copy));
	OK(cudaFuncSetAttribute((const void *)test_copy,
				cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
	OK(cudaDeviceReset());
	OK(cudaFuncGetAttributes(&after, (const void *)test_copy));
	CHECK_INT(after.maxDynamicSharedSizeBytes, before.maxDynamicSharedSizeBytes);
}

int main(void)
{
	find("cuCtxGetId", &get_id);
	find("cuDevicePrimaryCtxGetState", &get_state);
	find("cuDevicePrimaryCtxRetain", &retain);
	find("cuDevicePrimaryCtxRelease", &release);
	find("cuMemGetHandleForAddressRange", &vmm.range);
	find("cuMemCreate", &vmm.create);
	find("cuMemAddressReserve", &vmm.reserve);
	find("cuMemMap", &vmm.map);
	find("cuMemSetAccess", &vmm.access);
	find("cuMemRelease", &vmm.release);
	find("cuMemUnmap", &vmm.unmap);
	find("cuMemAddressFree", &vmm.unreserve);
	test_ids();
	test_memory();
	test_kept();
	test_objects();
	test_attributes();
	return test_result();
}
