/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: how many, what they can do, who reaches whom. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cuda.h>
#include "cuda/device.h"
#include "cuda/pairs.h"
#include "cuda/stream.h"

#define VC_DEFAULT_DEVICES 8
#define VC_DEFAULT_MEM_MB 16384

static __thread int vc_current;                               /* ordinal */
static int vc_visible[VC_MAX_DEVICES], vc_visible_count = -1; /* -1: all */
static _Atomic int vc_sticky[VC_MAX_DEVICES];
static _Atomic unsigned long long vc_context[VC_MAX_DEVICES], vc_contexts;
static pthread_mutex_t vc_context_locks[VC_MAX_DEVICES] = { [0 ... VC_MAX_DEVICES - 1] =
								    PTHREAD_MUTEX_INITIALIZER };
static bool vc_peer_enabled[VC_MAX_DEVICES][VC_MAX_DEVICES];

static int vc_device_all(void)
{
	long n = vc_env_long("VC_GPUS", VC_DEFAULT_DEVICES);

	return n < 0 ? 0 : n > VC_MAX_DEVICES ? VC_MAX_DEVICES : (int)n;
}

/* As CUDA reads it, once: numbers, until one is wrong. */
__attribute__((constructor)) static void vc_visible_init(void)
{
	const char *text = getenv("CUDA_VISIBLE_DEVICES");
	char *end;

	if (!text) {
		return;
	}
	for (vc_visible_count = 0; vc_visible_count < VC_MAX_DEVICES; text = end + 1) {
		long number = strtol(text, &end, 10);

		if (end == text || number < 0 || number >= vc_device_all()) {
			break;
		}
		vc_visible[vc_visible_count++] = (int)number;
		if (*end != ',') {
			break;
		}
	}
}

void vc_device_make_context(int number)
{
	unsigned long long none = 0;

	if (!atomic_load(&vc_context[number])) {
		atomic_compare_exchange_strong(&vc_context[number], &none,
					       atomic_fetch_add(&vc_contexts, 1) + 1);
	}
}

int vc_device_enter(void)
{
	int number = vc_device_current();

	vc_device_make_context(number);
	return number;
}

void vc_context_lock(int number)
{
	pthread_mutex_lock(&vc_context_locks[number]);
}

void vc_context_unlock(int number)
{
	pthread_mutex_unlock(&vc_context_locks[number]);
}

unsigned long long vc_device_context(int number)
{
	return atomic_load(&vc_context[number]);
}

void vc_device_end_context(int number)
{
	pthread_mutex_lock(&vc_lock);
	for (int i = 0; i < VC_MAX_DEVICES; i++) {
		vc_peer_enabled[vc_device_ordinal(number)][i] = false;
	}
	pthread_mutex_unlock(&vc_lock);
	atomic_store(&vc_context[number], 0);
}

bool vc_device_any_context(void)
{
	bool any = false;

	for (int i = 0; i < VC_MAX_DEVICES; i++) {
		any |= vc_device_context(i) != 0;
	}
	return any;
}

int vc_device_count(void)
{
	return vc_visible_count < 0 ? vc_device_all() : vc_visible_count;
}

int vc_device_number(int ordinal)
{
	return vc_visible_count < 0 ? ordinal : vc_visible[ordinal];
}

int vc_device_ordinal(int number)
{
	for (int i = 0; i < vc_device_count(); i++) {
		if (vc_device_number(i) == number) {
			return i;
		}
	}
	return -1;
}

unsigned int vc_device_bus_id(int number)
{
	return (unsigned int)(0x10 + number) << 12;
}

int vc_device_current(void)
{
	return vc_device_number(vc_current);
}

bool vc_device_valid(int ordinal)
{
	return ordinal >= 0 && ordinal < vc_device_count();
}

void vc_device_set_sticky(int device, cudaError_t error)
{
	int none = cudaSuccess;

	atomic_compare_exchange_strong(&vc_sticky[device], &none, (int)error);
}

