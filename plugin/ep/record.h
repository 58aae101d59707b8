/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that kernels have recorded. */
#ifndef EP_EP_RECORD_H
#define EP_EP_RECORD_H

#include "ep/objects.h"

/* Looks for failures of device operations. Fails only if the group has failed for good. */
ncclResult_t ep_record_poll(struct ncclEpGroup *group);

/*
 * Does what ep_record_poll() leaves to be done on the group's device, which must be current: records that were
 * taken can be written again, lost ranks are masked. A thread of any device, or none, may look.
 */
void ep_group_settle(struct ncclEpGroup *group);

#endif
