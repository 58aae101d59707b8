/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requester: work requests become packets, answers become completions.
 *
 * Tier 0 sends packets in order. From tier 1 on it picks them at random among all requests under
 * way and holds some back, so that later requests overtake earlier ones; only fences and, at tier
 * 1, atomics wait until everything before them is acknowledged. Completions always come in order.
 * The weaker end decides about the order, since it is the responder that places data; whether
 * atomics wait by themselves is up to the requester's own tier.
 */
#include <stdlib.h>
#include <string.h>
#include "nic/nic.h"

#define VN_QP_PACKETS 128 /* packets of a queue pair that are under way */
#define VN_RNR_NS 200000  /* until immediate data is sent again */
#define VN_BURST 64       /* packets of a queue pair in one turn */

struct vn_op *vn_op_of(struct vn_qp *qp, uint64_t idx)
{
	return idx >= qp->done && idx < qp->ci ? &qp->op[idx % VN_WINDOW] : NULL;
}

static bool vn_is_atomic(const struct vn_op *op)
{
	return op->opcode == EP_MLX5_OP_FETCH_ADD;
}

static bool vn_is_fetching(const struct vn_op *op)
{
	return op->opcode == VN_OP_READ || vn_is_atomic(op);
}

static bool vn_op_complete(const struct vn_op *op)
{
	return op->base == op->npkts;
}

/* ----------------------------------------------------------------------------------- fetching */

void vn_op_drop(struct vn_op *op)
{
	if (op->staged) {
		vn_gpu_unstage(op->gpu, op->staged);
		op->staged = NULL;
	}
}

/* Checks local memory, as hardware does that reports local protection errors. */
static void vn_check_local(struct vn_qp *qp, struct vn_op *op)
{
	uint32_t need = vn_is_fetching(op) ? IBV_ACCESS_LOCAL_WRITE : 0;
	struct vn_mr *mr;
	uint8_t *at;
	const char *why;

	if (!op->len || op->is_inline) {
		return;
	}
	why = vn_mr_check(op->lkey, false, qp->pd, op->laddr, op->len, need, &mr, &at);
	if (why) {
		vn_log("%s qp 0x%x index %llu opcode 0x%x: local key 0x%x, %u bytes at 0x%llx: %s",
		       qp->nic->device.name, qp->number, (unsigned long long)op->idx, op->opcode,
		       op->lkey, op->len, (unsigned long long)op->laddr, why);
		op->syndrome = EP_MLX5_SYND_LOCAL_PROT;
		return;
	}
	mr->sent |= !need && op->len;
	if (mr->mem.gpu && op->opcode == EP_MLX5_OP_WRITE && !op->fm) {
		op->gpu = mr->mem.gpu;
		op->staged = vn_gpu_stage(op->gpu, mr, at, op->len);
	}
}

/* Requests of the queue that are not over, and send bytes of [start, start + size). */
static uint32_t vn_reading(struct vn_qp *qp, uint64_t start, uint64_t size)
{
	uint32_t n = 0;

	for (uint64_t i = qp->done; qp->state == VN_RTS && i < qp->ci; i++) {
		const struct vn_op *op = vn_op_of(qp, i);

		n += op && op->len && !op->is_inline && !vn_is_fetching(op) &&
		     op->laddr - start < size;
	}
	return n;
}

VN_EXPORT uint32_t vn_dv_reading(const void *p, uint64_t size)
{
	uint32_t n = 0;

	vn_lock();
	for (uint32_t i = 0; i < vn.qps.n; i++) {
		struct vn_qp *qp = vn_list_get(&vn.qps, i);

		n += qp ? vn_reading(qp, (uintptr_t)p, size) : 0;
	}
	vn_unlock();
	return n;
}

/* By its own end's tier and fence, is the request one that can be held back? */
static bool vn_may_wait(const struct vn_qp *qp, const struct vn_op *op)
{
	return op->fm || (vn_is_atomic(op) && qp->tier == EP_MLX5_TIER_OOO_RW);
}

static void vn_count_op(const struct vn_qp *qp, const struct vn_op *op)
{
	bool write = op->opcode == EP_MLX5_OP_WRITE || op->opcode == VN_OP_WRITE_IMM;

	vn_count(vn_is_atomic(op) ? VN_COUNT_ATOMIC
		 : !write         ? VN_COUNT_OTHER
		 : op->is_inline  ? VN_COUNT_WORD
				  : VN_COUNT_ROW);
	if (vn_may_wait(qp, op)) {
		vn_count(VN_COUNT_HELD);
	}
	if (op->signaled) {
		vn_count(VN_COUNT_REPORTED);
	}
}

