/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between processes: a star with process 0 in the middle, TCP. Process 0 listens at an
 * agreed address, or on any port, which it publishes in an agreed file together with a random
 * number, so that a file left behind by a dead run is not mistaken for this one's.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"

#define HANDSHAKE_MAGIC 0x65705f7065726601u /* "ep_perf", protocol 1 */

struct handshake {
	uint64_t magic;
	uint64_t nonce;
	uint32_t nprocs;
	uint32_t proc;
};

struct place {
	char host[256];
	char port[32];
	uint64_t nonce;
	const char *file; /* NULL: host and port are agreed */
	int doubted;      /* it was not believed, and a line had that */
};

static int move_all(int fd, char *at, size_t bytes, int sending)
{
	while (bytes > 0) {
		ssize_t n = sending ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);

		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n <= 0) {
			return -1;
		}
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

int perf_send_all(int fd, const void *data, size_t bytes)
{
	return move_all(fd, (char *)data, bytes, 1);
}

int perf_receive_all(int fd, void *data, size_t bytes)
{
	return move_all(fd, data, bytes, 0);
}

static void tune(int fd, uint32_t seconds)
{
	struct timeval limit = { .tv_sec = seconds };
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static int listen_at(const struct place *place)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int one = 1;

	address.sin_addr.s_addr = htonl(INADDR_ANY);
	address.sin_port = htons((uint16_t)(place->file ? 0 : atoi(place->port)));
	if (fd < 0) {
		return -1;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 128)) {
		fprintf(stderr, "ep_perf: cannot listen on port %s: %s\n", place->port,
			strerror(errno));
		close(fd);
		return -1;
	}
	return fd;
}

/*
 * A file of this name that nobody else has made or can write: in a directory for all, others can foresee
 * the name. What a process that was killed has left there goes.
 */
static FILE *create_own(const char *name)
{
	int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	int fd = open(name, flags, 0600);
	FILE *file;

	if (fd < 0 && errno == EEXIST && unlink(name) == 0) {
		fd = open(name, flags, 0600);
	}
	file = fd < 0 ? NULL : fdopen(fd, "w");
	if (!file && fd >= 0) {
		close(fd);
	}
	return file;
}

static int publish(const struct place *place, int fd)
{
	struct sockaddr_in address;
	socklen_t bytes = sizeof(address);
	char host[256] = "";
	char temporary[600];
	FILE *file;

	gethostname(host, sizeof(host) - 1);
	snprintf(temporary, sizeof(temporary), "%s.%d", place->file, (int)getpid());
	if (getsockname(fd, (struct sockaddr *)&address, &bytes)) {
		return -1;
	}
	file = create_own(temporary);
	if (!file) {
		fprintf(stderr, "ep_perf: %s: %s\n", temporary, strerror(errno));
		return -1;
	}
	fprintf(file, "%s %d %llu\n", host, ntohs(address.sin_port),
		(unsigned long long)place->nonce);
	if (fclose(file) || rename(temporary, place->file)) {
		fprintf(stderr, "ep_perf: %s: %s\n", place->file, strerror(errno));
		unlink(temporary);
		return -1;
	}
	return 0;
}

/* The file, if it is this user's and no one else could have written it. */
static FILE *open_own(struct place *place)
{
	int fd = open(place->file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	FILE *file = NULL;
	struct stat st;

	if (fd < 0 && errno == ENOENT) {
		return NULL;
	}
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	    (st.st_mode & 077) == 0) {
		file = fdopen(fd, "r");
	}
	if (!file) {
		if (!place->doubted) {
			fprintf(stderr,
				"ep_perf: %s is not believed: it has to be a file of user %u with mode "
				"0600; remove it if process 0 does not replace it\n",
				place->file, (unsigned int)geteuid());
		}
		place->doubted = 1;
		if (fd >= 0) {
			close(fd);
		}
	}
	return file;
}

/* Host and port as published; a process of the same host is reached without its name. */
static int read_address(struct place *place)
{
	char host[256] = "";
	unsigned long long nonce;
	FILE *file = open_own(place);
	int n;

	if (!file) {
		return -1;
	}
	n = fscanf(file, "%255s %31s %llu", place->host, place->port, &nonce);
	fclose(file);
	if (n != 3) {
		return -1;
	}
	place->nonce = nonce;
	gethostname(host, sizeof(host) - 1);
	if (!strcmp(host, place->host)) {
		snprintf(place->host, sizeof(place->host), "127.0.0.1");
	}
	return 0;
}

