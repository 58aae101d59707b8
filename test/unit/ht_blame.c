// SPDX-License-Identifier: Apache-2.0
/*
 * Waits of high throughput: whom one names that others may hold up, and what it tells them; and that the
 * end of a warp's stage does not wait once more for copies that are stuck.
 */
#include <cuda_runtime_api.h>
#include <time.h>
#include "ht_blame.h"
#include "support/check.h"

#define RANKS 4
#define NOBODY 0u
#define BY(rank) (UINT64_C(5) << 32 | (rank)) /* in this epoch */

/* Rank 0 waits for `peer`; `words`: what each rank has said. */
static void blame_for(uint32_t peer, uint64_t waited, const uint64_t words[RANKS], uint32_t names,
		      uint64_t says)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct ht_blame_args a;
	void *list[] = { &a };
	uint64_t(*heaps)[RANKS + 1];

	memset(&a, 0, sizeof(a));
	NEED_CUDA(cudaMallocHost((void **)&heaps, RANKS * sizeof(*heaps)));
	memset(heaps, 0, RANKS * sizeof(*heaps));
	memcpy(heaps[0], words, RANKS * sizeof(words[0]));
	a.c.g.nranks = RANKS;
	a.c.g.timeout_ns = 1000000000;
	for (uint32_t r = 0; r < RANKS; r++) {
		a.c.g.heap[r] = (unsigned char *)heaps[r];
	}
	a.c.g.own = a.c.g.heap[0];
	a.waited_ns = waited;
	a.peer = peer;
	a.named = (uint32_t *)&heaps[0][RANKS];
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_blame_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(*a.named, names);
	CHECK_INT(heaps[3][0], says);
	NEED_CUDA(cudaFreeHost(heaps));
}

static void blame(uint64_t waited, const uint64_t words[RANKS], uint32_t names, uint64_t says)
{
	blame_for(1, waited, words, names, says);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#define STUCK_NS 400000000u

static void stuck(void)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 },
				      .blockDim = { 32, 1, 1 },
				      .dynamicSmemBytes =
					      ep_ht_stage_bytes(1, HT_STUCK_SLOTS, 128) };
	struct ht_blame_args a;
	void *list[] = { &a };
	struct {
		struct ep_record records[EP_RECORDS];
		struct ep_dev_state state;
		uint32_t come;
	} * memory;
	double start;

	memset(&a, 0, sizeof(a));
	NEED_CUDA(cudaMallocHost((void **)&memory, sizeof(*memory)));
	memset(memory, 0, sizeof(*memory));
	a.c.g.nranks = RANKS;
	a.c.g.timeout_ns = STUCK_NS;
	a.c.g.records = memory->records;
	a.c.g.state = &memory->state;
	a.peer = 2;
	a.named = &memory->come;
	memory->come = 1;
	start = now();
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_stuck_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(memory->come, 0);
	CHECK_INT(memory->records[EP_RECORD_FATAL].peer, 2);
	CHECK(now() - start >= STUCK_NS * 1e-9 && now() - start < 2 * STUCK_NS * 1e-9, "%.2f s",
	      now() - start);
	NEED_CUDA(cudaFreeHost(memory));
}

int main(void)
{
	const uint64_t quiet[RANKS] = { 0 }, chain[RANKS] = { NOBODY, BY(2), BY(3), 0 };
	const uint64_t old[RANKS] = { NOBODY, BY(2) - (UINT64_C(1) << 32), 0, 0 };
	const uint64_t back[RANKS] = { NOBODY, BY(0), 0, 0 }, known[RANKS] = { BY(3), BY(0), 0, 0 };
	const uint64_t through[RANKS] = { BY(1), BY(3), 0, 0 };
	const uint64_t ring[RANKS] = { NOBODY, BY(2), BY(1), 0 };

	check_context("too early");
	blame(100000000, chain, 1, 0);
	check_context("the peer is silent");
	blame(700000000, quiet, 1, BY(1));
	check_context("the peer is held up by one that is held up");
	blame(700000000, chain, 3, BY(3));
	check_context("the peer was held up in another step");
	blame(700000000, old, 1, BY(1));
	check_context("the peer waits for this rank");
	blame(700000000, back, 1, BY(1));
	check_context("the same, and this rank has said why");
	blame(700000000, known, 1, 0);
	check_context("two wait for each other");
	blame(700000000, ring, 1, BY(1));
	check_context("this rank owes it, and nobody knows why");
	blame_for(0, 700000000, quiet, 0, 0);
	check_context("this rank owes it, and another wait knows why");
	blame_for(0, 700000000, known, 3, BY(3));
	check_context("this rank owes it, and waits for one that is held up");
	blame_for(0, 700000000, through, 3, BY(3));
	check_context("stuck");
	stuck();
	return check_end();
}
