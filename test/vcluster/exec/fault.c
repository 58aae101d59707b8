/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory faults of kernels. The thread that faults is named, its block is abandoned, the grid is
 * marked, and the CUDA part reports the sticky error that a GPU would report. Faults outside
 * kernels, and all faults under a sanitizer, go the usual way.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "exec/block.h"
#include "exec/fault.h"

#define VC_SIGNAL_STACK (64 * 1024)

#if !defined(VC_ASAN) && !defined(VC_TSAN)

static void vc_fault(int number, siginfo_t *info, void *context)
{
	struct vc_fiber *fiber = (struct vc_fiber *)ep_simt_self;
	char where[160] = "";
	char line[512];
	struct vc_block *block;
	int n;

	(void)context;
	if (!fiber || !vc_self) {
		signal(number, SIG_DFL);
		raise(number);
		return;
	}
	block = &vc_self->block;
	if (vc_fiber_overflowed(fiber, (uintptr_t)info->si_addr)) {
		vc_illegal(block, fiber, "stack overflow beyond %zu KiB (VC_STACK_KB gives more)",
			   fiber->stack_size / 1024);
	}
	if (vc_describe_address) {
		vc_describe_address((uintptr_t)info->si_addr, where, sizeof(where));
	}
	n = snprintf(line, sizeof(line),
		     "vcluster: rank %d device %d: kernel %s, block %u, warp %u, lane %u: %s at "
		     "address %p%s%s\n",
		     vc_rank(), block->grid->device, block->grid->kernel->name, block->index,
		     fiber->pub.warp, fiber->pub.lane,
		     number == SIGBUS ? "bus error" : "illegal access", info->si_addr,
		     *where ? ", " : "", where);
	if (write(STDERR_FILENO, line, (size_t)n) < 0) {
		_exit(VC_EXIT_ILLEGAL);
	}
	siglongjmp(vc_self->fault_exit, 1);
}

void vc_fault_init(void)
{
	struct sigaction action = { .sa_sigaction = vc_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	sigemptyset(&action.sa_mask);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
}

void vc_fault_thread_init(void)
{
	stack_t stack = { .ss_sp = malloc(VC_SIGNAL_STACK), .ss_size = VC_SIGNAL_STACK };

	if (!stack.ss_sp || sigaltstack(&stack, NULL)) {
		vc_die(VC_EXIT_ILLEGAL, "no signal stack for a block thread");
	}
}

#else

void vc_fault_init(void)
{
}

void vc_fault_thread_init(void)
{
}

#endif
