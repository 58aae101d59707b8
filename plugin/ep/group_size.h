/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_EP_GROUP_SIZE_H
#define EP_EP_GROUP_SIZE_H

#include "core/nodes.h"
#include "ep/algo.h"

/* How many channels a group has whose ranks have at most `remote` remote peers. */
uint32_t ep_group_channels(const struct ep_group_config *config, uint32_t remote);

/* Makes the heap's layout again for those nodes. */
void ep_group_config_size(struct ep_group_config *config, struct ep_nodes_most nodes);

#endif
