/* SPDX-License-Identifier: Apache-2.0 */
/* Completions of a connection. */
#ifndef EP_NET_POLL_H
#define EP_NET_POLL_H

#include "net/p2p/p2p.h"

/* Takes up completions of a port; *any: there were some. */
ncclResult_t ep_net_poll(struct ep_net_comm *c, struct ep_net_local *port, bool *any);

#endif
