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
#include "device/group/wait_word.h"
#include "support/check.h"

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

/* A child that makes a board, and waits to be killed. A child of its own holds the file's lock until this test ends. */
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

int main(void)
{
	test_whose();
	test_life();
	test_sound();
	test_words();
	return check_end();
}
