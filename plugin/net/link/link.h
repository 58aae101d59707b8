/* SPDX-License-Identifier: Apache-2.0 */
/* TCP between two ends, nothing of which waits: addresses, dialing, messages, listeners and strangers. */
#ifndef EP_NET_LINK_LINK_H
#define EP_NET_LINK_LINK_H

#include <netinet/in.h>
#include <stdbool.h>
#include "core/error.h"
#include "rdma/rdma.h"

union ep_net_addr {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/* "10.1.2.3:4567" or "[fe80::1]:4567". Returns text. */
#define EP_NET_ADDR_TEXT 72
const char *ep_net_addr_print(const union ep_net_addr *addr, char text[EP_NET_ADDR_TEXT]);

/* Listens on a port of the address that is free, and fills it in. */
ncclResult_t ep_net_listen_at(union ep_net_addr *addr, int *fd);

/*
 * *fd -1: nobody (yet). Fails where this process or its machine has no descriptor or memory for one who
 * dials. `where` is printed.
 */
ncclResult_t ep_net_accept_one(int listen_fd, const char *where, int *fd);

enum ep_net_io_state {
	EP_NET_IO_AGAIN, /* later */
	EP_NET_IO_DONE,
	EP_NET_IO_CLOSED, /* by the other end */
	EP_NET_IO_FAILED  /* errno */
};

/* Begins to connect; -1: errno. */
int ep_net_dial(const union ep_net_addr *addr);

/* The next bytes of a message of `size` bytes, `*at` of which are done. */
enum ep_net_io_state ep_net_put(int fd, const void *message, size_t size, size_t *at);
enum ep_net_io_state ep_net_take(int fd, void *message, size_t size, size_t *at);

/* Whether the other end has closed the connection or is gone; takes nothing. */
bool ep_net_gone(int fd);

/* The interface at which peers meet: that which NCCL's own transport would take. */

/*
 * Finds the address to be reached by. NCCL_SOCKET_IFNAME ([^][=]name,...) decides if it is set. Without it the
 * first of these counts that has a running interface: names that begin with "ib"; the subnet of
 * NCCL_COMM_ID; all but docker, lo and virbr; these three in turn. NCCL_SOCKET_FAMILY chooses the family.
 */
ncclResult_t ep_net_addr_find(union ep_net_addr *addr);
/* Gives the address that the first call of this process found, as NCCL does: all connections use one interface. */
ncclResult_t ep_net_addr_own(union ep_net_addr *addr);
/* Whether a name fits NCCL_SOCKET_IFNAME's text. */
bool ep_net_ifname_match(const char *text, const char *name);

/* Dialing a peer, again and again as NCCL does; nothing here waits. */

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

/*
 * The head of messages over TCP, in all versions alike, so that ends of two versions find that out; and
 * checks of what ends send about their ports.
 */

#define EP_NET_MAGIC 0x7465672d6e636c31ull
#define EP_NET_VERSION 7u /* any change of what ends send each other, or of a connection's memory */
#define EP_NET_MAX_QPS 128u

struct ep_net_head {
	uint64_t magic;
	uint32_t version;
	uint32_t bytes; /* with the head */
	uint64_t nonce; /* of the listener: who knows it has its handle */
};

/*
 * Sends, or receives, more of a message. *done: all of it. `at`: how much is. `who` is the other end, in
 * errors. A message that is received begins with a head of this version, with that magic; one without a head
 * goes by ep_net_message_end().
 */
ncclResult_t ep_net_message_end(enum ep_net_io_state state, const char *who, bool *done);
ncclResult_t ep_net_message_send(int fd, const void *msg, size_t bytes, size_t *at, const char *who,
				 bool *done);
ncclResult_t ep_net_message_recv(int fd, struct ep_net_head *msg, size_t bytes, uint64_t magic,
				 size_t *at, const char *who, bool *done);

/* Time that a connection has, from its first call on. */
uint64_t ep_net_setup_ns(void);

/*
 * Whether the other end's values of a port and its queue pairs are possible; `qpn` NULL: it sends none
 * of queue pairs.
 */
bool ep_net_end_good(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps);
ncclResult_t ep_net_end_check(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps,
			      const char *who);

/*
 * Listens and accepts. A connection is pending until it has sent a head with the listener's nonce; others
 * are rejected. When all places are taken, one that has been silent for long makes room for a new one.
 */

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
