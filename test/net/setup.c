/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections in the making, with others on the line: unknown peers, other programs, other
 * versions, ends that say nonsense, nothing, or go away.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/gin_rig.h"
#include "net/rig.h"
#include "support/self.h"

#define ADDRESS_AT 24 /* in a handle */

/* What all versions begin with. */
struct head {
	uint64_t magic;
	uint32_t version, bytes;
	uint64_t nonce;
};

static struct net net;
static struct gin gin;
static struct head answers; /* as a receiver's answer begins */

/* ---- sockets ---- */

static bool listens(int fd)
{
	socklen_t size = sizeof(int);
	int yes = 0;

	return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes;
}

/* A listener of the plugin's, and its address: that of the socket that was not there before. */
static struct sockaddr_in plugin_listen(uint8_t *handle, void **listener)
{
	struct sockaddr_in at = { 0 };
	socklen_t size = sizeof(at);
	bool before[256];

	for (int fd = 0; fd < 256; fd++) {
		before[fd] = listens(fd);
	}
	NEED(net_listen(&net, 0, handle, listener) == NET_OK);
	for (int fd = 0; fd < 256; fd++) {
		if (listens(fd) && !before[fd]) {
			NEED(getsockname(fd, (struct sockaddr *)&at, &size) == 0);
		}
	}
	NEED(at.sin_port);
	return at;
}

static int dial(const struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	NEED(fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof(*at)) == 0);
	return fd;
}

/* A listener of the test's own at an address. */
static int serve(struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	socklen_t size = sizeof(*at);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	NEED(bind(fd, (struct sockaddr *)at, sizeof(*at)) == 0 && listen(fd, 8) == 0);
	NEED(getsockname(fd, (struct sockaddr *)at, &size) == 0);
	return fd;
}

/* A handle of a plugin's listener that is gone, where the test serves. */
static int take_place(uint8_t *handle)
{
	struct sockaddr_in at;
	void *listener;

	at = plugin_listen(handle, &listener);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	return serve(&at);
}

/* Reads as long as something comes, for up to 100 ms of silence. */
static size_t hear(int fd, void *to, size_t size)
{
	struct pollfd p = { fd, POLLIN, 0 };
	size_t at = 0;

	while (at < size && poll(&p, 1, 100) == 1) {
		ssize_t n = recv(fd, (char *)to + at, size - at, 0);

		if (n <= 0) {
			break;
		}
		at += (size_t)n;
	}
	return at;
}

/* Calls until there is a connection or an error; once if its time passes before. */
static int until_end(bool connecting, void *what, void **comm, uint64_t ms)
{
	uint64_t until = net_now_ms() + ms;
	int rc = NET_OK;

	*comm = NULL;
	do {
		rc = connecting ? net_connect(&net, 0, what, comm) : net_accept(&net, what, comm);
		usleep(20);
	} while (rc == NET_OK && !*comm && net_now_ms() < until);
	return rc;
}

/* ---- listeners ---- */

static void test_rejected(void)
{
	static const char web[] = "GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\n\r\n";
	uint8_t handle[NET_HANDLE];
	struct net_pair pair = { .send = NULL };
	struct sockaddr_in at;
	void *listener, *comm;
	struct head head;
	int fd[6];

	check_context("unknown peers");
	at = plugin_listen(handle, &listener);
	for (int i = 0; i < 6; i++) {
		fd[i] = dial(&at);
	}
	NEED(send(fd[0], web, sizeof(web), 0) == sizeof(web));
	NEED(send(fd[1], web, 3, 0) == 3);
	close(fd[2]);
	/* A plugin of some version that was given another listener's handle. */
	memcpy(&head, handle, sizeof(head));
	head.nonce ^= 1;
	head.bytes = sizeof(head);
	NEED(send(fd[3], &head, sizeof(head), 0) == sizeof(head));
	for (int i = 0; i < 200 && !*net_log_find(3, "rejected a connection"); i++) {
		CHECK_INT(until_end(false, listener, &comm, 100), NET_OK);
		CHECK(!comm);
	}
	CHECK_INT(net_log_count(2), 0);
	CHECK(*net_log_find(3, "rejected a connection"));
	while (!pair.send || !pair.recv) {
		NEED(pair.send || net_connect(&net, 0, handle, &pair.send) == NET_OK);
		NEED(pair.recv || net_accept(&net, listener, &pair.recv) == NET_OK);
	}
	for (int i = 0; i < 6; i++) {
		close(i == 2 ? -1 : fd[i]);
	}
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	net_pair_close(&net, &pair);
}

