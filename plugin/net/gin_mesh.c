/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that meet over TCP, for GIN. Each rank listens, and has the handles of all. It dials the
 * ranks below its own and sends which rank it is, and those above do the same to it. Over these
 * connections they agree on queue pairs and memory, and learn that one of them has failed or ended.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "core/log.h"
#include "net/gin.h"

#define EP_NET_MESH_MAGIC 0x7465672d6d657368ull
#define EP_NET_MAX_JOINING 8 /* connections with the nonce, whose rank has not come yet */

struct bootstrap {
	const struct ep_net_nic *nic;
	int tc;
	struct ep_net_acceptor acceptor;
};

_Static_assert(sizeof(struct ep_net_place) <= EP_NET_HANDLE_BYTES, "NCCL's handle");

struct mesh_handshake {
	struct ep_net_head head;
	uint32_t rank, nranks;
};

struct joining {
	struct ep_net_accepted accepted; /* fd -1: none */
	size_t at;
	struct mesh_handshake handshake;
};

/* A mesh in the making. */
struct making {
	struct ep_net_mesh *mesh;
	struct ep_net_acceptor *acceptor;
	const struct ep_net_place **place; /* of each rank */
	struct joining joining[EP_NET_MAX_JOINING];
	uint64_t until;
	uint32_t missing;
};
#define EP_NET_POLL_MS 20

/* ---- making ---- */

enum fit {
	FIT_NOT,
	FIT_DOWN, /* for a moment, or it is the only port */
	FIT_UP
};

/* Whether the rank may use a port of the NIC, which is `up` or not. A line says why it may not. */
static enum fit mesh_port_fits(const struct ep_net_mesh *mesh, struct ep_net_dev *dev, bool up)
{
	const char *lacks = ep_net_dev_lacks(dev);

	if (!lacks && ep_net_dev_broken(dev)) {
		lacks = "has failed";
	}
	if (!lacks && !up && mesh->nic->nports > 1 && ep_net_dev_down(dev)) {
		lacks = "is down, or has no address";
	}
	if (lacks) {
		EP_INFO(EP_LOG_INIT | EP_LOG_NET, "%s is not used for GIN: it %s", dev->label,
			lacks);
		return FIT_NOT;
	}
	return up ? FIT_UP : FIT_DOWN;
}

/* Takes the first port of the NIC, which is held, that is fit for it, and up if any of them is. */
static ncclResult_t mesh_port(struct ep_net_mesh *mesh)
{
	enum fit best = FIT_NOT;

	for (int i = 0; i < mesh->nic->nports && best < FIT_UP; i++) {
		struct ep_net_dev *dev = mesh->nic->dev[i];
		struct ep_nic_end end = dev->nic.end;
		struct ep_net_index index = { dev->nic.gid_index, dev->nic.pkey_index };
		bool up = ep_net_dev_address(dev, &end, &index);
		enum fit fit = mesh_port_fits(mesh, dev, up);

		if (fit > best) {
			best = fit;
			mesh->dev = dev;
			mesh->of_nic = i;
			mesh->end[mesh->rank] = end;
			mesh->end[mesh->rank].psn = (uint32_t)ep_now_ns() & 0xffffff;
			mesh->index = index;
		}
	}
	return mesh->dev
		       ? ncclSuccess
		       : ep_fail(ncclSystemError, "%s: none of its ports is active and fit for it",
				 mesh->nic->label);
}

ncclResult_t ep_net_mesh_new(const struct ep_net_nic *nic, uint32_t nranks, uint32_t rank,
			     struct ep_net_mesh **mesh)
{
	struct ep_net_mesh *m = calloc(1, sizeof(*m));
	ncclResult_t result;

