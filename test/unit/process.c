/* SPDX-License-Identifier: Apache-2.0 */
/* Which process this is, whether a rank's process is known to have ended, and sets of ranks. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/ident.h"
#include "core/process.h"
#include "device/group/group_layout.h"
#include "support/self.h"
#include "support/world.h"
#include "core/registry.h"

/* A process that has ended, and has been waited for. */
static int ended_pid(void)
{
	int pid = fork();

	if (pid == 0) {
		_exit(0);
	}
	NEED(pid > 0 && waitpid(pid, NULL, 0) == pid);
	return pid;
}

static void *end_process(void *file)
{
	char done;

	_exit(read(*(int *)file, &done, 1) != 0);
}

/*
 * Until its last thread has ended a process runs, though main() has left and /proc calls it a
 * zombie.
 */
static void test_threads(void)
{
	static int up[2]; /* main()'s stack goes */
	struct ep_ident self, other;
	char path[64], text[1024];
	siginfo_t info;
	pthread_t thread;
	pid_t pid;

	NEED_OK(ep_ident_make(&self, 0));
	other = self;
	NEED(pipe(up) == 0);
	pid = fork();
	if (pid == 0) {
		close(up[1]);
		NEED(!pthread_create(&thread, NULL, end_process, up));
		pthread_exit(NULL);
	}
	NEED(pid > 0);
	other.pid = pid;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	do {
		NEED(ep_file_read(path, text, sizeof(text)) > 0);
	} while (!strstr(text, ") Z "));
	NEED(ep_process_read(pid, text, &other.start_time));
	CHECK(!ep_ident_gone(&self, &other));
	close(up[0]);
	close(up[1]);
	NEED(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0);
	CHECK_INT(info.si_status, 0);
	CHECK(ep_ident_gone(&self, &other)); /* a zombie with no other thread */
	NEED(waitpid(pid, NULL, 0) == pid);
	CHECK(ep_ident_gone(&self, &other));
}

/* Who can open nothing does not know whether the other has ended, nor who he is himself. */
static void without_files(const struct ep_ident *self, const struct ep_ident *ended)
{
	struct ep_ident own;
	int files;

	CHECK(!ep_no_files());
	files = self_files(0);
	CHECK(!ep_ident_gone(self, ended));
	CHECK_REASON(ep_ident_make(&own, 0), ncclSystemError, "(ulimit -n)");
	CHECK_HAS(ep_no_files(), "(ulimit -n)");
	self_files(files);
}

/*
 * A process that cannot read its own state in /proc: its peers cannot find out either whether it
 * has ended.
 */
static void without_stat(void)
{
	struct ep_ident own;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)getpid());
	if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount("/dev/null", path, NULL, MS_BIND, NULL) != 0) {
		puts("no mounts here: a process without /proc was not tried");
		return;
	}
	NEED_OK(ep_ident_make(&own, 0));
	CHECK_INT(own.pid_ns, 0);
}

