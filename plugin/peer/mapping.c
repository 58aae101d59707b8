/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "core/nccl_dyn.h"
#include "core/nodes.h"
#include "peer/ipc.h"
#include "peer/mapping.h"
#include "peer/multicast.h"
#include "peer/peer_window.h"
#include "peer/plain.h"
#include "peer/vmm.h"

#define EP_WINDOW_VERSION 22902 /* of NCCL, the first with pointers to peers' windows */

/* Bits of an offer. */
enum ep_mapping_kind {
	EP_KIND_PLAIN, /* no rank of a node is in another process */
	EP_KIND_WINDOW,
	EP_KIND_IPC,
	EP_KINDS
};

static const struct ep_peer_mapping *const ep_peer_mappings[EP_KINDS] = {
	[EP_KIND_PLAIN] = &ep_peer_plain,
	[EP_KIND_WINDOW] = &ep_peer_window,
	[EP_KIND_IPC] = &ep_peer_ipc,
};

/* The house's preference where several mappings make the same nodes. */
static const enum ep_mapping_kind ep_peer_order[] = { EP_KIND_PLAIN, EP_KIND_WINDOW, EP_KIND_IPC };

const char *ep_peer_mapping_name(const struct ep_peer_mapping *mapping)
{
	return mapping->name;
}

/* ---- what this rank can do ---- */

/*
 * The head of ncclCommProperties_t, which newer releases prolong. NCCL takes its layout from
 * the release that the program was built for.
 */
struct ep_nccl_properties {
	size_t size;
	unsigned int magic;
	unsigned int version;
	int rank, nranks, device, nvml_device;
	bool windows;   /* deviceApiSupport */
	bool multicast; /* multimemSupport */
	char more[472];
};

_Static_assert(sizeof(struct ep_nccl_properties) == 512, "room for later releases");

static bool ep_window_possible(ncclComm_t comm, struct ep_peer_offer *offer, bool *multicast)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();
	struct ep_nccl_properties p = { .size = sizeof(p), .magic = 0xcafebeef };
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
			 "NCCL %d.%d.%d gives no pointers to peers' windows, %d.%d.%d does",
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

void ep_peer_offer_make(struct ep_peer_offer *offer, ncclComm_t comm, enum ep_memory memory,
			bool nvls)
{
	struct ep_reason why;
	bool multicast = false;

	memset(offer, 0, sizeof(*offer));
	if (memory == EP_MEMORY_IPC) {
		snprintf(offer->no_window, sizeof(offer->no_window), "NCCL_EP_MEMORY=ipc");
	} else if (ep_window_possible(comm, offer, &multicast)) {
		offer->mappings |= 1u << EP_KIND_WINDOW;
	}
	if (memory != EP_MEMORY_WINDOW) {
		offer->mappings |= 1u << EP_KIND_IPC;
	}
	if (memory == EP_MEMORY_AUTO) {
		offer->mappings |= 1u << EP_KIND_PLAIN;
	}
	offer->multicast =
		ep_multicast_possible(nvls, offer->mappings >> EP_KIND_WINDOW & 1, multicast, &why);
	if (!offer->multicast) {
		snprintf(offer->no_multicast, sizeof(offer->no_multicast), "%.59s", why.text);
	}
}

/* ---- what all can do ---- */

struct ep_peer_offers {
	struct ep_ident *idents;
	const unsigned char *offers;
	size_t stride;
	const struct ep_param_list *sizes;
	int nranks;
};

static struct ep_peer_offer ep_peer_offers_get(const struct ep_peer_offers *offers, int rank)
{
	struct ep_peer_offer offer;

	memcpy(&offer, offers->offers + (size_t)rank * offers->stride, sizeof(offer));
	offer.no_window[sizeof(offer.no_window) - 1] = '\0';
	return offer;
}

/* Whether all ranks have it in their offers. */
static bool ep_mapping_offered(const struct ep_peer_offers *offers, enum ep_mapping_kind kind,
			       struct ep_reason *why)
{
	for (int r = 0; r < offers->nranks; r++) {
		struct ep_peer_offer offer = ep_peer_offers_get(offers, r);

		if (!(offer.mappings >> kind & 1)) {
			return ep_reason_set(
				why, "rank %d (host %.64s): %s", r, offers->idents[r].hostname,
				kind == EP_KIND_WINDOW ? offer.no_window : "NCCL_EP_MEMORY=window");
		}
	}
	return true;
}

/* Whether rank r can map the memory of rank `first` of its node by this mapping. */
static bool ep_mapping_reaches(const struct ep_peer_offers *offers, enum ep_mapping_kind kind,
			       int first, int r, struct ep_reason *why)
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
		return ep_ident_same_host(a, b) ||
		       ep_reason_set(why,
				     "ranks %d (host %.64s) and %d (host %.64s) are on different "
				     "hosts, but NCCL_EP_NODE_SIZE makes them one node: unset it",
				     first, a->hostname, r, b->hostname);
	default:
		return ep_ident_same_process(a, b);
	}
}

