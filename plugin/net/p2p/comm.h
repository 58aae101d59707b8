/* SPDX-License-Identifier: Apache-2.0 */
/* Makes connections and ends them. */
#ifndef EP_NET_COMM_H
#define EP_NET_COMM_H

#include "net/p2p/p2p.h"

/* A connection whose queue pairs are not connected yet. It holds the devices. */
ncclResult_t ep_net_comm_new(const struct ep_net_nic *nic, bool sender, uint32_t npaths,
			     uint32_t nqps, const struct ep_net_class *class,
			     struct ep_net_comm **comm);
ncclResult_t ep_net_comm_connect(struct ep_net_comm *c, const struct ep_net_peer *peer);
/* The other end is ready, too: gives the connection its handle, and begins to count. */
ncclResult_t ep_net_comm_open(struct ep_net_comm *c);
/* `c` NULL: nothing. Ends all work, then frees the memory that it used. */
void ep_net_comm_free(struct ep_net_comm *c);

/* For NCCL, of connections of either kind. */
ncclResult_t ep_net_reg(void *comm, const struct ep_net_memory *memory, void **mr);
ncclResult_t ep_net_close_send(void *send_comm);
ncclResult_t ep_net_close_recv(void *recv_comm);

#endif
