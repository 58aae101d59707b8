/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of real GPUs. Everything that could wait for a kernel to end (allocations, first uses of the
 * driver) is done when memory is registered: kernels that wait for the NIC run later.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "device/mlx5/layout.h"
#include "nic/gpu.h"
#include "nic/memory.h"

#define VN_GPUS 32
#define VN_SLOT (16u << 10)
#define VN_SLOTS 2048u
#define VN_IN_BYTES (16u << 20)

#define VN_CU_DEINITIALIZED 4
#define VN_CU_MEMORY_TYPE 2 /* pointer attributes: CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define VN_CU_ORDINAL 9
#define VN_CU_DEVICE 2 /* CU_MEMORYTYPE_DEVICE */
#define VN_CU_NON_BLOCKING 1
#define VN_CU_PORTABLE 1

struct vn_gpu {
	int ordinal;
	bool dead; /* a call failed: memory is not reached any more */
	void *ctx;
	void *in, *out; /* streams: towards the GPU, from it */
	uint8_t *in_bytes, *slots, *fetched;
	uint32_t in_used;
	bool in_pending, out_pending;
	bool no_values; /* the driver does not store single words in this memory */
	uint16_t free[VN_SLOTS];
	uint32_t nfree;
};

/* The driver's calls, as far as needed. */
static struct {
	bool tried, there;
	int (*init)(unsigned int);
	int (*attribute)(void *, int, uint64_t);
	int (*device_get)(int *, int);
	int (*retain)(void **, int);
	int (*push)(void *);
	int (*pop)(void **);
	int (*stream_create)(void **, unsigned int);
	int (*host_alloc)(void **, size_t, unsigned int);
	int (*alloc)(uint64_t *, size_t);
	int (*h2d)(uint64_t, const void *, size_t, void *);
	int (*d2h)(void *, uint64_t, size_t, void *);
	int (*synchronize)(void *);
	int (*write64)(void *, uint64_t, uint64_t, unsigned int);
	int (*write32)(void *, uint64_t, uint32_t, unsigned int);
} cu;

static struct vn_gpu *vn_gpus[VN_GPUS];
static pthread_mutex_t vn_gpu_lock = PTHREAD_MUTEX_INITIALIZER; /* attaching */

static bool vn_cu_load(void)
{
	void *lib;

	if (cu.tried) {
		return cu.there;
	}
	cu.tried = true;
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!lib) {
		return false;
	}
	*(void **)&cu.init = dlsym(lib, "cuInit");
	*(void **)&cu.attribute = dlsym(lib, "cuPointerGetAttribute");
	*(void **)&cu.device_get = dlsym(lib, "cuDeviceGet");
	*(void **)&cu.retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
	*(void **)&cu.push = dlsym(lib, "cuCtxPushCurrent_v2");
	*(void **)&cu.pop = dlsym(lib, "cuCtxPopCurrent_v2");
	*(void **)&cu.stream_create = dlsym(lib, "cuStreamCreate");
	*(void **)&cu.host_alloc = dlsym(lib, "cuMemHostAlloc");
	*(void **)&cu.alloc = dlsym(lib, "cuMemAlloc_v2");
	*(void **)&cu.h2d = dlsym(lib, "cuMemcpyHtoDAsync_v2");
	*(void **)&cu.d2h = dlsym(lib, "cuMemcpyDtoHAsync_v2");
	*(void **)&cu.synchronize = dlsym(lib, "cuStreamSynchronize");
	*(void **)&cu.write64 = dlsym(lib, "cuStreamWriteValue64_v2");
	*(void **)&cu.write32 = dlsym(lib, "cuStreamWriteValue32_v2");
	if (!cu.write64 || !cu.write32) {
		*(void **)&cu.write64 = dlsym(lib, "cuStreamWriteValue64");
		*(void **)&cu.write32 = dlsym(lib, "cuStreamWriteValue32");
	}
	cu.there = cu.init && cu.attribute && cu.device_get && cu.retain && cu.push && cu.pop &&
		   cu.stream_create && cu.host_alloc && cu.alloc && cu.h2d && cu.d2h &&
		   cu.synchronize && cu.write64 && cu.write32 && !cu.init(0);
	return cu.there;
}

/* Prints the first failure, unless the program is ending. */
static bool vn_cu_ok(struct vn_gpu *gpu, int rc, const char *what)
{
	if (!rc) {
		return true;
	}
	if (!gpu->dead && rc != VN_CU_DEINITIALIZED) {
		vn_say("GPU %d: %s: CUDA error %d: its memory is not reached any more",
		       gpu->ordinal, what, rc);
	}
	gpu->dead = true;
	return false;
}

