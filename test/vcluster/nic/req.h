/* SPDX-License-Identifier: Apache-2.0 */
/* The requester's side of queue pairs. */
#ifndef VN_REQ_H
#define VN_REQ_H

#include "nic/packet.h"
#include "nic/qp.h"

bool vn_req_run(struct vn_qp *qp);
bool vn_req_fetch(struct vn_qp *qp);
void vn_req_transmit(struct vn_qp *qp, struct vn_op *op, uint32_t pkt);
void vn_req_lost(struct vn_qp *qp, uint64_t idx, uint32_t pkt);
void vn_req_link_lost(struct vn_link *link);
void vn_req_answer(const struct vn_packet *p, const uint8_t *payload);
struct vn_op *vn_op_of(struct vn_qp *qp, uint64_t idx);
void vn_op_drop(struct vn_op *op);

#endif
