/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: the threads of a block. */
#ifndef VC_FIBER_H
#define VC_FIBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "device/simt/simt.h"
#include "tsan.h"

#ifdef VC_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

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

struct vc_worker;

void vc_fibers_reserve(struct vc_worker *worker, uint32_t n);
void vc_fibers_reset(struct vc_worker *worker);
/* Saves the caller's registers and stack pointer in *save, goes on where `load` was saved. */
void vc_switch(void **save, void *load);
void vc_fiber_check_stack(struct vc_fiber *fiber);
/* In the page below the stack? */
bool vc_fiber_overflowed(const struct vc_fiber *fiber, uintptr_t address);
#ifdef VC_TSAN
/* A context of the race detector. */
void *vc_tsan_fiber(void);
#endif
void vc_main_fiber_init(struct vc_worker *worker);

#endif
