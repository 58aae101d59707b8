/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's topology XML: <system> holds <cpu numaid>, which hold nested <pci>, whose leaves hold
 * <gpu> (with <nvlink>) or <nic> (with <net>). Written by NCCL itself with every attribute, or by
 * hand with hardly any: then the class shows what a device is, or nothing does.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "topo/tree.h"
#include "topo/xml.h"

/* A <net> whose name is not a device's: left for when all devices are known. */
struct alias {
	int elem, node;
};

struct reader {
	struct ep_topo *topo;
	const struct ep_xml *xml;
	struct ep_topo_err *err;
	int self_links;
	unsigned long long host[EP_TOPO_MAX_GPUS]; /* host_hash of topo's hosts */
	int naliases;
	struct alias alias[EP_TOPO_MAX_NICS];
};

/* ---- <nic>: which devices and ports of verbs its <net>s are ---- */

/* At the node, or anywhere on its host. */
static struct ep_topo_nic *find_nic(struct ep_topo *topo, const char *name, int node, bool anywhere)
{
	for (int i = 0; i < topo->nnics; i++) {
		const struct ep_topo_nic *nic = &topo->nic[i];

		if (nic->named &&
		    (anywhere ? nic->host == ep_topo_host_at(topo, node) : nic->node == node) &&
		    strcmp(topo->nic[i].name, name) == 0) {
			return &topo->nic[i];
		}
	}
	return NULL;
}

static const char *net_name(const struct reader *reader, int net)
{
	const char *name = ep_xml_attr(reader->xml, net, "name");

	return name ? name : "";
}

#define DMA_SUFFIX "_dma"

static bool is_dma(const char *name, size_t len)
{
	size_t suffix = strlen(DMA_SUFFIX);

	return len > suffix && strncmp(name + len - suffix, DMA_SUFFIX, suffix) == 0;
}

/*
 * "mlx5_0+mlx5_1" are two devices that NCCL uses as one. "mlx5_0_dma" is mlx5_0, at the end of its
 * data-direct path, which is not in use here.
 */
static bool is_alias(const char *name)
{
	return strchr(name, '+') || is_dma(name, strlen(name));
}

/* The devices of a <nic>, in its order. */
struct devices {
	int n;
	struct {
		const char *name;
		long dev; /* NCCL's order; -1: not given */
	} at[EP_TOPO_MAX_NICS];
};

static int find_device(const struct devices *devices, const char *name)
{
	for (int i = 0; i < devices->n; i++) {
		if (strcmp(devices->at[i].name, name) == 0) {
			return i;
		}
	}
	return -1;
}

static void list_devices(const struct reader *reader, int nic, struct devices *devices)
{
	devices->n = 0;
	ep_xml_for_each_child(reader->xml, nic, it)
	{
		const char *name = net_name(reader, it);

		if (ep_xml_is(reader->xml, it, "net") && !is_alias(name) &&
		    devices->n < EP_TOPO_MAX_NICS && find_device(devices, name) < 0) {
			devices->at[devices->n].name = name;
			devices->at[devices->n++].dev = ep_xml_long(reader->xml, it, "dev", -1);
		}
	}
}

/*
 * NCCL counts the ports of a card through all of its functions, which it puts into one <nic>:
 * verbs' port 1 of the second function is 2 there. So: devices that it counted before this one.
 */
static int devices_before(const struct devices *devices, const char *name)
{
	int own = find_device(devices, name), n = 0;

	for (int i = 0; own >= 0 && i < devices->n; i++) {
		bool ordered = devices->at[own].dev >= 0 && devices->at[i].dev >= 0;

		n += ordered ? devices->at[i].dev < devices->at[own].dev : i < own;
	}
	return n;
}

static void read_guid(const struct reader *reader, int net, struct ep_topo_nic *nic)
{
	const char *guid = ep_xml_attr(reader->xml, net, "guid");

	if (guid) {
		nic->guid = strtoull(guid, NULL, 0);
		/* NCCL writes the node's GUID here, and 0 for a socket interface. */
		nic->rdma = nic->guid != 0;
	}
}

static void read_port(const struct reader *reader, int net, struct ep_topo_nic *nic, long num,
		      int shared_by)
{
	long speed = ep_xml_long(reader->xml, net, "speed", 0);
	struct ep_topo_port *port = ep_topo_add_port(nic, num < 0 || num > 255 ? 1 : (int)num);

	if (port && speed > 0 && speed <= INT32_MAX) {
		port->mbps = (uint32_t)speed / (uint32_t)shared_by;
	}
}

