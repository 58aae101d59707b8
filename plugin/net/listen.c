/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver's end of a connection in the making. Whoever dials is a guest until he has said a
 * hello with the listener's nonce; strangers are shown out, and do not keep the peer waiting.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/hello.h"

#define EP_NET_GUESTS 8
#define EP_NET_GUEST_NS 30000000000ull /* time for a hello */

enum ep_net_listen_stage {
	EP_NET_WAITING,
	EP_NET_ANSWERING,
	EP_NET_AWAITING
};

struct ep_net_guest {
	int fd; /* -1: none */
	size_t at;
	uint64_t since;
	struct ep_net_hello hello;
};

struct ep_net_listen {
	const struct ep_net_nic *nic;
	int fd;
	uint64_t nonce, began; /* first accept; 0: not yet */
	char where[EP_NET_ADDR_TEXT];
	enum ep_net_listen_stage stage;
	struct ep_net_guest guest[EP_NET_GUESTS];
	struct ep_net_comm *comm;
	struct ep_net_answer answer;
	uint32_t ready;
	size_t at;
};

uint64_t ep_net_nonce(void)
{
	uint64_t nonce = ep_now_ns() ^ (uint64_t)getpid() << 40;

	/* Without entropy it is still nothing that a stranger says by chance. */
	if (getentropy(&nonce, sizeof(nonce)) != 0) {
		nonce ^= (uintptr_t)&nonce;
	}
	return nonce;
}

static void ep_net_listen_free(struct ep_net_listen *l)
{
	for (int i = 0; i < EP_NET_GUESTS; i++) {
		if (l->guest[i].fd >= 0) {
			close(l->guest[i].fd);
		}
	}
	ep_net_comm_free(l->comm);
	close(l->fd);
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
	for (int i = 0; i < EP_NET_GUESTS; i++) {
		l->guest[i].fd = -1;
	}
	EP_CHECK_GOTO(ep_net_nic_get(dev, &l->nic), err_free);
	h.ports = (uint32_t)l->nic->nports;
	EP_CHECK_GOTO(ep_net_addr_find(&h.addr), err_free);
	EP_CHECK_GOTO(ep_net_listen_at(&h.addr, &l->fd), err_free);
	l->nonce = h.nonce = ep_net_nonce();
	ep_net_addr_print(&h.addr, l->where);
	*listen_comm = ep_net_handle_new(EP_NET_LISTEN, l);
	if (!*listen_comm) {
		result = ep_fail(ncclSystemError, "no more than %u connections", EP_NET_COMMS);
		close(l->fd);
		goto err_free;
	}
	memset(handle, 0, EP_NET_HANDLE_BYTES);
	memcpy(handle, &h, sizeof(h));
	return ncclSuccess;

err_free:
	free(l);
	return result;
}

/* ---- guests ---- */

static void ep_net_guest_leave(struct ep_net_guest *g)
{
	close(g->fd);
	g->fd = -1;
}

static void ep_net_guests_admit(struct ep_net_listen *l)
{
	for (int i = 0; i < EP_NET_GUESTS; i++) {
		struct ep_net_guest *g = &l->guest[i];

		if (g->fd < 0) {
			g->fd = ep_net_accept_one(l->fd);
			g->at = 0;
			g->since = ep_now_ns();
		}
		if (g->fd < 0) {
			return;
		}
	}
}

/* The connection is refused, and the other end is told as far as its socket has room. */
static ncclResult_t ep_net_refuse(struct ep_net_listen *l, int fd, ncclResult_t code)
{
	size_t at = 0;

	ep_net_answer_refuse(code, l->nonce, &l->answer);
	(void)ep_net_put(fd, &l->answer, sizeof(l->answer), &at);
	return code;
}

