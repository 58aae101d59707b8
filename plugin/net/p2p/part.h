/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of messages. */
#ifndef EP_NET_PART_H
#define EP_NET_PART_H

#include "net/p2p/p2p.h"

ncclResult_t ep_net_part_post(struct ep_net_comm *c, const struct ep_net_message *message,
			      uint32_t qp, uint32_t number);
/* Posts parts again that a closed path has not brought, as far as there is room. */
ncclResult_t ep_net_parts_resend(struct ep_net_comm *c);

#endif