static bool vn_fetch_next(struct vn_qp *qp)
{
	struct vn_op *op = &qp->op[qp->ci % VN_WINDOW];

	if (qp->ci == qp->pi || qp->ci - qp->done == VN_WINDOW || qp->stuck ||
	    (vn_config.step && vn_step_stops(qp))) {
		return false;
	}
	if (qp->devx) {
		memset(op, 0, offsetof(struct vn_op, data));
		op->idx = qp->ci;
		vn_sq_fetch(qp, op);
	} else {
		*op = qp->wr[qp->ci % qp->max_wr];
	}
	if (op->opcode == EP_MLX5_OP_NOP) {
		op->npkts = 0;
	} else {
		op->npkts = op->len ? (op->len + qp->mtu - 1) / qp->mtu : 1;
	}
	op->since = vn_stat_start();
	vn_count_op(qp, op);
	op->psn = qp->next_psn;
	qp->next_psn = (qp->next_psn + op->npkts) & VN_PSN_MASK;
	if (!op->syndrome) {
		vn_check_local(qp, op);
	}
	vn_fault_op(qp, op);
	if (vn_config.step) {
		vn_step_fetched(qp, op);
	}
	qp->ci++;
	return true;
}

/* -------------------------------------------------------------------------------------- sending */

/* Must the request wait for all before it, for those that fetch, or for room to fetch? */
static bool vn_must_wait(struct vn_qp *qp, const struct vn_op *op)
{
	bool all = false, fetching = op->fm != 0;

	if (qp->order >= EP_MLX5_TIER_OOO_RW) {
		all = op->fm == 3 || op->opcode == VN_OP_WRITE_IMM;
		all |= vn_is_atomic(op) && qp->tier == EP_MLX5_TIER_OOO_RW;
		/*
		 * its own tier 0: a fence waits for what fetches only, whatever the other end does
		 */
		all |= vn_is_atomic(op) && qp->tier > EP_MLX5_TIER_IBTA &&
		       (op->fm == 2 || op->fm == 4);
	}
	if (all) {
		return op->idx != qp->done;
	}
	for (uint64_t i = qp->done; fetching && i < op->idx; i++) {
		const struct vn_op *earlier = vn_op_of(qp, i);

		if (vn_is_fetching(earlier) && !vn_op_complete(earlier)) {
			return true;
		}
	}
	return vn_is_fetching(op) && qp->rd_used >= 1u << qp->rd_out;
}

/* Is the packet inside the responder's window? */
static bool vn_psn_near(struct vn_qp *qp, const struct vn_op *op, uint32_t pkt)
{
	const struct vn_op *oldest = vn_op_of(qp, qp->done);
	uint32_t from = oldest->psn + oldest->base;

	return ((op->psn + pkt - from) & VN_PSN_MASK) < VN_PSN_WINDOW / 2;
}

static void vn_fill(struct vn_qp *qp, const struct vn_op *op, uint32_t pkt, struct vn_packet *p)
{
	uint32_t from = pkt * qp->mtu;

	memset(p, 0, sizeof(*p));
	p->kind = op->opcode == VN_OP_READ ? VN_READ : vn_is_atomic(op) ? VN_ATOMIC : VN_WRITE;
	p->opcode = op->opcode;
	p->syndrome = qp->order == EP_MLX5_TIER_IBTA;
	p->dst_qpn = qp->remote_qpn;
	p->src_qpn = qp->number;
	p->psn = (op->psn + pkt) & VN_PSN_MASK;
	p->len = op->len;
	p->bytes = op->len - from < qp->mtu ? op->len - from : qp->mtu;
	p->rkey = op->rkey;
	p->mtu = (uint16_t)qp->mtu;
	p->pad = (uint16_t)(1u << qp->rd_out);
	p->src_ip = qp->nic->ip;
	p->dst_ip = qp->remote_ip;
	p->raddr = op->raddr + from;
	p->add = op->add;
	p->idx = op->idx;
	p->pkt = pkt;
	p->ece = qp->ece;
}

static void vn_lost_add(struct vn_qp *qp, uint64_t idx, uint32_t pkt);

/*
 * The source address is no more, or the other end has another hardware address by now (of NICs of
 * this process).
 */
static bool vn_astray(const struct vn_qp *qp)
{
	const struct vn_nic *far = vn_nic_of_ip(qp->remote_ip);

	return !vn_gid_works(qp->nic, qp->gid_index) ||
	       (far && !vn_config.ib && memcmp(far->mac, qp->remote_mac, sizeof(far->mac)) != 0);
}

