/* SPDX-License-Identifier: Apache-2.0 */
/* Send queues in the program's memory. */
#ifndef VN_SQ_H
#define VN_SQ_H

#include "nic/qp.h"

/* Looks at all doorbells; true if any has changed. *watched: some queue can be rung by one. */
bool vn_sq_doorbells(bool *watched);
/* Before a DevX queue pair is destroyed: its doorbell record must say what its last doorbell said. */
void vn_sq_doorbell_last(struct vn_qp *qp);
/* The next WQE of a DevX queue into *op; false: the WQE breaks a rule, and the request fails. */
bool vn_sq_fetch(struct vn_qp *qp, struct vn_op *op);
/* The request is over: its slot is filled with a pattern, so that a later use unwritten is noticed. */
void vn_sq_retire(struct vn_qp *qp, const struct vn_op *op);

#endif
