/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: how many, what they can do, who reaches whom. */
#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda/runtime.h"
#include "cuda/pairs.h"
#include "exec/exec.h"

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

static void vc_device_end_context(int number)
{
	pthread_mutex_lock(&vc_lock);
	for (int i = 0; i < VC_MAX_DEVICES; i++) {
		vc_peer_enabled[vc_device_ordinal(number)][i] = false;
	}
	pthread_mutex_unlock(&vc_lock);
	atomic_store(&vc_context[number], 0);
}

/* Whether any device has a context. */
static bool vc_device_any_context(void)
{
	bool any = false;

	for (int i = 0; i < VC_MAX_DEVICES; i++) {
		any |= vc_device_context(i) != 0;
	}
	return any;
}

/* Returns how many devices this process sees. */
static int vc_device_count(void)
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

/*
 * All pairs of devices are joined as by NVLink; those of VC_NO_NVLINK by PCIe, of VC_NO_PEER not.
 */
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

/* ---- error names and the last error of a thread ---- */

struct vc_error_text {
	cudaError_t code;
	const char *name, *text;
};

#define VC_ERROR(code, text)                                                                       \
	{                                                                                          \
		code, #code, text                                                                  \
	}

static const struct vc_error_text vc_errors[] = {
	VC_ERROR(cudaSuccess, "no error"),
	VC_ERROR(cudaErrorInvalidValue, "invalid argument"),
	VC_ERROR(cudaErrorMemoryAllocation, "out of memory"),
	VC_ERROR(cudaErrorInitializationError, "initialization error"),
	VC_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
	VC_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
	VC_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
	VC_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
	VC_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
	VC_ERROR(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"),
	VC_ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
	VC_ERROR(cudaErrorPeerAccessUnsupported,
		 "peer access is not supported between these devices"),
	VC_ERROR(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
	VC_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
	VC_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
	VC_ERROR(cudaErrorNotReady, "device not ready"),
	VC_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
	VC_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
	VC_ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
	VC_ERROR(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
	VC_ERROR(cudaErrorHostMemoryAlreadyRegistered, "memory is already mapped"),
	VC_ERROR(cudaErrorHostMemoryNotRegistered, "pointer is not a registered memory region"),
	VC_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
	VC_ERROR(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
	VC_ERROR(cudaErrorNotPermitted, "operation not permitted"),
	VC_ERROR(cudaErrorNotSupported, "operation not supported"),
	VC_ERROR(cudaErrorStreamCaptureUnsupported,
		 "operation not permitted when stream is capturing"),
	VC_ERROR(cudaErrorStreamCaptureInvalidated,
		 "operation failed due to a previous error during capture"),
	VC_ERROR(cudaErrorStreamCaptureMerge,
		 "operation would result in a merge of separate capture sequences"),
	VC_ERROR(cudaErrorStreamCaptureUnmatched,
		 "capture was not ended in the same stream as it began"),
	VC_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
	VC_ERROR(cudaErrorStreamCaptureIsolation,
		 "dependency created on uncaptured work in another stream"),
	VC_ERROR(cudaErrorStreamCaptureImplicit,
		 "operation would make the legacy stream depend on a capturing blocking stream"),
	VC_ERROR(cudaErrorCapturedEvent,
		 "operation not permitted on an event last recorded in a capturing stream"),
	VC_ERROR(cudaErrorStreamCaptureWrongThread,
		 "attempt to terminate a thread-local capture sequence from another thread"),
	VC_ERROR(cudaErrorGraphExecUpdateFailure,
		 "the graph update was not performed because it included unsupported changes"),
	VC_ERROR(cudaErrorUnknown, "unknown error"),
};

static __thread cudaError_t vc_last_error;

cudaError_t vc_error(cudaError_t error)
{
	if (error && error != cudaErrorNotReady) {
		vc_last_error = error;
	}
	return error;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t error = vc_last_error;
	cudaError_t sticky = vc_device_sticky(vc_device_current());

	vc_last_error = cudaSuccess;
	return sticky ? sticky : error;
}

cudaError_t cudaPeekAtLastError(void)
{
	cudaError_t sticky = vc_device_sticky(vc_device_current());

	return sticky ? sticky : vc_last_error;
}

static const struct vc_error_text *vc_error_find(cudaError_t error)
{
	for (size_t i = 0; i < sizeof(vc_errors) / sizeof(*vc_errors); i++) {
		if (vc_errors[i].code == error) {
			return &vc_errors[i];
		}
	}
	return NULL;
}

const char *cudaGetErrorName(cudaError_t error)
{
	const struct vc_error_text *found = vc_error_find(error);

	return found ? found->name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
	const struct vc_error_text *found = vc_error_find(error);

	return found ? found->text : "unrecognized error code";
}

/* ---- cudaDeviceReset: the end of a device's context and of all that is in it ---- */

static atomic_uint vc_resets_begun, vc_resets_over;

/*
 * 1 and how many resets were over when this thread found a context alive; 0: it has not looked
 * since it used one.
 */
static _Thread_local unsigned int vc_context_seen;

void vc_context_found(void)
{
	vc_context_seen = vc_resets_over + 1;
}

/*
 * No program can look at a context and use it in one step: once after each look that is forgiven.
 */
static bool vc_reset_came_between(void)
{
	bool between = vc_context_seen && vc_context_seen <= vc_resets_begun;

	vc_context_seen = 0;
	return between;
}

void vc_ended_used(const char *what)
{
	if (vc_env_long("VC_RESET_STRICT", 0) && !vc_reset_came_between()) {
		fprintf(stderr, "vcluster: %s of before cudaDeviceReset is used after it\n", what);
		abort();
	}
}

/* Kernels cannot be stopped, so it waits for them. All devices share the attributes of kernels. */
cudaError_t cudaDeviceReset(void)
{
	int device = vc_device_current();

	vc_device_wait(device);
	vc_resets_begun++;
	vc_graphs_end(device);
	vc_streams_end(device);
	vc_events_end(device);
	vc_memory_end(device);
	vc_device_end_context(device);
	vc_resets_over++;
	if (!vc_device_any_context()) {
		vc_kernels_reset();
	}
	return cudaSuccess;
}