/* More than there are places for say nothing, before and behind a peer who is slow to speak. */
static void test_silent(void)
{
	enum {
		BEFORE = 80,
		BEHIND = 40,
		MS = 20000
	};
	int fd[BEFORE + BEHIND], peer;
	uint8_t handle[NET_HANDLE];
	struct sockaddr_in at, own;
	struct net_pair pair = { .send = NULL };
	socklen_t size = sizeof(own);
	void *listener, *comm;
	struct head head;
	uint64_t began;
	char text[80];

	check_context("silent peers");
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "20000", 1);
	at = plugin_listen(handle, &listener);
	for (int i = 0; i < BEFORE; i++) {
		fd[i] = dial(&at);
	}
	net_log_clear();
	began = net_now_ms();
	while (!pair.send || !pair.recv) {
		NET_NEED(pair.send || net_connect(&net, 0, handle, &pair.send) == NET_OK, "%s",
			 net_log_last());
		NET_NEED(pair.recv || net_accept(&net, listener, &pair.recv) == NET_OK, "%s",
			 net_log_last());
		usleep(100);
	}
	CHECK(net_now_ms() - began < 5000, "%llu ms", (unsigned long long)(net_now_ms() - began));
	CHECK_INT(net_log_count(2), 1);
	NEED(getsockname(fd[0], (struct sockaddr *)&own, &size) == 0);
	snprintf(text, sizeof(text), "%s:%u, ", inet_ntoa(own.sin_addr), ntohs(own.sin_port));
	CHECK_HAS(net_log_find(2, "rejected connections"), text);
	net_pair_close(&net, &pair);
	/* He has a second before his place is another's. */
	peer = dial(&at);
	for (int i = 0; i < BEHIND; i++) {
		fd[BEFORE + i] = dial(&at);
	}
	CHECK_INT(until_end(false, listener, &comm, 800), NET_OK);
	memcpy(&head, handle, sizeof(head));
	head.version++;
	NEED(send(peer, &head, sizeof(head), 0) == sizeof(head));
	CHECK_INT(until_end(false, listener, &comm, MS), NET_REMOTE);
	CHECK(*net_log_find(2, "has another version of this plugin"), "%s", net_log_last());
	close(peer);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	/*
	 * Nobody else connects, and they are there still: a line beside the error has their
	 * addresses.
	 */
	at = plugin_listen(handle, &listener);
	peer = dial(&at);
	net_log_clear();
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "1500", 1);
	CHECK_INT(until_end(false, listener, &comm, MS), NET_REMOTE);
	CHECK_INT(net_log_count(2), 2);
	CHECK(*net_log_find(2, "waited 1500 ms"), "%s", net_log_last());
	CHECK_HAS(net_log_find(2, "rejected connections"), "which waits for a sender, 1 times: ");
	close(peer);
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "800", 1);
	for (int i = 0; i < BEFORE + BEHIND; i++) {
		close(fd[i]);
	}
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
}

/*
 * No descriptor is left for a connection: that is this process' own error, and nobody is waited
 * for.
 */
static void test_no_descriptors(void)
{
	uint8_t handle[NET_HANDLE], other[NET_HANDLE];
	void *listener, *holder, *comm;
	struct sockaddr_in at;
	uint64_t began;
	int fd, files;

	check_context("no descriptors");
	/* A connection that is never finished keeps the device open. */
	CHECK_INT(net_listen(&net, 0, other, &holder), NET_OK);
	CHECK_INT(until_end(true, other, &comm, 20), NET_OK);
	at = plugin_listen(handle, &listener);
	fd = dial(&at);
	files = self_files(0);
	began = net_now_ms();
	CHECK_INT(until_end(false, listener, &comm, 5000), NET_SYSTEM);
	CHECK_HAS(net_log_last(), "this process cannot take the connection of a peer at");
	CHECK_HAS(net_log_last(), "raise its limit of descriptors (ulimit -n)");
	CHECK_INT(until_end(true, handle, &comm, 5000), NET_SYSTEM);
	CHECK_HAS(net_log_last(), "this process cannot dial ");
	CHECK(net_now_ms() - began < 400, "%llu ms", (unsigned long long)(net_now_ms() - began));
	self_files(files);
	close(fd);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, holder), NET_OK);
}

