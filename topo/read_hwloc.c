/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hwloc's XML, versions 1 and 2. Read here and not through libhwloc, whose parser trusts its input
 * and, without its libxml2 plugin, takes only what libhwloc itself wrote.
 */
#include "topo/tree.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "topo/xml.h"

#define OSDEV_OPENFABRICS 3

struct reader {
	struct ep_topo *topo;
	const struct ep_xml *xml;
	struct ep_topo_err *err;
	int sockets, socket;  /* so many so far; in which the object is, 0: in none */
	bool memory_children; /* format 2: nodes hang below what they are local to */
};

static bool is_type(const struct reader *reader, int elem, const char *type)
{
	const char *value = ep_xml_attr(reader->xml, elem, "type");

	return ep_xml_is(reader->xml, elem, "object") && value && strcmp(value, type) == 0;
}

static const char *info(const struct reader *reader, int elem, const char *name)
{
	ep_xml_for_each_child(reader->xml, elem, it)
	{
		const char *key = ep_xml_is(reader->xml, it, "info")
					  ? ep_xml_attr(reader->xml, it, "name")
					  : NULL;

		if (key && strcmp(key, name) == 0) {
			return ep_xml_attr(reader->xml, it, "value");
		}
	}
	return NULL;
}

#define MAX_NUMA 65535

/*
 * The lowest bit of a nodeset such as "0x00000002" or "0x1,,0x0", or -1; *n: how many there are.
 * Comma-separated 32-bit words, the highest first, an empty word being zero.
 */
static int first_bit(const char *set, int *n)
{
	int words = 1, first = -1;

	*n = 0;
	for (const char *s = set; *s; s++) {
		words += *s == ',';
	}
	for (const char *s = set; s; words--) {
		unsigned long word = strncmp(s, "0xf...f", 7) == 0 ? ~0ul : strtoul(s, NULL, 16);

		if (word) {
			first = 32 * (words - 1) + __builtin_ctzl(word);
			*n += __builtin_popcountl(word);
		}
		s = strchr(s, ',');
		s = s ? s + 1 : NULL;
	}
	return first > MAX_NUMA ? -1 : first;
}

/* The lowest of the object's own memory nodes, DRAM before others such as HBM; *n: all of them. */
static int first_memory(const struct reader *reader, int elem, int *n)
{
	int first = -1;
	bool first_plain = false;

	*n = 0;
	ep_xml_for_each_child(reader->xml, elem, it)
	{
		const char *subtype = ep_xml_attr(reader->xml, it, "subtype");
		bool plain = !subtype || strcmp(subtype, "DRAM") == 0;
		int found = -1, nfound = 0;

		if (is_type(reader, it, "NUMANode")) {
			long index = ep_xml_long(reader->xml, it, "os_index", -1);

			found = index > MAX_NUMA ? -1 : (int)index;
			nfound = 1;
		} else if (is_type(reader, it, "MemCache")) {
			found = first_memory(reader, it, &nfound);
		}
		*n += nfound;
		if (found >= 0 &&
		    (first < 0 || plain > first_plain || (plain == first_plain && found < first))) {
			first = found;
			first_plain = plain;
		}
	}
	return first;
}

/* The node of what is attached below an object: of several only when all are the object's own. */
static int numa_below(const struct reader *reader, int elem, const char *nodeset, int parent_numa)
{
	int n, own, first = first_bit(nodeset, &n);
	int memory = reader->memory_children ? first_memory(reader, elem, &own) : -1;

	if (n <= 1) {
		return first;
	}
	if (memory >= 0) {
		return own == n ? memory : -1;
	}
	return parent_numa;
}

static void read_ib_ports(const struct reader *reader, int elem, struct ep_topo_nic *nic)
{
	for (int num = 1; num <= EP_TOPO_MAX_PORTS; num++) {
		char key[32];

		snprintf(key, sizeof(key), "Port%dState", num);
		const char *state = info(reader, elem, key);

		if (state) {
			/* The number as verbs has it; 4 is active. */
			ep_topo_add_port(nic, num)->state = atoi(state) == 4 ? EP_TOPO_STATE_ACTIVE
									     : EP_TOPO_STATE_DOWN;
		}
	}
	if (nic->nports == 0) {
		ep_topo_add_port(nic, 1);
	}
}

static int read_osdev(struct reader *reader, int elem, int node)
{
	const char *guid = info(reader, elem, "NodeGUID");

	if (ep_xml_long(reader->xml, elem, "osdev_type", -1) != OSDEV_OPENFABRICS) {
		return 0;
	}
	struct ep_topo_nic *nic = ep_topo_add_nic(
		reader->topo, node, ep_xml_attr(reader->xml, elem, "name"), reader->err);

	if (!nic) {
		return -E2BIG;
	}
	for (; guid && *guid; guid++) {
		if (isxdigit((unsigned char)*guid)) {
			char digit[2] = { *guid, 0 };

			nic->guid = nic->guid << 4 | strtoull(digit, NULL, 16);
		}
	}
	read_ib_ports(reader, elem, nic);
	return 0;
}

