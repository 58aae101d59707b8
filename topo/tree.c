/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of a topology while it is read: its nodes, GPUs, NICs and notes, and the way between two
 * nodes.
 */
#include "topo/tree.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void ep_topo_note(struct ep_topo *topo, const char *fmt, ...)
{
	va_list ap;

	if (topo->nnotes == EP_TOPO_MAX_NOTES) {
		topo->notes_lost++;
		return;
	}
	va_start(ap, fmt);
	vsnprintf(topo->note[topo->nnotes++], EP_TOPO_NOTE_LEN, fmt, ap);
	va_end(ap);
}

struct ep_topo *ep_topo_new(enum ep_topo_source source)
{
	struct ep_topo *topo = calloc(1, sizeof(*topo));
	struct ep_topo_err err;

	if (!topo) {
		return NULL;
	}
	topo->source = source;
	topo->nhosts = 1;
	topo->gpu = calloc(EP_TOPO_MAX_GPUS, sizeof(*topo->gpu));
	topo->nic = calloc(EP_TOPO_MAX_NICS, sizeof(*topo->nic));
	topo->note = calloc(EP_TOPO_MAX_NOTES, sizeof(*topo->note));
	if (!topo->gpu || !topo->nic || !topo->note ||
	    ep_topo_add_node(topo, -1, EP_TOPO_KIND_MACHINE, NULL, -1, &err) < 0) {
		ep_topo_free(topo);
		return NULL;
	}
	return topo;
}

void ep_topo_free(struct ep_topo *topo)
{
	if (topo) {
		free(topo->nodes);
		free(topo->gpu);
		free(topo->nic);
		free(topo->note);
		free(topo);
	}
}

int ep_topo_add_node(struct ep_topo *topo, int parent, enum ep_topo_kind kind,
		     const struct ep_topo_pci *pci, int numa, struct ep_topo_err *err)
{
	int depth = parent < 0 ? 0 : topo->nodes[parent].depth + 1;

	if (depth >= EP_TOPO_MAX_DEPTH || topo->nnodes >= EP_TOPO_MAX_NODES) {
		return ep_topo_fail(err, E2BIG,
				    "PCIe tree with more than %d levels or %d devices: is the "
				    "topology file damaged?",
				    EP_TOPO_MAX_DEPTH, EP_TOPO_MAX_NODES);
	}
	if (topo->nnodes == topo->nodes_room) {
		int room = topo->nodes_room ? 2 * topo->nodes_room : 64;
		void *more = realloc(topo->nodes, (size_t)room * sizeof(*topo->nodes));

		if (!more) {
			return ep_topo_fail(err, ENOMEM, "out of memory for the PCIe tree");
		}
		topo->nodes = more;
		topo->nodes_room = room;
	}
	struct ep_topo_node *node = &topo->nodes[topo->nnodes];

	memset(node, 0, sizeof(*node));
	node->parent = parent;
	node->depth = depth;
	node->kind = kind;
	node->numa = numa;
	if (pci) {
		node->pci = *pci;
	}
	return topo->nnodes++;
}

enum ep_topo_kind ep_topo_bridge_kind(const struct ep_topo *topo, int parent)
{
	return topo->nodes[parent].kind == EP_TOPO_KIND_PORT ? EP_TOPO_KIND_SWITCH
							     : EP_TOPO_KIND_PORT;
}

int ep_topo_pci_compare(const struct ep_topo_pci *a, const struct ep_topo_pci *b)
{
	if (!a->known || !b->known) {
		return b->known - a->known;
	}
	if (a->domain != b->domain) {
		return a->domain < b->domain ? -1 : 1;
	}
	return (a->bus << 8 | a->dev << 3 | a->fn) - (b->bus << 8 | b->dev << 3 | b->fn);
}

int ep_topo_host_at(const struct ep_topo *topo, int node)
{
	while (topo->nodes[node].depth > 1) {
		node = topo->nodes[node].parent;
	}
	/* They are the first nodes after the root. */
	return node > 0 && topo->nodes[node].kind == EP_TOPO_KIND_MACHINE ? node - 1 : 0;
}

static bool is_home(const struct ep_topo *topo, int node)
{
	return topo->home == 0 || ep_topo_host_at(topo, node) == topo->home - 1;
}

int ep_topo_find_node(const struct ep_topo *topo, const struct ep_topo_pci *pci)
{
	for (int i = 0; i < topo->nnodes; i++) {
		if (pci->known && ep_topo_pci_compare(&topo->nodes[i].pci, pci) == 0 &&
		    is_home(topo, i)) {
			return i;
		}
	}
	return -1;
}

