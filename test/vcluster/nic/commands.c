/* SPDX-License-Identifier: Apache-2.0 */
/* DevX: commands as the firmware takes them. Completion queues, capabilities, dispatch. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "nic/nic.h"
#include "nic/step.h"

enum vn_obj_kind {
	VN_OBJ_CQ,
	VN_OBJ_QP
};

struct mlx5dv_devx_obj {
	enum vn_obj_kind kind;
	struct vn_context *ctx;
	struct vn_qp *qp;
	struct vn_cq *cq;
};

#define VN_EQN 7 /* of completion vector 0 */

bool vn_refuse(struct vn_cmd *cmd, uint8_t status, int line, const char *fmt, ...)
{
	char text[320];
	va_list list;

	va_start(list, fmt);
	vsnprintf(text, sizeof(text), fmt, list);
	va_end(list);
	cmd->status = status;
	cmd->syndrome = 0x5a000000u | (uint32_t)line;
	vn_log("%s refused: %s (status 0x%x, syndrome 0x%x)", cmd->name, text, status,
	       cmd->syndrome);
	return false;
}

/* What may be set in a QPC; the primary path begins at 0xc0. */
static const struct vn_field vn_qpc_fields[] = {
	{ 0x4, 4 },          { 0x13, 2 },          { 0x26, 2 },         { 0x28, 24 },
	{ 0x40, 3 },         { 0x43, 5 },          { 0x51, 4 },         { 0x58, 2 },
	{ 0x68, 24 },        { 0xa8, 24 },         { 0x388, 3 },        { 0x38d, 3 },
	{ 0x390, 3 },        { 0x3c8, 24 },        { 0x3e8, 24 },       { 0x488, 3 },
	{ 0x48c, 4 },        { 0x490, 3 },         { 0x49c, 1 },        { 0x4a3, 5 },
	{ 0x4a8, 24 },       { 0x4e8, 24 },        { 0x500, 64 },       { 0x565, 3 },
	{ 0x683, 1 },        { 0x720, 32 },        { 0xc0 + 0x10, 16 }, { 0xc0 + 0x28, 1 },
	{ 0xc0 + 0x30, 16 }, { 0xc0 + 0x40, 5 },   { 0xc0 + 0x48, 8 },  { 0xc0 + 0x58, 8 },
	{ 0xc0 + 0x64, 8 },  { 0xc0 + 0x80, 128 }, { 0xc0 + 0x10a, 6 }, { 0xc0 + 0x110, 16 },
	{ 0xc0 + 0x121, 3 }, { 0xc0 + 0x124, 4 },  { 0xc0 + 0x128, 8 }, { 0xc0 + 0x130, 48 },
};

static void vn_mark(uint8_t *known, size_t bytes, unsigned int bit, unsigned int width)
{
	for (; width && bit / 8 < bytes; bit++, width--) {
		known[bit / 8] |= (uint8_t)(0x80 >> bit % 8);
	}
}

/* Lengths, uid, op_mod, and that nothing but `fields` (and those of a QPC at 0xc0) is set. */
static bool vn_cmd_check(struct vn_cmd *cmd, size_t inlen, size_t outlen,
			 const struct vn_field *fields, size_t n, bool qpc)
{
	uint8_t known[512] = { 0 };

	if (cmd->inlen != inlen) {
		return VN_REFUSE(cmd, VN_ST_BAD_INPUT_LEN, "%zu bytes of input, not %zu",
				 cmd->inlen, inlen);
	}
	if (cmd->outlen < outlen) {
		return VN_REFUSE(cmd, VN_ST_BAD_OUTPUT_LEN, "%zu bytes of output, not %zu",
				 cmd->outlen, outlen);
	}
	if (vn_get(cmd->in, 0x10, 16)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "uid is the driver's to set");
	}
	vn_mark(known, sizeof(known), 0, 16);
	for (size_t i = 0; i < n; i++) {
		vn_mark(known, sizeof(known), fields[i].bit, fields[i].width);
	}
	for (size_t i = 0; qpc && i < VN_COUNT(vn_qpc_fields); i++) {
		vn_mark(known, sizeof(known), 0xc0u + vn_qpc_fields[i].bit, vn_qpc_fields[i].width);
	}
	for (size_t i = 0; i < inlen; i++) {
		if (cmd->in[i] & ~known[i]) {
			return VN_REFUSE(cmd, VN_ST_BAD_PARAM,
					 "byte 0x%zx (bit 0x%zx) is 0x%02x: reserved, or not known "
					 "to this NIC%s",
					 i, i * 8, cmd->in[i],
					 qpc && i >= 0x18 ? " (qpc begins at 0xc0)" : "");
		}
	}
	return true;
}

