/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "peer/heap.h"
#include "peer/internal.h"

struct ep_symm_export {
	struct ep_verdict verdict;
	struct ep_symm_stamp stamp;
	void *base;
	cudaIpcMemHandle_t ipc;
};

_Static_assert(sizeof(struct ep_symm_export) <= EP_BOOT_BYTES, "ep_symm_export");

/* The CUDA ordinal in this process of a peer's GPU; false if this process does not see it. */
static bool ep_symm_ordinal(const struct ep_ident *self, const struct ep_ident *peer, int *device)
{
	*device = peer->device;
	if (ep_ident_same_process(self, peer)) {
		return true;
	}
	if (cudaDeviceGetByPCIBusId(device, peer->bus_id) != cudaSuccess) {
		(void)cudaGetLastError();
		return false;
	}
	return true;
}

static ncclResult_t ep_symm_check_pair(const struct ep_ident *self, int self_rank,
				       const struct ep_ident *peer, int peer_rank)
{
	int device, can = 0;

	if (!ep_ident_same_host(self, peer)) {
		return ep_fail(ncclInvalidUsage,
			       "ranks %d (host %s) and %d (host %s) are on different hosts, but "
			       "NCCL_EP_NODE_SIZE makes them one node: unset it",
			       self_rank, self->hostname, peer_rank, peer->hostname);
	}
	if (self->mig || peer->mig) {
		return ep_fail(
			ncclInvalidUsage,
			"GPU %s of rank %d%s and GPU %s of rank %d%s cannot map each other's "
			"memory: disable MIG",
			self->bus_id, self_rank, self->mig ? " (a MIG instance)" : "", peer->bus_id,
			peer_rank, peer->mig ? " (a MIG instance)" : "");
	}
	if (!ep_symm_ordinal(self, peer, &device)) {
		return ncclSuccess; /* hidden from this process; opening its memory will tell */
	}
	if (device == self->device) {
		return ncclSuccess;
	}
	EP_CUDA(cudaDeviceCanAccessPeer(&can, self->device, device), "querying peer access");
	if (!can) {
		return ep_fail(ncclInvalidUsage,
			       "GPU %s of rank %d has no peer access to GPU %s of rank %d: choose "
			       "GPUs that are connected by NVLink or PCIe peer-to-peer",
			       self->bus_id, self_rank, peer->bus_id, peer_rank);
	}
	return ncclSuccess;
}

ncclResult_t ep_symm_check_peers(const struct ep_ident *idents, int nranks, int rank)
{
	for (int r = 0; r < nranks; r++) {
		if (r != rank && ep_ident_same_node(&idents[rank], &idents[r])) {
			EP_CHECK(ep_symm_check_pair(&idents[rank], rank, &idents[r], r));
		}
	}
	return ncclSuccess;
}

/* Atomics at a peer's memory are native on NVLink and not on PCIe. */
bool ep_symm_all_nvlink(const struct ep_ident *idents, int nranks, int rank)
{
	const struct ep_ident *self = &idents[rank];

	for (int r = 0; r < nranks; r++) {
		int device, native = 0;

		if (r == rank || !ep_ident_same_node(self, &idents[r])) {
			continue;
		}
		if (!ep_symm_ordinal(self, &idents[r], &device)) {
			return false;
		}
		if (device == self->device) {
			continue;
		}
		if (cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported,
					      self->device, device) != cudaSuccess) {
			(void)cudaGetLastError();
			return false;
		}
		if (!native) {
			return false;
		}
	}
	return true;
}

