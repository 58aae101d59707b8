/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program may see of the order in which data is placed: what the tier promises always holds,
 * what it does not promise does happen. The NIC works in single steps and has the test look at
 * memory after each word that it stores: so nothing depends on who runs when.
 */
#include "nic/step.h"
#include "nic_client.h"
#include "test.h"

#define DATA 512
#define ROUNDS 1000

enum signal {
	PLAIN,
	STRONG,
	ADD,
	ADD_FENCED
};

static struct cl_dev dev;
static uint64_t *data, *word, source[DATA], old;
static struct ibv_mr *mr_data, *mr_relaxed, *mr_word, *mr_source, *mr_old;

/* What is looked for after each word. */
static struct {
	const uint64_t *last; /* this word has the round's value, not that of the one before, */
	uint64_t value, before;
	uint32_t words; /* and one of so many of `data` has not */
	bool seen;      /* in this round */
} look;

static void look_at_memory(void *arg)
{
	(void)arg;
	CHECK(*look.last == look.value || *look.last == look.before); /* no half of a word */
	if (look.seen || *look.last != look.value) {
		return;
	}
	for (uint32_t i = 0; i < look.words; i++) {
		look.seen |= data[i] != look.value;
	}
}

static void look_for(const uint64_t *last, uint64_t value, uint64_t before, uint32_t words)
{
	look.last = last;
	look.value = value;
	look.before = before;
	look.words = words;
	look.seen = false;
}

static void serve(struct cl_queue *q)
{
	cl_ring(q);
	while (vn_dv_step(0)) {
	}
	CHECK_INT(cl_wait(q), 0);
}

static void signal_send(struct cl_queue *q, enum signal signal, uint64_t *round)
{
	if (signal == PLAIN || signal == STRONG) {
		cl_inline(q, round, 8, (uintptr_t)word, mr_word->rkey,
			  CL_SIGNALED | (signal == STRONG ? EP_MLX5_FM_STRONG : 0));
	} else {
		cl_add(q, &old, mr_old->lkey, (uintptr_t)word, mr_word->rkey, 1,
		       CL_SIGNALED | (signal == ADD_FENCED ? EP_MLX5_FM_FENCE : 0));
	}
}

/*
 * Data of several packets, then a signal. Returns in how many rounds the signal came before the
 * data.
 */
static uint32_t early(int tier, enum signal signal)
{
	struct cl_options o = { .tier = tier, .force = true, .mtu = 1 };
	struct cl_queue q, peer;
	uint32_t seen = 0;

	cl_create(&q, &dev, CL_DEPTH, false);
	cl_create(&peer, &dev, CL_DEPTH, false);
	cl_pair(&q, &peer, &o);
	*word = 0;
	for (uint64_t r = 1; r <= ROUNDS; r++) {
		for (uint32_t i = 0; i < DATA; i++) {
			source[i] = r;
		}
		look_for(word, r, r - 1, DATA);
		cl_write(&q, source, mr_source->lkey, (uintptr_t)data, mr_data->rkey, 2048, 0);
		cl_write(&q, source, mr_source->lkey, (uintptr_t)(data + 256), mr_data->rkey, 2048,
			 0);
		signal_send(&q, signal, &r);
		serve(&q);
		seen += look.seen;
		for (uint32_t i = 0; i < DATA; i++) { /* complete means there */
			CHECK_INT(data[i], r);
		}
		CHECK_INT(*word, r);
	}
	cl_destroy(&q);
	cl_destroy(&peer);
	return seen;
}

/* One packet: in how many rounds its last word is there before another one. */
static uint32_t torn(struct ibv_mr *mr, uint32_t words)
{
	struct cl_options o = { .tier = 0, .force = true };
	struct cl_queue q, peer;
	uint32_t seen = 0;

	cl_create(&q, &dev, CL_DEPTH, false);
	cl_create(&peer, &dev, CL_DEPTH, false);
	cl_pair(&q, &peer, &o);
	memset(data, 0, sizeof(source));
	for (uint64_t r = 1; r <= ROUNDS; r++) {
		for (uint32_t i = 0; i < words; i++) {
			source[i] = r << 32 | r;
		}
		look_for(&data[words - 1], r << 32 | r, (r - 1) << 32 | (r - 1), words);
		cl_write(&q, source, mr_source->lkey, (uintptr_t)data, mr->rkey, 8 * words,
			 CL_SIGNALED);
		serve(&q);
		seen += look.seen;
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
	static const struct vn_dv_watch watch = { .placed = look_at_memory };
	const char *pieces = getenv("VC_NIC_PIECE");
	uint32_t line = pieces && atoi(pieces) == 128 ? 16 : 1;

	setenv("VC_NIC_STEP", "1", 1);
	cl_open(&dev, 0);
	allocate();
	look_for(word, 1, 0, 0);
	vn_dv_watch(&watch);
	CHECK_INT(early(0, PLAIN), 0);
	CHECK(early(1, PLAIN));
	CHECK_INT(early(1, STRONG), 0);
	CHECK_INT(early(1, ADD), 0);
	CHECK(early(2, ADD));
	CHECK_INT(early(2, ADD_FENCED), 0);
	CHECK_INT(early(2, STRONG), 0);
	for (int i = 0; i < 3; i++) {
		CHECK_INT(torn(mr_data, words[i]), 0);
		CHECK_INT(torn(mr_relaxed, words[i]) != 0, words[i] > line);
	}
	NEED(ibv_dereg_mr(mr_data));
	NEED(ibv_dereg_mr(mr_relaxed));
	NEED(ibv_dereg_mr(mr_word));
	NEED(ibv_dereg_mr(mr_source));
	NEED(ibv_dereg_mr(mr_old));
	cl_close(&dev);
	return test_result();
}