/* The part [offset, offset + bytes) of a umem. */
static struct vn_umem *vn_cmd_umem(struct vn_cmd *cmd, const char *what, uint32_t id,
				   uint64_t offset, uint64_t bytes, uint64_t align)
{
	struct vn_umem *u = vn_umem_find(id, cmd->ctx);

	if (!u) {
		VN_REFUSE(cmd, VN_ST_BAD_RESOURCE, "%s: umem %u is not of this context", what, id);
		return NULL;
	}
	if (offset % align || bytes > u->mem.size || offset > u->mem.size - bytes) {
		VN_REFUSE(cmd, VN_ST_BAD_PARAM,
			  "%s: %llu bytes at offset 0x%llx of umem %u, which has %llu bytes "
			  "(alignment %llu)",
			  what, (unsigned long long)bytes, (unsigned long long)offset, id,
			  (unsigned long long)u->mem.size, (unsigned long long)align);
		return NULL;
	}
	if (align == 64 && offset % (u->page / 64)) { /* a queue, not a record */
		VN_REFUSE(cmd, VN_ST_BAD_PARAM,
			  "%s: offset 0x%llx of umem %u is no multiple of 1/64 of its page of %llu "
			  "bytes: bound the page where it is registered",
			  what, (unsigned long long)offset, id, (unsigned long long)u->page);
		return NULL;
	}
	if (!(u->access & IBV_ACCESS_LOCAL_WRITE)) {
		VN_REFUSE(cmd, VN_ST_BAD_PARAM, "%s: umem %u was registered read-only", what, id);
		return NULL;
	}
	return u;
}

/* -------------------------------------------------------------------------- completion queues */

#define VN_CQC(bit) (0x80 + (bit))

static const struct vn_field vn_cq_fields[] = {
	{ VN_CQC(0x6), 1 },  { VN_CQC(0xb), 1 },   { VN_CQC(0xe), 1 },  { VN_CQC(0x20), 32 },
	{ VN_CQC(0x63), 5 }, { VN_CQC(0x68), 24 }, { VN_CQC(0xb8), 8 }, { VN_CQC(0x1c0), 64 },
	{ 0x280, 64 },       { 0x2c0, 32 },        { 0x2e0, 1 },
};

static struct vn_cq *vn_cmd_create_cq(struct vn_cmd *cmd)
{
	const uint8_t *in = cmd->in;
	struct vn_umem *umem, *dbr;
	struct vn_uar *uar;
	struct vn_cq *cq;
	uint32_t log;

	if (!vn_cmd_check(cmd, 272, 16, vn_cq_fields, VN_COUNT(vn_cq_fields), false)) {
		return NULL;
	}
	log = vn_get(in, VN_CQC(0x63), 5);
	uar = vn_uar_find(vn_get(in, VN_CQC(0x68), 24), cmd->ctx);
	if (log > 22 || !vn_get(in, VN_CQC(0x6), 1) || !vn_get(in, VN_CQC(0xb), 1) ||
	    !vn_get(in, VN_CQC(0xe), 1)) {
		VN_REFUSE(cmd, VN_ST_BAD_PARAM,
			  "log_cq_size %u, dbr_umem_valid %u, cc %u, oi %u: up to 22, 1, 1, 1", log,
			  vn_get(in, VN_CQC(0x6), 1), vn_get(in, VN_CQC(0xb), 1),
			  vn_get(in, VN_CQC(0xe), 1));
		return NULL;
	}
	if (!uar || vn_get(in, VN_CQC(0xb8), 8) != VN_EQN) {
		VN_REFUSE(cmd, VN_ST_BAD_RESOURCE,
			  "uar_page %u, c_eqn %u: a UAR of this context, what "
			  "mlx5dv_devx_query_eqn says",
			  vn_get(in, VN_CQC(0x68), 24), vn_get(in, VN_CQC(0xb8), 8));
		return NULL;
	}
	umem = vn_cmd_umem(cmd, "CQ", vn_get(in, 0x2c0, 32), vn_get64(in, 0x280), 64ull << log, 64);
	dbr = umem ? vn_cmd_umem(cmd, "CQ doorbell record", vn_get(in, VN_CQC(0x20), 32),
				 vn_get64(in, VN_CQC(0x1c0)), 8, 8)
		   : NULL;
	if (!dbr) {
		return NULL;
	}
	cq = vn_cq_new(cmd->ctx);
	if (!cq) {
		VN_REFUSE(cmd, VN_ST_NO_RESOURCES, "no memory");
		return NULL;
	}
	cq->devx = true;
	cq->umem = umem;
	cq->dbr_umem = dbr;
	cq->uar = uar;
	cq->mem = umem->mem;
	cq->entry = (struct ep_mlx5_cqe *)(umem->mem.at + vn_get64(in, 0x280));
	umem->users++;
	dbr->users++;
	uar->users++;
	vn_set(cmd->out, 0x48, 24, cq->number);
	return cq;
}

