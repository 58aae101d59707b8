/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one process: the peer's own pointer, once its GPU may be accessed. */
#include "core/cuda.h"
#include "peer/internal.h"

static ncclResult_t ep_peer_plain_give(struct ep_heap_export *e, void *base)
{
	e->base = base;
	return ncclSuccess;
}

static ncclResult_t ep_peer_plain_map(void **base, const struct ep_heap_export *e,
				      const struct ep_ident *idents, int rank, int peer)
{
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
	*base = e->base;
	return ncclSuccess;
}

static void ep_peer_plain_unmap(void *base)
{
	(void)base;
}

const struct ep_peer_way ep_peer_plain = {
	ep_peer_plain_give,
	ep_peer_plain_map,
	ep_peer_plain_unmap,
};
