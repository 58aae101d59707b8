/* SPDX-License-Identifier: Apache-2.0 */
/* Heaps of this process: their memory, by plain pointers or the driver's virtual addresses, and their list. */
#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/nccl_dyn.h"
#include "core/process.h"
#include "peer/peer.h"

static struct ep_vmm {
	CUresult (*retain)(CUmemGenericAllocationHandle *handle, void *p);
	CUresult (*release)(CUmemGenericAllocationHandle handle);
	CUresult (*reserve)(CUdeviceptr *p, size_t size, size_t align, CUdeviceptr at,
			    unsigned long long flags);
	CUresult (*unreserve)(CUdeviceptr p, size_t size);
	CUresult (*map)(CUdeviceptr p, size_t size, size_t offset,
			CUmemGenericAllocationHandle handle, unsigned long long flags);
	CUresult (*unmap)(CUdeviceptr p, size_t size);
	CUresult (*set_access)(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc,
			       size_t count);
} ep_vmm;
static const char *ep_vmm_missing;
static pthread_once_t ep_vmm_once = PTHREAD_ONCE_INIT;

static void ep_vmm_init(void)
{
	const struct {
		const char *name;
		void *slot;
	} table[] = {
		{ "cuMemRetainAllocationHandle", &ep_vmm.retain },
		{ "cuMemRelease", &ep_vmm.release },
		{ "cuMemAddressReserve", &ep_vmm.reserve },
		{ "cuMemAddressFree", &ep_vmm.unreserve },
		{ "cuMemMap", &ep_vmm.map },
		{ "cuMemUnmap", &ep_vmm.unmap },
		{ "cuMemSetAccess", &ep_vmm.set_access },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(table); i++) {
		if (!ep_driver_find(table[i].name, table[i].slot)) {
			ep_vmm_missing = table[i].name;
		}
	}
}

bool ep_vmm_driver(struct ep_reason *why)
{
	pthread_once(&ep_vmm_once, ep_vmm_init);
	return !ep_vmm_missing || ep_reason_set(why, "the CUDA driver has no %s", ep_vmm_missing);
}

/* The driver's handle of the memory that is mapped at p, as a name for it; false: none is. */
static bool ep_vmm_handle(void *p, CUmemGenericAllocationHandle *handle)
{
	if (ep_vmm.retain(handle, p) != CUDA_SUCCESS) {
		return false;
	}
	ep_vmm.release(*handle);
	return true;
}

CUresult ep_vmm_map_again(void *p, size_t bytes, int device, void **out, const char **step)
{
	CUmemAccessDesc desc = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
				 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at = 0;
	CUresult error;

	*step = "cuMemRetainAllocationHandle";
	error = ep_vmm.retain(&handle, p);
	if (error != CUDA_SUCCESS) {
		return error;
	}
	*step = "cuMemAddressReserve";
	error = ep_vmm.reserve(&at, bytes, 0, 0, 0);
	if (error != CUDA_SUCCESS) {
		goto out_release;
	}
	*step = "cuMemMap";
	error = ep_vmm.map(at, bytes, 0, handle, 0);
	if (error != CUDA_SUCCESS) {
		goto err_unreserve;
	}
	*step = "cuMemSetAccess";
	error = ep_vmm.set_access(at, bytes, &desc, 1);
	if (error == CUDA_SUCCESS) {
		*out = (void *)at;
		goto out_release;
	}
	ep_vmm.unmap(at, bytes);
err_unreserve:
	ep_vmm.unreserve(at, bytes);
out_release:
	ep_vmm.release(handle); /* the mapping keeps the memory */
	return error;
}

void ep_vmm_unmap(void *base, uint64_t bytes)
{
	(void)ep_vmm.unmap((CUdeviceptr)base, bytes);
	(void)ep_vmm.unreserve((CUdeviceptr)base, bytes);
}

/* Ranks of one process: the peer's own pointer, once its GPU may be accessed. */

bool ep_peer_plain_alloc(void **base, uint64_t bytes, struct ep_reason *why)
{
	cudaError_t err = cudaMalloc(base, bytes);

	if (err != cudaSuccess) {
		(void)cudaGetLastError();
		return ep_reason_set(why, "%s", cudaGetErrorString(err));
	}
	return true;
}

void ep_peer_plain_free(void *base)
{
	if (cudaFree(base) != cudaSuccess) {
		(void)cudaGetLastError();
	}
}

static ncclResult_t ep_peer_plain_give(struct ep_heap_export *export, void *base)
{
	export->base = base;
	return ncclSuccess;
}

static ncclResult_t ep_peer_plain_map(void **base, const struct ep_heap *heap,
				      const struct ep_heap_export *export,
				      const struct ep_ident *idents, int peer)
{
	int rank = heap->rank;

	if (idents[peer].device != idents[rank].device) {
		cudaError_t err = cudaDeviceEnablePeerAccess(idents[peer].device, 0);

		if (err != cudaSuccess) {
			(void)cudaGetLastError();
		}
		if (err != cudaSuccess && err != cudaErrorPeerAccessAlreadyEnabled) {
			return ep_fail(ncclUnhandledCudaError,
				       "GPU %s of rank %d cannot enable access to GPU %s of rank "
				       "%d: %s",
				       idents[rank].bus_id, rank, idents[peer].bus_id, peer,
				       cudaGetErrorString(err));
		}
	}
	*base = export->base;
	return ncclSuccess;
}

