/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NIC beside GPUs whose memory it cannot touch: payload, signals and atomics go by copies, and
 * the NIC acknowledges only what has arrived.
 */
#include "fake_gpu.h"
#include "nic_client.h"
#include "test.h"

#define BYTES (4u << 20)
#define BATCHES 200 /* more than the NIC has room for at once */

static struct cl_dev dev;
static uint64_t gpu_from, gpu_to;
static uint8_t *from, *to; /* where the fake driver keeps the two */
static uint64_t old, olds[CL_DEPTH];
static struct ibv_mr *mr_from, *mr_to, *mr_old, *mr_olds;

static void test_one_by_one(struct cl_queue *q)
{
	static const uint32_t sizes[] = { 1, 8, 4096, 4097, 14336, 16385, 100000, (1u << 20) + 5 };
	uint64_t value;

	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		for (uint32_t k = 0; k < sizes[i]; k++) {
			from[k + 8] = (uint8_t)(k * 3 + i + 1);
		}
		memset(to, 0, BYTES);
		cl_write(q, (void *)(uintptr_t)(gpu_from + 8), mr_from->lkey, gpu_to + 16,
			 mr_to->rkey, sizes[i], CL_SIGNALED);
		cl_ring(q);
		CHECK_INT(cl_wait(q), 0);
		CHECK(!memcmp(to + 16, from + 8, sizes[i]) && !to[15] && !to[16 + sizes[i]]);
	}
	value = 40;
	memcpy(to, &value, 8);
	cl_add(q, &old, mr_old->lkey, gpu_to, mr_to->rkey, 2, CL_SIGNALED);
	cl_ring(q);
	CHECK_INT(cl_wait(q), 0);
	memcpy(&value, to, 8);
	CHECK(old == 40 && value == 42);
}

/*
 * Many rows and a count after each batch: when the count is there, so are the rows. Rows side by
 * side are few copies, and of those that come in any order each is one, whatever its number of
 * packets.
 */
static void test_batches(struct cl_queue *q, uint32_t copies)
{
	struct fake_gpu_calls before = fake_gpu_calls;

	for (uint64_t batch = 1; batch <= BATCHES; batch++) {
		memset(from, (int)batch, 32 * 7168);
		for (uint32_t i = 0; i < 32; i++) {
			cl_write(q, (void *)(uintptr_t)(gpu_from + i * 7168), mr_from->lkey,
				 gpu_to + 4096 + i * 7168, mr_to->rkey, 7168, 0);
		}
		cl_add(q, &old, mr_old->lkey, gpu_to, mr_to->rkey, 1, CL_SIGNALED);
		cl_ring(q);
		CHECK_INT(cl_wait(q), 0);
		CHECK_INT(old, 42 + batch - 1);
		CHECK(!memcmp(to + 4096, from, 32 * 7168));
	}
	CHECK((fake_gpu_calls.in - before.in) / BATCHES <= copies);
	CHECK((fake_gpu_calls.out - before.out) / BATCHES <=
	      4); /* and the word that is counted in */
	CHECK((fake_gpu_calls.waits - before.waits) / BATCHES <= 20);
}

/* Adds to one word and the word after it, and writes between them: one after the other. */
static void test_words(struct cl_queue *q)
{
	uint64_t set = 100, value, n = 0;

	memset(to, 0, 16);
	for (int i = 0; i < 5; i++) {
		cl_add(q, &olds[n++], mr_olds->lkey, gpu_to, mr_to->rkey, 3, 0);
	}
	cl_inline(q, &set, 8, gpu_to, mr_to->rkey, 0);
	for (int i = 0; i < 4; i++) {
		cl_add(q, &olds[n++], mr_olds->lkey, gpu_to + 8 * (i % 2), mr_to->rkey, 1, 0);
	}
	cl_add(q, &olds[n++], mr_olds->lkey, gpu_to, mr_to->rkey, 1, CL_SIGNALED);
	cl_ring(q);
	CHECK_INT(cl_wait(q), 0);
	for (uint64_t i = 0; i < 5; i++) {
		CHECK_INT(olds[i], 3 * i);
	}
	CHECK(olds[5] == 100 && olds[6] == 0 && olds[7] == 101 && olds[8] == 1);
	CHECK_INT(olds[9], 102);
	memcpy(&value, to, 8);
	CHECK_INT(value, 103);
	CHECK_INT(to[8], 2);
}

static void test_tier(int tier)
{
	struct cl_options o = { .tier = tier, .force = true };
	struct cl_queue q, peer;

	cl_create(&q, &dev, CL_DEPTH, false);
	cl_create(&peer, &dev, CL_DEPTH, false);
	cl_pair(&q, &peer, &o);
	test_one_by_one(&q);
	test_batches(&q, tier ? 40 : 8);
	if (!tier) {
		test_words(&q); /* later tiers let writes pass atomics */
	}
	cl_destroy(&q);
	cl_destroy(&peer);
}

int main(void)
{
	NEED(cuMemAlloc_v2(&gpu_from, BYTES) || cuMemAlloc_v2(&gpu_to, BYTES));
	from = fake_gpu_shadow(gpu_from, BYTES);
	to = fake_gpu_shadow(gpu_to, BYTES);
	cl_open(&dev, 0);
	/* Queues stay in host memory beside GPUs. */
	CHECK(!mlx5dv_devx_umem_reg(dev.ctx, (void *)(uintptr_t)gpu_to, 4096,
				    IBV_ACCESS_LOCAL_WRITE));
	CHECK(!ibv_reg_dmabuf_mr(dev.pd, 0, 0, 0, -1, 0));
	CHECK_INT(errno, EOPNOTSUPP);
	mr_from = cl_reg(&dev, (void *)(uintptr_t)gpu_from, BYTES, CL_FULL);
	mr_to = cl_reg(&dev, (void *)(uintptr_t)gpu_to, BYTES,
		       CL_FULL | IBV_ACCESS_RELAXED_ORDERING);
	mr_old = cl_reg(&dev, &old, 8, CL_FULL);
	mr_olds = cl_reg(&dev, olds, sizeof(olds), CL_FULL);
	test_tier(0);
	test_tier(1);
	NEED(ibv_dereg_mr(mr_from));
	NEED(ibv_dereg_mr(mr_to));
	NEED(ibv_dereg_mr(mr_old));
	NEED(ibv_dereg_mr(mr_olds));
	cl_close(&dev);
	return test_result();
}
