/* SPDX-License-Identifier: Apache-2.0 */
/* A connection comes to be and ends: its memory, and both ends of the handshake. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/net.h"
#include "net/p2p.h"

/* ---- making ---- */

static ncclResult_t comm_memory(struct ep_net_comm *c)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = ep_round_up(sizeof(*c->shared), page);

	c->shared = aligned_alloc(page, bytes);
	if (!c->shared) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	memset(c->shared, 0, bytes);
	for (uint32_t i = 0; i < c->nlocals; i++) {
		if (c->local[i].broken) {
			continue;
		}
		/* In order: what is polled must not be there before what it announces. */
		EP_CHECK(ep_net_pin(c->local[i].dev, c->shared, bytes,
				    IBV_ACCESS_LOCAL_WRITE | EP_NET_ACCESS,
				    &c->local[i].shared_mr));
	}
	return ncclSuccess;
}

static ncclResult_t comm_requests(struct ep_net_comm *c)
{
	uint32_t use = ep_net_use_first();

	c->flushes.first = c->flushes.last = EP_NET_NO_REQUEST;
	c->nrequests = c->sender ? EP_NET_SENDS : EP_NET_GROUPS + EP_NET_FLUSHES;
	c->request = calloc(c->nrequests, sizeof(*c->request));
	if (c->path && c->sender) {
		c->again.room = c->nrequests * c->nqps;
		c->again.part = calloc(c->again.room, sizeof(*c->again.part));
	}
	if (!c->request || (c->path && c->sender && !c->again.part)) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	for (uint32_t i = 0; i < c->nrequests; i++) {
		c->request[i].next = i + 1 < c->nrequests ? i + 1 : EP_NET_NO_REQUEST;
		c->request[i].use = use;
	}
	return ncclSuccess;
}

static ncclResult_t comm_ports(struct ep_net_comm *c, const struct ep_net_class *class)
{
	const struct ep_ib_env *env = ep_net_env();
	uint32_t broken = 0;

	c->nlocals = (uint32_t)c->nic->nports;
	c->plain_limit = UINT64_MAX;
	for (uint32_t i = 0; i < c->nlocals; i++) {
		struct ep_net_local *l = &c->local[i];
		const struct ep_nic *nic;

		l->dev = c->nic->dev[i];
		nic = &l->dev->nic;
		l->end = nic->end;
		l->index = (struct ep_net_index){ nic->gid_index, nic->pkey_index };
		l->down = !ep_net_dev_address(l->dev, &l->end, &l->index);
		l->broken = ep_net_dev_broken(l->dev);
		broken += l->broken;
		l->end.psn = (uint32_t)ep_now_ns() & 0xffffff;
		l->tc = ep_net_traffic_class(l->dev, class->tc);
		l->sl = ep_net_service_level(&l->end, class->sl);
		if (!c->sender && env->fifo_tc >= 0) {
			l->tc = (uint8_t)env->fifo_tc;
		}
		c->plain_limit = ep_min_u64(c->plain_limit, 1ull << nic->log_max_msg);
		if (env->adaptive == 1 ||
		    (env->adaptive < 0 && l->end.link_layer != IBV_LINK_LAYER_ETHERNET)) {
			c->plain_limit = ep_min_u64(c->plain_limit, (uint64_t)env->ar_threshold);
		}
	}
	c->split = env->split != 0;
	return broken < c->nlocals
		       ? ncclSuccess
		       : ep_fail(ncclSystemError,
				 "%s: the device reports a fatal error; it is opened anew when "
				 "all that uses it has been closed",
				 c->nic->label);
}