/* CUDA lists each MIG instance as a device of its own on the GPU's PCI address. */
static int read_gpu(struct reader *reader, int elem, int node)
{
	const char *model = info(reader, elem, "PCIDevice");
	int ncuda = 0;

	ep_xml_for_each_child(reader->xml, elem, it)
	{
		const char *name =
			is_type(reader, it, "OSDev") ? ep_xml_attr(reader->xml, it, "name") : NULL;

		ncuda += name && strncmp(name, "cuda", 4) == 0;
	}
	for (int i = 0; i < (ncuda > 1 ? ncuda : 1); i++) {
		struct ep_topo_gpu *gpu = ep_topo_add_gpu(reader->topo, node, reader->err);

		if (!gpu) {
			return -E2BIG;
		}
		gpu->instance = ncuda > 1 ? i : -1;
		ep_topo_copy_name(gpu->name, model ? model : "");
	}
	return 0;
}

static int read_pcidev(struct reader *reader, int elem, int parent, const struct ep_topo_pci *pci,
		       int numa)
{
	const char *type = ep_xml_attr(reader->xml, elem, "pci_type");
	const char *speed = ep_xml_attr(reader->xml, elem, "pci_link_speed");
	double gbs = speed ? strtod(speed, NULL) : 0;
	unsigned class_id = 0, vendor = 0;
	int node =
		ep_topo_add_node(reader->topo, parent, EP_TOPO_KIND_DEVICE, pci, numa, reader->err);

	if (node < 0) {
		return node;
	}
	reader->topo->nodes[node].mbps = gbs > 0 && gbs < 100000 ? (uint32_t)(gbs * 8000) : 0;
	/* "0302 [10de:2330] ...", in old files "0302 [10de:2330] [10de:16c1] a1" */
	if (!type || sscanf(type, "%4x [%4x:", &class_id, &vendor) != 2) {
		return ep_topo_fail(reader->err, EINVAL, "PCI device without a readable pci_type");
	}
	if (ep_topo_is_gpu(class_id << 8, vendor)) {
		return read_gpu(reader, elem, node);
	}
	if (class_id == 0x0680 && vendor == EP_TOPO_VENDOR_NVIDIA) {
		reader->topo->nvswitch = EP_TOPO_YES;
	}
	ep_xml_for_each_child(reader->xml, elem, it)
	{
		int rc = is_type(reader, it, "OSDev") ? read_osdev(reader, it, node) : 0;

		if (rc) {
			return rc;
		}
	}
	return 0;
}

static int read_object(struct reader *reader, int elem, int parent, int numa);

static int read_children(struct reader *reader, int elem, int parent, int numa)
{
	ep_xml_for_each_child(reader->xml, elem, it)
	{
		int rc = ep_xml_is(reader->xml, it, "object")
				 ? read_object(reader, it, parent, numa)
				 : 0;

		if (rc) {
			return rc;
		}
	}
	return 0;
}

static int read_object(struct reader *reader, int elem, int parent, int numa)
{
	const char *busid = ep_xml_attr(reader->xml, elem, "pci_busid");
	const char *bridge = ep_xml_attr(reader->xml, elem, "bridge_type");
	const char *nodeset = ep_xml_attr(reader->xml, elem, "nodeset");
	struct ep_topo_pci pci = { .known = false };
	enum ep_topo_kind kind;

	if (busid && !ep_topo_pci_parse(busid, &pci)) {
		char shown[EP_TOPO_NAME_LEN];

		ep_topo_copy_name(shown, busid);
		return ep_topo_fail(reader->err, EINVAL, "pci_busid \"%s\", need dddd:bb:dd.f",
				    shown);
	}
	if (is_type(reader, elem, "PCIDev")) {
		return read_pcidev(reader, elem, parent, &pci, numa);
	}
	if (is_type(reader, elem, "OSDev")) {
		/* Not on PCI: a software RDMA device. */
		int node = ep_topo_add_node(reader->topo, parent, EP_TOPO_KIND_DEVICE, NULL, numa,
					    reader->err);

		return node < 0 ? node : read_osdev(reader, elem, node);
	}
	if (is_type(reader, elem, "Bridge")) {
		kind = bridge && bridge[0] == '0' ? EP_TOPO_KIND_HOST
						  : ep_topo_bridge_kind(reader->topo, parent);
		parent = ep_topo_add_node(reader->topo, parent, kind, &pci, numa, reader->err);
		return parent < 0 ? parent : read_children(reader, elem, parent, numa);
	}
	if (is_type(reader, elem, "NUMANode")) {
		reader->topo->nnumas++;
		ep_topo_set_socket(reader->topo, ep_xml_long(reader->xml, elem, "os_index", -1),
				   reader->socket);
	}
	int around = reader->socket, rc;

	if (is_type(reader, elem, "Package") || is_type(reader, elem, "Socket")) {
		reader->socket = ++reader->sockets;
	}
	rc = read_children(reader, elem, parent,
			   nodeset ? numa_below(reader, elem, nodeset, numa) : numa);
	reader->socket = around;
	return rc;
}

int ep_topo_read_hwloc(struct ep_topo *topo, const struct ep_xml *xml, struct ep_topo_err *err)
{
	struct reader r = { .topo = topo, .xml = xml, .err = err };
	const char *version = ep_xml_attr(xml, 0, "version");

	if (version && atoi(version) > 2) {
		return ep_topo_fail(err, EINVAL,
				    "hwloc XML version %.16s, known up to 2: export it with "
				    "lstopo --export-xml-flags v2",
				    version);
	}
	r.memory_children = version && atoi(version) == 2;
	return read_children(&r, 0, 0, -1);
}
