/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the tables which NCCL looks up have in common. */
#ifndef EP_NET_TABLES_H
#define EP_NET_TABLES_H

#include "net/base/plugin.h"

#define EP_NET_EXPORT __attribute__((visibility("default"))) /* what NCCL looks up */

/* props.c: properties in the forms of older versions */
ncclResult_t ep_net_props_v8(int dev, struct ep_net_props_v8 *props);
ncclResult_t ep_net_props_v9(int dev, struct ep_net_props_v9 *props);
ncclResult_t ep_net_props_v11(int dev, struct ep_net_props_v11 *props);

#endif
