/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer may say of paths once a connection is made, and nonsense in its place. The test
 * writes to the sockets that the plugin has in this process, so that the other end hears it.
 *   words LIBRARY
 */
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/rig.h"

#define FDS 256
#define SIZE 8192
#define ASLEEP 30 /* times */

/* As the plugin writes it. */
struct word {
	uint32_t magic;
	uint16_t path, generation;
	uint8_t kind, why, port, pad;
	uint8_t end[64];
	uint32_t came[128];
};

static const struct word good = { .magic = 0x64726f77, .kind = 1 };
static struct net net;
static struct net_pair pair;
static uint8_t from[SIZE], to[SIZE];
static void *from_mr, *to_mr;
static int fd_send, fd_recv;

/* Those of the NICs' events are pairs within the process. */
static bool is_socket(int fd)
{
	int type = 0, domain = AF_UNIX;
	socklen_t size = sizeof(type);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
	       getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain != AF_UNIX;
}

/* Whether the socket is the sender's end of the pair: the one that dialed the listener. */
static bool is_sender(int fd)
{
	struct sockaddr_in6 peer = { .sin6_port = 0 };
	socklen_t size = sizeof(peer);

	/* (the port is at the same place in both families) */
	return getpeername(fd, (struct sockaddr *)&peer, &size) == 0 && peer.sin6_port == pair.port;
}

/* Finds the sockets that were not there before. */
static void begin(const char *what)
{
	bool before[FDS];

	check_context("%s", what);
	for (int fd = 0; fd < FDS; fd++) {
		before[fd] = is_socket(fd);
	}
	net_pair_make(&net, 0, 1, &pair);
	fd_send = fd_recv = -1;
	for (int fd = 0; fd < FDS; fd++) {
		if (!before[fd] && is_socket(fd)) {
			*(is_sender(fd) ? &fd_send : &fd_recv) = fd;
		}
	}
	NEED(fd_send >= 0 && fd_recv >= 0);
	NEED(net_reg(&net, pair.send, from, SIZE, NET_HOST, &from_mr) == NET_OK);
	NEED(net_reg(&net, pair.recv, to, SIZE, NET_HOST, &to_mr) == NET_OK);
}

static void end(void)
{
	net_pair_close(&net, &pair);
	CHECK_INT(net_dereg(&net, pair.send, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair.recv, to_mr), NET_OK);
}

/* Says it to the sender or to the receiver. */
static void say(bool to_sender, const void *what, size_t size)
{
	NEED(send(to_sender ? fd_recv : fd_send, what, size, MSG_NOSIGNAL) == (ssize_t)size);
}

/* Messages for so long, or until an end fails: the code of that, *which: of which one. */
static int messages(uint64_t ms, int *which)
{
	uint64_t until = net_now_ms() + ms;
	void *data = to;
	size_t size = SIZE;
	int tag = 1, rc = NET_OK;

	*which = -1;
	for (uint64_t seed = 0; rc == NET_OK && net_now_ms() < until; seed++) {
		void *req[2] = { NULL, NULL };
		int done[2] = { 0, 0 }, sizes[64];

		net_fill(from, SIZE, seed);
		while (rc == NET_OK && (!done[0] || !done[1]) && net_now_ms() < until + 20000) {
			for (int i = 0; i < 2 && rc == NET_OK; i++) {
				rc = done[i]  ? NET_OK
				     : req[i] ? net_test(&net, req[i], &done[i], sizes)
				     : i ? net_irecv(&net, pair.recv, 1, &data, &size, &tag, &to_mr,
						     &req[1])
					 : net_isend(&net, pair.send, from, SIZE, 1, from_mr,
						     &req[0]);
				*which = rc == NET_OK ? -1 : i;
			}
			usleep(20);
		}
		CHECK(rc != NET_OK || (done[0] && done[1] && net_wrong(to, SIZE, seed) == 0));
	}
	return rc;
}

static void test_nonsense(void)
{
	uint8_t noise[sizeof(struct word)];
	struct word far = good, old = good;
	int which;

	net_fill(noise, sizeof(noise), 5);
	far.path = 2;
	old.magic++;
	for (int i = 0; i < 2; i++) {
		const void *const what[] = { noise, &far, &old };

		for (int k = 0; k < 3; k++) {
			begin("nonsense");
			say(i == 0, what[k], sizeof(noise));
			CHECK_INT(messages(5000, &which), NET_REMOTE);
			CHECK_INT(which, i);
			CHECK_HAS(net_log_find(2, "makes no sense"), "mlx5_");
			net_log_clear();
			end();
		}
	}
}