static void ep_peer_plain_unmap(void *base, uint64_t bytes)
{
	(void)base;
	(void)bytes;
}

const struct ep_peer_mapping ep_peer_plain = {
	.name = "plain pointers",
	.alloc = ep_peer_plain_alloc,
	.free = ep_peer_plain_free,
	.give = ep_peer_plain_give,
	.map = ep_peer_plain_map,
	.unmap = ep_peer_plain_unmap,
};

/* Entries of the process's heaps: memory, mappings, window; and the list of all. */

pthread_mutex_t ep_heap_lock = PTHREAD_MUTEX_INITIALIZER;
struct ep_heap_entry *ep_heap_list;

static void ep_heap_enlist(struct ep_heap_entry *entry)
{
	pthread_mutex_lock(&ep_heap_lock);
	entry->next = ep_heap_list;
	ep_heap_list = entry;
	pthread_mutex_unlock(&ep_heap_lock);
}

static void ep_heap_delist(struct ep_heap_entry *entry)
{
	struct ep_heap_entry **link = &ep_heap_list;

	pthread_mutex_lock(&ep_heap_lock);
	while (*link != entry) {
		link = &(*link)->next;
	}
	*link = entry->next;
	pthread_mutex_unlock(&ep_heap_lock);
}

ncclResult_t ep_heap_entry_new(struct ep_heap_entry **out, const struct ep_heap *heap,
			       const struct ep_ident *idents, const struct ep_peer_mapping *mapping)
{
	size_t n = (size_t)heap->nranks, bytes = n * sizeof(*idents);
	struct ep_heap_entry *e = calloc(1, sizeof(*e) + bytes + n * sizeof(bool));
	cudaError_t err = cudaSuccess;

	if (e) {
		e->head = malloc(EP_HEAP_HEADER_BYTES(heap->nranks));
	}
	if (!e || !e->head) {
		free(e);
		return ep_fail(ncclSystemError, "out of host memory");
	}
	err = cudaStreamCreateWithFlags(&e->stream, cudaStreamNonBlocking);
	if (err != cudaSuccess) {
		free(e->head);
		free(e);
		return ep_fail_cuda(err, "creating a stream");
	}
	e->maker = pthread_self();
	e->context = ep_context_now();
	e->mapping = mapping;
	e->lasting = mapping->lasting;
	e->bytes = heap->bytes;
	e->rank = heap->rank;
	e->nranks = heap->nranks;
	e->stamp = (struct ep_heap_stamp){ EP_HEAP_STAMP, heap->team, ep_random_u64(),
					   (uint64_t)heap->rank };
	e->let_go = (bool *)(e->idents + n);
	memcpy(e->idents, idents, bytes);
	ep_heap_enlist(e); /* before any peer can have the group, and leave it */
	*out = e;
	return ncclSuccess;
}

void ep_heap_entry_free(struct ep_heap_entry *entry)
{
	bool ended = ep_context_ended(&entry->context);

	/* Work that has begun there goes on also where a call has failed; ncclMemFree does not wait for it. */
	if (!ended && cudaStreamSynchronize(entry->stream) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	if (entry->base && (!ended || entry->mapping->lasting)) {
		entry->mapping->free(entry->base);
	}
	if (!ended && cudaStreamDestroy(entry->stream) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	ep_heap_delist(entry);
	free(entry->remote.absent);
	free(entry->head);
	free(entry);
}

void ep_heap_unmap(struct ep_heap *heap)
{
	bool ended = heap->entry && ep_context_ended(&heap->entry->context);

	for (int r = 0; r < heap->nranks && heap->mapping; r++) {
		if (heap->mapping[r]) {
			if (!ended || heap->mapping[r]->lasting) {
				heap->mapping[r]->unmap(heap->base[r], heap->bytes);
			}
			heap->mapping[r] = NULL;
			heap->base[r] = NULL;
		}
	}
}

ncclResult_t ep_heap_tables_new(struct ep_heap *heap)
{
	heap->base = calloc((size_t)heap->nranks, sizeof(*heap->base));
	heap->mapping = calloc((size_t)heap->nranks, sizeof(*heap->mapping));
	if (!heap->base || !heap->mapping) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	return ncclSuccess;
}

void ep_heap_tables_free(struct ep_heap *heap)
{
	free(heap->base);
	free(heap->mapping);
	heap->base = NULL;
	heap->mapping = NULL;
}

void ep_heap_keep(struct ep_heap *heap)
{
	if (heap->entry->base) {
		EP_WARN("rank %d: %llu bytes of device memory stay allocated", heap->rank,
			(unsigned long long)heap->bytes);
		heap->entry->base = NULL;
	}
}

/* ---- a window that stays ---- */

bool ep_window_watch(struct ep_heap_entry *entry, ncclWindow_t window)
{
	return ep_nccl_dyn()->get_peer_device_pointer(window, 0, entry->rank, &entry->shown) ==
		       ncclSuccess &&
	       entry->shown && ep_vmm_handle(entry->shown, &entry->shown_handle);
}

bool ep_window_lives(const struct ep_heap_entry *entry)
{
	CUmemGenericAllocationHandle now;

	return entry->window && !ep_context_ended(&entry->context) &&
	       ep_vmm_handle(entry->shown, &now) && now == entry->shown_handle;
}

void ep_window_end(struct ep_heap_entry *entry)
{
	if (ep_window_lives(entry)) {
		(void)ep_nccl_dyn()->window_deregister(entry->comm, entry->window);
	}
	entry->window = NULL;
}