static void test_unknown(void)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		without_stat();
		fflush(stdout);
		_exit(check_end());
	}
	NEED(pid > 0 && waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A child of fork(), and its child, are processes of their own; the parent stays what it was. */
static void test_self(int generations)
{
	int status, pid;

	CHECK_INT(ep_process_self(), getpid());
	if (generations == 0) {
		return;
	}
	pid = fork();
	if (pid == 0) {
		test_self(generations - 1);
		fflush(stdout);
		_exit(check_end());
	}
	NEED(pid > 0 && waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK_INT(ep_process_self(), getpid());
}

static void test_gone(void)
{
	struct ep_ident self, other;

	NEED_OK(ep_ident_make(&self, 0));
	other = self;
	CHECK(!ep_ident_gone(&self, &other));
	other.start_time++; /* the number is another process's by now */
	CHECK(ep_ident_gone(&self, &other));
	other = self;
	other.pid = ended_pid();
	CHECK(ep_ident_gone(&self, &other));
	without_files(&self, &other);
	CHECK(ep_ident_gone(&self, &other));
	/* where a number says nothing: another host, another namespace, no /proc */
	other.host++;
	CHECK(!ep_ident_gone(&self, &other));
	other.host--;
	other.pid_ns++;
	CHECK(!ep_ident_gone(&self, &other));
	other.pid_ns = self.pid_ns = 0;
	CHECK(!ep_ident_gone(&self, &other));
}

static void test_ranks(void)
{
	struct ep_ranks set = { { 0 } };

	for (uint32_t r = 0; r < EP_GROUP_MAX_RANKS; r += 1 + r % 7) {
		CHECK(!ep_ranks_has(&set, r));
		ep_ranks_add(&set, r);
		for (uint32_t i = 0, next = 0; i < EP_GROUP_MAX_RANKS; i++) {
			bool in = i == next && i <= r;

			next = i == next ? next + 1 + next % 7 : next;
			CHECK((ep_ranks_has(&set, i) != 0) == in);
		}
	}
}

static int main_ident(int argc, char **argv)
{
	test_self(2);
	test_gone();
	test_threads();
	test_unknown();
	test_ranks();
	return check_end();
}

/* ---- the set of live objects against a plain list, added to and removed from in any order ---- */

#define OBJECTS 3000
#define STEPS 60000

/* The same addresses again and again would meet in few places of the table, or in none. */
static unsigned char memory[OBJECTS << 8], place[OBJECTS];
static enum ep_registry_kind is[OBJECTS];

static const void *object(uint32_t k)
{
	return memory + ((size_t)k << 8) + place[k];
}

/* A thread that looks when it is told to. */
static struct {
	pthread_barrier_t turn;
	const void *object; /* NULL: it ends */
	enum ep_registry_kind kind;
	bool has;
} other;

static void *other_main(void *arg)
{
	while (pthread_barrier_wait(&other.turn), other.object) {
		other.has = ep_registry_has(other.object, other.kind);
		pthread_barrier_wait(&other.turn);
	}
	return arg;
}

static bool other_has(const void *looked, enum ep_registry_kind kind)
{
	other.object = looked;
	other.kind = kind;
	pthread_barrier_wait(&other.turn);
	pthread_barrier_wait(&other.turn);
	return other.has;
}

/* What a thread has found, or not, ends with a change by another one. */
static void test_other_thread(void)
{
	pthread_t thread;

	pthread_barrier_init(&other.turn, NULL, 2);
	NEED(pthread_create(&thread, NULL, other_main, NULL) == 0);
	CHECK(!other_has(object(1), EP_REGISTRY_GROUP));
	NEED(ep_registry_add(object(1), EP_REGISTRY_MAKING));
	CHECK(!other_has(object(1), EP_REGISTRY_GROUP));
	ep_registry_made(object(1), EP_REGISTRY_GROUP);
	CHECK(other_has(object(1), EP_REGISTRY_GROUP) && other_has(object(1), EP_REGISTRY_GROUP));
	CHECK(ep_registry_remove(object(1), EP_REGISTRY_GROUP));
	CHECK(!other_has(object(1), EP_REGISTRY_GROUP));
	NEED(ep_registry_add(object(1), EP_REGISTRY_GROUP));
	CHECK(other_has(object(1), EP_REGISTRY_GROUP));
	CHECK(ep_registry_remove(object(1), EP_REGISTRY_GROUP));
	other.object = NULL;
	pthread_barrier_wait(&other.turn);
	pthread_join(thread, NULL);
	pthread_barrier_destroy(&other.turn);
}

static int main_registry(int argc, char **argv)
{
	uint64_t state = 1;

	CHECK(!ep_registry_has(object(0), EP_REGISTRY_GROUP) &&
	      !ep_registry_remove(object(0), EP_REGISTRY_GROUP));
	for (uint32_t i = 0; i < STEPS; i++) {
		/* few at first, then many, and few again */
		uint32_t among = i < STEPS / 3 || i > STEPS / 3 * 2 ? 30 : OBJECTS;
		uint32_t k = (uint32_t)world_draw(&state, among);
		enum ep_registry_kind kind = (enum ep_registry_kind)(2 + world_draw(&state, 3));

		CHECK(ep_registry_has(object(k), kind) == (is[k] == kind));
		if (is[k] == EP_REGISTRY_NONE) {
			NEED(ep_registry_add(object(k), kind));
			is[k] = kind;
		} else {
			CHECK(ep_registry_remove(object(k), kind) == (is[k] == kind));
			if (is[k] == kind) {
				is[k] = EP_REGISTRY_NONE;
				place[k] = (unsigned char)world_draw(&state, 256);
			}
		}
	}
	for (uint32_t k = 0; k < OBJECTS; k++) {
		for (int kind = 2; kind <= 4; kind++) {
			CHECK(ep_registry_has(object(k), (enum ep_registry_kind)kind) ==
			      ((int)is[k] == kind));
		}
		CHECK(ep_registry_remove(object(k), is[k]) == (is[k] != EP_REGISTRY_NONE));
		CHECK(!ep_registry_has(object(k), is[k] ? is[k] : EP_REGISTRY_GROUP));
	}
	NEED(ep_registry_add(object(0), EP_REGISTRY_MAKING));
	CHECK(!ep_registry_has(object(0), EP_REGISTRY_GROUP));
	ep_registry_made(object(0), EP_REGISTRY_GROUP);
	CHECK(ep_registry_has(object(0), EP_REGISTRY_GROUP) &&
	      ep_registry_remove(object(0), EP_REGISTRY_GROUP));
	test_other_thread();
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "ident", main_ident },
		{ "registry", main_registry },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
