/* SPDX-License-Identifier: Apache-2.0 */
/* The interface at which peers meet: that which NCCL's own transport would take. */
#ifndef EP_NET_IFACE_H
#define EP_NET_IFACE_H

#include "net/link/sock.h"

/*
 * Finds the address to be reached by. NCCL_SOCKET_IFNAME ([^][=]name,...) decides if it is set. Without it the
 * first of these counts that has a running interface: names that begin with "ib"; the subnet of
 * NCCL_COMM_ID; all but docker, lo and virbr; these three in turn. NCCL_SOCKET_FAMILY chooses the family.
 */
ncclResult_t ep_net_addr_find(union ep_net_addr *addr);
/* Gives the address that the first call of this process found, as NCCL does: all connections use one interface. */
ncclResult_t ep_net_addr_own(union ep_net_addr *addr);
/* Whether a name fits NCCL_SOCKET_IFNAME's text. */
bool ep_net_ifname_match(const char *text, const char *name);

#endif
