/* SPDX-License-Identifier: Apache-2.0 */
/* A topology is loaded: from a file, from this machine, or from both. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "topo/topo.h"
#include "topo/tree.h"
#include "topo/xml.h"

static const char *env_or_null(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/* Returns the caller's default for a text that is no number. */
static bool env_flag(const char *name, bool initial)
{
	const char *text = env_or_null(name);
	long long value;

	return text && ep_topo_number_parse(text, &value) == 0 ? value != 0 : initial;
}

void ep_topo_opts_env(struct ep_topo_opts *opts)
{
	*opts = (struct ep_topo_opts){
		.file = env_or_null("NCCL_TOPO_FILE"),
		.hca = env_or_null("NCCL_IB_HCA"),
		.gdr_level = env_or_null("NCCL_NET_GDR_LEVEL"),
		.ib_disable = env_flag("NCCL_IB_DISABLE", false),
		.nvls_disable = !env_flag("NCCL_NVLS_ENABLE", true),
	};
	if (!opts->file) {
		opts->file = env_or_null("HWLOC_XMLFILE");
	}
}

int ep_topo_read_xml(const struct ep_xml *xml, const char *path, struct ep_topo **out,
		     struct ep_topo_err *err)
{
	bool nccl = ep_xml_is(xml, 0, "system");
	struct ep_topo_err why;

	if (!nccl && !ep_xml_is(xml, 0, "topology")) {
		char root[EP_TOPO_NAME_LEN];

		ep_topo_copy_name(root, xml->elem[0].name);
		return ep_topo_fail(err, EINVAL,
				    "%s starts with <%s>: neither NCCL topology XML (<system>) "
				    "nor hwloc XML (<topology>)",
				    path, root);
	}
	struct ep_topo *topo =
		ep_topo_new(nccl ? EP_TOPO_SOURCE_NCCL_XML : EP_TOPO_SOURCE_HWLOC_XML);

	if (!topo) {
		return ep_topo_fail(err, ENOMEM, "out of memory reading %s", path);
	}
	snprintf(topo->path, sizeof(topo->path), "%s", path);
	int rc = nccl ? ep_topo_read_nccl(topo, xml, &why) : ep_topo_read_hwloc(topo, xml, &why);

	if (rc) {
		ep_topo_free(topo);
		return ep_topo_fail(err, -rc, "%.200s: %.300s", path, why.text);
	}
	*out = topo;
	return 0;
}

static int read_file(const char *path, struct ep_topo **out, struct ep_topo_err *err)
{
	struct ep_xml *xml;
	int rc = ep_xml_read_file(path, &xml, err);

	if (!rc) {
		rc = ep_topo_read_xml(xml, path, out, err);
		ep_xml_free(xml);
	}
	return rc;
}

/* ---- a file and this machine ---- */

/* A topology file given for this machine is right about places; the machine is right about what
 * there is: devices, ports, links. NCCL reads its files in the same spirit. */

/* NCCL lists the functions of a card, virtual ones too, at the address of the first: the place in the
 * file's tree of one that is not there itself, or -1. */
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

/* Where in the file's tree a device belongs that the file does not name: beside its card's first
 * function, else below the nearest bridge that the file does name, else at its NUMA node. */
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
		/* NCCL, too, believes a file in this. */
		denied[i] = named && named->no_gdr;
		bool by_name = named && (named->elsewhere || !nic->pci.known || !named->pci.known);

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

static int merge(struct ep_topo *file, const struct ep_topo *live, struct ep_topo_err *err)
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
	if (live->nvswitch != EP_TOPO_UNKNOWN) {
		file->nvswitch = live->nvswitch;
	}
	for (int i = 0; i < live->nnotes; i++) {
		ep_topo_note(file, "%s", live->note[i]);
	}
	return 0;
}

/* ---- NVLink domains, order, and the whole ---- */

static int gpu_cmp(const void *a, const void *b)
{
	const struct ep_topo_gpu *x = a, *y = b;
	int c = x->host - y->host;

	c = c ? c : ep_topo_pci_compare(&x->pci, &y->pci);
	return c ? c : x->instance - y->instance;
}

static int nic_cmp(const void *a, const void *b)
{
	const struct ep_topo_nic *x = a, *y = b;
	int c = x->host - y->host;

	c = c ? c : ep_topo_pci_compare(&x->pci, &y->pci);
	return c ? c : strverscmp(x->name, y->name);
}

static int gpu_at(const struct ep_topo *topo, int host, const struct ep_topo_pci *pci)
{
	for (int i = 0; pci->known && i < topo->ngpus; i++) {
		if (topo->gpu[i].host == host && topo->gpu[i].pci.known &&
		    ep_topo_pci_compare(&topo->gpu[i].pci, pci) == 0) {
			return i;
		}
	}
	return -1;
}

/* NVSwitches join the GPUs of one clique of a fabric, or all where there is no fabric. */
static bool same_fabric(const struct ep_topo_gpu *a, const struct ep_topo_gpu *b)
{
	if (a->fabric_pending || b->fabric_pending || a->fabric != b->fabric) {
		return false;
	}
	return !a->fabric || (a->fabric_clique == b->fabric_clique &&
			      memcmp(a->fabric_uuid, b->fabric_uuid, sizeof(a->fabric_uuid)) == 0);
}

