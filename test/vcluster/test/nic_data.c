/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software NIC moves data as WQEs say: within a process, one device and two, shared and own
 * doorbell pages, each kind of request, sizes around the MTU, more than 65536 WQEs through a small
 * queue.
 */
#include "nic_client.h"
#include "test.h"

#define BYTES (1u << 20)

static struct cl_dev dev[2];
static uint8_t *from, *to;
static struct ibv_mr *mr_from[2], *mr_to[2];

static void memory_make(void)
{
	from = malloc(BYTES);
	to = malloc(BYTES);
	for (int i = 0; i < 2; i++) {
		mr_from[i] = cl_reg(&dev[i], from, BYTES, CL_FULL);
		mr_to[i] = cl_reg(&dev[i], to, BYTES, CL_FULL);
	}
}

static uint64_t at(const void *p)
{
	return (uintptr_t)p;
}

static void test_kinds(struct cl_queue *q, struct ibv_mr *l, struct ibv_mr *r)
{
	static const char text[] = "0123456789abcdefghijklmnopqrstuv";
	static const uint32_t sizes[] = {
		1, 7, 64, 255, 256, 257, 4095, 4096, 4097, 12288, 100001
	};
	uint64_t old = 0, value;
	struct ibv_mr *mr_old = cl_reg(q->dev, &old, 8, CL_FULL);

	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		uint32_t n = sizes[i];

		for (uint32_t k = 0; k < BYTES; k++) {
			from[k] = (uint8_t)(k * 7 + k / 256 + i);
		}
		memset(to, 0x55, BYTES);
		cl_write(q, from + i, l->lkey, at(to + 3), r->rkey, n, CL_SIGNALED);
		cl_ring(q);
		CHECK_INT(cl_wait(q), 0);
		CHECK(!memcmp(to + 3, from + i, n) && to[2] == 0x55 && to[3 + n] == 0x55);
	}
	for (uint32_t n = 1; n <= EP_MLX5_MAX_INLINE; n++) {
		memset(to, 0, 64);
		cl_inline(q, &text[n % 4], n, at(to), r->rkey, CL_SIGNALED);
		cl_ring(q);
		CHECK_INT(cl_wait(q), 0);
		CHECK(!memcmp(to, &text[n % 4], n) && !to[n]);
	}
	cl_write(q, NULL, 0, 0, 0, 0, CL_SIGNALED);
	cl_nop(q, CL_SIGNALED);
	value = 0xfffffffffffffff0ull;
	memcpy(to, &value, 8);
	cl_add(q, &old, mr_old->lkey, at(to), r->rkey, 0x20, CL_SIGNALED);
	cl_ring(q);
	CHECK_INT(cl_wait(q), 0);
	memcpy(&value, to, 8);
	CHECK(old == 0xfffffffffffffff0ull && value == 0x10);
	NEED(ibv_dereg_mr(mr_old));
}

/* 70000 WQEs, most of them unsignaled, in batches that do not divide the queue. */
static void test_many(struct cl_queue *q, struct ibv_mr *r)
{
	uint64_t sum = 0, start = q->pi;
	uint32_t batch = 0;

	memset(to, 0, 8192);
	while (q->pi - start < 70000) {
		uint64_t value = q->pi;

		cl_inline(q, &value, 8, at(to + q->pi % 1000 * 8), r->rkey, 0);
		if (++batch % 7 == 0) {
			cl_ring(q);
		}
	}
	cl_nop(q, CL_SIGNALED);
	cl_ring(q);
	CHECK_INT(cl_wait(q), 0);
	for (int i = 0; i < 1000; i++) {
		uint64_t value;

		memcpy(&value, to + i * 8, 8);
		CHECK_INT(value % 1000, i);
		sum += value >= q->pi - 1001;
	}
	CHECK_INT(sum, 1000);
}

