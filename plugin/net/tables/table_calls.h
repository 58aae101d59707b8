/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of several of the tables that NCCL looks up. */
#ifndef EP_NET_TABLE_CALLS_H
#define EP_NET_TABLE_CALLS_H

#include "net/base/base.h"

#define EP_NET_EXPORT __attribute__((visibility("default"))) /* what NCCL looks up */

/* Properties in the forms of older versions. */
ncclResult_t ep_net_props_v8(int dev, struct ep_net_props_v8 *props);
ncclResult_t ep_net_props_v9(int dev, struct ep_net_props_v9 *props);
ncclResult_t ep_net_props_v11(int dev, struct ep_net_props_v11 *props);

/* Memory for a connection, or for ranks of collectives. */
ep_net_reg_fn ep_net_reg_mr;
ep_net_reg_dmabuf_fn ep_net_reg_mr_dmabuf;

#endif
