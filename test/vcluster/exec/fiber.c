/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: stacks and the switch between them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "exec/exec.h"

__thread struct ep_simt_lane *ep_simt_self __attribute__((tls_model("initial-exec")));
__thread struct vc_worker *vc_self __attribute__((tls_model("initial-exec")));

/*
 * vc_switch(save, load): pushes what a callee must preserve, stores the stack pointer in *save and
 * goes on where `load` was stored. A new stack is laid out as if it had been left in that way.
 */
#if defined(__x86_64__) && !defined(VC_UCONTEXT)

#define VC_FRAME_WORDS 8 /* six registers, return address, alignment */

__asm__(".text\n"
	".globl vc_switch\n"
	".hidden vc_switch\n"
	".type vc_switch, @function\n"
	"vc_switch:\n"
	"	pushq %rbp\n"
	"	pushq %rbx\n"
	"	pushq %r12\n"
	"	pushq %r13\n"
	"	pushq %r14\n"
	"	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n"
	"	popq %r14\n"
	"	popq %r13\n"
	"	popq %r12\n"
	"	popq %rbx\n"
	"	popq %rbp\n"
	"	ret\n"
	".size vc_switch, . - vc_switch\n");

static void *vc_frame_make(uint8_t *top, void (*entry)(void))
{
	void **sp = (void **)top - VC_FRAME_WORDS;

	memset(sp, 0, VC_FRAME_WORDS * sizeof(*sp));
	sp[6] = (void *)entry;
	return sp;
}

#elif defined(__aarch64__) && !defined(VC_UCONTEXT)

#define VC_FRAME_WORDS 20 /* x19..x30, d8..d15 */

__asm__(".text\n"
	".globl vc_switch\n"
	".hidden vc_switch\n"
	".type vc_switch, %function\n"
	"vc_switch:\n"
	"	sub sp, sp, #160\n"
	"	stp x19, x20, [sp, #0]\n"
	"	stp x21, x22, [sp, #16]\n"
	"	stp x23, x24, [sp, #32]\n"
	"	stp x25, x26, [sp, #48]\n"
	"	stp x27, x28, [sp, #64]\n"
	"	stp x29, x30, [sp, #80]\n"
	"	stp d8, d9, [sp, #96]\n"
	"	stp d10, d11, [sp, #112]\n"
	"	stp d12, d13, [sp, #128]\n"
	"	stp d14, d15, [sp, #144]\n"
	"	mov x9, sp\n"
	"	str x9, [x0]\n"
	"	mov sp, x1\n"
	"	ldp x19, x20, [sp, #0]\n"
	"	ldp x21, x22, [sp, #16]\n"
	"	ldp x23, x24, [sp, #32]\n"
	"	ldp x25, x26, [sp, #48]\n"
	"	ldp x27, x28, [sp, #64]\n"
	"	ldp x29, x30, [sp, #80]\n"
	"	ldp d8, d9, [sp, #96]\n"
	"	ldp d10, d11, [sp, #112]\n"
	"	ldp d12, d13, [sp, #128]\n"
	"	ldp d14, d15, [sp, #144]\n"
	"	add sp, sp, #160\n"
	"	ret\n"
	".size vc_switch, . - vc_switch\n");

static void *vc_frame_make(uint8_t *top, void (*entry)(void))
{
	void **sp = (void **)top - VC_FRAME_WORDS;

	memset(sp, 0, VC_FRAME_WORDS * sizeof(*sp));
	sp[11] = (void *)entry;
	return sp;
}

#else

#include <ucontext.h>

/* The saved "stack pointer" is the context itself. */
void vc_switch(void **save, void *load)
{
	ucontext_t here;

	*save = &here;
	swapcontext(&here, load);
}

static void *vc_frame_make(uint8_t *top, void (*entry)(void))
{
	size_t room = (sizeof(ucontext_t) + 63) & ~(size_t)63;
	ucontext_t *context = (ucontext_t *)(top - room);

	getcontext(context);
	context->uc_stack.ss_sp = top - room - 4096;
	context->uc_stack.ss_size = 4096; /* only its end matters */
	context->uc_link = NULL;
	makecontext(context, entry, 0);
	return context;
}

#endif

#if defined(VC_ASAN)
#define VC_STACK_KB 256
#elif defined(VC_TSAN)
#define VC_STACK_KB 128
#else
#define VC_STACK_KB 32
#endif

