/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listens and accepts. A connection is pending until it has sent a head with the listener's nonce; others
 * are rejected. When all places are taken, one that has been silent for long makes room for a new one.
 */
#ifndef EP_NET_ACCEPTOR_H
#define EP_NET_ACCEPTOR_H

#include "net/link/handshake.h"
#include "net/link/sock.h"

#define EP_NET_MAX_PENDING 32
/* Peers send at once; a silent connection keeps its place for so long. */
#define EP_NET_SILENT_NS 1000000000ull
#define EP_NET_NAMED 3 /* rejected ones whose addresses are logged */

struct ep_net_pending {
	int fd; /* -1: none */
	size_t at;
	uint64_t since;
	struct ep_net_head head;
};

struct ep_net_acceptor {
	int fd; /* listens */
	uint64_t magic, nonce;
	char where[EP_NET_ADDR_TEXT];
	struct ep_net_pending pending[EP_NET_MAX_PENDING];
	uint32_t rejected; /* of this wait */
	char named[EP_NET_NAMED][EP_NET_ADDR_TEXT];
};

/* A connection that has sent this head, with the nonce. The rest of its message is still to be received. */
struct ep_net_accepted {
	int fd; /* -1: none yet */
	struct ep_net_head head;
	char who[EP_NET_ADDR_TEXT];
};

/* How peers find a listener: the beginning of the handle that NCCL brings them. */
struct ep_net_place {
	uint64_t magic;
	uint32_t version, number; /* number: what the listener has to add */
	uint64_t nonce;
	union ep_net_addr addr;
};

/* Begins to listen where peers reach this host. *place: there; its number is the caller's. */
ncclResult_t ep_net_acceptor_open(struct ep_net_acceptor *g, uint64_t magic,
				  struct ep_net_place *place);
/* Whether a place that came from NCCL is that of `whose` listener, of this version. */
ncclResult_t ep_net_place_check(const struct ep_net_place *place, uint64_t magic,
				const char *whose);
/* Closes the listener and what is pending. */
void ep_net_acceptor_close(struct ep_net_acceptor *g);
/* Accepts; accepted->fd is -1 if there is none yet. Fails if this process cannot accept. */
ncclResult_t ep_net_acceptor_poll(struct ep_net_acceptor *g, struct ep_net_accepted *accepted);
/* Ends a wait for `whom`: logs rejected connections in one line, also those still silent if nobody came. */
void ep_net_acceptor_report(struct ep_net_acceptor *g, bool connected, const char *whom);

#endif
