/* SPDX-License-Identifier: Apache-2.0 */
/* What ibv_context.ops points to. */
#ifndef VN_VERBS_H
#define VN_VERBS_H

#include <infiniband/verbs.h>

int vn_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int vn_req_notify_cq(struct ibv_cq *cq, int solicited);
int vn_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int vn_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* A completion was added to the queue: tells the completion channel if the program asked for it. */
struct vn_cq;
void vn_cq_notify(struct vn_cq *cq);

#endif
