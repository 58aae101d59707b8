/* SPDX-License-Identifier: Apache-2.0 */
/* All-gather. */
#ifndef EP_NET_GATHER_H
#define EP_NET_GATHER_H

#include "net/coll/coll.h"

ncclResult_t ep_net_gather_start(struct ep_net_coll *c, void *from, void *from_mr, int nparts,
				 const struct ep_coll_part_v9 *parts,
				 const struct ep_net_window *window, void **request);
ncclResult_t ep_net_coll_flush(struct ep_net_coll *c, void *data, int size, void *mr,
			       void **request);
ncclResult_t ep_net_coll_test(void *request, int *done, int *size);

#endif
