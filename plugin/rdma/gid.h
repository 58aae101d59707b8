/* SPDX-License-Identifier: Apache-2.0 */
/* GIDs: the addresses of ports. */
#ifndef EP_RDMA_GID_H
#define EP_RDMA_GID_H

#include "rdma/env.h"

struct ep_gid {
	uint8_t raw[16];
	int index; /* in the port's table */
	int roce;  /* 1 or 2; 0: InfiniBand, or the driver does not report it */
};

/*
 * The entry of a port's GID table to use, as a position in `list`, which is in the table's order and
 * may lack empty entries. InfiniBand: env->flid_index if that has a FLID, else index 0. Ethernet:
 * env->gid_index, which must exist; if that is -1, of the entries of env->roce_version the first that
 * is not link-local and of the preferred family (an IPv4 address, unless the environment wants
 * otherwise) and within the range; without a range also the other family, and last link-local ones.
 * `port` is for messages.
 */
ncclResult_t ep_gid_pick(const char *port, bool ethernet, const struct ep_gid *list, int n,
			 const struct ep_ib_env *env, int *chosen);

/*
 * InfiniBand. The last 16 bits of a prefix are the subnet. The 16 before them are the FLID, a LID by
 * which routers know the way from other subnets; 0: there is none.
 */
bool ep_gid_same_subnet(const uint8_t a[16], const uint8_t b[16]);
uint16_t ep_gid_flid(const uint8_t raw[16]);

/* Whether it holds an IPv4 address. */
bool ep_gid_is_ipv4(const uint8_t raw[16]);

/* "10.1.2.3" or "fe80::1". Returns buf. */
#define EP_GID_TEXT 48
const char *ep_gid_print(const uint8_t raw[16], char buf[EP_GID_TEXT]);

#endif
