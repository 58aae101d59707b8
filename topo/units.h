/* SPDX-License-Identifier: Apache-2.0 */
/* Inside topo/ only: what there is to choose from. A unit is one port of one NIC. */
#ifndef EP_TOPO_UNITS_H
#define EP_TOPO_UNITS_H

#include "topo/tree.h"

#define EP_TOPO_MAX_UNITS (EP_TOPO_MAX_NICS * EP_TOPO_MAX_PORTS)

struct ep_topo_unit {
	int nic, port;
	uint32_t mbps;
	bool candidate, slow;
};

struct ep_topo_units {
	struct ep_topo *topo;
	int n;
	struct ep_topo_unit unit[EP_TOPO_MAX_UNITS];
};

struct ep_topo_port *ep_topo_unit_port(const struct ep_topo_units *units, int u);

/* The usable units, all of one link layer. Of the others ep_topo_port.why says why not. */
void ep_topo_units_list(struct ep_topo_units *units, const struct ep_topo_opts *opts,
			const struct ep_topo_hca *hca);

/* Smaller is nearer. Half of it is the distance. */
int ep_topo_unit_rank(const struct ep_topo_units *units, int gpu, int u);

/* Marks the units that a GPU may use: the nearest ones, if they are at least half as fast as the
 * fastest of these. Returns their rank, that of EP_TOPO_FAR if there is none. */
int ep_topo_units_near(const struct ep_topo_units *units, int gpu, bool *may);

#endif