static void test_other_sender(void)
{
	struct {
		struct head head;
		int32_t code;
	} answer = { 0 };
	uint8_t handle[NET_HANDLE];
	struct sockaddr_in at;
	struct head head;
	void *listener, *comm;
	char text[80];
	int fd;

	check_context("sender of another version");
	at = plugin_listen(handle, &listener);
	fd = dial(&at);
	memcpy(&head, handle, sizeof(head)); /* (a handle begins as a head does) */
	head.version++;
	head.bytes = 1234;
	NEED(send(fd, &head, sizeof(head), 0) == sizeof(head));
	CHECK_INT(until_end(false, listener, &comm, 5000), NET_REMOTE);
	snprintf(text, sizeof(text), "another version of this plugin (it has version %u with 1234",
		 head.version);
	CHECK_HAS(net_log_last(), text);
	hear(fd, &answer, sizeof(answer));
	answers = answer.head;
	CHECK(answer.head.magic == head.magic && answer.head.version == head.version - 1 &&
	      answer.code != 0);
	close(fd);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
}

/* ---- ranks ---- */

static void *rank_main(void *arg)
{
	uint8_t(*handle)[NET_HANDLE] = arg;
	void *handles[3] = { handle[0], handle[1], handle[2] }, *coll = NULL;

	CHECK_INT(gin_connect(&gin, handles, 3, 0, *(void **)handle[3], &coll), NET_REMOTE);
	CHECK_HAS(net_log_find(2, "claims to be rank"), "a peer claims to be rank 1 of 3");
	return NULL;
}

/* Two peers claim to be one rank: neither is left without a word, and no socket stays behind. */
static void test_two_claims(const char *library)
{
	struct {
		struct head head;
		uint32_t rank, nranks;
	} claim = { .rank = 1, .nranks = 3 };
	uint8_t handle[4][NET_HANDLE] __attribute__((aligned(8)));
	void *listener[3];
	struct sockaddr_in at;
	pthread_t thread;
	int fd[2];

	check_context("two claims");
	gin_load(&gin, library);
	NET_NEED(gin_init(&gin) == NET_OK, "%s", net_log_last());
	for (int r = 0; r < 3; r++) {
		NEED(gin_listen(&gin, 0, handle[r], &listener[r]) == NET_OK);
	}
	memcpy(&claim.head, handle[0], sizeof(claim.head)); /* (a handle begins as a head does) */
	claim.head.bytes = sizeof(claim);
	memcpy(&at, handle[0] + ADDRESS_AT, sizeof(at));
	memcpy(handle[3], &listener[0], sizeof(listener[0]));
	for (int i = 0; i < 2; i++) {
		fd[i] = dial(&at);
		NEED(send(fd[i], &claim, sizeof(claim), 0) == sizeof(claim));
	}
	NEED(pthread_create(&thread, NULL, rank_main, handle) == 0);
	pthread_join(thread, NULL);
	for (int i = 0; i < 2; i++) {
		char byte;

		CHECK(recv(fd[i], &byte, 1, 0) <= 0, "the socket is open still");
		close(fd[i]);
	}
	for (int r = 0; r < 3; r++) {
		CHECK_INT(gin_close(&gin, GIN_CLOSE_LISTEN, listener[r]), NET_OK);
	}
	CHECK_INT(gin_finalize(&gin), NET_OK);
}

/* ---- senders ---- */

