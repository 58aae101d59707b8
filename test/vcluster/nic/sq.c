/* SPDX-License-Identifier: Apache-2.0 */
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
#include <endian.h>
#include <stdio.h>
#include <string.h>
#include "nic/gpu.h"
#include "nic/sq.h"
#include "nic/stats.h"
#include "nic/stepping.h"
#include "tsan.h"

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
		return false;
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
		return NULL;
	}
	if (!vn_has_queue(qp)) {
		vn_bug("%s: doorbell while the queue pair is not in RTS", vn_where(qp, next));
		return NULL;
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
	if (qp) {
		qp->doorbells++;
	}
	if (qp && u->qps == 1) {
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

#define VN_BAD(op, ...)                                                                            \
	do {                                                                                       \
		vn_bug(__VA_ARGS__);                                                               \
		(op)->syndrome = EP_MLX5_SYND_LOCAL_QP_OP;                                         \
		return false;                                                                      \
	} while (0)

static bool vn_parse_data(struct vn_qp *qp, struct vn_op *op, const struct ep_mlx5_data_seg *d,
			  uint32_t exact)
{
	op->len = be32toh(d->byte_count);
	op->lkey = be32toh(d->lkey);
	op->laddr = be64toh(d->addr);
	if (!op->len || op->len > EP_MLX5_MAX_BYTES || (exact && op->len != exact)) {
		VN_BAD(op, "%s: data segment of %u bytes (0 would be 2 GiB; %s)",
		       vn_where(qp, op->idx), op->len,
		       exact ? "the operand's size" : "up to 1 GiB");
	}
	return true;
}

static bool vn_parse_write(struct vn_qp *qp, struct vn_op *op, const union ep_mlx5_wqe_view *w,
			   uint32_t ds)
{
	uint32_t count = be32toh(w->write.data.byte_count);

	if (ds == 2) {
		return true; /* nothing to write */
	}
	if (!(count & EP_MLX5_INLINE)) {
		if (ds != 3) {
			VN_BAD(op, "%s: one data segment, but DS %u", vn_where(qp, op->idx), ds);
		}
		return vn_parse_data(qp, op, &w->write.data, 0);
	}
	op->len = count & ~EP_MLX5_INLINE;
	if (!op->len || op->len > EP_MLX5_MAX_INLINE || ds != 2 + (op->len + 4 + 15) / 16) {
		VN_BAD(op, "%s: %u bytes inline with DS %u", vn_where(qp, op->idx), op->len, ds);
	}
	for (uint32_t i = op->len; i < 16 * ds - 36; i++) {
		if (w->in.data.data[i]) {
			VN_BAD(op,
			       "%s: inline data of %u bytes is padded with 0x%02x: 0 is expected",
			       vn_where(qp, op->idx), op->len, w->in.data.data[i]);
		}
	}
	op->is_inline = true;
	memcpy(op->data, w->in.data.data, op->len);
	return true;
}

static bool vn_parse_atomic(struct vn_qp *qp, struct vn_op *op, const union ep_mlx5_wqe_view *w,
			    uint32_t ds)
{
	bool four = op->opmod == EP_MLX5_OPMOD_MASKED_4;

	if (ds != 4) {
		VN_BAD(op, "%s: atomic with DS %u", vn_where(qp, op->idx), ds);
	}
	if (four) {
		op->add = be32toh(w->atomic32.atomic.add);
		op->boundary = be32toh(w->atomic32.atomic.boundary);
		if (w->atomic32.atomic.reserved[0] || w->atomic32.atomic.reserved[1]) {
			VN_BAD(op, "%s: masked atomic: reserved words are not 0",
			       vn_where(qp, op->idx));
		}
	} else {
		op->add = be64toh(w->atomic.atomic.swap_add);
		op->boundary = op->opcode == EP_MLX5_OP_MASKED_FETCH_ADD
				       ? be64toh(w->atomic.atomic.compare)
				       : 0;
	}
	if (!vn_parse_data(qp, op, &w->atomic.data, four ? 4 : 8)) {
		return false;
	}
	if (op->raddr % (four ? 4 : 8)) {
		VN_BAD(op, "%s: atomic at the unaligned address 0x%llx", vn_where(qp, op->idx),
		       (unsigned long long)op->raddr);
	}
	if (!vn_get(qp->qpc, 0x48c, 4) ||
	    (op->opcode == EP_MLX5_OP_MASKED_FETCH_ADD && vn_get(qp->qpc, 0x48c, 4) < 3)) {
		VN_BAD(op, "%s: atomic_mode %u does not allow it", vn_where(qp, op->idx),
		       vn_get(qp->qpc, 0x48c, 4));
	}
	return true;
}

static bool vn_parse_ctrl(struct vn_qp *qp, struct vn_op *op, const union ep_mlx5_wqe_view *w)
{
	const struct ep_mlx5_ctrl_seg *c = &w->ctrl;
	uint32_t what = be32toh(c->opmod_idx_opcode), who = be32toh(c->qpn_ds), ds = who & 0x3f;
	bool masked;

	if (what == 0xeeeeeeeeu && who == 0xeeeeeeeeu) {
		VN_BAD(op, "%s: handed over, but not written since the slot was used last",
		       vn_where(qp, op->idx));
	}
	if ((what >> 8 & 0xffff) != (op->idx & 0xffff)) {
		VN_BAD(op, "%s: the WQE says index %u (control segment %08x %08x)",
		       vn_where(qp, op->idx), what >> 8 & 0xffff, what, who);
	}
	if (who >> 8 != qp->number || who & 0xc0) {
		VN_BAD(op, "%s: the WQE says qp 0x%x (control segment %08x %08x)",
		       vn_where(qp, op->idx), who >> 8, what, who);
	}
	op->opcode = (uint8_t)what;
	op->opmod = (uint8_t)(what >> 24);
	op->fm = c->fm_ce_se >> 5;
	op->signaled = (c->fm_ce_se & 0xc) == EP_MLX5_CE_ALWAYS;
	masked = op->opcode == EP_MLX5_OP_MASKED_FETCH_ADD;
	if (c->signature || c->stream[0] || c->stream[1] || c->imm || c->fm_ce_se & 0x13 ||
	    op->fm > 4 || ((c->fm_ce_se & 0xc) && !op->signaled)) {
		VN_BAD(op,
		       "%s: signature %u, stream %u %u, fm_ce_se 0x%02x or imm 0x%x is not one that "
		       "makes sense here",
		       vn_where(qp, op->idx), c->signature, c->stream[0], c->stream[1], c->fm_ce_se,
		       be32toh(c->imm));
	}
	if (masked ? op->opmod != EP_MLX5_OPMOD_MASKED_4 && op->opmod != EP_MLX5_OPMOD_MASKED_8
		   : op->opmod != 0) {
		VN_BAD(op, "%s: opmod 0x%x with opcode 0x%x", vn_where(qp, op->idx), op->opmod,
		       op->opcode);
	}
	if (!ds || ds > 4) {
		VN_BAD(op, "%s: DS %u: one basic block, 1 to 4", vn_where(qp, op->idx), ds);
	}
	return true;
}

/* Kernels store a WQE segment by segment; here is one that was left out. */
static bool vn_parse_whole(struct vn_qp *qp, struct vn_op *op, const union ep_mlx5_wqe_view *w,
			   uint32_t ds)
{
	uint8_t poison[EP_MLX5_SEGMENT];

	memset(poison, VN_POISON, sizeof(poison));
	for (uint32_t i = 1; i < ds; i++) {
		if (!memcmp(w->words.w + 4 * i, poison, sizeof(poison))) {
			VN_BAD(op,
			       "%s: segment %u of %u was not written since the slot was used last",
			       vn_where(qp, op->idx), i, ds);
		}
	}
	return true;
}

static bool vn_parse(struct vn_qp *qp, struct vn_op *op, const union ep_mlx5_wqe_view *w)
{
	uint32_t ds = be32toh(w->ctrl.qpn_ds) & 0x3f;

	if (!vn_parse_ctrl(qp, op, w) || !vn_parse_whole(qp, op, w, ds)) {
		return false;
	}
	if (op->opcode == EP_MLX5_OP_NOP) {
		if (ds > 2) {
			VN_BAD(op, "%s: NOP with DS %u", vn_where(qp, op->idx), ds);
		}
		return true;
	}
	if (ds < 2 || w->write.raddr.reserved) {
		VN_BAD(op, "%s: DS %u without a remote address, or its reserved word is not 0",
		       vn_where(qp, op->idx), ds);
	}
	op->raddr = be64toh(w->write.raddr.addr);
	op->rkey = be32toh(w->write.raddr.rkey);
	switch (op->opcode) {
	case EP_MLX5_OP_WRITE:
		return vn_parse_write(qp, op, w, ds);
	case EP_MLX5_OP_READ:
		if (ds != 3 || be32toh(w->write.data.byte_count) & EP_MLX5_INLINE) {
			VN_BAD(op, "%s: READ with DS %u or inline data", vn_where(qp, op->idx), ds);
		}
		return vn_parse_data(qp, op, &w->write.data, 0);
	case EP_MLX5_OP_FETCH_ADD:
	case EP_MLX5_OP_MASKED_FETCH_ADD:
		return vn_parse_atomic(qp, op, w, ds);
	default:
		VN_BAD(op, "%s: opcode 0x%x", vn_where(qp, op->idx), op->opcode);
	}
}

bool vn_sq_fetch(struct vn_qp *qp, struct vn_op *op)
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
	return vn_parse(qp, op, &w);
}

/* Only after it sees the completion may the program write the slot: what it wrote before is lost. */
void vn_sq_retire(struct vn_qp *qp, const struct vn_op *op)
{
	if (qp->devx && !qp->mem.gpu && vn_config.strict) {
		memset(&qp->sq[op->idx & (qp->depth - 1)], VN_POISON, EP_MLX5_WQEBB);
	}
}
