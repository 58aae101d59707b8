/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board of a group: whose it is, what becomes of it when its process stops and dies, which
 * files are none; and the words of waits there.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/board.h"
#include "core/process.h"
#include "device/group/wait_word.h"
#include "support/check.h"
#include "core/shared_file.h"

#define RANKS 5

static void free_board(struct ep_board *b, struct ep_shared_file *file)
{
	ep_shared_file_remove(file);
	munmap(b, b->bytes);
}

static void test_whose(void)
{
	struct ep_shared_file file, other;
	struct ep_board *b = ep_board_make(RANKS, &file), *second = ep_board_make(1, &other);
	struct stat st;

	NEED(b && second);
	CHECK(strncmp(file.path, "/dev/shm/nccl-ep-live.", 22) == 0, "%s", file.path);
	CHECK(strcmp(file.path, other.path) != 0);
	NEED(stat(file.path, &st) == 0);
	CHECK_INT(st.st_size, ep_board_bytes(RANKS));
	CHECK_INT(b->pid, getpid());
	CHECK_INT(b->parent, getppid());
	CHECK_INT(ep_board_life(b, true), EP_BOARD_LIVES);
	CHECK(!ep_board_sound(b, b->bytes), "it has not been shown yet");
	ep_board_show(b);
	CHECK(ep_board_sound(b, b->bytes));
	ep_shared_file_sweep(EP_BOARD_NAME);
	CHECK_INT(access(file.path, F_OK), 0);
	free_board(b, &file);
	CHECK(access(file.path, F_OK) != 0);
	free_board(second, &other);
}

/*
 * A child that makes a board, and waits to be killed. A child of its own holds the file's lock
 * until this test ends.
 */
static pid_t make_child(char path[EP_SHARED_PATH])
{
	int ends[2], hold[2];
	pid_t pid;

	NEED(pipe(ends) == 0 && pipe(hold) == 0);
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		struct ep_shared_file file;
		struct ep_board *b = ep_board_make(RANKS, &file);

		close(hold[1]);
		if (!b) {
			_exit(1);
		}
		ep_board_show(b);
		if (fork() == 0) {
			(void)!read(hold[0], path, 1);
			_exit(0);
		}
		if (write(ends[1], file.path, EP_SHARED_PATH) != EP_SHARED_PATH) {
			_exit(1);
		}
		for (;;) {
			pause();
		}
	}
	close(ends[1]);
	NEED(read(ends[0], path, EP_SHARED_PATH) == EP_SHARED_PATH);
	close(ends[0]);
	return pid;
}

/* The file as others see it, read once: when the process is dead, anybody may remove it. */
static struct ep_board *read_board(const char *path, bool *held)
{
	static struct ep_board head;
	int fd = open(path, O_RDONLY);

	NEED(fd >= 0 && read(fd, &head, sizeof(head)) == (ssize_t)sizeof(head));
	*held = ep_shared_file_held(fd);
	close(fd);
	return &head;
}