/* One <net> is one port. */
static int read_net(struct reader *reader, const struct devices *devices, int elem, int node)
{
	long num = ep_xml_long(reader->xml, elem, "port", 1); /* of a socket interface: 0 */
	int before = devices_before(devices, net_name(reader, elem));
	struct ep_topo_nic *nic;
	char name[EP_TOPO_NAME_LEN];

	if (is_alias(net_name(reader, elem))) {
		if (reader->naliases == EP_TOPO_MAX_NICS) {
			return ep_topo_fail(reader->err, E2BIG, "more than %d NICs",
					    EP_TOPO_MAX_NICS);
		}
		reader->alias[reader->naliases++] = (struct alias){ elem, node };
		return 0;
	}
	ep_topo_copy_name(name, net_name(reader, elem));
	nic = *name ? find_nic(reader->topo, name, node, false) : NULL;
	if (!nic) {
		nic = ep_topo_add_nic(reader->topo, node, name, reader->err);
	}
	if (!nic) {
		return -E2BIG;
	}
	nic->no_gdr |= ep_xml_long(reader->xml, elem, "gdr", 1) == 0;
	read_guid(reader, elem, nic);
	read_port(reader, elem, nic, num > before ? num - before : num > 1 ? 1 : num, 1);
	return 0;
}

static int read_nic(struct reader *reader, int elem, int node)
{
	struct devices devices;
	int rc = 0;

	list_devices(reader, elem, &devices);
	ep_xml_for_each_child(reader->xml, elem, it)
	{
		if (ep_xml_is(reader->xml, it, "net") && !rc) {
			rc = read_net(reader, &devices, it, node);
		}
	}
	return rc;
}

/*
 * One device of an alias. Where it is listed by its own name, that is its place. Else a fused
 * device's place was made up by NCCL, and can only be found by name.
 */
static int read_aliased(struct reader *reader, const struct alias *alias, const char *text,
			size_t len, int devices)
{
	bool dma = is_dma(text, len);
	char raw[EP_TOPO_NAME_LEN], name[EP_TOPO_NAME_LEN];

	snprintf(raw, sizeof(raw), "%.*s", (int)(dma ? len - strlen(DMA_SUFFIX) : len), text);
	ep_topo_copy_name(name, raw);
	struct ep_topo_nic *nic = *name ? find_nic(reader->topo, name, alias->node, true) : NULL;

	if (!*name || nic) {
		return 0;
	}
	nic = ep_topo_add_nic(reader->topo, alias->node, name, reader->err);
	if (!nic) {
		return -E2BIG;
	}
	nic->elsewhere = !dma;
	nic->no_gdr = ep_xml_long(reader->xml, alias->elem, "gdr", 1) == 0;
	read_guid(reader, alias->elem, nic);
	read_port(reader, alias->elem, nic, 1, devices);
	return 0;
}

static int read_aliases(struct reader *reader)
{
	for (int i = 0; i < reader->naliases; i++) {
		const char *text = net_name(reader, reader->alias[i].elem), *plus;
		int devices = 1, rc = 0;

		for (const char *s = text; *s; s++) {
			devices += *s == '+';
		}
		do {
			size_t len = strcspn(text, "+");

			plus = text[len] ? text + len : NULL;
			rc = read_aliased(reader, &reader->alias[i], text, len, devices);
			text = plus ? plus + 1 : text;
		} while (plus && !rc);
		if (rc) {
			return rc;
		}
	}
	return 0;
}

/* ---- the tree ---- */

static int count_children(const struct ep_xml *xml, int elem, const char *name)
{
	int n = 0;

	ep_xml_for_each_child(xml, elem, it)
	{
		n += ep_xml_is(xml, it, name);
	}
	return n;
}

static uint32_t pci_mbps(const struct ep_xml *xml, int elem)
{
	const char *speed = ep_xml_attr(xml, elem, "link_speed");
	long width = ep_xml_long(xml, elem, "link_width", 0);

	if (!speed || width < 1 || width > 64) {
		return 0;
	}
	return ep_topo_link_mbps(strtod(speed, NULL), (int)width);
}

static void read_nvlink(struct reader *reader, int elem, struct ep_topo_gpu *gpu)
{
	const char *target = ep_xml_attr(reader->xml, elem, "target");
	long tclass = ep_xml_long(reader->xml, elem, "tclass", 0);
	long count = ep_xml_long(reader->xml, elem, "count", 1);
	enum ep_topo_nvlink_kind kind = EP_TOPO_NVLINK_GPU;
	struct ep_topo_pci pci = { .known = false };

	if (count < 1 || count > 1024) {
		return;
	}
	if (tclass == 0x068001) {
		kind = EP_TOPO_NVLINK_CPU;
	} else if (tclass >> 8 == 0x0680) {
		kind = EP_TOPO_NVLINK_SWITCH;
	} else if (!target || !ep_topo_pci_parse(target, &pci)) {
		return;
	}
	if (kind == EP_TOPO_NVLINK_GPU && ep_topo_find_node(reader->topo, &pci) == gpu->node) {
		reader->self_links++;
		return;
	}
	ep_topo_add_link(gpu, kind, &pci, (int)count);
}

