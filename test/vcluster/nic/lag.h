/* SPDX-License-Identifier: Apache-2.0 */
/* Bonds: which member of the port a packet leaves by, and how much each one has sent. */
#ifndef VN_LAG_H
#define VN_LAG_H

#include "nic/cmd.h"

/* For a transition that names a member: whether it may, and which one. */
bool vn_lag_check(struct vn_cmd *cmd, const struct vn_qp *qp, uint32_t opcode);
/* The kernel gives queue pairs of verbs to the members in turn. */
void vn_lag_turn(struct vn_qp *qp);
void vn_lag_sent(struct vn_qp *qp, uint32_t bytes);

#endif