void vn_req_transmit(struct vn_qp *qp, struct vn_op *op, uint32_t pkt)
{
	struct vn_packet p;
	const uint8_t *payload = NULL;
	struct vn_mr *mr;
	uint8_t *at;

	if (!qp->reachable || qp->nic->down || vn_astray(qp)) {
		vn_lost_add(qp, op->idx, pkt);
		return;
	}
	vn_fill(qp, op, pkt, &p);
	if (p.kind == VN_WRITE && op->is_inline) {
		payload = op->data;
	} else if (op->staged) {
		payload = op->staged + (size_t)pkt * qp->mtu;
	} else if (p.kind == VN_WRITE && p.bytes) {
		if (vn_mr_check(op->lkey, false, qp->pd, op->laddr + (uint64_t)pkt * qp->mtu,
				p.bytes, 0, &mr, &at)) {
			op->syndrome = EP_MLX5_SYND_LOCAL_PROT; /* deregistered meanwhile */
			return;
		}
		payload = vn_payload(mr, at, p.bytes);
	}
	if (vn_fault_stray(qp, op, &p, payload)) {
		vn_lost_add(qp, op->idx, pkt);
		return;
	}
	vn_lag_sent(qp, payload ? p.bytes : 0);
	vn_link_send(qp->link, &p, payload);
}

static void vn_send_one(struct vn_qp *qp, struct vn_op *op, uint32_t pkt)
{
	if (!op->started) {
		op->started = true;
		qp->rd_used += vn_is_fetching(op);
	}
	op->sent |= 1u << (pkt - op->base);
	qp->in_flight++;
	if (vn_fault_packet(qp, op, pkt)) {
		return; /* lost, or sent later */
	}
	vn_req_transmit(qp, op, pkt);
}

static uint32_t vn_unsent(const struct vn_qp *qp, const struct vn_op *op)
{
	uint32_t left = op->npkts - op->base;

	/* The last packet has the immediate data and ends a receive: nothing passes it. */
	if (op->opcode == VN_OP_WRITE_IMM && qp->order != EP_MLX5_TIER_IBTA && left > 1) {
		left--;
	}
	return ~op->sent & (left >= VN_PACKETS ? ~0u : (1u << left) - 1);
}

static bool vn_send_ordered(struct vn_qp *qp)
{
	bool any = false;
	uint32_t n = 0;

	/* While a packet is lost or late, the responder would refuse all behind it. */
	for (uint64_t i = qp->done; i < qp->ci && !qp->nlost && !qp->nlate; i++) {
		struct vn_op *op = vn_op_of(qp, i);

		if (op->syndrome || (!op->started && vn_must_wait(qp, op))) {
			break;
		}
		while (vn_unsent(qp, op) && !op->syndrome && !qp->nlost && !qp->nlate) {
			uint32_t pkt = op->base + (uint32_t)__builtin_ctz(vn_unsent(qp, op));

			if (n == VN_BURST || qp->in_flight >= VN_QP_PACKETS ||
			    !vn_psn_near(qp, op, pkt) || (qp->link && vn_link_full(qp->link))) {
				return any;
			}
			vn_send_one(qp, op, pkt);
			any = true;
			n++;
		}
		if (op->base + VN_PACKETS < op->npkts) {
			break; /* its other packets go first */
		}
	}
	return any;
}

static uint32_t vn_candidates(struct vn_qp *qp, struct vn_lost *list)
{
	uint32_t n = 0;

	for (uint64_t i = qp->done; i < qp->ci; i++) {
		struct vn_op *op = vn_op_of(qp, i);
		uint32_t unsent = vn_unsent(qp, op);

		if (op->syndrome || (!op->started && vn_must_wait(qp, op))) {
			break;
		}
		for (; unsent && n < VN_BURST; unsent &= unsent - 1) {
			uint32_t pkt = op->base + (uint32_t)__builtin_ctz(unsent);

			if (qp->in_flight + n < VN_QP_PACKETS && vn_psn_near(qp, op, pkt)) {
				list[n++] = (struct vn_lost){ .idx = i, .pkt = pkt };
			}
		}
		/* Nothing passes a fence that has not started. */
		if (!op->started && op->opcode != EP_MLX5_OP_NOP &&
		    (op->fm || vn_is_fetching(op))) {
			break;
		}
	}
	return n;
}

/*
 * Of payload that was copied ahead: packets that follow each other become one copy at the other
 * end.
 */
static void vn_send_staged(struct vn_qp *qp, struct vn_op *op)
{
	while (vn_unsent(qp, op) && qp->in_flight < VN_QP_PACKETS && !vn_link_full(qp->link)) {
		uint32_t pkt = op->base + (uint32_t)__builtin_ctz(vn_unsent(qp, op));

		if (!vn_psn_near(qp, op, pkt)) {
			return;
		}
		vn_send_one(qp, op, pkt);
	}
}

static bool vn_send_shuffled(struct vn_qp *qp)
{
	struct vn_lost list[VN_BURST];
	uint32_t n = vn_candidates(qp, list);
	bool any = n != 0;

	while (n) {
		uint32_t k = (uint32_t)(vn_random() % n);
		struct vn_lost pick = list[k];
		struct vn_op *op = vn_op_of(qp, pick.idx);

		list[k] = list[--n];
		if (qp->link && vn_link_full(qp->link)) {
			break;
		}
		/*
		 * One in four waits for another turn. Answers may have come meanwhile and moved the
		 * window.
		 */
		if (vn_random() % 4 == 0 || !op || pick.pkt < op->base || op->syndrome ||
		    op->sent >> (pick.pkt - op->base) & 1) {
			continue;
		}
		if (op->staged && qp->link) {
			vn_send_staged(qp, op);
		} else {
			vn_send_one(qp, op, pick.pkt);
		}
	}
	return any;
}

