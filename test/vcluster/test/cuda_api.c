/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that must be refused, with the code that a GPU gives, and calls that must not. Runs on a
 * GPU too (built with nvcc and kernels.cu), which is where the expectations come from.
 */
#include "test.h"
#include "kernels.h"

static void test_devices(void)
{
	int value, count;
	struct cudaDeviceProp prop;
	char id[32];

	OK(cudaGetDeviceCount(&count));
	CHECK_CUDA(cudaSetDevice(-1), cudaErrorInvalidDevice);
	CHECK_CUDA(cudaSetDevice(count), cudaErrorInvalidDevice);
	CHECK_CUDA(cudaGetLastError(), cudaErrorInvalidDevice);
	CHECK_CUDA(cudaGetLastError(), cudaSuccess);
	OK(cudaGetDevice(&value));
	CHECK_INT(value, 0);
	OK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
	CHECK_INT(value, 32);
	CHECK_CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, count),
		   cudaErrorInvalidDevice);
	CHECK_CUDA(cudaDeviceGetAttribute(&value, (enum cudaDeviceAttr)100000, 0),
		   cudaErrorInvalidValue);
	OK(cudaGetDeviceProperties(&prop, 0));
	OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
	CHECK_INT(value, prop.multiProcessorCount);
	OK(cudaDeviceGetPCIBusId(id, sizeof(id), 0));
	CHECK_INT(strlen(id), 12);
	OK(cudaDeviceGetByPCIBusId(&value, id));
	CHECK_INT(value, 0);
	CHECK_CUDA(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessUnsupported);
	cudaGetLastError();
}