static void test_life(void)
{
	char path[EP_SHARED_PATH];
	pid_t child = make_child(path);
	bool held;
	struct ep_board *b = read_board(path, &held);
	int status;

	CHECK(held);
	CHECK_INT(ep_board_life(b, held), EP_BOARD_LIVES);
	NEED(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child);
	CHECK_INT(ep_board_life(b, held), EP_BOARD_STOPPED);
	NEED(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	/* Its child holds the lock still, and the number shows that the process has ended. */
	b = read_board(path, &held);
	CHECK(held);
	CHECK_INT(ep_board_life(b, true), EP_BOARD_DEAD);
	CHECK_INT(ep_board_life(b, false), EP_BOARD_DEAD);
	b->pid = (int32_t)getpid();
	b->started++; /* (the two may have begun in one tick) */
	CHECK_INT(ep_board_life(b, true),
		  EP_BOARD_DEAD); /* another process has the number by now */
	b->pid_space ^= 1;
	CHECK_INT(ep_board_life(b, true), EP_BOARD_FOREIGN);
	CHECK_INT(ep_board_life(b, false), EP_BOARD_DEAD);
	(void)unlink(path);
}

static void test_sound(void)
{
	struct ep_shared_file file;
	struct ep_board *b = ep_board_make(RANKS, &file), copy;
	size_t bytes;

	NEED(b);
	ep_board_show(b);
	bytes = b->bytes;
	copy = *b;
	CHECK(!ep_board_sound(b, bytes - 1));
	CHECK(!ep_board_sound(b, sizeof(copy) - 1));
	b->version++;
	CHECK(!ep_board_sound(b, bytes));
	*b = copy;
	b->nranks = 1 << 30;
	CHECK(!ep_board_sound(b, bytes));
	*b = copy;
	b->nranks = -1;
	CHECK(!ep_board_sound(b, bytes));
	*b = copy;
	b->rank = RANKS;
	CHECK(!ep_board_sound(b, bytes));
	*b = copy;
	b->waits_off = 1u << 30;
	CHECK(!ep_board_sound(b, bytes));
	*b = copy;
	b->ranks_off += 8;
	CHECK(!ep_board_sound(b, bytes));
	*b = copy;
	CHECK(ep_board_sound(b, bytes));
	free_board(b, &file);
}

static void test_words(void)
{
	uint64_t word = ep_wait_word(0xfffffffe, EP_RECORD_UPDATE, EP_WAIT_BULK, 12345678901u);

	CHECK_INT(ep_wait_word_step(word), 0xfffffffe);
	CHECK_INT(ep_wait_word_operation(word), EP_RECORD_UPDATE);
	CHECK_INT(ep_wait_word_site(word), EP_WAIT_BULK);
	CHECK(12345678901u - ep_wait_word_age_ns(word) < EP_WAIT_SHOW_UNIT_NS);
	CHECK(word != ep_wait_word(0xfffffffe, EP_RECORD_UPDATE, EP_WAIT_BULK,
				   12345678901u + EP_WAIT_SHOW_UNIT_NS));
	CHECK_TEXT(ep_wait_operation(ep_wait_word_operation(word), EP_WAIT_BULK), "UpdateHandle");
	CHECK_TEXT(ep_wait_operation(1, EP_WAIT_CLEAN), "MaskClean");
	CHECK_TEXT(ep_wait_name(EP_WAIT_SITES), "something unknown");
	for (uint32_t site = 0; site < EP_WAIT_SITES; site++) {
		CHECK(ep_wait_name(site) && *ep_wait_name(site), "site %u", site);
	}
	for (uint32_t kind = 0; kind <= EP_BOARD_KINDS; kind++) {
		CHECK(ep_board_call_name(kind) && *ep_board_call_name(kind), "kind %u", kind);
	}
}

static int main_board(int argc, char **argv)
{
	test_whose();
	test_life();
	test_sound();
	test_words();
	return check_end();
}

/*
 * Files in /dev/shm that live as long as their processes: names, memory, locks, and which of them
 * are removed. Parts that need a mount, another user or a PID namespace say so where the system
 * refuses them.
 */

#define BYTES 20000
#define NOBODY 65534

static char prefix[32]; /* of this test alone */

/* In a child: makes a file, writes its path, and waits to be killed. */
static void show_and_wait(int to)
{
	struct ep_shared_file file;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (ep_shared_file_make(&file, prefix, BYTES) != 0 ||
	    write(to, file.path, sizeof(file.path)) != (ssize_t)sizeof(file.path)) {
		_exit(1);
	}
	for (;;) {
		pause();
	}
}

/*
 * Starts a child that holds a file, or whose child does, as process 1 of a PID namespace. *path is
 * "": neither can.
 */
static pid_t shared_file_make_child(bool other_namespace, char path[EP_SHARED_PATH])
{
	int ends[2];
	pid_t pid;

	NEED(pipe(ends) == 0);
	pid = fork();
	NEED(pid >= 0);
	if (!pid && !other_namespace) {
		show_and_wait(ends[1]);
	}
	if (!pid) {
		if (unshare(CLONE_NEWPID) != 0) {
			_exit(0);
		}
		pid = fork();
		if (!pid) {
			show_and_wait(ends[1]);
		}
		close(ends[1]);
		waitpid(pid, NULL, 0);
		_exit(0);
	}
	close(ends[1]);
	if (read(ends[0], path, EP_SHARED_PATH) != EP_SHARED_PATH) {
		path[0] = '\0';
	}
	close(ends[0]);
	return pid;
}

static void end_child(pid_t pid)
{
	NEED(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

struct seen {
	int all, ours, held;
};

static void look(void *arg, const char *path, int fd, const struct stat *st)
{
	struct seen *seen = arg;

	seen->all++;
	seen->ours += fd >= 0;
	seen->held += fd >= 0 && ep_shared_file_held(fd);
	CHECK(fd < 0 || st->st_size == 0 || st->st_size == BYTES, "%s", path);
}

static struct seen see(void)
{
	struct seen seen = { 0, 0, 0 };

	ep_shared_file_each(prefix, look, &seen);
	return seen;
}

static void test_own(void)
{
	struct ep_shared_file one, two;
	struct stat st;
	char head[64];

	CHECK_INT(ep_shared_file_make(&one, prefix, BYTES), 0);
	CHECK_INT(ep_shared_file_make(&two, prefix, BYTES), 0);
	snprintf(head, sizeof(head), EP_SHARED_DIR "/%s%d.", prefix, (int)getpid());
	CHECK(strncmp(one.path, head, strlen(head)) == 0, "%s", one.path);
	CHECK_INT(strlen(one.path), strlen(head) + 16);
	CHECK(strcmp(one.path, two.path) != 0);
	NEED(stat(one.path, &st) == 0);
	CHECK_INT(st.st_mode & 07777, 0600);
	CHECK_INT(st.st_size, BYTES);
	CHECK(st.st_blocks * 512 >= st.st_size, "a full /dev/shm would be a bus error");
	CHECK_INT(ep_shared_file_grow(&two, 10 * BYTES), 0);
	NEED(stat(two.path, &st) == 0);
	CHECK(st.st_size == 10 * BYTES && st.st_blocks * 512 >= st.st_size);
	ep_shared_file_remove(&two);
	ep_shared_file_sweep(prefix);
	CHECK_INT(see().held, 1);
	ep_shared_file_remove(&one);
	ep_shared_file_remove(&one); /* there is none any more */
	CHECK_INT(see().all, 0);
}

/* Names that only look alike are of somebody else. */
static void test_names(void)
{
	static const char *const tails[] = { "",
					     "7",
					     "7.",
					     "7.0",
					     ".0123456789abcdef",
					     "x.0123456789abcdef",
					     "7.0123456789abcdeg",
					     "7.0123456789abcdef0",
					     "7.0123456789ABCDEF" };
	char path[EP_SHARED_PATH];

	for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
		snprintf(path, sizeof(path), EP_SHARED_DIR "/%s%s", prefix, tails[i]);
		NEED(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0);
		CHECK_INT(see().all, 0);
		ep_shared_file_sweep(prefix);
		CHECK(unlink(path) == 0, "%s was removed", path);
	}
}

/* The lock ends with its process. One that stands still is alive. */
static void test_death(void)
{
	char path[EP_SHARED_PATH];
	pid_t child = shared_file_make_child(false, path);
	int fd;

	NEED(path[0] && see().held == 1);
	NEED(kill(child, SIGSTOP) == 0);
	ep_shared_file_sweep(prefix);
	CHECK_INT(see().held, 1);
	end_child(child);
	CHECK(see().all == 1 && see().held == 0);
	/* beside one who looks, and has a lock that is shared, too */
	fd = open(path, O_RDONLY);
	NEED(fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0);
	ep_shared_file_sweep(prefix);
	CHECK_INT(see().all, 0);
	close(fd);
}

/*
 * Starts a child that makes a file and waits then. It stands at the so manieth begin or end of a
 * system call that it makes; -1: it waits already, or cannot be traced.
 */
static pid_t make_up_to(int stops, bool *traced)
{
	struct ep_shared_file file;
	int status;
	pid_t child = fork();

	NEED(child >= 0);
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
			_exit(77);
		}
		raise(SIGSTOP);
		_exit(ep_shared_file_make(&file, prefix, BYTES) ? 1 : raise(SIGSTOP));
	}
	for (int i = 0; i <= stops; i++) {
		NEED(waitpid(child, &status, 0) == child);
		*traced = !WIFEXITED(status) || WEXITSTATUS(status) != 77;
		if (!*traced) {
			return -1;
		}
		NEED(WIFSTOPPED(status));
		if (i && WSTOPSIG(status) == SIGSTOP) {
			end_child(child);
			return -1;
		}
		if (i < stops) {
			NEED(ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0);
		}
	}
	return child;
}

