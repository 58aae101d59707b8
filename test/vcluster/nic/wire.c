/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire: one TCP connection from each process to each other process that it has queue pairs
 * with, whichever NICs these are of; requests go one way, answers come back on it. Instance i of a
 * NIC's address listens on port base + i; the upper bits of a queue pair's number name the
 * instance.
 *
 * Between queue pairs of one process packets are handed over directly.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "nic/nic.h"

#define VN_MAGIC 0x35786c6du
#define VN_INSTANCES 256
#define VN_IN_BYTES (256u << 10)
#define VN_OUT_LIMIT (2u << 20)
#define VN_SILENCE_MS 2000 /* the other machine is gone after so long without an answer */
#define VN_HANDSHAKE_MS                                                                            \
	30000 /* a process that is slow sends its handshake later than its machine answers */

enum vn_link_state {
	VN_LINK_IDLE,
	VN_LINK_CONNECTING,
	VN_LINK_HANDSHAKE, /* connected, the handshake of the other side has not come */
	VN_LINK_UP
};

struct vn_handshake {
	uint32_t magic, run, from, to, instance, pad;
};

struct vn_link {
	uint32_t from, ip; /* a NIC's address of this process and of the other one */
	uint32_t instance; /* of the other one on its node's addresses */
	bool loop;         /* the other one is this process */
	bool incoming;
	bool handshake_done; /* the handshake of the other side has come */
	enum vn_link_state state;
	int fd;
	bool want_write;
	uint64_t since;
	uint8_t *in, *out;
	uint32_t in_n, out_n, out_at, out_cap;
	struct vn_link *next;
};

/* -------------------------------------------------------------------------------- listening */

static int vn_listen(uint32_t ip, uint16_t port)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(ip) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0) {
		return -errno;
	}
	/*
	 * Connections of a process that has ended do not keep its port. Two listeners never share
	 * one.
	 */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 256)) {
		int rc = -errno;

		close(fd);
		return rc;
	}
	return fd;
}

/* Ports of instance `i` on all addresses of this process. */
static int vn_listen_all(uint32_t i)
{
	for (int n = 0; n < vn_config.nics; n++) {
		int fd = vn_listen(vn.nic[n].ip, (uint16_t)(vn_config.port + i));

		if (fd < 0) {
			while (n--) {
				close(vn.nic[n].listen_fd);
				vn.nic[n].listen_fd = -1;
			}
			return fd;
		}
		vn.nic[n].listen_fd = fd;
	}
	return 0;
}

static void vn_watch(int fd, void *what, bool write, bool add)
{
	struct epoll_event e = { .events = EPOLLIN | (write ? EPOLLOUT : 0), .data.ptr = what };

	epoll_ctl(vn.epoll_fd, add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &e);
}

int vn_wire_start(void)
{
	int rc = -EADDRINUSE;

	vn.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	vn.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (vn.epoll_fd < 0 || vn.wake_fd < 0) {
		return errno;
	}
	for (uint32_t i = 0; i < VN_INSTANCES && rc == -EADDRINUSE; i++) {
		rc = vn_listen_all(i);
		vn.instance = i;
	}
	if (rc) {
		vn_log("no port on %u.%u.%u.%u from %u on: %s", vn.nic[0].ip >> 24,
		       vn.nic[0].ip >> 16 & 0xff, vn.nic[0].ip >> 8 & 0xff, vn.nic[0].ip & 0xff,
		       vn_config.port, strerror(-rc));
		return -rc;
	}
	vn_watch(vn.wake_fd, NULL, false, true);
	for (int n = 0; n < vn_config.nics; n++) {
		vn_watch(vn.nic[n].listen_fd, &vn.nic[n], false, true);
	}
	return 0;
}

/* ------------------------------------------------------------------------------------- links */

static struct vn_link *vn_link_new(uint32_t from, uint32_t ip, uint32_t instance)
{
	struct vn_link *l = calloc(1, sizeof(*l));

	if (!l) {
		return NULL;
	}
	l->from = from;
	l->ip = ip;
	l->instance = instance;
	l->fd = -1;
	l->next = vn.links;
	vn.links = l;
	return l;
}

/* Addresses of a node's NICs differ in the last byte. */
static bool vn_same_node(uint32_t a, uint32_t b)
{
	return a >> 8 == b >> 8;
}

struct vn_link *vn_link_get(struct vn_nic *nic, uint32_t ip, uint32_t instance)
{
	struct vn_link *l;

