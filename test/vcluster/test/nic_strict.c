/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rule for WQEs and doorbells that the NIC checks, broken once: the process must end with
 * status 88 and say what was wrong. Every case runs as a child of its own.
 */
#include "child.h"
#include "nic_client.h"

static struct cl_dev dev;
static struct cl_queue q, peer;
static uint8_t buffer[8192] __attribute__((aligned(4096)));
static struct ibv_mr *mr;

static struct ep_mlx5_ctrl_seg *last(void)
{
	return (struct ep_mlx5_ctrl_seg *)&q.sq[(q.pi - 1) & (q.depth - 1)];
}

static uint32_t *last_words(void)
{
	return q.sq[(q.pi - 1) & (q.depth - 1)].w;
}

static void good_write(uint8_t flags)
{
	cl_write(&q, buffer, mr->lkey, (uintptr_t)buffer + 4096, mr->rkey, 100, flags);
}

static void good_add(void)
{
	cl_add(&q, buffer, mr->lkey, (uintptr_t)buffer + 4096, mr->rkey, 1, CL_SIGNALED);
}

static void bad_index(void)
{
	good_write(0);
	last()->opmod_idx_opcode = htobe32(5u << 8 | EP_MLX5_OP_WRITE);
}

static void bad_qpn(void)
{
	good_write(0);
	last()->qpn_ds = htobe32((q.qpn + 1) << 8 | 3);
}

static void bad_ds_0(void)
{
	good_write(0);
	last()->qpn_ds = htobe32(q.qpn << 8);
}

static void bad_ds_5(void)
{
	good_write(0);
	last()->qpn_ds = htobe32(q.qpn << 8 | 5);
}

static void bad_ds_write(void)
{
	good_write(0);
	last()->qpn_ds = htobe32(q.qpn << 8 | 4);
}

static void bad_opcode(void)
{
	good_write(0);
	last()->opmod_idx_opcode = htobe32(0x0a);
}

static void bad_opmod(void)
{
	good_write(0);
	last()->opmod_idx_opcode = htobe32(8u << 24 | EP_MLX5_OP_WRITE);
}

static void bad_signature(void)
{
	good_write(0);
	last()->signature = 1;
}

static void bad_stream(void)
{
	good_write(0);
	last()->stream[1] = 1;
}

static void bad_imm(void)
{
	good_write(0);
	last()->imm = 1;
}

static void bad_flags(void)
{
	good_write(EP_MLX5_CE_ALWAYS | 0xa0);
}

static void bad_raddr(void)
{
	good_write(0);
	last_words()[7] = 1;
}

static void bad_count_0(void)
{
	good_write(0);
	last_words()[8] = 0;
}

static void bad_count_big(void)
{
	good_write(0);
	last_words()[8] = htobe32((1u << 30) + 1);
}

static void bad_inline(void)
{
	cl_inline(&q, buffer, 12, (uintptr_t)buffer + 4096, mr->rkey, 0);
	last_words()[8] = htobe32(13 | EP_MLX5_INLINE);
}

static void bad_inline_read(void)
{
	cl_read(&q, buffer, mr->lkey, (uintptr_t)buffer + 4096, mr->rkey, 8, 0);
	last_words()[8] = htobe32(8 | EP_MLX5_INLINE);
}

static void bad_atomic_len(void)
{
	good_add();
	last_words()[12] = htobe32(4);
}

static void bad_atomic_align(void)
{
	cl_add(&q, buffer, mr->lkey, (uintptr_t)buffer + 4100, mr->rkey, 1, 0);
}

static void bad_masked(void)
{
	cl_masked_add(&q, 4, buffer, mr->lkey, (uintptr_t)buffer + 4096, mr->rkey, 1, 0, 0);
	last_words()[11] = 1;
}

static void bad_nop(void)
{
	cl_nop(&q, 0);
	last()->qpn_ds = htobe32(q.qpn << 8 | 3);
}

static void use_all(void)
{
	for (uint32_t i = 0; i < q.depth; i++) {
		good_write(CL_SIGNALED);
		cl_ring(&q);
	}
	CHECK_INT(cl_wait(&q), 0);
}

/* The slot was used before, and the WQE is "forgotten". */
static void bad_unwritten(void)
{
	use_all();
	q.pi++;
}

/* Or its end is. */
static void bad_torn(uint32_t segment)
{
	struct ep_mlx5_wqe before;

	use_all();
	before = q.sq[q.pi & (q.depth - 1)];
	cl_inline(&q, buffer, 28, (uintptr_t)buffer + 4096, mr->rkey, 0);
	memcpy(last_words() + 4 * segment, before.w + 4 * segment, EP_MLX5_SEGMENT);
}

static void bad_torn_address(void)
{
	bad_torn(1);
}

static void bad_torn_data(void)
{
	bad_torn(2);
}

static void bad_torn_end(void)
{
	bad_torn(3);
}

static void bad_padding(void)
{
	cl_inline(&q, buffer, 16, (uintptr_t)buffer + 4096, mr->rkey, 0);
	last_words()[13] = 1;
}