int ep_topo_host_of_numa(struct ep_topo *topo, int numa, struct ep_topo_err *err)
{
	/* Only NCCL's <cpu> stands for all that there is at a node. */
	if (numa >= 0 && topo->source == EP_TOPO_SOURCE_NCCL_XML) {
		for (int i = 0; i < topo->nnodes; i++) {
			if (topo->nodes[i].kind == EP_TOPO_KIND_HOST &&
			    topo->nodes[i].numa == numa && is_home(topo, i)) {
				return i;
			}
		}
	}
	return ep_topo_add_node(topo, topo->home, EP_TOPO_KIND_HOST, NULL, numa, err);
}

int ep_topo_place(struct ep_topo *topo, const struct ep_topo_pci *pci, int numa,
		  struct ep_topo_err *err)
{
	int node = ep_topo_find_node(topo, pci), host;

	if (node >= 0) {
		return node;
	}
	host = ep_topo_host_of_numa(topo, numa, err);
	return host < 0 ? host : ep_topo_add_node(topo, host, EP_TOPO_KIND_DEVICE, pci, numa, err);
}

/* Switches from a node up to, and without, an ancestor. */
static int switches_below(const struct ep_topo *topo, int node, int ancestor)
{
	int n = 0;

	for (; node != ancestor; node = topo->nodes[node].parent) {
		n += topo->nodes[node].kind == EP_TOPO_KIND_SWITCH;
	}
	return n;
}

static enum ep_topo_dist dist_nodes(const struct ep_topo *topo, int a, int b)
{
	const struct ep_topo_node *node = topo->nodes;
	int x = a, y = b;

	while (x != y) {
		if (node[x].depth >= node[y].depth) {
			x = node[x].parent;
		} else {
			y = node[y].parent;
		}
	}
	switch (node[x].kind) {
	case EP_TOPO_KIND_DEVICE:
		return EP_TOPO_LOC;
	case EP_TOPO_KIND_SWITCH:
	case EP_TOPO_KIND_PORT: {
		int n = switches_below(topo, a, x) + switches_below(topo, b, x) +
			(node[x].kind == EP_TOPO_KIND_SWITCH);

		return n > 1 ? EP_TOPO_PXB : EP_TOPO_PIX;
	}
	case EP_TOPO_KIND_HOST:
		return EP_TOPO_PHB;
	case EP_TOPO_KIND_MACHINE:
		if (x == 0 && topo->nhosts > 1) {
			return EP_TOPO_DISTANT;
		}
		break;
	}
	return node[a].numa >= 0 && node[a].numa == node[b].numa ? EP_TOPO_NODE : EP_TOPO_SYS;
}

struct ep_topo_gpu *ep_topo_add_gpu(struct ep_topo *topo, int node, struct ep_topo_err *err)
{
	if (topo->ngpus == EP_TOPO_MAX_GPUS) {
		ep_topo_fail(err, E2BIG, "more than %d GPUs", EP_TOPO_MAX_GPUS);
		return NULL;
	}
	struct ep_topo_gpu *gpu = &topo->gpu[topo->ngpus++];

	memset(gpu, 0, sizeof(*gpu));
	gpu->node = node;
	gpu->host = ep_topo_host_at(topo, node);
	gpu->pci = topo->nodes[node].pci;
	gpu->numa = topo->nodes[node].numa;
	gpu->instance = -1;
	gpu->nvml = -1;
	gpu->nvlinks = -1;
	gpu->domain = -1;
	return gpu;
}

struct ep_topo_nic *ep_topo_add_nic(struct ep_topo *topo, int node, const char *name,
				    struct ep_topo_err *err)
{
	char pci[EP_TOPO_PCI_LEN];

	if (topo->nnics == EP_TOPO_MAX_NICS) {
		ep_topo_fail(err, E2BIG, "more than %d NICs", EP_TOPO_MAX_NICS);
		return NULL;
	}
	struct ep_topo_nic *nic = &topo->nic[topo->nnics++];

	memset(nic, 0, sizeof(*nic));
	nic->node = node;
	nic->host = ep_topo_host_at(topo, node);
	nic->pci = topo->nodes[node].pci;
	nic->numa = topo->nodes[node].numa;
	nic->pci_mbps = topo->nodes[node].mbps;
	nic->named = name && *name;
	nic->rdma = true;
	ep_topo_copy_name(nic->name, nic->named ? name : ep_topo_pci_print(&nic->pci, pci));
	return nic;
}

struct ep_topo_port *ep_topo_add_port(struct ep_topo_nic *nic, int num)
{
	for (int i = 0; i < nic->nports; i++) {
		if (nic->port[i].num == num) {
			return &nic->port[i];
		}
	}
	if (nic->nports == EP_TOPO_MAX_PORTS) {
		return NULL;
	}
	struct ep_topo_port *port = &nic->port[nic->nports++];