bool ep_topo_linked(const struct ep_topo *topo, int gpu_a, int gpu_b)
{
	const struct ep_topo_gpu *a = &topo->gpu[gpu_a], *b = &topo->gpu[gpu_b];

	/* MIG instances have no NVLink, not even to their sisters. */
	if (gpu_a == gpu_b || a->instance >= 0 || b->instance >= 0) {
		return false;
	}
	if (a->nvswitch && b->nvswitch && same_fabric(a, b)) {
		return true;
	}
	for (int i = 0; i < a->nlinks; i++) {
		if (a->link[i].kind == EP_TOPO_NVLINK_GPU &&
		    gpu_at(topo, a->host, &a->link[i].target) == gpu_b) {
			return true;
		}
	}
	return false;
}

/* Numbers the NVLink domains: sets of GPUs that NVLink joins, directly or through others. */
static void find_domains(struct ep_topo *topo)
{
	int next = 0, stack[EP_TOPO_MAX_GPUS];
	bool partial = false;

	for (int g = 0; g < topo->ngpus; g++) {
		topo->gpu[g].domain = -1;
	}
	for (int g = 0; g < topo->ngpus; g++) {
		int top = 0, members = 0;

		if (topo->gpu[g].domain >= 0) {
			continue;
		}
		stack[top++] = g;
		while (top > 0) {
			int a = stack[--top];

			for (int b = 0; b < topo->ngpus; b++) {
				if (topo->gpu[b].domain < 0 &&
				    (ep_topo_linked(topo, a, b) || ep_topo_linked(topo, b, a))) {
					topo->gpu[b].domain = next;
					stack[top++] = b;
					members++;
				}
			}
		}
		next += members > 0;
	}
	for (int a = 0; a < topo->ngpus; a++) {
		for (int b = 0; b < topo->ngpus; b++) {
			partial |= a != b && topo->gpu[a].domain >= 0 &&
				   topo->gpu[a].domain == topo->gpu[b].domain &&
				   !ep_topo_linked(topo, a, b);
		}
	}
	if (partial) {
		ep_topo_note(topo, "the NVLink mesh is not complete: some GPUs of one domain reach "
				   "each other over PCIe only");
	}
}

int ep_topo_finish(struct ep_topo *topo, const struct ep_topo_opts *opts, struct ep_topo_err *err)
{
	qsort(topo->gpu, (size_t)topo->ngpus, sizeof(*topo->gpu), gpu_cmp);
	qsort(topo->nic, (size_t)topo->nnics, sizeof(*topo->nic), nic_cmp);
	topo->nvls_allowed = !opts->nvls_disable;
	find_domains(topo);
	int rc = ep_topo_choose(topo, opts, err);

	if (!rc && topo->flat == EP_TOPO_YES && topo->nnics > 1 &&
	    topo->source == EP_TOPO_SOURCE_LIVE) {
		ep_topo_note(topo, "no GPU shares a PCIe bridge with a NIC, as in many virtual "
				   "machines: if you know better, say so with NCCL_TOPO_FILE");
	}
	if (topo->nhosts > 1 && !topo->merged) {
		ep_topo_note(topo,
			     "%d hosts in one file: GPUs are listed host after host, and addresses "
			     "of one may be those of another's too",
			     topo->nhosts);
	}
	if (topo->unclassified && !topo->merged) {
		ep_topo_note(
			topo,
			"%d PCI devices without a class: what they are can only be found out on "
			"the machine itself",
			topo->unclassified);
	}
	return rc;
}

/* Where NVIDIA's software puts a virtual machine's topology. Nobody asked for it, so where it is of no
 * use, this machine is what it looks like. */
static void read_virtual(const struct ep_topo_opts *opts, struct ep_topo *live,
			 struct ep_topo **out)
{
	struct ep_topo_err err;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/var/run/nvidia-topologyd/virtualTopology.xml",
		 ep_topo_root(opts));
	if (live->ngpus && access(path, R_OK) == 0 && read_file(path, out, &err)) {
		ep_topo_note(live, "left out: %s", err.text);
	}
}

int ep_topo_load(const struct ep_topo_opts *opts, struct ep_topo **out, struct ep_topo_err *err)
{
	struct ep_topo *topo = NULL, *live = NULL;
	bool file = opts->file && *opts->file;
	int rc = 0;

	if (!file || !opts->file_only) {
		rc = ep_topo_read_live(opts, &live, err);
	}
	if (!rc && file) {
		rc = read_file(opts->file, &topo, err);
	} else if (!rc) {
		read_virtual(opts, live, &topo);
	}
	if (rc) {
		goto err_free;
	}
	if (!topo) {
		topo = live;
		live = NULL;
	} else if (live && live->ngpus == 0) {
		ep_topo_note(topo, "this machine has no GPU: the file is taken as it is");
	} else if (live) {
		rc = merge(topo, live, err);
	}
	if (!rc) {
		rc = ep_topo_finish(topo, opts, err);
	}
	if (rc) {
		goto err_free;
	}
	ep_topo_free(live);
	*out = topo;
	return 0;

err_free:
	ep_topo_free(live);
	ep_topo_free(topo);
	return rc;
}

int ep_topo_find_gpu(const struct ep_topo *topo, const char *busid, const char *uuid)
{
	struct ep_topo_pci pci;
	int first;

	if (!ep_topo_pci_parse(busid, &pci)) {
		return -1;
	}
	first = gpu_at(topo, 0, &pci);
	for (int i = first; uuid && i >= 0 && i < topo->ngpus; i++) {
		if (ep_topo_pci_compare(&topo->gpu[i].pci, &pci) == 0 &&
		    strcmp(topo->gpu[i].uuid, uuid) == 0) {
			return i;
		}
	}
	return first;
}

bool ep_topo_gdr_allowed(const struct ep_topo *topo, int gpu, int nic)
{
	return !topo->nic[nic].no_gdr && ep_topo_dist_gpu_nic(topo, gpu, nic) <= topo->gdr_level;
}
