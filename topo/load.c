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

/*
 * Where NVIDIA's software puts a virtual machine's topology. Nobody asked for it, so where it is of
 * no use, this machine is what it looks like.
 */
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
		rc = ep_topo_merge(topo, live, err);
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
