/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "core/param.h"
#include "net/link/handshake.h"

uint64_t ep_net_setup_ns(void)
{
	return (uint64_t)ep_param_or_initial(EP_PARAM_BOOTSTRAP_TIMEOUT_MS) * 1000000;
}

bool ep_net_end_good(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps)
{
	bool good = nqps >= 1 && nqps <= EP_NET_MAX_QPS &&
		    memchr(end->name, '\0', sizeof(end->name)) && end->mtu >= IBV_MTU_256 &&
		    end->mtu <= IBV_MTU_4096 && end->roce <= 2;

	for (uint32_t i = 0; good && qpn && i < nqps; i++) {
		good = qpn[i] <= 0xffffff;
	}
	return good;
}

ncclResult_t ep_net_end_check(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps,
			      const char *who)
{
	return ep_net_end_good(end, qpn, nqps)
		       ? ncclSuccess
		       : ep_fail(ncclRemoteError,
				 "%s sends impossible values (%u queue pairs, MTU code %u, "
				 "RoCE version %u): do all ranks use the same plugin?",
				 who, nqps, end->mtu, end->roce);
}

/* ---- messages ---- */

ncclResult_t ep_net_message_end(enum ep_net_io_state state, const char *who, bool *done)
{
	*done = state == EP_NET_IO_DONE;
	return *done || state == EP_NET_IO_AGAIN
		       ? ncclSuccess
		       : ep_fail(ncclRemoteError, "%s %s while a connection was made: see its log",
				 who,
				 state == EP_NET_IO_CLOSED ? "has gone away" : strerror(errno));
}

ncclResult_t ep_net_message_send(int fd, const void *msg, size_t bytes, size_t *at, const char *who,
				 bool *done)
{
	return ep_net_message_end(ep_net_put(fd, msg, bytes, at), who, done);
}

/* Why a head is not one of this version's. */
static ncclResult_t ep_net_head_check(const struct ep_net_head *head, uint64_t magic, size_t bytes,
				      const char *who)
{
	if (head->magic != magic) {
		return ep_fail(ncclRemoteError,
			       "what answers at %s is another program (it begins with "
			       "0x%016llx): do all ranks use this plugin?",
			       who, (unsigned long long)head->magic);
	}
	if (head->version != EP_NET_VERSION || head->bytes != bytes) {
		return ep_fail(ncclRemoteError,
			       "%s has another version of this plugin (it has version %u with "
			       "%u bytes, this one %u with %zu): install the same on all hosts",
			       who, head->version, head->bytes, EP_NET_VERSION, bytes);
	}
	return ncclSuccess;
}

ncclResult_t ep_net_message_recv(int fd, struct ep_net_head *msg, size_t bytes, uint64_t magic,
				 size_t *at, const char *who, bool *done)
{
	enum ep_net_io_state state = EP_NET_IO_DONE;

	if (*at < sizeof(*msg)) {
		state = ep_net_take(fd, msg, sizeof(*msg), at);
	}
	if (state == EP_NET_IO_DONE) {
		EP_CHECK(ep_net_head_check(msg, magic, bytes, who));
		state = ep_net_take(fd, msg, bytes, at);
	}
	return ep_net_message_end(state, who, done);
}
