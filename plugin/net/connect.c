/* SPDX-License-Identifier: Apache-2.0 */
/* The sender's end of a connection in the making. NCCL calls again and again until it is made. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/hello.h"

#define EP_NET_REFUSED_NS 5000000000ull /* how long a refused connection is tried again, and */
#define EP_NET_PAUSE_NS 100000000ull    /* how often */

enum ep_net_connect_stage {
	EP_NET_TO_DIAL,
	EP_NET_DIALING,
	EP_NET_SAYING,
	EP_NET_HEARING,
	EP_NET_READYING
};

struct ep_net_connecting {
	enum ep_net_connect_stage stage;
	struct ep_net_comm *comm;
	union ep_net_addr addr;
	uint64_t nonce, began, dial_at;
	size_t at; /* of the message under way */
	struct ep_net_hello hello;
	struct ep_net_answer answer;
};

static void ep_net_connecting_free(struct ep_net_connecting *s)
{
	if (s) {
		ep_net_comm_free(s->comm);
		free(s);
	}
}

static ncclResult_t ep_net_connecting_new(int dev, int tc, const struct ep_net_handle *handle,
					  struct ep_net_connecting **out)
{
	const struct ep_net_nic *nic;
	const struct ep_net_class class = { tc, tc };
	struct ep_net_connecting *s;
	uint32_t routes, qps;
	ncclResult_t result;

	EP_CHECK(ep_net_nic_get(dev, &nic));
	routes = ep_net_routes((uint32_t)nic->nports, handle->ports);
	qps = (uint32_t)ep_min_u64((uint64_t)ep_net_env()->qps, EP_NET_MAX_QPS / routes);
	s = calloc(1, sizeof(*s));
	if (!s) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	s->addr = handle->addr;
	s->nonce = handle->nonce;
	s->began = s->dial_at = ep_now_ns();
	result = ep_net_comm_new(nic, true, routes, qps * routes, &class, &s->comm);
	if (result != ncclSuccess) {
		free(s);
		return result;
	}
	ep_net_addr_print(&s->addr, s->comm->peer);
	ep_net_hello_fill(s->comm, s->nonce, &s->hello);
	*out = s;
	return ncclSuccess;
}

/* ---- stages: each returns success, with the stage left as it is if it has to wait ---- */

static ncclResult_t ep_net_dial_failed(struct ep_net_connecting *s, int error)
{
	uint64_t now = ep_now_ns();

	if (s->comm->fd >= 0) {
		close(s->comm->fd);
		s->comm->fd = -1;
	}
	if (ep_net_own_error(error)) {
		return ep_net_fail_own(error, "dial", s->comm->peer);
	}
	/* Of very many that dial at once some are refused. */
	if ((error == ECONNREFUSED || error == ETIMEDOUT || error == EAGAIN) &&
	    now - s->began < EP_NET_REFUSED_NS) {
		s->stage = EP_NET_TO_DIAL;
		s->dial_at = now + EP_NET_PAUSE_NS;
		return ncclSuccess;
	}
	return ep_fail(ncclRemoteError,
		       "%s, where a receiver should listen, cannot be reached: %s (see "
		       "NCCL_SOCKET_IFNAME there)",
		       s->comm->peer, strerror(error));
}

static ncclResult_t ep_net_do_dial(struct ep_net_connecting *s)
{
	if (s->stage == EP_NET_TO_DIAL) {
		if (ep_now_ns() < s->dial_at) {
			return ncclSuccess;
		}
		s->comm->fd = ep_net_dial(&s->addr);
		if (s->comm->fd < 0) {
			return ep_net_dial_failed(s, errno);
		}
		s->stage = EP_NET_DIALING;
	}
	switch (ep_net_dialed(s->comm->fd)) {
	case EP_NET_IO_AGAIN:
		return ncclSuccess;
	case EP_NET_IO_DONE:
		s->stage = EP_NET_SAYING;
		s->at = 0;
		return ncclSuccess;
	default:
		return ep_net_dial_failed(s, errno);
	}
}

