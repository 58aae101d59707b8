/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver's end of a connection in the making. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/link/acceptor.h"
#include "net/p2p/comm.h"
#include "net/p2p/listen.h"
#include "net/p2p/p2p_handshake.h"

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

static void ep_net_accepted_close(struct ep_net_listen *listener)
{
	if (listener->accepted.fd >= 0) {
		close(listener->accepted.fd);
		listener->accepted.fd = -1;
	}
}

static void ep_net_listen_free(void *object)
{
	struct ep_net_listen *listener = object;

	ep_net_accepted_close(listener);
	ep_net_acceptor_close(&listener->acceptor);
	ep_net_comm_free(listener->comm);
	free(listener);
}

ncclResult_t ep_net_listen(int dev, void *handle, void **listen_comm)
{
	struct ep_net_handle h = { .parked = NULL };
	struct ep_net_listen *l = calloc(1, sizeof(*l));
	ncclResult_t result;

	if (!l) {
		return ep_fail(ncclSystemError, "out of host memory for a listener");
	}
	l->accepted.fd = -1;
	EP_CHECK_GOTO(ep_net_nic_get(dev, &l->nic), err_free);
	h.place.number = (uint32_t)l->nic->nports;
	EP_CHECK_GOTO(ep_net_acceptor_open(&l->acceptor, EP_NET_MAGIC, &h.place), err_free);
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_LISTEN, l, listen_comm), err_close);
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

/* Refuses the connection, and sends the reason as far as the socket has room. */
static void ep_net_refuse(struct ep_net_listen *listener, ncclResult_t code)
{
	size_t at = 0;

	ep_net_connect_rep_refuse(code, listener->acceptor.nonce, &listener->rep);
	(void)ep_net_put(listener->accepted.fd, &listener->rep, sizeof(listener->rep), &at);
}

static ncclResult_t ep_net_accepted_connect(struct ep_net_listen *listener)
{
	const struct ep_net_connect_req *h = &listener->req;
	const char *who = listener->accepted.who;
	struct ep_net_peer peer = { .nremotes = h->ports,
				    .remote = h->port,
				    .shared = h->shared,
				    .nqps = h->nqps,
				    .qpn = h->qpn };
	const struct ep_net_class class = { (int)(h->tc & 0xff), (int)(h->sl & 0xf) };
	uint32_t paths = ep_net_paths((uint32_t)listener->nic->nports, h->ports);
	ncclResult_t result;

	EP_CHECK(ep_net_peer_check(&peer, paths, who));
	EP_CHECK(ep_net_comm_new(listener->nic, false, paths, h->nqps, &class, &listener->comm));
	strcpy(listener->comm->peer, who);
	listener->comm->rank = h->rank;
	result = ep_net_comm_connect(listener->comm, &peer);
	if (result != ncclSuccess) {
		ep_net_comm_free(listener->comm);
		listener->comm = NULL;
	}
	return result;
}

/* The request has come, all of it: the connection is made, or refused. */
static ncclResult_t ep_net_take_req(struct ep_net_listen *listener)
{
	EP_CHECK(ep_net_accepted_connect(listener));
	ep_net_connect_rep_fill(listener->comm, listener->acceptor.nonce, &listener->rep);
	listener->comm->fd = listener->accepted.fd;
	listener->accepted.fd = -1;
	return ncclSuccess;
}

static ncclResult_t ep_net_do_recv_req(struct ep_net_listen *listener, bool *done)
{
	ncclResult_t result = ep_net_message_recv(listener->accepted.fd, &listener->req.head,
						  sizeof(listener->req), EP_NET_MAGIC,
						  &listener->at, listener->accepted.who, done);

	if (result == ncclSuccess && *done) {
		result = ep_net_take_req(listener);
	}
	if (result != ncclSuccess) {
		ep_net_refuse(listener, result);
	}
	return result;
}

/* Does the work of the stage, as far as it goes. *done: all of it. */
static ncclResult_t ep_net_listen_do(struct ep_net_listen *listener, bool *done)
{
	struct ep_net_comm *c = listener->comm;

	switch (listener->stage) {
	case EP_NET_WAIT_PEER:
		EP_CHECK(ep_net_acceptor_poll(&listener->acceptor, &listener->accepted));
		*done = listener->accepted.fd >= 0;
		if (*done) {
			ep_net_acceptor_report(&listener->acceptor, true, "a sender");
			listener->req.head = listener->accepted.head;
			listener->at = sizeof(listener->req.head);
		}
		return ncclSuccess;
	case EP_NET_RECV_REQ:
		return ep_net_do_recv_req(listener, done);
	case EP_NET_SEND_REP:
		return ep_net_message_send(c->fd, &listener->rep, sizeof(listener->rep),
					   &listener->at, c->peer, done);
	default:
		return ep_net_message_end(ep_net_take(c->fd, &listener->ready,
						      sizeof(listener->ready), &listener->at),
					  c->peer, done);
	}
}

static ncclResult_t ep_net_listen_step(struct ep_net_listen *listener, bool *done)
{
	for (;;) {
		EP_CHECK(ep_net_listen_do(listener, done));
		if (!*done || listener->stage == EP_NET_RECV_READY) {
			break;
		}
		listener->at = listener->stage == EP_NET_WAIT_PEER ? listener->at : 0;
		listener->stage++;
	}
	if (*done && listener->ready != EP_NET_READY) {
		return ep_fail(ncclRemoteError, "%s sends 0x%08x in place of being ready",
			       listener->comm->peer, listener->ready);
	}
	if (!*done && ep_now_ns() - listener->began > ep_net_setup_ns()) {
		return ep_fail(ncclRemoteError,
			       "waited %llu ms at %s for %s: is its process stuck? "
			       "(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
			       (unsigned long long)(ep_net_setup_ns() / 1000000),
			       listener->acceptor.where,
			       listener->stage == EP_NET_WAIT_PEER ? "a sender to connect"
								   : listener->accepted.who);
	}
	return ncclSuccess;
}

/* ---- for NCCL ---- */

ncclResult_t ep_net_accept(void *listen_comm, void **recv_comm)
{
	struct ep_net_listen *l = ep_net_handle_find(EP_NET_LISTEN, listen_comm);
	struct ep_net_comm *c;
	ncclResult_t result;
	bool done = false;

	*recv_comm = NULL;
	if (!l) {
		return ncclInvalidArgument;
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
		result = ep_net_comm_open(c);
	}
	if (result != ncclSuccess) {
		ep_net_comm_free(c);
		return result;
	}
	*recv_comm = c->handle;
	return ncclSuccess;
}

ncclResult_t ep_net_close_listen(void *listen_comm)
{
	return listen_comm ? ep_net_handle_close(EP_NET_LISTEN, listen_comm, ep_net_listen_free)
			   : ep_fail(ncclInvalidArgument, "no listener to be closed");
}
