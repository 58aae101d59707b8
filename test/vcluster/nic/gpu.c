/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of real GPUs. Everything that could wait for a kernel to end (allocations, first uses of
 * the driver) is done when memory is registered: kernels that wait for the NIC run later.
 *
 * A copy costs the thread 2 us and is there after 6 us, of whatever size. So copies of bytes that
 * lie side by side become one, and the thread waits once per turn for all that the turn has queued.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "device/mlx5/mlx5_layout.h"
#include "nic/nic.h"

#define VN_GPUS 32
#define VN_CHUNK_BYTES (1u << 20) /* the longest message that is copied ahead */
#define VN_CHUNKS 64u
#define VN_IN_BYTES (16u << 20)
#define VN_FETCH_BYTES (16u << 10)

#define VN_CU_DEINITIALIZED 4
#define VN_CU_MEMORY_TYPE 2 /* pointer attributes: CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define VN_CU_ORDINAL 9
#define VN_CU_DEVICE 2 /* CU_MEMORYTYPE_DEVICE */
#define VN_CU_NON_BLOCKING 1
#define VN_CU_PORTABLE 1

/* A copy that grows until something else is to be copied. */
struct vn_copy {
	const void *region;
	uint8_t *to;
	const uint8_t *from;
	uint32_t bytes;
};

struct vn_gpu {
	int ordinal;
	bool dead; /* a call failed: memory is not reached any more */
	void *ctx;
	void *in, *out; /* streams: towards the GPU, from it */
	struct vn_copy next_in, next_out;
	bool in_pending, out_pending;
	bool no_values; /* the driver does not store single words in this memory */
	/* towards the GPU: filled upwards, empty again when the stream has been waited for */
	uint8_t *in_bytes;
	uint32_t in_used;
	/* from it: one chunk is filled upwards; it is free again when nothing in it is in use */
	uint8_t *chunks;
	uint32_t chunk, chunk_used, live[VN_CHUNKS];
	uint8_t *fetched;
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

/*
 * Takes the driver that the program has loaded. A program of the virtual cluster may have loaded it
 * to look for GPUs, but its GPUs are none of the driver's.
 */
static bool vn_cu_load(void)
{
	void *lib;

	if (cu.tried) {
		return cu.there;
	}
	if (dlsym(RTLD_DEFAULT, "ep_simt_doorbell_hook")) { /* the virtual cluster's */
		cu.tried = true;
		return false;
	}
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!lib) {
		return false; /* the program may load it later */
	}
	cu.tried = true;
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
		vn_log("GPU %d: %s: CUDA error %d: its memory is not reached any more",
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
	rc = rc ? rc
		: cu.host_alloc((void **)&gpu->chunks, (size_t)VN_CHUNKS * VN_CHUNK_BYTES,
				VN_CU_PORTABLE);
	rc = rc ? rc : cu.host_alloc((void **)&gpu->fetched, VN_FETCH_BYTES, VN_CU_PORTABLE);
	rc = rc ? rc : cu.alloc(&scratch, 4096);
	/* Makes each kind of call once: the first may wait for a kernel to end. */
	rc = rc ? rc : cu.h2d(scratch, gpu->in_bytes, 4096, gpu->in);
	rc = rc ? rc : cu.write64(gpu->in, scratch, 0, 0);
	rc = rc ? rc : cu.write32(gpu->in, scratch, 0, 0);
	rc = rc ? rc : cu.synchronize(gpu->in);
	rc = rc ? rc : cu.d2h(gpu->chunks, scratch, 4096, gpu->out);
	rc = rc ? rc : cu.synchronize(gpu->out);
	vn_gpu_leave();
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
		vn_log("GPU %d: CUDA error %d when setting up copies", ordinal, rc);
		free(gpu);
		return NULL;
	}
	vn_lock();
	vn_gpus[ordinal] = gpu;
	vn_unlock();
	return gpu;
}

bool vn_is_virtual_device(const void *p)
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

bool vn_gpu_driver(void)
{
	bool there;

	pthread_mutex_lock(&vn_gpu_lock);
	there = vn_cu_load();
	pthread_mutex_unlock(&vn_gpu_lock);
	return there;
}

bool vn_gpu_any(void)
{
	for (int i = 0; i < VN_GPUS; i++) {
		if (vn_gpus[i]) {
			return true;
		}
	}
	return false;
}

void vn_gpu_detach(struct vn_memory *m)
{
	m->gpu = NULL;
}

/* ------------------------------------------------------------------------------------- copies */

