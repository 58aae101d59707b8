/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board of a group: what it shows of itself while it lives, to programs like ep_info --live. It
 * is a shared file (core/shared_file.h) of the prefix "nccl-ep-live.". The host writes what it
 * calls, kernels write which peers they wait for, and no writer waits for a reader: a reader sees
 * each number as it was at some time, and no two of the same time. The file goes with the group.
 * The next group of the user removes the file of a process that was killed, as does ep_info --live.
 * Plain C, without CUDA and NCCL.
 */
#ifndef EP_CORE_BOARD_H
#define EP_CORE_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/shared_file.h"

#define EP_BOARD_NAME "nccl-ep-live."
#define EP_BOARD_MAGIC 0x6576696c2d7065ull
#define EP_BOARD_VERSION 4u /* any change of what follows */
#define EP_BOARD_CALLS 64u
#define EP_BOARD_RANKS 1024u /* at most */
#define EP_BOARD_WHAT 48

enum ep_board_kind {
	EP_BOARD_NONE,
	EP_BOARD_INIT_HANDLE,
	EP_BOARD_CREATE_HANDLE,
	EP_BOARD_UPDATE_HANDLE,
	EP_BOARD_DESTROY_HANDLE,
	EP_BOARD_DISPATCH,
	EP_BOARD_COMBINE,
	EP_BOARD_COMPLETE,
	EP_BOARD_MASK_QUERY,
	EP_BOARD_MASK_UPDATE,
	EP_BOARD_MASK_CLEAN,
	EP_BOARD_DESTROY_GROUP,
	EP_BOARD_REPLACE_RANKS,
	EP_BOARD_KINDS
};

/* A call of the program. Times are ns since 1970. */
struct ep_board_call {
	uint64_t number; /* from 1 on; 0 while the rest is being written */
	uint64_t begin_ns;
	uint64_t end_ns; /* 0: it has not returned */
	uint64_t handle; /* its address; 0: none */
	uint64_t stream;
	uint32_t kind;   /* enum ep_board_kind */
	int32_t result;  /* ncclResult_t */
	uint32_t tokens; /* of the handle's routing */
	uint32_t pad[3];
};

/*
 * Exchanges with the other ranks (core/bootstrap.h), by which a group is made, and by which its
 * memory grows. All ranks make the same ones, in the same order.
 */
struct ep_board_exchange {
	uint64_t since_ns; /* when the last one began, or ended */
	uint32_t begun, ended;
	char what[EP_BOARD_WHAT]; /* it is for */
};

struct ep_board_rank {
	char host[64];
	char bus_id[24]; /* of its GPU */
	int32_t pid;
	uint32_t node;
};

struct ep_board {
	uint64_t magic; /* written last */
	uint32_t version;
	uint32_t bytes;     /* of the file */
	uint64_t started;   /* the process, as ep_process_read() has it; 0: not known */
	uint64_t pid_space; /* ep_process_namespace() */
	int32_t pid;
	uint32_t unused;
	uint64_t team;    /* the same for all ranks of the group; 0 before the first exchange */
	uint64_t made_ns; /* since 1970 */
	int32_t rank, nranks;
	int32_t device;
	uint32_t masks; /* the group has them */
	uint32_t experts, tokens, row_bytes, remote_ranks;
	uint64_t timeout_ns;
	uint64_t device_bytes;
	char mode[24];
	char library[128];    /* name, version and commit */
	char failure[256];    /* why the group has failed for good; "": it has not */
	uint32_t shows_waits; /* kernels write waits[] */
	uint32_t made;        /* 0: the group is still being made */
	uint64_t calls; /* begun so far; the last ones are call[(number - 1) % EP_BOARD_CALLS] */
	uint64_t waits_off; /* uint64_t [nranks], ep_wait_word() of device/group/wait_word.h */
	uint64_t ranks_off; /* struct ep_board_rank [nranks] */
	/*
	 * When a look of the group's own process last found a wait going on, and `calls` then:
	 * ep/ep.h.
	 */
	uint64_t seen_ns, seen_calls;
	int32_t parent; /* process that started this one, of the same PID namespace */
	uint32_t pad[3];
	struct ep_board_exchange exchange;
	struct ep_board_call call[EP_BOARD_CALLS];
};

/* The layout of a file of EP_BOARD_VERSION. */
_Static_assert(sizeof(struct ep_board_call) == 64, "struct ep_board_call");
_Static_assert(sizeof(struct ep_board_rank) == 96, "struct ep_board_rank");
_Static_assert(offsetof(struct ep_board, mode) == 104, "struct ep_board");
_Static_assert(offsetof(struct ep_board, calls) == 520, "struct ep_board");
_Static_assert(offsetof(struct ep_board, seen_ns) == 544, "struct ep_board");
_Static_assert(offsetof(struct ep_board, exchange) == 576, "struct ep_board");
_Static_assert(offsetof(struct ep_board, call) == 640, "struct ep_board");
_Static_assert(sizeof(struct ep_board) == 640 + 64 * 64, "struct ep_board");

/* Bytes of the board of a group, whole pages. */
size_t ep_board_bytes(int nranks);

/*
 * Makes and maps one, zeroed but for its owner and the places of its parts; without a file if none
 * can be made, and then file->path is "" and errno has the reason. NULL: there is no memory. The
 * caller removes the file (ep_shared_file_remove()) and unmaps the board.
 */
struct ep_board *ep_board_make(int nranks, struct ep_shared_file *file);

/* Its clock: ns since 1970. */
uint64_t ep_board_now(void);

/* From now on others may believe its content. */
void ep_board_show(struct ep_board *board);

/* An exchange begins, and ends. The board may be NULL. */
void ep_board_begin_exchange(struct ep_board *board, const char *what);
void ep_board_end_exchange(struct ep_board *board);

/* Whether a file holds what a board of this version must; whatever its bytes are. */
bool ep_board_sound(const void *data, size_t bytes);

enum ep_board_life {
	EP_BOARD_LIVES,
	EP_BOARD_STOPPED, /* by a signal, or a debugger */
	EP_BOARD_DEAD,
	EP_BOARD_FOREIGN /* it lives in another PID namespace, where its state cannot be read */
};

/* The state of the process that made the board; `held`: ep_shared_file_held() of its file. */
enum ep_board_life ep_board_life(const struct ep_board *board, bool held);

/* The name of a call, "ncclEpDispatch". */
const char *ep_board_call_name(uint32_t kind);

#endif
