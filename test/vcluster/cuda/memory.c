/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory. Each device allocation is a memfd of its own, mapped so that it ends at a page that
 * cannot be touched, filled with a pattern when fresh. Freed addresses stay unusable for a while.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cuda/runtime.h"

#define VC_FRESH 0xa5
#define VC_POISON_MB 2

#define VC_MEM_MB 16384
#define VC_QUARANTINE 64

static uint8_t vc_pattern[256 << 10]; /* what fresh memory holds */

struct vc_freed {
	void *map;
	size_t map_size;
	uintptr_t start;
	size_t size;
};

pthread_mutex_t vc_mem_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct vc_mem *vc_table; /* sorted by start */
static size_t vc_table_n, vc_table_cap;
static size_t vc_used[VC_MAX_DEVICES];
static struct vc_freed vc_freed[VC_QUARANTINE];
static unsigned int vc_freed_next;

/* First entry that starts after `address`. */
static size_t vc_table_above(uintptr_t address)
{
	size_t low = 0, high = vc_table_n;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (vc_table[mid].start <= address) {
			low = mid + 1;
		} else {
			high = mid;
		}
	}
	return low;
}

bool vc_mem_find(const void *p, size_t size, struct vc_mem *out)
{
	uintptr_t address = (uintptr_t)p;
	bool found = false;
	size_t i;

	pthread_mutex_lock(&vc_mem_mutex);
	i = vc_table_above(address);
	if (i && address - vc_table[i - 1].start < vc_table[i - 1].size + !size &&
	    size <= vc_table[i - 1].size - (address - vc_table[i - 1].start)) {
		*out = vc_table[i - 1];
		found = true;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	return found;
}

bool vc_mem_touches(const void *p, size_t size, struct vc_mem *out)
{
	uintptr_t address = (uintptr_t)p;
	bool found = false;
	size_t i;

	pthread_mutex_lock(&vc_mem_mutex);
	i = vc_table_above(address);
	if (i && address - vc_table[i - 1].start < vc_table[i - 1].size) {
		*out = vc_table[i - 1];
		found = true;
	} else if (i < vc_table_n && vc_table[i].start - address < size) {
		*out = vc_table[i];
		found = true;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	return found;
}

bool vc_mem_add(const struct vc_mem *mem)
{
	size_t i;

	pthread_mutex_lock(&vc_mem_mutex);
	if (vc_table_n == vc_table_cap) {
		size_t cap = vc_table_cap ? 2 * vc_table_cap : 64;
		struct vc_mem *table = realloc(vc_table, cap * sizeof(*table));

		if (!table) {
			pthread_mutex_unlock(&vc_mem_mutex);
			return false;
		}
		vc_table = table;
		vc_table_cap = cap;
	}
	i = vc_table_above(mem->start);
	memmove(&vc_table[i + 1], &vc_table[i], (vc_table_n - i) * sizeof(*vc_table));
	vc_table[i] = *mem;
	vc_table_n++;
	pthread_mutex_unlock(&vc_mem_mutex);
	return true;
}

/* with the lock held */
static struct vc_mem *vc_mem_at(uintptr_t start, enum vc_mem_kind kind)
{
	size_t i = vc_table_above(start);

	return i && vc_table[i - 1].start == start && vc_table[i - 1].kind == kind
		       ? &vc_table[i - 1]
		       : NULL;
}

/* with the lock held */
static struct vc_mem *vc_mem_by_inode(uint64_t inode)
{
	for (size_t i = 0; i < vc_table_n; i++) {
		if (vc_table[i].kind == VC_MEM_IMPORTED && vc_table[i].inode == inode) {
			return &vc_table[i];
		}
	}
	return NULL;
}

bool vc_mem_remove(uintptr_t start, enum vc_mem_kind kind, struct vc_mem *out)
{
	struct vc_mem *mem;

	pthread_mutex_lock(&vc_mem_mutex);
	mem = vc_mem_at(start, kind);
	if (mem) {
		*out = *mem;
		memmove(mem, mem + 1,
			(vc_table_n - (size_t)(mem - vc_table) - 1) * sizeof(*vc_table));
		vc_table_n--;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	return mem != NULL;
}

void vc_mem_show(uintptr_t start, enum vc_mem_kind kind)
{
	struct vc_mem *mem;

	pthread_mutex_lock(&vc_mem_mutex);
	mem = vc_mem_at(start, kind);
	if (mem) {
		mem->shown = true;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
}

bool vc_mem_sync_memops(uintptr_t start, enum vc_mem_kind kind, bool on)
{
	struct vc_mem *mem;

	pthread_mutex_lock(&vc_mem_mutex);
	mem = vc_mem_at(start, kind);
	if (mem) {
		mem->sync_memops = on;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	return mem != NULL;
}

static void vc_address_describe(uintptr_t address, char *text, size_t size)
{
	struct vc_mem near;

	*text = 0;
	for (int i = 0; i < VC_QUARANTINE; i++) {
		if (address - vc_freed[i].start < vc_freed[i].size) {
			snprintf(text, size, "offset %zu of freed memory of %zu bytes",
				 address - vc_freed[i].start, vc_freed[i].size);
		}
	}
	for (size_t i = 0; i < vc_table_n; i++) {
		near = vc_table[i];
		if (address - near.start < near.size + 65536) {
			snprintf(text, size, "%zu bytes from the start of memory of %zu bytes",
				 address - near.start, near.size);
		}
	}
}

static bool vc_address_on_device(uintptr_t address, int device)
{
	struct vc_mem mem;

	return vc_mem_find((const void *)address, 1, &mem) && vc_mem_on_device(&mem) &&
	       mem.kind != VC_MEM_IMPORTED && !mem.foreign && mem.device == device;
}

__attribute__((constructor)) static void vc_memory_init(void)
{
	struct rlimit limit;

	memset(vc_pattern, VC_FRESH, sizeof(vc_pattern));
	vc_describe_address = vc_address_describe;
	vc_device_address = vc_address_on_device;
	/* One descriptor for each allocation. */
	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max < 65536 ? limit.rlim_max : 65536;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* Reserves the range and a page after it; the first part is mapped from fd. */
static void *vc_map(int fd, size_t size)
{
	uint8_t *map = mmap(NULL, size + VC_PAGE, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	void *at;

	if (map == MAP_FAILED) {
		return NULL;
	}
	at = mmap(map, size, PROT_READ | PROT_WRITE,
		  MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED), fd, 0);
	if (at == MAP_FAILED) {
		munmap(map, size + VC_PAGE);
		return NULL;
	}
	return map;
}

void vc_unmap_later(const struct vc_mem *mem)
{
	struct vc_freed *slot;

	/* Frees the memory now and the addresses later, so that a late access to them faults. */
	mmap(mem->map, mem->map_size, PROT_NONE,
	     MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	pthread_mutex_lock(&vc_mem_mutex);
	slot = &vc_freed[vc_freed_next++ % VC_QUARANTINE];
	if (slot->map) {
		munmap(slot->map, slot->map_size + VC_PAGE);
	}
	*slot = (struct vc_freed){ mem->map, mem->map_size, mem->start, mem->size };
	pthread_mutex_unlock(&vc_mem_mutex);
}

bool vc_mem_account(int device, size_t size)
{
	size_t limit = (size_t)vc_env_long("VC_MEM_MB", VC_MEM_MB) << 20;
	bool fits;

	pthread_mutex_lock(&vc_mem_mutex);
	fits = size <= limit && vc_used[device] <= limit - size;
	if (fits) {
		vc_used[device] += size;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	return fits;
}

void vc_mem_unaccount(int device, size_t size)
{
	pthread_mutex_lock(&vc_mem_mutex);
	vc_used[device] -= size;
	pthread_mutex_unlock(&vc_mem_mutex);
}

/*
 * By writes to the file: each page that is stored to through a mapping costs a fault, and most of a
 * test's memory is never touched again.
 */
bool vc_mem_poison(int fd, size_t offset, size_t size)
{
	size_t most = (size_t)vc_env_long("VC_POISON_MB", VC_POISON_MB) << 20;
	size_t end = offset + (size < most ? size : most);

	while (offset < end) {
		size_t n = end - offset < sizeof(vc_pattern) ? end - offset : sizeof(vc_pattern);
		ssize_t done = pwrite(fd, vc_pattern, n, (off_t)offset);

		if (done <= 0) {
			return false;
		}
		offset += (size_t)done;
	}
	return true;
}

static cudaError_t vc_device_alloc(int device, size_t size, size_t align, void **p)
{
	size_t used = (size + align - 1) & ~(align - 1);
	struct vc_mem mem = { .size = size, .kind = VC_MEM_DEVICE, .device = device, .fd = -1 };
	struct stat stat;

	mem.map_size = (used + VC_PAGE - 1) & ~(VC_PAGE - 1);
	if (used < size || mem.map_size < used || !vc_mem_account(device, mem.map_size)) {
		return cudaErrorMemoryAllocation;
	}
	mem.fd = memfd_create("vcluster", MFD_CLOEXEC);
	/*
	 * The allocation ends where the page that cannot be touched begins, as far as `align`
	 * allows.
	 */
	if (mem.fd < 0 || ftruncate(mem.fd, (off_t)mem.map_size) || fstat(mem.fd, &stat) ||
	    !vc_mem_poison(mem.fd, mem.map_size - used, size)) {
		goto err_account;
	}
	mem.inode = stat.st_ino;
	mem.map = vc_map(mem.fd, mem.map_size);
	if (!mem.map) {
		goto err_account;
	}
	mem.start = (uintptr_t)mem.map + mem.map_size - used;
	if (!vc_mem_add(&mem)) {
		goto err_map;
	}
	*p = (void *)mem.start;
	return cudaSuccess;

err_map:
	munmap(mem.map, mem.map_size + VC_PAGE);
err_account:
	if (mem.fd >= 0) {
		close(mem.fd);
	}
	vc_mem_unaccount(device, mem.map_size);
	return cudaErrorMemoryAllocation;
}

cudaError_t cudaMalloc(void **p, size_t size)
{
	cudaError_t error;

	VC_ENTER();
	if (!p) {
		return vc_error(cudaErrorInvalidValue);
	}
	error = vc_capture_check_unsafe();
	if (error) {
		return vc_error(error);
	}
	if (!size) {
		*p = NULL;
		return cudaSuccess;
	}
	return vc_error(vc_device_alloc(vc_device_current(), size, 256, p));
}

/* ---- what a reset has ended ---- */

static uintptr_t *vc_ended;
static size_t vc_ended_n;

static bool vc_ended_add(uintptr_t start)
{
	uintptr_t *all = realloc(vc_ended, (vc_ended_n + 1) * sizeof(*all));

	if (!all) {
		return false;
	}
	vc_ended = all;
	vc_ended[vc_ended_n++] = start;
	return true;
}

/* Memory of the device's context: what is mapped by a handle is not. */
static bool vc_mem_take_first(int device, struct vc_mem *out)
{
	bool found = false;

	pthread_mutex_lock(&vc_mem_mutex);
	for (size_t i = 0; i < vc_table_n && !found; i++) {
		if (vc_table[i].device == device && vc_table[i].kind != VC_MEM_MAPPED) {
			*out = vc_table[i];
			found = vc_ended_add(out->start);
		}
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	return found && vc_mem_remove(out->start, out->kind, out);
}

void vc_memory_end(int device)
{
	struct vc_mem mem;

	while (vc_mem_take_first(device, &mem)) {
		switch (mem.kind) {
		case VC_MEM_DEVICE:
			if (!mem.shown) {
				vc_unmap_later(&mem);
			}
			close(mem.fd);
			vc_mem_unaccount(device, mem.map_size);
			break;
		case VC_MEM_HOST:
			vc_unmap_later(&mem);
			break;
		case VC_MEM_IMPORTED:
			munmap(mem.map, mem.map_size);
			break;
		case VC_MEM_REGISTERED:
		case VC_MEM_MAPPED:
			break;
		}
	}
}

void vc_mem_check_ended(const void *p)
{
	bool ended = false;

	pthread_mutex_lock(&vc_mem_mutex);
	for (size_t i = 0; i < vc_ended_n; i++) {
		ended |= vc_ended[i] == (uintptr_t)p;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	if (ended) {
		vc_ended_used("memory");
	}
}

/*
 * Ends memory of this kind, or its registration; it waits for the device first, as the real calls
 * do.
 */
static cudaError_t vc_give_back(void *p, enum vc_mem_kind kind, cudaError_t unknown)
{
	struct vc_mem mem;
	cudaError_t error;

	VC_ENTER();
	error = vc_capture_check_unsafe();
	if (error) {
		return vc_error(error);
	}
	if (!vc_mem_find(p, 1, &mem) || mem.start != (uintptr_t)p || mem.kind != kind) {
		vc_mem_check_ended(p);
		return vc_error(unknown);
	}
	error = vc_device_wait(mem.device);
	if (!vc_mem_remove((uintptr_t)p, kind, &mem)) {
		return vc_error(unknown);
	}
	if (kind != VC_MEM_REGISTERED) {
		vc_unmap_later(&mem);
	}
	if (kind == VC_MEM_DEVICE) {
		close(mem.fd);
		vc_mem_unaccount(mem.device, mem.map_size);
	}
	return vc_error(error);
}

cudaError_t cudaFree(void *p)
{
	VC_ENTER();
	return p ? vc_give_back(p, VC_MEM_DEVICE, cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	size_t limit = (size_t)vc_env_long("VC_MEM_MB", VC_MEM_MB) << 20;

	VC_ENTER();
	pthread_mutex_lock(&vc_mem_mutex);
	if (available) {
		*available = limit - vc_used[vc_device_current()];
	}
	if (total) {
		*total = limit;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t size, unsigned int flags)
{
	struct vc_mem mem = { .size = size, .kind = VC_MEM_HOST, .fd = -1, .flags = flags };
	cudaError_t error;

	VC_ENTER();
	if (!p || flags & ~(unsigned int)(cudaHostAllocPortable | cudaHostAllocMapped |
					  cudaHostAllocWriteCombined)) {
		return vc_error(cudaErrorInvalidValue);
	}
	error = vc_capture_check_unsafe();
	if (error) {
		return vc_error(error);
	}
	*p = NULL;
	if (!size) {
		return cudaSuccess;
	}
	mem.device = vc_device_current();
	mem.map_size = (size + VC_PAGE - 1) & ~(VC_PAGE - 1);
	mem.map = mem.map_size >= size ? vc_map(-1, mem.map_size) : NULL;
	if (!mem.map) {
		return vc_error(cudaErrorMemoryAllocation);
	}
	mem.start = (uintptr_t)mem.map;
	memset(mem.map, VC_FRESH, size < (64 << 20) ? size : (64 << 20));
	if (!vc_mem_add(&mem)) {
		munmap(mem.map, mem.map_size + VC_PAGE);
		return vc_error(cudaErrorMemoryAllocation);
	}
	*p = mem.map;
	return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t size)
{
	return cudaHostAlloc(p, size, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *p)
{
	VC_ENTER();
	return p ? vc_give_back(p, VC_MEM_HOST, cudaErrorInvalidValue) : cudaSuccess;
}

/* ---- what a pointer is, host memory seen by devices, memory of other processes ---- */

#define VC_IPC_MAGIC 0x76634950u

/* What a cudaIpcMemHandle_t holds. */
struct vc_ipc {
	uint32_t magic;
	struct vc_export from;
};

_Static_assert(sizeof(struct vc_ipc) <= sizeof(cudaIpcMemHandle_t), "the handle is too small");

int vc_node(void)
{
	return (int)vc_env_long("VC_NODE", 0);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attr, const void *p)
{
	struct vc_mem mem;

	VC_ENTER();
	if (!attr) {
		return vc_error(cudaErrorInvalidValue);
	}
	memset(attr, 0, sizeof(*attr));
	if (!vc_mem_find(p, 1, &mem)) {
		attr->type = cudaMemoryTypeUnregistered;
		attr->device = -2;
		attr->hostPointer = (void *)p;
		return cudaSuccess;
	}
	attr->device = vc_device_ordinal(mem.device);
	attr->devicePointer = (void *)p;
	if (mem.kind == VC_MEM_HOST || mem.kind == VC_MEM_REGISTERED) {
		attr->type = cudaMemoryTypeHost;
		attr->hostPointer = (void *)p;
	} else {
		attr->type = cudaMemoryTypeDevice;
	}
	return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
	struct vc_mem mem;

	VC_ENTER();
	if (!device || flags || !vc_mem_find(host, 1, &mem) ||
	    (mem.kind != VC_MEM_HOST && mem.kind != VC_MEM_REGISTERED)) {
		return vc_error(cudaErrorInvalidValue);
	}
	*device = host;
	return cudaSuccess;
}

/* Is all of it mapped in this process? */
static bool vc_host_mapped(uintptr_t start, size_t size)
{
	uintptr_t first = start & ~(VC_PAGE - 1);
	unsigned char present[64];

	if (size > UINTPTR_MAX - start - VC_PAGE) {
		return false;
	}
	while (first < start + size) {
		size_t pages = (start + size - first + VC_PAGE - 1) / VC_PAGE;

		pages = pages < sizeof(present) ? pages : sizeof(present);
		if (mincore((void *)first, pages * VC_PAGE, present)) {
			return false;
		}
		first += pages * VC_PAGE;
	}
	return true;
}

/*
 * cudaHostRegisterIoMemory: whole pages only. Some drivers also take a part of a page; whole pages
 * work with every driver.
 */
static cudaError_t vc_register_io(uintptr_t start, size_t size)
{
	if (vc_env_long("VC_NO_IOMEM", 0)) {
		return cudaErrorNotPermitted;
	}
	return start % VC_PAGE || size % VC_PAGE ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t size, unsigned int flags)
{
	struct vc_mem mem = { .start = (uintptr_t)p,
			      .size = size,
			      .kind = VC_MEM_REGISTERED,
			      .device = vc_device_current(),
			      .fd = -1,
			      .flags = flags };
	struct vc_mem other;
	cudaError_t error;

	VC_ENTER();
	if (!p || !size ||
	    flags & ~(unsigned int)(cudaHostRegisterPortable | cudaHostRegisterMapped |
				    cudaHostRegisterIoMemory | cudaHostRegisterReadOnly)) {
		return vc_error(cudaErrorInvalidValue);
	}
	error = vc_capture_check_unsafe();
	if (!error && flags & cudaHostRegisterIoMemory) {
		error = vc_register_io((uintptr_t)p, size);
	}
	if (!error && !vc_host_mapped((uintptr_t)p, size)) {
		error = cudaErrorInvalidValue;
	}
	if (error) {
		return vc_error(error);
	}
	if (vc_mem_touches(p, size, &other)) {
		return vc_error(cudaErrorHostMemoryAlreadyRegistered);
	}
	return vc_error(vc_mem_add(&mem) ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaHostUnregister(void *p)
{
	return vc_give_back(p, VC_MEM_REGISTERED,
			    p ? cudaErrorHostMemoryNotRegistered : cudaErrorInvalidValue);
}

void vc_mem_export(const struct vc_mem *mem, struct vc_export *out)
{
	*out = (struct vc_export){
		.pid = getpid(),
		.fd = mem->fd,
		.node = vc_node(),
		.device = mem->device,
		.inode = mem->inode,
		.size = mem->size,
		.map_size = mem->map_size,
		.offset = mem->start - (uintptr_t)mem->map,
	};
}

int vc_export_fd(const struct vc_export *from)
{
	char path[64];
	struct stat stat;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", from->pid, from->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &stat) || stat.st_ino != from->inode)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p)
{
	struct vc_mem mem;
	struct vc_ipc ipc = { .magic = VC_IPC_MAGIC };

	VC_ENTER();
	if (!handle || !vc_mem_find(p, 1, &mem) || mem.kind != VC_MEM_DEVICE) {
		return vc_error(cudaErrorInvalidValue);
	}
	vc_mem_export(&mem, &ipc.from);
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ipc, sizeof(ipc));
	return cudaSuccess;
}

static cudaError_t vc_ipc_map(const struct vc_export *from, void **p)
{
	struct vc_mem mem = { .size = from->size,
			      .kind = VC_MEM_IMPORTED,
			      .opens = 1,
			      .device = vc_device_current(),
			      .fd = vc_export_fd(from),
			      .map_size = from->map_size,
			      .inode = from->inode };

	if (mem.fd < 0) {
		return cudaErrorMapBufferObjectFailed;
	}
	mem.map = mmap(NULL, mem.map_size, PROT_READ | PROT_WRITE, MAP_SHARED, mem.fd, 0);
	close(mem.fd);
	mem.fd = -1;
	if (mem.map == MAP_FAILED) {
		return cudaErrorMapBufferObjectFailed;
	}
	mem.start = (uintptr_t)mem.map + from->offset;
	if (!vc_mem_add(&mem)) {
		munmap(mem.map, mem.map_size);
		return cudaErrorMapBufferObjectFailed;
	}
	*p = (void *)mem.start;
	return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned int flags)
{
	struct vc_ipc ipc;
	struct vc_mem *open;
	cudaError_t error;

	VC_ENTER();
	memcpy(&ipc, &handle, sizeof(ipc));
	if (!p || flags != cudaIpcMemLazyEnablePeerAccess || ipc.magic != VC_IPC_MAGIC ||
	    ipc.from.offset > ipc.from.map_size ||
	    ipc.from.size > ipc.from.map_size - ipc.from.offset) {
		return vc_error(cudaErrorInvalidValue);
	}
	error = vc_capture_check_unsafe();
	if (error) {
		return vc_error(error);
	}
	if (ipc.from.node != vc_node()) {
		return vc_error(cudaErrorInvalidResourceHandle);
	}
	if (ipc.from.pid == getpid()) {
		return vc_error(cudaErrorDeviceUninitialized);
	}
	if (ipc.from.device != vc_device_current() &&
	    !vc_peer_possible(vc_device_current(), ipc.from.device)) {
		return vc_error(cudaErrorPeerAccessUnsupported);
	}
	pthread_mutex_lock(&vc_mem_mutex);
	open = vc_mem_by_inode(ipc.from.inode);
	if (open) {
		open->opens++;
		*p = (void *)open->start;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	return open ? cudaSuccess : vc_error(vc_ipc_map(&ipc.from, p));
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
	struct vc_mem *open, mem;
	bool last = false;
	cudaError_t error;

	VC_ENTER();
	error = vc_capture_check_unsafe();
	if (error) {
		return vc_error(error);
	}
	pthread_mutex_lock(&vc_mem_mutex);
	open = vc_mem_at((uintptr_t)p, VC_MEM_IMPORTED);
	if (open) {
		last = --open->opens == 0;
	}
	pthread_mutex_unlock(&vc_mem_mutex);
	if (!open) {
		vc_mem_check_ended(p);
		return vc_error(cudaErrorInvalidValue);
	}
	if (last) {
		error = vc_device_wait(vc_device_current());
		if (vc_mem_remove((uintptr_t)p, VC_MEM_IMPORTED, &mem)) {
			munmap(mem.map, mem.map_size);
		}
	}
	return vc_error(error);
}
