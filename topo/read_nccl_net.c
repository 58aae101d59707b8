// SPDX-License-Identifier: Apache-2.0
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

static const char *net_name(const struct ep_topo_nccl *r, int net)
{
	const char *name = ep_xml_attr(r->xml, net, "name");

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
		long dev; /* NCCL's order; -1: not said */
	} at[EP_TOPO_MAX_NICS];
};

static int find_device(const struct devices *d, const char *name)
{
	for (int i = 0; i < d->n; i++) {
		if (strcmp(d->at[i].name, name) == 0) {
			return i;
		}
	}
	return -1;
}

static void list_devices(const struct ep_topo_nccl *r, int nic, struct devices *d)
{
	d->n = 0;
	ep_xml_for_each_child(r->xml, nic, it)
	{
		const char *name = net_name(r, it);

		if (ep_xml_is(r->xml, it, "net") && !is_alias(name) && d->n < EP_TOPO_MAX_NICS &&
		    find_device(d, name) < 0) {
			d->at[d->n].name = name;
			d->at[d->n++].dev = ep_xml_long(r->xml, it, "dev", -1);
		}
	}
}

/* NCCL counts the ports of a card through all of its functions, which it puts into one <nic>:
 * verbs' port 1 of the second function is 2 there. So: devices that it counted before this one. */
static int devices_before(const struct devices *d, const char *name)
{
	int own = find_device(d, name), n = 0;

	for (int i = 0; own >= 0 && i < d->n; i++) {
		bool ordered = d->at[own].dev >= 0 && d->at[i].dev >= 0;

		n += ordered ? d->at[i].dev < d->at[own].dev : i < own;
	}
	return n;
}

static void read_guid(const struct ep_topo_nccl *r, int net, struct ep_topo_nic *nic)
{
	const char *guid = ep_xml_attr(r->xml, net, "guid");

	if (guid) {
		nic->guid = strtoull(guid, NULL, 0);
		/* NCCL writes the node's GUID here, and 0 for a socket interface. */
		nic->rdma = nic->guid != 0;
	}
}

static void read_port(const struct ep_topo_nccl *r, int net, struct ep_topo_nic *nic, long num,
		      int shared_by)
{
	long speed = ep_xml_long(r->xml, net, "speed", 0);
	struct ep_topo_port *port = ep_topo_add_port(nic, num < 0 || num > 255 ? 1 : (int)num);

	if (port && speed > 0 && speed <= INT32_MAX) {
		port->mbps = (uint32_t)speed / (uint32_t)shared_by;
	}
}

/* One <net> is one port. */
static int read_net(struct ep_topo_nccl *r, const struct devices *d, int elem, int node)
{
	long num = ep_xml_long(r->xml, elem, "port", 1); /* of a socket interface: 0 */
	int before = devices_before(d, net_name(r, elem));
	struct ep_topo_nic *nic;
	char name[EP_TOPO_NAME_LEN];

	if (is_alias(net_name(r, elem))) {
		if (r->naliases == EP_TOPO_MAX_NICS) {
			return ep_topo_fail(r->err, E2BIG, "more than %d NICs", EP_TOPO_MAX_NICS);
		}
		r->alias[r->naliases++] = (struct ep_topo_nccl_alias){ elem, node };
		return 0;
	}
	ep_topo_copy_name(name, net_name(r, elem));
	nic = *name ? find_nic(r->topo, name, node, false) : NULL;
	if (!nic) {
		nic = ep_topo_add_nic(r->topo, node, name, r->err);
	}
	if (!nic) {
		return -E2BIG;
	}
	read_guid(r, elem, nic);
	read_port(r, elem, nic, num > before ? num - before : num > 1 ? 1 : num, 1);
	return 0;
}

int ep_topo_nccl_read_nic(struct ep_topo_nccl *r, int elem, int node)
{
	struct devices devices;
	int rc = 0;

	list_devices(r, elem, &devices);
	ep_xml_for_each_child(r->xml, elem, it)
	{
		if (ep_xml_is(r->xml, it, "net") && !rc) {
			rc = read_net(r, &devices, it, node);
		}
	}
	return rc;
}

/* One device of an alias. Where it is listed by its own name, that is its place. Else a fused device's
 * place was made up by NCCL, and can only be found by name. */
static int read_aliased(struct ep_topo_nccl *r, const struct ep_topo_nccl_alias *alias,
			const char *text, size_t len, int devices)
{
	bool dma = is_dma(text, len);
	char raw[EP_TOPO_NAME_LEN], name[EP_TOPO_NAME_LEN];

	snprintf(raw, sizeof(raw), "%.*s", (int)(dma ? len - strlen(DMA_SUFFIX) : len), text);
	ep_topo_copy_name(name, raw);
	struct ep_topo_nic *nic = *name ? find_nic(r->topo, name, alias->node, true) : NULL;

	if (!*name || nic) {
		return 0;
	}
	nic = ep_topo_add_nic(r->topo, alias->node, name, r->err);
	if (!nic) {
		return -E2BIG;
	}
	nic->elsewhere = !dma;
	read_guid(r, alias->elem, nic);
	read_port(r, alias->elem, nic, 1, devices);
	return 0;
}

int ep_topo_nccl_read_aliases(struct ep_topo_nccl *r)
{
	for (int i = 0; i < r->naliases; i++) {
		const char *text = net_name(r, r->alias[i].elem), *plus;
		int devices = 1, rc = 0;

		for (const char *s = text; *s; s++) {
			devices += *s == '+';
		}
		do {
			size_t len = strcspn(text, "+");

			plus = text[len] ? text + len : NULL;
			rc = read_aliased(r, &r->alias[i], text, len, devices);
			text = plus ? plus + 1 : text;
		} while (plus && !rc);
		if (rc) {
			return rc;
		}
	}
	return 0;
}
