/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA devices: which open, which ports they have, which know DevX. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gda/state.h"
#include "gda/prm.h"
#include "tools/ep_info.h"

static bool permitted(const char *name, int port)
{
	struct ep_topo_hca hca;
	struct ep_topo_err err;

	return !ep_topo_hca_parse(getenv("NCCL_IB_HCA"), &hca, &err) &&
	       ep_topo_hca_match(&hca, name, port);
}

/* Prints firmware's state of the port, whose device is open. */
static void ask_bond(const struct ep_mlx5dv *dv, struct ibv_context *ctx,
		     const struct ep_port *port, char *bond, size_t size)
{
	unsigned char caps[EP_PRM_CAP_OUT_BYTES];
	struct ep_gda_nic *nic = calloc(1, sizeof(*nic));
	struct ep_reason why;

	if (!nic) {
		return;
	}
	nic->base.dv = dv;
	nic->base.ctx = ctx;
	nic->base.end.link_layer = port->ethernet ? IBV_LINK_LAYER_ETHERNET
						  : IBV_LINK_LAYER_INFINIBAND;
	snprintf(nic->base.name, sizeof(nic->base.name), "%s", port->name);
	if (ep_gda_query_caps(nic, EP_PRM_CAPS_GENERAL, caps, &why)) {
		ep_gda_lag_query(nic, caps + EP_PRM_CAP_AT);
	}
	if (nic->lag.ports) {
		snprintf(bond, size, "%u ports, %s", nic->lag.ports,
			 nic->lag.by_queue ? "by queue pair" : "by a hash of headers");
	}
	free(nic);
}

/* "": it opens with DEVX. */
static void try_devx(const struct ep_port_list *list, const struct ep_port *port, char *why,
		     size_t size, char *bond, size_t bond_size)
{
	const char *name = port->name;
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_device *dev = ep_port_list_device(list, name);
	struct ibv_context *ctx = NULL;
	const char *no_dv;
	const struct ep_mlx5dv *dv = ep_mlx5dv(&no_dv);

	why[0] = '\0';
	if (!dv) {
		snprintf(why, size, "needs libmlx5 for it");
	} else if (!dv->mlx5dv_is_supported(dev)) {
		snprintf(why, size, "is not an mlx5 device");
	} else if (!(ctx = dv->mlx5dv_open_device(dev, &attr))) {
		snprintf(why, size, "does not open with DEVX (%s)", strerror(errno));
	} else {
		ask_bond(dv, ctx, port, bond, bond_size);
		list->v->ibv_close_device(ctx);
	}
}

void ep_info_nics_list(struct ep_info_nics *nics)
{
	struct ep_port_list list;
	struct ep_reason why;

	memset(nics, 0, sizeof(*nics));
	(void)ep_port_list_open(&list, &why);
	nics->devices = list.ndevs;
	nics->ports = list.nports;
	nics->active = list.n;
	snprintf(nics->closed, sizeof(nics->closed), "%.95s", list.closed.text);
	for (int i = 0; i < list.n; i++) {
		if (permitted(list.port[i].name, list.port[i].port)) {
			try_devx(&list, &list.port[i], nics->no_devx[nics->n],
				 sizeof(nics->no_devx[0]), nics->bond[nics->n],
				 sizeof(nics->bond[0]));
			nics->port[nics->n++] = list.port[i];
		}
	}
	ep_port_list_close(&list);
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
