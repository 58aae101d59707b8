/* SPDX-License-Identifier: Apache-2.0 */
/* One piece of work: run it, copy it, free it. */
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "cuda/device.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "tsan.h"

static void vc_kernel_done(struct vc_grid *grid)
{
	sem_post(grid->done_arg);
}

static void vc_kernel_run(struct vc_work *work)
{
	sem_t done;
	struct vc_grid grid = {
		.kernel = work->launch.kernel,
		.args = work->launch.args,
		.device = work->device,
		.nblocks = work->launch.nblocks,
		.nthreads = work->launch.nthreads,
		.dynamic_shared = work->launch.dynamic_shared,
		.done = vc_kernel_done,
		.done_arg = &done,
	};

	sem_init(&done, 0, 0);
	vc_grid_publish(&grid);
	vc_grid_submit(&grid);
	while (sem_wait(&done)) {
	}
	vc_grid_observe(&grid);
	sem_destroy(&done);
	if (atomic_load(&grid.fault)) {
		vc_device_set_sticky(work->device, cudaErrorIllegalAddress);
	}
}

#ifdef VC_TSAN
#define VC_HOLE_LEAST SIZE_MAX /* the race detector sees what is written, and no holes */
#else
#define VC_HOLE_LEAST 65536
#endif

/*
 * Whole pages of zeros are holes in the file behind them: most of a large buffer is never looked at. Not where NICs
 * get at memory by its address: their driver has pinned its pages, and would go on with those that the hole has let go.
 */
static void vc_set_run(uint8_t *dst, int value, size_t size)
{
	uint8_t *first = (uint8_t *)(((uintptr_t)dst + VC_PAGE - 1) & ~(VC_PAGE - 1));
	size_t inner;

	if (value || size < VC_HOLE_LEAST || vc_env_long("VC_NO_DMABUF", 0)) {
		memset(dst, value, size);
		return;
	}
	inner = (size_t)(dst + size - first) & ~(VC_PAGE - 1);
	memset(dst, 0, (size_t)(first - dst));
	if (madvise(first, inner, MADV_REMOVE)) {
		memset(first, 0, inner); /* not of a file, or of more than one */
	}
	memset(first + inner, 0, (size_t)(dst + size - (first + inner)));
}

#ifdef VC_TSAN
/*
 * A copy engine moves aligned words whole. So a copy may take words that a kernel stores atomically meanwhile;
 * the race detector still reports a copy beside a plain store.
 */
static void vc_copy_run(void *dst, const void *src, size_t size)
{
	volatile unsigned long *to = dst;
	const volatile unsigned long *from = src;

	if ((((uintptr_t)dst | (uintptr_t)src | size) & 7) || dst == src) {
		memmove(dst, src, size);
		return;
	}
	for (size_t i = 0; i < size / 8; i++) {
		size_t at = dst < src ? i : size / 8 - 1 - i;

		__tsan_atomic64_store(&to[at], __tsan_atomic64_load(&from[at], 0), 0);
	}
}
#else
static void vc_copy_run(void *dst, const void *src, size_t size)
{
	memmove(dst, src, size);
}
#endif

/* A device in error runs nothing any more. */
void vc_work_run(struct vc_work *work)
{
	if (vc_device_sticky(work->device)) {
		return;
	}
	switch (work->kind) {
	case VC_WORK_EMPTY:
		break;
	case VC_WORK_KERNEL:
		vc_kernel_run(work);
		break;
	case VC_WORK_COPY:
		if (work->copy.late_us) {
			usleep((useconds_t)work->copy.late_us);
		}
		vc_copy_run(work->copy.dst, work->copy.src, work->copy.size);
		break;
	case VC_WORK_SET:
		vc_set_run(work->set.dst, work->set.value, work->set.size);
		break;
	case VC_WORK_HOST:
		work->host.fn(work->host.arg);
		break;
	case VC_WORK_CALL:
		work->call.fn(work->call.arg);
		break;
	case VC_WORK_GRAPH:
		vc_exec_graph_run(work->graph);
		break;
	}
}

void vc_work_free(struct vc_work *work)
{
	switch (work->kind) {
	case VC_WORK_KERNEL:
		free(work->launch.args);
		break;
	case VC_WORK_COPY:
		free(work->copy.staged);
		break;
	case VC_WORK_CALL:
		free(work->call.arg);
		break;
	case VC_WORK_GRAPH:
		vc_exec_graph_put(work->graph);
		break;
	default:
		break;
	}
	work->kind = VC_WORK_EMPTY;
}

static void *vc_copy_of(const void *p, size_t size)
{
	void *copy = malloc(size ? size : 1);

	return copy ? memcpy(copy, p, size) : NULL;
}

cudaError_t vc_work_clone(struct vc_work *to, const struct vc_work *from)
{
	*to = *from;
	if (from->kind == VC_WORK_KERNEL) {
		to->launch.args = vc_copy_of(from->launch.args, from->launch.kernel->args_size);
		if (!to->launch.args) {
			to->kind = VC_WORK_EMPTY;
			return cudaErrorMemoryAllocation;
		}
	}
	if (from->kind == VC_WORK_CALL) {
		to->call.arg = vc_copy_of(from->call.arg, from->call.size);
		if (!to->call.arg) {
			to->kind = VC_WORK_EMPTY;
			return cudaErrorMemoryAllocation;
		}
	}
	return cudaSuccess;
}