/* ------------------------------------------------------------------------------- lost packets */

static uint64_t vn_retry_ns(const struct vn_qp *qp)
{
	if (vn_config.retry_ms) {
		return (uint64_t)vn_config.retry_ms * 1000000u / (qp->retry_cnt + 1u);
	}
	return qp->ack_timeout ? 4096ull << qp->ack_timeout : UINT64_MAX / 4;
}

/* rdma_rxe before it sends a fenced READ or atomic again: waits for ever for its own credit. */
static bool vn_stalls(const struct vn_op *op)
{
	return !vn_config.mlx5 && op && op->fm && vn_is_fetching(op);
}

static void vn_lost_add(struct vn_qp *qp, uint64_t idx, uint32_t pkt)
{
	struct vn_op *op = vn_op_of(qp, idx);
	uint64_t due = vn_stalls(op) ? UINT64_MAX : vn_now() + vn_retry_ns(qp);

	for (uint32_t i = 0; i < qp->nlost; i++) {
		if (qp->lost[i].idx == idx && qp->lost[i].pkt == pkt) {
			qp->lost[i].due = due;
			qp->lost[i].waiting = true;
			if (qp->lost[i].tries++ >= qp->retry_cnt && op && !op->syndrome) {
				op->syndrome = EP_MLX5_SYND_RETRY_EXCEEDED;
				op->vendor = 0x81;
			}
			return;
		}
	}
	if (qp->nlost == qp->lost_cap) {
		uint32_t cap = qp->lost_cap ? 2 * qp->lost_cap : 16;
		struct vn_lost *grown = realloc(qp->lost, cap * sizeof(*grown));

		if (!grown) {
			abort();
		}
		qp->lost = grown;
		qp->lost_cap = cap;
	}
	qp->lost[qp->nlost++] = (struct vn_lost){ due, idx, pkt, 1, true };
	if (!qp->retry_cnt && op && !op->syndrome) {
		op->syndrome = EP_MLX5_SYND_RETRY_EXCEEDED;
		op->vendor = 0x81;
	}
}

static void vn_lost_forget(struct vn_qp *qp, uint64_t idx, uint32_t pkt)
{
	for (uint32_t i = 0; i < qp->nlost; i++) {
		if (qp->lost[i].idx == idx && qp->lost[i].pkt == pkt) {
			qp->lost[i] = qp->lost[--qp->nlost];
			return;
		}
	}
}

/*
 * The responder did not take a packet. If packets must come in order, only the oldest one counts as
 * lost, and those behind it as not sent.
 */
static void vn_refused(struct vn_qp *qp, struct vn_op *op, uint32_t pkt)
{
	uint64_t i = qp->done;

	while (i < op->idx && vn_op_complete(vn_op_of(qp, i))) {
		i++;
	}
	if (qp->order != EP_MLX5_TIER_IBTA || (i == op->idx && pkt == op->base)) {
		vn_lost_add(qp, op->idx, pkt);
		return;
	}
	op->sent &= ~(1u << (pkt - op->base));
	qp->in_flight--;
	vn_lost_forget(qp, op->idx, pkt);
}

void vn_req_lost(struct vn_qp *qp, uint64_t idx, uint32_t pkt)
{
	struct vn_op *op = vn_op_of(qp, idx);

	if (qp->state == VN_RTS && op && pkt >= op->base && pkt - op->base < VN_PACKETS &&
	    op->sent >> (pkt - op->base) & 1 && !(op->acked >> (pkt - op->base) & 1)) {
		vn_lost_add(qp, idx, pkt);
		vn_qp_stir(qp);
	}
}

/* The link is gone: what was under way on it is lost, the last one first. */
void vn_req_link_lost(struct vn_link *link)
{
	for (struct vn_qp *qp = vn.all; qp; qp = qp->next) {
		if (qp->link != link || qp->state != VN_RTS) {
			continue;
		}
		vn_qp_stir(qp);
		for (uint64_t i = qp->ci; i-- > qp->done;) {
			struct vn_op *op = vn_op_of(qp, i);

			for (uint32_t b = VN_PACKETS; b--;) {
				if ((op->sent & ~op->acked) >> b & 1) {
					vn_refused(qp, op, op->base + b);
				}
			}
		}
	}
}

