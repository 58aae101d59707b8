/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver's end of a connection in the making. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/link/guests.h"
#include "net/link/iface.h"
#include "net/p2p/hello.h"
#include "net/p2p/route.h"

enum ep_net_listen_stage {
	EP_NET_WAITING,
	EP_NET_GREETED,
	EP_NET_ANSWERING,
	EP_NET_AWAITING
};

struct ep_net_listen {
	const struct ep_net_nic *nic;
	uint64_t began; /* first accept; 0: not yet */
	struct ep_net_guests guests;
	enum ep_net_listen_stage stage;
	struct ep_net_caller caller; /* until there is `comm` */
	struct ep_net_hello hello;
	struct ep_net_comm *comm;
	struct ep_net_answer answer;
	uint32_t ready;
	size_t at; /* of the message under way */
};

static void ep_net_caller_leave(struct ep_net_listen *l)
{
	if (l->caller.fd >= 0) {
		close(l->caller.fd);
		l->caller.fd = -1;
	}
}

static void ep_net_listen_free(struct ep_net_listen *l)
{
	ep_net_caller_leave(l);
	ep_net_guests_close(&l->guests);
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
	l->caller.fd = -1;
	EP_CHECK_GOTO(ep_net_nic_get(dev, &l->nic), err_free);
	h.ports = (uint32_t)l->nic->nports;
	EP_CHECK_GOTO(ep_net_addr_find(&h.addr), err_free);
	EP_CHECK_GOTO(ep_net_guests_open(&l->guests, EP_NET_MAGIC, &h.addr), err_free);
	h.nonce = l->guests.nonce;
	*listen_comm = ep_net_handle_new(EP_NET_LISTEN, l);
	if (!*listen_comm) {
		result = ep_fail(ncclSystemError, "no more than %u connections", EP_NET_COMMS);
		goto err_close;
	}
	memset(handle, 0, EP_NET_HANDLE_BYTES);
	memcpy(handle, &h, sizeof(h));
	return ncclSuccess;

err_close:
	ep_net_guests_close(&l->guests);
err_free:
	free(l);
	return result;
}

/* ---- stages ---- */

/* The connection is refused, and the other end is told as far as its socket has room. */
static void ep_net_refuse(struct ep_net_listen *l, ncclResult_t code)
{
	size_t at = 0;

	ep_net_answer_refuse(code, l->guests.nonce, &l->answer);
	(void)ep_net_put(l->caller.fd, &l->answer, sizeof(l->answer), &at);
}

static ncclResult_t ep_net_handshake_lost(const char *who, enum ep_net_io_state state)
{
	return ep_fail(ncclRemoteError, "%s %s while a connection was made: see its log", who,
		       state == EP_NET_IO_CLOSED ? "has gone away" : strerror(errno));
}

static ncclResult_t ep_net_caller_connect(struct ep_net_listen *l)
{
	const struct ep_net_hello *h = &l->hello;
	const char *who = l->caller.who;
	struct ep_net_peer peer = { .nfars = h->ports,
				    .far = h->port,
				    .shared = h->shared,
				    .nqps = h->nqps,
				    .qpn = h->qpn };
	const struct ep_net_class class = { (int)(h->tc & 0xff), (int)(h->sl & 0xf) };
	uint32_t routes = ep_net_routes((uint32_t)l->nic->nports, h->ports);
	ncclResult_t result;

	EP_CHECK(ep_net_peer_check(&peer, routes, who));
	EP_CHECK(ep_net_comm_new(l->nic, false, routes, h->nqps, &class, &l->comm));
	strcpy(l->comm->peer, who);
	result = ep_net_comm_connect(l->comm, &peer);
	if (result != ncclSuccess) {
		ep_net_comm_free(l->comm);
		l->comm = NULL;
	}
	return result;
}

static ncclResult_t ep_net_do_wait(struct ep_net_listen *l)
{
	EP_CHECK(ep_net_guests_next(&l->guests, &l->caller));
	if (l->caller.fd >= 0) {
		ep_net_guests_tell(&l->guests, true, "a sender");
		l->hello.head = l->caller.head;
		l->stage = EP_NET_GREETED;
		l->at = sizeof(l->hello.head);
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_do_greet(struct ep_net_listen *l)
{
	enum ep_net_io_state state;
	ncclResult_t result = ep_net_head_check(&l->hello.head, sizeof(l->hello), l->caller.who);

	if (result == ncclSuccess) {
		state = ep_net_take(l->caller.fd, &l->hello, sizeof(l->hello), &l->at);
		if (state == EP_NET_IO_AGAIN) {
			return ncclSuccess;
		}
		result = state == EP_NET_IO_DONE ? ep_net_caller_connect(l)
						 : ep_net_handshake_lost(l->caller.who, state);
	}
	if (result != ncclSuccess) {
		ep_net_refuse(l, result);
		return result;
	}
	ep_net_answer_fill(l->comm, l->guests.nonce, &l->answer);
	l->comm->fd = l->caller.fd;
	l->caller.fd = -1;
	l->stage = EP_NET_ANSWERING;
	l->at = 0;
	return ncclSuccess;
}

static ncclResult_t ep_net_do_handshake(struct ep_net_listen *l, bool *done)
{
	enum ep_net_io_state state;

	if (l->stage == EP_NET_ANSWERING) {
		state = ep_net_put(l->comm->fd, &l->answer, sizeof(l->answer), &l->at);
		if (state == EP_NET_IO_DONE) {
			l->stage = EP_NET_AWAITING;
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
		if (l->stage == EP_NET_WAITING) {
			EP_CHECK(ep_net_do_wait(l));
		} else if (l->stage == EP_NET_GREETED) {
			EP_CHECK(ep_net_do_greet(l));
		} else {
			EP_CHECK(ep_net_do_handshake(l, done));
		}
	} while (l->stage > before);
	if (!*done && ep_now_ns() - l->began > ep_net_setup_ns()) {
		return ep_fail(ncclRemoteError,
			       "waited %llu ms at %s for %s: is its process stuck? "
			       "(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
			       (unsigned long long)(ep_net_setup_ns() / 1000000), l->guests.where,
			       l->stage == EP_NET_WAITING ? "a sender to dial" : l->caller.who);
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
	if (l->stage == EP_NET_WAITING) {
		ep_net_guests_tell(&l->guests, false, "a sender");
	}
	ep_net_caller_leave(l);
	c = l->comm;
	l->comm = NULL;
	l->stage = EP_NET_WAITING;
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
		result = ep_net_routes_attend(c);
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
