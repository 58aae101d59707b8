/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks and warps, and the OS thread that runs a block. */
#ifndef VC_BLOCK_H
#define VC_BLOCK_H

#include <pthread.h>
#include <setjmp.h>
#include "device/simt/bulk.h"
#include "exec/fiber.h"
#include "exec/grid.h"
#include "exec/util.h"

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
void vc_fiber_sleep(struct vc_block *block, struct vc_fiber *self, enum vc_fiber_state state,
		    uint32_t wait_a, uint32_t wait_b);
void vc_lanes_wake(struct vc_block *block, uint32_t warp, uint32_t lanes);
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

#endif
