/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits of high throughput: whom one names that others may hold up, and what it tells them; and that the end
 * of a warp's stage does not wait once more for copies that are stuck.
 */
#include <cuda_runtime_api.h>
#include <stddef.h>
#include "ht_blame.h"
#include "support/check.h"

#define RANKS 4
#define NOBODY 0u
#define BY(rank) (UINT64_C(5) << 32 | (rank)) /* in this epoch */

/* What a rank has in memory, of ranks that can all be stored to. */
struct place {
	uint64_t words[RANKS];
	struct ep_ht_blame_sent sent[RANKS];
	uint64_t progress[RANKS];
	struct ep_signature_slot signatures[EP_SIGNATURE_SLOTS][RANKS];
};

struct memory {
	struct place heap[RANKS];
	struct ep_record records[EP_RECORDS];
	struct ep_dev_state state;
	uint32_t scratch[EP_HT_COUNTERS];
	uint32_t over;
};

#define STEP UINT64_C(0x100000000)
#define GAVE_UP UINT64_C(0x80000000)
#define TAKEN_BACK (UINT64_C(5) << 32 | 0x7fffffff)

/* That, and what a kernel of rank 0 is given. */
static struct memory *memory_make(struct ht_blame_args *a, uint64_t step, uint64_t timeout_ns)
{
	struct memory *m;

	memset(a, 0, sizeof(*a));
	NEED_CUDA(cudaMallocHost((void **)&m, sizeof(*m)));
	memset(m, 0, sizeof(*m));
	for (uint32_t r = 0; r < RANKS; r++) {
		a->c.g.heap[r] = (unsigned char *)&m->heap[r];
		m->heap[0].progress[r] = step;
	}
	a->c.g.own = a->c.g.heap[0];
	a->c.g.progress_off = offsetof(struct place, progress);
	a->c.g.signature_off = offsetof(struct place, signatures);
	a->c.g.nranks = RANKS;
	a->c.g.timeout_ns = timeout_ns;
	a->c.g.records = m->records;
	a->c.g.state = &m->state;
	a->c.h.scratch = m->scratch;
	a->named = &m->over;
	return m;
}

/*
 * Rank 0 waits for rank 1, which has started `step`; the wait is over, if names is a rank: that one is named.
 * In the end rank 3 finds that rank 0 says `says`.
 */
static void blame_for(const void *kernel, uint64_t step, const uint64_t words[RANKS],
		      uint32_t names, uint64_t says)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct ht_blame_args a;
	void *list[] = { &a };
	struct memory *m = memory_make(&a, step, 1000000000);

	memcpy(m->heap[0].words, words, RANKS * sizeof(words[0]));
	m->heap[3].words[0] = words[0];
	a.over = names != NOBODY;
	a.waited_ns = a.over ? 5000000000 : 700000000;
	a.peer = 1;
	NEED_CUDA(cudaLaunchKernelExC(&config, kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(m->over, a.over);
	CHECK_INT(m->records[EP_RECORD_FATAL].peer, names);
	CHECK_INT(m->heap[3].words[0], says);
	CHECK_INT(m->scratch[EP_HT_BLAME_LOCK], 0);
	NEED_CUDA(cudaFreeHost(m));
}

static void blame(void)
{
	const void *wait = (const void *)ht_blame_kernel;
	const void *go_on = (const void *)ht_go_on_kernel;
	const uint64_t quiet[RANKS] = { 0 }, chain[RANKS] = { NOBODY, BY(2), BY(3), 0 };
	const uint64_t behind[RANKS] = { 0, BY(3) - STEP, 0, 0 };
	const uint64_t before[RANKS] = { 0, BY(3) - 2 * STEP, 0, 0 };
	const uint64_t back[RANKS] = { 0, TAKEN_BACK, 0, 0 }, mine[RANKS] = { 0, BY(0), 0, 0 };
	const uint64_t known[RANKS] = { BY(3), BY(0), 0, 0 }, ring[RANKS] = { 0, BY(2), BY(1), 0 };
	const uint64_t fled[RANKS] = { 0, BY(2) | GAVE_UP, 0, 0 };
	const uint64_t sure[RANKS] = { BY(3) | GAVE_UP, 0, 0, 0 };
	const uint64_t published[RANKS] = { BY(2), 0, 0, 0 },
		       old[RANKS] = { BY(2) - STEP, 0, 0, 0 };

	check_context("the peer is silent");
	blame_for(wait, 5, quiet, 1, BY(1));
	check_context("half of the time is over");
	blame_for(wait, 5, chain, NOBODY, BY(3));
	check_context("the peer is held up by one that is held up");
	blame_for(wait, 5, chain, 3, BY(3));
	check_context("the peer is held up in the step before");
	blame_for(wait, 4, behind, 3, BY(3));
	check_context("the peer was held up in the step before, and went on");
	blame_for(wait, 5, behind, 1, BY(1));
	check_context("the peer was held up long ago");
	blame_for(wait, 4, before, 1, BY(1));
	check_context("the peer has taken its word back");
	blame_for(wait, 5, back, 1, BY(1));
	check_context("the peer has given up");
	blame_for(wait, 5, fled, 2, BY(2));
	check_context("the peer waits for this rank");
	blame_for(wait, 5, mine, 1, BY(1));
	check_context("the same, and another wait of this rank has said why");
	blame_for(wait, 5, known, 3, BY(3));
	check_context("two wait for each other");
	blame_for(wait, 5, ring, 1, BY(1));
	check_context("this rank has given up");
	blame_for(wait, 5, sure, NOBODY, BY(3) | GAVE_UP);
	check_context("this rank goes on");
	blame_for(go_on, 5, published, NOBODY, TAKEN_BACK);
	check_context("this rank goes on, and has said nothing");
	blame_for(go_on, 5, old, NOBODY, BY(2) - STEP);
	check_context("this rank has given up, and another wait goes on");
	blame_for(go_on, 5, sure, NOBODY, BY(3) | GAVE_UP);
}

/* This rank's own warp is lost: eight times the timeout, and what others have said takes nothing from that. */
#define OWN_NS 100000000u

static void own(void)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct ht_blame_args a;
	void *list[] = { &a };
	struct memory *m = memory_make(&a, 5, OWN_NS);
	double start;

	start = check_now();
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_own_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(m->over, 1);
	CHECK_INT(m->records[EP_RECORD_FATAL].peer, 0);
	CHECK_INT(m->heap[3].words[0], 0);
	CHECK(check_now() - start >= 8 * OWN_NS * 1e-9 && check_now() - start < 11 * OWN_NS * 1e-9,
	      "%.2f s", check_now() - start);
	NEED_CUDA(cudaFreeHost(m));
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
	start = check_now();
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_stuck_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(memory->come, 0);
	CHECK_INT(memory->records[EP_RECORD_FATAL].peer, 2);
	CHECK(check_now() - start >= STUCK_NS * 1e-9 && check_now() - start < 2 * STUCK_NS * 1e-9,
	      "%.2f s", check_now() - start);
	NEED_CUDA(cudaFreeHost(memory));
}

int main(void)
{
	blame();
	check_context("this rank's own warp");
	own();
	check_context("stuck");
	stuck();
	return check_end();
}
