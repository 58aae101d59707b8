/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings of peers' memory: what GPUs of a node can do, two of the mappings, and the choice of one
 * for all ranks.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/nccl_dyn.h"
#include "core/bootstrap.h"
#include "peer/state.h"

struct nvml_device;

enum {
	NVML_P2P_NVLINK = 2,
	NVML_P2P_ATOMICS = 3,
};

struct nvml {
	int (*init)(void);
	int (*shutdown)(void);
	int (*by_bus_id)(const char *bus_id, struct nvml_device **device);
	int (*p2p)(struct nvml_device *a, struct nvml_device *b, int capability, int *status);
};

/* Returns whether NVLink joins two GPUs. (In NVML 0 is success, and means that there is some.) */
static bool nvml_nvlink(const struct nvml *nvml, const char *a, const char *b)
{
	int nvlink = -1, atomics = -1;
	struct nvml_device *gpu[2];

	if (nvml->by_bus_id(a, &gpu[0]) || nvml->by_bus_id(b, &gpu[1])) {
		EP_INFO(EP_LOG_INIT, "NVML does not know GPU %s or %s", a, b);
		return false;
	}
	if (nvml->p2p(gpu[0], gpu[1], NVML_P2P_NVLINK, &nvlink) ||
	    nvml->p2p(gpu[0], gpu[1], NVML_P2P_ATOMICS, &atomics)) {
		EP_INFO(EP_LOG_INIT, "NVML does not report how GPUs %s and %s are joined", a, b);
		return false;
	}
	EP_INFO(EP_LOG_INIT, "NVML on GPUs %s and %s: NVLink status %d, atomics %d", a, b, nvlink,
		atomics);
	return nvlink == 0 && atomics == 0;
}

/* Fills the table of calls and begins to use NVML. Returns false on failure. */
static bool nvml_load(struct nvml *nvml, void *lib)
{
	*(void **)&nvml->init = dlsym(lib, "nvmlInit_v2");
	*(void **)&nvml->shutdown = dlsym(lib, "nvmlShutdown");
	*(void **)&nvml->by_bus_id = dlsym(lib, "nvmlDeviceGetHandleByPciBusId_v2");
	*(void **)&nvml->p2p = dlsym(lib, "nvmlDeviceGetP2PStatus");
	return nvml->init && nvml->shutdown && nvml->by_bus_id && nvml->p2p && nvml->init() == 0;
}

/*
 * Returns whether NVLink joins GPU `self` and each of `count` others of this host that CUDA hides
 * from this process; false, too, where NVML cannot answer.
 */
static bool nvlink_hidden(const char *const *bus_ids, int count, const char *self)
{
	void *lib = count ? dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
	bool all = count == 0;
	struct nvml nvml;

	if (lib && nvml_load(&nvml, lib)) {
		all = true;
		for (int i = 0; i < count && all; i++) {
			all = nvml_nvlink(&nvml, self, bus_ids[i]);
		}
		nvml.shutdown();
	} else if (count) {
		EP_INFO(EP_LOG_INIT,
			"%d GPUs of this node are hidden from this process, and only NVML "
			"(libnvidia-ml.so.1), which is missing, shows whether NVLink joins them",
			count);
	}
	if (lib) {
		dlclose(lib);
	}
	return all;
}

/* ---- checks the GPUs of a node by CUDA before any memory is mapped ---- */

/*
 * Writes the CUDA ordinal of a peer's GPU in this process. Returns false if this process does not
 * see it.
 */