static void bad_overrun(void)
{
	for (uint32_t i = 0; i < q.depth + 1; i++) {
		q.done = q.pi; /* as if somebody had told */
		good_write(0);
		last()->fm_ce_se = 0;
	}
}

static void ring_back(void)
{
	for (int i = 0; i < 3; i++) {
		good_write(CL_SIGNALED);
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
	good_write(0);
	store_db(1u << 8, q.qpn << 8); /* without the record */
}

static void bad_record_wide(void)
{
	good_write(0);
	q.dbr->send = htobe32(0x10001);
	store_db(1u << 8, q.qpn << 8);
}

/* Another queue pair is on the page: its word does not say how far to go, the records do. */
static void bad_doorbell_behind(void)
{
	good_write(0);
	good_write(CL_SIGNALED);
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
	good_write(0);
	q.dbr->send = htobe32(1);
	store_db(1u << 8 | EP_MLX5_OP_WRITE, q.qpn << 8);
}

static void bad_doorbell_page(void)
{
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(dev.ctx, MLX5DV_UAR_ALLOC_TYPE_BF);
	struct cl_queue other;

	cl_create(&other, &dev, CL_DEPTH, true);
	good_write(0);
	q.uar = other.uar;
	NEED(!uar);
}

static void bad_state(void)
{
	cl_create(&q, &dev, CL_DEPTH, false);
	cl_nop(&q, 0);
}

static void bad_cqe(void)
{
	struct cl_options o = { .tier = 0 };
	struct cl_end e;

	cl_create(&q, &dev, CL_DEPTH, false);
	memset(q.cqe, 0, sizeof(*q.cqe));
	e = cl_end(&peer);
	cl_connect(&q, &e, &o);
}

static void bad_dbr(void)
{
	struct cl_options o = { .tier = 0 };
	struct cl_end e;

	cl_create(&q, &dev, CL_DEPTH, false);
	q.dbr->send = 1;
	e = cl_end(&peer);
	cl_connect(&q, &e, &o);
}

static void bad_uar(void)
{
	mlx5dv_devx_free_uar(dev.uar);
}

static const struct {
	const char *name;
	void (*run)(void);
	const char *says;
} cases[] = {
	{ "index", bad_index, "the WQE says index 5" },
	{ "qpn", bad_qpn, "the WQE says qp 0x" },
	{ "ds0", bad_ds_0, "DS 0" },
	{ "ds5", bad_ds_5, "DS 5" },
	{ "ds4", bad_ds_write, "but DS 4" },
	{ "opcode", bad_opcode, "opcode 0xa" },
	{ "opmod", bad_opmod, "opmod 0x8" },
	{ "signature", bad_signature, "signature 1" },
	{ "stream", bad_stream, "stream 0 1" },
	{ "imm", bad_imm, "imm 0x1000000" },
	{ "flags", bad_flags, "fm_ce_se 0xa8" },
	{ "raddr", bad_raddr, "its reserved word is not 0" },
	{ "count0", bad_count_0, "data segment of 0 bytes" },
	{ "countbig", bad_count_big, "data segment of 1073741825 bytes" },
	{ "inline", bad_inline, "13 bytes inline with DS 3" },
	{ "inlineread", bad_inline_read, "READ with DS 3 or inline data" },
	{ "atomiclen", bad_atomic_len, "data segment of 4 bytes" },
	{ "atomicalign", bad_atomic_align, "atomic at the unaligned address" },
	{ "masked", bad_masked, "reserved words are not 0" },
	{ "nop", bad_nop, "NOP with DS 3" },
	{ "unwritten", bad_unwritten, "not written since the slot was used last" },
	{ "torn1", bad_torn_address, "segment 1 of 4 was not written" },
	{ "torn2", bad_torn_data, "segment 2 of 4 was not written" },
	{ "torn3", bad_torn_end, "segment 3 of 4 was not written" },
	{ "padding", bad_padding, "inline data of 16 bytes is padded with 0x01" },
	{ "overrun", bad_overrun, "overrun: 65 WQEs of a queue of 64" },
	{ "back", ring_back, "doorbell goes back" },
	{ "record", bad_record, "doorbell, but its doorbell record says 0" },
	{ "recordwide", bad_record_wide, "doorbell record is 0x10001" },
	{ "dbbehind", bad_doorbell_behind, "but the doorbell record says 2" },
	{ "dbqpn", bad_doorbell_qpn, "no such queue pair on this page" },
	{ "dbopcode", bad_doorbell_opcode, "without DS, but with an opcode" },
	{ "dbpage", bad_doorbell_page, "no such queue pair on this page" },
	{ "state", bad_state, "doorbell while the queue pair is not in RTS" },
	{ "cqe", bad_cqe, "the CQE was not filled with 0xff" },
	{ "dbr", bad_dbr, "its doorbell record was not 0" },
	{ "uar", bad_uar, "queues still use the page" },
};
#define CASES (sizeof(cases) / sizeof(*cases))

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
			cases[i].run();
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
