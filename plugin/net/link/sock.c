/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "core/log.h"
#include "net/link/sock.h"

#define EP_NET_ASK_IDLE_S 60
#define EP_NET_ASK_EVERY_S 30
#define EP_NET_ASK_TIMES 8

/* ---- addresses ---- */

const char *ep_net_addr_print(const union ep_net_addr *addr, char text[EP_NET_ADDR_TEXT])
{
	char host[INET6_ADDRSTRLEN] = "?";
	bool v6 = addr->any.sa_family == AF_INET6;

	inet_ntop(v6 ? AF_INET6 : AF_INET,
		  v6 ? (const void *)&addr->v6.sin6_addr : (const void *)&addr->v4.sin_addr, host,
		  sizeof(host));
	snprintf(text, EP_NET_ADDR_TEXT, v6 ? "[%s]:%u" : "%s:%u", host,
		 ntohs(v6 ? addr->v6.sin6_port : addr->v4.sin_port));
	return text;
}

static socklen_t ep_net_addr_size(const union ep_net_addr *addr)
{
	return addr->any.sa_family == AF_INET6 ? sizeof(addr->v6) : sizeof(addr->v4);
}

/* ---- connections ---- */

ncclResult_t ep_net_listen_at(union ep_net_addr *addr, int *fd)
{
	socklen_t size = sizeof(*addr);
	char text[EP_NET_ADDR_TEXT];
	int s;

	if (addr->any.sa_family == AF_INET6) {
		addr->v6.sin6_port = 0;
	} else {
		addr->v4.sin_port = 0;
	}
	s = socket(addr->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (s < 0 || bind(s, &addr->any, ep_net_addr_size(addr)) != 0 ||
	    listen(s, SOMAXCONN) != 0 || getsockname(s, &addr->any, &size) != 0) {
		ncclResult_t result = ep_fail(ncclSystemError, "cannot listen on %s: %s",
					      ep_net_addr_print(addr, text), strerror(errno));

		if (s >= 0) {
			close(s);
		}
		return result;
	}
	*fd = s;
	return ncclSuccess;
}

static void ep_net_sock_tune(int fd)
{
	int one = 1, idle = EP_NET_ASK_IDLE_S, every = EP_NET_ASK_EVERY_S, times = EP_NET_ASK_TIMES;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/*
	 * A machine that has vanished sends nothing: the kernel asks, and then it is gone. By itself the
	 * kernel begins after two hours.
	 */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
}

bool ep_net_own_error(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

ncclResult_t ep_net_fail_own(int error, const char *what, const char *where)
{
	return ep_fail(ncclSystemError, "this process cannot %s %s: %s%s", what, where,
		       strerror(error),
		       error == EMFILE   ? ": raise its limit of descriptors (ulimit -n)"
		       : error == ENFILE ? ": raise the machine's limit (sysctl fs.file-max)"
					 : ": see what uses up this machine's memory");
}

ncclResult_t ep_net_accept_one(int listen_fd, const char *where, int *fd)
{
	*fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (*fd >= 0) {
		ep_net_sock_tune(*fd);
	} else if (ep_net_own_error(errno)) {
		return ep_net_fail_own(errno, "take the connection of a peer at", where);
	}
	return ncclSuccess;
}

int ep_net_dial(const union ep_net_addr *addr)
{
	int fd = socket(addr->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int error;

	if (fd < 0) {
		return -1;
	}
	ep_net_sock_tune(fd);
	if (connect(fd, &addr->any, ep_net_addr_size(addr)) != 0 && errno != EINPROGRESS) {
		error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

enum ep_net_io_state ep_net_dialed(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	socklen_t size = sizeof(int);
	int error = 0;

	if (poll(&p, 1, 0) <= 0) {
		return EP_NET_IO_AGAIN;
	}
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
	errno = error;
	return error ? EP_NET_IO_FAILED : EP_NET_IO_DONE;
}

static enum ep_net_io_state ep_net_io_result(ssize_t n, bool taking)
{
	if (n == 0 && taking) {
		return EP_NET_IO_CLOSED;
	}
	if (errno == EAGAIN || errno == EINTR) {
		return EP_NET_IO_AGAIN;
	}
	return errno == EPIPE || errno == ECONNRESET ? EP_NET_IO_CLOSED : EP_NET_IO_FAILED;
}

enum ep_net_io_state ep_net_put(int fd, const void *message, size_t size, size_t *at)
{
	while (*at < size) {
		ssize_t n = send(fd, (const char *)message + *at, size - *at, MSG_NOSIGNAL);

		if (n <= 0) {
			return ep_net_io_result(n, false);
		}
		*at += (size_t)n;
	}
	return EP_NET_IO_DONE;
}

enum ep_net_io_state ep_net_take(int fd, void *message, size_t size, size_t *at)
{
	while (*at < size) {
		ssize_t n = recv(fd, (char *)message + *at, size - *at, 0);

		if (n <= 0) {
			return ep_net_io_result(n, true);
		}
		*at += (size_t)n;
	}
	return EP_NET_IO_DONE;
}

bool ep_net_gone(int fd)
{
	char byte;
	ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}
