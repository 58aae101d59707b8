/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a connection. */
#ifndef EP_NET_REQUEST_H
#define EP_NET_REQUEST_H

#include "net/p2p/p2p.h"

uint32_t ep_net_request_new(struct ep_net_comm *c);
void ep_net_request_free(struct ep_net_comm *c, uint32_t i);
void *ep_net_request_handle_of(const struct ep_net_comm *c, uint32_t i);
/* The connection that receives; checks the number of receives. */
ncclResult_t ep_net_recv_get(const void *handle, int n, struct ep_net_comm **comm);

#endif
