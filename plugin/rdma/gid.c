/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a port's addresses packets carry as their source. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "core/log.h"
#include "rdma/gid.h"

static bool ep_gid_empty(const uint8_t raw[16])
{
	static const uint8_t zero[16];

	/* A link-local prefix with nothing behind it is what empty entries hold on InfiniBand. */
	return memcmp(raw, zero, 16) == 0 ||
	       (raw[0] == 0xfe && raw[1] == 0x80 && memcmp(raw + 2, zero, 14) == 0);
}

bool ep_gid_is_ipv4(const uint8_t raw[16])
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return memcmp(raw, mapped, 12) == 0;
}

static bool ep_gid_is_link_local(const uint8_t raw[16])
{
	if (ep_gid_is_ipv4(raw)) {
		return raw[12] == 169 && raw[13] == 254;
	}
	return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
}

static bool ep_gid_in_range(const uint8_t raw[16], const struct ep_ib_env *env)
{
	for (int bit = 0; bit < env->range_bits; bit++) {
		if ((raw[bit / 8] ^ env->range[bit / 8]) & (0x80 >> bit % 8)) {
			return false;
		}
	}
	return true;
}

bool ep_gid_same_subnet(const uint8_t a[16], const uint8_t b[16])
{
	return memcmp(a + 6, b + 6, 2) == 0;
}

uint16_t ep_gid_flid(const uint8_t raw[16])
{
	return (uint16_t)(raw[4] << 8 | raw[5]);
}

const char *ep_gid_print(const uint8_t raw[16], char buf[EP_GID_TEXT])
{
	bool ipv4 = ep_gid_is_ipv4(raw);

	if (!inet_ntop(ipv4 ? AF_INET : AF_INET6, raw + (ipv4 ? 12 : 0), buf, EP_GID_TEXT)) {
		buf[0] = '\0';
	}
	return buf;
}

static ncclResult_t ep_gid_at(const char *port, const struct ep_gid *list, int n, int index,
			      bool asked, int *chosen)
{
	for (int i = 0; i < n; i++) {
		if (list[i].index == index && !ep_gid_empty(list[i].raw)) {
			*chosen = i;
			return ncclSuccess;
		}
	}
	return asked ? ep_fail(ncclInvalidUsage,
			       "NCCL_IB_GID_INDEX=%d, but that entry of the GID table of %s is "
			       "empty: choose another (show_gids lists them) or unset it",
			       index, port)
		     : ep_fail(ncclSystemError,
			       "the GID table of %s is empty: is the port configured by a subnet "
			       "manager?",
			       port);
}

/* Smaller is better; what may not be used is EP_GID_NEVER. */
enum {
	EP_GID_GOOD,
	EP_GID_OTHER_FAMILY,
	EP_GID_LINK_LOCAL,
	EP_GID_NEVER
};

static int ep_gid_rank(const struct ep_gid *gid, const struct ep_ib_env *env)
{
	bool family = ep_gid_is_ipv4(gid->raw) == !env->ipv6;

	if (ep_gid_empty(gid->raw) || gid->roce != env->roce_version) {
		return EP_GID_NEVER;
	}
	if (env->range_bits >= 0) {
		return family && ep_gid_in_range(gid->raw, env) ? EP_GID_GOOD : EP_GID_NEVER;
	}
	if (ep_gid_is_link_local(gid->raw)) {
		return EP_GID_LINK_LOCAL;
	}
	return family ? EP_GID_GOOD : EP_GID_OTHER_FAMILY;
}

static ncclResult_t ep_gid_none(const char *port, const struct ep_gid *list, int n,
				const struct ep_ib_env *env)
{
	int version = 0, due = 0;

	for (int i = 0; i < n; i++) {
		due += !list[i].roce && !ep_gid_empty(list[i].raw);
		version += list[i].roce == env->roce_version && !ep_gid_empty(list[i].raw);
	}
	if (due && !version) {
		return ep_fail(
			ncclSystemError,
			"no usable GID on %s: neither libibverbs (too old) nor the kernel "
			"reports the RoCE version of %d of %d entries; set NCCL_IB_GID_INDEX "
			"(show_gids lists them) or install a newer libibverbs",
			port, due, n);
	}
	return ep_fail(ncclSystemError,
		       "no usable GID on %s: of %d entries %d are of RoCE version %d%s; give the "
		       "port an IP address, or set NCCL_IB_GID_INDEX",
		       port, n, version, env->roce_version,
		       version ? ", none of them in NCCL_IB_ADDR_RANGE" : "");
}

ncclResult_t ep_gid_pick(const char *port, bool ethernet, const struct ep_gid *list, int n,
			 const struct ep_ib_env *env, int *chosen)
{
	int best = EP_GID_NEVER;
	char text[EP_GID_TEXT];

	if (!ethernet) {
		for (int i = 0; i < n; i++) {
			if (list[i].index == env->flid_index && ep_gid_flid(list[i].raw)) {
				*chosen = i;
				return ncclSuccess;
			}
		}
		return ep_gid_at(port, list, n, 0, false, chosen);
	}
	if (env->gid_index >= 0) {
		return ep_gid_at(port, list, n, env->gid_index, true, chosen);
	}
	for (int i = 0; i < n; i++) {
		int rank = ep_gid_rank(&list[i], env);

		if (rank < best) {
			best = rank;
			*chosen = i;
		}
	}
	if (best == EP_GID_NEVER) {
		return ep_gid_none(port, list, n, env);
	}
	if (best == EP_GID_LINK_LOCAL) {
		EP_INFO(EP_LOG_NET,
			"%s has none but link-local addresses, GID %d is %s: peers must be "
			"on the same Ethernet",
			port, list[*chosen].index, ep_gid_print(list[*chosen].raw, text));
	}
	return ncclSuccess;
}
