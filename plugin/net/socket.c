/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets that do not wait: addresses, the interface of this process, dialing. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "core/log.h"
#include "core/util.h"
#include "net/net.h"

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

static socklen_t addr_size(const union ep_net_addr *addr)
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
	if (s < 0 || bind(s, &addr->any, addr_size(addr)) != 0 || listen(s, SOMAXCONN) != 0 ||
	    getsockname(s, &addr->any, &size) != 0) {
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

static void sock_tune(int fd)
{
	int one = 1, idle = EP_NET_ASK_IDLE_S, every = EP_NET_ASK_EVERY_S, times = EP_NET_ASK_TIMES;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/*
	 * A machine that has vanished sends nothing: the kernel asks, and then it is gone. By
	 * itself the kernel begins after two hours.
	 */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
}

/* Whether an error of a new socket is this machine's own, whoever it leads to. */
static bool own_error(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static ncclResult_t fail_own(int error, const char *what, const char *where)
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
		sock_tune(*fd);
	} else if (own_error(errno)) {
		return fail_own(errno, "take the connection of a peer at", where);
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
	sock_tune(fd);
	if (connect(fd, &addr->any, addr_size(addr)) != 0 && errno != EINPROGRESS) {
		error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

static enum ep_net_io_state dialed(int fd)
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

static enum ep_net_io_state io_result(ssize_t n, bool taking)
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
			return io_result(n, false);
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
			return io_result(n, true);
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

#define EP_NET_NOT_USED 9
#define EP_NET_ID_HOST 256

/* Of lists of names, in NCCL's order. */
static const char *const iface_pass[] = {
	"ib", NULL /* NCCL_COMM_ID */, "^docker,lo,virbr", "docker", "lo", "virbr"
};

/* ---- what variables choose ---- */

/*
 * An item is a name, or the beginning of one; NCCL passes over what follows a colon. No item: all.
 */
bool ep_net_ifname_match(const char *text, const char *name)
{
	bool exclude = *text == '^', exact, found = false, none = true;

	text += exclude;
	exact = *text == '=';
	text += exact;
	for (; *text; text += strcspn(text, ","), text += *text == ',') {
		size_t n = strcspn(text, ":,");

		none &= n == 0;
		found |= n && strncmp(text, name, n) == 0 && (!exact || name[n] == '\0');
	}
	return (found || none) != exclude;
}

static int iface_family(void)
{
	const char *word = getenv("NCCL_SOCKET_FAMILY");

	return !word                           ? 0
	       : strcmp(word, "AF_INET") == 0  ? AF_INET
	       : strcmp(word, "AF_INET6") == 0 ? AF_INET6
					       : 0;
}

/*
 * "10.1.2.3:4567", "host:4567" or "[fe80::1%eth0]:4567"; of the interface only the address counts.
 */
static bool id_parse(const char *text, union ep_net_addr *addr)
{
	const struct addrinfo hints = { .ai_family = *text == '[' ? AF_INET6 : AF_UNSPEC,
					.ai_socktype = SOCK_STREAM };
	const char *begin = text + (*text == '[');
	size_t n = strcspn(begin, *text == '[' ? "]" : ":");
	struct addrinfo *found = NULL;
	char host[EP_NET_ID_HOST];

	if (n == 0 || n >= sizeof(host) || (*text == '[' && begin[n] != ']')) {
		return false;
	}
	memcpy(host, begin, n);
	host[n] = '\0';
	if (getaddrinfo(host, NULL, &hints, &found) != 0) {
		return false;
	}
	memset(addr, 0, sizeof(*addr));
	memcpy(addr, found->ai_addr, ep_min_u64(found->ai_addrlen, sizeof(*addr)));
	freeaddrinfo(found);
	return addr->any.sa_family == AF_INET || addr->any.sa_family == AF_INET6;
}

/* ---- interfaces ---- */

static const void *bytes(const struct sockaddr *a)
{
	const void *p = a;

	return a->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)p)->sin_addr
				       : &((const struct sockaddr_in6 *)p)->sin6_addr;
}

static bool iface_subnet(const struct ifaddrs *ifaddr, const union ep_net_addr *of)
{
	const uint8_t *own, *mask, *remote;
	size_t n = of->any.sa_family == AF_INET ? 4 : 16;
	uint8_t differ = 0;

	if (ifaddr->ifa_addr->sa_family != of->any.sa_family || !ifaddr->ifa_netmask) {
		return false;
	}
	own = bytes(ifaddr->ifa_addr);
	remote = bytes(&of->any);
	/* (the mask's family is not always filled in) */
	mask = n == 4 ? (const void *)&((const struct sockaddr_in *)(void *)ifaddr->ifa_netmask)
				->sin_addr
		      : (const void *)&((const struct sockaddr_in6 *)(void *)ifaddr->ifa_netmask)
				->sin6_addr;
	for (size_t b = 0; b < n; b++) {
		differ |= (uint8_t)((own[b] ^ remote[b]) & mask[b]);
	}
	return !differ;
}

/*
 * Smaller is better. A link-local address means nothing to other hosts but on a link of the same
 * number.
 */
static int iface_rank(const struct ifaddrs *ifaddr)
{
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)ifaddr->ifa_addr;
	int family = ifaddr->ifa_addr ? ifaddr->ifa_addr->sa_family : AF_UNSPEC;

	if (!(ifaddr->ifa_flags & IFF_RUNNING) || (family != AF_INET && family != AF_INET6) ||
	    (family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr))) {
		return EP_NET_NOT_USED;
	}
	return family == AF_INET ? 0 : !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? 1 : 2;
}

