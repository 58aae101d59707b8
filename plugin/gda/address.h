/* SPDX-License-Identifier: Apache-2.0 */
/* RoCE: addresses that DevX queue pairs send with and to, and what becomes of them later. */
#ifndef EP_GDA_ADDRESS_H
#define EP_GDA_ADDRESS_H

#include "gda/state.h"

/*
 * Asks the kernel for the hardware address of whoever has the GID. What times out is tried again as `env`
 * allows (NULL: it is not).
 */
bool ep_gda_address_resolve(const struct ep_gda_nic *nic, const struct ep_ib_env *env,
			    const uint8_t gid[16], uint8_t mac[6], struct ep_reason *why);
/* The NIC sends with the port's own GID until ep_gda_address_release(), whatever becomes of it. */
bool ep_gda_address_hold(struct ep_gda_nic *nic, struct ep_reason *why);
void ep_gda_address_release(struct ep_gda_nic *nic);
/* After an event: warns if the port's GID is another than the one that its queue pairs have. */
void ep_gda_address_check(struct ep_gda_nic *nic);
/* Of a queue whose packets are not answered: whether the peer has another hardware address by now. */
bool ep_gda_address_moved(const struct ep_gda_queue *queue, char *text, size_t size);

#endif
