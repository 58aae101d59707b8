/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's topology XML, written. read_nccl.c reads it. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "topo/tree.h"

struct writer {
	const struct ep_topo *topo;
	const char
		*root; /* in front of /sys and /proc; NULL: nothing of this machine is looked at */
	FILE *out;
	bool *wanted; /* [node]: leads to a GPU or a NIC */
	int ndevs;    /* <net>s so far */
};

static void indent(struct writer *writer, int depth)
{
	fprintf(writer->out, "%*s", 2 * depth, "");
}

static void attr(struct writer *writer, const char *name, const char *value)
{
	fprintf(writer->out, " %s=\"", name);
	for (; *value; value++) {
		if (strchr("<>&\"", *value)) {
			fprintf(writer->out, "&#%d;", *value);
		} else {
			fputc(*value, writer->out);
		}
	}
	fputc('"', writer->out);
}

/* ---- PCI ---- */

static void pci_dir(const struct writer *writer, const struct ep_topo_pci *pci, char *dir,
		    size_t size)
{
	char name[EP_TOPO_PCI_LEN];

	snprintf(dir, size, "%.256s/sys/bus/pci/devices/%s", writer->root ? writer->root : "",
		 ep_topo_pci_print(pci, name));
}

/* By the device's own class, else by what hangs there. */
static void write_ids(struct writer *writer, const char *dir, const char *class_id)
{
	static const char *const names[] = { "class", "vendor", "device", "subsystem_vendor",
					     "subsystem_device" };
	char text[32];

	for (int i = 0; i < 5; i++) {
		if (writer->root && ep_topo_read_line(dir, names[i], text, sizeof(text))) {
			attr(writer, names[i], text);
		} else if (i == 0) {
			attr(writer, names[i], class_id);
		}
	}
}

/* Links that are asleep run at a lower speed: the device's greatest counts. Else a link that carries as much. */
static void write_link(struct writer *writer, const char *dir, uint32_t mbps)
{
	static const struct {
		const char *name;
		double gts;
	} speed[] = {
		{ "2.5 GT/s PCIe", 2.5 }, { "5.0 GT/s PCIe", 5 },   { "8.0 GT/s PCIe", 8 },
		{ "16.0 GT/s PCIe", 16 }, { "32.0 GT/s PCIe", 32 }, { "64.0 GT/s PCIe", 64 }
	};
	char text[64], width[16];

	if (writer->root && ep_topo_read_line(dir, "max_link_speed", text, sizeof(text)) &&
	    isdigit((unsigned char)*text) &&
	    ep_topo_read_line(dir, "max_link_width", width, sizeof(width)) && atoi(width) > 0) {
		attr(writer, "link_speed", text);
		attr(writer, "link_width", width);
		return;
	}
	for (int lanes = 16; lanes > 0; lanes /= 2) {
		for (int i = 0; i < 6; i++) {
			double carries = ep_topo_link_mbps(speed[i].gts, lanes);

			if (mbps > carries * 0.97 && mbps < carries * 1.03) {
				attr(writer, "link_speed", speed[i].name);
				fprintf(writer->out, " link_width=\"%d\"", lanes);
				return;
			}
		}
	}
	fputs(" link_speed=\"\" link_width=\"0\"", writer->out);
}

/* <pci ...; the caller closes it. */
static void open_pci(struct writer *writer, int depth, int node, const char *class_id)
{
	const struct ep_topo_node *n = &writer->topo->nodes[node];
	char dir[512], name[EP_TOPO_PCI_LEN];

	indent(writer, depth);
	fputs("<pci", writer->out);
	attr(writer, "busid", ep_topo_pci_print(&n->pci, name));
	pci_dir(writer, &n->pci, dir, sizeof(dir));
	write_ids(writer, dir, class_id);
	write_link(writer, dir, n->mbps);
}

/* ---- devices ---- */

static void write_nvlink(struct writer *writer, int depth, const struct ep_topo_nvlink *link)
{
	static const char *const class_of[] = {
		[EP_TOPO_NVLINK_GPU] = "0x030200",
		[EP_TOPO_NVLINK_SWITCH] = "0x068000",
		[EP_TOPO_NVLINK_CPU] = "0x068001",
	};
	char name[EP_TOPO_PCI_LEN];

	indent(writer, depth);
	fputs("<nvlink", writer->out);
	/* The address is NCCL's for what is not to be seen. */
	attr(writer, "target",
	     link->target.known ? ep_topo_pci_print(&link->target, name) : "fffffff:ffff:ff");
	fprintf(writer->out, " count=\"%d\" tclass=\"%s\"/>\n", link->count, class_of[link->kind]);
}

