/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_TOOLS_EP_INFO_H
#define EP_TOOLS_EP_INFO_H

#include "topo/topo.h"

void ep_info_params(void);
void ep_info_rdma(const struct ep_topo *topo);

#endif
