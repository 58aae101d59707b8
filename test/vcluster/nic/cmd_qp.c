/* SPDX-License-Identifier: Apache-2.0 */
/* DevX: queue pairs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "nic/cmd.h"
#include "nic/lag.h"

#define VN_QPC(bit) (0xc0 + (bit))
#define VN_ADS(bit) (0xc0 + (bit)) /* primary path, within the QPC */

/* What may be set in a QPC; the primary path begins at 0xc0. */
const struct vn_field vn_qpc_fields[] = {
	{ 0x4, 4 },
	{ 0x8, 8 },
	{ 0x13, 2 },
	{ 0x26, 2 },
	{ 0x28, 24 },
	{ 0x40, 3 },
	{ 0x43, 5 },
	{ 0x49, 4 },
	{ 0x50, 1 },
	{ 0x51, 4 },
	{ 0x58, 2 },
	{ 0x5b, 1 },
	{ 0x60, 8 },
	{ 0x68, 24 },
	{ 0x80, 2 },
	{ 0x88, 24 },
	{ 0xa3, 5 },
	{ 0xa8, 24 },
	{ 0x380, 4 },
	{ 0x388, 3 },
	{ 0x38d, 3 },
	{ 0x390, 3 },
	{ 0x3c8, 24 },
	{ 0x3e8, 24 },
	{ 0x488, 3 },
	{ 0x48c, 4 },
	{ 0x490, 3 },
	{ 0x494, 6 },
	{ 0x49c, 1 },
	{ 0x49f, 1 },
	{ 0x4a3, 5 },
	{ 0x4a8, 24 },
	{ 0x4e8, 24 },
	{ 0x500, 64 },
	{ 0x565, 3 },
	{ 0x630, 16 },
	{ 0x683, 1 },
	{ 0x720, 32 },
	/* path */
	{ 0xc0 + 0x10, 16 },
	{ 0xc0 + 0x28, 8 },
	{ 0xc0 + 0x30, 16 },
	{ 0xc0 + 0x40, 5 },
	{ 0xc0 + 0x48, 8 },
	{ 0xc0 + 0x54, 4 },
	{ 0xc0 + 0x58, 8 },
	{ 0xc0 + 0x64, 28 },
	{ 0xc0 + 0x80, 128 },
	{ 0xc0 + 0x108, 2 },
	{ 0xc0 + 0x10a, 6 },
	{ 0xc0 + 0x110, 16 },
	{ 0xc0 + 0x121, 3 },
	{ 0xc0 + 0x124, 4 },
	{ 0xc0 + 0x128, 8 },
	{ 0xc0 + 0x130, 48 },
};
const size_t vn_qpc_nfields = VN_COUNT(vn_qpc_fields);

/* What each transition takes from its QPC. */
static const struct vn_field vn_init_fields[] = {
	{ 0x4, 4 },   { 0x13, 2 },         { 0x48c, 4 },
	{ 0x490, 3 }, { 0xc0 + 0x10, 16 }, { 0xc0 + 0x128, 8 },
};
static const struct vn_field vn_rtr_fields[] = {
	{ 0x26, 2 },          { 0x40, 3 },         { 0x43, 5 },          { 0xa8, 24 },
	{ 0x488, 3 },         { 0x49c, 1 },        { 0x4a3, 5 },         { 0x4a8, 24 },
	{ 0xc0 + 0x28, 8 },   { 0xc0 + 0x30, 16 }, { 0xc0 + 0x48, 8 },   { 0xc0 + 0x54, 4 },
	{ 0xc0 + 0x58, 8 },   { 0xc0 + 0x64, 28 }, { 0xc0 + 0x80, 128 }, { 0xc0 + 0x108, 8 },
	{ 0xc0 + 0x110, 16 }, { 0xc0 + 0x121, 3 }, { 0xc0 + 0x124, 4 },  { 0xc0 + 0x130, 48 },
};
static const struct vn_field vn_rts_fields[] = {
	{ 0x380, 4 }, { 0x388, 3 }, { 0x38d, 3 }, { 0x390, 3 }, { 0x3c8, 24 }, { 0xc0 + 0x40, 5 },
};