/* The best one of a list of names, or of the subnet of an address; NULL: none is running. */
static const struct ifaddrs *iface_best(const struct ifaddrs *all, const char *names,
					const union ep_net_addr *near)
{
	const struct ifaddrs *found = NULL;
	int family = iface_family(), best = EP_NET_NOT_USED;

	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		int rank = iface_rank(i);

		if (rank < best && (near ? iface_subnet(i, near)
					 : (!family || i->ifa_addr->sa_family == family) &&
						    ep_net_ifname_match(names, i->ifa_name))) {
			best = rank;
			found = i;
		}
	}
	return found;
}

/* *result: an error of NCCL_COMM_ID. */
static const struct ifaddrs *iface_pass_all(const struct ifaddrs *all, ncclResult_t *result)
{
	const struct ifaddrs *found = NULL;
	const char *id = getenv("NCCL_COMM_ID");
	union ep_net_addr near;

	for (size_t p = 0; p < EP_ARRAY_SIZE(iface_pass) && !found; p++) {
		if (iface_pass[p]) {
			found = iface_best(all, iface_pass[p], NULL);
		} else if (id && strlen(id) > 1) {
			if (!id_parse(id, &near)) {
				*result = ep_fail(ncclInvalidUsage,
						  "environment variable NCCL_COMM_ID=%.128s is not "
						  "host:port or [address]:port of a host that is "
						  "known: correct or unset it",
						  id);
				return NULL;
			}
			found = iface_best(all, NULL, &near);
		}
	}
	return found;
}

ncclResult_t ep_net_addr_find(union ep_net_addr *addr)
{
	const char *names = getenv("NCCL_SOCKET_IFNAME"), *word = getenv("NCCL_SOCKET_FAMILY");
	char text[INET6_ADDRSTRLEN] = "?";
	const struct ifaddrs *found;
	struct ifaddrs *all = NULL;
	ncclResult_t result = ncclSuccess;

	if (getifaddrs(&all) != 0) {
		return ep_fail(ncclSystemError, "network interfaces cannot be listed: %s",
			       strerror(errno));
	}
	if (names && strlen(names) < 2) {
		names = NULL; /* NCCL ignores a name of one character */
	}
	found = names ? iface_best(all, names, NULL) : iface_pass_all(all, &result);
	if (found) {
		memset(addr, 0, sizeof(*addr));
		memcpy(addr, found->ifa_addr,
		       found->ifa_addr->sa_family == AF_INET ? sizeof(addr->v4) : sizeof(addr->v6));
		inet_ntop(found->ifa_addr->sa_family, bytes(found->ifa_addr), text, sizeof(text));
		EP_INFO(EP_LOG_INIT | EP_LOG_NET, "peers meet at %s of interface %s%s%s", text,
			found->ifa_name, names ? ", NCCL_SOCKET_IFNAME=" : "", names ? names : "");
	} else if (result == ncclSuccess) {
		result = ep_fail(ncclInvalidUsage,
				 "no running interface has an address to meet peers at "
				 "(NCCL_SOCKET_IFNAME=%.64s, NCCL_SOCKET_FAMILY=%.16s): correct or "
				 "unset them",
				 names ? names : "", word ? word : "");
	}
	freeifaddrs(all);
	return result;
}

