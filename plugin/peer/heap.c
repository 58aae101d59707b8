/* SPDX-License-Identifier: Apache-2.0 */
/* A heap: made, mapped by all ranks of a node, and closed. */
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "peer/state.h"

/* Returns how a peer's heap is mapped in a group with this mapping, or NULL if it is not mapped. */
static const struct ep_peer_mapping *mapping_to(const struct ep_peer_mapping *mapping,
						const struct ep_ident *idents, int rank, int peer)
{
	if (peer == rank || !ep_ident_same_node(&idents[rank], &idents[peer])) {
		return NULL;
	}
	if (!ep_ident_same_process(&idents[rank], &idents[peer])) {
		return mapping;
	}
	return mapping->within ? mapping->within : &ep_peer_plain;
}

/*
 * Allocates this rank's own memory, zeroes it, and writes the stamp that peers check after mapping
 * it.
 */
static ncclResult_t heap_alloc(struct ep_heap_entry *entry)
{
	const char *files;
	struct ep_reason why;
	void *base = NULL;

	if (!entry->mapping->alloc(&base, entry->bytes, &why)) {
		files = ep_no_files();
		return ep_fail(ncclUnhandledCudaError,
			       "rank %d cannot allocate %llu bytes of device memory that peers "
			       "write to: %s; %s",
			       entry->rank, (unsigned long long)entry->bytes, why.text,
			       files ? files
				     : "lower max_dispatch_tokens_per_rank or max_token_bytes");
	}
	entry->base = base;
	EP_CUDA(cudaMemsetAsync(base, 0, entry->bytes, entry->stream), "zeroing the heap");
	EP_CUDA(cudaMemcpyAsync(base, &entry->stamp, sizeof(entry->stamp), cudaMemcpyDefault,
				entry->stream),
		"marking the heap");
	EP_CUDA(cudaStreamSynchronize(entry->stream), "zeroing the heap");
	return ncclSuccess;
}

static const char heap_opening[] = "allocating and mapping the group's memory";
static const char heap_closing[] = "giving up the group's memory";

/* Maps the heap of a peer of the node, where one is mapped already, and checks its stamp. */
static ncclResult_t heap_map(struct ep_heap *heap, const struct ep_ident *idents, int peer,
			     const struct ep_heap_export *export)
{
	const struct ep_peer_mapping *mapping =
		mapping_to(heap->entry->mapping, idents, heap->rank, peer);
	cudaStream_t stream = heap->entry->stream;
	struct ep_heap_stamp seen;
	void *base = heap->base[peer];
	ncclResult_t result;

	if (!mapping) {
		return ncclSuccess;
	}
	result = mapping->map(&base, heap, export, idents, peer);
	heap->base[peer] = base;
	heap->mapping[peer] = base ? mapping : NULL;
	EP_CHECK(result);
	EP_CUDA(cudaMemcpyAsync(&seen, base, sizeof(seen), cudaMemcpyDefault, stream),
		"reading a peer's heap");
	EP_CUDA(cudaStreamSynchronize(stream), "reading a peer's heap");
	if (memcmp(&seen, &export->stamp, sizeof(seen)) != 0) {
		return ep_fail(ncclInternalError,
			       "rank %d mapped the memory of rank %d (GPU %s), but finds other "
			       "contents there",
			       heap->rank, peer, idents[peer].bus_id);
	}
	return ncclSuccess;
}

/*
 * Allocates the heap and fills in *export, which peers get even if this fails. Returns the result.
 */
