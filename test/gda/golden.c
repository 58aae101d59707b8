/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The builders, byte for byte. The vectors of WRITE, inline WRITE, fetch-and-add and of the
 * doorbells are what rdma-core's own posting code emits for the same requests; NOP, which verbs
 * cannot post, follows the format of the PRM.
 */
#include <endian.h>
#include "device/mlx5/wqe.h"
#include "support/check.h"

#define QPN 0x123456
#define UNTOUCHED 0xa5a5a5a5u

static const struct ep_mlx5_mem remote = { 0x99aabbccddeeff00ull, 0x00fedcba };
static const struct ep_mlx5_mem local = { 0x1122334455667788ull, 0x00abcdef };
static const struct ep_mlx5_mem atomic = { 0x1000, 0x55 };

/* `want` are the words in big-endian order, 4 * ds of them; what follows must be untouched. */
static void check(const char *name, const struct ep_mlx5_wqe *q, uint32_t ds, uint32_t want_ds,
		  const uint32_t *want)
{
	CHECK_INT(ds, want_ds);
	for (uint32_t i = 0; i < 4 * want_ds; i++) {
		CHECK(be32toh(q->w[i]) == want[i], "%s: word %u is %08x, not %08x", name, i,
		      be32toh(q->w[i]), want[i]);
	}
}

static struct ep_mlx5_wqe q;

static struct ep_mlx5_wqe *fresh(void)
{
	memset(&q, 0xa5, sizeof(q));
	return &q;
}

static void check_data(void)
{
	static const uint32_t write[] = { 0x00000008, 0x12345603, 0x00000008, 0x00000000,
					  0x99aabbcc, 0xddeeff00, 0x00fedcba, 0x00000000,
					  0x00001c00, 0x00abcdef, 0x11223344, 0x55667788 };
	static const uint32_t empty[] = { 0x00000008, 0x12345602, 0x00000008, 0x00000000,
					  0x99aabbcc, 0xddeeff00, 0x00fedcba, 0x00000000 };
	uint32_t ds;

	ds = ep_mlx5_build_write(fresh(), 0, QPN, EP_MLX5_CE_ALWAYS, remote, local, 0x1c00);
	check("WRITE", &q, ds, 3, write);
	CHECK_INT(q.w[12], UNTOUCHED);
	/* The same in two steps, as kernels do it; an index beyond 16 bits. */
	ds = ep_mlx5_build_write(fresh(), 0, QPN, 0, remote, local, 0x1c00);
	ep_mlx5_build_place(&q, 0x7fff0000ull, EP_MLX5_CE_ALWAYS);
	check("WRITE, placed", &q, ds, 3, write);
	ds = ep_mlx5_build_write(fresh(), 0, QPN, EP_MLX5_CE_ALWAYS, remote, local, 0);
	check("WRITE of nothing", &q, ds, 2, empty);
}

static void check_inline(void)
{
	static const uint32_t eight[] = { 0x00000208, 0x12345603, 0x00000000, 0x00000000,
					  0x99aabbcc, 0xddeeff00, 0x00fedcba, 0x00000000,
					  0x80000008, 0x08070605, 0x04030201, 0x00000000 };
	static const uint32_t most[] = { 0x00000308, 0x12345604, 0x00000000, 0x00000000,
					 0x99aabbcc, 0xddeeff00, 0x00fedcba, 0x00000000,
					 0x8000001c, 0x00010203, 0x04050607, 0x08090a0b,
					 0x0c0d0e0f, 0x10111213, 0x14151617, 0x18191a1b };
	const uint64_t value = 0x0102030405060708ull;
	const uint32_t half[2] = { (uint32_t)value, (uint32_t)(value >> 32) };
	uint32_t bytes[8], ds;

	for (unsigned int i = 0; i < sizeof(bytes); i++) {
		((unsigned char *)bytes)[i] = (unsigned char)i;
	}
	ds = ep_mlx5_build_inline(fresh(), 2, QPN, 0, remote, half, 8);
	check("inline WRITE, 8 bytes", &q, ds, 3, eight);
	ds = ep_mlx5_build_inline(fresh(), 3, QPN, 0, remote, bytes, 28);
	check("inline WRITE, 28 bytes", &q, ds, 4, most);
	for (uint32_t n = 1; n <= EP_MLX5_MAX_INLINE; n++) {
		ds = ep_mlx5_build_inline(fresh(), 3, QPN, 0, remote, bytes, n);
		CHECK_INT(ds, n > 12 ? 4 : 3);
		CHECK_INT(be32toh(q.w[8]), 0x80000000u | n);
		CHECK(!memcmp(&q.w[9], bytes, n));
		for (uint32_t i = n; i < 16 * ds - 36; i++) {
			CHECK_INT(((unsigned char *)&q.w[9])[i], 0);
		}
	}
}