static bool ordinal(const struct ep_ident *self, const struct ep_ident *peer, int *device)
{
	if (!ep_ident_same_host(self, peer)) {
		return false; /* a GPU of this host may have the same bus id */
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

/* What users of such GPUs can do. */
#define EP_PEER_OTHER_WAYS "NCCL_EP_MEMORY=host (slow) or, with NICs, NCCL_EP_NODE_SIZE=1"

/* Returns an error if the GPUs of two ranks cannot map each other's memory. */
static ncclResult_t check_pair(const struct ep_ident *self, int self_rank,
			       const struct ep_ident *peer, int peer_rank)
{
	char hosts[EP_IDENT_HOSTS_TEXT];
	int device, can = 0;

	if (self->mig || peer->mig) {
		return ep_fail(
			ncclInvalidUsage,
			"GPU %s of rank %d%s and GPU %s of rank %d%s cannot map each other's "
			"memory: disable MIG, or set " EP_PEER_OTHER_WAYS,
			self->bus_id, self_rank, self->mig ? " (a MIG instance)" : "", peer->bus_id,
			peer_rank, peer->mig ? " (a MIG instance)" : "");
	}
	if (!ordinal(self, peer, &device)) {
		/* This process does not see it; opening its memory will show it. */
		return ncclSuccess;
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
				       : "choose GPUs that NVLink or PCIe peer-to-peer joins, or "
					 "set " EP_PEER_OTHER_WAYS);
	}
	return ncclSuccess;
}

ncclResult_t ep_peer_check(const struct ep_peer_mapping *mapping, const struct ep_ident *idents,
			   int nranks, int rank)
{
	for (int r = 0; r < nranks && !mapping->in_host; r++) {
		if (r != rank && ep_ident_same_node(&idents[rank], &idents[r])) {
			EP_CHECK(check_pair(&idents[rank], rank, &idents[r], r));
		}
	}
	return ncclSuccess;
}

/*
 * Returns whether NVLink joins two GPUs: atomics at a peer's memory are native on NVLink, not on
 * PCIe.
 */
static bool peer_nvlink(int self, int device)
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

bool ep_peer_all_nvlink(const struct ep_peer_mapping *mapping, const struct ep_ident *idents,
			int nranks, int rank)
{
	const struct ep_ident *self = &idents[rank];
	const char **hidden = calloc((size_t)nranks, sizeof(*hidden));
	bool all = hidden && !mapping->in_host; /* without memory there is no answer */
	int count = 0;

	for (int r = 0; r < nranks && all; r++) {
		int device;

		/* NVLink joins GPUs of other hosts, or there is no mapping. */
		if (r == rank || !ep_ident_same_node(self, &idents[r]) ||
		    !ep_ident_same_host(self, &idents[r]) ||
		    strcmp(self->bus_id, idents[r].bus_id) == 0) {
			continue;
		}
		if (!ordinal(self, &idents[r], &device)) {
			hidden[count++] = idents[r].bus_id;
		} else {
			all = peer_nvlink(self->device, device);
		}
	}
	all = all && nvlink_hidden(hidden, count, self->bus_id);
	free(hidden);
	return all;
}

/* ---- ranks of one process: the peer's own pointer, once its GPU may be accessed ---- */

static bool plain_alloc(void **base, uint64_t bytes, struct ep_reason *why)
{
	cudaError_t err = cudaMalloc(base, bytes);

	if (err != cudaSuccess) {
		(void)cudaGetLastError();
		return ep_reason_set(why, "%s", cudaGetErrorString(err));
	}
	return true;
}

static void plain_free(void *base)
{
	if (cudaFree(base) != cudaSuccess) {
		(void)cudaGetLastError();
	}
}

static ncclResult_t plain_give(struct ep_heap_export *export, void *base)
{
	export->base = base;
	return ncclSuccess;
}

static ncclResult_t plain_map(void **base, const struct ep_heap *heap,
			      const struct ep_heap_export *export, const struct ep_ident *idents,
			      int peer)
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

static void plain_unmap(void *base, uint64_t bytes)
{
	(void)base;
	(void)bytes;
}

const struct ep_peer_mapping ep_peer_plain = {
	.name = "plain pointers",
	.alloc = plain_alloc,
	.free = plain_free,
	.give = plain_give,
	.map = plain_map,
	.unmap = plain_unmap,
};

/* ---- processes of one host: CUDA IPC ---- */

static ncclResult_t ipc_give(struct ep_heap_export *export, void *base)
{
	EP_CUDA(cudaIpcGetMemHandle(&export->ipc, base), "exporting the heap to other processes");
	return ncclSuccess;
}

static ncclResult_t ipc_map(void **base, const struct ep_heap *heap,
			    const struct ep_heap_export *export, const struct ep_ident *idents,
			    int peer)
{
	cudaError_t err = cudaIpcOpenMemHandle(base, export->ipc, cudaIpcMemLazyEnablePeerAccess);

	if (err != cudaSuccess) {
		const char *files = ep_no_files();
		char hosts[EP_IDENT_HOSTS_TEXT];

		(void)cudaGetLastError();
		return ep_fail(ncclUnhandledCudaError,
			       "GPU %s of rank %d cannot map memory of GPU %s of rank %d: %s; %s",
			       idents[heap->rank].bus_id, heap->rank, idents[peer].bus_id, peer,
			       cudaGetErrorString(err),
			       files ? files
			       : *ep_ident_hosts_print(&idents[heap->rank], &idents[peer], hosts)
				       ? hosts
				       : "they need one IPC namespace and peer access, or "
					 "set " EP_PEER_OTHER_WAYS);
	}
	return ncclSuccess;
}

static void ipc_unmap(void *base, uint64_t bytes)
{
	(void)bytes;
	if (cudaIpcCloseMemHandle(base) != cudaSuccess) {
		(void)cudaGetLastError();
	}
}

static const struct ep_peer_mapping peer_ipc = {
	.name = "CUDA IPC",
	.alloc = plain_alloc,
	.free = plain_free,
	.give = ipc_give,
	.map = ipc_map,
	.unmap = ipc_unmap,
};

/* ---- the choice of a mapping for all ---- */

#define EP_WINDOW_VERSION 22902 /* of NCCL, the first with pointers to peers' windows */

/* Bits of an offer, in the order of preference where several make the same nodes. */
enum mapping_kind {
	EP_KIND_PLAIN, /* no rank of a node is in another process */
	EP_KIND_WINDOW,
	EP_KIND_IPC,
	/* all offer it to a rank whose user asks for it, and which offers nothing else */
	EP_KIND_HOST,
	EP_KINDS
};

static const struct ep_peer_mapping *const peer_mappings[EP_KINDS] = {
	[EP_KIND_PLAIN] = &ep_peer_plain,
	[EP_KIND_WINDOW] = &ep_peer_window,
	[EP_KIND_IPC] = &peer_ipc,
	[EP_KIND_HOST] = &ep_peer_host,
};

/* ---- what this rank can do ---- */

/*
 * The head of ncclCommProperties_t, which newer releases extend. NCCL uses the layout of the
 * release that `version` names.
 */
struct nccl_properties {
	size_t size;
	unsigned int magic;
	unsigned int version;
	int rank, nranks, device, nvml_device;
	bool windows;   /* deviceApiSupport */
	bool multicast; /* multimemSupport */
	char more[472];
};

_Static_assert(sizeof(struct nccl_properties) == 512, "room for later releases");

/* Returns whether NCCL can map peers' memory by windows; otherwise the offer has the reason. */
static bool window_possible(ncclComm_t comm, struct ep_peer_offer *offer, bool *multicast)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();
	struct nccl_properties p = { .size = sizeof(p), .magic = 0xcafebeef };
	struct ep_nccl_team team;
	struct ep_reason why;
	ncclResult_t result;
	int version = 0;

	(void)ep_nccl_version(&version);
	p.version = (unsigned int)version;
	if (!nccl->get_peer_device_pointer || !nccl->comm_query_properties || !nccl->team_lsa ||
	    !nccl->window_register || !nccl->window_deregister || !nccl->mem_alloc ||
	    !nccl->mem_free) {
		snprintf(offer->no_window, sizeof(offer->no_window),
			 "NCCL %d.%d.%d has no pointers to peers' windows, %d.%d.%d has",
			 version / 10000, version / 100 % 100, version % 100,
			 EP_WINDOW_VERSION / 10000, EP_WINDOW_VERSION / 100 % 100,
			 EP_WINDOW_VERSION % 100);
		return false;
	}
	result = nccl->comm_query_properties(comm, (void *)&p);
	if (result != ncclSuccess || !p.windows) {
		snprintf(offer->no_window, sizeof(offer->no_window),
			 "NCCL makes no windows of this communicator%s%s (NCCL_CUMEM_ENABLE=0? "
			 "NCCL_WIN_ENABLE=0? GPUs without peer access?)",
			 result != ncclSuccess ? ": " : "",
			 result != ncclSuccess ? ep_nccl_text(result) : "");
		return false;
	}
	team = nccl->team_lsa(comm);
	if (team.nranks < 1 || team.rank < 0 || team.stride != 1 || team.rank > p.rank) {
		snprintf(offer->no_window, sizeof(offer->no_window),
			 "NCCL does not report the LSA team of this rank");
		return false;
	}
	if (!ep_vmm_driver(&why)) {
		snprintf(offer->no_window, sizeof(offer->no_window), "%.140s", why.text);
		return false;
	}
	offer->first = (uint32_t)(p.rank - team.rank);
	*multicast = p.multicast;
	return true;
}