#define VC_GUARD ((size_t)4096)
#define VC_GUARDS_MAX 16384

static void vc_fiber_main(void)
{
	struct vc_worker *worker = vc_self;
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;

#ifdef VC_ASAN
	__sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
	for (;;) {
		vc_fiber_body(worker, self);
	}
}

/* Stacks start at different cache sets, else every switch would miss all caches. */
static void vc_fiber_frame(struct vc_fiber *fiber, uint32_t index)
{
	uint8_t *top = fiber->stack + fiber->stack_size - (size_t)(index % 32) * 128;

	fiber->sp = vc_frame_make(top, vc_fiber_main);
	*(uint64_t *)fiber->stack = VC_STACK_CANARY;
}

#ifdef VC_TSAN
/* The race detector has a fixed number of thread contexts in a process. */
void *vc_tsan_fiber(void)
{
	static _Atomic int made;

	if (atomic_fetch_add(&made, 1) >= 7000) {
		vc_die(VC_EXIT_ILLEGAL,
		       "the race detector knows at most 8000 threads in a process: "
		       "use fewer or smaller blocks (VC_SMS, VC_BLOCKS_PER_SM)");
	}
	return __tsan_create_fiber(0);
}
#endif

/* Each guard costs two of the process's 65530 mappings; stacks without one have the canary. */
static bool vc_stack_guard(void *page)
{
	static _Atomic int made;

	return atomic_fetch_add(&made, 1) < VC_GUARDS_MAX && !mprotect(page, VC_GUARD, PROT_NONE);
}

bool vc_fiber_overflowed(const struct vc_fiber *fiber, uintptr_t address)
{
	return fiber->guarded && (uintptr_t)fiber->stack - 1 - address < VC_GUARD;
}

void vc_fibers_reserve(struct vc_worker *worker, uint32_t n)
{
	size_t size = (size_t)vc_env_long("VC_STACK_KB", VC_STACK_KB) * 1024;
	uint32_t have = worker->nfibers;
	uint8_t *stacks;

	if (n <= have) {
		return;
	}
	if (!worker->fiber) {
		worker->fiber = calloc(VC_BLOCK_THREADS_MAX, sizeof(*worker->fiber));
		if (!worker->fiber) {
			vc_die(VC_EXIT_ILLEGAL, "no memory for the threads of a block");
		}
	}
	stacks = mmap(NULL, (size + VC_GUARD) * (n - have), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (stacks == MAP_FAILED) {
		vc_die(VC_EXIT_ILLEGAL, "no memory for %u stacks of %zu bytes: %s", n - have, size,
		       strerror(errno));
	}
	for (uint32_t i = have; i < n; i++) {
		struct vc_fiber *fiber = &worker->fiber[i];

		fiber->stack = stacks + (size + VC_GUARD) * (i - have) + VC_GUARD;
		fiber->stack_size = size;
		fiber->guarded = vc_stack_guard(fiber->stack - VC_GUARD);
		vc_fiber_frame(fiber, i);
#ifdef VC_TSAN
		fiber->tsan = vc_tsan_fiber();
#endif
	}
	worker->nfibers = n;
}

/* After a fault: whatever the fibers were at is abandoned. */
void vc_fibers_reset(struct vc_worker *worker)
{
	for (uint32_t i = 0; i < worker->nfibers; i++) {
		vc_fiber_frame(&worker->fiber[i], i);
	}
}

void vc_fiber_check_stack(struct vc_fiber *fiber)
{
	if (*(uint64_t *)fiber->stack != VC_STACK_CANARY) {
		vc_die(VC_EXIT_ILLEGAL,
		       "stack overflow: a kernel thread used more than %zu KiB of stack "
		       "(VC_STACK_KB=n gives more)",
		       fiber->stack_size / 1024);
	}
}

void vc_main_fiber_init(struct vc_worker *worker)
{
	pthread_attr_t attr;
	void *stack = NULL;
	size_t size = 0;

	if (!pthread_getattr_np(pthread_self(), &attr)) {
		pthread_attr_getstack(&attr, &stack, &size);
		pthread_attr_destroy(&attr);
	}
	worker->main.stack = stack;
	worker->main.stack_size = size;
#ifdef VC_TSAN
	worker->main.tsan = __tsan_get_current_fiber();
#endif
}
