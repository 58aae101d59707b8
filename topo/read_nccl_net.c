/* SPDX-License-Identifier: Apache-2.0 */
/* The <nic>s in NCCL's XML: which devices and ports of verbs its <net>s are. */
#include "topo/read_nccl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

static const char *net_name(const struct ep_topo_nccl *reader, int net)
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

/* "mlx5_0+mlx5_1" are two devices that NCCL uses as one. "mlx5_0_dma" is mlx5_0, at the end of its
 * data-direct path, which is not in use here. */
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

static void list_devices(const struct ep_topo_nccl *reader, int nic, struct devices *devices)
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

/* NCCL counts the ports of a card through all of its functions, which it puts into one <nic>:
 * verbs' port 1 of the second function is 2 there. So: devices that it counted before this one. */
static int devices_before(const struct devices *devices, const char *name)
{
	int own = find_device(devices, name), n = 0;

	for (int i = 0; own >= 0 && i < devices->n; i++) {
		bool ordered = devices->at[own].dev >= 0 && devices->at[i].dev >= 0;

		n += ordered ? devices->at[i].dev < devices->at[own].dev : i < own;
	}
	return n;
}

static void read_guid(const struct ep_topo_nccl *reader, int net, struct ep_topo_nic *nic)
{
	const char *guid = ep_xml_attr(reader->xml, net, "guid");

	if (guid) {
		nic->guid = strtoull(guid, NULL, 0);
		/* NCCL writes the node's GUID here, and 0 for a socket interface. */
		nic->rdma = nic->guid != 0;
	}
}

static void read_port(const struct ep_topo_nccl *reader, int net, struct ep_topo_nic *nic, long num,
		      int shared_by)
{
	long speed = ep_xml_long(reader->xml, net, "speed", 0);
	struct ep_topo_port *port = ep_topo_add_port(nic, num < 0 || num > 255 ? 1 : (int)num);

	if (port && speed > 0 && speed <= INT32_MAX) {
		port->mbps = (uint32_t)speed / (uint32_t)shared_by;
	}
}

/* One <net> is one port. */
static int read_net(struct ep_topo_nccl *reader, const struct devices *devices, int elem, int node)
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
		reader->alias[reader->naliases++] = (struct ep_topo_nccl_alias){ elem, node };
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

int ep_topo_nccl_read_nic(struct ep_topo_nccl *reader, int elem, int node)
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

/* One device of an alias. Where it is listed by its own name, that is its place. Else a fused device's
 * place was made up by NCCL, and can only be found by name. */
static int read_aliased(struct ep_topo_nccl *reader, const struct ep_topo_nccl_alias *alias,
			const char *text, size_t len, int devices)
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

int ep_topo_nccl_read_aliases(struct ep_topo_nccl *reader)
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