/* Lets it go on. It has made its file when it stands again. */
static void make_the_rest(pid_t child)
{
	int status;

	NEED(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
	NEED(waitpid(child, &status, 0) == child);
	CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "status 0x%x", status);
}

/*
 * Whatever others do while a process makes a file, it has one then; and nothing stays when it is
 * killed on the way.
 */
static void test_on_the_way(void)
{
	int stops = 0, fd;
	bool traced = true;
	glob_t found;
	char any[64];
	pid_t child;

	snprintf(any, sizeof(any), EP_SHARED_DIR "/%s*", prefix);
	for (; (child = make_up_to(stops, &traced)) > 0; stops++) {
		ep_shared_file_sweep(prefix);
		make_the_rest(child);
		CHECK(see().held == 1 && see().all == 1, "stop %d", stops);
		ep_shared_file_sweep(prefix);
		CHECK(see().held == 1, "stop %d", stops);
		end_child(child);
		ep_shared_file_sweep(prefix);

		child = make_up_to(stops, &traced);
		NEED(child > 0);
		end_child(child);
		ep_shared_file_sweep(prefix);
		CHECK(see().all == 0, "stop %d", stops);

		/* (one who looks has the lock for a moment) */
		child = make_up_to(stops, &traced);
		NEED(child > 0);
		fd = glob(any, 0, NULL, &found) == 0 ? open(found.gl_pathv[0], O_RDONLY) : -1;
		globfree(&found);
		NEED(fd < 0 || flock(fd, LOCK_SH | LOCK_NB) == 0 || errno == EWOULDBLOCK);
		make_the_rest(child);
		CHECK(see().held == 1 && see().all == 1, "stop %d", stops);
		close(fd);
		end_child(child);
		ep_shared_file_sweep(prefix);
	}
	if (!traced) {
		puts("no tracing here: what others do while a file is made was not tried");
		return;
	}
	CHECK(stops > 10, "%d stops", stops);
	ep_shared_file_sweep(prefix);
	CHECK_INT(see().all, 0);
}