/* Returns how its user has forced a rank's mapping. */
static const char *memory_forced(uint32_t memory)
{
	return memory == EP_MEMORY_WINDOW ? "NCCL_EP_MEMORY=window"
	       : memory == EP_MEMORY_IPC  ? "NCCL_EP_MEMORY=ipc"
					  : "NCCL_EP_MEMORY=host";
}

void ep_peer_offer_make(struct ep_peer_offer *offer, ncclComm_t comm, enum ep_memory memory,
			bool nvls)
{
	struct ep_reason why;
	bool multicast = false;

	memset(offer, 0, sizeof(*offer));
	offer->memory = memory;
	if (memory == EP_MEMORY_IPC || memory == EP_MEMORY_HOST) {
		snprintf(offer->no_window, sizeof(offer->no_window), "%s", memory_forced(memory));
	} else if (window_possible(comm, offer, &multicast)) {
		offer->mappings |= 1u << EP_KIND_WINDOW;
	}
	if (memory == EP_MEMORY_AUTO || memory == EP_MEMORY_IPC) {
		offer->mappings |= 1u << EP_KIND_IPC;
	}
	if (memory == EP_MEMORY_AUTO) {
		offer->mappings |= 1u << EP_KIND_PLAIN;
	}
	if (memory == EP_MEMORY_AUTO || memory == EP_MEMORY_HOST) {
		offer->mappings |= 1u << EP_KIND_HOST;
	}
	offer->multicast =
		ep_multicast_possible(nvls, offer->mappings >> EP_KIND_WINDOW & 1, multicast, &why);
	if (!offer->multicast) {
		snprintf(offer->no_multicast, sizeof(offer->no_multicast), "%.59s", why.text);
	}
}

