/* SPDX-License-Identifier: Apache-2.0 */
/* Sending, and the end of requests of either kind. */
#ifndef EP_NET_SEND_H
#define EP_NET_SEND_H

#include "net/p2p/p2p.h"

/* A receive that the other end has posted, the first of its group that has no message yet. */
struct ep_net_asked {
	int tag;
	uint32_t size; /* 0: none is known */
};
ncclResult_t ep_net_send_asked(void *send_comm, struct ep_net_asked *asked);

/* For NCCL. */
ncclResult_t ep_net_isend(void *send_comm, void *data, size_t size, int tag, void *mr,
			  void **request);
ncclResult_t ep_net_test(void *request, int *done, int *sizes);

#endif