static bool vn_qp_take_umems(struct vn_cmd *cmd, struct vn_qp *qp)
{
	const uint8_t *in = cmd->in;
	uint64_t offset = vn_get64(in, 0x800), dbr_offset = vn_get64(in, VN_QPC(0x500));
	uint32_t log = vn_get(in, VN_QPC(0x51), 4);

	qp->umem = vn_cmd_umem(cmd, "send queue", vn_get(in, 0x840, 32), offset, 64ull << log, 64);
	if (!qp->umem) {
		return false;
	}
	qp->dbr_umem = vn_cmd_umem(cmd, "doorbell record", vn_get(in, VN_QPC(0x720), 32),
				   dbr_offset, 8, 8);
	if (!qp->dbr_umem) {
		return false;
	}
	qp->depth = 1u << log;
	qp->mem = qp->umem->mem;
	qp->sq = (struct ep_mlx5_wqe *)(qp->umem->mem.at + offset);
	qp->dbr_mem = qp->dbr_umem->mem;
	qp->dbr = (struct ep_mlx5_dbr *)(qp->dbr_umem->mem.at + dbr_offset);
	return true;
}

static bool vn_cmd_qp_check(struct vn_cmd *cmd)
{
	const uint8_t *in = cmd->in;
	uint32_t ts = vn_get(in, VN_QPC(0x58), 2);

	if (ts > 2 || (ts == 0 && vn_config.ts == 1) || (ts && !vn_config.ts)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM,
				 "ts_format %u: the capability qp_ts_format is %u", ts,
				 vn_config.ts);
	}
	if (vn_get(in, VN_QPC(0x8), 8)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "st %u: only RC is known here",
				 vn_get(in, VN_QPC(0x8), 8));
	}
	if (vn_get(in, VN_QPC(0x50), 1) || vn_get(in, VN_QPC(0x49), 4) ||
	    vn_get(in, VN_QPC(0x565), 3) != 3) {
		return VN_REFUSE(
			cmd, VN_ST_BAD_PARAM,
			"no_sq %u, log_rq_size %u, rq_type %u: a send queue and no receive "
			"queue (0, 0, 3)",
			vn_get(in, VN_QPC(0x50), 1), vn_get(in, VN_QPC(0x49), 4),
			vn_get(in, VN_QPC(0x565), 3));
	}
	if (vn_get(in, VN_QPC(0x80), 2)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "send_dbr_mode %u: no such capability",
				 vn_get(in, VN_QPC(0x80), 2));
	}
	if (!vn_get(in, VN_QPC(0x683), 1) || vn_get(in, VN_QPC(0x494), 6) ||
	    vn_get(in, VN_QPC(0x49f), 1)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM,
				 "dbr_umem_valid %u, page_offset %u, cd_master %u, not 1, 0, 0",
				 vn_get(in, VN_QPC(0x683), 1), vn_get(in, VN_QPC(0x494), 6),
				 vn_get(in, VN_QPC(0x49f), 1));
	}
	return true;
}

struct vn_qp *vn_cmd_create_qp(struct vn_cmd *cmd)
{
	static const struct vn_field fields[] = {
		{ 0x80, 64 }, { 0x800, 64 }, { 0x840, 32 }, { 0x860, 1 }
	};
	uint32_t ece = vn_get(cmd->in, 0xa0, 32);
	const uint8_t *in = cmd->in;
	struct vn_pd *pd;
	struct vn_uar *uar;
	struct vn_cq *cq, *rcq;
	struct vn_qp *qp;