	for (l = vn.links; l; l = l->next) {
		if (!l->incoming && vn_same_node(l->ip, ip) && l->instance == instance) {
			return l;
		}
	}
	l = vn_link_new(nic->ip, ip, instance);
	if (l) {
		l->loop = instance == vn.instance && vn_same_node(ip, nic->ip);
	}
	return l;
}

bool vn_link_full(const struct vn_link *l)
{
	return l->out_n - l->out_at > VN_OUT_LIMIT;
}

static void vn_link_down(struct vn_link *l)
{
	if (l->fd >= 0) {
		close(l->fd);
	}
	l->fd = -1;
	l->state = VN_LINK_IDLE;
	l->in_n = l->out_n = l->out_at = 0;
	l->handshake_done = l->want_write = false;
	if (!l->incoming) {
		vn_req_link_lost(l);
	}
}

static void vn_append(struct vn_link *l, const void *data, uint32_t bytes)
{
	if (l->out_at && l->out_at == l->out_n) {
		l->out_at = l->out_n = 0;
	}
	if (l->out_n + bytes > l->out_cap && l->out_at) {
		memmove(l->out, l->out + l->out_at, l->out_n - l->out_at);
		l->out_n -= l->out_at;
		l->out_at = 0;
	}
	if (l->out_n + bytes > l->out_cap) {
		uint32_t cap = 2 * l->out_cap + bytes + 65536;

		l->out = realloc(l->out, cap);
		if (!l->out) {
			abort();
		}
		l->out_cap = cap;
	}
	memcpy(l->out + l->out_n, data, bytes);
	l->out_n += bytes;
}

static void vn_handshake_send(struct vn_link *l)
{
	struct vn_handshake h = { VN_MAGIC, vn_config.run, l->from, l->ip, vn.instance, 0 };

	vn_append(l, &h, sizeof(h));
}

static void vn_link_connect(struct vn_link *l)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons((uint16_t)(vn_config.port + l->instance)),
				 .sin_addr.s_addr = htonl(l->ip) };
	unsigned int silence = VN_SILENCE_MS;
	int one = 1;

	l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (l->fd < 0) {
		return;
	}
	setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(l->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof(silence));
	l->state = VN_LINK_CONNECTING;
	l->since = vn_now();
	vn_handshake_send(l);
	if (connect(l->fd, (struct sockaddr *)&a, sizeof(a)) && errno != EINPROGRESS) {
		return; /* flushing finds that out */
	}
	vn_watch(l->fd, l, true, true);
	l->want_write = true;
}

void vn_link_send(struct vn_link *l, const struct vn_packet *p, const uint8_t *payload)
{
	if (l->loop) {
		if (p->kind < VN_ACK) {
			vn_resp_packet(l, p, payload);
		} else {
			vn_req_answer(p, payload);
		}
		return;
	}
	if (l->state == VN_LINK_IDLE) {
		if (l->incoming) {
			return; /* nobody waits for the answer any more */
		}
		l->ip = p->dst_ip; /* an address that the other process has */
		vn_link_connect(l);
	}
	vn_append(l, p, sizeof(*p));
	if (p->kind != VN_READ && p->kind != VN_ATOMIC && p->bytes) {
		vn_append(l, payload, p->bytes);
	}
}

/* ------------------------------------------------------------------------------ moving bytes */

static bool vn_link_flush(struct vn_link *l)
{
	bool any = false;

	while (l->fd >= 0 && l->out_at < l->out_n) {
		ssize_t n = send(l->fd, l->out + l->out_at, l->out_n - l->out_at, MSG_NOSIGNAL);

		if (n > 0) {
			if (l->state == VN_LINK_CONNECTING && !l->incoming) {
				l->state = VN_LINK_HANDSHAKE;
				l->since = vn_now();
			}
			l->out_at += (uint32_t)n;
			any = true;
			continue;
		}
		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n < 0 && errno != EAGAIN && errno != ENOTCONN && errno != EINPROGRESS) {
			vn_link_down(l);
			return true;
		}
		break;
	}
	if (l->fd >= 0 && (l->out_at < l->out_n) != l->want_write) {
		l->want_write = l->out_at < l->out_n;
		vn_watch(l->fd, l, l->want_write, false);
	}
	return any;
}

