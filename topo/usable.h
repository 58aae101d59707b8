/* SPDX-License-Identifier: Apache-2.0 */
/* Inside topo/ only: the ports that there are to choose from. */
#ifndef EP_TOPO_USABLE_H
#define EP_TOPO_USABLE_H

#include "topo/tree.h"

#define EP_TOPO_MAX_USABLE (EP_TOPO_MAX_NICS * EP_TOPO_MAX_PORTS)

struct ep_topo_usable_port {
	int nic, port;
	uint32_t mbps;
	bool candidate, slow, no_speed;
};

struct ep_topo_usable {
	struct ep_topo *topo;
	int n;
	struct ep_topo_usable_port port[EP_TOPO_MAX_USABLE];
};

struct ep_topo_port *ep_topo_usable_at(const struct ep_topo_usable *usable, int u);

/* The usable ports, all of one link layer. Of the others ep_topo_port.why has the reason. */
void ep_topo_usable_list(struct ep_topo_usable *usable, const struct ep_topo_opts *opts,
			 const struct ep_topo_hca *hca);

/* Smaller is nearer. Half of it is the distance. */
int ep_topo_usable_rank(const struct ep_topo_usable *usable, int gpu, int u);

/* Marks the ports that a GPU may use: the nearest ones, if they are at least half as fast as the
 * fastest of these. Returns their rank, that of EP_TOPO_DISTANT if there is none. */
int ep_topo_usable_near(const struct ep_topo_usable *usable, int gpu, bool *may);

#endif
