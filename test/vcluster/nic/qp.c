/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs and completion queues: life, states, addresses, completions. */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nic/gpu.h"
#include "nic/place.h"
#include "nic/qp.h"
#include "nic/req.h"
#include "nic/stepping.h"
#include "nic/thread.h"
#include "nic/verbs.h"
#include "nic/wire.h"
#include "tsan.h"

#define VN_FIRST_QPN 0x40 /* lower numbers are special on real devices */
/* Scattered numbers: slot times an odd number, and times its inverse back, modulo VN_SCATTER. */
#define VN_SCATTER 0x8000u
#define VN_SCATTER_BY 0x5a5du
#define VN_UNSCATTER_BY 0x49f5u

struct vn_cq *vn_cq_new(struct vn_context *ctx)
{
	struct vn_cq *cq = calloc(1, sizeof(*cq));
	int slot = cq ? vn_list_add(&vn.cqs, cq) : -1;

	if (slot < 0) {
		free(cq);
		return NULL;
	}
	cq->ctx = ctx;
	cq->number = (uint32_t)slot + 1;
	return cq;
}

void vn_cq_free(struct vn_cq *cq)
{
	vn_list_drop(&vn.cqs, cq->number - 1);
	if (cq->devx) {
		cq->umem->users--;
		cq->dbr_umem->users--;
		cq->uar->users--;
	}
	free(cq->wc);
	free(cq->invented);
	free(cq);
}

static uint32_t vn_number(uint32_t slot)
{
	return VN_FIRST_QPN + (vn_config.scattered ? slot * VN_SCATTER_BY % VN_SCATTER : slot);
}

static uint32_t vn_slot(uint32_t number)
{
	uint32_t n = (number & 0xffff) - VN_FIRST_QPN;

	return vn_config.scattered ? n * VN_UNSCATTER_BY % VN_SCATTER : n;
}

struct vn_qp *vn_qp_find(uint32_t number)
{
	if (number >> 16 != vn.instance || (number & 0xffff) < VN_FIRST_QPN) {
		return NULL;
	}
	return vn_list_get(&vn.qps, vn_slot(number));
}

/* In vn.active there is always room for all. */
static bool vn_qp_room(void)
{
	uint32_t cap = vn.active_cap ? 2 * vn.active_cap : 64;
	struct vn_qp **grown;

	if (vn.qps_live < vn.active_cap) {
		return true;
	}
	grown = realloc(vn.active, cap * sizeof(struct vn_qp *));
	if (!grown) {
		return false;
	}
	vn.active = grown;
	vn.active_cap = cap;
	return true;
}

static void vn_uar_leave(struct vn_qp *qp)
{
	struct vn_qp **at = &qp->uar->first;

	while (*at != qp) {
		at = &(*at)->page_next;
	}
	*at = qp->page_next;
	qp->uar->users--;
	qp->uar->qps--;
}

struct vn_qp *vn_qp_new(struct vn_context *ctx, struct vn_pd *pd, struct vn_cq *cq)
{
	uint32_t most = vn_config.scattered ? VN_SCATTER : 0x10000 - VN_FIRST_QPN;
	struct vn_qp *qp = calloc(1, sizeof(*qp));
	int slot;

	if (!qp) {
		return NULL;
	}
	slot = vn.qps.n < most && vn_qp_room() ? vn_list_add(&vn.qps, qp) : -1;
	if (slot < 0) {
		vn_log_once("no queue pair numbers left");
		free(qp);
		return NULL;
	}
	qp->ctx = ctx;
	qp->nic = ctx->nic;
	qp->pd = pd;
	qp->cq = cq;
	qp->number = vn.instance << 16 | vn_number((uint32_t)slot);
	qp->made = vn.qps_made++;
	qp->script.stuck_at = qp->script.fail_at = UINT64_MAX;
	qp->next = vn.all;
	if (vn.all) {
		vn.all->prev = qp;
	}
	vn.all = qp;
	vn.qps_live++;
	pd->users++;
	cq->users++;
	return qp;
}

static void vn_qp_drop(struct vn_qp *qp)
{
	if (qp->gid_used) {
		vn_gid_use(qp->nic, qp->gid_index, false);
		qp->gid_used = false;
	}
	for (int i = 0; i < VN_WINDOW; i++) {
		vn_op_drop(&qp->op[i]);
	}
}