	if (!vn_cmd_check(cmd, 272, 16, fields, VN_COUNT(fields), true) || !vn_cmd_qp_check(cmd)) {
		return NULL;
	}
	if (vn_get(in, 0x80, 32) || (ece && (ece != VN_ECE_ASK || vn_config.no_ece))) {
		VN_REFUSE(cmd, VN_ST_BAD_PARAM, "opt_param_mask 0x%x, ece 0x%x",
			  vn_get(in, 0x80, 32), ece);
		return NULL;
	}
	pd = vn_list_get(&vn.pds, vn_get(in, VN_QPC(0x28), 24) - 1);
	uar = vn_uar_find(vn_get(in, VN_QPC(0x68), 24), cmd->ctx);
	cq = vn_list_get(&vn.cqs, vn_get(in, VN_QPC(0x3e8), 24) - 1);
	rcq = vn_list_get(&vn.cqs, vn_get(in, VN_QPC(0x4e8), 24) - 1);
	if (!pd || pd->ctx != cmd->ctx || !uar) {
		VN_REFUSE(cmd, VN_ST_BAD_RESOURCE, "pd %u, uar_page %u: one is not of this context",
			  vn_get(in, VN_QPC(0x28), 24), vn_get(in, VN_QPC(0x68), 24));
		return NULL;
	}
	if (!cq || cq->ctx != cmd->ctx || !cq->devx || !rcq || rcq->ctx != cmd->ctx) {
		VN_REFUSE(cmd, VN_ST_BAD_RESOURCE,
			  "cqn_snd %u, cqn_rcv %u: one is not of this context",
			  vn_get(in, VN_QPC(0x3e8), 24), vn_get(in, VN_QPC(0x4e8), 24));
		return NULL;
	}
	qp = vn_qp_new(cmd->ctx, pd, cq);
	if (!qp || !vn_qp_take_umems(cmd, qp)) {
		if (qp) {
			vn_qp_free(qp);
		} else {
			VN_REFUSE(cmd, VN_ST_NO_RESOURCES, "no memory");
		}
		return NULL;
	}
	qp->devx = true;
	qp->rcq = rcq;
	rcq->users++;
	qp->umem->users++;
	qp->dbr_umem->users++;
	qp->uar = uar;
	qp->page_next = uar->first;
	uar->first = qp;
	uar->users++;
	uar->qps++;
	memcpy(qp->qpc, in + 24, sizeof(qp->qpc));
	vn_set(cmd->out, 0x48, 24, qp->number);
	vn_set(cmd->out, 0x60, 32, ece ? vn_ece_of(qp->nic) : 0);
	return qp;
}

/* ------------------------------------------------------------------------------------ modify */

static void vn_take(struct vn_qp *qp, const uint8_t *in, const struct vn_field *f, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		for (unsigned int b = 0; b < f[i].width; b++) {
			vn_set(qp->qpc, f[i].bit + b, 1, vn_get(in, VN_QPC(f[i].bit + b), 1));
		}
	}
}

static bool vn_to_init(struct vn_cmd *cmd, struct vn_qp *qp)
{
	const uint8_t *in = cmd->in;

	if (vn_get(in, VN_QPC(0x13), 2) != 3 || vn_get(in, VN_QPC(0xc0 + 0x128), 8) != 1 ||
	    vn_get(in, VN_QPC(0xc0 + 0x10), 16) >= VN_PKEYS) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM,
				 "pm_state %u, vhca_port_num %u, pkey_index %u, not 3, 1, 0",
				 vn_get(in, VN_QPC(0x13), 2), vn_get(in, VN_QPC(0xc0 + 0x128), 8),
				 vn_get(in, VN_QPC(0xc0 + 0x10), 16));
	}
	if (vn_config.no_atomics &&
	    (vn_get(in, VN_QPC(0x48c), 4) || vn_get(in, VN_QPC(0x492), 1))) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "atomic_mode %u, rae %u: no atomics here",
				 vn_get(in, VN_QPC(0x48c), 4), vn_get(in, VN_QPC(0x492), 1));
	}
	if (vn_get(in, VN_QPC(0x48c), 4) > 3) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "atomic_mode %u: operands up to 8 bytes (3)",
				 vn_get(in, VN_QPC(0x48c), 4));
	}
	if (!vn_lag_check(cmd, qp, VN_RST2INIT)) {
		return false;
	}
	vn_take(qp, in, vn_init_fields, VN_COUNT(vn_init_fields));
	qp->lag = (uint8_t)vn_get(in, VN_QPC(0x4), 4);
	qp->state = VN_INIT;
	return true;
}