static void test_pair(int a, int b, bool own)
{
	struct cl_options o = { .tier = 0, .force = true };
	struct cl_queue qa, qb;
	uint8_t in[16] = { 0 }, out[256];

	cl_create(&qa, &dev[a], CL_DEPTH, own);
	cl_create(&qb, &dev[b], 128, own);
	cl_pair(&qa, &qb, &o);
	test_kinds(&qa, mr_from[a], mr_to[b]);
	test_kinds(&qb, mr_from[b], mr_to[a]);
	test_many(&qa, mr_to[b]);
	/* Two posters at once on one page. */
	for (uint32_t i = 0; i < 500; i++) {
		uint64_t value = i;

		cl_inline(&qa, &value, 8, at(to), mr_to[b]->rkey, CL_SIGNALED);
		cl_inline(&qb, &value, 8, at(to + 64), mr_to[a]->rkey, CL_SIGNALED);
		cl_ring(&qa);
		cl_ring(&qb);
	}
	CHECK_INT(cl_wait(&qa), 0);
	CHECK_INT(cl_wait(&qb), 0);
	cl_set(in, 0, 16, 0x50b);
	cl_set(in, 0x48, 24, qa.qpn);
	CHECK_INT(mlx5dv_devx_obj_query(qa.qp_obj, in, 16, out, sizeof(out)), 0);
	CHECK_INT(cl_get(out, 0xc0, 4), 3);              /* RTS */
	CHECK_INT(cl_get(out, 0xc0 + 0x26, 1), 0);       /* as asked for */
	CHECK_INT(cl_get(out, 0xc0 + 0xa8, 24), qb.qpn); /* and kept */
	CHECK_INT(cl_get(out, 0xc0 + 0x5b0, 16), qa.pi & 0xffff);
	cl_destroy(&qa);
	cl_destroy(&qb);
}

/*
 * The NIC sees only the last word of a page. A queue whose own words were all replaced before the
 * NIC looked is 33000 WQEs ahead when it rings again. 16 bits alone call that a step back.
 */
static void test_unseen(void)
{
	struct cl_options o = { .tier = 0, .force = true };
	struct cl_queue quiet, loud;
	uint64_t before;

	cl_create(&quiet, &dev[0], 4096, false);
	cl_create(&loud, &dev[0], CL_DEPTH, false);
	cl_pair(&quiet, &quiet, &o);
	cl_pair(&loud, &loud, &o);
	cl_nop(&quiet, CL_SIGNALED);
	cl_ring(&quiet);
	CHECK_INT(cl_wait(&quiet), 0);
	before = quiet.pi;
	while (quiet.pi < before + 33000) {
		for (uint32_t i = 0; i < 1000; i++) {
			cl_nop(&quiet, i == 999 ? CL_SIGNALED : 0);
		}
		__atomic_store_n(&quiet.dbr->send, htobe32((uint32_t)quiet.pi & 0xffff),
				 __ATOMIC_RELEASE);
		cl_nop(&loud, CL_SIGNALED);
		cl_ring(&loud);
		CHECK_INT(cl_wait(&loud), 0);
		CHECK_INT(cl_wait(&quiet), 0);
	}
	cl_nop(&quiet, CL_SIGNALED);
	cl_ring(&quiet);
	CHECK_INT(cl_wait(&quiet), 0);
	cl_destroy(&quiet);
	cl_destroy(&loud);
}

int main(void)
{
	setenv("VC_NICS", "2", 0);
	cl_open(&dev[0], 0);
	cl_open(&dev[1], 1);
	memory_make();
	test_pair(0, 0, false);
	test_pair(0, 1, false);
	test_pair(1, 0, true);
	test_unseen();
	for (int i = 0; i < 2; i++) {
		NEED(ibv_dereg_mr(mr_from[i]));
		NEED(ibv_dereg_mr(mr_to[i]));
		cl_close(&dev[i]);
	}
	free(from);
	free(to);
	return test_result();
}