/*
 * Two processes of the same number share /dev/shm. Neither takes the other's file away, and this
 * one sees who lives.
 */
static void test_namespaces(void)
{
	char path[2][EP_SHARED_PATH];
	pid_t child[2];

	for (int i = 0; i < 2; i++) {
		child[i] = shared_file_make_child(true, path[i]);
		if (!path[i][0]) {
			puts("no PID namespaces here: not tried");
			NEED(waitpid(child[i], NULL, 0) == child[i]);
			return;
		}
	}
	CHECK(strcmp(path[0], path[1]) != 0 &&
		      strncmp(path[0], path[1], strlen(EP_SHARED_DIR) + strlen(prefix) + 3) == 0,
	      "%s and %s", path[0], path[1]);
	CHECK_INT(see().held, 2);
	end_child(child[0]);
	while (see().held == 2) { /* (it ends a moment after its parent) */
		usleep(100);
	}
	ep_shared_file_sweep(prefix);
	CHECK(see().all == 1 && see().held == 1);
	CHECK_INT(access(path[1], F_OK), 0);
	end_child(child[1]);
	while (see().held) {
		usleep(100);
	}
	ep_shared_file_sweep(prefix);
	CHECK_INT(see().all, 0);
}

static int in_child(void (*test)(void))
{
	int status;
	pid_t pid = fork();

	NEED(pid >= 0);
	if (!pid) {
		test();
		fflush(stdout);
		_exit(check_end());
	}
	NEED(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* Makes and grows files until /dev/shm is full. */
static void fill(void)
{
	struct ep_shared_file file[8];
	int made = 0, error = 0;

	if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount("test", EP_SHARED_DIR, "tmpfs", 0, "size=65536") != 0) {
		puts("no mounts here: a full /dev/shm was not tried");
		return;
	}
	while (made < 8 && !(error = ep_shared_file_make(&file[made], prefix, BYTES))) {
		made++;
	}
	CHECK_INT(error, ENOSPC);
	CHECK_INT(made, 3);
	CHECK_TEXT(file[made].path, "");
	CHECK_INT(see().all, made);
	CHECK_INT(ep_shared_file_grow(&file[0], 1 << 20), ENOSPC);
	CHECK_INT(see().held, made);
}

/* Another user reads none of these files, and removes none. */
static void other_user(void)
{
	if (geteuid() != 0 || setuid(NOBODY) != 0) {
		puts("not root: another user was not tried");
		return;
	}
	CHECK(see().all == 1 && see().ours == 0);
	ep_shared_file_sweep(prefix);
	CHECK_INT(see().all, 1);
}

static void test_users(void)
{
	char path[EP_SHARED_PATH];
	pid_t child = shared_file_make_child(false, path);

	NEED(path[0] && chmod(path, 0644) == 0);
	CHECK_INT(in_child(other_user), 0);
	end_child(child);
	/* Root reads all files, but removes its own alone. */
	if (geteuid() == 0 && chown(path, NOBODY, NOBODY) == 0) {
		CHECK_INT(see().ours, 1);
		ep_shared_file_sweep(prefix);
		CHECK_INT(see().all, 1);
		NEED(chown(path, 0, 0) == 0);
	}
	ep_shared_file_sweep(prefix);
	CHECK_INT(see().all, 0);
}

/* A child of fork() takes nothing away. */
static struct ep_shared_file parents;

static void remove_parents(void)
{
	ep_shared_file_remove(&parents);
}

static void test_fork(void)
{
	CHECK_INT(ep_shared_file_make(&parents, prefix, BYTES), 0);
	CHECK_INT(in_child(remove_parents), 0);
	CHECK(see().all == 1 && see().held == 1);
	ep_shared_file_remove(&parents);
	CHECK_INT(see().all, 0);
}

/* A process that may not have long files gets an error, not a signal. */
static void test_limit(void)
{
	struct rlimit before, limit;

	NEED(getrlimit(RLIMIT_FSIZE, &before) == 0);
	limit = before;
	limit.rlim_cur = BYTES;
	NEED(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	CHECK_INT(ep_shared_file_make(&parents, prefix, BYTES + 1), EFBIG);
	CHECK_INT(ep_shared_file_make(&parents, prefix, BYTES), 0);
	CHECK_INT(ep_shared_file_grow(&parents, BYTES + 1), EFBIG);
	NEED(setrlimit(RLIMIT_FSIZE, &before) == 0);
	ep_shared_file_remove(&parents);
	CHECK_INT(see().all, 0);
}

static int main_shared_file(int argc, char **argv)
{
	/* A process of this number may have left files, also another user's. */
	snprintf(prefix, sizeof(prefix), "nccl-ep-test-%08x.", (unsigned int)ep_random_u64());
	test_own();
	test_names();
	test_death();
	test_on_the_way();
	test_namespaces();
	test_users();
	test_fork();
	test_limit();
	CHECK_INT(in_child(fill), 0);
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "board", main_board },
		{ "shared_file", main_shared_file },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
