/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the processes of a run find each other, and what connects them: a star of TCP connections
 * with process 0 in the middle. Process 0 listens at an agreed address, or on any port, which it
 * publishes in an agreed file together with a random number, so that a file left behind by a dead
 * run is not mistaken for this one's.
 */
#include <ctype.h>
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

/* "node[03-05,7],other" to "node03"; a '-' ends a number only inside brackets */
static void first_node(const char *list, char *out, size_t bytes)
{
	size_t n = 0;
	int inside = 0;

	for (; *list && !strchr(inside ? ",-]" : ",", *list) && n + 1 < bytes; list++) {
		if (*list == '[') {
			inside = 1;
		} else {
			out[n++] = *list;
		}
	}
	out[n] = '\0';
}

/*
 * A name that the processes of this run share and no other run on this host: the launcher's name
 * of the job, else the launcher's process number (which a wrapper around each process hides).
 */
static void job_file(char *out, size_t bytes)
{
	static const char *const names[] = { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
					     "HYDRA_JOBID", "PMI_JOBID" };
	const char *dir = getenv("TMPDIR");
	char job[128];

	snprintf(job, sizeof(job), "%d", (int)getppid());
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *text = getenv(names[i]);

		if (text && *text) {
			snprintf(job, sizeof(job), "%s", text);
			break;
		}
	}
	for (char *c = job; *c; c++) {
		if (!isalnum((unsigned char)*c) && *c != '.' && *c != '-') {
			*c = '_';
		}
	}
	snprintf(out, bytes, "file:%s/ep_perf.%u.%s", dir && *dir ? dir : "/tmp",
		 (unsigned int)getuid(), job);
}

static void rendezvous_address(const struct perf_options *opt, char *out, size_t bytes)
{
	const char *address = getenv("MASTER_ADDR");
	const char *port = getenv("MASTER_PORT");
	const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
	const char *nodes = getenv("SLURM_STEP_NODELIST");
	const char *job = getenv("SLURM_JOB_ID");
	const char *vc = getenv("VC_DIR");
	char node[256];

	if (opt->rendezvous) {
		snprintf(out, bytes, "%s", opt->rendezvous);
	} else if (vc && *vc) {
		snprintf(out, bytes, "file:%s/ep_perf.meet", vc);
	} else if (address && *address) {
		port = port && *port ? port : "29500";
		if (agent && !strcasecmp(agent, "true")) { /* its store may sit on the port */
			snprintf(out, bytes, "%s:%d", address, atoi(port) + 1);
		} else {
			snprintf(out, bytes, "%s:%s", address, port);
		}
	} else if (nodes && *nodes && job) {
		first_node(nodes, node, sizeof(node));
		snprintf(out, bytes, "%s:%d", node, 20000 + atoi(job) % 20000);
	} else {
		job_file(out, bytes);
	}
}

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

static int send_all(int fd, const void *data, size_t bytes)
{
	return move_all(fd, (char *)data, bytes, 1);
}

static int receive_all(int fd, void *data, size_t bytes)
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
 * A file of this name that nobody else has made or can write: in a directory for all, others can
 * foresee the name. What a process that was killed has left there goes.
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
			if (!send_all(fd, &mine, sizeof(mine)) &&
			    !receive_all(fd, &answer, sizeof(answer)) &&
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
		if (receive_all(fd, &peer, sizeof(peer)) || peer.magic != HANDSHAKE_MAGIC ||
		    peer.nonce != place->nonce || peer.nprocs != world->nprocs || peer.proc == 0 ||
		    peer.proc >= world->nprocs || world->fds[peer.proc] >= 0 ||
		    send_all(fd, &peer, sizeof(peer))) {
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

/* The place of an address. The string has to live as long. Returns -1 if it is none. */
static int read_place(struct place *place, const char *address)
{
	const char *colon = strrchr(address, ':');
	char *end;
	unsigned long port;

	if (!strncmp(address, "file:", 5) && address[5]) {
		place->file = address + 5;
		snprintf(place->port, sizeof(place->port), "0");
		place->nonce = perf_now_ns() ^ (uint64_t)getpid() << 32;
		return 0;
	}
	if (!colon || colon == address || colon - address >= (int)sizeof(place->host) ||
	    !isdigit((unsigned char)colon[1])) {
		return -1;
	}
	port = strtoul(colon + 1, &end, 10);
	if (*end || port < 1 || port > 65535) {
		return -1;
	}
	memcpy(place->host, address, (size_t)(colon - address));
	snprintf(place->port, sizeof(place->port), "%lu", port);
	return 0;
}

bool perf_rendezvous_known(const char *address)
{
	struct place place = { .file = NULL };

	return read_place(&place, address) == 0;
}

int perf_rendezvous_open(struct perf_world *world, const struct perf_options *opt)
{
	uint64_t deadline = world->timeout_s
				    ? perf_now_ns() + world->timeout_s * UINT64_C(1000000000)
				    : UINT64_MAX;
	struct place place = { .file = NULL };
	char address[512];

	world->fds = calloc(world->nprocs, sizeof(*world->fds));
	if (!world->fds) {
		return -1;
	}
	for (uint32_t i = 0; i < world->nprocs; i++) {
		world->fds[i] = -1;
	}
	rendezvous_address(opt, address, sizeof(address));
	if (read_place(&place, address)) {
		fprintf(stderr,
			"ep_perf: rendezvous: got '%s', allowed is " PERF_RENDEZVOUS_FORMS "\n",
			address);
		return -1;
	}
	return world->proc == 0 ? host_run(world, &place, deadline) : join(world, &place, deadline);
}

int perf_rendezvous_exchange(struct perf_world *world, size_t bytes)
{
	size_t part = bytes * world->nlocal;

	if (world->proc != 0) {
		return send_all(world->fds[0], world->mine, part) ||
		       receive_all(world->fds[0], world->all, part * world->nprocs);
	}
	memcpy(world->all, world->mine, part);
	for (uint32_t i = 1; i < world->nprocs; i++) {
		if (receive_all(world->fds[i], world->all + i * part, part)) {
			return -1;
		}
	}
	for (uint32_t i = 1; i < world->nprocs; i++) {
		if (send_all(world->fds[i], world->all, part * world->nprocs)) {
			return -1;
		}
	}
	return 0;
}
