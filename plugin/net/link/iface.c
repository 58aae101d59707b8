/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "core/util.h"
#include "net/link/iface.h"

#define EP_NET_NOT_USED 9
#define EP_NET_ID_HOST 256

/* Of lists of names, in NCCL's order. */
static const char *const ep_net_iface_pass[] = {
	"ib", NULL /* NCCL_COMM_ID */, "^docker,lo,virbr", "docker", "lo", "virbr"
};

/* ---- what variables choose ---- */

/* An item is a name, or the beginning of one; NCCL passes over what follows a colon. No item: all. */
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

/* NCCL takes a name of one character for none. */
static const char *ep_net_iface_names(void)
{
	const char *names = getenv("NCCL_SOCKET_IFNAME");

	return names && strlen(names) > 1 ? names : NULL;
}

static int ep_net_iface_family(void)
{
	const char *word = getenv("NCCL_SOCKET_FAMILY");

	return !word                           ? 0
	       : strcmp(word, "AF_INET") == 0  ? AF_INET
	       : strcmp(word, "AF_INET6") == 0 ? AF_INET6
					       : 0;
}

/* "10.1.2.3:4567", "host:4567" or "[fe80::1%eth0]:4567"; of the interface only the address counts. */
static bool ep_net_id_parse(const char *text, union ep_net_addr *addr)
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

static const void *ep_net_bytes(const struct sockaddr *a)
{
	const void *p = a;

	return a->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)p)->sin_addr
				       : &((const struct sockaddr_in6 *)p)->sin6_addr;
}

static bool ep_net_iface_subnet(const struct ifaddrs *ifaddr, const union ep_net_addr *of)
{
	const uint8_t *own, *mask, *remote;
	size_t n = of->any.sa_family == AF_INET ? 4 : 16;
	uint8_t differ = 0;

	if (ifaddr->ifa_addr->sa_family != of->any.sa_family || !ifaddr->ifa_netmask) {
		return false;
	}
	own = ep_net_bytes(ifaddr->ifa_addr);
	remote = ep_net_bytes(&of->any);
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

/* Smaller is better. A link-local address means nothing to other hosts but on a link of the same number. */
static int ep_net_iface_rank(const struct ifaddrs *ifaddr)
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
static const struct ifaddrs *ep_net_iface_best(const struct ifaddrs *all, const char *names,
					       const union ep_net_addr *near)
{
	const struct ifaddrs *found = NULL;
	int family = ep_net_iface_family(), best = EP_NET_NOT_USED;

	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		int rank = ep_net_iface_rank(i);

		if (rank < best && (near ? ep_net_iface_subnet(i, near)
					 : (!family || i->ifa_addr->sa_family == family) &&
						    ep_net_ifname_match(names, i->ifa_name))) {
			best = rank;
			found = i;
		}
	}
	return found;
}

/* *result: an error of NCCL_COMM_ID. */
static const struct ifaddrs *ep_net_iface_pass_all(const struct ifaddrs *all, ncclResult_t *result)
{
	const struct ifaddrs *found = NULL;
	const char *id = getenv("NCCL_COMM_ID");
	union ep_net_addr near;

	for (size_t p = 0; p < EP_ARRAY_SIZE(ep_net_iface_pass) && !found; p++) {
		if (ep_net_iface_pass[p]) {
			found = ep_net_iface_best(all, ep_net_iface_pass[p], NULL);
		} else if (id && strlen(id) > 1) {
			if (!ep_net_id_parse(id, &near)) {
				*result = ep_fail(ncclInvalidUsage,
						  "environment variable NCCL_COMM_ID=%.128s is not "
						  "host:port or [address]:port of a host that is "
						  "known: correct or unset it",
						  id);
				return NULL;
			}
			found = ep_net_iface_best(all, NULL, &near);
		}
	}
	return found;
}

static void ep_net_iface_log(const struct ifaddrs *ifaddr, const char *names)
{
	char text[INET6_ADDRSTRLEN] = "?";

	inet_ntop(ifaddr->ifa_addr->sa_family, ep_net_bytes(ifaddr->ifa_addr), text, sizeof(text));
	EP_INFO(EP_LOG_INIT | EP_LOG_NET, "peers meet at %s of interface %s%s%s", text,
		ifaddr->ifa_name, names ? ", NCCL_SOCKET_IFNAME=" : "", names ? names : "");
}

ncclResult_t ep_net_addr_find(union ep_net_addr *addr)
{
	const char *names = ep_net_iface_names(), *word = getenv("NCCL_SOCKET_FAMILY");
	const struct ifaddrs *found;
	struct ifaddrs *all = NULL;
	ncclResult_t result = ncclSuccess;

	if (getifaddrs(&all) != 0) {
		return ep_fail(ncclSystemError, "network interfaces cannot be listed: %s",
			       strerror(errno));
	}
	found = names ? ep_net_iface_best(all, names, NULL) : ep_net_iface_pass_all(all, &result);
	if (found) {
		memset(addr, 0, sizeof(*addr));
		memcpy(addr, found->ifa_addr,
		       found->ifa_addr->sa_family == AF_INET ? sizeof(addr->v4) : sizeof(addr->v6));
		ep_net_iface_log(found, names);
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