	if (!m) {
		return ep_fail(ncclSystemError, "out of host memory for %u ranks", nranks);
	}
	m->nic = nic;
	m->nranks = nranks;
	m->rank = rank;
	m->refs = 1;
	pthread_mutex_init(&m->lock, NULL);
	m->fd = malloc(nranks * sizeof(*m->fd));
	m->who = calloc(nranks, sizeof(*m->who));
	m->end = calloc(nranks, sizeof(*m->end));
	if (!m->fd || !m->who || !m->end) {
		result = ep_fail(ncclSystemError, "out of host memory for %u ranks", nranks);
		goto err_free;
	}
	memset(m->fd, 0xff, nranks * sizeof(*m->fd));
	EP_CHECK_GOTO(ep_net_nic_hold(nic), err_free);
	EP_CHECK_GOTO(mesh_port(m), err_drop);
	*mesh = m;
	return ncclSuccess;

err_drop:
	ep_net_nic_drop(nic);
err_free:
	pthread_mutex_destroy(&m->lock);
	free(m->fd);
	free(m->who);
	free(m->end);
	free(m);
	return result;
}

void ep_net_mesh_get(struct ep_net_mesh *mesh)
{
	__atomic_add_fetch(&mesh->refs, 1, __ATOMIC_RELAXED);
}

void ep_net_mesh_put(struct ep_net_mesh *mesh)
{
	if (!mesh || __atomic_sub_fetch(&mesh->refs, 1, __ATOMIC_ACQ_REL) > 0) {
		return;
	}
	for (uint32_t r = 0; r < mesh->nranks; r++) {
		if (mesh->fd[r] >= 0) {
			close(mesh->fd[r]);
		}
	}
	ep_net_nic_drop(mesh->nic);
	pthread_mutex_destroy(&mesh->lock);
	free(mesh->fd);
	free(mesh->who);
	free(mesh->end);
	free(mesh);
}

/* ---- rounds ---- */

static const char *const round_text[] = {
	[EP_NET_ROUND_PORTS] = "send what their ports are",
	[EP_NET_ROUND_QUEUES] = "connect queue pairs",
	[EP_NET_ROUND_MEMORY] = "register memory",
	[EP_NET_ROUND_READY] = "be ready",
};

struct exchange_head {
	uint64_t magic;
	uint32_t round, number, bytes;
	int32_t code;
};

struct lost {
	struct exchange_head head;
	char text[EP_NET_LOST_TEXT];
};

/* A rank that does not read has no room left for more, and finds out by itself. */
static void lost_send(struct ep_net_mesh *mesh)
{
	struct lost msg = { .head = { .magic = EP_NET_MAGIC,
				      .round = EP_NET_ROUND_LOST,
				      .bytes = sizeof(msg.text),
				      .code = ncclRemoteError } };

	if (!__atomic_load_n(&mesh->lost, __ATOMIC_ACQUIRE) ||
	    pthread_mutex_trylock(&mesh->lock) != 0) {
		return; /* (whoever has the lock does it afterwards) */
	}
	memcpy(msg.text, mesh->lost_text, sizeof(msg.text));
	for (uint32_t r = 0; r < mesh->nranks && !mesh->lost_sent; r++) {
		size_t at = 0;

		if (mesh->fd[r] >= 0) {
			(void)ep_net_put(mesh->fd[r], &msg, sizeof(msg), &at);
		}
	}
	mesh->lost_sent = true;
	pthread_mutex_unlock(&mesh->lock);
}

void ep_net_mesh_lose(struct ep_net_mesh *mesh, const char *text)
{
	if (!__atomic_load_n(&mesh->lost, __ATOMIC_RELAXED)) {
		snprintf(mesh->lost_text, sizeof(mesh->lost_text), "%s", text);
		__atomic_store_n(&mesh->lost, 1, __ATOMIC_RELEASE);
	}
	lost_send(mesh);
}

/*
 * Peeks at rank r's report that it has failed, if there is one; takes nothing from the connection.
 */
static bool mesh_lost(const struct ep_net_mesh *mesh, uint32_t r, char text[EP_NET_LOST_TEXT])
{
	struct lost msg;
	ssize_t n = mesh->fd[r] < 0 ? -1
				    : recv(mesh->fd[r], &msg, sizeof(msg), MSG_PEEK | MSG_DONTWAIT);

	if (n != (ssize_t)sizeof(msg) || msg.head.magic != EP_NET_MAGIC ||
	    msg.head.round != EP_NET_ROUND_LOST) {
		return false;
	}
	snprintf(text, EP_NET_LOST_TEXT, "%.*s", EP_NET_LOST_TEXT - 1, msg.text);
	return true;
}