static bool vn_gpu_enter(struct vn_gpu *gpu)
{
	return !gpu->dead && vn_cu_ok(gpu, cu.push(gpu->ctx), "cuCtxPushCurrent");
}

static void vn_gpu_leave(void)
{
	void *ctx;

	cu.pop(&ctx);
}

/* ----------------------------------------------------------------------------------- attaching */

static int vn_gpu_make(struct vn_gpu *gpu)
{
	uint64_t scratch = 0;
	int device, rc;

	rc = cu.device_get(&device, gpu->ordinal);
	rc = rc ? rc : cu.retain(&gpu->ctx, device);
	if (rc || cu.push(gpu->ctx)) {
		return rc;
	}
	rc = cu.stream_create(&gpu->in, VN_CU_NON_BLOCKING);
	rc = rc ? rc : cu.stream_create(&gpu->out, VN_CU_NON_BLOCKING);
	rc = rc ? rc : cu.host_alloc((void **)&gpu->in_bytes, VN_IN_BYTES, VN_CU_PORTABLE);
	rc = rc ? rc : cu.host_alloc((void **)&gpu->slots, VN_SLOTS * VN_SLOT, VN_CU_PORTABLE);
	rc = rc ? rc : cu.host_alloc((void **)&gpu->fetched, VN_SLOT, VN_CU_PORTABLE);
	rc = rc ? rc : cu.alloc(&scratch, 4096);
	/* Makes each kind of call once: the first may wait for a kernel to end. */
	rc = rc ? rc : cu.h2d(scratch, gpu->in_bytes, 4096, gpu->in);
	rc = rc ? rc : cu.write64(gpu->in, scratch, 0, 0);
	rc = rc ? rc : cu.write32(gpu->in, scratch, 0, 0);
	rc = rc ? rc : cu.synchronize(gpu->in);
	rc = rc ? rc : cu.d2h(gpu->slots, scratch, 4096, gpu->out);
	rc = rc ? rc : cu.synchronize(gpu->out);
	vn_gpu_leave();
	for (uint32_t i = 0; i < VN_SLOTS; i++) {
		gpu->free[gpu->nfree++] = (uint16_t)i;
	}
	return rc;
}

static struct vn_gpu *vn_gpu_get(int ordinal)
{
	struct vn_gpu *gpu;
	int rc;

	if (ordinal < 0 || ordinal >= VN_GPUS) {
		return NULL;
	}
	if (vn_gpus[ordinal]) {
		return vn_gpus[ordinal];
	}
	gpu = calloc(1, sizeof(*gpu));
	if (!gpu) {
		return NULL;
	}
	gpu->ordinal = ordinal;
	rc = vn_gpu_make(gpu);
	if (rc) {
		vn_say("GPU %d: CUDA error %d when setting up copies", ordinal, rc);
		free(gpu);
		return NULL;
	}
	vn_lock();
	vn_gpus[ordinal] = gpu;
	vn_unlock();
	return gpu;
}

/* If libvcluster is in this process: does it say that this is the memory of a device? */
static bool vn_is_virtual_device(const void *p)
{
	int (*attributes)(void *, const void *) =
		(int (*)(void *, const void *))dlsym(RTLD_DEFAULT, "cudaPointerGetAttributes");
	int attr[32] = { 0 }; /* begins with the type: 2 is device memory */

	return attributes && !attributes(attr, p) && attr[0] == 2;
}

int vn_gpu_attach(struct vn_memory *m, bool queue)
{
	unsigned int type = 0;
	int ordinal = -1, rc = 0;

	if (queue && !vn_config.gpu_umem && vn_is_virtual_device(m->at)) {
		return -EFAULT;
	}
	pthread_mutex_lock(&vn_gpu_lock);
	if (vn_cu_load() && !cu.attribute(&type, VN_CU_MEMORY_TYPE, (uintptr_t)m->at) &&
	    type == VN_CU_DEVICE) {
		rc = 1;
		if (queue && !vn_env_long("VC_NIC_GPU_QUEUES", 0)) {
			rc = -EFAULT; /* as without peermem: a NIC could not keep queues there */
		} else if (cu.attribute(&ordinal, VN_CU_ORDINAL, (uintptr_t)m->at)) {
			rc = -EFAULT;
		} else {
			m->gpu = vn_gpu_get(ordinal);
			rc = m->gpu ? 1 : -ENOMEM;
		}
	}
	pthread_mutex_unlock(&vn_gpu_lock);
	return rc;
}

void vn_gpu_detach(struct vn_memory *m)
{
	m->gpu = NULL;
}

/* ------------------------------------------------------------------------------------ reading */