/* ---- what all can do ---- */

struct offers {
	struct ep_ident *idents;
	const unsigned char *offers;
	size_t stride;
	const struct ep_param_list *sizes;
	int nranks;
};

static struct ep_peer_offer offers_get(const struct offers *offers, int rank)
{
	struct ep_peer_offer offer;

	memcpy(&offer, offers->offers + (size_t)rank * offers->stride, sizeof(offer));
	offer.no_window[sizeof(offer.no_window) - 1] = '\0';
	return offer;
}

/* Returns whether all ranks offer the mapping; if not, *why names one that does not. */
static bool mapping_offered(const struct offers *offers, enum mapping_kind kind,
			    struct ep_reason *why)
{
	for (int r = 0; r < offers->nranks; r++) {
		struct ep_peer_offer offer = offers_get(offers, r);

		if (!(offer.mappings >> kind & 1)) {
			return ep_reason_set(why, "rank %d (host %.64s): %s", r,
					     offers->idents[r].hostname,
					     kind == EP_KIND_WINDOW ? offer.no_window
								    : memory_forced(offer.memory));
		}
	}
	return true;
}

/*
 * Returns whether rank `r` can map the memory of rank `first` of its node by this mapping; if not,
 * *why.
 */
static bool mapping_reaches(const struct offers *offers, enum mapping_kind kind, int first, int r,
			    struct ep_reason *why)
{
	const struct ep_ident *a = &offers->idents[first], *b = &offers->idents[r];

	switch (kind) {
	case EP_KIND_WINDOW:
		return a->domain == b->domain ||
		       ep_reason_set(why,
				     "ranks %d (host %.64s) and %d (host %.64s) are in different "
				     "LSA teams of NCCL, but %s makes them one node",
				     first, a->hostname, r, b->hostname,
				     offers->sizes->count ? "NCCL_EP_NODE_SIZE" : "their host");
	case EP_KIND_IPC:
	case EP_KIND_HOST:
		return ep_ident_same_host(a, b) ||
		       ep_reason_set(why,
				     "ranks %d (host %.64s) and %d (host %.64s) are on different "
				     "hosts, but NCCL_EP_NODE_SIZE makes them one node: unset it",
				     first, a->hostname, r, b->hostname);
	default:
		return ep_ident_same_process(a, b);
	}
}

/* Returns whether a rank asks for host memory. */
static bool host_asked(const struct offers *offers)
{
	for (int r = 0; r < offers->nranks; r++) {
		if (offers_get(offers, r).memory == EP_MEMORY_HOST) {
			return true;
		}
	}
	return false;
}

/*
 * Returns whether the mapping serves all ranks. Then idents have the nodes, of which there are
 * *nodes.
 */
static bool mapping_fits(const struct offers *offers, enum mapping_kind kind, uint32_t *nodes,
			 struct ep_reason *why)
{
	why->text[0] = '\0';
	if (!mapping_offered(offers, kind, why) || (kind == EP_KIND_HOST && !host_asked(offers))) {
		return false;
	}
	for (int r = 0; r < offers->nranks; r++) {
		int same = 0;

		while (!ep_ident_same_host(&offers->idents[same], &offers->idents[r])) {
			same++;
		}
		offers->idents[r].domain = kind == EP_KIND_WINDOW ? offers_get(offers, r).first
								  : (uint32_t)same;
		if (kind == EP_KIND_WINDOW && !offers->sizes->count &&
		    !mapping_reaches(offers, kind, same, r, why)) {
			return false;
		}
	}
	if (ep_nodes_assign(offers->idents, offers->sizes, offers->nranks) != ncclSuccess) {
		return false;
	}
	*nodes = 0;
	for (int r = 0; r < offers->nranks; r++) {
		int first = 0;

		while (!ep_ident_same_node(&offers->idents[first], &offers->idents[r])) {
			first++;
		}
		*nodes += first == r;
		if (!mapping_reaches(offers, kind, first, r, why)) {
			return false;
		}
	}
	return kind != EP_KIND_HOST || *nodes == 1 ||
	       ep_reason_set(why, "it serves one node, and these ranks are %u nodes", *nodes);
}

