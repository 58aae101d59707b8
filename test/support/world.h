/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a test. Under a launcher (RANK, WORLD_SIZE) a process is one rank, else ranks are
 * threads of this process. Either way they share a board: flags and numbers that all see. With
 * WORLD_INTERLEAVED the launcher's ranks are numbered across its nodes: 0, 2, 4 on one, 1, 3, 5 on
 * another. With WORLD_TURN=n thread r has GPU r + n, modulo their number. With WORLD_INTERRUPT_US
 * each process gets a signal every so many microseconds, which interrupts system calls.
 */
#ifndef TEST_SUPPORT_WORLD_H
#define TEST_SUPPORT_WORLD_H

#include "support/check_nccl.h"

#define WORLD_MAX 144
#define WORLD_FLAGS 64

struct world_board;

struct world {
	int rank;
	int nranks;
	int device;
	bool processes; /* ranks are processes */
	ncclComm_t comm;
	cudaStream_t stream;
	struct world_board *board;
	uint32_t met; /* barriers passed */
	uint64_t seed;
};

typedef void (*world_fn)(struct world *w, void *arg);

/*
 * Runs fn on each rank, in a thread of its own that has its device, a communicator and a stream;
 * under a launcher on this process's rank only, and nranks must be the launcher's.
 */
void world_run(int nranks, world_fn fn, void *arg);
bool world_launched(void);
/* Ranks of the launcher, else `otherwise`. */
int world_size(int otherwise);

/* Memory of that name that the launcher's processes share, zero at first: a file of the run. */
void *world_shared(const char *name, size_t bytes);

/* Nodes of the launcher; 1 when ranks are threads. */
int world_nodes(void);
/* Which node each rank is of: by NCCL_EP_NODE_SIZE, else by the launcher. */
void world_nodes_of(uint32_t *node, uint32_t nranks);

/* All ranks arrive; ends the process if one does not within a minute. */
void world_meet(struct world *w);
/* The same without `absent`, who does not come to any meeting from now on. */
void world_meet_others(struct world *w, int absent);
/* Flags 0..WORLD_FLAGS-1 of each rank, zero at first; others may wait until one reaches a value. */
void world_raise(struct world *w, int flag, uint64_t value);
uint64_t world_look(struct world *w, int flag, int rank);
bool world_await(struct world *w, int flag, int rank, uint64_t value, double seconds);
/*
 * All ranks change a variable of the environment together. Ranks that are threads have one
 * environment: none may read it while another stores to it, and a meeting keeps them apart.
 */
void world_setenv(struct world *w, const char *name, const char *value);
/* Another communicator: of the ranks in the bit set `members`, at most 64; others get NULL. */
ncclComm_t world_comm(struct world *w, uint64_t members);
/* The same, and it does not block its callers: it may be aborted while a call of it waits. */
ncclComm_t world_comm_free(struct world *w, uint64_t members);

double world_now(void); /* seconds */
/*
 * Captures a stream, of this thread alone; the graph is ready to be launched, or nobody wants it.
 */
void world_capture(cudaStream_t stream);
cudaGraphExec_t world_captured(cudaStream_t stream);
void world_capture_drop(cudaStream_t stream);
uint64_t world_draw(uint64_t *state, uint64_t below);
/* Sizes of two nodes at least, for NCCL_EP_NODE_SIZE. */
void world_draw_nodes(uint64_t *state, uint32_t nranks, char *text, size_t size);
/* Decimal environment variable or command line word, else the default. */
uint64_t world_number(const char *text, uint64_t otherwise);

#endif
