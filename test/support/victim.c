/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/victim.h"

static void flag_path(char *path, size_t size, const char *name)
{
	NEED(getenv("VC_DIR"));
	snprintf(path, size, "%s/%s", getenv("VC_DIR"), name);
}

static void flag_raise(const char *name)
{
	char path[600];

	flag_path(path, sizeof(path), name);
	close(open(path, O_CREAT | O_WRONLY, 0600));
}

static void flag_await(const char *name)
{
	char path[600];

	flag_path(path, sizeof(path), name);
	while (access(path, F_OK)) {
		usleep(2000);
	}
}

void victim_continue(void)
{
	flag_raise("continue");
}

void victim_await_stop(void)
{
	flag_await("stopped");
}

static void watch_over(pid_t child, bool killed)
{
	int status;

	for (;;) {
		NEED(waitpid(child, &status, WUNTRACED) == child);
		if (!WIFSTOPPED(status)) {
			break;
		}
		flag_raise("stopped");
		flag_await("continue");
		kill(child, SIGCONT);
	}
	if (WIFSIGNALED(status)) {
		_exit(killed && WTERMSIG(status) == SIGKILL ? 0 : 128 + WTERMSIG(status));
	}
	if (killed) {
		fprintf(stderr, "the victim ended with code %d, it was to be killed\n",
			WEXITSTATUS(status));
		_exit(1);
	}
	_exit(WEXITSTATUS(status));
}

void victim_start(int rank, bool killed)
{
	pid_t child, parent = getpid();

	if (world_number(getenv("RANK"), WORLD_MAX) != (uint64_t)rank) {
		return;
	}
	child = fork();
	NEED(child >= 0);
	if (child > 0) {
		watch_over(child, killed);
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) {
		_exit(1);
	}
}

/* Why the group has failed: a call that needs nothing else returns it. */
static ncclResult_t look(struct bench *b, double start, double *seconds)
{
	ncclResult_t result;
	size_t bytes;

	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	result = ncclEpHandleMemSize(b->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &bytes,
				     (int)b->p.topk);
	*seconds = world_now() - start;
	return result;
}

ncclResult_t victim_pair(struct bench *b, bool apart, double *seconds)
{
	double start = world_now();
	ncclResult_t result = bench_update(b, b->w->stream);

	*seconds = 0;
	if (result == ncclSuccess) {
		result = bench_dispatch(b, b->w->stream);
	}
	if (result == ncclSuccess && apart) {
		result = look(b, start, seconds);
		start += *seconds;
	}
	if (result == ncclSuccess) {
		result = bench_combine(b, b->w->stream);
	}
	return result == ncclSuccess ? look(b, start, seconds) : result;
}

void victim_new_group(struct world *w, const struct oracle_problem *p, double timeout_ms)
{
	struct bench b;

	check_context("a new group");
	bench_open(&b, w, bench_group_bounded(w->comm, p, 0, timeout_ms), p, 0);
	bench_pair(&b);
	bench_pair(&b);
	CHECK_LAST(b.group, ncclSuccess, "");
	bench_end(&b);
}

bool victim_named(const char *text, int rank)
{
	const char *list = strstr(text, "not started yet by rank");
	char name[32];
	char *end;

	snprintf(name, sizeof(name), "rank %d ", rank);
	if (strstr(text, name)) {
		return true;
	}
	list = list ? list + strlen("not started yet by rank") : "";
	while (*list == ' ' || *list == ',') {
		long r = strtol(list + 1, &end, 10);

		if (end != list + 1 && r == rank) {
			return true;
		}
		list = end != list + 1 ? end : list + 1;
	}
	return false;
}

int victim_culprit(const char *text)
{
	static const char *const words[] = { "waited for rank ", "connection with rank " };

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		const char *at = strstr(text, words[i]);

		if (at) {
			return atoi(at + strlen(words[i]));
		}
	}
	return -1;
}