static void write_gpus(struct writer *writer, int depth, int node)
{
	for (int g = 0; g < writer->topo->ngpus; g++) {
		const struct ep_topo_gpu *gpu = &writer->topo->gpu[g];

		/* NCCL adds a GPU that is not there; one that is has no other NVLinks than these. */
		if (gpu->node != node || (gpu->nvlinks < 0 && gpu->instance < 0)) {
			continue;
		}
		indent(writer, depth);
		fprintf(writer->out, "<gpu dev=\"%d\"", g);
		if (gpu->sm) {
			fprintf(writer->out, " sm=\"%d\"", gpu->sm);
		}
		fputs(">\n", writer->out);
		for (int i = 0; i < gpu->nlinks; i++) {
			write_nvlink(writer, depth + 1, &gpu->link[i]);
		}
		indent(writer, depth);
		fputs("</gpu>\n", writer->out);
	}
}

/* `before`: ports of the adapter's functions before this one, through which NCCL counts. */
static int write_nets(struct writer *writer, int depth, const struct ep_topo_nic *nic, int before)
{
	int n = 0;

	for (int p = 0; p < nic->nports; p++) {
		const struct ep_topo_port *port = &nic->port[p];

		if (port->state == EP_TOPO_STATE_DOWN) {
			continue;
		}
		indent(writer, depth);
		fputs("<net", writer->out);
		attr(writer, "name", nic->name);
		fprintf(writer->out, " dev=\"%d\"", writer->ndevs++);
		if (port->mbps) {
			fprintf(writer->out, " speed=\"%u\"", port->mbps);
		}
		fprintf(writer->out, " port=\"%d\"", before + port->num);
		if (nic->guid) {
			fprintf(writer->out, " guid=\"0x%llx\"", (unsigned long long)nic->guid);
		}
		if (nic->no_gdr) {
			fputs(" gdr=\"0\"", writer->out);
		}
		fputs("/>\n", writer->out);
		n++;
	}
	return n;
}

/* NICs that are functions of one adapter: side by side, with addresses that differ in the function. */
static bool same_adapter(const struct ep_topo *topo, int a, int b)
{
	const struct ep_topo_node *x = &topo->nodes[a], *y = &topo->nodes[b];

	return a == b || (x->parent == y->parent && x->pci.known && y->pci.known &&
			  x->pci.domain == y->pci.domain && x->pci.bus == y->pci.bus &&
			  x->pci.dev == y->pci.dev);
}

/* The first NIC of the adapter of node, in the order of topo->nic; -1: there is none. */
static int first_nic(const struct writer *writer, int node)
{
	for (int i = 0; i < writer->topo->nnics; i++) {
		if (writer->topo->nic[i].rdma &&
		    same_adapter(writer->topo, writer->topo->nic[i].node, node)) {
			return i;
		}
	}
	return -1;
}

/* <nic> with the ports of all functions of the adapter. Without names there is nothing to write. */
static void write_nic(struct writer *writer, int depth, int node)
{
	bool open = false;
	int before = 0;

	for (int i = first_nic(writer, node); i < writer->topo->nnics; i++) {
		const struct ep_topo_nic *nic = &writer->topo->nic[i];

		if (!nic->rdma || !nic->named || !same_adapter(writer->topo, nic->node, node)) {
			continue;
		}
		if (!open) {
			indent(writer, depth);
			fputs("<nic>\n", writer->out);
			open = true;
		}
		before += write_nets(writer, depth + 1, nic, before);
	}
	if (open) {
		indent(writer, depth);
		fputs("</nic>\n", writer->out);
	}
}

static void write_device(struct writer *writer, int depth, int node)
{
	bool gpu = ep_topo_has_gpu(writer->topo, node);
	int nic = first_nic(writer, node);

	if (!gpu && (nic < 0 || writer->topo->nic[nic].node != node)) {
		return; /* with the first function of its adapter */
	}
	if (!writer->topo->nodes[node].pci.known) {
		write_nic(writer, depth, node);
		return;
	}
	open_pci(writer, depth, node, gpu ? "0x030200" : "0x020000");
	fputs(">\n", writer->out);
	if (gpu) {
		write_gpus(writer, depth + 1, node);
	} else {
		write_nic(writer, depth + 1, node);
	}
	indent(writer, depth);
	fputs("</pci>\n", writer->out);
}

/* ---- the tree ---- */