/* -------------------------------------------------------------------------------- capabilities */

static void vn_caps(uint32_t which, uint8_t *cap)
{
	const struct vn_config *c = &vn_config;

	switch (which) {
	case 0:                                         /* general */
		vn_set(cap, 0x62, 1, c->reports_order); /* qp_data_in_order */
		vn_set(cap, 0x88, 8, 15);               /* log_max_qp_sz */
		vn_set(cap, 0xa3, 1, !c->no_ece);       /* ece_support */
		vn_set(cap, 0x122, 1, c->ooo_all);      /* qpc_extension */
		vn_set(cap, 0x273, 1, c->ooo_all);      /* qp_error_syndrome */
		vn_set(cap, 0x14a, 6, 4);               /* log_max_ra_req_qp */
		vn_set(cap, 0x15a, 6, 4);               /* log_max_ra_res_qp */
		vn_set(cap, 0x1c3, 5, 30);              /* log_max_msg */
		vn_set(cap, 0x1ca, 1, c->ooo_rw && !c->quiet);
		vn_set(cap, 0x1fc, 4, 1);                      /* cqe_version */
		vn_set(cap, 0x220, 1, 1);                      /* cq_oi */
		vn_set(cap, 0x23f, 1, 1);                      /* rc */
		vn_set(cap, 0x152, 1, c->lag != 0);            /* rts2rts_lag_tx_port_affinity */
		vn_set(cap, 0x1f8, 1, c->lag && !c->lag_late); /* init2_lag_tx_port_affinity */
		vn_set(cap, 0x278, 1, c->lag != 0);            /* lag_tx_port_affinity */
		vn_set(cap, 0x27c, 4, (uint32_t)c->lag);       /* num_lag_ports */
		vn_set(cap, 0x334, 1, c->ooo_all && !c->quiet);
		vn_set(cap, 0x440, 2, c->ib ? c->ts : 0); /* sq_ts_format */
		break;
	default:                             /* RoCE */
		vn_set(cap, 0x1e, 2, c->ts); /* qp_ts_format */
		break;
	}
}

static bool vn_cmd_query_cap(struct vn_cmd *cmd)
{
	uint32_t mod = vn_get(cmd->in, 0x30, 16);
	uint8_t cap[4096] = { 0 };
	static const struct vn_field fields[] = { { 0x30, 16 }, { 0x40, 1 }, { 0x50, 16 } };

	if (!vn_cmd_check(cmd, 16, 16, fields, VN_COUNT(fields), false)) {
		return false;
	}
	if (mod >> 1 != 0 && (mod >> 1 != 4 || vn_config.ib)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "capabilities of group 0x%x", mod >> 1);
	}
	vn_caps(mod >> 1, cap);
	memcpy(cmd->out + 16, cap, cmd->outlen - 16 < sizeof(cap) ? cmd->outlen - 16 : sizeof(cap));
	return true;
}

/* ------------------------------------------------------------------------------------ dispatch */

static void vn_cmd_begin(struct vn_cmd *cmd, struct vn_context *ctx, const void *in, size_t inlen,
			 void *out, size_t outlen, const char *name)
{
	*cmd = (struct vn_cmd){ ctx, in, inlen, out, outlen, name, 0, 0 };
	__atomic_fetch_add(&vn.commands[vn_get(in, 0, 16) % VN_OPCODES], 1, __ATOMIC_RELAXED);
	memset(out, 0, outlen);
}

