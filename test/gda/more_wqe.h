/* SPDX-License-Identifier: Apache-2.0 */
/* WQEs that the library's kernels do not need, and NICs and the proxy execute all the same. */
#ifndef TEST_GDA_MORE_WQE_H
#define TEST_GDA_MORE_WQE_H

#include "device/mlx5/wqe.h"

/* Local memory becomes a copy of remote memory. `bytes` is 1..EP_MLX5_MAX_BYTES. */
EP_HOST_DEV uint32_t ep_mlx5_build_read(struct ep_mlx5_wqe *wqe, uint64_t index, uint32_t qpn,
					uint32_t fm_ce_se, struct ep_mlx5_mem remote,
					struct ep_mlx5_mem local, uint32_t bytes)
{
	ep_mlx5_build_ctrl(wqe, index, EP_MLX5_OP_READ, qpn, 3, fm_ce_se);
	ep_mlx5_build_raddr(wqe, remote);
	ep_mlx5_build_data(wqe, 8, local, bytes);
	return 3;
}

/* 4-byte fetch and add; bits of `boundary` carry nothing upwards. */
EP_HOST_DEV uint32_t ep_mlx5_build_fetch_add32(struct ep_mlx5_wqe *wqe, uint64_t index,
					       uint32_t qpn, uint32_t fm_ce_se,
					       struct ep_mlx5_mem remote, struct ep_mlx5_mem old,
					       uint32_t add, uint32_t boundary)
{
	ep_mlx5_build_ctrl(wqe, index, EP_MLX5_OPMOD_MASKED_4 << 24 | EP_MLX5_OP_MASKED_FETCH_ADD,
			   qpn, 4, fm_ce_se);
	ep_mlx5_build_raddr(wqe, remote);
	wqe->w[8] = ep_be32(add);
	wqe->w[9] = ep_be32(boundary);
	wqe->w[10] = 0;
	wqe->w[11] = 0;
	ep_mlx5_build_data(wqe, 12, old, 4);
	return 4;
}

#endif