ncclResult_t ep_net_mesh_check(const struct ep_net_mesh *mesh)
{
	char text[EP_NET_LOST_TEXT];

	for (uint32_t r = 0; r < mesh->nranks; r++) {
		if (mesh_lost(mesh, r, text)) {
			return ep_fail(ncclRemoteError, "%s has failed: %s", mesh->who[r], text);
		}
	}
	return ncclSuccess;
}

struct exchange {
	struct ep_net_mesh *mesh;
	enum ep_net_round round;
	size_t bytes;            /* of a head and what follows it */
	char *out, *in;          /* in: of each rank */
	size_t *sent, *received; /* of each rank */
	struct pollfd *poll;
};

static void exchange_free(struct exchange *exchange)
{
	free(exchange->out);
	free(exchange->in);
	free(exchange->sent);
	free(exchange->received);
	free(exchange->poll);
}

static ncclResult_t exchange_new(struct ep_net_mesh *mesh, enum ep_net_round round,
				 ncclResult_t code, const void *own, size_t bytes,
				 struct exchange *exchange)
{
	struct exchange_head head = { .magic = EP_NET_MAGIC,
				      .round = round,
				      .number = mesh->rounds,
				      .bytes = (uint32_t)bytes,
				      .code = code };

	*exchange =
		(struct exchange){ .mesh = mesh, .round = round, .bytes = sizeof(head) + bytes };
	exchange->out = malloc(exchange->bytes);
	exchange->in = calloc(mesh->nranks, exchange->bytes);
	exchange->sent = calloc(mesh->nranks, sizeof(*exchange->sent));
	exchange->received = calloc(mesh->nranks, sizeof(*exchange->received));
	exchange->poll = calloc(mesh->nranks, sizeof(*exchange->poll));
	if (!exchange->out || !exchange->in || !exchange->sent || !exchange->received ||
	    !exchange->poll) {
		exchange_free(exchange);
		return ep_fail(ncclSystemError, "out of host memory to %s with %u ranks",
			       round_text[round], mesh->nranks);
	}
	memcpy(exchange->out, &head, sizeof(head));
	if (bytes) {
		memcpy(exchange->out + sizeof(head), own, bytes);
	}
	exchange->sent[mesh->rank] = exchange->received[mesh->rank] = exchange->bytes;
	memcpy(exchange->in + mesh->rank * exchange->bytes, exchange->out, exchange->bytes);
	return ncclSuccess;
}

/* The head of a rank's message has come: does it do the same as this one? */
static ncclResult_t exchange_check(const struct exchange *exchange, uint32_t r)
{
	struct exchange_head head, own;

	memcpy(&head, exchange->in + r * exchange->bytes, sizeof(head));
	memcpy(&own, exchange->out, sizeof(own));
	if (head.magic == own.magic && head.round == EP_NET_ROUND_LOST) {
		return ep_fail(ncclRemoteError,
			       "%s has failed, while this one would %s: see its log",
			       exchange->mesh->who[r], round_text[exchange->round]);
	}
	if (head.magic != own.magic || head.round != own.round || head.number != own.number ||
	    head.bytes != own.bytes) {
		return ep_fail(
			ncclRemoteError,
			"%s is at step %u of what all ranks do together (kind %u, %u bytes), "
			"this one at %u, where they %s: all ranks must make the same calls",
			exchange->mesh->who[r], head.number, head.round, head.bytes, own.number,
			round_text[exchange->round]);
	}
	return ncclSuccess;
}

static ncclResult_t exchange_gone(const struct exchange *exchange, uint32_t r,
				  enum ep_net_io_state state)
{
	return ep_fail(ncclRemoteError, "%s %s while all ranks %s: see its log",
		       exchange->mesh->who[r],
		       state == EP_NET_IO_CLOSED ? "has closed the connection or has ended"
						 : strerror(errno),
		       round_text[exchange->round]);
}

