/* SPDX-License-Identifier: Apache-2.0 */
/* The sender's end of a connection in the making. */
#ifndef EP_NET_CONNECTING_H
#define EP_NET_CONNECTING_H

#include "core/error.h"

/* For NCCL, which calls again and again. *send_comm NULL: it is not made yet. */
ncclResult_t ep_net_connect(const void *ctx, int dev, int tc, void *handle, void **send_comm);

#endif
