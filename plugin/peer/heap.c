/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "peer/internal.h"

/* The one place that chooses how a peer's heap is mapped. NULL: it is not. */
static const struct ep_peer_way *ep_peer_way_to(const struct ep_ident *idents, int rank, int peer)
{
	if (peer == rank || !ep_ident_same_node(&idents[rank], &idents[peer])) {
		return NULL;
	}
	return ep_ident_same_process(&idents[rank], &idents[peer]) ? &ep_peer_plain : &ep_peer_ipc;
}

static ncclResult_t ep_heap_entry_new(struct ep_heap_entry **out, const struct ep_heap *heap,
				      const struct ep_ident *idents)
{
	size_t bytes = (size_t)heap->nranks * sizeof(*idents);
	struct ep_heap_entry *e = calloc(1, sizeof(*e) + bytes);
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
	e->bytes = heap->bytes;
	e->rank = heap->rank;
	e->nranks = heap->nranks;
	e->stamp = (struct ep_heap_stamp){ EP_HEAP_STAMP, heap->team, ep_random_u64(),
					   (uint64_t)heap->rank };
	memcpy(e->idents, idents, bytes);
	ep_heap_enlist(e); /* before any peer can have the group, and leave it */
	*out = e;
	return ncclSuccess;
}

void ep_heap_entry_free(struct ep_heap_entry *e)
{
	if ((e->base && cudaFree(e->base) != cudaSuccess) |
	    (cudaStreamDestroy(e->stream) != cudaSuccess)) {
		(void)cudaGetLastError();
	}
	ep_heap_delist(e);
	free(e->remote.absent);
	free(e->head);
	free(e);
}

/* Our own memory, zeroed, with the stamp that peers check after mapping it. */
static ncclResult_t ep_heap_alloc(struct ep_heap_entry *e)
{
	void *base = NULL;
	cudaError_t err = cudaMalloc(&base, e->bytes);

	if (err != cudaSuccess) {
		(void)cudaGetLastError();
		return ep_fail(
			ncclUnhandledCudaError,
			"rank %d cannot allocate %llu bytes of device memory that peers "
			"write to: %s; lower max_dispatch_tokens_per_rank or max_token_bytes",
			e->rank, (unsigned long long)e->bytes, cudaGetErrorString(err));
	}
	e->base = base;
	EP_CUDA(cudaMemsetAsync(base, 0, e->bytes, e->stream), "zeroing the heap");
	EP_CUDA(cudaMemcpyAsync(base, &e->stamp, sizeof(e->stamp), cudaMemcpyHostToDevice,
				e->stream),
		"marking the heap");
	EP_CUDA(cudaStreamSynchronize(e->stream), "zeroing the heap");
	return ncclSuccess;
}

static ncclResult_t ep_heap_map(struct ep_heap *heap, const struct ep_ident *idents, int peer,
				const struct ep_heap_export *e)
{
	const struct ep_peer_way *way = ep_peer_way_to(idents, heap->rank, peer);
	cudaStream_t stream = heap->entry->stream;
	struct ep_heap_stamp seen;
	void *base = NULL;

	if (!way) {
		return ncclSuccess;
	}
	EP_CHECK(way->map(&base, e, idents, heap->rank, peer));
	heap->base[peer] = base;
	heap->way[peer] = way;
	EP_CUDA(cudaMemcpyAsync(&seen, base, sizeof(seen), cudaMemcpyDefault, stream),
		"reading a peer's heap");
	EP_CUDA(cudaStreamSynchronize(stream), "reading a peer's heap");
	if (memcmp(&seen, &e->stamp, sizeof(seen)) != 0) {
		return ep_fail(ncclInternalError,
			       "rank %d mapped the memory of rank %d (GPU %s), but finds other "
			       "contents there",
			       heap->rank, peer, idents[peer].bus_id);
	}
	return ncclSuccess;
}

void ep_heap_unmap(struct ep_heap *heap)
{
	for (int r = 0; r < heap->nranks && heap->way; r++) {
		if (heap->way[r]) {
			heap->way[r]->unmap(heap->base[r]);
			heap->way[r] = NULL;
			heap->base[r] = NULL;
		}
	}
}

