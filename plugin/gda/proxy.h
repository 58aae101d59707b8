/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that rings or posts for kernels, in modes that have one. */
#ifndef EP_GDA_PROXY_H
#define EP_GDA_PROXY_H

#include "gda/state.h"

bool ep_gda_proxy_start(struct ep_gda *g, struct ep_reason *why);
void ep_gda_proxy_stop(struct ep_gda *g);

#endif
