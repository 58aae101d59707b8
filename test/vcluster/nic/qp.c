/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs and completion queues: life, states, addresses, completions. */
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nic/nic.h"
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

	wc.opcode = op->opcode == VN_OP_READ             ? IBV_WC_RDMA_READ
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
 * Stores everything but the last word, then the last word in one piece, because software polls it.
 */
static void vn_complete_devx(struct vn_qp *qp, const struct vn_op *op, uint8_t syndrome,
			     uint8_t vendor)
{
	struct vn_cq *cq = qp->cq;
	struct ep_mlx5_cqe c = { 0 }, *at = cq->entry;
	uint32_t last;
	uint64_t word;

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
	c.op_own = (uint8_t)((syndrome ? EP_MLX5_CQE_REQ_ERR : EP_MLX5_CQE_REQ) << 4);
	cq->written = true;
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

/*
 * Send queues in the program's memory: doorbells and WQEs, with a check of every rule that hardware
 * relies on without saying so.
 *
 * A doorbell register is a word of plain memory here: the thread never sees a value that another
 * store replaced before it looked. So a change of the word only says that something on the page is
 * new:
 *  - one queue pair on the page: the word says how far to go, as on hardware; the doorbell record
 *    must not be behind it;
 *  - several: the doorbell records of all of them say how far to go; the record of the queue pair
 *    that the word names must not be behind the word.
 * A doorbell that was forgotten shows as a hang, unless another queue pair of the page rings. One
 * that says too little is found when its queue pair is destroyed, if it was the last of the page.
 */

#define VN_POISON 0xee /* in slots that are done */

static const char *vn_where(const struct vn_qp *qp, uint64_t idx)
{
	static char text[192]; /* the serving thread's */

	snprintf(text, sizeof(text), "%s qp 0x%x (made as number %u) index %llu, slot %llu",
		 qp->nic->device.name, qp->number, qp->made, (unsigned long long)idx,
		 (unsigned long long)(idx & (qp->depth - 1)));
	return text;
}

/* ---------------------------------------------------------------------------------- doorbells */

static uint16_t vn_dbr(struct vn_qp *qp)
{
	uint32_t value;

	if (qp->dbr_mem.gpu) {
		value = be32toh(vn_gpu_read32(qp->dbr_mem.gpu, (uint8_t *)&qp->dbr->send));
	} else {
		value = be32toh(__atomic_load_n(&qp->dbr->send, __ATOMIC_ACQUIRE));
		VC_ACQUIRE(&qp->dbr->send);
	}
	if (value > 0xffff) {
		vn_bug("%s: doorbell record is 0x%x: 16 bits only", vn_where(qp, qp->pi), value);
	}
	return (uint16_t)value;
}

/* Moves the queue's end to `end`: up to 2^15 WQEs ahead, more would be a step back. */
static bool vn_advance(struct vn_qp *qp, uint16_t end)
{
	uint16_t ahead = (uint16_t)(end - qp->pi);

	if (!ahead) {
		return false;
	}
	if (ahead > 32768) {
		vn_bug("%s: handed over up to %u, which is %u back", vn_where(qp, qp->pi), end,
		       65536u - ahead);
	}
	qp->pi += ahead;
	if (qp->pi - qp->signaled_done > qp->peak) {
		qp->peak = qp->pi - qp->signaled_done;
		vn_count_peak(qp->peak);
	}
	if (qp->state == VN_RTS && qp->pi - qp->signaled_done > qp->depth) {
		vn_bug("%s: overrun: %llu WQEs of a queue of %u are posted, and no completion has "
		       "said that any of them is done",
		       vn_where(qp, qp->pi), (unsigned long long)(qp->pi - qp->signaled_done),
		       qp->depth);
	}
	vn_qp_stir(qp);
	return true;
}

static bool vn_has_queue(const struct vn_qp *qp)
{
	return qp->state == VN_RTS || qp->state == VN_ERR;
}

/* How far a doorbell's two words say to go. */
static uint16_t vn_next(uint32_t first, uint32_t second)
{
	return (uint16_t)((first >> 8 & 0xffff) + ((second & 0x3f) + 3) / 4);
}

/*
 * Returns the full index that 16 bits of it mean: the one within 2^15 of the queue's end. Doorbell
 * records may have moved that end on by any number since a doorbell of the queue was seen.
 */
static uint64_t vn_full(const struct vn_qp *qp, uint16_t next)
{
	uint16_t ahead = (uint16_t)(next - qp->pi);

	return qp->pi + ahead - (ahead > 32768 ? 65536 : 0);
}

/* The queue pair that the word names, after checks. */
static struct vn_qp *vn_ring(struct vn_uar *u, uint64_t word)
{
	uint32_t first = be32toh((uint32_t)word), second = be32toh((uint32_t)(word >> 32));
	struct vn_qp *qp = vn_qp_find(second >> 8);
	uint16_t next = vn_next(first, second);
	uint64_t at;

	if (!qp || qp->uar != u || second & 0xc0) {
		vn_bug("doorbell 0x%08x 0x%08x on UAR page %u: no such queue pair on this page",
		       first, second, u->pub.page_id);
	}
	if (!vn_has_queue(qp)) {
		vn_bug("%s: doorbell while the queue pair is not in RTS", vn_where(qp, next));
	}
	if (!(second & 0x3f) && first & 0xff0000ff) {
		vn_bug("%s: doorbell 0x%08x without DS, but with an opcode", vn_where(qp, next),
		       first);
	}
	at = vn_full(qp, next);
	if ((int64_t)(at - qp->last_db) < 0) {
		vn_bug("%s: doorbell goes back from %u", vn_where(qp, next), (uint16_t)qp->last_db);
	}
	if ((uint16_t)(vn_dbr(qp) - next) > 32768) {
		vn_bug("%s: doorbell, but its doorbell record says %u", vn_where(qp, next),
		       vn_dbr(qp));
	}
	qp->rung = true;
	qp->last_db = at;
	return qp;
}

static bool vn_look(struct vn_uar *u)
{
	uint64_t *word = (uint64_t *)(u->page + EP_MLX5_UAR_DOORBELL);
	uint64_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
	struct vn_qp *qp;
	bool any = false;

	if (value == u->last) {
		return false;
	}
	VC_ACQUIRE(word);
	u->last = value;
	qp = vn_ring(u, value);
	qp->doorbells++;
	if (u->qps == 1) {
		return qp->last_db > qp->pi && vn_advance(qp, (uint16_t)qp->last_db);
	}
	for (qp = u->first; qp; qp = qp->page_next) {
		if (vn_has_queue(qp)) {
			any |= vn_advance(qp, vn_dbr(qp));
		}
	}
	return any;
}

void vn_sq_doorbell_last(struct vn_qp *qp)
{
	uint64_t word = __atomic_load_n((uint64_t *)(qp->uar->page + EP_MLX5_UAR_DOORBELL),
					__ATOMIC_ACQUIRE);
	uint32_t first = be32toh((uint32_t)word), second = be32toh((uint32_t)(word >> 32));
	uint16_t next = vn_next(first, second);

	if (qp->rung && second >> 8 == qp->number && next != vn_dbr(qp)) {
		vn_bug("%s: the last doorbell, but the doorbell record says %u: the WQEs between "
		       "are never fetched",
		       vn_where(qp, next), vn_dbr(qp));
	}
}

bool vn_sq_doorbells(bool *watched)
{
	bool any = false;

	*watched = false;
	for (uint32_t i = 0; i < vn.uars.n; i++) {
		struct vn_uar *u = vn.uars.item[i];

		if (u && u->qps) {
			*watched = true;
			any |= vn_look(u);
		}
	}
	return any;
}

/* --------------------------------------------------------------------------------------- WQEs */

static void vn_parse_data(struct vn_qp *qp, struct vn_op *op, const struct ep_mlx5_data_seg *d,
			  uint32_t exact)
{
	op->len = be32toh(d->byte_count);
	op->lkey = be32toh(d->lkey);
	op->laddr = be64toh(d->addr);
	if (!op->len || op->len > EP_MLX5_MAX_BYTES || (exact && op->len != exact)) {
		vn_bug("%s: data segment of %u bytes (0 would be 2 GiB; %s)", vn_where(qp, op->idx),
		       op->len, exact ? "the operand's size" : "up to 1 GiB");
	}
}

static void vn_parse_write(struct vn_qp *qp, struct vn_op *op, const union ep_mlx5_wqe_view *w,
			   uint32_t ds)
{
	uint32_t count = be32toh(w->write.data.byte_count);

	if (ds == 2) {
		return; /* nothing to write */
	}
	if (!(count & EP_MLX5_INLINE)) {
		if (ds != 3) {
			vn_bug("%s: one data segment, but DS %u", vn_where(qp, op->idx), ds);
		}
		vn_parse_data(qp, op, &w->write.data, 0);
		return;
	}
	op->len = count & ~EP_MLX5_INLINE;
	if (!op->len || op->len > EP_MLX5_MAX_INLINE || ds != 2 + (op->len + 4 + 15) / 16) {
		vn_bug("%s: %u bytes inline with DS %u", vn_where(qp, op->idx), op->len, ds);
	}
	for (uint32_t i = op->len; i < 16 * ds - 36; i++) {
		if (w->in.data.data[i]) {
			vn_bug("%s: inline data of %u bytes is padded with 0x%02x: 0 is expected",
			       vn_where(qp, op->idx), op->len, w->in.data.data[i]);
		}
	}
	op->is_inline = true;
	memcpy(op->data, w->in.data.data, op->len);
}

static void vn_parse_atomic(struct vn_qp *qp, struct vn_op *op, const union ep_mlx5_wqe_view *w,
			    uint32_t ds)
{
	if (ds != 4) {
		vn_bug("%s: atomic with DS %u", vn_where(qp, op->idx), ds);
	}
	op->add = be64toh(w->atomic.atomic.swap_add);
	vn_parse_data(qp, op, &w->atomic.data, 8);
	if (op->raddr % 8) {
		vn_bug("%s: atomic at the unaligned address 0x%llx", vn_where(qp, op->idx),
		       (unsigned long long)op->raddr);
	}
	if (!vn_get(qp->qpc, 0x48c, 4)) {
		vn_bug("%s: atomic_mode 0 does not allow it", vn_where(qp, op->idx));
	}
}

static void vn_parse_ctrl(struct vn_qp *qp, struct vn_op *op, const union ep_mlx5_wqe_view *w)
{
	const struct ep_mlx5_ctrl_seg *c = &w->ctrl;
	uint32_t what = be32toh(c->opmod_idx_opcode), who = be32toh(c->qpn_ds), ds = who & 0x3f;

	if (what == 0xeeeeeeeeu && who == 0xeeeeeeeeu) {
		vn_bug("%s: handed over, but not written since the slot was used last",
		       vn_where(qp, op->idx));
	}
	if ((what >> 8 & 0xffff) != (op->idx & 0xffff)) {
		vn_bug("%s: the WQE says index %u (control segment %08x %08x)",
		       vn_where(qp, op->idx), what >> 8 & 0xffff, what, who);
	}
	if (who >> 8 != qp->number || who & 0xc0) {
		vn_bug("%s: the WQE says qp 0x%x (control segment %08x %08x)",
		       vn_where(qp, op->idx), who >> 8, what, who);
	}
	op->opcode = (uint8_t)what;
	op->fm = c->fm_ce_se >> 5;
	op->signaled = (c->fm_ce_se & 0xc) == EP_MLX5_CE_ALWAYS;
	if (c->signature || c->stream[0] || c->stream[1] || c->imm || c->fm_ce_se & 0x13 ||
	    op->fm > 4 || ((c->fm_ce_se & 0xc) && !op->signaled)) {
		vn_bug("%s: signature %u, stream %u %u, fm_ce_se 0x%02x or imm 0x%x is not one that "
		       "makes sense here",
		       vn_where(qp, op->idx), c->signature, c->stream[0], c->stream[1], c->fm_ce_se,
		       be32toh(c->imm));
	}
	if (what >> 24) {
		vn_bug("%s: opmod 0x%x with opcode 0x%x", vn_where(qp, op->idx), what >> 24,
		       op->opcode);
	}
	if (!ds || ds > 4) {
		vn_bug("%s: DS %u: one basic block, 1 to 4", vn_where(qp, op->idx), ds);
	}
}

/* Kernels store a WQE segment by segment; here is one that was left out. */
static void vn_parse_whole(struct vn_qp *qp, struct vn_op *op, const union ep_mlx5_wqe_view *w,
			   uint32_t ds)
{
	uint8_t poison[EP_MLX5_SEGMENT];

	memset(poison, VN_POISON, sizeof(poison));
	for (uint32_t i = 1; i < ds; i++) {
		if (!memcmp(w->words.w + 4 * i, poison, sizeof(poison))) {
			vn_bug("%s: segment %u of %u was not written since the slot was used last",
			       vn_where(qp, op->idx), i, ds);
		}
	}
}

static void vn_parse(struct vn_qp *qp, struct vn_op *op, const union ep_mlx5_wqe_view *w)
{
	uint32_t ds = be32toh(w->ctrl.qpn_ds) & 0x3f;

	vn_parse_ctrl(qp, op, w);
	vn_parse_whole(qp, op, w, ds);
	if (op->opcode == EP_MLX5_OP_NOP) {
		if (ds > 2) {
			vn_bug("%s: NOP with DS %u", vn_where(qp, op->idx), ds);
		}
		return;
	}
	if (ds < 2 || w->write.raddr.reserved) {
		vn_bug("%s: DS %u without a remote address, or its reserved word is not 0",
		       vn_where(qp, op->idx), ds);
	}
	op->raddr = be64toh(w->write.raddr.addr);
	op->rkey = be32toh(w->write.raddr.rkey);
	switch (op->opcode) {
	case EP_MLX5_OP_WRITE:
		vn_parse_write(qp, op, w, ds);
		break;
	case EP_MLX5_OP_FETCH_ADD:
		vn_parse_atomic(qp, op, w, ds);
		break;
	default:
		vn_bug("%s: opcode 0x%x", vn_where(qp, op->idx), op->opcode);
	}
}

void vn_sq_fetch(struct vn_qp *qp, struct vn_op *op)
{
	struct ep_mlx5_wqe *slot = &qp->sq[op->idx & (qp->depth - 1)];
	union ep_mlx5_wqe_view w;

	if (qp->mem.gpu) {
		vn_gpu_read(qp->mem.gpu, (uint8_t *)&w, (uint8_t *)slot, sizeof(w));
	} else {
		w.words = *(volatile struct ep_mlx5_wqe *)slot;
	}
	if (vn_config.step) {
		vn_step_wqe(qp, op->idx, &w.words);
	}
	vn_parse(qp, op, &w);
}

/*
 * Only after it sees the completion may the program write the slot: what it wrote before is lost.
 */
void vn_sq_retire(struct vn_qp *qp, const struct vn_op *op)
{
	if (qp->devx && !qp->mem.gpu) {
		memset(&qp->sq[op->idx & (qp->depth - 1)], VN_POISON, EP_MLX5_WQEBB);
	}
}
