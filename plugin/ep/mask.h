/* SPDX-License-Identifier: Apache-2.0 */
/* The masks of a group that was created with them: see ncclEpMaskQuery. */
#ifndef EP_EP_MASK_H
#define EP_EP_MASK_H

#include "ep/objects.h"

ncclResult_t ep_mask_query(struct ncclEpGroup *group, int *mask, cudaStream_t stream);
ncclResult_t ep_mask_update(struct ncclEpGroup *group, const int *mask, cudaStream_t stream);

/* Collective; synchronises. The log names the ranks that stay masked. */
ncclResult_t ep_mask_clean(struct ncclEpGroup *group, cudaStream_t stream);

#endif
