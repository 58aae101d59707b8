/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of the process's heaps: memory, mappings, window; and the list of all. */
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/nccl_dyn.h"
#include "peer/entry.h"
#include "peer/vmm.h"

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