void vn_qp_free(struct vn_qp *qp)
{
	vn_place_flush(qp->nic);
	vn_place_settle();
	vn_qp_drop(qp);
	*(qp->prev ? &qp->prev->next : &vn.all) = qp->next;
	if (qp->next) {
		qp->next->prev = qp->prev;
	}
	vn.qps_live--;
	for (uint32_t i = 0; qp->listed && i < vn.nactive; i++) {
		if (vn.active[i] == qp) {
			vn.active[i] = vn.active[--vn.nactive];
			break;
		}
	}
	vn_list_drop(&vn.qps, vn_slot(qp->number));
	qp->pd->users--;
	qp->cq->users--;
	if (qp->rcq) {
		qp->rcq->users--;
	}
	if (qp->devx) {
		qp->umem->users--;
		qp->dbr_umem->users--;
		vn_uar_leave(qp);
	}
	free(qp->wr);
	free(qp->wr_ends);
	free(qp->rq);
	free(qp->lost);
	free(qp);
}

void vn_qp_reset(struct vn_qp *qp)
{
	vn_place_flush(qp->nic);
	vn_place_settle();
	vn_qp_drop(qp);
	qp->state = VN_RST;
	qp->pi = qp->ci = qp->done = qp->signaled_done = 0;
	qp->in_flight = qp->rd_used = qp->nlost = qp->nlate = qp->outstanding = 0;
	qp->last_db = 0;
	qp->wr_reported = qp->wr_polled = qp->wr_done = 0;
	qp->rq_first = qp->rq_n = qp->rq_held = 0;
	qp->rung = qp->stuck = qp->black_hole = false;
	qp->cause = qp->cause_vendor = 0;
	qp->hold_until = 0;
	memset(&qp->told.ece, 0, sizeof(qp->told.ece));
	qp->ece = 0;
	qp->lag = 0;
	memset(qp->seen, 0, sizeof(qp->seen));
	memset(qp->replay, 0, sizeof(qp->replay));
	if (qp->cq->users == 1) {
		qp->cq->written = 0;
	}
}

void vn_qp_to_error(struct vn_qp *qp)
{
	qp->state = VN_ERR;
	qp->nlost = 0;
	vn_qp_activate(qp);
}

void vn_qp_stir(struct vn_qp *qp)
{
	qp->active = true;
	if (!qp->listed) {
		qp->listed = true;
		vn.active[vn.nactive++] = qp;
	}
}

void vn_qp_activate(struct vn_qp *qp)
{
	vn_qp_stir(qp);
	vn_thread_wake();
}

/* --------------------------------------------------------------------------------- addresses */

const char *vn_qp_connect(struct vn_qp *qp, const struct vn_path *path)
{
	union ibv_gid own;
	uint32_t type = 0, ip;
	uint8_t mac[6];
	bool ipv4 = false, own_ipv4;

	qp->reachable = true;
	qp->remote_qpn = path->qpn;
	qp->sport = path->sport;
	qp->gid_index = path->gid_index;
	memcpy(qp->remote_mac, path->mac, sizeof(qp->remote_mac));
	if (path->mtu < 1 || path->mtu > (uint32_t)vn_config.mtu) {
		return "mtu: 1 (256) to the active one of the port";
	}
	qp->mtu = 128u << path->mtu;
	if (vn_config.ib) {
		ip = path->grh ? vn_ip_of_path(path->lid, &path->gid) : vn_ip_of_lid(path->lid);
		if (!ip) {
			return "rlid is nobody's, or not that of the rgid";
		}
		if (path->grh && !vn_gid(qp->nic, path->gid_index, &own, &type)) {
			return "src_addr_index: no such GID";
		}
		qp->reachable = !vn_config.rails || ip % 2 != (uint32_t)qp->nic->index % 2;
	} else {
		if (!vn_gid(qp->nic, path->gid_index, &own, &type)) {
			return "src_addr_index: no such GID";
		}
		vn_ip_of_gid(&own, &own_ipv4);
		ip = vn_ip_of_gid(&path->gid, &ipv4);
		if (type == IBV_GID_TYPE_ROCE_V2 && (!path->hop_limit || path->sport < 0xc000)) {
			return "RoCE v2 needs a hop_limit and a udp_sport from 0xc000 on";
		}
		vn_mac_of_ip(ip, mac);
		if (!ip || ipv4 != own_ipv4 || memcmp(mac, path->mac, 6)) {
			vn_log_once(
				"qp 0x%x: packets will not arrive: the remote GID is %s one of %s, "
				"the local GID (index %d) of %s, the MAC is %s",
				qp->number, ip ? "" : "no", ipv4 ? "IPv4" : "link-local",
				path->gid_index, own_ipv4 ? "IPv4" : "link-local",
				memcmp(mac, path->mac, 6) ? "another one's" : "right");
			qp->reachable = false;
		}
	}
	qp->remote_ip = ip;
	qp->link = qp->reachable && ip ? vn_link_get(qp->nic, ip, path->qpn >> 16) : NULL;
	qp->reachable = qp->link != NULL;
	return NULL;
}