static ncclResult_t heap_export_make(struct ep_heap *heap, const struct ep_ident *idents,
				     const struct ep_peer_mapping *mapping, ncclResult_t mine,
				     struct ep_heap_export *export)
{
	memset(export, 0, sizeof(*export));
	export->hopeless = true;
	if (mine == ncclSuccess) {
		mine = ep_heap_tables_new(heap);
	}
	if (mine == ncclSuccess) {
		mine = ep_heap_entry_new(&heap->entry, heap, idents, mapping);
	}
	if (mine == ncclSuccess) {
		mine = heap_alloc(heap->entry);
		export->hopeless = mine != ncclSuccess;
		export->stamp = heap->entry->stamp;
		heap->base[heap->rank] = heap->entry->base;
	}
	for (int r = 0; r < heap->nranks && mine == ncclSuccess; r++) {
		const struct ep_peer_mapping *to = mapping_to(mapping, idents, heap->rank, r);

		mine = to && to->give ? to->give(export, heap->entry->base) : ncclSuccess;
	}
	export->verdict = ep_verdict_make(mine);
	return mine;
}

/* Maps the heaps of all peers. They may be used once all ranks agree that it has worked. */
static ncclResult_t heap_map_all(struct ep_heap *heap, struct ep_boot *boot,
				 const struct ep_ident *idents, const struct ep_heap_export *all,
				 struct ep_peer_choice *choice)
{
	const struct ep_peer_mapping *mapping = heap->entry->mapping;
	ncclResult_t mine = mapping->open ? mapping->open(heap, boot) : ncclSuccess;

	if (boot->stuck || boot->failed) {
		return mine;
	}
	for (int r = 0; r < heap->nranks && mine == ncclSuccess; r++) {
		mine = heap_map(heap, idents, r, &all[r]);
	}
	if (choice->multicast) {
		mine = ep_multicast_open(heap, boot, choice, mine);
	}
	if (mapping->close && !boot->stuck) {
		mapping->close(heap, boot);
	}
	return mine;
}

/* Gives the heap up. `known`: a peer may have it mapped, or may still map it. */
static void heap_drop(struct ep_heap *heap, bool known)
{
	struct ep_heap_entry *e = heap->entry;

	if (e && known) {
		ep_heap_farewell(heap);
		ep_heap_depart(heap);
		return;
	}
	if (e) {
		ep_heap_unmap(heap);
		ep_heap_entry_free(e);
	}
	ep_heap_tables_free(heap);
	heap->entry = NULL;
}

ncclResult_t ep_heap_copy(struct ep_heap *heap, uint64_t off, const struct ep_heap *from,
			  uint64_t from_off, uint64_t bytes, const char *what)
{
	EP_CUDA(cudaMemcpyAsync(heap->base[heap->rank] + off, from->base[from->rank] + from_off,
				bytes, cudaMemcpyDefault, heap->entry->stream),
		what);
	EP_CUDA(cudaStreamSynchronize(heap->entry->stream), what);
	return ncclSuccess;
}

void ep_heap_close(struct ep_heap *heap, struct ep_boot *boot)
{
	bool apart = true;

	ep_window_settle(heap);
	if (heap->entry) {
		ep_heap_farewell(heap);
		apart = ep_boot_agree(boot, ncclSuccess, heap_closing) != ncclSuccess;
	}
	if (!apart) {
		ep_window_end(heap->entry);
	}
	heap_drop(heap, apart);
}

/*
 * Opens the heap by one mapping, as ep_heap_open() does. *hopeless: another mapping would fail,
 * too.
 */
static ncclResult_t heap_try(struct ep_heap *heap, struct ep_boot *boot,
			     const struct ep_ident *idents, struct ep_peer_choice *choice,
			     ncclResult_t mine, bool *hopeless)
{
	struct ep_heap_export *all = calloc((size_t)heap->nranks, sizeof(*all)), e;
	ncclResult_t result;

	if (!all && mine == ncclSuccess) {
		mine = ep_fail(ncclSystemError, "out of host memory");
	}
	mine = heap_export_make(heap, idents, choice->mapping, mine, &e);
	result = ep_boot_verdicts(boot, &e, all, sizeof(e), heap_opening);
	*hopeless = !all || !boot->all || boot->failed; /* nothing was received */
	for (int r = 0; r < heap->nranks && !*hopeless; r++) {
		*hopeless = all[r].hopeless != 0;
	}
	if (result != ncclSuccess) {
		goto err_drop;
	}
	result = heap_map_all(heap, boot, idents, all, choice);
	if (!boot->stuck && !boot->failed) {
		result = ep_boot_agree(boot, result, heap_opening);
	}
	if (result != ncclSuccess && !boot->stuck) {
		ep_heap_close(heap, boot);
	}
	if (boot->stuck) {
		ep_window_hold(heap, boot);
	}
	free(all);
	return result;

err_drop:
	/* Peers map no heap that they have not received, or that all know to be useless. */
	if (!boot->stuck) {
		heap_drop(heap, boot->failed && !boot->unsent);
	}
	free(all);
	return result;
}