/* Our own memory, zeroed, with the stamp that peers check after mapping it. */
static ncclResult_t ep_symm_alloc(struct ep_symm *symm, struct ep_symm_stamp *stamp,
				  cudaStream_t stream)
{
	void *base = NULL;
	cudaError_t err = cudaMalloc(&base, symm->bytes);
	ncclResult_t result;

	if (err != cudaSuccess) {
		(void)cudaGetLastError();
		return ep_fail(
			ncclUnhandledCudaError,
			"rank %d cannot allocate %llu bytes of device memory that peers "
			"write to: %s; lower max_dispatch_tokens_per_rank or max_token_bytes",
			symm->rank, (unsigned long long)symm->bytes, cudaGetErrorString(err));
	}
	stamp->magic = EP_SYMM_STAMP;
	stamp->team = symm->team;
	stamp->nonce = ep_random_u64();
	stamp->rank = (uint64_t)symm->rank;
	EP_CUDA_GOTO(cudaMemsetAsync(base, 0, symm->bytes, stream), "zeroing the heap", err_free);
	EP_CUDA_GOTO(cudaMemcpyAsync(base, stamp, sizeof(*stamp), cudaMemcpyHostToDevice, stream),
		     "marking the heap", err_free);
	EP_CUDA_GOTO(cudaStreamSynchronize(stream), "zeroing the heap", err_free);
	symm->base[symm->rank] = base;
	return ncclSuccess;

err_free:
	cudaFree(base);
	return result;
}

static ncclResult_t ep_symm_map_ipc(struct ep_symm *symm, const struct ep_ident *idents, int peer,
				    const cudaIpcMemHandle_t *handle)
{
	void *base = NULL;
	cudaError_t err = cudaIpcOpenMemHandle(&base, *handle, cudaIpcMemLazyEnablePeerAccess);

	if (err != cudaSuccess) {
		(void)cudaGetLastError();
		return ep_fail(ncclUnhandledCudaError,
			       "GPU %s of rank %d cannot map memory of GPU %s of rank %d: %s; both "
			       "processes need the same IPC namespace and to see both GPUs "
			       "(CUDA_VISIBLE_DEVICES)",
			       idents[symm->rank].bus_id, symm->rank, idents[peer].bus_id, peer,
			       cudaGetErrorString(err));
	}
	symm->base[peer] = base;
	symm->ipc[peer] = true;
	return ncclSuccess;
}

static ncclResult_t ep_symm_map_local(struct ep_symm *symm, const struct ep_ident *idents, int peer,
				      void *base)
{
	if (idents[peer].device != symm->device) {
		cudaError_t err = cudaDeviceEnablePeerAccess(idents[peer].device, 0);

		if (err != cudaSuccess) {
			(void)cudaGetLastError();
		}
		if (err != cudaSuccess && err != cudaErrorPeerAccessAlreadyEnabled) {
			return ep_fail(ncclUnhandledCudaError,
				       "GPU %s of rank %d cannot enable access to GPU %s of rank "
				       "%d: %s",
				       idents[symm->rank].bus_id, symm->rank, idents[peer].bus_id,
				       peer, cudaGetErrorString(err));
		}
	}
	symm->base[peer] = base;
	return ncclSuccess;
}

static ncclResult_t ep_symm_map(struct ep_symm *symm, const struct ep_ident *idents, int peer,
				const struct ep_symm_export *e, cudaStream_t stream)
{
	struct ep_symm_stamp seen;

	if (ep_ident_same_process(&idents[symm->rank], &idents[peer])) {
		EP_CHECK(ep_symm_map_local(symm, idents, peer, e->base));
	} else {
		EP_CHECK(ep_symm_map_ipc(symm, idents, peer, &e->ipc));
	}
	EP_CUDA(cudaMemcpyAsync(&seen, symm->base[peer], sizeof(seen), cudaMemcpyDefault, stream),
		"reading a peer's heap");
	EP_CUDA(cudaStreamSynchronize(stream), "reading a peer's heap");
	if (memcmp(&seen, &e->stamp, sizeof(seen)) != 0) {
		return ep_fail(ncclInternalError,
			       "rank %d mapped the memory of rank %d (GPU %s), but finds other "
			       "contents there",
			       symm->rank, peer, idents[peer].bus_id);
	}
	return ncclSuccess;
}

void ep_symm_unmap(struct ep_symm *symm)
{
	for (int r = 0; r < symm->nranks; r++) {
		if (symm->ipc[r] && cudaIpcCloseMemHandle(symm->base[r]) != cudaSuccess) {
			(void)cudaGetLastError();
		}
		symm->ipc[r] = false;
		if (r != symm->rank) {
			symm->base[r] = NULL;
		}
	}
}