static ncclResult_t ep_net_talk_failed(const struct ep_net_connecting *s,
				       enum ep_net_io_state state)
{
	return ep_fail(ncclRemoteError, "%s %s while a connection was made: see its log",
		       s->comm->peer,
		       state == EP_NET_IO_CLOSED ? "has gone away" : strerror(errno));
}

static ncclResult_t ep_net_do_say(struct ep_net_connecting *s)
{
	enum ep_net_io_state state = ep_net_put(s->comm->fd, &s->hello, sizeof(s->hello), &s->at);

	if (state == EP_NET_IO_DONE) {
		s->stage = EP_NET_HEARING;
		s->at = 0;
	} else if (state != EP_NET_IO_AGAIN) {
		return ep_net_talk_failed(s, state);
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_take_answer(struct ep_net_connecting *s)
{
	const struct ep_net_answer *a = &s->answer;
	struct ep_net_peer peer = { .nfars = a->ports,
				    .far = a->port,
				    .shared = a->shared,
				    .nqps = s->comm->nqps,
				    .qpn = a->qpn };

	if (a->code != ncclSuccess) {
		return ep_fail(ncclRemoteError, "%s refuses: %.*s", s->comm->peer, EP_NET_TEXT - 1,
			       a->text);
	}
	EP_CHECK(ep_net_peer_check(&peer, s->comm->nroutes, s->comm->peer));
	EP_CHECK(ep_net_comm_connect(s->comm, &peer));
	s->stage = EP_NET_READYING;
	s->at = 0;
	return ncclSuccess;
}

static ncclResult_t ep_net_do_hear(struct ep_net_connecting *s)
{
	size_t head = sizeof(s->answer.head);
	enum ep_net_io_state state = EP_NET_IO_DONE;

	if (s->at < head) {
		state = ep_net_take(s->comm->fd, &s->answer, head, &s->at);
		if (state == EP_NET_IO_DONE) {
			EP_CHECK(ep_net_head_check(&s->answer.head, sizeof(s->answer),
						   s->comm->peer));
		}
	}
	if (state == EP_NET_IO_DONE) {
		state = ep_net_take(s->comm->fd, &s->answer, sizeof(s->answer), &s->at);
	}
	if (state == EP_NET_IO_DONE) {
		return ep_net_take_answer(s);
	}
	return state == EP_NET_IO_AGAIN ? ncclSuccess : ep_net_talk_failed(s, state);
}

/* *done: the connection is made. */
static ncclResult_t ep_net_do_ready(struct ep_net_connecting *s, bool *done)
{
	uint32_t ready = EP_NET_READY;
	enum ep_net_io_state state = ep_net_put(s->comm->fd, &ready, sizeof(ready), &s->at);

	*done = state == EP_NET_IO_DONE;
	return *done || state == EP_NET_IO_AGAIN ? ncclSuccess : ep_net_talk_failed(s, state);
}

static ncclResult_t ep_net_connecting_step(struct ep_net_connecting *s, bool *done)
{
	static const char *const what[] = { "dial", "dial", "greet", "hear from", "answer" };
	enum ep_net_connect_stage before;

	do {
		before = s->stage;
		switch (s->stage) {
		case EP_NET_TO_DIAL:
		case EP_NET_DIALING:
			EP_CHECK(ep_net_do_dial(s));
			break;
		case EP_NET_SAYING:
			EP_CHECK(ep_net_do_say(s));
			break;
		case EP_NET_HEARING:
			EP_CHECK(ep_net_do_hear(s));
			break;
		default:
			EP_CHECK(ep_net_do_ready(s, done));
			break;
		}
	} while (s->stage > before);
	if (!*done && ep_now_ns() - s->began > ep_net_setup_ns()) {
		return ep_fail(ncclRemoteError,
			       "waited %llu ms to %s %s, where a receiver should listen: is its "
			       "process stuck? (NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
			       (unsigned long long)(ep_net_setup_ns() / 1000000), what[s->stage],
			       s->comm->peer);
	}
	return ncclSuccess;
}

/* ---- for NCCL ---- */

static ncclResult_t ep_net_handle_check(const struct ep_net_handle *handle)
{
	if (handle->magic != EP_NET_MAGIC ||
	    (handle->addr.any.sa_family != AF_INET && handle->addr.any.sa_family != AF_INET6)) {
		return ep_fail(ncclInvalidArgument,
			       "what should be the handle of a receiver is none (it begins with "
			       "0x%016llx): do all ranks use this plugin?",
			       (unsigned long long)handle->magic);
	}
	if (handle->version != EP_NET_VERSION) {
		return ep_fail(ncclInvalidUsage,
			       "the receiver has another version of this plugin (%u, this one "
			       "%u): install the same on all hosts",
			       handle->version, EP_NET_VERSION);
	}
	if (handle->ports < 1 || handle->ports > EP_NET_NIC_PORTS) {
		return ep_fail(
			ncclInvalidArgument,
			"the handle of a receiver speaks of a NIC with %u ports, the limit is "
			"%d: was it changed?",
			handle->ports, EP_NET_NIC_PORTS);
	}
	return ncclSuccess;
}

/* The connection is made: what was its making goes. */
static ncclResult_t ep_net_connect_finish(struct ep_net_connecting *s, void **send_comm)
{
	struct ep_net_comm *c = s->comm;
	ncclResult_t result;

	c->handle = ep_net_handle_new(EP_NET_SEND, c);
	if (!c->handle) {
		return ep_fail(ncclSystemError, "no more than %u connections", EP_NET_COMMS);
	}
	ep_net_counts_open(c);
	result = ep_net_attend(c);
	if (result != ncclSuccess) {
		ep_net_handle_drop(EP_NET_SEND, c->handle);
		return result;
	}
	s->comm = NULL;
	*send_comm = c->handle;
	EP_INFO(EP_LOG_NET, "%s sends to %s, %s:%u%s, by %u queue pairs", c->nic->label, c->peer,
		c->far[0].end.name, c->far[0].end.port, c->nfars > 1 ? " and others" : "", c->nqps);
	return ncclSuccess;
}

ncclResult_t ep_net_connect(int dev, int tc, void *handle, void **send_comm)
{
	struct ep_net_handle *h = handle;
	struct ep_net_connecting *s = NULL;
	ncclResult_t result;
	bool done = false;

	*send_comm = NULL;
	EP_CHECK(ep_net_handle_check(h));
	if (!h->parked) {
		EP_CHECK(ep_net_connecting_new(dev, tc, h, &s));
		h->parked = ep_net_handle_new(EP_NET_CONNECT, s);
		if (!h->parked) {
			ep_net_connecting_free(s);
			return ep_fail(ncclSystemError, "no more than %u connections",
				       EP_NET_COMMS);
		}
	}
	s = ep_net_handle_get(EP_NET_CONNECT, h->parked);
	if (!s) {
		return ep_fail(ncclInvalidArgument,
			       "the handle of a receiver was changed since it was first used");
	}
	result = ep_net_connecting_step(s, &done);
	if (result == ncclSuccess && !done) {
		return ncclSuccess;
	}
	if (done) {
		result = ep_net_connect_finish(s, send_comm);
	}
	ep_net_connecting_free(ep_net_handle_drop(EP_NET_CONNECT, h->parked));
	h->parked = NULL;
	return result;
}

void ep_net_setup_sweep(void)
{
	struct ep_net_connecting *s;

	while ((s = ep_net_handle_drop_any(EP_NET_CONNECT))) {
		EP_INFO(EP_LOG_NET, "a connection to %s was never finished", s->comm->peer);
		ep_net_connecting_free(s);
	}
}