/* Some of a word, and no more of it: it is waited for, and nothing else. */
static void test_half(void)
{
	int which;

	begin("half a word");
	say(true, &good, 100);
	say(false, &good, sizeof(good) - 1);
	CHECK_INT(messages(300, &which), NET_OK);
	CHECK_INT(net_log_count(2), 0);
	end();
}

/*
 * A path is closed in the sender's name. It does so when it hears of it, and that is once too
 * often.
 */
static void test_closed(void)
{
	int which;

	begin("closed");
	say(false, &good, sizeof(good));
	CHECK_INT(messages(5000, &which), NET_REMOTE);
	CHECK_INT(which, 1);
	CHECK_HAS(net_log_find(2, "the peer has noticed"), "; the connection goes on over mlx5_");
	CHECK_HAS(net_log_find(2, "makes no sense"), "mlx5_");
	net_log_clear();
	end();
}

/* More has come than was sent. */
static void test_came(void)
{
	struct word word = good;
	int which;

	begin("came");
	word.came[0] = 100000;
	say(true, &word, sizeof(word));
	CHECK_INT(messages(5000, &which), NET_REMOTE);
	CHECK_INT(which, 0);
	CHECK_HAS(net_log_find(2, "has had 100000 parts"), "mlx5_0:1 QP 0x");
	net_log_clear();
	end();
}

/* Until the sender has read what was said to it. */
static void heard(void)
{
	uint64_t until = net_now_ms() + 20000;
	int left = 1;

	while (left) {
		NET_NEED(net_now_ms() < until, "nobody hears");
		NEED(ioctl(fd_send, FIONREAD, &left) == 0);
		usleep(20);
	}
}

/* The receiver says that it closes, and does not: no path is left, and nothing is sent any more. */
static void test_last(void)
{
	struct word word = good;
	uint64_t until;
	void *data = to, *req;
	size_t size = SIZE;
	int tag = 1;

	begin("last");
	CHECK_INT(net_irecv(&net, pair.recv, 1, &data, &size, &tag, &to_mr, &req), NET_OK);
	word.why = 1;
	say(true, &word, sizeof(word));
	word.path = 1;
	say(true, &word, sizeof(word));
	heard();
	until = net_now_ms() + 300;
	do {
		CHECK_INT(net_isend(&net, pair.send, from, SIZE, 1, from_mr, &req), NET_OK);
		CHECK(!req);
	} while (net_now_ms() < until);
	net_log_clear();
	end();
}

/* Of a thread: whether it sleeps. */
static bool sleeps(const char *thread)
{
	char path[64], text[256] = "", *after;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%.20s/stat", thread);
	f = fopen(path, "r");
	if (f) {
		(void)!fgets(text, sizeof(text), f);
		fclose(f);
	}
	after = strrchr(text, ')');
	return !after || after[2] == 'S';
}

/*
 * An end that nobody uses any more, of a peer that is gone: no thread looks at it all the time,
 * that is, each is found asleep now and then.
 */
static void test_idle(void)
{
	uint64_t until = net_now_ms() + 20000;
	struct dirent *e;
	DIR *dir;

	begin("idle");
	CHECK_INT(net_close(&net, NET_CLOSE_SEND, pair.send), NET_OK);
	pair.send = NULL;
	usleep(300000); /* (the other end finds out) */
	dir = opendir("/proc/self/task");
	NEED(dir);
	while ((e = readdir(dir))) {
		/* (the first thread is this one) */
		bool mine = *e->d_name == '.' || atoi(e->d_name) == getpid();

		for (int found = 0; !mine && found < ASLEEP; found += sleeps(e->d_name)) {
			NET_NEED(net_now_ms() < until, "thread %s never sleeps", e->d_name);
			usleep(500);
		}
	}
	closedir(dir);
	end();
}

/* A machine that vanishes says nothing: the kernel asks whether it is there, within minutes. */
static void test_asked(void)
{
	begin("asked");
	for (int i = 0; i < 2; i++) {
		int yes = 0, idle = 0, every = 0, times = 0, fd = i ? fd_send : fd_recv;
		socklen_t n = sizeof(int);

		NEED(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, &n) == 0);
		NEED(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &n) == 0);
		NEED(getsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, &n) == 0);
		NEED(getsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, &n) == 0);
		CHECK(yes && idle + every * times <= 600, "%d, %d s + %d * %d s", yes, idle, every,
		      times);
	}
	end();
}

int main(int argc, char **argv)
{
	NEED(argc > 1);
	net_load(&net, argv[1], 11);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	test_nonsense();
	test_half();
	test_closed();
	test_came();
	test_last();
	test_asked();
	test_idle();
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end();
}
