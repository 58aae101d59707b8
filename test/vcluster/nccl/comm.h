/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL stand-in. The ranks of a communicator share a file that the unique id names: who is
 * there, a barrier counter for each rank, and a slot of data for each rank. Every wait is bounded.
 */
#ifndef VC_COMM_H
#define VC_COMM_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VC_NCCL_RANKS_MAX 256
#define VC_NCCL_SLOT ((size_t)256 * 1024)

struct vc_member {
	_Atomic uint32_t joined;
	int32_t pid, node, device;
	_Atomic uint32_t left; /* destroyed or aborted its communicator */
	_Atomic uint64_t arrived;
	_Atomic uint32_t connects; /* in its first collective */
	/* What the rank is about to do, compared by all: a mismatch is a bug of the program. */
	uint64_t call;
};

struct vc_shared {
	_Atomic uint32_t nranks;
	_Atomic uint32_t bell; /* futex: rings when the last rank has come, or one goes */
	_Atomic uint32_t joined;
	_Atomic uint64_t arrivals; /* at all barriers so far */
	struct vc_member member[VC_NCCL_RANKS_MAX];
};

struct ncclComm {
	uint64_t magic;
	int rank, nranks, device;
	struct vc_shared *shared;
	uint8_t *slots;
	size_t map_size;
	uint64_t barriers;
	pthread_mutex_t mutex; /* one operation at a time */
	_Atomic int error;
	char cause[512]; /* of `error`, in words; written before it */
	_Atomic int aborted;
	bool connected;
	bool nonblocking;        /* ncclConfig_t.blocking is 0: a thread of NCCL's own connects */
	_Atomic int callers;     /* that wait on the host in a collective */
	_Atomic int in_progress; /* that thread has not ended */
	bool threaded;           /* nobody has joined it yet */
	pthread_t thread;
	struct vc_job **group; /* calls of it wait at the end of this list; NULL: none do */
	int refs;
	_Atomic(struct ncclWindow_vidmem *) spare; /* the window that was freed last */
	struct ncclComm *next;
};

#define VC_COMM_MAGIC 0x76636e63636c0001ull

/* Records and logs; returns `result`. */
ncclResult_t vc_nccl_error(struct ncclComm *comm, ncclResult_t result, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
ncclResult_t vc_comm_check(const struct ncclComm *comm);
long vc_nccl_version(void);
/* Unmaps the windows that the communicator still has. */
void vc_windows_end(struct ncclComm *comm);
/* All ranks meet; `call` must be the same everywhere. */
ncclResult_t vc_comm_barrier(struct ncclComm *comm, uint64_t call);
/* Everybody's `size` bytes (at most a slot), in rank order, to all. */
ncclResult_t vc_comm_gather(struct ncclComm *comm, uint64_t call, const void *mine, void *all,
			    size_t size);

/*
 * A call of a communicator that does not block goes on in a thread, which owns `arg`. False: no
 * thread.
 */
bool vc_comm_leave(struct ncclComm *comm, void *(*fn)(void *arg), void *arg);
/* That thread's call has ended. */
void vc_comm_left(struct ncclComm *comm, ncclResult_t result);

/*
 * Groups: a call between ncclGroupStart and ncclGroupEnd only leaves a job. At the group's end
 * calls that block run at the same time, and then collectives one after another. While a collective
 * of a communicator waits there, those that other threads call wait with it, as with NCCL.
 */

struct vc_job {
	ncclResult_t (*run)(struct vc_job *job);
	struct ncclComm *collective; /* whose it is, and where; NULL: a call that blocks */
	cudaStream_t stream;
	int device;
	ncclResult_t result;
	pthread_t thread;
	struct vc_job *next;
};

/* Runs the job, or leaves it for the end of the group. */
ncclResult_t vc_job_submit(struct vc_job *job);

/* ---- windows ---- */

struct ncclWindow_vidmem {
	struct ncclWindow_vidmem *next;
	struct ncclComm *comm;
	void *user;
	void *multicast; /* NULL: nobody has asked for it */
	size_t size;
	size_t offset; /* of the window in its memory: NCCL takes it to be the same everywhere */
	struct vc_view {
		void *map;  /* the memory; NULL: not in the LSA team */
		bool owned; /* the mapping is the window's */
	} view[];           /* by rank */
};

/* VC_NVLS_CLAIMED and VC_NVLS: whether NCCL says that it has multicast. */
bool vc_nvls_claimed(const struct ncclComm *comm);
/* The window is in use by the caller, who has found it on the list. */
ncclResult_t vc_window_multicast(struct ncclWindow_vidmem *win, size_t offset, void **out);

#endif
