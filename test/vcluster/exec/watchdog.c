/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for what: on request, and when a kernel makes no progress for too long. */
#include <stdio.h>
#include <stdlib.h>
#include "exec/exec.h"

static pthread_mutex_t vc_running_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct vc_block *vc_running;

static const char *vc_site_name(uint32_t site)
{
	static const char *const name[EP_WAIT_SITES] = {
		[EP_WAIT_NONE] = "something unnamed",
		[EP_WAIT_PROGRESS] = "progress",
		[EP_WAIT_DISPATCH_COUNT] = "dispatch-count",
		[EP_WAIT_DISPATCH_ROW] = "dispatch-row",
		[EP_WAIT_COMBINE_ROW] = "combine-row",
		[EP_WAIT_CLEAN] = "clean",
		[EP_WAIT_RDMA_SLOT] = "rdma-slot",
		[EP_WAIT_RDMA_COMPLETION] = "rdma-completion",
		[EP_WAIT_AGREEMENT] = "agreement",
		[EP_WAIT_HT_COUNT] = "ht-count",
		[EP_WAIT_HT_TABLE] = "ht-table",
		[EP_WAIT_SIGNATURE] = "signature",
		[EP_WAIT_HT_ROWS] = "ht-rows",
		[EP_WAIT_HT_CREDIT] = "ht-credit",
		[EP_WAIT_HT_DONE] = "ht-done",
		[EP_WAIT_BULK] = "bulk",
	};

	return site < EP_WAIT_SITES && name[site] ? name[site] : "an unknown site";
}

/* A fiber as it was at one moment: it may run on while others are looked at. */
struct vc_look {
	uint8_t state;
	bool running;
	uint32_t wait_a, wait_b;
};

static void vc_look_describe(const struct vc_block *block, const struct vc_look *look, char *text,
			     size_t size)
{
	switch (look->state) {
	case VC_FIBER_DONE:
		snprintf(text, size, "ended");
		break;
	case VC_FIBER_SPIN:
		snprintf(text, size, "polls for %s of peer %u", vc_site_name(look->wait_a),
			 look->wait_b);
		break;
	case VC_FIBER_COLLECTIVE:
		snprintf(text, size, "wait in %s, mask 0x%08x", vc_op_name(look->wait_a),
			 look->wait_b);
		break;
	case VC_FIBER_BARRIER:
		snprintf(text, size, "wait in barrier %u, %u of %u threads are there", look->wait_a,
			 block->barrier[look->wait_a % VC_BARRIERS].arrived, look->wait_b);
		break;
	default:
		snprintf(text, size, "%s", look->running ? "run" : "could run");
		break;
	}
}

static bool vc_look_alike(const struct vc_look *a, const struct vc_look *b)
{
	if (a->state != b->state) {
		return false;
	}
	if (a->state == VC_FIBER_RUN) {
		return a->running == b->running;
	}
	return a->state == VC_FIBER_DONE || (a->wait_a == b->wait_a && a->wait_b == b->wait_b);
}

static void vc_warp_dump(struct vc_block *block, uint32_t warp)
{
	const struct vc_fiber *fiber = &block->worker->fiber[warp * EP_WARP_SIZE];
	struct vc_look look[EP_WARP_SIZE];
	uint32_t left = EP_FULL_MASK;

	for (uint32_t i = 0; i < EP_WARP_SIZE; i++) {
		look[i] = (struct vc_look){ fiber[i].state, &fiber[i] == block->worker->running,
					    fiber[i].wait_a, fiber[i].wait_b };
	}
	while (left) {
		uint32_t first = (uint32_t)__builtin_ctz(left);
		uint32_t lanes = 0;
		char text[128];

		for (uint32_t i = first; i < EP_WARP_SIZE; i++) {
			if (left >> i & 1 && vc_look_alike(&look[first], &look[i])) {
				lanes |= 1u << i;
			}
		}
		left &= ~lanes;
		vc_look_describe(block, &look[first], text, sizeof(text));
		fprintf(stderr,
			"vcluster:   rank %d device %d kernel %s block %u/%u warp %u "
			"lanes 0x%08x %s\n",
			vc_rank(), block->grid->device, block->grid->kernel->name, block->index,
			block->grid->nblocks, warp, lanes, text);
	}
}

