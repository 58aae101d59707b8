/* SPDX-License-Identifier: Apache-2.0 */
/* How a connection fails. */
#ifndef EP_NET_FAIL_H
#define EP_NET_FAIL_H

#include "net/p2p/p2p.h"

ncclResult_t ep_net_comm_failed(struct ep_net_comm *c); /* as it failed before */
/* `qp`: a queue pair, or what ep_net_port_qp() returns. */
ncclResult_t ep_net_comm_fail(struct ep_net_comm *c, ncclResult_t code, uint32_t qp,
			      const char *fmt, ...) EP_PRINTF(4, 5);
ncclResult_t ep_net_comm_fail_wc(struct ep_net_comm *c, const struct ibv_wc *wc);

/* Returns a queue pair that goes by this port of the own NIC, else the number of the port's flushes. */
uint32_t ep_net_port_qp(const struct ep_net_comm *c, uint32_t local);
/* See ep_net_which_print(). */
const char *ep_net_qp_print(const struct ep_net_comm *c, uint32_t qp, char text[EP_NET_WHICH]);

#endif