static void ep_symm_free(struct ep_symm *symm)
{
	if (symm->base[symm->rank] && cudaFree(symm->base[symm->rank]) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	symm->base[symm->rank] = NULL;
}

/* Allocation and export; what comes out goes to the peers even if it is a failure. */
static ncclResult_t ep_symm_export_make(struct ep_symm *symm, struct ep_boot *boot,
					const struct ep_ident *idents, ncclResult_t mine,
					struct ep_symm_export *e)
{
	bool need_ipc = false;

	memset(e, 0, sizeof(*e));
	for (int r = 0; r < symm->nranks; r++) {
		need_ipc |= ep_ident_same_node(&idents[symm->rank], &idents[r]) &&
			    !ep_ident_same_process(&idents[symm->rank], &idents[r]);
	}
	if (mine == ncclSuccess) {
		mine = ep_symm_alloc(symm, &e->stamp, boot->stream);
	}
	if (mine == ncclSuccess && need_ipc) {
		cudaError_t err = cudaIpcGetMemHandle(&e->ipc, symm->base[symm->rank]);

		if (err != cudaSuccess) {
			mine = ep_fail_cuda(err, "exporting the heap to other processes");
		}
	}
	e->base = symm->base[symm->rank];
	e->verdict = ep_verdict_make(mine);
	return mine;
}

ncclResult_t ep_symm_open(struct ep_symm *symm, struct ep_boot *boot, const struct ep_ident *idents,
			  uint64_t team, uint64_t bytes, ncclResult_t mine)
{
	static const char what[] = "allocating and mapping the group's memory";
	struct ep_symm_export e, *all;
	ncclResult_t result;

	memset(symm, 0, sizeof(*symm));
	symm->rank = boot->rank;
	symm->nranks = boot->nranks;
	symm->device = idents[boot->rank].device;
	symm->team = team;
	symm->bytes = ep_symm_bytes(bytes);
	all = calloc((size_t)symm->nranks, sizeof(*all));
	if (!all && mine == ncclSuccess) {
		mine = ep_fail(ncclSystemError, "%s: out of host memory", what);
	}
	mine = ep_symm_export_make(symm, boot, idents, mine, &e);
	if (!all) {
		/* Peers learn it from the missing exchange; there is nowhere to put theirs. */
		result = mine;
		goto err_free_heap;
	}
	EP_CHECK_GOTO(ep_boot_allgather(boot, &e, all, sizeof(e), what), err_free_heap);
	EP_CHECK_GOTO(ep_verdict_check(boot, all, sizeof(e), what), err_free_heap);
	for (int r = 0; r < symm->nranks && mine == ncclSuccess; r++) {
		if (r != symm->rank && ep_ident_same_node(&idents[symm->rank], &idents[r])) {
			mine = ep_symm_map(symm, idents, r, &all[r], boot->stream);
		}
	}
	result = ep_boot_agree(boot, mine, what);
	if (result != ncclSuccess && !boot->stuck) {
		/* The owner frees only after everybody has unmapped. */
		ep_symm_unmap(symm);
		(void)ep_boot_agree(boot, ncclSuccess, what);
	}
	if (result != ncclSuccess) {
		goto err_free_heap;
	}
	free(all);
	EP_INFO(EP_LOG_ALLOC, "rank %d: %llu bytes of device memory that peers write", symm->rank,
		(unsigned long long)symm->bytes);
	return ncclSuccess;

err_free_heap:
	free(all);
	if (boot->stuck) {
		/* Freeing waits for the device, where the collective waits for a rank. */
		EP_WARN("rank %d: %llu bytes of device memory stay allocated", symm->rank,
			(unsigned long long)symm->bytes);
		return result;
	}
	ep_symm_unmap(symm);
	ep_symm_free(symm);
	return result;
}

void ep_symm_close(struct ep_symm *symm, struct ep_boot *boot)
{
	ep_symm_unmap(symm);
	/* If the barrier fails a peer may still have our memory mapped: keep it. */
	if (ep_boot_agree(boot, ncclSuccess, "replacing the group's memory") == ncclSuccess) {
		ep_symm_free(symm);
	}
}