static void test_memory(void)
{
	struct cudaPointerAttributes attr;
	char host[256], *p, *q, *h;
	void *mapped;
	size_t free_bytes, total;

	CHECK_CUDA(cudaMalloc((void **)&p, (size_t)1 << 50), cudaErrorMemoryAllocation);
	CHECK_CUDA(cudaGetLastError(), cudaErrorMemoryAllocation);
	p = host;
	OK(cudaMalloc((void **)&p, 0));
	CHECK(!p);
	OK(cudaFree(NULL));
	OK(cudaFreeHost(NULL));
	NEED(cudaMalloc((void **)&p, 4096));
	CHECK_INT((uintptr_t)p % 256, 0);
	NEED(cudaMallocHost((void **)&h, 4096));
	OK(cudaMemGetInfo(&free_bytes, &total));
	CHECK(free_bytes < total);

	CHECK_CUDA(cudaFree(host), cudaErrorInvalidValue);
	CHECK_CUDA(cudaFree(p + 256), cudaErrorInvalidValue);
	CHECK_CUDA(cudaFreeHost(host), cudaErrorInvalidValue);
	NEED(cudaMalloc((void **)&q, 4096));
	OK(cudaFree(q));
	CHECK_CUDA(cudaFree(q), cudaErrorInvalidValue);

	OK(cudaPointerGetAttributes(&attr, p + 100));
	CHECK_INT(attr.type, cudaMemoryTypeDevice);
	CHECK(attr.devicePointer == p + 100);
	CHECK_INT(attr.device, 0);
	OK(cudaPointerGetAttributes(&attr, h + 100));
	CHECK_INT(attr.type, cudaMemoryTypeHost);
	CHECK(attr.hostPointer == h + 100);
	OK(cudaPointerGetAttributes(&attr, host));
	CHECK_INT(attr.type, cudaMemoryTypeUnregistered);
	OK(cudaHostGetDevicePointer(&mapped, h, 0));
	CHECK(mapped == h);
	CHECK_CUDA(cudaHostGetDevicePointer(&mapped, host, 0), cudaErrorInvalidValue);

	CHECK_CUDA(cudaMemcpy(p, host, 5000, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
	CHECK_CUDA(cudaMemcpy(p, host, 16, (enum cudaMemcpyKind)9),
		   cudaErrorInvalidMemcpyDirection);
	CHECK_CUDA(cudaMemcpy(host, host + 64, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
	CHECK_CUDA(cudaMemset(host, 0, 16), cudaErrorInvalidValue);
	CHECK_CUDA(cudaMemset(p, 0, 5000), cudaErrorInvalidValue);
	cudaGetLastError();

	for (int i = 0; i < 256; i++) {
		host[i] = (char)i;
	}
	OK(cudaMemcpy(p, host, 256, cudaMemcpyHostToDevice));
	OK(cudaMemset(p + 16, 0x55, 16));
	OK(cudaMemcpy(p + 512, p, 256, cudaMemcpyDeviceToDevice));
	OK(cudaMemcpy(h, p + 512, 256, cudaMemcpyDefault));
	for (int i = 0; i < 256; i++) {
		CHECK_INT(h[i], i >= 16 && i < 32 ? 0x55 : (char)i);
	}
	OK(cudaFree(p));
	CHECK_CUDA(cudaMemset(p, 0, 16), cudaErrorInvalidValue);
	cudaGetLastError();
	OK(cudaFreeHost(h));
	OK(cudaHostRegister(host, sizeof(host), cudaHostRegisterMapped));
	CHECK_CUDA(cudaHostRegister(host, sizeof(host), cudaHostRegisterMapped),
		   cudaErrorHostMemoryAlreadyRegistered);
	OK(cudaHostUnregister(host));
	CHECK_CUDA(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
	cudaGetLastError();
}

static void test_launches(void)
{
	struct test_add_args args = { .add = 1 };
	void *list[] = { &args };
	cudaLaunchAttribute attr = { .id = (cudaLaunchAttributeID)9999 };
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct cudaFuncAttributes func;
	uint32_t host;
	int blocks, sms;

	NEED(cudaMalloc((void **)&args.word, 64));
	OK(cudaMemset(args.word, 0, 64));
	CHECK_CUDA(test_launch(test_add, 0, 32, &args, 0, NULL), cudaErrorInvalidValue);
	CHECK_CUDA(test_launch(test_add, 1, 0, &args, 0, NULL), cudaErrorInvalidValue);
	CHECK_CUDA(test_launch(test_add, 1, 1056, &args, 0, NULL), cudaErrorInvalidValue);
	CHECK_CUDA(test_launch(test_copy, 1, 288, &args, 0, NULL), cudaErrorInvalidValue);
	CHECK_CUDA(test_launch(test_add, 1, 32, &args, 49153, NULL), cudaErrorInvalidValue);
	CHECK_CUDA(cudaLaunchKernel((const void *)test_result, config.gridDim, config.blockDim,
				    list, 0, NULL),
		   cudaErrorInvalidResourceHandle);
	config.attrs = &attr;
	config.numAttrs = 1;
	CHECK_CUDA(cudaLaunchKernelExC(&config, (const void *)test_add, list),
		   cudaErrorInvalidValue);
	attr.id = cudaLaunchAttributeCooperative;
	attr.val.cooperative = 1;
	OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
	OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)test_add, 1024, 0));
	CHECK(blocks >= 1);
	config.blockDim.x = 1024;
	config.gridDim.x = (unsigned int)(sms * blocks + 1);
	CHECK_CUDA(cudaLaunchKernelExC(&config, (const void *)test_add, list),
		   cudaErrorCooperativeLaunchTooLarge);
	config.gridDim.x--;
	OK(cudaLaunchKernelExC(&config, (const void *)test_add, list));
	attr.id = cudaLaunchAttributePriority;
	attr.val.priority = 0;
	config.gridDim.x = 1;
	OK(cudaLaunchKernelExC(&config, (const void *)test_add, list));
	CHECK_CUDA(cudaFuncSetAttribute((const void *)test_add,
					cudaFuncAttributeMaxDynamicSharedMemorySize, 228 * 1024),
		   cudaErrorInvalidValue);
	OK(cudaFuncSetAttribute((const void *)test_add, cudaFuncAttributeMaxDynamicSharedMemorySize,
				227 * 1024));
	OK(test_launch(test_add, 1, 32, &args, 227 * 1024, NULL));
	OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)test_add, 32,
							 227 * 1024));
	CHECK_INT(blocks, 1);
	OK(cudaFuncGetAttributes(&func, (const void *)test_copy));
	CHECK_INT(func.maxThreadsPerBlock, 256);
	CHECK_CUDA(cudaFuncGetAttributes(&func, (const void *)test_result),
		   cudaErrorInvalidResourceHandle);
	OK(cudaMemcpy(&host, args.word, sizeof(host), cudaMemcpyDefault));
	OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)test_add, 1024, 0));
	CHECK_INT(host, sms * blocks + 2);
	OK(cudaFree(args.word));
	cudaGetLastError();
}

