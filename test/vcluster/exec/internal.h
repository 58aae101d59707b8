/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers, warps and blocks: private to the executor. */
#ifndef VC_EXEC_INTERNAL_H
#define VC_EXEC_INTERNAL_H

#include <pthread.h>
#include <setjmp.h>
#include "device/simt/simt.h"
#include "exec/exec.h"

#ifdef VC_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef VC_TSAN
#include <sanitizer/tsan_interface.h>
#define VC_ACQUIRE(p) __tsan_acquire((void *)(p))
#define VC_RELEASE(p) __tsan_release((void *)(p))
#else
#define VC_ACQUIRE(p) ((void)(p))
#define VC_RELEASE(p) ((void)(p))
#endif

#define VC_WARPS_MAX (VC_BLOCK_THREADS_MAX / EP_WARP_SIZE)
#define VC_BARRIERS 16
#define VC_STACK_CANARY 0x5af3c0de57ac4e4dull

enum vc_fiber_state {
	VC_FIBER_DONE = 0,
	VC_FIBER_RUN,
	VC_FIBER_SPIN,
	VC_FIBER_COLLECTIVE,
	VC_FIBER_BARRIER,
};

struct vc_fiber {
	struct ep_simt_lane pub; /* first: ep_simt_self points here */
	void *sp;
	uint8_t state;
	uint8_t calls;   /* collectives since the last spin */
	uint32_t wait_a; /* site, operation or barrier id */
	uint32_t wait_b; /* peer, mask or thread count */
	uint64_t result;
	uint8_t *stack;
	size_t stack_size;
	bool guarded; /* the page below the stack cannot be touched */
#ifdef VC_TSAN
	void *tsan;
#endif
#ifdef VC_ASAN
	void *fake;
#endif
};

/* Lanes that meet in one collective. */
struct vc_group {
	uint32_t mask, arrived, op;
};

struct vc_warp {
	uint32_t live, runnable;
	uint32_t ngroups;
	struct vc_group group[EP_WARP_SIZE];
	uint64_t value[EP_WARP_SIZE];
	uint32_t arg[EP_WARP_SIZE];
};

struct vc_barrier {
	uint32_t expected, arrived;
	uint32_t lanes[VC_WARPS_MAX];
};

struct vc_worker;

struct vc_block {
	struct vc_grid *grid;
	struct vc_worker *worker;
	uint32_t index, sm;
	uint32_t nthreads, nwarps;
	uint32_t live; /* fibers that have not ended */
	uint32_t run_warps;
	struct vc_warp warp[VC_WARPS_MAX];
	struct vc_barrier barrier[VC_BARRIERS];
	/* Idle: every fiber that can run only polls. */
	uint32_t idle_polls, idle_rounds;
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
	sigjmp_buf fault_exit;
	struct vc_worker *next;
};

extern __thread struct vc_worker *vc_self __attribute__((tls_model("initial-exec")));

/* exec_fiber.c */
void vc_fibers_reserve(struct vc_worker *worker, uint32_t n);
void vc_fibers_reset(struct vc_worker *worker);
/* Saves the caller's registers and stack pointer in *save, goes on where `load` was saved. */
void vc_switch(void **save, void *load);
void vc_fiber_check_stack(struct vc_fiber *fiber);
/* In the page below the stack? */
bool vc_fiber_overflowed(const struct vc_fiber *fiber, uintptr_t address);
void vc_main_fiber_init(struct vc_worker *worker);

/* exec_block.c */
void vc_block_run(struct vc_worker *worker);
void vc_fiber_body(struct vc_worker *worker, struct vc_fiber *fiber);
/* Leaves the current fiber until it is runnable again and picked. */
void vc_block_switch(struct vc_block *block, struct vc_fiber *self);
void vc_fiber_sleep(struct vc_block *block, struct vc_fiber *self, enum vc_fiber_state state,
		    uint32_t wait_a, uint32_t wait_b);
void vc_lanes_wake(struct vc_block *block, uint32_t warp, uint32_t lanes);
uint32_t vc_random(struct vc_block *block);
void vc_illegal(struct vc_block *block, struct vc_fiber *self, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

/* exec_watchdog.c */
void vc_watchdog_add(struct vc_block *block);
void vc_watchdog_remove(struct vc_block *block);
void vc_block_dump(struct vc_block *block);
const char *vc_op_name(uint32_t op);

/* exec_fault.c */
void vc_fault_init(void);
void vc_fault_thread_init(void);

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

#endif