static int vn_cmd_end(struct vn_cmd *cmd)
{
	if (!cmd->status) {
		return 0;
	}
	vn_set(cmd->out, 0, 8, cmd->status);
	if (cmd->outlen >= 8) {
		vn_set(cmd->out, 0x20, 32, cmd->syndrome);
	}
	errno = EREMOTEIO;
	return EREMOTEIO;
}

static bool vn_cmd_usable(struct vn_context *ctx, size_t inlen, size_t outlen)
{
	if (!ctx->devx) {
		errno = EOPNOTSUPP; /* opened without MLX5DV_CONTEXT_FLAGS_DEVX */
		return false;
	}
	if (inlen < 16 || outlen < 16) {
		errno = EINVAL;
		return false;
	}
	return true;
}

VN_EXPORT struct mlx5dv_devx_obj *vn_dv_create(struct ibv_context *c, const void *in, size_t inlen,
					       void *out, size_t outlen)
{
	struct vn_context *ctx = vn_context_of(c);
	struct mlx5dv_devx_obj *obj;
	uint32_t opcode;
	struct vn_cmd cmd;

	if (!vn_cmd_usable(ctx, inlen, outlen)) {
		return NULL;
	}
	obj = calloc(1, sizeof(*obj));
	if (!obj) {
		errno = ENOMEM;
		return NULL;
	}
	opcode = vn_get(in, 0, 16);
	vn_cmd_begin(&cmd, ctx, in, inlen, out, outlen,
		     opcode == VN_CREATE_CQ   ? "CREATE_CQ"
		     : opcode == VN_CREATE_QP ? "CREATE_QP"
					      : "command");
	obj->ctx = ctx;
	vn_lock();
	if (opcode == VN_CREATE_CQ) {
		obj->kind = VN_OBJ_CQ;
		obj->cq = vn_cmd_create_cq(&cmd);
	} else if (opcode == VN_CREATE_QP) {
		obj->kind = VN_OBJ_QP;
		obj->qp = vn_cmd_create_qp(&cmd);
	} else {
		VN_REFUSE(&cmd, VN_ST_BAD_OP, "opcode 0x%x creates nothing known here", opcode);
	}
	ctx->live += !cmd.status;
	vn_unlock();
	if (vn_cmd_end(&cmd)) {
		free(obj);
		return NULL;
	}
	return obj;
}

static const char *vn_modify_name(uint32_t opcode)
{
	switch (opcode) {
	case VN_RST2INIT:
		return "RST2INIT_QP";
	case VN_INIT2RTR:
		return "INIT2RTR_QP";
	case VN_RTR2RTS:
		return "RTR2RTS_QP";
	case VN_RTS2RTS:
		return "RTS2RTS_QP";
	case VN_2ERR:
		return "2ERR_QP";
	case VN_QUERY_QP:
		return "QUERY_QP";
	default:
		return "command";
	}
}

VN_EXPORT int vn_dv_object_cmd(struct mlx5dv_devx_obj *obj, bool query, const void *in,
			       size_t inlen, void *out, size_t outlen)
{
	uint32_t opcode;
	struct vn_cmd cmd;

	if (!vn_cmd_usable(obj->ctx, inlen, outlen)) {
		return errno;
	}
	opcode = vn_get(in, 0, 16);
	vn_cmd_begin(&cmd, obj->ctx, in, inlen, out, outlen, vn_modify_name(opcode));
	vn_lock();
	if (obj->kind != VN_OBJ_QP || query != (opcode == VN_QUERY_QP)) {
		VN_REFUSE(&cmd, VN_ST_BAD_OP, "opcode 0x%x does not %s this object", opcode,
			  query ? "query" : "modify");
	} else if (vn_get(in, 0x48, 24) != obj->qp->number) {
		VN_REFUSE(&cmd, VN_ST_BAD_INDEX, "qpn 0x%x, but the object is 0x%x",
			  vn_get(in, 0x48, 24), obj->qp->number);
	} else if (query) {
		vn_cmd_query_qp(&cmd, obj->qp);
	} else {
		vn_cmd_modify_qp(&cmd, obj->qp, opcode);
	}
	vn_unlock();
	return vn_cmd_end(&cmd);
}

