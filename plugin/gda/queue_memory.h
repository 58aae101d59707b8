/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that kernels, NIC and host share. */
#ifndef EP_GDA_QUEUE_MEMORY_H
#define EP_GDA_QUEUE_MEMORY_H

#include "gda/state.h"

/* A NIC's queues and doorbell register, as the mode has them. */
bool ep_gda_queue_memory_open(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why);
void ep_gda_queue_memory_close(struct ep_gda *g, struct ep_gda_nic *nic);
/* The mode will not do, another may be opened. What only a wait for the GPU could free stays: memory, a mapped doorbell. */
void ep_gda_queue_memory_refuse(struct ep_gda_nic *nic);
/* Everything that is there once, whatever the mode. */
bool ep_gda_pinned_open(struct ep_gda *g, struct ep_reason *why);
void ep_gda_pinned_close(struct ep_gda *g);
/* Gives the table of queues to the GPU. */
bool ep_gda_publish(struct ep_gda *g, struct ep_reason *why);
/* Waits for g->stream, bounded. */
bool ep_gda_synchronize(struct ep_gda *g, uint64_t timeout_ns);

#endif
