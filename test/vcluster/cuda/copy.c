/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills. Every byte named must belong to one allocation of the right kind. */
#include <stdlib.h>
#include <string.h>
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

enum vc_place {
	VC_PLACE_BAD,
	VC_PLACE_DEVICE,
	VC_PLACE_PINNED,
	VC_PLACE_PAGEABLE
};

/* Where a range lies; VC_PLACE_BAD: only part of it is in an allocation. */
static enum vc_place vc_place(const void *p, size_t size)
{
	struct vc_mem mem;

	if (!p) {
		return VC_PLACE_BAD;
	}
	if (vc_mem_find(p, size, &mem)) {
		return vc_mem_on_device(&mem) ? VC_PLACE_DEVICE : VC_PLACE_PINNED;
	}
	return vc_mem_touches(p, size, &mem) ? VC_PLACE_BAD : VC_PLACE_PAGEABLE;
}

static cudaError_t vc_copy_check(enum vc_place dst, enum vc_place src, enum cudaMemcpyKind kind)
{
	bool dst_device = dst == VC_PLACE_DEVICE;
	bool src_device = src == VC_PLACE_DEVICE;

	if (dst == VC_PLACE_BAD || src == VC_PLACE_BAD) {
		return cudaErrorInvalidValue;
	}
	switch (kind) {
	case cudaMemcpyHostToHost:
		return dst_device || src_device ? cudaErrorInvalidValue : cudaSuccess;
	case cudaMemcpyHostToDevice:
		return !dst_device || src_device ? cudaErrorInvalidValue : cudaSuccess;
	case cudaMemcpyDeviceToHost:
		return dst_device || !src_device ? cudaErrorInvalidValue : cudaSuccess;
	case cudaMemcpyDeviceToDevice:
		/* Mapped host memory counts as device memory here. */
		return dst == VC_PLACE_PAGEABLE || src == VC_PLACE_PAGEABLE ? cudaErrorInvalidValue
									    : cudaSuccess;
	case cudaMemcpyDefault:
		return cudaSuccess;
	default:
		return cudaErrorInvalidMemcpyDirection;
	}
}

static cudaError_t vc_copy(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind,
			   cudaStream_t handle, bool sync)
{
	int device = vc_device_current();
	struct vc_work work = { .kind = VC_WORK_COPY, .device = device };
	enum vc_place to, from;
	struct CUstream_st *stream;
	cudaError_t error;
	bool capturing, waits;

	if (!size) {
		return cudaSuccess;
	}
	to = vc_place(dst, size);
	from = vc_place(src, size);
	error = vc_copy_check(to, from, kind);
	if (error) {
		return error;
	}
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	capturing = stream && stream->capture;
	pthread_mutex_unlock(&vc_lock);
	if (!stream) {
		return cudaErrorInvalidResourceHandle;
	}
	work.copy.dst = dst;
	work.copy.src = src;
	work.copy.size = size;
	/* The caller may change pageable memory as soon as the call returns. */
	if (from == VC_PLACE_PAGEABLE && !sync && !capturing) {
		work.copy.staged = malloc(size);
		if (!work.copy.staged) {
			return cudaErrorMemoryAllocation;
		}
		memcpy(work.copy.staged, src, size);
		work.copy.src = work.copy.staged;
	}
	waits = sync || (to == VC_PLACE_PAGEABLE && !capturing);
	if (!waits && !work.copy.staged) {
		work.copy.late_us = vc_env_long("VC_COPY_LATE_US", 0);
	}
	if (waits && !sync) {
		vc_context_lock(device);
	}
	error = waits ? vc_stream_complete(handle, &work) : vc_stream_submit(handle, &work);
	if (waits && !sync) {
		vc_context_unlock(device);
	}
	return error;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind)
{
	VC_ENTER();
	return vc_error(vc_copy(dst, src, size, kind, cudaStreamLegacy, true));
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	VC_ENTER();
	return vc_error(vc_copy(dst, src, size, kind, stream, false));
}

static cudaError_t vc_copy_peer_check(const void *dst, int to, const void *src, int from,
				      size_t size)
{
	struct vc_mem mem;

	if (!vc_device_valid(to) || !vc_device_valid(from)) {
		return cudaErrorInvalidDevice;
	}
	if (size && (!vc_mem_find(dst, size, &mem) || !vc_mem_on_device(&mem) ||
		     mem.device != vc_device_number(to))) {
		return cudaErrorInvalidValue;
	}
	if (size && (!vc_mem_find(src, size, &mem) || !vc_mem_on_device(&mem) ||
		     mem.device != vc_device_number(from))) {
		return cudaErrorInvalidValue;
	}
	return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t size,
				cudaStream_t stream)
{
	cudaError_t error;

	VC_ENTER();
	error = vc_copy_peer_check(dst, to, src, from, size);
	if (!error) {
		error = vc_copy(dst, src, size, cudaMemcpyDeviceToDevice, stream, false);
	}
	return vc_error(error);
}

cudaError_t cudaMemcpyPeer(void *dst, int to, const void *src, int from, size_t size)
{
	cudaError_t error;

	VC_ENTER();
	error = vc_copy_peer_check(dst, to, src, from, size);
	if (!error) {
		error = vc_copy(dst, src, size, cudaMemcpyDeviceToDevice, cudaStreamLegacy, true);
	}
	return vc_error(error);
}

static cudaError_t vc_set(void *dst, int value, size_t size, cudaStream_t stream)
{
	struct vc_work work = { .kind = VC_WORK_SET, .device = vc_device_current() };
	enum vc_place place;

	if (!size) {
		return cudaSuccess;
	}
	place = vc_place(dst, size);
	if (place != VC_PLACE_DEVICE && place != VC_PLACE_PINNED) {
		return cudaErrorInvalidValue;
	}
	work.set.dst = dst;
	work.set.value = value;
	work.set.size = size;
	return vc_stream_submit(stream, &work);
}

cudaError_t cudaMemset(void *dst, int value, size_t size)
{
	VC_ENTER();
	return vc_error(vc_set(dst, value, size, cudaStreamLegacy));
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t size, cudaStream_t stream)
{
	VC_ENTER();
	return vc_error(vc_set(dst, value, size, stream));
}