/* Sends to and receives from a rank as much as goes now. */
static ncclResult_t exchange_step(struct exchange *exchange, uint32_t r)
{
	enum ep_net_io_state sent = EP_NET_IO_DONE, state = EP_NET_IO_DONE;
	char *in = exchange->in + r * exchange->bytes;
	int fd = exchange->mesh->fd[r];

	if (exchange->sent[r] < exchange->bytes) {
		sent = ep_net_put(fd, exchange->out, exchange->bytes, &exchange->sent[r]);
	}
	if (sent == EP_NET_IO_FAILED) {
		return exchange_gone(exchange, r, sent);
	}
	/*
	 * An end that has closed may have sent something before. And where this rank waits for room
	 * to send more, the other one may wait until this rank receives.
	 */
	if (exchange->received[r] < sizeof(struct exchange_head)) {
		state = ep_net_take(fd, in, sizeof(struct exchange_head), &exchange->received[r]);
		if (state == EP_NET_IO_DONE) {
			EP_CHECK(exchange_check(exchange, r));
		}
	}
	if (state == EP_NET_IO_DONE && exchange->received[r] < exchange->bytes) {
		state = ep_net_take(fd, in, exchange->bytes, &exchange->received[r]);
	}
	if (state != EP_NET_IO_DONE && state != EP_NET_IO_AGAIN) {
		return exchange_gone(exchange, r, state);
	}
	return sent == EP_NET_IO_CLOSED && state == EP_NET_IO_DONE
		       ? exchange_gone(exchange, r, sent)
		       : ncclSuccess;
}

static ncclResult_t exchange_all(struct exchange *exchange)
{
	uint64_t began = ep_now_ns();

	for (;;) {
		uint32_t first = 0;
		nfds_t n = 0;

		for (uint32_t r = exchange->mesh->nranks; r-- > 0;) {
			if (exchange->sent[r] == exchange->bytes &&
			    exchange->received[r] == exchange->bytes) {
				continue;
			}
			EP_CHECK(exchange_step(exchange, r));
			if (exchange->sent[r] < exchange->bytes ||
			    exchange->received[r] < exchange->bytes) {
				exchange->poll[n].fd = exchange->mesh->fd[r];
				exchange->poll[n++].events =
					(short)(POLLIN |
						(exchange->sent[r] < exchange->bytes ? POLLOUT
										     : 0));
				first = r;
			}
		}
		if (n == 0) {
			return ncclSuccess;
		}
		if (ep_now_ns() - began > ep_net_setup_ns()) {
			return ep_fail(ncclRemoteError,
				       "waited %llu ms for %s and %lu more ranks to %s: are their "
				       "processes stuck? (NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
				       (unsigned long long)(ep_net_setup_ns() / 1000000),
				       exchange->mesh->who[first], (unsigned long)n - 1,
				       round_text[exchange->round]);
		}
		poll(exchange->poll, n, EP_NET_POLL_MS);
	}
}

/* Of the heads of all ranks; `code` is this one's. */
static ncclResult_t exchange_end(const struct exchange *exchange, ncclResult_t code, void *all)
{
	size_t bytes = exchange->bytes - sizeof(struct exchange_head);
	struct exchange_head head;

	for (uint32_t r = 0; code == ncclSuccess && r < exchange->mesh->nranks; r++) {
		memcpy(&head, exchange->in + r * exchange->bytes, sizeof(head));
		if (head.code != ncclSuccess) {
			return ep_fail(ncclRemoteError, "%s cannot %s: see its log",
				       exchange->mesh->who[r], round_text[exchange->round]);
		}
		if (bytes) {
			memcpy((char *)all + r * bytes,
			       exchange->in + r * exchange->bytes + sizeof(head), bytes);
		}
	}
	return code;
}

ncclResult_t ep_net_mesh_exchange(struct ep_net_mesh *mesh, enum ep_net_round round,
				  ncclResult_t code, const void *own, size_t bytes, void *all)
{
	struct exchange t;
	ncclResult_t result;

	pthread_mutex_lock(&mesh->lock);
	if (mesh->failed.code != ncclSuccess) {
		result = ep_fail_again(&mesh->failed);
		goto unlock;
	}
	EP_CHECK_GOTO(exchange_new(mesh, round, code, own, bytes, &t), failed);
	result = exchange_all(&t);
	if (result == ncclSuccess) {
		mesh->rounds++;
		result = exchange_end(&t, code, all);
		exchange_free(&t);
		goto unlock;
	}
	exchange_free(&t);
failed:
	/* Ranks may be at different steps now: there is no other one. */
	ep_error_get(NULL, &mesh->failed);
unlock:
	pthread_mutex_unlock(&mesh->lock);
	lost_send(mesh);
	return result;
}