static void write_below(struct writer *writer, int depth, int parent)
{
	for (int n = parent + 1; n < writer->topo->nnodes; n++) {
		const struct ep_topo_node *node = &writer->topo->nodes[n];

		if (node->parent != parent || !writer->wanted[n]) {
			continue;
		}
		if (node->kind == EP_TOPO_KIND_DEVICE) {
			write_device(writer, depth, n);
		} else if (node->kind != EP_TOPO_KIND_SWITCH || !node->pci.known) {
			write_below(writer, depth,
				    n); /* NCCL has one <pci> per switch, and no ports */
		} else {
			open_pci(writer, depth, n, "0x060400");
			fputs(">\n", writer->out);
			write_below(writer, depth + 1, n);
			indent(writer, depth);
			fputs("</pci>\n", writer->out);
		}
	}
}

/* As CPUID has it, and NCCL: the kernel adds the extended family to the base. */
static void write_model(struct writer *writer)
{
	char path[512], line[256];
	int family = -1, model = -1;
	const char *colon;
	FILE *f;

	snprintf(path, sizeof(path), "%.256s/proc/cpuinfo", writer->root);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f) && *line != '\n') {
		colon = strchr(line, ':');
		line[strcspn(line, "\n")] = '\0';
		if (!colon) {
			continue;
		}
		if (strncmp(line, "vendor_id", 9) == 0) {
			attr(writer, "vendor", colon + 1 + strspn(colon + 1, " "));
		} else if (strncmp(line, "cpu family", 10) == 0) {
			family = atoi(colon + 1);
		} else if (strncmp(line, "model\t", 6) == 0) {
			model = atoi(colon + 1);
		}
	}
	if (f) {
		fclose(f);
	}
	if (family >= 0 && model >= 0) {
		family = family > 15 ? 15 + (family - 15) * 16 : family;
		fprintf(writer->out, " familyid=\"%d\" modelid=\"%d\"", family, model);
	}
}

static void write_cpu(struct writer *writer, int host)
{
	const struct ep_topo_node *node = &writer->topo->nodes[host];
	char dir[512], text[1024];
	struct utsname system;

	fputs("  <cpu", writer->out);
	if (writer->topo->nhosts > 1) {
		fprintf(writer->out, " host_hash=\"0x%x\"",
			ep_topo_host_at(writer->topo, host) + 1);
	}
	fprintf(writer->out, " numaid=\"%d\"", node->numa);
	if (writer->root) {
		snprintf(dir, sizeof(dir), "%.256s/sys/devices/system/node/node%d", writer->root,
			 node->numa);
		if (ep_topo_read_line(dir, "cpumap", text, sizeof(text))) {
			attr(writer, "affinity", text);
		}
		if (uname(&system) == 0) {
			attr(writer, "arch",
			     strcmp(system.machine, "aarch64") ? system.machine : "arm64");
		}
		write_model(writer);
	}
	fputs(">\n", writer->out);
	/* One <cpu> stands for all host bridges of the node. */
	for (int n = host; n < writer->topo->nnodes; n++) {
		const struct ep_topo_node *other = &writer->topo->nodes[n];

		if (writer->wanted[n] && other->kind == EP_TOPO_KIND_HOST &&
		    other->numa == node->numa && other->parent == node->parent) {
			write_below(writer, 2, n);
			writer->wanted[n] = false;
		}
	}
	fputs("  </cpu>\n", writer->out);
}

static void want(struct writer *writer, int node)
{
	for (; node >= 0; node = writer->topo->nodes[node].parent) {
		writer->wanted[node] = true;
	}
}

int ep_topo_write_nccl(const struct ep_topo *topo, const struct ep_topo_opts *opts, FILE *out)
{
	struct writer w = { .topo = topo,
			    .root = opts->file_only ? NULL : ep_topo_root(opts),
			    .out = out,
			    .wanted = calloc((size_t)topo->nnodes + 1, sizeof(bool)) };

	if (!w.wanted) {
		return -ENOMEM;
	}
	for (int g = 0; g < topo->ngpus; g++) {
		want(&w, topo->gpu[g].node);
	}
	for (int i = 0; i < topo->nnics; i++) {
		if (topo->nic[i].rdma) {
			want(&w, topo->nic[i].node);
		}
	}
	fputs("<system version=\"1\">\n", out);
	for (int n = 0; n < topo->nnodes; n++) {
		if (w.wanted[n] && topo->nodes[n].kind == EP_TOPO_KIND_HOST) {
			write_cpu(&w, n);
		}
	}
	fputs("</system>\n", out);
	free(w.wanted);
	return 0;
}
