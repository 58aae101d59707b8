/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory that only this rank's kernels use: the caller's allocator, and a pool of what
 * destroyed handles had.
 */
#include <stdlib.h>
#include "ep/ep.h"

/* Memory of a destroyed handle. */
struct ep_pool_block {
	struct ep_pool_block *next;
	void *ptr;
	uint64_t bytes;
};

#define EP_ALLOC_ALIGN 16u /* of what kernels store as a whole */

/* What a function of the caller's may change: it makes calls of its own, and selects devices. */
struct alloc_call {
	struct ep_error_slot *scope;
	int device; /* -1: none is known */
};

static struct alloc_call alloc_call_begin(void)
{
	struct alloc_call call = { .scope = ep_error_scope(NULL) };

	if (cudaGetDevice(&call.device) != cudaSuccess) {
		(void)cudaGetLastError();
		call.device = -1;
	}
	return call;
}

static void alloc_call_end(const struct alloc_call *call)
{
	int now = call->device;

	if (call->device >= 0 && (cudaGetDevice(&now) != cudaSuccess || now != call->device) &&
	    cudaSetDevice(call->device) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	ep_error_scope(call->scope);
}

static void alloc_undo(const ncclEpAllocConfig_t *alloc, void *ptr)
{
	struct alloc_call call = alloc_call_begin();

	if ((alloc->free_fn ? alloc->free_fn(ptr, alloc->context) : cudaFree(ptr)) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	alloc_call_end(&call);
}

ncclResult_t ep_alloc(const ncclEpAllocConfig_t *alloc, void **ptr, uint64_t bytes,
		      const char *what)
{
	struct alloc_call call = alloc_call_begin();
	cudaError_t err;

	*ptr = NULL;
	err = alloc->alloc_fn ? alloc->alloc_fn(ptr, bytes, alloc->context)
			      : cudaMalloc(ptr, bytes);
	alloc_call_end(&call);
	if (err == cudaSuccess && *ptr && (uintptr_t)*ptr % EP_ALLOC_ALIGN) {
		void *odd = *ptr;

		*ptr = NULL;
		alloc_undo(alloc, odd);
		return ep_fail(ncclInvalidArgument,
			       "%s: alloc_fn returned %p: it must be aligned to %u bytes", what,
			       odd, EP_ALLOC_ALIGN);
	}
	if (err == cudaSuccess && *ptr) {
		return ncclSuccess;
	}
	(void)cudaGetLastError();
	return ep_fail(ncclUnhandledCudaError, "%s: %s of %llu bytes of device memory failed: %s",
		       what, alloc->alloc_fn ? "alloc_fn" : "cudaMalloc", (unsigned long long)bytes,
		       err == cudaSuccess ? "it returned NULL" : cudaGetErrorString(err));
}

void ep_free(const struct ncclEpGroup *group, void *ptr)
{
	if (ptr && !group->reset) {
		alloc_undo(&group->config.alloc, ptr);
	}
}

ncclResult_t ep_pool_get(struct ncclEpGroup *group, void **ptr, uint64_t bytes)
{
	struct ep_pool_block **link, *block;

	for (link = &group->pool; (block = *link); link = &block->next) {
		if (block->bytes == bytes) {
			*link = block->next;
			*ptr = block->ptr;
			free(block);
			return ncclSuccess;
		}
	}
	return ep_alloc(&group->config.alloc, ptr, bytes, "handle memory");
}

/*
 * No synchronisation: kernels that use the block may still be queued. The next kernel that uses it
 * belongs to a later operation of the group, and the caller orders those (nccl_ep.h).
 */
void ep_pool_put(struct ncclEpGroup *group, void *ptr, uint64_t bytes)
{
	struct ep_pool_block *block = malloc(sizeof(*block));

	if (!block) {
		ep_free(group, ptr);
		return;
	}
	block->ptr = ptr;
	block->bytes = bytes;
	block->next = group->pool;
	group->pool = block;
}

void ep_pool_drain(struct ncclEpGroup *group)
{
	struct ep_pool_block *block, *next;

	for (block = group->pool; block; block = next) {
		next = block->next;
		ep_free(group, block->ptr);
		free(block);
	}
	group->pool = NULL;
}
