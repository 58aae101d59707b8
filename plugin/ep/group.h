/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and ends groups. */
#ifndef EP_EP_GROUP_H
#define EP_EP_GROUP_H

#include "ep/objects.h"

/* Collective. *ep_group is written on success. */
ncclResult_t ep_group_create(struct ncclEpGroup **ep_group, ncclComm_t comm,
			     const ncclEpGroupConfig_t *config);

/* Ends the call as well, and on success the group. */
ncclResult_t ep_group_destroy(struct ep_call *call);

/* Bytes of the group's own state. */
uint64_t ep_group_workspace_bytes(const struct ep_group_config *config);

#endif
