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
/* A word was stored. */
void vn_step_placed(void);
bool vn_step_reports(const struct ibv_wc *wc);
/* Does all there is to do. */
void vn_step_settle(void);
/* Whether a call that makes something fails; errno is set then. */
bool vn_step_fails(void);
/* 0, or with what a change of a queue pair's state is refused. */
int vn_step_refusal(enum ibv_qp_state to);
void vn_step_acked(void);

#endif