/* Hands the copies over that are still growing. The GPU's context is current. */
static void vn_gpu_issue_out(struct vn_gpu *gpu)
{
	struct vn_copy *c = &gpu->next_out;
	uint64_t start = vn_stat_start();

	if (c->bytes) {
		vn_cu_ok(gpu, cu.d2h(c->to, (uintptr_t)c->from, c->bytes, gpu->out), "copy");
		vn_stat(VN_STAT_COPY_OUT, start, c->bytes);
		gpu->out_pending = true;
		c->bytes = 0;
	}
}

static void vn_gpu_issue_in(struct vn_gpu *gpu)
{
	struct vn_copy *c = &gpu->next_in;
	uint64_t start = vn_stat_start();

	if (c->bytes) {
		vn_cu_ok(gpu, cu.h2d((uintptr_t)c->to, c->from, c->bytes, gpu->in), "copy");
		vn_stat(VN_STAT_COPY_IN, start, c->bytes);
		c->bytes = 0;
	}
}

/* True: the bytes lie behind those of the copy, in the same region, and are part of it now. */
static bool vn_copy_grows(struct vn_copy *c, const void *region, const uint8_t *to,
			  const uint8_t *from, uint32_t bytes)
{
	if (!c->bytes || c->region != region || c->to + c->bytes != to ||
	    c->from + c->bytes != from) {
		return false;
	}
	c->bytes += bytes;
	return true;
}

/* Waits for everything queued on the stream `in`. */
static void vn_gpu_wait(struct vn_gpu *gpu)
{
	uint64_t start = vn_stat_start();

	if (gpu->in_pending && vn_gpu_enter(gpu)) {
		vn_gpu_issue_in(gpu);
		vn_cu_ok(gpu, cu.synchronize(gpu->in), "cuStreamSynchronize");
		vn_gpu_leave();
		vn_stat(VN_STAT_WAIT_IN, start, 0);
	}
	gpu->in_pending = false;
	gpu->next_in.bytes = 0;
	gpu->in_used = 0;
}

void vn_gpu_settle(void)
{
	/* Those that need no wait for the others to begin begin first. */
	for (int i = 0; i < VN_GPUS; i++) {
		if (vn_gpus[i] && vn_gpus[i]->next_in.bytes && vn_gpu_enter(vn_gpus[i])) {
			vn_gpu_issue_in(vn_gpus[i]);
			vn_gpu_leave();
		}
	}
	for (int i = 0; i < VN_GPUS; i++) {
		if (vn_gpus[i]) {
			vn_gpu_wait(vn_gpus[i]);
		}
	}
}

/* ------------------------------------------------------------------------------------ reading */