static void test_wrong_handles(void)
{
	uint8_t handle[NET_HANDLE] = { 0 };
	void *listener, *comm;

	check_context("handles");
	CHECK_INT(net_connect(&net, 0, handle, &comm), NET_ARGUMENT);
	memset(handle, 0xff, sizeof(handle));
	CHECK_INT(net_connect(&net, 0, handle, &comm), NET_ARGUMENT);
	CHECK_INT(net_listen(&net, 0, handle, &listener), NET_OK);
	CHECK_INT(net_connect(&net, 7, handle, &comm), NET_ARGUMENT);
	CHECK_INT(net_connect(&net, -1, handle, &comm), NET_ARGUMENT);
	handle[8]++; /* the version */
	CHECK_INT(net_connect(&net, 0, handle, &comm), NET_USAGE);
	CHECK_HAS(net_log_last(), "another version");
	handle[8]--;
	handle[3] ^= 1;
	CHECK_INT(net_connect(&net, 0, handle, &comm), NET_ARGUMENT);
	CHECK(!comm);
	handle[3] ^= 1;
	/* Begun, and then the handle is overwritten where the plugin keeps what is its own. */
	CHECK_INT(net_connect(&net, 0, handle, &comm), NET_OK);
	memset(handle + 52, 0x11, NET_HANDLE - 52);
	CHECK_INT(net_connect(&net, 0, handle, &comm), NET_ARGUMENT);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	CHECK_INT(net_listen(&net, 5, handle, &listener), NET_ARGUMENT);
}

/* Whoever is there in the receiver's place says `bytes` of `text`, then closes or keeps still. */
static void other_receiver(const void *text, size_t bytes, bool close_it, int want,
			   const char *part)
{
	uint8_t handle[NET_HANDLE];
	int listener = take_place(handle), fd;
	void *comm;

	CHECK_INT(until_end(true, handle, &comm, 50), NET_OK);
	fd = accept(listener, NULL, NULL);
	NEED(fd >= 0);
	NEED(send(fd, text, bytes, 0) == (ssize_t)bytes);
	if (close_it) {
		char rest[4096];

		hear(fd, rest, sizeof(rest));
		close(fd);
	}
	CHECK_INT(until_end(true, handle, &comm, 8000), want);
	CHECK(!comm);
	CHECK_HAS(net_log_last(), part);
	if (!close_it) {
		close(fd);
	}
	close(listener);
}

static void test_other_receivers(void)
{
	static const char ssh[] = "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n";
	struct head head = { 0 };
	uint8_t handle[NET_HANDLE];
	void *listener, *comm;

	check_context("receivers");
	other_receiver(ssh, sizeof(ssh), false, NET_REMOTE, "is another program");
	other_receiver(ssh, 5, true, NET_REMOTE, "has gone away");
	other_receiver("", 0, true, NET_REMOTE, "has gone away");
	other_receiver("", 0, false, NET_REMOTE, "ms to receive from");
	CHECK_INT(net_listen(&net, 0, handle, &listener), NET_OK);
	memcpy(&head, handle, sizeof(head));
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	head.version = 9;
	other_receiver(&head, sizeof(head), false, NET_REMOTE, "another version");
	/* Nobody: it is tried for a while, but not for ever. */
	CHECK_INT(until_end(true, handle, &comm, 8000), NET_REMOTE);
	CHECK_HAS(net_log_last(), "cannot be reached: Connection refused, tried ");
	CHECK_HAS(net_log_last(), "(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)");
	/* Another version may have a message of the same size. */
	answers.version++;
	other_receiver(&answers, sizeof(answers), true, NET_REMOTE,
		       "has another version of this plugin");
}

/* ---- nonsense in between ---- */

/* In a request: a head, 24 bytes, and of the first port name, GID and number. */
#define LINK_LAYER_AT (24 + 24 + 32 + 16 + 1)

/* Passes what one end says on to the other, changed at random in one place. */
struct middle {
	int listener, fd[2];
	uint64_t random, flips, skip, span; /* span: of bytes behind `skip`; 0: all */
	int target;                         /* whose words are changed */
};

