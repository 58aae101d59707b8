/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builders of work queue elements, for kernels, the host and tests alike. Pure: they fill a basic
 * block in registers or memory and return its DS; segments behind DS are left alone. Posting it is
 * the business of mlx5/qp.h.
 */
#ifndef EP_DEVICE_MLX5_WQE_H
#define EP_DEVICE_MLX5_WQE_H

#include "device/mlx5/mlx5_layout.h"

/* Memory as the NIC knows it: an address and the key, local or remote, for it. */
struct ep_mlx5_mem {
	uint64_t addr;
	uint32_t key;
};

EP_HOST_DEV uint32_t ep_be32(uint32_t v)
{
#ifdef __CUDA_ARCH__
	return __byte_perm(v, 0, 0x0123);
#else
	return __builtin_bswap32(v);
#endif
}

EP_HOST_DEV uint32_t be64_first(uint64_t v)
{
	return ep_be32((uint32_t)(v >> 32));
}

EP_HOST_DEV uint32_t be64_second(uint64_t v)
{
	return ep_be32((uint32_t)v);
}

/* `what` is opmod << 24 | opcode; `fm_ce_se` as in enum ep_mlx5_fm_ce_se. */
EP_HOST_DEV void ep_mlx5_build_ctrl(struct ep_mlx5_wqe *wqe, uint64_t index, uint32_t what,
				    uint32_t qpn, uint32_t ds, uint32_t fm_ce_se)
{
	wqe->w[0] = ep_be32(what | ((uint32_t)index & 0xffff) << 8);
	wqe->w[1] = ep_be32(qpn << 8 | ds);
	wqe->w[2] = fm_ce_se << 24; /* the last of four bytes */
	wqe->w[3] = 0;
}

EP_HOST_DEV void ep_mlx5_build_raddr(struct ep_mlx5_wqe *wqe, struct ep_mlx5_mem remote)
{
	wqe->w[4] = be64_first(remote.addr);
	wqe->w[5] = be64_second(remote.addr);
	wqe->w[6] = ep_be32(remote.key);
	wqe->w[7] = 0;
}

/* `at`: index of the word where the segment begins. */
EP_HOST_DEV void ep_mlx5_build_data(struct ep_mlx5_wqe *wqe, uint32_t at, struct ep_mlx5_mem local,
				    uint32_t bytes)
{
	wqe->w[at] = ep_be32(bytes);
	wqe->w[at + 1] = ep_be32(local.key);
	wqe->w[at + 2] = be64_first(local.addr);
	wqe->w[at + 3] = be64_second(local.addr);
}

/* A word of 8 bytes that the WQE carries; `at` as above. */
EP_HOST_DEV void ep_mlx5_build_word(struct ep_mlx5_wqe *wqe, uint32_t at, uint64_t value)
{
	wqe->w[at] = ep_be32(EP_MLX5_INLINE | 8);
	wqe->w[at + 1] = (uint32_t)value;
	wqe->w[at + 2] = (uint32_t)(value >> 32);
	wqe->w[at + 3] = 0;
}

/* Does nothing, in order. */
EP_HOST_DEV uint32_t ep_mlx5_build_nop(struct ep_mlx5_wqe *wqe, uint64_t index, uint32_t qpn,
				       uint32_t fm_ce_se)
{
	ep_mlx5_build_ctrl(wqe, index, EP_MLX5_OP_NOP, qpn, 1, fm_ce_se);
	return 1;
}

/*
 * Remote memory becomes a copy of local memory. `bytes` is at most EP_MLX5_MAX_BYTES; 0 goes
 * without data segment, since a byte_count of 0 would mean 2 GiB, and reaches the peer's NIC.
 */
EP_HOST_DEV uint32_t ep_mlx5_build_write(struct ep_mlx5_wqe *wqe, uint64_t index, uint32_t qpn,
					 uint32_t fm_ce_se, struct ep_mlx5_mem remote,
					 struct ep_mlx5_mem local, uint32_t bytes)
{
	uint32_t ds = bytes ? 3 : 2;

