/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs: completion queues and queue pairs that the library itself posts to. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "nic/nic.h"

#define VN_MAX_CQE 4194303
#define VN_VENDOR 0x2c9

static bool vn_ece_own(const struct vn_nic *nic)
{
	return vn_config.own_ece == 1 + nic->index % 2;
}

uint32_t vn_ece_of(const struct vn_nic *nic)
{
	return vn_ece_own(nic) ? 0xc5 : nic->index % 2 ? 0x35 : 0xf3;
}

bool vn_ece_reduce(const struct vn_nic *nic, uint32_t *ece)
{
	uint32_t own = vn_ece_of(nic), level = *ece & 0xf, flags = *ece & own & ~0xfu;

	if ((level != 0 && level != 3 && level != 5) || (vn_ece_own(nic) && *ece && *ece != own)) {
		return false;
	}
	*ece = flags | (level < (own & 0xf) ? level : own & 0xf);
	return true;
}

/* -------------------------------------------------------------------------- completion queues */

VN_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *context,
				       struct ibv_comp_channel *channel, int vector)
{
	struct vn_context *ctx = vn_context_of(c);
	struct vn_cq *cq;
	uint32_t size = 1;

	if (cqe < 1 || cqe > VN_MAX_CQE || channel || vector) {
		errno = EINVAL;
		return NULL;
	}
	if (vn_context_failed(ctx)) {
		errno = EIO;
		return NULL;
	}
	if (vn_config.step && vn_step_fails()) {
		return NULL;
	}
	while (size < (uint32_t)cqe + 1) {
		size *= 2;
	}
	vn_lock();
	cq = vn_cq_new(ctx);
	if (cq) {
		cq->wc = calloc(size, sizeof(*cq->wc));
		cq->invented = calloc(size, sizeof(*cq->invented));
	}
	if (!cq || !cq->wc || !cq->invented) {
		if (cq) {
			vn_cq_free(cq);
		}
		vn_unlock();
		errno = ENOMEM;
		return NULL;
	}
	cq->size = size - 1;
	ctx->live++;
	vn_unlock();
	cq->ibv.context = c;
	cq->ibv.cq_context = context;
	cq->ibv.handle = cq->number;
	cq->ibv.cqe = (int)cq->size;
	return &cq->ibv;
}

VN_EXPORT int ibv_destroy_cq(struct ibv_cq *ibv)
{
	struct vn_cq *cq = (struct vn_cq *)ibv;
	uint32_t users;

	vn_lock();
	users = cq->users;
	if (!users) {
		cq->ctx->live--;
		vn_cq_free(cq);
	}
	vn_unlock();
	return users ? EBUSY : 0;
}

int vn_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc)
{
	struct vn_cq *cq = (struct vn_cq *)ibv;
	int got = 0;

	__atomic_fetch_add(&vn.looks, 1, __ATOMIC_RELAXED);
	if (vn_config.step) {
		vn_step_settle();
	}
	/* The usual case, an empty queue, without the lock. */
	if (!__atomic_load_n(&cq->count, __ATOMIC_ACQUIRE)) {
		return 0;
	}
	vn_lock();
	while (got < n && cq->count) {
		struct vn_qp *qp = cq->invented[cq->head] ? NULL
							  : vn_qp_find(cq->wc[cq->head].qp_num);

		wc[got++] = cq->wc[cq->head];
		cq->head = (cq->head + 1) % cq->size;
		__atomic_store_n(&cq->count, cq->count - 1, __ATOMIC_RELEASE);
		if (qp && !qp->devx) {
			/* One completion frees the unsignaled requests before it, too. */
			if (wc[got - 1].opcode & IBV_WC_RECV) {
				qp->rq_held--;
			} else {
				qp->outstanding -= qp->wr_ends[qp->wr_polled++ % qp->max_wr];
			}
		}
	}
	vn_unlock();
	return cq->overrun && !got ? -1 : got;
}

/* -------------------------------------------------------------------------------- queue pairs */

