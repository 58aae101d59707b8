/* SPDX-License-Identifier: Apache-2.0 */
/* Heads and messages, and listeners that strangers may find. */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "core/process.h"
#include "core/param.h"
#include "net/net.h"

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
static ncclResult_t head_check(const struct ep_net_head *head, uint64_t magic, size_t bytes,
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
		EP_CHECK(head_check(msg, magic, bytes, who));
		state = ep_net_take(fd, msg, bytes, at);
	}
	return ep_net_message_end(state, who, done);
}

ncclResult_t ep_net_acceptor_open(struct ep_net_acceptor *g, uint64_t magic,
				  struct ep_net_place *place)
{
	memset(g, 0, sizeof(*g));
	for (int i = 0; i < EP_NET_MAX_PENDING; i++) {
		g->pending[i].fd = -1;
	}
	EP_CHECK(ep_net_addr_own(&place->addr));
	EP_CHECK(ep_net_listen_at(&place->addr, &g->fd));
	g->magic = place->magic = magic;
	g->nonce = place->nonce = ep_random_u64();
	place->version = EP_NET_VERSION;
	ep_net_addr_print(&place->addr, g->where);
	return ncclSuccess;
}

ncclResult_t ep_net_place_check(const struct ep_net_place *place, uint64_t magic, const char *whose)
{
	if (place->magic != magic ||
	    (place->addr.any.sa_family != AF_INET && place->addr.any.sa_family != AF_INET6)) {
		return ep_fail(ncclInvalidArgument,
			       "the handle of %s is not one of this plugin (it begins with "
			       "0x%016llx): do all ranks use it?",
			       whose, (unsigned long long)place->magic);
	}
	if (place->version != EP_NET_VERSION) {
		return ep_fail(ncclInvalidUsage,
			       "%s has another version of this plugin (%u, this one %u): install "
			       "the same on all hosts",
			       whose, place->version, EP_NET_VERSION);
	}
	return ncclSuccess;
}

void ep_net_acceptor_close(struct ep_net_acceptor *g)
{
	for (int i = 0; i < EP_NET_MAX_PENDING; i++) {
		if (g->pending[i].fd >= 0) {
			close(g->pending[i].fd);
		}
	}
	close(g->fd);
}

static const char *pending_print(const struct ep_net_pending *pending, char text[EP_NET_ADDR_TEXT])
{
	union ep_net_addr addr = { .any.sa_family = AF_UNSPEC };
	socklen_t size = sizeof(addr);

	if (getpeername(pending->fd, &addr.any, &size) != 0) {
		return strcpy(text, "a closed one");
	}
	return ep_net_addr_print(&addr, text);
}

static void rejected_note(struct ep_net_acceptor *g, const struct ep_net_pending *pending)
{
	if (g->rejected < EP_NET_NAMED) {
		pending_print(pending, g->named[g->rejected]);
	}
	g->rejected++;
}

static void pending_reject(struct ep_net_acceptor *g, struct ep_net_pending *pending)
{
	EP_INFO(EP_LOG_NET, "rejected a connection to %s: it did not send the nonce", g->where);
	rejected_note(g, pending);
	close(pending->fd);
	pending->fd = -1;
}

/* Receives more of the head. True: it has the nonce, and the connection is accepted. */
static bool pending_receive(struct ep_net_acceptor *g, struct ep_net_pending *pending,
			    struct ep_net_accepted *accepted)
{
	const struct ep_net_head *head = &pending->head;
	enum ep_net_io_state state =
		ep_net_take(pending->fd, &pending->head, sizeof(pending->head), &pending->at);

	if (state == EP_NET_IO_DONE && head->magic == g->magic && head->nonce == g->nonce) {
		accepted->fd = pending->fd;
		accepted->head = *head;
		pending_print(pending, accepted->who);
		pending->fd = -1;
		return true;
	}
	if (state != EP_NET_IO_AGAIN) {
		pending_reject(g, pending);
	}
	return false;
}

/*
 * Finds a free place, else the oldest connection if that has been silent for long; NULL: neither.
 */
static struct ep_net_pending *pending_find(struct ep_net_acceptor *g)
{
	struct ep_net_pending *oldest = &g->pending[0];

	for (int i = 0; i < EP_NET_MAX_PENDING; i++) {
		struct ep_net_pending *pending = &g->pending[i];

		if (pending->fd < 0) {
			return pending;
		}
		if (pending->since < oldest->since) {
			oldest = pending;
		}
	}
	return ep_now_ns() - oldest->since >= EP_NET_SILENT_NS ? oldest : NULL;
}

ncclResult_t ep_net_acceptor_poll(struct ep_net_acceptor *g, struct ep_net_accepted *accepted)
{
	struct ep_net_pending *place;
	int fd;

	*accepted = (struct ep_net_accepted){ .fd = -1 };
	for (int i = 0; i < EP_NET_MAX_PENDING; i++) {
		if (g->pending[i].fd >= 0 && pending_receive(g, &g->pending[i], accepted)) {
			return ncclSuccess;
		}
	}
	for (int i = 0; i < EP_NET_MAX_PENDING && (place = pending_find(g)); i++) {
		EP_CHECK(ep_net_accept_one(g->fd, g->where, &fd));
		if (fd < 0) {
			break;
		}
		if (place->fd >= 0) {
			pending_reject(g, place);
		}
		*place = (struct ep_net_pending){ .fd = fd, .since = ep_now_ns() };
		if (pending_receive(g, place, accepted)) {
			break;
		}
	}
	return ncclSuccess;
}

void ep_net_acceptor_report(struct ep_net_acceptor *g, bool connected, const char *whom)
{
	uint64_t silent = ep_now_ns() - EP_NET_SILENT_NS;
	uint32_t named;

	for (int i = 0; i < EP_NET_MAX_PENDING && !connected; i++) {
		if (g->pending[i].fd >= 0 && g->pending[i].since < silent) {
			rejected_note(g, &g->pending[i]);
		}
	}
	named = (uint32_t)ep_min_u64(g->rejected, EP_NET_NAMED);
	if (named) {
		EP_WARN("rejected connections to %s, which waits for %s, %u times: %s%s%s%s%s%s. Is "
			"it a port scanner or a health check? Keep it away from the ports of jobs",
			g->where, whom, g->rejected, g->named[0], named > 1 ? ", " : "",
			named > 1 ? g->named[1] : "", named > 2 ? ", " : "",
			named > 2 ? g->named[2] : "", g->rejected > named ? " and others" : "");
	}
	g->rejected = 0;
}