/* The tier: what was asked for, else what firmware chooses by itself. */
static bool vn_tier(struct vn_cmd *cmd, struct vn_qp *qp)
{
	const uint8_t *in = cmd->in;
	uint32_t want = vn_get(in, VN_QPC(0x26), 1) | vn_get(in, VN_QPC(0x49c), 1) << 1;
	bool force = vn_get(in, VN_QPC(0x27), 1);

	if (want > 2 || (want == 1 && !vn_config.ooo_rw) || (want == 2 && !vn_config.ooo_all) ||
	    (force && !vn_config.ooo_force)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM,
				 "dp_ordering %u%s: more than the capabilities allow", want,
				 force ? ", forced" : "");
	}
	qp->tier = (uint8_t)(force || want > (uint32_t)vn_config.tier ? want
								      : (uint32_t)vn_config.tier);
	qp->order = qp->tier;
	return true;
}

static bool vn_to_rtr(struct vn_cmd *cmd, struct vn_qp *qp)
{
	const uint8_t *in = cmd->in;
	uint32_t ece = vn_get(in, 0xa0, 32);
	const char *why;

	if (vn_get(in, VN_QPC(0x43), 5) > 30 || vn_get(in, VN_QPC(0x488), 3) > 4) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM,
				 "log_msg_max %u, log_rra_max %u: up to 30, 4",
				 vn_get(in, VN_QPC(0x43), 5), vn_get(in, VN_QPC(0x488), 3));
	}
	if (vn.rtr++ == VN_FEW_RTR && vn_config.fatal_rtr) {
		kill(getpid(), SIGKILL);
	}
	if (vn_config.no_rtr || (vn_config.few_rtr && vn.rtr > VN_FEW_RTR)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "connections, by its profile");
	}
	if (!vn_ece_reduce(qp->nic, &ece)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "ece 0x%x, it can 0x%x", ece,
				 vn_ece_of(qp->nic));
	}
	if (!vn_tier(cmd, qp) || !vn_lag_check(cmd, qp, VN_INIT2RTR)) {
		return false;
	}
	qp->ece = ece;
	vn_set(cmd->out, 0x60, 32, ece);
	if (vn_get(in, 0x80, 32)) {
		qp->lag = (uint8_t)vn_get(in, VN_QPC(0x4), 4);
	}
	vn_take(qp, in, vn_rtr_fields, VN_COUNT(vn_rtr_fields));
	why = vn_qp_route(qp);
	if (why) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "%s", why);
	}
	qp->want_psn = vn_get(in, VN_QPC(0x4a8), 24);
	qp->rd_in = (uint8_t)vn_get(in, VN_QPC(0x488), 3);
	qp->state = VN_RTR;
	return true;
}

static bool vn_to_rts(struct vn_cmd *cmd, struct vn_qp *qp)
{
	const uint8_t *in = cmd->in;

	if (vn_get(in, VN_QPC(0x388), 3) > 4) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "log_sra_max %u: up to 4",
				 vn_get(in, VN_QPC(0x388), 3));
	}
	vn_take(qp, in, vn_rts_fields, VN_COUNT(vn_rts_fields));
	qp->next_psn = vn_get(in, VN_QPC(0x3c8), 24);
	qp->rd_out = (uint8_t)vn_get(in, VN_QPC(0x388), 3);
	qp->retry_cnt = (uint8_t)vn_get(in, VN_QPC(0x38d), 3);
	qp->rnr_retry = (uint8_t)vn_get(in, VN_QPC(0x390), 3);
	qp->ack_timeout = (uint8_t)vn_get(in, VN_QPC(0xc0 + 0x40), 5);
	qp->lag = vn_config.lag_late ? 0 : qp->lag;
	/* Kernels take a new queue to be in this state. */
	if (!qp->mem.gpu && qp->cq->cc && !qp->cq->written &&
	    __atomic_load_n((uint32_t *)((char *)qp->cq->entry + EP_MLX5_CQE_DONE_AT),
			    __ATOMIC_RELAXED) != ~0u) {
		vn_bug("qp 0x%x: the CQE was not filled with 0xff before RTS", qp->number);
	}
	if (!qp->dbr_mem.gpu && (qp->dbr->recv || qp->dbr->send)) {
		vn_bug("qp 0x%x: its doorbell record was not 0 before RTS", qp->number);
	}
	qp->state = VN_RTS;
	vn_qp_activate(qp);
	return true;
}

