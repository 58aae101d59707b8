/* SPDX-License-Identifier: Apache-2.0 */
/* The executor: what its files share, and what the other parts of the virtual cluster ask of it. */
#ifndef VC_EXEC_H
#define VC_EXEC_H

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "clock/clock.h" /* time */
#include "device/simt/bulk.h"
#include "exec/fiber.h"

/* ---- what every part needs: identity, environment, time, the end of the process ---- */

/* Exit codes that say who gave up. */
#define VC_EXIT_WATCHDOG 86
#define VC_EXIT_ILLEGAL 87

/* Rank of the process for messages, -1 when it is not one. */
int vc_rank(void);
long vc_env_long(const char *name, long fallback);
void vc_die(int code, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));

/*
 * The executor: runs kernels on the CPU. This is what the CUDA stand-in sees of it.
 *
 * A device has SMs; a grid's blocks become resident as SMs have room, in registers, shared memory
 * and threads, and run each on an OS thread of a pool. Grids of one device get their blocks placed
 * in the order of submission, and run concurrently as far as there is room, as on a GPU: a block
 * that waits keeps its room, whatever waits for that.
 */

#define VC_MAX_DEVICES 256
#define VC_SM_BLOCKS 32u
#define VC_SM_THREADS 2048u
#define VC_SM_REGISTERS 65536u
#define VC_THREAD_REGISTERS_MAX 255u
#define VC_SM_SHARED (228u * 1024)
#define VC_SM_SHARED_RESERVED 1024u /* the system's share of each block */
#define VC_STATIC_LIMIT (48 * 1024) /* dynamic shared memory without cudaFuncSetAttribute */
#define VC_BLOCK_SHARED_MAX (227u * 1024)
#define VC_BLOCK_THREADS_MAX 1024u

struct vc_kernel {
	void (*handle)(void);
	const char *name;
	void (*body)(const void *args);
	size_t args_size;
	uint32_t max_threads;
	uint32_t registers; /* of a thread: as many as its launch bounds leave it */
	/*
	 * The thread-local segment that holds its EP_SHARED variables; modid 0: not to be touched
	 */
	size_t tls_module, tls_size;
	struct vc_kernel *next;
	int max_dynamic_shared; /* raised by cudaFuncSetAttribute */
};

struct vc_grid {
	const struct vc_kernel *kernel;
	const void *args; /* stays valid until done() */
	int device;
	uint32_t nblocks, nthreads;
	size_t dynamic_shared;
	/* Called once, from a block's thread, after the last block. May free the grid. */
	void (*done)(struct vc_grid *grid);
	void *done_arg;

	/* the executor's */
	uint64_t serial;
	uint32_t placed;
	_Atomic uint32_t left;
	_Atomic int fault; /* a block hit a memory fault */
	struct vc_reads *reads;
	struct vc_grid *next;
};

struct vc_kernel *vc_kernel_find(const void *handle);
void vc_kernels_reset(void); /* attributes as in the beginning */
void vc_grid_submit(struct vc_grid *grid);
/* Orders what the caller wrote before the grid, and the grid before what the caller does next. */
void vc_grid_publish(struct vc_grid *grid);
void vc_grid_observe(struct vc_grid *grid);
uint32_t vc_sm_count(void);
/* Blocks of that shape that fit one SM. */
uint32_t vc_occupancy(const struct vc_kernel *kernel, uint32_t nthreads, size_t shared);

/* Set by cuda/memory.c. For fault reports: describes the owner of an address. */
extern void (*vc_describe_address)(uintptr_t address, char *text, size_t size);
/* Is the address memory of this device? */
extern bool (*vc_device_address)(uintptr_t address, int device);

/* ---- blocks and warps, and the OS thread that runs a block ---- */

#define VC_WARPS_MAX (VC_BLOCK_THREADS_MAX / EP_WARP_SIZE)
#define VC_BARRIERS 16

/* Lanes that meet in one collective. */
struct vc_group {
	uint32_t mask, arrived, op;
	uint32_t calls; /* the fewest of its lanes that have arrived */
};

