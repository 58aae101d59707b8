/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of several nodes, each with a queue pair to every rank, itself included: data and a
 * signal after it, by every order the tier allows; atomics of all ranks on one word.
 */
#include <unistd.h>
#include "nic_client.h"
#include "ranks.h"
#include "test.h"

#define SLOT 65536
#define ROUNDS 40

struct info {
	struct cl_end end[RANKS_MAX];
	uint64_t heap, signal;
	uint32_t heap_key, signal_key;
	uint32_t tier;
};

/* The signals of rank i: where everybody's data number, and the count of all. */
struct signals {
	uint64_t from[RANKS_MAX];
	uint64_t ack[RANKS_MAX];
	uint64_t sum, old;
};

static struct cl_dev dev;
static struct cl_queue queue[RANKS_MAX];
static struct info mine, all[RANKS_MAX];
static uint8_t *heap, *source;
static struct signals *signals;
static struct ibv_mr *mr_heap, *mr_signal, *mr_source;

static void set_up(void)
{
	struct cl_options o = { .tier = -1, .mtu = 3 };

	cl_open(&dev, local_rank);
	heap = calloc(RANKS_MAX, SLOT);
	source = malloc(SLOT);
	signals = calloc(1, sizeof(*signals));
	mr_heap = cl_reg(&dev, heap, RANKS_MAX * SLOT, CL_FULL | IBV_ACCESS_RELAXED_ORDERING);
	mr_signal = cl_reg(&dev, signals, sizeof(*signals), CL_FULL);
	mr_source = cl_reg(&dev, source, SLOT, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < nranks; i++) {
		cl_create(&queue[i], &dev, CL_DEPTH, false);
		mine.end[i] = cl_end(&queue[i]);
	}
	mine.heap = (uintptr_t)heap;
	mine.signal = (uintptr_t)signals;
	mine.heap_key = mr_heap->rkey;
	mine.signal_key = mr_signal->rkey;
	ranks_gather(&mine, all, sizeof(mine));
	for (int i = 0; i < nranks; i++) {
		cl_connect(&queue[i], &all[i].end[rank], &o);
	}
}

static uint8_t pattern(int from, int to, uint64_t round, uint32_t at)
{
	return (uint8_t)(from * 31 + to * 17 + (int)round * 7 + (int)(at * 5 + at / 256));
}

static void wait_for(const uint64_t *word, uint64_t value, const char *what, int who)
{
	for (uint32_t n = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) < value; n++) {
		usleep(n < 100 ? 0 : 50);
		if (n > 200000) {
			fprintf(stderr, "rank %d: no %s from %d\n", rank, what, who);
			exit(1);
		}
	}
}

static uint64_t signal_at(int peer, const void *member)
{
	return all[peer].signal + (uint64_t)((const char *)member - (const char *)signals);
}

/*
 * Data in pieces, then the number of the round by a fetch-and-add: it must come after the data,
 * whatever the tier. Then everybody acknowledges, so that the slots can be used again.
 */
static void rounds(uint8_t fence)
{
	static uint64_t round;

	for (int k = 0; k < ROUNDS; k++) {
		round++;
		for (int p = 0; p < nranks; p++) {
			uint64_t to = all[p].heap + (uint64_t)rank * SLOT;

			CHECK_INT(cl_wait(&queue[p]), 0);
			for (uint32_t i = 0; i < SLOT; i++) {
				source[i] = pattern(rank, p, round, i);
			}
			for (uint32_t i = 0; i < SLOT; i += 5000) {
				uint32_t n = SLOT - i < 5000 ? SLOT - i : 5000;

				cl_write(&queue[p], source + i, mr_source->lkey, to + i,
					 all[p].heap_key, n, 0);
			}
			cl_add(&queue[p], &signals->old, mr_signal->lkey,
			       signal_at(p, &signals->from[rank]), all[p].signal_key, 1,
			       fence | CL_SIGNALED);
			cl_ring(&queue[p]);
			CHECK_INT(cl_wait(&queue[p]), 0); /* `source` is free again */
		}
		for (int p = 0; p < nranks; p++) {
			uint32_t wrong = 0;

			wait_for(&signals->from[p], round, "data", p);
			for (uint32_t i = 0; i < SLOT; i++) {
				wrong += heap[(size_t)p * SLOT + i] != pattern(p, rank, round, i);
			}
			CHECK_INT(wrong, 0);
			cl_inline(&queue[p], &round, 8, signal_at(p, &signals->ack[rank]),
				  all[p].signal_key, CL_SIGNALED);
			cl_ring(&queue[p]);
		}
		for (int p = 0; p < nranks; p++) {
			wait_for(&signals->ack[p], round, "answer", p);
		}
	}
}

static void sums(void)
{
	for (int k = 0; k < 200; k++) {
		for (int p = 0; p < nranks; p++) {
			cl_add(&queue[p], &signals->old, mr_signal->lkey,
			       signal_at(p, &signals->sum), all[p].signal_key, (uint64_t)rank + 1,
			       k == 199 ? CL_SIGNALED : 0);
			cl_ring(&queue[p]);
		}
	}
	for (int p = 0; p < nranks; p++) {
		CHECK_INT(cl_wait(&queue[p]), 0);
	}
	ranks_meet();
	CHECK_INT(signals->sum, 200 * nranks * (nranks + 1) / 2);
}

int main(void)
{
	int tier = atoi(getenv("VC_NIC_TIER") ? getenv("VC_NIC_TIER") : "1");

	ranks_init();
	set_up();
	ranks_meet();
	rounds(tier == 2 ? EP_MLX5_FM_FENCE : 0);
	sums();
	ranks_meet();
	for (int i = 0; i < nranks; i++) {
		cl_destroy(&queue[i]);
	}
	NEED(ibv_dereg_mr(mr_heap));
	NEED(ibv_dereg_mr(mr_signal));
	NEED(ibv_dereg_mr(mr_source));
	cl_close(&dev);
	free(heap);
	free(source);
	free(signals);
	return test_result();
}
