/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "core/log.h"
#include "net/base/base.h"
#include "net/link/link.h"
#include "net/mesh/mesh.h"

#define EP_NET_POLL_MS 20

/* ---- making ---- */

/* The ports of the NIC, which is held. */
static ncclResult_t ep_net_mesh_ports(struct ep_net_mesh *mesh, enum ep_net_use use)
{
	struct ep_net_ends *own = &mesh->ends[mesh->rank];

	for (int i = 0; i < mesh->nic->nports; i++) {
		struct ep_net_dev *dev = mesh->nic->dev[i];
		const char *lacks = use == EP_NET_FOR_RMA ? ep_net_dev_lacks(dev) : NULL;

		if (lacks) {
			EP_INFO(EP_LOG_INIT | EP_LOG_NET, "%s %s, %s does without for GIN and RMA",
				dev->label, lacks, mesh->nic->label);
			continue;
		}
		if (mesh->nic->nports > 1 && ep_net_dev_down(dev)) {
			EP_INFO(EP_LOG_INIT | EP_LOG_NET, "%s: the port is down, %s does without",
				dev->label, mesh->nic->label);
			continue;
		}
		mesh->dev[own->n] = dev;
		mesh->of_nic[own->n] = (uint8_t)i;
		own->port[own->n] = dev->nic.end;
		own->port[own->n++].psn = (uint32_t)ep_now_ns() & 0xffffff;
	}
	return own->n ? ncclSuccess
		      : ep_fail(ncclSystemError, "%s: none of its ports is active and fit for it",
				mesh->nic->label);
}

ncclResult_t ep_net_mesh_new(const struct ep_net_nic *nic, enum ep_net_use use, uint32_t nranks,
			     uint32_t rank, struct ep_net_mesh **mesh)
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
	m->ends = calloc(nranks, sizeof(*m->ends));
	if (!m->fd || !m->who || !m->ends) {
		result = ep_fail(ncclSystemError, "out of host memory for %u ranks", nranks);
		goto err_free;
	}
	memset(m->fd, 0xff, nranks * sizeof(*m->fd));
	EP_CHECK_GOTO(ep_net_nic_hold(nic), err_free);
	EP_CHECK_GOTO(ep_net_mesh_ports(m, use), err_drop);
	*mesh = m;
	return ncclSuccess;

err_drop:
	ep_net_nic_drop(nic);
err_free:
	free(m->fd);
	free(m->who);
	free(m->ends);
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
	free(mesh->ends);
	free(mesh);
}

/* ---- rounds ---- */

static const char *const ep_net_round_text[] = {
	[EP_NET_ROUND_PORTS] = "send what their ports are",
	[EP_NET_ROUND_QUEUES] = "connect queue pairs",
	[EP_NET_ROUND_MEMORY] = "register memory",
	[EP_NET_ROUND_READY] = "be ready",
};

struct ep_net_exchange_head {
	uint64_t magic;
	uint32_t round, number, bytes;
	int32_t code;
};

struct ep_net_lost {
	struct ep_net_exchange_head head;
	char text[EP_NET_LOST_TEXT];
};

