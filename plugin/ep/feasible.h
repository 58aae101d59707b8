/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_EP_FEASIBLE_H
#define EP_EP_FEASIBLE_H

#include "core/error.h"
#include "nccl_ep/ext.h"

/* Whether operations of that shape are possible in such a group. */
ncclResult_t ep_feasible(const ncclEpGroupConfig_t *config, int nranks, ncclEpExtShape_t *shape);

#endif
