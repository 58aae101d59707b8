/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs of a mesh. */
#ifndef EP_NET_RMA_LINKS_H
#define EP_NET_RMA_LINKS_H

#include "net/mesh/rma_structs.h"

/* All ranks call it. */
ncclResult_t ep_net_rma_new(struct ep_net_mesh *mesh, const struct ep_net_rma_config *config,
			    struct ep_net_rma **rma);
void ep_net_rma_free(struct ep_net_rma *rma); /* NULL: nothing */
/* The link of a context to a rank, if there is one. */
ncclResult_t ep_net_link_get(struct ep_net_rma *rma, int context, uint32_t rank,
			     struct ep_net_link **link);

#endif
