/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the NICs that GPUs post to. */
#ifndef EP_GDA_NIC_H
#define EP_GDA_NIC_H

#include "gda/state.h"

/* Opens the NICs that ep_nic_choose() names. False: *result is a failure that was recorded, else see why. */
bool ep_gda_nics_open(struct ep_gda *g, const struct ep_gda_config *c, struct ep_reason *why,
		      ncclResult_t *result);
void ep_gda_nics_close(struct ep_gda *g);

#endif
