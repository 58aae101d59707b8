/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's ports, the address of each, and its traffic class. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "core/log.h"
#include "rdma/rdma.h"
#include "topo/topo.h"

/*
 * Returns the port's Mbit/s by the codes of verbs, or 0 without a known one. Codes of speeds are
 * bits, of which NDR is the last. Codes of widths are out of order.
 */
static uint32_t port_verbs_mbps(const struct ibv_port_attr *attr)
{
	static const uint32_t lane[] = { 2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000 };
	uint32_t lanes = attr->active_width == 2    ? 4
			 : attr->active_width == 4  ? 8
			 : attr->active_width == 8  ? 12
			 : attr->active_width == 16 ? 2
						    : 1;
	int i = 7;

	while (i >= 0 && !(attr->active_speed >> i & 1)) {
		i--;
	}
	return i < 0 ? 0 : lanes * lane[i];
}

void ep_port_set(struct ep_port *port, const char *name, int num, const struct ibv_port_attr *attr,
		 const char *root)
{
	memset(port, 0, sizeof(*port));
	snprintf(port->name, sizeof(port->name), "%s", name);
	port->port = num;
	port->ethernet = attr->link_layer == IBV_LINK_LAYER_ETHERNET;
	/* Only the kernel's file has speeds above NDR: verbs report NDR for them, or none. */
	port->mbps = ep_topo_port_mbps(root, name, num, port->ethernet, port_verbs_mbps(attr));
}

const struct ep_port *ep_port_by_place(const struct ep_port *port, int n, uint32_t place)
{
	uint32_t fastest[2] = { 0 }, count[2] = { 0 };
	bool ethernet;

	for (int i = 0; i < n; i++) {
		bool e = port[i].ethernet;

		count[e]++;
		fastest[e] = (uint32_t)ep_max_u64(fastest[e], port[i].mbps);
	}
	ethernet = fastest[1] != fastest[0] ? fastest[1] > fastest[0] : count[1] > count[0];
	place %= count[ethernet];
	while (port->ethernet != ethernet || place-- > 0) {
		port++;
	}
	return port;
}

/* Adds the active ports of a device to the list, and notes a device that cannot be opened. */
static void port_list_add(struct ep_port_list *list, struct ibv_device *dev)
{
	const char *name = list->v->ibv_get_device_name(dev);
	struct ibv_context *ctx = list->v->ibv_open_device(dev);
	size_t at = strlen(list->closed.text);
	struct ibv_device_attr attr;
	struct ep_reason why;

	if (!ctx) {
		ep_reason_set(&why, "%s could not be opened: %s%s", name, strerror(errno),
			      errno == EMFILE ? " (ulimit -n)" : "");
		/* (where other devices serve, nobody asks for the list's reason) */
		EP_INFO(EP_LOG_INIT | EP_LOG_NET, "%s", why.text);
		snprintf(list->closed.text + at, sizeof(list->closed.text) - at, "; %s", why.text);
		return;
	}
	memset(&attr, 0, sizeof(attr));
	if (list->v->ibv_query_device(ctx, &attr) != 0) {
		attr.phys_port_cnt = 0;
	}
	list->nports += attr.phys_port_cnt;
	for (int p = 1; p <= attr.phys_port_cnt; p++) {
		struct ibv_port_attr state;

		if (ep_verbs_query_port(list->v, ctx, (uint8_t)p, &state) != 0 ||
		    state.state != IBV_PORT_ACTIVE) {
			continue;
		}
		if (list->n == EP_PORT_MAX) {
			if (!list->full) {
				EP_WARN("%s:%d and later ports are left out: %d active RDMA ports "
					"are the limit, before NCCL_IB_HCA counts",
					name, p, EP_PORT_MAX);
			}
			list->full = true;
			break;
		}
		ep_port_set(&list->port[list->n++], name, p, &state, EP_PORT_SYSFS);
	}
	list->v->ibv_close_device(ctx);
}

