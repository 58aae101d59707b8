/* SPDX-License-Identifier: Apache-2.0 */
/* What the NIC asks of step.c, if vn_config.step. */
#ifndef VN_STEPPING_H
#define VN_STEPPING_H

#include "nic/qp.h"

/* Must the queue's next WQE wait? */
bool vn_step_stops(const struct vn_qp *qp);
/* The request was taken up. */
void vn_step_fetched(struct vn_qp *qp, struct vn_op *op);
void vn_step_wqe(const struct vn_qp *qp, uint64_t idx, const struct ep_mlx5_wqe *wqe);
void vn_step_write(const uint8_t *at, const uint8_t *data, uint32_t bytes);

#endif
