/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What RDMA asks of CUDA: doorbell pages registered as I/O memory, DMA-BUF descriptors of device
 * memory, attributes of pointers; and what it is told where a driver lacks them.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cuda.h>
#include "test.h"
#include "kernels.h"

#define PAGE 4096
#define IO_FLAGS (cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory)

typedef CUresult (*get_handle_fn)(void *, CUdeviceptr, size_t, CUmemRangeHandleType,
				  unsigned long long);
typedef CUresult (*get_pointer_fn)(void *, CUpointer_attribute, CUdeviceptr);
typedef CUresult (*set_pointer_fn)(const void *, CUpointer_attribute, CUdeviceptr);

static get_handle_fn get_handle;
static get_pointer_fn get_pointer;
static set_pointer_fn set_pointer;

static void test_entries(void)
{
	enum cudaDriverEntryPointQueryResult status;
	void *fn = &status;

	OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &fn, 12000, cudaEnableDefault,
					    &status));
	CHECK(!fn);
	CHECK_INT(status, cudaDriverEntryPointSymbolNotFound);
	OK(cudaGetDriverEntryPointByVersion("cuMemGetHandleForAddressRange", &fn, 11060,
					    cudaEnableDefault, &status));
	CHECK(!fn);
	CHECK_INT(status, cudaDriverEntryPointVersionNotSufficent);
	CHECK_CUDA(cudaGetDriverEntryPointByVersion("cuCtxGetId", &fn, CUDART_VERSION + 1000,
						    cudaEnableDefault, NULL),
		   cudaErrorInvalidValue);
	CHECK_CUDA(cudaGetDriverEntryPointByVersion("", &fn, 12000, cudaEnableDefault, NULL),
		   cudaErrorInvalidValue);
	cudaGetLastError();
	NEED(cudaGetDriverEntryPointByVersion("cuMemGetHandleForAddressRange", (void **)&get_handle,
					      11070, cudaEnableDefault, &status));
	CHECK_INT(status, cudaDriverEntryPointSuccess);
	NEED(cudaGetDriverEntryPointByVersion("cuPointerGetAttribute", (void **)&get_pointer, 12000,
					      cudaEnableDefault, NULL));
	NEED(cudaGetDriverEntryPointByVersion("cuPointerSetAttribute", (void **)&set_pointer, 12000,
					      cudaEnableDefault, NULL));
	NEED(!get_handle || !get_pointer || !set_pointer);
}

/* A kernel reaches the page by the pointer that it is given for it. */
static void test_io_memory(void)
{
	char *map = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct test_add_args args = { .add = 7 };
	struct cudaPointerAttributes attr;
	void *device;

	NEED(map == MAP_FAILED);
	NEED(munmap(map + 2 * PAGE, PAGE));
	CHECK_CUDA(cudaHostRegister(map + 2048, PAGE, IO_FLAGS), cudaErrorInvalidValue);
	CHECK_CUDA(cudaHostRegister(map, 8, IO_FLAGS), cudaErrorInvalidValue);
	CHECK_CUDA(cudaHostRegister(map, 3 * PAGE, IO_FLAGS), cudaErrorInvalidValue);
	CHECK_CUDA(cudaHostRegister(map, PAGE, IO_FLAGS | 0x100), cudaErrorInvalidValue);
	OK(cudaHostRegister(map, PAGE, IO_FLAGS));
	CHECK_CUDA(cudaHostRegister(map, PAGE, IO_FLAGS), cudaErrorHostMemoryAlreadyRegistered);
	CHECK_CUDA(cudaHostRegister(map, 2 * PAGE, IO_FLAGS), cudaErrorHostMemoryAlreadyRegistered);
	OK(cudaHostRegister(map + PAGE, PAGE, IO_FLAGS));
	OK(cudaHostUnregister(map + PAGE));
	OK(cudaHostGetDevicePointer(&device, map + 0x800, 0));
	CHECK_CUDA(cudaHostGetDevicePointer(&device, map + PAGE, 0), cudaErrorInvalidValue);
	OK(cudaPointerGetAttributes(&attr, map));
	CHECK_INT(attr.type, cudaMemoryTypeHost);
	args.word = device;
	OK(test_launch(test_add, 1, 32, &args, 0, NULL));
	OK(cudaDeviceSynchronize());
	CHECK_INT(*(uint32_t *)(map + 0x800), 7);
	CHECK_CUDA(cudaHostUnregister(map + 0x800), cudaErrorHostMemoryNotRegistered);
	OK(cudaHostUnregister(map));
	CHECK_CUDA(cudaHostGetDevicePointer(&device, map, 0), cudaErrorInvalidValue);

	setenv("VC_NO_IOMEM", "1", 1);
	CHECK_CUDA(cudaHostRegister(map, PAGE, IO_FLAGS), cudaErrorNotPermitted);
	OK(cudaHostRegister(map, PAGE, cudaHostRegisterMapped));
	OK(cudaHostUnregister(map));
	unsetenv("VC_NO_IOMEM");
	OK(cudaHostRegister(map, PAGE, IO_FLAGS));
	OK(cudaHostUnregister(map));
	cudaGetLastError();
	munmap(map, 2 * PAGE);
}