/* ---- listening ---- */

ncclResult_t ep_net_mesh_listen(int dev, int tc, void *handle, void **listen_comm)
{
	struct ep_net_place place = { 0 };
	struct bootstrap *m = calloc(1, sizeof(*m));
	ncclResult_t result;

	if (!m) {
		return ep_fail(ncclSystemError, "out of host memory for a listener");
	}
	m->tc = tc;
	EP_CHECK_GOTO(ep_net_nic_get(dev, &m->nic), err_free);
	EP_CHECK_GOTO(ep_net_acceptor_open(&m->acceptor, EP_NET_MESH_MAGIC, &place), err_free);
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_MESH_LISTEN, m, listen_comm), err_close);
	memset(handle, 0, EP_NET_HANDLE_BYTES);
	memcpy(handle, &place, sizeof(place));
	return ncclSuccess;

err_close:
	ep_net_acceptor_close(&m->acceptor);
err_free:
	free(m);
	return result;
}

static void bootstrap_free(void *object)
{
	struct bootstrap *m = object;

	ep_net_acceptor_close(&m->acceptor);
	free(m);
}

ncclResult_t ep_net_mesh_close_listen(void *listen_comm)
{
	return ep_net_handle_close(EP_NET_MESH_LISTEN, listen_comm, bootstrap_free);
}

/* ---- dialing ---- */

static ncclResult_t dial_rank(const struct making *making, uint32_t r)
{
	struct ep_net_mesh *mesh = making->mesh;
	const struct mesh_handshake own = { .head = { .magic = EP_NET_MESH_MAGIC,
						      .version = EP_NET_VERSION,
						      .bytes = sizeof(own),
						      .nonce = making->place[r]->nonce },
					    .rank = mesh->rank,
					    .nranks = mesh->nranks };
	struct ep_net_dialing d;
	size_t at = 0;

	ep_net_dialing_begin(&d, &making->place[r]->addr, mesh->who[r], making->until);
	for (;;) {
		EP_CHECK(ep_net_dialing_step(&d, &mesh->fd[r]));
		if (mesh->fd[r] >= 0) {
			break;
		}
		poll(NULL, 0, 1);
	}
	/* A new connection has room for it. */
	return ep_net_put(mesh->fd[r], &own, sizeof(own), &at) == EP_NET_IO_DONE
		       ? ncclSuccess
		       : ep_fail(ncclRemoteError, "%s has gone away while ranks connected",
				 mesh->who[r]);
}

/* ---- ranks that connect ---- */

/* Takes a complete handshake. */
static ncclResult_t joining_take(struct making *making, struct joining *joining)
{
	const struct mesh_handshake *g = &joining->handshake;
	struct ep_net_mesh *mesh = making->mesh;

	if (g->nranks != mesh->nranks || g->rank >= mesh->nranks || g->rank <= mesh->rank ||
	    mesh->fd[g->rank] >= 0) {
		return ep_fail(ncclRemoteError,
			       "a peer claims to be rank %u of %u, which is none that rank %u "
			       "of %u expects: do all ranks give the same?",
			       g->rank, g->nranks, mesh->rank, mesh->nranks);
	}
	mesh->fd[g->rank] = joining->accepted.fd;
	joining->accepted.fd = -1;
	making->missing--;
	return ncclSuccess;
}

static ncclResult_t joining_poll(struct making *making)
{
	bool done;

	for (int i = 0; i < EP_NET_MAX_JOINING; i++) {
		struct joining *v = &making->joining[i];

		if (v->accepted.fd < 0) {
			EP_CHECK(ep_net_acceptor_poll(making->acceptor, &v->accepted));
			v->handshake.head = v->accepted.head;
			v->at = sizeof(v->handshake.head);
		}
		if (v->accepted.fd >= 0) {
			EP_CHECK(ep_net_message_recv(v->accepted.fd, &v->handshake.head,
						     sizeof(v->handshake), EP_NET_MESH_MAGIC,
						     &v->at, v->accepted.who, &done));
			EP_CHECK(done ? joining_take(making, v) : ncclSuccess);
		}
	}
	return ncclSuccess;
}

