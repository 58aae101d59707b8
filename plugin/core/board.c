/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a board, its owner, and what a reader may believe of it. */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "core/board.h"
#include "core/process.h"
#include "core/util.h"

#define EP_BOARD_PAGE 4096

static uint64_t board_waits_off(void)
{
	return ep_round_up(sizeof(struct ep_board), 64);
}

static uint64_t board_ranks_off(int nranks)
{
	return ep_round_up(board_waits_off() + 8 * (uint64_t)nranks, 64);
}

size_t ep_board_bytes(int nranks)
{
	uint64_t ranks = (uint64_t)nranks * sizeof(struct ep_board_rank);

	return (size_t)ep_round_up(board_ranks_off(nranks) + ranks, EP_BOARD_PAGE);
}

uint64_t ep_board_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct ep_board *ep_board_make(int nranks, struct ep_shared_file *file)
{
	size_t bytes = ep_board_bytes(nranks);
	int error = ep_shared_file_make(file, EP_BOARD_NAME, bytes);
	int kind = error ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
	struct ep_board *b;
	char state;

	b = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind, error ? -1 : file->fd, 0);
	if (b == MAP_FAILED) {
		error = errno;
		ep_shared_file_remove(file);
		errno = error;
		return NULL;
	}
	b->bytes = (uint32_t)bytes;
	b->pid = (int32_t)getpid();
	b->parent = (int32_t)getppid();
	if (!ep_process_read(b->pid, &state, &b->started)) {
		b->started = 0;
	}
	b->pid_space = ep_process_namespace();
	b->made_ns = ep_board_now();
	b->nranks = nranks;
	b->waits_off = board_waits_off();
	b->ranks_off = board_ranks_off(nranks);
	b->version = EP_BOARD_VERSION;
	errno = error;
	return b;
}

void ep_board_show(struct ep_board *board)
{
	__atomic_store_n(&board->magic, EP_BOARD_MAGIC, __ATOMIC_RELEASE);
}

void ep_board_begin_exchange(struct ep_board *board, const char *what)
{
	struct ep_board_exchange *x;

	if (board) {
		x = &board->exchange;
		snprintf(x->what, sizeof(x->what), "%s", what);
		x->since_ns = ep_board_now();
		__atomic_store_n(&x->begun, x->begun + 1, __ATOMIC_RELEASE);
	}
}

void ep_board_end_exchange(struct ep_board *board)
{
	if (board) {
		board->exchange.since_ns = ep_board_now();
		__atomic_store_n(&board->exchange.ended, board->exchange.begun, __ATOMIC_RELEASE);
	}
}

bool ep_board_sound(const void *data, size_t bytes)
{
	const struct ep_board *b = data;

	return bytes >= sizeof(*b) && b->magic == EP_BOARD_MAGIC &&
	       b->version == EP_BOARD_VERSION && b->nranks >= 1 &&
	       b->nranks <= (int32_t)EP_BOARD_RANKS && b->rank >= 0 && b->rank < b->nranks &&
	       b->bytes == bytes && ep_board_bytes(b->nranks) == bytes &&
	       b->waits_off == board_waits_off() && b->ranks_off == board_ranks_off(b->nranks);
}

enum ep_board_life ep_board_life(const struct ep_board *board, bool held)
{
	uint64_t started;
	char state;

	if (!held) {
		return EP_BOARD_DEAD;
	}
	if (board->pid_space != ep_process_namespace() || !board->started) {
		return EP_BOARD_FOREIGN;
	}
	/* (a child that the process forked may hold the lock still) */
	if (!ep_process_read(board->pid, &state, &started)) {
		return errno == ENOENT || errno == ESRCH ? EP_BOARD_DEAD : EP_BOARD_FOREIGN;
	}
	if (started != board->started || state == 'Z' || state == 'X') {
		return EP_BOARD_DEAD;
	}
	return state == 'T' || state == 't' ? EP_BOARD_STOPPED : EP_BOARD_LIVES;
}

const char *ep_board_call_name(uint32_t kind)
{
	static const char *const names[EP_BOARD_KINDS] = {
		[EP_BOARD_NONE] = "none",
		[EP_BOARD_INIT_HANDLE] = "ncclEpInitHandle",
		[EP_BOARD_CREATE_HANDLE] = "ncclEpCreateHandle",
		[EP_BOARD_UPDATE_HANDLE] = "ncclEpUpdateHandle",
		[EP_BOARD_DESTROY_HANDLE] = "ncclEpHandleDestroy",
		[EP_BOARD_DISPATCH] = "ncclEpDispatch",
		[EP_BOARD_COMBINE] = "ncclEpCombine",
		[EP_BOARD_COMPLETE] = "ncclEpComplete",
		[EP_BOARD_MASK_QUERY] = "ncclEpMaskQuery",
		[EP_BOARD_MASK_UPDATE] = "ncclEpMaskUpdate",
		[EP_BOARD_MASK_CLEAN] = "ncclEpMaskClean",
		[EP_BOARD_DESTROY_GROUP] = "ncclEpGroupDestroy",
		[EP_BOARD_REPLACE_RANKS] = "ncclEpExtReplaceRanks",
	};

	return kind < EP_BOARD_KINDS ? names[kind] : "unknown";
}
