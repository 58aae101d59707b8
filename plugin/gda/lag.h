/* SPDX-License-Identifier: Apache-2.0 */
/* Ports that are bonds: queue pairs are spread over the members. */
#ifndef EP_GDA_LAG_H
#define EP_GDA_LAG_H

#include "gda/state.h"

/* Asks firmware whether the port is a bond. `caps`: the device's general capabilities. */
void ep_gda_lag_query(struct ep_gda_nic *nic, const unsigned char *caps);
/* The member that a queue pair is to send by, from 1; 0: the queue pair does not choose it. */
uint32_t ep_gda_lag_port(const struct ep_gda_queue *queue);
/* How many queue pairs each member has; " bond of 2 ports (36, 36 queue pairs)", "": no bond. */
void ep_gda_lag_describe(const struct ep_gda *g, const struct ep_gda_nic *nic, char *text,
			 size_t size);

#endif