/* Fibers may run meanwhile. What threads that wait say is right, and the report is about those. */
void vc_block_dump(struct vc_block *block)
{
	for (uint32_t w = 0; w < block->nwarps; w++) {
		vc_warp_dump(block, w);
	}
	fflush(stderr);
}

static bool vc_grid_stalled(const struct vc_grid *grid, uint64_t limit_ns)
{
	const struct vc_block *block;

	for (block = vc_running; block; block = block->next) {
		if (block->grid == grid && block->stalled_ns < limit_ns) {
			return false;
		}
	}
	return true;
}

static void vc_watchdog_look(uint64_t went_ns, uint64_t limit_ns)
{
	struct vc_block *block, *culprit = NULL;

	for (block = vc_running; block; block = block->next) {
		uint64_t now = atomic_load_explicit(&block->progress, memory_order_relaxed);

		block->stalled_ns = now == block->seen_progress ? block->stalled_ns + went_ns : 0;
		block->seen_progress = now;
	}
	for (block = vc_running; block && !culprit; block = block->next) {
		culprit = vc_grid_stalled(block->grid, limit_ns) ? block : NULL;
	}
	if (!culprit) {
		return;
	}
	fprintf(stderr, "vcluster: watchdog: who waits for what\n");
	for (block = vc_running; block; block = block->next) {
		vc_block_dump(block);
	}
	vc_die(VC_EXIT_WATCHDOG,
	       "watchdog: kernel %s on device %d made no progress for %.1f s (VC_WATCHDOG_S)",
	       culprit->grid->kernel->name, culprit->grid->device, (double)limit_ns / 1e9);
}

/*
 * Of the time that the run had: what a busy machine gives to others does not count. Nor does more
 * than a tick at once: the process was stopped.
 */
static void *vc_watchdog_main(void *arg)
{
	double limit_s = 60;
	const char *text = getenv("VC_WATCHDOG_S");
	uint64_t limit_ns, tick_ns, before, now;
	int64_t went;

	(void)arg;
	if (text && *text) {
		limit_s = atof(text);
	}
	if (limit_s <= 0) {
		return NULL;
	}
	limit_ns = (uint64_t)(limit_s * 1e9);
	tick_ns = limit_ns / 8 < 500000000u ? limit_ns / 8 + 1 : 500000000u;
	vc_thread_leave();
	before = vc_pace_ns();
	for (;;) {
		vc_real_sleep_ns(tick_ns);
		now = vc_pace_ns();
		/* less than 0: a look at the pace met a change of it */
		went = (int64_t)(now - before);
		before = now;
		went = went < 0 ? 0 : went < (int64_t)tick_ns ? went : (int64_t)tick_ns;
		pthread_mutex_lock(&vc_running_mutex);
		vc_watchdog_look((uint64_t)went, limit_ns);
		pthread_mutex_unlock(&vc_running_mutex);
	}
	return NULL;
}

static void vc_watchdog_start(void)
{
	pthread_t thread;

	if (!pthread_create(&thread, NULL, vc_watchdog_main, NULL)) {
		pthread_detach(thread);
	}
}

void vc_watchdog_add(struct vc_block *block)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, vc_watchdog_start);
	pthread_mutex_lock(&vc_running_mutex);
	block->stalled_ns = 0;
	block->prev = NULL;
	block->next = vc_running;
	if (vc_running) {
		vc_running->prev = block;
	}
	vc_running = block;
	pthread_mutex_unlock(&vc_running_mutex);
}

void vc_watchdog_remove(struct vc_block *block)
{
	pthread_mutex_lock(&vc_running_mutex);
	if (block->prev) {
		block->prev->next = block->next;
	} else {
		vc_running = block->next;
	}
	if (block->next) {
		block->next->prev = block->prev;
	}
	pthread_mutex_unlock(&vc_running_mutex);
}