VN_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *ibv_pd, struct ibv_qp_init_attr *attr)
{
	struct vn_pd *pd = (struct vn_pd *)ibv_pd;
	struct vn_qp *qp;

	if (attr->qp_type != IBV_QPT_RC || attr->srq || attr->sq_sig_all || !attr->send_cq ||
	    !attr->recv_cq || attr->cap.max_send_wr > vn_config.send_wr ||
	    attr->cap.max_send_sge > 1 || attr->cap.max_recv_wr > vn_config.send_wr ||
	    attr->cap.max_inline_data > VN_INLINE) {
		vn_log_once(
			"ibv_create_qp: RC with up to %d requests of one element and %d bytes inline, "
			"and as many receives, is what there is",
			(int)vn_config.send_wr, VN_INLINE);
		errno = EINVAL;
		return NULL;
	}
	if (vn_context_failed(pd->ctx)) {
		errno = EIO;
		return NULL;
	}
	if (vn_config.step && vn_step_fails()) {
		return NULL;
	}
	vn_lock();
	qp = vn_qp_new(pd->ctx, pd, (struct vn_cq *)attr->send_cq);
	if (qp) {
		qp->max_wr = attr->cap.max_send_wr ? attr->cap.max_send_wr : 1;
		qp->max_inline = VN_INLINE;
		qp->wr = calloc(qp->max_wr, sizeof(*qp->wr));
		qp->wr_ends = calloc(qp->max_wr, sizeof(*qp->wr_ends));
		qp->max_rq = attr->cap.max_recv_wr ? attr->cap.max_recv_wr : 1;
		qp->rq = calloc(qp->max_rq, sizeof(*qp->rq));
	}
	if (!qp || !qp->wr || !qp->wr_ends || !qp->rq) {
		if (qp) {
			vn_qp_free(qp);
		}
		vn_unlock();
		errno = ENOMEM;
		return NULL;
	}
	qp->rcq = (struct vn_cq *)attr->recv_cq;
	qp->rcq->users++;
	pd->ctx->live++;
	vn_unlock();
	attr->cap.max_send_wr = qp->max_wr;
	attr->cap.max_send_sge = 1;
	attr->cap.max_inline_data = VN_INLINE;
	qp->ibv = (struct ibv_qp){ .context = ibv_pd->context,
				   .qp_context = attr->qp_context,
				   .pd = ibv_pd,
				   .send_cq = attr->send_cq,
				   .recv_cq = attr->recv_cq,
				   .handle = qp->number,
				   .qp_num = qp->number,
				   .state = IBV_QPS_RESET,
				   .qp_type = IBV_QPT_RC };
	return &qp->ibv;
}

VN_EXPORT int ibv_destroy_qp(struct ibv_qp *ibv)
{
	struct vn_qp *qp = (struct vn_qp *)ibv;

	vn_lock();
	qp->ctx->live--;
	vn_qp_free(qp);
	vn_unlock();
	return 0;
}

