/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver's end of a connection in the making. */
#ifndef EP_NET_LISTEN_H
#define EP_NET_LISTEN_H

#include "core/error.h"

/* For NCCL, which calls again and again. *recv_comm NULL: it is not made yet. */
ncclResult_t ep_net_listen(int dev, void *handle, void **listen_comm);
ncclResult_t ep_net_accept(void *listen_comm, void **recv_comm);
ncclResult_t ep_net_close_listen(void *listen_comm);

#endif
