/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving. */
#ifndef EP_NET_RECV_H
#define EP_NET_RECV_H

#include "net/p2p/p2p.h"

/* For NCCL. */
ncclResult_t ep_net_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mr,
			  void **request);

#endif