static bool vn_handshake_check(struct vn_link *l)
{
	struct vn_handshake h;

	memcpy(&h, l->in, sizeof(h));
	if (h.magic != VN_MAGIC || h.run != vn_config.run ||
	    (l->incoming ? !vn_nic_of_ip(h.to)
			 : h.to != l->from || h.from != l->ip || h.instance != l->instance)) {
		vn_log_once(
			"another program (run 0x%x, not 0x%x) answers for a NIC's port: ignored",
			h.run, vn_config.run);
		return false;
	}
	if (l->incoming) {
		l->from = h.to;
		l->ip = h.from;
		l->instance = h.instance;
		vn_handshake_send(l);
	}
	l->handshake_done = true;
	l->state = VN_LINK_UP;
	return true;
}

/* Takes complete packets from the buffer; false: the other side sent something else. */
static bool vn_link_parse(struct vn_link *l)
{
	uint32_t at = 0;

	if (!l->handshake_done) {
		if (l->in_n < sizeof(struct vn_handshake)) {
			return true;
		}
		if (!vn_handshake_check(l)) {
			return false;
		}
		at = sizeof(struct vn_handshake);
	}
	while (l->in_n - at >= sizeof(struct vn_packet)) {
		struct vn_packet p;
		uint32_t payload;

		memcpy(&p, l->in + at, sizeof(p));
		payload = p.kind == VN_READ || p.kind == VN_ATOMIC ? 0 : p.bytes;
		if (payload > 4096 || p.kind > VN_RNR || (p.kind < VN_ACK) != l->incoming) {
			return false;
		}
		if (l->in_n - at < sizeof(p) + payload) {
			break;
		}
		at += (uint32_t)sizeof(p);
		if (l->incoming) {
			vn_resp_packet(l, &p, l->in + at);
		} else {
			vn_req_answer(&p, l->in + at);
		}
		at += payload;
		if (l->fd < 0) {
			return true;
		}
	}
	memmove(l->in, l->in + at, l->in_n - at);
	l->in_n -= at;
	return true;
}

static bool vn_link_receive(struct vn_link *l)
{
	ssize_t n;

	if (!l->in) {
		l->in = malloc(VN_IN_BYTES);
		if (!l->in) {
			abort();
		}
	}
	n = recv(l->fd, l->in + l->in_n, VN_IN_BYTES - l->in_n, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN)) {
		return false;
	}
	if (n <= 0) {
		vn_link_down(l);
		return true;
	}
	l->in_n += (uint32_t)n;
	if (!vn_link_parse(l)) {
		vn_link_down(l);
	}
	return true;
}

static void vn_accept(struct vn_nic *nic)
{
	int one = 1, fd = accept4(nic->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	struct vn_link *l = fd < 0 ? NULL : vn_link_new(nic->ip, 0, 0);

	if (!l) {
		if (fd >= 0) {
			close(fd);
		}
		return;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	l->incoming = true;
	l->fd = fd;
	l->state = VN_LINK_CONNECTING;
	vn_watch(fd, l, false, true);
}

static bool vn_is_nic(const void *p)
{
	return (const char *)p >= (const char *)vn.nic &&
	       (const char *)p < (const char *)(vn.nic + VN_NICS);
}

/* Whether the other side should have answered by now. */
static bool vn_link_silent(const struct vn_link *l)
{
	uint64_t limit = l->state == VN_LINK_CONNECTING ? VN_SILENCE_MS : VN_HANDSHAKE_MS;

	return !l->incoming && l->fd >= 0 &&
	       (l->state == VN_LINK_CONNECTING || l->state == VN_LINK_HANDSHAKE) &&
	       vn_now() - l->since > limit * 1000000;
}

/* Looks at all connections without waiting. True: something moved. */
bool vn_wire_run(bool receive)
{
	struct epoll_event events[64];
	bool any = false;
	int n;

	for (struct vn_link *l = vn.links; l; l = l->next) {
		if (l->out_at < l->out_n && !l->want_write) {
			any |= vn_link_flush(l);
		}
		if (vn_link_silent(l)) {
			vn_link_down(l);
			any = true;
		}
	}
	n = receive ? epoll_wait(vn.epoll_fd, events, 64, 0) : 0;
	for (int i = 0; i < n; i++) {
		void *what = events[i].data.ptr;
		uint64_t kicks;

		if (!what) {
			any |= read(vn.wake_fd, &kicks, sizeof(kicks)) > 0;
		} else if (vn_is_nic(what)) {
			vn_accept(what);
			any = true;
		} else {
			struct vn_link *l = what;

			if (l->fd >= 0 && events[i].events & EPOLLOUT) {
				any |= vn_link_flush(l);
			}
			if (l->fd >= 0 && events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
				any |= vn_link_receive(l);
			}
		}
	}
	return any;
}
