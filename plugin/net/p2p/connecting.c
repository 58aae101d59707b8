/* SPDX-License-Identifier: Apache-2.0 */
/* The sender's end of a connection in the making. NCCL calls again and again until it is made. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "net/base/plugin.h"
#include "net/link/dial.h"
#include "net/p2p/comm.h"
#include "net/p2p/connecting.h"
#include "net/p2p/p2p_handshake.h"

enum ep_net_connect_stage {
	EP_NET_DIALING,
	EP_NET_SEND_REQ,
	EP_NET_RECV_REP,
	EP_NET_SEND_READY
};

struct ep_net_connecting {
	const void *ctx; /* NULL: of a table that has none */
	enum ep_net_connect_stage stage;
	struct ep_net_comm *comm;
	struct ep_net_dialing dialing;
	uint64_t nonce, began;
	char where[EP_NET_PEER + 40]; /* it is dialed, for messages */
	size_t at;                    /* of the message under way */
	struct ep_net_connect_req req;
	struct ep_net_connect_rep rep;
};

static void ep_net_connecting_free(struct ep_net_connecting *connecting)
{
	if (connecting) {
		ep_net_dialing_end(&connecting->dialing);
		ep_net_comm_free(connecting->comm);
		free(connecting);
	}
}

/* Whether it is of a context that ends; `ctx` NULL: of all. */
static bool ep_net_connecting_of(const void *object, const void *ctx)
{
	return !ctx || ((const struct ep_net_connecting *)object)->ctx == ctx;
}

/* Frees those that NCCL has abandoned. */
static void ep_net_connecting_sweep(const void *ctx)
{
	struct ep_net_connecting *s;

	while ((s = ep_net_handle_drop_one(EP_NET_CONNECT, ep_net_connecting_of, ctx))) {
		EP_INFO(EP_LOG_NET, "a connection to %s was never finished", s->comm->peer);
		ep_net_connecting_free(s);
	}
}

static ncclResult_t ep_net_connecting_new(int dev, int tc, const struct ep_net_handle *handle,
					  struct ep_net_connecting **out)
{
	const struct ep_net_nic *nic;
	const struct ep_net_class class = { tc, tc };
	struct ep_net_connecting *s;
	uint32_t paths, qps;
	ncclResult_t result;

	EP_CHECK(ep_net_nic_get(dev, &nic));
	ep_net_sweep_with(ep_net_connecting_sweep);
	paths = ep_net_paths((uint32_t)nic->nports, handle->place.number);
	qps = (uint32_t)ep_min_u64((uint64_t)ep_net_env()->qps, EP_NET_MAX_QPS / paths);
	s = calloc(1, sizeof(*s));
	if (!s) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	s->nonce = handle->place.nonce;
	s->began = ep_now_ns();
	result = ep_net_comm_new(nic, true, paths, qps * paths, &class, &s->comm);
	if (result != ncclSuccess) {
		free(s);
		return result;
	}
	s->comm->rank = handle->rank;
	ep_net_addr_print(&handle->place.addr, s->comm->peer);
	snprintf(s->where, sizeof(s->where), "%s, where a receiver should listen,", s->comm->peer);
	ep_net_dialing_begin(&s->dialing, &handle->place.addr, s->where,
			     s->began + ep_net_setup_ns());
	ep_net_connect_req_fill(s->comm, s->nonce, &s->req);
	*out = s;
	return ncclSuccess;
}

/* ---- stages ---- */

static ncclResult_t ep_net_take_rep(struct ep_net_connecting *connecting)
{
	const struct ep_net_connect_rep *a = &connecting->rep;
	struct ep_net_peer peer = { .nremotes = a->ports,
				    .remote = a->port,
				    .shared = a->shared,
				    .nqps = connecting->comm->nqps,
				    .qpn = a->qpn };

	if (a->code != ncclSuccess) {
		return ep_fail(ncclRemoteError, "%s refuses: %.*s", connecting->comm->peer,
			       EP_NET_TEXT - 1, a->text);
	}
	EP_CHECK(ep_net_peer_check(&peer, connecting->comm->npaths, connecting->comm->peer));
	return ep_net_comm_connect(connecting->comm, &peer);
}

