/* SPDX-License-Identifier: Apache-2.0 */
/* TCP, over which two ends of a connection meet; nothing here waits. */
#ifndef EP_NET_SOCK_H
#define EP_NET_SOCK_H

#include <netinet/in.h>
#include <stdbool.h>
#include "core/error.h"

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
/* Whether an error of a new socket is this machine's own, whoever it leads to. */
bool ep_net_own_error(int error);
ncclResult_t ep_net_fail_own(int error, const char *what, const char *where);

enum ep_net_io_state {
	EP_NET_IO_AGAIN, /* later */
	EP_NET_IO_DONE,
	EP_NET_IO_CLOSED, /* by the other end */
	EP_NET_IO_FAILED  /* errno */
};

/* Begins to connect; -1: errno. */
int ep_net_dial(const union ep_net_addr *addr);
enum ep_net_io_state ep_net_dialed(int fd);

/* The next bytes of a message of `size` bytes, `*at` of which are done. */
enum ep_net_io_state ep_net_put(int fd, const void *message, size_t size, size_t *at);
enum ep_net_io_state ep_net_take(int fd, void *message, size_t size, size_t *at);

/* Whether the other end has closed the connection or is gone; takes nothing. */
bool ep_net_gone(int fd);

#endif