/* Makes what several paths need beyond queue pairs. */
static ncclResult_t comm_paths(struct ep_net_comm *c)
{
	pthread_mutex_init(&c->lock, NULL);
	c->open.paths = c->npaths;
	if (c->npaths > 1) {
		c->path = calloc(c->npaths, sizeof(*c->path));
		c->paths.ctrl = calloc(1, sizeof(*c->paths.ctrl));
		if (!c->path || !c->paths.ctrl) {
			return ep_fail(ncclSystemError, "out of host memory for a connection");
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_net_comm_new(const struct ep_net_nic *nic, bool sender, uint32_t npaths,
			     uint32_t nqps, const struct ep_net_class *class,
			     struct ep_net_comm **comm)
{
	struct ep_net_comm *c = calloc(1, sizeof(*c));
	ncclResult_t result;

	if (!c) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	c->fd = -1;
	c->sender = sender;
	c->nic = nic;
	c->npaths = npaths;
	c->nqps = nqps;
	c->counts = &c->own_counts;
	memset(c->groups.request, 0xff, sizeof(c->groups.request)); /* EP_NET_NO_REQUEST */
	result = ep_net_nic_hold(nic);
	if (result != ncclSuccess) {
		free(c);
		return result;
	}
	EP_CHECK_GOTO(comm_ports(c, class), err_free);
	EP_CHECK_GOTO(comm_paths(c), err_free);
	EP_CHECK_GOTO(comm_memory(c), err_free);
	EP_CHECK_GOTO(comm_requests(c), err_free);
	EP_CHECK_GOTO(ep_net_qps_new(c), err_free);
	*comm = c;
	return ncclSuccess;

err_free:
	ep_net_comm_free(c);
	return result;
}

/* The other end is ready, too: gives the connection its handle, and begins to count. */
static ncclResult_t comm_open(struct ep_net_comm *c)
{
	enum ep_net_kind kind = c->sender ? EP_NET_SEND : EP_NET_RECV;
	ncclResult_t result;

	EP_CHECK(ep_net_handle_new(kind, c, &c->handle));
	ep_net_counts_open(c);
	result = ep_net_paths_begin(c);
	if (result == ncclSuccess) {
		result = ep_net_paths_async_add(c);
	}
	if (result != ncclSuccess) {
		ep_net_handle_drop(kind, c->handle);
	}
	return result;
}

/* ---- ending ---- */

static void local_free(struct ep_net_local *port)
{
	const struct ep_verbs *v = port->dev->nic.v;

	ep_net_flush_close(port);
	if (port->cq) {
		v->ibv_destroy_cq(port->cq);
	}
	if (port->shared_mr) {
		v->ibv_dereg_mr(port->shared_mr);
	}
}

void ep_net_comm_free(struct ep_net_comm *c)
{
	if (!c) {
		return;
	}
	if (c->path) {
		ep_net_paths_close(c);
	}
	for (uint32_t i = 0; c->qp && i < c->nqps; i++) {
		if (c->qp[i].qp) {
			c->local[c->qp[i].local_port].dev->nic.v->ibv_destroy_qp(c->qp[i].qp);
		}
		free(c->qp[i].part);
	}
	for (uint32_t i = 0; i < c->nlocals; i++) {
		local_free(&c->local[i]);
	}
	if (c->fd >= 0) {
		close(c->fd);
	}
	ep_net_counts_close(c);
	ep_net_nic_drop(c->nic);
	pthread_mutex_destroy(&c->lock);
	free(c->paths.ctrl);
	free(c->path);
	free(c->again.part);
	free(c->open.qp);
	free(c->qp);
	free(c->request);
	free(c->shared);
	free(c);
}

/* ---- connecting ---- */

ncclResult_t ep_net_comm_connect(struct ep_net_comm *c, const struct ep_net_peer *peer)
{
	c->remote_shared = peer->shared;
	c->nremotes = peer->nremotes;
	memcpy(c->remote, peer->remote, peer->nremotes * sizeof(c->remote[0]));
	ep_net_paths_leave_out(c);
	if (!c->open.paths) {
		return ep_fail(ncclSystemError,
			       "%s with %s: no path is left, because devices of both have failed",
			       c->nic->label, c->peer);
	}
	for (uint32_t i = 0; i < c->npaths; i++) {
		const struct ep_net_local *l = &c->local[i % c->nlocals];
		const struct ep_net_remote *f = &c->remote[i % c->nremotes];
		struct ep_reason why = { "" };

		if (ep_net_path_is_open(c, i) && !ep_nic_path_check(&l->end, &f->end, &why)) {
			/* (one that is down may lack its address or its key) */
			return ep_fail(l->down || f->down ? ncclSystemError : ncclInvalidUsage,
				       "%s with %s:%u of %s: %.200s%s%s", l->dev->label,
				       f->end.name, f->end.port, c->peer, why.text,
				       f->down ? "; that port was down" : "",
				       ep_net_dev_print(l->dev));
		}
	}
	return ep_net_qps_connect(c, peer);
}

/* ---- for NCCL ---- */

ncclResult_t ep_net_reg(void *comm, const struct ep_net_memory *memory, void **mr)
{
	enum ep_net_kind kind = ep_net_kind_of(comm) == EP_NET_SEND ? EP_NET_SEND : EP_NET_RECV;
	const struct ep_net_comm *c = ep_net_handle_find(kind, comm);

	*mr = NULL;
	return c ? ep_net_memory_reg(c->nic, memory, mr) : ncclInvalidArgument;
}

static void comm_close(void *object)
{
	ep_net_comm_free(object);
}

ncclResult_t ep_net_close_send(void *send_comm)
{
	return ep_net_handle_close(EP_NET_SEND, send_comm, comm_close);
}

ncclResult_t ep_net_close_recv(void *recv_comm)
{
	return ep_net_handle_close(EP_NET_RECV, recv_comm, comm_close);
}

static void head_fill(uint64_t nonce, size_t bytes, struct ep_net_head *head)
{
	*head = (struct ep_net_head){ .magic = EP_NET_MAGIC,
				      .version = EP_NET_VERSION,
				      .bytes = (uint32_t)bytes,
				      .nonce = nonce };
}

static void ports_fill(const struct ep_net_comm *c, struct ep_net_remote *port, uint32_t *qpn)
{
	for (uint32_t i = 0; i < c->nlocals; i++) {
		port[i].end = c->local[i].end;
		port[i].ece = c->local[i].ece;
		port[i].rkey = c->local[i].broken ? 0 : c->local[i].shared_mr->rkey;
		port[i].down = c->local[i].broken ? EP_NET_BROKEN
			       : c->local[i].down ? EP_NET_DOWN
						  : 0;
	}
	for (uint32_t i = 0; i < c->nqps; i++) {
		qpn[i] = c->qp[i].qp ? c->qp[i].qp->qp_num : 0;
	}
}

/* Fills in this end's message. */
static void connect_req_fill(const struct ep_net_comm *c, uint64_t nonce,
			     struct ep_net_connect_req *req)
{
	memset(req, 0, sizeof(*req));
	head_fill(nonce, sizeof(*req), &req->head);
	req->shared = (uintptr_t)c->shared;
	req->nqps = c->nqps;
	req->tc = c->local[0].tc;
	req->sl = c->local[0].sl;
	req->ports = c->nlocals;
	req->rank = c->rank;
	req->nranks = c->nranks;
	ports_fill(c, req->port, req->qpn);
}

static void connect_rep_fill(const struct ep_net_comm *c, uint64_t nonce,
			     struct ep_net_connect_rep *rep)
{
	memset(rep, 0, sizeof(*rep));
	head_fill(nonce, sizeof(*rep), &rep->head);
	rep->shared = (uintptr_t)c->shared;
	rep->ports = c->nlocals;
	rep->lost = ep_net_paths_lost(c);
	ports_fill(c, rep->port, rep->qpn);
}

/* Whether the other end's values are possible, of an end with so many paths. */
static ncclResult_t peer_check(const struct ep_net_peer *peer, uint32_t npaths, const char *who)
{
	if (peer->nremotes < 1 || peer->nremotes > EP_NET_NIC_PORTS || peer->nqps % npaths != 0) {
		return ep_fail(ncclRemoteError,
			       "%s sends impossible values (%u ports, %u queue pairs on %u "
			       "paths): do all ranks use the same plugin?",
			       who, peer->nremotes, peer->nqps, npaths);
	}
	for (uint32_t i = 0; i < peer->nremotes; i++) {
		EP_CHECK(ep_net_end_check(&peer->remote[i].end, peer->qpn, peer->nqps, who));
	}
	return ncclSuccess;
}

/* ---- the receiver's end of a connection in the making ---- */

enum listen_stage {
	EP_NET_WAIT_PEER,
	EP_NET_RECV_REQ,
	EP_NET_SEND_REP,
	EP_NET_RECV_READY
};

struct ep_net_listen {
	const struct ep_net_nic *nic;
	int tc;         /* of the context that listens; -1: none given */
	uint64_t began; /* first accept; 0: not yet */
	struct ep_net_acceptor acceptor;
	enum listen_stage stage;
	struct ep_net_accepted accepted; /* until there is `comm` */
	struct ep_net_connect_req req;
	struct ep_net_comm *comm;
	struct ep_net_connect_rep rep;
	uint32_t ready;
	size_t at; /* of the message under way */
};

static void accepted_close(struct ep_net_listen *listener)
{
	if (listener->accepted.fd >= 0) {
		close(listener->accepted.fd);
		listener->accepted.fd = -1;
	}
}

static void listen_free(void *object)
{
	struct ep_net_listen *listener = object;

	accepted_close(listener);
	ep_net_acceptor_close(&listener->acceptor);
	ep_net_comm_free(listener->comm);
	free(listener);
}

ncclResult_t ep_net_listen(int dev, int tc, void *handle, void **listen_comm)
{
	struct ep_net_handle h = { .parked = NULL };
	struct ep_net_listen *l = calloc(1, sizeof(*l));
	ncclResult_t result;

	if (!l) {
		return ep_fail(ncclSystemError, "out of host memory for a listener");
	}
	l->accepted.fd = -1;
	l->tc = tc;
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

ncclResult_t ep_net_listener(const void *listen_comm, const struct ep_net_nic **nic, int *tc,
			     uint64_t *nonce)
{
	const struct ep_net_listen *l = ep_net_handle_find(EP_NET_LISTEN, listen_comm);

	if (!l) {
		return ncclInvalidArgument;
	}
	*nic = l->nic;
	*tc = l->tc;
	*nonce = l->acceptor.nonce;
	return ncclSuccess;
}

/* ---- stages ---- */

/* Refuses the connection, and sends the reason as far as the socket has room. */
static void refuse(struct ep_net_listen *listener, ncclResult_t code)
{
	struct ep_net_connect_rep *rep = &listener->rep;
	struct ep_error error;
	size_t at = 0;

	ep_error_get(NULL, &error);
	memset(rep, 0, sizeof(*rep));
	head_fill(listener->acceptor.nonce, sizeof(*rep), &rep->head);
	rep->code = code;
	snprintf(rep->text, sizeof(rep->text), "%.*s", EP_NET_TEXT - 1, error.text);
	(void)ep_net_put(listener->accepted.fd, rep, sizeof(*rep), &at);
}

static ncclResult_t accepted_connect(struct ep_net_listen *listener)
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

	EP_CHECK(peer_check(&peer, paths, who));
	EP_CHECK(ep_net_comm_new(listener->nic, false, paths, h->nqps, &class, &listener->comm));
	strcpy(listener->comm->peer, who);
	listener->comm->rank = h->rank;
	listener->comm->nranks = h->nranks;
	result = ep_net_comm_connect(listener->comm, &peer);
	if (result != ncclSuccess) {
		ep_net_comm_free(listener->comm);
		listener->comm = NULL;
	}
	return result;
}

/* Receives more of the request. When all of it has come, the connection is made or refused. */
static ncclResult_t do_recv_req(struct ep_net_listen *listener, bool *done)
{
	ncclResult_t result = ep_net_message_recv(listener->accepted.fd, &listener->req.head,
						  sizeof(listener->req), EP_NET_MAGIC,
						  &listener->at, listener->accepted.who, done);

	if (result == ncclSuccess && *done) {
		result = accepted_connect(listener);
	}
	if (result != ncclSuccess) {
		refuse(listener, result);
	} else if (*done) {
		connect_rep_fill(listener->comm, listener->acceptor.nonce, &listener->rep);
		listener->comm->fd = listener->accepted.fd;
		listener->accepted.fd = -1;
	}
	return result;
}

/* Does the work of the stage, as far as it goes. *done: all of it. */
static ncclResult_t listen_do(struct ep_net_listen *listener, bool *done)
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
		return do_recv_req(listener, done);
	case EP_NET_SEND_REP:
		return ep_net_message_send(c->fd, &listener->rep, sizeof(listener->rep),
					   &listener->at, c->peer, done);
	default:
		return ep_net_message_end(ep_net_take(c->fd, &listener->ready,
						      sizeof(listener->ready), &listener->at),
					  c->peer, done);
	}
}

static ncclResult_t listen_step(struct ep_net_listen *listener, bool *done)
{
	for (;;) {
		EP_CHECK(listen_do(listener, done));
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
	result = listen_step(l, &done);
	if (result == ncclSuccess && !done) {
		return ncclSuccess;
	}
	if (l->stage == EP_NET_WAIT_PEER) {
		ep_net_acceptor_report(&l->acceptor, false, "a sender");
	}
	accepted_close(l);
	c = l->comm;
	l->comm = NULL;
	l->stage = EP_NET_WAIT_PEER;
	l->began = 0;
	if (result == ncclSuccess) {
		result = comm_open(c);
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
	return listen_comm ? ep_net_handle_close(EP_NET_LISTEN, listen_comm, listen_free)
			   : ep_fail(ncclInvalidArgument, "no listener to be closed");
}

/* ---- the sender's end of a connection in the making: NCCL calls until it is made ---- */

enum connect_stage {
	EP_NET_DIALING,
	EP_NET_SEND_REQ,
	EP_NET_RECV_REP,
	EP_NET_SEND_READY
};

struct connecting {
	const void *ctx; /* NULL: of a table that has none */
	enum connect_stage stage;
	struct ep_net_comm *comm;
	struct ep_net_dialing dialing;
	uint64_t nonce, began;
	char where[EP_NET_PEER + 40]; /* it is dialed, for messages */
	size_t at;                    /* of the message under way */
	struct ep_net_connect_req req;
	struct ep_net_connect_rep rep;
};

static void connecting_free(struct connecting *connecting)
{
	if (connecting) {
		ep_net_dialing_end(&connecting->dialing);
		ep_net_comm_free(connecting->comm);
		free(connecting);
	}
}

/* Whether it is of a context that ends; `ctx` NULL: of all. */
static bool connecting_of(const void *object, const void *ctx)
{
	return !ctx || ((const struct connecting *)object)->ctx == ctx;
}

/* Frees those that NCCL has abandoned. */
static void connecting_sweep(const void *ctx)
{
	struct connecting *s;

	while ((s = ep_net_handle_drop_one(EP_NET_CONNECT, connecting_of, ctx))) {
		EP_INFO(EP_LOG_NET, "a connection to %s was never finished", s->comm->peer);
		connecting_free(s);
	}
}

static ncclResult_t connecting_new(int dev, int tc, const struct ep_net_handle *handle,
				   struct connecting **out)
{
	const struct ep_net_nic *nic;
	const struct ep_net_class class = { tc, tc };
	struct connecting *s;
	uint32_t paths, qps;
	ncclResult_t result;

	EP_CHECK(ep_net_nic_get(dev, &nic));
	ep_net_sweep_with(connecting_sweep);
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
	s->comm->nranks = handle->nranks;
	ep_net_addr_print(&handle->place.addr, s->comm->peer);
	snprintf(s->where, sizeof(s->where), "%s, where a receiver should listen,", s->comm->peer);
	ep_net_dialing_begin(&s->dialing, &handle->place.addr, s->where,
			     s->began + ep_net_setup_ns());
	connect_req_fill(s->comm, s->nonce, &s->req);
	*out = s;
	return ncclSuccess;
}

/* ---- stages ---- */

static ncclResult_t take_rep(struct connecting *connecting)
{
	const struct ep_net_connect_rep *a = &connecting->rep;
	struct ep_net_peer peer = { .nremotes = a->ports,
				    .remote = a->port,
				    .shared = a->shared,
				    .nqps = connecting->comm->nqps,
				    .qpn = a->qpn,
				    .lost = a->lost };

	if (a->code != ncclSuccess) {
		return ep_fail(ncclRemoteError, "%s refuses: %.*s", connecting->comm->peer,
			       EP_NET_TEXT - 1, a->text);
	}
	EP_CHECK(peer_check(&peer, connecting->comm->npaths, connecting->comm->peer));
	return ep_net_comm_connect(connecting->comm, &peer);
}

/* Does the work of the stage, as far as it goes. *done: all of it. */
static ncclResult_t connecting_do(struct connecting *connecting, bool *done)
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
		return *done ? take_rep(connecting) : ncclSuccess;
	default:
		return ep_net_message_send(c->fd, &ready, sizeof(ready), &connecting->at, c->peer,
					   done);
	}
}

static ncclResult_t connecting_step(struct connecting *connecting, bool *done)
{
	static const char *const what[] = { "connect to", "send to", "receive from", "confirm to" };

	for (;;) {
		EP_CHECK(connecting_do(connecting, done));
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

static ncclResult_t handle_check(const struct ep_net_handle *handle)
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
static ncclResult_t connect_finish(struct connecting *connecting, void **send_comm)
{
	struct ep_net_comm *c = connecting->comm;

	EP_CHECK(comm_open(c));
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
	struct connecting *s = NULL;
	ncclResult_t result;
	bool done = false;

	*send_comm = NULL;
	EP_CHECK(handle_check(h));
	if (!h->parked) {
		EP_CHECK(connecting_new(dev, tc, h, &s));
		s->ctx = ctx;
		result = ep_net_handle_new(EP_NET_CONNECT, s, &h->parked);
		if (result != ncclSuccess) {
			connecting_free(s);
			return result;
		}
	}
	s = ep_net_handle_get(EP_NET_CONNECT, h->parked);
	if (!s) {
		return ep_fail(ncclInvalidArgument,
			       "the handle of a receiver was changed since it was first used");
	}
	result = connecting_step(s, &done);
	if (result == ncclSuccess && !done) {
		return ncclSuccess;
	}
	if (result == ncclSuccess) {
		result = connect_finish(s, send_comm);
	}
	connecting_free(ep_net_handle_drop(EP_NET_CONNECT, h->parked));
	h->parked = NULL;
	return result;
}

void ep_net_connect_end(struct ep_net_handle *handle)
{
	connecting_free(ep_net_handle_drop(EP_NET_CONNECT, handle->parked));
	handle->parked = NULL;
}