VN_EXPORT int vn_dv_destroy(struct mlx5dv_devx_obj *obj)
{
	int rc = 0;

	vn_lock();
	if (obj->kind == VN_OBJ_CQ && obj->cq->users) {
		vn_log_once("CQ 0x%x destroyed while %u queue pairs use it", obj->cq->number,
			    obj->cq->users);
		rc = EBUSY;
	} else {
		if (obj->kind == VN_OBJ_CQ) {
			vn_cq_free(obj->cq);
		} else {
			vn_sq_doorbell_last(obj->qp);
			vn_qp_free(obj->qp);
		}
		obj->ctx->live--;
	}
	vn_unlock();
	if (!rc) {
		free(obj);
	}
	return rc;
}

VN_EXPORT int vn_dv_general(struct ibv_context *c, const void *in, size_t inlen, void *out,
			    size_t outlen)
{
	struct vn_context *ctx = vn_context_of(c);
	uint32_t opcode;
	struct vn_cmd cmd;

	if (!vn_cmd_usable(ctx, inlen, outlen)) {
		return errno;
	}
	opcode = vn_get(in, 0, 16);
	vn_cmd_begin(&cmd, ctx, in, inlen, out, outlen,
		     opcode == VN_QUERY_HCA_CAP ? "QUERY_HCA_CAP" : "general command");
	switch (opcode) {
	case VN_QUERY_HCA_CAP:
		vn_cmd_query_cap(&cmd);
		break;
	case VN_QUERY_LAG:
		vn_set(cmd.out, 0x40 + 0x15, 3, vn_config.lag_hash); /* port_select_mode */
		vn_set(cmd.out, 0x40 + 0x1d, 3, vn_config.lag != 0); /* lag_state */
		break;
	default:
		VN_REFUSE(&cmd, VN_ST_BAD_OP, "opcode 0x%x is not known here", opcode);
	}
	return vn_cmd_end(&cmd);
}

VN_EXPORT uint64_t vn_dv_commands(uint32_t opcode)
{
	return __atomic_load_n(&vn.commands[opcode % VN_OPCODES], __ATOMIC_RELAXED);
}

VN_EXPORT int vn_dv_query_eqn(struct ibv_context *c, uint32_t vector, uint32_t *eqn)
{
	if (!vn_context_of(c)->devx || vector) {
		errno = EINVAL;
		return EINVAL;
	}
	*eqn = VN_EQN;
	return 0;
}

VN_EXPORT int vn_dv_is_supported(struct ibv_device *device)
{
	(void)device;
	return vn_config.mlx5;
}

VN_EXPORT struct ibv_context *vn_dv_open(struct ibv_device *device,
					 const struct mlx5dv_context_attr *attr)
{
	if (!vn_config.mlx5 || attr->flags & ~(uint32_t)MLX5DV_CONTEXT_FLAGS_DEVX ||
	    attr->comp_mask) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return vn_open(device, attr->flags & MLX5DV_CONTEXT_FLAGS_DEVX);
}

VN_EXPORT int vn_dv_init_obj(struct mlx5dv_obj *obj, uint64_t type)
{
	if (type & ~(uint64_t)(MLX5DV_OBJ_PD | MLX5DV_OBJ_AH)) {
		errno = EOPNOTSUPP;
		return EOPNOTSUPP;
	}
	if (type & MLX5DV_OBJ_PD) {
		obj->pd.out->comp_mask = 0;
		obj->pd.out->pdn = ((struct vn_pd *)obj->pd.in)->number;
	}
	if (type & MLX5DV_OBJ_AH) {
		obj->ah.out->comp_mask = 0;
		obj->ah.out->av = &((struct vn_ah *)obj->ah.in)->av;
	}
	return 0;
}

/* ---- DevX: queue pairs ---- */

#define VN_QPC(bit) (0xc0 + (bit))

