/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board of a group: whose it is, what becomes of it when its process stops and dies, which files are none; and the
 * words of waits there.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/board.h"
#include "core/process.h"
#include "device/group/wait_names.h"
#include "support/check.h"

#define RANKS 5

static void free_board(struct ep_board *b, const char *path)
{
	ep_board_hide(b, path);
	munmap(b, b->bytes);
}

static void test_whose(void)
{
	char path[EP_BOARD_PATH], other[EP_BOARD_PATH], want[EP_BOARD_PATH];
	struct ep_board *b = ep_board_make(RANKS, path), *second = ep_board_make(1, other);
	struct stat st;

	NEED(b && second);
	snprintf(want, sizeof(want), "/dev/shm/nccl-ep-live.%d.%u", (int)getpid(), b->number);
	CHECK_TEXT(path, want);
	CHECK(strcmp(path, other) != 0);
	NEED(stat(path, &st) == 0);
	CHECK_INT(st.st_mode & 07777, 0600);
	CHECK_INT(st.st_size, ep_board_bytes(RANKS));
	CHECK(st.st_blocks * 512 >= st.st_size, "a full /dev/shm would be a bus error");
	CHECK_INT(b->pid, getpid());
	CHECK_INT(ep_board_life(b), EP_BOARD_LIVES);
	CHECK(!ep_board_sound(b, b->bytes), "it has not been shown yet");
	ep_board_show(b);
	CHECK(ep_board_sound(b, b->bytes));
	ep_board_sweep();
	CHECK_INT(access(path, F_OK), 0);
	free_board(b, path);
	CHECK(access(path, F_OK) != 0);
	free_board(second, other);
}

/* A child that makes a board, and waits to be killed. */
static pid_t make_child(char path[EP_BOARD_PATH])
{
	int ends[2];
	pid_t pid;

	NEED(pipe(ends) == 0);
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		struct ep_board *b = ep_board_make(RANKS, path);

		if (!b || write(ends[1], path, EP_BOARD_PATH) != EP_BOARD_PATH) {
			_exit(1);
		}
		ep_board_show(b);
		for (;;) {
			pause();
		}
	}
	close(ends[1]);
	NEED(read(ends[0], path, EP_BOARD_PATH) == EP_BOARD_PATH);
	close(ends[0]);
	return pid;
}

/* The file as others see it, read once: when the process is dead, anybody may remove it. */
static struct ep_board *read_board(const char *path)
{
	static struct ep_board head;
	int fd = open(path, O_RDONLY);

	NEED(fd >= 0 && read(fd, &head, sizeof(head)) == (ssize_t)sizeof(head));
	close(fd);
	return &head;
}

static void test_life(void)
{
	char path[EP_BOARD_PATH];
	pid_t child = make_child(path);
	struct ep_board *b = read_board(path);
	int status;

	CHECK_INT(ep_board_life(b), EP_BOARD_LIVES);
	NEED(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child);
	CHECK_INT(ep_board_life(b), EP_BOARD_STOPPED);
	ep_board_sweep();
	CHECK(access(path, F_OK) == 0, "of a process that stands still");
	NEED(kill(child, SIGKILL) == 0);
	while (ep_board_life(b) != EP_BOARD_DEAD) { /* it need not be a zombie yet */
		usleep(1000);
	}
	NEED(waitpid(child, &status, 0) == child);
	CHECK_INT(ep_board_life(b), EP_BOARD_DEAD);
	ep_board_sweep();
	CHECK(access(path, F_OK) != 0, "of a process that is dead");
	b->pid_space ^= 1;
	CHECK_INT(ep_board_life(b), EP_BOARD_FOREIGN);
}

/* A child of fork() has its parent's board, and takes nothing away. */
static void test_fork(void)
{
	char path[EP_BOARD_PATH];
	struct ep_board *b = ep_board_make(RANKS, path);
	int status;
	pid_t pid;

	NEED(b);
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		ep_board_hide(b, path);
		_exit(0);
	}
	NEED(waitpid(pid, &status, 0) == pid);
	CHECK_INT(access(path, F_OK), 0);
	free_board(b, path);
}

/* Of a number that a process has again: what lies there is of an earlier one. */
static void test_number(void)
{
	char path[EP_BOARD_PATH];
	struct ep_board *b = ep_board_make(RANKS, path);

	NEED(b);
	b->started++;
	CHECK_INT(ep_board_life(b), EP_BOARD_DEAD);
	b->started = 0;
	CHECK_INT(ep_board_life(b), EP_BOARD_FOREIGN);
	free_board(b, path);
}

static void test_sound(void)
{
	char path[EP_BOARD_PATH];
	struct ep_board *b = ep_board_make(RANKS, path), copy;
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
	free_board(b, path);
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

int main(void)
{
	test_whose();
	test_life();
	test_fork();
	test_number();
	test_sound();
	test_words();
	return check_end();
}
