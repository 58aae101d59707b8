/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_FAKE_GPU_H
#define VC_FAKE_GPU_H

#include <stddef.h>
#include <stdint.h>

/* Where a device address can really be read; NULL: it is none. */
uint8_t *fake_gpu_shadow(uint64_t p, size_t bytes);

/* So many copies from the GPU, copies to it, and waits there were. */
struct fake_gpu_calls {
	uint32_t out, in, waits;
};
extern struct fake_gpu_calls fake_gpu_calls;

int cuInit(unsigned int flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **ctx, int device);
int cuCtxPushCurrent_v2(void *ctx);
int cuCtxPopCurrent_v2(void **ctx);
int cuPointerGetAttribute(void *data, int attribute, uint64_t p);
int cuStreamCreate(void **stream, unsigned int flags);
int cuMemHostAlloc(void **p, size_t bytes, unsigned int flags);
int cuMemAlloc_v2(uint64_t *p, size_t bytes);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);
int cuStreamWriteValue64_v2(void *stream, uint64_t to, uint64_t value, unsigned int flags);
int cuStreamWriteValue32_v2(void *stream, uint64_t to, uint32_t value, unsigned int flags);
int cuStreamSynchronize(void *stream);

#endif
