/* SPDX-License-Identifier: Apache-2.0 */
/* Opens what firmware offers, and asks for its capabilities. */
#ifndef EP_GDA_DEVX_H
#define EP_GDA_DEVX_H

#include "gda/state.h"

/* Opens what DevX queues need of a device that is open; false: plain verbs are left. */
bool ep_gda_devx_open(struct ep_gda_nic *nic, struct ep_reason *why);

/* Capabilities of a set; `out` has EP_PRM_CAP_OUT_BYTES. */
bool ep_gda_query_caps(const struct ep_gda_nic *nic, uint32_t set, unsigned char *out,
		       struct ep_reason *why);

#endif