const char *vn_qp_route(struct vn_qp *qp)
{
	const uint8_t *q = qp->qpc;
	struct vn_path path = {
		.mtu = vn_get(q, 0x40, 3),
		.qpn = vn_get(q, 0xa8, 24),
		.lid = (uint16_t)vn_get(q, 0xc0 + 0x30, 16),
		.grh = vn_get(q, 0xc0 + 0x28, 1),
		.gid_index = (int)vn_get(q, 0xc0 + 0x48, 8),
		.hop_limit = (uint8_t)vn_get(q, 0xc0 + 0x58, 8),
		.sport = (uint16_t)vn_get(q, 0xc0 + 0x110, 16),
	};

	memcpy(path.gid.raw, q + (0xc0 + 0x80) / 8, 16);
	memcpy(path.mac, q + (0xc0 + 0x130) / 8, 6);
	qp->access = (vn_get(q, 0x490, 1) ? IBV_ACCESS_REMOTE_READ : 0) |
		     (vn_get(q, 0x491, 1) ? IBV_ACCESS_REMOTE_WRITE : 0) |
		     (vn_get(q, 0x492, 1) && vn_get(q, 0x48c, 4) ? IBV_ACCESS_REMOTE_ATOMIC : 0);
	return vn_qp_connect(qp, &path);
}

/* ------------------------------------------------------------------------------- completions */

static enum ibv_wc_status vn_wc_status(uint8_t syndrome)
{
	switch (syndrome) {
	case 0:
		return IBV_WC_SUCCESS;
	case EP_MLX5_SYND_LOCAL_LENGTH:
		return IBV_WC_LOC_LEN_ERR;
	case EP_MLX5_SYND_LOCAL_QP_OP:
		return IBV_WC_LOC_QP_OP_ERR;
	case EP_MLX5_SYND_LOCAL_PROT:
		return IBV_WC_LOC_PROT_ERR;
	case EP_MLX5_SYND_FLUSHED:
		return IBV_WC_WR_FLUSH_ERR;
	case EP_MLX5_SYND_LOCAL_ACCESS:
		return IBV_WC_LOC_ACCESS_ERR;
	case EP_MLX5_SYND_REMOTE_INVAL_REQ:
		return IBV_WC_REM_INV_REQ_ERR;
	case EP_MLX5_SYND_REMOTE_ACCESS:
		return IBV_WC_REM_ACCESS_ERR;
	case EP_MLX5_SYND_REMOTE_OP:
		return IBV_WC_REM_OP_ERR;
	case EP_MLX5_SYND_RETRY_EXCEEDED:
		return IBV_WC_RETRY_EXC_ERR;
	case EP_MLX5_SYND_RNR_EXCEEDED:
		return IBV_WC_RNR_RETRY_EXC_ERR;
	case EP_MLX5_SYND_REMOTE_ABORTED:
		return IBV_WC_REM_ABORT_ERR;
	default:
		return IBV_WC_GENERAL_ERR;
	}
}

/* False: there is no room. */
static bool vn_cq_put(struct vn_cq *cq, const struct ibv_wc *wc)
{
	if (cq->count == cq->size) {
		if (!cq->overrun) {
			vn_log_once("CQ of %u entries overrun", cq->size);
			vn_event(cq->ctx, IBV_EVENT_CQ_ERR, cq, 0);
		}
		cq->overrun = true;
		return false;
	}
	cq->wc[(cq->head + cq->count) % cq->size] = *wc;
	cq->invented[(cq->head + cq->count) % cq->size] = false;
	__atomic_store_n(&cq->count, cq->count + 1, __ATOMIC_RELEASE);
	vn_cq_notify(cq);
	return true;
}

