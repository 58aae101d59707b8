/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vcrun: starts the rank processes of a virtual cluster and waits for them.
 *
 *   vcrun --nodes N --gpus G [--env K=V]... [--timeout S] [--keep-going] -- program args...
 *
 * Every rank gets the environment torchrun gives (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT), VC_DIR (a directory common to all), VC_NODE, VC_GPUS and NCCL_HOSTID.
 * The directory `nic` beside this program, with the stand-ins for libibverbs and libmlx5, comes
 * first in LD_LIBRARY_PATH.
 * Exit code: 0 when all ranks end with 0; else that of the first rank that failed (128 + signal when
 * it was killed), 124 after a timeout.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <dirent.h>

#define VC_EXIT_TIMEOUT 124
#define VC_RANKS_MAX 256

struct rank {
	pid_t pid;
	bool ended;
	int status;
};

static struct rank ranks[VC_RANKS_MAX];
static int nranks, nodes = 1, gpus = 1;
static double timeout_s;
static bool keep_going;
static char dir[128];

static void die(const char *what)
{
	fprintf(stderr, "vcrun: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void usage(void)
{
	fprintf(stderr, "usage: vcrun [--nodes N] [--gpus G] [--env K=V]... [--timeout S] "
			"[--keep-going] -- program [argument]...\n");
	exit(2);
}

static int number(const char *text, int low, int high, const char *name)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (!*text || *end || value < low || value > high) {
		fprintf(stderr, "vcrun: %s %s: a number from %d to %d\n", name, text, low, high);
		exit(2);
	}
	return (int)value;
}

static void make_dir(void)
{
	const char *base = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";

	snprintf(dir, sizeof(dir), "%s/vcluster-XXXXXX", base);
	if (!mkdtemp(dir)) {
		die(dir);
	}
}

static void remove_dir(void)
{
	DIR *d = opendir(dir);
	struct dirent *entry;

	while (d && (entry = readdir(d))) {
		if (entry->d_name[0] != '.') {
			unlinkat(dirfd(d), entry->d_name, 0);
		}
	}
	if (d) {
		closedir(d);
	}
	rmdir(dir);
}

/* A port that was free a moment ago. */
static int free_port(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t len = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) ||
	    getsockname(fd, (struct sockaddr *)&address, &len)) {
		die("no free port");
	}
	close(fd);
	return ntohs(address.sin_port);
}

static void set(const char *name, const char *fmt, int value)
{
	char text[64];

	snprintf(text, sizeof(text), fmt, value);
	setenv(name, text, 1);
}

/* Where the program's dlopen() finds the NIC's libraries. */
static void set_library_path(void)
{
	const char *before = getenv("LD_LIBRARY_PATH");
	char self[1024], path[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (!slash) {
		return;
	}
	*slash = '\0';
	n = snprintf(path, sizeof(path), "%s/nic%s%s", self, before && *before ? ":" : "",
		     before ? before : "");
	if (n < (ssize_t)sizeof(path)) {
		setenv("LD_LIBRARY_PATH", path, 1);
	}
}

static void start(int rank, int port, char **argv)
{
	pid_t parent = getpid();
	pid_t pid = fork();

	if (pid < 0) {
		die("fork");
	}
	if (pid) {
		ranks[rank].pid = pid;
		return;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) {
		_exit(1);
	}
	set("RANK", "%d", rank);
	set("LOCAL_RANK", "%d", rank % gpus);
	set("WORLD_SIZE", "%d", nranks);
	set("LOCAL_WORLD_SIZE", "%d", gpus);
	set("MASTER_PORT", "%d", port);
	set("VC_GPUS", "%d", gpus);
	set("VC_NODE", "%d", rank / gpus);
	set("NCCL_HOSTID", "vc-node-%d", rank / gpus);
	setenv("MASTER_ADDR", "127.0.0.1", 1);
	setenv("VC_DIR", dir, 1);
	execvp(argv[0], argv);
	fprintf(stderr, "vcrun: %s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

static void kill_rest(void)
{
	for (int i = 0; i < nranks; i++) {
		if (!ranks[i].ended) {
			kill(ranks[i].pid, SIGKILL);
		}
	}
}

static const char *reason(int status, char *text, size_t size)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;

	if (WIFSIGNALED(status)) {
		snprintf(text, size, "was killed by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	} else {
		snprintf(text, size, "ended with code %d%s", code,
			 code == 86   ? " (watchdog)"
			 : code == 87 ? " (illegal use found by the virtual cluster)"
				      : "");
	}
	return text;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void report_timeout(void)
{
	fprintf(stderr, "vcrun: after %.1f s still running: ranks", timeout_s);
	for (int i = 0; i < nranks; i++) {
		if (!ranks[i].ended) {
			fprintf(stderr, " %d", i);
		}
	}
	fprintf(stderr, "\n");
}

/* Reaps one rank, or waits a little; returns its number or -1. */
static int reap(void)
{
	int status;
	pid_t pid = waitpid(-1, &status, WNOHANG);

	if (pid <= 0) {
		usleep(2000);
		return -1;
	}
	for (int i = 0; i < nranks; i++) {
		if (ranks[i].pid == pid) {
			ranks[i].ended = true;
			ranks[i].status = status;
			return i;
		}
	}
	return -1;
}

static int wait_all(void)
{
	double end = now() + timeout_s;
	int left = nranks, code = 0;
	bool killed = false;
	char text[96];

	while (left) {
		int rank = reap();

		if (rank >= 0) {
			int status = ranks[rank].status;

			left--;
			if (!status || killed) {
				continue;
			}
			fprintf(stderr, "vcrun: rank %d %s\n", rank,
				reason(status, text, sizeof(text)));
			if (!code) {
				code = WIFEXITED(status) ? WEXITSTATUS(status)
							 : 128 + WTERMSIG(status);
			}
			if (!keep_going) {
				killed = true;
				kill_rest();
			}
		} else if (timeout_s > 0 && now() > end && !killed) {
			report_timeout();
			code = code ? code : VC_EXIT_TIMEOUT;
			killed = true;
			kill_rest();
		}
	}
	return code;
}

static void on_signal(int number)
{
	kill_rest();
	remove_dir();
	_exit(128 + number);
}

static void options(int argc, char **argv)
{
	static const struct option list[] = {
		{ "nodes", required_argument, NULL, 'n' },
		{ "gpus", required_argument, NULL, 'g' },
		{ "env", required_argument, NULL, 'e' },
		{ "timeout", required_argument, NULL, 't' },
		{ "keep-going", no_argument, NULL, 'k' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "+", list, NULL)) != -1) {
		switch (c) {
		case 'n':
			nodes = number(optarg, 1, 64, "--nodes");
			break;
		case 'g':
			gpus = number(optarg, 1, 64, "--gpus");
			break;
		case 'e':
			if (!strchr(optarg, '=') || putenv(optarg)) {
				usage();
			}
			break;
		case 't':
			timeout_s = atof(optarg);
			break;
		case 'k':
			keep_going = true;
			break;
		default:
			usage();
		}
	}
	if (optind >= argc || nodes * gpus > VC_RANKS_MAX) {
		usage();
	}
}

int main(int argc, char **argv)
{
	int port, code;

	options(argc, argv);
	nranks = nodes * gpus;
	set_library_path();
	make_dir();
	port = free_port();
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	for (int i = 0; i < nranks; i++) {
		start(i, port, argv + optind);
	}
	code = wait_all();
	remove_dir();
	return code;
}
