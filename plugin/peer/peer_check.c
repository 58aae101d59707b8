/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the GPUs of a node by CUDA before any memory is mapped. */
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "peer/nvml.h"
#include "peer/peer_check.h"

/* The CUDA ordinal in this process of a peer's GPU; false if this process does not see it. */
static bool ep_peer_ordinal(const struct ep_ident *self, const struct ep_ident *peer, int *device)
{
	if (!ep_ident_same_host(self, peer)) {
		return false; /* a GPU of ours may have the same bus id */
	}
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

static ncclResult_t ep_peer_check_pair(const struct ep_ident *self, int self_rank,
				       const struct ep_ident *peer, int peer_rank)
{
	char hosts[EP_IDENT_HOSTS_TEXT];
	int device, can = 0;

	if (self->mig || peer->mig) {
		return ep_fail(
			ncclInvalidUsage,
			"GPU %s of rank %d%s and GPU %s of rank %d%s cannot map each other's "
			"memory: disable MIG",
			self->bus_id, self_rank, self->mig ? " (a MIG instance)" : "", peer->bus_id,
			peer_rank, peer->mig ? " (a MIG instance)" : "");
	}
	if (!ep_peer_ordinal(self, peer, &device)) {
		return ncclSuccess; /* not seen by this process; opening its memory will show it */
	}
	if (device == self->device) {
		return ncclSuccess;
	}
	EP_CUDA(cudaDeviceCanAccessPeer(&can, self->device, device), "querying peer access");
	if (!can) {
		return ep_fail(ncclInvalidUsage,
			       "GPU %s of rank %d has no peer access to GPU %s of rank %d: %s",
			       self->bus_id, self_rank, peer->bus_id, peer_rank,
			       *ep_ident_hosts_print(self, peer, hosts)
				       ? hosts
				       : "choose GPUs that are connected by NVLink or PCIe "
					 "peer-to-peer");
	}
	return ncclSuccess;
}

ncclResult_t ep_peer_check(const struct ep_ident *idents, int nranks, int rank)
{
	for (int r = 0; r < nranks; r++) {
		if (r != rank && ep_ident_same_node(&idents[rank], &idents[r])) {
			EP_CHECK(ep_peer_check_pair(&idents[rank], rank, &idents[r], r));
		}
	}
	return ncclSuccess;
}

/* Atomics at a peer's memory are native on NVLink and not on PCIe. */
static bool ep_peer_nvlink(int self, int device)
{
	int native = 0;

	if (device == self) {
		return true;
	}
	if (cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported, self, device) !=
	    cudaSuccess) {
		(void)cudaGetLastError();
		return false;
	}
	return native != 0;
}

bool ep_peer_all_nvlink(const struct ep_ident *idents, int nranks, int rank)
{
	const struct ep_ident *self = &idents[rank];
	const char **hidden = calloc((size_t)nranks, sizeof(*hidden));
	bool all = hidden != NULL; /* who cannot ask counts as one who gets no answer */
	int count = 0;

	for (int r = 0; r < nranks && all; r++) {
		int device;

		/* A mapping of GPUs of other hosts is by NVLink. */
		if (r == rank || !ep_ident_same_node(self, &idents[r]) ||
		    !ep_ident_same_host(self, &idents[r]) ||
		    strcmp(self->bus_id, idents[r].bus_id) == 0) {
			continue;
		}
		if (!ep_peer_ordinal(self, &idents[r], &device)) {
			hidden[count++] = idents[r].bus_id;
		} else {
			all = ep_peer_nvlink(self->device, device);
		}
	}
	all = all && ep_peer_nvlink_hidden(hidden, count, self->bus_id);
	free(hidden);
	return all;
}
