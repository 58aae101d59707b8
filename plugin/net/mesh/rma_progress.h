/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of a mesh. */
#ifndef EP_NET_RMA_PROGRESS_H
#define EP_NET_RMA_PROGRESS_H

#include "net/mesh/rma_structs.h"

/* Takes up completions, posts what had to wait, and now and then looks for peers. */
ncclResult_t ep_net_rma_progress(struct ep_net_rma *rma);
/* *done of a request of this or any other context. */
ncclResult_t ep_net_op_test(void *request, int *done);

#endif