	memset(port, 0, sizeof(*port));
	port->num = num;
	return port;
}

void ep_topo_set_socket(struct ep_topo *topo, long numa, int socket)
{
	if (numa >= 0 && numa < EP_TOPO_MAX_NUMAS && socket <= UINT16_MAX) {
		topo->socket[numa] = (uint16_t)socket;
	}
}

void ep_topo_add_link(struct ep_topo_gpu *gpu, enum ep_topo_nvlink_kind kind,
		      const struct ep_topo_pci *target, int count)
{
	gpu->nvlinks = (gpu->nvlinks < 0 ? 0 : gpu->nvlinks) + count;
	gpu->nvswitch |= kind == EP_TOPO_NVLINK_SWITCH;
	for (int i = 0; i < gpu->nlinks; i++) {
		if (gpu->link[i].kind == kind &&
		    ep_topo_pci_compare(&gpu->link[i].target, target) == 0) {
			gpu->link[i].count = (uint16_t)(gpu->link[i].count + count);
			return;
		}
	}
	if (gpu->nlinks < EP_TOPO_MAX_LINKS) {
		gpu->link[gpu->nlinks++] =
			(struct ep_topo_nvlink){ *target, (uint16_t)count, (uint8_t)kind };
	}
}

/*
 * class_id as PCI has it: 24 bits. NVIDIA's GPUs are "3D" or "VGA" controllers. Many machines have
 * another maker's VGA for the console, and files often leave the vendor out (0).
 */
bool ep_topo_is_gpu(unsigned class_id, unsigned vendor)
{
	unsigned kind = class_id >> 8;

	if (kind == 0x0302) {
		return vendor == EP_TOPO_VENDOR_NVIDIA || vendor == 0;
	}
	return kind == 0x0300 && vendor == EP_TOPO_VENDOR_NVIDIA;
}

/* Payload bits per second and lane after line coding; 64 GT/s is nominal. */
uint32_t ep_topo_link_mbps(double gts, int width)
{
	double lane = gts < 6 ? gts * 800 : gts * 1000 * 128 / 130;

	if (!(gts > 0 && gts < 1000) || width < 1 || width > 64) {
		return 0;
	}
	return (uint32_t)(lane * width);
}

/* [domain:]bus:dev.fn in hex, any number of digits that fits. */
bool ep_topo_pci_parse(const char *text, struct ep_topo_pci *pci)
{
	unsigned long part[4] = { 0 };
	const char *s = text;
	bool dot = false, function = false;
	int n = 0;

	while (n < 4 && !function && isxdigit((unsigned char)*s)) {
		char *end;

		part[n++] = strtoul(s, &end, 16);
		s = end;
		function = dot;
		dot = *s == '.';
		s += !function && (dot || *s == ':');
	}
	if (*s || !function || n < 3) {
		return false;
	}
	if (n == 3) {
		memmove(part + 1, part, 3 * sizeof(part[0]));
		part[0] = 0;
	}
	if (part[0] > UINT32_MAX || part[1] > 255 || part[2] > 31 || part[3] > 7) {
		return false;
	}
	*pci = (struct ep_topo_pci){ (uint32_t)part[0], (uint8_t)part[1], (uint8_t)part[2],
				     (uint8_t)part[3], true };
	return true;
}

const char *ep_topo_pci_print(const struct ep_topo_pci *pci, char buf[EP_TOPO_PCI_LEN])
{
	if (!pci->known) {
		return strcpy(buf, "-");
	}
	snprintf(buf, EP_TOPO_PCI_LEN, "%04x:%02x:%02x.%x", pci->domain, pci->bus, pci->dev,
		 pci->fn);
	return buf;
}

bool ep_topo_has_gpu(const struct ep_topo *topo, int node)
{
	for (int i = 0; i < topo->ngpus; i++) {
		if (topo->gpu[i].node == node) {
			return true;
		}
	}
	return false;
}

enum ep_topo_dist ep_topo_dist_gpu_nic(const struct ep_topo *topo, int gpu, int nic)
{
	return dist_nodes(topo, topo->gpu[gpu].node, topo->nic[nic].node);
}

int ep_topo_numa_of_pci(const char *root, const struct ep_topo_pci *pci)
{
	char dir[PATH_MAX], text[32], name[EP_TOPO_PCI_LEN];

	snprintf(dir, sizeof(dir), "%.*s/sys/bus/pci/devices/%s", PATH_MAX / 2, root,
		 ep_topo_pci_print(pci, name));
	return ep_topo_read_line(dir, "numa_node", text, sizeof(text)) ? atoi(text) : -1;
}