static int vn_verbs_to_init(struct vn_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	if (mask != (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    a->port_num != 1 || a->pkey_index >= VN_PKEYS) {
		return EINVAL;
	}
	qp->told.init = *a;
	vn_lag_turn(qp);
	qp->port = a->port_num;
	qp->access = a->qp_access_flags;
	qp->state = VN_INIT;
	return 0;
}

static int vn_verbs_to_rtr(struct vn_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	struct vn_path path = { .mtu = a->path_mtu,
				.qpn = a->dest_qp_num,
				.lid = a->ah_attr.dlid,
				.grh = a->ah_attr.is_global,
				.gid_index = a->ah_attr.grh.sgid_index,
				.hop_limit = a->ah_attr.grh.hop_limit ? a->ah_attr.grh.hop_limit
								      : 64,
				.sport = 0xc000,
				.gid = a->ah_attr.grh.dgid };
	uint32_t ece = qp->told.ece.options;
	const char *why;
	bool ipv4;
	uint32_t ip = vn_ip_of_gid(&path.gid, &ipv4);

	if (mask != (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	    a->ah_attr.port_num != 1 || (!vn_config.ib && !a->ah_attr.is_global) ||
	    a->max_dest_rd_atomic > 16) {
		return EINVAL;
	}
	if ((!vn_config.ib && (!ip || vn_ip_is_silent(qp->nic, ip))) || vn_late()) {
		return ETIMEDOUT;
	}
	if (!vn_ece_reduce(qp->nic, &ece)) {
		vn_log_once("ibv_modify_qp: ECE 0x%x, it can 0x%x", ece, vn_ece_of(qp->nic));
		return EINVAL;
	}
	vn_mac_of_ip(ip, path.mac);
	why = vn_qp_connect(qp, &path);
	if (why) {
		vn_log_once("ibv_modify_qp: %s", why);
		return EINVAL;
	}
	qp->told.rtr = *a;
	qp->ece = ece;
	qp->gid_used = a->ah_attr.is_global;
	if (qp->gid_used) {
		vn_gid_use(qp->nic, qp->gid_index, true);
	}
	qp->tier = qp->order = (uint8_t)vn_config.tier;
	qp->want_psn = a->rq_psn & VN_PSN_MASK;
	qp->rd_in =
		(uint8_t)(a->max_dest_rd_atomic ? 31 - __builtin_clz(a->max_dest_rd_atomic) : 0);
	qp->state = VN_RTR;
	return 0;
}

static int vn_verbs_to_rts(struct vn_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	if (mask != (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) ||
	    a->max_rd_atomic > vn_config.init_rd || a->timeout > 31 || a->retry_cnt > 7 ||
	    a->rnr_retry > 7) {
		return EINVAL;
	}
	qp->told.rts = *a;
	qp->next_psn = a->sq_psn & VN_PSN_MASK;
	qp->rd_out = (uint8_t)(a->max_rd_atomic ? 31 - __builtin_clz(a->max_rd_atomic) : 0);
	qp->ack_timeout = a->timeout;
	qp->retry_cnt = a->retry_cnt;
	qp->rnr_retry = a->rnr_retry;
	qp->lag = vn_config.lag_late ? 0 : qp->lag;
	qp->state = VN_RTS;
	return 0;
}

VN_EXPORT int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *a, int mask)
{
	struct vn_qp *qp = (struct vn_qp *)ibv;
	int rc = EINVAL, refusal;

	vn_lock();
	refusal = vn_config.step ? vn_step_refusal(a->qp_state) : 0;
	if (vn_context_failed(qp->ctx)) {
		rc = EIO;
	} else if (refusal) {
		rc = refusal;
	} else if (mask & IBV_QP_STATE) {
		if (a->qp_state == IBV_QPS_ERR && qp->state != VN_RST) {
			vn_qp_to_error(qp);
			rc = 0;
		} else if (a->qp_state == IBV_QPS_INIT && qp->state == VN_RST) {
			rc = vn_verbs_to_init(qp, a, mask);
		} else if (a->qp_state == IBV_QPS_RTR && qp->state == VN_INIT) {
			rc = vn_verbs_to_rtr(qp, a, mask);
		} else if (a->qp_state == IBV_QPS_RTS && qp->state == VN_RTR) {
			rc = vn_verbs_to_rts(qp, a, mask);
		}
	}
	if (!rc) {
		ibv->state = a->qp_state;
	} else {
		vn_log_once("ibv_modify_qp: state %d to %d with mask 0x%x refused", qp->state,
			    a->qp_state, mask);
	}
	vn_unlock();
	return rc;
}

VN_EXPORT int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *a, int mask,
			   struct ibv_qp_init_attr *init)
{
	struct vn_qp *qp = (struct vn_qp *)ibv;

	(void)mask;
	memset(a, 0, sizeof(*a));
	memset(init, 0, sizeof(*init));
	__atomic_fetch_add(&vn.commands[VN_QUERY_QP], 1, __ATOMIC_RELAXED);
	vn_lock();
	a->qp_state = a->cur_qp_state = (enum ibv_qp_state)qp->state;
	a->path_mtu = qp->mtu ? (enum ibv_mtu)(__builtin_ctz(qp->mtu) - 7) : 0;
	a->rq_psn = qp->want_psn;
	a->sq_psn = qp->next_psn;
	a->dest_qp_num = qp->remote_qpn;
	a->qp_access_flags = qp->access;
	a->cap.max_send_wr = qp->max_wr;
	a->cap.max_send_sge = 1;
	a->cap.max_inline_data = qp->max_inline;
	a->max_rd_atomic = (uint8_t)(1u << qp->rd_out);
	a->max_dest_rd_atomic = (uint8_t)(1u << qp->rd_in);
	a->port_num = 1;
	a->timeout = qp->ack_timeout;
	a->retry_cnt = qp->retry_cnt;
	a->rnr_retry = qp->rnr_retry;
	ibv->state = a->qp_state;
	vn_unlock();
	init->qp_context = ibv->qp_context;
	init->send_cq = ibv->send_cq;
	init->recv_cq = ibv->recv_cq;
	init->cap = a->cap;
	init->qp_type = IBV_QPT_RC;
	return 0;
}

/* A device reports what it can, and what both ends can once the queue pair knows its peer. */
VN_EXPORT int ibv_query_ece(struct ibv_qp *ibv, struct ibv_ece *ece)
{
	struct vn_qp *qp = (struct vn_qp *)ibv;

	if (vn_config.no_ece || !vn_config.mlx5) {
		return EOPNOTSUPP;
	}
	vn_lock();
	*ece = (struct ibv_ece){ .vendor_id = VN_VENDOR,
				 .options = qp->state < VN_RTR ? vn_ece_of(qp->nic) : qp->ece };
	vn_unlock();
	return 0;
}

