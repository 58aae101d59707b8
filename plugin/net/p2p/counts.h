/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a connection in the file of counts. */
#ifndef EP_NET_COUNTS_H
#define EP_NET_COUNTS_H

#include "net/p2p/p2p.h"

/* Where the connection counts from now on, and what it is. Never fails: else it counts for itself. */
void ep_net_counts_open(struct ep_net_comm *c);
/* The ports that a path goes by, and that it is open. */
void ep_net_counts_path(struct ep_net_comm *c, uint32_t path);
void ep_net_counts_close(struct ep_net_comm *c);

#endif