/* The other end has no receive for the immediate data: once more, a little later. */
static void vn_not_ready(struct vn_qp *qp, struct vn_op *op, uint32_t pkt)
{
	if (qp->rnr_retry < 7 && op->rnr++ >= qp->rnr_retry) {
		op->syndrome = EP_MLX5_SYND_RNR_EXCEEDED;
		op->vendor = 0x82;
		return;
	}
	vn_lost_add(qp, op->idx, pkt);
	op->syndrome = 0;
	for (uint32_t i = 0; i < qp->nlost; i++) {
		if (qp->lost[i].idx == op->idx && qp->lost[i].pkt == pkt) {
			qp->lost[i].due = vn_now() + VN_RNR_NS;
			qp->lost[i].tries = 0;
		}
	}
}

static bool vn_resend(struct vn_qp *qp)
{
	uint64_t now = qp->nlost ? vn_now() : 0;
	bool any = false;

	for (uint32_t i = 0; i < qp->nlost; i++) {
		struct vn_lost *l = &qp->lost[i];
		uint64_t idx = l->idx;
		uint32_t pkt = l->pkt;

		if (l->waiting && now >= l->due) {
			struct vn_op *op = vn_op_of(qp, idx);

			l->waiting = false;
			vn_stat(VN_STAT_RESEND, l->due, 0);
			any = true;
			if (op && !op->syndrome && !vn_fault_packet(qp, op, pkt)) {
				vn_req_transmit(qp, op, pkt); /* *l may be gone now */
			}
		}
	}
	return any;
}

/* ------------------------------------------------------------------------------------- answers */

static bool vn_store_local(struct vn_qp *qp, struct vn_op *op, uint64_t offset, const uint8_t *data,
			   uint32_t bytes)
{
	struct vn_mr *mr;
	uint8_t *at;

	if (vn_mr_check(op->lkey, false, qp->pd, op->laddr + offset, bytes, IBV_ACCESS_LOCAL_WRITE,
			&mr, &at)) {
		op->syndrome = EP_MLX5_SYND_LOCAL_PROT;
		return false;
	}
	vn_store(mr, at, data, bytes);
	op->unsettled = mr->mem.gpu != NULL;
	return true;
}

void vn_req_answer(const struct vn_packet *p, const uint8_t *payload)
{
	struct vn_qp *qp = vn_qp_find(p->dst_qpn);
	struct vn_op *op = qp && qp->state == VN_RTS ? vn_op_of(qp, p->idx) : NULL;
	uint32_t bit;

	if (!op || p->pkt < op->base || p->pkt - op->base >= VN_PACKETS ||
	    p->psn != ((op->psn + p->pkt) & VN_PSN_MASK)) {
		return;
	}
	bit = 1u << (p->pkt - op->base);
	if (!(op->sent & bit) || op->acked & bit || op->syndrome) {
		return;
	}
	vn_qp_stir(qp);
	if (p->tier > qp->order) {
		qp->order = p->tier;
	}
	if (p->kind == VN_DROPPED || qp->nic->down || vn_fault_unheard(qp, op)) {
		vn_refused(qp, op, p->pkt);
		return;
	}
	if (p->kind == VN_RNR) {
		vn_not_ready(qp, op, p->pkt);
		return;
	}
	if (p->kind == VN_NAK) {
		op->syndrome = p->syndrome;
		op->vendor = 0x88;
		return;
	}
	if (p->bytes && !vn_store_local(qp, op, (uint64_t)p->pkt * qp->mtu, payload, p->bytes)) {
		return;
	}
	op->acked |= bit;
	qp->in_flight--;
	vn_lost_forget(qp, p->idx, p->pkt);
	while (op->acked & 1) {
		op->acked >>= 1;
		op->sent >>= 1;
		op->base++;
	}
	if (vn_op_complete(op) && vn_is_fetching(op)) {
		qp->rd_used--;
	}
}

/* ---------------------------------------------------------------------------------- completions */

static void vn_fail(struct vn_qp *qp, struct vn_op *op)
{
	vn_log("%s qp 0x%x index %llu opcode 0x%x to qp 0x%x at %u.%u.%u.%u: error completion, "
	       "syndrome 0x%02x",
	       qp->nic->device.name, qp->number, (unsigned long long)op->idx, op->opcode,
	       qp->remote_qpn, qp->remote_ip >> 24, qp->remote_ip >> 16 & 0xff,
	       qp->remote_ip >> 8 & 0xff, qp->remote_ip & 0xff, op->syndrome);
	vn_op_drop(op);
	qp->done++;
	qp->signaled_done = qp->done;
	qp->cause = op->syndrome;
	qp->cause_vendor = op->vendor;
	vn_cq_complete(qp, op, op->syndrome, op->vendor);
	vn_qp_to_error(qp);
}