static int connect_once(const struct place *place)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM };
	struct addrinfo *list = NULL;
	int fd = -1;

	if (getaddrinfo(place->host, place->port, &hints, &list)) {
		return -1;
	}
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen)) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(list);
	return fd;
}

/* Process 0 answers a handshake that is in order with the same one. */
static int join(struct perf_world *world, struct place *place, uint64_t deadline)
{
	while (perf_now_ns() < deadline) {
		struct handshake mine = { HANDSHAKE_MAGIC, 0, world->nprocs, world->proc };
		struct handshake answer;
		struct timespec pause = { .tv_nsec = 20000000 };
		int fd = -1;

		if (!place->file || read_address(place) == 0) {
			fd = connect_once(place);
		}
		mine.nonce = place->nonce;
		if (fd >= 0) {
			tune(fd, 10);
			if (!perf_send_all(fd, &mine, sizeof(mine)) &&
			    !perf_receive_all(fd, &answer, sizeof(answer)) &&
			    !memcmp(&mine, &answer, sizeof(mine))) {
				tune(fd, world->timeout_s);
				world->fds[0] = fd;
				return 0;
			}
			close(fd);
		}
		nanosleep(&pause, NULL);
	}
	fprintf(stderr, "ep_perf: process %u did not find process 0 at %s%s%s\n", world->proc,
		place->file ? place->file : place->host, place->file ? "" : ":",
		place->file ? "" : place->port);
	return -1;
}

static int host_run(struct perf_world *world, const struct place *place, uint64_t deadline)
{
	int listener = listen_at(place);
	uint32_t joined = 1;

	if (listener < 0) {
		return -1;
	}
	if (place->file && publish(place, listener)) {
		close(listener);
		return -1;
	}
	while (joined < world->nprocs && perf_now_ns() < deadline) {
		struct pollfd wait = { .fd = listener, .events = POLLIN };
		struct handshake peer;
		int fd;

		if (poll(&wait, 1, 200) <= 0) {
			continue;
		}
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0) {
			continue;
		}
		tune(fd, 10);
		if (perf_receive_all(fd, &peer, sizeof(peer)) || peer.magic != HANDSHAKE_MAGIC ||
		    peer.nonce != place->nonce || peer.nprocs != world->nprocs || peer.proc == 0 ||
		    peer.proc >= world->nprocs || world->fds[peer.proc] >= 0 ||
		    perf_send_all(fd, &peer, sizeof(peer))) {
			close(fd); /* another program, or the same process again */
			continue;
		}
		tune(fd, world->timeout_s);
		world->fds[peer.proc] = fd;
		joined++;
	}
	close(listener);
	if (place->file) {
		unlink(place->file);
	}
	for (uint32_t i = 1; i < world->nprocs && joined < world->nprocs; i++) {
		if (world->fds[i] < 0) {
			fprintf(stderr, "ep_perf: process %u of %u did not come\n", i,
				world->nprocs);
		}
	}
	return joined < world->nprocs ? -1 : 0;
}

int perf_rendezvous_open(struct perf_world *world, const char *address)
{
	uint64_t deadline =
		perf_now_ns() + (world->timeout_s ? world->timeout_s : 300) * UINT64_C(1000000000);
	struct place place = { .file = NULL };
	const char *colon = strrchr(address, ':');

	world->fds = calloc(world->nprocs, sizeof(*world->fds));
	if (!world->fds) {
		return -1;
	}
	for (uint32_t i = 0; i < world->nprocs; i++) {
		world->fds[i] = -1;
	}
	if (!strncmp(address, "file:", 5)) {
		place.file = address + 5;
		snprintf(place.port, sizeof(place.port), "0");
		place.nonce = perf_now_ns() ^ (uint64_t)getpid() << 32;
	} else if (colon && colon - address < (int)sizeof(place.host)) {
		memcpy(place.host, address, (size_t)(colon - address));
		snprintf(place.port, sizeof(place.port), "%s", colon + 1);
	} else {
		fprintf(stderr, "ep_perf: rendezvous '%s': use HOST:PORT or file:NAME\n", address);
		return -1;
	}
	return world->proc == 0 ? host_run(world, &place, deadline) : join(world, &place, deadline);
}