bool vn_cmd_modify_qp(struct vn_cmd *cmd, struct vn_qp *qp, uint32_t opcode)
{
	static const struct vn_field fields[] = { { 0x48, 24 }, { 0x80, 64 } };
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQER", "SQD", "ERR" };
	enum vn_qp_state from = opcode == VN_RST2INIT   ? VN_RST
				: opcode == VN_INIT2RTR ? VN_INIT
				: opcode == VN_RTR2RTS  ? VN_RTR
							: VN_RTS;

	if (opcode == VN_2ERR || opcode == VN_2RST) {
		if (!vn_cmd_check(cmd, 16, 16, fields, 1, false)) {
			return false;
		}
		if (opcode == VN_2RST) {
			vn_qp_reset(qp);
		} else if (qp->state == VN_RST) {
			return VN_REFUSE(cmd, VN_ST_BAD_QP_STATE, "qp 0x%x is in RESET",
					 qp->number);
		} else {
			vn_qp_to_error(qp);
		}
		return true;
	}
	if (opcode != VN_RST2INIT && opcode != VN_INIT2RTR && opcode != VN_RTR2RTS &&
	    opcode != VN_RTS2RTS) {
		return VN_REFUSE(cmd, VN_ST_BAD_OP, "opcode 0x%x modifies no queue pair here",
				 opcode);
	}
	if (!vn_cmd_check(cmd, 272, 16, fields, VN_COUNT(fields), true)) {
		return false;
	}
	if (qp->state != from) {
		return VN_REFUSE(cmd, VN_ST_BAD_QP_STATE, "qp 0x%x is in %s", qp->number,
				 names[qp->state]);
	}
	switch (opcode) {
	case VN_RST2INIT:
		return vn_to_init(cmd, qp);
	case VN_INIT2RTR:
		return vn_to_rtr(cmd, qp);
	case VN_RTR2RTS:
		return vn_to_rts(cmd, qp);
	default: /* RTS2RTS: nothing else that this NIC would do differently */
		if (!vn_lag_check(cmd, qp, VN_RTS2RTS)) {
			return false;
		}
		qp->lag = vn_get(cmd->in, 0x80, 32) ? (uint8_t)vn_get(cmd->in, VN_QPC(0x4), 4)
						    : qp->lag;
		return true;
	}
}

bool vn_cmd_query_qp(struct vn_cmd *cmd, struct vn_qp *qp)
{
	static const struct vn_field fields[] = { { 0x40, 1 }, { 0x48, 24 } };
	bool ext = vn_get(cmd->in, 0x40, 1);
	uint8_t *qpc = cmd->out + 24;

	if (!vn_cmd_check(cmd, 16, ext ? 272 + 192 : 24 + sizeof(qp->qpc), fields, VN_COUNT(fields),
			  false)) {
		return false;
	}
	if (ext && !vn_config.ooo_all) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "qpc_ext: no such capability");
	}
	if (ext) {
		vn_set(cmd->out, 0x8f0, 8, qp->cause_vendor);
		vn_set(cmd->out, 0x8f8, 8, qp->cause);
	}
	memcpy(qpc, qp->qpc, sizeof(qp->qpc));
	vn_set(qpc, 0, 4, (uint32_t)qp->state);
	vn_set(qpc, 0x4, 4, qp->lag);
	if (!vn_config.quiet) {
		vn_set(qpc, 0x26, 1, qp->tier & 1);
		vn_set(qpc, 0x49c, 1, qp->tier >> 1);
	}
	vn_set(qpc, 0x5a, 1, vn_config.reports_order && !qp->tier);
	vn_set(qpc, 0x3c8, 24, qp->next_psn);
	vn_set(qpc, 0x4a8, 24, qp->want_psn);
	vn_set(qpc, 0x5a0, 16, (uint32_t)(qp->done & 0xffff));
	vn_set(qpc, 0x5b0, 16, (uint32_t)(qp->pi & 0xffff));
	return true;
}
