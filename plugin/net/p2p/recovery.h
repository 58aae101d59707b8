/* SPDX-License-Identifier: Apache-2.0 */
/* How a path that was closed comes back. */
#ifndef EP_NET_RECOVERY_H
#define EP_NET_RECOVERY_H

#include "net/p2p/ctrl.h"

/* Takes the steps of paths that are on their way back, or could be. */
ncclResult_t ep_net_recovery_check(struct ep_net_comm *c, uint64_t now);
/* Takes a control message of the other end: it has new queue pairs, or they are connected. */
ncclResult_t ep_net_recovery_receive(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg);

#endif
