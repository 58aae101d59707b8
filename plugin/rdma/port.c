/* SPDX-License-Identifier: Apache-2.0 */
/* What verbs say of a port, and which one to take where nothing tells distances. */
#include <stdio.h>
#include <string.h>
#include "core/util.h"
#include "rdma/choose.h"
#include "rdma/verbs.h"

void ep_gda_port_set(struct ep_gda_port *port, const char *name, int num,
		     const struct ibv_port_attr *attr)
{
	/* The codes of speeds grow with them; those of widths are out of order. */
	uint32_t lanes = attr->active_width == 2    ? 4
			 : attr->active_width == 4  ? 8
			 : attr->active_width == 8  ? 12
			 : attr->active_width == 16 ? 2
						    : 1;

	memset(port, 0, sizeof(*port));
	snprintf(port->name, sizeof(port->name), "%s", name);
	port->port = num;
	port->ethernet = attr->link_layer == IBV_LINK_LAYER_ETHERNET;
	port->speed = lanes * attr->active_speed;
}

const struct ep_gda_port *ep_gda_port_blind(const struct ep_gda_port *port, int n, uint32_t place)
{
	uint32_t fastest[2] = { 0 }, count[2] = { 0 };
	bool ethernet;

	for (int i = 0; i < n; i++) {
		bool e = port[i].ethernet;

		count[e]++;
		fastest[e] = (uint32_t)ep_max_u64(fastest[e], port[i].speed);
	}
	ethernet = fastest[1] != fastest[0] ? fastest[1] > fastest[0] : count[1] > count[0];
	place %= count[ethernet];
	while (port->ethernet != ethernet || place-- > 0) {
		port++;
	}
	return port;
}