/* What counts is what a queue pair has heard before it is connected. */
VN_EXPORT int ibv_set_ece(struct ibv_qp *ibv, struct ibv_ece *ece)
{
	struct vn_qp *qp = (struct vn_qp *)ibv;
	int rc = 0;

	vn_lock();
	qp->told.ece_set++;
	if (vn_config.no_ece || !vn_config.mlx5) {
		rc = EOPNOTSUPP;
	} else if (qp->state != VN_INIT || ece->comp_mask || ece->vendor_id != VN_VENDOR) {
		vn_log_once("ibv_set_ece: state %d, vendor 0x%x: refused", qp->state,
			    ece->vendor_id);
		rc = EINVAL;
	} else {
		qp->told.ece = *ece;
	}
	vn_unlock();
	return rc;
}

/* ----------------------------------------------------------------------------------- posting */

static int vn_post_one(struct vn_qp *qp, const struct ibv_send_wr *wr)
{
	struct vn_op *op = &qp->wr[qp->pi % qp->max_wr];
	const struct ibv_sge *sge = wr->num_sge ? wr->sg_list : NULL;

	if (qp->outstanding == qp->max_wr) {
		return ENOMEM;
	}
	if (wr->num_sge > 1 || wr->send_flags & ~(unsigned int)(IBV_SEND_FENCE | IBV_SEND_SIGNALED |
								IBV_SEND_INLINE)) {
		return EINVAL;
	}
	memset(op, 0, sizeof(*op));
	op->idx = qp->pi;
	op->wr_id = wr->wr_id;
	op->signaled = wr->send_flags & IBV_SEND_SIGNALED;
	op->fm = wr->send_flags & IBV_SEND_FENCE ? 4 : 0;
	op->raddr = wr->wr.rdma.remote_addr;
	op->rkey = wr->wr.rdma.rkey;
	if (sge) {
		op->laddr = sge->addr;
		op->lkey = sge->lkey;
		op->len = sge->length;
	}
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
		op->opcode = EP_MLX5_OP_WRITE;
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		op->opcode = VN_OP_WRITE_IMM;
		op->add = wr->imm_data;
		break;
	case IBV_WR_RDMA_READ:
		op->opcode = VN_OP_READ;
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		op->opcode = EP_MLX5_OP_FETCH_ADD;
		op->raddr = wr->wr.atomic.remote_addr;
		op->rkey = wr->wr.atomic.rkey;
		op->add = wr->wr.atomic.compare_add;
		if (op->len != 8 || op->raddr % 8) {
			return EINVAL;
		}
		break;
	default:
		return EOPNOTSUPP;
	}
	if (wr->send_flags & IBV_SEND_INLINE) {
		if ((op->opcode != EP_MLX5_OP_WRITE && op->opcode != VN_OP_WRITE_IMM) ||
		    op->len > VN_INLINE) {
			return EINVAL;
		}
		op->is_inline = true;
		if (op->len) {
			memcpy(op->data, (const void *)(uintptr_t)op->laddr, op->len);
		}
	}
	qp->pi++;
	qp->outstanding++;
	return 0;
}

int vn_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct vn_qp *qp = (struct vn_qp *)ibv;
	int rc = 0;

	vn_lock();
	if (qp->state != VN_RTS && qp->state != VN_ERR) {
		rc = EINVAL;
	}
	for (; wr && !rc; wr = rc ? wr : wr->next) {
		rc = vn_post_one(qp, wr);
	}
	if (rc) {
		*bad = wr;
	}
	vn_qp_activate(qp);
	vn_unlock();
	return rc;
}

/* Receives without memory, which immediate data uses up. */
int vn_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct vn_qp *qp = (struct vn_qp *)ibv;
	int rc = 0;

	vn_lock();
	for (; wr && !rc; wr = rc ? wr : wr->next) {
		rc = qp->state == VN_RST         ? EINVAL
		     : wr->num_sge               ? EOPNOTSUPP
		     : qp->rq_held == qp->max_rq ? ENOMEM
						 : 0;
		if (!rc) {
			qp->rq[(qp->rq_first + qp->rq_n++) % qp->max_rq] = wr->wr_id;
			qp->rq_held++;
			qp->told.receives++;
		}
	}
	if (rc) {
		*bad = wr;
	}
	if (qp->state == VN_ERR) {
		vn_qp_activate(qp);
	}
	vn_unlock();
	return rc;
}
