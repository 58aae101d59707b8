/* SPDX-License-Identifier: Apache-2.0 */
/* One connection, this rank's end: a queue pair by verbs. */
#ifndef EP_GDA_VERBS_QUEUE_H
#define EP_GDA_VERBS_QUEUE_H

#include "gda/state.h"

bool ep_gda_verbs_cq(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why);
bool ep_gda_verbs_create(struct ep_gda_queue *queue, struct ep_reason *why);
bool ep_gda_verbs_connect(struct ep_gda_queue *queue, const struct ep_nic_end *end,
			  struct ep_reason *why);
void ep_gda_verbs_halt(struct ep_gda_queue *queue);
bool ep_gda_verbs_query(struct ep_gda_queue *queue, uint32_t *state);

#endif