/* What each transition takes from its QPC. */
static const struct vn_field vn_init_fields[] = {
	{ 0x4, 4 },   { 0x13, 2 },         { 0x48c, 4 },
	{ 0x490, 3 }, { 0xc0 + 0x10, 16 }, { 0xc0 + 0x128, 8 },
};
static const struct vn_field vn_rtr_fields[] = {
	{ 0x26, 2 },         { 0x40, 3 },          { 0x43, 5 },          { 0xa8, 24 },
	{ 0x488, 3 },        { 0x49c, 1 },         { 0x4a3, 5 },         { 0x4a8, 24 },
	{ 0xc0 + 0x28, 1 },  { 0xc0 + 0x30, 16 },  { 0xc0 + 0x48, 8 },   { 0xc0 + 0x58, 8 },
	{ 0xc0 + 0x64, 8 },  { 0xc0 + 0x80, 128 }, { 0xc0 + 0x10a, 6 },  { 0xc0 + 0x110, 16 },
	{ 0xc0 + 0x121, 3 }, { 0xc0 + 0x124, 4 },  { 0xc0 + 0x130, 48 },
};
static const struct vn_field vn_rts_fields[] = {
	{ 0x388, 3 }, { 0x38d, 3 }, { 0x390, 3 }, { 0x3c8, 24 }, { 0xc0 + 0x40, 5 },
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
	if (vn_get(in, VN_QPC(0x565), 3) != 3 || !vn_get(in, VN_QPC(0x683), 1)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM,
				 "rq_type %u, dbr_umem_valid %u: no receive queue (3), 1",
				 vn_get(in, VN_QPC(0x565), 3), vn_get(in, VN_QPC(0x683), 1));
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
	if (!qp->mem.gpu && !qp->cq->written &&
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

	if (opcode == VN_2ERR) {
		if (!vn_cmd_check(cmd, 16, 16, fields, 1, false)) {
			return false;
		}
		if (qp->state == VN_RST) {
			return VN_REFUSE(cmd, VN_ST_BAD_QP_STATE, "qp 0x%x is in RESET",
					 qp->number);
		}
		vn_qp_to_error(qp);
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

#define VN_OPT_LAG (1u << 15) /* opt_param_mask: lag_tx_port_affinity */
#define VN_QPC_LAG 0xc4, 4

bool vn_lag_check(struct vn_cmd *cmd, const struct vn_qp *qp, uint32_t opcode)
{
	uint32_t member = vn_get(cmd->in, VN_QPC_LAG), mask = vn_get(cmd->in, 0x80, 32);

	if (mask & ~VN_OPT_LAG || (opcode == VN_RST2INIT && mask) ||
	    (opcode == VN_INIT2RTR && mask && vn_config.lag_late)) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM, "opt_param_mask 0x%x", mask);
	}
	if (member > (uint32_t)vn_config.lag) {
		return VN_REFUSE(cmd, VN_ST_BAD_PARAM,
				 "qp 0x%x: lag_tx_port_affinity %u, num_lag_ports is %d",
				 qp->number, member, vn_config.lag);
	}
	return true;
}

void vn_lag_turn(struct vn_qp *qp)
{
	if (vn_config.lag && !vn_config.lag_hash) {
		qp->lag = (uint8_t)(1 + qp->ctx->lag_turn++ % (uint32_t)vn_config.lag);
	}
}

/* Queue pairs without a member of their own pile up on the first. */
static uint32_t vn_lag_member(const struct vn_qp *qp)
{
	if (vn_config.lag_hash) {
		return (uint32_t)__builtin_popcount(qp->sport) % VN_MEMBERS;
	}
	return qp->lag ? qp->lag - 1u : 0;
}

void vn_lag_sent(struct vn_qp *qp, uint32_t bytes)
{
	struct vn_dv_member *m = &qp->nic->member[vn_lag_member(qp)];

	m->packets++;
	m->bytes += bytes;
}

VN_EXPORT void vn_dv_members(int nic, struct vn_dv_member member[VN_MEMBERS])
{
	vn_lock();
	for (int i = 0; i < VN_MEMBERS; i++) {
		member[i] = vn.nic[nic].member[i];
	}
	vn_unlock();
}

VN_EXPORT int vn_dv_query_lag_port(struct ibv_qp *ibv, uint8_t *port, uint8_t *active)
{
	const struct vn_qp *qp = (struct vn_qp *)ibv;

	if (!vn_config.lag) {
		return EOPNOTSUPP;
	}
	vn_lock();
	*port = *active = qp->lag;
	vn_unlock();
	return 0;
}

VN_EXPORT int vn_dv_modify_lag_port(struct ibv_qp *ibv, uint8_t port)
{
	struct vn_qp *qp = (struct vn_qp *)ibv;
	int rc = 0;

	vn_lock();
	if (!vn_config.lag || qp->state != VN_RTS) {
		rc = EOPNOTSUPP;
	} else if (!port || port > vn_config.lag) {
		rc = EINVAL;
	} else {
		qp->lag = port;
	}
	vn_unlock();
	return rc;
}
