/* SPDX-License-Identifier: Apache-2.0 */
/* Dialing a peer, again and again as NCCL does; nothing here waits. */
#ifndef EP_NET_DIAL_H
#define EP_NET_DIAL_H

#include "net/link/sock.h"

struct ep_net_dialing {
	union ep_net_addr addr;
	const char *who; /* for messages */
	int fd;          /* under way; -1: none */
	int error;       /* of the last try; 0: none has ended */
	uint32_t tries;
	uint64_t began, until, next;
};

/* Gives up at `until`. `who` must stay. */
void ep_net_dialing_begin(struct ep_net_dialing *dialing, const union ep_net_addr *addr,
			  const char *who, uint64_t until);
/*
 * *fd -1: call again. Else the connection, which is the caller's. Whoever is refused, not found or not
 * answered is tried again, NCCL_SOCKET_RETRY_CNT times, after 1, 2, 3, ... times
 * NCCL_SOCKET_RETRY_SLEEP_MSEC.
 */
ncclResult_t ep_net_dialing_step(struct ep_net_dialing *dialing, int *fd);
void ep_net_dialing_end(struct ep_net_dialing *dialing);

#endif
