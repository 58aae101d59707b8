/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include "nic/dv.h"
#include "nic/lag.h"

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