ncclResult_t ep_net_addr_own(union ep_net_addr *addr)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static union ep_net_addr chosen; /* of no family: none was found yet */
	ncclResult_t result = ncclSuccess;

	pthread_mutex_lock(&lock);
	if (chosen.any.sa_family == AF_UNSPEC) {
		result = ep_net_addr_find(&chosen);
	}
	*addr = chosen;
	pthread_mutex_unlock(&lock);
	return result;
}

void ep_net_dialing_begin(struct ep_net_dialing *dialing, const union ep_net_addr *addr,
			  const char *who, uint64_t until)
{
	uint64_t now = ep_now_ns();

	*dialing = (struct ep_net_dialing){
		.addr = *addr, .who = who, .fd = -1, .began = now, .until = until, .next = now
	};
}

void ep_net_dialing_end(struct ep_net_dialing *dialing)
{
	if (dialing->fd >= 0) {
		close(dialing->fd);
		dialing->fd = -1;
	}
}

/* Whether the failure may pass: an ARP answer or a route that is late, a listener that is full. */
static bool dial_passing(int error)
{
	return error == ECONNREFUSED || error == ETIMEDOUT || error == EHOSTUNREACH ||
	       error == ENETUNREACH || error == EAGAIN || error == EINTR;
}

static ncclResult_t dialing_fail(struct ep_net_dialing *dialing, const char *next)
{
	ep_net_dialing_end(dialing);
	return ep_fail(ncclRemoteError,
		       "%s cannot be reached: %s, tried %u times in %llu ms%s; is the interface "
		       "right there? (NCCL_SOCKET_IFNAME)",
		       dialing->who, dialing->error ? strerror(dialing->error) : "no answer",
		       dialing->tries,
		       (unsigned long long)((ep_now_ns() - dialing->began) / 1000000), next);
}

/* A try has failed. */
static ncclResult_t dialing_failed(struct ep_net_dialing *dialing, int error)
{
	const struct ep_ib_env *env = ep_net_env();

	ep_net_dialing_end(dialing);
	dialing->error = error;
	if (own_error(error)) {
		return fail_own(error, "dial", dialing->who);
	}
	if (!dial_passing(error)) {
		return dialing_fail(dialing, "");
	}
	if (dialing->tries > (uint32_t)env->dial_cnt) {
		return dialing_fail(dialing, " (NCCL_SOCKET_RETRY_CNT)");
	}
	dialing->next = ep_now_ns() + (uint64_t)dialing->tries * (uint64_t)env->dial_ms * 1000000;
	EP_INFO(EP_LOG_NET, "%s cannot be reached: %s, try %u of %d", dialing->who, strerror(error),
		dialing->tries, env->dial_cnt + 1);
	return ncclSuccess;
}

ncclResult_t ep_net_dialing_step(struct ep_net_dialing *dialing, int *fd)
{
	enum ep_net_io_state state = EP_NET_IO_AGAIN;

	*fd = -1;
	if (dialing->fd < 0 && ep_now_ns() >= dialing->next) {
		dialing->tries++;
		dialing->fd = ep_net_dial(&dialing->addr);
		state = dialing->fd < 0 ? EP_NET_IO_FAILED : state;
	}
	if (dialing->fd >= 0) {
		state = dialed(dialing->fd);
	}
	if (state == EP_NET_IO_DONE) {
		*fd = dialing->fd;
		dialing->fd = -1;
		return ncclSuccess;
	}
	if (state != EP_NET_IO_AGAIN) {
		EP_CHECK(dialing_failed(dialing, errno));
	}
	return ep_now_ns() > dialing->until
		       ? dialing_fail(dialing, " (NCCL_EP_BOOTSTRAP_TIMEOUT_MS)")
		       : ncclSuccess;
}
