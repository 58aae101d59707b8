/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rule for WQEs and doorbells that the NIC checks, broken once: the process must end with
 * status 88 and say what was wrong. Every case runs as a child of its own.
 */
#include "child.h"
#include "nic_client.h"
#include "test.h"

static struct cl_dev dev;
static struct cl_queue q, peer;
static uint8_t buffer[8192] __attribute__((aligned(4096)));
static struct ibv_mr *mr;

static struct ep_mlx5_wqe unused; /* a slot as the NIC left it when its first WQE was done */

static uint32_t *last_words(void)
{
	return q.sq[(q.pi - 1) & (q.depth - 1)].w;
}

static void good_write(void)
{
	cl_write(&q, buffer, mr->lkey, (uintptr_t)buffer + 4096, mr->rkey, 100, 0);
}

static void signaled_write(void)
{
	cl_write(&q, buffer, mr->lkey, (uintptr_t)buffer + 4096, mr->rkey, 100, CL_SIGNALED);
}

static void good_add(void)
{
	cl_add(&q, buffer, mr->lkey, (uintptr_t)buffer + 4096, mr->rkey, 1, 0);
}

static void good_inline_12(void)
{
	cl_inline(&q, buffer, 12, (uintptr_t)buffer + 4096, mr->rkey, 0);
}

static void good_inline_16(void)
{
	cl_inline(&q, buffer, 16, (uintptr_t)buffer + 4096, mr->rkey, 0);
}

static void good_nop(void)
{
	cl_nop(&q, 0);
}

static void use_all(void)
{
	for (uint32_t i = 0; i < q.depth; i++) {
		signaled_write();
		cl_ring(&q);
	}
	CHECK_INT(cl_wait(&q), 0);
}

/* The slot was used before, and the next WQE is handed over without being written. */
static void bad_unwritten(void)
{
	use_all();
	q.pi++;
}

static void good_inline_again(void)
{
	use_all();
	unused = q.sq[q.pi & (q.depth - 1)];
	cl_inline(&q, buffer, 28, (uintptr_t)buffer + 4096, mr->rkey, 0);
}

static void bad_overrun(void)
{
	for (uint32_t i = 0; i < q.depth + 1; i++) {
		q.done = q.pi; /* as if a completion had said so */
		good_write();
	}
}

static void ring_back(void)
{
	for (int i = 0; i < 3; i++) {
		signaled_write();
	}
	cl_ring(&q);
	CHECK_INT(cl_wait(&q), 0);
	q.pi--;
}

static void store_db(uint32_t first, uint32_t second)
{
	__atomic_store_n((uint64_t *)((char *)q.uar->base_addr + EP_MLX5_UAR_DOORBELL),
			 (uint64_t)htobe32(second) << 32 | htobe32(first), __ATOMIC_RELEASE);
	usleep(300000);
}

static void bad_record(void)
{
	good_write();
	store_db(1u << 8, q.qpn << 8); /* without the record */
}

static void bad_record_wide(void)
{
	good_write();
	q.dbr->send = htobe32(0x10001);
	store_db(1u << 8, q.qpn << 8);
}

/* Another queue pair is on the page: its word does not say how far to go, the records do. */
static void bad_doorbell_behind(void)
{
	good_write();
	signaled_write();
	q.dbr->send = htobe32(2);
	store_db(1u << 8, q.qpn << 8);
	mlx5dv_devx_obj_destroy(q.qp_obj);
}

static void bad_doorbell_qpn(void)
{
	store_db(1u << 8, 0xffff42u << 8);
}

static void bad_doorbell_opcode(void)
{
	good_write();
	q.dbr->send = htobe32(1);
	store_db(1u << 8 | EP_MLX5_OP_WRITE, q.qpn << 8);
}

static void bad_doorbell_page(void)
{
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(dev.ctx, MLX5DV_UAR_ALLOC_TYPE_BF);
	struct cl_queue other;

	cl_create(&other, &dev, CL_DEPTH, true);
	good_write();
	q.uar = other.uar;
	NEED(!uar);
}

static void bad_state(void)
{
	cl_create(&q, &dev, CL_DEPTH, false);
	cl_nop(&q, 0);
}

static void connect_q(void)
{
	struct cl_options o = { .tier = 0 };
	struct cl_end e = cl_end(&peer);

	cl_connect(&q, &e, &o);
}

static void bad_cqe(void)
{
	cl_create(&q, &dev, CL_DEPTH, false);
	memset(q.cqe, 0, sizeof(*q.cqe));
	connect_q();
}

static void bad_dbr(void)
{
	cl_create(&q, &dev, CL_DEPTH, false);
	q.dbr->send = 1;
	connect_q();
}

static void bad_uar(void)
{
	mlx5dv_devx_free_uar(dev.uar);
}

#define AS_BEFORE UINT32_MAX

/*
 * `post` writes a WQE, a good one where a row has a word; then these bits of that word are flipped,
 * or the segment that begins there becomes what it was before. The NIC must say `says`.
 */