static void middle_step(struct middle *m, const struct sockaddr_in *to)
{
	if (m->fd[0] < 0) {
		struct pollfd p = { m->listener, POLLIN, 0 };

		if (poll(&p, 1, 0) == 1) {
			m->fd[0] = accept(m->listener, NULL, NULL);
			m->fd[1] = dial(to);
		}
		return;
	}
	for (int i = 0; i < 2; i++) {
		struct pollfd p = { m->fd[i], POLLIN, 0 };
		uint8_t bytes[4096];
		ssize_t n = poll(&p, 1, 0) == 1 ? recv(m->fd[i], bytes, sizeof(bytes), 0) : -1;

		if (n == 0) {
			shutdown(m->fd[!i], SHUT_WR);
		}
		if (n > (ssize_t)m->skip && i == m->target && m->flips) {
			for (; m->flips; m->flips--) {
				m->random = m->random * 6364136223846793005ull + 1;
				bytes[m->skip +
				      (m->random >> 33) %
					      (m->span ? m->span : (uint64_t)n - m->skip)] ^=
					(uint8_t)(m->random >> 20 | 1);
			}
		}
		if (n > 0) {
			(void)!send(m->fd[!i], bytes, (size_t)n, MSG_NOSIGNAL);
		}
	}
}

static void replace_port(uint8_t *handle, uint16_t from, uint16_t to)
{
	for (int i = 24; i < 30; i++) {
		if (memcmp(handle + i, &from, 2) == 0) {
			memcpy(handle + i, &to, 2);
			return;
		}
	}
	NEED(!"the port is in the handle");
}

static int nonsense(uint64_t seed, uint64_t flips, uint64_t skip, uint64_t span)
{
	struct middle m = {
		.fd = { -1, -1 }, .random = seed, .flips = flips, .skip = skip, .span = span
	};
	int send_rc = NET_OK, recv_rc = NET_OK;
	struct net_pair pair = { .send = NULL };
	uint64_t until = net_now_ms() + 10000;
	uint8_t handle[NET_HANDLE];
	struct sockaddr_in at, own;
	void *listener;

	m.target = seed & 1;
	at = own = plugin_listen(handle, &listener);
	own.sin_port = 0;
	m.listener = serve(&own);
	replace_port(handle, at.sin_port, own.sin_port);
	while ((send_rc == NET_OK && !pair.send) || (recv_rc == NET_OK && !pair.recv)) {
		NET_NEED(net_now_ms() < until, "seed %llu does not end", (unsigned long long)seed);
		middle_step(&m, &at);
		if (send_rc == NET_OK && !pair.send) {
			send_rc = net_connect(&net, 0, handle, &pair.send);
		}
		if (recv_rc == NET_OK && !pair.recv) {
			recv_rc = net_accept(&net, listener, &pair.recv);
		}
		/* The other end's error is told over the line; without it, the test gives up. */
		if (send_rc != NET_OK && recv_rc == NET_OK && m.fd[1] >= 0) {
			shutdown(m.fd[1], SHUT_WR);
		}
		if (recv_rc != NET_OK && send_rc == NET_OK && m.fd[0] >= 0) {
			shutdown(m.fd[0], SHUT_WR);
		}
		usleep(20);
	}
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	CHECK_INT(net_close(&net, NET_CLOSE_SEND, pair.send), NET_OK);
	CHECK_INT(net_close(&net, NET_CLOSE_RECV, pair.recv), NET_OK);
	close(m.fd[0]);
	close(m.fd[1]);
	close(m.listener);
	return send_rc == NET_OK && recv_rc == NET_OK ? NET_OK : NET_REMOTE;
}

static void test_nonsense(void)
{
	int failed = 0;

	CHECK_INT(nonsense(2, 0, 0, 0), NET_OK);
	CHECK_INT(nonsense(3, 0, 0, 0), NET_OK);
	for (uint64_t seed = 10; seed < 70; seed++) {
		check_context("nonsense, seed %llu", (unsigned long long)seed);
		failed += nonsense(seed, 1 + seed % 40, seed % 3 ? 24 : 0, 0) != NET_OK;
	}
	CHECK(failed > 12, "only %d of 60 were noticed", failed);
	/* The sender's port is no Ethernet: by then the receiver has made its end. */
	CHECK_INT(nonsense(4, 1, LINK_LAYER_AT, 1), NET_REMOTE);
	CHECK(*net_log_find(2, "one port is Ethernet, the other InfiniBand"), "%s", net_log_last());
}