	ep_mlx5_build_ctrl(wqe, index, EP_MLX5_OP_WRITE, qpn, ds, fm_ce_se);
	ep_mlx5_build_raddr(wqe, remote);
	ep_mlx5_build_data(wqe, 8, local, bytes);
	return ds;
}

/*
 * WRITE of data that the WQE carries: `bytes` (1..EP_MLX5_MAX_INLINE) of `data`, as they lie in
 * memory. Reads whole words of `data`; what pads the segment is zero.
 */
EP_HOST_DEV uint32_t ep_mlx5_build_inline(struct ep_mlx5_wqe *wqe, uint64_t index, uint32_t qpn,
					  uint32_t fm_ce_se, struct ep_mlx5_mem remote,
					  const uint32_t *data, uint32_t bytes)
{
	uint32_t ds = bytes > 12 ? 4 : 3;
	uint32_t words = (bytes + 3) / 4;

	ep_mlx5_build_ctrl(wqe, index, EP_MLX5_OP_WRITE, qpn, ds, fm_ce_se);
	ep_mlx5_build_raddr(wqe, remote);
	wqe->w[8] = ep_be32(EP_MLX5_INLINE | bytes);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
	for (uint32_t i = 0; i < EP_MLX5_MAX_INLINE / 4; i++) {
		uint32_t rest = i + 1 == words ? bytes & 3 : 0;

		if (i >= words) {
			wqe->w[9 + i] = 0;
		} else if (rest) {
			wqe->w[9 + i] = data[i] & ((1u << 8 * rest) - 1);
		} else {
			wqe->w[9 + i] = data[i];
		}
	}
	return ds;
}

/* 8-byte fetch and add; the old value goes to 8 local bytes at `old`, as the NIC read it. */
EP_HOST_DEV uint32_t ep_mlx5_build_fetch_add(struct ep_mlx5_wqe *wqe, uint64_t index, uint32_t qpn,
					     uint32_t fm_ce_se, struct ep_mlx5_mem remote,
					     struct ep_mlx5_mem old, uint64_t add)
{
	ep_mlx5_build_ctrl(wqe, index, EP_MLX5_OP_FETCH_ADD, qpn, 4, fm_ce_se);
	ep_mlx5_build_raddr(wqe, remote);
	wqe->w[8] = be64_first(add);
	wqe->w[9] = be64_second(add);
	wqe->w[10] = 0;
	wqe->w[11] = 0;
	ep_mlx5_build_data(wqe, 12, old, 8);
	return 4;
}

/* Gives a built WQE its place, and asks for a completion. */
EP_HOST_DEV void ep_mlx5_build_place(struct ep_mlx5_wqe *wqe, uint64_t index, uint32_t ce)
{
	wqe->w[0] |= ep_be32(((uint32_t)index & 0xffff) << 8);
	wqe->w[2] |= ce << 24;
}

/* Doorbell register: everything below `next` may be fetched. In memory order. */
EP_HOST_DEV uint64_t ep_mlx5_doorbell_value(uint64_t next, uint32_t qpn)
{
	return (uint64_t)ep_be32(qpn << 8) << 32 | ep_be32(((uint32_t)next & 0xffff) << 8);
}

/* Doorbell record, send counter. */
EP_HOST_DEV uint32_t ep_mlx5_dbr_value(uint64_t next)
{
	return ep_be32((uint32_t)next & 0xffff);
}

/* The word at EP_MLX5_CQE_DONE_AT, as loaded by a little-endian machine. */
EP_HOST_DEV uint32_t ep_mlx5_cqe_opcode(uint32_t word)
{
	return word >> 28;
}

EP_HOST_DEV uint32_t ep_mlx5_cqe_counter(uint32_t word)
{
	return ep_be32(word) >> 16;
}

/*
 * Returns the new `done` by a counter of a queue whose `rung` was read before the CQE, or 0 when
 * nothing is known. Never too much: if more than `rung` has completed meanwhile, the answer is a
 * value of the past.
 */
EP_HOST_DEV uint64_t ep_mlx5_cqe_done(uint64_t rung, uint32_t depth, uint32_t counter)
{
	uint32_t behind = ((uint32_t)rung - (counter + 1)) & 0xffff;

	return behind > depth || behind > rung ? 0 : rung - behind;
}

#endif
