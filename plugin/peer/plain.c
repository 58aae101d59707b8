/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one process: the peer's own pointer, once its GPU may be accessed. */
#include "core/cuda.h"
#include "peer/plain.h"

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