bool ep_port_list_open(struct ep_port_list *list, struct ep_reason *why)
{
	const char *no_verbs;

	memset(list, 0, sizeof(*list));
	list->v = ep_verbs(&no_verbs);
	if (!list->v) {
		return ep_reason_set(why, "%s", no_verbs);
	}
	list->dev = (list->v->ibv_get_device_list)(&list->ndevs);
	for (int i = 0; list->dev && i < list->ndevs; i++) {
		port_list_add(list, list->dev[i]);
	}
	return list->n ||
	       ep_reason_set(why, "there is no active RDMA port (%d devices%s): see ibv_devinfo",
			     list->dev ? list->ndevs : 0, list->closed.text);
}

struct ibv_device *ep_port_list_device(const struct ep_port_list *list, const char *name)
{
	for (int i = 0; i < list->ndevs; i++) {
		if (strcmp(list->v->ibv_get_device_name(list->dev[i]), name) == 0) {
			return list->dev[i];
		}
	}
	return NULL;
}

void ep_port_list_close(struct ep_port_list *list)
{
	if (list->dev) {
		list->v->ibv_free_device_list(list->dev);
	}
}

/* ---- GIDs: which of a port's addresses its packets carry as their source ---- */

static bool gid_empty(const uint8_t raw[16])
{
	static const uint8_t zero[16];

	/* Empty entries of InfiniBand hold a link-local prefix and zeros. */
	return memcmp(raw, zero, 16) == 0 ||
	       (raw[0] == 0xfe && raw[1] == 0x80 && memcmp(raw + 2, zero, 14) == 0);
}

bool ep_gid_is_ipv4(const uint8_t raw[16])
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return memcmp(raw, mapped, 12) == 0;
}

static bool gid_is_link_local(const uint8_t raw[16])
{
	if (ep_gid_is_ipv4(raw)) {
		return raw[12] == 169 && raw[13] == 254;
	}
	return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
}

static bool gid_in_range(const uint8_t raw[16], const struct ep_ib_env *env)
{
	for (int bit = 0; bit < env->range_bits; bit++) {
		if ((raw[bit / 8] ^ env->range[bit / 8]) & (0x80 >> bit % 8)) {
			return false;
		}
	}
	return true;
}

bool ep_gid_same_subnet(const uint8_t a[16], const uint8_t b[16])
{
	return memcmp(a + 6, b + 6, 2) == 0;
}

uint16_t ep_gid_flid(const uint8_t raw[16])
{
	return (uint16_t)(raw[4] << 8 | raw[5]);
}

const char *ep_gid_print(const uint8_t raw[16], char buf[EP_GID_TEXT])
{
	bool ipv4 = ep_gid_is_ipv4(raw);

	if (!inet_ntop(ipv4 ? AF_INET : AF_INET6, raw + (ipv4 ? 12 : 0), buf, EP_GID_TEXT)) {
		buf[0] = '\0';
	}
	return buf;
}

/*
 * Writes the place of entry `index` to *chosen. `asked`: NCCL_IB_GID_INDEX names it, for the error.
 */
static ncclResult_t gid_at(const char *port, const struct ep_gid *list, int n, int index,
			   bool asked, int *chosen)
{
	for (int i = 0; i < n; i++) {
		if (list[i].index == index && !gid_empty(list[i].raw)) {
			*chosen = i;
			return ncclSuccess;
		}
	}
	return asked ? ep_fail(ncclInvalidUsage,
			       "NCCL_IB_GID_INDEX=%d, but that entry of the GID table of %s is "
			       "empty: choose another (show_gids lists them) or unset it",
			       index, port)
		     : ep_fail(ncclSystemError,
			       "the GID table of %s is empty: is the port configured by a subnet "
			       "manager?",
			       port);
}

/* How well an entry fits: smaller is better, and EP_GID_NEVER must not be used. */
enum {
	EP_GID_GOOD,
	EP_GID_OTHER_FAMILY,
	EP_GID_LINK_LOCAL,
	EP_GID_NEVER
};

