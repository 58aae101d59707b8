/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver's end of a connection in the making. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/link/acceptor.h"
#include "net/link/iface.h"
#include "net/p2p/p2p_handshake.h"
#include "net/p2p/route.h"

enum ep_net_listen_stage {
	EP_NET_WAIT_PEER,
	EP_NET_RECV_REQ,
	EP_NET_SEND_REP,
	EP_NET_RECV_READY
};

struct ep_net_listen {
	const struct ep_net_nic *nic;
	uint64_t began; /* first accept; 0: not yet */
	struct ep_net_acceptor acceptor;
	enum ep_net_listen_stage stage;
	struct ep_net_accepted accepted; /* until there is `comm` */
	struct ep_net_connect_req req;
	struct ep_net_comm *comm;
	struct ep_net_connect_rep rep;
	uint32_t ready;
	size_t at; /* of the message under way */
};

static void ep_net_accepted_close(struct ep_net_listen *l)
{
	if (l->accepted.fd >= 0) {
		close(l->accepted.fd);
		l->accepted.fd = -1;
	}
}

static void ep_net_listen_free(struct ep_net_listen *l)
{
	ep_net_accepted_close(l);
	ep_net_acceptor_close(&l->acceptor);
	ep_net_comm_free(l->comm);
	free(l);
}

ncclResult_t ep_net_listen(int dev, void *handle, void **listen_comm)
{
	struct ep_net_handle h = { .magic = EP_NET_MAGIC, .version = EP_NET_VERSION };
	struct ep_net_listen *l = calloc(1, sizeof(*l));
	ncclResult_t result;

	if (!l) {
		return ep_fail(ncclSystemError, "out of host memory for a listener");
	}
	l->accepted.fd = -1;
	EP_CHECK_GOTO(ep_net_nic_get(dev, &l->nic), err_free);
	h.ports = (uint32_t)l->nic->nports;
	EP_CHECK_GOTO(ep_net_addr_find(&h.addr), err_free);
	EP_CHECK_GOTO(ep_net_acceptor_open(&l->acceptor, EP_NET_MAGIC, &h.addr), err_free);
	h.nonce = l->acceptor.nonce;
	*listen_comm = ep_net_handle_new(EP_NET_LISTEN, l);
	if (!*listen_comm) {
		result = ep_fail(ncclSystemError, "no more than %u connections", EP_NET_COMMS);
		goto err_close;
	}
	memset(handle, 0, EP_NET_HANDLE_BYTES);
	memcpy(handle, &h, sizeof(h));
	return ncclSuccess;

err_close:
	ep_net_acceptor_close(&l->acceptor);
err_free:
	free(l);
	return result;
}

/* ---- stages ---- */

/* The connection is refused, and the other end is told as far as its socket has room. */
static void ep_net_refuse(struct ep_net_listen *l, ncclResult_t code)
{
	size_t at = 0;

	ep_net_connect_rep_refuse(code, l->acceptor.nonce, &l->rep);
	(void)ep_net_put(l->accepted.fd, &l->rep, sizeof(l->rep), &at);
}

static ncclResult_t ep_net_handshake_lost(const char *who, enum ep_net_io_state state)
{
	return ep_fail(ncclRemoteError, "%s %s while a connection was made: see its log", who,
		       state == EP_NET_IO_CLOSED ? "has gone away" : strerror(errno));
}

static ncclResult_t ep_net_accepted_connect(struct ep_net_listen *l)
{
	const struct ep_net_connect_req *h = &l->req;
	const char *who = l->accepted.who;
	struct ep_net_peer peer = { .nremotes = h->ports,
				    .remote = h->port,
				    .shared = h->shared,
				    .nqps = h->nqps,
				    .qpn = h->qpn };
	const struct ep_net_class class = { (int)(h->tc & 0xff), (int)(h->sl & 0xf) };
	uint32_t routes = ep_net_routes((uint32_t)l->nic->nports, h->ports);
	ncclResult_t result;

	EP_CHECK(ep_net_peer_check(&peer, routes, who));
	EP_CHECK(ep_net_comm_new(l->nic, false, routes, h->nqps, &class, &l->comm));
	strcpy(l->comm->peer, who);
	l->comm->rank = h->rank;
	result = ep_net_comm_connect(l->comm, &peer);
	if (result != ncclSuccess) {
		ep_net_comm_free(l->comm);
		l->comm = NULL;
	}
	return result;
}