/* ---- all together ---- */

static ncclResult_t making_late(const struct making *making)
{
	uint32_t r = 0;

	while (r == making->mesh->rank || making->mesh->fd[r] >= 0) {
		r++;
	}
	return ep_fail(ncclRemoteError,
		       "waited %llu ms at %s for %u of %u ranks, the first is %s: is its process "
		       "stuck? (NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
		       (unsigned long long)(ep_net_setup_ns() / 1000000), making->acceptor->where,
		       making->missing, making->mesh->nranks, making->mesh->who[r]);
}

/* Connects to all ranks. */
static ncclResult_t making_connect(struct making *making)
{
	for (uint32_t r = 0; r < making->mesh->rank; r++) {
		EP_CHECK(dial_rank(making, r));
	}
	while (making->missing) {
		uint32_t before = making->missing;

		EP_CHECK(joining_poll(making));
		if (making->missing && ep_now_ns() > making->until) {
			return making_late(making);
		}
		if (making->missing == before) {
			poll(NULL, 0, 1);
		}
	}
	return ncclSuccess;
}

static ncclResult_t making_run(struct making *making)
{
	struct ep_net_mesh *mesh = making->mesh;
	const struct ep_nic_end own = mesh->end[mesh->rank];
	ncclResult_t result;

	for (int i = 0; i < EP_NET_MAX_JOINING; i++) {
		making->joining[i].accepted.fd = -1;
	}
	result = making_connect(making);
	ep_net_acceptor_report(making->acceptor, result == ncclSuccess, "a rank");
	for (int i = 0; i < EP_NET_MAX_JOINING; i++) {
		if (making->joining[i].accepted.fd >= 0) {
			close(making->joining[i].accepted.fd);
		}
	}
	EP_CHECK(result);
	EP_CHECK(ep_net_mesh_exchange(mesh, EP_NET_ROUND_PORTS, ncclSuccess, &own, sizeof(own),
				      mesh->end));
	for (uint32_t r = 0; r < mesh->nranks; r++) {
		EP_CHECK(ep_net_end_check(&mesh->end[r], NULL, 1, mesh->who[r]));
	}
	return ncclSuccess;
}

ncclResult_t ep_net_mesh_connect(void *const *handles, int nranks, int rank,
				 const void *listen_comm, struct ep_net_mesh **mesh)
{
	struct making k = { .until = ep_now_ns() + ep_net_setup_ns() };
	struct bootstrap *m = ep_net_handle_find(EP_NET_MESH_LISTEN, listen_comm);
	ncclResult_t result = ncclSuccess;
	char addr[EP_NET_ADDR_TEXT], who[EP_NET_WHO];

	if (!m) {
		return ncclInvalidArgument;
	}
	if (nranks < 1 || (uint32_t)nranks > EP_NET_MESH_RANKS || rank < 0 || rank >= nranks) {
		return ep_fail(ncclInvalidArgument, "rank %d of %d: possible are 1 to %u ranks",
			       rank, nranks, EP_NET_MESH_RANKS);
	}
	for (int r = 0; r < nranks; r++) {
		const struct ep_net_place *place = handles[r];

		snprintf(who, sizeof(who), "rank %d", r);
		EP_CHECK(ep_net_place_check(place, EP_NET_MESH_MAGIC, who));
	}
	k.place = (const struct ep_net_place **)handles;
	if (k.place[rank]->nonce != m->acceptor.nonce) {
		return ep_fail(ncclInvalidArgument, "the handle of rank %d is not its listener's",
			       rank);
	}
	EP_CHECK(ep_net_mesh_new(m->nic, (uint32_t)nranks, (uint32_t)rank, &k.mesh));
	k.mesh->tc = m->tc;
	for (int r = 0; r < nranks; r++) {
		snprintf(k.mesh->who[r], EP_NET_WHO, "rank %d (%s)", r,
			 ep_net_addr_print(&k.place[r]->addr, addr));
	}
	k.acceptor = &m->acceptor;
	k.missing = (uint32_t)(nranks - 1 - rank);
	result = making_run(&k);
	if (result != ncclSuccess) {
		ep_net_mesh_put(k.mesh);
		return result;
	}
	*mesh = k.mesh;
	return ncclSuccess;
}
