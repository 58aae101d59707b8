/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes a path that fails. Both ends first see to it that nothing comes from it any more, then
 * send each other, over TCP, which parts of messages it has brought; the rest is sent again over the
 * others. So each part comes once, and nothing comes late.
 */
#ifndef EP_NET_NET_PATH_H
#define EP_NET_NET_PATH_H

#include "net/p2p/p2p.h"

/* Closes one that is open or on its way back. `what`: why, for the log. */
ncclResult_t ep_net_path_close(struct ep_net_comm *c, uint32_t path, enum ep_net_path_why why,
			       const char *what);
/* Its parts: sees to it that nothing comes from it any more; notifies the other end; both have closed it. */
ncclResult_t ep_net_path_drain(struct ep_net_comm *c, uint32_t path);
ncclResult_t ep_net_path_send_closed(struct ep_net_comm *c, uint32_t path,
				     enum ep_net_path_why why);
ncclResult_t ep_net_path_settle(struct ep_net_comm *c, uint32_t path);

#endif