static CUresult try_handle(const char *p, size_t size, int *fd)
{
	*fd = -1;
	return get_handle(fd, (CUdeviceptr)p, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

/* Stores through the descriptor are stores to device memory, wherever the range begins. */
static void test_dmabuf(void)
{
	char *p, *odd, *host, *map;
	int fd, second;

	NEED(cudaMalloc((void **)&p, 4 * PAGE));
	NEED(cudaMalloc((void **)&odd, PAGE + 256));
	NEED(cudaMallocHost((void **)&host, PAGE));
	OK(cudaMemset(p, 0, 4 * PAGE));
	OK(cudaDeviceSynchronize());
	CHECK_INT((uintptr_t)p % PAGE, 0);
	NEED(try_handle(p, 4 * PAGE, &fd));
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK_INT(lseek(fd, 0, SEEK_CUR), 0);
	NEED(try_handle(p + PAGE, PAGE, &second));
	CHECK_INT(lseek(second, 0, SEEK_CUR), PAGE);
	CHECK_INT(lseek(fd, 0, SEEK_CUR), 0);
	map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, second,
		   lseek(second, 0, SEEK_CUR));
	NEED(map == MAP_FAILED);
	map[5] = 42;
	CHECK_INT(p[PAGE + 5], 42);
	munmap(map, PAGE);
	close(second);
	CHECK_INT(try_handle(p + 256, PAGE, &second), CUDA_ERROR_INVALID_VALUE);
	CHECK_INT(try_handle(p, 100, &second), CUDA_ERROR_INVALID_VALUE);
	CHECK_INT(try_handle(p, 5 * PAGE, &second), CUDA_ERROR_INVALID_VALUE);
	CHECK_INT(try_handle(p + PAGE, 4 * PAGE, &second), CUDA_ERROR_INVALID_VALUE);
	CHECK_INT(try_handle(odd, PAGE, &second), CUDA_ERROR_INVALID_VALUE);
	CHECK_INT(try_handle(host, PAGE, &second), CUDA_ERROR_INVALID_VALUE);
	CHECK_INT(get_handle(&second, (CUdeviceptr)p, PAGE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1),
		  CUDA_ERROR_NOT_SUPPORTED);
	setenv("VC_NO_DMABUF", "1", 1);
	CHECK_INT(try_handle(p, PAGE, &second), CUDA_ERROR_NOT_SUPPORTED);
	unsetenv("VC_NO_DMABUF");
	/* The descriptor outlives the memory. */
	OK(cudaFree(p));
	map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, PAGE);
	NEED(map == MAP_FAILED);
	CHECK_INT(map[5], 42);
	munmap(map, PAGE);
	close(fd);
	CHECK_INT(try_handle(p, PAGE, &fd), CUDA_ERROR_INVALID_VALUE);
	OK(cudaFree(odd));
	OK(cudaFreeHost(host));
	cudaGetLastError();
}

static void test_attributes(void)
{
	char *p, *host;
	CUdeviceptr at;
	unsigned int on = 1;
	int value;

	NEED(cudaMalloc((void **)&p, 2 * PAGE));
	NEED(cudaMallocHost((void **)&host, PAGE));
	at = (CUdeviceptr)p + 300;
	CHECK_INT(get_pointer(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at), CUDA_SUCCESS);
	CHECK_INT(value, 0);
	CHECK_INT(set_pointer(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at), CUDA_SUCCESS);
	CHECK_INT(get_pointer(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)p),
		  CUDA_SUCCESS);
	CHECK_INT(value, 1);
	CHECK_INT(set_pointer(&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), CUDA_ERROR_INVALID_VALUE);
	CHECK_INT(set_pointer(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)host),
		  CUDA_ERROR_INVALID_VALUE);
	CHECK_INT(set_pointer(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)&on),
		  CUDA_ERROR_INVALID_VALUE);
	OK(cudaDeviceGetAttribute(&value, cudaDevAttrGPUDirectRDMAWritesOrdering, 0));
	CHECK_INT(value, cudaGPUDirectRDMAWritesOrderingOwner);
	setenv("VC_GDR_ORDERING", "0", 1);
	OK(cudaDeviceGetAttribute(&value, cudaDevAttrGPUDirectRDMAWritesOrdering, 0));
	CHECK_INT(value, cudaGPUDirectRDMAWritesOrderingNone);
	unsetenv("VC_GDR_ORDERING");
	OK(cudaFree(p));
	OK(cudaFreeHost(host));
	cudaGetLastError();
}

int main(void)
{
	test_entries();
	test_io_memory();
	test_dmabuf();
	test_attributes();
	return test_result();
}