static ncclResult_t ep_net_do_wait(struct ep_net_listen *l)
{
	EP_CHECK(ep_net_acceptor_poll(&l->acceptor, &l->accepted));
	if (l->accepted.fd >= 0) {
		ep_net_acceptor_report(&l->acceptor, true, "a sender");
		l->req.head = l->accepted.head;
		l->stage = EP_NET_RECV_REQ;
		l->at = sizeof(l->req.head);
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_do_recv_req(struct ep_net_listen *l)
{
	enum ep_net_io_state state;
	ncclResult_t result = ep_net_head_check(&l->req.head, sizeof(l->req), l->accepted.who);

	if (result == ncclSuccess) {
		state = ep_net_take(l->accepted.fd, &l->req, sizeof(l->req), &l->at);
		if (state == EP_NET_IO_AGAIN) {
			return ncclSuccess;
		}
		result = state == EP_NET_IO_DONE ? ep_net_accepted_connect(l)
						 : ep_net_handshake_lost(l->accepted.who, state);
	}
	if (result != ncclSuccess) {
		ep_net_refuse(l, result);
		return result;
	}
	ep_net_connect_rep_fill(l->comm, l->acceptor.nonce, &l->rep);
	l->comm->fd = l->accepted.fd;
	l->accepted.fd = -1;
	l->stage = EP_NET_SEND_REP;
	l->at = 0;
	return ncclSuccess;
}

static ncclResult_t ep_net_do_handshake(struct ep_net_listen *l, bool *done)
{
	enum ep_net_io_state state;

	if (l->stage == EP_NET_SEND_REP) {
		state = ep_net_put(l->comm->fd, &l->rep, sizeof(l->rep), &l->at);
		if (state == EP_NET_IO_DONE) {
			l->stage = EP_NET_RECV_READY;
			l->at = 0;
		}
	} else {
		state = ep_net_take(l->comm->fd, &l->ready, sizeof(l->ready), &l->at);
		*done = state == EP_NET_IO_DONE;
	}
	if (state == EP_NET_IO_DONE && *done && l->ready != EP_NET_READY) {
		return ep_fail(ncclRemoteError, "%s says 0x%08x in place of being ready",
			       l->comm->peer, l->ready);
	}
	return state == EP_NET_IO_DONE || state == EP_NET_IO_AGAIN
		       ? ncclSuccess
		       : ep_net_handshake_lost(l->comm->peer, state);
}

static ncclResult_t ep_net_listen_step(struct ep_net_listen *l, bool *done)
{
	enum ep_net_listen_stage before;

	do {
		before = l->stage;
		if (l->stage == EP_NET_WAIT_PEER) {
			EP_CHECK(ep_net_do_wait(l));
		} else if (l->stage == EP_NET_RECV_REQ) {
			EP_CHECK(ep_net_do_recv_req(l));
		} else {
			EP_CHECK(ep_net_do_handshake(l, done));
		}
	} while (l->stage > before);
	if (!*done && ep_now_ns() - l->began > ep_net_setup_ns()) {
		return ep_fail(ncclRemoteError,
			       "waited %llu ms at %s for %s: is its process stuck? "
			       "(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
			       (unsigned long long)(ep_net_setup_ns() / 1000000), l->acceptor.where,
			       l->stage == EP_NET_WAIT_PEER ? "a sender to connect"
							    : l->accepted.who);
	}
	return ncclSuccess;
}

/* ---- for NCCL ---- */

ncclResult_t ep_net_accept(void *listen_comm, void **recv_comm)
{
	struct ep_net_listen *l = ep_net_handle_get(EP_NET_LISTEN, listen_comm);
	struct ep_net_comm *c;
	ncclResult_t result;
	bool done = false;

	*recv_comm = NULL;
	if (!l) {
		return ep_fail(ncclInvalidArgument, "%p does not listen, or was closed",
			       listen_comm);
	}
	l->began = l->began ? l->began : ep_now_ns();
	result = ep_net_listen_step(l, &done);
	if (result == ncclSuccess && !done) {
		return ncclSuccess;
	}
	if (l->stage == EP_NET_WAIT_PEER) {
		ep_net_acceptor_report(&l->acceptor, false, "a sender");
	}
	ep_net_accepted_close(l);
	c = l->comm;
	l->comm = NULL;
	l->stage = EP_NET_WAIT_PEER;
	l->began = 0;
	if (result == ncclSuccess) {
		c->handle = ep_net_handle_new(EP_NET_RECV, c);
		if (!c->handle) {
			result = ep_fail(ncclSystemError, "no more than %u connections",
					 EP_NET_COMMS);
		}
	}
	if (result == ncclSuccess) {
		ep_net_counts_open(c);
		result = ep_net_routes_async_add(c);
	}
	if (result != ncclSuccess) {
		if (c && c->handle) {
			ep_net_handle_drop(EP_NET_RECV, c->handle);
		}
		ep_net_comm_free(c);
		return result;
	}
	*recv_comm = c->handle;
	return ncclSuccess;
}

ncclResult_t ep_net_close_listen(void *listen_comm)
{
	struct ep_net_listen *l = ep_net_handle_drop(EP_NET_LISTEN, listen_comm);

	if (!l) {
		return ep_fail(ncclInvalidArgument, "%p does not listen, or was closed before",
			       listen_comm);
	}
	ep_net_listen_free(l);
	return ncclSuccess;
}