const uint8_t *vn_gpu_fetch(struct vn_gpu *gpu, const uint8_t *from, uint32_t bytes)
{
	uint64_t start = vn_stat_start();

	if (bytes <= VN_FETCH_BYTES && vn_gpu_enter(gpu)) {
		/* On the stream of the writes, so that it comes after them. */
		vn_gpu_issue_in(gpu);
		vn_cu_ok(gpu, cu.d2h(gpu->fetched, (uintptr_t)from, bytes, gpu->in), "copy");
		gpu->in_pending = true;
		vn_gpu_leave();
		vn_gpu_wait(gpu);
	}
	vn_stat(VN_STAT_FETCH, start, bytes);
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

/*
 * The copy can be read after vn_gpu_settle() and until the next write; NULL: no room before that.
 */
static const uint8_t *vn_gpu_peek(struct vn_gpu *gpu, const uint8_t *from, uint32_t bytes)
{
	uint32_t at = (gpu->in_used + 63) & ~63u;
	uint8_t *to = gpu->in_bytes + at;
	uint64_t start = vn_stat_start();

	if (at + bytes > VN_IN_BYTES) {
		return NULL;
	}
	gpu->in_used = at + bytes;
	if (vn_gpu_enter(gpu)) {
		vn_gpu_issue_in(gpu);
		vn_cu_ok(gpu, cu.d2h(to, (uintptr_t)from, bytes, gpu->in), "copy");
		vn_gpu_leave();
		gpu->in_pending = true;
	}
	vn_stat(VN_STAT_PEEK, start, bytes);
	return to;
}

/* ------------------------------------------------------------------------- reading ahead */

/* Room for that many bytes, right behind the last ones where the chunk has room; NULL: none. */
static uint8_t *vn_gpu_room(struct vn_gpu *gpu, uint32_t bytes, uint32_t align)
{
	uint32_t used = (gpu->chunk_used + align - 1) & ~(align - 1), i;

	if (bytes > VN_CHUNK_BYTES) {
		return NULL;
	}
	if (used + bytes > VN_CHUNK_BYTES) {
		for (i = 1; i <= VN_CHUNKS && gpu->live[(gpu->chunk + i) % VN_CHUNKS]; i++) {
		}
		if (i > VN_CHUNKS) {
			return NULL;
		}
		gpu->chunk = (gpu->chunk + i) % VN_CHUNKS;
		used = 0;
	}
	gpu->chunk_used = used + bytes;
	gpu->live[gpu->chunk]++;
	return gpu->chunks + (size_t)gpu->chunk * VN_CHUNK_BYTES + used;
}

uint8_t *vn_gpu_stage(struct vn_gpu *gpu, const void *region, const uint8_t *from, uint32_t bytes)
{
	struct vn_copy *c = &gpu->next_out;
	bool behind = c->bytes && c->region == region && c->from + c->bytes == from;
	uint8_t *to = gpu->dead ? NULL : vn_gpu_room(gpu, bytes, behind ? 1 : 64);

	if (!to || vn_copy_grows(c, region, to, from, bytes) || !vn_gpu_enter(gpu)) {
		return to;
	}
	vn_gpu_issue_out(gpu);
	vn_gpu_leave();
	*c = (struct vn_copy){ region, to, from, bytes };
	return to;
}

void vn_gpu_staged(void)
{
	for (int i = 0; i < VN_GPUS; i++) {
		if (vn_gpus[i] && vn_gpus[i]->next_out.bytes && vn_gpu_enter(vn_gpus[i])) {
			vn_gpu_issue_out(vn_gpus[i]);
			vn_gpu_leave();
		}
	}
	for (int i = 0; i < VN_GPUS; i++) {
		struct vn_gpu *gpu = vn_gpus[i];

		if (gpu && gpu->out_pending && vn_gpu_enter(gpu)) {
			uint64_t start = vn_stat_start();

			vn_cu_ok(gpu, cu.synchronize(gpu->out), "cuStreamSynchronize");
			vn_gpu_leave();
			vn_stat(VN_STAT_WAIT_OUT, start, 0);
			gpu->out_pending = false;
		}
	}
}

void vn_gpu_unstage(struct vn_gpu *gpu, uint8_t *staged)
{
	gpu->live[(size_t)(staged - gpu->chunks) / VN_CHUNK_BYTES]--;
}

/* ------------------------------------------------------------------------------------ writing */

/* False: this is no word, or the driver does not store words there. */
static bool vn_gpu_store(struct vn_gpu *gpu, uint8_t *to, const uint8_t *from, uint32_t bytes)
{
	uint64_t word = 0, start = vn_stat_start();

	if ((bytes != 8 && bytes != 4) || (uintptr_t)to % bytes || gpu->no_values) {
		return false;
	}
	memcpy(&word, from, bytes);
	vn_gpu_issue_in(gpu);
	gpu->no_values = bytes == 8 ? cu.write64(gpu->in, (uintptr_t)to, word, 0)
				    : cu.write32(gpu->in, (uintptr_t)to, (uint32_t)word, 0);
	vn_stat(VN_STAT_WORD, start, bytes);
	return !gpu->no_values;
}

/* Words are stored at once; the rest is copied. */
void vn_gpu_write(struct vn_gpu *gpu, const void *region, uint8_t *to, const uint8_t *from,
		  uint32_t bytes)
{
	struct vn_copy *c = &gpu->next_in;
	uint8_t *in;

	if (gpu->in_used + bytes + 64 > VN_IN_BYTES) {
		vn_gpu_wait(gpu);
	}
	if (!bytes || !vn_gpu_enter(gpu)) {
		return;
	}
	gpu->in_pending = true;
	if (!vn_gpu_store(gpu, to, from, bytes)) {
		in = gpu->in_bytes + gpu->in_used;
		if (!vn_copy_grows(c, region, to, in, bytes)) {
			vn_gpu_issue_in(gpu);
			gpu->in_used = (gpu->in_used + 63) & ~63u;
			in = gpu->in_bytes + gpu->in_used;
			*c = (struct vn_copy){ region, to, in, bytes };
		}
		memcpy(in, from, bytes);
		gpu->in_used += bytes;
	}
	vn_gpu_leave();
}

void vn_gpu_write_cqe(struct vn_gpu *gpu, uint8_t *to, const struct ep_mlx5_cqe *cqe)
{
	const uint8_t *from = (const uint8_t *)cqe;

	vn_gpu_write(gpu, gpu, to, from, EP_MLX5_CQE_DONE_AT);
	vn_gpu_write(gpu, gpu, to + EP_MLX5_CQE_DONE_AT, from + EP_MLX5_CQE_DONE_AT, 4);
	vn_gpu_wait(gpu);
}

/*
 * Packets of a turn that access memory of GPUs. A wait for a GPU takes some microseconds, so one
 * wait serves all of them: the words that atomics change are asked for together, and answers wait
 * until everything that was written is there.
 */

static struct vn_deferred {
	struct vn_link *link;
	struct vn_packet answer;
	/* atomics: */
	struct vn_mr *mr;
	uint8_t *at;
	uint64_t add;
	const uint8_t *word; /* where the value will be read */
	uint64_t old, value; /* before and after */
} * vn_deferred;
static uint32_t vn_ndeferred, vn_deferred_cap;
static uint32_t vn_deferred_done; /* atomics before this one are done */
static uint32_t vn_atomics;       /* and so many are not */

static struct vn_deferred *vn_deferred_add(struct vn_link *link, const struct vn_packet *answer)
{
	if (vn_ndeferred == vn_deferred_cap) {
		vn_deferred_cap = 2 * vn_deferred_cap + 256;
		vn_deferred = realloc(vn_deferred, vn_deferred_cap * sizeof(*vn_deferred));
		if (!vn_deferred) {
			abort();
		}
	}
	vn_deferred[vn_ndeferred] = (struct vn_deferred){ .link = link, .answer = *answer };
	return &vn_deferred[vn_ndeferred++];
}

void vn_place_defer(struct vn_link *link, const struct vn_packet *answer)
{
	vn_deferred_add(link, answer);
}

/* ------------------------------------------------------------------------------------- atomics */

/* Asks for the words of atomics, as many as there is room for. Returns the first that is left. */
static uint32_t vn_atomics_ask(uint32_t from)
{
	uint32_t i;

	for (i = from; i < vn_ndeferred; i++) {
		struct vn_deferred *d = &vn_deferred[i];

		d->word = d->mr ? vn_gpu_peek(d->mr->mem.gpu, d->at, d->answer.len) : NULL;
		if (d->mr && !d->word) {
			break;
		}
	}
	return i;
}

/* The value that an atomic finds: what one before it has left, or what was read. */
static uint64_t vn_atomic_old(uint32_t from, uint32_t i)
{
	struct vn_deferred *d = &vn_deferred[i];

	for (uint32_t k = i; k-- > from;) {
		if (vn_deferred[k].mr && vn_deferred[k].at == d->at) {
			return vn_deferred[k].value;
		}
	}
	return d->old;
}

static void vn_atomics_run(void)
{
	while (vn_atomics) {
		uint32_t from = vn_deferred_done, to = vn_atomics_ask(from);

		vn_gpu_settle();
		/* The next write takes the place where the words were read. */
		for (uint32_t i = from; i < to; i++) {
			if (vn_deferred[i].mr) {
				memcpy(&vn_deferred[i].old, vn_deferred[i].word,
				       vn_deferred[i].answer.len);
			}
		}
		for (uint32_t i = from; i < to; i++) {
			struct vn_deferred *d = &vn_deferred[i];

			if (d->mr) {
				d->old = vn_atomic_old(from, i);
				d->value = d->old + d->add;
				vn_gpu_write(d->mr->mem.gpu, d->mr, d->at, (uint8_t *)&d->value,
					     d->answer.len);
				vn_resp_atomic_done(&d->answer, d->old);
				vn_atomics--;
			}
		}
		vn_deferred_done = to;
	}
}

/* Atomics that wait and touch these bytes are done now, unless they are on exactly this word. */
static void vn_deferred_clash(const uint8_t *at, uint32_t len, bool word)
{
	for (uint32_t i = vn_deferred_done; vn_atomics && i < vn_ndeferred; i++) {
		const struct vn_deferred *d = &vn_deferred[i];

		if (d->mr && d->at < at + len && at < d->at + d->answer.len &&
		    !(word && d->at == at && d->answer.len == len)) {
			vn_atomics_run();
		}
	}
}

void vn_deferred_before(const uint8_t *at, uint32_t len)
{
	vn_deferred_clash(at, len, false);
}

void vn_place_atomic(struct vn_link *link, const struct vn_packet *answer,
		     const struct vn_packet *request, struct vn_mr *mr, uint8_t *at)
{
	struct vn_deferred *d;

	vn_deferred_clash(at, answer->len, true);
	d = vn_deferred_add(link, answer);
	d->mr = mr;
	d->at = at;
	d->add = request->add;
	vn_atomics++;
}

/* ------------------------------------------------------------------------------------- answers */

bool vn_place_settle(void)
{
	uint32_t n = vn_ndeferred;

	if (!n) {
		return false;
	}
	vn_atomics_run();
	vn_gpu_settle();
	vn_deferred_done = n;
	for (uint32_t i = 0; i < n; i++) {
		struct vn_deferred d = vn_deferred[i];

		vn_link_send(d.link, &d.answer, (const uint8_t *)&d.old);
	}
	vn_ndeferred -= n; /* sending answers has deferred no others */
	vn_deferred_done = 0;
	return true;
}
