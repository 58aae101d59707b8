/* SPDX-License-Identifier: Apache-2.0 */
/* One connection, this rank's end: a queue pair by DevX. */
#ifndef EP_GDA_QUEUE_H
#define EP_GDA_QUEUE_H

#include "gda/state.h"

bool ep_gda_queue_create(struct ep_gda_queue *queue, struct ep_reason *why);
bool ep_gda_queue_connect(struct ep_gda_queue *queue, const struct ep_nic_end *end,
			  struct ep_reason *why);
/* Nothing of the queue moves afterwards: what was posted is flushed, what arrives is refused. */
void ep_gda_queue_halt(struct ep_gda_queue *queue);
void ep_gda_queue_destroy(struct ep_gda_queue *queue);
/* State of the queue pair; if the NIC reports why it failed, that too. False: no answer. */
bool ep_gda_queue_query(struct ep_gda_queue *queue, uint32_t *state, struct ep_gda_cause *cause);

#endif