static void check_atomics(void)
{
	static const uint32_t add[] = { 0x00000712, 0x12345604, 0x00000008, 0x00000000,
					0x00000000, 0x00001000, 0x00000055, 0x00000000,
					0x11112222, 0x33334444, 0x00000000, 0x00000000,
					0x00000008, 0x00abcdef, 0x11223344, 0x55667788 };
	static const uint32_t nop[] = { 0x00ffff00, 0x12345601, 0x00000008, 0x00000000 };
	uint32_t ds;

	ds = ep_mlx5_build_fetch_add(fresh(), 7, QPN, EP_MLX5_CE_ALWAYS, atomic, local,
				     0x1111222233334444ull);
	check("fetch and add", &q, ds, 4, add);
	ds = ep_mlx5_build_nop(fresh(), 0xffff, QPN, EP_MLX5_CE_ALWAYS);
	check("NOP", &q, ds, 1, nop);
	CHECK_INT(q.w[4], UNTOUCHED);
	ep_mlx5_build_fetch_add(fresh(), 7, QPN, EP_MLX5_FM_STRONG, atomic, local, 1);
	ep_mlx5_build_place(&q, 0, EP_MLX5_CE_ALWAYS);
	CHECK_INT(be32toh(q.w[2]), 0x68);
}

static void check_doorbell(void)
{
	static const unsigned char bell[8] = { 0x00, 0x00, 0x12, 0x00, 0x12, 0x34, 0x56, 0x00 };
	uint64_t value = ep_mlx5_doorbell_value(0x50012, QPN);
	uint32_t record = ep_mlx5_dbr_value(0x50012);
	static const unsigned char send[4] = { 0, 0, 0, 0x12 };

	CHECK(!memcmp(&value, bell, 8));
	CHECK(!memcmp(&record, send, 4));
}

/* Every counter that a NIC can have written for every state of a small queue, around the wraps. */
static void check_completion(void)
{
	static const uint8_t line[4] = { 0xfe, 0x01, 0x00, 0xd0 };
	uint32_t word;

	memcpy(&word, line, 4);
	CHECK_INT(ep_mlx5_cqe_opcode(word), EP_MLX5_CQE_REQ_ERR);
	CHECK_INT(ep_mlx5_cqe_counter(word), 0xfe01);
	CHECK_INT(ep_mlx5_cqe_opcode(0xffffffffu), EP_MLX5_CQE_INVALID);
	CHECK_INT(ep_mlx5_cqe_done(0, 64, 0xffff), 0);
	CHECK_INT(ep_mlx5_cqe_done(64, 64, 0xffff), 0);
	CHECK_INT(ep_mlx5_cqe_done(32768, 32768, 0xffff), 0);
	for (uint64_t rung = 0; rung < 200000; rung += rung % 65536 < 200 ? 1 : 97) {
		for (uint32_t depth = 64; depth <= 32768; depth *= 8) {
			for (uint64_t back = 0; back <= depth && back <= rung;
			     back += back < 70 ? 1 : depth / 16 - 1) {
				uint64_t done = rung - back;

				CHECK_INT(ep_mlx5_cqe_done(rung, depth, (done - 1) & 0xffff), done);
			}
			/*
			 * More has completed than was rung when the poster looked: never too much.
			 */
			for (uint64_t more = 1; more < 200000; more += 1 + more / 3) {
				uint32_t counter = (uint32_t)(rung + more - 1) & 0xffff;

				CHECK(ep_mlx5_cqe_done(rung, depth, counter) <= rung);
			}
		}
	}
}

int main(void)
{
	check_data();
	check_inline();
	check_atomics();
	check_doorbell();
	check_completion();
	CHECK_INT(ep_mlx5_signal_policy(EP_MLX5_TIER_IBTA, 1), EP_MLX5_SIGNAL_WRITE);
	CHECK_INT(ep_mlx5_signal_policy(EP_MLX5_TIER_OOO_RW, 0), EP_MLX5_SIGNAL_ATOMIC);
	CHECK_INT(ep_mlx5_signal_policy(EP_MLX5_TIER_OOO_ALL, 1), EP_MLX5_SIGNAL_WRITE_STRONG);
	return check_end();
}
