/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MaskClean with more ranks than a block has threads: the kernel of rank 600 of 700. All heaps are
 * one piece of memory, and a thread plays the other ranks: it leaves their calls before, and their
 * results when it sees the kernel's call.
 */
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include "device/group/group_layout.h"
#include "device/kernels.h"
#include "support/check_nccl.h"

#define RANKS 700
#define SELF 600
#define STEP 40 /* of this rank; the others are at most 9 steps ahead */
#define CLEAN_OFF (8 * RANKS)

struct memory {
	uint64_t heap[3 * RANKS]; /* progress, calls, results, */
	unsigned char signatures[EP_SIGNATURE_BYTES(RANKS)];
	uint64_t mask[EP_MASK_BYTES(RANKS) / 8];
	unsigned char *all_heaps[RANKS];
	struct ep_dev_seq seq[EP_GROUP_MAX_BLOCKS];
	struct ep_dev_state state;
	struct ep_record records[EP_RECORDS];
	uint32_t async_error;
	struct ep_ranks absent;
};

/*
 * 5 and 513 do not come, 513 is masked; the process of 699 has ended, and its call is an old one.
 */
static bool comes(int r)
{
	return r != 5 && r != 513 && r != 699;
}

static uint64_t *word(struct memory *m, int which, int r)
{
	return m->heap + (1 + which) * RANKS + r;
}

/* The mark of the step by rank r. */
static uint64_t *mark(struct memory *m, uint32_t step, uint32_t r)
{
	return (uint64_t *)(m->signatures + ep_signature_slot_off(RANKS, step, r));
}

static void *others(void *arg)
{
	struct memory *m = arg;

	while (!__atomic_load_n(word(m, 0, SELF), __ATOMIC_ACQUIRE)) {
	}
	for (int r = 0; r < RANKS; r++) {
		if (comes(r) && r != SELF) {
			__atomic_store_n(word(m, 1, r), ep_progress_word(70, 1, 0),
					 __ATOMIC_RELEASE);
		}
	}
	return NULL;
}

static void prepare(struct memory *m, struct ep_clean_args *args)
{
	int32_t *mask = (int32_t *)m->mask;
	struct ep_dev_group *g = &args->g;

	memset(m, 0, sizeof(*m));
	for (int r = 0; r < RANKS; r++) {
		mask[r] = r != 513 && r % 7 != 3;
		m->all_heaps[r] = (unsigned char *)m->heap;
		m->heap[r] = ep_progress_word(STEP + (uint32_t)r % 10, 0, 0);
		if ((comes(r) && r != SELF) || r == 699) {
			*word(m, 0, r) = ep_progress_word(60 + (uint32_t)(r == 698), 1, 0);
		}
		if (r < EP_GROUP_NEAR_RANKS) {
			g->heap[r] = m->all_heaps[r];
		}
	}
	for (uint32_t step = STEP; step < STEP + EP_SIGNATURE_SLOTS; step++) {
		*mark(m, step, SELF) = *mark(m, step, 0) = 1;
	}
	for (int i = 0; i < EP_GROUP_MAX_BLOCKS; i++) {
		m->seq[i].step = STEP;
	}
	g->rank = SELF;
	g->nranks = RANKS;
	g->banks = EP_GROUP_REMOTE_BANKS;
	g->mask_enabled = 1;
	g->timeout_ns = 300000000;
	g->mask = mask;
	g->seq = m->seq;
	g->state = &m->state;
	g->records = m->records;
	g->async_error = &m->async_error;
	g->clean_off = CLEAN_OFF;
	g->signature_off = offsetof(struct memory, signatures);
	g->own = (unsigned char *)m->heap;
	g->all_heaps = m->all_heaps;
	ep_ranks_add(&args->gone, 699);
	args->absent = &m->absent;
}

int main(void)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 },
				      .blockDim = { EP_GROUP_MAX_THREADS, 1, 1 } };
	struct ep_clean_args args = { 0 };
	void *list[] = { &args };
	pthread_t thread;
	struct memory *m;

	NEED_CUDA(cudaMallocHost((void **)&m, sizeof(*m)));
	prepare(m, &args);
	NEED(pthread_create(&thread, NULL, others, m) == 0);
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ep_clean_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	pthread_join(thread, NULL);
	for (int r = 0; r < RANKS; r++) {
		check_context("rank %d", r);
		CHECK(((int32_t *)m->mask)[r] == (r != 699));
		CHECK((ep_ranks_has(&m->absent, (uint32_t)r) == 0) == comes(r));
	}
	check_context("all");
	for (uint32_t step = STEP; step < STEP + EP_SIGNATURE_SLOTS; step++) {
		CHECK(!*mark(m, step, SELF) && *mark(m, step, 0) == 1);
	}
	/* the highest step of those who came decides, and then the highest result */
	CHECK(m->seq[0].step == 70 && m->seq[EP_GROUP_MAX_BLOCKS - 1].step == 70);
	CHECK(m->seq[0].clean_round == 1 && m->seq[0].busy == ep_seq_busy(2));
	CHECK(m->async_error == 1 && m->records[EP_RECORD_MASKED].valid);
	CHECK(m->records[EP_RECORD_MASKED].peer == 5);
	NEED_CUDA(cudaFreeHost(m));
	return check_end();
}