/* ---- what is left behind ---- */

static void test_leftovers(void)
{
	uint8_t handle[3][NET_HANDLE];
	void *listener[3], *comm;

	check_context("leftovers");
	for (int i = 0; i < 3; i++) {
		CHECK_INT(net_listen(&net, 0, handle[i], &listener[i]), NET_OK);
	}
	/* One that has dialed, one whose request got its reply, one that nobody has dialed. */
	CHECK_INT(until_end(true, handle[0], &comm, 20), NET_OK);
	CHECK_INT(until_end(true, handle[1], &comm, 20), NET_OK);
	CHECK_INT(until_end(false, listener[1], &comm, 20), NET_OK);
	CHECK(!comm);
	for (int i = 0; i < 3; i++) {
		CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener[i]), NET_OK);
	}
}

/* Nobody comes. */
static void test_alone(void)
{
	uint8_t handle[NET_HANDLE];
	void *listener, *comm;

	check_context("alone");
	CHECK_INT(net_listen(&net, 0, handle, &listener), NET_OK);
	CHECK_INT(until_end(false, listener, &comm, 8000), NET_REMOTE);
	CHECK_HAS(net_log_last(), "for a sender to connect");
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
}

/* A listener takes one sender after another; each has its time. */
static void test_again(void)
{
	uint8_t handle[NET_HANDLE], copy[NET_HANDLE];
	struct net_pair pair;
	void *listener;

	check_context("again");
	CHECK_INT(net_listen(&net, 0, handle, &listener), NET_OK);
	for (int i = 0; i < 2; i++) {
		memcpy(copy, handle, sizeof(copy));
		pair = (struct net_pair){ .send = NULL };
		while (!pair.send || !pair.recv) {
			NET_NEED(pair.recv || net_accept(&net, listener, &pair.recv) == NET_OK,
				 "%s", net_log_last());
			NET_NEED(pair.send || net_connect(&net, 0, copy, &pair.send) == NET_OK,
				 "%s", net_log_last());
			usleep(20);
		}
		net_pair_close(&net, &pair);
		usleep(i ? 0 : 850000);
	}
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
}

/* A connection that NCCL has abandoned ends with its context. One of another context goes on. */
static void test_abandoned(const char *library)
{
	uint8_t handle[NET_HANDLE], kept[NET_HANDLE];
	void *listener, *comm = NULL;
	struct net other;
	int files;

	check_context("abandoned");
	net_load(&other, library, 11);
	NEED(net_init(&other, -1) == NET_OK);
	CHECK_INT(net_listen(&net, 0, handle, &listener), NET_OK);
	memcpy(kept, handle, sizeof(kept));
	CHECK_INT(net_connect(&net, 0, kept, &comm), NET_OK);
	files = self_entries("/proc/self/fd");
	CHECK_INT(net_connect(&other, 0, handle, &comm), NET_OK);
	CHECK(!comm && self_entries("/proc/self/fd") > files);
	CHECK_INT(net_finalize(&other), NET_OK);
	CHECK_INT(self_entries("/proc/self/fd"), files);
	CHECK_INT(net_connect(&net, 0, kept, &comm), NET_OK);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
}

int main(int argc, char **argv)
{
	int files;

	NEED(argc > 1);
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "800", 1);
	net_load(&net, argv[1], 11);
	NEED(net_init(&net, -1) == NET_OK);
	files = self_entries("/proc/self/fd");
	test_rejected();
	test_silent();
	test_no_descriptors();
	test_other_sender();
	test_wrong_handles();
	test_other_receivers();
	test_nonsense();
	test_two_claims(argv[1]);
	test_alone();
	test_again();
	test_leftovers();
	test_abandoned(argv[1]);
	CHECK_INT(net_finalize(&net), NET_OK);
	CHECK(*net_log_find(3, "was never finished"));
	/* No device is open any more, nor a socket. */
	CHECK_INT(self_entries("/proc/self/fd"), files);
	return check_end();
}