/* Where the peers' heaps are noted. */
static ncclResult_t ep_heap_tables_new(struct ep_heap *heap)
{
	heap->base = calloc((size_t)heap->nranks, sizeof(*heap->base));
	heap->way = calloc((size_t)heap->nranks, sizeof(*heap->way));
	if (!heap->base || !heap->way) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	return ncclSuccess;
}

void ep_heap_tables_free(struct ep_heap *heap)
{
	free(heap->base);
	free(heap->way);
	heap->base = NULL;
	heap->way = NULL;
}

/* Allocation and export; what comes out goes to the peers even if it is a failure. */
static ncclResult_t ep_heap_export_make(struct ep_heap *heap, const struct ep_ident *idents,
					ncclResult_t mine, struct ep_heap_export *e)
{
	memset(e, 0, sizeof(*e));
	if (mine == ncclSuccess) {
		mine = ep_heap_tables_new(heap);
	}
	if (mine == ncclSuccess) {
		mine = ep_heap_entry_new(&heap->entry, heap, idents);
	}
	if (mine == ncclSuccess) {
		mine = ep_heap_alloc(heap->entry);
		e->stamp = heap->entry->stamp;
		heap->base[heap->rank] = heap->entry->base;
	}
	for (int r = 0; r < heap->nranks && mine == ncclSuccess; r++) {
		const struct ep_peer_way *way = ep_peer_way_to(idents, heap->rank, r);

		mine = way ? way->give(e, heap->entry->base) : ncclSuccess;
	}
	e->verdict = ep_verdict_make(mine);
	return mine;
}

ncclResult_t ep_heap_open(struct ep_heap *heap, struct ep_boot *boot, const struct ep_ident *idents,
			  uint64_t team, uint64_t bytes, ncclResult_t mine)
{
	static const char what[] = "allocating and mapping the group's memory";
	const struct ep_heap_export *all = boot->all;
	struct ep_heap_export e;
	ncclResult_t result;

	memset(heap, 0, sizeof(*heap));
	heap->rank = boot->rank;
	heap->nranks = boot->nranks;
	heap->team = team;
	heap->bytes = ep_heap_alloc_bytes(bytes);
	mine = ep_heap_export_make(heap, idents, mine, &e);
	EP_CHECK_GOTO(ep_boot_allgather(boot, &e, boot->all, sizeof(e), what), err_free_heap);
	EP_CHECK_GOTO(all ? ep_verdict_check(boot, all, sizeof(e), what) : mine, err_free_heap);
	for (int r = 0; r < heap->nranks && mine == ncclSuccess; r++) {
		mine = ep_heap_map(heap, idents, r, &all[r]);
	}
	result = ep_boot_agree(boot, mine, what);
	if (result != ncclSuccess && !boot->stuck) {
		/* The owner frees only after everybody has unmapped. */
		ep_heap_unmap(heap);
		(void)ep_boot_agree(boot, ncclSuccess, what);
	}
	if (result != ncclSuccess) {
		goto err_free_heap;
	}
	EP_INFO(EP_LOG_ALLOC, "rank %d: %llu bytes of device memory that peers write", heap->rank,
		(unsigned long long)heap->bytes);
	return ncclSuccess;

err_free_heap:
	if (boot->stuck) {
		/* Freeing waits for the device, where the collective waits for a rank. */
		EP_WARN("rank %d: %llu bytes of device memory stay allocated", heap->rank,
			(unsigned long long)heap->bytes);
		if (heap->entry) {
			heap->entry->base = NULL;
		}
	} else {
		ep_heap_unmap(heap);
	}
	if (heap->entry) {
		ep_heap_entry_free(heap->entry);
	}
	ep_heap_tables_free(heap);
	return result;
}

void ep_heap_close(struct ep_heap *heap, struct ep_boot *boot)
{
	ep_heap_unmap(heap);
	/* If the barrier fails a peer may still have our memory mapped: keep it. */
	if (ep_boot_agree(boot, ncclSuccess, "replacing the group's memory") != ncclSuccess) {
		heap->entry->base = NULL;
	}
	ep_heap_entry_free(heap->entry);
	ep_heap_tables_free(heap);
}
