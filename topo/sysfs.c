/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of the kernel, and how fast they show a port to be; also a port that is a bond of several
 * (RoCE LAG), of which verbs and the file "rate" report the rate of one. This file uses nothing
 * else of topo/, because the library has it, too.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "topo/topo.h"

bool ep_topo_read_line(const char *dir, const char *name, char *buf, size_t size)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path)) {
		return false;
	}
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		return false;
	}
	ssize_t n = read(fd, buf, size - 1);

	close(fd);
	if (n < 0) {
		return false;
	}
	buf[n] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	return buf[0] != '\0';
}

#define EP_TOPO_BOND_GIDS 8 /* entries that are looked at for the port's interface */
#define EP_TOPO_MAX_MBPS 1e9

/* The device of PCI that a file leads to, without its function; "": none. */
static void slot_of(const char *path, char slot[PATH_MAX])
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

/* The bond's mode, and in `active` the only member that carries anything; "": all of them do. */
static void read_mode(const char *class_dir, struct ep_topo_bond *bond, char active[64])
{
	char path[128];

	active[0] = '\0';
	snprintf(path, sizeof(path), "net/%s/bonding/mode", bond->name);
	if (ep_topo_read_line(class_dir, path, bond->mode, sizeof(bond->mode))) {
		bond->mode[strcspn(bond->mode, " ")] = '\0'; /* "active-backup 1" */
	}
	snprintf(path, sizeof(path), "net/%s/bonding/active_slave", bond->name);
	if (strcmp(bond->mode, "active-backup") == 0) {
		(void)ep_topo_read_line(class_dir, path, active, 64);
	}
}

/* An interface of the bond that is a port of the same NIC. `active` as above. */
static void read_member(const char *class_dir, const char *slot, const char *member,
			const char *active, struct ep_topo_bond *bond)
{
	char path[512], at[PATH_MAX], text[32];

	snprintf(path, sizeof(path), "%s/net/%s/device", class_dir, member);
	slot_of(path, at);
	if (!at[0] || strcmp(at, slot) != 0) {
		return;
	}
	bond->members++;
	snprintf(path, sizeof(path), "net/%s/operstate", member);
	if (!ep_topo_read_line(class_dir, path, text, sizeof(text)) || strcmp(text, "up") != 0) {
		return;
	}
	snprintf(path, sizeof(path), "net/%s/speed", member);
	if ((!active[0] || strcmp(active, member) == 0) &&
	    ep_topo_read_line(class_dir, path, text, sizeof(text)) && atol(text) > 0) {
		bond->mbps += (uint32_t)atol(text);
	}
}

bool ep_topo_bond_read(const char *class_dir, const char *device, int port,
		       struct ep_topo_bond *bond)
{
	char path[512], slot[PATH_MAX], members[512], active[64], *save = NULL;
	bool found = false;

	memset(bond, 0, sizeof(*bond));
	snprintf(path, sizeof(path), "%s/infiniband/%s/device", class_dir, device);
	slot_of(path, slot);
	for (int i = 0; slot[0] && i < EP_TOPO_BOND_GIDS && !found; i++) {
		snprintf(path, sizeof(path), "infiniband/%s/ports/%d/gid_attrs/ndevs/%d", device,
			 port, i);
		found = ep_topo_read_line(class_dir, path, bond->name, sizeof(bond->name));
	}
	snprintf(path, sizeof(path), "net/%s/bonding/slaves", bond->name);
	if (!found || !ep_topo_read_line(class_dir, path, members, sizeof(members))) {
		return false;
	}
	read_mode(class_dir, bond, active);
	for (char *s = strtok_r(members, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
		read_member(class_dir, slot, s, active, bond);
	}
	return bond->members > 1;
}

/* Mbit/s by the file "rate" of a port; 0: it has none. */
static uint32_t read_rate(const char *class_dir, const char *device, int port)
{
	char name[EP_TOPO_NAME_LEN + 64], text[128];
	double mbps = 0;

	if (snprintf(name, sizeof(name), "infiniband/%s/ports/%d/rate", device, port) <
		    (int)sizeof(name) &&
	    ep_topo_read_line(class_dir, name, text, sizeof(text))) { /* "400 Gb/sec (4X NDR)" */
		mbps = strtod(text, NULL) * 1000;
	}
	return mbps > 0 && mbps < EP_TOPO_MAX_MBPS ? (uint32_t)mbps : 0;
}

uint32_t ep_topo_port_mbps(const char *class_dir, const char *device, int port, bool ethernet,
			   uint32_t otherwise)
{
	uint32_t mbps = read_rate(class_dir, device, port);
	struct ep_topo_bond bond;

	mbps = mbps > otherwise ? mbps : otherwise;
	return ethernet && ep_topo_bond_read(class_dir, device, port, &bond) && bond.mbps > mbps
		       ? bond.mbps
		       : mbps;
}