static int gid_rank(const struct ep_gid *gid, const struct ep_ib_env *env)
{
	bool family = ep_gid_is_ipv4(gid->raw) == !env->ipv6;

	if (gid_empty(gid->raw) || gid->roce != env->roce_version) {
		return EP_GID_NEVER;
	}
	if (env->range_bits >= 0) {
		return family && gid_in_range(gid->raw, env) ? EP_GID_GOOD : EP_GID_NEVER;
	}
	if (gid_is_link_local(gid->raw)) {
		return EP_GID_LINK_LOCAL;
	}
	return family ? EP_GID_GOOD : EP_GID_OTHER_FAMILY;
}

/* Returns the error of a port without a usable GID. */
static ncclResult_t gid_none(const char *port, const struct ep_gid *list, int n,
			     const struct ep_ib_env *env)
{
	int version = 0, due = 0;

	for (int i = 0; i < n; i++) {
		due += !list[i].roce && !gid_empty(list[i].raw);
		version += list[i].roce == env->roce_version && !gid_empty(list[i].raw);
	}
	if (due && !version) {
		return ep_fail(
			ncclSystemError,
			"no usable GID on %s: neither libibverbs (too old) nor the kernel "
			"reports the RoCE version of %d of %d entries; set NCCL_IB_GID_INDEX "
			"(show_gids lists them) or install a newer libibverbs",
			port, due, n);
	}
	return ep_fail(ncclSystemError,
		       "no usable GID on %s: of %d entries %d are of RoCE version %d%s; give the "
		       "port an IP address, or set NCCL_IB_GID_INDEX",
		       port, n, version, env->roce_version,
		       version ? ", all outside NCCL_IB_ADDR_RANGE" : "");
}

ncclResult_t ep_gid_pick(const char *port, bool ethernet, const struct ep_gid *list, int n,
			 const struct ep_ib_env *env, int *chosen)
{
	int best = EP_GID_NEVER;
	char text[EP_GID_TEXT];

	if (!ethernet) {
		for (int i = 0; i < n; i++) {
			if (list[i].index == env->flid_index && ep_gid_flid(list[i].raw)) {
				*chosen = i;
				return ncclSuccess;
			}
		}
		return gid_at(port, list, n, 0, false, chosen);
	}
	if (env->gid_index >= 0) {
		return gid_at(port, list, n, env->gid_index, true, chosen);
	}
	for (int i = 0; i < n; i++) {
		int rank = gid_rank(&list[i], env);

		if (rank < best) {
			best = rank;
			*chosen = i;
		}
	}
	if (best == EP_GID_NEVER) {
		return gid_none(port, list, n, env);
	}
	if (best == EP_GID_LINK_LOCAL) {
		EP_INFO(EP_LOG_NET,
			"%s has only link-local addresses, GID %d is %s: peers must be "
			"on the same Ethernet",
			port, list[*chosen].index, ep_gid_print(list[*chosen].raw, text));
	}
	return ncclSuccess;
}

int ep_gid_roce(const char *root, const char *device, int port, int index)
{
	char path[512], text[32] = "";
	int version = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s/ports/%d/gid_attrs/types/%d", root, device, port,
		 index);
	file = fopen(path, "re");
	if (!file) {
		return 0;
	}
	if (fgets(text, sizeof(text), file)) {
		text[strcspn(text, "\n")] = '\0';
		version = !strcmp(text, "RoCE v2") ? 2 : !strcmp(text, "IB/RoCE v1") ? 1 : 0;
	}
	fclose(file);
	return version;
}