static void test_handles(void)
{
	struct test_add_args args = { .add = 1 };
	cudaStream_t stream, other;
	cudaEvent_t event, plain;
	int count;
	float ms;

	NEED(cudaMalloc((void **)&args.word, 64));
	CHECK_CUDA(cudaStreamCreateWithFlags(&stream, 77), cudaErrorInvalidValue);
	CHECK_CUDA(cudaEventCreateWithFlags(&event, 1024), cudaErrorInvalidValue);
	NEED(cudaStreamCreate(&stream));
	NEED(cudaEventCreate(&event));
	NEED(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
	OK(cudaStreamQuery(stream));
	OK(cudaEventSynchronize(event)); /* never recorded: complete */
	CHECK_CUDA(cudaEventElapsedTime(&ms, event, event), cudaErrorInvalidResourceHandle);
	OK(cudaEventRecord(event, stream));
	OK(cudaEventRecord(plain, stream));
	OK(cudaStreamSynchronize(stream));
	OK(cudaEventElapsedTime(&ms, event, event));
	CHECK(ms == 0);
	CHECK_CUDA(cudaEventElapsedTime(&ms, event, plain), cudaErrorInvalidResourceHandle);
	args.spin_ns = 100000000;
	OK(test_launch(test_add, 1, 32, &args, 0, stream));
	CHECK_CUDA(cudaStreamQuery(stream), cudaErrorNotReady);
	OK(cudaEventRecord(event, stream));
	CHECK_CUDA(cudaPeekAtLastError(), cudaErrorInvalidResourceHandle);
	OK(cudaEventSynchronize(event));
	OK(cudaGetDeviceCount(&count));
	if (count > 1) {
		OK(cudaSetDevice(1));
		NEED(cudaStreamCreate(&other));
		OK(cudaSetDevice(0));
		CHECK_CUDA(test_launch(test_add, 1, 32, &args, 0, other),
			   cudaErrorInvalidResourceHandle);
		CHECK_CUDA(cudaEventRecord(event, other), cudaErrorInvalidResourceHandle);
		OK(cudaStreamWaitEvent(other, event, 0));
		OK(cudaMemsetAsync(args.word, 0, 4, other));
		OK(cudaStreamSynchronize(other));
		OK(cudaStreamDestroy(other));
	}
	OK(cudaEventDestroy(event));
	OK(cudaEventDestroy(plain));
	OK(cudaStreamDestroy(stream));
	OK(cudaFree(args.word));
	cudaGetLastError();
}

static void test_peers(void)
{
	char *p[2];
	int count, can;

	OK(cudaGetDeviceCount(&count));
	if (count < 2) {
		return;
	}
	OK(cudaDeviceCanAccessPeer(&can, 0, 1));
	CHECK_INT(can, 1);
	OK(cudaDeviceCanAccessPeer(&can, 0, 0));
	CHECK_INT(can, 0);
	OK(cudaDeviceEnablePeerAccess(1, 0));
	CHECK_CUDA(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
	CHECK_CUDA(cudaDeviceEnablePeerAccess(1, 1), cudaErrorInvalidValue);
	for (int i = 0; i < 2; i++) {
		OK(cudaSetDevice(i));
		NEED(cudaMalloc((void **)&p[i], 4096));
		OK(cudaMemset(p[i], i, 4096));
		OK(cudaDeviceSynchronize());
	}
	OK(cudaMemcpy(p[0], p[1], 4096, cudaMemcpyDefault));
	OK(cudaMemcpy(p[1], p[0], 4096, cudaMemcpyDefault));
	OK(cudaFree(p[1]));
	OK(cudaFree(p[0])); /* of another device than the current one */
	OK(cudaSetDevice(0));
	cudaGetLastError();
}

#define FILLED ((size_t)1 << 20)

/* Zeros end where they shall, on pages and across their edges. */
static void test_zeros(void)
{
	static const size_t part[][2] = { { 0, 65536 },    { 1, 65536 },
					  { 4095, 70000 }, { 4096, 65535 },
					  { 123, 200001 }, { FILLED - 65537, 65537 } };
	static uint8_t host[FILLED];
	uint8_t *p;

	NEED(cudaMalloc((void **)&p, FILLED));
	for (size_t i = 0; i < sizeof(part) / sizeof(*part); i++) {
		size_t start = part[i][0], end = start + part[i][1], wrong = 0;

		OK(cudaMemset(p, 0xff, FILLED));
		OK(cudaMemset(p + start, 0, end - start));
		OK(cudaMemcpy(host, p, FILLED, cudaMemcpyDeviceToHost));
		for (size_t k = 0; k < FILLED; k++) {
			wrong += host[k] != (k >= start && k < end ? 0 : 0xff);
		}
		CHECK_INT(wrong, 0);
	}
	OK(cudaFree(p));
}

int main(void)
{
	test_devices();
	test_memory();
	test_zeros();
	test_launches();
	test_handles();
	test_peers();
	CHECK(!strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue"));
	CHECK(!strcmp(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument"));
	return test_result();
}