struct vc_warp {
	uint32_t live, runnable;
	uint32_t acquired; /* ep_simt_lane.acquired points here */
	uint32_t ngroups;
	struct vc_group group[EP_WARP_SIZE];
	uint64_t value[EP_WARP_SIZE];
	uint32_t arg[EP_WARP_SIZE];
};

struct vc_barrier {
	uint32_t expected, arrived;
	uint32_t lanes[VC_WARPS_MAX];   /* that have arrived */
	uint32_t waiting[VC_WARPS_MAX]; /* and those of them that wait */
	bool acquired;                  /* one of their warps has: as in struct vc_warp */
};

struct vc_block {
	struct vc_grid *grid;
	struct vc_worker *worker;
	uint32_t index, sm;
	uint32_t nthreads, nwarps;
	uint32_t live; /* fibers that have not ended */
	uint32_t run_warps;
	struct vc_warp warp[VC_WARPS_MAX];
	struct vc_barrier barrier[VC_BARRIERS];
	struct vc_bulk *bulk; /* NULL: it has not called anything of bulk.h */
	/* Polls and rounds in which every fiber that can run only polled. */
	uint32_t idle_polls, idle_rounds;
	uint64_t idle_ns;       /* when the last round began */
	uint64_t idle_since_ns; /* when it first napped, 0: not yet */
	bool active;
	uint64_t rng;
	_Atomic uint64_t progress;
	/* the watchdog's */
	uint64_t seen_progress;
	uint64_t stalled_ns;
	struct vc_block *prev, *next;
};

struct vc_worker {
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t wake;
	bool has_job;
	struct vc_block block;
	struct vc_fiber main;
	struct vc_fiber *running;
	struct vc_fiber *fiber; /* nfibers of them, made as needed */
	uint32_t nfibers;
	uint8_t *shared;
	size_t shared_size;
	struct vc_bulk *bulk; /* what its blocks use, one after the other */
	sigjmp_buf fault_exit;
	struct vc_worker *next;
};

extern __thread struct vc_worker *vc_self __attribute__((tls_model("initial-exec")));

void vc_block_run(struct vc_worker *worker);
void vc_fiber_body(struct vc_worker *worker, struct vc_fiber *fiber);
/* Leaves the current fiber until it is runnable again and picked. */
void vc_block_switch(struct vc_block *block, struct vc_fiber *self);
uint32_t vc_random(struct vc_block *block);
/* The order in which `n` blocks start that become resident at once. */
void vc_wave_order(const struct vc_grid *grid, uint16_t *order, uint32_t n);
void vc_illegal(struct vc_block *block, struct vc_fiber *self, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

void vc_reads_start(struct vc_grid *grid);
/* Ends the process if memory was written that the kernel has read as read-only. */
void vc_reads_end(struct vc_grid *grid);

const char *vc_op_name(uint32_t op);

static inline void vc_fiber_switch(struct vc_fiber *from, struct vc_fiber *to)
{
	ep_simt_self = &to->pub;
	vc_self->running = to;
#ifdef VC_ASAN
	__sanitizer_start_switch_fiber(&from->fake, to->stack, to->stack_size);

#endif
#ifdef VC_TSAN
	/* No synchronisation: only barriers and atomics order the threads of a block. */
	__tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);

#endif
	vc_switch(&from->sp, to->sp);
#ifdef VC_ASAN
	__sanitizer_finish_switch_fiber(from->fake, NULL, NULL);

#endif
}

