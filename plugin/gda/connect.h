/* SPDX-License-Identifier: Apache-2.0 */
/* Connects the queues of all ranks. */
#ifndef EP_GDA_CONNECT_H
#define EP_GDA_CONNECT_H

#include "gda/state.h"

/* Connects all queues. Returns a result that all ranks share; this rank's own errors go to *mine. */
ncclResult_t ep_gda_connect(struct ep_gda *g, struct ep_boot *boot, uint32_t queues,
			    ncclResult_t *mine);
/* Calls fn for all queues, from several threads if there are many. */
bool ep_gda_each(struct ep_gda *g,
		 bool (*fn)(struct ep_gda_queue *queue, void *arg, struct ep_reason *why),
		 void *arg, struct ep_reason *why);

#endif
