/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that kernels have recorded. */
#ifndef EP_EP_RECORD_H
#define EP_EP_RECORD_H

#include "core/error.h"
#include "nccl_ep.h"

/* Looks for failures of device operations. Fails only if the group has failed for good. */
ncclResult_t ep_record_poll(struct ncclEpGroup *group);

#endif