static const struct {
	const char *name;
	void (*post)(void);
	uint32_t word, flip;
	const char *says;
} cases[] = {
	/* control segment */
	{ "index", good_write, 0, 5 << 8, "the WQE says index 5" },
	{ "opcode", good_write, 0, EP_MLX5_OP_WRITE ^ 0x0a, "opcode 0xa" },
	{ "opmod", good_write, 0, 8 << 24, "opmod 0x8" },
	{ "qpn", good_write, 1, 1 << 8, "the WQE says qp 0x" },
	{ "ds0", good_write, 1, 3 ^ 0, "DS 0: one basic block" },
	{ "ds5", good_write, 1, 3 ^ 5, "DS 5: one basic block" },
	{ "ds4", good_write, 1, 3 ^ 4, "but DS 4" },
	{ "dsatomic", good_add, 1, 4 ^ 3, "atomic with DS 3" },
	{ "nop", good_nop, 1, 1 ^ 3, "NOP with DS 3" },
	{ "signature", good_write, 2, 1 << 24, "signature 1" },
	{ "stream", good_write, 2, 1 << 8, "stream 0 1" },
	{ "flags", good_write, 2, EP_MLX5_CE_ALWAYS | 0xa0, "fm_ce_se 0xa8" },
	{ "imm", good_write, 3, 1 << 24, "imm 0x1000000" },
	/* remote address, data */
	{ "atomicalign", good_add, 5, 4, "atomic at the unaligned address" },
	{ "raddr", good_write, 7, 1, "its reserved word is not 0" },
	{ "count0", good_write, 8, 100 ^ 0, "data segment of 0 bytes" },
	{ "countbig", good_write, 8, 100 ^ ((1 << 30) + 1), "data segment of 1073741825 bytes" },
	{ "inline", good_inline_12, 8, 12 ^ 13, "13 bytes inline with DS 3" },
	{ "atomiclen", good_add, 12, 8 ^ 4, "data segment of 4 bytes" },
	{ "padding", good_inline_16, 13, 1, "inline data of 16 bytes is padded with 0x01" },
	/* slots that were used before */
	{ "unwritten", bad_unwritten, .says = "not written since the slot was used last" },
	{ "torn1", good_inline_again, 4, AS_BEFORE, "segment 1 of 4 was not written" },
	{ "torn2", good_inline_again, 8, AS_BEFORE, "segment 2 of 4 was not written" },
	{ "torn3", good_inline_again, 12, AS_BEFORE, "segment 3 of 4 was not written" },
	{ "overrun", bad_overrun, .says = "overrun: 65 WQEs of a queue of 64" },
	/* doorbells */
	{ "back", ring_back, .says = "doorbell goes back" },
	{ "record", bad_record, .says = "doorbell, but its doorbell record says 0" },
	{ "recordwide", bad_record_wide, .says = "doorbell record is 0x10001" },
	{ "dbbehind", bad_doorbell_behind, .says = "but the doorbell record says 2" },
	{ "dbqpn", bad_doorbell_qpn, .says = "no such queue pair on this page" },
	{ "dbopcode", bad_doorbell_opcode, .says = "without DS, but with an opcode" },
	{ "dbpage", bad_doorbell_page, .says = "no such queue pair on this page" },
	{ "state", bad_state, .says = "doorbell while the queue pair is not in RTS" },
	/* what is not ready at RTS, what is still in use */
	{ "cqe", bad_cqe, .says = "the CQE was not filled with 0xff" },
	{ "dbr", bad_dbr, .says = "its doorbell record was not 0" },
	{ "uar", bad_uar, .says = "queues still use the page" },
};
#define CASES (sizeof(cases) / sizeof(*cases))

static void spoil(uint32_t word, uint32_t flip)
{
	if (flip == AS_BEFORE) {
		memcpy(last_words() + word, unused.w + word, EP_MLX5_SEGMENT);
	} else {
		last_words()[word] ^= htobe32(flip);
	}
}

static int child(const char *name)
{
	struct cl_options o = { .tier = 0, .force = true };

	cl_open(&dev, 0);
	mr = cl_reg(&dev, buffer, sizeof(buffer), CL_FULL);
	cl_create(&q, &dev, CL_DEPTH, false);
	cl_create(&peer, &dev, CL_DEPTH, false);
	cl_pair(&q, &peer, &o);
	for (uint32_t i = 0; i < CASES; i++) {
		if (!strcmp(name, cases[i].name)) {
			cases[i].post();
			spoil(cases[i].word, cases[i].flip);
			cl_ring(&q);
			usleep(500000); /* it does not get that far */
		}
	}
	return 0; /* nothing was found */
}

int main(int argc, char **argv)
{
	static char text[CHILD_TEXT];

	if (argc > 1) {
		return child(argv[1]);
	}
	for (uint32_t i = 0; i < CASES; i++) {
		char *args[] = { argv[0], (char *)cases[i].name, NULL };
		int status = child_run(args, NULL, text), before = test_failures;

		CHECK_INT(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 88);
		CHECK_TEXT(text, cases[i].says);
		if (test_failures != before) {
			fprintf(stderr, "in case %s:\n%s", cases[i].name, text);
		}
	}
	return test_result();
}