ncclResult_t ep_heap_open(struct ep_heap *heap, struct ep_boot *boot, const struct ep_ident *idents,
			  struct ep_peer_choice *choice, uint64_t team, uint64_t bytes,
			  ncclResult_t mine)
{
	ncclResult_t result;
	bool hopeless;

	for (;;) {
		memset(heap, 0, sizeof(*heap));
		heap->rank = boot->rank;
		heap->nranks = boot->nranks;
		heap->team = team;
		heap->bytes = ep_heap_alloc_bytes(bytes);
		result = heap_try(heap, boot, idents, choice, mine, &hopeless);
		if (result == ncclSuccess || hopeless || boot->stuck || boot->failed ||
		    !choice->next) {
			break;
		}
		EP_WARN("rank %d: the mapping by %s failed for this group; the next one is by %s",
			heap->rank, choice->mapping->name, choice->next->name);
		ep_reason_set(&choice->no_window, "%s failed", choice->mapping->name);
		choice->mapping = choice->next;
		choice->next = NULL;
		if (choice->multicast) {
			choice->multicast = false;
			(void)ep_reason_set(&choice->no_multicast, "memory by %s",
					    choice->mapping->name);
		}
	}
	if (result == ncclSuccess) {
		EP_INFO(EP_LOG_ALLOC, "rank %d: %llu bytes of device memory that peers write",
			heap->rank, (unsigned long long)heap->bytes);
	}
	return result;
}

/* Maps the heaps of the newcomers, making the exchanges that they make meanwhile in heap_try(). */
static ncclResult_t heap_map_newcomers(struct ep_heap *heap, struct ep_boot *boot,
				       const struct ep_ident *idents, const bool *newcomers,
				       const struct ep_heap_export *all)
{
	const struct ep_peer_mapping *mapping = heap->entry->mapping;
	ncclResult_t result = mapping->open(heap, boot);

	if (boot->stuck || boot->failed) {
		return result;
	}
	for (int r = 0; r < heap->nranks && result == ncclSuccess; r++) {
		if (newcomers[r]) {
			result = heap_map(heap, idents, r, &all[r]);
		}
	}
	mapping->close(heap, boot);
	result = ep_boot_agree(boot, result, heap_opening);
	if (result != ncclSuccess && !boot->stuck) {
		(void)ep_boot_agree(boot, ncclSuccess, heap_closing);
	}
	return result;
}

ncclResult_t ep_heap_admit(struct ep_heap *heap, struct ep_boot *boot,
			   const struct ep_ident *idents, const bool *newcomers, ncclResult_t mine,
			   struct ep_heap *late)
{
	struct ep_heap_export *all = calloc((size_t)heap->nranks, sizeof(*all)), e = { 0 };
	struct ep_heap here = *heap; /* with the tables of `heap` */
	ncclResult_t result;

	if (!all && mine == ncclSuccess) {
		mine = ep_fail(ncclSystemError, "out of host memory");
	}
	e.stamp = heap->entry->stamp;
	e.verdict = ep_verdict_make(mine);
	result = ep_boot_verdicts(boot, &e, all, sizeof(e), heap_opening);
	if (result == ncclSuccess) {
		result = heap_map_newcomers(&here, boot, idents, newcomers, all);
	}
	ep_window_hand_over(&here, late);
	for (int r = 0; r < heap->nranks && result == ncclSuccess; r++) {
		if (newcomers[r]) {
			ep_heap_entry_admit(heap->entry, r, &idents[r]);
		}
	}
	free(all);
	return result;
}