/* Reads an entry of the port's GID table. Returns false if it is empty. */
static bool gid_read(struct ep_nic *nic, int index, struct ep_gid *out)
{
	static const uint8_t none[16];
	struct ibv_gid_entry entry;
	union ibv_gid gid;

	out->index = index;
	out->roce = 0;
	if (nic->v->_ibv_query_gid_ex) {
		if (nic->v->_ibv_query_gid_ex(nic->ctx, (uint32_t)nic->port, (uint32_t)index,
					      &entry, 0, sizeof(entry)) != 0) {
			return false;
		}
		out->roce = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? 2
			    : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? 1
								     : 0;
		memcpy(out->raw, entry.gid.raw, sizeof(out->raw));
	} else {
		/* An old libibverbs does not report the type: the kernel does. */
		if (nic->v->ibv_query_gid(nic->ctx, (uint8_t)nic->port, index, &gid) != 0) {
			return false;
		}
		memcpy(out->raw, gid.raw, sizeof(out->raw));
		if (nic->end.link_layer == IBV_LINK_LAYER_ETHERNET) {
			out->roce = ep_gid_roce(EP_NIC_SYSFS, nic->name, nic->port, index);
		}
	}
	return memcmp(out->raw, none, sizeof(none)) != 0;
}

ncclResult_t ep_nic_address_choose(struct ep_nic *nic, const struct ep_ib_env *env, int entries)
{
	struct ep_gid *list = calloc((size_t)entries + 1, sizeof(*list));
	bool ethernet = nic->end.link_layer == IBV_LINK_LAYER_ETHERNET;
	ncclResult_t result;
	int n = 0, chosen = -1;
	char name[80];

	if (!list) {
		return ep_fail(ncclSystemError, "out of host memory for %d addresses", entries);
	}
	for (int i = 0; i < entries; i++) {
		n += gid_read(nic, i, &list[n]);
	}
	snprintf(name, sizeof(name), "%s:%d", nic->name, nic->port);
	result = ep_gid_pick(name, ethernet, list, n, env, &chosen);
	if (result == ncclSuccess) {
		nic->gid_index = (uint32_t)list[chosen].index;
		memcpy(nic->end.gid, list[chosen].raw, sizeof(nic->end.gid));
		nic->end.roce = (uint8_t)list[chosen].roce;
		if (ethernet && !nic->end.roce) {
			nic->end.roce = 2;
		}
	}
	free(list);
	return result;
}

/*
 * Returns the class that the file has for all addresses, or -1 if it has none. *rules: whether it
 * has lines of another form.
 */
static int nic_class_read(const char *path, bool *rules)
{
	FILE *file = fopen(path, "re");
	char line[128], rest;
	int value = -1, n;

	*rules = false;
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "Global tclass=%d%c", &n, &rest) == 2 && rest == '\n' && n >= 0 &&
		    n <= 255) {
			value = n;
		} else {
			*rules = true;
		}
	}
	if (file) {
		fclose(file);
	}
	return value;
}

/*
 * NVIDIA's kernel modules let an administrator give a RoCE port a class. The kernel writes it into
 * the queue pairs that it sets up itself, but not into DevX queues.
 */
void ep_nic_class_choose(struct ep_nic *nic, const struct ep_ib_env *env, const char *root)
{
	char path[512];
	int set = -1;
	bool rules = false;

	snprintf(path, sizeof(path), "%s/%s/tc/%d/traffic_class", root, nic->name, nic->port);
	if (nic->end.link_layer == IBV_LINK_LAYER_ETHERNET) {
		set = nic_class_read(path, &rules);
	}
	nic->tc = (uint8_t)(env->tc >= 0 ? env->tc : set >= 0 ? set : 0);
	if (set >= 0) {
		EP_INFO(EP_LOG_NET, "%s:%d: traffic class %u%s, %s has %d", nic->name, nic->port,
			nic->tc, env->tc >= 0 ? " of NCCL_IB_TC" : "", path, set);
	} else if (rules && env->tc < 0) {
		EP_WARN("%s:%d: class 0 is used, because %s has classes of single addresses only: set "
			"NCCL_IB_TC",
			nic->name, nic->port, path);
	}
}
