/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of a device for NCCL, in the forms of older versions; what all tables have in common. */
#ifndef EP_NET_PROPS_H
#define EP_NET_PROPS_H

#include "net/base/plugin.h"

#define EP_NET_EXPORT __attribute__((visibility("default"))) /* what NCCL looks up */

ncclResult_t ep_net_props_v8(int dev, struct ep_net_props_v8 *props);
ncclResult_t ep_net_props_v9(int dev, struct ep_net_props_v9 *props);
ncclResult_t ep_net_props_v11(int dev, struct ep_net_props_v11 *props);

#endif
