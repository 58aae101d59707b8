/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program may see of the order in which data is placed: what the tier promises always holds,
 * what it does not promise does happen.
 */
#include "nic_client.h"
#include "test.h"

#define DATA 512
#define ROUNDS 1000
#define PATIENCE 100000 /* rounds: on a busy machine the reader seldom looks at the right moment */

enum signal {
	PLAIN,
	STRONG,
	ADD,
	ADD_FENCED
};

static struct cl_dev dev;
static uint64_t *data, *word, source[DATA], old;
static struct ibv_mr *mr_data, *mr_relaxed, *mr_word, *mr_source, *mr_old;

/* What happens in no round, or what may take many to happen once. */
static bool enough(bool happens, uint64_t round, uint32_t seen)
{
	return happens ? seen || round > PATIENCE : round > ROUNDS;
}

/* Data of several packets, then a signal. Returns how often the signal came before the data. */
static uint32_t early(int tier, enum signal signal, bool happens)
{
	struct cl_options o = { .tier = tier, .force = true, .mtu = 1 };
	struct cl_queue q, peer;
	uint32_t seen = 0;

	cl_create(&q, &dev, CL_DEPTH, false);
	cl_create(&peer, &dev, CL_DEPTH, false);
	cl_pair(&q, &peer, &o);
	*word = 0;
	for (uint64_t r = 1; !enough(happens, r, seen); r++) {
		for (uint32_t i = 0; i < DATA; i++) {
			source[i] = r;
		}
		cl_write(&q, source, mr_source->lkey, (uintptr_t)data, mr_data->rkey, 2048, 0);
		cl_write(&q, source, mr_source->lkey, (uintptr_t)(data + 256), mr_data->rkey, 2048,
			 0);
		if (signal == PLAIN || signal == STRONG) {
			cl_inline(&q, &r, 8, (uintptr_t)word, mr_word->rkey,
				  CL_SIGNALED | (signal == STRONG ? EP_MLX5_FM_STRONG : 0));
		} else {
			cl_add(&q, &old, mr_old->lkey, (uintptr_t)word, mr_word->rkey, 1,
			       CL_SIGNALED | (signal == ADD_FENCED ? EP_MLX5_FM_FENCE : 0));
		}
		cl_ring(&q);
		while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != r) {
		}
		for (uint32_t i = 0; i < DATA; i++) {
			if (__atomic_load_n(&data[i], __ATOMIC_RELAXED) != r) {
				seen++;
				break;
			}
		}
		CHECK_INT(cl_wait(&q), 0);
		for (uint32_t i = 0; i < DATA; i++) { /* complete means there */
			CHECK_INT(data[i], r);
		}
		CHECK_INT(*word, r);
	}
	cl_destroy(&q);
	cl_destroy(&peer);
	return seen;
}

/* One packet: how often its last word is there before its first. */
static uint32_t torn(struct ibv_mr *mr, uint32_t words, bool happens)
{
	struct cl_options o = { .tier = 0, .force = true };
	struct cl_queue q, peer;
	uint32_t seen = 0;

	cl_create(&q, &dev, CL_DEPTH, false);
	cl_create(&peer, &dev, CL_DEPTH, false);
	cl_pair(&q, &peer, &o);
	memset(data, 0, sizeof(source));
	for (uint64_t r = 1; !enough(happens, r, seen); r++) {
		for (uint32_t i = 0; i < words; i++) {
			source[i] = r << 32 | r;
		}
		cl_write(&q, source, mr_source->lkey, (uintptr_t)data, mr->rkey, 8 * words,
			 CL_SIGNALED);
		cl_ring(&q);
		for (bool there = false; !there;) {
			uint64_t last = __atomic_load_n(&data[words - 1], __ATOMIC_ACQUIRE);
			uint64_t first = __atomic_load_n(&data[0], __ATOMIC_ACQUIRE);

			there = last == (r << 32 | r);
			seen += there && first != last;
			CHECK((uint32_t)last == last >> 32); /* words of 8 bytes never tear */
		}
		CHECK_INT(cl_wait(&q), 0);
		for (uint32_t i = 0; i < words; i++) {
			CHECK_INT(data[i], source[i]);
		}
	}
	cl_destroy(&q);
	cl_destroy(&peer);
	return seen;
}

static void allocate(void)
{
	data = aligned_alloc(4096, 4096);
	word = aligned_alloc(64, 64);
	mr_data = cl_reg(&dev, data, 4096, CL_FULL);
	mr_relaxed = cl_reg(&dev, data, 4096, CL_FULL | IBV_ACCESS_RELAXED_ORDERING);
	mr_word = cl_reg(&dev, word, 64, CL_FULL);
	mr_source = cl_reg(&dev, source, sizeof(source), IBV_ACCESS_LOCAL_WRITE);
	mr_old = cl_reg(&dev, &old, 8, IBV_ACCESS_LOCAL_WRITE);
	memset(data, 0, 4096);
}

int main(void)
{
	static const uint32_t words[] = { 2, 16, DATA };
	const char *pieces = getenv("VC_NIC_PIECE");
	uint32_t line = pieces && atoi(pieces) == 128 ? 16 : 1;

	cl_open(&dev, 0);
	allocate();
	CHECK_INT(early(0, PLAIN, false), 0);
	CHECK(early(1, PLAIN, true));
	CHECK_INT(early(1, STRONG, false), 0);
	CHECK_INT(early(1, ADD, false), 0);
	CHECK(early(2, ADD, true));
	CHECK_INT(early(2, ADD_FENCED, false), 0);
	CHECK_INT(early(2, STRONG, false), 0);
	for (int i = 0; i < 3; i++) {
		bool happens = words[i] > line;

		CHECK_INT(torn(mr_data, words[i], false), 0);
		CHECK_INT(torn(mr_relaxed, words[i], happens), happens);
	}
	NEED(ibv_dereg_mr(mr_data));
	NEED(ibv_dereg_mr(mr_relaxed));
	NEED(ibv_dereg_mr(mr_word));
	NEED(ibv_dereg_mr(mr_source));
	NEED(ibv_dereg_mr(mr_old));
	cl_close(&dev);
	return test_result();
}