/* Any event that is not polling. */
static inline void vc_block_progress(struct vc_block *block)
{
	block->active = true;
	atomic_store_explicit(&block->progress,
			      atomic_load_explicit(&block->progress, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

extern void (*_Atomic ep_simt_doorbell_hook)(void);

/* ---- bulk copies and the barriers in shared memory of one block ---- */

#define VC_POISON 0xb5b5b5b5b5b5b5b5ull /* as of fresh shared memory */
#define VC_MBARS 512u
#define VC_COPIES 2048u   /* of a block, that nobody has waited for */
#define VC_HELDS 32u      /* stores of a block that have read, but not written yet */
#define VC_LATE_TURNS 64u /* how long late loads are held back: turns of other blocks and ranks */

typedef uint64_t vc_word __attribute__((may_alias));

struct vc_mbar {
	struct ep_mbar *bar; /* NULL: this entry is free */
	uint32_t nwarps;     /* arrivals of a phase */
	uint32_t pending;    /* arrivals that the running phase lacks */
	uint32_t phase;
	uint32_t issued, announced; /* bytes of the running phase's loads */
	uint32_t loads;             /* of the running phase, that have not landed */
	uint32_t polls;             /* since all its warps have arrived */
	uint32_t late;              /* turns for which its loads are held back yet */
	uint32_t arrived;           /* warps that have arrived */
	uint32_t unfenced;          /* 1 + the warp that has yet to call ep_mbar_fence_init() */
	bool acquired[2];           /* of phases of this parity: as in struct vc_warp */
	char key[2];                /* what the race detector knows them by */
};

enum vc_copy_state {
	VC_COPY_ISSUED,
	VC_COPY_READ,  /* a store whose source may be overwritten; its bytes are held */
	VC_COPY_LANDED /* a store that was done early; its group has not been waited for */
};

struct vc_copy {
	uint8_t *to;
	const uint8_t *from;
	uint32_t bytes;
	uint32_t warp;
	uint32_t group;      /* of a store */
	struct vc_mbar *bar; /* of a load; NULL: a store */
	uint8_t *held;
	enum vc_copy_state state;
};

/* What the engine does for a warp. */
struct vc_engine {
	struct ep_simt_bulk call; /* what the lanes are calling */
	uint32_t callers;         /* lanes that are there */
	uint32_t group;           /* number of the open group */
	char issued, done;        /* keys for the race detector */
	void *tsan;               /* the engine is a thread of its own to it */
};

struct vc_bulk {
	bool used; /* by this block */
	uint32_t nmbars, ncopies;
	uint32_t held; /* buffers that are taken, a bit each */
	struct vc_mbar mbar[VC_MBARS];
	struct vc_copy copy[VC_COPIES]; /* in no order */
	struct vc_engine engine[VC_WARPS_MAX];
	/* Dynamic shared memory as the engine sees it: without stores that lack the proxy fence. */
	uint8_t shadow[VC_BLOCK_SHARED_MAX];
	uint8_t room[VC_HELDS][VC_BLOCK_SHARED_MAX];
};

/* The last lane of the warp has come to the call. */
void vc_bulk_act(struct vc_block *block, struct vc_fiber *self);
/* All lanes of a warp, or all warps, have ended. */
void vc_bulk_end(struct vc_block *block, struct vc_fiber *self);

/* Ends the process unless `bar` is a barrier that may be used. */
struct vc_mbar *vc_mbar_find(struct vc_block *block, struct vc_fiber *self, struct ep_mbar *bar,
			     const char *what);
void vc_mbar_init(struct vc_block *block, struct vc_fiber *self, const struct ep_simt_bulk *call);
void vc_mbar_inval(struct vc_block *block, struct vc_fiber *self, struct vc_mbar *m);
void vc_mbar_fence_init(struct vc_block *block, struct vc_fiber *self);
void vc_mbar_arrive(struct vc_block *block, struct vc_fiber *self, struct vc_mbar *m,
		    uint32_t bytes);
/* A load has landed, or a warp has arrived: the phase may be over. */
void vc_mbar_settle(struct vc_mbar *m);
/* All that the block does is to poll: a turn of others, if it polls for loads that are late. */
bool vc_loads_wait(struct vc_block *block);

/*
 * Multicast addresses: nothing is mapped there, and what a kernel stores there goes to the memory
 * of several ranks.
 */

/* The address of `size` bytes for memory at each of the `count` addresses; NULL: no memory. */
void *vc_multicast_make(uint8_t *const *member, uint32_t count, size_t size);
void vc_multicast_end(void *address);

/* ---- ends the process when a block makes no progress ---- */

void vc_watchdog_add(struct vc_block *block);
void vc_watchdog_remove(struct vc_block *block);
/* Prints what the threads of the block wait for. */
void vc_block_dump(struct vc_block *block);

/* ---- memory faults of kernels ---- */

void vc_fault_init(void);
void vc_fault_thread_init(void);

#endif
