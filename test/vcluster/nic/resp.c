/* SPDX-License-Identifier: Apache-2.0 */
/* The responder: packets that arrive become accesses to registered memory, and answers. */
#include "nic/place.h"
#include "nic/resp.h"
#include "nic/stepping.h"
#include "nic/wire.h"

static uint8_t vn_tier_of(uint32_t qpn)
{
	const struct vn_qp *qp = vn_qp_find(qpn);

	return qp ? qp->tier : 0;
}

static struct vn_packet vn_answer_to(const struct vn_packet *p, uint8_t kind, uint32_t bytes)
{
	struct vn_packet a = { .kind = kind,
			       .opcode = p->opcode,
			       .opmod = vn_tier_of(p->dst_qpn),
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
		if (vn_config.strict > 1) {
			vn_bug("VC_NIC_STRICT=2: access errors too");
		}
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
			       .opmod = qp->tier,
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