/* Several <gpu> on one PCI device are its MIG instances. */
static int read_gpus(struct reader *reader, int elem, int node)
{
	int n = count_children(reader->xml, elem, "gpu");
	int instance = n > 1 ? 0 : -1;

	if (n == 0) {
		return ep_topo_add_gpu(reader->topo, node, reader->err) ? 0 : -E2BIG;
	}
	ep_xml_for_each_child(reader->xml, elem, it)
	{
		if (!ep_xml_is(reader->xml, it, "gpu")) {
			continue;
		}
		struct ep_topo_gpu *gpu = ep_topo_add_gpu(reader->topo, node, reader->err);

		if (!gpu) {
			return -E2BIG;
		}
		gpu->instance = n > 1 ? instance++ : -1;
		gpu->sm = (int)ep_xml_long(reader->xml, it, "sm", 0);
		gpu->nvlinks = 0;
		ep_xml_for_each_child(reader->xml, it, link)
		{
			if (ep_xml_is(reader->xml, link, "nvlink") && n == 1) {
				read_nvlink(reader, link, gpu);
			}
		}
	}
	return 0;
}

/* Network devices of clouds that do no RDMA: Amazon's ENA, virtio. */
static bool is_plain_ethernet(long vendor, long device)
{
	return vendor == 0x1af4 || (vendor == 0x1d0f && (device & 0xff00) == 0xec00);
}

static int read_device(struct reader *reader, int elem, int node)
{
	const struct ep_xml *xml = reader->xml;
	unsigned class_id = (unsigned)ep_xml_long(xml, elem, "class", 0);
	long vendor = ep_xml_long(xml, elem, "vendor", 0);
	long device = ep_xml_long(xml, elem, "device", 0);

	if (vendor == 0xffff) { /* "not known" in hand-written files */
		vendor = 0;
	}
	if (count_children(xml, elem, "gpu") || ep_topo_is_gpu(class_id, (unsigned)vendor)) {
		return read_gpus(reader, elem, node);
	}
	if (count_children(xml, elem, "nic")) {
		int rc = 0;

		ep_xml_for_each_child(xml, elem, it)
		{
			if (ep_xml_is(xml, it, "nic") && !rc) {
				rc = read_nic(reader, it, node);
			}
		}
		return rc;
	}
	if (class_id >> 16 == 0x02) {
		struct ep_topo_nic *nic = ep_topo_add_nic(reader->topo, node, NULL, reader->err);

		if (!nic) {
			return -E2BIG;
		}
		nic->rdma = !is_plain_ethernet(vendor, device);
		ep_topo_add_port(nic, 1);
	}
	if (class_id >> 8 == 0x0680) {
		reader->topo->nvswitch = EP_TOPO_YES;
	}
	reader->topo->unclassified += class_id == 0;
	return 0;
}

static int read_pci(struct reader *reader, int elem, int parent)
{
	const struct ep_xml *xml = reader->xml;
	const char *busid = ep_xml_attr(xml, elem, "busid");
	bool is_bridge = ep_xml_long(xml, elem, "class", 0) >> 8 == 0x0604 ||
			 count_children(xml, elem, "pci") > 0;
	struct ep_topo_pci pci;

	if (!busid || !ep_topo_pci_parse(busid, &pci)) {
		char shown[EP_TOPO_NAME_LEN];

		ep_topo_copy_name(shown, busid ? busid : "(none)");
		return ep_topo_fail(reader->err, EINVAL,
				    "<pci> with busid \"%s\", need dddd:bb:dd.f", shown);
	}
	if (ep_topo_find_node(reader->topo, &pci) >= 0) {
		char shown[EP_TOPO_PCI_LEN];

		ep_topo_note(reader->topo, "the file lists PCI device %s twice",
			     ep_topo_pci_print(&pci, shown));
	}
	/* NCCL's tree has one <pci> per switch, ports left out. */
	int node = ep_topo_add_node(reader->topo, parent,
				    is_bridge ? EP_TOPO_KIND_SWITCH : EP_TOPO_KIND_DEVICE, &pci,
				    reader->topo->nodes[parent].numa, reader->err);

	if (node < 0) {
		return node;
	}
	reader->topo->nodes[node].mbps = pci_mbps(xml, elem);
	if (!is_bridge) {
		return read_device(reader, elem, node);
	}
	ep_xml_for_each_child(xml, elem, it)
	{
		int rc = ep_xml_is(xml, it, "pci") ? read_pci(reader, it, node) : 0;

		if (rc) {
			return rc;
		}
	}
	return 0;
}