/* Does the work of the stage, as far as it goes. *done: all of it. */
static ncclResult_t ep_net_connecting_do(struct ep_net_connecting *connecting, bool *done)
{
	static const uint32_t ready = EP_NET_READY;
	struct ep_net_comm *c = connecting->comm;

	switch (connecting->stage) {
	case EP_NET_DIALING:
		EP_CHECK(ep_net_dialing_step(&connecting->dialing, &c->fd));
		*done = c->fd >= 0;
		return ncclSuccess;
	case EP_NET_SEND_REQ:
		return ep_net_message_send(c->fd, &connecting->req, sizeof(connecting->req),
					   &connecting->at, c->peer, done);
	case EP_NET_RECV_REP:
		EP_CHECK(ep_net_message_recv(c->fd, &connecting->rep.head, sizeof(connecting->rep),
					     EP_NET_MAGIC, &connecting->at, c->peer, done));
		return *done ? ep_net_take_rep(connecting) : ncclSuccess;
	default:
		return ep_net_message_send(c->fd, &ready, sizeof(ready), &connecting->at, c->peer,
					   done);
	}
}

static ncclResult_t ep_net_connecting_step(struct ep_net_connecting *connecting, bool *done)
{
	static const char *const what[] = { "connect to", "send to", "receive from", "confirm to" };

	for (;;) {
		EP_CHECK(ep_net_connecting_do(connecting, done));
		if (!*done || connecting->stage == EP_NET_SEND_READY) {
			break;
		}
		connecting->stage++;
		connecting->at = 0;
	}
	if (!*done && ep_now_ns() - connecting->began > ep_net_setup_ns()) {
		return ep_fail(ncclRemoteError,
			       "waited %llu ms to %s %s, where a receiver should listen: is its "
			       "process stuck? (NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
			       (unsigned long long)(ep_net_setup_ns() / 1000000),
			       what[connecting->stage], connecting->comm->peer);
	}
	return ncclSuccess;
}

/* ---- for NCCL ---- */

static ncclResult_t ep_net_handle_check(const struct ep_net_handle *handle)
{
	uint32_t ports = handle->place.number;

	EP_CHECK(ep_net_place_check(&handle->place, EP_NET_MAGIC, "a receiver"));
	return ports >= 1 && ports <= EP_NET_NIC_PORTS
		       ? ncclSuccess
		       : ep_fail(ncclInvalidArgument,
				 "the handle of a receiver has a NIC with %u ports, the limit is "
				 "%d: was it changed?",
				 ports, EP_NET_NIC_PORTS);
}

/* The connection is made: what was its making goes. */
static ncclResult_t ep_net_connect_finish(struct ep_net_connecting *connecting, void **send_comm)
{
	struct ep_net_comm *c = connecting->comm;

	EP_CHECK(ep_net_comm_open(c));
	connecting->comm = NULL;
	*send_comm = c->handle;
	EP_INFO(EP_LOG_NET, "%s sends to %s, %s:%u%s, by %u queue pairs", c->nic->label, c->peer,
		c->remote[0].end.name, c->remote[0].end.port, c->nremotes > 1 ? " and others" : "",
		c->nqps);
	return ncclSuccess;
}

ncclResult_t ep_net_connect(const void *ctx, int dev, int tc, void *handle, void **send_comm)
{
	struct ep_net_handle *h = handle;
	struct ep_net_connecting *s = NULL;
	ncclResult_t result;
	bool done = false;

	*send_comm = NULL;
	EP_CHECK(ep_net_handle_check(h));
	if (!h->parked) {
		EP_CHECK(ep_net_connecting_new(dev, tc, h, &s));
		s->ctx = ctx;
		result = ep_net_handle_new(EP_NET_CONNECT, s, &h->parked);
		if (result != ncclSuccess) {
			ep_net_connecting_free(s);
			return result;
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
	if (result == ncclSuccess) {
		result = ep_net_connect_finish(s, send_comm);
	}
	ep_net_connecting_free(ep_net_handle_drop(EP_NET_CONNECT, h->parked));
	h->parked = NULL;
	return result;
}