static bool vn_retire(struct vn_qp *qp)
{
	bool any = false;

	while (qp->done < qp->ci && qp->state == VN_RTS) {
		struct vn_op *op = vn_op_of(qp, qp->done);

		if (op->syndrome) {
			vn_fail(qp, op);
			return true;
		}
		if (!vn_op_complete(op) || qp->stuck) {
			break;
		}
		if (op->unsettled) {
			vn_gpu_settle();
		}
		vn_sq_retire(qp, op);
		vn_stat(VN_STAT_MESSAGE, op->since, op->len);
		vn_op_drop(op);
		qp->done++;
		any = true;
		if (op->signaled) {
			qp->signaled_done = qp->done;
			vn_cq_complete(qp, op, 0, 0);
		}
	}
	return any;
}

/* In error state every request ends in an error, reported or not. */
static bool vn_flush(struct vn_qp *qp)
{
	bool any = false;

	while (qp->done < qp->pi) {
		struct vn_op *known = vn_op_of(qp, qp->done), blank = { .idx = qp->done };
		struct vn_op *op = known      ? known
				   : qp->devx ? &blank
					      : &qp->wr[qp->done % qp->max_wr];

		if (known) {
			vn_op_drop(known);
		}
		qp->done++;
		if (qp->ci < qp->done) {
			qp->ci = qp->done;
		}
		qp->signaled_done = qp->done;
		vn_cq_complete(qp, op, EP_MLX5_SYND_FLUSHED, 0);
		any = true;
	}
	while (qp->rq_n) {
		vn_cq_receive(qp, &(struct ibv_wc){ .status = IBV_WC_WR_FLUSH_ERR,
						    .opcode = IBV_WC_RECV });
		any = true;
	}
	qp->active = false;
	return any;
}

/* Takes up what was posted. Ahead of sending, so that payload of many queues is copied together. */
bool vn_req_fetch(struct vn_qp *qp)
{
	bool any = false;

	while (qp->state == VN_RTS && !qp->hold_until && vn_fetch_next(qp)) {
		any = true;
	}
	return any;
}

bool vn_req_run(struct vn_qp *qp)
{
	bool any = false;

	if (qp->state == VN_ERR) {
		return vn_flush(qp);
	}
	if (qp->state != VN_RTS) {
		qp->active = false;
		return false;
	}
	if (qp->hold_until) {
		if (vn_now() < qp->hold_until) {
			return false;
		}
		qp->hold_until = 0;
		any = true;
	}
	any |= vn_resend(qp);
	any |= qp->order == EP_MLX5_TIER_IBTA ? vn_send_ordered(qp) : vn_send_shuffled(qp);
	any |= vn_retire(qp);
	qp->active = qp->done < qp->pi || qp->state == VN_ERR;
	return any;
}

/* ---- the responder: packets that arrive become accesses to registered memory, and answers ---- */

static uint8_t vn_tier_of(uint32_t qpn)
{
	const struct vn_qp *qp = vn_qp_find(qpn);

	return qp ? qp->tier : 0;
}

static struct vn_packet vn_answer_to(const struct vn_packet *p, uint8_t kind, uint32_t bytes)
{
	struct vn_packet a = { .kind = kind,
			       .opcode = p->opcode,
			       .tier = vn_tier_of(p->dst_qpn),
			       .dst_qpn = p->src_qpn,
			       .src_qpn = p->dst_qpn,
			       .psn = p->psn,
			       .len = bytes,
			       .bytes = bytes,
			       .idx = p->idx,
			       .pkt = p->pkt };

	return a;
}

static void vn_answer(struct vn_link *link, const struct vn_packet *p, uint8_t kind,
		      const uint8_t *payload, uint32_t bytes)
{
	struct vn_packet a = vn_answer_to(p, kind, bytes);

	vn_link_send(link, &a, payload);
}

static void vn_nak(struct vn_qp *qp, struct vn_link *link, const struct vn_packet *p,
		   uint8_t syndrome)
{
	struct vn_packet a = { .kind = VN_NAK,
			       .opcode = p->opcode,
			       .syndrome = syndrome,
			       .dst_qpn = p->src_qpn,
			       .src_qpn = p->dst_qpn,
			       .psn = p->psn,
			       .idx = p->idx,
			       .pkt = p->pkt };

	if (!qp->devx) {
		vn_event(qp->ctx, IBV_EVENT_QP_ACCESS_ERR, qp, 0);
	}
	vn_link_send(link, &a, NULL);
	vn_qp_to_error(qp);
}

