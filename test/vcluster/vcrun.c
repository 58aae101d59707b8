/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vcrun: starts the rank processes of a virtual cluster and waits for them. vcrun(1) tells the
 * rest.
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
#include "clock/page.h"

#define VC_EXIT_TIMEOUT 124
#define VC_RANKS_MAX 256

struct rank {
	pid_t pid;
	bool ended;
	int status;
};

static struct rank ranks[VC_RANKS_MAX];
static int nranks, nodes = 1, gpus = 1, domain;
static double timeout_s;
static bool keep_going;
static char dir[128];
static struct vc_clock *run_clock;

static void die(const char *what)
{
	fprintf(stderr, "vcrun: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void help(void)
{
	puts("usage: vcrun [options] [--] program [argument]...\n"
	     "Runs a program on a virtual cluster, one process per rank.\n"
	     "  --nodes N      nodes, 1 to 64 [1]\n"
	     "  --gpus G       GPUs of each node, 1 to 64 [1]; a rank for each GPU, at most 256\n"
	     "  --domain N     so many nodes, one after another, map each other's GPUs [1]\n"
	     "  --env K=V      an environment variable for all ranks\n"
	     "  --timeout S    end all ranks after S seconds [0: never]\n"
	     "  --keep-going   leave the other ranks alone when one fails\n"
	     "  -h, --help     this text\n"
	     "Ranks get RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT,\n"
	     "as of torchrun, VC_DIR (a directory common to all), VC_NODE (and by it a host name\n"
	     "for each node), VC_GPUS, and in LD_LIBRARY_PATH the software NIC.\n"
	     "vcrun(1) (doc/man/vcrun.1) lists the variables that change the cluster.\n"
	     "Exit status: 0 when all ranks end with 0; else that of the first rank that failed (128 +\n"
	     "signal when it was killed), 124 after a timeout, 2 for wrong usage.");
	exit(0);
}

static void refuse(const char *what, const char *text)
{
	fprintf(stderr, "vcrun: %s%s. Try 'vcrun --help'.\n", what, text);
	exit(2);
}

static int number(const char *text, int low, int high, const char *name)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (!*text || *end || value < low || value > high) {
		fprintf(stderr, "vcrun: %s: got '%s', allowed is a number from %d to %d\n", name,
			text, low, high);
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

/* All ranks count as running from now on, whenever they are started. */
static void make_clock(void)
{
	const char *name = getenv("VC_CLOCK");
	char path[160];

	if (name && !strcmp(name, "real")) {
		return;
	}
	snprintf(path, sizeof(path), "%s/clock", dir);
	run_clock = vc_clock_map(path, true);
	if (!run_clock) {
		die(path);
	}
	setenv("VC_CLOCK", path, 1);
	for (int i = 0; i < nranks; i++) {
		vc_proc_new(run_clock, 0);
	}
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
	if (run_clock) {
		atomic_store(&run_clock->proc[rank].pid, getpid());
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
	if (domain) {
		set("VC_DOMAIN", "%d", domain);
	}
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
			 code == 85   ? " (all threads wait for ever)"
			 : code == 86 ? " (watchdog)"
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
	if (run_clock) {
		vc_proc_set(run_clock, vc_proc_find(run_clock, pid), VC_PROC_ENDED);
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

/* The rank that would have moved the clock may have been killed. Returns 0 or an exit code. */
static int move_clock(void)
{
	const char *why = run_clock ? vc_clock_move(run_clock, NULL) : NULL;

	if (!why) {
		return 0;
	}
	vc_clock_report(run_clock, why);
	return VC_EXIT_STUCK;
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
		} else if (!killed) {
			int stuck = move_clock();

			if (stuck) {
				code = code ? code : stuck;
				killed = true;
				kill_rest();
			}
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
		{ "domain", required_argument, NULL, 'd' },
		{ "env", required_argument, NULL, 'e' },
		{ "timeout", required_argument, NULL, 't' },
		{ "keep-going", no_argument, NULL, 'k' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	char text[64];
	int c;

	while ((c = getopt_long(argc, argv, "+:h", list, NULL)) != -1) {
		switch (c) {
		case 'n':
			nodes = number(optarg, 1, 64, "--nodes");
			break;
		case 'g':
			gpus = number(optarg, 1, 64, "--gpus");
			break;
		case 'd':
			domain = number(optarg, 1, 64, "--domain");
			break;
		case 'e':
			if (!strchr(optarg, '=') || putenv(optarg)) {
				refuse("--env takes NAME=VALUE, not ", optarg);
			}
			break;
		case 't':
			timeout_s = number(optarg, 0, 1000000, "--timeout");
			break;
		case 'k':
			keep_going = true;
			break;
		case 'h':
			help();
			break;
		case ':':
			refuse(argv[optind - 1], " needs a value");
			break;
		default:
			refuse(argv[optind - 1], " is not an option");
		}
	}
	if (optind >= argc) {
		refuse("there is no program", "");
	}
	if (nodes * gpus > VC_RANKS_MAX) {
		snprintf(text, sizeof(text), "%d, allowed is %d at most", nodes * gpus,
			 VC_RANKS_MAX);
		refuse("--nodes times --gpus: got ", text);
	}
}

int main(int argc, char **argv)
{
	int port, code;

	options(argc, argv);
	nranks = nodes * gpus;
	set_library_path();
	make_dir();
	make_clock();
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
