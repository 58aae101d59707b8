/* SPDX-License-Identifier: Apache-2.0 */
/* Flushes of GPU memory. */
#ifndef EP_NET_FLUSH_H
#define EP_NET_FLUSH_H

#include "net/p2p/p2p.h"

/* Posts flushes that had to wait, as far as there is room. */
ncclResult_t ep_net_flushes_push(struct ep_net_comm *c);
/* A flush has read by a port, or never will. */
void ep_net_flush_ended(struct ep_net_comm *c, uint32_t local, uint32_t request);
/* A device that is broken gives no flush back any more. */
void ep_net_flushes_give_up(struct ep_net_comm *c, uint32_t local);

/* For NCCL. */
ncclResult_t ep_net_iflush(void *recv_comm, int n, void **data, int *sizes, void **mr,
			   void **request);

#endif
