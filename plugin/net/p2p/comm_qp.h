/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs of a connection. */
#ifndef EP_NET_COMM_QP_H
#define EP_NET_COMM_QP_H

#include "net/p2p/p2p.h"

#define EP_NET_ACCESS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

ncclResult_t ep_net_qps_new(struct ep_net_comm *c);
ncclResult_t ep_net_qps_connect(struct ep_net_comm *c, const uint32_t *qpn);
/* Sets the extensions of the other end's NIC, for a queue pair that does not know them yet. */
/* Which of them messages go over: those of open paths. */
void ep_net_qps_choose(struct ep_net_comm *c);
/* A queue pair to itself, for iflush. */
ncclResult_t ep_net_flush_open(struct ep_net_local *port);
ncclResult_t ep_net_receives_post(struct ep_net_comm *c, uint32_t qp, uint32_t n);

#endif