static void vn_complete_verbs(struct vn_qp *qp, const struct vn_op *op, uint8_t syndrome,
			      uint8_t vendor)
{
	struct ibv_wc wc = { .wr_id = op->wr_id,
			     .status = vn_wc_status(syndrome),
			     .vendor_err = vendor,
			     .byte_len = op->len,
			     .qp_num = qp->number };

	wc.opcode = op->opcode == EP_MLX5_OP_READ        ? IBV_WC_RDMA_READ
		    : op->opcode == EP_MLX5_OP_FETCH_ADD ? IBV_WC_FETCH_ADD
							 : IBV_WC_RDMA_WRITE;
	if (vn_config.step && !vn_step_reports(&wc)) {
		qp->outstanding -= (uint32_t)(qp->done - qp->wr_done);
		qp->wr_done = qp->done;
		return;
	}
	if (vn_cq_put(qp->cq, &wc)) {
		qp->wr_ends[qp->wr_reported++ % qp->max_wr] = (uint32_t)(qp->done - qp->wr_done);
		qp->wr_done = qp->done;
	}
}

void vn_cq_invent(struct vn_cq *cq, const struct ibv_wc *wc)
{
	struct vn_qp *qp = vn_qp_find(wc->qp_num);
	uint32_t at = (cq->head + cq->count) % cq->size;

	if (vn_cq_put(cq, wc)) {
		cq->invented[at] = true;
	}
	if (qp && wc->opcode & IBV_WC_RECV && qp->rq_n) {
		qp->rq_first = (qp->rq_first + 1) % qp->max_rq;
		qp->rq_n--;
		qp->rq_held--;
	}
}

void vn_cq_receive(struct vn_qp *qp, const struct ibv_wc *what)
{
	struct ibv_wc wc = *what;

	wc.wr_id = qp->rq[qp->rq_first];
	wc.qp_num = qp->number;
	qp->rq_first = (qp->rq_first + 1) % qp->max_rq;
	qp->rq_n--;
	vn_cq_put(qp->rcq, &wc);
}

/*
 * Stores everything but the last word, then the last word in one piece, because software polls it. A
 * queue that is not collapsed has an owner bit that changes with every round.
 */
static void vn_complete_devx(struct vn_qp *qp, const struct vn_op *op, uint8_t syndrome,
			     uint8_t vendor)
{
	struct vn_cq *cq = qp->cq;
	uint32_t slot = cq->cc ? 0 : (uint32_t)cq->written & ((1u << cq->log_size) - 1);
	uint8_t owner = cq->cc ? 0 : cq->written >> cq->log_size & 1;
	struct ep_mlx5_cqe c = { 0 }, *at = cq->entry + slot;
	uint32_t user = htobe32(vn_get(qp->qpc, 0x88, 24)), last;
	uint64_t word;

	memcpy(c.other + 32, &user, 4);
	c.byte_count = htobe32(op->len);
	if (syndrome) {
		c.u.error.hw_syndrome = syndrome == EP_MLX5_SYND_FLUSHED ? 0xf9 : 0;
		c.u.error.vendor_syndrome = vendor;
		c.u.error.syndrome = syndrome;
	} else {
		c.u.timestamp = htobe64(vn_now());
	}
	c.opcode_qpn = htobe32((uint32_t)op->opcode << 24 | qp->number);
	c.wqe_counter = htobe16((uint16_t)op->idx);
	c.op_own = (uint8_t)((syndrome ? EP_MLX5_CQE_REQ_ERR : EP_MLX5_CQE_REQ) << 4 | owner);
	cq->written++;
	if (cq->mem.gpu) {
		vn_gpu_write_cqe(cq->mem.gpu, (uint8_t *)at, &c);
		return;
	}
	for (unsigned int i = 0; i < 7; i++) {
		memcpy(&word, (char *)&c + 8 * i, 8);
		__atomic_store_n((uint64_t *)at + i, word, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&at->opcode_qpn, c.opcode_qpn, __ATOMIC_RELAXED);
	memcpy(&last, (char *)&c + EP_MLX5_CQE_DONE_AT, 4);
	VC_RELEASE((char *)at + EP_MLX5_CQE_DONE_AT);
	__atomic_store_n((uint32_t *)((char *)at + EP_MLX5_CQE_DONE_AT), last, __ATOMIC_RELEASE);
}

void vn_cq_complete(struct vn_qp *qp, const struct vn_op *op, uint8_t syndrome, uint8_t vendor)
{
	if (qp->devx) {
		vn_complete_devx(qp, op, syndrome, vendor);
	} else {
		vn_complete_verbs(qp, op, syndrome, vendor);
	}
}