static unsigned long long host_hash(const struct reader *reader, int cpu)
{
	const char *text = ep_xml_attr(reader->xml, cpu, "host_hash");

	return text ? strtoull(text, NULL, 16) : 0;
}

/* Among the first n; n: not there. */
static int find_host(const struct reader *reader, int n, int cpu)
{
	unsigned long long hash = host_hash(reader, cpu);
	int i = 0;

	while (i < n && reader->host[i] != hash) {
		i++;
	}
	return i;
}

/* The dump of a communicator whose NVLinks span hosts has the <cpu>s of all of them. */
static int read_hosts(struct reader *reader)
{
	int n = 0;

	ep_xml_for_each_child(reader->xml, 0, it)
	{
		if (!ep_xml_is(reader->xml, it, "cpu") || find_host(reader, n, it) < n) {
			continue;
		}
		if (n == EP_TOPO_MAX_GPUS) {
			return ep_topo_fail(reader->err, E2BIG, "more than %d hosts",
					    EP_TOPO_MAX_GPUS);
		}
		reader->host[n++] = host_hash(reader, it);
	}
	for (int i = 0; i < n && n > 1; i++) {
		int rc = ep_topo_add_node(reader->topo, 0, EP_TOPO_KIND_MACHINE, NULL, -1,
					  reader->err);

		if (rc < 0) {
			return rc;
		}
	}
	reader->topo->nhosts = n > 1 ? n : 1;
	return 0;
}

static int read_cpu(struct reader *reader, int elem)
{
	long numa = ep_xml_long(reader->xml, elem, "numaid", -1);

	if (reader->topo->nhosts > 1) {
		reader->topo->home = 1 + find_host(reader, reader->topo->nhosts, elem);
	}
	int nodes = reader->topo->nnodes;
	int host = ep_topo_host_of_numa(reader->topo, numa < 0 || numa > 65535 ? -1 : (int)numa,
					reader->err);

	if (host < 0) {
		return host;
	}
	reader->topo->nnumas += numa >= 0 && host == nodes;
	if (host != nodes) {
		ep_topo_note(reader->topo, "the file lists NUMA node %ld twice", numa);
	}
	ep_xml_for_each_child(reader->xml, elem, it)
	{
		int rc = 0;

		if (ep_xml_is(reader->xml, it, "pci")) {
			rc = read_pci(reader, it, host);
		} else if (ep_xml_is(reader->xml, it, "nic")) {
			/* Virtual: no PCI device of its own. */
			int node = ep_topo_add_node(reader->topo, host, EP_TOPO_KIND_DEVICE, NULL,
						    reader->topo->nodes[host].numa, reader->err);

			rc = node < 0 ? node : read_nic(reader, it, node);
		}
		if (rc) {
			return rc;
		}
	}
	return 0;
}

static void read_nvswitch(struct ep_topo *topo)
{
	bool all_known = topo->ngpus > 0;

	for (int i = 0; i < topo->ngpus; i++) {
		if (topo->gpu[i].nvswitch) {
			topo->nvswitch = EP_TOPO_YES;
		}
		all_known &= topo->gpu[i].nvlinks >= 0;
	}
	if (topo->nvswitch == EP_TOPO_UNKNOWN && all_known) {
		topo->nvswitch = EP_TOPO_NO;
	}
}

int ep_topo_read_nccl(struct ep_topo *topo, const struct ep_xml *xml, struct ep_topo_err *err)
{
	struct reader r = { .topo = topo, .xml = xml, .err = err };
	long version = ep_xml_long(xml, 0, "version", -1);

	if (version != 1) {
		return ep_topo_fail(err, EINVAL, "NCCL topology version %ld, only 1 is known",
				    version);
	}
	int rc = read_hosts(&r);

	ep_xml_for_each_child(xml, 0, it)
	{
		if (!rc && ep_xml_is(xml, it, "cpu")) {
			rc = read_cpu(&r, it);
		}
	}
	rc = rc ? rc : read_aliases(&r);
	if (rc) {
		return rc;
	}
	topo->home = topo->nhosts > 1;
	read_nvswitch(topo);
	if (r.self_links) {
		ep_topo_note(topo, "%d NVLink entries join a GPU to itself, ignored", r.self_links);
	}
	return 0;
}