/* A rank that does not read has no room left for more, and finds out by itself. */
static void ep_net_lost_send(struct ep_net_mesh *mesh)
{
	struct ep_net_lost msg = { .head = { .magic = EP_NET_MAGIC,
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
	ep_net_lost_send(mesh);
}

bool ep_net_mesh_lost(const struct ep_net_mesh *mesh, uint32_t r, char text[EP_NET_LOST_TEXT])
{
	struct ep_net_lost msg;
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
		if (ep_net_mesh_lost(mesh, r, text)) {
			return ep_fail(ncclRemoteError, "%s has failed: %s", mesh->who[r], text);
		}
	}
	return ncclSuccess;
}

struct ep_net_exchange {
	struct ep_net_mesh *mesh;
	enum ep_net_round round;
	size_t bytes;            /* of a head and what follows it */
	char *out, *in;          /* in: of each rank */
	size_t *sent, *received; /* of each rank */
	struct pollfd *poll;
};

static void ep_net_exchange_free(struct ep_net_exchange *exchange)
{
	free(exchange->out);
	free(exchange->in);
	free(exchange->sent);
	free(exchange->received);
	free(exchange->poll);
}

static ncclResult_t ep_net_exchange_new(struct ep_net_mesh *mesh, enum ep_net_round round,
					ncclResult_t code, const void *own, size_t bytes,
					struct ep_net_exchange *exchange)
{
	struct ep_net_exchange_head head = { .magic = EP_NET_MAGIC,
					     .round = round,
					     .number = mesh->rounds,
					     .bytes = (uint32_t)bytes,
					     .code = code };

	*exchange = (struct ep_net_exchange){ .mesh = mesh,
					      .round = round,
					      .bytes = sizeof(head) + bytes };
	exchange->out = malloc(exchange->bytes);
	exchange->in = calloc(mesh->nranks, exchange->bytes);
	exchange->sent = calloc(mesh->nranks, sizeof(*exchange->sent));
	exchange->received = calloc(mesh->nranks, sizeof(*exchange->received));
	exchange->poll = calloc(mesh->nranks, sizeof(*exchange->poll));
	if (!exchange->out || !exchange->in || !exchange->sent || !exchange->received ||
	    !exchange->poll) {
		ep_net_exchange_free(exchange);
		return ep_fail(ncclSystemError, "out of host memory to %s with %u ranks",
			       ep_net_round_text[round], mesh->nranks);
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
static ncclResult_t ep_net_exchange_check(const struct ep_net_exchange *exchange, uint32_t r)
{
	struct ep_net_exchange_head head, own;

	memcpy(&head, exchange->in + r * exchange->bytes, sizeof(head));
	memcpy(&own, exchange->out, sizeof(own));
	if (head.magic == own.magic && head.round == EP_NET_ROUND_LOST) {
		return ep_fail(ncclRemoteError,
			       "%s has failed, while this one would %s: see its log",
			       exchange->mesh->who[r], ep_net_round_text[exchange->round]);
	}
	if (head.magic != own.magic || head.round != own.round || head.number != own.number ||
	    head.bytes != own.bytes) {
		return ep_fail(
			ncclRemoteError,
			"%s is at step %u of what all ranks do together (kind %u, %u bytes), "
			"this one at %u, where they %s: all ranks must make the same calls",
			exchange->mesh->who[r], head.number, head.round, head.bytes, own.number,
			ep_net_round_text[exchange->round]);
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_exchange_gone(const struct ep_net_exchange *exchange, uint32_t r,
					 enum ep_net_io_state state)
{
	return ep_fail(ncclRemoteError, "%s %s while all ranks %s: see its log",
		       exchange->mesh->who[r],
		       state == EP_NET_IO_CLOSED ? "has closed the connection or has ended"
						 : strerror(errno),
		       ep_net_round_text[exchange->round]);
}

/* Sends to and receives from a rank as much as goes now. */
static ncclResult_t ep_net_exchange_step(struct ep_net_exchange *exchange, uint32_t r)
{
	enum ep_net_io_state sent = EP_NET_IO_DONE, state = EP_NET_IO_DONE;
	char *in = exchange->in + r * exchange->bytes;
	int fd = exchange->mesh->fd[r];

	if (exchange->sent[r] < exchange->bytes) {
		sent = ep_net_put(fd, exchange->out, exchange->bytes, &exchange->sent[r]);
	}
	if (sent == EP_NET_IO_FAILED) {
		return ep_net_exchange_gone(exchange, r, sent);
	}
	/*
	 * An end that has closed may have sent something before. And where this rank waits for room to send
	 * more, the other one may wait until this rank receives.
	 */
	if (exchange->received[r] < sizeof(struct ep_net_exchange_head)) {
		state = ep_net_take(fd, in, sizeof(struct ep_net_exchange_head),
				    &exchange->received[r]);
		if (state == EP_NET_IO_DONE) {
			EP_CHECK(ep_net_exchange_check(exchange, r));
		}
	}
	if (state == EP_NET_IO_DONE && exchange->received[r] < exchange->bytes) {
		state = ep_net_take(fd, in, exchange->bytes, &exchange->received[r]);
	}
	if (state != EP_NET_IO_DONE && state != EP_NET_IO_AGAIN) {
		return ep_net_exchange_gone(exchange, r, state);
	}
	return sent == EP_NET_IO_CLOSED && state == EP_NET_IO_DONE
		       ? ep_net_exchange_gone(exchange, r, sent)
		       : ncclSuccess;
}

static ncclResult_t ep_net_exchange_all(struct ep_net_exchange *exchange)
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
			EP_CHECK(ep_net_exchange_step(exchange, r));
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
				       ep_net_round_text[exchange->round]);
		}
		poll(exchange->poll, n, EP_NET_POLL_MS);
	}
}

/* Of the heads of all ranks; `code` is this one's. */
static ncclResult_t ep_net_exchange_end(const struct ep_net_exchange *exchange, ncclResult_t code,
					void *all)
{
	size_t bytes = exchange->bytes - sizeof(struct ep_net_exchange_head);
	struct ep_net_exchange_head head;

	for (uint32_t r = 0; code == ncclSuccess && r < exchange->mesh->nranks; r++) {
		memcpy(&head, exchange->in + r * exchange->bytes, sizeof(head));
		if (head.code != ncclSuccess) {
			return ep_fail(ncclRemoteError, "%s cannot %s: see its log",
				       exchange->mesh->who[r], ep_net_round_text[exchange->round]);
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
	struct ep_net_exchange t;
	ncclResult_t result;

	pthread_mutex_lock(&mesh->lock);
	if (mesh->failed.code != ncclSuccess) {
		result = ep_fail_again(&mesh->failed);
		goto unlock;
	}
	EP_CHECK_GOTO(ep_net_exchange_new(mesh, round, code, own, bytes, &t), failed);
	result = ep_net_exchange_all(&t);
	if (result == ncclSuccess) {
		mesh->rounds++;
		result = ep_net_exchange_end(&t, code, all);
		ep_net_exchange_free(&t);
		goto unlock;
	}
	ep_net_exchange_free(&t);
failed:
	/* Ranks may be at different steps now: there is no other one. */
	ep_error_get(NULL, &mesh->failed);
unlock:
	pthread_mutex_unlock(&mesh->lock);
	ep_net_lost_send(mesh);
	return result;
}
