/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that all ranks of a mesh register together. */
#ifndef EP_NET_SYM_H
#define EP_NET_SYM_H

#include "net/mesh/rma_structs.h"

/* All ranks call it. */
ncclResult_t ep_net_sym_new(struct ep_net_mesh *mesh, const struct ep_net_memory *memory,
			    void **handle);
ncclResult_t ep_net_sym_free(void *handle);

#endif