/* Whether the mapping is one for all. idents have the nodes then, of which there are *nodes. */
static bool ep_mapping_fits(const struct ep_peer_offers *offers, enum ep_mapping_kind kind,
			    uint32_t *nodes, struct ep_reason *why)
{
	why->text[0] = '\0';
	if (!ep_mapping_offered(offers, kind, why)) {
		return false;
	}
	for (int r = 0; r < offers->nranks; r++) {
		int same = 0;

		while (!ep_ident_same_host(&offers->idents[same], &offers->idents[r])) {
			same++;
		}
		offers->idents[r].domain = kind == EP_KIND_WINDOW
						   ? ep_peer_offers_get(offers, r).first
						   : (uint32_t)same;
		if (kind == EP_KIND_WINDOW && !offers->sizes->count &&
		    !ep_mapping_reaches(offers, kind, same, r, why)) {
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
		if (!ep_mapping_reaches(offers, kind, first, r, why)) {
			return false;
		}
	}
	return true;
}

/* Whether all want multicast, and each node is what one address of NCCL reaches: an LSA team. */
static bool ep_multicast_fits(const struct ep_peer_offers *offers,
			      const struct ep_peer_mapping *mapping, struct ep_reason *why)
{
	for (int r = 0; r < offers->nranks; r++) {
		struct ep_peer_offer offer = ep_peer_offers_get(offers, r);

		if (!offer.multicast) {
			return ep_reason_set(why, "rank %d: %.59s", r, offer.no_multicast);
		}
	}
	if (mapping != &ep_peer_window) {
		return ep_reason_set(why, "memory by %s: NCCL_EP_MEMORY=window", mapping->name);
	}
	for (int r = 1; r < offers->nranks; r++) {
		const struct ep_ident *a = &offers->idents[r - 1], *b = &offers->idents[r];

		/* teams are runs of ranks */
		if (a->domain == b->domain && !ep_ident_same_node(a, b)) {
			return ep_reason_set(why, "ranks %d and %d of one LSA team are two nodes",
					     r - 1, r);
		}
	}
	return true;
}

static ncclResult_t ep_choose_fail(const struct ep_peer_offers *offers, const struct ep_reason *why)
{
	bool window = why[EP_KIND_WINDOW].text[0], ipc = why[EP_KIND_IPC].text[0];
	uint32_t any = 0;

	for (int r = 0; r < offers->nranks; r++) {
		any |= ep_peer_offers_get(offers, r).mappings;
	}
	/* A mapping that nobody may use gets no line. */
	window &= any >> EP_KIND_WINDOW & 1 || !(any >> EP_KIND_IPC & 1);
	ipc &= any >> EP_KIND_IPC & 1;
	return ep_fail(ncclInvalidUsage,
		       "the ranks of a node cannot map each other's memory in one way:%s%.200s%s%s"
		       "%.200s",
		       window ? " by NCCL windows (NCCL_EP_MEMORY=window), " : "",
		       window ? why[EP_KIND_WINDOW].text : "", window && ipc ? ";" : "",
		       ipc ? " by CUDA IPC (NCCL_EP_MEMORY=ipc), " : "",
		       ipc ? why[EP_KIND_IPC].text : "");
}

ncclResult_t ep_peer_choose(struct ep_peer_choice *choice, struct ep_ident *idents,
			    const void *offers, size_t stride, const struct ep_param_list *sizes,
			    int nranks)
{
	struct ep_peer_offers m = { idents, offers, stride, sizes, nranks };
	struct ep_reason why[EP_KINDS], unused;
	uint32_t least = UINT32_MAX, nodes;
	enum ep_mapping_kind best = EP_KINDS;

	if (sizes->count > 1) {
		EP_CHECK(ep_nodes_assign(idents, sizes, nranks)); /* the list may be too long */
	}
	memset(choice, 0, sizeof(*choice));
	for (size_t i = 0; i < EP_ARRAY_SIZE(ep_peer_order); i++) {
		enum ep_mapping_kind kind = ep_peer_order[i];

		if (!ep_mapping_fits(&m, kind, &nodes, &why[kind])) {
			continue;
		}
		if (nodes < least) {
			best = kind;
			choice->next = NULL;
		} else if (nodes == least && !choice->next) {
			choice->next = ep_peer_mappings[kind];
		}
		least = (uint32_t)ep_min_u64(least, nodes);
	}
	if (best == EP_KINDS) {
		return ep_choose_fail(&m, why);
	}
	(void)ep_mapping_fits(&m, best, &nodes, &unused); /* its nodes again */
	choice->mapping = ep_peer_mappings[best];
	if (best == EP_KIND_IPC) {
		choice->no_window = why[EP_KIND_WINDOW];
	}
	choice->multicast = ep_multicast_fits(&m, choice->mapping, &choice->no_multicast);
	return ncclSuccess;
}
