/* SPDX-License-Identifier: Apache-2.0 */
/* Our formats against those of the distribution's <infiniband/mlx5dv.h>. */
#include <stdio.h>

#if __has_include(<infiniband/mlx5dv.h>)
#include <endian.h>
#include <string.h>
#include <infiniband/mlx5dv.h>
#include "device/mlx5/wqe.h"
#include "support/check.h"

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define SAME_PLACE(ours, a, theirs, b)                                                             \
	_Static_assert(offsetof(ours, a) == offsetof(theirs, b) &&                                 \
			       sizeof(((ours *)0)->a) == sizeof(((theirs *)0)->b),                 \
		       #ours "." #a)
#define SAME(ours, theirs) _Static_assert((unsigned int)(ours) == (unsigned int)(theirs), #ours)

SAME_SIZE(struct ep_mlx5_ctrl_seg, struct mlx5_wqe_ctrl_seg);
SAME_PLACE(struct ep_mlx5_ctrl_seg, opmod_idx_opcode, struct mlx5_wqe_ctrl_seg, opmod_idx_opcode);
SAME_PLACE(struct ep_mlx5_ctrl_seg, qpn_ds, struct mlx5_wqe_ctrl_seg, qpn_ds);
SAME_PLACE(struct ep_mlx5_ctrl_seg, signature, struct mlx5_wqe_ctrl_seg, signature);
SAME_PLACE(struct ep_mlx5_ctrl_seg, fm_ce_se, struct mlx5_wqe_ctrl_seg, fm_ce_se);
SAME_PLACE(struct ep_mlx5_ctrl_seg, imm, struct mlx5_wqe_ctrl_seg, imm);
SAME_SIZE(struct ep_mlx5_raddr_seg, struct mlx5_wqe_raddr_seg);
SAME_PLACE(struct ep_mlx5_raddr_seg, addr, struct mlx5_wqe_raddr_seg, raddr);
SAME_PLACE(struct ep_mlx5_raddr_seg, rkey, struct mlx5_wqe_raddr_seg, rkey);
SAME_SIZE(struct ep_mlx5_data_seg, struct mlx5_wqe_data_seg);
SAME_PLACE(struct ep_mlx5_data_seg, byte_count, struct mlx5_wqe_data_seg, byte_count);
SAME_PLACE(struct ep_mlx5_data_seg, lkey, struct mlx5_wqe_data_seg, lkey);
SAME_PLACE(struct ep_mlx5_data_seg, addr, struct mlx5_wqe_data_seg, addr);
SAME_SIZE(struct ep_mlx5_atomic_seg, struct mlx5_wqe_atomic_seg);
SAME_PLACE(struct ep_mlx5_atomic_seg, swap_add, struct mlx5_wqe_atomic_seg, swap_add);
SAME_PLACE(struct ep_mlx5_atomic_seg, compare, struct mlx5_wqe_atomic_seg, compare);
SAME_PLACE(struct ep_mlx5_inline_seg, byte_count, struct mlx5_wqe_inl_data_seg, byte_count);
_Static_assert(offsetof(struct ep_mlx5_inline_seg, data) == sizeof(struct mlx5_wqe_inl_data_seg),
	       "inline data");
SAME_SIZE(struct ep_mlx5_cqe, struct mlx5_cqe64);
SAME_PLACE(struct ep_mlx5_cqe, byte_count, struct mlx5_cqe64, byte_cnt);
SAME_PLACE(struct ep_mlx5_cqe, u.timestamp, struct mlx5_cqe64, timestamp);
SAME_PLACE(struct ep_mlx5_cqe, opcode_qpn, struct mlx5_cqe64, sop_drop_qpn);
SAME_PLACE(struct ep_mlx5_cqe, wqe_counter, struct mlx5_cqe64, wqe_counter);
SAME_PLACE(struct ep_mlx5_cqe, signature, struct mlx5_cqe64, signature);
SAME_PLACE(struct ep_mlx5_cqe, op_own, struct mlx5_cqe64, op_own);
SAME_SIZE(struct ep_mlx5_cqe, struct mlx5_err_cqe);
SAME_PLACE(struct ep_mlx5_cqe, u.error.vendor_syndrome, struct mlx5_err_cqe, vendor_err_synd);
SAME_PLACE(struct ep_mlx5_cqe, u.error.syndrome, struct mlx5_err_cqe, syndrome);
SAME_PLACE(struct ep_mlx5_cqe, opcode_qpn, struct mlx5_err_cqe, s_wqe_opcode_qpn);
SAME_PLACE(struct ep_mlx5_cqe, wqe_counter, struct mlx5_err_cqe, wqe_counter);
SAME_PLACE(struct ep_mlx5_cqe, op_own, struct mlx5_err_cqe, op_own);
SAME(offsetof(struct ep_mlx5_dbr, recv), 4 * MLX5_RCV_DBR);
SAME(offsetof(struct ep_mlx5_dbr, send), 4 * MLX5_SND_DBR);
SAME(EP_MLX5_OP_NOP, MLX5_OPCODE_NOP);
SAME(EP_MLX5_OP_WRITE, MLX5_OPCODE_RDMA_WRITE);
SAME(EP_MLX5_OP_FETCH_ADD, MLX5_OPCODE_ATOMIC_FA);
SAME(EP_MLX5_INLINE, MLX5_INLINE_SEG);
SAME(EP_MLX5_CE_ALWAYS, MLX5_WQE_CTRL_CQ_UPDATE);
SAME(EP_MLX5_FM_SMALL_FENCE, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE);
SAME(EP_MLX5_CQE_REQ, MLX5_CQE_REQ);
SAME(EP_MLX5_CQE_REQ_ERR, MLX5_CQE_REQ_ERR);
SAME(EP_MLX5_CQE_RESP_ERR, MLX5_CQE_RESP_ERR);
SAME(EP_MLX5_CQE_INVALID, MLX5_CQE_INVALID);
SAME(EP_MLX5_SYND_LOCAL_LENGTH, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
SAME(EP_MLX5_SYND_LOCAL_QP_OP, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
SAME(EP_MLX5_SYND_LOCAL_PROT, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
SAME(EP_MLX5_SYND_FLUSHED, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
SAME(EP_MLX5_SYND_MW_BIND, MLX5_CQE_SYNDROME_MW_BIND_ERR);
SAME(EP_MLX5_SYND_BAD_RESP, MLX5_CQE_SYNDROME_BAD_RESP_ERR);
SAME(EP_MLX5_SYND_LOCAL_ACCESS, MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR);
SAME(EP_MLX5_SYND_REMOTE_INVAL_REQ, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
SAME(EP_MLX5_SYND_REMOTE_ACCESS, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
SAME(EP_MLX5_SYND_REMOTE_OP, MLX5_CQE_SYNDROME_REMOTE_OP_ERR);
SAME(EP_MLX5_SYND_RETRY_EXCEEDED, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
SAME(EP_MLX5_SYND_RNR_EXCEEDED, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR);
SAME(EP_MLX5_SYND_REMOTE_ABORTED, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR);

/* The header's own setters, into the places where its structs put the segments. */
static void theirs(struct ep_mlx5_wqe *q, uint16_t index, uint8_t opcode, uint8_t fm_ce_se,
		   uint8_t ds)
{
	struct mlx5_wqe_ctrl_seg *ctrl = (void *)&q->w[0];
	struct mlx5_wqe_raddr_seg *raddr = (void *)&q->w[4];

	memset(q, 0, sizeof(*q));
	mlx5dv_set_ctrl_seg(ctrl, index, opcode, 0, 0x9abcde, fm_ce_se, ds, 0, 0);
	if (opcode != MLX5_OPCODE_NOP) {
		raddr->raddr = htobe64(0x0102030405060708ull);
		raddr->rkey = htobe32(0x11121314);
	}
}

int main(void)
{
	struct ep_mlx5_wqe a, b;
	struct mlx5_wqe_atomic_seg *atomic = (void *)&b.w[8];
	const uint64_t raddr = 0x0102030405060708ull, laddr = 0x2122232425262728ull;
	const struct ep_mlx5_mem remote = { raddr, 0x11121314 };
	const struct ep_mlx5_mem local = { laddr, 0x31323334 }, other = { laddr, 7 };

	memset(&a, 0, sizeof(a));
	ep_mlx5_build_write(&a, 0x1fffe, 0x9abcde, EP_MLX5_CE_ALWAYS, remote, local, 0x40000000);
	theirs(&b, 0xfffe, MLX5_OPCODE_RDMA_WRITE, MLX5_WQE_CTRL_CQ_UPDATE, 3);
	mlx5dv_set_data_seg((void *)&b.w[8], 0x40000000, 0x31323334, laddr);
	CHECK(!memcmp(&a, &b, sizeof(a)));

	memset(&a, 0, sizeof(a));
	ep_mlx5_build_fetch_add(&a, 9, 0x9abcde, EP_MLX5_FM_STRONG, remote, other, 1ull << 40);
	theirs(&b, 9, MLX5_OPCODE_ATOMIC_FA, 3 << 5, 4);
	atomic->swap_add = htobe64(1ull << 40);
	mlx5dv_set_data_seg((void *)&b.w[12], 8, 7, laddr);
	CHECK(!memcmp(&a, &b, sizeof(a)));

	memset(&a, 0, sizeof(a));
	ep_mlx5_build_nop(&a, 3, 0x9abcde, EP_MLX5_CE_ALWAYS);
	theirs(&b, 3, MLX5_OPCODE_NOP, MLX5_WQE_CTRL_CQ_UPDATE, 1);
	CHECK(!memcmp(&a, &b, sizeof(a)));
	return check_end();
}
#else
int main(void)
{
	printf("skipped: no <infiniband/mlx5dv.h> (package libibverbs-dev)\n");
	return 77;
}
#endif
