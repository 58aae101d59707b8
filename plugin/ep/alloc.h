/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of a group that peers do not map: the caller's allocator, and the handles' pool. */
#ifndef EP_EP_ALLOC_H
#define EP_EP_ALLOC_H

#include "ep/objects.h"

ncclResult_t ep_alloc(const ncclEpAllocConfig_t *alloc, void **ptr, uint64_t bytes,
		      const char *what);
void ep_free(const struct ncclEpGroup *group, void *ptr);

/* Memory of destroyed handles waits in the pool for the next. */
ncclResult_t ep_pool_get(struct ncclEpGroup *group, void **ptr, uint64_t bytes);
void ep_pool_put(struct ncclEpGroup *group, void *ptr, uint64_t bytes);
void ep_pool_drain(struct ncclEpGroup *group);

#endif