/*
 * Returns whether all ranks offer multicast and each node is an LSA team, which one address of NCCL
 * reaches.
 */
static bool multicast_fits(const struct offers *offers, const struct ep_peer_mapping *mapping,
			   struct ep_reason *why)
{
	for (int r = 0; r < offers->nranks; r++) {
		struct ep_peer_offer offer = offers_get(offers, r);

		if (!offer.multicast) {
			return ep_reason_set(why, "rank %d: %.59s", r, offer.no_multicast);
		}
	}
	if (mapping != &ep_peer_window) {
		return ep_reason_set(why, "memory by %s: NCCL_EP_MEMORY=window", mapping->name);
	}
	for (int r = 1; r < offers->nranks; r++) {
		const struct ep_ident *a = &offers->idents[r - 1], *b = &offers->idents[r];

		/* (a team is a run of ranks) */
		if (a->domain == b->domain && !ep_ident_same_node(a, b)) {
			return ep_reason_set(why, "ranks %d and %d of one LSA team are two nodes",
					     r - 1, r);
		}
	}
	return true;
}

/* Returns the error of ranks that no mapping serves. */
static ncclResult_t choose_fail(const struct offers *offers, const struct ep_reason *why)
{
	static const char *const ways[EP_KINDS] = {
		[EP_KIND_WINDOW] = "NCCL windows (NCCL_EP_MEMORY=window)",
		[EP_KIND_IPC] = "CUDA IPC (NCCL_EP_MEMORY=ipc)",
		[EP_KIND_HOST] = "host memory (NCCL_EP_MEMORY=host)",
	};
	char text[EP_ERROR_TEXT] = "";
	uint32_t any = 0;

	for (int r = 0; r < offers->nranks; r++) {
		any |= offers_get(offers, r).mappings;
	}
	/* A mapping that no rank wants gets no words. */
	any &= ~(host_asked(offers) ? 0 : 1u << EP_KIND_HOST);
	any |= any >> EP_KIND_IPC ? 0 : 1u << EP_KIND_WINDOW;
	for (int kind = EP_KIND_WINDOW; kind < EP_KINDS; kind++) {
		size_t at = strlen(text);

		if (any >> kind & 1 && why[kind].text[0]) {
			snprintf(text + at, sizeof(text) - at, "%s by %s, %.200s", at ? ";" : "",
				 ways[kind], why[kind].text);
		}
	}
	return ep_fail(ncclInvalidUsage,
		       "the ranks of a node cannot map each other's memory in one way:%s", text);
}

ncclResult_t ep_peer_choose(struct ep_peer_choice *choice, struct ep_ident *idents,
			    const void *offers, size_t stride, const struct ep_param_list *sizes,
			    int nranks)
{
	struct offers m = { idents, offers, stride, sizes, nranks };
	struct ep_reason why[EP_KINDS], unused;
	uint32_t least = UINT32_MAX, nodes;
	enum mapping_kind best = EP_KINDS;

	if (sizes->count > 1) {
		EP_CHECK(ep_nodes_assign(idents, sizes, nranks)); /* the list may be too long */
	}
	memset(choice, 0, sizeof(*choice));
	for (int kind = 0; kind < EP_KINDS; kind++) {
		if (!mapping_fits(&m, kind, &nodes, &why[kind])) {
			continue;
		}
		if (nodes < least) {
			best = kind;
			choice->next = NULL;
		} else if (nodes == least && !choice->next) {
			choice->next = peer_mappings[kind];
		}
		least = (uint32_t)ep_min_u64(least, nodes);
	}
	if (best == EP_KINDS) {
		return choose_fail(&m, why);
	}
	(void)mapping_fits(&m, best, &nodes, &unused); /* its nodes again */
	choice->mapping = peer_mappings[best];
	if (best == EP_KIND_IPC) {
		choice->no_window = why[EP_KIND_WINDOW];
	}
	choice->multicast = multicast_fits(&m, choice->mapping, &choice->no_multicast);
	return ncclSuccess;
}
