/* SPDX-License-Identifier: Apache-2.0 */
/* Posts requests of a mesh. */
#ifndef EP_NET_RMA_POST_H
#define EP_NET_RMA_POST_H

#include "net/mesh/rma_structs.h"

/* Makes a request like `want`, whose use and progress do not count, and posts it. */
ncclResult_t ep_net_op_start(struct ep_net_rma *rma, const struct ep_net_op *want, void **request);
ncclResult_t ep_net_link_push(struct ep_net_rma *rma, struct ep_net_link *link);
/* Posts what waited for room that work of other links has given back. */
ncclResult_t ep_net_starved_push(struct ep_net_rma *rma);

#endif