const uint8_t *vn_gpu_fetch(struct vn_gpu *gpu, const uint8_t *from, uint32_t bytes)
{
	if (bytes <= VN_SLOT && vn_gpu_enter(gpu)) {
		/* On the stream of the writes, so that it comes after them. */
		vn_cu_ok(gpu, cu.d2h(gpu->fetched, (uintptr_t)from, bytes, gpu->in), "copy");
		vn_cu_ok(gpu, cu.synchronize(gpu->in), "cuStreamSynchronize");
		vn_gpu_leave();
		gpu->in_used = 0;
		gpu->in_pending = false;
	}
	return gpu->fetched;
}

void vn_gpu_read(struct vn_gpu *gpu, uint8_t *to, const uint8_t *from, uint32_t bytes)
{
	memcpy(to, vn_gpu_fetch(gpu, from, bytes), bytes);
}

uint32_t vn_gpu_read32(struct vn_gpu *gpu, const uint8_t *from)
{
	uint32_t value;

	vn_gpu_read(gpu, (uint8_t *)&value, from, 4);
	return value;
}

uint8_t *vn_gpu_stage(struct vn_gpu *gpu, const uint8_t *from, uint32_t bytes)
{
	uint8_t *slot;

	if (bytes > VN_SLOT || !gpu->nfree || !vn_gpu_enter(gpu)) {
		return NULL;
	}
	slot = gpu->slots + (size_t)gpu->free[--gpu->nfree] * VN_SLOT;
	vn_cu_ok(gpu, cu.d2h(slot, (uintptr_t)from, bytes, gpu->out), "copy");
	vn_gpu_leave();
	gpu->out_pending = true;
	return slot;
}

void vn_gpu_staged(void)
{
	for (int i = 0; i < VN_GPUS; i++) {
		struct vn_gpu *gpu = vn_gpus[i];

		if (gpu && gpu->out_pending && vn_gpu_enter(gpu)) {
			vn_cu_ok(gpu, cu.synchronize(gpu->out), "cuStreamSynchronize");
			vn_gpu_leave();
			gpu->out_pending = false;
		}
	}
}

void vn_gpu_unstage(struct vn_gpu *gpu, uint8_t *slot)
{
	gpu->free[gpu->nfree++] = (uint16_t)((size_t)(slot - gpu->slots) / VN_SLOT);
}

/* ------------------------------------------------------------------------------------ writing */

static void vn_gpu_wait(struct vn_gpu *gpu)
{
	if (gpu->in_pending && vn_gpu_enter(gpu)) {
		vn_cu_ok(gpu, cu.synchronize(gpu->in), "cuStreamSynchronize");
		vn_gpu_leave();
	}
	gpu->in_pending = false;
	gpu->in_used = 0;
}

void vn_gpu_settle(void)
{
	for (int i = 0; i < VN_GPUS; i++) {
		if (vn_gpus[i]) {
			vn_gpu_wait(vn_gpus[i]);
		}
	}
}

/* Words are stored at once; the rest is copied. */
void vn_gpu_write(struct vn_gpu *gpu, uint8_t *to, const uint8_t *from, uint32_t bytes)
{
	uint64_t word = 0;

	if (gpu->in_used + bytes > VN_IN_BYTES) {
		vn_gpu_wait(gpu);
	}
	if (!vn_gpu_enter(gpu)) {
		return;
	}
	gpu->in_pending = true;
	if ((bytes == 8 || bytes == 4) && (uintptr_t)to % bytes == 0 && !gpu->no_values) {
		memcpy(&word, from, bytes);
		gpu->no_values = bytes == 8 ? cu.write64(gpu->in, (uintptr_t)to, word, 0)
					    : cu.write32(gpu->in, (uintptr_t)to, (uint32_t)word, 0);
		if (!gpu->no_values) {
			vn_gpu_leave();
			return;
		}
	}
	if (bytes) {
		memcpy(gpu->in_bytes + gpu->in_used, from, bytes);
		vn_cu_ok(gpu, cu.h2d((uintptr_t)to, gpu->in_bytes + gpu->in_used, bytes, gpu->in),
			 "copy");
		gpu->in_used += (bytes + 63) & ~63u;
	}
	vn_gpu_leave();
}

void vn_gpu_write_cqe(struct vn_gpu *gpu, uint8_t *to, const struct ep_mlx5_cqe *cqe)
{
	const uint8_t *from = (const uint8_t *)cqe;

	vn_gpu_write(gpu, to, from, EP_MLX5_CQE_DONE_AT);
	vn_gpu_write(gpu, to + EP_MLX5_CQE_DONE_AT, from + EP_MLX5_CQE_DONE_AT, 4);
	vn_gpu_wait(gpu);
}
