/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports that are bonds of several (RoCE LAG), as the kernel's files have them. Verbs tell the rate of one
 * member of such a port.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "rdma/port.h"
#include "topo/topo.h"

#define EP_BOND_GIDS 8 /* entries that are looked at for the port's interface */

/* The device of PCI that a file leads to, without its function; "": none. */
static void ep_bond_slot(const char *path, char slot[PATH_MAX])
{
	char *dot;

	if (!realpath(path, slot)) {
		slot[0] = '\0';
		return;
	}
	dot = strrchr(slot, '.');
	if (dot) {
		*dot = '\0';
	}
}

/* An interface of the bond that is a port of the same NIC. */
static void ep_bond_member(const char *root, const char *slot, const char *slave,
			   struct ep_bond *bond)
{
	char path[512], at[PATH_MAX], text[32];

	snprintf(path, sizeof(path), "%s/net/%s/device", root, slave);
	ep_bond_slot(path, at);
	if (!at[0] || strcmp(at, slot) != 0) {
		return;
	}
	bond->members++;
	snprintf(path, sizeof(path), "net/%s/operstate", slave);
	if (!ep_topo_read_line(root, path, text, sizeof(text)) || strcmp(text, "up") != 0) {
		return;
	}
	bond->up++;
	snprintf(path, sizeof(path), "net/%s/speed", slave);
	if (ep_topo_read_line(root, path, text, sizeof(text)) && atol(text) > 0) {
		bond->mbps += (uint32_t)atol(text);
	}
}

bool ep_bond_read(const char *root, const char *device, int port, struct ep_bond *bond)
{
	char path[512], slot[PATH_MAX], slaves[512], *save = NULL;
	bool found = false;

	memset(bond, 0, sizeof(*bond));
	snprintf(path, sizeof(path), "%s/infiniband/%s/device", root, device);
	ep_bond_slot(path, slot);
	for (int i = 0; slot[0] && i < EP_BOND_GIDS && !found; i++) {
		snprintf(path, sizeof(path), "infiniband/%s/ports/%d/gid_attrs/ndevs/%d", device,
			 port, i);
		found = ep_topo_read_line(root, path, bond->name, sizeof(bond->name));
	}
	snprintf(path, sizeof(path), "net/%s/bonding/slaves", bond->name);
	if (!found || !ep_topo_read_line(root, path, slaves, sizeof(slaves))) {
		return false;
	}
	for (char *s = strtok_r(slaves, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
		ep_bond_member(root, slot, s, bond);
	}
	return bond->members > 1;
}

void ep_port_bond(const char *root, struct ep_port *port)
{
	struct ep_bond bond;

	if (port->ethernet && ep_bond_read(root, port->name, port->port, &bond) && port->mbps &&
	    bond.mbps > port->mbps) {
		port->mbps = bond.mbps;
	}
}
