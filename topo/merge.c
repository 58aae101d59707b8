/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A topology file and this machine become one topology. The file is right about places; the machine
 * is right about what there is: devices, ports, links. NCCL reads its files in the same spirit.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "topo/tree.h"

/*
 * Returns the place in the file's tree of a function that the file does not name, or -1. NCCL lists
 * the functions of a card, virtual ones too, at the address of the first.
 */
static int beside_first_function(const struct ep_topo *file, const struct ep_topo_pci *pci)
{
	struct ep_topo_pci first = *pci;
	int node;

	first.fn = 0;
	node = ep_topo_find_node(file, &first);
	if (node < 0) {
		first.dev = 0;
		node = ep_topo_find_node(file, &first);
	}
	return node >= 0 && file->nodes[node].kind == EP_TOPO_KIND_DEVICE ? file->nodes[node].parent
									  : -1;
}

/*
 * Returns the node of a device in the file's tree. One that the file does not name is added: beside
 * its card's first function, else below the nearest bridge that the file does name, else at its
 * NUMA node.
 */
static int place_of(struct ep_topo *file, const struct ep_topo *live, int live_node,
		    struct ep_topo_err *err)
{
	const struct ep_topo_node *from = &live->nodes[live_node];
	int node = ep_topo_find_node(file, &from->pci);
	int parent, numa;

	if (node >= 0) {
		return node;
	}
	parent = beside_first_function(file, &from->pci);
	for (int up = from->parent; up >= 0 && parent < 0; up = live->nodes[up].parent) {
		parent = ep_topo_find_node(file, &live->nodes[up].pci);
	}
	if (parent < 0) {
		parent = ep_topo_host_of_numa(file, from->numa, err);
	}
	if (parent < 0) {
		return parent;
	}
	numa = file->nodes[parent].numa >= 0 ? file->nodes[parent].numa : from->numa;
	node = ep_topo_add_node(file, parent, EP_TOPO_KIND_DEVICE, &from->pci, numa, err);
	if (node >= 0) {
		file->nodes[node].mbps = from->mbps;
	}
	return node;
}

/* NVLinks that only the file knows count when this machine's driver does not report them. */
static void keep_links(struct ep_topo_gpu *gpu, const struct ep_topo_gpu *old, int nold)
{
	for (int k = 0; k < nold && gpu->nvlinks < 0; k++) {
		if (old[k].node == gpu->node) {
			gpu->nlinks = old[k].nlinks;
			gpu->nvlinks = old[k].nvlinks;
			gpu->nvswitch = old[k].nvswitch;
			memcpy(gpu->link, old[k].link, sizeof(gpu->link));
		}
	}
}

static int merge_gpus(struct ep_topo *file, const struct ep_topo *live, struct ep_topo_err *err)
{
	int nold = file->ngpus, gone = 0, rc = 0;
	struct ep_topo_gpu *old = malloc(((size_t)nold + 1) * sizeof(*old));

	if (!old) {
		return ep_topo_fail(err, ENOMEM, "out of memory reading the topology file");
	}
	memcpy(old, file->gpu, (size_t)nold * sizeof(*old));
	file->ngpus = 0;
	for (int i = 0; i < live->ngpus; i++) {
		int node = place_of(file, live, live->gpu[i].node, err);

		if (node < 0) {
			rc = node;
			goto out;
		}
		struct ep_topo_gpu *gpu = &file->gpu[file->ngpus++];
		int numa = file->nodes[node].numa;

		*gpu = live->gpu[i];
		gpu->node = node;
		gpu->numa = numa >= 0 ? numa : gpu->numa;
		keep_links(gpu, old, nold);
	}
	for (int k = 0; k < nold; k++) {
		gone += !ep_topo_has_gpu(file, old[k].node);
	}
	if (gone) {
		ep_topo_note(file, "%d of the file's %d GPUs are not in this machine", gone, nold);
	}
out:
	free(old);
	return rc;
}

/* Of several hosts in the file, the one with most of this machine's devices is this machine. */
static void find_home(struct ep_topo *file, const struct ep_topo *live)
{
	int best = -1, most = -1;

	for (int host = 1; host <= file->nhosts && file->nhosts > 1; host++) {
		int n = 0;

		file->home = host;
		for (int i = 0; i < live->ngpus; i++) {
			n += ep_topo_find_node(file, &live->gpu[i].pci) >= 0;
		}
		for (int i = 0; i < live->nnics; i++) {
			n += ep_topo_find_node(file, &live->nic[i].pci) >= 0;
		}
		if (n > most) {
			most = n;
			best = host;
		}
	}
	file->home = best < 0 ? file->home : best;
}

static const struct ep_topo_nic *same_nic(const struct ep_topo *file, const struct ep_topo_nic *nic)
{
	for (int i = 0; i < file->nnics; i++) {
		const struct ep_topo_nic *other = &file->nic[i];

		if (other->named && strcmp(other->name, nic->name) == 0 &&
		    (file->home == 0 || other->host == file->home - 1)) {
			return other;
		}
	}
	return NULL;
}

static int merge_nics(struct ep_topo *file, const struct ep_topo *live, struct ep_topo_err *err)
{
	int node_of[EP_TOPO_MAX_NICS];
	bool denied[EP_TOPO_MAX_NICS];

	for (int i = 0; i < live->nnics; i++) {
		const struct ep_topo_nic *nic = &live->nic[i];
		const struct ep_topo_nic *named = same_nic(file, nic);
		/* Virtual functions move: the address decides where there is one. */
		bool by_name = named && (named->elsewhere || !nic->pci.known || !named->pci.known);

		denied[i] = named && named->no_gdr; /* NCCL, too, believes a file in this */
		node_of[i] = by_name ? named->node : place_of(file, live, nic->node, err);
		if (node_of[i] < 0) {
			return node_of[i];
		}
	}
	file->nnics = 0;
	for (int i = 0; i < live->nnics; i++) {
		struct ep_topo_nic *nic = &file->nic[file->nnics++];
		int numa = file->nodes[node_of[i]].numa;

		*nic = live->nic[i];
		nic->node = node_of[i];
		nic->no_gdr = denied[i];
		nic->numa = numa >= 0 ? numa : nic->numa;
	}
	return 0;
}

int ep_topo_merge(struct ep_topo *file, const struct ep_topo *live, struct ep_topo_err *err)
{
	find_home(file, live);
	int rc = merge_gpus(file, live, err);

	if (!rc) {
		rc = merge_nics(file, live, err);
	}
	if (rc) {
		return rc;
	}
	file->merged = true;
	file->nhosts = 1;
	memcpy(file->driver, live->driver, sizeof(file->driver));
	file->virtualised = live->virtualised;
	file->nvls = live->nvls;
	memcpy(file->reach, live->reach, sizeof(file->reach));
	if (file->source == EP_TOPO_SOURCE_NCCL_XML) { /* which has NUMA nodes alone */
		memcpy(file->socket, live->socket, sizeof(file->socket));
	}
	if (live->nvswitch != EP_TOPO_UNKNOWN) {
		file->nvswitch = live->nvswitch;
	}
	for (int i = 0; i < live->nnotes; i++) {
		ep_topo_note(file, "%s", live->note[i]);
	}
	return 0;
}
