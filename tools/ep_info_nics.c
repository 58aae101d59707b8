// SPDX-License-Identifier: Apache-2.0
/* RDMA devices: which open, which ports they have, which know DevX. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/verbs.h"
#include "tools/ep_info.h"

static bool permitted(const char *name, int port)
{
	struct ep_topo_hca hca;
	struct ep_topo_err err;

	return !ep_topo_hca_parse(getenv("NCCL_IB_HCA"), &hca, &err) &&
	       ep_topo_hca_match(&hca, name, port);
}

/* Active and permitted ports go into the list; returns how many. */
static int list_ports(const struct ep_verbs *v, struct ibv_context *ctx, const char *name,
		      struct ep_info_nics *nics)
{
	struct ibv_device_attr attr;
	int first = nics->n;

	memset(&attr, 0, sizeof(attr));
	if (v->ibv_query_device(ctx, &attr)) {
		return 0;
	}
	for (int p = 1; p <= attr.phys_port_cnt; p++) {
		struct ibv_port_attr port;
		bool active = !ep_verbs_query_port(v, ctx, (uint8_t)p, &port) &&
			      port.state == IBV_PORT_ACTIVE;

		nics->ports++;
		nics->active += active;
		if (active && permitted(name, p) && nics->n < EP_INFO_MAX_PORTS) {
			ep_port_set(&nics->port[nics->n++], name, p, &port);
		}
	}
	return nics->n - first;
}

/* "": it opens with DEVX. */
static void try_devx(const struct ep_verbs *v, const struct ep_mlx5dv *dv, struct ibv_device *dev,
		     char *why, size_t size)
{
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_context *ctx;

	why[0] = '\0';
	if (!dv->mlx5dv_is_supported(dev)) {
		snprintf(why, size, "is not an mlx5 device");
		return;
	}
	ctx = dv->mlx5dv_open_device(dev, &attr);
	if (!ctx) {
		snprintf(why, size, "does not open with DEVX (%s)", strerror(errno));
		return;
	}
	v->ibv_close_device(ctx);
}

static void list_device(const struct ep_verbs *v, const struct ep_mlx5dv *dv,
			struct ibv_device *dev, struct ep_info_nics *nics)
{
	const char *name = v->ibv_get_device_name(dev);
	struct ibv_context *ctx = v->ibv_open_device(dev);
	size_t at = strlen(nics->closed);
	int n, first = nics->n;

	if (!ctx) {
		snprintf(nics->closed + at, sizeof(nics->closed) - at, "; %s does not open: %s",
			 name, strerror(errno));
		return;
	}
	n = list_ports(v, ctx, name, nics);
	v->ibv_close_device(ctx);
	if (n && dv) {
		try_devx(v, dv, dev, nics->no_devx[first], sizeof(nics->no_devx[first]));
	} else if (n) {
		snprintf(nics->no_devx[first], sizeof(nics->no_devx[first]),
			 "needs libmlx5 for it");
	}
	for (int i = 1; i < n; i++) {
		memcpy(nics->no_devx[first + i], nics->no_devx[first], sizeof(nics->no_devx[0]));
	}
}

void ep_info_nics_list(struct ep_info_nics *nics)
{
	const char *why;
	const struct ep_verbs *v = ep_verbs(&why);
	const struct ep_mlx5dv *dv = ep_mlx5dv(&why);
	struct ibv_device **devs;

	memset(nics, 0, sizeof(*nics));
	devs = v ? (v->ibv_get_device_list)(&nics->devices) : NULL;
	for (int i = 0; devs && i < nics->devices; i++) {
		list_device(v, dv, devs[i], nics);
	}
	if (devs) {
		v->ibv_free_device_list(devs);
	}
}

int ep_info_nics_find(const struct ep_info_nics *nics, const char *name, int port)
{
	for (int i = 0; i < nics->n; i++) {
		if (nics->port[i].port == port && strcmp(nics->port[i].name, name) == 0) {
			return i;
		}
	}
	return -1;
}