/* *known: he has the listener's handle; his head is complete. */
static enum ep_net_io_state ep_net_guest_hear(struct ep_net_listen *l, struct ep_net_guest *g,
					      bool *known)
{
	size_t head = sizeof(g->hello.head);
	enum ep_net_io_state state = EP_NET_IO_DONE;

	if (g->at < head) {
		state = ep_net_take(g->fd, &g->hello, head, &g->at);
	}
	if (state != EP_NET_IO_DONE) {
		return state;
	}
	*known = g->hello.head.magic == EP_NET_MAGIC && g->hello.head.nonce == l->nonce;
	if (!*known) {
		return EP_NET_IO_CLOSED;
	}
	if (g->hello.head.version != EP_NET_VERSION || g->hello.head.bytes != sizeof(g->hello)) {
		return EP_NET_IO_DONE; /* the rest cannot be understood */
	}
	return ep_net_take(g->fd, &g->hello, sizeof(g->hello), &g->at);
}

/* The peer, once one of the guests is it; NULL: not yet. */
static struct ep_net_guest *ep_net_guests_ask(struct ep_net_listen *l)
{
	for (int i = 0; i < EP_NET_GUESTS; i++) {
		struct ep_net_guest *g = &l->guest[i];
		enum ep_net_io_state state;
		bool known = false;

		if (g->fd < 0) {
			continue;
		}
		state = ep_net_guest_hear(l, g, &known);
		if (state == EP_NET_IO_DONE) {
			return g;
		}
		if (state != EP_NET_IO_AGAIN || ep_now_ns() - g->since > EP_NET_GUEST_NS) {
			EP_INFO(EP_LOG_NET, "a stranger dialed %s and was turned away", l->where);
			ep_net_guest_leave(g);
		}
	}
	return NULL;
}

/* ---- stages ---- */

static ncclResult_t ep_net_guest_connect(struct ep_net_listen *l, struct ep_net_guest *g,
					 const char *who)
{
	const struct ep_net_hello *h = &g->hello;
	struct ep_net_peer peer = { .nfars = h->ports,
				    .far = h->port,
				    .shared = h->shared,
				    .nqps = h->nqps,
				    .qpn = h->qpn };
	const struct ep_net_class class = { (int)(h->tc & 0xff), (int)(h->sl & 0xf) };
	uint32_t routes = ep_net_routes((uint32_t)l->nic->nports, h->ports);
	ncclResult_t result;

	EP_CHECK(ep_net_head_check(&h->head, sizeof(*h), who));
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
	union ep_net_addr addr = { 0 };
	socklen_t size = sizeof(addr);
	char who[EP_NET_ADDR_TEXT];
	struct ep_net_guest *g;
	ncclResult_t result;

	ep_net_guests_admit(l);
	g = ep_net_guests_ask(l);
	if (!g) {
		return ncclSuccess;
	}
	(void)getpeername(g->fd, &addr.any, &size);
	result = ep_net_guest_connect(l, g, ep_net_addr_print(&addr, who));
	if (result != ncclSuccess) {
		ep_net_refuse(l, g->fd, result);
		ep_net_guest_leave(g);
		return result;
	}
	ep_net_answer_fill(l->comm, l->nonce, &l->answer);
	l->comm->fd = g->fd;
	g->fd = -1;
	l->stage = EP_NET_ANSWERING;
	l->at = 0;
	return ncclSuccess;
}

static ncclResult_t ep_net_do_talk(struct ep_net_listen *l, bool *done)
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
		       : ep_fail(ncclRemoteError, "%s %s while a connection was made: see its log",
				 l->comm->peer,
				 state == EP_NET_IO_CLOSED ? "has gone away" : strerror(errno));
}

static ncclResult_t ep_net_listen_step(struct ep_net_listen *l, bool *done)
{
	enum ep_net_listen_stage before;

	do {
		before = l->stage;
		if (l->stage == EP_NET_WAITING) {
			EP_CHECK(ep_net_do_wait(l));
		} else {
			EP_CHECK(ep_net_do_talk(l, done));
		}
	} while (l->stage > before);
	if (!*done && ep_now_ns() - l->began > ep_net_setup_ns()) {
		return ep_fail(ncclRemoteError,
			       "waited %llu ms at %s for %s: is its process stuck? "
			       "(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
			       (unsigned long long)(ep_net_setup_ns() / 1000000), l->where,
			       l->stage == EP_NET_WAITING ? "a sender to dial" : l->comm->peer);
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
		result = ep_net_attend(c);
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
