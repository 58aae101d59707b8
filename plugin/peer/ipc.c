/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of one host: CUDA IPC. */
#include "core/cuda.h"
#include "peer/peer.h"

static ncclResult_t ep_peer_ipc_give(struct ep_heap_export *export, void *base)
{
	EP_CUDA(cudaIpcGetMemHandle(&export->ipc, base), "exporting the heap to other processes");
	return ncclSuccess;
}

static ncclResult_t ep_peer_ipc_map(void **base, const struct ep_heap *heap,
				    const struct ep_heap_export *export,
				    const struct ep_ident *idents, int peer)
{
	cudaError_t err = cudaIpcOpenMemHandle(base, export->ipc, cudaIpcMemLazyEnablePeerAccess);

	if (err != cudaSuccess) {
		const char *files = ep_no_files();
		char hosts[EP_IDENT_HOSTS_TEXT];

		(void)cudaGetLastError();
		return ep_fail(
			ncclUnhandledCudaError,
			"GPU %s of rank %d cannot map memory of GPU %s of rank %d: %s; %s",
			idents[heap->rank].bus_id, heap->rank, idents[peer].bus_id, peer,
			cudaGetErrorString(err),
			files ? files
			: *ep_ident_hosts_print(&idents[heap->rank], &idents[peer], hosts)
				? hosts
				: "both processes need the same IPC namespace, and GPUs with "
				  "peer access to each other");
	}
	return ncclSuccess;
}

static void ep_peer_ipc_unmap(void *base, uint64_t bytes)
{
	(void)bytes;
	if (cudaIpcCloseMemHandle(base) != cudaSuccess) {
		(void)cudaGetLastError();
	}
}

const struct ep_peer_mapping ep_peer_ipc = {
	.name = "CUDA IPC",
	.alloc = ep_peer_plain_alloc,
	.free = ep_peer_plain_free,
	.give = ep_peer_ipc_give,
	.map = ep_peer_ipc_map,
	.unmap = ep_peer_ipc_unmap,
};