cudaError_t vc_device_sticky(int device)
{
	return (cudaError_t)atomic_load(&vc_sticky[device]);
}

cudaError_t cudaGetDeviceCount(int *count)
{
	if (!count) {
		return vc_error(cudaErrorInvalidValue);
	}
	*count = vc_device_count();
	return *count ? cudaSuccess : vc_error(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
	if (!vc_device_valid(device)) {
		return vc_error(cudaErrorInvalidDevice);
	}
	vc_current = device;
	return vc_error(vc_device_sticky(vc_device_enter()));
}

cudaError_t cudaGetDevice(int *device)
{
	if (!device) {
		return vc_error(cudaErrorInvalidValue);
	}
	*device = vc_current;
	return cudaSuccess;
}

static const struct {
	enum cudaDeviceAttr attr;
	int value;
} vc_attributes[] = {
	{ cudaDevAttrMaxThreadsPerBlock, VC_BLOCK_THREADS_MAX },
	{ cudaDevAttrMaxBlockDimX, VC_BLOCK_THREADS_MAX },
	{ cudaDevAttrMaxBlockDimY, VC_BLOCK_THREADS_MAX },
	{ cudaDevAttrMaxBlockDimZ, 64 },
	{ cudaDevAttrMaxGridDimX, INT32_MAX },
	{ cudaDevAttrMaxGridDimY, 65535 },
	{ cudaDevAttrMaxGridDimZ, 65535 },
	{ cudaDevAttrMaxSharedMemoryPerBlock, 48 * 1024 },
	{ cudaDevAttrMaxSharedMemoryPerBlockOptin, VC_BLOCK_SHARED_MAX },
	{ cudaDevAttrMaxSharedMemoryPerMultiprocessor, VC_SM_SHARED },
	{ cudaDevAttrReservedSharedMemoryPerBlock, VC_SM_SHARED_RESERVED },
	{ cudaDevAttrMaxRegistersPerBlock, VC_SM_REGISTERS },
	{ cudaDevAttrMaxRegistersPerMultiprocessor, VC_SM_REGISTERS },
	{ cudaDevAttrTotalConstantMemory, 65536 },
	{ cudaDevAttrWarpSize, 32 },
	{ cudaDevAttrMaxThreadsPerMultiProcessor, VC_SM_THREADS },
	{ cudaDevAttrMaxBlocksPerMultiprocessor, VC_SM_BLOCKS },
	{ cudaDevAttrComputeCapabilityMajor, 9 },
	{ cudaDevAttrComputeCapabilityMinor, 0 },
	{ cudaDevAttrAsyncEngineCount, 3 },
	{ cudaDevAttrL2CacheSize, 50 << 20 },
	{ cudaDevAttrClockRate, 1000000 },
	{ cudaDevAttrMemoryClockRate, 1000000 },
	{ cudaDevAttrPciDeviceId, 0 },
	{ cudaDevAttrPciDomainId, 0 },
	{ cudaDevAttrComputeMode, 0 },
	{ cudaDevAttrIntegrated, 0 },
	{ cudaDevAttrIsMultiGpuBoard, 0 },
	{ cudaDevAttrKernelExecTimeout, 0 },
	{ cudaDevAttrManagedMemory, 0 },
	{ cudaDevAttrPageableMemoryAccess, 0 },
	{ cudaDevAttrHostNativeAtomicSupported, 0 },
	{ cudaDevAttrIpcEventSupport, 0 },
	{ cudaDevAttrClusterLaunch, 0 },
	{ cudaDevAttrMemoryPoolsSupported, 0 },
	{ cudaDevAttrUnifiedAddressing, 1 },
	{ cudaDevAttrCanMapHostMemory, 1 },
	{ cudaDevAttrConcurrentKernels, 1 },
	{ cudaDevAttrCooperativeLaunch, 1 },
	{ cudaDevAttrStreamPrioritiesSupported, 1 },
	{ cudaDevAttrHostRegisterSupported, 1 },
	{ cudaDevAttrHostRegisterReadOnlySupported, 1 },
	{ cudaDevAttrCanUseHostPointerForRegisteredMem, 1 },
	{ cudaDevAttrGPUDirectRDMAFlushWritesOptions, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST },
};

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
	if (!value) {
		return vc_error(cudaErrorInvalidValue);
	}
	if (!vc_device_valid(device)) {
		return vc_error(cudaErrorInvalidDevice);
	}
	switch ((int)attr) {
	case cudaDevAttrMultiProcessorCount:
		*value = (int)vc_sm_count();
		return cudaSuccess;
	case cudaDevAttrPciBusId:
		*value = 0x10 + vc_device_number(device);
		return cudaSuccess;
	case cudaDevAttrGPUDirectRDMASupported:
		*value = !vc_env_long("VC_NO_GDR", 0);
		return cudaSuccess;
	case cudaDevAttrGPUDirectRDMAWritesOrdering:
		*value = (int)vc_env_long("VC_GDR_ORDERING",
					  CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
		return cudaSuccess;
	default:
		break;
	}
	for (size_t i = 0; i < sizeof(vc_attributes) / sizeof(*vc_attributes); i++) {
		if (vc_attributes[i].attr == attr) {
			*value = vc_attributes[i].value;
			return cudaSuccess;
		}
	}
	return vc_error(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
	if (!prop) {
		return vc_error(cudaErrorInvalidValue);
	}
	if (!vc_device_valid(device)) {
		return vc_error(cudaErrorInvalidDevice);
	}
	memset(prop, 0, sizeof(*prop));
	snprintf(prop->name, sizeof(prop->name), "Virtual GPU%s",
		 vc_env_long("VC_MIG", 0) ? " MIG 1g.18gb" : "");
	memcpy(prop->uuid.bytes, "vcluster", 8);
	prop->uuid.bytes[14] = (char)vc_node();
	prop->uuid.bytes[15] = (char)vc_device_number(device);
	prop->totalGlobalMem = (size_t)vc_env_long("VC_MEM_MB", VC_DEFAULT_MEM_MB) << 20;
	prop->sharedMemPerBlock = 48 * 1024;
	prop->sharedMemPerBlockOptin = VC_BLOCK_SHARED_MAX;
	prop->sharedMemPerMultiprocessor = VC_SM_SHARED;
	prop->reservedSharedMemPerBlock = VC_SM_SHARED_RESERVED;
	prop->regsPerBlock = prop->regsPerMultiprocessor = VC_SM_REGISTERS;
	prop->warpSize = 32;
	prop->maxThreadsPerBlock = VC_BLOCK_THREADS_MAX;
	prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = VC_BLOCK_THREADS_MAX;
	prop->maxThreadsDim[2] = 64;
	prop->maxGridSize[0] = INT32_MAX;
	prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
	prop->totalConstMem = 65536;
	prop->major = 9;
	prop->multiProcessorCount = (int)vc_sm_count();
	prop->maxThreadsPerMultiProcessor = VC_SM_THREADS;
	prop->maxBlocksPerMultiProcessor = VC_SM_BLOCKS;
	prop->canMapHostMemory = 1;
	prop->concurrentKernels = 1;
	prop->unifiedAddressing = 1;
	prop->cooperativeLaunch = 1;
	prop->streamPrioritiesSupported = 1;
	prop->hostRegisterSupported = 1;
	prop->asyncEngineCount = 3;
	prop->l2CacheSize = 50 << 20;
	prop->pciBusID = 0x10 + vc_device_number(device);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int device)
{
	if (!id || len < 13) {
		return vc_error(cudaErrorInvalidValue);
	}
	if (!vc_device_valid(device)) {
		return vc_error(cudaErrorInvalidDevice);
	}
	snprintf(id, (size_t)len, "0000:%02X:00.0", 0x10 + vc_device_number(device));
	return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id)
{
	unsigned int domain, bus, slot, function;
	int ordinal;

	if (!device || !id) {
		return vc_error(cudaErrorInvalidValue);
	}
	if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4 || domain || slot ||
	    function) {
		return vc_error(cudaErrorInvalidDevice);
	}
	ordinal = vc_device_ordinal((int)bus - 0x10);
	if (ordinal < 0) {
		return vc_error(cudaErrorInvalidDevice);
	}
	*device = ordinal;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	if (least) {
		*least = 0;
	}
	if (greatest) {
		*greatest = -5;
	}
	return cudaSuccess;
}

/* Not of those that VC_NO_PEER names. */
bool vc_peer_possible(int from, int to)
{
	return !vc_pair_named("VC_NO_PEER", from, to);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
	if (!can) {
		return vc_error(cudaErrorInvalidValue);
	}
	if (!vc_device_valid(device) || !vc_device_valid(peer)) {
		return vc_error(cudaErrorInvalidDevice);
	}
	*can = device != peer && vc_peer_possible(vc_device_number(device), vc_device_number(peer));
	return cudaSuccess;
}

/* All pairs of devices are joined as by NVLink; those of VC_NO_NVLINK by PCIe, of VC_NO_PEER not. */
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attr, int device, int peer)
{
	bool possible, nvlink;

	if (!value || device == peer) {
		return vc_error(cudaErrorInvalidValue);
	}
	if (!vc_device_valid(device) || !vc_device_valid(peer)) {
		return vc_error(cudaErrorInvalidDevice);
	}
	possible = vc_peer_possible(vc_device_number(device), vc_device_number(peer));
	nvlink = possible &&
		 !vc_pair_named("VC_NO_NVLINK", vc_device_number(device), vc_device_number(peer));
	switch ((int)attr) {
	case cudaDevP2PAttrPerformanceRank:
		*value = 0;
		return cudaSuccess;
	case cudaDevP2PAttrAccessSupported:
		*value = possible;
		return cudaSuccess;
	case cudaDevP2PAttrNativeAtomicSupported:
		*value = nvlink;
		return cudaSuccess;
	default:
		return vc_error(cudaErrorInvalidValue);
	}
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
	cudaError_t error = cudaSuccess;

	VC_ENTER();
	if (flags) {
		return vc_error(cudaErrorInvalidValue);
	}
	if (!vc_device_valid(peer)) {
		return vc_error(cudaErrorInvalidDevice);
	}
	if (peer == vc_current || !vc_peer_possible(vc_device_current(), vc_device_number(peer))) {
		return vc_error(cudaErrorPeerAccessUnsupported);
	}
	pthread_mutex_lock(&vc_lock);
	if (vc_peer_enabled[vc_current][peer]) {
		error = cudaErrorPeerAccessAlreadyEnabled;
	}
	vc_peer_enabled[vc_current][peer] = true;
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
	cudaError_t error = cudaSuccess;

	VC_ENTER();
	if (!vc_device_valid(peer)) {
		return vc_error(cudaErrorInvalidDevice);
	}
	pthread_mutex_lock(&vc_lock);
	if (!vc_peer_enabled[vc_current][peer]) {
		error = cudaErrorPeerAccessNotEnabled;
	}
	vc_peer_enabled[vc_current][peer] = false;
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

cudaError_t cudaDriverGetVersion(int *version)
{
	if (!version) {
		return vc_error(cudaErrorInvalidValue);
	}
	*version = CUDART_VERSION;
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	return cudaDriverGetVersion(version);
}

cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);

cudaError_t cudaProfilerStart(void)
{
	return cudaSuccess;
}

cudaError_t cudaProfilerStop(void)
{
	return cudaSuccess;
}
