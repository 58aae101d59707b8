/* SPDX-License-Identifier: Apache-2.0 */
/* Looks after the paths of a connection that has several. */
#ifndef EP_NET_NET_PATHS_H
#define EP_NET_NET_PATHS_H

#include "net/p2p/p2p.h"

/* Does what is due after completions were taken up: c->due. */
ncclResult_t ep_net_paths_act(struct ep_net_comm *c);
/* Receives control messages about paths, and checks ports. */
ncclResult_t ep_net_paths_check(struct ep_net_comm *c);
/* The asynchronous thread looks after the paths, too, while NCCL does not call. */
ncclResult_t ep_net_paths_async_add(struct ep_net_comm *c);
/* This end closes: sends what has arrived to the other one. */
void ep_net_paths_close(struct ep_net_comm *c);

#endif