/* Did the packet come from the queue pair that this one is connected to? */
static bool vn_belongs(struct vn_nic *nic, struct vn_qp *qp, const struct vn_packet *p)
{
	if (!qp || qp->nic != nic || (qp->state != VN_RTR && qp->state != VN_RTS)) {
		if (vn_config.verbose) {
			vn_log("%s: packet for qp 0x%x ignored: %s", nic->device.name, p->dst_qpn,
			       !qp              ? "no such queue pair"
			       : qp->nic != nic ? "it is on another device"
						: "it is not ready to receive");
		}
		return false;
	}
	if (qp->remote_qpn != p->src_qpn || qp->remote_ip != p->src_ip) {
		vn_log_once(
			"%s qp 0x%x: packets from qp 0x%x at 0x%x ignored: it is connected with qp "
			"0x%x at 0x%x",
			nic->device.name, qp->number, p->src_qpn, p->src_ip, qp->remote_qpn,
			qp->remote_ip);
		return false;
	}
	if (p->mtu != qp->mtu) {
		vn_log_once("%s qp 0x%x: packets ignored: the MTU is %u, on the other end %u",
			    nic->device.name, qp->number, qp->mtu, p->mtu);
		return false;
	}
	if (p->ece != qp->ece) {
		vn_bug("%s qp 0x%x: it does 0x%x beyond the standard, the other end 0x%x (ECE)",
		       nic->device.name, qp->number, qp->ece, p->ece);
	}
	if (((p->psn - qp->want_psn) & VN_PSN_MASK) >= VN_PSN_WINDOW &&
	    ((qp->want_psn - p->psn) & VN_PSN_MASK) > VN_PSN_WINDOW) {
		vn_log_once(
			"%s qp 0x%x: packets ignored: PSN 0x%x, where 0x%x should come (next_rcv_psn "
			"here, next_send_psn there)",
			nic->device.name, qp->number, p->psn, qp->want_psn);
		return false;
	}
	return true;
}

/* Returns true if the packet has come before. */
static bool vn_seen(struct vn_qp *qp, uint32_t psn)
{
	uint32_t ahead = (psn - qp->want_psn) & VN_PSN_MASK, at = psn % VN_PSN_WINDOW;

	return ahead >= VN_PSN_WINDOW || qp->seen[at / 64] >> at % 64 & 1;
}

static void vn_note(struct vn_qp *qp, uint32_t psn)
{
	uint32_t at = psn % VN_PSN_WINDOW;

	qp->seen[at / 64] |= 1ull << at % 64;
	for (at = qp->want_psn % VN_PSN_WINDOW; qp->seen[at / 64] >> at % 64 & 1;
	     at = qp->want_psn % VN_PSN_WINDOW) {
		qp->seen[at / 64] &= ~(1ull << at % 64);
		qp->want_psn = (qp->want_psn + 1) & VN_PSN_MASK;
	}
}

/* The memory that the packet means, or NULL after a NAK. All of the message must be allowed. */
static struct vn_mr *vn_target(struct vn_qp *qp, struct vn_link *link, const struct vn_packet *p,
			       uint32_t need, uint8_t **at)
{
	uint64_t from = (uint64_t)p->pkt * p->mtu;
	const char *why = need & ~qp->access ? "the queue pair does not allow this access" : NULL;
	struct vn_mr *mr = NULL;

	if (!why) {
		why = vn_mr_check(p->rkey, true, qp->pd, p->raddr - from, p->len, need, &mr, at);
	}
	if (!why && p->kind == VN_ATOMIC && p->raddr % p->len) {
		vn_log("%s qp 0x%x: atomic at the unaligned address 0x%llx", qp->nic->device.name,
		       qp->number, (unsigned long long)p->raddr);
		vn_nak(qp, link, p, EP_MLX5_SYND_REMOTE_INVAL_REQ);
		return NULL;
	}
	if (why) {
		vn_log("%s qp 0x%x: opcode 0x%x from qp 0x%x, remote key 0x%x, %u bytes at 0x%llx: "
		       "%s",
		       qp->nic->device.name, qp->number, p->opcode, p->src_qpn, p->rkey, p->len,
		       (unsigned long long)(p->raddr - from), why);
		vn_nak(qp, link, p, EP_MLX5_SYND_REMOTE_ACCESS);
		return NULL;
	}
	*at += from;
	return mr;
}

static void vn_resp_write(struct vn_nic *nic, struct vn_qp *qp, struct vn_link *link,
			  const struct vn_packet *p, const uint8_t *payload, bool again)
{
	struct vn_packet a = { .kind = VN_ACK,
			       .tier = qp->tier,
			       .dst_qpn = p->src_qpn,
			       .src_qpn = p->dst_qpn,
			       .psn = p->psn,
			       .idx = p->idx,
			       .pkt = p->pkt };
	struct vn_mr *mr;
	uint8_t *at;

	if (again || !p->len) {
		vn_link_send(link, &a, NULL);
		return;
	}
	mr = vn_target(qp, link, p, IBV_ACCESS_REMOTE_WRITE, &at);
	if (mr && vn_config.step) {
		vn_step_write(at, payload, p->bytes);
	}
	if (mr) {
		vn_place(nic, mr, at, payload, p->bytes, link, &a);
	}
}

