/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whoever dials a listener is a guest until he has said a head with its nonce. Strangers are turned away,
 * and keep nobody waiting: when all places are taken, one who says nothing leaves for the next who dials.
 */
#ifndef EP_NET_GUESTS_H
#define EP_NET_GUESTS_H

#include "net/link/handshake.h"
#include "net/link/sock.h"

#define EP_NET_GUESTS 32
#define EP_NET_SILENT_NS 1000000000ull /* peers speak at once; so long a guest keeps his place */
#define EP_NET_NAMED 3                 /* strangers whose addresses are told */

struct ep_net_guest {
	int fd; /* -1: none */
	size_t at;
	uint64_t since;
	struct ep_net_head head;
};

struct ep_net_guests {
	int fd; /* listens */
	uint64_t magic, nonce;
	char where[EP_NET_ADDR_TEXT];
	struct ep_net_guest guest[EP_NET_GUESTS];
	uint32_t strangers; /* of this wait */
	char named[EP_NET_NAMED][EP_NET_ADDR_TEXT];
};

/* One who knows the nonce. What he says begins with this head; the rest is still to be heard. */
struct ep_net_caller {
	int fd; /* -1: none yet */
	struct ep_net_head head;
	char who[EP_NET_ADDR_TEXT];
};

/* Begins to listen at `addr`, and fills in its port. */
ncclResult_t ep_net_guests_open(struct ep_net_guests *g, uint64_t magic, union ep_net_addr *addr);
/* Guests leave, and nobody listens. */
void ep_net_guests_close(struct ep_net_guests *g);
/* Takes whoever has dialed. Fails where this process can take nobody. */
ncclResult_t ep_net_guests_next(struct ep_net_guests *g, struct ep_net_caller *caller);
/* The wait for `whom` has ended: one line names the strangers, those who are still there, too, if nobody came. */
void ep_net_guests_tell(struct ep_net_guests *g, bool came, const char *whom);

#endif
