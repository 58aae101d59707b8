/* SPDX-License-Identifier: Apache-2.0 */
/* Command buffers: what the decoders share. Offsets are bits, as in the PRM. */
#ifndef VN_CMD_H
#define VN_CMD_H

#include "nic/qp.h"

enum vn_opcode {
	VN_QUERY_HCA_CAP = 0x100,
	VN_CREATE_CQ = 0x400,
	VN_CREATE_QP = 0x500,
	VN_RST2INIT = 0x502,
	VN_INIT2RTR = 0x503,
	VN_RTR2RTS = 0x504,
	VN_RTS2RTS = 0x505,
	VN_2ERR = 0x507,
	VN_2RST = 0x50a,
	VN_QUERY_QP = 0x50b,
	VN_QUERY_HCA_VPORT_CONTEXT = 0x762,
	VN_QUERY_LAG = 0x842
};

/* Status of a command (PRM, "Command return status"). */
enum vn_status {
	VN_ST_OK = 0,
	VN_ST_BAD_OP = 0x2,
	VN_ST_BAD_PARAM = 0x3,
	VN_ST_BAD_RESOURCE = 0x5,
	VN_ST_BAD_INDEX = 0xa,
	VN_ST_NO_RESOURCES = 0xf,
	VN_ST_BAD_QP_STATE = 0x10,
	VN_ST_BAD_INPUT_LEN = 0x50,
	VN_ST_BAD_OUTPUT_LEN = 0x51
};

struct vn_field {
	uint16_t bit, width;
};

struct vn_cmd {
	struct vn_context *ctx;
	const uint8_t *in;
	size_t inlen;
	uint8_t *out;
	size_t outlen;
	const char *name;
	uint8_t status;
	uint32_t syndrome;
};

#define VN_COUNT(a) (sizeof(a) / sizeof(*(a)))

/* Records why the command fails; returns false. The syndrome is the line that decided. */
#define VN_REFUSE(cmd, code, ...) vn_refuse(cmd, code, __LINE__, __VA_ARGS__)
bool vn_refuse(struct vn_cmd *cmd, uint8_t status, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Lengths, uid, op_mod, and that nothing but `fields` (and those of a QPC at 0xc0) is set. */
bool vn_cmd_check(struct vn_cmd *cmd, size_t inlen, size_t outlen, const struct vn_field *fields,
		  size_t n, bool qpc);
/* The part [offset, offset + bytes) of a umem. */
struct vn_umem *vn_cmd_umem(struct vn_cmd *cmd, const char *what, uint32_t id, uint64_t offset,
			    uint64_t bytes, uint64_t align);

extern const struct vn_field vn_qpc_fields[];
extern const size_t vn_qpc_nfields;

#define VN_ECE_ASK 0x10000000u /* CREATE_QP: what can it do beyond the standard? */
/*
 * What a NIC can beyond the standard (ECE): flags, and in the lowest four bits a level, of which
 * firmware knows 0, 3 and 5. NICs with odd numbers have other firmware than those with even ones.
 */
uint32_t vn_ece_of(const struct vn_nic *nic);
/*
 * Takes the other end's word into *ece and replaces it by what both can: the flags of both and the
 * lower level. False: this firmware refuses it.
 */
bool vn_ece_reduce(const struct vn_nic *nic, uint32_t *ece);
struct vn_qp *vn_cmd_create_qp(struct vn_cmd *cmd);
bool vn_cmd_modify_qp(struct vn_cmd *cmd, struct vn_qp *qp, uint32_t opcode);
bool vn_cmd_query_qp(struct vn_cmd *cmd, struct vn_qp *qp);
void vn_caps(uint32_t which, uint8_t *cap);

#endif