/* Whether a packet ends a message that uses up a receive. */
static bool vn_ends_receive(const struct vn_packet *p)
{
	return p->kind == VN_WRITE && p->opcode == VN_OP_WRITE_IMM &&
	       (uint64_t)p->pkt * p->mtu + p->bytes >= p->len;
}

/* All that the connection has brought before is in memory when the completion tells of it. */
static void vn_resp_receive(struct vn_nic *nic, struct vn_qp *qp, const struct vn_packet *p)
{
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS,
			     .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
			     .byte_len = p->len,
			     .imm_data = (uint32_t)p->add,
			     .wc_flags = IBV_WC_WITH_IMM };

	if (qp->state == VN_ERR) {
		return; /* the write was refused */
	}
	vn_place_flush(nic);
	vn_place_settle();
	vn_cq_receive(qp, &wc);
}

static void vn_resp_read(struct vn_nic *nic, struct vn_qp *qp, struct vn_link *link,
			 const struct vn_packet *p)
{
	struct vn_mr *mr;
	uint8_t *at;

	if (!p->len) {
		vn_answer(link, p, VN_ACK, NULL, 0);
		return;
	}
	mr = vn_target(qp, link, p, IBV_ACCESS_REMOTE_READ, &at);
	if (mr) {
		vn_place_flush(nic);
		vn_answer(link, p, VN_READ_DATA, vn_payload(mr, at, p->bytes), p->bytes);
	}
}

/* The result is kept: an answer that was lost must not add twice. */
static void vn_replay_note(struct vn_qp *qp, uint32_t psn, uint64_t old)
{
	qp->replay[psn % VN_REPLAY].psn = psn;
	qp->replay[psn % VN_REPLAY].valid = true;
	qp->replay[psn % VN_REPLAY].old = old;
}

static void vn_resp_atomic(struct vn_nic *nic, struct vn_qp *qp, struct vn_link *link,
			   const struct vn_packet *p, bool again)
{
	uint32_t slot = p->psn % VN_REPLAY;
	struct vn_mr *mr;
	uint8_t *at;
	uint64_t old;

	if (again) {
		if (qp->replay[slot].valid && qp->replay[slot].psn == p->psn) {
			old = qp->replay[slot].old;
			vn_answer(link, p, VN_ATOMIC_OLD, (uint8_t *)&old, p->len);
		}
		return;
	}
	mr = vn_target(qp, link, p, IBV_ACCESS_REMOTE_ATOMIC, &at);
	if (!mr) {
		return;
	}
	vn_place_flush(nic);
	if (mr->mem.gpu) {
		struct vn_packet a = vn_answer_to(p, VN_ATOMIC_OLD, p->len);

		vn_place_atomic(link, &a, p, mr, at);
		return;
	}
	old = vn_atomic(p, mr, at);
	vn_replay_note(qp, p->psn, old);
	vn_answer(link, p, VN_ATOMIC_OLD, (uint8_t *)&old, p->len);
}

void vn_resp_atomic_done(const struct vn_packet *answer, uint64_t old)
{
	struct vn_qp *qp = vn_qp_find(answer->src_qpn);

	if (qp) {
		vn_replay_note(qp, answer->psn, old);
	}
}

void vn_resp_packet(struct vn_link *link, const struct vn_packet *p, const uint8_t *payload)
{
	struct vn_nic *nic = vn_nic_of_ip(p->dst_ip);
	struct vn_qp *qp = vn_qp_find(p->dst_qpn);
	bool again;

	if (!nic || nic->down || !vn_belongs(nic, qp, p)) {
		vn_answer(link, p, VN_DROPPED, NULL, 0);
		return;
	}
	if (p->kind != VN_WRITE && p->pad > 1u << qp->rd_in) {
		vn_log("%s qp 0x%x: the other end keeps up to %u READs and atomics under way, "
		       "log_rra_max here allows %u",
		       nic->device.name, qp->number, p->pad, 1u << qp->rd_in);
		vn_nak(qp, link, p, EP_MLX5_SYND_REMOTE_INVAL_REQ);
		return;
	}
	again = vn_seen(qp, p->psn);
	if (!again && p->syndrome && p->psn != qp->want_psn) {
		vn_answer(link, p, VN_DROPPED, NULL, 0); /* a packet before it is missing */
		return;
	}
	if (!again && vn_ends_receive(p) && !qp->rq_n) {
		vn_answer(link, p, VN_RNR, NULL, 0);
		return;
	}
	if (!again) {
		vn_note(qp, p->psn);
	}
	switch (p->kind) {
	case VN_WRITE:
		vn_resp_write(nic, qp, link, p, payload, again);
		if (!again && vn_ends_receive(p)) {
			vn_resp_receive(nic, qp, p);
		}
		break;
	case VN_READ:
		vn_resp_read(nic, qp, link, p);
		break;
	default:
		vn_resp_atomic(nic, qp, link, p, again);
		break;
	}
}
