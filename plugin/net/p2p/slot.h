/* SPDX-License-Identifier: Apache-2.0 */
/* Announces receives to the sender. */
#ifndef EP_NET_SLOT_H
#define EP_NET_SLOT_H

#include "net/p2p/p2p.h"

/* Announces groups, unless the sender can do without for now. */
ncclResult_t ep_net_slots_post(struct ep_net_comm *c);

#endif
