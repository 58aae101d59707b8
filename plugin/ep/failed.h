/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_EP_FAILED_H
#define EP_EP_FAILED_H

#include "ep/objects.h"

/* The thread's last error is why the group has failed for good. */
void ep_group_fail(struct ncclEpGroup *group);

#endif
