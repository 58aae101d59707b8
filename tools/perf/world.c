/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes and threads of a run: which one this is, how they meet, and how one of them ends.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"

/* ---- time, memory, and the end of a process that cannot go on ---- */

typedef ncclResult_t (*last_error_fn)(ncclEpGroup_t group, ncclResult_t *code, const char **text);

const char *perf_last_error(const struct perf_rank *rank)
{
	last_error_fn last_error = (last_error_fn)dlsym(RTLD_DEFAULT, "ncclEpExtGetLastError");
	ncclResult_t code = ncclSuccess;
	const char *text = NULL;

	if (!last_error || last_error(rank->group, &code, &text) != ncclSuccess) {
		return NULL;
	}
	return code != ncclSuccess && text && *text ? text : NULL;
}

uint64_t perf_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void perf_phase(struct perf_rank *rank, const char *phase)
{
	atomic_store(&rank->phase, phase);
	atomic_store(&rank->phase_ns, perf_now_ns());
}

/* Ends the process: other ranks of the run notice through their connections and timeouts. */
void perf_die(struct perf_rank *rank, const char *format, ...)
{
	const char *phase = atomic_load(&rank->phase);
	const char *text = perf_last_error(rank);
	char message[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	fflush(stdout);
	fprintf(stderr, "ep_perf: rank %u, %s: %s%s%s\n", rank->rank, phase ? phase : "start",
		message, text && !strstr(message, text) ? ": " : "",
		text && !strstr(message, text) ? text : "");
	_exit(EXIT_BROKEN);
}

void perf_expect_no_failure(struct perf_rank *rank)
{
	const char *text = perf_last_error(rank);

	if (text) {
		perf_die(rank, "%s", text);
	}
}

void *perf_alloc(struct perf_rank *rank, size_t count, size_t bytes)
{
	void *memory = calloc(count, bytes);

	if (!memory) {
		perf_die(rank, "out of memory");
	}
	return memory;
}

/*
 * ---- connections between processes ----
 *
 * A star with process 0 in the middle, TCP. Process 0 listens at an
 * agreed address, or on any port, which it publishes in an agreed file together with a random
 * number, so that a file left behind by a dead run is not mistaken for this one's.
 */

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

static int rendezvous_open(struct perf_world *world, const char *address)
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

/* ---- processes and threads ---- */

struct launcher {
	const char *name;
	const char *rank, *size, *local;
	const char *required; /* another variable that must be there, or NULL */
};

/*
 * A batch script under Slurm has SLURM_PROCID too, only srun's tasks have a step. mpirun and
 * torchrun may themselves run inside a step, so they come first.
 */
static const struct launcher launchers[] = {
	{ "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
	  NULL },
	{ "vcrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "VC_DIR" },
	{ "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", NULL },
	{ "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", NULL },
	{ "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID" },
};

static int number_of(const char *variable, uint32_t *value)
{
	const char *text = getenv(variable);
	char *end;
	unsigned long number;

	if (!text || !isdigit((unsigned char)text[0])) {
		return -1;
	}
	number = strtoul(text, &end, 10);
	if (*end || number > 1u << 20) {
		return -1;
	}
	*value = (uint32_t)number;
	return 0;
}

/* The process, by its launcher. */
static void detect_process(struct perf_world *world)
{
	world->launcher = "none";
	world->nprocs = 1;
	for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
		const struct launcher *l = launchers + i;

		if (number_of(l->rank, &world->proc) || number_of(l->size, &world->nprocs) ||
		    (l->required && !getenv(l->required))) {
			world->proc = 0;
			world->nprocs = 1;
			continue;
		}
		world->launcher = l->name;
		if (number_of(l->local, &world->local_proc)) {
			world->local_proc = world->proc;
		}
		break;
	}
}

int perf_is_first_process(void)
{
	struct perf_world w = { .nprocs = 0 };

	detect_process(&w);
	return w.proc == 0;
}

void perf_complain(const char *format, ...)
{
	char text[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (!perf_is_first_process()) {
		sleep(3); /* launchers end the run when its first process ends with an error */
	}
	fprintf(stderr, "ep_perf: %s\n", text);
}

int perf_world_detect(struct perf_world *world, const struct perf_options *opt)
{
	detect_process(world);
	world->nlocal = opt->gpus * opt->threads;
	world->timeout_s = opt->timeout_s;
	world->nranks = world->nprocs * world->nlocal;
	if (world->nprocs == 0 || world->proc >= world->nprocs) {
		perf_complain("got process %u of %u from %s, allowed is 0 to one less than that",
			      world->proc, world->nprocs, world->launcher);
		return -1;
	}
	if (world->nranks > ORACLE_MAX_RANKS) {
		perf_complain("got %u ranks (%u processes with %u each), allowed is %d at most",
			      world->nranks, world->nprocs, world->nlocal, ORACLE_MAX_RANKS);
		return -1;
	}
	return 0;
}

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
		/* torchrun's own store may sit on the port itself */
		int number = port && *port ? atoi(port) : 29500;

		snprintf(out, bytes, "%s:%d", address,
			 number + (agent && !strcasecmp(agent, "true")));
	} else if (nodes && *nodes && job) {
		first_node(nodes, node, sizeof(node));
		snprintf(out, bytes, "%s:%d", node, 20000 + atoi(job) % 20000);
	} else {
		job_file(out, bytes);
	}
}

int perf_world_connect(struct perf_world *world, const struct perf_options *opt)
{
	char address[512];

	if (pthread_barrier_init(&world->barrier, NULL, world->nlocal)) {
		fprintf(stderr, "ep_perf: no barrier\n");
		return -1;
	}
	if (world->nprocs == 1) {
		return 0;
	}
	rendezvous_address(opt, address, sizeof(address));
	return rendezvous_open(world, address);
}

void perf_world_close(struct perf_world *world)
{
	uint32_t n = world->nprocs == 1 ? 0 : world->proc == 0 ? world->nprocs : 1;

	for (uint32_t i = 0; world->fds && i < n; i++) {
		if (world->fds[i] >= 0) {
			close(world->fds[i]);
		}
	}
	free(world->fds);
	free(world->mine);
	free(world->all);
	pthread_barrier_destroy(&world->barrier);
}

static int exchange(struct perf_world *world, size_t bytes)
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

void perf_gather(struct perf_rank *rank, const void *in, size_t bytes, void *out)
{
	struct perf_world *w = &rank->perf->world;

	pthread_barrier_wait(&w->barrier);
	if (rank->local == 0 && bytes * w->nranks > w->room) {
		w->room = bytes * w->nranks;
		w->mine = realloc(w->mine, w->room);
		w->all = realloc(w->all, w->room);
		if (!w->mine || !w->all) {
			perf_die(rank, "out of memory");
		}
	}
	pthread_barrier_wait(&w->barrier);
	if (bytes) {
		memcpy(w->mine + rank->local * bytes, in, bytes);
	}
	pthread_barrier_wait(&w->barrier);
	if (rank->local == 0 && exchange(w, bytes)) {
		perf_die(rank, "another process of the run is gone or silent");
	}
	pthread_barrier_wait(&w->barrier);
	if (bytes) {
		memcpy(out, w->all, bytes * w->nranks);
	}
}

void perf_barrier(struct perf_rank *rank)
{
	char in = 0;
	char out[ORACLE_MAX_RANKS];

	perf_gather(rank, &in, sizeof(in), out);
}
