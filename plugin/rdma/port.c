/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of a port from verbs, and which one to take where distances are unknown. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "rdma/port.h"
#include "topo/topo.h"

/*
 * Mbit/s by what verbs have reported of old: codes of speeds are bits, of which NDR is the last, and those of widths
 * are out of order.
 */
static uint32_t ep_port_verbs_mbps(const struct ibv_port_attr *attr)
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
	/* Of what is faster than NDR only the kernel's file knows: verbs report NDR, or nothing. */
	port->mbps = ep_topo_port_mbps(root, name, num, port->ethernet, ep_port_verbs_mbps(attr));
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

static void ep_port_list_add(struct ep_port_list *list, struct ibv_device *dev)
{
	const char *name = list->v->ibv_get_device_name(dev);
	struct ibv_context *ctx = list->v->ibv_open_device(dev);
	size_t at = strlen(list->closed.text);
	struct ibv_device_attr attr;

	if (!ctx) {
		snprintf(list->closed.text + at, sizeof(list->closed.text) - at,
			 "; %s could not be opened: %s%s", name, strerror(errno),
			 errno == EMFILE ? " (ulimit -n)" : "");
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
			EP_INFO(EP_LOG_NET,
				"%s:%d and later ports are not looked at, the limit is %d", name, p,
				EP_PORT_MAX);
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
		ep_port_list_add(list, list->dev[i]);
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
